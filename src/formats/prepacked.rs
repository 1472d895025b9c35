//! The prepacked model file: a safetensors file of tensors as kernels read them, so that loading packs
//! nothing again. It is one file, with configuration and tokenizer.
//!
//! A matrix `NAME` is `NAME.codes` `[rows, words]`, ternary words as `weights/ternary/layout.rs`
//! has them, and `NAME.scales` `[rows, groups]`; where scales go per group of columns, the metadata
//! `NAME.group` says of how many. Matrices of one input are one, with their rows one after another:
//! `self_attn.q_proj+k_proj+v_proj`. A dense embedding or head is `NAME.elements` in its own type,
//! its rows padded by zeros to whole 16 bytes; in 8 bits it has `NAME.scales` `[rows]`. Norms are
//! `NAME`. All tensors begin at multiples of [`ALIGNMENT`] bytes of the file, behind others that
//! only fill gaps.

use super::{
    config::ModelConfig,
    families,
    format_error::FormatError,
    model_file::ModelFile,
    read_options::ReadOptions,
    safetensors::SafeTensors,
    tensors::{self, Matrix, end_tensors, finite, layer_tensors, tensor_names},
};
use crate::{
    error::Result,
    weights::{
        dense::{DenseElement, PackedDense},
        ternary::{layout::row_words, packed::PackedTernary, scales},
    },
};
use safetensors::Dtype;
use serde::de::DeserializeOwned;
use std::{collections::HashSet, ops::Range, path::Path};

/// The metadata `format`.
pub const FORMAT: &str = "bitnet-wgpu prepacked";

/// The metadata `version`: another one where tensors lie otherwise, or the configuration says more.
pub const VERSION: &str = "2";

/// The bytes of a file of which tensors begin at a multiple.
pub const ALIGNMENT: usize = 64;

/// The tensor with the bytes of a tokenizer.json.
pub const TOKENIZER: &str = "tokenizer.json";

/// What tensors that only fill a gap are named, and a number.
pub const PADDING: &str = "padding.";

/// The type that dense elements have in a file.
pub fn dtype(element: DenseElement) -> Dtype {
    match element {
        DenseElement::F32 => Dtype::F32,
        DenseElement::F16 => Dtype::F16,
        DenseElement::Bf16 => Dtype::BF16,
        DenseElement::Int8 => Dtype::I8,
    }
}

/// The name under which matrices that are stacked are stored: the first's, and how the others end.
pub fn stacked_name(names: &[impl AsRef<str>]) -> String {
    let mut names = names.iter().map(AsRef::as_ref);
    let first = names.next().unwrap_or_default().to_owned();
    names.fold(first, |name, other: &str| name + "+" + other.rsplit('.').next().unwrap_or_default())
}

/// Its name for the n-th layer.
pub fn stack_name(layer: usize, parts: &[Matrix]) -> String {
    stacked_name(
        &parts.iter().map(|part| format!("model.layers.{layer}.{}", part.name)).collect::<Vec<_>>(),
    )
}

/// A model in the prepacked model file.
pub struct Prepacked {
    file: SafeTensors,
    config: ModelConfig,
}

