//! What only this crate's tests, benchmarks and tools use. Anything here may change in any release.

use crate::{
    error::Result,
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        declaration::Kernel,
        source::{Part, Source},
    },
    language::ShaderLanguage,
    ops::bitnet::{self, BlockFloatActivations},
};
pub use crate::{
    gpu::{capabilities::SubmissionLimit, recording::Dispatch, tensor::Residency},
    kernel::{
        binding::Access,
        declaration::{Grid, Variant},
        needs::{Needs, TensorCore},
        source::{HOLE, REDUCE, Work},
    },
    ops::{
        bitnet::{
            host_activations::MAX_FEATURES,
            plan::{layout, plan},
        },
        catalog,
    },
};
#[cfg(feature = "formats")]
pub use formats::{
    Activation, CheckpointInternals, Ends, Experts, FormatError, Gains, GenerationDefaults,
    GgufModel, Hadamard, Hybrid, Layer, LayerStep, Matrix, ModelConfigInternals, ModelFormat,
    RopeScaling, RotaryOrder, SafeTensors, Stack, config_from_json, end_tensors, identify,
    layer_tensors,
};
#[cfg(feature = "models")]
pub use models::{
    GenerateOptionsInternals, ModelBuilderInternals, ModelFilesInternals, ModelGraphInternals,
    ModelInternals, ModelPart, TokenizerInternals,
};

#[cfg(feature = "grammar")]
pub use grammar::GrammarWalk;

/// Records the norm and the conversion to block floating point of rows `first..` of `x`, as many as
/// `out` has: what models do before the LM head.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the gain or `out` does not fit.
pub fn rms_norm_block_float_into(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    first: usize,
    (gain, eps): (&Tensor<f32>, f32),
    out: &BlockFloatActivations,
) -> Result<()> {
    bitnet::rms_norm_block_float_into(encoder, x, first, gain, eps, out)
}

/// Records rows by the expert that they use, `[rows]`, and tiles of up to `tile` rows with one
/// expert, `[1 + tiles, 4]`: their number, then for each an expert, where its rows begin, and how
/// many they are.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) for more than 512 experts, and for tiles of no row.
pub fn sort_experts(
    encoder: &mut Encoder,
    chosen: &Tensor<u32>,
    experts: usize,
    tile: usize,
) -> Result<(Tensor<u32>, Tensor<u32>)> {
    bitnet::sort_experts::sort_experts(encoder, chosen, experts, tile)
}

/// Whether the sources of a kernel agree with its declaration.
pub mod contract {
    pub use crate::kernel::contract::{check, workgroup_bytes};
}

/// Reads files with a bound, writes them atomically, and names them without control characters.
pub mod files {
    pub use crate::files::{
        display::display,
        read::{read, read_stream},
        write::{check_output, write},
    };
}

/// Declares a trait that makes methods of a type public.
macro_rules! expose {
    ($(#[$meta:meta])* $trait:ident for $type:ident {
        $(fn $name:ident$(<$life:lifetime>)?(&$($of:lifetime)? self $(, $argument:ident: $ty:ty)*) -> $result:ty;)+
    }) => {
        $(#[$meta])*
        #[allow(
            missing_docs,
            clippy::missing_errors_doc,
            reason = "the methods have their documentation where they are"
        )]
        pub trait $trait {
            $(fn $name$(<$life>)?(&$($of)? self $(, $argument: $ty)*) -> $result;)+
        }

        impl $trait for $type {
            $(fn $name$(<$life>)?(&$($of)? self $(, $argument: $ty)*) -> $result {
                $type::$name(self $(, $argument)*)
            })+
        }
    };
}

expose! {
    /// The sources and variants of a [`Kernel`].
    KernelInternals for Kernel {
        fn language(&self, preferred: ShaderLanguage) -> ShaderLanguage;
        fn needs(&self, variant: &Variant) -> Needs;
        fn parts<'a>(&'a self, source: &'a Source) -> impl Iterator<Item = &'a Part>;
        fn source(&self, language: ShaderLanguage) -> Option<&Source>;
        fn source_for(&self, preferred: ShaderLanguage) -> &Source;
        fn sources(&self) -> &[Source];
        fn joined_source(&self, variant: &Variant) -> String;
        fn uses_fused(&self, preferred: ShaderLanguage) -> bool;
        fn uses_subgroups(&self) -> bool;
        fn variants(&self) -> Vec<Variant>;
        fn workgroups(&self, language: ShaderLanguage, extent: [usize; 3], limit: u32) -> [u64; 3];
    }
}

/// What tests and tools use of files.
#[cfg(feature = "formats")]
mod formats {
    pub use crate::formats::{
        config::Activation,
        family::RotaryOrder,
        format_error::FormatError,
        generation::GenerationDefaults,
        gguf::model::GgufModel,
        hadamard::Hadamard,
        hybrid::Hybrid,
        open::{ModelFormat, identify},
        rope::RopeScaling,
        safetensors::SafeTensors,
        tensors::{
            Ends, Experts, Gains, Layer, LayerStep, Matrix, Stack, end_tensors, layer_tensors,
        },
    };
    use crate::{
        error::Result,
        formats::{Checkpoint, ModelConfig, ScaleRule},
        weights::PackedTernary,
    };
    use serde_json::Value;

