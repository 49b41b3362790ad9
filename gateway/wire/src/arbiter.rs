//! Arbitration of redundant lines: delivers each message once, in order, from the line that delivers it first.
//!
//! ```text
//!            first packet            packet ahead, or a later sequence announced
//!  waiting ───────────────▶ live ───────────────────────────────▶ gap ─┐ gap_timeout_ns
//!                            ▲ ▲                                   │   ▼
//!                            │ └──────────── filled ───────────────┴─ recovering
//!                            └─────── declared, with its bounds ──────┘
//! ```
//! Works by message sequence and not by packet: lines may split packets differently, so ranges may overlap in any
//! way.
//!
//! Guarantees for any input: delivered ranges strictly ascend. Each sequence from the start on is either delivered
//! once or lies in one declared gap. Nothing is allocated after [`Arbiter::new`].
//!
//! Out of scope: message content, sessions (the caller calls [`Arbiter::begin_session`]) and clocks.

mod gap;
mod lines;
mod pending_gaps;
mod recovery;
mod reported_tail;
#[cfg(test)]
mod tests;
mod window;

pub use self::gap::Gap;
pub use self::lines::{LineStatistics, lead_histogram};
pub(crate) use self::pending_gaps::PendingGaps;
pub use self::recovery::{AnswerEnd, REQUESTS_IN_FLIGHT_MAX, RecoveryConfig, RecoveryStatistics};
pub use self::recovery::{Request, RequestTarget};

use hdrhistogram::Histogram;

use self::{
    gap::DeclaredGaps,
    lines::{JumpCandidate, Lines},
    reported_tail::ReportedTail,
    window::{PACKETS_MAX, Window},
};
use crate::{
    arbiter::recovery::Recovery,
    channel_state::ChannelState,
    drop_reason::{DropCounts, DropReason},
    identity::{Line, Sequence},
    time::{MonoNs, UnixNs},
};

/// Configuration of a channel's arbitration.
#[derive(Clone, Debug)]
pub struct ArbiterConfig {
    /// Lines that carry the channel, without the recovery line: 1 to 7.
    pub lines: u8,
    /// Packets that can be held while a gap is pending, [`WINDOW_PACKETS_MIN`] to 32,768.
    pub window_packets: usize,
    /// Longest message block that can be held, bytes.
    pub datagram_bytes_max: usize,
    /// Most messages that one packet can contain; a larger count is invalid.
    pub messages_per_packet_max: u64,
    /// How long a gap waits for another line, ns, counted from its detection or last partial fill.
    pub gap_timeout_ns: u64,
    /// Retransmission, where a server exists. Without it, a gap that timed out is declared.
    pub recovery: Option<RecoveryConfig>,
    /// Recovery limits during catch-up, where a source stores the session. Catch-up lasts until every message before
    /// the first received one is delivered or declared. During catch-up no gap is declared to make room for a packet.
    pub catch_up: Option<RecoveryConfig>,
    /// Policy for a full window.
    pub when_full: WhenFull,
    /// Largest distance of a packet from the expected sequence without confirmation. See [`Arbiter::accept`].
    pub sequence_jump_max: u64,
    /// Time without a packet or heartbeat after which a line's alarm is raised, ns; `None`: never.
    pub line_silence_ns: Option<u64>,
}

/// Policy for a full window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Declare the first gap at once, which makes room. For a live feed, which must go on.
    DeclareGap,
    /// Reject the packet and request it later. For catch-up from a source that stores all messages.
    RefusePacket,
}

/// Most datagrams that one drain of a socket returns. The window must not be smaller: draining one line before the
/// other would otherwise make a false gap.
pub(crate) const WINDOW_PACKETS_MIN: usize = 64;

