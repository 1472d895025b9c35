//! Models with recurrent layers: sessions keep what these layers do.

use bitnet_wgpu::{
    Context, ContextOptions, Element, Error,
    model::{BatchOptions, GenerateOptions, Model, Session, SessionOptions, Speculation},
};
use support::{
    block_on,
    files::Directory,
    models::{bits, directory, golden, on_gpu_and_cpu},
};

fn models() -> [(String, Model); 2] {
    on_gpu_and_cpu("qwen35")
}

fn session(model: &Model, sequences: usize) -> Session {
    model.session(SessionOptions::new(sequences, 160).kv_type(Element::F32)).unwrap()
}

/// Of two prefill chunks and more on the CPU, and too long to be kept as a step on a GPU.
fn prompt() -> Vec<u32> {
    (0..100).map(|i| (i * i * 7 + 3) % 260).collect()
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
    let ids = prompt();
    for (engine, model) in models() {
        let whole = pieces(&mut session(&model, 1), &ids, &[100]);
        for lengths in [&[1; 100][..], &[2, 1, 97], &[64, 36], &[99, 1]] {
            assert!(
                pieces(&mut session(&model, 1), &ids, lengths) == whole,
                "{engine}: {lengths:?}"
            );
        }
    }
}

#[test]
fn sequences_of_a_batch_are_independent() {
    let ids = prompt();
    for (engine, model) in models() {
        let mut both = session(&model, 2);
        block_on(both.prefill(0, &ids[..70])).unwrap();
        block_on(both.prefill(1, &ids[50..61])).unwrap();
        let logits = block_on(both.decode(&[ids[70], ids[61]])).unwrap();
        let alone = [&ids[..71], &ids[50..62]]
            .map(|ids| block_on(session(&model, 1).prefill(0, ids)).unwrap());
        assert!(bits(logits) == bits(alone.concat()), "{engine}");
    }
}

#[test]
fn truncated_sequences_are_computed_again() {
    let ids = prompt();
    for (engine, model) in models() {
        let whole = pieces(&mut session(&model, 1), &ids, &[100]);
        let mut again = session(&model, 1);
        block_on(again.prefill(0, &ids[..80])).unwrap();
        again.truncate(0, 80).unwrap();
        again.truncate(0, 70).unwrap();
        assert_eq!(again.len(0), 70);
        // A copy of it forgets and goes on by itself.
        let mut copy = again.fork().unwrap();
        copy.truncate(0, 0).unwrap();
        assert!(copy.is_empty(0) && pieces(&mut copy, &ids, &[100]) == whole, "{engine}");
        let file = Directory::temporary().0.join("behind");
        let refused = block_on(again.save(&file)).unwrap_err();
        assert!(refused.to_string().contains("was truncated"), "{refused}");
        assert!(pieces(&mut again, &ids[70..], &[1, 29]) == whole, "{engine}");
        again.truncate(0, 95).unwrap();
        let mut single = Vec::new();
        for id in &ids[95..] {
            single = block_on(again.decode(&[*id])).unwrap();
        }
        assert!(bits(single) == whole, "{engine}");
    }
}

/// Wherever a text ends, drafts that were wrong among its last tokens: the session is that of the
/// text, and nothing is to be computed again.
#[test]
fn sessions_after_drafts_are_complete() {
    let prompt = [250, 3, 7, 9, 3, 7, 9, 3, 7];
    let folder = Directory::temporary();
    for (engine, model) in models() {
        for tokens in 8..20 {
            let options = GenerateOptions::default().max_tokens(tokens).ignore_eos(true);
            let options = options.speculate(Speculation::ngram_lengths(1, 3));
            let session = session(&model, 1);
            let mut generation = model.generate_ids_in(session, &prompt, &options).unwrap();
            let found: Vec<u32> =
                (&mut generation).into_iter().map(|token| token.unwrap().id).collect();
            assert!(generation.speculation().unwrap().drafted > 0);
            let mut session = block_on(generation.into_session()).unwrap();
            let path = folder.0.join(format!("{tokens}"));
            block_on(session.save(&path)).unwrap();
            let mut loaded = model.load_session(&path, session.options()).unwrap();
            let whole = [&prompt[..], &found, &[5, 6]].concat();
            let expected = pieces(&mut self::session(&model, 1), &whole, &[whole.len()]);
            for session in [&mut session, &mut loaded] {
                let rest = &whole[session.len(0)..];
                assert!(pieces(session, rest, &[rest.len()]) == expected, "{engine}: {tokens}");
            }
        }
    }
}

