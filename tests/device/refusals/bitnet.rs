//! Quantizers and BitLinear.

use super::{assert_invalid, assert_shape, unwritten};
use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Error, Out, Shape, Tensor,
    bitnet::{
        self, ActivationType, Gate, Layout, QuantizationError, QuantizedActivations,
        WeightQuantizer,
    },
    reference,
    weights::Bits,
};
use support::{block_on, context, contexts, ints, rng, ternary};

#[test]
fn leading_dimensions_are_kept() {
    let context = context();
    let w = ternary(&mut rng(8), 7, 12).upload(context).unwrap();
    for (shape, expected) in [
        ([2, 3, 12].into(), "[2, 3, 7]"),
        ([12].into(), "[7]"),
        ([1, 2, 2, 12].into(), "[1, 2, 2, 7]"),
    ] {
        let shape: Shape = shape;
        let x = context.upload(&vec![1.0f32; shape.checked_len().unwrap()], shape).unwrap();
        let y = BitLinear::new(&w).forward(&mut context.encoder("test"), &x).unwrap();
        assert_eq!(y.shape().to_string(), expected);
    }
    let scalar = context.upload(&[1.0f32], []).unwrap();
    let w = ternary(&mut rng(8), 7, 1).upload(context).unwrap();
    assert_eq!(
        BitLinear::new(&w)
            .forward(&mut context.encoder("test"), &scalar)
            .unwrap()
            .shape()
            .to_string(),
        "[7]"
    );
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut w = vec![0.5f32; 60];
        w[17] = bad;
        assert!(matches!(
            reference::quantize_weights(&w, [6, 10], WeightQuantizer::absmean()).unwrap_err(),
            Error::Invalid { .. }
        ));
        for context in contexts() {
            let mut encoder = context.encoder("test");
            let packed = WeightQuantizer::absmean()
                .quantize(&mut encoder, &context.upload(&w, [6, 10]).unwrap())
                .unwrap();
            encoder.submit().unwrap();
            assert!(matches!(block_on(packed.read()).unwrap_err(), Error::Invalid { .. }), "{bad}");
        }
    }
}

#[test]
fn integer_weights_that_are_not_finite_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut w = vec![0.5f32; 60];
        w[17] = bad;
        assert_invalid(reference::quantize_weights(&w, [6, 10], WeightQuantizer::binary()));
        assert_invalid(reference::quantize_weights(
            &w,
            [6, 10],
            WeightQuantizer::binary().per_row(),
        ));
        assert_invalid(reference::quantize_weights(&w, [6, 10], WeightQuantizer::int(Bits::Four)));
        for context in contexts() {
            let (mut encoder, w) = (context.encoder("test"), context.upload(&w, [6, 10]).unwrap());
            let all = [
                WeightQuantizer::binary().quantize(&mut encoder, &w).unwrap(),
                WeightQuantizer::binary().per_row().quantize(&mut encoder, &w).unwrap(),
                WeightQuantizer::int(Bits::Four).asymmetric().quantize(&mut encoder, &w).unwrap(),
            ];
            encoder.submit().unwrap();
            all.into_iter().for_each(|packed| assert_invalid(block_on(packed.read())));
        }
    }
    // Finite, but no scale of its group is: 2^81 and more.
    assert_invalid(reference::quantize_weights(
        &[3e38f32, -3e38],
        [1, 2],
        WeightQuantizer::int(Bits::Eight).asymmetric(),
    ));
    assert_invalid(reference::quantize_weights(
        &[3e38f32, -3e38],
        [1, 2],
        WeightQuantizer::binary(),
    ));
}

/// What comes back from the device is what went there, and says what it is.
#[test]
fn integer_weights_are_read_back() {
    for (bits, size) in Bits::ALL.into_iter().flat_map(|bits| [(bits, None), (bits, Some(32))]) {
        let packed = ints(&mut rng(3), 5, 70, bits, size);
        let matrix = packed.upload(context()).unwrap();
        assert_eq!(
            (matrix.rows(), matrix.columns(), matrix.bits(), matrix.group()),
            (5, 70, bits, size)
        );
        assert_eq!(matrix.code_bytes(), 4 * packed.words().len());
        assert_eq!(block_on(matrix.read()).unwrap(), packed);
    }
}

