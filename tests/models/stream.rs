//! Generations in an app on tokio: on an executor of one thread, whatever blocks it blocks
//! everything.

use bitnet_wgpu::{
    Element, Error,
    model::{BatchOptions, GenerateOptions, Generation, Model, SessionOptions, Stop},
};
use futures_util::StreamExt;
use std::{
    cell::Cell,
    future::poll_fn,
    rc::Rc,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};
use support::{block_on, context};
use tokio::{
    task::LocalSet,
    time::{interval, sleep, timeout},
};

/// The real model on each engine.
pub(crate) fn models() -> [(&'static str, Model); 2] {
    static MODELS: LazyLock<[Model; 2]> = LazyLock::new(|| {
        let path = support::repository("assets/tales-22m");
        [
            Model::builder(&path).cpu().build().unwrap(),
            Model::builder(&path).device(context()).build().unwrap(),
        ]
    });
    let [cpu, gpu] = &*MODELS;
    [("CPU", cpu.clone()), ("GPU", gpu.clone())]
}

/// A continuation that takes seconds.
fn long(model: &Model) -> Generation {
    let options = GenerateOptions::default().max_tokens(usize::MAX).ignore_eos(true);
    model.generate("Once upon a time", &options).unwrap()
}

/// Runs a test on this thread alone.
fn on_one_thread<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn a_stream_gives_what_a_loop_gives() {
    for (engine, model) in models() {
        let options = GenerateOptions::default().max_tokens(24);
        let looped: Vec<_> = model
            .generate("The bear", &options)
            .unwrap()
            .into_iter()
            .collect::<Result<_, _>>()
            .unwrap();
        let mut generation = model.generate("The bear", &options).unwrap();
        let (streamed, stop) = on_one_thread(async {
            let tokens: Vec<_> = generation.by_ref().map(Result::unwrap).collect().await;
            (tokens, generation.stop())
        });
        assert_eq!((streamed.len(), stop), (24, Some(Stop::MaxTokens)), "{engine}");
        assert_eq!(streamed, looped, "{engine}");
        assert!(generation.into_iter().next().is_none(), "{engine}: nothing follows");
    }
}

#[test]
fn other_tasks_run_while_it_generates() {
    for (engine, model) in models() {
        on_one_thread(async {
            let ticks = Rc::new(Cell::new(0));
            let counter = ticks.clone();
            let ticker = tokio::task::spawn_local(async move {
                let mut interval = interval(Duration::from_millis(10));
                loop {
                    interval.tick().await;
                    counter.set(counter.get() + 1);
                }
            });
            let mut generation = long(&model);
            let mut between = Vec::new();
            // A second at most, which is a hundred ticks.
            let _ = timeout(Duration::from_secs(1), async {
                while let Some(token) = generation.next().await {
                    token.unwrap();
                    between.push(ticks.get());
                }
            })
            .await;
            ticker.abort();
            // The machine may be busy; an executor that is blocked does not tick at all.
            assert!(
                ticks.get() >= 5,
                "{engine}: {} ticks, at these when tokens came: {between:?}",
                ticks.get()
            );
        });
    }
}

#[test]
fn a_timeout_fires_and_an_abort_ends_it() {
    for (engine, model) in models() {
        on_one_thread(async {
            let mut generation = long(&model);
            let all = timeout(Duration::from_millis(100), async {
                while generation.next().await.is_some() {}
            });
            assert!(all.await.is_err(), "{engine}: it was done before the timeout");
            assert_eq!(generation.stop(), None, "{engine}");
            drop(generation);

            let generation = long(&model);
            let task = tokio::task::spawn_local(async move { generation.count().await });
            sleep(Duration::from_millis(50)).await;
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled(), "{engine}");

            // So do the futures of scoring, and of several prompts.
            let ids = vec![5; model.config().context];
            assert!(
                timeout(Duration::from_millis(1), model.score(&ids)).await.is_err(),
                "{engine}"
            );
            let options = GenerateOptions::default().max_tokens(usize::MAX).ignore_eos(true);
            let prompts = [vec![5, 6], vec![7]];
            assert!(
                timeout(Duration::from_millis(1), model.generate_batch_ids(&prompts, &options))
                    .await
                    .is_err(),
                "{engine}"
            );
        });
        // What was given up changes nothing for what follows.
        let options = GenerateOptions::default().max_tokens(3);
        assert_eq!(
            model
                .generate("Once upon a time", &options)
                .unwrap()
                .into_iter()
                .filter(Result::is_ok)
                .count(),
            3,
            "{engine}"
        );
    }
}

