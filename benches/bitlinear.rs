//! BitLinear over the layers of a 2B model, in both layouts, and on the CPU beside a plain loop.
//! `cargo bench -p bitnet-wgpu-benches --bench bitlinear`

use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Context, Tensor,
    bitnet::Layout,
    cpu, reference,
    weights::{Scales, TernaryMatrix},
};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use support::{floats, rng, ternary, ternary_with};
use timing::{LAYERS, bench, device};

/// From one token, where the weights' bytes are the cost, to many, where arithmetic is: what a
/// batch of sequences pays for its size. The bytes are of weights, activations and outputs.
fn tokens(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "tokens");
    let token_counts: &[usize] = if context.capabilities().software {
        &[1, 4, 16]
    } else {
        &[1, 2, 4, 8, 16, 32, 64, 128, 512, 2048]
    };
    // And gates, or ups, alone, as others time them.
    for (rows, columns) in LAYERS.into_iter().chain([(6912, 2560)]) {
        for (name, layout, size) in [
            ("Int8", Layout::Int8, None),
            ("f16", Layout::F16, None),
            ("Int8, groups", Layout::Int8, Some(128)),
        ] {
            let matrices = cold(context, rows, columns, size);
            for &tokens in token_counts {
                let x = context
                    .upload(&floats(&mut rng(1), tokens * columns, 2.0), [tokens, columns])
                    .expect("it fits");
                let mut encoder = context.encoder("tokens");
                let xq = support::quantize_as(&mut encoder, &x, layout).expect("it quantises");
                encoder.submit().expect("it runs").wait().expect("it ends");
                let mut encoder = context.encoder("tokens");
                let y = Tensor::<f32>::zeros(context, [tokens, rows]).expect("it fits");
                for w in &matrices {
                    BitLinear::new(w).forward_into(&mut encoder, &xq, &y).expect("it multiplies");
                }
                let shape = format!("{tokens}x{rows}x{columns}");
                let bytes = matrices[0].code_bytes()
                    + size.map_or(0, |size| 4 * rows * columns.div_ceil(size))
                    + tokens * (columns + 4 * rows);
                bench(&mut group, name, &shape, &encoder.finish(), matrices.len(), bytes);
            }
        }
    }
}

/// Number of copies of a matrix that take turns: more than any cache holds.
fn cold(
    context: &Context,
    rows: usize,
    columns: usize,
    group: Option<usize>,
) -> Vec<TernaryMatrix> {
    let beyond_caches = if context.capabilities().software { 64 << 20 } else { 384 << 20 };
    let scales = group.map_or(Scales::Tensor(0.5), |size| Scales::Groups {
        size,
        scales: vec![0.5; rows * columns.div_ceil(size)],
    });
    let w = ternary_with(&mut rng(1), rows, columns, scales);
    let copies = (beyond_caches / (4 * w.words().len())).max(1);
    (0..copies).map(|_| w.upload(context).expect("it fits")).collect()
}

/// A layer on the CPU and its reference, both on all cores; of the product alone, the reference and
/// a plain loop.
fn on_the_cpu(criterion: &mut Criterion) {
    let mut group = timing::group(criterion, "cpu");
    for (rows, columns) in [(2560, 2560), (2560, 6912)] {
        let w = ternary(&mut rng(1), rows, columns);
        let x = reference::quantize_activations(&floats(&mut rng(1), columns, 2.0), 1, columns)
            .expect("it quantises");
        group.throughput(criterion::Throughput::Elements((rows * columns) as u64));
        let shape = format!("{rows}x{columns}");
        group.bench_function(BenchmarkId::new("all cores", &shape), |b| {
            b.iter(|| reference::bitlinear_quantized(&x, &w))
        });
        let matrix = cpu::InterleavedTernary::new(&w);
        for tokens in [1, 32] {
            let x = floats(&mut rng(2), tokens * columns, 2.0);
            let layer = || cpu::BitLinear::new(&matrix).forward(&x, tokens).expect("it multiplies");
            let reference = || reference::bitlinear(&x, tokens, &w).expect("it multiplies");
            assert_eq!(layer(), reference());
            let shape = format!("{tokens}x{shape}");
            group.bench_function(BenchmarkId::new("layer", &shape), |b| b.iter(layer));
            group.bench_function(BenchmarkId::new("reference", &shape), |b| b.iter(reference));
        }
        let &bitnet_wgpu::weights::Scales::Tensor(scale) = w.scales() else {
            panic!("one scale for the tensor")
        };
        let naive = || -> Vec<f32> {
            let sum = |row| {
                (0..columns)
                    .map(|k| i32::from(w.value(row, k)) * i32::from(x.codes[k]))
                    .sum::<i32>()
            };
            (0..rows).map(|row| sum(row) as f32 * scale / x.scales[0]).collect()
        };
        assert_eq!(naive(), reference::bitlinear_quantized(&x, &w).expect("it multiplies"));
        group.bench_function(BenchmarkId::new("naive loop", &shape), |b| b.iter(naive));
    }
}

criterion_group!(benches, on_the_cpu, tokens);
criterion_main!(benches);
