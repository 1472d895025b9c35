//! GGUF files: made by another encoder, made here from the formats' descriptions (file.rs), one
//! model in every encoding (encodings.rs), damaged and hostile (hostile.rs), and written
//! (written.rs). The reader gives the right weights or an error, and never panics.

use bitnet_wgpu::{
    Error, bitnet,
    formats::{GgufFile, GgufType, GgufValue, I2sLayout, ModelFile, Pooling, ReadOptions, open},
    internals::{Activation, GgufModel, RopeScaling, RotaryOrder, SafeTensors},
    reference,
    weights::{DenseElement, PackedTernary, Scales},
};
use half::f16;
use proptest::prelude::*;
use std::path::PathBuf;

mod converted;
mod encodings;
mod file;
mod groups;
mod hadamard;
mod hostile;
mod layouts;
mod qwen35;
mod written;

pub use file::*;

fn data(name: &str) -> PathBuf {
    support::data("gguf").join(name)
}

// What data/gguf/make.py computes, too.

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
    PackedTernary::from_values(rows, columns, &trits(seed, rows * columns), Scales::Tensor(scale))
        .unwrap()
}

#[test]
fn every_type_decodes_as_gguf_py_does() {
    let (file, goldens) = (
        GgufFile::open(data("types.gguf")).unwrap(),
        SafeTensors::open(data("types.safetensors")).unwrap(),
    );
    let golden = |name: &str| goldens.tensor(name).unwrap().to_f32().unwrap();
    for (name, kind) in [("f32", GgufType::F32), ("f16", GgufType::F16), ("bf16", GgufType::Bf16)] {
        let tensor = file.tensor(name).unwrap();
        assert_eq!((tensor.kind, tensor.shape), (kind, &[3, 5][..]));
        assert_eq!(tensor.to_f32().unwrap(), golden(name), "{name}");
        let dense = tensor.dense().unwrap();
        assert_eq!([dense.row(0), dense.row(1), dense.row(2)].concat(), golden(name), "{name}");
    }
    // The one difference is the rounding to f16.
    for (name, element) in
        [("q8_0", DenseElement::F16), ("q4_k", DenseElement::F16), ("q6_k", DenseElement::F16)]
    {
        let dense = file.tensor(name).unwrap().dense().unwrap();
        assert_eq!(dense.element(), element);
        let rows: Vec<f32> = (0..dense.rows()).flat_map(|row| dense.row(row)).collect();
        let halves: Vec<f32> =
            golden(name).into_iter().map(|v| f16::from_f32(v).to_f32()).collect();
        assert_eq!(rows, halves, "{name}");
    }
    for name in ["tq1_0", "tq2_0"] {
        let w = file.tensor(name).unwrap().ternary(I2sLayout::X86).unwrap();
        assert_eq!(w.scales(), &Scales::Tensor(0.5), "{name}: a block of zeros does not count");
        assert_eq!(w.dequantize(), golden(name), "{name}");
        let groups =
            file.tensor(&format!("{name}.groups")).unwrap().ternary(I2sLayout::X86).unwrap();
        assert_eq!(
            groups.scales(),
            &Scales::Segments(vec![(1, 0.5), (1, 1.0), (1, 2.0)]),
            "{name}: one a row"
        );
        assert_eq!(groups.dequantize(), golden(&format!("{name}.groups")));
    }
    for (layout, name) in
        [(I2sLayout::X86, "x86"), (I2sLayout::Arm, "arm"), (I2sLayout::Rows, "rows")]
    {
        for (kind, rows, columns) in [("i2_s", 8, 128), ("i2_s.small", 16, 24)] {
            let w = file.tensor(&format!("{kind}.{name}")).unwrap().ternary(layout).unwrap();
            assert_eq!(w, ternary(10, rows, columns, 0.625), "{kind}.{name}");
        }
    }
    assert_eq!(
        file.tensor("q2_0").unwrap().ternary(I2sLayout::X86).unwrap(),
        ternary(11, 3, 128, 0.25)
    );
    let groups = Scales::Groups { size: 64, scales: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0] };
    let expected = PackedTernary::from_values(3, 128, &trits(12, 3 * 128), groups).unwrap();
    assert_eq!(file.tensor("q2_0.groups").unwrap().ternary(I2sLayout::X86).unwrap(), expected);
}

