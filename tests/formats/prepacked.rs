//! The prepacked model file: what is written computes the bits of the model that it was made of.

use bitnet_wgpu::{
    Context, ContextOptions, Error,
    formats::{self, Checkpoint, GgufType, ModelConfig, ModelFile, ReadOptions, write_gguf},
    internals::{ModelFilesInternals as _, ModelFormat, ModelInternals as _, identify},
    model::{Model, ModelFiles, Offload, SessionOptions, Tokenizer},
};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};
use support::{
    block_on,
    files::Directory,
    models::{directory, names},
    real_model, repository,
};

pub fn open(path: impl AsRef<Path>) -> ModelFiles {
    ModelFiles::open(path).unwrap()
}

pub fn write(source: &Path, to: &Directory, int8_head: bool) -> PathBuf {
    let path = to.0.join("model.safetensors");
    open(source).builder().int8_head(int8_head).write_prepacked(&path, true).unwrap();
    path
}

fn logits(model: &Model) -> Vec<u32> {
    let ids: Vec<u32> = (0..37).map(|i| i * i * 7 % model.config().vocab as u32).collect();
    block_on(model.logits(&ids)).unwrap().into_iter().map(f32::to_bits).collect()
}

/// A file taken apart.
pub struct Parts {
    pub header: Value,
    pub data: Vec<u8>,
}

impl Parts {
    pub fn of(bytes: &[u8]) -> Self {
        let (length, rest) = bytes.split_first_chunk().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        Self { header: serde_json::from_slice(header).unwrap(), data: data.to_vec() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut header = self.header.to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header, &self.data].concat()
    }

    pub fn metadata(&mut self, key: &str) -> &mut Value {
        &mut self.header["__metadata__"][key]
    }

    /// The bytes of a tensor.
    pub fn tensor(&mut self, name: &str) -> &mut [u8] {
        let [start, end] =
            [0, 1].map(|at| self.header[name]["data_offsets"][at].as_u64().unwrap() as usize);
        &mut self.data[start..end]
    }

    /// Changes a key of the configuration.
    pub fn configure(&mut self, key: &str, value: Value) {
        let mut config: Value =
            serde_json::from_str(self.metadata("config").as_str().unwrap()).unwrap();
        config[key] = value;
        *self.metadata("config") = config.to_string().into();
    }

    /// Appends a tensor of bytes.
    pub fn add(&mut self, name: &str, length: usize) {
        let start = self.data.len();
        self.data.resize(start + length, 0);
        self.header[name] =
            json!({"dtype": "U8", "shape": [length], "data_offsets": [start, start + length]});
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        let entry = self.header.as_object_mut().unwrap().remove(from).unwrap();
        self.header[to] = entry;
    }
}

fn a_prepacked_file_gives_bit_identical_logits(on: Option<&Context>) {
    let directory_of =
        |name: &str| if name == "tales-22m" { real_model() } else { directory(name) };
    for name in ["tales-22m".to_owned()].into_iter().chain(names()) {
        // Recurrent layers are not written.
        if name == "qwen35" {
            continue;
        }
        let name = name.as_str();
        for int8_head in [false, true] {
            let (source, folder) = (directory_of(name), Directory::temporary());
            let path = write(&source, &folder, int8_head);
            let (files, before) = (open(&path), open(&source));
            assert_eq!(identify(&path).unwrap(), ModelFormat::Prepacked);
            assert_eq!(
                files.problems().map(|error| error.to_string()).collect::<Vec<_>>(),
                [""; 0],
                "{name}"
            );
            let mut expected: ModelConfig = before.config().clone();
            (expected.query_scale, expected.residual_scale) = (1.0, 1.0); // it is in the scales
            assert_eq!(files.config(), &expected, "{name}");

            let source = Model::builder(&source).device(on).int8_head(int8_head).build().unwrap();
            // Already in 8 bits, a head stays as it is.
            for again in [false, true].into_iter().take(1 + usize::from(int8_head)) {
                let prepacked = Model::builder(&path).device(on).int8_head(again).build().unwrap();
                assert!(
                    logits(&source) == logits(&prepacked),
                    "{name} on {prepacked:?}, int8_head: {int8_head}, {again}"
                );
                assert_eq!(source.weight_bytes(), prepacked.weight_bytes());
                assert!(
                    logits(&prepacked.reload(on).unwrap()) == logits(&source),
                    "{name}, loaded again"
                );
                // A session that was saved of one goes on in the other.
                let saved = folder.0.join("session");
                let mut session = source.session(SessionOptions::new(1, 8)).unwrap();
                block_on(session.prefill(0, &[1, 2, 3])).unwrap();
                block_on(session.save(&saved)).unwrap();
                assert_eq!(
                    prepacked.load_session(&saved, SessionOptions::new(1, 8)).unwrap().tokens(0),
                    [1, 2, 3]
                );
            }
        }
    }
}

