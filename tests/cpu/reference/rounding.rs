//! Norms and quantized activations: rounding, scales, zero points.

use bitnet_wgpu::reference;
use support::{U, activations, floats, rng, shapes, ternary};

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
fn non_finite_rows_do_not_affect_others() {
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
