//! GGUF files: made by another encoder, made here from the formats' descriptions, damaged, hostile. The reader gives the right weights or
//! an error, and never panics.

use bitnet_wgpu::{
    DenseElement, Error, PackedTernary, Result, Scales, bitnet,
    formats::{Activation, Gguf, GgufFile, GgufType, GgufValue, I2sLayout, ModelFile, RopeScaling, RotaryOrder, SafeTensors, open},
};
use half::f16;
use proptest::prelude::*;
use std::path::PathBuf;
use support::files::Directory;

fn data(name: &str) -> PathBuf {
    support::data("gguf").join(name)
}

// --- what make.py computes, too

fn mix(seed: u32, i: usize) -> u32 {
    let mut h = (i as u32).wrapping_mul(2654435761).wrapping_add(seed.wrapping_mul(0x9e37_79b9));
    for (shift, factor) in [(15, 0x85eb_ca6b), (13, 0xc2b2_ae35)] {
        h = (h ^ h >> shift).wrapping_mul(factor);
    }
    h ^ h >> 16
}

fn trits(seed: u32, count: usize) -> Vec<i8> {
    (0..count).map(|i| (mix(seed, i) % 3) as i8 - 1).collect()
}

fn floats(seed: u32, count: usize) -> Vec<f32> {
    (0..count).map(|i| (mix(seed, i) >> 8) as f32 / 16_777_216.0 - 0.5).collect()
}

fn scale(seed: u32) -> f32 {
    (1 + seed % 7) as f32 / 16.0
}

fn ternary(seed: u32, rows: usize, columns: usize, scale: f32) -> PackedTernary {
    PackedTernary::from_values(rows, columns, &trits(seed, rows * columns), Scales::Tensor(scale)).unwrap()
}

// --- goldens

#[test]
fn every_type_decodes_as_gguf_py_does() {
    let (file, goldens) = (GgufFile::open(data("types.gguf")).unwrap(), SafeTensors::open(data("types.safetensors")).unwrap());
    let golden = |name: &str| goldens.tensor(name).unwrap().to_f32().unwrap();
    for (name, kind) in [("f32", GgufType::F32), ("f16", GgufType::F16), ("bf16", GgufType::Bf16)] {
        let tensor = file.tensor(name).unwrap();
        assert_eq!((tensor.kind, tensor.matrix().unwrap()), (kind, (3, 5)));
        assert_eq!(tensor.to_f32().unwrap(), golden(name), "{name}");
        let dense = tensor.dense().unwrap();
        assert_eq!([dense.row(0), dense.row(1), dense.row(2)].concat(), golden(name), "{name}");
    }
    // The one difference is the rounding to halves.
    for (name, element) in [("q8_0", DenseElement::F16), ("q6_k", DenseElement::F16)] {
        let dense = file.tensor(name).unwrap().dense().unwrap();
        assert_eq!(dense.element(), element);
        let rows: Vec<f32> = (0..dense.rows()).flat_map(|row| dense.row(row)).collect();
        let halves: Vec<f32> = golden(name).into_iter().map(|v| f16::from_f32(v).to_f32()).collect();
        assert_eq!(rows, halves, "{name}");
    }
    for name in ["tq1_0", "tq2_0"] {
        let w = file.tensor(name).unwrap().ternary(I2sLayout::X86).unwrap();
        assert_eq!(w.scales(), &Scales::Tensor(0.5), "{name}: a block of zeros does not count");
        assert_eq!(w.dequantize(), golden(name), "{name}");
        let groups = file.tensor(&format!("{name}.groups")).unwrap().ternary(I2sLayout::X86).unwrap();
        assert_eq!(groups.scales(), &Scales::Groups { size: 256, scales: vec![0.5, 0.0, 1.0, 1.0, 2.0, 2.0] });
        assert_eq!(groups.dequantize(), golden(&format!("{name}.groups")));
    }
    for (layout, name) in [(I2sLayout::X86, "x86"), (I2sLayout::Arm, "arm"), (I2sLayout::Rows, "rows")] {
        for (kind, rows, columns) in [("i2_s", 8, 128), ("i2_s.small", 16, 24)] {
            let w = file.tensor(&format!("{kind}.{name}")).unwrap().ternary(layout).unwrap();
            assert_eq!(w, ternary(10, rows, columns, 0.625), "{kind}.{name}");
        }
    }
    assert_eq!(file.tensor("q2_0").unwrap().ternary(I2sLayout::X86).unwrap(), ternary(11, 3, 128, 0.25));
    let groups = Scales::Groups { size: 64, scales: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0] };
    let expected = PackedTernary::from_values(3, 128, &trits(12, 3 * 128), groups).unwrap();
    assert_eq!(file.tensor("q2_0.groups").unwrap().ternary(I2sLayout::X86).unwrap(), expected);
}

