//! Ops on tensors of any shape.

use super::{assert_invalid, assert_shape, unwritten};
use bitnet_wgpu::{
    Error, Out, Result, Shape, Tensor, reference,
    tensor::{self, Axes, LayerNorm, LinearGradients, LinearLoss},
    transformer::RmsNorm,
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
    assert_shape(tensor::select(&condition, &x, &x).forward(&mut encoder));
    assert_shape(tensor::copy(&x).forward_into(&mut encoder, &row));
    assert_shape(tensor::cast(&x).forward_into(&mut encoder, &condition));
    assert_shape(tensor::transpose(&row).forward(&mut encoder));
    assert_shape(tensor::permute(&x, &[1, 0]).forward_into(&mut encoder, &x));
    assert_shape(tensor::concat(&[&x, &row], 0).forward(&mut encoder));
    let invalid = |result: Result<Tensor<f32>>| {
        assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}")
    };
    invalid(tensor::permute(&x, &[0]).forward(&mut encoder));
    invalid(tensor::permute(&x, &[1, 1]).forward(&mut encoder));
    invalid(tensor::slice(&x, 1, 1..4).forward(&mut encoder));
    invalid(tensor::slice(&x, 2, 0..1).forward(&mut encoder));
    // Both ends within it, but the wrong way round.
    invalid(tensor::slice(&x, 0, std::ops::Range { start: 2, end: 1 }).forward(&mut encoder));
    invalid(tensor::concat(&[], 0).forward(&mut encoder));
    invalid(tensor::concat(&[&x], 2).forward(&mut encoder));
    invalid(tensor::pad(&x, &[(1, 1)]).forward(&mut encoder));
    assert!(tensor::pad(&x, &[(1, usize::MAX), (0, 0)]).forward(&mut encoder).is_err());
    // The CPU references refuse the same, and shapes of another length.
    let of = [0f32; 6];
    assert_invalid(reference::permute(&of, [2, 3], &[1, 1]));
    assert_invalid(reference::slice(&of, [2, 3], 1, 1..4));
    assert_invalid(reference::concat(&[(&of[..], [2, 3].into())], 2));
    assert_shape(reference::concat(&[(&of[..], [2, 3].into()), (&of[..], [3, 2].into())], 0));
    assert_invalid(reference::pad(&of, [2, 3], &[(1, 1)], 0.0));
    let too_long = [
        reference::permute(&of, [2, 2], &[1, 0]),
        reference::slice(&of, [usize::MAX, 2], 0, 0..1),
        reference::concat(&[(&of[..], [2, 2].into())], 0),
        reference::pad(&of, [2, 2], &[(0, 0), (0, 0)], 0.0),
        reference::pad(&of, [2, 3], &[(1, usize::MAX), (0, 0)], 0.0),
    ];
    too_long
        .into_iter()
        .for_each(|refused| assert!(matches!(refused, Err(Error::Length { .. })), "{refused:?}"));
    // Nothing, however many times.
    assert!(reference::permute::<f32>(&[], [usize::MAX, 0], &[1, 0]).unwrap().is_empty());
    assert!(reference::concat::<f32>(&[(&[], [usize::MAX, 0].into())], 1).unwrap().is_empty());
    assert!(matches!(
        tensor::cast(&condition).forward::<i32>(&mut encoder),
        Err(Error::Invalid { .. })
    ));
    let bytes = Tensor::<i8>::uninit(context, [2, 3]).unwrap();
    assert!(matches!(tensor::transpose(&bytes).forward(&mut encoder), Err(Error::Dispatch { .. })));
    assert_shape(tensor::matmul(&x, &x).forward(&mut encoder));
    assert_shape(tensor::matmul(&row, &x).forward(&mut encoder));
    let linear = tensor::matmul(&x, tensor::Side::transposed(&x));
    assert_shape(linear.bias(&row).forward(&mut encoder));
    assert_shape(linear.forward_into(&mut encoder, &x));
    let turned = unwritten(context, [3, 2]);
    assert_shape(tensor::finish(&turned).bias(&row).forward(&mut encoder));
    assert_shape(tensor::finish(&x).bias(&row).forward_into(&mut encoder, &turned));
    for (length, bias) in [(4, &[1.0; 3][..]), (1, &[])] {
        assert!(matches!(
            reference::finish(&vec![0.0; length], Some(bias), None),
            Err(Error::Length { .. })
        ));
    }
    assert_shape(tensor::gather(&row, &condition).forward(&mut encoder));
    assert_shape(tensor::gather(&x, &condition).backward(&mut encoder, &x));
    assert!(matches!(reference::gather(&[1.0f32; 5], 2, &[0]), Err(Error::Length { .. })));
    assert!(matches!(
        tensor::dropout(&x, 1.0, 0).forward(&mut encoder),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        tensor::dropout(&x, f32::NAN, 0).forward(&mut encoder),
        Err(Error::Invalid { .. })
    ));
    assert_shape(tensor::dropout(&x, 0.5, 0).relu().backward(&mut encoder, &row));
    assert_shape(tensor::pad_rows(&x, 2).forward(&mut encoder));
    assert_shape(tensor::pad_rows(&x, 4).forward_into(&mut encoder, &unwritten(context, [3, 4])));
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
    assert_invalid(tensor::sum(&x, [2]).forward(&mut encoder));
    assert_invalid(tensor::argmin(&x, [0, 200]).forward(&mut encoder));
    assert_shape(tensor::mean(&x, [1]).forward_into(&mut encoder, &row));
    assert_shape(tensor::max(&x, Axes::ALL).forward_into(&mut encoder, &row));
    assert_shape(tensor::argmax(&x, [1]).forward_into(&mut encoder, &words));
    assert_shape(tensor::sum_to(&x, [2]).forward(&mut encoder));
    assert_shape(tensor::sum_to(&row, [2, 3]).forward(&mut encoder));
    assert_shape(
        tensor::variance(&x, [1]).correction(0).forward_into(&mut encoder, Out::add(&row)),
    );
    assert_shape(tensor::variance(&x, [1]).correction(0).backward(&mut encoder, &row));
    assert_shape(tensor::sum(&x, [0]).backward(&mut encoder, &x));
    assert_shape(tensor::sum(&x, [1]).backward_into(&mut encoder, &unwritten(context, [2]), &row));
    assert_shape(tensor::sum_to(&x, [3]).backward(&mut encoder, &x));
    assert_shape(
        tensor::broadcast_to(&row, [2, 3]).backward(&mut encoder, &unwritten(context, [2])),
    );
    assert_shape(tensor::norm(&x, [0]).backward(&mut encoder, &row, &x));
    assert_shape(tensor::norm(&x, [0]).backward_into(&mut encoder, &row, &row, &row));
    assert_shape(tensor::max(&x, [1]).backward(&mut encoder, &row));
    assert_shape(tensor::prefix_sum(&x, 1).forward_into(&mut encoder, &row));
    assert!(matches!(reference::sum(&[0f32; 3], [2, 2], [0]), Err(Error::Length { .. })));
    assert_invalid(tensor::prefix_sum(&x, 2).forward(&mut encoder));
    assert_invalid(reference::prefix_sum(&[0f32; 4], [2, 2], 2, false));
    assert!(matches!(
        reference::prefix_sum(&[0f32; 3], [2, 2], 1, false),
        Err(Error::Length { .. })
    ));
    assert!(encoder.is_empty());
    // Both forms of the result's shape are taken, and sums of one are sums of both.
    tensor::sum(&x, [1]).forward_into(&mut encoder, &unwritten(context, [2])).unwrap();
    tensor::sum(&x, [1]).forward_into(&mut encoder, &unwritten(context, [2, 1])).unwrap();
    assert_eq!(encoder.len(), 2);
}

