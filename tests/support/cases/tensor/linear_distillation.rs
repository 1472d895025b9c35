//! `src/ops/tensor/linear_distillation.rs`

use super::{
    linear_cross_entropy::{Sum, logits},
    softmax::steps,
};
use crate::{Case, Data, Near, Recorder, U, floats, rng, seed};
use bitnet_wgpu::{
    Out, Tensor, reference,
    tensor::{self, LinearDistillation, LinearGradients, LinearLoss},
};
use rand::RngExt;

/// Rows, the student's k, the teacher's, and the vocabulary.
type Sizes = [usize; 4];

/// The temperature and the teacher's share.
type Mix = (f32, f32);

pub fn cases() -> Vec<Case> {
    let mut shapes = vec![
        ([0, 3, 4, 5], Some(2)),
        ([1, 1, 1, 1], Some(1)),
        ([7, 16, 3, 33], Some(1)),
        ([5, 20, 24, 100], None),
        ([5, 20, 24, 100], Some(33)),
        ([40, 17, 33, 130], Some(64)),
        ([3, 5, 2, 1500], Some(700)),
        ([2, 3, 5, 7], Some(1000)),
    ];
    let mut random = rng(1000 * seed() + 9);
    let mut below = |most: usize| random.random_range(1..=most);
    let sizes = (0..4).map(|_| ([below(30), below(30), below(30), below(200)], Some(below(220))));
    shapes.extend(sizes.collect::<Vec<_>>());
    let mixes = [((1.0, 1.0), None), ((2.0, 0.7), Some(2)), ((0.5, 0.25), Some(u32::MAX))];
    let all = (0..).zip(shapes).flat_map(|(i, (sizes, chunk))| {
        mixes.map(|(mix, ignore)| Problem::new(i, sizes, chunk, ignore, mix).case())
    });
    let mut cases: Vec<Case> = all.collect();
    // The targets alone, and one that is no column, which makes the gradient of W NaN throughout.
    cases.push(Problem::new(50, [9, 8, 6, 70], Some(40), None, (3.0, 0.0)).case());
    let mut odd = Problem::new(51, [4, 3, 2, 9], Some(4), Some(9), (2.0, 0.5));
    (odd.targets[1], odd.targets[2]) = (10, 9);
    cases.push(odd.case());
    // A student that has learned all there is.
    let mut same = Problem::new(52, [6, 7, 7, 40], None, None, (2.0, 1.0));
    same.teacher = same.student.clone();
    cases.push(same.case());
    cases
}

#[derive(Clone)]
struct Problem {
    sizes: Sizes,
    chunk: Option<usize>,
    ignore: Option<u32>,
    mix: Mix,
    /// x and W.
    student: [Vec<f32>; 2],
    teacher: [Vec<f32>; 2],
    targets: Vec<u32>,
    dloss: Vec<f32>,
}

/// A distribution at a temperature: ln Σ e^(x / T), that of the largest taken away, and what sums
/// of shares may be off, relatively.
struct Softmax {
    lse: Near,
    logarithm: f64,
    largest: f64,
    strays: Vec<f64>,
    shares: Vec<f64>,
}

impl Softmax {
    /// As linear_cross_entropy has it. Beside that, a difference is multiplied by 1 / T, which is
    /// off by 3 units in the last place.
    fn new(logits: &[Near], temperature: f32, parts: f64) -> Self {
        let rate = 1.0 / f64::from(temperature);
        let largest = logits.iter().map(|x| x.exact).fold(f64::MIN, f64::max);
        let below = |x: &Near| rate * (largest - x.exact);
        let weights: Vec<f64> = logits.iter().map(|x| (-below(x)).exp()).collect();
        let total: f64 = weights.iter().sum();
        let stray =
            |x: &Near| (U * (8.0 * parts + 10.0 * below(x)) + rate * x.error).exp_m1() + 1e-37;
        let strays: Vec<f64> = logits.iter().map(stray).collect();
        let shares: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
        let off: f64 = shares.iter().zip(&strays).map(|(share, stray)| share * stray).sum();
        let (logarithm, exact) = (total.ln(), rate * largest + total.ln());
        // The crate's own logarithm is 14 U off at most.
        let rounding = 14.0 * logarithm + 8.0 * rate * largest.abs() + 2.0 * exact.abs();
        let lse = Near { exact, error: off + U * rounding };
        Self { lse, logarithm, largest, strays, shares }
    }

    /// The share of a logit by its lse: an exponential of a difference.
    fn share(&self, logit: &Near, temperature: f32) -> Near {
        let rate = 1.0 / f64::from(temperature);
        let (scaled, error) = (rate * logit.exact, rate * logit.error);
        let from_lse = scaled - self.lse.exact;
        let rounding = U * (5.0 * from_lse.abs() + 8.0 * scaled.abs() + 7.0);
        let off = (error + self.lse.error + rounding).exp_m1();
        Near { exact: from_lse.exp(), error: from_lse.exp() * off + 1e-36 }
    }
}

