//! Permits that clients get in turns, however many requests each has.

use crate::client::Client;
use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot::{Receiver, Sender, channel};

/// A number of permits, and a bounded queue for them. The next permit goes to another client than the last one, if another waits. One client alone may
/// use all permits and the whole queue; another that comes then takes the place of the last that the first has waiting.
pub struct Turns {
    permits: usize,
    most_waiting: usize,
    queue: Mutex<Queue>,
}

struct Queue {
    free: usize,
    /// Those that wait, by client, in the order of the clients' turns. None is empty.
    clients: VecDeque<(Client, VecDeque<Sender<Turn>>)>,
}

/// A permit: whose turn it is. Dropped, it goes to the next.
pub struct Turn(Option<Arc<Turns>>);

/// A place in the queue. Dropped, it is left.
pub struct Place(Receiver<Turn>);

/// There is no room, or no more, since another client took its share.
#[derive(Debug)]
pub struct Full;

/// Permits in use, and places taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub running: usize,
    pub waiting: usize,
}

impl Turns {
    pub fn new(permits: usize, most_waiting: usize) -> Arc<Self> {
        let queue = Mutex::new(Queue { free: permits, clients: VecDeque::new() });
        Arc::new(Self { permits, most_waiting, queue })
    }

    /// Takes a place for each of `count` permits, or none.
    pub fn enter(self: &Arc<Self>, client: Client, count: usize) -> Result<Vec<Place>, Full> {
        let mut queue = self.lock();
        let waiting = count.saturating_sub(queue.free);
        let displaced = queue.make_room(client, waiting, self.most_waiting)?;
        let places = (0..count).map(|_| queue.push(client)).collect();
        drop(queue);
        drop(displaced);
        self.give();
        Ok(places)
    }

    /// Takes a place for one permit.
    pub fn place(self: &Arc<Self>, client: Client) -> Result<Place, Full> {
        self.enter(client, 1)?.pop().ok_or(Full)
    }

