//! A model's tensors: names and shapes, how they are read, and the structure that holds them in host memory as on a GPU.

use crate::{
    error::{Error, Result},
    formats::{ModelConfig, ModelFile},
    weights::{dense::PackedDense, ternary::packed::PackedTernary},
};

/// One decoder layer, of matrices `M` and vectors `V`. Matrices with the same input are stacked, so that one multiplication does for all.
pub(super) struct Layer<M, V> {
    pub input_norm: V,
    /// Queries, keys, values.
    pub qkv: M,
    /// Only in models with sub-norms.
    pub attention_norm: Option<V>,
    pub output: M,
    pub post_norm: V,
    /// Gate, up.
    pub gate_up: M,
    /// Only in models with sub-norms.
    pub gated_norm: Option<V>,
    pub down: M,
}

/// A decoder layer in host memory.
pub(super) type HostLayer = Layer<PackedTernary, Vec<f32>>;

/// What comes before and after the layers, of dense matrices `D` and vectors `V`.
pub(super) struct Ends<D, V> {
    pub embedding: D,
    pub norm: V,
    /// None where the embedding is the head.
    pub untied_head: Option<D>,
}

/// What comes before and after the layers, in host memory.
pub(super) type HostEnds = Ends<PackedDense, Vec<f32>>;

/// A matrix of a file, `[rows, columns]`.
struct Matrix {
    name: &'static str,
    rows: usize,
    columns: usize,
}

/// The gains of a norm.
struct Gains {
    name: &'static str,
    len: usize,
}

/// Every tensor of a layer by the name that it has after `model.layers.N.`, in each architecture and file format: matrices that are stacked, in
/// their order, and gains.
fn layer_tensors(c: &ModelConfig) -> Layer<Vec<Matrix>, Gains> {
    let (queries, keys) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let stack = |columns, parts: &[(&'static str, usize)]| parts.iter().map(|&(name, rows)| Matrix { name, rows, columns }).collect();
    let gains = |name, len| Gains { name, len };
    let sub_norm = |name, len| c.sub_norms.then_some(Gains { name, len });
    Layer {
        input_norm: gains("input_layernorm", c.hidden),
        qkv: stack(c.hidden, &[("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys)]),
        attention_norm: sub_norm("self_attn.attn_sub_norm", queries),
        output: stack(queries, &[("self_attn.o_proj", c.hidden)]),
        post_norm: gains("post_attention_layernorm", c.hidden),
        gate_up: stack(c.hidden, &[("mlp.gate_proj", c.intermediate), ("mlp.up_proj", c.intermediate)]),
        gated_norm: sub_norm("mlp.ffn_sub_norm", c.intermediate),
        down: stack(c.intermediate, &[("mlp.down_proj", c.hidden)]),
    }
}

/// The tensors outside the layers.
fn end_tensors(c: &ModelConfig) -> Ends<Matrix, Gains> {
    let dense = |name| Matrix { name, rows: c.vocab, columns: c.hidden };
    Ends {
        embedding: dense("model.embed_tokens"),
        norm: Gains { name: "model.norm", len: c.hidden },
        untied_head: (!c.tied_head).then_some(dense("lm_head")),
    }
}

impl<M, V> Layer<M, V> {
    /// The layer with its matrices and vectors converted.
    pub fn try_map<N, W>(&self, matrix: impl Fn(&M) -> Result<N>, vector: impl Fn(&V) -> Result<W>) -> Result<Layer<N, W>> {
        Ok(Layer {
            input_norm: vector(&self.input_norm)?,
            qkv: matrix(&self.qkv)?,
            attention_norm: self.attention_norm.as_ref().map(&vector).transpose()?,
            output: matrix(&self.output)?,
            post_norm: vector(&self.post_norm)?,
            gate_up: matrix(&self.gate_up)?,
            gated_norm: self.gated_norm.as_ref().map(&vector).transpose()?,
            down: matrix(&self.down)?,
        })
    }
}

impl<D, V> Ends<D, V> {
    /// The matrix that makes logits.
    pub fn head(&self) -> &D {
        self.untied_head.as_ref().unwrap_or(&self.embedding)
    }

    /// The ends with their matrices and vectors converted.
    pub fn try_map<E, W>(&self, dense: impl Fn(&D) -> Result<E>, vector: impl Fn(&V) -> Result<W>) -> Result<Ends<E, W>> {
        Ok(Ends {
            embedding: dense(&self.embedding)?,
            norm: vector(&self.norm)?,
            untied_head: self.untied_head.as_ref().map(&dense).transpose()?,
        })
    }
}

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
