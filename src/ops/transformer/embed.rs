//! Rows of an embedding table: y[t] = table[tokens[t]].

use super::{
    cache::CachePositions,
    embed_ternary::{self, check_token},
};
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::forward::forward,
    params,
    shape::Shape,
    weights::{
        dense::{DenseElement, DenseMatrix, PackedDense},
        ternary::matrix::TernaryMatrix,
    },
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

use sealed::Table;

const OP: &str = "embed";

/// An embedding table `[vocab, k]`. Sealed: implemented by the types below.
pub trait EmbeddingTable: sealed::EmbeddingTable {}

/// Floats or 8-bit integers.
impl EmbeddingTable for DenseMatrix {}
/// Ternary weights, decoded as they are read: scale · code, which is exact.
impl EmbeddingTable for TernaryMatrix {}

mod sealed {
    use super::*;

    #[derive(Clone, Copy)]
    pub enum Table<'a> {
        Dense(&'a DenseMatrix),
        Ternary(&'a TernaryMatrix),
    }

    pub trait EmbeddingTable {
        fn table(&self) -> Table<'_>;
    }

    impl EmbeddingTable for DenseMatrix {
        fn table(&self) -> Table<'_> {
            Table::Dense(self)
        }
    }

    impl EmbeddingTable for TernaryMatrix {
        fn table(&self) -> Table<'_> {
            Table::Ternary(self)
        }
    }
}

impl Table<'_> {
    fn shape(&self) -> [usize; 2] {
        match self {
            Self::Dense(table) => [table.rows(), table.columns()],
            Self::Ternary(table) => [table.rows(), table.columns()],
        }
    }
}

/// A look-up in an embedding table: what [`embed`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Embed<'a> {
    tokens: &'a Tensor<u32>,
    table: Table<'a>,
    sequences: Option<&'a Tensor<u32>>,
}

/// Looks up the rows of a table `[vocab, k]`, dense or ternary, for `tokens` `[m]`; the result is
/// `[m, k]`. Ids beyond the vocabulary read its last row: whoever makes them on the host checks
/// them. An empty table is an [`Error::Invalid`], if there are tokens.
pub fn embed<'a>(tokens: &'a Tensor<u32>, table: &'a (impl EmbeddingTable + ?Sized)) -> Embed<'a> {
    Embed { tokens, table: table.table(), sequences: None }
}

forward!(impl['a] Embed<'a> => f32);

impl<'a> Embed<'a> {
    /// Counts the tokens, each the next one of a sequence: the lengths in `sequences` `[m, 2]`, as
    /// [`CachePositions`] has them, are raised by one before anything else reads them. So a
    /// recording that is submitted again and again continues its sequences.
    pub fn advance(self, sequences: &'a Tensor<u32>) -> Self {
        Self { sequences: Some(sequences), ..self }
    }

    fn shape(&self) -> Result<Shape> {
        Ok([self.tokens.len(), self.table.shape()[1]].into())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let (m, [rows, columns]) = (self.tokens.len(), self.table.shape());
        let sequences = match self.sequences {
            Some(sequences) => {
                CachePositions::new(sequences, 1).check(OP, m)?;
                sequences
            }
            None => &Tensor::uninit(encoder.context(), [1, 2])?,
        };
        y.check(OP, m, columns)?;
        if rows == 0 && m > 0 {
            return Err(Error::Invalid { op: OP, what: "the table has no rows".into() });
        }
        let advance = self.sequences.is_some();
        match self.table {
            Table::Dense(table) => record_dense(encoder, self.tokens, table, y, sequences, advance),
            Table::Ternary(table) => {
                embed_ternary::record(encoder, self.tokens, table, y, sequences, advance)
            }
        }
    }
}

fn record_dense(
    encoder: &mut Encoder,
    tokens: &Tensor<u32>,
    table: &DenseMatrix,
    y: Out<'_, f32>,
    sequences: &Tensor<u32>,
    advance: bool,
) -> Result<()> {
    let kernel = match table.element() {
        DenseElement::F32 => &EMBED_F32,
        DenseElement::F16 => &EMBED_F16,
        DenseElement::Bf16 => &EMBED_BF16,
        DenseElement::Int8 => &EMBED_INT8,
    };
    let params = Params {
        tokens: tokens.len() as u32,
        columns: table.columns() as u32,
        blocks: table.blocks() as u32,
        rows: table.rows() as u32,
        add: y.adds().into(),
        advance: advance.into(),
    };
    encoder.dispatch(
        kernel,
        &params,
        &[tokens, &table.words, &table.scales, y.tensor(), sequences],
        [tokens.len() * table.blocks(), 1, 1],
    )
}

pub(crate) mod host {
    use super::*;

    /// CPU reference of [`embed`](super::embed()) with a dense table: bit-identical, but where
    /// 16-bit elements are subnormal.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a token that the table does not have.
    pub fn embed(tokens: &[u32], table: &PackedDense) -> Result<Vec<f32>> {
        let mut y = Vec::with_capacity(tokens.len() * table.columns());
        for &token in tokens {
            y.extend(table.row(check_token(token, table.rows())?));
        }
        Ok(y)
    }
}
