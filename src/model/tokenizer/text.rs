//! Text to tokens and back.

use super::{
    check::check,
    names::Names,
    pipeline::{Excess, Pipeline},
    tools::Tool,
};
use crate::{
    error::{Error, Result},
    formats::{FormatError, file::read, json},
    limits::{files, tokenizer::MOST_JSON},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashSet;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use tokenizers::{NormalizedString, Normalizer, PreTokenizerWrapper};

/// A model's tokenizer, special tokens and chat template. Cloning is cheap: clones share the data.
///
/// ```
/// use bitnet_wgpu::model::{Message, Tokenizer};
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let tokenizer = Tokenizer::from_directory("assets/tales-22m")?;
/// let ids = tokenizer.encode("Once upon a time")?; // with BOS
/// assert_eq!(tokenizer.decode(&ids)?, "Once upon a time");
/// let mut stream = tokenizer.stream(); // token by token
/// let text: String = ids.iter().map(|&id| stream.push(id)).collect::<bitnet_wgpu::Result<_>>()?;
/// assert_eq!(text + &stream.finish()?, "Once upon a time");
/// let prompt = tokenizer.chat(&[Message::new("user", "Tell me a tale.")])?; // as the chat template writes it
/// # assert!(!prompt.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tokenizer(pub(in crate::model) Arc<Parts>, pub(super) Chat);

/// How conversations become texts, and how long a text may be.
#[derive(Clone, Default)]
pub(super) struct Chat {
    pub template: Option<Arc<str>>,
    /// Whether the model reasons before it answers. None where the template decides.
    pub thinking: Option<bool>,
    /// Number of tokens for which a text has room: see [`Tokenizer::within`].
    pub within: Option<usize>,
    /// Whether names of special tokens in a message become these tokens.
    pub special_in_content: bool,
    /// Time that templates see; `None` for the current one.
    pub now: Option<chat_template::LocalTime>,
    /// Tools that the model may call.
    pub tools: Arc<[Tool]>,
}

pub(in crate::model) struct Parts {
    pub inner: tokenizers::Tokenizer,
    pub pipeline: Pipeline,
    /// Bytes of text that the longest token stands for, at most.
    pub longest: usize,
    pub special: HashSet<u32>,
    /// Names that are text in a message.
    pub names: Names,
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
    /// The EOS that the tokenizer's configuration names, for templates; `eos` also has those of
    /// other files.
    pub eos_token: Option<u32>,
    /// BOS, if texts must begin with it and the post-processor does not add it.
    pub prepended: Option<u32>,
    /// EOS, if texts that are embedded must end with it and the post-processor adds nothing behind
    /// a text.
    pub appended: Option<u32>,
    /// The tokens as grammars choose from them, from the first grammar on.
    #[cfg(feature = "grammar")]
    pub vocabulary: std::sync::OnceLock<super::vocabulary::Vocabulary>,
}

/// What files other than `tokenizer.json` say about the tokenizer.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Settings {
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
    pub eos_token: Option<u32>,
    /// Whether prompts must begin with BOS, even if the post-processor does not add it.
    pub add_bos: bool,
    /// Whether inputs of embeddings must end with EOS.
    pub add_eos: bool,
    pub template: Option<String>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a model directory and, where they exist, `tokenizer_config.json`,
    /// `special_tokens_map.json`, `chat_template.jinja`, `generation_config.json` and
    /// `config.json`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`], [`Error::Tokenizer`].
    pub fn from_directory(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref();
        let path = directory.join("tokenizer.json");
        let json = json::parse(&read(&path, MOST_JSON)?).map_err(|problem| problem.at(&path))?;
        let parsed = parse(json).map_err(|message| FormatError::from(message).at(&path))?;
        let settings = Settings::read(directory, &parsed.inner)?;
        Self::new(parsed, settings)
    }

    /// The tokenizer of a `tokenizer.json` and its settings, as [`Tokenizer::stored`] gives them.
    pub(in crate::model) fn from_stored(json: &[u8], settings: Settings) -> Result<Self> {
        let parsed =
            serde_json::from_slice(json).map_err(|error| error.to_string()).and_then(parse);
        Self::new(parsed.map_err(|message| Error::Tokenizer { message })?, settings)
    }

    /// It as a `tokenizer.json` and settings. A thinking that was chosen is not among them.
    pub(in crate::model) fn stored(&self) -> Result<(String, Settings)> {
        let Parts { inner, bos, eos, eos_token, prepended, appended, .. } = &*self.0;
        let json =
            guarded(|| inner.to_string(false)).map_err(|message| Error::Tokenizer { message })?;
        let template = self.1.template.as_deref().map(str::to_owned);
        let (add_bos, add_eos) = (prepended.is_some(), appended.is_some());
        Ok((
            json,
            Settings {
                bos: *bos,
                eos: eos.clone(),
                eos_token: *eos_token,
                add_bos,
                add_eos,
                template,
            },
        ))
    }

    pub(super) fn new(Parsed { inner, pipeline }: Parsed, settings: Settings) -> Result<Self> {
        let added = inner.get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        let Settings { bos, eos, eos_token, add_bos, add_eos, template } = settings;
        let controls = added
            .iter()
            .filter(|(id, token)| token.special || bos == Some(**id) || eos.contains(id));
        let names = Names::new(controls.map(|(_, token)| token.content.as_str()))
            .map_err(|message| Error::Tokenizer { message })?;
        let longest = longest_token(&inner);
        let mut parts = Parts {
            inner,
            pipeline,
            longest,
            special,
            names,
            bos,
            eos,
            eos_token,
            prepended: None,
            appended: None,
            #[cfg(feature = "grammar")]
            vocabulary: std::sync::OnceLock::new(),
        };
        // A text, since what is put before one is what is put behind one where BOS and EOS are the
        // same.
        let both = |text| Ok((parts.encode(text, true)?, parts.encode(text, false)?));
        let (around, plain) = both("a").or_else(|_: Error| both(""))?;
        parts.prepended = bos.filter(|bos| add_bos && around.first() != Some(bos));
        // Where the post-processor puts a token of its own there, two would end a text.
        parts.appended = eos_token
            .filter(|eos| add_eos && around.ends_with(&plain) && around.last() != Some(eos));
        Ok(Self(Arc::new(parts), Chat { template: template.map(Into::into), ..Chat::default() }))
    }

    /// Returns this tokenizer with a bound: it refuses a text that has more bytes than `tokens`
    /// tokens can hold, before any other work. Cloning is cheap.
    ///
    /// A token holds at most as many bytes as the longest of the vocabulary and of the added
    /// tokens. So a text of at most `tokens` tokens passes, with these exceptions: a normalizer
    /// that shortens texts (white space that is stripped or collapsed, characters that are
    /// composed), added tokens that take the white space beside them, and unknown characters that
    /// are fused into one token. Such a text may be refused although its tokens would fit.
    /// [`Tokenizer::chat`] stops the chat template as soon as its output is longer.
    /// [`Model`](crate::model::Model) encodes prompts with its context as the bound.
    ///
    /// ```
    /// use bitnet_wgpu::{Error, model::Tokenizer};
    ///
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// let tokenizer = Tokenizer::from_directory("assets/tales-22m")?.within(512);
    /// assert!(tokenizer.encode("Once upon a time").is_ok());
    /// assert!(matches!(tokenizer.encode(&"a".repeat(1 << 20)), Err(Error::TextTooLong { .. })));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn within(&self, tokens: usize) -> Self {
        Self(self.0.clone(), Chat { within: Some(tokens), ..self.1.clone() })
    }

    /// Number of bytes that a text may have at most.
    pub(super) fn most_bytes(&self) -> Option<usize> {
        Some(self.1.within?.saturating_mul(self.0.longest))
    }

    /// Returns the error for a text of `bytes` bytes, if that is too long.
    pub(super) fn check_length(&self, bytes: usize) -> Result<()> {
        match (self.1.within, self.most_bytes()) {
            (Some(tokens), Some(most)) if bytes > most => {
                Err(Error::TextTooLong { bytes, most, tokens })
            }
            _ => Ok(()),
        }
    }

    /// Returns the tokens of a text, with the special tokens that the tokenizer's post-processor
    /// adds, and with BOS first if the configuration asks for it. Names of special tokens within
    /// the text become those tokens, as completion APIs have it; [`Tokenizer::chat`] is for what
    /// people write.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]; [`Error::TextTooLong`] for a text beyond [`Tokenizer::within`];
    /// [`Error::Invalid`] for one that takes the tokenizer's normalizers or patterns too much work.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.check_length(text.len())?;
        let ids = self.0.encode(text, true)?;
        Ok(self.0.prepended.into_iter().chain(ids).collect())
    }

    /// Returns the tokens of a text that is not to be continued but to become a vector: those of
    /// [`Tokenizer::encode`], and EOS after them where a GGUF file or a tokenizer_config.json has
    /// `add_eos_token`, and the post-processor of a `tokenizer.json` adds no token there.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_for_embedding(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_ended(text, None)
    }

    /// Encodes with EOS at the end, or without what `add_eos_token` puts there, whatever the files
    /// say.
    pub(in crate::model) fn encode_ended(
        &self,
        text: &str,
        add_eos: Option<bool>,
    ) -> Result<Vec<u32>> {
        let mut ids = self.encode(text)?;
        match add_eos {
            None => ids.extend(self.0.appended),
            Some(false) => {}
            Some(true) => {
                let eos = self.0.eos_token.or(self.0.eos.first().copied());
                let eos = eos.ok_or_else(|| Error::Tokenizer {
                    message: "EOS is wanted, but the tokenizer's files name none".into(),
                })?;
                if ids.last() != Some(&eos) {
                    ids.push(eos);
                }
            }
        }
        Ok(ids)
    }

    /// Returns the tokens of a text, without any added special tokens.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.check_length(text.len())?;
        self.0.encode(text, false)
    }

    /// Returns the text of `ids`, leaving out special tokens. Bytes that are not UTF-8 become
    /// U+FFFD.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] for an id that is not a token.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.0.decode(ids, true)
    }

    /// [`Tokenizer::decode`] with special tokens written by their names.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] for an id that is not a token.
    pub fn decode_with_special(&self, ids: &[u32]) -> Result<String> {
        self.0.decode(ids, false)
    }

    /// Returns the token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.0.bos
    }

    /// Returns the tokens that end a text or a turn, collected from all files that name some.
    pub fn eos(&self) -> &[u32] {
        &self.0.eos
    }

    /// Returns whether this is a special token, which [`Tokenizer::decode`] leaves out.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.contains(&id)
    }

    /// Returns the id of a token by its name.
    pub fn token(&self, name: &str) -> Option<u32> {
        self.0.inner.token_to_id(name)
    }

    /// Returns the number of tokens. A model's embedding may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.0.inner.get_vocab_size(true)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.vocab_size())
    }
}

