//! The LM head in int8, where packed products of integers are fast: activations in fixed point, so
//! that sums are exact in any order, and the kernel may be chosen by the number of tokens.

use crate::{
    error::Result,
    gpu::{
        capabilities::Capabilities,
        encoder::Encoder,
        out::Out,
        recording::Extent,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        needs::TensorCore,
        params::Params as _,
        source::{Part, REDUCE, Source, Work, glsl, spirv},
    },
    params,
    tuning::TuningKey,
    weights::dense::{DenseElement, DenseMatrix},
    wgsl,
};

params! { pub(super) struct Params { pub rows: u32, pub tokens: u32, pub blocks: u32, pub add: u32 } }
params! { struct QuantizeParams { tokens: u32, columns: u32, words: u32 } }

/// A workgroup makes a row.
static QUANTIZE: Kernel = Kernel::trusted(
    "quantize_fixed_point",
    QuantizeParams::FIELDS,
    &[read("x", F32), read_write("y", U32), read_write("units", F32)],
    &[Source::wgsl(wgsl![REDUCE, "shared/flat", "transformer/quantize_fixed_point"])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(1024)
        .work(Work::new(4, "elements", 28, 12))],
)
.flat();

const BINDINGS: &[Binding] = &[
    read("table", U32),
    read("table_scale", F32),
    read("x", U32),
    read("units", F32),
    read_write("y", F32),
];

const PACKED: &[Part] = wgsl![REDUCE, "bitnet/row_sums", "transformer/dense_gemv_packed"];

/// 32 lanes make four rows; a turn of the loop takes 16 bytes of each row, and of three planes of
/// each token.
const fn packed(tokens: u32) -> Source {
    let products = 3 * 4 * tokens * 16;
    Source::wgsl(PACKED)
        .workgroup_size([256, 1, 1])
        .tile([32, tokens, 1])
        .constants(&[("ROWS", 4)])
        .workgroup_bytes(1024)
        .work(Work::new(products, "products", 64 + 48 * tokens, 2 * products))
}

const fn packed_kernel(name: &'static str, sources: &'static [Source]) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources).entry("dense_gemv_packed")
}

/// For one token, and for four at a time. A pass of eight takes longer than two of these.
static GEMV: [Kernel; 2] = [
    packed_kernel("dense_gemv_packed", &[packed(1)]),
    packed_kernel("dense_gemv_packed_4", &[packed(4)]),
];

/// The kernels of a tensor core, for 16, 32 and 64 tokens at a time.
struct OnTensorCore([Kernel; 3]);

const TENSOR_CORE_PARTS: &[Part] = glsl!["shared/prelude", "transformer/dense_int8_tensor_cores"];

/// `rows` × `tokens` outputs a workgroup, of which a subgroup makes `down` × `across` matrices;
/// `depth` columns are staged at a time. Sums, in three planes, take their place in the end.
const fn tensor_cores(
    source: Source,
    core: TensorCore,
    [rows, tokens]: [u32; 2],
    [down, across]: [u32; 2],
    depth: u32,
) -> Source {
    let subgroups = rows * tokens / (down * across * core.size * core.size);
    let staged = (rows + 3 * tokens) * (depth + 16);
    let sums = subgroups * 3 * core.size * (core.size + 4) * 4;
    source
        .workgroup_size([subgroups * core.lanes, 1, 1])
        .tile([rows, tokens, 1])
        .workgroup_bytes(if staged > sums { staged } else { sums })
}

/// A kernel by its name, and so its binary.
macro_rules! int8_products {
    ($name:literal, $core:expr, $tile:expr, [$down:literal, $across:literal], $depth:literal) => {
        Kernel::trusted(
            $name,
            Params::FIELDS,
            BINDINGS,
            &[tensor_cores(
                Source::spirv(TENSOR_CORE_PARTS, spirv!($name, "")),
                $core,
                $tile,
                [$down, $across],
                $depth,
            )
            .constants(&[("DOWN", $down), ("ACROSS", $across), ("DEPTH", $depth)])],
        )
        .entry("dense_int8_tensor_cores")
        .tensor_core($core)
    };
}

/// Of GPUs of NVIDIA.
const CORE_16: TensorCore = TensorCore::int8(16, 32, 32);
/// Of software adapters, on which tests run the same source.
const CORE_8: TensorCore = TensorCore::int8(8, 8, 8);

static CORES_16: OnTensorCore = OnTensorCore([
    int8_products!("dense_int8_tensor_cores_16", CORE_16, [256, 16], [1, 2], 128),
    int8_products!("dense_int8_tensor_cores_16_32", CORE_16, [128, 32], [1, 2], 128),
    int8_products!("dense_int8_tensor_cores_16_64", CORE_16, [128, 64], [1, 4], 128),
]);

static CORES_8: OnTensorCore = OnTensorCore([
    int8_products!("dense_int8_tensor_cores_8", CORE_8, [32, 16], [1, 2], 64),
    int8_products!("dense_int8_tensor_cores_8_32", CORE_8, [32, 32], [1, 2], 64),
    int8_products!("dense_int8_tensor_cores_8_64", CORE_8, [32, 64], [2, 2], 64),
]);

pub(super) const KERNELS: &[&Kernel] = &[
    &QUANTIZE,
    &GEMV[0],
    &GEMV[1],
    &CORES_16.0[0],
    &CORES_16.0[1],
    &CORES_16.0[2],
    &CORES_8.0[0],
    &CORES_8.0[1],
    &CORES_8.0[2],
];

