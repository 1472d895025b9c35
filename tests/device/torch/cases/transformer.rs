//! Norms, rotations, attention, embeddings.

use super::{
    super::golden::{Case, Out},
    Run,
};
use bitnet_wgpu::{
    Result, Tensor,
    bitnet::WeightQuantizer,
    tensor::{self, Float, f16},
    transformer::{self, AttentionShape, RmsNorm, RmsNormHeads, RotaryEmbedding},
    weights::PackedDense,
};
use support::context;

fn rms_norm<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (x, gain, dy, e) = (c.floats::<T>("in0"), c.x(1), c.floats("dy"), &mut c.encoder);
    let norm = RmsNorm::new(&gain, 1e-5);
    let (dx, dgain) = norm.backward(e, &x, &dy)?;
    Ok(vec![norm.forward(e, &x)?.into(), dx.into(), dgain.into()])
}

fn flash_attention<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (q, k, v, dy, e) =
        (c.floats::<T>("in0"), c.floats("in1"), c.floats("in2"), c.floats("dy"), &mut c.encoder);
    let attention = transformer::flash_attention(&q, &k, &v).causal();
    let (y, lse) = attention.forward(e)?;
    let (dq, dk, dv) = attention.backward(e, &y, &lse, &dy)?;
    Ok(vec![y.into(), dq.into(), dk.into(), dv.into()])
}

/// By the names of the golden.
pub const CASES: &[(&str, Run)] = &[
    ("rms_norm", rms_norm::<f32>),
    ("rotate", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let frequencies: Vec<f32> =
            (0..4).map(|i| 10000f64.powf(-f64::from(i) / 4.0) as f32).collect();
        let angles = context().upload(&transformer::rope_angles(&frequencies, 5), [5, 4, 2])?;
        Ok(vec![
            RotaryEmbedding::new(&angles).forward(e, &x)?.into(),
            RotaryEmbedding::new(&angles).backward(e, &dy)?.into(),
        ])
    }),
    ("flash_attention", flash_attention::<f32>),
    ("rms_norm_heads", |c| {
        let (qkv, query_gain, key_gain) = (c.x(0), c.x(1), c.x(2));
        let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 8 };
        RmsNormHeads::new(shape, &query_gain, &key_gain, 1e-5).forward(&mut c.encoder, &qkv)?;
        Ok(vec![qkv.into()])
    }),
    ("embed_ternary", |c| {
        let (w, ids, e) = (c.x(0), c.ids(1), &mut c.encoder);
        let table = WeightQuantizer::absmean().quantize(e, &w)?;
        Ok(vec![transformer::embed(&ids, &table).forward(e)?.into()])
    }),
    ("top_k", |c| {
        let x = c.x(0);
        let (top, ids) = transformer::top_k(&x, 4).forward(&mut c.encoder)?;
        Ok(vec![top.into(), ids.into()])
    }),
    ("embed", |c| {
        let (table, ids, dy) = (c.x(0), c.ids(1), c.dy());
        let (rows, columns) = table.shape().as_matrix();
        let numbers = support::block_on(table.read())?;
        let zeros = Tensor::<f32>::zeros(context(), [rows, columns])?;
        let table = PackedDense::from_f32(rows, columns, &numbers)?.upload(context())?;
        let e = &mut c.encoder;
        Ok(vec![
            transformer::embed(&ids, &table).forward(e)?.into(),
            tensor::gather(&zeros, &ids).backward(e, &dy)?.into(),
        ])
    }),
    ("rms_norm_f16", rms_norm::<f16>),
    ("flash_attention_f16", flash_attention::<f16>),
];
