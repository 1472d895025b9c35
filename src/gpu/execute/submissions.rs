//! What the submissions on a device share: the order in which they come, whether they are checked,
//! and which are captured.

use super::{commands::Commands, completion_check::CompletionCheck};
use crate::gpu::device::capture::Captures;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What the submissions on a device share.
#[derive(Default)]
pub struct Submissions {
    pub check: OnceLock<Arc<CompletionCheck>>,
    /// Held alone by work of several submissions, between which no other may come.
    turns: RwLock<()>,
    pub captures: OnceLock<Captures>,
}

/// A part of a recording, which becomes a submission.
pub type SubmissionPart<'a> = Box<dyn Fn(&mut Commands<'_, '_>) + 'a>;

/// The right to submit, together with other threads or alone.
pub enum Turn<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

impl Submissions {
    /// Waits for the right to make this number of submissions, between which no other comes. What
    /// may call the app, as requests for memory do, comes before it.
    pub fn turn(&self, submissions: usize) -> Turn<'_> {
        if submissions > 1 {
            Turn::Alone { _guard: self.turns.write().unwrap_or_else(PoisonError::into_inner) }
        } else {
            Turn::Shared { _guard: self.turns.read().unwrap_or_else(PoisonError::into_inner) }
        }
    }
}

/// The likely cause of a submission that was not finished, and what to do; `memory` is what the
/// device has, where it is known.
pub fn likely_cause(live: u64, memory: Option<u64>) -> &'static str {
    match memory {
        Some(memory) if live > memory / 10 * 9 => {
            "GPU memory is probably exhausted: use a shorter context, fewer sequences or a smaller model, or set ContextOptions::memory_limit"
        }
        _ => {
            "the system probably stopped it because it faulted or ran for too long: close other GPU programs and try again; on a Mac, \
             AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1 in the environment allows more time"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_stopped_work_follows_from_memory() {
        let memory =
            |live, memory| likely_cause(live, memory).contains("memory is probably exhausted");
        assert!(
            memory(5_000, Some(5_461)) && !memory(4_000, Some(5_461)) && !memory(u64::MAX, None)
        );
    }
}
