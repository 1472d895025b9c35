//! The CPU twins, which are the oracles of `ops`, against definitions and transformers' choices.

use bitnet_wgpu::{
    Error,
    bitnet::{Gate, WeightQuantizer},
    optimizer::{AdamW, Lion, Sgd},
    reference,
    tensor::Axes,
    transformer::SampleOptions,
    weights::{Bits, PackedTernary, Scales},
};
use std::f64::consts::PI;
use support::{U, activations, assert_gradient, floats, ints, rng, shapes, ternary, ternary_with};

#[test]
fn absmean_is_the_papers() {
    // By hand: mean|W| = 0.75, so W·s = 2, -0.533.., 0.4, 0: +1, -1, 0, 0.
    let packed = reference::quantize_weights(
        &[1.5f32, -0.4, 0.3, 0.0, 0.8, -1.5, 1.5, 0.0],
        [2, 4],
        WeightQuantizer::absmean(),
    )
    .unwrap();
    assert_eq!(packed.to_values(), [1, -1, 0, 0, 1, -1, 1, 0]);
    assert_eq!(packed.scales(), &bitnet_wgpu::weights::Scales::Tensor(0.75));
    // Ties go to even: 0.5·s = 0.5 -> 0 where the mean is 1.
    let packed =
        reference::quantize_weights(&[0.5f32, 1.5, -0.5, -1.5], [1, 4], WeightQuantizer::absmean())
            .unwrap();
    assert_eq!(packed.to_values(), [0, 1, 0, -1]);
}

#[test]
fn optimizers_default_to_published_values() {
    let AdamW { rate, betas, eps, decay, .. } = AdamW::default();
    assert_eq!((rate, betas, eps, decay), (1e-3, (0.9, 0.999), 1e-8, 0.01));
    let Lion { rate, betas, decay, .. } = Lion::default();
    assert_eq!((rate, betas, decay), (1e-4, (0.9, 0.99), 0.0));
    let Sgd { rate, momentum, decay, nesterov, .. } = Sgd::default();
    assert_eq!((rate, momentum, decay, nesterov), (1e-3, 0.0, 0.0, false));
}

#[test]
fn binary_weights_are_the_papers() {
    // By hand: the mean is 0.25, and what is no more than it is negative; β = mean|W| = 0.75.
    let w = [1.5f32, 0.25, 0.5, -0.75, -0.5, 1.0];
    let packed = reference::quantize_weights(
        &[&w[..], &[0.0, 0.0]].concat(),
        [2, 4],
        WeightQuantizer::binary(),
    )
    .unwrap();
    assert_eq!(packed.to_codes(), [1, 0, 1, 0, 0, 1, 0, 0]);
    assert_eq!(packed.dequantize()[..4], [0.5625, -0.5625, 0.5625, -0.5625]);
    // A row of its own has a mean of its own.
    let packed =
        reference::quantize_weights(&w, [2, 3], WeightQuantizer::binary().per_row()).unwrap();
    assert_eq!(packed.to_codes(), [1, 0, 0, 0, 0, 1]);
    assert_eq!(packed.dequantize(), [0.75, -0.75, -0.75, -0.75, -0.75, 0.75]);
}

#[test]
fn weight_quantizers_default_to_tensor_or_row() {
    let w = floats(&mut rng(42), 3 * 70, 1.0);
    let (absmean, binary) = (WeightQuantizer::absmean(), WeightQuantizer::binary());
    let ternary = |quantizer| reference::quantize_weights(&w, [3, 70], quantizer).unwrap();
    assert_eq!(ternary(absmean), ternary(absmean.per_row().per_tensor()));
    assert_ne!(ternary(absmean), ternary(absmean.per_row()));
    let ints = |quantizer| reference::quantize_weights(&w, [3, 70], quantizer).unwrap();
    assert_eq!(ints(binary), ints(binary.per_row().per_tensor()));
    assert_ne!(ints(binary), ints(binary.per_row()));
    let int4 = WeightQuantizer::int(Bits::Four);
    assert_eq!(ints(int4), ints(int4.per_group(32).per_row()));
    assert_ne!(ints(int4), ints(int4.asymmetric()));
}

