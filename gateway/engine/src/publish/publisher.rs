//! Sends one channel: cursor, fence, heartbeats.

use std::{path::PathBuf, sync::Arc};

use mdgw_feeds::{
    channel::ChannelState,
    identity::{ChannelId, Epoch, GroupId, Sequence},
    published::{packet::PacketFlags, position::StreamPosition, tag::TagKey},
    time::{MonoNs, UnixNs},
};
use mdgw_publog::{Entry, LogError, Position, Reader, SessionBytes};
use mdgw_sys::{
    batch::{HEADER_BYTES, OutputIndex, PACKETS_MAX, SendBatch, SendBuffers},
    clock::{WallFromMono, mono_now},
    fence::Fence,
};

use super::{
    catch_up::{CatchUp, CatchUpSource, covered_span, is_covered_by},
    packet::packet_header,
    packet_tags::PacketTags,
    sink::{LogSink, SessionProgress, state_frame},
    takeover_state::{DrainAck, FenceOpening, TakeoverShared},
};
use crate::handle_set::ThreadIo;

/// Settings of a channel's output.
#[derive(Clone, Debug)]
pub struct PublisherConfig {
    /// Group of the channel, for packet headers.
    pub group: GroupId,
    /// Id of the channel in packet headers.
    pub channel: ChannelId,
    /// Output lines that carry the same packets, 1 or 2; with none, nothing is sent.
    pub outputs: Vec<OutputIndex>,
    /// Longest time without a packet, ns; then a heartbeat is sent.
    pub heartbeat_ns: u64,
    /// Least rate of the catch-up, entries per second. If twice the input's rate is higher, that rate applies: a slower
    /// catch-up never ends, and an unlimited one overruns receivers.
    pub catch_up_packets_per_s: u64,
    /// Hand-overs to the kernel that take longer are counted, ns: the time that the fence's margin allows for.
    pub send_ns_max: u64,
    /// Directory of the log's segments.
    pub log_directory: PathBuf,
    /// Key of the packets' tags; without a key they have none.
    pub tag_key: Option<TagKey>,
}

/// Mode of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishMode {
    /// Idle: the fence is closed.
    Closed,
    /// Sends the entries that had not been sent before the takeover.
    CatchUp,
    /// Sends each entry once it is committed.
    Live,
}

/// Counts of a [`Publisher`]. A packet that is sent on two lines counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishCounts {
    /// Packets that the kernel accepted, heartbeats included.
    pub packets: u64,
    /// Packets among them that were sent in [`PublishMode::CatchUp`].
    pub catch_up_packets: u64,
    /// Heartbeats among them.
    pub heartbeats: u64,
    /// Hand-overs that the kernel cut short for lack of room. Retried.
    pub refused: u64,
    /// Hand-overs that failed with another error. Retried.
    pub errors: u64,
    /// Times the fence was found closed at a hand-over.
    pub fence_closures: u64,
    /// Openings of the fence.
    pub openings: u64,
    /// Hand-overs that took longer than [`PublisherConfig::send_ns_max`].
    pub slow_sends: u64,
    /// Times that a line was so far behind that its next entry was no longer in memory. The line continues with the
    /// oldest entry in memory.
    pub memory_overruns: u64,
    /// Failures to read the log for the catch-up, which then began later in the stream.
    pub log_failures: u64,
    /// Entries that were not sent, because the previous leader had already published beyond them.
    pub skipped_entries: u64,
}

/// Sends one channel's log. Only the holder of the channel's claim moves the cursor.
#[derive(Debug)]
pub struct Publisher {
    config: PublisherConfig,
    lines: Vec<LineCursor>,
    mode: PublishMode,
    /// Epoch of the last packet.
    epoch: Epoch,
    catch_up: Option<CatchUp>,
    /// Shared with cold threads: the receive watermark of the previous leader's output, and how far this gateway has
    /// sent.
    takeover: Arc<TakeoverShared>,
    input: InputRate,
    heartbeat_at: MonoNs,
    retry_at: Option<MonoNs>,
    wall: WallFromMono,
    tags: Option<PacketTags>,
    /// Results of the last opening of the fence.
    opening: FenceOpening,
    /// Catch-up packets sent before the last opening.
    catch_up_packets_before: u64,
    counts: PublishCounts,
}

