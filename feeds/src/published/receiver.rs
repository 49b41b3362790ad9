//! From the datagrams of one group to whole messages: each once, in order, or declared lost. No sockets.
//!
//! ```text
//! datagram → check → epoch filter → channel → session → arbiter (lines, window, gaps) → frames → parts joined → item
//!                                                          └ gap → retransmission service → answers are one more line
//! ```
//! Output lines are arbitrated by our own [`Arbiter`](crate::arbiter::Arbiter), over positions
//! `sequence << 16 | part`: so two gateways may cut their packets in any way, and a message cut into parts is put in
//! order, de-duplicated and recovered part by part.
//!
//! Sessions that began and ended unheard between two that were heard are asked for too, so whoever follows a channel misses none
//! that the log still holds.
//!
//! What it deliberately does not do: fill in what is local to the consumer (that is [`crate::consumer_edge`]), or judge who
//! may publish beyond the epoch: groups and the service's address are the network's to protect.

mod assembly;
mod channel;
mod epoch_filter;
mod item_stream;
mod log_extents;
mod positions;
mod service_query;
#[cfg(test)]
mod tests;

use crate::{
    arbiter::{ArbiterStatistics, Gap, LineStatistics, RecoveryStatistics},
    channel::ChannelState,
    drop_reason::{DropCounts, DropReason},
    frame::FrameHeader,
    identity::{ChannelId, Epoch, GroupId, Line, Sequence, Session},
    time::{MonoNs, UnixNs},
};

use self::{channel::ReceiverChannel, epoch_filter::EpochFilter};
use super::{
    packet::{PACKET_BYTES_MAX, PacketFlags, parse_packet},
    request::ServiceRequest,
};

/// How a group is received.
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// The group.
    pub group: GroupId,
    /// Its channels to receive, their memory allocated at the start; empty: every channel that is heard, up to
    /// `channels_max`, allocated when it is first heard.
    pub channels: Vec<ChannelId>,
    /// Most channels.
    pub channels_max: usize,
    /// Output lines that carry the group, 1 to 7.
    pub lines: u8,
    /// Longest packet, bytes.
    pub packet_bytes_max: usize,
    /// Packets held per channel while a gap waits.
    pub window_packets: usize,
    /// How long a gap may wait for the other line, ns.
    pub gap_timeout_ns: u64,
    /// The retransmission service; without it a gap that timed out is lost.
    pub service: Option<ServiceConfig>,
    /// Where a late starter begins.
    pub start: Start,
    /// How many counts above the highest accepted an epoch is believed.
    pub epoch_jump_max: u64,
    /// Farthest a packet may begin beyond what is known, in messages, without being confirmed by two more.
    pub sequence_jump_max: u64,
    /// Most bytes of one message's records.
    pub message_bytes_max: usize,
    /// After how long without a packet a line's alarm is raised, ns; `None`: never. More than the gateway's
    /// heartbeat interval.
    pub line_silence_ns: Option<u64>,
}

/// How the retransmission service is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// How long an answer may take, ns.
    pub request_timeout_ns: u64,
    /// How often the same is asked for; at least 1.
    pub attempts_max: u16,
    /// How many services answer, 1 to [`SERVICES_MAX`]: what is asked again is asked of the next. What logs hold is asked of all of
    /// them, since none speaks for the others.
    pub services: u8,
    /// How often all services are asked what their logs hold before those that don't answer are left out, where another one has.
    pub unanswered_rounds_max: u16,
    /// Most messages in one request.
    pub messages_per_request_max: u64,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            request_timeout_ns: 50_000_000,
            attempts_max: 10,
            services: 1,
            unanswered_rounds_max: 2,
            messages_per_request_max: 10_000,
        }
    }
}

/// Most services that are asked.
pub const SERVICES_MAX: usize = 8;

