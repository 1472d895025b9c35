//! Several prompts, continued side by side, in one step for all of them.

use super::continuous::BatchOptions;
use crate::{
    error::{Error, Result},
    model::{
        generate::{
            generation::{Generated, Generation},
            options::GenerateOptions,
        },
        load::model::Model,
    },
};

impl Model {
    /// Continues several prompts side by side, in one step for all of them, to their ends. The n-th
    /// draws its random numbers from seed + n. To take tokens as they come, give the prompts to a
    /// [`Batch`](crate::model::Batch).
    ///
    /// ```
    /// use bitnet_wgpu::model::{GenerateOptions, Model};
    ///
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// let model = Model::builder("assets/tales-22m").cpu().build()?;
    /// let options = GenerateOptions::default().max_tokens(5);
    /// let tales = pollster::block_on(model.generate_batch(&["Once upon a time", "The bear"], &options))?;
    /// assert_eq!((tales.len(), tales[1].ids.len()), (2, 5));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Model::generate`]; [`Error::BatchEnded`] for what a device reports.
    pub async fn generate_batch(
        &self,
        prompts: &[impl AsRef<str> + Sync],
        options: &GenerateOptions,
    ) -> Result<Vec<Generated>> {
        let encode = |prompt: &_| self.encode_prompt(AsRef::<str>::as_ref(prompt));
        let prompts = prompts.iter().map(encode).collect::<Result<Vec<_>>>()?;
        self.generate_batch_ids(&prompts, options).await
    }

    /// [`Model::generate_batch`] for prompts of token ids, which are taken as they are.
    ///
    /// # Errors
    /// As [`Model::generate_ids`]; [`Error::BatchEnded`] for what a device reports.
    pub async fn generate_batch_ids(
        &self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
    ) -> Result<Vec<Generated>> {
        let mut all = Vec::with_capacity(prompts.len());
        for stream in self.streams(prompts, options)? {
            all.push(stream.all().await?);
        }
        Ok(all)
    }

    /// Starts a batch of these prompts.
    fn streams(&self, prompts: &[Vec<u32>], options: &GenerateOptions) -> Result<Vec<Generation>> {
        options.check(self.config().vocab)?;
        if options.resumed > 0 && prompts.len() > 1 {
            let what = "`resumed` is not supported for several sequences: resume them one by one, in a Batch".into();
            return Err(Error::Invalid { op: "generate_batch", what });
        }
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let room = options.room(prompts.len().max(1), longest, self.config().context)?;
        let batch =
            self.batch(BatchOptions::new(room.sequences, room.capacity).kv_type(room.kv_type))?;
        let stream = |(n, prompt): (usize, &Vec<u32>)| batch.continue_as(n, prompt, options);
        prompts.iter().enumerate().map(stream).collect()
    }
}
