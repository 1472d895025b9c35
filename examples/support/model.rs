//! Opening a model from the command line.
#![allow(dead_code, reason = "each example uses its part")]

use bitnet_wgpu::{
    Context, Error, Result, ShaderLanguage,
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
    /// Compute on the processor.
    #[arg(long)]
    pub cpu: bool,
    /// Keep the head in 8 bits.
    #[arg(long)]
    pub int8_head: bool,
    /// How I2_S tensors of a GGUF file lie.
    #[arg(long, default_value = "x86")]
    pub i2s: I2s,
}

impl ModelArgs {
    /// Loads the model, to the processor where there is no GPU, with a progress bar for those that take their time.
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
        let options = LoadOptions { int8_head: self.int8_head, i2s_layout, progress: Some(&mut progress) };
        let model = Model::load_with(context.as_ref(), &self.model, options);
        bar.finish_and_clear();
        model
    }

    fn context(&self) -> Result<Option<Context>> {
        if self.cpu {
            return Ok(None);
        }
        let context = match pollster::block_on(Context::new()) {
            Err(Error::NoAdapter { reason, .. }) if std::env::var_os("WGPU_ADAPTER_NAME").is_none() => {
                eprintln!("no GPU driver ({reason}): computing on the processor");
                return Ok(None);
            }
            context => context?,
        };
        match self.language {
            None => Ok(Some(context)),
            Some(Language::Wgsl) => context.with_language(ShaderLanguage::Wgsl).map(Some),
            Some(Language::Msl) => context.with_language(ShaderLanguage::Msl).map(Some),
        }
    }
}

/// The device's name and the language of its kernels.
pub fn device(model: &Model) -> (String, String) {
    match model.context() {
        Some(context) => (context.capabilities().adapter.clone(), format!("{:?}", context.language()).to_lowercase()),
        None => ("processor".into(), "rust".into()),
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
