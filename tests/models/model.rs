//! A real model against transformers: layer by layer, last logits, greedy tokens, perplexity; on
//! the GPU, with and without subgroup operations, and on the CPU. `BITNET_MODEL_DIR` names another
//! model directory, laid out as assets/tales-22m.

use bitnet_wgpu::{
    Context, Element,
    formats::{ModelConfig, ReadOptions},
    internals::{Access, ModelInternals as _},
    model::{GenerateOptions, Model, ModelFiles, SessionOptions},
};
use serde_json::Value;
use std::collections::BTreeMap;
use support::{
    Golden, block_on, context, contexts, models::Reconfigured, prompts_on_tensor_cores, real_model,
};

/// The model on the GPU, in every way that the device can be used or in the way that it is by
/// choice, and on the CPU.
fn models(every_gpu: bool) -> Vec<(String, Model)> {
    let on_gpu = |context: &Context| {
        let engine = format!("{context:?}, subgroups {}", context.capabilities().subgroups);
        (engine, Model::builder(real_model()).device(context).build().unwrap())
    };
    let mut models: Vec<_> =
        if every_gpu { contexts() } else { vec![context().clone()] }.iter().map(on_gpu).collect();
    models.extend(prompts_on_tensor_cores().filter(|_| every_gpu).map(|context| {
        ("tensor cores".into(), Model::builder(real_model()).device(&context).build().unwrap())
    }));
    // What GPUs fuse, software adapters do not.
    let as_a_gpu = context().restricted(|c| c.software = false);
    if every_gpu && context().capabilities().software {
        models.push((
            "kernels of GPUs".into(),
            Model::builder(real_model()).device(&as_a_gpu).build().unwrap(),
        ));
    }
    models.push(("the CPU".into(), Model::builder(real_model()).cpu().build().unwrap()));
    models
}

fn golden(name: &str) -> Golden {
    Golden::open(real_model().join("golden").join(name))
}

fn report() -> Value {
    serde_json::from_slice(&std::fs::read(real_model().join("golden/golden.json")).unwrap())
        .unwrap()
}

/// |a - b| / |b| in the 2-norm.
fn relative(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let (off, norm) = a.iter().zip(b).fold((0.0, 0.0), |(off, norm), (&a, &b)| {
        (off + (f64::from(a) - f64::from(b)).powi(2), norm + f64::from(b).powi(2))
    });
    (off / norm).sqrt()
}

#[test]
fn layers_equal_transformers() {
    let golden = golden("prompt0_layers.safetensors");
    for (engine, model) in models(true) {
        let mut input = golden.floats("embed.out");
        for layer in 0..model.config().layers {
            let output = block_on(model.layer_output(layer, &input)).unwrap();
            let expected = golden.floats(&format!("layer{layer}.out"));
            let rows =
                output.chunks(model.config().hidden).zip(expected.chunks(model.config().hidden));
            let off: Vec<_> = rows.map(|(a, b)| relative(a, b)).collect();
            // Where an activation lies on a code's boundary to a last bit, the code may be the next
            // one, and the token's output is off by its share.
            let flipped = off.iter().filter(|&&off| off > 1e-5).count();
            let worst = off.iter().copied().fold(0.0, f64::max);
            println!(
                "{engine}, layer {layer}: {flipped} of {} tokens with another code; worst {worst:.1e}",
                off.len()
            );
            assert!(flipped <= 1 && worst < 1e-2, "layer {layer} on {engine}: {off:?}");
            input = expected;
        }
    }
}

/// How far two correct implementations were from each other on each prompt.
fn spreads() -> Vec<f64> {
    let report = report();
    let runs: Vec<&Vec<Value>> = report["report"]["max_abs_logit_diff"]
        .as_object()
        .unwrap()
        .values()
        .map(|run| run.as_array().unwrap())
        .collect();
    let spread =
        |prompt: usize| runs.iter().map(|run| run[prompt].as_f64().unwrap()).fold(0.0, f64::max);
    (0..runs[0].len()).map(spread).collect()
}

