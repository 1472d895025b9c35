//! Rows of a ternary embedding, which are decoded where they are read.

use super::cache::NewTokens;
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    params,
    weights::ternary::{
        layout::CODES_PER_WORD, matrix::TernaryMatrix, packed::PackedTernary, scales::groups,
    },
    wgsl,
};

params! { struct Params { tokens: u32, columns: u32, row_words: u32, groups: u32, group_words: u32, rows: u32, add: u32, advance: u32 } }

static EMBED_TERNARY: Kernel = Kernel::trusted(
    "embed_ternary",
    Params::FIELDS,
    &[
        read("tokens", U32),
        read("table", U32),
        read("table_scale", F32),
        read_write("y", F32),
        read_write("runs", U32),
    ],
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/ternary",
        "transformer/embed_ternary"
    ])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&EMBED_TERNARY];

/// The rows of `table` `[vocab, k]` that `tokens` `[m]` name, as `[m, k]`: scale · code, which is
/// exact. Ids beyond the vocabulary read its last row: whoever makes them on the host checks them.
///
/// # Errors
/// As [`embed_ternary_into`].
pub fn embed_ternary(
    encoder: &mut Encoder,
    tokens: &Tensor<u32>,
    table: &TernaryMatrix,
) -> Result<Tensor<f32>> {
    let y = Tensor::uninit(encoder.context(), [tokens.len(), table.columns()])?;
    embed_ternary_into(encoder, tokens, table, &y)?;
    Ok(y)
}

/// [`embed_ternary`] into a tensor of the caller, `[m, k]`.
///
/// # Errors
/// [`Error::Shape`] if the output does not fit; [`Error::Invalid`] for an empty table and tokens to
/// look up.
pub fn embed_ternary_into<'y>(
    encoder: &mut Encoder,
    tokens: &Tensor<u32>,
    table: &TernaryMatrix,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    let none = Tensor::uninit(encoder.context(), [1, 2])?;
    record(encoder, tokens, table, y.into(), &none, false)
}

/// [`embed_ternary_into`] for the next token of each of some sequences, which is counted in `runs`:
/// see [`embed_next_into`](super::embed::embed_next_into).
///
/// # Errors
/// As [`embed_ternary_into`]; [`Error::Invalid`] for runs of other tokens.
pub fn embed_ternary_next_into<'y>(
    encoder: &mut Encoder,
    tokens: &Tensor<u32>,
    runs: &Tensor<u32>,
    table: &TernaryMatrix,
    y: impl Into<Out<'y, f32>>,
) -> Result<()> {
    NewTokens { run: 1, runs }.check("embed_ternary", tokens.len())?;
    record(encoder, tokens, table, y.into(), runs, true)
}

fn record(
    encoder: &mut Encoder,
    tokens: &Tensor<u32>,
    table: &TernaryMatrix,
    y: Out<'_, f32>,
    runs: &Tensor<u32>,
    advance: bool,
) -> Result<()> {
    let (m, k) = (tokens.len(), table.columns());
    y.check("embed_ternary", m, k)?;
    if table.rows() == 0 && m > 0 {
        return Err(Error::Invalid { op: "embed_ternary", what: "the table has no rows".into() });
    }
    let row_words = table.row_words();
    let params = Params {
        tokens: m as u32,
        columns: k as u32,
        row_words: row_words as u32,
        groups: groups(k, table.group()) as u32,
        group_words: table.group().map_or(row_words, |size| size / CODES_PER_WORD).max(1) as u32,
        rows: table.rows() as u32,
        add: y.adds().into(),
        advance: advance.into(),
    };
    encoder.dispatch(
        &EMBED_TERNARY,
        &params,
        &[tokens, &table.codes, &table.scales, y.tensor(), runs],
        [m * row_words, 1, 1],
    )
}

/// The CPU twin: the same bits.
///
/// # Errors
/// [`Error::Invalid`] for a token that the table does not have.
pub fn embed_ternary_cpu(tokens: &[u32], table: &PackedTernary) -> Result<Vec<f32>> {
    let (scales, groups) = (table.row_scales(), groups(table.columns(), table.group()));
    let size = table.group().unwrap_or(table.columns());
    let mut y = Vec::with_capacity(tokens.len() * table.columns());
    for &token in tokens {
        let row = token as usize;
        if row >= table.rows() {
            return Err(Error::Invalid {
                op: "embed_ternary",
                what: format!("token {token}; the vocabulary has {}", table.rows()),
            });
        }
        y.extend((0..table.columns()).map(|column| {
            f32::from(table.value(row, column)) * scales[row * groups + column / size]
        }));
    }
    Ok(y)
}
