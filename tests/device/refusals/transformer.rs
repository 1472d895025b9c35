//! Layers of transformers, and choices of tokens.

use super::{assert_invalid, assert_shape, unwritten};
use bitnet_wgpu::{
    Element, Error, Out, Tensor,
    device::Capabilities,
    reference,
    transformer::{
        self, AttentionShape, CachePositions, HostKvCache, KvCache, LogitMasks, Penalizer,
        Penalties, RmsNorm, RotaryEmbedding, SampleOptions, SampleParams, TopK, flash_attention,
    },
    weights::{DenseElement, PackedDense, PackedTernary, Scales},
};
use support::{context, dense, rng};

/// Half a step of rounding, not one: 126.5 and 125.5 of 127 go to the even neighbor, -0.6 to -1.
#[test]
fn a_head_in_8_bits_is_rounded() {
    let table =
        PackedDense::from_f32(1, 6, &[127.0, 126.5, 125.5, -0.6, 0.4, -127.0]).unwrap().quantize();
    assert_eq!(table.row(0), [127.0, 126.0, 126.0, -1.0, 0.0, -127.0]);
    // Rows without columns take no bytes of the file; as many as these would take terabytes of
    // scales.
    assert!(matches!(PackedDense::from_f32(1 << 40, 0, &[]), Err(Error::Invalid { .. })));
}

#[test]
fn embed_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let tokens = context.upload(&[0u32, 0], [2]).unwrap();
    let table = dense(&mut rng(23), DenseElement::F32, 3, 4).upload(context).unwrap();
    assert_shape(
        transformer::embed(&tokens, &table).forward_into(&mut encoder, &unwritten(context, [2, 5])),
    );
    assert_shape(
        transformer::embed(&tokens, &table).forward_into(&mut encoder, &unwritten(context, [3, 4])),
    );
    let empty = dense(&mut rng(23), DenseElement::F32, 0, 4).upload(context).unwrap();
    assert_invalid(transformer::embed(&tokens, &empty).forward(&mut encoder));
    let ternary = |rows: usize| {
        PackedTernary::from_values(rows, 4, &vec![1; 4 * rows], Scales::Tensor(1.0)).unwrap()
    };
    let (table, empty) = (ternary(9).upload(context).unwrap(), ternary(0).upload(context).unwrap());
    assert_shape(
        transformer::embed(&tokens, &table).forward_into(&mut encoder, &unwritten(context, [2, 5])),
    );
    assert_shape(
        transformer::embed(&tokens, &table).forward_into(&mut encoder, &unwritten(context, [3, 4])),
    );
    assert_invalid(transformer::embed(&tokens, &empty).forward(&mut encoder));
    let runs = Tensor::<u32>::zeros(context, [3, 2]).unwrap();
    assert_invalid(
        transformer::embed(&tokens, &table)
            .advance(&runs)
            .forward_into(&mut encoder, &unwritten(context, [2, 4])),
    );
    assert!(encoder.is_empty());
}

#[test]
fn dense_gemv_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let w = dense(&mut rng(25), DenseElement::Int8, 70, 20).upload(context).unwrap();
    assert_shape(transformer::dense_gemv(&unwritten(context, [1, 32]), &w).forward(&mut encoder));
    assert_shape(
        transformer::dense_gemv(&unwritten(context, [2, 20]), &w)
            .forward_into(&mut encoder, &unwritten(context, [1, 70])),
    );
    assert_shape(
        transformer::dense_gemv(&unwritten(context, [2, 20]), &w)
            .forward_into(&mut encoder, &unwritten(context, [2, 69])),
    );
    assert!(encoder.is_empty());
    // Its grid has tokens in the second dimension, so it does not fold.
    let mut encoder =
        context.restricted(|c: &mut Capabilities| c.max_workgroups = 2).encoder("test");
    let result = transformer::dense_gemv(&unwritten(context, [1, 20]), &w).forward(&mut encoder);
    let Err(Error::DeviceUnsupported { what }) = &result else { panic!("{result:?}") };
    assert!(what.contains("a grid of 3 × 1 × 1 workgroups"), "{what}");
    assert!(matches!(
        reference::dense_gemv(&[0.0; 3], &dense(&mut rng(25), DenseElement::F32, 2, 2)),
        Err(Error::Length { .. })
    ));
}

