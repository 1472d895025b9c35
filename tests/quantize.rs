//! Quantisers, norms and gates against their CPU twins.

use bitnet_wgpu::{Error, Float, bitnet, bitnet::Layout, f16};
use rand::RngExt;
use support::{SHAPES, activations, block_on, contexts, halves, rng};

fn check_weights<T: Float>(context: &bitnet_wgpu::Context, w: &[T], rows: usize, columns: usize) {
    let mut encoder = context.encoder("test");
    let packed = bitnet::quantize_weights(&mut encoder, &context.upload(w, [rows, columns]).unwrap()).unwrap();
    let dense = bitnet::dequantize_weights::<f32>(&mut encoder, &packed).unwrap();
    let _ = encoder.submit().unwrap();
    let expected = bitnet::quantize_weights_cpu(w, rows, columns).unwrap();
    let packed = block_on(packed.read()).unwrap();
    assert_eq!(packed.to_values(), expected.to_values(), "{rows} × {columns}");
    if rows > 0 {
        assert_eq!(packed.scales(), expected.scales(), "{rows} × {columns}");
        assert_eq!(block_on(dense.read()).unwrap(), expected.dequantize());
    }
}

#[test]
fn weights_equal_the_cpu() {
    let mut rng = rng(11);
    for context in contexts() {
        for &(_, rows, columns) in SHAPES {
            let w: Vec<f32> = (0..rows * columns).map(|_| rng.random_range(-1.0f32..1.0).powi(3)).collect();
            check_weights(&context, &w, rows, columns);
            check_weights(&context, &halves(&w), rows, columns);
        }
        // Zeros, one huge value, and more than one workgroup's chunk of 65536.
        check_weights(&context, &[0.0f32; 50], 5, 10);
        let mut w = vec![0.0f32; 300];
        w[7] = 1e20;
        check_weights(&context, &w, 10, 30);
        let w: Vec<f32> = (0..700 * 301).map(|_| rng.random_range(-0.1f32..0.1)).collect();
        check_weights(&context, &w, 700, 301);
    }
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut w = vec![0.5f32; 60];
        w[17] = bad;
        assert!(matches!(bitnet::quantize_weights_cpu(&w, 6, 10).unwrap_err(), Error::Invalid { .. }));
        for context in contexts() {
            let mut encoder = context.encoder("test");
            let packed = bitnet::quantize_weights(&mut encoder, &context.upload(&w, [6, 10]).unwrap()).unwrap();
            encoder.submit().unwrap();
            assert!(matches!(block_on(packed.read()).unwrap_err(), Error::Invalid { .. }), "{bad}");
        }
    }
}

#[test]
fn absmean_is_the_papers() {
    // By hand: mean|W| = 0.75, so W·s = 2, -0.533.., 0.4, 0: +1, -1, 0, 0.
    let packed = bitnet::quantize_weights_cpu(&[1.5f32, -0.4, 0.3, 0.0, 0.8, -1.5, 1.5, 0.0], 2, 4).unwrap();
    assert_eq!(packed.to_values(), [1, -1, 0, 0, 1, -1, 1, 0]);
    assert_eq!(packed.scales(), &bitnet_wgpu::Scales::Tensor(0.75));
    // Ties go to even: 0.5·s = 0.5 -> 0 where the mean is 1.
    let packed = bitnet::quantize_weights_cpu(&[0.5f32, 1.5, -0.5, -1.5], 1, 4).unwrap();
    assert_eq!(packed.to_values(), [0, 1, 0, -1]);
}

#[test]
fn activations_round_trip_through_both_layouts() {
    let mut rng = rng(12);
    for context in contexts() {
        for (m, k) in [(1, 1), (3, 64), (7, 131), (2, 1000), (0, 4), (4, 0)] {
            let x = activations(&mut rng, m, k);
            let expected = bitnet::quantize_activations_cpu(&x, m, k).unwrap();
            for layout in [Layout::Int8, Layout::Half] {
                let mut encoder = context.encoder("test");
                let xq = support::quantize_as(&mut encoder, &context.upload(&x, [m, k]).unwrap(), layout).unwrap();
                let y = bitnet::dequantize_activations::<f32>(&mut encoder, &xq).unwrap();
                let _ = encoder.submit().unwrap();
                assert_eq!(block_on(xq.read()).unwrap(), expected, "{m} × {k} {layout:?}");
                assert_eq!(block_on(y.read()).unwrap(), expected.dequantize(), "{m} × {k} {layout:?}");
            }
        }
    }
}