impl Parts {
    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        self.encode_marked(text, special, None)
    }

    /// Encodes a text in which a mark keeps names of added tokens from being recognized.
    pub fn encode_marked(&self, text: &str, special: bool, mark: Option<char>) -> Result<Vec<u32>> {
        match catch_unwind(AssertUnwindSafe(|| {
            self.pipeline.encode(&self.inner, text, special, mark)
        })) {
            Ok(ids) => ids.map_err(|error| match error.downcast::<Excess>() {
                Ok(excess) => excess.of(text.len()),
                Err(error) => Error::Tokenizer { message: error.to_string() },
            }),
            Err(_) => Err(Error::Tokenizer { message: CONTRADICTION.into() }),
        }
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        // The `tokenizers` crate silently drops unknown ids.
        if let Some(id) = ids.iter().find(|id| self.inner.id_to_token(**id).is_none()) {
            return Err(Error::Tokenizer { message: format!("there is no token {id}") });
        }
        guarded(|| self.inner.decode(ids, skip_special))
            .map_err(|message| Error::Tokenizer { message })
    }
}

/// Returns the number of bytes of text that the longest token stands for, at most.
fn longest_token(tokenizer: &tokenizers::Tokenizer) -> usize {
    // In a byte-level vocabulary each character stands for a byte, and takes one or two in UTF-8.
    // In others a text may contain a token as it is written.
    let byte_level = is_byte_level(tokenizer);
    let bytes = |token: &str| if byte_level { token.chars().count() } else { token.len() };
    let vocabulary = tokenizer.get_vocab(false).keys().map(|token| bytes(token)).max();
    let added =
        tokenizer.get_added_tokens_decoder().values().map(|token| token.content.len()).max();
    vocabulary.max(added).unwrap_or(0).max(1)
}