impl Default for ArbiterConfig {
    fn default() -> Self {
        Self {
            lines: 2,
            // Four full drains; 0.3 ms of a burst at a million packets a second.
            window_packets: 256,
            datagram_bytes_max: 2_048,
            // A message takes at least its two bytes of length.
            messages_per_packet_max: 1_024,
            // Lines of one venue differ by microseconds on the same site, by a few milliseconds between sites.
            gap_timeout_ns: 5_000_000,
            recovery: None,
            catch_up: None,
            when_full: WhenFull::DeclareGap,
            // A second of a busy feed. A jump beyond it waits for two more packets, which arrive soon. A forged
            // sequence that is accepted would cost the channel all messages up to it.
            sequence_jump_max: 100_000,
            line_silence_ns: None,
        }
    }
}

impl ArbiterConfig {
    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// The first invalid value and its allowed range.
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

/// A packet with messages, as described by its transport header.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The line on which it was received.
    pub line: Line,
    /// Sequence of its first message.
    pub first: Sequence,
    /// Sequence after its last message.
    pub next: Sequence,
    /// The message block; passed through unchanged.
    pub block: &'a [u8],
    /// Receive timestamp: determines which line was first.
    pub ts_recv: UnixNs,
    /// The venue's send time, where the transport has one; passed through.
    pub send_time: Option<UnixNs>,
    /// Current time, for deadlines.
    pub now: MonoNs,
}

/// Output of the arbiter, in order.
#[derive(Clone, Copy, Debug)]
pub enum Delivery<'a> {
    /// Messages `[from, until)` of a block that holds `[first, next)`: skip messages before `from`, stop at `until`.
    Packet {
        /// The line of this copy.
        line: Line,
        /// Sequence of the block's first message.
        first: Sequence,
        /// Sequence after the block's last message.
        next: Sequence,
        /// First message to deliver.
        from: Sequence,
        /// First message not to deliver; greater than `from`.
        until: Sequence,
        /// All messages of the packet.
        block: &'a [u8],
        /// Receive timestamp of this copy.
        ts_recv: UnixNs,
        /// The venue's send time of this copy.
        send_time: Option<UnixNs>,
    },
    /// A declared gap: these sequences will not be delivered.
    Gap(Gap),
}

/// The arbiter of one channel.
#[derive(Debug)]
pub struct Arbiter {
    /// Next sequence to deliver; [`NONE`] before the first packet.
    expected: Sequence,
    /// First sequence not known to exist. Equal to `expected` while there is no gap.
    frontier: Sequence,
    config: ArbiterConfig,
    lines: Lines,
    window: Window,
    declared: DeclaredGaps,
    recovery: Option<Recovery>,
    /// Messages that the peer has reported, beyond the frontier; `None` without a peer.
    reported_tail: Option<ReportedTail>,
    /// During catch-up: the limits that apply afterwards.
    catch_up_state: Option<CatchUp>,
    /// When the gap after all held packets (known from an announcement) was detected or last shrank.
    trailing_gap_since: MonoNs,
    /// Whether [`Self::start_silence_timers`] was called. Without it no silence alarm is due.
    has_silence_timers: bool,
    drops: DropCounts,
    statistics: ArbiterStatistics,
}

#[derive(Clone, Copy, Debug)]
struct CatchUp {
    /// Catch-up ends at this sequence: the first received one, or the last rejected one.
    until: Sequence,
    recovery: Option<RecoveryConfig>,
    when_full: WhenFull,
}

/// Statistics of the whole channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArbiterStatistics {
    /// Messages delivered.
    pub delivered_messages: u64,
    /// Gaps declared.
    pub gaps: u64,
    /// Messages in declared gaps.
    pub gap_messages: u64,
    /// Gaps declared early because the window was full.
    pub gaps_window_full: u64,
}

/// `expected` before the first packet. It lies beyond [`SEQUENCE_END`], so no packet continues it.
const NONE: Sequence = Sequence(u64::MAX);

/// Sequences from here on are rejected, so that no sum with a count can wrap.
pub const SEQUENCE_END: Sequence = Sequence(1 << 63);

/// Consecutive packets of one line, each continuing the previous one, that confirm a sequence jump.
pub const JUMP_CONFIRMATIONS: u8 = 3;

