//! Results of many faults of one kind: counted and timed, with none left out.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::{
    checker::{DeliveryErrors, LeadershipChange, RunResult, longest_silence_ns},
    faults::{FaultCase, InjectedFault},
    slowness::Slowness,
    stall::StallMonitor,
};
use crate::failover::ms;

/// One change of leadership at one receiver, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FaultTrial {
    silence_ns: u64,
    /// From the last record of the old epoch until the fault.
    before_ns: u64,
    /// From the fault until a sentinel noticed the death.
    sentinel_notice_ns: Option<u64>,
    /// From the sentinel's notice until the next leader was notified of the death.
    notified_ns: Option<u64>,
    /// From that notification (without a sentinel: from the fault) until the next leader was elected.
    elected_ns: Option<u64>,
    /// From the election to the first packet of the next leader.
    packet_ns: Option<u64>,
    /// From the first packet to the first new content.
    content_ns: u64,
    /// The longest stall of a core between the fault and the new content.
    stall_ns: u64,
}

impl FaultTrial {
    fn is_stalled(&self) -> bool {
        self.stall_ns > STALL_NS
    }
}

/// All faults of one kind so far.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultTrials {
    trials: Vec<FaultTrial>,
    injected_faults: usize,
    /// Faults whose outcome at some receiver was not the expected one.
    unexpected_outcomes: usize,
    /// Faults that fell inside a message of several parts, at some receiver.
    mid_message: usize,
    /// Faults during which a core stalled.
    stalled: usize,
    errors: DeliveryErrors,
    /// How often the publish intervals of two epochs overlapped.
    overlaps: u64,
    /// Other violations that `mdgw ha verify` found.
    broken_promises: u64,
    verdicts: String,
    /// Packets of an epoch older than the one that their receiver had accepted.
    fenced: u64,
    /// Messages that a receiver got more than once: the worst receiver of each day, summed over days.
    republished: u64,
    /// Leadership changes that no fault caused.
    unprovoked_changes: Vec<UnprovokedChange>,
    /// Warnings that were logged on days with an unprovoked change.
    warnings: Vec<String>,
    /// For faults that must change nothing: the longest silence during the fault, and in an equal time before it, ns.
    stable_intervals: Vec<(u64, u64)>,
    /// Warnings about wrong books.
    book_warnings: Vec<String>,
    /// Panic messages of the days that could not be played to their end.
    aborted_days: Vec<String>,
}

impl FaultTrials {
    /// Adds a day that was played to its end.
    pub fn record_day(
        &mut self,
        case: &FaultCase,
        injected_faults: &[InjectedFault],
        result: &RunResult,
        stall_monitor: &StallMonitor,
    ) {
        for fault in injected_faults {
            self.injected_faults += 1;
            let changes: Vec<&LeadershipChange> = result.changes_caused_by(fault).collect();
            self.unexpected_outcomes += usize::from(!result.has_expected_outcome(case.expected, fault));
            let until_ns = match fault.stable_until_ns {
                Some(until_ns) => {
                    let length_ns = until_ns - fault.injected_ns;
                    self.stable_intervals.extend(result.received.iter().map(|received| {
                        let silence = |from_ns| longest_silence_ns(received, from_ns, from_ns + length_ns);
                        (silence(fault.injected_ns), silence(fault.injected_ns - length_ns))
                    }));
                    until_ns
                }
                None => changes.iter().map(|change| change.first_content_ns).max().unwrap_or(fault.injected_ns),
            };
            let stall_ns = stall_monitor.worst_ns(fault.injected_ns, until_ns);
            self.stalled += usize::from(stall_ns > STALL_NS);
            if fault.stable_until_ns.is_none() {
                self.mid_message += usize::from(changes.iter().any(|change| change.ended_mid_message));
                self.trials.extend(changes.iter().map(|change| trial(fault, change, result, stall_ns)));
            }
        }
        let is_expected = |change: &LeadershipChange| {
            injected_faults.iter().any(|fault| fault.stable_until_ns.is_none() && change.is_caused_by(fault))
        };
        let unprovoked_changes = |all: &Vec<LeadershipChange>| -> Vec<LeadershipChange> {
            all.iter().copied().filter(|change| !is_expected(change)).collect()
        };
        let worst_receiver_changes = result.changes.iter().map(unprovoked_changes).max_by_key(Vec::len);
        let worst_receiver_changes = worst_receiver_changes.unwrap_or_default();
        if !worst_receiver_changes.is_empty() {
            self.warnings.extend_from_slice(&result.warnings);
        }
        self.unprovoked_changes.extend(worst_receiver_changes.iter().map(|change| {
            let from_ns = change.last_old_ns.saturating_sub(LOOKBACK_NS);
            let until_ns = change.first_content_ns;
            UnprovokedChange {
                silence_ns: change.silence_ns(),
                stall_ns: stall_monitor.worst_ns(from_ns, until_ns),
                slowness: stall_monitor.slowness(from_ns, until_ns),
            }
        }));
        for errors in &result.errors {
            self.errors.add(errors);
        }
        self.book_warnings.extend_from_slice(&result.book_warnings);
        self.fenced += result.fenced;
        self.republished += result.republished;
        let broken_promises = result.broken_promises();
        self.overlaps += broken_promises.0;
        self.broken_promises += broken_promises.1;
        if broken_promises != (0, 0) {
            self.verdicts += &result.verdict();
        }
    }

