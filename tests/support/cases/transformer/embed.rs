//! `src/ops/transformer/embed.rs`

use crate::{Case, DENSE, Data, dense, floats, rng, shapes, sums};
use bitnet_wgpu::{Out, reference, transformer, weights::DenseElement};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    let more = [(3, 4, 0), (17, 5, 16), (2, 9, 33), (301, 19, 31)];
    let more = (0u64..).zip(more).map(|(i, shape)| (rng(i), shape));
    let all = shapes("embed").chain(more).filter(|(_, (m, n, _))| *n > 0 || *m == 0);
    let all = all.zip([false, false, true].into_iter().cycle());
    all.flat_map(|((mut rng, shape), add)| DENSE.map(|element| case(&mut rng, element, shape, add)))
        .collect()
}

fn case(
    rng: &mut SmallRng,
    element: DenseElement,
    (m, rows, columns): (usize, usize, usize),
    add: bool,
) -> Case {
    let table = dense(rng, element, rows, columns);
    let last = rows.saturating_sub(1) as u32;
    let mut tokens: Vec<u32> = (0..m).map(|_| rng.random_range(0..=last)).collect();
    tokens.iter_mut().step_by(3).for_each(|token| *token = last);
    let y = reference::embed(&tokens, &table).unwrap();
    // Tokens that there are none of are read as the last one.
    tokens.iter_mut().step_by(6).for_each(|token| *token += 1);
    tokens.iter_mut().skip(9).step_by(12).for_each(|token| *token = u32::MAX);
    if add {
        let base = floats(rng, m * columns, 9.0);
        return Case::near(
            format!("{m} of {rows} × {columns} {element:?}, added"),
            sums(&base, &y),
            move |r| {
                let (tokens, table, y) = (
                    r.upload(&tokens, [m])?,
                    table.upload(r.encoder.context())?,
                    r.upload(&base, [m, columns])?,
                );
                transformer::embed(&tokens, &table).forward_into(&mut r.encoder, Out::add(&y))?;
                r.watch_all(&y);
                Ok(())
            },
        );
    }
    if m % 2 == 1 && columns > 0 {
        // The lengths of sequences are raised, the first from one less than none.
        let runs: Vec<[u32; 2]> = (0..m as u32).map(|i| [7 * i, (9 * i).wrapping_sub(1)]).collect();
        let raised =
            runs.iter().flat_map(|&[sequence, past]| [sequence, past.wrapping_add(1)]).collect();
        return Case::exact(
            format!("{m} of {rows} × {columns} {element:?}, the next"),
            vec![Data::F32(y), Data::U32(raised)],
            move |r| {
                let (tokens, table, y) = (
                    r.upload(&tokens, [m])?,
                    table.upload(r.encoder.context())?,
                    r.output([m, columns])?,
                );
                let runs = r.upload(runs.as_flattened(), [m, 2])?;
                transformer::embed(&tokens, &table)
                    .advance(&runs)
                    .forward_into(&mut r.encoder, &y)?;
                r.watch_all(&y);
                r.watch_all(&runs);
                Ok(())
            },
        );
    }
    Case::exact(format!("{m} of {rows} × {columns} {element:?}"), vec![Data::F32(y)], move |r| {
        let (tokens, table) = (r.upload(&tokens, [m])?, table.upload(r.encoder.context())?);
        let y = transformer::embed(&tokens, &table).forward(&mut r.encoder)?;
        r.watch_all(&y);
        Ok(())
    })
}
