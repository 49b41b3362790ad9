//! Who may hold a connection. Waiting for a request costs little, so a newcomer always has a place: the oldest waiting connection of
//! the address that holds most makes room for it. Answers that may take long are limited in number; those about health are not,
//! since they fit into the socket's buffer and end at once.

use std::{collections::BTreeMap, net::IpAddr};

use crate::limits;

/// The open connections, each with what closes it.
#[derive(Debug)]
pub(crate) struct Places<H> {
    /// By number, so the oldest comes first.
    held: BTreeMap<u64, Held<H>>,
    next: u64,
}

#[derive(Debug)]
struct Held<H> {
    /// `None`: a socket of the file system.
    from: Option<IpAddr>,
    stage: Stage,
    handle: Option<H>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// For a request.
    Waiting,
    Health,
    Document,
}

impl<H> Default for Places<H> {
    fn default() -> Self {
        Self { held: BTreeMap::new(), next: 0 }
    }
}

impl<H> Places<H> {
    /// A place for a new connection: its number, and the handle of the connection that has to be closed for it.
    pub(crate) fn admit(&mut self, from: Option<IpAddr>) -> (u64, Option<H>) {
        let displaced = self.displaced(from).and_then(|number| self.held.remove(&number)?.handle);
        let number = self.next;
        self.next += 1;
        self.held.insert(number, Held { from, stage: Stage::Waiting, handle: None });
        (number, displaced)
    }

    /// Sets what closes the connection.
    pub(crate) fn set_handle(&mut self, number: u64, handle: H) {
        if let Some(held) = self.held.get_mut(&number) {
            held.handle = Some(handle);
        }
    }

    /// The connection's request has arrived. `false`: there is no place for its answer.
    pub(crate) fn begin_answer(&mut self, number: u64, is_health: bool) -> bool {
        let from = self.held.get(&number).and_then(|held| held.from);
        let documents = || self.held.values().filter(|held| held.stage == Stage::Document);
        let is_limited = from.is_some_and(|from| !from.is_loopback());
        let of_peer = || documents().filter(|held| held.from == from).count();
        let has_place = is_health
            || documents().count() < limits::ANSWERS_MAX && !(is_limited && of_peer() >= limits::ANSWERS_PER_PEER_MAX);
        if let Some(held) = self.held.get_mut(&number) {
            // A refusal is as short as an answer about health.
            held.stage = if has_place && !is_health { Stage::Document } else { Stage::Health };
        }
        has_place
    }

    /// The connection has ended.
    pub(crate) fn release(&mut self, number: u64) {
        self.held.remove(&number);
    }

    /// The connection that makes room for one from that address, if all places are taken.
    fn displaced(&self, newcomer: Option<IpAddr>) -> Option<u64> {
        let waiting = || self.held.iter().filter(|(_, held)| held.stage == Stage::Waiting);
        if waiting().count() < limits::WAITING_MAX {
            return None;
        }
        let mut places: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
        for (_, held) in waiting() {
            *places.entry(held.from).or_default() += 1;
        }
        // A newcomer counts with what it would hold: at equal numbers its own address loses a place.
        places.entry(newcomer).and_modify(|count| *count += 1);
        let most = places.values().max()?;
        waiting().find(|(_, held)| places.get(&held.from) == Some(most)).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[allow(clippy::unnecessary_wraps, reason = "as it is taken")]
    fn host(last: u8) -> Option<IpAddr> {
        Some(Ipv4Addr::new(10, 0, 0, last).into())
    }

    fn admit(places: &mut Places<u64>, from: Option<IpAddr>) -> (u64, Option<u64>) {
        let (number, displaced) = places.admit(from);
        places.set_handle(number, number);
        (number, displaced)
    }

    #[test]
    fn an_idle_host_displaces_its_own_oldest_connections_and_others_keep_theirs() {
        let mut places = Places::default();
        let (quiet, _) = admit(&mut places, host(1));
        let idle: Vec<_> = (1..limits::WAITING_MAX).map(|_| admit(&mut places, host(2))).collect();
        assert!(idle.iter().all(|(_, displaced)| displaced.is_none()));
        assert_eq!(admit(&mut places, host(2)).1, Some(idle[0].0));
        assert_eq!(admit(&mut places, host(3)).1, Some(idle[1].0), "a newcomer always has a place");
        assert!(places.held.contains_key(&quiet));
        // On one host all have one address, and the newest have the places.
        let mut places = Places::default();
        let local = Some(Ipv4Addr::LOCALHOST.into());
        let numbers: Vec<_> = (0..limits::WAITING_MAX).map(|_| admit(&mut places, local).0).collect();
        assert_eq!(admit(&mut places, local).1, Some(numbers[0]));
        // A connection that is being answered is displaced by none.
        assert!(places.begin_answer(numbers[1], true));
        assert_eq!(admit(&mut places, local).1, None);
        assert_eq!(admit(&mut places, local).1, Some(numbers[2]));
        places.release(numbers[3]);
        assert_eq!(admit(&mut places, local).1, None);
    }

    #[test]
    fn answers_are_limited_in_all_and_by_address_but_for_health() {
        let mut places = Places::default();
        let mut ask = |from, is_health| {
            let (number, _) = admit(&mut places, from);
            (number, places.begin_answer(number, is_health))
        };
        for _ in 0..limits::ANSWERS_PER_PEER_MAX {
            assert!(ask(host(1), false).1);
        }
        assert!(!ask(host(1), false).1, "the address has its share");
        for _ in limits::ANSWERS_PER_PEER_MAX..limits::ANSWERS_MAX {
            assert!(ask(Some(Ipv4Addr::LOCALHOST.into()), false).1);
        }
        assert!(!ask(host(2), false).1, "all places are taken");
        assert!((0..100).all(|_| ask(host(1), true).1), "health has no limit");
    }
}
