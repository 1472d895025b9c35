//! `src/ops/transformer/rms_norm.rs`

use crate::{Case, Data, Near, Recorder, activations, convert, floats, random_shapes, rng, sums};
use bitnet_wgpu::{Element, Out, reference, tensor::f16, transformer::RmsNorm};
use rand::{RngExt, rngs::SmallRng};

const EPS: f32 = 1e-5;

/// Rows of `x`, its columns, the first row that is asked for, and how many.
type Shape = (usize, usize, usize, usize);

pub fn cases() -> Vec<Case> {
    let fixed: [Shape; 12] = [
        (1, 1, 0, 1),
        (2, 31, 1, 1),
        (9, 257, 2, 7),
        (5, 257, 0, 5),
        (3, 1280, 0, 3),
        (4, 8, 0, 4),
        (4, 8, 4, 0),
        (0, 8, 0, 0),
        (7, 33, 3, 2),
        (3, 2560, 0, 3),
        (45, 19, 4, 40),
        // More than threads hold of a row.
        (3, 3087, 1, 2),
    ];
    let mut cases: Vec<_> = (0u64..)
        .zip(fixed)
        .flat_map(|(i, shape)| [case(&mut rng(i), shape), adding(&mut rng(i), shape)])
        .collect();
    for (i, (m, _, k)) in (0..).zip(random_shapes("rms_norm")) {
        let mut rng = rng(1000 * crate::seed() + i);
        let first = rng.random_range(0..=m);
        let tokens = rng.random_range(0..=m - first);
        cases.push(case(&mut rng, (m, k, first, tokens)));
        cases.push(in_f16(&mut rng, (m, k, first, tokens)));
    }
    cases.extend([in_f16(&mut rng(20), (9, 257, 2, 7)), in_f16(&mut rng(21), (3, 3087, 1, 2))]);
    cases
}

/// Alone, and added to something.
fn in_f16(rng: &mut SmallRng, (m, k, first, tokens): Shape) -> Case {
    let [x, base] = [m, tokens].map(|rows| convert::<f16>(&floats(rng, rows * k, 3.0)));
    let gain = floats(rng, k, 2.0);
    let values: Vec<f32> = x.iter().map(|&v| v.into()).collect();
    let normed =
        reference::rms_norm(&values, &gain, EPS).unwrap()[first * k..][..tokens * k].to_vec();
    let on_top =
        normed.iter().zip(&base).map(|(&v, &base)| Near::exactly(v).on_top_of(base)).collect();
    let expected: [Vec<Near>; 2] = [normed.into_iter().map(Near::exactly).collect(), on_top];
    let check = move |got: &[Data], _| {
        got.iter().zip(&expected).try_for_each(|(got, near)| got.check_near(near.iter().copied()))
    };
    let record = move |r: &mut Recorder| {
        let (x, gain, base) =
            (r.upload(&x, [m, k])?, r.upload(&gain, [k])?, r.upload(&base, [tokens, k])?);
        let y = r.output::<f16>([tokens, k])?;
        RmsNorm::new(&gain, EPS).skip_rows(first).forward_into(&mut r.encoder, &x, &y)?;
        RmsNorm::new(&gain, EPS).skip_rows(first).forward_into(
            &mut r.encoder,
            &x,
            Out::add(&base),
        )?;
        r.watch_all(&y);
        r.watch_all(&base);
        Ok(())
    };
    Case::new(format!("rows {first}.. of {m} × {k}, {tokens}, in f16"), record, check)
        .of(Element::F16)
}

fn case(rng: &mut SmallRng, (m, k, first, tokens): Shape) -> Case {
    let (x, gain) = (activations(rng, m, k), floats(rng, k, 2.0));
    let normed = reference::rms_norm(&x, &gain, EPS).unwrap();
    let expected = Data::F32(normed[first * k..][..tokens * k].to_vec());
    Case::exact(format!("rows {first}.. of {m} × {k}, {tokens}"), vec![expected], move |r| {
        let (x, gain, y) = (r.upload(&x, [m, k])?, r.upload(&gain, [k])?, r.output([tokens, k])?);
        RmsNorm::new(&gain, EPS).skip_rows(first).forward_into(&mut r.encoder, &x, &y)?;
        r.watch_all(&y);
        Ok(())
    })
}

fn adding(rng: &mut SmallRng, (m, k, first, tokens): Shape) -> Case {
    let (x, gain, base) =
        (floats(rng, m * k, 3.0), floats(rng, k, 2.0), floats(rng, tokens * k, 9.0));
    let normed = reference::rms_norm(&x, &gain, EPS).unwrap();
    let expected = sums(&base, &normed[first * k..][..tokens * k]);
    Case::near(format!("rows {first}.. of {m} × {k}, {tokens}, added"), expected, move |r| {
        let (x, gain, y) =
            (r.upload(&x, [m, k])?, r.upload(&gain, [k])?, r.upload(&base, [tokens, k])?);
        RmsNorm::new(&gain, EPS).skip_rows(first).forward_into(&mut r.encoder, &x, Out::add(&y))?;
        r.watch_all(&y);
        Ok(())
    })
}
