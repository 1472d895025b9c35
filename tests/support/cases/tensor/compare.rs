//! `src/ops/tensor/compare.rs`

use crate::{Case, Data, Recorder, convert, floats, rng};
use bitnet_wgpu::{
    Tensor, reference,
    tensor::{self, Comparison, Float, f16},
};

type Form<T> = for<'a> fn(&'a Tensor<T>, &'a Tensor<T>) -> Comparison<'a, T>;

pub fn cases() -> Vec<Case> {
    macro_rules! comparison {
        ($name:ident) => {
            [
                case::<f32>(stringify!($name), reference::$name, tensor::$name),
                case::<f16>(stringify!($name), reference::$name, tensor::$name),
            ]
        };
    }
    [
        comparison!(equal),
        comparison!(not_equal),
        comparison!(less),
        comparison!(less_equal),
        comparison!(greater),
        comparison!(greater_equal),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A row against a matrix, and the other way round; every third pair is equal, every 17th has a
/// NaN.
fn case<T: Float>(name: &'static str, reference: fn(f32, f32) -> bool, op: Form<T>) -> Case {
    let mut rng = rng(7);
    let row = convert::<T>(&floats(&mut rng, 50, 3.0));
    let mut matrix = convert::<T>(&floats(&mut rng, 150, 3.0));
    (0..150).step_by(3).for_each(|i| matrix[i] = row[i % 50]);
    (0..150).step_by(17).for_each(|i| matrix[i] = T::from_f32(f32::NAN));
    let references = |swap: bool| {
        let pair = |i: usize| (row[i % 50].into(), matrix[i].into());
        Data::U32(
            (0..150)
                .map(pair)
                .map(|(a, b)| u32::from(if swap { reference(b, a) } else { reference(a, b) }))
                .collect(),
        )
    };
    Case::exact(
        format!("{name} {:?}", T::ELEMENT),
        vec![references(false), references(true)],
        move |r: &mut Recorder| {
            let (row, matrix, y) =
                (r.upload(&row, [50])?, r.upload(&matrix, [3, 50])?, r.output::<u32>([3, 50])?);
            let allocated = op(&row, &matrix).forward(&mut r.encoder)?;
            op(&matrix, &row).forward_into(&mut r.encoder, &y)?;
            r.watch_all(&allocated);
            r.watch_all(&y);
            Ok(())
        },
    )
    .of(T::ELEMENT)
}
