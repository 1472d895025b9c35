//! `src/ops/bitnet/bitlinear.rs`

use super::{exact_product, quantized, row_scales, watch_quantized};
use crate::{
    Case, Data, Near, U, activations,
    cases::tensor::epilogue::{Finished, Way, epilogue, half_floats_of, ways},
    context, convert, floats, half_floats, rng, shapes, sums, ternary, ternary_with, wild_activations,
};
use bitnet_wgpu::{
    Capabilities, Element, Float, PackedTernary, Scales,
    bitnet::{self, Layout},
    f16,
    tensor::Activation,
};
use rand::{RngExt, rngs::StdRng};

type Shape = (usize, usize, usize);
/// A layout, and what the device is taken for: together they decide for a kernel.
type Method = (&'static str, Layout, fn(&mut Capabilities));

/// Awkward numbers of rows and columns.
const AWKWARD: [Shape; 10] =
    [(2, 1, 1), (3, 7, 15), (4, 9, 17), (5, 33, 100), (7, 16, 33), (8, 65, 31), (11, 63, 129), (16, 5, 513), (29, 67, 90), (70, 67, 100)];
/// So long that lanes take several turns, the last of which is not full.
const LONG_ROWS: [Shape; 6] = [(2, 9, 4131), (4, 5, 2575), (8, 9, 2575), (13, 3, 2575), (27, 5, 2575), (33, 3, 2575)];
/// So many rows or tokens that there are other kernels for them in the int8 layout, and not a multiple of their tiles.
const MANY_OUTPUTS: [Shape; 7] =
    [(1, 16_387, 65), (1, 16_387, 300), (3, 8197, 300), (4, 8195, 65), (8, 8195, 300), (250, 259, 40), (263, 130, 70)];

const INT8: Method = ("int8", Layout::Int8, |c| c.fast_packed_dot = true);
/// So many tokens or outputs that matrix units make them, where a device has some: off their tiles, at and off the columns that are staged at a time; the
/// last in large tiles.
const ON_UNITS: [Shape; 10] = [
    (257, 1, 1),
    (258, 200, 65),
    (270, 129, 63),
    (320, 64, 64),
    (257, 65, 128),
    (400, 7, 320),
    (33, 10_700, 40),
    (130, 12_300, 33),
    (20, 8500, 300),
    (70, 8100, 300),
];
/// On units of halves, where a device has some for int8 too.
const ON_HALVES: Method = ("int8, units of halves", Layout::Int8, |c| {
    c.fast_packed_dot = true;
    c.matrix_units.retain(|unit| unit.element == Element::F16);
});

/// Devices without packed products take other kernels for 3 to 256 tokens.
const EXPANDED: Method = ("int8, expanded", Layout::Int8, |c| (c.fast_packed_dot, c.software) = (false, false));
const METHODS: [Method; 4] = [
    INT8,
    ("half", Layout::Half, |_| ()),
    ("int8 on software", Layout::Int8, |c| (c.fast_packed_dot, c.software) = (false, true)),
    ("half, biased", Layout::Half, |c| c.half_subnormals = false),
];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for method in METHODS {
        for (mut rng, shape) in shapes(method.0).chain([(rng(1), (2, 9, 2560))]) {
            let (x, w) = (wild_activations(&mut rng, shape.0, shape.2), weights(&mut rng, shape));
            let halves = tame(&activations(&mut rng, shape.0, shape.2));
            cases.extend([case::<f32>(method, shape, &x, &w), case::<f16>(method, shape, &halves, &w)]);
        }
        // Every number of tokens that a GEMV may share words among, and where kernels change; rows shorter and longer than a turn of the lanes.
        for shape in (0..=20).map(|m| (m, 19, 70)).chain(AWKWARD).chain(LONG_ROWS) {
            let mut rng = rng(4 + shape.0 as u64);
            let (x, w) = (activations(&mut rng, shape.0, shape.2), weights(&mut rng, shape));
            cases.extend([case::<f32>(method, shape, &x, &w), case::<f16>(method, shape, &tame(&x), &w)]);
        }
        // q, k, v under grouped-query attention: segments of different lengths, none a multiple of a tile.
        for m in [1, 3, 40] {
            let mut rng = rng(5);
            let parts = [37, 11, 11].map(|rows| ternary(&mut rng, rows, 80));
            let fused = PackedTernary::concat(&parts.each_ref()).unwrap();
            cases.push(case::<f32>(method, (m, 59, 80), &activations(&mut rng, m, 80), &fused));
        }
        // The largest sums there can be: all codes +1, all activations 127, at the largest k of a layout.
        let k = method.1.max_features(context().capabilities().half_subnormals && !method.0.ends_with("biased"));
        let ones = PackedTernary::from_values(2, k, &vec![1; 2 * k], Scales::Tensor(1.0)).unwrap();
        for (m, value) in [(1, 1.0), (1, -1.0), (2, -1.0), (9, 1.0), (9, -1.0), (27, -1.0), (33, 1.0)] {
            cases.push(case::<f32>(method, (m, 2, k), &vec![value; m * k], &ones).device_only());
        }
        // More tokens than a dimension of a grid has workgroups.
        let m = 70_000;
        cases.push(case::<f32>(method, (m, 2, 3), &floats(&mut rng(9), m * 3, 3.0), &ternary(&mut rng(9), 2, 3)).device_only());
    }
    for shape in AWKWARD {
        let mut rng = rng(11);
        let (x, w) = (activations(&mut rng, shape.0, shape.2), weights(&mut rng, shape));
        cases.push(case::<f32>(EXPANDED, shape, &x, &w));
    }
    for shape in MANY_OUTPUTS {
        let mut rng = rng(10);
        let (x, w) = (activations(&mut rng, shape.0, shape.2), weights(&mut rng, shape));
        cases.extend([case::<f32>(INT8, shape, &x, &w).device_only(), case::<f16>(INT8, shape, &tame(&x), &w).device_only()]);
    }
    for (method, shape) in ON_UNITS.map(|shape| (INT8, shape)).into_iter().chain([1, 3, 6, 7].map(|i| (ON_HALVES, ON_UNITS[i]))) {
        let mut rng = rng(12);
        let (x, w) = (activations(&mut rng, shape.0, shape.2), weights(&mut rng, shape));
        cases.extend([case::<f32>(method, shape, &x, &w).device_only(), case::<f16>(method, shape, &tame(&x), &w).device_only()]);
    }
    cases
}

