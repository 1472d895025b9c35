//! Long texts: the logits of GPU and CPU are as near to each other at the end as at the beginning.

use bitnet_wgpu::{Element, model::Model};
use support::{
    block_on, context,
    models::{Reconfigured, session},
};

/// Graphs, and what the engines' logits are apart at most.
///
/// A token's own rounding is that of short texts (`small_models`). What comes from tokens before it
/// does not grow with their number: attention takes a mean of them, and a recurrent state's errors
/// decay, or stay (`Column` of the cases of `gated_delta` says why).
const GRAPHS: [(&str, f32); 2] = [("qwen35", 4e-2), ("maple", 2e-2)];

/// Checks texts of this many tokens, in blocks of `block`.
fn check(tokens: usize, block: usize) {
    for (name, most) in GRAPHS {
        let file = Reconfigured::open(name, |c| c.context = 8192);
        let on = |device| Model::builder_from(&file, None).device(device).build().unwrap();
        let engines = [on(Some(context())), on(None)];
        let vocab = engines[0].config().vocab;
        let ids: Vec<u32> =
            (0..tokens).map(|i| ((i * i * 7 + i / 3) % (vocab - 10)) as u32).collect();
        let [gpu, cpu] = engines.map(|model| {
            let (mut session, mut all) = (session(&model, 1, tokens, Element::F32), Vec::new());
            block_on(session.prefill_logits(0, &ids, |rows| all.extend(rows))).unwrap();
            all
        });
        let apart = |(a, b): (&[f32], &[f32])| {
            a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max)
        };
        let apart: Vec<f32> =
            gpu.chunks_exact(vocab).zip(cpu.chunks_exact(vocab)).map(apart).collect();
        // An expert whose logit is as large as another's may be another, or an activation's code:
        // of one token in a hundred.
        let blocks: Vec<(f32, f32)> = apart
            .chunks(block)
            .map(|block| {
                let mut sorted = block.to_vec();
                sorted.sort_by(f32::total_cmp);
                (sorted[block.len() / 2], sorted[block.len() * 99 / 100])
            })
            .collect();
        println!("{name}: medians and 99 % of blocks: {blocks:?}");
        assert!(blocks.iter().all(|&(_, apart)| apart < most), "{name}: {blocks:?}");
        let growth = blocks[blocks.len() - 1].0 / blocks[0].0;
        assert!(growth < 2.0, "{name}: {blocks:?}");
    }
}

#[test]
fn long_texts_keep_their_precision() {
    check(500, 250);
}

#[test]
#[ignore = "takes minutes: scripts/test --only slow"]
fn eight_thousand_tokens_keep_their_precision() {
    check(8000, 500);
}
