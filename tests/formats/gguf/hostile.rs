//! Damaged and hostile files.

use super::{data, file::*, trits};
use bitnet_wgpu::{
    Error, Result,
    formats::{GgufFile, GgufValue, I2sLayout, ModelFile, ReadOptions},
    internals::{GgufModel, RopeScaling},
    weights::{PackedTernary, Scales},
};
use proptest::prelude::*;
use support::files::Directory;

#[track_caller]
pub fn refused<T>(result: Result<T>, words: &str) {
    match result.map(|_| ()) {
        Err(error @ (Error::Format { .. } | Error::Unsupported { .. })) => {
            assert!(error.to_string().contains(words), "{error}")
        }
        other => panic!("no error of the file but {other:?}, where `{words}` was expected"),
    }
}

/// What is known and not done is told apart from what is wrong.
#[test]
fn sound_models_that_cannot_run_are_unsupported() {
    let keys = [("expert_count", 2), ("attention.value_length", 2), ("rope.dimension_count", 2)];
    let changed =
        keys.map(|(key, value)| Maker::model().number(&format!("bitnet-25.{key}"), value));
    let others = [
        Maker::model().text("general.architecture", "qwen2"),
        Maker::model().text("bitnet-25.rope.scaling.type", "dynamic"),
    ];
    for maker in changed.into_iter().chain(others) {
        assert!(matches!(open_bytes(&maker.bytes()), Err(Error::Unsupported { .. })));
    }
    let unknown =
        open_bytes(&Maker::model().tensor("output.weight", &[4, 8], 13, &[0; 64]).bytes()).unwrap();
    assert!(matches!(unknown.dense("lm_head", 4, 8), Err(Error::Unsupported { .. })));
    // Q5_K, as quantizing tools write embeddings.
    let embedding =
        open_bytes(&Maker::model().tensor("token_embd.weight", &[4, 8], 13, &[0; 64]).bytes())
            .unwrap();
    assert!(matches!(embedding.dense("model.embed_tokens", 4, 8), Err(Error::Unsupported { .. })));
}

