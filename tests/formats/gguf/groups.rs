//! Types of Ternary-Bonsai: ternary and binary blocks of 128, the two layouts under one number, and
//! the keys of Qwen3.

use super::{file::*, hostile::refused, trits};
use bitnet_wgpu::{
    Error,
    formats::{GgufType, I2sLayout, ModelFile, ReadOptions},
    internals::{Activation, ModelConfigInternals as _, RopeScaling},
    weights::{DenseElement, PackedTernary, Scales},
};

const ROWS: usize = 9;
const COLUMNS: usize = 256;

fn values() -> Vec<i8> {
    trits(7, ROWS * COLUMNS)
}

fn scales(size: usize) -> Vec<f32> {
    (0..ROWS * COLUMNS / size).map(|i| 0.25 + (i % 9) as f32).collect()
}

/// The type in a file's header, its blocks' size, and its encoder; the first two are one number.
type Layout = (u32, usize, fn(&[i8], &[f32]) -> Vec<u8>);
const NEWER: Layout = (42, 64, q2);
const OLDER: Layout = (42, 128, pq2);

/// A model with such a matrix in two places, `others` before, between and after them.
fn model((id, size, encode): Layout, others: [bool; 3]) -> Maker {
    let bytes = encode(&values(), &scales(size));
    let other = |maker: Maker, name: &str, there: bool| {
        if there { maker.tensor(name, &[3], 0, &[0; 12]) } else { maker }
    };
    let shape = [ROWS as u64, COLUMNS as u64];
    let maker = other(Maker::of("qwen3"), "blk.0.attn_norm.weight", others[0]).tensor(
        "blk.0.ffn_up.weight",
        &shape,
        id,
        &bytes,
    );
    let maker = other(maker, "blk.0.ffn_norm.weight", others[1]).tensor(
        "output.weight",
        &shape,
        id,
        &bytes,
    );
    other(maker, "output_norm.weight", others[2])
}

#[test]
fn layouts_with_one_number_are_distinguished() {
    for others in 0..8 {
        let others = [others & 1 == 1, others & 2 == 2, others & 4 == 4];
        for (layout, kind) in [
            (NEWER, GgufType::Q2_0),
            (OLDER, GgufType::Pq2_0),
            ((142, 128, pq2 as _), GgufType::Pq2_0),
        ] {
            // What a file says of its type is not asked.
            for maker in
                [model(layout, others), model(layout, others).number("general.file_type", 141)]
            {
                let file = open_bytes(&maker.bytes()).unwrap();
                let expected = PackedTernary::from_values(
                    ROWS,
                    COLUMNS,
                    &values(),
                    Scales::Groups { size: layout.1, scales: scales(layout.1) },
                );
                let expected = expected.unwrap();
                for name in ["model.layers.0.mlp.up_proj", "lm_head"] {
                    assert_eq!(
                        file.linear(name, ROWS, COLUMNS).unwrap(),
                        expected,
                        "{kind:?} among {others:?}"
                    );
                }
                assert_eq!(file.file().kind("output.weight"), Some(kind));
                let dense = file.dense("lm_head", ROWS, COLUMNS).unwrap();
                assert_eq!(dense.element(), DenseElement::F16);
                assert_eq!(
                    file.ternary_table("lm_head", ROWS, COLUMNS).unwrap().as_ref(),
                    Some(&expected)
                );
                refused(file.ternary_table("lm_head", ROWS, COLUMNS - 128), "[9, 128] is needed");
                assert_eq!(
                    (0..ROWS).flat_map(|row| dense.row(row)).collect::<Vec<_>>(),
                    expected.dequantize()
                );
            }
        }
    }
    // Beside a tensor that is so small that both layouts would fit.
    let small = model(OLDER, [true; 3]).tensor(
        "blk.0.ffn_gate.weight",
        &[1, 128],
        42,
        &pq2(&trits(1, 128), &[0.5]),
    );
    let file = open_bytes(&small.tensor("x", &[3], 0, &[0; 12]).bytes()).unwrap();
    assert_eq!(
        file.linear("model.layers.0.mlp.gate_proj", 1, 128).unwrap().to_values(),
        trits(1, 128)
    );
    // Padding behind the last tensor is there, or not.
    let mut padded = model(OLDER, [false; 3]).bytes();
    padded.resize(padded.len().next_multiple_of(32), 0);
    assert_eq!(open_bytes(&padded).unwrap().file().kind("output.weight"), Some(GgufType::Pq2_0));
}

