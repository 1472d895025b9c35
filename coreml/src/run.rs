//! Runs a package with Core ML, on macOS 15 or newer. It has not run on a Mac yet.

#![allow(unsafe_code, reason = "calls of Core ML")]

use crate::{
    error::{Error, Result, at},
    graph::{DECODE, PREFILL},
    package::FOLDER,
    proto::Model,
};
use objc2::{AnyThread as _, available, rc::Retained, runtime::ProtocolObject};
use objc2_core_ml::{
    MLComputeUnits, MLDictionaryFeatureProvider, MLFeatureProvider, MLFeatureValue, MLModel,
    MLModelConfiguration, MLMultiArray, MLMultiArrayDataType, MLState,
};
use objc2_foundation::{NSArray, NSDictionary, NSError, NSNumber, NSString, NSURL};
use prost::Message as _;
use std::{
    fmt, fs,
    path::Path,
    time::{Duration, Instant},
};

/// What hides a position in a mask.
const HIDDEN: f32 = -1e9;

/// Processors that Core ML may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeUnits {
    /// All of them.
    All,
    /// The CPU and the GPU.
    CpuAndGpu,
    /// The CPU and the Neural Engine, which computes in f16 only.
    CpuAndNeuralEngine,
    /// The CPU.
    Cpu,
}

impl fmt::Display for ComputeUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::All => "all",
            Self::CpuAndGpu => "CPU and GPU",
            Self::CpuAndNeuralEngine => "CPU and Neural Engine",
            Self::Cpu => "CPU",
        })
    }
}

/// What a run generated, and how long that took.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The most likely tokens, one after another.
    pub tokens: Vec<u32>,
    /// Compiling and loading.
    pub load: Duration,
    /// The prompt.
    pub prefill: Duration,
    /// All tokens but the first.
    pub decode: Duration,
}

/// Compiles and opens a package, appends a prompt, and generates `steps` tokens by the most likely
/// one.
///
/// # Errors
/// [`Error::CoreMl`] for what Core ML reports, for a macOS before 15, and for a prompt that is
/// empty or does not fit; [`Error::Io`] for a package that cannot be read.
pub fn run(
    package: impl AsRef<Path>,
    prompt: &[u32],
    steps: usize,
    units: ComputeUnits,
) -> Result<Ran> {
    if !available!(macos = 15.0) {
        return Err(Error::CoreMl("states need macOS 15".into()));
    }
    let begin = Instant::now();
    let session = Session::open(package.as_ref(), units)?;
    let load = begin.elapsed();
    if prompt.is_empty() || prompt.len() + steps > session.context {
        let context = session.context;
        return Err(Error::CoreMl(format!(
            "a prompt of {} tokens and {steps} steps; 1 to {context} tokens together are possible",
            prompt.len()
        )));
    }
    let begin = Instant::now();
    let mut logits = session.append(prompt)?;
    let prefill = begin.elapsed();
    let (begin, mut tokens) = (Instant::now(), Vec::new());
    for step in 0..steps {
        let best = logits.iter().enumerate().max_by(|x, y| x.1.total_cmp(y.1));
        let token = best.map_or(0, |(id, _)| id as u32);
        tokens.push(token);
        if step + 1 < steps {
            logits = session.call(false, &[token], prompt.len() + step)?;
        }
    }
    Ok(Ran { tokens, load, prefill, decode: begin.elapsed() })
}

/// Both functions of a package, and the state that they share.
struct Session {
    decode: Retained<MLModel>,
    prefill: Retained<MLModel>,
    state: Retained<MLState>,
    context: usize,
    chunk: usize,
}

impl Session {
    fn open(package: &Path, units: ComputeUnits) -> Result<Self> {
        let path = package.join(FOLDER).join("model.mlmodel");
        let bytes = at(&path, fs::read(&path))?;
        let sizes = Model::decode(&bytes[..]).ok().and_then(|model| sizes(&model));
        let (context, chunk) = sizes.ok_or_else(|| {
            Error::CoreMl(format!("{} is no package that this program wrote", path.display()))
        })?;
        let url = NSURL::fileURLWithPath(&NSString::from_str(&package.to_string_lossy()));
        // SAFETY: the URL is one of a file.
        #[allow(deprecated, reason = "the other interface needs a run loop of its own")]
        let compiled = ok(unsafe { MLModel::compileModelAtURL_error(&url) })?;
        let decode = open_function(&compiled, DECODE, units)?;
        let prefill = open_function(&compiled, PREFILL, units)?;
        // SAFETY: macOS is new enough, which the caller has checked.
        let state = unsafe { decode.newState() };
        Ok(Self { decode, prefill, state, context, chunk })
    }

    /// Appends a prompt: chunks, and tokens one by one where no whole chunk has room. Returns the
    /// logits after the last one.
    fn append(&self, prompt: &[u32]) -> Result<Vec<f32>> {
        let (mut first, mut logits) = (0, Vec::new());
        while first < prompt.len() {
            let has_room = first + self.chunk <= self.context;
            let tokens = prompt.len().min(first + if has_room { self.chunk } else { 1 }) - first;
            logits = self.call(has_room, &prompt[first..first + tokens], first)?;
            first += tokens;
        }
        Ok(logits)
    }

