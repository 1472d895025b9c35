//! The layout of I2_S tensors, found by the weights of a trained model.

use super::*;
use bitnet_wgpu::formats::Checkpoint;
use support::{files::Directory, repository, warnings};

const LAYOUTS: [I2sLayout; 3] = [I2sLayout::X86, I2sLayout::Arm, I2sLayout::Rows];

/// The layers of the model in `assets`, as bitnet.cpp writes them.
fn tales(layout: I2sLayout) -> Maker {
    let checkpoint = Checkpoint::open(repository("assets/tales-22m")).unwrap();
    let c = ModelFile::config(&checkpoint);
    let floats = |values: Vec<f32>| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let mut maker = Maker::configured("bitnet-25", c);
    let embedding = checkpoint.tensor("model.embed_tokens.weight").unwrap();
    maker = maker.tensor(
        "token_embd.weight",
        &[c.vocab as u64, c.hidden as u64],
        0,
        &floats(embedding.to_f32().unwrap()),
    );
    let (kv, heads) = (c.kv_heads * c.head_dim, c.heads * c.head_dim);
    for layer in 0..c.layers {
        for (name, stored, rows, columns) in [
            ("input_layernorm", "attn_norm", 0, c.hidden),
            ("post_attention_layernorm", "ffn_norm", 0, c.hidden),
            ("self_attn.attn_sub_norm", "attn_sub_norm", 0, heads),
            ("mlp.ffn_sub_norm", "ffn_sub_norm", 0, c.intermediate),
            ("self_attn.q_proj", "attn_q", heads, c.hidden),
            ("self_attn.k_proj", "attn_k", kv, c.hidden),
            ("self_attn.v_proj", "attn_v", kv, c.hidden),
            ("self_attn.o_proj", "attn_output", c.hidden, heads),
            ("mlp.gate_proj", "ffn_gate", c.intermediate, c.hidden),
            ("mlp.up_proj", "ffn_up", c.intermediate, c.hidden),
            ("mlp.down_proj", "ffn_down", c.hidden, c.intermediate),
        ] {
            let (name, stored) =
                (format!("model.layers.{layer}.{name}"), format!("blk.{layer}.{stored}.weight"));
            if rows == 0 {
                let gains = floats(checkpoint.vector(&name, columns).unwrap());
                maker = maker.tensor(&stored, &[columns as u64], 0, &gains);
                continue;
            }
            let matrix = ModelFile::linear(&checkpoint, &name, rows, columns).unwrap();
            let Scales::Tensor(scale) = matrix.scales() else { panic!("{name}") };
            let bytes = i2s(layout, columns, &matrix.to_values(), *scale);
            maker = maker.tensor(&stored, &[rows as u64, columns as u64], 36, &bytes);
        }
    }
    maker
}

const NAME: &str = "model.layers.3.mlp.up_proj";

#[test]
fn layout_is_found_by_trained_weights() {
    let checkpoint = Checkpoint::open(repository("assets/tales-22m")).unwrap();
    let expected = ModelFile::linear(&checkpoint, NAME, 1280, 512).unwrap();
    for layout in LAYOUTS {
        let directory = Directory::temporary();
        let path = directory.write("model.gguf", tales(layout).bytes());
        let read = |options: ReadOptions| {
            let mut found = None;
            let warnings = warnings(|| {
                let model = GgufModel::open(&path).unwrap().with_options(options);
                found = Some(model.linear(NAME, 1280, 512).unwrap());
                model.linear("model.layers.0.mlp.up_proj", 1280, 512).unwrap();
            });
            (found.unwrap(), warnings)
        };
        assert_eq!(read(ReadOptions::default()), (expected.clone(), vec![]), "{layout}");
        for asked in LAYOUTS {
            let (read, warnings) = read(ReadOptions::default().i2s_layout(asked));
            assert_eq!(read == expected, asked == layout, "{layout} read as {asked}");
            match warnings.as_slice() {
                [] => assert_eq!(asked, layout),
                [warning] => assert!(
                    asked != layout
                        && warning.contains(&format!("{asked} was asked for"))
                        && warning.contains(&format!("have the layout {layout}")),
                    "{warning}"
                ),
                more => panic!("{more:?}"),
            }
        }
    }
}

/// Random weights do not tell, whatever their layout.
#[test]
fn layout_of_random_weights_is_the_usual_one() {
    let (bytes, name) = (converted::all().next().unwrap(), "model.layers.0.mlp.up_proj");
    let read = |layout: Option<I2sLayout>| {
        let model = open_bytes(&bytes).unwrap();
        assert_eq!(model.file().kind("blk.0.ffn_up.weight"), Some(GgufType::I2S));
        let (rows, columns) = (model.config().intermediate, model.config().hidden);
        let model = model.with_options(ReadOptions::default().i2s_layout(layout));
        model.linear(name, rows, columns).unwrap().to_values()
    };
    let warnings = warnings(|| {
        assert_eq!(read(None), read(Some(I2sLayout::X86)));
        assert_ne!(read(None), read(Some(I2sLayout::Arm)));
    });
    assert_eq!(warnings, [""; 0]);
}