#[test]
fn rounding_is_to_even_and_scales_follow_pytorch() {
    // Largest value 127: the scale is 127·(1/127), which is 1 but for the last bit, as in PyTorch.
    let xq = bitnet::quantize_activations_cpu(&[127.0f32, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0], 1, 7).unwrap();
    assert_eq!(xq.scales, [127.0 * (1.0f32 / 127.0)]);
    assert_eq!(xq.codes, [127, 0, 2, 2, 0, -2, -127]);
    // Below 1e-5 the scale stays.
    let xq = bitnet::quantize_activations_cpu(&[1e-6f32], 1, 1).unwrap();
    assert_eq!((xq.scales[0], xq.codes[0]), (127.0 * (1.0f32 / 1e-5), 13));
}

#[test]
fn scales_are_exact_quotients() {
    // Many magnitudes: what the GPU's division alone would get wrong in the last bit.
    let mut rng = rng(13);
    let x: Vec<f32> = (0..20_000).map(|_| f32::from_bits(rng.random_range(0x3000_0000..0x7f00_0000))).collect();
    let expected = bitnet::quantize_activations_cpu(&x, x.len(), 1).unwrap();
    for context in contexts() {
        let mut encoder = context.encoder("test");
        let xq = bitnet::quantize_activations(&mut encoder, &context.upload(&x, [x.len(), 1]).unwrap()).unwrap();
        let _ = encoder.submit().unwrap();
        assert_eq!(block_on(xq.read()).unwrap(), expected);
    }
}

fn check_norm<T: Float>(context: &bitnet_wgpu::Context, layout: Layout, x: &[T], m: usize, gain: &[f32], eps: f32) {
    let k = gain.len();
    let mut encoder = context.encoder("test");
    let (gx, gg) = (context.upload(x, [m, k]).unwrap(), context.upload(gain, [k]).unwrap());
    let xq = support::rms_norm_quantize_as(&mut encoder, &gx, &gg, eps, layout).unwrap();
    let _ = encoder.submit().unwrap();
    let gpu = block_on(xq.read()).unwrap();
    let cpu = bitnet::rms_norm_quantize_cpu(x, m, gain, eps).unwrap();
    // Squares are summed as integers: no bit is left to the device.
    assert_eq!((&gpu.codes, &gpu.scales), (&cpu.codes, &cpu.scales), "k = {k}");
    for token in 0..m {
        let row: Vec<f64> = x[token * k..][..k].iter().map(|&v| f64::from(v.into())).collect();
        let mean = row.iter().map(|v| v * v).sum::<f64>() / k as f64;
        let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
        let normed: Vec<f64> = row.iter().zip(gain).map(|(v, g)| v * inverse * f64::from(*g)).collect();
        let scale = 127.0 / normed.iter().fold(1e-5f64, |m, v| m.max(v.abs()));
        // Relative to the largest code, 127: a dozen roundings in squares, mean, root, quotients, products and the scale.
        let error = 127.0 * 12.0 * f64::from(f32::EPSILON);
        assert!((f64::from(cpu.scales[token]) / scale - 1.0).abs() <= error / 127.0, "scale of row {token}, k = {k}");
        for (code, value) in cpu.row(token).iter().zip(&normed) {
            let off = (f64::from(*code) - value * scale).abs();
            assert!(off <= 0.5 + error, "code {code} for {}, k = {k}", value * scale);
        }
    }
}

#[test]
fn rms_norm_quantize_equals_the_cpu() {
    let mut rng = rng(14);
    for context in contexts() {
        for (m, k) in [(1, 1), (2, 31), (5, 257), (3, 1280), (0, 8), (1, 6912)] {
            let x: Vec<f32> = (0..m * k).map(|_| rng.random_range(-4.0..4.0)).collect();
            let gain: Vec<f32> = (0..k).map(|_| rng.random_range(0.2..3.0)).collect();
            for layout in [Layout::Int8, Layout::Half] {
                check_norm(&context, layout, &x, m, &gain, 1e-5);
                check_norm(&context, layout, &halves(&x), m, &gain, 1e-6);
            }
            check_norm(&context, Layout::Int8, &vec![0.0f32; m * k], m, &gain, 1e-5);
        }
    }
}

#[test]
fn relu2_gate_equals_the_cpu() {
    let mut rng = rng(15);
    for context in contexts() {
        for (m, features) in [(1, 1), (3, 65), (0, 4), (2, 0), (9, 1280)] {
            let x: Vec<f32> = (0..m * 2 * features).map(|_| rng.random_range(-300.0..300.0)).collect();
            let h: Vec<f16> = halves(&x);
            let mut encoder = context.encoder("test");
            let y = bitnet::relu2_gate(&mut encoder, &context.upload(&x, [m, 2 * features]).unwrap()).unwrap();
            let yh = bitnet::relu2_gate(&mut encoder, &context.upload(&h, [m, 2 * features]).unwrap()).unwrap();
            let _ = encoder.submit().unwrap();
            assert_eq!(block_on(y.read()).unwrap(), bitnet::relu2_gate_cpu(&x, features).unwrap());
            assert_eq!(block_on(yh.read()).unwrap(), bitnet::relu2_gate_cpu(&h, features).unwrap());
        }
    }
}
