//! Embeddings: vectors of texts, which are near for texts of similar meaning.

use super::groups::{Groups, unfinished};
use crate::{
    error::{Error, Result},
    formats::{FormatError, Pooling},
    limits::groups::MOST_EMBEDDED,
    model::{load::model::Model, session::sequences::Session, threads::workers::yield_now},
};
use std::path::Path;

/// How embeddings are computed. What is not set is as the model's files say:
/// [`EmbeddingDefaults`](crate::formats::EmbeddingDefaults).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmbedOptions {
    pooling: Option<Pooling>,
    normalize: Option<bool>,
    add_eos: Option<bool>,
}

impl EmbedOptions {
    /// Sets how the states of a text's tokens become one vector. If the files do not say it either,
    /// the state of the last token is taken.
    #[must_use]
    pub fn pooling(self, pooling: impl Into<Option<Pooling>>) -> Self {
        Self { pooling: pooling.into(), ..self }
    }

    /// Divides vectors by their length, so that the product of two is the cosine of their angle. If
    /// the files do not say it either, they are divided.
    #[must_use]
    pub fn normalize(self, normalize: impl Into<Option<bool>>) -> Self {
        Self { normalize: normalize.into(), ..self }
    }

    /// Ends texts with the tokenizer's EOS if they do not end with it, or without the one that files
    /// ask for by `add_eos_token`. What the post-processor of a `tokenizer.json` adds stays. It
    /// applies to [`Model::embed`] only, since token ids are taken as they are.
    #[must_use]
    pub fn add_eos(self, add_eos: impl Into<Option<bool>>) -> Self {
        Self { add_eos: add_eos.into(), ..self }
    }
}

/// The embedding of a text.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Embedding {
    /// `[hidden]`
    pub vector: Vec<f32>,
    /// Tokens of the text, those that the tokenizer adds among them.
    pub tokens: usize,
}

impl Embedding {
    /// Returns the cosine of the angle to another vector: 1 for the same direction. 0 where one of
    /// them is 0, or has another number of elements.
    pub fn cosine(&self, other: &Self) -> f32 {
        let dot = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
        };
        let lengths = (dot(&self.vector, &self.vector) * dot(&other.vector, &other.vector)).sqrt();
        if lengths == 0.0 || self.vector.len() != other.vector.len() {
            return 0.0;
        }
        (dot(&self.vector, &other.vector) / lengths) as f32
    }
}

impl Model {
    /// Embeddings `[hidden]` of texts, in their order: the states of their tokens after the final
    /// norm, pooled, and divided by their length, as the model's files say or the options. A text
    /// has the tokens of
    /// [`Tokenizer::encode_for_embedding`](crate::model::Tokenizer::encode_for_embedding), unless
    /// [`EmbedOptions::add_eos`](EmbedOptions::add_eos()) says another end; instructions that a model wants before it are
    /// part of it. Texts are computed side by side; on one device a text has bit-identical embeddings whatever
    /// else is there (but with
    /// [`ModelBuilder::f16_attention`](crate::model::ModelBuilder::f16_attention)). Keys and values are in
    /// 32 bits.
    ///
    /// ```
    /// use bitnet_wgpu::model::{EmbedOptions, Model};
    ///
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// let model = Model::builder("assets/tales-22m").cpu().build()?;
    /// let texts = ["The bear ate honey.", "The bear ate some honey.", "It rained on the castle."];
    /// let found = pollster::block_on(model.embed(&texts, &EmbedOptions::default()))?;
    /// assert_eq!(found[0].vector.len(), model.config().hidden);
    /// assert!(found[0].cosine(&found[1]) > found[0].cosine(&found[2]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty text; [`Error::Overflow`] for states that are not finite;
    /// [`Error::Context`] for a text of more tokens than the model's context, or than its files
    /// allow ([`EmbeddingDefaults::max_tokens`](crate::formats::EmbeddingDefaults::max_tokens)):
    /// none is cut; [`Error::TextTooLong`] for one whose bytes alone say so; [`Error::Unsupported`]
    /// where the files ask for what is not supported
    /// ([`EmbeddingDefaults::unsupported`](crate::formats::EmbeddingDefaults::unsupported)), and
    /// the options name no pooling; [`Error::Tokenizer`] if the model has none, or if it has no EOS
    /// where the options want one; what the device reports.
    pub async fn embed(
        &self,
        texts: &[impl AsRef<str> + Sync],
        options: &EmbedOptions,
    ) -> Result<Vec<Embedding>> {
        let tokenizer = self.tokenizer()?.within(self.longest_text());
        let encode = |(n, text): (usize, &_)| match AsRef::<str>::as_ref(text) {
            "" => Err(invalid(format!("text {n} is empty"))),
            text => tokenizer.encode_ended(text, options.add_eos),
        };
        let ids = texts.iter().enumerate().map(encode).collect::<Result<Vec<_>>>()?;
        self.embed_ids(&ids, options).await
    }

    /// Number of tokens that a text may have to become a vector.
    fn longest_text(&self) -> usize {
        self.config().embedding.max_tokens.unwrap_or(usize::MAX).min(self.config().context)
    }

