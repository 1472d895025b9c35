//! `src/ops/recurrent/gated_delta.rs`

use super::{Runs, SEQUENCES, dot, inverse_length};
use crate::{
    Case, Data, Near, Recorder, U,
    cases::tensor::{
        activations::{product, sigma, softplus, sum},
        unary::{near, times},
    },
    floats, rng, seed,
};
use bitnet_wgpu::{
    recurrent::{self, DeltaRates, DeltaShape},
    reference,
    transformer::CachePositions,
};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    let shape = |key_heads, value_heads, key_dim, value_dim, tiled| DeltaShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        tiled,
        regrouped: false,
    };
    let two = Runs { of: &[[2, 9], [0, 0]], chunks: &[1, 2, 5] };
    let mut all = vec![
        (shape(1, 1, 1, 1, false), Runs { of: &[[0, 0]], chunks: &[1] }),
        (shape(2, 6, 12, 10, true), two),
        (shape(2, 4, 33, 65, false), Runs { of: &[[1, 0], [9, 1], [0, 7]], chunks: &[3, 1] }),
        (shape(1, 2, 128, 128, false), Runs { of: &[[1, 4]], chunks: &[1, 2] }),
        (shape(1, 1, 256, 31, true), Runs { of: &[[1, 1]], chunks: &[1, 1] }),
    ];
    let mut rng = rng(1000 * seed());
    all.extend((0..3).map(|_| {
        let (heads, group) = (rng.random_range(1..4), rng.random_range(1..4));
        let (key_dim, value_dim) = (rng.random_range(1..100), rng.random_range(1..100));
        (shape(heads, heads * group, key_dim, value_dim, rng.random()), two)
    }));
    let long = Runs { of: &[[0, 0]], chunks: &[LONG - 100, 100] };
    let lasting = case(&mut rng, shape(1, 2, 6, 5, false), long, LASTING);
    all.into_iter().map(|(shape, runs)| case(&mut rng, shape, runs, 1.0)).chain([lasting]).collect()
}

/// Tokens of a long text: twice as many as what is written lasts.
const LONG: usize = 2000;

/// Decays of a thousandth: what is written is there for thousands of tokens.
const LASTING: f32 = 1e-3;

/// What an op is given.
struct Inputs {
    mixed: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
    dt_bias: Vec<f32>,
    decay: Vec<f32>,
    state: Vec<f32>,
}

impl Inputs {
    fn random(rng: &mut SmallRng, shape: DeltaShape, tokens: usize, decay: f32) -> Self {
        let heads = shape.value_heads;
        Self {
            mixed: floats(rng, tokens * shape.mixed(), 2.0),
            alpha: floats(rng, tokens * heads, 4.0),
            beta: floats(rng, tokens * heads, 4.0),
            dt_bias: floats(rng, heads, 1.0),
            decay: floats(rng, heads, decay).into_iter().map(|v| -v.abs()).collect(),
            state: floats(rng, SEQUENCES * shape.state(), 1.0),
        }
    }

    /// The rates of a token and head: what its state is multiplied by, and how much is written.
    fn rates(&self, token: usize, head: usize, heads: usize) -> (Near, Near) {
        let at = token * heads + head;
        let sum = f64::from(self.alpha[at]) + f64::from(self.dt_bias[head]);
        let (soft, _) = softplus(sum, 0.0, [0.0; 2]);
        // Its slope is at most 1.
        let soft = Near { error: soft.error + U * sum.abs(), ..soft };
        let power = times(soft, self.decay[head].into(), 1.0);
        let kept = near(power.exact.exp(), 4.0 + 2.0 * power.exact.abs());
        let kept = Near { error: kept.error + 1.01 * kept.exact * power.error, ..kept };
        (kept, sigma(self.beta[at].into(), 0.0))
    }
}

/// A query or a key, divided by its length.
fn unit(x: &[f32], scale: f64) -> Vec<Near> {
    let factor = times(inverse_length(x, 1.0, 1e-6), scale, 8.0);
    x.iter().map(|&x| times(factor, x.into(), 1.0)).collect()
}

/// A column of a state, and what it is off by at most: its length as a vector.
struct Column {
    numbers: Vec<Near>,
    off: f64,
}

impl Column {
    fn new(numbers: Vec<Near>) -> Self {
        Self { numbers, off: 0.0 }
    }

    /// Appends a token; returns what it reads.
    ///
    /// A bound for each number counts each error as often as it is multiplied, and grows with the
    /// text. But (1 - β k kᵀ) makes no vector longer, since β and the length of k are at most 1. So
    /// an error before the token is at most `kept` times as long after it, and the token's own
    /// rounding is added: the bound of a long text.
    fn append(
        &mut self,
        [query, key]: [&[Near]; 2],
        value: f32,
        (kept, written): (Near, Near),
    ) -> Near {
        let step = |numbers: &[Near]| {
            let decayed: Vec<Near> = numbers.iter().map(|&v| product(v, kept)).collect();
            let known = dot(decayed.iter().copied().zip(key.iter().copied()));
            let known = Near { exact: -known.exact, ..known };
            let delta = product(sum(Near::exactly(value), known), written);
            let next = decayed.iter().zip(key).map(|(&v, &key)| sum(v, product(key, delta)));
            let next: Vec<Near> = next.collect();
            let read = dot(next.iter().copied().zip(query.iter().copied()));
            (next, read)
        };
        let length = |errors: &mut dyn Iterator<Item = f64>| {
            errors.map(|error| error * error).sum::<f64>().sqrt()
        };
        let alone: Vec<Near> = self.numbers.iter().map(|&v| Near { error: 0.0, ..v }).collect();
        let ((own, own_read), (next, read)) = (step(&alone), step(&self.numbers));
        self.off =
            (kept.exact + kept.error) * self.off + 1.01 * length(&mut own.iter().map(|v| v.error));
        let of_query = length(&mut query.iter().map(|v| v.exact.abs() + v.error));
        self.numbers =
            next.into_iter().map(|v| Near { error: v.error.min(self.off), ..v }).collect();
        let error = read.error.min(own_read.error + of_query * self.off);
        Near { error, ..read }
    }
}

