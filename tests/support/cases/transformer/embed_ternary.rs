//! `src/ops/transformer/embed_ternary.rs`

use crate::{Case, Data, floats, rng, shapes, ternary_with};
use bitnet_wgpu::{Out, reference, transformer, weights::Scales};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    let more = [(17, 5, 16), (2, 9, 33), (301, 19, 31), (5, 20, 300)];
    let more = (0u64..).zip(more).map(|(i, shape)| (rng(i), shape));
    let all =
        shapes("embed_ternary").chain(more).filter(|(_, (m, n, k))| (*n > 0 || *m == 0) && *k > 0);
    all.zip([None, Some(128), Some(16), Some(64), None].into_iter().cycle())
        .map(|((mut rng, shape), size)| case(&mut rng, shape, size))
        .collect()
}

fn case(
    rng: &mut SmallRng,
    (m, rows, columns): (usize, usize, usize),
    size: Option<usize>,
) -> Case {
    let scales = match size {
        Some(size) => {
            Scales::Groups { size, scales: floats(rng, rows * columns.div_ceil(size), 1.0) }
        }
        None => Scales::Segments((0..rows).map(|row| (1, 0.5 - row as f32 / 100.0)).collect()),
    };
    let table = ternary_with(rng, rows, columns, scales);
    let last = rows.saturating_sub(1) as u32;
    let mut tokens: Vec<u32> = (0..m).map(|_| rng.random_range(0..=last)).collect();
    tokens.iter_mut().step_by(3).for_each(|token| *token = last);
    let y = reference::embed_ternary(&tokens, &table).unwrap();
    // Tokens that there are none of are read as the last one.
    tokens.iter_mut().step_by(6).for_each(|token| *token += 1);
    tokens.iter_mut().skip(9).step_by(12).for_each(|token| *token = u32::MAX);
    let base = floats(rng, m * columns, 9.0);
    // The lengths of sequences are raised, the first from one less than none.
    let runs: Vec<[u32; 2]> = (0..m as u32).map(|i| [7 * i, (9 * i).wrapping_sub(1)]).collect();
    let raised =
        runs.iter().flat_map(|&[sequence, past]| [sequence, past.wrapping_add(1)]).collect();
    // What is added to is rounded once, since a product by -1, 0 or 1 is exact.
    let added = base.iter().zip(&y).map(|(base, y)| base + y).collect();
    let expected =
        vec![Data::F32(y.clone()), Data::F32(y.clone()), Data::U32(raised), Data::F32(added)];
    Case::exact(format!("{m} of {rows} × {columns} by {size:?}"), expected, move |r| {
        let (tokens, table) = (r.upload(&tokens, [m])?, table.upload(r.encoder.context())?);
        let y = transformer::embed(&tokens, &table).forward(&mut r.encoder)?;
        let (next, runs) = (r.output([m, columns])?, r.upload(runs.as_flattened(), [m, 2])?);
        transformer::embed(&tokens, &table).advance(&runs).forward_into(&mut r.encoder, &next)?;
        let added = r.upload(&base, [m, columns])?;
        transformer::embed(&tokens, &table).forward_into(&mut r.encoder, Out::add(&added))?;
        r.watch_all(&y);
        r.watch_all(&next);
        r.watch_all(&runs);
        r.watch_all(&added);
        Ok(())
    })
}
