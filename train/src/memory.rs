//! How much memory a run takes on a GPU, before anything is allocated.

use crate::{
    error::{Error, Result},
    plan::{Kind, ParameterInfo, Plan, Step},
    settings::{LinearMode, Precision, Settings},
    teacher::Teacher,
};
use bitnet_wgpu::{Context, Error as LibraryError, formats::ModelConfig};

/// Bytes per trained number: the weight, its gradient, two means.
const TRAINED: u64 = 16;

/// Bytes of an estimate, on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Weights, gradients and the optimizer's means; a teacher's weights.
    pub weights: u64,
    /// Activations of a micro-batch, which are kept for the gradients.
    pub activations: u64,
}

/// Returns an estimate for a run.
///
/// # Errors
/// [`Error::Setting`] for adapters that do not fit the model.
pub fn estimate(
    config: &ModelConfig,
    plan: &Plan,
    settings: &Settings,
    teacher: Option<&Teacher>,
) -> Result<Memory> {
    let numbers = |all: &[ParameterInfo]| all.iter().map(ParameterInfo::numbers).sum::<u64>();
    let (trained, frozen) = match &settings.lora {
        None => (numbers(&plan.parameters), 0),
        Some(lora) => (numbers(&lora.adapters(plan)?.0), plan.parameters.iter().map(frozen).sum()),
    };
    let tokens = (settings.batch * settings.context) as u64;
    let kept: u64 =
        plan.layers.iter().flatten().map(|step| kept(step, config, plan, settings)).sum();
    // The residual stream and the final norm.
    let kept = kept + 2 * config.hidden as u64;
    // The embedding has its gradient for a while before it is added.
    let table = match &settings.lora {
        None => 4 * plan.parameters[plan.embedding].numbers(),
        Some(_) => 0,
    };
    // What goes into a teacher's LM head is kept until the loss.
    let taught = teacher.map_or(0, |teacher| teacher.config().hidden as u64);
    let teacher = teacher.map_or(0, |teacher| teacher.parameters().map(|(_, bytes)| bytes).sum());
    let activations = 4 * tokens * (kept + taught) + table;
    Ok(Memory { weights: TRAINED * trained + frozen + teacher, activations })
}

/// Bytes of a weight that does not learn: a ternary matrix, or floats.
fn frozen(info: &ParameterInfo) -> u64 {
    match info.kind {
        Kind::Linear => info.packed_bytes(),
        _ => 4 * info.numbers(),
    }
}

/// Numbers of 4 bytes that a step keeps for each token.
fn kept(step: &Step, config: &ModelConfig, plan: &Plan, settings: &Settings) -> u64 {
    let shape = |&part: &usize| {
        let shape = &plan.parameters[part].shape;
        (shape[0] as u64, shape[1] as u64)
    };
    let heads = |heads: usize| (heads * config.head_dim) as u64;
    match step {
        Step::Norm(gain) => plan.parameters[*gain].shape[0] as u64,
        Step::Linear(parts) => {
            let input = parts.first().map_or(0, |part| shape(part).1);
            let rank = settings.lora.as_ref().map_or(0, |lora| lora.rank as u64);
            // Ternary weights are made anew in each step, and kept with its activations: little.
            match settings.linear {
                _ if settings.precision == Precision::Mixed && settings.lora.is_none() => {
                    input.div_ceil(2)
                }
                LinearMode::Dense => input,
                _ => input + rank * parts.len() as u64,
            }
        }
        Step::HeadNorms { .. } => heads(config.heads) + heads(config.kv_heads),
        // Queries and the output, keys and values, sums of the softmax.
        Step::Attention => 2 * (heads(config.heads) + heads(config.kv_heads)) + config.heads as u64,
        Step::Gate => 2 * config.intermediate as u64,
        Step::Add => 0,
    }
}

/// Checks that the device can bind each tensor, and that a memory limit has room for the run.
///
/// # Errors
/// [`LibraryError::TooLarge`]; [`Error::Memory`], which names the setting to change.
pub fn check(
    context: &Context,
    config: &ModelConfig,
    plan: &Plan,
    settings: &Settings,
    teacher: Option<&Teacher>,
) -> Result<()> {
    let limit = context.capabilities().max_binding_bytes;
    let bytes = |info: &ParameterInfo| match &settings.lora {
        Some(_) => frozen(info),
        None => 4 * info.numbers(),
    };
    let own = plan.parameters.iter().map(|info| (info, bytes(info)));
    let others = teacher.into_iter().flat_map(Teacher::parameters);
    for (info, bytes) in own.chain(others) {
        if bytes > limit {
            let what = info.name.clone();
            return Err(LibraryError::TooLarge { what, bytes, limit }.into());
        }
    }
    let Memory { weights, activations } = estimate(config, plan, settings, teacher)?;
    let Some(limit) = context.memory_stats().limit else { return Ok(()) };
    let advice = match (weights > limit, settings.batch, &settings.lora) {
        (true, ..) if teacher.is_some() => "take a smaller student, or a smaller teacher",
        (true, _, None) => "take a smaller model, or train adapters of one that exists",
        (true, _, Some(_)) => "take a lower rank, or a smaller model",
        (false, 1, _) => "take a shorter context",
        (false, ..) => "take a smaller batch with more accumulation, or a shorter context",
    };
    match weights.saturating_add(activations) > limit {
        true => Err(Error::Memory { weights, activations, limit, advice }),
        false => Ok(()),
    }
}