/// By their names, and with what is missing, before anything else is asked of them.
#[test]
fn unsupported_families_are_named() {
    let (experts, images) = ("mixtures of experts", "it takes images");
    for (name, words) in [
        ("qwen35moe", &[experts][..]),
        ("qwen3next", &["are fused", experts]),
        ("qwen2moe", &[experts]),
        ("qwen3vl", &[images]),
        ("qwen3vlmoe", &[images, experts]),
        ("clip", &[images]),
        ("gemma-embedding", &["tokens attend to those that follow"]),
    ] {
        match open_bytes(&Maker::default().text("general.architecture", name).bytes()) {
            Err(Error::Unsupported { message, .. }) => {
                assert!(
                    message.starts_with(&format!("architecture `{name}` is not supported: ")),
                    "{message}"
                );
                assert!(words.iter().all(|word| message.contains(word)), "{message}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: support::cases(60), failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes of real files changed anywhere, or cut off: whatever comes of it, it is no panic.
    #[test]
    fn damaged_files_do_not_panic(
        which in 0..4usize,
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..6),
        cut in any::<prop::sample::Index>(),
        keep in 0..8u8,
    ) {
        let name = ["types.gguf", "bitnet-b1.58.gguf", "bitnet-25.gguf", "llama.gguf"][which];
        let mut bytes = std::fs::read(data(name)).unwrap();
        for (at, value, early) in edits {
            // Most of the bytes that matter lie at the beginning.
            let at = at.index(if early { 2000 } else { bytes.len() });
            bytes[at] = value;
        }
        if keep == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_everything(&bytes);
    }

    /// Counts, types and offsets of the header changed to any number.
    #[test]
    fn lying_headers_do_not_panic(at in any::<prop::sample::Index>(), value in any::<u64>(), shift in 0..64u32, width in 1..9usize) {
        let mut bytes = Maker::model().tensor("output.weight", &[4, 128], 36, &i2s(I2sLayout::X86, 128, &trits(1, 512), 1.0)).bytes();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + width].copy_from_slice(&(value >> shift).to_le_bytes()[..width]);
        read_everything(&bytes);
    }
}

/// Reads whatever can be read of a file, in every way.
pub fn read_everything(bytes: &[u8]) {
    let directory = Directory::temporary();
    let path = directory.write("model.gguf", bytes);
    if let Ok(file) = GgufFile::open(&path) {
        for key in file.keys() {
            if let Some(GgufValue::Array(array)) = file.get(key) {
                let _ = array.iter().count();
            }
        }
        for tensor in file.names().filter_map(|name| file.tensor(name).ok()) {
            for layout in [I2sLayout::X86, I2sLayout::Arm, I2sLayout::Rows] {
                let _ = tensor.ternary(layout).map(|w| w.dequantize());
            }
            let _ = (tensor.dense(), tensor.to_f32());
        }
    }
    if let Ok(model) = GgufModel::open(&path) {
        let config = model.config().clone();
        let (hidden, attention) = (config.hidden, config.heads * config.head_dim);
        let _ = (
            model.vocabulary(),
            model.dense("model.embed_tokens", config.vocab, hidden),
            model.dense("lm_head", config.vocab, hidden),
        );
        let _ = (
            model.linear("model.layers.0.self_attn.q_proj", attention, hidden),
            model.vector("model.norm", hidden),
        );
    }
}

#[test]
fn headers_that_stop_anywhere_are_refused() {
    let model = Maker::model()
        .tensor("output.weight", &[1, 128], 36, &i2s(I2sLayout::X86, 128, &trits(1, 128), 1.0))
        .set(
            "tokenizer.ggml.tokens",
            ARRAY,
            &[&STRING.to_le_bytes()[..], &2u64.to_le_bytes(), &string("a"), &string("b")].concat(),
        );
    let bytes = model.bytes();
    assert!(open_bytes(&bytes).is_ok());
    let directory = Directory::temporary();
    for length in 0..bytes.len() {
        let path = directory.write("model.gguf", &bytes[..length]);
        match GgufModel::open(&path) {
            Err(Error::Format { .. }) => {}
            other => panic!("{length} of {} bytes: {other:?}", bytes.len()),
        }
    }
}

/// A header is read until it is whole, and no longer than one may be.
#[test]
fn long_headers_are_read_and_endless_ones_refused() {
    let with = |length: usize| {
        open_bytes(
            &Maker::model()
                .text("general.description", &"x".repeat(length))
                .text("last", "y")
                .bytes(),
        )
    };
    let long = with(5 << 20).unwrap();
    let Some(GgufValue::String(text)) = long.file().get("general.description") else {
        panic!("no text")
    };
    assert_eq!(text.len(), 5 << 20);
    assert_eq!(long.file().get("last"), Some(GgufValue::String("y")));
    refused(with(64 << 20), "claims 67108864 bytes");
}

/// Whoever truncates a file while it is read gets an error for it, not a signal.
#[test]
fn a_file_that_becomes_shorter_is_an_error() {
    let directory = Directory::temporary();
    let path = directory.write("model.gguf", Maker::model().bytes());
    let model = GgufModel::open(&path).unwrap();
    let names: Vec<String> = model.file().names().map(str::to_owned).collect();
    assert!(names.iter().all(|name| model.file().tensor(name).is_ok()));
    let length = std::fs::metadata(&path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    for name in &names {
        refused(model.file().tensor(name), &format!("had {length} bytes when it was opened"));
        assert!(model.file().size(name).is_some());
    }
    assert!(model.file().get("general.architecture").is_some());
}

#[test]
fn absurd_headers_are_named() {
    let sound = Maker::model().bytes();
    let with = |at: usize, bytes: &[u8]| {
        let mut file = sound.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        open_bytes(&file)
    };
    refused(with(0, b"GGML"), "not a GGUF file");
    refused(with(4, &1u32.to_le_bytes()), "version 1");
    refused(with(4, &0u32.to_le_bytes()), "version 0");
    refused(with(4, &4u32.to_le_bytes()), "version 4");
    refused(with(4, &3u32.to_be_bytes()), "big-endian");
    for huge in [u64::MAX, 1 << 62, 1 << 32, 1000] {
        refused(with(8, &huge.to_le_bytes()), "tensors; the");
        refused(with(16, &huge.to_le_bytes()), "metadata entries; the");
        refused(with(24, &huge.to_le_bytes()), &format!("claims {huge} bytes"));
    }
    assert!(with(4, &2u32.to_le_bytes()).is_ok());

    let metadata =
        |kind: u32, value: &[u8]| open_bytes(&Maker::model().set("key", kind, value).bytes());
    refused(metadata(13, &[0; 8]), "type 13");
    refused(metadata(u32::MAX, &[0; 8]), "type 4294967295");
    refused(metadata(7, &[2]), "truth value");
    refused(metadata(STRING, &[&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat()), "UTF-8");
    refused(metadata(STRING, &u64::MAX.to_le_bytes()), "18446744073709551615 bytes");
    let array = |kind: u32, count: u64, rest: &[u8]| {
        metadata(ARRAY, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), rest].concat())
    };
    refused(array(ARRAY, 1, &[0; 12]), "array of arrays");
    refused(array(99, 1, &[0; 12]), "type 99");
    refused(array(7, 1, &[3]), "truth value");
    for kind in 0..13 {
        for count in [u64::MAX, u64::MAX / 8 + 1, 1 << 40, 100_000] {
            if kind != ARRAY {
                refused(array(kind, count, &[]), "array elements");
            }
        }
    }
    assert!(array(10, 2, &[1; 16]).is_ok());
    let mut twice = Maker::model();
    twice.metadata.push(twice.metadata[0].clone());
    refused(open_bytes(&twice.bytes()), "occurs twice");
    for alignment in [0, 3, 1 << 21, u32::MAX] {
        refused(
            open_bytes(&Maker::model().number("general.alignment", alignment).bytes()),
            "general.alignment",
        );
    }
    refused(
        open_bytes(&Maker::model().text("general.alignment", "32").bytes()),
        "general.alignment",
    );
    refused(
        open_bytes(&Maker::model().number("general.alignment", 1 << 20).bytes()),
        "data should begin",
    );
}

#[test]
fn absurd_tensors_are_named() {
    // The last tensor's info ends the header: shape, type, offset.
    let with = |shape: &[u64], kind: u32, offset: u64| {
        let mut maker = Maker::model().tensor("x", shape, kind, &[]);
        maker.tensors.swap(0, 1);
        let infos = maker.infos();
        let own = string("x").len() + 4 + 8 * shape.len() + 4;
        let mut file = maker.bytes();
        let start = file.windows(infos.len()).position(|window| window == infos).unwrap();
        file[start + own..][..8].copy_from_slice(&offset.to_le_bytes());
        open_bytes(&file)
    };
    assert!(with(&[0], 0, 0).is_ok());
    refused(with(&[1, 1, 1, 1, 1], 0, 0), "5 dimensions");
    refused(with(&[u64::MAX], 0, 0), "claims bytes");
    refused(with(&[1 << 32, 1 << 32], 0, 0), "which overflows");
    refused(with(&[0, 1 << 32, 1 << 32], 0, 0), "which overflows");
    refused(with(&[1 << 62, 4], 36, 0), "which overflows");
    refused(with(&[1 << 61, 4], 36, 0), "claims bytes");
    refused(with(&[4, 8], 0, 32), "claims bytes 32..160");
    refused(with(&[1], 0, u64::MAX - 31), "claims bytes");
    refused(with(&[1], 0, 8), "not aligned");
    refused(with(&[1], 99, 1 << 40), "claims bytes");
    refused(with(&[1, 8], 0, 0), "where `");
    refused(with(&[8], 34, 0), "blocks of 256");
    refused(with(&[4, 33], 8, 0), "blocks of 32");
    let mut twice = Maker::model();
    twice.tensors.push(twice.tensors[0].clone());
    refused(open_bytes(&twice.bytes()), "`token_embd.weight` occurs twice");
    // Unknown types are no harm until they are asked for.
    let unknown =
        open_bytes(&Maker::model().tensor("output.weight", &[4, 8], 13, &[0; 64]).bytes()).unwrap();
    refused(unknown.dense("lm_head", 4, 8), "type 13; F32");
}

#[test]
fn impossible_models_are_refused() {
    let model = |change: &dyn Fn(Maker) -> Maker| open_bytes(&change(Maker::model()).bytes());
    assert!(model(&|m| m).is_ok());
    let number = |key: &str, value: u32| {
        open_bytes(&Maker::model().number(&format!("bitnet-25.{key}"), value).bytes())
    };
    for key in [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "context_length",
    ] {
        refused(number(key, 0), key);
        refused(number(key, u32::MAX), key);
        refused(model(&|m| m.text(&format!("bitnet-25.{key}"), "8")), key);
        refused(
            model(&|m| {
                m.set(
                    &format!("bitnet-25.{key}"),
                    ARRAY,
                    &[&U32.to_le_bytes()[..], &[0; 8]].concat(),
                )
            }),
            "an array of 0",
        );
        if key != "attention.head_count_kv" {
            refused(model(&|m| m.without(&format!("bitnet-25.{key}"))), key);
        }
    }
    refused(number("block_count", 4097), "4097 layers");
    refused(number("attention.head_count", 16), "head size");
    refused(number("attention.head_count_kv", 3), "do not divide");
    refused(number("attention.key_length", 3), "odd");
    refused(number("rope.dimension_count", 2), "all of it must rotate");
    refused(number("attention.value_length", 2), "value_length");
    refused(number("expert_count", 2), "experts");
    refused(number("vocab_size", 5), "5 tokens by its metadata, 4 by");
    refused(model(&|m| m.without("token_embd.weight")), "no tensor `token_embd.weight`");
    refused(model(&|m| m.tensor("token_embd.weight", &[32], 0, &[0; 128])), "a matrix");
    refused(model(&|m| m.text("general.architecture", "qwen2")), "`qwen2`");
    refused(
        model(&|m| m.text("general.architecture", "gemma-embedding")),
        "`gemma-embedding` is not supported: tokens attend to those that follow",
    );
    refused(model(&|m| m.without("general.architecture")), "general.architecture");
    refused(model(&|m| m.float("bitnet-25.attention.layer_norm_rms_epsilon", f32::NAN)), "epsilon");
    refused(model(&|m| m.float("bitnet-25.rope.freq_base", 0.0)), "rotary base");
    refused(model(&|m| m.text("bitnet-25.rope.scaling.type", "longrope")), "longrope");
    refused(model(&|m| m.text("bitnet-25.rope.scaling.type", "yarn")), "rope.scaling.factor");
    refused(model(&|m| m.text("bitnet-25.rope.scaling.type", "linear")), "rope.scaling.factor");
    refused(model(&|m| m.number("tokenizer.ggml.bos_token_id", 4)), "token 4");
    refused(model(&|m| m.text("tokenizer.ggml.eos_token_id", "a")), "eos_token_id");
    refused(
        model(&|m| {
            m.tensor("rope_freqs.weight", &[2], 0, &[[0, 0, 0x80, 0x3f], [0, 0, 0, 0]].concat())
        }),
        "rotary factors",
    );
    let linear = |factor: f32| {
        model(&|m| {
            m.text("bitnet-25.rope.scaling.type", "linear")
                .float("bitnet-25.rope.scaling.factor", factor)
        })
    };
    assert_eq!(linear(1.0).unwrap().config().rope_scaling, RopeScaling::None);
    assert_eq!(linear(4.0).unwrap().config().rope_scaling, RopeScaling::Linear(4.0));
    refused(linear(-1.0), "linear by -1");
    refused(model(&|m| m.float("bitnet-25.rope.scaling.attn_factor", 1.19)), "attn_factor is 1.19");
    refused(model(&|m| m.number("prism.hadamard.version", 1)), "prism.hadamard.version");
    // Converters write the factor of transformers, with that of the frequencies in it.
    let yarn = |product: f32| {
        let m = |m: Maker| {
            m.text("bitnet-25.rope.scaling.type", "yarn")
                .float("bitnet-25.rope.scaling.factor", 4.0)
        };
        model(&|maker| m(maker).float("bitnet-25.rope.scaling.yarn_attn_factor", product))
    };
    match yarn(1.138_63).unwrap().config().rope_scaling {
        RopeScaling::Yarn { attention, .. } => {
            approx::assert_abs_diff_eq!(attention, 1.138_63, epsilon = 1e-5)
        }
        other => panic!("{other:?}"),
    }
    refused(yarn(1.0), "yarn_attn_factor is 1");
}

#[test]
fn bad_weights_are_named() {
    let sound = i2s(I2sLayout::X86, 128, &trits(1, 512), 1.0);
    let linear = |kind: u32, shape: [u64; 2], bytes: &[u8]| {
        let model =
            open_bytes(&Maker::model().tensor("output.weight", &shape, kind, bytes).bytes())
                .unwrap();
        model.linear("lm_head", shape[0] as usize, shape[1] as usize)
    };
    assert!(linear(36, [4, 128], &sound).is_ok());
    let with = |at: usize, new: &[u8]| {
        let mut bytes = sound.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    refused(linear(36, [4, 128], &with(77, &[0b0011_0000])), "code 3 at its byte 77");
    for scale in [f32::NAN, f32::INFINITY, -1.0] {
        refused(linear(36, [4, 128], &with(128, &scale.to_le_bytes())), "at its byte 128");
    }
    refused(linear(36, [4, 128], &with(128, &1e-30f32.to_le_bytes())), "scale");
    // A hole in a file.
    refused(
        linear(36, [64, 128], &[vec![0; 2048], 1f32.to_le_bytes().to_vec(), vec![0; 28]].concat()),
        "8192 weights of -1",
    );
    // Shapes that a layout cannot hold point to another.
    refused(linear(36, [3, 64], &[0; 80]), "ReadOptions::i2s_layout");
    let rows =
        open_bytes(&Maker::model().tensor("output.weight", &[3, 128], 36, &[0; 128]).bytes())
            .unwrap();
    refused(
        rows.with_options(ReadOptions::default().i2s_layout(I2sLayout::Rows))
            .linear("lm_head", 3, 128),
        "needs a multiple of 4 rows",
    );

    let block = |bytes: Vec<u8>, at: usize, value: u8| {
        bytes
            .into_iter()
            .enumerate()
            .map(|(i, byte)| if i == at { value } else { byte })
            .collect::<Vec<_>>()
    };
    refused(
        linear(35, [1, 512], &block(tq2(&trits(1, 512), &[1.0; 2]), 70, 0xc0)),
        "block at its byte 66",
    );
    refused(linear(42, [1, 64], &block(q2(&trits(1, 64), &[1.0]), 5, 3)), "the value 2");
    // In any byte.
    for at in 0..64 {
        refused(
            linear(35, [1, 256], &block(tq2(&trits(1, 256), &[1.0]), at, 0x30)),
            "block at its byte 0",
        );
        refused(
            linear(42, [1, 64], &block(q2(&trits(1, 64), &[1.0]), 2 + at % 16, 0x0c)),
            "the value 2",
        );
    }
    // A block whose scale is 0 holds zeros, whatever its codes.
    let values = trits(1, 512);
    let read = linear(35, [1, 512], &tq2(&values, &[0.5, 0.0])).unwrap();
    let zeroed: Vec<i8> =
        values.iter().enumerate().map(|(i, &value)| if i < 256 { value } else { 0 }).collect();
    assert_eq!(read, PackedTernary::from_values(1, 512, &zeroed, Scales::Tensor(0.5)).unwrap());
    refused(linear(34, [1, 256], &tq1(&trits(1, 256), &[f32::INFINITY])), "scale inf");
    refused(linear(8, [1, 32], &[0; 34]), "is Q8_0; F32");
    refused(linear(0, [1, 1], &f32::NAN.to_le_bytes()), "finite");
    let dense = |kind: u32, shape: [u64; 2], bytes: &[u8]| {
        let model =
            open_bytes(&Maker::model().tensor("output.weight", &shape, kind, bytes).bytes())
                .unwrap();
        model.dense("lm_head", shape[0] as usize, shape[1] as usize)
    };
    refused(dense(8, [1, 32], &[0xff; 34]), "finite half");
    refused(dense(36, [1, 128], &i2s(I2sLayout::X86, 128, &trits(1, 128), 1.0)), "is I2_S");

    let model = open_bytes(
        &Maker::model()
            .tensor("blk.0.attn_q.weight", &[8, 8], 0, &[0; 256])
            .tensor("blk.0.attn_q.bias", &[8], 0, &[0; 32])
            .bytes(),
    );
    refused(model.unwrap().linear("model.layers.0.self_attn.q_proj", 8, 8), "has a bias");
    for bad in [0.0f32, -1.0, f32::NAN] {
        let scaled = Maker::model().tensor("output.weight", &[4, 128], 36, &sound).tensor(
            "output.scale",
            &[1],
            0,
            &bad.to_le_bytes(),
        );
        refused(open_bytes(&scaled.bytes()).unwrap().linear("lm_head", 4, 128), "output.scale");
    }
    let model = open_bytes(&Maker::model().bytes()).unwrap();
    refused(model.vector("model.norm", 8), "no tensor `output_norm.weight`");
    refused(model.vector("model.embed_tokens", 8), "[8] is needed");
    refused(model.dense("model.embed_tokens", 8, 4), "[8, 4] is needed");
    refused(model.vocabulary(), "tokenizer.ggml.tokens");
}

#[test]
fn bad_vocabularies_are_refused() {
    let strings = |texts: &[&str]| {
        [
            &STRING.to_le_bytes()[..],
            &(texts.len() as u64).to_le_bytes(),
            &texts.iter().flat_map(|text| string(text)).collect::<Vec<_>>(),
        ]
        .concat()
    };
    let sound = Maker::model()
        .set("tokenizer.ggml.tokens", ARRAY, &strings(&["a", "b"]))
        .text("tokenizer.ggml.model", "llama");
    let read = |maker: Maker| open_bytes(&maker.bytes()).unwrap().vocabulary();
    let scores = [&F32.to_le_bytes()[..], &2u64.to_le_bytes(), &[0; 8]].concat();
    assert_eq!(
        read(sound.clone().set("tokenizer.ggml.scores", ARRAY, &scores)).unwrap().scores,
        Some(vec![0.0; 2])
    );
    let numbers = [&U32.to_le_bytes()[..], &3u64.to_le_bytes(), &[0; 12]].concat();
    refused(read(sound.clone().without("tokenizer.ggml.model")), "tokenizer.ggml.model");
    refused(
        read(sound.clone().set("tokenizer.ggml.token_type", ARRAY, &numbers)),
        "3 elements for 2 tokens",
    );
    refused(
        read(sound.clone().set("tokenizer.ggml.merges", ARRAY, &numbers)),
        "elements of another type",
    );
    refused(read(sound.clone().text("tokenizer.ggml.scores", "x")), "tokenizer.ggml.scores");
    refused(read(sound.clone().text("tokenizer.ggml.add_bos_token", "x")), "add_bos_token");
    refused(
        read(sound.set("tokenizer.ggml.tokens", ARRAY, &strings(&["a"; 5]))),
        "5 tokens, the model 4",
    );
}
