//! `src/ops/bitnet/fake_quantize_activations.rs`, `fake_quantize_weights.rs` and
//! `rms_norm_fake_quantize.rs`

use super::stacks;
use crate::{
    Case, Data, FROM_SUBNORMAL, Near, Recorder, U, convert, floats, rng, shapes, sums,
    wild_activations,
};
use bitnet_wgpu::{
    Out, Result,
    bitnet::{self, WeightQuantizer},
    reference,
    tensor::{Float, f16},
};

/// How far x + λ·(x̃ - x) may be off: three roundings, that of a product x which a device may leave
/// out, and numbers that are too small to be normal.
pub fn warmed(x: f32, rounded: f32, lambda: f32) -> Near {
    let (x, rounded, lambda) = (f64::from(x), f64::from(rounded), f64::from(lambda));
    let exact = x + lambda * (rounded - x);
    Near {
        exact,
        error: U * (2.01 * lambda * (rounded - x).abs() + 1.01 * x.abs() + 1.01 * exact.abs())
            + f64::from(FROM_SUBNORMAL),
    }
}

pub fn activations() -> Vec<Case> {
    let mut cases = Vec::new();
    for (mut rng, (tokens, _, features)) in shapes("fake_quantize_activations") {
        let x = wild_activations(&mut rng, tokens, features);
        cases.extend([
            of_activations::<f32>(&x, tokens, features),
            of_activations::<f16>(&x, tokens, features),
        ]);
    }
    // Rows that no workgroup takes at once, and many in one.
    for (tokens, features) in [(3, 5000), (700, 2)] {
        let x = wild_activations(&mut rng(features as u64), tokens, features);
        cases.push(of_activations::<f32>(&x, tokens, features));
    }
    cases
}

/// What BitLinear computes with, bit-identical: the values of the quantizer itself. Beside them
/// what is on the way there, and what is added.
fn of_activations<T: Float>(x: &[f32], tokens: usize, features: usize) -> Case {
    let x = convert::<T>(x);
    let rounded = reference::quantize_activations(&x, tokens, features).unwrap().dequantize();
    let reference =
        reference::fake_quantize_activations(&x, [tokens, features], None, 1.0).unwrap();
    assert!(
        reference
            .iter()
            .zip(&rounded)
            .all(|(reference, value)| reference.to_bits() == value.to_bits()
                || reference.is_nan() && value.is_nan())
    );
    let name = format!("{tokens} × {features} {:?}", T::ELEMENT);
    case(name, x, rounded, vec![], move |r, x, base| {
        let (x, base) = (r.upload(x, [tokens, features])?, r.upload(base, [tokens, features])?);
        let op = |lambda| bitnet::fake_quantize_activations(&x, lambda);
        let exact = op(1.0).forward(&mut r.encoder)?;
        let partly = op(LAMBDA).forward(&mut r.encoder)?;
        op(1.0).forward_into(&mut r.encoder, Out::add(&base))?;
        [&exact, &partly, &base].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    })
}

pub fn with_norm() -> Vec<Case> {
    let mut cases = Vec::new();
    let wide = [(rng(14), (3, 0, 1280)), (rng(15), (1, 0, 6912))];
    for (mut rng, (tokens, _, features)) in shapes("rms_norm_fake_quantize").chain(wide) {
        let (x, gain) =
            (wild_activations(&mut rng, tokens, features), floats(&mut rng, features, 2.0));
        cases.extend([
            after_norm::<f32>(&x, tokens, &gain, 1e-5),
            after_norm::<f16>(&x, tokens, &gain, 1e-6),
        ]);
    }
    cases
}

/// What the norm's quantizer makes, bit-identical.
fn after_norm<T: Float>(x: &[f32], tokens: usize, gain: &[f32], eps: f32) -> Case {
    let (x, gain, features) = (convert::<T>(x), gain.to_vec(), gain.len());
    let rounded = reference::rms_norm_quantize(&x, tokens, &gain, eps).unwrap().dequantize();
    let reference = |lambda| {
        let norm = Some((&gain[..], eps));
        reference::fake_quantize_activations(&x, [tokens, features], norm, lambda).unwrap()
    };
    let (normed, reference) = (reference(0.0), reference(1.0));
    assert!(
        reference
            .iter()
            .zip(&rounded)
            .all(|(reference, value)| reference.to_bits() == value.to_bits()
                || reference.is_nan() && value.is_nan())
    );
    let name = format!("{tokens} × {features} {:?}", T::ELEMENT);
    between(name, x, normed, rounded, vec![], move |r, x, base| {
        let (x, gain, base) = (
            r.upload(x, [tokens, features])?,
            r.upload(&gain, [features])?,
            r.upload(base, [tokens, features])?,
        );
        let op = |lambda| bitnet::fake_quantize_activations(&x, lambda).norm((&gain, eps));
        let exact = op(1.0).forward(&mut r.encoder)?;
        let partly = op(LAMBDA).forward(&mut r.encoder)?;
        op(1.0).forward_into(&mut r.encoder, Out::add(&base))?;
        [&exact, &partly, &base].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    })
}

