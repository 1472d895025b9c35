//! `src/ops/transformer/top_k.rs`

use crate::{Case, Data, floats, random_shapes, rng, seed};
use bitnet_wgpu::{
    reference,
    transformer::{TopK, top_k},
};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // A workgroup looks at 2048 logits.
    let fixed = [
        (1, 1),
        (3, 5),
        (2, 255),
        (1, 257),
        (2, 2048),
        (3, 2049),
        (2, 5000),
        (1, 200_000),
        (1, 0),
        (0, 9),
    ];
    for (i, (rows, count)) in (0..).zip(fixed) {
        for k in [1, 2, 7, 64, 256] {
            let mut rng = rng(i);
            // k turns over all logits are a lot of barriers.
            let emulated = rows * count * k < 200_000;
            cases.extend(
                of_kinds(&mut rng, rows, count, k)
                    .into_iter()
                    .map(|case| if emulated { case } else { case.device_only() }),
            );
        }
    }
    for count in [3, 300, 2049, 9000] {
        let mut logits = floats(&mut rng(32), 3 * count, 5.0);
        // One that is no number, several in different runs of 2048, and nothing else.
        logits[count / 2] = f32::NAN;
        logits[count..2 * count].iter_mut().step_by(2000).for_each(|v| *v = -f32::NAN);
        logits[2 * count..].fill(f32::NAN);
        for k in [1, 2, 5, 30] {
            cases.push(case("NaN", logits.clone(), 3, k, false));
            cases.push(case("-inf", vec![f32::NEG_INFINITY; count], 1, k, false));
        }
    }
    for (i, (k, rows, columns)) in (0..).zip(random_shapes("top_k")) {
        cases.extend(of_kinds(&mut rng(1000 * seed() + i), rows.min(5), 5 * columns, k));
    }
    cases
}

fn of_kinds(rng: &mut SmallRng, rows: usize, count: usize, k: usize) -> [Case; 3] {
    let plain = floats(rng, rows * count, 20.0);
    // A few values, so that most are equal to others; and some that are no numbers.
    let ties: Vec<f32> = plain.iter().map(|v| (v / 8.0).round()).collect();
    let odd = |v: &f32| match rng.random_range(0..count.clamp(1, 1000) + 6) {
        0 => f32::NEG_INFINITY,
        1 => f32::INFINITY,
        2 => -0.0,
        3 => f32::MIN_POSITIVE,
        4 => f32::NAN,
        _ => *v,
    };
    let odd = ties.iter().map(odd).collect();
    [
        case("plain", plain, rows, k, k == 7),
        case("ties", ties, rows, k, k == 2),
        case("odd", odd, rows, k, false),
    ]
}

/// `into`: the winners go to tensors of the caller.
fn case(kind: &str, logits: Vec<f32>, rows: usize, k: usize, into: bool) -> Case {
    let count = logits.len() / rows.max(1);
    let (mut ids, mut top) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let mut winners = reference::top_k(&logits[row * count..][..count], k);
        winners.resize(k, (TopK::NONE, f32::NEG_INFINITY));
        ids.extend(winners.iter().map(|winner| winner.0));
        top.extend(winners.iter().map(|winner| winner.1));
    }
    Case::exact(
        format!("{k} of {rows} × {count}, {kind}, into {into}"),
        vec![Data::U32(ids), Data::F32(top)],
        move |r| {
            let logits = r.upload(&logits, [rows, count])?;
            let (top, ids) = if into {
                let (top, ids) = (r.output([rows, k])?, r.output([rows, k])?);
                top_k(&logits, k).forward_into(&mut r.encoder, &top, &ids)?;
                (top, ids)
            } else {
                top_k(&logits, k).forward(&mut r.encoder)?
            };
            r.watch_all(&ids);
            r.watch_all(&top);
            Ok(())
        },
    )
}