#[test]
fn a_truncated_file_is_not_the_other_layout() {
    for (layout, others) in
        [(NEWER, [false; 3]), (OLDER, [false; 3]), (NEWER, [true; 3]), (OLDER, [true; 3])]
    {
        let whole = model(layout, others).bytes();
        let block = if layout.1 == 64 { 18 } else { 34 };
        for cut in [1, block, 10 * block, whole.len() / 4] {
            refused(open_bytes(&whole[..whole.len() - cut]), "of data");
        }
    }
}

#[test]
fn layouts_that_are_mixed_or_misnamed_are_refused() {
    let shape = [ROWS as u64, COLUMNS as u64];
    let with = |id: u32, (_, size, encode): Layout, beside: &Maker| {
        let maker = beside.clone().tensor(
            "blk.0.ffn_up.weight",
            &shape,
            id,
            &encode(&values(), &scales(size)),
        );
        open_bytes(&maker.tensor("output_norm.weight", &[3], 0, &[0; 12]).bytes())
    };
    let plain = Maker::of("qwen3");
    assert!(
        with(42, NEWER, &plain).is_ok()
            && with(42, OLDER, &plain).is_ok()
            && with(142, OLDER, &plain).is_ok()
    );
    // The newer blocks under the number of the older ones: they would end before the next tensor.
    refused(with(142, NEWER, &plain), "its blocks are not those of PQ2_0");
    // Both layouts under the one number.
    for (one, other) in [(NEWER, OLDER), (OLDER, NEWER)] {
        let mixed = plain.clone().tensor(
            "blk.0.ffn_down.weight",
            &shape,
            42,
            &one.2(&values(), &scales(one.1)),
        );
        refused(with(42, other, &mixed), "of the data");
        assert!(with(42, one, &mixed).is_ok());
    }
    // Rows that are no whole blocks of 128 are of blocks of 64, or of nothing.
    let odd = trits(3, 5 * 192);
    let open = |id: u32, bytes: &[u8]| {
        let maker = plain.clone().tensor("output.weight", &[5, 192], id, bytes).tensor(
            "output_norm.weight",
            &[3],
            0,
            &[0; 12],
        );
        open_bytes(&maker.bytes()).and_then(|file| file.linear("lm_head", 5, 192))
    };
    assert_eq!(open(42, &q2(&odd, &[0.5; 15])).unwrap().to_values(), odd);
    refused(open(142, &pq2(&trits(3, 8 * 128), &[0.5; 8])), "whole blocks of 128");
    refused(open(42, &pq2(&trits(3, 8 * 128), &[0.5; 7])), "claims bytes");
    // A larger alignment leaves room for both; and so does what lies behind the last tensor.
    let padded = |alignment: usize, layout: Layout, room: usize| {
        let data = layout.2(&values(), &scales(layout.1));
        let maker = plain.clone().number("general.alignment", alignment as u32).tensor(
            "token_embd.weight",
            &shape,
            42,
            &data,
        );
        let mut bytes = maker.bytes();
        bytes.truncate(bytes.len() - data.len());
        bytes.resize(bytes.len().next_multiple_of(alignment), 0);
        bytes.extend(&data);
        bytes.resize(bytes.len().next_multiple_of(alignment) + room, 0);
        open_bytes(&bytes).map(drop)
    };
    assert!(padded(32, NEWER, 0).is_ok() && padded(32, OLDER, 0).is_ok());
    refused(padded(4096, OLDER, 0), "unclear whether blocks have 64 or 128");
    refused(
        padded(32, OLDER, 64),
        "`token_embd.weight` would end at byte 648 of the data, far before",
    );
}

