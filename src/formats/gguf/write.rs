//! Writes a model as a GGUF file, one tensor at a time: at most one matrix is in memory.

use super::{
    blocks::GgufType,
    config::{LONG, SHORT},
    metadata::{Metadata, metadata, put_text},
    model::{GgufModel, paired, stored},
    vocabulary::GgufVocabulary,
};
use crate::{
    error::{Result, at},
    files::write::{AtomicFile, check_new_output, check_no_input},
    formats::{
        checkpoint::Checkpoint,
        config::ModelConfig,
        families,
        family::{Architecture, RotaryOrder},
        format_error::{FormatError, unsupported},
        input_files::input_files,
        model_file::ModelFile,
        tensors::{Gains, Matrix, end_tensors, layer_tensors},
        write::{WrittenTensor, quantisation_error},
    },
    weights::{
        dense::{DenseElement, PackedDense},
        ternary::{
            layout::{CODES_PER_WORD, scatter, transpose},
            packed::PackedTernary,
            scales::Scales,
        },
    },
};
use half::f16;
use rayon::prelude::*;
use std::{
    fs,
    io::{self, BufWriter, Write},
    path::Path,
};

/// Where tensors begin: at multiples of this many bytes.
const ALIGNMENT: usize = 32;

/// Writes `checkpoint` as the GGUF file `output`, with the linear layers of its blocks as `kind`:
/// [`GgufType::Tq2_0`], or [`GgufType::Q2_0`], which has smaller blocks. Both are types of
/// llama.cpp, and so are the architectures that it is written as, but for `bitnet-b1.58`
/// (relu(x)²), which bitnet.cpp has, and for norms of linear layers.
///
/// No number changes: embedding and head stay in their types (Q2_0 where they are ternary), a
/// matrix whose scale is not an f16 has it in a tensor beside it, and scales of groups are f16 or
/// refused. Floats of a model that is to be quantized are quantized by their absmean. The input is
/// read twice, the first time to see whether the type holds it. `vocabulary` is the tokenizer, from
/// [`Tokenizer::to_gguf`](crate::model::Tokenizer::to_gguf); without one, the file says that it has
/// none. `progress` is called after each tensor. The file takes its name when it is complete.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io), also if `output` exists and `force` is not set;
/// [`Error::Unsupported`](crate::Error::Unsupported) for another type, for what GGUF cannot say of
/// a model, for tensors that the model does not use, and for a matrix that the type does not hold:
/// other blocks, or scales that are not f16. Else as [`Checkpoint::linear`].
pub fn write_gguf(
    checkpoint: &Checkpoint,
    vocabulary: Option<&GgufVocabulary>,
    output: impl AsRef<Path>,
    kind: GgufType,
    force: bool,
    mut progress: impl FnMut(&WrittenTensor),
) -> Result<()> {
    let output = output.as_ref();
    let refused = |problem: FormatError| problem.at(checkpoint.path());
    if !force && output.exists() {
        return at(output, Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists already")));
    }
    check_no_input(output, &input_files(checkpoint.path())?)?;
    checkpoint.check_unused()?;
    let architecture = architecture(checkpoint.config()).map_err(refused)?;
    let metadata = metadata(checkpoint, architecture, vocabulary, kind).map_err(refused)?;
    check_new_output(output)?;
    let tensors = tensors(checkpoint, kind)?;
    if let Some(folder) = output.parent() {
        at(folder, fs::create_dir_all(folder))?;
    }
    let mut out = AtomicFile::create(output)?;
    let header = header(&metadata, &tensors);
    out.reserve((header.len() + tensors.iter().map(Tensor::aligned).sum::<usize>()) as u64)?;
    let mut file = BufWriter::new(out.file());
    at(output, file.write_all(&header))?;
    for (i, tensor) in tensors.iter().enumerate() {
        let (bytes, error) = tensor.read(checkpoint, architecture.rotary)?;
        at(output, file.write_all(&bytes))?;
        at(
            output,
            file.write_all(&vec![0; bytes.len().next_multiple_of(ALIGNMENT) - bytes.len()]),
        )?;
        let (name, bytes_after) = (tensor.name.clone(), bytes.len() as u64);
        progress(&WrittenTensor {
            name,
            done: i + 1,
            total: tensors.len(),
            bytes_before: tensor.before,
            bytes_after,
            error,
        });
    }
    at(output, file.flush())?;
    drop(file);
    same_model(&GgufModel::open(out.partial())?, checkpoint.config()).map_err(refused)?;
    out.commit()
}

/// Checks that the file is of the same model, except for its tokens and names.
fn same_model(file: &GgufModel, expected: &ModelConfig) -> Result<(), FormatError> {
    let (architecture, generation) = (expected.architecture.clone(), expected.generation.clone());
    let (eos, embedding) = (expected.eos.clone(), expected.embedding.clone());
    let read = ModelConfig {
        architecture,
        generation,
        eos,
        embedding,
        bos: expected.bos,
        ..file.config().clone()
    };
    if &read == expected {
        Ok(())
    } else {
        unsupported("has a configuration value that GGUF cannot store")
    }
}

/// The architecture that has the model's graph.
fn architecture(c: &ModelConfig) -> Result<&'static Architecture, FormatError> {
    if let Some(why) = c.family().not_written {
        return unsupported(why);
    }
    let Some((family, found)) = families::with_graph(c) else {
        return unsupported("is of a graph for which GGUF has no architecture");
    };
    if found.tied && !(c.tied_head && c.heads * c.head_dim == c.hidden) {
        return unsupported(
            "has sub-norms and SiLU, for which GGUF's architecture needs a tied head, and heads as wide as the model",
        );
    }
    let quantized = family.defaults.quantized_activations || c.projection_norms;
    match (c.quantized_activations, quantized) {
        (true, false) => unsupported(format!(
            "quantizes its activations; GGUF's `{}` has float activations",
            found.name
        )),
        (false, true) => unsupported(format!(
            "has float activations; GGUF's `{}` has quantized ones. If the source does not say, ReadOptions::quantized_activations does \
             (--activations int8 on the command line)",
            found.name
        )),
        _ => Ok(found),
    }
}

