//! Arbitration of redundant lines: each message once, in order, from whichever line brings it first.
//!
//! ```text
//!            first packet            packet ahead, or a later sequence announced
//!  waiting ───────────────▶ live ───────────────────────────────▶ gap ─┐ gap_timeout_ns
//!                            ▲ ▲                                   │   ▼
//!                            │ └──────────── filled ───────────────┴─ recovering
//!                            └─────── declared, with its bounds ──────┘
//! ```
//! Works by message number and not by packet: lines may cut packets differently, so ranges overlap in any way.
//!
//! What comes out, whatever goes in: ranges strictly ascend; each sequence from the start on is either delivered
//! once or lies in one declared gap. Nothing is allocated after [`Arbiter::new`].
//!
//! What it deliberately does not do: look into messages, judge sessions (the caller calls
//! [`Arbiter::begin_session`]), or read a clock.

mod gap;
mod lines;
mod pending_gaps;
mod recovery;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use self::pending_gaps::Holes;
pub use self::recovery::{
    AnswerEnd, REQUESTS_IN_FLIGHT_MAX, RecoveryConfig, RecoveryStatistics, Request, RequestTarget,
};
pub use self::{
    gap::Gap,
    lines::{LEAD_NS_MAX, LineStatistics, lead_histogram},
};

use hdrhistogram::Histogram;

use self::{
    gap::DeclaredGaps,
    lines::{JumpCandidate, Lines},
    window::{PACKETS_MAX, Window},
};
use crate::{
    arbiter::recovery::Recovery,
    channel_state::ChannelState,
    drop_reason::{DropCounts, DropReason},
    identity::{Line, Sequence},
    time::{MonoNs, UnixNs},
};

/// How a channel's lines are arbitrated.
#[derive(Clone, Debug)]
pub struct ArbiterConfig {
    /// Lines that carry the channel, without the recovery line: 1 to 7.
    pub lines: u8,
    /// Packets that can be held while a gap waits, [`WINDOW_PACKETS_MIN`] to 32,768.
    pub window_packets: usize,
    /// Longest message block that can be held, bytes.
    pub datagram_bytes_max: usize,
    /// Most messages that one packet can truthfully bring.
    pub messages_per_packet_max: u64,
    /// How long a gap may wait for another line, ns, counted from when it was found or last shrank.
    pub gap_timeout_ns: u64,
    /// Retransmission, where there is a server; without it a gap that timed out is declared.
    pub recovery: Option<RecoveryConfig>,
    /// Limits of recovery until all has come that lies before what is heard first, where somebody has that; so long, no packet
    /// is held at the cost of a gap either.
    pub catch_up: Option<RecoveryConfig>,
    /// What gives way when the window is full.
    pub when_full: WhenFull,
    /// Farthest a packet may begin beyond what is expected without being confirmed. See [`Arbiter::accept`].
    pub sequence_jump_max: u64,
    /// After how long without a packet or heartbeat a line's alarm is raised, ns; `None`: never.
    pub line_silence_ns: Option<u64>,
}

/// What gives way when the window is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The gap: the first one is declared at once, which makes room. A live feed goes on.
    DeclareGap,
    /// The packet: it is refused and asked for later. For a source that keeps everything, while catching up with it.
    RefusePacket,
}

/// The largest number of datagrams that one drain of a socket brings: the window must not be smaller, or draining
/// one line before the other would make a false gap.
pub const WINDOW_PACKETS_MIN: usize = 64;

impl Default for ArbiterConfig {
    fn default() -> Self {
        Self {
            lines: 2,
            // Four full drains; 0.3 ms of a burst at a million packets a second.
            window_packets: 256,
            datagram_bytes_max: 2_048,
            // A message is no shorter than its two bytes of length.
            messages_per_packet_max: 1_024,
            // Lines of one venue differ by microseconds on the same site, by a few milliseconds between sites.
            gap_timeout_ns: 5_000_000,
            recovery: None,
            catch_up: None,
            when_full: WhenFull::DeclareGap,
            // A second of a busy feed. Beyond it two packets more are waited for, which is soon; a forged number that is
            // believed costs the channel all messages up to it.
            sequence_jump_max: 100_000,
            line_silence_ns: None,
        }
    }
}

