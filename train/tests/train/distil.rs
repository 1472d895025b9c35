//! Students: their loss, their gradients, their bits, and what their teachers write.

use super::{
    TALES, bits, bytes, config, context, gradients::assert_gradients_near, ids, read, settings,
    source, trainer,
};
use bitnet_train::{
    Corpus, DenseElement, Distillation, Error, LinearMode, Precision, Settings, Source, Teacher,
    Trainer, Writing, latest, score, write_text,
};
use bitnet_wgpu::model::Model;
use pollster::block_on;
use std::{
    fs,
    path::{Path, PathBuf},
};

const VOCAB: usize = 40;

fn text(count: usize) -> Corpus {
    Corpus::from_ids(ids(count, VOCAB as u32, 3), 8).unwrap()
}

/// The float weights of a model after some steps.
fn floats(folder: &Path, family: &str, steps: u64) -> PathBuf {
    let mut settings = settings(steps, LinearMode::Dense);
    settings.rate = 1e-2;
    let mut run = trainer(&config(family, VOCAB), text(20 * 8 + 1), settings).unwrap();
    while !run.is_done() {
        run.step().unwrap();
    }
    run.save(folder.join(family), 1).unwrap()
}

fn mix(temperature: f32, share: f32) -> Distillation {
    let mut mix = Distillation::default();
    (mix.temperature, mix.share) = (temperature, share);
    mix
}

/// A student of a family with the teacher of a folder.
pub fn student(
    family: &str,
    text: Corpus,
    settings: Settings,
    (teacher, mix): (&Path, Distillation),
) -> Result<Trainer, Error> {
    let teacher = Teacher::open(teacher, mix)?;
    let vocab = teacher.config().vocab;
    Trainer::distil(context(), source(&config(family, vocab)), text, settings, teacher)
}

#[test]
fn a_students_loss_halves_twice_alike() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = floats(folder.path(), "llama", 10);
    let text = text(16 * 8 + 1);
    let run = || {
        let mut settings = settings(40, LinearMode::Int8);
        (settings.batch, settings.rate) = (8, 1e-2);
        let given = (&*teacher, mix(2.0, 0.9));
        let mut run = student("bitnet", text.clone(), settings, given).unwrap();
        let before = run.objective(&text).unwrap();
        while !run.is_done() {
            run.step().unwrap();
        }
        (before, run.objective(&text).unwrap(), bits(&run))
    };
    let first = run();
    println!("{:.4} falls to {:.4}", first.0, first.1);
    assert!(first.1 < 0.5 * first.0, "{} to {}", first.0, first.1);
    assert!(run() == first);
}

#[test]
fn resumed_students_have_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = floats(folder.path(), "llama", 2);
    let begin = |mix| {
        let mut settings = settings(4, LinearMode::Int8);
        settings.accumulation = 2;
        student("qwen3", text(41), settings, (&teacher, mix)).unwrap()
    };
    let mut whole = begin(mix(2.0, 0.5));
    let mut parts = begin(mix(2.0, 0.5));
    parts.step().unwrap();
    let path = parts.save(folder.path().join("parts"), 1).unwrap();
    let mut parts = begin(mix(2.0, 0.5));
    parts.resume(&path).unwrap();
    for run in [&mut whole, &mut parts] {
        while !run.is_done() {
            run.step().unwrap();
        }
    }
    assert!(bits(&whole) == bits(&parts));
    let [whole, parts] =
        [(whole, "a"), (parts, "b")].map(|(mut run, at)| run.save(folder.path().join(at), 1));
    let (whole, parts) = (whole.unwrap(), parts.unwrap());
    for name in ["model.safetensors", "optimizer.safetensors", "state.json"] {
        assert!(bytes(&whole, name) == bytes(&parts, name), "{name} differs");
    }

    let other = floats(&folder.path().join("other"), "llama", 3);
    let mut four = settings(4, LinearMode::Int8);
    four.accumulation = 2;
    let plain = trainer(&config("qwen3", VOCAB), text(41), four.clone()).unwrap();
    let taught = student("qwen3", text(41), four, (&other, mix(2.0, 0.5))).unwrap();
    for (mut run, expected) in [
        (begin(mix(3.0, 0.5)), "another temperature"),
        (begin(mix(2.0, 0.6)), "another teacher's share"),
        (taught, "another teacher;"),
        (plain, "another teacher;"),
    ] {
        let error = run.resume(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(latest(folder.path().join("parts")).unwrap(), Some(path));
}

/// Without a share of the teacher, a student is trained as any model. One that is its own teacher
/// has nothing to learn.
#[test]
fn gradients_are_of_both_distributions() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = floats(folder.path(), "llama", 3);
    let one = settings(1, LinearMode::Dense);
    let text = text(2 * 8 + 1);
    let windows: Vec<&[u32]> = (0..2).map(|i| text.window(i)).collect();
    let plain = trainer(&config("llama", VOCAB), text.clone(), one.clone()).unwrap();
    let of = |mix| student("llama", text.clone(), one.clone(), (&teacher, mix)).unwrap();
    let untaught = of(mix(3.0, 0.0));
    assert_gradients_near(&plain, &untaught, &windows, 1e-5);
    let (loss, expected) = (untaught.objective(&text).unwrap(), plain.loss(&text).unwrap());
    assert!((loss / expected - 1.0).abs() < 1e-6, "{loss}, not {expected}");

    let teacher = Teacher::open(&teacher, mix(3.0, 1.0)).unwrap();
    let itself = Source::from_weights(latest(folder.path().join("llama")).unwrap().unwrap());
    let own = Trainer::distil(context(), itself.unwrap(), text.clone(), one, teacher).unwrap();
    own.compute_gradients(&windows).unwrap();
    let norm = |run: &Trainer| {
        let all = run.gradients().iter().flat_map(read);
        all.map(|x| x * x).sum::<f32>().sqrt()
    };
    let loss = own.objective(&text).unwrap();
    assert!(loss.abs() < 1e-5 && norm(&own) < 1e-4 * norm(&plain), "{loss}, {}", norm(&own));
    assert_eq!(own.teacher_loss(&text).unwrap(), Some(own.loss(&text).unwrap()));
}

