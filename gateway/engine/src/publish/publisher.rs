//! One channel's way out: cursor, fence, heartbeats.

use std::{path::PathBuf, sync::Arc};

use mdgw_feeds::{
    channel::ChannelState,
    identity::{ChannelId, Epoch, GroupId, Sequence},
    published::{packet::PacketFlags, position::StreamPosition},
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
    sink::{LogSink, SessionProgress, state_frame},
    takeover_state::{DrainAck, FenceOpening, TakeoverShared},
};
use crate::handle_set::ThreadIo;

/// How a channel is published.
#[derive(Clone, Debug)]
pub struct PublisherConfig {
    /// The group that the channel belongs to.
    pub group: GroupId,
    /// The channel.
    pub channel: ChannelId,
    /// Output lines that carry the same packets, 1 or 2; none: nothing is sent.
    pub outputs: Vec<OutputIndex>,
    /// After so long without a packet, a heartbeat goes out.
    pub heartbeat_ns: u64,
    /// Least entries per second while working off what the gateway before had not sent; twice of what comes in, if
    /// that is more: a slower tail never catches up, one without a limit overruns receivers.
    pub catch_up_packets_per_s: u64,
    /// A hand-over to the kernel that takes longer is counted: the time that the fence's margin allows for.
    pub send_ns_max: u64,
    /// Where the log's segments lie.
    pub log_directory: PathBuf,
}

/// What a cursor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishMode {
    /// Idle: the fence lets nothing through.
    Closed,
    /// Works off what had not been sent.
    CatchUp,
    /// Sends each entry as it comes.
    Live,
}

/// What a [`Publisher`] counts. A packet that goes out on two lines counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishCounts {
    /// Packets that the kernel took, heartbeats included.
    pub packets: u64,
    /// Packets among them that were sent while in [`PublishMode::CatchUp`].
    pub catch_up_packets: u64,
    /// Heartbeats among them.
    pub heartbeats: u64,
    /// Hand-overs that the kernel cut short: no room. Tried again.
    pub refused: u64,
    /// Hand-overs that failed otherwise. Tried again.
    pub errors: u64,
    /// Times the fence was found closed at a hand-over.
    pub fence_closures: u64,
    /// Openings of the fence.
    pub openings: u64,
    /// Hand-overs that took longer than they may.
    pub slow_sends: u64,
    /// Times a line was so far behind that the log's memory for it was gone: it went on with the oldest there.
    pub memory_overruns: u64,
    /// Trouble with reading the log for the tail, which then began later.
    pub log_failures: u64,
    /// Entries that were not sent, since the gateway that led before had come further than this one.
    pub skipped_entries: u64,
}

/// Sends one channel's log. Driven by whoever holds the channel's claim: nobody else moves the cursor.
#[derive(Debug)]
pub struct Publisher {
    config: PublisherConfig,
    lines: Vec<LineCursor>,
    mode: PublishMode,
    /// Under which the last packet went out.
    epoch: Epoch,
    catch_up: Option<CatchUp>,
    /// What was heard of whoever led before, and how far this one has sent.
    takeover: Arc<TakeoverShared>,
    input: InputRate,
    heartbeat_at: MonoNs,
    retry_at: Option<MonoNs>,
    wall: WallFromMono,
    /// What the last opening of the fence has come to.
    opening: FenceOpening,
    /// Packets sent as a tail before it.
    catch_up_packets_before: u64,
    counts: PublishCounts,
}

#[derive(Debug)]
struct LineCursor {
    output: OutputIndex,
    at: Position,
}

/// How fast the log grows.
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

/// Where in the log a packet says the channel stands.
#[derive(Clone, Copy, Debug)]
struct StreamState {
    session: SessionBytes,
    next: u64,
    has_ended: bool,
    has_failed: bool,
}

