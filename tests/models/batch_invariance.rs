//! Batch-invariant: a sequence's logits do not depend on how its prompt was cut into
//! chunks, on what else is in the batch, or on how many tokens a step takes. In every engine. Nor
//! do they depend on the numbers that kernels are chosen by.

use bitnet_wgpu::{
    Context,
    formats::ReadOptions,
    kernel::ShaderLanguage,
    model::{Model, ModelFiles, Session, SessionOptions},
    tuning::{Tuning, TuningKey},
};
use serde_json::json;
use std::collections::BTreeMap;
use support::{
    block_on, context,
    models::{Reconfigured, TernaryTables, two_layers},
    prompts_on_tensor_cores, real_model,
};

/// The real model by both engines, and on tensor cores where the GPU has some, and small ones with
/// SiLU and with rows that take two dispatches.
fn models() -> Vec<(&'static str, Model)> {
    let small = |name: &str| {
        Model::builder(support::data("models").join(name)).device(context()).build().unwrap()
    };
    let real = Model::builder(real_model()).device(context()).build().unwrap();
    let mut all = vec![
        ("the GPU", real),
        ("the CPU", Model::builder(real_model()).cpu().build().unwrap()),
        ("llama on the GPU", small("llama")),
        ("odd on the GPU", small("odd")),
        ("norms in linear layers on the GPU", small("normed")),
        ("norms after sublayers on the GPU", small("gemma3")),
        ("scaled embeddings on the GPU", small("minicpm")),
        ("several scales a matrix on the GPU", small("trilm")),
        ("float activations on the GPU", small("qwen3")),
        ("8 bits by groups on the GPU", by_groups(Some(context()))),
        ("8 bits by groups on the CPU", by_groups(None)),
        (
            "float activations on the CPU",
            Model::builder(support::data("models").join("qwen3")).cpu().build().unwrap(),
        ),
        ("a ternary head on the GPU", ternary_head(Some(context()))),
        ("a ternary head on the CPU", ternary_head(None)),
        ("rotated weights on the GPU", rotated(Some(context()))),
        ("rotated weights on the CPU", rotated(None)),
    ];
    for (name, packed) in [
        ("float activations of few tokens in one dispatch", true),
        ("the same without packed products", false),
    ] {
        let floats = ReadOptions::default().quantized_activations(false);
        let files = ModelFiles::open_with(real_model(), floats).unwrap();
        all.push((name, files.builder().device(&one_dispatch(packed)).build().unwrap()));
    }
    all.extend(prompts_on_tensor_cores().map(|context| {
        ("tensor cores", Model::builder(real_model()).device(&context).build().unwrap())
    }));
    all
}

/// A device that is taken for a GPU, and multiplies block floating point activations in planes of bytes or in
/// floats.
fn one_dispatch(packed: bool) -> Context {
    context().restricted(|c| (c.fast_packed_dot, c.software) = (packed, false))
}

/// A model whose weights have per-group scales, and whose activations are quantized all the same.
fn by_groups(context: Option<&Context>) -> Model {
    ModelFiles::open_with(
        support::data("models/qwen3"),
        ReadOptions::default().quantized_activations(true),
    )
    .and_then(|files| files.builder().device(context).build())
    .unwrap()
}

fn ternary_head(context: Option<&Context>) -> Model {
    Model::builder_from(&TernaryTables::open(true, true), None).device(context).build().unwrap()
}

/// A model whose weights are taken for rotated ones, whatever they mean then.
fn rotated(context: Option<&Context>) -> Model {
    let file = Reconfigured::open("qwen3", |c| {
        let signs = |width: usize| {
            (
                width.to_string(),
                (0..width).map(|i| if i % 3 == 0 { -1.0f32 } else { 1.0 }).collect::<Vec<_>>(),
            )
        };
        let signs: BTreeMap<_, _> = [c.hidden, c.heads * c.head_dim].map(signs).into();
        let keys = json!({ "block": 8, "signs": signs, "head": true, "embedding": true });
        c.hadamard = Some(serde_json::from_value(keys).unwrap());
    });
    Model::builder_from(&file, None).device(context).build().unwrap()
}

/// Longer than a share of the attention's positions.
fn text(model: &Model, seed: u32, len: usize) -> Vec<u32> {
    let vocab = model.config().vocab as u32;
    (0..len as u32).map(|i| (i * i * 31 + i * 7 + seed * 977) % vocab).collect()
}