#[test]
fn rms_norm_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, gain) = (unwritten(context, [3, 8]), unwritten(context, [8]));
    let (norm, out) = (RmsNorm::new(&gain, 1e-5), |rows, k| unwritten(context, [rows, k]));
    let short = unwritten(context, [7]);
    assert_shape(RmsNorm::new(&short, 1e-5).forward_into(&mut encoder, &x, &out(3, 8)));
    assert_shape(norm.forward_into(&mut encoder, &x, &out(3, 7)));
    assert_shape(norm.skip_rows(1).forward_into(&mut encoder, &x, &out(3, 8)));
    assert_shape(norm.skip_rows(4).forward_into(&mut encoder, &x, &out(0, 8)));
    assert_invalid(norm.skip_rows(1).backward(&mut encoder, &x, &x));
    assert!(encoder.is_empty());
    let rest = norm.skip_rows(1).forward(&mut encoder, &x).unwrap();
    assert_eq!(rest.shape().dims(), [2, 8]);
    assert!(matches!(reference::rms_norm(&[0.0; 3], &[1.0; 2], 1e-5), Err(Error::Length { .. })));
}

#[test]
fn rope_and_attention_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 6 };
    let cache = KvCache::new(context, shape, 3, 5, Element::F32).unwrap();
    let runs = |n: usize| context.upload(&vec![0u32; 2 * n], [n, 2]).unwrap();
    let qkv = |tokens: usize| unwritten(context, [tokens, shape.row()]);
    let angles = unwritten(context, [5, 3, 2]);
    let mut rope = |qkv: &Tensor<f32>, run, runs: &Tensor<u32>, angles: &Tensor<f32>| {
        let y = unwritten(context, [qkv.shape().as_matrix().0, 24]);
        let attended = transformer::attention(qkv, CachePositions::new(runs, run), &cache)
            .max_len(1)
            .forward_into(&mut encoder, &y);
        let turned = transformer::rope(qkv, CachePositions::new(runs, run), angles, &cache)
            .forward(&mut encoder);
        if turned.is_ok() { attended } else { turned }
    };
    rope(&qkv(2), 1, &runs(2), &angles).unwrap();
    rope(&qkv(4), 2, &runs(2), &angles).unwrap();
    assert_shape(rope(&unwritten(context, [2, shape.row() + 1]), 1, &runs(2), &angles));
    assert_shape(rope(&qkv(1), 1, &context.upload(&[0u32; 2], [2]).unwrap(), &angles));
    assert_shape(rope(&qkv(1), 1, &runs(1), &unwritten(context, [4, 3, 2])));
    assert_invalid(rope(&qkv(3), 2, &runs(1), &angles));
    assert_invalid(rope(&qkv(3), 0, &runs(3), &angles));
    assert_invalid(rope(&qkv(1), usize::MAX, &runs(3), &angles));
    assert_invalid(rope(&qkv(4), 1, &runs(4), &angles));
    let y = unwritten(context, [1, 23]);
    assert_shape(
        transformer::attention(&qkv(1), CachePositions::new(&runs(1), 1), &cache)
            .max_len(1)
            .forward_into(&mut encoder, &y),
    );
    for (heads, kv_heads, head_dim) in
        [(3, 2, 8), (2, 0, 8), (0, 1, 8), (2, 1, 7), (2, 1, 0), (2, 1, 258)]
    {
        let shape = AttentionShape { heads, kv_heads, head_dim };
        assert_invalid(KvCache::new(context, shape, 1, 4, Element::F32));
        assert_invalid(HostKvCache::new(shape));
    }
    assert_invalid(KvCache::new(context, shape, 1, 4, Element::U32));
    for (slots, capacity) in [(usize::MAX, 4), (1, usize::MAX)] {
        let cache = KvCache::new(context, shape, slots, capacity, Element::F32);
        assert!(matches!(cache, Err(Error::TooLarge { .. })), "{cache:?}");
    }
    let host = HostKvCache::new(shape).unwrap();
    assert_invalid(reference::attention(&vec![0.0; shape.row()], &host));
    assert!(matches!(reference::attention(&[0.0; 3], &host), Err(Error::Length { .. })));
}

