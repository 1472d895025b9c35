//! Small random models (tests/data/models) on every engine.

use crate::{Golden, block_on, context, contexts, real_model};
use bitnet_wgpu::{
    Context, Element, Result, bitnet,
    formats::{Checkpoint, ModelConfig, ModelFile},
    internals::ModelInternals as _,
    model::{GenerateOptions, Model, Session, SessionOptions, Tokenizer},
    reference,
    weights::{DenseElement, PackedDense, PackedTernary, Scales},
};
use std::path::{Path, PathBuf};

/// The names of all of them.
pub fn names() -> Vec<String> {
    let all = std::fs::read_dir(directory("")).unwrap().map(|entry| entry.unwrap().path());
    let models = all.filter(|path| path.join("golden.safetensors").exists());
    let mut names: Vec<String> =
        models.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// The folder of a small random model.
pub fn directory(name: &str) -> PathBuf {
    crate::data("models").join(name)
}

/// A model on the GPU, with and without subgroup operations, in each layout of activations, fused
/// and not, and on the CPU.
pub fn engines(name: &str) -> Vec<(String, Model)> {
    let mut models = Vec::new();
    for context in contexts() {
        for (device, fast_packed_dot, software) in
            [("Apple's", false, false), ("others", true, false), ("software", false, true)]
        {
            let context = context
                .restricted(|c| (c.fast_packed_dot, c.software) = (fast_packed_dot, software));
            let engine = format!(
                "{name} by the kernels of {device}, subgroups {}",
                context.capabilities().subgroups
            );
            models
                .push((engine, Model::builder(directory(name)).device(&context).build().unwrap()));
        }
    }
    models.push((
        format!("{name} on the CPU"),
        Model::builder(directory(name)).cpu().build().unwrap(),
    ));
    models
}

/// A small random model on the GPU and on the CPU.
pub fn on_gpu_and_cpu(name: &str) -> [(String, Model); 2] {
    let path = directory(name);
    [
        (format!("{name} on the GPU"), Model::builder(&path).device(context()).build().unwrap()),
        (format!("{name} on the CPU"), Model::builder(&path).cpu().build().unwrap()),
    ]
}

/// What transformers computed with it.
pub fn golden(model: &str) -> Golden {
    Golden::open(directory(model).join("golden.safetensors"))
}

/// An empty session.
pub fn session(model: &Model, sequences: usize, capacity: usize, cache: Element) -> Session {
    model.session(SessionOptions::new(sequences, capacity).kv_type(cache)).unwrap()
}

/// The first two layers of the real model, for what asks how a model is used and not what it says:
/// a step takes a third of the time.
pub fn two_layers(context: Option<&Context>) -> Model {
    let path = real_model();
    let tokenizer = Tokenizer::from_directory(&path).unwrap();
    let file = Reconfigured::of(&path, |c| c.layers = 2);
    Model::builder_from(&file, Some(tokenizer)).device(context).build().unwrap()
}

/// A model of another configuration than its file has.
pub struct Reconfigured(Checkpoint, ModelConfig);

impl Reconfigured {
    /// A small random model, of which something is changed.
    pub fn open(name: &str, change: impl FnOnce(&mut ModelConfig)) -> Self {
        Self::of(&directory(name), change)
    }

    fn of(path: &Path, change: impl FnOnce(&mut ModelConfig)) -> Self {
        let checkpoint = Checkpoint::open(path).unwrap();
        let mut config = checkpoint.config().clone();
        change(&mut config);
        Self(checkpoint, config)
    }
}

impl ModelFile for Reconfigured {
    fn config(&self) -> &ModelConfig {
        &self.1
    }

    fn contains(&self, name: &str) -> bool {
        ModelFile::contains(&self.0, name)
    }

    fn linear(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        ModelFile::linear(&self.0, name, rows, columns)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.0.vector(name, len)
    }

    fn dense(&self, name: &str, rows: usize, columns: usize) -> Result<PackedDense> {
        self.0.dense(name, rows, columns)
    }
}

/// The small random model of Qwen3 with an embedding, and a head of its own or not, that are
/// ternary per group of 16 columns.
pub struct TernaryTables {
    file: Checkpoint,
    config: ModelConfig,
    /// Whether it says so, or gives the numbers as floats.
    packed: bool,
}

impl TernaryTables {
    /// Opens it.
    pub fn open(tied_head: bool, packed: bool) -> Self {
        let file = Checkpoint::open(directory("qwen3")).unwrap();
        let mut config = file.config().clone();
        config.tied_head = tied_head;
        Self { file, config, packed }
    }

    /// The head is the embedding with its rows in reverse.
    fn table(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        let floats = self.file.dense("model.embed_tokens", rows, columns)?;
        let row = |row: usize| floats.row(if name == "lm_head" { rows - 1 - row } else { row });
        reference::quantize_weights(
            &(0..rows).flat_map(row).collect::<Vec<f32>>(),
            [rows, columns],
            bitnet::WeightQuantizer::absmean().per_group(16),
        )
    }
}

impl ModelFile for TernaryTables {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn contains(&self, _: &str) -> bool {
        true
    }

    fn linear(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        ModelFile::linear(&self.file, name, rows, columns)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.file.vector(name, len)
    }

    fn dense(&self, name: &str, rows: usize, columns: usize) -> Result<PackedDense> {
        PackedDense::from_f32(rows, columns, &self.table(name, rows, columns)?.dequantize())
    }

    fn ternary_table(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Option<PackedTernary>> {
        self.packed.then(|| self.table(name, rows, columns)).transpose()
    }
}

/// A model of some shape whose weights are all alike, for what depends on sizes alone.
pub struct Shaped(pub ModelConfig);

impl ModelFile for Shaped {
    fn config(&self) -> &ModelConfig {
        &self.0
    }

    fn contains(&self, _: &str) -> bool {
        true
    }

    fn linear(&self, _: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        PackedTernary::from_values(rows, columns, &vec![1; rows * columns], Scales::Tensor(1.0))
    }

    fn vector(&self, _: &str, len: usize) -> Result<Vec<f32>> {
        Ok(vec![1.0; len])
    }

    fn dense(&self, _: &str, rows: usize, columns: usize) -> Result<PackedDense> {
        PackedDense::from_bytes(DenseElement::Bf16, rows, columns, &vec![0; 2 * rows * columns])
    }
}

/// Numbers as bits.
pub fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

/// What a model computes, as bits: the logits of prompts, one too long to be kept as a step among
/// them, of steps of three sequences, layers' outputs, and texts.
pub fn computed(model: &Model) -> Vec<Vec<u32>> {
    let ids: Vec<u32> = (0..65).collect();
    let (mut all, mut session) = (Vec::new(), model.session(SessionOptions::new(3, 70)).unwrap());
    for (sequence, prompt) in [&ids[..], &ids[3..8], &ids[50..51]].into_iter().enumerate() {
        all.push(bits(block_on(session.prefill(sequence, prompt)).unwrap()));
    }
    all.extend(
        [[5, 6, 7], [8, 9, 10]].map(|tokens| bits(block_on(session.decode(&tokens)).unwrap())),
    );
    let c = model.config();
    let hidden: Vec<f32> = (0..3 * c.hidden).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect();
    all.extend(
        [0, c.layers / 2, c.layers - 1]
            .map(|layer| bits(block_on(model.layer_output(layer, &hidden)).unwrap())),
    );
    let options = GenerateOptions::default().max_tokens(6).ignore_eos(true);
    // Two at once: layers that are offloaded meet in the same slots.
    let texts = [0, 1].map(|start| model.generate_ids(&ids[start..start + 4], &options).unwrap());
    all.extend(texts.map(|text| text.into_iter().map(|token| token.unwrap().id).collect()));
    all
}
