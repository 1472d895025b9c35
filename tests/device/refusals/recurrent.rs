//! Ops of recurrent layers.

use super::{assert_invalid, assert_shape, unwritten};
use bitnet_wgpu::{
    Tensor,
    recurrent::{self, DeltaRates, DeltaShape},
    transformer::CachePositions,
};
use support::context;

const SHAPE: DeltaShape = DeltaShape {
    key_heads: 2,
    value_heads: 4,
    key_dim: 3,
    value_dim: 5,
    tiled: false,
    regrouped: false,
};

#[test]
fn short_convolutions_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let runs = Tensor::<u32>::zeros(context, [1, 2]).unwrap();
    let mut conv = |x: [usize; 2], run, weights: [usize; 2], state: [usize; 3]| {
        let (x, weights, state) =
            (unwritten(context, x), unwritten(context, weights), unwritten(context, state));
        let op = recurrent::short_conv(&x, CachePositions::new(&runs, run), &weights, &state);
        op.forward(&mut encoder).map(drop)
    };
    assert_shape(conv([3, 7], 3, [8, 4], [1, 3, 8]));
    assert_shape(conv([3, 8], 3, [8, 4], [1, 4, 8]));
    assert_shape(conv([3, 8], 3, [8, 4], [0, 3, 8]));
    assert_invalid(conv([3, 8], 2, [8, 4], [1, 3, 8]));
    assert_invalid(conv([3, 8], 3, [8, 0], [1, 3, 8]));
    assert!(encoder.is_empty());
}

#[test]
fn delta_rules_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let runs = Tensor::<u32>::zeros(context, [1, 2]).unwrap();
    let mut rule = |shape: DeltaShape, tokens, heads, sequences| {
        let mixed = unwritten(context, [tokens, SHAPE.mixed()]);
        let (rate, head) = (unwritten(context, [tokens, heads]), unwritten(context, [heads]));
        let rates = DeltaRates { alpha: &rate, beta: &rate, dt_bias: &head, decay: &head };
        let state = unwritten(context, [sequences, 4, 3, 5]);
        let positions = CachePositions::new(&runs, 3);
        let op = recurrent::gated_delta(shape, &mixed, rates, positions, &state);
        op.forward(&mut encoder).map(drop)
    };
    assert_shape(rule(SHAPE, 3, 3, 1));
    assert_shape(rule(SHAPE, 3, 4, 0));
    assert_shape(rule(DeltaShape { key_dim: 4, ..SHAPE }, 3, 4, 1));
    assert_invalid(rule(SHAPE, 2, 4, 1));
    for shape in [
        DeltaShape { key_heads: 3, ..SHAPE },
        DeltaShape { key_heads: 0, ..SHAPE },
        DeltaShape { key_dim: 257, ..SHAPE },
        DeltaShape { value_dim: 0, ..SHAPE },
        DeltaShape { value_heads: 1 << 17, ..SHAPE },
    ] {
        assert_invalid(rule(shape, 3, 4, 1));
    }
    assert!(encoder.is_empty());
}

#[test]
fn gates_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, gain) = (unwritten(context, [3, 20]), unwritten(context, [5]));
    for (shape, gates) in
        [(SHAPE, [3, 19]), (SHAPE, [2, 20]), (DeltaShape { value_dim: 4, ..SHAPE }, [3, 20])]
    {
        let gates = unwritten(context, gates);
        assert_shape(recurrent::gated_norm(shape, &x, (&gain, 1e-5), &gates).forward(&mut encoder));
    }
    assert_shape(recurrent::output_gate(&mut encoder, &x, &unwritten(context, [3, 19])));
    assert!(encoder.is_empty());
}
