//! Embedding, norm, head and largest logits.

use super::{Data, Leeway, Near, Problem, U};
use bitnet_wgpu::{
    DenseElement, Kernel, PackedDense, bytemuck, f16, params,
    transformer::{TopK, embed_cpu, top_k_cpu},
};
use rand::{RngExt, rngs::StdRng};
use support::{SHAPES, activations, rng};

params! { struct Embed { tokens: u32, columns: u32, blocks: u32, rows: u32 } }
params! { struct Gemv { rows: u32, tokens: u32, blocks: u32 } }
params! { struct Norm { tokens: u32, features: u32, first: u32, padded: u32, eps: f32 } }
params! { struct Top { count: u32, k: u32, named: u32 } }

/// What a kernel's table is of, as its name says.
fn element(kernel: &Kernel) -> DenseElement {
    match kernel.name.rsplit('_').next() {
        Some("f32") => DenseElement::F32,
        Some("f16") => DenseElement::F16,
        Some("bf16") => DenseElement::Bf16,
        _ => DenseElement::Int8,
    }
}

fn table(rng: &mut StdRng, element: DenseElement, rows: usize, columns: usize) -> PackedDense {
    let values: Vec<f32> = (0..rows * columns).map(|_| rng.random_range(-3.0..3.0)).collect();
    let halves: Vec<u16> = match element {
        DenseElement::F16 => values.iter().map(|&v| f16::from_f32(v).to_bits()).collect(),
        _ => values.iter().map(|v| (v.to_bits() >> 16) as u16).collect(),
    };
    match element {
        DenseElement::F32 => PackedDense::from_f32(rows, columns, &values),
        DenseElement::Int8 => PackedDense::from_f32(rows, columns, &values).map(|table| table.quantize()),
        _ => PackedDense::from_bytes(element, rows, columns, bytemuck::cast_slice(&halves)),
    }
    .unwrap()
}

/// The table's words and a scale for every row.
fn bound(table: &PackedDense) -> [Data; 2] {
    let scales = if table.scales().is_empty() { vec![1.0; table.rows()] } else { table.scales().to_vec() };
    [Data::U32(table.words().to_vec()), Data::F32(scales)]
}

/// Groups of sixteen bytes in a row.
fn blocks(element: DenseElement, columns: usize) -> usize {
    (columns * element.bytes()).div_ceil(16)
}

pub fn embed(kernel: &'static Kernel) -> Vec<Problem> {
    let mut rng = rng(43);
    let mut problems = Vec::new();
    for &(m, n, k) in SHAPES {
        let table = table(&mut rng, element(kernel), n.max(1), k);
        let last = table.rows() as u32 - 1;
        let mut tokens: Vec<u32> = (0..m).map(|_| rng.random_range(0..=last)).collect();
        let y = embed_cpu(&tokens, &table).unwrap();
        // Tokens that there are none of are read as the last one.
        tokens.iter_mut().filter(|token| **token == last).step_by(2).for_each(|token| *token += 1);
        let blocks = blocks(table.element(), k);
        let params = Embed { tokens: m as u32, columns: k as u32, blocks: blocks as u32, rows: table.rows() as u32 };
        let [words, scales] = bound(&table);
        let inputs = vec![Data::U32(tokens), words, scales];
        let case = format!("{m} of {n} × {k}");
        problems.push(Problem::exact(kernel, case, params, inputs, vec![Data::F32(y)], [m * blocks, 1, 1]).folded());
    }
    problems
}

pub fn dense_gemv(kernel: &'static Kernel) -> Vec<Problem> {
    let mut rng = rng(47);
    let mut problems = Vec::new();
    for &(m, n, k) in SHAPES.iter().chain(&[(1, 5, 1280)]) {
        let table = table(&mut rng, element(kernel), n, k);
        let blocks = blocks(table.element(), k);
        let padded = blocks * 16 / table.element().bytes();
        let x: Vec<f32> = (0..m * padded).map(|i| if i % padded < k { rng.random_range(-2.0..2.0) } else { 0.0 }).collect();
        let terms = |token: usize, row: &[f32]| -> Near {
            let terms = || row.iter().zip(&x[token * padded..]).map(|(&w, &x)| f64::from(w) * f64::from(x));
            // A rounding for the product, less than k for additions in whatever order, one for the scale, and one for that of `row`.
            Near { exact: terms().sum(), error: terms().map(f64::abs).sum::<f64>() * (k + 3) as f64 * U }
        };
        let rows: Vec<_> = (0..n).map(|row| table.row(row)).collect();
        let wanted: Vec<Near> =
            (0..m).flat_map(|token| rows.iter().map(move |row| (token, row))).map(|(token, row)| terms(token, row)).collect();
        let judge = move |got: &[Data], _: Leeway| got[3].check_near(wanted.iter().copied());
        let params = Gemv { rows: n as u32, tokens: m as u32, blocks: blocks as u32 };
        let [words, scales] = bound(&table);
        let (inputs, outputs) = (vec![words, scales, Data::F32(x)], vec![Data::F32(vec![0.0; m * n])]);
        problems.push(Problem::new(kernel, format!("{m} × {n} × {k}"), params, inputs, outputs, [n, m, 1], Box::new(judge)));
    }
    problems
}

