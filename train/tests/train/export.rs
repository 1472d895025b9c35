//! Exported models: the inference path computes the loss of training.

use super::{TALES, bits, config, context, ids, read, settings, trainer};
use bitnet_train::{Corpus, DenseElement, Error, LinearMode, Source, Trainer, score};
use bitnet_wgpu::model::{Device, GenerateOptions, Model};
use pollster::block_on;

const VOCAB: usize = 2048;

/// A model of a family after some steps, and text that it has not seen.
fn trained(family: &str, linear: LinearMode) -> (Trainer, Corpus) {
    let text = Corpus::from_ids(ids(12 * 8 + 1, 60, 11), 8).unwrap();
    let (text, held_out) = text.split(4).unwrap();
    let mut run = trainer(&config(family, VOCAB), text, settings(2, linear)).unwrap();
    while !run.is_done() {
        run.step().unwrap();
    }
    (run, held_out)
}

#[test]
fn inference_computes_the_loss_of_training() {
    let folder = tempfile::tempdir().unwrap();
    for (family, linear, bound) in [
        ("bitnet", LinearMode::Int8, 2e-5),
        ("llama", LinearMode::Int8, 2e-5),
        ("qwen3", LinearMode::Int8, 2e-5),
        // Scales are rounded to f16.
        ("llama", LinearMode::Float, 2e-4),
        ("qwen3", LinearMode::Float, 2e-4),
    ] {
        let (run, held_out) = trained(family, linear);
        let path = folder.path().join("model");
        run.export(&path, TALES, DenseElement::F32).unwrap();
        let expected = run.loss(&held_out).unwrap();
        for device in [Device::from(context()), Device::Cpu] {
            let scored = score(&path, device, &held_out).unwrap();
            assert_eq!(scored.tokens, held_out.windows() * 8);
            let found = scored.loss;
            let off = (found / expected - 1.0).abs();
            println!("{family}: {found:.6}, off by {off:.1e}");
            assert!(off < bound, "{family}: {found}, not {expected}");
        }
        let model = Model::builder(&path).cpu().build().unwrap();
        assert_eq!(model.config().quantized_activations, linear == LinearMode::Int8);
        assert!(model.tokenizer().unwrap().vocab_size() <= VOCAB);
    }
}

#[test]
fn training_starts_from_float_weights() {
    let folder = tempfile::tempdir().unwrap();
    let (mut run, _) = trained("llama", LinearMode::Int8);
    let path = run.save(folder.path(), 1).unwrap();
    let json = config("llama", VOCAB);
    std::fs::write(path.join("config.json"), json.to_string()).unwrap();
    let text = Corpus::from_ids(ids(41, 60, 1), 8).unwrap();
    let begin = || {
        let source = Source::from_weights(&path).unwrap();
        Trainer::new(context(), source, text.clone(), settings(5, LinearMode::Int8))
    };
    let again = begin().unwrap();
    for (a, b) in run.weights().iter().zip(again.weights()) {
        assert!(read(a) == read(b));
    }
}

#[test]
fn samples_are_what_inference_generates() {
    let folder = tempfile::tempdir().unwrap();
    let (run, _) = trained("llama", LinearMode::Int8);
    let (path, before) = (folder.path().join("model"), bits(&run));
    run.export(&path, TALES, DenseElement::F32).unwrap();
    let model = Model::builder(&path).device(context()).text_check(false).build().unwrap();
    let prompt = [5, 9, 3];
    let options = GenerateOptions::default().max_tokens(5).ignore_eos(true);
    let expected = block_on(model.generate_ids(&prompt, &options).unwrap().all()).unwrap().ids;
    assert_eq!(run.sample(&prompt, 100, &[]).unwrap(), expected);
    assert_eq!(run.sample(&prompt, 2, &[]).unwrap(), expected[..2]);
    let at = expected.iter().position(|id| *id == expected[4]).unwrap();
    assert_eq!(run.sample(&prompt, 5, &expected[4..]).unwrap(), expected[..at]);
    assert!(bits(&run) == before);
    for (prompt, problem) in
        [(&[][..], "the prompt is 0"), (&[1; 8], "8; 1 to 7"), (&[2048], "a token")]
    {
        let error = run.sample(prompt, 1, &[]).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn dense_models_are_not_exported() {
    let folder = tempfile::tempdir().unwrap();
    let text = Corpus::from_ids(ids(41, 60, 1), 8).unwrap();
    let run = trainer(&config("llama", VOCAB), text, settings(1, LinearMode::Dense)).unwrap();
    let error = run.export(folder.path(), TALES, DenseElement::F32).unwrap_err();
    assert!(matches!(error, Error::Setting { .. }));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
