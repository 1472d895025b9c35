//! Models with layers in host memory.

use super::budgets::{fresh, live};
use bitnet_wgpu::{
    ContextOptions, Error, ErrorKind,
    formats::Pooling,
    internals::ModelInternals as _,
    model::{EmbedOptions, GenerateOptions, Model, ModelFiles, Offload, Offloaded, SessionOptions},
    telemetry::Footprint,
    wgpu,
};
use std::{path::Path, thread};
use support::{
    App, block_on,
    models::{bits, computed, directory},
    real_model,
};

#[test]
fn offloaded_layers_compute_the_same_bits() {
    let context = fresh(ContextOptions::default().offload(true));
    let load = |path: &Path, count| {
        let offload = if count == 0 { Offload::None } else { Offload::Layers(count) };
        let model = Model::builder(path).device(&context).offload(offload).build().unwrap();
        assert_eq!(model.offloaded().layers, count);
        model
    };
    for (path, counts) in [
        (real_model(), &[5, 8][..]),
        (directory("llama"), &[1, 2, 3]),
        (directory("normed"), &[2]),
        // Layers of two kinds, which take turns in the same memory.
        (directory("qwen35"), &[1, 2, 3, 4]),
    ] {
        let resident = load(&path, 0);
        assert_eq!(resident.offloaded(), Offloaded::default());
        let expected = computed(&resident);
        for &count in counts {
            for (n, (found, expected)) in
                computed(&load(&path, count)).iter().zip(&expected).enumerate()
            {
                assert!(
                    found == expected,
                    "{count} layers of {} offloaded: result {n} differs",
                    path.display()
                );
            }
        }
    }
    let (layers, path) = (3, directory("llama"));
    let model = load(&path, layers);
    let expected = computed(&model);
    // Long prompts on two threads, which use the same slots: each is submitted as a whole.
    let ids: Vec<u32> = (0..65).collect();
    let long = || {
        bits(block_on(model.session(SessionOptions::new(1, 65)).unwrap().prefill(0, &ids)).unwrap())
    };
    thread::scope(|threads| {
        let both = [(); 2].map(|()| threads.spawn(|| (0..30).all(|_| long() == expected[0])));
        assert!(
            both.into_iter().all(|thread| thread.join().unwrap()),
            "threads disturb one another"
        );
    });
    // Vectors of texts, and a text among others.
    let resident = load(&path, 0);
    let vectors =
        |model: &Model| {
            block_on(model.embed_ids(
                &[vec![3, 4, 5], vec![6]],
                &EmbedOptions::default().pooling(Pooling::Last),
            ))
            .unwrap()
        };
    assert_eq!(vectors(&model), vectors(&resident));
    // What is recorded may be timed, profiled, and run again.
    let recording = model.record_step(1, 4).unwrap();
    assert!(!block_on(recording.time(2)).unwrap().1.is_zero());
    assert_eq!(block_on(recording.profile()).unwrap().steps.len(), recording.dispatches().count());
    let tracing = context.trace().unwrap();
    let traced =
        block_on(model.session(SessionOptions::new(1, 5)).unwrap().prefill(0, &[3, 4, 5, 6, 7]))
            .unwrap();
    block_on(tracing.finish()).unwrap();
    assert!(bits(traced) == expected[1], "while it is traced");
    // A model that is loaded again is offloaded again.
    assert_eq!(model.reload(Some(&context)).unwrap().offloaded(), model.offloaded());
}

#[test]
fn a_model_above_the_limit_runs_offloaded() {
    let context = fresh(ContextOptions::default().offload(true));
    let files = ModelFiles::open(real_model()).unwrap();
    let load = |offload| files.builder().device(&context).offload(offload).build();
    let need = |offload| files.builder().device(&context).offload(offload).footprint();
    let (layers, room) = (files.config().layers, SessionOptions::new(1, 60));
    let [all, few] = [0, layers].map(|count| need(Offload::Layers(count)).unwrap());
    assert!(
        all.host == 0 && few.host > 0 && all.weights - few.weights > few.host / 2,
        "{all:?}, {few:?}"
    );
    // Room for half of the layers that can be spared, and a session.
    let text = |model: &Model| -> Vec<u32> {
        let options = GenerateOptions::default().max_tokens(10).ignore_eos(true);
        model
            .generate_ids(&[5; 12], &options)
            .unwrap()
            .into_iter()
            .map(|token| token.unwrap().id)
            .collect()
    };
    let resident = load(Offload::None).unwrap();
    let (session, expected) = (resident.session_footprint(room).unwrap(), text(&resident));
    drop(resident);
    context.trim_memory();
    let limit = (all.weights + few.weights) / 2 + session.total();
    assert!(limit < all.weights + session.total());
    context.limit_memory(limit);
    let auto = Offload::Auto(room);
    let needed = need(auto).unwrap();
    let model = load(auto).unwrap();
    let offloaded = model.offloaded();
    assert_eq!(
        (offloaded.bytes, live(&context, Footprint::WEIGHTS)),
        (needed.host, needed.weights),
        "{offloaded:?}"
    );
    assert!((3..layers).contains(&offloaded.layers), "{offloaded:?} of {layers}");
    let one_less = need(Offload::Layers(offloaded.layers - 1)).unwrap();
    assert!(one_less.weights + session.total() > limit, "no more than it takes");
    assert_eq!(text(&model), expected);
    let stats = context.memory_stats();
    eprintln!("{offloaded:?} of {layers} layers: {stats:?}");
    assert!(stats.live_bytes + stats.cached_bytes <= limit, "{stats:?}");
    drop(model);
    // One byte too little for two layers and the session, and no limit at all.
    context.limit_memory(few.weights + session.total() - 1);
    let error = load(auto).map(drop).unwrap_err();
    let bytes = few.weights + session.total();
    assert!(
        matches!(&error, Error::MemoryLimit { bytes: needed, .. } if *needed == bytes),
        "{error}"
    );
    context.limit_memory(few.weights + session.total());
    assert_eq!(load(auto).unwrap().offloaded().layers, layers);
    context.limit_memory(None);
    assert_eq!(load(auto).unwrap().offloaded().layers, 0);
}