    /// Reads the contents of a config.json.
    ///
    /// # Errors
    /// [`FormatError`] for a key that is missing, out of range or not supported.
    pub fn config_from_json(json: &Value) -> Result<ModelConfig, FormatError> {
        ModelConfig::from_json(json)
    }

    expose! {
        /// Whether queries and keys of a [`ModelConfig`] have norms.
        ModelConfigInternals for ModelConfig {
            fn qk_norms(&self) -> bool;
        }
    }

    expose! {
        /// The configuration and matrices of a [`Checkpoint`].
        CheckpointInternals for Checkpoint {
            fn config_json(&self) -> &Value;
            fn scale_rule(&self) -> Option<ScaleRule>;
            fn ternary_with_rows(&self, name: &str, rows: usize) -> Result<PackedTernary>;
        }
    }
}

/// What tests and tools use of models.
#[cfg(feature = "models")]
mod models {
    pub use crate::model::engine::interface::ModelPart;
    use crate::{
        error::{Error, Result},
        formats::{GgufVocabulary, ModelConfig},
        gpu::{recording::Recording, tensor::Tensor},
        model::{
            GenerateOptions, Message, Model, ModelBuilder, ModelFiles, SessionOptions, Tokenizer,
        },
        ops::bitnet::Gate,
    };
    use std::path::PathBuf;

    expose! {
        /// The layers and kernels of a [`Model`].
        ModelInternals for Model {
            fn layer_output(&self, layer: usize, hidden: &[f32]) -> impl Future<Output = Result<Vec<f32>>> + Send;
            fn parts(&self, options: SessionOptions) -> Result<Vec<ModelPart>>;
            fn record_prompt(&self, ids: &[u32]) -> Result<(Recording, Tensor<f32>)>;
            fn record_step(&self, sequences: usize, past: usize) -> Result<Recording>;
            fn weight_bytes(&self) -> usize;
        }
    }

    expose! {
        /// What the graph of a [`ModelConfig`] computes with: the gate's activation function, and
        /// the cosine and sine of every rotary angle, `[positions, head_dim / 2, 2]`.
        ModelGraphInternals for ModelConfig {
            fn gate(&self) -> Gate;
            fn rope_angles(&self, positions: usize) -> Vec<f32>;
        }
    }

    expose! {
        /// The paths and errors of [`ModelFiles`].
        ModelFilesInternals for ModelFiles {
            fn paths(&self) -> Result<Vec<PathBuf>>;
            fn problems(&self) -> impl Iterator<Item = Error>;
        }
    }

    expose! {
        /// The size of a session for [`GenerateOptions`].
        GenerateOptionsInternals for GenerateOptions {
            fn room(&self, sequences: usize, prompt: usize, context: usize) -> Result<SessionOptions>;
        }
    }

    /// A [`Tokenizer`] of a GGUF file, and the tokens of whole conversations.
    #[allow(
        missing_docs,
        clippy::missing_errors_doc,
        reason = "the methods have their documentation where they are"
    )]
    pub trait TokenizerInternals: Sized {
        fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self>;
        fn chat_ids(&self, messages: &[Message], add_generation_prompt: bool) -> Result<Vec<u32>>;
    }

    impl TokenizerInternals for Tokenizer {
        fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self> {
            Tokenizer::from_gguf(vocabulary)
        }

        fn chat_ids(&self, messages: &[Message], add_generation_prompt: bool) -> Result<Vec<u32>> {
            Tokenizer::chat_ids(self, messages, add_generation_prompt)
        }
    }

    /// The memory that a [`ModelBuilder`] will need on each device.
    #[allow(
        missing_docs,
        clippy::missing_errors_doc,
        reason = "the method has its documentation where it is"
    )]
    pub trait ModelBuilderInternals {
        fn parts(&self) -> Result<Vec<ModelPart>>;
    }

    impl ModelBuilderInternals for ModelBuilder<'_> {
        fn parts(&self) -> Result<Vec<ModelPart>> {
            ModelBuilder::parts(self)
        }
    }
}

/// What tests use of grammars.
#[cfg(feature = "grammar")]
mod grammar {
    use crate::{
        error::Result,
        model::{
            Grammar, Tokenizer,
            generate::constraint::{Constraint, ConstraintSource as _, is_allowed},
        },
    };

    /// A text by a grammar, without a model.
    pub struct GrammarWalk(Box<dyn Constraint>);

    impl GrammarWalk {
        /// Returns the beginning of a text that tokens of `ends` end.
        ///
        /// # Errors
        /// [`Error::Grammar`](crate::Error::Grammar) for a grammar that the tokens cannot write.
        pub fn new(grammar: &Grammar, tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self> {
            grammar.begin(tokenizer, &[], ends).map(Self)
        }

        /// Returns the tokens that may come next.
        pub fn allowed(&self) -> Vec<u32> {
            let words = self.0.allowed();
            (0..32 * words.len() as u32).filter(|&id| is_allowed(words, id)).collect()
        }

        /// Appends a token.
        ///
        /// # Errors
        /// [`Error::Grammar`](crate::Error::Grammar) for a token that is not allowed.
        pub fn append(&mut self, id: u32) -> Result<()> {
            self.0.append(id)
        }

        /// Returns whether the text is complete.
        pub fn is_complete(&self) -> bool {
            self.0.is_complete()
        }
    }
}