#[test]
fn a_stack_is_quantized_as_its_matrices_alone() {
    let w = floats(&mut rng(43), 2 * 3 * 70, 1.0);
    let (first, second) = w.split_at(3 * 70);
    let absmean = WeightQuantizer::absmean();
    let alone = [first, second]
        .map(|w| reference::quantize_weights(w, [3, 70], absmean.per_tensor()).unwrap());
    let stack = reference::quantize_weights(&w, [2, 3, 70], absmean.per_matrix()).unwrap();
    assert_eq!(stack, PackedTernary::concat(&[&alone[0], &alone[1]]).unwrap());
    let binary = WeightQuantizer::binary();
    let alone = [first, second]
        .map(|w| reference::quantize_weights(w, [3, 70], binary).unwrap().dequantize());
    let stack = reference::quantize_weights(&w, [2, 3, 70], binary.per_matrix()).unwrap();
    assert_eq!(stack.dequantize(), alone.concat());
}

#[test]
fn equal_scales_of_rows_are_one() {
    let w = [0.5f32, -1.5, 1.5, 0.5];
    let quantizer = WeightQuantizer::absmean().per_row();
    let packed = reference::quantize_weights(&w, [2, 2], quantizer).unwrap();
    assert_eq!(packed.scales(), &Scales::Tensor(1.0));
}

#[test]
fn integer_weights_are_the_nearest_steps() {
    // By hand: from -1 to 2 in three steps.
    let asymmetric = reference::quantize_weights(
        &[2.0f32, -1.0, 0.4, 0.6],
        [1, 4],
        WeightQuantizer::int(Bits::Two).asymmetric(),
    )
    .unwrap();
    assert_eq!(
        (asymmetric.to_codes(), &asymmetric.affine().zeros[..]),
        (vec![3, 0, 1, 2], &[1.0][..])
    );
    // From -2 to 2 in two; halves go to even.
    let symmetric = reference::quantize_weights(
        &[2.0f32, -1.0, 1.2, -2.0],
        [1, 4],
        WeightQuantizer::int(Bits::Two),
    )
    .unwrap();
    assert_eq!(symmetric.dequantize(), [2.0, 0.0, 2.0, -2.0]);
    let mut rng = rng(41);
    for (bits, offset) in [Bits::Two, Bits::Four, Bits::Eight]
        .into_iter()
        .flat_map(|bits| [0.0, 2.0, -2.0].map(|offset| (bits, offset)))
    {
        let mut w: Vec<f32> = floats(&mut rng, 300, 1.0).iter().map(|v| v + offset).collect();
        w[7] = 0.0;
        for asymmetric in [true, false] {
            let quantizer = WeightQuantizer::int(bits).per_group(64);
            let quantizer = if asymmetric { quantizer.asymmetric() } else { quantizer };
            let packed = reference::quantize_weights(&w, [3, 100], quantizer).unwrap();
            let (codes, weights) = (packed.to_codes(), packed.dequantize());
            assert_eq!(weights[7], 0.0, "{bits:?} {asymmetric}");
            for (at, (w, q)) in w.iter().zip(&weights).enumerate() {
                let scale = packed.affine().scales[at / 100 * 2 + at % 100 / 64];
                // Half a step; rounding the zero point can cost another half where a weight is an
                // end of the range.
                let steps = if asymmetric { 1.0 } else { 0.5 };
                assert!(
                    (w - q).abs() <= scale * (steps + 1e-4),
                    "{bits:?} {asymmetric}, weight {at}: {q} for {w}"
                );
                assert!(asymmetric || codes[at] > 0, "code 0 of {bits:?}");
            }
        }
    }
}

#[test]
fn a_gradient_through_packed_integers_is_a_slope() {
    let mut rng = rng(42);
    for (bits, size) in [(Bits::One, None), (Bits::Two, Some(32)), (Bits::Four, None)] {
        let w = ints(&mut rng, 7, 37, bits, size);
        let (x, dy, dense) = (floats(&mut rng, 37, 1.0), floats(&mut rng, 7, 1.0), w.dequantize());
        let dx = reference::bitlinear_backward(&dy, &dense, [7, 37]).unwrap();
        let row =
            |x: &[f64], row: &[f32]| x.iter().zip(row).map(|(x, w)| x * f64::from(*w)).sum::<f64>();
        assert_gradient("bitlinear_int", &x, &dx, |x| {
            weighed(dense.chunks(37).map(|w| row(x, w)), &dy)
        });
    }
}

#[test]
fn rounding_is_to_even_and_scales_follow_pytorch() {
    // Largest value 127: the scale is 127·(1/127), which is 1 but for the last bit, as in PyTorch.
    let xq = reference::quantize_activations(&[127.0f32, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0], 1, 7)
        .unwrap();
    assert_eq!(xq.scales, [127.0 * (1.0f32 / 127.0)]);
    assert_eq!(xq.codes, [127, 0, 2, 2, 0, -2, -127]);
    // Below 1e-5 the scale stays.
    let xq = reference::quantize_activations(&[1e-6f32], 1, 1).unwrap();
    assert_eq!((xq.scales[0], xq.codes[0]), (127.0 * (1.0f32 / 1e-5), 13));
}

