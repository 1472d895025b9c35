//! Properties of sessions: chunks, windows, limits.

use super::{changed, largest_difference};
use bitnet_wgpu::{
    Element, Error,
    formats::{Checkpoint, ModelFile as _},
    model::{Device, GenerateOptions, Model, Sampling, SessionOptions},
};
use support::{
    block_on, context,
    models::{Reconfigured, bits, directory, engines, golden, session},
};

/// And the same model on any number of them.
#[test]
fn so_many_threads_are_had_or_refused() {
    let ids = golden("odd").ids("prompt0.ids");
    let on =
        |threads: Option<usize>| Model::builder(directory("odd")).cpu().threads(threads).build();
    let computed = |model: &Model| {
        (bits(block_on(model.logits(&ids)).unwrap()), block_on(model.score(&ids)).unwrap())
    };
    let expected = computed(&on(None).unwrap());
    for threads in [1, 2, 3, 17] {
        let model = on(Some(threads)).unwrap();
        for model in [&model, &model.reload(Device::Cpu).unwrap()] {
            assert!(computed(model) == expected, "{threads} threads");
        }
    }
    for threads in [0, 1025, usize::MAX] {
        for devices in [None, Some(context())] {
            let refused = Model::builder(directory("odd"))
                .device(devices)
                .threads(threads)
                .build()
                .unwrap_err();
            assert!(
                matches!(refused, Error::Invalid { op: "threads", .. })
                    && refused.to_string().contains(&threads.to_string()),
                "{refused}"
            );
        }
    }
}

#[test]
fn prefill_in_one_and_token_by_token_agree() {
    for name in ["newer", "llama"] {
        let ids = golden(name).ids("prompt2.ids");
        for (engine, model) in engines(name) {
            let whole = block_on(session(&model, 1, 64, Element::F32).prefill(0, &ids)).unwrap();
            let mut single = session(&model, 1, 64, Element::F32);
            let mut last = Vec::new();
            for &id in &ids {
                last = block_on(single.decode(&[id])).unwrap();
            }
            assert_eq!(bits(whole.clone()), bits(last), "{engine}");
            // In chunks, and after a step back.
            let mut pieces = session(&model, 1, 64, Element::F32);
            block_on(pieces.prefill(0, &ids[..13])).unwrap();
            block_on(pieces.prefill(0, &[1, 2, 3])).unwrap();
            pieces.truncate(0, 13).unwrap();
            let last = block_on(pieces.prefill(0, &ids[13..])).unwrap();
            assert_eq!(bits(whole), bits(last), "{engine}, in pieces");
            assert_eq!(pieces.len(0), ids.len());
        }
    }
}

/// On a GPU 512 tokens are computed together, and the logits of 64.
#[test]
fn a_long_prompt_equals_its_chunks() {
    for (name, context) in [("newer", Some(context())), ("qwen3", Some(context())), ("newer", None)]
    {
        let file = Reconfigured::open(name, |c| c.context = 1024);
        let vocab = file.config().vocab;
        let ids: Vec<u32> = (0..600).map(|i| i * 7 % vocab as u32).collect();
        let model = Model::builder_from(&file, None).device(context).build().unwrap();
        // The other type on one model is enough.
        let f16 = name == "newer" && context.is_some_and(|context| context.capabilities().f16);
        for kv in [Element::F32, Element::F16].into_iter().take(1 + usize::from(f16)) {
            let mut sequence = session(&model, 1, ids.len(), kv);
            let mut in_chunks = |chunks: &[usize]| {
                sequence.truncate(0, 0).unwrap();
                let (mut rest, mut last) = (&ids[..], Vec::new());
                for &chunk in chunks {
                    last = block_on(sequence.prefill(0, &rest[..chunk])).unwrap();
                    rest = &rest[chunk..];
                }
                assert_eq!((last.len(), sequence.len(0)), (vocab, ids.len()));
                bits(last)
            };
            let whole = in_chunks(&[600]);
            for chunks in [&[511, 89][..], &[64, 63, 473]] {
                assert!(in_chunks(chunks) == whole, "{model:?}, {kv:?}: {chunks:?}");
            }
            if kv == Element::F32 {
                let logits = block_on(model.logits(&ids)).unwrap();
                assert_eq!(logits.len(), ids.len() * vocab);
                assert!(bits(logits[logits.len() - vocab..].to_vec()) == whole, "{model:?}");
            }
        }
    }
}

