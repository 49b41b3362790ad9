//! Queues and shared state between the link's thread and other threads.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::unix::net::UnixDatagram,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::Thread,
};

use crossbeam_queue::ArrayQueue;
use mdgw_election::{announcement::Announcement, identity::DeathNotice, peer::PeerMessage};
use mdgw_sys::listener_counters::{ListenerCounters, Refusal};
use mdgw_telemetry::counter_block;
use mdgw_wire::{
    identity::{ChannelId, GroupId},
    time::MonoNs,
};

use super::{
    message::{ChannelPositions, LinkMessage},
    mismatch::Mismatch,
};
use crate::standby::join::WindowCounts;

/// The other threads' access to the link. No call waits for the network.
#[derive(Debug)]
pub struct LinkHandle {
    pub(super) out: ArrayQueue<Outgoing>,
    /// Wakes the link's thread for urgent messages.
    wake_sender: UnixDatagram,
    election: ArrayQueue<(u8, GroupId, PeerMessage)>,
    deaths: ArrayQueue<(Option<GroupId>, DeathNotice)>,
    mismatches: ArrayQueue<Mismatch>,
    lead_requests: ArrayQueue<(u8, GroupId)>,
    /// The thread that forwards messages for the elections; unparked for each message.
    forwarder: OnceLock<Thread>,
    /// Serial of the next message that is sent both by stream and by datagram. It begins at random, so that the
    /// serials of a restarted process differ.
    serial: AtomicU64,
    peers: Mutex<Peers>,
    pub(super) counters: Counters,
    pub(super) listener_counters: Arc<ListenerCounters>,
}

/// A message for one peer or for all.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Node number of the recipient; `None`: all peers.
    pub(super) to: Option<u8>,
    pub(super) message: LinkMessage,
    /// Number of datagrams that carry the message, in addition to the connection.
    pub(super) datagram_copies: usize,
}

#[derive(Debug, Default)]
struct Peers {
    /// The connected peers, and the reports of each.
    connected: BTreeMap<u8, BTreeMap<ChannelId, PeerReport>>,
    /// Results of window comparisons, over all peers.
    windows: BTreeMap<ChannelId, WindowCounts>,
    /// Serials of the last messages received. A message that arrives once more has one of these.
    recent_serials: VecDeque<u64>,
}

/// What a peer has reported about a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerReport {
    /// Positions of the peer's channel.
    pub positions: ChannelPositions,
    /// When the report arrived.
    pub received_at: MonoNs,
}

/// Written by the link's thread; each counter is independent.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) connections_unused: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) datagrams: AtomicU64,
    pub(super) queue_full: AtomicU64,
}

