//! The cost of each change of leadership: a cold thread determines it some milliseconds later, writes it to the audit
//! and counts it.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use hdrhistogram::Histogram;
use mdgw_election::{core::View, driver::Election, identity::NodeId, latch::LeaderLatch as _};
use mdgw_engine::publish::FenceOpening;
use mdgw_feeds::{
    identity::{ChannelId, Epoch, GroupId},
    published::position::StreamPosition,
    time::MonoNs,
};
use mdgw_pair::standby::{ChannelStatus, StatusTable};
use mdgw_sys::{alarm::Alarm, fence::Fence};
use mdgw_telemetry::{
    counter_block,
    counters::{CounterWriter, Registry},
};
use serde_json::{Value, json};

use super::{GroupHandle, group::LogHole, health::lock};
use crate::audit::{
    AuditSender,
    entry::{AuditEvent, AuditPosition, ChannelTakeover},
};

/// Election events that explain why leadership came to this gateway, with their times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TakeoverCauses {
    /// A hand-over was prepared, or the leader reported its end.
    pub(super) handed_over: Option<MonoNs>,
    /// The process of another gateway has died.
    pub(super) death: Option<MonoNs>,
}

/// Causes by group. The threads that receive the events write them, [`TakeoverWatch::update`] takes them.
pub(super) type GroupTakeoverCauses = Arc<Mutex<BTreeMap<GroupId, TakeoverCauses>>>;

/// Detects the takeovers of all groups and determines their costs.
#[derive(Debug)]
pub(super) struct TakeoverWatch {
    groups: BTreeMap<GroupId, GroupTakeovers>,
    causes: GroupTakeoverCauses,
    node: NodeId,
    sender: Option<AuditSender>,
}

#[derive(Debug)]
struct GroupTakeovers {
    /// Epoch of the last observed leadership of this gateway.
    epoch: Epoch,
    /// A takeover whose cost is not recorded yet: when it was observed, and its cause.
    open: Option<(MonoNs, &'static str)>,
    /// Whether that is the first takeover since the start.
    is_first: bool,
    /// Whether another gateway led at the last observation before this gateway led.
    had_leader_before: bool,
    counters: CounterWriter<TakeoverCounters>,
    costs: Costs,
}

/// Costs of a group's takeovers so far, for the status.
pub(super) type Costs = Arc<Mutex<GroupCosts>>;

#[derive(Debug)]
pub(super) struct GroupCosts {
    takeovers: u64,
    republished_packets: u64,
    blackouts: Histogram<u64>,
}

impl GroupCosts {
    /// The costs as the status shows them; blackouts in ms.
    pub(super) fn to_json(&self) -> Value {
        let ms = |ns: u64| (!self.blackouts.is_empty()).then(|| ns as f64 / 1e6);
        json!({
            "count": self.takeovers,
            "republished_packets": self.republished_packets,
            "blackouts": self.blackouts.len(),
            "blackout_median_ms": ms(self.blackouts.value_at_quantile(0.5)),
            "blackout_worst_ms": ms(self.blackouts.max()),
        })
    }
}

counter_block! {
    /// Counters of one group's takeovers. Written by the thread that calls [`TakeoverWatch::update`].
    pub(super) struct TakeoverCounters, key TakeoverCounter {
        takeovers: Counter, None, "takeovers by this gateway";
        takeover_packets_republished: Counter, Packets, "packets republished in takeovers";
        takeover_messages_skipped: Counter, None, "messages skipped in takeovers: no gateway has published them; at most so many";
        blackout_last_ns: Gauge, Nanoseconds, "blackout of the last takeover, worst channel; 0: unknown";
        blackout_worst_ns: Gauge, Nanoseconds, "worst blackout so far";
    }
}

impl TakeoverWatch {
    pub(super) fn new(
        groups: impl Iterator<Item = GroupId>,
        node: NodeId,
        sender: Option<AuditSender>,
        registry: &Registry,
    ) -> Self {
        let watch = |group: GroupId| (group, GroupTakeovers::new(group, registry));
        Self { groups: groups.map(watch).collect(), causes: GroupTakeoverCauses::default(), node, sender }
    }

