//! Model of the receiver at one capture: it accepts the highest epoch only, each line in order, all lines together
//! complete.

use std::{collections::BTreeMap, net::SocketAddr, ops::Range};

use hdrhistogram::Histogram;
use mdgw_feeds::{
    drop_reason::DropReason,
    frame::{FrameFlags, FrameKind, GapBody},
    identity::{ChannelId, Epoch, GroupId, Sequence, Session},
    published::packet::{Packet, PacketFlags},
};
use zerocopy::FromBytes as _;

use super::{
    CapturedPacket,
    coverage::{Coverage, PartPosition, position, range_of, sequence},
    epochs::epoch_text,
    finding::{Findings, Location, OutputCheck},
};

/// State of one capture's receiver.
#[derive(Debug, Default)]
pub(super) struct ReceiverView {
    highest: BTreeMap<GroupId, Epoch>,
    lines: BTreeMap<(SocketAddr, GroupId, ChannelId), LineView>,
    pub(super) channels: BTreeMap<(GroupId, ChannelId), ChannelView>,
}

/// One channel on one output line.
#[derive(Debug)]
struct LineView {
    epoch: Epoch,
    session: Session,
    /// Ranges received in this epoch and session.
    covered: Coverage,
    end: PartPosition,
    /// Send time and range of the last packet.
    last: (u64, Range<PartPosition>),
}

/// One channel, all lines together.
#[derive(Debug)]
pub(super) struct ChannelView {
    pub(super) sessions: BTreeMap<Session, SessionView>,
    pub(super) epoch: Epoch,
    /// Capture times of the last packet and of the last content.
    packet_ns: u64,
    content_ns: u64,
    /// Set while a newer epoch is active but has published nothing new yet: capture times of the last packet and of the
    /// last content before it.
    blackout_since: Option<(u64, u64)>,
    pub(super) leadership_changes: u64,
    /// From the last packet of the old epoch to the first new content.
    pub(super) blackout_ns: Histogram<u64>,
    /// From the last content of the old epoch to the first new content.
    pub(super) content_blackout_ns: Histogram<u64>,
}

/// One session.
#[derive(Debug, Default)]
pub(super) struct SessionView {
    pub(super) covered: Coverage,
    /// Ranges declared missing.
    pub(super) gaps: Coverage,
    pub(super) gap_count: u64,
    /// Begin of the first published packet that this receiver received.
    begin: Option<PartPosition>,
    /// Everything before this position was published, as far as received packets show.
    published_through: PartPosition,
}

impl ReceiverView {
    /// The receivers' epoch rule: the highest epoch of the group, within a bounded jump.
    pub(super) fn accept_epoch(&mut self, group: GroupId, epoch: Epoch, jump_max: u64) -> Result<(), DropReason> {
        let highest = self.highest.entry(group).or_insert(epoch);
        if epoch < *highest {
            return Err(DropReason::EpochStale);
        }
        if epoch.count() - highest.count() > jump_max {
            return Err(DropReason::EpochJump);
        }
        *highest = epoch;
        Ok(())
    }

    /// Accepts a unicast reply: it may fill a missing range.
    pub(super) fn accept_reply(&mut self, packet: &Packet<'_>) {
        let meta = &packet.meta;
        if let Some(channel) = self.channels.get_mut(&(meta.group, meta.channel))
            && !meta.flags.contains(PacketFlags::SNAPSHOT)
        {
            channel.sessions.entry(meta.session).or_default().covered.add(&range_of(packet));
        }
    }

    /// Accepts a published packet of the accepted epoch. Returns false for a packet that was captured before.
    pub(super) fn accept(
        &mut self,
        captured: &CapturedPacket<'_>,
        packet: &Packet<'_>,
        findings: &mut Findings,
    ) -> bool {
        let meta = &packet.meta;
        let channel = self
            .channels
            .entry((meta.group, meta.channel))
            .or_insert_with(|| ChannelView::new(meta.epoch, captured.time_ns));
        channel.observe(captured.time_ns, meta.epoch);
        if meta.flags.contains(PacketFlags::SNAPSHOT) {
            return true;
        }
        let range = range_of(packet);
        let key = (captured.dst, meta.group, meta.channel);
        let is_new = match self.lines.get_mut(&key) {
            Some(line) => line.accept(captured.location, packet, &range, findings),
            None => {
                self.lines.insert(key, LineView::begin(packet, &range));
                true
            }
        };
        channel.apply(captured, packet, &range, findings);
        is_new
    }

    /// Ranges published during this receiver's time that it never received.
    pub(super) fn report_missing(&self, file: usize, findings: &mut Findings) {
        for ((_, channel), view) in &self.channels {
            for (session, view) in &view.sessions {
                for hole in view.covered.missing_of(&view.expected_range()) {
                    findings.record(OutputCheck::NoLoss, Location { file, number: 0 }, || {
                        let (first, last) = (sequence(hole.start), sequence(hole.end - 1));
                        format!("channel {} {session}: sequences {first} to {last} not received", channel.0)
                    });
                }
            }
        }
    }
}

impl SessionView {
    /// From the first packet received to the last position known to be published. Packets published before a receiver
    /// started are not missing.
    fn expected_range(&self) -> Range<PartPosition> {
        let covered = self.covered.bounds();
        let starts = [self.begin, covered.as_ref().map(|covered| covered.start)];
        let start = starts.into_iter().flatten().min().unwrap_or(self.published_through);
        start..covered.map_or(self.published_through, |covered| covered.end.max(self.published_through))
    }
}

