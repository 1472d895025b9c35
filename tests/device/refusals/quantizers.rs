//! Quantizers of weights and activations.

use super::{assert_invalid, assert_shape, unwritten};
use bitnet_wgpu::{
    Error, Result, Tensor,
    bitnet::{self, Gate, QuantizedInt4, QuantizedInt8, WeightQuantizer},
    reference, tensor,
    weights::{Bits, IntMatrix, TernaryMatrix},
};
use support::{block_on, context};

#[test]
fn activation_quantizers_refuse_unsupported_combinations() {
    use bitnet::ActivationQuantizer;
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, gain) = (unwritten(context, [2, 64]), unwritten(context, [64]));
    let norm = (&gain, 1e-5);
    let int8 = || ActivationQuantizer::int8().norm(norm);
    assert_invalid(int8().per_tensor().quantize(&mut encoder, &x));
    assert_invalid(int8().with_zero_point().quantize(&mut encoder, &x));
    assert_invalid(int8().static_range(-1.0, 1.0).quantize(&mut encoder, &x));
    assert_invalid(int8().stochastic(1).quantize(&mut encoder, &x));
    assert_invalid(ActivationQuantizer::int4().gate(Gate::Silu).quantize(&mut encoder, &x));
    let codes = bitnet::QuantizedActivations::uninit(context, 2, 64, bitnet::Layout::Int8).unwrap();
    let other_layout = ActivationQuantizer::int8().layout(bitnet::Layout::F16);
    assert_invalid(other_layout.quantize_into(&mut encoder, &x, &codes));
    let block_float = ActivationQuantizer::block_float;
    assert_invalid(block_float(None).gate(Gate::Silu).norm(norm).quantize(&mut encoder, &x));
    assert_invalid(block_float(Some(24)).quantize(&mut encoder, &x));
    let blocks = block_float(Some(64)).quantize(&mut context.encoder("other"), &x).unwrap();
    assert_invalid(block_float(None).quantize_into(&mut encoder, &x, &blocks));
    let few = unwritten(context, [1, 64]);
    assert_shape(block_float(Some(64)).norm(norm).quantize_into(&mut encoder, &few, &blocks));
    assert!(encoder.is_empty());
}

#[test]
fn weight_quantizers_refuse_other_combinations() {
    let context = context();
    let mut encoder = context.encoder("test");
    let w = unwritten(context, [2, 3]);
    let int4 = WeightQuantizer::int(Bits::Four);
    for quantizer in [
        int4.per_tensor(),
        int4.asymmetric().per_matrix(),
        WeightQuantizer::int(Bits::One),
        WeightQuantizer::binary().asymmetric(),
    ] {
        assert_invalid(quantizer.quantize(&mut encoder, &w));
        for bits in Bits::ALL {
            let matrix = IntMatrix::uninit(context, 2, 3, bits, None).unwrap();
            assert_invalid(quantizer.quantize_into(&mut encoder, &w, &matrix));
        }
        assert_invalid(reference::quantize_weights(&[0f32; 6], [2, 3], quantizer));
    }
    for size in [0, 16, 48] {
        let binary = WeightQuantizer::binary().per_group(size);
        assert_invalid(reference::quantize_weights(&[0f32; 6], [2, 3], binary));
        assert_invalid(reference::quantize_weights(&[0f32; 6], [2, 3], int4.per_group(size)));
    }
    for size in [0, 8, 24] {
        let ternary = WeightQuantizer::absmean().per_group(size);
        assert_invalid(ternary.quantize(&mut encoder, &w));
        assert_invalid(reference::quantize_weights(&[0f32; 6], [2, 3], ternary));
    }
    assert!(encoder.is_empty());
}