#[test]
fn a_generation_may_outlive_its_model() {
    let options = GenerateOptions::default().max_tokens(12);
    let path = support::repository("assets/tales-22m");
    let generation =
        Model::builder(&path).cpu().build().unwrap().generate("Once", &options).unwrap();
    assert_eq!(generation.into_iter().filter(Result::is_ok).count(), 12);
    // Dropped while its thread waits for the tokens to be taken, or before it has begun.
    let mut generation =
        Model::builder(&path).cpu().build().unwrap().generate("Once", &options).unwrap();
    (&mut generation).into_iter().next().unwrap().unwrap();
    drop(generation);
    drop(Model::builder(&path).cpu().build().unwrap().generate("Once", &options).unwrap());
}

#[test]
fn a_text_ends_at_a_stop_string() {
    for (engine, model) in models() {
        let options = GenerateOptions::default().max_tokens(60).ignore_eos(true);
        let text = |options: &GenerateOptions| {
            let mut generation = model.generate("Once upon a time", options).unwrap();
            let text: String =
                (&mut generation).into_iter().map(|token| token.unwrap().text).collect();
            (text, generation.stop())
        };
        let (whole, stop) = text(&options);
        assert_eq!(stop, Some(Stop::MaxTokens), "{engine}");
        // A string in the middle of words, over the bounds of tokens.
        let middle = whole.char_indices().nth(whole.chars().count() / 2).unwrap().0;
        let string = &whole[middle..middle + 7];
        let (until, stop) = text(&options.clone().stop(["never said", string]));
        assert_eq!(
            (until.as_str(), stop),
            (&whole[..whole.find(string).unwrap()], Some(Stop::StopString)),
            "{engine}"
        );
        assert_eq!(
            text(&options.clone().stop(["never said"])),
            (whole, Some(Stop::MaxTokens)),
            "{engine}"
        );
        assert!(matches!(
            model.generate("Once", &options.clone().stop([""])).map(drop),
            Err(Error::Invalid { .. })
        ));
    }
}

