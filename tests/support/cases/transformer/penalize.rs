//! `src/ops/transformer/penalize.rs`

use crate::{Case, Data, floats, random_shapes, rng, seed};
use bitnet_wgpu::{
    reference,
    transformer::{CachePositions, Penalizer, Penalties},
};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    let all = [
        (1.0, 0.0, 0.0),
        (1.3, 0.0, 0.0),
        (0.7, 0.0, 0.0),
        (1.0, 0.6, 0.0),
        (1.0, 0.0, 0.37),
        (1.1, -0.3, 0.21),
    ];
    let mut cases = Vec::new();
    for (i, (rows, vocab)) in (0..).zip([(1, 1), (3, 33), (2, 1000), (1, 70_001), (0, 5), (2, 0)]) {
        let all = all.map(|(r, p, f)| Penalties::NONE.repetition(r).presence(p).frequency(f));
        cases.extend(all.map(|penalties| case(&mut rng(i), (rows, 1), vocab, &[penalties])));
        // Each its own, after the last of several tokens.
        cases.push(case(&mut rng(i), (rows, 3), vocab, &all));
    }
    for (i, (_, rows, vocab)) in (0..).zip(random_shapes("penalize")) {
        let mut rng = rng(1000 * seed() + i);
        let penalties = Penalties::NONE
            .repetition(rng.random_range(0.5..2.0))
            .presence(rng.random_range(-1.0..1.0))
            .frequency(rng.random_range(-1.0..1.0));
        cases.push(case(
            &mut rng,
            (rows.min(9), 1 + i as usize % 2),
            vocab,
            &[penalties, Penalties::NONE],
        ));
    }
    cases
}

/// Penalties of the sequences, in turns; where they differ, biases do too.
fn case(
    rng: &mut SmallRng,
    (rows, run): (usize, usize),
    vocab: usize,
    penalties: &[Penalties],
) -> Case {
    let mut logits = floats(rng, rows * vocab, 9.0);
    logits
        .iter_mut()
        .step_by(7)
        .for_each(|logit| *logit = [0.0, -0.0, f32::NEG_INFINITY][rng.random_range(0..3)]);
    // Of the prompt, generated, both, or neither; some are forbidden, others have no bias.
    let mut any = |_| [0, 0, 3, 17, Penalties::SEEN, Penalties::SEEN + 5][rng.random_range(0..6)];
    // The first sequence gets no token; the others do, the last first.
    let sequences = if rows == 0 { 0 } else { rows + 1 };
    let counts: Vec<u32> = (0..sequences * vocab).map(&mut any).collect();
    let runs: Vec<[u32; 2]> = (0..rows as u32).map(|row| [rows as u32 - row, 9]).collect();
    let tokens: Vec<u32> =
        (0..rows * run).map(|_| rng.random_range(0..vocab.max(1)) as u32).collect();
    let biased = if penalties.len() == 1 { 1 } else { sequences };
    let mut biases = floats(rng, biased * vocab, 2.0);
    biases.iter_mut().step_by(2).for_each(|bias| *bias = 0.0);
    biases.iter_mut().skip(3).step_by(11).for_each(|bias| *bias = f32::NEG_INFINITY);
    let what = format!("{rows} × {vocab}, after {run}, {penalties:?}");
    let penalties: Vec<Penalties> = penalties.iter().copied().cycle().take(sequences).collect();
    let (mut expected, mut counted) = (logits.clone(), counts.clone());
    for (row, run) in tokens.chunks(run).enumerate() {
        let of = runs[row][0] as usize;
        let (counts, bias) =
            (&mut counted[of * vocab..][..vocab], &biases[of.min(biased - 1) * vocab..][..vocab]);
        reference::penalize(
            &mut expected[row * vocab..][..vocab],
            run[run.len() - 1],
            counts,
            bias,
            &penalties[of],
        )
        .unwrap();
    }
    Case::exact(what, vec![Data::F32(expected), Data::U32(counted)], move |r| {
        let (logits, counts) =
            (r.upload(&logits, [rows, vocab])?, r.upload(&counts, [sequences, vocab])?);
        let (tokens, biases) =
            (r.upload(&tokens, [rows * run])?, r.upload(&biases, [biased, vocab])?);
        let sequences = r.upload(runs.as_flattened(), [rows, 2])?;
        let positions = CachePositions::new(&sequences, run);
        let penalties = Penalties::upload(r.encoder.context(), &penalties)?;
        Penalizer::new(&penalties, &biases, &counts).forward(
            &mut r.encoder,
            &logits,
            &tokens,
            positions,
        )?;
        r.watch_all(&logits);
        r.watch_all(&counts);
        Ok(())
    })
}
