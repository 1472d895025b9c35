//! Parts of an answer: reasoning, text and tool calls.

use bitnet_wgpu::model::{ParsedAnswer, ReasoningParser, SplitText, ToolCallEvent, ToolCallParser};

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
}

impl Parts {
    /// Takes the text of a token.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let split = self.reasoning.push(text);
        self.pieces(split)
    }

    /// Ends the text.
    pub fn finish(&mut self) -> Vec<Piece> {
        let split = self.reasoning.finish();
        let mut pieces = self.pieces(split);
        let rest = self.calls.as_mut().map(ToolCallParser::finish).unwrap_or_default();
        pieces.extend(rest.into_iter().map(Piece::Answer));
        pieces
    }

    fn pieces(&mut self, SplitText { reasoning, answer }: SplitText) -> Vec<Piece> {
        let reasoning = Some(reasoning).filter(|text| !text.is_empty()).map(Piece::Reasoning);
        let answer = match &mut self.calls {
            Some(calls) => calls.push(&answer).into_iter().map(Piece::Answer).collect(),
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
