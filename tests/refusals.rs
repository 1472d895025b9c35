//! What ops do with tensors that do not fit: a typed error where they are recorded, and nothing is recorded.

use bitnet_wgpu::{
    Bits, Capabilities, Context, DenseElement, Element, Error, IntMatrix, Out, PackedDense, PackedTernary, Result, Scales, Shape, Tensor,
    TernaryMatrix,
    bitnet::{self, Gate, Layout, QuantizationError, QuantizedActivations, QuantizedInt4, QuantizedInt8, Scheme},
    optimizer,
    tensor::{self, Axes, CrossEntropyOptions, Linear, LinearCrossEntropyOptions, Prefix},
    transformer::{
        self, Attended, AttentionShape, Draws, FlashAttentionOptions, HostKvCache, KvCache, NewTokens, Penalties, Qkv, SampleOptions, TopK,
    },
};
use support::{block_on, context, contexts, dense, ints, rng, ternary};

fn unwritten<const N: usize>(context: &Context, shape: [usize; N]) -> Tensor<f32> {
    Tensor::uninit(context, shape).unwrap()
}

#[track_caller]
fn assert_shape<T: std::fmt::Debug>(result: bitnet_wgpu::Result<T>) {
    assert!(matches!(result, Err(Error::Shape { .. })), "{result:?}");
}

#[track_caller]
fn assert_invalid<T: std::fmt::Debug>(result: bitnet_wgpu::Result<T>) {
    assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
}

#[test]
fn leading_dimensions_are_kept() {
    let context = context();
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
fn integer_weights_that_are_not_finite_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut w = vec![0.5f32; 60];
        w[17] = bad;
        assert_invalid(bitnet::quantize_weights_binary_cpu(&w, 6, 10));
        assert_invalid(bitnet::quantize_weights_binary_by_group_cpu(&w, 6, 10, None));
        assert_invalid(bitnet::quantize_weights_int_cpu(&w, 6, 10, Bits::Four, None, Scheme::Symmetric));
        for context in contexts() {
            let (mut encoder, w) = (context.encoder("test"), context.upload(&w, [6, 10]).unwrap());
            let all = [
                bitnet::quantize_weights_binary(&mut encoder, &w).unwrap(),
                bitnet::quantize_weights_binary_by_group(&mut encoder, &w, None).unwrap(),
                bitnet::quantize_weights_int(&mut encoder, &w, Bits::Four, None, Scheme::Asymmetric).unwrap(),
            ];
            encoder.submit().unwrap();
            all.into_iter().for_each(|packed| assert_invalid(block_on(packed.read())));
        }
    }
    // Finite, but no scale of its group is: 2^81 and more.
    assert_invalid(bitnet::quantize_weights_int_cpu(&[3e38f32, -3e38], 1, 2, Bits::Eight, None, Scheme::Asymmetric));
    assert_invalid(bitnet::quantize_weights_binary_cpu(&[3e38f32, -3e38], 1, 2));
}

/// What comes back from the device is what went there, and says what it is.
#[test]
fn integer_weights_are_read_back() {
    for (bits, size) in Bits::ALL.into_iter().flat_map(|bits| [(bits, None), (bits, Some(32))]) {
        let packed = ints(&mut rng(3), 5, 70, bits, size);
        let matrix = packed.upload(context()).unwrap();
        assert_eq!((matrix.rows(), matrix.columns(), matrix.bits(), matrix.group()), (5, 70, bits, size));
        assert_eq!(matrix.code_bytes(), 4 * packed.words().len());
        assert_eq!(block_on(matrix.read()).unwrap(), packed);
    }
}

#[test]
fn ops_on_integer_weights_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let w = ints(&mut rng(4), 6, 40, Bits::Two, None).upload(context).unwrap();
    let x = |columns| unwritten(context, [2, columns]);
    assert_shape(bitnet::bitlinear_int(&mut encoder, &x(41), &w));
    assert_shape(bitnet::bitlinear_int_into(&mut encoder, &x(40), &w, &x(5)));
    assert_shape(bitnet::bitlinear_int_backward(&mut encoder, &x(40), &w));
    assert_shape(bitnet::bitlinear_int_backward_into(&mut encoder, &x(6), &w, Out::add(&x(6))));
    assert_shape(bitnet::dequantize_int_into(&mut encoder, &w, &x(40)));
    assert_shape(bitnet::quantization_error(&mut encoder, &x(40), &x(41)));
    assert_shape(block_on(QuantizationError::read(&x(40))));
    let xq = |columns, layout| QuantizedActivations::uninit(context, 2, columns, layout).unwrap();
    assert_shape(bitnet::bitlinear_int_quantized::<f32>(&mut encoder, &xq(41, Layout::Int8), &w));
    assert_shape(bitnet::bitlinear_int_quantized_into(&mut encoder, &xq(40, Layout::Int8), &w, &x(5)));
    assert_invalid(bitnet::bitlinear_int_quantized::<f32>(&mut encoder, &xq(40, Layout::Half), &w));
    let long = ints(&mut rng(5), 1, 65_794, Bits::Eight, None).upload(context).unwrap();
    assert_invalid(bitnet::bitlinear_int_quantized::<f32>(&mut encoder, &xq(65_794, Layout::Int8), &long));
    for size in [0, 16, 48] {
        assert_invalid(bitnet::quantize_weights_binary_by_group(&mut encoder, &x(64), Some(size)));
        assert_invalid(bitnet::quantize_weights_int(&mut encoder, &x(64), Bits::Four, Some(size), Scheme::Symmetric));
    }
    assert_invalid(bitnet::quantize_weights_int(&mut encoder, &x(64), Bits::One, None, Scheme::Asymmetric));
    assert!(encoder.is_empty());
    let packed = ints(&mut rng(4), 6, 40, Bits::Two, None);
    assert!(matches!(bitnet::bitlinear_int_cpu(&[0.0; 6], &packed), Err(Error::Length { .. })));
    assert!(matches!(bitnet::bitlinear_int_backward_cpu(&[0.0; 40], &packed), Err(Error::Length { .. })));
    assert!(matches!(bitnet::quantization_error_cpu(&[0f32; 2], &[0f32; 3]), Err(Error::Length { .. })));
    assert!(matches!(bitnet::quantize_weights_binary_cpu(&[0f32; 3], 2, 2), Err(Error::Length { .. })));
    assert!(matches!(bitnet::quantize_weights_int_cpu(&[0f32; 3], 2, 2, Bits::Two, None, Scheme::Symmetric), Err(Error::Length { .. })));
}