fn session(model: &Model, sequences: usize) -> Session {
    model.session(SessionOptions::new(sequences, 128)).unwrap()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The logits after every token, one token after another: what all others are compared with.
fn one_by_one(model: &Model, ids: &[u32]) -> Vec<Vec<u32>> {
    let mut session = session(model, 1);
    ids.iter().map(|&id| bits(&block_on(session.decode(&[id])).unwrap())).collect()
}

fn is_batch_invariant(engine: &str, model: &Model, tokens: usize) {
    let ids = text(model, 1, tokens);
    let alone = one_by_one(model, &ids);
    in_pieces(engine, model, &ids, &alone);
    together(engine, model, &ids, &alone);
    among_others(engine, model, &ids, &alone);
}

#[test]
#[ignore = "takes minutes: scripts/test --only slow"]
fn logits_are_the_same_bits() {
    models().iter().for_each(|(engine, model)| is_batch_invariant(engine, model, 75));
}

/// Of the models above, one with each type of activations.
#[test]
fn small_models_are_batch_invariant() {
    let floats = support::data("models").join("qwen3");
    let floats = Model::builder(floats).device(context()).build().unwrap();
    is_batch_invariant("float activations on the GPU", &floats, 75);
    is_batch_invariant("8 bits by groups on the GPU", &by_groups(Some(context())), 75);
    is_batch_invariant("8 bits by groups on the CPU", &by_groups(None), 75);
    is_batch_invariant("int8 head on packed products", &int8_head(&one_dispatch(true)), 75);
}

fn int8_head(context: &Context) -> Model {
    let path = support::data("models").join("llama");
    Model::builder(path).device(context).int8_head(true).build().unwrap()
}

/// A prompt that is long enough for tensor cores, in chunks that are not and in one.
#[test]
fn prompts_on_tensor_cores_have_the_same_bits() {
    let Some(context) = prompts_on_tensor_cores() else {
        println!("NOT RUN: the device has no tensor cores");
        return;
    };
    let model = Model::builder(real_model()).device(&context).build().unwrap();
    let ids = text(&model, 3, 300);
    let in_pieces = |piece: usize| {
        let mut session = model.session(SessionOptions::new(1, 512)).unwrap();
        ids.chunks(piece).map(|part| bits(&block_on(session.prefill(0, part)).unwrap())).last()
    };
    let alone = in_pieces(100);
    assert!(in_pieces(299) == alone && in_pieces(300) == alone);
}

/// F16 attention is another sum, of a prompt only, and nearly the same: a code that flips
/// moves a logit by some tenths.
#[test]
fn f16_attention_changes_logits_little() {
    let metal = || {
        (context().language() == ShaderLanguage::Msl && context().capabilities().apple)
            .then(|| context().clone())
    };
    let Some(context) = prompts_on_tensor_cores().or_else(metal) else {
        println!("NOT RUN: the device has no tensor cores");
        return;
    };
    let load =
        |f16s| Model::builder(real_model()).device(&context).f16_attention(f16s).build().unwrap();
    let (model, f16s) = (load(false), load(true));
    let ids = text(&model, 5, 130);
    let logits = |model: &Model, piece| {
        let mut session = model.session(SessionOptions::new(1, 512)).unwrap();
        let pieces: Vec<_> =
            ids.chunks(piece).map(|part| block_on(session.prefill(0, part)).unwrap()).collect();
        pieces.last().unwrap().clone()
    };
    let exact = logits(&model, 130);
    assert_eq!(bits(&logits(&f16s, 50)), bits(&exact), "pieces that are too short for it");
    let moved =
        logits(&f16s, 130).iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("logits move by up to {moved}");
    assert!(moved > 0.0 && moved < 0.6, "{moved}");
}

/// A prompt in chunks, and in one.
fn in_pieces(engine: &str, model: &Model, ids: &[u32], alone: &[Vec<u32>]) {
    for piece in [3, 7, ids.len()] {
        let mut session = session(model, 1);
        let mut done = 0;
        for part in ids.chunks(piece) {
            let logits = block_on(session.prefill(0, part)).unwrap();
            done += part.len();
            assert_eq!(
                bits(&logits),
                alone[done - 1],
                "{engine}: {done} tokens in pieces of {piece}"
            );
        }
    }
}

/// Tokens of which all logits are wanted, as where a step verifies several.
fn together(engine: &str, model: &Model, ids: &[u32], alone: &[Vec<u32>]) {
    for together in [1, 4, 8] {
        let mut session = session(model, 1);
        let before = ids.len() - 16;
        block_on(session.prefill(0, &ids[..before])).unwrap();
        let mut rows = Vec::new();
        for part in ids[before..].chunks(together) {
            block_on(session.prefill_logits(0, part, |more| rows.extend(more))).unwrap();
        }
        for (token, row) in rows.chunks(model.config().vocab).enumerate() {
            assert_eq!(
                bits(row),
                alone[before + token],
                "{engine}: token {token}, {together} together"
            );
        }
    }
}

/// A sequence in the middle of others of all lengths.
fn among_others(engine: &str, model: &Model, ids: &[u32], alone: &[Vec<u32>]) {
    let vocab = model.config().vocab;
    let before = ids.len() - 4;
    for others in [1, 3, 15] {
        let (mut session, place) = (session(model, 1 + others), others / 2);
        for sequence in 0..=others {
            let prompt = if sequence == place {
                ids[..before].to_vec()
            } else {
                text(model, 10 + sequence as u32, 1 + 5 * sequence)
            };
            block_on(session.prefill(sequence, &prompt)).unwrap();
        }
        for (token, &id) in ids.iter().enumerate().skip(before) {
            let token_of = |sequence: usize| {
                if sequence == place { id } else { ((token * 37 + sequence) % vocab) as u32 }
            };
            let logits =
                block_on(session.decode(&(0..=others).map(token_of).collect::<Vec<_>>())).unwrap();
            assert_eq!(
                bits(&logits[place * vocab..][..vocab]),
                alone[token],
                "{engine}: token {token} among {others}"
            );
        }
    }
}

/// Tables of choices as far from the usual ones as may be: all at one end, at the other, and in
/// turn at both.
fn extremes() -> [Tuning; 4] {
    [|_| false, |_| true, |n| n % 2 == 0, |n| n % 4 < 2].map(|at_end: fn(usize) -> bool| {
        let mut tuning = Tuning::default();
        for (n, &choice) in TuningKey::ALL.iter().enumerate() {
            let range = choice.range();
            tuning.set(choice, if at_end(n) { *range.end() } else { *range.start() }).unwrap();
        }
        tuning
    })
}

/// Logits of a prompt in one chunk and of few tokens after it, and of sequences side by side.
fn everything(model: &Model) -> Vec<Vec<u32>> {
    const SEQUENCES: usize = 7;
    let ids = text(model, 1, 100);
    let (mut alone, mut at, mut all) = (session(model, 1), 0, Vec::new());
    for piece in [70, 1, 2, 3, 5] {
        all.push(bits(&block_on(alone.prefill(0, &ids[at..at + piece])).unwrap()));
        at += piece;
    }
    let mut together = session(model, SEQUENCES);
    for sequence in 0..SEQUENCES {
        let ids = text(model, sequence as u32, 3 + 5 * sequence);
        all.push(bits(&block_on(together.prefill(sequence, &ids)).unwrap()));
    }
    all.push(bits(&block_on(together.decode(&text(model, 2, SEQUENCES))).unwrap()));
    all
}

#[test]
fn no_choice_changes_a_bit_of_logits() {
    let packed = context().restricted(|c| c.fast_packed_dot = true);
    let [in_floats, in_bytes] = [false, true].map(one_dispatch);
    let plain = context().restricted(|c| (c.subgroups, c.device_barriers) = (false, false));
    let cores = prompts_on_tensor_cores();
    let mut all = vec![
        ("as it is", context(), "tales"),
        ("as it is", context(), "llama"),
        ("as it is", context(), "qwen3"),
        ("int8", &packed, "llama"),
        ("int8", &packed, "odd"),
        ("planes of bytes", &in_bytes, "qwen3"),
        ("floats in one dispatch", &in_floats, "qwen3"),
        ("plain", &plain, "odd"),
        ("int8 head", &packed, "int8 head"),
    ];
    for name in ["tales", "int8 head"] {
        all.extend(cores.as_ref().map(|context| ("tensor cores", context, name)));
    }
    let logits = |context: &Context, name: &str| {
        everything(&match name {
            "tales" => two_layers(Some(context)),
            "int8 head" => int8_head(context),
            name => {
                Model::builder(support::data("models").join(name)).device(context).build().unwrap()
            }
        })
    };
    for (device, context, name) in all {
        let usual = logits(context, name);
        for (n, tuning) in extremes().into_iter().enumerate() {
            let tuned = logits(&context.restricted(|c| c.tuning = tuning), name);
            let other = tuned.iter().zip(&usual).position(|(tuned, usual)| tuned != usual);
            assert_eq!(other, None, "{device}, {name}, table {n}");
        }
    }
    let [in_floats, in_bytes] = [&in_floats, &in_bytes].map(|context| logits(context, "qwen3"));
    assert!(
        in_floats == in_bytes,
        "block floating point activations have other bits in planes of bytes"
    );
}
