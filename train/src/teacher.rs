//! A model from whose distribution a student learns.

use crate::{
    error::{Error, Result},
    lesson::Lesson,
    network::{Batch, Network, Parts, Weight},
    plan::{Kind, ParameterInfo, Plan},
    settings::{LinearMode, Precision, Settings},
    source::{Source, Stored},
};
use bitnet_wgpu::{
    Context,
    formats::ModelConfig,
    model::Tokenizer,
    weights::{PackedTernary, Scales},
};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// How much of a loss is the teacher's, and at which temperature.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distillation {
    /// What the logits of both are divided by: above 1, more tokens count.
    pub temperature: f32,
    /// The weight of the teacher's distribution, 0 to 1; the text's own tokens have the rest.
    pub share: f32,
}

impl Default for Distillation {
    fn default() -> Self {
        Self { temperature: 2.0, share: 0.9 }
    }
}

impl Distillation {
    fn check(self) -> Result<()> {
        if !(1e-3..=1e3).contains(&self.temperature) {
            let accepted = "0.001 to 1000 is supported";
            return Err(Error::setting("the temperature", self.temperature, accepted));
        }
        if !(0.0..=1.0).contains(&self.share) {
            let accepted = "0 to 1 is supported";
            return Err(Error::setting("the teacher's share", self.share, accepted));
        }
        Ok(())
    }
}

/// A model from whose distribution a student learns, with ternary weights, or with floats that are
/// taken as they are.
pub struct Teacher {
    source: Source,
    plan: Plan,
    linear: LinearMode,
    /// Columns that share a scale.
    group: usize,
    distillation: Distillation,
}

impl Teacher {
    /// Opens a model directory in safetensors.
    ///
    /// # Errors
    /// [`Error::Setting`] for a temperature or a share out of range; [`Error::Unsupported`] for a
    /// model that the forward pass of training does not compute; [`Error::Library`] for its files.
    pub fn open(folder: impl AsRef<Path>, distillation: Distillation) -> Result<Self> {
        distillation.check()?;
        let source = Source::from_weights(folder)?;
        let plan = Plan::new(source.config())?;
        let linear = plan.parameters.iter().find(|info| info.kind == Kind::Linear);
        let (mut linear_mode, mut group) = (LinearMode::Float, usize::MAX);
        match linear.map(|info| source.stored(info)).transpose()? {
            Some(Stored::Float(_)) => linear_mode = LinearMode::Dense,
            Some(Stored::Ternary(matrix)) => {
                if let Scales::Groups { size, .. } = matrix.scales() {
                    group = *size;
                }
                if source.config().quantized_activations {
                    linear_mode = LinearMode::Int8;
                }
            }
            None => {}
        }
        Ok(Self { source, plan, linear: linear_mode, group, distillation })
    }

    /// Returns the model's configuration.
    pub fn config(&self) -> &ModelConfig {
        self.source.config()
    }

    /// Returns whether its weights are ternary, so that the library runs it.
    pub fn is_ternary(&self) -> bool {
        self.linear != LinearMode::Dense
    }

    /// Checks that a student has the same tokens.
    ///
    /// # Errors
    /// [`Error::Teacher`], with what differs.
    pub fn check(&self, student: &ModelConfig, context: usize) -> Result<()> {
        let own = self.config();
        if own.vocab != student.vocab {
            let (own, student) = (own.vocab, student.vocab);
            return Err(self.problem(format!(
                "has a vocab_size of {own}, and the student one of {student}; the same one is needed"
            )));
        }
        if own.context < context {
            let own = own.context;
            return Err(self.problem(format!(
                "has a context of {own} tokens; {context} are needed, as a window has"
            )));
        }
        Ok(())
    }

    /// Checks that a student's tokenizer has the same tokens as the teacher's.
    ///
    /// # Errors
    /// [`Error::Teacher`], with the first token that differs; what a tokenizer reports.
    pub fn check_tokenizer(&self, own: &Tokenizer, student: &Tokenizer) -> Result<()> {
        let (size, other) = (own.vocab_size(), student.vocab_size());
        if size != other {
            return Err(self.problem(format!(
                "has a tokenizer of {size} tokens, and the student one of {other}; the same one is needed"
            )));
        }
        for id in 0..size as u32 {
            let name = |tokenizer: &Tokenizer| tokenizer.decode_with_special(&[id]).ok();
            let (name, other) = (name(own), name(student));
            if name != other {
                let [name, other] = [name, other].map(Option::unwrap_or_default);
                return Err(self.problem(format!(
                    "has the token {id} `{name}`, which is `{other}` in the student's tokenizer; the same one is needed"
                )));
            }
        }
        Ok(())
    }