/// Where a late starter begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// With the oldest that the service's log still holds of the session.
    #[default]
    Oldest,
    /// With the oldest that the service's log still holds of the trading date: first the sessions that are over, then as
    /// [`Self::Oldest`].
    Day,
    /// With what is published now, after the definitions.
    Now,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            group: GroupId(0),
            channels: Vec::new(),
            channels_max: 64,
            lines: 1,
            packet_bytes_max: PACKET_BYTES_MAX,
            window_packets: 256,
            gap_timeout_ns: 2_000_000,
            service: None,
            start: Start::Oldest,
            epoch_jump_max: 1_000,
            sequence_jump_max: 1 << 24,
            message_bytes_max: 1 << 16,
            line_silence_ns: None,
        }
    }
}

/// One thing that comes out.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// The channel.
    pub channel: ChannelId,
    /// The numbering it belongs to.
    pub session: Session,
    /// What it is.
    pub item: Item<'a>,
}

/// What comes out of a channel, in the order of its stream.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A numbering begins: at the start, and when the venue began anew. Sessions only go forward.
    Session,
    /// All records of one input message, its parts joined. The header is that of the whole message; where
    /// `body_bytes` can't hold the length it stands at its maximum, and `body.len()` counts. Without records, and suspect: the
    /// gateway could not understand the message, or its book could not take it.
    Message {
        /// Sequence, receive time, flags.
        header: &'a FrameHeader,
        /// DBN records, back to back.
        body: &'a [u8],
    },
    /// A definition that was asked for at the start: an earlier message of the session, out of sequence.
    Definition {
        /// Its message's header.
        header: &'a FrameHeader,
        /// DBN records, back to back.
        body: &'a [u8],
    },
    /// Records that rebuild a book, out of sequence.
    Snapshot {
        /// Its header.
        header: &'a FrameHeader,
        /// DBN records, back to back.
        body: &'a [u8],
    },
    /// The gateway's channel changed its state.
    State(ChannelState),
    /// The gateway declared it: no line of the venue had it.
    Gap(Gap),
    /// Neither the published lines nor the service had it.
    Lost(Gap),
    /// The venue ended the session.
    EndOfSession,
}

/// A published datagram.
#[derive(Clone, Copy, Debug)]
pub struct PublishedDatagram<'a> {
    /// The output line it came on; [`Line::RECOVERY`] for what the service sent to us alone.
    pub line: Line,
    /// Which service sent it, from 0, where it came from one.
    pub service: u8,
    /// UDP payload.
    pub bytes: &'a [u8],
    /// Receive stamp: says which line was first.
    pub ts_recv: UnixNs,
}

/// Receiver of one group.
#[derive(Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    epochs: EpochFilter,
    channels: Vec<ReceiverChannel>,
    /// Where the last look for requests ended.
    poll_cursor: usize,
    nonce: u64,
    drops: DropCounts,
    packets: u64,
}

/// Figures of one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStatistics {
    /// Messages handed out.
    pub messages: u64,
    /// Input sequences in gaps that the gateway declared.
    pub gap_messages: u64,
    /// Input sequences that were lost on the way from the gateway to here.
    pub lost_messages: u64,
    /// Definitions handed out at the start.
    pub definitions: u64,
    /// Starts without definitions or without the log's oldest, because the service did not answer.
    pub starts_unanswered: u64,
    /// Packets passed over while the start was being asked for; what they held is asked for, too.
    pub packets_before_start_position: u64,
    /// Frames that fill what had been declared a gap; an in-order receiver drops them.
    pub late_fills: u64,
    /// Messages larger than `message_bytes_max`, or whose parts did not fit together; they count as lost.
    pub broken_messages: u64,
}

impl Receiver {
    /// With the memory of the configured channels allocated.
    ///
    /// # Panics
    /// When a number is out of its range, as [`ArbiterConfig::check`](crate::arbiter::ArbiterConfig::check) has it.
    #[must_use]
    pub fn new(config: ReceiverConfig) -> Self {
        let channels = config.channels.iter().map(|id| ReceiverChannel::new(*id, &config)).collect();
        Self {
            epochs: EpochFilter::new(config.epoch_jump_max),
            channels,
            poll_cursor: 0,
            nonce: 0,
            drops: DropCounts::default(),
            packets: 0,
            config,
        }
    }

