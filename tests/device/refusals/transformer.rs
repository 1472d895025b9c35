//! Layers of transformers, and choices of tokens.

use super::{assert_invalid, assert_shape, unwritten};
use bitnet_wgpu::{
    Element, Error, Out, Tensor,
    device::Capabilities,
    transformer::{
        self, Attended, AttentionShape, Draws, FlashAttentionOptions, HostKvCache, KvCache,
        NewTokens, Penalties, Qkv, SampleOptions, TopK,
    },
    weights::{DenseElement, PackedDense, PackedTernary, Scales},
};
use support::{context, dense, rng};

/// Half a step of rounding, not one: 126.5 and 125.5 of 127 go to the even neighbour, -0.6 to -1.
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
    assert_shape(transformer::embed_into(
        &mut encoder,
        &tokens,
        &table,
        &unwritten(context, [2, 5]),
    ));
    assert_shape(transformer::embed_into(
        &mut encoder,
        &tokens,
        &table,
        &unwritten(context, [3, 4]),
    ));
    let empty = dense(&mut rng(23), DenseElement::F32, 0, 4).upload(context).unwrap();
    assert_invalid(transformer::embed(&mut encoder, &tokens, &empty));
    let ternary = |rows: usize| {
        PackedTernary::from_values(rows, 4, &vec![1; 4 * rows], Scales::Tensor(1.0)).unwrap()
    };
    let (table, empty) = (ternary(9).upload(context).unwrap(), ternary(0).upload(context).unwrap());
    assert_shape(transformer::embed_ternary_into(
        &mut encoder,
        &tokens,
        &table,
        &unwritten(context, [2, 5]),
    ));
    assert_shape(transformer::embed_ternary_into(
        &mut encoder,
        &tokens,
        &table,
        &unwritten(context, [3, 4]),
    ));
    assert_invalid(transformer::embed_ternary(&mut encoder, &tokens, &empty));
    let runs = Tensor::<u32>::zeros(context, [3, 2]).unwrap();
    assert_invalid(transformer::embed_ternary_next_into(
        &mut encoder,
        &tokens,
        &runs,
        &table,
        &unwritten(context, [2, 4]),
    ));
    assert!(encoder.is_empty());
}

#[test]
fn dense_gemv_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let w = dense(&mut rng(25), DenseElement::Int8, 70, 20).upload(context).unwrap();
    assert_shape(transformer::dense_gemv(&mut encoder, &unwritten(context, [1, 32]), &w));
    assert_shape(transformer::dense_gemv_into(
        &mut encoder,
        &unwritten(context, [2, 20]),
        &w,
        &unwritten(context, [1, 70]),
    ));
    assert_shape(transformer::dense_gemv_into(
        &mut encoder,
        &unwritten(context, [2, 20]),
        &w,
        &unwritten(context, [2, 69]),
    ));
    assert!(encoder.is_empty());
    // Its grid has tokens in the second dimension, so it does not fold.
    let mut encoder =
        context.restricted(|c: &mut Capabilities| c.max_workgroups = 2).encoder("test");
    let result = transformer::dense_gemv(&mut encoder, &unwritten(context, [1, 20]), &w);
    assert!(matches!(result, Err(Error::Grid { grid: [3, 1, 1], .. })), "{result:?}");
    assert!(matches!(
        transformer::dense_gemv_cpu(&[0.0; 3], &dense(&mut rng(25), DenseElement::F32, 2, 2)),
        Err(Error::Length { .. })
    ));
}

#[test]
fn rms_norm_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let (x, gain) = (unwritten(context, [3, 8]), unwritten(context, [8]));
    assert_shape(transformer::rms_norm_into(
        &mut encoder,
        &x,
        0,
        &unwritten(context, [7]),
        1e-5,
        &unwritten(context, [3, 8]),
    ));
    assert_shape(transformer::rms_norm_into(
        &mut encoder,
        &x,
        0,
        &gain,
        1e-5,
        &unwritten(context, [3, 7]),
    ));
    assert_shape(transformer::rms_norm_into(
        &mut encoder,
        &x,
        1,
        &gain,
        1e-5,
        &unwritten(context, [3, 8]),
    ));
    assert_shape(transformer::rms_norm_into(
        &mut encoder,
        &x,
        4,
        &gain,
        1e-5,
        &unwritten(context, [0, 8]),
    ));
    assert!(matches!(
        transformer::rms_norm_cpu(&[0.0; 3], &[1.0; 2], 1e-5),
        Err(Error::Length { .. })
    ));
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
        let attended =
            transformer::attention_into(&mut encoder, qkv, &NewTokens { run, runs }, &cache, 1, &y);
        let turned = transformer::rope(&mut encoder, qkv, &NewTokens { run, runs }, angles, &cache);
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
    assert_shape(transformer::attention_into(
        &mut encoder,
        &qkv(1),
        &NewTokens { run: 1, runs: &runs(1) },
        &cache,
        1,
        &y,
    ));
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
    assert_invalid(transformer::attention_cpu(&vec![0.0; shape.row()], &host));
    assert!(matches!(transformer::attention_cpu(&[0.0; 3], &host), Err(Error::Length { .. })));
}

