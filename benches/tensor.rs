//! Reductions, softmax, losses and norms: the bytes are those that must be read and written once. `cargo bench -p bitnet-wgpu-benches --bench tensor`

use bitnet_wgpu::{
    Context, Tensor,
    tensor::{self, Axes, CrossEntropyOptions, Prefix},
};
use criterion::{Criterion, criterion_group, criterion_main};
use support::{floats, rng};
use timing::{bench, device};

/// A matrix larger than any cache; smaller where there is no GPU.
fn matrix(context: &Context) -> (usize, Tensor<f32>) {
    let side = if context.capabilities().software { 1024 } else { 8192 };
    let row = floats(&mut rng(1), side, 3.0);
    (side, context.upload(&row.repeat(side), [side, side]).expect("it fits"))
}

fn reductions(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "reductions");
    let (side, x) = matrix(context);
    let [short, of_four] = [[side * side / 8, 8], [side * side / 4, 4]].map(|shape| x.reshape(shape).expect("as many"));
    let shapes = [
        ("all", &x, Axes::ALL),
        ("rows", &x, Axes::from([1])),
        ("columns", &x, Axes::from([0])),
        ("rows of 8", &short, Axes::from([1])),
        ("4 columns", &of_four, Axes::from([0])),
    ];
    for (name, x, axes) in shapes {
        let mut encoder = context.encoder("sum");
        tensor::sum(&mut encoder, x, axes).expect("it sums");
        bench(&mut group, "sum", name, &encoder.finish(), 1, 4 * side * side);
        let mut encoder = context.encoder("max");
        tensor::max(&mut encoder, x, axes).expect("it compares");
        bench(&mut group, "max", name, &encoder.finish(), 1, 4 * side * side);
    }
    let mut encoder = context.encoder("argmax");
    tensor::argmax(&mut encoder, &x, [1]).expect("it compares");
    bench(&mut group, "argmax", "rows", &encoder.finish(), 1, 4 * side * side);
    let mut encoder = context.encoder("prefix_sum");
    tensor::prefix_sum(&mut encoder, &x.reshape([side * side]).expect("as many"), Prefix::Inclusive).expect("it sums");
    bench(&mut group, "prefix_sum", "all", &encoder.finish(), 1, 8 * side * side);
}

fn rows(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "rows");
    let (side, x) = matrix(context);
    let (weight, targets) = (context.upload(&vec![1f32; side], [side]), context.upload(&vec![7u32; side], [side]));
    let (weight, targets) = (weight.expect("it fits"), targets.expect("it fits"));
    let y = Tensor::uninit(context, [side, side]).expect("it fits");
    let mut time = |name: &str, passes: usize, record: &dyn Fn(&mut bitnet_wgpu::Encoder) -> bitnet_wgpu::Result<()>| {
        let mut encoder = context.encoder("rows");
        record(&mut encoder).expect("it fits");
        bench(&mut group, name, &format!("{side}x{side}"), &encoder.finish(), 1, passes * 4 * side * side);
    };
    time("softmax", 2, &|e| tensor::softmax_into(e, &x, &y));
    time("softmax_backward", 3, &|e| tensor::softmax_backward_into(e, &x, &x, &y));
    time("cross_entropy", 1, &|e| tensor::cross_entropy(e, &x, &targets, CrossEntropyOptions::default()).map(|_| ()));
    time("cross_entropy_backward", 2, &|e| {
        tensor::cross_entropy_backward_into(e, &x, &targets, CrossEntropyOptions::default(), &weight, &y)
    });
    time("layer_norm", 2, &|e| tensor::layer_norm_into(e, &x, &weight, &weight, 1e-5, &y));
    time("layer_norm_backward", 3, &|e| tensor::layer_norm_backward(e, &x, &weight, 1e-5, &x).map(|_| ()));
}

criterion_group!(benches, reductions, rows);
criterion_main!(benches);
