//! `src/ops/transformer/attention.rs`

use super::cache::Slots;
use crate::{Case, Data, Near, U, f16_floats, rng, seed};
use bitnet_wgpu::{
    Element, Out, reference,
    transformer::{CachePositions, HostKvCache, attention},
    tuning::TuningKey,
};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    let fixed = [
        (Slots::one(1, 1, 2, 0, 1), 1),
        (Slots::one(2, 1, 6, 126, 1), 1),
        (Slots::one(3, 1, 14, 127, 1), 2),
        (Slots::one(4, 1, 32, 128, 1), 5),
        (Slots::one(8, 1, 40, 299, 1), 3),
        (Slots::one(8, 2, 40, 299, 1), 5),
        // Shares of positions that are not there yet.
        (Slots::one(8, 2, 64, 299, 1), 40),
        (Slots::one(5, 5, 128, 128, 1), 2),
        (Slots::one(6, 2, 256, 40, 1), 1),
        (Slots::one(2, 2, 256, 129, 2), 1),
        // As many rows as a kernel for few takes, and one more.
        (Slots::one(2, 1, 6, 126, 2), 1),
        (Slots::one(1, 1, 40, 124, 5), 1),
        // Tiles of rows that end in a run, and positions that some rows of a tile do not see.
        (Slots::one(3, 1, 6, 120, 21), 2),
        (Slots::one(3, 1, 14, 0, 129), 1),
        (Slots::one(4, 2, 6, 120, 20), 5),
        (Slots::one(8, 1, 32, 126, 3), 1),
        (Slots::one(8, 1, 32, 297, 3), 2),
        (Slots::one(2, 2, 256, 250, 11), 3),
        (Slots::one(2, 1, 128, 0, 11).of(&[9, 0], &[0, 1]), 1),
        (Slots::one(4, 1, 64, 0, 1).of(&[0, 128, 299, 5], &[3, 1, 2]), 2),
        (Slots::one(4, 2, 40, 0, 1).of(&[0, 5, 127, 128, 299], &[0, 1, 2, 3, 4]), 2),
        (Slots::one(4, 1, 14, 0, 7).of(&[9, 130, 0, 3], &[1, 0]), 2),
        (Slots::one(2, 1, 2, 0, 1).of(&[3, 3], &[]), 1),
        // Windows of one position, within a share, of one, and of more; that begin within a tile;
        // of sequences that are shorter.
        (Slots::one(2, 1, 6, 130, 1).window(1), 2),
        (Slots::one(4, 1, 14, 300, 1).window(64), 1),
        (Slots::one(4, 2, 40, 299, 1).window(65), 3),
        (Slots::one(8, 2, 64, 255, 1).window(130), 1),
        (Slots::one(8, 1, 32, 120, 3).window(7), 2),
        (Slots::one(3, 1, 6, 120, 21).window(10), 1),
        (Slots::one(2, 2, 256, 250, 11).window(70), 2),
        (Slots::one(3, 1, 14, 0, 129).window(66), 1),
        (Slots::one(4, 1, 64, 0, 1).of(&[0, 128, 299, 5], &[3, 1, 2]).window(90), 2),
        (Slots::one(4, 1, 14, 0, 7).of(&[9, 130, 0, 3], &[1, 0]).window(12), 2),
    ];
    let fixed = (0u64..).zip(fixed).map(|(i, (slots, rooms))| (rng(i), slots, rooms));
    let random = (0..20).map(|i| {
        let mut rng = rng(1000 * seed() + i);
        let (kv_heads, sharing) = (rng.random_range(1..4), rng.random_range(1..5));
        let run = if rng.random_bool(0.5) { 1 } else { rng.random_range(1..20) };
        let positions: Vec<usize> =
            (0..rng.random_range(1..4)).map(|_| rng.random_range(0..300)).collect();
        let used = Slots::some(&mut rng, positions.len());
        let slots = Slots::one(kv_heads * sharing, kv_heads, 2 * rng.random_range(1..50), 0, run)
            .of(&positions, &used);
        let slots =
            if rng.random_bool(0.4) { slots.window(rng.random_range(1..200)) } else { slots };
        let rooms = rng.random_range(1..6);
        (rng, slots, rooms)
    });
    let mut cases = Vec::new();
    for (mut rng, slots, rooms) in fixed.chain(random.collect::<Vec<_>>()) {
        for element in [Element::F32, Element::F16] {
            let rows = f16_floats(&mut rng, rows_len(&slots), 1.5);
            if slots.run < 3 {
                // Shares that a second dispatch brings together.
                let slots = with_room(slots.clone(), rooms);
                let attention = Attention {
                    slots,
                    rooms,
                    element,
                    rows: rows.clone(),
                    exact: false,
                    halves: false,
                };
                cases.push(attention.case("in two dispatches").on(|c| c.device_barriers = false));
            }
            cases.push(
                Attention {
                    slots: with_room(slots.clone(), rooms),
                    rooms,
                    element,
                    rows,
                    exact: false,
                    halves: false,
                }
                .case("plain"),
            );
        }
    }
    cases.extend(huge_scores());
    cases.extend(in_two_buffers());
    cases
}

