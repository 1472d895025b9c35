//! Models whose layers are on several devices: the bits of one device, whatever is done with them;
//! what is refused; memory; what is lost with one of them.

use bitnet_wgpu::{
    Context, ContextOptions, Element, Error, ErrorKind,
    device::Capabilities,
    formats::Pooling,
    internals::{ModelBuilderInternals as _, ModelInternals as _},
    model::{
        BatchOptions, Device, EmbedOptions, GenerateOptions, Model, ModelBuilder, ModelFiles,
        Offload, Sampling, Session, SessionOptions, Speculation, Stop,
    },
    telemetry::Footprint,
};
use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
    task,
};
use support::{
    block_on,
    files::Directory,
    models::{Reconfigured, TernaryTables, bits, computed, directory},
    real_model,
};

/// Devices of a test's own, this many.
fn fresh(count: usize) -> Vec<Context> {
    (0..count).map(|_| block_on(Context::new()).unwrap()).collect()
}

/// Devices, this many, that tests share: each compiles its kernels.
fn devices(count: usize) -> &'static [Context] {
    static DEVICES: LazyLock<Vec<Context>> = LazyLock::new(|| fresh(4));
    &DEVICES[..count]
}

fn load(devices: &[Context], path: &Path, split: &[usize]) -> Model {
    Model::builder(path).device(devices).split(split).build().unwrap()
}

/// Which layers are where.
fn layers(model: &Model) -> Vec<std::ops::Range<usize>> {
    model.parts(SessionOptions::new(1, 8)).unwrap().into_iter().map(|part| part.layers).collect()
}

fn text(model: &Model, prompt: &[u32], options: &GenerateOptions) -> Vec<u32> {
    model
        .generate_ids(prompt, options)
        .unwrap()
        .into_iter()
        .map(|token| token.unwrap().id)
        .collect()
}

/// Every kind of model, split at its ends and in the middle.
#[test]
fn split_layers_compute_the_same_bits() {
    let (one, two, three) = (devices(1), devices(2), devices(3));
    let mut cases: Vec<(PathBuf, Vec<&[usize]>)> = vec![
        (real_model(), vec![&[7, 1], &[1, 4, 3]]),
        (directory("llama"), vec![&[1, 2], &[2, 1], &[1, 1, 1]]),
        // Parts with recurrent layers only, with attention only, and with both.
        (directory("qwen35"), vec![&[2, 2], &[3, 1], &[2, 1, 1], &[1, 1, 2]]),
    ];
    cases.extend(
        ["odd", "newer", "qwen3", "normed", "minicpm", "trilm"]
            .map(|name| (directory(name), vec![&[1, 1][..]])),
    );
    // Layers that see a window and layers that see all, on either side.
    cases.extend(["gemma3", "gemma3_floats"].map(|name| (directory(name), vec![&[1, 1][..]])));
    for (path, splits) in cases {
        let expected = computed(&load(one, &path, &[]));
        for split in splits {
            let model = load(if split.len() == 2 { two } else { three }, &path, split);
            let found: Vec<usize> = layers(&model).iter().map(ExactSizeIterator::len).collect();
            assert_eq!(found, split);
            for (n, (found, expected)) in computed(&model).iter().zip(&expected).enumerate() {
                assert!(
                    found == expected,
                    "{} split as {split:?}: result {n} differs",
                    path.display()
                );
            }
        }
    }
    // Tables that are ternary, of its own or one for both ends.
    for tied in [true, false] {
        let file = TernaryTables::open(tied, true);
        let [whole, split] = [one, two].map(|devices| {
            computed(&Model::builder_from(&file, None).device(devices).build().unwrap())
        });
        assert!(whole == split, "tied: {tied}");
    }
}

