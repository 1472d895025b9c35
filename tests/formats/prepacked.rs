//! The prepacked model file: what is written computes the bits of the model that it was made of, and
//! what is wrong with a file is said.

use bitnet_wgpu::{
    Context, ContextOptions, Error,
    formats::{
        self, Checkpoint, GgufType, ModelConfig, ModelFile, ModelFormat, ReadOptions, write_gguf,
    },
    internals::{ModelFilesInternals as _, ModelInternals as _},
    model::{Model, ModelFiles, Offload, SessionOptions, Tokenizer},
    weights::DenseElement,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};
use support::{
    block_on,
    files::Directory,
    models::{directory, names},
    real_model, repository,
};

fn open(path: impl AsRef<Path>) -> ModelFiles {
    ModelFiles::open(path).unwrap()
}

fn write(source: &Path, to: &Directory, int8_head: bool) -> PathBuf {
    let path = to.0.join("model.safetensors");
    open(source).builder().int8_head(int8_head).write_prepacked(&path, true).unwrap();
    path
}

fn logits(model: &Model) -> Vec<u32> {
    let ids: Vec<u32> = (0..37).map(|i| i * i * 7 % model.config().vocab as u32).collect();
    block_on(model.logits(&ids)).unwrap().into_iter().map(f32::to_bits).collect()
}

/// A file taken apart.
struct Parts {
    header: Value,
    data: Vec<u8>,
}

impl Parts {
    fn of(bytes: &[u8]) -> Self {
        let (length, rest) = bytes.split_first_chunk().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        Self { header: serde_json::from_slice(header).unwrap(), data: data.to_vec() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut header = self.header.to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header, &self.data].concat()
    }

    fn metadata(&mut self, key: &str) -> &mut Value {
        &mut self.header["__metadata__"][key]
    }

    /// The bytes of a tensor.
    fn tensor(&mut self, name: &str) -> &mut [u8] {
        let [start, end] =
            [0, 1].map(|at| self.header[name]["data_offsets"][at].as_u64().unwrap() as usize);
        &mut self.data[start..end]
    }

    /// Changes a key of the configuration.
    fn configure(&mut self, key: &str, value: Value) {
        let mut config: Value =
            serde_json::from_str(self.metadata("config").as_str().unwrap()).unwrap();
        config[key] = value;
        *self.metadata("config") = config.to_string().into();
    }

    /// Appends a tensor of bytes.
    fn add(&mut self, name: &str, length: usize) {
        let start = self.data.len();
        self.data.resize(start + length, 0);
        self.header[name] =
            json!({"dtype": "U8", "shape": [length], "data_offsets": [start, start + length]});
    }

    fn rename(&mut self, from: &str, to: &str) {
        let entry = self.header.as_object_mut().unwrap().remove(from).unwrap();
        self.header[to] = entry;
    }
}

