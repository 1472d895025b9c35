//! Gradients of whole models against differences of their losses, with nothing quantized.

use super::{config, ids, read, settings, trainer};
use bitnet_train::{Corpus, Distillation, LinearMode, Lora, Precision, Trainer};

const VOCAB: usize = 23;

/// Length of a step along a unit vector. Weights are some 0.2.
const STEP: f32 = 0.03;

/// What rounding to f32 changes of a mean loss: each of 24 tokens is off by some 2^-22 of a loss of
/// 3, and on both sides.
const ROUNDING: f64 = 1e-6;

/// Numbers that follow from a seed, of mean 0.
fn direction(count: usize, seed: u32) -> Vec<f32> {
    ids(count, 2001, seed).iter().map(|&id| id as f32 / 1000.0 - 0.5).collect()
}

/// The derivative of the loss along a unit vector: its fourth-order central difference, and how far
/// the second-order one is from it. The error of the first is below twice that distance where the
/// loss is smooth, and where only its second derivative has a jump, as relu² has.
fn difference(trainer: &Trainer, text: &Corpus, parameter: usize, unit: &[f32]) -> (f64, f64) {
    let tensor = &trainer.weights()[parameter];
    let start = read(tensor);
    let loss = |steps: f32| {
        let moved: Vec<f32> = start.iter().zip(unit).map(|(w, u)| w + steps * STEP * u).collect();
        tensor.write(&moved).unwrap();
        trainer.objective(text).unwrap()
    };
    let near = loss(1.0) - loss(-1.0);
    let far = loss(2.0) - loss(-2.0);
    tensor.write(&start).unwrap();
    let step = f64::from(STEP);
    let (second, fourth) = (near / (2.0 * step), (8.0 * near - far) / (12.0 * step));
    (fourth, (fourth - second).abs())
}

/// Compares the gradient of every parameter along a vector that is half itself and half random.
/// Returns the largest error as a share of its bound, and the largest bound as a share of the
/// gradient's norm.
fn check(family: &str, layers: usize, lora: Option<Lora>) -> (f64, f64) {
    let text = Corpus::from_ids(ids(3 * 8 + 1, VOCAB as u32, 7), 8).unwrap();
    let linear = if lora.is_some() { LinearMode::Float } else { LinearMode::Dense };
    let mut settings = settings(1, linear);
    (settings.batch, settings.lora) = (3, lora);
    let mut json = config(family, VOCAB);
    json["num_hidden_layers"] = layers.into();
    let trainer = trainer(&json, text.clone(), settings).unwrap();
    // B is 0 at first, and then A has no gradient. Larger numbers bend the loss within a step.
    for (i, info) in trainer.parameters().iter().enumerate() {
        if info.name.contains("lora_B") {
            let count: usize = info.shape.iter().product();
            let numbers: Vec<f32> = direction(count, i as u32).iter().map(|x| 0.2 * x).collect();
            trainer.weights()[i].write(&numbers).unwrap();
        }
    }
    let windows: Vec<&[u32]> = (0..3).map(|i| text.window(i)).collect();
    trainer.compute_gradients(&windows).unwrap();
    slopes(family, &trainer, &text)
}

fn slopes(family: &str, trainer: &Trainer, text: &Corpus) -> (f64, f64) {
    let norm = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
    let (mut worst, mut widest) = (0f64, 0f64);
    for (i, info) in trainer.parameters().iter().enumerate() {
        let gradient = read(&trainer.gradients()[i]);
        let other = direction(gradient.len(), 100 + i as u32);
        let sizes = [norm(&gradient), norm(&other)];
        assert!(sizes[0] > 0.0, "{family}: `{}` has no gradient", info.name);
        let both: Vec<f32> =
            gradient.iter().zip(&other).map(|(a, b)| a / sizes[0] + b / sizes[1]).collect();
        let unit: Vec<f32> = both.iter().map(|x| x / norm(&both)).collect();
        let slope: f64 =
            gradient.iter().zip(&unit).map(|(g, u)| f64::from(*g) * f64::from(*u)).sum();
        let (expected, distance) = difference(trainer, text, i, &unit);
        let bound = 2.0 * distance + ROUNDING / f64::from(STEP);
        let error = (slope - expected).abs();
        (worst, widest) = (worst.max(error / bound), widest.max(bound / f64::from(sizes[0])));
        assert!(
            error <= bound,
            "{family}: `{}`: {slope:.6} and {expected:.6} differ by more than {bound:.6}",
            info.name
        );
    }
    (worst, widest)
}

/// A bound is below a tenth of the gradient, so that a wrong gradient is seen.
#[test]
fn gradients_are_slopes_of_the_loss() {
    for (family, layers) in [("bitnet", 2), ("llama", 1), ("qwen3", 1)] {
        let (worst, widest) = check(family, layers, None);
        println!("{family}: {worst:.2} of the bound, which is at most {widest:.3} of a gradient");
        assert!(widest < 0.1, "{family}: {widest}");
    }
}

/// With float activations, nothing that depends on adapters is rounded.
#[test]
fn gradients_of_adapters_are_slopes() {
    for (family, layers) in [("llama", 2), ("qwen3", 1)] {
        let (worst, widest) = check(family, layers, Some(Lora::new(3)));
        println!("{family}: {worst:.2} of the bound, which is at most {widest:.3} of a gradient");
        assert!(widest < 0.1, "{family}: {widest}");
    }
}