#[test]
fn a_session_goes_on_from_what_it_has() {
    for (engine, model) in models() {
        let options = GenerateOptions::default().max_tokens(12).ignore_eos(true);
        let alone = |prompt: &[u32]| -> Vec<u32> {
            model
                .generate_ids(prompt, &options)
                .unwrap()
                .into_iter()
                .map(|token| token.unwrap().id)
                .collect()
        };
        let prompt = model.encode_prompt("Once upon a time").unwrap();
        let session = model.session(SessionOptions::new(1, 200)).unwrap();

        // Taken to its end, then gone on with: the last token generated is not in the session yet.
        let mut generation = model.generate_ids_in(session, &prompt, &options).unwrap();
        let cached =
            |generation: &Generation| (generation.prompt_tokens(), generation.cached_tokens());
        assert_eq!(cached(&generation), (prompt.len(), 0), "{engine}");
        let first: Vec<u32> =
            (&mut generation).into_iter().map(|token| token.unwrap().id).collect();
        assert_eq!(first, alone(&prompt), "{engine}");
        let all = block_on(model.generate_ids(&prompt, &options).unwrap().all()).unwrap();
        assert_eq!((all.ids, Some(all.stop)), (first.clone(), generation.stop()), "{engine}");
        let session = block_on(generation.into_session()).unwrap();
        assert_eq!(session.tokens(0), [&prompt[..], &first[..11]].concat(), "{engine}");
        assert_eq!(session.len(0), session.tokens(0).len(), "{engine}");
        let longer = [&prompt[..], &first, &[7, 300, 12]].concat();
        let mut generation = model.generate_ids_in(session, &longer, &options).unwrap();
        assert_eq!(cached(&generation), (longer.len(), prompt.len() + 11), "{engine}");
        let second: Vec<u32> =
            (&mut generation).into_iter().map(|token| token.unwrap().id).collect();
        assert_eq!(second, alone(&longer), "{engine}");

        // Another text with a common beginning; ended early, with steps submitted ahead.
        let session = block_on(generation.into_session()).unwrap();
        let other = [&prompt[..], &[9, 9]].concat();
        let mut generation = model.generate_ids_in(session, &other, &options).unwrap();
        let begun: Vec<u32> =
            (&mut generation).into_iter().take(3).map(|token| token.unwrap().id).collect();
        let session = block_on(generation.into_session()).unwrap();
        let all = alone(&other);
        assert_eq!(begun, all[..3], "{engine}");
        let held = session.tokens(0).to_vec();
        assert!(
            held.len() >= other.len() + 2 && held == [&other[..], &all].concat()[..held.len()],
            "{engine}: {held:?}"
        );

        // The same text again, of which only the last token is computed; nothing to generate;
        // nobody asks.
        let session = block_on(
            model
                .generate_ids_in(session, &held, &options.clone().max_tokens(0))
                .unwrap()
                .into_session(),
        )
        .unwrap();
        let session =
            block_on(model.generate_ids_in(session, &held, &options).unwrap().into_session())
                .unwrap();
        let mut generation = model.generate_ids_in(session, &held, &options).unwrap();
        assert_eq!(cached(&generation), (held.len(), held.len() - 1), "{engine}");
        let again: Vec<u32> =
            (&mut generation).into_iter().map(|token| token.unwrap().id).collect();
        assert_eq!(again, alone(&held), "{engine}");

        let batch = model.batch(BatchOptions::new(1, 200)).unwrap();
        let in_batch = batch.generate_ids(&prompt, &options).unwrap().into_session();
        assert!(matches!(block_on(in_batch).map(drop), Err(Error::Invalid { .. })), "{engine}");
        let session = block_on(generation.into_session()).unwrap();
        let held = session.tokens(0).to_vec();
        let failed = model.generate_ids_in(session, &vec![1; 201], &options).err().unwrap();
        assert!(matches!(failed.error, Error::Context { needed: 201, capacity: 200 }), "{engine}");
        assert_eq!(failed.session.tokens(0), held, "{engine}: the error has the session");
        let two = model.session(SessionOptions::new(2, 20)).unwrap();
        assert!(
            matches!(
                model.generate_ids_in(two, &prompt, &options).map_err(Error::from).map(drop),
                Err(Error::Invalid { .. })
            ),
            "{engine}"
        );
    }
    let [(_, cpu), (_, gpu)] = models();
    let foreign = cpu.session(SessionOptions::new(1, 20)).unwrap();
    assert!(matches!(
        gpu.generate_ids_in(foreign, &[1], &GenerateOptions::default())
            .map_err(Error::from)
            .map(drop),
        Err(Error::Invalid { .. })
    ));
}

#[test]
fn a_batch_says_what_became_of_each_prompt() {
    for (engine, model) in models() {
        let options = GenerateOptions::default().max_tokens(30).stop([".", ","]);
        let prompts: Vec<Vec<u32>> = ["Once upon a time", "The bear"]
            .iter()
            .map(|text| model.encode_prompt(text).unwrap())
            .collect();
        for (prompt, together) in
            prompts.iter().zip(block_on(model.generate_batch_ids(&prompts, &options)).unwrap())
        {
            let mut generation = model.generate_ids(prompt, &options).unwrap();
            let tokens: Vec<_> = (&mut generation).into_iter().map(Result::unwrap).collect();
            let text: String = tokens.iter().map(|token| token.text.as_str()).collect();
            assert_eq!((together.text, Some(together.stop)), (text, generation.stop()), "{engine}");
            assert_eq!(
                together.ids,
                tokens.iter().map(|token| token.id).collect::<Vec<_>>(),
                "{engine}"
            );
        }
    }
}

#[test]
fn a_batch_equals_each_sequence_alone() {
    for (engine, model) in models() {
        let options = GenerateOptions::default().max_tokens(12).ignore_eos(true);
        let prompts = ["Once upon a time", "The bear", ""];
        let batch = block_on(model.generate_batch(&prompts, &options)).unwrap();
        for (prompt, generated) in prompts.iter().zip(batch) {
            let alone: Vec<_> =
                model.generate(prompt, &options).unwrap().into_iter().map(Result::unwrap).collect();
            let text: String = alone.iter().map(|token| token.text.as_str()).collect();
            let ids: Vec<u32> = alone.iter().map(|token| token.id).collect();
            assert_eq!((generated.text, generated.ids), (text, ids), "{engine}: {prompt}");
            assert_eq!(generated.stop, Stop::MaxTokens, "{engine}: {prompt}");
        }
        // Each has its own end, and nothing is computed for what has none to come.
        let ends = |options: &GenerateOptions| {
            let batch = block_on(model.generate_batch(&prompts, options)).unwrap();
            batch
                .into_iter()
                .map(|generated| (generated.ids.len(), generated.stop))
                .collect::<Vec<_>>()
        };
        assert_eq!(ends(&options.clone().max_tokens(0)), [(0, Stop::MaxTokens); 3], "{engine}");
        let length = model.encode_prompt(prompts[0]).unwrap().len();
        let lengths = [0, length - model.encode_prompt(prompts[1]).unwrap().len(), length - 1];
        assert_eq!(
            ends(&options.clone().max_length(Some(length))),
            lengths.map(|tokens| (tokens, Stop::MaxTokens)),
            "{engine}"
        );
    }
}

