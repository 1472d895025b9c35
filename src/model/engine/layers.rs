//! Reading a model's tensors into host memory.

use super::hybrid;
use crate::{
    error::{Error, Result},
    formats::{
        ModelConfig,
        model_file::ModelFile,
        tensors::{Ends, Gains, Layer, Matrix, Table, end_tensors, layer_tensors_at},
    },
    gpu::{context::Context, tensor::Tensor},
    shape::Shape,
    weights::{
        dense::{DenseElement, DenseMatrix, PackedDense},
        ternary::{matrix::TernaryMatrix, packed::PackedTernary},
    },
};

/// A decoder layer in host memory.
pub(crate) type HostLayer = Layer<PackedTernary, Vec<f32>>;

/// A layer of each kind, and which layers are like it.
pub(crate) type LayerKinds = Vec<(HostLayer, Vec<usize>)>;

/// What comes before and after the layers, in host memory.
pub(crate) type HostEnds = Ends<HostTable, Vec<f32>>;

/// An embedding or a head, in host memory.
pub(crate) type HostTable = Table<PackedDense, PackedTernary>;

/// A decoder layer on a GPU.
pub(crate) type GpuLayer = Layer<TernaryMatrix, Tensor<f32>>;

/// What comes before and after some of the layers, on a GPU.
pub(crate) struct GpuEnds {
    /// None where others are before these layers.
    pub embedding: Option<GpuTable>,
    /// The gains of the final norm, and the LM head; none where others are after these layers.
    pub head: Option<(Tensor<f32>, GpuTable)>,
}

/// An embedding or a head, on a GPU.
pub(crate) type GpuTable = Table<DenseMatrix, TernaryMatrix>;

impl HostLayer {
    /// Reads a layer.
    ///
    /// # Errors
    /// What the file reports; [`Error::Invalid`] if it gives a tensor of another shape.
    pub fn read(file: &dyn ModelFile, layer: usize) -> Result<Self> {
        let full = |name: &str| format!("model.layers.{layer}.{name}");
        let stacked = |parts: &Vec<Matrix>| {
            let names: Vec<String> = parts.iter().map(|part| full(part.name)).collect();
            let rows = parts.iter().map(|part| part.rows).sum();
            let (columns, scale) =
                parts.first().map_or((0, 1.0), |part| (part.columns, part.scale));
            if parts.iter().all(|part| part.scale == scale)
                && let Some(matrix) = file.stacked(
                    &names.iter().map(String::as_str).collect::<Vec<_>>(),
                    rows,
                    columns,
                )?
            {
                let found = (matrix.rows(), matrix.columns());
                expect(&names.join("`, `"), found, (rows, columns))?;
                return scaled(matrix, scale);
            }
            let read = |part: &Matrix| {
                let (name, shape) = (full(part.name), (part.rows, part.columns));
                let matrix = file.linear(&name, part.rows, part.columns)?;
                expect(&name, (matrix.rows(), matrix.columns()), shape)?;
                scaled(matrix, part.scale)
            };
            let parts = parts.iter().map(read).collect::<Result<Vec<_>>>()?;
            PackedTernary::concat(&parts.iter().collect::<Vec<_>>())
        };
        let read = layer_tensors_at(file.config(), layer)
            .try_map(stacked, |gains| vector(file, &full(gains.name), gains))?;
        hybrid::arranged(read, file.config())
    }

    /// Reads the first layer of each kind.
    ///
    /// # Errors
    /// As [`HostLayer::read`].
    pub fn kinds(file: &dyn ModelFile, config: &ModelConfig) -> Result<LayerKinds> {
        let mut kinds = Vec::new();
        for recurrent in [false, true] {
            let of_kind = (0..config.layers).filter(|&n| config.is_recurrent(n) == recurrent);
            let of_kind: Vec<usize> = of_kind.collect();
            if let Some(&first) = of_kind.first() {
                kinds.push((Self::read(file, first)?, of_kind));
            }
        }
        Ok(kinds)
    }

    /// Copies it to the GPU.
    ///
    /// # Errors
    /// A tensor beyond the limits of the device, no memory, or a lost device.
    pub fn upload(&self, context: &Context) -> Result<GpuLayer> {
        self.try_map(|matrix| matrix.upload(context), |gains| context.upload(gains, [gains.len()]))
    }
}