#[test]
fn integer_weight_ops_refuse_wrong_shapes() {
    let context = context();
    let mut encoder = context.encoder("test");
    let w = ints(&mut rng(4), 6, 40, Bits::Two, None).upload(context).unwrap();
    let x = |columns| unwritten(context, [2, columns]);
    assert_shape(BitLinear::new(&w).forward(&mut encoder, &x(41)));
    assert_shape(BitLinear::new(&w).forward_into(&mut encoder, &x(40), &x(5)));
    assert_shape(BitLinear::new(&w).backward(&mut encoder, &x(40)));
    assert_shape(BitLinear::new(&w).backward_into(&mut encoder, &x(6), Out::add(&x(6))));
    assert_shape(w.dequantize_into(&mut encoder, &x(40)));
    assert_shape(bitnet::quantization_error(&x(40), &x(41)).forward(&mut encoder));
    let zeros = Tensor::<f32>::zeros(context, [2, 40]).unwrap();
    assert_shape(block_on(QuantizationError::read(&zeros)));
    let xq = |columns, layout| QuantizedActivations::uninit(context, 2, columns, layout).unwrap();
    assert_shape(BitLinear::new(&w).forward(&mut encoder, &xq(41, Layout::Int8)));
    assert_shape(BitLinear::new(&w).forward_into(&mut encoder, &xq(40, Layout::Int8), &x(5)));
    assert_invalid(BitLinear::new(&w).forward(&mut encoder, &xq(40, Layout::F16)));
    let long = ints(&mut rng(5), 1, 65_794, Bits::Eight, None).upload(context).unwrap();
    assert_invalid(BitLinear::new(&long).forward(&mut encoder, &xq(65_794, Layout::Int8)));
    for size in [0, 16, 48] {
        assert_invalid(WeightQuantizer::binary().per_group(size).quantize(&mut encoder, &x(64)));
        assert_invalid(
            WeightQuantizer::int(Bits::Four).per_group(size).quantize(&mut encoder, &x(64)),
        );
    }
    assert_invalid(WeightQuantizer::int(Bits::One).asymmetric().quantize(&mut encoder, &x(64)));
    assert!(encoder.is_empty());
    let dense = [0.0; 6 * 40];
    let float = reference::bitlinear_float(&[0.0; 6], &dense, [6, 40]);
    assert!(matches!(float, Err(Error::Length { .. })));
    let backward = reference::bitlinear_backward(&[0.0; 40], &dense, [6, 40]);
    assert!(matches!(backward, Err(Error::Length { .. })));
    assert!(matches!(
        reference::quantization_error(&[0f32; 2], &[0f32; 3]),
        Err(Error::Length { .. })
    ));
    assert!(matches!(
        reference::quantize_weights(&[0f32; 3], [2, 2], WeightQuantizer::binary()),
        Err(Error::Length { .. })
    ));
    assert!(matches!(
        reference::quantize_weights(&[0f32; 3], [2, 2], WeightQuantizer::int(Bits::Two)),
        Err(Error::Length { .. })
    ));
}

#[test]
fn gate_quantize_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let mut gate = |x: &Tensor<f32>, gain: Option<&Tensor<f32>>| {
        bitnet::ActivationQuantizer::int8()
            .layout(Layout::Int8)
            .gate(Gate::Silu)
            .norm(gain.map(|gain| (gain, 1e-5)))
            .quantize(&mut encoder, x)
            .map(|_| ())
    };
    assert_shape(gate(&unwritten(context, [2, 9]), None));
    assert_shape(gate(&unwritten(context, [2, 8]), Some(&unwritten(context, [5]))));
    assert_invalid(gate(&unwritten(context, [1, 2 << 17]), None));
    let xq = QuantizedActivations::uninit(context, 2, 5, Layout::F16).unwrap();
    assert_shape(bitnet::ActivationQuantizer::int8().gate(Gate::Relu2).norm(None).quantize_into(
        &mut encoder,
        &unwritten(context, [2, 8]),
        &xq,
    ));
    assert!(matches!(
        reference::gate_quantize(&[0.0; 5], 2, Gate::Silu, None),
        Err(Error::Length { .. })
    ));
    assert!(matches!(
        reference::gate_quantize(&[0.0; 4], 2, Gate::Silu, Some((&[1.0], 0.0))),
        Err(Error::Length { .. })
    ));
}

#[test]
fn bitlinear_add_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let w = ternary(&mut rng(36), 6, 40).upload(context).unwrap();
    let xq = |features| QuantizedActivations::uninit(context, 2, features, Layout::Int8).unwrap();
    assert_shape(BitLinear::new(&w).forward_into(
        &mut encoder,
        &xq(40),
        Out::add(&unwritten(context, [2, 5])),
    ));
    assert_shape(BitLinear::new(&w).forward_into(
        &mut encoder,
        &xq(40),
        Out::add(&unwritten(context, [3, 6])),
    ));
    assert_shape(BitLinear::new(&w).forward_into(
        &mut encoder,
        &xq(41),
        Out::add(&unwritten(context, [2, 6])),
    ));
    assert!(encoder.is_empty());
}

#[test]
fn products_refuse_a_bias_of_wrong_shape() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, row) = (unwritten(context, [2, 3]), unwritten(context, [3]));
    // `x` is [2, 3], and so there are two outputs; biases are [3].
    let (matrix, ints) = (
        ternary(&mut rng(1), 2, 3).upload(context).unwrap(),
        ints(&mut rng(1), 2, 3, Bits::Four, None).upload(context).unwrap(),
    );
    let xq = QuantizedActivations::uninit(context, 2, 3, Layout::Int8).unwrap();
    let layer = BitLinear::new(&matrix).bias(&row);
    let ints = BitLinear::new(&ints).bias(&row);
    assert_shape(layer.forward(&mut encoder, &xq));
    assert_shape(ints.forward(&mut encoder, &x));
    assert_shape(ints.forward(&mut encoder, &xq));
    // The bias is refused after the product: nothing of it is left.
    let block = bitnet::BlockFloatActivations::uninit(context, 2, 3, None);
    assert_shape(layer.forward(&mut encoder, &block.unwrap()));
    assert!(encoder.is_empty());
}