    pub fn counts(&self) -> Counts {
        let mut queue = self.lock();
        queue.prune();
        Counts { running: self.permits - queue.free, waiting: queue.waiting() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives what is free to those whose turn it is.
    fn give(self: &Arc<Self>) {
        loop {
            let mut queue = self.lock();
            if queue.free == 0 {
                return;
            }
            let Some(next) = queue.pop() else { return };
            queue.free -= 1;
            drop(queue);
            // Who has left gets nothing. The permit is not dropped here, as that would come back to this function.
            if let Err(mut turn) = next.send(Turn(Some(self.clone()))) {
                turn.0 = None;
                self.lock().free += 1;
            }
        }
    }
}

impl Queue {
    fn waiting(&self) -> usize {
        self.clients.iter().map(|(_, places)| places.len()).sum()
    }

    fn waiting_of(&self, client: Client) -> usize {
        self.clients.iter().find(|(other, _)| *other == client).map_or(0, |(_, places)| places.len())
    }

    /// Forgets those that have left.
    fn prune(&mut self) {
        self.clients.iter_mut().for_each(|(_, places)| places.retain(|place| !place.is_closed()));
        self.clients.retain(|(_, places)| !places.is_empty());
    }

    /// Takes as many places as `count` more need from clients that have more than this one would have. Returns them, so that they are dropped without the
    /// lock.
    fn make_room(&mut self, client: Client, count: usize, most: usize) -> Result<Vec<Sender<Turn>>, Full> {
        self.prune();
        let needed = (self.waiting() + count).saturating_sub(most);
        let own = self.waiting_of(client) + count;
        let over = |places: &VecDeque<_>| places.len().saturating_sub(own);
        let there: usize = self.clients.iter().filter(|(other, _)| *other != client).map(|(_, places)| over(places)).sum();
        if there < needed {
            return Err(Full);
        }
        let longest = |clients: &mut VecDeque<(Client, VecDeque<Sender<Turn>>)>| {
            let others = clients.iter_mut().filter(|(other, _)| *other != client);
            others.max_by_key(|(_, places)| places.len()).and_then(|(_, places)| places.pop_back())
        };
        let displaced = (0..needed).filter_map(|_| longest(&mut self.clients)).collect();
        self.clients.retain(|(_, places)| !places.is_empty());
        Ok(displaced)
    }

    /// Adds a place behind the client's others.
    fn push(&mut self, client: Client) -> Place {
        let (sender, receiver) = channel();
        match self.clients.iter_mut().find(|(other, _)| *other == client) {
            Some((_, places)) => places.push_back(sender),
            None => self.clients.push_back((client, VecDeque::from([sender]))),
        }
        Place(receiver)
    }

    /// Adds a place before the client's others, and lets other clients go first.
    fn push_begun(&mut self, client: Client) -> Place {
        let (sender, receiver) = channel();
        let at = self.clients.iter().position(|(other, _)| *other == client);
        let mut places = at.and_then(|at| self.clients.remove(at)).map_or_else(VecDeque::new, |(_, places)| places);
        places.push_front(sender);
        self.clients.push_back((client, places));
        Place(receiver)
    }

    /// The next whose turn it is. Its client comes last afterwards.
    fn pop(&mut self) -> Option<Sender<Turn>> {
        let (client, mut places) = self.clients.pop_front()?;
        let next = places.pop_front();
        if !places.is_empty() {
            self.clients.push_back((client, places));
        }
        next
    }
}

impl Place {
    /// Waits for the turn.
    pub async fn turn(self) -> Result<Turn, Full> {
        self.0.await.map_err(|_| Full)
    }
}

impl Turn {
    /// Lets others go first, if any wait, and returns the place for the next turn: before the client's others, so that work that has begun is the last to
    /// lose its place.
    pub fn pass(mut self, client: Client) -> Option<Place> {
        let turns = self.0.take()?;
        let mut queue = turns.lock();
        let place = queue.push_begun(client);
        queue.free += 1;
        drop(queue);
        turns.give();
        Some(place)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = mem::take(&mut self.0) {
            turns.lock().free += 1;
            turns.give();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(place: &mut Place) -> Option<Turn> {
        place.0.try_recv().ok()
    }

    fn enter(turns: &Arc<Turns>, client: usize) -> Result<Place, Full> {
        turns.place(Client::Key(client))
    }

    #[test]
    fn clients_take_turns() {
        let turns = Turns::new(1, 100);
        let mut places: Vec<Place> = [0, 0, 0, 0, 1, 1, 2].map(|client| enter(&turns, client).unwrap()).into();
        let mut order = Vec::new();
        let mut held = None;
        for _ in 0..7 {
            drop(held.take());
            let n = (0..7)
                .find(|&n| {
                    held = ready(&mut places[n]);
                    held.is_some()
                })
                .unwrap();
            order.push(n);
        }
        assert_eq!(order, [0, 1, 4, 6, 2, 5, 3], "after the first, one of each");
        drop(held);
        assert_eq!(turns.counts(), Counts { running: 0, waiting: 0 });
    }

    #[test]
    fn places_are_shared_when_they_run_out() {
        let turns = Turns::new(1, 4);
        let mut first: Vec<Place> = (0..5).map(|_| enter(&turns, 0).unwrap()).collect();
        assert!(enter(&turns, 0).is_err(), "one client has all");
        let second = [enter(&turns, 1).unwrap(), enter(&turns, 1).unwrap()];
        assert!(enter(&turns, 1).is_err() && enter(&turns, 0).is_err(), "two have half each");
        assert!(turns.enter(Client::Key(2), 2).is_err(), "as much as it would take from others");
        let third = enter(&turns, 2).unwrap();
        let lost = |place: &mut Place| matches!(place.0.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Closed));
        assert!(lost(&mut first[4]) && lost(&mut first[3]), "the last of the first client");
        assert_eq!(turns.counts(), Counts { running: 1, waiting: 4 });
        drop((second, third, first));
        assert_eq!(turns.counts(), Counts { running: 0, waiting: 0 }, "all have left");
    }

    #[test]
    fn work_that_has_begun_loses_its_place_last() {
        let turns = Turns::new(1, 2);
        let turn = ready(&mut enter(&turns, 0).unwrap()).unwrap();
        let mut waiting = [enter(&turns, 0).unwrap(), enter(&turns, 1).unwrap()];
        let mut begun = turn.pass(Client::Key(0)).unwrap();
        let turn = ready(&mut waiting[1]).expect("another client goes first");
        let other = enter(&turns, 2).unwrap();
        let lost = |place: &mut Place| matches!(place.0.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Closed));
        assert!(lost(&mut waiting[0]) && !lost(&mut begun));
        drop((turn, other));
        assert!(ready(&mut begun).is_some());
    }

    #[test]
    fn who_leaves_takes_no_turn() {
        let turns = Turns::new(1, 4);
        let mut held = enter(&turns, 0).unwrap();
        let turn = ready(&mut held).unwrap();
        let (left, mut stays) = (enter(&turns, 0).unwrap(), enter(&turns, 1).unwrap());
        drop(left);
        drop(turn);
        let turn = ready(&mut stays).unwrap();
        let mut next = turn.pass(Client::Key(1)).unwrap();
        assert!(ready(&mut next).is_some(), "nobody else waits");
        // A turn that came, and nobody took.
        let (one, two) = (enter(&turns, 0).unwrap(), enter(&turns, 0));
        drop(one);
        assert!(ready(&mut two.unwrap()).is_some());
    }
}