    /// Appends tokens from a position on, and returns the logits after the last one.
    fn call(&self, prefill: bool, tokens: &[u32], first: usize) -> Result<Vec<f32>> {
        let size = if prefill { self.chunk } else { 1 };
        let mut ids = vec![0; size];
        ids.iter_mut().zip(tokens).for_each(|(to, &id)| *to = id as i32);
        let positions: Vec<i32> = (first..first + size).map(|position| position as i32).collect();
        let sees = |token: usize, position: usize| position <= first + token;
        let mask: Vec<f32> = (0..size)
            .flat_map(|token| (0..self.context).map(move |position| (token, position)))
            .map(|(token, position)| if sees(token, position) { 0.0 } else { HIDDEN })
            .collect();
        let mut inputs = vec![
            ("tokens", array(&[1, size], Numbers::Ints(&ids))?),
            ("positions", array(&[size], Numbers::Ints(&positions))?),
            ("mask", array(&[1, 1, size, self.context], Numbers::Floats(&mask))?),
        ];
        let row = [tokens.len() as i32 - 1];
        if prefill {
            inputs.push(("row", array(&[1], Numbers::Ints(&row))?));
        }
        let inputs = provider(&inputs)?;
        let inputs = ProtocolObject::from_ref(&*inputs);
        let model = if prefill { &self.prefill } else { &self.decode };
        // SAFETY: the inputs are those of the function, and the state is one of the package.
        let outputs =
            ok(unsafe { model.predictionFromFeatures_usingState_error(inputs, &self.state) })?;
        // SAFETY: the output lives, and whoever has another name gets none.
        let logits = unsafe {
            let value = outputs.featureValueForName(&NSString::from_str("logits"));
            value.and_then(|value| value.multiArrayValue())
        };
        let logits = logits.ok_or_else(|| Error::CoreMl("there are no logits".into()))?;
        floats(&logits)
    }
}

/// The context and the prefill chunk of a package, in tokens.
fn sizes(model: &Model) -> Option<(usize, usize)> {
    let metadata = model.description.as_ref()?.metadata.as_ref()?;
    let size = |name: &str| metadata.user_defined.get(name)?.parse().ok();
    Some((size("context")?, size("prefill")?))
}

fn open_function(url: &NSURL, name: &str, units: ComputeUnits) -> Result<Retained<MLModel>> {
    let units = match units {
        ComputeUnits::All => MLComputeUnits::All,
        ComputeUnits::CpuAndGpu => MLComputeUnits::CPUAndGPU,
        ComputeUnits::CpuAndNeuralEngine => MLComputeUnits::CPUAndNeuralEngine,
        ComputeUnits::Cpu => MLComputeUnits::CPUOnly,
    };
    // SAFETY: macOS is new enough for names of functions, which `run` has checked.
    ok(unsafe {
        let configuration = MLModelConfiguration::new();
        configuration.setComputeUnits(units);
        configuration.setFunctionName(Some(&NSString::from_str(name)));
        MLModel::modelWithContentsOfURL_configuration_error(url, &configuration)
    })
}

enum Numbers<'a> {
    Ints(&'a [i32]),
    Floats(&'a [f32]),
}

/// An array of this shape, row by row.
fn array(shape: &[usize], numbers: Numbers<'_>) -> Result<Retained<MLMultiArray>> {
    let sizes: Vec<_> = shape.iter().map(|&size| NSNumber::new_usize(size)).collect();
    let sizes = NSArray::from_retained_slice(&sizes);
    let kind = match numbers {
        Numbers::Ints(_) => MLMultiArrayDataType::Int32,
        Numbers::Floats(_) => MLMultiArrayDataType::Float32,
    };
    let new = MLMultiArray::alloc();
    // SAFETY: the sizes are positive.
    let array = ok(unsafe { MLMultiArray::initWithShape_dataType_error(new, &sizes, kind) })?;
    // SAFETY: a new array lies row by row, has as many numbers of this type, and nobody else has it.
    #[allow(deprecated, reason = "the other interface needs blocks")]
    unsafe {
        let to = array.dataPointer();
        match numbers {
            Numbers::Ints(from) => {
                to.cast::<i32>().copy_from_nonoverlapping(pointer(from), from.len())
            }
            Numbers::Floats(from) => {
                to.cast::<f32>().copy_from_nonoverlapping(pointer(from), from.len());
            }
        }
    }
    Ok(array)
}

fn pointer<T>(numbers: &[T]) -> std::ptr::NonNull<T> {
    std::ptr::NonNull::from(numbers).cast()
}

/// The numbers of an array `[1, 1, count]` of f32.
fn floats(array: &MLMultiArray) -> Result<Vec<f32>> {
    // SAFETY: the array's own size, type and strides say where its numbers are; it lives meanwhile.
    #[allow(deprecated, reason = "the other interface needs blocks")]
    unsafe {
        if array.dataType() != MLMultiArrayDataType::Float32 {
            return Err(Error::CoreMl("logits are not in f32".into()));
        }
        let stride = array.strides().lastObject().map_or(1, |stride| stride.as_isize());
        let from = array.dataPointer().cast::<f32>();
        Ok((0..array.count()).map(|at| from.offset(at * stride).read()).collect())
    }
}

fn provider(
    inputs: &[(&str, Retained<MLMultiArray>)],
) -> Result<Retained<MLDictionaryFeatureProvider>> {
    let names: Vec<_> = inputs.iter().map(|(name, _)| NSString::from_str(name)).collect();
    let names: Vec<&NSString> = names.iter().map(|name| &**name).collect();
    // SAFETY: the arrays live.
    let value = |array: &MLMultiArray| unsafe { MLFeatureValue::featureValueWithMultiArray(array) };
    let values: Vec<_> = inputs.iter().map(|(_, array)| value(array).into()).collect();
    let dictionary = NSDictionary::from_retained_objects(&names, &values);
    let new = MLDictionaryFeatureProvider::alloc();
    // SAFETY: the values are feature values.
    ok(unsafe { MLDictionaryFeatureProvider::initWithDictionary_error(new, &dictionary) })
}

/// A result with the error's own text.
fn ok<T>(result: std::result::Result<T, Retained<NSError>>) -> Result<T> {
    result.map_err(|error| Error::CoreMl(error.localizedDescription().to_string()))
}
