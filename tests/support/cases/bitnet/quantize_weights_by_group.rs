//! `src/ops/bitnet/quantize_weights_by_group.rs`

use crate::{Case, Data, Recorder, convert, floats, rng};
use bitnet_wgpu::{
    Element,
    bitnet::WeightQuantizer,
    reference,
    tensor::{Float, f16},
    weights::{PackedTernary, Scales},
};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, columns, size) in [
        (0, 5, None),
        (3, 0, Some(16)),
        (1, 1, None),
        (5, 65, None),
        (3, 300, None),
        (2, 1000, None),
    ]
    .into_iter()
    .chain([
        (7, 16, Some(16)),
        (5, 65, Some(16)),
        (3, 300, Some(32)),
        (4, 130, Some(64)),
        (9, 256, Some(128)),
        (2, 100, Some(128)),
    ]) {
        let plain = floats(&mut rng(rows as u64 + columns as u64), rows * columns, 3.0);
        // Rows and groups differ by much, and some are nothing.
        let uneven: Vec<f32> = plain
            .iter()
            .enumerate()
            .map(|(i, v)| v.powi(3) * [1.0, 0.0, 1e-3][i / 16 % 3])
            .collect();
        cases.extend([
            case::<f32>(&plain, rows, columns, size),
            case::<f16>(&uneven, rows, columns, size),
        ]);
        cases.push(case::<f32>(
            &plain.iter().map(|v| v * 1e-6).collect::<Vec<_>>(),
            rows,
            columns,
            size,
        ));
    }
    cases.extend([f32::NAN, f32::INFINITY].map(not_finite));
    cases
}

/// A row that is not finite has codes of zero and a scale that is no number; its neighbors do not
/// notice.
fn not_finite(value: f32) -> Case {
    let (rows, columns) = (4, 70);
    let mut w = floats(&mut rng(7), rows * columns, 3.0);
    w[2 * columns..3 * columns].fill(0.0);
    let packed =
        reference::quantize_weights(&w, [rows, columns], WeightQuantizer::absmean().per_row())
            .unwrap();
    let codes = Data::U32(packed.words().to_vec());
    let scales: Vec<u32> = scales_of(&packed).iter().map(|scale| scale.to_bits()).collect();
    w[2 * columns + 33] = value;
    let check = move |got: &[Data], leeway| {
        got[0].check(&codes, leeway)?;
        let Data::F32(found) = &got[1] else { return Err("scales are f32".to_owned()) };
        let right = |row: usize| {
            if row == 2 { found[row].is_nan() } else { found[row].to_bits() == scales[row] }
        };
        if found.len() == rows && (0..rows).all(right) {
            Ok(())
        } else {
            Err(format!("scales {found:?}"))
        }
    };
    let mut case = Case::new(
        format!("a row with {value}"),
        move |r: &mut Recorder| {
            let w = r.upload(&w, [rows, columns])?;
            let w = WeightQuantizer::absmean().per_row().quantize(&mut r.encoder, &w)?;
            let (codes, scales) = w.tensors();
            r.watch_all(codes);
            r.watch_all(scales);
            Ok(())
        },
        check,
    );
    case.exact = true;
    case
}

fn scales_of(packed: &PackedTernary) -> Vec<f32> {
    match packed.scales() {
        Scales::Groups { scales, .. } => scales.clone(),
        Scales::Segments(parts) => {
            parts.iter().flat_map(|&(rows, scale)| vec![scale; rows]).collect()
        }
        Scales::Tensor(scale) => vec![*scale; packed.rows()],
        other => panic!("{other:?}"),
    }
}

fn quantizer(size: Option<usize>) -> WeightQuantizer {
    let quantizer = WeightQuantizer::absmean();
    size.map_or(quantizer.per_row(), |size| quantizer.per_group(size))
}

fn case<T: Float>(w: &[f32], rows: usize, columns: usize, size: Option<usize>) -> Case {
    let w = convert::<T>(w);
    let quantizer = quantizer(size);
    let packed = reference::quantize_weights(&w, [rows, columns], quantizer).unwrap();
    let expected = vec![Data::U32(packed.words().to_vec()), Data::F32(scales_of(&packed))];
    Case::exact(
        format!("{rows} × {columns} by {size:?} {:?}", T::ELEMENT),
        expected,
        move |r: &mut Recorder| {
            let w = r.upload(&w, [rows, columns])?;
            // F16 goes into a matrix that has other weights.
            let other = r.upload(&convert::<T>(&vec![1.0; rows * columns]), [rows, columns])?;
            let into = T::ELEMENT == Element::F16;
            let first = if into { &other } else { &w };
            let made = quantizer.quantize(&mut r.encoder, first)?;
            if into {
                quantizer.quantize_into(&mut r.encoder, &w, &made)?;
            }
            let (codes, made) = made.tensors();
            r.watch_all(codes);
            r.watch_all(made);
            Ok(())
        },
    )
    .of(T::ELEMENT)
}
