//! A transformer whose matrices are ternary, forward and backward, by ops of the library alone.
//! Each function that goes backward stands after the one that it is the gradient of.

use super::data::words;
use bitnet_wgpu::bitnet::{ActivationType, BitLinear, Gate};
use bitnet_wgpu::{
    Context, Encoder, Result, Tensor, bitnet,
    tensor::{self, Axes, Side},
    transformer::{RmsNorm, RotaryEmbedding, flash_attention, rope_angles},
    weights::TernaryMatrix,
};

const EPS: f32 = 1e-5;
const DROPOUT: f32 = 0.1;

/// The size of a model, and of what it learns from in a step.
#[derive(Clone, Copy)]
pub struct Settings {
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    /// Features between the matrices of a feed-forward block.
    pub inner: usize,
    /// Tokens that it sees at once.
    pub context: usize,
    /// Texts of a step.
    pub batch: usize,
    /// Whether activations are quantized to 8 bits; otherwise they are floats.
    pub int8: bool,
}

impl Settings {
    pub const SMALL: Self =
        Self { width: 64, layers: 2, heads: 2, inner: 128, context: 64, batch: 4, int8: true };
}

/// The places of a layer's weights among the parameters.
#[derive(Clone, Copy)]
struct Layer {
    norm: usize,
    qkv: usize,
    out: usize,
    mlp_norm: usize,
    up: usize,
    down_norm: usize,
    down: usize,
}

pub struct Model {
    settings: Settings,
    /// Everything that learns, in `f32`.
    pub parameters: Vec<Tensor<f32>>,
    layers: Vec<Layer>,
    angles: Tensor<f32>,
}

/// A product by ternary weights, and what it was made of.
struct Linear {
    x: Tensor<f32>,
    w: TernaryMatrix,
}

/// Heads after their rotation, and what came of them.
struct Attention {
    qkv: [Tensor<f32>; 3],
    y: Tensor<f32>,
    /// Logarithms of the sums of a softmax.
    lse: Tensor<f32>,
}

/// What the way back through a layer needs of the way there.
struct Saved {
    x: Tensor<f32>,
    qkv: Linear,
    attention: Attention,
    out: Linear,
    middle: Tensor<f32>,
    up: Linear,
    gate_up: Tensor<f32>,
    gated: Tensor<f32>,
    down: Linear,
}

/// Gradients, by the places of their parameters.
type Gradients = [Option<Tensor<f32>>];

/// Weights that follow from their places alone.
struct Parameters<'a> {
    context: &'a Context,
    all: Vec<Tensor<f32>>,
}

impl Parameters<'_> {
    fn matrix(&mut self, rows: usize, columns: usize) -> Result<usize> {
        let bound = 1.0 / (columns as f32).sqrt();
        let number = |word: u64| ((word >> 40) as f32 * 2f32.powi(-23) - 1.0) * bound;
        let numbers: Vec<f32> =
            words(1000 + self.all.len() as u64).take(rows * columns).map(number).collect();
        self.all.push(self.context.upload(&numbers, [rows, columns])?);
        Ok(self.all.len() - 1)
    }

    fn gain(&mut self, features: usize) -> Result<usize> {
        self.all.push(self.context.upload(&vec![1.0; features], [features])?);
        Ok(self.all.len() - 1)
    }
}

impl Model {
    pub fn new(context: &Context, settings: Settings, vocabulary: usize) -> Result<Self> {
        let Settings { width, inner, .. } = settings;
        let mut p = Parameters { context, all: Vec::new() };
        p.matrix(vocabulary, width)?;
        let layer = |_| {
            Ok(Layer {
                norm: p.gain(width)?,
                qkv: p.matrix(3 * width, width)?,
                out: p.matrix(width, width)?,
                mlp_norm: p.gain(width)?,
                up: p.matrix(2 * inner, width)?,
                down_norm: p.gain(inner)?,
                down: p.matrix(width, inner)?,
            })
        };
        let layers = (0..settings.layers).map(layer).collect::<Result<_>>()?;
        p.gain(width)?;
        p.matrix(vocabulary, width)?;
        let half = width / settings.heads / 2;
        let frequencies: Vec<f32> =
            (0..half).map(|i| 10000f64.powf(-(i as f64) / half as f64) as f32).collect();
        let angles = context
            .upload(&rope_angles(&frequencies, settings.context), [settings.context, half, 2])?;
        Ok(Self { settings, parameters: p.all, layers, angles })
    }