    /// The shared map in which the causes are stored when election events arrive.
    pub(super) fn causes(&self) -> &GroupTakeoverCauses {
        &self.causes
    }

    /// Costs of a group's takeovers.
    pub(super) fn costs(&self, group: GroupId) -> Option<&Costs> {
        self.groups.get(&group).map(|watch| &watch.costs)
    }

    /// Observes one group: detects a takeover, and records its cost as soon as it is known.
    pub(super) fn update(
        &mut self,
        group: GroupId,
        (handle, election): (&GroupHandle, &Election),
        status_table: &StatusTable,
        now: MonoNs,
    ) {
        let Some(watch) = self.groups.get_mut(&group) else { return };
        let causes = || lock(&self.causes).remove(&group).unwrap_or_default();
        watch.detect(handle.fence(), &election.view(), self.node, causes, now);
        let Some((since, cause)) = watch.open else { return };
        let is_published = |opening: &FenceOpening| opening.epoch == watch.epoch && opening.first_content.is_some();
        let is_early = election.has_leadership() && now.since(since) < FIRST_MESSAGE_NS_MAX;
        let mut openings = handle.openings();
        if is_early && !openings.iter().all(|(_, opening, _)| is_published(opening)) {
            return;
        }
        watch.open = None;
        openings.retain(|(_, opening, _)| opening.epoch == watch.epoch);
        // A gateway that has led since its start is past the hole. An opening for a raised epoch does not say what was received before.
        let began = handle.fence().leading_since();
        for (channel, opening, hole) in
            openings.iter().filter(|(_, opening, _)| watch.is_first && opening.epoch == began)
        {
            if let Some((first, next)) = hole.and_then(|hole| skipped(opening, hole)) {
                watch.counters.add(TakeoverCounter::takeover_messages_skipped, next - first);
                tracing::error!(
                    alarm = Alarm::GapDeclared.name(),
                    group = group.0,
                    channel_id = channel.0,
                    first,
                    next,
                    "messages skipped: this gateway leads behind a copy of its peer's state, and has received no output with them"
                );
            }
        }
        let of_channel = |(channel, opening, _): &(ChannelId, FenceOpening, _)| {
            takeover(*channel, opening, status_table.get(*channel))
        };
        let channels: Vec<_> = openings.iter().map(of_channel).collect();
        watch.count(&channels);
        if let Some(sender) = &self.sender {
            let change = AuditEvent::TookOver { cause: Cow::Borrowed(cause), channels };
            sender.record(group, self.node, watch.epoch, change);
        }
    }
}

impl GroupTakeovers {
    fn new(group: GroupId, registry: &Registry) -> Self {
        let blackouts = Histogram::new_with_bounds(1, BLACKOUT_NS_MAX, 3);
        let blackouts = blackouts.unwrap_or_else(|_| unreachable!("sound bounds"));
        Self {
            epoch: Epoch::default(),
            open: None,
            is_first: true,
            had_leader_before: false,
            counters: registry.register(&format!("group {}", group.0)),
            costs: Arc::new(Mutex::new(GroupCosts { takeovers: 0, republished_packets: 0, blackouts })),
        }
    }

    /// Detects a leadership of `node`, this gateway, also one that has ended since the last call. The epoch is the fence's: an election
    /// opens the fence first and publishes its view then, so `view` may have the epoch of the leadership before.
    fn detect(
        &mut self,
        fence: &Fence,
        view: &View,
        node: NodeId,
        causes: impl FnOnce() -> TakeoverCauses,
        now: MonoNs,
    ) {
        let epoch = fence.epoch();
        if is_takeover(self.epoch, epoch, fence.leading_since()) {
            self.open = Some((now, cause(causes(), self.had_leader_before, self.epoch, now)));
            self.is_first = self.epoch == Epoch::default();
        }
        self.epoch = self.epoch.max(epoch);
        if !fence.is_open_at(now) {
            self.had_leader_before = view.leader.as_ref().is_some_and(|leader| leader.node != node);
        }
    }