/// Prompts with heads of 128, by the kernel that GPUs have for them: rows of several tiles, positions
/// that some rows of a tile do not see, and windows that begin in a share.
fn in_two_buffers() -> Vec<Case> {
    let all = [
        (Slots::one(4, 1, 128, 70, 9), Element::F32, 1),
        (Slots::one(2, 2, 128, 30, 35).window(50), Element::F16, 1),
        (Slots::one(3, 1, 128, 0, 11).of(&[0, 65, 120], &[2, 0]), Element::F16, 2),
    ];
    let case = |(i, (slots, element, rooms)): (u64, (Slots, Element, usize))| {
        let rows = f16_floats(&mut rng(900 + i), rows_len(&slots), 1.5);
        let slots = with_room(slots, rooms);
        let attention = Attention { slots, rooms, element, rows, exact: false, halves: false };
        attention.case("in two buffers").on(|c| {
            c.tuning.set(TuningKey::AttentionSplitWorkgroups, 0).unwrap();
            c.tuning.set(TuningKey::AttentionBufferedRows, 0).unwrap();
        })
    };
    (0..).zip(all).map(case).collect()
}

/// Runs that tensor cores take, and some that they do not.
pub fn in_f16() -> Vec<Case> {
    let fixed = [
        (Slots::one(2, 1, 64, 0, 64), 1.0),
        (Slots::one(2, 2, 64, 5, 70), 1.0),
        // Scores that grow with the position, so that sums are scaled.
        (Slots::one(4, 1, 64, 100, 65), 12.0),
        (Slots::one(3, 1, 64, 31, 129), 12.0),
        (Slots::one(1, 1, 64, 40, 66), 12.0),
        (Slots::one(1, 1, 128, 37, 65), 12.0),
        (Slots::one(2, 1, 32, 63, 65), 12.0),
        (Slots::one(6, 3, 128, 40, 66), 12.0),
        (Slots::one(2, 1, 64, 0, 64).of(&[0, 33, 90, 5], &[3, 1, 2]), 1.0),
        (Slots::one(2, 2, 32, 0, 100).of(&[64, 1], &[1, 0]), 12.0),
        // Many tiles: larger ones.
        (Slots::one(75, 75, 128, 0, 64).of(&[0, 1], &[1, 0]), 12.0),
        // A width, a run and a type of cache that are for other kernels.
        (Slots::one(2, 1, 40, 3, 66), 1.0),
        (Slots::one(2, 1, 64, 3, 63), 1.0),
        (Slots::one(2, 1, 64, 3, 70).window(20), 1.0),
        // Windows that begin in a tile and in a span, and of which rows of a tile see nothing at first.
        (Slots::one(4, 2, 32, 60, 90).window(37), 12.0),
        (Slots::one(2, 1, 32, 0, 130).window(3), 1.0),
        (Slots::one(8, 2, 128, 70, 130).window(64), 12.0),
        (Slots::one(3, 1, 96, 30, 100), 12.0),
        // Tiles of 128 rows.
        (Slots::one(75, 75, 64, 0, 64).of(&[0, 1], &[1, 0]), 12.0),
    ];
    let fixed = (0u64..).zip(fixed).map(|(i, (slots, growth))| (rng(800 + i), slots, growth));
    let random = (0..6).map(|i| {
        let mut rng = rng(1000 * seed() + 800 + i);
        let (kv_heads, sharing, head_dim) = (
            rng.random_range(1..4),
            rng.random_range(1..5),
            [32, 64, 96, 128][rng.random_range(0..4)],
        );
        let positions: Vec<usize> =
            (0..rng.random_range(1..3)).map(|_| rng.random_range(0..150)).collect();
        let used = Slots::some(&mut rng, positions.len());
        let slots =
            Slots::one(kv_heads * sharing, kv_heads, head_dim, 0, rng.random_range(64..140))
                .of(&positions, &used);
        (rng, slots, 12.0)
    });
    let case = |(mut rng, slots, growth): (SmallRng, Slots, f32), element| {
        let mut rows = f16_floats(&mut rng, rows_len(&slots), 1.0);
        let (shape, row) = (slots.shape, slots.shape.row());
        let mut tokens = rows.chunks_exact_mut(row);
        for length in slots.positions.iter().map(|past| past + slots.run) {
            for (position, token) in tokens.by_ref().take(length).enumerate() {
                let growth = 1.0 + (growth - 1.0) * position as f32 / length as f32;
                let keys =
                    &mut token[shape.heads * shape.head_dim..][..shape.kv_heads * shape.head_dim];
                keys.iter_mut()
                    .for_each(|k| *k = Data::floats(Element::F16, &[*k * growth]).to_f32()[0]);
            }
        }
        Attention { slots, rooms: 1, element, rows, exact: false, halves: true }.case("in f16")
    };
    // Every other one without the elements of matrices, but for heads and windows that only those have.
    let by_turns = |(i, of)| {
        let case = case(of, Element::F16);
        if i % 2 == 0 || (14..18).contains(&i) {
            case
        } else {
            case.on(|c| c.matrix_elements = false)
        }
    };
    let mut cases: Vec<_> =
        (0..).zip(fixed.chain(random.collect::<Vec<_>>())).map(by_turns).collect();
    cases.push(case((rng(820), Slots::one(2, 1, 64, 3, 66), 1.0), Element::F32));
    cases
}