impl Problem {
    fn new(seed: u64, sizes: Sizes, chunk: Option<usize>, ignore: Option<u32>, mix: Mix) -> Self {
        let ([rows, k, other, vocabulary], mut rng) = (sizes, rng(seed));
        let mut side = |k: usize| [rows, vocabulary].map(|n| floats(&mut rng, n * k, 1.2));
        let (student, teacher) = (side(k), side(other));
        let targets = (0..rows).map(|_| rng.random_range(0..vocabulary as u32)).collect();
        let dloss = floats(&mut rng, rows, 3.0);
        Self { sizes, chunk, ignore, mix, student, teacher, targets, dloss }
    }

    /// The loss of a row, its three lse, and the gradients of its logits.
    fn row(&self, row: usize) -> (Near, [Near; 3], Vec<Near>) {
        let [_, k, other, vocabulary] = self.sizes;
        let (temperature, share) = self.mix;
        let own = logits(&self.student[0][row * k..][..k], &self.student[1]);
        let teacher = logits(&self.teacher[0][row * other..][..other], &self.teacher[1]);
        let chunk = self.chunk.unwrap_or(usize::MAX).min(vocabulary);
        let parts = steps(chunk) + vocabulary.div_ceil(chunk) as f64 + 2.0;
        let plain = Softmax::new(&own, 1.0, parts);
        let soft = Softmax::new(&own, temperature, parts);
        let p = Softmax::new(&teacher, temperature, parts);
        let (target, lse) = (self.targets[row] as usize, [plain.lse, soft.lse, p.lse]);
        if self.ignore == Some(self.targets[row]) {
            return (Near::exactly(0.0), lse, vec![Near::exactly(0.0); vocabulary]);
        }
        if target >= vocabulary {
            let nan = Near { exact: f64::NAN, error: 0.0 };
            return (nan, lse, vec![nan; vocabulary]);
        }
        let (t, share) = (f64::from(temperature), f64::from(share));
        let below = plain.largest - own[target].exact;
        let hard = Near {
            exact: plain.logarithm + below,
            error: plain.lse.error + own[target].error + U * 4.0 * below,
        };
        let divergence = divergence(&own, &teacher, (&soft, &p), t);
        let parts = [(1.0 - share, hard), (share * t * t, divergence)];
        let slope = |column: usize| {
            let [a, b, c] = [
                plain.share(&own[column], 1.0),
                soft.share(&own[column], temperature),
                p.share(&teacher[column], temperature),
            ];
            let hit = if column == target { 1.0 } else { 0.0 };
            let parts = [
                (1.0 - share, Near { exact: a.exact - hit, error: a.error + U * (a.exact + hit) }),
                (share * t, Near { exact: b.exact - c.exact, error: b.error + c.error }),
            ];
            let (sum, factor) = (weighed(parts), f64::from(self.dloss[row]));
            let exact = sum.exact * factor;
            Near { exact, error: sum.error * factor.abs() + 2.0 * U * exact.abs() + 1e-36 }
        };
        (weighed(parts), lse, (0..vocabulary).map(slope).collect())
    }

    /// loss, lse, dx and dW.
    fn expected(&self) -> [Vec<Near>; 4] {
        let [rows, k, _, vocabulary] = self.sizes;
        let (mut losses, mut lses) = (Vec::new(), Vec::new());
        let (mut dx, mut dw) =
            (vec![Sum::default(); rows * k], vec![Sum::default(); vocabulary * k]);
        let [x, w] = &self.student;
        for row in 0..rows {
            let (loss, lse, slopes) = self.row(row);
            losses.push(loss);
            lses.extend(lse);
            for (column, &slope) in slopes.iter().enumerate() {
                for l in 0..k {
                    dx[row * k + l].add(slope, w[column * k + l]);
                    dw[column * k + l].add(slope, x[row * k + l]);
                }
            }
        }
        let near = |sums: Vec<Sum>, roundings: usize| {
            sums.into_iter().map(|sum| sum.near(roundings)).collect()
        };
        // Chunks are added up too.
        [losses, lses, near(dx, 2 * vocabulary + 3), near(dw, rows + 3)]
    }

