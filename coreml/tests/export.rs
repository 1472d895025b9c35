//! Packages that are written: their messages, blobs and files, and what is refused.

use bitnet_coreml::{
    Error, ExportOptions, export,
    proto::{Bound, DataType, Function, Kind, Model, Stored, Value},
};
use bitnet_wgpu::{
    formats::{ModelConfig, ModelFile, open},
    internals::Activation,
    weights::{PackedDense, PackedTernary},
};
use prost::Message as _;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use tempfile::tempdir;

const FOLDER: &str = "Data/com.apple.CoreML";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

fn small() -> ExportOptions {
    ExportOptions::default().context(Some(16)).prefill(4)
}

/// Exports a model of the repository, and returns its program and weight.bin.
fn exported(model: &str) -> (Model, Vec<u8>) {
    let (folder, model) = (tempdir().unwrap(), open(repository(model)).unwrap());
    let output = folder.path().join("model.mlpackage");
    let written = export(&*model, &output, &[], small(), |_, _| {}).unwrap();
    let program = fs::read(output.join(FOLDER).join("model.mlmodel")).unwrap();
    let weights = fs::read(output.join(FOLDER).join("weights/weight.bin")).unwrap();
    assert_eq!(
        (written.program_bytes, written.weight_bytes),
        (program.len() as u64, weights.len() as u64)
    );
    let read = Model::decode(&program[..]).unwrap();
    assert_eq!(read.encode_to_vec(), program);
    (read, weights)
}

fn functions(model: &Model) -> Vec<(&str, &Function)> {
    let program = model.ml_program.as_ref().unwrap();
    program.functions.iter().map(|(name, function)| (name.as_str(), function)).collect()
}

/// Every constant of a function that is in weight.bin: its type, number of elements and place.
fn blobs(function: &Function) -> Vec<(i32, u64, u64)> {
    let block = &function.block_specializations[&function.opset];
    let values = block.operations.iter().flat_map(|operation| {
        let bound = operation.inputs.values().flat_map(|argument| &argument.arguments);
        let bound = bound.filter_map(|binding| match &binding.bound {
            Some(Bound::Value(value)) => Some(value),
            _ => None,
        });
        operation.attributes.get("val").into_iter().chain(bound)
    });
    values.filter_map(blob).collect()
}

fn blob(value: &Value) -> Option<(i32, u64, u64)> {
    let Some(Stored::Blob(blob)) = &value.stored else { return None };
    let Some(Kind::Tensor(tensor)) = &value.r#type.as_ref()?.kind else { return None };
    let sizes = tensor.dimensions.iter().map(|dimension| dimension.constant.as_ref().unwrap().size);
    Some((tensor.data_type, sizes.product(), blob.offset))
}

fn word(bytes: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(bytes[at as usize..][..8].try_into().unwrap())
}

#[test]
fn blobs_are_aligned_and_of_their_size() {
    for model in ["assets/tales-22m", "tests/data/models/qwen3", "tests/data/models/trilm"] {
        let (program, weights) = exported(model);
        let mut places = BTreeSet::new();
        for (_, function) in functions(&program) {
            for (data_type, count, offset) in blobs(function) {
                let (kind, bits) =
                    if data_type == DataType::Uint2 as i32 { (10, 2) } else { (2, 32) };
                let header = u64::from(0xDEAD_BEEF_u32) | kind << 32;
                assert_eq!((offset % 64, word(&weights, offset)), (0, header), "{model}");
                let (size, start, unused) = (
                    word(&weights, offset + 8),
                    word(&weights, offset + 16),
                    word(&weights, offset + 24),
                );
                assert_eq!((8 * size - unused, start), (bits * count, offset + 64), "{model}");
                assert!(unused < 8 && start + size <= weights.len() as u64, "{model}");
                places.insert((offset, (start + size).next_multiple_of(64)));
            }
        }
        // One after another, without a gap, and counted by the header.
        let last = places.iter().try_fold(64, |end, &(begin, next)| (begin == end).then_some(next));
        assert_eq!(last, Some(weights.len() as u64), "{model}");
        assert_eq!(word(&weights, 0), places.len() as u64 | 2 << 32, "{model}");
    }
}

#[test]
fn functions_share_weights_and_states() {
    let (program, _) = exported("tests/data/models/qwen3");
    let functions = functions(&program);
    let [(decode, one), (prefill, chunk)] = &functions[..] else { panic!("two functions") };
    assert_eq!((*decode, *prefill), ("decode", "prefill"));
    assert_eq!(blobs(one), blobs(chunk));
    let description = program.description.as_ref().unwrap();
    assert_eq!(description.functions[0].state, description.functions[1].state);
    assert_eq!(description.default_function_name, "decode");
    assert_eq!(program.specification_version, 9);
}

#[test]
fn every_name_is_defined_once_and_first() {
    let (program, _) = exported("tests/data/models/normed");
    for (_, function) in functions(&program) {
        let mut names: BTreeSet<&str> =
            function.inputs.iter().map(|input| input.name.as_str()).collect();
        let block = &function.block_specializations[&function.opset];
        for operation in &block.operations {
            for binding in operation.inputs.values().flat_map(|argument| &argument.arguments) {
                if let Some(Bound::Name(name)) = &binding.bound {
                    assert!(names.contains(name.as_str()), "{name}");
                }
            }
            for output in &operation.outputs {
                assert!(names.insert(&output.name), "{} twice", output.name);
                let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
                assert!(output.name.chars().all(letters), "{}", output.name);
            }
        }
        assert!(block.outputs.iter().all(|name| names.contains(name.as_str())));
    }
}

