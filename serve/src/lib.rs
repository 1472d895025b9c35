//! Serves models.