    /// The progress in one line.
    #[must_use]
    pub fn progress_line(&self) -> String {
        let unprovoked_changes = self.unprovoked_changes.len();
        let verdict = if self.all_as_expected() { "all as expected" } else { "not all as expected" };
        format!("{} faults, {unprovoked_changes} unprovoked changes, {verdict}", self.injected_faults)
    }

    /// Adds an aborted day: the number of its faults so far, and the panic message.
    pub fn record_aborted_day(&mut self, injected_faults: usize, why: String) {
        self.injected_faults += injected_faults;
        self.aborted_days.push(why);
    }

    /// Adds the results of other days.
    pub fn add(&mut self, other: &Self) {
        let Self {
            trials,
            injected_faults,
            unexpected_outcomes,
            mid_message,
            stalled,
            errors,
            overlaps,
            broken_promises,
            verdicts,
            fenced,
            republished,
            unprovoked_changes,
            warnings,
            stable_intervals,
            book_warnings,
            aborted_days,
        } = other;
        self.trials.extend_from_slice(trials);
        self.injected_faults += injected_faults;
        self.unexpected_outcomes += unexpected_outcomes;
        self.mid_message += mid_message;
        self.stalled += stalled;
        self.errors.add(errors);
        self.overlaps += overlaps;
        self.broken_promises += broken_promises;
        self.verdicts += verdicts;
        self.fenced += fenced;
        self.republished += republished;
        self.unprovoked_changes.extend_from_slice(unprovoked_changes);
        self.warnings.extend_from_slice(warnings);
        self.stable_intervals.extend_from_slice(stable_intervals);
        self.book_warnings.extend_from_slice(book_warnings);
        self.aborted_days.extend_from_slice(aborted_days);
    }

    /// Whether every trial had its expected outcome, and no receiver saw an error.
    #[must_use]
    pub fn all_as_expected(&self) -> bool {
        self.overlaps == 0
            && self.broken_promises == 0
            && self.errors == DeliveryErrors::default()
            && self.unexpected_outcomes == 0
            && self.book_warnings.is_empty()
            && self.aborted_days.is_empty()
    }

