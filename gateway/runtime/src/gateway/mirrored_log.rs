//! A publication log of what a receiver gets of a gateway's output, on a host without a gateway. Its readers find the frames that they
//! would find in the gateway's own log.

use mdgw_engine::publish::LogSink;
use mdgw_feeds::{
    channel::ChannelState,
    frame::{FrameFlags, FrameHeader, FrameKind, FrameMeta, FrameSink as _, GapBody, StateBody},
    identity::{Sequence, Session},
    published::{
        packet::PacketFlags,
        position::StreamPosition,
        receiver::{Item, Output},
    },
    time::UnixNs,
};
use mdgw_publog::{LogOptions, OpenedLog, SegmentMaintenance};
use mdgw_sys::clock::unix_now;
use zerocopy::IntoBytes as _;

use super::{GatewayError, channel_log::log_options, log_maintenance::LogCounters};
use crate::config::{Resolved, resolved::ChannelSetup};

/// The log of one channel. Packed and split as a gateway packs and splits; what was lost on the way here is a hole between two entries.
#[derive(Debug)]
pub struct MirroredLog {
    sink: LogSink,
    maintenance: SegmentMaintenance,
    /// Segments begun when maintenance ran last.
    segments: u64,
}

impl MirroredLog {
    /// Opens the channel's log where the configuration has it, and keeps what is in it.
    ///
    /// # Errors
    /// If the log cannot be opened: for instance since another process writes it.
    pub fn open(config: &Resolved, channel: &ChannelSetup) -> Result<Self, GatewayError> {
        let output = config.outputs.iter().find(|output| output.groups.contains(&channel.group));
        let options = log_options(&config.gateway, channel, output)?;
        Self::open_with(options).map_err(|source| GatewayError::Log { channel: channel.name.clone(), source })
    }

    fn open_with(options: LogOptions) -> Result<Self, mdgw_publog::LogError> {
        let channel = options.channel;
        let OpenedLog { writer, maintenance, recovered } = mdgw_publog::open(options, unix_now().0)?;
        if recovered.damaged_segments + recovered.removed_files > 0 {
            let (damaged_segments, removed_files) = (recovered.damaged_segments, recovered.removed_files);
            tracing::warn!(
                channel_id = channel,
                damaged_segments,
                removed_files,
                "the mirrored log was damaged, as after a power loss: readers find holes where entries are missing"
            );
        }
        let mut sink = LogSink::new(writer);
        let last = recovered.last.and_then(|(session, next)| Some((Session::from_bytes(session)?, Sequence(next))));
        if let Some((session, next)) = last {
            let [flags, _] = recovered.last_flags.to_le_bytes();
            sink.resume(session, next, PacketFlags(flags).contains(PacketFlags::END_OF_SESSION));
        }
        Ok(Self { sink, maintenance, segments: 0 })
    }

    /// Where a receiver continues: all before it is in the log. Of a message that a killed writer left without its last part, all
    /// parts are expected again; readers take each once.
    #[must_use]
    pub fn position(&self) -> Option<StreamPosition> {
        self.sink.committed_through()
    }

    /// Entries written, and those of them that readers miss, since there was no space for a segment.
    #[must_use]
    pub fn entries(&self) -> (u64, u64) {
        let counts = self.sink.writer().counts();
        (counts.entries, counts.entries_private)
    }

    pub(super) fn maintenance_counters(&self) -> LogCounters {
        self.maintenance.counts().into()
    }

    /// Writes what the receiver delivers. Items that repeat earlier messages are left out: those are in the log, or were before the
    /// receiver's start.
    pub fn accept(&mut self, output: &Output<'_>) {
        let Output { session, reported_through, item, .. } = *output;
        self.sink.begin(unix_now());
        match item {
            Item::Message { header, body } => {
                self.cover(session, reported_through);
                self.sink.frame(&meta_of(header), header.record_count.get(), body);
            }
            Item::Gap(gap) => {
                self.cover(session, reported_through);
                let body = GapBody { first: gap.first().0.into(), next: gap.next().0.into() };
                let meta = FrameMeta::control(FrameKind::Gap, gap.first(), gap.next());
                self.sink.frame(&meta, 0, body.as_bytes());
            }
            Item::Lost(gap) => {
                self.cover(session, reported_through);
                self.sink.commit_covered();
                self.begin_behind(session, gap.next());
            }
            Item::State(state) => self.write_state(session, reported_through, state),
            Item::EndOfSession => {
                self.cover(session, reported_through);
                self.sink.end_of_session();
            }
            Item::Session
            | Item::Definition { .. }
            | Item::Snapshot { .. }
            | Item::Repeated { .. }
            | Item::Books(_) => {}
        }
        if self.sink.writer().counts().segments != self.segments {
            self.maintain();
        }
    }

    /// Commits what was accepted: readers see it.
    pub fn flush(&mut self) {
        self.sink.flush();
    }

    /// All before `next` was received, and what was not written had no output. As a gateway does for a heartbeat, commits that.
    pub fn cover_through(&mut self, session: Session, next: Sequence) {
        if self.is_in(session) {
            self.sink.begin(unix_now());
            self.sink.covered_through(next);
            self.sink.commit_covered();
        }
    }

    /// Makes and removes segments as retention demands. To be called every few milliseconds.
    pub fn maintain(&mut self) {
        let UnixNs(now_ns) = unix_now();
        self.maintenance.run_once(now_ns);
        self.segments = self.sink.writer().counts().segments;
    }

    /// Messages before `first` that were not written had no output. A session that is new to the log begins there.
    fn cover(&mut self, session: Session, first: Sequence) {
        if self.is_in(session) {
            self.sink.covered_through(first);
        } else {
            self.sink.commit_covered();
            self.begin_behind(session, first);
        }
    }

    fn write_state(&mut self, session: Session, next: Sequence, state: ChannelState) {
        // Before the session's first position there is nothing that a state could apply to.
        if next > Sequence(0) {
            self.cover(session, next);
            self.sink.frame(&FrameMeta::state(next), 0, StateBody::of(state).as_bytes());
        }
    }

    /// The next entry begins at `first`. Not [`LogSink`]'s own begin of a session, which says of the former one that it was followed to
    /// its end: only a service of the gateways knows that.
    fn begin_behind(&mut self, session: Session, first: Sequence) {
        let has_ended = self.is_in(session) && self.sink.session_progress().is_some_and(|progress| progress.has_ended);
        self.sink.resume(session, first, has_ended);
    }

    fn is_in(&self, session: Session) -> bool {
        self.sink.session_progress().is_some_and(|progress| progress.session == session.to_bytes())
    }
}

/// The frame's properties, as the gateway gave them to its sink, which sets the flags of parts.
fn meta_of(header: &FrameHeader) -> FrameMeta {
    let part_flags = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
    FrameMeta {
        flags: FrameFlags(header.flags & !part_flags.0),
        ..FrameMeta::message(Sequence(header.sequence.get()), UnixNs(header.ts_recv.get()), header.ts_in_delta_ns.get())
    }
}

#[cfg(test)]
mod tests;
