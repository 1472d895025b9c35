//! Operands and results: in host memory, or on the GPU.

use super::answer::{Answer, Target};
use crate::{
    error::Result,
    gpu::{context::Context, encoder::Encoder, tensor::Tensor},
    ops::bitnet::{QuantizedActivations, host_activations::HostActivations},
    shape::Shape,
    weights::{
        int::{matrix::IntMatrix, packed::PackedInt},
        ternary::{matrix::TernaryMatrix, packed::PackedTernary},
    },
};
use std::{borrow::Cow, fmt::Debug};

/// Results that an op leaves on the GPU, and their form in host memory.
pub trait Stored: Clone + Debug + Sized {
    /// The form in host memory.
    type Host: Clone + Debug;

    /// Waits for it and copies it back.
    ///
    /// # Errors
    /// What the device reports.
    fn read(&self) -> Result<Self::Host>;

    /// Submits what computes it, and copies it back.
    #[doc(hidden)]
    fn submit_read(&self, encoder: Encoder) -> Result<Self::Host> {
        let _ = encoder.submit()?;
        self.read()
    }
}

impl Stored for Tensor<f32> {
    type Host = Vec<f32>;

    fn read(&self) -> Result<Vec<f32>> {
        pollster::block_on(self.read())
    }

    /// In one submission.
    fn submit_read(&self, encoder: Encoder) -> Result<Vec<f32>> {
        pollster::block_on(encoder.finish().submit_read(self)?)
    }
}

impl Stored for QuantizedActivations {
    type Host = HostActivations;

    fn read(&self) -> Result<HostActivations> {
        pollster::block_on(self.read())
    }
}

impl Stored for TernaryMatrix {
    type Host = PackedTernary;

    fn read(&self) -> Result<PackedTernary> {
        pollster::block_on(self.read())
    }
}

impl Stored for IntMatrix {
    type Host = PackedInt;

    fn read(&self) -> Result<PackedInt> {
        pollster::block_on(self.read())
    }
}

/// A result where it was computed. As an operand, it stays there.
#[derive(Clone, Debug)]
pub enum Placed<G: Stored> {
    /// In host memory.
    Cpu(G::Host),
    /// On the GPU, which may still compute it.
    Gpu(G),
}

/// Numbers where they were computed.
pub type Value = Placed<Tensor<f32>>;

impl<G: Stored> Placed<G> {
    /// Returns it in host memory; waits for the GPU where it is there.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read(self) -> Result<G::Host> {
        match self {
            Self::Cpu(host) => Ok(host),
            Self::Gpu(stored) => stored.read(),
        }
    }

    /// Returns the side that it is on.
    pub fn target(&self) -> Target {
        match self {
            Self::Cpu(_) => Target::Cpu,
            Self::Gpu(_) => Target::Gpu,
        }
    }
}

impl From<Tensor<f32>> for Value {
    fn from(tensor: Tensor<f32>) -> Self {
        Self::Gpu(tensor)
    }
}

impl From<Vec<f32>> for Value {
    fn from(numbers: Vec<f32>) -> Self {
        Self::Cpu(numbers)
    }
}

/// Operands of [`Auto`](super::Auto). Sealed: implemented by the types below.
///
/// | operand | where a call runs | result |
/// | --- | --- | --- |
/// | a slice, an array or a [`Vec`] | where it is faster | in host memory |
/// | a [`Tensor`] | on the GPU | [`Placed`], on the GPU |
/// | a [`Value`] | on the GPU if it is there, else where it is faster | [`Placed`], where it was computed |
///
/// With several operands, the call runs on the GPU if one of them is there, and the first of them
/// says what the result is.
pub trait Operand: sealed::Operand {
    /// What an op returns that leaves `G` on the GPU.
    type Result<G: Stored>;

    #[doc(hidden)]
    fn answer<G: Stored>(answer: Answer<Placed<G>>) -> Result<Answer<Self::Result<G>>>;
}

/// The answer of an op whose result is numbers, for a first operand `A`.
pub type Numbers<A> = Answer<<A as Operand>::Result<Tensor<f32>>>;

/// An operand's numbers.
#[derive(Clone, Copy)]
pub enum View<'a> {
    Cpu(&'a [f32]),
    Gpu(&'a Tensor<f32>),
}

impl<'a> View<'a> {
    pub fn len(self) -> usize {
        match self {
            Self::Cpu(numbers) => numbers.len(),
            Self::Gpu(tensor) => tensor.len(),
        }
    }

    pub fn shape(self) -> Shape {
        match self {
            Self::Cpu(numbers) => [numbers.len()].into(),
            Self::Gpu(tensor) => tensor.shape(),
        }
    }

    /// The numbers in host memory.
    pub fn host(self) -> Result<Cow<'a, [f32]>> {
        match self {
            Self::Cpu(numbers) => Ok(Cow::Borrowed(numbers)),
            Self::Gpu(tensor) => Ok(Cow::Owned(Stored::read(tensor)?)),
        }
    }

    /// The numbers on the GPU, in a shape of as many.
    pub fn on(self, context: &Context, shape: impl Into<Shape>) -> Result<Tensor<f32>> {
        match self {
            Self::Cpu(numbers) => context.upload(numbers, shape),
            Self::Gpu(tensor) => tensor.reshape(shape),
        }
    }
}

mod sealed {
    use super::View;

    pub trait Operand {
        /// Whether results are wanted in host memory.
        const READS: bool;

        fn view(&self) -> View<'_>;
    }
}
pub(super) use sealed::Operand as Sealed;

/// Implements [`Operand`] for types whose results are in host memory.
macro_rules! host {
    ($([$($generics:tt)*] $operand:ty),+) => {
        $(
            impl<$($generics)*> Sealed for $operand {
                const READS: bool = true;

                fn view(&self) -> View<'_> {
                    View::Cpu(self)
                }
            }

            impl<$($generics)*> Operand for $operand {
                type Result<G: Stored> = G::Host;

                #[inline]
                fn answer<G: Stored>(answer: Answer<Placed<G>>) -> Result<Answer<G::Host>> {
                    let Answer { value, ran, failure } = answer;
                    Ok(Answer { value: value.read()?, ran, failure })
                }
            }
        )+
    };
}
host!([] [f32], [] Vec<f32>, [const N: usize] [f32; N]);

/// Implements [`Operand`] for types whose results stay where they are computed.
macro_rules! placed {
    ($($operand:ty, $own:ident => $view:expr);+) => {
        $(
            impl Sealed for $operand {
                const READS: bool = false;

                fn view(&self) -> View<'_> {
                    let $own = self;
                    $view
                }
            }

            impl Operand for $operand {
                type Result<G: Stored> = Placed<G>;

                fn answer<G: Stored>(answer: Answer<Placed<G>>) -> Result<Answer<Placed<G>>> {
                    Ok(answer)
                }
            }
        )+
    };
}
placed! {
    Tensor<f32>, tensor => View::Gpu(tensor);
    Value, value => match value {
        Placed::Cpu(numbers) => View::Cpu(numbers),
        Placed::Gpu(tensor) => View::Gpu(tensor),
    }
}