#[test]
fn binary_blocks_are_read() {
    let signs: Vec<i8> = values().iter().map(|&value| if value < 1 { -1 } else { 1 }).collect();
    // A negative scale turns all signs.
    let scales: Vec<f32> = scales(128)
        .into_iter()
        .enumerate()
        .map(|(i, scale)| if i == 3 { -scale } else { scale })
        .collect();
    let shape = [ROWS as u64, COLUMNS as u64];
    let file = open_bytes(
        &Maker::of("qwen3").tensor("output.weight", &shape, 41, &q1(&signs, &scales)).bytes(),
    )
    .unwrap();
    let expected =
        PackedTernary::from_values(ROWS, COLUMNS, &signs, Scales::Groups { size: 128, scales })
            .unwrap();
    assert_eq!(file.linear("lm_head", ROWS, COLUMNS).unwrap(), expected);
    let dense = file.dense("lm_head", ROWS, COLUMNS).unwrap();
    assert_eq!((0..ROWS).flat_map(|row| dense.row(row)).collect::<Vec<_>>(), expected.dequantize());
    assert_eq!(file.ternary_table("lm_head", ROWS, COLUMNS).unwrap().as_ref(), Some(&expected));
    let tensor = file.file().tensor("output.weight").unwrap();
    assert_eq!((tensor.kind, tensor.ternary(I2sLayout::X86).unwrap()), (GgufType::Q1_0, expected));
}

#[test]
fn blocks_that_do_not_fit_are_refused() {
    for (id, encode, bytes) in
        [(41, q1 as fn(&[i8], &[f32]) -> Vec<u8>, 18), (142, pq2, 34), (143, ptq1, 28)]
    {
        let data = encode(&trits(1, 256), &[1.0, 2.0]);
        assert_eq!(data.len(), 2 * bytes);
        let open = |shape: [u64; 2], data: &[u8]| {
            open_bytes(&Maker::of("qwen3").tensor("output.weight", &shape, id, data).bytes())
        };
        assert!(open([1, 256], &data).unwrap().linear("lm_head", 1, 256).is_ok());
        refused(open([2, 192], &[data.clone(), data.clone()].concat()), "whole blocks of 128");
        refused(open([2, 64], &data), "whole blocks of 128");
        refused(open([1, 256], &data[..data.len() - 1]), "of data");
        refused(open([1, 256], &data).unwrap().linear("lm_head", 1, 128), "[1, 128] is needed");
        let infinite = encode(&trits(1, 256), &[1.0, f32::INFINITY]);
        refused(open([1, 256], &infinite).unwrap().linear("lm_head", 1, 256), "scale inf");
        refused(open([1, 256], &infinite).unwrap().dense("lm_head", 1, 256), "finite");
        assert_eq!(
            open([1, 256], &infinite).unwrap().ternary_table("lm_head", 1, 256).unwrap(),
            None
        );
        assert!(open([1, 256], &data).unwrap().ternary_table("lm_head", 1, 256).unwrap().is_some());
    }
    // Code 3 is twice the scale in an embedding, and nothing in a linear layer.
    for (id, mut data) in
        [(42, q2(&trits(1, 128), &[0.5, 1.5])), (142, pq2(&trits(1, 128), &[0.5]))]
    {
        for at in (2..data.len()).filter(|at| id == 142 || !(18..20).contains(at)) {
            let mut data = data.clone();
            data[at] |= 0x30;
            let file = open_bytes(
                &Maker::of("qwen3").tensor("output.weight", &[1, 128], id, &data).bytes(),
            )
            .unwrap();
            refused(
                file.linear("lm_head", 1, 128),
                "as 1 of its 128 weights are (0.78 %); such a matrix is supported as an embedding",
            );
            assert!(matches!(file.linear("lm_head", 1, 128), Err(Error::Unsupported { .. })));
        }
        data[3] = 0xe4;
        let file =
            open_bytes(&Maker::of("qwen3").tensor("output.weight", &[1, 128], id, &data).bytes())
                .unwrap();
        refused(file.linear("lm_head", 1, 128), "the value 2");
        assert_eq!(file.ternary_table("lm_head", 1, 128).unwrap(), None);
        assert_eq!(file.dense("lm_head", 1, 128).unwrap().row(0)[4..8], [-0.5, 0.0, 0.5, 1.0]);
    }
}

