//! Many blows of one kind, and what they came to: counted, timed, and none left out.

use std::fmt::Write as _;

use super::{
    checker::{DeliveryErrors, LeadershipChange, RunResult, longest_blackout_ns},
    faults::{FaultCase, InjectedFault},
    slowness::Slowness,
    stall::StallMonitor,
};
use crate::failover::ms;

/// One change of leadership at one receiver, ns.
#[derive(Clone, Copy, Debug)]
struct FaultTrial {
    blackout_ns: u64,
    /// From the last record of the old epoch until the blow.
    before_ns: u64,
    /// From the blow until a sentinel noticed a death.
    noticed_ns: Option<u64>,
    /// From there until the next leader was told of it.
    notified_ns: Option<u64>,
    /// From there, or else from the blow, until the next leader knew that it leads.
    elected_ns: Option<u64>,
    /// From there to its first packet.
    packet_ns: Option<u64>,
    /// From there to the first new content.
    content_ns: u64,
    /// The longest stall of a core between the blow and the new content.
    stall_ns: u64,
}

impl FaultTrial {
    fn is_stalled(&self) -> bool {
        self.stall_ns > STALL_NS
    }
}

/// All blows of one kind so far.
#[derive(Debug, Default)]
pub struct Trials {
    trials: Vec<FaultTrial>,
    blows: usize,
    /// Blows after which it was not as wanted at some receiver.
    unexpected_outcomes: usize,
    /// Blows that fell inside a message of several parts, at some receiver.
    inside: usize,
    /// Blows during which a core stalled.
    stalled: usize,
    faults: DeliveryErrors,
    /// Times that the publish intervals of two epochs overlapped.
    overlaps: u64,
    /// Other promises that `mdgw ha verify` found broken.
    broken: u64,
    verdicts: String,
    /// Packets of an epoch that receivers had left behind.
    fenced: u64,
    /// Messages that some receiver heard again, day by day.
    republished: u64,
    /// Changes that no blow caused.
    besides: Vec<UnprovokedChange>,
    /// What was warned of on days with such a change.
    warnings: Vec<String>,
    /// Longest silence during a blow that must change nothing, and as long before it without one, ns.
    stable_intervals: Vec<(u64, u64)>,
    /// What was said of books that are not as they should be.
    doubts: Vec<String>,
    /// Days that could not be played to their end, and why.
    aborted_days: Vec<String>,
}

impl Trials {
    /// A day was played to its end.
    pub fn take(
        &mut self,
        case: &FaultCase,
        blows: &[InjectedFault],
        judged: &RunResult,
        stall_monitor: &StallMonitor,
    ) {
        for blow in blows {
            self.blows += 1;
            let changes: Vec<&LeadershipChange> = judged.changes_caused_by(blow).collect();
            self.unexpected_outcomes += usize::from(!judged.has_expected_outcome(case.wanted, blow));
            let until_ns = match blow.stable_until_ns {
                Some(until_ns) => {
                    let length_ns = until_ns - blow.injected_ns;
                    self.stable_intervals.extend(judged.received.iter().map(|received| {
                        let silence = |from_ns| longest_blackout_ns(received, from_ns, from_ns + length_ns);
                        (silence(blow.injected_ns), silence(blow.injected_ns - length_ns))
                    }));
                    until_ns
                }
                None => changes.iter().map(|change| change.first_content_ns).max().unwrap_or(blow.injected_ns),
            };
            let stall_ns = stall_monitor.worst_ns(blow.injected_ns, until_ns);
            self.stalled += usize::from(stall_ns > STALL_NS);
            if blow.stable_until_ns.is_none() {
                self.inside += usize::from(changes.iter().any(|change| change.ended_mid_message));
                self.trials.extend(changes.iter().map(|change| trial(blow, change, judged, stall_ns)));
            }
        }
        let is_expected = |change: &LeadershipChange| {
            blows.iter().any(|blow| blow.stable_until_ns.is_none() && change.is_caused_by(blow))
        };
        let besides = |all: &Vec<LeadershipChange>| -> Vec<LeadershipChange> {
            all.iter().copied().filter(|change| !is_expected(change)).collect()
        };
        let most = judged.changes.iter().map(besides).max_by_key(Vec::len);
        let most = most.unwrap_or_default();
        if !most.is_empty() {
            self.warnings.extend_from_slice(&judged.warnings);
        }
        self.besides.extend(most.iter().map(|change| {
            let from_ns = change.last_old_ns.saturating_sub(LOOKBACK_NS);
            let until_ns = change.first_content_ns;
            UnprovokedChange {
                blackout_ns: change.blackout_ns(),
                stall_ns: stall_monitor.worst_ns(from_ns, until_ns),
                slowness: stall_monitor.slowness(from_ns, until_ns),
            }
        }));
        for faults in &judged.faults {
            self.faults.add(faults);
        }
        self.doubts.extend_from_slice(&judged.doubts);
        self.fenced += judged.fenced;
        self.republished += judged.republished();
        let broken = judged.broken();
        self.overlaps += broken.0;
        self.broken += broken.1;
        if broken != (0, 0) {
            self.verdicts += &judged.verdict();
        }
    }

