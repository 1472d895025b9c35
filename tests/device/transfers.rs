//! Transfers of many bytes: through a few staging buffers, in pieces of any lengths, whole at their
//! end.

use bitnet_wgpu::{
    Context, ContextOptions, Error, Result, Tensor,
    internals::Residency,
    model::{GenerateOptions, Model},
    tensor::{self, ElementType, f16},
    weights::{PackedTernary, Scales},
};
use serde_json::Value;
use std::fmt::Debug;
use support::{block_on, context, real_model};

fn open() -> Context {
    block_on(Context::open(ContextOptions::default())).unwrap()
}

fn restricted(context: &Context) -> Context {
    context.restricted(|capabilities| {
        capabilities.writes_in_place = false;
        capabilities.maps_in_place = false;
    })
}

/// Contexts that upload as to a device with memory of its own, and in place where it can.
fn both() -> Vec<Context> {
    let context = open();
    let own = restricted(&context);
    if context.capabilities().writes_in_place { vec![own, context] } else { vec![own] }
}

/// Bytes of a staging buffer, and how many there are.
const STAGE: usize = 1 << 20;
const STAGES: usize = 4;

fn read<T: ElementType>(context: &Context, data: &[T], piece: usize) -> Result<Vec<T>> {
    let x = context.upload_chunks(data.chunks(piece.max(1)), [data.len()])?;
    let (mut pieces, mut found) = (x.read_chunks(piece), Vec::new());
    while let Some(piece) = block_on(pieces.next()) {
        found.extend(piece?);
    }
    Ok(found)
}

#[test]
fn pieces_of_any_lengths_come_and_go_whole() {
    both().iter().for_each(come_and_go_whole);
}

fn come_and_go_whole(context: &Context) {
    fn check<T: ElementType + PartialEq + Debug>(
        context: &Context,
        number: impl Fn(usize) -> T,
        len: usize,
        pieces: &[usize],
    ) {
        let data: Vec<T> = (0..len).map(number).collect();
        for &piece in pieces {
            let found = read(context, &data, piece).unwrap();
            let wrong = found.iter().zip(&data).position(|(found, expected)| found != expected);
            assert_eq!((found.len(), wrong), (len, None), "{len} in pieces of {piece}");
        }
        let whole = context.upload(&data, [len]).unwrap();
        assert!(block_on(whole.read()).unwrap() == data, "{len} at once");
    }
    // More bytes than all staging buffers have, with an end that fills neither a buffer nor a word.
    let bytes = (STAGES + 2) * STAGE + 1023;
    check(context, |n| n as u32, bytes / 4, &[STAGE / 4, 1_000_003, usize::MAX]);
    check(context, |n| n as i8, bytes, &[STAGE, 777_777]);
    check(context, |n| f16::from_bits((n % 30_000) as u16), bytes / 2, &[STAGE / 2 - 1, 99_999]);
    for (len, piece) in [
        (0, 0),
        (0, 5),
        (1, 0),
        (1, 1),
        (7, 2),
        (7, 3),
        (8, 9),
        (1000, 1),
        (STAGE, STAGE),
        (STAGE + 1, STAGE),
    ] {
        check(context, |n| n as i8, len, &[piece]);
    }
}

#[test]
fn uploads_that_miss_the_shape_are_refused() {
    for context in both() {
        // Few, and as many as are written in place.
        for (lens, found, scale) in [
            (&[][..], 0, 1),
            (&[2, 1], 3, 1),
            (&[4, 1], 5, 1),
            (&[6, 1], 6, 1),
            (&[3], 3, 9999),
            (&[4, 1], 5, 9999),
        ] {
            let pieces = lens.iter().map(|&len| vec![1.0f32; len * scale]);
            let refused = context.upload_chunks(pieces, [2, 2, scale]).map(drop);
            let told = |shape, n| shape == [2, 2, scale].into() && n == found * scale;
            assert!(
                matches!(refused, Err(Error::Length { shape, found }) if told(shape, found)),
                "{refused:?}"
            );
        }
        // What is too much is not asked for to its end.
        let endless = std::iter::repeat([0u32; 1000]);
        assert!(matches!(
            context.upload_chunks(endless, [1 << 20]).map(drop),
            Err(Error::Length { .. })
        ));
    }
}

