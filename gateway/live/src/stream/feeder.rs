//! The thread that reads the logs of a dataset for all sessions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use super::{
    chunk::Chunk,
    dataset::{Dataset, LogsState, Snapshot, SnapshotRequest},
    reader::{DatasetReader, ENTRIES_MAX},
    snapshot,
    writer_watch::{Presence, WriterWatch},
};

/// How long the feeder sleeps when the logs have nothing new: a fraction of what a client's network takes.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// How long after the end of a session another one of the same day is taken for a restart of the venue, which ends no client's session.
const RESTART_WAIT: Duration = Duration::from_secs(1);
/// How often the log's writer is looked for, and a log that took the place of the one that is read.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// How long the feeder waits before it tries again to open a log.
const OPEN_INTERVAL: Duration = Duration::from_millis(200);

/// Starts the thread. It ends when [`Dataset::stop`] is set.
///
/// # Errors
/// When the system has no thread left.
pub(crate) fn start(dataset: Arc<Dataset>) -> std::io::Result<JoinHandle<()>> {
    let name = format!("feed {}", dataset.name);
    let mut writer = WriterWatch::new();
    // Before the first client can connect.
    watch_writer(&dataset, &mut writer);
    thread::Builder::new().name(name.chars().take(15).collect()).spawn(move || run(&dataset, writer))
}

/// Feeds, and looks for the writer on a thread of its own: the kernel takes milliseconds for its list of locks, and records would wait.
fn run(dataset: &Dataset, mut writer: WriterWatch) {
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = || {
            while !has_ended.load(Relaxed) {
                thread::park_timeout(WATCH_INTERVAL);
                watch_writer(dataset, &mut writer);
            }
        };
        match thread::Builder::new().name("writer watch".to_owned()).spawn_scoped(scope, watch) {
            Ok(watch) => {
                let _ends_with_the_feeder = EndOnDrop { has_ended: &has_ended, watch: watch.thread().clone() };
                feed(dataset, || watch.is_finished());
            }
            Err(error) => tracing::error!(%error, "live: cannot start a thread"),
        }
    });
}

/// Ends the watch, also when the feeder panics.
struct EndOnDrop<'a> {
    has_ended: &'a AtomicBool,
    watch: Thread,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.has_ended.store(true, Relaxed);
        self.watch.unpark();
    }
}

