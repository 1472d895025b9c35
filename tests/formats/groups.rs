//! Weights that are ternary, or binary, per group of columns: in floats, and in MLX's words.

use super::file::{ModelDirectory, bf16, config, file};
use bitnet_wgpu::{
    Error, ErrorKind, Result, bitnet,
    formats::{ModelFile, ReadOptions},
    reference,
    weights::{DenseElement, PackedTernary, Scales},
};
use half::{bf16 as Bf16, f16};
use serde_json::{Value, json};
use support::files::{Directory, words};

const ROWS: usize = 3;

fn qwen3(keys: Value) -> String {
    let mut all = json!({"model_type": "qwen3"});
    keys.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
    config(all)
}

fn mlx(bits: usize, group: usize) -> String {
    qwen3(
        json!({"quantization": {"bits": bits, "group_size": group}, "quantization_config": {"bits": bits, "group_size": group}}),
    )
}

/// Trits, and a scale that bf16 has for every group of this many of a row.
fn weights(columns: usize, group: usize) -> (Vec<i8>, Vec<f32>) {
    let values = (0..ROWS * columns).map(|i| ((i * i * 7 + i / 5) % 3) as i8 - 1).collect();
    (values, (0..ROWS * columns.div_ceil(group)).map(|i| 0.25 + i as f32 / 32.0).collect())
}

fn floats(columns: usize, group: usize, (values, scales): &(Vec<i8>, Vec<f32>)) -> Vec<f32> {
    let groups = columns.div_ceil(group);
    (0..ROWS * columns)
        .map(|i| f32::from(values[i]) * scales[i / columns * groups + i % columns / group])
        .collect()
}

fn refused(found: Result<PackedTernary>, words: &str) {
    match found {
        Err(error @ (Error::Format { .. } | Error::Unsupported { .. })) => {
            assert!(error.to_string().contains(words), "{error}")
        }
        other => panic!("{words}: {other:?}"),
    }
}

#[test]
fn floats_by_128_columns_are_taken_exactly() {
    let open = |keys: &str, columns: usize, values: &[f32]| {
        Directory::model(keys, &file(&[("l.weight", "BF16", &[ROWS, columns], &bf16(values))]))
            .open()
            .unwrap()
    };
    let plain = qwen3(json!({}));
    // Whole groups, a short one at the end, and one that is all there is.
    for columns in [256, 300, 50] {
        let made = weights(columns, 128);
        let values = floats(columns, 128, &made);
        // A scale for every group; for every row where it is one group.
        let scales = if columns > 128 {
            Scales::Groups { size: 128, scales: made.1 }
        } else {
            Scales::Segments(made.1.iter().map(|&scale| (1, scale)).collect())
        };
        let expected = PackedTernary::from_values(ROWS, columns, &made.0, scales).unwrap();
        let read = open(&plain, columns, &values);
        assert_eq!(ModelFile::linear(&read, "l", ROWS, columns).unwrap(), expected);
        // They stay as they are where others may be quantized.
        assert_eq!(
            read.with_options(ReadOptions::default().quantize(true)).ternary("l").unwrap(),
            expected
        );
        assert_eq!(expected.dequantize(), values);
    }
    // A group without a weight has no scale; one scale for all is one for the matrix.
    let mut values = floats(256, 128, &weights(256, 128));
    values[128..256].fill(0.0);
    let read = open(&plain, 256, &values).ternary("l").unwrap();
    assert_eq!(read.dequantize(), values);
    let one = open(&plain, 256, &vec![-0.5; ROWS * 256]).ternary("l").unwrap();
    assert_eq!(one.scales(), &Scales::Tensor(0.5));
    // By other groups than these, and with a weight that is another: what does not fit is named.
    refused(
        open(&plain, 256, &floats(256, 64, &weights(256, 64))).ternary("l"),
        "row 0 has 0.25 and",
    );
    let mut values = floats(300, 128, &weights(300, 128));
    values[2 * 300 + 299] = 7.0;
    refused(
        open(&plain, 300, &values).ternary("l"),
        "11.1 % of these are not ternary; row 2 has 0.5 and 7 in columns 256 to 299",
    );
    values[2 * 300 + 299] = f32::NAN;
    refused(open(&plain, 300, &values).ternary("l"), "finite");
}