#[test]
fn last_logits_are_within_the_recorded_spread() {
    let golden = golden("golden.safetensors");
    for (engine, model) in models(true) {
        for (prompt, spread) in spreads().into_iter().enumerate() {
            let ids = golden.ids(&format!("prompt{prompt}.ids"));
            let logits = block_on(model.logits(&ids)).unwrap();
            let last = &logits[logits.len() - model.config().vocab..];
            let expected = golden.floats(&format!("prompt{prompt}.last_logits"));
            let off = last
                .iter()
                .zip(&expected)
                .map(|(a, b)| f64::from((a - b).abs()))
                .fold(0.0, f64::max);
            assert!(
                off < 2.0 * spread + 1e-4,
                "prompt {prompt} on {engine}: {off}, spread {spread}"
            );
        }
    }
}

#[test]
fn greedy_tokens_are_those_of_transformers() {
    let (golden, report) = (golden("golden.safetensors"), report());
    for (engine, model) in models(false) {
        for (prompt, info) in report["prompts"].as_array().unwrap().iter().enumerate() {
            let safe = info["safe_steps"].as_u64().unwrap() as usize;
            let ids = golden.ids(&format!("prompt{prompt}.ids"));
            let options = GenerateOptions::default().max_tokens(safe).ignore_eos(true);
            let generated: Vec<_> = model
                .generate_ids(&ids, &options)
                .unwrap()
                .into_iter()
                .map(|token| token.unwrap().id)
                .collect();
            let expected = golden.ids(&format!("prompt{prompt}.greedy"));
            assert_eq!(generated, expected[..safe], "prompt {prompt} on {engine}");
        }
    }
}

#[test]
fn perplexity_is_that_of_transformers() {
    let golden = golden("golden.safetensors");
    let (ids, nll) = (golden.ids("heldout_own.ids"), golden.floats("heldout_own.nll"));
    for (engine, model) in models(false) {
        let bos = model.config().bos.unwrap();
        // Half of the windows with keys and values in f32, and half as a session has them by
        // default: in f16 where the GPU has it.
        for default_cache in [false, true] {
            let windows = ids.chunks(255).zip(nll.chunks(255)).skip(usize::from(default_cache));
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            for (window, nll) in windows.step_by(2) {
                let text = [&[bos], window].concat();
                found.extend(if default_cache {
                    by_session(&model, &text)
                } else {
                    block_on(model.score(&text)).unwrap()
                });
                expected.extend(nll.iter().map(|&nll| f64::from(nll)));
            }
            assert_eq!(found.len(), expected.len());
            let [found, expected] =
                [found, expected].map(|nll| (nll.iter().sum::<f64>() / nll.len() as f64).exp());
            println!("{engine}: perplexity {found}, transformers {expected}");
            // Codes that lie on a boundary to a last bit fall either way: 0.1 % of the perplexity
            // of half of the text is one standard deviation (benches/notes/measurements.md).
            approx::assert_relative_eq!(found, expected, max_relative = 2e-3);
        }
    }
}

/// The negative log-likelihood of every token but the first, in a session with default options.
fn by_session(model: &Model, ids: &[u32]) -> Vec<f64> {
    let mut session = model.session(SessionOptions::new(1, ids.len())).unwrap();
    let f16s = model.context().is_some_and(|context| context.capabilities().f16);
    assert_eq!(
        session.options().get_kv_type(),
        Some(if f16s { Element::F16 } else { Element::F32 })
    );
    let mut logits = Vec::new();
    block_on(session.prefill_logits(0, ids, |rows| logits.extend(rows))).unwrap();
    let rows = logits.chunks(model.config().vocab).zip(&ids[1..]);
    let likelihood = |(row, &id): (&[f32], &u32)| {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        sum.ln() - f64::from(row[id as usize])
    };
    rows.map(likelihood).collect()
}