/// Half a step of rounding, not one: 126.5 and 125.5 of 127 go to the even neighbour, -0.6 to -1.
#[test]
fn a_head_in_8_bits_is_rounded() {
    let table = PackedDense::from_f32(1, 6, &[127.0, 126.5, 125.5, -0.6, 0.4, -127.0]).unwrap().quantize();
    assert_eq!(table.row(0), [127.0, 126.0, 126.0, -1.0, 0.0, -127.0]);
    // Rows without columns take no bytes of the file; as many as these would take terabytes of scales.
    assert!(matches!(PackedDense::from_f32(1 << 40, 0, &[]), Err(Error::Invalid { .. })));
}

#[test]
fn embed_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let tokens = context.upload(&[0u32, 0], [2]).unwrap();
    let table = dense(&mut rng(23), DenseElement::F32, 3, 4).upload(context).unwrap();
    assert_shape(transformer::embed_into(&mut encoder, &tokens, &table, &unwritten(context, [2, 5])));
    assert_shape(transformer::embed_into(&mut encoder, &tokens, &table, &unwritten(context, [3, 4])));
    let empty = dense(&mut rng(23), DenseElement::F32, 0, 4).upload(context).unwrap();
    assert_invalid(transformer::embed(&mut encoder, &tokens, &empty));
    let ternary = |rows: usize| PackedTernary::from_values(rows, 4, &vec![1; 4 * rows], Scales::Tensor(1.0)).unwrap();
    let (table, empty) = (ternary(9).upload(context).unwrap(), ternary(0).upload(context).unwrap());
    assert_shape(transformer::embed_ternary_into(&mut encoder, &tokens, &table, &unwritten(context, [2, 5])));
    assert_shape(transformer::embed_ternary_into(&mut encoder, &tokens, &table, &unwritten(context, [3, 4])));
    assert_invalid(transformer::embed_ternary(&mut encoder, &tokens, &empty));
    let runs = Tensor::<u32>::zeros(context, [3, 2]).unwrap();
    assert_invalid(transformer::embed_ternary_next_into(&mut encoder, &tokens, &runs, &table, &unwritten(context, [2, 4])));
    assert!(encoder.is_empty());
}

#[test]
fn dense_gemv_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let w = dense(&mut rng(25), DenseElement::Int8, 70, 20).upload(context).unwrap();
    assert_shape(transformer::dense_gemv(&mut encoder, &unwritten(context, [1, 32]), &w));
    assert_shape(transformer::dense_gemv_into(&mut encoder, &unwritten(context, [2, 20]), &w, &unwritten(context, [1, 70])));
    assert_shape(transformer::dense_gemv_into(&mut encoder, &unwritten(context, [2, 20]), &w, &unwritten(context, [2, 69])));
    assert!(encoder.is_empty());
    // Its grid has tokens in the second dimension, so it does not fold.
    let mut encoder = context.restricted(|c: &mut Capabilities| c.max_workgroups = 2).encoder("test");
    let result = transformer::dense_gemv(&mut encoder, &unwritten(context, [1, 20]), &w);
    assert!(matches!(result, Err(Error::Grid { grid: [3, 1, 1], .. })), "{result:?}");
    assert!(matches!(transformer::dense_gemv_cpu(&[0.0; 3], &dense(&mut rng(25), DenseElement::F32, 2, 2)), Err(Error::Length { .. })));
}

#[test]
fn rms_norm_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, gain) = (unwritten(context, [3, 8]), unwritten(context, [8]));
    assert_shape(transformer::rms_norm_into(&mut encoder, &x, 0, &unwritten(context, [7]), 1e-5, &unwritten(context, [3, 8])));
    assert_shape(transformer::rms_norm_into(&mut encoder, &x, 0, &gain, 1e-5, &unwritten(context, [3, 7])));
    assert_shape(transformer::rms_norm_into(&mut encoder, &x, 1, &gain, 1e-5, &unwritten(context, [3, 8])));
    assert_shape(transformer::rms_norm_into(&mut encoder, &x, 4, &gain, 1e-5, &unwritten(context, [0, 8])));
    assert!(matches!(transformer::rms_norm_cpu(&[0.0; 3], &[1.0; 2], 1e-5), Err(Error::Length { .. })));
}

#[test]
fn rope_and_attention_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 6 };
    let cache = KvCache::new(context, shape, 3, 5, Element::F32).unwrap();
    let runs = |n: usize| context.upload(&vec![0u32; 2 * n], [n, 2]).unwrap();
    let qkv = |tokens: usize| unwritten(context, [tokens, shape.row()]);
    let angles = unwritten(context, [5, 3, 2]);
    let mut rope = |qkv: &Tensor<f32>, run, runs: &Tensor<u32>, angles: &Tensor<f32>| {
        let y = unwritten(context, [qkv.shape().as_matrix().0, 24]);
        let attended = transformer::attention_into(&mut encoder, qkv, &NewTokens { run, runs }, &cache, 1, &y);
        let turned = transformer::rope(&mut encoder, qkv, &NewTokens { run, runs }, angles, &cache);
        if turned.is_ok() { attended } else { turned }
    };
    rope(&qkv(2), 1, &runs(2), &angles).unwrap();
    rope(&qkv(4), 2, &runs(2), &angles).unwrap();
    assert_shape(rope(&unwritten(context, [2, shape.row() + 1]), 1, &runs(2), &angles));
    assert_shape(rope(&qkv(1), 1, &context.upload(&[0u32; 2], [2]).unwrap(), &angles));
    assert_shape(rope(&qkv(1), 1, &runs(1), &unwritten(context, [4, 3, 2])));
    assert_invalid(rope(&qkv(3), 2, &runs(1), &angles));
    assert_invalid(rope(&qkv(3), 0, &runs(3), &angles));
    assert_invalid(rope(&qkv(1), usize::MAX, &runs(3), &angles));
    assert_invalid(rope(&qkv(4), 1, &runs(4), &angles));
    let y = unwritten(context, [1, 23]);
    assert_shape(transformer::attention_into(&mut encoder, &qkv(1), &NewTokens { run: 1, runs: &runs(1) }, &cache, 1, &y));
    for (heads, kv_heads, head_dim) in [(3, 2, 8), (2, 0, 8), (0, 1, 8), (2, 1, 7), (2, 1, 0), (2, 1, 258)] {
        let shape = AttentionShape { heads, kv_heads, head_dim };
        assert_invalid(KvCache::new(context, shape, 1, 4, Element::F32));
        assert_invalid(HostKvCache::new(shape));
    }
    assert_invalid(KvCache::new(context, shape, 1, 4, Element::U32));
    for (slots, capacity) in [(usize::MAX, 4), (1, usize::MAX)] {
        let cache = KvCache::new(context, shape, slots, capacity, Element::F32);
        assert!(matches!(cache, Err(Error::TooLarge { .. })), "{cache:?}");
    }
    let host = HostKvCache::new(shape).unwrap();
    assert_invalid(transformer::attention_cpu(&vec![0.0; shape.row()], &host));
    assert!(matches!(transformer::attention_cpu(&[0.0; 3], &host), Err(Error::Length { .. })));
}

