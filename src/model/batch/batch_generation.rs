//! Several prompts, continued side by side, in one step for all of them: a batch that ends with
//! them.

use super::continuous::{BatchOptions, Generated, TokenStream};
use crate::{
    error::{Error, Result},
    model::{
        generate::{options::GenerateOptions, sequence::Token, stop::Stop},
        load::model::Model,
        threads::background::Blocking,
    },
};
use futures_core::Stream;
use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

/// A token of one of the sequences of a [`BatchGeneration`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BatchToken {
    /// Which prompt it continues.
    pub sequence: usize,
    /// The token.
    pub token: Token,
    /// Why the sequence ended, if this is its last token.
    pub stop: Option<Stop>,
}

/// The continuations of several prompts: a [`Stream`] of tokens, or by a `for` loop (which blocks)
/// an iterator. It computes as a [`Batch`](crate::model::Batch) does, and ends when it is dropped.
///
/// ```no_run
/// # async fn stories(model: bitnet_wgpu::model::Model) -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::model::GenerateOptions;
///
/// let mut stories = model.generate_batch(&["Once upon a time", "The bear"], &GenerateOptions::default())?;
/// while let Some(next) = stories.next_token().await {
///     let next = next?;
///     println!("{}: {:?} {:?}", next.sequence, next.token.text, next.stop);
/// }
/// # Ok(())
/// # }
/// ```
pub struct BatchGeneration {
    streams: Vec<TokenStream>,
    /// The sequence whose turn is next.
    turn: usize,
}

impl Model {
    /// Continues several texts side by side, in one step for all of them. The n-th draws its random
    /// numbers from seed + n.
    ///
    /// # Errors
    /// As [`Model::generate`].
    pub fn generate_batch(
        &self,
        prompts: &[impl AsRef<str>],
        options: &GenerateOptions,
    ) -> Result<BatchGeneration> {
        let prompts = prompts
            .iter()
            .map(|prompt| self.encode_prompt(prompt.as_ref()))
            .collect::<Result<Vec<_>>>()?;
        self.generate_batch_ids(&prompts, options)
    }

    /// [`Model::generate_batch`] for prompts of token ids, which are taken as they are.
    ///
    /// # Errors
    /// As [`Model::generate_ids`].
    pub fn generate_batch_ids(
        &self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
    ) -> Result<BatchGeneration> {
        options.check(self.config().vocab)?;
        if options.resumed > 0 && prompts.len() > 1 {
            let what = "texts that broke off have each its own number of tokens before: resume them one by one, in a Batch".into();
            return Err(Error::Invalid { op: "generate_batch", what });
        }
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let room = options.room(prompts.len().max(1), longest, self.config().context)?;
        let batch =
            self.batch(BatchOptions::new(room.sequences, room.capacity).cache(room.cache))?;
        let stream = |(n, prompt): (usize, &Vec<u32>)| batch.continue_as(n, prompt, options);
        let streams = prompts.iter().enumerate().map(stream).collect::<Result<_>>()?;
        Ok(BatchGeneration { streams, turn: 0 })
    }
}

impl BatchGeneration {
    /// The next token of any sequence, as a future for any executor; none after the last. Tokens of
    /// one sequence come in their order.
    pub async fn next_token(&mut self) -> Option<Result<BatchToken>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// All that is left, by sequence.
    ///
    /// # Errors
    /// As [`TokenStream::all`].
    pub async fn all(mut self) -> Result<Vec<Generated>> {
        let mut all = vec![Generated::empty(); self.streams.len()];
        while let Some(next) = self.next_token().await {
            let BatchToken { sequence, token, stop } = next?;
            all[sequence].push(&token, stop);
        }
        // Those that had ended before have no token.
        for (generated, stream) in all.iter_mut().zip(&self.streams) {
            generated.stop = stream.stop().unwrap_or(generated.stop);
        }
        Ok(all)
    }
}

impl Stream for BatchGeneration {
    type Item = Result<BatchToken>;

    /// An error of one ends all.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (count, mut pending) = (self.streams.len(), false);
        for sequence in (self.turn..count).chain(0..self.turn) {
            let stream = &mut self.streams[sequence];
            match Pin::new(&mut *stream).poll_next(cx) {
                Poll::Ready(Some(Ok(token))) => {
                    let stop = stream.stop();
                    self.turn = (sequence + 1) % count;
                    return Poll::Ready(Some(Ok(BatchToken { sequence, token, stop })));
                }
                Poll::Ready(Some(Err(error))) => {
                    self.streams.clear();
                    self.turn = 0;
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(None) => {}
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(None) }
    }
}

impl IntoIterator for BatchGeneration {
    type Item = Result<BatchToken>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Blocking<Self> {
        Blocking(self)
    }
}
