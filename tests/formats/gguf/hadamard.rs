//! Files whose weights are stored rotated: the small model of Qwen3, with the keys of such a file.

use super::*;
use bitnet_wgpu::{
    Context,
    formats::Checkpoint,
    internals::Hadamard,
    model::{Model, ModelFiles},
};
use std::collections::BTreeMap;
use support::{
    Golden, block_on,
    files::Directory,
    models::{directory, golden},
};

const BLOCK: u32 = 8;
const WIDTHS: [u32; 3] = [64, 144, 152];
/// The model as a GGUF file of floats, without the keys.
fn plain() -> Maker {
    let checkpoint = Checkpoint::open(directory("qwen3")).unwrap();
    let c = checkpoint.config();
    let maker = Maker::configured("qwen3", c)
        .text("qwen3.rope.scaling.type", "yarn")
        .float("qwen3.rope.scaling.factor", 4.0);
    let maker = maker.number("qwen3.rope.scaling.original_context_length", 512);
    let layers = (0..c.layers).flat_map(|layer| {
        QWEN3.iter().map(move |(name, stored)| {
            (format!("model.layers.{layer}.{name}"), format!("blk.{layer}.{stored}"))
        })
    });
    let ends = [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm")]
        .map(|(a, b)| (a.to_owned(), b.to_owned()));
    layers.chain(ends).fold(maker, |maker, (name, stored)| {
        let tensor = checkpoint.tensor(&format!("{name}.weight")).unwrap();
        let bytes: Vec<u8> =
            tensor.to_f32().unwrap().iter().flat_map(|x| x.to_le_bytes()).collect();
        let shape: Vec<u64> = tensor.shape.iter().map(|&size| size as u64).collect();
        maker.tensor(&format!("{stored}.weight"), &shape, 0, &bytes)
    })
}

fn array(kind: u32, elements: &[Vec<u8>]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(elements.len() as u64).to_le_bytes(), &elements.concat()].concat()
}

fn numbers(kind: u32, numbers: &[i32]) -> Vec<u8> {
    array(kind, &numbers.iter().map(|n| n.to_le_bytes().to_vec()).collect::<Vec<_>>())
}

fn names(names: &[String]) -> Vec<u8> {
    array(STRING, &names.iter().map(|name| string(name)).collect::<Vec<_>>())
}

/// All weights that are rotated: the head, which is the embedding, among them.
fn rotated() -> Vec<String> {
    let layer = |layer: usize| {
        QWEN3[4..].iter().map(move |(_, stored)| format!("blk.{layer}.{stored}.weight"))
    };
    (0..2).flat_map(layer).chain(["token_embd.weight".to_owned()]).collect()
}

fn signs() -> Vec<i32> {
    let golden = Golden::open(directory("qwen3").join("hadamard.safetensors"));
    WIDTHS
        .iter()
        .flat_map(|width| golden.ids(&format!("signs.{width}")))
        .map(u32::cast_signed)
        .collect()
}

const I32: u32 = 5;

/// The file with its keys.
pub fn keyed() -> Maker {
    let key = |name: &str| format!("prism.hadamard.{name}");
    let maker = plain().number(&key("version"), 1).number(&key("block_size"), BLOCK);
    let maker = maker
        .text(&key("transform"), "normalized-sylvester-walsh-hadamard")
        .text(&key("axis"), "input-last-dimension");
    let maker = maker.text(&key("sign_mode"), "explicit").set(
        &key("sign_widths"),
        ARRAY,
        &numbers(U32, &WIDTHS.map(|w| w as i32)),
    );
    let maker = maker.set(&key("sign_values"), ARRAY, &numbers(I32, &signs())).set(
        &key("weight_names"),
        ARRAY,
        &names(&rotated()),
    );
    maker.set(&key("inverse_weight_names"), ARRAY, &names(&["token_embd.weight".into()])).set(
        &key("gdn_v_grouped"),
        7,
        &[1],
    )
}

fn logits(file: &GgufModel, context: Option<&Context>, prompt: usize) -> Vec<f32> {
    let model = Model::builder_from(file, None).device(context).build().unwrap();
    let all = block_on(model.logits(&golden("qwen3").ids(&format!("prompt{prompt}.ids")))).unwrap();
    all[all.len() - model.config().vocab..].to_vec()
}