#[test]
fn codes_are_those_of_the_model() {
    let (program, weights) = exported("assets/tales-22m");
    let model = open(repository("assets/tales-22m")).unwrap();
    let matrix = model.linear("model.layers.3.mlp.down_proj", 512, 1280).unwrap();
    let functions = functions(&program);
    let block = &functions[0].1.block_specializations["CoreML8"];
    let named = |name: &str| {
        block
            .operations
            .iter()
            .find(|operation| operation.outputs.first().is_some_and(|output| output.name == name))
            .unwrap()
    };
    let weight = named("model_layers_3_mlp_down_proj_weight");
    let Some(Bound::Value(indices)) = &weight.inputs["indices"].arguments[0].bound else {
        panic!()
    };
    let start = blob(indices).unwrap().2 as usize + 64;
    let code = |at: usize| weights[start + at / 4] >> (2 * (at % 4)) & 3;
    for at in [0, 1, 2, 3, 5, 1279, 1280, 77 * 1280 + 13, 512 * 1280 - 1] {
        assert_eq!(i32::from(code(at)) - 1, i32::from(matrix.value(at / 1280, at % 1280)), "{at}");
    }
}

#[test]
fn exports_are_reproducible() {
    let (one, other) = (exported("tests/data/models/llama"), exported("tests/data/models/llama"));
    assert!(one == other);
}

#[test]
fn what_is_missing_is_named() {
    let refused = |model: &dyn ModelFile, missing: &str| {
        let folder = tempdir().unwrap();
        let output = folder.path().join("model.mlpackage");
        let error = export(model, &output, &[], small(), |_, _| {}).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(missing), "{error}");
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
    };
    refused(
        &*open(repository("tests/data/models/gemma3")).unwrap(),
        "`gemma3_text`: attention to a sliding window",
    );
    for (model, missing) in [("qwen35", "recurrent layers"), ("qwen3_moe", "mixtures of experts")] {
        refused(&*open(repository(&format!("tests/data/models/{model}"))).unwrap(), missing);
    }
    let mut other = Other::new("llama");
    other.config.activation = Activation::GeluTanh;
    refused(&other, "`llama`: an activation other than relu2 and silu");
    // Scales of groups, which tables have, would not multiply sums of integers.
    let mut other = Other::new("qwen3");
    other.config.quantized_activations = true;
    refused(&other, "o_proj` with int8 activations and a scale for each group");
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let (folder, model) =
        (tempdir().unwrap(), open(repository("tests/data/models/llama")).unwrap());
    for (context, prefill, shown) in [
        (0, 4, "the context is 0"),
        (257, 4, "256 tokens"),
        (16, 0, "chunk is 0"),
        (16, 17, "16 tokens"),
    ] {
        let options = ExportOptions::default().context(Some(context)).prefill(prefill);
        let error = export(&*model, folder.path().join("x.mlpackage"), &[], options, |_, _| {})
            .unwrap_err();
        assert!(matches!(error, Error::Setting { .. }), "{error}");
        assert!(error.to_string().contains(shown), "{error}");
    }
}

#[test]
fn only_packages_are_overwritten_by_force() {
    let (folder, model) =
        (tempdir().unwrap(), open(repository("tests/data/models/llama")).unwrap());
    let output = folder.path().join("new/model.mlpackage");
    let run = |output: &Path, force| export(&*model, output, &[], small().force(force), |_, _| {});
    run(&output, false).unwrap();
    let error = run(&output, false).unwrap_err();
    assert!(error.to_string().ends_with("exists already"), "{error}");
    fs::write(output.join("old"), "").unwrap();
    run(&output, true).unwrap();
    assert!(!output.join("old").exists());
    // Nothing else is left beside it.
    assert_eq!(fs::read_dir(output.parent().unwrap()).unwrap().count(), 1);
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("letter"), "dear").unwrap();
    assert!(matches!(run(&other, true).unwrap_err(), Error::NoPackage { .. }));
    assert!(matches!(run(&other.join("letter"), true).unwrap_err(), Error::NoPackage { .. }));
    assert!(other.join("letter").exists());
}

/// A model of the repository with another configuration, or a matrix of another size.
struct Other {
    file: Box<dyn ModelFile>,
    config: ModelConfig,
    /// The end of the name of a matrix that has a row too few.
    broken: &'static str,
}

impl Other {
    fn new(model: &str) -> Self {
        let file = open(repository("tests/data/models").join(model)).unwrap();
        Self { config: file.config().clone(), file, broken: "nothing" }
    }
}

impl ModelFile for Other {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn contains(&self, name: &str) -> bool {
        self.file.contains(name)
    }

    fn linear(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> bitnet_wgpu::Result<PackedTernary> {
        self.file.linear(name, rows + usize::from(name.ends_with(self.broken)), columns)
    }

    fn vector(&self, name: &str, len: usize) -> bitnet_wgpu::Result<Vec<f32>> {
        self.file.vector(name, len)
    }

    fn dense(&self, name: &str, rows: usize, columns: usize) -> bitnet_wgpu::Result<PackedDense> {
        self.file.dense(name, rows, columns)
    }
}

#[test]
fn a_failed_export_leaves_the_old_package() {
    let folder = tempdir().unwrap();
    let output = folder.path().join("model.mlpackage");
    let model = Other { broken: "layers.1.mlp.down_proj", ..Other::new("llama") };
    export(&*model.file, &output, &[], small(), |_, _| {}).unwrap();
    let before = fs::read(output.join("Manifest.json")).unwrap();
    let error = export(&model, &output, &[], small().force(true), |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("down_proj"), "{error}");
    assert_eq!(fs::read(output.join("Manifest.json")).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