/// At a temperature that a wrong factor would show, and with a share of the text.
#[test]
fn gradients_of_students_are_slopes() {
    let folder = tempfile::tempdir().unwrap();
    let (json, text) = (config("qwen3", VOCAB), ids(3 * 8 + 1, VOCAB as u32, 7));
    let text = Corpus::from_ids(text, 8).unwrap();
    let mut one = settings(1, LinearMode::Dense);
    one.batch = 3;
    let mut teacher = trainer(&json, text.clone(), one.clone()).unwrap();
    let teacher = teacher.save(folder.path(), 1).unwrap();
    let mut mix = Distillation::default();
    (mix.temperature, mix.share) = (2.5, 0.75);
    one.seed = 1;
    let student = super::distil::student("llama", text.clone(), one, (&teacher, mix)).unwrap();
    student.compute_gradients_of(&text).unwrap();
    let (worst, widest) = slopes("student", &student, &text);
    println!("{worst:.2} of the bound, which is at most {widest:.3} of a gradient");
    assert!(widest < 0.2, "{widest}");
}

/// Questions and padding have no part in the loss and its gradients.
#[test]
fn gradients_of_answers_are_slopes() {
    let text = super::finetune::chats(40);
    let mut settings = settings(1, LinearMode::Float);
    (settings.batch, settings.context) = (4, 40);
    settings.lora = Some(Lora::new(3));
    settings.lora.as_mut().unwrap().targets = vec!["v_proj".into()];
    let mut json = config("llama", 2048);
    json["num_hidden_layers"] = 1.into();
    let trainer = trainer(&json, text.clone(), settings).unwrap();
    let count: usize = trainer.parameters()[1].shape.iter().product();
    let numbers: Vec<f32> = direction(count, 1).iter().map(|x| 0.2 * x).collect();
    trainer.weights()[1].write(&numbers).unwrap();
    trainer.compute_gradients_of(&text).unwrap();
    let (_, widest) = slopes("answers", &trainer, &text);
    assert!(widest < 0.2, "{widest}");
}

/// Straight through the quantizers, gradients are those of a model whose weights are the ternary
/// ones, and which is not quantized.
#[test]
fn ternary_gradients_are_those_of_dense_weights() {
    let json = config("qwen3", VOCAB);
    let text = Corpus::from_ids(ids(2 * 8 + 1, VOCAB as u32, 9), 8).unwrap();
    let windows: Vec<&[u32]> = (0..2).map(|i| text.window(i)).collect();
    let make = |linear| trainer(&json, text.clone(), settings(1, linear)).unwrap();
    let (float, dense, int8) =
        (make(LinearMode::Float), make(LinearMode::Dense), make(LinearMode::Int8));
    for (info, weights) in dense.parameters().iter().zip(dense.weights()) {
        if info.kind == bitnet_train::Kind::Linear {
            let numbers = read(weights);
            let mean = numbers.iter().map(|w| w.abs()).sum::<f32>() / numbers.len() as f32;
            let ternary = |w: f32| (w / mean).round_ties_even().clamp(-1.0, 1.0) * mean;
            weights.write(&numbers.into_iter().map(ternary).collect::<Vec<_>>()).unwrap();
        }
    }
    for (other, bound) in [(&float, 1e-4), (&int8, 0.1)] {
        assert_gradients_near(&dense, other, &windows, bound);
    }
}

/// The norm of a difference of gradients is at most this share of the gradient's.
pub fn assert_gradients_near(one: &Trainer, other: &Trainer, windows: &[&[u32]], bound: f32) {
    one.compute_gradients(windows).unwrap();
    other.compute_gradients(windows).unwrap();
    for (i, info) in one.parameters().iter().enumerate() {
        let (a, b) = (read(&one.gradients()[i]), read(&other.gradients()[i]));
        let norm = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
        let off: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        let share = norm(&off) / norm(&a);
        assert!(share < bound, "`{}` differs by {share}", info.name);
    }
}

/// f16 has 11 bits: each factor is off by up to 2^-11 of itself, and sums cancel. Twenty of these are
/// allowed.
#[test]
fn mixed_gradients_are_near_those_in_f32() {
    let text = Corpus::from_ids(ids(2 * 8 + 1, VOCAB as u32, 9), 8).unwrap();
    let windows: Vec<&[u32]> = (0..2).map(|i| text.window(i)).collect();
    for (family, linear, lora) in [
        ("bitnet", LinearMode::Int8, None),
        ("llama", LinearMode::Dense, None),
        ("qwen3", LinearMode::Float, None),
        ("llama", LinearMode::Int8, Some(Lora::new(3))),
    ] {
        let [exact, mixed] = [Precision::F32, Precision::Mixed].map(|precision| {
            let mut settings = settings(1, linear);
            (settings.precision, settings.lora) = (precision, lora.clone());
            trainer(&config(family, VOCAB), text.clone(), settings).unwrap()
        });
        if lora.is_some() {
            // B is 0 at first, and then A has no gradient.
            for trainer in [&exact, &mixed] {
                for (i, info) in trainer.parameters().iter().enumerate() {
                    let count: usize = info.shape.iter().product();
                    trainer.weights()[i].write(&direction(count, i as u32)).unwrap();
                }
            }
        }
        assert_gradients_near(&exact, &mixed, &windows, 1e-2);
    }
}
