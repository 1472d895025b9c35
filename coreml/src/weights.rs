//! The weights of a model in weight.bin: what each function of a program names.

use crate::{
    blob::BlobWriter,
    error::{Error, Result},
};
use bitnet_wgpu::{
    formats::{ModelConfig, ModelFile},
    internals::{
        Gains, Layer, LayerStep, Matrix, ModelGraphInternals as _, Stack, end_tensors,
        layer_tensors,
    },
    weights::Scales,
};
use std::collections::{BTreeMap, BTreeSet};

/// The most columns for which sums of int8 products are exact in f32: 128 · columns is below 2^24.
const MOST_COLUMNS: usize = (1 << 17) - 1;

/// A layer as a program has it.
pub(crate) type StoredLayer = Layer<Vec<StoredMatrix>, StoredGains>;

/// What lookup tables hold.
pub(crate) enum Lut {
    /// -1, 0 and 1.
    Codes,
    /// These numbers times the scale of `size` neighboring columns, `[rows, columns / size, 4, 1]`.
    Groups { size: usize, offset: u64 },
}

/// What products are multiplied by.
pub(crate) enum Scale {
    /// Nothing, since lookup tables have it.
    InTables,
    One(f32),
    /// `[rows]`.
    Rows(u64),
}

/// The weights of a linear layer, `[rows, columns]`.
pub(crate) struct StoredMatrix {
    pub name: String,
    pub rows: usize,
    pub columns: usize,
    pub indices: u64,
    pub lut: Lut,
    pub scale: Scale,
}

/// The gains of a norm, `[len]`.
pub(crate) struct StoredGains {
    pub len: usize,
    pub offset: u64,
}

/// All weights of a model, by their places in weight.bin.
pub(crate) struct StoredModel {
    pub layers: Vec<StoredLayer>,
    /// Embedding and head, `[vocab, hidden]`.
    pub embedding: u64,
    pub head: u64,
    pub norm: StoredGains,
    /// Of rotary angles, `[context, head_dim / 2]`.
    pub cosines: u64,
    pub sines: u64,
    /// A bias of zeros for each number of rows.
    pub zeros: BTreeMap<usize, u64>,
}

impl StoredModel {
    /// Writes the weights of a model, and its rotary angles for `context` positions.
    ///
    /// # Errors
    /// Those of the file; [`Error::Unsupported`] for scales that a program cannot have.
    pub fn write(
        model: &dyn ModelFile,
        context: usize,
        writer: &mut BlobWriter,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let config = model.config();
        let ends = end_tensors(config);
        let embedding = table(model, &ends.embedding, writer)?;
        let head = match &ends.untied_head {
            Some(head) => table(model, head, writer)?,
            None => embedding,
        };
        let (cosines, sines) = angles(config, context, writer)?;
        let norm = gains(model, "", &ends.norm, writer)?;
        let mut layers = Vec::new();
        for index in 0..config.layers {
            layers.push(layer(model, index, writer)?);
            progress(index + 1, config.layers);
        }
        let zeros = zeros(&layers, config.vocab, writer)?;
        Ok(Self { layers, embedding, head, norm, cosines, sines, zeros })
    }
}

/// A name that MIL takes: letters, digits and underscores.
pub(crate) fn identifier(name: &str) -> String {
    name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}

fn table(model: &dyn ModelFile, matrix: &Matrix, writer: &mut BlobWriter) -> Result<u64> {
    let dense = model.dense(matrix.name, matrix.rows, matrix.columns)?;
    writer.rows(matrix.rows, matrix.columns, |row| dense.row(row))
}

/// Writes cosines and sines, `[context, head_dim / 2]` each.
fn angles(config: &ModelConfig, context: usize, writer: &mut BlobWriter) -> Result<(u64, u64)> {
    let angles = config.rope_angles(context);
    let part = |part: usize| angles.iter().skip(part).step_by(2).copied().collect::<Vec<f32>>();
    Ok((writer.floats(&part(0))?, writer.floats(&part(1))?))
}

fn gains(
    model: &dyn ModelFile,
    prefix: &str,
    gains: &Gains,
    writer: &mut BlobWriter,
) -> Result<StoredGains> {
    let name = format!("{prefix}{}", gains.name);
    let mut values = model.vector(&name, gains.len)?;
    values.iter_mut().for_each(|value| *value *= gains.scale);
    Ok(StoredGains { len: gains.len, offset: writer.floats(&values)? })
}

