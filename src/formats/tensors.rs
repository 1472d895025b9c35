//! A model's tensors: their names and shapes, stated once for all formats and architectures, and
//! the structure that holds what becomes of them.

use super::{
    config::ModelConfig,
    experts,
    family::{Part, Projection, Rows},
    format_error::{FormatError, unsupported},
    hybrid::Hybrid,
};
use crate::{
    error::{Error, Result},
    weights::dense::PackedDense,
};

/// One decoder layer: its steps in their order, of matrices `M` and vectors `V`.
pub struct Layer<M, V>(
    /// The steps.
    pub Vec<LayerStep<M, V>>,
);

/// A step of a decoder layer. It reads what the step before it gives; the first one, and one after
/// [`LayerStep::Add`], read the residual stream.
pub enum LayerStep<M, V> {
    /// RMSNorm, with these gains.
    Norm(V),
    /// Linear layers of one input, their products side by side.
    Linear(Stack<M, V>),
    /// RMSNorm of every query head and of every key head, with gains of `head_dim`.
    HeadNorms {
        /// Gains of query heads.
        queries: V,
        /// Gains of key heads.
        keys: V,
    },
    /// Rotary embedding of queries and keys, and causal attention.
    Attention,
    /// act(gate)·up.
    Gate,
    /// A mixture of experts: a router, and the used experts' sum.
    Experts(Experts<M, V>),
    /// Adds to the residual stream.
    Add,
    /// Of queries, keys, values and gates `[tokens, row + heads · head_dim]`, keeps the gates for
    /// [`LayerStep::OutputGate`].
    KeepGate,
    /// Multiplies by the logistic function of the gates.
    OutputGate,
    /// Dense linear layers of the recurrent layer's input, `[value_heads, hidden]` each, which are
    /// kept for [`LayerStep::Delta`].
    DeltaRates {
        /// What decays the state.
        alpha: V,
        /// How much of a token is written to the state.
        beta: V,
    },
    /// Convolution over time, the gated delta rule, and a norm that is gated by the last columns.
    Delta(Delta<V>),
}

/// Weights of a gated DeltaNet, but for its linear layers.
pub struct Delta<V> {
    /// The convolution over time, `[mixed, kernel]`.
    pub conv: V,
    /// Added to what decays the state, `[value_heads]`.
    pub dt_bias: V,
    /// -exp(A), which multiplies it then, `[value_heads]`.
    pub decay: V,
    /// Gains of the norm of value heads, `[value_dim]`.
    pub norm: V,
}

/// The weights of a mixture of experts.
pub struct Experts<M, V> {
    /// The router, a float a column: `[experts, hidden]`.
    pub router: V,
    /// Gate and up of each expert in turn, `[experts · 2 · intermediate, hidden]`.
    pub gate_up: M,
    /// The output projection of each, `[experts · hidden, intermediate]`.
    pub down: M,
}

/// Where the input of a linear layer comes from, but for norms.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Stream,
    Attention,
    Gate,
}

/// Linear layers of one input.
pub enum Stack<M, V> {
    /// One matrix, with their rows one after another, so that one multiplication does for all.
    One(M),
    /// Each with a norm of its own before it.
    Normed(Vec<(V, M)>),
}

/// What comes before and after the layers, of tables `T` and vectors `V`.
pub struct Ends<T, V> {
    /// The embedding.
    pub embedding: T,
    /// Gains of the final norm.
    pub norm: V,
    /// None where the embedding is the LM head.
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
    /// Its name after `model.layers.N.`, or its whole name outside the layers.
    pub name: &'static str,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub columns: usize,
    /// Multiplies its scales as it is read.
    pub scale: f32,
}

/// The gains of a norm.
pub struct Gains {
    /// Their name after `model.layers.N.`, or their whole name outside the layers.
    pub name: &'static str,
    /// How many there are.
    pub len: usize,
    /// Of a dense matrix, its rows.
    pub rows: Option<usize>,
    /// Multiplies them as they are read.
    pub scale: f32,
}

/// The steps of a model's layers, with every tensor by the name that it has after
/// `model.layers.N.`, in each architecture and file format: matrices that are stacked, in their
/// order, and gains.
pub fn layer_tensors(c: &ModelConfig) -> Layer<Vec<Matrix>, Gains> {
    tensors_of(c, c.family().layer)
}

