//! What each line brought, and by how much the first was ahead of the others.

use hdrhistogram::Histogram;

use crate::{
    identity::{Line, Sequence},
    time::{MonoNs, UnixNs},
};

/// Figures of one line.
#[derive(Clone, Debug)]
pub struct LineStatistics {
    /// Packets with messages, refused ones included.
    pub packets: u64,
    /// Heartbeats and other packets that only tell the next sequence.
    pub heartbeats: u64,
    /// Messages that this line was first to bring, judged by receive stamps.
    pub won_messages: u64,
    /// Messages that another line, or this one, had brought before.
    pub duplicate_messages: u64,
    /// Messages that came after their gap had been declared.
    pub late_messages: u64,
    /// Packets refused for what their numbers said, or for want of room.
    pub refused_packets: u64,
    /// How often the line has gone silent.
    pub silences: u64,
    /// Whether the line is silent now: its alarm.
    pub silent: bool,
    /// When it last brought anything.
    pub last_arrival: Option<MonoNs>,
    /// For each message that this line won and another line brought too: how much earlier it was, ns, held at
    /// [`LEAD_NS_MAX`], to two digits.
    pub lead_ns: Histogram<u64>,
    /// Duplicates whose first copy was too long ago to compare.
    pub lead_unknown_messages: u64,
    pub(super) jump: Option<JumpCandidate>,
    pub(super) silence_since: MonoNs,
    pub(super) is_configured: bool,
}

/// Longest lead that is told apart, 1 s.
pub const LEAD_NS_MAX: u64 = 1_000_000_000;

/// An empty histogram for [`LineStatistics::lead_ns`].
#[must_use]
pub fn lead_histogram() -> Histogram<u64> {
    Histogram::new_with_max(LEAD_NS_MAX, LEAD_DIGITS).expect("bounds from 1 to LEAD_NS_MAX with two digits are legal")
}

const LEAD_DIGITS: u8 = 2;

/// Packets of one line that continue each other at an incredible place.
#[derive(Clone, Copy, Debug)]
pub(super) struct JumpCandidate {
    /// Where the next one would have to begin.
    pub(super) next: Sequence,
    /// How many have come.
    pub(super) confirmations: u8,
    /// Number of the line's latest packet or heartbeat among them: any other in between ends the row.
    pub(super) arrival_number: u64,
}

impl JumpCandidate {
    /// Whether what begins at `first` and is the line's arrival of that number continues it, with nothing between.
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
            refused_packets: 0,
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

    /// Something came on the line.
    pub(super) fn touch(&mut self, now: MonoNs) {
        self.last_arrival = Some(now);
        self.silent = false;
    }

    pub(super) fn arrival_number(&self) -> u64 {
        self.packets.wrapping_add(self.heartbeats)
    }

    pub(super) fn silence_deadline(&self, silence_ns: u64) -> Option<MonoNs> {
        let watched = self.is_configured && !self.silent;
        watched.then(|| self.last_arrival.unwrap_or_default().max(self.silence_since).plus(silence_ns))
    }
}

/// All lines of a channel, and who brought the latest messages first.
#[derive(Debug)]
pub(super) struct Lines {
    statistics: [LineStatistics; Line::COUNT_MAX],
    /// A ring of the latest deliveries, ascending by sequence.
    won: Box<[DeliveredRange]>,
    /// Deliveries so far; the latest lies at `(count - 1) & mask`.
    history_count: u64,
    /// Per line: the delivery where its latest duplicate was found, since duplicates come in order too.
    cursors: [u64; Line::COUNT_MAX],
}

/// One delivery: `[first, next)` came first on `line`, at `ts_recv`.
#[derive(Clone, Copy, Debug, Default)]
struct DeliveredRange {
    first: Sequence,
    next: Sequence,
    ts_recv: UnixNs,
    line: Line,
}

impl Lines {
    /// `remembered`: how many deliveries a slower line may lag behind and still be compared.
    pub(super) fn new(lines: u8, remembered: usize) -> Self {
        Self {
            statistics: core::array::from_fn(|index| {
                LineStatistics::new(index < usize::from(lines) || index == usize::from(Line::RECOVERY.0))
            }),
            won: vec![DeliveredRange::default(); remembered.next_power_of_two()].into_boxed_slice(),
            history_count: 0,
            cursors: [0; Line::COUNT_MAX],
        }
    }

    /// A new numbering: earlier deliveries say nothing about it.
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

    /// Lines whose silence is watched: all but the recovery line.
    pub(super) fn watched(&self) -> impl Iterator<Item = &LineStatistics> {
        self.statistics.iter().take(usize::from(Line::RECOVERY.0)).filter(|line| line.is_configured)
    }

    pub(super) fn venue_lines_mut(&mut self) -> impl Iterator<Item = &mut LineStatistics> {
        self.statistics.iter_mut().take(usize::from(Line::RECOVERY.0)).filter(|line| line.is_configured)
    }

    /// `[first, next)` were delivered, brought by `line`. Ranges ascend from call to call.
    pub(super) fn delivered(&mut self, line: Line, first: Sequence, next: Sequence, ts_recv: UnixNs) {
        let index = self.index(self.history_count);
        if let Some(entry) = self.won.get_mut(index) {
            *entry = DeliveredRange { first, next, ts_recv, line };
        }
        self.history_count += 1;
    }

    /// `line` brought `[first, next)`, of which `count` messages had been delivered and the others declared missing.
    pub(super) fn duplicate(&mut self, line: Line, first: Sequence, next: Sequence, count: u64, ts_recv: UnixNs) {
        if let Some(statistics) = self.get_mut(line) {
            statistics.duplicate_messages += count;
        }
        let mut position = self.find(line, first);
        let mut compared = 0;
        while position < self.history_count {
            let index = self.index(position);
            let Some(won) = self.won.get(index).copied() else { break };
            if won.first >= next {
                break;
            }
            let overlap = won.next.min(next).0.saturating_sub(won.first.max(first).0);
            compared += overlap;
            let later_copy_won = self.compare(line, ts_recv, won.line, won.ts_recv, overlap);
            if later_copy_won
                && overlap == won.next.0 - won.first.0
                && let Some(entry) = self.won.get_mut(index)
            {
                *entry = DeliveredRange { ts_recv, line, ..won };
            }
            if won.next >= next {
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

    /// `line` brought `count` messages that are held, unexpected as yet, from another packet.
    pub(super) fn record_duplicate_of_held(&mut self, line: Line, ts_recv: UnixNs, held: super::window::Overlap) {
        if let Some(statistics) = self.get_mut(line) {
            statistics.duplicate_messages += held.count;
        }
        self.compare(line, ts_recv, held.line, held.ts_recv, held.count);
    }

    /// Judges two copies of `count` messages by their stamps. True when the one drained later had come first.
    fn compare(&mut self, later: Line, later_ts: UnixNs, earlier: Line, earlier_ts: UnixNs, count: u64) -> bool {
        // An answer to a request is no competitor, and a line is none to itself.
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

    /// The first remembered delivery that ends after `first`.
    fn find(&self, line: Line, first: Sequence) -> u64 {
        let oldest = self.history_count.saturating_sub(self.won.len() as u64);
        let ends_after = |position: u64| self.won.get(self.index(position)).is_some_and(|won| won.next > first);
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
        usize::try_from(position & (self.won.len() as u64 - 1)).unwrap_or(0)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let histograms = self.statistics.iter().map(|line| line.lead_ns.distinct_values() * size_of::<u64>());
        size_of_val(&*self.won) + histograms.sum::<usize>()
    }
}
