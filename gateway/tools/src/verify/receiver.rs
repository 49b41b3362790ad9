//! One capture as its receiver would take it: the highest epoch alone, each line in order, all lines together complete.

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
    finding::{Findings, Location, Promise},
};

/// What one capture's receiver believes and has.
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
    /// Of this epoch and session.
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
    /// Capture time of the last packet and of the last content.
    packet_ns: u64,
    content_ns: u64,
    /// A newer epoch speaks but has said nothing new yet: when the ones before it were last heard.
    blackout_since: Option<(u64, u64)>,
    pub(super) leadership_changes: u64,
    /// From the last packet of the old epoch to the first new content.
    pub(super) blackout_ns: Histogram<u64>,
    /// From the last content of the old epoch to the first new content.
    pub(super) content_blackout_ns: Histogram<u64>,
}

/// One numbering.
#[derive(Debug, Default)]
pub(super) struct SessionView {
    pub(super) covered: Coverage,
    /// Ranges that were declared missing.
    pub(super) gaps: Coverage,
    pub(super) gap_count: u64,
    /// Where the first packet began that this receiver heard published.
    begin: Option<PartPosition>,
    /// Everything before it has been published, by what was heard.
    published_through: PartPosition,
}

impl ReceiverView {
    /// The receivers' rule: the highest epoch of the group, within a bounded jump.
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

    /// An answer to a question: it may fill what is missing.
    pub(super) fn accept_reply(&mut self, packet: &Packet<'_>) {
        let meta = &packet.meta;
        if let Some(channel) = self.channels.get_mut(&(meta.group, meta.channel))
            && !meta.flags.contains(PacketFlags::SNAPSHOT)
        {
            channel.sessions.entry(meta.session).or_default().covered.add(&range_of(packet));
        }
    }

    /// A published packet that is believed. False where it is a sending that was captured before.
    pub(super) fn accept(&mut self, seen: &CapturedPacket<'_>, packet: &Packet<'_>, findings: &mut Findings) -> bool {
        let meta = &packet.meta;
        let channel = self
            .channels
            .entry((meta.group, meta.channel))
            .or_insert_with(|| ChannelView::new(meta.epoch, seen.time_ns));
        channel.observe(seen.time_ns, meta.epoch);
        if meta.flags.contains(PacketFlags::SNAPSHOT) {
            return true;
        }
        let range = range_of(packet);
        let key = (seen.dst, meta.group, meta.channel);
        let is_new = match self.lines.get_mut(&key) {
            Some(line) => line.accept(seen.location, packet, &range, findings),
            None => {
                self.lines.insert(key, LineView::begin(packet, &range));
                true
            }
        };
        channel.take(seen, packet, &range, findings);
        is_new
    }

    /// What this receiver never had of what was published while it listened.
    pub(super) fn report_missing(&self, file: usize, findings: &mut Findings) {
        for ((_, channel), view) in &self.channels {
            for (session, view) in &view.sessions {
                for hole in view.covered.missing_of(&view.expected_range()) {
                    findings.record(Promise::NoLoss, Location { file, number: 0 }, || {
                        let (first, last) = (sequence(hole.start), sequence(hole.end - 1));
                        format!("channel {} {session}: sequences {first} to {last} not received", channel.0)
                    });
                }
            }
        }
    }
}

impl SessionView {
    /// From the first that was heard of it to what is known to have been published. Who came late has missed nothing.
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

    /// Within one epoch a line says each name once and in order.
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
            findings.record(Promise::InOrder, location, || of(format!("after session {}", self.session)));
            return true;
        }
        self.last = (meta.send_time_ns, range.clone());
        // Heartbeats reach beyond what was said, and say the same again until content covers it.
        if packet.frame_count == 0 {
            if range.start < self.end {
                findings.record(Promise::InOrder, location, || {
                    of(format!("heartbeat at {}, after {}", sequence(range.start), sequence(self.end)))
                });
            }
            return true;
        }
        // The first packet behind an opening's heartbeat may begin before it: the gateways cut packets differently.
        let is_first = self.covered.bounds().is_none() && range.end > self.end;
        if range.start < self.end && !is_first {
            let (first, end) = (sequence(range.start), sequence(self.end));
            if self.covered.overlaps(range) {
                findings.record(Promise::NoDuplicates, location, || of(format!("sequence {first} duplicated")));
            } else {
                findings.record(Promise::InOrder, location, || of(format!("sequence {first} after {end}")));
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

    /// Any packet: a new epoch ends what was heard of the old one.
    fn observe(&mut self, now_ns: u64, epoch: Epoch) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.leadership_changes += 1;
            // Two changes without content between them are one blackout.
            self.blackout_since.get_or_insert((self.packet_ns, self.content_ns));
        }
        self.packet_ns = now_ns;
    }

    fn take(
        &mut self,
        seen: &CapturedPacket<'_>,
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
                // A new leader that didn't hear the gap says again what receivers then drop.
                && !meta.flags.contains(PacketFlags::RETRANSMISSION)
                && session.gaps.overlaps(&(frame..frame + 1))
            {
                findings.record(Promise::ConsistentContent, seen.location, || {
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
        // A line says all in order, and a heartbeat comes when nothing is left to be sent: what lies before it has been
        // published. That of a new leader may stand lower than what was heard.
        let is_end = meta.flags.contains(PacketFlags::END_OF_SESSION);
        let published_through = if is_end { position(meta.next) } else { range.start };
        session.published_through = session.published_through.max(published_through);
        if packet.frame_count > 0 {
            self.content_ns = seen.time_ns;
        }
        if is_new && let Some((packet_ns, content_ns)) = self.blackout_since.take() {
            self.blackout_ns.saturating_record(seen.time_ns.saturating_sub(packet_ns));
            self.content_blackout_ns.saturating_record(seen.time_ns.saturating_sub(content_ns));
        }
    }
}
