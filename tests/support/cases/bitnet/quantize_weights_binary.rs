//! `src/ops/bitnet/quantize_weights_binary.rs`

use super::{check_not_finite, ints_of, random_groups, stacks, watch_ints};
use crate::{Case, Recorder, convert, floats, rng};
use bitnet_wgpu::{
    bitnet::WeightQuantizer,
    reference,
    tensor::{Float, f16},
    weights::{Affine, Bits, IntMatrix, PackedInt},
};

/// How means are taken: of the tensor, or of groups.
#[derive(Clone, Copy, Debug)]
enum Of {
    Tensor,
    Group(Option<usize>),
}

fn quantizer(of: Of) -> WeightQuantizer<IntMatrix> {
    let quantizer = WeightQuantizer::binary();
    match of {
        Of::Tensor => quantizer,
        Of::Group(None) => quantizer.per_row(),
        Of::Group(Some(size)) => quantizer.per_group(size),
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // One workgroup's chunk of the tensor is 65536 weights, and one more adds up to 64 chunks a
    // thread.
    let whole = [(0, 5), (3, 0), (1, 1), (5, 65), (3, 300), (1, 70_001), (129, 1031), (700, 301)];
    let whole = whole.map(|(rows, columns)| (rows, columns, Of::Tensor));
    let grouped = [
        (3, 0, Some(32)),
        (2, 0, None),
        (1, 1, None),
        (5, 65, None),
        (2, 1000, None),
        (7, 32, Some(32)),
        (5, 65, Some(32)),
    ];
    let more = [(3, 300, Some(64)), (4, 130, Some(96)), (9, 256, Some(128)), (2, 100, Some(128))];
    let grouped = grouped
        .into_iter()
        .chain(more)
        .map(|(rows, columns, size)| (rows, columns, Of::Group(size)));
    let random = random_groups("quantize_weights_binary")
        .map(|((_, rows, columns), size)| (rows, columns, Of::Group(size)));
    for (rows, columns, of) in whole.into_iter().chain(grouped).chain(random) {
        let plain = floats(&mut rng((rows + columns) as u64), rows * columns, 3.0);
        // Means that are not near 0, and groups that differ by much, or are nothing.
        let shifted: Vec<f32> = plain
            .iter()
            .enumerate()
            .map(|(i, v)| (v + 1.0) * [1.0, 0.0, 1e-3][i / 32 % 3])
            .collect();
        cases.extend([
            case::<f32>(&plain, rows, columns, of),
            case::<f16>(&plain, rows, columns, of),
        ]);
        cases.push(case::<f32>(&shifted, rows, columns, of));
    }
    // All alike: none is above the mean. And a scale that is too small to be one.
    cases.push(case::<f32>(&[0.75; 4 * 40], 4, 40, Of::Tensor));
    cases.push(case::<f32>(&[1e-26; 4 * 40], 4, 40, Of::Group(Some(32))));
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        cases.extend([not_finite(value), tensor_not_finite(value)]);
    }
    cases
}

pub fn by_matrix() -> Vec<Case> {
    let of = |(stack, plain, uneven): ([usize; 3], Vec<f32>, Vec<f32>)| {
        [stacked::<f32>(&uneven, stack), stacked::<f16>(&plain, stack)]
    };
    let broken = [f32::NAN, f32::NEG_INFINITY].map(matrix_not_finite);
    stacks("quantize_weights_binary_by_matrix").flat_map(of).chain(broken).collect()
}

fn stacked<T: Float>(w: &[f32], stack: [usize; 3]) -> Case {
    let w = convert::<T>(w);
    let packed =
        reference::quantize_weights(&w, stack, WeightQuantizer::binary().per_matrix()).unwrap();
    Case::exact(format!("{stack:?} {:?}", T::ELEMENT), ints_of(&packed), move |r| {
        quantize_stack(r, &w, stack)
    })
    .of(T::ELEMENT)
}

fn quantize_stack<T: Float>(
    r: &mut Recorder,
    w: &[T],
    stack: [usize; 3],
) -> bitnet_wgpu::Result<()> {
    let w = r.upload(w, stack)?;
    let packed = WeightQuantizer::binary().per_matrix().quantize(&mut r.encoder, &w)?;
    watch_ints(r, &packed);
    Ok(())
}

/// Its neighbors do not notice.
fn matrix_not_finite(value: f32) -> Case {
    let stack = [3, 4, 70];
    let mut w = floats(&mut rng(9), 3 * 280, 3.0);
    w[280..560].fill(0.0);
    let expected = ints_of(
        &reference::quantize_weights(&w, stack, WeightQuantizer::binary().per_matrix()).unwrap(),
    );
    w[300] = value;
    let check = move |got: &[crate::Data], _| check_not_finite(got, &expected, &[4, 5, 6, 7]);
    Case::new(format!("a matrix with {value}"), move |r| quantize_stack(r, &w, stack), check)
}

fn quantize(
    r: &mut Recorder,
    w: &[impl Float],
    shape: [usize; 2],
    of: Of,
) -> bitnet_wgpu::Result<()> {
    let w = r.upload(w, shape)?;
    let packed = quantizer(of).quantize(&mut r.encoder, &w)?;
    watch_ints(r, &packed);
    Ok(())
}

fn case<T: Float>(w: &[f32], rows: usize, columns: usize, of: Of) -> Case {
    let w = convert::<T>(w);
    let packed = reference::quantize_weights(&w, [rows, columns], quantizer(of));
    let name = format!("{rows} × {columns} of {of:?} {:?}", T::ELEMENT);
    Case::exact(name, ints_of(&packed.unwrap()), move |r| quantize(r, &w, [rows, columns], of))
        .of(T::ELEMENT)
}

/// A group that is not finite has codes of 0 and a scale that is no number; its neighbors do not
/// notice.
fn not_finite(value: f32) -> Case {
    let (rows, columns, of) = (4, 70, Of::Group(Some(32)));
    let mut w = floats(&mut rng(7), rows * columns, 3.0);
    w[2 * columns + 32..2 * columns + 64].fill(0.0);
    let expected = ints_of(
        &reference::quantize_weights(&w, [rows, columns], WeightQuantizer::binary().per_group(32))
            .unwrap(),
    );
    w[2 * columns + 33] = value;
    let check = move |got: &[crate::Data], _| check_not_finite(got, &expected, &[7]);
    Case::new(format!("a group with {value}"), move |r| quantize(r, &w, [rows, columns], of), check)
}

/// In a tensor that has one mean, it is all that is lost.
fn tensor_not_finite(value: f32) -> Case {
    let (rows, columns) = (3, 70);
    let mut w = floats(&mut rng(8), rows * columns, 3.0);
    w[100] = value;
    let affine = Affine { group: None, scales: vec![0.0; rows], zeros: vec![0.5; rows] };
    let expected = ints_of(
        &PackedInt::from_codes(rows, columns, Bits::One, &vec![0; rows * columns], affine).unwrap(),
    );
    let check = move |got: &[crate::Data], _| check_not_finite(got, &expected, &[0, 1, 2]);
    Case::new(
        format!("a tensor with {value}"),
        move |r| quantize(r, &w, [rows, columns], Of::Tensor),
        check,
    )
}