#[test]
fn rotate_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let x = unwritten(context, [2, 3]);
    let angles = unwritten(context, [4, 2, 2]);
    let heads = unwritten(context, [3, 2, 4]);
    assert_shape(transformer::rotate(&mut encoder, &x, &angles, 0));
    assert_shape(transformer::rotate(&mut encoder, &heads, &angles, 2));
    assert_shape(transformer::rotate(&mut encoder, &heads, &angles, usize::MAX));
    assert_shape(transformer::rotate_backward(
        &mut encoder,
        &heads,
        &unwritten(context, [4, 3, 2]),
        0,
    ));
    assert!(encoder.is_empty());
}

#[test]
fn top_k_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let logits = unwritten(context, [2, 9]);
    assert_invalid(transformer::top_k(&mut encoder, &logits, 0));
    assert_invalid(transformer::top_k(&mut encoder, &logits, TopK::MAX + 1));
    let top = |rows| TopK {
        logits: unwritten(context, [2, 3]),
        ids: context.upload(&vec![0u32; rows * 3], [rows, 3]).unwrap(),
    };
    assert_shape(transformer::top_k_into(&mut encoder, &logits, &top(1)));
    let top = TopK { logits: unwritten(context, [2, 2]), ..top(2) };
    assert_shape(transformer::top_k_into(&mut encoder, &logits, &top));
    assert!(encoder.is_empty());
}

