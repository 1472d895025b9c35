//! What files from strangers, and options, may ask for: all limits of the crate that are not the
//! device's. SECURITY.md tells users.

/// Rows of a matrix without columns: they hold nothing, and yet memory is taken for each.
pub const MOST_EMPTY_ROWS: usize = 1 << 24;

pub mod cache {
    /// The largest compiled kernel that is read: drivers make some 100 KB.
    pub const MOST_BYTES: u64 = 64 << 20;
    /// The largest file of choices that is read: all of them take some 600 bytes.
    pub const MOST_TUNING: u64 = 16 << 10;
}

pub mod partial_files {
    /// Random characters in the name of a partial file. No user's own file has 12 letters and
    /// digits there by chance.
    pub const PARTIAL_RANDOM: usize = 12;
    /// Entries of a folder that are searched for stale partial files. A larger folder, a home
    /// directory for example, takes no longer.
    pub const MOST_LISTED: usize = 10_000;
}

#[cfg(feature = "formats")]
pub mod files {
    /// The longest JSON file, and the longest header of a safetensors file: an index of shards has
    /// some hundred bytes a tensor. Parsed, it takes up to twenty times as much.
    pub const MOST_JSON: usize = 16 << 20;
    /// The longest header of a GGUF file, with its vocabulary: 256 000 tokens and their merges take
    /// some 20 MB.
    pub const MOST_GGUF_HEADER: usize = 64 << 20;
    /// Files of a split GGUF model, each of which stays open.
    pub const MOST_GGUF_PARTS: usize = 256;
    /// The largest dimension of a model; larger ones are taken for damage.
    pub const MOST_SIZE: usize = 1 << 24;
    /// Layers; the largest known models have some 130.
    pub const MOST_LAYERS: usize = 4096;
    /// Experts of a layer, as many as the GPU's router takes; the largest known models have 512.
    pub const MOST_EXPERTS: usize = 512;
    /// Experts that a token uses, as many as the GPU's router takes.
    pub const MOST_EXPERTS_USED: usize = 16;
    /// The longest file beside the weights that is copied to a packed model: a tokenizer.json is
    /// the largest, and as long as it is read.
    pub const MOST_COMPANION: u64 = 256 << 20;
}

#[cfg(feature = "models")]
pub mod sessions {
    /// Sequences side by side. More would be a mistake, and beyond the grids of some kernels.
    pub const MOST_SEQUENCES: usize = 4096;
}

/// What is computed together where texts are scored or embedded.
#[cfg(feature = "models")]
pub mod groups {
    /// Texts that are scored side by side. 64 tokens fill a pass of the CPU.
    pub const MOST_SCORED: usize = 64;
    /// Texts that are embedded side by side.
    pub const MOST_EMBEDDED: usize = 16;
    /// Positions of all texts together, unless one text has more: their keys and values take
    /// memory.
    pub const MOST_POSITIONS: usize = 4096;
    /// Bytes of the logits of a pass, which go to host memory: those of 128 tokens of a vocabulary
    /// of 128 K.
    pub const MOST_LOGIT_BYTES: usize = 64 << 20;
}

#[cfg(feature = "models")]
pub mod generation {
    /// The longest stop string, in bytes. Published models have stop strings of some 20 bytes.
    pub const LONGEST_STOP: usize = 4096;
    /// All stop strings of a request together, in bytes: each of its choices takes twice as much.
    pub const MOST_STOP_BYTES: usize = 16 << 10;
    /// The longest cache salt, in bytes; every slot keeps one.
    pub const LONGEST_SALT: usize = 1024;
}

#[cfg(feature = "models")]
pub mod speculation {
    /// Tokens of a draft: with the one before them, as many as an engine keeps a recorded step for.
    pub const MOST_DRAFTED: usize = 15;
    /// The longest run of tokens that is looked for in a text: each token takes an entry for every
    /// length.
    pub const LONGEST_RUN: usize = 32;
}

