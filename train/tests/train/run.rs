//! Runs: their bits, resuming, steps that are skipped.

use super::{bits, bytes, config, context, ids, settings, source, trainer};
use bitnet_train::{
    Corpus, Error, Kind, LinearMode, Precision, Schedule, Settings, Source, Trainer, latest,
};
use serde_json::Value;
use std::fs;

fn text(count: usize) -> Corpus {
    Corpus::from_ids(ids(count, 40, 3), 8).unwrap()
}

/// Six steps of two micro-batches over five windows: more than four epochs.
fn six_steps() -> Settings {
    let mut settings = settings(6, LinearMode::Int8);
    settings.accumulation = 2;
    settings
}

#[test]
fn a_resumed_run_has_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let json = config("bitnet", 40);
    let begin = || trainer(&json, text(5 * 8 + 1), six_steps()).unwrap();
    let mut uninterrupted = begin();
    for _ in 0..6 {
        uninterrupted.step().unwrap();
    }
    let whole = uninterrupted.save(&whole, 1).unwrap();

    let mut first = begin();
    for _ in 0..3 {
        first.step().unwrap();
    }
    first.save(&parts, 2).unwrap();
    drop(first);
    let mut second = begin();
    second.resume(latest(&parts).unwrap().unwrap()).unwrap();
    assert_eq!(second.progress().step, 3);
    while !second.is_done() {
        second.step().unwrap();
    }
    assert_eq!(bits(&second), bits(&uninterrupted));
    let parts = second.save(&parts, 2).unwrap();
    for name in ["model.safetensors", "optimizer.safetensors", "state.json"] {
        assert!(bytes(&whole, name) == bytes(&parts, name), "{name} differs");
    }
}

#[test]
fn checkpoints_of_other_runs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let json = config("llama", 40);
    let mut run = trainer(&json, text(41), six_steps()).unwrap();
    run.step().unwrap();
    let path = run.save(folder.path(), 1).unwrap();
    let (mut other, mut mixed) = (six_steps(), six_steps());
    (other.seed, mixed.precision) = (1, Precision::Mixed);
    let mut wider = json.clone();
    wider["rope_theta"] = 5000.0.into();
    for (mut run, expected) in [
        (trainer(&json, text(41), other).unwrap(), "another seed"),
        (trainer(&json, text(41), mixed).unwrap(), "another precision"),
        (trainer(&json, text(49), six_steps()).unwrap(), "another text"),
        (trainer(&wider, text(41), six_steps()).unwrap(), "another config.json"),
    ] {
        let error = run.resume(&path).unwrap_err();
        assert!(matches!(&error, Error::Checkpoint { .. }) && error.to_string().contains(expected));
    }
    for (name, damage) in [
        ("model.safetensors", &b"short"[..]),
        ("optimizer.safetensors", b""),
        ("state.json", b"{\"format\": 2}"),
        ("state.json", b"[1, 2"),
    ] {
        let sound = fs::read(path.join(name)).unwrap();
        fs::write(path.join(name), damage).unwrap();
        assert!(run.resume(&path).is_err(), "{name}");
        fs::write(path.join(name), sound).unwrap();
    }
    let sound = fs::read_to_string(path.join("state.json")).unwrap();
    for counter in ["step", "updates", "position", "skipped", "skipped_in_row"] {
        let mut json: Value = serde_json::from_str(&sound).unwrap();
        let number = json["progress"][counter].as_u64().unwrap();
        json["progress"][counter] = (number + 7).into();
        fs::write(path.join("state.json"), json.to_string()).unwrap();
        let error = run.resume(&path).unwrap_err().to_string();
        assert!(error.contains("counters that contradict each other"), "{counter}: {error}");
    }
    fs::write(path.join("state.json"), sound).unwrap();
    run.resume(&path).unwrap();
}

/// The warm-up is a tenth of the steps by default.
#[test]
fn longer_runs_go_on_from_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let of_steps =
        |steps| trainer(&config("llama", 40), text(41), settings(steps, LinearMode::Int8)).unwrap();
    let mut run = of_steps(20);
    for step in 1..=4 {
        run.step().unwrap();
        let path = run.save(folder.path(), 1).unwrap();
        let resumed = of_steps(40).resume(&path);
        match step {
            4 => resumed.unwrap(),
            _ => assert!(resumed.unwrap_err().to_string().contains("another warm-up")),
        }
    }
}

