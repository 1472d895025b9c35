//! An app's own device, buffers and command encoder.

use super::runtime::add;
use bitnet_wgpu::{Context, Error, Result, Tensor, wgpu};
use std::future::IntoFuture as _;
use support::{App, block_on, context};

#[test]
fn an_apps_own_device_will_do() {
    let app = App::default();
    let own = app.open(|_| ()).unwrap();
    let x = own.upload(&[1u32, 2], [2]).unwrap();
    let y = Tensor::zeros(&own, [2]).unwrap();
    let mut encoder = own.encoder("own");
    add(&mut encoder, &x, &y, 1).unwrap();
    let _ = encoder.submit().unwrap();
    assert_eq!(block_on(y.read()).unwrap(), [2, 3]);
    // Tensors of two devices do not mix.
    let foreign = context().upload(&[1u32, 2], [2]).unwrap();
    let mixed = add(&mut own.encoder("mixed"), &foreign, &y, 1).unwrap_err();
    assert_eq!(mixed.to_string(), "add: `x` is on another device than the work");
    // A device without what we need is refused, by name.
    let without = app.open(|device| {
        device.required_features.remove(wgpu::Features::IMMEDIATES);
        device.required_limits.max_immediate_size = 0;
    });
    let error = without.unwrap_err();
    let Error::DeviceUnsupported { what } = &error else { panic!("{error}") };
    assert!(what.contains("IMMEDIATES"), "{what}");
}

/// A buffer as an app makes it.
fn app_buffer(context: &Context, bytes: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    context.device().create_buffer(&wgpu::BufferDescriptor {
        label: Some("app"),
        size: bytes,
        usage,
        mapped_at_creation: false,
    })
}

const SHARED: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE
    .union(wgpu::BufferUsages::COPY_SRC)
    .union(wgpu::BufferUsages::COPY_DST);

#[test]
fn an_apps_buffers_are_tensors() {
    let context = block_on(Context::new()).unwrap();
    let (a, b) = (app_buffer(&context, 16, SHARED), app_buffer(&context, 64, SHARED));
    context.queue().write_buffer(&a, 0, &bytes(&[1, 2, 3]));
    let before = context.memory_stats();
    {
        let x = Tensor::<u32>::from_buffer(&context, a.clone(), [3]).unwrap();
        let y = Tensor::<u32>::from_buffer(&context, b.clone(), [3]).unwrap();
        assert_eq!(x.buffer(), &a);
        let mut encoder = context.encoder("app");
        add(&mut encoder, &x, &y, 5).unwrap();
        block_on(encoder.submit().unwrap().into_future()).unwrap();
        assert_eq!(context.memory_stats(), before, "nothing was allocated, and nothing copied");
        assert_eq!(block_on(y.read()).unwrap(), [6, 7, 8]);
        // One buffer is one buffer, in however many tensors.
        let again = Tensor::<u32>::from_buffer(&context, a.clone(), [3]).unwrap();
        assert!(matches!(
            add(&mut context.encoder("alias"), &x, &again, 1),
            Err(Error::Dispatch { .. })
        ));
        let mut encoder = context.encoder("numbers");
        add(&mut encoder, &x, &y, 1).unwrap();
        add(&mut encoder, &again, &y, 1).unwrap();
        let recording = encoder.finish();
        let buffers: Vec<_> = recording.dispatches().map(|dispatch| dispatch.buffers()).collect();
        assert!(buffers[0] == buffers[1] && buffers[0][0] != buffers[0][1], "{buffers:?}");
        assert_eq!(recording.dispatches().next().unwrap().binding_of(&again), Some(0));
    }
    let free = context.memory_stats().cached_bytes;
    let others: Vec<_> = (0..4).map(|_| context.upload(&[9u32; 16], [16]).unwrap()).collect();
    assert!(
        others.iter().all(|tensor| tensor.buffer() != &a && tensor.buffer() != &b),
        "it never comes into the pool ({free} bytes)"
    );
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn buffers_that_will_not_do_are_refused() {
    let context = context();
    let take = |buffer: wgpu::Buffer, len: usize| {
        Tensor::<u32>::from_buffer(context, buffer, [len]).map(drop)
    };
    let words = |result: Result<()>| match result {
        Err(Error::Invalid { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert!(
        words(take(app_buffer(context, 16, SHARED), 5))
            .contains("takes 20 bytes; the buffer has 16")
    );
    assert!(
        words(take(app_buffer(context, 4, SHARED), 1)).contains("takes 16 bytes; the buffer has 4")
    );
    assert!(
        words(take(app_buffer(context, 16, wgpu::BufferUsages::COPY_SRC), 4)).contains("STORAGE")
    );
    let huge =
        Tensor::<u32>::from_buffer(context, app_buffer(context, 16, SHARED), [1 << 40]).map(drop);
    assert!(matches!(huge, Err(Error::TooLarge { .. })));
    // What a buffer's usage does not allow is an error where it is asked for.
    let closed = Tensor::<u32>::from_buffer(
        context,
        app_buffer(context, 16, wgpu::BufferUsages::STORAGE),
        [4],
    )
    .unwrap();
    assert!(matches!(block_on(closed.read()), Err(Error::Gpu { .. })));
    assert!(matches!(closed.write(&[1; 4]), Err(Error::Gpu { .. })));
    // Two devices of one instance.
    let app = App::default();
    let open = || app.open(|_| ()).unwrap();
    let (one, other) = (open(), open());
    let foreign = Tensor::<u32>::from_buffer(&one, app_buffer(&other, 16, SHARED), [4]).map(drop);
    assert!(matches!(&foreign, Err(Error::Gpu { .. })), "{foreign:?}");
}

#[test]
fn a_recording_joins_an_apps_encoder() {
    let context = context();
    let y = Tensor::<u32>::zeros(context, [1000]).unwrap();
    let mut command = context.device().create_command_encoder(&Default::default());
    {
        let x = context.upload(&[7u32; 1000], [1000]).unwrap();
        let between = app_buffer(context, 4000, SHARED);
        let middle = Tensor::<u32>::from_buffer(context, between.clone(), [1000]).unwrap();
        let mut first = context.encoder("first");
        add(&mut first, &x, &middle, 1).unwrap();
        first.finish().encode(&mut command);
        // The app's own work between: it clears the second half.
        command.clear_buffer(&between, 2000, None);
        let mut second = context.encoder("second");
        add(&mut second, &middle, &y, 1).unwrap();
        second.finish().encode(&mut command);
    }
    // What was recorded is dropped; fresh tensors must not get its buffers before it has run.
    let others: Vec<_> = (0..8).map(|_| context.upload(&[99u32; 1000], [1000]).unwrap()).collect();
    context.queue().submit([command.finish()]);
    let got = block_on(y.read()).unwrap();
    assert!(got[..500].iter().all(|&v| v == 9) && got[500..].iter().all(|&v| v == 1), "{got:?}");
    drop(others);
}
