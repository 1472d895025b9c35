//! What reductions share. The frame (wgsl/frames/reduce, msl/frames/reduce) owns index, shape,
//! strides and passes; an op's source brings what is combined: `identity()`, `load(v)`,
//! `combine(a, b)`, `finish(acc)`.
//!
//! The order in which numbers are combined follows from the shape alone. An output's numbers are
//! cut into chunks. A chunk is shared by `lanes` threads, each of which takes every `lanes`-th
//! number, at most [`TURNS`] of them; then the lanes are combined in a binary tree, the upper half
//! to the lower. Where there are several chunks, what they give is reduced in the same way.

use crate::{
    element::{ElementType, Float},
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        tensor::{Bind, Tensor},
    },
    kernel::{binding::Binding, declaration::Kernel, params::Params as _, source::Source},
    params,
    shape::Shape,
    tuning::TuningKey,
};

/// Threads of a workgroup.
pub const THREADS: usize = 256;
/// Threads of a workgroup whose threads each reduce a row alone: as many as a software adapter
/// takes together, so that few rows are work for all of its cores.
const ALONE: u32 = 8;
/// The most numbers that a thread takes: a bound on the error of a sum, and enough work to hide a
/// dispatch.
pub const TURNS: usize = 32;
/// Numbers that a thread takes where a row is short: fewer lanes, more rows a workgroup.
const FEW: usize = 8;
/// Neighboring outputs whose numbers are read together.
const TOGETHER: usize = 32;

params! {
    struct Params {
        outputs: u32, count: u32, lanes: u32, chunks: u32,
        inner_outputs: u32, outer_stride: u32, inner_stride: u32, inner_count: u32, outer_step: u32, inner_step: u32,
        parts: u32, last: u32, add: u32,
        divisor: f32, mask: u32, flip: u32,
    }
}

/// What ops ask for; each reads its own.
#[derive(Clone, Copy)]
pub struct Numbers {
    pub divisor: f32,
    pub mask: u32,
    pub flip: u32,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { divisor: 1.0, mask: u32::MAX, flip: 0 }
    }
}

/// The sources of a reduction: its parts between those of the frame.
macro_rules! reduction {
    (wgsl [$($wgsl:tt),*]) => { $crate::ops::reduce::source($crate::kernel::source::Source::wgsl($crate::wgsl![
        "shared/ids", "shared/flat", $($wgsl,)* "shared/lanes", "frames/reduce"
    ])) };
    (msl [$($msl:tt),*]) => { $crate::ops::reduce::source($crate::kernel::source::Source::msl($crate::msl![
        "shared/prelude", $($msl,)* "shared/lanes", "frames/reduce"
    ])) };
}
pub(super) use reduction;

/// [`reduction`] in WGSL, a chunk by one thread.
macro_rules! reduction_alone {
    (wgsl [$($wgsl:tt),*]) => { $crate::ops::reduce::alone($crate::kernel::source::Source::wgsl($crate::wgsl![
        "shared/ids", "shared/flat", $($wgsl,)* "shared/row_alone", "frames/reduce_alone"
    ])).constants($crate::ops::reduce::CHUNK) };
}
pub(super) use reduction_alone;

pub const CHUNK: &[(&str, u32)] = &[("TURNS", TURNS as u32)];

/// A workgroup's numbers. Its tree holds a word for each thread.
pub const fn source(source: Source) -> Source {
    let source = source.workgroup_size([THREADS as u32, 1, 1]).tile([1, 1, 1]);
    source.workgroup_bytes(4 * THREADS as u32).constants(CHUNK)
}

/// A reduction's kernel, `sources` made with [`reduction`].
pub const fn kernel(
    name: &'static str,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, bindings, sources).entry("reduce").flat()
}

/// The dimensions that an op reduces: `[0, 2].into()`, or [`Axes::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axes {
    /// A bit for each dimension, from the outermost on; the last for all that no shape has.
    set: u8,
    all: bool,
    keep: bool,
}

impl Axes {
    /// Every dimension.
    pub const ALL: Self = Self { set: 0, all: true, keep: false };

    /// The result has 1 in place of what is reduced.
    pub(crate) fn keep(self) -> Self {
        Self { keep: true, ..self }
    }

    fn has(self, dim: usize) -> bool {
        self.all || self.set >> dim & 1 == 1
    }
}

impl From<&[usize]> for Axes {
    fn from(dims: &[usize]) -> Self {
        Self {
            set: dims.iter().fold(0, |set, &dim| set | 1 << dim.min(7)),
            all: false,
            keep: false,
        }
    }
}

impl<const N: usize> From<[usize; N]> for Axes {
    fn from(dims: [usize; N]) -> Self {
        dims.as_slice().into()
    }
}

