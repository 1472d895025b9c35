//! GPU memory: what is counted, what is bounded, what a model takes, and what it says before that
//! it will.

use bitnet_wgpu::{
    Context, ContextOptions, Element, Error, ErrorKind, Tensor,
    model::{BatchOptions, GenerateOptions, Model, ModelFiles, Sampling, SessionOptions},
    telemetry::{Footprint, MemoryPressure},
    transformer::{self, AttentionShape, CachePositions, KvCache},
    tuning::{Tuning, TuningKey},
    wgpu,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, OnceLock},
};
use support::{
    App, block_on,
    models::{Shaped, TernaryTables},
    real_model,
};

/// A context of its own, so that its counters are this test's.
pub fn fresh(options: ContextOptions) -> Context {
    block_on(Context::open(options)).unwrap()
}

/// Bytes that are live under a label.
pub fn live(context: &Context, label: &str) -> u64 {
    context.live_memory().iter().filter(|live| &*live.label == label).map(|live| live.bytes).sum()
}

#[test]
fn tensors_are_counted_under_their_labels() {
    let context = fresh(ContextOptions::default());
    // Under Metal there is one by default.
    context.limit_memory(None);
    context.trim_memory();
    let before = context.memory_stats();
    assert_eq!((before.live_bytes, before.cached_bytes, before.limit), (0, 0, None));
    let images = context.with_label("images");
    let large = Tensor::<f32>::uninit(&images, [1000, 100]).unwrap();
    let small = Tensor::<u32>::uninit(&context, [1]).unwrap();
    let again = large.duplicate().unwrap();
    let all: Vec<_> = context
        .live_memory()
        .iter()
        .map(|live| (live.label.to_string(), live.buffers, live.bytes))
        .collect();
    let size = large.buffer().size();
    assert_eq!(
        all,
        [("images".into(), 2, 2 * size), ("tensors".into(), 1, small.buffer().size())],
        "a copy is counted with its tensor"
    );
    let stats = context.memory_stats();
    assert_eq!(stats.live_bytes, 2 * size + small.buffer().size());
    assert_eq!(stats.fragmentation_bytes, 2 * (size - 400_000) + small.buffer().size() - 16);
    assert_eq!((stats.hits, stats.misses), (before.hits, before.misses + 3));
    drop((large, small, again));
    let stats = context.memory_stats();
    assert_eq!(
        (stats.live_bytes, stats.cached_bytes, stats.fragmentation_bytes),
        (0, 2 * size + 256, 0)
    );
    assert!(stats.peak_bytes >= stats.cached_bytes && context.live_memory().is_empty());
    let _large = Tensor::<f32>::uninit(&context, [999, 100]).unwrap();
    assert_eq!(context.memory_stats().hits, stats.hits + 1);
}

#[test]
fn memory_errors_list_what_is_live() {
    const KIB: u64 = 1 << 10;
    let context = fresh(ContextOptions::default().memory_limit(1024 * KIB));
    let of =
        |context: &Context, kib: u64| Tensor::<u32>::zeros(context, [(kib * KIB) as usize / 4]);
    context.trim_memory();
    let (weights, keys) = (
        of(&context.with_label("weights"), 512).unwrap(),
        of(&context.with_label("keys"), 256).unwrap(),
    );
    let error = of(&context, 300).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let text = error.to_string();
    let Error::MemoryLimit { what, bytes, limit, live } = error else { panic!("{text}") };
    assert!(what == "tensors" && bytes >= 300 * KIB && limit == 1024 * KIB, "{text}");
    let labels: Vec<_> = live.iter().map(|live| (&*live.label, live.bytes)).collect();
    assert_eq!(labels, [("weights", 512 * KIB), ("keys", 256 * KIB)]);
    assert!(text.contains("524288 weights in 1, 262144 keys in 1"), "{text}");
    // What waits makes room; a buffer that was evicted serves nobody.
    drop(keys);
    assert_eq!(context.memory_stats().cached_bytes / KIB, 256);
    let evictions = context.memory_stats().evictions;
    let other = of(&context, 400).unwrap();
    let stats = context.memory_stats();
    assert!(
        stats.evictions > evictions && stats.live_bytes + stats.cached_bytes <= 1024 * KIB,
        "{stats:?}"
    );
    assert_eq!(
        block_on(other.read()).unwrap_err().kind(),
        ErrorKind::OutOfMemory,
        "staging memory is memory"
    );
    drop(weights);
    assert_eq!(block_on(other.read()).unwrap(), vec![0; 400 * 256]);
    // A limit below what is live touches none of it; without one, all is as before.
    context.limit_memory(KIB);
    assert_eq!(context.memory_stats().cached_bytes, 0);
    assert!(matches!(of(&context, 1), Err(Error::MemoryLimit { .. })));
    context.limit_memory(None);
    assert!(of(&context, 2048).is_ok());
    assert_eq!(block_on(other.duplicate().unwrap().read()).unwrap(), vec![0; 400 * 256]);
}