impl Prepacked {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io); [`Error::Format`](crate::Error::Format) for a file that is
    /// damaged, or is something else; [`Error::Unsupported`](crate::Error::Unsupported) for one of
    /// another version.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let file = SafeTensors::open(path)?;
        let problem = match (file.metadata("format"), file.metadata("version")) {
            (Some(FORMAT), Some(VERSION)) => None,
            (Some(FORMAT), Some(version)) => Some(FormatError::Unsupported(format!(
                "has version {version} of the prepacked format; version {VERSION} is supported: convert the source model again"
            ))),
            (Some(FORMAT), None) => Some("is a prepacked model file without a version".into()),
            (format, _) => Some(
                format!(
                    "is not a prepacked model file: its format is {}, `{FORMAT}` is needed; open other models by their directory, with config.json",
                    format.map_or("missing".to_owned(), |format| format!("`{format}`"))
                )
                .into(),
            ),
        };
        if let Some(problem) = problem {
            return Err(problem.at(file.path()));
        }
        let mut config: ModelConfig =
            json(&file, "config")?.ok_or_else(|| file.error("has no config".into()))?;
        if config.sub_norms && config.projection_norms {
            return Err(file.error("its config has sub_norms beside projection_norms".into()));
        }
        if families::of_name(&config.architecture).is_none() {
            let what = format!("its config: architecture `{}` is unknown", config.architecture);
            return Err(file.error(what));
        }
        config.generation = config.generation.of_vocabulary(config.vocab);
        let config = config.checked().map_err(|what| file.error(format!("its config: {what}")))?;
        Ok(Self { file, config })
    }

    /// Sets how the file is read. Only [`ReadOptions::quantized_activations`] applies.
    pub fn with_options(mut self, options: ReadOptions) -> Self {
        let stored = self.config.quantized_activations;
        self.config.quantized_activations = options.quantized_activations.unwrap_or(stored);
        self
    }

    /// The bytes of the tokenizer.json, and what else is said of the tokenizer, if there is one.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format).
    #[cfg(feature = "models")]
    pub fn tokenizer<T: DeserializeOwned>(&self) -> Result<Option<(Vec<u8>, T)>> {
        let Some(settings) = json(&self.file, "tokenizer")? else { return Ok(None) };
        let length = self.file.size(TOKENIZER).unwrap_or(0);
        let most = crate::limits::tokenizer::MOST_JSON;
        if length > most {
            return Err(self
                .file
                .error(format!("`{TOKENIZER}` has {length} bytes; {most} are supported")));
        }
        Ok(Some((self.file.numbers(TOKENIZER, Dtype::U8, &[length])?, settings)))
    }

    fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        let wrong = |what: String| self.file.error(format!("`{name}` {what}"));
        let group = self.file.metadata(&format!("{name}.group"));
        let size = |text: &str| {
            text.parse().ok().filter(|&size: &usize| size > 0).ok_or_else(|| {
                wrong(format!("has groups of `{text}` columns; a positive number is needed"))
            })
        };
        let group = group.map(size).transpose()?;
        let words =
            self.file.numbers(&format!("{name}.codes"), Dtype::U32, &[rows, row_words(columns)])?;
        let scales = self.file.numbers(
            &format!("{name}.scales"),
            Dtype::F32,
            &[rows, scales::groups(columns, group)],
        )?;
        let matrix = PackedTernary::from_words(
            rows,
            columns,
            words,
            scales::Scales::compress(group, scales),
        );
        matrix.map_err(|error| wrong(format!("is not as kernels read it: {error}")))
    }

    /// The stack that has the matrix of this name: its name, its rows, and which of these are the
    /// matrix's.
    fn stack_of(&self, name: &str) -> Option<(String, usize, Range<usize>)> {
        let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let tensors = layer_tensors(&self.config);
        let parts: &Vec<Matrix> = tensors
            .matrices()
            .into_iter()
            .find(|parts| parts.iter().any(|matrix| matrix.name == part))?;
        let rows = |parts: &[Matrix]| parts.iter().map(|matrix| matrix.rows).sum();
        let at = parts.iter().position(|matrix| matrix.name == part)?;
        Some((
            stack_name(layer.parse().ok()?, parts),
            rows(parts),
            rows(&parts[..at])..rows(&parts[..=at]),
        ))
    }

    /// The names of all tensors that a model of this configuration may have.
    fn known(&self) -> HashSet<String> {
        let (layer, ends) = (layer_tensors(&self.config), end_tensors(&self.config));
        let layers = 0..self.config.layers;
        let stacks = layers
            .clone()
            .flat_map(|n| layer.matrices().into_iter().map(move |parts| stack_name(n, parts)));
        let ternary =
            |name: String| ["codes", "scales"].map(|part| format!("{name}.{part}")).to_vec();
        let table = |table: &Matrix| match (
            self.file.contains(&format!("{}.codes", table.name)),
            format!("{}.elements", table.name),
        ) {
            (true, _) => ternary(table.name.to_owned()),
            (_, elements) if self.file.dtype(&elements) == Some(Dtype::I8) => {
                vec![elements, format!("{}.scales", table.name)]
            }
            (_, elements) => vec![elements],
        };
        let tables = [&ends.embedding].into_iter().chain(&ends.untied_head).flat_map(table);
        let matrices = stacks.flat_map(ternary).chain(tables);
        let tokenizer = self.file.metadata("tokenizer").map(|_| TOKENIZER.to_owned());
        let gains = layer.vectors().into_iter().map(|gains| gains.name).collect::<Vec<_>>();
        let norms =
            layers.flat_map(|n| gains.iter().map(move |name| format!("model.layers.{n}.{name}")));
        matrices.chain(norms).chain([ends.norm.name.to_owned()]).chain(tokenizer).collect()
    }
}

