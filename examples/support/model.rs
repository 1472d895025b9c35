//! Opening a model from the command line.
#![allow(dead_code, reason = "each example uses its part")]

use bitnet_wgpu::{
    Context, Result, ShaderLanguage,
    formats::I2sLayout,
    model::{LoadOptions, Model},
};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;

#[derive(Clone, Copy, ValueEnum)]
pub enum Language {
    Wgsl,
    Msl,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum I2s {
    X86,
    Arm,
    Rows,
}

#[derive(Args)]
pub struct ModelArgs {
    /// A model directory (config.json, safetensors, tokenizer.json) or a GGUF file.
    #[arg(long, value_name = "DIR|FILE.gguf", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m"))]
    pub model: PathBuf,
    /// The shader language; the default is the device's own.
    #[arg(long)]
    pub language: Option<Language>,
    /// Compute on the CPU.
    #[arg(long, conflicts_with_all = ["gpu", "language"])]
    pub cpu: bool,
    /// Compute on the GPU, even a software one, which is slower than the CPU.
    #[arg(long)]
    pub gpu: bool,
    /// Keep the head in 8 bits.
    #[arg(long)]
    pub int8_head: bool,
    /// Quantise float weights, though nothing says that the model was trained for it.
    #[arg(long)]
    pub quantize: bool,
    /// How I2_S tensors of a GGUF file lie.
    #[arg(long, default_value = "x86")]
    pub i2s: I2s,
}

impl ModelArgs {
    /// Loads the model, for the CPU where that is faster, with a progress bar for those that take their time.
    pub fn load(&self) -> Result<Model> {
        let context = self.context()?;
        let style = ProgressStyle::with_template("loading {bar:30} {pos}/{len} layers").unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(0).with_style(style);
        let mut progress = |done: usize, all: usize| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        };
        let i2s_layout = match self.i2s {
            I2s::X86 => I2sLayout::X86,
            I2s::Arm => I2sLayout::Arm,
            I2s::Rows => I2sLayout::Rows,
        };
        let options =
            LoadOptions::default().int8_head(self.int8_head).quantize(self.quantize).i2s_layout(i2s_layout).progress(&mut progress);
        let model = Model::load_with(context.as_ref(), &self.model, options);
        bar.finish_and_clear();
        model
    }

    fn context(&self) -> Result<Option<Context>> {
        if self.cpu {
            return Ok(None);
        }
        let context = if self.gpu || self.language.is_some() {
            Some(pollster::block_on(Context::new())?)
        } else {
            let (context, why) = pollster::block_on(Context::preferred())?;
            eprintln!("computing on {why}");
            context
        };
        match (context, self.language) {
            (Some(context), Some(Language::Wgsl)) => context.with_language(ShaderLanguage::Wgsl).map(Some),
            (Some(context), Some(Language::Msl)) => context.with_language(ShaderLanguage::Msl).map(Some),
            (context, _) => Ok(context),
        }
    }
}

/// The device's name and the language of its kernels.
pub fn device(model: &Model) -> (String, String) {
    match model.context() {
        Some(context) => (context.capabilities().adapter.clone(), format!("{:?}", context.language()).to_lowercase()),
        None => ("CPU".into(), "rust".into()),
    }
}

/// Rust prints an error that leaves main as data; people want its text.
pub fn report(result: Result<()>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// Shows what this crate warns of.
pub fn log() {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error,bitnet_wgpu=warn")).init();
}
