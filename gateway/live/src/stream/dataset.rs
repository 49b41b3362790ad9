//! What the sessions of a dataset share.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Deref,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{
            AtomicBool, AtomicU16, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::{Duration, Instant},
};

use tokio::sync::{oneshot, watch};

use super::{channel::ChannelSource, replay_places::ReplayPlaces, ring::Ring};
use crate::schema::Schemas;

/// One dataset.
#[derive(Debug)]
pub(crate) struct Dataset {
    pub(crate) name: &'static str,
    /// The channels whose logs make up the dataset.
    pub(crate) sources: Vec<ChannelSource>,
    /// Records that sessions read, up to the configured bytes.
    pub(crate) ring: Ring,
    symbols: RwLock<SymbolTable>,
    /// Schemas that any session has asked for.
    demand: AtomicU16,
    /// Schemas of which every chunk has the records that is appended from now on.
    produced: AtomicU16,
    snapshots: Mutex<VecDeque<SnapshotRequest>>,
    /// Bytes of snapshots that sessions still hold, and how many they may hold while others wait.
    snapshot_bytes: Arc<AtomicUsize>,
    snapshot_bytes_max: usize,
    /// Sessions that wait for room.
    snapshot_waiters: Arc<AtomicUsize>,
    /// Whether the feeder has reached the end of the logs.
    pub(crate) is_current: watch::Sender<bool>,
    pub(crate) logs: watch::Sender<LogsState>,
    pub(crate) replays: ReplayPlaces,
    pub(crate) oldest_event: OldestEvent,
    /// Set when the server stops: reads of files end.
    pub(crate) stop: Arc<AtomicBool>,
}

/// What has become of the logs of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogsState {
    /// Whether the gateway that wrote the logs has ended in the middle of the day.
    pub(crate) is_abandoned: bool,
    /// Whether that is so, or will be in a moment: clients are to connect elsewhere.
    pub(crate) is_closed: bool,
    /// How often other logs took the place of those that were read.
    pub(crate) replacements: u32,
}

impl LogsState {
    /// Why a session ends that began with the logs in that state.
    pub(crate) fn end_of(self, began: Self) -> Option<&'static str> {
        if self.replacements != began.replacements {
            Some("The gateway has begun a new log")
        } else {
            self.is_abandoned.then_some("The gateway has ended")
        }
    }
}

/// The event time before which a log lacks records. Finding it takes a read of files, which many requests share.
#[derive(Debug, Default)]
pub(crate) struct OldestEvent(Mutex<OldestEventState>);

#[derive(Debug, Default)]
struct OldestEventState {
    known: Option<(Instant, Option<u64>)>,
    /// Sessions that wait for the read in progress.
    waiting: Vec<oneshot::Sender<Option<u64>>>,
    is_reading: bool,
}

impl OldestEvent {
    /// Asks for what was found last, or for what `find` returns. `find` runs on a thread for blocking work, one at a time for each dataset.
    /// The answer fails if `find` does.
    pub(crate) fn ask(
        dataset: &Arc<Dataset>,
        find: impl FnOnce(&Dataset) -> Option<u64> + Send + 'static,
    ) -> oneshot::Receiver<Option<u64>> {
        let (reply, receiver) = oneshot::channel();
        let mut state = dataset.oldest_event.lock();
        if let Some((at, oldest)) = state.known
            && at.elapsed() < OLDEST_EVENT_AGE_MAX
        {
            // The receiver is here.
            let _ = reply.send(oldest);
            return receiver;
        }
        state.waiting.push(reply);
        if !std::mem::replace(&mut state.is_reading, true) {
            let dataset = Arc::clone(dataset);
            tokio::task::spawn_blocking(move || {
                let answers = Answers(&dataset.oldest_event);
                let oldest = find(&dataset);
                answers.give(oldest);
            });
        }
        receiver
    }

