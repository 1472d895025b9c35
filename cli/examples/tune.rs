//! Measures on this machine, for a model's shapes, the numbers by which kernels are chosen, and
//! keeps those that are better than the table's where `--kernel-cache DIR` finds them:
//! `cargo run --release --example tune -- --kernel-cache DIR --model PATH`. No choice changes a bit of
//! what a model gives.
//!
//! For each number, those are tried that lead to other dispatches. All are timed in turn, round
//! after round, by recordings that run until the device is done. The best is timed in as many
//! rounds again, and taken if it is faster in each of them, and by 3 % in their median. A figure
//! above the peak is of a cache, and does not count.

use anyhow::{Context as _, Result, ensure};
use bitnet_cli::{adapters::backend, bench, model::ModelArgs, random::Shape, say};
use bitnet_wgpu::bitnet::{ActivationType, BitLinear};
use bitnet_wgpu::{
    Context, Element, Recording, Tensor,
    bitnet::{self, Gate},
    formats::ModelConfig,
    internals::{Activation, files},
    telemetry::PeakBandwidth,
    transformer::{self, AttentionShape, CachePositions, KvCache},
    tuning::{Tuning, TuningKey},
    weights::{DenseElement, PackedDense, PackedTernary, Scales, TernaryMatrix},
};
use clap::{Parser, ValueEnum as _};
use pollster::block_on;
use std::{collections::BTreeSet, process::ExitCode, rc::Rc};

/// Measures the numbers by which kernels are chosen, for a model's shapes
#[derive(Parser)]
struct Arguments {
    /// A model, of which the shapes are taken: a directory, a GGUF file, or a name on the Hugging
    /// Face hub
    #[arg(long, value_name = "DIR|FILE.gguf|OWNER/NAME", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m"))]
    model: String,
    /// One of the shapes that are built in, without a model
    #[arg(long, value_enum, conflicts_with = "model")]
    shape: Option<Shape>,
    /// Rounds of measurements, and of those that confirm them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print the time of each piece of work too
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    device: ModelArgs,
}

/// The most rows of a head that are measured: more take longer, and are alike.
const MOST_HEAD_ROWS: usize = 32_768;
/// A choice is taken that takes at most this part of the time.
const WORTH: f64 = 0.97;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    bitnet_cli::main(|| tune(arguments))
}

fn tune(mut arguments: Arguments) -> Result<()> {
    ensure!(!arguments.device.cpu, "on the CPU there is nothing to choose");
    arguments.device.gpu = true;
    let (name, config) = shapes(&arguments)?;
    let [opened] =
        <[_; 1]>::try_from(arguments.device.contexts()?).ok().context("one GPU is needed")?;
    let usual = opened.restricted(|c| c.tuning = Tuning::default());
    let peak = block_on(PeakBandwidth::measure(&usual))?;
    let c = usual.capabilities();
    say(format!(
        "{} · {} · {} · {} kernels\n",
        c.adapter,
        c.driver,
        backend(c.backend),
        usual.language()
    ))?;
    say(format!(
        "peak bandwidth: {:.1} GB/s ({} clock); shapes of {}\n",
        peak.bytes_per_second / 1e9,
        peak.clock,
        name
    ))?;

    let works = works(&usual, &config)?;
    let rows: Vec<usize> = products(&config).iter().map(|[rows, _]| *rows).collect();
    let mut tuning = Tuning::default();
    for &choice in TuningKey::ALL {
        let mut trial = Trial::new(&usual, &tuning, choice, &rows, &works, &peak)?;
        say(format!("\n{}: {} by the table", choice.name(), usual.capabilities().tuned(choice)))?;
        if trial.compared.is_empty() {
            say("; no other leads to other dispatches here\n")?;
            continue;
        }
        say(format!("; {} pieces of work\n", trial.compared.len()))?;
        if let Some(value) = better(&mut trial, &arguments, &peak)? {
            tuning.set(choice, value)?;
        }
    }
    say(match tuning.is_empty() {
        true => "\nno number is better here than the table's\n".to_owned(),
        false => format!("\n{tuning}"),
    })?;
    match &arguments.device.kernel_cache {
        Some(_) => say(format!("kept in {}\n", files::display(&opened.save_tuning(&tuning)?)))?,
        None => say("kept nowhere: --kernel-cache DIR says where\n")?,
    }
    Ok(())
}

