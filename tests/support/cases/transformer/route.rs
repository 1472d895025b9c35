//! `src/ops/transformer/route.rs`

use crate::{Case, Data, Near, U, floats, rng, seed};
use bitnet_wgpu::transformer::{Route, route};
use rand::{RngExt, rngs::SmallRng};

/// Tokens, experts, used ones.
type Shape = (usize, usize, usize);

pub fn cases() -> Vec<Case> {
    let fixed: [Shape; 9] = [
        (1, 1, 1),
        (3, 2, 2),
        (0, 5, 2),
        (2, 128, 8),
        (5, 256, 8),
        (1, 257, 3),
        (2, 511, 15),
        (2, 512, 16),
        (70, 9, 4),
    ];
    let random = (0..8).map(|i| {
        let mut rng = rng(1000 * seed() + i);
        let experts = rng.random_range(1..513);
        (rng.random_range(1..9), experts, rng.random_range(1..experts.min(16) + 1))
    });
    let shapes: Vec<Shape> = fixed.into_iter().chain(random.collect::<Vec<_>>()).collect();
    (0u64..).zip(shapes).flat_map(|(i, shape)| of_kinds(&mut rng(50 + i), shape)).collect()
}

fn of_kinds(rng: &mut SmallRng, shape: Shape) -> Vec<Case> {
    let (tokens, experts, _) = shape;
    let plain = floats(rng, tokens * experts, 4.0);
    // A few values, so that most are equal to others.
    let ties: Vec<f32> = plain.iter().map(|v| v.round()).collect();
    let mut odd = floats(rng, tokens * experts, 60.0);
    for (i, logit) in odd.iter_mut().enumerate() {
        match (i * 7) % (5 * experts) {
            0 => *logit = f32::NAN,
            1 => *logit = f32::INFINITY,
            2 => *logit = f32::NEG_INFINITY,
            3 => *logit = -0.0,
            _ => {}
        }
    }
    [("plain", plain), ("ties", ties), ("odd", odd)]
        .into_iter()
        .flat_map(|(kind, logits)| {
            [true, false].map(|normalized| case(kind, logits.clone(), shape, normalized))
        })
        .collect()
}

/// The experts of a token in f64, and their weights; none where a logit is not finite.
fn expected(logits: &[f32], used: usize, normalized: bool) -> Option<Vec<(u32, Near)>> {
    if logits.iter().any(|logit| !logit.is_finite()) {
        return None;
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let difference = |i: usize| f64::from(logits[i]) - f64::from(logits[order[0]]);
    let summed = if normalized { &order[..used] } else { &order[..] };
    let total: f64 = summed.iter().map(|&i| difference(i).exp()).sum();
    // A difference is rounded, which e^x makes an error of |x| roundings; e^x is 2 + |x| units in
    // the last place off, each two roundings. The sum has as many additions as terms.
    let of = |i: usize| difference(i).exp() * (6.0 + 4.0 * difference(i).abs()) * U;
    let of_total: f64 =
        summed.iter().map(|&i| of(i)).sum::<f64>() + total * summed.len() as f64 * U;
    let near = |i: usize| {
        let exact = difference(i).exp() / total;
        // The quotient may be 2.5 units off, and what is below 2^-126 may be 0.
        let error = of(i) / total + exact * (of_total / total + 6.0 * U) + 1e-37;
        (i as u32, Near { exact, error: error * 1.01 })
    };
    Some(order[..used].iter().map(|&i| near(i)).collect())
}

fn case(kind: &str, logits: Vec<f32>, (tokens, experts, used): Shape, normalized: bool) -> Case {
    let rows: Vec<_> = logits.chunks(experts).map(|row| expected(row, used, normalized)).collect();
    let name = format!("{used} of {experts} × {tokens}, {kind}, normalized {normalized}");
    let check = move |got: &[Data], leeway| {
        let rows = rows.iter();
        let chosen = rows.clone().flat_map(|row| match row {
            Some(row) => row.iter().map(|own| own.0).collect(),
            None => vec![Route::NONE; used],
        });
        got[0].check(&Data::U32(chosen.collect()), leeway)?;
        let weights = got[1].to_f32();
        for (row, weights) in rows.zip(weights.chunks(used)) {
            match row {
                Some(row) => Data::F32(weights.to_vec()).check_near(row.iter().map(|own| own.1))?,
                None if weights.iter().all(|weight| weight.is_nan()) => {}
                None => return Err(format!("{weights:?} without logits")),
            }
        }
        Ok(())
    };
    let record = move |r: &mut crate::Recorder| {
        let logits = r.upload(&logits, [tokens, experts])?;
        let op = route(&logits, used);
        let op = if normalized { op } else { op.of_all() };
        let (chosen, weights) = op.forward(&mut r.encoder)?;
        r.watch_all(&chosen);
        r.watch_all(&weights);
        Ok(())
    };
    Case::new(name, record, check)
}