pub fn rms_norm(kernel: &'static Kernel) -> Vec<Problem> {
    let (mut rng, eps) = (rng(53), 1e-5);
    let mut problems = Vec::new();
    for (m, k, first, tokens, padded) in [(1, 1, 0, 1, 4), (2, 31, 1, 1, 32), (9, 257, 2, 7, 264), (3, 1280, 0, 3, 1280), (4, 8, 0, 4, 300)]
    {
        let gain: Vec<f32> = (0..k).map(|_| rng.random_range(-2.0..2.0)).collect();
        let x: Vec<f32> = activations(&mut rng, m, k).iter().map(|v| v.clamp(-1e15, 1e15)).collect();
        let mut wanted = Vec::new();
        for row in x.chunks(k).skip(first).take(tokens) {
            let mean = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / k as f64;
            let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
            // The root halves what a sum of squares strays; a dozen roundings follow, with a division that may be off by 2.5 units.
            let stray = (k as f64 / 2.0 + 12.0) * 2.0 * U;
            let near = |(&v, &g): (&f32, &f32)| {
                let exact = f64::from(v) * inverse * f64::from(g);
                // Subnormals are what they are, or nothing.
                Near { exact, error: stray * exact.abs() + f64::from(f32::MIN_POSITIVE) * (1.0 + f64::from(g).abs()) * inverse.max(1.0) }
            };
            wanted.extend(row.iter().zip(&gain).map(near));
            wanted.extend([Near::exactly(0.0)].repeat(padded - k));
        }
        let judge = move |got: &[Data], _: Leeway| got[2].check_near(wanted.iter().copied());
        let params = Norm { tokens: tokens as u32, features: k as u32, first: first as u32, padded: padded as u32, eps };
        let (inputs, outputs) = (vec![Data::F32(x), Data::F32(gain)], vec![Data::F32(vec![0.0; tokens * padded])]);
        let case = format!("{tokens} × {k} from {first} on, as {padded}");
        problems.push(Problem::new(kernel, case, params, inputs, outputs, [tokens, 1, 1], Box::new(judge)).folded());
    }
    problems
}

/// Logits that a workgroup looks at.
const RUN: usize = 2048;

pub fn top_k(kernel: &'static Kernel) -> Vec<Problem> {
    let mut rng = rng(59);
    let mut problems = Vec::new();
    for (rows, count) in [(1, 1), (3, 5), (2, 255), (1, 2048), (2, 2049), (1, 5000)] {
        // Few values, so that many are equal; and some that are no numbers.
        let logits: Vec<f32> = (0..rows * count)
            .map(|_| match rng.random_range(0..count + 5) {
                0 => f32::NAN,
                1 => f32::NEG_INFINITY,
                2 => -0.0,
                _ => (rng.random_range(-9.0..9.0f32)).round(),
            })
            .collect();
        for k in [1, 2, 7, 64] {
            problems.push(problem(kernel, rows, count, k, &logits, None));
            // The winners of an earlier pass, of whom some are missing.
            let ids = (0..rows * count).map(|i| if i % 5 == 4 || logits[i].is_nan() { TopK::NONE } else { (i * 7) as u32 }).collect();
            let winners: Vec<f32> =
                logits.iter().enumerate().map(|(i, &v)| if i % 5 == 4 && !v.is_nan() { f32::NEG_INFINITY } else { v }).collect();
            problems.push(problem(kernel, rows, count, k, &winners, Some(ids)));
        }
    }
    problems
}

fn problem(kernel: &'static Kernel, rows: usize, count: usize, k: usize, logits: &[f32], ids: Option<Vec<u32>>) -> Problem {
    let (mut top, mut top_ids) = (Vec::new(), Vec::new());
    for (row, all) in logits.chunks(count).enumerate() {
        for (run, some) in all.chunks(RUN).enumerate() {
            let start = row * count + run * RUN;
            let id = |i: u32| ids.as_ref().map_or(run * RUN + i as usize, |ids| ids[start + i as usize] as usize) as u32;
            let is_there = |i: usize| some[i].is_nan() || id(i as u32) != TopK::NONE;
            // Ids rise with places, so ties are settled alike.
            let present: Vec<usize> = (0..some.len()).filter(|&i| is_there(i)).collect();
            let mut winners = top_k_cpu(&present.iter().map(|&i| some[i]).collect::<Vec<_>>(), k);
            for (winner, _) in winners.iter_mut().filter(|(winner, _)| *winner != TopK::NONE) {
                *winner = id(present[*winner as usize] as u32);
            }
            winners.resize(k, (TopK::NONE, f32::NEG_INFINITY));
            top.extend(winners.iter().map(|winner| winner.1));
            top_ids.extend(winners.iter().map(|winner| winner.0));
        }
    }
    let case = format!("{k} of {rows} × {count}, named {}", ids.is_some());
    let params = Top { count: count as u32, k: k as u32, named: ids.is_some().into() };
    let inputs = vec![Data::F32(logits.to_vec()), Data::U32(ids.unwrap_or_else(|| vec![0]))];
    Problem::exact(kernel, case, params, inputs, vec![Data::F32(top), Data::U32(top_ids)], [count, rows, 1])
}
