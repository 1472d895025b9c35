//! Products, elementwise ops, moves, reductions, softmax, losses and norms: set against bytes that
//! must be read and written once, products against arithmetic.
//! `cargo bench -p bitnet-wgpu-benches --bench tensor`

use bitnet_wgpu::bitnet::{ActivationType, BitLinear};
use bitnet_wgpu::{
    Context, Encoder, Result, Tensor, bitnet,
    optimizer::{AdamW, AdamWState},
    tensor::{self, Axes, Float, Side, f16},
};
use criterion::{Criterion, criterion_group, criterion_main};
use support::{convert, floats, rng, ternary, with_tensor_cores};
use timing::{Work, bench, bench_work, device};

/// A matrix larger than any cache; smaller where there is no GPU.
fn matrix(context: &Context) -> (usize, Tensor<f32>) {
    let side = if context.capabilities().software { 1024 } else { 8192 };
    let row = floats(&mut rng(1), side, 3.0);
    (side, context.upload(&row.repeat(side), [side, side]).expect("it fits"))
}

/// A matrix of any float type, of one row again and again.
fn rows_of<T: Float>(context: &Context, rows: usize, columns: usize) -> Tensor<T> {
    context
        .upload(&convert::<T>(&floats(&mut rng(1), columns, 3.0)).repeat(rows), [rows, columns])
        .expect("it fits")
}

fn recorded(
    context: &Context,
    record: impl FnOnce(&mut Encoder) -> Result<()>,
) -> bitnet_wgpu::Recording {
    let mut encoder = context.encoder("tensor");
    record(&mut encoder).expect("it fits");
    encoder.finish()
}

/// Square products, as they are and with the right side transposed: arithmetic is the cost.
fn products(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "matmul");
    let sides: &[usize] =
        if context.capabilities().software { &[256, 512] } else { &[512, 1024, 2048, 4096] };
    for &side in sides {
        let (shape, work) = (format!("{side}"), Work::Operations(2 * side * side * side));
        let (wide, y) = (
            rows_of::<f32>(context, side, side),
            Tensor::<f32>::uninit(context, [side, side]).expect("it fits"),
        );
        let recording = recorded(context, |e| tensor::matmul(&wide, &wide).forward_into(e, &y));
        bench_work(&mut group, "f32", &shape, &recording, 1, work);
        let recording = recorded(context, |e| {
            tensor::matmul(&wide, Side::transposed(&wide)).forward_into(e, &y)
        });
        bench_work(&mut group, "f32 transposed", &shape, &recording, 1, work);
        if context.capabilities().f16 {
            let half = rows_of::<f16>(context, side, side);
            let recording = recorded(context, |e| tensor::matmul(&half, &half).forward_into(e, &y));
            bench_work(&mut group, "f16 to f32", &shape, &recording, 1, work);
        }
        if let Some(context) = with_tensor_cores() {
            let (half, y) = (
                rows_of::<f16>(context, side, side),
                Tensor::<f32>::uninit(context, [side, side]).expect("it fits"),
            );
            let recording = recorded(context, |e| tensor::matmul(&half, &half).forward_into(e, &y));
            bench_work(&mut group, "f16 to f32 on tensor cores", &shape, &recording, 1, work);
            let recording = recorded(context, |e| {
                tensor::matmul(&half, Side::transposed(&half)).forward_into(e, &y)
            });
            bench_work(
                &mut group,
                "f16 to f32 transposed on tensor cores",
                &shape,
                &recording,
                1,
                work,
            );
        }
    }
}

/// Few rows by a matrix larger than any cache, and by ternary weights with per-group scales: the
/// matrix's bytes are the cost.
fn few_rows(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "few rows");
    let (side, w) = matrix(context);
    let codes = ternary(&mut rng(1), 4 * side, side).upload(context).expect("it fits");
    for m in [1, 8] {
        let shape = format!("{m}x{side}x{side}");
        let (x, y) = (
            rows_of::<f32>(context, m, side),
            Tensor::<f32>::uninit(context, [m, side]).expect("it fits"),
        );
        let recording =
            recorded(context, |e| tensor::matmul(&x, Side::transposed(&w)).forward_into(e, &y));
        bench(&mut group, "f32 transposed", &shape, &recording, 1, 4 * side * side);
        let recording = recorded(context, |e| tensor::matmul(&x, &w).forward_into(e, &y));
        bench(&mut group, "f32", &shape, &recording, 1, 4 * side * side);
        // Four times as many rows, so that a cache of 50 MiB does not hold the codes.
        let recording = recorded(context, |e| {
            BitLinear::new(&codes).activation_type(ActivationType::Float).forward(e, &x).map(|_| ())
        });
        bench(
            &mut group,
            "ternary",
            &format!("{m}x{}x{side}", 4 * side),
            &recording,
            1,
            codes.code_bytes(),
        );
    }
}

