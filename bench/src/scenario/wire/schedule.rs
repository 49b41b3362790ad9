//! When each packet is to be sent: bursts at equal distances, each line at its own skew.

/// Times of one run's packets, ns after its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) packets_per_s: u64,
    /// Packets that are due at the same moment.
    pub(super) burst: u64,
    pub(super) lines: usize,
    /// How much later each line is than the line before it.
    pub(super) skew_ns: u64,
    pub(super) packet_count: u64,
}

/// One send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) at_ns: u64,
    pub(super) packet: u64,
    pub(super) line: usize,
}

impl Schedule {
    /// When that packet is due on the first line.
    fn due_ns(&self, packet: u64) -> u64 {
        let burst_start = packet / self.burst * self.burst;
        u64::try_from(u128::from(burst_start) * 1_000_000_000 / u128::from(self.packets_per_s)).unwrap_or(u64::MAX)
    }

    /// All sends in the order of their times; at the same time, the first line first.
    pub(super) fn sends(&self) -> impl Iterator<Item = Due> + use<> {
        let schedule = *self;
        let mut next = vec![0; self.lines];
        std::iter::from_fn(move || {
            let due = |(line, packet): (usize, &u64)| Due {
                at_ns: schedule.due_ns(*packet) + line as u64 * schedule.skew_ns,
                packet: *packet,
                line,
            };
            let unsent = next.iter().enumerate().filter(|(_, packet)| **packet < schedule.packet_count);
            let first = unsent.map(due).min_by_key(|due| (due.at_ns, due.line))?;
            next[first.line] += 1;
            Some(first)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sends(schedule: Schedule) -> Vec<(u64, u64, usize)> {
        schedule.sends().map(|due| (due.at_ns, due.packet, due.line)).collect()
    }

    #[test]
    fn bursts_keep_the_rate() {
        let schedule = Schedule { packets_per_s: 1_000_000, burst: 2, lines: 1, skew_ns: 0, packet_count: 5 };
        assert_eq!(sends(schedule), [(0, 0, 0), (0, 1, 0), (2_000, 2, 0), (2_000, 3, 0), (4_000, 4, 0)]);
    }

    #[test]
    fn the_second_line_brings_every_packet_later() {
        let schedule = Schedule { packets_per_s: 1_000_000, burst: 1, lines: 2, skew_ns: 1_500, packet_count: 3 };
        let expected = [(0, 0, 0), (1_000, 1, 0), (1_500, 0, 1), (2_000, 2, 0), (2_500, 1, 1), (3_500, 2, 1)];
        assert_eq!(sends(schedule), expected);
        let same_time = Schedule { skew_ns: 1_000, packet_count: 2, ..schedule };
        assert_eq!(sends(same_time), [(0, 0, 0), (1_000, 1, 0), (1_000, 0, 1), (2_000, 1, 1)]);
    }
}
