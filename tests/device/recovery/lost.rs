//! Lost devices: errors, and how generation, batches, sessions and contexts continue.

use super::{HUNG, fresh};
use bitnet_wgpu::{
    Context, ContextOptions, Error, ErrorKind, Result,
    formats::Checkpoint,
    internals::ModelInternals as _,
    model::{
        BatchOptions, Device, GenerateOptions, Model, Sampling, SessionOptions, Speculation, Stop,
        Token,
    },
};
use rand::RngExt as _;
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use support::{App, block_on, context, files::Directory, real_model, rng};

/// The model on another device, after its own was lost.
fn recovered(model: &Model) -> Model {
    let context = block_on(model.context().unwrap().recover()).unwrap();
    assert!(block_on(context.upload(&[7u32], [1]).unwrap().read()).unwrap() == [7]);
    model.reload(Some(&context)).unwrap()
}

fn destroy(model: &Model) {
    model.context().unwrap().device().destroy();
}

/// The tokens up to an error, which says that the device was lost.
fn until_lost(stream: impl IntoIterator<Item = Result<Token>>) -> Vec<Token> {
    let (mut tokens, mut stream) = (Vec::new(), stream.into_iter());
    loop {
        match stream.next() {
            Some(Ok(token)) => tokens.push(token),
            Some(Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                assert!(stream.next().is_none(), "nothing follows an error");
                return tokens;
            }
            None => panic!("ended after {} tokens as if nothing had happened", tokens.len()),
        }
    }
}

/// Options for which it matters where a text began: penalties count what was generated, ends are
/// forbidden at first, a string ends it.
fn options(model: &Model) -> [GenerateOptions; 3] {
    let sampled = Sampling::GREEDY.temperature(0.9).top_k(40).seed(3);
    let options = GenerateOptions::default().max_tokens(40).ignore_eos(true);
    let ended = options.clone().ignore_eos(false).min_tokens(30).sampling(sampled);
    let text: String = model
        .generate("Once upon a time", &ended)
        .unwrap()
        .into_iter()
        .map(|token| token.unwrap().text)
        .collect();
    // Within words, and so within tokens.
    let stop: String = text.chars().skip(text.chars().count() * 3 / 4).take(9).collect();
    [
        options.clone(),
        options.sampling(sampled.presence_penalty(0.9).frequency_penalty(0.4)),
        ended.stop([stop]),
    ]
}

#[test]
fn generation_resumes_after_device_loss() {
    let mut model = fresh();
    for options in options(&model) {
        let prompt = model.encode_prompt("Once upon a time").unwrap();
        let whole: Vec<_> = model
            .generate_ids(&prompt, &options)
            .unwrap()
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert!(whole.len() > 20, "{} tokens", whole.len());
        // Lost before the first token, and after some.
        let (mut text, mut tokens) = (prompt.clone(), Vec::new());
        for taken in [0, 5] {
            let mut stream = model
                .generate_ids(&text, &options.clone().resumed(tokens.len()))
                .unwrap()
                .into_iter();
            let first: Vec<_> = stream.by_ref().take(taken).map(Result::unwrap).collect();
            destroy(&model);
            let more = until_lost(stream);
            text.extend(first.iter().chain(&more).map(|token| token.id));
            tokens.extend(first.into_iter().chain(more));
            model = recovered(&model);
        }
        tokens.extend(
            model
                .generate_ids(&text, &options.clone().resumed(tokens.len()))
                .unwrap()
                .into_iter()
                .map(Result::unwrap),
        );
        assert_eq!(tokens, whole, "{options:?}");
    }
}

