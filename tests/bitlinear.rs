//! BitLinear on the GPU against its CPU twin, which must agree to the bit: every layout, kernel and element type, on awkward shapes.

use bitnet_wgpu::{Context, Element, Float, PackedTernary, Scales, Shape, bitnet, bitnet::Layout, f16};
use rand::RngExt;
use support::{SHAPES, activations, block_on, contexts, halves, rng, ternary};

/// The devices, and each as one that flushes subnormal halves, with the layouts to test on it.
fn devices() -> Vec<(Context, Layout)> {
    let mut all = Vec::new();
    for context in contexts() {
        all.push((context.restricted(|c| c.half_subnormals = false), Layout::Half));
        all.push((context.clone(), Layout::Half));
        all.push((context.restricted(|c| c.software = !c.software), Layout::Half));
        all.push((context, Layout::Int8));
    }
    all
}

fn check<T: Float>(context: &Context, layout: Layout, (m, n, k): (usize, usize, usize), x: &[T], w: &PackedTernary) {
    let case = format!("{m} × {n} × {k}, {layout:?}, {:?}, {:?}", T::ELEMENT, context.capabilities());
    let mut encoder = context.encoder("test");
    let (gx, gw) = (context.upload(x, [m, k]).unwrap(), w.upload(context).unwrap());
    let xq = support::quantize_as(&mut encoder, &gx, layout).unwrap();
    let sums = bitnet::accumulators(&mut encoder, &xq, &gw).unwrap();
    let y = bitnet::bitlinear_quantized::<T>(&mut encoder, &xq, &gw).unwrap();
    let _ = encoder.submit().unwrap();

    let host = bitnet::quantize_activations_cpu(x, m, k).unwrap();
    assert_eq!(block_on(xq.read()).unwrap(), host, "codes of {case}");
    let expected: Vec<f32> = bitnet::accumulators_cpu(&host, w).unwrap().into_iter().map(|sum| sum as f32).collect();
    assert_eq!(block_on(sums.read()).unwrap(), expected, "sums of {case}");
    let expected = bitnet::bitlinear_quantized_cpu(&host, w).unwrap();
    for (at, (got, want)) in block_on(y.read()).unwrap().into_iter().zip(expected).enumerate() {
        let got: f32 = got.into();
        match T::ELEMENT {
            // Vulkan leaves the rounding of a conversion to f16 open: the neighbour will do, and overflow may saturate.
            Element::F16 => {
                let want = f16::from_f32(want);
                let neighbours = (f16::from_f32(got).to_bits() as i16).abs_diff(want.to_bits() as i16) <= 1;
                assert!(neighbours, "output {at} of {case}: {got} for {want}");
            }
            _ => assert_eq!(got.to_bits(), want.to_bits(), "output {at} of {case}: {got} for {want}"),
        }
    }
}

#[test]
fn equals_the_cpu_on_awkward_shapes() {
    for (context, layout) in devices() {
        let mut rng = rng(3);
        for &(m, n, k) in SHAPES {
            let (x, w) = (activations(&mut rng, m, k), ternary(&mut rng, n, k));
            check(&context, layout, (m, n, k), &x, &w);
            if context.capabilities().f16 {
                let tame: Vec<f32> = x.iter().map(|v| v.clamp(-6e4, 6e4)).collect();
                check(&context, layout, (m, n, k), &halves(&tame), &w);
            }
        }
    }
}

#[test]
fn every_token_count_from_gemv_to_gemm() {
    for (context, layout) in devices() {
        let mut rng = rng(4);
        for m in 0..=20 {
            let (x, w) = (activations(&mut rng, m, 70), ternary(&mut rng, 19, 70));
            check(&context, layout, (m, 19, 70), &x, &w);
        }
    }
}

