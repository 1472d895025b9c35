//! Permits that clients get in turns, however many requests each has.

use crate::client::Client;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot::{Receiver, Sender, channel};

/// A number of permits, and a bounded queue for them. The next permit goes to another client than
/// the last one, if another waits. One client alone may use all permits, unless it has a
/// [share](Self::with_share), and the whole queue; another that comes then takes the place of the
/// last that the first has waiting.
pub struct Turns {
    permits: usize,
    most_waiting: usize,
    /// Permits that one client has at most.
    share: usize,
    queue: Mutex<Queue>,
}

struct Queue {
    free: usize,
    /// Permits in use, by client. None is zero.
    held: HashMap<Client, usize>,
    /// Those that wait, by client, in the order of the clients' turns. None is empty.
    clients: VecDeque<(Client, VecDeque<Sender<Turn>>)>,
}

/// A permit: whose turn it is. Dropped, it goes to the next.
pub struct Turn(Option<(Arc<Turns>, Client)>);

/// A place in the queue. Dropped, it is left.
pub struct Place(Receiver<Turn>);

/// The error of a full queue, or of a place that another client took as its share.
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
        Self::with_share(permits, permits, most_waiting)
    }

    /// Creates turns of which one client has at most `share` permits at a time. What is free beyond
    /// them waits for other clients.
    pub fn with_share(permits: usize, share: usize, most_waiting: usize) -> Arc<Self> {
        let queue =
            Mutex::new(Queue { free: permits, held: HashMap::new(), clients: VecDeque::new() });
        Arc::new(Self { permits, most_waiting, share, queue })
    }

    /// Takes a place for each of `count` permits, or none.
    pub fn enter(self: &Arc<Self>, client: Client, count: usize) -> Result<Vec<Place>, Full> {
        let mut queue = self.lock();
        let waiting =
            count.saturating_sub(queue.free.min(self.share.saturating_sub(queue.held_by(client))));
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
            let Some((client, next)) = queue.pop(self.share) else { return };
            queue.take(client);
            drop(queue);
            // Who has left gets nothing. The permit is not dropped here, as that would come back to
            // this function.
            if let Err(mut turn) = next.send(Turn(Some((self.clone(), client)))) {
                turn.0 = None;
                self.lock().give_back(client);
            }
        }
    }
}

impl Queue {
    fn held_by(&self, client: Client) -> usize {
        self.held.get(&client).copied().unwrap_or(0)
    }

    fn take(&mut self, client: Client) {
        self.free -= 1;
        *self.held.entry(client).or_default() += 1;
    }

    fn give_back(&mut self, client: Client) {
        self.free += 1;
        match self.held.get_mut(&client) {
            Some(held) if *held > 1 => *held -= 1,
            _ => drop(self.held.remove(&client)),
        }
    }

    fn waiting(&self) -> usize {
        self.clients.iter().map(|(_, places)| places.len()).sum()
    }

    fn waiting_of(&self, client: Client) -> usize {
        self.clients
            .iter()
            .find(|(other, _)| *other == client)
            .map_or(0, |(_, places)| places.len())
    }

    /// Forgets those that have left.
    fn prune(&mut self) {
        self.clients.iter_mut().for_each(|(_, places)| places.retain(|place| !place.is_closed()));
        self.clients.retain(|(_, places)| !places.is_empty());
    }

    /// Takes as many places as `count` more need from clients that have more than this one would
    /// have, in permits and places together: one that has many permits gives its place to one that
    /// has nothing. Returns the places, so that they are dropped without the lock.
    fn make_room(
        &mut self,
        client: Client,
        count: usize,
        most: usize,
    ) -> Result<Vec<Sender<Turn>>, Full> {
        self.prune();
        let needed = (self.waiting() + count).saturating_sub(most);
        let own = self.waiting_of(client) + self.held_by(client) + count;
        let Self { held, clients, .. } = self;
        let held_by = |client: &Client| held.get(client).copied().unwrap_or(0);
        let over = |(other, places): &(Client, VecDeque<_>)| {
            (places.len() + held_by(other)).saturating_sub(own).min(places.len())
        };
        let others = |(other, _): &&(Client, VecDeque<_>)| *other != client;
        if clients.iter().filter(others).map(over).sum::<usize>() < needed {
            return Err(Full);
        }
        let displaced = (0..needed).filter_map(|_| {
            let others =
                clients.iter_mut().filter(|(other, places)| *other != client && !places.is_empty());
            let most = others.max_by_key(|(other, places)| places.len() + held_by(other));
            most.and_then(|(_, places)| places.pop_back())
        });
        let displaced = displaced.collect();
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
        let mut places = at
            .and_then(|at| self.clients.remove(at))
            .map_or_else(VecDeque::new, |(_, places)| places);
        places.push_front(sender);
        self.clients.push_back((client, places));
        Place(receiver)
    }

