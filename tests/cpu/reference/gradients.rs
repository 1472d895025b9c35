//! Gradients against finite differences.

use bitnet_wgpu::{
    bitnet::Gate,
    optimizer::{AdamW, Lion, Sgd},
    reference,
    tensor::Axes,
    weights::Bits,
};
use std::f64::consts::PI;
use support::{assert_gradient, floats, ints, rng, ternary};

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

#[test]
fn gradients_of_linear_distillation_are_slopes() {
    const K: [usize; 2] = [3, 2];
    let mut rng = rng(64);
    let [x, other] = K.map(|k| floats(&mut rng, 4 * k, 1.0));
    let [w, other_w] = K.map(|k| floats(&mut rng, 6 * k, 1.0));
    let (targets, dloss) = ([5, 0, 2, 3], floats(&mut rng, 4, 2.0));
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let products = |x: &[f64], w: &[f64], k: usize| -> Vec<f64> {
        w.chunks_exact(k).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    };
    for (temperature, share) in [(1.0, 1.0), (2.5, 0.75), (0.5, 0.25)] {
        let made = reference::linear_distillation_backward(
            (&x, &w, K[0]),
            (&other, &other_w, K[1]),
            &targets,
            Some(2),
            (temperature, share),
            &dloss,
        )
        .unwrap();
        let (t, share) = (f64::from(temperature), f64::from(share));
        let logs = |logits: &[f64]| {
            let scaled: Vec<f64> = logits.iter().map(|v| v / t).collect();
            scaled.iter().map(|v| v - log_sum(&scaled)).collect::<Vec<_>>()
        };
        let loss = |x: &[f64], w: &[f64]| {
            let of_row = |row: usize| {
                let own = products(&x[row * K[0]..][..K[0]], w, K[0]);
                let teacher = products(&wide(&other[row * K[1]..][..K[1]]), &wide(&other_w), K[1]);
                let of_each = logs(&own).into_iter().zip(logs(&teacher));
                let divergence: f64 = of_each.map(|(q, p)| p.exp() * (p - q)).sum();
                let hard = log_sum(&own) - own[targets[row] as usize];
                let loss = (1.0 - share) * hard + share * t * t * divergence;
                if targets[row] == 2 { 0.0 } else { loss }
            };
            weighed((0..4).map(of_row), &dloss)
        };
        assert_gradient("linear_distillation, x", &x, &made.x, |x| loss(x, &wide(&w)));
        assert_gradient("linear_distillation, w", &w, &made.w, |w| loss(&wide(&x), w));
    }
}

/// Straight through the rounding, the gradient is that of what is rounded; of clipped numbers there
/// is none.
#[test]
fn fake_quantization_gradients_are_numeric_slopes() {
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
fn optimizers_default_to_published_values() {
    let AdamW { rate, betas, eps, decay, .. } = AdamW::default();
    assert_eq!((rate, betas, eps, decay), (1e-3, (0.9, 0.999), 1e-8, 0.01));
    let Lion { rate, betas, decay, .. } = Lion::default();
    assert_eq!((rate, betas, decay), (1e-4, (0.9, 0.99), 0.0));
    let Sgd { rate, momentum, decay, nesterov, .. } = Sgd::default();
    assert_eq!((rate, momentum, decay, nesterov), (1e-3, 0.0, 0.0, false));
}
