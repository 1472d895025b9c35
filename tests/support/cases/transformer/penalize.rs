//! `src/ops/transformer/penalize.rs`

use crate::{Case, Data, floats, random_shapes, rng, seed};
use bitnet_wgpu::transformer::{NewTokens, Penalties, penalize, penalize_cpu};
use rand::{RngExt, rngs::StdRng};

pub fn cases() -> Vec<Case> {
    let all = [(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (0.7, 0.0, 0.0), (1.0, 0.6, 0.0), (1.0, 0.0, 0.37), (1.1, -0.3, 0.21)];
    let mut cases = Vec::new();
    for (i, (rows, vocab)) in (0..).zip([(1, 1), (3, 33), (2, 1000), (1, 70_001), (0, 5), (2, 0)]) {
        cases.extend(all.map(|(r, p, f)| case(&mut rng(i), rows, vocab, Penalties::new(r, p, f))));
    }
    for (i, (_, rows, vocab)) in (0..).zip(random_shapes("penalize")) {
        let mut rng = rng(1000 * seed() + i);
        let penalties = Penalties::new(rng.random_range(0.5..2.0), rng.random_range(-1.0..1.0), rng.random_range(-1.0..1.0));
        cases.push(case(&mut rng, rows.min(9), vocab, penalties));
    }
    cases
}

fn case(rng: &mut StdRng, rows: usize, vocab: usize, penalties: Penalties) -> Case {
    let mut logits = floats(rng, rows * vocab, 9.0);
    logits.iter_mut().step_by(7).for_each(|logit| *logit = [0.0, -0.0, f32::NEG_INFINITY][rng.random_range(0..3)]);
    // Of the prompt, generated, both, or neither; some are forbidden, others have no bias.
    let mut any = |_| [0, 0, 3, 17, Penalties::SEEN, Penalties::SEEN + 5][rng.random_range(0..6)];
    // The first sequence gets no token; the others do, the last first.
    let sequences = if rows == 0 { 0 } else { rows + 1 };
    let counts: Vec<u32> = (0..sequences * vocab).map(&mut any).collect();
    let runs: Vec<[u32; 2]> = (0..rows as u32).map(|row| [rows as u32 - row, 9]).collect();
    let tokens: Vec<u32> = (0..rows).map(|_| rng.random_range(0..vocab.max(1)) as u32).collect();
    let mut bias = floats(rng, vocab, 2.0);
    bias.iter_mut().step_by(2).for_each(|bias| *bias = 0.0);
    bias.iter_mut().skip(3).step_by(11).for_each(|bias| *bias = f32::NEG_INFINITY);
    let (mut wanted, mut counted) = (logits.clone(), counts.clone());
    for (row, &token) in tokens.iter().enumerate() {
        let of = runs[row][0] as usize;
        penalize_cpu(&mut wanted[row * vocab..][..vocab], token, &mut counted[of * vocab..][..vocab], &bias, &penalties).unwrap();
    }
    Case::exact(format!("{rows} × {vocab}, {penalties:?}"), vec![Data::F32(wanted), Data::U32(counted)], move |r| {
        let (logits, counts) = (r.upload(&logits, [rows, vocab])?, r.upload(&counts, [sequences, vocab])?);
        let (tokens, bias) = (r.upload(&tokens, [rows])?, r.upload(&bias, [vocab])?);
        let new = NewTokens { run: 1, runs: &r.upload(runs.as_flattened(), [rows, 2])? };
        penalize(&mut r.encoder, &logits, &tokens, &new, &counts, &bias, &penalties)?;
        r.watch_all(&logits);
        r.watch_all(&counts);
        Ok(())
    })
}