    /// The mean loss of `tokens`, each of which is to be followed by its target, and the gradients
    /// of all parameters.
    pub fn learn(
        &self,
        e: &mut Encoder,
        tokens: &Tensor<u32>,
        targets: &Tensor<u32>,
        seed: u64,
    ) -> Result<(Tensor<f32>, Vec<Tensor<f32>>)> {
        let (norm, head) = (self.parameters.len() - 2, self.parameters.len() - 1);
        let (mut saved, mut gradients) = (Vec::new(), vec![None; self.parameters.len()]);

        let mut x = tensor::gather(&self.parameters[0], tokens).forward(e)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let (y, kept) = self.layer(e, layer, x, seed + 2 * i as u64)?;
            saved.push(kept);
            x = y;
        }
        let normed = self.norm(e, norm, &x)?;
        let logits =
            tensor::matmul(&normed, Side::transposed(&self.parameters[head])).forward(e)?;
        let loss = tensor::cross_entropy(&logits, targets);
        let losses = loss.forward(e)?;

        let share = Tensor::uninit(e.context(), losses.shape())?;
        tensor::fill(1.0 / losses.len() as f32).forward_into(e, &share)?;
        let dlogits = loss.backward(e, &share)?;
        gradients[head] = Some(tensor::matmul(Side::transposed(&dlogits), &normed).forward(e)?);
        let dnormed = tensor::matmul(&dlogits, &self.parameters[head]).forward(e)?;
        let mut dx = self.norm_backward(e, norm, &x, &dnormed, &mut gradients)?;
        for (i, (layer, kept)) in self.layers.iter().zip(&saved).enumerate().rev() {
            dx = self.layer_backward(e, layer, kept, dx, seed + 2 * i as u64, &mut gradients)?;
        }
        gradients[0] = Some(tensor::gather(&self.parameters[0], tokens).backward(e, &dx)?);
        let gradients = gradients
            .into_iter()
            .map(|gradient| gradient.expect("every parameter has one"))
            .collect();
        Ok((tensor::mean(&losses, Axes::ALL).forward(e)?, gradients))
    }

    fn layer(
        &self,
        e: &mut Encoder,
        layer: &Layer,
        x: Tensor<f32>,
        seed: u64,
    ) -> Result<(Tensor<f32>, Saved)> {
        let normed = self.norm(e, layer.norm, &x)?;
        let (y, qkv) = self.linear(e, layer.qkv, normed)?;
        let (y, attention) = self.attention(e, &y)?;
        let (y, out) = self.linear(e, layer.out, y)?;
        let y = tensor::dropout(&y, DROPOUT, seed).forward(e)?;
        let middle = tensor::add(&x, &y).forward(e)?;

        let normed = self.norm(e, layer.mlp_norm, &middle)?;
        let (gate_up, up) = self.linear(e, layer.up, normed)?;
        let gated = bitnet::gate(&gate_up, Gate::Relu2).forward(e)?;
        let normed = self.norm(e, layer.down_norm, &gated)?;
        let (y, down) = self.linear(e, layer.down, normed)?;
        let y = tensor::dropout(&y, DROPOUT, seed + 1).forward(e)?;
        let y = tensor::add(&middle, &y).forward(e)?;
        Ok((y, Saved { x, qkv, attention, out, middle, up, gate_up, gated, down }))
    }

    fn layer_backward(
        &self,
        e: &mut Encoder,
        layer: &Layer,
        saved: &Saved,
        dy: Tensor<f32>,
        seed: u64,
        gradients: &mut Gradients,
    ) -> Result<Tensor<f32>> {
        let d = tensor::dropout(&dy, DROPOUT, seed + 1).forward(e)?;
        let d = self.linear_backward(e, layer.down, &saved.down, &d, gradients)?;
        let d = self.norm_backward(e, layer.down_norm, &saved.gated, &d, gradients)?;
        let d = bitnet::gate(&saved.gate_up, Gate::Relu2).backward(e, &d)?;
        let d = self.linear_backward(e, layer.up, &saved.up, &d, gradients)?;
        let d = self.norm_backward(e, layer.mlp_norm, &saved.middle, &d, gradients)?;
        let dy = tensor::add(&dy, &d).forward(e)?;

        let d = tensor::dropout(&dy, DROPOUT, seed).forward(e)?;
        let d = self.linear_backward(e, layer.out, &saved.out, &d, gradients)?;
        let d = self.attention_backward(e, &saved.attention, &d)?;
        let d = self.linear_backward(e, layer.qkv, &saved.qkv, &d, gradients)?;
        let d = self.norm_backward(e, layer.norm, &saved.x, &d, gradients)?;
        tensor::add(&dy, &d).forward(e)
    }

    fn norm(&self, e: &mut Encoder, gain: usize, x: &Tensor<f32>) -> Result<Tensor<f32>> {
        RmsNorm::new(&self.parameters[gain], EPS).forward(e, x)
    }

    fn norm_backward(
        &self,
        e: &mut Encoder,
        gain: usize,
        x: &Tensor<f32>,
        dy: &Tensor<f32>,
        gradients: &mut Gradients,
    ) -> Result<Tensor<f32>> {
        let (dx, dgain) = RmsNorm::new(&self.parameters[gain], EPS).backward(e, x, dy)?;
        gradients[gain] = Some(dgain);
        Ok(dx)
    }

    /// By weights that are made ternary anew in each step.
    fn linear(
        &self,
        e: &mut Encoder,
        weights: usize,
        x: Tensor<f32>,
    ) -> Result<(Tensor<f32>, Linear)> {
        let w = bitnet::WeightQuantizer::absmean().quantize(e, &self.parameters[weights])?;
        if !self.settings.int8 {
            return Ok((
                BitLinear::new(&w).activation_type(ActivationType::Float).forward(e, &x)?,
                Linear { x, w },
            ));
        }
        let quantized = bitnet::ActivationQuantizer::int8().quantize(e, &x)?;
        let y = BitLinear::new(&w).forward(e, &quantized)?;
        Ok((y, Linear { x: quantized.dequantize(e)?, w }))
    }

    /// Straight through both quantizers: as if weights and activations had been what they were
    /// taken for.
    fn linear_backward(
        &self,
        e: &mut Encoder,
        weights: usize,
        Linear { x, w }: &Linear,
        dy: &Tensor<f32>,
        gradients: &mut Gradients,
    ) -> Result<Tensor<f32>> {
        gradients[weights] = Some(tensor::matmul(Side::transposed(dy), x).forward(e)?);
        BitLinear::new(w).backward(e, dy)
    }

    fn attention(&self, e: &mut Encoder, qkv: &Tensor<f32>) -> Result<(Tensor<f32>, Attention)> {
        let [q, k, v] = self.split(e, qkv)?;
        let rope = RotaryEmbedding::new(&self.angles);
        let (q, k) = (rope.forward(e, &q)?, rope.forward(e, &k)?);
        let [q, k, v] = [swapped(e, &q)?, swapped(e, &k)?, swapped(e, &v)?];
        let (y, lse) = flash_attention(&q, &k, &v).causal().forward(e)?;
        let joined = self.joined(&swapped(e, &y)?)?;
        Ok((joined, Attention { qkv: [q, k, v], y, lse }))
    }

    fn attention_backward(
        &self,
        e: &mut Encoder,
        Attention { qkv: [q, k, v], y, lse }: &Attention,
        dy: &Tensor<f32>,
    ) -> Result<Tensor<f32>> {
        let dy = swapped(e, &dy.reshape(self.by_heads())?)?;
        let (q, k, v) = flash_attention(q, k, v).causal().backward(e, y, lse, &dy)?;
        let [q, k, v] = [swapped(e, &q)?, swapped(e, &k)?, swapped(e, &v)?];
        let rope = RotaryEmbedding::new(&self.angles);
        let (q, k) = (rope.backward(e, &q)?, rope.backward(e, &k)?);
        tensor::concat(&[&self.joined(&q)?, &self.joined(&k)?, &self.joined(&v)?], 1).forward(e)
    }

    /// Queries, keys and values, `[batch, context, heads, head_dim]`.
    fn split(&self, e: &mut Encoder, qkv: &Tensor<f32>) -> Result<[Tensor<f32>; 3]> {
        let width = self.settings.width;
        let mut part = |i: usize| {
            tensor::slice(qkv, 1, i * width..(i + 1) * width).forward(e)?.reshape(self.by_heads())
        };
        Ok([part(0)?, part(1)?, part(2)?])
    }

    fn by_heads(&self) -> [usize; 4] {
        let Settings { batch, context, heads, width, .. } = self.settings;
        [batch, context, heads, width / heads]
    }

    /// A row for each token.
    fn joined(&self, x: &Tensor<f32>) -> Result<Tensor<f32>> {
        let Settings { batch, context, width, .. } = self.settings;
        x.reshape([batch * context, width])
    }
}

/// Tokens and heads in each other's place.
fn swapped(e: &mut Encoder, x: &Tensor<f32>) -> Result<Tensor<f32>> {
    tensor::permute(x, &[0, 2, 1, 3]).forward(e)
}
