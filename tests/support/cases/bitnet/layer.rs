//! `src/ops/bitnet/layer.rs`: combinations of input, weights and options that have no kernel of
//! their own.

use super::{
    bitlinear_block_float::{FEW, Shape, by_reference, in_bytes, in_floats, in_tiles, matrix},
    bitlinear_int_quantized::near,
};
use crate::{
    Case, Data, Near, Recorder,
    cases::tensor::{
        activated,
        epilogue::{Finished, Way, f16_floats_of, finishing, ways},
    },
    convert, f16_floats, floats, ints, rng,
};
use bitnet_wgpu::{
    Element, Out, Result, Tensor,
    bitnet::{self, ActivationType, Activations, BitLinear, Gate, LinearWeights},
    device::Capabilities,
    reference,
    tensor::{Float, f16},
    weights::Bits,
};

type Check = Box<dyn Fn(&[Data], crate::Leeway) -> std::result::Result<(), String> + Send + Sync>;

const ON: [fn(&mut Capabilities); 3] = [in_floats, in_bytes, in_tiles];

/// A layer with a bias and an activation on an input of shape `[m, k]`, into a tensor and added to
/// one.
fn finished_case<T: Float>(
    name: String,
    [m, n]: [usize; 2],
    (way, bias, base): (Way, &[f32], &[f32]),
    check: Check,
    record: impl Fn(
        &mut Recorder,
        &dyn Fn(&mut Recorder, BitLinear<'_>, &dyn Activations) -> Result<()>,
    ) -> Result<()>
    + Send
    + Sync
    + 'static,
) -> Case {
    let (bias, base) = (convert::<T>(bias), convert::<T>(base));
    let all = move |r: &mut Recorder| {
        let bias = r.upload(&bias, [n])?;
        let (y, added) = (r.output::<T>([m, n])?, r.upload(&base, [m, n])?);
        record(r, &|r, layer, x| {
            let layer = finishing(layer, way, &bias);
            layer.forward_into(&mut r.encoder, x, &y)?;
            layer.forward_into(&mut r.encoder, x, Out::add(&added))
        })?;
        [&y, &added].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    Case::new(format!("{name}, {way:?}, {:?}", T::ELEMENT), all, check).of(T::ELEMENT)
}

/// Activations in block floating point, with a bias and an activation.
pub fn block_float() -> Vec<Case> {
    let mut ways = ways();
    let mut cases = Vec::new();
    for (i, shape) in FEW.into_iter().enumerate() {
        let mut way = || ways.next().expect("it has no end");
        let both = [of_block_float::<f32>(shape, way()), of_block_float::<f16>(shape, way())];
        cases.extend(both.map(|case| case.on(ON[i % 3])));
    }
    cases
}

fn of_block_float<T: Float>(shape: Shape, way: Way) -> Case {
    let (m, n, k, _) = shape;
    let mut rng = rng((m + n + k) as u64);
    let (w, x) = (matrix(&mut rng, shape), floats(&mut rng, m * k, 3.0));
    let bias = f16_floats_of(&floats(&mut rng, n, 9.0));
    let base = f16_floats(&mut rng, m * n, 50.0);
    let products = if k == 0 { vec![0.0; m * n] } else { by_reference(&x, &w) };
    let finished = Finished::of(&products, &bias, way, &base);
    let check = Box::new(move |got: &[Data], leeway| finished.check::<T>(got, leeway));
    finished_case::<T>(format!("{shape:?}"), [m, n], (way, &bias, &base), check, move |r, layer| {
        let (x, w) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?);
        let x = bitnet::ActivationQuantizer::block_float(w.group()).quantize(&mut r.encoder, &x)?;
        layer(r, BitLinear::new(&w), &x)
    })
}

/// Floats that the layer quantizes to int8, with a bias and an activation.
pub fn int8() -> Vec<Case> {
    let mut ways = ways();
    let shapes = [
        (1, 19, 70, None),
        (3, 17, 200, Some(16)),
        (9, 33, 100, None),
        (2, 5, 384, Some(128)),
        (0, 3, 32, Some(32)),
    ];
    let mut all = |shape| {
        let mut way = || ways.next().expect("it has no end");
        [
            of_int8::<f32, f32>(shape, way()),
            of_int8::<f16, f32>(shape, way()),
            of_int8::<f32, f16>(shape, way()),
            of_int8::<f16, f16>(shape, way()),
        ]
    };
    shapes.into_iter().flat_map(&mut all).collect()
}

fn of_int8<X: Float, T: Float>(shape: Shape, way: Way) -> Case {
    let (m, n, k, _) = shape;
    let mut rng = rng((m + n + k) as u64);
    let (w, x) = (matrix(&mut rng, shape), convert::<X>(&floats(&mut rng, m * k, 3.0)));
    let bias = f16_floats_of(&floats(&mut rng, n, 9.0));
    let base = f16_floats(&mut rng, m * n, 50.0);
    let host = reference::quantize_activations(&x, m, k).unwrap();
    let products = reference::bitlinear_quantized(&host, &w).unwrap();
    let finished = Finished::of(&products, &bias, way, &base);
    let check = Box::new(move |got: &[Data], leeway| finished.check::<T>(got, leeway));
    let name = format!("{shape:?}, {:?}", X::ELEMENT);
    finished_case::<T>(name, [m, n], (way, &bias, &base), check, move |r, layer| {
        let (x, w) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?);
        layer(r, BitLinear::new(&w), &x)
    })
    .of(X::ELEMENT)
}

