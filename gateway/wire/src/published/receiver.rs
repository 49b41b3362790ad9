//! Turns the datagrams of one group into whole messages: each once, in order, or declared lost. No sockets.
//!
//! ```text
//! datagram → check → epoch → channel → session → arbiter (lines, window, gaps) → frames → parts joined → item
//!                                                          └ gap → retransmission service → answers are one more line
//! ```
//! Output lines are arbitrated by our own [`Arbiter`](crate::arbiter::Arbiter), over positions `sequence << 16 |
//! part`. Two gateways may therefore split their packets differently, and split messages are ordered, de-duplicated
//! and recovered part by part.
//!
//! Sessions that began and ended unobserved between two observed ones are requested too. A subscriber thus misses no
//! session that the logs still hold.
//!
//! Anybody on the network may send to a multicast group. With a key ([`ReceiverConfig::tags`]) only packets of a holder of
//! the key are accepted. Without one, epochs are the only protection, and the network must protect the groups and the
//! service's address. Which epoch is believed at the start, and when a receiver gives up instead: module `epoch_start`.
//!
//! Out of scope: filling in values local to the consumer (see [`crate::consumer_edge`]).

mod assembly;
mod channel;
mod entries;
mod epoch_filter;
mod epoch_start;
mod group_image;
mod item_stream;
mod log_extents;
mod positions;
mod rebuild;
mod service_query;
mod snapshot_query;
#[cfg(test)]
mod tests;

use crate::{
    arbiter::{Gap, LineStatistics, RecoveryStatistics},
    channel_state::ChannelState,
    drop_reason::{DropCounts, DropReason},
    frame::FrameHeader,
    identity::{ChannelId, Epoch, GroupId, Line, Sequence, Session},
    time::{MonoNs, UnixNs},
};

pub use self::{
    entries::{EntryReceiver, LogEntry},
    epoch_start::RivalEpochs,
    rebuild::BookState,
    snapshot_query::asks_any_service,
};

use self::{
    channel::ReceiverChannel,
    epoch_start::{Admission, EpochStart},
};
use super::{
    packet::{PACKET_BYTES_MAX, Packet, PacketFlags, parse_packet},
    position::StreamPosition,
    probe,
    request::ServiceRequest,
    snapshot::SnapshotChunk,
    tag::{TAG_BYTES, TagPolicy, TagUse},
};

/// Configuration of a group's reception.
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// Group to receive.
    pub group: GroupId,
    /// Channels to receive, allocated at the start. If empty: every channel observed, up to `channels_max`, allocated
    /// at its first packet.
    pub channels: Vec<ChannelId>,
    /// Most channels received, if `channels` is empty.
    pub channels_max: usize,
    /// Output lines of the group, 1 to 7.
    pub lines: u8,
    /// Maximum packet size without the tag, bytes.
    pub packet_bytes_max: usize,
    /// Which tags packets must have, on the lines and in answers.
    pub tags: TagPolicy,
    /// Packets held per channel while a gap is pending.
    pub window_packets: usize,
    /// How long a gap waits for another line, ns.
    pub gap_timeout_ns: u64,
    /// The retransmission service. Without it, a gap that timed out is lost.
    pub service: Option<ServiceConfig>,
    /// Where a subscriber starts that joins late.
    pub start: StartFrom,
    /// Channels that continue where an earlier receiver stopped, whatever `start` says: everything before the position counts as
    /// delivered, and no [`Item::Session`] is delivered for that session. A message of which some parts lie before the position
    /// is delivered whole.
    pub resume: Vec<(ChannelId, StreamPosition)>,
    /// Largest step of the epoch's count above the highest accepted one.
    pub epoch_jump_max: u64,
    /// How long a receiver without an answering service watches for rival epochs after its first packet, ns. Longer than a
    /// takeover and at least three times the gateways' `heartbeat_ms`, so that a packet of the gateways comes within it.
    pub start_window_ns: u64,
    /// Most bytes of packets held at the start until a service answers.
    pub start_bytes_max: usize,
    /// Random bits that the answer about the epoch must repeat. Nobody else may be able to guess them.
    pub epoch_nonce: u64,
    /// Random bits in the nonce of each request. With tags, answers to others are refused by it.
    pub request_nonce: u64,
    /// Largest distance of a packet from the known position, in messages, without confirmation by two more packets.
    pub sequence_jump_max: u64,
    /// Maximum bytes of one message's records.
    pub message_bytes_max: usize,
    /// Maximum bytes of a snapshot's records. A larger snapshot is refused, and the session delivered from the logs.
    pub snapshot_bytes_max: u64,
    /// Whether suspect books are rebuilt from a snapshot while the stream goes on. Needs a service or the snapshot group. The receiver
    /// then delivers [`Item::Books`], [`Item::Snapshot`] and [`Item::Repeated`] in the middle of a session.
    pub rebuilds_books: bool,
    /// Maximum bytes of messages kept per channel while its books are suspect, to be delivered again behind the snapshot; or until
    /// the image of the snapshot group has come with which the channel starts. A message counts as 48 bytes more than its records.
    pub rebuild_bytes_max: u64,
    /// Reception of the snapshot group, whose packets [`Receiver::accept_from_snapshot_group`] takes; `None`: snapshots are requested
    /// only.
    pub snapshot_group: Option<SnapshotGroupConfig>,
    /// Silence after which a line's alarm is raised, ns; `None`: never. Must exceed the gateway's heartbeat interval.
    pub line_silence_ns: Option<u64>,
}