    /// A datagram came. Hands out what has become deliverable.
    ///
    /// # Errors
    /// Why nothing of it was used; counted, in [`Self::drops`] or by the channel's arbiter.
    pub fn accept(
        &mut self,
        datagram: PublishedDatagram<'_>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        self.packets += 1;
        let packet = parse_packet(datagram.bytes).map_err(|reason| self.refuse(reason))?;
        if packet.meta.group != self.config.group {
            return Err(self.refuse(DropReason::ChannelUnknown));
        }
        let is_retransmission = packet.meta.flags.contains(PacketFlags::RETRANSMISSION);
        // On the published lines a new leader says again what the old one may not have said; the end of an answer
        // has no place there.
        let belongs = match datagram.line {
            Line::RECOVERY => is_retransmission,
            _ => !is_retransmission || !packet.meta.flags.contains(PacketFlags::HEARTBEAT),
        };
        if !belongs || datagram.bytes.len() > self.config.packet_bytes_max {
            return Err(self.refuse(DropReason::ProtocolMismatch));
        }
        let index = self.index_of(packet.meta.channel).map_err(|reason| self.refuse(reason))?;
        self.epochs.accept(packet.meta.epoch).map_err(|reason| self.refuse(reason))?;
        let Some(channel) = self.channels.get_mut(index) else { return Err(DropReason::ChannelUnknown) };
        channel.accept(&packet, &datagram, now, deliver).inspect_err(|reason| self.drops.count(*reason))
    }

    /// When [`Self::on_deadline`] wants to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoNs> {
        self.channels.iter().filter_map(ReceiverChannel::next_deadline).min()
    }

    /// Time has passed. Drain the sockets before.
    pub fn on_deadline(&mut self, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        for channel in &mut self.channels {
            if channel.next_deadline().is_some_and(|deadline| deadline <= now) {
                channel.on_deadline(now, deliver);
            }
        }
    }

    /// A request to the retransmission service that is due; channels take turns.
    pub fn poll_request(&mut self) -> Option<ServiceRequest> {
        for _ in 0..self.channels.len() {
            self.poll_cursor = (self.poll_cursor + 1) % self.channels.len();
            let Some(channel) = self.channels.get_mut(self.poll_cursor) else { continue };
            if let Some(request) = channel.poll_request() {
                self.nonce += 1;
                return Some(ServiceRequest { group: self.config.group, nonce: self.nonce, ..request });
            }
        }
        None
    }

    /// Nothing more will come: hands out what is held, and declares the rest lost.
    pub fn finish(&mut self, deliver: &mut impl FnMut(Output<'_>)) {
        self.channels.iter_mut().for_each(|channel| channel.finish(deliver));
    }

    /// Highest epoch accepted.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.epochs.highest()
    }

    /// Datagrams seen.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// What was refused, and why. Parts of packets that were used in part count with their channel.
    #[must_use]
    pub fn drops(&self) -> &DropCounts {
        &self.drops
    }

    /// Channels known so far.
    pub fn channels(&self) -> impl Iterator<Item = ChannelView<'_>> {
        self.channels.iter().map(|channel| ChannelView { channel })
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

/// What can be seen of one channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelView<'a> {
    channel: &'a ReceiverChannel,
}

impl<'a> ChannelView<'a> {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.channel.id()
    }

    /// Session and the next message expected, once one has begun.
    #[must_use]
    pub fn position(&self) -> Option<(Session, Sequence)> {
        self.channel.position()
    }

    /// Figures.
    #[must_use]
    pub fn statistics(&self) -> &'a ReceiverStatistics {
        self.channel.statistics()
    }

    /// Figures of one line; its counts are of positions, not of messages.
    #[must_use]
    pub fn line_statistics(&self, line: Line) -> &'a LineStatistics {
        self.channel.arbiter().line_statistics(line)
    }

    /// Figures of the arbiter; its counts are of positions, not of messages.
    #[must_use]
    pub fn arbiter_statistics(&self) -> &'a ArbiterStatistics {
        self.channel.arbiter().statistics()
    }

    /// Figures of the requests for gaps.
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
