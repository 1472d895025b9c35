//! `src/ops/bitnet/bitlinear_int_quantized.rs`

use super::random_groups;
use crate::{
    Case, Data, Near, U,
    cases::tensor::{
        activated,
        epilogue::{f16_floats_of, finishing},
    },
    convert, floats, ints, rng, wild_activations,
};
use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Out,
    bitnet::Layout,
    cpu::HostActivations,
    reference,
    tensor::{Activation, Float, f16},
    weights::{Affine, Bits, PackedInt},
};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Rows and tokens on every side of a tile, columns on every side of a word, a unit of 32 and
    // what is staged at a time, 128.
    let shapes = [
        (0, 3, 40, None),
        (2, 3, 0, None),
        (1, 1, 1, None),
        (3, 5, 33, None),
        (4, 64, 128, Some(128)),
        (9, 65, 129, Some(32)),
    ];
    let more = [
        (1, 130, 300, Some(64)),
        (17, 7, 500, Some(96)),
        (8, 20, 257, None),
        (3, 9, 64, Some(256)),
    ];
    let shapes = Bits::ALL
        .into_iter()
        .flat_map(|bits| shapes.into_iter().chain(more).map(move |shape| (bits, shape)));
    let random = random_groups("bitlinear_int_quantized").zip(Bits::ALL.into_iter().cycle());
    for (bits, (m, n, k, size)) in
        shapes.chain(random.map(|(((m, n, k), size), bits)| (bits, (m, n, k, size))))
    {
        let mut rng = rng((m + n + k) as u64);
        let (x, w) = (wild_activations(&mut rng, m, k), ints(&mut rng, n, k, bits, size));
        let tame: Vec<f32> = floats(&mut rng, m * k, 2.0);
        cases.extend([case::<f32>(&x, m, &w, false), case::<f32>(&tame, m, &w, true)]);
        cases.extend([case::<f16>(&tame, m, &w, false), case::<f16>(&tame, m, &w, true)]);
    }
    // The largest sums there can be.
    let (k, affine) =
        (65_793, Affine { group: None, scales: vec![1.0; 2], zeros: vec![0.0, 255.0] });
    let w = PackedInt::from_codes(2, k, Bits::Eight, &vec![255; 2 * k], affine).unwrap();
    for (m, value) in [(1, 1.0), (5, -1.0)] {
        cases.push(case::<f32>(&vec![value; m * k], m, &w, false).device_only());
    }
    cases
}

/// Σ_g scale·(Σ xq·code - zero·Σ xq) / a of an output, and by how much `f32` may miss it.
pub(super) fn near(at: usize, x: &HostActivations, w: &PackedInt) -> Near {
    let (n, k) = (w.rows(), w.columns());
    let (token, row, Affine { group, scales, zeros }) = (at / n, at % n, w.affine());
    let size = group.unwrap_or(k).max(1);
    let groups = k.div_ceil(size);
    let (mut sum, mut sizes) = (0.0, 0.0);
    for g in 0..groups {
        let columns = || g * size..k.min((g + 1) * size);
        let activation = |column: usize| i64::from(x.row(token)[column]);
        let products: i64 =
            columns().map(|column| i64::from(w.code(row, column)) * activation(column)).sum();
        let x_sum: i64 = columns().map(activation).sum();
        let (scale, zero) =
            (f64::from(scales[row * groups + g]), f64::from(zeros[row * groups + g]));
        sum += scale * (products as f64 - zero * x_sum as f64);
        sizes += scale.abs() * ((products as f64).abs() + (zero * x_sum as f64).abs());
    }
    // Of a group: both sums as floats, their product with the zero point, the difference, the
    // scale; of all: a sum for each, and the quotient.
    let a = f64::from(x.scales[token]);
    Near { exact: sum / a, error: U * sizes * (groups as f64 + 6.0) / a }
}

