//! Convolution over time, each channel by itself, of a few tokens, and SiLU.

pub(crate) mod host {
    use super::super::expect::expect;
    use crate::{error::Result, ops::exp::exp};

    /// Returns silu(Σⱼ w[c, j] · x[t - kernel + 1 + j, c]), `[tokens, channels]`, of the first
    /// columns of `x` `[tokens, stride]` with `weights` `[channels, kernel]`. `state`
    /// `[kernel - 1, channels]` has the tokens before, and after it the last ones.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for another number of numbers.
    pub fn short_conv(
        x: &[f32],
        stride: usize,
        weights: &[f32],
        kernel: usize,
        state: &mut [f32],
    ) -> Result<Vec<f32>> {
        let (op, kernel) = ("short_conv", kernel.max(1));
        let channels = weights.len() / kernel;
        let tokens = x.len() / stride.max(1);
        expect(op, "weights", weights.len(), channels * kernel)?;
        expect(op, "an input", x.len(), tokens * stride)?;
        expect(op, "a state", state.len(), (kernel - 1) * channels)?;
        expect(op, "rows", stride.max(channels), stride)?;
        let mut seen = state.to_vec();
        x.chunks_exact(stride.max(1)).for_each(|row| seen.extend(&row[..channels]));
        let mut y = Vec::with_capacity(tokens * channels);
        for token in 0..tokens {
            let window = &seen[token * channels..][..kernel * channels];
            y.extend((0..channels).map(|channel| {
                let own = &weights[channel * kernel..][..kernel];
                let sum = own
                    .iter()
                    .enumerate()
                    .fold(0f32, |sum, (j, weight)| sum + weight * window[j * channels + channel]);
                sum / (1.0 + exp(-sum))
            }));
        }
        state.copy_from_slice(&seen[tokens * channels..]);
        Ok(y)
    }
}
