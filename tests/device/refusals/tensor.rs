//! Ops on tensors of any shape.

use super::{assert_invalid, assert_shape, unwritten};
use bitnet_wgpu::{
    Error, Out, Result, Shape, Tensor,
    tensor::{self, Axes, CrossEntropyOptions, Linear, LinearCrossEntropyOptions, Prefix},
    transformer,
};
use support::context;

#[test]
fn tensor_ops_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, row) = (unwritten(context, [2, 3]), unwritten(context, [3]));
    assert_shape(tensor::mul(&x, &unwritten(context, [2])).forward(&mut encoder));
    assert_shape(tensor::mul(&row, &x).forward_into(&mut encoder, &row));
    assert_shape(tensor::mul(&x, &row).forward_into(&mut encoder, &unwritten(context, [3, 2])));
    assert_shape(tensor::relu2(&x).forward_into(&mut encoder, &unwritten(context, [3, 2])));
    assert_shape(tensor::relu2(&x).backward(&mut encoder, &row));
    assert_shape(tensor::relu2(&x).backward_into(&mut encoder, &x, Out::add(&row)));
    let condition = Tensor::<u32>::uninit(context, [4]).unwrap();
    assert_shape(tensor::less(&x, &row).forward_into(&mut encoder, &condition));
    assert_shape(tensor::select(&mut encoder, &condition, &x, &x));
    assert_shape(tensor::copy_into(&mut encoder, &x, &row));
    assert_shape(tensor::cast_into(&mut encoder, &x, &condition));
    assert_shape(tensor::transpose(&mut encoder, &row));
    assert_shape(tensor::permute_into(&mut encoder, &x, &[1, 0], &x));
    assert_shape(tensor::concat(&mut encoder, &[&x, &row], 0));
    let invalid = |result: Result<Tensor<f32>>| {
        assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}")
    };
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
    // The twins refuse the same, and shapes of another length.
    let of = [0f32; 6];
    assert_invalid(tensor::permute_cpu(&of, [2, 3], &[1, 1]));
    assert_invalid(tensor::slice_cpu(&of, [2, 3], 1, 1..4));
    assert_invalid(tensor::concat_cpu(&[(&of[..], [2, 3].into())], 2));
    assert_shape(tensor::concat_cpu(&[(&of[..], [2, 3].into()), (&of[..], [3, 2].into())], 0));
    assert_invalid(tensor::pad_cpu(&of, [2, 3], &[(1, 1)], 0.0));
    let too_long = [
        tensor::permute_cpu(&of, [2, 2], &[1, 0]),
        tensor::slice_cpu(&of, [usize::MAX, 2], 0, 0..1),
        tensor::concat_cpu(&[(&of[..], [2, 2].into())], 0),
        tensor::pad_cpu(&of, [2, 2], &[(0, 0), (0, 0)], 0.0),
        tensor::pad_cpu(&of, [2, 3], &[(1, usize::MAX), (0, 0)], 0.0),
    ];
    too_long
        .into_iter()
        .for_each(|refused| assert!(matches!(refused, Err(Error::Length { .. })), "{refused:?}"));
    // Nothing, however many times.
    assert!(tensor::permute_cpu::<f32>(&[], [usize::MAX, 0], &[1, 0]).unwrap().is_empty());
    assert!(tensor::concat_cpu::<f32>(&[(&[], [usize::MAX, 0].into())], 1).unwrap().is_empty());
    assert!(matches!(
        tensor::cast::<u32, i32>(&mut encoder, &condition),
        Err(Error::Invalid { .. })
    ));
    let bytes = Tensor::<i8>::uninit(context, [2, 3]).unwrap();
    assert!(matches!(tensor::transpose(&mut encoder, &bytes), Err(Error::ElementType { .. })));
    assert_shape(tensor::matmul(&mut encoder, &x, &x));
    assert_shape(tensor::matmul(&mut encoder, &row, &x));
    assert_shape(tensor::matmul_with(
        &mut encoder,
        &x,
        tensor::Side::transposed(&x),
        &tensor::Epilogue::new().bias(&row),
    ));
    assert_shape(tensor::matmul_into(&mut encoder, &x, tensor::Side::transposed(&x), &x));
    let biased = tensor::Epilogue::new().bias(&row);
    assert_shape(tensor::finish(&mut encoder, &unwritten(context, [3, 2]), &biased));
    assert_shape(tensor::finish_into(&mut encoder, &x, &biased, &unwritten(context, [3, 2])));
    for (length, bias) in [(4, &[1.0; 3][..]), (1, &[])] {
        assert!(matches!(
            tensor::finish_cpu(&vec![0.0; length], Some(bias), None),
            Err(Error::Length { .. })
        ));
    }
    assert_shape(tensor::gather(&mut encoder, &row, &condition));
    assert_shape(tensor::gather_backward(&mut encoder, &x, &condition, 5));
    assert!(matches!(tensor::gather_cpu(&[1.0f32; 5], 2, &[0]), Err(Error::Length { .. })));
    assert!(matches!(
        tensor::relu_dropout_backward_cpu(&[1.0], &[], 0.5, 1),
        Err(Error::Length { .. })
    ));
    assert!(matches!(tensor::dropout(&mut encoder, &x, 1.0, 0), Err(Error::Invalid { .. })));
    assert!(matches!(tensor::dropout(&mut encoder, &x, f32::NAN, 0), Err(Error::Invalid { .. })));
    assert_shape(tensor::relu_dropout_backward(&mut encoder, &x, &row, 0.5, 0));
    assert_shape(tensor::pad_rows(&mut encoder, &x, 2));
    assert_shape(tensor::pad_rows_into(&mut encoder, &x, &unwritten(context, [3, 4])));
    assert!(encoder.is_empty());
}

