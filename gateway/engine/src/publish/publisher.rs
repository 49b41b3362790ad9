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
    heard::{Look, Opening, TakeoverWords},
    packet::packet_header,
    sink::{LogSink, Numbering, state_frame},
    tail::{Source, Tail, ends_by, span_of},
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
    pub tail_packets_per_s: u64,
    /// A hand-over to the kernel that takes longer is counted: the time that the fence's margin allows for.
    pub send_ns_max: u64,
    /// Where the log's segments lie.
    pub log_directory: PathBuf,
}

/// What a cursor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishMode {
    /// Nothing: the fence lets nothing through.
    Closed,
    /// Works off what had not been sent.
    Tail,
    /// Sends each entry as it comes.
    Live,
}

/// What a [`Publisher`] counts. A packet that goes out on two lines counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishCounts {
    /// Packets that the kernel took, heartbeats included.
    pub packets: u64,
    /// Packets among them that were sent while in [`PublishMode::Tail`].
    pub tail_packets: u64,
    /// Heartbeats among them.
    pub heartbeats: u64,
    /// Hand-overs that the kernel cut short: no room. Tried again.
    pub refused: u64,
    /// Hand-overs that failed otherwise. Tried again.
    pub errors: u64,
    /// Times the fence was found closed at a hand-over.
    pub fenced: u64,
    /// Openings of the fence.
    pub openings: u64,
    /// Hand-overs that took longer than they may.
    pub slow_sends: u64,
    /// Times a line was so far behind that the log's memory for it was gone: it went on with the oldest there.
    pub overruns: u64,
    /// Trouble with reading the log for the tail, which then began later.
    pub log_failures: u64,
    /// Entries that were not sent, since the gateway that led before had come further than this one.
    pub passed_over: u64,
}

/// Sends one channel's log. Driven by whoever holds the channel's claim: nobody else moves the cursor.
#[derive(Debug)]
pub struct Publisher {
    config: PublisherConfig,
    lines: Vec<LineCursor>,
    mode: PublishMode,
    /// Under which the last packet went out.
    epoch: Epoch,
    tail: Option<Tail>,
    /// What was heard of whoever led before, and how far this one has sent.
    words: Arc<TakeoverWords>,
    input: InputRate,
    heartbeat_at: MonoNs,
    retry_at: Option<MonoNs>,
    wall: WallFromMono,
    /// What the last opening of the fence has come to.
    opening: Opening,
    /// Packets sent as a tail before it.
    tail_packets_before: u64,
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
struct Standing {
    session: SessionBytes,
    next: u64,
    has_ended: bool,
    has_failed: bool,
}

impl Publisher {
    /// Begins at the end of the log, unless `words` tell of another gateway: what an earlier run left there has been sent.
    ///
    /// # Panics
    /// With more than four outputs.
    #[must_use]
    pub fn new(config: PublisherConfig, log: &LogSink, words: Arc<TakeoverWords>) -> Self {
        assert!(config.outputs.len() <= LINES_MAX);
        let at = log.writer().end();
        let lines = config.outputs.iter().map(|output| LineCursor { output: *output, at }).collect();
        let now = mono_now();
        Self {
            config,
            lines,
            mode: PublishMode::Closed,
            epoch: Epoch::default(),
            tail: None,
            words,
            input: InputRate { entries: log.writer().counts().entries, at: now, per_s: 0 },
            heartbeat_at: now,
            retry_at: None,
            wall: WallFromMono::new(),
            opening: Opening::default(),
            tail_packets_before: 0,
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
        let mut handed_over = None;
        let mut stuck = [false; LINES_MAX];
        while !self.lines.is_empty() {
            let now = mono_now();
            let Some(epoch) = fence.pass(now) else {
                self.close();
                break;
            };
            if self.mode == PublishMode::Closed || epoch != self.epoch {
                if let Some(heard) = self.open(epoch, log) {
                    // Before anything is looked up in the log: receivers fence the old leader from here on.
                    self.hand_over_standing(&Standing::at(heard), now, buffers, io);
                    self.begin_tail(Some(heard), log, now);
                } else {
                    self.begin_tail(None, log, now);
                    self.hand_over_heartbeat(log, fence, buffers, io);
                }
                continue;
            }
            let progress = match self.mode {
                PublishMode::Tail => self.send_tail(log, now, buffers, io),
                _ => self.send_live(log, now, buffers, io, &mut stuck),
            };
            match progress {
                Progress::Nothing => break,
                Progress::Sent(at) => {
                    if self.opening.first_content.is_none() {
                        self.tell_first_content(at);
                    }
                    handed_over = Some(at);
                }
                Progress::Again => {}
            }
        }
        handed_over
    }

    /// When [`Self::on_deadline`] wants to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoNs> {
        // While it is behind, what it waits for is its input.
        let tail = self.tail.as_ref().filter(|tail| tail.behind.is_none()).map(|tail| tail.due);
        let heartbeat = (!self.lines.is_empty()).then_some(self.heartbeat_at);
        [heartbeat, self.retry_at, tail].into_iter().flatten().min()
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
            log.settle();
            self.input.measure(log.writer().counts().entries, now);
        }
        let before = self.counts.packets;
        self.send_from(log, fence, buffers, io);
        if is_due && self.counts.packets == before && self.mode != PublishMode::Closed {
            self.hand_over_heartbeat(log, fence, buffers, io);
        }
    }

