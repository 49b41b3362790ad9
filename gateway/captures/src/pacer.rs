//! Computes when each packet is due. Targets lie on an absolute time scale, not relative to the previous packet, so
//! that delays do not add up.

/// Pace of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// The capture's own spacing, divided by this factor; above 0.
    Original(f64),
    /// Packets per second; above 0.
    Rate(f64),
    /// Evenly spaced, with a rate that increases step by step.
    Rising(Rising),
    /// A rate with a burst at the beginning of each period.
    Bursts(Bursts),
    /// As fast as possible.
    Max,
}

/// A rate with a burst at the beginning of each period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// Packets per second between bursts; above 0.
    pub rate: f64,
    /// Packets per second in a burst; above 0.
    pub burst_rate: f64,
    /// Duration of a burst, ns; above 0.
    pub burst_ns: u64,
    /// From the beginning of one burst to the beginning of the next, ns; above `burst_ns`.
    pub period_ns: u64,
}

impl Bursts {
    /// When the packet of that number is due, ns after the start.
    fn offset_ns(&self, number: u64) -> u64 {
        let [rate, burst_rate] = [self.rate, self.burst_rate].map(|per_second| per_second / 1e9);
        let burst_packets = packets_in(self.burst_ns, burst_rate);
        let period_packets = burst_packets + packets_in(self.period_ns - self.burst_ns, rate);
        let (period, within) = (number / period_packets, number % period_packets);
        let within_ns = match within.checked_sub(burst_packets) {
            None => scaled(within, burst_rate),
            Some(after_burst) => self.burst_ns + scaled(after_burst, rate),
        };
        period.saturating_mul(self.period_ns).saturating_add(within_ns)
    }
}

/// Packets in that time at a rate per ns; at least one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "both operands are positive and the cast saturates"
)]
fn packets_in(time_ns: u64, per_ns: f64) -> u64 {
    ((time_ns as f64 * per_ns).round() as u64).max(1)
}

/// A rate that increases step by step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rising {
    /// Packets per second in the first step; above 0.
    pub rate: f64,
    /// Ratio of each step's rate to the previous one; above 1.
    pub factor: f64,
    /// Duration of a step, ns; above 0.
    pub step_ns: u64,
}

impl Rising {
    /// Packets per second in a step, counted from 0.
    #[must_use]
    pub fn rate_at_step(&self, step: u32) -> f64 {
        self.rate * self.factor.powi(i32::try_from(step).unwrap_or(i32::MAX))
    }
}

/// Computes the target of each packet.
#[derive(Clone, Debug)]
pub struct Pacer {
    pace: Pace,
    start_ns: u64,
    /// Capture time that corresponds to the start.
    origin_ns: Option<u64>,
    /// Packets so far.
    count: u64,
    /// The last target, ns after the start.
    last_ns: u64,
    /// Added to every target: duration of the earlier rounds, ns.
    round_offset_ns: u64,
    /// The current step of a rate ramp: its index, its beginning in ns after the start, and the packets before it.
    step: (u32, u64, u64),
}

impl Pacer {
    /// The first packet is due at `start_ns`, on the clock that the caller uses for waiting.
    #[must_use]
    pub fn new(pace: Pace, start_ns: u64) -> Self {
        Self { pace, start_ns, origin_ns: None, count: 0, last_ns: 0, round_offset_ns: 0, step: (0, 0, 0) }
    }

    /// When the next packet, captured at `time_ns`, is due; `None` if it may be sent at once. If capture times go
    /// backwards, the packet is due at the previous target.
    pub fn target_ns(&mut self, time_ns: u64) -> Option<u64> {
        let offset_ns = match self.pace {
            Pace::Max => return None,
            Pace::Rate(per_second) => scaled(self.count, per_second / 1e9),
            Pace::Bursts(bursts) => bursts.offset_ns(self.count),
            Pace::Rising(ramp) => {
                let (step, step_start_ns, before) = self.step;
                let within_ns = scaled(self.count - before, ramp.rate_at_step(step) / 1e9);
                if within_ns >= ramp.step_ns {
                    self.step = (step + 1, step_start_ns + ramp.step_ns, self.count);
                }
                step_start_ns.saturating_add(within_ns.min(ramp.step_ns))
            }
            Pace::Original(speed) => {
                let origin_ns = *self.origin_ns.get_or_insert(time_ns);
                self.round_offset_ns.saturating_add(scaled(time_ns.saturating_sub(origin_ns), speed))
            }
        };
        self.count += 1;
        self.last_ns = self.last_ns.max(offset_ns);
        Some(self.start_ns.saturating_add(self.last_ns))
    }

