//! Records from before a session: read from the logs' beginning up to a position of the ring.
//!
//! - [`start`]: a session's side
//! - [`group`]: the side of the reader, which sessions that want the same records share

mod group;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU16, Ordering::Relaxed},
};

use tokio::sync::{
    mpsc::{self, error::TryRecvError},
    oneshot,
};

pub(crate) use self::group::Member;
use super::{
    channel::{ChannelSource, ChannelStream},
    chunk::Chunk,
    dataset::{Dataset, OldestEvent},
    reader::DatasetReader,
    ring::RingPosition,
};
use crate::{control, schema::Schemas};

/// What a replay hands over.
#[derive(Debug)]
pub(crate) enum ReplayItem {
    /// Records from before the ring's position.
    Chunk {
        /// Records in the order of the logs.
        chunk: Arc<Chunk>,
        /// Whether every channel has passed the session's start.
        is_past_start: bool,
    },
    /// A journal was removed before the replay came to it: records are missing.
    LostJournal,
    /// The replay has caught up: the session goes on at this position of the ring.
    Joined {
        /// Where the session goes on.
        position: RingPosition,
        /// Whether records of this day were missing in the replay, so that the client's books may be wrong from here on too.
        has_hole: bool,
    },
}

/// A running replay, for its session.
#[derive(Debug)]
pub(crate) struct Replay {
    items: mpsc::Receiver<ReplayItem>,
    /// What [`Self::wait`] has received.
    received: Option<ReplayItem>,
    state: Arc<ReplayState>,
    _stop: StopOnDrop,
}

/// Lets the replay's thread end, also while it reads journals without an item for the session.
#[derive(Debug)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// What a replay and its session tell each other.
#[derive(Debug)]
struct ReplayState {
    /// Schemas of which the chunks have the records.
    wanted: AtomicU16,
    /// Whether the session took nothing while others waited for a replay.
    is_displaced: AtomicBool,
    /// Whether the session has left.
    stop: Arc<AtomicBool>,
}

impl ReplayState {
    fn new(schemas: Schemas) -> Self {
        Self { wanted: AtomicU16::new(schemas.0), is_displaced: AtomicBool::new(false), stop: Arc::default() }
    }
}

impl Replay {
    fn new(items: mpsc::Receiver<ReplayItem>, state: Arc<ReplayState>) -> Self {
        let stop = StopOnDrop(Arc::clone(&state.stop));
        Self { items, received: None, state, _stop: stop }
    }

    /// A replay of which somebody else makes the items.
    #[cfg(test)]
    pub(crate) fn of(items: mpsc::Receiver<ReplayItem>) -> Self {
        Self::new(items, Arc::new(ReplayState::new(Schemas::default())))
    }

    /// Waits until [`Self::take`] has something to return. May be dropped while it waits: no item is lost.
    pub(crate) async fn wait(&mut self) {
        if self.received.is_none() {
            self.received = self.items.recv().await;
        }
    }

    /// Takes the next item, in the order of the logs.
    ///
    /// # Errors
    /// When there is none so far. Disconnected without [`ReplayItem::Joined`]: a log could not be read, or another session needed the
    /// replay's place.
    pub(crate) fn take(&mut self) -> Result<ReplayItem, TryRecvError> {
        self.received.take().map_or_else(|| self.items.try_recv(), Ok)
    }

    /// Whether the replay ended since its session took nothing while others waited for a replay.
    pub(crate) fn is_displaced(&self) -> bool {
        self.state.is_displaced.load(Relaxed)
    }

    /// From now on the replay hands over this schema too, so that a subscription made meanwhile misses nothing.
    pub(crate) fn add(&self, schemas: Schemas) {
        self.state.wanted.fetch_or(schemas.0, Relaxed);
    }
}

/// Chunks that wait for the session: fewer let the reader and the session wait for each other, and a wake-up costs as much as a chunk.
/// The logs of tests are small.
const CHUNKS_MAX: usize = if cfg!(test) { 2 } else { 8 };

/// Starts a replay on a thread for blocking work, together with others that want the same. It ends when the [`Replay`] is dropped.
pub(crate) fn start(dataset: &Arc<Dataset>, schemas: Schemas, live_from: RingPosition) -> Replay {
    let (sender, items) = mpsc::channel(CHUNKS_MAX);
    let state = Arc::new(ReplayState::new(schemas));
    let replay = Replay::new(items, Arc::clone(&state));
    group::enter(dataset, vec![Member::new(sender, state, live_from)]);
    replay
}