    /// [`Model::embed`] of texts of token ids, which are taken as they are.
    ///
    /// # Errors
    /// As [`Model::embed`]; [`Error::Invalid`] for a text without tokens, or tokens that are not in
    /// the vocabulary.
    pub async fn embed_ids(
        &self,
        texts: &[Vec<u32>],
        options: &EmbedOptions,
    ) -> Result<Vec<Embedding>> {
        let defaults = &self.config().embedding;
        let pooling = match (options.pooling, &defaults.unsupported) {
            (None, Some(what)) => {
                let message = format!(
                    "{what}, which is not supported; with EmbedOptions::pooling it is left out"
                );
                return Err(FormatError::Unsupported(message)
                    .at(self.path().unwrap_or(Path::new("the model"))));
            }
            (pooling, _) => pooling.or(defaults.pooling).unwrap_or(Pooling::Last),
        };
        if let Some(n) = texts.iter().position(Vec::is_empty) {
            return Err(invalid(format!("text {n} has no tokens")));
        }
        let longest = self.longest_text();
        texts.iter().try_for_each(|ids| self.check_prompt(ids, longest))?;
        let normalize = options.normalize.or(defaults.normalize).unwrap_or(true);
        let (sessions, texts, hidden) = (self.sessions(), texts.to_vec(), self.config().hidden);
        let work = async move {
            let mut vectors = vec![Vec::new(); texts.len()];
            let mut groups = Groups::new(
                texts.iter().map(|ids| seen(ids, pooling).len()).collect(),
                MOST_EMBEDDED,
            );
            while let Some((mut session, group)) = groups.next(&sessions)? {
                let tokens: Vec<&[u32]> = group.iter().map(|&n| seen(&texts[n], pooling)).collect();
                for (pooled, n) in
                    pool(&mut session, &tokens, pooling, hidden).await?.iter().zip(group)
                {
                    vectors[n] = finish(pooled, normalize).ok_or_else(|| Error::Overflow {
                        op: "embed",
                        what: format!("the states of text {n}"),
                    })?;
                }
            }
            Ok(vectors
                .into_iter()
                .zip(&texts)
                .map(|(vector, ids)| Embedding { vector, tokens: ids.len() })
                .collect())
        };
        self.workers().run(work).await
    }
}

fn invalid(what: String) -> Error {
    Error::Invalid { op: "embed", what }
}

/// The tokens that a pooling depends on: attention is causal, so that the first state is of the
/// first token alone.
fn seen(ids: &[u32], pooling: Pooling) -> &[u32] {
    if pooling == Pooling::Cls { &ids[..1] } else { ids }
}

/// The states of each of some texts, pooled, `[hidden]`. Sums are in `f64`, in the order of the
/// tokens, so that nothing depends on how they were cut.
async fn pool(
    session: &mut Session,
    texts: &[&[u32]],
    pooling: Pooling,
    hidden: usize,
) -> Result<Vec<Vec<f64>>> {
    let mut pooled = vec![vec![0f64; hidden]; texts.len()];
    let mut done = 0;
    while let Some((living, shortest)) = unfinished(texts, done) {
        let run = shortest.min(session.batch() / living.len()).max(1);
        let rows = match pooling {
            Pooling::Mean => run,
            Pooling::Cls | Pooling::Last => usize::from(run == shortest),
        };
        let tokens: Vec<u32> =
            living.iter().flat_map(|&n| &texts[n][done..done + run]).copied().collect();
        let states = session.states(&living, &tokens, rows).await?;
        done += run;
        for (states, &n) in states.chunks(rows.max(1) * hidden).zip(&living) {
            // The last of a text that goes on is not its last.
            if pooling == Pooling::Mean || texts[n].len() == done {
                states.chunks(hidden).for_each(|state| {
                    pooled[n].iter_mut().zip(state).for_each(|(sum, &x)| *sum += f64::from(x))
                });
            }
        }
        yield_now().await;
    }
    if pooling == Pooling::Mean {
        pooled
            .iter_mut()
            .zip(texts)
            .for_each(|(sum, ids)| sum.iter_mut().for_each(|sum| *sum /= ids.len() as f64));
    }
    Ok(pooled)
}

/// The vector, divided by its length where that is wanted and it is not 0; none where it is not
/// finite.
fn finish(pooled: &[f64], normalize: bool) -> Option<Vec<f32>> {
    let length = pooled.iter().map(|x| x * x).sum::<f64>().sqrt();
    let by = if normalize && length > 0.0 { length } else { 1.0 };
    length.is_finite().then(|| pooled.iter().map(|x| (x / by) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_finished() {
        assert_eq!(finish(&[3.0, 4.0], true), Some(vec![0.6, 0.8]));
        assert_eq!(finish(&[3.0, 4.0], false), Some(vec![3.0, 4.0]));
        assert_eq!(finish(&[0.0, 0.0], true), Some(vec![0.0, 0.0]));
        assert_eq!(finish(&[f64::NAN, 1.0], true), None);
        let one = |vector: &[f32]| Embedding { vector: vector.to_vec(), tokens: 1 };
        assert_eq!(one(&[1.0, 0.0]).cosine(&one(&[2.0, 0.0])), 1.0);
        assert_eq!(one(&[1.0, 0.0]).cosine(&one(&[0.0, 0.0])), 0.0);
    }
}