/// Parameters of requests to the retransmission service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Timeout of an answer, ns.
    pub request_timeout_ns: u64,
    /// Attempts for the same request; at least 1.
    pub attempts_max: u16,
    /// Number of services, 1 to [`SERVICES_MAX`]. A repeated request goes to the next service. Queries for log
    /// extents go to all services, since each has its own log.
    pub service_count: u8,
    /// Rounds of log extent queries to all services. After that, services without an answer are left out if another
    /// one has answered.
    pub unanswered_rounds_max: u16,
    /// Most messages in one request.
    pub messages_per_request_max: u64,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            request_timeout_ns: 50_000_000,
            attempts_max: 10,
            service_count: 1,
            unanswered_rounds_max: 2,
            messages_per_request_max: 10_000,
        }
    }
}

/// Parameters of the snapshot group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotGroupConfig {
    /// How long a start waits for a whole image, ns, before it does without. Longer than the group needs for one image of each of its
    /// channels.
    pub wait_ns_max: u64,
}

impl Default for SnapshotGroupConfig {
    fn default() -> Self {
        Self { wait_ns_max: 120_000_000_000 }
    }
}

/// Maximum number of services.
pub const SERVICES_MAX: usize = 8;

/// Where a subscriber starts that joins late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartFrom {
    /// At the oldest message of the session in the services' logs.
    #[default]
    OldestOfSession,
    /// At the oldest message of the trading date in the services' logs: first the ended sessions, then as
    /// [`Self::OldestOfSession`].
    OldestOfDay,
    /// At the messages published now, after the definitions.
    Live,
    /// After the definitions, with a snapshot of the session's state, and at the first message behind it: from a service, or, where
    /// none has one or there is no service, from the snapshot group. Without a snapshot, as [`Self::OldestOfSession`].
    Snapshot,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            group: GroupId(0),
            channels: Vec::new(),
            channels_max: 64,
            lines: 1,
            packet_bytes_max: PACKET_BYTES_MAX,
            tags: TagPolicy::default(),
            window_packets: 256,
            gap_timeout_ns: 2_000_000,
            service: None,
            start: StartFrom::OldestOfSession,
            resume: Vec::new(),
            epoch_jump_max: 1_000,
            start_window_ns: 3_000_000_000,
            start_bytes_max: 16 << 20,
            epoch_nonce: 0,
            request_nonce: 0,
            sequence_jump_max: 1 << 24,
            message_bytes_max: 1 << 16,
            snapshot_bytes_max: 1 << 30,
            rebuilds_books: false,
            rebuild_bytes_max: 64 << 20,
            snapshot_group: None,
            line_silence_ns: None,
        }
    }
}

