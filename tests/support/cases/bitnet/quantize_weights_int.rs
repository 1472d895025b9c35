//! `src/ops/bitnet/quantize_weights_int.rs`

use super::{check_not_finite, ints_of, random_groups, watch_ints};
use crate::{Case, Data, Recorder, convert, floats, rng};
use bitnet_wgpu::{
    bitnet::WeightQuantizer,
    reference,
    tensor::{Float, f16},
    weights::{Bits, IntMatrix},
};

/// Bits, columns of a group, and whether the zero point is free.
type How = (Bits, Option<usize>, bool);

fn quantizer((bits, size, asymmetric): How) -> WeightQuantizer<IntMatrix> {
    let quantizer = WeightQuantizer::int(bits);
    let quantizer = if asymmetric { quantizer.asymmetric() } else { quantizer };
    size.map_or(quantizer, |size| quantizer.per_group(size))
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = [
        (0, 5, None),
        (3, 0, Some(32)),
        (2, 0, None),
        (1, 1, None),
        (5, 65, None),
        (2, 1000, None),
        (7, 32, Some(32)),
    ]
    .into_iter()
    .chain([
        (5, 65, Some(32)),
        (3, 300, Some(64)),
        (4, 130, Some(96)),
        (9, 256, Some(128)),
        (2, 100, Some(128)),
    ]);
    let random = random_groups("quantize_weights_int")
        .map(|((_, rows, columns), size)| (rows, columns, size));
    for (rows, columns, size) in shapes.chain(random) {
        for (bits, asymmetric) in [Bits::Two, Bits::Four, Bits::Eight].into_iter().flat_map(both) {
            let how = (bits, size, asymmetric);
            let plain = floats(&mut rng((rows + columns) as u64), rows * columns, 3.0);
            // Of one sign, of the other, and of nothing.
            let uneven: Vec<f32> = plain
                .iter()
                .enumerate()
                .map(|(i, v)| (v.abs() + 0.1) * [1.0, -1e-3, 0.0][i / 32 % 3])
                .collect();
            cases.extend([
                case::<f32>(&plain, rows, columns, how),
                case::<f16>(&plain, rows, columns, how),
            ]);
            cases.extend([
                case::<f32>(&uneven, rows, columns, how),
                case::<f16>(&uneven, rows, columns, how),
            ]);
        }
    }
    for (bits, asymmetric) in [Bits::Two, Bits::Four, Bits::Eight].into_iter().flat_map(both) {
        let how = (bits, Some(32), asymmetric);
        // Values on the steps, and halfway between: -3.5 to 4 by halves.
        let halves: Vec<f32> = (0..64).map(|i| (i % 16) as f32 / 2.0 - 3.5).collect();
        cases.push(case::<f32>(&halves, 2, 32, how));
        // Scales that are too small, and barely large enough, to be scales; and zeros of both
        // signs.
        for tiny in [1e-25, 3e-22] {
            cases.push(case::<f32>(&floats(&mut rng(3), 80, tiny), 2, 40, how));
        }
        cases.push(case::<f32>(&[-0.0, 0.0].repeat(20), 1, 40, how));
        cases.extend(
            [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY]
                .map(|value| not_finite(value, how)),
        );
    }
    cases
}

fn both(bits: Bits) -> [(Bits, bool); 2] {
    [(bits, true), (bits, false)]
}

fn quantize(
    r: &mut Recorder,
    w: &[impl Float],
    shape: [usize; 2],
    how: How,
) -> bitnet_wgpu::Result<()> {
    let w = r.upload(w, shape)?;
    let packed = quantizer(how).quantize(&mut r.encoder, &w)?;
    watch_ints(r, &packed);
    Ok(())
}

fn case<T: Float>(w: &[f32], rows: usize, columns: usize, how: How) -> Case {
    let w = convert::<T>(w);
    let packed = reference::quantize_weights(&w, [rows, columns], quantizer(how)).unwrap();
    let name = format!("{rows} × {columns} to {how:?} {:?}", T::ELEMENT);
    Case::exact(name, ints_of(&packed), move |r| quantize(r, &w, [rows, columns], how))
        .of(T::ELEMENT)
}

/// A group that is not finite has codes and zero points of 0 and a scale that is no number; its
/// neighbors do not notice.
fn not_finite(value: f32, how: How) -> Case {
    let (rows, columns) = (4, 70);
    let mut w = floats(&mut rng(7), rows * columns, 3.0);
    w[2 * columns + 32..2 * columns + 64].fill(0.0);
    let expected =
        ints_of(&reference::quantize_weights(&w, [rows, columns], quantizer(how)).unwrap());
    w[2 * columns + 33] = value;
    let check = move |got: &[Data], _| check_not_finite(got, &expected, &[7]);
    Case::new(
        format!("a group with {value} to {how:?}"),
        move |r| quantize(r, &w, [rows, columns], how),
        check,
    )
}