#[derive(Debug)]
struct LineCursor {
    output: OutputIndex,
    at: Position,
    /// `None`: the kernel has taken the line's last packets.
    refusals: Option<Refusals>,
}

/// First and last refusal of a line's packets, with none taken between them.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    since: MonoNs,
    last: MonoNs,
}

impl LineCursor {
    fn new(output: OutputIndex, at: Position) -> Self {
        Self { output, at, refusals: None }
    }

    /// Whether the line lacks none of the committed entries.
    fn has_sent_all(&self, log: &LogSink) -> bool {
        log.writer().pending(self.at).is_some_and(|mut waiting| waiting.next().is_none())
    }

    #[inline]
    fn note_refused(&mut self, now: MonoNs) {
        self.refusals.get_or_insert(Refusals { since: now, last: now }).last = now;
    }
}

/// Output lines on which the kernel takes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockedLines {
    /// Bit n: the kernel refused the last packet of output line n, in the order of the last [`Publisher::set_outputs`].
    pub mask: u64,
    /// Longest time from the first to the last refusal, ns, without a packet between them that the kernel took.
    pub blocked_ns: u64,
    /// The shortest such time of all lines, ns; 0 if the kernel took the last packet of a line.
    pub all_blocked_ns: u64,
}

/// Measures how fast the log grows.
#[derive(Clone, Copy, Debug)]
struct InputRate {
    entries: u64,
    at: MonoNs,
    per_s: u64,
}

impl InputRate {
    fn measure(&mut self, entries: u64, now: MonoNs) -> u64 {
        let ns = now.since(self.at);
        if ns >= RATE_WINDOW_NS {
            let per_s = u128::from(entries - self.entries) * u128::from(NS_PER_S) / u128::from(ns);
            *self = Self { entries, at: now, per_s: u64::try_from(per_s).unwrap_or(u64::MAX) };
        }
        self.per_s
    }
}

/// What a heartbeat reports: session and next sequence, and whether session or channel have ended.
#[derive(Clone, Copy, Debug)]
struct StreamState {
    session: SessionBytes,
    next: u64,
    has_ended: bool,
    has_failed: bool,
}

impl Publisher {
    /// Begins at the end of the log, unless `takeover` holds a watermark of another gateway: entries of an earlier run
    /// have been sent.
    ///
    /// # Panics
    /// With more than four outputs.
    #[must_use]
    pub fn new(config: PublisherConfig, log: &LogSink, takeover: Arc<TakeoverShared>) -> Self {
        assert!(config.outputs.len() <= OUTPUT_LINES_MAX);
        let at = log.writer().end();
        // Room for all lines, so that a change of lines allocates nothing.
        let mut lines = Vec::with_capacity(OUTPUT_LINES_MAX);
        lines.extend(config.outputs.iter().map(|output| LineCursor::new(*output, at)));
        let now = mono_now();
        Self {
            tags: config.tag_key.clone().map(PacketTags::new),
            config,
            lines,
            mode: PublishMode::Closed,
            epoch: Epoch::default(),
            catch_up: None,
            takeover,
            input: InputRate { entries: log.writer().counts().entries, at: now, per_s: 0 },
            heartbeat_at: now,
            retry_at: None,
            wall: WallFromMono::new(),
            opening: FenceOpening::default(),
            catch_up_packets_before: 0,
            counts: PublishCounts::default(),
        }
    }

    /// Begins at that place of the log instead: no gateway is known to have published the entries behind it.
    #[must_use]
    pub fn beginning_at(mut self, place: Position) -> Self {
        self.lines.iter_mut().for_each(|line| line.at = place);
        self
    }

