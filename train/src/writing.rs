//! Text that a model writes, for a student to learn from.

use crate::{
    data::{check_ids, end_of_text},
    error::{Error, Result},
    tensors::at,
};
use bitnet_wgpu::{
    Context,
    internals::files::write,
    model::{GenerateOptions, Model, Sampling},
};
use pollster::block_on;
use serde_json::json;
use std::path::Path;

/// Documents that are written side by side.
const TOGETHER: usize = 16;

/// How much a model writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writing {
    /// Number of tokens, at least.
    pub tokens: usize,
    /// Number of tokens of a document, at most.
    pub length: usize,
    /// Seed of its random numbers.
    pub seed: u64,
}

/// Lets a model write documents, each from the token that begins a text, or else that which ends
/// one, at a temperature of 1. They become lines `{"text": ".."}` of a file, which is complete under
/// its name. The same device, model and seed give the same bytes. `progress` is called with the
/// number of tokens so far.
///
/// # Errors
/// [`Error::Data`] for a model that writes nothing; [`Error::Library`] as
/// [`ModelBuilder::build`](bitnet_wgpu::model::ModelBuilder::build), and for what the device or the
/// disk reports.
pub fn write_text(
    teacher: impl AsRef<Path>,
    context: &Context,
    file: impl AsRef<Path>,
    writing: Writing,
    mut progress: impl FnMut(usize),
) -> Result<()> {
    let (teacher, file) = (teacher.as_ref(), file.as_ref());
    let model = Model::builder(teacher).device(context).text_check(false).build()?;
    let end = end_of_text(model.tokenizer()?, model.config(), teacher)?;
    let first = model.tokenizer()?.bos().unwrap_or(end);
    check_ids(&[first], model.config())?;
    let length = writing.length.min(model.config().context.saturating_sub(1)).max(1);
    let (mut lines, mut written, mut seed) = (String::new(), 0, writing.seed);
    while written < writing.tokens {
        let sampling = Sampling::GREEDY.temperature(1.0).seed(seed);
        let options = GenerateOptions::default().max_tokens(length).sampling(sampling);
        let prompts = vec![vec![first]; TOGETHER];
        for document in block_on(model.generate_batch_ids(&prompts, &options))? {
            written += document.ids.len() + 1;
            if !document.text.trim().is_empty() {
                lines += &format!("{}\n", json!({"text": document.text}));
            }
        }
        if lines.is_empty() {
            let problem = "the teacher has written nothing but white space";
            return Err(Error::Data { path: file.to_owned(), line: None, problem: problem.into() });
        }
        seed = seed.wrapping_add(TOGETHER as u64);
        progress(written);
    }
    if let Some(folder) = file.parent() {
        at(folder, std::fs::create_dir_all(folder))?;
    }
    Ok(write(file, lines.as_bytes())?)
}