/// Floats that a layer of integer weights quantizes to int8, with a bias and an activation.
pub fn int_weights() -> Vec<Case> {
    let shapes = [(1, 3, 33, None), (4, 65, 129, Some(32)), (9, 7, 70, None)];
    let ways = ways().filter(|(_, biased)| *biased);
    let all = shapes.into_iter().zip(Bits::ALL.into_iter().cycle()).zip(ways);
    all.flat_map(|((shape, bits), way)| {
        [
            of_int_weights::<f32, f32>(shape, bits, way),
            of_int_weights::<f16, f32>(shape, bits, way),
            of_int_weights::<f32, f16>(shape, bits, way),
        ]
    })
    .collect()
}

fn of_int_weights<X: Float, T: Float>(shape: Shape, bits: Bits, way: Way) -> Case {
    let (m, n, k, size) = shape;
    let mut rng = rng((m + n + k) as u64);
    let (w, x) = (ints(&mut rng, n, k, bits, size), convert::<X>(&floats(&mut rng, m * k, 2.0)));
    let bias = f16_floats_of(&floats(&mut rng, n, 9.0));
    let base = f16_floats(&mut rng, m * n, 50.0);
    let host = reference::quantize_activations(&x, m, k).unwrap();
    let y: Vec<Near> = (0..m * n)
        .map(|at| activated(near(at, &host, &w).on_top_of(bias[at % n]), way.0))
        .collect();
    let added: Vec<Near> = y.iter().zip(&base).map(|(y, &base)| y.on_top_of(base)).collect();
    let check = Box::new(move |got: &[Data], _| {
        got[0].check_near(y.iter().copied())?;
        got[1].check_near(added.iter().copied())
    });
    let name = format!("{shape:?}, {bits:?}, {:?}", X::ELEMENT);
    finished_case::<T>(name, [m, n], (way, &bias, &base), check, move |r, layer| {
        let (x, w) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?);
        layer(r, BitLinear::new(&w).activation_type(ActivationType::Int8), &x)
    })
    .of(X::ELEMENT)
}

/// What enters a layer.
#[derive(Clone, Copy, Debug)]
enum Input {
    F32,
    F16,
    Int8,
    BlockFloat,
}

/// A layer with a gate: by what it multiplies, how, and what becomes of it.
#[derive(Clone, Copy, Debug)]
struct Gated {
    input: Input,
    ints: bool,
    activation_type: ActivationType,
    biased: bool,
    add: bool,
}