#[test]
fn top_k_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let logits = unwritten(context, [2, 9]);
    assert_invalid(transformer::top_k(&mut encoder, &logits, 0));
    assert_invalid(transformer::top_k(&mut encoder, &logits, TopK::MAX + 1));
    let top = |rows| TopK { logits: unwritten(context, [2, 3]), ids: context.upload(&vec![0u32; rows * 3], [rows, 3]).unwrap() };
    assert_shape(transformer::top_k_into(&mut encoder, &logits, &top(1)));
    let top = TopK { logits: unwritten(context, [2, 2]), ..top(2) };
    assert_shape(transformer::top_k_into(&mut encoder, &logits, &top));
    assert!(encoder.is_empty());
}

#[test]
fn gate_quantize_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let mut gate = |x: &Tensor<f32>, gain: Option<&Tensor<f32>>| {
        support::gate_quantize_as(&mut encoder, x, Gate::Silu, gain.map(|gain| (gain, 1e-5)), Layout::Int8).map(|_| ())
    };
    assert_shape(gate(&unwritten(context, [2, 9]), None));
    assert_shape(gate(&unwritten(context, [2, 8]), Some(&unwritten(context, [5]))));
    assert_invalid(gate(&unwritten(context, [1, 2 << 17]), None));
    let xq = QuantizedActivations::uninit(context, 2, 5, Layout::Half).unwrap();
    assert_shape(bitnet::gate_quantize_into(&mut encoder, &unwritten(context, [2, 8]), Gate::Relu2, None, &xq));
    assert!(matches!(bitnet::gate_quantize_cpu(&[0.0; 5], 2, Gate::Silu, None), Err(Error::Length { .. })));
    assert!(matches!(bitnet::gate_quantize_cpu(&[0.0; 4], 2, Gate::Silu, Some((&[1.0], 0.0))), Err(Error::Length { .. })));
}

#[test]
fn bitlinear_add_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let w = ternary(&mut rng(36), 6, 40).upload(context).unwrap();
    let xq = |features| QuantizedActivations::uninit(context, 2, features, Layout::Int8).unwrap();
    assert_shape(bitnet::bitlinear_quantized_into(&mut encoder, &xq(40), &w, Out::add(&unwritten(context, [2, 5]))));
    assert_shape(bitnet::bitlinear_quantized_into(&mut encoder, &xq(40), &w, Out::add(&unwritten(context, [3, 6]))));
    assert_shape(bitnet::bitlinear_quantized_into(&mut encoder, &xq(41), &w, Out::add(&unwritten(context, [2, 6]))));
    assert!(encoder.is_empty());
}