/// Asks for the event time before which a replay would lack records: the session's beginning is gone from a log, and the oldest record
/// there is of that time. The files are read on a thread of their own.
pub(crate) fn ask_oldest_event(dataset: &Arc<Dataset>) -> oneshot::Receiver<Option<u64>> {
    OldestEvent::ask(dataset, |dataset| {
        dataset.sources.iter().filter_map(|source| oldest_event(source, dataset.native(), &dataset.stop)).max()
    })
}

/// Event time of the oldest record of a log that has lost its session's beginning.
fn oldest_event(source: &ChannelSource, schemas: Schemas, stop: &Arc<AtomicBool>) -> Option<u64> {
    let mut reader = DatasetReader::open(std::slice::from_ref(source), stop).ok()?;
    // Clients wait for the answer.
    reader.skip_journal_retries();
    let mut chunk = Chunk::default();
    reader.read(schemas, None, &mut chunk);
    let is_incomplete = reader.channels().first().is_some_and(ChannelStream::began_incomplete);
    let oldest = chunk.records().find(|record| !record.is_mapping()).map(|record| control::ts_event(record.bytes));
    oldest.filter(|_| is_incomplete)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{
        group::{FEEDER_INTERVAL, PATIENCE, tests::Filled},
        *,
    };
    use crate::stream::{channel::tests::TestLog, place::LogPlace};

    /// A replay of one session.
    fn run(
        dataset: &Arc<Dataset>,
        state: &Arc<ReplayState>,
        live_from: &RingPosition,
        sender: &mpsc::Sender<ReplayItem>,
    ) {
        group::run(dataset, vec![Member::new(sender.clone(), Arc::clone(state), live_from.clone())]);
    }

    /// A client that takes nothing keeps its replay while nobody else wants one.
    #[test]
    fn a_replay_that_nobody_reads_makes_room_for_one_that_waits() {
        let directory = tempfile::tempdir().unwrap();
        let filled = Filled::new(&directory, 6_000);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        let unread = start(&filled.dataset, Schemas::MBO, filled.end());
        runtime.block_on(async {
            tokio::time::sleep(PATIENCE * 3).await;
            assert!(!unread.is_displaced(), "nobody waits");
            let mut waiting = start(&filled.dataset, Schemas::STATUS, filled.end());
            waiting.wait().await;
            assert!(matches!(waiting.take(), Ok(ReplayItem::Joined { .. })));
        });
        assert!(unread.is_displaced());
    }

    #[test]
    fn a_replay_hands_over_a_schema_that_is_added_while_it_runs() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::new(&directory);
        let dataset = Arc::new(Dataset::new("XNAS.ITCH", vec![log.source.clone()], 1 << 20, 1));
        (1..4).for_each(|sequence| log.add_order(sequence));
        let mut feeder = DatasetReader::open(&dataset.sources, &Arc::default()).unwrap();
        let mut chunk = Chunk::default();
        feeder.read(Schemas::MBO.with(Schemas::STATUS), None, &mut chunk);
        dataset.set_produced(Schemas::MBO.with(Schemas::STATUS));
        dataset.ring.push(chunk, feeder.next_places());
        let (sender, items) = mpsc::channel(8);
        let replay = Replay::new(items, Arc::new(ReplayState::new(Schemas::STATUS)));
        replay.add(Schemas::MBO);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        run(&dataset, &replay.state, &dataset.ring.end(), &sender);
        let mut items = replay.items;
        let Ok(ReplayItem::Chunk { chunk, .. }) = items.try_recv() else { panic!("a chunk") };
        assert_eq!(chunk.records().filter(|record| !record.is_mapping()).count(), 3, "the orders are there");
        assert!(matches!(items.try_recv(), Ok(ReplayItem::Joined { has_hole: false, .. })));
    }

    /// Its receiver may not be dropped yet: a session that is being closed sends its last bytes.
    #[test]
    fn a_replay_whose_session_has_left_hands_over_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::new(&directory);
        let dataset = Arc::new(Dataset::new("XNAS.ITCH", vec![log.source.clone()], 1 << 20, 1));
        dataset.set_produced(Schemas::MBO);
        (1..4).for_each(|sequence| log.add_order(sequence));
        let (sender, items) = mpsc::channel(8);
        let replay = Replay::new(items, Arc::new(ReplayState::new(Schemas::MBO)));
        let Replay { mut items, state, _stop: stop, .. } = replay;
        drop(stop);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        let target = RingPosition { chunk: 0, first_places: vec![LogPlace { entry: 4, part: None }], is_ended: false };
        dataset.ring.pass_places(&target.first_places);
        run(&dataset, &state, &target, &sender);
        assert!(items.try_recv().is_err());
    }

    /// Books are not kept for mbo alone. What is subscribed to meanwhile follows from the orders before it too.
    #[test]
    fn a_schema_that_is_added_to_a_replay_without_books_follows_from_all_orders() {
        const ORDERS: u32 = 3_000;
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::new(&directory);
        let dataset = Arc::new(Dataset::new("XNAS.ITCH", vec![log.source.clone()], 1 << 20, 1));
        dataset.set_produced(Schemas::MBO.with(Schemas::MBP_1));
        (1..=u64::from(ORDERS)).for_each(|sequence| log.add_order(sequence));
        let place = LogPlace { entry: u64::from(ORDERS) + 1, part: None };
        let target = RingPosition { chunk: 0, first_places: vec![place], is_ended: false };
        dataset.ring.pass_places(&target.first_places);
        let (sender, mut items) = mpsc::channel(1);
        let state = Arc::new(ReplayState::new(Schemas::MBO));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (mut orders, mut depths) = (Vec::new(), Vec::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                let _entered = runtime.enter();
                run(&dataset, &state, &target, &sender);
            });
            while items.is_empty() {
                thread::sleep(FEEDER_INTERVAL);
            }
            state.wanted.fetch_or(Schemas::MBP_1.0, Relaxed);
            while let Some(ReplayItem::Chunk { chunk, .. }) = items.blocking_recv() {
                for record in chunk.records() {
                    if record.schemas.contains(Schemas::MBO) {
                        orders.push(control::ts_event(record.bytes));
                    } else {
                        let at = core::mem::offset_of!(dbn::Mbp1Msg, levels)
                            + core::mem::offset_of!(dbn::BidAskPair, bid_ct);
                        depths.push((control::ts_event(record.bytes), control::u32_at(record.bytes, at)));
                    }
                }
            }
        });
        assert!(orders.iter().copied().eq(1..=u64::from(ORDERS)), "each order once");
        assert!(depths.len() > 100 && depths.len() < orders.len(), "from some chunk on: {}", depths.len());
        assert!(
            depths.iter().all(|(sequence, count)| *sequence == u64::from(*count)),
            "the level has all orders so far"
        );
        assert_eq!(depths.last().map(|(sequence, _)| *sequence), Some(ORDERS.into()));
    }

    /// Subscriptions without a replay begin with the session, so no chunk has records of both sides of the session's start, however
    /// much room it has.
    #[test]
    fn a_replay_is_cut_at_the_start_of_the_session() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::new(&directory);
        let dataset = Arc::new(Dataset::new("XNAS.ITCH", vec![log.source.clone()], 1 << 20, 1));
        let mut feeder = DatasetReader::open(&dataset.sources, &Arc::default()).unwrap();
        dataset.set_produced(Schemas::MBO);
        let mut read_orders = |sequences: std::ops::Range<u64>| {
            let mut chunk = Chunk::default();
            sequences.for_each(|sequence| log.add_order(sequence));
            feeder.read(Schemas::MBO, None, &mut chunk);
            dataset.ring.push(chunk, feeder.next_places());
            dataset.ring.end()
        };
        let live_from = read_orders(1..4);
        let joins_at = read_orders(4..7);
        let (sender, mut receiver) = mpsc::channel(8);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        run(&dataset, &Arc::new(ReplayState::new(Schemas::MBO)), &live_from, &sender);
        for (expected_past_start, expected) in [(false, [1, 2, 3]), (true, [4, 5, 6])] {
            let Ok(ReplayItem::Chunk { chunk, is_past_start }) = receiver.try_recv() else { panic!("two chunks") };
            let events: Vec<_> = chunk.records().map(|record| control::ts_event(record.bytes)).collect();
            assert_eq!((is_past_start, events.as_slice()), (expected_past_start, expected.as_slice()));
        }
        let Ok(ReplayItem::Joined { position, .. }) = receiver.try_recv() else { panic!("the replay joins the ring") };
        assert_eq!(position, joins_at);
    }
}