/// Numbers of all tokens of all slots.
fn rows_len(slots: &Slots) -> usize {
    slots.positions.iter().map(|past| (past + slots.run) * slots.shape.row()).sum()
}

/// Exponentials of which overflow or vanish, unless it is those of differences.
fn huge_scores() -> Vec<Case> {
    let mut cases = Vec::new();
    for element in [Element::F32, Element::F16] {
        for (run, rooms) in [(1, 1), (1, 3), (5, 2)] {
            let slots = with_room(Slots::one(4, 2, 64, 290, run), rooms);
            // Whole numbers, products and sums of which are: 64·500² < 2^24, over 8.
            let mut rows: Vec<f32> = f16_floats(&mut rng(30), rows_len(&slots), 500.0)
                .iter()
                .map(|v| v.round())
                .collect();
            // Values that tell which position won.
            for row in rows.chunks_mut(slots.shape.row()) {
                row[6 * 64..].iter_mut().for_each(|v| *v /= 512.0);
            }
            cases.push(
                Attention { slots, rooms, element, rows, exact: true, halves: false }
                    .case("huge scores"),
            );
        }
    }
    // Scores up to 2^118 and down to -2^93 (-10^30 is less than any may be); equal ones share the
    // weight.
    for (key, query) in
        [(2f32.powi(60), 2f32.powi(60)), (-2f32.powi(50), 2f32.powi(45)), (2f32.powi(60), 0.0)]
    {
        let slots = Slots::one(2, 1, 16, 200, 1);
        let mut rows = f16_floats(&mut rng(31), rows_len(&slots), 1.0);
        for (token, row) in rows.chunks_mut(slots.shape.row()).enumerate() {
            row[..3 * 16].fill(0.0);
            (row[3], row[16 + 3], row[32 + 3]) =
                (query, -query.min(2f32.powi(30)), if token % 3 == 0 { key } else { key / 2.0 });
        }
        cases.push(
            Attention { slots, rooms: 2, element: Element::F32, rows, exact: true, halves: false }
                .case(&format!("keys of {key:e}")),
        );
    }
    cases
}

#[derive(Clone)]
struct Attention {
    slots: Slots,
    rooms: usize,
    element: Element,
    /// Queries, keys and values of all tokens, slot after slot: `[heads + 2·kv_heads, D]` each.
    rows: Vec<f32>,
    /// Whether scores are exact in `f32`.
    exact: bool,
    /// Queries and weights may be rounded to f16.
    halves: bool,
}