#[test]
fn tensor_ops_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, row) = (unwritten(context, [2, 3]), unwritten(context, [3]));
    assert_shape(tensor::mul(&mut encoder, &x, &unwritten(context, [2])));
    assert_shape(tensor::mul_into(&mut encoder, &row, &x, &row));
    assert_shape(tensor::mul_into(&mut encoder, &x, &row, &unwritten(context, [3, 2])));
    assert_shape(tensor::relu2_into(&mut encoder, &x, &unwritten(context, [3, 2])));
    assert_shape(tensor::relu2_backward(&mut encoder, &x, &row));
    assert_shape(tensor::relu2_backward_into(&mut encoder, &x, &x, Out::add(&row)));
    let condition = Tensor::<u32>::uninit(context, [4]).unwrap();
    assert_shape(tensor::less_into(&mut encoder, &x, &row, &condition));
    assert_shape(tensor::select(&mut encoder, &condition, &x, &x));
    assert_shape(tensor::copy_into(&mut encoder, &x, &row));
    assert_shape(tensor::cast_into(&mut encoder, &x, &condition));
    assert_shape(tensor::transpose(&mut encoder, &row));
    assert_shape(tensor::permute_into(&mut encoder, &x, &[1, 0], &x));
    assert_shape(tensor::concat(&mut encoder, &[&x, &row], 0));
    let invalid = |result: Result<Tensor<f32>>| assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
    invalid(tensor::permute(&mut encoder, &x, &[0]));
    invalid(tensor::permute(&mut encoder, &x, &[1, 1]));
    invalid(tensor::slice(&mut encoder, &x, 1, 1..4));
    invalid(tensor::slice(&mut encoder, &x, 2, 0..1));
    // Both ends within it, but the wrong way round.
    invalid(tensor::slice(&mut encoder, &x, 0, std::ops::Range { start: 2, end: 1 }));
    invalid(tensor::concat(&mut encoder, &[], 0));
    invalid(tensor::concat(&mut encoder, &[&x], 2));
    invalid(tensor::pad(&mut encoder, &x, &[(1, 1)], 0.0));
    assert!(tensor::pad(&mut encoder, &x, &[(1, usize::MAX), (0, 0)], 0.0).is_err());
    assert!(matches!(tensor::cast::<u32, i32>(&mut encoder, &condition), Err(Error::Invalid { .. })));
    let bytes = Tensor::<i8>::uninit(context, [2, 3]).unwrap();
    assert!(matches!(tensor::transpose(&mut encoder, &bytes), Err(Error::ElementType { .. })));
    let angles = unwritten(context, [4, 2, 2]);
    let heads = unwritten(context, [3, 2, 4]);
    assert_shape(transformer::rotate(&mut encoder, &x, &angles, 0));
    assert_shape(transformer::rotate(&mut encoder, &heads, &angles, 2));
    assert_shape(transformer::rotate(&mut encoder, &heads, &angles, usize::MAX));
    assert_shape(transformer::rotate_backward(&mut encoder, &heads, &unwritten(context, [4, 3, 2]), 0));
    assert!(matches!(bitnet::quantize_weights_by_group(&mut encoder, &x, 24), Err(Error::Invalid { .. })));
    assert!(matches!(bitnet::quantize_weights_by_row_cpu(&[1.0, f32::NAN], 1, 2), Err(Error::Invalid { .. })));
    for block in [0, 3, 2048] {
        assert!(matches!(bitnet::hadamard(&mut encoder, &x, block), Err(Error::Invalid { .. })));
        assert!(matches!(bitnet::hadamard_cpu(&mut [1.0; 6], block), Err(Error::Invalid { .. })));
    }
    assert_shape(bitnet::hadamard(&mut encoder, &x, 2));
    assert_shape(bitnet::hadamard_into(&mut encoder, &x, 1, &row));
    assert!(matches!(bitnet::hadamard_cpu(&mut [1.0; 6], 4), Err(Error::Length { .. })));
    assert_shape(tensor::matmul(&mut encoder, &x, &x));
    assert_shape(tensor::matmul(&mut encoder, &row, &x));
    assert_shape(tensor::matmul_with(&mut encoder, &x, tensor::Side::transposed(&x), &tensor::Epilogue::new().bias(&row)));
    assert_shape(tensor::matmul_into(&mut encoder, &x, tensor::Side::transposed(&x), &x));
    // `x` is [2, 3], and so there are two outputs; biases are [3].
    let (matrix, ints) =
        (ternary(&mut rng(1), 2, 3).upload(context).unwrap(), ints(&mut rng(1), 2, 3, Bits::Four, None).upload(context).unwrap());
    let xq = QuantizedActivations::uninit(context, 2, 3, Layout::Int8).unwrap();
    let biased = tensor::Epilogue::new().bias(&row);
    assert_shape(bitnet::bitlinear_quantized_with(&mut encoder, &xq, &matrix, &biased));
    assert_shape(bitnet::bitlinear_int_with(&mut encoder, &x, &ints, &biased));
    assert_shape(bitnet::bitlinear_int_quantized_with(&mut encoder, &xq, &ints, &biased));
    assert_shape(tensor::finish(&mut encoder, &unwritten(context, [3, 2]), &biased));
    assert_shape(tensor::finish_into(&mut encoder, &x, &biased, &unwritten(context, [3, 2])));
    for (length, bias) in [(4, &[1.0; 3][..]), (1, &[])] {
        assert!(matches!(tensor::finish_cpu(&vec![0.0; length], Some(bias), None), Err(Error::Length { .. })));
    }
    assert_shape(tensor::gather(&mut encoder, &row, &condition));
    assert_shape(tensor::gather_backward(&mut encoder, &x, &condition, 5));
    assert!(matches!(tensor::dropout(&mut encoder, &x, 1.0, 0), Err(Error::Invalid { .. })));
    assert!(matches!(tensor::dropout(&mut encoder, &x, f32::NAN, 0), Err(Error::Invalid { .. })));
    assert_shape(tensor::relu_dropout_backward(&mut encoder, &x, &row, 0.5, 0));
    let state = optimizer::AdamWState::new(context, [2, 3]).unwrap();
    assert_shape(optimizer::adamw(&mut encoder, optimizer::AdamW::new(0.1), 1, &x, &row, &state));
    assert!(matches!(optimizer::adamw(&mut encoder, optimizer::AdamW::new(0.1), 0, &x, &x, &state), Err(Error::Invalid { .. })));
    assert_shape(optimizer::sgd(&mut encoder, optimizer::Sgd::new(0.1), &x, &x, &row));
    assert_shape(optimizer::lion(&mut encoder, optimizer::Lion::new(0.1), &x, &row, &x));
    assert_shape(optimizer::ema(&mut encoder, &x, &row, 0.9));
    assert!(matches!(optimizer::clip_gradients(&mut encoder, &[], 1.0), Err(Error::Invalid { .. })));
    assert!(matches!(optimizer::clip_gradients(&mut encoder, &[&x], 0.0), Err(Error::Invalid { .. })));
    assert_shape(tensor::pad_rows(&mut encoder, &x, 2));
    assert_shape(tensor::pad_rows_into(&mut encoder, &x, &unwritten(context, [3, 4])));
    assert_shape(bitnet::relu2_gate_into(&mut encoder, &unwritten(context, [2, 6]), &unwritten(context, [2, 6])));
    assert_shape(bitnet::dequantize_weights_into(&mut encoder, &ternary(&mut rng(1), 3, 4).upload(context).unwrap(), &x));
    assert!(encoder.is_empty());
}