impl ArbiterConfig {
    /// Whether every value is in its range.
    ///
    /// # Errors
    /// The name of the first value that is not, and what it has to be.
    pub fn check(&self) -> Result<(), &'static str> {
        let packets = WINDOW_PACKETS_MIN..=PACKETS_MAX;
        let rules = [
            ((1..=Line::RECOVERY.0).contains(&self.lines), "lines: 1 to 7"),
            (packets.contains(&self.window_packets), "window_packets: 64 (one drain) to 32768"),
            ((1..=65_535).contains(&self.datagram_bytes_max), "datagram_bytes_max: 1 to 65535"),
            ((1..=1 << 62).contains(&self.messages_per_packet_max), "messages_per_packet_max: 1 to 2^62"),
            (self.gap_timeout_ns >= 1, "gap_timeout_ns: at least 1"),
            (self.sequence_jump_max >= 1, "sequence_jump_max: at least 1"),
            (self.line_silence_ns != Some(0), "line_silence_ns: at least 1"),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, rule)| Err(rule))
    }
}

/// A packet with messages, as its transport header told it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Where it came from.
    pub line: Line,
    /// Sequence of its first message.
    pub first: Sequence,
    /// Sequence after its last message.
    pub next: Sequence,
    /// The messages; handed back as they are.
    pub block: &'a [u8],
    /// Receive stamp: says which line was first.
    pub ts_recv: UnixNs,
    /// The venue's sending time, where its transport has one; handed back.
    pub send_time: Option<UnixNs>,
    /// Time for deadlines.
    pub now: MonoNs,
}

/// What comes out, in order.
#[derive(Clone, Copy, Debug)]
pub enum Delivery<'a> {
    /// Messages `[from, until)` of a block that holds `[first, next)`: skip what precedes, stop before the rest.
    Packet {
        /// The line whose copy this is.
        line: Line,
        /// Sequence of the block's first message.
        first: Sequence,
        /// Sequence after the block's last message.
        next: Sequence,
        /// First message to deliver.
        from: Sequence,
        /// First message not to deliver any more; more than `from`.
        until: Sequence,
        /// All messages of the packet.
        block: &'a [u8],
        /// Receive stamp of this copy.
        ts_recv: UnixNs,
        /// The venue's sending time of this copy.
        send_time: Option<UnixNs>,
    },
    /// These sequences will not come.
    Gap(Gap),
}

/// The arbiter of one channel.
#[derive(Debug)]
pub struct Arbiter {
    /// Next sequence to deliver; [`NONE`] before the first packet.
    expected: Sequence,
    /// First sequence of which nothing is known. Equal to `expected` while there is no gap.
    frontier: Sequence,
    config: ArbiterConfig,
    lines: Lines,
    window: Window,
    declared: DeclaredGaps,
    recovery: Option<Recovery>,
    /// While catching up: what holds afterwards.
    catch_up_state: Option<CatchUp>,
    /// When the gap after everything held (known from an announcement) was found or last shrank.
    trailing_gap_since: MonoNs,
    /// Whether [`Self::watch`] has been called: without it, no alarm of a line is ever due.
    has_silence_timers: bool,
    drops: DropCounts,
    statistics: ArbiterStatistics,
}

#[derive(Clone, Copy, Debug)]
struct CatchUp {
    /// All before it is to come: what was heard first, or refused last.
    until: Sequence,
    recovery: Option<RecoveryConfig>,
    when_full: WhenFull,
}

/// Figures of the channel as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArbiterStatistics {
    /// Messages delivered.
    pub delivered_messages: u64,
    /// Gaps declared.
    pub gaps: u64,
    /// Messages in them.
    pub gap_messages: u64,
    /// Of these gaps, those declared early because the window was full.
    pub gaps_window_full: u64,
    /// Gaps found, however they ended.
    pub gaps_found: u64,
    /// Most packets held at a time.
    pub window_packets_max: usize,
}