/// One output of the receiver.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// Channel that the item belongs to.
    pub channel: ChannelId,
    /// Session that the item belongs to.
    pub session: Session,
    /// The first message that was not passed before this item: earlier ones were delivered, were reported as missing, or had no
    /// output. 0 before the session's first position is known.
    pub reported_through: Sequence,
    /// What is delivered: a session start, message, definition, snapshot, state or gap.
    pub item: Item<'a>,
}

/// Output of a channel, in stream order.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A session begins: at the start, and when the venue begins again at sequence 1. Sessions only go forward.
    Session,
    /// All records of one input message, its parts joined. The header is that of the whole message. If `body_bytes`
    /// cannot hold the length, it is at its maximum and `body.len()` counts. An empty suspect message is one that the
    /// gateway could not decode or its book could not apply.
    Message {
        /// Sequence, receive time, flags.
        header: &'a FrameHeader,
        /// DBN records, back to back.
        body: &'a [u8],
    },
    /// A definition requested at the start: an earlier message of the session, out of sequence.
    Definition {
        /// Its message's header.
        header: &'a FrameHeader,
        /// DBN records, back to back.
        body: &'a [u8],
    },
    /// A part of the channel's state: records that build books, mark the trading status, and so on. All parts of a snapshot are
    /// delivered one after the other, or none. The first has [`FrameFlags::FIRST_PART`](crate::frame::FrameFlags::FIRST_PART), the
    /// last one [`FrameFlags::LAST_PART`](crate::frame::FrameFlags::LAST_PART). The stream continues with the message that the
    /// header names.
    Snapshot {
        /// Header of the message's frame: sequence, times and kind.
        header: &'a FrameHeader,
        /// DBN records, back to back.
        body: &'a [u8],
    },
    /// A message that was delivered before, behind the position of the snapshot that was just delivered. Books that were built from
    /// the snapshot need it; a program that counts messages ignores it. Only with [`ReceiverConfig::rebuilds_books`].
    Repeated {
        /// Header of the message's frame.
        header: &'a FrameHeader,
        /// DBN records, back to back.
        body: &'a [u8],
    },
    /// The books kept from these items may be wrong from here on, or are right again. Each session begins with right books. Only
    /// with [`ReceiverConfig::rebuilds_books`].
    Books(BookState),
    /// The gateway's channel changed its state.
    State(ChannelState),
    /// A gap declared by the gateway: no line of the venue delivered it.
    Gap(Gap),
    /// Neither the published lines nor a service delivered these messages.
    Lost(Gap),
    /// The venue ended the session.
    EndOfSession,
}

/// A published datagram.
#[derive(Clone, Copy, Debug)]
pub struct PublishedDatagram<'a> {
    /// The output line; [`Line::RECOVERY`] for the services' unicast answers.
    pub line: Line,
    /// Index of the service that sent it, for answers.
    pub service: u8,
    /// UDP payload.
    pub bytes: &'a [u8],
    /// Receive timestamp: determines which line was first.
    pub ts_recv: UnixNs,
}

/// Receiver of one group.
#[derive(Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    epochs: EpochStart,
    /// The highest epoch of a chunk of the snapshot group.
    group_epoch: Epoch,
    channels: Vec<ReceiverChannel>,
    /// Where the last search for due requests ended.
    poll_cursor: usize,
    drops: DropCounts,
    packets: u64,
}

