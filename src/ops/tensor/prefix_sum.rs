//! prefix_sum: y_i = Σ_{j ≤ i} x_j along a dimension, or Σ_{j < i}.
//!
//! Along another dimension than the last, it goes there and back. Rows are cut into chunks. Where
//! there are several, the sums of chunks come first, then their prefix sums, by the same kernels.
//! One pass would do if workgroups waited for those before them, but WebGPU does not promise that
//! those run.

use crate::{
    element::ElementType,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    ops::{forward::forward, tensor::strided::permute},
    params,
    shape::Shape,
    wgsl,
};

params! { struct ChunksParams { rows: u32, columns: u32, chunks: u32 } }
params! { struct Params { rows: u32, columns: u32, chunks: u32, lanes: u32, exclusive: u32 } }

const THREADS: u32 = 256;
/// Neighboring numbers that a thread takes.
const TURNS: u32 = 8;
const CHUNK: usize = (THREADS * TURNS) as usize;

/// Its numbers, with this many words of workgroup memory a thread.
const fn source(source: Source, words: u32) -> Source {
    source
        .workgroup_size([THREADS, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(4 * words * THREADS)
        .constants(&[("TURNS", TURNS)])
}

const fn chunks(
    name: &'static str,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, ChunksParams::FIELDS, bindings, sources).entry("prefix_sum_chunks").flat()
}

const fn sums(
    name: &'static str,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, bindings, sources).entry("prefix_sum").flat()
}

static CHUNKS_F32: Kernel = chunks(
    "prefix_sum_chunks_f32",
    &[read("x", F32), read_write("y", F32)],
    &[source(
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "tensor/prefix_sum_f32",
            "tensor/prefix_sum_chunks"
        ]),
        1,
    )],
);
static CHUNKS_U32: Kernel = chunks(
    "prefix_sum_chunks_u32",
    &[read("x", U32), read_write("y", U32)],
    &[source(
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "tensor/prefix_sum_u32",
            "tensor/prefix_sum_chunks"
        ]),
        1,
    )],
);
static SUMS_F32: Kernel = sums(
    "prefix_sum_f32",
    &[read("x", F32), read("before", F32), read_write("y", F32)],
    &[source(
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "tensor/prefix_sum_f32",
            "tensor/prefix_sum"
        ]),
        TURNS + 3,
    )],
);
static SUMS_U32: Kernel = sums(
    "prefix_sum_u32",
    &[read("x", U32), read("before", U32), read_write("y", U32)],
    &[source(
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "tensor/prefix_sum_u32",
            "tensor/prefix_sum"
        ]),
        TURNS + 3,
    )],
);

pub(super) const KERNELS: &[&Kernel] = &[&CHUNKS_F32, &CHUNKS_U32, &SUMS_F32, &SUMS_U32];

/// Element types of prefix sums: `f32`; `u32` and `i32` modulo 2^32.
pub trait PrefixSumElement: ElementType {
    /// The type that kernels add: signed words are added as unsigned ones.
    #[doc(hidden)]
    type Bound: PrefixSumElement;
    /// For the sums of chunks, and for what is before each element.
    #[doc(hidden)]
    fn kernels() -> [&'static Kernel; 2];
    /// Running sums of the CPU reference, starting at 0: those of floats in `f64`.
    #[doc(hidden)]
    fn running(row: &[Self]) -> Vec<Self>;
}

impl PrefixSumElement for f32 {
    type Bound = Self;
    fn kernels() -> [&'static Kernel; 2] {
        [&CHUNKS_F32, &SUMS_F32]
    }
    fn running(row: &[Self]) -> Vec<Self> {
        let mut sum = 0f64;
        let sums = row.iter().map(|&v| {
            sum += f64::from(v);
            sum as Self
        });
        [0.0].into_iter().chain(sums).collect()
    }
}

impl PrefixSumElement for u32 {
    type Bound = Self;
    fn kernels() -> [&'static Kernel; 2] {
        [&CHUNKS_U32, &SUMS_U32]
    }
    fn running(row: &[Self]) -> Vec<Self> {
        let mut sum = 0u32;
        let sums = row.iter().map(|&v| {
            sum = sum.wrapping_add(v);
            sum
        });
        [0].into_iter().chain(sums).collect()
    }
}

impl PrefixSumElement for i32 {
    type Bound = u32;
    fn kernels() -> [&'static Kernel; 2] {
        u32::kernels()
    }
    fn running(row: &[Self]) -> Vec<Self> {
        let row: Vec<u32> = row.iter().map(|&v| v as u32).collect();
        u32::running(&row).into_iter().map(|sum| sum as Self).collect()
    }
}

/// Sums along a dimension up to each element: what [`prefix_sum`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct PrefixSum<'a, T> {
    x: &'a Tensor<T>,
    axis: usize,
    exclusive: bool,
}

