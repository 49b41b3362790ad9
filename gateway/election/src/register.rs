//! The operations that a store must offer to an election: one versioned record with read, compare-and-swap and watch.
//!
//! Nothing here blocks. A request carries a [`RequestId`]. Answers and watch events come through the [`RegisterSender`]
//! that the store was opened with, from the store's own cold thread. Several requests may be outstanding; answers may
//! come in any order, late, or as *unknown*.

use super::record::Record;

/// One group's record in a store. Each method submits a request and returns at once.
pub trait Register: Send {
    /// Reads the newest record, bypassing all caches: the answer shows a record that was in force at some moment after
    /// the call.
    fn read(&mut self, request_id: RequestId);

    /// Replaces the version `expected`, and no other, by `record`; [`Version::NONE`]: only if there is no record. Tried
    /// once: a request of unknown outcome is answered as [`Outcome::Unknown`], never repeated.
    fn compare_and_swap(&mut self, request_id: RequestId, expected: Version, record: &Record);

    /// Reports each change as [`RegisterEvent::Changed`] from now on. Versions may be skipped; the newest is always
    /// reported eventually. A store that cannot watch polls.
    fn watch(&mut self);

    /// Drops connections whose requests are overdue; later requests use a fresh connection. Outstanding requests are
    /// answered as unknown, or not at all. [`StoreLink::InDoubt`] is reported before anything from the new connection.
    fn reconnect(&mut self);
}

/// Events from a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegisterEvent {
    /// The answer to the request with that id.
    Answer {
        /// The request's id.
        request_id: RequestId,
        /// The request's outcome.
        outcome: Outcome,
    },
    /// The watch observed this record; `None`: the record was removed.
    Changed(Option<Versioned>),
    /// The connection's state.
    StoreLink(StoreLink),
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// To a read: the newest record, if there is one.
    Read(Option<Versioned>),
    /// To a swap: it is in force, under this version.
    Swapped(Version),
    /// To a swap: another version was in force. Nothing has changed.
    Refused,
    /// It may or may not have taken effect, now or later.
    Unknown(String),
    /// It has not taken effect and never will. To a read: the stored value is not a record.
    Failed(String),
}

/// A record with its version in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Versioned {
    /// Version under which the store holds the record.
    pub version: Version,
    /// The value itself, decoded and checked.
    pub record: Record,
}

/// Version of a record in its store, never 0. It grows with each change, unless the store was restored or its record
/// created anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// The version of a record that does not exist.
    pub const NONE: Self = Self(0);
}

/// Identifies a request. Chosen by the requester, never used twice within a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// State of the connection to the store, as the store's client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreLink {
    /// Requests are answered.
    Up,
    /// In doubt: the connection may recover. Reported before anything from a later connection, since that connection
    /// may lead to a restored store.
    InDoubt,
    /// The session has ended: knowledge from that session is void.
    Ended,
}

/// Requests of an election to its store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegisterRequest {
    /// [`Register::read`].
    Read(RequestId),
    /// [`Register::compare_and_swap`].
    CompareAndSwap {
        /// Identifies the request.
        request_id: RequestId,
        /// The version to replace.
        expected: Version,
        /// Record to be stored if the version is still `expected`.
        record: Box<Record>,
    },
    /// [`Register::reconnect`].
    Reconnect,
}

impl RegisterRequest {
    /// Calls the matching method of `register`.
    pub(crate) fn submit_to(&self, register: &mut dyn Register) {
        match self {
            Self::Read(request_id) => register.read(*request_id),
            Self::CompareAndSwap { request_id, expected, record } => {
                register.compare_and_swap(*request_id, *expected, record);
            }
            Self::Reconnect => register.reconnect(),
        }
    }
}

/// Delivers a store's events to the election thread, which wakes up. Clones share the destination.
pub type RegisterSender = std::sync::Arc<dyn Fn(RegisterEvent) + Send + Sync>;