    /// Sends all due entries, until none is left, or the kernel or the fence refuses. Returns the time of the last
    /// hand-over, if there was one.
    #[inline]
    pub fn send_from<I: ThreadIo>(
        &mut self,
        log: &mut LogSink,
        fence: &Fence,
        buffers: &mut SendBuffers,
        io: &mut I,
    ) -> Option<MonoNs> {
        self.retry_at = None;
        let mut sent_at = None;
        let mut blocked = [false; OUTPUT_LINES_MAX];
        while !self.lines.is_empty() {
            let now = mono_now();
            let Some(epoch) = fence.epoch_if_open(now) else {
                self.close();
                break;
            };
            if self.mode == PublishMode::Closed || epoch != self.epoch {
                if let Some(received_through) = self.open(epoch, fence.leading_since(), log) {
                    // Before any entry is read from the log: from this packet on receivers fence the old leader.
                    self.send_state(&StreamState::at(received_through), |_| true, now, buffers, io);
                    self.begin_catch_up(Some(received_through), log, now);
                } else {
                    self.begin_catch_up(None, log, now);
                    self.send_heartbeat(log, fence, buffers, io);
                }
                continue;
            }
            let progress = match self.mode {
                PublishMode::CatchUp => self.send_catch_up(log, now, buffers, io),
                _ => self.send_live(log, now, buffers, io, &mut blocked),
            };
            match progress {
                SendProgress::Idle => break,
                SendProgress::Sent(at) => {
                    if self.opening.first_content.is_none() {
                        self.record_first_content(at);
                    }
                    sent_at = Some(at);
                }
                SendProgress::ModeChanged => {}
            }
        }
        sent_at
    }

    /// Time of the next call of [`Self::on_deadline`].
    #[must_use]
    pub(crate) fn next_deadline(&self) -> Option<MonoNs> {
        // A publisher behind the previous leader waits for its own input.
        let catch_up = self
            .catch_up
            .as_ref()
            .filter(|catch_up| catch_up.predecessor_through.is_none())
            .map(|catch_up| catch_up.due);
        let heartbeat = (!self.lines.is_empty()).then_some(self.heartbeat_at);
        [heartbeat, self.retry_at, catch_up].into_iter().flatten().min()
    }

    /// Sends a heartbeat, the next portion of the catch-up or a retry, if one is due. While the fence is closed, this
    /// call notices its opening at the latest.
    pub fn on_deadline<I: ThreadIo>(
        &mut self,
        now: MonoNs,
        log: &mut LogSink,
        fence: &Fence,
        buffers: &mut SendBuffers,
        io: &mut I,
    ) {
        let is_due = now >= self.heartbeat_at;
        if is_due {
            self.heartbeat_at = now.plus(self.config.heartbeat_ns);
            log.begin(self.wall.at(now));
            log.commit_covered();
            self.input.measure(log.writer().counts().entries, now);
        }
        let before = self.counts.packets;
        self.send_from(log, fence, buffers, io);
        if is_due && self.counts.packets == before && self.mode != PublishMode::Closed {
            self.send_heartbeat(log, fence, buffers, io);
        }
    }

    /// Sends on these lines from now on, at most [`OUTPUT_LINES_MAX`]. A new line begins behind what some line has sent, and
    /// soon gets a heartbeat: its receivers learn session and position without waiting for the next message.
    #[cold]
    pub fn set_outputs(&mut self, outputs: &[OutputIndex], log: &LogSink) {
        let at = self.lines.iter().map(|line| line.at).max().unwrap_or_else(|| log.writer().end());
        self.lines.retain(|line| outputs.contains(&line.output));
        for output in outputs.iter().take(OUTPUT_LINES_MAX) {
            if self.lines.iter().all(|line| line.output != *output) {
                self.lines.push(LineCursor::new(*output, at));
            }
        }
        self.lines.sort_unstable_by_key(|line| outputs.iter().position(|output| *output == line.output));
        self.heartbeat_at = mono_now();
    }

    /// Acknowledges a drain: all entries due under the fence are sent, and no send is in progress.
    #[cold]
    pub fn acknowledge_drain(&mut self, number: u64, log: &LogSink) {
        let sent_through = self.sent_through(log);
        self.takeover.drain_ack.set(DrainAck { number, position: sent_through });
    }

    /// Every position before it has been sent on every line; `None` before the first opening, or if it is unknown.
    fn sent_through(&mut self, log: &LogSink) -> Option<StreamPosition> {
        if self.counts.openings == 0 {
            return None;
        }
        if let Some(catch_up) = self.catch_up.as_mut() {
            return match catch_up.predecessor_through {
                Some(received_through) => Some(received_through),
                None => catch_up.peek(log.writer()).and_then(|entry| covered_span(&entry)).map(|(from, _)| from),
            };
        }
        let sent = self.lines.iter().map(|line| line.at).min()?;
        match log.writer().pending(sent)?.next() {
            Some(entry) => covered_span(&entry).map(|(from, _)| from),
            None => log.committed_through(),
        }
    }

