//! Asks the device how it computes, in each language: what compilers keep, what units round.

use anyhow::{Result, ensure};
use bitnet_wgpu::{
    Context, Kernel, Tensor,
    kernel::{Params as _, ShaderLanguage, Source, Type::*, read, read_write},
    msl, params,
    tensor::f16,
    wgsl,
};
use pollster::block_on;
use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};
use std::collections::BTreeMap;

params! { struct Params { length: u32, operation: u32, zero: u32 } }

/// One operation on three numbers a thread.
#[allow(unsafe_code)]
static ARITHMETIC: Kernel = Kernel::new(
    "arithmetic",
    Params::FIELDS,
    &[read("a", F32), read("b", F32), read("c", F32), read_write("y", U32)],
    // SAFETY: the source ends threads beyond `length`, which is that of each buffer.
    &[Source::wgsl(wgsl!["arithmetic"]), unsafe { Source::msl_unchecked(msl!["arithmetic"]) }],
);

/// Numbers for an operation.
const COUNT: usize = 4096;

/// Where the library's results depend on the answer.
#[derive(Clone, Copy)]
enum Relied {
    /// Kernels are correct with any answer, or the library asks when it opens a device and chooses
    /// kernels by it.
    Nowhere,
    InMsl,
    Everywhere,
}
use Relied::*;

/// The inputs of an operation.
struct Inputs {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

/// A question to the device.
struct Probe {
    name: &'static str,
    /// The number of the operation in the kernel.
    operation: u32,
    relied: Relied,
    inputs: fn(&mut StdRng) -> Inputs,
    judge: fn(&Inputs, &[u32]) -> Answer,
}

/// What came back.
struct Answer {
    text: String,
    /// Whether results are those of IEEE 754, in the order of the source.
    strict: bool,
}

/// What a language does in answer to a probe.
#[derive(Clone, Debug)]
pub struct Finding {
    pub text: String,
    /// False where kernels rely on another answer.
    pub sound: bool,
}

/// All answers to a probe, by language.
#[derive(Debug)]
pub struct Row {
    pub probe: &'static str,
    pub findings: BTreeMap<String, Finding>,
}

const PROBES: &[Probe] = &[
    Probe {
        name: "a·b, rounding",
        operation: 0,
        relied: Everywhere,
        inputs: usual,
        judge: |i, y| ulps(i, y, |a, b, _| a * b),
    },
    Probe {
        name: "a + b, rounding",
        operation: 1,
        relied: Everywhere,
        inputs: usual,
        judge: |i, y| ulps(i, y, |a, b, _| a + b),
    },
    Probe {
        name: "a / b, rounding",
        operation: 2,
        relied: Nowhere,
        inputs: usual,
        judge: |i, y| ulps(i, y, |a, b, _| a / b),
    },
    Probe {
        name: "sqrt, rounding",
        operation: 3,
        relied: Nowhere,
        inputs: usual,
        judge: |i, y| ulps(i, y, |a, _, _| a.sqrt()),
    },
    Probe {
        name: "inverse sqrt, rounding",
        operation: 4,
        relied: Nowhere,
        inputs: usual,
        judge: |i, y| ulps(i, y, |a, _, _| a.sqrt().recip()),
    },
    Probe {
        name: "exp, rounding",
        operation: 5,
        relied: Nowhere,
        inputs: usual,
        judge: |i, y| ulps(i, y, |a, _, _| a.exp()),
    },
    Probe { name: "(a·b)·c, order", operation: 6, relied: InMsl, inputs: usual, judge: order },
    Probe {
        name: "(a·b)·c, order with a·b guarded",
        operation: 7,
        relied: Everywhere,
        inputs: usual,
        judge: order,
    },
    Probe {
        name: "a·b + c, contraction",
        operation: 8,
        relied: Nowhere,
        inputs: usual,
        judge: contraction,
    },
    Probe {
        name: "a·b + c, contraction with a·b guarded",
        operation: 9,
        relied: Everywhere,
        inputs: usual,
        judge: contraction,
    },
    Probe { name: "fma", operation: 10, relied: InMsl, inputs: usual, judge: fma },
    Probe { name: "NaN by a != a", operation: 11, relied: Nowhere, inputs: with_nan, judge: nan },
    Probe {
        name: "NaN by its bits",
        operation: 12,
        relied: Everywhere,
        inputs: with_nan,
        judge: nan,
    },
    Probe {
        name: "f32 subnormals as operands",
        operation: 0,
        relied: Nowhere,
        inputs: subnormal_operands,
        judge: products,
    },
    Probe {
        name: "f32 subnormals as results",
        operation: 0,
        relied: Nowhere,
        inputs: subnormal_results,
        judge: products,
    },
    Probe {
        name: "f16 subnormals, widened",
        operation: 13,
        relied: Nowhere,
        inputs: packed_f16,
        judge: widened,
    },
    Probe {
        name: "f16 subnormals, rounded to",
        operation: 14,
        relied: Nowhere,
        inputs: small_f16,
        judge: narrowed,
    },
];

/// All answers of a device.
#[derive(Debug, Default)]
pub struct Findings {
    pub rows: Vec<Row>,
    /// Languages in which the probes do not compile or run, and why.
    pub errors: BTreeMap<String, String>,
}

impl Findings {
    /// Asks in every language of the device.
    pub fn of(context: &Context) -> Self {
        let rows = PROBES
            .iter()
            .map(|probe| Row { probe: probe.name, findings: BTreeMap::new() })
            .collect();
        let mut all = Self { rows, errors: BTreeMap::new() };
        for &language in context.capabilities().languages {
            match in_language(context, language) {
                Ok(findings) => all.rows.iter_mut().zip(findings).for_each(|(row, finding)| {
                    drop(row.findings.insert(language.to_string(), finding))
                }),
                Err(error) => drop(all.errors.insert(language.to_string(), crate::text(&error))),
            }
        }
        all
    }