impl HostEnds {
    /// Copies to the GPU what the first layers need, the last, or both.
    ///
    /// # Errors
    /// As [`HostTable::upload`].
    pub(crate) fn upload(&self, context: &Context, (first, last): (bool, bool)) -> Result<GpuEnds> {
        let embedding = first.then(|| self.embedding.upload(context)).transpose()?;
        let head = || match (&embedding, &self.untied_head) {
            (Some(embedding), None) => Ok(embedding.clone()),
            _ => self.head().upload(context),
        };
        let norm = last.then(|| context.upload(&self.norm, [self.norm.len()])).transpose()?;
        let head = norm.map(|norm| Ok::<_, Error>((norm, head()?))).transpose()?;
        Ok(GpuEnds { embedding, head })
    }

    /// Reads the ends; where `int8_head`, the LM head is converted to 8 bits, unless it is ternary, or
    /// is in 8 bits already. (Not an embedding beside it, of which a token reads one row.)
    ///
    /// # Errors
    /// As [`HostLayer::read`].
    pub fn read(file: &dyn ModelFile, int8_head: bool) -> Result<Self> {
        let table = |tensor: &Matrix| {
            let &Matrix { name, rows, columns, .. } = tensor;
            if let Some(matrix) = file.ternary_table(name, rows, columns)? {
                return expect(name, (matrix.rows(), matrix.columns()), (rows, columns))
                    .map(|()| Table::Ternary(matrix));
            }
            let matrix = file.dense(name, rows, columns)?;
            expect(name, (matrix.rows(), matrix.columns()), (rows, columns))
                .map(|()| Table::Dense(matrix))
        };
        let mut ends =
            end_tensors(file.config()).try_map(table, |gains| vector(file, gains.name, gains))?;
        let head = ends.untied_head.as_mut().unwrap_or(&mut ends.embedding);
        if let (true, Table::Dense(head)) = (int8_head, head)
            && head.element() != DenseElement::Int8
        {
            *head = head.quantize();
        }
        Ok(ends)
    }
}

impl HostTable {
    /// Copies it to the GPU.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the device cannot bind that much.
    pub fn upload(&self, context: &Context) -> Result<GpuTable> {
        Ok(match self {
            Self::Dense(matrix) => Table::Dense(matrix.upload(context)?),
            Self::Ternary(matrix) => Table::Ternary(matrix.upload(context)?),
        })
    }

    /// The packed elements, a row after another.
    pub fn words(&self) -> &[u32] {
        match self {
            Self::Dense(matrix) => matrix.words(),
            Self::Ternary(matrix) => matrix.words(),
        }
    }

    /// What rows, or groups of their columns, are multiplied by; none where elements are floats.
    pub fn scales(&self) -> Vec<f32> {
        match self {
            Self::Dense(matrix) => matrix.scales().to_vec(),
            Self::Ternary(matrix) => matrix.row_scales(),
        }
    }
}

fn vector(
    file: &dyn ModelFile,
    name: &str,
    &Gains { len, rows, scale, .. }: &Gains,
) -> Result<Vec<f32>> {
    if let Some(rows) = rows {
        return dense(file, name, rows, len / rows.max(1));
    }
    let mut gains = file.vector(name, len)?;
    expect(name, (1, gains.len()), (1, len))?;
    if scale != 1.0 {
        gains.iter_mut().for_each(|gain| *gain *= scale);
    }
    Ok(gains)
}

/// The numbers of a dense matrix, row after row.
fn dense(file: &dyn ModelFile, name: &str, rows: usize, columns: usize) -> Result<Vec<f32>> {
    if let Some(matrix) = file.ternary_table(name, rows, columns)? {
        expect(name, (matrix.rows(), matrix.columns()), (rows, columns))?;
        return Ok(matrix.dequantize());
    }
    let matrix = file.dense(name, rows, columns)?;
    expect(name, (matrix.rows(), matrix.columns()), (rows, columns))?;
    Ok((0..rows).flat_map(|row| matrix.row(row)).collect())
}

fn scaled(matrix: PackedTernary, scale: f32) -> Result<PackedTernary> {
    if scale == 1.0 { Ok(matrix) } else { matrix.scaled(scale) }
}

/// Shapes are checked again here, since a [`ModelFile`] may be an app's own.
fn expect(name: &str, found: (usize, usize), expected: (usize, usize)) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let shape = |(rows, columns)| Shape::from([rows, columns]);
    let what = format!("`{name}` has shape {}, expected {}", shape(found), shape(expected));
    Err(Error::Invalid { op: "model", what })
}