/// What a decoding step costs cannot creep up unseen: its dispatches, and the bytes that it reads
/// of weights.
#[test]
fn decode_reads_weights_once_in_few_dispatches() {
    let barriers = context().capabilities().device_barriers;
    let on = |device_barriers, software| {
        context().restricted(|c| (c.device_barriers, c.software) = (device_barriers, software))
    };
    for software in [false, true] {
        if barriers {
            step_is_few_dispatches(&on(true, software), ReadOptions::default());
        }
        step_is_few_dispatches(&on(false, software), ReadOptions::default());
    }
    // As few where activations are floats, by packed products of integers and without.
    for packed in [true, false] {
        let gpu = context().restricted(|c| (c.fast_packed_dot, c.software) = (packed, false));
        step_is_few_dispatches(&gpu, ReadOptions::default().quantized_activations(false));
    }
}

fn step_is_few_dispatches(context: &Context, options: ReadOptions) {
    let barriers = context.capabilities().device_barriers;
    // Each of a layer's four products with what is before it; software adapters take two for that.
    let products = if context.capabilities().software { 8 } else { 4 };
    let files = ModelFiles::open_with(real_model(), options).unwrap();
    let model = files.builder().device(context).build().unwrap();
    let layers = model.config().layers;
    for (past, sequences) in [(0, 1), (300, 1), (300, 2)] {
        let step = model.record_step(sequences, past).unwrap();
        let mut counts = BTreeMap::new();
        let mut bytes = 0;
        for dispatch in step.dispatches() {
            let kernel = dispatch.kernel();
            *counts.entry(kernel.name).or_insert(0) += 1;
            // Of an embedding, a row is read; of angles and what tokens leave, little.
            if !kernel.name.starts_with("embed") {
                let reads = kernel
                    .bindings
                    .iter()
                    .zip(dispatch.bytes())
                    .filter(|(binding, _)| binding.name != "angles");
                bytes += reads
                    .filter(|(binding, _)| binding.access == Access::Read)
                    .map(|(_, bytes)| bytes)
                    .sum::<u64>();
            }
        }
        println!("{counts:?}, {bytes} bytes of {}", model.weight_bytes());
        // For several sequences, one more lays out what the head multiplies.
        let ends = 4 + usize::from(model.config().vocab > 2048) + usize::from(sequences > 1);
        // Where barriers do not order memory, another brings the shares of the attention together,
        // if there are several.
        let attention = if barriers || past == 0 { 1 } else { 2 };
        assert_eq!(
            counts.values().sum::<usize>(),
            (products + attention) * layers + ends,
            "{counts:?}"
        );
        let weights = model.weight_bytes() as u64;
        // Scales, gains, and what one dispatch leaves for the next.
        assert!(
            (weights..weights + (sequences * products / 4) as u64 * weights / 16).contains(&bytes),
            "{bytes} bytes are bound for reading, {weights} are weights"
        );
    }
}

/// Nor can what a prompt costs: its dispatches, and the bytes that these are bound to. Weights are
/// read once, whatever its length.
#[test]
fn prefill_reads_weights_once_in_few_dispatches() {
    prompt_is_few_dispatches(
        &context().restricted(|c| (c.tensor_cores, c.f16) = (Vec::new(), false)),
        false,
        "gem",
    );
    if let Some(cores) = prompts_on_tensor_cores() {
        prompt_is_few_dispatches(&cores, true, "tensor cores");
    }
}

