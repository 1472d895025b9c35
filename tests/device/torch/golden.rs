//! The golden: inputs and results by PyTorch.

use bitnet_wgpu::{
    Encoder, Result, Tensor,
    linalg::Outcome,
    tensor::{ElementType, Float, f16},
};
use safetensors::SafeTensors;
use std::sync::LazyLock;
use support::{block_on, context, repository};

/// The file.
pub static GOLDEN: LazyLock<Vec<u8>> =
    LazyLock::new(|| std::fs::read(repository("tests/data/torch/golden.safetensors")).unwrap());

/// The inputs of a case, and where it is recorded.
pub struct Case {
    pub name: &'static str,
    pub encoder: Encoder,
}

/// Shape and bits of a tensor.
pub fn words(name: &str) -> Option<(Vec<usize>, Vec<u32>)> {
    let file = SafeTensors::deserialize(&GOLDEN).unwrap();
    let tensor = file.tensor(name).ok()?;
    let words = tensor
        .data()
        .chunks_exact(4)
        .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    Some((tensor.shape().to_vec(), words))
}

fn upload<T: ElementType>(name: &str, of: fn(u32) -> T) -> Tensor<T> {
    let (shape, words) = words(name).unwrap_or_else(|| panic!("there is no {name}"));
    let numbers: Vec<T> = words.into_iter().map(of).collect();
    let flat = context().upload(&numbers, [numbers.len()]).unwrap();
    match shape[..] {
        [] => flat.reshape([]),
        [a] => flat.reshape([a]),
        [a, b] => flat.reshape([a, b]),
        [a, b, c] => flat.reshape([a, b, c]),
        [a, b, c, d] => flat.reshape([a, b, c, d]),
        _ => panic!("{name} has {} dimensions", shape.len()),
    }
    .unwrap()
}

impl Case {
    pub fn x(&self, i: usize) -> Tensor<f32> {
        self.floats(&format!("in{i}"))
    }

    pub fn ids(&self, i: usize) -> Tensor<u32> {
        upload(&format!("{}/in{i}", self.name), |word| word)
    }

    pub fn dy(&self) -> Tensor<f32> {
        self.floats("dy")
    }

    pub fn floats<T: Float>(&self, what: &str) -> Tensor<T> {
        upload(&format!("{}/{what}", self.name), |word| T::from_f32(f32::from_bits(word)))
    }

    /// Submits what was recorded, and gives a result that is now known to be sound.
    pub fn sound<T: Send + 'static>(
        &mut self,
        record: impl FnOnce(&mut Encoder) -> Result<Outcome<T>>,
    ) -> Result<T> {
        let mut encoder = context().encoder(self.name);
        let outcome = record(&mut encoder)?;
        let _ = encoder.submit()?;
        block_on(outcome.check())
    }
}

/// What an op gives: f32, f16, or ids.
pub enum Out {
    Floats(Tensor<f32>),
    F16s(Tensor<f16>),
    Ids(Tensor<u32>),
}

impl From<Tensor<f32>> for Out {
    fn from(from: Tensor<f32>) -> Self {
        Self::Floats(from)
    }
}

impl From<Tensor<f16>> for Out {
    fn from(from: Tensor<f16>) -> Self {
        Self::F16s(from)
    }
}

impl From<Tensor<u32>> for Out {
    fn from(from: Tensor<u32>) -> Self {
        Self::Ids(from)
    }
}
