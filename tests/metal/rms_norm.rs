//! Norms and gates with the quantiser after them. Exponentials differ, so the judge of gates computes in `f64` and knows how far `f32` may stray.

use super::{
    Data, Problem, U,
    problem::Judge,
    quantize::{is_half, pack, row_words, sums},
};
use bitnet_wgpu::{Element, Kernel, bitnet, f16, params};
use rand::RngExt;
use support::{SHAPES, activations, rng};

params! { struct Params { tokens: u32, features: u32, words: u32, eps: f32 } }
params! { struct GateParams { tokens: u32, features: u32, words: u32, silu: u32, normed: u32, eps: f32 } }

const EPS: f32 = 1e-5;

pub fn problems(kernel: &'static Kernel) -> Vec<Problem> {
    let mut problems = Vec::new();
    for &(tokens, _, features) in SHAPES {
        for element in [Element::F32, Element::F16] {
            let mut rng = rng(29);
            let gain: Vec<f32> = (0..features).map(|_| rng.random_range(-2.0..2.0)).collect();
            let x = Data::floats(element, &activations(&mut rng, tokens, features));
            let words = row_words(features);
            let params = Params { tokens: tokens as u32, features: features as u32, words: words as u32, eps: EPS };
            // Squares are summed as integers: not a bit is open.
            let host = bitnet::rms_norm_quantize_cpu(&x.to_f32(), tokens, &gain, EPS).unwrap();
            let packed = (0..tokens).flat_map(|token| pack(is_half(kernel), host.row(token))).collect();
            let sums = (0..tokens).flat_map(|token| sums(host.row(token))).collect();
            let outputs = vec![Data::U32(packed), Data::F32(host.scales.clone()), Data::I32(sums)];
            let case = format!("{tokens} × {features} {element:?}");
            let inputs = vec![x, Data::F32(gain)];
            problems.push(Problem::exact(kernel, case, params, inputs, outputs, [tokens, 1, 1]).folded());
        }
    }
    problems
}

/// Gates, with and without a norm.
pub fn gates(kernel: &'static Kernel) -> Vec<Problem> {
    let mut problems = Vec::new();
    for &(tokens, _, features) in SHAPES {
        for (silu, normed) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut rng = rng(41);
            let gain: Vec<f32> = (0..features).map(|_| rng.random_range(-2.0..2.0)).collect();
            // No squares that overflow, and exponents for which the error of exp is small.
            let x: Vec<f32> = activations(&mut rng, tokens, 2 * features).iter().map(|v| v.clamp(-10.0, 10.0)).collect();
            let params = GateParams {
                tokens: tokens as u32,
                features: features as u32,
                words: row_words(features) as u32,
                silu: silu.into(),
                normed: normed.into(),
                eps: EPS,
            };
            let (source, factors) = (x.clone(), gain.clone());
            let values = move |token: usize| {
                let (gates, ups) = source[token * 2 * features..][..2 * features].split_at(features);
                gated(silu, gates, ups, normed.then_some(&factors))
            };
            let (judge, outputs) = (judge(is_half(kernel), tokens, values), outputs(is_half(kernel), tokens, features));
            let case = format!("{tokens} × {features}, silu {silu}, normed {normed}");
            let inputs = vec![Data::F32(x), Data::F32(gain)];
            problems.push(Problem::new(kernel, case, params, inputs, outputs, [tokens, 1, 1], judge).folded());
        }
    }
    problems
}

/// Codes, scales and sums, of the lengths that they have.
fn outputs(half: bool, tokens: usize, features: usize) -> Vec<Data> {
    let code_words = tokens * row_words(features) * if half { 8 } else { 4 };
    vec![Data::U32(vec![0; code_words]), Data::F32(vec![0.0; tokens]), Data::I32(vec![0; 2 * tokens])]
}

/// A row's numbers before they are quantised, and how far `f32` may stray from them and from the scale, relatively.
struct Values {
    exact: Vec<f64>,
    stray: f64,
}