#[test]
fn flash_attention_refuses_what_does_not_fit() {
    let context = context();
    let mut encoder = context.encoder("test");
    let plain = FlashAttentionOptions::default();
    let (q, kv, y) = (
        unwritten(context, [4, 3, 8]),
        unwritten(context, [2, 3, 8]),
        unwritten(context, [4, 3, 8]),
    );
    let (good, lse) = (Qkv { q: &q, k: &kv, v: &kv }, unwritten(context, [4, 3]));
    // Heads, tokens, head_dim, batch, rank; and a width that no kernel has.
    for shape in [[3, 3, 8], [0, 3, 8], [8, 3, 8], [2, 2, 8], [2, 3, 7]] {
        let odd = unwritten(context, shape);
        assert_shape(transformer::flash_attention(
            &mut encoder,
            Qkv { k: &odd, v: &odd, ..good },
            plain,
        ));
        assert_shape(transformer::flash_attention(&mut encoder, Qkv { v: &odd, ..good }, plain));
    }
    let (batch, flat) = (unwritten(context, [2, 2, 3, 8]), unwritten(context, [3, 8]));
    assert_shape(transformer::flash_attention(
        &mut encoder,
        Qkv { k: &batch, v: &batch, ..good },
        plain,
    ));
    assert_shape(transformer::flash_attention(&mut encoder, Qkv { q: &flat, ..good }, plain));
    for width in [0, 257] {
        let odd = unwritten(context, [2, 3, width]);
        assert_shape(transformer::flash_attention(
            &mut encoder,
            Qkv { q: &odd, k: &odd, v: &odd },
            plain,
        ));
    }
    let short = unwritten(context, [4, 2]);
    assert_shape(transformer::flash_attention_into(
        &mut encoder,
        good,
        plain,
        Attended { y: Out::set(&kv), lse: &lse },
    ));
    assert_shape(transformer::flash_attention_into(
        &mut encoder,
        good,
        plain,
        Attended { y: Out::set(&y), lse: &short },
    ));
    let attended = Attended { y: y.clone(), lse };
    let shorter = Attended { y: y.clone(), lse: short };
    assert_shape(transformer::flash_attention_backward(&mut encoder, good, &shorter, &y, plain));
    assert_shape(transformer::flash_attention_backward(
        &mut encoder,
        good,
        &Attended { y: kv.clone(), ..attended.clone() },
        &y,
        plain,
    ));
    assert_shape(transformer::flash_attention_backward(&mut encoder, good, &attended, &kv, plain));
    for odd in [0, 1, 2] {
        let [q, k, v] = [0, 1, 2].map(|i| Out::set(if (i == odd) == (i == 0) { &kv } else { &y }));
        assert_shape(transformer::flash_attention_backward_into(
            &mut encoder,
            good,
            &attended,
            &y,
            plain,
            Qkv { q, k, v },
        ));
    }
    assert!(encoder.is_empty());
    let bad = |qkv: Qkv<&[f32]>, dim| {
        assert!(matches!(
            transformer::flash_attention_cpu(qkv, dim, plain),
            Err(Error::Length { .. })
        ))
    };
    bad(Qkv { q: &[0.0; 4], k: &[0.0; 4], v: &[0.0; 6] }, 2);
    bad(Qkv { q: &[0.0; 3], k: &[0.0; 3], v: &[0.0; 3] }, 2);
    bad(Qkv { q: &[], k: &[], v: &[] }, 0);
    let (four, qkv) = (vec![0.0; 4], Qkv { q: &[0.0; 4][..], k: &[0.0; 4], v: &[0.0; 4] });
    let odd = transformer::flash_attention_backward_cpu(
        qkv,
        &Attended { y: four.clone(), lse: vec![0.0; 3] },
        &four,
        2,
        plain,
    );
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
        NewTokens { run: 1, runs: &runs },
        Draws::new(context, &[(options, 1), (options, 2)]).unwrap(),
    );
    assert_shape(transformer::sample(
        &mut encoder,
        &logits,
        &NewTokens { run: 1, runs: &list(2) },
        &draws,
    ));
    // Rows that are not as many of each run, or more than it has tokens.
    let (one, three) =
        (Tensor::uninit(context, [1, 2]).unwrap(), Tensor::uninit(context, [3, 2]).unwrap());
    assert_invalid(transformer::sample(
        &mut encoder,
        &logits,
        &NewTokens { run: 2, runs: &three },
        &draws,
    ));
    assert_invalid(transformer::sample(
        &mut encoder,
        &logits,
        &NewTokens { run: 1, runs: &one },
        &draws,
    ));
    assert_invalid(transformer::sample(
        &mut encoder,
        &logits,
        &NewTokens { run: 0, ..new },
        &draws,
    ));
    assert_invalid(transformer::sample(
        &mut encoder,
        &logits,
        &new,
        &Draws::new(context, &[]).unwrap(),
    ));
    assert_shape(transformer::sample_into(&mut encoder, &logits, &new, &draws, &table(1)));
    let wrong = [
        options.temperature(f32::NAN),
        options.temperature(-1.0),
        options.top_p(1.1),
        options.min_p(-0.1),
        options.top_p(f32::NAN),
    ];
    for wrong in wrong {
        assert_invalid(Draws::new(context, &[(options, 1), (wrong, 1)]));
        assert_invalid(transformer::sample_cpu(&[0.0], 0, 0, &wrong));
    }
    let (counts, biases, none) = (table(9), unwritten(context, [2, 9]), Penalties::NONE);
    let penalties = Penalties::upload(context, &[none; 2]).unwrap();
    assert_shape(transformer::penalize(
        &mut encoder,
        &logits,
        &list(3),
        &new,
        &counts,
        &biases,
        &penalties,
    ));
    assert_shape(transformer::penalize(
        &mut encoder,
        &logits,
        &tokens,
        &new,
        &table(8),
        &biases,
        &penalties,
    ));
    for biases in [unwritten(context, [2, 8]), unwritten(context, [3, 9]), unwritten(context, [9])]
    {
        assert_shape(transformer::penalize(
            &mut encoder,
            &logits,
            &tokens,
            &new,
            &counts,
            &biases,
            &penalties,
        ));
    }
    assert_shape(transformer::penalize(
        &mut encoder,
        &logits,
        &tokens,
        &new,
        &counts,
        &biases,
        &unwritten(context, [1, 4]),
    ));
    for wrong in [
        Penalties::new(0.0, 0.0, 0.0),
        Penalties::new(1.0, f32::NAN, 0.0),
        Penalties::new(1.0, 0.0, f32::INFINITY),
    ] {
        assert_invalid(Penalties::upload(context, &[none, wrong]));
    }
    let (twice, empty) =
        (NewTokens { run: 2, runs: &one }, Tensor::uninit(context, [0, 9]).unwrap());
    assert_invalid(transformer::penalize(
        &mut encoder,
        &logits,
        &tokens,
        &twice,
        &counts,
        &biases,
        &penalties,
    ));
    assert_invalid(transformer::penalize(
        &mut encoder,
        &logits,
        &tokens,
        &new,
        &empty,
        &biases,
        &penalties,
    ));
    assert_invalid(transformer::penalize_cpu(&mut [0.0; 3], 0, &mut [0; 2], &[0.0; 3], &none));
    assert!(encoder.is_empty());
}