/// y_i = Σ_{j ≤ i} x_j along dimension `axis`, like PyTorch's `cumsum`. Floats are added in an
/// order that follows from the shape: 8 neighbors, then 256 of those sums in 8 steps, then chunks of
/// 2048 in the same way, so |error| < 24·2^-24·Σ|x| for every such level.
///
/// The gradient of an inclusive sum is Σ dy less the exclusive prefix sums of dy; of an exclusive
/// one, less the inclusive.
pub fn prefix_sum<T: PrefixSumElement>(x: &Tensor<T>, axis: usize) -> PrefixSum<'_, T> {
    PrefixSum { x, axis, exclusive: false }
}

forward!(impl['a, T: PrefixSumElement] PrefixSum<'a, T> => overwrite T);

impl<T: PrefixSumElement> PrefixSum<'_, T> {
    /// Leaves x_i out of y_i, so that the first sum is 0.
    pub fn exclusive(self) -> Self {
        Self { exclusive: true, ..self }
    }

    fn shape(&self) -> Result<Shape> {
        Ok(self.x.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        y.check_shape("prefix_sum", self.x.shape())?;
        let (x, y) = (self.x.cast::<T::Bound>(), y.tensor().cast::<T::Bound>());
        let Some([there, back]) = turns(x.shape(), self.axis)? else {
            return record(encoder, &x, self.exclusive, &y);
        };
        let x = permute(&x, &there).forward(encoder)?;
        let sums = Tensor::uninit(encoder.context(), x.shape())?;
        record(encoder, &x, self.exclusive, &sums)?;
        permute(&sums, &back).forward_into(encoder, &y)
    }
}

/// The permutations that make a dimension the last one and take it back, unless it is the last.
fn turns(shape: Shape, axis: usize) -> Result<Option<[Vec<usize>; 2]>> {
    let rank = shape.rank();
    if axis >= rank {
        return Err(Error::Invalid {
            op: "prefix_sum",
            what: format!("there is no dimension {axis} in {shape}"),
        });
    }
    let there = (0..rank).filter(|&i| i != axis).chain([axis]).collect();
    let back = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
    Ok((axis + 1 < rank).then_some([there, back]))
}

/// Records the sums along the last dimension.
fn record<T: PrefixSumElement>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    exclusive: bool,
    y: &Tensor<T>,
) -> Result<()> {
    let [chunks_kernel, sums_kernel] = T::kernels();
    let (rows, columns) = x.shape().as_matrix();
    let chunks = columns.div_ceil(CHUNK).max(1);
    // The first chunk has nothing before it, and reads nothing there.
    let mut before = x.clone();
    if chunks > 1 {
        let sums = Tensor::uninit(encoder.context(), [rows, chunks])?;
        before = Tensor::uninit(encoder.context(), [rows, chunks])?;
        let params =
            ChunksParams { rows: rows as u32, columns: columns as u32, chunks: chunks as u32 };
        encoder.dispatch(chunks_kernel, &params, &[x, &sums], [rows * chunks, 1, 1])?;
        record(encoder, &sums, true, &before)?;
    }
    // Rows that are one chunk share workgroups.
    let lanes = columns.div_ceil(TURNS as usize).next_power_of_two().min(THREADS as usize);
    let groups = rows.div_ceil(THREADS as usize / lanes) * chunks;
    let params = Params {
        rows: rows as u32,
        columns: columns as u32,
        chunks: chunks as u32,
        lanes: lanes as u32,
        exclusive: exclusive.into(),
    };
    encoder.dispatch(sums_kernel, &params, &[x, &before, y], [groups, 1, 1])
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;
    use crate::ops::tensor::strided::reference::permute;

    /// CPU reference of [`prefix_sum`](fn@crate::tensor::prefix_sum): integers are equal, floats
    /// are summed in `f64`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a dimension that the shape lacks; [`Error::Length`] if `x` does not
    /// fill the shape.
    pub fn prefix_sum<T: PrefixSumElement>(
        x: &[T],
        shape: impl Into<Shape>,
        axis: usize,
        exclusive: bool,
    ) -> Result<Vec<T>> {
        let shape = shape.into();
        let first = usize::from(!exclusive);
        let sums = |x: &[T], columns: usize| -> Vec<T> {
            x.chunks_exact(columns.max(1))
                .flat_map(|row| T::running(row)[first..][..columns].to_vec())
                .collect()
        };
        if shape.checked_len() != Some(x.len()) {
            return Err(Error::Length { shape, found: x.len() });
        }
        let Some([there, back]) = turns(shape, axis)? else {
            return Ok(sums(x, shape.as_matrix().1));
        };
        let turned = Shape::of(&there.iter().map(|&i| shape.dims()[i]).collect::<Vec<_>>());
        permute(&sums(&permute(x, shape, &there)?, shape.dims()[axis]), turned, &back)
    }
}
