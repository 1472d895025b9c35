//! The quantizers: bytes read and written against the roofline.
//! `cargo bench -p bitnet-wgpu-benches --bench quantize`

use bitnet_wgpu::{
    bitnet,
    bitnet::{Gate, Layout},
    reference,
};
use criterion::{Criterion, criterion_group, criterion_main};
use support::{floats, rng};
use timing::{bench, device};

fn weights(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "quantize_weights");
    let (rows, columns) = (2560, 6912);
    let w = context
        .upload(&floats(&mut rng(1), rows * columns, 2.0), [rows, columns])
        .expect("it fits");
    let mut encoder = context.encoder("weights");
    bitnet::WeightQuantizer::absmean().quantize(&mut encoder, &w).expect("it quantises");
    // Read twice, a sixteenth written.
    bench(
        &mut group,
        "absmean",
        &format!("{rows}x{columns}"),
        &encoder.finish(),
        1,
        rows * columns * 8 + rows * columns / 4,
    );
}

/// The CPU reference, on all cores.
fn cpu(criterion: &mut Criterion) {
    let mut group = timing::group(criterion, "quantize_weights on the CPU");
    let (rows, columns) = (2560, 6912);
    let w = floats(&mut rng(1), rows * columns, 2.0);
    group.bench_function("absmean", |b| {
        b.iter(|| {
            reference::quantize_weights(&w, [rows, columns], bitnet::WeightQuantizer::absmean())
        })
    });
}

fn tokens(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "quantize_activations");
    // The last two are of 64 MB and more, beyond caches.
    let shapes: &[(usize, usize)] =
        &[(1, 2560), (1, 6912), (512, 2560), (8192, 2560), (4096, 6912)];
    for &(m, k) in if context.capabilities().software { &shapes[..3] } else { shapes } {
        let x = context.upload(&floats(&mut rng(1), m * k, 2.0), [m, k]).expect("it fits");
        let gain = context.upload(&vec![1.0; k], [k]).expect("it fits");
        for layout in [Layout::Int8, Layout::F16] {
            let bytes = m * k * if layout == Layout::Int8 { 5 } else { 6 };
            let mut encoder = context.encoder("activations");
            support::quantize_as(&mut encoder, &x, layout).expect("it quantises");
            bench(
                &mut group,
                &format!("{layout:?}"),
                &format!("{m}x{k}"),
                &encoder.finish(),
                1,
                bytes,
            );
            let mut encoder = context.encoder("norm");
            bitnet::ActivationQuantizer::int8()
                .layout(layout)
                .norm((&gain, 1e-5))
                .quantize(&mut encoder, &x)
                .expect("it quantises");
            bench(
                &mut group,
                &format!("rms_norm {layout:?}"),
                &format!("{m}x{k}"),
                &encoder.finish(),
                1,
                bytes + 4 * k,
            );
            let gated =
                context.upload(&floats(&mut rng(1), m * 2 * k, 2.0), [m, 2 * k]).expect("it fits");
            let mut encoder = context.encoder("gate");
            bitnet::ActivationQuantizer::int8()
                .layout(layout)
                .gate(Gate::Relu2)
                .norm(Some((&gain, 1e-5)))
                .quantize(&mut encoder, &gated)
                .expect("it quantises");
            bench(
                &mut group,
                &format!("gate {layout:?}"),
                &format!("{m}x{k}"),
                &encoder.finish(),
                1,
                bytes + 4 * (m + 1) * k,
            );
        }
    }
}

criterion_group!(benches, weights, cpu, tokens);
criterion_main!(benches);