counter_block! {
    /// Counts of the link.
    pub struct PairCounts, key PairCount {
        connections: Counter, None, "connections that proved the key";
        connections_unused: Counter, None, "connections closed without a message: health checks, and requests for positions by a gateway that starts or by `mdgw doctor`; not refused";
        refused: Counter, None, "connections, messages and datagrams that were refused; `mdgw_listener_refused_total` has the reasons";
        messages: Counter, None, "messages received on a connection";
        datagrams: Counter, None, "messages received as datagrams, each counted once";
        windows_reported: Counter, None, "windows of messages that peers have reported and that this gateway should have";
        windows_equal: Counter, None, "windows with equal content at a peer and at this gateway";
        windows_different: Counter, None, "windows with different content";
        queue_full: Counter, None, "messages that were dropped because a queue had no room";
    }
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
            listener_counters: Arc::default(),
        }
    }

    /// Queues a message of that group's election for gateway `to`. `false`: the queue has no room, so the message is
    /// lost.
    pub fn send_election(&self, to: u8, group: GroupId, message: &PeerMessage) -> bool {
        let serial = self.next_serial();
        // State messages need no copies: the next one comes soon.
        let datagram_copies = if matches!(message, PeerMessage::State(_)) { 0 } else { DATAGRAM_COPIES };
        serde_json::to_vec(&(group.0, message))
            .is_ok_and(|bytes| self.send(Some(to), LinkMessage::Election { serial, bytes }, datagram_copies))
    }

    /// Queues a death notice for all peers.
    #[cfg(test)]
    pub(crate) fn send_death(&self, notice: &DeathNotice) -> bool {
        let serial = self.next_serial();
        serde_json::to_vec(notice)
            .is_ok_and(|bytes| self.send(None, LinkMessage::Death { serial, bytes }, DATAGRAM_COPIES))
    }

    /// Asks gateway `to` to hand over the group to this one, if it leads the group. `false`: no link to it, or no room.
    pub fn request_leadership(&self, to: u8, group: GroupId) -> bool {
        self.is_linked_to(to) && self.send(Some(to), LinkMessage::LeadRequest { group }, 0)
    }

    /// The next gateway that requests leadership, and of which group.
    #[must_use]
    pub fn take_lead_request(&self) -> Option<(u8, GroupId)> {
        self.lead_requests.pop()
    }

    /// Registers the thread that takes messages for the elections: it is unparked for each. Only the first call has an
    /// effect.
    pub fn set_forwarder(&self, forwarder: Thread) {
        let _another = self.forwarder.set(forwarder);
    }

    /// The next message of the peers' elections, and the gateway that sent it.
    #[must_use]
    pub fn take_election(&self) -> Option<(u8, GroupId, PeerMessage)> {
        self.election.pop()
    }

    /// The next death notice, and its group; `None`: all groups that the process led.
    #[must_use]
    pub fn take_death(&self) -> Option<(Option<GroupId>, DeathNotice)> {
        self.deaths.pop()
    }

    /// The next message for which the gateways have different records.
    #[must_use]
    pub fn take_mismatch(&self) -> Option<Mismatch> {
        self.mismatches.pop()
    }

    /// The node numbers of the connected peers.
    #[must_use]
    pub fn peer_nodes(&self) -> BTreeSet<u8> {
        self.lock().connected.keys().copied().collect()
    }

    /// Whether that peer is connected.
    #[must_use]
    pub fn is_linked_to(&self, node: u8) -> bool {
        self.lock().connected.contains_key(&node)
    }

    /// The last report of each connected peer about a channel.
    #[must_use]
    pub fn peer_reports(&self, channel: ChannelId) -> Vec<PeerReport> {
        self.lock().connected.values().filter_map(|channels| channels.get(&channel).copied()).collect()
    }

    /// The last report of a connected peer about a channel.
    pub(super) fn report_of(&self, node: u8, channel: ChannelId) -> Option<ChannelPositions> {
        Some(self.lock().connected.get(&node)?.get(&channel)?.positions)
    }

    /// Results of comparing a channel's windows with those of the peers.
    #[must_use]
    pub fn windows(&self, channel: ChannelId) -> WindowCounts {
        self.lock().windows.get(&channel).copied().unwrap_or_default()
    }

    pub(super) fn count_window(&self, channel: ChannelId, count: impl FnOnce(&mut WindowCounts)) {
        count(self.lock().windows.entry(channel).or_default());
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> PairCounts {
        let counters = &self.counters;
        let windows: Vec<WindowCounts> = self.lock().windows.values().copied().collect();
        PairCounts {
            connections: counters.connections.load(Relaxed),
            connections_unused: counters.connections_unused.load(Relaxed),
            refused: self.listener_counters.refused_total(),
            messages: counters.messages.load(Relaxed),
            datagrams: counters.datagrams.load(Relaxed),
            windows_reported: windows.iter().map(|windows| windows.reported).sum(),
            windows_equal: windows.iter().map(|windows| windows.equal).sum(),
            windows_different: windows.iter().map(|windows| windows.different).sum(),
            queue_full: counters.queue_full.load(Relaxed),
        }
    }

    /// What the link's sockets have received and refused, by reason.
    #[must_use]
    pub fn listener_counters(&self) -> &Arc<ListenerCounters> {
        &self.listener_counters
    }

    /// A message of a peer was lost, since its election had no room for it.
    pub fn count_queue_full(&self) {
        add(&self.counters.queue_full);
    }

    fn send(&self, to: Option<u8>, message: LinkMessage, datagram_copies: usize) -> bool {
        let is_urgent = datagram_copies > 0;
        let has_room = self.enqueue(&self.out, Outgoing { to, message, datagram_copies });
        if is_urgent {
            // If the wake-up socket is full, a wake-up is pending already.
            let _woken = self.wake_sender.send(&[0]);
        }
        has_room
    }

    /// Queues a peer's message for its election. A message received before is ignored, one that cannot be parsed is
    /// refused.
    pub(super) fn push_election(&self, from: u8, serial: u64, bytes: &[u8]) {
        match serde_json::from_slice(bytes) {
            // State messages use the connection alone. If their serials were remembered, they would only displace
            // those of messages that arrive by datagram too.
            Ok((group, message)) if matches!(message, PeerMessage::State(_)) || self.is_new_serial(serial) => {
                self.enqueue(&self.election, (from, GroupId(group), message));
                self.wake();
            }
            Ok(_) => {}
            Err(_) => self.listener_counters.count(Refusal::Malformed),
        }
    }

    pub(super) fn push_death(&self, serial: u64, bytes: &[u8]) {
        if !self.is_new_serial(serial) {
            return;
        }
        match serde_json::from_slice(bytes) {
            Ok(notice) => _ = self.enqueue(&self.deaths, (None, notice)),
            Err(_) => self.listener_counters.count(Refusal::Malformed),
        }
        self.wake();
    }

    /// Queues a notice of a peer's sentinel. The sentinel sends it three times; repetitions do no harm.
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
        for report in positions {
            channels.insert(report.channel, PeerReport { positions: *report, received_at });
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

    /// Whether a message is received for the first time, by stream or by datagram.
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

/// Capacity of a message queue: more than the elections of a hundred groups send in one turn of the link.
const QUEUE_MESSAGES_MAX: usize = 1_024;
/// Number of serials kept: more messages than can be in flight on one carrier while they have arrived on the other.
const RECENT_SERIALS_MAX: usize = 1_024;
/// Capacity of the queue of mismatches. Each mismatch is logged when it is found, too.
const MISMATCHES_MAX: usize = 64;
/// Capacity of the queue of requests for leadership. The requester repeats a lost request.
const LEAD_REQUESTS_MAX: usize = 256;
/// Number of datagrams for each urgent message. One of them gets through where a connection would wait for a
/// retransmission.
const DATAGRAM_COPIES: usize = 3;

#[cfg(test)]
mod tests {
    use mdgw_election::{
        identity::{Incarnation, NodeId},
        peer::LeaderRequest,
    };
    use mdgw_wire::identity::Epoch;

    use super::*;
    use crate::formats::check;

    #[derive(Debug, PartialEq)]
    enum Carried {
        Election(GroupId, PeerMessage),
        Death(DeathNotice),
    }

    fn link_handle() -> LinkHandle {
        LinkHandle::new(1, UnixDatagram::unbound().unwrap())
    }

    #[test]
    fn election_messages_carried_by_0_1_0_are_read() {
        let (requester, incarnation, epoch) = (NodeId(1), Incarnation(2), Epoch::new(3, 1));
        let request = LeaderRequest { requester, incarnation, epoch, nonce: 4, lease_ns: 5 };
        check(
            include_str!("../../../../tests/data/formats/pair_link_carried.jsonl"),
            &[
                Carried::Election(GroupId(700), PeerMessage::Promise(request)),
                Carried::Death(DeathNotice { holder: requester, incarnation, epoch }),
            ],
            |bytes| {
                let handle = link_handle();
                handle.push_election(1, 1, bytes);
                if let Some((_, group, message)) = handle.take_election() {
                    return Carried::Election(group, message);
                }
                handle.push_death(2, bytes);
                Carried::Death(handle.take_death().unwrap().1)
            },
            |carried| {
                let handle = link_handle();
                match carried {
                    Carried::Election(group, message) => handle.send_election(1, *group, message),
                    Carried::Death(notice) => handle.send_death(notice),
                };
                let Some(LinkMessage::Election { bytes, .. } | LinkMessage::Death { bytes, .. }) =
                    handle.out.pop().map(|outgoing| outgoing.message)
                else {
                    panic!("nothing is under way")
                };
                bytes
            },
        );
    }
}
