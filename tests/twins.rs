//! The CPU twins, which are the oracles of `ops`, against definitions and transformers' choices.

use bitnet_wgpu::{
    Element, Error, PackedTernary, Scales, bitnet,
    tensor::{self, Axes, CrossEntropyOptions},
    transformer::{self, AttentionShape, HostKvCache, KvCache, NewTokens},
};
use support::{U, activations, assert_gradient, block_on, context, floats, rng, shapes, ternary};

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
fn rope_cpu_turns_as_the_gpu() {
    let context = context();
    let (shape, mut rng) = (AttentionShape { heads: 4, kv_heads: 2, head_dim: 14 }, rng(28));
    let frequencies: Vec<f32> = (0..7).map(|i| 10f32.powi(-i)).collect();
    let angles = transformer::rope_angles(&frequencies, 13);
    let (first, second) = (floats(&mut rng, 6 * shape.row(), 2.0), floats(&mut rng, 3 * shape.row(), 2.0));
    let mut cache = HostKvCache::new(shape).unwrap();
    let (mut cpu, gpu) = (second.clone(), context.upload(&second, [3, shape.row()]).unwrap());
    transformer::rope_cpu(&mut first.clone(), &angles, &mut cache).unwrap();
    transformer::rope_cpu(&mut cpu, &angles, &mut cache).unwrap();
    assert_eq!(cache.len(), 9);
    let gpu_cache = KvCache::new(context, shape, 1, 13, Element::F32).unwrap();
    let mut encoder = context.encoder("test");
    let positions = context.upload(&[6u32], [1]).unwrap();
    transformer::rope(
        &mut encoder,
        &gpu,
        &NewTokens { sequence: 0, run: 3, positions: &positions },
        &context.upload(&angles, [13, 7, 2]).unwrap(),
        &gpu_cache,
    )
    .unwrap();
    let _ = encoder.submit().unwrap();
    for (gpu, cpu) in block_on(gpu.read()).unwrap().chunks(shape.row()).zip(cpu.chunks(shape.row())) {
        // Numbers below 2: two products and a sum, on each side.
        assert!(gpu.iter().zip(cpu).take(4 * 14).all(|(g, c)| f64::from(g - c).abs() <= 4.0 * U * 4.0), "{gpu:?}, not {cpu:?}");
    }
    let beyond = transformer::rope_cpu(&mut floats(&mut rng, 5 * shape.row(), 1.0), &angles, &mut cache);
    assert!(matches!(beyond, Err(Error::Invalid { .. })), "{beyond:?}");
    assert!(matches!(transformer::rope_cpu(&mut [0.0; 3], &angles, &mut cache), Err(Error::Length { .. })));
    cache.truncate(2);
    assert_eq!(cache.len(), 2);
}

#[test]
fn splits_keep_a_gpu_busy_and_have_work() {
    assert_eq!(transformer::attention_splits(1, 1), 1);
    assert_eq!(transformer::attention_splits(0, 0), 1);
    assert_eq!(transformer::attention_splits(8, 4096), 32);
    assert_eq!(transformer::attention_splits(64, 4096), 4);
    assert_eq!(transformer::attention_splits(1000, 4096), 1);
    assert_eq!(transformer::attention_splits(5, 129), 2);
}

#[test]
fn norms_are_near_the_exact_ones() {
    // Rows without overflow.
    for (mut rng, (m, _, k)) in shapes("norms") {
        let (x, gain, eps) = (floats(&mut rng, m * k, 4.0), floats(&mut rng, k, 2.0), 1e-5);
        let normed = transformer::rms_norm_cpu(&x, &gain, eps).unwrap();
        let quantized = bitnet::rms_norm_quantize_cpu(&x, m, &gain, eps).unwrap();
        for token in 0..m {
            let row = &x[token * k..][..k];
            let mean = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / k as f64;
            let exact: Vec<f64> =
                row.iter().zip(&gain).map(|(&v, &g)| f64::from(v) / (mean + f64::from(eps)).sqrt() * f64::from(g)).collect();
            // The mean and eps, halved by the root; then root, reciprocal and two products. Squares are summed exactly.
            let stray = 6.0 * U;
            for (got, exact) in normed[token * k..].iter().zip(&exact) {
                assert!((f64::from(*got) - exact).abs() <= stray * exact.abs(), "{got}, not {exact}, of row {token} of {m} × {k}");
            }
            // The scale has three steps more, and a code two products.
            let scale = 127.0 / exact.iter().fold(1e-5f64, |max, v| max.max(v.abs()));
            assert!((f64::from(quantized.scales[token]) / scale - 1.0).abs() <= stray + 4.0 * U, "scale of row {token} of {m} × {k}");
            for (&code, v) in quantized.row(token).iter().zip(&exact) {
                assert!((f64::from(code) - v * scale).abs() <= 0.5 + 128.0 * (2.0 * stray + 5.0 * U), "{code} for {}", v * scale);
            }
        }
    }
}

