//! Small random models of odd shapes (tests/data/models) against transformers, on every engine.
//! Their prompts were chosen so that no activation lies near a code's boundary: there, correct
//! implementations agree to float rounding. And properties of sessions, on the same models.

mod goldens;
mod sessions;
mod weights;

use bitnet_wgpu::{formats::Checkpoint, internals::CheckpointInternals as _, model::Model};
use safetensors::{Dtype, tensor::TensorView};
use support::{files::Directory, models::directory};

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Ten times what transformers, an f64 reference and one in f32 with integer sums are apart; one
/// flipped code would be a hundred times more.
const TOLERANCE: f32 = 2e-4;
/// Where activations are not quantized they are rounded, by at most 2^-14.98 of the largest of 128, and of
/// these small models fewer errors cancel out than of others.
const ROUNDED: f32 = 2e-2;

/// Recurrent layers norm what a head has read, which may be little beside what it is the sum of.
const RECURRENT: f32 = 4e-2;

fn tolerance(model: &Model) -> f32 {
    match model.config().quantized_activations {
        _ if model.config().hybrid.is_some() => RECURRENT,
        true => TOLERANCE,
        false => ROUNDED,
    }
}

/// A copy of a small model, its config.json and its tensors changed.
fn changed(
    name: &str,
    config: impl Fn(&mut serde_json::Value),
    tensor: impl Fn(&str, &mut Vec<u8>) -> Option<String>,
) -> Directory {
    let checkpoint = Checkpoint::open(directory(name)).unwrap();
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for name in checkpoint.names() {
        let stored = checkpoint.tensor(&name).unwrap();
        let mut bytes = stored.bytes.to_vec();
        let copy = tensor(&name, &mut bytes)
            .map(|copy| (copy, stored.dtype, stored.shape.to_vec(), bytes.clone()));
        tensors.push((name, stored.dtype, stored.shape.to_vec(), bytes));
        tensors.extend(copy);
    }
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let mut json = checkpoint.config_json().clone();
    config(&mut json);
    let copy = Directory::temporary();
    copy.write("model.safetensors", safetensors::serialize(views, None).unwrap());
    copy.write("config.json", json.to_string());
    copy
}
