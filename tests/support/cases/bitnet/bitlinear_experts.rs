//! `src/ops/bitnet/bitlinear_experts.rs`

use super::bitlinear_block_float::on_tensor_cores;
use crate::{Case, Data, Near, U, activations, convert, floats, rng, seed, ternary_with};
use bitnet_wgpu::{
    Out, bitnet, internals, reference,
    tensor::{Float, f16},
    weights::{PackedTernary, Scales},
};
use rand::{RngExt, rngs::SmallRng};

/// Tokens, experts, used ones, rows and columns of an expert, columns of a group.
type Shape = (usize, usize, usize, usize, usize, Option<usize>);

const FIXED: [Shape; 10] = [
    (1, 1, 1, 1, 1, None),
    (1, 4, 2, 3, 17, None),
    (2, 5, 3, 33, 128, None),
    (3, 7, 2, 20, 256, Some(128)),
    (1, 3, 3, 70, 300, Some(16)),
    (2, 2, 1, 9, 1100, Some(32)),
    (5, 16, 4, 8, 64, Some(64)),
    (0, 3, 2, 4, 32, None),
    (1, 9, 8, 130, 2048, None),
    (33, 6, 2, 5, 48, Some(48)),
];

pub fn cases() -> Vec<Case> {
    let random = (0..6).map(|i| {
        let mut rng = rng(1000 * seed() + i);
        let experts = rng.random_range(1..12);
        let group = [None, Some(128), Some(16 * rng.random_range(1..9))][rng.random_range(0..3)];
        let (tokens, used) = (rng.random_range(1..6), rng.random_range(1..experts.min(8) + 1));
        (tokens, experts, used, rng.random_range(1..90), rng.random_range(1..500), group)
    });
    let shapes: Vec<Shape> = FIXED.into_iter().chain(random.collect::<Vec<_>>()).collect();
    (0u64..)
        .zip(shapes)
        .flat_map(|(i, shape)| {
            let of =
                |int8| [case::<f32>, case::<f16>].map(|case| case(&mut rng(70 + i), shape, int8));
            of(false).into_iter().chain(of(true))
        })
        .chain(in_tiles())
        .collect()
}

/// More rows than experts, which tensor cores multiply in tiles of one expert each.
fn in_tiles() -> Vec<Case> {
    let shapes: [Shape; 6] = [
        (40, 6, 2, 70, 128, Some(128)),
        (9, 3, 2, 33, 1100, None),
        (61, 5, 3, 140, 320, Some(160)),
        (50, 4, 1, 64, 256, Some(64)),
        (7, 2, 2, 131, 96, Some(32)),
        (130, 3, 2, 300, 640, Some(128)),
    ];
    let cases = (0u64..).zip(shapes).flat_map(|(i, shape)| {
        let mut rng = rng(110 + i);
        let cases = [case::<f32>(&mut rng, shape, false), case::<f16>(&mut rng, shape, false)];
        let cases = cases.map(|case| case.on(on_tensor_cores));
        cases.map(|case| if i == 5 { case.device_only() } else { case })
    });
    cases.collect()
}

/// Rows by their expert, in tiles.
pub fn sorted() -> Vec<Case> {
    let shapes = [(1, 1, 1), (0, 3, 4), (70, 3, 16), (300, 512, 2), (257, 9, 1), (33, 40, 5)];
    (0u64..).zip(shapes).map(|(i, shape)| sort(&mut rng(130 + i), shape)).collect()
}

fn sort(rng: &mut SmallRng, (rows, experts, tile): (usize, usize, usize)) -> Case {
    let chosen: Vec<u32> = (0..rows).map(|_| rng.random_range(0..experts as u32 + 1)).collect();
    let chosen: Vec<u32> =
        chosen.iter().map(|&e| if e as usize == experts { u32::MAX } else { e }).collect();
    let expert = |row: usize| chosen[row].min(experts as u32);
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by_key(|&row| expert(row));
    let mut tiles = vec![[0u32; 4]];
    for own in order.chunk_by(|&a, &b| expert(a) == expert(b)) {
        let first = order.iter().position(|row| row == &own[0]).unwrap();
        for (i, rows) in own.chunks(tile).enumerate() {
            tiles.push([expert(own[0]), (first + i * tile) as u32, rows.len() as u32, 0]);
        }
    }
    tiles[0][0] = tiles.len() as u32 - 1;
    let order = order.iter().map(|&row| row as u32).collect();
    let wanted = vec![Data::U32(tiles.concat()), Data::U32(order)];
    let (name, len) = (format!("{rows} rows, {experts} experts, tiles of {tile}"), 4 * tiles.len());
    Case::exact(name, wanted, move |r| {
        let chosen = r.upload(&chosen, [rows])?;
        let (sorted, tiles) = internals::sort_experts(&mut r.encoder, &chosen, experts, tile)?;
        r.watch(&tiles, len);
        r.watch_all(&sorted);
        Ok(())
    })
}