    /// Answers a question about the fence: what there was to send under it is sent, and nothing is under way.
    #[cold]
    pub fn looked(&mut self, number: u64, log: &LogSink) {
        let position = self.position(log);
        self.words.looks.set(Look { number, position });
    }

    /// Everything before it has been sent on every line; `None` before the first opening, or when it can't be told.
    fn position(&mut self, log: &LogSink) -> Option<StreamPosition> {
        if self.counts.openings == 0 {
            return None;
        }
        if let Some(tail) = self.tail.as_mut() {
            return match tail.behind {
                Some(heard) => Some(heard),
                None => tail.peek(log.writer()).and_then(|entry| span_of(&entry)).map(|(from, _)| from),
            };
        }
        let sent = self.lines.iter().map(|line| line.at).min()?;
        match log.writer().pending(sent)?.next() {
            Some(entry) => span_of(&entry).map(|(from, _)| from),
            None => log.ready(),
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
            self.counts.fenced += 1;
            // The lines are where the tail was, so the next opening goes on there.
            self.mode = PublishMode::Closed;
            self.tail = None;
        }
    }

    /// Every opening is a takeover. What has been heard of the gateway that led before, unless this one has led since.
    #[cold]
    fn open(&mut self, epoch: Epoch, log: &LogSink) -> Option<StreamPosition> {
        self.counts.openings += 1;
        let heard = self.words.heard.get();
        let is_own_turn_later = self.counts.openings > 1 && heard.epoch <= self.epoch;
        let ended = self.words.ended.after(self.epoch);
        self.epoch = epoch;
        self.mode = PublishMode::Tail;
        self.tail = None;
        let ready = log.ready();
        let heard = heard.credible(ready).filter(|_| !is_own_turn_later).max(ended);
        self.opening = Opening { epoch, heard, ready, ..Opening::default() };
        self.tail_packets_before = self.counts.tail_packets;
        self.words.opening.set(self.opening);
        heard
    }

    #[cold]
    fn tell_first_content(&mut self, at: MonoNs) {
        self.opening.first_content = Some(at);
        self.tell_tail();
    }

    fn tell_tail(&mut self) {
        self.opening.tail_packets = self.counts.tail_packets - self.tail_packets_before;
        self.words.opening.set(self.opening);
    }

    /// From what was heard, else from the place last sent.
    #[cold]
    fn begin_tail(&mut self, heard: Option<StreamPosition>, log: &LogSink, now: MonoNs) {
        let until = log.writer().end();
        let behind = heard.filter(|heard| log.ready().is_none_or(|ready| ready < *heard));
        let is_level = heard.is_some_and(|heard| log.ready() == Some(heard));
        let sent = self.lines.iter().map(|line| line.at).min().unwrap_or(until);
        let source = match heard {
            Some(_) if behind.is_some() => Some(Source::Memory(until)),
            Some(_) if is_level => None,
            Some(heard) => {
                Source::in_memory(log.writer(), heard).or_else(|| self.read_from_heard(heard).map(Source::Files))
            }
            None if sent >= until => None,
            None if log.writer().pending(sent).is_some() => Some(Source::Memory(sent)),
            None => self.read_from(sent).map(Source::Files),
        };
        match source {
            Some(source) if behind.is_some() || source.position() < until => {
                for line in &mut self.lines {
                    line.at = source.position();
                }
                self.tail = Some(Tail::new(source, until, now, behind));
            }
            Some(_) => self.go_live(until, log),
            None if is_level => self.go_live(until, log),
            // The files don't tell. What memory still has is more than enough, or all there is.
            None if heard.is_some() => self.go_live(log.writer().oldest_pending(), log),
            None => self.go_live(sent, log),
        }
    }