fn elementwise(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "elementwise");
    let (side, x) = matrix(context);
    let y = Tensor::uninit(context, [side, side]).expect("it fits");
    let shape = format!("{side}x{side}");
    let mut time = |name: &str, passes: usize, record: &dyn Fn(&mut Encoder) -> Result<()>| {
        bench(&mut group, name, &shape, &recorded(context, record), 1, passes * 4 * side * side);
    };
    // The second input is the first: bytes of one.
    time("add", 2, &|e| tensor::add(&x, &x).forward_into(e, &y));
    let other = rows_of(context, side, side);
    time("add of another", 3, &|e| tensor::add(&x, &other).forward_into(e, &y));
    let row = context.upload(&vec![1f32; side], [side]).expect("it fits");
    time("add of a row", 2, &|e| tensor::add(&x, &row).forward_into(e, &y));
    time("relu2", 2, &|e| tensor::relu2(&x).forward_into(e, &y));
    time("transpose", 2, &|e| tensor::transpose(&x).forward(e).map(|_| ()));
    time("hadamard", 2, &|e| bitnet::hadamard(&x, 128).forward_into(e, &y));
    let (weights, state) = (
        rows_of::<f32>(context, side, side),
        AdamWState::new(context, [side, side]).expect("it fits"),
    );
    // Weights and two means are read and written, the gradient is read.
    time("adamw", 7, &|e| AdamW::new(1e-3).step(e, 1, &weights, &x, &state));
}

fn reductions(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "reductions");
    let (side, x) = matrix(context);
    let [short, of_four] = [[side * side / 8, 8], [side * side / 4, 4]]
        .map(|shape| x.reshape(shape).expect("as many"));
    let shapes = [
        ("all", &x, Axes::ALL),
        ("rows", &x, Axes::from([1])),
        ("columns", &x, Axes::from([0])),
        ("rows of 8", &short, Axes::from([1])),
        ("4 columns", &of_four, Axes::from([0])),
    ];
    for (name, x, axes) in shapes {
        let mut encoder = context.encoder("sum");
        tensor::sum(x, axes).forward(&mut encoder).expect("it sums");
        bench(&mut group, "sum", name, &encoder.finish(), 1, 4 * side * side);
        let mut encoder = context.encoder("max");
        tensor::max(x, axes).forward(&mut encoder).expect("it compares");
        bench(&mut group, "max", name, &encoder.finish(), 1, 4 * side * side);
    }
    let mut encoder = context.encoder("argmax");
    tensor::argmax(&x, [1]).forward(&mut encoder).expect("it compares");
    bench(&mut group, "argmax", "rows", &encoder.finish(), 1, 4 * side * side);
    let mut encoder = context.encoder("prefix_sum");
    tensor::prefix_sum(&x.reshape([side * side]).expect("as many"), 0)
        .forward(&mut encoder)
        .expect("it sums");
    bench(&mut group, "prefix_sum", "all", &encoder.finish(), 1, 8 * side * side);
}

fn rows(criterion: &mut Criterion) {
    let (context, _) = device();
    let mut group = timing::group(criterion, "rows");
    let (side, x) = matrix(context);
    let (weight, targets) =
        (context.upload(&vec![1f32; side], [side]), context.upload(&vec![7u32; side], [side]));
    let (weight, targets) = (weight.expect("it fits"), targets.expect("it fits"));
    let y = Tensor::uninit(context, [side, side]).expect("it fits");
    // What two inputs read is of two tensors.
    let other = rows_of(context, side, side);
    let mut time =
        |name: &str,
         passes: usize,
         record: &dyn Fn(&mut bitnet_wgpu::Encoder) -> bitnet_wgpu::Result<()>| {
            let mut encoder = context.encoder("rows");
            record(&mut encoder).expect("it fits");
            bench(
                &mut group,
                name,
                &format!("{side}x{side}"),
                &encoder.finish(),
                1,
                passes * 4 * side * side,
            );
        };
    time("softmax", 2, &|e| tensor::softmax(&x).forward_into(e, &y));
    time("softmax_backward", 3, &|e| tensor::softmax(&x).backward_into(e, &x, &other, &y));
    time("cross_entropy", 1, &|e| tensor::cross_entropy(&x, &targets).forward(e).map(|_| ()));
    time("cross_entropy_backward", 2, &|e| {
        tensor::cross_entropy(&x, &targets).backward_into(e, &weight, &y)
    });
    time("layer_norm", 2, &|e| {
        tensor::LayerNorm::new(&weight, &weight, 1e-5).forward_into(e, &x, &y)
    });
    time("layer_norm_backward", 3, &|e| {
        tensor::LayerNorm::new(&weight, &weight, 1e-5).backward(e, &x, &other).map(|_| ())
    });
}

criterion_group!(benches, products, few_rows, elementwise, reductions, rows);
criterion_main!(benches);