/// A tensor of a layer, in the order that seeds them: name, rows and columns as multiples of what
/// `Size` has.
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
    for (name, hidden, heads, kv_heads, vocab) in [
        ("bitnet-b1.58", 128, 2, 1, 16),
        ("bitnet-25", 256, 2, 1, 8),
        ("bitnet", 64, 2, 1, 16),
        ("llama", 128, 4, 2, 16),
    ] {
        let model = open(data(&format!("{name}.gguf"))).unwrap();
        let config = model.config();
        assert_eq!(
            (config.hidden, config.intermediate, config.layers, config.head_dim),
            (hidden, 64, 1, 16),
            "{name}"
        );
        assert_eq!(
            (config.heads, config.kv_heads, config.vocab, config.context),
            (heads, kv_heads, vocab, 77),
            "{name}"
        );
        assert_eq!(
            (config.eps, config.rope_theta, config.rope_scaling),
            (1e-5, 500_000.0, RopeScaling::None),
            "{name}"
        );
        assert_eq!((config.bos, config.eos.as_slice()), (Some(0), &[1, 2][..]), "{name}");
        let relu2 = name.contains("bitnet-");
        assert_eq!(
            config.activation,
            if relu2 { Activation::Relu2 } else { Activation::Silu },
            "{name}"
        );
        assert_eq!(
            (config.sub_norms, config.tied_head),
            (name != "llama", name != "llama"),
            "{name}"
        );
        assert_eq!(
            (config.architecture.as_str(), model.contains("lm_head")),
            (name, name == "llama")
        );

        let (attention, kv) = (heads * 16, kv_heads * 16);
        let factor = if name == "bitnet" { 2.0 } else { 1.0 };
        for (seed, part) in PARTS.iter().enumerate() {
            let (seed, full) = (seed as u32, format!("model.layers.0.{part}"));
            let len = [hidden, hidden, attention, 64].get(seed as usize).copied();
            if let Some(len) = len {
                if name != "llama" || !part.contains("sub") {
                    assert_eq!(
                        model.vector(&full, len).unwrap(),
                        floats(seed, len),
                        "{name} {part}"
                    );
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
            assert_eq!(
                model.linear(&full, rows, columns).unwrap(),
                ternary(seed, rows, columns, scale(seed) * factor),
                "{name} {part}"
            );
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
            approx::assert_abs_diff_eq!(
                &head.row(0)[..],
                &floats(101, hidden)[..],
                epsilon = 0.003
            );
        }
    }
}

#[test]
fn options_override_what_the_file_does_not_say() {
    let plain = GgufModel::open(data("llama.gguf"))
        .unwrap()
        .with_options(ReadOptions::default().rotary_order(RotaryOrder::Halves));
    let stored = ModelFile::linear(&plain, "model.layers.0.self_attn.q_proj", 64, 128).unwrap();
    let read = ModelFile::linear(
        &GgufModel::open(data("llama.gguf")).unwrap(),
        "model.layers.0.self_attn.q_proj",
        64,
        128,
    )
    .unwrap();
    // Pairs: row 2i + s of a head is row 8s + i of transformers.
    let row = |w: &PackedTernary, row: usize| w.to_values()[row * 128..][..128].to_vec();
    assert_eq!(
        (row(&stored, 16), row(&stored, 17), row(&stored, 19)),
        (row(&read, 16), row(&read, 24), row(&read, 25))
    );
    // The wrong layout gives other weights, and as many of each.
    let name = "model.layers.0.mlp.gate_proj";
    let model = GgufModel::open(data("bitnet-b1.58.gguf")).unwrap();
    let right = model.linear(name, 64, 128).unwrap().to_values();
    let mut wrong = model
        .with_options(ReadOptions::default().i2s_layout(I2sLayout::Arm))
        .linear(name, 64, 128)
        .unwrap()
        .to_values();
    assert_ne!(right, wrong);
    let mut right = right;
    right.sort();
    wrong.sort();
    assert_eq!(right, wrong);
}

#[test]
fn vocabularies_are_handed_on() {
    let vocabulary = GgufModel::open(data("bitnet-b1.58.gguf")).unwrap().vocabulary().unwrap();
    assert_eq!((vocabulary.model.as_str(), vocabulary.pre.as_deref()), ("gpt2", Some("llama-bpe")));
    assert_eq!((vocabulary.tokens.len(), vocabulary.tokens[15].as_str()), (16, "t15é"));
    assert_eq!(vocabulary.token_types, [&[3, 3][..], &[1; 14]].concat());
    assert_eq!(vocabulary.merges, ["a b", "ab c"]);
    assert_eq!(
        (vocabulary.bos, vocabulary.eos, vocabulary.add_bos),
        (Some(0), Some(1), Some(true))
    );
    assert_eq!(
        (vocabulary.chat_template.as_deref(), vocabulary.scores),
        (Some("{{ messages }}"), None)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ternary_types_round_trip(seed in any::<u32>(), rows in 1usize..6, blocks in 1usize..4, shared in any::<bool>()) {
        let columns = 256 * blocks;
        let values = trits(seed, rows * columns);
        let scale_of = |i: usize| if shared { 0.75 } else { 0.25 + (i % 9) as f32 };
        for (kind, id, size, encode) in [("TQ1_0", 34, 256, tq1 as fn(&[i8], &[f32]) -> Vec<u8>), ("TQ2_0", 35, 256, tq2), ("Q2_0", 42, 64, q2), ("PQ2_0", 142, 128, pq2), ("PTQ1_0", 143, 128, ptq1)] {
            let scales: Vec<f32> = (0..rows * columns / size).map(scale_of).collect();
            let model = Maker::model().tensor("output.weight", &[rows as u64, columns as u64], id, &encode(&values, &scales));
            let read = open_bytes(&model.bytes()).unwrap().linear("lm_head", rows, columns).unwrap();
            let one = scales.iter().all(|&scale| scale == scales[0]);
            let scales = match columns / size {
                _ if one => Scales::Tensor(scales[0]),
                1 => Scales::Segments(scales.into_iter().map(|scale| (1, scale)).collect()),
                _ => Scales::Groups { size, scales },
            };
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
            let read = open_bytes(&model.bytes()).unwrap().with_options(ReadOptions::default().i2s_layout(layout)).linear("lm_head", rows, columns).unwrap();
            prop_assert_eq!(&read, &expected, "{:?}", layout);
        }
    }
}

#[test]
fn float_weights_are_taken_or_quantised() {
    let linear = |values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let model =
            Maker::model().tensor("output.weight", &[2, values.len() as u64 / 2], 0, &bytes);
        open_bytes(&model.bytes()).unwrap().linear("lm_head", 2, values.len() / 2).unwrap()
    };
    // Converted weights keep their scale; float weights are quantized.
    let ternary = linear(&[0.3, -0.3, 0.0, 0.0, -0.0, 0.3]);
    assert_eq!(
        (ternary.scales(), ternary.to_values()),
        (&Scales::Tensor(0.3), vec![1, -1, 0, 0, 0, 1])
    );
    let masters = [0.3f32, -0.2, 0.01, 0.0, 0.5, 0.3];
    assert_eq!(
        linear(&masters),
        reference::quantize_weights(&masters, [2, 3], bitnet::WeightQuantizer::absmean()).unwrap()
    );
    assert_eq!(linear(&[0.0; 6]).to_values(), [0; 6]);
}

/// Nothing says that a model of the architecture `llama` was trained for ternary weights.
#[test]
fn other_float_models_are_not_quantised_unasked() {
    let open = |values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        open_bytes(&Maker::of("llama").tensor("output.weight", &[2, 3], 0, &bytes).bytes()).unwrap()
    };
    let masters = [0.3f32, -0.2, 0.01, 0.0, 0.5, 0.3];
    match open(&masters).linear("lm_head", 2, 3) {
        Err(error @ Error::Unsupported { .. }) => {
            assert!(error.to_string().contains("ReadOptions::quantize"), "{error}")
        }
        other => panic!("{other:?}"),
    }
    let quantized =
        reference::quantize_weights(&masters, [2, 3], bitnet::WeightQuantizer::absmean()).unwrap();
    assert_eq!(
        open(&masters)
            .with_options(ReadOptions::default().quantize(true))
            .linear("lm_head", 2, 3)
            .unwrap(),
        quantized
    );
    assert_eq!(
        open(&[0.3, -0.3, 0.0, 0.0, -0.0, 0.3]).linear("lm_head", 2, 3).unwrap().scales(),
        &Scales::Tensor(0.3)
    );
}

