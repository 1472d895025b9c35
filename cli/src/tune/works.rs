//! What a model's kernels are measured with: products, attention and LM heads of its shapes.

use anyhow::Result;
use bitnet_wgpu::bitnet::{ActivationType, BitLinear};
use bitnet_wgpu::{
    Context, Element, Recording, Tensor,
    bitnet::{self, Gate},
    formats::ModelConfig,
    internals::Activation,
    transformer::{self, AttentionShape, CachePositions, KvCache},
    weights::{DenseElement, PackedDense, PackedTernary, Scales, TernaryMatrix},
};
use std::rc::Rc;

/// Rows of an LM head that are measured, at most. More take longer and are alike.
const MOST_HEAD_ROWS: usize = 32_768;

/// A piece of work of a model, which can be recorded on several copies of its data.
pub struct Work {
    pub what: String,
    /// What must be read and written, for one copy.
    pub bytes: usize,
    pub copies: usize,
    pub record: Box<Record>,
}

type Record = dyn Fn(&Context, usize) -> bitnet_wgpu::Result<Recording>;

/// Kernels, extents and parameters of all dispatches.
pub type Dispatched = Vec<(String, [usize; 3], Vec<u8>)>;

impl Work {
    /// Returns what the work dispatches on a context.
    pub fn dispatched(&self, context: &Context) -> Result<Dispatched> {
        let recording = (self.record)(context, 1)?;
        let dispatches = recording.dispatches();
        Ok(dispatches
            .map(|d| (d.kernel().name.to_owned(), d.extent(), d.params().to_vec()))
            .collect())
    }
}

/// Rows and columns of the products of a layer: q + k + v, o, gate + up, down.
fn products(c: &ModelConfig) -> [[usize; 2]; 4] {
    let attended = c.heads * c.head_dim;
    [
        [attended + 2 * c.kv_heads * c.head_dim, c.hidden],
        [c.hidden, attended],
        [2 * c.intermediate, c.hidden],
        [c.hidden, c.intermediate],
    ]
}

/// Returns the numbers of rows of the products.
pub fn rows(c: &ModelConfig) -> Vec<usize> {
    products(c).iter().map(|[rows, _]| *rows).collect()
}

/// Returns all work of a model's shapes that thresholds choose kernels for.
pub fn works(context: &Context, c: &ModelConfig) -> Result<Vec<Work>> {
    let mut works = Vec::new();
    let gate = match c.activation {
        Activation::Relu2 => Gate::Relu2,
        Activation::GeluTanh => Gate::GeluTanh,
        _ => Gate::Silu,
    };
    for (n, shape) in products(c).into_iter().enumerate() {
        let product =
            Product::new(context, shape, (n == 2).then_some(gate), c.quantized_activations)?;
        for &tokens in TOKENS.iter().filter(|&&tokens| tokens <= most_tokens(context)) {
            works.push(product.plain(context, tokens)?);
            if tokens <= 16 {
                works.push(product.with_norm(context, tokens)?);
            }
        }
    }
    let attention = AttentionShape { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim };
    of_attention(context, attention, &mut works)?;
    of_head(context, c.vocab.min(MOST_HEAD_ROWS), c.hidden, &mut works)?;
    Ok(works)
}

/// Tokens of a product.
const TOKENS: [usize; 14] = [1, 2, 3, 4, 6, 8, 16, 24, 32, 48, 64, 128, 256, 512];

fn most_tokens(context: &Context) -> usize {
    if context.capabilities().software { 64 } else { 512 }
}

fn floats(context: &Context, rows: usize, columns: usize) -> Result<Tensor<f32>> {
    let value = |i: usize| (i * 7919 % 1009) as f32 / 504.0 - 1.0;
    Ok(context.upload(&(0..rows * columns).map(value).collect::<Vec<_>>(), [rows, columns])?)
}

/// Returns how many copies no cache of a GPU holds, when they take turns. A software adapter
/// computes for longer than it reads.
fn copies(context: &Context, bytes: usize) -> usize {
    if context.capabilities().software { 2 } else { ((384 << 20) / bytes.max(1)).clamp(1, 2000) }
}

