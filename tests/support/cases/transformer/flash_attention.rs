//! `src/ops/transformer/flash_attention.rs` and `flash_attention_backward.rs`

use super::super::tensor::shape;
use crate::{Case, Data, Near, Recorder, U, convert, floats, rng, seed};
use bitnet_wgpu::{
    Out, Tensor, reference,
    tensor::{Float, f16},
    transformer::{FlashAttention, flash_attention},
};
use rand::RngExt;

/// Batch, key heads, heads that share one, tokens and head_dim: none, one, tails on every side of
/// the tiles of 64, 32 and 16, and of the strips of 64 and 128 columns.
fn problems() -> Vec<([usize; 5], Options)> {
    let (plain, causal) =
        (Options { causal: false, scale: None }, |scale| Options { causal: true, scale });
    let mut all = vec![
        ([1, 2, 1, 0, 8], causal(None)),
        ([0, 1, 2, 3, 8], plain),
        ([1, 1, 1, 1, 1], causal(None)),
        ([1, 1, 2, 2, 3], plain),
        ([2, 2, 1, 5, 16], causal(Some(0.7))),
        ([1, 2, 3, 33, 17], causal(None)),
        ([1, 1, 2, 64, 64], causal(None)),
        ([1, 1, 1, 65, 65], plain),
        ([1, 1, 2, 67, 40], Options { scale: Some(-0.3), ..plain }),
        ([1, 1, 1, 31, 129], causal(None)),
        ([1, 1, 1, 20, 256], plain),
        ([1, 1, 1, 130, 20], causal(None)),
        ([3, 1, 1, 97, 5], Options { scale: Some(2.0), ..plain }),
    ];
    let mut random = rng(1000 * seed() + 7);
    all.extend((0..6).map(|_| {
        let scale = Some(random.random_range(0.05..0.6));
        let mut below = |most: usize| random.random_range(1..=most);
        let dims = [below(2), below(2), below(3), below(70), below(80)];
        (dims, Options { causal: below(2) == 1, scale })
    }));
    all
}

pub fn cases() -> Vec<Case> {
    let of = |(i, (dims, options)): (u64, ([usize; 5], Options))| {
        [
            Problem::new::<f32>(i, dims, options).forward::<f32>(),
            Problem::new::<f16>(i, dims, options).forward::<f16>(),
        ]
    };
    (0..).zip(problems()).flat_map(of).collect()
}

pub fn backward_cases() -> Vec<Case> {
    let of = |(i, (dims, options)): (u64, ([usize; 5], Options))| {
        [
            Problem::new::<f32>(i, dims, options).backward::<f32>(),
            Problem::new::<f16>(i, dims, options).backward::<f16>(),
        ]
    };
    (0..).zip(problems()).flat_map(of).collect()
}

#[derive(Clone, Copy, Debug)]
struct Options {
    causal: bool,
    scale: Option<f32>,
}

#[derive(Clone)]
struct Problem {
    dims: [usize; 5],
    options: Options,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dy: Vec<f32>,
}

/// A number and what it may be off, of which sums are made.
#[derive(Clone, Copy, Default)]
struct Sum {
    exact: f64,
    /// The errors of what is added, and the sizes.
    strays: f64,
    sizes: f64,
}

impl Sum {
    fn add(&mut self, value: f64, error: f64) {
        self.exact += value;
        self.strays += error;
        self.sizes += value.abs() + error;
    }

    /// With `roundings` for each of what is added. What is too small to be normal may be flushed.
    fn near(self, roundings: usize) -> Near {
        Near { exact: self.exact, error: self.strays + U * roundings as f64 * self.sizes + 1e-30 }
    }
}

fn dot(a: &[f32], b: &[f32]) -> (f64, f64) {
    let product = |(&a, &b): (&f32, &f32)| f64::from(a) * f64::from(b);
    (a.iter().zip(b).map(product).sum(), a.iter().zip(b).map(|pair| product(pair).abs()).sum())
}

impl Problem {
    fn new<T: Float>(seed: u64, dims: [usize; 5], options: Options) -> Self {
        let [batch, kv_heads, sharing, tokens, dim] = dims;
        let (mut rng, keys) = (rng(seed), batch * kv_heads * tokens * dim);
        let mut of = |len: usize| {
            convert::<T>(&floats(&mut rng, len, 1.5))
                .iter()
                .map(|&v| v.into())
                .collect::<Vec<f32>>()
        };
        Self {
            dims,
            options,
            q: of(keys * sharing),
            k: of(keys),
            v: of(keys),
            dy: of(keys * sharing),
        }
    }

