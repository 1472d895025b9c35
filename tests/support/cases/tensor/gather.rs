//! `src/ops/tensor/gather.rs`

use crate::{Case, Data, Recorder, convert, floats, rng};
use bitnet_wgpu::{
    reference,
    tensor::{self, Float, f16},
};
use rand::RngExt;

pub fn cases() -> Vec<Case> {
    let mut cases = vec![words()];
    for (rows, columns, count) in [(5, 3, 0), (1, 1, 1), (7, 300, 20), (3, 10, 600)] {
        cases.extend([case::<f32>(rows, columns, count), case::<f16>(rows, columns, count)]);
    }
    cases
}

/// Rows, what they were repeated for added again, and the ids as rows of their own; every seventh
/// id is no row.
fn case<T: Float>(rows: usize, columns: usize, count: usize) -> Case {
    let mut rng = rng(rows as u64);
    let x = convert::<T>(&floats(&mut rng, rows * columns, 3.0));
    let dy = convert::<T>(&floats(&mut rng, count * columns, 3.0));
    let ids: Vec<u32> = (0..count)
        .map(|i| if i % 7 == 6 { rows as u32 + i as u32 } else { rng.random_range(0..rows as u32) })
        .collect();
    let numbers = |values: &[T]| values.iter().map(|&v| v.into()).collect::<Vec<f32>>();
    let row =
        |id: &u32| {
            numbers(
                x.get(*id as usize * columns..(*id as usize + 1) * columns)
                    .unwrap_or(&vec![T::from_f32(0.0); columns]),
            )
        };
    let y = Data::floats(T::ELEMENT, &ids.iter().flat_map(row).collect::<Vec<f32>>());
    let dx = Data::floats(T::ELEMENT, &reference::gather_backward(&numbers(&dy), &ids, rows));
    let ones = (0..count * rows)
        .map(|i| f32::from(u8::from(ids[i / rows] as usize == i % rows)))
        .collect::<Vec<f32>>();
    let (dx, ones) = (
        if count == 0 { Data::floats(T::ELEMENT, &vec![0.0; rows * columns]) } else { dx },
        Data::floats(T::ELEMENT, &ones),
    );
    let reference = {
        let (x, ids, dx) = (x.clone(), ids.clone(), dx.clone());
        move || {
            let y: Vec<f32> =
                reference::gather(&x, columns, &ids).unwrap().into_iter().map(Into::into).collect();
            vec![
                Data::floats(T::ELEMENT, &y),
                dx.clone(),
                Data::floats(T::ELEMENT, &reference::one_hot(&ids, rows)),
            ]
        }
    };
    Case::exact(
        format!("{count} of {rows} × {columns} {:?}", T::ELEMENT),
        vec![y, dx, ones],
        move |r: &mut Recorder| {
            let (x, ids, dy) = (
                r.upload(&x, [rows, columns])?,
                r.upload(&ids, [count])?,
                r.upload(&dy, [count, columns])?,
            );
            let y = tensor::gather(&x, &ids).forward(&mut r.encoder)?;
            let dx = tensor::gather(&x, &ids).backward(&mut r.encoder, &dy)?;
            let ones = tensor::one_hot::<T>(&ids, rows).forward(&mut r.encoder)?;
            [&y, &dx, &ones].into_iter().for_each(|tensor| r.watch_all(tensor));
            Ok(())
        },
    )
    .reference(reference)
    .of(T::ELEMENT)
}

/// Words of any meaning, by ids of two dimensions.
fn words() -> Case {
    let (x, ids) = ([0x7fc0_0001_u32, 2, 3, 4, 5, 6], [2u32, 0, 1, 2]);
    let y = ids.iter().flat_map(|&id| [x[2 * id as usize], x[2 * id as usize + 1]]).collect();
    Case::exact("words".into(), vec![Data::U32(y)], move |r: &mut Recorder| {
        let (x, ids) = (r.upload(&x, [3, 2])?, r.upload(&ids, [2, 2])?);
        let y = tensor::gather(&x, &ids).forward(&mut r.encoder)?;
        r.watch_all(&y);
        Ok(())
    })
}