// --- tensors

/// A tensor of the file.
struct Tensor {
    name: String,
    /// Outermost first.
    shape: Vec<usize>,
    kind: GgufType,
    /// Bytes in the file.
    bytes: usize,
    /// Bytes in the input.
    before: u64,
    content: Content,
}

/// What is in it, by names of transformers.
enum Content {
    Gains(String, usize),
    /// With scales of one where they are beside it.
    Linear {
        name: String,
        rows: usize,
        columns: usize,
        scaled: bool,
    },
    Floats(Vec<f32>),
    /// An embedding or a head.
    Table {
        name: &'static str,
        rows: usize,
        columns: usize,
        ternary: bool,
    },
}

/// All tensors, in the order in which a token meets them.
///
/// # Errors
/// Those of [`write_gguf`]: all matrices are read, so that none is found wrong when the file has
/// begun.
fn tensors(checkpoint: &Checkpoint, kind: GgufType) -> Result<Vec<Tensor>> {
    let c = checkpoint.config();
    let (ends, layer) = (end_tensors(c), layer_tensors(c));
    let mut tensors = vec![table(checkpoint, kind, &ends.embedding)?];
    for i in 0..c.layers {
        let full = |name: &str| format!("model.layers.{i}.{name}");
        let norms = layer.vectors().into_iter();
        tensors.extend(norms.map(|norm| gains(checkpoint, full(norm.name), norm)));
        for matrix in layer.matrices().into_iter().flatten() {
            linear(checkpoint, kind, full(matrix.name), matrix, &mut tensors)?;
        }
    }
    tensors.push(gains(checkpoint, ends.norm.name.into(), &ends.norm));
    if let Some(head) = &ends.untied_head {
        tensors.push(table(checkpoint, kind, head)?);
    }
    if !c.rope_factors.is_empty() {
        tensors.extend([SHORT, LONG].map(|name| Tensor {
            name: name.into(),
            shape: vec![c.rope_factors.len()],
            kind: GgufType::F32,
            bytes: 4 * c.rope_factors.len(),
            before: 0,
            content: Content::Floats(c.rope_factors.clone()),
        }));
    }
    Ok(tensors)
}

