//! `src/ops/bitnet/bitlinear_int.rs`

use super::random_groups;
use crate::{Case, Data, Near, Recorder, U, convert, floats, ints, rng};
use bitnet_wgpu::{Bits, Float, Out, bitnet, f16};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = [(1, 1, 1, None), (0, 3, 5, None), (2, 3, 0, None), (5, 70, 65, None), (3, 20, 300, Some(32)), (66, 33, 260, Some(128))];
    for (bits, (m, rows, columns, size)) in Bits::ALL.into_iter().flat_map(|bits| shapes.map(|shape| (bits, shape))) {
        cases.push(case::<f32, f32>(m, rows, columns, (bits, size)));
    }
    for (((m, rows, columns), size), bits) in random_groups("bitlinear_int").zip(Bits::ALL.into_iter().cycle()) {
        cases.push(case::<f32, f32>(m, rows, columns, (bits, size)));
    }
    for (bits, (m, rows, columns, size)) in Bits::ALL.into_iter().zip([(4, 20, 50, Some(32)), (3, 65, 129, None)].into_iter().cycle()) {
        let how = (bits, size);
        cases.extend([
            case::<f16, f16>(m, rows, columns, how),
            case::<f32, f16>(m, rows, columns, how),
            case::<f16, f32>(m, rows, columns, how),
        ]);
    }
    cases
}

/// Forward, on top of something, and the gradient for the input.
fn case<X: Float, Y: Float>(m: usize, rows: usize, columns: usize, (bits, size): (Bits, Option<usize>)) -> Case {
    let mut rng = rng((rows + columns) as u64);
    let w = ints(&mut rng, rows, columns, bits, size);
    let dense = w.dequantize();
    let x = convert::<X>(&floats(&mut rng, m * columns, 3.0));
    let dy = convert::<X>(&floats(&mut rng, m * rows, 3.0));
    let base = convert::<Y>(&floats(&mut rng, m * rows, 9.0));
    // A weight is what the twin decodes, to the bit; with what it meets it is a product, and then comes a sum for each.
    let sum = |products: &mut dyn Iterator<Item = f64>| {
        let (exact, sizes, count) = products.fold((0.0, 0.0, 1.0), |(sum, sizes, count), p| (sum + p, sizes + p.abs(), count + 1.0));
        Near { exact, error: U * count * sizes }
    };
    let forward = |i: usize| {
        let (t, r) = (i / rows, i % rows);
        sum(&mut (0..columns).map(|c| f64::from(x[t * columns + c].into()) * f64::from(dense[r * columns + c])))
    };
    let backward = |i: usize| {
        let (t, c) = (i / columns, i % columns);
        sum(&mut (0..rows).map(|r| f64::from(dy[t * rows + r].into()) * f64::from(dense[r * columns + c])))
    };
    let (y, dx): (Vec<Near>, Vec<Near>) = ((0..m * rows).map(forward).collect(), (0..m * columns).map(backward).collect());
    let added: Vec<Near> = y.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
    // The twin makes the first two.
    let check = move |got: &[Data], _| {
        let wanted = [("y", &y), ("dx", &dx), ("added", &added)];
        let mut pairs = got.iter().zip(wanted);
        pairs.try_for_each(|(got, (name, near))| got.check_near(near.iter().copied()).map_err(|e| format!("{name}: {e}")))
    };
    let rows_of = |values: &[X], width: usize| -> Vec<Vec<f32>> {
        (0..m).map(|t| values[t * width..][..width].iter().map(|&v| v.into()).collect()).collect()
    };
    let (of_x, of_dy, of_w) = (rows_of(&x, columns), rows_of(&dy, rows), w.clone());
    let twin = move || {
        let y = of_x.iter().flat_map(|row| bitnet::bitlinear_int_cpu(row, &of_w).unwrap()).collect();
        let dx = of_dy.iter().flat_map(|row| bitnet::bitlinear_int_backward_cpu(row, &of_w).unwrap()).collect();
        vec![Data::F32(y), Data::F32(dx)]
    };
    let record = move |r: &mut Recorder| {
        let w = w.upload(r.encoder.context())?;
        let (x, dy, base) = (r.upload(&x, [m, columns])?, r.upload(&dy, [m, rows])?, r.upload(&base, [m, rows])?);
        let (y, dx) = (r.output::<Y>([m, rows])?, r.output::<Y>([m, columns])?);
        bitnet::bitlinear_int_into(&mut r.encoder, &x, &w, &y)?;
        bitnet::bitlinear_int_backward_into(&mut r.encoder, &dy, &w, &dx)?;
        bitnet::bitlinear_int_into(&mut r.encoder, &x, &w, Out::add(&base))?;
        [&y, &dx, &base].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    Case::new(format!("{m} × {rows} × {columns}, {bits:?} by {size:?}, {:?} to {:?}", X::ELEMENT, Y::ELEMENT), record, check)
        .twin(twin)
        .of(X::ELEMENT)
        .of(Y::ELEMENT)
}
