//! BitLinear as a layer on the CPU.

use super::{isa::Isa, ops::finish, ternary, ternary_float, threads::enter};
use crate::{
    error::{Error, Result},
    ops::{
        bitnet::{ActivationType, Gate},
        host,
        tensor::epilogue::Activation,
    },
    weights::ternary::interleaved::InterleavedTernary,
};

const OP: &str = "bitlinear";

/// A linear layer with ternary weights `[n, k]` on the CPU:
/// y = activation(norm(x)·Wᵀ + bias), then optionally a gate.
///
/// It has the options of [`bitnet::BitLinear`](crate::bitnet::BitLinear), in any combination.
/// Results are bit-identical to the CPU references of its steps, except for [`Activation::Silu`],
/// as in [`cpu::silu`](crate::cpu::silu).
///
/// ```
/// use bitnet_wgpu::{bitnet::WeightQuantizer, cpu, tensor::Activation};
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let weights: Vec<f32> = (0..64 * 128).map(|i| (i as f32).sin()).collect();
/// let packed = cpu::quantize_weights(&weights, [64, 128], WeightQuantizer::absmean())?;
/// let matrix = cpu::InterleavedTernary::new(&packed); // once for each matrix
///
/// let bias = vec![0.5; 64];
/// let x = vec![1.0; 2 * 128]; // two tokens
/// let layer = cpu::BitLinear::new(&matrix).bias(&bias[..]).activation(Activation::Relu2);
/// let y = layer.forward(&x, 2)?; // [2, 64]
/// assert_eq!(y.len(), 2 * 64);
/// # Ok(())
/// # }
/// ```
#[must_use = "a layer does nothing until `forward` computes it"]
#[derive(Clone, Copy)]
pub struct BitLinear<'a> {
    weights: &'a InterleavedTernary,
    activation_type: ActivationType,
    norm: Option<(&'a [f32], f32)>,
    bias: Option<&'a [f32]>,
    activation: Option<Activation>,
    gate: Option<Gate>,
}

impl<'a> BitLinear<'a> {
    /// Returns a layer with int8 activations, without bias, activation, norm or gate.
    pub fn new(weights: &'a InterleavedTernary) -> Self {
        let activation_type = ActivationType::Int8;
        Self { weights, activation_type, norm: None, bias: None, activation: None, gate: None }
    }

    /// Sets the arithmetic: [`ActivationType::Int8`] or [`ActivationType::BlockFloat`].
    pub fn activation_type(self, activation_type: ActivationType) -> Self {
        Self { activation_type, ..self }
    }