/// Of these types code 3 is damage in an embedding too.
#[test]
fn ternary_types_are_tables() {
    for (id, data) in
        [(34, tq1(&trits(1, 512), &[0.5, 1.5])), (35, tq2(&trits(1, 512), &[0.5, 1.5]))]
    {
        let file = |data: &[u8]| {
            open_bytes(&Maker::of("llama").tensor("output.weight", &[2, 256], id, data).bytes())
                .unwrap()
        };
        let matrix = file(&data).ternary_table("lm_head", 2, 256).unwrap().unwrap();
        assert_eq!(matrix, file(&data).linear("lm_head", 2, 256).unwrap());
        refused(file(&data).ternary_table("lm_head", 2, 128), "[2, 128] is needed");
    }
    let mut damaged = tq2(&trits(1, 256), &[0.5]);
    damaged[3] |= 0x30;
    let file =
        open_bytes(&Maker::of("llama").tensor("output.weight", &[1, 256], 35, &damaged).bytes())
            .unwrap();
    assert!(
        matches!(file.ternary_table("lm_head", 1, 256), Err(Error::Format { message, .. }) if message.contains("code 3"))
    );
}

/// TriLM has any Llama's architecture, and activations in floats.
#[test]
fn trilms_are_known() {
    let quantized =
        |maker: Maker| open_bytes(&maker.bytes()).unwrap().config().quantized_activations;
    let with = |kind: u32, bytes: &[u8]| {
        Maker::of("llama").tensor("blk.0.attn_q.weight", &[2, 256], kind, bytes)
    };
    let one = || with(35, &tq2(&trits(1, 512), &[0.5, 0.5]));
    assert!(quantized(Maker::of("llama")) && quantized(one()));
    assert!(quantized(with(36, &i2s(I2sLayout::X86, 256, &trits(1, 512), 0.5))));
    // A block of zeros has a scale of 0, and is no second one.
    assert!(quantized(with(35, &tq2(&trits(1, 512), &[0.5, 0.0]))));
    assert!(!quantized(with(35, &tq2(&trits(1, 512), &[0.5, 0.25]))));
    assert!(!quantized(with(34, &tq1(&trits(1, 512), &[0.5, 0.25]))));
    for (key, name, floats) in [
        ("general.name", "TriLM 830M Unpacked", true),
        ("general.basename", "trilm", true),
        ("general.name", "Falcon3 1.58bit", false),
        ("general.description", "TriLM", false),
    ] {
        assert_eq!(quantized(one().text(key, name)), !floats, "{key}: {name}");
    }
    assert!(
        quantized(Maker::model().text("general.name", "TriLM")),
        "of BitNet's own architectures"
    );
    for said in [true, false] {
        let file = open_bytes(&one().text("general.name", "TriLM").bytes()).unwrap();
        assert_eq!(
            file.with_options(ReadOptions::default().quantized_activations(said))
                .config()
                .quantized_activations,
            said
        );
    }
}

