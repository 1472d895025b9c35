//! `src/ops/bitnet/bitlinear.rs`

use super::{
    bitlinear_block_float::{
        FEW, MANY, Shape as Grouped, in_bytes, in_floats, in_tiles, matrix, on_tensor_cores,
    },
    exact_product, quantized, row_scales, watch_quantized,
};
use crate::{
    Case, Data, Near, U, activations,
    cases::tensor::epilogue::{Finished, Way, f16_floats_of, finishing, ways},
    context, convert, f16_floats, floats, rng, shapes, sums, ternary, ternary_with,
    wild_activations,
};
use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Element,
    bitnet::{self, Layout},
    device::Capabilities,
    reference,
    tensor::{Float, f16},
    weights::{PackedTernary, Scales},
};
use rand::{RngExt, rngs::SmallRng};

type Shape = (usize, usize, usize);
/// A layout, and what the device is taken for: together they decide for a kernel.
type Method = (&'static str, Layout, fn(&mut Capabilities));

/// Awkward numbers of rows and columns.
const AWKWARD: [Shape; 10] = [
    (2, 1, 1),
    (3, 7, 15),
    (4, 9, 17),
    (5, 33, 100),
    (7, 16, 33),
    (8, 65, 31),
    (11, 63, 129),
    (16, 5, 513),
    (29, 67, 90),
    (70, 67, 100),
];
/// So long that lanes take several turns, the last of which is not full.
const LONG_ROWS: [Shape; 6] =
    [(2, 9, 4131), (4, 5, 2575), (8, 9, 2575), (13, 3, 2575), (27, 5, 2575), (33, 3, 2575)];
/// Rows or tokens for which there are other kernels in the int8 layout, and not a
/// multiple of their tiles.
const MANY_OUTPUTS: [Shape; 7] = [
    (1, 16_387, 65),
    (1, 16_387, 300),
    (3, 8197, 300),
    (4, 8195, 65),
    (8, 8195, 300),
    (250, 259, 40),
    (263, 130, 70),
];

const INT8: Method = ("int8", Layout::Int8, |c| c.fast_packed_dot = true);
/// Enough tokens or outputs for tensor cores, where a device has some: off their tiles,
/// at and off the columns that are staged at a time; the last in large tiles.
const ON_TENSOR_CORES: [Shape; 12] = [
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
    // Odd rows.
    (33, 10_701, 40),
    (130, 12_301, 33),
];
/// On tensor cores for f16, where a device has some for int8 too.
const ON_F16: Method = ("int8, f16 tensor cores", Layout::Int8, |c| {
    c.fast_packed_dot = true;
    c.tensor_cores.retain(|unit| unit.element == Element::F16);
});

/// Devices without packed products take other kernels for 3 to 256 tokens.
const EXPANDED: Method =
    ("int8, expanded", Layout::Int8, |c| (c.fast_packed_dot, c.software) = (false, false));
const METHODS: [Method; 4] = [
    INT8,
    ("f16", Layout::F16, |_| ()),
    ("int8 on software", Layout::Int8, |c| (c.fast_packed_dot, c.software) = (false, true)),
    ("f16, biased", Layout::F16, |c| c.f16_subnormals = false),
];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for method in METHODS {
        for (mut rng, shape) in shapes(method.0).chain([(rng(1), (2, 9, 2560))]) {
            let (x, w) = (wild_activations(&mut rng, shape.0, shape.2), weights(&mut rng, shape));
            let f16s = tame(&activations(&mut rng, shape.0, shape.2));
            cases.extend([
                case::<f32>(method, shape, &x, &w),
                case::<f16>(method, shape, &f16s, &w),
            ]);
        }
        // Every number of tokens that a GEMV may share words among, and where kernels change; rows
        // shorter and longer than a turn of the lanes.
        for shape in (0..=20).map(|m| (m, 19, 70)).chain(AWKWARD).chain(LONG_ROWS) {
            let mut rng = rng(4 + shape.0 as u64);
            let (x, w) = (activations(&mut rng, shape.0, shape.2), weights(&mut rng, shape));
            cases.extend([
                case::<f32>(method, shape, &x, &w),
                case::<f16>(method, shape, &tame(&x), &w),
            ]);
        }
        // q, k, v under grouped-query attention: segments of different lengths, none a multiple of
        // a tile.
        for m in [1, 3, 40] {
            let mut rng = rng(5);
            let parts = [37, 11, 11].map(|rows| ternary(&mut rng, rows, 80));
            let fused = PackedTernary::concat(&parts.each_ref()).unwrap();
            cases.push(case::<f32>(method, (m, 59, 80), &activations(&mut rng, m, 80), &fused));
        }
        // The largest sums there can be: all codes +1, all activations 127, at the largest k of a
        // layout.
        let k = method
            .1
            .max_features(context().capabilities().f16_subnormals && !method.0.ends_with("biased"));
        let ones = PackedTernary::from_values(2, k, &vec![1; 2 * k], Scales::Tensor(1.0)).unwrap();
        for (m, value) in
            [(1, 1.0), (1, -1.0), (2, -1.0), (9, 1.0), (9, -1.0), (27, -1.0), (33, 1.0)]
        {
            cases.push(case::<f32>(method, (m, 2, k), &vec![value; m * k], &ones).device_only());
        }
        // More tokens than a dimension of a grid has workgroups.
        let m = 70_000;
        cases.push(
            case::<f32>(
                method,
                (m, 2, 3),
                &floats(&mut rng(9), m * 3, 3.0),
                &ternary(&mut rng(9), 2, 3),
            )
            .device_only(),
        );
    }
    for shape in AWKWARD {
        let mut rng = rng(11);
        let (x, w) = (activations(&mut rng, shape.0, shape.2), weights(&mut rng, shape));
        cases.push(case::<f32>(EXPANDED, shape, &x, &w));
    }
    for shape in MANY_OUTPUTS {
        let mut rng = rng(10);
        let (x, w) = (activations(&mut rng, shape.0, shape.2), weights(&mut rng, shape));
        cases.extend([
            case::<f32>(INT8, shape, &x, &w).device_only(),
            case::<f16>(INT8, shape, &tame(&x), &w).device_only(),
        ]);
    }
    for (method, shape) in ON_TENSOR_CORES
        .map(|shape| (INT8, shape))
        .into_iter()
        .chain([1, 3, 6, 7].map(|i| (ON_F16, ON_TENSOR_CORES[i])))
    {
        let mut rng = rng(12);
        let (x, w) = (activations(&mut rng, shape.0, shape.2), weights(&mut rng, shape));
        cases.extend([
            case::<f32>(method, shape, &x, &w).device_only(),
            case::<f16>(method, shape, &tame(&x), &w).device_only(),
        ]);
    }
    cases.extend(
        [1, 3, 4]
            .map(|i| (1, ON_TENSOR_CORES[i]))
            .into_iter()
            .chain([(70, (300, 200, 65))])
            .map(unusual),
    );
    cases
}