#[test]
fn reductions_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, row, words) = (unwritten(context, [2, 3]), unwritten(context, [3]), context.upload(&[0u32; 3], [3]).unwrap());
    assert_invalid(tensor::sum(&mut encoder, &x, [2]));
    assert_invalid(tensor::argmin(&mut encoder, &x, [0, 200]));
    assert_shape(tensor::mean_into(&mut encoder, &x, [1], &row));
    assert_shape(tensor::max_into(&mut encoder, &x, Axes::ALL, &row));
    assert_shape(tensor::argmax_into(&mut encoder, &x, [1], &words));
    assert_shape(tensor::sum_to(&mut encoder, &x, [2]));
    assert_shape(tensor::sum_to(&mut encoder, &row, [2, 3]));
    assert_shape(tensor::variance_into(&mut encoder, &x, [1], 0, Out::add(&row)));
    assert_shape(tensor::variance_backward(&mut encoder, &x, [1], 0, &row));
    assert_shape(tensor::norm_backward(&mut encoder, &x, [0], &row, &x));
    assert_shape(tensor::norm_backward_into(&mut encoder, &x, [0], &row, &row, &row));
    assert_shape(tensor::max_backward::<f32>(&mut encoder, &words, &row, [1], [2, 3]));
    assert_shape(tensor::prefix_sum_into(&mut encoder, &x, Prefix::Inclusive, &row));
    assert!(matches!(tensor::sum_cpu(&[0f32; 3], [2, 2], [0]), Err(Error::Length { .. })));
    assert!(matches!(tensor::prefix_sum_cpu(&[0f32; 3], 2, Prefix::Inclusive), Err(Error::Length { .. })));
    assert!(encoder.is_empty());
    // Both forms of the result's shape are taken, and sums of one are sums of both.
    tensor::sum_into(&mut encoder, &x, [1], &unwritten(context, [2])).unwrap();
    tensor::sum_into(&mut encoder, &x, [1], &unwritten(context, [2, 1])).unwrap();
    assert_eq!(encoder.len(), 2);
}

#[test]
fn softmax_losses_and_norms_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, row, targets) = (unwritten(context, [2, 3]), unwritten(context, [3]), context.upload(&[0u32; 2], [2]).unwrap());
    let plain = CrossEntropyOptions::default();
    assert_shape(tensor::softmax_into(&mut encoder, &x, &row));
    assert_shape(tensor::masked_softmax(&mut encoder, &row));
    assert_shape(tensor::softmax_backward(&mut encoder, &x, &row));
    assert_shape(tensor::log_softmax_backward_into(&mut encoder, &x, &x, &row));
    assert_shape(tensor::cross_entropy(&mut encoder, &row, &targets, plain));
    assert_shape(tensor::cross_entropy_into(&mut encoder, &x, &targets, plain, &row));
    assert_shape(tensor::cross_entropy_backward(&mut encoder, &x, &targets, plain, &row));
    assert_invalid(tensor::cross_entropy(&mut encoder, &x, &targets, plain.smoothing(1.5)));
    assert_invalid(tensor::cross_entropy(&mut encoder, &x, &targets, plain.smoothing(f32::NAN)));
    let two = unwritten(context, [2]);
    assert_shape(tensor::layer_norm(&mut encoder, &x, &two, &row, 0.0));
    assert_shape(tensor::layer_norm(&mut encoder, &x, &row, &two, 0.0));
    assert_shape(tensor::layer_norm_backward(&mut encoder, &x, &two, 0.0, &x));
    assert_shape(tensor::layer_norm_backward(&mut encoder, &x, &row, 0.0, &row));
    assert_shape(transformer::rms_norm_backward(&mut encoder, &x, &row, 0.0, &row));
    assert!(matches!(tensor::layer_norm_cpu(&[0.0; 3], &[1.0; 2], &[0.0; 2], 0.0), Err(Error::Length { .. })));
    assert!(matches!(transformer::rms_norm_backward_cpu(&[0.0; 4], &[1.0; 2], 0.0, &[0.0; 2]), Err(Error::Length { .. })));
    assert!(encoder.is_empty());
}

#[test]
fn flash_attention_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let plain = FlashAttentionOptions::default();
    let (q, kv, y) = (unwritten(context, [4, 3, 8]), unwritten(context, [2, 3, 8]), unwritten(context, [4, 3, 8]));
    let (good, lse) = (Qkv { q: &q, k: &kv, v: &kv }, unwritten(context, [4, 3]));
    // Heads, tokens, head_dim, batch, rank; and a width that no kernel has.
    for shape in [[3, 3, 8], [0, 3, 8], [8, 3, 8], [2, 2, 8], [2, 3, 7]] {
        let odd = unwritten(context, shape);
        assert_shape(transformer::flash_attention(&mut encoder, Qkv { k: &odd, v: &odd, ..good }, plain));
        assert_shape(transformer::flash_attention(&mut encoder, Qkv { v: &odd, ..good }, plain));
    }
    let (batch, flat) = (unwritten(context, [2, 2, 3, 8]), unwritten(context, [3, 8]));
    assert_shape(transformer::flash_attention(&mut encoder, Qkv { k: &batch, v: &batch, ..good }, plain));
    assert_shape(transformer::flash_attention(&mut encoder, Qkv { q: &flat, ..good }, plain));
    for width in [0, 257] {
        let odd = unwritten(context, [2, 3, width]);
        assert_shape(transformer::flash_attention(&mut encoder, Qkv { q: &odd, k: &odd, v: &odd }, plain));
    }
    let short = unwritten(context, [4, 2]);
    assert_shape(transformer::flash_attention_into(&mut encoder, good, plain, Attended { y: Out::set(&kv), lse: &lse }));
    assert_shape(transformer::flash_attention_into(&mut encoder, good, plain, Attended { y: Out::set(&y), lse: &short }));
    let attended = Attended { y: y.clone(), lse };
    let shorter = Attended { y: y.clone(), lse: short };
    assert_shape(transformer::flash_attention_backward(&mut encoder, good, &shorter, &y, plain));
    assert_shape(transformer::flash_attention_backward(&mut encoder, good, &Attended { y: kv.clone(), ..attended.clone() }, &y, plain));
    assert_shape(transformer::flash_attention_backward(&mut encoder, good, &attended, &kv, plain));
    for odd in [0, 1, 2] {
        let [q, k, v] = [0, 1, 2].map(|i| Out::set(if (i == odd) == (i == 0) { &kv } else { &y }));
        assert_shape(transformer::flash_attention_backward_into(&mut encoder, good, &attended, &y, plain, Qkv { q, k, v }));
    }
    assert!(encoder.is_empty());
    let bad = |qkv: Qkv<&[f32]>, dim| assert!(matches!(transformer::flash_attention_cpu(qkv, dim, plain), Err(Error::Length { .. })));
    bad(Qkv { q: &[0.0; 4], k: &[0.0; 4], v: &[0.0; 6] }, 2);
    bad(Qkv { q: &[0.0; 3], k: &[0.0; 3], v: &[0.0; 3] }, 2);
    bad(Qkv { q: &[], k: &[], v: &[] }, 0);
    let (four, qkv) = (vec![0.0; 4], Qkv { q: &[0.0; 4][..], k: &[0.0; 4], v: &[0.0; 4] });
    let odd = transformer::flash_attention_backward_cpu(qkv, &Attended { y: four.clone(), lse: vec![0.0; 3] }, &four, 2, plain);
    assert!(matches!(odd, Err(Error::Length { .. })), "{odd:?}");
}

