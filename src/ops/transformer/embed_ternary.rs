//! The kernel of [`embed`](super::embed()) for ternary tables, whose rows are decoded as they are
//! read.

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

/// Records it, once everything is known to fit.
pub(super) fn record(
    encoder: &mut Encoder,
    tokens: &Tensor<u32>,
    table: &TernaryMatrix,
    y: Out<'_, f32>,
    sequences: &Tensor<u32>,
    advance: bool,
) -> Result<()> {
    let (m, k, row_words) = (tokens.len(), table.columns(), table.row_words());
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
        &[tokens, &table.codes, &table.scales, y.tensor(), sequences],
        [m * row_words, 1, 1],
    )
}

/// Checks that a table of `rows` rows has this token.
pub(super) fn check_token(token: u32, rows: usize) -> Result<usize> {
    if token as usize >= rows {
        let what = format!("token {token}; the vocabulary has {rows}");
        return Err(Error::Invalid { op: "embed", what });
    }
    Ok(token as usize)
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`embed`](crate::transformer::embed()) with a ternary table: bit-identical.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a token that the table does not have.
    pub fn embed_ternary(tokens: &[u32], table: &PackedTernary) -> Result<Vec<f32>> {
        let (scales, groups) = (table.row_scales(), groups(table.columns(), table.group()));
        let size = table.group().unwrap_or(table.columns());
        let mut y = Vec::with_capacity(tokens.len() * table.columns());
        for &token in tokens {
            let row = check_token(token, table.rows())?;
            y.extend((0..table.columns()).map(|column| {
                f32::from(table.value(row, column)) * scales[row * groups + column / size]
            }));
        }
        Ok(y)
    }
}
