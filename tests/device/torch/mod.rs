//! Ops and their gradients against PyTorch's (data/torch/make.py).

mod cases;
mod golden;

use bitnet_wgpu::Error;
use cases::cases;
use golden::{Case, GOLDEN, Out, words};
use safetensors::SafeTensors;
use std::collections::HashSet;
use support::{block_on, context};

/// Panics if an output is off by more than a share of the largest of its tensor: floats by 2e-6,
/// ids at all, f16 by 2e-3, since some are made of others, and devices may round them as they
/// like.
fn compare(name: &str, found: &Out) {
    let (shape, expected) = words(name).unwrap_or_else(|| panic!("there is no {name}"));
    let (dims, got, share) = match found {
        Out::Ids(found) => {
            assert_eq!(
                (found.shape().dims(), block_on(found.read()).unwrap()),
                (&shape[..], expected),
                "{name}"
            );
            return;
        }
        Out::Floats(found) => (found.shape(), block_on(found.read()).unwrap(), 2e-6),
        Out::F16s(found) => (
            found.shape(),
            block_on(found.read()).unwrap().into_iter().map(f32::from).collect(),
            2e-3,
        ),
    };
    assert_eq!(dims.dims(), shape, "{name}");
    let expected: Vec<f64> = expected.into_iter().map(|word| f32::from_bits(word).into()).collect();
    let largest = expected.iter().fold(0f64, |max, v| max.max(v.abs()));
    for (i, (&got, expected)) in got.iter().zip(&expected).enumerate() {
        let off = (f64::from(got) - expected).abs();
        assert!(off <= share * largest, "{name}: number {i} is {got}, not {expected}");
    }
}

#[test]
fn ops_and_gradients_are_those_of_pytorch() {
    let file = SafeTensors::deserialize(&GOLDEN).unwrap();
    let mut left: HashSet<&str> =
        file.names().into_iter().filter(|name| name.contains("/out")).collect();
    for (name, run) in cases() {
        if name.ends_with("_f16") && !context().capabilities().f16 {
            left.retain(|output| !output.starts_with(name));
            continue;
        }
        let mut case = Case { name, encoder: context().encoder(name) };
        let outputs = run(&mut case).unwrap_or_else(|error: Error| panic!("{name}: {error}"));
        let _ = case.encoder.submit().unwrap();
        for (i, output) in outputs.iter().enumerate() {
            let name = format!("{name}/out{i}");
            compare(&name, output);
            assert!(left.remove(name.as_str()), "{name} twice");
        }
    }
    assert!(left.is_empty(), "nothing is compared with {left:?}");
}