/// A tensor of a layer, in the order that seeds them: name, rows and columns as multiples of what `Size` has.
const PARTS: [&str; 11] = [
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.attn_sub_norm",
    "mlp.ffn_sub_norm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

#[test]
fn every_architecture_reads_as_it_was_made() {
    for (name, hidden, heads, kv_heads, vocab) in
        [("bitnet-b1.58", 128, 2, 1, 16), ("bitnet-25", 256, 2, 1, 8), ("bitnet", 64, 2, 1, 16), ("llama", 128, 4, 2, 16)]
    {
        let model = open(data(&format!("{name}.gguf"))).unwrap();
        let config = model.config();
        assert_eq!((config.hidden, config.intermediate, config.layers, config.head_dim), (hidden, 64, 1, 16), "{name}");
        assert_eq!((config.heads, config.kv_heads, config.vocab, config.context), (heads, kv_heads, vocab, 77), "{name}");
        assert_eq!((config.eps, config.rope_theta, config.rope_scaling), (1e-5, 500_000.0, RopeScaling::None), "{name}");
        assert_eq!((config.bos, config.eos.as_slice()), (Some(0), &[1, 2][..]), "{name}");
        let relu2 = name.contains("bitnet-");
        assert_eq!(config.activation, if relu2 { Activation::Relu2 } else { Activation::Silu }, "{name}");
        assert_eq!((config.sub_norms, config.tied_head), (name != "llama", name != "llama"), "{name}");
        assert_eq!((config.architecture.as_str(), model.contains("lm_head")), (name, name == "llama"));

        let (attention, kv) = (heads * 16, kv_heads * 16);
        let factor = if name == "bitnet" { 2.0 } else { 1.0 };
        for (seed, part) in PARTS.iter().enumerate() {
            let (seed, full) = (seed as u32, format!("model.layers.0.{part}"));
            let len = [hidden, hidden, attention, 64].get(seed as usize).copied();
            if let Some(len) = len {
                if name != "llama" || !part.contains("sub") {
                    assert_eq!(model.vector(&full, len).unwrap(), floats(seed, len), "{name} {part}");
                }
                continue;
            }
            let (rows, columns) = match seed {
                4 => (attention, hidden),
                5 | 6 => (kv, hidden),
                7 => (hidden, attention),
                8 | 9 => (64, hidden),
                _ => (hidden, 64),
            };
            assert_eq!(model.linear(&full, rows, columns).unwrap(), ternary(seed, rows, columns, scale(seed) * factor), "{name} {part}");
            let error = model.linear(&full, rows, columns + 1).unwrap_err().to_string();
            assert!(error.contains(&format!("[{rows}, {}] is needed", columns + 1)), "{error}");
        }
        assert_eq!(model.vector("model.norm", hidden).unwrap(), floats(102, hidden));
        let embedding = model.dense("model.embed_tokens", vocab, hidden).unwrap();
        let rounded = |v: f32| match embedding.element() {
            DenseElement::F16 => f16::from_f32(v).to_f32(),
            DenseElement::Bf16 => half::bf16::from_f32(v).to_f32(),
            _ => v,
        };
        let expected: Vec<f32> = floats(100, hidden).into_iter().map(rounded).collect();
        assert_eq!(embedding.row(0), expected, "{name}");
        if name == "llama" {
            let head = model.dense("lm_head", vocab, hidden).unwrap();
            assert!(head.row(0).iter().zip(floats(101, hidden)).all(|(a, b)| (a - b).abs() < 0.003));
        }
    }
}

#[test]
fn options_override_what_the_file_does_not_say() {
    let plain = Gguf::open(data("llama.gguf")).unwrap().with_rotary_order(RotaryOrder::Halves);
    let stored = ModelFile::linear(&plain, "model.layers.0.self_attn.q_proj", 64, 128).unwrap();
    let read = ModelFile::linear(&Gguf::open(data("llama.gguf")).unwrap(), "model.layers.0.self_attn.q_proj", 64, 128).unwrap();
    // Pairs: row 2i + s of a head is row 8s + i of transformers.
    let row = |w: &PackedTernary, row: usize| w.to_values()[row * 128..][..128].to_vec();
    assert_eq!((row(&stored, 16), row(&stored, 17), row(&stored, 19)), (row(&read, 16), row(&read, 24), row(&read, 25)));
    // The wrong layout gives other weights, and as many of each.
    let name = "model.layers.0.mlp.gate_proj";
    let model = Gguf::open(data("bitnet-b1.58.gguf")).unwrap();
    let right = model.linear(name, 64, 128).unwrap().to_values();
    let mut wrong = model.with_i2s_layout(I2sLayout::Arm).linear(name, 64, 128).unwrap().to_values();
    assert_ne!(right, wrong);
    let mut right = right;
    right.sort();
    wrong.sort();
    assert_eq!(right, wrong);
}

#[test]
fn vocabularies_are_handed_on() {
    let vocabulary = Gguf::open(data("bitnet-b1.58.gguf")).unwrap().vocabulary().unwrap();
    assert_eq!((vocabulary.model.as_str(), vocabulary.pre.as_deref()), ("gpt2", Some("llama-bpe")));
    assert_eq!((vocabulary.tokens.len(), vocabulary.tokens[15].as_str()), (16, "t15é"));
    assert_eq!(vocabulary.token_types, [&[3, 3][..], &[1; 14]].concat());
    assert_eq!(vocabulary.merges, ["a b", "ab c"]);
    assert_eq!((vocabulary.bos, vocabulary.eos, vocabulary.add_bos), (Some(0), Some(1), Some(true)));
    assert_eq!((vocabulary.chat_template.as_deref(), vocabulary.scores), (Some("{{ messages }}"), None));
}

// --- files made here

#[derive(Clone, Default)]
struct Maker {
    metadata: Vec<Vec<u8>>,
    /// Name, dimensions innermost first, type, bytes.
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

const U32: u32 = 4;
const F32: u32 = 6;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

impl Maker {
    fn set(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let key = string(key);
        self.metadata.retain(|entry| !entry.starts_with(&key));
        self.metadata.push([&key[..], &kind.to_le_bytes(), value].concat());
        self
    }

    fn without(mut self, key: &str) -> Self {
        let key = string(key);
        self.metadata.retain(|entry| !entry.starts_with(&key));
        self.tensors.retain(|tensor| string(&tensor.0) != key);
        self
    }

    fn text(self, key: &str, value: &str) -> Self {
        self.set(key, STRING, &string(value))
    }

    fn number(self, key: &str, value: u32) -> Self {
        self.set(key, U32, &value.to_le_bytes())
    }

    fn float(self, key: &str, value: f32) -> Self {
        self.set(key, F32, &value.to_le_bytes())
    }

    fn tensor(mut self, name: &str, shape: &[u64], kind: u32, bytes: &[u8]) -> Self {
        self.tensors.retain(|tensor| tensor.0 != name);
        self.tensors.push((name.into(), shape.iter().rev().copied().collect(), kind, bytes.to_vec()));
        self
    }

    /// A model of one layer, with as much of it as opening needs.
    fn model() -> Self {
        let keys = ["block_count", "embedding_length", "feed_forward_length", "attention.head_count", "context_length"];
        let maker =
            keys.iter().zip([1, 8, 8, 2, 16]).fold(Self::default(), |maker, (key, value)| maker.number(&format!("bitnet-25.{key}"), value));
        maker.text("general.architecture", "bitnet-25").float("bitnet-25.attention.layer_norm_rms_epsilon", 1e-5).tensor(
            "token_embd.weight",
            &[4, 8],
            0,
            &[0; 4 * 8 * 4],
        )
    }

    fn infos(&self) -> Vec<u8> {
        let (mut offset, mut infos) = (0u64, Vec::new());
        for (name, shape, kind, bytes) in &self.tensors {
            infos.extend([string(name), (shape.len() as u32).to_le_bytes().to_vec()].concat());
            shape.iter().for_each(|size| infos.extend(size.to_le_bytes()));
            infos.extend([&kind.to_le_bytes()[..], &offset.to_le_bytes()].concat());
            offset += bytes.len().next_multiple_of(32) as u64;
        }
        infos
    }

    fn bytes(&self) -> Vec<u8> {
        let counts = [self.tensors.len() as u64, self.metadata.len() as u64].map(u64::to_le_bytes);
        let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &counts[0], &counts[1], &self.metadata.concat(), &self.infos()].concat();
        for (.., bytes) in &self.tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(bytes);
        }
        file
    }
}