fn a_prepacked_file_gives_bit_identical_logits(on: Option<&Context>) {
    let directory_of =
        |name: &str| if name == "tales-22m" { real_model() } else { directory(name) };
    for name in ["tales-22m".to_owned()].into_iter().chain(names()) {
        let name = name.as_str();
        for int8_head in [false, true] {
            let (source, folder) = (directory_of(name), Directory::temporary());
            let path = write(&source, &folder, int8_head);
            let (files, before) = (open(&path), open(&source));
            assert_eq!(formats::identify(&path).unwrap(), ModelFormat::Prepacked);
            assert_eq!(
                files.problems().map(|error| error.to_string()).collect::<Vec<_>>(),
                [""; 0],
                "{name}"
            );
            let mut wanted: ModelConfig = before.config().clone();
            (wanted.query_scale, wanted.residual_scale) = (1.0, 1.0); // it is in the scales
            assert_eq!(files.config(), &wanted, "{name}");

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
        let wanted =
            ModelFiles::open_with(&source, ReadOptions::default().quantized_activations(said))
                .unwrap();
        wanted.builder().write_prepacked(&path, true).unwrap();
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
    let wanted = logits(&Model::builder(real_model()).device(&context).build().unwrap());
    let files = open(&path);
    for layers in [3, files.config().layers] {
        let offload = Offload::Layers(layers);
        let footprint = |files: &ModelFiles| {
            files.builder().device(&context).offload(offload).footprint().unwrap()
        };
        let model = files.builder().device(&context).offload(offload).build().unwrap();
        assert_eq!(model.offloaded().layers, layers);
        assert_eq!(footprint(&files), footprint(&open(real_model())));
        assert!(logits(&model) == wanted, "{layers} layers");
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
            let wanted = ModelFile::linear(&source, &part, rows, c.hidden).unwrap();
            assert!(prepacked.contains(&part));
            assert_eq!(prepacked.linear(&part, rows, c.hidden).unwrap(), wanted, "{name}: {part}");
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

/// A small model, with per-group scales.
static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = Directory::temporary();
    fs::read(write(&directory("qwen3"), &folder, false)).unwrap()
});

/// What opening a file says, or loading its weights.
fn said(bytes: &[u8]) -> Option<Error> {
    let folder = Directory::temporary();
    let path = folder.write("model.safetensors", bytes);
    let files = ModelFiles::open(&path);
    let loaded = files.and_then(|files| files.problems().next().map_or(Ok(()), Err));
    loaded.err()
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Parts), words: &str) {
    let mut parts = Parts::of(&SMALL);
    change(&mut parts);
    match said(&parts.bytes()) {
        Some(error @ (Error::Format { .. } | Error::Unsupported { .. })) => {
            assert!(error.to_string().contains(words), "{error}")
        }
        other => panic!("no error of the file but {other:?}, where `{words}` was expected"),
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    const CODES: &str = "model.layers.1.self_attn.q_proj+k_proj+v_proj.codes";
    const SCALES: &str = "model.layers.1.self_attn.q_proj+k_proj+v_proj.scales";
    const GROUP: &str = "model.layers.1.self_attn.q_proj+k_proj+v_proj.group";
    assert!(said(&SMALL).is_none() && said(&Parts::of(&SMALL).bytes()).is_none());
    // Other versions and other files.
    refused(
        |parts| *parts.metadata("version") = "1".into(),
        "has version 1 of the prepacked format",
    );
    refused(
        |parts| drop(parts.header["__metadata__"].as_object_mut().unwrap().remove("version")),
        "without a version",
    );
    refused(|parts| *parts.metadata("format") = "pt".into(), "its format is `pt`");
    refused(
        |parts| drop(parts.header.as_object_mut().unwrap().remove("__metadata__")),
        "its format is missing",
    );
    let checkpoint =
        formats::open(directory("qwen3").join("model.safetensors")).map(drop).unwrap_err();
    assert!(
        matches!(&checkpoint, Error::Format { message, .. } if message.contains("by their directory")),
        "{checkpoint}"
    );
    // Truncated, in the header and in the data, and too long.
    for length in [0, 5, 8, 9, 100, SMALL.len() - 1] {
        assert!(matches!(said(&SMALL[..length]), Some(Error::Format { .. })), "{length} bytes");
    }
    assert!(matches!(said(&[&SMALL[..], &[0]].concat()), Some(Error::Format { .. })));
    // The configuration.
    refused(
        |parts| drop(parts.header["__metadata__"].as_object_mut().unwrap().remove("config")),
        "has no config",
    );
    refused(|parts| *parts.metadata("config") = "{".into(), "its config: EOF");
    refused(|parts| parts.configure("experts", 8.into()), "its config: unknown field `experts`");
    refused(|parts| parts.configure("hidden", Value::Null), "its config: invalid type: null");
    refused(|parts| parts.configure("heads", 0.into()), "the number of heads is 0");
    refused(|parts| parts.configure("rope_scaling", "Spiral".into()), "unknown variant `Spiral`");
    refused(
        |parts| parts.configure("eos", json!([1_000_000])),
        "token 1000000 is beyond the vocabulary",
    );
    refused(
        |parts| {
            parts.configure("sub_norms", true.into());
            parts.configure("projection_norms", true.into())
        },
        "beside projection_norms",
    );
    // Another model than that of the tensors.
    refused(|parts| parts.configure("layers", 1.into()), "does not account for");
    refused(|parts| parts.configure("layers", 3.into()), "no tensor `model.layers.2.");
    refused(
        |parts| parts.configure("intermediate", 128.into()),
        "`model.layers.0.mlp.gate_proj+up_proj.codes` is",
    );
    refused(|parts| parts.configure("vocab", 301.into()), "`model.embed_tokens.elements` is");
    refused(|parts| parts.configure("architecture", "llama".into()), "does not account for");
    refused(|parts| parts.configure("architecture", "gpt".into()), "architecture `gpt` is unknown");
    refused(|parts| parts.rename("model.norm", "model.morn"), "no tensor `model.norm`");
    // Tensors that are not as kernels read them.
    refused(
        |parts| parts.tensor(CODES)[70] |= 0x30,
        "`model.layers.1.self_attn.q_proj+k_proj+v_proj` is not as kernels read it: ternary matrix: code 3 in word 17",
    );
    refused(
        |parts| parts.tensor(SCALES)[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
        "scale NaN",
    );
    refused(|parts| *parts.metadata(GROUP) = "0".into(), "has groups of `0` columns");
    refused(|parts| *parts.metadata(GROUP) = "-16".into(), "has groups of `-16` columns");
    refused(|parts| *parts.metadata(GROUP) = "20".into(), "q_proj+k_proj+v_proj");
    refused(
        |parts| {
            // What a kernel counts in 32 bits would be groups of 16.
            let scales = parts.header[SCALES].clone();
            *parts.metadata(GROUP) = ((1u64 << 36) + 16).to_string().into();
            let rows = scales["shape"][0].as_u64().unwrap();
            let start = scales["data_offsets"][0].as_u64().unwrap();
            parts.header[SCALES]["shape"][1] = 1.into();
            parts.header[SCALES]["data_offsets"][1] = (start + 4 * rows).into();
            let left = scales["data_offsets"][1].as_u64().unwrap() - start - 4 * rows;
            parts.header["padding.left"] = json!({"dtype": "U8", "shape": [left], "data_offsets": [start + 4 * rows, start + 4 * rows + left]});
        },
        "groups of 68719476752 columns",
    );
    // What is beside the tensors of a model.
    refused(|parts| parts.add("tokenizer.json", 2), "does not account for");
    refused(|parts| parts.add("padding.large", 64), "does not account for");
    refused(|parts| parts.add("model.embed_tokens.scales", 1), "does not account for");
    refused(|parts| parts.add("model.layers.0.mlp.down_proj.elements", 1), "does not account for");
    let mut padded = Parts::of(&SMALL);
    padded.add("padding.small", 63);
    assert!(said(&padded.bytes()).is_none());
    let group = "model.layers.1.mlp.down_proj.group";
    refused(
        |parts| drop(parts.header["__metadata__"].as_object_mut().unwrap().remove(group)),
        "mlp.down_proj.scales` is F32",
    );
    refused(
        |parts| parts.header[CODES]["dtype"] = "I32".into(),
        "q_proj+k_proj+v_proj.codes` is I32",
    );
    refused(
        |parts| parts.header[CODES]["shape"].as_array_mut().unwrap().reverse(),
        "q_proj+k_proj+v_proj.codes` is U32 of shape",
    );
    refused(
        |parts| parts.tensor("model.norm")[..4].copy_from_slice(&f32::INFINITY.to_le_bytes()),
        "`model.norm` has inf at 0",
    );
    refused(
        |parts| {
            parts.tensor("model.embed_tokens.elements")[..4]
                .copy_from_slice(&f32::NAN.to_le_bytes())
        },
        "not finite",
    );
    refused(
        |parts| parts.header["model.embed_tokens.elements"]["dtype"] = "I16".into(),
        "I16; F32, F16, BF16 or I8 is needed",
    );
    // A file that is cut off while it is open: no signal.
    let folder = Directory::temporary();
    let path = folder.write("model.safetensors", &*SMALL);
    let files = open(&path);
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(SMALL.len() as u64 - 1)
        .unwrap();
    let error = files.builder().cpu().build().map(drop).unwrap_err();
    assert!(
        matches!(&error, Error::Format { message, .. } if message.contains("when it was opened")),
        "{error}"
    );
}

/// What pads a row is zeros, in ternary words, in floats and in 8 bits; and 8 bits are symmetrical.
#[test]
fn padding_is_checked() {
    for (int8_head, element) in [(false, None), (true, Some(DenseElement::Int8))] {
        let folder = Directory::temporary();
        let path = write(&directory("odd"), &folder, int8_head);
        let bytes = fs::read(&path).unwrap();
        let config = open(&path).config().clone();
        let head = if config.tied_head { "model.embed_tokens" } else { "lm_head" };
        let expect = |change: &dyn Fn(&mut Parts), words: &str| {
            let mut parts = Parts::of(&bytes);
            change(&mut parts);
            let error = said(&parts.bytes()).unwrap_or_else(|| panic!("{words}")).to_string();
            assert!(error.contains(words), "{error}");
        };
        let row = config.hidden.div_ceil(64) * 16;
        assert!(!config.hidden.is_multiple_of(64), "rows of {} columns are padded", config.hidden);
        expect(
            &|parts| parts.tensor("model.layers.0.mlp.gate_proj+up_proj.codes")[2 * row - 1] = 0x15,
            "row 1 is not padded with zeros",
        );
        if element.is_some() {
            let stride = config.hidden.div_ceil(16) * 16;
            expect(&|parts| parts.tensor(&format!("{head}.elements"))[4] = 0x80, "a code is -128");
            expect(
                &|parts| {
                    parts.tensor(&format!("{head}.scales"))[4..8]
                        .copy_from_slice(&f32::NAN.to_le_bytes())
                },
                "row 1",
            );
            if stride > config.hidden {
                expect(
                    &|parts| parts.tensor(&format!("{head}.elements"))[stride - 1] = 1,
                    "row 0 is not padded with zeros",
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: support::cases(60), failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes changed anywhere, cut out or put in, or cut off: whatever comes of it, it is no panic,
    /// and what loads computes.
    #[test]
    fn damaged_files_do_not_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>(), 0..4u8), 1..6),
        cut in any::<prop::sample::Index>(),
        keep in 0..8u8,
    ) {
        let mut bytes = SMALL.clone();
        for (at, value, early, kind) in edits {
            // Most of the bytes that matter lie at the beginning.
            let at = at.index(if early { 4000 } else { bytes.len() });
            match kind {
                0 => bytes.insert(at, value),
                1 => drop(bytes.remove(at)),
                _ => bytes[at] = value,
            }
        }
        if keep == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = Directory::temporary();
        if let Ok(model) = Model::builder(folder.write("model.safetensors", &bytes)).cpu().build() {
            let _ = block_on(model.logits(&[1, 2]));
        }
    }

    /// Configurations that are JSON and lie.
    #[test]
    fn lying_configurations_do_not_panic(key in any::<prop::sample::Index>(), value in 0..6usize, number in any::<u32>()) {
        let mut parts = Parts::of(&SMALL);
        let config: Value = serde_json::from_str(parts.metadata("config").as_str().unwrap()).unwrap();
        let keys: Vec<_> = config.as_object().unwrap().keys().cloned().collect();
        let values = [json!(number), json!(number % 300), json!(-1.5), json!(true), Value::Null, json!([number % 300])];
        parts.configure(&keys[key.index(keys.len())], values[value].clone());
        let folder = Directory::temporary();
        if let Ok(model) = Model::builder(folder.write("model.safetensors", parts.bytes())).cpu().build() {
            let _ = block_on(model.logits(&[1, 2]));
        }
    }
}