/// Statistics of one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStatistics {
    /// Messages delivered.
    pub messages: u64,
    /// Input sequences in gaps that the gateway declared.
    pub gap_messages: u64,
    /// Input sequences published by the gateway but not received here.
    pub lost_messages: u64,
    /// Definitions delivered at the start.
    pub definitions: u64,
    /// Snapshots delivered.
    pub snapshots: u64,
    /// Starts for which neither a service nor the snapshot group had a snapshot that this receiver accepts. The session came from the
    /// logs, or from the lines alone.
    pub snapshots_unavailable: u64,
    /// Suspect books that a snapshot replaced.
    pub books_rebuilt: u64,
    /// Queries for such a snapshot that ended without one: no service answered, its own books are suspect, or its image is too old.
    pub rebuilds_refused: u64,
    /// Starts without definitions or without the log's oldest message, because no service answered.
    pub starts_unanswered: u64,
    /// Starts at which a service did not send all of its definitions: those that only its log has are missing.
    pub definitions_incomplete: u64,
    /// Sessions that were left although no service knew where they end. Messages at their end may be missing, or a whole session
    /// after them, and no [`Item::Lost`] reports it.
    pub sessions_incomplete: u64,
    /// Packets ignored while the start was being requested. Their messages are requested too.
    pub packets_before_start_position: u64,
    /// Frames that fill a declared gap. An in-order receiver discards them.
    pub late_fills: u64,
    /// Messages larger than `message_bytes_max`, or with inconsistent parts. They count as lost.
    pub broken_messages: u64,
}

impl Receiver {
    /// Allocates the memory of the configured channels.
    ///
    /// # Panics
    /// If a number is out of its range, as in [`ArbiterConfig::check`](crate::arbiter::ArbiterConfig::check).
    #[must_use]
    pub fn new(config: ReceiverConfig) -> Self {
        let channels = config.channels.iter().map(|id| ReceiverChannel::new(*id, &config)).collect();
        Self {
            epochs: EpochStart::new(&config),
            group_epoch: Epoch::default(),
            channels,
            poll_cursor: 0,
            drops: DropCounts::default(),
            packets: 0,
            config,
        }
    }

    /// Processes a datagram and delivers all items that become complete.
    ///
    /// # Errors
    /// Why no part of it was used. Counted in [`Self::drops`] or by the channel's arbiter.
    pub fn accept(
        &mut self,
        datagram: PublishedDatagram<'_>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        // On the gateway's own host each probe of its arrives here too.
        if datagram.line != Line::RECOVERY && probe::node_of(datagram.bytes).is_some() {
            return Ok(());
        }
        self.packets += 1;
        let packet = parse_packet(datagram.bytes).map_err(|reason| self.refuse(reason))?;
        if packet.meta.group != self.config.group {
            return Err(self.refuse(DropReason::ChannelUnknown));
        }
        let tag_use = match datagram.line {
            Line::RECOVERY => TagUse::Answer { nonce: self.request_nonce(datagram.service) },
            _ => TagUse::Published,
        };
        self.config.tags.check(tag_use, datagram.bytes).map_err(|reason| self.refuse(reason))?;
        let is_retransmission = packet.meta.flags.contains(PacketFlags::RETRANSMISSION);
        // On the published lines, a new leader repeats what the previous one may not have sent. The end of an answer
        // is not valid there.
        let is_allowed_on_line = match datagram.line {
            Line::RECOVERY => is_retransmission,
            _ => !is_retransmission || !packet.meta.flags.contains(PacketFlags::HEARTBEAT),
        };
        let bytes_max = self.config.packet_bytes_max + if packet.is_tagged { TAG_BYTES } else { 0 };
        if !is_allowed_on_line || datagram.bytes.len() > bytes_max {
            return Err(self.refuse(DropReason::ProtocolMismatch));
        }
        let is_answer = datagram.line == Line::RECOVERY;
        if is_answer && packet.meta.flags == PacketFlags::EPOCH_ANSWER {
            let outcome = self.epochs.on_epoch_answer(&packet.meta, now).map_err(|reason| self.refuse(reason));
            self.release_held(now, deliver);
            return outcome;
        }
        if !self.config.channels.is_empty() && !self.config.channels.contains(&packet.meta.channel) {
            return Err(self.refuse(DropReason::ChannelUnknown));
        }
        let admission = if is_answer {
            self.epochs.admit_unheld(packet.meta.epoch).map(|()| Admission::Accepted)
        } else {
            self.epochs.admit(&packet.meta, &datagram, now)
        };
        match admission.map_err(|reason| self.refuse(reason))? {
            Admission::Held => Ok(()),
            Admission::Accepted => self.accept_believed(&packet, &datagram, now, deliver),
        }
    }

