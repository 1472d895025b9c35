//! `src/ops/tensor/compare.rs`

use crate::{Case, Data, Recorder, convert, floats, rng};
use bitnet_wgpu::{Encoder, Float, Result, Tensor, f16, tensor};

/// A comparison, allocated and into a tensor.
type Forms<T> = (
    fn(&mut Encoder, &Tensor<T>, &Tensor<T>) -> Result<Tensor<u32>>,
    fn(&mut Encoder, &Tensor<T>, &Tensor<T>, &Tensor<u32>) -> Result<()>,
);

pub fn cases() -> Vec<Case> {
    macro_rules! comparison {
        ($name:ident, $into:ident, $twin:ident) => {
            [
                case::<f32>(stringify!($name), tensor::$twin, (tensor::$name, tensor::$into)),
                case::<f16>(stringify!($name), tensor::$twin, (tensor::$name, tensor::$into)),
            ]
        };
    }
    [
        comparison!(equal, equal_into, equal_cpu),
        comparison!(not_equal, not_equal_into, not_equal_cpu),
        comparison!(less, less_into, less_cpu),
        comparison!(less_equal, less_equal_into, less_equal_cpu),
        comparison!(greater, greater_into, greater_cpu),
        comparison!(greater_equal, greater_equal_into, greater_equal_cpu),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A row against a matrix, and the other way round; every third pair is equal, every 17th has a
/// NaN.
fn case<T: Float>(name: &'static str, twin: fn(f32, f32) -> bool, (op, into): Forms<T>) -> Case {
    let mut rng = rng(7);
    let row = convert::<T>(&floats(&mut rng, 50, 3.0));
    let mut matrix = convert::<T>(&floats(&mut rng, 150, 3.0));
    (0..150).step_by(3).for_each(|i| matrix[i] = row[i % 50]);
    (0..150).step_by(17).for_each(|i| matrix[i] = T::from_f32(f32::NAN));
    let twins = |swap: bool| {
        let pair = |i: usize| (row[i % 50].into(), matrix[i].into());
        Data::U32(
            (0..150)
                .map(pair)
                .map(|(a, b)| u32::from(if swap { twin(b, a) } else { twin(a, b) }))
                .collect(),
        )
    };
    Case::exact(
        format!("{name} {:?}", T::ELEMENT),
        vec![twins(false), twins(true)],
        move |r: &mut Recorder| {
            let (row, matrix, y) =
                (r.upload(&row, [50])?, r.upload(&matrix, [3, 50])?, r.output::<u32>([3, 50])?);
            let allocated = op(&mut r.encoder, &row, &matrix)?;
            into(&mut r.encoder, &matrix, &row, &y)?;
            r.watch_all(&allocated);
            r.watch_all(&y);
            Ok(())
        },
    )
    .of(T::ELEMENT)
}