/// As llama.cpp numbers them.
#[test]
fn poolings_are_read() {
    let open = |kind: u32| {
        open_bytes(&Maker::of("qwen3").number("qwen3.pooling_type", kind).bytes())
            .unwrap()
            .config()
            .embedding
            .clone()
    };
    for (kind, pooling) in
        [(0, None), (1, Some(Pooling::Mean)), (2, Some(Pooling::Cls)), (3, Some(Pooling::Last))]
    {
        assert_eq!(
            (open(kind).pooling, open(kind).normalize, open(kind).unsupported),
            (pooling, None, None)
        );
    }
    assert_eq!(open(4).unsupported.as_deref(), Some("pooling_type is 4 (ranking)"));
    assert_eq!(open(7).unsupported.as_deref(), Some("pooling_type is 7"));
    let error = |maker: Maker| open_bytes(&maker.bytes()).unwrap_err();
    assert!(
        error(Maker::of("qwen3").text("qwen3.pooling_type", "mean"))
            .to_string()
            .contains("pooling_type is")
    );
    let causal = |value: u8| Maker::of("qwen3").set("qwen3.attention.causal", 7, &[value]);
    assert!(
        matches!(error(causal(0)), Error::Unsupported { .. })
            && open_bytes(&causal(1).bytes()).is_ok()
    );
    assert!(matches!(
        error(Maker::of("qwen3").number("qwen3.attention.causal", 0)),
        Error::Format { .. }
    ));
}

