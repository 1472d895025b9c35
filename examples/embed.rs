//! Ranks documents by how near they are to a question: embeddings are near
//! each other for texts of similar meaning. `cargo run --release --example embed`, or `-- MODEL` for a model
//! that was made for it, which finds more than the shipped one: that was trained to tell tales, and
//! its vectors know tales.

use bitnet_wgpu::{
    formats::Pooling,
    model::{EmbedOptions, Model},
};

const QUESTION: &str = "A bear was hungry and looked for honey.";

const DOCUMENTS: [&str; 5] = [
    "The king lived in a castle on the hill.",
    "The little bear expected honey, because he was very hungry.",
    "It rained all day, and the children stayed at home.",
    "The ship sailed across the sea to a far island.",
    "A hungry fox looked for berries in the forest.",
];

fn main() -> bitnet_wgpu::Result<()> {
    let path = std::env::args().nth(1);
    let model = Model::open(
        path.as_deref().unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m")),
    )?;
    let mut options = EmbedOptions::default();
    let said = &model.config().embedding;
    if said.pooling.is_none() && said.unsupported.is_none() {
        // A model whose files say nothing of it: the mean of all states says more than the last
        // one, which is about the next word.
        options = options.pooling(Pooling::Mean);
    }
    let question = pollster::block_on(model.embed(&[QUESTION], &options))?.remove(0);
    // A text's vector does not depend on which others are computed with it, so documents may be
    // kept and compared with questions that come later.
    let documents = pollster::block_on(model.embed(&DOCUMENTS, &options))?;
    let mut ranked: Vec<_> =
        documents.iter().map(|document| question.cosine(document)).zip(DOCUMENTS).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("{QUESTION}");
    for (cosine, document) in ranked {
        println!("{cosine:.3}  {document}");
    }
    Ok(())
}