    fn problem(&self, problem: String) -> Error {
        let path = self.source.path().unwrap_or(Path::new("")).to_owned();
        Error::Teacher { path, problem }
    }

    /// Returns the teacher's weights and their bytes on a GPU.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (&ParameterInfo, u64)> {
        let bytes = |info: &ParameterInfo| match info.kind {
            Kind::Linear if self.is_ternary() => {
                let scales = info.shape[0] * info.shape[1].div_ceil(self.group);
                info.numbers().div_ceil(4) + 4 * scales as u64
            }
            _ => 4 * info.numbers(),
        };
        self.plan.parameters.iter().map(move |info| (info, bytes(info)))
    }

    /// Uploads the weights.
    pub(crate) fn load(self, context: &Context, settings: &Settings) -> Result<Tutor> {
        let (mut weights, mut hash) = (Vec::new(), 0xcbf2_9ce4_8422_2325u64);
        let mut mix = |word: u32| hash = (hash ^ u64::from(word)).wrapping_mul(0x100_0000_01b3);
        for info in &self.plan.parameters {
            let stored = self.source.stored(info)?;
            let is_float = matches!(stored, Stored::Float(_));
            if info.kind == Kind::Linear && is_float == self.is_ternary() {
                return Err(self.problem(format!(
                    "has `{}` in floats or ternary, unlike other linear layers",
                    info.name
                )));
            }
            weights.push(match stored {
                Stored::Ternary(matrix) => {
                    matrix.words().iter().copied().for_each(&mut mix);
                    scales(&matrix).into_iter().for_each(|scale| mix(scale.to_bits()));
                    Weight::Ternary(matrix.upload(context)?)
                }
                Stored::Float(numbers) => {
                    numbers.iter().for_each(|number| mix(number.to_bits()));
                    Weight::Float(context.upload(&numbers, info.dimensions())?)
                }
            });
        }
        let (adapters, parameters) = (vec![None; weights.len()], Vec::new());
        let state = TeacherState { weights: format!("{hash:016x}"), mix: self.distillation };
        let parts = Parts { plan: self.plan, weights, trained: Vec::new(), parameters, adapters };
        let mut settings = Settings { linear: self.linear, lora: None, ..settings.clone() };
        // Of int8 activations, products are exact.
        if self.linear == LinearMode::Int8 {
            settings.precision = Precision::F32;
        }
        let mut network = Network::new(context, self.source.config(), parts, &settings)?;
        network.frozen = true;
        Ok(Tutor { network, state })
    }
}

fn scales(matrix: &PackedTernary) -> Vec<f32> {
    match matrix.scales() {
        Scales::Tensor(scale) => vec![*scale],
        Scales::Segments(all) => all.iter().map(|(_, scale)| *scale).collect(),
        Scales::Groups { scales, .. } => scales.clone(),
        _ => Vec::new(),
    }
}

/// A teacher as state.json has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TeacherState {
    /// A number of its weights, in hexadecimal digits.
    pub weights: String,
    pub mix: Distillation,
}

impl TeacherState {
    /// Returns the name of the first of its parts that differs.
    pub fn difference(own: Option<&Self>, other: Option<&Self>) -> Option<&'static str> {
        match (own, other) {
            (None, None) => None,
            (Some(own), Some(other)) if own.weights == other.weights => {
                let (own, other) = (own.mix, other.mix);
                let parts = [
                    ("temperature", own.temperature == other.temperature),
                    ("teacher's share", own.share == other.share),
                ];
                parts.into_iter().find(|(_, same)| !same).map(|(name, _)| name)
            }
            _ => Some("teacher"),
        }
    }
}

/// A teacher on a GPU.
pub struct Tutor {
    pub network: Network,
    pub state: TeacherState,
}

impl Tutor {
    /// Records and submits the teacher's forward pass.
    ///
    /// # Errors
    /// What the ops report.
    pub fn lesson(&self, batch: &Batch) -> Result<Lesson> {
        let head = self.network.float(self.network.plan.head)?.clone();
        let Distillation { temperature, share } = self.state.mix;
        Ok(Lesson { states: self.network.states(batch)?, head, temperature, share })
    }
}