fn matrix(rng: &mut SmallRng, (_, _, _, rows, columns, group): Shape) -> PackedTernary {
    let scales = match group {
        Some(size) => {
            Scales::Groups { size, scales: floats(rng, rows * columns.div_ceil(size), 1.0) }
        }
        None => Scales::Segments((0..rows).map(|row| (1, 0.5 + row as f32 / 100.0)).collect()),
    };
    ternary_with(rng, rows, columns, scales)
}

/// The bits of the CPU reference; NaN where an expert does not exist.
fn case<Y: Float>(rng: &mut SmallRng, shape: Shape, int8: bool) -> Case {
    let (tokens, experts, used, rows, columns, _) = shape;
    let all: Vec<PackedTernary> = (0..experts).map(|_| matrix(rng, shape)).collect();
    let w = PackedTernary::concat(&all.iter().collect::<Vec<_>>()).unwrap();
    let x = activations(rng, tokens, columns);
    let mut chosen: Vec<u32> =
        (0..tokens * used).map(|_| rng.random_range(0..experts as u32)).collect();
    if let Some(last) = chosen.last_mut().filter(|_| used > 1) {
        *last = experts as u32;
    }
    let product = |(i, &expert): (usize, &u32)| match all.get(expert as usize) {
        Some(w) => reference::bitlinear_expert(&x[i / used * columns..][..columns], w, int8),
        None => Ok(vec![f32::NAN; rows]),
    };
    let products = chosen.iter().enumerate().flat_map(|row| product(row).unwrap());
    let products: Vec<f32> = products.collect();
    // As it is, and added to what is there.
    let base = convert::<Y>(&floats(rng, products.len(), 9.0));
    let sums = products.iter().zip(&base).map(|(product, &base)| base.into() + product);
    let sums: Vec<f32> = sums.collect();
    let expected = [&products, &sums].map(|values| Data::floats(Y::ELEMENT, values));
    let record = move |r: &mut crate::Recorder| {
        let (x, chosen) = (r.upload(&x, [tokens, columns])?, r.upload(&chosen, [tokens, used])?);
        let w = w.upload(r.encoder.context())?;
        let op = bitnet::bitlinear_experts(&x, &w, experts, &chosen);
        let op = (if int8 { op.int8() } else { op }).output_type::<Y>();
        let y = op.forward(&mut r.encoder)?;
        let sum = r.upload(&base, [tokens * used, rows])?;
        op.forward_into(&mut r.encoder, Out::add(&sum))?;
        r.watch_all(&y);
        r.watch_all(&sum);
        Ok(())
    };
    let name = format!("{shape:?}, int8 {int8}, {:?}", Y::ELEMENT);
    Case::exact(name, expected.to_vec(), record)
}

/// The sum of experts by their weights.
pub fn sums() -> Vec<Case> {
    let shapes = [(1, 1, 1), (3, 2, 5), (2, 8, 257), (0, 3, 4), (70, 3, 9), (5, 16, 64)];
    let cases = (0u64..).zip(shapes).flat_map(|(i, (tokens, used, columns))| {
        [false, true].map(|adds| sum(&mut rng(90 + i), tokens, used, columns, adds))
    });
    cases.collect()
}

fn sum(rng: &mut SmallRng, tokens: usize, used: usize, columns: usize, adds: bool) -> Case {
    let (x, weights) = (floats(rng, tokens * used * columns, 3.0), floats(rng, tokens * used, 1.0));
    let base = floats(rng, tokens * columns, 9.0);
    let near = |at: usize| {
        let (token, column) = (at / columns, at % columns);
        let term = |j: usize| {
            let row = token * used + j;
            f64::from(weights[row]) * f64::from(x[row * columns + column])
        };
        // A product and a sum for each, rounded once or twice.
        let error = (0..used).map(|j| term(j).abs()).sum::<f64>() * (used + 1) as f64 * U;
        let near = Near { exact: (0..used).map(term).sum(), error };
        if adds { near.on_top_of(base[at]) } else { near }
    };
    let expected = (0..tokens * columns).map(near).collect();
    let name = format!("{tokens} × {used} × {columns}, added {adds}");
    let (reference_x, reference_weights, reference_base) =
        (x.clone(), weights.clone(), base.clone());
    Case::near(name, expected, move |r| {
        let (x, weights) =
            (r.upload(&x, [tokens * used, columns])?, r.upload(&weights, [tokens, used])?);
        let op = bitnet::experts_sum(&x, &weights);
        let y = match adds {
            true => {
                let y = r.upload(&base, [tokens, columns])?;
                op.forward_into(&mut r.encoder, Out::add(&y))?;
                y
            }
            false => op.forward(&mut r.encoder)?,
        };
        r.watch_all(&y);
        Ok(())
    })
    .reference(move || {
        let rows = reference_x.chunks(used * columns).zip(reference_weights.chunks(used));
        let mut y: Vec<f32> =
            rows.flat_map(|(x, weights)| reference::experts_sum(x, weights)).collect();
        if adds {
            y.iter_mut().zip(&reference_base).for_each(|(y, base)| *y += base);
        }
        vec![Data::F32(y)]
    })
}
