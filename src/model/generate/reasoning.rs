//! Separates the reasoning of a model from its answer.

use crate::{
    error::Result,
    model::tokenizer::{
        chat::{CLOSE, OPEN},
        text::Tokenizer,
    },
};

/// Tokens of a prompt's end that may say that the reasoning has begun.
const END: usize = 16;

/// Separates a model's reasoning from its answer while the text comes: text that begins with
/// `<think>`, or whose prompt ends with it, is reasoning up to `</think>`. Marks are left out, and
/// so are the spaces and line breaks around each of both parts; later marks are text.
///
/// ```
/// use bitnet_wgpu::model::ReasoningParser;
///
/// let mut parts = ReasoningParser::default();
/// let mut said = parts.push("<think>\nTwo and");
/// said += parts.push(" two.\n</th");
/// said += parts.push("ink>\n\nFour.");
/// said += parts.finish();
/// assert_eq!((said.reasoning.as_str(), said.answer.as_str()), ("Two and two.", "Four."));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReasoningParser {
    state: State,
    /// Text that may be a part of a mark, or the spaces at the end of a part.
    held: String,
    /// Pieces before it was known what they are.
    open: usize,
    /// Pieces of the reasoning.
    pieces: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    /// Nothing was said but spaces, or a beginning of a mark.
    #[default]
    Begin,
    /// Reasoning, of which nothing was said yet.
    Opened,
    Reasoning,
    /// The answer, of which nothing was said yet.
    Closed,
    Answer,
}

/// Text of the reasoning, then of the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitText {
    /// The reasoning.
    pub reasoning: String,
    /// The answer.
    pub answer: String,
}

impl std::ops::AddAssign for SplitText {
    fn add_assign(&mut self, more: Self) {
        self.reasoning += &more.reasoning;
        self.answer += &more.answer;
    }
}

impl ReasoningParser {
    /// For the answer to a prompt, which may end with `<think>`, as some chat templates have it.
    /// Where a tokenizer has the marks as special tokens, whose text is left out of answers, all is
    /// the answer.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) for an id that is not a token.
    pub fn after(tokenizer: &Tokenizer, prompt: &[u32]) -> Result<Self> {
        let end = tokenizer.decode_with_special(&prompt[prompt.len().saturating_sub(END)..])?;
        // Special tokens have no text: nothing would end the reasoning.
        let unseen = [OPEN, CLOSE]
            .iter()
            .any(|mark| tokenizer.token(mark).is_some_and(|id| tokenizer.is_special(id)));
        let state = match end.trim_end().ends_with(OPEN) {
            _ if unseen => State::Answer,
            true => State::Opened,
            false => State::Begin,
        };
        Ok(Self { state, ..Self::default() })
    }

    /// Returns whether the text that comes next is reasoning, as far as is known.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Opened | State::Reasoning)
    }

    /// Returns the number of pushed texts that were reasoning, its marks included: if each is of a
    /// token, a number of tokens. A mark of several tokens counts when it is whole.
    pub fn reasoning_tokens(&self) -> usize {
        self.pieces
    }

    /// Takes the text of the next token, and returns what is certain by now.
    pub fn push(&mut self, text: &str) -> SplitText {
        self.pieces += usize::from(self.is_open());
        self.open += usize::from(self.state == State::Begin);
        self.read(text)
    }

    fn read(&mut self, text: &str) -> SplitText {
        let mut said = SplitText::default();
        if self.state == State::Answer {
            said.answer += text;
            return said;
        }
        self.held += text;
        loop {
            match self.state {
                State::Begin => {
                    let begun = self.held.trim_start();
                    if let Some(rest) = begun.strip_prefix(OPEN) {
                        (self.held, self.state, self.pieces) =
                            (rest.to_owned(), State::Opened, self.open);
                    } else if OPEN.starts_with(begun) {
                        return said;
                    } else {
                        // There is no reasoning, and the answer is as it came.
                        self.state = State::Answer;
                    }
                }
                State::Opened | State::Reasoning => {
                    let (part, rest) = match self.held.split_once(CLOSE) {
                        Some((part, rest)) => (part.trim_end(), Some(rest)),
                        None => (&self.held[..certain(&self.held)], None),
                    };
                    let part = if self.state == State::Opened { part.trim_start() } else { part };
                    if !part.is_empty() {
                        said.reasoning += part;
                        self.state = State::Reasoning;
                    }
                    match rest {
                        Some(rest) => (self.held, self.state) = (rest.to_owned(), State::Closed),
                        None => {
                            self.held.drain(..certain(&self.held));
                            return said;
                        }
                    }
                }
                State::Closed => {
                    if self.held.trim_start().is_empty() {
                        return said;
                    }
                    self.held = self.held.trim_start().to_owned();
                    self.state = State::Answer;
                }
                State::Answer => {
                    said.answer += &std::mem::take(&mut self.held);
                    return said;
                }
            }
        }
    }

    /// Ends the text, and returns what was held back.
    pub fn finish(&mut self) -> SplitText {
        let held = std::mem::take(&mut self.held);
        let mut said = SplitText::default();
        match self.state {
            State::Begin | State::Answer => said.answer = held,
            State::Opened => said.reasoning = held.trim().to_owned(),
            State::Reasoning => said.reasoning = held.trim_end().to_owned(),
            State::Closed => {}
        }
        said
    }
}

