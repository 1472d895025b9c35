//! The numbers by which kernels are chosen: one table for all families of GPUs, with the
//! measurement behind each, and what a machine's own measurements put in its place.
//!
//! A choice decides how long an op takes, and nothing that it gives: the kernels that a number here
//! decides between give the same integers and bit-identical results. What decides the order of a sum of
//! floats is not here, since it is the same on every device and stands beside its op: `GEMV_ROWS`
//! of `matmul`, `GEMV_TOKENS` of `bitlinear_float`, the shares of attention, and the tiles of
//! `matmul`, since on tensor cores their sums are the hardware's. Nor is what decides how much memory
//! a model takes, as prefill chunks. (Gates of SiLU are computed by one source, in one kernel
//! or another: they are bit-identical as far as a driver compiles both alike.)

use crate::error::{Error, Result};
use std::{collections::BTreeMap, fmt, ops::RangeInclusive};

/// GPUs that share a column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// NVIDIA's and all others that are not below. An H200 has been measured, where nothing else is
    /// said; for the others its numbers are estimates.
    Gpu,
    /// Apple's. None has been measured: instructions were counted (docs/internals/apple-gpu.md). Generations
    /// share a column, since all counts are the same for M1 and M2, and later ones cannot be
    /// counted.
    Apple,
    /// Software adapters: lavapipe 22.3 and 26.1 on two cores have been measured.
    Software,
}

/// A threshold that nothing reaches.
const NEVER: u32 = u32::MAX;
/// More tokens at once than a grid of passes should have.
const TOKENS: u32 = 4096;

struct Row {
    name: &'static str,
    range: RangeInclusive<u32>,
    /// On GPUs, Apple's GPUs, software adapters.
    families: [u32; 3],
}