    /// Current mode of the cursor.
    #[must_use]
    #[cfg(all(test, not(feature = "loom")))]
    pub(super) fn mode(&self) -> PublishMode {
        self.mode
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> &PublishCounts {
        &self.counts
    }

    /// The output lines whose packets the kernel refuses.
    #[must_use]
    pub fn blocked_lines(&self) -> BlockedLines {
        let mut blocked = BlockedLines { all_blocked_ns: u64::MAX, ..BlockedLines::default() };
        for (index, line) in self.lines.iter().enumerate() {
            let line_ns = line.refusals.map_or(0, |Refusals { since, last }| last.since(since));
            blocked.mask |= u64::from(line.refusals.is_some()) << index;
            blocked.blocked_ns = blocked.blocked_ns.max(line_ns);
            blocked.all_blocked_ns = blocked.all_blocked_ns.min(line_ns);
        }
        // Without a line nothing is refused.
        blocked.all_blocked_ns = blocked.all_blocked_ns.min(blocked.blocked_ns);
        blocked
    }

    fn close(&mut self) {
        if self.mode != PublishMode::Closed {
            self.counts.fence_closures += 1;
            // The lines are where the catch-up was, so the next opening continues there.
            self.mode = PublishMode::Closed;
            self.catch_up = None;
            self.lines.iter_mut().for_each(|line| line.refusals = None);
        }
    }

    /// Every opening is a takeover. Begins at the receive watermark of the previous leader's output, unless this gateway has
    /// led since: `leading_since` is the epoch from which on it has led without an interruption. A forged packet that made it raise
    /// its epoch also claims a position.
    #[cold]
    fn open(&mut self, epoch: Epoch, leading_since: Epoch, log: &LogSink) -> Option<StreamPosition> {
        self.counts.openings += 1;
        let watermark = self.takeover.received_through.get();
        let has_led_since = self.counts.openings > 1 && watermark.epoch.min(leading_since) <= self.epoch;
        self.epoch = epoch;
        self.mode = PublishMode::CatchUp;
        self.catch_up = None;
        let committed_through = log.committed_through();
        let received_through = watermark.received_through.filter(|_| !has_led_since);
        self.opening = FenceOpening { epoch, received_through, committed_through, ..FenceOpening::default() };
        self.catch_up_packets_before = self.counts.catch_up_packets;
        self.takeover.opening.set(self.opening);
        received_through
    }

    #[cold]
    fn record_first_content(&mut self, at: MonoNs) {
        self.opening.first_content = Some(at);
        self.record_catch_up();
    }

    fn record_catch_up(&mut self) {
        self.opening.catch_up_packets = self.counts.catch_up_packets - self.catch_up_packets_before;
        self.takeover.opening.set(self.opening);
    }

    /// Starts the catch-up at the watermark, or else behind the last entry sent.
    #[cold]
    fn begin_catch_up(&mut self, received_through: Option<StreamPosition>, log: &LogSink, now: MonoNs) {
        let log_end = log.writer().end();
        let predecessor_through = received_through.filter(|received_through| {
            log.committed_through().is_none_or(|committed_through| committed_through < *received_through)
        });
        let is_caught_up =
            received_through.is_some_and(|received_through| log.committed_through() == Some(received_through));
        let sent = self.lines.iter().map(|line| line.at).min().unwrap_or(log_end);
        let source = match received_through {
            Some(_) if predecessor_through.is_some() => Some(CatchUpSource::Memory(log_end)),
            Some(_) if is_caught_up => None,
            Some(received_through) => CatchUpSource::from_memory(log.writer(), received_through)
                .or_else(|| self.read_from_watermark(received_through).map(CatchUpSource::Files)),
            None if sent >= log_end => None,
            None if log.writer().pending(sent).is_some() => Some(CatchUpSource::Memory(sent)),
            None => self.read_from(sent).map(CatchUpSource::Files),
        };
        match source {
            Some(source) if predecessor_through.is_some() || source.position() < log_end => {
                for line in &mut self.lines {
                    line.at = source.position();
                }
                self.catch_up = Some(CatchUp::new(source, log_end, now, predecessor_through));
            }
            Some(_) => self.go_live(log_end, log),
            None if is_caught_up => self.go_live(log_end, log),
            // The files do not have the next entry. The entries in memory are more than enough, or all there are.
            None if received_through.is_some() => self.go_live(log.writer().oldest_pending(), log),
            None => self.go_live(sent, log),
        }
    }

    /// A reader at the first entry beyond the watermark, or at the oldest entry if that one is gone.
    fn read_from_watermark(&mut self, received_through: StreamPosition) -> Option<Reader> {
        let open = || -> Result<(Reader, bool), LogError> {
            let mut reader = Reader::open(&self.config.log_directory, self.config.channel.0)?;
            // The first part of a message may lie in an entry that covers only the messages before it.
            reader.seek(received_through.session.to_bytes(), received_through.sequence.0.saturating_sub(1))?;
            while reader.peek().is_some_and(|entry| is_covered_by(&entry, received_through)) {
                reader.next();
            }
            let is_gone = reader.peek().is_some_and(|entry| {
                entry.session == received_through.session.to_bytes() && entry.first > received_through.sequence.0
            });
            Ok((reader, is_gone))
        };
        let opened = open();
        self.counts.log_failures += u64::from(opened.is_err());
        let (reader, is_gone) = opened.ok()?;
        self.counts.memory_overruns += u64::from(is_gone);
        Some(reader)
    }

    /// A reader at `start`, or at the oldest entry if the files begin after `start`; `None` if the files have neither.
    fn read_from(&mut self, start: Position) -> Option<Reader> {
        let reader = Reader::open(&self.config.log_directory, self.config.channel.0).and_then(|mut reader| {
            let is_there = reader.seek_position(start)? || reader.position() > start;
            Ok(is_there.then_some(reader))
        });
        self.counts.log_failures += u64::from(reader.is_err());
        reader.ok().flatten()
    }

    fn go_live(&mut self, from: Position, log: &LogSink) {
        self.mode = PublishMode::Live;
        self.catch_up = None;
        self.record_catch_up();
        let is_known = log.writer().pending(from).is_some();
        self.counts.memory_overruns += u64::from(!is_known);
        for line in &mut self.lines {
            line.at = if is_known { from } else { log.writer().oldest_pending() };
        }
    }

    /// `false` if the catch-up cannot continue: neither memory nor the files have its next entry.
    fn is_catch_up_readable(&mut self, log: &LogSink) -> bool {
        let Some(at) =
            self.catch_up.as_ref().filter(|catch_up| catch_up.is_evicted(log.writer())).map(CatchUp::position)
        else {
            return true;
        };
        match (self.read_from(at), self.catch_up.as_mut()) {
            (Some(reader), Some(catch_up)) => {
                catch_up.continue_from(reader);
                true
            }
            _ => {
                self.go_live(at, log);
                false
            }
        }
    }

    /// Sends one portion of the catch-up. The lines advance together. A line that takes fewer packets than another is
    /// left behind, so that a faulty line cannot delay the end of a takeover. The packets it lacks are on the other
    /// line and at the retransmission services.
    #[cold]
    fn send_catch_up<I: ThreadIo>(
        &mut self,
        log: &mut LogSink,
        now: MonoNs,
        buffers: &mut SendBuffers,
        io: &mut I,
    ) -> SendProgress {
        if !self.is_catch_up_readable(log) {
            return SendProgress::ModeChanged;
        }
        let Some(catch_up) = self.catch_up.as_mut().filter(|catch_up| catch_up.due <= now) else {
            return SendProgress::Idle;
        };
        self.counts.skipped_entries += catch_up.skip_published(log.writer());
        if catch_up.predecessor_through.is_some() {
            return SendProgress::Idle;
        }
        // Entries committed since the opening wait behind the catch-up. As long as they exceed one portion, they are
        // sent at the catch-up's rate.
        let log_end = catch_up.log_end;
        let next = catch_up.peek(log.writer()).map(|entry| entry.position);
        let is_in_catch_up = next.is_some_and(|next| next < log_end);
        let mut waiting = log.writer().pending(catch_up.position());
        let is_short = waiting.as_mut().is_some_and(|waiting| waiting.nth(CATCH_UP_PORTION_PACKETS).is_none());
        if !is_in_catch_up && (is_short || next.is_none()) {
            // From here on, the entries are in the writer's own memory.
            let at = catch_up.position();
            self.go_live(at, log);
            return SendProgress::ModeChanged;
        }
        let headers = HeaderBuilder::begin(&self.config, self.epoch, self.wall.at(now), &mut self.tags);
        let portion = (PACKETS_MAX / self.lines.len()).min(CATCH_UP_PORTION_PACKETS);
        let flags = if is_in_catch_up { PacketFlags::RETRANSMISSION } else { PacketFlags::default() };
        let (mut sent_max, mut sent_on_all_lines, mut at) = (0, 0, now);
        let mut lines = self.lines.as_slice();
        while !lines.is_empty() {
            let mut batch = buffers.begin();
            let mut count = 0;
            for line in lines {
                let entries = catch_up.entries_ahead(log.writer()).take(portion);
                let entries = entries.take_while(|entry| !is_in_catch_up || entry.position < log_end);
                count = fill(&mut batch, entries, &headers, &mut self.tags, flags, line.output);
            }
            let result = send_batch(&batch, now, io, &self.config, &mut self.counts);
            let SendResult { taken, is_short, .. } = result;
            (sent_max, sent_on_all_lines, at) = (sent_max.max(taken.min(count)), sent_on_all_lines + taken, result.at);
            // The hand-over ended at one line; the lines after it get another try without it.
            let served = taken / count.max(1) + 1;
            lines = if is_short { lines.get(served..).unwrap_or_default() } else { &[] };
        }
        if sent_max == 0 {
            self.lines.iter_mut().for_each(|line| line.note_refused(at));
            self.retry_at = Some(at.plus(RETRY_NS));
            return SendProgress::Idle;
        }
        catch_up.skip(sent_max, log.writer());
        for line in &mut self.lines {
            // A line that was left behind shows when the catch-up has ended.
            *line = LineCursor::new(line.output, catch_up.position());
        }
        self.takeover.sent.set(catch_up.position());
        let input_per_s = self.input.measure(log.writer().counts().entries, now);
        let per_s = self.config.catch_up_packets_per_s.max(input_per_s.saturating_mul(2)).max(1);
        let portion_ns = (sent_max as u64).saturating_mul(NS_PER_S) / per_s;
        // A late timer does not slow the catch-up, and a long stall does not make it a burst.
        catch_up.due = catch_up.due.max(MonoNs(now.0.saturating_sub(CATCH_UP_LATE_NS_MAX))).plus(portion_ns);
        self.counts.catch_up_packets += sent_on_all_lines as u64;
        self.heartbeat_at = at.plus(self.config.heartbeat_ns);
        SendProgress::Sent(at)
    }

    #[inline]
    fn send_live<I: ThreadIo>(
        &mut self,
        log: &mut LogSink,
        now: MonoNs,
        buffers: &mut SendBuffers,
        io: &mut I,
        blocked: &mut [bool; OUTPUT_LINES_MAX],
    ) -> SendProgress {
        let writer = log.writer();
        let headers = HeaderBuilder::begin(&self.config, self.epoch, self.wall.at(now), &mut self.tags);
        let portion = PACKETS_MAX / self.lines.len();
        let mut runs = [0; OUTPUT_LINES_MAX];
        let mut batch = buffers.begin();
        for ((line, run), _) in self.lines.iter_mut().zip(&mut runs).zip(&*blocked).filter(|(_, blocked)| !**blocked) {
            if writer.pending(line.at).is_none() {
                self.counts.memory_overruns += 1;
                line.at = writer.oldest_pending();
            }
            if let Some(pending) = writer.pending(line.at) {
                let entries = pending.take(portion);
                *run = fill(&mut batch, entries, &headers, &mut self.tags, PacketFlags::default(), line.output);
            }
        }
        if batch.is_empty() {
            return SendProgress::Idle;
        }
        let SendResult { mut taken, at, is_short } = send_batch(&batch, now, io, &self.config, &mut self.counts);
        let (is_any_taken, mut found_blocked) = (taken > 0, false);
        for ((line, run), blocked) in self.lines.iter_mut().zip(runs).zip(blocked) {
            let sent = run.min(taken);
            taken -= sent;
            if let Some(mut pending) = writer.pending(line.at) {
                pending.by_ref().take(sent).for_each(drop);
                line.at = pending.position();
            }
            if sent > 0 {
                line.refusals = None;
            }
            if is_short && sent < run && !found_blocked {
                // The hand-over ended at this line; the others get another try without it.
                (found_blocked, *blocked) = (true, true);
                if sent == 0 {
                    line.note_refused(at);
                }
            }
        }
        if found_blocked {
            self.retry_at = Some(at.plus(RETRY_NS));
        }
        if is_any_taken {
            self.heartbeat_at = at.plus(self.config.heartbeat_ns);
        }
        if let Some(sent) = self.lines.iter().map(|line| line.at).min() {
            log.writer_mut().release_before(sent);
            self.takeover.sent.set(sent);
        }
        if is_any_taken { SendProgress::Sent(at) } else { SendProgress::ModeChanged }
    }

    /// Sends the epoch and the channel's position, and the state of a channel that is out of service, if the fence is
    /// open. A line whose packets wait for a retry has another position, and gets none.
    fn send_heartbeat<I: ThreadIo>(&mut self, log: &LogSink, fence: &Fence, buffers: &mut SendBuffers, io: &mut I) {
        let is_catching_up = self.catch_up.is_some();
        let Some(stream_state) = self.stream_state(log) else { return };
        let now = mono_now();
        if fence.epoch_if_open(now) == Some(self.epoch) {
            self.send_state(&stream_state, |line| is_catching_up || line.has_sent_all(log), now, buffers, io);
        }
    }

    /// Sends a heartbeat on these lines. Not retried: the next one is due soon.
    fn send_state<I: ThreadIo>(
        &mut self,
        stream_state: &StreamState,
        is_due_on: impl Fn(&LineCursor) -> bool,
        now: MonoNs,
        buffers: &mut SendBuffers,
        io: &mut I,
    ) {
        let headers = HeaderBuilder::begin(&self.config, self.epoch, self.wall.at(now), &mut self.tags);
        let state = stream_state.has_failed.then(|| state_frame(Sequence(stream_state.next), ChannelState::Failed));
        let frames = state.as_ref().map_or(&[][..], |frame| frame);
        let header = headers.of_state(stream_state, frames);
        let tag = self.tags.as_ref().map(|tags| tags.of_packet(&header, frames));
        let (mut at, mut lines) = (now, self.lines.as_mut_slice());
        while !lines.is_empty() {
            let mut batch = buffers.begin();
            for line in lines.iter().filter(|line| is_due_on(line)) {
                // At most OUTPUT_LINES_MAX packets: there is room.
                _ = batch.push(&header, frames, tag.as_ref(), line.output);
            }
            if batch.is_empty() {
                break;
            }
            let result = send_batch(&batch, now, io, &self.config, &mut self.counts);
            at = result.at;
            self.counts.heartbeats += result.taken as u64;
            let (mut taken, mut served) = (result.taken, 0);
            for line in lines.iter_mut() {
                served += 1;
                if !is_due_on(line) {
                    continue;
                }
                if taken == 0 {
                    // The kernel refused this line; the lines behind it get another try without it.
                    line.note_refused(at);
                    break;
                }
                (taken, line.refusals) = (taken - 1, None);
            }
            lines = lines.get_mut(served..).unwrap_or_default();
        }
        self.heartbeat_at = at.plus(self.config.heartbeat_ns);
    }

    /// What a heartbeat reports now. `None` before the first session, and while packets of every line wait for a retry.
    fn stream_state(&mut self, log: &LogSink) -> Option<StreamState> {
        if let Some(catch_up) = self.catch_up.as_mut() {
            if let Some(received_through) = catch_up.predecessor_through {
                return Some(StreamState::at(received_through));
            }
            let entry = catch_up.peek(log.writer())?;
            let Entry { session, first, .. } = entry;
            return Some(StreamState { session, next: first, has_ended: false, has_failed: false });
        }
        let progress = log.session_progress().filter(|_| self.lines.iter().any(|line| line.has_sent_all(log)))?;
        let SessionProgress { session, committed, has_ended, has_failed, .. } = *progress;
        Some(StreamState { session, next: committed.0, has_ended, has_failed })
    }
}

impl StreamState {
    fn at(sent_through: StreamPosition) -> Self {
        Self {
            session: sent_through.session.to_bytes(),
            next: sent_through.sequence.0,
            has_ended: false,
            has_failed: false,
        }
    }
}

/// Result of one round of sending.
enum SendProgress {
    /// No entry is due now.
    Idle,
    /// Entries were handed to the kernel at this time.
    Sent(MonoNs),
    /// The mode has changed.
    ModeChanged,
}

struct SendResult {
    taken: usize,
    at: MonoNs,
    is_short: bool,
}

/// Builds the headers of one batch.
struct HeaderBuilder<'a> {
    config: &'a PublisherConfig,
    epoch: Epoch,
    send_time: UnixNs,
    /// Flags of every packet.
    flags: PacketFlags,
}