/// Of two kinds of layers, of which the limit counts the states too.
#[test]
fn hybrids_above_the_limit_run_offloaded() {
    let context = fresh(ContextOptions::default().offload(true));
    let files = ModelFiles::open(directory("qwen35")).unwrap();
    let (layers, room) = (files.config().layers, SessionOptions::new(2, 96));
    let load = |offload| files.builder().device(&context).offload(offload).build().unwrap();
    let need = |offload| files.builder().device(&context).offload(offload).footprint().unwrap();
    let computed = |model: &Model| {
        let mut session = model.session(room).unwrap();
        let prompt: Vec<u32> = (0..90).map(|i| i * 7 % 260).collect();
        let mut all: Vec<Vec<u32>> = [&prompt[..], &prompt[..9]]
            .into_iter()
            .enumerate()
            .map(|(sequence, ids)| bits(block_on(session.prefill(sequence, ids)).unwrap()))
            .collect();
        all.extend([[5, 6], [7, 8]].map(|ids| bits(block_on(session.decode(&ids)).unwrap())));
        all
    };
    let resident = load(Offload::None);
    let (session, expected) = (resident.session_footprint(room).unwrap(), computed(&resident));
    drop(resident);
    for count in 0..=layers {
        context.trim_memory();
        let (needed, model) = (need(Offload::Layers(count)), load(Offload::Layers(count)));
        let taken = (live(&context, Footprint::WEIGHTS), model.offloaded().bytes);
        assert_eq!(taken, (needed.weights, needed.host), "{count} layers");
    }
    let (all, few) = (need(Offload::Layers(0)), need(Offload::Layers(layers)));
    let limit = few.weights + session.total();
    assert!(limit < all.weights + session.total());
    context.limit_memory(limit);
    let model = load(Offload::Auto(room));
    assert!(model.offloaded().layers > 2, "{:?}", model.offloaded());
    assert!(computed(&model) == expected);
    let stats = context.memory_stats();
    assert!(stats.live_bytes + stats.cached_bytes <= limit, "{stats:?}");
}

#[test]
fn what_cannot_be_offloaded_is_refused() {
    let context = fresh(ContextOptions::default().offload(true));
    let files = ModelFiles::open(real_model()).unwrap();
    let load = |context, offload| {
        files.builder().device(context).offload(offload).build().map(drop).unwrap_err()
    };
    let more = Offload::Layers(files.config().layers + 1);
    for context in [Some(&context), None] {
        assert!(matches!(load(context, more), Error::Invalid { op: "offload", .. }));
    }
    assert!(matches!(
        files.builder().device(&context).offload(more).footprint(),
        Err(Error::Invalid { op: "offload", .. })
    ));
    assert!(matches!(
        load(Some(&context), Offload::Auto(SessionOptions::new(1, usize::MAX))),
        Error::Context { .. }
    ));
    assert!(matches!(
        load(Some(&context), Offload::Auto(SessionOptions::new(0, 1))),
        Error::Invalid { op: "session", .. }
    ));
    assert_eq!(live(&context, Footprint::WEIGHTS), 0);
    // An app's own that was not opened for it.
    let own = App::default()
        .open(|descriptor| {
            descriptor.required_features.remove(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS)
        })
        .unwrap();
    assert!(matches!(load(Some(&own), Offload::Layers(3)), Error::DeviceUnsupported { .. }));
    assert_eq!(
        (live(&own, Footprint::WEIGHTS), load(Some(&own), more).kind()),
        (0, ErrorKind::Invalid)
    );
}
