//! The largest logits of every row, so that a few bytes come back and not a vocabulary.

use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{REDUCE, Source, Work},
    },
    msl, params, wgsl,
};

params! { struct Params { count: u32, k: u32, finite: u32 } }

/// Logits that a workgroup looks at: eight per thread.
const RUN: usize = 2048;

const fn run(source: Source) -> Source {
    source
        .workgroup_size([256, 1, 1])
        .tile([RUN as u32, 1, 1])
        .constants(&[("TURNS", 8)])
        .work(Work::new(1, "winner", 0, 0))
}

static TOP_K: Kernel = Kernel::trusted(
    "top_k",
    Params::FIELDS,
    &[read("logits", F32), read_write("top", F32), read_write("top_ids", U32)],
    &[
        run(Source::wgsl(wgsl![
            REDUCE,
            "shared/order",
            "transformer/top_k_run",
            "transformer/top_k"
        ]))
        .workgroup_bytes(1024),
        run(Source::msl(msl![
            "shared/prelude",
            "shared/reduce",
            "shared/order",
            "transformer/top_k_run",
            "transformer/top_k"
        ]))
        .workgroup_bytes(128),
    ],
);

static TOP_K_MERGE: Kernel = Kernel::trusted(
    "top_k_merge",
    Params::FIELDS,
    &[
        read("logits", F32),
        read("logit_ids", U32),
        read_write("top", F32),
        read_write("top_ids", U32),
    ],
    &[
        run(Source::wgsl(wgsl![
            REDUCE,
            "shared/order",
            "transformer/top_k_run",
            "transformer/top_k_merge"
        ]))
        .workgroup_bytes(1024),
        run(Source::msl(msl![
            "shared/prelude",
            "shared/reduce",
            "shared/order",
            "transformer/top_k_run",
            "transformer/top_k_merge"
        ]))
        .workgroup_bytes(128),
    ],
);

pub(super) const KERNELS: &[&Kernel] = &[&TOP_K, &TOP_K_MERGE];

/// The largest logits of every row, largest first; ties by the lower id.
#[derive(Clone, Debug)]
pub struct TopK {
    /// `[rows, k]`
    pub logits: Tensor<f32>,
    /// `[rows, k]`: columns of the logits. [`TopK::NONE`] where a row has less than k, or has NaNs
    /// (its logit is NaN then).
    pub ids: Tensor<u32>,
}

impl TopK {
    /// No id.
    pub const NONE: u32 = u32::MAX;
    /// The most that can be asked for: as many from every run of logits must fit a few times into a
    /// run of the next pass.
    pub const MAX: usize = 256;
}

/// The `k` largest of every row of `logits` `[m, vocab]`.
///
/// # Errors
/// [`Error::Invalid`] for a `k` of 0 or above [`TopK::MAX`].
pub fn top_k(encoder: &mut Encoder, logits: &Tensor<f32>, k: usize) -> Result<TopK> {
    let (rows, _) = logits.shape().as_matrix();
    let top = TopK {
        logits: Tensor::uninit(encoder.context(), [rows, k])?,
        ids: Tensor::uninit(encoder.context(), [rows, k])?,
    };
    top_k_into(encoder, logits, &top)?;
    Ok(top)
}

/// [`top_k`] into tensors of the caller, both `[m, k]`.
///
/// # Errors
/// As [`top_k`]; [`Error::Shape`] if they do not fit.
pub fn top_k_into(encoder: &mut Encoder, logits: &Tensor<f32>, top: &TopK) -> Result<()> {
    record(encoder, logits, top, false)
}

/// The id of the largest of every row, `[m]`: [`TopK::NONE`] where it is not finite too.
pub(super) fn largest_into(
    encoder: &mut Encoder,
    logits: &Tensor<f32>,
    ids: &Tensor<u32>,
) -> Result<()> {
    let rows = ids.len();
    record(
        encoder,
        logits,
        &TopK {
            logits: Tensor::uninit(encoder.context(), [rows, 1])?,
            ids: ids.reshape([rows, 1])?,
        },
        true,
    )
}

/// Records it; with `finite`, infinities have no id.
fn record(encoder: &mut Encoder, logits: &Tensor<f32>, top: &TopK, finite: bool) -> Result<()> {
    let op = "top_k";
    let ((rows, mut count), (_, k)) = (logits.shape().as_matrix(), top.ids.shape().as_matrix());
    if !(1..=TopK::MAX).contains(&k) {
        return Err(Error::Invalid {
            op,
            what: format!("k = {k}; 1 to {} are possible", TopK::MAX),
        });
    }
    for (what, shape) in
        [("the winners' logits", top.logits.shape()), ("the winners' ids", top.ids.shape())]
    {
        if shape.as_matrix() != (rows, k) {
            return Err(Error::Shape {
                op,
                what,
                expected: format!("[{rows}, {k}]"),
                found: shape,
            });
        }
    }
    let context = encoder.context().clone();
    let mut winners: Option<TopK> = None;
    loop {
        let runs = count.div_ceil(RUN).max(1);
        let shape = [rows, runs * k];
        let next = match runs {
            1 => top.clone(),
            _ => TopK {
                logits: Tensor::uninit(&context, shape)?,
                ids: Tensor::uninit(&context, shape)?,
            },
        };
        // What has no id is no number to the next pass.
        let params =
            Params { count: count as u32, k: k as u32, finite: u32::from(finite && runs == 1) };
        // Without any logits there is still a run, of nothing.
        let extent = [count.max(1), rows, 1];
        match &winners {
            None => {
                encoder.dispatch(&TOP_K, &params, &[logits, &next.logits, &next.ids], extent)?
            }
            Some(from) => encoder.dispatch(
                &TOP_K_MERGE,
                &params,
                &[&from.logits, &from.ids, &next.logits, &next.ids],
                extent,
            )?,
        }
        if runs == 1 {
            return Ok(());
        }
        (winners, count) = (Some(next), runs * k);
    }
}

/// The CPU twin for one row: (id, logit), equal to the bit.
pub fn top_k_cpu(logits: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
    // NaNs first, as on the GPU; zeros of either sign by their sign.
    let order = |a: &(u32, f32), b: &(u32, f32)| {
        b.1.is_nan().cmp(&a.1.is_nan()).then(b.1.total_cmp(&a.1)).then(a.0.cmp(&b.0))
    };
    if k < all.len() {
        all.select_nth_unstable_by(k, order);
        all.truncate(k);
    }
    all.sort_unstable_by(order);
    for (id, logit) in &mut all {
        if logit.is_nan() {
            *id = TopK::NONE;
        }
    }
    all
}