/// Columns that share a scale where activations are not quantized, as in Ternary-Bonsai.
const GROUP: usize = 128;

/// A product with a ternary matrix, in copies.
struct Product {
    rows: usize,
    columns: usize,
    gate: Option<Gate>,
    /// Whether activations are int8, in place of block floating point.
    quantized: bool,
    matrices: Rc<Vec<TernaryMatrix>>,
}

impl Product {
    fn new(
        context: &Context,
        [rows, columns]: [usize; 2],
        gate: Option<Gate>,
        quantized: bool,
    ) -> Result<Self> {
        let values: Vec<i8> =
            (0..rows * columns).map(|i| (i * 7919 % 1009 % 3) as i8 - 1).collect();
        let groups = rows * columns.div_ceil(GROUP);
        let scales = match quantized {
            true => Scales::Tensor(0.02),
            false => Scales::Groups {
                size: GROUP,
                scales: (0..groups).map(|i| 0.02 + (i % 7) as f32 * 0.001).collect(),
            },
        };
        let w = PackedTernary::from_values(rows, columns, &values, scales)?;
        let copies = copies(context, 4 * w.words().len());
        let matrices =
            (0..copies).map(|_| w.upload(context)).collect::<bitnet_wgpu::Result<_>>()?;
        Ok(Self { rows, columns, gate, quantized, matrices: Rc::new(matrices) })
    }

    fn work(&self, tokens: usize, what: &str, record: Box<Record>) -> Work {
        let (rows, columns) = (self.rows, self.columns);
        Work {
            what: format!("{tokens} × {rows} × {columns}{what}"),
            bytes: self.matrices[0].code_bytes() + tokens * (columns + 4 * rows),
            copies: self.matrices.len(),
            record,
        }
    }

    /// Activations that are quantized in a dispatch of their own.
    fn plain(&self, context: &Context, tokens: usize) -> Result<Work> {
        let x = floats(context, tokens, self.columns)?;
        let y = Tensor::<f32>::zeros(context, [tokens, self.rows])?;
        let mut encoder = context.encoder("activations");
        let xq = bitnet::ActivationQuantizer::int8().quantize(&mut encoder, &x)?;
        encoder.submit()?.wait()?;
        let (w, quantized) = (self.matrices.clone(), self.quantized);
        let record = move |context: &Context, copies: usize| {
            let mut encoder = context.encoder("product");
            if quantized {
                w[..copies]
                    .iter()
                    .try_for_each(|w| BitLinear::new(w).forward_into(&mut encoder, &xq, &y))?;
            } else {
                // Their layout depends on the thresholds.
                let rounded = bitnet::ActivationQuantizer::block_float(Some(GROUP))
                    .quantize(&mut encoder, &x)?;
                w[..copies]
                    .iter()
                    .try_for_each(|w| BitLinear::new(w).forward_into(&mut encoder, &rounded, &y))?;
            }
            Ok(encoder.finish())
        };
        Ok(self.work(tokens, "", Box::new(record)))
    }

    /// Norm and quantizer in the product's dispatch, or before it.
    fn with_norm(&self, context: &Context, tokens: usize) -> Result<Work> {
        let x = floats(context, tokens, self.columns)?;
        let gain = context.upload(&vec![1.0f32; self.columns], [self.columns])?;
        let columns = if self.gate.is_some() { self.rows / 2 } else { self.rows };
        let y = Tensor::<f32>::zeros(context, [tokens, columns])?;
        let (w, gate, quantized) = (self.matrices.clone(), self.gate, self.quantized);
        let record = move |context: &Context, copies: usize| {
            let mut encoder = context.encoder("norm and product");
            for w in &w[..copies] {
                let norm = Some((&gain, 1e-5));
                let mut product = BitLinear::new(w);
                if !quantized {
                    product = product.activation_type(ActivationType::BlockFloat);
                }
                match gate {
                    Some(gate) => {
                        product.norm(norm).gate(gate).forward_into(&mut encoder, &x, &y)?
                    }
                    None => product.norm(norm).forward_into(&mut encoder, &x, &y)?,
                };
            }
            Ok(encoder.finish())
        };
        Ok(self.work(tokens, ", with norm", Box::new(record)))
    }
}

