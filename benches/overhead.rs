//! What the host pays: recording, submitting, reading back.
//! `cargo bench -p bitnet-wgpu-benches --bench overhead`

use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::bitnet::Layout;
use criterion::{Criterion, criterion_group, criterion_main};
use pollster::block_on;
use support::{rng, ternary};
use timing::device;

fn overhead(criterion: &mut Criterion) {
    let (context, _) = device();
    let w = ternary(&mut rng(1), 64, 64).upload(context).expect("it fits");
    let x = context.upload(&vec![1f32; 64], [1, 64]).expect("it fits");
    let record = || {
        let mut encoder = context.encoder("overhead");
        let xq = support::quantize_as(&mut encoder, &x, Layout::Int8).expect("it quantises");
        BitLinear::new(&w).forward(&mut encoder, &xq).expect("it multiplies");
        encoder.finish()
    };
    let recording = record();
    let y = context.upload(&[1f32], [1]).expect("it fits");
    let mut group = timing::group(criterion, "overhead");
    group.bench_function("record two dispatches", |b| b.iter(record));
    group.bench_function("submit and wait", |b| {
        b.iter(|| recording.submit().expect("it runs").wait())
    });
    group.bench_function("read four bytes", |b| b.iter(|| block_on(y.read())));
    group.bench_function("upload 64 floats", |b| b.iter(|| context.upload(&[1f32; 64], [64])));
}

criterion_group!(benches, overhead);
criterion_main!(benches);
