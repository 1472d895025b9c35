//! What the cases of reductions share: shapes, and which elements belong to which output, by the
//! definition.

use crate::{Near, U, floats, rng, seed};
use bitnet_wgpu::{Shape, tensor::Axes};
use rand::{RngExt, rngs::SmallRng};

/// A tensor and what is reduced of it.
pub struct Reduced {
    pub rng: SmallRng,
    pub shape: Shape,
    pub axes: Vec<usize>,
    /// The elements of every output, in row-major order.
    pub elements: Vec<Vec<usize>>,
}

/// Scalars, nothing, axes in every place, many short rows, rows and columns of several passes, and
/// random ones.
pub fn reductions() -> Vec<Reduced> {
    let fixed: [(&[usize], &[usize]); 19] = [
        (&[], &[]),
        (&[0, 3], &[0]),
        (&[0, 3], &[1]),
        (&[5, 4], &[]),
        (&[1, 7], &[0, 1]),
        (&[3, 5], &[1]),
        (&[3, 5], &[0]),
        (&[2, 3, 4, 5], &[0, 2]),
        (&[2, 3, 4, 5], &[1, 3]),
        (&[2, 3, 4, 5], &[1, 2]),
        (&[4, 1, 6], &[0, 1, 2]),
        (&[70, 65], &[1]),
        (&[70, 300], &[0]),
        (&[2, 8193], &[1]),
        (&[20_001], &[0]),
        (&[600, 40], &[0]),
        (&[3, 2500, 3], &[1]),
        (&[130, 3, 70], &[0, 2]),
        (&[1100, 9], &[1]),
    ];
    let mut all: Vec<_> =
        (0..).zip(fixed).map(|(i, (dims, axes))| Reduced::new(rng(i), dims, axes)).collect();
    for i in 0..8 {
        let mut rng = rng(1000 * seed() + i);
        let dims: Vec<usize> =
            (0..rng.random_range(1..=4)).map(|_| rng.random_range(1..13)).collect();
        let axes: Vec<usize> = (0..dims.len()).filter(|_| rng.random_bool(0.5)).collect();
        all.push(Reduced::new(rng, &dims, &axes));
    }
    all
}

impl Reduced {
    pub fn new(rng: SmallRng, dims: &[usize], axes: &[usize]) -> Self {
        let shape = match *dims {
            [] => [].into(),
            [a] => [a].into(),
            [a, b] => [a, b].into(),
            [a, b, c] => [a, b, c].into(),
            [a, b, c, d] => [a, b, c, d].into(),
            _ => panic!("at most four dimensions"),
        };
        let kept = |i: usize| !axes.contains(&i);
        let outputs = (0..dims.len()).filter(|&i| kept(i)).map(|i| dims[i]).product();
        let mut elements = vec![Vec::new(); outputs];
        for at in 0..dims.iter().product() {
            let (mut rest, mut output, mut stride) = (at, 0, 1);
            for (i, &dim) in dims.iter().enumerate().rev() {
                if kept(i) {
                    output += rest % dim * stride;
                    stride *= dim;
                }
                rest /= dim;
            }
            elements[output].push(at);
        }
        Self { rng, shape, axes: axes.to_vec(), elements }
    }

    pub fn name(&self) -> String {
        format!("{} over {:?}", self.shape, self.axes)
    }

    pub fn axes(&self) -> Axes {
        self.axes.as_slice().into()
    }

    /// Elements of the tensor.
    pub fn len(&self) -> usize {
        self.shape.dims().iter().product()
    }

    /// Random elements.
    pub fn floats(&mut self, bound: f32) -> Vec<f32> {
        let len = self.len();
        floats(&mut self.rng, len, bound)
    }

    /// A random number for every output.
    pub fn per_output(&mut self, bound: f32) -> Vec<f32> {
        floats(&mut self.rng, self.elements.len(), bound)
    }

    /// What `of` makes of the numbers of every output.
    pub fn each<T>(&self, x: &[f32], of: impl Fn(&[f64]) -> T) -> Vec<T> {
        let numbers = |at: &Vec<usize>| at.iter().map(|&at| f64::from(x[at])).collect::<Vec<_>>();
        self.elements.iter().map(|at| of(&numbers(at))).collect()
    }

    /// What `of` makes of every element and its output.
    pub fn spread<T: Clone>(&self, empty: T, of: impl Fn(usize, usize) -> T) -> Vec<T> {
        let mut all = vec![empty; self.len()];
        for (output, at) in self
            .elements
            .iter()
            .enumerate()
            .flat_map(|(output, all)| all.iter().map(move |&at| (output, at)))
        {
            all[at] = of(at, output);
        }
        all
    }
}

/// Σ v, as a sum of `f32` may miss it: a thread adds at most 32 numbers, then comes a tree of at
/// most 256, in each of at most three passes.
pub fn sum_near(v: &[f64]) -> Near {
    let magnitudes: f64 = v.iter().map(|v| v.abs()).sum();
    Near { exact: v.iter().sum(), error: U * v.len().min(3 * 41) as f64 * magnitudes }
}
