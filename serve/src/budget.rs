//! Amounts that clients share: bytes of bodies that arrive, wait or are being prepared, and
//! connections.

use crate::client::Client;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A bound on an amount, of which each client may have as much as would be left for others: one
/// alone half of it, a second one a quarter, and so on. Nobody can take all, and who has little
/// always gets it.
pub struct Budget {
    most: usize,
    held: Mutex<HashMap<Client, usize>>,
}

/// A part of a budget, given back when it is dropped. Bytes of a body are counted as they arrive:
/// what is only announced takes nothing.
pub struct Held {
    budget: Arc<Budget>,
    client: Client,
    amount: usize,
}

/// The error of a budget without room.
#[derive(Debug)]
pub struct Full;

impl Budget {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, held: Mutex::default() })
    }

    /// Returns a part of nothing, which may grow.
    pub fn begin(self: &Arc<Self>, client: Client) -> Held {
        Held { budget: self.clone(), client, amount: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Client, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Sets the amount that is held, if it is larger than before.
    pub fn grow(&mut self, amount: usize) -> Result<(), Full> {
        let more = amount.saturating_sub(self.amount);
        if more == 0 {
            return Ok(());
        }
        let mut held = self.budget.lock();
        let all: usize = held.values().sum::<usize>() + more;
        let own = held.entry(self.client).or_default();
        if *own + more + all > self.budget.most {
            return Err(Full);
        }
        *own += more;
        self.amount += more;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.budget.lock();
        if let Some(own) = held.get_mut(&self.client) {
            *own -= self.amount;
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
        assert!(
            b.grow(13).is_err() && a.grow(21).is_err(),
            "half for one client, in however many bodies"
        );
        c.grow(16).unwrap();
        assert!(c.grow(17).is_err(), "half of what is left");
        drop(a);
        c.grow(26).unwrap();
        drop((b, c));
        assert!(budget.lock().is_empty());
    }
}
