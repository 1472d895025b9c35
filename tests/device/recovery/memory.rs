//! Allocations that fail half-way through an op.

use bitnet_wgpu::{
    Context, Encoder, Error, Out, Result, Tensor, optimizer,
    tensor::{self, LinearGradients},
    transformer::{self, AttentionShape, CachePositions, KvCache, RmsNorm},
};
use support::block_on;

/// Tries an op with memory for one allocation more each time, and with grids of all sizes, until it
/// succeeds: where it fails, nothing of it is recorded. Gives in how many ways it failed.
fn fails_whole(context: &Context, op: impl Fn(&mut Encoder) -> Result<()>) -> usize {
    let (mut encoder, mut failed) = (context.encoder("whole"), 0);
    let mut check = |encoder: &mut Encoder, result: Result<()>| match result {
        Ok(()) => None,
        Err(error) => {
            assert_eq!(encoder.len(), 0, "{error}");
            failed += 1;
            Some(error)
        }
    };
    context.trim_memory();
    context.limit_memory(0);
    loop {
        let result = op(&mut encoder);
        match check(&mut encoder, result) {
            None => break,
            // What is live, and the one more that was asked for.
            Some(Error::MemoryLimit { bytes, live, .. }) => {
                context.limit_memory(live.iter().map(|live| live.bytes).sum::<u64>() + bytes)
            }
            Some(error) => panic!("{error}"),
        }
    }
    context.limit_memory(None);
    for power in 0..16 {
        let narrow = context.restricted(|c| c.max_workgroups = 1 << power);
        let mut encoder = narrow.encoder("narrow");
        let result = op(&mut encoder);
        check(&mut encoder, result);
    }
    failed
}

#[test]
fn an_op_that_fails_half_way_records_nothing() {
    let context = &block_on(Context::new()).unwrap();
    let tensor = |rows: usize, columns: usize| {
        context.upload(&vec![0.5f32; rows * columns], [rows, columns]).unwrap()
    };
    let vector = |length: usize| context.upload(&vec![0.5f32; length], [length]).unwrap();

    let (short, long) = (vector(700), vector(100_000));
    assert!(
        fails_whole(context, |encoder| optimizer::clip_gradients(&[&short, &long], 1.0)
            .forward(encoder)
            .map(drop))
            > 3
    );

    let (x, dy, dx, weight, dweight, dbias) =
        (tensor(5000, 8), tensor(5000, 8), tensor(5000, 8), vector(8), vector(8), vector(8));
    let norm = |encoder: &mut Encoder| {
        let gradients = tensor::LayerNormGradients {
            x: Out::add(&dx),
            weight: Out::add(&dweight),
            bias: Out::add(&dbias),
        };
        tensor::LayerNorm::new(&weight, &weight, 1e-5).backward_into(encoder, &x, &dy, gradients)
    };
    assert!(fails_whole(context, norm) > 3);
    let rms = |encoder: &mut Encoder| {
        let (dx, dweight) = (Out::add(&dx), Out::add(&dweight));
        RmsNorm::new(&weight, 1e-5).backward_into(encoder, &x, &dy, dx, dweight)
    };
    assert!(fails_whole(context, rms) > 3);

    let (x, w, dx, dw, rows) =
        (tensor(50, 8), tensor(300, 8), tensor(50, 8), tensor(300, 8), vector(50));
    let targets = context.upload(&[3u32; 50], [50]).unwrap();
    let loss = |encoder: &mut Encoder| {
        let op = tensor::linear_cross_entropy(&x, &w, &targets).chunk(64);
        let gradients = LinearGradients { x: Out::add(&dx), w: Out::add(&dw) };
        op.backward_into(encoder, &rows, &rows, gradients)
    };
    assert!(fails_whole(context, loss) > 3);

    // What is wrong with the last dispatch alone: it may not write one tensor under two names.
    let [q, k, v, dq, dkv, dy, y] =
        [(); 7].map(|()| context.upload(&[0.5f32; 3 * 70 * 8], [3, 70, 8]).unwrap());
    let lse = context.upload(&[0.5f32; 3 * 70], [3, 70]).unwrap();
    let gradients = (Out::add(&dq), Out::add(&dkv), Out::add(&dkv));
    let mut encoder = context.encoder("aliased");
    let failed = transformer::flash_attention(&q, &k, &v).backward_into(
        &mut encoder,
        &y,
        &lse,
        &dy,
        gradients,
    );
    assert!(matches!(failed, Err(Error::Dispatch { .. })) && encoder.is_empty(), "{failed:?}");
}