fn gains(checkpoint: &Checkpoint, name: String, &Gains { len, .. }: &Gains) -> Tensor {
    let before = checkpoint.bytes_of(&name);
    Tensor {
        name: format!("{}.weight", stored(&name, checkpoint.config().family())),
        shape: vec![len],
        kind: GgufType::F32,
        bytes: 4 * len,
        before,
        content: Content::Gains(name, len),
    }
}

fn linear(
    checkpoint: &Checkpoint,
    kind: GgufType,
    name: String,
    &Matrix { rows, columns, .. }: &Matrix,
    all: &mut Vec<Tensor>,
) -> Result<()> {
    let refused = |what: String| {
        FormatError::Unsupported(format!("`{name}.weight` {what}")).at(checkpoint.path())
    };
    // Before the matrix is read.
    let bytes = kind
        .bytes(rows * columns, columns)
        .map_err(|what| refused(format!("{what}{}", smaller(kind, columns))))?
        .unwrap_or(0);
    let matrix = ModelFile::linear(checkpoint, &name, rows, columns)?;
    let beside = match matrix.scales() {
        Scales::Tensor(scale) => Some(*scale).filter(|&scale| !is_f16(scale)),
        _ => check_groups(kind, &matrix).map(|()| None).map_err(refused)?,
    };
    let (before, place) = (checkpoint.bytes_of(&name), stored(&name, checkpoint.config().family()));
    let content = Content::Linear { name, rows, columns, scaled: beside.is_none() };
    all.push(Tensor {
        name: format!("{place}.weight"),
        shape: vec![rows, columns],
        kind,
        bytes,
        before,
        content,
    });
    if let Some(scale) = beside {
        all.push(Tensor {
            name: format!("{place}.scale"),
            shape: vec![1],
            kind: GgufType::F32,
            bytes: 4,
            before: 0,
            content: Content::Floats(vec![scale]),
        });
    }
    Ok(())
}

/// Names the types that can hold a matrix of this many columns, which `kind` cannot.
fn smaller(kind: GgufType, columns: usize) -> &'static str {
    if kind == GgufType::Tq2_0 && columns.is_multiple_of(GgufType::Q2_0.block().0) {
        "; Q2_0 has blocks of 64"
    } else {
        ""
    }
}

fn table(
    checkpoint: &Checkpoint,
    kind: GgufType,
    &Matrix { name, rows, columns, .. }: &Matrix,
) -> Result<Tensor> {
    let fits = kind == GgufType::Q2_0 && columns.is_multiple_of(kind.block().0);
    let matrix = if fits { checkpoint.ternary_table(name, rows, columns)? } else { None };
    let ternary = matrix.is_some_and(|matrix| check_groups(kind, &matrix).is_ok());
    let kind = if ternary { kind } else { float_type(&checkpoint.dense(name, rows, columns)?) };
    let bytes = kind.bytes(rows * columns, columns).ok().flatten().unwrap_or(0);
    let (before, content) =
        (checkpoint.bytes_of(name), Content::Table { name, rows, columns, ternary });
    Ok(Tensor {
        name: format!("{}.weight", stored(name, checkpoint.config().family())),
        shape: vec![rows, columns],
        kind,
        bytes,
        before,
        content,
    })
}

fn float_type(matrix: &PackedDense) -> GgufType {
    match matrix.element() {
        DenseElement::F16 => GgufType::F16,
        DenseElement::Bf16 => GgufType::Bf16,
        _ => GgufType::F32,
    }
}

fn is_f16(scale: f32) -> bool {
    f16::from_f32(scale).to_f32() == scale
}

/// Checks that blocks lie within groups, and that their scales are f16.
fn check_groups(kind: GgufType, matrix: &PackedTernary) -> Result<(), String> {
    let block = kind.block().0;
    if let Some(size) = matrix.group().filter(|size| !size.is_multiple_of(block)) {
        return Err(format!(
            "has a scale for every {size} columns; blocks of {kind} have {block}{}",
            smaller(kind, size)
        ));
    }
    match matrix.row_scales().into_iter().find(|&scale| !is_f16(scale)) {
        Some(scale) => Err(format!("has the scale {scale}; {kind} needs scales in f16")),
        None => Ok(()),
    }
}