fn open_bytes(bytes: &[u8]) -> Result<Gguf> {
    let directory = Directory::temporary();
    // The mapping outlives the name.
    Gguf::open(directory.write("model.gguf", bytes))
}

#[track_caller]
fn refused<T>(result: Result<T>, words: &str) {
    match result.map(|_| ()) {
        Err(error @ Error::Format { .. }) => assert!(error.to_string().contains(words), "{error}"),
        other => panic!("no format error but {other:?}, where `{words}` was expected"),
    }
}

// Encoders, from the descriptions in the formats' documentation.

fn code(values: &[i8], at: usize) -> u8 {
    (values[at] + 1) as u8
}

fn i2s(layout: I2sLayout, columns: usize, values: &[i8], scale: f32) -> Vec<u8> {
    let byte = |at: usize| {
        let element = |q: usize| match layout {
            I2sLayout::X86 => at / 32 * 128 + 32 * q + at % 32,
            I2sLayout::Arm => at / 16 * 64 + 16 * q + at % 16,
            I2sLayout::Rows => (at / columns * 4 + q) * columns + at % columns,
        };
        (0..4).fold(0, |byte, q| byte << 2 | code(values, element(q)))
    };
    let mut bytes: Vec<u8> = (0..values.len() / 4).map(byte).collect();
    bytes.extend([scale.to_le_bytes(); 8].concat());
    bytes
}