#[test]
fn weight_quantizers_refuse_wrong_shapes() {
    let context = context();
    let mut encoder = context.encoder("test");
    let w = unwritten(context, [2, 3]);
    let ternary = |rows, group| TernaryMatrix::uninit(context, rows, 3, group).unwrap();
    let ints = |rows, bits, group| IntMatrix::uninit(context, rows, 3, bits, group).unwrap();
    let groups = ternary(2, Some(16));
    let absmean = WeightQuantizer::absmean();
    for quantizer in [absmean, absmean.per_matrix(), absmean.per_row()] {
        assert_shape(quantizer.quantize_into(&mut encoder, &w, &ternary(3, None)));
        assert_invalid(quantizer.quantize_into(&mut encoder, &w, &groups));
    }
    let grouped = absmean.per_group(16);
    assert_shape(grouped.quantize_into(&mut encoder, &w, &ternary(3, Some(16))));
    assert_invalid(grouped.quantize_into(&mut encoder, &w, &ternary(2, None)));
    assert_invalid(grouped.quantize_into(&mut encoder, &w, &ternary(2, Some(32))));
    let binary = WeightQuantizer::binary();
    for quantizer in [binary, binary.per_matrix(), binary.per_row()] {
        assert_shape(quantizer.quantize_into(&mut encoder, &w, &ints(3, Bits::One, None)));
        assert_invalid(quantizer.quantize_into(&mut encoder, &w, &ints(2, Bits::One, Some(32))));
        assert_invalid(quantizer.quantize_into(&mut encoder, &w, &ints(2, Bits::Two, None)));
    }
    let grouped = binary.per_group(32);
    assert_shape(grouped.quantize_into(&mut encoder, &w, &ints(3, Bits::One, Some(32))));
    assert_invalid(grouped.quantize_into(&mut encoder, &w, &ints(2, Bits::Two, Some(32))));
    assert_invalid(grouped.quantize_into(&mut encoder, &w, &ints(2, Bits::One, None)));
    let int2 = WeightQuantizer::int(Bits::Two);
    assert_shape(int2.quantize_into(&mut encoder, &w, &ints(3, Bits::Two, None)));
    assert_invalid(int2.quantize_into(&mut encoder, &w, &ints(2, Bits::One, None)));
    assert_invalid(int2.quantize_into(&mut encoder, &w, &ints(2, Bits::Two, Some(32))));
    assert!(encoder.is_empty());
    for size in [0, 8, 17] {
        assert_invalid(TernaryMatrix::uninit(context, 2, 3, Some(size)));
        assert_invalid(IntMatrix::uninit(context, 2, 3, Bits::Four, Some(size)));
    }
    for (length, stack) in [(5, [1, 2, 3]), (0, [usize::MAX, 2, 3])] {
        let made = reference::quantize_weights(
            &vec![0.0f32; length],
            stack,
            WeightQuantizer::absmean().per_matrix(),
        );
        assert!(matches!(made, Err(Error::Length { .. })), "{made:?}");
        let made = reference::quantize_weights(
            &vec![0.0f32; length],
            stack,
            WeightQuantizer::binary().per_matrix(),
        );
        assert!(matches!(made, Err(Error::Length { .. })), "{made:?}");
        let made = reference::fake_quantize_weights(&vec![0.0f32; length], stack, 1.0);
        assert!(matches!(made, Err(Error::Length { .. })), "{made:?}");
    }
    assert_invalid(reference::quantize_weights(
        &[1.0, f32::NAN],
        [2, 1, 1],
        WeightQuantizer::absmean().per_matrix(),
    ));
    assert_invalid(reference::quantize_weights(
        &[1.0, f32::NAN],
        [2, 1, 1],
        WeightQuantizer::binary().per_matrix(),
    ));
    for stack in [[usize::MAX, 2, 0], [1, usize::MAX, 0]] {
        assert_invalid(reference::quantize_weights::<f32, _>(
            &[],
            stack,
            WeightQuantizer::absmean().per_matrix(),
        ));
        assert_invalid(reference::quantize_weights::<f32, _>(
            &[],
            stack,
            WeightQuantizer::binary().per_matrix(),
        ));
    }
    assert_invalid(reference::fake_quantize_weights::<f32>(&[], [usize::MAX, 0, 0], 1.0));
    assert_invalid(reference::quantize_weights::<f32, _>(
        &[],
        [usize::MAX, 0],
        WeightQuantizer::binary(),
    ));
    assert_invalid(reference::quantize_weights::<f32, _>(
        &[],
        [usize::MAX, 0],
        WeightQuantizer::int(Bits::Two),
    ));
}

