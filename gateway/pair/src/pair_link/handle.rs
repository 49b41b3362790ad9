//! Where other threads leave messages for the peers, and find theirs.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::unix::net::UnixDatagram,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::Thread,
};

use crossbeam_queue::ArrayQueue;
use mdgw_election::{announcement::Announcement, identity::DeathNotice, peer::PeerMessage};
use mdgw_feeds::{
    identity::{ChannelId, GroupId},
    time::MonoNs,
};

use super::{
    message::{ChannelPositions, LinkMessage},
    mismatch::Mismatch,
};
use crate::standby::join::WindowCounts;

/// Between the link's thread and the others. No call waits for the network.
#[derive(Debug)]
pub struct LinkHandle {
    pub(super) out: ArrayQueue<Outgoing>,
    /// Wakes the link's thread for what can't wait until it looks by itself.
    wake_sender: UnixDatagram,
    election: ArrayQueue<(u8, GroupId, PeerMessage)>,
    deaths: ArrayQueue<(Option<GroupId>, DeathNotice)>,
    mismatches: ArrayQueue<Mismatch>,
    lead_requests: ArrayQueue<(u8, GroupId)>,
    /// Who forwards what comes for the elections; woken by it.
    forwarder: OnceLock<Thread>,
    /// Of the next message that goes by more than one way; begins anywhere, so that a new process' are others.
    serial: AtomicU64,
    peers: Mutex<Peers>,
    pub(super) counters: Counters,
}

/// Something to be told.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// To whom, by number; `None`: to all.
    pub(super) to: Option<u8>,
    pub(super) message: LinkMessage,
    /// How often it goes as a datagram, besides the connection.
    pub(super) datagram_copies: usize,
}

#[derive(Debug, Default)]
struct Peers {
    /// Those that are connected, and what each has told.
    connected: BTreeMap<u8, BTreeMap<ChannelId, PeerReport>>,
    /// What came of comparing windows, with all peers together.
    windows: BTreeMap<ChannelId, WindowCounts>,
    /// Serials that were taken last.
    recent_serials: VecDeque<u64>,
}

/// What a peer has told of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerReport {
    /// Its positions.
    pub positions: ChannelPositions,
    /// When that came.
    pub received_at: MonoNs,
}

/// Written by the link's thread; each word for itself.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) datagrams: AtomicU64,
    pub(super) queue_full: AtomicU64,
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
    /// WindowCounts that peers have told and this gateway should have.
    pub windows_reported: u64,
    /// WindowCounts that a peer and this gateway have alike.
    pub windows_equal: u64,
    /// WindowCounts that they don't.
    pub windows_different: u64,
    /// Messages for which a queue had no room.
    pub queue_full: u64,
}

