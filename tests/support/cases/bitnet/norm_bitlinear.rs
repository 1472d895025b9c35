//! `src/ops/bitnet/norm_bitlinear.rs`

use super::row_scales;
use crate::{
    Case, Data, Near, activations,
    cases::tensor::activations::{gelu_tanh, silu},
    cases::tensor::unary::times,
    floats, random_shapes, rng, sums, ternary, ternary_with, wild_activations,
};
use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Out,
    bitnet::Gate,
    device::Capabilities,
    reference,
    weights::{PackedTernary, Scales},
};
use rand::{RngExt, rngs::SmallRng};

type Shape = (usize, usize, usize);
/// What the device is taken for, which decides for a kernel.
type Method = (&'static str, fn(&mut Capabilities));

const METHODS: [Method; 4] = [
    ("int8", |c| (c.fast_packed_dot, c.software) = (true, false)),
    ("half", |c| (c.fast_packed_dot, c.software) = (false, false)),
    // Two dispatches.
    ("int8 on software", |c| (c.fast_packed_dot, c.software) = (false, true)),
    ("half, biased", |c| (c.fast_packed_dot, c.f16_subnormals, c.software) = (false, false, false)),
];

const EPS: f32 = 1e-5;

/// Rows of every length of a turn and of a chunk, up to the longest that fit and beyond; matrices
/// of every number of rows in a tile; tokens that take one dispatch and such that take several.
fn all_shapes() -> impl Iterator<Item = (SmallRng, Shape)> {
    let fixed = [
        (1, 1, 4),
        (1, 9, 64),
        (2, 17, 36),
        (1, 16, 1028),
        (1, 67, 512),
        (2, 130, 260),
        (1, 3, 4096),
        (2, 5, 4100),
        (1, 20, 6912),
        (1, 2, 7104),
        (1, 3, 7108),
        (1, 3, 8192),
        (1, 2, 8196),
        (3, 7, 68),
        (1, 5, 70),
        (0, 4, 8),
        (1, 0, 8),
    ];
    let random = random_shapes("norm_bitlinear").into_iter().map(|(m, n, k)| (m % 3, n, 4 * k));
    (0u64..).zip(fixed.into_iter().chain(random)).map(|(i, shape)| (rng(60 + i), shape))
}

fn weights(rng: &mut SmallRng, n: usize, k: usize) -> PackedTernary {
    let scales: Vec<f32> = (0..n).map(|_| rng.random_range(0.01..2.0)).collect();
    ternary_with(rng, n, k, row_scales(&scales))
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for method in METHODS {
        for (mut rng, shape) in all_shapes() {
            let (m, n, k) = shape;
            let (x, w) = (wild_activations(&mut rng, m, k), weights(&mut rng, n, k));
            let gain = floats(&mut rng, k, 2.0);
            cases.extend([
                stored(method, shape, &x, None, &w),
                stored(method, shape, &x, Some(&gain), &w),
            ]);
        }
        // More workgroups than one has rows: larger tiles.
        let (mut rng, n) = (rng(90), 16_387);
        let (x, w) = (activations(&mut rng, 1, 64), weights(&mut rng, n, 64));
        cases.push(stored(method, (1, n, 64), &x, None, &w).device_only());
        // Per-group scales take two dispatches.
        let w = ternary_with(&mut rng, 4, 64, Scales::Groups { size: 32, scales: vec![0.5; 8] });
        cases.push(stored(method, (1, 4, 64), &vec![1.0; 64], None, &w));
    }
    cases
}

fn stored(
    (method, restrict): Method,
    (m, n, k): Shape,
    x: &[f32],
    gain: Option<&[f32]>,
    w: &PackedTernary,
) -> Case {
    let (x, w, gain) = (x.to_vec(), w.clone(), gain.map(<[f32]>::to_vec));
    let y = reference::norm_bitlinear(&x, m, norm_of(gain.as_deref()), &w, None).unwrap();
    let name = format!("{m} × {n} × {k}, norm {}, {method}", gain.is_some());
    Case::exact(name, vec![Data::F32(y)], move |r| {
        let (x, w) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?);
        let gain = gain.as_ref().map(|gain| r.upload(gain, [k])).transpose()?;
        let y = BitLinear::new(&w).norm(norm_of(gain.as_ref())).forward(&mut r.encoder, &x)?;
        r.watch_all(&y);
        Ok(())
    })
    .on(restrict)
}