    /// How it goes, in one line.
    #[must_use]
    pub fn progress_line(&self) -> String {
        let besides = self.besides.len();
        let is_right = if self.is_right() { "all of it right" } else { "not all of it right" };
        format!("{} blows, {besides} changes besides, {is_right}", self.blows)
    }

    /// A day broke off: its blows so far, and what was said of it.
    pub fn record_aborted_day(&mut self, blows: usize, why: String) {
        self.blows += blows;
        self.aborted_days.push(why);
    }

    /// Whether all of it came as it has to.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.overlaps == 0
            && self.broken == 0
            && self.faults == DeliveryErrors::default()
            && self.unexpected_outcomes == 0
            && self.doubts.is_empty()
            && self.aborted_days.is_empty()
    }

    /// All that is known of them.
    #[must_use]
    pub fn told(&self, name: &str) -> String {
        let mut text = format!(
            "{name}: {} trials, {} of them while a core stalled for more than 2 ms; {} changes besides\n\
             ms, over all receivers              count   median    worst\n",
            self.blows,
            self.stalled,
            self.besides.len()
        );
        let during = self.stable_intervals.iter().map(|(during, _)| *during).collect();
        text += &row("longest silence during it", during);
        text += &row("  as long before it", self.stable_intervals.iter().map(|(_, before)| *before).collect());
        let silence = |trial: &FaultTrial| Some(trial.blackout_ns);
        text += &row("silence", self.times(&silence, None));
        text += &row("  without a stall", self.times(&silence, Some(false)));
        text += &row("  with one", self.times(&silence, Some(true)));
        text += &row("last record to the blow", self.times(&|trial| Some(trial.before_ns), None));
        text += &row("blow to the sentinel's notice", self.times(&|trial| trial.noticed_ns, None));
        text += &row("  to word of it at the next leader", self.times(&|trial| trial.notified_ns, None));
        text += &row("  or from the blow, to leadership", self.times(&|trial| trial.elected_ns, None));
        text += &row("  to its first packet", self.times(&|trial| trial.packet_ns, None));
        text += &row("  to its first new content", self.times(&|trial| Some(trial.content_ns), None));
        if let Some(trial) = self.trials.iter().max_by_key(|trial| trial.blackout_ns) {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "the longest silence: elected {}, packet {}, content {}; a core stalled for {} at the most",
                trial.elected_ns.map(ms).unwrap_or_default(),
                trial.packet_ns.map(ms).unwrap_or_default(),
                ms(trial.content_ns),
                ms(trial.stall_ns)
            );
        }
        for UnprovokedChange { blackout_ns, stall_ns, slowness } in &self.besides {
            let [silence, stall, stolen, worst] =
                [*blackout_ns, *stall_ns, slowness.steal_ns, slowness.worst_ns].map(ms);
            let _ = writeln!(
                text,
                "a change besides: {silence} without content; a core stalled for {stall} at the most; a hypervisor kept \
                 {stolen} of one; {} of {} probes of the same work took over ten times as long, {worst} at the worst",
                slowness.slow_probes, slowness.probes
            );
        }
        let _ = writeln!(text, "{:?}", self.faults);
        let _ = writeln!(
            text,
            "overlapping publish intervals: {}; other findings of `mdgw ha verify`: {}\n\
             not as wanted: {}; inside a message: {}; late packets of an old epoch: {}; \
             messages said again: {}",
            self.overlaps, self.broken, self.unexpected_outcomes, self.inside, self.fenced, self.republished
        );
        for warning in &self.warnings {
            let _ = writeln!(text, "on a day with a change besides: {warning}");
        }
        for doubt in &self.doubts {
            let _ = writeln!(text, "books in doubt: {doubt}");
        }
        for why in &self.aborted_days {
            let _ = writeln!(text, "a day broke off: {why}");
        }
        text + &self.verdicts
    }

    /// The same in one line of [`TABLE_HEAD`]'s table.
    #[must_use]
    pub fn table_row(&self, title: &str) -> String {
        let silence = |trial: &FaultTrial| Some(trial.blackout_ns);
        let (all, stable_intervals) =
            (self.times(&silence, None), self.stable_intervals.iter().map(|(during, _)| *during).collect());
        let shown = if all.is_empty() { stable_intervals } else { all };
        let without_stall = self.times(&silence, Some(false));
        let split = [
            self.times(&|trial| Some(trial.before_ns), None),
            self.times(&|trial| trial.noticed_ns, None),
            self.times(&|trial| trial.notified_ns, None),
            self.times(&|trial| trial.elected_ns, None),
            self.times(&|trial| trial.packet_ns, None),
            self.times(&|trial| Some(trial.content_ns), None),
        ];
        let [before, noticed, told, elected, packet, content] = split.map(|times| median_and_max(times).0);
        let ((median, worst), (median_without_stall, worst_without_stall)) =
            (median_and_max(shown), median_and_max(without_stall));
        let DeliveryErrors { lost, doubled, out_of_order, .. } = self.faults;
        let different_while_suspect = self.faults.suspect + self.faults.different_while_suspect;
        let others = self.faults.sum() - lost - doubled - out_of_order - different_while_suspect + self.broken;
        format!(
            "| {title} | {} | {} | {} | {median} | {worst} | {median_without_stall} | {worst_without_stall} | {before} | {noticed} | {told} | \
             {elected} | {packet} | {content} | {lost} | {doubled} | {out_of_order} | {} | {others} | {different_while_suspect} | {} | {} | {} |\n",
            self.blows,
            self.stalled,
            self.unexpected_outcomes + self.aborted_days.len(),
            self.overlaps,
            self.besides.len(),
            self.fenced,
            self.republished,
        )
    }

    fn times(&self, wanted: &dyn Fn(&FaultTrial) -> Option<u64>, is_stalled: Option<bool>) -> Vec<u64> {
        let trials = self.trials.iter().filter(|trial| is_stalled.is_none_or(|is| trial.is_stalled() == is));
        trials.filter_map(wanted).collect()
    }
}