/// Some of its products are by kernels of such a name.
fn prompt_is_few_dispatches(context: &Context, f16_attention: bool, by: &str) {
    let file = Reconfigured::open("llama", |c| c.context = 2048);
    let builder = Model::builder_from(&file, None).device(context).f16_attention(f16_attention);
    let model = builder.build().unwrap();
    let (c, weights) = (model.config(), model.weight_bytes() as u64);
    for tokens in [128, 512, 2048] {
        let (prompt, _) =
            model.record_prompt(&(0..tokens).map(|i| i as u32 % 50).collect::<Vec<_>>()).unwrap();
        let (mut counts, mut read, mut written) = (BTreeMap::new(), 0, 0);
        for dispatch in prompt.dispatches() {
            let kernel = dispatch.kernel();
            *counts.entry(kernel.name).or_insert(0) += 1;
            for (binding, bytes) in kernel.bindings.iter().zip(dispatch.bytes()) {
                match binding.access {
                    // Of an embedding, rows are read.
                    Access::Read if !kernel.name.starts_with("embed") => read += bytes,
                    Access::Read => {}
                    Access::ReadWrite => written += bytes,
                }
            }
        }
        assert!(tokens < 512 || counts.keys().any(|name| name.contains(by)), "{counts:?}");
        println!(
            "{tokens}: {counts:?}, {read} bytes read, {written} written, {weights} are weights"
        );
        // Four products, what prepares the input of each, rotary positions and attention; where
        // barriers do not order memory, its shares may have to be brought together.
        let combined = counts.get("attention_combine").copied().unwrap_or(0);
        assert!(combined == 0 || !context.capabilities().device_barriers);
        assert_eq!(counts.values().sum::<usize>(), 10 * c.layers + combined + 3, "{counts:?}");
        let few = tokens == 128;
        let [most_read, most_written] = token_bytes(c, if few { tokens / 64 + 1 } else { 0 })
            .map(|bytes| bytes * tokens as u64);
        assert!(
            (weights..weights + weights / 8 + most_read).contains(&read),
            "{tokens}: {read}, at most {most_read} beside {weights}"
        );
        assert!(written < most_written + 4096, "{tokens}: {written}, at most {most_written}");
    }
}

/// The most bytes that a token has kernels read, and write, where its attention leaves this many
/// shares.
fn token_bytes(c: &ModelConfig, shares: usize) -> [u64; 2] {
    let (row, width) = ((c.heads + 2 * c.kv_heads) * c.head_dim, c.heads * c.head_dim);
    // Codes in f16, in rows of whole 64s, with a scale and sums.
    let codes = |width: usize| 2 * width.next_multiple_of(64) + 16;
    let codes = 2 * codes(c.hidden) + codes(width) + codes(c.intermediate);
    let cached = 2 * c.kv_heads * c.head_dim;
    // The stream for both norms, queries with keys and values, angles and the cache for attention
    // (of shares, the former in place of angles again), what is attended, and gates and ups.
    let again = if shares > 0 { row } else { 0 };
    let read = 2 * c.hidden + row + again + 2 * c.head_dim + cached + width + 2 * c.intermediate;
    // Each product, queries as they are rotated, the cache, what is attended and its shares.
    let written = 2 * c.hidden
        + 2 * row
        + cached
        + width
        + 2 * c.intermediate
        + shares * c.heads * (c.head_dim.next_multiple_of(4) + 2);
    // The embedding writes the stream, which the last norm reads.
    [read, written].map(|floats| (c.layers * (4 * floats + codes) + 4 * (c.hidden + 1)) as u64)
}

/// Submissions are bounded by it.
#[test]
fn a_prompt_states_the_work_of_its_matrices() {
    const TOKENS: usize = 40;
    let model = Model::builder(real_model()).device(context()).build().unwrap();
    let (recording, _) = model.record_prompt(&[5; TOKENS]).unwrap();
    let found: u64 = recording.dispatches().map(|dispatch| dispatch.multiply_adds()).sum();
    let c = model.config();
    let width = c.heads * c.head_dim;
    let matrices = c.hidden * (width + 2 * c.kv_heads * c.head_dim)
        + width * c.hidden
        + 3 * c.hidden * c.intermediate;
    let expected = TOKENS * c.layers * (matrices + 2 * width * TOKENS) + c.vocab * c.hidden;
    assert_eq!(found, expected as u64);
}
