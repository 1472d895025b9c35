//! Reading a model's tensors into host memory.

use crate::{
    error::{Error, Result},
    formats::{
        model_file::ModelFile,
        tensors::{Ends, Layer, Matrix, end_tensors, layer_tensors},
    },
    weights::{dense::PackedDense, ternary::packed::PackedTernary},
};

/// A decoder layer in host memory.
pub(super) type HostLayer = Layer<PackedTernary, Vec<f32>>;

/// What comes before and after the layers, in host memory.
pub(super) type HostEnds = Ends<PackedDense, Vec<f32>>;

impl HostLayer {
    /// Reads a layer.
    ///
    /// # Errors
    /// What the file reports; [`Error::Invalid`] if it gives a tensor of another shape.
    pub fn read(file: &dyn ModelFile, layer: usize) -> Result<Self> {
        let full = |name: &str| format!("model.layers.{layer}.{name}");
        let stacked = |parts: &Vec<Matrix>| {
            let read = |part: &Matrix| {
                let (name, shape) = (full(part.name), (part.rows, part.columns));
                let matrix = file.linear(&name, part.rows, part.columns)?;
                expect(&name, (matrix.rows(), matrix.columns()), shape).map(|()| matrix)
            };
            let parts = parts.iter().map(read).collect::<Result<Vec<_>>>()?;
            PackedTernary::concat(&parts.iter().collect::<Vec<_>>())
        };
        layer_tensors(file.config()).try_map(stacked, |gains| vector(file, &full(gains.name), gains.len))
    }
}

impl HostEnds {
    /// Reads the ends; where `int8_head`, the head is converted to 8 bits. (Not an embedding beside it, of which a token reads one row.)
    ///
    /// # Errors
    /// As [`HostLayer::read`].
    pub fn read(file: &dyn ModelFile, int8_head: bool) -> Result<Self> {
        let dense = |tensor: &Matrix| {
            let matrix = file.dense(tensor.name, tensor.rows, tensor.columns)?;
            expect(tensor.name, (matrix.rows(), matrix.columns()), (tensor.rows, tensor.columns)).map(|()| matrix)
        };
        let mut ends = end_tensors(file.config()).try_map(dense, |gains| vector(file, gains.name, gains.len))?;
        if int8_head {
            let head = ends.untied_head.as_mut().unwrap_or(&mut ends.embedding);
            *head = head.quantize();
        }
        Ok(ends)
    }
}

fn vector(file: &dyn ModelFile, name: &str, len: usize) -> Result<Vec<f32>> {
    let gains = file.vector(name, len)?;
    expect(name, (1, gains.len()), (1, len)).map(|()| gains)
}

/// Shapes are checked again here, since a [`ModelFile`] may be an app's own.
fn expect(name: &str, found: (usize, usize), expected: (usize, usize)) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Invalid { op: "model", what: format!("`{name}` is {found:?}, not {expected:?}") })
}