impl<'a> HeaderBuilder<'a> {
    #[inline]
    fn begin(config: &'a PublisherConfig, epoch: Epoch, send_time: UnixNs, tags: &mut Option<PacketTags>) -> Self {
        let flags = match tags {
            Some(tags) => {
                tags.begin();
                PacketFlags::TAGGED
            }
            None => PacketFlags::default(),
        };
        Self { config, epoch, send_time, flags }
    }

    #[inline]
    fn of_entry(&self, entry: &Entry<'_>, flags: PacketFlags) -> [u8; HEADER_BYTES] {
        let flags = flags.with(self.flags);
        packet_header(self.config.group, self.config.channel, self.epoch, self.send_time, entry, flags)
    }

    /// `frames`: none, or the frame with the channel's state.
    fn of_state(&self, stream_state: &StreamState, frames: &[u8]) -> [u8; HEADER_BYTES] {
        let kind = if frames.is_empty() { PacketFlags::HEARTBEAT } else { PacketFlags::SNAPSHOT };
        let flags = if stream_state.has_ended { PacketFlags::END_OF_SESSION } else { PacketFlags::default() };
        let entry = Entry {
            position: Position::default(),
            end: Position::default(),
            number: 0,
            session: stream_state.session,
            first: stream_state.next,
            next: stream_state.next,
            ts_commit: 0,
            frame_count: u16::from(!frames.is_empty()),
            flags: kind.0.into(),
            payload: frames,
        };
        self.of_entry(&entry, flags)
    }
}

