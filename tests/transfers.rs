//! Transfers of many bytes: through a few staging buffers, in pieces of any lengths, whole at their end.

use bitnet_wgpu::{Context, ContextOptions, ElementType, Error, Result, f16, tensor};
use serde_json::Value;
use std::fmt::Debug;
use support::block_on;

fn open() -> Context {
    block_on(Context::open(ContextOptions::default())).unwrap()
}

/// Bytes of a staging buffer, and how many there are.
const STAGE: usize = 1 << 20;
const STAGES: usize = 4;

fn read<T: ElementType>(context: &Context, data: &[T], piece: usize) -> Result<Vec<T>> {
    let x = context.upload_pieces(data.chunks(piece.max(1)), [data.len()])?;
    let (mut pieces, mut found) = (x.read_pieces(piece), Vec::new());
    while let Some(piece) = block_on(pieces.next()) {
        found.extend(piece?);
    }
    Ok(found)
}

#[test]
fn pieces_of_any_lengths_come_and_go_whole() {
    let context = open();
    fn check<T: ElementType + PartialEq + Debug>(context: &Context, number: impl Fn(usize) -> T, len: usize, pieces: &[usize]) {
        let data: Vec<T> = (0..len).map(number).collect();
        for &piece in pieces {
            let found = read(context, &data, piece).unwrap();
            let wrong = found.iter().zip(&data).position(|(found, wanted)| found != wanted);
            assert_eq!((found.len(), wrong), (len, None), "{len} in pieces of {piece}");
        }
        let whole = context.upload(&data, [len]).unwrap();
        assert!(block_on(whole.read()).unwrap() == data, "{len} at once");
    }
    // More bytes than all staging buffers have, with an end that fills neither a buffer nor a word.
    let bytes = (STAGES + 2) * STAGE + 1023;
    check(&context, |n| n as u32, bytes / 4, &[STAGE / 4, 1_000_003, usize::MAX]);
    check(&context, |n| n as i8, bytes, &[STAGE, 777_777]);
    check(&context, |n| f16::from_bits((n % 30_000) as u16), bytes / 2, &[STAGE / 2 - 1, 99_999]);
    for (len, piece) in [(0, 0), (0, 5), (1, 0), (1, 1), (7, 2), (7, 3), (8, 9), (1000, 1), (STAGE, STAGE), (STAGE + 1, STAGE)] {
        check(&context, |n| n as i8, len, &[piece]);
    }
}

#[test]
fn pieces_that_do_not_fill_the_shape_are_refused() {
    let context = open();
    for (lens, found) in [(&[][..], 0), (&[2, 1], 3), (&[4, 1], 5), (&[6, 1], 6)] {
        let pieces = lens.iter().map(|&len| vec![1.0f32; len]);
        let refused = context.upload_pieces(pieces, [2, 2]).map(drop);
        assert!(matches!(refused, Err(Error::Length { shape, found: n }) if shape == [2, 2].into() && n == found), "{refused:?}");
    }
    // What is too much is not asked for to its end.
    let endless = std::iter::repeat([0u32; 1000]);
    assert!(matches!(context.upload_pieces(endless, [1 << 20]).map(drop), Err(Error::Length { .. })));
}

#[test]
fn what_is_submitted_meanwhile_is_in_its_order() {
    let context = open();
    let len = 5 * STAGE / 4;
    let x = context.upload(&vec![1u32; len], [len]).unwrap();
    // A large tensor is there for what is submitted after its upload, and small ones written before it are not lost.
    let small = context.upload(&[2u32; 10], [10]).unwrap();
    let large = context.upload(&vec![3u32; len], [len]).unwrap();
    assert_eq!((block_on(small.read()).unwrap(), block_on(large.read()).unwrap()[len - 1]), (vec![2; 10], 3));
    // The fourth piece is asked for when the second is there, and so after this write.
    let mut pieces = x.read_pieces(STAGE / 4);
    let first = block_on(pieces.next()).unwrap().unwrap();
    x.write(&vec![9; len]).unwrap();
    let later: Vec<_> = (0..4).map(|_| block_on(pieces.next()).unwrap().unwrap()).collect();
    assert!([&first, &later[0], &later[1]].into_iter().flatten().all(|&n| n == 1), "two are on their way");
    assert!(later[2..].iter().all(|piece| *piece == vec![9; STAGE / 4]) && block_on(pieces.next()).is_none());
    // A call that is dropped while it waits loses no piece.
    let (mut pieces, mut found) = (x.read_pieces(STAGE / 4), 0);
    loop {
        let polled = Box::pin(pieces.next()).as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        match polled {
            std::task::Poll::Ready(Some(piece)) => found += piece.unwrap().len(),
            std::task::Poll::Ready(None) => break,
            std::task::Poll::Pending => std::thread::yield_now(),
        }
    }
    assert_eq!(found, len);
    // One that is dropped half-way leaves nothing behind.
    drop(block_on(x.read_pieces(5).next()));
    assert_eq!(block_on(x.read()).unwrap(), vec![9; len]);
}

#[test]
fn a_trace_shows_what_is_on_its_way_at_once() {
    let context = open();
    let len = 8 * STAGE / 4 + 5;
    let data: Vec<f32> = (0..len).map(|n| n as f32).collect();
    let tracing = context.trace().unwrap();
    let x = context.upload(&data, [len]).unwrap();
    let mut encoder = context.encoder("doubled");
    let y = tensor::add(&mut encoder, &x, &x).unwrap();
    encoder.submit().unwrap();
    let mut pieces = y.read_pieces(len.div_ceil(3));
    while let Some(piece) = block_on(pieces.next()) {
        piece.unwrap();
    }
    let trace: Value = serde_json::from_str(&block_on(tracing.finish()).unwrap().to_string()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |category: &str| -> Vec<(f64, f64, u64)> {
        let of = |phase| events.iter().filter(move |event| event["ph"] == phase);
        let begun = of("b").filter(|event| event["cat"] == category);
        let time = |event: &Value| event["ts"].as_f64().unwrap();
        let ended = |event: &Value| time(of("e").find(|end| end["cat"] == category && end["id"] == event["id"]).unwrap());
        begun.map(|event| (time(event), ended(event), event["args"]["bytes"].as_u64().unwrap())).collect()
    };
    let (up, down) = (of("upload"), of("readback"));
    assert_eq!(up.iter().map(|span| span.2).collect::<Vec<_>>(), [vec![STAGE as u64; 8], vec![20]].concat());
    assert_eq!(down.iter().map(|span| span.2).sum::<u64>(), 4 * len as u64);
    for spans in [up, down] {
        assert!(spans.windows(2).any(|pair| pair[1].0 < pair[0].1), "one after another: {spans:?}");
    }
    let calls: Vec<_> = events.iter().filter(|event| event["name"] == "upload" && event["ph"] == "X").collect();
    assert!(calls.len() == 1 && calls[0]["args"]["bytes"] == 4 * len, "{calls:?}");
}