/// A prompt of several chunks, of which each device computes another.
#[test]
fn long_prompts_are_the_same_in_pieces() {
    let (file, two) = (Reconfigured::open("llama", |c| c.context = 600), fresh(2));
    let [whole, split] = [devices(1), &two]
        .map(|devices| Model::builder_from(&file, None).device(devices).build().unwrap());
    let ids: Vec<u32> = (0..592).map(|i| i * 7 % 320).collect();
    let computed = |mut session: Session| {
        let mut all = vec![
            bits(block_on(session.prefill(1, &ids[..300])).unwrap()),
            bits(block_on(session.prefill(0, &ids)).unwrap()),
        ];
        all.push(bits(block_on(session.decode(&[3, 4])).unwrap()));
        session.truncate(0, 5).unwrap();
        all.push(bits(block_on(session.decode(&[5, 6])).unwrap()));
        all
    };
    let room = SessionOptions::new(2, 600);
    let mut session = split.session(room).unwrap();
    // The second chunk is begun before anybody asks whether the first is done, which it is; and
    // what is given up leaves nothing behind.
    let tracing = [0, 1].map(|device| two[device].trace().unwrap());
    let mut prompt = Box::pin(session.prefill(1, &ids));
    for _ in 0..2 {
        assert!(
            prompt.as_mut().poll(&mut task::Context::from_waker(task::Waker::noop())).is_pending()
        );
        block_on(two[0].upload(&[1u32], [1]).unwrap().read()).unwrap();
    }
    drop(prompt);
    let [begun, passed_on] = tracing.map(|tracing| {
        let trace: serde_json::Value =
            serde_json::from_str(&block_on(tracing.finish()).unwrap().to_string()).unwrap();
        let events = trace["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["name"] == "prefill" && event["ph"] != "e");
        events.map(|event| event["cat"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(
        (begun.iter().filter(|category| *category == "readback").count(), passed_on),
        (2, Vec::new())
    );
    assert_eq!((session.len(0), session.len(1)), (0, 0));
    assert!(computed(session) == computed(whole.session(room).unwrap()));
    let scores = [&whole, &split].map(|model| block_on(model.score(&ids)).unwrap());
    assert!(scores[0] == scores[1]);
}

/// Whatever there is in `model`, with a small one: logits of the real one are compared above.
#[test]
fn everything_works_on_a_split_model() {
    let (one, two) = (devices(1), devices(2));
    let [whole, split] = [one, two].map(|devices| load(devices, &directory("llama"), &[]));
    let prompt = vec![46, 7, 219, 12];
    let plain = GenerateOptions::default().max_tokens(14).ignore_eos(true);
    let sampled = Sampling::GREEDY.temperature(0.9).top_k(40).top_p(0.9).seed(7);
    let all = [
        plain.clone(),
        plain.clone().sampling(sampled),
        // What engines choose by, and what hosts do.
        plain.clone().sampling(sampled.repetition_penalty(1.3)).logit_bias([(300, 2.0)]),
        plain.clone().no_repeat_ngram(2),
        plain.clone().kv_type(Element::F32),
    ];
    for (n, options) in all.iter().enumerate() {
        let expected = text(&whole, &prompt, options);
        assert_eq!(text(&split, &prompt, options), expected, "options {n}");
        for speculation in [Speculation::ngram(), Speculation::from(&split)] {
            assert_eq!(
                text(&split, &prompt, &options.clone().speculate(speculation)),
                expected,
                "options {n}, with drafts"
            );
        }
        assert_eq!(
            text(&whole, &prompt, &options.clone().speculate(Speculation::from(&split))),
            expected,
            "options {n}, drafts of a split model"
        );
        let prompts = [prompt.clone(), prompt[..2].to_vec(), vec![5; 40]];
        let batches = [&whole, &split]
            .map(|model| block_on(model.generate_batch_ids(&prompts, options)).unwrap());
        assert_eq!(batches[0], batches[1], "options {n}, in a batch");
    }
    // Prompts that come and go.
    let streams = [&whole, &split].map(|model| {
        let batch = model.batch(BatchOptions::new(4, 100)).unwrap();
        let streams =
            [3, 9, 30].map(|length| batch.generate_ids(&vec![7; length], &plain).unwrap());
        streams.map(|stream| block_on(stream.all()).unwrap().ids)
    });
    assert_eq!(streams[0], streams[1]);
    let texts = [vec![3, 4, 5], vec![6], (0..70).collect()];
    for pooling in [Pooling::Mean, Pooling::Last] {
        let options = EmbedOptions::default().pooling(pooling);
        let [expected, found] =
            [&whole, &split].map(|model| block_on(model.embed_ids(&texts, &options)).unwrap());
        assert_eq!(found, expected);
    }
    // A session goes on in a fork, and from a file on other devices.
    let folder = Directory::temporary();
    let (room, saved) = (SessionOptions::new(2, 64), folder.0.join("session.safetensors"));
    let mut session = split.session(room).unwrap();
    block_on(session.prefill(0, &prompt)).unwrap();
    block_on(session.prefill(1, &[9, 8, 7])).unwrap();
    block_on(session.save(&saved)).unwrap();
    let mut forked = session.fork().unwrap();
    let again = [&whole, &split].map(|model| model.load_session(&saved, room).unwrap());
    let expected = bits(block_on(session.decode(&[4, 5])).unwrap());
    assert!(bits(block_on(forked.decode(&[4, 5])).unwrap()) == expected, "forked");
    for mut session in again {
        assert!(bits(block_on(session.decode(&[4, 5])).unwrap()) == expected, "loaded");
    }
    // It is loaded again as it was; with other devices, as they are.
    let counted = load(two, &directory("llama"), &[1, 2]);
    assert_eq!(layers(&counted.reload(two).unwrap()), [0..1, 1..3]);
    assert_eq!(layers(&counted.reload(one).unwrap()).len(), 1);
    assert!(counted.reload(Device::Cpu).unwrap().context().is_none());
    assert!(format!("{split:?}").contains(", "), "{split:?}");
    let refused =
        [split.record_step(1, 4).err().unwrap(), split.record_prompt(&[1]).err().unwrap()];
    assert!(
        refused.iter().all(|error| error.to_string().contains("split over several devices")),
        "{refused:?}"
    );
}

/// Sessions, drafts, and prompts that are given up, with recurrent layers on each device.
#[test]
fn states_follow_the_text_on_each_device() {
    let [whole, split] =
        [devices(1), devices(2)].map(|devices| load(devices, &directory("qwen35"), &[]));
    let prompt = vec![250, 3, 7, 9, 3, 7, 9, 3, 7];
    let plain = GenerateOptions::default().max_tokens(24).ignore_eos(true);
    let expected = text(&whole, &prompt, &plain);
    assert_eq!(text(&split, &prompt, &plain), expected);
    for speculation in [Speculation::ngram_lengths(1, 3), Speculation::from(&split)] {
        assert_eq!(text(&split, &prompt, &plain.clone().speculate(speculation)), expected);
    }
    let folder = Directory::temporary();
    let (room, saved) =
        (SessionOptions::new(2, 160).kv_type(Element::F32), folder.0.join("session.safetensors"));
    let long: Vec<u32> = (0..100).map(|i| i * 7 % 260).collect();
    let mut session = split.session(room).unwrap();
    block_on(session.prefill(0, &long)).unwrap();
    block_on(session.prefill(1, &[9, 8, 7])).unwrap();
    let mut given_up = Box::pin(session.prefill(1, &long));
    let _ = given_up.as_mut().poll(&mut task::Context::from_waker(task::Waker::noop()));
    drop(given_up);
    session.truncate(1, 2).unwrap();
    block_on(session.decode(&[4, 5])).unwrap();
    block_on(session.save(&saved)).unwrap();
    let mut forked = session.fork().unwrap();
    let alone = [[&long[..], &[4, 6]].concat(), vec![9, 8, 5, 7]];
    let alone = alone.map(|ids| block_on(whole.session(room).unwrap().prefill(0, &ids)).unwrap());
    let expected = bits(alone.concat());
    let loaded = [&whole, &split].map(|model| model.load_session(&saved, room).unwrap());
    for session in
        [&mut session, &mut forked].into_iter().chain(&mut loaded.into_iter().collect::<Vec<_>>())
    {
        assert!(bits(block_on(session.decode(&[6, 7])).unwrap()) == expected);
    }
}

#[test]
fn a_warm_split_model_compiles_nothing() {
    let devices = fresh(2);
    let model = load(&devices, &directory("llama"), &[1, 2]);
    block_on(model.warm_up(SessionOptions::new(1, 40))).unwrap();
    let kernels = || devices.iter().map(Context::compiled_kernels).collect::<Vec<_>>();
    let warm = kernels();
    let sampling = Sampling::GREEDY.temperature(0.8).top_k(5);
    for (prompt, sampling) in [(30, Sampling::GREEDY), (1, sampling)] {
        text(
            &model,
            &vec![5; prompt],
            &GenerateOptions::default().max_tokens(10).ignore_eos(true).sampling(sampling),
        );
    }
    assert_eq!(kernels(), warm);
}

/// Devices of other features compute close numbers, and each what it would compute alone.
#[test]
fn devices_may_differ() {
    let (plain, path) = (devices(2), directory("llama"));
    let plainer = |context: &Context, change: fn(&mut Capabilities)| context.restricted(change);
    let no_f16 = plainer(&plain[1], |c| c.f16 = false);
    let no_subgroups = plainer(&plain[1], |c| c.subgroups = false);
    let ids: Vec<u32> = (0..40).collect();
    let logits = |model: &Model| block_on(model.logits(&ids)).unwrap();
    let expected = logits(&load(&plain[..1], &path, &[]));
    for second in [&no_f16, &no_subgroups] {
        let model = load(&[plain[0].clone(), second.clone()], &path, &[2, 1]);
        let off =
            logits(&model).iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 2e-4, "{off} off on {:?}", second.capabilities());
        // Keys and values are in 16 bits where all have them, and not unless.
        let f16s = plain[0].capabilities().f16 && second.capabilities().f16;
        let cache = model.session(SessionOptions::new(1, 8)).unwrap().options().get_kv_type();
        assert_eq!(cache, Some(if f16s { Element::F16 } else { Element::F32 }));
    }
    let both = [plain[0].restricted(|c| c.subgroups = false), no_subgroups];
    assert_eq!(computed(&load(&both, &path, &[1, 2])), computed(&load(&both[..1], &path, &[])));
    let model = load(&[plain[0].clone(), no_f16], &path, &[2, 1]);
    let mut session = model.session(SessionOptions::new(1, 8).kv_type(Element::F16)).unwrap();
    let error = block_on(session.prefill(0, &[1, 2])).unwrap_err();
    assert!(matches!(error, Error::DeviceUnsupported { .. }), "f16 where one has none: {error}");
}

#[test]
fn what_cannot_be_split_is_refused() {
    let (all, path) = (devices(4), directory("llama"));
    let files = ModelFiles::open(&path).unwrap();
    let refused =
        |devices: &[Context], options: fn(ModelBuilder<'_>) -> ModelBuilder<'_>, what: &str| {
            let builder = || options(files.builder().device(devices));
            for error in [builder().build().err(), builder().parts().err()] {
                let error = error.unwrap();
                assert!(
                    matches!(error, Error::Invalid { op: "split", .. })
                        && error.to_string().contains(what),
                    "{error}"
                );
            }
        };
    refused(&[], |builder| builder, "no context");
    refused(all, |builder| builder, "there are more contexts (4) than layers (3)");
    refused(
        &[all[0].clone(), all[1].clone(), all[0].clone()],
        |builder| builder,
        "context 2 is of the same device",
    );
    refused(&all[..2], |builder| builder.split([3, 0]), "no layers for context 1");
    refused(&all[..2], |builder| builder.split([0, 3]), "no layers for context 0");
    refused(
        &all[..2],
        |builder| builder.split([1, 1]),
        "the split [1, 1] does not add up to the 3 layers of the model",
    );
    refused(
        &all[..2],
        |builder| builder.split([usize::MAX, 4]),
        "does not add up to the 3 layers of the model",
    );
    refused(
        &all[..2],
        |builder| builder.split([1, 1, 1]),
        "the split and the contexts differ in number: 3 and 2",
    );
    refused(
        &all[..1],
        |builder| builder.split([2]),
        "the split [2] does not add up to the 3 layers of the model",
    );
    refused(&all[..2], |builder| builder.offload(Offload::Layers(1)), "not both");
    let error = Model::builder(&path).cpu().split([3]).build().unwrap_err().to_string();
    assert!(error.contains("differ in number: 1 and 0"), "{error}");
}

/// What is said before is what is taken, on each device; layers go where there is room; what does
/// not fit is refused.
#[test]
fn memory_is_estimated_and_bounded_on_each_device() {
    let live = |context: &Context, label: &str| -> u64 {
        context
            .live_memory()
            .iter()
            .filter(|live| &*live.label == label)
            .map(|live| live.bytes)
            .sum()
    };
    let all = fresh(2);
    let files = ModelFiles::open(real_model()).unwrap();
    let parts = files.builder().device(&all).split([3, 5]).parts().unwrap();
    let model = files.builder().device(&all).split([3, 5]).build().unwrap();
    let room = SessionOptions::new(2, 100);
    let sessions = model.parts(room).unwrap();
    let session = model.session(room).unwrap();
    for ((context, part), session) in all.iter().zip(&parts).zip(&sessions) {
        assert_eq!(live(context, Footprint::WEIGHTS), part.footprint.weights);
        assert_eq!(live(context, Footprint::CACHE), session.footprint.cache);
        assert_eq!(part.layers, session.layers);
    }
    assert_eq!(
        model.session_footprint(room).unwrap().cache,
        sessions.iter().map(|part| part.footprint.cache).sum::<u64>()
    );
    drop(session);
    // A session that the second has no room for.
    let bytes = sessions[1].footprint.total();
    all[1].limit_memory(all[1].memory_stats().live_bytes + bytes - 1);
    let error = model.session(room).err();
    assert!(
        matches!(error, Some(Error::MemoryLimit { bytes: needed, .. }) if needed == bytes),
        "{error:?}"
    );
    // All of a session's work stays within the estimate.
    for (context, part) in all.iter().zip(&sessions) {
        context.trim_memory();
        context.limit_memory(context.memory_stats().live_bytes + part.footprint.total());
    }
    let batch = model.batch(BatchOptions::new(2, 100)).unwrap();
    let generate = || {
        batch
            .generate_ids(&[1; 90], &GenerateOptions::default().max_tokens(10).ignore_eos(true))
            .unwrap()
    };
    let [a, b] = [generate(), generate()].map(|stream| block_on(stream.all()).unwrap().ids);
    assert!(a.len() == 10 && a == b);
    drop(batch);
    drop(model);
    // Layers go by the room that limits leave: some more than the weights take, three to one.
    let sum: u64 = parts.iter().map(|part| part.footprint.weights).sum();
    let limited = [2 * sum, sum].map(|bytes| {
        block_on(Context::open(ContextOptions::default().memory_limit(bytes))).unwrap()
    });
    let shared = files.builder().device(&limited).parts().unwrap();
    assert_eq!(shared[0].layers.end, shared[1].layers.start);
    assert!(shared[0].layers.len() > shared[1].layers.len(), "{shared:?}");
    assert_eq!(
        layers(&files.builder().device(&limited).build().unwrap()),
        [shared[0].layers.clone(), shared[1].layers.clone()]
    );
    // What does not fit the second is refused before anything is on the first.
    let tight = [None, Some(parts[1].footprint.weights - 1)];
    let tight = tight.map(|limit| {
        block_on(Context::open(ContextOptions::default().memory_limit(limit))).unwrap()
    });
    let error = files.builder().device(&tight).split([3, 5]).build().unwrap_err();
    assert!(
        matches!(error, Error::MemoryLimit { .. }) && error.to_string().contains("layers 3 to 7"),
        "{error}"
    );
    assert_eq!(
        tight[0].memory_stats().misses,
        block_on(Context::new()).unwrap().memory_stats().misses
    );
}

/// A device of a later part is lost: whoever waits is told, the first is none the worse, and the
/// model is loaded again.
#[test]
fn a_lost_part_is_reported() {
    for lost in 0..2 {
        let all = fresh(2);
        let model = load(&all, &real_model(), &[4, 4]);
        let options = GenerateOptions::default().max_tokens(60).ignore_eos(true);
        let expected = text(&model, &[5, 6, 7], &options);
        let mut session = model.session(SessionOptions::new(1, 64)).unwrap();
        block_on(session.prefill(0, &[1, 2, 3])).unwrap();
        let mut stream = model.generate_ids(&[5, 6, 7], &options).unwrap().into_iter();
        let mut found: Vec<u32> = (&mut stream).take(4).map(|token| token.unwrap().id).collect();
        all[lost].device().destroy();
        let error = stream.find_map(|token| token.map(|token| found.push(token.id)).err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        let error = block_on(session.decode(&[4])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert_eq!(session.len(0), 3, "nothing was appended");
        assert_eq!(model.session(SessionOptions::new(1, 8)).err().unwrap().kind(), ErrorKind::Lost);
        // The other device still computes, and a text goes on where it broke off.
        let other = &all[1 - lost];
        assert_eq!(
            text(
                &Model::builder(real_model()).device(other).build().unwrap(),
                &[5, 6, 7],
                &options
            ),
            expected
        );
        let mut again = all.clone();
        again[lost] = block_on(all[lost].recover()).unwrap();
        let model = model.reload(&again).unwrap();
        assert_eq!(layers(&model), [0..4, 4..8]);
        let before = [&[5, 6, 7], &found[..]].concat();
        let mut rest = model.generate_ids(&before, &options.clone().resumed(found.len())).unwrap();
        found.extend((&mut rest).into_iter().map(|token| token.unwrap().id));
        assert_eq!((found, rest.stop()), (expected, Some(Stop::MaxTokens)));
    }
}