#[test]
fn quantisers_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, other, row) =
        (unwritten(context, [2, 3]), unwritten(context, [3, 2]), unwritten(context, [3]));
    let one = unwritten(context, []);
    for lambda in [-0.1, 1.1, f32::NAN] {
        assert_invalid(bitnet::fake_quantize_activations(&x, lambda).forward(&mut encoder));
        let op = bitnet::fake_quantize_weights(&x, lambda);
        assert_invalid(op.forward(&mut encoder));
        assert_invalid(op.per_matrix().forward(&mut encoder));
        let normed = bitnet::fake_quantize_activations(&x, lambda).norm((&row, 1e-5));
        assert_invalid(normed.forward(&mut encoder));
        for norm in [None, Some((&[1.0; 3][..], 1e-5))] {
            assert_invalid(reference::fake_quantize_activations(&[0.0; 6], [2, 3], norm, lambda));
        }
        assert_invalid(reference::fake_quantize_weights(&[0.0f32; 0], [0, 2, 3], lambda));
    }
    assert_shape(bitnet::fake_quantize_activations(&x, 1.0).forward_into(&mut encoder, &other));
    let op = bitnet::fake_quantize_weights(&x, 1.0);
    let y = unwritten(context, [2, 3]);
    for op in [op, op.per_matrix()] {
        assert_shape(op.forward_into(&mut encoder, &other, &one));
        assert_shape(op.forward_into(&mut encoder, &y, &row));
    }
    let stack = unwritten(context, [2, 2, 3]);
    let of_stack = bitnet::fake_quantize_weights(&stack, 1.0).per_matrix();
    assert_shape(of_stack.forward_into(&mut encoder, &unwritten(context, [2, 2, 3]), &row));
    assert_shape(op.backward(&mut encoder, &unwritten(context, [2]), &x));
    assert_shape(op.backward(&mut encoder, &one, &other));
    assert_shape(op.backward_into(&mut encoder, &one, &x, &other));
    let normed = |gain| bitnet::fake_quantize_activations(&x, 1.0).norm((gain, 1e-5));
    assert_shape(normed(&one).forward(&mut encoder));
    assert_shape(normed(&row).forward_into(&mut encoder, &other));
    for range in [(1.0, -1.0), (f32::NAN, 1.0), (0.0, f32::INFINITY)] {
        assert_invalid(
            bitnet::ActivationQuantizer::int8()
                .static_range(range.0, range.1)
                .quantize(&mut encoder, &x),
        );
        assert_invalid(reference::quantize_activations_static(&[0.0f32], range));
    }
    let codes = Tensor::<i8>::uninit(context, [2, 3]).unwrap();
    let int8 = |scales: &Tensor<f32>, zeros: Option<usize>| QuantizedInt8 {
        codes: codes.clone(),
        scales: scales.clone(),
        zero_points: zeros.map(|zeros| Tensor::uninit(context, [zeros]).unwrap()),
    };
    assert_shape(int8(&one, None).dequantize_into(&mut encoder, &other));
    assert_shape(int8(&row, None).dequantize::<f32>(&mut encoder));
    assert_shape(int8(&unwritten(context, [2]), Some(1)).dequantize::<f32>(&mut encoder));
    // Outputs of the caller: of another shape, with scales that are not made, without zero points
    // that are.
    let two = unwritten(context, [2]);
    assert_shape(bitnet::ActivationQuantizer::int8().per_tensor().quantize_into(
        &mut encoder,
        &x,
        &int8(&two, None),
    ));
    assert_shape(bitnet::ActivationQuantizer::int8().per_tensor().quantize_into(
        &mut encoder,
        &x,
        &int8(&one, Some(1)),
    ));
    assert_shape(bitnet::ActivationQuantizer::int8().static_range(0.0, 1.0).quantize_into(
        &mut encoder,
        &x,
        &int8(&two, Some(2)),
    ));
    assert_invalid(bitnet::ActivationQuantizer::int8().static_range(0.0, 1.0).quantize_into(
        &mut encoder,
        &x,
        &int8(&one, None),
    ));
    assert_shape(bitnet::ActivationQuantizer::int8().with_zero_point().quantize_into(
        &mut encoder,
        &x,
        &int8(&two, Some(1)),
    ));
    assert_shape(bitnet::ActivationQuantizer::int8().with_zero_point().quantize_into(
        &mut encoder,
        &x,
        &int8(&one, Some(2)),
    ));
    assert_invalid(bitnet::ActivationQuantizer::int8().with_zero_point().quantize_into(
        &mut encoder,
        &x,
        &int8(&two, None),
    ));
    assert_shape(bitnet::ActivationQuantizer::int8().stochastic(1).quantize_into(
        &mut encoder,
        &x,
        &int8(&one, None),
    ));
    assert_invalid(bitnet::ActivationQuantizer::int8().stochastic(1).quantize_into(
        &mut encoder,
        &x,
        &int8(&two, Some(2)),
    ));
    assert_shape(bitnet::ActivationQuantizer::int8().stochastic(1).quantize_into(
        &mut encoder,
        &other,
        &int8(&row, None),
    ));
    assert_shape(bitnet::ActivationQuantizer::int4().quantize_into(
        &mut encoder,
        &x,
        &QuantizedInt4::uninit(context, [3, 2]).unwrap(),
    ));
    assert_shape(tensor::dropout(&x, 0.5, 1).forward_into(&mut encoder, &other));
    assert_shape(tensor::dropout(&x, 0.5, 1).relu().forward_into(&mut encoder, &other));
    assert_shape(tensor::dropout(&x, 0.5, 1).relu().backward_into(&mut encoder, &x, &other));
    assert_invalid(
        tensor::dropout(&x, 1.0, 1).forward_into(&mut encoder, &unwritten(context, [2, 3])),
    );
    assert!(encoder.is_empty());
    let int4 = bitnet::ActivationQuantizer::int4().quantize(&mut encoder, &x).unwrap();
    assert_shape(int4.dequantize_into(&mut encoder, &other));
    let length =
        |result: Result<()>| assert!(matches!(result, Err(Error::Length { .. })), "{result:?}");
    for norm in [None, Some((&[1.0; 3][..], 1e-5))] {
        length(reference::fake_quantize_activations(&[0.0; 5], [2, 3], norm, 1.0).map(drop));
    }
    length(reference::quantize_gradients(&[0.0f32; 5], 2, 3, 1).map(drop));
    length(reference::quantize_activations_with_zero_point(&[0.0f32; 5], 2, 3).map(drop));
    length(reference::quantize_activations_4bit(&[0.0f32; 5], usize::MAX, 3).map(drop));
}