#[inline]
fn fill<'a>(
    batch: &mut SendBatch<'a>,
    entries: impl Iterator<Item = Entry<'a>>,
    headers: &HeaderBuilder<'_>,
    tags: &mut Option<PacketTags>,
    flags: PacketFlags,
    output: OutputIndex,
) -> usize {
    let mut count = 0;
    for entry in entries {
        let header = headers.of_entry(&entry, flags);
        let tag = tags.as_mut().map(|tags| tags.of_entry(count, entry.position, &header, entry.payload));
        if batch.push(&header, entry.payload, tag.as_ref(), output).is_err() {
            break;
        }
        count += 1;
    }
    count
}

#[inline]
fn send_batch<I: ThreadIo>(
    batch: &SendBatch<'_>,
    now: MonoNs,
    io: &mut I,
    config: &PublisherConfig,
    counts: &mut PublishCounts,
) -> SendResult {
    let taken = match io.send(batch) {
        Ok(taken) => {
            counts.refused += u64::from(taken < batch.len());
            taken
        }
        Err(_) => {
            counts.errors += 1;
            0
        }
    };
    let at = mono_now();
    counts.packets += taken as u64;
    counts.slow_sends += u64::from(at.since(now) > config.send_ns_max);
    SendResult { taken, at, is_short: taken < batch.len() }
}

/// Output lines of a channel: two, and room for two more while lines are moved.
pub const OUTPUT_LINES_MAX: usize = 4;
/// Time until a refused packet is retried, ns: about ten packets on a 1 Gbit/s wire.
const RETRY_NS: u64 = 100_000;
/// Packets of one portion; then other channels have their turn.
const CATCH_UP_PORTION_PACKETS: usize = 32;
/// A portion of the catch-up that is late by at most this time still counts as sent on schedule, ns.
const CATCH_UP_LATE_NS_MAX: u64 = 2_000_000;
/// Shortest time over which the input's rate is measured, ns.
const RATE_WINDOW_NS: u64 = 20_000_000;
const NS_PER_S: u64 = 1_000_000_000;
