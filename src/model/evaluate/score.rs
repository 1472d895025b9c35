//! Log-probabilities of texts.

use super::groups::{Groups, unfinished};
use crate::{
    cpu::threads::Threads,
    error::Result,
    limits::groups::{MOST_LOGIT_BYTES, MOST_SCORED},
    model::{
        generate::logprobs::{TokenLogprobs, logprob},
        load::model::Model,
        session::sequences::Session,
        threads::workers::yield_now,
    },
};
use rayon::prelude::*;

impl Model {
    /// Returns the negative log-likelihood, in nats, of every token of `ids` but the first, given
    /// those before it. Keys and values are in 32 bits.
    ///
    /// # Errors
    /// As [`Model::logits`].
    pub async fn score(&self, ids: &[u32]) -> Result<Vec<f64>> {
        Ok(self.score_batch(&[ids]).await?.pop().unwrap_or_default())
    }

    /// [`Model::score`] of several texts, in their order. They are computed side by side, as many
    /// as a limited memory has room for; the bits are those of each alone (but with
    /// [`ModelBuilder::f16_attention`](crate::model::ModelBuilder::f16_attention)).
    ///
    /// ```
    /// use bitnet_wgpu::model::Model;
    ///
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// let model = Model::builder("assets/tales-22m").cpu().build()?;
    /// let texts = ["The bear ate honey.", "It rained all day."].map(|text| model.encode_prompt(text));
    /// let texts = texts.into_iter().collect::<bitnet_wgpu::Result<Vec<_>>>()?;
    /// let scores = pollster::block_on(model.score_batch(&texts))?;
    /// assert_eq!(scores[1], pollster::block_on(model.score(&texts[1]))?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Model::logits`], for any of them.
    pub async fn score_batch(&self, texts: &[impl AsRef<[u32]>]) -> Result<Vec<Vec<f64>>> {
        // A difference, so that a certain token's score is 0 and not -0.
        self.score_by(texts, |logits, id| 0.0 - logprob(logits, id)).await
    }

    /// Returns the log-probability of every token of `ids` but the first, given those before it,
    /// and those of the `top` most likely tokens in its place. The log-probabilities of the text's
    /// own tokens are those of [`Model::score`], with the other sign.
    ///
    /// # Errors
    /// As [`Model::logits`].
    pub async fn logprobs(&self, ids: &[u32], top: usize) -> Result<Vec<TokenLogprobs>> {
        let score = move |logits: &[f32], id| TokenLogprobs::new(logits, id, top);
        Ok(self.score_by(&[ids], score).await?.pop().unwrap_or_default())
    }

    /// What `score` gives for every token but the first of each text, by the logits before it.
    async fn score_by<T: Clone + Send + 'static>(
        &self,
        texts: &[impl AsRef<[u32]>],
        score: impl Fn(&[f32], u32) -> T + Send + Sync + 'static,
    ) -> Result<Vec<Vec<T>>> {
        let texts: Vec<Vec<u32>> = texts.iter().map(|ids| ids.as_ref().to_vec()).collect();
        texts.iter().try_for_each(|ids| self.check_prompt(ids, self.config().context))?;
        let (sessions, vocab, threads) = (self.sessions(), self.config().vocab, self.threads());
        let work = async move {
            let mut scores = vec![Vec::new(); texts.len()];
            let mut groups = Groups::new(texts.iter().map(Vec::len).collect(), MOST_SCORED);
            while let Some((mut session, group)) = groups.next(&sessions)? {
                let tokens: Vec<&[u32]> = group.iter().map(|&n| &texts[n][..]).collect();
                let found = side_by_side(&mut session, &tokens, vocab, &threads, &score).await?;
                for (found, n) in found.into_iter().zip(group) {
                    scores[n] = found;
                }
            }
            Ok(scores)
        };
        self.workers().run(work).await
    }
}

/// The scores of each of some texts, the longest first, in a session with a sequence for each.
async fn side_by_side<T: Clone + Send>(
    session: &mut Session,
    texts: &[&[u32]],
    vocab: usize,
    threads: &Threads,
    score: &(impl Fn(&[f32], u32) -> T + Sync),
) -> Result<Vec<Vec<T>>> {
    let rows = session.batch().min(MOST_LOGIT_BYTES / (4 * vocab)).max(1);
    let (mut scores, mut done) = (vec![Vec::new(); texts.len()], 0);
    while let Some((living, shortest)) = unfinished(texts, done) {
        let run = shortest.min(rows / living.len()).max(1);
        // Where not even a token of each is computed together, some go first.
        for living in living.chunks(rows) {
            let tokens: Vec<u32> =
                living.iter().flat_map(|&n| &texts[n][done..done + run]).copied().collect();
            let logits = session.extend(living, &tokens, run).await?;
            for (logits, &n) in logits.chunks(run * vocab).zip(living) {
                let targets = texts[n][done + 1..].par_iter();
                let found =
                    logits.par_chunks(vocab).zip(targets).map(|(row, &target)| score(row, target));
                threads.run(|| scores[n].par_extend(found));
            }
            yield_now().await;
        }
        done += run;
    }
    Ok(scores)
}