#[test]
fn low_memory_calls_the_apps_callback() {
    const KIB: u64 = 1 << 10;
    let of =
        |context: &Context, kib: u64| Tensor::<u32>::zeros(context, [(kib * KIB) as usize / 4]);
    // What the app can do without, what it was told, and a context for what it asks for itself.
    let (spare, told, own) = (
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(OnceLock::<Context>::new()),
    );
    let free = {
        let (spare, told, own) = (spare.clone(), told.clone(), own.clone());
        move |pressure: &MemoryPressure| {
            let context = own.get().unwrap();
            assert!(context.memory_stats().live_bytes <= 1024 * KIB);
            assert!(
                matches!(of(context, 65_536), Err(Error::MemoryLimit { .. })),
                "the app is not asked for what it asks for then"
            );
            told.lock().unwrap().push(pressure.clone());
            spare.lock().unwrap().pop();
        }
    };
    let context =
        fresh(ContextOptions::default().memory_limit(1024 * KIB).on_memory_pressure(free));
    own.set(context.clone()).unwrap();
    context.trim_memory();
    let fill = || {
        spare.lock().unwrap().extend([
            of(&context.with_label("spare"), 512).unwrap(),
            of(&context.with_label("spare"), 256).unwrap(),
        ])
    };
    fill();
    assert!(told.lock().unwrap().is_empty(), "there is room");
    // What the function dropped makes room; it is told what is missing.
    let tensor = of(&context, 448).unwrap();
    assert_eq!(block_on(context.upload(&[7u32], [1]).unwrap().read()).unwrap(), [7]);
    let all = std::mem::take(&mut *told.lock().unwrap());
    let [pressure] = &all[..] else { panic!("{all:?}") };
    assert_eq!(
        (&*pressure.what, pressure.bytes, pressure.limit, pressure.missing()),
        ("tensors", 448 * KIB, Some(1024 * KIB), Some(192 * KIB))
    );
    assert_eq!(
        pressure.live.iter().map(|live| (&*live.label, live.buffers)).collect::<Vec<_>>(),
        [("spare", 2)]
    );
    // It is asked once for a request, and too little freed is the error that there would have been.
    assert!(
        matches!(of(&context, 1024), Err(Error::MemoryLimit { bytes, .. }) if bytes == 1024 * KIB)
    );
    assert_eq!((told.lock().unwrap().len(), spare.lock().unwrap().len()), (1, 0));
    // So are models and sessions, before anything of them is made; and another device that is
    // opened as this one was.
    drop(tensor);
    let files = ModelFiles::open(real_model()).unwrap();
    let weights = files.builder().device(&context).footprint().unwrap().weights;
    fill();
    context.limit_memory(weights + 256 * KIB);
    told.lock().unwrap().clear();
    let model = files.builder().device(&context).build().map(drop);
    assert!(
        matches!(model, Err(Error::MemoryLimit { .. })),
        "a quarter of a MiB was freed, and half of one is live"
    );
    assert!(files.builder().device(&context).build().is_ok());
    let asked: Vec<_> = told
        .lock()
        .unwrap()
        .iter()
        .map(|pressure| (pressure.what.clone(), pressure.bytes))
        .collect();
    assert_eq!(asked, [(); 2].map(|()| ("a model's weights".to_owned(), weights)));
    told.lock().unwrap().clear();
    assert!(
        block_on(context.recover()).is_ok_and(|other| of(&other, weights / KIB + 512).is_err())
            && !told.lock().unwrap().is_empty()
    );
}

#[test]
fn a_function_that_panics_is_asked_again() {
    let context = fresh(
        ContextOptions::default()
            .memory_limit(64 << 10)
            .on_memory_pressure(|_| panic!("an app's bug")),
    );
    let ask =
        || catch_unwind(AssertUnwindSafe(|| Tensor::<u32>::uninit(&context, [1 << 20]).map(drop)));
    assert!((0..2).all(|_| ask().is_err()), "each time the panic is the caller's");
    assert!(Tensor::<u32>::uninit(&context, [16]).is_ok(), "and nothing else is the worse");
}

