//! The gate of attention's output.

pub(crate) mod host {
    use super::super::expect::expect;
    use crate::{error::Result, ops::exp::exp};

    /// Multiplies `x` by 1 / (1 + e^-gate), number by number.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if there are not as many of both.
    pub fn output_gate(x: &mut [f32], gate: &[f32]) -> Result<()> {
        expect("output_gate", "a gate", gate.len(), x.len())?;
        x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= 1.0 / (1.0 + exp(-gate)));
        Ok(())
    }
}