/// Most columns of which every sum has 32 bits: 128·127 times as many, in each plane.
const MOST_COLUMNS: usize = 1 << 16;

/// Whether products with `w` are these. It does not depend on the tokens.
pub(super) fn is_exact(w: &DenseMatrix, capabilities: &Capabilities) -> bool {
    w.element() == DenseElement::Int8
        && capabilities.fast_packed_dot
        && (1..=MOST_COLUMNS).contains(&w.columns())
}

/// The kernel for this many tokens. All of them are bit-identical.
fn plan(tokens: usize, capabilities: &Capabilities) -> &'static Kernel {
    let cores = [&CORES_16, &CORES_8].into_iter().find(|on| {
        on.0[0].tensor_core.is_some_and(|core| capabilities.tensor_cores.contains(&core))
    });
    if let Some(OnTensorCore(by_tokens)) = cores
        && tokens > capabilities.tuned(TuningKey::LmHeadTensorCoreTokens)
    {
        return match tokens {
            ..=16 => &by_tokens[0],
            17..=32 => &by_tokens[1],
            _ => &by_tokens[2],
        };
    }
    &GEMV[usize::from(tokens > 1)]
}

/// Records both dispatches. Shapes are checked.
pub(super) fn record(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    w: &DenseMatrix,
    y: Out<'_, f32>,
) -> Result<()> {
    let (m, k) = x.shape().as_matrix();
    let words = w.blocks() * 4;
    let planes = Tensor::<u32>::uninit(encoder.context(), [m, 3 * words])?;
    let units = Tensor::<f32>::uninit(encoder.context(), [m])?;
    let params = QuantizeParams { tokens: m as u32, columns: k as u32, words: words as u32 };
    encoder.dispatch(&QUANTIZE, &params, &[x, &planes, &units], [m, 1, 1])?;
    let kernel = plan(m, encoder.context().capabilities());
    let (tokens, blocks) = (m as u32, w.blocks() as u32);
    let params = Params { rows: w.rows() as u32, tokens, blocks, add: y.adds().into() };
    let bindings: [&dyn Bind; 5] = [&w.words, &w.scales, &planes, &units, y.tensor()];
    encoder.dispatch(kernel, &params, &bindings, Extent::products([w.rows(), m, 1], k))
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use crate::{
        error::{Error, Result},
        weights::dense::{DenseElement, PackedDense},
    };
    use rayon::prelude::*;

    /// CPU reference of [`dense_gemv`](super::super::dense_gemv()) with a matrix in int8, where a
    /// GPU has fast packed products of integers: bit-identical. Every row of `x` is rounded to
    /// multiples of a power of two, its largest magnitude being 2^21 to 2^22 of them. A product is
    /// exact but for that, is rounded to f32, and then multiplied by the scale of its row, in f32.
    /// So it is off by at most 2^-22 of the largest magnitude for each unit of Σ|w|, and by
    /// 2^-23 of itself. All products of a row with a number that is not finite are NaN, and numbers
    /// below 2^-117 may become 0.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows; [`Error::Invalid`] if `w` is not in int8.
    pub fn dense_gemv_int8(x: &[f32], w: &PackedDense) -> Result<Vec<f32>> {
        let (n, k) = (w.rows(), w.columns().max(1));
        if w.element() != DenseElement::Int8 {
            let what = "the matrix is in floats; this one accepts int8".into();
            return Err(Error::Invalid { op: "dense_gemv_int8", what });
        }
        if !x.len().is_multiple_of(k) {
            return Err(Error::Length { shape: [x.len() / k, k].into(), found: x.len() });
        }
        let m = x.len() / k;
        let rounded: Vec<_> = x.chunks_exact(k).map(fixed_point).collect();
        let mut by_row = vec![0f32; n * m];
        by_row.par_chunks_mut(m.max(1)).enumerate().for_each(|(row, y)| {
            let codes: Vec<i64> = w.unscaled_row(row).iter().map(|&code| code as i64).collect();
            for (y, (multiples, unit)) in y.iter_mut().zip(&rounded) {
                let sum: i64 = codes.iter().zip(multiples).map(|(code, x)| code * x).sum();
                *y = sum as f32 * w.scales()[row] * unit;
            }
        });
        Ok((0..m * n).map(|at| by_row[at % n * m + at / n]).collect())
    }

    /// The multiples that a row has of its unit, and the unit.
    fn fixed_point(row: &[f32]) -> (Vec<i64>, f32) {
        let largest = row.iter().fold(0, |largest: u32, v| largest.max(v.to_bits() & 0x7fff_ffff));
        if largest >= f32::INFINITY.to_bits() {
            return (vec![0; row.len()], f32::NAN);
        }
        let exponent = (largest >> 23).max(32);
        let inverse = f32::from_bits((275 - exponent) << 23);
        let multiples = row.iter().map(|v| (v * inverse).round_ties_even() as i64).collect();
        (multiples, f32::from_bits((exponent - 21) << 23))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_cores_are_for_several_tokens() {
        let mut with = Capabilities::example(false);
        let name = |with: &Capabilities, tokens| plan(tokens, with).name;
        assert_eq!(name(&with, 64), "dense_gemv_packed_4");
        with.tensor_cores = vec![CORE_16];
        assert_eq!(name(&with, 1), "dense_gemv_packed");
        assert_eq!(name(&with, 2), "dense_int8_tensor_cores_16");
        assert_eq!(name(&with, 17), "dense_int8_tensor_cores_16_32");
        assert_eq!(name(&with, 33), "dense_int8_tensor_cores_16_64");
    }
}