/// Gates that no kernel applies to the product: the bits of the layer without, and the gate after
/// it.
pub fn gates() -> Vec<Case> {
    use ActivationType::{BlockFloat, Float, Int8};
    let plain =
        Gated { input: Input::F32, ints: false, activation_type: Int8, biased: false, add: false };
    let f32s = [
        Gated { add: true, ..plain },
        Gated { biased: true, ..plain },
        Gated { activation_type: Float, ..plain },
        Gated { activation_type: Float, biased: true, add: true, ..plain },
        Gated { activation_type: BlockFloat, add: true, ..plain },
        Gated { input: Input::F16, ..plain },
        Gated { input: Input::Int8, ..plain },
        Gated { input: Input::Int8, biased: true, add: true, ..plain },
        Gated { input: Input::BlockFloat, ..plain },
        Gated { input: Input::BlockFloat, biased: true, ..plain },
        Gated { ints: true, ..plain },
        Gated { ints: true, activation_type: Float, add: true, ..plain },
    ];
    let f16s = [
        Gated { biased: true, ..plain },
        Gated { input: Input::Int8, add: true, ..plain },
        Gated { ints: true, ..plain },
    ];
    let kinds = [Gate::Relu2, Gate::Silu, Gate::GeluTanh];
    let of_f32s = f32s.into_iter().flat_map(|of| kinds.map(|gate| gated::<f32, f32>(of, gate)));
    let of_f16s = f16s.into_iter().zip(kinds).flat_map(|(of, gate)| {
        [gated::<f32, f16>(of, gate), gated::<f16, f16>(of, gate), gated::<f16, f32>(of, gate)]
    });
    of_f32s.chain(of_f16s).collect()
}

/// A layer of type `T`, whose product is in it, into tensors of `Y`.
fn gated<T: Float, Y: Float>(of: Gated, gate: Gate) -> Case {
    let (m, n, k) = (3, 20, 256);
    let mut rng = rng(21);
    let w = matrix(&mut rng, (m, 2 * n, k, Some(128)));
    let int = ints(&mut rng, 2 * n, k, Bits::Four, Some(128));
    let x = floats(&mut rng, m * k, 0.5);
    let in_f16 = convert::<f16>(&x);
    let bias = convert::<T>(&floats(&mut rng, 2 * n, 3.0));
    let base = convert::<Y>(&floats(&mut rng, m * n, 3.0));
    let check = |got: &[Data], _| match got[0].has_bits_of(&got[1])
        && got[0].to_f32().iter().any(|&v| v != 0.0)
    {
        true => Ok(()),
        false => Err("the layer and its gate apart are other bits".to_owned()),
    };
    let record = move |r: &mut Recorder| {
        let (w, int) = (w.upload(r.encoder.context())?, int.upload(r.encoder.context())?);
        let weights: &dyn LinearWeights = if of.ints { &int } else { &w };
        let bias = of.biased.then(|| r.upload(&bias, [2 * n])).transpose()?;
        let layer = BitLinear::new(weights).activation_type(of.activation_type);
        let layer = layer.bias::<T>(bias.as_ref());
        let [y, apart] = [r.upload(&base, [m, n])?, r.upload(&base, [m, n])?];
        let [out, out_apart] = [&y, &apart].map(|y| if of.add { Out::add(y) } else { Out::set(y) });
        let x = r.upload(&x, [m, k])?;
        let half = match of.input {
            Input::F16 => Some(r.upload(&in_f16, [m, k])?),
            _ => None,
        };
        let codes = crate::quantize_as(&mut r.encoder, &x, bitnet::Layout::Int8)?;
        let blocks = bitnet::ActivationQuantizer::block_float(None).quantize(&mut r.encoder, &x)?;
        let x: &dyn Activations = match (of.input, &half) {
            (Input::Int8, _) => &codes,
            (Input::BlockFloat, _) => &blocks,
            (_, Some(half)) => half,
            (_, None) => &x,
        };
        layer.gate(gate).forward_into(&mut r.encoder, x, out)?;
        let product: Tensor<T> = layer.forward(&mut r.encoder, x)?;
        bitnet::gate(&product, gate).output_type().forward_into(&mut r.encoder, out_apart)?;
        [&y, &apart].into_iter().for_each(|y| r.watch_all(y));
        Ok(())
    };
    let f16s = matches!(of.input, Input::F16);
    let case = Case::new(format!("{of:?}, {gate:?}, {:?}", Y::ELEMENT), record, check);
    case.of(T::ELEMENT).of(Y::ELEMENT).of(if f16s { Element::F16 } else { Element::F32 })
}