fn rotated_weights_give_the_logits_of_transformers(on: Option<&Context>) {
    let (file, expected) = (
        open_bytes(&keyed().bytes()).unwrap(),
        Golden::open(directory("qwen3").join("hadamard.safetensors")),
    );
    let Hadamard { block, signs, head, embedding, .. } = file.config().hadamard.clone().unwrap();
    assert_eq!((block, head, embedding, signs.len(), signs[&144].len()), (8, true, true, 3, 144));
    let off = |found: &[f32], expected: &[f32]| {
        found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    for prompt in 0..3 {
        let expected = expected.floats(&format!("prompt{prompt}.last_logits"));

        let off = off(&logits(&file, on, prompt), &expected);
        let largest = expected.iter().fold(0f32, |largest, v| largest.max(v.abs()));
        // Activations are rounded by at most 2^-14.98 of the largest of a block.
        assert!(off < 6e-4 * largest, "prompt {prompt}, GPU {}: {off} of {largest}", on.is_some());
    }
    // Without the keys it is the model as it was, and with signs that are all 1 yet another.
    let (plain, golden) =
        (open_bytes(&plain().bytes()).unwrap(), golden("qwen3").floats("prompt2.last_logits"));
    assert!(plain.config().hadamard.is_none() && off(&logits(&plain, None, 2), &golden) < 1e-2);
    let identity = keyed().text("prism.hadamard.sign_mode", "identity");
    let error = open_bytes(&identity.bytes()).unwrap_err().to_string();
    assert!(error.contains("`identity`") && error.contains("others than 1"), "{error}");
    let ones = identity.set("prism.hadamard.sign_values", ARRAY, &numbers(I32, &[1; 360]));
    let identity = open_bytes(&ones.bytes()).unwrap();
    assert_eq!(identity.config().hadamard.as_ref().unwrap().signs, BTreeMap::new());
    let ours = logits(&identity, on, 2);
    assert!(
        off(&ours, &logits(&identity, None, 2)) < 1e-2
            && off(&ours, &golden) > 1.0
            && off(&ours, &expected.floats("prompt2.last_logits")) > 1.0
    );
}

support::each_device!(rotated_weights_give_the_logits_of_transformers);

/// What a native container keeps of it.
fn rotated_weights_stay_so_in_a_native_container(on: Option<&Context>) {
    let folder = Directory::temporary();
    let (source, native) = (folder.write("model.gguf", keyed().bytes()), folder.0.join("native"));
    let files = ModelFiles::open(&source).unwrap();
    files.builder().write_prepacked(&native, false).unwrap();

    let logits = |path| {
        let model = Model::builder(path).device(on).build().unwrap();
        assert!(model.config().hadamard.is_some());
        block_on(model.logits(&golden("qwen3").ids("prompt2.ids")))
            .unwrap()
            .into_iter()
            .map(f32::to_bits)
            .collect::<Vec<_>>()
    };
    assert!(logits(&source) == logits(&native), "GPU: {}", on.is_some());
}

support::each_device!(rotated_weights_stay_so_in_a_native_container);

/// With any of the keys, a file is run as they say, or not at all.
#[test]
fn damaged_keys_are_typed_errors() {
    let with = |change: &dyn Fn(Maker) -> Maker| open_bytes(&change(keyed()).bytes()).map(drop);
    let unsupported = |change: &dyn Fn(Maker) -> Maker, words: &str| match with(change) {
        Err(error @ Error::Unsupported { .. }) => {
            assert!(error.to_string().contains(words), "{error}")
        }
        other => panic!("{words}: {other:?}"),
    };
    let damaged = |change: &dyn Fn(Maker) -> Maker, words: &str| match with(change) {
        Err(error @ Error::Format { .. }) => assert!(error.to_string().contains(words), "{error}"),
        other => panic!("{words}: {other:?}"),
    };
    assert!(with(&|m| m).is_ok() && with(&|m| m.without("prism.hadamard.gdn_v_grouped")).is_ok());
    for key in [
        "version",
        "block_size",
        "transform",
        "axis",
        "sign_mode",
        "sign_widths",
        "sign_values",
        "weight_names",
        "inverse_weight_names",
    ] {
        let key = format!("prism.hadamard.{key}");
        damaged(&|m| m.without(&key), &format!("has no {key}"));
        damaged(&|m| m.set(&key, 7, &[1]), "wrong type");
    }
    let text = |key: &'static str, value: &'static str| {
        move |m: Maker| m.text(&format!("prism.hadamard.{key}"), value)
    };
    let number = |key: &'static str, value: u32| {
        move |m: Maker| m.number(&format!("prism.hadamard.{key}"), value)
    };
    let list = |key: &'static str, list: Vec<u8>| {
        move |m: Maker| m.set(&format!("prism.hadamard.{key}"), ARRAY, &list)
    };
    unsupported(&number("version", 2), "version is 2");
    unsupported(&number("scale", 2), "prism.hadamard.scale is not known");
    unsupported(&text("transform", "dct"), "`dct`");
    unsupported(&text("axis", "output"), "`output`");
    unsupported(&text("sign_mode", "random"), "`random`");
    for block in [0, 3, 2048, 16, u32::MAX] {
        unsupported(&number("block_size", block), &format!("blocks of {block}"));
    }
    let signs = signs();
    let changed = |at: usize, sign: i32| [&signs[..at], &[sign], &signs[at + 1..]].concat();
    damaged(&list("sign_values", numbers(I32, &changed(77, 0))), "has 0; 1 and -1");
    damaged(&list("sign_values", numbers(I32, &signs[1..])), "has 359 numbers");
    damaged(&list("sign_values", names(&["1".into()])), "wrong type");
    damaged(&list("sign_widths", numbers(U32, &[64, 144, 144])), "has 360 numbers");
    damaged(&list("sign_widths", numbers(U32, &[64, 64, 80, 152])), "has 64 twice");
    damaged(&list("sign_widths", numbers(U32, &[208, 152])), "is without 64");
    damaged(&list("sign_widths", numbers(U32, &[])), "numbers for sign_widths []");
    let all = rotated();
    unsupported(&list("weight_names", names(&all[1..])), "without `blk.0.attn_q.weight`");
    unsupported(&list("weight_names", names(&all[..14])), "disagree about `token_embd.weight`");
    unsupported(&list("inverse_weight_names", names(&[])), "disagree about `token_embd.weight`");
    damaged(
        &list("weight_names", names(&[&all[..], &["blk.7.attn_q.weight".into()]].concat())),
        "`blk.7.attn_q.weight`",
    );
    damaged(&list("weight_names", names(&[&all[..], &all[..1]].concat())), "a name twice");
    damaged(
        &list("inverse_weight_names", names(&["token_embd.weight".into(), "output.weight".into()])),
        "`output.weight`",
    );
    // Other models have codes where these have floats.
    let other = Maker::of("llama").number("prism.hadamard.version", 1);
    assert!(matches!(open_bytes(&other.bytes()), Err(Error::Unsupported { .. })));
    // Other graphs with activations in floats, of which no such file is known.
    let minicpm = ["embedding_scale", "residual_scale", "logit_scale"]
        .iter()
        .fold(Maker::of("minicpm"), |maker, key| maker.float(&format!("minicpm.{key}"), 1.0));
    for (name, maker) in [("minicpm", minicpm), ("gemma3", Maker::of("gemma3"))] {
        assert!(open_bytes(&maker.bytes()).is_ok(), "{name}");
        let error = open_bytes(&maker.number("prism.hadamard.version", 1).bytes()).unwrap_err();
        let words = format!("rotated weights of the architecture `{name}` are not supported");
        assert!(
            matches!(&error, Error::Unsupported { message, .. } if message.contains(&words)),
            "{error}"
        );
    }
    // As MLX has it.
    let copy = Directory::temporary();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(directory("qwen3").join(name), copy.0.join(name)).unwrap();
    }
    assert!(Checkpoint::open(&copy.0).is_ok());
    copy.write("hadamard.json", "{}");
    assert!(matches!(Checkpoint::open(&copy.0), Err(Error::Unsupported { .. })));
}