#[test]
fn softmax_losses_and_norms_refuse_wrong_shapes() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, row, targets) = (
        unwritten(context, [2, 3]),
        unwritten(context, [3]),
        context.upload(&[0u32; 2], [2]).unwrap(),
    );
    assert_shape(tensor::softmax(&x).forward_into(&mut encoder, &row));
    assert_shape(tensor::softmax(&row).causal().forward(&mut encoder));
    assert_shape(tensor::softmax(&row).mask(&targets).forward(&mut encoder));
    assert_shape(tensor::softmax(&x).backward(&mut encoder, &x, &row));
    assert_shape(tensor::log_softmax(&x).backward_into(&mut encoder, &x, &x, &row));
    assert_shape(tensor::cross_entropy(&row, &targets).forward(&mut encoder));
    assert_shape(tensor::cross_entropy(&x, &targets).forward_into(&mut encoder, &row));
    assert_shape(tensor::cross_entropy(&x, &targets).backward(&mut encoder, &row));
    assert_invalid(tensor::cross_entropy(&x, &targets).label_smoothing(1.5).forward(&mut encoder));
    assert_invalid(
        tensor::cross_entropy(&x, &targets).label_smoothing(f32::NAN).forward(&mut encoder),
    );
    let two = unwritten(context, [2]);
    assert_shape(LayerNorm::new(&two, &row, 0.0).forward(&mut encoder, &x));
    assert_shape(LayerNorm::new(&row, &two, 0.0).forward(&mut encoder, &x));
    assert_shape(LayerNorm::new(&two, &two, 0.0).backward(&mut encoder, &x, &x));
    assert_shape(LayerNorm::new(&row, &row, 0.0).backward(&mut encoder, &x, &row));
    assert_shape(RmsNorm::new(&row, 0.0).backward(&mut encoder, &x, &row));
    assert!(matches!(
        reference::layer_norm(&[0.0; 3], &[1.0; 2], &[0.0; 2], 0.0),
        Err(Error::Length { .. })
    ));
    assert!(matches!(
        reference::rms_norm_backward(&[0.0; 4], &[1.0; 2], 0.0, &[0.0; 2]),
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
    assert_shape(tensor::matmul_int8(&a, &of([5, 3].into())).forward(&mut encoder));
    assert_shape(tensor::matmul_int8(&row, &b).forward(&mut encoder));
    assert_shape(tensor::matmul_int8(&a, &row).forward(&mut encoder));
    assert_shape(
        tensor::matmul_int8(&of([2, 2, 5].into()), &of([3, 3, 5].into())).forward(&mut encoder),
    );
    assert_shape(
        tensor::matmul_int8(&a, &b)
            .forward_into(&mut encoder, &Tensor::uninit(context, [3, 2]).unwrap()),
    );
    let long = of([1, 1 << 17].into());
    assert_invalid(tensor::matmul_int8(&long, &long).forward(&mut encoder));
    assert!(encoder.is_empty());
    assert_invalid(reference::matmul_int8(&[], &[], [0, 1 << 17, 0]));
    assert!(matches!(
        reference::matmul_int8(&[0; 3], &[0; 4], [2, 2, 2]),
        Err(Error::Length { .. })
    ));
}

#[test]
fn linear_distillation_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let of = |rows: usize, columns: usize| unwritten(context, [rows, columns]);
    let (x, w, teacher_x, teacher_w) = (of(2, 3), of(5, 3), of(2, 4), of(5, 4));
    let (two, lse) = (unwritten(context, [2]), of(2, 3));
    let [targets, more] = [2, 3].map(|len| context.upload(&vec![0u32; len], [len]).unwrap());
    let (student, teacher) = ((&x, &w), (&teacher_x, &teacher_w));
    let op = tensor::linear_distillation(student, teacher, &targets);
    let (odd_rows, odd_words) = (of(3, 4), of(6, 4));
    for (student, teacher, targets) in [
        ((&x, &two), teacher, &targets),
        ((&x, &teacher_w), teacher, &targets),
        (student, (&odd_rows, &teacher_w), &targets),
        (student, (&teacher_x, &odd_words), &targets),
        (student, teacher, &more),
    ] {
        let op = tensor::linear_distillation(student, teacher, targets);
        assert_shape(op.forward(&mut encoder));
    }
    for op in [op.chunk(0), op.temperature(0.0), op.temperature(f32::NAN), op.teacher_share(1.5)] {
        assert_invalid(op.forward(&mut encoder));
    }
    assert_shape(op.backward(&mut encoder, &two, &two));
    assert_shape(op.backward(&mut encoder, &lse, &lse));
    for (dx, dw) in [(&w, &w), (&x, &x)] {
        let (dx, dw) = (Out::set(dx), Some(Out::set(dw)));
        assert_shape(op.backward_into(&mut encoder, &lse, &two, dx, dw));
    }
    assert!(encoder.is_empty());
    let (head, other) = ((&[0.0; 6][..], &[0.0; 9][..], 3), (&[0.0; 4][..], &[0.0; 6][..], 2));
    let made = |head, dloss: &[f32]| {
        reference::linear_distillation_backward(head, other, &[0, 0], None, (1.0, 1.0), dloss)
    };
    assert!(matches!(made(head, &[0.0]), Err(Error::Length { .. })));
    assert!(matches!(made((&[0.0; 5], head.1, 3), &[0.0; 2]), Err(Error::Length { .. })));
}

