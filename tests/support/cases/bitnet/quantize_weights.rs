//! `src/ops/bitnet/quantize_weights.rs`

use crate::{Case, Data, convert, floats, rng, shapes};
use bitnet_wgpu::{Float, bitnet, f16};

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

fn case<T: Float>(w: &[f32], rows: usize, columns: usize) -> Case {
    let w = convert::<T>(w);
    let packed = bitnet::quantize_weights_cpu(&w, rows, columns).unwrap();
    let bitnet_wgpu::Scales::Tensor(scale) = *packed.scales() else { panic!("one scale for the tensor") };
    let wanted = vec![Data::U32(packed.words().to_vec()), Data::F32(vec![scale; if w.is_empty() { 0 } else { rows }])];
    Case::exact(format!("{rows} × {columns} {:?}", T::ELEMENT), wanted, move |r| {
        let empty = w.is_empty();
        let w = r.upload(&w, [rows, columns])?;
        let w = bitnet::quantize_weights(&mut r.encoder, &w)?;
        let (codes, scales) = w.tensors();
        r.watch_all(codes);
        // An empty matrix's scales are not made by a kernel.
        r.watch(scales, if empty { 0 } else { rows });
        Ok(())
    })
    .of(T::ELEMENT)
}