#[test]
fn a_batch_resumes_after_device_loss() {
    let model = fresh();
    let options = GenerateOptions::default()
        .max_tokens(30)
        .ignore_eos(true)
        .sampling(Sampling::GREEDY.presence_penalty(0.8));
    let prompts = ["Once upon a time", "The bear"].map(|text| model.encode_prompt(text).unwrap());
    let ids = |model: &Model, text: &[u32], options: &GenerateOptions| -> Vec<u32> {
        model
            .generate_ids(text, options)
            .unwrap()
            .into_iter()
            .map(|token| token.unwrap().id)
            .collect()
    };
    let whole = prompts.each_ref().map(|prompt| ids(&model, prompt, &options));
    let batch = model.batch(BatchOptions::new(2, 64)).unwrap();
    let mut streams =
        prompts.each_ref().map(|prompt| batch.generate_ids(prompt, &options).unwrap());
    let first = streams.each_mut().map(|stream| block_on(stream.next_token()).unwrap().unwrap());
    destroy(&model);
    let had: Vec<Vec<u32>> = first
        .into_iter()
        .zip(streams)
        .map(|(first, stream)| {
            [first].into_iter().chain(until_lost(stream)).map(|token| token.id).collect()
        })
        .collect();
    assert!(matches!(batch.generate("No more", &options).map(drop), Err(Error::BatchEnded(_))));
    let model = recovered(&model);
    let batch = model.batch(BatchOptions::new(2, 64)).unwrap();
    let rest: Vec<_> = prompts
        .iter()
        .zip(&had)
        .map(|(prompt, had)| {
            batch
                .generate_ids(&[&prompt[..], had].concat(), &options.clone().resumed(had.len()))
                .unwrap()
        })
        .collect();
    for ((had, rest), whole) in had.into_iter().zip(rest).zip(whole) {
        assert_eq!([had, block_on(rest.all()).unwrap().ids].concat(), whole);
    }
}

#[test]
fn a_lost_session_keeps_its_committed_tokens() {
    let model = fresh();
    let begin = |model: &Model| {
        let mut session = model.session(SessionOptions::new(2, 64)).unwrap();
        block_on(session.prefill(0, &[1, 2, 3, 4, 5])).unwrap();
        block_on(session.prefill(1, &[9, 8])).unwrap();
        block_on(session.decode(&[6, 7])).unwrap();
        session
    };
    let (mut whole, mut session) = (begin(&model), begin(&model));
    let expected = block_on(whole.decode(&[11, 12])).unwrap();
    destroy(&model);
    let lost = |result: Result<()>| {
        assert_eq!(result.as_ref().err().map(Error::kind), Some(ErrorKind::Lost), "{result:?}")
    };
    lost(block_on(session.decode(&[11, 12])).map(drop));
    lost(block_on(session.prefill(0, &[11; 20])).map(drop));
    lost(block_on(session.save(std::env::temp_dir().join("never"))));
    lost(model.session(session.options()).map(drop));
    lost(model.reload(model.context()).map(drop));
    assert_eq!(
        [0, 1].map(|sequence| session.tokens(sequence)),
        [&[1, 2, 3, 4, 5, 6][..], &[9, 8, 7]],
        "what failed was not appended"
    );
    let model = recovered(&model);
    let mut again = model.session(session.options()).unwrap();
    for sequence in 0..2 {
        block_on(again.prefill(sequence, session.tokens(sequence))).unwrap();
    }
    assert_eq!(block_on(again.decode(&[11, 12])).unwrap(), expected);
}

#[test]
fn a_context_is_opened_again_as_it_was() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let choose = move |_: &[bitnet_wgpu::device::Adapter]| {
        counted.fetch_add(1, Ordering::Relaxed);
        Some(0)
    };
    let opened = block_on(Context::open(
        ContextOptions::default().adapter_by(choose).memory_limit(1 << 30).wait_limit(HUNG),
    ))
    .unwrap();
    opened.limit_memory(1 << 20);
    opened.limit_waits(Duration::from_nanos(1));
    opened.device().destroy();
    // What is done before anybody looks takes no time.
    let over = (0..50).find_map(|_| block_on(opened.recover()).err());
    assert!(
        matches!(over, Some(Error::WaitLimit { .. })),
        "the limit that holds now is that of the new one, from the beginning: {over:?}"
    );
    asked.store(1, Ordering::Relaxed);
    opened.limit_waits(None);
    let again = block_on(opened.recover()).unwrap();
    assert_eq!((asked.load(Ordering::Relaxed), again.memory_stats().limit), (2, Some(1 << 20)));
    assert_eq!(again.capabilities(), opened.capabilities());
    assert!(
        block_on(opened.with_label("lost").recover()).is_ok() && block_on(again.recover()).is_ok(),
        "as often as is wanted"
    );
    // An app's own device is the app's to open.
    let own = App::default().open(|_| ()).unwrap();
    assert!(matches!(block_on(own.recover()), Err(Error::Invalid { op: "recover", .. })));
}

