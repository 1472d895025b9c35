//! `src/ops/bitnet/bitlinear_block_float.rs` and `quantize_block_float.rs`

use crate::{
    Case, Compared, Data, Near, Recorder, activations, convert, floats, rng, ternary_with,
};
use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Element, Out, Result, Tensor,
    bitnet::{self, BlockFloatActivations, Gate},
    device::Capabilities,
    internals, reference,
    tensor::{Float, f16},
    tuning::TuningKey,
    weights::{PackedTernary, Scales},
};
use rand::{RngExt, rngs::SmallRng};

/// Draws a number.
type Draw = fn(&mut SmallRng) -> f32;
/// Tokens, rows, columns, and columns of a group.
pub(super) type Shape = (usize, usize, usize, Option<usize>);

/// Few tokens: blocks of each length, whole and cut off, more of them than lanes, and groups of
/// several blocks.
pub(super) const FEW: [Shape; 14] = [
    (0, 3, 5, None),
    (2, 3, 0, None),
    (1, 1, 1, None),
    (1, 21, 1040, Some(48)),
    (1, 35, 1600, None),
    (1, 70, 4736, Some(128)),
    (1, 300, 256, Some(256)),
    (2, 129, 64, Some(64)),
    (3, 20, 300, Some(16)),
    (4, 20, 50, Some(32)),
    (5, 70, 65, None),
    (8, 9, 1100, Some(128)),
    (9, 33, 768, Some(384)),
    (21, 17, 4352, Some(128)),
];
/// As many as tensor cores are for: tiles of both sizes, full and not, blocks of 32 to 128 columns,
/// cut off.
pub(super) const MANY: [Shape; 8] = [
    (17, 3, 1, None),
    (18, 70, 33, Some(32)),
    (33, 65, 256, Some(64)),
    (64, 64, 384, Some(128)),
    (70, 129, 1100, Some(128)),
    (65, 900, 160, Some(160)),
    (130, 500, 128, None),
    (257, 3000, 300, Some(128)),
];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for on in [in_floats, in_bytes] {
        cases.extend(FEW.into_iter().flat_map(|shape| {
            [case::<f32, f32>(shape), case::<f16, f32>(shape), case::<f32, f16>(shape)]
                .map(|case| case.on(on))
        }));
    }
    // As few, where a choice of the caller's says so.
    cases.extend(FEW.into_iter().map(|shape| case::<f32, f32>(shape).on(on_tensor_cores_always)));
    cases.extend(FEW.into_iter().map(|shape| case::<f32, f32>(shape).on(in_tiles)));
    for (i, shape) in MANY.into_iter().enumerate() {
        let on = [on_tensor_cores as fn(&mut Capabilities), in_tiles]
            .map(|on| [case::<f32, f32>(shape).on(on), case::<f16, f16>(shape).on(on)]);
        let on = on.into_iter().flatten();
        cases.extend(on.map(|case| if i > 4 { case.device_only() } else { case }));
    }
    let large = on_tensor_cores_in_large_tiles;
    let shape = (250, 200, 160, Some(32));
    cases.extend([case::<f32, f32>(shape).on(large), case::<f16, f16>(shape).on(large)]);
    cases.extend(adversarial());
    cases
}

/// Software adapters have tensor cores only for this.
pub(super) fn on_tensor_cores(c: &mut Capabilities) {
    c.software = false;
}

fn on_tensor_cores_always(c: &mut Capabilities) {
    on_tensor_cores(c);
    c.tuning.set(TuningKey::BlockFloatTensorCoreTokens, 0).unwrap();
}

/// Large tiles in two rounds, where small ones take four.
fn on_tensor_cores_in_large_tiles(c: &mut Capabilities) {
    on_tensor_cores(c);
    c.tuning.set(TuningKey::BlockFloatTensorCoreTiles, 4).unwrap();
}

pub(super) fn in_tiles(c: &mut Capabilities) {
    c.tensor_cores.clear();
    c.tuning.set(TuningKey::BlockFloatTileTokens, 0).unwrap();
}

pub(super) fn in_floats(c: &mut Capabilities) {
    (c.software, c.fast_packed_dot) = (true, false);
}

pub(super) fn in_bytes(c: &mut Capabilities) {
    (c.software, c.fast_packed_dot) = (true, true);
}

pub(super) fn matrix(rng: &mut SmallRng, (_, rows, columns, size): Shape) -> PackedTernary {
    let scales = match size {
        Some(size) => {
            Scales::Groups { size, scales: floats(rng, rows * columns.div_ceil(size), 1.0) }
        }
        None => Scales::Segments((0..rows).map(|row| (1, 0.5 + row as f32 / 100.0)).collect()),
    };
    ternary_with(rng, rows, columns, scales)
}

/// What the CPU references make of rows of `x`.
pub(super) fn by_reference(x: &[f32], w: &PackedTernary) -> Vec<f32> {
    let mut rounded = x.to_vec();
    reference::quantize_block_float(&mut rounded, w.columns(), w.group()).unwrap();
    rounded
        .chunks(w.columns().max(1))
        .flat_map(|row| reference::bitlinear_block_float(row, w).unwrap())
        .collect()
}

