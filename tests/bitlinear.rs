//! BitLinear on the GPU against its CPU twin, which must agree to the bit: every layout, kernel and element type, on awkward shapes.

mod common;

use bitnet_wgpu::{Context, Element, Float, PackedTernary, Scales, bitnet, bitnet::Layout, f16};
use common::{SHAPES, activations, block_on, contexts, halves, rng, ternary};
use rand::RngExt;

/// The devices, and each as one that flushes subnormal halves, with the layouts to test on it.
fn devices() -> Vec<(Context, Layout)> {
    let mut all = Vec::new();
    for context in contexts() {
        all.push((context.restricted(|c| c.half_subnormals = false), Layout::Half));
        all.push((context.clone(), Layout::Half));
        all.push((context, Layout::Int8));
    }
    all
}

fn check<T: Float>(context: &Context, layout: Layout, (m, n, k): (usize, usize, usize), x: &[T], w: &PackedTernary) {
    let case = format!("{m} × {n} × {k}, {layout:?}, {:?}, {:?}", T::ELEMENT, context.capabilities());
    let mut encoder = context.encoder("test");
    let (gx, gw) = (context.upload(x, [m, k]).unwrap(), w.upload(context).unwrap());
    let xq = bitnet::quantize_activations_as(&mut encoder, &gx, layout).unwrap();
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
