//! Statistics over rounds: a ratio is of two runs of one round.

use serde_json::{Map, Value, json};

use super::{
    case::{AdminUse, Case},
    outcome::Outcome,
};
use crate::report::Spread;

/// The runs of one case: for each subject, its outcome in each round. The first subject is the bare loop.
pub(super) struct CaseRounds {
    pub(super) case: Case,
    pub(super) outcomes: Vec<Vec<Outcome>>,
}

/// What it costs to ask the admin listener once a second.
#[derive(Clone, Copy)]
pub(super) struct AdminCost {
    /// From the connection to the last byte.
    pub(super) answer_ms: Spread,
    /// Of the largest answer.
    pub(super) answer_bytes: u64,
    /// Time of the listener's thread on a core.
    pub(super) cpu_ms_per_answer: f64,
    pub(super) core_percent: f64,
}

/// A latency that is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Percentile {
    pub(super) quantile: f64,
    pub(super) name: &'static str,
}

/// The compared latencies, all from the intended send time.
pub(super) const PERCENTILES: [Percentile; 4] = [
    Percentile { quantile: 0.5, name: "p50" },
    Percentile { quantile: 0.9, name: "p90" },
    Percentile { quantile: 0.99, name: "p99" },
    Percentile { quantile: 0.999, name: "p99.9" },
];

impl CaseRounds {
    pub(super) fn new(case: Case, subject_count: usize) -> Self {
        Self { case, outcomes: vec![Vec::new(); subject_count] }
    }

    /// A value of a subject over the rounds.
    pub(super) fn spread(&self, subject: usize, value: impl Fn(&Outcome) -> f64) -> Spread {
        Spread::of(self.outcomes[subject].iter().map(value).collect())
    }

    /// A latency of a subject, us.
    pub(super) fn latency_us(&self, subject: usize, percentile: Percentile) -> Spread {
        self.spread(subject, |outcome| outcome.from_intended.value_at_quantile(percentile.quantile) as f64 / 1e3)
    }

    /// A latency of a subject over that of the bare loop, round by round.
    pub(super) fn ratio(&self, subject: usize, percentile: Percentile) -> Spread {
        self.ratio_to(0, subject, percentile)
    }

    /// A latency of a subject over that of another one, round by round.
    pub(super) fn ratio_to(&self, base: usize, subject: usize, percentile: Percentile) -> Spread {
        let of = |outcome: &Outcome| outcome.from_intended.value_at_quantile(percentile.quantile) as f64;
        let pairs = self.outcomes[subject].iter().zip(&self.outcomes[base]);
        Spread::of(pairs.map(|(outcome, base)| of(outcome) / of(base)).collect())
    }

    /// A latency that a subject measured itself over that of another one, round by round; `None` without latency logs.
    pub(super) fn own_ratio_to(&self, base: usize, subject: usize, percentile: Percentile) -> Option<Spread> {
        let of = |outcome: &Outcome| outcome.own.value_at_quantile(percentile.quantile) as f64;
        let pairs = self.outcomes[subject].iter().zip(&self.outcomes[base]);
        let ratios: Vec<_> = pairs.map(|(outcome, base)| of(outcome) / of(base)).collect();
        ratios.iter().all(|ratio| ratio.is_finite()).then(|| Spread::of(ratios))
    }

    /// A latency that a subject measured itself, us.
    pub(super) fn own_latency_us(&self, subject: usize, percentile: Percentile) -> Spread {
        self.spread(subject, |outcome| outcome.own.value_at_quantile(percentile.quantile) as f64 / 1e3)
    }

    /// Of a subject whose admin listener was asked, over all rounds.
    pub(super) fn admin_cost(&self, subject: usize) -> Option<AdminCost> {
        let outcomes = &self.outcomes[subject];
        let answers: Vec<_> = outcomes.iter().flat_map(|outcome| &outcome.answers).collect();
        let cpu_ns: u64 = outcomes.iter().map(|outcome| outcome.threads.admin_cpu_ns).sum();
        let measured_ns: u64 = outcomes.iter().map(|outcome| outcome.measured_ns).sum();
        let bytes = answers.iter().map(|answer| answer.bytes).max()?;
        Some(AdminCost {
            answer_ms: Spread::of(answers.iter().map(|answer| answer.took_ns as f64 / 1e6).collect()),
            answer_bytes: bytes,
            cpu_ms_per_answer: cpu_ns as f64 / 1e6 / answers.len() as f64,
            core_percent: 100.0 * cpu_ns as f64 / measured_ns.max(1) as f64,
        })
    }

    pub(super) fn lost_messages(&self, subject: usize) -> u64 {
        self.outcomes[subject].iter().map(|outcome| outcome.lost_messages).sum()
    }

    pub(super) fn receiver_dropped(&self, subject: usize) -> u64 {
        self.outcomes[subject].iter().map(|outcome| outcome.receiver_dropped).sum()
    }

    /// Whether nothing was lost in any round.
    pub(super) fn is_sustained(&self, subject: usize) -> bool {
        self.outcomes[subject].iter().all(Outcome::is_complete)
    }

    /// Whether the sender reached the rate in every round.
    pub(super) fn is_rate_reached(&self, subject: usize) -> bool {
        self.outcomes[subject].iter().all(|outcome| outcome.is_rate_reached(self.case.packets_per_s))
    }