#[test]
fn segments_scale_their_own_rows() {
    // q, k, v under grouped-query attention: segments of different lengths, none a multiple of a tile.
    for (context, layout) in devices() {
        let mut rng = rng(5);
        let parts: Vec<_> = [37, 11, 11].into_iter().map(|rows| ternary(&mut rng, rows, 80)).collect();
        let fused = PackedTernary::concat(&parts.iter().collect::<Vec<_>>()).unwrap();
        assert!(matches!(fused.scales(), Scales::Segments(segments) if segments.len() == 3));
        for m in [1, 3, 40] {
            let x = activations(&mut rng, m, 80);
            check(&context, layout, (m, 59, 80), &x, &fused);
            // And row by row what the separate matrices give.
            let whole = bitnet::bitlinear_cpu(&x, m, &fused).unwrap();
            let mut first = 0;
            for part in &parts {
                let own = bitnet::bitlinear_cpu(&x, m, part).unwrap();
                for token in 0..m {
                    assert_eq!(whole[token * 59 + first..][..part.rows()], own[token * part.rows()..][..part.rows()]);
                }
                first += part.rows();
            }
        }
    }
}

#[test]
fn groups_of_columns() {
    for context in contexts() {
        let mut rng = rng(6);
        for (m, n, k, size) in [(1, 9, 256usize, 64), (3, 17, 200, 16), (12, 5, 100, 48), (2, 3, 15, 16), (0, 2, 32, 32)] {
            let values: Vec<i8> = (0..n * k).map(|_| rng.random_range(-1..=1)).collect();
            let scales = (0..n * k.div_ceil(size)).map(|_| rng.random_range(-1.0..1.0)).collect();
            let w = PackedTernary::from_values(n, k, &values, Scales::Groups { size, scales }).unwrap();
            let x: Vec<f32> = (0..m * k).map(|_| rng.random_range(-2.0..2.0)).collect();
            let mut encoder = context.encoder("test");
            let gw = w.upload(&context).unwrap();
            let y = bitnet::bitlinear(&mut encoder, &context.upload(&x, [m, k]).unwrap(), &gw).unwrap();
            let dense = bitnet::dequantize_weights::<f32>(&mut encoder, &gw).unwrap();
            let _ = encoder.submit().unwrap();
            assert_eq!(block_on(gw.read()).unwrap(), w);
            assert_eq!(block_on(dense.read()).unwrap(), w.dequantize());
            let xq = bitnet::quantize_activations_cpu(&x, m, k).unwrap();
            let (dense, twin) = (w.dequantize(), bitnet::bitlinear_quantized_cpu(&xq, &w).unwrap());
            for (at, (y, twin)) in block_on(y.read()).unwrap().into_iter().zip(twin).enumerate() {
                let (row, codes) = (&dense[at % n * k..][..k], xq.row(at / n));
                let terms = || row.iter().zip(codes).map(|(&w, &x)| f64::from(w) * f64::from(x));
                let scale = f64::from(xq.scales[at / n]);
                // One rounding for each of at most k/16 words and one for each of the tree's levels, of sums of at most Σ|w·x|.
                let bound = terms().map(f64::abs).sum::<f64>() / scale * (k.div_ceil(16) + 8) as f64 * f64::from(f32::EPSILON);
                let exact = terms().sum::<f64>() / scale;
                assert!((f64::from(y) - exact).abs() <= bound, "GPU: {m} × {n} × {k}, groups of {size}: {y} for {exact}");
                assert!((f64::from(twin) - exact).abs() <= bound, "CPU: {m} × {n} × {k}, groups of {size}: {twin} for {exact}");
            }
        }
    }
}

#[test]
fn the_worst_sums_are_exact() {
    // All codes +1, all activations 127, at the largest k of a layout.
    let context = support::context();
    for (layout, half_subnormals) in [(Layout::Int8, true), (Layout::Half, true), (Layout::Half, false)] {
        let context = context.restricted(|c| c.half_subnormals &= half_subnormals);
        let k = layout.max_features(context.capabilities().half_subnormals);
        let w = PackedTernary::from_values(2, k, &vec![1; 2 * k], Scales::Tensor(1.0)).unwrap();
        for m in [1, 9] {
            check(&context, layout, (m, 2, k), &vec![1.0f32; m * k], &w);
            check(&context, layout, (m, 2, k), &vec![-1.0f32; m * k], &w);
        }
    }
}