/// As llama.cpp's converter writes them: the last divides.
#[test]
fn factors_of_minicpm_are_read() {
    let keys = |m: Maker| {
        m.float("minicpm.embedding_scale", 12.0)
            .float("minicpm.residual_scale", 0.25)
            .float("minicpm.logit_scale", 4.0)
    };
    let file = || keys(Maker::of("minicpm"));
    let model = open_bytes(&file().bytes()).unwrap();
    let c = model.config();
    assert_eq!(
        (c.embedding_scale, c.residual_scale, c.logit_scale, c.quantized_activations),
        (12.0, 0.25, 0.25, false)
    );
    for key in ["embedding_scale", "residual_scale", "logit_scale"] {
        let key = format!("minicpm.{key}");
        let error = open_bytes(&file().without(&key).bytes()).unwrap_err();
        assert!(
            matches!(&error, Error::Unsupported { message, .. } if message.contains(&format!("has no {key}, as older"))),
            "{error}"
        );
        assert!(matches!(open_bytes(&file().text(&key, "1").bytes()), Err(Error::Format { .. })));
    }
    assert!(
        open_bytes(&file().float("minicpm.logit_scale", 0.0).bytes())
            .unwrap_err()
            .to_string()
            .contains("scaled by inf")
    );
}

#[test]
fn factors_of_granite_are_read() {
    let file = || {
        ["embedding_scale", "attention.scale", "residual_scale", "logit_scale"]
            .into_iter()
            .fold(Maker::of("granite"), |file, key| file.float(&format!("granite.{key}"), 0.25))
    };
    let model = open_bytes(&file().bytes()).unwrap();
    let c = model.config();
    assert_eq!((c.embedding_scale, c.residual_scale, c.logit_scale), (0.25, 0.25, 4.0));
    assert_eq!(c.query_scale, 0.25 * (c.head_dim as f32).sqrt());
    let usual = open_bytes(&file().without("granite.attention.scale").bytes()).unwrap();
    assert_eq!(usual.config().query_scale, 1.0);
    // Without rotary embedding.
    let error = open_bytes(&file().set("granite.rope.scaling.finetuned", 7, &[0]).bytes());
    assert!(matches!(
        error.unwrap_err(),
        Error::Unsupported { message, .. } if message.contains("finetuned is false")
    ));
}

