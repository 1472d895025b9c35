//! A model's tensors: their names and shapes, stated once for all formats and architectures, and
//! the structure that holds what becomes of them.

use super::{
    config::ModelConfig,
    problem::{Problem, unsupported},
};
use crate::{
    error::{Error, Result},
    weights::dense::PackedDense,
};

/// One decoder layer, of matrices `M` and vectors `V`. Matrices with the same input are stacked, so
/// that one multiplication does for all.
pub struct Layer<M, V> {
    pub input_norm: V,
    /// Queries, keys, values.
    pub qkv: Stack<M, V>,
    /// Only in models with norms of query and key heads: gains of `head_dim`.
    pub query_norm: Option<V>,
    /// As `query_norm`.
    pub key_norm: Option<V>,
    /// Only in models with sub-norms, or with a norm of every linear layer.
    pub attention_norm: Option<V>,
    pub output: M,
    /// Only in models with norms of what is added: of `output`'s product.
    pub output_norm: Option<V>,
    /// Before the feed-forward part.
    pub post_norm: V,
    /// Gate, up.
    pub gate_up: Stack<M, V>,
    /// As `attention_norm`.
    pub gated_norm: Option<V>,
    pub down: M,
    /// As `output_norm`, of `down`'s product.
    pub down_norm: Option<V>,
}

/// Linear layers of one input.
pub enum Stack<M, V> {
    /// One matrix, with their rows one after another.
    One(M),
    /// Each with a norm of its own before it.
    Normed(Vec<(V, M)>),
}

/// What comes before and after the layers, of tables `T` and vectors `V`.
pub struct Ends<T, V> {
    pub embedding: T,
    pub norm: V,
    /// None where the embedding is the head.
    pub untied_head: Option<T>,
}

/// An embedding or a head: a dense matrix `D`, or a ternary one `M`.
#[derive(Clone)]
pub enum Table<D, M> {
    Dense(D),
    Ternary(M),
}

/// A matrix of a file, `[rows, columns]`.
pub struct Matrix {
    pub name: &'static str,
    pub rows: usize,
    pub columns: usize,
}

/// The gains of a norm.
pub struct Gains {
    pub name: &'static str,
    pub len: usize,
}

/// Every tensor of a layer by the name that it has after `model.layers.N.`, in each architecture
/// and file format: matrices that are stacked, in their order, and gains.
pub fn layer_tensors(c: &ModelConfig) -> Layer<Vec<Matrix>, Gains> {
    let (queries, keys) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let stack = |columns, parts: &[(&'static str, usize)]| {
        parts.iter().map(|&(name, rows)| Matrix { name, rows, columns }).collect()
    };
    let gains = |name, len| Gains { name, len };
    let sub_norm = |sub_norm, own, len| {
        let name = if c.sub_norms { Some(sub_norm) } else { c.projection_norms.then_some(own) };
        name.map(|name| Gains { name, len })
    };
    let side_by_side = |parts: &[(&'static str, &'static str, usize)]| match c.projection_norms {
        true => Stack::Normed(
            parts
                .iter()
                .map(|&(name, norm, rows)| {
                    (gains(norm, c.hidden), stack(c.hidden, &[(name, rows)]))
                })
                .collect(),
        ),
        false => Stack::One(stack(
            c.hidden,
            &parts.iter().map(|&(name, _, rows)| (name, rows)).collect::<Vec<_>>(),
        )),
    };
    let added_norm = |name| c.post_norms.then_some(Gains { name, len: c.hidden });
    let head_norm = |name| c.qk_norms.then_some(Gains { name, len: c.head_dim });
    Layer {
        input_norm: gains("input_layernorm", c.hidden),
        qkv: side_by_side(&[
            ("self_attn.q_proj", "self_attn.q_proj.norm", queries),
            ("self_attn.k_proj", "self_attn.k_proj.norm", keys),
            ("self_attn.v_proj", "self_attn.v_proj.norm", keys),
        ]),
        query_norm: head_norm("self_attn.q_norm"),
        key_norm: head_norm("self_attn.k_norm"),
        attention_norm: sub_norm("self_attn.attn_sub_norm", "self_attn.o_proj.norm", queries),
        output: stack(queries, &[("self_attn.o_proj", c.hidden)]),
        output_norm: added_norm("post_attention_layernorm"),
        post_norm: gains(
            if c.post_norms { "pre_feedforward_layernorm" } else { "post_attention_layernorm" },
            c.hidden,
        ),
        gate_up: side_by_side(&[
            ("mlp.gate_proj", "mlp.gate_proj.norm", c.intermediate),
            ("mlp.up_proj", "mlp.up_proj.norm", c.intermediate),
        ]),
        gated_norm: sub_norm("mlp.ffn_sub_norm", "mlp.down_proj.norm", c.intermediate),
        down: stack(c.intermediate, &[("mlp.down_proj", c.hidden)]),
        down_norm: added_norm("post_feedforward_layernorm"),
    }
}

/// The tensors outside the layers.
pub fn end_tensors(c: &ModelConfig) -> Ends<Matrix, Gains> {
    let dense = |name| Matrix { name, rows: c.vocab, columns: c.hidden };
    Ends {
        embedding: dense("model.embed_tokens"),
        norm: Gains { name: "model.norm", len: c.hidden },
        untied_head: (!c.tied_head).then_some(dense("lm_head")),
    }
}

/// Every tensor of a model by its name.
pub fn tensor_names(c: &ModelConfig) -> Vec<String> {
    let ends = end_tensors(c);
    let gains =
        in_layers(c, layer_tensors(c).vectors().into_iter().map(|gains| gains.name).collect());
    let head = ends.untied_head.iter().map(|head| head.name);
    linear_names(c)
        .chain(gains)
        .chain([ends.embedding.name, ends.norm.name].into_iter().chain(head).map(str::to_owned))
        .collect()
}

/// The linear layers of a model by their names.
pub fn linear_names(c: &ModelConfig) -> impl Iterator<Item = String> + use<> {
    in_layers(
        c,
        layer_tensors(c).matrices().into_iter().flatten().map(|matrix| matrix.name).collect(),
    )
}

/// These parts, of every layer.
fn in_layers(c: &ModelConfig, parts: Vec<&'static str>) -> impl Iterator<Item = String> + use<> {
    (0..c.layers).flat_map(move |layer| {
        parts.iter().map(|part| format!("model.layers.{layer}.{part}")).collect::<Vec<_>>()
    })
}

/// What is wrong with tensors that nobody asks for, if there are some.
pub fn unused(names: impl Iterator<Item = String>) -> Result<(), Problem> {
    let names: Vec<_> = names.collect();
    if names.is_empty() {
        return Ok(());
    }
    let shown = names[..names.len().min(3)].join("`, `");
    unsupported(format!(
        "has {} tensors that its configuration does not account for, so that it would be another model without them: `{shown}`{}. \
         ModelBuilder::ignore_unused allows it (--ignore-unused on the command line)",
        names.len(),
        if names.len() > 3 { ", .." } else { "" }
    ))
}

/// Numbers of a tensor, all finite; `error` makes an error about the tensor.
pub fn finite(numbers: Vec<f32>, error: impl FnOnce(String) -> Error) -> Result<Vec<f32>> {
    match numbers.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(error(format!("has {} at {at}", numbers[at]))),
        None => Ok(numbers),
    }
}