/// Returns the model whose shapes are measured: its name and configuration.
fn shapes(arguments: &Arguments) -> Result<(String, ModelConfig)> {
    let Some(shape) = arguments.shape else {
        let files = arguments.device.open(&arguments.model)?;
        return Ok((arguments.model.clone(), files.config().clone()));
    };
    arguments.device.file.none()?;
    let name = shape.to_possible_value().map(|value| value.get_name().to_owned());
    Ok((name.unwrap_or_default(), bench::config(None, shape)?))
}

/// Returns the value that is better than the table's, in two sets of rounds.
fn better(trial: &mut Trial, arguments: &Arguments, peak: &PeakBandwidth) -> Result<Option<u32>> {
    let ratios = trial.rounds(arguments.rounds)?;
    for (candidate, ratios) in trial.candidates.iter().zip(&ratios).skip(1) {
        say(format!("  {:>10}: {}\n", candidate.value, shown(ratios)))?;
    }
    if arguments.verbose {
        say(trial.figures(peak))?;
    }
    let best = (1..ratios.len()).min_by(|&a, &b| median(&ratios[a]).total_cmp(&median(&ratios[b])));
    let Some(best) = best.filter(|&best| is_better(&ratios[best])) else { return Ok(None) };
    let value = trial.candidates[best].value;
    let again = trial.rounds(arguments.rounds)?.swap_remove(best);
    let taken = is_better(&again);
    let decision = if taken { "taken" } else { "not taken" };
    say(format!("  {value:>10} again: {}, {decision}\n", shown(&again)))?;
    Ok(taken.then_some(value))
}