    /// Processes a datagram of the snapshot group. A receiver that needs no snapshot ignores it.
    ///
    /// # Errors
    /// Why the datagram was not used; counted in [`Self::drops`].
    pub fn accept_from_snapshot_group(
        &mut self,
        datagram: &[u8],
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        self.packets += 1;
        self.accept_group_chunk(datagram, now, deliver).inspect_err(|reason| self.drops.count(*reason))
    }

    fn accept_group_chunk(
        &mut self,
        datagram: &[u8],
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        let packet = parse_packet(datagram)?;
        if packet.meta.group != self.config.group {
            return Err(DropReason::ChannelUnknown);
        }
        // Lines say which channels there are, and of which session. Most receivers need nothing of the group most of the time.
        let channel = self.channels.iter_mut().find(|channel| channel.id() == packet.meta.channel);
        let Some(channel) = channel.filter(|channel| channel.collects_group_image()) else { return Ok(()) };
        let bytes_max = self.config.packet_bytes_max + if packet.is_tagged { TAG_BYTES } else { 0 };
        if datagram.len() > bytes_max {
            return Err(DropReason::ProtocolMismatch);
        }
        self.config.tags.check(TagUse::Published, datagram)?;
        let chunk = SnapshotChunk::from_packet(&packet)?;
        self.epochs.check_group_chunk(packet.meta.epoch)?;
        if packet.meta.epoch < self.group_epoch {
            return Err(DropReason::EpochStale);
        }
        self.group_epoch = packet.meta.epoch;
        channel.accept_group_chunk(packet.meta.session, &chunk, now, deliver)
    }

    /// Whether packets of the snapshot group are needed now. Its user may leave the group while they are not.
    #[must_use]
    pub fn needs_snapshot_group(&self) -> bool {
        let config = &self.config;
        let starts_with_it = config.start == StartFrom::Snapshot && config.service.is_none();
        let will_start = starts_with_it && self.channels.is_empty();
        config.snapshot_group.is_some()
            && (will_start || self.channels.iter().any(ReceiverChannel::needs_snapshot_group))
    }