fn layer(model: &dyn ModelFile, index: usize, writer: &mut BlobWriter) -> Result<StoredLayer> {
    let prefix = format!("model.layers.{index}.");
    let mut steps = Vec::new();
    for step in layer_tensors(model.config()).0 {
        steps.push(match step {
            LayerStep::Norm(own) => LayerStep::Norm(gains(model, &prefix, &own, writer)?),
            LayerStep::Linear(stack) => LayerStep::Linear(linear(model, &prefix, stack, writer)?),
            LayerStep::HeadNorms { queries, keys } => LayerStep::HeadNorms {
                queries: gains(model, &prefix, &queries, writer)?,
                keys: gains(model, &prefix, &keys, writer)?,
            },
            LayerStep::Attention => LayerStep::Attention,
            LayerStep::Gate => LayerStep::Gate,
            LayerStep::Add => LayerStep::Add,
            LayerStep::Experts(_)
            | LayerStep::KeepGate
            | LayerStep::OutputGate
            | LayerStep::DeltaRates { .. }
            | LayerStep::Delta(_) => {
                let architecture = model.config().architecture.clone();
                let what = "a step of its layers".into();
                return Err(Error::Unsupported { architecture, what });
            }
        });
    }
    Ok(Layer(steps))
}

fn linear(
    model: &dyn ModelFile,
    prefix: &str,
    stack: Stack<Vec<Matrix>, Gains>,
    writer: &mut BlobWriter,
) -> Result<Stack<Vec<StoredMatrix>, StoredGains>> {
    let all = |own: &[Matrix], writer: &mut BlobWriter| -> Result<Vec<StoredMatrix>> {
        own.iter().map(|own| matrix(model, prefix, own, writer)).collect()
    };
    Ok(match stack {
        Stack::One(own) => Stack::One(all(&own, writer)?),
        Stack::Normed(parts) => {
            let mut stored = Vec::new();
            for (norm, own) in parts {
                let norm = gains(model, prefix, &norm, writer)?;
                stored.push((norm, all(&own, writer)?));
            }
            Stack::Normed(stored)
        }
    })
}

fn matrix(
    model: &dyn ModelFile,
    prefix: &str,
    own: &Matrix,
    writer: &mut BlobWriter,
) -> Result<StoredMatrix> {
    let (rows, columns) = (own.rows, own.columns);
    let name = format!("{prefix}{}", own.name);
    let packed = model.linear(&name, rows, columns)?;
    let config = model.config();
    let unsupported =
        |what: String| Error::Unsupported { architecture: config.architecture.clone(), what };
    if config.quantized_activations && columns > MOST_COLUMNS {
        return Err(unsupported(format!(
            "`{name}` with {columns} columns, whose sums are not exact in f32,"
        )));
    }
    // A value is its code less 1.
    let codes: Vec<u8> = packed.to_values().iter().map(|value| (value + 1) as u8).collect();
    let indices = writer.codes(&codes)?;
    let (lut, scale) = match packed.scales() {
        Scales::Tensor(scale) => (Lut::Codes, Scale::One(scale * own.scale)),
        Scales::Segments(segments) => {
            let of_run = |&(rows, scale): &(usize, f32)| vec![scale * own.scale; rows];
            let scales: Vec<f32> = segments.iter().flat_map(of_run).collect();
            (Lut::Codes, Scale::Rows(writer.floats(&scales)?))
        }
        Scales::Groups { .. } if config.quantized_activations => {
            return Err(unsupported(format!(
                "`{name}` with int8 activations and a scale for each group of columns"
            )));
        }
        Scales::Groups { size, scales } => {
            let (size, tables) = tables(rows, columns, *size, scales, own.scale);
            (Lut::Groups { size, offset: writer.floats(&tables)? }, Scale::InTables)
        }
        _ => return Err(unsupported(format!("the scales of `{name}`"))),
    };
    Ok(StoredMatrix { name: identifier(&name), rows, columns, indices, lut, scale })
}

/// Lookup tables of groups, and the columns of one: those of a scale, or a part of them where the
/// last group of a row is short, since tables have as many columns each.
fn tables(
    rows: usize,
    columns: usize,
    of_scale: usize,
    scales: &[f32],
    factor: f32,
) -> (usize, Vec<f32>) {
    let size = common_divisor(of_scale, columns);
    let in_row = columns.div_ceil(of_scale);
    let mut tables = Vec::with_capacity(4 * rows * columns / size);
    for row in 0..rows {
        for table in 0..columns / size {
            let scale = scales[row * in_row + table * size / of_scale] * factor;
            tables.extend([-scale, 0.0, scale, 0.0]);
        }
    }
    (size, tables)
}

/// The greatest common divisor.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Writes a bias of zeros for each number of rows. coremltools writes one wherever there is none.
fn zeros(
    layers: &[StoredLayer],
    vocab: usize,
    writer: &mut BlobWriter,
) -> Result<BTreeMap<usize, u64>> {
    let rows = layers.iter().flat_map(Layer::matrices).flatten().map(|matrix| matrix.rows);
    let rows: BTreeSet<usize> = rows.chain([vocab]).collect();
    rows.into_iter().map(|rows| Ok((rows, writer.floats(&vec![0.0; rows])?))).collect()
}
