//! Statistics per line, and the lead of the first line over the others.

use hdrhistogram::Histogram;

use crate::{
    identity::{Line, Sequence},
    time::{MonoNs, UnixNs},
};

/// Statistics of one line.
#[derive(Clone, Debug)]
pub struct LineStatistics {
    /// Packets with messages, rejected ones included.
    pub packets: u64,
    /// Heartbeats and other packets that only announce the next sequence.
    pub heartbeats: u64,
    /// Messages that this line delivered first, by receive timestamp.
    pub won_messages: u64,
    /// Messages that arrived before on another line, or on this one.
    pub duplicate_messages: u64,
    /// Messages received after their gap was declared.
    pub late_messages: u64,
    /// How often the line became silent.
    pub silences: u64,
    /// Whether the line is silent now: its alarm.
    pub silent: bool,
    /// Time of the latest packet or heartbeat.
    pub last_arrival: Option<MonoNs>,
    /// For each message that this line delivered first and another line delivered too: the lead in ns, clamped to
    /// [`LEAD_NS_MAX`], with two significant digits.
    pub lead_ns: Histogram<u64>,
    /// Duplicates whose first copy is no longer in the delivery history.
    pub lead_unknown_messages: u64,
    pub(super) jump: Option<JumpCandidate>,
    pub(super) silence_since: MonoNs,
    pub(super) is_configured: bool,
}

/// Longest lead that is distinguished, 1 s.
pub(crate) const LEAD_NS_MAX: u64 = 1_000_000_000;

/// An empty histogram for [`LineStatistics::lead_ns`].
#[must_use]
pub fn lead_histogram() -> Histogram<u64> {
    Histogram::new_with_max(LEAD_NS_MAX, LEAD_DIGITS).expect("bounds from 1 to LEAD_NS_MAX with two digits are legal")
}

const LEAD_DIGITS: u8 = 2;

/// Run of packets of one line that continue each other after a jump.
#[derive(Clone, Copy, Debug)]
pub(super) struct JumpCandidate {
    /// Expected start of the next packet of the run.
    pub(super) next: Sequence,
    /// Packets in the run.
    pub(super) confirmations: u8,
    /// Number of the line's latest arrival in the run. Any other arrival in between ends the run.
    pub(super) arrival_number: u64,
}

impl JumpCandidate {
    /// Whether an arrival with that number and beginning at `first` continues the run directly.
    pub(super) fn is_continued(&self, first: Sequence, arrival_number: u64) -> bool {
        self.next == first && self.arrival_number.wrapping_add(1) == arrival_number
    }
}

impl LineStatistics {
    pub(super) fn new(is_configured: bool) -> Self {
        let lead_ns = if is_configured {
            lead_histogram()
        } else {
            Histogram::new_with_max(2, LEAD_DIGITS).expect("bounds from 1 to 2 are legal")
        };
        Self {
            packets: 0,
            heartbeats: 0,
            won_messages: 0,
            duplicate_messages: 0,
            late_messages: 0,
            silences: 0,
            silent: false,
            last_arrival: None,
            lead_ns,
            lead_unknown_messages: 0,
            jump: None,
            silence_since: MonoNs(0),
            is_configured,
        }
    }

    /// Records an arrival on the line.
    pub(super) fn on_activity(&mut self, now: MonoNs) {
        self.last_arrival = Some(now);
        self.silent = false;
    }

    pub(super) fn arrival_number(&self) -> u64 {
        self.packets.wrapping_add(self.heartbeats)
    }

    pub(super) fn silence_deadline(&self, silence_ns: u64) -> Option<MonoNs> {
        let is_monitored = self.is_configured && !self.silent;
        is_monitored.then(|| self.last_arrival.unwrap_or_default().max(self.silence_since).plus(silence_ns))
    }
}

/// All lines of a channel, and which line delivered the latest messages first.
#[derive(Debug)]
pub(super) struct Lines {
    statistics: [LineStatistics; Line::COUNT_MAX],
    /// Ring of the latest deliveries, ascending by sequence.
    history: Box<[DeliveredRange]>,
    /// Number of deliveries so far; the latest lies at `(count - 1) & mask`.
    history_count: u64,
    /// Per line: the delivery that matched its latest duplicate. Duplicates arrive in order too, so the next search
    /// starts there.
    cursors: [u64; Line::COUNT_MAX],
}

/// One delivery: `[first, next)` arrived first on `line`, at `ts_recv`.
#[derive(Clone, Copy, Debug, Default)]
struct DeliveredRange {
    first: Sequence,
    next: Sequence,
    ts_recv: UnixNs,
    line: Line,
}

impl Lines {
    /// `history_len`: how many deliveries a slower line may lag behind and still be compared.
    pub(super) fn new(lines: u8, history_len: usize) -> Self {
        Self {
            statistics: core::array::from_fn(|index| {
                LineStatistics::new(index < usize::from(lines) || index == usize::from(Line::RECOVERY.0))
            }),
            history: vec![DeliveredRange::default(); history_len.next_power_of_two()].into_boxed_slice(),
            history_count: 0,
            cursors: [0; Line::COUNT_MAX],
        }
    }

    /// A new session: clears the history, since its sequences belong to the previous session.
    pub(super) fn begin_session(&mut self) {
        self.history_count = 0;
        self.cursors = [0; Line::COUNT_MAX];
        for line in &mut self.statistics {
            line.jump = None;
        }
    }

