//! What optimizers share: how their kernels are declared, and what a step asks of shapes.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        tensor::{Bind, Tensor},
    },
    kernel::{declaration::Kernel, params::Params},
};

/// The kernel of an optimizer, four elements a thread in WGSL and one in Metal: gradient, weights,
/// and what the optimizer remembers of each.
macro_rules! optimizer {
    ($name:literal, $part:literal, $params:ty, [$($state:literal),+]) => {{
        use $crate::kernel::{
            binding::{Type::*, read, read_write},
            declaration::Kernel,
            source::Source,
        };
        Kernel::trusted(
            $name,
            <$params as $crate::kernel::params::Params>::FIELDS,
            &[read("gradient", Float("X")), read_write("weights", F32), $(read_write($state, F32)),+],
            &[
                Source::wgsl($crate::wgsl!["shared/ids", "shared/flat", "optimizer/four", $part]).workgroup_size([256, 1, 1]).tile([1024, 1, 1]),
                Source::msl($crate::msl!["shared/prelude", $part]).workgroup_size([256, 1, 1]),
            ],
        )
        .flat()
    }};
}
pub(super) use optimizer;

/// Records a step by such a kernel, which has the name of the op.
///
/// # Errors
/// [`Error::Shape`] unless all have the shape of the weights.
pub(super) fn step<T: Float, P: Params>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    params: &P,
    weights: &Tensor<f32>,
    gradient: &Tensor<T>,
    state: &[&Tensor<f32>],
) -> Result<()> {
    let (expected, others) =
        (weights.shape(), state.iter().map(|state| ("the state", state.shape())));
    if let Some((what, found)) = [("the gradient", gradient.shape())]
        .into_iter()
        .chain(others)
        .find(|(_, shape)| *shape != expected)
    {
        return Err(Error::Shape { op: kernel.name, what, expected: expected.to_string(), found });
    }
    let state = state.iter().map(|state| *state as &dyn Bind);
    let bindings: Vec<&dyn Bind> =
        [gradient as &dyn Bind, weights].into_iter().chain(state).collect();
    encoder.dispatch(kernel, params, &bindings, [weights.len(), 1, 1])
}