/// Returns whether the bytes of all texts are written as the characters of GPT-2's alphabet before
/// they are looked up in the vocabulary.
pub(in crate::model) fn is_byte_level(tokenizer: &tokenizers::Tokenizer) -> bool {
    let step = |step: &PreTokenizerWrapper| matches!(step, PreTokenizerWrapper::ByteLevel(_));
    match tokenizer.get_pre_tokenizer() {
        Some(PreTokenizerWrapper::Sequence(steps)) => steps.as_ref().iter().any(step),
        Some(other) => step(other),
        None => false,
    }
}

/// The tokenizer of a tokenizer.json, and its steps within bounds.
pub(super) struct Parsed {
    pub inner: tokenizers::Tokenizer,
    pub pipeline: Pipeline,
}

/// Makes the tokenizer of a tokenizer.json.
pub(super) fn parse(mut json: Value) -> Result<Parsed, String> {
    check(&mut json)?;
    let inner = guarded(|| Ok(serde_json::from_value(json)?))?;
    check_stripping(&inner)?;
    Ok(Parsed { pipeline: Pipeline::new(&inner)?, inner })
}

/// Refuses added tokens that are white space and take the white space beside them: each of them in
/// a run would take the rest of it.
fn check_stripping(tokenizer: &tokenizers::Tokenizer) -> Result<(), String> {
    for token in
        tokenizer.get_added_tokens_decoder().values().filter(|token| token.lstrip || token.rstrip)
    {
        let mut content = NormalizedString::from(token.content.as_str());
        if let (true, Some(normalizer)) = (token.normalized, tokenizer.get_normalizer()) {
            guarded(|| normalizer.normalize(&mut content))?;
        }
        if content.get().trim().is_empty() {
            return Err(format!(
                "the added token `{}` is white space; such a token cannot have lstrip or rstrip",
                token.content
            ));
        }
    }
    Ok(())
}

