//! The open sessions as an operator sees them: the client, its subscriptions, and how far it is behind.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{protocol::SlowReader, schema::Schemas, stream::dataset::Dataset};

/// One open session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// Address of the client.
    pub peer: SocketAddr,
    /// Name of its key.
    pub key: String,
    /// The client's name of itself.
    pub client: String,
    /// The dataset that it named at its authentication.
    pub dataset: &'static str,
    /// When it was authenticated, ns since 1970 UTC.
    pub began_ns: u64,
    /// What it subscribed to.
    pub subscribed: Subscribed,
    /// Where it is in its stream.
    pub phase: SessionPhase,
    /// Bytes of the latest records that were not sent to it yet; `None`: it is further behind than those records reach, or it
    /// replays.
    pub behind_bytes: Option<u64>,
    /// Bytes that wait for its socket.
    pub unsent_bytes: u64,
    /// Bytes that its socket has taken.
    pub sent_bytes: u64,
    /// How often records were skipped after slow reading.
    pub skips: u64,
}

/// What a session subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribed {
    /// Schemas of any symbol.
    pub schemas: Schemas,
    /// Number of symbols; `None`: all, of some schema.
    pub symbols: Option<usize>,
    /// What happens if it is behind.
    pub policy: SlowReader,
}

/// Where a session is in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionPhase {
    /// The client has not sent `start_session`.
    Waiting,
    /// Records come from the log.
    Replaying,
    /// Records come from the ring of the latest records.
    Live,
}

impl SessionPhase {
    /// `waiting`, `replaying` or `live`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Replaying => "replaying",
            Self::Live => "live",
        }
    }
}

/// How far a session is. The session stores it; a reader holds the lock only while it copies the subscriptions.
#[derive(Debug)]
pub(crate) struct SessionProgress {
    /// The chunk of the ring that it reads next, or [`WAITING`] or [`REPLAYING`].
    position: AtomicU64,
    unsent_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    skips: AtomicU64,
    subscribed: Mutex<Subscribed>,
    totals: Arc<SessionTotals>,
}

/// Sums over all sessions since the start, also those that have ended.
#[derive(Debug, Default)]
pub(crate) struct SessionTotals {
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) skips: AtomicU64,
}

/// Position of a session without `start_session`.
const WAITING: u64 = u64::MAX;
/// Position of a session that replays.
const REPLAYING: u64 = u64::MAX - 1;

impl SessionProgress {
    /// A session that has not begun, and that `totals` count.
    pub(crate) fn new(totals: Arc<SessionTotals>) -> Self {
        let nothing = Subscribed { schemas: Schemas::default(), symbols: Some(0), policy: SlowReader::Warn };
        Self {
            position: AtomicU64::new(WAITING),
            unsent_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            skips: AtomicU64::new(0),
            subscribed: Mutex::new(nothing),
            totals,
        }
    }

    /// The session reads that chunk of the ring next.
    pub(crate) fn set_live(&self, chunk: u64) {
        self.position.store(chunk, Relaxed);
    }

    /// The session reads the log, until it has reached the ring.
    pub(crate) fn set_replaying(&self) {
        self.position.store(REPLAYING, Relaxed);
    }

    /// That many bytes wait for its socket.
    pub(crate) fn set_unsent(&self, bytes: usize) {
        self.unsent_bytes.store(bytes as u64, Relaxed);
    }

    /// The socket took that many bytes.
    pub(crate) fn add_sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Relaxed);
        self.totals.sent_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Records were skipped.
    pub(crate) fn add_skip(&self) {
        self.skips.fetch_add(1, Relaxed);
        self.totals.skips.fetch_add(1, Relaxed);
    }

    /// Its subscriptions have changed.
    pub(crate) fn set_subscribed(&self, subscribed: Subscribed) {
        *self.subscribed() = subscribed;
    }

    fn subscribed(&self) -> MutexGuard<'_, Subscribed> {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All open sessions by their numbers.
#[derive(Debug, Default)]
pub(crate) struct OpenSessions(Mutex<BTreeMap<u64, Entry>>);

/// An open session.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) peer: SocketAddr,
    pub(crate) key: String,
    pub(crate) client: String,
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) began_ns: u64,
    pub(crate) progress: Arc<SessionProgress>,
}

/// A session that is listed. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    sessions: &'a OpenSessions,
    id: u64,
}

impl OpenSessions {
    /// Lists a session until the result is dropped.
    pub(crate) fn list(&self, id: u64, entry: Entry) -> Listed<'_> {
        self.entries().insert(id, entry);
        Listed { sessions: self, id }
    }

    /// All of them, the oldest first.
    pub(crate) fn status(&self) -> Vec<SessionStatus> {
        self.entries().values().map(Entry::status).collect()
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn status(&self) -> SessionStatus {
        let (phase, behind_bytes) = match self.progress.position.load(Relaxed) {
            WAITING => (SessionPhase::Waiting, Some(0)),
            REPLAYING => (SessionPhase::Replaying, None),
            chunk => (SessionPhase::Live, self.dataset.ring.bytes_behind(chunk)),
        };
        SessionStatus {
            peer: self.peer,
            key: self.key.clone(),
            client: self.client.clone(),
            dataset: self.dataset.name,
            began_ns: self.began_ns,
            subscribed: *self.progress.subscribed(),
            phase,
            behind_bytes,
            unsent_bytes: self.progress.unsent_bytes.load(Relaxed),
            sent_bytes: self.progress.sent_bytes.load(Relaxed),
            skips: self.progress.skips.load(Relaxed),
        }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.sessions.entries().remove(&self.id);
    }
}
