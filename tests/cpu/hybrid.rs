//! Models with recurrent layers on the CPU: sessions keep what these layers do, and what cannot be
//! done with them is refused.

use bitnet_wgpu::{
    Element, Error,
    formats::{Checkpoint, GgufType, write_gguf, write_mlx, write_packed},
    internals::CheckpointInternals as _,
    model::{GenerateOptions, Model, ModelFiles, Session, SessionOptions, Speculation},
};
use support::{
    block_on,
    files::{self, Directory},
    models::{bits, directory, golden},
};

fn model() -> Model {
    Model::builder(directory("qwen35")).cpu().build().unwrap()
}

fn session(model: &Model, sequences: usize) -> Session {
    model.session(SessionOptions::new(sequences, 160).kv_type(Element::F32)).unwrap()
}

/// Of two prefill chunks and more.
fn prompt() -> Vec<u32> {
    (0..150).map(|i| (i * i * 7 + 3) % 260).collect()
}

/// The bits of the logits after these tokens, in these pieces.
fn pieces(session: &mut Session, ids: &[u32], lengths: &[usize]) -> Vec<u32> {
    let (mut rest, mut last) = (ids, Vec::new());
    for &length in lengths {
        last = block_on(session.prefill(0, &rest[..length])).unwrap();
        rest = &rest[length..];
    }
    assert!(rest.is_empty());
    bits(last)
}

#[test]
fn chunks_of_a_prompt_change_no_bit() {
    let (model, ids) = (model(), prompt());
    let whole = pieces(&mut session(&model, 1), &ids, &[150]);
    for lengths in [&[1; 150][..], &[2, 1, 147], &[64, 64, 22], &[149, 1], &[3, 100, 47]] {
        assert!(pieces(&mut session(&model, 1), &ids, lengths) == whole, "{lengths:?}");
    }
}

#[test]
fn sequences_of_a_batch_are_independent() {
    let (model, ids) = (model(), prompt());
    let mut both = session(&model, 2);
    block_on(both.prefill(0, &ids[..70])).unwrap();
    block_on(both.prefill(1, &ids[50..61])).unwrap();
    let logits = block_on(both.decode(&[ids[70], ids[61]])).unwrap();
    let alone =
        [&ids[..71], &ids[50..62]].map(|ids| block_on(session(&model, 1).prefill(0, ids)).unwrap());
    assert!(bits(logits) == bits(alone.concat()));
}

#[test]
fn truncated_sequences_are_computed_again() {
    let (model, ids) = (model(), prompt());
    let whole = pieces(&mut session(&model, 1), &ids, &[150]);
    let mut again = session(&model, 1);
    block_on(again.prefill(0, &ids[..90])).unwrap();
    again.truncate(0, 90).unwrap();
    again.truncate(0, 70).unwrap();
    assert_eq!(again.len(0), 70);
    // A copy of it forgets and goes on by itself.
    let mut copy = again.fork().unwrap();
    copy.truncate(0, 0).unwrap();
    assert!(copy.is_empty(0) && pieces(&mut copy, &ids, &[150]) == whole);
    let file = Directory::temporary().0.join("behind");
    let refused = block_on(again.save(&file)).unwrap_err();
    assert!(refused.to_string().contains("was truncated"), "{refused}");
    assert!(pieces(&mut again, &ids[70..], &[1, 79]) == whole);
    again.truncate(0, 100).unwrap();
    let mut single = Vec::new();
    for id in &ids[100..] {
        single = block_on(again.decode(&[*id])).unwrap();
    }
    assert!(bits(single) == whole);
}

