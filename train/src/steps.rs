//! The steps of a layer, each followed by its gradient.

use crate::{
    error::Result,
    linear::LinearSaved,
    network::{Batch, Network, Value},
};
use bitnet_wgpu::{
    Encoder, Error as LibraryError, Out, Tensor,
    bitnet::Gate,
    tensor::{self, Unary},
    transformer::{RmsNorm, RotaryEmbedding, flash_attention},
};

/// Rotated heads `[batch, heads, tokens, head_dim]`, and what attention made of them.
pub struct AttentionSaved {
    queries: Tensor<f32>,
    keys: Tensor<f32>,
    values: Tensor<f32>,
    y: Tensor<f32>,
    /// Logarithms of the sums of a softmax, `[batch, heads, tokens]`.
    lse: Tensor<f32>,
}

/// What a step computed from and gave, for its gradient.
pub enum Saved {
    Norm { x: Tensor<f32> },
    Linear(LinearSaved),
    HeadNorms { queries: Tensor<f32>, keys: Tensor<f32> },
    Attention(Box<AttentionSaved>),
    Gate { gate: Tensor<f32>, up: Tensor<f32> },
    Add,
}

impl Network {
    /// Records RMSNorm of every token.
    pub fn norm(&self, e: &mut Encoder, gain: usize, input: Value) -> Result<(Value, Saved)> {
        let x = first(input);
        let y = RmsNorm::new(self.float(gain)?, self.eps).forward(e, &x)?;
        Ok((vec![y], Saved::Norm { x }))
    }

    /// Adds the gradient of the gains, and returns that of `x`.
    pub fn norm_backward(
        &self,
        e: &mut Encoder,
        gain: usize,
        x: &Tensor<f32>,
        dy: &Tensor<f32>,
        gradients: &[Tensor<f32>],
    ) -> Result<Tensor<f32>> {
        let norm = RmsNorm::new(self.float(gain)?, self.eps);
        match self.gradient(gradients, gain) {
            Some(gradient) => {
                let dx = Tensor::uninit(&self.context, x.shape())?;
                norm.backward_into(e, x, dy, &dx, Out::add(gradient))?;
                Ok(dx)
            }
            None => Ok(norm.backward(e, x, dy)?.0),
        }
    }

    /// Records RMSNorm of every query head and of every key head.
    pub fn head_norms(
        &self,
        e: &mut Encoder,
        (queries, keys): (usize, usize),
        input: Value,
    ) -> Result<(Value, Saved)> {
        let mut heads = |x: &Tensor<f32>, gain: usize| -> Result<(Tensor<f32>, Tensor<f32>)> {
            let heads = x.reshape([x.len() / self.head_dim, self.head_dim])?;
            let y = RmsNorm::new(self.float(gain)?, self.eps).forward(e, &heads)?;
            Ok((y.reshape(x.shape())?, heads))
        };
        let (q, queries) = heads(&input[0], queries)?;
        let (k, keys) = heads(&input[1], keys)?;
        Ok((vec![q, k, input[2].clone()], Saved::HeadNorms { queries, keys }))
    }

    /// Adds the gradients of the gains, and returns those of queries, keys and values.
    pub fn head_norms_backward(
        &self,
        e: &mut Encoder,
        (queries, keys): (usize, usize),
        (q, k): (&Tensor<f32>, &Tensor<f32>),
        dy: Value,
        gradients: &[Tensor<f32>],
    ) -> Result<Value> {
        let mut heads = |gain: usize, x: &Tensor<f32>, dy: &Tensor<f32>| -> Result<Tensor<f32>> {
            let dx = self.norm_backward(e, gain, x, &dy.reshape(x.shape())?, gradients)?;
            Ok(dx.reshape(dy.shape())?)
        };
        let (dq, dk) = (heads(queries, q, &dy[0])?, heads(keys, k, &dy[1])?);
        Ok(vec![dq, dk, dy[2].clone()])
    }

