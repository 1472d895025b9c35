//! Rows sorted by the expert that they use, and products of tiles of them on tensor cores: each
//! tile reads its expert's weights once.

use super::{
    bitlinear_block_float::tensor_cores_of_spirv,
    bitlinear_tensor_cores::{INT8_CORE_8, INT8_CORE_16},
    quantize_block_float::block_columns,
};
use crate::{
    error::{Error, Result},
    gpu::{context::Context, encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, Source, glsl},
    },
    ops::transformer::route::MOST_EXPERTS,
    params,
    weights::ternary::matrix::TernaryMatrix,
    wgsl,
};

params! {
    pub(super) struct Params {
        pub m: u32, pub n: u32, pub blocks: u32, pub words: u32, pub block_words: u32, pub groups: u32, pub group_blocks: u32, pub lanes: u32, pub add: u32, pub experts: u32, pub per_token: u32, pub scaled_last: u32,
    }
}
params! { struct SortParams { uses: u32, experts: u32, tile: u32 } }

/// With three experts each: as many as there may be, and those of no expert.
const THREADS: u32 = 256;

static SORT: Kernel = Kernel::trusted(
    "sort_experts",
    SortParams::FIELDS,
    &[read("chosen", U32), read_write("sorted", U32), read_write("tiles", U32)],
    &[Source::wgsl(wgsl!["shared/ids", "bitnet/sort_experts"])
        .workgroup_size([THREADS, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(24 * THREADS)],
);

const BINDINGS: &[Binding] = &[
    read("x", U32),
    read("codes", U32),
    read("w_scale", F32),
    read("units", F32),
    read_write("y", Float("Y")),
    read("sorted", U32),
    read("tiles", U32),
];

const PARTS: &[Part] = glsl![
    "shared/prelude",
    "shared/outputs",
    "bitnet/matrix_of_tile",
    "bitnet/bitlinear_block_float_tensor_cores"
];

static CORES_16: Kernel = tensor_cores_of_spirv!("bitlinear_experts_tensor_cores_16", INT8_CORE_16, [128, 16], [1, 2], lanes [2, 4], Params, BINDINGS, PARTS);
/// For tests on software adapters.
static CORES_8: Kernel = tensor_cores_of_spirv!("bitlinear_experts_tensor_cores_8", INT8_CORE_8, [32, 8], [1, 2], lanes [1, 8], Params, BINDINGS, PARTS);

pub(super) const KERNELS: &[&Kernel] = &[&SORT, &CORES_16, &CORES_8];

/// The kernel of products of tiles, where the device has one.
pub(super) fn tile_product(context: &Context) -> Option<&'static Kernel> {
    let capabilities = context.capabilities();
    let has = |core| !capabilities.software && capabilities.tensor_cores.contains(&core);
    [(INT8_CORE_16, &CORES_16), (INT8_CORE_8, &CORES_8)]
        .into_iter()
        .find(|on| has(on.0))
        .map(|on| on.1)
}

/// Numbers of rows by the expert that they use, and tiles of rows with one expert.
pub(crate) struct SortedExperts {
    experts: usize,
    tile: usize,
    /// `[rows]`
    pub(super) sorted: Tensor<u32>,
    /// `[1 + tiles, 4]`
    pub(super) tiles: Tensor<u32>,
}

impl SortedExperts {
    /// Memory for `rows` rows that use matrices of `w`, which has `experts`; none where products of
    /// tiles are not possible or gain nothing.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn uninit(
        context: &Context,
        rows: usize,
        (w, experts): (&TernaryMatrix, usize),
    ) -> Result<Option<Self>> {
        // Blocks are filled up to 128 columns. Tiles of less than a row each are mostly empty.
        let fits = block_columns(w.group()) >= 32 && w.columns() > 0 && experts <= MOST_EXPERTS;
        let Some(kernel) = tile_product(context).filter(|_| fits && rows > experts) else {
            return Ok(None);
        };
        Self::of_tiles(context, rows, experts, kernel.sources()[0].tile[1] as usize).map(Some)
    }

    /// [`uninit`](Self::uninit) of tiles of up to `tile` rows.
    fn of_tiles(context: &Context, rows: usize, experts: usize, tile: usize) -> Result<Self> {
        let most = rows.min(rows / tile + experts + 1);
        Ok(Self {
            experts,
            tile,
            sorted: Tensor::uninit(context, [rows])?,
            tiles: Tensor::uninit(context, [1 + most, 4])?,
        })
    }

    /// The most tiles that there may be.
    pub(super) fn most(&self) -> usize {
        self.tiles.shape().as_matrix().0 - 1
    }

    /// Records the order of the rows, of which row i uses expert `chosen[i]`.
    ///
    /// # Errors
    /// [`Error::Length`] for another number of rows.
    pub fn sort(&self, encoder: &mut Encoder, chosen: &Tensor<u32>) -> Result<()> {
        let rows = self.sorted.len();
        if chosen.len() != rows {
            return Err(Error::Length { shape: [rows].into(), found: chosen.len() });
        }
        let params =
            SortParams { uses: rows as u32, experts: self.experts as u32, tile: self.tile as u32 };
        encoder.dispatch(&SORT, &params, &[chosen, &self.sorted, &self.tiles], [1, 1, 1])
    }
}

/// Records which rows use which expert, for tests: rows by expert, and tiles of up to `tile` of
/// them.
///
/// # Errors
/// [`Error::Invalid`] for more experts than a router chooses from, and for tiles of no row.
pub(crate) fn sort_experts(
    encoder: &mut Encoder,
    chosen: &Tensor<u32>,
    experts: usize,
    tile: usize,
) -> Result<(Tensor<u32>, Tensor<u32>)> {
    if experts > MOST_EXPERTS || tile == 0 {
        let what = format!("{experts} experts in tiles of {tile} rows");
        return Err(Error::Invalid { op: SORT.name, what });
    }
    let own = SortedExperts::of_tiles(encoder.context(), chosen.len(), experts, tile)?;
    own.sort(encoder, chosen)?;
    Ok((own.sorted, own.tiles))
}