    /// The next request reads again.
    pub(crate) fn forget(&self) {
        self.lock().known = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, OldestEventState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answers to those that wait. Dropped without an answer, the next request reads again.
struct Answers<'a>(&'a OldestEvent);

impl Answers<'_> {
    fn give(self, oldest: Option<u64>) {
        let mut state = self.0.lock();
        state.known = Some((Instant::now(), oldest));
        for reply in std::mem::take(&mut state.waiting) {
            // A session that has ended needs no answer.
            let _ = reply.send(oldest);
        }
    }
}

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.waiting.clear();
        state.is_reading = false;
    }
}

/// How long a found [`OldestEvent`] is used: less than what retention removes in that time is no loss that a request could know of.
const OLDEST_EVENT_AGE_MAX: Duration = Duration::from_secs(1);

/// Symbols of the dataset and their latest instrument ids.
#[derive(Debug, Default)]
struct SymbolTable {
    ids: HashMap<Arc<str>, u32>,
    symbols: BTreeMap<u32, Arc<str>>,
}

/// A request for the present orders of instruments.
#[derive(Debug)]
pub(crate) struct SnapshotRequest {
    /// Ids of the wanted instruments.
    pub(crate) instruments: Vec<u32>,
    /// Takes the snapshot.
    pub(crate) reply: oneshot::Sender<Snapshot>,
}

/// The present orders of instruments.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Number of the chunk that follows the snapshot.
    pub(crate) next_chunk: u64,
    /// mbo records.
    pub(crate) records: SnapshotRecords,
}

/// Records of a snapshot. They count until they are dropped.
#[derive(Debug)]
pub(crate) struct SnapshotRecords {
    records: Vec<u8>,
    taken: Instant,
    held: Arc<AtomicUsize>,
}

impl SnapshotRecords {
    /// Since when they are held.
    pub(crate) fn age(&self) -> Duration {
        self.taken.elapsed()
    }
}

impl Deref for SnapshotRecords {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.records
    }
}

impl Drop for SnapshotRecords {
    fn drop(&mut self) {
        self.held.fetch_sub(self.records.len(), Relaxed);
    }
}

/// A session that waits for room for a snapshot, until it is dropped.
#[derive(Debug)]
pub(crate) struct SnapshotWaiter(Arc<AtomicUsize>);

impl SnapshotWaiter {
    /// Counts one more.
    pub(crate) fn new(dataset: &Dataset) -> Self {
        dataset.snapshot_waiters.fetch_add(1, Relaxed);
        Self(Arc::clone(&dataset.snapshot_waiters))
    }
}

impl Drop for SnapshotWaiter {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Dataset {
    /// A dataset of these channels, which must be of one feed, with that many bytes in the ring and replays at a time.
    pub(crate) fn new(
        name: &'static str,
        sources: Vec<ChannelSource>,
        ring_bytes_max: usize,
        replays_max: usize,
    ) -> Self {
        Self {
            name,
            ring: Ring::new(ring_bytes_max, sources.len()),
            sources,
            symbols: RwLock::default(),
            demand: AtomicU16::new(0),
            produced: AtomicU16::new(0),
            replays: ReplayPlaces::new(replays_max),
            oldest_event: OldestEvent::default(),
            stop: Arc::default(),
            snapshots: Mutex::default(),
            snapshot_bytes: Arc::default(),
            snapshot_waiters: Arc::default(),
            snapshot_bytes_max: ring_bytes_max.saturating_mul(SNAPSHOT_RINGS_MAX),
            is_current: watch::Sender::new(false),
            logs: watch::Sender::default(),
        }
    }

    /// The schemas that clients can have of every channel.
    pub(crate) fn available(&self) -> Schemas {
        self.sources.iter().map(ChannelSource::available).fold(Schemas::default(), Schemas::with)
    }

    /// Whether there are orders that a snapshot could have, on every channel.
    pub(crate) fn has_orders(&self) -> bool {
        !self.sources.is_empty() && self.sources.iter().all(ChannelSource::has_orders)
    }

