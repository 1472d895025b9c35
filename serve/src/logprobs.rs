//! Log-probabilities of tokens, as OpenAI's API has them.

use crate::choices::GeneratedToken;
use bitnet_wgpu::model::{TextStream, TokenLogprobs, Tokenizer};
use serde_json::{Map, Value, json};

/// Least log-probability in JSON, which has no -inf, as in OpenAI's API.
const LEAST: f64 = -9999.0;

/// A prompt that its answer repeats.
pub struct Echo {
    pub ids: Vec<u32>,
    pub text: String,
    /// Of every token but the first; empty if the request does not ask for them.
    pub logprobs: Vec<TokenLogprobs>,
}

/// Texts of single tokens.
pub struct TokenTexts {
    /// None for a model without a tokenizer.
    tokenizer: Option<Tokenizer>,
    /// Tokens before the one that is decoded: a space at the beginning of a text may be left out.
    before: Vec<u32>,
    prefix: String,
}

impl TokenTexts {
    pub fn new(tokenizer: Option<Tokenizer>) -> Self {
        let before =
            tokenizer.as_ref().and_then(|it| it.encode_plain("a").ok()).unwrap_or_default();
        let prefix = tokenizer.as_ref().and_then(|it| it.decode_with_special(&before).ok());
        Self { tokenizer, before, prefix: prefix.unwrap_or_default() }
    }

    /// Returns the text of a token; none for a part of a character.
    fn text(&self, id: u32) -> Option<String> {
        let ids = [&self.before[..], &[id]].concat();
        let text = self.tokenizer.as_ref()?.decode_with_special(&ids).ok()?;
        let text = text.strip_prefix(self.prefix.as_str())?;
        (!text.contains(char::REPLACEMENT_CHARACTER)).then(|| text.to_owned())
    }

    /// Returns the text of a token, or its id in the form of vLLM.
    fn name(&self, id: u32) -> String {
        self.text(id).unwrap_or_else(|| format!("token_id:{id}"))
    }

    /// Returns the place where a text begins, which may begin with a space unless it is a prompt.
    pub fn offset(&self, is_prompt: bool) -> Offset {
        let mut stream = self.tokenizer.as_ref().map(Tokenizer::stream);
        if !is_prompt {
            stream.iter_mut().for_each(|stream| stream.follow(&self.before));
        }
        Offset { stream, characters: 0 }
    }
}

/// A place in a text, in characters, which leaves special tokens out.
#[derive(Default)]
pub struct Offset {
    /// None for a model without a tokenizer.
    stream: Option<TextStream>,
    characters: usize,
}

impl Offset {
    /// Returns where a token begins, and passes it. Tokens of one character begin where it does.
    fn pass(&mut self, id: u32) -> usize {
        let begin = self.characters;
        // An id that is no token adds nothing.
        let text = self.stream.as_mut().and_then(|stream| stream.push(id).ok());
        self.characters += text.map_or(0, |text| text.chars().count());
        begin
    }
}

/// The object of a chat.
pub fn chat(texts: &TokenTexts, tokens: &[GeneratedToken]) -> Value {
    let entry = |id: u32, logprob: f64| {
        let text = texts.text(id);
        let bytes = text.as_deref().map(str::as_bytes);
        json!({ "token": texts.name(id), "logprob": logprob.max(LEAST), "bytes": bytes })
    };
    let token = |token: &GeneratedToken| {
        let logprobs = token.logprobs.as_ref()?;
        let mut object = entry(token.id, logprobs.logprob);
        let top = logprobs.top.iter().map(|&(id, logprob)| entry(id, logprob));
        object["top_logprobs"] = top.collect();
        Some(object)
    };
    json!({ "content": tokens.iter().filter_map(token).collect::<Vec<_>>(), "refusal": null })
}

/// The object of a completion, whose lists have an entry for each token.
#[derive(Default)]
pub struct Completion {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

impl Completion {
    /// Adds the tokens of a prompt, of which the first has no log-probability.
    pub fn echo(&mut self, texts: &TokenTexts, echo: &Echo, offset: &mut Offset) {
        let logprobs = std::iter::once(None).chain(echo.logprobs.iter().map(Some));
        for (&id, logprobs) in echo.ids.iter().zip(logprobs) {
            self.push(texts, id, logprobs, offset);
        }
    }

    /// Adds a token that was generated.
    pub fn token(&mut self, texts: &TokenTexts, token: &GeneratedToken, offset: &mut Offset) {
        self.push(texts, token.id, token.logprobs.as_ref(), offset);
    }

    fn push(
        &mut self,
        texts: &TokenTexts,
        id: u32,
        logprobs: Option<&TokenLogprobs>,
        offset: &mut Offset,
    ) {
        let pair = |(id, logprob): (u32, f64)| (texts.name(id), logprob.max(LEAST).into());
        self.tokens.push(texts.name(id));
        self.token_logprobs.push(logprobs.map(|found| found.logprob.max(LEAST)));
        self.top_logprobs.push(logprobs.map(|found| {
            let own = (id, found.logprob);
            found.top.iter().copied().chain([own]).map(pair).collect()
        }));
        self.text_offset.push(offset.pass(id));
    }

    pub fn object(self) -> Value {
        let Self { tokens, token_logprobs, top_logprobs, text_offset } = self;
        json!({
            "tokens": tokens,
            "token_logprobs": token_logprobs,
            "top_logprobs": top_logprobs,
            "text_offset": text_offset,
        })
    }
}
