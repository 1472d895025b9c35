//! Opening, loading and writing models.

pub(super) mod builder;
pub(super) mod files;
pub(super) mod model;
pub(super) mod prepacked;
pub(super) mod settings;
mod text_check;
mod unoptimized;
