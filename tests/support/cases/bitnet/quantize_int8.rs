//! Ops that make bytes: `src/ops/bitnet/int8.rs`, `quantize_gradients.rs` and others.

use crate::{
    Case, Data, Recorder, activations, convert, floats, rng, shapes, sums, wild_activations,
};
use bitnet_wgpu::{
    Encoder, Out, Result, Tensor,
    bitnet::{self, QuantizedInt8},
    cpu::HostCodes,
    reference,
    tensor::{Float, f16},
};
use rand::rngs::SmallRng;

type Quantize<T> = fn(&mut Encoder, &Tensor<T>) -> Result<QuantizedInt8>;
type Reference<T> = fn(&[T], usize, usize) -> HostCodes;

const SEED: u64 = 0x1234_5678_9abc_def0;

/// The cases of an op, in both types.
macro_rules! in_both_types {
    ($op:literal, $quantize:expr, $reference:expr) => {
        cases($op, |x, rows, columns| {
            [
                case::<f32>(x, rows, columns, $quantize, $reference),
                case::<f16>(x, rows, columns, $quantize, $reference),
            ]
        })
    };
}

pub fn gradients() -> Vec<Case> {
    in_both_types!(
        "quantize_gradients",
        |e, x| bitnet::ActivationQuantizer::int8().stochastic(SEED).quantize(e, x),
        |x, rows, columns| reference::quantize_gradients(x, rows, columns, SEED).unwrap()
    )
}

pub fn with_zero_point() -> Vec<Case> {
    in_both_types!(
        "quantize_activations_with_zero_point",
        |e, x| bitnet::ActivationQuantizer::int8().with_zero_point().quantize(e, x),
        |x, rows, columns| {
            reference::quantize_activations_with_zero_point(x, rows, columns).unwrap()
        }
    )
}

pub fn by_tensor() -> Vec<Case> {
    in_both_types!(
        "quantize_activations_by_tensor",
        |e, x| bitnet::ActivationQuantizer::int8().per_tensor().quantize(e, x),
        |x, _, _| { reference::quantize_activations_by_tensor(x) }
    )
}

/// A range on both sides of 0, one on one side, and one that is no range.
pub fn with_range() -> Vec<Case> {
    let both = in_both_types!(
        "quantize_activations_static",
        |e, x| bitnet::ActivationQuantizer::int8().static_range(-2.0, 1.5).quantize(e, x),
        |x, _, _| { reference::quantize_activations_static(x, (-2.0, 1.5)).unwrap() }
    );
    let one = in_both_types!(
        "quantize_activations_static",
        |e, x| bitnet::ActivationQuantizer::int8().static_range(0.5, 2.5).quantize(e, x),
        |x, _, _| { reference::quantize_activations_static(x, (0.5, 2.5)).unwrap() }
    );
    let none = in_both_types!(
        "quantize_activations_static",
        |e, x| bitnet::ActivationQuantizer::int8().static_range(0.0, 0.0).quantize(e, x),
        |x, _, _| { reference::quantize_activations_static(x, (0.0, 0.0)).unwrap() }
    );
    let into = in_both_types!("quantize_activations_static", static_into, |x, _, _| {
        reference::quantize_activations_static(x, (-2.0, 1.5)).unwrap()
    });
    let all = both
        .into_iter()
        .chain([one, none, into].into_iter().flat_map(|cases| cases.into_iter().take(20)));
    // Of no numbers there is no dispatch, and so no buffer to look into.
    all.filter(|case| !case.name.starts_with("0 ×") && !case.name.contains("× 0 ")).collect()
}

/// Into tensors of the caller, which get scale and zero point too.
fn static_into<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<QuantizedInt8> {
    let context = encoder.context();
    let zero_points = Some(Tensor::uninit(context, [])?);
    let made = QuantizedInt8 {
        codes: Tensor::uninit(context, x.shape())?,
        scales: Tensor::uninit(context, [])?,
        zero_points,
    };
    bitnet::ActivationQuantizer::int8().static_range(-2.0, 1.5).quantize_into(encoder, x, &made)?;
    Ok(made)
}

/// Rows of every kind and length; with those that no word and no workgroup ends with.
fn cases(op: &str, of: impl Fn(&[f32], usize, usize) -> [Case; 2]) -> Vec<Case> {
    let more = [(1, 5000), (3, 2047), (7, 2049), (5, 2050), (700, 1), (300, 3)]
        .map(|(m, k)| (rng(k as u64), (m, 0, k)));
    let all = shapes(op).chain(more);
    let data = |rng: &mut SmallRng, rows, columns| match rows % 3 {
        0 => floats(rng, rows * columns, 3.0).iter().map(|v| v.abs()).collect(),
        1 => activations(rng, rows, columns),
        _ => wild_activations(rng, rows, columns),
    };
    all.flat_map(|(mut rng, (rows, _, columns))| of(&data(&mut rng, rows, columns), rows, columns))
        .collect()
}

/// The codes of the CPU reference, bit-identical, scales and zero points; the numbers that they
/// stand for, and those added to something.
fn case<T: Float>(
    x: &[f32],
    rows: usize,
    columns: usize,
    quantize: Quantize<T>,
    reference: Reference<T>,
) -> Case {
    let x = convert::<T>(x);
    let host = reference(&x, rows, columns);
    let values = host.dequantize();
    let base = vec![1.5; values.len()];
    let expected: Vec<Data> = [Data::I8(host.codes), Data::F32(host.scales)]
        .into_iter()
        .chain(host.zero_points.map(Data::I32))
        .chain([Data::floats(T::ELEMENT, &values)])
        .collect();
    let added = sums(&base, &values);
    let check = move |got: &[Data], leeway| {
        let pairs = got.iter().zip(&expected).enumerate();
        pairs.into_iter().try_for_each(|(i, (got, expected))| {
            got.check(expected, leeway).map_err(|e| format!("output {i}: {e}"))
        })?;
        got[expected.len()].check_near(added.iter().copied()).map_err(|e| format!("added: {e}"))
    };
    let base = convert::<T>(&base);
    let record = move |r: &mut Recorder| {
        let (x, base) = (r.upload(&x, [rows, columns])?, r.upload(&base, [rows, columns])?);
        let xq = quantize(&mut r.encoder, &x)?;
        let y = xq.dequantize::<T>(&mut r.encoder)?;
        xq.dequantize_into(&mut r.encoder, Out::add(&base))?;
        r.watch_all(&xq.codes);
        r.watch_all(&xq.scales);
        xq.zero_points.iter().for_each(|zeros| r.watch_all(zeros));
        [&y, &base].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    let mut case =
        Case::new(format!("{rows} × {columns} {:?}", T::ELEMENT), record, check).of(T::ELEMENT);
    case.exact = true;
    case
}
