//! `src/ops/bitnet/norm_bitlinear_block_float.rs`

use super::{
    bitlinear_block_float::{Shape, exactly, matrix},
    norm_bitlinear::norm_of,
};
use crate::{Case, Data, Recorder, activations, floats, rng, sums};
use bitnet_wgpu::bitnet::{ActivationType, BitLinear};
use bitnet_wgpu::{
    Out,
    bitnet::{self, Gate},
    device::Capabilities,
    reference,
    tuning::TuningKey,
    weights::PackedTernary,
};

/// Chunks of every length, up to several of each size; tiles that are full and not; groups of a
/// block, of several and none; and what takes a dispatch more: shorter blocks, rows that are not
/// whole quads of words, more tokens.
const SHAPES: [Shape; 17] = [
    (1, 1, 64, None),
    (1, 16, 128, Some(128)),
    (2, 33, 192, Some(128)),
    (1, 70, 1088, Some(128)),
    (1, 35, 2048, None),
    (1, 20, 2048, Some(128)),
    (2, 6, 2112, Some(128)),
    (1, 9, 4096, Some(256)),
    (1, 18, 4160, Some(128)),
    (2, 4, 6144, Some(384)),
    (1, 3, 8320, None),
    (1, 5, 256, Some(64)),
    (1, 5, 80, None),
    (3, 7, 384, Some(128)),
    (9, 7, 384, Some(128)),
    (0, 4, 128, Some(128)),
    (1, 0, 128, None),
];

type On = fn(&mut Capabilities);
/// One dispatch, of few rows a workgroup and of many, in floats, and as for large matrices, once
/// and several times a workgroup; and two by each kind of product that there is for few tokens.
const ON: [On; 7] = [
    |c| (c.software, c.fast_packed_dot) = (false, true),
    |c| {
        (c.software, c.fast_packed_dot) = (false, true);
        c.tuning.set(TuningKey::FusedWorkgroups, 1).unwrap();
    },
    |c| {
        (c.software, c.fast_packed_dot) = (false, false);
        c.tuning.set(TuningKey::FusedBlockFloatTokens, 8).unwrap();
    },
    |c| {
        (c.software, c.fast_packed_dot) = (false, true);
        c.tuning.set(TuningKey::FusedBlockFloatLargeWeights, 0).unwrap();
    },
    |c| {
        (c.software, c.fast_packed_dot) = (false, true);
        c.tuning.set(TuningKey::FusedBlockFloatLargeWeights, 0).unwrap();
        c.tuning.set(TuningKey::FusedWorkgroups, 1).unwrap();
    },
    |c| (c.software, c.fast_packed_dot) = (true, true),
    |c| (c.software, c.fast_packed_dot) = (true, false),
];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in SHAPES {
        let (m, _, k, _) = shape;
        let mut rng = rng((m + k) as u64);
        let w = matrix(&mut rng, shape);
        let (x, gain) = (activations(&mut rng, m, k), floats(&mut rng, k, 2.0));
        let tame: Vec<f32> = x.iter().map(|x| x.clamp(-1e4, 1e4)).collect();
        cases.extend(ON.iter().flat_map(|&on| {
            [stored(shape, &x, None, &w).on(on), stored(shape, &tame, Some(&gain), &w).on(on)]
        }));
        // What a row has that is not finite is in all of its outputs.
        let mut wild = tame.clone();
        wild.iter_mut()
            .step_by(k + 1)
            .zip([f32::NAN, f32::NEG_INFINITY])
            .for_each(|(v, worst)| *v = worst);
        cases.extend([ON[0], ON[2], ON[3]].map(|on| stored(shape, &wild, Some(&gain), &w).on(on)));
    }
    cases
}