/// The length of reasoning that is neither the beginning of its end's mark nor the spaces before
/// it.
fn certain(text: &str) -> usize {
    let marked = (1..CLOSE.len()).rev().find(|&length| text.ends_with(&CLOSE[..length]));
    text[..text.len() - marked.unwrap_or(0)].trim_end().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces, and what comes of them as a whole.
    fn said(mut parts: ReasoningParser, pieces: &[&str]) -> (String, String) {
        let mut all = SplitText::default();
        pieces.iter().for_each(|piece| all += parts.push(piece));
        all += parts.finish();
        (all.reasoning, all.answer)
    }

    #[test]
    fn parts_are_separated_in_any_chunks() {
        let opened = ReasoningParser { state: State::Opened, ..ReasoningParser::default() };
        let cases = [
            (
                ReasoningParser::default(),
                "<think>\nLet me see.\n\n1 < 2 </thin> é\n</think>\n\nIt is </think> so.\n",
                "Let me see.\n\n1 < 2 </thin> é",
                "It is </think> so.\n",
            ),
            (ReasoningParser::default(), "\n <think>\n\n</think>\n\nYes", "", "Yes"),
            (opened.clone(), "Hm. <think> </think>No", "Hm. <think>", "No"),
            (opened.clone(), "Hm, but then </thi", "Hm, but then </thi", ""),
            (opened.clone(), "\n\n ", "", ""),
            (opened, "a</think>\n", "a", ""),
            (ReasoningParser::default(), "  Plain <think> text\n", "", "  Plain <think> text\n"),
            (ReasoningParser::default(), " <thin", "", " <thin"),
            (ReasoningParser::default(), "", "", ""),
        ];
        for (parts, text, reasoning, answer) in cases {
            let expected = (reasoning.to_owned(), answer.to_owned());
            assert_eq!(said(parts.clone(), &[text]), expected, "{text:?}");
            let characters: Vec<String> = text.chars().map(String::from).collect();
            assert_eq!(
                said(parts.clone(), &characters.iter().map(String::as_str).collect::<Vec<_>>()),
                expected,
                "{text:?} by characters"
            );
            for (at, _) in text.char_indices() {
                assert_eq!(
                    said(parts.clone(), &[&text[..at], &text[at..]]),
                    expected,
                    "{text:?} cut at {at}"
                );
            }
        }
    }

    #[test]
    fn reasoning_tokens_include_the_marks() {
        let count = |pieces: &[&str]| {
            let mut parts = ReasoningParser::default();
            let counts = pieces.iter().map(|piece| {
                parts.push(piece);
                parts.reasoning_tokens()
            });
            counts.collect::<Vec<_>>()
        };
        assert_eq!(count(&["<think>", "\n", "So", "</think>", "\n", "Yes"]), [1, 2, 3, 4, 4, 4]);
        // Marks of several pieces, and spaces before; what ends a mark may begin an answer.
        assert_eq!(
            count(&["\n", "<", "think", ">", "So", "</", "think", ">No", "!"]),
            [0, 0, 0, 4, 5, 6, 7, 8, 8]
        );
        assert_eq!(count(&["<think>So</think>Yes", "!"]), [1, 1]);
        // A beginning of a mark that is none.
        assert_eq!(count(&["<", "thin", "ly>", "<think>"]), [0; 4]);
        let mut opened = ReasoningParser { state: State::Opened, ..ReasoningParser::default() };
        let counts = ["", "So", "</think>", "Yes"]
            .map(|piece| (opened.push(piece), opened.reasoning_tokens()).1);
        assert_eq!(counts, [1, 2, 3, 3]);
    }

    #[test]
    fn text_is_released_once_unambiguous() {
        let mut parts = ReasoningParser::default();
        assert_eq!(
            (parts.push("<think>\nSo"), parts.is_open()),
            (SplitText { reasoning: "So".into(), answer: String::new() }, true)
        );
        assert_eq!(parts.push(" far ").reasoning, " far");
        assert_eq!(parts.push("<").reasoning, "");
        assert_eq!(parts.push("b").reasoning, " <b");
        assert_eq!((parts.push("</think>"), parts.is_open()), (SplitText::default(), false));
        assert_eq!(parts.push("\n\nWell, ").answer, "Well, ");
        assert_eq!(parts.push(" <").answer, " <");
    }
}
