//! `src/ops/transformer/mask_logits.rs`

use crate::{Case, Data, floats, random_shapes, rng, seed};
use bitnet_wgpu::{
    reference,
    transformer::{CachePositions, LogitMasks},
};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes = [(1, 1), (3, 31), (3, 32), (3, 33), (2, 1000), (1, 70_001), (0, 5), (2, 0)];
    for (i, (rows, vocab)) in (0..).zip(sizes) {
        for missing in 0..3 {
            cases.push(case(&mut rng(i), (rows, 1), vocab, missing));
        }
        // After the last of several tokens.
        cases.push(case(&mut rng(i), (rows, 3), vocab, 0));
    }
    for (i, (_, rows, vocab)) in (0..).zip(random_shapes("mask_logits")) {
        let mut rng = rng(1000 * seed() + i);
        cases.push(case(&mut rng, (rows.min(9), 1 + i as usize % 2), vocab, i as usize % 2));
    }
    cases
}

/// Masks of random bits that lack some of the last words.
fn case(rng: &mut SmallRng, (rows, run): (usize, usize), vocab: usize, missing: usize) -> Case {
    let mut logits = floats(rng, rows * vocab, 9.0);
    logits
        .iter_mut()
        .step_by(7)
        .for_each(|logit| *logit = [0.0, f32::INFINITY, f32::NEG_INFINITY][rng.random_range(0..3)]);
    // The first sequence gets no token; the others do, the last first.
    let sequences = if rows == 0 { 0 } else { rows + 1 };
    let words = vocab.div_ceil(32).saturating_sub(missing);
    let masks: Vec<u32> = (0..sequences * words).map(|_| rng.random()).collect();
    let runs: Vec<[u32; 2]> = (0..rows as u32).map(|row| [rows as u32 - row, 9]).collect();
    let mut wanted = logits.clone();
    for (row, [sequence, _]) in wanted.chunks_mut(vocab.max(1)).zip(&runs) {
        reference::mask_logits(row, &masks[*sequence as usize * words..][..words]);
    }
    let what = format!("{rows} × {vocab}, after {run}, {words} words");
    Case::exact(what, vec![Data::F32(wanted)], move |r| {
        let logits = r.upload(&logits, [rows, vocab])?;
        let masks = r.upload(&masks, [sequences, words])?;
        let sequences = r.upload(runs.as_flattened(), [rows, 2])?;
        let positions = CachePositions::new(&sequences, run);
        LogitMasks::new(&masks).forward(&mut r.encoder, &logits, positions)?;
        r.watch_all(&logits);
        Ok(())
    })
}
