//! Rotary embedding on the CPU beside that on the GPU.

use bitnet_wgpu::{
    Element, Error, reference,
    transformer::{self, AttentionShape, CachePositions, HostKvCache, KvCache},
};
use support::{U, block_on, context, floats, rng};

#[test]
fn rope_cpu_turns_as_the_gpu() {
    let context = context();
    let (shape, mut rng) = (AttentionShape { heads: 4, kv_heads: 2, head_dim: 14 }, rng(28));
    let frequencies: Vec<f32> = (0..7).map(|i| 10f32.powi(-i)).collect();
    let angles = transformer::rope_angles(&frequencies, 13);
    let (first, second) =
        (floats(&mut rng, 6 * shape.row(), 2.0), floats(&mut rng, 3 * shape.row(), 2.0));
    let mut cache = HostKvCache::new(shape).unwrap();
    let (mut cpu, gpu) = (second.clone(), context.upload(&second, [3, shape.row()]).unwrap());
    reference::rope(&mut first.clone(), &angles, &mut cache).unwrap();
    reference::rope(&mut cpu, &angles, &mut cache).unwrap();
    assert_eq!(cache.len(), 9);
    let gpu_cache = KvCache::new(context, shape, 1, 13, Element::F32).unwrap();
    let mut encoder = context.encoder("test");
    let runs = context.upload(&[0u32, 6], [1, 2]).unwrap();
    transformer::rope(
        &gpu,
        CachePositions::new(&runs, 3),
        &context.upload(&angles, [13, 7, 2]).unwrap(),
        &gpu_cache,
    )
    .forward(&mut encoder)
    .unwrap();
    let _ = encoder.submit().unwrap();
    for (gpu, cpu) in block_on(gpu.read()).unwrap().chunks(shape.row()).zip(cpu.chunks(shape.row()))
    {
        // Numbers below 2: two products and a sum, on each side.
        assert!(
            gpu.iter().zip(cpu).take(4 * 14).all(|(g, c)| f64::from(g - c).abs() <= 4.0 * U * 4.0),
            "{gpu:?}, not {cpu:?}"
        );
    }
    let beyond = reference::rope(&mut floats(&mut rng, 5 * shape.row(), 1.0), &angles, &mut cache);
    assert!(matches!(beyond, Err(Error::Invalid { .. })), "{beyond:?}");
    assert!(matches!(
        reference::rope(&mut [0.0; 3], &angles, &mut cache),
        Err(Error::Length { .. })
    ));
    cache.truncate(2);
    assert_eq!(cache.len(), 2);
}