#[test]
fn rows_that_are_not_finite_are_nan_and_alone() {
    for (context, layout) in devices() {
        let mut rng = rng(7);
        let w = ternary(&mut rng, 6, 40);
        let clean = activations(&mut rng, 1, 40);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for m in [3, 20] {
                let mut x = clean.repeat(m);
                x[40 + 17] = bad;
                let mut encoder = context.encoder("test");
                let xq = support::quantize_as(&mut encoder, &context.upload(&x, [m, 40]).unwrap(), layout).unwrap();
                let y = bitnet::bitlinear_quantized::<f32>(&mut encoder, &xq, &w.upload(&context).unwrap()).unwrap();
                let _ = encoder.submit().unwrap();
                let (y, xq) = (block_on(y.read()).unwrap(), block_on(xq.read()).unwrap());
                let expected = bitnet::bitlinear_cpu(&clean, 1, &w).unwrap();
                let twin = bitnet::bitlinear_cpu(&x, m, &w).unwrap();
                for token in 0..m {
                    let nan = token == 1;
                    assert_eq!(xq.scales[token].is_nan(), nan);
                    for (y, whose) in [(&y, "GPU"), (&twin, "CPU")] {
                        let row = &y[token * 6..][..6];
                        let right = if nan { row.iter().all(|v| v.is_nan()) } else { row == expected };
                        assert!(right, "{whose}, {layout:?}, token {token} of {m} with {bad}: {row:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn leading_dimensions_are_kept() {
    let context = support::context();
    let w = ternary(&mut rng(8), 7, 12).upload(context).unwrap();
    for (shape, expected) in [([2, 3, 12].into(), "[2, 3, 7]"), ([12].into(), "[7]"), ([1, 2, 2, 12].into(), "[1, 2, 2, 7]")] {
        let shape: Shape = shape;
        let x = context.upload(&vec![1.0f32; shape.checked_len().unwrap()], shape).unwrap();
        let y = bitnet::bitlinear(&mut context.encoder("test"), &x, &w).unwrap();
        assert_eq!(y.shape().to_string(), expected);
    }
    let scalar = context.upload(&[1.0f32], []).unwrap();
    let w = ternary(&mut rng(8), 7, 1).upload(context).unwrap();
    assert_eq!(bitnet::bitlinear(&mut context.encoder("test"), &scalar, &w).unwrap().shape().to_string(), "[7]");
}

#[test]
fn tall_matrices() {
    // So many rows that `plan` takes the kernel for them, and not a multiple of its tile.
    for context in contexts() {
        let mut rng = rng(10);
        for k in [65, 300] {
            let n = 16_387;
            assert_eq!(bitnet::plan(2, n, Layout::Int8, false, context.capabilities()).name, "bitlinear_gemv_int8_tall");
            let (x, w) = (activations(&mut rng, 2, k), ternary(&mut rng, n, k));
            check(&context, Layout::Int8, (2, n, k), &x, &w);
        }
    }
}

#[test]
fn more_rows_than_one_grid_has_workgroups() {
    // 70 000 tokens: more workgroups than a dimension allows, for quantisers and for the GEMM's tokens together.
    let context = support::context();
    let mut rng = rng(9);
    let (m, k) = (70_000, 3);
    let x: Vec<f32> = (0..m * k).map(|_| rng.random_range(-3.0..3.0)).collect();
    check(context, Layout::Int8, (m, 2, k), &x, &ternary(&mut rng, 2, k));
    check(context, Layout::Half, (m, 2, k), &x, &ternary(&mut rng, 2, k));
}
