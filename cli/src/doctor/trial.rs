//! What a case gets: a recording, seeded data, and checks that run after the submission.

use super::compare::{Bound, Number, Numbers, difference};
use anyhow::{Result, bail};
use bitnet_wgpu::{
    Context, Encoder, Tensor,
    tensor::{ElementType, Float},
};
use pollster::block_on;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// Half a unit in the last place of an `f16`, with some room: Vulkan and Metal leave its rounding
/// open.
const F16_ROUNDING: f64 = 1.0 / 1024.0;

/// A case that is recorded on a device.
pub struct Trial {
    /// Takes the data.
    pub context: Context,
    /// Takes the ops.
    pub encoder: Encoder,
    rng: StdRng,
    checks: Vec<Check>,
}

/// Reads a result and compares it. Gives a description of the difference, if there is one.
type Check = Box<dyn FnOnce() -> Result<Option<String>>>;

impl Trial {
    /// `name` seeds the data.
    pub fn new(context: &Context, name: &str) -> Self {
        let seed =
            name.bytes().fold(7, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        Self {
            context: context.clone(),
            encoder: context.encoder("doctor"),
            rng: StdRng::seed_from_u64(seed),
            checks: Vec::new(),
        }
    }

    /// Random numbers in -3..3.
    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.rng.random_range(-3.0..3.0)).collect()
    }

    /// [`Trial::floats`], rounded to another type.
    pub fn values<T: Float>(&mut self, len: usize) -> Vec<T> {
        self.floats(len).into_iter().map(T::from_f32).collect()
    }

    /// Random integers below `end`.
    pub fn ids(&mut self, len: usize, end: u32) -> Vec<u32> {
        (0..len).map(|_| self.rng.random_range(0..end)).collect()
    }

    /// Random codes of eight bits.
    pub fn bytes(&mut self, len: usize) -> Vec<i8> {
        (0..len).map(|_| self.rng.random()).collect()
    }

    /// Expects a tensor to hold these numbers, bit for bit.
    pub fn same<T: ElementType + Number>(&mut self, got: &Tensor<T>, expected: Vec<T>) {
        let got = got.clone();
        self.check(Bound::Exact, move || Ok(block_on(got.read())?), &expected);
    }

    /// Expects a tensor to hold these numbers, but for a share of the largest and for the rounding
    /// to `f16`.
    pub fn near<T: Float + Number>(&mut self, got: &Tensor<T>, expected: &[f32], share: f64) {
        let rounding = if T::ELEMENT == f32::ELEMENT { 0.0 } else { F16_ROUNDING };
        let got = got.clone();
        self.check(
            Bound::Within(share + rounding),
            move || Ok(block_on(got.read())?),
            &expected.to_vec(),
        );
    }

    /// Expects these numbers of a result that is read after the submission.
    pub fn check<G: Numbers>(
        &mut self,
        bound: Bound,
        read: impl FnOnce() -> Result<G> + 'static,
        expected: &impl Numbers,
    ) {
        let expected = expected.numbers();
        self.checks.push(Box::new(move || Ok(difference(&read()?.numbers(), &expected, bound))));
    }

    /// Submits what is recorded and runs the checks, in order.
    ///
    /// # Errors
    /// The first difference, or what the device reports. A case without checks proves nothing,
    /// which is an error.
    pub fn finish(self) -> Result<()> {
        if self.checks.is_empty() {
            bail!("nothing is checked");
        }
        self.encoder.submit()?.wait()?;
        let several = self.checks.len() > 1;
        for (output, check) in (1..).zip(self.checks) {
            match check()? {
                Some(difference) if several => bail!("result {output}: {difference}"),
                Some(difference) => bail!("{difference}"),
                None => {}
            }
        }
        Ok(())
    }
}
