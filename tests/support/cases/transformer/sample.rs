//! `src/ops/transformer/sample.rs`

use crate::{Case, Data, floats, random_shapes, rng, seed};
use bitnet_wgpu::{
    reference,
    transformer::{CachePositions, SampleOptions, SampleParams, sample},
};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let options = all_options();
    // A workgroup looks at 1024 logits. Many rows, so that many of what is kept is drawn.
    for (i, (rows, count)) in
        (0..).zip([(2, 1), (24, 33), (9, 1000), (5, 1025), (2, 3000), (0, 9), (1, 0)])
    {
        // All sequences in one way: of one shape, since the others have sequences of all kinds.
        if count == 33 {
            cases.extend(
                options.iter().flat_map(|options| of_kinds(&mut rng(i), rows, count, &[*options])),
            );
        }
        cases.extend(of_kinds(&mut rng(i), rows, count, &options));
    }
    // Each in its own way: enough sequences that each is beside all others.
    for count in [33, 1025] {
        cases.extend(of_kinds(&mut rng(8), 2 * options.len(), count, &options));
    }
    for options in options.iter().step_by(3) {
        let mut rng = rng(77);
        cases.extend(of_kinds(&mut rng, 2, 128_256, &[*options]).map(Case::device_only));
        // All are equal, over many chunks: the first ones are kept.
        cases.push(case("equal", vec![1.5; 2 * 9000], 2, &[*options], false).device_only());
    }
    for (i, (k, rows, columns)) in (0..).zip(random_shapes("sample")) {
        let mut rng = rng(1000 * seed() + i);
        let options = SampleOptions::default()
            .temperature(rng.random_range(0.1..30.0))
            .top_k(k * 3)
            .top_p(rng.random_range(0.0..1.2f32).min(1.0));
        let options = options.min_p(rng.random_range(-0.5f32..0.5).max(0.0));
        let rows = rows.min(20);
        cases.extend(of_kinds(
            &mut rng,
            rows,
            4 * columns,
            &[options, SampleOptions::default(), options.temperature(0.0)],
        ));
    }
    cases
}

/// None, each alone and all together; a high temperature makes what is kept equally likely.
fn all_options() -> Vec<SampleOptions> {
    let options = SampleOptions::default;
    let (cold, hot) = (options().temperature(0.6), options().temperature(90.0));
    let mut all = vec![
        options(),
        options().temperature(0.0),
        cold,
        hot,
        options().temperature(f32::MIN_POSITIVE),
        options().temperature(f32::MAX),
    ];
    all.extend([1, 2, 7, 300, 1_000_000].map(|k| hot.top_k(k)));
    all.extend([0.0, 1e-9, 0.3, 0.9, 0.999_999].map(|p| hot.top_p(p)));
    all.extend([
        options().top_p(0.5),
        cold.top_p(0.95),
        cold.min_p(0.05),
        hot.min_p(0.95),
        hot.min_p(1.0),
    ]);
    all.extend([
        hot.top_k(40).top_p(0.5),
        cold.top_k(50).top_p(0.9),
        hot.top_k(300).top_p(0.999).min_p(0.9),
        hot.top_k(9).top_p(0.01),
    ]);
    all
}

/// The options of the sequences, in turns.
fn of_kinds(rng: &mut SmallRng, rows: usize, count: usize, options: &[SampleOptions]) -> [Case; 3] {
    let plain = floats(rng, rows * count, 9.0);
    // A few values, so that most are equal to others; and some that are no numbers.
    let ties: Vec<f32> = plain.iter().map(|v| (v / 4.0).round()).collect();
    let odd = |v: &f32| match rng.random_range(0..count.clamp(1, 2000) + 5) {
        0 => f32::NEG_INFINITY,
        1 => f32::INFINITY,
        2 => -0.0,
        3 => -3e38,
        4 => f32::NAN,
        _ => *v,
    };
    let odd = ties.iter().map(odd).collect();
    [
        case("plain", plain, rows, options, false),
        case("ties", ties, rows, options, true),
        case("odd", odd, rows, options, false),
    ]
}

/// `into`: the ids go to a tensor of the caller.
fn case(kind: &str, logits: Vec<f32>, rows: usize, options: &[SampleOptions], into: bool) -> Case {
    let count = logits.len() / rows.max(1);
    let draws: Vec<(SampleOptions, u64)> = (0..rows as u64)
        .zip(options.iter().cycle())
        .map(|(n, options)| (*options, (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect();
    // Rows come after the last two tokens of runs where they are an even number, else after the
    // last; in some cases tokens before have no row.
    let each = if rows.is_multiple_of(2) { 2 } else { 1 };
    let run = each + if into { 3 } else { 0 };
    // Sequences are in turned order.
    let runs: Vec<[u32; 2]> = (0..(rows / each) as u32)
        .map(|n| [(rows / each) as u32 - 1 - n, n.wrapping_mul(777_777_777)])
        .collect();
    let row = |row: usize| {
        let [sequence, past] = runs[row / each];
        let (options, seed) = &draws[sequence as usize];
        reference::sample(
            &logits[row * count..][..count],
            *seed,
            past + (run - each + row % each) as u32,
            options,
        )
        .unwrap()
    };
    let expected = (0..rows).map(row).collect();
    let what = match options {
        [options] => format!("{options:?}"),
        _ => format!("{} options", options.len()),
    };
    Case::exact(
        format!("{rows} × {count}, {kind}, {what}, into {into}"),
        vec![Data::U32(expected)],
        move |r| {
            let logits = r.upload(&logits, [rows, count])?;
            let sequences = r.upload(runs.as_flattened(), [rows / each, 2])?;
            let positions = CachePositions::new(&sequences, run);
            let draws = SampleParams::new(r.encoder.context(), &draws)?;
            let chosen = if into {
                let chosen = r.output([rows])?;
                sample(&logits, positions, &draws).forward_into(&mut r.encoder, &chosen)?;
                chosen
            } else {
                sample(&logits, positions, &draws).forward(&mut r.encoder)?
            };
            r.watch_all(&chosen);
            Ok(())
        },
    )
}