#[test]
fn a_device_without_memory_is_a_typed_error() {
    // wgpu refuses every allocation, where the driver tells how much memory there is.
    let memory_budget_thresholds =
        wgpu::MemoryBudgetThresholds { for_resource_creation: Some(0), for_device_loss: None };
    let descriptor = wgpu::InstanceDescriptor {
        memory_budget_thresholds,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    };
    match App::of(descriptor).open(|_| ()) {
        Err(error @ Error::OutOfMemory { .. }) => {
            assert!(error.to_string().contains("nothing is live"), "{error}")
        }
        Err(error) => panic!("{error}"),
        Ok(_) => eprintln!("this driver does not tell how much memory there is"),
    }
}

#[test]
fn a_model_takes_little_beyond_its_tensors() {
    let context = fresh(ContextOptions::default());
    let model = Model::builder(real_model()).device(&context).build().unwrap();
    let session = model.session(SessionOptions::new(1, model.config().context)).unwrap();
    let (stats, tensors) = (
        context.memory_stats(),
        live(&context, Footprint::WEIGHTS) + live(&context, Footprint::CACHE),
    );
    let asked = stats.live_bytes - stats.fragmentation_bytes;
    let all = stats.live_bytes + stats.cached_bytes;
    eprintln!("{stats:?}, {tensors} in tensors, wgpu has {:?}", context.reserved_bytes());
    assert!(all as f64 <= 1.15 * asked as f64, "{all} bytes for {asked}");
    assert!(
        tensors <= all && tensors as f64 > 0.99 * stats.live_bytes as f64,
        "{tensors} of {all}"
    );
    drop(session);
    let options = GenerateOptions::default().max_tokens(3);
    assert_eq!(
        model
            .generate("Once upon a time", &options)
            .unwrap()
            .into_iter()
            .filter(|token| token.is_ok())
            .count(),
        3
    );
}

/// The shape of BitNet b1.58 2B4T with less of it: what a layer takes is in the difference of two
/// models. Its embedding, of 128 256 tokens, is more than lavapipe binds.
#[test]
fn a_2b_model_takes_little_beyond_its_tensors() {
    const TOKENS: usize = 2048;
    let context = fresh(ContextOptions::default());
    let mut config = ModelFiles::open(real_model()).unwrap().config().clone();
    (config.hidden, config.intermediate, config.vocab, config.context) =
        (2560, 6912, 4096, 2 * TOKENS);
    (config.heads, config.kv_heads, config.head_dim) = (20, 5, 128);
    let taken = |layers: usize| {
        context.trim_memory();
        let mut config = config.clone();
        config.layers = layers;
        let model =
            Model::builder_from(&Shaped(config.clone()), None).device(&context).build().unwrap();
        let session = model.session(SessionOptions::new(1, TOKENS)).unwrap();
        let stats = context.memory_stats();
        // Two bits a weight, f16 for the embedding, and keys and values of as many bits as the
        // cache's.
        let (hidden, keys) = (config.hidden, config.kv_heads * config.head_dim);
        let weights =
            (hidden + 2 * keys) * hidden + hidden * hidden + 3 * hidden * config.intermediate;
        let number = if session.options().get_kv_type() == Some(Element::F16) { 2 } else { 4 };
        let tensors =
            layers * (weights / 4 + 2 * keys * TOKENS * number) + 2 * config.vocab * hidden;
        eprintln!(
            "{layers} layers: {stats:?} for {tensors}, wgpu has {:?}",
            context.reserved_bytes()
        );
        (stats.live_bytes + stats.cached_bytes, tensors as u64)
    };
    let (one, three) = (taken(1), taken(3));
    let layers = (three.0 - one.0, three.1 - one.1);
    for (all, tensors) in [one, three, layers] {
        assert!(all >= tensors && all as f64 <= 1.15 * tensors as f64, "{all} bytes for {tensors}");
    }
}

#[test]
fn what_will_be_needed_is_what_is_taken() {
    let context = fresh(ContextOptions::default());
    let files = ModelFiles::open(real_model()).unwrap();
    for int8_head in [true, false] {
        let need = files.builder().device(&context).int8_head(int8_head).footprint().unwrap();
        let _model = files.builder().device(&context).int8_head(int8_head).build().unwrap();
        assert_eq!(need.weights, live(&context, Footprint::WEIGHTS), "int8_head {int8_head}");
        context.trim_memory();
    }
    context.trim_memory();
    let model = files.builder().device(&context).build().unwrap();
    for (sequences, capacity, cache) in
        [(1, 700, Some(Element::F16)), (3, 90, None), (1, 1, Some(Element::F32))]
    {
        context.trim_memory();
        let options =
            SessionOptions::new(sequences, capacity.min(model.config().context)).kv_type(cache);
        let need = model.session_footprint(options).unwrap();
        let loaded = context.memory_stats();
        assert_eq!(live(&context, Footprint::WEIGHTS), loaded.live_bytes, "asking takes nothing");
        let session = model.session(options).unwrap();
        assert_eq!(need.cache, live(&context, Footprint::CACHE), "{options:?}");
        drop(session);
    }
}

