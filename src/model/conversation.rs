//! A conversation that keeps its session from turn to turn.

use super::{
    engine::interface::SessionOptions,
    generate::{generation::Generation, options::GenerateOptions, reasoning::ReasoningParser},
    load::model::Model,
    session::sequences::{Session, SessionError},
    tokenizer::{chat::Message, text::Tokenizer},
    tool_calls::{
        event::ToolCallEvent,
        parser::{ParsedAnswer, ToolCallParser},
    },
};
use crate::error::Result;

/// A conversation in a [`Session`]: each turn computes only what is new.
/// [`Model::conversation`] makes it.
///
/// An error of [`Conversation::ask`] loses nothing: the conversation can go on with a shorter
/// question, with fewer [`messages`](Self::messages), or in a session that
/// [`grows`](Session::grow).
///
/// ```no_run
/// # async fn talk() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::model::{GenerateOptions, Model, SessionOptions};
///
/// let model = Model::open("path/to/a/chat/model")?;
/// let mut chat = model.conversation(model.session(SessionOptions::new(1, 2048))?)?;
/// for question in ["Who are you?", "And who am I?"] {
///     let answer = chat.ask(question, &GenerateOptions::default()).await?;
///     while let Some(token) = answer.next_token().await {
///         print!("{}", token?.text);
///     }
/// }
/// chat.session().await?.save("talk.safetensors").await?;
/// # Ok(())
/// # }
/// ```
pub struct Conversation {
    model: Model,
    tokenizer: Tokenizer,
    messages: Vec<Message>,
    /// None during an answer.
    session: Option<Session>,
    answer: Option<Answer>,
    options: SessionOptions,
}

/// An answer, and what separates its parts.
struct Answer {
    generation: Generation,
    reasoning: ReasoningParser,
    /// None without tools.
    calls: Option<ToolCallParser>,
    /// Whether its question is forgotten with it.
    asked: bool,
}

impl Model {
    /// Begins a conversation in a session, which may have tokens of an earlier one.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) if the model has none.
    pub fn conversation(&self, session: Session) -> Result<Conversation> {
        Ok(Conversation {
            model: self.clone(),
            tokenizer: self.tokenizer()?.clone(),
            messages: Vec::new(),
            options: session.options(),
            session: Some(session),
            answer: None,
        })
    }
}

impl Conversation {
    /// Sets a tokenizer with another chat template, with [`Tokenizer::with_thinking`], or with
    /// [`Tokenizer::with_tools`]. The default is the model's.
    #[must_use]
    pub fn with_tokenizer(self, tokenizer: Tokenizer) -> Self {
        Self { tokenizer, ..self }
    }

    /// Asks the model, as its user, and returns the answer: a stream, or an iterator that blocks. What
    /// is read of the answer becomes the assistant's message. An earlier answer ends, and its
    /// question is forgotten if no token of the answer was read.
    ///
    /// # Errors
    /// As [`Model::chat`]; [`Error::Context`](crate::Error::Context) or
    /// [`Error::TextTooLong`](crate::Error::TextTooLong) if the conversation does not fit into the
    /// session. The question is then not in the conversation.
    pub async fn ask(
        &mut self,
        question: impl Into<String>,
        options: &GenerateOptions,
    ) -> Result<&mut Generation> {
        self.session().await?;
        self.messages.push(Message::new("user", question));
        match self.begin(options, true) {
            Ok(begun) => Ok(&mut self.answer.insert(begun).generation),
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// Returns the answer to the messages as they are: after results of tools were added, for
    /// example. Tools that an answer calls are in the last message, once the answer has ended.
    ///
    /// # Errors
    /// As [`Conversation::ask`].
    pub async fn reply(&mut self, options: &GenerateOptions) -> Result<&mut Generation> {
        self.session().await?;
        let begun = self.begin(options, false)?;
        Ok(&mut self.answer.insert(begun).generation)
    }

    /// Returns the messages, for reading or changing: a system message, for example, or fewer of
    /// them. That of an answer is added when it ends, by the next question or
    /// [`Conversation::session`].
    pub fn messages(&mut self) -> &mut Vec<Message> {
        &mut self.messages
    }

    /// Ends an answer, and returns the session, to save, fork or grow it.
    ///
    /// # Errors
    /// As [`Model::session`]: a new session takes the place of one that was lost in a panic.
    pub async fn session(&mut self) -> Result<&mut Session> {
        let session = match self.answer.take() {
            None => self.session.take(),
            Some(mut answer) => {
                self.add_message(&mut answer);
                answer.generation.into_session().await.ok()
            }
        };
        let session = session.map_or_else(|| self.model.session(self.options), Ok)?;
        self.options = session.options();
        Ok(self.session.insert(session))
    }

    /// Begins the answer to the messages.
    fn begin(&mut self, options: &GenerateOptions, asked: bool) -> Result<Answer> {
        let session = self.session.take().map_or_else(|| self.model.session(self.options), Ok)?;
        let tokenizer = self.tokenizer.within(session.options().capacity);
        let prompt = || {
            let ids = tokenizer.chat(&self.messages)?;
            let calls = !tokenizer.tools().is_empty();
            let calls = calls.then(|| ToolCallParser::new(&tokenizer)).transpose()?;
            Ok((ReasoningParser::after(&tokenizer, &ids)?, calls, ids))
        };
        let begun = match prompt() {
            Ok((reasoning, calls, ids)) => self
                .model
                .generate_ids_in(session, &ids, options)
                .map(|generation| Answer { generation, reasoning, calls, asked }),
            Err(error) => Err(SessionError { error, session: session.into() }),
        };
        begun.map_err(|SessionError { error, session }| {
            self.session = Some(*session);
            error
        })
    }

    /// Adds what was read of an answer to the messages.
    fn add_message(&mut self, Answer { generation, reasoning, calls, asked }: &mut Answer) {
        if generation.ids().is_empty() && generation.stop().is_none() {
            if *asked {
                self.messages.pop();
            }
            return;
        }
        let mut parts = reasoning.push(generation.text());
        parts += reasoning.finish();
        let events = match calls {
            Some(calls) => [calls.push(&parts.answer), calls.finish()].concat(),
            None => vec![ToolCallEvent::Text(parts.answer)],
        };
        let mut answer = ParsedAnswer::default();
        events.into_iter().for_each(|event| answer.add(event));
        let reasoning = (!parts.reasoning.is_empty()).then_some(parts.reasoning);
        let message = Message::new("assistant", answer.text).reasoning(reasoning);
        self.messages.push(message.tool_calls(answer.calls));
    }
}