    fn count(&mut self, channels: &[ChannelTakeover]) {
        let republished = channels.iter().map(|channel| channel.republished_packets).sum();
        self.counters.add(TakeoverCounter::takeovers, 1);
        self.counters.add(TakeoverCounter::takeover_packets_republished, republished);
        let mut costs = lock(&self.costs);
        costs.takeovers += 1;
        costs.republished_packets += republished;
        for blackout_ns in channels.iter().filter_map(|channel| channel.blackout_ns) {
            costs.blackouts.saturating_record(blackout_ns.max(1));
        }
        let worst_ns = channels.iter().filter_map(|channel| channel.blackout_ns).max();
        self.counters.set(TakeoverCounter::blackout_last_ns, worst_ns.unwrap_or(0));
        self.counters.set(TakeoverCounter::blackout_worst_ns, costs.blackouts.max());
    }
}

/// `status` has what was received of the other gateway.
fn takeover(channel: ChannelId, opening: &FenceOpening, status: Option<ChannelStatus>) -> ChannelTakeover {
    // Without a watermark this gateway led before: when it last sent is not known.
    let status = status.filter(|status| status.packets > 0 && opening.received_through.is_some());
    let last_received_at = status.map(|status| status.received_at);
    let blackout = opening.first_content.zip(last_received_at).map(|(content, received_at)| content.since(received_at));
    ChannelTakeover {
        channel: channel.0,
        received_through: opening.received_through.map(AuditPosition::from),
        resumed_at: opening.committed_through.map(AuditPosition::from),
        blackout_ns: blackout,
        republished_packets: opening.catch_up_packets,
    }
}

/// The messages `[first, next)` of a hole in this gateway's log that no output brought either: it leads behind them, so it does not
/// publish them.
fn skipped(opening: &FenceOpening, (first, next): LogHole) -> Option<(u64, u64)> {
    let is_present = |position: &StreamPosition| position.session == next.session;
    if !opening.committed_through.as_ref().is_some_and(is_present) {
        return None;
    }
    let received = match opening.received_through {
        Some(received) if received.session > next.session => return None,
        Some(received) if is_present(&received) => received.sequence.0,
        _ => 0,
    };
    let first = first.sequence.0.max(received);
    (first < next.sequence.0).then_some((first, next.sequence.0))
}

/// Whether a higher epoch than the last observed one is that of a new leadership. A leader that raises its epoch goes on.
fn is_takeover(observed: Epoch, epoch: Epoch, leading_since: Epoch) -> bool {
    epoch > observed && leading_since > observed
}

/// The cause of the takeover in words, as far as this gateway knows.
fn cause(causes: TakeoverCauses, had_leader_before: bool, before: Epoch, now: MonoNs) -> &'static str {
    let is_recent = |cause_at: Option<MonoNs>| cause_at.is_some_and(|at| now.since(at) < CAUSE_NS_MAX);
    if is_recent(causes.handed_over) {
        "handed over"
    } else if is_recent(causes.death) {
        "the leader's process died"
    } else if had_leader_before {
        "the leader's lease expired"
    } else if before != Epoch::default() {
        "this gateway led before"
    } else {
        "no previous leader"
    }
}

