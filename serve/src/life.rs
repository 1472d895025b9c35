//! Phases of a server's life, from its start to the last connection.

use crate::error::{ApiError, Result};
use std::time::{Duration, SystemTime};
use tokio::{sync::watch, time::timeout};

/// Phase of a server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Runs,
    /// Running answers continue, and new requests are refused.
    Ends,
    /// Running answers are cut.
    Cut,
}

/// The phase, and the answers that go on.
pub struct Life {
    phase: watch::Sender<Phase>,
    alive: watch::Sender<()>,
}

/// An answer that goes on: the end of the server waits for it to be dropped.
pub struct Alive {
    _alive: watch::Receiver<()>,
    phase: watch::Receiver<Phase>,
}

impl Life {
    pub fn new() -> Self {
        Self { phase: watch::Sender::new(Phase::Runs), alive: watch::Sender::new(()) }
    }

    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Begins an answer.
    pub fn begin(&self) -> Result<Alive> {
        // In this order: whoever ends the server sees it, or it sees the end.
        let alive = Alive { _alive: self.alive.subscribe(), phase: self.phase.subscribe() };
        if self.phase() == Phase::Runs { Ok(alive) } else { Err(ApiError::ending()) }
    }

    /// Lets nothing begin any more, and cuts what still goes on after some time.
    pub async fn end(&self, grace: Duration) {
        self.phase.send_replace(Phase::Ends);
        let _ = timeout(grace, self.alive.closed()).await;
        self.phase.send_replace(Phase::Cut);
    }

    /// Waits until answers are cut.
    pub async fn cut(&self) {
        let _ = self.phase.subscribe().wait_for(|phase| *phase == Phase::Cut).await;
    }
}

impl Alive {
    /// Waits until answers are cut.
    pub async fn cut(&mut self) {
        let _ = self.phase.wait_for(|phase| *phase == Phase::Cut).await;
    }
}

/// Returns the seconds since 1970; 0 if the clock says less.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Tests whether HTTP can write the time, from 1970 to 9999: hyper panics in its header `Date`
/// otherwise.
pub fn is_writable(time: SystemTime) -> bool {
    /// Seconds from 1970 to the year 10000.
    const END: u64 = 253_402_300_800;
    time.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|time| time.as_secs() < END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_out_of_range_are_found() {
        let epoch = SystemTime::UNIX_EPOCH;
        assert!(
            is_writable(epoch)
                && is_writable(SystemTime::now())
                && is_writable(epoch + Duration::from_secs(253_402_300_799))
        );
        assert!(
            !is_writable(epoch - Duration::from_nanos(1))
                && !is_writable(epoch + Duration::from_secs(253_402_300_800))
        );
    }
}