    /// The schemas that are published.
    pub(crate) fn native(&self) -> Schemas {
        self.sources.iter().map(ChannelSource::native).fold(Schemas::default(), Schemas::with)
    }

    /// From now on the feeder derives this schema too. Relaxed: the records are a function of books that are always kept.
    pub(crate) fn demand(&self, schemas: Schemas) {
        self.demand.fetch_or(schemas.0, Relaxed);
    }

    /// Schemas that any session has asked for.
    pub(crate) fn demanded(&self) -> Schemas {
        Schemas(self.demand.load(Relaxed))
    }

    /// The feeder produces these schemas from now on; it has appended what it read before.
    pub(crate) fn set_produced(&self, schemas: Schemas) {
        self.produced.store(schemas.0, Release);
    }

    /// Whether all chunks have these schemas that are appended after this call. A ring's end that is taken after it lies
    /// behind the chunks without them.
    pub(crate) fn is_produced(&self, schemas: Schemas) -> bool {
        Schemas(self.produced.load(Acquire)).contains(schemas)
    }

    /// Adds a symbol, or changes its id.
    pub(crate) fn map(&self, id: u32, symbol: &str) {
        let mut table = self.symbols.write().unwrap_or_else(PoisonError::into_inner);
        if table.symbols.get(&id).is_some_and(|known| &**known == symbol) {
            return;
        }
        if table.symbols.len() >= SYMBOLS_MAX && !table.symbols.contains_key(&id) {
            return;
        }
        let symbol: Arc<str> = symbol.into();
        if let Some(former) = table.symbols.insert(id, Arc::clone(&symbol))
            && table.ids.get(&former) == Some(&id)
        {
            table.ids.remove(&former);
        }
        if let Some(former) = table.ids.insert(Arc::clone(&symbol), id).filter(|former| *former != id)
            && table.symbols.get(&former) == Some(&symbol)
        {
            table.symbols.remove(&former);
        }
    }

    /// The instrument with that symbol.
    pub(crate) fn id_of(&self, symbol: &str) -> Option<u32> {
        self.symbols.read().unwrap_or_else(PoisonError::into_inner).ids.get(symbol).copied()
    }

    /// The symbol of an instrument.
    pub(crate) fn symbol_of(&self, id: u32) -> Option<Arc<str>> {
        self.symbols.read().unwrap_or_else(PoisonError::into_inner).symbols.get(&id).cloned()
    }

    /// All instruments by id.
    pub(crate) fn instruments(&self) -> Vec<(u32, Arc<str>)> {
        let table = self.symbols.read().unwrap_or_else(PoisonError::into_inner);
        table.symbols.iter().map(|(id, symbol)| (*id, Arc::clone(symbol))).collect()
    }

    /// Asks the feeder for a snapshot. `None` if too many are waiting.
    pub(crate) fn request_snapshot(&self, instruments: Vec<u32>) -> Option<oneshot::Receiver<Snapshot>> {
        let (reply, receiver) = oneshot::channel();
        let mut waiting = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= SNAPSHOTS_WAITING_MAX {
            return None;
        }
        waiting.push_back(SnapshotRequest { instruments, reply });
        Some(receiver)
    }

    /// Whether a session may ask for a snapshot. A few sessions that ask at once exceed the limit.
    pub(crate) fn has_room_for_snapshot(&self) -> bool {
        let asked = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner).len();
        asked < SNAPSHOTS_ASKED_MAX && self.snapshot_bytes.load(Relaxed) < self.snapshot_bytes_max
    }

    /// Whether a session waits for room.
    pub(crate) fn has_waiting_snapshot(&self) -> bool {
        self.snapshot_waiters.load(Relaxed) > 0
    }

    /// Counts the records of a snapshot.
    pub(crate) fn hold(&self, records: Vec<u8>) -> SnapshotRecords {
        self.snapshot_bytes.fetch_add(records.len(), Relaxed);
        SnapshotRecords { records, taken: Instant::now(), held: Arc::clone(&self.snapshot_bytes) }
    }