impl LineView {
    fn begin(packet: &Packet<'_>, range: &Range<PartPosition>) -> Self {
        let mut covered = Coverage::default();
        if packet.frame_count > 0 {
            covered.add(range);
        }
        let meta = &packet.meta;
        let end = if packet.frame_count > 0 { range.end } else { range.start };
        Self { epoch: meta.epoch, session: meta.session, covered, end, last: (meta.send_time_ns, range.clone()) }
    }

    /// Within one epoch, a line carries each item once and in order.
    fn accept(
        &mut self,
        location: Location,
        packet: &Packet<'_>,
        range: &Range<PartPosition>,
        findings: &mut Findings,
    ) -> bool {
        let meta = &packet.meta;
        if self.last == (meta.send_time_ns, range.clone()) && meta.epoch == self.epoch && meta.session == self.session {
            return false;
        }
        let of =
            |what: String| format!("channel {} {}, {}: {what}", meta.channel.0, meta.session, epoch_text(meta.epoch));
        if meta.epoch != self.epoch || meta.session > self.session {
            *self = Self::begin(packet, range);
            return true;
        }
        if meta.session < self.session {
            findings.record(OutputCheck::InOrder, location, || of(format!("after session {}", self.session)));
            return true;
        }
        self.last = (meta.send_time_ns, range.clone());
        // Heartbeats extend past the published content, and repeat their range until content covers it.
        if packet.frame_count == 0 {
            if range.start < self.end {
                findings.record(OutputCheck::InOrder, location, || {
                    of(format!("heartbeat at {}, after {}", sequence(range.start), sequence(self.end)))
                });
            }
            return true;
        }
        // The first packet after an opening heartbeat may begin before it: gateways split packets differently.
        let is_first = self.covered.bounds().is_none() && range.end > self.end;
        if range.start < self.end && !is_first {
            let (first, end) = (sequence(range.start), sequence(self.end));
            if self.covered.overlaps(range) {
                findings.record(OutputCheck::NoDuplicates, location, || of(format!("sequence {first} duplicated")));
            } else {
                findings.record(OutputCheck::InOrder, location, || of(format!("sequence {first} after {end}")));
            }
        }
        self.covered.add(range);
        self.end = self.end.max(range.end);
        true
    }
}

impl ChannelView {
    fn new(epoch: Epoch, now_ns: u64) -> Self {
        let histogram = || Histogram::new_with_bounds(1_000, 3_600_000_000_000, 3).expect("legal bounds");
        Self {
            sessions: BTreeMap::new(),
            epoch,
            packet_ns: now_ns,
            content_ns: now_ns,
            blackout_since: None,
            leadership_changes: 0,
            blackout_ns: histogram(),
            content_blackout_ns: histogram(),
        }
    }

    /// Records any accepted packet: a new epoch ends the old one.
    fn observe(&mut self, now_ns: u64, epoch: Epoch) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.leadership_changes += 1;
            // Two changes without content between them are one blackout.
            self.blackout_since.get_or_insert((self.packet_ns, self.content_ns));
        }
        self.packet_ns = now_ns;
    }

    fn apply(
        &mut self,
        captured: &CapturedPacket<'_>,
        packet: &Packet<'_>,
        range: &Range<PartPosition>,
        findings: &mut Findings,
    ) {
        let meta = &packet.meta;
        let newest = self.sessions.keys().next_back().is_none_or(|newest| meta.session >= *newest);
        let session = self.sessions.entry(meta.session).or_default();
        let is_new = newest && packet.frame_count > 0 && !session.covered.covers(range);
        for (header, body) in packet.frames() {
            let frame = position(Sequence(header.sequence.get()));
            if header.kind == FrameKind::Gap as u8 {
                if let Ok(gap) = GapBody::ref_from_bytes(body) {
                    let gap = position(Sequence(gap.first.get()))..position(Sequence(gap.next.get()));
                    session.gap_count += u64::from(!session.gaps.covers(&gap));
                    session.gaps.add(&gap);
                }
            } else if header.kind == FrameKind::Message as u8
                && !FrameFlags(header.flags).contains(FrameFlags::LATE_FILL)
                // A new leader that didn't receive the gap declaration publishes the messages again; receivers drop
                // them.
                && !meta.flags.contains(PacketFlags::RETRANSMISSION)
                && session.gaps.overlaps(&(frame..frame + 1))
            {
                findings.record(OutputCheck::ConsistentContent, captured.location, || {
                    let number = header.sequence.get();
                    format!(
                        "channel {} {}: sequence {number} received after its gap was declared",
                        meta.channel.0, meta.session
                    )
                });
            }
        }
        session.covered.add(range);
        session.begin.get_or_insert(range.start);
        // A line carries everything in order, and heartbeats are sent when nothing is left to send: all positions
        // before a heartbeat were published. A new leader's heartbeat may be lower than the received position.
        let is_end = meta.flags.contains(PacketFlags::END_OF_SESSION);
        let published_through = if is_end { position(meta.next) } else { range.start };
        session.published_through = session.published_through.max(published_through);
        if packet.frame_count > 0 {
            self.content_ns = captured.time_ns;
        }
        if is_new && let Some((packet_ns, content_ns)) = self.blackout_since.take() {
            self.blackout_ns.saturating_record(captured.time_ns.saturating_sub(packet_ns));
            self.content_blackout_ns.saturating_record(captured.time_ns.saturating_sub(content_ns));
        }
    }
}
