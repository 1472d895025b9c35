//! One model in every encoding that holds it: whatever file it comes from, its logits are the same
//! bits.

use super::*;
use bitnet_wgpu::{
    Context,
    formats::ModelConfig,
    internals::config_from_json,
    model::{Model, ModelFiles},
};
use half::bf16;
use serde_json::{Value, json};
use std::path::Path;
use support::{
    block_on, context,
    files::{Directory, safetensors, words},
    models::computed,
};

/// Columns of a group.
const GROUP: usize = 128;

/// A matrix of -1, 0 and 1, with a scale for every group of a row.
struct Weights {
    name: String,
    rows: usize,
    columns: usize,
    values: Vec<i8>,
    scales: Vec<f32>,
}

/// A random model of Qwen3's graph.
struct Small {
    json: Value,
    config: ModelConfig,
    /// The embedding, which is the head too, and the linear layers.
    weights: Vec<Weights>,
    vectors: Vec<(String, Vec<f32>)>,
}

/// What its weights are.
#[derive(Clone, Copy, Debug)]
struct Of {
    /// Neighboring groups that share a scale; none where all of a matrix do.
    shared: Option<usize>,
    /// Whether there are weights of 0.
    zeros: bool,
}

impl Small {
    fn new(of: Of) -> Self {
        let json = json!({
            "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 96, "max_position_embeddings": 80, "tie_word_embeddings": true,
        });
        let config = config_from_json(&json).unwrap();
        let (hidden, attention, kv, inner) = (256, 4 * 64, 2 * 64, 512);
        let shapes = [
            (attention, hidden),
            (kv, hidden),
            (kv, hidden),
            (hidden, attention),
            (inner, hidden),
            (inner, hidden),
            (hidden, inner),
        ];
        let layers = || {
            (0..config.layers)
                .flat_map(|layer| QWEN3.map(|(name, _)| format!("model.layers.{layer}.{name}")))
        };
        let linears =
            layers().filter(|name| name.ends_with("_proj")).zip(shapes.iter().cycle().copied());
        let matrices = std::iter::once(("model.embed_tokens".to_owned(), (config.vocab, hidden)))
            .chain(linears);
        let weights = matrices.zip(1..).map(|((name, (rows, columns)), seed)| {
            let values = trits(seed, rows * columns)
                .into_iter()
                .map(|value| if of.zeros || value != 0 { value } else { 1 })
                .collect();
            // F16 and bf16 alike; here and there 0, under which weights are 0, whatever the
            // file has for them.
            let scale = |group: usize| match mix(seed + 1000, group / of.shared.unwrap_or(2)) % 8 {
                0 => 0.0,
                _ => {
                    (8 + mix(seed, of.shared.map_or(0, |shared| group / shared)) % 8) as f32 / 256.0
                }
            };
            Weights {
                name,
                rows,
                columns,
                values,
                scales: (0..rows * columns / GROUP).map(scale).collect(),
            }
        });
        let vectors = layers()
            .filter(|name| name.ends_with("norm"))
            .chain(["model.norm".to_owned()])
            .zip(100..)
            .map(|(name, seed)| {
                let len = if name.contains("self_attn") { config.head_dim } else { hidden };
                let gain = |i: usize| 1.0 + (mix(seed, i) % 64) as f32 / 128.0;
                (name, (0..len).map(gain).collect())
            });
        let (weights, vectors) = (weights.collect(), vectors.collect());
        Self { json, config, weights, vectors }
    }

    /// A GGUF file with blocks of `size` weights, which `encode` makes; the embedding is of that
    /// type, or in bf16.
    fn gguf(&self, (id, size, encode): Layout, embedding: bool) -> Maker {
        let stored = |name: &str| match name
            .strip_prefix("model.layers.")
            .and_then(|name| name.split_once('.'))
        {
            Some((layer, part)) => format!(
                "blk.{layer}.{}.weight",
                QWEN3.iter().find(|(name, _)| *name == part).unwrap().1
            ),
            None => format!(
                "{}.weight",
                if name == "model.norm" { "output_norm" } else { "token_embd" }
            ),
        };
        let maker =
            self.weights.iter().fold(Maker::configured("qwen3", &self.config), |maker, w| {
                let shape = [w.rows as u64, w.columns as u64];
                if !embedding && w.name == "model.embed_tokens" {
                    return maker.tensor(&stored(&w.name), &shape, 30, &w.floats());
                }
                let scales: Vec<f32> = (0..w.values.len() / size)
                    .map(|block| w.scales[block * size / GROUP])
                    .collect();
                maker.tensor(&stored(&w.name), &shape, id, &encode(&w.values, &scales))
            });
        let float =
            |vector: &[f32]| vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let vector = |maker: Maker, (name, vector): &(String, Vec<f32>)| {
            maker.tensor(&stored(name), &[vector.len() as u64], 0, &float(vector))
        };
        self.vectors.iter().fold(maker, vector)
    }