/// Outputs and states in f64, with bounds that follow from their inputs'.
fn expected(inputs: &Inputs, shape: DeltaShape, runs: Runs) -> [Vec<Near>; 2] {
    let (heads, width, size) = (shape.value_heads, shape.value_dim, shape.key_dim);
    let mut states: Vec<Near> = inputs.state.iter().map(|&v| Near::exactly(v)).collect();
    let mut y = vec![Near::exactly(0.0); runs.tokens() * shape.values()];
    let all = runs.of.iter().enumerate().flat_map(|own| (0..heads).map(move |head| (own, head)));
    for ((place, &[sequence, past]), head) in all {
        let sequence = (sequence as usize).min(SEQUENCES - 1);
        let state = &mut states[(sequence * heads + head) * size * width..][..size * width];
        if past == 0 {
            state.fill(Near::exactly(0.0));
        }
        let column = |c: usize| Column::new((0..size).map(|k| state[k * width + c]).collect());
        let mut columns: Vec<Column> = (0..width).map(column).collect();
        for token in place * runs.run()..(place + 1) * runs.run() {
            let row = &inputs.mixed[token * shape.mixed()..][..shape.mixed()];
            let (at, keys) = (shape.key_head(head) * size, shape.key_heads * size);
            let query = unit(&row[at..][..size], 1.0 / (size as f64).sqrt());
            let key = unit(&row[keys + at..][..size], 1.0);
            let (kept, written) = inputs.rates(token, head, heads);
            let own = &mut y[(token * heads + head) * width..][..width];
            for (c, (column, y)) in columns.iter_mut().zip(own).enumerate() {
                let value = row[2 * keys + head * width + c];
                *y = column.append([&query, &key], value, (kept, written));
            }
        }
        for (c, column) in columns.into_iter().enumerate() {
            (0..size).for_each(|k| state[k * width + c] = column.numbers[k]);
        }
    }
    // What errors make of errors.
    [y, states].map(|all| all.into_iter().map(|v| Near { error: 1.01 * v.error, ..v }).collect())
}

/// What the CPU reference makes of it.
fn by_reference(inputs: &Inputs, shape: DeltaShape, runs: Runs) -> Vec<Data> {
    let (mut state, mut y) = (inputs.state.clone(), Vec::new());
    for (place, &[sequence, past]) in runs.of.iter().enumerate() {
        let own = |all: &Vec<f32>, width: usize| {
            all[place * runs.run() * width..][..runs.run() * width].to_vec()
        };
        let (alpha, beta) =
            (own(&inputs.alpha, shape.value_heads), own(&inputs.beta, shape.value_heads));
        let rates = DeltaRates {
            alpha: &alpha[..],
            beta: &beta[..],
            dt_bias: &inputs.dt_bias[..],
            decay: &inputs.decay[..],
        };
        let sequence = (sequence as usize).min(SEQUENCES - 1);
        let state = &mut state[sequence * shape.state()..][..shape.state()];
        if past == 0 {
            state.fill(0.0);
        }
        let mixed = own(&inputs.mixed, shape.mixed());
        y.extend(reference::gated_delta(shape, &mixed, &rates, state).unwrap());
    }
    vec![Data::F32(y), Data::F32(state)]
}

fn case(rng: &mut SmallRng, shape: DeltaShape, runs: Runs, decay: f32) -> Case {
    let inputs = Inputs::random(rng, shape, runs.tokens(), decay);
    let [y, states] = expected(&inputs, shape, runs);
    let reference = by_reference(&inputs, shape, runs);
    let check = move |got: &[Data], _| {
        got[0].check_near(y.iter().copied())?;
        got[1].check_near(states.iter().copied()).map_err(|error| format!("state: {error}"))?;
        runs.check_chunks(got)
    };
    let record = move |r: &mut Recorder| {
        let heads = shape.value_heads;
        let (dt_bias, decay) =
            (r.upload(&inputs.dt_bias, [heads])?, r.upload(&inputs.decay, [heads])?);
        for ranges in [vec![(0, runs.run())], runs.ranges()] {
            let dims = [SEQUENCES, heads, shape.key_dim, shape.value_dim];
            let state = r.upload(&inputs.state, dims)?;
            for range in ranges {
                let tokens = range.1 * runs.of.len();
                let mixed = r.upload(&runs.rows(&inputs.mixed, range), [tokens, shape.mixed()])?;
                let alpha = r.upload(&runs.rows(&inputs.alpha, range), [tokens, heads])?;
                let beta = r.upload(&runs.rows(&inputs.beta, range), [tokens, heads])?;
                let rates =
                    DeltaRates { alpha: &alpha, beta: &beta, dt_bias: &dt_bias, decay: &decay };
                let table = runs.table(r, range.0)?;
                let positions = CachePositions::new(&table, range.1);
                let y = r.output([tokens, shape.values()])?;
                recurrent::gated_delta(shape, &mixed, rates, positions, &state)
                    .forward_into(&mut r.encoder, &y)?;
                r.watch_all(&y);
            }
            r.watch_all(&state);
        }
        Ok(())
    };
    let name = format!("{shape}, tiled {}, {:?} in {:?}", shape.tiled, runs.of, runs.chunks);
    Case::new(name, record, check).reference(move || reference.clone())
}