#[test]
fn rows_that_are_not_finite_are_nan_and_alone() {
    let mut rng = rng(7);
    let w = ternary(&mut rng, 6, 40);
    let clean = activations(&mut rng, 1, 40);
    let expected = bitnet::bitlinear_cpu(&clean, 1, &w).unwrap();
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = clean.repeat(3);
        x[40 + 17] = bad;
        let y = bitnet::bitlinear_cpu(&x, 3, &w).unwrap();
        assert!(y[6..12].iter().all(|v| v.is_nan()) && y[..6] == expected && y[12..] == expected, "{bad}: {y:?}");
    }
}

#[test]
fn segments_scale_their_own_rows() {
    let mut rng = rng(5);
    let parts = [37, 11, 11].map(|rows| ternary(&mut rng, rows, 80));
    let fused = PackedTernary::concat(&parts.each_ref()).unwrap();
    assert!(matches!(fused.scales(), Scales::Segments(segments) if segments.len() == 3));
    let x = activations(&mut rng, 1, 80);
    let separate: Vec<f32> = parts.iter().flat_map(|part| bitnet::bitlinear_cpu(&x, 1, part).unwrap()).collect();
    assert_eq!(bitnet::bitlinear_cpu(&x, 1, &fused).unwrap(), separate);
}

/// Σ dy·y, whose gradient is what `op_backward(.., dy)` gives.
fn weighed(y: impl IntoIterator<Item = f64>, dy: &[f32]) -> f64 {
    y.into_iter().zip(dy).map(|(y, &dy)| y * f64::from(dy)).sum()
}

/// ln Σ e^x
fn log_sum(x: &[f64]) -> f64 {
    x.iter().map(|v| v.exp()).sum::<f64>().ln()
}

#[test]
fn gradients_of_reductions_are_slopes() {
    let (mut rng, shape) = (rng(60), [3, 4, 2]);
    let x = floats(&mut rng, 24, 3.0);
    for axes in [vec![0], vec![1], vec![0, 2], vec![0, 1, 2]] {
        let outputs = tensor::sum_cpu(&x, shape, axes.as_slice()).unwrap().len();
        let dy = floats(&mut rng, outputs, 2.0);
        // Which output an element belongs to.
        let output = |at: usize| {
            let place = [at / 8, at / 2 % 4, at % 2];
            (0..3).filter(|i| !axes.contains(i)).fold(0, |output, i| output * shape[i] + place[i])
        };
        let groups = |x: &[f64]| {
            let mut groups = vec![Vec::new(); outputs];
            x.iter().enumerate().for_each(|(at, &v)| groups[output(at)].push(v));
            groups
        };
        let axes = Axes::from(axes.as_slice());
        let y = tensor::norm_cpu(&x, shape, axes).unwrap();
        let dx = tensor::norm_backward_cpu(&x, shape, axes, &y, &dy).unwrap();
        assert_gradient("norm", &x, &dx, |x| weighed(groups(x).iter().map(|x| x.iter().map(|v| v * v).sum::<f64>().sqrt()), &dy));
        for correction in [0, 1] {
            let dx = tensor::variance_backward_cpu(&x, shape, axes, correction, &dy).unwrap();
            let variance = |x: &Vec<f64>| {
                let mean = x.iter().sum::<f64>() / x.len() as f64;
                x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (x.len() - correction) as f64
            };
            assert_gradient("variance", &x, &dx, |x| weighed(groups(x).iter().map(variance), &dy));
        }
        let winner = tensor::argmax_cpu(&x, shape, axes).unwrap();
        let dx = tensor::max_backward_cpu(&winner, &dy, axes, shape).unwrap();
        assert_gradient("max", &x, &dx, |x| weighed(groups(x).iter().map(|x| x.iter().copied().fold(f64::MIN, f64::max)), &dy));
    }
}

