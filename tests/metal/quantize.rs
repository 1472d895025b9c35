//! Quantisers: activations by rows, weights by the tensor, and the layouts that activations are packed in.

use super::{Data, Problem};
use bitnet_wgpu::{Element, Kernel, bitnet, f16, params};
use support::{SHAPES, activations as numbers, rng};

params! { struct Rows { tokens: u32, features: u32, words: u32 } }
params! { struct Sums { length: u32 } }
params! { struct Weights { rows: u32, columns: u32, words: u32, sums: u32, count: f32 } }

/// Words of sixteen codes in a row, padded to whole vectors of four.
pub fn row_words(features: usize) -> usize {
    features.div_ceil(64) * 4
}

/// Which layout a kernel works on, as its name says.
pub fn is_half(kernel: &Kernel) -> bool {
    !kernel.name.ends_with("_int8")
}

/// The codes of a row in the half layout as `wgsl/bitnet/half_planes.wgsl` describes it, or as bytes in order.
pub fn pack(half: bool, codes: &[i8]) -> Vec<u32> {
    let groups = row_words(codes.len()) * 4;
    let mut row = vec![0; if half { 2 * groups } else { groups }];
    for (i, &code) in codes.iter().enumerate() {
        let (group, j) = (i / 4, i % 4);
        if half {
            let scaled = f16::from_f32(f32::from(code) / 4f32.powi(group as i32 % 4));
            row[j % 2 * groups + group] |= u32::from(scaled.to_bits()) << (16 * (j / 2));
        } else {
            row[group] |= u32::from(code as u8) << (8 * j);
        }
    }
    row
}

/// Σ code and Σ code·4^(5-f), where f is the field of a word that meets the code.
pub fn sums(codes: &[i8]) -> [i32; 2] {
    let sum = codes.iter().map(|&code| i32::from(code)).sum();
    let weighted = codes.iter().enumerate().map(|(i, &code)| i32::from(code) * 4i32.pow(5 - i as u32 / 4 % 4)).sum();
    [sum, weighted]
}

/// Numbers of every kind, rows that are not finite among them.
pub fn rows(seed: u64, tokens: usize, features: usize) -> Vec<f32> {
    let mut x = numbers(&mut rng(seed), tokens, features);
    for (token, row) in x.chunks_mut(features.max(1)).enumerate() {
        let at = token * 3 % features;
        match token % 11 {
            3 => row[at] = f32::NAN,
            6 => row[at] = f32::NEG_INFINITY,
            _ => {}
        }
    }
    x
}

pub fn activations(kernel: &'static Kernel) -> Vec<Problem> {
    let mut problems = Vec::new();
    for &(tokens, _, features) in SHAPES {
        for element in [Element::F32, Element::F16] {
            let x = Data::floats(element, &rows(11, tokens, features));
            let host = bitnet::quantize_activations_cpu(&x.to_f32(), tokens, features).unwrap();
            let packed = (0..tokens).flat_map(|token| pack(is_half(kernel), host.row(token))).collect();
            let sums = (0..tokens).flat_map(|token| sums(host.row(token))).collect();
            let params = Rows { tokens: tokens as u32, features: features as u32, words: row_words(features) as u32 };
            let outputs = vec![Data::U32(packed), Data::F32(host.scales.clone()), Data::I32(sums)];
            let case = format!("{tokens} × {features} {element:?}");
            problems.push(Problem::exact(kernel, case, params, vec![x], outputs, [tokens, 1, 1]).folded());
        }
    }
    problems
}

/// Matrices of plain numbers, of zeros, and of subnormals; rows × columns.
fn matrices() -> Vec<(usize, usize, Data)> {
    let shapes = [(1, 1), (3, 17), (7, 64), (1, 70_001), (33, 65), (5, 300), (129, 1031)];
    let mut all = Vec::new();
    for (i, &(rows, columns)) in shapes.iter().enumerate() {
        // One of the rows that `numbers` makes has magnitudes that would leave all other weights 0.
        let plain = numbers(&mut rng(i as u64), 1, rows * columns);
        for element in [Element::F32, Element::F16] {
            all.push((rows, columns, Data::floats(element, &plain)));
            all.push((rows, columns, Data::floats(element, &plain.iter().map(|v| v * 1e-6).collect::<Vec<_>>())));
        }
        all.push((rows, columns, Data::F32(vec![0.0; rows * columns])));
    }
    all
}

/// Threads of a workgroup of `sum_abs`; a chunk is as many numbers to each.
const THREADS: usize = 256;

/// Every thread's stride, then halves onto each other.
fn sums_of_chunks(w: &[f32]) -> Vec<f32> {
    let chunk = |chunk: &[f32]| {
        let mut parts: Vec<f32> =
            (0..THREADS).map(|i| chunk.iter().skip(i).step_by(THREADS).map(|v| v.abs()).fold(0.0, |s, v| s + v)).collect();
        while parts.len() > 1 {
            let upper = parts.split_off(parts.len() / 2);
            parts.iter_mut().zip(upper).for_each(|(low, high)| *low += high);
        }
        parts[0]
    };
    w.chunks(THREADS * THREADS).map(chunk).collect()
}

pub fn sums_of(kernel: &'static Kernel) -> Vec<Problem> {
    let problem = |(rows, columns, w): (usize, usize, Data)| {
        let case = format!("{rows} × {columns} {:?}", w.element());
        let sums = sums_of_chunks(&w.to_f32());
        let length = w.len();
        Problem::exact(kernel, case, Sums { length: length as u32 }, vec![w], vec![Data::F32(sums)], [length, 1, 1]).folded()
    };
    matrices().into_iter().map(problem).collect()
}

pub fn weights(kernel: &'static Kernel) -> Vec<Problem> {
    let problem = |(rows, columns, w): (usize, usize, Data)| {
        let case = format!("{rows} × {columns} {:?}", w.element());
        let sums = sums_of_chunks(&w.to_f32());
        let words = row_words(columns);
        let params =
            Weights { rows: rows as u32, columns: columns as u32, words: words as u32, sums: sums.len() as u32, count: w.len() as f32 };
        let packed = bitnet::quantize_weights_cpu(&w.to_f32(), rows, columns).unwrap();
        let bitnet_wgpu::Scales::Tensor(scale) = *packed.scales() else { panic!("one scale for the tensor") };
        let outputs = vec![Data::U32(packed.words().to_vec()), Data::F32(vec![scale; rows])];
        Problem::exact(kernel, case, params, vec![w, Data::F32(sums)], outputs, [rows * words, 1, 1]).folded()
    };
    matrices().into_iter().map(problem).collect()
}