/// [`layer_tensors`] of one layer, where layers differ.
pub(crate) fn layer_tensors_at(c: &ModelConfig, layer: usize) -> Layer<Vec<Matrix>, Gains> {
    let family = c.family();
    tensors_of(c, if c.is_recurrent(layer) { family.recurrent_layer } else { family.layer })
}

fn tensors_of(c: &ModelConfig, parts: &[Part]) -> Layer<Vec<Matrix>, Gains> {
    let (mut steps, mut width) = (Vec::new(), c.hidden);
    for (n, part) in parts.iter().enumerate() {
        // What is added to the residual stream is scaled by what makes it.
        let added = matches!(parts.get(n + 1), Some(Part::Add));
        let scale = if added { c.residual_scale } else { 1.0 };
        let step;
        (step, width) = match *part {
            Part::SubNorm(_) if !c.sub_norms => continue,
            Part::Norm(name) | Part::SubNorm(name) => {
                (LayerStep::Norm(Gains { name, len: width, rows: None, scale }), width)
            }
            Part::Linear(projections) => {
                let rows = projections.iter().map(|own| rows(c, own.rows)).sum();
                let (norm, stack) = stack(c, projections, width, scale);
                steps.extend(norm.map(LayerStep::Norm));
                (LayerStep::Linear(stack), rows)
            }
            Part::HeadNorms(queries, keys) => {
                let gains = |name, scale| Gains { name, len: c.head_dim, rows: None, scale };
                let (queries, keys) = (gains(queries, c.query_scale), gains(keys, 1.0));
                (LayerStep::HeadNorms { queries, keys }, width)
            }
            Part::Attention => (LayerStep::Attention, c.heads * c.head_dim),
            Part::Gate => (LayerStep::Gate, c.intermediate),
            Part::Experts => (LayerStep::Experts(mixture(c, scale)), c.hidden),
            Part::Add => (LayerStep::Add, c.hidden),
            Part::KeepGate => (LayerStep::KeepGate, width - c.heads * c.head_dim),
            Part::OutputGate => (LayerStep::OutputGate, width),
            Part::DeltaRates | Part::Delta => recurrent(c, part, width),
        };
        steps.push(step);
    }
    Layer(steps)
}

/// The step of a part that only recurrent layers have, and the width of what it gives.
fn recurrent(c: &ModelConfig, part: &Part, width: usize) -> (LayerStep<Vec<Matrix>, Gains>, usize) {
    let Some(h) = &c.hybrid else { return (LayerStep::Add, width) };
    let gains = |name, len| Gains { name, len, rows: None, scale: 1.0 };
    let dense =
        |name, rows, columns| Gains { name, len: rows * columns, rows: Some(rows), scale: 1.0 };
    match part {
        Part::DeltaRates => {
            let rate = |name| dense(name, h.value_heads, c.hidden);
            let (alpha, beta) = (rate("linear_attn.in_proj_a"), rate("linear_attn.in_proj_b"));
            (LayerStep::DeltaRates { alpha, beta }, width)
        }
        _ => {
            let delta = Delta {
                conv: dense("linear_attn.conv1d", h.mixed(), h.kernel),
                dt_bias: gains("linear_attn.dt_bias", h.value_heads),
                decay: gains("linear_attn.A_log", h.value_heads),
                norm: gains("linear_attn.norm", h.value_dim),
            };
            (LayerStep::Delta(delta), h.values())
        }
    }
}

/// Linear layers of one input, which has this many columns, and the norm before a single one.
fn stack(
    c: &ModelConfig,
    projections: &[Projection],
    columns: usize,
    scale: f32,
) -> (Option<Gains>, Stack<Vec<Matrix>, Gains>) {
    let matrix = |own: &Projection| {
        // Norms of heads would undo it, and have it in their gains.
        let queries = own.rows == Rows::Queries && !c.qk_norms();
        let scale = if queries { scale * c.query_scale } else { scale };
        Matrix { name: own.name, rows: rows(c, own.rows), columns, scale }
    };
    let norm = |own: &Projection| Gains { name: own.norm, len: columns, rows: None, scale: 1.0 };
    match (projections, c.projection_norms) {
        (all, false) => (None, Stack::One(all.iter().map(matrix).collect())),
        ([own], true) => (Some(norm(own)), Stack::One(vec![matrix(own)])),
        (all, true) => {
            let normed = all.iter().map(|own| (norm(own), vec![matrix(own)]));
            (None, Stack::Normed(normed.collect()))
        }
    }
}