impl LinkHandle {
    pub(super) fn new(serial: u64, wake_sender: UnixDatagram) -> Self {
        Self {
            out: ArrayQueue::new(QUEUE_MESSAGES_MAX),
            wake_sender,
            election: ArrayQueue::new(QUEUE_MESSAGES_MAX),
            deaths: ArrayQueue::new(QUEUE_MESSAGES_MAX),
            mismatches: ArrayQueue::new(MISMATCHES_MAX),
            lead_requests: ArrayQueue::new(LEAD_REQUESTS_MAX),
            forwarder: OnceLock::new(),
            serial: AtomicU64::new(serial),
            peers: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// Leaves a message of that group's election for that gateway. `false`: no room, and as good as lost on the way.
    pub fn send_election(&self, to: u8, group: GroupId, message: &PeerMessage) -> bool {
        let serial = self.next_serial();
        // How a gateway is it says again soon.
        let datagram_copies = if matches!(message, PeerMessage::State(_)) { 0 } else { DATAGRAM_COPIES };
        serde_json::to_vec(&(group.0, message))
            .is_ok_and(|bytes| self.send(Some(to), LinkMessage::Election { serial, bytes }, datagram_copies))
    }

    /// Leaves word for all that a process has ended.
    pub fn send_death(&self, notice: &DeathNotice) -> bool {
        let serial = self.next_serial();
        serde_json::to_vec(notice)
            .is_ok_and(|bytes| self.send(None, LinkMessage::Death { serial, bytes }, DATAGRAM_COPIES))
    }

    /// Asks that gateway, if it leads the group, to hand over to this one. `false`: no link to it, or no room.
    pub fn request_leadership(&self, to: u8, group: GroupId) -> bool {
        self.is_linked_to(to) && self.send(Some(to), LinkMessage::LeadRequest { group }, 0)
    }

    /// The next gateway that asks to lead, and which group.
    #[must_use]
    pub fn take_lead_request(&self) -> Option<(u8, GroupId)> {
        self.lead_requests.pop()
    }

    /// The thread that takes what comes for the elections: it is unparked for each message. The first one that calls it.
    pub fn set_forwarder(&self, forwarder: Thread) {
        let _another = self.forwarder.set(forwarder);
    }

    /// The next message of the peers' elections, and which gateway's it is.
    #[must_use]
    pub fn take_election(&self) -> Option<(u8, GroupId, PeerMessage)> {
        self.election.pop()
    }

    /// The next word of a process that has ended, and of which group it is said; `None`: of whichever it led.
    #[must_use]
    pub fn take_death(&self) -> Option<(Option<GroupId>, DeathNotice)> {
        self.deaths.pop()
    }

    /// The next message that both gateways have, with different records.
    #[must_use]
    pub fn take_mismatch(&self) -> Option<Mismatch> {
        self.mismatches.pop()
    }

    /// The numbers of the peers that are connected.
    #[must_use]
    pub fn peer_nodes(&self) -> BTreeSet<u8> {
        self.lock().connected.keys().copied().collect()
    }

    /// Whether that peer is connected.
    #[must_use]
    pub fn is_linked_to(&self, node: u8) -> bool {
        self.lock().connected.contains_key(&node)
    }

    /// What each peer that is connected has told of a channel last.
    #[must_use]
    pub fn told(&self, channel: ChannelId) -> Vec<PeerReport> {
        self.lock().connected.values().filter_map(|channels| channels.get(&channel).copied()).collect()
    }

    /// What a peer that is connected has told of a channel last.
    pub(super) fn report_of(&self, node: u8, channel: ChannelId) -> Option<ChannelPositions> {
        Some(self.lock().connected.get(&node)?.get(&channel)?.positions)
    }

    /// What has come of comparing a channel's windows with those of the peers.
    #[must_use]
    pub fn windows(&self, channel: ChannelId) -> WindowCounts {
        self.lock().windows.get(&channel).copied().unwrap_or_default()
    }

    pub(super) fn count_window(&self, channel: ChannelId, count: impl FnOnce(&mut WindowCounts)) {
        count(self.lock().windows.entry(channel).or_default());
    }

    /// What is counted.
    #[must_use]
    pub fn counts(&self) -> PairCounts {
        let counters = &self.counters;
        let windows: Vec<WindowCounts> = self.lock().windows.values().copied().collect();
        PairCounts {
            connections: counters.connections.load(Relaxed),
            refused: counters.refused.load(Relaxed),
            messages: counters.messages.load(Relaxed),
            datagrams: counters.datagrams.load(Relaxed),
            windows_reported: windows.iter().map(|windows| windows.reported).sum(),
            windows_equal: windows.iter().map(|windows| windows.equal).sum(),
            windows_different: windows.iter().map(|windows| windows.different).sum(),
            queue_full: counters.queue_full.load(Relaxed),
        }
    }

    fn send(&self, to: Option<u8>, message: LinkMessage, datagram_copies: usize) -> bool {
        let is_urgent = datagram_copies > 0;
        let has_room = self.enqueue(&self.out, Outgoing { to, message, datagram_copies });
        if is_urgent {
            // A full bell has been rung.
            let _woken = self.wake_sender.send(&[0]);
        }
        has_room
    }

    /// Text of the election's that means nothing to it is refused.
    pub(super) fn push_election(&self, from: u8, serial: u64, bytes: &[u8]) {
        match serde_json::from_slice(bytes) {
            // A state goes by the connection alone; remembered, it would only drive out what comes by datagram too.
            Ok((group, message)) if matches!(message, PeerMessage::State(_)) || self.is_new_serial(serial) => {
                self.enqueue(&self.election, (from, GroupId(group), message));
                self.wake();
            }
            Ok(_) => {}
            Err(_) => add(&self.counters.refused),
        }
    }

    pub(super) fn push_death(&self, serial: u64, bytes: &[u8]) {
        if !self.is_new_serial(serial) {
            return;
        }
        match serde_json::from_slice(bytes) {
            Ok(notice) => _ = self.enqueue(&self.deaths, (None, notice)),
            Err(_) => add(&self.counters.refused),
        }
        self.wake();
    }

    /// From a peer's sentinel, which says it three times; that it is the same doesn't matter.
    pub(super) fn push_announcement(&self, Announcement { group, notice }: Announcement) {
        self.enqueue(&self.deaths, (Some(group), notice));
        self.wake();
    }

    pub(super) fn push_lead_request(&self, from: u8, group: GroupId) {
        self.enqueue(&self.lead_requests, (from, group));
        self.wake();
    }

    fn wake(&self) {
        if let Some(forwarder) = self.forwarder.get() {
            forwarder.unpark();
        }
    }

    pub(super) fn push_mismatch(&self, mismatch: Mismatch) {
        self.enqueue(&self.mismatches, mismatch);
    }

    pub(super) fn record_positions(&self, from: u8, positions: &[ChannelPositions], received_at: MonoNs) {
        let mut peers = self.lock();
        let Some(channels) = peers.connected.get_mut(&from) else { return };
        for positions in positions {
            channels.insert(positions.channel, PeerReport { positions: *positions, received_at });
        }
    }

    pub(super) fn set_linked(&self, node: u8, is_linked: bool) {
        let mut peers = self.lock();
        if is_linked {
            peers.connected.entry(node).or_default();
        } else {
            peers.connected.remove(&node);
        }
    }

    fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Relaxed)
    }

