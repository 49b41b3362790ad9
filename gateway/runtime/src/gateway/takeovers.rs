//! What each change of leadership cost: found out by a cold thread some milliseconds later, noted in the audit, counted.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use hdrhistogram::Histogram;
use mdgw_election::{driver::Election, identity::NodeId, latch::LeaderLatch as _};
use mdgw_engine::publish::Opening;
use mdgw_feeds::{
    identity::{ChannelId, Epoch, GroupId},
    time::MonoNs,
};
use mdgw_pair::standby::Board;
use mdgw_telemetry::counters::{CounterWriter, Registry};
use serde_json::{Value, json};

use super::{GroupDesk, condition::lock};
use crate::audit::{
    AuditNotes,
    entry::{Change, ChannelTakeover, Reached},
};

/// What the election was told that explains why leadership comes to this gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Omens {
    /// It said that it is prepared for a hand-over, or the leader that it has ended.
    pub(super) handed_over: Option<MonoNs>,
    /// The process of another gateway has ended.
    pub(super) death: Option<MonoNs>,
}

/// Of each group; written where they are heard.
pub(super) type AllOmens = Arc<Mutex<BTreeMap<GroupId, Omens>>>;

/// Watches all groups.
#[derive(Debug)]
pub(super) struct TakeoverWatch {
    groups: BTreeMap<GroupId, GroupWatch>,
    omens: AllOmens,
    node: NodeId,
    notes: Option<AuditNotes>,
}

#[derive(Debug)]
struct GroupWatch {
    /// Of the last leadership that was seen.
    epoch: Epoch,
    /// Not noted yet: since when it is known, and why leadership came.
    open: Option<(MonoNs, &'static str)>,
    /// Whether anybody was known to lead at the last look without leadership of one's own.
    had_leader: bool,
    counters: CounterWriter,
    costs: Costs,
}

/// What the takeovers of a group have cost so far; for whoever asks.
pub(super) type Costs = Arc<Mutex<GroupCosts>>;

#[derive(Debug)]
pub(super) struct GroupCosts {
    takeovers: u64,
    sent_again_packets: u64,
    blackouts: Histogram<u64>,
}

impl GroupCosts {
    /// For the status.
    pub(super) fn to_json(&self) -> Value {
        let ms = |ns: u64| (!self.blackouts.is_empty()).then(|| ns as f64 / 1e6);
        json!({
            "count": self.takeovers,
            "sent_again_packets": self.sent_again_packets,
            "blackouts": self.blackouts.len(),
            "blackout_median_ms": ms(self.blackouts.value_at_quantile(0.5)),
            "blackout_worst_ms": ms(self.blackouts.max()),
        })
    }
}

/// Counters of a group.
const COUNTERS: [&str; 4] = ["takeovers", "takeover_packets_sent_again", "blackout_last_ns", "blackout_worst_ns"];

impl TakeoverWatch {
    pub(super) fn new(
        groups: impl Iterator<Item = GroupId>,
        node: NodeId,
        notes: Option<AuditNotes>,
        registry: &Registry,
    ) -> Self {
        let watch = |group: GroupId| {
            let blackouts = Histogram::new_with_bounds(1, BLACKOUT_NS_MAX, 3);
            let blackouts = blackouts.unwrap_or_else(|_| unreachable!("sound bounds"));
            let costs = GroupCosts { takeovers: 0, sent_again_packets: 0, blackouts };
            let watch = GroupWatch {
                epoch: Epoch::default(),
                open: None,
                had_leader: false,
                counters: registry.register(&format!("group {}", group.0), &COUNTERS),
                costs: Arc::new(Mutex::new(costs)),
            };
            (group, watch)
        };
        Self { groups: groups.map(watch).collect(), omens: AllOmens::default(), node, notes }
    }

    /// Where it is told what may explain a change.
    pub(super) fn omens(&self) -> &AllOmens {
        &self.omens
    }

    /// What the takeovers of a group have cost.
    pub(super) fn costs(&self, group: GroupId) -> Option<&Costs> {
        self.groups.get(&group).map(|watch| &watch.costs)
    }