/// The tensors of a mixture of experts.
fn mixture(c: &ModelConfig, scale: f32) -> Experts<Vec<Matrix>, Gains> {
    let count = c.experts.map_or(0, |experts| experts.count);
    let matrix = |name, rows, columns, scale| vec![Matrix { name, rows, columns, scale }];
    Experts {
        router: Gains {
            name: experts::ROUTER,
            len: count * c.hidden,
            rows: Some(count),
            scale: 1.0,
        },
        gate_up: matrix(experts::GATE_UP, count * 2 * c.intermediate, c.hidden, 1.0),
        down: matrix(experts::DOWN, count * c.hidden, c.intermediate, scale),
    }
}

fn rows(c: &ModelConfig, rows: Rows) -> usize {
    match rows {
        Rows::Queries => c.heads * c.head_dim,
        Rows::Keys => c.kv_heads * c.head_dim,
        Rows::Hidden => c.hidden,
        Rows::Intermediate => c.intermediate,
        Rows::GatedQueries => 2 * c.heads * c.head_dim,
        Rows::Mixed => c.hybrid.as_ref().map_or(0, Hybrid::mixed),
        Rows::Values => c.hybrid.as_ref().map_or(0, Hybrid::values),
    }
}

/// The tensors outside the layers.
pub fn end_tensors(c: &ModelConfig) -> Ends<Matrix, Gains> {
    let dense = |name| Matrix { name, rows: c.vocab, columns: c.hidden, scale: 1.0 };
    Ends {
        embedding: dense("model.embed_tokens"),
        norm: Gains { name: "model.norm", len: c.hidden, rows: None, scale: 1.0 },
        untied_head: (!c.tied_head).then_some(dense("lm_head")),
    }
}

/// Every tensor of a model by its name.
pub fn tensor_names(c: &ModelConfig) -> Vec<String> {
    let ends = end_tensors(c);
    let gains = in_layers(c, |layer| layer.vectors().into_iter().map(|gains| gains.name).collect());
    let head = ends.untied_head.iter().map(|head| head.name);
    linear_names(c)
        .chain(gains)
        .chain([ends.embedding.name, ends.norm.name].into_iter().chain(head).map(str::to_owned))
        .collect()
}

/// The linear layers of a model by their names.
pub fn linear_names(c: &ModelConfig) -> impl Iterator<Item = String> + use<> {
    in_layers(c, |layer| layer.matrices().into_iter().flatten().map(|matrix| matrix.name).collect())
}

/// These parts, of every layer.
fn in_layers(
    c: &ModelConfig,
    parts: fn(&Layer<Vec<Matrix>, Gains>) -> Vec<&'static str>,
) -> impl Iterator<Item = String> + use<> {
    let names = (0..c.layers).flat_map(|layer| {
        let parts = parts(&layer_tensors_at(c, layer)).into_iter();
        parts.map(move |part| format!("model.layers.{layer}.{part}"))
    });
    names.collect::<Vec<_>>().into_iter()
}

