//! A session in a file: safetensors with the tokens of every sequence (`tokens.0`), and their keys
//! and values by layer (`keys.0.0`: sequence, layer), `[tokens, kv_heads, head_dim]`; and what
//! recurrent layers keep (`state.0.0`: sequence, recurrent layer).

use crate::{
    error::{Result, at},
    files::write::AtomicFile,
    formats::{
        FormatError, Hybrid, ModelConfig, SafeTensors,
        tensors::{LayerStep, finite},
    },
    model::engine::layers::{HostEnds, HostLayer},
    ops::transformer::{AttentionShape, HostKvCache},
    weights::ternary::packed::PackedTernary,
};
use half::f16;
use safetensors::{Dtype, tensor::TensorView};
use std::{borrow::Cow, collections::HashMap, io, path::Path};

const FORMAT: &str = "bitnet-wgpu session 1";

/// The tokens and the KV cache of some sequences.
pub(crate) struct Saved {
    pub tokens: Vec<Vec<u32>>,
    /// By layer, then sequence.
    pub layers: Vec<Vec<HostKvCache>>,
    /// What recurrent layers keep, by sequence, then recurrent layer.
    pub states: Vec<Vec<Vec<f32>>>,
}

/// A tensor of the file.
struct Part<'a> {
    name: String,
    kind: Dtype,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

fn f16s(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect()
}

/// Tells models apart: keys and values mean nothing to another. Everything that a layer computes
/// with goes in, of the weights every 7th word; by FNV-1a.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    pub fn new(config: &ModelConfig, ends: &HostEnds) -> Self {
        let mut print = Self(0xcbf2_9ce4_8422_2325);
        let c = config;
        print.add(
            [c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim, c.vocab].map(|size| size as u32),
        );
        print.add([c.eps.to_bits(), c.activation as u32]);
        print.add(c.rope_frequencies().iter().map(|frequency| frequency.to_bits()));
        // What came later adds nothing to models without it, whose sessions lie in files.
        print.add(c.rope_factor().map(f32::to_bits));
        print.add((!c.quantized_activations).then_some(1));
        print.add((c.embedding_scale != 1.0).then_some(c.embedding_scale.to_bits()));
        if let Some(local) = &c.local {
            print.add([local.window as u32, local.rope_theta.to_bits()]);
            print.add(local.layers.iter().map(|&local| u32::from(local)));
        }
        if let Some(rotary) = c.rotary {
            print.add([rotary.dims as u32, rotary.local_only.into()]);
        }
        if let Some(experts) = c.experts {
            print.add([experts.count as u32, experts.used as u32, experts.normalized.into()]);
            print.add(experts.gate_limit.map(f32::to_bits));
        }
        if let Some(hadamard) = &c.hadamard {
            print.add([hadamard.block as u32, u32::from(hadamard.embedding)]);
            print.add(hadamard.signs.values().flatten().map(|sign| sign.to_bits()));
        }
        if let Some(h) = &c.hybrid {
            let sizes = [h.kernel, h.key_heads, h.value_heads, h.key_dim, h.value_dim, h.rotary];
            print.add(sizes.map(|size| size as u32));
            print.add([h.tiled, h.regrouped].map(u32::from));
            print.add(h.recurrent.iter().map(|&recurrent| u32::from(recurrent)));
        }
        print.add(ends.embedding.words().iter().step_by(7).copied());
        print.add(ends.embedding.scales().into_iter().map(f32::to_bits));
        print
    }

    /// Of what comes after the layers.
    pub fn of_ends(config: &ModelConfig, ends: &HostEnds) -> Self {
        let mut print = Self(0xcbf2_9ce4_8422_2325);
        print.add(config.eos.iter().copied());
        print.add((config.logit_scale != 1.0).then_some(config.logit_scale.to_bits()));
        print.add(config.hadamard.as_ref().map(|hadamard| u32::from(hadamard.head)));
        print.add(ends.norm.iter().map(|gain| gain.to_bits()));
        print.add(ends.head().words().iter().step_by(7).copied());
        print.add(ends.head().scales().into_iter().map(f32::to_bits));
        print
    }

    pub fn add_layer(&mut self, layer: &HostLayer) {
        self.add(layer.0.iter().map(kind));
        self.add(layer.vectors().into_iter().flatten().map(|gain| gain.to_bits()));
        for matrix in layer.matrices() {
            self.add(matrix.words().iter().step_by(7).copied());
            self.add(matrix.row_scales().iter().map(|scale| scale.to_bits()));
        }
    }

    fn add(&mut self, words: impl IntoIterator<Item = u32>) {
        self.0 = words
            .into_iter()
            .fold(self.0, |hash, word| (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3));
    }
}

/// A number for each kind of step.
fn kind(step: &LayerStep<PackedTernary, Vec<f32>>) -> u32 {
    match step {
        LayerStep::Norm(_) => 0,
        LayerStep::Linear(_) => 1,
        LayerStep::HeadNorms { .. } => 2,
        LayerStep::Attention => 3,
        LayerStep::Gate => 4,
        LayerStep::Add => 5,
        LayerStep::KeepGate => 6,
        LayerStep::OutputGate => 7,
        LayerStep::DeltaRates { .. } => 8,
        LayerStep::Delta(_) => 9,
        LayerStep::Experts(_) => 10,
    }
}

