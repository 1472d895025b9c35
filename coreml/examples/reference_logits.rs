//! What `scripts/coreml-check` compares a package with: `reference_logits MODEL STEPS IDS`, where
//! ids are separated by commas. Prints `{"prefill", "ids", "decode"}`: the logits after every token
//! of the prompt, the tokens that are most likely after it, and the logits after each of those. On
//! the CPU, with keys and values in f16, as Core ML's states have them.

use bitnet_wgpu::{
    Element,
    model::{Model, SessionOptions},
};
use pollster::block_on;
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [model, steps, ids] = std::env::args().skip(1).collect::<Vec<_>>().try_into().map_err(
        |_| "usage: reference_logits MODEL STEPS IDS, where ids are separated by commas",
    )?;
    let (steps, ids) =
        (steps.parse()?, ids.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>()?);
    let model = Model::builder(model).cpu().build()?;
    let options = SessionOptions::new(1, ids.len() + steps).kv_type(Element::F16);
    let (mut session, vocab) = (model.session(options)?, model.config().vocab);
    let mut prefill: Vec<Vec<f32>> = Vec::new();
    let rows = |rows: Vec<f32>| prefill.extend(rows.chunks(vocab).map(<[f32]>::to_vec));
    block_on(session.prefill_logits(0, &ids, rows))?;
    let mut last = prefill.last().cloned().unwrap_or_default();
    let (mut chosen, mut decode) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let best = last.iter().enumerate().max_by(|x, y| x.1.total_cmp(y.1));
        let id = best.map_or(0, |(id, _)| id as u32);
        last = block_on(session.decode(&[id]))?;
        chosen.push(id);
        decode.push(last.clone());
    }
    println!("{}", json!({ "prefill": prefill, "ids": chosen, "decode": decode }));
    Ok(())
}
