//! `examples/learn`: the gradients of all ops together.

#[path = "../../examples/learn/data.rs"]
mod data;
#[path = "../../examples/learn/model.rs"]
mod model;
#[path = "../../examples/learn/training.rs"]
mod training;

use bitnet_wgpu::Tensor;
use model::Settings;
use support::{block_on, context};
use training::Training;

const GOLDEN: &str = include_str!("../data/learn/golden.csv");

fn number(tensor: &Tensor<f32>) -> f64 {
    block_on(tensor.read()).unwrap()[0].into()
}

/// Loss and norm of PyTorch's first steps (data/learn/make.py), in columns of the golden.
fn golden(columns: [usize; 2]) -> Vec<[f64; 2]> {
    let line =
        |line: &str| columns.map(|column| line.split(',').nth(column).unwrap().parse().unwrap());
    GOLDEN.lines().skip(1).map(line).collect()
}

/// Panics if losses or norms of the first steps are off PyTorch's by more than these shares.
fn compare(int8: bool, golden: &[[f64; 2]], bounds: [f64; 2]) {
    assert_eq!(golden.len(), 20);
    let mut training = Training::new(context(), Settings { int8, ..Settings::SMALL }).unwrap();
    let mut worst = [0f64; 2];
    for (i, expected) in golden.iter().enumerate() {
        let (loss, norm) = training.step().unwrap();
        for (which, found) in [number(&loss), number(&norm)].into_iter().enumerate() {
            let off = (found / expected[which] - 1.0).abs();
            assert!(
                off <= bounds[which],
                "step {}: {} is {found}, not {}",
                i + 1,
                ["loss", "norm"][which],
                expected[which]
            );
            worst[which] = worst[which].max(off);
        }
    }
    println!("int8 {int8}: losses are off by {:.1e}, norms by {:.1e}", worst[0], worst[1]);
}

#[test]
fn float_activations_learn_as_in_pytorch() {
    compare(false, &golden([3, 4]), [1e-5, 1e-5]);
}

/// A code that is rounded the other way makes a percent of what follows for its token: by so much
/// PyTorch differs from itself (`make.py noise`).
#[test]
fn int8_activations_learn_as_in_pytorch() {
    compare(true, &golden([1, 2]), [5e-3, 3e-2]);
}

#[test]
#[ignore = "takes minutes: scripts/test --only slow"]
fn training_halves_the_loss_and_is_reproducible() {
    let run = || {
        let mut training = Training::new(context(), Settings::SMALL).unwrap();
        let losses: Vec<f64> = (0..200).map(|_| number(&training.step().unwrap().0)).collect();
        let weights: Vec<Vec<u32>> = training
            .model
            .parameters
            .iter()
            .map(|weights| {
                block_on(weights.read()).unwrap().into_iter().map(f32::to_bits).collect()
            })
            .collect();
        (losses, weights)
    };
    let (losses, weights) = run();
    let last = losses[180..].iter().sum::<f64>() / 20.0;
    assert!(last < losses[0] / 2.0, "from {} to {last}", losses[0]);
    assert_eq!((losses, weights), run());
}