#[test]
fn matmul_int8_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let of = |shape: Shape| Tensor::<i8>::uninit(context, shape).unwrap();
    let (a, b, row) = (of([2, 5].into()), of([3, 5].into()), of([5].into()));
    assert_shape(tensor::matmul_int8(&mut encoder, &a, &of([5, 3].into())));
    assert_shape(tensor::matmul_int8(&mut encoder, &row, &b));
    assert_shape(tensor::matmul_int8(&mut encoder, &a, &row));
    assert_shape(tensor::matmul_int8(&mut encoder, &of([2, 2, 5].into()), &of([3, 3, 5].into())));
    assert_shape(tensor::matmul_int8_into(&mut encoder, &a, &b, &Tensor::uninit(context, [3, 2]).unwrap()));
    let long = of([1, 1 << 17].into());
    assert_invalid(tensor::matmul_int8(&mut encoder, &long, &long));
    assert!(encoder.is_empty());
    assert_invalid(tensor::matmul_int8_cpu(&[], &[], [0, 1 << 17, 0]));
    assert!(matches!(tensor::matmul_int8_cpu(&[0; 3], &[0; 4], [2, 2, 2]), Err(Error::Length { .. })));
}

#[test]
fn linear_cross_entropy_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, w, plain) = (unwritten(context, [2, 3]), unwritten(context, [5, 3]), LinearCrossEntropyOptions::default());
    let (two, three) = (unwritten(context, [2]), unwritten(context, [3]));
    let of = |len: usize| context.upload(&vec![0u32; len], [len]).unwrap();
    let (targets, more, head) = (of(2), of(3), Linear { x: &x, w: &w });
    let narrow = Linear { x: &x, w: &two };
    assert_shape(tensor::linear_cross_entropy(&mut encoder, narrow, &targets, plain));
    assert_shape(tensor::linear_cross_entropy(&mut encoder, Linear { x: &w, w: &unwritten(context, [3, 5]) }, &of(5), plain));
    assert_shape(tensor::linear_cross_entropy(&mut encoder, head, &more, plain));
    assert_shape(tensor::linear_cross_entropy_into(&mut encoder, head, &targets, plain, &three, &two));
    assert_shape(tensor::linear_cross_entropy_into(&mut encoder, head, &targets, plain, &two, &three));
    assert_invalid(tensor::linear_cross_entropy(&mut encoder, head, &targets, plain.chunk(0)));
    let soft = LinearCrossEntropyOptions::from(CrossEntropyOptions::default().smoothing(-0.5));
    assert_invalid(tensor::linear_cross_entropy(&mut encoder, head, &targets, soft));
    assert_shape(tensor::linear_cross_entropy_backward(&mut encoder, head, &targets, plain, &three, &two));
    assert_shape(tensor::linear_cross_entropy_backward(&mut encoder, head, &targets, plain, &two, &three));
    let (good, odd) = (Linear { x: Out::set(&x), w: Out::set(&w) }, unwritten(context, [3, 5]));
    for outs in [Linear { x: Out::set(&odd), ..good }, Linear { w: Out::set(&odd), ..good }] {
        assert_shape(tensor::linear_cross_entropy_backward_into(&mut encoder, head, &targets, plain, &two, &two, outs));
    }
    assert!(encoder.is_empty());
    let plain = CrossEntropyOptions::default();
    for (x, w, k, dloss) in [(5, 6, 3, 2), (6, 7, 3, 2), (0, 0, 0, 2), (6, 9, 3, 1)] {
        let (x, w) = (vec![0.0; x], vec![0.0; w]);
        let made = tensor::linear_cross_entropy_backward_cpu(Linear { x: &x, w: &w }, k, &[0, 0], plain, &vec![0.0; dloss]);
        assert!(matches!(made, Err(Error::Length { .. })), "{made:?}");
    }
}

#[test]
fn quantisers_of_weights_refuse_matrices_that_do_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let w = unwritten(context, [2, 3]);
    let ternary = |rows, group| TernaryMatrix::uninit(context, rows, 3, group).unwrap();
    let ints = |rows, bits, group| IntMatrix::uninit(context, rows, 3, bits, group).unwrap();
    let groups = ternary(2, Some(16));
    assert_shape(bitnet::quantize_weights_into(&mut encoder, &w, &ternary(3, None)));
    assert_invalid(bitnet::quantize_weights_into(&mut encoder, &w, &groups));
    assert_shape(bitnet::quantize_weights_by_matrix_into(&mut encoder, &w, &ternary(3, None)));
    assert_invalid(bitnet::quantize_weights_by_matrix_into(&mut encoder, &w, &groups));
    assert_shape(bitnet::quantize_weights_by_row_into(&mut encoder, &w, &ternary(3, None)));
    assert_invalid(bitnet::quantize_weights_by_row_into(&mut encoder, &w, &groups));
    assert_shape(bitnet::quantize_weights_by_group_into(&mut encoder, &w, &ternary(3, Some(16))));
    assert_invalid(bitnet::quantize_weights_by_group_into(&mut encoder, &w, &ternary(2, None)));
    assert_shape(bitnet::quantize_weights_binary_into(&mut encoder, &w, &ints(3, Bits::One, None)));
    assert_invalid(bitnet::quantize_weights_binary_into(&mut encoder, &w, &ints(2, Bits::One, Some(32))));
    assert_invalid(bitnet::quantize_weights_binary_into(&mut encoder, &w, &ints(2, Bits::Two, None)));
    assert_shape(bitnet::quantize_weights_binary_by_group_into(&mut encoder, &w, &ints(3, Bits::One, Some(32))));
    assert_invalid(bitnet::quantize_weights_binary_by_group_into(&mut encoder, &w, &ints(2, Bits::Two, Some(32))));
    assert_shape(bitnet::quantize_weights_int_into(&mut encoder, &w, Scheme::Symmetric, &ints(3, Bits::Two, None)));
    assert_invalid(bitnet::quantize_weights_int_into(&mut encoder, &w, Scheme::Symmetric, &ints(2, Bits::One, None)));
    assert!(encoder.is_empty());
    for size in [0, 8, 17] {
        assert_invalid(TernaryMatrix::uninit(context, 2, 3, Some(size)));
        assert_invalid(IntMatrix::uninit(context, 2, 3, Bits::Four, Some(size)));
    }
    for (length, stack) in [(5, [1, 2, 3]), (0, [usize::MAX, 2, 3])] {
        let made = bitnet::quantize_weights_by_matrix_cpu(&vec![0.0f32; length], stack);
        assert!(matches!(made, Err(Error::Length { .. })), "{made:?}");
    }
    assert_invalid(bitnet::quantize_weights_by_matrix_cpu(&[1.0, f32::NAN], [2, 1, 1]));
    assert_invalid(bitnet::quantize_weights_by_matrix_cpu::<f32>(&[], [usize::MAX, 2, 0]));
}

