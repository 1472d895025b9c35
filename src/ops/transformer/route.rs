//! The router of a mixture of experts: which experts a token uses, and with what weights.

use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl, params, wgsl,
};

params! { struct Params { tokens: u32, experts: u32, used: u32, normalized: u32 } }

/// With two experts each.
const THREADS: u32 = MOST_EXPERTS as u32 / 2;

const fn by_token(source: Source, more_bytes: u32) -> Source {
    let source = source.workgroup_size([THREADS, 1, 1]).tile([1, 1, 1]);
    source.workgroup_bytes(16 * THREADS + more_bytes)
}

static ROUTE: Kernel = Kernel::trusted(
    "route",
    Params::FIELDS,
    &[read("logits", F32), read_write("chosen", U32), read_write("weights", F32)],
    &[
        by_token(
            Source::wgsl(wgsl![
                "shared/ids",
                "shared/flat",
                "shared/exp",
                "shared/order",
                "transformer/route"
            ]),
            96,
        ),
        by_token(
            Source::msl(msl!["shared/prelude", "shared/exp", "shared/order", "transformer/route"]),
            80,
        ),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&ROUTE];

const OP: &str = "route";

/// The most experts of a layer.
pub(crate) const MOST_EXPERTS: usize = 512;
/// The most experts that a token uses.
pub(crate) const MOST_USED: usize = 16;

/// Refuses a number of experts, or of used ones, that is not supported.
fn check(experts: usize, used: usize) -> Result<()> {
    if experts == 0 || experts > MOST_EXPERTS {
        let what = format!("{experts} experts; 1 to {MOST_EXPERTS} are supported");
        return Err(Error::Invalid { op: OP, what });
    }
    let most = experts.min(MOST_USED);
    if used == 0 || used > most {
        let what = format!("{used} of {experts} experts are used; 1 to {most} are supported");
        return Err(Error::Invalid { op: OP, what });
    }
    Ok(())
}

/// The experts of every token: what [`route`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Route<'a> {
    logits: &'a Tensor<f32>,
    used: usize,
    normalized: bool,
}

/// Chooses the experts of the `used` largest router logits of every token; `logits` are
/// `[tokens, experts]`. Of equal logits the lower expert comes first, and 0 is above -0. A weight is
/// a softmax over the used experts.
pub fn route(logits: &Tensor<f32>, used: usize) -> Route<'_> {
    Route { logits, used, normalized: true }
}

impl Route<'_> {
    /// The expert of a token that has a logit which is not finite. Its weight is NaN.
    pub const NONE: u32 = u32::MAX;

    /// Takes the softmax over all experts, so that the weights of the used ones add up to less
    /// than 1.
    pub fn of_all(self) -> Self {
        Self { normalized: false, ..self }
    }

    /// Records the op, and returns experts and their weights, `[tokens, used]` each, those of the
    /// largest logits first.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 512 experts, and for more than 16 used ones, or than there
    /// are.
    pub fn forward(self, encoder: &mut Encoder) -> Result<(Tensor<u32>, Tensor<f32>)> {
        let shape = [self.logits.shape().as_matrix().0, self.used];
        let chosen = Tensor::uninit(encoder.context(), shape)?;
        let weights = Tensor::uninit(encoder.context(), shape)?;
        self.forward_into(encoder, &chosen, &weights)?;
        Ok((chosen, weights))
    }

    /// Like [`forward`](Self::forward), into tensors of the caller, both `[tokens, used]`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if they do not fit.
    pub fn forward_into(
        self,
        encoder: &mut Encoder,
        chosen: &Tensor<u32>,
        weights: &Tensor<f32>,
    ) -> Result<()> {
        let Self { logits, used, normalized } = self;
        let (tokens, experts) = logits.shape().as_matrix();
        check(experts, used)?;
        for (what, found) in [("the experts", chosen.shape()), ("their weights", weights.shape())] {
            if found.as_matrix() != (tokens, used) {
                let expected = format!("[{tokens}, {used}]");
                return Err(Error::Shape { op: OP, what, expected, found });
            }
        }
        let params = Params {
            tokens: tokens as u32,
            experts: experts as u32,
            used: used as u32,
            normalized: normalized.into(),
        };
        encoder.dispatch(&ROUTE, &params, &[logits, chosen, weights], [tokens, 1, 1])
    }
}