pub(super) fn norm_of<G: ?Sized>(gain: Option<&G>) -> Option<(&G, f32)> {
    gain.map(|gain| (gain, EPS))
}

/// A product on top of what is there.
pub fn adding() -> Vec<Case> {
    let of =
        |method: Method| all_shapes().map(move |(mut rng, shape)| add(&mut rng, method, shape));
    METHODS.into_iter().flat_map(of).collect()
}

fn add(rng: &mut SmallRng, (method, restrict): Method, (m, n, k): Shape) -> Case {
    let (x, w, base, gain) = (
        floats(rng, m * k, 3.0),
        weights(rng, n, k),
        floats(rng, m * n, 50.0),
        floats(rng, k, 2.0),
    );
    let products = reference::norm_bitlinear(&x, m, Some((&gain, EPS)), &w, None).unwrap();
    Case::near(format!("{m} × {n} × {k}, {method}"), sums(&base, &products), move |r| {
        let (x, w, y) =
            (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?, r.upload(&base, [m, n])?);
        let gain = r.upload(&gain, [k])?;
        BitLinear::new(&w).norm(Some((&gain, EPS))).forward_into(
            &mut r.encoder,
            &x,
            Out::add(&y),
        )?;
        r.watch_all(&y);
        Ok(())
    })
    .on(restrict)
}

/// Gates and ups.
pub fn gated() -> Vec<Case> {
    let mut cases = Vec::new();
    for method in METHODS {
        for (mut rng, (m, n, k)) in all_shapes() {
            let (x, w) = (activations(&mut rng, m, k), ternary(&mut rng, 2 * n, k));
            let gain = floats(&mut rng, k, 2.0);
            cases.extend(
                [Gate::Relu2, Gate::Silu, Gate::GeluTanh]
                    .map(|gate| gate_case(method, (m, n, k), &x, &gain, &w, gate)),
            );
        }
    }
    cases
}

/// relu² is known exactly; silu and gelu as an exponential is.
fn gate_case(
    (method, restrict): Method,
    (m, n, k): Shape,
    x: &[f32],
    gain: &[f32],
    w: &PackedTernary,
    gate: Gate,
) -> Case {
    let (x, w, gain) = (x.to_vec(), w.clone(), gain.to_vec());
    let name = format!("{m} × {n} × {k}, {gate:?}, {method}");
    let products = reference::norm_bitlinear(&x, m, Some((&gain, EPS)), &w, None).unwrap();
    let function = if gate == Gate::GeluTanh { gelu_tanh } else { silu };
    let near = |row: &[f32]| {
        (0..n)
            .map(|i| {
                times(function(f64::from(row[i]), 0.0, [0.0; 2]).0, f64::from(row[n + i]), 1.0)
            })
            .collect::<Vec<_>>()
    };
    let expected: Vec<Near> = products.chunks_exact((2 * n).max(1)).flat_map(near).collect();
    let reference =
        Data::F32(reference::norm_bitlinear(&x, m, Some((&gain, EPS)), &w, Some(gate)).unwrap());
    let exact = reference.clone();
    let check = move |got: &[Data], leeway| match gate {
        Gate::Relu2 => got[0].check(&exact, leeway),
        _ => got[0].check_near(expected.iter().copied()),
    };
    let record = move |r: &mut crate::Recorder| {
        let (x, w, gain) =
            (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?, r.upload(&gain, [k])?);
        let y =
            BitLinear::new(&w).norm(Some((&gain, EPS))).gate(gate).forward(&mut r.encoder, &x)?;
        r.watch_all(&y);
        Ok(())
    };
    Case::new(name, record, check).reference(move || vec![reference.clone()]).on(restrict)
}