/// Ends with the watch, which ends before only if it panics: without it a gateway's death would go unnoticed.
fn feed(dataset: &Dataset, has_watch_ended: impl Fn() -> bool) {
    let Some(mut reader) = open(dataset) else { return };
    let mut looked_at = Instant::now();
    while !dataset.stop.load(Relaxed) {
        let mut chunk = Chunk::default();
        let wanted = dataset.native().with(dataset.demanded());
        dataset.set_produced(wanted);
        let entries = reader.read(wanted, None, &mut chunk);
        let is_behind = chunk.is_full() || entries >= ENTRIES_MAX;
        let is_current = *dataset.is_current.borrow();
        if entries == 0 || !(is_behind || is_current) {
            // A session that had ended before the feeder came to it ends at once: before the first client can connect.
            let wait = if is_current { RESTART_WAIT } else { Duration::ZERO };
            reader.end_sessions(wait, wanted, &mut chunk);
        }
        append(dataset, &reader, chunk);
        if dataset.stop.load(Relaxed) {
            // A read that was stopped is not at the end of the logs.
            return;
        }
        // One at a time: a copy of all orders takes a while, and the sessions' records wait for it.
        if let Some(request) = dataset.take_snapshot_request() {
            answer(dataset, &reader, request);
        }
        if !is_behind {
            dataset.is_current.send_if_modified(|is_current| !std::mem::replace(is_current, true));
        }
        if !is_behind && looked_at.elapsed() >= WATCH_INTERVAL {
            looked_at = Instant::now();
            if has_watch_ended() {
                return;
            }
            if reader.is_replaced() {
                let Some(reopened) = reopen(dataset) else { return };
                reader = reopened;
                continue;
            }
        }
        if !is_behind {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Looks whether the gateway runs. Without one, clients are to connect elsewhere.
fn watch_writer(dataset: &Dataset, writer: &mut WriterWatch) {
    // After the day's end a log is served as it is. The end of an earlier session in a log that is still being read is none.
    let is_over = *dataset.is_current.borrow() && dataset.ring.end().is_ended;
    let presence = if is_over { Presence::Present } else { writer.presence(&dataset.sources, Instant::now()) };
    dataset.logs.send_if_modified(|logs| {
        let (is_closed, is_abandoned) = (presence != Presence::Present, presence == Presence::Lost);
        let is_same = (logs.is_closed, logs.is_abandoned) == (is_closed, is_abandoned);
        (logs.is_closed, logs.is_abandoned) = (is_closed, is_abandoned);
        !is_same
    });
}

/// Opens the logs, and waits for a gateway that has not made them yet.
fn open(dataset: &Dataset) -> Option<DatasetReader> {
    let mut is_logged = false;
    while !dataset.stop.load(Relaxed) {
        match DatasetReader::open(&dataset.sources, &dataset.stop) {
            Ok(reader) => return Some(reader),
            Err(error) if !is_logged => {
                tracing::warn!(dataset = dataset.name, %error, "live: cannot read the publication log yet, trying again");
                is_logged = true;
            }
            Err(_) => {}
        }
        thread::sleep(OPEN_INTERVAL);
    }
    None
}

/// Somebody removed a log while the gateway was down, and the gateway has begun a new one. Places in the old log mean nothing in the new
/// one, so sessions end, and their clients come back. The new log is read from its beginning, as after a start.
fn reopen(dataset: &Dataset) -> Option<DatasetReader> {
    tracing::warn!(dataset = dataset.name, "live: the publication log was replaced, opening it again");
    dataset.is_current.send_replace(false);
    dataset.logs.send_modify(|logs| {
        *logs = LogsState { replacements: logs.replacements.wrapping_add(1), ..LogsState::default() };
    });
    dataset.oldest_event.forget();
    open(dataset)
}

fn append(dataset: &Dataset, reader: &DatasetReader, chunk: Chunk) {
    let next_places = reader.next_places();
    if chunk.is_empty() {
        return dataset.ring.pass_places(&next_places);
    }
    // Before the chunk: a session that reads a mapping may look the symbol up.
    for mapping in chunk.records().filter(super::chunk::ChunkRecord::is_mapping) {
        if let Some(symbol) = mapping.mapped_symbol() {
            dataset.map(mapping.instrument_id, symbol);
        }
    }
    dataset.ring.push(chunk, next_places);
}

/// Takes a snapshot at the ring's end: all chunks so far are part of the snapshot, and none of the later ones.
fn answer(dataset: &Dataset, reader: &DatasetReader, request: SnapshotRequest) {
    let records = snapshot::records(reader.channels(), &request.instruments);
    // A client that has left does not need the snapshot.
    let _ = request.reply.send(Snapshot { next_chunk: dataset.ring.end().chunk, records: dataset.hold(records) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{
        channel::tests::{TestLog, restarted},
        ring::RingRead,
    };

    /// Event times of the ring's records.
    fn events(dataset: &Dataset) -> Vec<u64> {
        let chunks = (0..dataset.ring.end().chunk).map(|chunk| dataset.ring.read(chunk));
        let events = chunks.flat_map(|chunk| match chunk {
            RingRead::Chunk(chunk) => chunk.records().map(|record| crate::control::ts_event(record.bytes)).collect(),
            RingRead::NotYet | RingRead::Gone => Vec::new(),
        });
        events.collect()
    }

    fn wait_until(condition: impl Fn() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < Duration::from_secs(20), "the feeder does not come to that");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_log_in_the_place_of_a_removed_one_ends_the_sessions_and_is_read_from_its_beginning() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = TestLog::at(&path);
        (1..4).for_each(|sequence| log.add_order(sequence));
        let dataset = Arc::new(Dataset::new("XNAS.ITCH", vec![log.source.clone()], 1 << 20, 1));
        let feeder = start(Arc::clone(&dataset)).unwrap();
        wait_until(|| *dataset.is_current.borrow() && events(&dataset) == [1, 2, 3]);
        let began = *dataset.logs.borrow();
        assert_eq!(began.end_of(began), None);

        drop(log);
        std::fs::remove_dir_all(&path).unwrap();
        let mut log = TestLog::at(&path);
        log.add_order(6);
        wait_until(|| dataset.logs.borrow().end_of(began).is_some());
        wait_until(|| *dataset.is_current.borrow() && events(&dataset) == [1, 2, 3, 6]);
        log.add_order(7);
        wait_until(|| events(&dataset) == [1, 2, 3, 6, 7]);
        assert_eq!(dataset.logs.borrow().replacements, 1);
        dataset.stop.store(true, Relaxed);
        feeder.join().unwrap();
    }

    /// Otherwise the end would come a second later, and end the sessions of the clients that have come by then.
    #[test]
    fn a_session_that_ended_before_the_start_has_ended_when_the_first_client_comes() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::new(&directory);
        log.add_trade_of(restarted(7), 1, 5);
        log.end_session(7, 2);
        let dataset = Arc::new(Dataset::new("XNAS.ITCH", vec![log.source.clone()], 1 << 20, 1));
        let feeder = start(Arc::clone(&dataset)).unwrap();
        wait_until(|| *dataset.is_current.borrow());
        assert!(dataset.ring.end().is_ended);
        dataset.stop.store(true, Relaxed);
        feeder.join().unwrap();
    }
}
