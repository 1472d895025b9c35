//! Quantized weights: scales, codes, stacks of matrices.

use bitnet_wgpu::{
    Error,
    bitnet::WeightQuantizer,
    reference,
    weights::{Bits, PackedTernary, Scales},
};
use support::{activations, floats, rng, ternary, ternary_with};

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
