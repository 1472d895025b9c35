//! What a decoding step of BitNet b1.58 2B4T is made of, one token, and the linear layers of
//! Ternary-Bonsai's. `cargo bench -p bitnet-wgpu-benches --bench decoding`

use bitnet_wgpu::bitnet::{ActivationType, BitLinear};
use bitnet_wgpu::{
    Element, Tensor,
    bitnet::Gate,
    transformer::{self, AttentionShape, CachePositions, KvCache},
    weights::Scales,
};
use criterion::{Criterion, criterion_group, criterion_main};
use support::{floats, rng, ternary, ternary_with};
use timing::{LAYERS, bench, device};

/// Norm, quantizer and BitLinear in one dispatch; gate + up with their gate. Copies of
/// the matrix take turns, enough of them that no cache holds them all.
fn norm_bitlinear(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "norm_bitlinear");
    let beyond_caches = if context.capabilities().software { 64 << 20 } else { 384 << 20 };
    for (rows, columns) in LAYERS {
        let w = ternary(&mut rng(1), rows, columns);
        let copies = (beyond_caches / (4 * w.words().len())).max(1);
        let matrices: Vec<_> = (0..copies).map(|_| w.upload(context).expect("it fits")).collect();
        let x = context.upload(&floats(&mut rng(1), columns, 2.0), [1, columns]).expect("it fits");
        let gain = context.upload(&floats(&mut rng(2), columns, 2.0), [columns]).expect("it fits");
        let (y, gated) =
            (Tensor::<f32>::zeros(context, [1, rows]).expect("it fits"), rows > 2 * columns);
        let half = Tensor::<f32>::zeros(context, [1, rows / 2]).expect("it fits");
        for (name, norm) in [("normalised", Some((&gain, 1e-5))), ("quantised only", None)] {
            let mut encoder = context.encoder("norm_bitlinear");
            for w in &matrices {
                match gated {
                    true => BitLinear::new(w).norm(norm).gate(Gate::Relu2).forward_into(
                        &mut encoder,
                        &x,
                        &half,
                    ),
                    false => BitLinear::new(w).norm(norm).forward_into(&mut encoder, &x, &y),
                }
                .expect("it multiplies");
            }
            bench(
                &mut group,
                name,
                &format!("{rows}x{columns}"),
                &encoder.finish(),
                copies,
                matrices[0].code_bytes(),
            );
        }
    }
}

/// The linear layers of Ternary-Bonsai-1.7B and 8B: q + k + v, o, gate + up with its gate, down;
/// and of 27B, whose layers have q + k + v + z in most; rows × columns, and whether there is a norm.
fn norm_bitlinear_block_float(criterion: &mut Criterion) {
    const LAYERS: [(usize, usize, bool); 12] = [
        (4096, 2048, true),
        (2048, 2048, false),
        (12_288, 2048, true),
        (2048, 6144, false),
        (6144, 4096, true),
        (4096, 4096, false),
        (24_576, 4096, true),
        (4096, 12_288, false),
        (16_384, 5120, true),
        (5120, 6144, false),
        (34_816, 5120, true),
        (5120, 17_408, false),
    ];
    let (context, _) = device();
    let mut group = timing::group(criterion, "norm_bitlinear_block_float");
    let beyond_caches = if context.capabilities().software { 64 << 20 } else { 384 << 20 };
    for (rows, columns, normed) in LAYERS {
        let scales =
            Scales::Groups { size: 128, scales: floats(&mut rng(3), rows * columns / 128, 1.0) };
        let w = ternary_with(&mut rng(1), rows, columns, scales);
        let copies = (beyond_caches / (4 * w.words().len())).max(1);
        let matrices: Vec<_> = (0..copies).map(|_| w.upload(context).expect("it fits")).collect();
        let x = context.upload(&floats(&mut rng(1), columns, 2.0), [1, columns]).expect("it fits");
        let gain = context.upload(&floats(&mut rng(2), columns, 2.0), [columns]).expect("it fits");
        let (y, gated) =
            (Tensor::<f32>::zeros(context, [1, rows]).expect("it fits"), rows > 4 * columns);
        let half = Tensor::<f32>::zeros(context, [1, rows / 2]).expect("it fits");
        let norm = normed.then_some((&gain, 1e-5));
        let mut encoder = context.encoder("norm_bitlinear_block_float");
        for w in &matrices {
            match gated {
                true => BitLinear::new(w)
                    .activation_type(ActivationType::BlockFloat)
                    .norm(norm)
                    .gate(Gate::Silu)
                    .forward_into(&mut encoder, &x, &half),
                false => BitLinear::new(w)
                    .activation_type(ActivationType::BlockFloat)
                    .norm(norm)
                    .forward_into(&mut encoder, &x, &y),
            }
            .expect("it multiplies");
        }
        bench(
            &mut group,
            "one token",
            &format!("{rows}x{columns}"),
            &encoder.finish(),
            copies,
            matrices[0].code_bytes(),
        );
    }
}

/// Rotation, cache and attention of a token after this many, in caches of 16 bits where the device
/// has them, of 30 layers in turn: with shares that the last workgroup brings together, where the
/// device can, and in two dispatches. Heads of BitNet b1.58 2B4T, of Ternary-Bonsai-1.7B and 8B.
fn attention(criterion: &mut Criterion) {
    const CAPACITY: usize = 4096;
    let (device, _) = device();
    let mut group = timing::group(criterion, "attention");
    let (element, bytes) =
        if device.capabilities().f16 { (Element::F16, 2) } else { (Element::F32, 4) };
    let copies = if device.capabilities().software { 1 } else { 30 };
    let two = device.restricted(|c| c.device_barriers = false);
    for (heads, kv_heads) in [(20, 5), (16, 8), (32, 8)] {
        let shape = AttentionShape { heads, kv_heads, head_dim: 128 };
        for (name, context) in [("as it is", device), ("two dispatches", &two)] {
            let caches: Vec<_> = (0..copies)
                .map(|_| KvCache::new(context, shape, 1, CAPACITY, element).expect("it fits"))
                .collect();
            let qkv = floats(&mut rng(1), shape.row(), 1.0);
            let qkv = context.upload(&qkv, [1, shape.row()]).expect("it fits");
            let angles = transformer::rope_angles(&vec![0.5; shape.head_dim / 2], CAPACITY);
            let angles =
                context.upload(&angles, [CAPACITY, shape.head_dim / 2, 2]).expect("it fits");
            let y = Tensor::<f32>::zeros(context, [1, heads * shape.head_dim]).expect("it fits");
            for past in [0, 63, 255, 1023, 2047, 4095] {
                let runs = context.upload(&[0, past as u32], [1, 2]).expect("it fits");
                let new = CachePositions::new(&runs, 1);
                let mut encoder = context.encoder("attention");
                for cache in &caches {
                    transformer::attention(&qkv, new, cache)
                        .rope(&angles)
                        .max_len(past + 1)
                        .forward_into(&mut encoder, &y)
                        .expect("it attends");
                }
                let read = 2 * (past + 1) * kv_heads * shape.head_dim * bytes;
                let parameter = format!("{heads} heads of {kv_heads} after {past}");
                bench(&mut group, name, &parameter, &encoder.finish(), copies, read);
            }
        }
    }
}

criterion_group!(benches, norm_bitlinear, norm_bitlinear_block_float, attention);
criterion_main!(benches);
