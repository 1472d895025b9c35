//! Bytes of bodies that arrive, wait or are being prepared.

use crate::client::Client;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A bound on bytes, of which each client may have as many as would be left for others: one alone half of them, a second one a quarter, and so on. Nobody
/// can take all, and who has few always gets them.
pub struct Budget {
    most: usize,
    held: Mutex<HashMap<Client, usize>>,
}

/// Bytes of one body, counted as they arrive: what is only announced takes nothing.
pub struct Held {
    budget: Arc<Budget>,
    client: Client,
    bytes: usize,
}

/// There is no room for more bytes.
#[derive(Debug)]
pub struct Full;

impl Budget {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, held: Mutex::default() })
    }

    /// Begins a body.
    pub fn begin(self: &Arc<Self>, client: Client) -> Held {
        Held { budget: self.clone(), client, bytes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Client, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Sets the number of bytes that a body holds so far.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        let more = bytes.saturating_sub(self.bytes);
        let mut held = self.budget.lock();
        let all: usize = held.values().sum::<usize>() + more;
        let own = held.entry(self.client).or_default();
        if *own + more + all > self.budget.most {
            return Err(Full);
        }
        *own += more;
        self.bytes += more;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.budget.lock();
        if let Some(own) = held.get_mut(&self.client) {
            *own -= self.bytes;
            if *own == 0 {
                held.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_bytes() {
        let budget = Budget::new(64);
        let [mut a, mut b, mut c] = [0, 0, 1].map(|client| budget.begin(Client::Key(client)));
        a.grow(20).unwrap();
        b.grow(12).unwrap();
        assert!(b.grow(13).is_err() && a.grow(21).is_err(), "half for one client, in however many bodies");
        c.grow(16).unwrap();
        assert!(c.grow(17).is_err(), "half of what is left");
        drop(a);
        c.grow(26).unwrap();
        drop((b, c));
        assert!(budget.lock().is_empty());
    }
}
