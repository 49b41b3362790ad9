//! Where other threads leave messages for the peer, and find the peer's.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::Thread,
};

use crossbeam_queue::ArrayQueue;
use mdgw_feeds::{
    identity::{ChannelId, GroupId},
    time::MonoNs,
};

use super::{
    message::{ChannelPositions, LinkMessage},
    mismatch::Mismatch,
};
use crate::election::peer::{DeathNotice, PeerMessage};

/// Between the link's thread and the others. No call waits for the network.
#[derive(Debug)]
pub struct PairDesk {
    pub(super) out: ArrayQueue<LinkMessage>,
    election: ArrayQueue<(GroupId, PeerMessage)>,
    deaths: ArrayQueue<DeathNotice>,
    mismatches: ArrayQueue<Mismatch>,
    /// Who forwards what comes for the elections; woken by it.
    reader: OnceLock<Thread>,
    /// Of the next message that goes by more than one way; begins anywhere, so that a new process' are others.
    serial: AtomicU64,
    peer: Mutex<Peer>,
    pub(super) counters: Counters,
}

#[derive(Debug, Default)]
struct Peer {
    node: Option<u8>,
    channels: BTreeMap<ChannelId, PeerChannel>,
    /// Serials that were taken last.
    seen: VecDeque<u64>,
}

/// What the peer has told of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerChannel {
    /// Its positions.
    pub positions: ChannelPositions,
    /// When that came.
    pub at: MonoNs,
}

/// Written by the link's thread; each word for itself.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) datagrams: AtomicU64,
    pub(super) windows_told: AtomicU64,
    pub(super) windows_equal: AtomicU64,
    pub(super) windows_different: AtomicU64,
    pub(super) left_out: AtomicU64,
}

/// What the link counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairCounts {
    /// Connections that proved the key.
    pub connections: u64,
    /// Connections, messages and datagrams that were refused.
    pub refused: u64,
    /// Messages that came on a connection.
    pub messages: u64,
    /// Messages that came as datagrams, each counted once.
    pub datagrams: u64,
    /// Windows that the peer has told.
    pub windows_told: u64,
    /// Windows that both gateways have alike.
    pub windows_equal: u64,
    /// Windows that they don't.
    pub windows_different: u64,
    /// Messages for which a queue had no room.
    pub left_out: u64,
}

impl PairDesk {
    pub(super) fn new(serial: u64) -> Self {
        Self {
            out: ArrayQueue::new(QUEUE_MESSAGES_MAX),
            election: ArrayQueue::new(QUEUE_MESSAGES_MAX),
            deaths: ArrayQueue::new(QUEUE_MESSAGES_MAX),
            mismatches: ArrayQueue::new(MISMATCHES_MAX),
            reader: OnceLock::new(),
            serial: AtomicU64::new(serial),
            peer: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// Leaves a message of that group's election. `false`: no room, and as good as lost on the way.
    pub fn send_election(&self, group: GroupId, message: &PeerMessage) -> bool {
        let serial = self.next_serial();
        serde_json::to_vec(&(group.0, message)).is_ok_and(|bytes| self.send(LinkMessage::Election { serial, bytes }))
    }

    /// Leaves word that a process has ended.
    pub fn send_death(&self, notice: &DeathNotice) -> bool {
        let serial = self.next_serial();
        serde_json::to_vec(notice).is_ok_and(|bytes| self.send(LinkMessage::Death { serial, bytes }))
    }

    /// The thread that takes what comes for the elections: it is unparked for each message. The first one that calls it.
    pub fn wake_on_message(&self, reader: Thread) {
        let _another = self.reader.set(reader);
    }

    /// The next message of the peer's elections.
    #[must_use]
    pub fn take_election(&self) -> Option<(GroupId, PeerMessage)> {
        self.election.pop()
    }

    /// The next word of a process that has ended.
    #[must_use]
    pub fn take_death(&self) -> Option<DeathNotice> {
        self.deaths.pop()
    }

    /// The next message that both gateways have, with different records.
    #[must_use]
    pub fn take_mismatch(&self) -> Option<Mismatch> {
        self.mismatches.pop()
    }

    /// The number of the peer while it is connected.
    #[must_use]
    pub fn peer_node(&self) -> Option<u8> {
        self.lock().node
    }

    /// What the peer has told of a channel last.
    #[must_use]
    pub fn peer(&self, channel: ChannelId) -> Option<PeerChannel> {
        self.lock().channels.get(&channel).copied()
    }

    /// What is counted.
    #[must_use]
    pub fn counts(&self) -> PairCounts {
        let counters = &self.counters;
        PairCounts {
            connections: counters.connections.load(Relaxed),
            refused: counters.refused.load(Relaxed),
            messages: counters.messages.load(Relaxed),
            datagrams: counters.datagrams.load(Relaxed),
            windows_told: counters.windows_told.load(Relaxed),
            windows_equal: counters.windows_equal.load(Relaxed),
            windows_different: counters.windows_different.load(Relaxed),
            left_out: counters.left_out.load(Relaxed),
        }
    }

    pub(super) fn send(&self, message: LinkMessage) -> bool {
        self.keep(&self.out, message)
    }

    /// Text of the election's that means nothing to it is refused.
    pub(super) fn put_election(&self, serial: u64, bytes: &[u8]) {
        if !self.is_first(serial) {
            return;
        }
        match serde_json::from_slice(bytes) {
            Ok((group, message)) => _ = self.keep(&self.election, (GroupId(group), message)),
            Err(_) => add(&self.counters.refused),
        }
        self.wake();
    }

    pub(super) fn put_death(&self, serial: u64, bytes: &[u8]) {
        if !self.is_first(serial) {
            return;
        }
        match serde_json::from_slice(bytes) {
            Ok(notice) => _ = self.keep(&self.deaths, notice),
            Err(_) => add(&self.counters.refused),
        }
        self.wake();
    }

    /// From the peer's sentinel, which says it three times; that it is the same doesn't matter.
    pub(super) fn put_notice(&self, notice: DeathNotice) {
        self.keep(&self.deaths, notice);
        self.wake();
    }

    fn wake(&self) {
        if let Some(reader) = self.reader.get() {
            reader.unpark();
        }
    }

    pub(super) fn put_mismatch(&self, mismatch: Mismatch) {
        self.keep(&self.mismatches, mismatch);
    }

    pub(super) fn put_positions(&self, positions: &[ChannelPositions], at: MonoNs) {
        let mut peer = self.lock();
        for positions in positions {
            peer.channels.insert(positions.channel, PeerChannel { positions: *positions, at });
        }
    }

    pub(super) fn set_peer_node(&self, node: Option<u8>) {
        self.lock().node = node;
    }

    fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Relaxed)
    }

    /// Whether a message comes for the first time, whichever way.
    fn is_first(&self, serial: u64) -> bool {
        let mut peer = self.lock();
        let is_first = !peer.seen.contains(&serial);
        if is_first {
            if peer.seen.len() == SEEN_MAX {
                peer.seen.pop_front();
            }
            peer.seen.push_back(serial);
        }
        is_first
    }

    fn keep<T>(&self, queue: &ArrayQueue<T>, message: T) -> bool {
        let is_kept = queue.push(message).is_ok();
        if !is_kept {
            add(&self.counters.left_out);
        }
        is_kept
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Peer> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// More than an election says in a second.
const QUEUE_MESSAGES_MAX: usize = 256;
/// More than can be under way on one of the ways while it has come on the other.
const SEEN_MAX: usize = 1_024;
/// Kept for whoever asks; each is logged when it is found.
const MISMATCHES_MAX: usize = 64;