    /// Writes a model directory with words of this many bits, as MLX has them, or with floats in
    /// bf16; the embedding is so too, or in bf16.
    fn directory(&self, bits: Option<usize>, embedding: bool) -> Directory {
        let folder = Directory::temporary();
        let mut json = self.json.clone();
        if let Some(bits) = bits {
            json["quantization"] = json!({"bits": bits, "group_size": GROUP});
        }
        folder.write("config.json", json.to_string());
        let mut tensors: Vec<(String, &str, Vec<usize>, Vec<u8>)> = Vec::new();
        for w in &self.weights {
            let Some(bits) = bits.filter(|_| embedding || w.name != "model.embed_tokens") else {
                tensors.push((
                    format!("{}.weight", w.name),
                    "BF16",
                    vec![w.rows, w.columns],
                    w.floats(),
                ));
                continue;
            };
            let integers: Vec<u32> = w
                .values
                .iter()
                .map(|&value| if bits == 2 { (value + 1) as u32 } else { u32::from(value > 0) })
                .collect();
            let halves = |factor: f32| {
                w.scales
                    .iter()
                    .flat_map(|scale| f16::from_f32(factor * scale).to_le_bytes())
                    .collect()
            };
            let groups = vec![w.rows, w.columns / GROUP];
            tensors.push((
                format!("{}.weight", w.name),
                "U32",
                vec![w.rows, w.columns * bits / 32],
                words(&integers, bits),
            ));
            tensors.push((
                format!("{}.scales", w.name),
                "F16",
                groups.clone(),
                halves(if bits == 2 { 1.0 } else { 2.0 }),
            ));
            tensors.push((format!("{}.biases", w.name), "F16", groups, halves(-1.0)));
        }
        let float = |vector: &[f32]| vector.iter().flat_map(|x| x.to_le_bytes()).collect();
        tensors.extend(self.vectors.iter().map(|(name, vector)| {
            (format!("{name}.weight"), "F32", vec![vector.len()], float(vector))
        }));
        let tensors: Vec<(&str, &str, &[usize], &[u8])> = tensors
            .iter()
            .map(|(name, element, shape, bytes)| {
                (name.as_str(), *element, shape.as_slice(), bytes.as_slice())
            })
            .collect();
        folder.write("model.safetensors", safetensors(&tensors));
        folder
    }
}

impl Weights {
    /// In bf16.
    fn floats(&self) -> Vec<u8> {
        let weight = |(i, &value): (usize, &i8)| {
            bf16::from_f32(f32::from(value) * self.scales[i / GROUP]).to_le_bytes()
        };
        self.values.iter().enumerate().flat_map(weight).collect()
    }
}

/// A type by its number in the file, its block's size, its encoder.
type Layout = (u32, usize, fn(&[i8], &[f32]) -> Vec<u8>);
const BLOCKS: [(&str, Layout); 7] = [
    ("Q2_0", (42, 64, q2)),
    ("Q2_0 by 128", (42, 128, pq2)),
    ("PQ2_0", (142, 128, pq2)),
    ("PTQ1_0", (143, 128, ptq1)),
    ("TQ1_0", (34, 256, tq1)),
    ("TQ2_0", (35, 256, tq2)),
    ("Q1_0", (41, 128, q1)),
];