/// Codes, scales and zero points come back as the CPU references make them, with leading
/// dimensions.
#[test]
fn quantised_numbers_are_read() {
    let context = context();
    let x: Vec<f32> = (0..66).map(|i| (i as f32 * 0.7).sin() * (1 + i / 11) as f32).collect();
    let mut encoder = context.encoder("test");
    let tensor = context.upload(&x, [2, 3, 11]).unwrap();
    let affine = bitnet::ActivationQuantizer::int8()
        .with_zero_point()
        .quantize(&mut encoder, &tensor)
        .unwrap();
    let gradients =
        bitnet::ActivationQuantizer::int8().stochastic(5).quantize(&mut encoder, &tensor).unwrap();
    let few = bitnet::ActivationQuantizer::int4().quantize(&mut encoder, &tensor).unwrap();
    let y = few.dequantize::<f32>(&mut encoder).unwrap();
    encoder.submit().unwrap();
    assert_eq!(
        (affine.codes.shape(), affine.scales.shape(), y.shape()),
        ([2, 3, 11].into(), [6].into(), [2, 3, 11].into())
    );
    assert_eq!(
        block_on(affine.read()).unwrap(),
        reference::quantize_activations_with_zero_point(&x, 6, 11).unwrap()
    );
    assert_eq!(
        block_on(gradients.read()).unwrap(),
        reference::quantize_gradients(&x, 6, 11, 5).unwrap()
    );
    let reference = reference::quantize_activations_4bit(&x, 6, 11).unwrap();
    assert_eq!(
        (block_on(few.read()).unwrap(), block_on(y.read()).unwrap()),
        (reference.clone(), reference.dequantize())
    );
}
