//! The latest chunks of a dataset, numbered. Sessions read it at positions of their own; a session that stops reading holds
//! nothing back and loses its position when the ring is full.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::watch;

use super::{chunk::Chunk, place::LogPlace};

/// Bounded by the bytes of its chunks. One feeder appends.
#[derive(Debug)]
pub(crate) struct Ring {
    state: Mutex<State>,
    bytes_max: usize,
    /// Number of the next chunk, for those that wait for it.
    next: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<(Arc<Chunk>, u64)>,
    /// Number of the chunk that will be appended next.
    next: u64,
    bytes: usize,
    /// Bytes appended since the start.
    bytes_total: u64,
    /// For each channel, the place in the log with which the next chunk begins.
    next_places: Vec<LogPlace>,
    /// Whether the last chunk is the end of the session.
    is_ended: bool,
}

/// A position at a chunk's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RingPosition {
    /// Number of the chunk.
    pub(crate) chunk: u64,
    /// For each channel, the place in the log with which the chunk begins.
    pub(crate) first_places: Vec<LogPlace>,
    /// Whether the chunk before it is the end of the session.
    pub(crate) is_ended: bool,
}

/// What stands at a position.
#[derive(Debug)]
pub(crate) enum RingRead {
    /// The chunk at the position.
    Chunk(Arc<Chunk>),
    /// The chunk is still to come.
    NotYet,
    /// The chunk is gone.
    Gone,
}

impl Ring {
    /// An empty ring of a dataset with that many channels.
    pub(crate) fn new(bytes_max: usize, channel_count: usize) -> Self {
        let state = State { next_places: vec![LogPlace::default(); channel_count], ..State::default() };
        Self { state: Mutex::new(state), bytes_max, next: watch::Sender::new(0) }
    }

    /// Appends a chunk; `next_places` are the places behind it.
    pub(crate) fn push(&self, mut chunk: Chunk, next_places: Vec<LogPlace>) {
        chunk.shrink();
        let mut state = self.lock();
        let (bytes, is_ended) = (chunk.memory_bytes(), chunk.is_end_of_session);
        state.bytes += bytes;
        state.bytes_total += bytes as u64;
        let end = state.bytes_total;
        state.chunks.push_back((Arc::new(chunk), end));
        state.next += 1;
        state.next_places = next_places;
        state.is_ended = is_ended;
        while state.bytes > self.bytes_max && state.chunks.len() > 1 {
            if let Some((chunk, _)) = state.chunks.pop_front() {
                state.bytes -= chunk.memory_bytes();
            }
        }
        let next = state.next;
        drop(state);
        self.next.send_replace(next);
    }

    /// Moves the places on although no chunk was needed for the entries.
    pub(crate) fn pass_places(&self, next_places: &[LogPlace]) {
        self.lock().next_places.copy_from_slice(next_places);
    }

    /// The position behind the last chunk.
    pub(crate) fn end(&self) -> RingPosition {
        let state = self.lock();
        RingPosition { chunk: state.next, first_places: state.next_places.clone(), is_ended: state.is_ended }
    }

    /// Reads one chunk.
    pub(crate) fn read(&self, chunk: u64) -> RingRead {
        let state = self.lock();
        if chunk >= state.next {
            return RingRead::NotYet;
        }
        let oldest = state.next - state.chunks.len() as u64;
        let index = chunk.checked_sub(oldest).and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| state.chunks.get(index)) {
            Some((chunk, _)) => RingRead::Chunk(Arc::clone(chunk)),
            None => RingRead::Gone,
        }
    }

    /// Bytes of the chunks from that one on; `None` if it is gone.
    pub(crate) fn bytes_behind(&self, chunk: u64) -> Option<u64> {
        let state = self.lock();
        if chunk >= state.next {
            return Some(0);
        }
        let oldest = state.next - state.chunks.len() as u64;
        let index = usize::try_from(chunk.checked_sub(oldest)?).ok()?;
        let (chunk, end) = state.chunks.get(index)?;
        Some(state.bytes_total - end + chunk.memory_bytes() as u64)
    }

    /// Whether a session that has just caught up to that chunk can follow: most of the ring is still ahead of it.
    pub(crate) fn is_close(&self, chunk: u64) -> bool {
        self.bytes_behind(chunk).is_some_and(|bytes| bytes <= self.bytes_max as u64 / 8)
    }

    /// Notifies of each new chunk.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.next.subscribe()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Every change of the state is complete before a panic could happen.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{control, schema::Schemas};

    fn chunk(ts_event: u64) -> Chunk {
        let mut chunk = Chunk::default();
        chunk.push(control::heartbeat(ts_event).as_ref(), Schemas::MBO);
        chunk
    }

    #[test]
    fn the_oldest_chunks_go_first_and_positions_stay_valid() {
        let bytes = chunk(0).memory_bytes();
        let ring = Ring::new(3 * bytes, 1);
        assert!(matches!(ring.read(0), RingRead::NotYet));
        for number in 0..5 {
            ring.push(chunk(number), vec![LogPlace { entry: number + 1, part: None }]);
        }
        assert_eq!(
            ring.end(),
            RingPosition { chunk: 5, first_places: vec![LogPlace { entry: 5, part: None }], is_ended: false }
        );
        for number in 0..2 {
            assert!(matches!(ring.read(number), RingRead::Gone));
            assert_eq!(ring.bytes_behind(number), None);
        }
        for number in 2..5 {
            let RingRead::Chunk(chunk) = ring.read(number) else { panic!("chunk {number} is kept") };
            assert_eq!(control::ts_event(chunk.records().next().unwrap().bytes), number);
            assert_eq!(ring.bytes_behind(number), Some((5 - number) * bytes as u64));
        }
        assert!(matches!(ring.read(5), RingRead::NotYet));
        assert_eq!(ring.bytes_behind(5), Some(0));
    }
}
