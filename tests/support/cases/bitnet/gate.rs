//! `src/ops/bitnet/gate.rs`

use crate::{
    Case, Data, Near, Recorder, U, activations,
    cases::tensor::{activations, unary::times},
    convert, floats, rng, shapes,
};
use bitnet_wgpu::{
    Out,
    bitnet::{self, Gate},
    reference,
    tensor::{Float, f16},
};

const GATES: [Gate; 3] = [Gate::Relu2, Gate::Silu, Gate::GeluTanh];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (mut rng, (tokens, _, features)) in shapes("relu2_gate") {
        let x = activations(&mut rng, tokens, 2 * features);
        cases.extend([
            case::<f32, f32>(&x, tokens, features),
            case::<f16, f32>(&x, tokens, features),
        ]);
    }
    let x = floats(&mut rng(15), 9 * 2 * 1280, 30.0);
    cases.extend([case::<f32, f32>(&x, 9, 1280), case::<f16, f32>(&x, 9, 1280)]);
    cases.extend([case::<f32, f16>(&x, 9, 1280), case::<f16, f16>(&x, 9, 1280)]);
    let x = floats(&mut rng(16), 5 * 2 * 33, 9.0);
    for gate in [Gate::Silu, Gate::GeluTanh] {
        cases.extend([near::<f32, f32>(&x, 5, 33, gate), near::<f16, f32>(&x, 5, 33, gate)]);
        cases.extend([near::<f32, f16>(&x, 5, 33, gate), near::<f16, f16>(&x, 5, 33, gate)]);
    }
    cases.extend([gradients::<f32>(&x, 5, 33), gradients::<f16>(&x, 5, 33)]);
    cases
}

fn case<X: Float, Y: Float>(x: &[f32], tokens: usize, features: usize) -> Case {
    let x = convert::<X>(x);
    let y = Data::floats(Y::ELEMENT, &reference::gate(&x, features, Gate::Relu2).unwrap());
    Case::exact(
        format!("{tokens} × {features} {:?} to {:?}", X::ELEMENT, Y::ELEMENT),
        vec![y],
        move |r| {
            let x = r.upload(&x, [tokens, 2 * features])?;
            let y = r.output::<Y>([tokens, features])?;
            bitnet::gate(&x, Gate::Relu2).output_type().forward_into(&mut r.encoder, &y)?;
            r.watch_all(&y);
            Ok(())
        },
    )
    .of(X::ELEMENT)
    .of(Y::ELEMENT)
}

/// Gates and ups of each place of an output.
fn pairs<X: Float>(x: &[X], features: usize) -> Vec<(f64, f64)> {
    let pair = |row: &[X]| {
        (0..features)
            .map(|c| (f64::from(row[c].into()), f64::from(row[features + c].into())))
            .collect::<Vec<_>>()
    };
    x.chunks_exact(2 * features).flat_map(pair).collect()
}

/// A gate with silu or gelu, added to a tensor.
fn near<X: Float, Y: Float>(x: &[f32], tokens: usize, features: usize, gate: Gate) -> Case {
    let x = convert::<X>(x);
    let base = convert::<Y>(&floats(&mut rng(17), tokens * features, 9.0));
    let function = if gate == Gate::Silu { activations::silu } else { activations::gelu_tanh };
    let near = |&(gate, up): &(f64, f64)| times(function(gate, 0.0, [0.0; 2]).0, up, 1.0);
    let y: Vec<Near> = pairs(&x, features).iter().map(near).collect();
    let sum: Vec<Near> = y.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
    let reference = Data::F32(reference::gate(&x, features, gate).unwrap());
    let check = move |got: &[Data], _| {
        got[0].check_near(y.iter().copied())?;
        got.get(1).map_or(Ok(()), |got| got.check_near(sum.iter().copied()))
    };
    let record = move |r: &mut Recorder| {
        let (x, y, base) = (
            r.upload(&x, [tokens, 2 * features])?,
            r.output::<Y>([tokens, features])?,
            r.upload(&base, [tokens, features])?,
        );
        let op = bitnet::gate(&x, gate).output_type();
        op.forward_into(&mut r.encoder, &y)?;
        op.forward_into(&mut r.encoder, Out::add(&base))?;
        r.watch_all(&y);
        r.watch_all(&base);
        Ok(())
    };
    let name = format!("{gate:?}, {tokens} × {features} {:?} to {:?}", X::ELEMENT, Y::ELEMENT);
    Case::new(name, record, check)
        .reference(move || vec![reference.clone()])
        .of(X::ELEMENT)
        .of(Y::ELEMENT)
}

/// A function and its gradient times dy, at x.
type Activation = fn(f64, f64, [f32; 2]) -> (Near, Near);

/// Those of all gates.
fn gradients<T: Float>(x: &[f32], tokens: usize, features: usize) -> Case {
    let x = convert::<T>(x);
    let dy = convert::<T>(&floats(&mut rng(18), tokens * features, 3.0));
    let numbers: Vec<(f64, f64, f64)> = pairs(&x, features)
        .iter()
        .zip(&dy)
        .map(|(&(gate, up), &dy)| (gate, up, f64::from(dy.into())))
        .collect();
    // Those of the gates of a row, then those of its ups.
    let laid_out = |of: &dyn Fn((f64, f64, f64)) -> [Near; 2]| -> Vec<Near> {
        let row = |row: &[(f64, f64, f64)]| {
            let both: Vec<[Near; 2]> = row.iter().map(|&numbers| of(numbers)).collect();
            [0, 1]
                .into_iter()
                .flat_map(|i| both.iter().map(move |near| near[i]))
                .collect::<Vec<_>>()
        };
        numbers.chunks_exact(features).flat_map(row).collect()
    };
    let slopes = |gate: Gate, (x, up, dy): (f64, f64, f64)| {
        let (of_gate, of_up) = reference::gate_backward(x as f32, up as f32, dy as f32, gate);
        [Near::exactly(of_gate), Near::exactly(of_up)]
    };
    let smooth = |function: Activation, (gate, up, dy): (f64, f64, f64)| {
        let (forward, gradient) = function(gate, dy * up, [0.0; 2]);
        // The product of dy and up is rounded, too.
        [
            Near { error: gradient.error + U * gradient.exact.abs(), ..gradient },
            times(forward, dy, 1.0),
        ]
    };
    let [silu, gelu_tanh] = [activations::silu, activations::gelu_tanh]
        .map(|function: Activation| laid_out(&|at| smooth(function, at)));
    let expected = [laid_out(&|at| slopes(Gate::Relu2, at)), silu, gelu_tanh];
    let check = move |got: &[Data], _| {
        expected.iter().zip(got).try_for_each(|(near, got)| got.check_near(near.iter().copied()))
    };
    let references = GATES.map(|gate| {
        let near = laid_out(&|at| slopes(gate, at));
        Data::F32(near.iter().map(|near| near.exact as f32).collect())
    });
    let record = move |r: &mut Recorder| {
        let (x, dy) = (r.upload(&x, [tokens, 2 * features])?, r.upload(&dy, [tokens, features])?);
        for gate in GATES {
            let dx = bitnet::gate(&x, gate).backward(&mut r.encoder, &dy)?;
            r.watch_all(&dx);
        }
        Ok(())
    };
    Case::new(format!("gradients, {tokens} × {features} {:?}", T::ELEMENT), record, check)
        .reference(move || references.to_vec())
        .of(T::ELEMENT)
}
