//! `src/ops/bitnet/quantize_weights.rs`

use super::stacks;
use crate::{Case, Data, Recorder, convert, floats, rng, shapes};
use bitnet_wgpu::{
    bitnet::WeightQuantizer,
    reference,
    tensor::{Float, f16},
    weights::Scales,
};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // One workgroup's chunk is 65536 weights.
    let more = [(3, 17), (1, 70_001), (33, 65), (5, 300), (129, 1031), (700, 301)];
    let more = (0u64..).zip(more).map(|(i, (rows, columns))| (rng(i), (0, rows, columns)));
    for (mut rng, (_, rows, columns)) in shapes("quantize_weights").chain(more) {
        let plain = floats(&mut rng, rows * columns, 3.0);
        let uneven: Vec<f32> = plain.iter().map(|v| v.powi(3)).collect();
        let tiny: Vec<f32> = plain.iter().map(|v| v * 1e-6).collect();
        cases.push(case::<f32>(&plain, rows, columns));
        cases.push(case::<f16>(&uneven, rows, columns));
        cases.push(case::<f32>(&tiny, rows, columns));
        cases.push(case::<f16>(&tiny, rows, columns));
        cases.push(case::<f32>(&vec![0.0; plain.len()], rows, columns));
    }
    let mut one_huge = vec![0.0; 300];
    one_huge[7] = 1e20;
    cases.push(case::<f32>(&one_huge, 10, 30));
    cases
}

pub fn by_matrix() -> Vec<Case> {
    let of = |(stack, plain, uneven): ([usize; 3], Vec<f32>, Vec<f32>)| {
        [stacked::<f32>(&uneven, stack), stacked::<f16>(&plain, stack)]
    };
    let broken = [f32::NAN, f32::INFINITY].map(not_finite);
    stacks("quantize_weights_by_matrix").flat_map(of).chain(broken).collect()
}

fn stacked<T: Float>(w: &[f32], stack: [usize; 3]) -> Case {
    let w = convert::<T>(w);
    let packed =
        reference::quantize_weights(&w, stack, WeightQuantizer::absmean().per_matrix()).unwrap();
    let rows = packed.rows();
    let scales: Vec<f32> = match packed.scales() {
        Scales::Tensor(scale) => vec![*scale; rows],
        Scales::Segments(parts) => {
            parts.iter().flat_map(|&(rows, scale)| vec![scale; rows]).collect()
        }
        other => panic!("{other:?}"),
    };
    let expected = vec![Data::U32(packed.words().to_vec()), Data::F32(scales)];
    Case::exact(format!("{stack:?} {:?}", T::ELEMENT), expected, move |r| {
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
    let w = WeightQuantizer::absmean().per_matrix().quantize(&mut r.encoder, &w)?;
    let (codes, scales) = w.tensors();
    r.watch_all(codes);
    r.watch_all(scales);
    Ok(())
}

/// A matrix that is not finite has codes of zero and scales that are no numbers; its neighbors do
/// not notice.
fn not_finite(value: f32) -> Case {
    let stack = [3, 4, 70];
    let mut w = floats(&mut rng(7), 3 * 280, 3.0);
    w[280..560].fill(0.0);
    let packed =
        reference::quantize_weights(&w, stack, WeightQuantizer::absmean().per_matrix()).unwrap();
    let codes = Data::U32(packed.words().to_vec());
    let Scales::Segments(parts) = packed.scales().clone() else {
        panic!("a scale for each matrix")
    };
    w[300] = value;
    let check = move |got: &[Data], leeway| {
        got[0].check(&codes, leeway)?;
        let Data::F32(found) = &got[1] else { return Err("scales are f32".to_owned()) };
        let right = |row: usize| {
            if row / 4 == 1 {
                found[row].is_nan()
            } else {
                found[row].to_bits() == parts[row / 4].1.to_bits()
            }
        };
        if found.len() == 12 && (0..12).all(right) {
            Ok(())
        } else {
            Err(format!("scales {found:?}"))
        }
    };
    let mut case =
        Case::new(format!("a matrix with {value}"), move |r| quantize_stack(r, &w, stack), check);
    case.exact = true;
    case
}

fn case<T: Float>(w: &[f32], rows: usize, columns: usize) -> Case {
    let w = convert::<T>(w);
    let packed =
        reference::quantize_weights(&w, [rows, columns], WeightQuantizer::absmean()).unwrap();
    let Scales::Tensor(scale) = *packed.scales() else { panic!("one scale for the tensor") };
    let expected = vec![Data::U32(packed.words().to_vec()), Data::F32(vec![scale; rows])];
    Case::exact(format!("{rows} × {columns} {:?}", T::ELEMENT), expected, move |r| {
        let w = r.upload(&w, [rows, columns])?;
        let w = WeightQuantizer::absmean().quantize(&mut r.encoder, &w)?;
        let (codes, scales) = w.tensors();
        r.watch_all(codes);
        r.watch_all(scales);
        Ok(())
    })
    .of(T::ELEMENT)
}
