//! Faults, injected: what is lost, what is still valid, and how work goes on.

use bitnet_wgpu::{
    Context, ContextOptions, Encoder, Error, Kernel, Out, Recording, Result, Tensor,
    error::ErrorKind,
    formats::Checkpoint,
    gpu::Submission,
    internals::ModelInternals as _,
    kernel::{Part, Source, Type::U32, read_write},
    model::{
        BatchOptions, Device, GenerateOptions, Model, ModelFiles, Sampling, SessionOptions,
        Speculation, Stop, Token,
    },
    optimizer,
    tensor::{self, LinearGradients},
    transformer::{self, AttentionShape, CachePositions, KvCache, RmsNorm},
};
use rand::RngExt as _;
use std::{
    fs,
    future::IntoFuture as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use support::{App, block_on, context, files::Directory, own_process, real_model, rng};

/// The model on a device of its own.
fn fresh() -> Model {
    Model::builder(real_model()).device(&block_on(Context::new()).unwrap()).build().unwrap()
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
fn a_text_goes_on_where_its_device_was_lost() {
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
fn a_batchs_texts_go_on_where_its_device_was_lost() {
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
    assert_eq!(block_on(again.decode(&[11, 12])).unwrap(), wanted);
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
fn a_model_is_loaded_again_as_it_was_or_not_at_all() {
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
    assert!(matches!(model.reload(Some(context())).map(drop), Err(Error::Io { .. })));
    let made = Model::builder_from(&Checkpoint::open(source).unwrap(), None).cpu().build().unwrap();
    assert!(matches!(made.reload(Device::Cpu).map(drop), Err(Error::Invalid { op: "reload", .. })));
}

#[test]
fn what_was_generated_before_is_a_part_of_the_text() {
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
fn a_text_goes_on_without_drafts_whose_device_is_gone() {
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

const SPIN_TEXT: &[Part] = &[Part::new(
    "spin",
    "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
    @compute @workgroup_size(WG_X, WG_Y, WG_Z)
    fn spin(@builtin(global_invocation_id) id: vec3<u32>) {
        var x = y[id.x] | 1u;
        // Mesa's software drivers leave a loop after 65535 rounds.
        for (var i = 0u; i < 60000u; i++) { x ^= x << 13u; x ^= x >> 17u; x ^= x << 5u; }
        y[id.x] = x;
    }",
)];

/// Threads that do something for a while.
static SPIN: Kernel = Kernel::new(
    "spin",
    &[],
    &[read_write("y", U32)],
    &[Source::wgsl(SPIN_TEXT).workgroup_size([1, 1, 1])],
);

/// Work for a device that takes so many times as long, and what it makes.
fn spin(context: &Context, times: u32) -> (Recording, Tensor<u32>) {
    let y = Tensor::<u32>::zeros(context, [64]).unwrap();
    let mut encoder = context.encoder("spin");
    (0..times).for_each(|_| encoder.dispatch(&SPIN, &(), &[&y], [64, 1, 1]).unwrap());
    (encoder.finish(), y)
}

/// How many times take so long on a device.
fn times(context: &Context, time: Duration) -> u32 {
    let run = |times| spin(context, times).0.submit().and_then(Submission::wait).unwrap();
    run(1); // compiles
    let mut times = 1;
    loop {
        let start = Instant::now();
        run(times);
        if start.elapsed() > time / 20 {
            return (f64::from(times) * time.as_secs_f64() / start.elapsed().as_secs_f64()) as u32;
        }
        times *= 2;
    }
}

/// What is timed has the machine for itself.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As long as a device hangs here, and how long waits may take.
const HUNG: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_millis(200);

fn assert_over(limit: Duration, result: Result<()>) {
    assert!(
        matches!(result, Err(Error::WaitLimit { limit: had, .. }) if had == limit),
        "{result:?}"
    );
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Lost);
}

/// One submission at a time: Mesa's software drivers wait for the one before where another is
/// submitted.
#[test]
fn a_wait_for_a_device_that_hangs_ends() {
    let _alone = alone();
    let context = block_on(Context::new()).unwrap();
    let (recording, y) = spin(&context, times(&context, HUNG));
    let ways: [(&str, &dyn Fn() -> Result<()>); 3] = [
        ("wait", &|| recording.submit()?.wait()),
        ("await", &|| block_on(recording.submit()?.into_future())),
        ("read", &|| block_on(recording.submit_read(&y)?).map(drop)),
    ];
    for (way, wait) in ways {
        context.limit_waits(LIMIT);
        assert_over(LIMIT, wait());
        // When it answers, all is as it was.
        context.limit_waits(None);
        let found = block_on(y.read()).unwrap();
        assert!(found.iter().all(|&x| x == found[0] && x != 0), "{way}: {found:?}");
    }
    context.limit_waits(LIMIT);
    assert!(block_on(y.read()).is_ok());
}

#[test]
fn a_device_that_hangs_is_not_waited_for_when_it_is_dropped() {
    let _alone = alone();
    let context = block_on(Context::new()).unwrap();
    let (recording, y) = spin(&context, times(&context, HUNG));
    context.limit_waits(LIMIT);
    let start = Instant::now();
    let read = recording.submit_read(&y).unwrap();
    drop((recording, y, context));
    assert_over(LIMIT, block_on(read).map(drop));
    assert!(start.elapsed() < HUNG / 2, "{:?}", start.elapsed());
    // A driver may not stand being at work while the process ends.
    thread::sleep(HUNG);
}

#[test]
fn a_session_goes_on_when_its_device_answers_again() {
    const AT_ONCE: Duration = Duration::from_nanos(1);
    let model = fresh();
    let context = model.context().unwrap();
    let mut session = model.session(SessionOptions::new(1, 32)).unwrap();
    block_on(session.prefill(0, &[1, 2, 3])).unwrap();
    let mut whole = session.fork().unwrap();
    let wanted =
        [block_on(whole.decode(&[4])).unwrap(), block_on(whole.decode(&[5])).unwrap()].concat();
    context.limit_waits(AT_ONCE);
    // What is done before anybody looks takes no time.
    let over = (0..50).find_map(|_| {
        let over = block_on(session.prefill(0, &[9; 20])).err();
        if over.is_none() {
            session.truncate(0, 3).unwrap()
        }
        over
    });
    assert_over(AT_ONCE, over.map_or(Ok(()), Err));
    assert_eq!((session.tokens(0), session.len(0)), (&[1, 2, 3][..], 3));
    context.limit_waits(None);
    assert_eq!(
        [block_on(session.decode(&[4])).unwrap(), block_on(session.decode(&[5])).unwrap()].concat(),
        wanted
    );
}

/// Tries an op with memory for one allocation more each time, and with grids of all sizes, until it
/// succeeds: where it fails, nothing of it is recorded. Gives in how many ways it failed.
fn fails_whole(context: &Context, op: impl Fn(&mut Encoder) -> Result<()>) -> usize {
    let (mut encoder, mut failed) = (context.encoder("whole"), 0);
    let mut check = |encoder: &mut Encoder, result: Result<()>| match result {
        Ok(()) => None,
        Err(error) => {
            assert_eq!(encoder.len(), 0, "{error}");
            failed += 1;
            Some(error)
        }
    };
    context.trim_memory();
    context.limit_memory(0);
    loop {
        let result = op(&mut encoder);
        match check(&mut encoder, result) {
            None => break,
            // What is live, and the one more that was asked for.
            Some(Error::MemoryLimit { bytes, live, .. }) => {
                context.limit_memory(live.iter().map(|live| live.bytes).sum::<u64>() + bytes)
            }
            Some(error) => panic!("{error}"),
        }
    }
    context.limit_memory(None);
    for power in 0..16 {
        let narrow = context.restricted(|c| c.max_workgroups = 1 << power);
        let mut encoder = narrow.encoder("narrow");
        let result = op(&mut encoder);
        check(&mut encoder, result);
    }
    failed
}

#[test]
fn an_op_that_fails_half_way_records_nothing() {
    let context = &block_on(Context::new()).unwrap();
    let tensor = |rows: usize, columns: usize| {
        context.upload(&vec![0.5f32; rows * columns], [rows, columns]).unwrap()
    };
    let vector = |length: usize| context.upload(&vec![0.5f32; length], [length]).unwrap();

    let (short, long) = (vector(700), vector(100_000));
    assert!(
        fails_whole(context, |encoder| optimizer::clip_gradients(&[&short, &long], 1.0)
            .forward(encoder)
            .map(drop))
            > 3
    );

    let (x, dy, dx, weight, dweight, dbias) =
        (tensor(5000, 8), tensor(5000, 8), tensor(5000, 8), vector(8), vector(8), vector(8));
    let norm = |encoder: &mut Encoder| {
        let gradients = tensor::LayerNormGradients {
            x: Out::add(&dx),
            weight: Out::add(&dweight),
            bias: Out::add(&dbias),
        };
        tensor::LayerNorm::new(&weight, &weight, 1e-5).backward_into(encoder, &x, &dy, gradients)
    };
    assert!(fails_whole(context, norm) > 3);
    let rms = |encoder: &mut Encoder| {
        let (dx, dweight) = (Out::add(&dx), Out::add(&dweight));
        RmsNorm::new(&weight, 1e-5).backward_into(encoder, &x, &dy, dx, dweight)
    };
    assert!(fails_whole(context, rms) > 3);

    let (x, w, dx, dw, rows) =
        (tensor(50, 8), tensor(300, 8), tensor(50, 8), tensor(300, 8), vector(50));
    let targets = context.upload(&[3u32; 50], [50]).unwrap();
    let loss = |encoder: &mut Encoder| {
        let op = tensor::linear_cross_entropy(&x, &w, &targets).chunk(64);
        let gradients = LinearGradients { x: Out::add(&dx), w: Out::add(&dw) };
        op.backward_into(encoder, &rows, &rows, gradients)
    };
    assert!(fails_whole(context, loss) > 3);

    // What is wrong with the last dispatch alone: it may not write one tensor under two names.
    let [q, k, v, dq, dkv, dy, y] =
        [(); 7].map(|()| context.upload(&[0.5f32; 3 * 70 * 8], [3, 70, 8]).unwrap());
    let lse = context.upload(&[0.5f32; 3 * 70], [3, 70]).unwrap();
    let gradients = (Out::add(&dq), Out::add(&dkv), Out::add(&dkv));
    let mut encoder = context.encoder("aliased");
    let failed = transformer::flash_attention(&q, &k, &v).backward_into(
        &mut encoder,
        &y,
        &lse,
        &dy,
        gradients,
    );
    assert!(matches!(failed, Err(Error::Aliasing { .. })) && encoder.is_empty(), "{failed:?}");
}

/// Queries are rotated where they are: twice would be wrong.
#[test]
fn an_attention_that_fails_half_way_is_recorded_again() {
    let context = block_on(Context::new()).unwrap();
    let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 8 };
    let cache = KvCache::new(&context, shape, 1, 200, bitnet_wgpu::Element::F32).unwrap();
    let angles = context
        .upload(&transformer::rope_angles(&[0.5, 0.25, 0.1, 0.05], 200), [200, 4, 2])
        .unwrap();
    let runs = context.upload(&[0u32, 0], [1, 2]).unwrap();
    let numbers: Vec<f32> = (0..3 * 32).map(|i| (i as f32).sin()).collect();
    let (new, y) =
        (CachePositions::new(&runs, 3), Tensor::<f32>::zeros(&context, [3, 16]).unwrap());
    let attend = |limited: bool| {
        let qkv = context.upload(&numbers, [3, 32]).unwrap();
        let mut encoder = context.encoder("attention");
        if limited {
            context.trim_memory();
            context.limit_memory(0);
            let failed = transformer::attention(&qkv, new, &cache)
                .rope(&angles)
                .max_len(150)
                .forward_into(&mut encoder, &y);
            assert!(
                matches!(failed, Err(Error::MemoryLimit { .. })) && encoder.is_empty(),
                "{failed:?}"
            );
            context.limit_memory(None);
        }
        transformer::attention(&qkv, new, &cache)
            .rope(&angles)
            .max_len(150)
            .forward_into(&mut encoder, &y)
            .unwrap();
        encoder.submit().unwrap().wait().unwrap();
        (block_on(y.read()).unwrap(), block_on(qkv.read()).unwrap())
    };
    assert_eq!(attend(true), attend(false));
}

/// The same on matrix units, where the output is looked at after the queries are rotated.
#[test]
fn an_attention_in_halves_that_fails_records_nothing() {
    let Some(context) = support::prompts_on_matrix_units() else { return };
    let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 64 };
    let cache = KvCache::new(&context, shape, 1, 64, bitnet_wgpu::Element::F16).unwrap();
    let angles = context.upload(&transformer::rope_angles(&[0.5; 32], 64), [64, 32, 2]).unwrap();
    let runs = context.upload(&[0u32, 0], [1, 2]).unwrap();
    let (new, qkv) =
        (CachePositions::new(&runs, 64), Tensor::<f32>::zeros(&context, [64, 256]).unwrap());
    let (y, wrong) = (
        Tensor::<f32>::zeros(&context, [64, 128]).unwrap(),
        Tensor::<f32>::zeros(&context, [64, 64]).unwrap(),
    );
    let mut encoder = context.encoder("attention");
    let failed = transformer::attention(&qkv, new, &cache)
        .rope(&angles)
        .max_len(64)
        .f16()
        .forward_into(&mut encoder, &wrong);
    assert!(matches!(failed, Err(Error::Shape { .. })) && encoder.is_empty(), "{failed:?}");
    // A token that may see nothing gives 0, as without units.
    transformer::attention(&qkv, new, &cache)
        .rope(&angles)
        .max_len(0)
        .f16()
        .forward_into(&mut encoder, &y)
        .unwrap();
    encoder.submit().unwrap().wait().unwrap();
    assert!(block_on(y.read()).unwrap().iter().all(|&y| y == 0.0));
}

/// A file of a process may have at most 8 KiB here: what is longer fails half-way, as on a disk
/// that is full.
#[cfg(unix)]
#[test]
fn a_session_is_written_as_a_whole_or_not_at_all() {
    const FOLDER: &str = "BITNET_TEST_FULL_DISK";
    const NAME: &str = "a_session_is_written_as_a_whole_or_not_at_all";
    let model = Model::builder(support::data("models").join("odd")).cpu().build().unwrap();
    let options = SessionOptions::new(1, 200);
    let session = |tokens: usize| {
        let mut session = model.session(options).unwrap();
        block_on(session.prefill(0, &(0..tokens as u32).map(|i| i % 50).collect::<Vec<_>>()))
            .unwrap();
        session
    };
    if let Some(folder) = std::env::var_os(FOLDER) {
        let path = std::path::Path::new(&folder).join("session");
        block_on(session(1).save(&path)).expect("a small one has room");
        let error = block_on(session(190).save(&path)).unwrap_err();
        assert!(matches!(&error, Error::Io { path: of, .. } if *of == path), "{error}");
        return;
    }
    let directory = Directory::temporary();
    let mut limited = own_process("trap '' XFSZ; ulimit -f 16;", module_path!(), NAME);
    let output = limited.env(FOLDER, &directory.0).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 1, "nothing else is left");
    assert_eq!(
        model.load_session(directory.0.join("session"), options).unwrap().tokens(0),
        [0],
        "what was there stays"
    );
    block_on(session(190).save(directory.0.join("session"))).unwrap();
    assert_eq!(model.load_session(directory.0.join("session"), options).unwrap().len(0), 190);
}

#[test]
fn a_file_that_shrinks_is_an_error_and_no_signal() {
    let directory = Directory::temporary();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(support::data("models").join("odd").join(name), directory.0.join(name)).unwrap();
    }
    let files = ModelFiles::open(&directory.0).unwrap();
    let models =
        [None, Some(context())].map(|context| files.builder().device(context).build().unwrap());
    let logits = || models.each_ref().map(|model| block_on(model.logits(&[1, 2, 3])).unwrap());
    let before = logits();
    let file =
        fs::OpenOptions::new().write(true).open(directory.0.join("model.safetensors")).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    // Models have what they need of it; whoever reads it is told.
    assert_eq!(logits(), before);
    for context in [None, Some(context())] {
        let error = files.builder().device(context).build().map(drop).unwrap_err();
        assert!(
            matches!(&error, Error::Format { .. })
                && error.to_string().contains("when it was opened"),
            "{error}"
        );
        assert!(matches!(models[0].reload(context).map(drop), Err(Error::Format { .. })));
    }
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
