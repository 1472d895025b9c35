//! Writes a model in the native container, a layer at a time.

use super::files::{self, LoadOptions, ModelFiles};
use crate::{
    error::{Error, Result, at},
    files::write::{AtomicFile, check_new_output, check_no_input},
    formats::{
        ModelConfig, ModelFile, Problem,
        native::{ALIGNMENT, FORMAT, Native, PADDING, TOKENIZER, VERSION, dtype, stack_name},
        tensors::{end_tensors, layer_tensors},
        write::Layout,
    },
    model::{
        engine::layers::{HostEnds, HostLayer, HostTable},
        tokenizer::text::Tokenizer,
    },
    weights::{dense::PackedDense, ternary::packed::PackedTernary},
};
use safetensors::Dtype;
use serde_json::{Map, Value};
use std::{fs, io, path::Path};

/// A tensor of the file, and what the metadata say of it.
struct Part<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: &'a [u8],
    group: Option<usize>,
}

/// Where parts go.
type Take<'a> = &'a mut dyn FnMut(Part<'_>) -> Result<()>;

/// Writes a model as one file in the native container: its weights as kernels read them, stacked
/// and aligned, so that they are loaded without being packed again, with its configuration and its
/// tokenizer, if it has one that can be used. It opens as any other model, and computes the same
/// bits. It is safetensors, with metadata of this crate's and a version: another release of the
/// crate may read another version only, and the file is to be made again from the model.
///
/// Of the options, it takes `int8_head`, `ignore_unused` and `progress`. The model is read twice,
/// the first time to see what tensors there will be. The file takes its name when it is complete.
///
/// ```
/// use bitnet_wgpu::model::{LoadOptions, Model, ModelFiles, write_native};
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let files = ModelFiles::open("assets/tales-22m", &LoadOptions::default())?;
/// let path = std::env::temp_dir().join("tales-22m.safetensors");
/// write_native(&files, &path, true, LoadOptions::default())?;
/// let model = Model::load_cpu(&path)?;
/// assert_eq!(model.encode_prompt("Once upon a time")?, files.encode_prompt("Once upon a time")?);
/// # std::fs::remove_file(path).unwrap();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Io`], also if `output` exists and `force` is not set; [`Error::Format`] for a model
/// that becomes another while it is read; else as [`Model::load`](crate::model::Model::load).
pub fn write_native(
    files: &ModelFiles,
    output: impl AsRef<Path>,
    force: bool,
    mut options: LoadOptions<'_>,
) -> Result<()> {
    let output = output.as_ref();
    if !force && output.exists() {
        return at(output, Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists already")));
    }
    check_no_input(output, &files.paths()?)?;
    check_new_output(output)?;
    let config = files::config(&*files.file)?;
    if !options.ignore_unused {
        files.file.check_unused()?;
    }
    let tokenizer =
        files.tokenizer.as_ref().ok().map(|tokenizer| tokenizer.stored()).transpose()?;
    let mut progress = |done| {
        if let Some(progress) = &mut options.progress {
            progress(done, 2 * config.layers);
        }
    };
    let json = tokenizer.as_ref().map(|(json, _)| json.as_bytes());
    let (mut layout, mut metadata) = (Layout::default(), Map::new());
    parts(&*files.file, &config, options.int8_head, json, &mut progress, &mut |part| {
        let gap = layout.end.next_multiple_of(ALIGNMENT) - layout.end;
        if gap > 0 {
            layout.add(format!("{PADDING}{}", layout.end), Dtype::U8, &[gap], gap);
        }
        if let Some(group) = part.group {
            metadata.insert(
                format!("{}.group", part.name.trim_end_matches(".scales")),
                group.to_string().into(),
            );
        }
        layout.add(part.name, part.dtype, &part.shape, part.bytes.len());
        Ok(())
    })?;
    let text = |value: serde_json::Result<String>| {
        value.map_err(|error| Error::Invalid { op: "write_native", what: error.to_string() })
    };
    // It is in the scales.
    let stored = ModelConfig { residual_scale: 1.0, ..config.clone() };
    metadata.extend(
        [
            ("format", FORMAT.to_owned()),
            ("version", VERSION.into()),
            ("config", text(serde_json::to_string(&stored))?),
        ]
        .map(|(key, value)| (key.to_owned(), value.into())),
    );
    if let Some((_, settings)) = &tokenizer {
        metadata.insert("tokenizer".into(), text(serde_json::to_string(settings))?.into());
    }
    let header = layout.header(Value::Object(metadata), ALIGNMENT);
    if let Some(folder) = output.parent() {
        at(folder, fs::create_dir_all(folder))?;
    }
    let mut out = AtomicFile::create(output)?;
    out.reserve((header.len() + layout.end) as u64)?;
    out.write_at(0, &header)?;
    parts(
        &*files.file,
        &config,
        options.int8_head,
        json,
        &mut |done| progress(config.layers + done),
        &mut |part| {
            let changed = || {
                Problem::from(format!("became another while it was read: `{}`", part.name))
                    .at(&files.origin.path)
            };
            let start = layout.find(&part.name, part.dtype, &part.shape).ok_or_else(changed)?;
            out.write_at((header.len() + start) as u64, part.bytes)
        },
    )?;
    let made = Native::open(out.partial())?;
    if let Some((json, settings)) = made.tokenizer()? {
        Tokenizer::from_stored(&json, settings)?;
    }
    match made.config() == &stored {
        true => out.commit(),
        false => Err(Error::Invalid {
            op: "write_native",
            what: "the configuration has a value that the file cannot store".into(),
        }),
    }
}

/// Gives all tensors of a model to `take`, in the order in which they are loaded.
fn parts(
    file: &dyn ModelFile,
    config: &ModelConfig,
    int8_head: bool,
    tokenizer: Option<&[u8]>,
    progress: &mut dyn FnMut(usize),
    take: Take<'_>,
) -> Result<()> {
    if let Some(bytes) = tokenizer {
        take(Part {
            name: TOKENIZER.into(),
            dtype: Dtype::U8,
            shape: vec![bytes.len()],
            bytes,
            group: None,
        })?;
    }
    let (ends, names) = (HostEnds::read(file, int8_head)?, end_tensors(config));
    table(names.embedding.name, &ends.embedding, take)?;
    vector(names.norm.name.into(), &ends.norm, take)?;
    if let (Some(name), Some(head)) = (&names.untied_head, &ends.untied_head) {
        table(name.name, head, take)?;
    }
    drop(ends);
    let names = layer_tensors(config);
    for index in 0..config.layers {
        progress(index);
        let layer = HostLayer::read(file, index)?;
        for (parts, w) in names.matrices().into_iter().zip(layer.matrices()) {
            matrix(&stack_name(index, parts), w, take)?;
        }
        for (gains, values) in names.vectors().into_iter().zip(layer.vectors()) {
            vector(format!("model.layers.{index}.{}", gains.name), values, take)?;
        }
    }
    progress(config.layers);
    Ok(())
}

fn table(name: &str, table: &HostTable, take: Take<'_>) -> Result<()> {
    let w: &PackedDense = match table {
        HostTable::Ternary(w) => return matrix(name, w, take),
        HostTable::Dense(w) => w,
    };
    let bytes: &[u8] = bytemuck::cast_slice(w.words());
    let shape = vec![w.rows(), bytes.len() / w.rows() / w.element().bytes()];
    take(Part {
        name: format!("{name}.elements"),
        dtype: dtype(w.element()),
        shape,
        bytes,
        group: None,
    })?;
    if w.scales().is_empty() {
        return Ok(());
    }
    vector(format!("{name}.scales"), w.scales(), take)
}

fn matrix(name: &str, w: &PackedTernary, take: Take<'_>) -> Result<()> {
    let (scales, codes) = (w.row_scales(), bytemuck::cast_slice(w.words()));
    take(Part {
        name: format!("{name}.codes"),
        dtype: Dtype::U32,
        shape: vec![w.rows(), w.row_words()],
        bytes: codes,
        group: None,
    })?;
    let (shape, bytes) = (vec![w.rows(), scales.len() / w.rows()], bytemuck::cast_slice(&scales));
    take(Part { name: format!("{name}.scales"), dtype: Dtype::F32, shape, bytes, group: w.group() })
}

fn vector(name: String, values: &[f32], take: Take<'_>) -> Result<()> {
    take(Part {
        name,
        dtype: Dtype::F32,
        shape: vec![values.len()],
        bytes: bytemuck::cast_slice(values),
        group: None,
    })
}