#[test]
fn quantisers_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, other, row) = (unwritten(context, [2, 3]), unwritten(context, [3, 2]), unwritten(context, [3]));
    let one = unwritten(context, []);
    for lambda in [-0.1, 1.1, f32::NAN] {
        assert_invalid(bitnet::fake_quantize_activations(&mut encoder, &x, lambda));
        assert_invalid(bitnet::fake_quantize_weights(&mut encoder, &x, lambda));
        assert_invalid(bitnet::rms_norm_fake_quantize(&mut encoder, &x, &row, 1e-5, lambda));
        assert_invalid(bitnet::fake_quantize_activations_cpu(&[0.0f32; 6], 2, 3, lambda));
        assert_invalid(bitnet::fake_quantize_weights_cpu(&[0.0f32; 6], lambda));
        assert_invalid(bitnet::rms_norm_fake_quantize_cpu(&[0.0f32; 6], 2, &[1.0; 3], 1e-5, lambda));
    }
    assert_shape(bitnet::fake_quantize_activations_into(&mut encoder, &x, 1.0, &other));
    assert_shape(bitnet::fake_quantize_weights_into(&mut encoder, &x, 1.0, &other, &one));
    assert_shape(bitnet::fake_quantize_weights_into(&mut encoder, &x, 1.0, &unwritten(context, [2, 3]), &row));
    assert_shape(bitnet::fake_quantize_backward(&mut encoder, &x, &unwritten(context, [2]), (-1.0, 1.0), &x));
    assert_shape(bitnet::fake_quantize_backward(&mut encoder, &x, &one, (-1.0, 1.0), &other));
    assert_shape(bitnet::fake_quantize_backward_into(&mut encoder, &x, &one, (-1.0, 1.0), &x, &other));
    assert_shape(bitnet::rms_norm_fake_quantize(&mut encoder, &x, &one, 1e-5, 1.0));
    assert_shape(bitnet::rms_norm_fake_quantize_into(&mut encoder, &x, &row, 1e-5, 1.0, &other));
    for range in [(1.0, -1.0), (f32::NAN, 1.0), (0.0, f32::INFINITY)] {
        assert_invalid(bitnet::quantize_activations_static(&mut encoder, &x, range));
        assert_invalid(bitnet::quantize_activations_static_cpu(&[0.0f32], range));
    }
    let codes = Tensor::<i8>::uninit(context, [2, 3]).unwrap();
    let int8 = |scales: &Tensor<f32>, zeros: Option<usize>| QuantizedInt8 {
        codes: codes.clone(),
        scales: scales.clone(),
        zero_points: zeros.map(|zeros| Tensor::uninit(context, [zeros]).unwrap()),
    };
    assert_shape(bitnet::dequantize_int8_into(&mut encoder, &int8(&one, None), &other));
    assert_shape(bitnet::dequantize_int8::<f32>(&mut encoder, &int8(&row, None)));
    assert_shape(bitnet::dequantize_int8::<f32>(&mut encoder, &int8(&unwritten(context, [2]), Some(1))));
    // Outputs of the caller: of another shape, with scales that are not made, without zero points that are.
    let two = unwritten(context, [2]);
    assert_shape(bitnet::quantize_activations_by_tensor_into(&mut encoder, &x, &int8(&two, None)));
    assert_shape(bitnet::quantize_activations_by_tensor_into(&mut encoder, &x, &int8(&one, Some(1))));
    assert_shape(bitnet::quantize_activations_static_into(&mut encoder, &x, (0.0, 1.0), &int8(&two, Some(2))));
    assert_invalid(bitnet::quantize_activations_static_into(&mut encoder, &x, (0.0, 1.0), &int8(&one, None)));
    assert_shape(bitnet::quantize_activations_with_zero_point_into(&mut encoder, &x, &int8(&two, Some(1))));
    assert_shape(bitnet::quantize_activations_with_zero_point_into(&mut encoder, &x, &int8(&one, Some(2))));
    assert_invalid(bitnet::quantize_activations_with_zero_point_into(&mut encoder, &x, &int8(&two, None)));
    assert_shape(bitnet::quantize_gradients_into(&mut encoder, &x, 1, &int8(&one, None)));
    assert_invalid(bitnet::quantize_gradients_into(&mut encoder, &x, 1, &int8(&two, Some(2))));
    assert_shape(bitnet::quantize_gradients_into(&mut encoder, &other, 1, &int8(&row, None)));
    assert_shape(bitnet::quantize_activations_4bit_into(&mut encoder, &x, &QuantizedInt4::uninit(context, [3, 2]).unwrap()));
    assert_shape(tensor::dropout_into(&mut encoder, &x, 0.5, 1, &other));
    assert_shape(tensor::relu_dropout_into(&mut encoder, &x, 0.5, 1, &other));
    assert_shape(tensor::relu_dropout_backward_into(&mut encoder, &x, &x, 0.5, 1, &other));
    assert_invalid(tensor::dropout_into(&mut encoder, &x, 1.0, 1, &unwritten(context, [2, 3])));
    assert!(encoder.is_empty());
    let int4 = bitnet::quantize_activations_4bit(&mut encoder, &x).unwrap();
    assert_shape(bitnet::dequantize_int4_into(&mut encoder, &int4, &other));
    let length = |result: Result<()>| assert!(matches!(result, Err(Error::Length { .. })), "{result:?}");
    length(bitnet::fake_quantize_activations_cpu(&[0.0f32; 5], 2, 3, 1.0).map(drop));
    length(bitnet::rms_norm_fake_quantize_cpu(&[0.0f32; 5], 2, &[1.0; 3], 1e-5, 1.0).map(drop));
    length(bitnet::quantize_gradients_cpu(&[0.0f32; 5], 2, 3, 1).map(drop));
    length(bitnet::quantize_activations_with_zero_point_cpu(&[0.0f32; 5], 2, 3).map(drop));
    length(bitnet::quantize_activations_4bit_cpu(&[0.0f32; 5], usize::MAX, 3).map(drop));
}