#[test]
fn norms_are_near_the_exact_ones() {
    // Rows without overflow.
    for (mut rng, (m, _, k)) in shapes("norms") {
        let (x, gain, eps) = (floats(&mut rng, m * k, 4.0), floats(&mut rng, k, 2.0), 1e-5);
        let normed = reference::rms_norm(&x, &gain, eps).unwrap();
        let quantized = reference::rms_norm_quantize(&x, m, &gain, eps).unwrap();
        for token in 0..m {
            let row = &x[token * k..][..k];
            let mean = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / k as f64;
            let exact: Vec<f64> = row
                .iter()
                .zip(&gain)
                .map(|(&v, &g)| f64::from(v) / (mean + f64::from(eps)).sqrt() * f64::from(g))
                .collect();
            // The mean and eps, halved by the root; then root, reciprocal and two products. Squares
            // are summed exactly.
            let stray = 6.0 * U;
            for (got, exact) in normed[token * k..].iter().zip(&exact) {
                assert!(
                    (f64::from(*got) - exact).abs() <= stray * exact.abs(),
                    "{got}, not {exact}, of row {token} of {m} × {k}"
                );
            }
            // The scale has three steps more, and a code two products.
            let scale = 127.0 / exact.iter().fold(1e-5f64, |max, v| max.max(v.abs()));
            assert!(
                (f64::from(quantized.scales[token]) / scale - 1.0).abs() <= stray + 4.0 * U,
                "scale of row {token} of {m} × {k}"
            );
            for (&code, v) in quantized.row(token).iter().zip(&exact) {
                assert!(
                    (f64::from(code) - v * scale).abs() <= 0.5 + 128.0 * (2.0 * stray + 5.0 * U),
                    "{code} for {}",
                    v * scale
                );
            }
        }
    }
}

#[test]
fn rows_that_are_not_finite_are_nan_and_alone() {
    let mut rng = rng(7);
    let w = ternary(&mut rng, 6, 40);
    let clean = activations(&mut rng, 1, 40);
    let expected = reference::bitlinear(&clean, 1, &w).unwrap();
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = clean.repeat(3);
        x[40 + 17] = bad;
        let y = reference::bitlinear(&x, 3, &w).unwrap();
        assert!(
            y[6..12].iter().all(|v| v.is_nan()) && y[..6] == expected && y[12..] == expected,
            "{bad}: {y:?}"
        );
    }
}

#[test]
fn segments_scale_their_own_rows() {
    let mut rng = rng(5);
    let parts = [37, 11, 11].map(|rows| ternary(&mut rng, rows, 80));
    let fused = PackedTernary::concat(&parts.each_ref()).unwrap();
    assert!(matches!(fused.scales(), Scales::Segments(segments) if segments.len() == 3));
    let x = activations(&mut rng, 1, 80);
    let separate: Vec<f32> =
        parts.iter().flat_map(|part| reference::bitlinear(&x, 1, part).unwrap()).collect();
    assert_eq!(reference::bitlinear(&x, 1, &fused).unwrap(), separate);
}

/// Of the smallest groups, where these divide the others.
#[test]
fn matrices_of_other_groups_are_stacked() {
    let mut rng = rng(42);
    let mut part = |group: Option<usize>| {
        let scales = group.map_or(Scales::Tensor(0.75), |size| Scales::Groups {
            size,
            scales: floats(&mut rng, 3 * 328usize.div_ceil(size), 2.0),
        });
        ternary_with(&mut rng, 3, 328, scales)
    };
    let parts = [Some(128), None, Some(64), Some(192)].map(&mut part);
    let stacked = PackedTernary::concat(&parts.each_ref()).unwrap();
    assert_eq!((stacked.group(), stacked.rows()), (Some(64), 12));
    assert_eq!(
        stacked.dequantize(),
        parts.iter().flat_map(PackedTernary::dequantize).collect::<Vec<_>>()
    );
    let [coarse, fine] = [Some(128), Some(80)].map(&mut part);
    assert!(matches!(PackedTernary::concat(&[&coarse, &fine]), Err(Error::Invalid { .. })));
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
        let outputs = reference::sum(&x, shape, axes.as_slice()).unwrap().len();
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
        let y = reference::norm(&x, shape, axes).unwrap();
        let dx = reference::norm_backward(&x, shape, axes, &y, &dy).unwrap();
        assert_gradient("norm", &x, &dx, |x| {
            weighed(groups(x).iter().map(|x| x.iter().map(|v| v * v).sum::<f64>().sqrt()), &dy)
        });
        for correction in [0, 1] {
            let dx = reference::variance_backward(&x, shape, axes, correction, &dy).unwrap();
            let variance = |x: &Vec<f64>| {
                let mean = x.iter().sum::<f64>() / x.len() as f64;
                x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (x.len() - correction) as f64
            };
            assert_gradient("variance", &x, &dx, |x| weighed(groups(x).iter().map(variance), &dy));
        }
        let winner = reference::argmax(&x, shape, axes).unwrap();
        let dx = reference::max_backward(&winner, &dy, shape, axes).unwrap();
        assert_gradient("max", &x, &dx, |x| {
            weighed(groups(x).iter().map(|x| x.iter().copied().fold(f64::MIN, f64::max)), &dy)
        });
    }
}

