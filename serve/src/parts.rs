//! Parts of an answer: reasoning, text and tool calls.

use bitnet_wgpu::model::{
    ParsedAnswer, ReasoningParser, SplitText, Stop, ToolCallEvent, ToolCallParser,
};

/// A piece of an answer.
pub enum Piece {
    Reasoning(String),
    /// Text, or a piece of a tool call.
    Answer(ToolCallEvent),
}

/// Separates the parts of a choice.
#[derive(Clone)]
pub struct Parts {
    pub reasoning: ReasoningParser,
    /// None without tools.
    pub calls: Option<ToolCallParser>,
    /// Whether the answer can only be calls.
    is_forced: bool,
    /// Whether a call began that has no end yet.
    is_begun: bool,
    /// Whether there was a call, and no text since.
    is_called: bool,
}

impl Parts {
    pub fn new(reasoning: ReasoningParser, calls: Option<ToolCallParser>, is_forced: bool) -> Self {
        Self { reasoning, calls, is_forced, is_begun: false, is_called: false }
    }

    /// Takes the text of a token.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let split = self.reasoning.push(text);
        self.pieces(split)
    }

    /// Ends the text. A call that the end of the answer cuts is left out, where it is known to be
    /// one: it is neither text nor to be run.
    pub fn finish(&mut self, stop: Option<Stop>) -> Vec<Piece> {
        let split = self.reasoning.finish();
        let mut pieces = self.pieces(split);
        let rest = self.calls.as_mut().map(ToolCallParser::finish).unwrap_or_default();
        let is_call = match stop {
            Some(Stop::MaxTokens | Stop::Context) => {
                self.is_forced || self.is_begun || self.is_called
            }
            Some(Stop::StopString) => self.is_called,
            _ => false,
        };
        pieces.extend(rest.into_iter().filter(|_| !is_call).map(Piece::Answer));
        pieces
    }

    /// Notes what is known of calls.
    fn note(&mut self, event: &ToolCallEvent) {
        match event {
            ToolCallEvent::Begin { .. } => self.is_begun = true,
            ToolCallEvent::Arguments(_) => {}
            ToolCallEvent::End => (self.is_begun, self.is_called) = (false, true),
            ToolCallEvent::Text(_) | ToolCallEvent::Malformed(_) => {
                (self.is_begun, self.is_called) = (false, false);
            }
        }
    }

    fn pieces(&mut self, SplitText { reasoning, answer }: SplitText) -> Vec<Piece> {
        let reasoning = Some(reasoning).filter(|text| !text.is_empty()).map(Piece::Reasoning);
        let answer = match &mut self.calls {
            Some(calls) => {
                let events = calls.push(&answer);
                events.iter().for_each(|event| self.note(event));
                events.into_iter().map(Piece::Answer).collect()
            }
            None => text(answer),
        };
        reasoning.into_iter().chain(answer).collect()
    }
}

/// Text as pieces.
pub fn text(text: String) -> Vec<Piece> {
    let text = Some(text).filter(|text| !text.is_empty());
    text.map(|text| Piece::Answer(ToolCallEvent::Text(text))).into_iter().collect()
}

/// Parts that are complete.
#[derive(Default)]
pub struct WholeParts {
    pub reasoning: String,
    pub answer: ParsedAnswer,
}

impl WholeParts {
    pub fn add(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => self.reasoning += &text,
                Piece::Answer(event) => self.answer.add(event),
            }
        }
    }

    /// Returns reasoning, text and calls, one after the other.
    pub fn into_pieces(self) -> Vec<Piece> {
        let reasoning = Some(self.reasoning).filter(|text| !text.is_empty());
        let calls = self.answer.calls.into_iter().flat_map(|call| {
            let begin = ToolCallEvent::Begin { id: call.id, name: call.name };
            [begin, ToolCallEvent::Arguments(call.arguments), ToolCallEvent::End]
        });
        let pieces = reasoning.map(Piece::Reasoning).into_iter().chain(text(self.answer.text));
        pieces.chain(calls.map(Piece::Answer)).collect()
    }
}