/// What a panic of the `tokenizers` crate means.
const CONTRADICTION: &str = "the tokenizer contradicts itself";

/// Turns panics of the `tokenizers` crate into errors, as a last resort: what is known to make it
/// panic is refused by [`check`].
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err(CONTRADICTION.into()),
    }
}

impl Settings {
    fn read(directory: &Path, tokenizer: &tokenizers::Tokenizer) -> Result<Self> {
        let file = |name| read_json(&directory.join(name));
        let (config, special) = (file("tokenizer_config.json")?, file("special_tokens_map.json")?);
        let (generation, model) = (file("generation_config.json")?, file("config.json")?);
        let named = |key: &str| {
            [&config[key], &special[key]]
                .into_iter()
                .find_map(|token| tokenizer.token_to_id(token_name(token)?))
        };
        let ids = |key: &str| {
            [&generation[key], &model[key]].into_iter().flat_map(token_ids).collect::<Vec<_>>()
        };
        let (mut eos, eos_token) = (ids("eos_token_id"), named("eos_token"));
        eos.extend(eos_token);
        let mut seen = HashSet::new();
        eos.retain(|id| seen.insert(*id));
        let bos = named("bos_token").or_else(|| ids("bos_token_id").first().copied());
        let [add_bos, add_eos] =
            ["add_bos_token", "add_eos_token"].map(|key| config[key].as_bool() == Some(true));
        if add_eos && eos_token.is_none() {
            return Err(Error::Tokenizer {
                message: "EOS is wanted by add_eos_token, but eos_token names no token".into(),
            });
        }
        let file = read_if_there(&directory.join("chat_template.jinja"))?;
        let template =
            file.map(|bytes| String::from_utf8_lossy(json::without_mark(&bytes)).into_owned());
        let template =
            template.or_else(|| default_template(&config["chat_template"]).map(str::to_owned));
        Ok(Self { bos, eos, eos_token, add_bos, add_eos, template })
    }
}

/// The name of a token in a configuration: a string, or an object with the string as `content`.
fn token_name(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// Token ids from a number or a list of numbers.
fn token_ids(ids: &Value) -> Vec<u32> {
    let ids = ids.as_array().map_or(std::slice::from_ref(ids), Vec::as_slice);
    ids.iter().filter_map(|id| id.as_u64()?.try_into().ok()).collect()
}

/// The template; of several, the one named `default`.
fn default_template(templates: &Value) -> Option<&str> {
    let default = || {
        templates.as_array()?.iter().find(|template| template["name"] == "default")?["template"]
            .as_str()
    };
    templates.as_str().or_else(default)
}

/// A JSON file; null if it does not exist.
fn read_json(path: &Path) -> Result<Value> {
    let Some(bytes) = read_if_there(path)? else { return Ok(Value::Null) };
    json::parse(&bytes).map_err(|problem| problem.at(path))
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match read(path, files::MOST_JSON) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}
