//! The gated delta rule (Yang et al. 2024, arXiv:2412.06464), token by token, and its gated norm.

/// The heads of a gated DeltaNet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaShape {
    /// Query heads, and key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Whether value head `h` reads key head `h % key_heads`, not `h / (value_heads / key_heads)`.
    pub tiled: bool,
    /// Whether the output has tiled value heads in the other order.
    pub regrouped: bool,
}

impl DeltaShape {
    /// Features of a token: queries, keys and values.
    pub fn mixed(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.values()
    }

    /// Features of all value heads.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Numbers of a sequence's state, `[value_heads, key_dim, value_dim]`.
    pub fn state(&self) -> usize {
        self.key_dim * self.values()
    }

    /// The key head that a value head reads.
    pub fn key_head(&self, head: usize) -> usize {
        match self.tiled {
            true => head % self.key_heads,
            false => head / (self.value_heads / self.key_heads).max(1),
        }
    }

    /// The place of a value head in the output.
    pub fn place(&self, head: usize) -> usize {
        let group = (self.value_heads / self.key_heads.max(1)).max(1);
        match self.regrouped {
            true => head % self.key_heads * group + head / self.key_heads,
            false => head,
        }
    }
}

pub(crate) mod host {
    use super::{super::expect::expect, DeltaShape};
    use crate::{
        error::Result,
        ops::exp::{exp, exp_f64},
    };
    use rayon::prelude::*;

    /// Added to the sum of squares of a query or a key, of which the length becomes one.
    const EPS: f32 = 1e-6;

