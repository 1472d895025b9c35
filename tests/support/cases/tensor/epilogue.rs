//! `src/ops/tensor/epilogue.rs`

use super::activated;
use crate::{Case, Data, Leeway, Near, convert, f16_floats, floats, rng, sums};
use bitnet_wgpu::{
    Out, Tensor,
    bitnet::BitLinear,
    reference,
    tensor::{self, Activation, Finish, Float, f16},
};

/// What is done to a product before it is stored.
pub type Way = (Option<Activation>, bool);

/// Every activation and none, in turns, with a bias and without.
pub fn ways() -> impl Iterator<Item = Way> {
    use Activation::*;
    let activations = [None, Some(Relu), Some(Silu), Some(Relu2), Some(Gelu)].into_iter().cycle();
    // Two of the first five are without; without either, nothing would be done.
    (0..).zip(activations).map(|(i, activation)| (activation, i % 3 != 1 || activation.is_none()))
}

/// The layer with the bias and the activation of a way.
pub fn finishing<'a, T: Float>(
    layer: BitLinear<'a>,
    (activation, biased): Way,
    bias: &'a Tensor<T>,
) -> BitLinear<'a, T> {
    layer.bias(biased.then_some(bias)).activation(activation)
}

/// What comes of products, and of them on top of something. A bias, relu and relu² leave the same
/// bits everywhere, where products are.
pub struct Finished {
    values: Vec<f32>,
    near: Option<Vec<Near>>,
    added: Vec<Near>,
}

impl Finished {
    /// Of exact products, `[.., bias.len()]`.
    pub fn of(products: &[f32], bias: &[f32], (activation, biased): Way, base: &[f32]) -> Self {
        let bias = biased.then_some(bias);
        let values = reference::finish(products, bias, activation).unwrap();
        let close = matches!(activation, Some(Activation::Silu | Activation::Gelu));
        let near = close.then(|| {
            let biased = reference::finish(products, bias, None).unwrap();
            biased.into_iter().map(|v| activated(Near::exactly(v), activation)).collect::<Vec<_>>()
        });
        let added = match &near {
            Some(near) => near.iter().zip(base).map(|(near, &base)| near.on_top_of(base)).collect(),
            None => sums(base, &values),
        };
        Self { values, near, added }
    }

    /// Judges both.
    pub fn check<T: Float>(&self, got: &[Data], leeway: Leeway) -> Result<(), String> {
        match &self.near {
            Some(near) => got[0].check_near(near.iter().copied()),
            None => got[0].check(&Data::floats(T::ELEMENT, &self.values), leeway),
        }?;
        got[1].check_near(self.added.iter().copied()).map_err(|e| format!("added: {e}"))
    }
}

pub fn cases() -> Vec<Case> {
    let shapes = [(0, 5), (3, 0), (1, 1), (7, 33), (2, 64), (65, 3)];
    let all = shapes.into_iter().chain(shapes).chain(shapes).zip(ways());
    all.flat_map(|((rows, columns), way)| {
        [case::<f32, f32>(rows, columns, way), case::<f32, f16>(rows, columns, way)]
    })
    .chain([
        case::<f16, f32>(5, 33, (None, true)),
        case::<f16, f16>(5, 33, (Some(Activation::Relu), true)),
    ])
    .collect()
}

fn case<X: Float, Y: Float>(rows: usize, columns: usize, way: Way) -> Case {
    let mut rng = rng((rows * columns) as u64);
    let numbers = |values: &[f32]| f16_floats_of(values);
    let (x, bias) =
        (numbers(&floats(&mut rng, rows * columns, 3.0)), numbers(&floats(&mut rng, columns, 1.0)));
    let base = f16_floats(&mut rng, rows * columns, 9.0);
    let finished = Finished::of(&x, &bias, way, &base);
    let (x, bias, base) = (convert::<X>(&x), convert::<Y>(&bias), convert::<Y>(&base));
    let name = format!("{rows} × {columns}, {way:?}, {:?} to {:?}", X::ELEMENT, Y::ELEMENT);
    let record = move |r: &mut crate::Recorder| {
        let (x, bias) = (r.upload(&x, [rows, columns])?, r.upload(&bias, [columns])?);
        let (y, added) = (r.output::<Y>([rows, columns])?, r.upload(&base, [rows, columns])?);
        let op = way.0.into_iter().fold(tensor::finish(&x), Finish::activation);
        let op = if way.1 { op.bias(&bias) } else { op };
        op.forward_into(&mut r.encoder, &y)?;
        op.forward_into(&mut r.encoder, Out::add(&added))?;
        [&y, &added].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    Case::new(name, record, move |got, leeway| finished.check::<Y>(got, leeway))
        .of(X::ELEMENT)
        .of(Y::ELEMENT)
}

/// Numbers that f16 holds.
pub fn f16_floats_of(values: &[f32]) -> Vec<f32> {
    values.iter().map(|&v| f16::from_f32(v).to_f32()).collect()
}
