//! prefix_sum: y_i = Σ_{j ≤ i} x_j along a dimension, or Σ_{j < i}.
//!
//! Along another dimension than the last, it goes there and back. Rows are cut into chunks. Where
//! there are several, the sums of chunks come first, then their prefix sums, by the same kernels.
//! One pass would do if workgroups waited for those before them, but WebGPU does not promise that
//! those run.

use crate::{
    element::ElementType,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    ops::tensor::strided::{permute, permute_cpu, permute_into},
    params,
    shape::Shape,
    wgsl,
};

params! { struct ChunksParams { rows: u32, columns: u32, chunks: u32 } }
params! { struct Params { rows: u32, columns: u32, chunks: u32, lanes: u32, exclusive: u32 } }

const THREADS: u32 = 256;
/// Neighbouring numbers that a thread takes.
const TURNS: u32 = 8;
const CHUNK: usize = (THREADS * TURNS) as usize;

/// Its numbers, with so many words of workgroup memory a thread.
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

/// What a prefix sum has of its own place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefix {
    /// y_i has x_i: the last is the sum of all.
    Inclusive,
    /// y_i has not: the first is 0.
    Exclusive,
}

/// Elements that have prefix sums: `f32`; `u32` and `i32` modulo 2^32.
pub trait PrefixSum: ElementType {
    /// What kernels take it for: signed words are added as unsigned ones.
    #[doc(hidden)]
    type Bound: PrefixSum;
    /// For the sums of chunks, and for what is before each element.
    #[doc(hidden)]
    fn kernels() -> [&'static Kernel; 2];
    /// Running sums of the CPU twin, starting at 0: those of floats in `f64`.
    #[doc(hidden)]
    fn running(row: &[Self]) -> Vec<Self>;
}

impl PrefixSum for f32 {
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

impl PrefixSum for u32 {
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

impl PrefixSum for i32 {
    type Bound = u32;
    fn kernels() -> [&'static Kernel; 2] {
        u32::kernels()
    }
    fn running(row: &[Self]) -> Vec<Self> {
        let row: Vec<u32> = row.iter().map(|&v| v as u32).collect();
        u32::running(&row).into_iter().map(|sum| sum as Self).collect()
    }
}

/// The sums of what is before each element along a dimension, with itself or without. Floats are
/// added in an order that follows from the shape: 8 neighbours, then 256 of those sums in 8 steps,
/// then chunks of 2048 in the same way, so |error| < 24·2^-24·Σ|x| for every such level.
///
/// The gradient of an inclusive sum is Σ dy less the exclusive prefix sums of dy; of an exclusive
/// one, less the inclusive.
///
/// # Errors
/// [`Error::Invalid`] for a dimension that `x` has not.
pub fn prefix_sum<T: PrefixSum>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    axis: usize,
    prefix: Prefix,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    prefix_sum_into(encoder, x, axis, prefix, &y)?;
    Ok(y)
}

/// [`prefix_sum`] into a tensor of the caller.
///
/// # Errors
/// As [`prefix_sum`]; [`Error::Shape`] if it has another shape.
pub fn prefix_sum_into<T: PrefixSum>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    axis: usize,
    prefix: Prefix,
    y: &Tensor<T>,
) -> Result<()> {
    if y.shape() != x.shape() {
        return Err(Error::Shape {
            op: "prefix_sum",
            what: "the output",
            expected: x.shape().to_string(),
            found: y.shape(),
        });
    }
    let (x, y) = (x.cast::<T::Bound>(), y.cast::<T::Bound>());
    let Some([there, back]) = turns(x.shape(), axis)? else {
        return record(encoder, &x, prefix, &y);
    };
    let x = permute(encoder, &x, &there)?;
    let sums = Tensor::uninit(encoder.context(), x.shape())?;
    record(encoder, &x, prefix, &sums)?;
    permute_into(encoder, &sums, &back, &y)
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

/// Of the last dimension.
fn record<T: PrefixSum>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    prefix: Prefix,
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
        record(encoder, &sums, Prefix::Exclusive, &before)?;
    }
    let exclusive = (prefix == Prefix::Exclusive).into();
    // Rows that are one chunk share workgroups.
    let lanes = columns.div_ceil(TURNS as usize).next_power_of_two().min(THREADS as usize);
    let groups = rows.div_ceil(THREADS as usize / lanes) * chunks;
    let params = Params {
        rows: rows as u32,
        columns: columns as u32,
        chunks: chunks as u32,
        lanes: lanes as u32,
        exclusive,
    };
    encoder.dispatch(sums_kernel, &params, &[x, &before, y], [groups, 1, 1])
}

/// The CPU twin of [`prefix_sum`]: integers are equal, floats are summed in `f64`.
///
/// # Errors
/// As [`prefix_sum`]; [`Error::Length`] if `x` has not as many numbers as the shape.
pub fn prefix_sum_cpu<T: PrefixSum>(
    x: &[T],
    shape: impl Into<Shape>,
    axis: usize,
    prefix: Prefix,
) -> Result<Vec<T>> {
    let shape = shape.into();
    let first = usize::from(prefix == Prefix::Inclusive);
    let sums = |x: &[T], columns: usize| -> Vec<T> {
        x.chunks_exact(columns.max(1))
            .flat_map(|row| T::running(row)[first..][..columns].to_vec())
            .collect()
    };
    if shape.checked_len() != Some(x.len()) {
        return Err(Error::Length { shape, found: x.len() });
    }
    let Some([there, back]) = turns(shape, axis)? else { return Ok(sums(x, shape.as_matrix().1)) };
    let turned = Shape::of(&there.iter().map(|&i| shape.dims()[i]).collect::<Vec<_>>());
    permute_cpu(&sums(&permute_cpu(x, shape, &there)?, shape.dims()[axis]), turned, &back)
}