    /// The rates of a layer: `alpha` and `beta` of tokens `[tokens, value_heads]`, and what is
    /// added to and multiplied with `alpha`, `[value_heads]`.
    pub struct DeltaRates<'a> {
        /// What decays the state.
        pub alpha: &'a [f32],
        /// How much of a token is written.
        pub beta: &'a [f32],
        /// Added to `alpha`.
        pub dt_bias: &'a [f32],
        /// Multiplies softplus of the sum.
        pub decay: &'a [f32],
    }

    /// Appends tokens `[tokens, mixed]`, of queries, keys and values, to a state
    /// `[value_heads, key_dim, value_dim]`, one after another, and returns what each reads,
    /// `[tokens, value_heads, value_dim]`:
    /// `S = g·S + k (β (v - (g·S)ᵀ k))ᵀ` and `o = Sᵀ q / √key_dim`, where q and k have length one,
    /// `β = σ(beta)` and `g = exp(decay · softplus(alpha + dt_bias))`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for another number of numbers.
    pub fn gated_delta(
        shape: DeltaShape,
        mixed: &[f32],
        rates: &DeltaRates<'_>,
        state: &mut [f32],
    ) -> Result<Vec<f32>> {
        let (op, heads, width) = ("gated_delta", shape.value_heads, shape.value_dim);
        let tokens = mixed.len() / shape.mixed().max(1);
        expect(op, "an input", mixed.len(), tokens * shape.mixed())?;
        expect(op, "a state", state.len(), shape.state())?;
        for (what, found, expected) in [
            ("alpha", rates.alpha, tokens * heads),
            ("beta", rates.beta, tokens * heads),
            ("dt_bias", rates.dt_bias, heads),
            ("decay", rates.decay, heads),
        ] {
            expect(op, what, found.len(), expected)?;
        }
        let by_head: Vec<Vec<f32>> = state
            .par_chunks_exact_mut(shape.key_dim * width)
            .enumerate()
            .map(|(head, state)| of_head(shape, head, mixed, rates, state))
            .collect();
        let mut y = vec![0f32; tokens * heads * width];
        for (head, own) in by_head.iter().enumerate() {
            for (token, own) in own.chunks_exact(width).enumerate() {
                y[(token * heads + head) * width..][..width].copy_from_slice(own);
            }
        }
        Ok(y)
    }

    /// What one value head reads of all tokens, `[tokens, value_dim]`.
    fn of_head(
        shape: DeltaShape,
        head: usize,
        mixed: &[f32],
        rates: &DeltaRates<'_>,
        state: &mut [f32],
    ) -> Vec<f32> {
        let (size, width, heads) = (shape.key_dim, shape.value_dim, shape.value_heads);
        let (keys, scale) = (shape.key_heads * size, 1.0 / (size as f32).sqrt());
        let mut y = Vec::with_capacity(mixed.len() / shape.mixed().max(1) * width);
        for (token, row) in mixed.chunks_exact(shape.mixed()).enumerate() {
            let at = shape.key_head(head) * size;
            let query = unit(&row[at..][..size], scale);
            let key = unit(&row[keys + at..][..size], 1.0);
            let value = &row[2 * keys + head * width..][..width];
            let alpha = rates.alpha[token * heads + head] + rates.dt_bias[head];
            let decay = exp(rates.decay[head] * softplus(alpha));
            let beta = 1.0 / (1.0 + exp(-rates.beta[token * heads + head]));
            let mut delta = vec![0f32; width];
            for (state, key) in state.chunks_exact_mut(width).zip(&key) {
                for (state, delta) in state.iter_mut().zip(&mut delta) {
                    *state *= decay;
                    *delta += *state * key;
                }
            }
            delta.iter_mut().zip(value).for_each(|(delta, value)| *delta = (value - *delta) * beta);
            let mut read = vec![0f32; width];
            for ((state, key), query) in state.chunks_exact_mut(width).zip(&key).zip(&query) {
                for ((state, delta), read) in state.iter_mut().zip(&delta).zip(&mut read) {
                    *state += key * delta;
                    *read += *state * query;
                }
            }
            y.extend(read);
        }
        y
    }

    /// A vector of length `length`.
    fn unit(x: &[f32], length: f32) -> Vec<f32> {
        let squares = x.iter().fold(0f32, |sum, x| sum + x * x);
        let factor = 1.0 / (squares + EPS).sqrt() * length;
        x.iter().map(|x| x * factor).collect()
    }

    /// ln(1 + e^x).
    fn softplus(x: f32) -> f32 {
        if x > 20.0 { x } else { exp_f64(f64::from(x)).ln_1p() as f32 }
    }

    /// Returns RMSNorm of each value head of `x` `[tokens, value_heads, value_dim]`, times `gain`
    /// `[value_dim]` and silu of the last columns of `gates` `[tokens, stride]`, with heads in the
    /// order of the output.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for another number of numbers.
    pub fn gated_norm(
        shape: DeltaShape,
        x: &[f32],
        (gain, eps): (&[f32], f32),
        (gates, stride): (&[f32], usize),
    ) -> Result<Vec<f32>> {
        let (op, values, width) = ("gated_norm", shape.values(), shape.value_dim);
        let tokens = x.len() / values.max(1);
        expect(op, "an input", x.len(), tokens * values)?;
        expect(op, "gains", gain.len(), width)?;
        expect(op, "gates", gates.len(), tokens * stride)?;
        expect(op, "rows of gates", stride.max(values), stride)?;
        let mut y = vec![0f32; x.len()];
        for (n, x) in x.chunks_exact(width).enumerate() {
            let (token, head) = (n / shape.value_heads, n % shape.value_heads);
            let gates = &gates[(token + 1) * stride - values..][head * width..][..width];
            let y = &mut y[token * values + shape.place(head) * width..][..width];
            let squares = x.iter().fold(0f32, |sum, x| sum + x * x);
            let factor = 1.0 / (squares / width as f32 + eps).sqrt();
            for (((y, x), gain), gate) in y.iter_mut().zip(x).zip(gain).zip(gates) {
                *y = x * factor * gain * (gate / (1.0 + exp(-gate)));
            }
        }
        Ok(y)
    }
}