fn tq2(values: &[i8], scales: &[f32]) -> Vec<u8> {
    let block = |(values, scale): (&[i8], &f32)| {
        let byte = |at: usize| (0..4).fold(0, |byte, l| byte | code(values, at / 32 * 128 + 32 * l + at % 32) << (2 * l));
        (0..64).map(byte).chain(f16::from_f32(*scale).to_le_bytes()).collect::<Vec<u8>>()
    };
    values.chunks(256).zip(scales).flat_map(block).collect()
}

fn tq1(values: &[i8], scales: &[f32]) -> Vec<u8> {
    // The number whose digits the trits are, as a fraction of 3^5, in 256ths, rounded up.
    let digits = |trits: [u8; 5]| (trits.iter().fold(0u32, |number, &trit| number * 3 + u32::from(trit)) * 256).div_ceil(243) as u8;
    let block = |(values, scale): (&[i8], &f32)| {
        let byte = |at: usize| match at {
            0..32 => digits(std::array::from_fn(|i| code(values, 32 * i + at))),
            32..48 => digits(std::array::from_fn(|i| code(values, 160 + 16 * i + at - 32))),
            _ => digits(std::array::from_fn(|i| if i < 4 { code(values, 240 + 4 * i + at - 48) } else { 0 })),
        };
        (0..52).map(byte).chain(f16::from_f32(*scale).to_le_bytes()).collect::<Vec<u8>>()
    };
    values.chunks(256).zip(scales).flat_map(block).collect()
}

