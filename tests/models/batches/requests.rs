//! The life of a request: queue, prefix reuse, errors, ends.

use super::{all, alone, batch, greedy, ids, models, take, wait_until};
use bitnet_wgpu::{
    Error, ErrorKind,
    model::{BatchOptions, GenerateOptions, Model, Sampling, Stop},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::sleep,
    time::Duration,
};
use support::{block_on, context};

/// Steps are submitted before the end of a sequence is known: they are not the next one's.
#[test]
fn who_waits_gets_nothing_of_who_ended_before() {
    for (engine, model) in models() {
        let prompts: Vec<Vec<u32>> = (0..6).map(|n| ids(&model, 20 + n, 4)).collect();
        // Each but the first ends in its middle, at a text that it has there.
        let ends = |prompt: &Vec<u32>| {
            let mut tokens = model
                .generate_ids(prompt, &greedy(24))
                .unwrap()
                .into_iter()
                .map(Result::unwrap)
                .skip(5);
            tokens.find(|token| token.text.trim().len() > 1).unwrap().text
        };
        let options =
            |n: usize| if n == 0 { greedy(60) } else { greedy(24).stop([ends(&prompts[n])]) };
        let options: Vec<_> = (0..prompts.len()).map(options).collect();
        let batch = batch(&model, 2, 8);
        let streams: Vec<_> = prompts
            .iter()
            .zip(&options)
            .map(|(prompt, options)| batch.generate_ids(prompt, options).unwrap())
            .collect();
        for (n, stream) in streams.into_iter().enumerate() {
            assert_eq!(
                all(stream),
                alone(&model, &prompts[n], &options[n]),
                "{engine}: request {n}"
            );
        }
    }
}