#[test]
fn a_reload_restores_the_model_or_fails() {
    let directory = Directory::temporary();
    let source = support::data("models").join("odd");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(source.join(name), directory.0.join(name)).unwrap();
    }
    let model = Model::builder(&directory.0).device(context()).int8_head(true).build().unwrap();
    let again = model.reload(Device::Cpu).unwrap();
    assert!(
        again.context().is_none() && again.weight_bytes() == model.weight_bytes(),
        "for the CPU, with the head in 8 bits"
    );
    assert_eq!(again.reload(Some(context())).unwrap().weight_bytes(), model.weight_bytes());
    // Of other files, nothing goes on: not of another head either, of which keys and values do not
    // depend.
    let weights = fs::read(directory.0.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Value = serde_json::from_slice(&weights[8..8 + header]).unwrap();
    let norm = tensors["model.norm.weight"]["data_offsets"][0].as_u64().unwrap() as usize;
    let mut changed = weights.clone();
    changed[8 + header + norm] ^= 1;
    fs::write(directory.0.join("model.safetensors"), changed).unwrap();
    let error = model.reload(Device::Cpu).map(drop).unwrap_err();
    assert!(
        matches!(error, Error::Format { .. }) && error.to_string().contains("another model"),
        "{error}"
    );
    fs::write(directory.0.join("model.safetensors"), weights).unwrap();
    model.reload(Device::Cpu).unwrap();
    let config = fs::read_to_string(directory.0.join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&config).unwrap();
    json["rms_norm_eps"] = 0.25.into();
    directory.write("config.json", json.to_string());
    let error = model.reload(Some(context())).map(drop).unwrap_err();
    assert!(
        matches!(error, Error::Format { .. }) && error.to_string().contains("another model"),
        "{error}"
    );
    fs::remove_file(directory.0.join("config.json")).unwrap();
    assert!(matches!(model.reload(Some(context())).map(drop), Err(Error::Format { .. })));
    let made = Model::builder_from(&Checkpoint::open(source).unwrap(), None).cpu().build().unwrap();
    assert!(matches!(made.reload(Device::Cpu).map(drop), Err(Error::Invalid { op: "reload", .. })));
}

#[test]
fn resumed_tokens_count_as_generated() {
    let model = Model::builder(real_model()).cpu().build().unwrap();
    for resumed in [3, 4, usize::MAX] {
        let options = GenerateOptions::default().resumed(resumed);
        assert!(
            matches!(
                model.generate_ids(&[5, 6, 7], &options).map(drop),
                Err(Error::Invalid { .. })
            ),
            "{resumed}"
        );
    }
    // All that was wanted had come.
    let options = GenerateOptions::default().max_tokens(2).resumed(2);
    assert_eq!(model.generate_ids(&[5, 6, 7], &options).unwrap().into_iter().count(), 0);
    let options = GenerateOptions::default().max_length(Some(4)).ignore_eos(true).resumed(2);
    assert_eq!(model.generate_ids(&[5, 6, 7], &options).unwrap().into_iter().count(), 1);
    // Several texts have each a number of their own.
    let options = GenerateOptions::default().resumed(1);
    let several = block_on(model.generate_batch_ids(&[vec![5, 6, 7], vec![5, 6]], &options));
    assert!(matches!(several.map(drop), Err(Error::Invalid { op: "generate_batch", .. })));
}