/// On tensor cores, with scales for which quotients need the long way: tokens and rows whose numbers
/// divide by `apart`.
fn unusual((apart, (m, n, k)): (usize, Shape)) -> Case {
    let mut rng = rng(14);
    let factors =
        |i: usize, of: [f32; 4]| if i.is_multiple_of(apart) { of[i / apart % 4] } else { 1.0 };
    let mut x = activations(&mut rng, m, k);
    x.chunks_mut(k).enumerate().for_each(|(token, x)| {
        let factor = factors(token, [1e20, 1.0, 1e-3, 1e15]);
        x.iter_mut().for_each(|v| *v *= factor);
    });
    let scales: Vec<f32> = (0..n).map(|row| factors(row, [-1e-15, 0.7, -2.0, 1e14])).collect();
    let w = ternary_with(&mut rng, n, k, row_scales(&scales));
    case::<f32>(INT8, (m, n, k), &x, &w).device_only()
}

/// Finite in `f16`.
fn tame(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| v.clamp(-6e4, 6e4)).collect()
}

fn weights(rng: &mut SmallRng, (_, n, k): Shape) -> PackedTernary {
    let scales: Vec<f32> = (0..n).map(|_| rng.random_range(0.01..2.0)).collect();
    ternary_with(rng, n, k, row_scales(&scales))
}