    /// Records rotary embedding and causal attention of queries, keys and values, each
    /// `[batch · tokens, heads · head_dim]`.
    pub fn attention(
        &self,
        e: &mut Encoder,
        input: Value,
        batch: &Batch,
    ) -> Result<(Value, Saved)> {
        let rope = RotaryEmbedding::new(&self.angles);
        let [q, k, v] = [0, 1, 2].map(|i| self.by_heads(&input[i], batch));
        let (q, k, v) = (rope.forward(e, &q?)?, rope.forward(e, &k?)?, v?);
        let (queries, keys, values) = (swapped(e, &q)?, swapped(e, &k)?, swapped(e, &v)?);
        let (y, lse) = flash_attention(&queries, &keys, &values).causal().forward(e)?;
        let joined = swapped(e, &y)?.reshape(input[0].shape())?;
        let saved = AttentionSaved { queries, keys, values, y, lse };
        Ok((vec![joined], Saved::Attention(Box::new(saved))))
    }

    /// Returns the gradients of queries, keys and values.
    pub fn attention_backward(
        &self,
        e: &mut Encoder,
        saved: &AttentionSaved,
        dy: &Tensor<f32>,
        batch: &Batch,
    ) -> Result<Value> {
        let AttentionSaved { queries, keys, values, y, lse } = saved;
        let dy = swapped(e, &self.by_heads(dy, batch)?)?;
        let attention = flash_attention(queries, keys, values).causal();
        let (q, k, v) = attention.backward(e, y, lse, &dy)?;
        let rope = RotaryEmbedding::new(&self.angles);
        let (q, k, v) = (swapped(e, &q)?, swapped(e, &k)?, swapped(e, &v)?);
        let joined = |x: Tensor<f32>| {
            let rows = batch.windows * batch.tokens;
            x.reshape([rows, x.len() / rows.max(1)])
        };
        Ok(vec![joined(rope.backward(e, &q)?)?, joined(rope.backward(e, &k)?)?, joined(v)?])
    }

    /// Records act(gate)·up.
    pub fn gate(&self, e: &mut Encoder, input: Value) -> Result<(Value, Saved)> {
        let (gate, up) = (input[0].clone(), input[1].clone());
        let activated = self.activation(&gate)?.forward(e)?;
        tensor::mul(&activated, &up).forward_into(e, &activated)?;
        Ok((vec![activated], Saved::Gate { gate, up }))
    }

    /// Returns the gradients of gates, dy·up·act'(gate), and of ups, dy·act(gate).
    pub fn gate_backward(
        &self,
        e: &mut Encoder,
        (gate, up): (&Tensor<f32>, &Tensor<f32>),
        dy: &Tensor<f32>,
    ) -> Result<Value> {
        let activation = self.activation(gate)?;
        let dgate = tensor::mul(dy, up).forward(e)?;
        activation.backward_into(e, &dgate, &dgate)?;
        let dup = activation.forward(e)?;
        tensor::mul(dy, &dup).forward_into(e, &dup)?;
        Ok(vec![dgate, dup])
    }

    /// The activation function of gates.
    fn activation<'a>(&self, gate: &'a Tensor<f32>) -> Result<Unary<'a, f32>> {
        match self.gate {
            Gate::Relu2 => Ok(tensor::relu2(gate)),
            Gate::Silu => Ok(tensor::silu(gate)),
            Gate::GeluTanh => Ok(tensor::gelu_tanh(gate)),
            _ => {
                let what = "a gate without a gradient here".into();
                Err(LibraryError::Invalid { op: "training", what }.into())
            }
        }
    }

    /// Returns `[batch, tokens, heads, head_dim]`.
    fn by_heads(&self, x: &Tensor<f32>, batch: &Batch) -> bitnet_wgpu::Result<Tensor<f32>> {
        let heads = x.shape().as_matrix().1 / self.head_dim;
        x.reshape([batch.windows, batch.tokens, heads, self.head_dim])
    }
}

/// Returns the only tensor of a value. The plan checks that there is one.
pub fn first(mut value: Value) -> Tensor<f32> {
    value.swap_remove(0)
}

/// Tokens and heads in each other's place.
fn swapped(e: &mut Encoder, x: &Tensor<f32>) -> bitnet_wgpu::Result<Tensor<f32>> {
    tensor::permute(x, &[0, 2, 1, 3]).forward(e)
}