support::each_device!(a_prepacked_file_gives_bit_identical_logits);

#[test]
fn what_is_said_of_activations_is_stored() {
    let (folder, source) = (Directory::temporary(), directory("trilm"));
    for said in [None, Some(true), Some(false)] {
        let path = folder.0.join("model.safetensors");
        let expected =
            ModelFiles::open_with(&source, ReadOptions::default().quantized_activations(said))
                .unwrap();
        expected.builder().write_prepacked(&path, true).unwrap();
        assert_eq!(open(&path).config().quantized_activations, said.unwrap_or(false));
        for said in [true, false] {
            let load = |path: &Path| {
                ModelFiles::open_with(path, ReadOptions::default().quantized_activations(said))
                    .and_then(|files| files.builder().cpu().build())
                    .unwrap()
            };
            assert!(logits(&load(&source)) == logits(&load(&path)), "{said}");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn offloaded_layers_compute_the_same_bits() {
    let context = block_on(Context::open(ContextOptions::default().offload(true))).unwrap();
    let folder = Directory::temporary();
    let path = write(&real_model(), &folder, false);
    let expected = logits(&Model::builder(real_model()).device(&context).build().unwrap());
    let files = open(&path);
    for layers in [3, files.config().layers] {
        let offload = Offload::Layers(layers);
        let footprint = |files: &ModelFiles| {
            files.builder().device(&context).offload(offload).footprint().unwrap()
        };
        let model = files.builder().device(&context).offload(offload).build().unwrap();
        assert_eq!(model.offloaded().layers, layers);
        assert_eq!(footprint(&files), footprint(&open(real_model())));
        assert!(logits(&model) == expected, "{layers} layers");
    }
}

/// What the kernels bind is in the file, in one piece.
#[test]
fn tensors_are_stacked_and_aligned() {
    for name in ["odd", "qwen3", "normed"] {
        let folder = Directory::temporary();
        let path = write(&directory(name), &folder, false);
        let bytes = fs::read(&path).unwrap();
        let mut parts = Parts::of(&bytes);
        let data = bytes.len() - parts.data.len();
        let entries = parts.header.as_object().unwrap().clone();
        let tensors = entries.iter().filter(|(name, _)| *name != "__metadata__");
        for (tensor, entry) in tensors.filter(|(name, _)| !name.starts_with("padding.")) {
            let start = data + entry["data_offsets"][0].as_u64().unwrap() as usize;
            assert!(start.is_multiple_of(64), "{name}: `{tensor}` begins at {start}");
        }
        let source = Checkpoint::open(directory(name)).unwrap();
        let c = source.config().clone();
        let (q, k) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let linear = |name: &str, rows| {
            ModelFile::linear(
                &source,
                &format!("model.layers.1.self_attn.{name}_proj"),
                rows,
                c.hidden,
            )
            .unwrap()
        };
        let apart = [linear("q", q), linear("k", k), linear("v", k)];
        let words: Vec<u32> = apart.iter().flat_map(|matrix| matrix.words()).copied().collect();
        if name == "normed" {
            assert!(
                parts.tensor("model.layers.1.self_attn.k_proj.codes") == bytes_of(apart[1].words())
            );
        } else {
            assert!(
                parts.tensor("model.layers.1.self_attn.q_proj+k_proj+v_proj.codes")
                    == bytes_of(&words),
                "{name}"
            );
        }
    }
}

/// Who asks for a matrix that is stacked has it by itself.
#[test]
fn each_of_a_stack_is_there() {
    for name in ["odd", "qwen3", "normed"] {
        let folder = Directory::temporary();
        let prepacked = formats::open(write(&directory(name), &folder, false)).unwrap();
        let source = Checkpoint::open(directory(name)).unwrap();
        let c = prepacked.config().clone();
        let (q, k) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let parts = [
            ("self_attn.q_proj", q),
            ("self_attn.k_proj", k),
            ("self_attn.v_proj", k),
            ("mlp.up_proj", c.intermediate),
        ];
        for (part, rows) in parts {
            let part = format!("model.layers.1.{part}");
            let expected = ModelFile::linear(&source, &part, rows, c.hidden).unwrap();
            assert!(prepacked.contains(&part));
            assert_eq!(
                prepacked.linear(&part, rows, c.hidden).unwrap(),
                expected,
                "{name}: {part}"
            );
            assert!(matches!(
                prepacked.linear(&part, rows + 1, c.hidden),
                Err(Error::Format { .. })
            ));
        }
        assert!(
            !prepacked.contains("model.layers.99999.self_attn.q_proj")
                && !prepacked.contains("nothing")
        );
        assert!(
            prepacked.linear("nothing", 4, 4).is_err()
                && prepacked.vector("nothing", 4).is_err()
                && prepacked.dense("nothing", 4, 4).is_err()
        );
    }
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Tokenizers and chat templates go with it: of directories, and of GGUF files, which have no such
/// files.
#[test]
fn texts_are_the_same_tokens() {
    let folder = Directory::temporary();
    let tales = repository("assets/tales-22m");
    let gguf = folder.0.join("tales.gguf");
    let checkpoint = Checkpoint::open(&tales).unwrap();
    let vocabulary = Tokenizer::from_directory(&tales).unwrap().to_gguf().unwrap();
    write_gguf(&checkpoint, Some(&vocabulary), &gguf, GgufType::Q2_0, false, |_| ()).unwrap();
    for source in [tales, gguf] {
        let path = write(&source, &folder, false);
        let [before, after] = [&source, &path].map(|path| open(path).tokenizer().unwrap().clone());
        assert_eq!(
            (before.bos(), before.eos(), before.vocab_size()),
            (after.bos(), after.eos(), after.vocab_size())
        );
        assert_eq!(before.has_chat_template(), after.has_chat_template());
        for text in
            ["", "Once upon a time", "Die Bären, 熊 und 🐻!\n\n  \t2024", "<|eos|> <s> </s>"]
        {
            let ids = before.encode(text).unwrap();
            assert_eq!(after.encode(text).unwrap(), ids, "{text:?}");
            assert_eq!(
                before.encode_for_embedding(text).unwrap(),
                after.encode_for_embedding(text).unwrap(),
                "{text:?}"
            );
            assert_eq!(
                (before.decode(&ids).unwrap(), before.decode_with_special(&ids).unwrap()),
                (after.decode(&ids).unwrap(), after.decode_with_special(&ids).unwrap())
            );
        }
        let [a, b] = [&source, &path].map(|path| Model::builder(path).cpu().build().unwrap());
        assert!(logits(&a) == logits(&b));
    }
    // Without one it takes ids, as the directory does; and with one that is damaged.
    let path = write(&directory("odd"), &folder, false);
    assert!(matches!(open(&path).tokenizer(), Err(Error::Tokenizer { .. })));
    let mut parts =
        Parts::of(&fs::read(write(&repository("assets/tales-22m"), &folder, false)).unwrap());
    *parts.metadata("tokenizer") = "{".into();
    let files = open(folder.write("damaged.safetensors", parts.bytes()));
    assert!(files.tokenizer().unwrap_err().to_string().contains("its tokenizer: EOF"));
    assert_eq!(files.problems().count(), 0);
}

#[test]
fn files_are_complete_or_not_there() {
    let folder = Directory::temporary();
    let path = write(&directory("odd"), &folder, false);
    let before = fs::read(&path).unwrap();
    let files = open(directory("qwen3"));
    assert!(matches!(files.builder().write_prepacked(&path, false), Err(Error::Io { .. })));
    // Of a source that ends while it is read.
    let (source, model) = (Directory::temporary(), directory("qwen3"));
    for name in ["config.json", "model.safetensors"] {
        source.write(name, fs::read(model.join(name)).unwrap());
    }
    let files = open(&source.0);
    let weights =
        fs::OpenOptions::new().write(true).open(source.0.join("model.safetensors")).unwrap();
    let mut progress = |done: usize, all: usize| {
        if done == all / 2 + 1 {
            weights.set_len(1000).unwrap();
        }
    };
    let error = files.builder().progress(&mut progress).write_prepacked(&path, true).unwrap_err();
    assert!(
        matches!(&error, Error::Format { message, .. } if message.contains("when it was opened")),
        "{error}"
    );
    assert!(fs::read(&path).unwrap() == before, "what was there stays");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing else does");
    // A prepacked model file is a source as others are.
    let [again, first] = ["again", "first"].map(|name| folder.0.join(name));
    open(directory("minicpm")).builder().write_prepacked(&first, false).unwrap();
    open(&first).builder().write_prepacked(&again, false).unwrap();
    assert!(fs::read(first).unwrap() == fs::read(again).unwrap());
}
