//! Readers of ternary checkpoints.