/// Judges every row by its `values`.
fn judge(half: bool, tokens: usize, values: impl Fn(usize) -> Values + 'static) -> Judge {
    Box::new(move |got, _| {
        let [_, _, Data::U32(words), Data::F32(scales), Data::I32(sums)] = got else { panic!("bindings of another type") };
        (0..tokens).try_for_each(|token| {
            let stride = words.len() / tokens;
            let result = values(token).judge(half, &words[token * stride..][..stride], scales[token], &sums[2 * token..][..2]);
            result.map_err(|e| format!("token {token}: {e}"))
        })
    })
}

/// How far a norm strays, in units of 2^-24: half of 1 for the mean and 1 for eps, then root, reciprocal, the two products of a value, and the three
/// steps of the scale. Squares are summed exactly.
const NORM_STRAY: f64 = 8.0 * U;

fn normalised(x: &[f64], gain: &[f32]) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let mut rms = (mean + f64::from(EPS)).sqrt();
    if mean > f64::from(f32::MAX) {
        rms = f64::INFINITY;
    }
    x.iter().zip(gain).map(|(v, &g)| v / rms * f64::from(g)).collect()
}

/// relu² has two products. Of SiLU, in units of 2^-24: exp strays by 2·(3 + 2·|x|), |x| at most 10, as WGSL has it; then come a sum, a quotient (5)
/// and a product. A norm adds its own, and that of its values once more; else there are the three steps of the scale.
fn gated(silu: bool, gates: &[f32], ups: &[f32], gain: Option<&Vec<f32>>) -> Values {
    let bend = |v: f64| if silu { v / (1.0 + (-v).exp()) } else { v.max(0.0) * v.max(0.0) };
    let exact: Vec<f64> = gates.iter().zip(ups).map(|(&gate, &up)| bend(gate.into()) * f64::from(up)).collect();
    let bent = if silu { 46.0 + 7.0 } else { 2.0 } * U;
    match gain {
        Some(gain) => Values { exact: normalised(&exact, gain), stray: NORM_STRAY + 2.0 * bent },
        None => Values { exact, stray: bent + 3.0 * U },
    }
}

impl Values {
    fn judge(&self, half: bool, words: &[u32], scale: f32, found_sums: &[i32]) -> Result<(), String> {
        let max = self.exact.iter().fold(0f64, |max, v| max.max(v.abs())).max(f64::from(1e-5f32));
        let a = 127.0 / max;
        if (f64::from(scale) - a).abs() > self.stray * a {
            return Err(format!("scale {scale}, not {a}"));
        }
        let codes = unpack(half, words, self.exact.len());
        for (i, (&code, v)) in codes.iter().zip(&self.exact).enumerate() {
            // 128 is the largest |v·a|; clamped codes come from at most 127 and a bit.
            let exact = (v * a).clamp(-128.0, 127.0);
            if (f64::from(code) - exact).abs() > 0.5 + 2.0 * self.stray * 128.0 {
                return Err(format!("code {i} is {code}, not {exact}"));
            }
        }
        if pack(half, &codes) != words {
            return Err("padding or layout".to_owned());
        }
        if sums(&codes) != found_sums {
            return Err(format!("sums {found_sums:?}, not {:?}", sums(&codes)));
        }
        Ok(())
    }
}

/// The codes that words should hold; whether they do, packing them again will tell.
fn unpack(half: bool, words: &[u32], features: usize) -> Vec<i8> {
    let code = |i: usize| {
        let (group, j) = (i / 4, i % 4);
        if half {
            let bits = words[j % 2 * (words.len() / 2) + group] >> (16 * (j / 2));
            (f16::from_bits(bits as u16).to_f32() * 4f32.powi(group as i32 % 4)) as i8
        } else {
            (words[group] >> (8 * j)) as i8
        }
    };
    (0..features).map(code).collect()
}