#[test]
fn dropped_requests_make_room_in_a_full_queue() {
    for (engine, model) in models() {
        let batch = batch(&model, 2, 1);
        let steps = Arc::new(AtomicUsize::new(0));
        let count = steps.clone();
        let options = greedy(200).logits(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let start = || batch.generate("Once upon a time", &options);
        let (mut a, mut b, c) = (start().unwrap(), start().unwrap(), start().unwrap());
        assert!([&mut a, &mut b].into_iter().all(|stream| take(stream, 1).len() == 1), "{engine}");
        let error = start().map(drop).unwrap_err();
        assert!(
            matches!(error, Error::Busy { running: 2, waiting: 1, slots: 2, queue: 1 }),
            "{engine}: {error:?}"
        );
        assert_eq!(
            (error.kind(), batch.load().running, batch.load().waiting),
            (ErrorKind::Busy, 2, 1),
            "{engine}"
        );
        // From the queue at once, from a slot before the next step.
        drop(c);
        let mut c = start().unwrap();
        assert!(start().is_err(), "{engine}");
        drop(a);
        take(&mut c, 1);
        drop((b, c));
        wait_until("both leave", || batch.load().running == 0);
        assert!(steps.load(Ordering::SeqCst) < 200, "{engine}: {steps:?} of 600 steps");
        assert_eq!(
            block_on(batch.generate("Once", &greedy(3)).unwrap().all()).unwrap().ids.len(),
            3,
            "{engine}"
        );
    }
}

#[test]
fn an_app_says_how_many_run() {
    for (engine, model) in models() {
        let batch = batch(&model, 3, 8);
        let prompts = [ids(&model, 1, 5), ids(&model, 2, 9), ids(&model, 3, 3), ids(&model, 4, 7)];
        let expected: Vec<_> =
            prompts.iter().map(|prompt| alone(&model, prompt, &greedy(40)).0).collect();
        // None at all.
        batch.limit(0);
        let mut streams: Vec<_> =
            prompts.iter().map(|prompt| batch.generate_ids(prompt, &greedy(40)).unwrap()).collect();
        sleep(Duration::from_millis(50));
        assert_eq!((batch.load().running, batch.load().waiting), (0, 4), "{engine}");
        // One by one, in their order.
        batch.limit(1);
        for _ in 0..10 {
            take(&mut streams[0], 1);
            assert_eq!(batch.load().running, 1, "{engine}");
        }
        // All that there is room for; fewer change nothing for those that run.
        batch.limit(usize::MAX);
        streams[1..3].iter_mut().for_each(|stream| drop(take(stream, 1)));
        batch.limit(1);
        for (n, stream) in streams.into_iter().enumerate() {
            assert_eq!(all(stream).0, expected[n], "{engine}, prompt {n}");
        }
    }
}

#[test]
fn the_error_of_one_is_its_own() {
    for (engine, model) in models() {
        let batch = batch(&model, 4, 8);
        let expected = alone(&model, &[5, 6, 7], &greedy(20));
        let fine = batch.generate_ids(&[5, 6, 7], &greedy(20)).unwrap();
        let nan = greedy(20)
            .logits(|tokens, logits| logits[3] = if tokens.len() == 6 { f32::NAN } else { 0.0 });
        let mut wrong = batch.generate_ids(&[5, 6, 7], &nan).unwrap();
        assert_eq!(take(&mut wrong, 3).len(), 3, "{engine}");
        let error = block_on(wrong.next_token()).unwrap().unwrap_err();
        assert!(
            matches!(&error, Error::Invalid { what, .. } if what.contains("NaN")),
            "{engine}: {error}"
        );
        assert!(block_on(wrong.next_token()).is_none() && wrong.stop().is_none(), "{engine}");
        assert_eq!(all(fine), expected, "{engine}");
        // What is wrong with a request is known before it waits.
        let invalid = |prompt: &[u32], options: &GenerateOptions| {
            batch.generate_ids(prompt, options).map(drop).unwrap_err().to_string()
        };
        assert!(invalid(&[], &greedy(1)).contains("no tokens"));
        assert!(invalid(&[99_999], &greedy(1)).contains("token 99999"));
        assert!(invalid(&[5; 257], &greedy(1)).contains("257 positions"));
        assert!(invalid(&[5], &greedy(1).stop([""])).contains("stop string"));
        assert!(
            invalid(&[5], &greedy(1).sampling(Sampling::GREEDY.temperature(-1.0)))
                .contains("temperature")
        );
    }
    let (_, model) = &models()[0];
    for (options, expected) in [
        (BatchOptions::new(0, 16), "0 sequences"),
        (BatchOptions::new(1, 1 << 20), "positions"),
        (BatchOptions::new(1, 16).prefill_chunk(0), "chunks of 0"),
    ] {
        assert!(
            model.batch(options).map(drop).unwrap_err().to_string().contains(expected),
            "{expected}"
        );
    }
}

/// A hook is the caller's: where it panics, the thread is gone, and nobody waits for it.
#[test]
fn every_request_learns_that_the_thread_ended() {
    for (engine, model) in models() {
        let batch = batch(&model, 2, 8);
        let fine: Vec<_> = (0..3).map(|_| batch.generate("Once", &greedy(200)).unwrap()).collect();
        drop(fine);
        let mut fine = batch.generate("Once", &greedy(250)).unwrap();
        take(&mut fine, 1);
        let panics =
            batch.generate("Once", &greedy(9).logits(|_, _| panic!("on purpose"))).unwrap();
        let waits = batch.generate("Once", &greedy(9)).unwrap();
        for stream in [fine, panics, waits] {
            let error = block_on(stream.all()).unwrap_err();
            assert!(
                matches!(&error, Error::Gpu { message, .. } if message.contains("panicked")),
                "{engine}: {error}"
            );
        }
        assert!(
            matches!(batch.generate("Once", &greedy(9)).map(drop), Err(Error::Gpu { .. })),
            "{engine}"
        );
        assert_eq!((batch.load().running, batch.load().waiting), (0, 0), "{engine}");
    }
}

#[test]
fn prefixes_are_reused_within_a_salt() {
    for (engine, model) in models() {
        let prompt = ids(&model, 1, 60);
        let expected = alone(&model, &prompt, &greedy(5)).0;
        let salts = [None, Some("a"), Some("b"), Some("")];
        for first in salts {
            for second in salts {
                let batch = batch(&model, 1, 8);
                let run = |salt: Option<&str>| {
                    let options = greedy(5).cache_salt(salt);
                    let mut stream = batch.generate_ids(&prompt, &options).unwrap();
                    let tokens: Vec<u32> =
                        take(&mut stream, 5).into_iter().map(|token| token.id).collect();
                    assert_eq!(tokens, expected, "{engine}");
                    stream.cached_tokens()
                };
                assert_eq!(run(first), 0);
                let expected = if first == second { prompt.len() - 1 } else { 0 };
                assert_eq!(run(second), expected, "{engine}: {first:?}, then {second:?}");
            }
        }
        let error = batch(&model, 1, 8)
            .generate_ids(&prompt, &greedy(5).cache_salt(Some("x".repeat(1025))))
            .map(drop)
            .unwrap_err();
        assert!(error.to_string().contains("cache salt of 1025 bytes"), "{engine}: {error}");
    }
}

#[test]
fn long_stop_strings_are_refused() {
    for (engine, model) in models() {
        let prompt = ids(&model, 1, 6);
        for (stop, allowed) in [
            (vec!["x".repeat(4096)], true),
            (vec!["x".repeat(4097)], false),
            (vec!["x".repeat(4096); 5], false),
        ] {
            let result = batch(&model, 1, 8).generate_ids(&prompt, &greedy(2).stop(stop)).map(drop);
            assert_eq!(result.is_ok(), allowed, "{engine}: {result:?}");
            assert!(
                allowed || result.unwrap_err().to_string().contains("stop strings of up to"),
                "{engine}"
            );
        }
    }
}

#[test]
fn a_slot_reuses_a_shared_prefix() {
    for (engine, model) in models() {
        let batch = batch(&model, 3, 8);
        let texts: Vec<_> =
            [(1, 60), (2, 90), (3, 30)].map(|(seed, len)| ids(&model, seed, len)).into();
        let run = |prompt: &[u32]| {
            let mut stream = batch.generate_ids(prompt, &greedy(5)).unwrap();
            let tokens: Vec<u32> = take(&mut stream, 5).into_iter().map(|token| token.id).collect();
            assert_eq!(tokens, alone(&model, prompt, &greedy(5)).0, "{engine}");
            (stream.cached_tokens(), tokens)
        };
        let begun: Vec<_> = texts.iter().map(|text| run(text)).collect();
        assert!(begun.iter().all(|(cached, _)| *cached == 0), "{engine}: {begun:?}");
        // The next turn of each: all but the last token generated is there. In another order, so
        // that it is not the slot which is the turn's.
        for n in [1, 2, 0] {
            let next = [&texts[n][..], &begun[n].1, &[9, 8, 7]].concat();
            assert_eq!(run(&next).0, texts[n].len() + 4, "{engine}: turn of {n}");
        }
        // The same again: of all that is there, the last token is computed once more.
        assert_eq!(run(&texts[1]).0, texts[1].len() - 1, "{engine}");
        // Two tokens are no reason: the one that was not used for longest goes, which is the third.
        let other = [&texts[1][..2], &[1, 2, 3]].concat();
        assert_eq!(run(&other).0, 0, "{engine}");
        assert_eq!(run(&texts[1]).0, texts[1].len() - 1, "{engine}");
        assert_eq!(run(&texts[0]).0, texts[0].len() - 1, "{engine}");
        assert_eq!(run(&texts[2]).0, 0, "{engine}");
    }
}

#[test]
fn who_reads_slowly_makes_nobody_wait() {
    for (engine, model) in models() {
        let batch = batch(&model, 1, 8);
        let slow = batch.generate_ids(&[5, 6], &greedy(50)).unwrap();
        // There is one slot.
        assert_eq!(
            block_on(batch.generate_ids(&[7], &greedy(5)).unwrap().all()).unwrap().ids.len(),
            5,
            "{engine}"
        );
        assert_eq!(all(slow), alone(&model, &[5, 6], &greedy(50)), "{engine}");
    }
}

#[test]
fn a_long_prompt_does_not_stall_others() {
    for (engine, model) in models() {
        let batch = model.batch(BatchOptions::new(2, 256).prefill_chunk(4)).unwrap();
        let steps = Arc::new(AtomicUsize::new(0));
        let (count, seen) = (steps.clone(), steps.clone());
        let running = greedy(usize::MAX).logits(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let mut running = batch.generate_ids(&[5], &running).unwrap();
        take(&mut running, 1);
        let at = Arc::new(AtomicUsize::new(0));
        let first = at.clone();
        let before = steps.load(Ordering::SeqCst);
        let long = greedy(1)
            .logits(move |_, _| first.store(seen.load(Ordering::SeqCst), Ordering::SeqCst));
        block_on(batch.generate_ids(&ids(&model, 1, 200), &long).unwrap().all()).unwrap();
        // 50 chunks, and a step after each but the last.
        let between = at.load(Ordering::SeqCst) - before;
        assert!(
            (49..60).contains(&between),
            "{engine}: {between} steps while a prompt of 50 pieces was computed"
        );
        assert!(running.stop().is_none(), "{engine}");
    }
}

#[test]
fn it_ends_with_its_last_owner() {
    let path = support::repository("assets/tales-22m");
    for (engine, context) in [("CPU", None), ("GPU", Some(context()))] {
        let model = Model::builder(&path).device(context).build().unwrap();
        let steps = Arc::new(AtomicUsize::new(0));
        let count = steps.clone();
        let options = greedy(usize::MAX).logits(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let first = model.batch(BatchOptions::new(2, 512)).unwrap();
        let mut stream = first.clone().generate_ids(&[5], &options).unwrap();
        drop((model, first));
        // The stream is an owner.
        take(&mut stream, 2);
        drop(stream);
        let after = steps.load(Ordering::SeqCst);
        assert!(after < 400, "{engine}: {after} of 512");
        sleep(Duration::from_millis(100));
        assert_eq!(steps.load(Ordering::SeqCst), after, "{engine}: the thread was not waited for");
    }
}

#[test]
fn streams_end_for_the_reasons_of_generations() {
    for (engine, model) in models() {
        let batch = model.batch(BatchOptions::new(2, 20)).unwrap();
        let stop = |options: &GenerateOptions| {
            let mut stream = batch.generate_ids(&[2046, 7, 8], options).unwrap();
            (take(&mut stream, 1000).len(), stream.stop())
        };
        assert_eq!(stop(&greedy(0)), (0, Some(Stop::MaxTokens)), "{engine}");
        assert_eq!(stop(&greedy(4)), (4, Some(Stop::MaxTokens)), "{engine}");
        // The last token is not appended.
        assert_eq!(stop(&greedy(1000)), (18, Some(Stop::Context)), "{engine}");
        assert_eq!(
            stop(&greedy(9).ignore_eos(false).logit_bias([(2047, 1e6)])),
            (1, Some(Stop::EndOfText)),
            "{engine}"
        );
    }
}
