//! Rotary positions, attention, and the combination of its shares, on caches that are laid out as wgsl/transformer/rope.wgsl has it.

use super::{Data, Leeway, Near, Problem, U};
use bitnet_wgpu::{Element, Kernel, f16, params, transformer::rope_angles};
use rand::{RngExt, rngs::StdRng};
use support::rng;

params! { struct Rope { tokens: u32, run: u32, slot: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32 } }
params! { struct Attention { run: u32, slot: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32, splits: u32, scale: f32 } }
params! { struct Combine { heads: u32, head_dim: u32, splits: u32 } }

/// Numbers that are exact in f16.
fn numbers(rng: &mut StdRng, len: usize, bound: f32) -> Vec<f32> {
    (0..len).map(|_| f16::from_f32(rng.random_range(-bound..bound)).to_f32()).collect()
}

/// New tokens, and caches of which they are the last.
#[derive(Clone)]
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    capacity: usize,
    slot: usize,
    run: usize,
    sequences: usize,
    /// One a slot.
    positions: Vec<usize>,
    splits: usize,
}

impl Case {
    const fn new(heads: usize, kv_heads: usize, head_dim: usize, capacity: usize, run: usize) -> Self {
        Self { heads, kv_heads, head_dim, capacity, slot: 0, run, sequences: 1, positions: Vec::new(), splits: 1 }
    }

    fn at(self, positions: &[usize]) -> Self {
        Self { positions: positions.to_vec(), ..self }
    }

    fn runs(self, slot: usize, sequences: usize) -> Self {
        Self { slot, sequences, ..self }
    }

    fn splits(self, splits: usize) -> Self {
        Self { splits, ..self }
    }

