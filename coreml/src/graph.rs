//! The operations of a function: what a model computes for `tokens` tokens of one sequence.

use crate::{
    mil::{Arg, Builder, Var, blob, floats},
    proto::{Block, DataType},
    weights::{Lut, Scale, StoredGains, StoredLayer, StoredMatrix, StoredModel},
};
use bitnet_wgpu::{
    formats::ModelConfig,
    internals::{Activation, LayerStep, Stack},
};

/// The function that appends one token.
pub(crate) const DECODE: &str = "decode";
/// The function that appends a chunk of a prompt.
pub(crate) const PREFILL: &str = "prefill";

/// An input, output or state of a function.
pub(crate) struct Port {
    pub name: &'static str,
    pub data_type: DataType,
    pub shape: Vec<usize>,
    /// What a person reads about it.
    pub meaning: &'static str,
}

/// What a function has: its tokens, and those that its cache has room for.
pub(crate) struct Shape<'a> {
    pub config: &'a ModelConfig,
    pub tokens: usize,
    pub context: usize,
    /// Whether it computes the logits of one row that is an input, instead of those of its one.
    pub picks_row: bool,
}

impl Shape<'_> {
    /// The inputs of the function.
    pub fn inputs(&self) -> Vec<Port> {
        let port = |name, data_type, shape, meaning| Port { name, data_type, shape, meaning };
        let mut inputs = vec![
            port("tokens", DataType::Int32, vec![1, self.tokens], "Token ids"),
            port(
                "positions",
                DataType::Int32,
                vec![self.tokens],
                "Positions of the tokens: neighbors from the first one on, all below the context",
            ),
            port(
                "mask",
                DataType::Float32,
                vec![1, 1, self.tokens, self.context],
                "Added to scores: 0 for positions that a token sees, -1e9 for others",
            ),
        ];
        if self.picks_row {
            inputs.push(port(
                "row",
                DataType::Int32,
                vec![1],
                "Token of the chunk whose logits are returned",
            ));
        }
        inputs
    }

    /// The states of the function: the KV cache, `[layers, key-value heads, context, head size]`.
    pub fn states(&self) -> Vec<Port> {
        let c = self.config;
        let shape = vec![c.layers, c.kv_heads, self.context, c.head_dim];
        let port = |name, meaning| Port {
            name,
            data_type: DataType::Float16,
            shape: shape.clone(),
            meaning,
        };
        vec![port("keys", "Keys after rotary embedding"), port("values", "Values")]
    }

    /// The output of the function.
    pub fn output(&self) -> Port {
        Port {
            name: "logits",
            data_type: DataType::Float32,
            shape: vec![1, 1, self.config.vocab],
            meaning: "Logits of the next token",
        }
    }
}

/// The block of a function.
pub(crate) fn block(shape: &Shape<'_>, model: &StoredModel) -> Block {
    let mut graph = Graph { b: Builder::default(), shape, model };
    let input = |port: &Port| Var { name: port.name.into(), shape: port.shape.clone() };
    let inputs: Vec<Var> = shape.inputs().iter().map(input).collect();
    let states: Vec<Var> = shape.states().iter().map(input).collect();
    let rotary = graph.rotary(&inputs[1]);
    let places = graph.first_position(&inputs[1]);
    let step = Step { mask: &inputs[2], states: &states, rotary: &rotary, places: &places };
    let mut x = graph.embed(&inputs[0]);
    for (index, layer) in model.layers.iter().enumerate() {
        x = graph.layer(index, layer, x, &step);
    }
    let logits = graph.logits(&x, inputs.get(3));
    graph.b.finish(&[&logits])
}

/// What all layers read.
pub(crate) struct Step<'a> {
    pub mask: &'a Var,
    pub states: &'a [Var],
    /// Cosines and sines, `[1, 1, tokens, head_dim / 2]`.
    pub rotary: &'a [Var; 2],
    /// The first position and the one after the last, `[1]` each.
    pub places: &'a [Var; 2],
}

pub(crate) struct Graph<'a> {
    pub b: Builder,
    pub shape: &'a Shape<'a>,
    model: &'a StoredModel,
}