#[test]
fn gradients_of_rows_are_slopes() {
    let mut rng = rng(61);
    let (row, dy) = (floats(&mut rng, 7, 3.0), floats(&mut rng, 7, 2.0));
    let dx = reference::softmax_backward(&reference::softmax(&row), &dy);
    assert_gradient("softmax", &row, &dx, |x| {
        weighed(x.iter().map(|v| (v - log_sum(x)).exp()), &dy)
    });
    let dx = reference::log_softmax_backward(&reference::log_softmax(&row), &dy);
    assert_gradient("log_softmax", &row, &dx, |x| weighed(x.iter().map(|v| v - log_sum(x)), &dy));
    for smoothing in [0.0, 0.25] {
        let dx = reference::cross_entropy_backward(&row, 2, None, smoothing, 1.5);
        let smoothing = f64::from(smoothing);
        let loss = |x: &[f64]| {
            log_sum(x) - (1.0 - smoothing) * x[2] - smoothing * x.iter().sum::<f64>() / 7.0
        };
        assert_gradient("cross_entropy", &row, &dx, |x| 1.5 * loss(x));
    }
    let (x, dy, weight, bias) = (
        floats(&mut rng, 15, 3.0),
        floats(&mut rng, 15, 2.0),
        floats(&mut rng, 5, 2.0),
        floats(&mut rng, 5, 2.0),
    );
    let eps = 0.01;
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let norm = |center: bool, x: &[f64], weight: &[f64], bias: &[f64]| {
        let row = |row: &[f64]| {
            let mean = if center { row.iter().sum::<f64>() / 5.0 } else { 0.0 };
            let root =
                (row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 5.0 + f64::from(eps)).sqrt();
            (0..5).map(|i| (row[i] - mean) / root * weight[i] + bias[i]).collect::<Vec<_>>()
        };
        weighed(x.chunks_exact(5).flat_map(row), &dy)
    };
    let made = reference::layer_norm_backward(&x, &weight, eps, &dy).unwrap();
    let (wide_x, wide_weight, wide_bias) = (wide(&x), wide(&weight), wide(&bias));
    assert_gradient("layer_norm, x", &x, &made.x, |x| norm(true, x, &wide_weight, &wide_bias));
    assert_gradient("layer_norm, weight", &weight, &made.weight, |weight| {
        norm(true, &wide_x, weight, &wide_bias)
    });
    assert_gradient("layer_norm, bias", &bias, &made.bias, |bias| {
        norm(true, &wide_x, &wide_weight, bias)
    });
    let made = reference::rms_norm_backward(&x, &weight, eps, &dy).unwrap();
    assert_gradient("rms_norm, x", &x, &made.0, |x| norm(false, x, &wide_weight, &[0.0; 5]));
    assert_gradient("rms_norm, weight", &weight, &made.1, |gain| {
        norm(false, &wide_x, gain, &[0.0; 5])
    });
}