    /// Looks at one group.
    pub(super) fn look(
        &mut self,
        group: GroupId,
        (desk, election): (&GroupDesk, &Election),
        board: &Board,
        now: MonoNs,
    ) {
        let Some(watch) = self.groups.get_mut(&group) else { return };
        let (view, has_leadership) = (election.view(), election.has_leadership());
        let openings: Vec<_> = desk.openings().collect();
        // What began and ended between two looks is known from what its opening came to.
        let opened = openings.iter().map(|(_, opening)| opening.epoch).max().unwrap_or_default();
        let epoch = if has_leadership { view.epoch } else { opened };
        if epoch > watch.epoch {
            let omens = lock(&self.omens).remove(&group).unwrap_or_default();
            watch.open = Some((now, cause(omens, watch.had_leader, watch.epoch, now)));
            watch.epoch = epoch;
        }
        if !has_leadership {
            watch.had_leader = view.leader.is_some_and(|leader| leader.node != self.node);
        }
        let Some((since, cause)) = watch.open else { return };
        let is_told = |opening: &Opening| opening.epoch == watch.epoch && opening.first_content.is_some();
        let is_early = has_leadership && now.since(since) < CONTENT_NS_MAX;
        if is_early && !openings.iter().all(|(_, opening)| is_told(opening)) {
            return;
        }
        watch.open = None;
        let costs = openings.into_iter().filter(|(_, opening)| opening.epoch == watch.epoch);
        let channels: Vec<_> = costs.map(|(channel, opening)| takeover(channel, &opening, board)).collect();
        watch.count(&channels);
        if let Some(notes) = &self.notes {
            let change = Change::TookOver { cause: Cow::Borrowed(cause), channels };
            notes.note(group, self.node, watch.epoch, change);
        }
    }
}

impl GroupWatch {
    fn count(&mut self, channels: &[ChannelTakeover]) {
        let again = channels.iter().map(|channel| channel.sent_again_packets).sum();
        self.counters.add(0, 1);
        self.counters.add(1, again);
        let mut costs = lock(&self.costs);
        costs.takeovers += 1;
        costs.sent_again_packets += again;
        for blackout_ns in channels.iter().filter_map(|channel| channel.blackout_ns) {
            costs.blackouts.saturating_record(blackout_ns.max(1));
        }
        if let Some(worst_ns) = channels.iter().filter_map(|channel| channel.blackout_ns).max() {
            self.counters.set(2, worst_ns);
            self.counters.set(3, costs.blackouts.max());
        }
    }
}

fn takeover(channel: ChannelId, opening: &Opening, board: &Board) -> ChannelTakeover {
    let heard = board.get(channel).filter(|board| board.packets > 0).map(|board| board.heard_at);
    let blackout = opening.first_content.zip(heard).map(|(content, heard)| content.since(heard));
    ChannelTakeover {
        channel: channel.0,
        heard: opening.heard.map(Reached::from),
        ready: opening.ready.map(Reached::from),
        blackout_ns: blackout,
        sent_again_packets: opening.tail_packets,
    }
}

/// Why leadership came, as far as can be told from here.
fn cause(omens: Omens, had_leader: bool, before: Epoch, now: MonoNs) -> &'static str {
    let is_recent = |omen: Option<MonoNs>| omen.is_some_and(|at| now.since(at) < OMEN_NS_MAX);
    if is_recent(omens.handed_over) {
        "handed over"
    } else if is_recent(omens.death) {
        "the leader's process has ended"
    } else if had_leader {
        "the leader's lease has ended"
    } else if before != Epoch::default() {
        "this gateway led before, and leads again"
    } else {
        "nobody led"
    }
}

/// What takes longer to say something new has nothing new to say.
const CONTENT_NS_MAX: u64 = 2_000_000_000;
/// What was heard longer ago explains nothing.
const OMEN_NS_MAX: u64 = 3_000_000_000;
/// Ten minutes.
const BLACKOUT_NS_MAX: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_the_cause_that_was_heard_last() {
        let second = 1_000_000_000;
        let now = MonoNs(100 * second);
        let at = |seconds: u64| Some(MonoNs(seconds * second));
        let omens = |handed_over, death| Omens { handed_over, death };
        let led = Epoch::new(3, 1);
        for (omens, had_leader, before, expected) in [
            (omens(at(99), None), true, led, "handed over"),
            (omens(at(99), at(99)), true, led, "handed over"),
            (omens(at(90), at(99)), true, led, "the leader's process has ended"),
            (omens(at(90), at(90)), true, led, "the leader's lease has ended"),
            (omens(None, None), false, led, "this gateway led before, and leads again"),
            (omens(None, None), false, Epoch::default(), "nobody led"),
        ] {
            assert_eq!(cause(omens, had_leader, before, now), expected, "{omens:?}");
        }
    }
}