    /// The full report, in text.
    #[must_use]
    pub fn report(&self, name: &str) -> String {
        let mut text = format!(
            "{name}: {} trials, {} of them while a core stalled for more than 2 ms; {} unprovoked changes\n\
             ms, over all receivers              count   median    worst\n",
            self.injected_faults,
            self.stalled,
            self.unprovoked_changes.len()
        );
        let during = self.stable_intervals.iter().map(|(during, _)| *during).collect();
        text += &row("longest silence during the fault", during);
        text += &row("  in an equal time before it", self.stable_intervals.iter().map(|(_, before)| *before).collect());
        let silence = |trial: &FaultTrial| Some(trial.silence_ns);
        text += &row("silence", self.times(&silence, None));
        text += &row("  without a stall", self.times(&silence, Some(false)));
        text += &row("  with a stall", self.times(&silence, Some(true)));
        text += &row("last record to the fault", self.times(&|trial| Some(trial.before_ns), None));
        text += &row("fault to the sentinel's notice", self.times(&|trial| trial.sentinel_notice_ns, None));
        text += &row("  to its notice at the next leader", self.times(&|trial| trial.notified_ns, None));
        text += &row("  (or from the fault) to leadership", self.times(&|trial| trial.elected_ns, None));
        text += &row("  to its first packet", self.times(&|trial| trial.packet_ns, None));
        text += &row("  to its first new content", self.times(&|trial| Some(trial.content_ns), None));
        if let Some(trial) = self.trials.iter().max_by_key(|trial| trial.silence_ns) {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "the longest silence: elected {}, packet {}, content {}; a core stalled for at most {}",
                trial.elected_ns.map(ms).unwrap_or_default(),
                trial.packet_ns.map(ms).unwrap_or_default(),
                ms(trial.content_ns),
                ms(trial.stall_ns)
            );
        }
        for UnprovokedChange { silence_ns, stall_ns, slowness } in &self.unprovoked_changes {
            let [silence, stall, stolen, worst] =
                [*silence_ns, *stall_ns, slowness.steal_ns, slowness.worst_ns].map(ms);
            let _ = writeln!(
                text,
                "an unprovoked change: {silence} without content; a core stalled for at most {stall}; a hypervisor took \
                 {stolen} of one; {} of {} probes of the same work took over ten times as long, {worst} at the worst",
                slowness.slow_probes, slowness.probes
            );
        }
        let _ = writeln!(text, "{:?}", self.errors);
        let _ = writeln!(
            text,
            "overlapping publish intervals: {}; other findings of `mdgw ha verify`: {}\n\
             unexpected outcomes: {}; inside a message: {}; late packets of an old epoch: {}; \
             messages republished: {}",
            self.overlaps,
            self.broken_promises,
            self.unexpected_outcomes,
            self.mid_message,
            self.fenced,
            self.republished
        );
        for warning in &self.warnings {
            let _ = writeln!(text, "on a day with an unprovoked change: {warning}");
        }
        for book_warning in &self.book_warnings {
            let _ = writeln!(text, "book warning: {book_warning}");
        }
        for why in &self.aborted_days {
            let _ = writeln!(text, "an aborted day: {why}");
        }
        text + &self.verdicts
    }

    /// The report as one row of the table under [`TABLE_HEAD`].
    #[must_use]
    pub fn table_row(&self, title: &str) -> String {
        let silence = |trial: &FaultTrial| Some(trial.silence_ns);
        let (all, stable_intervals) =
            (self.times(&silence, None), self.stable_intervals.iter().map(|(during, _)| *during).collect());
        let shown = if all.is_empty() { stable_intervals } else { all };
        let without_stall = self.times(&silence, Some(false));
        let split = [
            self.times(&|trial| Some(trial.before_ns), None),
            self.times(&|trial| trial.sentinel_notice_ns, None),
            self.times(&|trial| trial.notified_ns, None),
            self.times(&|trial| trial.elected_ns, None),
            self.times(&|trial| trial.packet_ns, None),
            self.times(&|trial| Some(trial.content_ns), None),
        ];
        let [before, noticed, notified, elected, packet, content] = split.map(|times| median_and_max(times).0);
        let ((median, worst), (median_without_stall, worst_without_stall)) =
            (median_and_max(shown), median_and_max(without_stall));
        let DeliveryErrors { lost, duplicated, out_of_order, .. } = self.errors;
        let different_while_suspect = self.errors.suspect + self.errors.different_while_suspect;
        let others =
            self.errors.sum() - lost - duplicated - out_of_order - different_while_suspect + self.broken_promises;
        format!(
            "| {title} | {} | {} | {} | {median} | {worst} | {median_without_stall} | {worst_without_stall} | {before} | {noticed} | {notified} | \
             {elected} | {packet} | {content} | {lost} | {duplicated} | {out_of_order} | {} | {others} | {different_while_suspect} | {} | {} | {} |\n",
            self.injected_faults,
            self.stalled,
            self.unexpected_outcomes + self.aborted_days.len(),
            self.overlaps,
            self.unprovoked_changes.len(),
            self.fenced,
            self.republished,
        )
    }

    fn times(&self, time_of: &dyn Fn(&FaultTrial) -> Option<u64>, is_stalled: Option<bool>) -> Vec<u64> {
        let trials = self.trials.iter().filter(|trial| is_stalled.is_none_or(|is| trial.is_stalled() == is));
        trials.filter_map(time_of).collect()
    }
}

/// Head of a table with a [`FaultTrials::table_row`] for each kind of fault. Times are in ms, over all receivers; the
/// split columns are medians.
pub const TABLE_HEAD: &str = "\
| fault | trials | with a stall | unexpected outcome | silence | worst | without a stall | worst | before | noticed | notified | elected | \
packet | content | lost | duplicated | out of order | overlaps | other faults | in doubt | unprovoked changes | late packets | republished |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
";