/// Queries are rotated where they are: twice would be wrong.
#[test]
fn a_failed_attention_can_be_recorded_again() {
    let context = block_on(Context::new()).unwrap();
    let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 8 };
    let cache = KvCache::new(&context, shape, 1, 200, bitnet_wgpu::Element::F32).unwrap();
    let angles = context
        .upload(&transformer::rope_angles(&[0.5, 0.25, 0.1, 0.05], 200), [200, 4, 2])
        .unwrap();
    let runs = context.upload(&[0u32, 0], [1, 2]).unwrap();
    let numbers: Vec<f32> = (0..3 * 32).map(|i| (i as f32).sin()).collect();
    let (new, y) =
        (CachePositions::new(&runs, 3), Tensor::<f32>::zeros(&context, [3, 16]).unwrap());
    let attend = |limited: bool| {
        let qkv = context.upload(&numbers, [3, 32]).unwrap();
        let mut encoder = context.encoder("attention");
        if limited {
            context.trim_memory();
            context.limit_memory(0);
            let failed = transformer::attention(&qkv, new, &cache)
                .rope(&angles)
                .max_len(150)
                .forward_into(&mut encoder, &y);
            assert!(
                matches!(failed, Err(Error::MemoryLimit { .. })) && encoder.is_empty(),
                "{failed:?}"
            );
            context.limit_memory(None);
        }
        transformer::attention(&qkv, new, &cache)
            .rope(&angles)
            .max_len(150)
            .forward_into(&mut encoder, &y)
            .unwrap();
        encoder.submit().unwrap().wait().unwrap();
        (block_on(y.read()).unwrap(), block_on(qkv.read()).unwrap())
    };
    assert_eq!(attend(true), attend(false));
}

/// On tensor cores, the output is checked after the queries are rotated.
#[test]
fn failed_f16_attention_records_nothing() {
    let Some(context) = support::prompts_on_tensor_cores() else {
        println!("NOT RUN: the device has no tensor cores");
        return;
    };
    let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 64 };
    let cache = KvCache::new(&context, shape, 1, 64, bitnet_wgpu::Element::F16).unwrap();
    let angles = context.upload(&transformer::rope_angles(&[0.5; 32], 64), [64, 32, 2]).unwrap();
    let runs = context.upload(&[0u32, 0], [1, 2]).unwrap();
    let (new, qkv) =
        (CachePositions::new(&runs, 64), Tensor::<f32>::zeros(&context, [64, 256]).unwrap());
    let (y, wrong) = (
        Tensor::<f32>::zeros(&context, [64, 128]).unwrap(),
        Tensor::<f32>::zeros(&context, [64, 64]).unwrap(),
    );
    let mut encoder = context.encoder("attention");
    let failed = transformer::attention(&qkv, new, &cache)
        .rope(&angles)
        .max_len(64)
        .f16()
        .forward_into(&mut encoder, &wrong);
    assert!(matches!(failed, Err(Error::Shape { .. })) && encoder.is_empty(), "{failed:?}");
    // A token that may see nothing gives 0, as without tensor cores.
    transformer::attention(&qkv, new, &cache)
        .rope(&angles)
        .max_len(0)
        .f16()
        .forward_into(&mut encoder, &y)
        .unwrap();
    encoder.submit().unwrap().wait().unwrap();
    assert!(block_on(y.read()).unwrap().iter().all(|&y| y == 0.0));
}