/// [`finite`] for a matrix.
pub fn finite_matrix(
    matrix: PackedDense,
    error: impl FnOnce(String) -> Error,
) -> Result<PackedDense> {
    match matrix.not_finite() {
        Some((row, column)) => {
            Err(error(format!("has a number that is not finite, in row {row}, column {column}")))
        }
        None => Ok(matrix),
    }
}

impl<M, V> Layer<M, V> {
    /// Its matrices, in the order in which a token meets them.
    pub fn matrices(&self) -> Vec<&M> {
        let (qkv, gate_up) = (self.qkv.matrices().into_iter(), self.gate_up.matrices().into_iter());
        qkv.chain([&self.output]).chain(gate_up).chain([&self.down]).collect()
    }

    /// Its vectors.
    pub fn vectors(&self) -> Vec<&V> {
        let optional = [
            &self.query_norm,
            &self.key_norm,
            &self.attention_norm,
            &self.output_norm,
            &self.gated_norm,
            &self.down_norm,
        ];
        let stacks = self.qkv.norms().into_iter().chain(self.gate_up.norms());
        [&self.input_norm, &self.post_norm]
            .into_iter()
            .chain(optional.into_iter().flatten())
            .chain(stacks)
            .collect()
    }

    /// The layer with its matrices and vectors converted.
    pub fn try_map<N, W>(
        &self,
        matrix: impl Fn(&M) -> Result<N>,
        vector: impl Fn(&V) -> Result<W>,
    ) -> Result<Layer<N, W>> {
        Ok(Layer {
            input_norm: vector(&self.input_norm)?,
            qkv: self.qkv.try_map(&matrix, &vector)?,
            query_norm: self.query_norm.as_ref().map(&vector).transpose()?,
            key_norm: self.key_norm.as_ref().map(&vector).transpose()?,
            attention_norm: self.attention_norm.as_ref().map(&vector).transpose()?,
            output: matrix(&self.output)?,
            output_norm: self.output_norm.as_ref().map(&vector).transpose()?,
            post_norm: vector(&self.post_norm)?,
            gate_up: self.gate_up.try_map(&matrix, &vector)?,
            gated_norm: self.gated_norm.as_ref().map(&vector).transpose()?,
            down: matrix(&self.down)?,
            down_norm: self.down_norm.as_ref().map(&vector).transpose()?,
        })
    }
}

impl<M, V> Stack<M, V> {
    /// The matrices, in order.
    pub fn matrices(&self) -> Vec<&M> {
        match self {
            Self::One(matrix) => vec![matrix],
            Self::Normed(parts) => parts.iter().map(|(_, matrix)| matrix).collect(),
        }
    }

    /// The norms before them, in order.
    pub fn norms(&self) -> Vec<&V> {
        match self {
            Self::One(_) => Vec::new(),
            Self::Normed(parts) => parts.iter().map(|(norm, _)| norm).collect(),
        }
    }

    fn try_map<N, W>(
        &self,
        matrix: impl Fn(&M) -> Result<N>,
        vector: impl Fn(&V) -> Result<W>,
    ) -> Result<Stack<N, W>> {
        Ok(match self {
            Self::One(one) => Stack::One(matrix(one)?),
            Self::Normed(parts) => Stack::Normed(
                parts
                    .iter()
                    .map(|(norm, part)| Ok((vector(norm)?, matrix(part)?)))
                    .collect::<Result<_>>()?,
            ),
        })
    }
}

impl<T, V> Ends<T, V> {
    /// The matrix that makes logits.
    pub fn head(&self) -> &T {
        self.untied_head.as_ref().unwrap_or(&self.embedding)
    }

    /// The ends with their matrices and vectors converted.
    pub fn try_map<U, W>(
        &self,
        table: impl Fn(&T) -> Result<U>,
        vector: impl Fn(&V) -> Result<W>,
    ) -> Result<Ends<U, W>> {
        Ok(Ends {
            embedding: table(&self.embedding)?,
            norm: vector(&self.norm)?,
            untied_head: self.untied_head.as_ref().map(&table).transpose()?,
        })
    }
}