/// `expected` before the first packet; beyond [`SEQUENCE_END`], so no packet ever continues it.
const NONE: Sequence = Sequence(u64::MAX);

/// Sequences from here on are refused, so that no sum with a count can wrap.
pub const SEQUENCE_END: Sequence = Sequence(1 << 63);

/// How many packets of one line, in a row and each continuing the one before, make an incredible place credible.
pub const JUMP_CONFIRMATIONS: u8 = 3;

/// The first gap is what lies before that.
fn begin_catch_up(catch_up_state: &mut Option<CatchUp>, heard: Sequence) {
    if let Some(catch_up_state) = catch_up_state.as_mut().filter(|catch_up_state| catch_up_state.until == Sequence(0)) {
        catch_up_state.until = heard;
    }
}

impl Arbiter {
    /// With all its memory allocated.
    ///
    /// # Panics
    /// When [`ArbiterConfig::check`] refuses the configuration.
    #[must_use]
    pub fn new(mut config: ArbiterConfig) -> Self {
        assert_eq!(config.check(), Ok(()), "arbiter configuration");
        let catch_up_state = config.catch_up.map(|limits| CatchUp {
            until: Sequence(0),
            recovery: config.recovery.replace(limits),
            when_full: core::mem::replace(&mut config.when_full, WhenFull::RefusePacket),
        });
        Self {
            expected: NONE,
            frontier: NONE,
            lines: Lines::new(config.lines, 2 * config.window_packets),
            window: Window::new(config.window_packets, config.datagram_bytes_max),
            declared: DeclaredGaps::new(),
            recovery: config.recovery.map(Recovery::new),
            catch_up_state,
            trailing_gap_since: MonoNs(0),
            has_silence_timers: false,
            drops: DropCounts::default(),
            statistics: ArbiterStatistics::default(),
            config,
        }
    }

    /// The lines are listened to from `now` on: silence of those that never bring anything is counted from here. Further
    /// calls change nothing, until [`Self::stop_silence_timers`].
    #[inline]
    pub fn watch(&mut self, now: MonoNs) {
        if !self.has_silence_timers {
            self.has_silence_timers = true;
            self.lines.venue_lines_mut().for_each(|line| line.silence_since = now);
        }
    }

    /// The lines may be silent: the venue has said all it has to say.
    pub fn stop_silence_timers(&mut self) {
        self.has_silence_timers = false;
    }

    /// A new numbering begins, at `expected` where that is known (and below [`SEQUENCE_END`]), else with the first
    /// packet that comes. Call [`Self::finish`] before, or what is still held is forgotten.
    pub fn begin_session(&mut self, expected: Option<Sequence>) {
        self.expected = expected.filter(|expected| *expected < SEQUENCE_END).unwrap_or(NONE);
        self.frontier = self.expected;
        self.window.clear();
        self.declared.clear();
        self.lines.begin_session();
        if let Some(catch_up_state) = &mut self.catch_up_state {
            catch_up_state.until = Sequence(0);
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.begin_session();
        }
    }

    /// Next sequence to be delivered; `None` before the first packet.
    #[must_use]
    pub fn expected(&self) -> Option<Sequence> {
        (self.expected != NONE).then_some(self.expected)
    }

    /// First sequence of which nothing has been heard; `None` before the first packet.
    #[must_use]
    pub fn frontier(&self) -> Option<Sequence> {
        (self.frontier != NONE).then_some(self.frontier)
    }