fn q2(values: &[i8], scales: &[f32]) -> Vec<u8> {
    let block = |(values, scale): (&[i8], &f32)| {
        let byte = |at: usize| (0..4).fold(0, |byte, l| byte | code(values, 4 * at + l) << (2 * l));
        f16::from_f32(*scale).to_le_bytes().into_iter().chain((0..16).map(byte)).collect::<Vec<u8>>()
    };
    values.chunks(64).zip(scales).flat_map(block).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ternary_types_round_trip(seed in any::<u32>(), rows in 1usize..6, blocks in 1usize..4, shared in any::<bool>()) {
        let columns = 256 * blocks;
        let values = trits(seed, rows * columns);
        let scale_of = |i: usize| if shared { 0.75 } else { 0.25 + (i % 9) as f32 };
        for (kind, id, size, encode) in [("TQ1_0", 34, 256, tq1 as fn(&[i8], &[f32]) -> Vec<u8>), ("TQ2_0", 35, 256, tq2), ("Q2_0", 42, 64, q2)] {
            let scales: Vec<f32> = (0..rows * columns / size).map(scale_of).collect();
            let model = Maker::model().tensor("output.weight", &[rows as u64, columns as u64], id, &encode(&values, &scales));
            let read = open_bytes(&model.bytes()).unwrap().linear("lm_head", rows, columns).unwrap();
            let one = scales.iter().all(|&scale| scale == scales[0]);
            let scales = if one { Scales::Tensor(scales[0]) } else { Scales::Groups { size, scales } };
            prop_assert_eq!(read, PackedTernary::from_values(rows, columns, &values, scales).unwrap(), "{}", kind);
        }
    }

    #[test]
    fn i2s_round_trips_in_every_layout(seed in any::<u32>(), rows in 1usize..5, columns in 1usize..5, wide in any::<bool>()) {
        // Rows of whole blocks, and rows over whose ends blocks go.
        let (rows, columns) = if wide { (4 * rows, 128 * columns) } else { (32 * rows, 4 * columns) };
        let values = trits(seed, rows * columns);
        let expected = PackedTernary::from_values(rows, columns, &values, Scales::Tensor(1.5)).unwrap();
        for layout in [I2sLayout::X86, I2sLayout::Arm, I2sLayout::Rows] {
            let model = Maker::model().tensor("output.weight", &[rows as u64, columns as u64], 36, &i2s(layout, columns, &values, 1.5));
            let read = open_bytes(&model.bytes()).unwrap().with_i2s_layout(layout).linear("lm_head", rows, columns).unwrap();
            prop_assert_eq!(&read, &expected, "{:?}", layout);
        }
    }

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

fn read_everything(bytes: &[u8]) {
    let directory = Directory::temporary();
    let path = directory.write("model.gguf", bytes);
    if let Ok(file) = GgufFile::open(&path) {
        for key in file.keys() {
            let _ = file.get(key).and_then(|value| value.as_array()).map(|array| array.iter().count());
        }
        for tensor in file.names().filter_map(|name| file.tensor(name).ok()) {
            for layout in [I2sLayout::X86, I2sLayout::Arm, I2sLayout::Rows] {
                let _ = tensor.ternary(layout).map(|w| w.dequantize());
            }
            let _ = (tensor.dense(), tensor.to_f32());
        }
    }
    if let Ok(model) = Gguf::open(&path) {
        let config = model.config().clone();
        let (hidden, attention) = (config.hidden, config.heads * config.head_dim);
        let _ = (model.vocabulary(), model.dense("model.embed_tokens", config.vocab, hidden), model.dense("lm_head", config.vocab, hidden));
        let _ = (model.linear("model.layers.0.self_attn.q_proj", attention, hidden), model.vector("model.norm", hidden));
    }
}

// --- hostile files

#[test]
fn headers_that_stop_anywhere_are_refused() {
    let model = Maker::model().tensor("output.weight", &[1, 128], 36, &i2s(I2sLayout::X86, 128, &trits(1, 128), 1.0)).set(
        "tokenizer.ggml.tokens",
        ARRAY,
        &[&STRING.to_le_bytes()[..], &2u64.to_le_bytes(), &string("a"), &string("b")].concat(),
    );
    let bytes = model.bytes();
    assert!(open_bytes(&bytes).is_ok());
    let directory = Directory::temporary();
    for length in 0..bytes.len() {
        let path = directory.write("model.gguf", &bytes[..length]);
        match Gguf::open(&path) {
            Err(Error::Format { .. }) => {}
            other => panic!("{length} of {} bytes: {other:?}", bytes.len()),
        }
    }
}

#[test]
fn absurd_headers_are_named() {
    let sound = Maker::model().bytes();
    let with = |at: usize, bytes: &[u8]| {
        let mut file = sound.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        open_bytes(&file)
    };
    refused(with(0, b"GGML"), "no GGUF file");
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

    let metadata = |kind: u32, value: &[u8]| open_bytes(&Maker::model().set("key", kind, value).bytes());
    refused(metadata(13, &[0; 8]), "type 13");
    refused(metadata(u32::MAX, &[0; 8]), "type 4294967295");
    refused(metadata(7, &[2]), "truth value");
    refused(metadata(STRING, &[&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat()), "UTF-8");
    refused(metadata(STRING, &u64::MAX.to_le_bytes()), "18446744073709551615 bytes");
    let array = |kind: u32, count: u64, rest: &[u8]| metadata(ARRAY, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), rest].concat());
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
        refused(open_bytes(&Maker::model().number("general.alignment", alignment).bytes()), "general.alignment");
    }
    refused(open_bytes(&Maker::model().text("general.alignment", "32").bytes()), "general.alignment");
    refused(open_bytes(&Maker::model().number("general.alignment", 1 << 20).bytes()), "data should begin");
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
    refused(with(&[1 << 32, 1 << 32], 0, 0), "absurd dimensions");
    refused(with(&[0, 1 << 32, 1 << 32], 0, 0), "absurd dimensions");
    refused(with(&[1 << 62, 4], 36, 0), "absurd dimensions");
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
    let unknown = open_bytes(&Maker::model().tensor("output.weight", &[4, 8], 12, &[0; 64]).bytes()).unwrap();
    refused(unknown.dense("lm_head", 4, 8), "type 12; F32");
}