#[test]
fn choices_of_tokens_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (logits, list) = (unwritten(context, [2, 9]), |len: usize| Tensor::<u32>::uninit(context, [len]).unwrap());
    let table = |columns: usize| Tensor::<u32>::uninit(context, [2, columns]).unwrap();
    let (runs, tokens, options) = (table(2), list(2), SampleOptions::default());
    let (new, draws) = (NewTokens { run: 1, runs: &runs }, Draws::new(context, &[(options, 1), (options, 2)]).unwrap());
    assert_shape(transformer::sample(&mut encoder, &logits, &NewTokens { run: 1, runs: &list(2) }, &draws));
    // Rows that are not as many of each run, or more than it has tokens.
    let (one, three) = (Tensor::uninit(context, [1, 2]).unwrap(), Tensor::uninit(context, [3, 2]).unwrap());
    assert_invalid(transformer::sample(&mut encoder, &logits, &NewTokens { run: 2, runs: &three }, &draws));
    assert_invalid(transformer::sample(&mut encoder, &logits, &NewTokens { run: 1, runs: &one }, &draws));
    assert_invalid(transformer::sample(&mut encoder, &logits, &NewTokens { run: 0, ..new }, &draws));
    assert_invalid(transformer::sample(&mut encoder, &logits, &new, &Draws::new(context, &[]).unwrap()));
    assert_shape(transformer::sample_into(&mut encoder, &logits, &new, &draws, &table(1)));
    let wrong =
        [options.temperature(f32::NAN), options.temperature(-1.0), options.top_p(1.1), options.min_p(-0.1), options.top_p(f32::NAN)];
    for wrong in wrong {
        assert_invalid(Draws::new(context, &[(options, 1), (wrong, 1)]));
        assert_invalid(transformer::sample_cpu(&[0.0], 0, 0, &wrong));
    }
    let (counts, biases, none) = (table(9), unwritten(context, [2, 9]), Penalties::NONE);
    let penalties = Penalties::upload(context, &[none; 2]).unwrap();
    assert_shape(transformer::penalize(&mut encoder, &logits, &list(3), &new, &counts, &biases, &penalties));
    assert_shape(transformer::penalize(&mut encoder, &logits, &tokens, &new, &table(8), &biases, &penalties));
    for biases in [unwritten(context, [2, 8]), unwritten(context, [3, 9]), unwritten(context, [9])] {
        assert_shape(transformer::penalize(&mut encoder, &logits, &tokens, &new, &counts, &biases, &penalties));
    }
    assert_shape(transformer::penalize(&mut encoder, &logits, &tokens, &new, &counts, &biases, &unwritten(context, [1, 4])));
    for wrong in [Penalties::new(0.0, 0.0, 0.0), Penalties::new(1.0, f32::NAN, 0.0), Penalties::new(1.0, 0.0, f32::INFINITY)] {
        assert_invalid(Penalties::upload(context, &[none, wrong]));
    }
    let (twice, empty) = (NewTokens { run: 2, runs: &one }, Tensor::uninit(context, [0, 9]).unwrap());
    assert_invalid(transformer::penalize(&mut encoder, &logits, &tokens, &twice, &counts, &biases, &penalties));
    assert_invalid(transformer::penalize(&mut encoder, &logits, &tokens, &new, &empty, &biases, &penalties));
    assert_invalid(transformer::penalize_cpu(&mut [0.0; 3], 0, &mut [0; 2], &[0.0; 3], &none));
    assert!(encoder.is_empty());
}

/// Codes, scales and zero points come back as the twins make them, with leading dimensions.
#[test]
fn quantised_numbers_are_read() {
    let context = context();
    let x: Vec<f32> = (0..66).map(|i| (i as f32 * 0.7).sin() * (1 + i / 11) as f32).collect();
    let mut encoder = context.encoder("test");
    let tensor = context.upload(&x, [2, 3, 11]).unwrap();
    let affine = bitnet::quantize_activations_with_zero_point(&mut encoder, &tensor).unwrap();
    let gradients = bitnet::quantize_gradients(&mut encoder, &tensor, 5).unwrap();
    let few = bitnet::quantize_activations_4bit(&mut encoder, &tensor).unwrap();
    let y = bitnet::dequantize_int4::<f32>(&mut encoder, &few).unwrap();
    encoder.submit().unwrap();
    assert_eq!((affine.codes.shape(), affine.scales.shape(), y.shape()), ([2, 3, 11].into(), [6].into(), [2, 3, 11].into()));
    assert_eq!(block_on(affine.read()).unwrap(), bitnet::quantize_activations_with_zero_point_cpu(&x, 6, 11).unwrap());
    assert_eq!(block_on(gradients.read()).unwrap(), bitnet::quantize_gradients_cpu(&x, 6, 11, 5).unwrap());
    let twin = bitnet::quantize_activations_4bit_cpu(&x, 6, 11).unwrap();
    assert_eq!((block_on(few.read()).unwrap(), block_on(y.read()).unwrap()), (twin.clone(), twin.dequantize()));
}
