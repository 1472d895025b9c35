//! Writes a model directory with the linear layers packed, as transformers reads it or in another
//! [`Form`], one tensor at a time: at most one matrix is in memory.

use super::{
    checkpoint::Checkpoint,
    float_weights,
    input_files::{companions, input_files},
    model_file::ModelFile,
    safetensors::TensorBytes,
    tensors::layer_tensors,
};
use crate::{
    error::{Error, Result, at},
    files::{
        self,
        read::check_input,
        write::{AtomicFile, check_new_output, check_no_input},
    },
    limits::files::MOST_COMPANION,
    weights::ternary::{packed::PackedTernary, scales::Scales},
};
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";

/// Progress of [`write_packed`], [`write_mlx`](super::write_mlx) and
/// [`write_gguf`](super::write_gguf): one tensor that has been written.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenTensor {
    /// Its name.
    pub name: String,
    /// How many tensors have been written, this one included.
    pub done: usize,
    /// How many tensors there are.
    pub total: usize,
    /// Bytes in the input.
    pub bytes_before: u64,
    /// Bytes in the output; in the packed form, including the scale.
    pub bytes_after: u64,
    /// For a matrix that was quantized, the relative error ‖W - βWq‖ / ‖W‖.
    pub error: Option<f64>,
}

/// Writes `checkpoint` to the directory `output` with the linear layers of its blocks packed:
/// `uint8` weights and a `weight_scale` that multiplies (`linear_class` `autobitlinear`,
/// `quantization_mode` `offline`). Float weights are quantized by their absmean; other tensors and
/// the tokenizer's files are copied. `progress` is called after each tensor. Files are written
/// under other names and renamed when they are complete, config.json last: where there is no room
/// for the weights, what was in `output` stays.
///
/// # Errors
/// [`Error::Io`], also if `output` holds a model and `force` is not set, or if `output` is the
/// input; [`Error::Format`] for weights that cannot be packed, [`Error::Unsupported`] for floats of
/// a model that was not trained for it ([`ReadOptions::quantize`](super::ReadOptions::quantize)), and for a model whose
/// activations are floats.
pub fn write_packed(
    checkpoint: &Checkpoint,
    output: impl AsRef<Path>,
    force: bool,
    mut progress: impl FnMut(&WrittenTensor),
) -> Result<()> {
    if !checkpoint.config().quantized_activations {
        let message = "has float activations; the packed form is for quantized ones. If the source does not say, \
                       ReadOptions::quantized_activations does (--activations int8 on the command line)";
        return Err(Error::Unsupported {
            path: checkpoint.path().to_owned(),
            message: message.into(),
        });
    }
    checkpoint
        .config()
        .check_written()
        .map_err(|message| Error::Unsupported { path: checkpoint.path().to_owned(), message })?;
    write_directory(checkpoint, output.as_ref(), force, &Transformers, &mut progress)
}