fn case<T: Float>(x: &[f32], m: usize, w: &PackedInt, add: bool) -> Case {
    let (n, k) = (w.rows(), w.columns());
    let (x, host) = (x.to_vec(), reference::quantize_activations(x, m, k).unwrap());
    let base = convert::<T>(&floats(&mut rng(5), m * n, 50.0));
    let on_top =
        |at: usize| if add { near(at, &host, w).on_top_of(base[at]) } else { near(at, &host, w) };
    let expected = (0..m * n).map(on_top).collect();
    let name = format!(
        "{m} × {n} × {k}, {:?} by {:?}, {:?}, added {add}",
        w.bits(),
        w.group(),
        T::ELEMENT
    );
    let (packed, of_w) = (w.clone(), w.clone());
    let case = Case::near(name, expected, move |r| {
        let (x, w) = (r.upload(&x, [m, k])?, packed.upload(r.encoder.context())?);
        let xq = crate::quantize_as(&mut r.encoder, &x, Layout::Int8)?;
        let y = if add { r.upload(&base, [m, n])? } else { r.output::<T>([m, n])? };
        let out = if add { Out::add(&y) } else { Out::set(&y) };
        BitLinear::new(&w).forward_into(&mut r.encoder, &xq, out)?;
        r.watch_all(&y);
        Ok(())
    })
    .of(T::ELEMENT);
    if add {
        case
    } else {
        case.reference(move || {
            vec![Data::F32(reference::bitlinear_int_quantized(&host, &of_w).unwrap())]
        })
    }
}

/// With an epilogue: groups are added by fused multiply-adds, in one order, so that what comes of
/// it is as near as the product.
pub fn finished() -> Vec<Case> {
    let shapes = [
        (1, 1, 1, None),
        (3, 65, 129, Some(32)),
        (4, 64, 128, Some(128)),
        (9, 65, 70, None),
        (17, 7, 500, Some(96)),
    ];
    let all = shapes
        .into_iter()
        .zip(Bits::ALL.into_iter().cycle())
        .zip([false, true].into_iter().cycle());
    all.flat_map(|((shape, bits), relu)| {
        [finish::<f32>(shape, bits, relu), finish::<f16>(shape, bits, relu)]
    })
    .collect()
}

fn finish<T: Float>(
    (m, n, k, size): (usize, usize, usize, Option<usize>),
    bits: Bits,
    relu: bool,
) -> Case {
    let mut rng = rng((m + n + k) as u64);
    let (x, w) = (floats(&mut rng, m * k, 2.0), ints(&mut rng, n, k, bits, size));
    let (bias, base) =
        (f16_floats_of(&floats(&mut rng, n, 9.0)), f16_floats_of(&floats(&mut rng, m * n, 50.0)));
    let host = reference::quantize_activations(&x, m, k).unwrap();
    let activation = relu.then_some(Activation::Relu);
    let near: Vec<Near> = (0..m * n)
        .map(|at| activated(near(at, &host, &w).on_top_of(bias[at % n]), activation))
        .collect();
    let added: Vec<Near> =
        near.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
    let check = move |got: &[Data], _| {
        got[0]
            .check_near(near.iter().copied())
            .and_then(|()| got[1].check_near(added.iter().copied()))
    };
    let name = format!("{m} × {n} × {k}, {bits:?} by {size:?}, {:?}, relu {relu}", T::ELEMENT);
    let (bias, base) = (convert::<T>(&bias), convert::<T>(&base));
    let record = move |r: &mut crate::Recorder| {
        let (x, w, bias) =
            (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?, r.upload(&bias, [n])?);
        let xq = crate::quantize_as(&mut r.encoder, &x, Layout::Int8)?;
        let (y, added) = (r.output::<T>([m, n])?, r.upload(&base, [m, n])?);
        let layer = finishing(BitLinear::new(&w), (activation, true), &bias);
        layer.forward_into(&mut r.encoder, &xq, &y)?;
        layer.forward_into(&mut r.encoder, &xq, Out::add(&added))?;
        [&y, &added].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    Case::new(name, record, check).of(T::ELEMENT)
}
