//! What a conversation shows: answers on standard output, and notes on standard error.

use super::{conversation::Answer, wrap::Wrap};
use crate::{
    counted,
    generation::{counts, rate},
    note, say, say_text,
    style::Style,
};
use anyhow::Result;
use bitnet_wgpu::model::{SplitText, Stop};
use serde_json::json;
use std::io::IsTerminal;

/// How answers and notes are shown.
pub struct Screen {
    json: bool,
    hide_thinking: bool,
    style: Style,
}

impl Screen {
    pub fn new(json: bool, hide_thinking: bool) -> Self {
        Self { json, hide_thinking, style: Style::of(&std::io::stderr()) }
    }

    /// Shows a note.
    pub fn say_aside(&self, text: &str) {
        note(self.style.dim(text));
    }

    /// Says why a message is not answered.
    pub fn refuse(&self, why: &str) -> Result<()> {
        if self.json {
            say(format!("{}\n", json!({ "error": why })))?;
        }
        note(format!("{} {}", self.style.bold("error:"), crate::printable(why)));
        Ok(())
    }

    /// Says what of the conversation an answer does not take into account.
    pub fn start(&self, dropped_turns: usize) {
        match dropped_turns {
            0 => {}
            1 => self.say_aside("(context full: the oldest turn is left out)"),
            turns => {
                self.say_aside(&format!("(context full: the oldest {turns} turns are left out)"))
            }
        }
    }

    /// Shows an answer, token by token.
    pub fn answer(&self) -> Shown<'_> {
        let width = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        let width = width.filter(|_| std::io::stdout().is_terminal());
        Shown { screen: self, wrap: Wrap::new(width) }
    }
}

/// An answer that is shown.
pub struct Shown<'a> {
    screen: &'a Screen,
    wrap: Wrap,
}

impl Shown<'_> {
    /// Shows a token's text, or what of it belongs to the answer.
    pub fn show(&mut self, text: &str, parts: &SplitText) -> std::io::Result<()> {
        if self.screen.json {
            return Ok(());
        }
        say_text(&self.wrap.push(if self.screen.hide_thinking { &parts.answer } else { text }))
    }

    /// Ends an answer, whose prompt left out some turns.
    pub fn end(mut self, answer: &Answer, dropped_turns: usize) -> Result<()> {
        if self.screen.json {
            let object = json!({
                "role": "assistant",
                "content": answer.text.answer,
                "reasoning": answer.text.reasoning,
                "reasoning_tokens": answer.reasoning_tokens,
                "token_ids": answer.ids,
                "prompt_tokens": answer.prompt_tokens,
                "dropped_turns": dropped_turns,
                "seed": answer.seed,
                "stop_reason": answer.stop.map(|stop| stop.to_string()),
                "speculation": counts(answer.speculation),
            });
            return Ok(say(format!("{object}\n"))?);
        }
        let rest =
            if self.screen.hide_thinking { self.wrap.push(&answer.rest) } else { String::new() };
        say_text(&format!("{rest}{}\n", self.wrap.finish()))?;
        self.screen.say_aside(&self.summary(answer));
        Ok(())
    }

    /// Returns the line that follows an answer.
    fn summary(&self, answer: &Answer) -> String {
        let rate = rate(answer.ids.len().saturating_sub(1), answer.decode);
        let rate = rate.map_or_else(String::new, |rate| format!(", {rate:.1} tok/s"));
        let tokens = counted(answer.ids.len(), "token");
        let first = answer.prefill.as_secs_f64();
        let mut text = format!("({tokens}{rate}, first token after {first:.2} s");
        if self.screen.hide_thinking && answer.reasoning_tokens > 0 {
            text +=
                &format!("; {} of reasoning not shown", counted(answer.reasoning_tokens, "token"));
        }
        text += match answer.stop {
            None => "; interrupted",
            Some(Stop::MaxTokens) => "; stopped at --max-tokens",
            Some(Stop::Context) => "; stopped: the context is full",
            Some(_) => "",
        };
        text + ")"
    }
}
