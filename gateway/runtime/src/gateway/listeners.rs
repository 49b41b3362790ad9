//! What the cold listeners of a gateway have received and refused: for the status, the log and the summary.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use mdgw_admin::Observed;
use mdgw_feeds::{drop_reason::DropReason, identity::ChannelId, time::MonoNs};
use mdgw_pair::standby::{ReceiveCounts, StatusTable};
use mdgw_status::snapshot::ListenerSnapshot;
use mdgw_sys::listener_counters::{ListenerCounters, Refusal};

/// All cold listeners of a gateway. Cheap to clone; reading does not block the listeners.
#[derive(Clone, Debug, Default)]
pub(super) struct Listeners {
    counters: Vec<(&'static str, Arc<ListenerCounters>)>,
    /// Of the thread that receives the peers' output.
    status_table: Option<Arc<StatusTable>>,
}

/// Names of the listeners.
pub(super) const PAIR_LINK: &str = "pair_link";
pub(super) const VOTES: &str = "votes";
pub(super) const MEMBERS: &str = "members";
pub(super) const RETRANSMISSION: &str = "retransmission";
pub(super) const OUTPUT_GROUPS: &str = "output_groups";
pub(super) const ADMIN: &str = "admin";

impl Listeners {
    pub(super) fn new(status_table: Option<Arc<StatusTable>>) -> Self {
        Self { counters: Vec::new(), status_table }
    }

    pub(super) fn add(&mut self, name: &'static str, counters: &Arc<ListenerCounters>) {
        self.counters.push((name, Arc::clone(counters)));
    }

    /// Everything that was counted, listener by listener.
    pub(super) fn snapshots(&self) -> Vec<ListenerSnapshot> {
        self.read().map(|read| read.snapshot).collect()
    }

    /// Listener, reason and count of all refusals, also of those that have not occurred.
    pub(super) fn refusals(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let of_counters = self.counters.iter().flat_map(|(name, counters)| {
            Refusal::ALL.iter().map(move |refusal| (*name, refusal.name(), counters.refused(*refusal)))
        });
        let of_outputs = self.status_table.iter().flat_map(|status_table| {
            let drops = status_table.listener_counts().drops;
            let all = DropReason::ALL.iter().map(move |reason| (OUTPUT_GROUPS, reason.name(), drops.get(*reason)));
            all.collect::<Vec<_>>()
        });
        of_counters.chain(of_outputs)
    }

    /// What was received of the other gateways' output, by channel; `None` without an election.
    pub(super) fn received(&self) -> Option<BTreeMap<ChannelId, ReceiveCounts>> {
        let all = self.status_table.as_ref()?.all();
        Some(all.into_iter().map(|(channel, status)| (channel, status.counts)).collect())
    }

    fn read(&self) -> impl Iterator<Item = Read> {
        let of_counters = self.counters.iter().map(|(name, counters)| {
            let refused = counters.refusals().map(|(refusal, count)| (refusal.name(), count, !refusal.is_expected()));
            Read::new(name, counters.received(), refused)
        });
        let of_outputs = self.status_table.iter().map(|status_table| {
            let counts = status_table.listener_counts();
            let refused = counts.drops.iter().map(|(reason, count)| (reason.name(), count, is_junk(reason)));
            Read::new(OUTPUT_GROUPS, counts.datagrams, refused)
        });
        of_counters.chain(of_outputs)
    }
}

/// Counts what the admin listener observes.
pub(super) fn count_observed(counters: &ListenerCounters, observed: Observed) {
    match observed {
        Observed::Connection => counters.count_received(),
        Observed::Displaced => counters.count(Refusal::Displaced),
        Observed::Silent => counters.count(Refusal::Silent),
        Observed::Malformed => counters.count(Refusal::Malformed),
        Observed::TooLong => counters.count(Refusal::TooLong),
        Observed::Busy => counters.count(Refusal::Busy),
        Observed::ForeignHost => counters.count(Refusal::ForeignHost),
    }
}

/// One listener at one moment.
struct Read {
    snapshot: ListenerSnapshot,
    /// Names of the reasons that are logged.
    logged: Vec<&'static str>,
}

impl Read {
    fn new(name: &str, received: u64, refused: impl Iterator<Item = (&'static str, u64, bool)>) -> Self {
        let mut logged = Vec::new();
        let mut counts = BTreeMap::new();
        for (reason, count, is_logged) in refused {
            counts.insert(reason.to_owned(), count);
            logged.extend(is_logged.then_some(reason));
        }
        Self { snapshot: ListenerSnapshot { name: name.to_owned(), received, refused: counts }, logged }
    }
}

/// Whether a datagram on an output group was no packet at all. The other reasons have alarms of their own (tags, epochs) or
/// are normal: a former leader's packets, and channels that this gateway does not have.
fn is_junk(reason: DropReason) -> bool {
    use DropReason::{ChannelUnknown, EpochJump, EpochStale, TagInvalid, TagMissing};
    !reason.is_expected() && !matches!(reason, ChannelUnknown | EpochJump | EpochStale | TagInvalid | TagMissing)
}

/// Logs what listeners refuse: at once, and then at most one line in [`INTERVAL_NS`] for each listener, however much arrives.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    reported: BTreeMap<String, Reported>,
}

#[derive(Debug, Default)]
struct Reported {
    counts: BTreeMap<&'static str, u64>,
    next_at: MonoNs,
}

impl RefusalLog {
    pub(super) fn check(&mut self, listeners: &Listeners, now: MonoNs) {
        for (listener, more, reasons) in self.due(listeners, now) {
            tracing::warn!(listener, more, reasons, "datagrams or connections refused");
        }
    }