    /// Takes the next whose turn it is out of the queue, with its client, which comes last
    /// afterwards. Clients that have their share are passed over.
    fn pop(&mut self, share: usize) -> Option<(Client, Sender<Turn>)> {
        let next = self.clients.iter().position(|(client, _)| self.held_by(*client) < share)?;
        let (client, mut places) = self.clients.remove(next)?;
        let place = places.pop_front()?;
        if !places.is_empty() {
            self.clients.push_back((client, places));
        }
        Some((client, place))
    }
}

impl Place {
    /// Waits for the turn.
    pub async fn turn(self) -> Result<Turn, Full> {
        self.0.await.map_err(|_| Full)
    }
}

impl Turn {
    /// Lets others go first, if any wait, and returns the place for the next turn: before the
    /// client's others, so that work that has begun is the last to lose its place.
    pub fn pass(mut self) -> Option<Place> {
        let (turns, client) = self.0.take()?;
        let mut queue = turns.lock();
        let place = queue.push_begun(client);
        queue.give_back(client);
        drop(queue);
        turns.give();
        Some(place)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((turns, client)) = self.0.take() {
            turns.lock().give_back(client);
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
        let mut places: Vec<Place> =
            [0, 0, 0, 0, 1, 1, 2].map(|client| enter(&turns, client).unwrap()).into();
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
    fn one_client_leaves_permits_to_others() {
        let turns = Turns::with_share(4, 2, 4);
        let mut first: Vec<Place> = turns.enter(Client::Key(0), 6).unwrap();
        let held: Vec<Turn> = first.iter_mut().filter_map(ready).collect();
        assert_eq!(
            (held.len(), turns.counts()),
            (2, Counts { running: 2, waiting: 4 }),
            "its share, and the whole queue"
        );
        assert!(enter(&turns, 0).is_err());
        let second = ready(&mut enter(&turns, 1).unwrap()).expect("a permit is free");
        let third = ready(&mut enter(&turns, 2).unwrap()).expect("and another one");
        assert_eq!(turns.counts(), Counts { running: 4, waiting: 4 });
        drop((second, third));
        assert!(first.iter_mut().all(|place| ready(place).is_none()), "no more than its share");
        drop(held);
        let held: Vec<Turn> = first.iter_mut().filter_map(ready).collect();
        assert_eq!(held.len(), 2, "its next two");
        drop((held, first));
        assert_eq!(turns.counts(), Counts { running: 0, waiting: 0 });
        assert!(turns.lock().held.is_empty());
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
        let lost = |place: &mut Place| {
            matches!(place.0.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Closed))
        };
        assert!(lost(&mut first[4]) && lost(&mut first[3]), "the last of the first client");
        assert_eq!(turns.counts(), Counts { running: 1, waiting: 4 });
        drop((second, third, first));
        assert_eq!(turns.counts(), Counts { running: 0, waiting: 0 }, "all have left");
    }

    #[test]
    fn permits_count_when_places_run_out() {
        let turns = Turns::new(2, 2);
        let mut first: Vec<Place> = turns.enter(Client::Key(0), 3).unwrap();
        let held: Vec<Turn> = first.iter_mut().filter_map(ready).collect();
        let second = enter(&turns, 1).unwrap();
        let third =
            enter(&turns, 2).expect("it has nothing, and the first has two permits and a place");
        assert!(enter(&turns, 3).is_err(), "those that wait have one each");
        assert_eq!((held.len(), turns.counts()), (2, Counts { running: 2, waiting: 2 }));
        assert!(matches!(
            first[2].0.try_recv(),
            Err(tokio::sync::oneshot::error::TryRecvError::Closed)
        ));
        drop((second, third));
    }

    #[test]
    fn work_that_has_begun_loses_its_place_last() {
        let turns = Turns::new(1, 2);
        let turn = ready(&mut enter(&turns, 0).unwrap()).unwrap();
        let mut waiting = [enter(&turns, 0).unwrap(), enter(&turns, 1).unwrap()];
        let mut begun = turn.pass().unwrap();
        let turn = ready(&mut waiting[1]).expect("another client goes first");
        let other = enter(&turns, 2).unwrap();
        let lost = |place: &mut Place| {
            matches!(place.0.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Closed))
        };
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
        let mut next = turn.pass().unwrap();
        assert!(ready(&mut next).is_some(), "nobody else waits");
        // A turn that came, and nobody took.
        let (one, two) = (enter(&turns, 0).unwrap(), enter(&turns, 0));
        drop(one);
        assert!(ready(&mut two.unwrap()).is_some());
    }
}
