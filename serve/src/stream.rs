//! Answers as they come: server-sent events, or the whole at once.

use crate::{
    choices::{Choices, GeneratedToken, Step},
    error::{ApiError, Result},
    parts::WholeParts,
};
use axum::response::{
    IntoResponse as _, Response, Sse,
    sse::{Event, KeepAlive},
};
use bitnet_wgpu::model::Stop;
use futures_util::stream::unfold;
use std::{collections::VecDeque, convert::Infallible};

/// The events of an API's streams.
pub trait Events: Send + 'static {
    /// Returns the events before anything is computed.
    fn begin(&mut self, choices: &Choices) -> Vec<Event>;
    /// Returns the events of a step of a choice.
    fn step(&mut self, index: usize, step: Step) -> Vec<Event>;
    /// Returns the events after the last choice has ended.
    fn end(&mut self, choices: &Choices) -> Vec<Event>;
    /// Returns the event of an error, which is the last.
    fn failed(&self, error: &ApiError) -> Event;
}

/// A choice that has ended.
#[derive(Default)]
pub struct Whole {
    pub parts: WholeParts,
    pub tokens: Vec<GeneratedToken>,
    pub stop: Option<Stop>,
}

/// Waits until all choices have ended.
pub async fn whole(choices: &mut Choices) -> Result<Vec<Whole>> {
    let mut all: Vec<Whole> = (0..choices.len()).map(|_| Whole::default()).collect();
    while let Some(next) = choices.next().await {
        match next? {
            (choice, Step::Token(token, pieces)) => {
                all[choice].parts.add(pieces);
                all[choice].tokens.push(token);
            }
            (choice, Step::End(pieces, stop)) => {
                all[choice].parts.add(pieces);
                all[choice].stop = stop;
            }
        }
    }
    Ok(all)
}

/// Answers with events as choices go on. Comments keep the connection open while there are none.
pub fn events(mut events: impl Events, choices: Choices) -> Response {
    let waiting = VecDeque::from(events.begin(&choices));
    let state = Streaming { events, choices, waiting, ended: false };
    let stream = unfold(state, |mut state| async move {
        state.next().await.map(|event| (Ok::<_, Infallible>(event), state))
    });
    Sse::new(stream).keep_alive(KeepAlive::default()).into_response()
}

struct Streaming<E> {
    events: E,
    choices: Choices,
    waiting: VecDeque<Event>,
    ended: bool,
}

impl<E: Events> Streaming<E> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            match self.choices.next().await {
                Some(Ok((index, step))) => self.waiting.extend(self.events.step(index, step)),
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(self.events.failed(&error));
                }
                None => {
                    self.ended = true;
                    self.waiting.extend(self.events.end(&self.choices));
                }
            }
        }
    }
}