/// Catch-up fills the gap before `first_received`.
fn begin_catch_up(catch_up_state: &mut Option<CatchUp>, first_received: Sequence) {
    if let Some(catch_up_state) = catch_up_state.as_mut().filter(|catch_up_state| catch_up_state.until == Sequence(0)) {
        catch_up_state.until = first_received;
    }
}

impl Arbiter {
    /// Allocates all memory.
    ///
    /// # Panics
    /// If [`ArbiterConfig::check`] rejects the configuration.
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
            reported_tail: config.recovery.filter(|limits| limits.peer_attempts_max > 0).map(ReportedTail::new),
            catch_up_state,
            trailing_gap_since: MonoNs(0),
            has_silence_timers: false,
            drops: DropCounts::default(),
            statistics: ArbiterStatistics::default(),
            config,
        }
    }

    /// Starts the silence timers at `now`: a line that never sends counts as silent from here. Further calls have no
    /// effect until [`Self::stop_silence_timers`].
    #[inline]
    pub fn start_silence_timers(&mut self, now: MonoNs) {
        if !self.has_silence_timers {
            self.has_silence_timers = true;
            self.lines.venue_lines_mut().for_each(|line| line.silence_since = now);
        }
    }

    /// Stops the silence timers: the venue has ended its session.
    pub fn stop_silence_timers(&mut self) {
        self.has_silence_timers = false;
    }

    /// Begins a new session at `expected` (below [`SEQUENCE_END`]), or with the first packet if `None`. Call
    /// [`Self::finish`] before; otherwise held packets are discarded.
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
        if let Some(tail) = &mut self.reported_tail {
            tail.begin_session();
        }
    }

    /// Next sequence to be delivered; `None` before the first packet.
    #[must_use]
    pub fn expected(&self) -> Option<Sequence> {
        (self.expected != NONE).then_some(self.expected)
    }

    /// First sequence not known to exist; `None` before the first packet.
    #[must_use]
    pub fn frontier(&self) -> Option<Sequence> {
        (self.frontier != NONE).then_some(self.frontier)
    }

    /// Processes a packet: delivers what is in sequence, holds the rest.
    ///
    /// A packet that begins more than `sequence_jump_max` beyond the expected sequence is rejected. One forged or
    /// damaged sequence must not make a channel wait for, or declare, a false gap. The third consecutive packet of
    /// one line, each continuing the previous one, confirms the jump. The earlier two packets then lie in the gap,
    /// unless the caller has kept them and passes them in again (see [`Self::would_accept`]).
    ///
    /// # Errors
    /// Why no part of the packet was used. Counted here, in [`Self::drops`] and in the line's statistics.
    #[inline]
    pub fn accept(&mut self, arrival: Arrival<'_>, deliver: &mut impl FnMut(Delivery<'_>)) -> Result<(), DropReason> {
        let Some(line) = self.lines.get_mut(arrival.line) else {
            return self.refuse(DropReason::SourceUnexpected);
        };
        line.packets += 1;
        line.on_activity(arrival.now);
        let is_in_order = arrival.first == self.expected && self.frontier == self.expected;
        let count = arrival.next.0.wrapping_sub(arrival.first.0);
        let is_sound = arrival.first < arrival.next && arrival.next < SEQUENCE_END;
        if is_in_order && is_sound && count <= self.config.messages_per_packet_max {
            line.won_messages += count;
            self.expected = arrival.next;
            self.frontier = arrival.next;
            self.deliver_arrival(&arrival, arrival.first, arrival.next, deliver);
            if arrival.line == Line::RECOVERY {
                self.continue_reported_tail(&arrival);
            }
            return Ok(());
        }
        self.accept_out_of_order(arrival, deliver)
    }

    /// The peer has reported that it has every message before `next`. If no message arrives here for as long as a gap waits for another
    /// line, the missing ones are requested, like a gap. They are never declared: only the venue can make a gap known. A request that
    /// brings nothing is counted, and repeated after later reports, at growing intervals.
    pub fn note_reported(&mut self, next: Sequence, now: MonoNs) {
        if self.expected != NONE
            && self.frontier < next
            && next < SEQUENCE_END
            && let Some(tail) = &mut self.reported_tail
        {
            tail.report(next, self.expected, now);
        }
    }

    /// No source has anything more of the reported messages: the session has ended.
    pub fn forget_reported(&mut self) {
        if let Some(tail) = &mut self.reported_tail {
            tail.forget();
        }
    }

    /// A heartbeat or end of session on `line` announced `next` as the next sequence: all messages before `next`
    /// exist.
    ///
    /// # Errors
    /// Why it was rejected.
    pub fn announce(&mut self, line: Line, next: Sequence, now: MonoNs) -> Result<(), DropReason> {
        // The recovery line only answers our own requests, so its sequences need no confirmation.
        self.announce_confirmed_if(line != Line::RECOVERY, line, next, now)
    }

    /// As [`Self::announce`]; the caller decides whether a sequence far ahead needs confirmation. To some recovery lines others
    /// can send too.
    ///
    /// # Errors
    /// Why it was rejected.
    pub(crate) fn announce_confirmed_if(
        &mut self,
        needs_confirmation: bool,
        line: Line,
        next: Sequence,
        now: MonoNs,
    ) -> Result<(), DropReason> {
        let Some(statistics) = self.lines.get_mut(line) else {
            return self.refuse(DropReason::SourceUnexpected);
        };
        statistics.heartbeats += 1;
        statistics.on_activity(now);
        if next.0 == 0 || next >= SEQUENCE_END {
            return self.refuse(DropReason::SequenceInvalid);
        }
        if self.expected == NONE {
            self.expected = next;
            self.frontier = next;
            return Ok(());
        }
        self.end_catch_up_if_complete();
        if needs_confirmation && self.is_jump(next) && !self.confirm_jump(line, next, next) {
            return self.refuse(DropReason::SequenceJump);
        }
        if next > self.frontier {
            self.raise_frontier(next, now);
        }
        if line == Line::RECOVERY {
            self.recover(|recovery, gaps| recovery.server_answer_ended(gaps, now));
        }
        Ok(())
    }

    /// When [`Self::on_deadline`] must be called: for a gap, a request or a silent line.
    #[must_use]
    #[inline]
    pub fn next_deadline(&self) -> Option<MonoNs> {
        let gap = if self.frontier == self.expected { self.reported_tail_deadline() } else { self.gap_deadline() };
        let silence = self.silence_deadline();
        match (gap, silence) {
            (Some(gap), Some(silence)) => Some(gap.min(silence)),
            (gap, silence) => gap.or(silence),
        }
    }

    /// Processes expired deadlines. Drain the channel's lines before, or packets still in their sockets count as
    /// lost.
    pub fn on_deadline(&mut self, now: MonoNs, deliver: &mut impl FnMut(Delivery<'_>)) {
        self.raise_alarms(now);
        self.end_catch_up_if_complete();
        if let Some((tail, gaps)) = self.missing_reported_tail() {
            tail.on_deadline(&gaps, now);
        }
        self.recover(|recovery, gaps| recovery.on_deadline(gaps, now));
        while let Some(gap) = self.front_gap() {
            let given_up = match &self.recovery {
                Some(recovery) => recovery.given_up(gap),
                None => Some(gap).filter(|_| self.front_gap_due() <= now),
            };
            let Some(gap) = given_up else { return };
            self.declare(gap, deliver);
            self.recover(|recovery, gaps| recovery.on_deadline(gaps, now));
        }
    }

    /// Returns a due request to the peer or the retransmission server. Its answers come back through
    /// [`Self::accept`], on [`Line::RECOVERY`].
    pub fn poll_request(&mut self) -> Option<Request> {
        let of_gap = self.recovery.as_mut().and_then(Recovery::poll_request);
        of_gap.or_else(|| self.missing_reported_tail()?.0.poll_request())
    }

    /// The peer's answer to the request that began at `first` has ended, or the peer cannot be reached. The next
    /// deadline sends the next request.
    pub fn peer_answer_ended(&mut self, first: Sequence, now: MonoNs) {
        self.recover(|recovery, gaps| recovery.peer_answer_ended(first, gaps, now));
        if let Some((tail, gaps)) = self.missing_reported_tail() {
            tail.peer_answer_ended(first, &gaps, now);
        }
    }

    /// Input or session have ended: declares all missing messages and delivers all held ones.
    pub fn finish(&mut self, deliver: &mut impl FnMut(Delivery<'_>)) {
        self.forget_reported();
        while let Some(gap) = self.front_gap() {
            self.declare(gap, deliver);
        }
    }

    /// No message before `next` will arrive any more: declares all missing messages before it and delivers the held
    /// ones. Later sequences are unchanged.
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

    /// Statistics of one line.
    #[must_use]
    pub fn line_statistics(&self, line: Line) -> &LineStatistics {
        self.lines.get(line)
    }

    /// Swaps a line's lead histogram with `other` (from [`lead_histogram`]). Nothing is copied.
    pub fn exchange_lead(&mut self, line: Line, other: &mut Histogram<u64>) {
        if let Some(statistics) = self.lines.get_mut(line) {
            core::mem::swap(&mut statistics.lead_ns, other);
        }
    }

    /// Statistics of the channel.
    #[must_use]
    pub fn statistics(&self) -> &ArbiterStatistics {
        &self.statistics
    }

    /// Statistics of recovery, where configured.
    #[must_use]
    pub(crate) fn recovery_statistics(&self) -> Option<&RecoveryStatistics> {
        self.recovery.as_ref().map(Recovery::statistics)
    }

    /// Rejections: [`DropReason::Duplicate`] and [`DropReason::LateAfterGap`] count messages, also those of packets
    /// used in part. All other reasons count packets.
    #[must_use]
    pub fn drops(&self) -> &DropCounts {
        &self.drops
    }

    /// How often messages that the peer had reported came from no source.
    #[must_use]
    pub fn reports_given_up(&self) -> u64 {
        self.reported_tail.as_ref().map_or(0, ReportedTail::given_up_count)
    }

    /// Configuration in force. Its recovery limits and its policy for a full window change when catch-up ends.
    #[must_use]
    #[cfg(test)]
    pub fn config(&self) -> &ArbiterConfig {
        &self.config
    }

    /// Whether a request for missing messages is in flight.
    #[must_use]
    pub(crate) fn has_request(&self) -> bool {
        self.recovery.as_ref().is_some_and(Recovery::is_active)
    }

    /// Memory held, bytes; all allocated at the start.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.window.memory_bytes() + self.lines.memory_bytes() + self.declared.memory_bytes()
    }

    /// The reported tail while messages of it are missing here and no gap is known before it.
    fn missing_reported_tail(&mut self) -> Option<(&mut ReportedTail, PendingGaps<'_>)> {
        let Self { reported_tail, window, expected, frontier, config, .. } = self;
        let tail = reported_tail.as_mut().filter(|tail| frontier == expected && tail.is_missing_from(*expected))?;
        let gaps = PendingGaps::new(window, *expected, tail.bounds(), config);
        Some((tail, gaps))
    }

    #[inline]
    fn reported_tail_deadline(&self) -> Option<MonoNs> {
        let tail = self.reported_tail.as_ref().filter(|tail| tail.is_missing_from(self.expected))?;
        tail.next_deadline(&PendingGaps::new(&self.window, self.expected, tail.bounds(), &self.config))
    }

    /// A part of an answer was delivered: the rest of the reported tail is requested at once.
    #[cold]
    fn continue_reported_tail(&mut self, answer: &Arrival<'_>) {
        if let Some((tail, gaps)) = self.missing_reported_tail() {
            tail.on_answer(answer.first, answer.next, &gaps, answer.now);
        }
    }

    /// Handles every packet except one that continues a stream without gaps.
    fn accept_out_of_order(
        &mut self,
        arrival: Arrival<'_>,
        deliver: &mut impl FnMut(Delivery<'_>),
    ) -> Result<(), DropReason> {
        let Arrival { line, first, next, now, .. } = arrival;
        if first.0 == 0 || next <= first || next >= SEQUENCE_END {
            return self.refuse(DropReason::SequenceInvalid);
        }
        if next.0 - first.0 > self.config.messages_per_packet_max
            || arrival.block.len() > self.config.datagram_bytes_max
        {
            return self.refuse(DropReason::LengthMismatch);
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
            return self.refuse(DropReason::SequenceJump);
        }
        if first < self.expected {
            self.count_old(&arrival, first, self.expected);
        }
        while first > self.expected && self.window.is_full() && !self.window.covers(first, next) {
            match (self.config.when_full, self.front_gap()) {
                (WhenFull::DeclareGap, Some(gap)) => {
                    self.statistics.gaps_window_full += 1;
                    // Not beyond this packet, which may lie in the gap.
                    self.declare(gap.clipped_before(first), deliver);
                }
                _ => {
                    self.raise_frontier(next.max(self.frontier), now);
                    if let Some(catch_up_state) = &mut self.catch_up_state {
                        catch_up_state.until = self.frontier;
                    }
                    return self.refuse(DropReason::WindowFull);
                }
            }
        }
        // Making room may have delivered part or all of this packet's messages.
        if next <= self.expected {
            return self.refuse_old(&arrival);
        }
        let outcome = if first > self.expected { self.hold(&arrival) } else { self.merge(&arrival, deliver) };
        self.recover(|recovery, gaps| recovery.on_arrival(first, next, line == Line::RECOVERY, gaps, now));
        if line == Line::RECOVERY {
            self.continue_reported_tail(&arrival);
        }
        outcome
    }

    /// Delivers a packet that begins at or before the expected sequence and ends after it, together with all
    /// connected held packets. For a message in both, the held copy is used, since it arrived first.
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
        self.count_won(arrival.line, added)
    }

    /// Holds a packet that begins after the expected sequence.
    fn hold(&mut self, arrival: &Arrival<'_>) -> Result<(), DropReason> {
        let Self { window, lines, drops, .. } = self;
        let added = window.hold(arrival, arrival.first, |overlap| {
            drops.count_many(DropReason::Duplicate, overlap.count);
            lines.record_duplicate_of_held(arrival.line, arrival.ts_recv, overlap);
        });
        if self.frontier == self.expected {
            begin_catch_up(&mut self.catch_up_state, arrival.first);
        }
        if added > 0 && self.window.end() == Some(arrival.next) {
            self.trailing_gap_since = arrival.now;
        }
        self.frontier = self.frontier.max(arrival.next);
        self.count_won(arrival.line, added)
    }

    fn count_won(&mut self, line: Line, added: u64) -> Result<(), DropReason> {
        let Some(statistics) = self.lines.get_mut(line) else { return Err(DropReason::SourceUnexpected) };
        statistics.won_messages += added;
        if added == 0 { Err(DropReason::Duplicate) } else { Ok(()) }
    }

    /// Rejects a packet that lies entirely before the expected sequence.
    fn refuse_old(&mut self, arrival: &Arrival<'_>) -> Result<(), DropReason> {
        Err(self.count_old(arrival, arrival.first, arrival.next))
    }

    /// Counts messages `[first, next)`, all before the expected sequence, as duplicates or as late.
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
            self.lines.record_duplicate(arrival.line, first, next, duplicate, arrival.ts_recv);
            DropReason::Duplicate
        } else {
            DropReason::LateAfterGap
        }
    }

    /// Whether `first` is so far ahead that it needs confirmation.
    fn is_jump(&self, first: Sequence) -> bool {
        first.0.saturating_sub(self.frontier.0.max(self.expected.0)) > self.config.sequence_jump_max
    }

    /// Counts consecutive packets of one line that continue each other. Returns whether they confirm the jump.
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

    /// Whether a packet of `line` beginning at `first` would be accepted, however far ahead.
    #[must_use]
    pub fn would_accept(&self, line: Line, first: Sequence) -> bool {
        let line = self.lines.get(line);
        let arrival_number = line.arrival_number().wrapping_add(1);
        let confirms = |jump: JumpCandidate| {
            jump.is_continued(first, arrival_number) && jump.confirmations + 1 >= JUMP_CONFIRMATIONS
        };
        !self.is_jump(first) || line.jump.is_some_and(confirms)
    }

    /// Accepts a confirmed jump: all messages before `next` exist, however far ahead.
    pub fn accept_jump(&mut self, next: Sequence, now: MonoNs) {
        if self.expected != NONE && next < SEQUENCE_END && next > self.frontier {
            self.raise_frontier(next, now);
        }
    }

    /// Corrects the counters for a packet rejected as a jump that will be accepted again.
    pub fn uncount_jump(&mut self, line: Line) {
        self.drops.uncount(DropReason::SequenceJump);
        if let Some(line) = self.lines.get_mut(line) {
            line.packets = line.packets.saturating_sub(1);
        }
    }

    fn refuse(&mut self, reason: DropReason) -> Result<(), DropReason> {
        self.drops.count(reason);
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
        self.lines.record_delivery(arrival.line, from, until, arrival.ts_recv);
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

    /// Delivers the first fragment, which begins at the expected sequence.
    fn deliver_front(&mut self, deliver: &mut impl FnMut(Delivery<'_>)) {
        let Some((fragment, slot, block)) = self.window.pop_front() else { return };
        self.expected = fragment.until;
        self.statistics.delivered_messages += fragment.until.0 - fragment.from.0;
        self.lines.record_delivery(slot.line, fragment.from, fragment.until, slot.ts_recv);
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

    /// Declares a gap that begins at the expected sequence, and delivers the packets that follow it.
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

    /// The gap that blocks delivery.
    fn front_gap(&self) -> Option<Gap> {
        Gap::new(self.expected, self.window.front().map_or(self.frontier, |held| held.from))
    }

    /// When the wait for other lines to fill the first gap ends.
    fn front_gap_due(&self) -> MonoNs {
        let since = self.window.front().map_or(self.trailing_gap_since, |held| held.gap_since);
        since.plus(self.config.gap_timeout_ns)
    }

    fn gap_deadline(&self) -> Option<MonoNs> {
        let Some(recovery) = &self.recovery else { return Some(self.front_gap_due()) };
        let is_given_up = self.front_gap().is_some_and(|gap| recovery.given_up(gap).is_some());
        if is_given_up { Some(recovery.given_up_at()) } else { recovery.next_deadline(&self.pending_gaps()) }
    }

    fn pending_gaps(&self) -> PendingGaps<'_> {
        PendingGaps::new(&self.window, self.expected, (self.frontier, self.trailing_gap_since), &self.config)
    }

    /// Runs `work` on recovery with the pending gaps.
    fn recover(&mut self, work: impl FnOnce(&mut Recovery, &PendingGaps<'_>)) {
        let Self { recovery, window, expected, frontier, trailing_gap_since, config, .. } = self;
        if let Some(recovery) = recovery {
            work(recovery, &PendingGaps::new(window, *expected, (*frontier, *trailing_gap_since), config));
        }
    }

    /// Ends catch-up once every message before its end is delivered or declared. Later gaps follow the normal rules.
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

    /// Restarts the first gap's timer: a line or the server is still filling the gap.
    fn restart_front_gap_timer(&mut self, now: MonoNs) {
        match self.window.front_mut() {
            Some(held) => held.gap_since = now,
            None => self.trailing_gap_since = now,
        }
    }

    fn raise_frontier(&mut self, next: Sequence, now: MonoNs) {
        if self.frontier == self.expected {
            begin_catch_up(&mut self.catch_up_state, next);
        }
        if self.window.end().unwrap_or(self.expected) >= self.frontier {
            self.trailing_gap_since = now;
        }
        self.frontier = next;
    }

    fn silence_deadline(&self) -> Option<MonoNs> {
        let silence_ns = self.config.line_silence_ns.filter(|_| self.has_silence_timers)?;
        self.lines.venue_lines().filter_map(|line| line.silence_deadline(silence_ns)).min()
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