    /// A packet came. Delivers what can be delivered, holds the rest.
    ///
    /// A packet that begins more than `sequence_jump_max` beyond what is expected is refused: one forged or damaged
    /// number must not make a channel wait for, or declare, a gap that isn't there. Only the third packet of one
    /// line in a row of which each continues the one before is believed; the ones before it lie in the gap then, unless
    /// the caller has kept them and hands them in again (see [`Self::would_accept`]).
    ///
    /// # Errors
    /// Why nothing of the packet was used; counted here, in [`Self::drops`] and for its line.
    #[inline]
    pub fn accept(&mut self, arrival: Arrival<'_>, deliver: &mut impl FnMut(Delivery<'_>)) -> Result<(), DropReason> {
        let Some(line) = self.lines.get_mut(arrival.line) else {
            return self.refuse(arrival.line, DropReason::SourceUnexpected);
        };
        line.packets += 1;
        line.touch(arrival.now);
        let is_in_order = arrival.first == self.expected && self.frontier == self.expected;
        let count = arrival.next.0.wrapping_sub(arrival.first.0);
        let is_sound = arrival.first < arrival.next && arrival.next < SEQUENCE_END;
        if is_in_order && is_sound && count <= self.config.messages_per_packet_max {
            line.won_messages += count;
            self.expected = arrival.next;
            self.frontier = arrival.next;
            self.deliver_arrival(&arrival, arrival.first, arrival.next, deliver);
            return Ok(());
        }
        self.accept_out_of_order(arrival, deliver)
    }

    /// A heartbeat or an end of session told, on `line`, that `next` is the next sequence: all before it exist.
    pub fn announce(&mut self, line: Line, next: Sequence, now: MonoNs) -> Result<(), DropReason> {
        let Some(statistics) = self.lines.get_mut(line) else {
            return self.refuse(line, DropReason::SourceUnexpected);
        };
        statistics.heartbeats += 1;
        statistics.touch(now);
        if next.0 == 0 || next >= SEQUENCE_END {
            return self.refuse(line, DropReason::SequenceInvalid);
        }
        if self.expected == NONE {
            self.expected = next;
            self.frontier = next;
            return Ok(());
        }
        self.end_catch_up_if_complete();
        // The recovery line answers questions, and whoever is asked is believed.
        if line != Line::RECOVERY && self.is_jump(next) && !self.confirm_jump(line, next, next) {
            return self.refuse(line, DropReason::SequenceJump);
        }
        if next > self.frontier {
            self.raise_frontier(next, now);
        }
        if line == Line::RECOVERY {
            self.recover(|recovery, holes| recovery.answered(holes, now));
        }
        Ok(())
    }

    /// When [`Self::on_deadline`] wants to be called: a gap's, a request's or a silent line's time is up.
    #[must_use]
    #[inline]
    pub fn next_deadline(&self) -> Option<MonoNs> {
        let gap = if self.frontier == self.expected { None } else { self.gap_deadline() };
        let silence = self.silence_deadline();
        match (gap, silence) {
            (Some(gap), Some(silence)) => Some(gap.min(silence)),
            (gap, silence) => gap.or(silence),
        }
    }

    /// Time has passed. Drain the channel's lines before, or what lies in their sockets is taken for lost.
    pub fn on_deadline(&mut self, now: MonoNs, deliver: &mut impl FnMut(Delivery<'_>)) {
        self.raise_alarms(now);
        self.end_catch_up_if_complete();
        self.recover(|recovery, holes| recovery.on_deadline(holes, now));
        while let Some(gap) = self.front_gap() {
            let given_up = match &self.recovery {
                Some(recovery) => recovery.given_up(gap),
                None => Some(gap).filter(|_| self.front_gap_due() <= now),
            };
            let Some(gap) = given_up else { return };
            self.declare(gap, deliver);
            self.recover(|recovery, holes| recovery.on_deadline(holes, now));
        }
    }

    /// A request to the peer or the retransmission server that is due. Its answers come back through [`Self::accept`], on
    /// [`Line::RECOVERY`].
    pub fn poll_request(&mut self) -> Option<Request> {
        self.recovery.as_mut()?.poll_request()
    }

    /// The peer has no more of what it was asked for from `asked` on, or can't be asked. The next one is asked with the next deadline.
    pub fn peer_answer_ended(&mut self, asked: Sequence, now: MonoNs) {
        self.recover(|recovery, holes| recovery.peer_answer_ended(asked, holes, now));
    }

    /// Input or session have ended: declares what is missing, delivers everything held.
    pub fn finish(&mut self, deliver: &mut impl FnMut(Delivery<'_>)) {
        while let Some(gap) = self.front_gap() {
            self.declare(gap, deliver);
        }
    }

    /// It is known that nothing before `next` will come any more: declares what is missing up to there, delivers
    /// what is held. What lies beyond is left as it is.
    pub fn declare_missing_before(&mut self, next: Sequence, now: MonoNs, deliver: &mut impl FnMut(Delivery<'_>)) {
        if self.expected == NONE || next >= SEQUENCE_END || next <= self.expected {
            return;
        }
        if next > self.frontier {
            self.raise_frontier(next, now);
        }
        while let Some(gap) = self.front_gap().filter(|gap| gap.first() < next) {
            let Some(gap) = Gap::new(gap.first(), gap.next().min(next)) else { break };
            self.declare(gap, deliver);
        }
    }

    /// Waiting, live, gap or recovering.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        if self.expected == NONE {
            ChannelState::Waiting
        } else if self.frontier == self.expected {
            ChannelState::Live
        } else if self.recovery.as_ref().is_some_and(Recovery::is_active) {
            ChannelState::Recovering
        } else {
            ChannelState::Gap
        }
    }

    /// Figures of one line.
    #[must_use]
    pub fn line_statistics(&self, line: Line) -> &LineStatistics {
        self.lines.get(line)
    }

    /// Takes a line's leads, and leaves `other` (from [`lead_histogram`]) in their place. Nothing is copied.
    pub fn exchange_lead(&mut self, line: Line, other: &mut Histogram<u64>) {
        if let Some(statistics) = self.lines.get_mut(line) {
            core::mem::swap(&mut statistics.lead_ns, other);
        }
    }

    /// Figures of the channel.
    #[must_use]
    pub fn statistics(&self) -> &ArbiterStatistics {
        &self.statistics
    }

    /// Figures of recovery, where there is any.
    #[must_use]
    pub fn recovery_statistics(&self) -> Option<&RecoveryStatistics> {
        self.recovery.as_ref().map(Recovery::statistics)
    }

    /// What was refused: [`DropReason::Duplicate`] and [`DropReason::LateAfterGap`] count messages, also those of
    /// packets of which a part was used; all other reasons count packets.
    #[must_use]
    pub fn drops(&self) -> &DropCounts {
        &self.drops
    }

    /// How it was set up.
    #[must_use]
    pub fn config(&self) -> &ArbiterConfig {
        &self.config
    }

    /// Memory held, all of it since the start.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.window.memory_bytes() + self.lines.memory_bytes() + self.declared.memory_bytes()
    }

    /// Everything but the packet that continues a stream without gaps.
    fn accept_out_of_order(
        &mut self,
        arrival: Arrival<'_>,
        deliver: &mut impl FnMut(Delivery<'_>),
    ) -> Result<(), DropReason> {
        let Arrival { line, first, next, now, .. } = arrival;
        if first.0 == 0 || next <= first || next >= SEQUENCE_END {
            return self.refuse(line, DropReason::SequenceInvalid);
        }
        if next.0 - first.0 > self.config.messages_per_packet_max
            || arrival.block.len() > self.config.datagram_bytes_max
        {
            return self.refuse(line, DropReason::LengthMismatch);
        }
        if self.expected == NONE {
            self.expected = first;
            self.frontier = first;
        }
        if next <= self.expected {
            return self.refuse_old(&arrival);
        }
        self.end_catch_up_if_complete();
        if self.is_jump(first) && !self.confirm_jump(line, first, next) {
            return self.refuse(line, DropReason::SequenceJump);
        }
        if first < self.expected {
            self.count_old(&arrival, first, self.expected);
        }
        while first > self.expected && self.window.is_full() && !self.window.covers(first, next) {
            match (self.config.when_full, self.front_gap()) {
                (WhenFull::DeclareGap, Some(gap)) => {
                    self.statistics.gaps_window_full += 1;
                    // Not beyond this packet, which may lie in the gap.
                    self.declare(gap.before(first), deliver);
                }
                _ => {
                    self.raise_frontier(next.max(self.frontier), now);
                    if let Some(catch_up_state) = &mut self.catch_up_state {
                        catch_up_state.until = self.frontier;
                    }
                    return self.refuse(line, DropReason::WindowFull);
                }
            }
        }
        // Making room may have delivered a part of what this packet brings, or all of it.
        if next <= self.expected {
            return self.refuse_old(&arrival);
        }
        let outcome = if first > self.expected { self.hold(&arrival) } else { self.merge(&arrival, deliver) };
        self.recover(|recovery, holes| recovery.arrived(first, next, line == Line::RECOVERY, holes, now));
        outcome
    }

    /// Delivers a packet that begins at or before what is expected and ends after it, together with everything held
    /// that it connects to. What was held came first and wins.
    fn merge(&mut self, arrival: &Arrival<'_>, deliver: &mut impl FnMut(Delivery<'_>)) -> Result<(), DropReason> {
        let mut added = 0;
        while self.expected < arrival.next {
            let until = self.window.front().map_or(arrival.next, |held| held.from.min(arrival.next));
            if self.expected < until {
                let from = core::mem::replace(&mut self.expected, until);
                added += until.0 - from.0;
                self.frontier = self.frontier.max(until);
                self.deliver_arrival(arrival, from, until, deliver);
            }
            if let Some(held) = self.window.front().copied().filter(|held| held.from == self.expected)
                && let Some((held_line, held_ts)) = self.window.front_origin()
                && self.expected < arrival.next
            {
                let count = held.until.min(arrival.next).0 - held.from.0;
                self.drops.count_many(DropReason::Duplicate, count);
                let overlap = window::Overlap { count, line: held_line, ts_recv: held_ts };
                self.lines.record_duplicate_of_held(arrival.line, arrival.ts_recv, overlap);
                self.deliver_front(deliver);
            }
        }
        self.deliver_connected(deliver);
        self.restart_front_gap_timer(arrival.now);
        self.won(arrival.line, added)
    }

    /// Holds a packet that begins after what is expected.
    fn hold(&mut self, arrival: &Arrival<'_>) -> Result<(), DropReason> {
        let Self { window, lines, drops, statistics, .. } = self;
        let added = window.hold(arrival, arrival.first, |overlap| {
            drops.count_many(DropReason::Duplicate, overlap.count);
            lines.record_duplicate_of_held(arrival.line, arrival.ts_recv, overlap);
        });
        statistics.window_packets_max = statistics.window_packets_max.max(window.packet_count());
        if self.frontier == self.expected {
            statistics.gaps_found += 1;
            begin_catch_up(&mut self.catch_up_state, arrival.first);
        }
        if added > 0 && self.window.end() == Some(arrival.next) {
            self.trailing_gap_since = arrival.now;
        }
        self.frontier = self.frontier.max(arrival.next);
        self.won(arrival.line, added)
    }

    fn won(&mut self, line: Line, added: u64) -> Result<(), DropReason> {
        let Some(statistics) = self.lines.get_mut(line) else { return Err(DropReason::SourceUnexpected) };
        statistics.won_messages += added;
        if added == 0 { Err(DropReason::Duplicate) } else { Ok(()) }
    }

    /// All of the packet lies before what is expected.
    fn refuse_old(&mut self, arrival: &Arrival<'_>) -> Result<(), DropReason> {
        Err(self.count_old(arrival, arrival.first, arrival.next))
    }

    /// Counts messages `[first, next)`, all before what is expected, as duplicates or as too late.
    fn count_old(&mut self, arrival: &Arrival<'_>, first: Sequence, next: Sequence) -> DropReason {
        let late = self.declared.overlap(first, next);
        let duplicate = (next.0 - first.0).saturating_sub(late);
        if late > 0 {
            self.drops.count_many(DropReason::LateAfterGap, late);
            if let Some(line) = self.lines.get_mut(arrival.line) {
                line.late_messages += late;
            }
        }
        self.drops.count_many(DropReason::Duplicate, duplicate);
        if duplicate > 0 {
            self.lines.duplicate(arrival.line, first, next, duplicate, arrival.ts_recv);
            DropReason::Duplicate
        } else {
            DropReason::LateAfterGap
        }
    }

    /// Whether nothing but confirmation makes this place credible.
    fn is_jump(&self, first: Sequence) -> bool {
        first.0.saturating_sub(self.frontier.0.max(self.expected.0)) > self.config.sequence_jump_max
    }

    /// Counts packets of one line, in a row, that continue each other. True once they have made their case.
    fn confirm_jump(&mut self, line: Line, first: Sequence, next: Sequence) -> bool {
        let Some(line) = self.lines.get_mut(line) else { return false };
        let arrival_number = line.arrival_number();
        let confirmations = match line.jump {
            Some(jump) if jump.is_continued(first, arrival_number) => jump.confirmations + 1,
            _ => 1,
        };
        let is_confirmed = confirmations >= JUMP_CONFIRMATIONS;
        line.jump = (!is_confirmed).then_some(JumpCandidate { next, confirmations, arrival_number });
        is_confirmed
    }

    /// Whether what begins at `first` would be believed as the next that `line` brings, however far ahead.
    #[must_use]
    pub fn would_accept(&self, line: Line, first: Sequence) -> bool {
        let line = self.lines.get(line);
        let arrival_number = line.arrival_number().wrapping_add(1);
        let confirms = |jump: JumpCandidate| {
            jump.is_continued(first, arrival_number) && jump.confirmations + 1 >= JUMP_CONFIRMATIONS
        };
        !self.is_jump(first) || line.jump.is_some_and(confirms)
    }

    /// `next` is believed to be reached, however far ahead: all before it exist.
    pub fn believe(&mut self, next: Sequence, now: MonoNs) {
        if self.expected != NONE && next < SEQUENCE_END && next > self.frontier {
            self.raise_frontier(next, now);
        }
    }

    /// A packet that was refused for its jump is believed after all and will be accepted again: it was not dropped.
    pub fn uncount_jump(&mut self, line: Line) {
        self.drops.uncount(DropReason::SequenceJump);
        if let Some(line) = self.lines.get_mut(line) {
            line.refused_packets = line.refused_packets.saturating_sub(1);
            line.packets = line.packets.saturating_sub(1);
        }
    }

    fn refuse(&mut self, line: Line, reason: DropReason) -> Result<(), DropReason> {
        self.drops.count(reason);
        if let Some(line) = self.lines.get_mut(line) {
            line.refused_packets += 1;
        }
        Err(reason)
    }

    #[inline]
    fn deliver_arrival(
        &mut self,
        arrival: &Arrival<'_>,
        from: Sequence,
        until: Sequence,
        deliver: &mut impl FnMut(Delivery<'_>),
    ) {
        self.statistics.delivered_messages += until.0 - from.0;
        self.lines.delivered(arrival.line, from, until, arrival.ts_recv);
        deliver(Delivery::Packet {
            line: arrival.line,
            first: arrival.first,
            next: arrival.next,
            from,
            until,
            block: arrival.block,
            ts_recv: arrival.ts_recv,
            send_time: arrival.send_time,
        });
    }

    /// Delivers the first fragment, which is what is expected.
    fn deliver_front(&mut self, deliver: &mut impl FnMut(Delivery<'_>)) {
        let Some((fragment, slot, block)) = self.window.pop_front() else { return };
        self.expected = fragment.until;
        self.statistics.delivered_messages += fragment.until.0 - fragment.from.0;
        self.lines.delivered(slot.line, fragment.from, fragment.until, slot.ts_recv);
        deliver(Delivery::Packet {
            line: slot.line,
            first: slot.first,
            next: slot.next,
            from: fragment.from,
            until: fragment.until,
            block,
            ts_recv: slot.ts_recv,
            send_time: slot.send_time,
        });
    }

    fn deliver_connected(&mut self, deliver: &mut impl FnMut(Delivery<'_>)) {
        while self.window.front().is_some_and(|held| held.from == self.expected) {
            self.deliver_front(deliver);
        }
        self.frontier = self.frontier.max(self.expected);
    }

    /// Gives up on a gap that begins at what is expected, and delivers what follows it.
    fn declare(&mut self, gap: Gap, deliver: &mut impl FnMut(Delivery<'_>)) {
        self.declared.record(gap);
        self.statistics.gaps += 1;
        self.statistics.gap_messages += gap.count();
        self.expected = gap.next();
        deliver(Delivery::Gap(gap));
        self.deliver_connected(deliver);
        if let Some(recovery) = &mut self.recovery {
            recovery.forget_before(self.expected);
        }
    }

    /// The gap that holds up delivery.
    fn front_gap(&self) -> Option<Gap> {
        Gap::new(self.expected, self.window.front().map_or(self.frontier, |held| held.from))
    }

    /// When other lines have had their time to fill the first gap.
    fn front_gap_due(&self) -> MonoNs {
        let since = self.window.front().map_or(self.trailing_gap_since, |held| held.gap_since);
        since.plus(self.config.gap_timeout_ns)
    }

    fn gap_deadline(&self) -> Option<MonoNs> {
        let Some(recovery) = &self.recovery else { return Some(self.front_gap_due()) };
        let is_given_up = self.front_gap().is_some_and(|gap| recovery.given_up(gap).is_some());
        if is_given_up { Some(recovery.given_up_at()) } else { recovery.next_deadline(&self.holes()) }
    }

    fn holes(&self) -> Holes<'_> {
        Holes::new(&self.window, self.expected, (self.frontier, self.trailing_gap_since), &self.config)
    }

    /// Lets recovery work on what is missing.
    fn recover(&mut self, work: impl FnOnce(&mut Recovery, &Holes<'_>)) {
        let Self { recovery, window, expected, frontier, trailing_gap_since, config, .. } = self;
        if let Some(recovery) = recovery {
            work(recovery, &Holes::new(window, *expected, (*frontier, *trailing_gap_since), config));
        }
    }

    /// Nothing is behind any more: gaps from now on are gaps.
    fn end_catch_up_if_complete(&mut self) {
        let has_delivered = self.statistics.delivered_messages > 0;
        let is_over = |catch_up_state: &mut CatchUp| has_delivered && catch_up_state.until <= self.expected;
        if let Some(CatchUp { recovery, when_full, .. }) = self.catch_up_state.take_if(is_over) {
            (self.config.recovery, self.config.when_full) = (recovery, when_full);
            self.recovery = match (self.recovery.take(), recovery) {
                (Some(previous), Some(limits)) => Some(previous.with_limits(limits)),
                _ => None,
            };
        }
    }

    /// Whoever fills a gap is still at work, so its time begins anew.
    fn restart_front_gap_timer(&mut self, now: MonoNs) {
        match self.window.front_mut() {
            Some(held) => held.gap_since = now,
            None => self.trailing_gap_since = now,
        }
    }

    fn raise_frontier(&mut self, next: Sequence, now: MonoNs) {
        if self.frontier == self.expected {
            self.statistics.gaps_found += 1;
            begin_catch_up(&mut self.catch_up_state, next);
        }
        if self.window.end().unwrap_or(self.expected) >= self.frontier {
            self.trailing_gap_since = now;
        }
        self.frontier = next;
    }

    fn silence_deadline(&self) -> Option<MonoNs> {
        let silence_ns = self.config.line_silence_ns.filter(|_| self.has_silence_timers)?;
        self.lines.watched().filter_map(|line| line.silence_deadline(silence_ns)).min()
    }

    fn raise_alarms(&mut self, now: MonoNs) {
        let Some(silence_ns) = self.config.line_silence_ns.filter(|_| self.has_silence_timers) else { return };
        for line in self.lines.venue_lines_mut() {
            if line.silence_deadline(silence_ns).is_some_and(|deadline| deadline <= now) {
                line.silent = true;
                line.silences += 1;
            }
        }
    }
}
