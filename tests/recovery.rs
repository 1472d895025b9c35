//! Faults, injected: what is lost, what is still valid, and how work goes on.

use bitnet_wgpu::{
    Context, ContextOptions, Error, ErrorKind, Result,
    formats::Checkpoint,
    model::{BatchOptions, GenerateOptions, LoadOptions, Model, Sampling, SessionOptions, Token},
    wgpu,
};
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use support::{block_on, context, files::Directory, real_model};

/// The model on a device of its own.
fn fresh() -> Model {
    Model::load(&block_on(Context::new()).unwrap(), real_model()).unwrap()
}

/// The same on another device, after its own was lost.
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

/// Options for which it matters where a text began: penalties count what was generated, ends are forbidden at first, a string ends it.
fn options(model: &Model) -> [GenerateOptions; 3] {
    let sampled = Sampling::GREEDY.temperature(0.9).top_k(40).seed(3);
    let options = GenerateOptions::default().max_tokens(40).ignore_eos(true);
    let ended = options.clone().ignore_eos(false).min_tokens(30).sampling(sampled);
    let text: String = model.generate("Once upon a time", &ended).unwrap().into_iter().map(|token| token.unwrap().text).collect();
    // Within words, and so within tokens.
    let stop: String = text.chars().skip(text.chars().count() * 3 / 4).take(9).collect();
    [options.clone(), options.sampling(sampled.presence_penalty(0.9).frequency_penalty(0.4)), ended.stop([stop])]
}

#[test]
fn a_text_goes_on_where_its_device_was_lost() {
    let mut model = fresh();
    for options in options(&model) {
        let prompt = model.encode_prompt("Once upon a time").unwrap();
        let whole: Vec<_> = model.generate_ids(&prompt, &options).unwrap().into_iter().map(Result::unwrap).collect();
        assert!(whole.len() > 20, "{} tokens", whole.len());
        // Lost before the first token, and after some.
        let (mut text, mut tokens) = (prompt.clone(), Vec::new());
        for taken in [0, 5] {
            let mut stream = model.generate_ids(&text, &options.clone().resumed(tokens.len())).unwrap().into_iter();
            let first: Vec<_> = stream.by_ref().take(taken).map(Result::unwrap).collect();
            destroy(&model);
            let more = until_lost(stream);
            text.extend(first.iter().chain(&more).map(|token| token.id));
            tokens.extend(first.into_iter().chain(more));
            model = recovered(&model);
        }
        tokens.extend(model.generate_ids(&text, &options.clone().resumed(tokens.len())).unwrap().into_iter().map(Result::unwrap));
        assert_eq!(tokens, whole, "{options:?}");
    }
}

#[test]
fn a_batchs_texts_go_on_where_its_device_was_lost() {
    let model = fresh();
    let options = GenerateOptions::default().max_tokens(30).ignore_eos(true).sampling(Sampling::GREEDY.presence_penalty(0.8));
    let prompts = ["Once upon a time", "The bear"].map(|text| model.encode_prompt(text).unwrap());
    let ids = |model: &Model, text: &[u32], options: &GenerateOptions| -> Vec<u32> {
        model.generate_ids(text, options).unwrap().into_iter().map(|token| token.unwrap().id).collect()
    };
    let whole = prompts.each_ref().map(|prompt| ids(&model, prompt, &options));
    let batch = model.batch(BatchOptions::new(2, 64)).unwrap();
    let mut streams = prompts.each_ref().map(|prompt| batch.generate_ids(prompt, &options).unwrap());
    let first = streams.each_mut().map(|stream| block_on(stream.next_token()).unwrap().unwrap());
    destroy(&model);
    let had: Vec<Vec<u32>> = first
        .into_iter()
        .zip(streams)
        .map(|(first, stream)| [first].into_iter().chain(until_lost(stream)).map(|token| token.id).collect())
        .collect();
    assert!(matches!(batch.generate("No more", &options).map(drop), Err(Error::BatchEnded(_))));
    let model = recovered(&model);
    let batch = model.batch(BatchOptions::new(2, 64)).unwrap();
    let rest: Vec<_> = prompts
        .iter()
        .zip(&had)
        .map(|(prompt, had)| batch.generate_ids(&[&prompt[..], had].concat(), &options.clone().resumed(had.len())).unwrap())
        .collect();
    for ((had, rest), whole) in had.into_iter().zip(rest).zip(whole) {
        assert_eq!([had, block_on(rest.all()).unwrap().ids].concat(), whole);
    }
}