fn trial(fault: &InjectedFault, change: &LeadershipChange, result: &RunResult, stall_ns: u64) -> FaultTrial {
    let leadership_ns = result.gained_ns.get(&change.new_epoch).copied();
    let before = leadership_ns.unwrap_or(change.first_packet_ns);
    let noticed = result.sentinel_notices_ns.range(fault.injected_ns..before.max(fault.injected_ns)).next().copied();
    let notified = result.death_notices_ns.range(fault.injected_ns..before.max(fault.injected_ns)).next().copied();
    FaultTrial {
        silence_ns: change.silence_ns(),
        before_ns: fault.injected_ns.saturating_sub(change.last_old_ns),
        sentinel_notice_ns: noticed.map(|noticed| noticed - fault.injected_ns),
        notified_ns: notified.zip(noticed).map(|(notified, noticed)| notified.saturating_sub(noticed)),
        elected_ns: leadership_ns
            .map(|leadership_ns| leadership_ns.saturating_sub(notified.unwrap_or(fault.injected_ns))),
        packet_ns: leadership_ns.map(|leadership_ns| change.first_packet_ns.saturating_sub(leadership_ns)),
        content_ns: change.first_content_ns.saturating_sub(change.first_packet_ns),
        stall_ns,
    }
}

fn row(name: &str, times: Vec<u64>) -> String {
    if times.is_empty() {
        return String::new();
    }
    let count = times.len();
    let (median, worst) = median_and_max(times);
    format!("{name:<35} {count:>5} {median:>8} {worst:>8}\n")
}

/// A leadership change that no fault caused: its silence, and what the machine did meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UnprovokedChange {
    silence_ns: u64,
    stall_ns: u64,
    slowness: Slowness,
}

/// Median and worst as text; empty without any times.
fn median_and_max(mut times: Vec<u64>) -> (String, String) {
    times.sort_unstable();
    let found = times.get(times.len() / 2).zip(times.last());
    found.map(|(median, worst)| (ms(*median), ms(*worst))).unwrap_or_default()
}

/// A core that wakes up later than this counts as stalled, ns.
const STALL_NS: u64 = 2_000_000;
/// How far before an unprovoked change stalls are searched for, ns: a lease and a little more.
const LOOKBACK_NS: u64 = 200_000_000;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A day in which each count and list is set, and depends on `seed`.
    fn day(seed: u64) -> FaultTrials {
        let count = usize::try_from(seed).unwrap();
        let trial = FaultTrial {
            silence_ns: seed * 1_000_000,
            before_ns: 1,
            sentinel_notice_ns: Some(seed),
            notified_ns: None,
            elected_ns: Some(2),
            packet_ns: Some(3),
            content_ns: seed,
            stall_ns: 4 * seed * 1_000_000,
        };
        let slowness = Slowness { steal_ns: seed, probes: count, slow_probes: 1, worst_ns: 9 };
        FaultTrials {
            trials: vec![trial; count],
            injected_faults: count,
            unexpected_outcomes: 2 * count,
            mid_message: 3 * count,
            stalled: 4 * count,
            errors: DeliveryErrors { lost: seed, duplicated: 2 * seed, suspect: 3 * seed, ..DeliveryErrors::default() },
            overlaps: 5 * seed,
            broken_promises: 6 * seed,
            verdicts: format!("verdict {seed}\n"),
            fenced: 7 * seed,
            republished: 8 * seed,
            unprovoked_changes: vec![UnprovokedChange { silence_ns: seed, stall_ns: 1, slowness }],
            warnings: vec![format!("warning {seed}")],
            stable_intervals: vec![(seed, seed + 1)],
            book_warnings: vec![format!("book {seed}")],
            aborted_days: vec![format!("panic \"{seed}\"")],
        }
    }

    #[test]
    fn days_that_were_written_and_read_back_add_up_to_the_same_report() {
        let mut added = FaultTrials::default();
        for seed in [1, 2] {
            let text = serde_json::to_string(&day(seed)).unwrap();
            let read: FaultTrials = serde_json::from_str(&text).unwrap();
            assert_eq!(read, day(seed));
            added.add(&read);
        }
        let counts = day(3);
        assert_eq!(added.errors, counts.errors);
        assert_eq!((added.injected_faults, added.overlaps, added.republished), (3, 15, 24));
        assert_eq!(added.trials, [day(1).trials, day(2).trials].concat());
        let report = added.report("x");
        for part in
            ["x: 3 trials", "warning 1", "warning 2", "book 2", "panic \"1\"", "verdict 2", "unexpected outcomes: 6"]
        {
            assert!(report.contains(part), "{part}: {report}");
        }
        assert!(!added.all_as_expected());
    }
}