/// Which elements of a tensor belong to which output. Kept dimensions that lie one after another
/// are joined, as are reduced ones; so there are at most two of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub outputs: usize,
    /// Numbers of an output.
    pub count: usize,
    inner_outputs: usize,
    /// Between outputs, in elements.
    strides: [usize; 2],
    inner_count: usize,
    /// Between the numbers of an output.
    steps: [usize; 2],
    /// The output's shape without what is reduced, and with ones.
    shapes: [Shape; 2],
    keep: bool,
}

/// How a workgroup's threads share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// Threads that share an output, a power of two.
    lanes: usize,
    chunks: usize,
}

/// Threads that share a row of `count` numbers.
pub fn lanes(count: usize) -> usize {
    count.div_ceil(FEW).next_power_of_two().clamp(1, THREADS)
}

/// The numbers of a kernel whose rows are shared by [`lanes`]: several rows a workgroup where they
/// are short, `words` of workgroup memory a thread.
pub const fn by_rows(source: Source, words: u32) -> Source {
    source
        .workgroup_size([THREADS as u32, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(4 * words * THREADS as u32)
}

/// Numbers of a row that each thread holds, where that is faster than to read the row again in
/// every pass (wgsl/shared/held.wgsl).
pub const HELD: u32 = 16;

/// Of two kernels whose rows have this many columns: that whose threads hold one number each, or
/// [`HELD`]. Both add in the same order.
pub fn held(
    encoder: &Encoder,
    columns: usize,
    one: &'static Kernel,
    held: &'static Kernel,
) -> &'static Kernel {
    if columns >= encoder.context().capabilities().tuned(TuningKey::UnrolledColumns) {
        held
    } else {
        one
    }
}

/// The numbers of a kernel of which a thread takes a row alone (wgsl/shared/row_alone.wgsl).
pub const fn alone(source: Source) -> Source {
    source.workgroup_size([ALONE, 1, 1])
}

/// A kernel whose rows are shared by lanes, and the same by threads alone where there is one: equal
/// orders, equal bindings.
#[derive(Clone, Copy)]
pub struct Ways {
    pub shared: &'static Kernel,
    pub alone: Option<&'static Kernel>,
}

impl Ways {
    pub const fn shared(kernel: &'static Kernel) -> Self {
        Self { shared: kernel, alone: None }
    }

    /// The kernel for this many rows, and its extent, which for lanes is of `workgroups`.
    pub fn choose(
        self,
        encoder: &Encoder,
        rows: usize,
        workgroups: impl FnOnce() -> [usize; 3],
    ) -> (&'static Kernel, [usize; 3]) {
        let enough = rows >= encoder.context().capabilities().tuned(TuningKey::RowPerThread);
        self.alone
            .filter(|_| enough)
            .map_or_else(|| (self.shared, workgroups()), |alone| (alone, [rows, 1, 1]))
    }
}

/// The workgroups of a kernel of [`by_rows`].
pub fn rows_extent(rows: usize, columns: usize) -> [usize; 3] {
    [rows.div_ceil(THREADS / lanes(columns)), 1, 1]
}

impl Geometry {
    /// # Errors
    /// [`Error::Invalid`] for a dimension that the shape does not have.
    pub fn new(op: &'static str, shape: Shape, axes: Axes) -> Result<Self> {
        let dims = shape.dims();
        if u32::from(axes.set) >> dims.len() != 0 {
            return Err(Error::Invalid {
                op,
                what: format!("an axis is not a dimension of {shape}"),
            });
        }
        // Length and stride of what is kept and of what is reduced, innermost first.
        let mut groups: [Vec<(usize, usize)>; 2] = [Vec::new(), Vec::new()];
        let (mut stride, mut last) = (1, None);
        for (i, &dim) in dims.iter().enumerate().rev().filter(|(_, dim)| **dim != 1) {
            let reduced = axes.has(i);
            match groups[usize::from(reduced)].last_mut() {
                Some((length, _)) if last == Some(reduced) => *length *= dim,
                _ => groups[usize::from(reduced)].push((dim, stride)),
            }
            (stride, last) = (stride * dim, Some(reduced));
        }
        let [kept, reduced] = groups;
        let group = |groups: &[(usize, usize)], i: usize| groups.get(i).copied().unwrap_or((1, 0));
        let length = |groups: &[(usize, usize)]| groups.iter().map(|group| group.0).product();
        let kept_dims: Vec<usize> =
            (0..dims.len()).filter(|&i| !axes.has(i)).map(|i| dims[i]).collect();
        let with_ones: Vec<usize> =
            (0..dims.len()).map(|i| if axes.has(i) { 1 } else { dims[i] }).collect();
        Ok(Self {
            outputs: length(&kept),
            count: length(&reduced),
            inner_outputs: group(&kept, 0).0,
            strides: [group(&kept, 1).1, group(&kept, 0).1],
            inner_count: group(&reduced, 0).0,
            steps: [group(&reduced, 1).1, group(&reduced, 0).1],
            shapes: [Shape::of(&kept_dims), Shape::of(&with_ones)],
            keep: axes.keep,
        })
    }

    /// [`Geometry::new`] for what is on the host.
    pub fn of<X>(op: &'static str, x: &[X], shape: Shape, axes: Axes) -> Result<Self> {
        match shape.checked_len() == Some(x.len()) {
            true => Self::new(op, shape, axes),
            false => Err(Error::Length { shape, found: x.len() }),
        }
    }

    /// Checks that there is a number for each output.
    pub fn check_len(&self, len: usize) -> Result<()> {
        if len == self.outputs {
            Ok(())
        } else {
            Err(Error::Length { shape: self.shape(), found: len })
        }
    }

    /// The rows of a matrix.
    pub fn rows(rows: usize, columns: usize) -> Self {
        let shapes = [[rows].into(), [rows, 1].into()];
        let (strides, steps) = ([0, columns], [0, 1]);
        Self {
            outputs: rows,
            count: columns,
            inner_outputs: rows,
            strides,
            inner_count: columns,
            steps,
            shapes,
            keep: false,
        }
    }

    /// The result's shape.
    pub fn shape(&self) -> Shape {
        self.shapes[usize::from(self.keep)]
    }

    /// The result's shape with 1 in place of what is reduced, which broadcasts to the input.
    pub fn kept_shape(&self) -> Shape {
        self.shapes[1]
    }

    /// Checks that it has the result's shape, in one form or the other.
    pub fn check(&self, op: &'static str, what: &'static str, shape: Shape) -> Result<()> {
        if self.shapes.contains(&shape) {
            return Ok(());
        }
        let [without, with] = self.shapes;
        let expected =
            if without == with { without.to_string() } else { format!("{without} or {with}") };
        Err(Error::Shape { op, what, expected, found: shape })
    }

    fn plan(&self) -> Plan {
        // Where an output's numbers do not lie side by side, neighboring threads take neighboring
        // outputs.
        let most = if self.steps[1] != 1 {
            THREADS / self.inner_outputs.clamp(1, TOGETHER).next_power_of_two()
        } else {
            THREADS
        };
        let lanes = lanes(self.count).min(most);
        Plan { lanes, chunks: self.count.div_ceil(lanes * TURNS).max(1) }
    }

    /// Where the number `index` of an output is.
    fn at(&self, output: usize, index: usize) -> usize {
        let of = |i: usize, inner: usize, [outer_stride, inner_stride]: [usize; 2]| {
            i / inner * outer_stride + i % inner * inner_stride
        };
        of(output, self.inner_outputs, self.strides) + of(index, self.inner_count, self.steps)
    }

    /// The CPU reference of the frame: the same order. `element(at, index, output)` is a number,
    /// `at` its place in the tensor.
    pub fn reduce_cpu<A: Copy>(
        &self,
        identity: A,
        element: impl Fn(usize, usize, usize) -> A,
        combine: impl Fn(A, A) -> A,
    ) -> Vec<A> {
        let mut now = self.pass_cpu(identity, element, &combine);
        let mut count = self.plan().chunks;
        while count > 1 {
            let rows = Self::rows(self.outputs, count);
            now = rows.pass_cpu(identity, |at, _, _| now[at], &combine);
            count = rows.plan().chunks;
        }
        now
    }

    /// The CPU reference of the frame for gradients.
    pub fn spread_cpu(&self, gradient: impl Fn(usize, usize, usize) -> f32) -> Vec<f32> {
        let mut dx = vec![0.0; self.outputs * self.count];
        for (output, index) in
            (0..self.outputs).flat_map(|output| (0..self.count).map(move |index| (output, index)))
        {
            let at = self.at(output, index);
            dx[at] = gradient(at, index, output);
        }
        dx
    }

    fn pass_cpu<A: Copy>(
        &self,
        identity: A,
        element: impl Fn(usize, usize, usize) -> A,
        combine: &impl Fn(A, A) -> A,
    ) -> Vec<A> {
        let Plan { lanes, chunks, .. } = self.plan();
        let chunk = |output: usize, chunk: usize| {
            let mut accs = vec![identity; lanes];
            for i in chunk * lanes * TURNS..self.count.min((chunk + 1) * lanes * TURNS) {
                accs[i % lanes] = combine(accs[i % lanes], element(self.at(output, i), i, output));
            }
            tree_cpu(accs, combine)
        };
        (0..self.outputs)
            .flat_map(|output| (0..chunks).map(move |i| (output, i)))
            .map(|(output, i)| chunk(output, i))
            .collect()
    }
}

/// What lanes have, combined as shared/lanes does: the upper half to the lower, until one is left.
pub fn tree_cpu<A: Copy>(mut lanes: Vec<A>, combine: &impl Fn(A, A) -> A) -> A {
    while lanes.len() > 1 {
        let upper = lanes.split_off(lanes.len() / 2);
        lanes.iter_mut().zip(upper).for_each(|(lower, upper)| *lower = combine(*lower, upper));
    }
    lanes[0]
}

/// A reduction: `first` takes an op's inputs, `then` what the chunks gave, of which each has
/// `words` words.
pub struct Reduction {
    pub first: Ways,
    pub then: Ways,
    pub words: usize,
}

impl Reduction {
    /// Records it, in as many passes as it needs. All `inputs` are for `geometry`, or for its
    /// outputs.
    pub fn record<T: ElementType>(
        &self,
        encoder: &mut Encoder,
        inputs: &[&dyn Bind],
        geometry: &Geometry,
        numbers: Numbers,
        y: Out<'_, T>,
    ) -> Result<()> {
        let (mut parts, mut geometry) = (None::<Tensor<T>>, *geometry);
        loop {
            let plan = geometry.plan();
            let last = plan.chunks == 1;
            let next = match last {
                true => y.tensor().clone(),
                false => {
                    Tensor::uninit(encoder.context(), [geometry.outputs, plan.chunks * self.words])?
                }
            };
            let params = Params {
                outputs: geometry.outputs as u32,
                count: geometry.count as u32,
                lanes: plan.lanes as u32,
                chunks: plan.chunks as u32,
                inner_outputs: geometry.inner_outputs as u32,
                outer_stride: geometry.strides[0] as u32,
                inner_stride: geometry.strides[1] as u32,
                inner_count: geometry.inner_count as u32,
                outer_step: geometry.steps[0] as u32,
                inner_step: geometry.steps[1] as u32,
                parts: parts.is_some().into(),
                last: last.into(),
                add: (last && y.adds()).into(),
                divisor: numbers.divisor,
                mask: numbers.mask,
                flip: numbers.flip,
            };
            let workgroups =
                || [geometry.outputs.div_ceil(THREADS / plan.lanes) * plan.chunks, 1, 1];
            let choose =
                |ways: Ways| ways.choose(encoder, geometry.outputs * plan.chunks, workgroups);
            let (kernel, extent) = choose(if parts.is_none() { self.first } else { self.then });
            match &parts {
                None => encoder.dispatch(kernel, &params, &[inputs, &[&next]].concat(), extent)?,
                Some(parts) => encoder.dispatch(kernel, &params, &[parts, &next], extent)?,
            }
            if last {
                return Ok(());
            }
            (parts, geometry) = (Some(next), Geometry::rows(geometry.outputs, plan.chunks));
        }
    }
}

params! {
    /// `factor` is for the op.
    pub struct SpreadParams {
        length: u32, n0: u32, n1: u32, n2: u32, o0: u32, o1: u32, o2: u32, o3: u32, i0: u32, i1: u32, i2: u32, i3: u32, add: u32, factor: f32,
    }
}

/// A reduction by single threads, `sources` made with [`reduction_alone`].
pub const fn kernel_alone(
    name: &'static str,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    kernel(name, bindings, sources).entry("reduce_alone")
}

/// The kernel of a reduction's gradient, `sources` of one op and "frames/spread".
pub const fn spread_kernel(
    name: &'static str,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, SpreadParams::FIELDS, bindings, sources).entry("spread").flat()
}

/// Records a kernel of [`spread_kernel`]: `inputs` are for the elements of `dx`, or for the outputs
/// of `axes` of its shape.
pub fn spread<X: Float>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    inputs: &[&dyn Bind],
    axes: Axes,
    factor: f32,
    dx: Out<'_, X>,
) -> Result<()> {
    let (mut n, mut strides, mut next) = ([1; Shape::MAX_RANK], [[0; Shape::MAX_RANK]; 2], [1, 1]);
    for (at, (i, &dim)) in dx.tensor().shape().dims().iter().enumerate().rev().enumerate() {
        let group = usize::from(axes.has(i));
        n[at] = dim as u32;
        strides[group][at] = next[group];
        next[group] *= dim as u32;
    }
    let ([n0, n1, n2, _], [[o0, o1, o2, o3], [i0, i1, i2, i3]], length) =
        (n, strides, dx.tensor().len());
    let params = SpreadParams {
        length: length as u32,
        n0,
        n1,
        n2,
        o0,
        o1,
        o2,
        o3,
        i0,
        i1,
        i2,
        i3,
        add: dx.adds().into(),
        factor,
    };
    encoder.dispatch(kernel, &params, &[inputs, &[dx.tensor()]].concat(), [length, 1, 1])
}