#[test]
fn keys_of_qwen3_are_read() {
    let plain = Maker::of("qwen3")
        .number("qwen3.attention.key_length", 6)
        .number("qwen3.attention.value_length", 6);
    let config = open_bytes(&plain.bytes()).unwrap().config().clone();
    assert_eq!((config.head_dim, config.activation, config.tied_head), (6, Activation::Silu, true));
    assert_eq!(
        (config.qk_norms(), config.sub_norms, config.quantized_activations),
        (true, false, false)
    );
    assert_eq!((config.rope_scaling, config.rope_theta), (RopeScaling::None, 10_000.0));
    let yarn =
        plain.text("qwen3.rope.scaling.type", "yarn").float("qwen3.rope.scaling.factor", 4.0);
    let scaling = |maker: &Maker| open_bytes(&maker.bytes()).map(|file| file.config().rope_scaling);
    let usual = RopeScaling::Yarn {
        factor: 4.0,
        context: 16.0,
        attention: 1.138_629_4,
        fast: 32.0,
        slow: 1.0,
        truncate: true,
    };
    assert_eq!(scaling(&yarn).unwrap(), usual);
    let all = yarn
        .clone()
        .number("qwen3.rope.scaling.original_context_length", 8)
        .float("qwen3.rope.scaling.attn_factor", 0.5);
    let all = all
        .float("qwen3.rope.scaling.yarn_beta_fast", 16.0)
        .float("qwen3.rope.scaling.yarn_beta_slow", 2.0);
    let given = RopeScaling::Yarn {
        factor: 4.0,
        context: 8.0,
        attention: 0.569_314_7,
        fast: 16.0,
        slow: 2.0,
        truncate: true,
    };
    assert_eq!(scaling(&all).unwrap(), given);
    refused(
        scaling(&yarn.clone().float("qwen3.rope.scaling.yarn_ext_factor", 0.5)),
        "yarn_ext_factor is 0.5",
    );
    refused(scaling(&yarn.float("qwen3.rope.scaling.factor", -1.0)), "out of range");
}

#[test]
fn keys_of_gemma_are_read() {
    let plain = Maker::of("gemma3")
        .number("gemma3.attention.key_length", 6)
        .number("gemma3.attention.value_length", 6);
    let open = |maker: &Maker| open_bytes(&maker.bytes());
    let config = open(&plain).unwrap().config().clone();
    assert_eq!(
        (config.head_dim, config.activation, config.qk_norms()),
        (6, Activation::GeluTanh, true)
    );
    assert_eq!(
        (config.embedding_scale, config.quantized_activations),
        ((config.hidden as f32).sqrt(), false)
    );
    // BitNet's embedding model has no window, and so has all of its layers see all.
    assert!(config.local.is_none());
    let windowed =
        plain.clone().number("gemma3.attention.sliding_window", 5).number("gemma3.block_count", 7);
    let local = |maker: &Maker| open(maker).map(|file| file.config().local.clone().unwrap());
    let usual = local(&windowed).unwrap();
    assert_eq!(
        (usual.window, usual.rope_theta, usual.layers),
        (5, 1e4, vec![true, true, true, true, true, false, true])
    );
    let other = windowed
        .clone()
        .number("gemma3.attention.sliding_window_pattern", 2)
        .float("gemma3.rope.freq_base_swa", 500.0);
    let other = local(&other).unwrap();
    assert_eq!((other.rope_theta, other.layers[..3].to_vec()), (500.0, vec![true, false, true]));
    refused(
        local(&windowed.clone().number("gemma3.attention.sliding_window_pattern", 0)),
        "sliding_window_pattern is",
    );
    refused(local(&windowed.clone().text("gemma3.rope.freq_base_swa", "x")), "freq_base_swa is");
    refused(
        local(&windowed.text("gemma3.attention.sliding_window", "x")),
        "sliding_window is not a number",
    );
    refused(
        open(&plain.clone().float("gemma3.final_logit_softcapping", 30.0)),
        "final_logit_softcapping is not supported",
    );
    refused(open(&plain.clone().number("gemma3.block_count", 62)), "queries of 62 layers");
    // Norms by llama.cpp's names, which has 1 added to their gains.
    let norm = |name: &str, gain: f32| (format!("blk.0.{name}.weight"), gain);
    let norms = [
        norm("attn_norm", 1.0),
        norm("post_attention_norm", 2.0),
        norm("ffn_norm", 3.0),
        norm("post_ffw_norm", 4.0),
    ];
    let maker = norms.iter().fold(plain, |maker, (name, gain)| {
        maker.tensor(name, &[3], 0, &[gain.to_le_bytes(); 3].concat())
    });
    let file = open(&maker).unwrap();
    let names = [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ];
    for (name, (_, gain)) in names.iter().zip(&norms) {
        assert_eq!(
            file.vector(&format!("model.layers.0.{name}"), 3).unwrap(),
            [*gain; 3],
            "{name}"
        );
    }
}