impl Saved {
    /// Writes the file, in `f16` where that is what the numbers are. It is complete, or not there.
    pub fn write(&self, path: &Path, print: Fingerprint, half: bool) -> Result<()> {
        let mut parts = Vec::new();
        for (s, tokens) in self.tokens.iter().enumerate() {
            let bytes = bytemuck::cast_slice(tokens).into();
            parts.push(Part {
                name: format!("tokens.{s}"),
                kind: Dtype::U32,
                shape: vec![tokens.len()],
                bytes,
            });
            let layers = self.layers.iter().enumerate();
            // Recurrent layers have no keys.
            for (l, layer) in layers.filter(|(_, layer)| layer[s].len() == tokens.len()) {
                let AttentionShape { kv_heads, head_dim, .. } = layer[s].shape();
                for (name, numbers) in [("keys", layer[s].keys()), ("values", layer[s].values())] {
                    let (kind, bytes) = if half {
                        (Dtype::F16, f16s(numbers).into())
                    } else {
                        (Dtype::F32, bytemuck::cast_slice(numbers).into())
                    };
                    parts.push(Part {
                        name: format!("{name}.{s}.{l}"),
                        kind,
                        shape: vec![tokens.len(), kv_heads, head_dim],
                        bytes,
                    });
                }
            }
        }
        for (s, states) in self.states.iter().enumerate() {
            parts.extend(states.iter().enumerate().map(|(n, state)| Part {
                name: format!("state.{s}.{n}"),
                kind: Dtype::F32,
                shape: vec![1, 1, state.len()],
                bytes: bytemuck::cast_slice(state).into(),
            }));
        }
        let metadata =
            HashMap::from([("format".into(), FORMAT.into()), ("model".into(), print.name())]);
        let views = parts.iter().map(|part| {
            Ok((&part.name, TensorView::new(part.kind, part.shape.clone(), &part.bytes)?))
        });
        let views = views.collect::<Result<Vec<_>, _>>();
        let write = |partial: &Path| {
            views.and_then(|views| safetensors::serialize_to_file(views, Some(metadata), partial))
        };
        let file = AtomicFile::create(path)?;
        at(path, write(file.partial()).map_err(io::Error::other))?;
        file.commit()
    }

    /// Reads the file of a session of this model.
    pub fn read(path: &Path, print: Fingerprint, config: &ModelConfig) -> Result<Self> {
        let file = SafeTensors::open(path)?;
        let damaged = |message: String| FormatError::from(message).at(path);
        if file.metadata("format") != Some(FORMAT) {
            return Err(damaged(format!(
                "is not a saved session: its format is `{}`, not `{FORMAT}`",
                file.metadata("format").unwrap_or_default()
            )));
        }
        if file.metadata("model") != Some(&print.name()) {
            return Err(damaged(
                "is a session of another model, or of this one loaded with other options".into(),
            ));
        }
        let sequences = (0..).take_while(|s| file.contains(&format!("tokens.{s}"))).count();
        let tokens =
            (0..sequences).map(|s| tokens(&file, s, config.vocab)).collect::<Result<Vec<_>>>()?;
        let cache = |l, s: usize| {
            if config.is_recurrent(l) {
                return HostKvCache::new(config.attention());
            }
            let read = |name| {
                numbers(
                    &file,
                    &format!("{name}.{s}.{l}"),
                    [tokens[s].len(), config.kv_heads, config.head_dim],
                )
            };
            HostKvCache::from_parts(config.attention(), read("keys")?, read("values")?)
        };
        let layers = (0..config.layers)
            .map(|l| (0..sequences).map(|s| cache(l, s)).collect())
            .collect::<Result<_>>()?;
        let recurrent = config.hybrid.as_ref().map_or((0, 0), Hybrid::kept);
        let state = |s, n| numbers(&file, &format!("state.{s}.{n}"), [1, 1, recurrent.1]);
        let states = (0..sequences)
            .map(|s| (0..recurrent.0).map(|n| state(s, n)).collect())
            .collect::<Result<_>>()?;
        Ok(Self { tokens, layers, states })
    }
}

impl Fingerprint {
    fn name(self) -> String {
        format!("{:016x}", self.0)
    }
}

fn tokens(file: &SafeTensors, sequence: usize, vocab: usize) -> Result<Vec<u32>> {
    let tensor = file.tensor(&format!("tokens.{sequence}"))?;
    if tensor.dtype != Dtype::U32 || tensor.shape.len() != 1 {
        return Err(tensor.error(format!(
            "is {} of shape {:?}; a list of U32 is needed",
            tensor.dtype, tensor.shape
        )));
    }
    let tokens: Vec<u32> = tensor
        .bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    match tokens.iter().find(|&&id| id as usize >= vocab) {
        Some(id) => Err(tensor.error(format!("has token {id}; the vocabulary has {vocab}"))),
        None => Ok(tokens),
    }
}

fn numbers(file: &SafeTensors, name: &str, shape: [usize; 3]) -> Result<Vec<f32>> {
    let tensor = file.tensor(name)?;
    if tensor.shape != shape {
        return Err(tensor.error(format!("has shape {:?}; {shape:?} is needed", tensor.shape)));
    }
    finite(tensor.to_f32()?, |what| tensor.error(what))
}