/// What divides every frequency by a number of its own: LongRoPE's two lists, and the numbers that
/// Llama 3.1's scaling comes to.
#[test]
fn factors_of_frequencies_are_read() {
    let list = |numbers: [f32; 2]| numbers.map(f32::to_le_bytes).concat();
    let scaled = |kind: &str, original: u32| {
        Maker::of("llama")
            .text("llama.rope.scaling.type", kind)
            .number("llama.rope.scaling.original_context_length", original)
    };
    let longrope = |original, short, long| {
        let maker = scaled("longrope", original).float("llama.rope.scaling.attn_factor", 1.25);
        maker.tensor("rope_factors_short.weight", &[2], 0, &list(short)).tensor(
            "rope_factors_long.weight",
            &[2],
            0,
            &list(long),
        )
    };
    let read = |maker: Maker| {
        open_bytes(&maker.bytes())
            .map(|file| (file.config().rope_scaling, file.config().rope_factors.clone()))
    };
    let (scaling, [short, other]) =
        (RopeScaling::LongRope { attention: 1.25 }, [[1.0, 1.5], [1.0, 3.0]]);
    assert_eq!(read(longrope(8, short, short)).unwrap(), (scaling, short.to_vec()));
    // A context of 16 is within the original one, so that the other list serves no text.
    assert_eq!(read(longrope(16, short, other)).unwrap(), (scaling, short.to_vec()));
    assert_eq!(
        read(longrope(16, short, short).float("llama.rope.scaling.factor", 1.0)).unwrap().1,
        short
    );
    let refused = |maker: Maker, words: &str, unsupported: bool| {
        let error = read(maker).unwrap_err();
        assert!(
            error.to_string().contains(words)
                && matches!(error, Error::Unsupported { .. }) == unsupported,
            "{error}"
        );
    };
    refused(longrope(8, short, other), "beyond 8 tokens", true);
    let unsaid = |short, long| {
        longrope(16, short, long).without("llama.rope.scaling.original_context_length")
    };
    refused(unsaid(short, other), "original_context_length", false);
    assert_eq!(read(unsaid(short, short)).unwrap(), (scaling, short.to_vec()));
    // Never as if they were not there.
    for kind in ["none", "linear", "yarn"] {
        let maker = longrope(16, short, short)
            .text("llama.rope.scaling.type", kind)
            .float("llama.rope.scaling.factor", 2.0);
        refused(
            maker.without("llama.rope.scaling.attn_factor"),
            "the tensor `rope_factors_short.weight`",
            true,
        );
    }
    let unnamed = longrope(16, short, short).without("llama.rope.scaling.attn_factor");
    refused(unnamed.without("llama.rope.scaling.type"), "is not `longrope`", true);
    refused(
        longrope(16, short, short).tensor("rope_freqs.weight", &[2], 0, &list(other)),
        "has longrope and the tensor `rope_freqs.weight`",
        true,
    );
    refused(
        longrope(16, short, short).float("llama.rope.scaling.factor", 4.0),
        "beside the scaling linear by 4",
        true,
    );
    refused(scaled("longrope", 16), "no tensor `rope_factors_short.weight`", false);
    refused(longrope(16, [1.0, 0.0], [1.0, 0.0]), "2 rotary factors; 2 positive ones", false);
    refused(longrope(16, [1.0, f32::NAN], [1.0, 0.0]), "positive ones", false);
    let three = [list(short), 1f32.to_le_bytes().to_vec()].concat();
    refused(
        longrope(16, short, short).tensor("rope_factors_short.weight", &[3], 0, &three),
        "3 rotary factors; 2",
        false,
    );
    let frequencies =
        |maker: Maker, numbers| maker.tensor("rope_freqs.weight", &[2], 0, &list(numbers));
    assert_eq!(
        read(frequencies(Maker::of("llama"), other)).unwrap(),
        (RopeScaling::LongRope { attention: 1.0 }, other.to_vec())
    );
    assert_eq!(
        read(frequencies(Maker::of("llama"), [1.0, 1.0])).unwrap(),
        (RopeScaling::None, Vec::new())
    );
    refused(
        frequencies(scaled("linear", 16).float("llama.rope.scaling.factor", 4.0), other),
        "beside the scaling linear by 4",
        true,
    );
    refused(frequencies(Maker::of("llama"), [-1.0, 1.0]), "positive ones", false);
}

#[test]
fn metadata_has_every_type() {
    let kinds: [(u32, &[u8], GgufValue<'_>); 12] = [
        (0, &[200], GgufValue::Unsigned(200)),
        (1, &[200], GgufValue::Signed(-56)),
        (2, &[1, 2], GgufValue::Unsigned(513)),
        (3, &[0xff, 0xff], GgufValue::Signed(-1)),
        (4, &[0xff; 4], GgufValue::Unsigned(u32::MAX.into())),
        (5, &[0xff; 4], GgufValue::Signed(-1)),
        (6, &[0, 0, 0x80, 0x3f], GgufValue::Float(1.0)),
        (7, &[1], GgufValue::Bool(true)),
        (8, &[1, 0, 0, 0, 0, 0, 0, 0, b'x'], GgufValue::String("x")),
        (10, &[0xff; 8], GgufValue::Unsigned(u64::MAX)),
        (11, &[0xff; 8], GgufValue::Signed(-1)),
        (12, &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f], GgufValue::Float(1.0)),
    ];
    for (kind, bytes, value) in kinds {
        let array = [&kind.to_le_bytes()[..], &2u64.to_le_bytes(), bytes, bytes].concat();
        let model =
            open_bytes(&Maker::model().set("one", kind, bytes).set("two", ARRAY, &array).bytes())
                .unwrap();
        assert_eq!(model.file().get("one"), Some(value));
        let Some(GgufValue::Array(array)) = model.file().get("two") else { panic!("no array") };
        assert_eq!((array.len(), array.iter().collect::<Vec<_>>()), (2, vec![value, value]));
    }
    let model = open_bytes(&Maker::model().bytes()).unwrap();
    assert_eq!((model.file().get("none"), model.file().keys().count()), (None, 7));
}
