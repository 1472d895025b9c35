//! The largest logits of every row, so that a few bytes are read back instead of a vocabulary.

use crate::{
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        tensor::{Bind, Tensor},
    },
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

const OP: &str = "top_k";

/// The largest logits of every row: what [`top_k`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct TopK<'a> {
    logits: &'a Tensor<f32>,
    k: usize,
    finite: bool,
}

/// Returns the `k` largest of every row of `logits` `[m, vocab]`, largest first; of equal ones the
/// lower id comes first.
pub fn top_k(logits: &Tensor<f32>, k: usize) -> TopK<'_> {
    TopK { logits, k, finite: false }
}

impl TopK<'_> {
    /// Id where a row has fewer than k logits, or has NaNs (its logit is NaN then).
    pub const NONE: u32 = u32::MAX;
    /// The largest k: as many from every run of logits must fit a few times into a run of the next
    /// pass.
    pub const MAX: usize = 256;

    /// Infinities have no id either.
    pub(super) fn finite(self) -> Self {
        Self { finite: true, ..self }
    }

    /// Records the op, and returns the largest logits and their ids (columns), `[m, k]` each.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a k of 0 or above [`TopK::MAX`].
    pub fn forward(self, encoder: &mut Encoder) -> Result<(Tensor<f32>, Tensor<u32>)> {
        let shape = [self.logits.shape().as_matrix().0, self.k];
        let top = Tensor::uninit(encoder.context(), shape)?;
        let ids = Tensor::uninit(encoder.context(), shape)?;
        self.forward_into(encoder, &top, &ids)?;
        Ok((top, ids))
    }

    /// Like [`forward`](Self::forward), into tensors of the caller, both `[m, k]`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if they do not fit.
    pub fn forward_into(
        self,
        encoder: &mut Encoder,
        top: &Tensor<f32>,
        ids: &Tensor<u32>,
    ) -> Result<()> {
        let Self { logits, k, finite } = self;
        let (rows, mut count) = logits.shape().as_matrix();
        if !(1..=Self::MAX).contains(&k) {
            let what = format!("k = {k}; 1 to {} are possible", Self::MAX);
            return Err(Error::Invalid { op: OP, what });
        }
        for (what, found) in [("the largest logits", top.shape()), ("their ids", ids.shape())] {
            if found.as_matrix() != (rows, k) {
                let expected = format!("[{rows}, {k}]");
                return Err(Error::Shape { op: OP, what, expected, found });
            }
        }
        let context = encoder.context().clone();
        let mut winners: Option<(Tensor<f32>, Tensor<u32>)> = None;
        loop {
            let runs = count.div_ceil(RUN).max(1);
            let shape = [rows, runs * k];
            let next = match runs {
                1 => (top.clone(), ids.clone()),
                _ => (Tensor::uninit(&context, shape)?, Tensor::uninit(&context, shape)?),
            };
            // What has no id is no number to the next pass.
            let finite = u32::from(finite && runs == 1);
            let params = Params { count: count as u32, k: k as u32, finite };
            // Without any logits there is still a run, of nothing.
            let extent = [count.max(1), rows, 1];
            match &winners {
                None => {
                    encoder.dispatch(&TOP_K, &params, &[logits, &next.0, &next.1], extent)?;
                }
                Some((top, ids)) => {
                    let bindings: [&dyn Bind; 4] = [top, ids, &next.0, &next.1];
                    encoder.dispatch(&TOP_K_MERGE, &params, &bindings, extent)?;
                }
            }
            if runs == 1 {
                return Ok(());
            }
            (winners, count) = (Some(next), runs * k);
        }
    }
}

pub(crate) mod host {
    use super::TopK;

    /// CPU reference of [`top_k`](super::top_k()), for one row: (id, logit), bit-identical.
    pub fn top_k(logits: &[f32], k: usize) -> Vec<(u32, f32)> {
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
}