/// Finite in `f16`.
fn tame(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| v.clamp(-6e4, 6e4)).collect()
}

fn weights(rng: &mut StdRng, (_, n, k): Shape) -> PackedTernary {
    let scales: Vec<f32> = (0..n).map(|_| rng.random_range(0.01..2.0)).collect();
    ternary_with(rng, n, k, row_scales(&scales))
}

/// From floats of a type to floats of that type; and the integer sums.
fn case<T: Float>((method, layout, restrict): Method, (m, n, k): Shape, x: &[f32], w: &PackedTernary) -> Case {
    let (x, w) = (convert::<T>(x), w.clone());
    let host = bitnet::quantize_activations_cpu(&x, m, k).unwrap();
    let accumulators = bitnet::accumulators_cpu(&host, &w).unwrap().into_iter().map(|sum| sum as f32).collect();
    let y = Data::floats(T::ELEMENT, &bitnet::bitlinear_quantized_cpu(&host, &w).unwrap());
    let wanted = quantized(&host, layout).into_iter().chain([Data::F32(accumulators), y]).collect();
    Case::exact(format!("{m} × {n} × {k} {:?}, {method}", T::ELEMENT), wanted, move |r| {
        let (x, w) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?);
        let xq = crate::quantize_as(&mut r.encoder, &x, layout)?;
        let sums = bitnet::accumulators(&mut r.encoder, &xq, &w)?;
        let y = bitnet::bitlinear_quantized::<T>(&mut r.encoder, &xq, &w)?;
        watch_quantized(r, &xq);
        r.watch_all(&sums);
        r.watch_all(&y);
        Ok(())
    })
    .of(T::ELEMENT)
    .on(restrict)
}

/// A product on top of what is there.
pub fn adding() -> Vec<Case> {
    let mut cases = Vec::new();
    for method in METHODS {
        for (mut rng, shape) in shapes(method.0) {
            cases.extend([add::<f32>(&mut rng, method, shape), add::<f16>(&mut rng, method, shape)]);
        }
        for shape in (1..=20).map(|m| (m, 18, 77)).chain(LONG_ROWS) {
            cases.extend([add::<f32>(&mut rng(35), method, shape), add::<f16>(&mut rng(36), method, shape)]);
        }
    }
    cases.extend(MANY_OUTPUTS.into_iter().chain(ON_UNITS).map(|shape| add::<f32>(&mut rng(34), INT8, shape).device_only()));
    cases.extend(ON_UNITS.map(|shape| add::<f16>(&mut rng(37), INT8, shape).device_only()));
    cases
}