    /// A reader at the first entry that says more than was heard, or at the oldest if that is gone.
    fn read_from_heard(&mut self, heard: StreamPosition) -> Option<Reader> {
        let open = || -> Result<(Reader, bool), LogError> {
            let mut reader = Reader::open(&self.config.log_directory, self.config.channel.0)?;
            // The first part of a message may stand in an entry that settles only what came before it.
            reader.seek(heard.session.to_bytes(), heard.sequence.0.saturating_sub(1))?;
            while reader.peek().is_some_and(|entry| ends_by(&entry, heard)) {
                reader.next();
            }
            let is_gone = reader
                .peek()
                .is_some_and(|entry| entry.session == heard.session.to_bytes() && entry.first > heard.sequence.0);
            Ok((reader, is_gone))
        };
        let opened = open();
        self.counts.log_failures += u64::from(opened.is_err());
        let (reader, is_gone) = opened.ok()?;
        self.counts.overruns += u64::from(is_gone);
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
        self.tail = None;
        self.tell_tail();
        let is_known = log.writer().pending(from).is_some();
        self.counts.overruns += u64::from(!is_known);
        for line in &mut self.lines {
            line.at = if is_known { from } else { log.writer().oldest_pending() };
        }
    }

    /// `false` when there is no tail any more: neither memory nor the files have its next entry.
    fn tail_is_at_hand(&mut self, log: &LogSink) -> bool {
        let Some(at) = self.tail.as_ref().filter(|tail| tail.is_forgotten(log.writer())).map(Tail::position) else {
            return true;
        };
        match (self.read_from(at), self.tail.as_mut()) {
            (Some(reader), Some(tail)) => {
                tail.go_on_in(reader);
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
    fn send_tail<I: ThreadIo>(
        &mut self,
        log: &mut LogSink,
        now: MonoNs,
        buffers: &mut SendBuffers,
        io: &mut I,
    ) -> Progress {
        if !self.tail_is_at_hand(log) {
            return Progress::Again;
        }
        let Some(tail) = self.tail.as_mut().filter(|tail| tail.due <= now) else { return Progress::Nothing };
        self.counts.passed_over += tail.pass_over(log.writer());
        if tail.behind.is_some() {
            return Progress::Nothing;
        }
        // What came since the opening waits behind the tail, and goes out at its pace while it is more than a portion.
        let until = tail.until;
        let next = tail.peek(log.writer()).map(|entry| entry.position);
        let is_in_tail = next.is_some_and(|next| next < until);
        let mut waiting = log.writer().pending(tail.position());
        let is_short = waiting.as_mut().is_some_and(|waiting| waiting.nth(TAIL_PORTION_PACKETS).is_none());
        if !is_in_tail && (is_short || next.is_none()) {
            // From here on the writer's own memory has it.
            let at = tail.position();
            self.go_live(at, log);
            return Progress::Again;
        }
        let headers = HeaderMaker { config: &self.config, epoch: self.epoch, send_time: self.wall.at(now) };
        let portion = (PACKETS_MAX / self.lines.len()).min(TAIL_PORTION_PACKETS);
        let flags = if is_in_tail { PacketFlags::RETRANSMISSION } else { PacketFlags::default() };
        let (mut most, mut taken_by_all, mut at) = (0, 0, now);
        let mut lines = self.lines.as_slice();
        while !lines.is_empty() {
            let mut batch = buffers.begin();
            let mut count = 0;
            for line in lines {
                let entries = tail.ahead(log.writer()).take(portion);
                let entries = entries.take_while(|entry| !is_in_tail || entry.position < until);
                count = fill(&mut batch, entries, &headers, flags, line.output);
            }
            let handed_over = hand_over(&batch, now, io, &self.config, &mut self.counts);
            let HandedOver { taken, is_short, .. } = handed_over;
            (most, taken_by_all, at) = (most.max(taken.min(count)), taken_by_all + taken, handed_over.at);
            // The hand-over ended at one line; those after it get another try without it.
            let served = taken / count.max(1) + 1;
            lines = if is_short { lines.get(served..).unwrap_or_default() } else { &[] };
        }
        if most == 0 {
            self.retry_at = Some(at.plus(RETRY_NS));
            return Progress::Nothing;
        }
        tail.skip(most, log.writer());
        for line in &mut self.lines {
            line.at = tail.position();
        }
        self.words.sent.set(tail.position());
        let input_per_s = self.input.measure(log.writer().counts().entries, now);
        let per_s = self.config.tail_packets_per_s.max(input_per_s.saturating_mul(2)).max(1);
        let portion_ns = (most as u64).saturating_mul(NS_PER_S) / per_s;
        // A timer that comes late doesn't make the tail slower, nor does a long stall make it a burst.
        tail.due = tail.due.max(MonoNs(now.0.saturating_sub(TAIL_LATE_NS_MAX))).plus(portion_ns);
        self.counts.tail_packets += taken_by_all as u64;
        self.heartbeat_at = at.plus(self.config.heartbeat_ns);
        Progress::Sent(at)
    }

    #[inline]
    fn send_live<I: ThreadIo>(
        &mut self,
        log: &mut LogSink,
        now: MonoNs,
        buffers: &mut SendBuffers,
        io: &mut I,
        stuck: &mut [bool; LINES_MAX],
    ) -> Progress {
        let writer = log.writer();
        let headers = HeaderMaker { config: &self.config, epoch: self.epoch, send_time: self.wall.at(now) };
        let portion = PACKETS_MAX / self.lines.len();
        let mut runs = [0; LINES_MAX];
        let mut batch = buffers.begin();
        for ((line, run), _) in self.lines.iter_mut().zip(&mut runs).zip(&*stuck).filter(|(_, stuck)| !**stuck) {
            if writer.pending(line.at).is_none() {
                self.counts.overruns += 1;
                line.at = writer.oldest_pending();
            }
            if let Some(pending) = writer.pending(line.at) {
                *run = fill(&mut batch, pending.take(portion), &headers, PacketFlags::default(), line.output);
            }
        }
        if batch.is_empty() {
            return Progress::Nothing;
        }
        let HandedOver { mut taken, at, is_short } = hand_over(&batch, now, io, &self.config, &mut self.counts);
        let (is_any_taken, mut found_stuck) = (taken > 0, false);
        for ((line, run), stuck) in self.lines.iter_mut().zip(runs).zip(stuck) {
            let sent = run.min(taken);
            taken -= sent;
            if let Some(mut pending) = writer.pending(line.at) {
                pending.by_ref().take(sent).for_each(drop);
                line.at = pending.position();
            }
            if is_short && sent < run && !found_stuck {
                // The hand-over ended at this line; the others get another try without it.
                (found_stuck, *stuck) = (true, true);
            }
        }
        if found_stuck {
            self.retry_at = Some(at.plus(RETRY_NS));
        }
        self.heartbeat_at = at.plus(self.config.heartbeat_ns);
        if let Some(sent) = self.lines.iter().map(|line| line.at).min() {
            log.writer_mut().release_before(sent);
            self.words.sent.set(sent);
        }
        if is_any_taken { Progress::Sent(at) } else { Progress::Again }
    }

    /// Says under which epoch and how far the channel has been sent, and where it is out of service that
    /// too; if the fence lets it.
    fn hand_over_heartbeat<I: ThreadIo>(
        &mut self,
        log: &LogSink,
        fence: &Fence,
        buffers: &mut SendBuffers,
        io: &mut I,
    ) {
        let Some(standing) = self.standing(log) else { return };
        let now = mono_now();
        if fence.pass(now) == Some(self.epoch) {
            self.hand_over_standing(&standing, now, buffers, io);
        }
    }

    /// A heartbeat. Not tried again: the next one is due soon.
    fn hand_over_standing<I: ThreadIo>(
        &mut self,
        standing: &Standing,
        now: MonoNs,
        buffers: &mut SendBuffers,
        io: &mut I,
    ) {
        let headers = HeaderMaker { config: &self.config, epoch: self.epoch, send_time: self.wall.at(now) };
        let state = standing.has_failed.then(|| state_frame(Sequence(standing.next), ChannelState::Failed));
        let frames = state.as_ref().map_or(&[][..], |frame| frame);
        let header = headers.of_standing(standing, frames);
        let mut batch = buffers.begin();
        for line in &self.lines {
            // At most LINES_MAX packets: there is room.
            _ = batch.push(&header, frames, line.output);
        }
        let HandedOver { taken, at, .. } = hand_over(&batch, now, io, &self.config, &mut self.counts);
        self.counts.heartbeats += taken as u64;
        self.heartbeat_at = at.plus(self.config.heartbeat_ns);
    }

    /// `None` before the first session, and while packets that say more wait to be tried again.
    fn standing(&mut self, log: &LogSink) -> Option<Standing> {
        if let Some(tail) = self.tail.as_mut() {
            if let Some(heard) = tail.behind {
                return Some(Standing::at(heard));
            }
            let entry = tail.peek(log.writer())?;
            let Entry { session, first, .. } = entry;
            return Some(Standing { session, next: first, has_ended: false, has_failed: false });
        }
        let all_sent = |line: &LineCursor| log.writer().pending(line.at).is_some_and(|mut rest| rest.next().is_none());
        let numbering = log.numbering().filter(|_| self.lines.iter().all(all_sent))?;
        let Numbering { session, committed, has_ended, has_failed, .. } = *numbering;
        Some(Standing { session, next: committed.0, has_ended, has_failed })
    }
}

impl Standing {
    fn at(position: StreamPosition) -> Self {
        Self { session: position.session.to_bytes(), next: position.sequence.0, has_ended: false, has_failed: false }
    }
}

/// What one round of sending came to.
enum Progress {
    /// There is nothing more to send now.
    Nothing,
    /// Something was handed over, at this time.
    Sent(MonoNs),
    /// The mode has changed.
    Again,
}

struct HandedOver {
    taken: usize,
    at: MonoNs,
    is_short: bool,
}

/// Makes headers of one batch.
struct HeaderMaker<'a> {
    config: &'a PublisherConfig,
    epoch: Epoch,
    send_time: UnixNs,
}

impl HeaderMaker<'_> {
    #[inline]
    fn of_entry(&self, entry: &Entry<'_>, flags: PacketFlags) -> [u8; HEADER_BYTES] {
        packet_header(self.config.group, self.config.channel, self.epoch, self.send_time, entry, flags)
    }

    /// `frames`: none, or the one that tells a state.
    fn of_standing(&self, standing: &Standing, frames: &[u8]) -> [u8; HEADER_BYTES] {
        let kind = if frames.is_empty() { PacketFlags::HEARTBEAT } else { PacketFlags::SNAPSHOT };
        let flags = if standing.has_ended { PacketFlags::END_OF_SESSION } else { PacketFlags::default() };
        let entry = Entry {
            position: Position::default(),
            end: Position::default(),
            number: 0,
            session: standing.session,
            first: standing.next,
            next: standing.next,
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
    headers: &HeaderMaker<'_>,
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
fn hand_over<I: ThreadIo>(
    batch: &SendBatch<'_>,
    now: MonoNs,
    io: &mut I,
    config: &PublisherConfig,
    counts: &mut PublishCounts,
) -> HandedOver {
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
    HandedOver { taken, at, is_short: taken < batch.len() }
}

/// A gateway's output lines: two, and room for a third while they are moved.
const LINES_MAX: usize = 4;
/// How soon the kernel is asked again that refused a packet: some ten packets' time on a 1 Gbit/s wire.
const RETRY_NS: u64 = 100_000;
/// So many, then other channels have their turn.
const TAIL_PORTION_PACKETS: usize = 32;
/// How much later than planned a portion of the tail may be and still count as sent in time.
const TAIL_LATE_NS_MAX: u64 = 2_000_000;
/// Over what time the input's rate is measured, at least.
const RATE_WINDOW_NS: u64 = 20_000_000;
const NS_PER_S: u64 = 1_000_000_000;