/// A channel that has published no new content for this long after a takeover has no new input, ns.
const FIRST_MESSAGE_NS_MAX: u64 = 2_000_000_000;
/// An event older than this does not count as the cause of a takeover, ns.
const CAUSE_NS_MAX: u64 = 3_000_000_000;
/// Longest blackout that the histogram distinguishes, ns: ten minutes.
const BLACKOUT_NS_MAX: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use mdgw_election::identity::{Incarnation, Member, NodeName};
    use mdgw_feeds::{
        identity::{Feed, Sequence, Session},
        time::TradingDate,
    };

    use super::*;

    #[test]
    fn a_raise_of_the_epoch_is_no_takeover() {
        let epoch = |count| Epoch::new(count, 1);
        for (observed, now, leading_since, expected) in [
            (0, 5, 5, true),
            (5, 5, 5, false),
            (5, 9, 5, false),
            (9, 14, 5, false),
            // It led no more in between.
            (9, 14, 12, true),
            // It opened and raised between two observations.
            (0, 9, 5, true),
        ] {
            let observed = if observed == 0 { Epoch::default() } else { epoch(observed) };
            assert_eq!(is_takeover(observed, epoch(now), epoch(leading_since)), expected, "{observed:?} to {now}");
        }
    }

    #[test]
    fn messages_of_a_hole_that_no_output_brought_are_skipped() {
        let session = |restart| Session {
            feed: Feed::NasdaqItch,
            date: TradingDate::from_yyyymmdd(20_190_130).unwrap(),
            restart,
        };
        let at = |sequence| StreamPosition::at(session(1), Sequence(sequence));
        let hole = (at(100), at(400));
        let opening = |received_through, committed_through| FenceOpening {
            received_through,
            committed_through: Some(committed_through),
            ..FenceOpening::default()
        };
        for (received, expected) in [
            (None, Some((100, 400))),
            (Some(at(50)), Some((100, 400))),
            (Some(at(150)), Some((150, 400))),
            (Some(at(400)), None),
            (Some(StreamPosition::at(session(0), Sequence(900))), Some((100, 400))),
            (Some(StreamPosition::at(session(2), Sequence(1))), None),
        ] {
            assert_eq!(skipped(&opening(received, at(500)), hole), expected, "{received:?}");
        }
        let next_session = StreamPosition::at(session(2), Sequence(5));
        assert_eq!(skipped(&opening(None, next_session), hole), None);
    }

    /// Its last packets were its own, and the status has only those of the other gateway: the time since them may be hours.
    #[test]
    fn a_leader_that_led_before_has_no_blackout() {
        let channel = ChannelId(7);
        let session =
            Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(20_190_130).unwrap(), restart: 1 };
        let status = ChannelStatus { packets: 5, received_at: MonoNs(1_000), ..ChannelStatus::default() };
        let opening = |received_through| FenceOpening {
            received_through,
            first_content: Some(MonoNs(4_000)),
            ..FenceOpening::default()
        };
        let received = Some(StreamPosition::at(session, Sequence(100)));
        let blackout_ns =
            |received_through, status| takeover(channel, &opening(received_through), Some(status)).blackout_ns;
        assert_eq!(blackout_ns(received, status), Some(3_000));
        assert_eq!(blackout_ns(None, status), None);
        let nothing = ChannelStatus { packets: 0, ..status };
        assert_eq!(blackout_ns(received, nothing), None, "nothing was received of the other gateway");
    }

    #[test]
    fn a_fence_that_opens_before_the_view_is_published_is_one_takeover_with_its_cause() {
        let (own, other, now) = (NodeId(3), NodeId(1), MonoNs(100));
        let view = |count, leader: NodeId| {
            let name = NodeName::new("gw").unwrap();
            let leader = Some(Member { node: leader, name, incarnation: Incarnation(1) });
            View { epoch: Epoch::new(count, leader.as_ref().unwrap().node.0), leader, ..View::default() }
        };
        let registry = Registry::default();
        let mut watch = GroupTakeovers::new(GroupId(2), &registry);
        let fence = Fence::closed();
        let handed_over = || TakeoverCauses { handed_over: Some(now), death: None };
        watch.detect(&fence, &view(3, other), own, handed_over, now);
        assert_eq!(watch.open, None);

        fence.open(Epoch::new(4, 3), MonoNs(1_000));
        watch.detect(&fence, &view(3, other), own, handed_over, now);
        assert_eq!(watch.open, Some((now, "handed over")));
        watch.detect(&fence, &view(4, own), own, || panic!("the same takeover"), MonoNs(200));
        assert_eq!(watch.open, Some((now, "handed over")));
    }

    #[test]
    fn a_change_of_leadership_has_the_most_recent_cause() {
        let second = 1_000_000_000;
        let now = MonoNs(100 * second);
        let at = |seconds: u64| Some(MonoNs(seconds * second));
        let causes = |handed_over, death| TakeoverCauses { handed_over, death };
        let led = Epoch::new(3, 1);
        for (causes, had_leader_before, before, expected) in [
            (causes(at(99), None), true, led, "handed over"),
            (causes(at(99), at(99)), true, led, "handed over"),
            (causes(at(90), at(99)), true, led, "the leader's process died"),
            (causes(at(90), at(90)), true, led, "the leader's lease expired"),
            (causes(None, None), false, led, "this gateway led before"),
            (causes(None, None), false, Epoch::default(), "no previous leader"),
        ] {
            assert_eq!(cause(causes, had_leader_before, before, now), expected, "{causes:?}");
        }
    }
}
