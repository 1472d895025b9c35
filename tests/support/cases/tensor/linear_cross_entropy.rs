//! `src/ops/tensor/linear_cross_entropy.rs` and `linear_cross_entropy_backward.rs`

use super::softmax::{numbers, steps};
use crate::{Case, Data, Near, Recorder, U, convert, floats, rng, seed};
use bitnet_wgpu::{
    Out, Tensor, reference,
    tensor::{self, Float, LinearCrossEntropy, LinearGradients, LinearLoss, f16},
};
use rand::RngExt;

/// Rows, k, vocabulary; and chunks: one, several, one that is not full, more than there is, and
/// what is chosen.
fn shapes() -> Vec<([usize; 3], Option<usize>)> {
    let mut all = vec![
        ([0, 3, 5], Some(2)),
        ([1, 1, 1], Some(1)),
        ([7, 16, 33], Some(1)),
        ([5, 20, 100], None),
        ([5, 20, 100], Some(100)),
        ([5, 20, 100], Some(50)),
        ([5, 20, 100], Some(33)),
        ([5, 20, 100], Some(99)),
        ([70, 33, 130], Some(64)),
        ([3, 5, 1500], Some(700)),
        ([2, 3, 7], Some(1000)),
    ];
    let mut random = rng(1000 * seed() + 8);
    let mut below = |most: usize| random.random_range(1..=most);
    all.extend((0..4).map(|_| ([below(40), below(40), below(200)], Some(below(220)))));
    all
}

/// The target that is ignored, and the smoothing.
type Options = (Option<u32>, f32);

pub fn cases() -> Vec<Case> {
    let plain = (None, 0.0);
    let all = (0..).zip(shapes()).flat_map(|(i, (shape, chunk))| {
        [
            Problem::new::<f32, f32>(i, shape, chunk, plain).case::<f32, f32>(),
            Problem::new::<f32, f16>(i, shape, chunk, (Some(2), 0.1)).case::<f32, f16>(),
            Problem::new::<f16, f16>(i, shape, chunk, (Some(u32::MAX), 0.0)).case::<f16, f16>(),
        ]
    });
    let mut cases: Vec<Case> = all.collect();
    cases.push(Problem::new::<f16, f32>(50, [9, 8, 70], Some(40), plain).case::<f16, f32>());
    // A target that is no column makes the gradient of W NaN throughout, as its row of logits does.
    let mut odd = Problem::new::<f32, f32>(51, [4, 3, 9], Some(4), (Some(9), 0.0));
    (odd.targets[1], odd.targets[2]) = (10, 9);
    cases.push(odd.case::<f32, f32>());
    cases
}

#[derive(Clone)]
struct Problem {
    shape: [usize; 3],
    options: Options,
    chunk: Option<usize>,
    x: Vec<f32>,
    w: Vec<f32>,
    targets: Vec<u32>,
    dloss: Vec<f32>,
}

/// A sum: its value, what its parts may be off, and their sizes.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum([f64; 3]);

impl Sum {
    pub fn add(&mut self, part: Near, factor: f32) {
        let (value, error) = (part.exact * f64::from(factor), part.error * f64::from(factor).abs());
        self.0 = [self.0[0] + value, self.0[1] + error, self.0[2] + value.abs() + error];
    }

    pub fn near(self, roundings: usize) -> Near {
        Near { exact: self.0[0], error: self.0[1] + U * roundings as f64 * self.0[2] + 1e-35 }
    }
}

/// The products of a row with the rows of `w`: a rounding for each product and sum.
pub(super) fn logits(x: &[f32], w: &[f32]) -> Vec<Near> {
    let logit = |w: &[f32]| {
        let mut sum = Sum::default();
        x.iter().zip(w).for_each(|(&x, &w)| sum.add(Near::exactly(x), w));
        sum.near(x.len() + 1)
    };
    w.chunks_exact(x.len()).map(logit).collect()
}

impl Problem {
    fn new<X: Float, W: Float>(
        seed: u64,
        shape: [usize; 3],
        chunk: Option<usize>,
        options: Options,
    ) -> Self {
        let ([rows, k, vocabulary], mut rng) = (shape, rng(seed));
        let x = numbers(&convert::<X>(&floats(&mut rng, rows * k, 1.5)));
        let w = numbers(&convert::<W>(&floats(&mut rng, vocabulary * k, 1.5)));
        let targets = (0..rows).map(|_| rng.random_range(0..vocabulary as u32)).collect();
        Self { shape, options, chunk, x, w, targets, dloss: floats(&mut rng, rows, 3.0) }
    }