    /// When [`Self::on_deadline`] must be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoNs> {
        let channels = self.channels.iter().filter_map(ReceiverChannel::next_deadline);
        channels.chain(self.epochs.next_deadline()).min()
    }

    /// Processes expired deadlines. Drain the sockets before.
    pub fn on_deadline(&mut self, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        self.epochs.on_deadline(now);
        self.release_held(now, deliver);
        for channel in &mut self.channels {
            if channel.next_deadline().is_some_and(|deadline| deadline <= now) {
                channel.on_deadline(now, deliver);
            }
        }
    }

    /// Nonce of the requests to that service. Each service has its own: the answer of one is none of another.
    #[must_use]
    pub fn request_nonce(&self, service: u8) -> u64 {
        self.config.request_nonce.wrapping_add(u64::from(service))
    }

    /// Returns a due request to the retransmission service; channels take turns. The caller chooses the service, and sets
    /// its [nonce](Self::request_nonce).
    pub fn poll_request(&mut self) -> Option<ServiceRequest> {
        if let Some(request) = self.epochs.poll_request() {
            return Some(ServiceRequest { group: self.config.group, ..request });
        }
        for _ in 0..self.channels.len() {
            self.poll_cursor = (self.poll_cursor + 1) % self.channels.len();
            let Some(channel) = self.channels.get_mut(self.poll_cursor) else { continue };
            if let Some(request) = channel.poll_request() {
                return Some(ServiceRequest { group: self.config.group, ..request });
            }
        }
        None
    }

    /// The input has ended: delivers held messages and reports the missing ones as lost.
    pub fn finish(&mut self, deliver: &mut impl FnMut(Output<'_>)) {
        if let Some(last_arrival) = self.epochs.finish() {
            self.release_held(last_arrival, deliver);
        }
        self.channels.iter_mut().for_each(|channel| channel.finish(deliver));
    }

    /// Highest epoch accepted.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.epochs.highest()
    }

    /// Rival epochs were seen at the start and nothing decided between them. The receiver refuses every packet from now
    /// on. Its user should report the error and end.
    #[must_use]
    pub fn rival_epochs(&self) -> Option<RivalEpochs> {
        self.epochs.failure()
    }

    /// Datagrams received.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Rejections, by reason. Rejected parts of packets used in part are in their channel's counts.
    #[must_use]
    pub fn drops(&self) -> &DropCounts {
        &self.drops
    }

    /// Channels known so far.
    pub fn channels(&self) -> impl Iterator<Item = ChannelView<'_>> {
        self.channels.iter().map(|channel| ChannelView { channel })
    }

    /// Processes a packet of an epoch that is believed.
    fn accept_believed(
        &mut self,
        packet: &Packet<'_>,
        datagram: &PublishedDatagram<'_>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        let index = self.index_of(packet.meta.channel).map_err(|reason| self.refuse(reason))?;
        let Some(channel) = self.channels.get_mut(index) else { return Err(DropReason::ChannelUnknown) };
        channel.accept(packet, datagram, now, deliver).inspect_err(|reason| self.drops.count(*reason))
    }

    /// Processes the packets that waited for the decision on the epoch, if it was made.
    fn release_held(&mut self, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        self.drops.count_many(DropReason::EpochUnconfirmed, self.epochs.take_discarded());
        let Some(held) = self.epochs.release(now) else { return };
        for datagram in held.datagrams() {
            let Ok(packet) = parse_packet(datagram.bytes) else { continue };
            // Refused packets are counted, as at their arrival.
            let _counted = match self.epochs.admit(&packet.meta, &datagram, now) {
                Ok(Admission::Accepted) => self.accept_believed(&packet, &datagram, now, deliver),
                Ok(Admission::Held) => Ok(()),
                Err(reason) => Err(self.refuse(reason)),
            };
        }
    }

    fn index_of(&mut self, id: ChannelId) -> Result<usize, DropReason> {
        if let Some(index) = self.channels.iter().position(|channel| channel.id() == id) {
            return Ok(index);
        }
        if !self.config.channels.is_empty() || self.channels.len() >= self.config.channels_max {
            return Err(DropReason::ChannelUnknown);
        }
        self.channels.push(ReceiverChannel::new(id, &self.config));
        Ok(self.channels.len() - 1)
    }

    fn refuse(&mut self, reason: DropReason) -> DropReason {
        self.drops.count(reason);
        reason
    }
}

/// Read access to one channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelView<'a> {
    channel: &'a ReceiverChannel,
}

impl<'a> ChannelView<'a> {
    /// The channel number in published packets.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.channel.id()
    }

    /// Session and next expected message; `None` before the first session.
    #[must_use]
    pub fn position(&self) -> Option<(Session, Sequence)> {
        self.channel.position()
    }

    /// Statistics of the channel.
    #[must_use]
    pub fn statistics(&self) -> &'a ReceiverStatistics {
        self.channel.statistics()
    }

    /// Statistics of one line; counted in positions, not in messages.
    #[must_use]
    pub fn line_statistics(&self, line: Line) -> &'a LineStatistics {
        self.channel.arbiter().line_statistics(line)
    }

    /// Statistics of the requests for gaps.
    #[must_use]
    pub fn recovery_statistics(&self) -> Option<&'a RecoveryStatistics> {
        self.channel.arbiter().recovery_statistics()
    }

    /// Waiting, live, gap or recovering.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        self.channel.arbiter().state()
    }
}