    /// Starts another round over the capture: its first packet follows the last one at the mean interval of the round.
    pub fn begin_round(&mut self, packets_per_round: u64) {
        let round_ns = self.last_ns.saturating_sub(self.round_offset_ns);
        let mean_ns = round_ns / packets_per_round.saturating_sub(1).max(1);
        self.round_offset_ns = self.last_ns.saturating_add(mean_ns);
        self.origin_ns = None;
    }
}

/// `value / divisor`, exact to the nanosecond below 104 days.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "both operands are positive and the cast saturates"
)]
fn scaled(value: u64, divisor: f64) -> u64 {
    if divisor == 1.0 { value } else { (value as f64 / divisor).round() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(pacer: &mut Pacer, times_ns: &[u64]) -> Vec<u64> {
        times_ns.iter().filter_map(|time_ns| pacer.target_ns(*time_ns)).collect()
    }

    #[test]
    fn original_spacing_is_kept_to_the_nanosecond() {
        let day_ns = 1_548_849_600_000_000_001;
        let mut pacer = Pacer::new(Pace::Original(1.0), 50);
        assert_eq!(
            targets(&mut pacer, &[day_ns, day_ns + 1, day_ns + 86_400_000_000_007]),
            [50, 51, 86_400_000_000_057]
        );
    }

    #[test]
    fn a_speed_divides_the_intervals_between_packets() {
        let mut pacer = Pacer::new(Pace::Original(4.0), 0);
        assert_eq!(targets(&mut pacer, &[1_000, 1_400, 2_000]), [0, 100, 250]);
        let mut pacer = Pacer::new(Pace::Original(0.5), 0);
        assert_eq!(targets(&mut pacer, &[1_000, 1_400]), [0, 800]);
    }

    #[test]
    fn a_rate_does_not_drift() {
        let mut pacer = Pacer::new(Pace::Rate(3.0), 0);
        let last = (0..=3_000_000).filter_map(|_| pacer.target_ns(7)).last();
        assert_eq!(last, Some(1_000_000_000_000_000), "three million thirds of a second");
    }

    #[test]
    fn a_rate_ramp_increases_at_each_step() {
        let ramp = Rising { rate: 10.0, factor: 2.0, step_ns: 1_000_000_000 };
        let mut pacer = Pacer::new(Pace::Rising(ramp), 0);
        let targets = targets(&mut pacer, &[7; 72]);
        assert!(targets.is_sorted());
        let in_step = |step: u64| targets.iter().filter(|at_ns| **at_ns / 1_000_000_000 == step).count();
        assert_eq!([0, 1, 2].map(in_step), [10, 20, 40]);
        assert_eq!(ramp.rate_at_step(2), 40.0);
    }

    #[test]
    fn each_period_begins_with_a_burst() {
        let bursts = Bursts { rate: 100.0, burst_rate: 1_000.0, burst_ns: 10_000_000, period_ns: 100_000_000 };
        let mut pacer = Pacer::new(Pace::Bursts(bursts), 5);
        // 10 packets in 10 ms, then 9 in 90 ms.
        let targets = targets(&mut pacer, &[7; 38]);
        assert_eq!(targets[..3], [5, 1_000_005, 2_000_005]);
        assert_eq!(targets[9..12], [9_000_005, 10_000_005, 20_000_005]);
        assert_eq!(targets[18..20], [90_000_005, 100_000_005]);
        assert!(targets.is_sorted());
        assert_eq!(targets.iter().filter(|at_ns| **at_ns >= 100_000_005).count(), 19);
    }

    #[test]
    fn backward_capture_times_do_not_move_the_target() {
        let mut pacer = Pacer::new(Pace::Original(1.0), 0);
        assert_eq!(targets(&mut pacer, &[100, 300, 200, 400]), [0, 200, 200, 300]);
    }

    #[test]
    fn rounds_follow_each_other_at_the_mean_interval() {
        let mut pacer = Pacer::new(Pace::Original(1.0), 0);
        assert_eq!(targets(&mut pacer, &[100, 200, 300]), [0, 100, 200]);
        pacer.begin_round(3);
        assert_eq!(targets(&mut pacer, &[100, 200, 300]), [300, 400, 500]);
        pacer.begin_round(3);
        assert_eq!(targets(&mut pacer, &[100]), [600]);
        let mut pacer = Pacer::new(Pace::Rate(1e9), 0);
        assert_eq!(targets(&mut pacer, &[0, 0]), [0, 1]);
        pacer.begin_round(2);
        assert_eq!(targets(&mut pacer, &[0, 0]), [2, 3]);
    }

    #[test]
    fn the_maximum_pace_has_no_targets() {
        assert_eq!(Pacer::new(Pace::Max, 0).target_ns(1), None);
    }
}