fn case<X: Float, Y: Float>(shape: Shape) -> Case {
    let (m, rows, columns, _) = shape;
    let mut rng = rng((m + rows + columns) as u64);
    let w = matrix(&mut rng, shape);
    // Blocks of all magnitudes, and blocks of which one number is far above the rest.
    let x = activations(&mut rng, m, columns);
    let x =
        if X::ELEMENT == Element::F16 { x.iter().map(|x| x.clamp(-6e4, 6e4)).collect() } else { x };
    of::<X, Y>(format!("{shape:?}"), shape, x, w)
}

/// The bits of the CPU references, and on top of what is there.
fn of<X: Float, Y: Float>(
    name: String,
    (m, rows, columns, _): Shape,
    x: Vec<f32>,
    w: PackedTernary,
) -> Case {
    let mut rng = rng(7);
    let x = convert::<X>(&x);
    let expected = match columns {
        0 => vec![0.0; m * rows],
        _ => by_reference(&x.iter().map(|&x| x.into()).collect::<Vec<f32>>(), &w),
    };
    let base = convert::<Y>(&floats(&mut rng, m * rows, 9.0));
    let added: Vec<Near> =
        expected.iter().zip(&base).map(|(&y, &base)| Near::exactly(y).on_top_of(base)).collect();
    let check = move |got: &[Data], _| {
        Compared::BITS.note();
        let y = got[0].to_f32();
        // How a device rounds to f16 is its own.
        if Y::ELEMENT == Element::F32
            && let Some(i) = (0..y.len()).find(|&i| {
                y[i].to_bits() != expected[i].to_bits() && !(y[i].is_nan() && expected[i].is_nan())
            })
        {
            return Err(format!("output {i}: {:e} in place of {:e}", y[i], expected[i]));
        }
        got[0].check_near(expected.iter().map(|&y| Near::exactly(y)))?;
        got[1].check_near(added.iter().copied())
    };
    let record = move |r: &mut Recorder| {
        let w = w.upload(r.encoder.context())?;
        let (x, y) = (r.upload(&x, [m, columns])?, r.output::<Y>([m, rows])?);
        let added = r.upload(&base, [m, rows])?;
        let rounded =
            bitnet::ActivationQuantizer::block_float(w.group()).quantize(&mut r.encoder, &x)?;
        BitLinear::new(&w).forward_into(&mut r.encoder, &rounded, &y)?;
        BitLinear::new(&w).forward_into(&mut r.encoder, &rounded, Out::add(&added))?;
        [&y, &added].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    Case::new(format!("{name}, {:?} to {:?}", X::ELEMENT, Y::ELEMENT), record, check)
        .of(X::ELEMENT)
        .of(Y::ELEMENT)
}

/// The largest sums that there can be, of one sign and of both; numbers halfway between two
/// multiples; the smallest floats.
fn adversarial() -> Vec<Case> {
    let mut cases = Vec::new();
    for m in [1, 5, 40] {
        let shape = (m, 9, 256, Some(128));
        let mut rng = rng(m as u64);
        let ones = PackedTernary::from_values(
            9,
            256,
            &[1; 9 * 256],
            Scales::Groups { size: 128, scales: floats(&mut rng, 18, 1.0) },
        )
        .unwrap();
        let mixed = matrix(&mut rng, shape);
        let kinds: [(&str, Draw); 5] = [
            ("all as large as their unit allows", |_| f32::from_bits(0x3ffd_ffff)),
            ("all as small as their unit allows", |_| f32::from_bits(0xbffe_0000)),
            ("of fifteen bits, alike", |_| 32_511.0),
            ("halfway", |rng| rng.random_range(-32_511i32..=32_510) as f32 + 0.5),
            ("tiny", |rng| f32::from_bits(rng.random_range(0..0x0100_0000))),
        ];
        for (name, number) in kinds {
            let x: Vec<f32> = (0..m * 256).map(|_| number(&mut rng)).collect();
            for (w, of_w) in [(&ones, "ones"), (&mixed, "mixed")] {
                for on in [in_floats, in_bytes, in_tiles, on_tensor_cores] {
                    cases.push(
                        of::<f32, f32>(format!("{m}, {name}, {of_w}"), shape, x.clone(), w.clone())
                            .on(on),
                    );
                }
            }
        }
    }
    cases
}

/// Norm or gate, and rounding: the bits that come of the CPU references, through a product. Rows
/// that threads hold, and longer ones.
pub fn fused() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes: [Shape; 6] = [
        (1, 9, 130, Some(128)),
        (3, 5, 2048, Some(128)),
        (2, 3, 3200, None),
        (2, 4, 4100, Some(64)),
        (17, 6, 384, Some(128)),
        (0, 3, 64, None),
    ];
    for shape in shapes {
        for on in [in_floats, in_bytes, in_tiles, on_tensor_cores] {
            cases.extend([normed(shape).on(on), gated(shape, Gate::Relu2).on(on)]);
        }
    }
    cases
}