#[test]
fn a_ternary_embedding_takes_its_packed_bytes() {
    for tied in [true, false] {
        let context = fresh(ContextOptions::default());
        let [packed, floats] = [true, false].map(|packed| {
            let _model = Model::builder_from(&TernaryTables::open(tied, packed), None)
                .device(&context)
                .build()
                .unwrap();
            live(&context, Footprint::WEIGHTS)
        });
        // 300 rows of 64 columns per group of 16: 16 bytes of codes and 16 of scales, or 256 bytes
        // of floats and a scale. Buffers are of whole 256 bytes or so.
        let expected = (if tied { 1 } else { 2 }) * 300 * (260 - 32);
        assert!(
            (floats - packed).abs_diff(expected) < 2048,
            "{} bytes less, {expected} expected",
            floats - packed
        );
        // Where they do not fit, they are refused before anything is uploaded.
        context.trim_memory();
        context.limit_memory(packed - 1);
        let error = Model::builder_from(&TernaryTables::open(tied, true), None)
            .device(&context)
            .build()
            .map(drop)
            .unwrap_err();
        assert!(matches!(&error, Error::MemoryLimit { bytes, .. } if *bytes >= packed), "{error}");
    }
}

#[test]
fn a_sessions_work_takes_what_was_estimated() {
    let context = fresh(ContextOptions::default());
    let model = Model::builder(real_model()).device(&context).build().unwrap();
    let (weights, capacity) = (context.memory_stats().live_bytes, model.config().context.min(200));
    let options = SessionOptions::new(1, capacity);
    let need = model.session_footprint(options).unwrap();
    context.trim_memory();
    let mut session = model.session(options).unwrap();
    // A prompt that is too long to be kept as a step, and some tokens, whose step is; then another
    // text, of nearly all that there is room for, in one pass beside them.
    let text: Vec<u32> = (0..capacity as u32).map(|i| i % 1000).collect();
    let sampled = GenerateOptions::default()
        .max_tokens(4)
        .ignore_eos(true)
        .sampling(Sampling::GREEDY.temperature(1.0).top_k(9).top_p(0.9));
    for prompt in [&text[..70], &text[1..capacity - 3]] {
        let mut answer = model.generate_ids_in(session, prompt, &sampled).unwrap();
        assert_eq!((&mut answer).into_iter().filter(|token| token.is_ok()).count(), 4);
        session = block_on(answer.into_session()).unwrap();
    }
    let (taken, estimated) = (context.memory_stats().peak_live_bytes, weights + need.total());
    eprintln!("{need:?} and {weights}: {estimated} estimated, {taken} taken");
    assert!(
        taken <= estimated && estimated as f64 <= 1.5 * taken as f64,
        "{estimated} estimated, {taken} taken"
    );
}

/// Counts and biases are a vocabulary's numbers for each slot.
#[test]
fn a_penalised_batch_takes_what_was_estimated() {
    let context = fresh(ContextOptions::default());
    let mut config = ModelFiles::open(real_model()).unwrap().config().clone();
    // Small but for the vocabulary, so that it matters little how many tokens of prompts are
    // computed together.
    (config.layers, config.hidden, config.intermediate, config.vocab) = (1, 64, 64, 40_000);
    (config.heads, config.kv_heads, config.head_dim) = (1, 1, 64);
    let model = Model::builder_from(&Shaped(config), None).device(&context).build().unwrap();
    let (weights, options) = (context.memory_stats().live_bytes, BatchOptions::new(16, 40));
    let need = model.session_footprint(SessionOptions::new(16, 40)).unwrap();
    context.trim_memory();
    let batch = model.batch(options).unwrap();
    let sampling = Sampling::GREEDY.temperature(1.0).top_k(9).top_p(0.9).frequency_penalty(0.5);
    // Half of the texts end one after another, then the others together: steps of 16 to 9 are kept,
    // which take most. New prompts come beside them.
    for _ in 0..2 {
        let tokens = |n: u32| 8 + n.min(8);
        let generate = |n: u32| {
            let own = GenerateOptions::default()
                .max_tokens(tokens(n) as usize)
                .ignore_eos(true)
                .sampling(sampling)
                .logit_bias([(n, 1.0)]);
            batch.generate_ids(&(0..20).map(|i| 30 * n + i).collect::<Vec<_>>(), &own).unwrap()
        };
        let streams: Vec<_> = (0..16).map(generate).collect();
        streams.into_iter().zip(0..).for_each(|(stream, n)| {
            assert_eq!(block_on(stream.all()).unwrap().ids.len() as u32, tokens(n))
        });
    }
    // No logits are read back, so what is for staging is left out.
    let (taken, estimated) =
        (context.memory_stats().peak_live_bytes, weights + need.cache + need.activations);
    eprintln!(
        "{need:?} and {weights}: {estimated} estimated, {taken} taken; {} are counts and biases",
        2 * 16 * 4 * model.config().vocab
    );
    assert!(
        taken <= estimated && estimated as f64 <= 1.5 * taken as f64,
        "{estimated} estimated, {taken} taken"
    );
}