pub fn weights() -> Vec<Case> {
    let mut cases = Vec::new();
    // One workgroup's chunk is 65536 weights, its part of the codes 4096.
    let more = [(1, 70_001), (64, 64), (129, 1031)]
        .map(|(rows, columns)| (rng(columns as u64), (0, rows, columns)));
    for (mut rng, (_, rows, columns)) in shapes("fake_quantize_weights").chain(more) {
        let w = floats(&mut rng, rows * columns, 1.0);
        let (uneven, tiny) = (
            w.iter().map(|w| w.powi(3)).collect::<Vec<_>>(),
            w.iter().map(|w| w * 1e-6).collect::<Vec<_>>(),
        );
        cases.extend([
            of_weights::<f32>(&uneven, rows, columns),
            of_weights::<f16>(&w, rows, columns),
        ]);
        cases.extend([
            of_weights::<f32>(&tiny, rows, columns),
            of_weights::<f32>(&vec![0.0; w.len()], rows, columns),
        ]);
    }
    cases.extend(
        [f32::NAN, f32::INFINITY]
            .map(|bad| of_weights::<f32>(&[0.5, bad, -0.25, 1.0, 0.0, 3.0], 2, 3)),
    );
    cases
}

fn of_weights<T: Float>(w: &[f32], rows: usize, columns: usize) -> Case {
    let w = convert::<T>(w);
    let reference = reference::fake_quantize_weights(&w, [1, rows, columns], 1.0).unwrap();
    if let Ok(packed) = reference::quantize_weights(&w, [rows, columns], WeightQuantizer::absmean())
    {
        assert_eq!(packed.dequantize(), reference.values, "the values of the quantiser itself");
    }
    let name = format!("{rows} × {columns} {:?}", T::ELEMENT);
    let scale = Data::F32(reference.scale);
    case(name, w, reference.values, vec![scale], move |r, w, base| {
        let (w, base) = (r.upload(w, [rows, columns])?, r.upload(base, [rows, columns])?);
        let op = bitnet::fake_quantize_weights(&w, 1.0);
        let exact = op.forward(&mut r.encoder)?;
        let partly = bitnet::fake_quantize_weights(&w, LAMBDA).forward(&mut r.encoder)?;
        op.forward_into(&mut r.encoder, Out::add(&base), &partly.scale)?;
        [&exact.values, &partly.values, &base].into_iter().for_each(|tensor| r.watch_all(tensor));
        r.watch_all(&exact.scale);
        Ok(())
    })
}

pub fn weights_by_matrix() -> Vec<Case> {
    let of = |(stack, plain, uneven): ([usize; 3], Vec<f32>, Vec<f32>)| {
        [of_matrices::<f32>(&uneven, stack), of_matrices::<f16>(&plain, stack)]
    };
    // Its neighbors do not notice.
    let broken = [f32::NAN, f32::INFINITY]
        .map(|bad| of_matrices::<f32>(&[0.5, 1.0, -0.25, bad, 0.0, 3.0], [3, 1, 2]));
    stacks("fake_quantize_weights_by_matrix").flat_map(of).chain(broken).collect()
}

/// What the quantizer makes of each alone, and the gradient by their scales as they are.
fn of_matrices<T: Float>(w: &[f32], stack: [usize; 3]) -> Case {
    let (w, length) = (convert::<T>(w), stack[1] * stack[2]);
    let reference = reference::fake_quantize_weights(&w, stack, 1.0).unwrap();
    if let Ok(packed) =
        reference::quantize_weights(&w, stack, WeightQuantizer::absmean().per_matrix())
    {
        assert_eq!(packed.dequantize(), reference.values, "the values of the quantiser itself");
    }
    let slope = |i: usize| {
        reference::fake_quantize_weights_backward(
            w[i].into(),
            reference.scale[i / length],
            (-1.0, 1.0),
            w[i].into(),
        )
    };
    let more = vec![
        Data::F32(reference.scale.clone()),
        Data::floats(T::ELEMENT, &(0..w.len()).map(slope).collect::<Vec<_>>()),
    ];
    let name = format!("{stack:?} {:?}", T::ELEMENT);
    case(name, w, reference.values, more, move |r, w, base| {
        let (w, base) = (r.upload(w, stack)?, r.upload(base, stack)?);
        let of = |lambda| bitnet::fake_quantize_weights(&w, lambda).per_matrix();
        let exact = of(1.0).forward(&mut r.encoder)?;
        let partly = of(LAMBDA).forward(&mut r.encoder)?;
        of(1.0).forward_into(&mut r.encoder, Out::add(&base), &partly.scale)?;
        let dw = of(1.0).backward(&mut r.encoder, &exact.scale, &w)?;
        [&exact.values, &partly.values, &base].into_iter().for_each(|tensor| r.watch_all(tensor));
        r.watch_all(&exact.scale);
        r.watch_all(&dw);
        Ok(())
    })
}