fn every_encoding_gives_bit_identical_logits(on: Option<&Context>) {
    let [apart, rows, one] = [Some(1), Some(4), None].map(|shared| Of { shared, zeros: true });
    let mut all_of = vec![Of { zeros: false, ..apart }, rows, one];
    if on.is_none() {
        // Files are read alike for the GPU, where these have the kernels of those before.
        all_of.extend([apart, Of { zeros: false, ..one }]);
    }
    for of in all_of {
        let (small, folder) = (Small::new(of), Directory::temporary());
        // An embedding in bf16, which all can have, and one that is packed as the linear layers
        // are.
        for embedding in [false, true] {
            let fits = |name: &str, size: usize| match name {
                "Q1_0" => !of.zeros,
                _ => size <= GROUP || of.shared != Some(1),
            };
            let blocks = BLOCKS.into_iter().filter(|(name, (_, size, _))| fits(name, *size));
            let files = blocks.map(|(name, layout)| {
                (name, folder.write(&format!("{name}.gguf"), small.gguf(layout, embedding).bytes()))
            });
            let of_bits =
                |bits: Option<usize>| !(embedding && bits.is_none() || of.zeros && bits == Some(1));
            let folders = [("MLX, 2 bits", Some(2)), ("MLX, 1 bit", Some(1)), ("bf16", None)]
                .into_iter()
                .filter(|&(_, bits)| of_bits(bits));
            let folders: Vec<_> =
                folders.map(|(name, bits)| (name, small.directory(bits, embedding))).collect();
            let mut all: Vec<_> = files
                .chain(folders.iter().map(|(name, folder)| (*name, folder.0.clone())))
                .collect();
            // Of the first, and of the last.
            for (name, of) in [("native, of GGUF", 0), ("native, of safetensors", all.len() - 1)] {
                let (files, native) = (ModelFiles::open(&all[of].1).unwrap(), folder.0.join(name));
                files.builder().write_prepacked(&native, true).unwrap();
                all.push((name, native));
            }
            assert!(all.len() >= if embedding { 7 } else { 8 }, "{of:?}: {}", all.len());

            let bits = |path: &Path| computed(&Model::builder(path).device(on).build().unwrap());
            let expected = bits(&all[0].1);
            for (name, path) in &all[1..] {
                assert!(
                    bits(path) == expected,
                    "{name}, {of:?}, embedding packed: {embedding}, GPU: {}",
                    on.is_some()
                );
            }
        }
    }
}

support::each_device!(every_encoding_gives_bit_identical_logits);

/// Sums are cut after 128 columns at most, so that blocks of 256 have the bits of two of 128 with
/// the same numbers.
fn blocks_of_256_are_two_of_128(on: Option<&Context>) {
    let (small, folder) = (Small::new(Of { shared: Some(2), zeros: true }), Directory::temporary());
    let ids: Vec<u32> = (0..65).collect();

    let logits = |name: &str| {
        let (_, layout) = BLOCKS.into_iter().find(|(known, _)| *known == name).unwrap();
        let path = folder.write("model.gguf", small.gguf(layout, false).bytes());
        block_on(Model::builder(path).device(on).build().unwrap().logits(&ids)).unwrap()
    };
    let [expected, tq1, tq2] = ["PQ2_0", "TQ1_0", "TQ2_0"].map(logits);
    assert!(tq1 == expected && tq2 == expected, "GPU: {}", on.is_some());
}

support::each_device!(blocks_of_256_are_two_of_128);

/// Of matrices that are stacked, some may have the same scale in neighboring blocks, and so be of
/// larger groups.
#[test]
#[ignore = "needs a GPU"]
fn matrices_of_other_groups_are_stacked() {
    let (small, folder) = (Small::new(Of { shared: Some(1), zeros: true }), Directory::temporary());
    let key = small.weights.iter().find(|w| w.name == "model.layers.0.self_attn.k_proj").unwrap();
    for (id, size, encode) in [BLOCKS[0].1, BLOCKS[2].1] {
        // The last block of the key's last row has another scale than that before it; and all of it
        // the same.
        let blocks = key.values.len() / size;
        let last =
            |block: usize| if block == blocks - 1 { 0.5 } else { key.scales[block * size / GROUP] };
        for (scales, groups) in
            [((0..blocks).map(last).collect::<Vec<_>>(), Some(size)), (vec![0.25; blocks], None)]
        {
            let maker = small.gguf((id, size, encode), false);
            let maker = maker.tensor(
                "blk.0.attn_k.weight",
                &[key.rows as u64, key.columns as u64],
                id,
                &encode(&key.values, &scales),
            );
            let path = folder.write("model.gguf", maker.bytes());
            assert_eq!(
                open(&path).unwrap().linear(&key.name, key.rows, key.columns).unwrap().group(),
                groups
            );
            let [cpu, gpu] = [None, Some(context())].map(|on| {
                let model = Model::builder(&path).device(on).build().unwrap();
                block_on(model.logits(&[1, 2, 3])).unwrap()
            });
            approx::assert_abs_diff_eq!(&cpu[..], &gpu[..], epsilon = 1e-3);
        }
    }
}

/// Files of all types, each with an embedding of its own type.
pub fn all() -> impl Iterator<Item = Vec<u8>> {
    let small = Small::new(Of { shared: Some(1), zeros: false });
    BLOCKS.into_iter().map(move |(_, layout)| small.gguf(layout, true).bytes())
}