    fn case(self) -> Case {
        let expected = self.expected();
        let bounded = |near: &Near| near.exact.is_nan() || near.error < 2e-3;
        let [rows, k, other, vocabulary] = self.sizes;
        let name = format!("{:?} {:?} {:?} {:?}", self.sizes, self.chunk, self.ignore, self.mix);
        assert!(expected.iter().flatten().all(bounded), "{name}");
        let mut rng = rng(77);
        let bases = [floats(&mut rng, rows * k, 3.0), floats(&mut rng, vocabulary * k, 3.0)];
        let on_top = |(near, base): (&Vec<Near>, &Vec<f32>)| {
            near.iter().zip(base).map(|(near, &base)| near.on_top_of(base)).collect::<Vec<_>>()
        };
        let sums: Vec<Vec<Near>> = expected[2..].iter().zip(&bases).map(on_top).collect();
        let alone = expected[2].clone();
        let check = move |got: &[Data], _| {
            let all = expected.iter().chain(&sums).chain([&alone]);
            all.zip(got).enumerate().try_for_each(|(i, (expected, got))| {
                got.check_near(expected.iter().copied()).map_err(|e| format!("output {i}: {e}"))
            })
        };
        let reference = self.clone();
        let record = move |r: &mut Recorder| {
            let mut side = |[x, w]: &[Vec<f32>; 2], k: usize| {
                Ok::<_, bitnet_wgpu::Error>((
                    r.upload(x, [rows, k])?,
                    r.upload(w, [vocabulary, k])?,
                ))
            };
            let (student, teacher) = (side(&self.student, k)?, side(&self.teacher, other)?);
            let (dx, dw) = (r.upload(&bases[0], [rows, k])?, r.upload(&bases[1], [vocabulary, k])?);
            let (targets, dloss) =
                (r.upload(&self.targets, [rows])?, r.upload(&self.dloss, [rows])?);
            let heads = ((&student.0, &student.1), (&teacher.0, &teacher.1));
            let (op, encoder) = (self.op(heads, &targets), &mut r.encoder);
            let made = op.forward(encoder)?;
            let gradients = op.backward(encoder, &made.lse, &dloss)?;
            op.backward_into(encoder, &made.lse, &dloss, Out::add(&dx), Some(Out::add(&dw)))?;
            let alone = Tensor::<f32>::uninit(encoder.context(), student.0.shape())?;
            op.backward_into(encoder, &made.lse, &dloss, Out::set(&alone), None)?;
            let all = [&made.loss, &made.lse, &gradients.x, &gradients.w, &dx, &dw, &alone];
            all.into_iter().for_each(|tensor| r.watch_all(tensor));
            Ok(())
        };
        Case::new(name, record, check).reference(move || reference.by_cpu())
    }

    fn op<'a>(
        &self,
        (student, teacher): (Head<'a>, Head<'a>),
        targets: &'a Tensor<u32>,
    ) -> LinearDistillation<'a> {
        let (temperature, share) = self.mix;
        let op = tensor::linear_distillation(student, teacher, targets);
        let op = op.temperature(temperature).teacher_share(share);
        let op = self.ignore.into_iter().fold(op, LinearDistillation::ignore_index);
        self.chunk.into_iter().fold(op, LinearDistillation::chunk)
    }

    fn by_cpu(&self) -> Vec<Data> {
        let side = |[x, w]: &[Vec<f32>; 2], k| (x.clone(), w.clone(), k);
        let [_, k, other, _] = self.sizes;
        let (student, teacher) = (side(&self.student, k), side(&self.teacher, other));
        let student = (&*student.0, &*student.1, k);
        let teacher = (&*teacher.0, &*teacher.1, other);
        let (targets, ignore, mix) = (&self.targets, self.ignore, self.mix);
        let LinearLoss { loss, lse } =
            reference::linear_distillation(student, teacher, targets, ignore, mix).unwrap();
        let gradients = reference::linear_distillation_backward(
            student,
            teacher,
            targets,
            ignore,
            mix,
            &self.dloss,
        );
        let LinearGradients { x, w } = gradients.unwrap();
        [loss, lse, x, w].map(Data::F32).to_vec()
    }
}

type Head<'a> = (&'a Tensor<f32>, &'a Tensor<f32>);

/// Σ p·(ln p - ln q): a mean of differences of logits, and the difference of both lse.
fn divergence(own: &[Near], teacher: &[Near], (q, p): (&Softmax, &Softmax), t: f64) -> Near {
    let off: f64 = p.shares.iter().zip(&p.strays).map(|(share, stray)| share * stray).sum();
    let (mut mean, mut size, mut error) = (0.0, 0.0, 0.0);
    for (i, (s, other)) in own.iter().zip(teacher).enumerate() {
        let (share, gap) = (p.shares[i], other.exact - s.exact);
        mean += share * gap;
        size += share * gap.abs();
        error += share * (gap.abs() * (p.strays[i] + off + 4.0 * U) + s.error + other.error);
    }
    let exact = mean / t + q.lse.exact - p.lse.exact;
    let rounding = 8.0 / t * (size + q.largest.abs() + p.largest.abs());
    let rounding = rounding + 16.0 * (q.logarithm + p.logarithm);
    Near { exact, error: 1.1 * error / t + q.lse.error + p.lse.error + U * rounding }
}

/// A sum of two parts with their factors.
fn weighed(parts: [(f64, Near); 2]) -> Near {
    let of =
        |value: fn(&Near) -> f64| -> f64 { parts.iter().map(|(f, near)| f * value(near)).sum() };
    let size = of(|near| near.exact.abs() + near.error);
    Near { exact: of(|near| near.exact), error: of(|near| near.error) + 6.0 * U * size }
}