macro_rules! table {
    ($($(#[$doc:meta])* $choice:ident = $name:literal in $range:expr; $gpu:expr, $apple:expr, $software:expr;)+) => {
        /// A threshold by which kernels are chosen.
        /// [`Capabilities::tuned`](crate::device::Capabilities::tuned) returns its value on a
        /// device, [`Tuning`] sets another. Which thresholds there are changes with the kernels:
        /// [`TuningKey::ALL`] lists them, and [`TuningKey::named`] finds one. The table in
        /// `src/tuning.rs` says what each of them means.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum TuningKey {
            $($(#[$doc])* #[cfg_attr(not(feature = "internals"), doc(hidden))] $choice),+
        }

        impl TuningKey {
            /// All thresholds.
            pub const ALL: &[Self] = &[$(Self::$choice),+];

            fn row(self) -> Row {
                match self { $(Self::$choice => Row { name: $name, range: $range, families: [$gpu, $apple, $software] }),+ }
            }
        }
    };
}

// Name in a file, what may be set; then what it is on GPUs, on Apple's and on software adapters.
// Sections are of benches/notes/measurements.md, where no other file is named. Where a family has
// the number of another, nobody has measured it there.
table! {
    /// Up to this many tokens, passes of a GEMV for eight tokens each cost less than the tiles of a
    /// GEMM, where packed integer products are fast. H200: "Several tokens".
    PackedGemvTokens = "packed_gemv_tokens" in 1..=TOKENS; 256, 256, 256;
    /// Up to this many tokens, passes of a GEMV for four tokens each cost less than the tiles of a
    /// GEMM, where packed integer products are slow. Apple: a pass takes 5.4 cycles a weight, and a
    /// tile of 32 tokens, empty or not, 34 (docs/internals/apple-gpu.md).
    GemvTokens = "gemv_tokens" in 1..=TOKENS; 24, 24, 24;
    /// Most tokens for which the f16 GEMM has narrow tiles, of 32 tokens in place of 64. Apple: as
    /// above.
    NarrowTileTokens = "narrow_tile_tokens" in 0..=TOKENS; 32, 32, 32;
    /// Fewest rows for which a GEMV of one token in int8 has tiles of four rows; fewer rows are
    /// spread over more workgroups. H200: "How the GEMV's constants were chosen".
    GemvTallTileRows = "gemv_tall_tile_rows" in 0..=NEVER; 16_384, 16_384, 16_384;
    /// Fewest tiles of four rows and a pass's tokens for which a GEMV of several tokens does not
    /// split the columns of a row over subgroups. H200: "Several tokens".
    GemvUnsplitTiles = "gemv_unsplit_tiles" in 0..=NEVER; 2048, 2048, 2048;
    /// Fewest outputs, of more than [`TuningKey::TensorCoreTokens`], for which a GEMM on f16 tensor
    /// cores costs less than passes of a GEMV. H200: "BitLinear on tensor cores".
    TensorCoreOutputs = "tensor_core_outputs" in 0..=NEVER; 300_000, 300_000, 300_000;
    /// Most tokens for which passes of a GEMV do not cost more than f16 tensor cores, however many
    /// outputs there are. H200: there.
    TensorCoreTokens = "tensor_core_tokens" in 0..=TOKENS; 32, 32, 32;
    /// Fewest tiles of 128 × 128 that keep a large GPU busy on f16 tensor cores; of fewer, smaller
    /// ones are made. H200: there.
    TensorCoreLargeTiles = "tensor_core_large_tiles" in 0..=NEVER; 96, 96, 96;
    /// [`TuningKey::TensorCoreOutputs`] of int8 tensor cores. H200: "BitLinear on tensor cores for
    /// int8", "How kernels are chosen".
    Int8TensorCoreOutputs = "int8_tensor_core_outputs" in 0..=NEVER; 240_000, 120_000, 120_000;
    /// [`TuningKey::TensorCoreTokens`] of int8 tensor cores. H200: there.
    Int8TensorCoreTokens = "int8_tensor_core_tokens" in 0..=TOKENS; 16, 16, 16;
    /// Fewest tiles of 128 × 128 that take less time on int8 tensor cores than twice as many of 64
    /// tokens × 128 rows. H200: there, and "Products of prompts, fed better".
    Int8TensorCoreLargeTiles = "int8_tensor_core_large_tiles" in 0..=NEVER; 64, 64, 64;
    /// [`TuningKey::TensorCoreTokens`] for activations in block floating point. H200, with halves:
    /// "Activations in block floating point".
    BlockFloatTensorCoreTokens = "block_float_tensor_core_tokens" in 0..=TOKENS; 16, 16, 16;
    /// Up to this many tokens, passes of a GEMV for activations in block floating point do not cost
    /// more than tiles of 64 tokens, where no tensor core is used. H200: "Tiles without tensor
    /// cores". Apple: a pass of four tokens takes 7.2 cycles a weight, a tile, full or not, about
    /// 75 (docs/internals/apple-gpu.md). On software adapters never, since they pay for barriers.
    BlockFloatTileTokens = "block_float_tile_tokens" in 0..=NEVER; 128, 40, NEVER;
    /// Tiles that a GPU makes at once on tensor cores, of activations in block floating point: its
    /// cores, where each has workgroup memory for one. H200, which has 132: "Two planes of bytes for
    /// float activations".
    BlockFloatTensorCoreTiles = "block_float_tensor_core_tiles" in 1..=NEVER; 132, 132, 132;
    /// Most tiles of 64 × 64 for which int8 tensor cores take 256 columns at a time in place of
    /// 128: then each tile has a core of a large GPU to itself. H200, which has 132 cores: there.
    Int8TensorCoreDeepTiles = "int8_tensor_core_deep_tiles" in 0..=NEVER; 132, 132, 132;
    /// Up to this many tokens, a workgroup's preparation of a row, which it shares with nobody, costs
    /// less than a dispatch of its own: norm, quantizer and BitLinear are one. H200: "A decoding
    /// step in few dispatches"; lavapipe: "Whole models".
    FusedTokens = "fused_tokens" in 0..=64; 2, 2, 0;
    /// Up to this many tokens, norm, rounding and BitLinear with float activations are one
    /// dispatch. H200: "Float activations in one dispatch". On Apple's GPUs by count: for two
    /// tokens it takes twice as many cycles as for one; the GEMV, which reads each weight once for
    /// both, less. Other GPUs without packed products were not measured. On software adapters not
    /// measured, but never, as above.
    FusedBlockFloatTokens = "fused_block_float_tokens" in 0..=64; 8, 1, 0;
    /// Fewest weights of a matrix for which that dispatch has workgroups of 512 threads, which prepare
    /// a row for more of its rows. Fewer weights take less time with 128. H200: "Large matrices of
    /// a decoding step". Elsewhere not measured.
    FusedBlockFloatLargeWeights = "fused_block_float_large_weights" in 0..=NEVER; 28_000_000, NEVER, NEVER;
    /// This many workgroups of those dispatches keep a GPU busy; each prepares the row once again,
    /// so more rows are given to each where there would be more of them. H200: "A decoding step in
    /// few dispatches", and "Batches, drafts and prompts". Of float activations twice as many, whose
    /// workgroups have half as many threads: "Float activations in one dispatch". Of large matrices
    /// half as many, whose workgroups have twice as many.
    FusedWorkgroups = "fused_workgroups" in 1..=NEVER; 256, 256, 256;
    /// Workgroups below which attention splits the positions (KV splits), each split in workgroups
    /// of its own. H200: "Attention whose loads are on their way together", "How kernels are
    /// chosen"; lavapipe, which never gains by it: there.
    AttentionSplitWorkgroups = "attention_split_workgroups" in 0..=NEVER; 64, 256, 0;
    /// Fewest rows of a key head, which are tokens and the heads that share it, for which attention
    /// of prompts with heads of 128 has two buffers in 24 KiB of workgroup memory. H200: "Exact
    /// attention and rows of prompts". Apple's GPUs run Metal; on software adapters never, since
    /// barriers cost them more than loads, and the source takes long to compile.
    AttentionBufferedRows = "attention_buffered_rows" in 0..=NEVER; 0, NEVER, NEVER;
    /// Fewest tokens that rotary positions take by quads of a head. H200: "Exact attention and rows
    /// of prompts". Apple's GPUs run Metal; on software adapters never, where one token takes longer.
    RopeQuadsTokens = "rope_quads_tokens" in 1..=NEVER; 8, NEVER, NEVER;
    /// From this many tiles of 128 rows on, attention of prompts in f16 has them in place of 64
    /// rows. H200: "Attention of prompts on tensor cores", "Attention by the elements of matrices".
    AttentionLargeTiles = "attention_large_tiles" in 0..=NEVER; 100, 150, 150;
    /// Most features of a row that a workgroup of 128 threads quantizes, with 2560 numbers in
    /// registers; longer rows have 256 threads, which hold 7168. Rows are loaded by vectors of four,
    /// if it is not 0. H100 and H200: "Ops of training".
    SmallWorkgroupFeatures = "small_workgroup_features" in 0..=2560; 2560, 0, 0;
    /// Fewest columns for which the threads of a row unroll: each holds 16 numbers, in place of one.
    /// H100: "Ops of training".
    UnrolledColumns = "unrolled_columns" in 0..=NEVER; 0, NEVER, NEVER;
    /// Fewest rows of which a thread takes each alone, in place of several threads with barriers
    /// between them; quantizers in int8 only. lavapipe: "Products of f16 on tensor cores",
    /// "Whole models".
    RowPerThread = "row_per_thread" in 0..=NEVER; NEVER, NEVER, 16;
    /// Most outputs for which a product of matrices or a transposition has no tiles in workgroup
    /// memory, whose barriers software adapters pay for; a ternary product too, where packed integer
    /// products are slow. lavapipe: "Products of f16 on tensor cores", "Whole models".
    UntiledOutputs = "untiled_outputs" in 0..=NEVER; 0, 0, NEVER;
    /// Fewest tokens for which the LM head computes eight of them at a time in place of four. H200:
    /// "Batches, drafts and prompts".
    LmHeadUnrollTokens = "lm_head_unroll_tokens" in 2..=TOKENS; 5, 5, 5;
    /// Most tokens for which passes of a GEMV do not cost more than int8 tensor cores, for an LM head
    /// in int8. H200: "The int8 head, exact".
    LmHeadTensorCoreTokens = "lm_head_tensor_core_tokens" in 0..=TOKENS; 1, 1, 1;
}

impl TuningKey {
    /// Returns its name in files and messages, such as `gemv_tokens`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the threshold of this name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|key| key.name() == name)
    }

    /// Returns the values that a [`Tuning`] may set. All are correct on every device; most are slow.
    pub fn range(self) -> RangeInclusive<u32> {
        self.row().range
    }

    pub(crate) fn on(self, family: Family) -> u32 {
        self.row().families[family as usize]
    }
}

/// Thresholds measured on one device, in place of the defaults for its kind. The command
/// `bitnet tune` measures them.
/// [`Context::save_tuning`](crate::Context::save_tuning) writes them to the folder of
/// [`ContextOptions::kernel_cache`](crate::ContextOptions::kernel_cache), from which the next
/// context on the device reads them.
///
/// ```
/// use bitnet_wgpu::{Context, tuning::{Tuning, TuningKey}};
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let mut tuning = Tuning::default();
/// let key = TuningKey::named("gemv_tokens").unwrap();
/// tuning.set(key, 16)?; // Error::Invalid outside of key.range()
/// let context = pollster::block_on(Context::new())?.with_tuning(tuning);
/// assert_eq!(context.capabilities().tuned(key), 16);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning(BTreeMap<TuningKey, u32>);

impl Tuning {
    /// Returns the value of a threshold; `None` where it has its default.
    pub fn get(&self, choice: TuningKey) -> Option<u32> {
        self.0.get(&choice).copied()
    }

    /// Sets a threshold; `None` returns it to its default.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value outside of [`TuningKey::range`].
    pub fn set(&mut self, choice: TuningKey, value: impl Into<Option<u32>>) -> Result<()> {
        let Some(value) = value.into() else {
            self.0.remove(&choice);
            return Ok(());
        };
        let Row { name, range, .. } = choice.row();
        if !range.contains(&value) {
            let what =
                format!("{name} is {value}, and not within {} to {}", range.start(), range.end());
            return Err(Error::Invalid { op: "tuning", what });
        }
        self.0.insert(choice, value);
        Ok(())
    }

    /// Returns whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What [`Display`](fmt::Display) wrote, a line for each choice.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        let mut tuning = Self::default();
        for line in text.lines() {
            let (name, value) = line
                .split_once(' ')
                .ok_or_else(|| format!("`{}` is not a tuning key", line.escape_debug()))?;
            let choice = TuningKey::named(name);
            let choice = choice
                .ok_or_else(|| format!("there is no tuning key `{}`", name.escape_debug()))?;
            let value = value
                .parse::<u32>()
                .map_err(|error| format!("{name}: `{}`: {error}", value.escape_debug()))?;
            if tuning.get(choice).is_some() {
                return Err(format!("{name} is there twice"));
            }
            tuning.set(choice, value).map_err(|error| error.to_string())?;
        }
        Ok(tuning)
    }

    /// What a file of choices rests on besides the device: which choices there are, and what they
    /// are without it.
    pub(crate) fn table() -> String {
        TuningKey::ALL
            .iter()
            .map(|choice| choice.row())
            .map(|Row { name, range, families }| format!("{name} {range:?} {families:?}\n"))
            .collect()
    }
}

/// A line for each choice that is set: its name and its number.
impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(choice, value)| writeln!(f, "{} {value}", choice.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_range_and_names_unique() {
        for (i, choice) in TuningKey::ALL.iter().enumerate() {
            assert!(
                choice.row().families.iter().all(|value| choice.range().contains(value)),
                "{choice:?}"
            );
            assert!(
                TuningKey::ALL[..i].iter().all(|other| other.name() != choice.name()),
                "{choice:?}"
            );
            assert_eq!(TuningKey::named(choice.name()), Some(*choice));
            assert!(
                choice
                    .name()
                    .bytes()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_')
            );
        }
        assert_eq!(TuningKey::named("GemvTokens"), None);
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let mut all = Tuning::default();
        for (n, &choice) in TuningKey::ALL.iter().enumerate() {
            let range = choice.range();
            all.set(choice, if n % 2 == 0 { *range.start() } else { *range.end() }).unwrap();
            assert_eq!(Tuning::parse(&all.to_string()), Ok(all.clone()));
        }
        assert_eq!(Tuning::parse(""), Ok(Tuning::default()));
        let wrong = [
            ("gemv_tall_tile_rows", "tuning key"),
            ("gemv_tall_tile_rows  5", "invalid digit"),
            ("gemv_tall_tile_rows 5 ", "invalid digit"),
            ("\n", "tuning key"),
            ("large_rows 5", "tuning key"),
            ("GemvTallTileRows 5", "tuning key"),
            ("gemv_tall_tile_rows -1", "invalid digit"),
            ("gemv_tall_tile_rows NaN", "invalid digit"),
            ("gemv_tall_tile_rows 1e3", "invalid digit"),
            ("gemv_tall_tile_rows 4294967296", "too large"),
            ("gemv_tall_tile_rows ", "empty"),
            ("gemv_tall_tile_rows 5\ngemv_tall_tile_rows 5", "twice"),
            ("gemv_tokens 0", "not within 1 to 4096"),
            ("fused_tokens 65", "not within 0 to 64"),
        ];
        for (text, why) in wrong {
            let refused = Tuning::parse(text).unwrap_err();
            assert!(refused.contains(why), "{text:?}: {refused}");
        }
    }

    #[test]
    fn a_choice_goes_back_to_the_table() {
        let mut tuning = Tuning::default();
        assert!(tuning.set(TuningKey::FusedTokens, 65).is_err() && tuning.is_empty());
        tuning.set(TuningKey::FusedTokens, 3).unwrap();
        assert_eq!((tuning.get(TuningKey::FusedTokens), tuning.is_empty()), (Some(3), false));
        tuning.set(TuningKey::FusedTokens, None).unwrap();
        assert!(tuning.is_empty());
    }
}
