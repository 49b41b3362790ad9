//! What a store must offer to an election: one versioned record with read, compare-and-swap and watch.
//!
//! Nothing here waits. A request is handed in with a ticket; its answer, and what the watch saw, come back through the
//! [`RegisterSender`] that the store was opened with, from the store's own cold thread. Several requests may be in
//! flight; answers may come in any order, late, or as *unknown*.

use super::record::Record;

/// One group's record in a store. Its methods hand a request in and return at once.
pub trait Register: Send {
    /// Asks for the newest record, past all caches: an answer holds what was in force at some moment after the call.
    fn read(&mut self, request_id: RequestId);

    /// Puts `record` in the place of the version `expected`, and of no other; [`Version::NONE`]: only if there is no
    /// record. Tried once: a request whose fate is not known is answered as [`Outcome::Unknown`], never repeated.
    fn compare_and_swap(&mut self, request_id: RequestId, expected: Version, record: &Record);

    /// From now on each change is told as [`RegisterEvent::Changed`]. Versions may be skipped, the newest is always
    /// told in the end. Who can't watch polls.
    fn watch(&mut self);

    /// Gives up connections whose requests are overdue: what is asked next goes over a fresh one. What was under way
    /// is answered as unknown, or not at all; [`StoreLink::InDoubt`] is told before anything that comes over the new one.
    fn reconnect(&mut self);
}

/// What comes from a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegisterEvent {
    /// The answer to the request with that ticket.
    Answer {
        /// Of the request.
        request_id: RequestId,
        /// What came of it.
        outcome: Outcome,
    },
    /// The watch saw this; `None`: the record was removed.
    Changed(Option<Versioned>),
    /// How the connection is.
    StoreLink(StoreLink),
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// To a read: the newest record, if there is one.
    Read(Option<Versioned>),
    /// To a swap: it is in force, under this version.
    Swapped(Version),
    /// To a swap: another version was in force. Nothing has changed.
    Refused,
    /// It may or may not have happened, now or later.
    Unknown(String),
    /// It has not happened and never will; or, to a read: there is something that is no record.
    Failed(String),
}

/// A record with the version it stands under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Versioned {
    /// Its version.
    pub version: Version,
    /// What it says.
    pub record: Record,
}

/// Version of a record in its store, never 0; grows with each change, unless the store was restored or its record
/// created anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// There is no record.
    pub const NONE: Self = Self(0);
}

/// Names a request. Chosen by who asks, never used twice within a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// State of the connection to the store, as the store's client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreLink {
    /// Requests are answered.
    Up,
    /// In doubt: it may come back. Told before anything from a later connection, since that may lead to a store that
    /// was restored meanwhile.
    InDoubt,
    /// The session has ended: what was known under it counts no more.
    Ended,
}

/// What an election asks of its store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegisterRequest {
    /// [`Register::read`].
    Read(RequestId),
    /// [`Register::compare_and_swap`].
    CompareAndSwap {
        /// Names it.
        request_id: RequestId,
        /// The version it replaces.
        expected: Version,
        /// What takes its place.
        record: Box<Record>,
    },
    /// [`Register::reconnect`].
    Reconnect,
}

impl RegisterRequest {
    /// Hands it in.
    pub fn submit_to(&self, register: &mut dyn Register) {
        match self {
            Self::Read(request_id) => register.read(*request_id),
            Self::CompareAndSwap { request_id, expected, record } => {
                register.compare_and_swap(*request_id, *expected, record);
            }
            Self::Reconnect => register.reconnect(),
        }
    }
}

/// Where a store's events go: to the election thread, which wakes up. Clones go to the same place.
pub type RegisterSender = std::sync::Arc<dyn Fn(RegisterEvent) + Send + Sync>;
