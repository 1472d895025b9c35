//! A feed-forward block of a real model, recorded once and replayed for every token, one submission
//! each: norm + quantize, gate and up as one stacked matrix, relu²(gate) · up, norm + quantize,
//! down. `cargo run --release --example chain`

mod support;

use bitnet_wgpu::bitnet::{BitLinear, Gate};
use bitnet_wgpu::{Result, Tensor, bitnet, formats::Checkpoint, reference, weights::PackedTernary};

fn main() -> Result<()> {
    let checkpoint = Checkpoint::open(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m"))?;
    let context = support::open()?;
    let linear = |name: &str| checkpoint.ternary(&format!("model.layers.0.mlp.{name}_proj"));
    let gain = |name: &str| checkpoint.tensor(&format!("model.layers.0.{name}.weight"))?.to_f32();
    let gate_up = PackedTernary::concat(&[&linear("gate")?, &linear("up")?])?;
    let down = linear("down")?;
    let (hidden, inner) = (down.rows(), down.columns());
    let (norm, sub_norm) = (gain("post_attention_layernorm")?, gain("mlp.ffn_sub_norm")?);

    let x = Tensor::<f32>::zeros(&context, [1, hidden])?;
    let mut encoder = context.encoder("feed-forward");
    let xq = bitnet::ActivationQuantizer::int8()
        .norm((&context.upload(&norm, [hidden])?, 1e-5))
        .quantize(&mut encoder, &x)?;
    let both = BitLinear::new(&gate_up.upload(&context)?).forward(&mut encoder, &xq)?;
    let gated = bitnet::gate(&both, Gate::Relu2).forward(&mut encoder)?;
    let gq = bitnet::ActivationQuantizer::int8()
        .norm((&context.upload(&sub_norm, [inner])?, 1e-5))
        .quantize(&mut encoder, &gated)?;
    let y = BitLinear::new(&down.upload(&context)?).forward(&mut encoder, &gq)?;
    println!("{} dispatches", encoder.len());
    let block = encoder.finish();

    let mut rng = support::rng();
    for token in 0..3 {
        let input = support::activations(&mut rng, hidden);
        x.write(&input)?;
        let _ = block.submit()?;
        let y = pollster::block_on(y.read())?;

        let both = reference::bitlinear_quantized(
            &reference::rms_norm_quantize(&input, 1, &norm, 1e-5)?,
            &gate_up,
        )?;
        let gated = reference::rms_norm_quantize(
            &reference::gate(&both, inner, Gate::Relu2)?,
            1,
            &sub_norm,
            1e-5,
        )?;
        let expected = reference::bitlinear_quantized(&gated, &down)?;
        let largest =
            |values: &mut dyn Iterator<Item = f32>| values.fold(0f32, |max, v| max.max(v.abs()));
        let off = largest(&mut y.iter().zip(&expected).map(|(a, b)| a - b))
            / largest(&mut expected.iter().copied());
        println!(
            "token {token}: y = {:?} ..., largest difference from the CPU {off:.0e} of the largest output",
            &y[..3]
        );
    }
    let (clock, time) = pollster::block_on(block.time(100))?;
    println!("{time:?} per block, by the {clock} clock; {:?}", context.memory_stats());
    Ok(())
}