#[test]
fn saved_forked_and_grown_sessions_continue() {
    let (model, ids) = (model(), prompt());
    let mut first = model.session(SessionOptions::new(1, 70).kv_type(Element::F32)).unwrap();
    block_on(first.prefill(0, &ids[..70])).unwrap();
    let folder = Directory::temporary();
    let path = folder.0.join("session");
    block_on(first.save(&path)).unwrap();
    let options = SessionOptions::new(1, 160).kv_type(Element::F32);
    let mut loaded = model.load_session(&path, options).unwrap();
    let mut fork = loaded.fork().unwrap();
    block_on(first.grow(160)).unwrap();
    let whole = pieces(&mut session(&model, 1), &ids, &[150]);
    for (what, session) in [("loaded", &mut loaded), ("forked", &mut fork), ("grown", &mut first)] {
        assert!(pieces(session, &ids[70..], &[80]) == whole, "{what}");
    }
}

#[test]
fn conversations_go_on_from_any_prefix() {
    let (model, ids) = (model(), prompt());
    let options = GenerateOptions::default().max_tokens(6).ignore_eos(true);
    let tokens = |ids: &[u32], session: Option<Session>| {
        let session = session.unwrap_or_else(|| self::session(&model, 1));
        let mut generation = model.generate_ids_in(session, ids, &options).unwrap();
        let found: Vec<u32> =
            (&mut generation).into_iter().map(|token| token.unwrap().id).collect();
        (found, block_on(generation.into_session()).unwrap())
    };
    let (_, session) = tokens(&ids[..80], None);
    let mut session = Some(session);
    for changed in [80, 60, 79] {
        let other = [&ids[..changed], &[1, 2, 3]].concat();
        let (found, kept) = tokens(&other, session.take());
        assert_eq!(found, tokens(&other, None).0, "{changed}");
        session = Some(kept);
    }
}

/// A text model within one that takes images, as transformers names its tensors.
#[test]
fn prefixes_of_text_models_are_known() {
    let checkpoint = Checkpoint::open(directory("qwen35")).unwrap();
    let ids = golden("qwen35").ids("prompt1.ids");
    let expected = bits(block_on(model().logits(&ids)).unwrap());
    let within = |name: &str| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.to_owned(),
    };
    let copy = Directory::temporary();
    copy.write("config.json", checkpoint.config_json().to_string());
    let tensors: Vec<_> = checkpoint
        .names()
        .into_iter()
        .map(|name| (within(&name), checkpoint.tensor(&name).unwrap()))
        .map(|(name, tensor)| (name, tensor.dtype.to_string(), tensor.shape.to_vec(), tensor.bytes))
        .collect();
    let tensors: Vec<(&str, &str, &[usize], &[u8])> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (&**name, &**dtype, &shape[..], &bytes[..]))
        .collect();
    copy.write("model.safetensors", files::safetensors(&tensors));
    let model = Model::builder(&copy.0).cpu().build().unwrap();
    assert!(bits(block_on(model.logits(&ids)).unwrap()) == expected);
}

#[test]
fn drafts_of_recurrent_models_are_refused() {
    let model = model();
    let ids = golden("qwen35").ids("prompt1.ids");
    for speculation in [Speculation::ngram(), Speculation::from(&model)] {
        let options = GenerateOptions::default().speculate(speculation);
        let refused = model.generate_ids(&ids, &options).map(drop).unwrap_err();
        assert!(
            matches!(&refused, Error::Invalid { op: "speculation", what } if what.contains("recurrent")),
            "{refused}"
        );
    }
}

#[test]
fn recurrent_models_are_not_written() {
    let (folder, checkpoint) =
        (Directory::temporary(), Checkpoint::open(directory("qwen35")).unwrap());
    let path = folder.0.join("written");
    let files = ModelFiles::open(directory("qwen35")).unwrap();
    for refused in [
        write_packed(&checkpoint, &path, false, |_| {}),
        write_mlx(&checkpoint, &path, false, |_| {}),
        write_gguf(&checkpoint, None, &path, GgufType::Tq2_0, false, |_| {}),
        files.builder().write_prepacked(&path, false),
    ] {
        let refused = refused.unwrap_err().to_string();
        let words = ["recurrent layers", "float activations"];
        assert!(words.iter().any(|words| refused.contains(words)), "{refused}");
    }
    assert!(!path.exists());
}