#[test]
fn in_place_uploads_are_in_host_memory() {
    let context = open();
    let in_place = context.capabilities().writes_in_place;
    let expected = if in_place { Residency::Shared } else { Residency::Device };
    let data: Vec<f32> = (0..1 << 15).map(|n| n as f32).collect();
    // Small ones, and what is not uploaded, are the device's own, unless all are shared.
    let others =
        if context.capabilities().maps_in_place { Residency::Shared } else { Residency::Device };
    let [few, many] = [16_383, 16_384].map(|len| context.upload(&data[..len], [len]).unwrap());
    assert_eq!((few.residency(), many.residency()), (others, expected));
    assert_eq!(Tensor::<f32>::zeros(&context, [16_384]).unwrap().residency(), others);
    assert_eq!(many.duplicate().unwrap().residency(), others);
    let own = restricted(&context);
    assert_eq!(own.upload(&data, [data.len()]).unwrap().residency(), Residency::Device);
    // It is written again as others are, and kernels read and write it.
    many.write(&data[1..16_385]).unwrap();
    let mut encoder = context.encoder("doubled");
    let sums = tensor::add(&many, &many).forward(&mut encoder).unwrap();
    encoder.submit().unwrap();
    let twice: Vec<f32> = data[1..16_385].iter().map(|n| n + n).collect();
    assert!(block_on(sums.read()).unwrap() == twice);
    // Its memory is counted while it is there, then waits, and is used again.
    let before = context.memory_stats();
    let again = context.upload(&data, [data.len()]).unwrap();
    let bytes = context.memory_stats().live_bytes - before.live_bytes;
    assert!((1 << 17..1 << 18).contains(&bytes), "{bytes}");
    drop(again);
    let after = context.memory_stats();
    assert_eq!(
        (after.live_bytes, after.cached_bytes),
        (before.live_bytes, before.cached_bytes + bytes)
    );
    let data: Vec<f32> = data.iter().map(|n| n + 0.5).collect();
    let again = context.upload(&data, [data.len()]).unwrap();
    assert_eq!((context.memory_stats().hits, again.residency()), (after.hits + 1, expected));
    assert!(block_on(again.read()).unwrap() == data);
}

#[test]
fn models_weights_are_where_they_were_written() {
    for context in both() {
        let expected = if context.capabilities().writes_in_place {
            Residency::Shared
        } else {
            Residency::Device
        };
        let w =
            PackedTernary::from_values(256, 1024, &[1i8; 256 * 1024], Scales::Tensor(0.5)).unwrap();
        assert_eq!(w.upload(&context).unwrap().tensors().0.residency(), expected);
        let model = Model::builder(real_model()).device(&context).build().unwrap();
        let ids = |model: &Model| -> Result<Vec<u32>> {
            model
                .generate_ids(&[5, 6], &GenerateOptions::default().max_tokens(4))?
                .into_iter()
                .map(|token| Ok(token?.id))
                .collect()
        };
        assert_eq!(
            ids(&model).unwrap(),
            ids(&Model::builder(real_model()).cpu().build().unwrap()).unwrap()
        );
    }
}

#[test]
fn what_is_submitted_meanwhile_is_in_its_order() {
    both().iter().for_each(in_its_order);
}

fn in_its_order(context: &Context) {
    let len = 5 * STAGE / 4;
    let x = context.upload(&vec![1u32; len], [len]).unwrap();
    // A large tensor is there for what is submitted after its upload, and small ones written before
    // it are not lost.
    let small = context.upload(&[2u32; 10], [10]).unwrap();
    let large = context.upload(&vec![3u32; len], [len]).unwrap();
    assert_eq!(
        (block_on(small.read()).unwrap(), block_on(large.read()).unwrap()[len - 1]),
        (vec![2; 10], 3)
    );
    // The fourth piece is asked for when the second is there, and so after this write.
    let mut pieces = x.read_chunks(STAGE / 4);
    let first = block_on(pieces.next()).unwrap().unwrap();
    x.write(&vec![9; len]).unwrap();
    let later: Vec<_> = (0..4).map(|_| block_on(pieces.next()).unwrap().unwrap()).collect();
    assert!(
        [&first, &later[0], &later[1]].into_iter().flatten().all(|&n| n == 1),
        "two are on their way"
    );
    assert!(
        later[2..].iter().all(|piece| *piece == vec![9; STAGE / 4])
            && block_on(pieces.next()).is_none()
    );
    // A call that is dropped while it waits loses no piece.
    let (mut pieces, mut found) = (x.read_chunks(STAGE / 4), 0);
    loop {
        let polled = Box::pin(pieces.next())
            .as_mut()
            .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        match polled {
            std::task::Poll::Ready(Some(piece)) => found += piece.unwrap().len(),
            std::task::Poll::Ready(None) => break,
            std::task::Poll::Pending => std::thread::yield_now(),
        }
    }
    assert_eq!(found, len);
    // One that is dropped half-way leaves nothing behind.
    drop(block_on(x.read_chunks(5).next()));
    assert_eq!(block_on(x.read()).unwrap(), vec![9; len]);
}

