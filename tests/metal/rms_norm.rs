//! RMSNorm with the quantiser after it. The sum of squares is a float sum of no certain order, so the judge computes in `f64` and knows how
//! far `f32` may stray.

use super::{
    Data, Leeway, Problem,
    quantize::{is_half, pack, row_words, sums},
};
use crate::common::{SHAPES, activations, rng};
use bitnet_wgpu::{Element, Kernel, f16, params};
use rand::RngExt;

params! { struct Params { tokens: u32, features: u32, words: u32, eps: f32 } }

const EPS: f32 = 1e-5;

pub fn problems(kernel: &'static Kernel) -> Vec<Problem> {
    let mut problems = Vec::new();
    for &(tokens, _, features) in SHAPES {
        for element in [Element::F32, Element::F16] {
            let mut rng = rng(29);
            let gain: Vec<f32> = (0..features).map(|_| rng.random_range(-2.0..2.0)).collect();
            // Squares must not overflow: that is another branch, in which nothing is left to round.
            let x: Vec<f32> = activations(&mut rng, tokens, features).iter().map(|v| v.clamp(-1e15, 1e15)).collect();
            let x = Data::floats(element, &x);
            let words = row_words(features);
            let params = Params { tokens: tokens as u32, features: features as u32, words: words as u32, eps: EPS };
            let code_words = tokens * words * if is_half(kernel) { 8 } else { 4 };
            let outputs = vec![Data::U32(vec![0; code_words]), Data::F32(vec![0.0; tokens]), Data::I32(vec![0; 2 * tokens])];
            let (source, factors) = (x.to_f32(), gain.clone());
            let judge = move |got: &[Data], _: Leeway| {
                let [_, _, Data::U32(words), Data::F32(scales), Data::I32(sums)] = got else { panic!("bindings of another type") };
                (0..tokens).try_for_each(|token| {
                    let stride = words.len() / tokens;
                    let row = Row { x: &source[token * features..][..features], gain: &factors, half: is_half(kernel) };
                    let result = row.judge(&words[token * stride..][..stride], scales[token], &sums[2 * token..][..2]);
                    result.map_err(|e| format!("token {token}: {e}"))
                })
            };
            let case = format!("{tokens} × {features} {element:?}");
            let inputs = vec![x, Data::F32(gain)];
            problems.push(Problem::new(kernel, case, params, inputs, outputs, [tokens, 1, 1], Box::new(judge)).folded());
        }
    }
    problems
}

struct Row<'a> {
    x: &'a [f32],
    gain: &'a [f32],
    half: bool,
}

impl Row<'_> {
    fn judge(&self, words: &[u32], scale: f32, found_sums: &[i32]) -> Result<(), String> {
        let mean = self.x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / self.x.len() as f64;
        let mut rms = (mean + f64::from(EPS)).sqrt();
        if mean > f64::from(f32::MAX) {
            rms = f64::INFINITY;
        }
        let normal: Vec<f64> = self.x.iter().zip(self.gain).map(|(&v, &g)| f64::from(v) / rms * f64::from(g)).collect();
        let max = normal.iter().fold(0f64, |max, v| max.max(v.abs())).max(f64::from(1e-5f32));
        let a = 127.0 / max;

        // In units of 2^-24: a sum of squares strays by 1 for every addition on its way (a thread's share, then 5 + 5 between lanes at best,
        // 31 + 31 at worst), its root by half of that; 1 each for the mean, eps, root (2 if not correctly rounded), reciprocal (2), the two
        // products of a value, and the three steps of the scale.
        let additions = self.x.len().div_ceil(256) as f64 + 62.0;
        let stray = (additions / 2.0 + 12.0) / 16_777_216.0;
        if (f64::from(scale) - a).abs() > stray * a {
            return Err(format!("scale {scale}, not {a}"));
        }
        let codes = self.unpack(words);
        for (i, (&code, n)) in codes.iter().zip(&normal).enumerate() {
            // 128 is the largest |n·a|; clamped codes come from at most 127 and a bit.
            let exact = (n * a).clamp(-128.0, 127.0);
            if (f64::from(code) - exact).abs() > 0.5 + 2.0 * stray * 128.0 {
                return Err(format!("code {i} is {code}, not {exact}"));
            }
        }
        if pack(self.half, &codes) != words {
            return Err("padding or layout".to_owned());
        }
        if sums(&codes) != found_sums {
            return Err(format!("sums {found_sums:?}, not {:?}", sums(&codes)));
        }
        Ok(())
    }

    /// The codes that words should hold; whether they do, packing them again will tell.
    fn unpack(&self, words: &[u32]) -> Vec<i8> {
        let code = |i: usize| {
            let (group, j) = (i / 4, i % 4);
            if self.half {
                let bits = words[j % 2 * (words.len() / 2) + group] >> (16 * (j / 2));
                (f16::from_bits(bits as u16).to_f32() * 4f32.powi(group as i32 % 4)) as i8
            } else {
                (words[group] >> (8 * j)) as i8
            }
        };
        (0..self.x.len()).map(code).collect()
    }
}