/// TriLM's: parts of the rows, or of the columns, that were on other devices have a scale each.
#[test]
fn per_part_scales_are_read_exactly() {
    let (rows, columns) = (8, 512);
    let values: Vec<i8> =
        (0..rows * columns).map(|i| ((i * i * 7 + i / 5) % 3) as i8 - 1).collect();
    let open = |keys: Value, floats: &[f32]| {
        let bytes = floats.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect::<Vec<_>>();
        Directory::model(&config(keys), &file(&[("l.weight", "F16", &[rows, columns], &bytes)]))
            .open()
            .unwrap()
    };
    let llama = || json!({"model_type": "llama"});
    let made = |scale: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
        (0..rows * columns)
            .map(|i| f32::from(values[i]) * scale(i / columns, i % columns))
            .collect()
    };
    let by_rows = made(&|row, _| if row < 3 { 0.5 } else { 0.125 });
    let expected = PackedTernary::from_values(
        rows,
        columns,
        &values,
        Scales::Segments(vec![(3, 0.5), (5, 0.125)]),
    )
    .unwrap();
    assert_eq!(open(llama(), &by_rows).ternary("l").unwrap(), expected);
    let by_columns = made(&|_, column| if column < 256 { 0.5 } else { 0.125 });
    let read = open(llama(), &by_columns).ternary("l").unwrap();
    assert_eq!((read.group(), read.dequantize()), (Some(128), by_columns.clone()));
    // Rows of zeros, the first and one between, do not part those beside them, nor two scales.
    let mut holes = by_rows.clone();
    [0, 1, 3].into_iter().for_each(|row| holes[row * columns..][..columns].fill(0.0));
    let read = open(llama(), &holes).ternary("l").unwrap();
    assert_eq!(
        (read.scales(), read.dequantize()),
        (&Scales::Segments(vec![(4, 0.5), (4, 0.125)]), holes)
    );
    assert_eq!(
        open(llama(), &vec![0.0; rows * columns]).ternary("l").unwrap().scales(),
        &Scales::Tensor(1.0)
    );
    // A row of two scales is one of groups.
    let mut one = by_rows.clone();
    one[5 * columns..][..128].iter_mut().for_each(|w| *w *= 2.0);
    let read = open(llama(), &one).ternary("l").unwrap();
    assert_eq!((read.group(), read.dequantize()), (Some(128), one));
    // A model that says that it is a BitNet has one scale a matrix: other floats are quantized.
    for floats in [by_rows, by_columns] {
        let read = open(
            json!({"model_type": "llama", "quantization_config": {"quant_method": "bitnet"}}),
            &floats,
        )
        .ternary("l")
        .unwrap();
        assert_eq!(
            read,
            reference::quantize_weights(
                &floats,
                [rows, columns],
                bitnet::WeightQuantizer::absmean()
            )
            .unwrap()
        );
    }
}

/// Of a plain Llama whose weights are ternary, nothing says how activations are computed.
#[test]
fn ternary_llama_activations_are_inferred_and_reported() {
    const QUERY: &str = "model.layers.0.self_attn.q_proj.weight";
    let open = |keys: Value, element: &str, floats: &[f32]| {
        let bytes = match element {
            "F32" => floats.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => halves(floats, element),
        };
        Directory::model(&config(keys), &file(&[(QUERY, element, &[2, 128], &bytes)]))
            .open()
            .unwrap()
    };
    let quantized = |keys: &Value, element: &str, floats: &[f32]| {
        open(keys.clone(), element, floats).config().quantized_activations
    };
    let one: Vec<f32> = (0..256).map(|i| (i % 3) as f32 / 4.0 - 0.25).collect();
    let two: Vec<f32> =
        one.iter().enumerate().map(|(i, w)| if i < 128 { *w } else { 2.0 * w }).collect();
    let dense: Vec<f32> = (0..256).map(|i| i as f32 / 256.0).collect();
    let llama = json!({"model_type": "llama"});
    for element in ["F32", "BF16", "F16"] {
        assert_eq!(quantized(&llama, element, &one), element != "F16", "{element}");
        assert!(
            !quantized(&llama, element, &two) && quantized(&llama, element, &dense),
            "{element}"
        );
        // What is stated is not inferred.
        let bitnet =
            json!({"model_type": "llama", "quantization_config": {"quant_method": "bitnet"}});
        assert!(
            quantized(&bitnet, element, &two)
                && quantized(&json!({"model_type": "llama", "weight_bits": 1}), element, &one)
        );
        for said in [true, false] {
            for floats in [&one, &two, &dense] {
                let config = open(llama.clone(), element, floats)
                    .with_options(ReadOptions::default().quantized_activations(said))
                    .config()
                    .clone();
                assert_eq!(config.quantized_activations, said);
            }
        }
        assert_eq!(
            open(llama.clone(), element, &one)
                .with_options(ReadOptions::default())
                .config()
                .quantized_activations,
            element != "F16"
        );
    }
    // An inferred setting is logged once; a stated one is not.
    let warned = |keys: &Value, element: &str, floats: &[f32], said: Option<bool>| {
        let checkpoint = open(keys.clone(), element, floats)
            .with_options(ReadOptions::default().quantized_activations(said));
        support::warnings(|| {
            (0..2).for_each(|_| {
                drop(
                    ModelFile::linear(&checkpoint, QUERY.trim_end_matches(".weight"), 2, 128)
                        .unwrap(),
                )
            })
        })
    };
    for (element, how) in [("BF16", "assumed: in 8 bits"), ("F16", "assumed: in floats")] {
        let warnings = warned(&llama, element, &one, None);
        assert!(warnings.len() == 1 && warnings[0].contains(how), "{warnings:?}");
        assert!(
            warned(&llama, element, &two, None).is_empty()
                && warned(&llama, element, &one, Some(false)).is_empty()
        );
    }
    assert!(warned(&json!({"model_type": "qwen3"}), "F16", &one, None).is_empty());
}

