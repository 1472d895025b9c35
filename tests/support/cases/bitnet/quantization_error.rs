//! `src/ops/bitnet/quantization_error.rs`

use crate::{Case, Data, Near, Recorder, U, convert, floats, random_shapes, rng};
use bitnet_wgpu::{
    bitnet::{self, QuantizationError},
    reference,
    tensor::{Float, f16},
};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // One workgroup takes 8192 numbers; 8192 of those are more than one pass merges.
    let random =
        random_shapes("quantization_error").into_iter().map(|(_, rows, columns)| [rows, columns]);
    for (i, shape) in [[1, 1], [3, 0], [0, 4], [5, 65], [3, 300], [1, 8193], [130, 257]]
        .into_iter()
        .chain(random)
        .enumerate()
    {
        let w = floats(&mut rng(i as u64), shape[0] * shape[1], 3.0);
        let rounded: Vec<f32> = w.iter().map(|v| v.round()).collect();
        let none = vec![0.0; w.len()];
        cases
            .extend([case::<f32, f32>(shape, &w, &rounded), case::<f16, f16>(shape, &w, &rounded)]);
        cases
            .extend([case::<f32, f16>(shape, &w, &rounded), case::<f16, f32>(shape, &w, &rounded)]);
        cases.extend([
            case::<f32, f32>(shape, &w, &none),
            case::<f32, f32>(shape, &none, &none),
            case::<f32, f32>(shape, &w, &w),
        ]);
    }
    let many = floats(&mut rng(9), 700 * 3001, 1.0);
    cases.push(
        case::<f32, f16>(
            [700, 3001],
            &many,
            &many.iter().map(|v| v.signum() * 0.5).collect::<Vec<_>>(),
        )
        .device_only(),
    );
    cases.extend([f32::NAN, f32::INFINITY].map(not_finite));
    cases
}

fn case<X: Float, Q: Float>(shape: [usize; 2], w: &[f32], quantized: &[f32]) -> Case {
    let (w, quantized) = (convert::<X>(w), convert::<Q>(quantized));
    let pairs =
        || w.iter().zip(&quantized).map(|(&w, &q)| (f64::from(w.into()), f64::from(q.into())));
    let sum = |term: fn((f64, f64)) -> f64| pairs().map(term).sum::<f64>();
    let count = w.len().max(1) as f64;
    // Each thread adds 32 numbers, then 8 sums; then others do so with what came of that.
    let roundings = w.len().min(80) as f64;
    let (errors, products) = (sum(|(w, q)| (w - q).powi(2)), sum(|(w, q)| w * q));
    let norms = (sum(|(w, _)| w * w) * sum(|(_, q)| q * q)).sqrt();
    let cosine = match norms == 0.0 {
        true => Near::exactly(0.0),
        // Roots and the quotient of devices are off by up to 5 units.
        false => Near {
            exact: products / norms,
            error: U
                * (roundings * sum(|(w, q)| (w * q).abs()) / norms
                    + (roundings + 24.0) * (products / norms).abs()),
        },
    };
    let expected = [
        Near { exact: errors / count, error: U * (roundings + 6.0) * errors / count },
        Near::exactly(pairs().map(|(w, q)| (w as f32 - q as f32).abs()).fold(0.0, f32::max)),
        cosine,
        Near::exactly(sum(|(_, q)| f64::from(u8::from(q == 0.0))) as f32 / count as f32),
    ];
    let (of_w, of_q) = (w.clone(), quantized.clone());
    let reference = move || {
        let QuantizationError { mean_squared, largest, cosine, zeros } =
            reference::quantization_error(&of_w, &of_q).unwrap();
        vec![Data::F32(vec![mean_squared, largest, cosine, zeros])]
    };
    let name = format!("{shape:?} {:?} beside {:?}", Q::ELEMENT, X::ELEMENT);
    Case::near(name, expected.to_vec(), move |r| record(r, &w, &quantized, shape))
        .reference(reference)
        .of(X::ELEMENT)
        .of(Q::ELEMENT)
}

fn record(
    r: &mut Recorder,
    w: &[impl Float],
    quantized: &[impl Float],
    shape: [usize; 2],
) -> bitnet_wgpu::Result<()> {
    let (w, quantized) = (r.upload(w, shape)?, r.upload(quantized, shape)?);
    let error = bitnet::quantization_error(&w, &quantized).forward(&mut r.encoder)?;
    r.watch_all(&error);
    Ok(())
}

/// It shows in all numbers but the share of zeros.
fn not_finite(value: f32) -> Case {
    let mut w = floats(&mut rng(3), 400, 1.0);
    w[77] = value;
    let quantized: Vec<f32> = (0..400).map(|i| if i % 4 == 0 { 0.0 } else { 0.5 }).collect();
    let (of_w, of_q) = (w.clone(), quantized.clone());
    let check = move |got: &[Data], _| {
        let values = got[0].to_f32();
        let right = values[..3].iter().all(|v| !v.is_finite()) && values[3] == 0.25;
        if right { Ok(()) } else { Err(format!("{values:?}")) }
    };
    let reference = move || {
        let QuantizationError { mean_squared, largest, cosine, zeros } =
            reference::quantization_error(&of_w, &of_q).unwrap();
        vec![Data::F32(vec![mean_squared, largest, cosine, zeros])]
    };
    Case::new(format!("with {value}"), move |r| record(r, &w, &quantized, [20, 20]), check)
        .reference(reference)
}
