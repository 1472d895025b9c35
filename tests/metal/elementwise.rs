//! Kernels that make every number by itself.

use super::{
    Data, Problem,
    quantize::{is_half, pack, row_words, rows},
};
use bitnet_wgpu::{Element, Kernel, PackedTernary, Scales, bitnet, params};
use rand::RngExt;
use support::{SHAPES, activations, rng, ternary};

params! { struct Activations { tokens: u32, features: u32, words: u32 } }
params! { struct Weights { rows: u32, columns: u32, words: u32, groups: u32, group_size: u32 } }
params! { struct Gate { tokens: u32, features: u32 } }

const FLOATS: [Element; 2] = [Element::F32, Element::F16];

pub fn dequantize_activations(kernel: &'static Kernel) -> Vec<Problem> {
    let mut problems = Vec::new();
    for &(tokens, _, features) in SHAPES {
        for element in FLOATS {
            let x = bitnet::quantize_activations_cpu(&rows(17, tokens, features), tokens, features).unwrap();
            let packed = (0..tokens).flat_map(|token| pack(is_half(kernel), x.row(token))).collect();
            let words = row_words(features);
            let params = Activations { tokens: tokens as u32, features: features as u32, words: words as u32 };
            let inputs = vec![Data::U32(packed), Data::F32(x.scales.clone())];
            let y = Data::floats(element, &x.dequantize());
            let case = format!("{tokens} × {features} {element:?}");
            problems.push(Problem::exact(kernel, case, params, inputs, vec![y], [tokens * words * 4, 1, 1]).folded());
        }
    }
    problems
}

pub fn dequantize_weights(kernel: &'static Kernel) -> Vec<Problem> {
    let mut rng = rng(19);
    let mut problems = Vec::new();
    for &(_, n, k) in SHAPES {
        let plain = ternary(&mut rng, n, k);
        for size in [None, Some(16), Some(48)] {
            let groups = size.map_or(1, |size| k.div_ceil(size));
            let scales: Vec<f32> = (0..n * groups).map(|_| rng.random_range(-2.0..2.0)).collect();
            let typed = match size {
                Some(size) => Scales::Groups { size, scales: scales.clone() },
                None => Scales::Segments(scales.iter().map(|&scale| (1, scale)).collect()),
            };
            let w = PackedTernary::from_words(n, k, plain.words().to_vec(), typed).unwrap();
            let (words, group_size) = (row_words(k), size.unwrap_or(k));
            for element in FLOATS {
                let params = Weights {
                    rows: n as u32,
                    columns: k as u32,
                    words: words as u32,
                    groups: groups as u32,
                    group_size: group_size as u32,
                };
                let inputs = vec![Data::U32(w.words().to_vec()), Data::F32(scales.clone())];
                let y = Data::floats(element, &w.dequantize());
                let case = format!("{n} × {k} {element:?}, groups of {group_size}");
                problems.push(Problem::exact(kernel, case, params, inputs, vec![y], [n * words, 1, 1]).folded());
            }
        }
    }
    problems
}

pub fn half_subnormals(kernel: &'static Kernel) -> Vec<Problem> {
    // Codes 1 and 2 in every field: Σ (1 + 2·2)·4^f·2^-24.
    let y = 5.0 * 85.0 / 16_777_216.0;
    vec![Problem::exact(kernel, "codes 1 and 2".to_owned(), (), vec![Data::U32(vec![0x00aa_0055])], vec![Data::F32(vec![y])], [1, 1, 1])]
}

pub fn relu2_gate(kernel: &'static Kernel) -> Vec<Problem> {
    let mut rng = rng(23);
    let mut problems = Vec::new();
    for &(tokens, _, features) in SHAPES {
        for element in FLOATS {
            let x = Data::floats(element, &activations(&mut rng, tokens, 2 * features));
            let y = Data::F32(bitnet::relu2_gate_cpu(&x.to_f32(), features).unwrap());
            let params = Gate { tokens: tokens as u32, features: features as u32 };
            let case = format!("{tokens} × {features} {element:?}");
            problems.push(Problem::exact(kernel, case, params, vec![x], vec![y], [tokens * features, 1, 1]).folded());
        }
    }
    problems
}