#[test]
fn linear_cross_entropy_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, w) = (unwritten(context, [2, 3]), unwritten(context, [5, 3]));
    let (two, three) = (unwritten(context, [2]), unwritten(context, [3]));
    let of = |len: usize| context.upload(&vec![0u32; len], [len]).unwrap();
    let (targets, more) = (of(2), of(3));
    let op = tensor::linear_cross_entropy(&x, &w, &targets);
    assert_shape(tensor::linear_cross_entropy(&x, &two, &targets).forward(&mut encoder));
    let turned = unwritten(context, [3, 5]);
    assert_shape(tensor::linear_cross_entropy(&w, &turned, &of(5)).forward(&mut encoder));
    assert_shape(tensor::linear_cross_entropy(&x, &w, &more).forward(&mut encoder));
    for (loss, lse) in [(&three, &two), (&two, &three)] {
        let outs = LinearLoss { loss: loss.into(), lse: lse.into() };
        assert_shape(op.forward_into(&mut encoder, outs));
        assert_shape(op.backward(&mut encoder, lse, loss));
    }
    assert_invalid(op.chunk(0).forward(&mut encoder));
    assert_invalid(op.label_smoothing(-0.5).forward(&mut encoder));
    let good = LinearGradients { x: Out::set(&x), w: Out::set(&w) };
    let odd = Out::set(&turned);
    for outs in [LinearGradients { x: odd, ..good }, LinearGradients { w: odd, ..good }] {
        assert_shape(op.backward_into(&mut encoder, &two, &two, outs));
    }
    assert!(encoder.is_empty());
    for (x, w, k, dloss) in [(5, 6, 3, 2), (6, 7, 3, 2), (0, 0, 0, 2), (6, 9, 3, 1)] {
        let (x, w) = (vec![0.0; x], vec![0.0; w]);
        let made = reference::linear_cross_entropy_backward(
            &x,
            &w,
            k,
            &[0, 0],
            None,
            0.0,
            &vec![0.0; dloss],
        );
        assert!(matches!(made, Err(Error::Length { .. })), "{made:?}");
    }
}
