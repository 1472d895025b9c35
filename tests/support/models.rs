//! Small random models (tests/data/models) on every engine.

use crate::{Golden, contexts};
use bitnet_wgpu::{
    Element, PackedDense, PackedTernary, Result, bitnet,
    formats::{Checkpoint, ModelConfig, ModelFile},
    model::{Model, Session, SessionOptions},
};
use std::path::PathBuf;

/// The folder of a small random model.
pub fn directory(name: &str) -> PathBuf {
    crate::data("models").join(name)
}

/// A model on the GPU, with and without subgroup operations, in each layout of activations, and on the CPU.
pub fn engines(name: &str) -> Vec<(String, Model)> {
    let mut models = Vec::new();
    for context in contexts() {
        for fast_packed_dot in [false, true] {
            let context = context.restricted(|c| c.fast_packed_dot = fast_packed_dot);
            let engine = format!("{name} on the GPU, subgroups {}, int8 {fast_packed_dot}", context.capabilities().subgroups);
            models.push((engine, Model::load(&context, directory(name)).unwrap()));
        }
    }
    models.push((format!("{name} on the CPU"), Model::load_cpu(directory(name)).unwrap()));
    models
}

/// What transformers computed with it.
pub fn golden(model: &str) -> Golden {
    Golden::open(directory(model).join("golden.safetensors"))
}

/// An empty session.
pub fn session(model: &Model, sequences: usize, capacity: usize, cache: Element) -> Session {
    model.session(SessionOptions::new(sequences, capacity).cache(cache)).unwrap()
}

/// A model with another context than its file says.
pub struct LongContext(Checkpoint, ModelConfig);

impl LongContext {
    /// A small random model with room for so many tokens.
    pub fn open(name: &str, context: usize) -> Self {
        let checkpoint = Checkpoint::open(directory(name)).unwrap();
        let mut config = checkpoint.config().clone();
        config.context = context;
        Self(checkpoint, config)
    }
}

impl ModelFile for LongContext {
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

/// The small random model of Qwen3 with an embedding, and a head of its own or not, that are ternary by groups of 16 columns.
pub struct TernaryTables {
    file: Checkpoint,
    config: ModelConfig,
    /// Does it say so, or give the same numbers as floats?
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
        bitnet::quantize_weights_by_group_cpu(&(0..rows).flat_map(row).collect::<Vec<f32>>(), rows, columns, 16)
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

    fn ternary_table(&self, name: &str, rows: usize, columns: usize) -> Result<Option<PackedTernary>> {
        self.packed.then(|| self.table(name, rows, columns)).transpose()
    }
}