    pub(super) fn get(&self, line: Line) -> &LineStatistics {
        let [first, ..] = &self.statistics;
        self.statistics.get(usize::from(line.0)).unwrap_or(first)
    }

    /// The line, if the channel has it.
    pub(super) fn get_mut(&mut self, line: Line) -> Option<&mut LineStatistics> {
        self.statistics.get_mut(usize::from(line.0)).filter(|line| line.is_configured)
    }

    /// Lines with silence monitoring: all but the recovery line.
    pub(super) fn venue_lines(&self) -> impl Iterator<Item = &LineStatistics> {
        self.statistics.iter().take(usize::from(Line::RECOVERY.0)).filter(|line| line.is_configured)
    }

    pub(super) fn venue_lines_mut(&mut self) -> impl Iterator<Item = &mut LineStatistics> {
        self.statistics.iter_mut().take(usize::from(Line::RECOVERY.0)).filter(|line| line.is_configured)
    }

    /// Records that `[first, next)` of `line` were delivered. Ranges ascend from call to call.
    pub(super) fn record_delivery(&mut self, line: Line, first: Sequence, next: Sequence, ts_recv: UnixNs) {
        let index = self.index(self.history_count);
        if let Some(entry) = self.history.get_mut(index) {
            *entry = DeliveredRange { first, next, ts_recv, line };
        }
        self.history_count += 1;
    }

    /// Records that `[first, next)` arrived on `line` again: `count` messages had been delivered, the others
    /// declared.
    pub(super) fn record_duplicate(
        &mut self,
        line: Line,
        first: Sequence,
        next: Sequence,
        count: u64,
        ts_recv: UnixNs,
    ) {
        if let Some(statistics) = self.get_mut(line) {
            statistics.duplicate_messages += count;
        }
        let mut position = self.find(line, first);
        let mut compared = 0;
        while position < self.history_count {
            let index = self.index(position);
            let Some(delivered) = self.history.get(index).copied() else { break };
            if delivered.first >= next {
                break;
            }
            let overlap = delivered.next.min(next).0.saturating_sub(delivered.first.max(first).0);
            compared += overlap;
            let later_copy_won = self.record_lead(line, ts_recv, delivered.line, delivered.ts_recv, overlap);
            if later_copy_won
                && overlap == delivered.next.0 - delivered.first.0
                && let Some(entry) = self.history.get_mut(index)
            {
                *entry = DeliveredRange { ts_recv, line, ..delivered };
            }
            if delivered.next >= next {
                break;
            }
            position += 1;
        }
        if let Some(cursor) = self.cursors.get_mut(usize::from(line.0)) {
            *cursor = position;
        }
        if let Some(statistics) = self.get_mut(line) {
            statistics.lead_unknown_messages += count.saturating_sub(compared);
        }
    }

    /// Records that `count` messages of `line` are already held from another packet.
    pub(super) fn record_duplicate_of_held(&mut self, line: Line, ts_recv: UnixNs, held: super::window::Overlap) {
        if let Some(statistics) = self.get_mut(line) {
            statistics.duplicate_messages += held.count;
        }
        self.record_lead(line, ts_recv, held.line, held.ts_recv, held.count);
    }

    /// Compares two copies of `count` messages by timestamp. Returns `true` if the copy drained later arrived first.
    fn record_lead(&mut self, later: Line, later_ts: UnixNs, earlier: Line, earlier_ts: UnixNs, count: u64) -> bool {
        // An answer to a request does not compete, and a line does not compete with itself.
        if later == earlier || later == Line::RECOVERY || earlier == Line::RECOVERY {
            return false;
        }
        let later_copy_won = later_ts < earlier_ts;
        let (winner, lead_ns) =
            if later_copy_won { (later, earlier_ts.0 - later_ts.0) } else { (earlier, later_ts.0 - earlier_ts.0) };
        if let Some(winner) = self.get_mut(winner) {
            winner.lead_ns.saturating_record_n(lead_ns, count);
        }
        if later_copy_won {
            if let Some(statistics) = self.get_mut(later) {
                statistics.won_messages += count;
                statistics.duplicate_messages = statistics.duplicate_messages.saturating_sub(count);
            }
            if let Some(statistics) = self.get_mut(earlier) {
                statistics.won_messages = statistics.won_messages.saturating_sub(count);
                statistics.duplicate_messages += count;
            }
        }
        later_copy_won
    }

    /// The first delivery in the history that ends after `first`.
    fn find(&self, line: Line, first: Sequence) -> u64 {
        let oldest = self.history_count.saturating_sub(self.history.len() as u64);
        let ends_after =
            |position: u64| self.history.get(self.index(position)).is_some_and(|delivered| delivered.next > first);
        let mut position = self.cursors.get(usize::from(line.0)).copied().unwrap_or(0).max(oldest);
        if position > oldest && ends_after(position - 1) {
            let (mut low, mut high) = (oldest, position);
            while low < high {
                let middle = low + (high - low) / 2;
                if ends_after(middle) { high = middle } else { low = middle + 1 }
            }
            return low;
        }
        while position < self.history_count && !ends_after(position) {
            position += 1;
        }
        position
    }

    fn index(&self, position: u64) -> usize {
        usize::try_from(position & (self.history.len() as u64 - 1)).unwrap_or(0)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let histograms = self.statistics.iter().map(|line| line.lead_ns.distinct_values() * size_of::<u64>());
        size_of_val(&*self.history) + histograms.sum::<usize>()
    }
}