/// Those of elementwise ops, where they have a slope: not beside a corner.
#[test]
fn gradients_of_elementwise_ops_are_slopes() {
    type One = (&'static str, fn(f64) -> f64, fn(f32, f32) -> f32);
    let of_one: [One; 20] = [
        ("neg", |x| -x, reference::neg_backward),
        ("abs", f64::abs, reference::abs_backward),
        ("square", |x| x * x, reference::square_backward),
        ("exp", f64::exp, reference::exp_backward),
        ("log", f64::ln, reference::log_backward),
        ("sqrt", f64::sqrt, reference::sqrt_backward),
        ("rsqrt", |x| x.sqrt().recip(), reference::rsqrt_backward),
        ("recip", f64::recip, reference::recip_backward),
        ("scale", |x| 1.7 * x, |x, dy| reference::scale_backward(x, 1.7, dy)),
        ("clamp", |x| x.clamp(-1.0, 1.5), |x, dy| reference::clamp_backward(x, -1.0, 1.5, dy)),
        ("relu", |x| x.max(0.0), reference::relu_backward),
        (
            "leaky_relu",
            |x| if x > 0.0 { x } else { 0.1 * x },
            |x, dy| reference::leaky_relu_backward(x, 0.1, dy),
        ),
        ("relu2", |x| x.max(0.0).powi(2), reference::relu2_backward),
        ("gelu", |x| 0.5 * x * libm::erfc(-x / 2f64.sqrt()), reference::gelu_backward),
        ("gelu_tanh", gelu_tanh, reference::gelu_tanh_backward),
        ("silu", |x| x / (1.0 + (-x).exp()), reference::silu_backward),
        ("sigmoid", |x| 1.0 / (1.0 + (-x).exp()), reference::sigmoid_backward),
        ("tanh", f64::tanh, reference::tanh_backward),
        ("softplus", |x| x.exp().ln_1p(), reference::softplus_backward),
        ("cube", |x| x.powi(3), |x, dy| reference::pow_backward(x, 3.0, dy).0),
    ];
    type Two = (&'static str, fn(f64, f64) -> f64, fn(f32, f32, f32) -> (f32, f32));
    let of_two: [Two; 7] = [
        ("add", |a, b| a + b, reference::add_backward),
        ("sub", |a, b| a - b, reference::sub_backward),
        ("mul", |a, b| a * b, reference::mul_backward),
        ("div", |a, b| a / b, reference::div_backward),
        ("maximum", f64::max, reference::maximum_backward),
        ("minimum", f64::min, reference::minimum_backward),
        ("pow", f64::powf, reference::pow_backward),
    ];
    let mut rng = rng(69);
    // Off multiples of a sixteenth, where corners are, and of each other; and not near 0, where
    // quotients bend much.
    let mut numbers = |off: f32| -> Vec<f32> {
        let number = |v: &f32| (v * 16.0).round() / 16.0 + off;
        floats(&mut rng, 40, 2.0).iter().map(number).map(|v| v + 0.25f32.copysign(v)).collect()
    };
    for (name, function, backward) in of_one {
        let positive = ["log", "sqrt", "rsqrt"].contains(&name);
        for (x, dy) in
            numbers(1.0 / 32.0).into_iter().zip(numbers(0.0)).filter(|(x, _)| !positive || *x > 0.0)
        {
            assert_gradient(name, &[x], &[backward(x, dy)], |x| f64::from(dy) * function(x[0]));
        }
    }
    for (name, function, backward) in of_two {
        let (x, y) = (numbers(1.0 / 32.0), numbers(3.0 / 64.0));
        for ((x, y), dy) in
            x.into_iter().zip(y).zip(numbers(0.0)).filter(|((x, _), _)| name != "pow" || *x > 0.0)
        {
            let (dx, dy_of_y) = backward(x, y, dy);
            assert_gradient(name, &[x, y], &[dx, dy_of_y], |x| {
                f64::from(dy) * function(x[0], x[1])
            });
        }
    }
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// Those of ternary products, and of rows that are gathered.
#[test]
fn gradients_of_linear_ops_are_slopes() {
    let mut rng = rng(70);
    let (packed, x, dy) =
        (ternary(&mut rng, 5, 7), floats(&mut rng, 7, 1.0), floats(&mut rng, 5, 1.0));
    let dense = packed.dequantize();
    let dx = reference::bitlinear_backward(&dy, &dense, [5, 7]).unwrap();
    let dense: Vec<f64> = dense.into_iter().map(f64::from).collect();
    assert_gradient("bitlinear", &x, &dx, |x| {
        weighed(dense.chunks(7).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()), &dy)
    });
    // Row 2 twice, row 1 never, and one that is not there.
    let (table, ids, dy) =
        (floats(&mut rng, 4 * 3, 1.0), [2u32, 0, 2, 3, 9], floats(&mut rng, 5 * 3, 1.0));
    let there = |id: &u32| (*id as usize) < 4;
    assert_gradient("gather", &table, &reference::gather_backward(&dy, &ids, 4), |table| {
        ids.iter()
            .zip(dy.chunks(3))
            .filter(|(id, _)| there(id))
            .map(|(&id, dy)| weighed(table[3 * id as usize..][..3].iter().copied(), dy))
            .sum()
    });
}

#[test]
fn gradients_of_gates_are_slopes() {
    type Slope = (Gate, fn(f64) -> f64);
    let gates: [Slope; 3] = [
        (Gate::Relu2, |x| x.max(0.0).powi(2)),
        (Gate::Silu, |x| x / (1.0 + (-x).exp())),
        (Gate::GeluTanh, gelu_tanh),
    ];
    let mut rng = rng(68);
    for (gate, function) in gates {
        for (x, dy) in
            floats(&mut rng, 40, 3.0).as_chunks::<2>().0.iter().zip(floats(&mut rng, 20, 2.0))
        {
            let (of_gate, of_up) = reference::gate_backward(x[0], x[1], dy, gate);
            assert_gradient(&format!("{gate:?}"), x, &[of_gate, of_up], |x| {
                f64::from(dy) * function(x[0]) * x[1]
            });
        }
    }
}

#[test]
fn gradients_of_attention_are_slopes() {
    const DIM: usize = 3;
    let mut rng = rng(62);
    let [q, k, v, dy] = [(); 4].map(|()| floats(&mut rng, 5 * DIM, 1.0));
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let (wide_q, wide_k, wide_v) = (wide(&q), wide(&k), wide(&v));
    for (causal, factor) in [(false, None), (true, Some(1.25f32))] {
        let scale = f64::from(factor.unwrap_or((DIM as f32).sqrt().recip()));
        let attention = |q: &[f64], k: &[f64], v: &[f64]| {
            let row = |i: usize| {
                let keys = k.chunks_exact(DIM).take(if causal { i + 1 } else { 5 });
                let scores: Vec<f64> = keys
                    .map(|k| scale * k.iter().zip(&q[i * DIM..]).map(|(k, q)| k * q).sum::<f64>())
                    .collect();
                let log = log_sum(&scores);
                (0..DIM)
                    .map(|d| {
                        (0..scores.len()).map(|j| (scores[j] - log).exp() * v[j * DIM + d]).sum()
                    })
                    .collect::<Vec<f64>>()
            };
            weighed((0..5).flat_map(row), &dy)
        };
        let qkv = [&q[..], &k[..], &v[..]];
        let (y, lse) = reference::flash_attention(qkv, DIM, causal, factor).unwrap();
        let made =
            reference::flash_attention_backward(qkv, (&y, &lse), &dy, DIM, causal, factor).unwrap();
        assert_gradient("flash_attention, q", &q, &made.0, |q| attention(q, &wide_k, &wide_v));
        assert_gradient("flash_attention, k", &k, &made.1, |k| attention(&wide_q, k, &wide_v));
        assert_gradient("flash_attention, v", &v, &made.2, |v| attention(&wide_q, &wide_k, v));
    }
}

#[test]
fn hadamard_is_orthogonal_and_its_own_gradient() {
    let mut rng = rng(67);
    for block in [1, 2, 8, 64, 1024] {
        let (x, dy) = (floats(&mut rng, 2 * block, 3.0), floats(&mut rng, 2 * block, 2.0));
        let transformed = |x: &[f32]| {
            let mut y = x.to_vec();
            reference::hadamard(&mut y, block).unwrap();
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
        assert!(
            (0..x.len()).all(|at| near(y[at].into(), definition(&wide, at))),
            "blocks of {block}"
        );
        assert!(
            transformed(&y).iter().zip(&wide).all(|(&back, &x)| near(back.into(), x)),
            "blocks of {block}"
        );
        if block <= 64 {
            let forward = |x: &[f64]| weighed((0..x.len()).map(|at| definition(x, at)), &dy);
            assert_gradient("hadamard", &x, &transformed(&dy), forward);
        }
    }
}

#[test]
fn gradients_of_linear_cross_entropy_are_slopes() {
    const K: usize = 3;
    let mut rng = rng(63);
    let (x, w, targets, dloss) = (
        floats(&mut rng, 4 * K, 1.0),
        floats(&mut rng, 6 * K, 1.0),
        [5, 0, 2, 3],
        floats(&mut rng, 4, 2.0),
    );
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    for (smoothing, ignored) in [(0.0, 2), (0.25, 9)] {
        let ignore = Some(ignored);
        let made = reference::linear_cross_entropy_backward(
            &x, &w, K, &targets, ignore, smoothing, &dloss,
        )
        .unwrap();
        let smoothing = f64::from(smoothing);
        let loss = |x: &[f64], w: &[f64]| {
            let of_row = |(x, target): (&[f64], &u32)| {
                let logits: Vec<f64> =
                    w.chunks_exact(K).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect();
                let loss = log_sum(&logits)
                    - (1.0 - smoothing) * logits[*target as usize]
                    - smoothing * logits.iter().sum::<f64>() / 6.0;
                if *target == ignored { 0.0 } else { loss }
            };
            weighed(x.chunks_exact(K).zip(&targets).map(of_row), &dloss)
        };
        assert_gradient("linear_cross_entropy, x", &x, &made.x, |x| loss(x, &wide(&w)));
        assert_gradient("linear_cross_entropy, w", &w, &made.w, |w| loss(&wide(&x), w));
    }
}

/// Straight through the rounding, the gradient is that of what is rounded; of clipped numbers there
/// is none.
#[test]
fn gradients_of_fake_quantisation_are_slopes_of_what_is_rounded() {
    let mut rng = rng(62);
    let (w, dy) = (floats(&mut rng, 40, 1.0), floats(&mut rng, 40, 2.0));
    let made = reference::fake_quantize_weights(&w, [1, 1, 40], 1.0).unwrap();
    let dw: Vec<f32> = w
        .iter()
        .zip(&dy)
        .map(|(&w, &dy)| {
            reference::fake_quantize_weights_backward(w, made.scale[0], (-1.0, 1.0), dy)
        })
        .collect();
    assert!(dw.contains(&0.0) && dw != vec![0.0; 40]);
    let scale = f64::from(made.scale[0]);
    assert_gradient("fake_quantize_weights", &w, &dw, |w| {
        weighed(w.iter().map(|w| (w * scale).clamp(-1.0, 1.0) / scale), &dy)
    });
    // After a norm: the loss is taken where the rounded numbers are, its slope goes back through
    // the norm alone.
    let (x, gain, eps) = (floats(&mut rng, 15, 3.0), floats(&mut rng, 5, 2.0), 0.01);
    let rounded =
        reference::fake_quantize_activations(&x, [3, 5], Some((&gain, eps)), 1.0).unwrap();
    let dy: Vec<f32> = rounded.iter().map(|y| 2.0 * y).collect();
    let norm = |x: &[f64], gain: &[f64]| {
        let row = |row: &[f64]| {
            let root = (row.iter().map(|v| v * v).sum::<f64>() / 5.0 + f64::from(eps)).sqrt();
            row.iter().zip(gain).map(|(v, gain)| v / root * gain).collect::<Vec<_>>()
        };
        x.chunks_exact(5).flat_map(row).collect::<Vec<_>>()
    };
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let made = reference::rms_norm_backward(&x, &gain, eps, &dy).unwrap();
    assert_gradient("rms_norm_fake_quantize, x", &x, &made.0, |x| {
        weighed(norm(x, &wide(&gain)), &dy)
    });
    assert_gradient("rms_norm_fake_quantize, gain", &gain, &made.1, |gain| {
        weighed(norm(&wide(&x), gain), &dy)
    });
    // What is rounded is that norm: off by half a step.
    let normed = norm(&wide(&x), &wide(&gain));
    for (rounded, normed) in rounded.chunks(5).zip(normed.chunks(5)) {
        let largest = normed.iter().fold(0.0, |largest: f64, v| largest.max(v.abs()));
        assert!(
            rounded
                .iter()
                .zip(normed)
                .all(|(&r, n)| (f64::from(r) - n).abs() <= 0.5001 * largest / 127.0),
            "{rounded:?}, {normed:?}"
        );
    }
}

#[test]
fn lambda_leads_from_a_number_to_its_code() {
    let x = [0.9f32, -0.31, 1.0, 0.0];
    let at = |lambda| reference::fake_quantize_activations(&x, [1, 4], None, lambda).unwrap();
    assert_eq!(at(0.0), x);
    let (half, all) = (at(0.5), at(1.0));
    assert!(
        half.iter()
            .zip(x.iter().zip(&all))
            .all(|(half, (x, all))| (half - 0.5 * (x + all)).abs() <= f32::EPSILON),
        "{half:?}"
    );
    // 0.9·127 = 114.3, -0.31·127 = -39.37.
    let codes = [114.0, -39.0, 127.0, 0.0];
    assert!(
        all.iter().zip(codes).all(|(value, code)| (value - code / 127.0).abs() <= f32::EPSILON),
        "{all:?}"
    );
}

#[test]
fn zero_points_and_few_bits_by_hand() {
    // From 0 to 5.1, and from -1 to 4.1: 50 steps a unit.
    let x = [0.0f32, 1.0, 2.0, 5.1, -1.0, 0.0, 0.5, 4.1, 2.0, 3.0, 5.1, 5.1];
    let xq = reference::quantize_activations_with_zero_point(&x, 3, 4).unwrap();
    assert_eq!(xq.codes, [-128, -78, -28, 127, -128, -78, -53, 127, -28, 22, 127, 127]);
    assert_eq!(xq.zero_points, Some(vec![-128, -78, -128]), "0 is in every range");
    assert!(xq.scales.iter().all(|scale| (scale - 50.0).abs() < 1e-4), "{:?}", xq.scales);
    assert_eq!(xq.dequantize()[5], 0.0, "0 stays 0");
    // A range of the caller's: what is beyond gets the code of its end.
    let wide = [-7.0f32, -1.0, 0.0, 4.1, 9.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let xq = reference::quantize_activations_static(&wide, (-1.0, 4.1)).unwrap();
    assert_eq!(xq.codes, [-128, -128, -78, 127, 127, 127, -128, -78]);
    let xq = reference::quantize_activations_by_tensor(&[127.0f32, 0.5, 1.5, -2.5]);
    assert_eq!((xq.codes, xq.scales), (vec![127, 0, 2, -2], vec![127.0 * (1.0f32 / 127.0)]));
    let xq =
        reference::quantize_activations_4bit(&[7.0f32, -7.0, 0.5, 1.5, 2.5, -3.4], 1, 6).unwrap();
    assert_eq!(xq.codes, [7, -7, 0, 2, 2, -3], "ties go to even");
}

/// Over many seeds a code is one of the two neighbors of x·a, and their mean is x·a: within five
/// standard deviations of the mean of as many independent roundings, and 2^-25 for the units of u.
#[test]
fn stochastic_rounding_has_no_bias() {
    const SEEDS: u64 = 20_000;
    let x = [1.0f32, 0.3, -0.3, 0.0101, -1e-3, 1e-5, 0.5, -0.9999, 0.0];
    let mut sums = [0i64; 9];
    let mut scale = 0.0;
    for seed in 0..SEEDS {
        let made = reference::quantize_gradients(&x, 1, 9, seed).unwrap();
        scale = made.scales[0];
        sums.iter_mut().zip(&made.codes).for_each(|(sum, &code)| *sum += i64::from(code));
        let near = |(x, &code): (&f32, &i8)| (f64::from(x * scale) - f64::from(code)).abs() < 1.0;
        assert!(x.iter().zip(&made.codes).all(near), "{:?}", made.codes);
    }
    for (x, sum) in x.iter().zip(sums) {
        let (exact, mean) = (f64::from(x * scale).clamp(-127.0, 127.0), sum as f64 / SEEDS as f64);
        let up = exact - exact.floor();
        let deviation = (up * (1.0 - up) / SEEDS as f64).sqrt();
        assert!(
            (mean - exact).abs() <= 5.0 * deviation + 0.5f64.powi(25),
            "{x}: {mean}, not {exact} ± {deviation}"
        );
    }
    // Neighbors in a word are rounded apart.
    let made = reference::quantize_gradients(&[1.0f32, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3], 1, 8, 7)
        .unwrap();
    assert!(made.codes.contains(&38) && made.codes.contains(&39), "{:?}", made.codes);
}

/// Over many seeds, and over many positions, tokens are as likely as softmax says. Σ (seen -
/// expected)² / expected, of n - 1 degrees of freedom, is beyond n - 1 + 2·√((n - 1)·t) + 2·t with
/// a probability below e^-t (Laurent and Massart 2000, lemma 1).
#[test]
fn tokens_are_as_likely_as_softmax_says() {
    const DRAWS: u32 = 40_000;
    let (logits, options) =
        (floats(&mut rng(5), 33, 2.5), SampleOptions::default().temperature(0.8));
    let weights: Vec<f64> =
        logits.iter().map(|&logit| (f64::from(logit) / f64::from(0.8f32)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let by_seed = |n: u32| reference::sample(&logits, u64::from(n), 3, &options).unwrap();
    let by_position = |n: u32| reference::sample(&logits, u64::MAX - 6, n, &options).unwrap();
    for (by, draw) in [("seed", &by_seed as &dyn Fn(u32) -> u32), ("position", &by_position)] {
        let mut seen = [0u32; 33];
        (0..DRAWS).for_each(|n| seen[draw(n) as usize] += 1);
        let expected = weights.iter().map(|weight| weight / sum * f64::from(DRAWS));
        let statistic: f64 = seen
            .iter()
            .zip(expected)
            .map(|(&seen, expected)| (f64::from(seen) - expected).powi(2) / expected)
            .sum();
        let (freedom, t) = (32.0, 14.0f64);
        assert!(statistic < freedom + 2.0 * (freedom * t).sqrt() + 2.0 * t, "by {by}: {statistic}");
    }
}
