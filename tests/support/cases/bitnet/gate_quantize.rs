//! `src/ops/bitnet/gate_quantize.rs`. Exponentials differ, so SiLU and GELU are judged in `f64`,
//! with what `f32` may stray; relu² by the bit.

use super::{LAYOUTS, pack, quantized, sums, unpack, watch_quantized};
use crate::{Case, Compared, Data, Recorder, U, activations, floats, rng, shapes};
use bitnet_wgpu::reference;
use bitnet_wgpu::{
    bitnet::{self, Gate, Layout},
    cpu::HostActivations,
};

const EPS: f32 = 1e-5;

pub fn cases() -> Vec<Case> {
    of_shapes(false)
}

/// What compilers may take to be impossible under fast math.
pub fn extremes() -> Vec<Case> {
    let cases = |layout| {
        [
            // e^-x overflows, and what it divides is nothing then.
            exact(
                "far from zero",
                vec![-1e4, -100.0, 100.0, 1e4, 1.0, 1.0, 1.0, 1.0],
                4,
                Gate::Silu,
                None,
                layout,
            ),
            // The square of 1e20 is infinite, and so is the row.
            exact(
                "overflow",
                vec![1e20, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0],
                2,
                Gate::Relu2,
                None,
                layout,
            ),
        ]
    };
    LAYOUTS.into_iter().flat_map(cases).collect()
}

pub fn with_norm() -> Vec<Case> {
    of_shapes(true)
}

fn of_shapes(normed: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let wide = [
        (rng(33), (2, 0, 1280)),
        (rng(34), (50, 0, 9)),
        (rng(35), (2, 0, 7183)),
        (rng(36), (2, 0, 7184)),
    ];
    for (n, (mut rng, (tokens, _, features))) in shapes("gate_quantize").chain(wide).enumerate() {
        // Rows of more than threads hold, in both ways.
        let n = if features > 7168 { 0 } else { n };
        let gain = normed.then(|| floats(&mut rng, features, 2.0));
        // No squares that overflow, and exponents for which the error of exp is small.
        let x: Vec<f32> = activations(&mut rng, tokens, 2 * features)
            .iter()
            .map(|v| v.clamp(-10.0, 10.0))
            .collect();
        for layout in LAYOUTS {
            let name = format!("{tokens} × {features}");
            cases.extend(Case::as_on_either(n, || {
                exact(&name, x.clone(), features, Gate::Relu2, gain.clone(), layout)
            }));
            for gate in [Gate::Silu, Gate::GeluTanh] {
                cases.extend(Case::as_on_either(n, || {
                    near(&name, x.clone(), features, gate, gain.clone(), layout)
                }));
            }
        }
    }
    cases
}

fn record(
    r: &mut Recorder,
    x: &[f32],
    features: usize,
    gate: Gate,
    gain: Option<&[f32]>,
    layout: Layout,
) -> bitnet_wgpu::Result<()> {
    let x = r.upload(x, [x.len() / (2 * features).max(1), 2 * features])?;
    let gain = gain.map(|gain| r.upload(gain, [features])).transpose()?;
    let xq = bitnet::ActivationQuantizer::int8()
        .layout(layout)
        .gate(gate)
        .norm(gain.as_ref().map(|gain| (gain, EPS)))
        .quantize(&mut r.encoder, &x)?;
    watch_quantized(r, &xq);
    Ok(())
}

fn reference(x: &[f32], features: usize, gate: Gate, gain: Option<&[f32]>) -> HostActivations {
    reference::gate_quantize(x, features, gate, gain.map(|gain| (gain, EPS))).unwrap()
}

fn exact(
    name: &str,
    x: Vec<f32>,
    features: usize,
    gate: Gate,
    gain: Option<Vec<f32>>,
    layout: Layout,
) -> Case {
    let host = reference(&x, features, gate, gain.as_deref());
    let name = format!("{name} {gate:?}, norm {}, {layout:?}", gain.is_some());
    Case::exact(name, quantized(&host, layout), move |r| {
        record(r, &x, features, gate, gain.as_deref(), layout)
    })
}