const LAMBDA: f32 = 0.3;

/// The values x̃ of `x` themselves, what is on the way there by `LAMBDA`, and x̃ added to 1.5; then
/// what else there is.
fn case<T: Float>(
    name: String,
    x: Vec<T>,
    rounded: Vec<f32>,
    more: Vec<Data>,
    record: impl Fn(&mut Recorder, &[T], &[T]) -> Result<()> + Send + Sync + 'static,
) -> Case {
    let from = x.iter().map(|&v| v.into()).collect();
    between(name, x, from, rounded, more, record)
}

/// A case that interpolates from `from`, which is made of `x`, to the quantized numbers.
fn between<T: Float>(
    name: String,
    x: Vec<T>,
    from: Vec<f32>,
    rounded: Vec<f32>,
    more: Vec<Data>,
    record: impl Fn(&mut Recorder, &[T], &[T]) -> Result<()> + Send + Sync + 'static,
) -> Case {
    let base = vec![1.5; rounded.len()];
    let partly: Vec<_> =
        from.iter().zip(&rounded).map(|(&x, &rounded)| warmed(x, rounded, LAMBDA)).collect();
    let (exact, added) = (Data::floats(T::ELEMENT, &rounded), sums(&base, &rounded));
    let check = move |got: &[Data], leeway| {
        got[0].check(&exact, leeway)?;
        got[1].check_near(partly.iter().copied()).map_err(|e| format!("partly: {e}"))?;
        got[2].check_near(added.iter().copied()).map_err(|e| format!("added: {e}"))?;
        got[3..].iter().zip(&more).try_for_each(|(got, expected)| got.check(expected, leeway))
    };
    let base = convert::<T>(&base);
    Case::new(name, move |r| record(r, &x, &base), check).of(T::ELEMENT)
}

pub fn backward() -> Vec<Case> {
    let shapes = [(1, 1), (0, 3), (5, 7), (33, 65), (2, 3000)];
    shapes
        .into_iter()
        .flat_map(|(rows, columns)| {
            [of_backward::<f32>(rows, columns), of_backward::<f16>(rows, columns)]
        })
        .collect()
}

/// With a scale for all and one a row, beyond the range, within it and at its ends; and in place.
fn of_backward<T: Float>(rows: usize, columns: usize) -> Case {
    let mut rng = rng((rows * 7 + columns) as u64);
    let mut x = floats(&mut rng, rows * columns, 3.0);
    x.iter_mut().zip([0.5, -0.5, 0.0, 1.0, -1.0]).for_each(|(x, end)| *x = end);
    let (x, dy) = (convert::<T>(&x), convert::<T>(&floats(&mut rng, rows * columns, 2.0)));
    let scales: Vec<f32> = (0..rows).map(|row| 2.0 / (row + 1) as f32).collect();
    let reference = |scale: &dyn Fn(usize) -> f32, range| {
        let one = |i: usize| {
            reference::fake_quantize_weights_backward(x[i].into(), scale(i), range, dy[i].into())
        };
        Data::floats(T::ELEMENT, &(0..x.len()).map(one).collect::<Vec<_>>())
    };
    let of_all = reference(&|_| 2.0, (-1.0, 1.0));
    let of_rows = reference(&|i| scales[i / columns], (-0.5, 2.0));
    Case::exact(
        format!("{rows} × {columns} {:?}", T::ELEMENT),
        vec![of_all, of_rows.clone(), of_rows],
        move |r| {
            let (x, dy) = (r.upload(&x, [rows, columns])?, r.upload(&dy, [rows, columns])?);
            let (one, scales) = (r.upload(&[2.0], [])?, r.upload(&scales, [rows, 1])?);
            let op = bitnet::fake_quantize_weights(&x, 1.0);
            let dx = op.backward(&mut r.encoder, &one, &dy)?;
            let op = op.range(-0.5, 2.0);
            let of_rows = op.backward(&mut r.encoder, &scales, &dy)?;
            op.backward_into(&mut r.encoder, &scales, &dy, &dy)?;
            [&dx, &of_rows, &dy].into_iter().for_each(|tensor| r.watch_all(tensor));
            Ok(())
        },
    )
    .of(T::ELEMENT)
}