/// Room for this many shares, less one, beyond what sequences have.
fn with_room(slots: Slots, rooms: usize) -> Slots {
    let capacity = slots.capacity + 64 * (rooms - 1);
    slots.capacity(capacity)
}

impl Attention {
    fn case(self, kind: &str) -> Case {
        let Self { slots, rooms, element, .. } = &self;
        let (name, element) = (format!("{kind}, {slots:?} {element:?}, {rooms} rooms"), *element);
        // Some are added to ones, as one share and as several.
        let base = if (rooms + slots.run) % 3 == 2 { 1.0f32 } else { 0.0 };
        let expected: Vec<Near> =
            self.expected().into_iter().map(|near| near.on_top_of(base)).collect();
        // A bound that shows something.
        assert!(expected.iter().all(|near| near.error < 0.1), "{name}");
        let (reference, [qkv, keys, values]) = (self.clone(), self.data());
        let caches = [keys, values];
        let record = move |r: &mut crate::Recorder| {
            let Self { slots, element, .. } = &self;
            let (cache, runs) = slots.upload(r, *element, &caches)?;
            let qkv = r.upload(&qkv, [slots.tokens(), slots.shape.row()])?;
            let shape = [slots.tokens(), slots.shape.heads * slots.shape.head_dim];
            let positions = CachePositions::new(&runs, slots.run);
            let y = r.upload(&vec![base; shape[0] * shape[1]], shape)?;
            let mut op = attention(&qkv, positions, &cache).max_len(slots.capacity);
            // They turn nothing.
            let angles = r.upload(
                &[1.0, 0.0].repeat(slots.capacity * slots.shape.head_dim / 2),
                [slots.capacity, slots.shape.head_dim / 2, 2],
            )?;
            if self.halves {
                op = op.f16();
            }
            if self.halves && base != 0.0 {
                op = op.rope(&angles);
            }
            let y = if base == 0.0 {
                op.forward(&mut r.encoder)?
            } else {
                op.forward_into(&mut r.encoder, Out::add(&y))?;
                y
            };
            r.watch_all(&y);
            Ok(())
        };
        let case = Case::near(name, expected, record).of(element);
        let most = if reference.halves { 1_500_000 } else { 150_000 };
        let case = if reference.products() > most { case.device_only() } else { case };
        case.reference(move || {
            vec![Data::F32(reference.by_cpu().iter().map(|y| y + base).collect())]
        })
    }

    /// A row of a slot's tokens.
    fn row(&self, slot: usize, token: usize) -> &[f32] {
        let (slots, row) = (&self.slots, self.slots.shape.row());
        let before: usize = slots.positions[..slot].iter().map(|past| past + slots.run).sum();
        &self.rows[(before + token) * row..][..row]
    }

    fn used(&self) -> impl Iterator<Item = usize> {
        self.slots.used.iter().copied()
    }

    /// New tokens, keys and values. What is not seen, of slots or of positions, must not count;
    /// what pads a head is 0.
    fn data(&self) -> [Vec<f32>; 3] {
        let (slots, shape) = (&self.slots, self.slots.shape);
        let [mut keys, mut values] = [(); 2].map(|()| vec![f32::NAN; slots.cache_len()]);
        let mut qkv = Vec::new();
        for slot in self.used() {
            for position in 0..slots.positions[slot] + slots.run {
                let row = self.row(slot, position);
                for (head, d) in
                    (0..shape.kv_heads).flat_map(|head| (0..slots.padded()).map(move |d| (head, d)))
                {
                    let number = |first: usize| {
                        if d < shape.head_dim {
                            row[(first + head) * shape.head_dim + d]
                        } else {
                            0.0
                        }
                    };
                    keys[slots.key_at(slot, head, position, d)] = number(shape.heads);
                    values[slots.value_at(slot, head, position, d)] =
                        number(shape.heads + shape.kv_heads);
                }
                if position >= slots.positions[slot] {
                    qkv.extend_from_slice(row);
                }
            }
        }
        [qkv, keys, values]
    }

    /// How many numbers are multiplied with keys.
    fn products(&self) -> usize {
        let positions: usize =
            self.used().map(|slot| self.slots.positions[slot] + self.slots.run).sum();
        self.slots.run * positions * self.slots.shape.heads * self.slots.shape.head_dim
    }

