//! `src/ops/recurrent/short_conv.rs`

use super::{Runs, SEQUENCES, dot};
use crate::{Case, Data, Near, Recorder, cases::tensor::activations::silu, floats, rng};
use bitnet_wgpu::{recurrent, reference, transformer::CachePositions};

/// Channels, columns of the input, tokens that are seen.
type Shape = (usize, usize, usize);

pub fn cases() -> Vec<Case> {
    let all: [(Shape, Runs); 4] = [
        ((1, 1, 2), Runs { of: &[[0, 0]], chunks: &[1] }),
        ((70, 83, 4), Runs { of: &[[2, 9], [0, 0]], chunks: &[1, 2, 6] }),
        ((33, 33, 16), Runs { of: &[[1, 3]], chunks: &[4, 20, 1, 1] }),
        // An index beyond the last is the last.
        ((5, 7, 3), Runs { of: &[[1, 0], [9, 1], [0, 7]], chunks: &[5, 1] }),
    ];
    (0u64..).zip(all).map(|(i, (shape, runs))| case(i, shape, runs)).collect()
}

/// Outputs within bounds, and the last tokens of each sequence as they are.
fn expected(
    x: &[f32],
    state: &[f32],
    weights: &[f32],
    shape: Shape,
    runs: Runs,
) -> (Vec<Near>, Vec<f32>) {
    let ((channels, stride, taps), mut state) = (shape, state.to_vec());
    let mut y = Vec::new();
    for (own, x) in runs.of.iter().zip(x.chunks_exact(runs.run() * stride)) {
        let before = (taps - 1) * channels;
        let kept = &mut state[(own[0] as usize).min(SEQUENCES - 1) * before..][..before];
        let mut seen = if own[1] > 0 { kept.to_vec() } else { vec![0.0; before] };
        seen.extend(x.chunks_exact(stride).flat_map(|row| &row[..channels]));
        for (t, c) in (0..runs.run()).flat_map(|t| (0..channels).map(move |c| (t, c))) {
            let products = (0..taps).map(|j| {
                (Near::exactly(weights[c * taps + j]), Near::exactly(seen[(t + j) * channels + c]))
            });
            let sum = dot(products);
            let (near, _) = silu(sum.exact, 0.0, [0.0; 2]);
            // The slope of silu is at most 1.1.
            y.push(Near { error: near.error + 1.1 * sum.error, ..near });
        }
        kept.copy_from_slice(&seen[runs.run() * channels..]);
    }
    (y, state)
}

/// What the CPU reference makes of it.
fn by_reference(x: &[f32], state: &[f32], weights: &[f32], shape: Shape, runs: Runs) -> Vec<Data> {
    let ((channels, stride, taps), mut state, mut y) = (shape, state.to_vec(), Vec::new());
    for (own, x) in runs.of.iter().zip(x.chunks_exact(runs.run() * stride)) {
        let before = (taps - 1) * channels;
        let kept = &mut state[(own[0] as usize).min(SEQUENCES - 1) * before..][..before];
        if own[1] == 0 {
            kept.fill(0.0);
        }
        y.extend(reference::short_conv(x, stride, weights, taps, kept).unwrap());
    }
    vec![Data::F32(y), Data::F32(state)]
}

fn case(seed: u64, shape: Shape, runs: Runs) -> Case {
    let (mut rng, (channels, stride, taps)) = (rng(seed), shape);
    let x = floats(&mut rng, runs.tokens() * stride, 3.0);
    let weights = floats(&mut rng, channels * taps, 2.0);
    let dims = [SEQUENCES, taps - 1, channels];
    let state = floats(&mut rng, dims.iter().product(), 3.0);
    let (y, last) = expected(&x, &state, &weights, shape, runs);
    let reference = by_reference(&x, &state, &weights, shape, runs);
    let check = move |got: &[Data], leeway| {
        got[0].check_near(y.iter().copied())?;
        got[1].check(&Data::F32(last.clone()), leeway)?;
        runs.check_chunks(got)
    };
    let record = move |r: &mut Recorder| {
        let weights = r.upload(&weights, [channels, taps])?;
        for ranges in [vec![(0, runs.run())], runs.ranges()] {
            let state = r.upload(&state, dims)?;
            for range in ranges {
                let x = runs.rows(&x, range);
                let x = r.upload(&x, [x.len() / stride, stride])?;
                let table = runs.table(r, range.0)?;
                let positions = CachePositions::new(&table, range.1);
                let y = r.output([x.shape().dims()[0], channels])?;
                recurrent::short_conv(&x, positions, &weights, &state)
                    .forward_into(&mut r.encoder, &y)?;
                r.watch_all(&y);
            }
            r.watch_all(&state);
        }
        Ok(())
    };
    let name = format!("{channels} of {stride}, {taps} taps, {:?} in {:?}", runs.of, runs.chunks);
    Case::new(name, record, check).reference(move || reference.clone())
}
