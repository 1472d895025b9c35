//! Optimisers' steps.

use super::{assert_shape, unwritten};
use bitnet_wgpu::{Error, optimizer};
use support::context;

#[test]
fn steps_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, row) = (unwritten(context, [2, 3]), unwritten(context, [3]));
    let state = optimizer::AdamWState::new(context, [2, 3]).unwrap();
    assert_shape(optimizer::adamw(&mut encoder, optimizer::AdamW::new(0.1), 1, &x, &row, &state));
    assert!(matches!(
        optimizer::adamw(&mut encoder, optimizer::AdamW::new(0.1), 0, &x, &x, &state),
        Err(Error::Invalid { .. })
    ));
    assert_shape(optimizer::sgd(&mut encoder, optimizer::Sgd::new(0.1), &x, &x, &row));
    assert_shape(optimizer::lion(&mut encoder, optimizer::Lion::new(0.1), &x, &row, &x));
    assert_shape(optimizer::ema(&mut encoder, &x, &row, 0.9));
    assert!(matches!(
        optimizer::clip_gradients::<f32>(&mut encoder, &[], 1.0),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        optimizer::clip_gradients(&mut encoder, &[&x], 0.0),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        optimizer::clip_gradients_cpu::<f32>(&mut [], 1.0),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        optimizer::clip_gradients_cpu(&mut [&mut [1.0]], f32::NAN),
        Err(Error::Invalid { .. })
    ));
    assert!(encoder.is_empty());
}