fn of_attention(context: &Context, shape: AttentionShape, works: &mut Vec<Work>) -> Result<()> {
    let c = context.capabilities();
    let element = if c.f16 { Element::F16 } else { Element::F32 };
    let small = c.software;
    let stored = 2 * shape.kv_heads * shape.head_dim * if c.f16 { 2 } else { 4 };
    // Sequences, new tokens of each, and how many each has had.
    for (sequences, run, past) in [
        (1, 1, 300),
        (1, 16, 300),
        (16, 1, 300),
        (64, 1, 300),
        (1, 64, 200),
        (1, 256, 0),
        (1, 512, 0),
        (1, 1024, 0),
    ] {
        if small && sequences * run > 64 {
            continue;
        }
        let tokens = sequences * run;
        let (qkv, y) = (
            floats(context, tokens, shape.row())?,
            Tensor::<f32>::zeros(context, [tokens, shape.heads * shape.head_dim])?,
        );
        let angles = transformer::rope_angles(&vec![0.5; shape.head_dim / 2], past + run);
        let angles = context.upload(&angles, [past + run, shape.head_dim / 2, 2])?;
        let runs: Vec<u32> =
            (0..sequences as u32).flat_map(|sequence| [sequence, past as u32]).collect();
        let runs = context.upload(&runs, [sequences, 2])?;
        let bytes = sequences * (past + run) * stored
            + tokens * 4 * (shape.row() + shape.heads * shape.head_dim);
        let copies = copies(context, bytes).min(30);
        let caches =
            (0..copies).map(|_| KvCache::new(context, shape, sequences, past + run, element));
        let caches: Rc<Vec<_>> = Rc::new(caches.collect::<bitnet_wgpu::Result<_>>()?);
        for in_f16 in
            [false, true].into_iter().filter(|in_f16| !in_f16 || !c.tensor_cores.is_empty())
        {
            let (qkv, runs, angles, y, caches) =
                (qkv.clone(), runs.clone(), angles.clone(), y.clone(), caches.clone());
            let record = move |context: &Context, copies: usize| {
                let (mut encoder, new) =
                    (context.encoder("attention"), CachePositions::new(&runs, run));
                caches[..copies].iter().try_for_each(|cache| {
                    let attention = transformer::attention(&qkv, new, cache).rope(&angles);
                    let attention = if in_f16 { attention.f16() } else { attention };
                    attention.forward_into(&mut encoder, &y)
                })?;
                Ok(encoder.finish())
            };
            let what = format!(
                "attention of {sequences} × {run} after {past}{}",
                if in_f16 { ", in f16" } else { "" }
            );
            works.push(Work { what, bytes, copies, record: Box::new(record) });
        }
    }
    Ok(())
}

fn of_head(context: &Context, rows: usize, columns: usize, works: &mut Vec<Work>) -> Result<()> {
    let w = PackedDense::from_bytes(
        DenseElement::Bf16,
        rows,
        columns,
        &vec![0x3c; 2 * rows * columns],
    )?;
    let copies = copies(context, 2 * rows * columns);
    let heads: Rc<Vec<_>> =
        Rc::new((0..copies).map(|_| w.upload(context)).collect::<bitnet_wgpu::Result<_>>()?);
    for tokens in [2, 3, 4, 5, 6, 8, 12, 16, 32] {
        let (x, y, heads) = (
            floats(context, tokens, columns)?,
            Tensor::<f32>::zeros(context, [tokens, rows])?,
            heads.clone(),
        );
        let record = move |context: &Context, copies: usize| {
            let mut encoder = context.encoder("head");
            heads[..copies]
                .iter()
                .try_for_each(|w| transformer::dense_gemv(&x, w).forward_into(&mut encoder, &y))?;
            Ok(encoder.finish())
        };
        let bytes = 2 * rows * columns + 4 * tokens * (rows + columns);
        works.push(Work {
            what: format!("a head of {rows} × {columns}, {tokens} tokens"),
            bytes,
            copies,
            record: Box::new(record),
        });
    }
    Ok(())
}