fn normed(shape: Shape) -> Case {
    let (m, rows, columns, group) = shape;
    let mut rng = rng((m + columns) as u64);
    let w = matrix(&mut rng, shape);
    let (x, gain) = (activations(&mut rng, m + 2, columns), floats(&mut rng, columns, 2.0));
    let x: Vec<f32> = x.iter().map(|x| x.clamp(-1e4, 1e4)).collect();
    let rounded =
        reference::rms_norm_block_float(&x[2 * columns..], &gain, 1e-6, w.group()).unwrap();
    let expected: Vec<f32> = rounded
        .chunks(columns)
        .flat_map(|row| reference::bitlinear_block_float(row, &w).unwrap())
        .collect();
    exactly(format!("norm of {shape:?}"), [m, rows], expected, move |r, y| {
        let (w, x, gain) = (
            w.upload(r.encoder.context())?,
            r.upload(&x, [m + 2, columns])?,
            r.upload(&gain, [columns])?,
        );
        let rounded = BlockFloatActivations::uninit(r.encoder.context(), m, columns, group)?;
        let norm = (&gain, 1e-6);
        internals::rms_norm_block_float_into(&mut r.encoder, &x, 2, norm, &rounded)?;
        BitLinear::new(&w).forward_into(&mut r.encoder, &rounded, y)
    })
}

fn gated(shape: Shape, gate: Gate) -> Case {
    let (m, rows, columns, _) = shape;
    let mut rng = rng((m + columns) as u64);
    let w = matrix(&mut rng, shape);
    let x = floats(&mut rng, 2 * m * columns, 3.0);
    let expected = by_reference(&reference::gate(&x, columns, Gate::Relu2).unwrap(), &w);
    exactly(format!("{gate:?} of {shape:?}"), [m, rows], expected, move |r, y| {
        let (w, x) = (w.upload(r.encoder.context())?, r.upload(&x, [m, 2 * columns])?);
        let quantizer = bitnet::ActivationQuantizer::block_float(w.group()).gate(gate);
        let rounded = quantizer.quantize(&mut r.encoder, &x)?;
        BitLinear::new(&w).forward_into(&mut r.encoder, &rounded, y)
    })
}

/// These bits, or NaN.
pub(super) fn exactly(
    name: String,
    shape: [usize; 2],
    expected: Vec<f32>,
    record: impl Fn(&mut Recorder, &Tensor<f32>) -> Result<()> + Send + Sync + 'static,
) -> Case {
    let check = move |got: &[Data], _| {
        Compared::BITS.note();
        let y = got[0].to_f32();
        match (0..y.len()).find(|&i| {
            y[i].to_bits() != expected[i].to_bits() && !(y[i].is_nan() && expected[i].is_nan())
        }) {
            Some(i) => Err(format!("output {i}: {:e} in place of {:e}", y[i], expected[i])),
            None => Ok(()),
        }
    };
    let record = move |r: &mut Recorder| {
        let y = r.output::<f32>(shape)?;
        record(r, &y)?;
        r.watch_all(&y);
        Ok(())
    };
    Case::new(name, record, check).to_the_bit()
}

/// SiLU and GELU, whose last bits are a device's own, beside the gate and the rounding one after
/// the other on the same device: equal bits.
pub fn gates() -> Vec<Case> {
    let shape = (3, 20, 640, Some(128));
    let (m, rows, columns, _) = shape;
    let make = |gate: Gate, on: fn(&mut Capabilities)| {
        let mut rng = rng(9);
        let (w, x) = (matrix(&mut rng, shape), floats(&mut rng, 2 * m * columns, 3.0));
        let check = |got: &[Data], _| match got[0].has_bits_of(&got[1])
            && got[0].to_f32().iter().any(|&v| v != 0.0)
        {
            true => Ok(()),
            false => Err("gated and rounded at once are other bits".to_owned()),
        };
        let record = move |r: &mut Recorder| {
            let (w, x) = (w.upload(r.encoder.context())?, r.upload(&x, [m, 2 * columns])?);
            let [at_once, apart] = [r.output::<f32>([m, rows])?, r.output::<f32>([m, rows])?];
            let quantizer = bitnet::ActivationQuantizer::block_float(None).gate(gate);
            let rounded = quantizer.quantize(&mut r.encoder, &x)?;
            BitLinear::new(&w).forward_into(&mut r.encoder, &rounded, &at_once)?;
            let gated = bitnet::gate(&x, gate).forward(&mut r.encoder)?;
            let rounded =
                bitnet::ActivationQuantizer::block_float(None).quantize(&mut r.encoder, &gated)?;
            BitLinear::new(&w).forward_into(&mut r.encoder, &rounded, &apart)?;
            [&at_once, &apart].into_iter().for_each(|y| r.watch_all(y));
            Ok(())
        };
        Case::new(format!("{gate:?}"), record, check).on(on)
    };
    [Gate::Silu, Gate::GeluTanh]
        .into_iter()
        .flat_map(|gate| [make(gate, in_floats), make(gate, in_tiles), make(gate, in_bytes)])
        .collect()
}