pub(crate) mod host {
    use super::*;
    use crate::ops::transformer::attention::dot;
    use rayon::prelude::*;

    /// Multiplications that are worth being given to other threads.
    const WORTH_THREADS: usize = 1 << 17;

    /// Router logits `[tokens, experts]` of `x` `[tokens, columns]` and `router`
    /// `[experts, columns]`. Those of a token do not depend on others.
    pub(crate) fn router_logits(x: &[f32], router: &[f32], columns: usize) -> Vec<f32> {
        let of_token = |x: &[f32]| {
            let of_expert = |w: &[f32]| dot(w, x);
            match router.len() < WORTH_THREADS {
                true => router.chunks_exact(columns).map(of_expert).collect::<Vec<_>>(),
                false => router
                    .par_chunks_exact(columns)
                    .with_min_len(WORTH_THREADS.div_ceil(8 * columns))
                    .map(of_expert)
                    .collect(),
            }
        };
        x.chunks_exact(columns.max(1)).flat_map(of_token).collect()
    }

    /// CPU reference of [`route`](super::route()), for one token: the `used` experts of the largest
    /// logits, of equal ones the first, each with its weight. The weights are e^(logit - largest)
    /// divided by their sum over the used experts, or over all of them unless `normalized`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a logit that is not finite, and for numbers of experts that are not
    /// supported.
    pub fn route(logits: &[f32], used: usize, normalized: bool) -> Result<Vec<(u32, f32)>> {
        check(logits.len(), used)?;
        if let Some(expert) = logits.iter().position(|logit| !logit.is_finite()) {
            let what = format!("the router's logit of expert {expert} is {}", logits[expert]);
            return Err(Error::Invalid { op: OP, what });
        }
        let mut order: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let largest = order[0].1;
        let power = |logit: f32| (logit - largest).exp();
        let total = match normalized {
            true => order[..used].iter().map(|own| power(own.1)).sum(),
            false => tree_sum(&logits.iter().map(|&logit| power(logit)).collect::<Vec<_>>()),
        };
        order.truncate(used);
        order.iter_mut().for_each(|own| own.1 = power(own.1) / total);
        Ok(order)
    }

    /// The sum in the order of the GPU's kernel: halves of [`MOST_EXPERTS`] places are added.
    fn tree_sum(values: &[f32]) -> f32 {
        let mut places = [0f32; MOST_EXPERTS];
        places[..values.len()].copy_from_slice(values);
        let mut half = MOST_EXPERTS / 2;
        while half > 0 {
            (0..half).for_each(|i| places[i] += places[i + half]);
            half /= 2;
        }
        places[0]
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn equal_logits_choose_lower_experts() {
            let chosen = route(&[1.0, 3.0, -0.0, 3.0, 3.0, 0.0], 4, true).unwrap();
            let experts: Vec<u32> = chosen.iter().map(|own| own.0).collect();
            assert_eq!(experts, [1, 3, 4, 0]);
            let sum: f32 = chosen.iter().map(|own| own.1).sum();
            assert!((sum - 1.0).abs() < 1e-6, "{sum}");
            let zeros = route(&[-0.0, 0.0, 0.0], 2, true).unwrap();
            assert_eq!(zeros, [(1, 0.5), (2, 0.5)]);
        }

        #[test]
        fn weights_without_normalization_are_probabilities() {
            let chosen = route(&[0.0, 2f32.ln(), 0.0], 1, false).unwrap();
            assert_eq!(chosen[0].0, 1);
            assert!((chosen[0].1 - 0.5).abs() < 1e-6, "{chosen:?}");
        }

        #[test]
        fn unusable_logits_and_counts_are_errors() {
            let refused = |logits: &[f32], used, words: &str| {
                let error = route(logits, used, true).unwrap_err().to_string();
                assert!(error.contains(words), "{error}");
            };
            refused(&[0.0, f32::NAN], 1, "logit of expert 1 is NaN");
            refused(&[f32::INFINITY, 0.0], 1, "logit of expert 0 is inf");
            refused(&[0.0, 1.0], 3, "3 of 2 experts");
            refused(&[0.0, 1.0], 0, "0 of 2 experts");
            refused(&[], 1, "0 experts");
            refused(&[0.0; 513], 1, "513 experts");
            refused(&[0.0; 40], 17, "17 of 40");
        }
    }
}
