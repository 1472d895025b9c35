//! The rest of a transformer of the shape of BitNet b1.58 2B4T: embedding, norm, rotary positions,
//! attention, head, largest logits. The bytes are those that must be read and written.
//! `cargo bench -p bitnet-wgpu-benches --bench transformer`

use bitnet_wgpu::{
    Element,
    transformer::{
        self, AttentionShape, CachePositions, KvCache, RmsNorm, SampleOptions, SampleParams,
    },
    weights::DenseElement,
};
use criterion::{Criterion, criterion_group, criterion_main};
use support::{dense, floats, rng};
use timing::{bench, device};

const HIDDEN: usize = 2560;
const SHAPE: AttentionShape = AttentionShape { heads: 20, kv_heads: 5, head_dim: 128 };

/// Rows of the embedding; fewer where there is no GPU.
fn vocabulary() -> usize {
    if device().0.capabilities().software { 16_384 } else { 128_256 }
}

/// Tokens of a decoding step, and of a prompt.
fn token_counts() -> [usize; 2] {
    [1, if device().0.capabilities().software { 32 } else { 512 }]
}

fn attention(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "attention");
    let past = if context.capabilities().software { 512 } else { 4096 };
    for tokens in token_counts() {
        for element in [Element::F32, Element::F16]
            .into_iter()
            .filter(|&element| element == Element::F32 || context.capabilities().f16)
        {
            let capacity = past + tokens;
            let cache = KvCache::new(context, SHAPE, 1, capacity, element).expect("it fits");
            let runs = context.upload(&[0, past as u32], [1, 2]).expect("it fits");
            let new = CachePositions::new(&runs, tokens);
            let qkv = context
                .upload(&floats(&mut rng(1), tokens * SHAPE.row(), 1.0), [tokens, SHAPE.row()])
                .expect("it fits");
            let angles = transformer::rope_angles(&vec![0.5; SHAPE.head_dim / 2], capacity);
            let angles =
                context.upload(&angles, [capacity, SHAPE.head_dim / 2, 2]).expect("it fits");
            let y =
                context.upload(&vec![0f32; tokens * HIDDEN], [tokens, HIDDEN]).expect("it fits");
            let shape = format!("{tokens} after {past}");

            let mut encoder = context.encoder("rope");
            transformer::rope(&qkv, new, &angles, &cache).forward(&mut encoder).expect("it turns");
            let stored =
                2 * SHAPE.kv_heads * SHAPE.head_dim * if element == Element::F32 { 4 } else { 2 };
            bench(
                &mut group,
                &format!("rope {element:?}"),
                &shape,
                &encoder.finish(),
                1,
                tokens * (8 * SHAPE.row() + stored),
            );

            let mut encoder = context.encoder("attention");
            transformer::attention(&qkv, new, &cache)
                .max_len(capacity)
                .forward_into(&mut encoder, &y)
                .expect("it attends");
            let bytes = capacity * stored + tokens * 4 * (SHAPE.row() + HIDDEN);
            bench(
                &mut group,
                &format!("attention {element:?}"),
                &shape,
                &encoder.finish(),
                1,
                bytes,
            );
        }
    }
}

/// What a token passes before the first and after the last layer.
fn ends(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "ends");
    let vocabulary = vocabulary();
    for element in [DenseElement::Bf16, DenseElement::Int8] {
        let table =
            dense(&mut rng(1), element, vocabulary, HIDDEN).upload(context).expect("it fits");
        for tokens in token_counts() {
            let ids: Vec<u32> = (0..tokens).map(|i| (i * 7919 % vocabulary) as u32).collect();
            let ids = context.upload(&ids, [tokens]).expect("it fits");
            let mut encoder = context.encoder("embed");
            transformer::embed(&ids, &table).forward(&mut encoder).expect("it looks up");
            let bytes = tokens * HIDDEN * (element.bytes() + 4);
            bench(
                &mut group,
                &format!("embed {element:?}"),
                &tokens.to_string(),
                &encoder.finish(),
                1,
                bytes,
            );
        }
        let x = context.upload(&floats(&mut rng(1), HIDDEN, 1.0), [1, HIDDEN]).expect("it fits");
        let mut encoder = context.encoder("head");
        transformer::dense_gemv(&x, &table).forward(&mut encoder).expect("it multiplies");
        let shape = format!("{vocabulary}x{HIDDEN}");
        bench(
            &mut group,
            &format!("head {element:?}"),
            &shape,
            &encoder.finish(),
            1,
            vocabulary * HIDDEN * element.bytes(),
        );
    }
    let logits =
        context.upload(&floats(&mut rng(1), vocabulary, 9.0), [1, vocabulary]).expect("it fits");
    for k in [1, 64] {
        let mut encoder = context.encoder("top_k");
        transformer::top_k(&logits, k).forward(&mut encoder).expect("it chooses");
        bench(
            &mut group,
            &format!("top {k}"),
            &vocabulary.to_string(),
            &encoder.finish(),
            1,
            4 * vocabulary,
        );
    }
    let sequences = context.upload(&[0u32, 9], [1, 2]).expect("it fits");
    let new = CachePositions::new(&sequences, 1);
    let all = SampleOptions::default();
    for (name, options) in [
        ("sample", all),
        ("sample, top-p", all.top_p(0.9)),
        ("sample, top-k and top-p", all.top_k(40).top_p(0.9)),
    ] {
        let draws = SampleParams::new(context, &[(options, 1)]).expect("it fits");
        let mut encoder = context.encoder("sample");
        transformer::sample(&logits, new, &draws).forward(&mut encoder).expect("it chooses");
        bench(&mut group, name, &vocabulary.to_string(), &encoder.finish(), 1, 4 * vocabulary);
    }
    for tokens in token_counts() {
        let x = context
            .upload(&floats(&mut rng(1), tokens * HIDDEN, 1.0), [tokens, HIDDEN])
            .expect("it fits");
        let gain = context.upload(&vec![1f32; HIDDEN], [HIDDEN]).expect("it fits");
        let y = context.upload(&vec![0f32; tokens * HIDDEN], [tokens, HIDDEN]).expect("it fits");
        let mut encoder = context.encoder("norm");
        RmsNorm::new(&gain, 1e-5).forward_into(&mut encoder, &x, &y).expect("it normalises");
        bench(
            &mut group,
            "rms_norm",
            &format!("{tokens}x{HIDDEN}"),
            &encoder.finish(),
            1,
            (2 * tokens + 1) * 4 * HIDDEN,
        );
    }
}

criterion_group!(benches, ends, attention);
criterion_main!(benches);