/// As is said of a run that diverged.
#[test]
fn training_starts_from_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = trainer(&config("qwen3", 40), text(41), six_steps()).unwrap();
    run.step().unwrap();
    let path = run.save(folder.path(), 1).unwrap();
    let mut slower = six_steps();
    slower.rate *= 0.5;
    let source = Source::from_weights(&path).unwrap();
    let other = Trainer::new(context(), source, text(41), slower).unwrap();
    assert!(bits(&other) == bits(&run));
}

#[test]
fn numbers_that_are_not_finite_are_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let begin = || trainer(&config("llama", 40), text(41), six_steps()).unwrap();
    let mut run = begin();
    run.step().unwrap();
    let good = run.save(folder.path(), 1).unwrap();
    let gain = run.parameters().iter().position(|info| info.kind == Kind::Gain).unwrap();
    let sound = super::read(&run.weights()[gain]);
    run.weights()[gain].write(&vec![f32::INFINITY; sound.len()]).unwrap();
    assert!(run.step().unwrap().skipped);
    assert_eq!(run.save(folder.path(), 1).unwrap(), good);
    assert_eq!(latest(folder.path()).unwrap(), Some(good));
    let mut without = begin();
    without.weights()[gain].write(&vec![f32::NAN; sound.len()]).unwrap();
    assert!(matches!(without.save(folder.path(), 1), Err(Error::Diverged { last: None, .. })));
}

/// A killed run leaves one behind, and names of other files mean nothing.
#[test]
fn unfinished_checkpoints_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let partial = folder.path().join("step-00000099.partial");
    fs::create_dir(&partial).unwrap();
    for name in ["step-9", "notes"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    fs::create_dir(folder.path().join("step-+8")).unwrap();
    assert_eq!(latest(folder.path()).unwrap(), None);
    let mut run = trainer(&config("llama", 40), text(41), six_steps()).unwrap();
    run.step().unwrap();
    let path = run.save(folder.path(), 1).unwrap();
    assert_eq!(latest(folder.path()).unwrap(), Some(path));
    assert!(!partial.exists() && folder.path().join("step-9").exists());
}

#[test]
fn the_last_checkpoints_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = trainer(&config("qwen3", 40), text(41), six_steps()).unwrap();
    for _ in 0..4 {
        run.step().unwrap();
        run.save(folder.path(), 2).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["step-00000003", "step-00000004"]);
}

/// A token whose embedding is NaN makes a loss NaN. It is in one of two windows.
#[test]
fn a_step_that_is_not_finite_changes_nothing() {
    let mut tokens = ids(17, 39, 5);
    tokens[10] = 39;
    let mut settings = settings(8, LinearMode::Int8);
    settings.batch = 1;
    let json = config("llama", 40);
    let mut run =
        trainer(&json, Corpus::from_ids(tokens.clone(), 8).unwrap(), settings.clone()).unwrap();
    let poison = |run: &Trainer| {
        let embedding = &run.weights()[0];
        let mut numbers = super::read(embedding);
        numbers[39 * 24] = f32::NAN;
        embedding.write(&numbers).unwrap();
    };
    poison(&run);
    let mut skipped = 0;
    for step in 1..=8 {
        let before = bits(&run);
        let report = run.step().unwrap();
        assert_eq!((report.step, report.loss.is_nan()), (step, report.skipped));
        assert_eq!(bits(&run) == before, report.skipped, "step {step}");
        skipped += u64::from(report.skipped);
    }
    let progress = run.progress();
    assert_eq!((progress.skipped, u64::from(progress.updates)), (skipped, 8 - skipped));
    assert_eq!(skipped, 4);

    // With that window alone, the run ends, and names the last good checkpoint.
    let folder = tempfile::tempdir().unwrap();
    settings.most_skipped = 3;
    let alone = Corpus::from_ids(tokens[8..].to_vec(), 8).unwrap();
    let mut run = Trainer::new(context(), source(&json), alone, settings).unwrap();
    let path = run.save(folder.path(), 1).unwrap();
    poison(&run);
    assert!(run.step().unwrap().skipped && run.step().unwrap().skipped);
    match run.step() {
        Err(Error::Diverged { steps: 3, last: Some(last) }) => assert_eq!(last, path),
        other => panic!("{:?}", other.map(|report| report.loss)),
    }
    assert_eq!(run.last_step().map(|report| (report.step, report.skipped)), Some((3, true)));
}