/// From floats of a type to floats of that type; and the integer sums.
fn case<T: Float>(
    (method, layout, restrict): Method,
    (m, n, k): Shape,
    x: &[f32],
    w: &PackedTernary,
) -> Case {
    let (x, w) = (convert::<T>(x), w.clone());
    let host = reference::quantize_activations(&x, m, k).unwrap();
    let accumulators =
        reference::accumulators(&host, &w).unwrap().into_iter().map(|sum| sum as f32).collect();
    let y = Data::floats(T::ELEMENT, &reference::bitlinear_quantized(&host, &w).unwrap());
    let expected =
        quantized(&host, layout).into_iter().chain([Data::F32(accumulators), y]).collect();
    Case::exact(format!("{m} × {n} × {k} {:?}, {method}", T::ELEMENT), expected, move |r| {
        let (x, w) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?);
        let xq = crate::quantize_as(&mut r.encoder, &x, layout)?;
        let sums = bitnet::accumulators(&xq, &w).forward(&mut r.encoder)?;
        let y = BitLinear::new(&w).output_type::<T>().forward(&mut r.encoder, &xq)?;
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
            cases
                .extend([add::<f32>(&mut rng, method, shape), add::<f16>(&mut rng, method, shape)]);
        }
        for shape in (1..=20).map(|m| (m, 18, 77)).chain(LONG_ROWS) {
            cases.extend([
                add::<f32>(&mut rng(35), method, shape),
                add::<f16>(&mut rng(36), method, shape),
            ]);
        }
    }
    cases.extend(
        MANY_OUTPUTS
            .into_iter()
            .chain(ON_TENSOR_CORES)
            .map(|shape| add::<f32>(&mut rng(34), INT8, shape).device_only()),
    );
    cases.extend(ON_TENSOR_CORES.map(|shape| add::<f16>(&mut rng(37), INT8, shape).device_only()));
    cases
}