fn halves(numbers: &[f32], element: &str) -> Vec<u8> {
    let half = |x: f32| {
        if element == "F16" {
            f16::from_f32(x).to_le_bytes()
        } else {
            Bf16::from_f32(x).to_le_bytes()
        }
    };
    numbers.iter().flat_map(|&x| half(x)).collect()
}

#[test]
fn words_of_mlx_are_read() {
    for (bits, group, element) in
        [(2, 128, "F16"), (2, 64, "BF16"), (1, 128, "F16"), (2, 32, "F16"), (1, 32, "BF16")]
    {
        let columns = 384;
        let (mut values, scales) = weights(columns, group);
        if bits == 1 {
            values.iter_mut().for_each(|value| *value = if *value < 1 { -1 } else { 1 });
        }
        let integers: Vec<u32> = values
            .iter()
            .map(|&value| if bits == 2 { (value + 1) as u32 } else { u32::from(value > 0) })
            .collect();
        let (packed, biases) =
            (words(&integers, bits), scales.iter().map(|scale| -scale).collect::<Vec<_>>());
        let steps: Vec<f32> =
            scales.iter().map(|scale| scale * if bits == 2 { 1.0 } else { 2.0 }).collect();
        let (steps, biases) = (halves(&steps, element), halves(&biases, element));
        let (stored, groups) = (columns * bits / 32, columns / group);
        let all: [(&str, &str, &[usize], &[u8]); 3] = [
            ("lm_head.weight", "U32", &[ROWS, stored], &packed),
            ("lm_head.scales", element, &[ROWS, groups], &steps),
            ("lm_head.biases", element, &[ROWS, groups], &biases),
        ];
        let open = |all: &[_]| Directory::model(&mlx(bits, group), &file(all)).open().unwrap();
        let first = scales[0];
        let expected = PackedTernary::from_values(
            ROWS,
            columns,
            &values,
            Scales::Groups { size: group, scales },
        )
        .unwrap();
        let checkpoint = open(&all);
        assert_eq!(
            ModelFile::linear(&checkpoint, "lm_head", ROWS, columns).unwrap(),
            expected,
            "{bits} bits by {group}"
        );
        assert_eq!(checkpoint.ternary("lm_head").unwrap(), expected);
        let dense = checkpoint.dense("lm_head", ROWS, columns).unwrap();
        assert_eq!(
            dense.element(),
            if element == "F16" { DenseElement::F16 } else { DenseElement::Bf16 }
        );
        assert_eq!(
            (0..ROWS).flat_map(|row| dense.row(row)).collect::<Vec<_>>(),
            expected.dequantize()
        );
        assert_eq!(
            checkpoint.ternary_table("lm_head", ROWS, columns).unwrap().as_ref(),
            Some(&expected)
        );
        assert!(checkpoint.ternary_table("lm_head", ROWS, columns + 32).is_err());
        // Other shapes, and parts that are not there.
        refused(ModelFile::linear(&checkpoint, "lm_head", ROWS + 1, columns), "3 rows, not 4");
        refused(
            ModelFile::linear(&checkpoint, "lm_head", ROWS, columns - 32),
            "352 columns are needed",
        );
        assert!(checkpoint.dense("lm_head", ROWS, columns + 32).is_err());
        refused(open(&all[..2]).ternary("lm_head"), "no tensor `lm_head.biases`");
        refused(open(&[all[0], all[2]]).ternary("lm_head"), "no tensor `lm_head.scales`");
        let short = [
            all[0],
            all[1],
            ("lm_head.biases", element, &[ROWS, groups - 1], &biases[..2 * ROWS * (groups - 1)]),
        ];
        refused(open(&short).ternary("lm_head"), "`lm_head.biases` has shape");
        assert!(open(&short).dense("lm_head", ROWS, columns).is_err());
        // The same words with the config of other groups, of other bits, and without one.
        let of =
            |config: &str| Directory::model(config, &file(&all)).open().unwrap().ternary("lm_head");
        refused(of(&mlx(bits, if group == 128 { 64 } else { 128 })), "is needed");
        refused(of(&mlx(3 - bits, group)), "");
        refused(of(&qwen3(json!({}))), "is U32");
        // A bias that makes it something else.
        let changed = [(2, 0), (2, 1), (3, 2), (3, 7)].map(|(at, bit)| {
            let mut other = biases.clone();
            other[at] ^= 1 << bit;
            other
        });
        for other in &changed {
            let other = [all[0], all[1], ("lm_head.biases", element, all[2].2, other)];
            refused(open(&other).ternary("lm_head"), "in row 0 from column");
            assert!(open(&other).dense("lm_head", ROWS, columns).is_ok());
            assert_eq!(open(&other).ternary_table("lm_head", ROWS, columns).unwrap(), None);
        }
        if bits == 2 {
            let mut packed = packed.clone();
            packed[5] |= 0x0c;
            let threes = [("lm_head.weight", "U32", all[0].2, &*packed), all[1], all[2]];
            refused(
                open(&threes).ternary("lm_head"),
                "the integer 3 (the value 2), first in word 1: not ternary, as 1 of its 1152 weights are (0.09 %)",
            );
            // Of an embedding it is twice the scale.
            assert_eq!(open(&threes).ternary_table("lm_head", ROWS, columns).unwrap(), None);
            let dense = open(&threes).dense("lm_head", ROWS, columns).unwrap();
            assert_eq!(dense.row(0)[21], 2.0 * first);
        }
    }
    // Rows that are no whole groups.
    let odd: [(&str, &str, &[usize], &[u8]); 3] = [
        ("l.weight", "U32", &[1, 3], &[0; 12]),
        ("l.scales", "F16", &[1, 1], &[0; 2]),
        ("l.biases", "F16", &[1, 1], &[0; 2]),
    ];
    refused(
        Directory::model(&mlx(2, 32), &file(&odd)).open().unwrap().ternary("l"),
        "not whole groups of 32",
    );
}