#[test]
fn a_session_knows_from_which_token_to_go_on() {
    let model = fresh();
    let begin = |model: &Model| {
        let mut session = model.session(SessionOptions::new(2, 64)).unwrap();
        block_on(session.prefill(0, &[1, 2, 3, 4, 5])).unwrap();
        block_on(session.prefill(1, &[9, 8])).unwrap();
        block_on(session.decode(&[6, 7])).unwrap();
        session
    };
    let (mut whole, mut session) = (begin(&model), begin(&model));
    let wanted = block_on(whole.decode(&[11, 12])).unwrap();
    destroy(&model);
    let lost = |result: Result<()>| assert_eq!(result.as_ref().err().map(Error::kind), Some(ErrorKind::Lost), "{result:?}");
    lost(block_on(session.decode(&[11, 12])).map(drop));
    lost(block_on(session.prefill(0, &[11; 20])).map(drop));
    lost(block_on(session.save(std::env::temp_dir().join("never"))));
    assert_eq!([0, 1].map(|sequence| session.tokens(sequence)), [&[1, 2, 3, 4, 5, 6][..], &[9, 8, 7]], "what failed was not appended");
    let model = recovered(&model);
    let mut again = model.session(session.options()).unwrap();
    for sequence in 0..2 {
        block_on(again.prefill(sequence, session.tokens(sequence))).unwrap();
    }
    assert_eq!(block_on(again.decode(&[11, 12])).unwrap(), wanted);
}

#[test]
fn a_context_is_opened_again_as_it_was() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let choose = move |_: &[bitnet_wgpu::Adapter]| {
        counted.fetch_add(1, Ordering::Relaxed);
        Some(0)
    };
    let opened = block_on(Context::open(ContextOptions::default().adapter_by(choose).memory_limit(1 << 30))).unwrap();
    opened.limit_memory(1 << 20);
    opened.device().destroy();
    let again = block_on(opened.recover()).unwrap();
    assert_eq!((asked.load(Ordering::Relaxed), again.memory_stats().limit), (2, Some(1 << 20)));
    assert_eq!(again.capabilities(), opened.capabilities());
    assert!(block_on(opened.labelled("lost").recover()).is_ok() && block_on(again.recover()).is_ok(), "as often as is wanted");
    // An app's own device is the app's to open.
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle().with_env());
    let adapter = block_on(instance.request_adapter(&Default::default())).unwrap();
    let (required_features, required_limits) = Context::device_needs(&adapter);
    let descriptor = wgpu::DeviceDescriptor { required_features, required_limits, ..Default::default() };
    let (device, queue) = block_on(adapter.request_device(&descriptor)).unwrap();
    let own = block_on(Context::from_wgpu(&adapter, device, queue)).unwrap();
    assert!(matches!(block_on(own.recover()), Err(Error::Invalid { op: "recover", .. })));
}

#[test]
fn a_model_is_loaded_again_as_it_was_or_not_at_all() {
    let directory = Directory::temporary();
    let source = support::data("models").join("odd");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(source.join(name), directory.0.join(name)).unwrap();
    }
    let model = Model::load_with(Some(context()), &directory.0, LoadOptions::default().int8_head(true)).unwrap();
    let again = model.reload(None).unwrap();
    assert!(again.context().is_none() && again.weight_bytes() == model.weight_bytes(), "for the CPU, with the head in 8 bits");
    assert_eq!(again.reload(Some(context())).unwrap().weight_bytes(), model.weight_bytes());
    // Of other files, nothing goes on.
    let config = fs::read_to_string(directory.0.join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&config).unwrap();
    json["rms_norm_eps"] = 0.25.into();
    directory.write("config.json", json.to_string());
    let error = model.reload(Some(context())).map(drop).unwrap_err();
    assert!(matches!(error, Error::Format { .. }) && error.to_string().contains("another model"), "{error}");
    fs::remove_file(directory.0.join("config.json")).unwrap();
    assert!(matches!(model.reload(Some(context())).map(drop), Err(Error::Io { .. })));
    let made = Model::from_file(None, &Checkpoint::open(source).unwrap(), None, LoadOptions::default()).unwrap();
    assert!(matches!(made.reload(None).map(drop), Err(Error::Invalid { op: "reload", .. })));
}

#[test]
fn what_was_generated_before_is_a_part_of_the_text() {
    let model = Model::load_cpu(real_model()).unwrap();
    for resumed in [3, 4, usize::MAX] {
        let options = GenerateOptions::default().resumed(resumed);
        assert!(matches!(model.generate_ids(&[5, 6, 7], &options).map(drop), Err(Error::Invalid { .. })), "{resumed}");
    }
    // All that was wanted had come.
    let options = GenerateOptions::default().max_tokens(2).resumed(2);
    assert_eq!(model.generate_ids(&[5, 6, 7], &options).unwrap().into_iter().count(), 0);
    let options = GenerateOptions::default().max_length(Some(4)).ignore_eos(true).resumed(2);
    assert_eq!(model.generate_ids(&[5, 6, 7], &options).unwrap().into_iter().count(), 1);
}
