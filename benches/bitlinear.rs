//! BitLinear over the layers of a 2B model, in both layouts, and on the CPU beside a plain loop. `cargo bench -p bitnet-wgpu-benches --bench bitlinear`

use bitnet_wgpu::{bitnet, bitnet::Layout};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use support::{floats, rng, ternary};
use timing::{LAYERS, bench, device};

/// One token: the weights' bytes are the cost. So many copies of the matrix take turns that no cache holds them.
fn gemv(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "gemv");
    let beyond_caches = if context.capabilities().software { 64 << 20 } else { 384 << 20 };
    for (rows, columns) in LAYERS {
        let w = ternary(&mut rng(1), rows, columns);
        let copies = (beyond_caches / (4 * w.words().len())).max(1);
        let matrices: Vec<_> = (0..copies).map(|_| w.upload(context).expect("it fits")).collect();
        let x = context.upload(&floats(&mut rng(1), columns, 2.0), [1, columns]).expect("it fits");
        for layout in [Layout::Int8, Layout::Half] {
            let mut encoder = context.encoder("gemv");
            let xq = support::quantize_as(&mut encoder, &x, layout).expect("it quantises");
            encoder.submit().expect("it runs").wait().expect("it ends");
            let mut encoder = context.encoder("gemv");
            let y = bitnet_wgpu::Tensor::<f32>::zeros(context, [1, rows]).expect("it fits");
            for w in &matrices {
                bitnet::bitlinear_quantized_into(&mut encoder, &xq, w, &y).expect("it multiplies");
            }
            bench(&mut group, &format!("{layout:?}"), &format!("{rows}x{columns}"), &encoder.finish(), copies, matrices[0].code_bytes());
        }
    }
}

/// Many tokens: arithmetic is the cost; the bytes are of weights, activations and outputs.
fn gemm(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "gemm");
    let token_counts: &[usize] = if context.capabilities().software { &[32] } else { &[16, 128, 512] };
    for (rows, columns) in LAYERS {
        let w = ternary(&mut rng(1), rows, columns).upload(context).expect("it fits");
        for &tokens in token_counts {
            let x = context.upload(&floats(&mut rng(1), tokens * columns, 2.0), [tokens, columns]).expect("it fits");
            for layout in [Layout::Int8, Layout::Half] {
                let mut encoder = context.encoder("gemm");
                let xq = support::quantize_as(&mut encoder, &x, layout).expect("it quantises");
                encoder.submit().expect("it runs").wait().expect("it ends");
                let mut encoder = context.encoder("gemm");
                bitnet::bitlinear_quantized::<f32>(&mut encoder, &xq, &w).expect("it multiplies");
                let shape = format!("{tokens}x{rows}x{columns}");
                let bytes = w.code_bytes() + tokens * (columns + 4 * rows);
                bench(&mut group, &format!("{layout:?}"), &shape, &encoder.finish(), 1, bytes);
            }
        }
    }
}

/// The CPU twin, on all cores, and what a first try would be.
fn cpu(criterion: &mut Criterion) {
    let mut group = timing::group(criterion, "cpu");
    for (rows, columns) in [(2560, 2560), (2560, 6912)] {
        let w = ternary(&mut rng(1), rows, columns);
        let x = bitnet::quantize_activations_cpu(&floats(&mut rng(1), columns, 2.0), 1, columns).expect("it quantises");
        group.throughput(criterion::Throughput::Elements((rows * columns) as u64));
        let shape = format!("{rows}x{columns}");
        group.bench_function(BenchmarkId::new("all cores", &shape), |b| b.iter(|| bitnet::bitlinear_quantized_cpu(&x, &w)));
        let &bitnet_wgpu::Scales::Tensor(scale) = w.scales() else { panic!("one scale for the tensor") };
        let naive = || -> Vec<f32> {
            let sum = |row| (0..columns).map(|k| i32::from(w.value(row, k)) * i32::from(x.codes[k])).sum::<i32>();
            (0..rows).map(|row| sum(row) as f32 * scale / x.scales[0]).collect()
        };
        assert_eq!(naive(), bitnet::bitlinear_quantized_cpu(&x, &w).expect("it multiplies"));
        group.bench_function(BenchmarkId::new("naive loop", &shape), |b| b.iter(naive));
    }
}

criterion_group!(benches, cpu, gemv, gemm);
criterion_main!(benches);