    fn by_cpu(&self) -> Vec<f32> {
        let one = |slot: usize| {
            let past = self.slots.positions[slot];
            let tokens: Vec<f32> = (0..past + self.slots.run)
                .flat_map(|token| self.row(slot, token))
                .copied()
                .collect();
            // Turns nothing, so that the cache holds what keys and values are.
            let angles = [1.0, 0.0].repeat((past + self.slots.run) * self.slots.shape.head_dim / 2);
            let mut cache = HostKvCache::new(self.slots.shape).unwrap().window(self.slots.window);
            reference::rope(&mut tokens.clone(), &angles, &mut cache).unwrap();
            reference::attention(&tokens[past * self.slots.shape.row()..], &cache).unwrap()
        };
        self.used().flat_map(one).collect()
    }

    /// What attention is, in `f64`, and by how much `f32` may miss it: for every output.
    fn expected(&self) -> Vec<Near> {
        let shape = self.slots.shape;
        let (heads, kv_heads, head_dim) = (shape.heads, shape.kv_heads, shape.head_dim);
        let scale = f64::from((head_dim as f32).sqrt().recip());
        let mut all = Vec::new();
        for slot in self.used() {
            let row =
                |token: usize, head: usize| &self.row(slot, token)[head * head_dim..][..head_dim];
            for (token, head) in
                (0..self.slots.run).flat_map(|token| (0..heads).map(move |head| (token, head)))
            {
                let (last, shared) =
                    (self.slots.positions[slot] + token, head / (heads / kv_heads));
                let q = row(last, head);
                let begin = self.slots.window.map_or(0, |window| (last + 1).saturating_sub(window));
                let terms = |position: usize| {
                    q.iter()
                        .zip(row(position, heads + shared))
                        .map(|(&q, &k)| f64::from(q) * f64::from(k) * scale)
                };
                let scores: Vec<f64> =
                    (0..=last)
                        .map(|position| {
                            if position < begin { f64::NEG_INFINITY } else { terms(position).sum() }
                        })
                        .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> =
                    scores.iter().map(|score| (score - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                // A score strays by a rounding of q, of a product, and of less than D sums. What
                // all scores have in common cancels out. Then there are a difference, which is off
                // by U·|x|, and exp, by (3 + 2·|x|)·2U as WGSL has it, on the way from the score to
                // the largest of its tile, from there to those of later tiles and of other shares:
                // the |x| add up to that of the whole way; and a product each.
                let steps = (last / 64 + 3) as f64;
                // Half a unit of a half, of a query and of a weight, and of the least half where a
                // weight is less. A tensor core may cut off where others round, and does so where
                // products are brought to one exponent: that is taken for eight times the error of
                // a sum in `f32`.
                let (half, least, unit) = if self.halves {
                    (2f64.powi(-11), 2f64.powi(-25), 8.0)
                } else {
                    (0.0, 0.0, 1.0)
                };
                let stray = |position: usize| {
                    let error = (head_dim + 2) as f64 * U * unit + half;
                    let score = if self.exact {
                        0.0
                    } else {
                        terms(position).map(f64::abs).sum::<f64>() * error
                    };
                    (1.0 + half)
                        * (score + (5.0 * (largest - scores[position]) + 7.0 * steps) * U).exp()
                        - 1.0
                };
                // Where a weight is nothing, so is what it strays.
                let strays: Vec<f64> = (0..=last)
                    .map(|p| least + if weights[p] == 0.0 { 0.0 } else { weights[p] * stray(p) })
                    .collect();
                for d in 0..head_dim {
                    let v =
                        |position: usize| f64::from(row(position, heads + kv_heads + shared)[d]);
                    let mean = |weights: &[f64], of: &dyn Fn(usize) -> f64| {
                        (0..=last).map(|position| weights[position] * of(position)).sum::<f64>()
                            / total
                    };
                    let exact = mean(&weights, &v);
                    // Sums of weights and of weighted values in some order, their quotient (2.5
                    // units), and weights that are flushed.
                    let sums =
                        2.0 * unit * (last + 12) as f64 * U * mean(&weights, &|p| v(p).abs())
                            + 1e-30;
                    all.push(Near {
                        exact,
                        error: mean(&strays, &|p| v(p).abs() + exact.abs()) + sums,
                    });
                }
            }
        }
        all
    }
}