#[test]
fn reductions_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, row, words) = (
        unwritten(context, [2, 3]),
        unwritten(context, [3]),
        context.upload(&[0u32; 3], [3]).unwrap(),
    );
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
    assert_shape(tensor::prefix_sum_into(&mut encoder, &x, 1, Prefix::Inclusive, &row));
    assert!(matches!(tensor::sum_cpu(&[0f32; 3], [2, 2], [0]), Err(Error::Length { .. })));
    assert_invalid(tensor::prefix_sum(&mut encoder, &x, 2, Prefix::Inclusive));
    assert_invalid(tensor::prefix_sum_cpu(&[0f32; 4], [2, 2], 2, Prefix::Inclusive));
    assert!(matches!(
        tensor::prefix_sum_cpu(&[0f32; 3], [2, 2], 1, Prefix::Inclusive),
        Err(Error::Length { .. })
    ));
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
    let (x, row, targets) = (
        unwritten(context, [2, 3]),
        unwritten(context, [3]),
        context.upload(&[0u32; 2], [2]).unwrap(),
    );
    let plain = CrossEntropyOptions::default();
    assert_shape(tensor::softmax_into(&mut encoder, &x, &row));
    assert_shape(tensor::causal_softmax(&mut encoder, &row));
    assert_shape(tensor::masked_softmax(&mut encoder, &row, &targets));
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
    assert!(matches!(
        tensor::layer_norm_cpu(&[0.0; 3], &[1.0; 2], &[0.0; 2], 0.0),
        Err(Error::Length { .. })
    ));
    assert!(matches!(
        transformer::rms_norm_backward_cpu(&[0.0; 4], &[1.0; 2], 0.0, &[0.0; 2]),
        Err(Error::Length { .. })
    ));
    assert!(encoder.is_empty());
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
    assert_shape(tensor::matmul_int8_into(
        &mut encoder,
        &a,
        &b,
        &Tensor::uninit(context, [3, 2]).unwrap(),
    ));
    let long = of([1, 1 << 17].into());
    assert_invalid(tensor::matmul_int8(&mut encoder, &long, &long));
    assert!(encoder.is_empty());
    assert_invalid(tensor::matmul_int8_cpu(&[], &[], [0, 1 << 17, 0]));
    assert!(matches!(
        tensor::matmul_int8_cpu(&[0; 3], &[0; 4], [2, 2, 2]),
        Err(Error::Length { .. })
    ));
}

#[test]
fn linear_cross_entropy_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, w, plain) = (
        unwritten(context, [2, 3]),
        unwritten(context, [5, 3]),
        LinearCrossEntropyOptions::default(),
    );
    let (two, three) = (unwritten(context, [2]), unwritten(context, [3]));
    let of = |len: usize| context.upload(&vec![0u32; len], [len]).unwrap();
    let (targets, more, head) = (of(2), of(3), Linear { x: &x, w: &w });
    let narrow = Linear { x: &x, w: &two };
    assert_shape(tensor::linear_cross_entropy(&mut encoder, narrow, &targets, plain));
    assert_shape(tensor::linear_cross_entropy(
        &mut encoder,
        Linear { x: &w, w: &unwritten(context, [3, 5]) },
        &of(5),
        plain,
    ));
    assert_shape(tensor::linear_cross_entropy(&mut encoder, head, &more, plain));
    assert_shape(tensor::linear_cross_entropy_into(
        &mut encoder,
        head,
        &targets,
        plain,
        &three,
        &two,
    ));
    assert_shape(tensor::linear_cross_entropy_into(
        &mut encoder,
        head,
        &targets,
        plain,
        &two,
        &three,
    ));
    assert_invalid(tensor::linear_cross_entropy(&mut encoder, head, &targets, plain.chunk(0)));
    let soft = LinearCrossEntropyOptions::from(CrossEntropyOptions::default().smoothing(-0.5));
    assert_invalid(tensor::linear_cross_entropy(&mut encoder, head, &targets, soft));
    assert_shape(tensor::linear_cross_entropy_backward(
        &mut encoder,
        head,
        &targets,
        plain,
        &three,
        &two,
    ));
    assert_shape(tensor::linear_cross_entropy_backward(
        &mut encoder,
        head,
        &targets,
        plain,
        &two,
        &three,
    ));
    let (good, odd) = (Linear { x: Out::set(&x), w: Out::set(&w) }, unwritten(context, [3, 5]));
    for outs in [Linear { x: Out::set(&odd), ..good }, Linear { w: Out::set(&odd), ..good }] {
        assert_shape(tensor::linear_cross_entropy_backward_into(
            &mut encoder,
            head,
            &targets,
            plain,
            &two,
            &two,
            outs,
        ));
    }
    assert!(encoder.is_empty());
    let plain = CrossEntropyOptions::default();
    for (x, w, k, dloss) in [(5, 6, 3, 2), (6, 7, 3, 2), (0, 0, 0, 2), (6, 9, 3, 1)] {
        let (x, w) = (vec![0.0; x], vec![0.0; w]);
        let made = tensor::linear_cross_entropy_backward_cpu(
            Linear { x: &x, w: &w },
            k,
            &[0, 0],
            plain,
            &vec![0.0; dloss],
        );
        assert!(matches!(made, Err(Error::Length { .. })), "{made:?}");
    }
}