impl Tensor {
    /// Its bytes in the file, with what aligns the next.
    fn aligned(&self) -> usize {
        self.bytes.next_multiple_of(ALIGNMENT)
    }

    /// Its bytes, and what quantizing has changed.
    fn read(&self, checkpoint: &Checkpoint, rotary: RotaryOrder) -> Result<(Vec<u8>, Option<f64>)> {
        let floats = |floats: &[f32]| floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        Ok(match &self.content {
            Content::Gains(name, len) => (floats(&checkpoint.vector(name, *len)?), None),
            Content::Floats(numbers) => (floats(numbers), None),
            Content::Linear { name, rows, columns, scaled } => {
                let matrix = ModelFile::linear(checkpoint, name, *rows, *columns)?;
                let error =
                    quantisation_error(&checkpoint.tensor(&format!("{name}.weight"))?, &matrix)?;
                let rotates =
                    name.ends_with(".self_attn.q_proj") || name.ends_with(".self_attn.k_proj");
                let head = checkpoint.config().head_dim;
                let matrix = if rotates && rotary == RotaryOrder::Pairs {
                    matrix.reorder_rows(|row| paired(row, head))?
                } else {
                    matrix
                };
                (encode(self.kind, &matrix, *scaled), error)
            }
            Content::Table { name, rows, columns, ternary: true } => {
                let matrix = checkpoint.ternary_table(name, *rows, *columns)?;
                let gone =
                    || FormatError::from("has changed while it was read").at(checkpoint.path());
                (encode(self.kind, &matrix.ok_or_else(gone)?, true), None)
            }
            Content::Table { name, rows, columns, ternary: false } => {
                let matrix = checkpoint.dense(name, *rows, *columns)?;
                let row = columns * matrix.element().bytes();
                let words = matrix.words().chunks_exact(matrix.element().row_words(*columns));
                (
                    words
                        .flat_map(|words| &bytemuck::cast_slice::<u32, u8>(words)[..row])
                        .copied()
                        .collect(),
                    None,
                )
            }
        })
    }
}

/// The blocks of a matrix, with scales of one unless it is `scaled`.
fn encode(kind: GgufType, matrix: &PackedTernary, scaled: bool) -> Vec<u8> {
    let (size, bytes) = kind.block();
    let groups = matrix.group();
    let scales = matrix.row_scales();
    let blocks = matrix.columns() / size;
    let in_row = groups.map_or(1, |group| matrix.columns().div_ceil(group));
    let mut out = vec![0; matrix.rows() * blocks * bytes];
    out.par_chunks_exact_mut(bytes).enumerate().for_each(|(i, out)| {
        let (row, block) = (i / blocks, i % blocks);
        let scale = scales[row * in_row + groups.map_or(0, |group| block * size / group)];
        let scale = f16::from_f32(if scaled { scale } else { 1.0 }).to_le_bytes();
        let words = &matrix.row(row)[block * size / CODES_PER_WORD..][..size / CODES_PER_WORD];
        if kind == GgufType::Tq2_0 {
            for (run, words) in words.chunks_exact(2).enumerate() {
                scatter(words, &mut out[run / 4 * 32..][..32], run % 4 * 2);
            }
            out[64..].copy_from_slice(&scale);
        } else {
            out[..2].copy_from_slice(&scale);
            let (quads, _) = out[2..].as_chunks_mut::<4>();
            quads
                .iter_mut()
                .zip(words)
                .for_each(|(quad, word)| *quad = transpose(*word).to_le_bytes());
        }
    });
    out
}

/// The file up to its data.
fn header(metadata: &Metadata, tensors: &[Tensor]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(metadata.count.to_le_bytes());
    bytes.extend(&metadata.bytes);
    let mut offset = 0;
    for tensor in tensors {
        put_text(&mut bytes, &tensor.name);
        bytes.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|&size| bytes.extend((size as u64).to_le_bytes()));
        bytes.extend(tensor.kind.id().to_le_bytes());
        bytes.extend((offset as u64).to_le_bytes());
        offset += tensor.aligned();
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    bytes
}