    /// The lines that are due: listener, number of new refusals, and their reasons.
    fn due(&mut self, listeners: &Listeners, now: MonoNs) -> Vec<(String, u64, String)> {
        let mut lines = Vec::new();
        for Read { snapshot, logged } in listeners.read() {
            let reported = self.reported.entry(snapshot.name.clone()).or_default();
            if now < reported.next_at {
                continue;
            }
            let (mut total, mut reasons) = (0, String::new());
            for reason in logged {
                let count = snapshot.refused.get(reason).copied().unwrap_or_default();
                let more = count - reported.counts.insert(reason, count).unwrap_or_default();
                if more > 0 {
                    let separator = if reasons.is_empty() { "" } else { ", " };
                    // Writing to a string cannot fail.
                    let _ = write!(reasons, "{separator}{reason} {more}");
                    total += more;
                }
            }
            if total > 0 {
                reported.next_at = now.plus(INTERVAL_NS);
                lines.push((snapshot.name, total, reasons));
            }
        }
        lines
    }
}

/// Shortest time between two lines about one listener, ns.
const INTERVAL_NS: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn listeners() -> (Listeners, Arc<ListenerCounters>, Arc<ListenerCounters>) {
        let mut listeners = Listeners::new(None);
        let (votes, link) = (Arc::new(ListenerCounters::default()), Arc::new(ListenerCounters::default()));
        listeners.add(VOTES, &votes);
        listeners.add(PAIR_LINK, &link);
        (listeners, votes, link)
    }

    #[test]
    fn a_flood_is_logged_at_once_and_then_in_one_line_a_minute_with_every_refusal_counted() {
        let (listeners, votes, link) = listeners();
        let mut log = RefusalLog::default();
        let (mut lines, mut logged) = (Vec::new(), 0);
        let seconds = 600;
        for second in 0..seconds {
            for _ in 0..1_000 {
                votes.count(Refusal::Malformed);
                votes.count(Refusal::Forged);
            }
            for (listener, more, reasons) in log.due(&listeners, MonoNs((1 + second) * 1_000_000_000)) {
                assert_eq!(listener, VOTES);
                logged += more;
                lines.push(reasons);
            }
        }
        assert_eq!(lines.len(), 10);
        assert_eq!(lines[..2], ["malformed 1000, forged 1000", "malformed 60000, forged 60000"]);
        // What is not logged yet comes with the next line.
        link.count(Refusal::Displaced);
        let rest = log.due(&listeners, MonoNs(10_000_000_000_000));
        assert_eq!(rest.len(), 2);
        assert_eq!(logged + rest[0].1, seconds * 2_000);
        assert_eq!(rest[1], (PAIR_LINK.to_owned(), 1, "displaced 1".to_owned()));
        assert_eq!(log.due(&listeners, MonoNs(20_000_000_000_000)), [], "nothing new");
    }

    #[test]
    fn the_admin_listener_is_counted_and_logged_as_the_others_are() {
        let mut listeners = Listeners::new(None);
        let counters = Arc::<ListenerCounters>::default();
        listeners.add(ADMIN, &counters);
        let refused = [
            Observed::Displaced,
            Observed::Silent,
            Observed::Malformed,
            Observed::TooLong,
            Observed::Busy,
            Observed::ForeignHost,
        ];
        let observed = [Observed::Connection, Observed::Connection].into_iter().chain(refused);
        observed.for_each(|observed| count_observed(&counters, observed));
        let lines = RefusalLog::default().due(&listeners, MonoNs(1));
        let reasons = "malformed 1, too_long 1, displaced 1, silent 1, busy 1, foreign_host 1";
        assert_eq!(lines, [(ADMIN.to_owned(), 6, reasons.to_owned())]);
        assert_eq!(listeners.snapshots()[0].received, 2);
    }

    #[test]
    fn refusals_have_each_reason_also_before_the_first_one() {
        let (listeners, votes, _) = listeners();
        votes.count(Refusal::TooLong);
        let refusals: Vec<_> = listeners.refusals().collect();
        assert_eq!(refusals.len(), 2 * Refusal::ALL.len());
        for expected in [(VOTES, "too_long", 1), (VOTES, "forged", 0), (PAIR_LINK, "too_long", 0)] {
            assert!(refusals.contains(&expected), "{expected:?}: {refusals:?}");
        }
    }

    #[test]
    fn snapshots_have_each_reason_and_the_log_leaves_out_what_is_normal() {
        let (listeners, votes, link) = listeners();
        votes.count_received();
        votes.count(Refusal::TooLong);
        link.count(Refusal::Replayed);
        let snapshots = listeners.snapshots();
        assert_eq!((snapshots[0].name.as_str(), snapshots[0].received), (VOTES, 1));
        assert_eq!(snapshots[0].refused, [("too_long".to_owned(), 1)].into());
        assert_eq!(snapshots[1].refused, [("replayed".to_owned(), 1)].into());
        let lines = RefusalLog::default().due(&listeners, MonoNs(1));
        assert_eq!(lines, [(VOTES.to_owned(), 1, "too_long 1".to_owned())]);
    }
}