    pub(super) fn to_json(&self, names: &[String]) -> Value {
        let subjects =
            names.iter().enumerate().map(|(subject, name)| (name.clone(), self.subject_json(names, subject)));
        json!({
            "case": self.case.to_string(),
            "packets_per_s": self.case.packets_per_s,
            "burst": self.case.burst,
            "messages_per_packet": self.case.messages_per_packet,
            "lines": self.case.lines,
            "skew_us": self.case.skew_us,
            "threads": self.case.threads,
            "channels": self.case.channels,
            "log_readers": self.case.log_readers,
            "election": format!("{:?}", self.case.election).to_lowercase(),
            "latency_log": format!("{:?}", self.case.latency_log).to_lowercase(),
            "subjects": Value::Object(subjects.collect()),
        })
    }

    fn subject_json(&self, names: &[String], subject: usize) -> Value {
        let percentiles = PERCENTILES.map(|percentile| {
            let from_send =
                self.spread(subject, |outcome| outcome.from_send.value_at_quantile(percentile.quantile) as f64 / 1e3);
            let value = json!({
                "us": self.latency_us(subject, percentile).to_json(),
                "us_from_send": from_send.to_json(),
                "us_by_the_gateway": self.own_latency_us(subject, percentile).to_json(),
                "ratio_to_bare": self.ratio(subject, percentile).to_json(),
            });
            (percentile.name.to_owned(), value)
        });
        let admin = self.admin_cost(subject).map(|cost| {
            let ratios = AdminUse::unasked(names, subject).map(|base| {
                let ratio = |percentile: Percentile| {
                    let own = self.own_ratio_to(base, subject, percentile).map(|ratio| ratio.to_json());
                    json!({ "outside": self.ratio_to(base, subject, percentile).to_json(), "by_the_gateway": own })
                };
                Value::Object(
                    PERCENTILES.map(|percentile| (percentile.name.to_owned(), ratio(percentile))).into_iter().collect(),
                )
            });
            json!({
                "answer_ms": cost.answer_ms.to_json(),
                "answer_bytes": cost.answer_bytes,
                "cpu_ms_per_answer": cost.cpu_ms_per_answer,
                "core_percent": cost.core_percent,
                "ratio_to_unasked": ratios,
            })
        });
        let sum = |value: fn(&Outcome) -> u64| self.outcomes[subject].iter().map(value).sum::<u64>();
        json!({
            "latency": Value::Object(Map::from_iter(percentiles)),
            "admin": admin,
            "sustained": self.is_sustained(subject),
            "rate_reached": self.is_rate_reached(subject),
            "lost_messages": self.lost_messages(subject),
            "lost_packets": sum(|outcome| outcome.lost_packets),
            "receiver_dropped": self.receiver_dropped(subject),
            "silent_packets": sum(|outcome| outcome.silent_packets),
            "measured_packets": sum(|outcome| outcome.from_intended.len()),
            "published_packets": sum(|outcome| outcome.received.packets),
            "foreign_packets": sum(|outcome| outcome.received.foreign),
            "unstamped_packets": sum(|outcome| outcome.received.unstamped),
            "log_entries_read": sum(|outcome| outcome.log_entries_read),
            "achieved_per_s": self.spread(subject, |outcome| outcome.achieved_per_s).to_json(),
            "sender_late_us_p99":
                self.spread(subject, |outcome| outcome.lateness.value_at_quantile(0.99) as f64 / 1e3).to_json(),
            "pool_wait_ms": self.spread(subject, |outcome| outcome.threads.pool_wait_ns as f64 / 1e6).to_json(),
            "cold_cpu_ms": self.spread(subject, |outcome| outcome.threads.cold_cpu_ns as f64 / 1e6).to_json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{matching::PacketOutcome, outcome::SentPacket},
        *,
    };

    const CASE: Case = Case { packets_per_s: 1_000, ..Case::EXAMPLE };

    fn run(latency_ns: u64, lost_messages: u64) -> Outcome {
        let mut outcome = Outcome::new(1_000.0);
        let sent = SentPacket { intended_ns: 1_000, actual_ns: 1_000 };
        outcome.record(&sent, PacketOutcome::Published(1_000 + latency_ns));
        outcome.lost_messages = lost_messages;
        outcome
    }

    /// Three rounds; the machine is slower in each next one.
    fn rounds() -> CaseRounds {
        let mut rounds = CaseRounds::new(CASE, 2);
        rounds.outcomes[0] = vec![run(1_000, 0), run(2_000, 0), run(4_000, 0)];
        rounds.outcomes[1] = vec![run(1_500, 0), run(2_400, 7), run(8_000, 0)];
        rounds
    }

    #[test]
    fn a_ratio_is_of_one_round() {
        let p50 = PERCENTILES[0];
        let ratio = rounds().ratio(1, p50);
        let rounded = [ratio.min, ratio.median, ratio.max].map(|value| (value * 100.0).round());
        assert_eq!(rounded, [120.0, 150.0, 200.0]);
        assert_eq!(rounds().ratio(0, p50).max, 1.0);
    }

    #[test]
    fn one_loss_in_one_round_makes_the_rate_not_sustained() {
        let rounds = rounds();
        assert_eq!((rounds.is_sustained(0), rounds.is_sustained(1)), (true, false));
        let value = rounds.to_json(&["bare".to_owned(), "gateway".to_owned()]);
        assert_eq!(value["subjects"]["gateway"]["lost_messages"], 7);
        assert_eq!(value["subjects"]["gateway"]["sustained"], false);
        assert_eq!(value["subjects"]["bare"]["latency"]["p50"]["us"]["min"], 1.0);
    }
}