fn add<T: Float>(rng: &mut StdRng, (method, layout, restrict): Method, shape: Shape) -> Case {
    let (m, n, k) = shape;
    let (x, w, base) = (floats(rng, m * k, 3.0), weights(rng, shape), half_floats(rng, m * n, 50.0));
    let host = bitnet::quantize_activations_cpu(&x, m, k).unwrap();
    let products = bitnet::bitlinear_quantized_cpu(&host, &w).unwrap();
    let wanted = sums(&base, &products);
    let base = convert::<T>(&base);
    Case::near(format!("{m} × {n} × {k} {:?}, {method}", T::ELEMENT), wanted, move |r| {
        let (x, w, y) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?, r.upload(&base, [m, n])?);
        let xq = crate::quantize_as(&mut r.encoder, &x, layout)?;
        bitnet::bitlinear_quantized_into(&mut r.encoder, &xq, &w, bitnet_wgpu::Out::add(&y))?;
        r.watch_all(&y);
        Ok(())
    })
    .of(T::ELEMENT)
    .on(restrict)
}

/// With an epilogue: every kernel that has one, in both types, with and without what may be done.
pub fn finished() -> Vec<Case> {
    let few = [(1, 19, 70), (2, 19, 70), (4, 9, 2575), (8, 33, 100), (27, 19, 70), (40, 67, 100)];
    let every = METHODS.into_iter().flat_map(|method| few.map(|shape| (method, shape)));
    let mut ways = ways();
    let mut both = |(method, shape): (Method, Shape)| {
        let mut way = || ways.next().expect("it has no end");
        [finish::<f32>(method, shape, way()), finish::<f16>(method, shape, way())]
    };
    let mut cases: Vec<Case> = every.flat_map(&mut both).collect();
    // Tall rows, workgroups that keep a device busy, large tiles; and matrix units.
    let large = [0, 3, 4, 6].map(|i| (INT8, MANY_OUTPUTS[i])).into_iter().chain([1, 3, 7].map(|i| (INT8, ON_UNITS[i])));
    let large = large.chain([3, 7].map(|i| (ON_HALVES, ON_UNITS[i])));
    cases.extend(large.flat_map(both).map(Case::device_only));
    cases
}

fn finish<T: Float>((method, layout, restrict): Method, shape: Shape, way: Way) -> Case {
    let (m, n, k) = shape;
    let mut rng = rng((m + n + k) as u64);
    let (x, w) = (floats(&mut rng, m * k, 3.0), weights(&mut rng, shape));
    let (bias, base) = (half_floats_of(&floats(&mut rng, n, 9.0)), half_floats(&mut rng, m * n, 50.0));
    let host = bitnet::quantize_activations_cpu(&x, m, k).unwrap();
    let finished = Finished::of(&bitnet::bitlinear_quantized_cpu(&host, &w).unwrap(), &bias, way, &base);
    let (bias, base) = (convert::<T>(&bias), convert::<T>(&base));
    let record = move |r: &mut crate::Recorder| {
        let (x, w, bias) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?, r.upload(&bias, [n])?);
        let xq = crate::quantize_as(&mut r.encoder, &x, layout)?;
        let (y, added, epilogue) = (r.output::<T>([m, n])?, r.upload(&base, [m, n])?, epilogue(way, &bias));
        bitnet::bitlinear_quantized_with_into(&mut r.encoder, &xq, &w, &epilogue, &y)?;
        bitnet::bitlinear_quantized_with_into(&mut r.encoder, &xq, &w, &epilogue, bitnet_wgpu::Out::add(&added))?;
        [&y, &added].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    let name = format!("{m} × {n} × {k} {:?}, {way:?}, {method}", T::ELEMENT);
    Case::new(name, record, move |got, leeway| finished.check::<T>(got, leeway)).of(T::ELEMENT).on(restrict)
}

/// The same of matrices that are scaled by groups: what is left of the bounds of their sums, an activation that is no steeper than 1 keeps.
pub fn groups_finished() -> Vec<Case> {
    [(1, 17, 200, 16), (3, 9, 256, 64), (7, 9, 100, 16)]
        .into_iter()
        .flat_map(|shape| [finish_groups::<f32>(shape), finish_groups::<f16>(shape)])
        .collect()
}

