//! The Walsh-Hadamard rotation of activations, which spreads outliers over a block before it is
//! quantized: QuaRot (Ashkboos et al. 2024, arXiv:2404.00456), BitNet v2 (Wang et al. 2025,
//! arXiv:2504.18415).

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Source, Work},
    },
    msl,
    ops::forward::forward,
    params,
    shape::Shape,
    wgsl,
};

params! { struct Params { length: u32, block: u32, scale: f32, add: u32, in_place: u32 } }

/// Elements of a workgroup, and so of the largest block.
const LARGEST: usize = 1024;

const fn quarters(source: Source) -> Source {
    let source = source
        .workgroup_size([LARGEST as u32 / 4, 1, 1])
        .tile([LARGEST as u32, 1, 1])
        .workgroup_bytes(8 * LARGEST as u32);
    source.work(Work::new(4, "elements", 0, 4))
}

static HADAMARD: Kernel = Kernel::trusted(
    "hadamard",
    Params::FIELDS,
    &[read("x", Float("X")), read_write("y", Float("X"))],
    &[
        quarters(Source::wgsl(wgsl!["shared/ids", "shared/flat", "bitnet/hadamard"])),
        quarters(Source::msl(msl!["shared/prelude", "bitnet/hadamard"])),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&HADAMARD];

/// A Walsh-Hadamard rotation: what [`hadamard`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct HadamardRotation<'a, T> {
    x: &'a Tensor<T>,
    block: usize,
}

/// H·x / √`block` of every `block` neighbors along the last dimension, where H\[i, j\] =
/// (-1)^(ones in i & j), Sylvester's order; `block` is a power of two up to 1024. It keeps lengths
/// and angles. It is its own inverse, and its own gradient: dx is `hadamard` of dy. The result may
/// overwrite `x`.
///
/// Sums are `f32`, in the order of the fast transform: log₂ `block` steps, of which step h = 1, 2,
/// 4, ... makes of elements h apart their sum and their difference. The factor comes last.
pub fn hadamard<T: Float>(x: &Tensor<T>, block: usize) -> HadamardRotation<'_, T> {
    HadamardRotation { x, block }
}

forward!(impl['a, T: Float] HadamardRotation<'a, T> => T);

impl<T: Float> HadamardRotation<'_, T> {
    fn shape(&self) -> Result<Shape> {
        check(self.block)?;
        if self.x.shape().as_matrix().1.is_multiple_of(self.block) {
            return Ok(self.x.shape());
        }
        Err(Error::Shape {
            op: "hadamard",
            what: "x",
            expected: format!("[.., a multiple of {}]", self.block),
            found: self.x.shape(),
        })
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        y.check_shape("hadamard", self.shape()?)?;
        let Self { x, block } = self;
        let in_place = x.bound().id() == y.tensor().bound().id();
        let params = Params {
            length: x.len() as u32,
            block: block as u32,
            scale: scale(block),
            add: y.adds().into(),
            in_place: in_place.into(),
        };
        // wgpu binds no buffer for reading that is bound for writing.
        let unread =
            if in_place { Some(Tensor::<T>::uninit(encoder.context(), [1])?) } else { None };
        encoder.dispatch(
            &HADAMARD,
            &params,
            &[unread.as_ref().unwrap_or(x), y.tensor()],
            [x.len(), 1, 1],
        )
    }
}

fn check(block: usize) -> Result<()> {
    if block.is_power_of_two() && block <= LARGEST {
        return Ok(());
    }
    Err(Error::Invalid {
        op: "hadamard",
        what: format!("blocks of {block}; a power of two up to {LARGEST} is needed"),
    })
}

fn scale(block: usize) -> f32 {
    (1.0 / (block as f64).sqrt()) as f32
}

pub(crate) mod host {
    use super::*;

    /// CPU reference of [`hadamard`](fn@crate::bitnet::hadamard), in place: bit-identical.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a block that is no power of two up to 1024, [`Error::Length`] if `x`
    /// is not whole blocks.
    pub fn hadamard(x: &mut [f32], block: usize) -> Result<()> {
        check(block)?;
        if !x.len().is_multiple_of(block) {
            return Err(Error::Length { shape: [x.len() / block, block].into(), found: x.len() });
        }
        for numbers in x.chunks_exact_mut(block) {
            for h in (0..block.ilog2()).map(|step| 1 << step) {
                for pairs in numbers.chunks_exact_mut(2 * h) {
                    let (low, high) = pairs.split_at_mut(h);
                    low.iter_mut().zip(high).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
                }
            }
            numbers.iter_mut().for_each(|v| *v *= scale(block));
        }
        Ok(())
    }
}