#[test]
fn gradients_of_rows_are_slopes() {
    let mut rng = rng(61);
    let (row, dy) = (floats(&mut rng, 7, 3.0), floats(&mut rng, 7, 2.0));
    let dx = tensor::softmax_backward_cpu(&tensor::softmax_cpu(&row), &dy);
    assert_gradient("softmax", &row, &dx, |x| weighed(x.iter().map(|v| (v - log_sum(x)).exp()), &dy));
    let dx = tensor::log_softmax_backward_cpu(&tensor::log_softmax_cpu(&row), &dy);
    assert_gradient("log_softmax", &row, &dx, |x| weighed(x.iter().map(|v| v - log_sum(x)), &dy));
    for smoothing in [0.0, 0.25] {
        let dx = tensor::cross_entropy_backward_cpu(&row, 2, CrossEntropyOptions::default().smoothing(smoothing), 1.5);
        let smoothing = f64::from(smoothing);
        let loss = |x: &[f64]| log_sum(x) - (1.0 - smoothing) * x[2] - smoothing * x.iter().sum::<f64>() / 7.0;
        assert_gradient("cross_entropy", &row, &dx, |x| 1.5 * loss(x));
    }
    let (x, dy, weight, bias) = (floats(&mut rng, 15, 3.0), floats(&mut rng, 15, 2.0), floats(&mut rng, 5, 2.0), floats(&mut rng, 5, 2.0));
    let eps = 0.01;
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let norm = |center: bool, x: &[f64], weight: &[f64], bias: &[f64]| {
        let row = |row: &[f64]| {
            let mean = if center { row.iter().sum::<f64>() / 5.0 } else { 0.0 };
            let root = (row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 5.0 + f64::from(eps)).sqrt();
            (0..5).map(|i| (row[i] - mean) / root * weight[i] + bias[i]).collect::<Vec<_>>()
        };
        weighed(x.chunks_exact(5).flat_map(row), &dy)
    };
    let made = tensor::layer_norm_backward_cpu(&x, &weight, eps, &dy).unwrap();
    let (wide_x, wide_weight, wide_bias) = (wide(&x), wide(&weight), wide(&bias));
    assert_gradient("layer_norm, x", &x, &made.x, |x| norm(true, x, &wide_weight, &wide_bias));
    assert_gradient("layer_norm, weight", &weight, &made.weight, |weight| norm(true, &wide_x, weight, &wide_bias));
    assert_gradient("layer_norm, bias", &bias, &made.bias, |bias| norm(true, &wide_x, &wide_weight, bias));
    let made = transformer::rms_norm_backward_cpu(&x, &weight, eps, &dy).unwrap();
    assert_gradient("rms_norm, x", &x, &made.x, |x| norm(false, x, &wide_weight, &[0.0; 5]));
    assert_gradient("rms_norm, gain", &weight, &made.gain, |gain| norm(false, &wide_x, gain, &[0.0; 5]));
}

#[test]
fn hadamard_is_orthogonal_and_its_own_gradient() {
    let mut rng = rng(67);
    for block in [1, 2, 8, 64, 1024] {
        let (x, dy) = (floats(&mut rng, 2 * block, 3.0), floats(&mut rng, 2 * block, 2.0));
        let transformed = |x: &[f32]| {
            let mut y = x.to_vec();
            bitnet::hadamard_cpu(&mut y, block).unwrap();
            y
        };
        let definition = |x: &[f64], at: usize| {
            let (first, i) = (at / block * block, at % block);
            let sign = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            (0..block).map(|j| x[first + j] * sign(j)).sum::<f64>() / (block as f64).sqrt()
        };
        let y = transformed(&x);
        let wide: Vec<f64> = x.iter().map(|&v| v.into()).collect();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-5 * 3.0 * (block as f64).sqrt();
        assert!((0..x.len()).all(|at| near(y[at].into(), definition(&wide, at))), "blocks of {block}");
        assert!(transformed(&y).iter().zip(&wide).all(|(&back, &x)| near(back.into(), x)), "blocks of {block}");
        if block <= 64 {
            let forward = |x: &[f64]| weighed((0..x.len()).map(|at| definition(x, at)), &dy);
            assert_gradient("hadamard", &x, &transformed(&dy), forward);
        }
    }
}