    fn name<T: Float>(&self) -> String {
        format!("{:?} {:?} {:?}", self.dims, self.options, T::ELEMENT)
    }

    /// Those of queries, and of keys.
    fn shapes(&self) -> [bitnet_wgpu::Shape; 2] {
        let [batch, kv_heads, sharing, tokens, dim] = self.dims;
        // A batch of one is none.
        let of = |heads: usize| {
            if batch == 1 {
                shape(&[heads, tokens, dim])
            } else {
                shape(&[batch, heads, tokens, dim])
            }
        };
        [of(kv_heads * sharing), of(kv_heads)]
    }

    fn scale(&self) -> f64 {
        self.options.scale.unwrap_or((self.dims[4] as f32).sqrt().recip()).into()
    }

    fn seen(&self, query: usize) -> usize {
        if self.options.causal { query + 1 } else { self.dims[3] }
    }

    fn row<'a>(&self, of: &'a [f32], head: usize, token: usize) -> &'a [f32] {
        &of[(head * self.dims[3] + token) * self.dims[4]..][..self.dims[4]]
    }

    /// The scores of a query, each with what it may be off: a rounding for each product and sum,
    /// and one for the scale.
    fn scores(&self, head: usize, query: usize) -> Vec<(f64, f64)> {
        let (q, shared) = (self.row(&self.q, head, query), head / self.dims[2]);
        let score = |key: usize| {
            let (exact, sizes) = dot(q, self.row(&self.k, shared, key));
            (exact * self.scale(), sizes * self.scale().abs() * (self.dims[4] + 2) as f64 * U)
        };
        (0..self.seen(query)).map(score).collect()
    }

    fn queries(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let [batch, kv_heads, sharing, tokens, _] = self.dims;
        (0..batch * kv_heads * sharing)
            .flat_map(move |head| (0..tokens).map(move |query| (head, query)))
    }

    /// y and lse.
    fn expected(&self) -> [Vec<Near>; 2] {
        let mut expected = [Vec::new(), Vec::new()];
        for (head, query) in self.queries() {
            let scores = self.scores(head, query);
            let largest = scores.iter().map(|(score, _)| *score).fold(f64::MIN, f64::max);
            let weights: Vec<f64> =
                scores.iter().map(|(score, _)| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            // Beside the score: a difference, which is off by U·|x|, and exp, by (3 + 2·|x|)·2U, on
            // the way from the score to the largest of its tile, and from there to those of later
            // tiles: the |x| add up to that of the whole way. And a product for each.
            let steps = (self.dims[3] / 32 + 3) as f64;
            let stray = |key: usize| {
                (scores[key].1 + (5.0 * (largest - scores[key].0) + 7.0 * steps) * U).exp_m1()
                    * weights[key]
                    / total
            };
            let roundings = 2 * (scores.len() + 12);
            for d in 0..self.dims[4] {
                let v = |key: usize| f64::from(self.row(&self.v, head / self.dims[2], key)[d]);
                let mut y = Sum::default();
                (0..scores.len()).for_each(|key| y.add(weights[key] / total * v(key), 0.0));
                // Of a weight that strays, the total does as well.
                y.strays = (0..scores.len())
                    .map(|key| {
                        stray(key) * (v(key) - y.exact).abs().max(v(key).abs() + y.exact.abs())
                    })
                    .sum();
                expected[0].push(y.near(roundings));
            }
            let exact = largest + total.ln();
            // The crate's own logarithm is off by 14 U at most.
            let error = (0..scores.len()).map(stray).sum::<f64>()
                + U * (roundings as f64 + 14.0 * total.ln() + largest.abs() + 2.0 * exact.abs());
            expected[1].push(Near { exact, error });
        }
        expected
    }

    fn forward<T: Float>(self) -> Case {
        let [y, lse] = self.expected();
        let base = convert::<T>(&floats(&mut rng(77), y.len(), 3.0));
        let sum: Vec<Near> =
            y.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
        // Bounds that show something.
        assert!(y.iter().chain(&lse).all(|near| near.error < 1e-3), "{}", self.name::<T>());
        let check = move |got: &[Data], _| {
            [&y, &lse, &sum]
                .into_iter()
                .zip(got)
                .try_for_each(|(expected, got)| got.check_near(expected.iter().copied()))
        };
        let (name, reference) = (self.name::<T>(), self.clone());
        let shapes = self.shapes();
        let record = move |r: &mut Recorder| {
            let [q, k, v] = [(&self.q, 0), (&self.k, 1), (&self.v, 1)]
                .map(|(x, of)| r.upload(&convert::<T>(x), shapes[of]));
            let (q, k, v, sum) = (q?, k?, v?, r.upload(&base, shapes[0])?);
            let attention = self.op(&q, &k, &v);
            let (y, lse) = attention.forward(&mut r.encoder)?;
            let again = r.output(lse.shape())?;
            attention.forward_into(&mut r.encoder, Out::add(&sum), &again)?;
            r.watch_all(&y);
            r.watch_all(&lse);
            r.watch_all(&sum);
            Ok(())
        };
        Case::new(name, record, check).of(T::ELEMENT).reference(move || reference.by_cpu())
    }

    /// The part of a head.
    fn of_head<'a>(&self, of: &'a [f32], head: usize, sharing: usize) -> &'a [f32] {
        let size = self.dims[3] * self.dims[4];
        &of[head / sharing * size..][..size]
    }

    fn qkv(&self, head: usize) -> [&[f32]; 3] {
        [(&self.q, 1), (&self.k, self.dims[2]), (&self.v, self.dims[2])]
            .map(|(of, sharing)| self.of_head(of, head, sharing))
    }

    fn op<'a, T: Float>(
        &self,
        q: &'a Tensor<T>,
        k: &'a Tensor<T>,
        v: &'a Tensor<T>,
    ) -> FlashAttention<'a, T> {
        let op = flash_attention(q, k, v);
        let op = if self.options.causal { op.causal() } else { op };
        self.options.scale.map_or(op, |scale| op.scale(scale))
    }

    fn heads(&self) -> usize {
        self.dims[..3].iter().product()
    }

    fn by_cpu(&self) -> Vec<Data> {
        let Options { causal, scale } = self.options;
        let of_head =
            |head| reference::flash_attention(self.qkv(head), self.dims[4], causal, scale).unwrap();
        let (y, lse): (Vec<_>, Vec<_>) = (0..self.heads()).map(of_head).unzip();
        vec![Data::F32(y.concat()), Data::F32(lse.concat())]
    }

    /// The gradients for q, k and v, as they follow from `y` and `lse`.
    fn gradients(&self, y: &[f32], lse: &[f32]) -> [Vec<Near>; 3] {
        let (dim, scale) = (self.dims[4], self.scale());
        let mut sums =
            [self.q.len(), self.k.len(), self.k.len()].map(|len| vec![Sum::default(); len]);
        for (head, query) in self.queries() {
            let (i, shared) = (head * self.dims[3] + query, head / self.dims[2]);
            let (q, dy) = (self.row(&self.q, head, query), self.row(&self.dy, head, query));
            let (delta, of_delta) = dot(self.row(y, head, query), dy);
            for (key, (score, of_score)) in self.scores(head, query).into_iter().enumerate() {
                let j = shared * self.dims[3] + key;
                let (k, v) = (self.row(&self.k, shared, key), self.row(&self.v, shared, key));
                let below = score - f64::from(lse[i]);
                let weight = below.exp();
                // The score, a difference, and exp.
                let of_weight = weight * (of_score + (5.0 * below.abs() + 7.0) * U).exp_m1();
                let (slope, of_slope) = dot(dy, v);
                let value = weight * (slope - delta) * scale;
                let off = (weight + of_weight)
                    * (dim + 3) as f64
                    * U
                    * (of_slope + of_delta)
                    * scale.abs();
                let off =
                    off + of_weight * (slope - delta).abs() * scale.abs() + 5.0 * U * value.abs();
                for d in 0..dim {
                    let [q, k, dy] = [q[d], k[d], dy[d]].map(f64::from);
                    sums[0][i * dim + d].add(value * k, off * k.abs());
                    sums[1][j * dim + d].add(value * q, off * q.abs());
                    sums[2][j * dim + d].add(weight * dy, of_weight * dy.abs());
                }
            }
        }
        let (tokens, all) = (self.dims[3], self.dims[3] * self.dims[2]);
        let near = |(sums, roundings): (&Vec<Sum>, usize)| {
            sums.iter().map(|sum| sum.near(roundings + 3)).collect::<Vec<_>>()
        };
        [(&sums[0], tokens), (&sums[1], all), (&sums[2], all)].map(near)
    }

    /// Into tensors, and on top of some.
    fn backward<T: Float>(self) -> Case {
        let [y, lse] = self.expected();
        let (y, lse): (Vec<T>, Vec<f32>) = (
            y.iter().map(|y| T::from_f32(y.exact as f32)).collect(),
            lse.iter().map(|l| l.exact as f32).collect(),
        );
        let rounded: Vec<f32> = y.iter().map(|&y| y.into()).collect();
        let expected = self.gradients(&rounded, &lse);
        assert!(expected.iter().flatten().all(|near| near.error < 1e-2), "{}", self.name::<T>());
        let base = [self.q.len(), self.k.len(), self.k.len()]
            .map(|len| convert::<T>(&floats(&mut rng(78), len, 3.0)));
        // Each is added or not, whatever becomes of the others.
        let tokens = self.dims[3];
        let adds = move |i: usize| tokens % 3 != i;
        let on_top = |(i, (near, base)): (usize, (&Vec<Near>, &Vec<T>))| {
            near.iter()
                .zip(base)
                .map(|(near, &base)| if adds(i) { near.on_top_of(base) } else { *near })
                .collect::<Vec<_>>()
        };
        let sums: Vec<Vec<Near>> = expected.iter().zip(&base).enumerate().map(on_top).collect();
        let check = move |got: &[Data], _| {
            expected.iter().chain(&sums).zip(got).enumerate().try_for_each(
                |(i, (expected, got))| {
                    got.check_near(expected.iter().copied()).map_err(|e| format!("output {i}: {e}"))
                },
            )
        };
        let (name, reference, of_reference, shapes) =
            (self.name::<T>(), self.clone(), (rounded, lse.clone()), self.shapes());
        let record = move |r: &mut Recorder| {
            let [q, dy] = [&self.q, &self.dy].map(|x| r.upload(&convert::<T>(x), shapes[0]));
            let [k, v] = [&self.k, &self.v].map(|x| r.upload(&convert::<T>(x), shapes[1]));
            let (q, k, v, dy) = (q?, k?, v?, dy?);
            let y = r.upload(&y, shapes[0])?;
            let lse = r.upload(&lse, shape(&shapes[0].dims()[..shapes[0].rank() - 1]))?;
            let attention = self.op(&q, &k, &v);
            let (dq, dk, dv) = attention.backward(&mut r.encoder, &y, &lse, &dy)?;
            let sums = [
                r.upload(&base[0], shapes[0])?,
                r.upload(&base[1], shapes[1])?,
                r.upload(&base[2], shapes[1])?,
            ];
            let out = |i: usize| if adds(i) { Out::add(&sums[i]) } else { Out::set(&sums[i]) };
            attention.backward_into(&mut r.encoder, &y, &lse, &dy, (out(0), out(1), out(2)))?;
            [&dq, &dk, &dv].into_iter().chain(&sums).for_each(|tensor| r.watch_all(tensor));
            Ok(())
        };
        Case::new(name, record, check)
            .of(T::ELEMENT)
            .reference(move || reference.backward_by_cpu(&of_reference))
    }

    fn backward_by_cpu(&self, (y, lse): &(Vec<f32>, Vec<f32>)) -> Vec<Data> {
        let Options { causal, scale } = self.options;
        let [_, _, sharing, tokens, dim] = self.dims;
        let mut made = [Vec::new(), vec![0f32; self.k.len()], vec![0f32; self.k.len()]];
        for head in 0..self.heads() {
            let (y, lse) = (self.of_head(y, head, 1), &lse[head * tokens..][..tokens]);
            let (qkv, dy) = (self.qkv(head), self.of_head(&self.dy, head, 1));
            let (q, k, v) =
                reference::flash_attention_backward(qkv, (y, lse), dy, dim, causal, scale).unwrap();
            made[0].extend(q);
            let first = head / sharing * tokens * dim;
            made[1][first..].iter_mut().zip(&k).for_each(|(sum, k)| *sum += k);
            made[2][first..].iter_mut().zip(&v).for_each(|(sum, v)| *sum += v);
        }
        made.map(Data::F32).to_vec()
    }
}