fn finish_groups<T: Float>((m, n, k, size): (usize, usize, usize, usize)) -> Case {
    let mut rng = rng((m + n + k) as u64);
    let w = ternary_with(&mut rng, n, k, Scales::Groups { size, scales: floats(&mut crate::rng(3), n * k.div_ceil(size), 1.0) });
    let (x, bias) = (floats(&mut rng, m * k, 2.0), half_floats_of(&floats(&mut rng, n, 9.0)));
    let (dense, host) = (w.dequantize(), bitnet::quantize_activations_cpu(&x, m, k).unwrap());
    let near = |at: usize| {
        let (exact, size) = exact_product(&dense, &host, &w, at);
        let sum = Near { exact, error: 2.0 * U * size * (k.div_ceil(16) + 8) as f64 }.on_top_of(bias[at % n]);
        Near { exact: sum.exact.max(0.0), error: sum.error }
    };
    let wanted = (0..m * n).map(near).collect();
    let bias = convert::<T>(&bias);
    Case::near(format!("{m} × {n} × {k} {:?}, groups of {size}", T::ELEMENT), wanted, move |r| {
        let (x, w, bias) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?, r.upload(&bias, [n])?);
        let xq = crate::quantize_as(&mut r.encoder, &x, Layout::Int8)?;
        let y = bitnet::bitlinear_quantized_with::<T>(&mut r.encoder, &xq, &w, &epilogue((Some(Activation::Relu), true), &bias))?;
        r.watch_all(&y);
        Ok(())
    })
    .of(T::ELEMENT)
}

/// Scales by groups of columns, where a sum of floats remains.
pub fn groups() -> Vec<Case> {
    let shapes = [(1, 9, 256, 64), (3, 17, 200, 16), (4, 9, 1100, 64), (7, 9, 100, 16), (12, 5, 100, 48), (2, 3, 15, 16), (0, 2, 32, 32)];
    let random = crate::random_shapes("groups").into_iter().zip([16, 32, 64, 128].into_iter().cycle());
    let all = shapes.into_iter().chain(random.map(|((m, n, k), size)| (m, n, k, size)));
    (0u64..)
        .zip(all)
        .flat_map(|(i, (m, n, k, size))| {
            let shape = (m, n, k);
            [false, true]
                .into_iter()
                .flat_map(move |add| [grouped::<f32>(&mut rng(i), shape, size, add), grouped::<f16>(&mut rng(i), shape, size, add)])
        })
        .collect()
}

fn grouped<T: Float>(rng: &mut StdRng, (m, n, k): Shape, size: usize, add: bool) -> Case {
    let scales = Scales::Groups { size, scales: floats(rng, n * k.div_ceil(size), 1.0) };
    let w = ternary_with(rng, n, k, scales);
    let (x, base) = (floats(rng, m * k, 2.0), half_floats(rng, m * n, 50.0));
    let (dense, host) = (w.dequantize(), bitnet::quantize_activations_cpu(&x, m, k).unwrap());
    let near = |(at, &base): (usize, &f32)| {
        let (product, size) = exact_product(&dense, &host, &w, at);
        let exact = product + if add { f64::from(base) } else { 0.0 };
        // One rounding for each of at most k/16 words and one for each of the tree's levels, of sums of at most Σ|w·x|; and of the last sum.
        let last = if add { 1.01 * U * exact.abs() } else { 0.0 };
        Near { exact, error: 2.0 * U * size * (k.div_ceil(16) + 8) as f64 + last }
    };
    let wanted = base.iter().enumerate().map(near).collect();
    let (name, (host, packed)) = (format!("{m} × {n} × {k} {:?}, groups of {size}, added {add}", T::ELEMENT), (host, w.clone()));
    let base = convert::<T>(&base);
    let case = Case::near(name, wanted, move |r| {
        let (x, w) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?);
        let xq = crate::quantize_as(&mut r.encoder, &x, Layout::Int8)?;
        let y = if add { r.upload(&base, [m, n])? } else { r.output::<T>([m, n])? };
        match add {
            true => bitnet::bitlinear_quantized_into(&mut r.encoder, &xq, &w, bitnet_wgpu::Out::add(&y))?,
            false => bitnet::bitlinear_quantized_into(&mut r.encoder, &xq, &w, &y)?,
        }
        r.watch_all(&y);
        Ok(())
    })
    .of(T::ELEMENT);
    if add { case } else { case.twin(move || vec![Data::F32(bitnet::bitlinear_quantized_cpu(&host, &packed).unwrap())]) }
}