    /// Number of answers that kernels cannot work with.
    pub fn unsound(&self) -> usize {
        self.rows
            .iter()
            .flat_map(|row| row.findings.values())
            .filter(|finding| !finding.sound)
            .count()
            + self.errors.len()
    }
}

fn in_language(context: &Context, language: ShaderLanguage) -> Result<Vec<Finding>> {
    let (context, mut rng) = (context.with_language(language)?, StdRng::seed_from_u64(7));
    let mut encoder = context.encoder("arithmetic");
    let mut asked = Vec::new();
    for probe in PROBES {
        let inputs = (probe.inputs)(&mut rng);
        let [a, b, c] =
            [&inputs.a, &inputs.b, &inputs.c].map(|numbers| context.upload(numbers, [COUNT]));
        let (a, b, c, y) = (a?, b?, c?, Tensor::<u32>::uninit(&context, [COUNT])?);
        let params = Params { length: COUNT as u32, operation: probe.operation, zero: 0 };
        encoder.dispatch(&ARITHMETIC, &params, &[&a, &b, &c, &y], [COUNT, 1, 1])?;
        asked.push((probe, inputs, y));
    }
    encoder.submit()?.wait()?;
    let judge = |(probe, inputs, y): (&Probe, Inputs, Tensor<u32>)| {
        let y = block_on(y.read())?;
        ensure!(y.len() == COUNT, "{} numbers instead of {COUNT}", y.len());
        let Answer { text, strict } = (probe.judge)(&inputs, &y);
        let relied = match probe.relied {
            Nowhere => false,
            InMsl => language == ShaderLanguage::Msl,
            Everywhere => true,
        };
        Ok(Finding { text, sound: strict || !relied })
    };
    asked.into_iter().map(judge).collect()
}

/// Positive numbers with random significands, of a few magnitudes.
fn usual(rng: &mut StdRng) -> Inputs {
    let mut numbers = || (0..COUNT).map(|_| rng.random_range(0.1f32..9.0)).collect();
    Inputs { a: numbers(), b: numbers(), c: numbers() }
}

/// Each fourth number is a NaN, of any sign and payload; others are zero, infinite or usual.
fn with_nan(rng: &mut StdRng) -> Inputs {
    let mut inputs = usual(rng);
    for (i, a) in inputs.a.iter_mut().enumerate() {
        *a = match i % 8 {
            0 | 4 => f32::from_bits(rng.next_u32() | 0x7fc0_0000),
            1 => f32::INFINITY,
            2 => -0.0,
            3 => f32::NEG_INFINITY,
            _ => *a,
        };
    }
    inputs
}

/// Subnormal numbers, and factors that make them normal.
fn subnormal_operands(rng: &mut StdRng) -> Inputs {
    let a = (0..COUNT).map(|_| f32::from_bits(rng.random_range(1..0x80_0000))).collect();
    Inputs { a, b: vec![1e20; COUNT], ..usual(rng) }
}

/// Normal numbers whose product is subnormal.
fn subnormal_results(rng: &mut StdRng) -> Inputs {
    let a = (0..COUNT).map(|_| rng.random_range(1e-20f32..1e-19)).collect();
    Inputs { a, b: vec![1e-20; COUNT], ..usual(rng) }
}

/// Subnormal f16 numbers, in the low half of a word whose high half makes it a usual `f32`.
fn packed_f16(rng: &mut StdRng) -> Inputs {
    let a = (0..COUNT).map(|_| f32::from_bits(0x3f80_0000 | rng.random_range(1..0x400))).collect();
    Inputs { a, ..usual(rng) }
}

/// Numbers that subnormal f16 numbers hold exactly.
fn small_f16(rng: &mut StdRng) -> Inputs {
    let a = (0..COUNT).map(|_| f16::from_bits(rng.random_range(1..0x400)).to_f32()).collect();
    Inputs { a, ..usual(rng) }
}

/// The most that results are off, in units in the last place of what `exact` rounds to.
fn ulps(inputs: &Inputs, y: &[u32], exact: fn(f64, f64, f64) -> f64) -> Answer {
    let off = |i: usize| {
        let [a, b, c] = [inputs.a[i], inputs.b[i], inputs.c[i]].map(f64::from);
        (exact(a, b, c) as f32).to_bits().abs_diff(y[i])
    };
    match (0..COUNT).map(off).max().unwrap_or(0) {
        0 => Answer { text: "correct".into(), strict: true },
        most if most > 1 << 20 => Answer { text: "wrong".into(), strict: false },
        most => Answer { text: format!("off by up to {most} ulp"), strict: false },
    }
}

/// Which of several ways to compute explains the results. Only numbers tell them apart for which
/// all ways differ.
fn ways(y: &[u32], ways: &[(&str, &dyn Fn(usize) -> f32)]) -> Answer {
    let (mut counts, mut told) = (vec![0; ways.len()], 0);
    for (i, &got) in y.iter().enumerate() {
        let results: Vec<u32> = ways.iter().map(|(_, way)| way(i).to_bits()).collect();
        if (1..results.len()).all(|at| !results[..at].contains(&results[at])) {
            told += 1;
            counts
                .iter_mut()
                .zip(results)
                .for_each(|(count, result)| *count += usize::from(result == got));
        }
    }
    let other = told - counts.iter().sum::<usize>();
    let names = ways.iter().map(|(name, _)| *name).chain(["otherwise"]);
    let mut found: Vec<_> =
        names.zip(counts.iter().copied().chain([other])).filter(|&(_, count)| count > 0).collect();
    found.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let text = match &found[..] {
        [(name, _)] => (*name).to_owned(),
        several => several
            .iter()
            .map(|(name, count)| format!("{name} ({count} of {told})"))
            .collect::<Vec<_>>()
            .join(", "),
    };
    Answer { text, strict: told > 0 && counts[0] == told }
}

fn order(Inputs { a, b, c }: &Inputs, y: &[u32]) -> Answer {
    ways(
        y,
        &[
            ("kept", &|i| a[i] * b[i] * c[i]),
            ("a·(b·c)", &|i| a[i] * (b[i] * c[i])),
            ("(a·c)·b", &|i| a[i] * c[i] * b[i]),
        ],
    )
}

fn contraction(Inputs { a, b, c }: &Inputs, y: &[u32]) -> Answer {
    ways(
        y,
        &[
            ("none, two roundings", &|i| a[i] * b[i] + c[i]),
            ("fused, one rounding", &|i| a[i].mul_add(b[i], c[i])),
        ],
    )
}

fn fma(Inputs { a, b, c }: &Inputs, y: &[u32]) -> Answer {
    ways(
        y,
        &[
            ("one rounding", &|i| a[i].mul_add(b[i], c[i])),
            ("two roundings", &|i| a[i] * b[i] + c[i]),
        ],
    )
}

fn nan(Inputs { a, .. }: &Inputs, y: &[u32]) -> Answer {
    let wrong = a.iter().zip(y).filter(|(a, y)| u32::from(a.is_nan()) != **y).count();
    match (wrong, y.iter().all(|&y| y == 0)) {
        (0, _) => Answer { text: "seen".into(), strict: true },
        (_, true) => Answer { text: "not seen".into(), strict: false },
        (wrong, _) => {
            Answer { text: format!("wrong for {wrong} of {COUNT} numbers"), strict: false }
        }
    }
}

fn products(Inputs { a, b, .. }: &Inputs, y: &[u32]) -> Answer {
    kept(y, |i| (a[i] * b[i]).to_bits())
}

fn widened(Inputs { a, .. }: &Inputs, y: &[u32]) -> Answer {
    kept(y, |i| f16::from_bits(a[i].to_bits() as u16).to_f32().to_bits())
}

fn narrowed(Inputs { a, .. }: &Inputs, y: &[u32]) -> Answer {
    kept(y, |i| f16::from_f32(a[i]).to_bits().into())
}

/// Whether results are as expected, or flushed to zero.
fn kept(y: &[u32], expected: impl Fn(usize) -> u32) -> Answer {
    let count = |right: &dyn Fn(usize) -> bool| (0..y.len()).filter(|&i| right(i)).count();
    let (same, zero) = (count(&|i| y[i] == expected(i)), count(&|i| y[i] & 0x7fff_ffff == 0));
    let text = match (same, zero) {
        (same, _) if same == y.len() => "kept".into(),
        (_, zero) if zero == y.len() => "flushed to zero".into(),
        _ => format!("kept {same}, flushed {zero} of {}", y.len()),
    };
    Answer { text, strict: same == y.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(make: fn(&mut StdRng) -> Inputs) -> Inputs {
        make(&mut StdRng::seed_from_u64(1))
    }

    fn results(inputs: &Inputs, result: impl Fn(f32, f32, f32) -> f32) -> Vec<u32> {
        (0..COUNT).map(|i| result(inputs.a[i], inputs.b[i], inputs.c[i]).to_bits()).collect()
    }

    #[test]
    fn texts_agree_with_their_declaration() {
        ARITHMETIC.check().unwrap();
    }

    #[test]
    fn orders_of_products_are_told_apart() {
        let i = inputs(usual);
        let text = |y: Vec<u32>| order(&i, &y).text;
        assert_eq!(text(results(&i, |a, b, c| a * b * c)), "kept");
        assert_eq!(text(results(&i, |a, b, c| a * (b * c))), "a·(b·c)");
        assert_eq!(text(results(&i, |a, b, c| a * c * b)), "(a·c)·b");
        assert!(text(results(&i, |a, _, _| a)).starts_with("otherwise"));
        let mixed = (0..COUNT).map(|at| (at % 2 == 0, i.a[at], i.b[at], i.c[at]));
        let mixed: Vec<u32> = mixed
            .map(|(even, a, b, c)| if even { a * b * c } else { a * (b * c) }.to_bits())
            .collect();
        assert!(!order(&i, &mixed).strict && text(mixed).contains("kept ("));
    }

    #[test]
    fn contraction_and_rounding_are_told_apart() {
        let i = inputs(usual);
        let (fused, apart) = (results(&i, f32::mul_add), results(&i, |a, b, c| a * b + c));
        assert!(!contraction(&i, &fused).strict && contraction(&i, &apart).strict);
        assert!(fma(&i, &fused).strict && !fma(&i, &apart).strict);
        let quotients = results(&i, |a, b, _| a / b);
        assert_eq!(ulps(&i, &quotients, |a, b, _| a / b).text, "correct");
        let off: Vec<u32> = quotients.iter().map(|bits| bits + 2).collect();
        assert_eq!(ulps(&i, &off, |a, b, _| a / b).text, "off by up to 2 ulp");
    }

    #[test]
    fn flushed_and_unseen_numbers_are_told() {
        let i = inputs(subnormal_operands);
        assert_eq!(products(&i, &results(&i, |a, b, _| a * b)).text, "kept");
        assert_eq!(products(&i, &vec![0; COUNT]).text, "flushed to zero");
        let i = inputs(with_nan);
        let seen: Vec<u32> = i.a.iter().map(|a| a.is_nan().into()).collect();
        assert!(
            nan(&i, &seen).strict
                && nan(&i, &vec![0; COUNT]).text == "not seen"
                && !nan(&i, &vec![1; COUNT]).strict
        );
    }
}