    /// Normalizes each token of the input by RMSNorm, with a gain `[k]` and eps.
    pub fn norm(self, gain_and_eps: impl Into<Option<(&'a [f32], f32)>>) -> Self {
        Self { norm: gain_and_eps.into(), ..self }
    }

    /// Adds `bias`, `[n]`, to the product.
    pub fn bias(self, bias: impl Into<Option<&'a [f32]>>) -> Self {
        Self { bias: bias.into(), ..self }
    }

    /// Applies `activation` after the bias.
    pub fn activation(self, activation: impl Into<Option<Activation>>) -> Self {
        Self { activation: activation.into(), ..self }
    }

    /// Takes the product `[tokens, n]` for n/2 gates followed by n/2 ups, and returns
    /// act(gate)·up, `[tokens, n/2]`.
    pub fn gate(self, gate: impl Into<Option<Gate>>) -> Self {
        Self { gate: gate.into(), ..self }
    }

    /// Computes the layer for `x`, `[tokens, k]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `x`, gain or bias do not fit; [`Error::Invalid`] for a gate with an odd
    /// number of output features, for [`ActivationType::Float`], or for more input features than an
    /// exact sum allows.
    pub fn forward(&self, x: &[f32], tokens: usize) -> Result<Vec<f32>> {
        self.forward_with(Isa::best(), x, tokens)
    }

    /// Computes the layer with a given instruction set.
    fn forward_with(&self, isa: Isa, x: &[f32], tokens: usize) -> Result<Vec<f32>> {
        /// Activations whose quantization, and bytes of weights whose product, are worth a thread.
        const WORTH: usize = 1 << 14;
        self.check(x, tokens)?;
        let worth = x.len().max(self.weights.rows() * self.weights.columns() / 8) > WORTH;
        enter(worth, || {
            let mut y = self.product(isa, x, tokens)?;
            finish(&mut y, self.bias, self.activation);
            match self.gate {
                Some(gate) => host::gate(&y, self.weights.rows() / 2, gate),
                None => Ok(y),
            }
        })
    }

    /// Returns norm(x)·Wᵀ.
    fn product(&self, isa: Isa, x: &[f32], tokens: usize) -> Result<Vec<f32>> {
        match self.activation_type {
            ActivationType::Int8 => {
                let quantized = match self.norm {
                    Some((gain, eps)) => host::rms_norm_quantize(x, tokens, gain, eps)?,
                    None => host::quantize_activations(x, tokens, self.weights.columns())?,
                };
                ternary::bitlinear(isa, &quantized, self.weights)
            }
            ActivationType::BlockFloat => {
                let x = match self.norm {
                    Some((gain, eps)) => super::ops::rms_norm(x, gain, eps)?,
                    None => x.to_vec(),
                };
                ternary_float::bitlinear(x, self.weights)
            }
            ActivationType::Float => Err(invalid(
                "float activations are not supported on the CPU; int8 and block floating point are",
            )),
        }
    }

    /// Checks what `forward` is given.
    fn check(&self, x: &[f32], tokens: usize) -> Result<()> {
        let (n, k) = (self.weights.rows(), self.weights.columns());
        if k == 0 {
            return Err(invalid("a matrix without columns"));
        }
        if tokens.checked_mul(k) != Some(x.len()) {
            return Err(Error::Length { shape: [tokens, k].into(), found: x.len() });
        }
        for (numbers, expected) in [(self.norm.map(|(gain, _)| gain), k), (self.bias, n)] {
            if let Some(numbers) = numbers.filter(|numbers| numbers.len() != expected) {
                return Err(Error::Length { shape: [expected].into(), found: numbers.len() });
            }
        }
        if self.gate.is_some() && !n.is_multiple_of(2) {
            return Err(invalid("a gate with an odd number of output features"));
        }
        Ok(())
    }
}

fn invalid(what: &str) -> Error {
    Error::Invalid { op: OP, what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::reference;
    use crate::{
        ops::bitnet::host_activations::MAX_FEATURES,
        weights::ternary::{packed::PackedTernary, scales::Scales},
    };
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn numbers(rng: &mut StdRng, count: usize) -> Vec<f32> {
        (0..count).map(|_| rng.random_range(-3.0..3.0)).collect()
    }

    fn matrix(rng: &mut StdRng, n: usize, k: usize, group: Option<usize>) -> PackedTernary {
        let values: Vec<i8> = (0..n * k).map(|_| rng.random_range(-1..=1)).collect();
        let scales = match group {
            Some(size) => {
                let count = n * k.div_ceil(size);
                Scales::Groups { size, scales: numbers(rng, count) }
            }
            None => Scales::Tensor(rng.random_range(0.1..2.0)),
        };
        PackedTernary::from_values(n, k, &values, scales).unwrap()
    }

    /// The CPU references of the layer's steps, one after another.
    fn plainly(layer: &BitLinear<'_>, w: &PackedTernary, x: &[f32], tokens: usize) -> Vec<f32> {
        let k = w.columns();
        let x = match layer.norm {
            Some((gain, eps)) => reference::rms_norm(x, gain, eps).unwrap(),
            None => x.to_vec(),
        };
        let product = if layer.activation_type == ActivationType::Int8 {
            reference::bitlinear_quantized(
                &reference::quantize_activations(&x, tokens, k).unwrap(),
                w,
            )
            .unwrap()
        } else {
            let mut x = x;
            reference::quantize_block_float(&mut x, k, w.group()).unwrap();
            x.chunks_exact(k)
                .flat_map(|x| reference::bitlinear_block_float(x, w).unwrap())
                .collect()
        };
        let y = reference::finish(&product, layer.bias, layer.activation).unwrap();
        layer.gate.map_or(y.clone(), |gate| reference::gate(&y, w.rows() / 2, gate).unwrap())
    }

    /// Every combination of options, with every instruction set.
    fn check(rng: &mut StdRng, [m, n, k]: [usize; 3], group: Option<usize>) {
        let w = matrix(rng, n, k, group);
        let (x, gain, bias) = (numbers(rng, m * k), numbers(rng, k), numbers(rng, n));
        let w_cpu = InterleavedTernary::new(&w);
        let gates = [None, Some(Gate::Relu2), Some(Gate::Silu), Some(Gate::GeluTanh)];
        let activations =
            [None, Some(Activation::Relu), Some(Activation::Relu2), Some(Activation::Gelu)];
        for (activation_type, norm) in [
            (ActivationType::Int8, None),
            (ActivationType::Int8, Some((&gain[..], 1e-5))),
            (ActivationType::BlockFloat, None),
            (ActivationType::BlockFloat, Some((&gain[..], 1e-5))),
        ] {
            let activation = activations[rng.random_range(0..4)];
            let gate = gates[rng.random_range(0..4)].filter(|_| n % 2 == 0);
            let bias = Some(&bias[..]).filter(|_| rng.random());
            let layer = BitLinear::new(&w_cpu).activation_type(activation_type).norm(norm);
            let layer = layer.bias(bias).activation(activation).gate(gate);
            let bits = |y: Vec<f32>| y.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let expected = bits(plainly(&layer, &w, &x, m));
            for isa in Isa::all() {
                assert!(
                    bits(layer.forward_with(isa, &x, m).unwrap()) == expected,
                    "{isa:?}, {m} tokens, {n} × {k}, groups of {group:?}, {activation_type:?}, {activation:?}, {gate:?}"
                );
            }
        }
    }

    #[test]
    fn layers_are_bit_identical_to_references() {
        let mut rng = StdRng::seed_from_u64(7);
        for [m, n, k] in [
            [0, 4, 5],
            [1, 1, 1],
            [1, 0, 3],
            [2, 16, 64],
            [3, 18, 63],
            [9, 48, 65],
            [5, 2, 1000],
            [1, 600, 900],
            [40, 34, 500],
        ] {
            check(&mut rng, [m, n, k], None);
            check(&mut rng, [m, n, k], Some(128));
            check(&mut rng, [m, n, k], Some(16));
        }
        for _ in 0..12 {
            let shape = [12, 90, 700].map(|most| rng.random_range(1..most));
            check(&mut rng, shape, None);
            let size = 16 * rng.random_range(1..20);
            check(&mut rng, shape, Some(size));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut rng = StdRng::seed_from_u64(8);
        let w = InterleavedTernary::new(&matrix(&mut rng, 3, 4, None));
        let layer = BitLinear::new(&w);
        let (four, five) = ([1.0; 4], [1.0; 5]);
        assert_eq!(layer.forward(&four, 1).unwrap().len(), 3);
        for (layer, x, tokens) in [
            (layer, &five[..], 1),
            (layer, &four, 2),
            (layer, &four, usize::MAX),
            (layer.bias(&four[..]), &four, 1),
            (layer.norm((&five[..], 1e-5)), &four, 1),
        ] {
            assert!(matches!(layer.forward(x, tokens), Err(Error::Length { .. })));
        }
        let empty = InterleavedTernary::new(&matrix(&mut rng, 3, 0, None));
        for (layer, x, tokens) in [
            (layer.gate(Gate::Silu), &four[..], 1),
            (layer.activation_type(ActivationType::Float), &four, 1),
            (BitLinear::new(&empty), &[], 2),
        ] {
            assert!(matches!(layer.forward(x, tokens), Err(Error::Invalid { .. })));
        }
        let wide = PackedTernary::from_values(
            1,
            MAX_FEATURES + 1,
            &vec![1; MAX_FEATURES + 1],
            Scales::Tensor(1.0),
        );
        let wide = InterleavedTernary::new(&wide.unwrap());
        let x = vec![1.0; MAX_FEATURES + 1];
        assert!(matches!(BitLinear::new(&wide).forward(&x, 1), Err(Error::Invalid { .. })));
    }
}