/// Of a table with a [`Trials::table_row`] for each kind of blow. Times are in ms, over all receivers; the split is of
/// medians.
pub const TABLE_HEAD: &str = "\
| blow | trials | with a stall | not as wanted | silence | worst | without a stall | worst | before | noticed | told | elected | \
packet | content | lost | doubled | out of order | overlaps | other faults | in doubt | changes besides | late packets | said again |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
";

fn trial(blow: &InjectedFault, change: &LeadershipChange, judged: &RunResult, stall_ns: u64) -> FaultTrial {
    let leadership_ns = judged.gained_ns.get(&change.to).copied();
    let before = leadership_ns.unwrap_or(change.first_packet_ns);
    let noticed = judged.sentinel_notices_ns.range(blow.injected_ns..before.max(blow.injected_ns)).next().copied();
    let told = judged.death_notices_ns.range(blow.injected_ns..before.max(blow.injected_ns)).next().copied();
    FaultTrial {
        blackout_ns: change.blackout_ns(),
        before_ns: blow.injected_ns.saturating_sub(change.last_old_ns),
        noticed_ns: noticed.map(|noticed| noticed - blow.injected_ns),
        notified_ns: told.zip(noticed).map(|(told, noticed)| told.saturating_sub(noticed)),
        elected_ns: leadership_ns.map(|leadership_ns| leadership_ns.saturating_sub(told.unwrap_or(blow.injected_ns))),
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

/// A change that no blow caused: without content for so long, and what the machine did meanwhile.
#[derive(Clone, Copy, Debug)]
struct UnprovokedChange {
    blackout_ns: u64,
    stall_ns: u64,
    slowness: Slowness,
}

/// Median and worst, as text; empty where there is none.
fn median_and_max(mut times: Vec<u64>) -> (String, String) {
    times.sort_unstable();
    let found = times.get(times.len() / 2).zip(times.last());
    found.map(|(median, worst)| (ms(*median), ms(*worst))).unwrap_or_default()
}

/// What a core may be late without being called stalled.
const STALL_NS: u64 = 2_000_000;
/// Before a change that nobody caused: a lease and a little more.
const LOOKBACK_NS: u64 = 200_000_000;
