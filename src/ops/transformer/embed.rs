//! Rows of an embedding: y[t] = table[tokens[t]].

use super::cache::NewTokens;
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl, params,
    weights::dense::{DenseElement, DenseMatrix, PackedDense},
    wgsl,
};

params! { struct Params { tokens: u32, columns: u32, blocks: u32, rows: u32, add: u32, advance: u32 } }

const fn kernel(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] = &[
        read("tokens", U32),
        read("table", U32),
        read("table_scale", F32),
        read_write("y", F32),
        read_write("runs", U32),
    ];
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources).entry("embed").flat()
}

static EMBED_F32: Kernel = kernel(
    "embed_f32",
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "transformer/dense_f32",
            "transformer/embed"
        ]),
        Source::msl(msl!["shared/prelude", "transformer/dense_f32", "transformer/embed"]),
    ],
);
static EMBED_F16: Kernel = kernel(
    "embed_f16",
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "transformer/dense_f16",
            "transformer/embed"
        ]),
        Source::msl(msl!["shared/prelude", "transformer/dense_f16", "transformer/embed"]),
    ],
);
static EMBED_BF16: Kernel = kernel(
    "embed_bf16",
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "transformer/dense_bf16",
            "transformer/embed"
        ]),
        Source::msl(msl!["shared/prelude", "transformer/dense_bf16", "transformer/embed"]),
    ],
);
static EMBED_INT8: Kernel = kernel(
    "embed_int8",
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "transformer/dense_int8",
            "transformer/embed"
        ]),
        Source::msl(msl!["shared/prelude", "transformer/dense_int8", "transformer/embed"]),
    ],
);

pub(super) const KERNELS: &[&Kernel] = &[&EMBED_F32, &EMBED_F16, &EMBED_BF16, &EMBED_INT8];

/// The rows of `table` `[vocab, k]` that `tokens` `[m]` name, as `[m, k]`. Ids beyond the
/// vocabulary read its last row: whoever makes them on the host checks them.
///
/// # Errors
/// As [`embed_into`].
pub fn embed(
    encoder: &mut Encoder,
    tokens: &Tensor<u32>,
    table: &DenseMatrix,
) -> Result<Tensor<f32>> {
    let y = Tensor::uninit(encoder.context(), [tokens.len(), table.columns()])?;
    embed_into(encoder, tokens, table, &y)?;
    Ok(y)
}

/// [`embed`] into a tensor of the caller, `[m, k]`.
///
/// # Errors
/// [`Error::Shape`] if the output does not fit; [`Error::Invalid`] for an empty table and tokens to
/// look up.
pub fn embed_into<'y>(
    encoder: &mut Encoder,
    tokens: &Tensor<u32>,
    table: &DenseMatrix,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    let none = Tensor::uninit(encoder.context(), [1, 2])?;
    record(encoder, tokens, table, y.into(), &none, false)
}

/// [`embed_into`] for the next token of each of some sequences, which is counted: `runs` `[m, 2]`,
/// as [`NewTokens`] has it, says of each how many tokens it has had, and is raised by one before
/// anything else uses it. So a step that is run again and again keeps its positions by itself.
///
/// # Errors
/// As [`embed_into`]; [`Error::Shape`] for runs of other tokens.
pub fn embed_next_into<'y>(
    encoder: &mut Encoder,
    tokens: &Tensor<u32>,
    runs: &Tensor<u32>,
    table: &DenseMatrix,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    NewTokens { run: 1, runs }.check("embed", tokens.len())?;
    record(encoder, tokens, table, y.into(), runs, true)
}

fn record(
    encoder: &mut Encoder,
    tokens: &Tensor<u32>,
    table: &DenseMatrix,
    y: Out<'_, f32>,
    runs: &Tensor<u32>,
    advance: bool,
) -> Result<()> {
    let (m, k) = (tokens.len(), table.columns());
    y.check("embed", m, k)?;
    if table.rows() == 0 && m > 0 {
        return Err(Error::Invalid { op: "embed", what: "the table has no rows".into() });
    }
    let kernel = match table.element() {
        DenseElement::F32 => &EMBED_F32,
        DenseElement::F16 => &EMBED_F16,
        DenseElement::Bf16 => &EMBED_BF16,
        DenseElement::Int8 => &EMBED_INT8,
    };
    let (blocks, rows, add) = (table.blocks() as u32, table.rows() as u32, y.adds().into());
    let params =
        Params { tokens: m as u32, columns: k as u32, blocks, rows, add, advance: advance.into() };
    encoder.dispatch(
        kernel,
        &params,
        &[tokens, &table.words, &table.scales, y.tensor(), runs],
        [m * table.blocks(), 1, 1],
    )
}

/// The CPU twin: the same bits, but where 16-bit elements are subnormal.
///
/// # Errors
/// [`Error::Invalid`] for a token that the table does not have.
pub fn embed_cpu(tokens: &[u32], table: &PackedDense) -> Result<Vec<f32>> {
    let mut y = Vec::with_capacity(tokens.len() * table.columns());
    for &token in tokens {
        if token as usize >= table.rows() {
            return Err(Error::Invalid {
                op: "embed",
                what: format!("token {token}; the vocabulary has {}", table.rows()),
            });
        }
        y.extend(table.row(token as usize));
    }
    Ok(y)
}