    /// Whether a message comes for the first time, whichever way.
    fn is_new_serial(&self, serial: u64) -> bool {
        let mut peers = self.lock();
        let is_new_serial = !peers.recent_serials.contains(&serial);
        if is_new_serial {
            if peers.recent_serials.len() == RECENT_SERIALS_MAX {
                peers.recent_serials.pop_front();
            }
            peers.recent_serials.push_back(serial);
        }
        is_new_serial
    }

    fn enqueue<T>(&self, queue: &ArrayQueue<T>, message: T) -> bool {
        let is_queued = queue.push(message).is_ok();
        if !is_queued {
            add(&self.counters.queue_full);
        }
        is_queued
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// More than the elections of a hundred groups say in one turn of the link.
const QUEUE_MESSAGES_MAX: usize = 1_024;
/// More than can be under way on one of the ways while it has come on the other.
const RECENT_SERIALS_MAX: usize = 1_024;
/// Kept for whoever asks; each is logged when it is found.
const MISMATCHES_MAX: usize = 64;
/// Somebody waits for each, and asks again.
const LEAD_REQUESTS_MAX: usize = 256;
/// One gets through where a connection would wait for its repetition.
const DATAGRAM_COPIES: usize = 3;

#[cfg(test)]
mod tests {
    use mdgw_election::{
        identity::{Incarnation, NodeId},
        peer::LeaderRequest,
    };
    use mdgw_feeds::identity::Epoch;

    use super::*;
    use crate::formats::check;

    #[derive(Debug, PartialEq)]
    enum Carried {
        Election(GroupId, PeerMessage),
        Death(DeathNotice),
    }

    fn desk() -> LinkHandle {
        LinkHandle::new(1, UnixDatagram::unbound().unwrap())
    }

    #[test]
    fn what_0_1_0_carries_for_the_election_is_read() {
        let (requester, incarnation, epoch) = (NodeId(1), Incarnation(2), Epoch::new(3, 1));
        let request = LeaderRequest { requester, incarnation, epoch, nonce: 4, lease_ns: 5 };
        check(
            include_str!("../../../../tests/data/formats/pair_link_carried.jsonl"),
            &[
                Carried::Election(GroupId(700), PeerMessage::Promise(request)),
                Carried::Death(DeathNotice { holder: requester, incarnation, epoch }),
            ],
            |bytes| {
                let desk = desk();
                desk.push_election(1, 1, bytes);
                if let Some((_, group, message)) = desk.take_election() {
                    return Carried::Election(group, message);
                }
                desk.push_death(2, bytes);
                Carried::Death(desk.take_death().unwrap().1)
            },
            |carried| {
                let desk = desk();
                match carried {
                    Carried::Election(group, message) => desk.send_election(1, *group, message),
                    Carried::Death(notice) => desk.send_death(notice),
                };
                let Some(LinkMessage::Election { bytes, .. } | LinkMessage::Death { bytes, .. }) =
                    desk.out.pop().map(|outgoing| outgoing.message)
                else {
                    panic!("nothing is under way")
                };
                bytes
            },
        );
    }
}