#[test]
fn a_text_that_had_ended_says_why() {
    let model = Model::builder(real_model()).cpu().build().unwrap();
    let prompt = model.encode_prompt("Once upon a time").unwrap();
    let options = GenerateOptions::default().max_tokens(40).stop([" "]);
    let batch = model.batch(BatchOptions::new(1, 64)).unwrap();
    let whole = block_on(batch.generate_ids(&prompt, &options).unwrap().all()).unwrap();
    assert!(whole.stop == Stop::StopString && whole.ids.len() < 40, "{whole:?}");
    let (text, options) = ([&prompt[..], &whole.ids].concat(), options.resumed(whole.ids.len()));
    let again = block_on(batch.generate_ids(&text, &options).unwrap().all()).unwrap();
    let together = block_on(model.generate_batch_ids(&[text], &options)).unwrap();
    for again in [again, together[0].clone()] {
        assert!(again.ids.is_empty() && again.stop == Stop::StopString, "{again:?}");
    }
}

/// Drafts change no text, so nothing is lost with them.
#[test]
fn generation_continues_without_a_lost_draft_model() {
    let (model, draft) = (Model::builder(real_model()).cpu().build().unwrap(), fresh());
    let options = GenerateOptions::default().max_tokens(12).ignore_eos(true);
    let ids = |options: &GenerateOptions| -> Vec<u32> {
        model
            .generate("Once upon a time", options)
            .unwrap()
            .into_iter()
            .map(|token| token.unwrap().id)
            .collect()
    };
    let drafted = options.clone().speculate(Speculation::from(&draft));
    assert_eq!(ids(&drafted), ids(&options));
    // Within a text:
    let mut generation = model.generate("Once upon a time", &drafted).unwrap();
    let mut text: Vec<u32> =
        (&mut generation).into_iter().take(3).map(|token| token.unwrap().id).collect();
    destroy(&draft);
    text.extend((&mut generation).into_iter().map(|token| token.unwrap().id));
    assert_eq!(text, ids(&options));
    // Of a text that begins then:
    assert_eq!(ids(&drafted), ids(&options));
}

/// Whatever is under way as a device goes, and wherever: it ends with results or with an error that
/// says so, and nothing panics.
#[test]
fn a_device_may_go_at_any_moment() {
    let (mut rng, mut ended, mut lost) = (rng(9), 0, 0);
    let context = block_on(Context::new()).unwrap();
    let mut model =
        Model::builder(support::data("models").join("odd")).device(&context).build().unwrap();
    for round in 0..6 {
        let context = block_on(context.recover()).unwrap();
        model = model.reload(Some(&context)).unwrap();
        let sampling = Sampling::GREEDY.temperature(0.8).presence_penalty(if round % 2 == 0 {
            0.5
        } else {
            0.0
        });
        let options = GenerateOptions::default().max_tokens(15).ignore_eos(true).sampling(sampling);
        let text = |options: &GenerateOptions| {
            model
                .generate_ids(&[1, 2, 3, 4], options)?
                .into_iter()
                .try_for_each(|token| token.map(drop))
        };
        let batch =
            || block_on(model.generate_batch_ids(&[vec![1, 2], vec![3, 4, 5]], &options)).map(drop);
        let session = || {
            let mut session = model.session(SessionOptions::new(2, 24))?;
            block_on(session.prefill(0, &[1, 2, 3]))?;
            let mut fork = session.fork()?;
            block_on(fork.prefill(1, &[5; 12]))?;
            block_on(fork.decode(&[1, 2])).map(drop)
        };
        let score = || block_on(model.score(&[7; 20])).map(drop);
        let profile = || block_on(model.record_prompt(&[1, 2, 3])?.0.profile()).map(drop);
        let (plain, guessed) =
            (|| text(&options), || text(&options.clone().speculate(Speculation::ngram())));
        let kinds: [&dyn Fn() -> Result<()>; 6] =
            [&plain, &guessed, &batch, &session, &score, &profile];
        // Kernels are compiled now, and then it takes so long.
        let all = || kinds.iter().try_for_each(|work| work());
        all().unwrap();
        let start = Instant::now();
        all().unwrap();
        let delay = start.elapsed().mul_f64(rng.random_range(0.0..1.0));
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(delay);
                context.device().destroy();
            });
            for result in kinds.into_iter().cycle().skip(round).take(6).map(|work| work()) {
                match result {
                    Ok(()) => ended += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                        lost += 1;
                    }
                }
            }
        });
    }
    assert!(ended > 0 && lost > 0, "{ended} ended, {lost} were lost");
}
