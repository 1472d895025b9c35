//! What `scripts/models-table` asks of this crate: loads a model, continues prompts, and prints one
//! JSON object.
//!
//! `model_row PATH [--cpu|--gpu] [--quantize] [--i2s x86|arm|rows] [--steps N | --every] [--text TEXT].. IDS..`,
//! where a prompt is ids separated by commas. It prints
//! `{"device", "last_logits", "greedy", "tokens"}`, a list per prompt and one per text, or
//! `{"error", "kind"}`. Keys and values are in 32 bits, as the reference has them. With `--every`,
//! prompts are not continued, and `"logits"` has for each a list of the logits after every token.

use bitnet_wgpu::{
    Context, Element, Error, Result,
    formats::{I2sLayout, ReadOptions},
    model::{GenerateOptions, ModelFiles},
};
use pollster::block_on;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Default)]
struct Arguments {
    path: PathBuf,
    gpu: bool,
    quantize: bool,
    layout: Option<I2sLayout>,
    steps: usize,
    every: bool,
    texts: Vec<String>,
    prompts: Vec<Vec<u32>>,
}

impl Arguments {
    fn parse() -> Option<Self> {
        let (mut arguments, mut words) = (Self::default(), std::env::args().skip(1));
        arguments.path = words.next()?.into();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--cpu" => arguments.gpu = false,
                "--gpu" => arguments.gpu = true,
                "--quantize" => arguments.quantize = true,
                "--i2s" => {
                    arguments.layout = Some(match words.next()?.as_str() {
                        "x86" => I2sLayout::X86,
                        "arm" => I2sLayout::Arm,
                        "rows" => I2sLayout::Rows,
                        _ => return None,
                    })
                }
                "--every" => arguments.every = true,
                "--steps" => arguments.steps = words.next()?.parse().ok()?,
                "--text" => arguments.texts.push(words.next()?),
                ids => arguments
                    .prompts
                    .push(ids.split(',').map(|id| id.parse().ok()).collect::<Option<_>>()?),
            }
        }
        Some(arguments)
    }

    fn run(&self) -> Result<Value> {
        let context = if self.gpu { Some(block_on(Context::new())?) } else { None };
        let options = ReadOptions::default().quantize(self.quantize).i2s_layout(self.layout);
        let files = ModelFiles::open_with(&self.path, options)?;
        let model = files.builder().device(context.as_ref()).build()?;
        let (vocab, options) = (
            model.config().vocab,
            GenerateOptions::default()
                .max_tokens(self.steps)
                .ignore_eos(true)
                .kv_type(Element::F32),
        );
        let (mut every, mut last_logits, mut greedy) = (Vec::new(), Vec::new(), Vec::new());
        for prompt in &self.prompts {
            let logits = block_on(model.logits(prompt))?;
            if self.every {
                every.push(logits.chunks(vocab).map(<[f32]>::to_vec).collect::<Vec<_>>());
                continue;
            }
            last_logits.push(logits[logits.len() - vocab..].to_vec());
            greedy.push(
                model
                    .generate_ids(prompt, &options)?
                    .into_iter()
                    .map(|token| Ok(token?.id))
                    .collect::<Result<Vec<_>>>()?,
            );
        }
        let tokens = self
            .texts
            .iter()
            .map(|text| model.tokenizer()?.encode(text))
            .collect::<Result<Vec<_>>>()?;
        let device = context
            .map_or_else(|| "CPU".to_owned(), |context| context.capabilities().adapter.clone());
        Ok(
            json!({ "device": device, "logits": every, "last_logits": last_logits, "greedy": greedy, "tokens": tokens }),
        )
    }
}

fn main() {
    let Some(arguments) = Arguments::parse() else {
        eprintln!(
            "usage: model_row PATH [--cpu|--gpu] [--quantize] [--i2s x86|arm|rows] [--steps N | --every] [--text TEXT].. IDS.."
        );
        std::process::exit(2);
    };
    let refused =
        |error: Error| json!({ "error": error.to_string(), "kind": format!("{:?}", error.kind()) });
    println!("{}", arguments.run().unwrap_or_else(refused));
}