    /// The oldest request for a snapshot.
    pub(crate) fn take_snapshot_request(&self) -> Option<SnapshotRequest> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// Symbols of one dataset: more than any venue lists.
const SYMBOLS_MAX: usize = 1 << 20;
/// Snapshots that sessions hold may have so many times the bytes of the ring, and some snapshots more, which were asked for before.
const SNAPSHOT_RINGS_MAX: usize = 4;
const SNAPSHOTS_ASKED_MAX: usize = 4;
/// Snapshots that may wait for the feeder.
const SNAPSHOTS_WAITING_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that does not answer must not hold up the sessions of other clients, which the worker serves too.
    #[tokio::test]
    async fn a_question_for_the_oldest_event_holds_up_no_worker_and_is_shared() {
        let dataset = Arc::new(Dataset::new("XNAS.ITCH", Vec::new(), 0, 1));
        let (release, released) = std::sync::mpsc::channel();
        let slow = move |_: &Dataset| {
            released.recv().unwrap();
            Some(7)
        };
        let mut first = OldestEvent::ask(&dataset, slow);
        let second = OldestEvent::ask(&dataset, |_| panic!("the read in progress answers"));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(first.try_recv().is_err(), "the read takes its time");
        release.send(()).unwrap();
        assert_eq!((first.await, second.await), (Ok(Some(7)), Ok(Some(7))));
        let known = OldestEvent::ask(&dataset, |_| panic!("the answer is fresh"));
        assert_eq!(known.await, Ok(Some(7)));
    }

    #[tokio::test]
    async fn a_read_for_the_oldest_event_that_fails_is_repeated() {
        let dataset = Arc::new(Dataset::new("XNAS.ITCH", Vec::new(), 0, 1));
        assert!(OldestEvent::ask(&dataset, |_| panic!("a fault, on purpose")).await.is_err());
        assert_eq!(OldestEvent::ask(&dataset, |_| Some(8)).await, Ok(Some(8)));
    }

    #[test]
    fn a_symbol_and_an_id_can_change_their_partner() {
        let dataset = Dataset::new("XNAS.ITCH", Vec::new(), 0, 1);
        dataset.map(1, "A");
        dataset.map(2, "B");
        // The next day: B has the id of A, and A a new one.
        dataset.map(1, "B");
        assert_eq!((dataset.id_of("A"), dataset.id_of("B")), (None, Some(1)));
        assert_eq!(dataset.symbol_of(2), None);
        dataset.map(3, "A");
        assert_eq!((dataset.id_of("A"), dataset.symbol_of(1).as_deref()), (Some(3), Some("B")));
        assert_eq!(dataset.instruments().len(), 2);
    }

    /// Sessions that do not read would otherwise hold a copy of all orders each.
    #[test]
    fn sessions_wait_for_room_while_others_hold_too_many_bytes_of_snapshots() {
        let dataset = Dataset::new("XNAS.ITCH", Vec::new(), 10, 1);
        let _receivers: Vec<_> = (0..SNAPSHOTS_ASKED_MAX).map(|_| dataset.request_snapshot(vec![1]).unwrap()).collect();
        assert!(!dataset.has_room_for_snapshot(), "so many are asked for");
        while dataset.take_snapshot_request().is_some() {}
        let first = dataset.hold(vec![0; 39]);
        assert!(dataset.has_room_for_snapshot(), "one byte is left");
        let second = dataset.hold(vec![0; 1_000]);
        drop(first);
        assert!(!dataset.has_room_for_snapshot());
        let waiter = SnapshotWaiter::new(&dataset);
        assert!(dataset.has_waiting_snapshot());
        drop((waiter, second));
        assert!(dataset.has_room_for_snapshot() && !dataset.has_waiting_snapshot());
    }
}
