//! `bitnet tokenize`: the tokens of a text.

use crate::{
    counted, input,
    model::{ChatArgs, FileArgs, resolve},
    note, say, say_text,
};
use anyhow::{Result, bail};
use bitnet_wgpu::model::{Message, ModelFiles, Tokenizer};
use clap::Args;
use serde_json::json;
use std::{io::IsTerminal, path::PathBuf};

/// Shows the tokens of a text, or the text of tokens
///
/// Prints a line per token, of its id and its text in quotes. No weights are read.
#[derive(Args)]
pub struct Tokenize {
    /// Model directory, GGUF file, prepacked model file, or name on the Hugging Face hub
    model: PathBuf,
    /// Text of at most 16 MiB; `-` or no text reads standard input
    #[arg(allow_hyphen_values = true, value_parser = input::prompt)]
    text: Option<String>,
    /// Text after `--`, which may be like an option
    #[arg(last = true, hide = true, conflicts_with = "text")]
    literal: Option<String>,
    /// Token ids whose text is printed
    #[arg(long, value_name = "ID,ID", value_delimiter = ',', conflicts_with_all = ["text", "literal"])]
    token_ids: Option<Vec<u32>>,
    /// Take the text as a user message, with the model's chat template
    #[arg(long, conflicts_with = "token_ids")]
    chat: bool,
    /// Do not add BOS and other special tokens
    #[arg(long, conflicts_with_all = ["token_ids", "chat"])]
    plain: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Chat")]
    template: ChatArgs,
    #[command(flatten, next_help_heading = "Model files")]
    file: FileArgs,
}

impl Tokenize {
    pub fn run(self) -> Result<()> {
        if !self.chat {
            self.template.check_unused()?;
        }
        let files = ModelFiles::open_with(resolve(&self.model)?, self.file.options())?;
        let tokenizer = files.tokenizer()?;
        let ids = match &self.token_ids {
            Some(ids) => ids.clone(),
            None => self.encode(tokenizer)?,
        };
        let texts = ids.iter().map(|&id| tokenizer.decode_with_special(&[id]));
        let texts = texts.collect::<bitnet_wgpu::Result<Vec<_>>>()?;
        if self.json {
            let text = tokenizer.decode_with_special(&ids)?;
            let object = json!({ "token_ids": ids, "tokens": texts, "text": text });
            return Ok(say(format!("{object}\n"))?);
        }
        if self.token_ids.is_some() {
            return Ok(say_text(&format!("{}\n", tokenizer.decode_with_special(&ids)?))?);
        }
        let line = |(id, text): (&u32, &String)| format!("{id:>8}  {}\n", json!(text));
        say_text(&ids.iter().zip(&texts).map(line).collect::<String>())?;
        note(counted(ids.len(), "token"));
        Ok(())
    }

    fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let given = self.literal.as_ref().or(self.text.as_ref().filter(|text| *text != "-"));
        let text = match given {
            Some(text) => text.clone(),
            None if self.text.is_none() && std::io::stdin().is_terminal() => {
                bail!("missing text; `-` for standard input is accepted")
            }
            None => input::piped_text()?,
        };
        Ok(match (self.chat, self.plain) {
            (true, _) => self.template.tokenizer(tokenizer)?.chat(&[Message::new("user", text)])?,
            (false, true) => tokenizer.encode_plain(&text)?,
            (false, false) => tokenizer.encode(&text)?,
        })
    }
}