/// Matrices with settings of their own: an embedding or a head may have more bits than linear
/// layers.
#[test]
fn matrices_of_mlx_have_bits_of_their_own() {
    let (columns, group) = (128, 64);
    for bits in [1, 2, 4, 8] {
        let integers: Vec<u32> =
            (0..ROWS * columns).map(|i| (i * 7 + i / columns) as u32 & ((1 << bits) - 1)).collect();
        let scales: Vec<f32> = (0..ROWS * columns / group).map(|i| 0.5 + 0.25 * i as f32).collect();
        let biases: Vec<f32> = scales.iter().map(|scale| -3.0 * scale).collect();
        let (packed, steps, offsets) =
            (words(&integers, bits), halves(&scales, "F16"), halves(&biases, "F16"));
        let settings = json!({"bits": 2, "group_size": 128, "lm_head": {"bits": bits, "group_size": group}, "model.embed_tokens": false});
        let text = qwen3(json!({"quantization": settings}));
        let all: [(&str, &str, &[usize], &[u8]); 3] = [
            ("lm_head.weight", "U32", &[ROWS, columns * bits / 32], &packed),
            ("lm_head.scales", "F16", &[ROWS, columns / group], &steps),
            ("lm_head.biases", "F16", &[ROWS, columns / group], &offsets),
        ];
        let checkpoint = Directory::model(&text, &file(&all)).open().unwrap();
        let dense = checkpoint.dense("lm_head", ROWS, columns).unwrap();
        let expected = integers.iter().enumerate().map(|(i, &integer)| {
            f16::from_f32(scales[i / group] * integer as f32 + biases[i / group]).to_f32()
        });
        assert_eq!(
            (0..ROWS).flat_map(|row| dense.row(row)).collect::<Vec<_>>(),
            expected.collect::<Vec<_>>(),
            "{bits} bits"
        );
        assert_eq!(checkpoint.ternary_table("lm_head", ROWS, columns).unwrap(), None);
        let words = if bits > 2 { format!("integers of {bits} bits") } else { "the bias".into() };
        let error = checkpoint.ternary("lm_head").unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unsupported && error.to_string().contains(&words),
            "{error}"
        );
    }
}

/// The packed form says of every model that its activations are quantized.
#[test]
fn models_of_float_activations_are_not_packed() {
    let directory = Directory::model(&qwen3(json!({})), &file(&[]));
    let error = bitnet_wgpu::formats::write_packed(
        &directory.open().unwrap(),
        directory.0.join("out"),
        false,
        |_| (),
    )
    .unwrap_err();
    assert!(
        matches!(&error, Error::Unsupported { .. }) && error.to_string().contains("activations"),
        "{error}"
    );
}
