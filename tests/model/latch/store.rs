//! A model of ZooKeeper: a queue of places, the sessions that hold them, and an epoch with a version.

use mdgw_election::{
    identity::{Incarnation, Member, NodeId, NodeName},
    register::Version,
    session_latch::{QueueEntry, SessionAnswer},
};
use mdgw_feeds::identity::Epoch;

/// A gateway, and the number of its session.
pub(super) type SessionId = (usize, u32);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct LatchStore {
    /// Places in the order of joining.
    queue: Vec<StoredEntry>,
    joined: u32,
    pub(super) sessions: Vec<Session>,
    epoch: Epoch,
    pub(super) version: Version,
    /// How the first place of the queue was last removed.
    pub(super) last_removal: Option<Removal>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct StoredEntry {
    number: u32,
    session: SessionId,
    incarnation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub(super) id: SessionId,
    incarnation: u64,
    /// Times of contact: the last one that the node which ends sessions surely knows, and all later ones.
    contacts: Vec<u64>,
    /// Number of the entry that the session waits to see removed.
    watches: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Removal {
    Ended,
    Removed,
    Left,
}

/// The store ends a session after this time without contact.
pub(super) const SESSION_TIMEOUT: u64 = 150;

impl LatchStore {
    pub(super) fn begin_session(&mut self, id: SessionId, incarnation: u64, now: u64) {
        self.sessions.push(Session { id, incarnation, contacts: vec![now], watches: None });
    }

    fn session(&mut self, id: SessionId) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.id == id)
    }

    /// Records a contact of that session. Returns whether the session still exists.
    pub(super) fn record_contact(&mut self, id: SessionId, now: u64, session_end_delay: u64) -> bool {
        let Some(session) = self.session(id) else { return false };
        let before_known = session.last_known_contact(now, session_end_delay);
        session.contacts.drain(..before_known);
        session.contacts.push(now);
        session.contacts.dedup();
        true
    }

    pub(super) fn has_place(&self, number: u32) -> bool {
        self.queue.iter().any(|place| place.number == number)
    }

    /// The first place of a session.
    pub(super) fn place_of(&self, id: SessionId) -> Option<u32> {
        self.queue.iter().find(|place| place.session == id).map(|place| place.number)
    }

    pub(super) fn place_named(&self, name: &str) -> Option<u32> {
        self.queue.iter().map(|place| place.number).find(|number| name_of(*number) == name)
    }

    /// Appends a place for a session. `None`: the session has ended.
    pub(super) fn join(&mut self, session: SessionId) -> Option<u32> {
        let incarnation = self.session(session)?.incarnation;
        self.joined += 1;
        self.queue.push(StoredEntry { number: self.joined, session, incarnation });
        Some(self.joined)
    }

    /// The answer, and the place that the client identifies as its own.
    pub(super) fn read_queue(&mut self, from: SessionId) -> (SessionAnswer, Option<u32>) {
        let own = self.queue.iter().position(|place| place.session == from);
        let before = own.and_then(|own| own.checked_sub(1)).map(|before| self.queue[before].number);
        if let Some(session) = self.session(from) {
            session.watches = before;
        }
        let place = |place: &StoredEntry| QueueEntry {
            name: name_of(place.number),
            member: Some(member(place.session.0, place.incarnation)),
        };
        let entries = self.queue.iter().map(place).collect();
        let answer = SessionAnswer::Queue { entries, own, epoch: self.epoch, version: self.version };
        (answer, own.map(|own| self.queue[own].number))
    }

    pub(super) fn take_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.version.0 += 1;
    }

    /// Removes a place and returns its watcher; `None`: it did not exist.
    pub(super) fn remove(&mut self, number: u32, how: Removal) -> Option<Vec<SessionId>> {
        let index = self.queue.iter().position(|place| place.number == number)?;
        self.queue.remove(index);
        if index == 0 {
            self.last_removal = Some(how);
        }
        let watchers = self.sessions.iter_mut().filter_map(|session| {
            let watched = session.watches.take_if(|watched| *watched == number);
            watched.map(|_| session.id)
        });
        Some(watchers.collect())
    }
}

impl Session {
    /// Index of the last contact that the node which ends sessions surely knows.
    fn last_known_contact(&self, now: u64, session_end_delay: u64) -> usize {
        self.contacts.iter().rposition(|contacts| contacts + session_end_delay <= now).unwrap_or(0)
    }

    /// The earliest time at which the session may end, on a clock that is fast by a hundredth.
    pub(super) fn may_end(&self, now: u64, session_end_delay: u64) -> u64 {
        self.contacts[self.last_known_contact(now, session_end_delay)] + SESSION_TIMEOUT * 100 / 101
    }
}

pub(super) fn id_of(node: usize) -> NodeId {
    NodeId(u8::try_from(node + 1).expect("few gateways"))
}

pub(super) fn member(node: usize, incarnation: u64) -> Member {
    let name = NodeName::new(&format!("n{}", node + 1)).expect("a plain name");
    Member { node: id_of(node), name, incarnation: Incarnation(incarnation) }
}

fn name_of(number: u32) -> String {
    format!("p{number}")
}