fn near(
    name: &str,
    x: Vec<f32>,
    features: usize,
    gate: Gate,
    gain: Option<Vec<f32>>,
    layout: Layout,
) -> Case {
    let name = format!("{name} {gate:?}, norm {}, {layout:?}", gain.is_some());
    let rows: Vec<Row> = x
        .chunks_exact((2 * features).max(1))
        .map(|row| Row::new(row, gate, gain.as_deref()))
        .collect();
    let check = move |got: &[Data], _| {
        let [Data::U32(words), Data::F32(scales), Data::I32(sums)] = got else {
            panic!("buffers of another type")
        };
        rows.iter().enumerate().try_for_each(|(token, row)| {
            let stride = words.len() / rows.len();
            let result = row.check(
                layout,
                &words[token * stride..][..stride],
                scales[token],
                &sums[2 * token..][..2],
            );
            result.map_err(|e| format!("token {token}: {e}"))
        })
    };
    let (reference_x, reference_gain) = (x.clone(), gain.clone());
    Case::new(name, move |r| record(r, &x, features, gate, gain.as_deref(), layout), check)
        .reference(move || {
            quantized(&reference(&reference_x, features, gate, reference_gain.as_deref()), layout)
        })
}

/// A row's numbers before they are quantized, and how far `f32` may stray from them and from the
/// scale, relatively.
struct Row {
    exact: Vec<f64>,
    stray: f64,
}

impl Row {
    /// Of gates, then ups. In units of 2^-24, exp strays by 4 + 2·|x| where sums are reordered, |x|
    /// at most 10; then come a sum, a quotient (5) and a product; and the three steps of the scale.
    /// A norm strays by half of 1 for the mean and 1 for eps, then root, reciprocal, and the two
    /// products of a value (squares are summed exactly), and by what its values do once more. The
    /// exponent of GELU has errors of its own, of 8 units, and may be as large as is asked.
    fn new(row: &[f32], gate: Gate, gain: Option<&[f32]>) -> Self {
        let (gates, ups) = row.split_at(row.len() / 2);
        let exponent = |v: f64| match gate {
            Gate::GeluTanh => {
                2.0 * (2.0 / std::f64::consts::PI).sqrt() * v * (1.0 + 0.044715 * v * v)
            }
            _ => v,
        };
        let act = |v: f64| v / (1.0 + (-exponent(v)).exp());
        let exact: Vec<f64> =
            gates.iter().zip(ups).map(|(&gate, &up)| act(gate.into()) * f64::from(up)).collect();
        let largest = gates.iter().fold(0f64, |most, &gate| most.max(exponent(gate.into()).abs()));
        let gated = if gate == Gate::GeluTanh { (11.0 + 10.0 * largest) * U } else { 31.0 * U };
        let Some(gain) = gain else { return Self { exact, stray: gated + 3.0 * U } };
        let mean = exact.iter().map(|v| v * v).sum::<f64>() / exact.len() as f64;
        let rms = (mean + f64::from(EPS)).sqrt();
        let exact = exact.iter().zip(gain).map(|(v, &g)| v / rms * f64::from(g)).collect();
        Self { exact, stray: 8.0 * U + 2.0 * gated }
    }

    fn check(
        &self,
        layout: Layout,
        words: &[u32],
        scale: f32,
        found_sums: &[i32],
    ) -> Result<(), String> {
        Compared::BOUNDS.note();
        let max = self.exact.iter().fold(0f64, |max, v| max.max(v.abs())).max(f64::from(1e-5f32));
        let a = 127.0 / max;
        if (f64::from(scale) - a).abs() > self.stray * a {
            return Err(format!("scale {scale}, not {a}"));
        }
        let codes = unpack(layout, words, self.exact.len());
        for (i, (&code, v)) in codes.iter().zip(&self.exact).enumerate() {
            // 128 is the largest |v·a|; clamped codes come from at most 127 and a bit.
            let exact = (v * a).clamp(-128.0, 127.0);
            if (f64::from(code) - exact).abs() > 0.5 + 2.0 * self.stray * 128.0 {
                return Err(format!("code {i} is {code}, not {exact}"));
            }
        }
        if pack(layout, &codes) != words {
            return Err("padding or layout".to_owned());
        }
        if sums(&codes) != found_sums {
            return Err(format!("sums {found_sums:?}, not {:?}", sums(&codes)));
        }
        Ok(())
    }
}
