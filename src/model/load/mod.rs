//! Opening, loading and writing models.

pub(super) mod auto;
pub(super) mod files;
pub(super) mod model;
pub(super) mod prepacked;
