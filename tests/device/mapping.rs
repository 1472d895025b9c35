//! `Tensor::map` and `Tensor::map_mut`: in place where memory is shared, with copies elsewhere.

use bitnet_wgpu::{
    Context, ContextOptions, Error, ErrorKind, Result, Tensor,
    internals::Residency,
    tensor::{self, ElementType, f16},
    wgpu,
};
use std::{
    fmt::Debug,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Context as Wakeup, Poll, Waker},
};
use support::{block_on, rng};

fn open() -> Context {
    block_on(Context::open(ContextOptions::default())).unwrap()
}

/// Contexts whose tensors are mapped by copies, and in place where they can be.
fn both() -> Vec<Context> {
    let context = open();
    let copied = context.restricted(|capabilities| {
        capabilities.maps_in_place = false;
        capabilities.writes_in_place = false;
    });
    if context.capabilities().maps_in_place { vec![copied, context] } else { vec![copied] }
}

fn refused<R>(result: Result<R>) -> bool {
    matches!(result, Err(Error::Invalid { what, .. }) if what.contains("is mapped until"))
}

#[test]
fn mapped_contents_are_those_that_are_read() {
    fn check<T: ElementType + PartialEq + Debug>(context: &Context, number: impl Fn(usize) -> T) {
        for len in [0, 1, 3, 7, 4096, 70_001] {
            let data: Vec<T> = (0..len).map(&number).collect();
            let x = context.upload(&data, [len]).unwrap();
            assert!(block_on(x.map(|x| x == data)).unwrap(), "{len} read");
            let changed = |x: &mut [T]| {
                assert!(x == data, "{len} before");
                x.reverse();
            };
            block_on(x.map_mut(changed)).unwrap();
            let expected: Vec<T> = data.iter().rev().copied().collect();
            assert!(block_on(x.read()).unwrap() == expected, "{len} written");
            let copy = x.duplicate().unwrap();
            assert!(block_on(copy.map(|x| x == expected)).unwrap(), "{len} copied");
        }
    }
    for context in both() {
        let mut random = rng(5);
        let seed: u32 = rand::RngExt::random(&mut random);
        check(&context, |n| seed.wrapping_mul(n as u32 + 1));
        check(&context, |n| (n as u32 ^ seed) as i8);
        check(&context, |n| f16::from_bits((n as u32 + seed) as u16 & 0x3bff));
    }
}

#[test]
fn kernels_and_the_processor_take_turns() {
    for context in both() {
        let x = Tensor::<f32>::uninit(&context, [3, 1000]).unwrap();
        block_on(x.map_mut(|x| x.fill(1.0))).unwrap();
        let mut encoder = context.encoder("doubled");
        let y = tensor::add(&x, &x).forward(&mut encoder).unwrap();
        let recording = encoder.finish();
        for round in 0..20 {
            let expected = 2.0 * (1.0 + round as f32);
            recording.submit().unwrap();
            assert!(block_on(y.map(|y| y.iter().all(|&y| y == expected))).unwrap(), "{round}");
            // The same memory under another shape.
            let flat = x.reshape([3000]).unwrap();
            block_on(flat.map_mut(|x| x.iter_mut().for_each(|x| *x += 1.0))).unwrap();
        }
    }
}

#[test]
fn mapping_waits_for_submitted_work() {
    for context in both() {
        let ones = vec![1u32; 1 << 20];
        let (x, one) =
            (context.upload(&ones, [1 << 20]).unwrap(), context.upload(&ones, [1 << 20]).unwrap());
        let mut encoder = context.encoder("long");
        for _ in 0..100 {
            crate::runtime::add(&mut encoder, &x, &one, 1).unwrap();
            crate::runtime::add(&mut encoder, &one, &x, 0).unwrap();
        }
        encoder.submit().unwrap();
        assert!(block_on(x.map(|x| x.iter().all(|&x| x == 101))).unwrap());
        let mut encoder = context.encoder("long");
        for _ in 0..100 {
            crate::runtime::add(&mut encoder, &x, &one, 1).unwrap();
            crate::runtime::add(&mut encoder, &one, &x, 0).unwrap();
        }
        encoder.submit().unwrap();
        block_on(x.map_mut(|x| x.iter_mut().for_each(|x| *x *= 2))).unwrap();
        assert!(block_on(x.read()).unwrap().iter().all(|&x| x == 402));
    }
}