    /// The loss of a row, its lse, and the gradients of its logits.
    fn row(&self, row: usize) -> (Near, Near, Vec<Near>) {
        let [_, k, vocabulary] = self.shape;
        let (logits, target) = (logits(&self.x[row * k..][..k], &self.w), self.targets[row]);
        let n = vocabulary as f64;
        let smoothing = f64::from(self.options.1);
        let largest = logits.iter().map(|x| x.exact).fold(f64::MIN, f64::max);
        let weights: Vec<f64> = logits.iter().map(|x| (x.exact - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        // A share is scaled down with each number that its thread takes, each step of a tree, and
        // each chunk: an exponential, a product and a sum. All the distances make up that to the
        // maximum.
        let chunk = self.chunk.unwrap_or(usize::MAX).min(self.shape[2]);
        let chunks = self.shape[2].div_ceil(chunk) as f64;
        let stray = |i: usize| {
            (U * (6.0 * (steps(chunk) + chunks + 2.0) + 2.0 * (largest - logits[i].exact))
                + logits[i].error)
                .exp_m1()
        };
        let strays: f64 = (0..logits.len()).map(|i| weights[i] / total * stray(i)).sum();
        let (logarithm, exact) = (total.ln(), largest + total.ln());
        // The crate's own logarithm is 14 U off at most.
        let lse = Near { exact, error: strays + U * (14.0 * logarithm + 2.0 * exact.abs()) };
        if self.options.0 == Some(target) {
            return (Near::exactly(0.0), lse, vec![Near::exactly(0.0); logits.len()]);
        }
        let Some(expected) = logits.get(target as usize) else {
            let nan = Near { exact: f64::NAN, error: 0.0 };
            return (nan, lse, vec![nan; logits.len()]);
        };
        let below = largest - expected.exact;
        let (mut loss, mut error) = (
            logarithm + (1.0 - smoothing) * below,
            strays + expected.error + U * (14.0 * logarithm + 4.0 * below),
        );
        if smoothing != 0.0 {
            let [sum, all, off] = logits
                .iter()
                .fold([0.0; 3], |[a, b, c], x| [a + x.exact, b + x.exact.abs(), c + x.error]);
            loss += smoothing * (largest - sum / n);
            error += smoothing * (off / n + U * ((20.0 + chunks) * all / n + 5.0 * largest.abs()));
        }
        let slope = |(i, x): (usize, &Near)| {
            let expected = if i == target as usize { 1.0 - smoothing } else { 0.0 } + smoothing / n;
            let (from_lse, factor) = (x.exact - lse.exact, f64::from(self.dloss[row]));
            let off =
                from_lse.exp() * (x.error + lse.error + U * (5.0 * from_lse.abs() + 7.0)).exp_m1();
            let exact = (from_lse.exp() - expected) * factor;
            Near {
                exact,
                error: (off + 4.0 * U * expected + 1e-36) * factor.abs() + 2.0 * U * exact.abs(),
            }
        };
        let slopes = logits.iter().enumerate().map(slope).collect();
        (Near { exact: loss, error: error + 3.0 * U * loss.abs() }, lse, slopes)
    }

    /// loss, lse, dx and dW.
    fn expected(&self) -> [Vec<Near>; 4] {
        let [rows, k, vocabulary] = self.shape;
        let (mut losses, mut lses) = (Vec::new(), Vec::new());
        let (mut dx, mut dw) =
            (vec![Sum::default(); rows * k], vec![Sum::default(); vocabulary * k]);
        for row in 0..rows {
            let (loss, lse, slopes) = self.row(row);
            losses.push(loss);
            lses.push(lse);
            for (column, &slope) in slopes.iter().enumerate() {
                for l in 0..k {
                    dx[row * k + l].add(slope, self.w[column * k + l]);
                    dw[column * k + l].add(slope, self.x[row * k + l]);
                }
            }
        }
        let near = |sums: Vec<Sum>, roundings: usize| {
            sums.into_iter().map(|sum| sum.near(roundings)).collect()
        };
        // Chunks are added up too.
        [losses, lses, near(dx, 2 * vocabulary + 3), near(dw, rows + 3)]
    }

    /// Into tensors, and on top of some.
    fn case<X: Float, W: Float>(self) -> Case {
        let expected = self.expected();
        let bounded = |near: &Near| near.exact.is_nan() || near.error < 1e-3;
        let [rows, k, vocabulary] = self.shape;
        let name = format!("{:?} {:?} {:?} {:?}", self.shape, self.options, X::ELEMENT, W::ELEMENT);
        assert!(expected.iter().flatten().all(bounded), "{name}");
        let mut rng = rng(77);
        let of_loss = floats(&mut rng, rows, 3.0);
        let (of_x, of_w) = (
            convert::<X>(&floats(&mut rng, rows * k, 3.0)),
            convert::<W>(&floats(&mut rng, vocabulary * k, 3.0)),
        );
        let on_top = |near: &[Near], base: &[f32]| {
            near.iter().zip(base).map(|(near, &base)| near.on_top_of(base)).collect::<Vec<_>>()
        };
        let sums = [
            on_top(&expected[0], &of_loss),
            on_top(&expected[2], &numbers(&of_x)),
            on_top(&expected[3], &numbers(&of_w)),
            expected[2].clone(),
        ];
        let check = move |got: &[Data], _| {
            expected.iter().chain(&sums).zip(got).enumerate().try_for_each(
                |(i, (expected, got))| {
                    got.check_near(expected.iter().copied()).map_err(|e| format!("output {i}: {e}"))
                },
            )
        };
        let reference = self.clone();
        let record = move |r: &mut Recorder| {
            let (x, w) = (
                r.upload(&convert::<X>(&self.x), [rows, k])?,
                r.upload(&convert::<W>(&self.w), [vocabulary, k])?,
            );
            let (targets, dloss) =
                (r.upload(&self.targets, [rows])?, r.upload(&self.dloss, [rows])?);
            let (loss, dx, dw) = (
                r.upload(&of_loss, [rows])?,
                r.upload(&of_x, [rows, k])?,
                r.upload(&of_w, [vocabulary, k])?,
            );
            let (op, encoder) = (self.op(&x, &w, &targets), &mut r.encoder);
            let made = op.forward(encoder)?;
            let gradients = op.backward(encoder, &made.lse, &dloss)?;
            let outs = LinearLoss { loss: Out::add(&loss), lse: Out::set(&made.lse) };
            op.forward_into(encoder, outs)?;
            let outs = LinearGradients { x: Out::add(&dx), w: Out::add(&dw) };
            op.backward_into(encoder, &made.lse, &dloss, outs)?;
            let alone = Tensor::<X>::uninit(encoder.context(), x.shape())?;
            op.backward_x_into(encoder, &made.lse, &dloss, &alone)?;
            r.watch_all(&made.loss);
            r.watch_all(&made.lse);
            r.watch_all(&gradients.x);
            r.watch_all(&gradients.w);
            r.watch_all(&loss);
            r.watch_all(&dx);
            r.watch_all(&dw);
            r.watch_all(&alone);
            Ok(())
        };
        Case::new(name, record, check)
            .of(X::ELEMENT)
            .of(W::ELEMENT)
            .reference(move || reference.by_cpu())
    }

    fn op<'a, X: Float, W: Float>(
        &self,
        x: &'a Tensor<X>,
        w: &'a Tensor<W>,
        targets: &'a Tensor<u32>,
    ) -> LinearCrossEntropy<'a, X, W> {
        let (ignore, smoothing) = self.options;
        let op = tensor::linear_cross_entropy(x, w, targets).label_smoothing(smoothing);
        let op = ignore.into_iter().fold(op, LinearCrossEntropy::ignore_index);
        self.chunk.into_iter().fold(op, LinearCrossEntropy::chunk)
    }

    fn by_cpu(&self) -> Vec<Data> {
        let (x, w, targets, k) = (&self.x, &self.w, &self.targets, self.shape[1]);
        let (ignore, smoothing) = self.options;
        let LinearLoss { loss, lse } =
            reference::linear_cross_entropy(x, w, k, targets, ignore, smoothing).unwrap();
        let dloss = &self.dloss;
        let gradients =
            reference::linear_cross_entropy_backward(x, w, k, targets, ignore, smoothing, dloss);
        let LinearGradients { x, w } = gradients.unwrap();
        [loss, lse, x, w].map(Data::F32).to_vec()
    }
}