#[test]
fn mixed_gradients_of_students_are_near() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = floats(folder.path(), "qwen3", 2);
    let text = text(2 * 8 + 1);
    let windows: Vec<&[u32]> = (0..2).map(|i| text.window(i)).collect();
    let [exact, mixed] = [Precision::F32, Precision::Mixed].map(|precision| {
        let mut settings = settings(1, LinearMode::Float);
        settings.precision = precision;
        student("llama", text.clone(), settings, (&teacher, mix(2.0, 0.8))).unwrap()
    });
    assert_gradients_near(&exact, &mixed, &windows, 2e-2);
}

/// A random model of the shipped tokenizer, packed in a folder.
fn packed(folder: &Path, family: &str, linear: LinearMode) -> PathBuf {
    let run = trainer(&config(family, 2048), text(41), settings(1, linear)).unwrap();
    let path = folder.join(family);
    run.export(&path, TALES, DenseElement::F32).unwrap();
    path
}

#[test]
fn teachers_compute_the_loss_of_inference() {
    let folder = tempfile::tempdir().unwrap();
    let text = text(41);
    for (family, linear) in
        [("bitnet", LinearMode::Int8), ("llama", LinearMode::Int8), ("qwen3", LinearMode::Float)]
    {
        let teacher = packed(folder.path(), family, linear);
        assert!(Teacher::open(&teacher, mix(1.0, 1.0)).unwrap().is_ternary());
        let given = (&*teacher, mix(1.0, 1.0));
        let run = student("llama", text.clone(), settings(1, LinearMode::Int8), given).unwrap();
        let found = run.teacher_loss(&text).unwrap().unwrap();
        let expected = score(&teacher, context(), &text).unwrap().loss;
        assert!((found / expected - 1.0).abs() < 2e-5, "{family}: {found}, not {expected}");
    }
}

/// The loss by its definition, of logits that inference computes.
#[test]
fn a_students_loss_is_of_inferences_logits() {
    const TEMPERATURE: f64 = 2.5;
    let (folder, text) = (tempfile::tempdir().unwrap(), text(2 * 8 + 1));
    let teacher = packed(folder.path(), "llama", LinearMode::Int8);
    let given = (&*teacher, mix(TEMPERATURE as f32, 0.75));
    let run = student("bitnet", text.clone(), settings(1, LinearMode::Int8), given).unwrap();
    let own = folder.path().join("student");
    run.export(&own, TALES, DenseElement::F32).unwrap();
    let [own, teacher] = [own, teacher].map(|path| {
        let model = Model::builder(path).device(context()).text_check(false).build().unwrap();
        let logits = |i| block_on(model.logits(&text.window(i)[..8])).unwrap();
        (0..2).flat_map(logits).map(f64::from).collect::<Vec<_>>()
    });
    let logs = |row: &[f64], t: f64| -> Vec<f64> {
        let sum: f64 = row.iter().map(|v| (v / t).exp()).sum();
        row.iter().map(|v| v / t - sum.ln()).collect()
    };
    let rows = own.chunks(2048).zip(teacher.chunks(2048)).enumerate();
    let of_row = |(i, (own, teacher)): (usize, (&[f64], &[f64]))| {
        let target = text.window(i / 8)[i % 8 + 1] as usize;
        let (q, p) = (logs(own, TEMPERATURE), logs(teacher, TEMPERATURE));
        let divergence: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
        -0.25 * logs(own, 1.0)[target] + 0.75 * TEMPERATURE * TEMPERATURE * divergence
    };
    let expected = rows.map(of_row).sum::<f64>() / 16.0;
    let found = run.objective(&text).unwrap();
    assert!((found / expected - 1.0).abs() < 1e-4, "{found}, not {expected}");
}

#[test]
fn what_a_teacher_writes_follows_from_its_seed() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = packed(folder.path(), "llama", LinearMode::Int8);
    let written = |seed: u64| {
        let (file, mut tokens) = (folder.path().join("text/teacher.jsonl"), 0);
        let writing = Writing { tokens: 300, length: 20, seed };
        write_text(&teacher, context(), &file, writing, |count| tokens = count).unwrap();
        assert!((300..700).contains(&tokens), "{tokens}");
        fs::read(file).unwrap()
    };
    let first = written(5);
    assert!(first == written(5) && first != written(21));
    let lines = String::from_utf8(first).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines.len() >= 15 && lines.iter().all(|line| line.starts_with("{\"text\":\"")));
}

#[test]
fn teachers_are_counted_as_memory() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = Teacher::open(floats(folder.path(), "llama", 1), mix(1.0, 1.0)).unwrap();
    let (json, settings) = (config("bitnet", VOCAB), settings(1, LinearMode::Int8));
    let own = source(&json).parameters().unwrap();
    let bytes = 16 * own + 4 * source(&config("llama", VOCAB)).parameters().unwrap();
    let context = block_on(bitnet_wgpu::Context::new()).unwrap();
    context.limit_memory(bytes - 1);
    let error = Trainer::distil(&context, source(&json), text(41), settings, teacher);
    let error = error.err().unwrap();
    assert!(matches!(error, Error::Memory { weights, .. } if weights == bytes), "{error}");
    assert!(error.to_string().ends_with("or a smaller teacher"), "{error}");
    assert_eq!(context.memory_stats().live_bytes, 0);
}