/// Whether pieces of an upload, and of a read, were on their way at once.
fn overlaps(context: &Context) -> [bool; 2] {
    let len = 8 * STAGE / 4 + 5;
    let data: Vec<f32> = (0..len).map(|n| n as f32).collect();
    let tracing = context.trace().unwrap();
    let x = context.upload(&data, [len]).unwrap();
    let mut encoder = context.encoder("doubled");
    let y = tensor::add(&x, &x).forward(&mut encoder).unwrap();
    encoder.submit().unwrap();
    let mut pieces = y.read_chunks(len.div_ceil(3));
    while let Some(piece) = block_on(pieces.next()) {
        piece.unwrap();
    }
    let trace: Value =
        serde_json::from_str(&block_on(tracing.finish()).unwrap().to_string()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |category: &str| -> Vec<(f64, f64, u64)> {
        let of = |phase| events.iter().filter(move |event| event["ph"] == phase);
        let begun = of("b").filter(|event| event["cat"] == category);
        let time = |event: &Value| event["ts"].as_f64().unwrap();
        let ended = |event: &Value| {
            time(of("e").find(|end| end["cat"] == category && end["id"] == event["id"]).unwrap())
        };
        begun
            .map(|event| (time(event), ended(event), event["args"]["bytes"].as_u64().unwrap()))
            .collect()
    };
    let (up, down) = (of("upload"), of("readback"));
    assert_eq!(
        up.iter().map(|span| span.2).collect::<Vec<_>>(),
        [vec![STAGE as u64; 8], vec![20]].concat()
    );
    assert_eq!(down.iter().map(|span| span.2).sum::<u64>(), 4 * len as u64);
    let calls: Vec<_> =
        events.iter().filter(|event| event["name"] == "upload" && event["ph"] == "X").collect();
    assert!(calls.len() == 1 && calls[0]["args"]["bytes"] == 4 * len, "{calls:?}");
    [up, down].map(|spans| spans.windows(2).any(|pair| pair[1].0 < pair[0].1))
}

#[test]
fn a_trace_shows_overlapping_transfers() {
    let context = &both()[0];
    // A fast device, or a slow thread, may have each piece arrive before the next begins.
    let tries: Vec<_> = (0..20).map(|_| overlaps(context)).collect();
    for direction in [0, 1] {
        assert!(tries.iter().any(|overlap| overlap[direction]), "one after another: {tries:?}");
    }
}

#[test]
fn tensors_that_nothing_wrote_cannot_be_read() {
    let x = context().upload(&[1f32, -2.0], [2]).unwrap();
    let mut encoder = context().encoder("relu2");
    let y = tensor::relu2(&x).forward(&mut encoder).unwrap();
    let refused = block_on(y.read()).unwrap_err();
    assert!(matches!(refused, Error::Invalid { op: "read", .. }), "{refused}");
    let recording = encoder.finish();
    assert!(block_on(y.read()).is_err(), "it is only recorded");
    assert_eq!(block_on(recording.submit_read(&y).unwrap()).unwrap(), [1.0, 0.0]);
    assert_eq!(block_on(y.read()).unwrap(), [1.0, 0.0]);
    // A buffer of the pool forgets what another tensor had in it.
    drop((recording, y));
    assert!(block_on(Tensor::<f32>::uninit(context(), [2]).unwrap().read()).is_err());
    let written = Tensor::<f32>::uninit(context(), [2]).unwrap();
    written.write(&[3.0, 4.0]).unwrap();
    assert_eq!(block_on(written.duplicate().unwrap().read()).unwrap(), [3.0, 4.0]);
}

#[test]
fn encoders_dropped_with_work_warn() {
    let x = context().upload(&[1f32, -2.0], [2]).unwrap();
    let warnings = support::warnings(|| {
        let mut encoder = context().encoder("forgotten");
        tensor::relu2(&x).forward(&mut encoder).unwrap();
        drop(encoder);
        let mut encoder = context().encoder("submitted");
        tensor::relu2(&x).forward(&mut encoder).unwrap();
        encoder.submit().unwrap();
        drop(context().encoder("empty"));
    });
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("`forgotten` was dropped with 1 dispatches"), "{warnings:?}");
}