/// Layers come one after another, so what one's attention takes for itself serves all of a
/// recording.
#[test]
fn attention_takes_memory_for_its_shares_once() {
    // Software adapters have no shares for eight tokens by default.
    let mut tuning = Tuning::default();
    tuning.set(TuningKey::named("attention_split_workgroups").unwrap(), 256).unwrap();
    let context = fresh(ContextOptions::default()).with_tuning(tuning);
    let shape = AttentionShape { heads: 8, kv_heads: 2, head_dim: 64 };
    let cache = KvCache::new(&context, shape, 1, 4096, Element::F16).unwrap();
    let (qkv, runs) = (
        Tensor::<f32>::zeros(&context, [8, 768]).unwrap(),
        context.upload(&[4000u32, 0], [1, 2]).unwrap(),
    );
    let (new, y) =
        (CachePositions::new(&runs, 8), Tensor::<f32>::zeros(&context, [8, 512]).unwrap());
    let taken = |layers: usize| {
        context.trim_memory();
        let (mut encoder, before) = (context.encoder("layers"), context.memory_stats().live_bytes);
        (0..layers).for_each(|_| {
            transformer::attention(&qkv, new, &cache)
                .max_len(4008)
                .forward_into(&mut encoder, &y)
                .unwrap()
        });
        (encoder.finish(), context.memory_stats().live_bytes - before).1
    };
    let (one, ten) = (taken(1), taken(10));
    // 63 shares of 8 tokens and 8 heads, each of 64 numbers and two more.
    assert!(one >= 63 * 8 * 8 * 66 * 4 && ten < one + 10 * 4096, "{one} and {ten} bytes");
}

#[test]
fn memory_limits_are_checked_before_allocation() {
    let context = fresh(ContextOptions::default());
    let files = ModelFiles::open(real_model()).unwrap();
    let weights = files.builder().device(&context).footprint().unwrap().weights;
    context.trim_memory();
    context.limit_memory(weights - 1);
    let misses = context.memory_stats().misses;
    let error = files.builder().device(&context).build().map(drop).unwrap_err();
    assert!(
        matches!(&error, Error::MemoryLimit { bytes, limit, .. } if (*bytes, *limit) == (weights, weights - 1)),
        "{error}"
    );
    assert_eq!(context.memory_stats().misses, misses, "nothing was uploaded");
    context.limit_memory(weights);
    let model = files.builder().device(&context).build().unwrap();
    let options = BatchOptions::new(2, 30);
    let need = model.session_footprint(SessionOptions::new(2, 30)).unwrap();
    context.limit_memory(weights + need.total() - 1);
    let error = model.batch(options).map(drop).unwrap_err().to_string();
    assert!(
        error.contains(&format!("cache {}, activations {}", need.cache, need.activations)),
        "{error}"
    );
    assert!(error.contains(&format!("{weights} weights in")), "{error}");
    // With a byte more it is made, and works to its end.
    context.limit_memory(weights + need.total());
    let batch = model.batch(options).unwrap();
    let generate = || {
        batch
            .generate_ids(&[1; 25], &GenerateOptions::default().max_tokens(5).ignore_eos(true))
            .unwrap()
    };
    let both = [generate(), generate()].map(|stream| block_on(stream.all()).unwrap().ids);
    assert!(both[0].len() == 5 && both[0] == both[1], "{both:?}");
    assert!(
        context.memory_stats().live_bytes + context.memory_stats().cached_bytes
            <= weights + need.total()
    );
    // On the CPU, no GPU memory is needed.
    let cpu = Model::builder(real_model()).cpu().build().unwrap();
    assert_eq!(cpu.session_footprint(SessionOptions::new(1, 10)).unwrap(), Footprint::default());
}