#[test]
fn rotate_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let x = unwritten(context, [2, 3]);
    let angles = unwritten(context, [4, 2, 2]);
    let heads = unwritten(context, [3, 2, 4]);
    assert_shape(RotaryEmbedding::new(&angles).forward(&mut encoder, &x));
    assert_shape(RotaryEmbedding::new(&angles).start(2).forward(&mut encoder, &heads));
    assert_shape(RotaryEmbedding::new(&angles).start(usize::MAX).forward(&mut encoder, &heads));
    assert_shape(
        RotaryEmbedding::new(&unwritten(context, [4, 3, 2])).backward(&mut encoder, &heads),
    );
    assert!(encoder.is_empty());
}

#[test]
fn top_k_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let logits = unwritten(context, [2, 9]);
    assert_invalid(transformer::top_k(&logits, 0).forward(&mut encoder));
    assert_invalid(transformer::top_k(&logits, TopK::MAX + 1).forward(&mut encoder));
    let ids = |rows: usize| Tensor::<u32>::uninit(context, [rows, 3]).unwrap();
    let (top, narrow) = (unwritten(context, [2, 3]), unwritten(context, [2, 2]));
    let op = transformer::top_k(&logits, 3);
    assert_shape(op.forward_into(&mut encoder, &top, &ids(1)));
    assert_shape(op.forward_into(&mut encoder, &narrow, &ids(2)));
    assert!(encoder.is_empty());
}

#[test]
fn flash_attention_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (q, kv, y) = (
        unwritten(context, [4, 3, 8]),
        unwritten(context, [2, 3, 8]),
        unwritten(context, [4, 3, 8]),
    );
    let (good, lse) = (flash_attention(&q, &kv, &kv), unwritten(context, [4, 3]));
    // Heads, tokens, head_dim, batch, rank; and a width that no kernel has.
    for shape in [[3, 3, 8], [0, 3, 8], [8, 3, 8], [2, 2, 8], [2, 3, 7]] {
        let odd = unwritten(context, shape);
        assert_shape(flash_attention(&q, &odd, &odd).forward(&mut encoder));
        assert_shape(flash_attention(&q, &kv, &odd).forward(&mut encoder));
    }
    let (batch, flat) = (unwritten(context, [2, 2, 3, 8]), unwritten(context, [3, 8]));
    assert_shape(flash_attention(&q, &batch, &batch).forward(&mut encoder));
    assert_shape(flash_attention(&flat, &kv, &kv).forward(&mut encoder));
    for width in [0, 257] {
        let odd = unwritten(context, [2, 3, width]);
        assert_shape(flash_attention(&odd, &odd, &odd).forward(&mut encoder));
    }
    let short = unwritten(context, [4, 2]);
    assert_shape(good.forward_into(&mut encoder, &kv, &lse));
    assert_shape(good.forward_into(&mut encoder, &y, &short));
    assert_shape(good.backward(&mut encoder, &y, &short, &y));
    assert_shape(good.backward(&mut encoder, &kv, &lse, &y));
    assert_shape(good.backward(&mut encoder, &y, &lse, &kv));
    for odd in [0, 1, 2] {
        let [q, k, v] = [0, 1, 2].map(|i| Out::set(if (i == odd) == (i == 0) { &kv } else { &y }));
        assert_shape(good.backward_into(&mut encoder, &y, &lse, &y, (q, k, v)));
    }
    assert!(encoder.is_empty());
    let bad = |qkv: [&[f32]; 3], dim| {
        let result = reference::flash_attention(qkv, dim, false, None);
        assert!(matches!(result, Err(Error::Length { .. })));
    };
    bad([&[0.0; 4], &[0.0; 4], &[0.0; 6]], 2);
    bad([&[0.0; 3], &[0.0; 3], &[0.0; 3]], 2);
    bad([&[], &[], &[]], 0);
    let four = &[0.0; 4][..];
    let odd =
        reference::flash_attention_backward([four; 3], (four, &[0.0; 3]), four, 2, false, None);
    assert!(matches!(odd, Err(Error::Length { .. })), "{odd:?}");
}

