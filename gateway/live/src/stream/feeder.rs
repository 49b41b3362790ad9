//! The thread that reads the logs of a dataset for all sessions.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    chunk::Chunk,
    dataset::{Dataset, Snapshot, SnapshotRequest},
    reader::{DatasetReader, ENTRIES_MAX},
    snapshot,
    writer_watch::{Presence, WriterWatch},
};

/// How long the feeder sleeps when the logs have nothing new: a fraction of what a client's network takes.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// How long after the end of a session another one of the same day is taken for a restart of the venue, which ends no client's session.
const RESTART_WAIT: Duration = Duration::from_secs(1);
/// How long the feeder waits before it tries again to open a log.
const OPEN_INTERVAL: Duration = Duration::from_millis(200);

/// Starts the thread. It ends when [`Dataset::stop`] is set.
///
/// # Errors
/// When the system has no thread left.
pub(crate) fn start(dataset: Arc<Dataset>) -> std::io::Result<JoinHandle<()>> {
    let name = format!("feed {}", dataset.name);
    thread::Builder::new().name(name.chars().take(15).collect()).spawn(move || run(&dataset))
}

fn run(dataset: &Dataset) {
    let Some(mut reader) = open(dataset) else { return };
    let mut writer = WriterWatch::default();
    while !dataset.stop.load(Relaxed) {
        let mut chunk = Chunk::default();
        let wanted = dataset.native().with(dataset.demanded());
        dataset.set_produced(wanted);
        let entries = reader.read(wanted, None, &mut chunk);
        let is_behind = chunk.is_full() || entries >= ENTRIES_MAX;
        if entries == 0 {
            // A day that was over before is over.
            let wait = if *dataset.is_current.borrow() { RESTART_WAIT } else { Duration::ZERO };
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
            // After the day's end a log is served as it is.
            let is_over = dataset.ring.end().is_ended;
            let presence = writer.presence(&dataset.sources, Instant::now());
            dataset.is_closed.store(presence != Presence::Present && !is_over, Relaxed);
            let is_lost = presence == Presence::Lost && !is_over;
            dataset.is_abandoned.send_if_modified(|is_abandoned| std::mem::replace(is_abandoned, is_lost) != is_lost);
            thread::sleep(POLL_INTERVAL);
        }
    }
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