/// What the metadata have under a key, in JSON.
fn json<T: DeserializeOwned>(file: &SafeTensors, key: &str) -> Result<Option<T>> {
    let read = |text| {
        serde_json::from_str(text).map_err(|error| file.error(format!("its {key}: {error}")))
    };
    file.metadata(key).map(read).transpose()
}

impl ModelFile for Prepacked {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn check_unused(&self) -> Result<()> {
        if !tensor_names(&self.config).iter().all(|name| self.contains(name)) {
            // What is missing says more; reading it names it.
            return Ok(());
        }
        let known = self.known();
        let fills = |name: &str| {
            name.starts_with(PADDING) && self.file.size(name).is_some_and(|size| size < ALIGNMENT)
        };
        let unused =
            self.file.names().into_iter().filter(|name| !known.contains(name) && !fills(name));
        tensors::unused(unused).map_err(|problem| problem.at(self.file.path()))
    }

    fn contains(&self, name: &str) -> bool {
        let stored = self.stack_of(name).map_or_else(|| name.to_owned(), |(stack, ..)| stack);
        self.file.contains(name)
            || ["codes", "elements"]
                .iter()
                .any(|part| self.file.contains(&format!("{stored}.{part}")))
    }

    fn linear(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        match self.stack_of(name) {
            Some((_, _, own)) if own.len() != rows => {
                Err(self.file.error(format!("`{name}` has {} rows, not {rows}", own.len())))
            }
            Some((stack, all, own)) if all > rows => {
                Ok(self.matrix(&stack, all, columns)?.part(own))
            }
            _ => self.matrix(name, rows, columns),
        }
    }

    fn stacked(
        &self,
        names: &[&str],
        rows: usize,
        columns: usize,
    ) -> Result<Option<PackedTernary>> {
        self.matrix(&stacked_name(names), rows, columns).map(Some)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        finite(self.file.numbers(name, Dtype::F32, &[len])?, |what| {
            self.file.error(format!("`{name}` {what}"))
        })
    }

    fn dense(&self, name: &str, rows: usize, columns: usize) -> Result<PackedDense> {
        if rows > 1 && self.file.contains(name) {
            // A router's matrix, which is stored as norms are.
            let numbers = self.vector(name, rows * columns)?;
            return PackedDense::from_f32(rows, columns, &numbers);
        }
        let stored = format!("{name}.elements");
        let wrong = |what: String| self.file.error(format!("`{stored}` {what}"));
        let all = [DenseElement::F32, DenseElement::F16, DenseElement::Bf16, DenseElement::Int8];
        let found = self
            .file
            .dtype(&stored)
            .ok_or_else(|| self.file.error(format!("no tensor `{stored}`")))?;
        let element = all.into_iter().find(|&element| dtype(element) == found);
        let element =
            element.ok_or_else(|| wrong(format!("is {found}; F32, F16, BF16 or I8 is needed")))?;
        let padded = element.row_words(columns) * 4 / element.bytes();
        let words = self.file.numbers(&stored, found, &[rows, padded])?;
        let scales = match element {
            DenseElement::Int8 => {
                self.file.numbers(&format!("{name}.scales"), Dtype::F32, &[rows])?
            }
            _ => Vec::new(),
        };
        let matrix = PackedDense::from_words(element, rows, columns, words, scales);
        tensors::finite_matrix(
            matrix.map_err(|error| wrong(format!("is not as kernels read it: {error}")))?,
            wrong,
        )
    }

    fn ternary_table(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Option<PackedTernary>> {
        self.file
            .contains(&format!("{name}.codes"))
            .then(|| self.matrix(name, rows, columns))
            .transpose()
    }
}