/// What is dropped is given up: the model of a test's own waits for its threads when it is dropped,
/// and nothing was computed in between.
#[test]
fn what_is_dropped_is_not_computed() {
    for (engine, context) in [("CPU", None), ("GPU", Some(context()))] {
        let path = support::repository("assets/tales-22m");
        let chosen = Arc::new(AtomicUsize::new(0));
        let counter = chosen.clone();
        let options =
            GenerateOptions::default().max_tokens(400).ignore_eos(true).logits(move |_, _| {
                counter.fetch_add(1, Ordering::SeqCst);
            });
        let model = Model::builder(&path).device(context).build().unwrap();
        let mut generation = model.generate("Once", &options).unwrap();
        (&mut generation).into_iter().take(2).for_each(|token| drop(token.unwrap()));
        drop((generation, model));
        // Those taken, those that waited to be, the one that found no room, and one in the making.
        assert!((2..=8).contains(&chosen.load(Ordering::SeqCst)), "{engine}: {chosen:?} of 400");

        chosen.store(0, Ordering::SeqCst);
        let model = Model::builder(&path).device(context).build().unwrap();
        let prompts = [vec![5, 6], vec![7]];
        let mut batch = Box::pin(model.generate_batch_ids(&prompts, &options));
        while chosen.load(Ordering::SeqCst) < 4 {
            assert!(
                block_on(poll_fn(|cx| Poll::Ready(batch.as_mut().poll(cx)))).is_pending(),
                "{engine}: 800 tokens at once"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(batch);
        drop(model);
        assert!(chosen.load(Ordering::SeqCst) < 700, "{engine}: {chosen:?} of 800");
    }
}

#[test]
fn a_dropped_prompt_leaves_no_trace() {
    for (engine, model) in models() {
        let mut session = model.session(SessionOptions::new(1, 512).kv_type(Element::F32)).unwrap();
        block_on(session.prefill(0, &[5, 6, 7])).unwrap();
        let expected = block_on(model.logits(&[5, 6, 7, 8])).unwrap();
        // A GPU may be done with all of it after the first.
        for polls in 1..if engine == "CPU" { 4 } else { 2 } {
            let ids: Vec<u32> = (0..500).map(|i| i % 700).collect();
            let mut prefill = Box::pin(session.prefill(0, &ids));
            let pending = (0..polls).all(|_| {
                block_on(poll_fn(|cx| Poll::Ready(prefill.as_mut().poll(cx)))).is_pending()
            });
            drop(prefill);
            assert!(pending, "{engine}: 500 tokens in {polls} steps");
            assert_eq!((session.len(0), session.tokens(0)), (3, &[5, 6, 7][..]), "{engine}");
        }
        let logits = block_on(session.decode(&[8])).unwrap();
        let off = logits
            .iter()
            .zip(&expected[3 * logits.len()..])
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(off < 1e-3, "{engine}: {off}");
    }
}

/// Every thread of the caller's pool waits for a model, and the model computes nevertheless.
#[test]
fn models_do_not_need_the_callers_threads() {
    use rayon::prelude::*;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    for (engine, model) in models() {
        let ids: Vec<u32> = (1..40).collect();
        let expected = block_on(model.score(&ids)).unwrap();
        let scores: Vec<_> = pool.install(|| {
            (0..4).into_par_iter().map(|_| block_on(model.score(&ids)).unwrap()).collect()
        });
        assert!(scores.iter().all(|scores| *scores == expected), "{engine}");
        let options = GenerateOptions::default().max_tokens(5).ignore_eos(true);
        let global: usize = rayon::scope(|_| {
            (0..4)
                .into_par_iter()
                .map(|_| model.generate("Once", &options).unwrap().into_iter().count())
                .sum()
        });
        assert_eq!(global, 20, "{engine}");
    }
}