impl Publisher {
    /// Begins at the end of the log, unless `takeover` tell of another gateway: what an earlier run left there has been sent.
    ///
    /// # Panics
    /// With more than four outputs.
    #[must_use]
    pub fn new(config: PublisherConfig, log: &LogSink, takeover: Arc<TakeoverShared>) -> Self {
        assert!(config.outputs.len() <= LINES_MAX);
        let at = log.writer().end();
        let lines = config.outputs.iter().map(|output| LineCursor { output: *output, at }).collect();
        let now = mono_now();
        Self {
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

    /// Sends what is due, until it is all handed over, or the kernel or the fence takes no more. The time of the last
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
        let mut blocked = [false; LINES_MAX];
        while !self.lines.is_empty() {
            let now = mono_now();
            let Some(epoch) = fence.epoch_if_open(now) else {
                self.close();
                break;
            };
            if self.mode == PublishMode::Closed || epoch != self.epoch {
                if let Some(received_through) = self.open(epoch, log) {
                    // Before anything is looked up in the log: receivers fence the old leader from here on.
                    self.send_state(&StreamState::at(received_through), now, buffers, io);
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

    /// When [`Self::on_deadline`] wants to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoNs> {
        // While it is behind, what it waits for is its input.
        let catch_up = self
            .catch_up
            .as_ref()
            .filter(|catch_up| catch_up.predecessor_through.is_none())
            .map(|catch_up| catch_up.due);
        let heartbeat = (!self.lines.is_empty()).then_some(self.heartbeat_at);
        [heartbeat, self.retry_at, catch_up].into_iter().flatten().min()
    }

    /// Time has passed: a heartbeat, the next portion of the tail or another try may be due. While the fence is closed
    /// this is where its opening is noticed at the latest.
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

    /// Answers a question about the fence: what there was to send under it is sent, and nothing is under way.
    #[cold]
    pub fn acknowledge_drain(&mut self, number: u64, log: &LogSink) {
        let sent_through = self.sent_through(log);
        self.takeover.drain_ack.set(DrainAck { number, position: sent_through });
    }

    /// Everything before it has been sent on every line; `None` before the first opening, or when it can't be told.
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

    /// What the cursor does.
    #[must_use]
    pub fn mode(&self) -> PublishMode {
        self.mode
    }

    /// What it counts.
    #[must_use]
    pub fn counts(&self) -> &PublishCounts {
        &self.counts
    }

    fn close(&mut self) {
        if self.mode != PublishMode::Closed {
            self.counts.fence_closures += 1;
            // The lines are where the tail was, so the next opening goes on there.
            self.mode = PublishMode::Closed;
            self.catch_up = None;
        }
    }

    /// Every opening is a takeover. What has been heard of the gateway that led before, unless this one has led since.
    #[cold]
    fn open(&mut self, epoch: Epoch, log: &LogSink) -> Option<StreamPosition> {
        self.counts.openings += 1;
        let received_through = self.takeover.received_through.get();
        let has_led_since = self.counts.openings > 1 && received_through.epoch <= self.epoch;
        let ended = self.takeover.output_end.newer_than(self.epoch);
        self.epoch = epoch;
        self.mode = PublishMode::CatchUp;
        self.catch_up = None;
        let committed_through = log.committed_through();
        let received_through =
            received_through.trusted_through(committed_through).filter(|_| !has_led_since).max(ended);
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

    /// From what was heard, else from the place last sent.
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
            // The files don't tell. What memory still has is more than enough, or all there is.
            None if received_through.is_some() => self.go_live(log.writer().oldest_pending(), log),
            None => self.go_live(sent, log),
        }
    }

    /// A reader at the first entry that says more than was heard, or at the oldest if that is gone.
    fn read_from_watermark(&mut self, received_through: StreamPosition) -> Option<Reader> {
        let open = || -> Result<(Reader, bool), LogError> {
            let mut reader = Reader::open(&self.config.log_directory, self.config.channel.0)?;
            // The first part of a message may stand in an entry that settles only what came before it.
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

    /// A reader at `start`, or at the oldest entry if that is gone; `None` if the log's files do not have the place.
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

    /// `false` when there is no tail any more: neither memory nor the files have its next entry.
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

    /// One portion of the tail. The lines go together: one that takes less of it than another is left behind, so that a line
    /// out of order keeps no takeover from its end. What it lacks is on the other, and at the retransmission services.
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
        // What came since the opening waits behind the tail, and goes out at its pace while it is more than a portion.
        let log_end = catch_up.log_end;
        let next = catch_up.peek(log.writer()).map(|entry| entry.position);
        let is_in_catch_up = next.is_some_and(|next| next < log_end);
        let mut waiting = log.writer().pending(catch_up.position());
        let is_short = waiting.as_mut().is_some_and(|waiting| waiting.nth(CATCH_UP_PORTION_PACKETS).is_none());
        if !is_in_catch_up && (is_short || next.is_none()) {
            // From here on the writer's own memory has it.
            let at = catch_up.position();
            self.go_live(at, log);
            return SendProgress::ModeChanged;
        }
        let headers = HeaderBuilder { config: &self.config, epoch: self.epoch, send_time: self.wall.at(now) };
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
                count = fill(&mut batch, entries, &headers, flags, line.output);
            }
            let sent_at = send_batch(&batch, now, io, &self.config, &mut self.counts);
            let SendResult { taken, is_short, .. } = sent_at;
            (sent_max, sent_on_all_lines, at) = (sent_max.max(taken.min(count)), sent_on_all_lines + taken, sent_at.at);
            // The hand-over ended at one line; those after it get another try without it.
            let served = taken / count.max(1) + 1;
            lines = if is_short { lines.get(served..).unwrap_or_default() } else { &[] };
        }
        if sent_max == 0 {
            self.retry_at = Some(at.plus(RETRY_NS));
            return SendProgress::Idle;
        }
        catch_up.skip(sent_max, log.writer());
        for line in &mut self.lines {
            line.at = catch_up.position();
        }
        self.takeover.sent.set(catch_up.position());
        let input_per_s = self.input.measure(log.writer().counts().entries, now);
        let per_s = self.config.catch_up_packets_per_s.max(input_per_s.saturating_mul(2)).max(1);
        let portion_ns = (sent_max as u64).saturating_mul(NS_PER_S) / per_s;
        // A timer that comes late doesn't make the tail slower, nor does a long stall make it a burst.
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
        blocked: &mut [bool; LINES_MAX],
    ) -> SendProgress {
        let writer = log.writer();
        let headers = HeaderBuilder { config: &self.config, epoch: self.epoch, send_time: self.wall.at(now) };
        let portion = PACKETS_MAX / self.lines.len();
        let mut runs = [0; LINES_MAX];
        let mut batch = buffers.begin();
        for ((line, run), _) in self.lines.iter_mut().zip(&mut runs).zip(&*blocked).filter(|(_, blocked)| !**blocked) {
            if writer.pending(line.at).is_none() {
                self.counts.memory_overruns += 1;
                line.at = writer.oldest_pending();
            }
            if let Some(pending) = writer.pending(line.at) {
                *run = fill(&mut batch, pending.take(portion), &headers, PacketFlags::default(), line.output);
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
            if is_short && sent < run && !found_blocked {
                // The hand-over ended at this line; the others get another try without it.
                (found_blocked, *blocked) = (true, true);
            }
        }
        if found_blocked {
            self.retry_at = Some(at.plus(RETRY_NS));
        }
        self.heartbeat_at = at.plus(self.config.heartbeat_ns);
        if let Some(sent) = self.lines.iter().map(|line| line.at).min() {
            log.writer_mut().release_before(sent);
            self.takeover.sent.set(sent);
        }
        if is_any_taken { SendProgress::Sent(at) } else { SendProgress::ModeChanged }
    }

    /// Says under which epoch and how far the channel has been sent, and where it is out of service that
    /// too; if the fence lets it.
    fn send_heartbeat<I: ThreadIo>(&mut self, log: &LogSink, fence: &Fence, buffers: &mut SendBuffers, io: &mut I) {
        let Some(stream_state) = self.stream_state(log) else { return };
        let now = mono_now();
        if fence.epoch_if_open(now) == Some(self.epoch) {
            self.send_state(&stream_state, now, buffers, io);
        }
    }

    /// A heartbeat. Not tried again: the next one is due soon.
    fn send_state<I: ThreadIo>(
        &mut self,
        stream_state: &StreamState,
        now: MonoNs,
        buffers: &mut SendBuffers,
        io: &mut I,
    ) {
        let headers = HeaderBuilder { config: &self.config, epoch: self.epoch, send_time: self.wall.at(now) };
        let state = stream_state.has_failed.then(|| state_frame(Sequence(stream_state.next), ChannelState::Failed));
        let frames = state.as_ref().map_or(&[][..], |frame| frame);
        let header = headers.of_state(stream_state, frames);
        let mut batch = buffers.begin();
        for line in &self.lines {
            // At most LINES_MAX packets: there is room.
            _ = batch.push(&header, frames, line.output);
        }
        let SendResult { taken, at, .. } = send_batch(&batch, now, io, &self.config, &mut self.counts);
        self.counts.heartbeats += taken as u64;
        self.heartbeat_at = at.plus(self.config.heartbeat_ns);
    }

    /// `None` before the first session, and while packets that say more wait to be tried again.
    fn stream_state(&mut self, log: &LogSink) -> Option<StreamState> {
        if let Some(catch_up) = self.catch_up.as_mut() {
            if let Some(received_through) = catch_up.predecessor_through {
                return Some(StreamState::at(received_through));
            }
            let entry = catch_up.peek(log.writer())?;
            let Entry { session, first, .. } = entry;
            return Some(StreamState { session, next: first, has_ended: false, has_failed: false });
        }
        let all_sent = |line: &LineCursor| log.writer().pending(line.at).is_some_and(|mut rest| rest.next().is_none());
        let numbering = log.session_progress().filter(|_| self.lines.iter().all(all_sent))?;
        let SessionProgress { session, committed, has_ended, has_failed, .. } = *numbering;
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

/// What one round of sending came to.
enum SendProgress {
    /// There is nothing more to send now.
    Idle,
    /// Something was handed over, at this time.
    Sent(MonoNs),
    /// The mode has changed.
    ModeChanged,
}

struct SendResult {
    taken: usize,
    at: MonoNs,
    is_short: bool,
}

/// Makes headers of one batch.
struct HeaderBuilder<'a> {
    config: &'a PublisherConfig,
    epoch: Epoch,
    send_time: UnixNs,
}

impl HeaderBuilder<'_> {
    #[inline]
    fn of_entry(&self, entry: &Entry<'_>, flags: PacketFlags) -> [u8; HEADER_BYTES] {
        packet_header(self.config.group, self.config.channel, self.epoch, self.send_time, entry, flags)
    }

    /// `frames`: none, or the one that tells a state.
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
    flags: PacketFlags,
    output: OutputIndex,
) -> usize {
    let mut count = 0;
    for entry in entries {
        if batch.push(&headers.of_entry(&entry, flags), entry.payload, output).is_err() {
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

/// A gateway's output lines: two, and room for a third while they are moved.
const LINES_MAX: usize = 4;
/// How soon the kernel is asked again that refused a packet: some ten packets' time on a 1 Gbit/s wire.
const RETRY_NS: u64 = 100_000;
/// So many, then other channels have their turn.
const CATCH_UP_PORTION_PACKETS: usize = 32;
/// How much later than planned a portion of the tail may be and still count as sent in time.
const CATCH_UP_LATE_NS_MAX: u64 = 2_000_000;
/// Over what time the input's rate is measured, at least.
const RATE_WINDOW_NS: u64 = 20_000_000;
const NS_PER_S: u64 = 1_000_000_000;