/// What the linear layers of a written directory are stored as.
pub(super) trait Form {
    /// The tensors of a matrix: the ends of their names, types and shapes. The first of them is
    /// its `weight`.
    fn parts(&self, rows: usize, columns: usize) -> Vec<(&'static str, Dtype, Vec<usize>)>;

    /// The bytes of these tensors.
    ///
    /// # Errors
    /// [`Error::Format`] for scales that the form does not have.
    fn bytes(&self, stored: &TensorBytes<'_>, matrix: &PackedTernary) -> Result<Vec<Vec<u8>>>;

    /// Says in config.json how they are stored.
    fn describe(&self, checkpoint: &Checkpoint, config: &mut Value);
}

/// Four codes a byte, and a scale that multiplies.
struct Transformers;

impl Form for Transformers {
    fn parts(&self, rows: usize, columns: usize) -> Vec<(&'static str, Dtype, Vec<usize>)> {
        vec![
            ("weight", Dtype::U8, vec![rows.div_ceil(4), columns]),
            ("weight_scale", Dtype::F32, vec![1]),
        ]
    }

    fn bytes(&self, stored: &TensorBytes<'_>, matrix: &PackedTernary) -> Result<Vec<Vec<u8>>> {
        match matrix.scales() {
            Scales::Tensor(scale) => {
                Ok(vec![matrix.to_transformers(), scale.to_le_bytes().to_vec()])
            }
            _ => Err(stored.error("has more than one scale")),
        }
    }

    fn describe(&self, checkpoint: &Checkpoint, config: &mut Value) {
        config["quantization_config"] = json!({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"});
        if checkpoint.config().projection_norms {
            config["quantization_config"]["use_rms_norm"] = true.into();
            config["quantization_config"]["rms_norm_eps"] = checkpoint.config().eps.into();
        }
    }
}

/// Writes the directory `output`: the linear layers in `form`, other tensors and the tokenizer's
/// files as they are. Files are written under other names and renamed when they are complete,
/// config.json last.
pub(super) fn write_directory(
    checkpoint: &Checkpoint,
    output: &Path,
    force: bool,
    form: &impl Form,
    progress: &mut impl FnMut(&WrittenTensor),
) -> Result<()> {
    if checkpoint.config().experts.is_some() {
        let message = "is a mixture of experts, which is written as a prepacked file only".into();
        return Err(Error::Unsupported { path: checkpoint.path().to_owned(), message });
    }
    let companions = companions(checkpoint.path())?;
    companions
        .iter()
        .try_for_each(|name| check_input(&checkpoint.path().join(name), MOST_COMPANION))?;
    let targets = [PathBuf::from(WEIGHTS), PathBuf::from(CONFIG)]
        .into_iter()
        .chain(companions.iter().cloned());
    let targets: Vec<_> = targets.map(|name| output.join(name)).collect();
    check_targets(checkpoint.path(), output, &targets, force)?;
    at(output, fs::create_dir_all(output))?;
    let mut weights = AtomicFile::create(&output.join(WEIGHTS))?;
    write_tensors(checkpoint, form, &mut weights, progress)?;
    weights.sync()?;
    let config_path = output.join(CONFIG);
    // Without a config.json an unfinished model cannot be opened, so new weights are never read
    // with an old config's scale rule.
    if config_path.exists() {
        at(&config_path, fs::remove_file(&config_path))?;
    }
    weights.commit()?;
    for name in &companions {
        let target = output.join(name);
        if let Some(folder) = target.parent() {
            at(folder, fs::create_dir_all(folder))?;
        }
        files::write(&target, &files::read(checkpoint.path().join(name), MOST_COMPANION)?)?;
    }
    let mut config = checkpoint.config_json().clone();
    form.describe(checkpoint, &mut config);
    files::write(&config_path, format!("{config:#}\n").as_bytes())
}

/// Checks, before anything is read, that these files may be written to the directory `output`.
fn check_targets(input: &Path, output: &Path, targets: &[PathBuf], force: bool) -> Result<()> {
    let refuse = |why: &str| at(output, Err(io::Error::new(io::ErrorKind::AlreadyExists, why)));
    if let (Ok(a), Ok(b)) = (input.canonicalize(), output.canonicalize())
        && a == b
    {
        return refuse("is the input");
    }
    let names = [CONFIG, WEIGHTS, "model.safetensors.index.json"];
    if !force && names.iter().any(|name| output.join(name).exists()) {
        return refuse("has a model already");
    }
    let inputs = input_files(input)?;
    targets.iter().try_for_each(|target| check_no_input(target, &inputs))?;
    targets.iter().try_for_each(|target| check_new_output(target))
}

/// A tensor's entry in the output's header; offsets in bytes from the beginning of the data.
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

/// The output's tensors, and the end of their data in bytes.
#[derive(Default)]
pub struct Layout {
    entries: BTreeMap<String, Entry>,
    pub end: usize,
}

impl Layout {
    pub fn add(&mut self, name: String, dtype: Dtype, shape: &[usize], bytes: usize) {
        let start = self.end;
        self.end += bytes;
        self.entries.insert(name, Entry { dtype, shape: shape.to_vec(), start, end: self.end });
    }

    /// The file up to its data: the header's length, and the header with what the file says of
    /// itself, padded with spaces until data begins at a multiple of `alignment` bytes.
    pub fn header(&self, metadata: Value, alignment: usize) -> Vec<u8> {
        let entry = |(name, entry): (&String, &Entry)| {
            let info = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [entry.start, entry.end]});
            (name.clone(), info)
        };
        let mut header: Map<String, Value> = self.entries.iter().map(entry).collect();
        header.insert("__metadata__".into(), metadata);
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize((8 + header.len()).next_multiple_of(alignment) - 8, b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header].concat()
    }

    fn start(&self, name: &str) -> u64 {
        self.entries.get(name).map_or(0, |entry| entry.start as u64)
    }

    /// Where a tensor of this name, type and shape begins, if it has been added.
    #[cfg(feature = "models")]
    pub fn find(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Option<usize> {
        self.entries
            .get(name)
            .filter(|entry| entry.dtype == dtype && entry.shape == shape)
            .map(|entry| entry.start)
    }
}

/// The linear layers: name, rows, columns.
fn linears(checkpoint: &Checkpoint) -> Vec<(String, usize, usize)> {
    let tensors = layer_tensors(checkpoint.config());
    let matrices: Vec<_> = tensors.matrices().into_iter().flatten().collect();
    let layer = |layer| {
        matrices.iter().map(move |matrix| {
            (format!("model.layers.{layer}.{}", matrix.name), matrix.rows, matrix.columns)
        })
    };
    (0..checkpoint.config().layers).flat_map(layer).collect()
}

/// Where tensors are in the file: those that are kept, then each part of all matrices, the weights
/// last.
fn packed_layout(
    checkpoint: &Checkpoint,
    form: &impl Form,
    copied: &[String],
    linears: &[(String, usize, usize)],
) -> Result<Layout> {
    let mut layout = Layout::default();
    for name in copied {
        let (file, stored) = checkpoint.place_of(name)?;
        if let (Some(dtype), Some(shape), Some(size)) =
            (file.dtype(stored), file.shape(stored), file.size(stored))
        {
            layout.add(name.clone(), dtype, shape, size);
        }
    }
    for part in (0..form.parts(0, 0).len()).rev() {
        for (name, rows, columns) in linears {
            let (end, dtype, shape) = form.parts(*rows, *columns).swap_remove(part);
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            layout.add(format!("{name}.{end}"), dtype, &shape, bytes);
        }
    }
    Ok(layout)
}

fn write_tensors(
    checkpoint: &Checkpoint,
    form: &impl Form,
    out: &mut AtomicFile,
    progress: &mut impl FnMut(&WrittenTensor),
) -> Result<()> {
    let linears = linears(checkpoint);
    let packed = |name: &str| {
        name.rsplit_once('.').is_some_and(|(name, _)| linears.iter().any(|linear| linear.0 == name))
    };
    let copied: Vec<String> = checkpoint.names().into_iter().filter(|name| !packed(name)).collect();
    let layout = packed_layout(checkpoint, form, &copied, &linears)?;
    let header = layout.header(json!({"format": "pt"}), 8);
    out.reserve((header.len() + layout.end) as u64)?;
    out.write_at(0, &header)?;
    let mut put =
        |name: &str, bytes: &[u8]| out.write_at(header.len() as u64 + layout.start(name), bytes);
    let total = copied.len() + linears.len();
    for (i, name) in copied.into_iter().enumerate() {
        let bytes = checkpoint.tensor(&name)?.bytes;
        put(&name, &bytes)?;
        let size = bytes.len() as u64;
        progress(&WrittenTensor {
            name,
            done: i + 1,
            total,
            bytes_before: size,
            bytes_after: size,
            error: None,
        });
    }
    let done = total - linears.len();
    for (i, (name, rows, columns)) in linears.iter().enumerate() {
        let weight = format!("{name}.weight");
        let stored = checkpoint.tensor(&weight)?;
        let matrix = ModelFile::linear(checkpoint, name, *rows, *columns)?;
        let parts = form.bytes(&stored, &matrix)?;
        for ((end, ..), bytes) in form.parts(*rows, *columns).iter().zip(&parts) {
            put(&format!("{name}.{end}"), bytes)?;
        }
        progress(&WrittenTensor {
            name: weight,
            done: done + i + 1,
            total,
            bytes_before: stored.bytes.len() as u64,
            bytes_after: parts.iter().map(|bytes| bytes.len() as u64).sum(),
            error: quantisation_error(&stored, &matrix)?,
        });
    }
    Ok(())
}

/// What quantizing the floats of a matrix has moved; none where they were integers, or ternary with
/// several scales already.
pub(super) fn quantisation_error(
    stored: &TensorBytes<'_>,
    matrix: &PackedTernary,
) -> Result<Option<f64>> {
    let was_packed =
        matches!(stored.dtype, Dtype::U8 | Dtype::U32) || float_weights::has_several_scales(matrix);
    Ok(if was_packed {
        None
    } else {
        Some(float_weights::relative_error(&stored.to_f32()?, matrix))
    })
}