fn add<T: Float>(rng: &mut SmallRng, (method, layout, restrict): Method, shape: Shape) -> Case {
    let (m, n, k) = shape;
    let (x, w, base) = (floats(rng, m * k, 3.0), weights(rng, shape), f16_floats(rng, m * n, 50.0));
    let host = reference::quantize_activations(&x, m, k).unwrap();
    let products = reference::bitlinear_quantized(&host, &w).unwrap();
    let expected = sums(&base, &products);
    let base = convert::<T>(&base);
    Case::near(format!("{m} × {n} × {k} {:?}, {method}", T::ELEMENT), expected, move |r| {
        let (x, w, y) =
            (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?, r.upload(&base, [m, n])?);
        let xq = crate::quantize_as(&mut r.encoder, &x, layout)?;
        BitLinear::new(&w).forward_into(&mut r.encoder, &xq, bitnet_wgpu::Out::add(&y))?;
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
        let w = weights(&mut rng((shape.0 + shape.1) as u64), shape);
        [finish::<f32>(method, shape, way(), &w), finish::<f16>(method, shape, way(), &w)]
    };
    let mut cases: Vec<Case> = every.flat_map(&mut both).collect();
    // Tall rows, workgroups that keep a device busy, large tiles; and tensor cores.
    let large = [0, 3, 4, 6]
        .map(|i| (INT8, MANY_OUTPUTS[i]))
        .into_iter()
        .chain([1, 3, 7].map(|i| (INT8, ON_TENSOR_CORES[i])));
    let large = large.chain([3, 7].map(|i| (ON_F16, ON_TENSOR_CORES[i])));
    cases.extend(large.flat_map(both).map(Case::device_only));
    cases
}

fn finish<T: Float>(
    (method, layout, restrict): Method,
    (m, n, k): Shape,
    way: Way,
    w: &PackedTernary,
) -> Case {
    let mut rng = rng((m + n + k) as u64);
    let (x, w) = (floats(&mut rng, m * k, 3.0), w.clone());
    let (bias, base) =
        (f16_floats_of(&floats(&mut rng, n, 9.0)), f16_floats(&mut rng, m * n, 50.0));
    let host = reference::quantize_activations(&x, m, k).unwrap();
    let finished =
        Finished::of(&reference::bitlinear_quantized(&host, &w).unwrap(), &bias, way, &base);
    let (bias, base) = (convert::<T>(&bias), convert::<T>(&base));
    let record = move |r: &mut crate::Recorder| {
        let (x, w, bias) =
            (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?, r.upload(&bias, [n])?);
        let xq = crate::quantize_as(&mut r.encoder, &x, layout)?;
        let (y, added) = (r.output::<T>([m, n])?, r.upload(&base, [m, n])?);
        let layer = finishing(BitLinear::new(&w), way, &bias);
        layer.forward_into(&mut r.encoder, &xq, &y)?;
        layer.forward_into(&mut r.encoder, &xq, bitnet_wgpu::Out::add(&added))?;
        [&y, &added].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    let name = format!("{m} × {n} × {k} {:?}, {way:?}, {method}", T::ELEMENT);
    Case::new(name, record, move |got, leeway| finished.check::<T>(got, leeway))
        .of(T::ELEMENT)
        .on(restrict)
}

/// Finished products of matrices with per-group scales.
pub fn groups_finished() -> Vec<Case> {
    let mut ways = ways();
    let shapes = [
        (0, 3, 32, Some(32)),
        (1, 17, 200, Some(16)),
        (3, 9, 256, Some(64)),
        (7, 9, 100, Some(48)),
        (2, 5, 384, Some(128)),
    ];
    let mut both = |shape: Grouped| {
        let ((m, n, k, _), w) = (shape, matrix(&mut rng(3), shape));
        let mut way = || ways.next().expect("it has no end");
        [finish::<f32>(INT8, (m, n, k), way(), &w), finish::<f16>(INT8, (m, n, k), way(), &w)]
    };
    shapes.into_iter().flat_map(&mut both).collect()
}

/// Scales per group of columns: the bits of the CPU reference, by every kind of kernel that there
/// is for activations in block floating point; and those bits within bounds of what is exact.
pub fn groups() -> Vec<Case> {
    let awkward = [
        (3, 17, 200, 16),
        (4, 9, 1100, 64),
        (7, 9, 100, 16),
        (12, 5, 100, 48),
        (2, 3, 15, 16),
        (0, 2, 32, 32),
        (2, 3, 0, 16),
    ];
    let random =
        crate::random_shapes("groups").into_iter().zip([16, 32, 64, 128].into_iter().cycle());
    let shapes = awkward.into_iter().chain(random.map(|((m, n, k), size)| (m, n, k, size)));
    let few = shapes
        .map(|(m, n, k, size)| (m, n, k, Some(size)))
        .chain(FEW)
        .filter(|shape| shape.3.is_some());
    let few = few.flat_map(|shape| {
        [in_floats, in_bytes, in_tiles].map(|on| (shape, on as fn(&mut Capabilities)))
    });
    let many = MANY
        .into_iter()
        .filter(|shape| shape.3.is_some())
        .flat_map(|shape| [on_tensor_cores, in_tiles].map(|on| (shape, on as fn(&mut _))));
    let case = |(shape, on): (Grouped, fn(&mut Capabilities))| {
        let cases = [false, true]
            .into_iter()
            .flat_map(move |add| [grouped::<f32>(shape, add), grouped::<f16>(shape, add)]);
        let large = shape.0 * shape.1 > 50_000;
        cases.map(move |case| if large { case.on(on).device_only() } else { case.on(on) })
    };
    few.chain(many).flat_map(case).chain(one_after_another()).collect()
}

/// Products of one recording, which take the same memory for what is between their dispatches: more
/// of it each time, and less.
fn one_after_another() -> impl Iterator<Item = Case> {
    let shapes: [Grouped; 4] = [
        (2, 17, 200, Some(16)),
        (9, 33, 640, Some(128)),
        (1, 70, 128, Some(64)),
        (9, 65, 700, Some(32)),
    ];
    [in_floats, in_bytes, in_tiles].into_iter().map(move |on| {
        let mut rng = rng(8);
        let products = shapes.map(|shape| {
            (shape, matrix(&mut rng, shape), floats(&mut rng, shape.0 * shape.2, 2.0))
        });
        let expected = products.iter().map(|((m, _, k, _), w, x)| {
            let host = reference::quantize_activations(x, *m, *k).unwrap();
            Data::F32(reference::bitlinear_quantized(&host, w).unwrap())
        });
        Case::exact("one after another".to_owned(), expected.collect(), move |r| {
            let mut outputs = Vec::new();
            for ((m, _, k, _), w, x) in &products {
                let (x, w) = (r.upload(x, [*m, *k])?, w.upload(r.encoder.context())?);
                let xq = crate::quantize_as(&mut r.encoder, &x, Layout::Int8)?;
                outputs.push(BitLinear::new(&w).forward(&mut r.encoder, &xq)?);
            }
            outputs.iter().for_each(|y| r.watch_all(y));
            Ok(())
        })
        .on(on)
    })
}

fn grouped<T: Float>(shape: Grouped, add: bool) -> Case {
    let (m, n, k, size) = shape;
    let mut rng = rng((m + n + k) as u64);
    let w = matrix(&mut rng, shape);
    let (x, base) = (floats(&mut rng, m * k, 2.0), f16_floats(&mut rng, m * n, 50.0));
    let (dense, host) = (w.dequantize(), reference::quantize_activations(&x, m, k).unwrap());
    let products = reference::bitlinear_quantized(&host, &w).unwrap();
    let near = |(at, &base): (usize, &f32)| {
        let (exact, sum) = exact_product(&dense, &host, &w, at);
        // A rounding for each block's scale, each addition, and the quotient, of at most Σ|w·x|.
        let near = Near { exact, error: 1.01 * U * sum * (k.div_ceil(16) + 2) as f64 };
        if add { near.on_top_of(base) } else { near }
    };
    let bounds: Vec<Near> = base.iter().enumerate().map(near).collect();
    let expected: Vec<Near> = products
        .iter()
        .zip(&base)
        .map(|(&y, &base)| if add { Near::exactly(y).on_top_of(base) } else { Near::exactly(y) })
        .collect();
    let bits = Data::F32(products);
    let check = move |got: &[Data], leeway| {
        if T::ELEMENT == Element::F32 && !add {
            got[0].check(&bits, leeway)?;
        }
        got[0].check_near(expected.iter().copied())?;
        got[0].check_near(bounds.iter().copied())
    };
    let (reference, base) = ((host, w.clone()), convert::<T>(&base));
    let record = move |r: &mut crate::Recorder| {
        let (x, w) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?);
        let xq = crate::quantize_as(&mut r.encoder, &x, Layout::Int8)?;
        let y = if add { r.upload(&base, [m, n])? } else { r.output::<T>([m, n])? };
        match add {
            true => {
                BitLinear::new(&w).forward_into(&mut r.encoder, &xq, bitnet_wgpu::Out::add(&y))?
            }
            false => BitLinear::new(&w).forward_into(&mut r.encoder, &xq, &y)?,
        }
        r.watch_all(&y);
        Ok(())
    };
    let case = Case::new(
        format!("{m} × {n} × {k} {:?}, groups of {size:?}, added {add}", T::ELEMENT),
        record,
        check,
    )
    .of(T::ELEMENT);
    let case = if T::ELEMENT == Element::F32 && !add { case.to_the_bit() } else { case };
    if add {
        case
    } else {
        case.reference(move || {
            vec![Data::F32(reference::bitlinear_quantized(&reference.0, &reference.1).unwrap())]
        })
    }
}
