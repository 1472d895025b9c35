//! Models with recurrent layers: how their tensors are named, and what is refused. tests/models has
//! their sessions.

use bitnet_wgpu::{
    formats::{Checkpoint, GgufType, write_gguf, write_mlx, write_packed},
    internals::CheckpointInternals as _,
    model::{GenerateOptions, Model, ModelFiles, Speculation},
};
use support::{
    block_on,
    files::{self, Directory},
    models::{bits, directory, golden},
};

fn model() -> Model {
    Model::builder(directory("qwen35")).cpu().build().unwrap()
}

/// A text model within one that takes images, as transformers names its tensors.
#[test]
fn prefixes_of_text_models_are_known() {
    let checkpoint = Checkpoint::open(directory("qwen35")).unwrap();
    let ids = golden("qwen35").ids("prompt1.ids");
    let expected = bits(block_on(model().logits(&ids)).unwrap());
    let within = |name: &str| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.to_owned(),
    };
    let copy = Directory::temporary();
    copy.write("config.json", checkpoint.config_json().to_string());
    let tensors: Vec<_> = checkpoint
        .names()
        .into_iter()
        .map(|name| (within(&name), checkpoint.tensor(&name).unwrap()))
        .map(|(name, tensor)| (name, tensor.dtype.to_string(), tensor.shape.to_vec(), tensor.bytes))
        .collect();
    let tensors: Vec<(&str, &str, &[usize], &[u8])> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (&**name, &**dtype, &shape[..], &bytes[..]))
        .collect();
    copy.write("model.safetensors", files::safetensors(&tensors));
    let model = Model::builder(&copy.0).cpu().build().unwrap();
    assert!(bits(block_on(model.logits(&ids)).unwrap()) == expected);
}

#[test]
fn drafts_of_recurrent_models_keep_the_text() {
    let model = model();
    let prompt = [250, 3, 7, 9, 3, 7, 9, 3, 7];
    let text = |options: &GenerateOptions| {
        let mut generation = model.generate_ids(&prompt, options).unwrap();
        let ids: Vec<u32> = (&mut generation).into_iter().map(|token| token.unwrap().id).collect();
        (ids, generation.speculation())
    };
    let options = GenerateOptions::default().max_tokens(40).ignore_eos(true);
    let (expected, _) = text(&options);
    for speculation in [Speculation::ngram_lengths(1, 3), Speculation::from(&model)] {
        let (found, counts) = text(&options.clone().speculate(speculation));
        assert_eq!(found, expected, "{counts:?}");
        assert!(counts.unwrap().drafted > 0);
    }
}

#[test]
fn recurrent_models_are_not_written() {
    let (folder, checkpoint) =
        (Directory::temporary(), Checkpoint::open(directory("qwen35")).unwrap());
    let path = folder.0.join("written");
    let files = ModelFiles::open(directory("qwen35")).unwrap();
    for refused in [
        write_packed(&checkpoint, &path, false, |_| {}),
        write_mlx(&checkpoint, &path, false, |_| {}),
        write_gguf(&checkpoint, None, &path, GgufType::Tq2_0, false, |_| {}),
        files.builder().write_prepacked(&path, false),
    ] {
        let refused = refused.unwrap_err().to_string();
        let words = ["recurrent layers", "float activations"];
        assert!(words.iter().any(|words| refused.contains(words)), "{refused}");
    }
    assert!(!path.exists());
}