#[test]
fn impossible_models_are_refused() {
    let model = |change: &dyn Fn(Maker) -> Maker| open_bytes(&change(Maker::model()).bytes());
    assert!(model(&|m| m).is_ok());
    let number = |key: &str, value: u32| open_bytes(&Maker::model().number(&format!("bitnet-25.{key}"), value).bytes());
    for key in
        ["block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv", "context_length"]
    {
        refused(number(key, 0), key);
        refused(number(key, u32::MAX), key);
        refused(model(&|m| m.text(&format!("bitnet-25.{key}"), "8")), key);
        refused(model(&|m| m.set(&format!("bitnet-25.{key}"), ARRAY, &[&U32.to_le_bytes()[..], &[0; 8]].concat())), "an array of 0");
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
    refused(model(&|m| m.text("general.architecture", "qwen3")), "`qwen3`");
    refused(model(&|m| m.without("general.architecture")), "general.architecture");
    refused(model(&|m| m.float("bitnet-25.attention.layer_norm_rms_epsilon", f32::NAN)), "epsilon");
    refused(model(&|m| m.float("bitnet-25.rope.freq_base", 0.0)), "rotary base");
    refused(model(&|m| m.text("bitnet-25.rope.scaling.type", "yarn")), "yarn");
    refused(model(&|m| m.text("bitnet-25.rope.scaling.type", "linear")), "rope.scaling.factor");
    refused(model(&|m| m.number("tokenizer.ggml.bos_token_id", 4)), "token 4");
    refused(model(&|m| m.text("tokenizer.ggml.eos_token_id", "a")), "eos_token_id");
    refused(model(&|m| m.tensor("rope_freqs.weight", &[2], 0, &[[0, 0, 0x80, 0x3f], [0, 0, 0, 0x40]].concat())), "rope_freqs");
    let linear = |factor: f32| model(&|m| m.text("bitnet-25.rope.scaling.type", "linear").float("bitnet-25.rope.scaling.factor", factor));
    assert_eq!(linear(1.0).unwrap().config().rope_scaling, RopeScaling::None);
    assert_eq!(linear(4.0).unwrap().config().rope_scaling, RopeScaling::Linear(4.0));
    refused(linear(-1.0), "Linear(-1.0)");
}

#[test]
fn bad_weights_are_named() {
    let sound = i2s(I2sLayout::X86, 128, &trits(1, 512), 1.0);
    let linear = |kind: u32, shape: [u64; 2], bytes: &[u8]| {
        let model = open_bytes(&Maker::model().tensor("output.weight", &shape, kind, bytes).bytes()).unwrap();
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
    refused(linear(36, [64, 128], &[vec![0; 2048], 1f32.to_le_bytes().to_vec(), vec![0; 28]].concat()), "8192 weights of -1");
    // Shapes that a layout cannot hold point to another.
    refused(linear(36, [3, 64], &[0; 80]), "with_i2s_layout");
    let rows = open_bytes(&Maker::model().tensor("output.weight", &[3, 128], 36, &[0; 128]).bytes()).unwrap();
    refused(rows.with_i2s_layout(I2sLayout::Rows).linear("lm_head", 3, 128), "Rows cannot hold");

    let block = |bytes: Vec<u8>, at: usize, value: u8| {
        bytes.into_iter().enumerate().map(|(i, byte)| if i == at { value } else { byte }).collect::<Vec<_>>()
    };
    refused(linear(35, [1, 512], &block(tq2(&trits(1, 512), &[1.0; 2]), 70, 0xc0)), "block at its byte 66");
    refused(linear(42, [1, 64], &block(q2(&trits(1, 64), &[1.0]), 5, 3)), "the value 2");
    refused(linear(34, [1, 256], &tq1(&trits(1, 256), &[f32::INFINITY])), "scale inf");
    refused(linear(8, [1, 32], &[0; 34]), "is Q8_0; F32");
    refused(linear(0, [1, 1], &f32::NAN.to_le_bytes()), "finite");
    let dense = |kind: u32, shape: [u64; 2], bytes: &[u8]| {
        let model = open_bytes(&Maker::model().tensor("output.weight", &shape, kind, bytes).bytes()).unwrap();
        model.dense("lm_head", shape[0] as usize, shape[1] as usize)
    };
    refused(dense(8, [1, 32], &[0xff; 34]), "finite half");
    refused(dense(36, [1, 128], &i2s(I2sLayout::X86, 128, &trits(1, 128), 1.0)), "is I2S");

    let model = open_bytes(
        &Maker::model().tensor("blk.0.attn_q.weight", &[8, 8], 0, &[0; 256]).tensor("blk.0.attn_q.bias", &[8], 0, &[0; 32]).bytes(),
    );
    refused(model.unwrap().linear("model.layers.0.self_attn.q_proj", 8, 8), "has a bias");
    for bad in [0.0f32, -1.0, f32::NAN] {
        let scaled = Maker::model().tensor("output.weight", &[4, 128], 36, &sound).tensor("output.scale", &[1], 0, &bad.to_le_bytes());
        refused(open_bytes(&scaled.bytes()).unwrap().linear("lm_head", 4, 128), "output.scale");
    }
    let model = open_bytes(&Maker::model().bytes()).unwrap();
    refused(model.vector("model.norm", 8), "no tensor `output_norm.weight`");
    refused(model.vector("model.embed_tokens", 8), "[8] is needed");
    refused(model.dense("model.embed_tokens", 8, 4), "[8, 4] is needed");
    refused(model.vocabulary(), "tokenizer.ggml.tokens");
}

#[test]
fn float_weights_are_taken_or_quantised() {
    let linear = |values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let model = Maker::model().tensor("output.weight", &[2, values.len() as u64 / 2], 0, &bytes);
        open_bytes(&model.bytes()).unwrap().linear("lm_head", 2, values.len() / 2).unwrap()
    };
    // Converted weights keep their scale; masters are quantised.
    let ternary = linear(&[0.3, -0.3, 0.0, 0.0, -0.0, 0.3]);
    assert_eq!((ternary.scales(), ternary.to_values()), (&Scales::Tensor(0.3), vec![1, -1, 0, 0, 0, 1]));
    let masters = [0.3f32, -0.2, 0.01, 0.0, 0.5, 0.3];
    assert_eq!(linear(&masters), bitnet::quantize_weights_cpu(&masters, 2, 3).unwrap());
    assert_eq!(linear(&[0.0; 6]).to_values(), [0; 6]);
}

#[test]
fn bad_vocabularies_are_refused() {
    let strings = |texts: &[&str]| {
        [&STRING.to_le_bytes()[..], &(texts.len() as u64).to_le_bytes(), &texts.iter().flat_map(|text| string(text)).collect::<Vec<_>>()]
            .concat()
    };
    let sound = Maker::model().set("tokenizer.ggml.tokens", ARRAY, &strings(&["a", "b"])).text("tokenizer.ggml.model", "llama");
    let read = |maker: Maker| open_bytes(&maker.bytes()).unwrap().vocabulary();
    let scores = [&F32.to_le_bytes()[..], &2u64.to_le_bytes(), &[0; 8]].concat();
    assert_eq!(read(sound.clone().set("tokenizer.ggml.scores", ARRAY, &scores)).unwrap().scores, Some(vec![0.0; 2]));
    let numbers = [&U32.to_le_bytes()[..], &3u64.to_le_bytes(), &[0; 12]].concat();
    refused(read(sound.clone().without("tokenizer.ggml.model")), "tokenizer.ggml.model");
    refused(read(sound.clone().set("tokenizer.ggml.token_type", ARRAY, &numbers)), "3 elements for 2 tokens");
    refused(read(sound.clone().set("tokenizer.ggml.merges", ARRAY, &numbers)), "elements of another type");
    refused(read(sound.clone().text("tokenizer.ggml.scores", "x")), "tokenizer.ggml.scores");
    refused(read(sound.clone().text("tokenizer.ggml.add_bos_token", "x")), "add_bos_token");
    refused(read(sound.set("tokenizer.ggml.tokens", ARRAY, &strings(&["a"; 5]))), "5 tokens, the model 4");
}

#[test]
fn metadata_has_every_type() {
    let kinds: [(u32, &[u8], GgufValue<'_>); 12] = [
        (0, &[200], GgufValue::U8(200)),
        (1, &[200], GgufValue::I8(-56)),
        (2, &[1, 2], GgufValue::U16(513)),
        (3, &[0xff, 0xff], GgufValue::I16(-1)),
        (4, &[0xff; 4], GgufValue::U32(u32::MAX)),
        (5, &[0xff; 4], GgufValue::I32(-1)),
        (6, &[0, 0, 0x80, 0x3f], GgufValue::F32(1.0)),
        (7, &[1], GgufValue::Bool(true)),
        (8, &[1, 0, 0, 0, 0, 0, 0, 0, b'x'], GgufValue::String("x")),
        (10, &[0xff; 8], GgufValue::U64(u64::MAX)),
        (11, &[0xff; 8], GgufValue::I64(-1)),
        (12, &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f], GgufValue::F64(1.0)),
    ];
    for (kind, bytes, value) in kinds {
        let array = [&kind.to_le_bytes()[..], &2u64.to_le_bytes(), bytes, bytes].concat();
        let model = open_bytes(&Maker::model().set("one", kind, bytes).set("two", ARRAY, &array).bytes()).unwrap();
        assert_eq!(model.file().get("one"), Some(value));
        let array = model.file().get("two").unwrap().as_array().unwrap();
        assert_eq!((array.len(), array.iter().collect::<Vec<_>>()), (2, vec![value, value]));
    }
    let model = open_bytes(&Maker::model().bytes()).unwrap();
    assert_eq!((model.file().get("none"), model.file().keys().count()), (None, 7));
}