#[test]
fn keys_and_values_in_16_bits_are_near() {
    let ids = golden("newer").ids("prompt1.ids");
    for (engine, model) in engines("newer") {
        if model.context().is_some_and(|context| !context.capabilities().f16) {
            println!("NOT RUN: the device has no f16");
            continue;
        }
        let wide = block_on(session(&model, 1, 16, Element::F32).prefill(0, &ids)).unwrap();
        let narrow = block_on(session(&model, 1, 16, Element::F16).prefill(0, &ids)).unwrap();
        let largest = wide.iter().fold(0f32, |max, v| max.max(v.abs()));
        let off = largest_difference(&wide, &narrow);
        assert!(off > 0.0 && off < 0.2 * largest, "{engine}: {off} of {largest}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (engine, model) in engines("odd") {
        let (limit, vocab) = (model.config().context, model.config().vocab as u32);
        let options = GenerateOptions::default();
        let refused = |ids: &[u32]| model.generate_ids(ids, &options).map(drop).unwrap_err();
        assert!(
            matches!(refused(&vec![1; limit + 1]), Error::Context { needed, capacity } if (needed, capacity) == (limit + 1, limit)),
            "{engine}"
        );
        assert!(matches!(refused(&[]), Error::Invalid { .. }), "{engine}");
        assert!(refused(&[1, vocab]).to_string().contains(&format!("token {vocab}")), "{engine}");
        assert!(
            matches!(model.generate("text", &options).map(drop), Err(Error::Tokenizer { .. })),
            "{engine}"
        );
        assert!(matches!(
            model.session(SessionOptions::new(1, limit + 1)),
            Err(Error::Context { .. })
        ));
        assert!(matches!(model.session(SessionOptions::new(0, 1)), Err(Error::Invalid { .. })));
        assert!(matches!(model.session(SessionOptions::new(4097, 1)), Err(Error::Invalid { .. })));
        assert!(matches!(
            model.session(SessionOptions::new(1, 1).kv_type(Element::U32)),
            Err(Error::Invalid { .. })
        ));
        assert!(matches!(block_on(model.logits(&[])), Err(Error::Invalid { .. })));
        let hot = options.clone().sampling(Sampling::GREEDY.temperature(f32::NAN));
        assert!(matches!(model.generate_ids(&[1], &hot).map(drop), Err(Error::Invalid { .. })));

        let mut session = session(&model, 2, 4, Element::F32);
        block_on(session.prefill(1, &[1, 2, 3])).unwrap();
        assert!(
            matches!(
                block_on(session.prefill(1, &[4, 5])),
                Err(Error::Context { needed: 5, capacity: 4 })
            ),
            "{engine}"
        );
        assert_eq!((session.len(0), session.len(1)), (0, 3), "{engine}: nothing is appended");
        assert!(matches!(block_on(session.prefill(2, &[1])), Err(Error::Invalid { .. })));
        assert!(matches!(block_on(session.decode(&[1])), Err(Error::Invalid { .. })));
        assert!(matches!(block_on(session.decode(&[1, vocab])), Err(Error::Invalid { .. })));
        block_on(session.decode(&[1, 4])).unwrap();
        assert!(
            matches!(
                block_on(session.decode(&[1, 4])),
                Err(Error::Context { needed: 5, capacity: 4 })
            ),
            "{engine}"
        );
        assert!(session.truncate(2, 0).is_err());
    }
}

/// What a sequence sees through a window is the same however its text was cut, and after it was cut
/// short.
#[test]
fn windows_keep_what_texts_promise() {
    for name in ["gemma3", "gemma3_floats"] {
        let ids = golden(name).ids("text.ids");
        for (engine, model) in engines(name) {
            let whole = block_on(session(&model, 1, 128, Element::F32).prefill(0, &ids)).unwrap();
            let mut pieces = session(&model, 1, 128, Element::F32);
            block_on(pieces.prefill(0, &ids[..90])).unwrap();
            pieces.truncate(0, 50).unwrap();
            block_on(pieces.prefill(0, &ids[50..97])).unwrap();
            let mut forked = pieces.fork().unwrap();
            let last =
                ids[97..].iter().map(|&id| block_on(forked.decode(&[id])).unwrap()).last().unwrap();
            assert_eq!(last, whole, "{engine}");
        }
    }
}

#[test]
fn non_finite_values_are_errors_in_every_path() {
    for (model, part) in [
        ("llama", "lm_head.weight"),
        ("llama", "model.embed_tokens.weight"),
        ("llama", "model.norm.weight"),
        ("odd", "model.embed_tokens.weight"),
        ("odd", "model.layers.1.self_attn.attn_sub_norm.weight"),
        ("odd", "model.layers.1.input_layernorm.weight"),
    ] {
        let checkpoint = Checkpoint::open(directory(model)).unwrap();
        let tensor = checkpoint.tensor(part).unwrap();
        // The last number, all ones: a NaN in every format.
        let size = tensor.bytes.len() / tensor.shape.iter().product::<usize>();
        let damaged = changed(
            model,
            |_| {},
            |name, bytes| {
                let start = bytes.len() - size;
                if name == part {
                    bytes[start..].fill(0xff);
                }
                None
            },
        );
        for int8_head in [false, true] {
            for context in [None, Some(context())] {
                let builder = Model::builder(&damaged.0).device(context);
                let error = builder.int8_head(int8_head).build().unwrap_err();
                let last =
                    tensor.shape.iter().map(|size| (size - 1).to_string()).collect::<Vec<_>>();
                assert!(
                    matches!(error, Error::Format { .. }) && error.to_string().contains(part),
                    "{part}: {error}"
                );
                let place = error.to_string().contains("NaN")
                    || last.iter().all(|at| error.to_string().contains(at));
                assert!(place, "{part}: {error}");
            }
        }
    }
}

#[test]
fn forgetting_never_adds() {
    for (engine, model) in engines("odd") {
        let mut session = session(&model, 1, 16, Element::F32);
        block_on(session.prefill(0, &[1, 2, 3])).unwrap();
        session.truncate(0, 9).unwrap();
        assert_eq!((session.len(0), session.tokens(0)), (3, &[1, 2, 3][..]), "{engine}");
        let after = block_on(session.decode(&[4])).unwrap();
        let mut plain = self::session(&model, 1, 16, Element::F32);
        assert_eq!(
            block_on(plain.prefill(0, &[1, 2, 3]))
                .map(|_| ())
                .and_then(|()| block_on(plain.decode(&[4])))
                .unwrap(),
            after,
            "{engine}"
        );
    }
}
