//! Optimizers' steps.

use super::{assert_shape, unwritten};
use bitnet_wgpu::{
    Error,
    optimizer::{AdamW, AdamWState, Ema, Lion, Sgd, clip_gradients},
    reference,
};
use support::context;

#[test]
fn steps_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, row) = (unwritten(context, [2, 3]), unwritten(context, [3]));
    let state = AdamWState::new(context, [2, 3]).unwrap();
    assert_shape(AdamW::new(0.1).step(&mut encoder, 1, &x, &row, &state));
    assert!(matches!(
        AdamW::new(0.1).step(&mut encoder, 0, &x, &x, &state),
        Err(Error::Invalid { .. })
    ));
    assert_shape(Sgd::new(0.1).step(&mut encoder, &x, &x, &row));
    assert_shape(Lion::new(0.1).step(&mut encoder, &x, &row, &x));
    assert_shape(Ema::new(0.9).step(&mut encoder, &x, &row));
    assert!(matches!(
        clip_gradients::<f32>(&[], 1.0).forward(&mut encoder),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(clip_gradients(&[&x], 0.0).forward(&mut encoder), Err(Error::Invalid { .. })));
    assert!(matches!(reference::clip_gradients::<f32>(&mut [], 1.0), Err(Error::Invalid { .. })));
    assert!(matches!(
        reference::clip_gradients(&mut [&mut [1.0]], f32::NAN),
        Err(Error::Invalid { .. })
    ));
    assert!(encoder.is_empty());
}