/// What is wrong with tensors that nobody asks for, if there are some.
pub fn unused(names: impl Iterator<Item = String>) -> Result<(), FormatError> {
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
    /// Its mixture of experts, if it has one.
    pub fn experts(&self) -> Option<&Experts<M, V>> {
        self.0.iter().find_map(|step| match step {
            LayerStep::Experts(experts) => Some(experts),
            _ => None,
        })
    }

    /// Its delta rule, if it is recurrent.
    #[cfg(feature = "models")]
    pub fn delta(&self) -> Option<&Delta<V>> {
        self.0.iter().find_map(|step| match step {
            LayerStep::Delta(delta) => Some(delta),
            _ => None,
        })
    }

    /// Its matrices, in the order in which a token meets them.
    pub fn matrices(&self) -> Vec<&M> {
        let of_step = self.0.iter().map(|step| match step {
            LayerStep::Linear(stack) => stack.matrices(),
            LayerStep::Experts(experts) => vec![&experts.gate_up, &experts.down],
            _ => Vec::new(),
        });
        of_step.flatten().collect()
    }

    /// Those of its matrices that read from `source`.
    pub fn matrices_of(&self, source: Source) -> Vec<&M> {
        let (mut at, mut found) = (Source::Stream, Vec::new());
        for step in &self.0 {
            match step {
                LayerStep::Linear(stack) if at == source => found.extend(stack.matrices()),
                LayerStep::Attention | LayerStep::Delta(_) => at = Source::Attention,
                LayerStep::Gate => at = Source::Gate,
                LayerStep::Add => at = Source::Stream,
                _ => {}
            }
        }
        found
    }

    /// Its vectors, in the order in which a token meets them.
    pub fn vectors(&self) -> Vec<&V> {
        let of_step = self.0.iter().map(|step| match step {
            LayerStep::Norm(gains) => vec![gains],
            LayerStep::Linear(stack) => stack.norms(),
            LayerStep::HeadNorms { queries, keys } => vec![queries, keys],
            LayerStep::DeltaRates { alpha, beta } => vec![alpha, beta],
            LayerStep::Delta(delta) => delta.vectors(),
            LayerStep::Experts(experts) => vec![&experts.router],
            LayerStep::Attention
            | LayerStep::Gate
            | LayerStep::Add
            | LayerStep::KeepGate
            | LayerStep::OutputGate => Vec::new(),
        });
        of_step.flatten().collect()
    }

    /// Whether something is normed as it is added to the residual stream.
    pub fn norms_sums(&self) -> bool {
        self.0.windows(2).any(|pair| matches!(pair, [LayerStep::Norm(_), LayerStep::Add]))
    }

    /// The layer with its matrices and vectors converted.
    ///
    /// # Errors
    /// Those of `matrix` and `vector`.
    pub fn try_map<N, W>(
        &self,
        matrix: impl Fn(&M) -> Result<N>,
        vector: impl Fn(&V) -> Result<W>,
    ) -> Result<Layer<N, W>> {
        self.try_map_with(&matrix, &matrix, vector)
    }

    /// [`try_map`](Self::try_map) with another conversion for matrices of experts.
    ///
    /// # Errors
    /// Those of the conversions.
    pub fn try_map_with<N, W>(
        &self,
        matrix: impl Fn(&M) -> Result<N>,
        of_experts: impl Fn(&M) -> Result<N>,
        vector: impl Fn(&V) -> Result<W>,
    ) -> Result<Layer<N, W>> {
        let step = |step: &LayerStep<M, V>| {
            Ok(match step {
                LayerStep::Norm(gains) => LayerStep::Norm(vector(gains)?),
                LayerStep::Linear(stack) => LayerStep::Linear(stack.try_map(&matrix, &vector)?),
                LayerStep::HeadNorms { queries, keys } => {
                    LayerStep::HeadNorms { queries: vector(queries)?, keys: vector(keys)? }
                }
                LayerStep::Attention => LayerStep::Attention,
                LayerStep::Gate => LayerStep::Gate,
                LayerStep::Experts(experts) => LayerStep::Experts(Experts {
                    router: vector(&experts.router)?,
                    gate_up: of_experts(&experts.gate_up)?,
                    down: of_experts(&experts.down)?,
                }),
                LayerStep::Add => LayerStep::Add,
                LayerStep::KeepGate => LayerStep::KeepGate,
                LayerStep::OutputGate => LayerStep::OutputGate,
                LayerStep::DeltaRates { alpha, beta } => {
                    LayerStep::DeltaRates { alpha: vector(alpha)?, beta: vector(beta)? }
                }
                LayerStep::Delta(delta) => LayerStep::Delta(delta.try_map(&vector)?),
            })
        };
        self.0.iter().map(step).collect::<Result<_>>().map(Layer)
    }
}

impl<V> Delta<V> {
    fn vectors(&self) -> Vec<&V> {
        vec![&self.conv, &self.dt_bias, &self.decay, &self.norm]
    }

    fn try_map<W>(&self, vector: impl Fn(&V) -> Result<W>) -> Result<Delta<W>> {
        Ok(Delta {
            conv: vector(&self.conv)?,
            dt_bias: vector(&self.dt_bias)?,
            decay: vector(&self.decay)?,
            norm: vector(&self.norm)?,
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
    ///
    /// # Errors
    /// Those of `table` and `vector`.
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