#[test]
fn work_on_a_mapped_tensor_is_refused() {
    let context = open();
    if !context.capabilities().maps_in_place {
        return;
    }
    let x = context.upload(&[1u32, 2, 3], [3]).unwrap();
    let y = Tensor::<u32>::zeros(&context, [3]).unwrap();
    let mut encoder = context.encoder("add");
    crate::runtime::add(&mut encoder, &x, &y, 10).unwrap();
    let recording = encoder.finish();
    let inside = |x_now: &[u32]| {
        assert!(refused(x.write(&[9, 9, 9])));
        assert!(refused(recording.submit()));
        assert!(refused(recording.submit_read(&y).map(drop)));
        assert!(refused(block_on(x.clone().read())));
        assert!(refused(block_on(x.reshape([1, 3]).unwrap().map(|_| ()))));
        assert!(refused(block_on(x.map_mut(|_| ()))));
        assert!(refused(x.duplicate().map(drop)));
        // An app's own work is refused by wgpu.
        let errors = context.device().push_error_scope(wgpu::ErrorFilter::Validation);
        let mut own = context.device().create_command_encoder(&Default::default());
        own.clear_buffer(x.buffer(), 0, None);
        context.queue().submit([own.finish()]);
        assert!(block_on(errors.pop()).is_some());
        // Other tensors are not concerned.
        assert_eq!(block_on(y.read()).unwrap(), [0, 0, 0]);
        x_now.to_vec()
    };
    assert_eq!(block_on(x.map(inside)).unwrap(), [1, 2, 3]);
    recording.submit().unwrap();
    assert_eq!(block_on(y.map(|y| y.to_vec())).unwrap(), [11, 12, 13]);
}

#[test]
fn dropped_and_panicking_maps_end() {
    for context in both() {
        let x = context.upload(&[1u32, 2, 3], [3]).unwrap();
        for _ in 0..100 {
            // The future may go to another thread.
            let map: Box<dyn Future<Output = Result<usize>> + Send> = Box::new(x.map(|x| x.len()));
            let mut map = Box::into_pin(map);
            // Pending or done, by how fast the device is.
            let polled = map.as_mut().poll(&mut Wakeup::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending | Poll::Ready(Ok(3))));
        }
        let writes = || {
            block_on(x.map_mut(|x| {
                x[0] = 7;
                panic!("half-way")
            }))
        };
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let panicked = catch_unwind(AssertUnwindSafe(writes)).is_err();
        std::panic::set_hook(quiet);
        assert!(panicked);
        x.write(&[4, 5, 6]).unwrap();
        assert_eq!(block_on(x.map(|x| x.to_vec())).unwrap(), [4, 5, 6]);
    }
}

#[test]
fn unwritten_tensors_are_written_by_mapping() {
    for context in both() {
        let x = Tensor::<f32>::uninit(&context, [5]).unwrap();
        assert!(matches!(block_on(x.map(|_| ())), Err(Error::Invalid { .. })));
        block_on(x.map_mut(|x| x.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0]))).unwrap();
        assert_eq!(block_on(x.read()).unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}

#[test]
fn checked_submissions_can_be_mapped() {
    for context in both() {
        context.check_submissions().unwrap();
        let x = context.upload(&[3f32, 4.0], [2]).unwrap();
        let mut encoder = context.encoder("squares");
        let y = tensor::mul(&x, &x).forward(&mut encoder).unwrap();
        encoder.submit().unwrap();
        assert_eq!(block_on(y.map(|y| y.to_vec())).unwrap(), [9.0, 16.0]);
    }
}

#[test]
fn own_buffers_are_mapped_by_their_usage() {
    use wgpu::BufferUsages as Usage;
    let context = open();
    let storage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
    let own = |usage| {
        let descriptor =
            wgpu::BufferDescriptor { label: None, size: 40, usage, mapped_at_creation: false };
        Tensor::<f32>::from_buffer(&context, context.device().create_buffer(&descriptor), [9])
            .unwrap()
    };
    let mut tensors = vec![own(storage)];
    if context.capabilities().maps_in_place {
        tensors.extend([own(storage | Usage::MAP_WRITE), own(storage | Usage::MAP_READ)]);
        tensors.push(own(storage | Usage::MAP_READ | Usage::MAP_WRITE));
        assert_eq!(tensors[3].residency(), Residency::Shared);
    }
    for x in tensors {
        block_on(x.map_mut(|x| x.fill(2.5))).unwrap();
        assert!(block_on(x.map(|x| x == [2.5; 9])).unwrap());
    }
}

#[test]
fn a_lost_device_is_an_error_of_mapping() {
    for context in both() {
        let x = context.upload(&[1u32; 4], [4]).unwrap();
        context.device().destroy();
        assert_eq!(block_on(x.map(|_| ())).unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(block_on(x.map_mut(|_| ())).unwrap_err().kind(), ErrorKind::Lost);
    }
}