fn stored(shape: Shape, x: &[f32], gain: Option<&[f32]>, w: &PackedTernary) -> Case {
    let (m, n, k, _) = shape;
    let (x, w, gain) = (x.to_vec(), w.clone(), gain.map(<[f32]>::to_vec));
    let expected =
        reference::norm_bitlinear_block_float(&x, norm_of(gain.as_deref()), &w, None).unwrap();
    exactly(format!("{shape:?}, norm {}", gain.is_some()), [m, n], expected, move |r, y| {
        let (x, w) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?);
        let gain = gain.as_ref().map(|gain| r.upload(gain, [k])).transpose()?;
        BitLinear::new(&w)
            .activation_type(ActivationType::BlockFloat)
            .norm(norm_of(gain.as_ref()))
            .forward_into(&mut r.encoder, &x, y)
    })
}

/// On top of what is there, and gates and ups: relu² exactly, SiLU and GELU beside the gate that
/// is a dispatch of its own.
pub fn finished() -> Vec<Case> {
    let shapes = SHAPES.into_iter().map(|(m, n, k, size)| (m, 2 * n, k, size));
    let all = |shape| {
        [
            added(shape),
            gated(shape, Gate::Relu2),
            gated(shape, Gate::Silu),
            gated(shape, Gate::GeluTanh),
        ]
    };
    let packed = |(_, n, ..): Shape| ON[n / 2 % 2];
    shapes
        .flat_map(|shape| {
            [packed(shape), ON[2], ON[3]]
                .into_iter()
                .flat_map(move |on| all(shape).map(|case| case.on(on)))
        })
        .collect()
}

fn added(shape: Shape) -> Case {
    let (m, n, k, _) = shape;
    let mut rng = rng((m + n + k) as u64);
    let (w, x, base) =
        (matrix(&mut rng, shape), floats(&mut rng, m * k, 3.0), floats(&mut rng, m * n, 50.0));
    let products = reference::norm_bitlinear_block_float(&x, None, &w, None).unwrap();
    Case::near(format!("added, {shape:?}"), sums(&base, &products), move |r| {
        let (x, w, y) =
            (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?, r.upload(&base, [m, n])?);
        BitLinear::new(&w).activation_type(ActivationType::BlockFloat).norm(None).forward_into(
            &mut r.encoder,
            &x,
            Out::add(&y),
        )?;
        r.watch_all(&y);
        Ok(())
    })
}

fn gated(shape: Shape, gate: Gate) -> Case {
    let (m, n, k, _) = shape;
    let mut rng = rng((m + n + k) as u64);
    let (w, x, gain) =
        (matrix(&mut rng, shape), floats(&mut rng, m * k, 3.0), floats(&mut rng, k, 2.0));
    let reference = Data::F32(
        reference::norm_bitlinear_block_float(&x, norm_of(Some(&gain[..])), &w, Some(gate))
            .unwrap(),
    );
    let check = move |got: &[Data], leeway: _| {
        if gate == Gate::Relu2 {
            got[0].check(&reference, leeway)?;
        }
        match got[0].has_bits_of(&got[1]) && got[0].to_f32().iter().all(|v| v.is_finite()) {
            true => Ok(()),
            false => Err("gated at once are other bits".to_owned()),
        }
    };
    let record = move |r: &mut Recorder| {
        let (x, w, gain) =
            (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?, r.upload(&gain, [k])?);
        let y = r.output::<f32>([m, n / 2])?;
        BitLinear::new(&w)
            .activation_type(ActivationType::BlockFloat)
            .norm(norm_of(Some(&gain)))
            .gate(gate)
            .forward_into(&mut r.encoder, &x, &y)?;
        let product = r.output::<f32>([m, n])?;
        BitLinear::new(&w)
            .activation_type(ActivationType::BlockFloat)
            .norm(norm_of(Some(&gain)))
            .forward_into(&mut r.encoder, &x, &product)?;
        let apart = bitnet::gate(&product, gate).forward(&mut r.encoder)?;
        [&y, &apart].into_iter().for_each(|y| r.watch_all(y));
        Ok(())
    };
    Case::new(format!("{gate:?}, {shape:?}"), record, check)
}
