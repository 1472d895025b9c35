//! The model on a GPU: its weights and the recording of its operations, and sessions that submit
//! them.

mod experts;
mod graph;
mod kept;
mod layer;
mod linear;
mod load;
mod memory;
mod offload;
mod planning;
mod recurrent;
mod session;
mod split;
mod step;

pub(in crate::model) use graph::GpuModel;
pub(in crate::model) use split::SplitModel;

#[cfg(test)]
mod tests {
    use crate::{
        error::ErrorKind,
        gpu::setup::noop,
        model::{GenerateOptions, Model, Sampling, SessionOptions},
    };
    use pollster::block_on;

    /// Kernels do nothing here, so no number means anything, and a token may be what memory had
    /// before, which is refused: whoever asks has an answer all the same.
    #[test]
    fn a_model_on_the_noop_device_returns() {
        let context = noop::context();
        let model = Model::builder("assets/tales-22m").device(&context).build().unwrap();
        let (vocab, prompt) =
            (model.config().vocab, model.encode_prompt("Once upon a time").unwrap());
        assert_eq!(block_on(model.logits(&prompt)).unwrap(), vec![0.0; vocab * prompt.len()]);
        let sampled = Sampling::GREEDY.temperature(0.8);
        for sampling in [
            Sampling::GREEDY,
            sampled,
            sampled.top_k(9).top_p(0.9),
            sampled.repetition_penalty(1.1),
        ] {
            let options =
                GenerateOptions::default().max_tokens(5).ignore_eos(true).sampling(sampling);
            let prompts = [prompt.clone(), prompt[..2].to_vec()];
            let alone = model.generate_ids(&prompt, &options).unwrap().into_iter();
            let alone: crate::Result<Vec<_>> = alone.collect();
            let batch = block_on(model.generate_batch_ids(&prompts, &options));
            let lengths = batch.map(|all| all.iter().map(|one| one.ids.len()).sum());
            for (length, expected) in [(alone.map(|tokens| tokens.len()), 5), (lengths, 10)] {
                match length {
                    Ok(length) => assert_eq!(length, expected),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
                }
            }
        }
        let mut session = model.session(SessionOptions::new(1, 64)).unwrap();
        block_on(session.prefill(0, &prompt)).unwrap();
        context.device().destroy();
        assert_eq!(
            block_on(session.prefill(0, &prompt)).map(drop).map_err(|error| error.kind()),
            Err(ErrorKind::Lost)
        );
        assert_eq!(
            model
                .generate_ids(&prompt, &GenerateOptions::default())
                .map(drop)
                .map_err(|error| error.kind()),
            Err(ErrorKind::Lost)
        );
    }
}