#[test]
fn loss_falls_with_the_same_bits_twice() {
    let run = || {
        let mut settings = settings(25, LinearMode::Int8);
        settings.rate = 1e-2;
        let mut json = config("bitnet", 40);
        json["num_hidden_layers"] = 1.into();
        let mut run = trainer(&json, text(4 * 8 + 1), settings).unwrap();
        let losses: Vec<f64> = (0..25).map(|_| run.step().unwrap().loss).collect();
        (losses, bits(&run))
    };
    let (losses, weights) = run();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (first, last) = (mean(&losses[..4]), mean(&losses[21..]));
    println!("{first:.3} falls to {last:.3}");
    assert!(last < 0.6 * first, "{first} to {last}");
    let again = run();
    assert_eq!(losses, again.0);
    assert!(weights == again.1);
}

/// Two micro-batches of one window have the gradients of one of two.
#[test]
fn accumulated_gradients_are_those_of_one_batch() {
    let one = |batch, accumulation| {
        let mut settings = settings(1, LinearMode::Float);
        (settings.batch, settings.accumulation) = (batch, accumulation);
        (settings.warm_up, settings.clip) = (0, 1e9);
        let mut run = trainer(&config("llama", 40), text(41), settings).unwrap();
        let loss = run.step().unwrap().loss;
        (loss, run.gradients().iter().flat_map(super::read).collect::<Vec<f32>>())
    };
    let ((loss, whole), (sum, parts)) = (one(4, 1), one(1, 4));
    assert!((loss - sum).abs() < 1e-6 * loss);
    let off = whole.iter().zip(&parts).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt();
    let norm = whole.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!(off < 1e-5 * norm, "{off} of {norm}");
}

/// Weights, gradients and means are counted before anything is allocated.
#[test]
fn memory_limits_are_checked_first() {
    let source = source(&config("bitnet", 40));
    let bytes = 16 * source.parameters().unwrap();
    let context = pollster::block_on(bitnet_wgpu::Context::new()).unwrap();
    context.limit_memory(bytes - 1);
    let error = Trainer::new(&context, source, text(41), six_steps()).err().unwrap();
    assert!(matches!(error, Error::Memory { weights, .. } if weights == bytes), "{error}");
    assert!(error.to_string().ends_with("or train adapters of one that exists"), "{error}");
    assert_eq!(context.memory_stats().live_bytes, 0);
    // Activations are a part of it.
    context.limit_memory(bytes + 100);
    let error = Trainer::new(&context, self::source(&config("bitnet", 40)), text(41), six_steps());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("smaller batch"), "{error}");
    assert_eq!(context.memory_stats().live_bytes, 0);
}

/// Such a model would be read with quantized activations.
#[test]
fn float_activations_of_bitnet_models_are_refused() {
    for (key, value) in
        [("weight_bits", Value::from(1)), ("architectures", Value::from(vec!["BitNetForCausalLM"]))]
    {
        let mut json = config("llama", 40);
        json[key] = value;
        let error = trainer(&json, text(41), settings(1, LinearMode::Float)).err().unwrap();
        assert!(error.to_string().starts_with("the activation type is float"), "{error}");
        trainer(&json, text(41), settings(1, LinearMode::Int8)).unwrap();
    }
}

#[test]
fn mixed_precision_needs_f16() {
    let plain = context().restricted(|c| c.f16 = false);
    let mut settings = six_steps();
    settings.precision = Precision::Mixed;
    let made = Trainer::new(&plain, source(&config("bitnet", 40)), text(41), settings);
    let error = made.err().unwrap().to_string();
    assert!(error.starts_with("the precision is mixed"), "{error}");
}

/// With gradients that are clipped to far below AdamW's ε, weight decay alone is left.
#[test]
fn norms_are_not_decayed() {
    let mut settings = settings(1, LinearMode::Int8);
    (settings.rate, settings.decay, settings.clip) = (0.1, 0.5, 1e-12);
    settings.schedule = Schedule::Constant;
    let mut run = trainer(&config("qwen3", 40), text(41), settings).unwrap();
    let before: Vec<_> = run.weights().iter().map(super::read).collect();
    run.step().unwrap();
    for ((info, before), after) in run.parameters().iter().zip(before).zip(run.weights()) {
        let factor = if info.kind == Kind::Gain { 1.0 } else { 0.95 };
        let is_close = |(a, b): (f32, &f32)| (a - factor * b).abs() < 1e-4;
        assert!(super::read(after).into_iter().zip(&before).all(is_close), "{}", info.name);
    }
}