#[test]
fn saved_forked_and_grown_sessions_continue() {
    let (ids, models) = (prompt(), models());
    let options = SessionOptions::new(2, 160).kv_type(Element::F32);
    for (n, (engine, model)) in models.iter().enumerate() {
        let whole = pieces(&mut session(model, 1), &ids, &[100]);
        let mut first = model.session(SessionOptions::new(2, 70).kv_type(Element::F32)).unwrap();
        block_on(first.prefill(0, &ids[..70])).unwrap();
        // One that is empty again has no state to be kept.
        block_on(first.prefill(1, &ids[..9])).unwrap();
        first.truncate(1, 0).unwrap();
        let folder = Directory::temporary();
        let path = folder.0.join("session");
        block_on(first.save(&path)).unwrap();
        let mut loaded = model.load_session(&path, options).unwrap();
        let mut fork = loaded.fork().unwrap();
        let mut elsewhere = models[1 - n].1.load_session(&path, options).unwrap();
        block_on(first.grow(160)).unwrap();
        let second = bits(block_on(session(model, 1).prefill(0, &ids[..5])).unwrap());
        for (what, session) in
            [("loaded", &mut loaded), ("forked", &mut fork), ("grown", &mut first)]
        {
            assert!(pieces(session, &ids[70..], &[30]) == whole, "{engine}, {what}");
            let logits = bits(block_on(session.prefill(1, &ids[..5])).unwrap());
            assert!(logits == second, "{engine}, {what}");
        }
        // On the other device.
        let logits = block_on(elsewhere.prefill(0, &ids[70..])).unwrap();
        let of_bits = logits.iter().zip(whole.iter().map(|&bits| f32::from_bits(bits)));
        let off = of_bits.map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(off < 4e-2, "{engine}: {off}");
    }
}

#[test]
fn conversations_go_on_from_any_prefix() {
    let ids = prompt();
    let options = GenerateOptions::default().max_tokens(6).ignore_eos(true);
    for (engine, model) in models() {
        let tokens = |ids: &[u32], session: Option<Session>| {
            let session = session.unwrap_or_else(|| self::session(&model, 1));
            let mut generation = model.generate_ids_in(session, ids, &options).unwrap();
            let found: Vec<u32> =
                (&mut generation).into_iter().map(|token| token.unwrap().id).collect();
            (found, block_on(generation.into_session()).unwrap())
        };
        let (_, session) = tokens(&ids[..70], None);
        let mut session = Some(session);
        for changed in [70, 50] {
            let other = [&ids[..changed], &[1, 2, 3]].concat();
            let (found, kept) = tokens(&other, session.take());
            assert_eq!(found, tokens(&other, None).0, "{engine}: {changed}");
            session = Some(kept);
        }
    }
}

/// More texts than a batch has sequences, so that each has a state that another text has left.
#[test]
fn texts_of_a_batch_are_those_alone() {
    let ids = prompt();
    let options = GenerateOptions::default().max_tokens(7).ignore_eos(true);
    for (engine, model) in models() {
        let batch = model.batch(BatchOptions::new(2, 64)).unwrap();
        let prompts: Vec<&[u32]> =
            vec![&ids[..3], &ids[10..40], &ids[50..51], &ids[..3], &ids[7..20]];
        let streams: Vec<_> =
            prompts.iter().map(|ids| batch.generate_ids(ids, &options).unwrap()).collect();
        for (ids, stream) in prompts.into_iter().zip(streams) {
            let alone = block_on(model.generate_ids(ids, &options).unwrap().all()).unwrap();
            assert_eq!(block_on(stream.all()).unwrap().ids, alone.ids, "{engine}");
        }
    }
}

#[test]
fn states_are_counted_before_they_are_allocated() {
    let fresh = || block_on(Context::open(ContextOptions::default())).unwrap();
    let (context, builder) = (fresh(), || Model::builder(directory("qwen35")));
    let weights = builder().device(&context).footprint().unwrap().weights;
    context.limit_memory(weights - 1);
    let refused = builder().device(&context).build().map(drop).unwrap_err();
    assert!(matches!(refused, Error::MemoryLimit { bytes, .. } if bytes == weights), "{refused}");
    context.limit_memory(weights);
    let model = builder().device(&context).build().unwrap();
    assert_eq!(context.memory_stats().live_bytes, weights);
    let options = SessionOptions::new(3, 96).kv_type(Element::F32);
    let need = model.session_footprint(options).unwrap();
    context.limit_memory(weights + need.total() - 1);
    let refused = model.session(options).map(drop).unwrap_err();
    assert!(matches!(refused, Error::MemoryLimit { .. }), "{refused}");
    context.limit_memory(weights + need.total());
    let mut session = model.session(options).unwrap();
    let ids = golden("qwen35").ids("prompt1.ids");
    for sequence in 0..3 {
        block_on(session.prefill(sequence, &ids)).unwrap();
    }
    block_on(session.decode(&[1, 2, 3])).unwrap();
    assert!(context.memory_stats().peak_live_bytes <= weights + need.total());
}
