//! `bitnet tune`: measures, for a model, the thresholds by which kernels are chosen.

mod steps;
mod trial;
mod works;

use self::{
    steps::Steps,
    trial::{Search, Trial, is_better, median},
};
use crate::{adapters::backend, bench::Source, model::ModelArgs, random::Shape, say};
use anyhow::{Result, bail, ensure};
use bitnet_wgpu::{
    Context,
    internals::files,
    telemetry::PeakBandwidth,
    tuning::{Tuning, TuningKey},
};
use clap::Args;
use pollster::block_on;
use std::path::PathBuf;

/// Measures which kernels are fastest on this GPU, for a model
///
/// Times decode steps and prompts of the model kernel by kernel, to see which kernels matter. Then
/// tries other values of each threshold by which these kernels are chosen. A value is taken if it
/// is faster in every round, and by 3 % in the median, twice. At last the model runs with all
/// values that were taken. They are saved in --kernel-cache unless the model is slower with them;
/// other commands with the same --kernel-cache use them. Results of a model do not change by a bit.
#[derive(Args)]
pub struct Tune {
    /// Model directory, GGUF file, prepacked model file, or name on the Hugging Face hub
    /// [default: random weights, see --shape]
    #[arg(conflicts_with_all = ["config", "shape"])]
    model: Option<PathBuf>,
    /// Shape of the random weights
    #[arg(long, value_name = "SHAPE", value_enum, default_value_t = Shape::BitNet2B4T)]
    shape: Shape,
    /// config.json with the shape of the random weights
    #[arg(long, value_name = "FILE", conflicts_with = "shape")]
    config: Option<PathBuf>,
    /// Number of rounds in which values are timed in turn, from 1 to 100
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print the times of all shapes too
    #[arg(long)]
    verbose: bool,
    #[command(flatten, next_help_heading = "Device")]
    device: ModelArgs,
}

impl Tune {
    pub fn run(mut self) -> Result<()> {
        ensure!(!self.device.cpu, "--cpu: tune measures kernels of a GPU");
        self.device.gpu = true;
        let source =
            Source::open(self.model.as_deref(), &self.device, self.config.as_deref(), self.shape)?;
        let contexts = self.device.contexts()?;
        let [opened] = &contexts[..] else { bail!("--adapter: tune measures a single GPU") };
        let usual = opened.restricted(|c| c.tuning = Tuning::default());
        describe(&usual)?;
        let before = self.steps(&source, &usual)?;
        say(format!("{before}"))?;
        let tuning = self.search(&source, &usual, &before)?;
        if tuning.is_empty() {
            return Ok(say("\nno value is faster here than the default\n")?);
        }
        let tuned = usual.restricted(|c| c.tuning = tuning.clone());
        // In turn, since a clock may change.
        let after = self.steps(&source, &tuned)?;
        let before = before.least(self.steps(&source, &usual)?);
        let after = after.least(self.steps(&source, &tuned)?);
        let ratio = after.ratio(&before);
        say(format!("\nby default:\n{before}\nwith these values:\n{tuning}{after}"))?;
        say(format!("the model takes {ratio:.3} of the time, in the geometric mean\n"))?;
        if ratio >= 1.0 {
            return Ok(say("not saved, since the model is not faster\n")?);
        }
        say(match &self.device.kernel_cache {
            Some(_) => format!("saved in {}\n", files::display(&opened.save_tuning(&tuning)?)),
            None => "not saved: --kernel-cache DIR says where\n".to_owned(),
        })?;
        Ok(())
    }

    /// Loads the model and times its steps. It is dropped before kernels are timed alone, which
    /// need memory.
    fn steps(&self, source: &Source, context: &Context) -> Result<Steps> {
        Steps::of(&source.load(std::slice::from_ref(context), &self.device)?, context)
    }

    /// Returns the values that are faster than the defaults.
    fn search(&self, source: &Source, usual: &Context, steps: &Steps) -> Result<Tuning> {
        let peak = block_on(PeakBandwidth::measure(usual))?;
        let works = works::works(usual, source.config())?;
        let search =
            Search { usual, steps, works: &works, rows: works::rows(source.config()), peak };
        let mut tuning = Tuning::default();
        for &key in TuningKey::ALL {
            let mut trial = Trial::new(&search, &tuning, key)?;
            let default = usual.capabilities().tuned(key);
            say(format!("\n{}: {default} by default", key.name()))?;
            if trial.is_empty() {
                say("; no other value changes what this model dispatches here\n")?;
                continue;
            }
            say(format!("; tried on {} shapes\n", trial.shapes()))?;
            if let Some(value) = self.better(&mut trial)? {
                tuning.set(key, value)?;
            }
        }
        Ok(tuning)
    }

    /// Returns the value that is better than the default, in two sets of rounds.
    fn better(&self, trial: &mut Trial) -> Result<Option<u32>> {
        let ratios = trial.rounds(self.rounds)?;
        for (value, ratios) in trial.values().zip(&ratios).skip(1) {
            say(format!("  {value:>10}: {}\n", shown(ratios)))?;
        }
        if self.verbose {
            say(trial.figures())?;
        }
        let best =
            (1..ratios.len()).min_by(|&a, &b| median(&ratios[a]).total_cmp(&median(&ratios[b])));
        let Some(best) = best.filter(|&best| is_better(&ratios[best])) else { return Ok(None) };
        let Some(value) = trial.values().nth(best) else { return Ok(None) };
        let again = trial.rounds(self.rounds)?.swap_remove(best);
        let taken = is_better(&again);
        let decision = if taken { "taken" } else { "not taken" };
        say(format!("  {value:>10} again: {}, {decision}\n", shown(&again)))?;
        Ok(taken.then_some(value))
    }
}

fn describe(context: &Context) -> Result<()> {
    let c = context.capabilities();
    let (backend, language) = (backend(c.backend), context.language());
    Ok(say(format!("{} · {} · {backend} · {language} kernels\n", c.adapter, c.driver))?)
}

fn shown(ratios: &[f64]) -> String {
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    format!("{:.2} of the time ({least:.2} to {most:.2})", median(ratios))
}