#[cfg(feature = "grammar")]
pub mod grammar {
    /// The longest schema, regular expression or grammar, in bytes. The largest schemas of
    /// schemastore.org have some 500 KB.
    pub const MOST_BYTES: usize = 1 << 20;
    /// The deepest nesting of brackets in a grammar.
    pub const MOST_DEPTH: usize = 200;
    /// Lines of a grammar that may be rules, each of which may refer to the next.
    pub const MOST_RULES: usize = 2000;
    /// Characters, classes and names of rules in a GBNF grammar. So many compile within seconds.
    pub const MOST_PARTS: usize = 20_000;
    /// Repetitions of a part of a GBNF grammar, as in llama.cpp.
    pub const MOST_REPEATED: u32 = 2000;
    /// Characters of a GBNF grammar's regular expression. Rules of a larger one are parsed.
    pub const MOST_EXPANDED: usize = 10_000;
    /// Characters of a lexeme of a GBNF grammar.
    pub const MOST_LEXEME: usize = 1000;
    /// Lexemes of a GBNF grammar that have more than one character.
    pub const MOST_LEXEMES: usize = 64;
    /// Names in angle brackets of a grammar, which may be special tokens.
    pub const MOST_SPECIAL: usize = 1000;
    /// References in a schema.
    pub const MOST_REFERENCES: usize = 2000;
    /// Properties of an object; the square counts, since compiling takes as long.
    pub const MOST_PROPERTIES: usize = 1000;
    /// Bytes of what stands beside choices, for each choice.
    pub const MOST_COPIED: usize = 64 << 20;
    /// Stack of the thread that compiles grammars, which recurses over rules and references.
    pub const STACK: usize = 256 << 20;
    /// Steps to build the first state of a lexer: some 20 ms.
    pub const LEXER_FUEL: u64 = 1_000_000;
    /// Steps of the lexer for the mask of one token: some 15 ms.
    pub const MASK_LEXER_FUEL: u64 = 200_000;
    /// Items of the parser for the mask of one token: some 3 ms.
    pub const MASK_ITEMS: usize = 50_000;
    /// Items of the parser after one byte.
    pub const ROW_ITEMS: usize = 2000;
    /// States of a lexer, of 1 to 2 KB each.
    pub const LEXER_STATES: usize = 50_000;
    /// Symbols of all rules together.
    pub const MOST_SYMBOLS: usize = 500_000;
    /// The longest token that a grammar can choose, in bytes; longer ones are never chosen.
    pub const LONGEST_TOKEN: usize = 1000;
}

#[cfg(feature = "models")]
pub mod tokenizer {
    /// The longest tokenizer.json. The largest known have 35 MB, for a quarter million tokens.
    pub const MOST_JSON: usize = 256 << 20;
    /// How many times as long as the text that goes in the text may be that comes out of
    /// normalizers, or of decoders.
    pub const MOST_GROWTH: usize = 256;
    /// Bytes that a text may have once it is normalized, where that is more than four times its own
    /// bytes, which no published normalizer reaches: NFC makes a text at most three times as long.
    /// Until it is encoded, each byte takes up to 220 bytes of memory, so that this many take 450
    /// MB.
    pub const MOST_GROWN: usize = 2 << 20;
    /// How many times as many bytes a character can become by a normalizer that has no smaller
    /// number: the longest replacement of a table.
    pub const GROWTH_OF_ANY: usize = MOST_GROWTH;
    /// The longest pattern, in bytes.
    pub const MOST_PATTERN: usize = 4096;
    /// Instructions of a compiled pattern. Those of published tokenizers have at most 90.
    pub const MOST_INSTRUCTIONS: usize = 8192;
    /// Places to go on from that a search remembers, of 24 bytes each.
    pub const MOST_BRANCHES: usize = 1 << 20;
    /// Steps of all patterns of a tokenizer for each byte of a text. Those of published tokenizers
    /// take at most 32 each; a step takes some 4 ns.
    pub const MOST_STEPS_PER_BYTE: u64 = 256;
    /// Steps for a text of any length: a run of 5000 digits takes as many by patterns that group
    /// digits from the right.
    pub const MOST_STEPS_OF_ANY: u64 = 16 << 20;
    /// The longest replacement, and the longest token of a BPE model or a GGUF vocabulary, in
    /// bytes.
    pub const MOST_CONTENT: usize = 1024;
    /// The longest added token, in bytes. A text is looked through for the longest one from each of
    /// its bytes. Known ones have at most 100.
    pub const MOST_ADDED: usize = 256;
    /// The longest token of a Unigram model, in bytes. A text is looked through for all of them
    /// from each of its characters. SentencePiece's have at most 16 characters unless it is told
    /// otherwise.
    pub const MOST_PIECE: usize = 128;
    /// Sequences within sequences.
    pub const MOST_DEPTH: usize = 4;
    /// Steps of all sequences of a normalizer, a pre-tokenizer, a post-processor or a decoder
    /// together.
    pub const MOST_STEPS: usize = 64;
    /// The largest token id, and so the most tokens.
    pub const MOST_ID: u64 = 1 << 24;
}