impl Graph<'_> {
    pub fn binary(&mut self, kind: &str, name: &str, x: &Var, y: Arg<'_>) -> Var {
        self.b.floats(kind, name, &[("x", Arg::Var(x)), ("y", y)], &x.shape)
    }

    pub fn reshape(&mut self, name: &str, x: &Var, shape: &[usize]) -> Var {
        let sizes: Vec<i32> = shape.iter().map(|&size| size as i32).collect();
        self.b.floats("reshape", name, &[("x", Arg::Var(x)), ("shape", Arg::Ints(&sizes))], shape)
    }

    /// `[1, tokens, heads · head_dim]` to `[1, heads, tokens, head_dim]`.
    pub fn split_heads(&mut self, name: &str, x: &Var, heads: usize) -> Var {
        let (tokens, dim) = (self.shape.tokens, self.shape.config.head_dim);
        let split = self.reshape(&format!("{name}_split"), x, &[1, tokens, heads, dim]);
        let arguments = [("x", Arg::Var(&split)), ("perm", Arg::Ints(&[0, 2, 1, 3]))];
        self.b.floats("transpose", &format!("{name}_heads"), &arguments, &[1, heads, tokens, dim])
    }

    fn gather(&mut self, name: &str, x: &Var, indices: &Var, axis: usize) -> Var {
        let mut shape = x.shape.clone();
        shape.splice(axis..=axis, indices.shape.iter().copied());
        let arguments = [
            ("x", Arg::Var(x)),
            ("indices", Arg::Var(indices)),
            ("axis", Arg::Int(axis as i32)),
            ("batch_dims", Arg::Int(0)),
            ("validate_indices", Arg::Bool(false)),
        ];
        self.b.floats("gather", name, &arguments, &shape)
    }

    /// Cosines and sines of the positions.
    fn rotary(&mut self, positions: &Var) -> [Var; 2] {
        let half = self.shape.config.head_dim / 2;
        let (tokens, context) = (self.shape.tokens, self.shape.context);
        [("cosines", self.model.cosines), ("sines", self.model.sines)].map(|(name, offset)| {
            let table = self.b.weights(&format!("{name}_table"), &[context, half], offset);
            let rows = self.gather(&format!("{name}_rows"), &table, positions, 0);
            self.reshape(name, &rows, &[1, 1, tokens, half])
        })
    }

    /// The first position, and the one after the last.
    fn first_position(&mut self, positions: &Var) -> [Var; 2] {
        let kind = (DataType::Int32, &[1usize][..]);
        let arguments =
            [("x", Arg::Var(positions)), ("begin", Arg::Ints(&[0])), ("end", Arg::Ints(&[1]))];
        let first = self.b.op("slice_by_index", "first_position", &arguments, kind);
        let tokens = [self.shape.tokens as i32];
        let arguments = [("x", Arg::Var(&first)), ("y", Arg::Ints(&tokens))];
        let last = self.b.op("add", "end_position", &arguments, kind);
        [first, last]
    }

    fn embed(&mut self, tokens: &Var) -> Var {
        let c = self.shape.config;
        let table = self.b.weights("embedding", &[c.vocab, c.hidden], self.model.embedding);
        let x = self.gather("embedded", &table, tokens, 0);
        match c.embedding_scale {
            1.0 => x,
            scale => self.binary("mul", "embedded_scaled", &x, Arg::Float(scale)),
        }
    }

    /// x · (1 / √(mean(x²) + eps)) · gain over the last dimension.
    fn norm(&mut self, name: &str, x: &Var, gains: &StoredGains) -> Var {
        let gain = self.b.weights(&format!("{name}_gain"), &[gains.len], gains.offset);
        let squares = self.binary("mul", &format!("{name}_squares"), x, Arg::Var(x));
        let mut row = x.shape.clone();
        if let Some(last) = row.last_mut() {
            *last = 1;
        }
        let mean =
            [("x", Arg::Var(&squares)), ("axes", Arg::Ints(&[-1])), ("keep_dims", Arg::Bool(true))];
        let mean = self.b.floats("reduce_mean", &format!("{name}_mean"), &mean, &row);
        let eps = Arg::Float(self.shape.config.eps);
        let root = [("x", Arg::Var(&mean)), ("epsilon", eps)];
        let inverse = self.b.floats("rsqrt", &format!("{name}_rsqrt"), &root, &row);
        let scaled = self.binary("mul", &format!("{name}_scaled"), x, Arg::Var(&inverse));
        self.binary("mul", &format!("{name}_normed"), &scaled, Arg::Var(&gain))
    }

    fn layer(&mut self, index: usize, layer: &StoredLayer, mut x: Var, step: &Step<'_>) -> Var {
        // What the last step gives, side by side; none where it is the residual stream.
        let mut value: Vec<Var> = Vec::new();
        for (place, part) in layer.0.iter().enumerate() {
            let name = format!("layer_{index}_{place}");
            let input = value.first().unwrap_or(&x).clone();
            value = match part {
                LayerStep::Norm(gains) => vec![self.norm(&name, &input, gains)],
                LayerStep::Linear(stack) => self.linear(&name, &input, stack),
                LayerStep::HeadNorms { queries, keys } => {
                    self.head_norms(&name, &value, [queries, keys])
                }
                LayerStep::Attention => vec![self.attention(index, &value, step)],
                LayerStep::Gate => vec![self.gate(&name, &value)],
                LayerStep::Add => {
                    x = self.binary("add", &name, &x, Arg::Var(&input));
                    Vec::new()
                }
                // Refused when the weights are read.
                LayerStep::Experts(_)
                | LayerStep::KeepGate
                | LayerStep::OutputGate
                | LayerStep::DeltaRates { .. }
                | LayerStep::Delta(_) => value,
            };
        }
        x
    }

    fn linear(
        &mut self,
        name: &str,
        x: &Var,
        stack: &Stack<Vec<StoredMatrix>, StoredGains>,
    ) -> Vec<Var> {
        match stack {
            Stack::One(matrices) => self.products(name, x, matrices),
            Stack::Normed(parts) => {
                let part = |(n, (gains, matrices)): (usize, &(StoredGains, Vec<_>))| {
                    let name = format!("{name}_{n}");
                    let normed = self.norm(&name, x, gains);
                    self.products(&name, &normed, matrices)
                };
                parts.iter().enumerate().flat_map(part).collect()
            }
        }
    }

    /// The products of matrices and one input, which is quantized once where the model does that.
    fn products(&mut self, name: &str, x: &Var, matrices: &[StoredMatrix]) -> Vec<Var> {
        let quantized = self.shape.config.quantized_activations.then(|| self.quantize(name, x));
        let (codes, scale) = match &quantized {
            Some([codes, scale]) => (codes, Some(scale)),
            None => (x, None),
        };
        matrices.iter().map(|matrix| self.product(codes, scale, matrix)).collect()
    }

    /// Codes of int8 in floats, and what they are divided by: a = 127 / max(max|x|, 1e-5) over a
    /// token, codes = clamp(round(x·a), -128, 127).
    fn quantize(&mut self, name: &str, x: &Var) -> [Var; 2] {
        let row = [1, x.shape[1], 1];
        let magnitudes =
            self.b.floats("abs", &format!("{name}_abs"), &[("x", Arg::Var(x))], &x.shape);
        let largest = [
            ("x", Arg::Var(&magnitudes)),
            ("axes", Arg::Ints(&[-1])),
            ("keep_dims", Arg::Bool(true)),
        ];
        let largest = self.b.floats("reduce_max", &format!("{name}_max"), &largest, &row);
        let bounded =
            self.binary("maximum", &format!("{name}_bounded"), &largest, Arg::Float(1e-5));
        // The reciprocal first, as PyTorch computes 127 / t.
        let reciprocal = [("x", Arg::Float(1.0)), ("y", Arg::Var(&bounded))];
        let reciprocal =
            self.b.floats("real_div", &format!("{name}_reciprocal"), &reciprocal, &row);
        let scale = self.binary("mul", &format!("{name}_scale"), &reciprocal, Arg::Float(127.0));
        let scaled = self.binary("mul", &format!("{name}_steps"), x, Arg::Var(&scale));
        let rounded = self.b.floats(
            "round",
            &format!("{name}_rounded"),
            &[("x", Arg::Var(&scaled))],
            &x.shape,
        );
        let clip =
            [("x", Arg::Var(&rounded)), ("alpha", Arg::Float(-128.0)), ("beta", Arg::Float(127.0))];
        let codes = self.b.floats("clip", &format!("{name}_codes"), &clip, &x.shape);
        [codes, scale]
    }

    /// codes·Wᵀ·β / a. The sum is one of integers below 2^24, which f32 has in any order.
    fn product(&mut self, x: &Var, divisor: Option<&Var>, matrix: &StoredMatrix) -> Var {
        let StoredMatrix { name, rows, columns, indices, lut, scale } = matrix;
        let shape = [*rows, *columns];
        let indices = blob(DataType::Uint2, &shape, *indices);
        let lut = match lut {
            Lut::Codes => floats(&[1, 1, 4, 1], vec![-1.0, 0.0, 1.0, 0.0]),
            Lut::Groups { size, offset } => {
                blob(DataType::Float32, &[*rows, columns / size, 4, 1], *offset)
            }
        };
        let weight = self.b.lookup(&format!("{name}_weight"), &shape, indices, lut);
        let sums = self.dense(&format!("{name}_sums"), x, &weight);
        let scaled = match scale {
            Scale::InTables => sums,
            Scale::One(scale) => {
                self.binary("mul", &format!("{name}_scaled"), &sums, Arg::Float(*scale))
            }
            Scale::Rows(offset) => {
                let scales = self.b.weights(&format!("{name}_scales"), &[*rows], *offset);
                self.binary("mul", &format!("{name}_scaled"), &sums, Arg::Var(&scales))
            }
        };
        match divisor {
            Some(divisor) => self.binary("real_div", name, &scaled, Arg::Var(divisor)),
            None => scaled,
        }
    }

    /// x·wᵀ of a `weight` `[rows, columns]`.
    fn dense(&mut self, name: &str, x: &Var, weight: &Var) -> Var {
        let rows = weight.shape[0];
        let zeros = self.model.zeros.get(&rows).copied().unwrap_or_default();
        let bias = self.b.weights(&format!("{name}_bias"), &[rows], zeros);
        let arguments =
            [("x", Arg::Var(x)), ("weight", Arg::Var(weight)), ("bias", Arg::Var(&bias))];
        self.b.floats("linear", name, &arguments, &[1, x.shape[1], rows])
    }

    /// Norms of every head of queries and keys.
    fn head_norms(&mut self, name: &str, value: &[Var], gains: [&StoredGains; 2]) -> Vec<Var> {
        let (tokens, dim) = (self.shape.tokens, self.shape.config.head_dim);
        let mut normed = value.to_vec();
        for (at, gains) in gains.into_iter().enumerate() {
            let name = format!("{name}_{at}");
            let width = value[at].shape[2];
            let heads = self.reshape(
                &format!("{name}_by_head"),
                &value[at],
                &[1, tokens, width / dim, dim],
            );
            let heads = self.norm(&name, &heads, gains);
            normed[at] = self.reshape(&format!("{name}_joined"), &heads, &[1, tokens, width]);
        }
        normed
    }

    /// act(gate)·up.
    fn gate(&mut self, name: &str, value: &[Var]) -> Var {
        let (gate, up) = (&value[0], &value[1]);
        let x = [("x", Arg::Var(gate))];
        let active = match self.shape.config.activation {
            Activation::Relu2 => {
                let positive = self.b.floats("relu", &format!("{name}_relu"), &x, &gate.shape);
                self.binary("mul", &format!("{name}_act"), &positive, Arg::Var(&positive))
            }
            _ => self.b.floats("silu", &format!("{name}_act"), &x, &gate.shape),
        };
        self.binary("mul", &format!("{name}_gated"), &active, Arg::Var(up))
    }

    fn logits(&mut self, x: &Var, row: Option<&Var>) -> Var {
        let c = self.shape.config;
        let picked = match row {
            Some(row) => self.gather("last", x, row, 1),
            None => x.clone(),
        };
        let mut normed = self.norm("final", &picked, &self.model.norm);
        if c.logit_scale != 1.0 {
            normed = self.binary("mul", "final_scaled", &normed, Arg::Float(c.logit_scale));
        }
        let head = self.b.weights("head", &[c.vocab, c.hidden], self.model.head);
        self.dense("logits", &normed, &head)
    }
}