    fn row(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    fn tokens(&self) -> usize {
        self.run * self.sequences
    }

    fn quads(&self) -> usize {
        self.head_dim.div_ceil(4)
    }

    fn cache_len(&self) -> usize {
        self.positions.len() * self.kv_heads * self.quads() * self.capacity * 4
    }

    fn key_at(&self, slot: usize, head: usize, position: usize, d: usize) -> usize {
        (((slot * self.kv_heads + head) * self.quads() + d / 4) * self.capacity + position) * 4 + d % 4
    }

    fn value_at(&self, slot: usize, head: usize, position: usize, d: usize) -> usize {
        ((slot * self.kv_heads + head) * self.capacity + position) * self.quads() * 4 + d
    }

    /// Slot and position of a token.
    fn place(&self, token: usize) -> (usize, usize) {
        let slot = self.slot + token / self.run;
        (slot, self.positions[slot] + token % self.run)
    }

    fn positions(&self) -> Data {
        Data::U32(self.positions.iter().map(|&position| position as u32).collect())
    }

    fn name(&self) -> String {
        let Self { heads, kv_heads, head_dim, slot, run, sequences, positions, splits, .. } = self;
        format!("{heads} heads on {kv_heads} of {head_dim}, {sequences} runs of {run} from slot {slot} of {positions:?}, {splits} splits")
    }
}

pub fn rope(kernel: &'static Kernel) -> Vec<Problem> {
    let cases = [
        Case::new(1, 1, 2, 1, 1).at(&[0]),
        Case::new(3, 1, 6, 5, 1).at(&[4]),
        Case::new(4, 2, 14, 7, 5).at(&[1]),
        // The last tokens of the first run, and all of the second, have no room.
        Case::new(2, 2, 40, 9, 4).at(&[0, 7, 9, 3]).runs(1, 2),
        Case::new(8, 2, 64, 33, 1).at(&[5, 5, 0, 32, 40]).runs(2, 3),
        Case::new(6, 3, 32, 11, 11).at(&[0, 4]),
    ];
    cases.iter().flat_map(|case| [Element::F32, Element::F16].map(|element| rope_problem(kernel, case, element))).collect()
}

fn rope_problem(kernel: &'static Kernel, case: &Case, element: Element) -> Problem {
    let mut rng = rng(61);
    let &Case { heads, kv_heads, head_dim, capacity, slot, run, .. } = case;
    let middle = head_dim / 2;
    let frequencies: Vec<f32> = (0..middle).map(|i| 100f32.powf(-(i as f32) / middle as f32)).collect();
    let angles = rope_angles(&frequencies, capacity);
    let qkv = numbers(&mut rng, case.tokens() * case.row(), 5.0);
    let caches = [(); 2].map(|()| numbers(&mut rng, case.cache_len(), 900.0));
    // Nothing else may change.
    let mut wanted = [&qkv, &caches[0], &caches[1]].map(|before| before.iter().map(|&v| (Near::exactly(v), true)).collect::<Vec<_>>());
    for token in 0..case.tokens() {
        let (slot, position) = case.place(token);
        for (head, i) in (0..heads + 2 * kv_heads).flat_map(|head| (0..head_dim).map(move |i| (head, i))).filter(|_| position < capacity) {
            let start = token * case.row() + head * head_dim;
            let v = |i: usize| f64::from(qkv[start + i]);
            let turn = |j: usize| f64::from(angles[(position * middle + i % middle) * 2 + j]);
            let (a, b) = (v(i) * turn(0), if i < middle { -v(i + middle) } else { v(i - middle) } * turn(1));
            // Two products and their sum are rounded, or fewer.
            let turned = (Near { exact: a + b, error: 2.0 * U * (a.abs() + b.abs()) }, false);
            if head < heads {
                wanted[0][start + i] = turned;
            } else if head < heads + kv_heads {
                wanted[1][case.key_at(slot, head - heads, position, i)] = turned;
            } else {
                wanted[2][case.value_at(slot, head - heads - kv_heads, position, i)] = (Near::exactly(qkv[start + i]), true);
            }
        }
    }
    let judge = move |got: &[Data], _: Leeway| {
        got[2..].iter().zip(&wanted).zip(["qkv", "keys", "values"]).try_for_each(|((got, wanted), what)| {
            let copied = got.to_f32().iter().zip(wanted).position(|(&got, &(near, copied))| copied && f64::from(got) != near.exact);
            let near = got.check_near(wanted.iter().map(|wanted| wanted.0));
            near.and(copied.map_or(Ok(()), |at| Err(format!("number {at} has changed")))).map_err(|e| format!("{what}: {e}"))
        })
    };
    let params = Rope {
        tokens: case.tokens() as u32,
        run: run as u32,
        slot: slot as u32,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        capacity: capacity as u32,
    };
    let [keys, values] = caches.map(|cache| Data::floats(element, &cache));
    let buffers = vec![case.positions(), Data::F32(angles), Data::F32(qkv), keys, values];
    let extent = [case.tokens() * case.row() / 2, 1, 1];
    Problem::updating(kernel, format!("{} {element:?}", case.name()), params, buffers, extent, Box::new(judge)).folded()
}

pub fn problems(kernel: &'static Kernel) -> Vec<Problem> {
    let cases = [
        Case::new(1, 1, 2, 1, 1).at(&[0]),
        Case::new(2, 1, 6, 127, 1).at(&[126]),
        Case::new(3, 1, 14, 129, 1).at(&[127]).splits(2),
        Case::new(8, 2, 40, 301, 1).at(&[299]).splits(5),
        Case::new(4, 1, 64, 300, 1).at(&[0, 128, 299, 5]).runs(1, 3).splits(2),
        Case::new(2, 2, 256, 131, 2).at(&[129]),
        // Rows of a tile that end in a run, and positions that some of them do not see.
        Case::new(3, 1, 6, 141, 21).at(&[120]).splits(2),
        Case::new(8, 1, 32, 131, 3).at(&[126]),
        Case::new(2, 1, 128, 20, 11).at(&[9, 0]).runs(0, 2),
    ];
    cases.iter().flat_map(|case| [Element::F32, Element::F16].map(|element| attention_problem(kernel, case, element))).collect()
}

fn attention_problem(kernel: &'static Kernel, case: &Case, element: Element) -> Problem {
    let mut rng = rng(67);
    let &Case { heads, kv_heads, head_dim, capacity, slot, run, sequences, splits, .. } = case;
    let qkv = numbers(&mut rng, case.tokens() * case.row(), 1.5);
    // What is not seen, of slots or of positions, must not count; what pads a head is 0.
    let mut caches = [(); 2].map(|()| vec![f32::NAN; case.cache_len()]);
    for slot in slot..slot + sequences {
        for (head, position) in (0..kv_heads).flat_map(|head| (0..case.positions[slot] + run).map(move |position| (head, position))) {
            for d in 0..case.quads() * 4 {
                let [key, value] = if d < head_dim { [(); 2].map(|()| numbers(&mut rng, 1, 1.5)[0]) } else { [0.0; 2] };
                caches[0][case.key_at(slot, head, position, d)] = key;
                caches[1][case.value_at(slot, head, position, d)] = value;
            }
        }
    }
    let scale = (head_dim as f32).sqrt().recip();
    let rows = (0..case.tokens()).flat_map(|token| (0..heads).map(move |head| (token, head)));
    let wanted: Vec<Near> = rows.flat_map(|(token, head)| attended(case, &qkv, &caches, scale, token, head)).collect();
    let shares = case.tokens() * heads;
    let judge = move |got: &[Data], _: Leeway| {
        let (Data::F32(y), Data::F32(weights)) = (&got[4], &got[5]) else { panic!("bindings of another type") };
        // Shares are weighed as attention_combine does it, whatever they are shares of.
        Data::F32(combined(y, weights, shares, head_dim, splits).into_iter().map(|(y, _)| y as f32).collect())
            .check_near(wanted.iter().copied())
    };
    let params = Attention {
        run: run as u32,
        slot: slot as u32,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        capacity: capacity as u32,
        splits: splits as u32,
        scale,
    };
    let [keys, values] = caches.map(|cache| Data::floats(element, &cache));
    let inputs = vec![case.positions(), Data::F32(qkv), keys, values];
    let outputs = vec![Data::F32(vec![0.0; splits * shares * head_dim]), Data::F32(vec![0.0; splits * shares * 2])];
    let extent = [run * (heads / kv_heads), kv_heads * splits, sequences];
    Problem::new(kernel, format!("{} {element:?}", case.name()), params, inputs, outputs, extent, Box::new(judge))
}

/// What a token's head makes of all that it sees.
fn attended(case: &Case, qkv: &[f32], [keys, values]: &[Vec<f32>; 2], scale: f32, token: usize, head: usize) -> Vec<Near> {
    let (dim, shared) = (case.head_dim, head / (case.heads / case.kv_heads));
    let (slot, last) = case.place(token);
    let q = &qkv[token * case.row() + head * dim..][..dim];
    let term = |position: usize, d: usize| f64::from(q[d]) * f64::from(keys[case.key_at(slot, shared, position, d)]) * f64::from(scale);
    let scores: Vec<f64> = (0..=last).map(|position| (0..dim).map(|d| term(position, d)).sum()).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    // As in tests/transformer.rs: a score strays by a rounding of q, of a product, and of less than D sums; then come differences, exponentials
    // (3 + 2·|x| units, as WGSL has it) and products on the way to the largest score of a tile and to those of later ones.
    let steps = (last / 128 + 3) as f64;
    let stray = |position: usize| {
        let score = (0..dim).map(|d| term(position, d).abs()).sum::<f64>() * (dim + 2) as f64;
        ((score + 5.0 * (largest - scores[position]) + 7.0 * steps) * U).exp_m1()
    };
    let strays: Vec<f64> = (0..=last).map(stray).collect();
    let output = |d: usize| {
        let v = |position: usize| f64::from(values[case.value_at(slot, shared, position, d)]);
        let mean = |of: &dyn Fn(usize) -> f64| (0..=last).map(|position| weights[position] * of(position)).sum::<f64>() / total;
        let exact = mean(&v);
        // Sums of weights and of weighted values in some order, their quotient, and this file's last rounding.
        let sums = 2.0 * (last + 12) as f64 * U * mean(&|position| v(position).abs());
        Near { exact, error: mean(&|position| strays[position] * (v(position).abs() + exact.abs())) + sums }
    };
    (0..dim).map(output).collect()
}

/// Σ w·x / Σ w over the shares, w = total · e^(largest - the largest of all), and Σ w·|x| / Σ w.
fn combined(x: &[f32], x_weight: &[f32], heads: usize, head_dim: usize, splits: usize) -> Vec<(f64, f64)> {
    let output = |place: usize| {
        let weight = |split: usize| &x_weight[(split * heads + place / head_dim) * 2..][..2];
        let largest = (0..splits).map(|split| weight(split)[0]).fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> =
            (0..splits).map(|split| f64::from(weight(split)[1]) * f64::from(weight(split)[0] - largest).exp()).collect();
        let x = |split: usize| f64::from(x[split * heads * head_dim + place]);
        let mean =
            |of: &dyn Fn(f64) -> f64| (0..splits).map(|split| weights[split] * of(x(split))).sum::<f64>() / weights.iter().sum::<f64>();
        (mean(&|x| x), mean(&f64::abs))
    };
    (0..heads * head_dim).map(output).collect()
}

pub fn combine(kernel: &'static Kernel) -> Vec<Problem> {
    let mut rng = rng(71);
    let mut problems = Vec::new();
    for (heads, head_dim, splits) in [(1, 2, 1), (3, 6, 2), (7, 40, 5), (20, 128, 3), (1, 256, 32), (130, 14, 4)] {
        let x = numbers(&mut rng, splits * heads * head_dim, 3.0);
        // Exponentials of which overflow or vanish, unless it is those of differences.
        let mut weight = |i: usize| [rng.random_range(-9.0..9.0) + [500.0, -500.0][i % heads % 2], rng.random_range(0.5..99.0)];
        let mut weights: Vec<f32> = (0..splits * heads).flat_map(&mut weight).collect();
        // A share of nothing, as attention leaves it.
        if splits > 1 {
            weights[2..4].copy_from_slice(&[-1e30, 0.0]);
        }
        // A difference of at most 18 rounded, and exp of it, by (3 + 2·18) units; the weight, its product and the sums; a quotient; on both sides.
        let stray = 2.0 * (18.0 + 2.0 * 39.0 + splits as f64 + 8.0) * U;
        let near = |(exact, size): (f64, f64)| Near { exact, error: stray * size };
        let wanted: Vec<Near> = combined(&x, &weights, heads, head_dim, splits).into_iter().map(near).collect();
        let judge = move |got: &[Data], _: Leeway| got[2].check_near(wanted.iter().copied());
        let params = Combine { heads: heads as u32, head_dim: head_dim as u32, splits: splits as u32 };
        let (inputs, outputs) = (vec![Data::F32(x), Data::F32(weights)], vec![Data::F32(vec![0.0; heads * head_dim])]);
        let case = format!("{splits} shares of {heads} × {head_dim}");
        problems.push(Problem::new(kernel, case, params, inputs, outputs, [heads * head_dim, 1, 1], Box::new(judge)).folded());
    }
    problems
}
