//! Submissions, one after another.

pub(crate) mod commands;
pub(crate) mod completion_check;
pub(crate) mod submissions;
