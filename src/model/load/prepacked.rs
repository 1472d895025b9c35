//! Writes prepacked model files, a layer at a time.

use super::{builder::ModelBuilder, files};
use crate::{
    error::{Error, Result, at},
    files::write::{AtomicFile, check_new_output, check_no_input},
    formats::{
        FormatError, ModelConfig, ModelFile,
        prepacked::{ALIGNMENT, FORMAT, PADDING, Prepacked, TOKENIZER, VERSION, dtype, stack_name},
        tensors::{end_tensors, layer_tensors},
        write::Layout,
    },
    model::{
        engine::layers::{HostEnds, HostLayer, HostTable},
        tokenizer::text::{Settings, Tokenizer},
    },
    weights::{dense::PackedDense, ternary::packed::PackedTernary},
};
use safetensors::Dtype;
use serde::Serialize;
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

impl ModelBuilder<'_> {
    /// Writes the model as one prepacked model file: weights as kernels read them, stacked and
    /// aligned, so that they load without being packed again, with the configuration and the
    /// tokenizer, if it has one that can be used. The file opens as any other model, and its results
    /// are bit-identical. It is safetensors, with metadata and a version of this crate's: another
    /// release of the crate may read another version only, and the file is then written again from
    /// the model.
    ///
    /// Of the options, [`int8_head`](Self::int8_head), [`ignore_unused`](Self::ignore_unused) and
    /// [`progress`](Self::progress) apply. The model is read twice, the first time to see what
    /// tensors there will be. The file takes its name when it is complete.
    ///
    /// ```
    /// use bitnet_wgpu::model::Model;
    ///
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// let path = std::env::temp_dir().join("tales-22m.safetensors");
    /// Model::builder("assets/tales-22m").write_prepacked(&path, true)?;
    /// let model = Model::builder(&path).cpu().build()?;
    /// assert!(model.encode_prompt("Once upon a time")?.len() > 1);
    /// # std::fs::remove_file(path).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`], also if `output` exists and `overwrite` is not set; [`Error::Format`] for a
    /// model that changes while it is read; otherwise as [`ModelBuilder::build`].
    pub fn write_prepacked(self, output: impl AsRef<Path>, overwrite: bool) -> Result<()> {
        let Self { source, settings, mut progress, .. } = self;
        let output = output.as_ref();
        if !overwrite && output.exists() {
            return at(output, Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists already")));
        }
        source.with(|file, tokenizer, files| {
            if let Some(files) = files {
                check_no_input(output, &files.paths()?)?;
            }
            check_new_output(output)?;
            let config = files::config(file)?;
            config.check_written().map_err(invalid)?;
            if !settings.ignore_unused {
                file.check_unused()?;
            }
            let tokenizer = tokenizer.as_ref().ok().map(Tokenizer::stored).transpose()?;
            let path = files.map_or(Path::new("the model"), |files| &files.path);
            let layers = config.layers;
            let model = Contents { file, path, config, int8_head: settings.int8_head, tokenizer };
            model.write(output, &mut |done| {
                if let Some(progress) = &mut progress {
                    progress(done, 2 * layers);
                }
            })
        })
    }
}

/// What is written.
struct Contents<'a> {
    file: &'a dyn ModelFile,
    /// Where it is read from, for errors.
    path: &'a Path,
    config: ModelConfig,
    int8_head: bool,
    /// A tokenizer.json, and what else is known of the tokenizer.
    tokenizer: Option<(String, Settings)>,
}

impl Contents<'_> {
    fn write(&self, output: &Path, progress: &mut dyn FnMut(usize)) -> Result<()> {
        let (layout, mut metadata) = self.layout(progress)?;
        // It is in the scales.
        let stored = ModelConfig { query_scale: 1.0, residual_scale: 1.0, ..self.config.clone() };
        let entries = [
            ("format", FORMAT.to_owned()),
            ("version", VERSION.into()),
            ("config", json(&stored)?),
        ];
        metadata.extend(entries.map(|(key, value)| (key.to_owned(), value.into())));
        if let Some((_, settings)) = &self.tokenizer {
            metadata.insert("tokenizer".into(), json(settings)?.into());
        }
        let header = layout.header(Value::Object(metadata), ALIGNMENT);
        if let Some(folder) = output.parent() {
            at(folder, fs::create_dir_all(folder))?;
        }
        let mut out = AtomicFile::create(output)?;
        out.reserve((header.len() + layout.end) as u64)?;
        out.write_at(0, &header)?;
        let layers = self.config.layers;
        self.parts(&mut |done| progress(layers + done), &mut |part| {
            let changed = || {
                FormatError::from(format!("changed while it was read: `{}`", part.name))
                    .at(self.path)
            };
            let start = layout.find(&part.name, part.dtype, &part.shape).ok_or_else(changed)?;
            out.write_at((header.len() + start) as u64, part.bytes)
        })?;
        let written = Prepacked::open(out.partial())?;
        if let Some((json, settings)) = written.tokenizer()? {
            Tokenizer::from_stored(&json, settings)?;
        }
        if written.config() != &stored {
            return Err(invalid("the file cannot express the model's configuration".into()));
        }
        out.commit()
    }

    /// Returns where each tensor will be in the file, and the metadata of those in groups.
    fn layout(&self, progress: &mut dyn FnMut(usize)) -> Result<(Layout, Map<String, Value>)> {
        let (mut layout, mut metadata) = (Layout::default(), Map::new());
        self.parts(progress, &mut |part| {
            let gap = layout.end.next_multiple_of(ALIGNMENT) - layout.end;
            if gap > 0 {
                layout.add(format!("{PADDING}{}", layout.end), Dtype::U8, &[gap], gap);
            }
            if let Some(group) = part.group {
                let name = part.name.trim_end_matches(".scales");
                metadata.insert(format!("{name}.group"), group.to_string().into());
            }
            layout.add(part.name, part.dtype, &part.shape, part.bytes.len());
            Ok(())
        })?;
        Ok((layout, metadata))
    }

    /// Gives all tensors of the model to `take`, in the order in which they are loaded.
    fn parts(&self, progress: &mut dyn FnMut(usize), take: Take<'_>) -> Result<()> {
        let &Self { file, ref config, int8_head, .. } = self;
        if let Some((json, _)) = &self.tokenizer {
            let (name, bytes) = (TOKENIZER.into(), json.as_bytes());
            take(Part { name, dtype: Dtype::U8, shape: vec![bytes.len()], bytes, group: None })?;
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
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| invalid(error.to_string()))
}

fn invalid(what: String) -> Error {
    Error::Invalid { op: "write_prepacked", what }
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
