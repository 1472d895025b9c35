//! What the cases of products with matrices that are decoded where they are multiplied have in
//! common.

use crate::{Case, Data, Near, Recorder, U, convert, floats};
use bitnet_wgpu::{Result, Tensor, reference, tensor::Float};
use rand::rngs::SmallRng;

/// A product's shape m × rows × columns, the matrix as the CPU reference decodes it, bit-identical,
/// and how often a term is rounded before it is added.
pub struct Product {
    pub shape: [usize; 3],
    pub dense: Vec<f32>,
    pub roundings: f64,
}

/// Tensors of y = x·Wᵀ and dx = dy·W, and one to which the first is added.
pub struct Operands<X: Float, Y: Float> {
    pub x: Tensor<X>,
    pub dy: Tensor<X>,
    pub y: Tensor<Y>,
    pub dx: Tensor<Y>,
    pub base: Tensor<Y>,
}

/// A sum of products, and its bounds: each is rounded so often, and then comes a sum for each.
pub fn sum(products: impl Iterator<Item = f64>, roundings: f64) -> Near {
    let (exact, sizes, count) = products.fold((0.0, 0.0, roundings), |(sum, sizes, count), p| {
        (sum + p, sizes + p.abs(), count + 1.0)
    });
    Near { exact, error: U * count * sizes }
}

impl Product {
    /// Output `i` of x·Wᵀ.
    pub fn forward<X: Float>(&self, x: &[X], i: usize) -> Near {
        let [_, rows, columns] = self.shape;
        let (x, w) =
            (&x[i / rows * columns..][..columns], &self.dense[i % rows * columns..][..columns]);
        sum(x.iter().zip(w).map(|(&x, &w)| f64::from(x.into()) * f64::from(w)), self.roundings)
    }

    /// Output `i` of dy·W.
    fn backward<X: Float>(&self, dy: &[X], i: usize) -> Near {
        let [_, rows, columns] = self.shape;
        let (t, c) = (i / columns, i % columns);
        sum(
            (0..rows).map(|r| {
                f64::from(dy[t * rows + r].into()) * f64::from(self.dense[r * columns + c])
            }),
            self.roundings,
        )
    }

    /// A case of y = x·Wᵀ, of dx = dy·W and of the first on top of something, which `record`
    /// records in this order.
    pub fn case<X: Float, Y: Float>(
        self,
        name: String,
        rng: &mut SmallRng,
        record: impl Fn(&mut Recorder, &Operands<X, Y>) -> Result<()> + Send + Sync + 'static,
    ) -> Case {
        let [m, rows, columns] = self.shape;
        let [x, dy] = [columns, rows].map(|width| convert::<X>(&floats(rng, m * width, 3.0)));
        let base = convert::<Y>(&floats(rng, m * rows, 9.0));
        let y: Vec<Near> = (0..m * rows).map(|i| self.forward(&x, i)).collect();
        let dx: Vec<Near> = (0..m * columns).map(|i| self.backward(&dy, i)).collect();
        let added: Vec<Near> =
            y.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
        let check = move |got: &[Data], _| {
            let mut pairs = got.iter().zip([("y", &y), ("dx", &dx), ("added", &added)]);
            pairs.try_for_each(|(got, (name, near))| {
                got.check_near(near.iter().copied()).map_err(|e| format!("{name}: {e}"))
            })
        };
        let of_rows =
            |values: &[f32], width: usize, of_row: &dyn Fn(&[f32]) -> Result<Vec<f32>>| {
                let row = |t: usize| of_row(&values[t * width..][..width]).unwrap();
                Data::F32((0..m).flat_map(row).collect())
            };
        let [of_x, of_dy] =
            [&x, &dy].map(|values| values.iter().map(|&v| v.into()).collect::<Vec<f32>>());
        let (dense, shape) = (self.dense, [rows, columns]);
        let y = of_rows(&of_x, columns, &|x| reference::bitlinear_float(x, &dense, shape));
        let dx = of_rows(&of_dy, rows, &|dy| reference::bitlinear_backward(dy, &dense, shape));
        let reference = move || vec![y.clone(), dx.clone()];
        let record = move |r: &mut Recorder| {
            let (x, dy, base) = (
                r.upload(&x, [m, columns])?,
                r.upload(&dy, [m, rows])?,
                r.upload(&base, [m, rows])?,
            );
            let operands = Operands {
                x,
                dy,
                y: r.output::<Y>([m, rows])?,
                dx: r.output::<Y>([m, columns])?,
                base,
            };
            record(r, &operands)?;
            [&operands.y, &operands.dx, &operands.base]
                .into_iter()
                .for_each(|tensor| r.watch_all(tensor));
            Ok(())
        };
        Case::new(name, record, check).reference(reference).of(X::ELEMENT).of(Y::ELEMENT)
    }
}