#[test]
fn layers_refuse_unsupported_combinations() {
    use ActivationType::{BlockFloat, Float};
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, gain, bias) =
        (unwritten(context, [2, 64]), unwritten(context, [64]), unwritten(context, [3]));
    let w = ternary(&mut rng(1), 3, 64).upload(context).unwrap();
    let int = ints(&mut rng(1), 3, 64, Bits::Four, None).upload(context).unwrap();
    let codes = QuantizedActivations::uninit(context, 2, 64, Layout::Int8).unwrap();
    let norm = Some((&gain, 1e-5));
    let (layer, int) = (BitLinear::new(&w), BitLinear::new(&int));
    assert_invalid(layer.norm(norm).bias(&bias).forward(&mut encoder, &x));
    assert_invalid(layer.norm(norm).activation_type(Float).forward(&mut encoder, &x));
    assert_invalid(layer.norm(norm).forward(&mut encoder, &codes));
    assert_invalid(int.norm(norm).forward(&mut encoder, &x));
    assert_invalid(layer.activation_type(BlockFloat).bias(&bias).forward(&mut encoder, &x));
    assert_invalid(int.activation_type(BlockFloat).forward(&mut encoder, &x));
    assert_invalid(int.gate(Gate::Silu).forward(&mut encoder, &x));
    assert!(encoder.is_empty());
}

#[test]
fn transforms_and_gates_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, row) = (unwritten(context, [2, 3]), unwritten(context, [3]));
    assert!(matches!(
        WeightQuantizer::absmean().per_group(24).quantize(&mut encoder, &x),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        reference::quantize_weights(&[1.0, f32::NAN], [1, 2], WeightQuantizer::absmean().per_row()),
        Err(Error::Invalid { .. })
    ));
    for block in [0, 3, 2048] {
        assert!(matches!(
            bitnet::hadamard(&x, block).forward(&mut encoder),
            Err(Error::Invalid { .. })
        ));
        assert!(matches!(reference::hadamard(&mut [1.0; 6], block), Err(Error::Invalid { .. })));
    }
    assert_shape(bitnet::hadamard(&x, 2).forward(&mut encoder));
    assert_shape(bitnet::hadamard(&x, 1).forward_into(&mut encoder, &row));
    assert!(matches!(reference::hadamard(&mut [1.0; 6], 4), Err(Error::Length { .. })));
    let (gates, dy) = (unwritten(context, [2, 6]), unwritten(context, [2, 3]));
    assert_shape(bitnet::gate(&gates, Gate::Relu2).forward_into(&mut encoder, &gates));
    for gate in [Gate::Relu2, Gate::Silu, Gate::GeluTanh] {
        let op = bitnet::gate(&gates, gate);
        assert_shape(op.backward(&mut encoder, &gates));
        assert_shape(op.backward_into(&mut encoder, &dy, &dy));
        assert_invalid(op.backward_into(&mut encoder, &dy, Out::add(&gates)));
    }
    assert_shape(
        ternary(&mut rng(1), 3, 4).upload(context).unwrap().dequantize_into(&mut encoder, &x),
    );
    assert!(encoder.is_empty());
}

#[test]
fn experts_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let w = ternary(&mut rng(9), 12, 32).upload(context).unwrap();
    let chosen = |len: usize| Tensor::<u32>::uninit(context, [len]).unwrap();
    let x = unwritten(context, [2, 32]);
    // Rows of five experts, none, and three for two tokens.
    for (experts, len) in [(5, 4), (0, 4), (3, 3)] {
        let chosen = chosen(len);
        assert_invalid(bitnet::bitlinear_experts(&x, &w, experts, &chosen).forward(&mut encoder));
    }
    assert!(encoder.is_empty());
    let narrow = unwritten(context, [2, 31]);
    assert_shape(bitnet::bitlinear_experts(&narrow, &w, 3, &chosen(4)).forward(&mut encoder));
    let y = unwritten(context, [4, 5]);
    let op = bitnet::bitlinear_experts(&x, &w, 3, &chosen(4)).forward_into(&mut encoder, &y);
    assert_shape(op);
    let weights = unwritten(context, [2, 3]);
    assert_shape(bitnet::experts_sum(&x, &weights).forward(&mut encoder));
    assert_shape(bitnet::clamp_gates(&mut encoder, &narrow, 7.0));
    for limit in [0.0, -1.0, f32::NAN] {
        assert_invalid(bitnet::clamp_gates(&mut encoder, &x, limit));
    }
    assert!(encoder.is_empty());
}