#[test]
fn choices_of_tokens_refuse_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (logits, list) =
        (unwritten(context, [2, 9]), |len: usize| Tensor::<u32>::uninit(context, [len]).unwrap());
    let table = |columns: usize| Tensor::<u32>::uninit(context, [2, columns]).unwrap();
    let (runs, tokens, options) = (table(2), list(2), SampleOptions::default());
    let (new, draws) = (
        CachePositions::new(&runs, 1),
        SampleParams::new(context, &[(options, 1), (options, 2)]).unwrap(),
    );
    assert_shape(
        transformer::sample(&logits, CachePositions::new(&list(2), 1), &draws)
            .forward(&mut encoder),
    );
    // Rows that are not as many of each run, or more than it has tokens.
    let (one, three) =
        (Tensor::uninit(context, [1, 2]).unwrap(), Tensor::uninit(context, [3, 2]).unwrap());
    assert_invalid(
        transformer::sample(&logits, CachePositions::new(&three, 2), &draws).forward(&mut encoder),
    );
    assert_invalid(
        transformer::sample(&logits, CachePositions::new(&one, 1), &draws).forward(&mut encoder),
    );
    assert_invalid(
        transformer::sample(&logits, CachePositions::new(&runs, 0), &draws).forward(&mut encoder),
    );
    assert_invalid(
        transformer::sample(&logits, new, &SampleParams::new(context, &[]).unwrap())
            .forward(&mut encoder),
    );
    assert_shape(transformer::sample(&logits, new, &draws).forward_into(&mut encoder, &table(1)));
    let wrong = [
        options.temperature(f32::NAN),
        options.temperature(-1.0),
        options.top_p(1.1),
        options.min_p(-0.1),
        options.top_p(f32::NAN),
    ];
    for wrong in wrong {
        assert_invalid(SampleParams::new(context, &[(options, 1), (wrong, 1)]));
        assert_invalid(reference::sample(&[0.0], 0, 0, &wrong));
    }
    let (counts, biases, none) = (table(9), unwritten(context, [2, 9]), Penalties::NONE);
    let penalties = Penalties::upload(context, &[none; 2]).unwrap();
    assert_shape(Penalizer::new(&penalties, &biases, &counts).forward(
        &mut encoder,
        &logits,
        &list(3),
        new,
    ));
    assert_shape(Penalizer::new(&penalties, &biases, &table(8)).forward(
        &mut encoder,
        &logits,
        &tokens,
        new,
    ));
    for biases in [unwritten(context, [2, 8]), unwritten(context, [3, 9]), unwritten(context, [9])]
    {
        assert_shape(Penalizer::new(&penalties, &biases, &counts).forward(
            &mut encoder,
            &logits,
            &tokens,
            new,
        ));
    }
    assert_shape(Penalizer::new(&unwritten(context, [1, 4]), &biases, &counts).forward(
        &mut encoder,
        &logits,
        &tokens,
        new,
    ));
    for wrong in [none.repetition(0.0), none.presence(f32::NAN), none.frequency(f32::INFINITY)] {
        assert_invalid(Penalties::upload(context, &[none, wrong]));
    }
    let (twice, empty) = (CachePositions::new(&one, 2), Tensor::uninit(context, [0, 9]).unwrap());
    assert_invalid(Penalizer::new(&penalties, &biases, &counts).forward(
        &mut encoder,
        &logits,
        &tokens,
        twice,
    ));
    assert_invalid(Penalizer::new(&penalties, &biases, &empty).forward(
        &mut encoder,
        &logits,
        &tokens,
        new,
    ));
    assert_invalid(reference::penalize(&mut [0.0; 3], 0, &mut [0; 2], &[0.0; 3], &none));
    for masks in [list(1), Tensor::uninit(context, [0, 1]).unwrap()] {
        assert_shape(LogitMasks::new(&masks).forward(&mut encoder, &logits, new));
    }
    assert_invalid(LogitMasks::new(&table(1)).forward(&mut encoder, &logits, twice));
    assert!(encoder.is_empty());
}

#[test]
fn route_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let logits = unwritten(context, [2, 9]);
    for used in [0, 10, 17] {
        assert_invalid(transformer::route(&logits, used).forward(&mut encoder));
    }
    assert_invalid(transformer::route(&unwritten(context, [1, 513]), 2).forward(&mut encoder));
    assert_invalid(transformer::route(&unwritten(context, [2, 0]), 1).forward(&mut encoder));
    let chosen = |rows: usize| Tensor::<u32>::uninit(context, [rows, 3]).unwrap();
    let op = transformer::route(&logits, 3);
    assert_shape(op.forward_into(&mut encoder, &chosen(1), &unwritten(context, [2, 3])));
    assert_shape(op.forward_into(&mut encoder, &chosen(2), &unwritten(context, [2, 2])));
    assert!(encoder.is_empty());
}