fn median(ratios: &[f64]) -> f64 {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn is_better(ratios: &[f64]) -> bool {
    ratios.iter().all(|&ratio| ratio < 1.0) && median(ratios) <= WORTH
}

fn shown(ratios: &[f64]) -> String {
    let (least, most) = (
        ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratios.iter().copied().fold(0.0, f64::max),
    );
    format!("{:.2} of the time ({least:.2} to {most:.2})", median(ratios))
}

/// What a model does: recorded on a context, so many times on other data.
struct Work {
    what: String,
    /// What must be read and written, once.
    bytes: usize,
    copies: usize,
    record: Box<Record>,
}

type Record = dyn Fn(&Context, usize) -> bitnet_wgpu::Result<Recording>;

/// What is dispatched for a piece of work: by that alone candidates differ.
type Dispatched = Vec<(String, [usize; 3], Vec<u8>)>;

fn dispatched(work: &Work, context: &Context) -> Result<Dispatched> {
    let recording = (work.record)(context, 1)?;
    Ok(recording
        .dispatches()
        .map(|d| (d.kernel().name.to_owned(), d.extent(), d.params().to_vec()))
        .collect())
}

struct Candidate {
    value: u32,
    /// Of each piece of work, which of its variants it leads to.
    variants: Vec<usize>,
}

/// A piece of work of which candidates differ.
struct Compared {
    what: String,
    /// Of all copies.
    bytes: usize,
    copies: usize,
    variants: Vec<Variant>,
}

/// What is dispatched, its recording, how often that runs in one measurement, and seconds of each
/// round.
type Variant = (Dispatched, Recording, u32, Vec<f64>);

struct Trial {
    /// The table's first.
    candidates: Vec<Candidate>,
    compared: Vec<Compared>,
}

impl Trial {
    /// What is to be compared for a choice, given those that were taken before.
    fn new(
        usual: &Context,
        before: &Tuning,
        choice: TuningKey,
        rows: &[usize],
        works: &[Work],
        peak: &PeakBandwidth,
    ) -> Result<Self> {
        let now = usual.capabilities().tuned(choice) as u32;
        let near = (-3..=3).map(|power| (f64::from(now) * 2f64.powi(power)) as u32);
        let ends = [*choice.range().start(), *choice.range().end()];
        let at_rows = rows.iter().flat_map(|&rows| [rows as u32, rows as u32 + 1]);
        let others: BTreeSet<u32> = near
            .chain(ends)
            .chain(at_rows)
            .filter(|value| choice.range().contains(value) && *value != now)
            .collect();

        let mut candidates: Vec<(u32, Context, Vec<Dispatched>)> = Vec::new();
        for value in [now].into_iter().chain(others) {
            let mut tuning = before.clone();
            tuning.set(choice, value)?;
            let context = usual.restricted(|c| c.tuning = tuning);
            let all =
                works.iter().map(|work| dispatched(work, &context)).collect::<Result<Vec<_>>>()?;
            if candidates.iter().all(|(.., other)| *other != all) {
                candidates.push((value, context, all));
            }
        }
        let mut trial = Self {
            candidates: candidates
                .iter()
                .map(|&(value, ..)| Candidate { value, variants: Vec::new() })
                .collect(),
            compared: Vec::new(),
        };
        for (n, work) in works.iter().enumerate() {
            if candidates.iter().all(|(.., all)| all[n] == candidates[0].2[n]) {
                continue;
            }
            let mut compared = Compared {
                what: work.what.clone(),
                bytes: work.bytes * work.copies,
                copies: work.copies,
                variants: Vec::new(),
            };
            let mut chosen = Vec::new();
            for (_, context, all) in &candidates {
                let known = compared.variants.iter().position(|(other, ..)| *other == all[n]);
                chosen.push(known.unwrap_or(compared.variants.len()));
                if known.is_none() {
                    let recording = (work.record)(context, work.copies)?;
                    block_on(recording.time(1))?; // compiles
                    let (_, once) = block_on(recording.time(1))?;
                    let times = (0.004 / once.as_secs_f64().max(1e-6)).clamp(1.0, 50.0) as u32;
                    compared.variants.push((all[n].clone(), recording, times, Vec::new()));
                }
            }
            compared.round()?;
            let fits = compared
                .variants
                .iter()
                .all(|(.., seconds)| peak.share(compared.bytes, seconds[0]).is_some());
            if !fits {
                say(format!(
                    "\n{} is above the peak, so in a cache, and does not count",
                    compared.what
                ))?;
                continue;
            }
            trial
                .candidates
                .iter_mut()
                .zip(chosen)
                .for_each(|(candidate, variant)| candidate.variants.push(variant));
            trial.compared.push(compared);
        }
        Ok(trial)
    }

    /// Of each candidate, in each round, its part of the time of the first: the mean of all work,
    /// in which each piece counts as much.
    fn rounds(&mut self, rounds: u32) -> Result<Vec<Vec<f64>>> {
        self.compared
            .iter_mut()
            .flat_map(|compared| &mut compared.variants)
            .for_each(|(.., seconds)| seconds.clear());
        for _ in 0..rounds {
            self.compared.iter_mut().try_for_each(Compared::round)?;
        }
        let ratio = |candidate: &Candidate, round: usize| {
            let seconds = |variant: usize, compared: &Compared| compared.variants[variant].3[round];
            let logs = self.compared.iter().enumerate().map(|(n, compared)| {
                (seconds(candidate.variants[n], compared)
                    / seconds(self.candidates[0].variants[n], compared))
                .ln()
            });
            (logs.sum::<f64>() / self.compared.len() as f64).exp()
        };
        Ok(self
            .candidates
            .iter()
            .map(|candidate| (0..rounds as usize).map(|round| ratio(candidate, round)).collect())
            .collect())
    }

    fn figures(&self, peak: &PeakBandwidth) -> String {
        let variant = |compared: &Compared, (dispatched, .., seconds): &Variant| {
            let (seconds, kernel) =
                (median(seconds), dispatched.last().map_or("", |(name, ..)| name));
            let share = peak
                .share(compared.bytes, seconds)
                .map_or("above the peak".into(), |share| format!("{:.1} %", 100.0 * share));
            format!(
                " {kernel} ×{} {:.1} µs {share};",
                dispatched.len(),
                seconds / compared.copies as f64 * 1e6
            )
        };
        let line = |compared: &Compared| {
            let variants: String =
                compared.variants.iter().map(|found| variant(compared, found)).collect();
            format!("    {}:{variants}\n", compared.what)
        };
        self.compared.iter().map(line).collect()
    }
}

impl Compared {
    fn round(&mut self) -> Result<()> {
        for (_, recording, times, seconds) in &mut self.variants {
            let (_, time) = block_on(recording.time(*times))?;
            seconds.push(time.as_secs_f64().max(1e-9));
        }
        Ok(())
    }
}

/// Rows and columns of the products of a layer: q + k + v, o, gate + up, down.
fn products(c: &ModelConfig) -> [[usize; 2]; 4] {
    let attended = c.heads * c.head_dim;
    [
        [attended + 2 * c.kv_heads * c.head_dim, c.hidden],
        [c.hidden, attended],
        [2 * c.intermediate, c.hidden],
        [c.hidden, c.intermediate],
    ]
}

fn works(context: &Context, c: &ModelConfig) -> Result<Vec<Work>> {
    let mut works = Vec::new();
    let gate = match c.activation {
        Activation::Relu2 => Gate::Relu2,
        Activation::GeluTanh => Gate::GeluTanh,
        _ => Gate::Silu,
    };
    for (n, shape) in products(c).into_iter().enumerate() {
        of_product(context, shape, (n == 2).then_some(gate), c.quantized_activations, &mut works)?;
    }
    of_attention(
        context,
        AttentionShape { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim },
        &mut works,
    )?;
    of_head(context, c.vocab.min(MOST_HEAD_ROWS), c.hidden, &mut works)?;
    Ok(works)
}

fn floats(context: &Context, rows: usize, columns: usize) -> Result<Tensor<f32>> {
    let value = |i: usize| (i * 7919 % 1009) as f32 / 504.0 - 1.0;
    Ok(context.upload(&(0..rows * columns).map(value).collect::<Vec<_>>(), [rows, columns])?)
}

/// So many of something that no cache of a GPU holds them when they take turns. A software adapter
/// computes for longer than it reads.
fn copies(context: &Context, bytes: usize) -> usize {
    if context.capabilities().software { 2 } else { ((384 << 20) / bytes.max(1)).clamp(1, 2000) }
}

/// Where activations are not quantized, matrices are scaled by groups of 128 columns, as such
/// models have it.
fn of_product(
    context: &Context,
    [rows, columns]: [usize; 2],
    gate: Option<Gate>,
    quantized: bool,
    works: &mut Vec<Work>,
) -> Result<()> {
    let values: Vec<i8> = (0..rows * columns).map(|i| (i * 7919 % 1009 % 3) as i8 - 1).collect();
    let group = 128;
    let scales = match quantized {
        true => Scales::Tensor(0.02),
        false => Scales::Groups {
            size: group,
            scales: (0..rows * columns.div_ceil(group))
                .map(|i| 0.02 + (i % 7) as f32 * 0.001)
                .collect(),
        },
    };
    let w = PackedTernary::from_values(rows, columns, &values, scales)?;
    let copies = copies(context, 4 * w.words().len());
    let matrices: Rc<Vec<TernaryMatrix>> =
        Rc::new((0..copies).map(|_| w.upload(context)).collect::<bitnet_wgpu::Result<_>>()?);
    let most = if context.capabilities().software { 64 } else { 512 };
    for tokens in [1, 2, 3, 4, 6, 8, 16, 24, 32, 48, 64, 128, 256, 512]
        .into_iter()
        .filter(|&tokens| tokens <= most)
    {
        let (x, gain) =
            (floats(context, tokens, columns)?, context.upload(&vec![1.0f32; columns], [columns])?);
        let y = Tensor::<f32>::zeros(context, [tokens, rows])?;
        let mut encoder = context.encoder("activations");
        let xq = Rc::new(bitnet::ActivationQuantizer::int8().quantize(&mut encoder, &x)?);
        encoder.submit()?.wait()?;
        let bytes = matrices[0].code_bytes() + tokens * (columns + 4 * rows);
        let (what, w, out, plain) =
            (format!("{tokens} × {rows} × {columns}"), matrices.clone(), y.clone(), x.clone());
        let record = move |context: &Context, copies: usize| {
            let mut encoder = context.encoder("product");
            if quantized {
                w[..copies]
                    .iter()
                    .try_for_each(|w| BitLinear::new(w).forward_into(&mut encoder, &*xq, &out))?;
            } else {
                // How they lie depends on what is chosen.
                let rounded = bitnet::ActivationQuantizer::block_float(Some(group))
                    .quantize(&mut encoder, &plain)?;
                w[..copies].iter().try_for_each(|w| {
                    BitLinear::new(w).forward_into(&mut encoder, &rounded, &out)
                })?;
            }
            Ok(encoder.finish())
        };
        works.push(Work { what: what.clone(), bytes, copies, record: Box::new(record) });
        if tokens > 16 {
            continue;
        }
        let (w, gated) = (matrices.clone(), Tensor::<f32>::zeros(context, [tokens, rows / 2])?);
        let record = move |context: &Context, copies: usize| {
            let mut encoder = context.encoder("norm and product");
            let norm = Some((&gain, 1e-5));
            w[..copies].iter().try_for_each(|w| match gate {
                Some(gate) if quantized => {
                    BitLinear::new(w).norm(norm).gate(gate).forward_into(&mut encoder, &x, &gated)
                }
                Some(gate) => BitLinear::new(w)
                    .activation_type(ActivationType::BlockFloat)
                    .norm(norm)
                    .gate(gate)
                    .forward_into(&mut encoder, &x, &gated),
                None if quantized => {
                    BitLinear::new(w).norm(norm).forward_into(&mut encoder, &x, &y)
                }
                None => BitLinear::new(w)
                    .activation_type(ActivationType::BlockFloat)
                    .norm(norm)
                    .forward_into(&mut encoder, &x, &y),
            })?;
            Ok(encoder.finish())
        };
        works.push(Work { what: what + ", normalised", bytes, copies, record: Box::new(record) });
    }
    Ok(())
}

fn of_attention(context: &Context, shape: AttentionShape, works: &mut Vec<Work>) -> Result<()> {
    let c = context.capabilities();
    let element = if c.f16 { Element::F16 } else { Element::F32 };
    let small = c.software;
    let stored = 2 * shape.kv_heads * shape.head_dim * if c.f16 { 2 } else { 4 };
    // Sequences, new tokens of each, and how many each has had.
    for (sequences, run, past) in [
        (1, 1, 300),
        (1, 16, 300),
        (16, 1, 300),
        (64, 1, 300),
        (1, 64, 200),
        (1, 256, 0),
        (1, 512, 0),
        (1, 1024, 0),
    ] {
        if small && sequences * run > 64 {
            continue;
        }
        let tokens = sequences * run;
        let (qkv, y) = (
            floats(context, tokens, shape.row())?,
            Tensor::<f32>::zeros(context, [tokens, shape.heads * shape.head_dim])?,
        );
        let angles = transformer::rope_angles(&vec![0.5; shape.head_dim / 2], past + run);
        let angles = context.upload(&angles, [past + run, shape.head_dim / 2, 2])?;
        let runs: Vec<u32> =
            (0..sequences as u32).flat_map(|sequence| [sequence, past as u32]).collect();
        let runs = context.upload(&runs, [sequences, 2])?;
        let bytes = sequences * (past + run) * stored
            + tokens * 4 * (shape.row() + shape.heads * shape.head_dim);
        let copies = copies(context, bytes).min(30);
        let caches =
            (0..copies).map(|_| KvCache::new(context, shape, sequences, past + run, element));
        let caches: Rc<Vec<_>> = Rc::new(caches.collect::<bitnet_wgpu::Result<_>>()?);
        for in_f16 in
            [false, true].into_iter().filter(|in_f16| !in_f16 || !c.tensor_cores.is_empty())
        {
            let (qkv, runs, angles, y, caches) =
                (qkv.clone(), runs.clone(), angles.clone(), y.clone(), caches.clone());
            let record = move |context: &Context, copies: usize| {
                let (mut encoder, new) =
                    (context.encoder("attention"), CachePositions::new(&runs, run));
                caches[..copies].iter().try_for_each(|cache| {
                    let attention = transformer::attention(&qkv, new, cache).rope(&angles);
                    let attention = if in_f16 { attention.f16() } else { attention };
                    attention.forward_into(&mut encoder, &y)
                })?;
                Ok(encoder.finish())
            };
            let what = format!(
                "attention of {sequences} × {run} after {past}{}",
                if in_f16 { ", in f16" } else { "" }
            );
            works.push(Work { what, bytes, copies, record: Box::new(record) });
        }
    }
    Ok(())
}

fn of_head(context: &Context, rows: usize, columns: usize, works: &mut Vec<Work>) -> Result<()> {
    let w = PackedDense::from_bytes(
        DenseElement::Bf16,
        rows,
        columns,
        &vec![0x3c; 2 * rows * columns],
    )?;
    let copies = copies(context, 2 * rows * columns);
    let heads: Rc<Vec<_>> =
        Rc::new((0..copies).map(|_| w.upload(context)).collect::<bitnet_wgpu::Result<_>>()?);
    for tokens in [2, 3, 4, 5, 6, 8, 12, 16, 32] {
        let (x, y, heads) = (
            floats(context, tokens, columns)?,
            Tensor::<f32>::zeros(context, [tokens, rows])?,
            heads.clone(),
        );
        let record = move |context: &Context, copies: usize| {
            let mut encoder = context.encoder("head");
            heads[..copies]
                .iter()
                .try_for_each(|w| transformer::dense_gemv(&x, w).forward_into(&mut encoder, &y))?;
            Ok(encoder.finish())
        };
        let bytes = 2 * rows * columns + 4 * tokens * (rows + columns);
        works.push(Work {
            what: format!("a head of {rows} × {columns}, {tokens} tokens"),
            bytes,
            copies,
            record: Box::new(record),
        });
    }
    Ok(())
}
