//! Single rules, step by step. The simulation and the model check many gateways under faults.

mod closing;
mod moving;
mod raising;
mod view;

use std::collections::BTreeMap;

use mdgw_sys::clock_rate::ClockRate;
use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::*;
use crate::{
    identity::Incarnation,
    peer::LeaderRequest,
    record::{
        PeerTimestamp, Successor,
        tests::{member, record, successor},
    },
    register::Outcome,
};

/// One gateway's core, a store that answers on demand, and the outputs.
struct Harness {
    core: Lease,
    now: MonoNs,
    stored: Option<Versioned>,
    outputs: Vec<Output<RegisterRequest>>,
}

const MS: u64 = 1_000_000;
const WAIT_NS: u64 = 100_060_000;

impl Harness {
    fn new(node: u8) -> Self {
        Self::with(config(node))
    }

    fn with(config: LeaseConfig) -> Self {
        let mut core = Lease::new(config);
        core.step(MonoNs(0), Input::Eligibility(Eligibility::Eligible));
        Self { core, now: MonoNs(1_000 * MS), stored: None, outputs: Vec::new() }
    }

    /// A store that holds the record of another gateway, followed by this one for long enough to act on knowledge.
    fn following(node: u8, record: Record) -> Self {
        let mut harness = Self::new(node);
        harness.put(record);
        harness.run(0);
        harness
    }

    /// A leading gateway.
    fn leading(node: u8) -> Self {
        let mut harness = Self::new(node);
        harness.run(WAIT_NS + MS);
        assert!(matches!(harness.core.phase, Phase::Leading(_)));
        harness.outputs.clear();
        harness
    }

    fn put(&mut self, record: Record) {
        let version = Version(self.stored.as_ref().map_or(0, |stored| stored.version.0) + 1);
        self.stored = Some(Versioned { version, record });
    }

    fn step(&mut self, input: Input<RegisterEvent>) {
        self.outputs.extend(self.core.step(self.now, input));
    }

    fn changed(&mut self) {
        self.step(Input::Backend(RegisterEvent::Changed(self.stored.clone())));
    }

    /// Answers the outstanding request like a working store.
    fn answer(&mut self) {
        while let Some(request) = self.take_request() {
            let event = match request {
                RegisterRequest::Reconnect => continue,
                RegisterRequest::Read(request_id) => {
                    RegisterEvent::Answer { request_id, outcome: Outcome::Read(self.stored.clone()) }
                }
                RegisterRequest::CompareAndSwap { request_id, expected, record } => {
                    RegisterEvent::Answer { request_id, outcome: self.swap(expected, &record) }
                }
            };
            self.step(Input::Backend(event));
            self.step(Input::Time);
        }
    }

    fn swap(&mut self, expected: Version, record: &Record) -> Outcome {
        if self.stored.as_ref().map_or(Version::NONE, |stored| stored.version) != expected {
            return Outcome::Refused;
        }
        self.put(record.clone());
        Outcome::Swapped(Version(expected.0 + 1))
    }

    fn take_request(&mut self) -> Option<RegisterRequest> {
        let index = self.outputs.iter().position(|output| matches!(output, Output::Request(_)))?;
        match self.outputs.remove(index) {
            Output::Request(request) => Some(request),
            _ => None,
        }
    }

    fn take_swap(&mut self) -> Option<(RequestId, Version, Box<Record>)> {
        loop {
            if let RegisterRequest::CompareAndSwap { request_id, expected, record } = self.take_request()? {
                return Some((request_id, expected, record));
            }
        }
    }

    /// Advances time with a working store.
    fn run(&mut self, ns: u64) {
        let end = self.now.plus(ns);
        loop {
            self.step(Input::Time);
            self.answer();
            match self.core.next_deadline() {
                Some(next) if next <= end => self.now = next.max(self.now),
                _ => break,
            }
        }
        self.now = end;
    }

    /// Advances time with a store that does not answer.
    fn run_without_store(&mut self, ns: u64) {
        let end = self.now.plus(ns);
        loop {
            self.step(Input::Time);
            match self.core.next_deadline() {
                Some(next) if next <= end => self.now = next.max(MonoNs(self.now.0 + 1)),
                _ => break,
            }
        }
        self.now = end;
    }

    fn opened(&self) -> Option<Epoch> {
        self.outputs.iter().find_map(|output| match output {
            Output::Open { epoch, .. } => Some(*epoch),
            _ => None,
        })
    }

    fn closed(&self) -> Option<CloseReason> {
        self.outputs.iter().find_map(|output| match output {
            Output::Close { reason, .. } => Some(*reason),
            _ => None,
        })
    }

    fn deadline(&self) -> MonoNs {
        let Phase::Leading(leadership) = &self.core.phase else { panic!("leads: {:?}", self.core.phase) };
        leadership.deadline
    }

    fn peer_sends(&mut self, node: u8, message: PeerMessage) {
        self.step(Input::Peer { from: NodeId(node), message });
    }

    fn peer_is_eligible(&mut self, node: u8, fitness: Fitness) {
        let configuration = self.core.config.configuration;
        let (member, stamp) = (member(node, 1), PeerTimestamp(self.now.0));
        let eligibility = Eligibility::Eligible;
        self.peer_sends(node, PeerMessage::State(PeerState { member, eligibility, fitness, configuration, stamp }));
    }

    fn messages(&self) -> Vec<(u8, PeerMessage)> {
        let peers = self.outputs.iter().filter_map(|output| match output {
            Output::Peer { to, message } => Some((to.0, message.clone())),
            _ => None,
        });
        peers.collect()
    }
}

fn config(node: u8) -> LeaseConfig {
    LeaseConfig {
        member: member(node, 1),
        timing: LeaseTiming::DEFAULT,
        candidates: [1, 2].map(|node| (NodeId(node), member(node, 0).name)).into(),
        configuration: ConfigVersion { hash: 7, revision: 1, output_version: 1 },
        on_suspended: OnSuspended::Hold,
        preferred: None,
        own_epoch: Epoch::default(),
        moves: AutoMoveConfig::default(),
    }
}

fn request(epoch: Epoch, nonce: u64) -> LeaderRequest {
    LeaderRequest { requester: NodeId(1), incarnation: Incarnation(1), epoch, nonce, lease_ns: 100 * MS }
}

#[test]
fn the_first_record_is_created_after_one_wait() {
    let mut harness = Harness::new(1);
    harness.run(WAIT_NS - 1);
    assert_eq!(harness.opened(), None);
    harness.run(1);
    assert_eq!(harness.opened(), Some(Epoch::new(1, 1)));
    let record = harness.stored.unwrap().record;
    assert!(record.is_held_by(&member(1, 1)));
}

#[test]
fn a_record_is_taken_over_one_lease_after_its_last_observed_change() {
    let mut harness = Harness::following(2, record(5, &member(1, 1)));
    harness.run(WAIT_NS / 2);
    harness.put(Record { renewal: 1, ..record(5, &member(1, 1)) });
    harness.changed();
    harness.run(WAIT_NS - 1);
    assert_eq!(harness.opened(), None);
    harness.run(1);
    assert_eq!(harness.opened(), Some(Epoch::new(6, 2)));
}

#[test]
fn a_candidate_waits_for_the_longer_lease_of_the_record() {
    let mut harness = Harness::following(2, Record { lease_ns: 1_000 * MS, ..record(5, &member(1, 1)) });
    harness.run(1_000 * MS);
    assert_eq!(harness.opened(), None);
    harness.run(600_000);
    assert!(harness.opened().is_some());
}

#[test]
fn the_deadline_counts_from_the_send_time_and_late_answers_do_not_extend_it() {
    let mut harness = Harness::leading(1);
    harness.run(30 * MS);
    let before = harness.deadline();
    // The next renewal is sent now and answered later.
    while harness.take_swap().is_none() {
        harness.now = harness.core.next_deadline().unwrap().max(harness.now);
        harness.outputs.clear();
        harness.step(Input::Time);
    }
    let sent = harness.now;
    let awaited = harness.core.pending.awaited.unwrap();
    harness.now = sent.plus(15 * MS);
    let version = Version(harness.stored.as_ref().unwrap().version.0 + 1);
    let answer = Outcome::Swapped(version);
    harness.step(Input::Backend(RegisterEvent::Answer { request_id: awaited.request_id, outcome: answer.clone() }));
    assert_eq!(harness.deadline(), sent.plus(80 * MS));
    assert!(harness.deadline() > before);

    let mut late = Harness::leading(1);
    late.now = late.core.next_deadline().unwrap();
    late.step(Input::Time);
    let (request_id, ..) = late.take_swap().unwrap();
    late.now = late.deadline();
    late.step(Input::Backend(RegisterEvent::Answer { request_id, outcome: answer }));
    assert_eq!(late.closed(), Some(CloseReason::Expired));
    assert_eq!(late.opened(), None, "an old leadership is never revived");
}

#[test]
fn an_unknown_outcome_extends_no_deadline_until_the_record_is_read() {
    let mut harness = Harness::leading(1);
    harness.now = harness.core.next_deadline().unwrap();
    harness.step(Input::Time);
    let (request_id, expected, record) = harness.take_swap().unwrap();
    let (sent, before) = (harness.now, harness.deadline());
    harness.now = sent.plus(MS);
    harness.step(Input::Backend(RegisterEvent::Answer { request_id, outcome: Outcome::Unknown(String::new()) }));
    assert_eq!(harness.deadline(), before);
    // The swap had taken effect, as a read shows.
    assert_eq!(harness.swap(expected, &record), Outcome::Swapped(Version(expected.0 + 1)));
    harness.step(Input::Time);
    harness.answer();
    assert!(harness.deadline() >= sent.plus(80 * MS));
}

/// A node that hangs costs one renewal period, however long the store's own time-out for requests is.
#[test]
fn a_leader_whose_store_node_hangs_renews_over_another_node_before_its_deadline() {
    let mut harness = Harness::leading(1);
    harness.run(30 * MS);
    harness.outputs.clear();
    let mut sent = None;
    loop {
        harness.step(Input::Time);
        match harness.take_request() {
            Some(RegisterRequest::CompareAndSwap { .. }) => sent = Some(harness.now),
            Some(RegisterRequest::Reconnect) => break,
            Some(RegisterRequest::Read(_)) => panic!("read before the reconnect"),
            None => {}
        }
        harness.now = harness.core.next_deadline().unwrap().max(harness.now);
    }
    let (given_up, deadline) = (harness.now, harness.deadline());
    assert_eq!(given_up.since(sent.unwrap()), LeaseTiming::DEFAULT.renew_ns);
    // The renewal before was sent one period earlier still.
    assert_eq!(deadline.since(given_up), 40 * MS);
    for link in [StoreLink::InDoubt, StoreLink::Up] {
        harness.step(Input::Backend(RegisterEvent::StoreLink(link)));
    }
    harness.run(MS);
    assert_eq!(harness.closed(), None);
    assert_eq!(harness.deadline(), given_up.plus(80 * MS));
}

#[test]
fn a_leader_without_store_and_promises_stops_at_its_deadline() {
    let mut harness = Harness::leading(1);
    harness.run(50 * MS);
    let deadline = harness.deadline();
    harness.outputs.clear();
    harness.run_without_store(deadline.since(harness.now) - 1);
    assert_eq!(harness.closed(), None);
    harness.run_without_store(1);
    assert_eq!(harness.closed(), Some(CloseReason::Expired));
}

#[test]
fn a_leader_without_store_continues_only_on_promises_of_all_others() {
    for (answering, goes_on) in [(&[2_u8, 3][..], true), (&[2][..], false)] {
        let mut config = config(1);
        config.candidates.insert(NodeId(3), member(3, 0).name);
        let mut harness = Harness::with(config);
        harness.run(WAIT_NS + MS);
        harness.outputs.clear();
        for _ in 0..100 {
            harness.run_without_store(5 * MS);
            for (to, message) in harness.messages() {
                if let PeerMessage::PromiseRequest(request) = message
                    && answering.contains(&to)
                {
                    harness.peer_sends(to, PeerMessage::Promise(request));
                }
            }
            harness.outputs.retain(|output| matches!(output, Output::Close { .. }));
        }
        assert_eq!(harness.closed().is_none(), goes_on, "{answering:?} {:?}", harness.closed());
    }
}

#[test]
fn a_promise_is_kept_though_the_record_looks_expired() {
    let mut harness = Harness::following(2, record(5, &member(1, 1)));
    for nonce in 1..10 {
        harness.run(50 * MS);
        harness.peer_sends(1, PeerMessage::PromiseRequest(request(Epoch::new(5, 1), nonce)));
        assert!(harness.messages().contains(&(1, PeerMessage::Promise(request(Epoch::new(5, 1), nonce)))));
    }
    assert_eq!(harness.opened(), None);
    harness.run(WAIT_NS - 1);
    assert_eq!(harness.opened(), None);
    harness.run(1);
    assert!(harness.opened().is_some());
}

#[test]
fn a_candidate_refuses_promises_while_its_swap_is_outstanding() {
    let mut harness = Harness::following(2, record(5, &member(1, 1)));
    harness.run(WAIT_NS - 1);
    harness.now = harness.now.plus(1);
    harness.step(Input::Time);
    let (request_id, ..) = harness.take_swap().unwrap();
    let asked = request(Epoch::new(5, 1), 1);
    harness.step(Input::Backend(RegisterEvent::Answer { request_id, outcome: Outcome::Unknown(String::new()) }));
    harness.peer_sends(1, PeerMessage::PromiseRequest(asked));
    assert_eq!(harness.messages(), [(1, PeerMessage::PromiseRefused(asked))]);
}

#[test]
fn a_death_notice_ends_the_wait_for_its_incarnation_and_epoch_only() {
    let notice = |incarnation, epoch| DeathNotice { holder: NodeId(1), incarnation: Incarnation(incarnation), epoch };
    for (notice, ends) in [
        (notice(1, Epoch::new(5, 1)), true),
        (notice(2, Epoch::new(5, 1)), false),
        (notice(1, Epoch::new(4, 1)), false),
    ] {
        let mut harness = Harness::following(2, record(5, &member(1, 1)));
        harness.run(60 * MS);
        harness.put(Record { renewal: 1, ..record(5, &member(1, 1)) });
        harness.changed();
        harness.run(WAIT_NS - 60 * MS);
        harness.step(Input::Died(notice));
        harness.run(0);
        assert_eq!(harness.opened().is_some(), ends, "{notice:?}");
    }
}

#[test]
fn a_swap_lost_to_a_dead_holders_last_renewal_is_repeated_at_once() {
    let mut harness = Harness::following(2, record(5, &member(1, 1)));
    harness.run(WAIT_NS - MS);
    harness.put(Record { renewal: 1, ..record(5, &member(1, 1)) });
    harness.changed();
    harness.now = harness.now.plus(MS);
    harness.step(Input::Died(DeathNotice { holder: NodeId(1), incarnation: Incarnation(1), epoch: Epoch::new(5, 1) }));
    harness.step(Input::Time);
    let (request_id, expected, _) = harness.take_swap().unwrap();
    // The outstanding renewal came first.
    harness.put(Record { renewal: 2, ..record(5, &member(1, 1)) });
    assert!(expected < harness.stored.as_ref().unwrap().version);
    harness.step(Input::Backend(RegisterEvent::Answer { request_id, outcome: Outcome::Refused }));
    harness.run(0);
    assert_eq!(harness.opened(), Some(Epoch::new(6, 2)));
}

#[test]
fn a_candidate_that_just_started_waits_despite_a_death_notice() {
    let mut harness = Harness::following(2, record(5, &member(1, 1)));
    harness.step(Input::Died(DeathNotice { holder: NodeId(1), incarnation: Incarnation(1), epoch: Epoch::new(5, 1) }));
    harness.run(WAIT_NS - 1);
    assert_eq!(harness.opened(), None);
    harness.run(1);
    assert!(harness.opened().is_some());
}

#[test]
fn a_lost_connection_restarts_the_wait() {
    let mut harness = Harness::following(2, record(5, &member(1, 1)));
    harness.run(WAIT_NS - MS);
    harness.step(Input::Backend(RegisterEvent::StoreLink(StoreLink::InDoubt)));
    harness.run(WAIT_NS - 1);
    assert_eq!(harness.opened(), None);
    harness.run(1);
    assert!(harness.opened().is_some());
}

#[test]
fn a_restored_store_reuses_no_epoch_and_raises_an_alarm() {
    let mut harness = Harness::following(2, record(5, &member(1, 1)));
    harness.run(WAIT_NS / 2);
    harness.stored = Some(Versioned { version: Version(1), record: record(3, &member(1, 1)) });
    harness.changed();
    harness.run(WAIT_NS - 1);
    let alarm = Notice::RecordRolledBack { highest_seen: Epoch::new(5, 1), now: Epoch::new(3, 1) };
    assert!(harness.outputs.contains(&Output::Notice(alarm)));
    assert_eq!(harness.opened(), None);
    harness.run(1);
    assert_eq!(harness.opened(), Some(Epoch::new(6, 2)));
}

#[test]
fn a_new_epoch_exceeds_the_own_log_and_every_observed_epoch() {
    let mut harness = Harness::with(LeaseConfig { own_epoch: Epoch::new(40, 1), ..config(1) });
    harness.run(WAIT_NS);
    assert_eq!(harness.opened(), Some(Epoch::new(41, 1)));
    harness.outputs.clear();
    harness.step(Input::ObservedEpoch(Epoch::new(70, 2)));
    harness.run(MS);
    assert_eq!(harness.closed(), Some(CloseReason::Outranked));
    assert_eq!(harness.opened(), Some(Epoch::new(71, 1)));
}

#[test]
fn a_suspended_leader_holds_or_stops_as_configured() {
    for (on_suspended, closed) in [(OnSuspended::Hold, None), (OnSuspended::Stop, Some(CloseReason::Suspended))] {
        let mut harness = Harness::with(LeaseConfig { on_suspended, ..config(1) });
        harness.run(WAIT_NS);
        harness.outputs.clear();
        harness.step(Input::Backend(RegisterEvent::StoreLink(StoreLink::InDoubt)));
        assert!(harness.outputs.contains(&Output::Connection(ConnectionState::Suspended)));
        assert_eq!(harness.closed(), closed);
    }
}

#[test]
fn a_lost_session_ends_leadership_and_the_next_opening_has_a_new_epoch() {
    let mut harness = Harness::leading(1);
    harness.step(Input::Backend(RegisterEvent::StoreLink(StoreLink::Ended)));
    assert_eq!(harness.closed(), Some(CloseReason::Lost));
    harness.run(WAIT_NS - 1);
    assert_eq!(harness.opened(), None);
    harness.run(1);
    assert_eq!(harness.opened(), Some(Epoch::new(2, 1)));
    assert!(harness.outputs.contains(&Output::Connection(ConnectionState::Reconnected)));
}

#[test]
fn a_released_record_is_taken_at_once() {
    let mut harness = Harness::following(2, record(5, &member(1, 1)));
    harness.run(WAIT_NS - MS);
    harness.put(Record { renewal: 1, ..record(5, &member(1, 1)) });
    harness.changed();
    harness.now = harness.now.plus(2 * MS);
    harness.put(Record { renewal: 1, ..record(5, &member(1, 1)) }.released());
    harness.changed();
    harness.run(0);
    assert_eq!(harness.opened(), Some(Epoch::new(6, 2)));
}

/// Gateway 1 leads and was asked to hand over to gateway 2, which is ready since that moment.
fn handing_over(stamp: PeerTimestamp) -> (Harness, LeaderRequest) {
    let mut leader = Harness::leading(1);
    leader.peer_is_eligible(2, Fitness::default());
    leader.step(Input::HandOver(None));
    let [(2, PeerMessage::Prepare(request))] = leader.messages()[..] else { panic!("{:?}", leader.outputs) };
    leader.peer_sends(2, PeerMessage::Prepared { request, stamp });
    assert_eq!(leader.closed(), None, "the store comes first");
    leader.outputs.clear();
    (leader, request)
}

#[test]
fn a_hand_over_completes_without_waiting_for_the_store() {
    let stamp = PeerTimestamp(Harness::leading(1).now.0 + 1);
    let (mut leader, request) = handing_over(stamp);
    let mut target = Harness::following(2, leader.stored.clone().unwrap().record);
    target.stored.clone_from(&leader.stored);
    target.changed();
    leader.run(0);
    assert_eq!(leader.closed(), Some(CloseReason::HandedOver));
    let armed = leader.stored.clone().unwrap();
    assert_eq!(
        (&armed.record.holder, armed.record.successor),
        (&Some(member(1, 1)), Some(Successor { stamp, ..successor(2, 0) }))
    );
    assert!(leader.messages().is_empty(), "a send may be outstanding");
    leader.step(Input::Drained);
    leader.step(Input::Time);
    let ended = PeerMessage::LeadershipEnded { request, is_automatic: false };
    assert_eq!(leader.messages(), [(2, ended.clone())]);

    target.stored = Some(armed);
    target.now = MonoNs(stamp.0).plus(3 * MS);
    target.changed();
    target.run(0);
    assert_eq!(target.opened(), None);
    target.peer_sends(1, ended);
    target.step(Input::Time);
    let deadline = MonoNs(stamp.0).plus(80 * MS);
    assert!(target.outputs.contains(&Output::Open { epoch: Epoch::new(2, 2), deadline }), "{:?}", target.outputs);
    let ended = Output::PeerOutputEnded(Epoch::new(1, 1));
    assert!(target.outputs.contains(&ended));
    target.run(500 * MS);
    assert_eq!(target.closed(), None, "it swaps the record and renews it");
    let record = target.stored.clone().unwrap().record;
    assert!(record.is_held_by(&member(2, 1)) && record.epoch == Epoch::new(2, 2));

    leader.stored = target.stored;
    leader.changed();
    leader.run(WAIT_NS - MS);
    assert_eq!(leader.opened(), None);
    assert_eq!(leader.core.view().leader, Some(member(2, 1)));
}

#[test]
fn a_successor_that_missed_the_notification_starts_from_the_released_record() {
    let (mut leader, _) = handing_over(PeerTimestamp(Harness::leading(1).now.0 + 1));
    leader.run(0);
    leader.step(Input::Drained);
    leader.run(LeaseTiming::DEFAULT.renew_ns);
    let notifications =
        leader.messages().iter().filter(|(_, message)| matches!(message, PeerMessage::LeadershipEnded { .. })).count();
    assert_eq!(notifications, 4);
    assert_eq!(leader.stored.as_ref().unwrap().record.holder, None);
    leader.run(WAIT_NS - 30 * MS);
    assert_eq!(leader.opened(), None, "the successor's time is not over");
    leader.run(WAIT_NS);
    assert_eq!(leader.opened(), Some(Epoch::new(3, 1)), "above the epoch that the successor may have opened");
}

#[test]
fn an_answer_to_another_prepare_is_ignored() {
    let mut leader = Harness::leading(1);
    leader.peer_is_eligible(2, Fitness::default());
    leader.step(Input::HandOver(None));
    let [(2, PeerMessage::Prepare(asked))] = leader.messages()[..] else { panic!("{:?}", leader.outputs) };
    let other = LeaderRequest { nonce: asked.nonce + 1, ..asked };
    leader.peer_sends(2, PeerMessage::Prepared { request: other, stamp: PeerTimestamp(leader.now.0) });
    leader.run(200 * MS);
    assert_eq!(leader.closed(), None);
}

#[test]
fn a_hand_over_refused_by_the_store_keeps_the_fence_open() {
    let (mut leader, _) = handing_over(PeerTimestamp(1));
    leader.step(Input::Time);
    let (request_id, ..) = leader.take_swap().unwrap();
    leader.step(Input::Backend(RegisterEvent::Answer { request_id, outcome: Outcome::Refused }));
    leader.step(Input::Time);
    assert_eq!(leader.closed(), None);
    leader.run(MS);
    assert_eq!(leader.closed(), None, "its next renewal is not due");
    leader.run(LeaseTiming::DEFAULT.renew_ns);
    assert_eq!(leader.closed(), Some(CloseReason::HandedOver));
}

// ---- the designated successor ----

/// Gateway 2 of three, which knows that 1 leads and that the successor reported its state 10 ms ago.
fn with_successor(node: u8, successor_node: u8) -> Harness {
    let candidates: BTreeMap<NodeId, NodeName> = [1, 2, 3].map(|node| (NodeId(node), member(node, 0).name)).into();
    let stamp = Harness::new(node).now.0 - 10 * MS;
    Harness::following(
        node,
        Record { successor: Some(successor(successor_node, stamp)), candidates, ..record(5, &member(1, 1)) },
    )
}

fn death_of(node: u8, epoch: Epoch) -> Input<RegisterEvent> {
    Input::Died(DeathNotice { holder: NodeId(node), incarnation: Incarnation(1), epoch })
}

#[test]
fn the_successor_of_a_dead_leader_opens_before_the_store_answers() {
    let mut harness = with_successor(2, 2);
    harness.run(20 * MS);
    harness.step(death_of(1, Epoch::new(5, 1)));
    harness.step(Input::Time);
    let deadline = MonoNs(1_000 * MS).plus(70 * MS);
    assert!(harness.outputs.contains(&Output::Open { epoch: Epoch::new(6, 2), deadline }), "{:?}", harness.outputs);
    harness.answer();
    assert!(harness.stored.as_ref().unwrap().record.is_held_by(&member(2, 1)));
    harness.run(500 * MS);
    assert_eq!(harness.closed(), None);
}

#[test]
fn a_successors_lease_is_no_longer_than_the_records() {
    let mut harness = with_successor(2, 2);
    let shorter = Record { lease_ns: 50 * MS, ..harness.stored.clone().unwrap().record };
    harness.put(shorter);
    harness.changed();
    harness.step(death_of(1, Epoch::new(5, 1)));
    harness.step(Input::Time);
    let deadline = MonoNs(1_000 * MS).plus(20 * MS);
    assert!(harness.outputs.contains(&Output::Open { epoch: Epoch::new(6, 2), deadline }), "{:?}", harness.outputs);
}

#[test]
fn a_successor_keeps_leading_after_the_dead_leaders_last_renewal_or_release() {
    for last in [|record: Record| Record { renewal: 1, ..record }, |record: Record| record.released()] {
        let mut harness = with_successor(2, 2);
        harness.step(death_of(1, Epoch::new(5, 1)));
        harness.step(Input::Time);
        let (request_id, ..) = harness.take_swap().unwrap();
        harness.put(last(harness.stored.clone().unwrap().record));
        harness.changed();
        harness.step(Input::Backend(RegisterEvent::Answer { request_id, outcome: Outcome::Refused }));
        harness.run(500 * MS);
        assert_eq!(harness.closed(), None);
        assert!(harness.stored.as_ref().unwrap().record.is_held_by(&member(2, 1)));
    }
}

#[test]
fn an_unconfirmed_successor_stops_when_its_stamp_expires() {
    let mut harness = with_successor(2, 2);
    harness.step(death_of(1, Epoch::new(5, 1)));
    harness.run_without_store(70 * MS - 1);
    assert_eq!((harness.opened().is_some(), harness.closed()), (true, None), "{:?}", harness.outputs);
    assert!(
        !harness.messages().iter().any(|(_, message)| matches!(message, PeerMessage::PromiseRequest(_))),
        "it doesn't know all candidates"
    );
    harness.run_without_store(1);
    assert_eq!(harness.closed(), Some(CloseReason::Expired));
    harness.outputs.clear();
    harness.run_without_store(500 * MS);
    assert_eq!(harness.opened(), None, "a stamp serves once");
}

#[test]
fn a_successor_whose_swap_is_confirmed_late_reopens_without_waiting_a_lease() {
    let mut harness = with_successor(2, 2);
    harness.run(60 * MS);
    harness.step(death_of(1, Epoch::new(5, 1)));
    harness.step(Input::Time);
    let (request_id, expected, record) = harness.take_swap().unwrap();
    harness.now = harness.now.plus(11 * MS);
    harness.step(Input::Time);
    assert_eq!(harness.closed(), Some(CloseReason::Expired));
    harness.outputs.clear();
    let outcome = harness.swap(expected, &record);
    harness.step(Input::Backend(RegisterEvent::Answer { request_id, outcome }));
    harness.run(0);
    assert_eq!(harness.opened(), Some(Epoch::new(7, 2)));
}

#[test]
fn a_leadership_is_succeeded_once_even_if_its_record_is_restored() {
    let mut harness = with_successor(2, 2);
    harness.step(death_of(1, Epoch::new(5, 1)));
    harness.run(10 * MS);
    assert_eq!(harness.opened(), Some(Epoch::new(6, 2)));
    harness.outputs.clear();
    let old = Record { successor: Some(successor(2, harness.now.0)), renewal: 9, ..record(5, &member(1, 1)) };
    harness.stored = Some(Versioned { version: Version(1), record: old });
    harness.step(Input::Backend(RegisterEvent::StoreLink(StoreLink::InDoubt)));
    harness.run(10 * MS);
    assert_eq!((harness.closed(), harness.opened()), (Some(CloseReason::Lost), None));
}

#[test]
fn a_successor_reported_dead_does_not_take_over() {
    let mut harness = with_successor(2, 2);
    harness.step(death_of(2, Epoch::new(4, 2)));
    harness.step(death_of(1, Epoch::new(5, 1)));
    harness.step(Input::Time);
    assert_eq!(harness.opened(), None);
}

#[test]
fn a_successor_with_an_expired_stamp_takes_over_through_the_store() {
    let mut harness = with_successor(2, 2);
    harness.run(70 * MS);
    harness.step(death_of(1, Epoch::new(5, 1)));
    harness.step(Input::Time);
    assert_eq!(harness.opened(), None);
    harness.run(WAIT_NS - 70 * MS);
    assert_eq!(harness.opened(), Some(Epoch::new(6, 2)));
}

#[test]
fn a_restarted_successor_or_an_older_leadership_does_not_take_over() {
    let mut restarted = with_successor(2, 2);
    restarted.core.config.member.incarnation = Incarnation(2);
    let mut other = with_successor(2, 2);
    for (harness, epoch) in [(&mut restarted, Epoch::new(5, 1)), (&mut other, Epoch::new(4, 1))] {
        harness.step(death_of(1, epoch));
        harness.run(WAIT_NS - 1);
        assert_eq!(harness.opened(), None);
    }
}

#[test]
fn other_candidates_wait_until_the_successors_window_or_process_ends() {
    let mut harness = with_successor(3, 2);
    harness.run(60 * MS);
    let renewed = Record { renewal: 1, ..harness.stored.clone().unwrap().record };
    harness.put(renewed);
    harness.changed();
    harness.step(death_of(1, Epoch::new(5, 1)));
    harness.run(WAIT_NS - 60 * MS - 1);
    assert_eq!(harness.opened(), None);
    harness.run(1);
    assert_eq!(harness.opened(), Some(Epoch::new(7, 3)), "from when the stamp was learned, not the last renewal");

    let mut harness = with_successor(3, 2);
    harness.run(WAIT_NS - MS);
    let renewed = Record { successor: Some(successor(2, harness.now.0)), ..harness.stored.clone().unwrap().record };
    harness.put(renewed);
    harness.changed();
    harness.step(death_of(1, Epoch::new(5, 1)));
    harness.run(50 * MS);
    assert_eq!(harness.opened(), None);
    harness.step(death_of(2, Epoch::new(4, 2)));
    harness.run(MS);
    assert_eq!(harness.opened(), Some(Epoch::new(7, 3)));
}

#[test]
fn a_named_successor_stays_named_until_its_window_ends() {
    let mut config = config(1);
    config.candidates.insert(NodeId(3), member(3, 0).name);
    let mut leader = Harness::with(config);
    leader.run(WAIT_NS + MS);
    let named = |leader: &Harness| {
        leader.stored.as_ref().unwrap().record.successor.map(|successor| (successor.node.0, successor.stamp.0))
    };
    leader.peer_is_eligible(3, Fitness::default());
    let received_at = leader.now;
    leader.run(25 * MS);
    assert_eq!(named(&leader), Some((3, received_at.0)));
    // Gateway 3 sends nothing more, and gateway 2 is fitter.
    leader.peer_is_eligible(3, Fitness { stalled: true, ..Fitness::default() });
    for _ in 0..4 {
        leader.peer_is_eligible(2, Fitness::default());
        leader.run(20 * MS);
        assert_eq!(named(&leader), Some((3, received_at.0)));
    }
    leader.peer_is_eligible(2, Fitness::default());
    let received_at = leader.now;
    leader.run(50 * MS);
    assert_eq!(named(&leader), Some((2, received_at.0)));
}

/// When a leader offers leadership to gateway 2, which is eligible beside it for twelve seconds with this fitness.
fn offered_after_ms(leader: &mut Harness, peer: Fitness) -> Option<u64> {
    (0..12_000).step_by(20).find(|_| {
        leader.run(20 * MS);
        leader.peer_is_eligible(2, peer);
        leader.messages().iter().any(|(_, message)| matches!(message, PeerMessage::Prepare(_)))
    })
}

#[test]
fn a_less_fit_leader_hands_over_after_its_tenure_unless_pinned_or_mismatching() {
    for (outputs, offers) in [
        (Input::Pin(Pin::Free), true),
        (Input::Pin(Pin::Pinned), false),
        (Input::OutputMismatch(false), true),
        (Input::OutputMismatch(true), false),
    ] {
        let mut leader = Harness::leading(1);
        leader.step(outputs);
        leader.step(Input::Fitness(Fitness { channels_failed: 1, ..Fitness::default() }));
        let offered = offered_after_ms(&mut leader, Fitness::default());
        assert_eq!(offered.is_some(), offers);
        assert!(offered.is_none_or(|ms| ms >= 9_900), "{offered:?}");
    }
}

#[test]
fn an_unreceived_leader_hands_over_before_its_tenure_ends() {
    let mut leader = Harness::leading(1);
    leader.step(Input::Fitness(Fitness { output_not_received: true, ..Fitness::default() }));
    let offered = offered_after_ms(&mut leader, Fitness::default());
    assert!(offered.is_some_and(|ms| (240..400).contains(&ms)), "{offered:?}");
}

#[test]
fn an_unreceived_leader_waits_for_its_tenure_if_the_move_to_it_did_not_help() {
    for (is_received, offers) in [(true, true), (false, false)] {
        let stamp = PeerTimestamp(Harness::leading(1).now.0 + 1);
        let (mut former, request) = handing_over(stamp);
        former.run(0);
        let mut leader = Harness::following(2, former.stored.clone().unwrap().record);
        leader.stored.clone_from(&former.stored);
        leader.now = MonoNs(stamp.0).plus(3 * MS);
        leader.changed();
        leader.run(0);
        leader.peer_sends(1, PeerMessage::LeadershipEnded { request, is_automatic: true });
        leader.run(200 * MS);
        let record = leader.stored.clone().unwrap().record;
        assert!(record.is_held_by(&member(2, 1)) && record.automatic_moves == 1, "{record:?}");
        if is_received {
            leader.step(Input::OutputReceived);
        }
        leader.step(Input::Fitness(Fitness { output_not_received: true, ..Fitness::default() }));
        let offered_ms = (0..12_000).step_by(20).find(|_| {
            leader.run(20 * MS);
            leader.peer_is_eligible(1, Fitness::default());
            leader.messages().iter().any(|(_, message)| matches!(message, PeerMessage::Prepare(_)))
        });
        assert_eq!(offered_ms.is_some(), offers, "{offered_ms:?}");
        assert!(offered_ms.is_none_or(|ms| ms < 400), "{offered_ms:?}");
    }
}

#[test]
fn a_pin_is_stored_in_the_record() {
    let mut leader = Harness::leading(1);
    leader.step(Input::Pin(Pin::Pinned));
    leader.run(50 * MS);
    let record = leader.stored.clone().unwrap().record;
    assert!(record.pinned);
    // Another gateway leads and sets its own pin.
    leader.put(Record { epoch: Epoch::new(9, 2), holder: Some(member(2, 1)), pinned: false, ..record });
    leader.changed();
    leader.run(2 * WAIT_NS + 50 * MS);
    let record = leader.stored.clone().unwrap().record;
    assert!(record.is_held_by(&member(1, 1)) && !record.pinned, "{record:?}");
}

#[test]
fn a_group_moves_to_its_preferred_leader_after_tenure_unless_pinned_or_less_fit() {
    let stalled = Fitness { stalled: true, ..Fitness::default() };
    for (preferred_leader, pin, peer, offers) in [
        (2, Pin::Free, Fitness::default(), true),
        (2, Pin::Pinned, Fitness::default(), false),
        (2, Pin::Free, stalled, false),
        (1, Pin::Free, Fitness::default(), false),
    ] {
        let mut leader = Harness::leading(1);
        leader.step(Input::Pin(pin));
        leader.step(Input::Placement(GroupPlacement {
            preferred_leader: Some(NodeId(preferred_leader)),
            preferred_successor: None,
        }));
        let offered = offered_after_ms(&mut leader, peer);
        assert_eq!(offered.is_some(), offers, "to {preferred_leader}, {pin:?}, {peer:?}");
        assert!(offered.is_none_or(|ms| ms >= 9_900), "{offered:?}");
    }
}

#[test]
fn the_preferred_successor_tries_first() {
    let candidates: BTreeMap<NodeId, NodeName> = [1, 2, 3].map(|node| (NodeId(node), member(node, 0).name)).into();
    let opens_after_ms = |node: u8, other: u8| {
        let mut harness =
            Harness::following(node, Record { candidates: candidates.clone(), ..record(5, &member(1, 1)) });
        harness.step(Input::Placement(GroupPlacement { preferred_leader: None, preferred_successor: Some(NodeId(3)) }));
        harness.peer_is_eligible(other, Fitness::default());
        (0_u64..1_000).find(|_| {
            harness.run(MS);
            harness.opened().is_some()
        })
    };
    let [second, third] = [opens_after_ms(2, 3), opens_after_ms(3, 2)].map(Option::unwrap);
    assert_eq!(second - third, LeaseTiming::DEFAULT.renew_ns / 2 / MS, "{second} {third}");

    // They receive the death notice some time after the last renewal: neither counts its wait from that renewal.
    let opens_at_once = |node: u8, other: u8| {
        let record = Record { candidates: candidates.clone(), ..record(5, &member(1, 1)) };
        let mut harness = Harness::following(node, record.clone());
        harness.run(WAIT_NS - 2 * MS);
        harness.put(record);
        harness.changed();
        harness.run(15 * MS);
        harness.step(Input::Placement(GroupPlacement { preferred_leader: None, preferred_successor: Some(NodeId(3)) }));
        harness.peer_is_eligible(other, Fitness::default());
        harness.step(Input::Died(DeathNotice {
            holder: NodeId(1),
            incarnation: Incarnation(1),
            epoch: Epoch::new(5, 1),
        }));
        harness.run(0);
        harness.opened().is_some()
    };
    assert_eq!([opens_at_once(2, 3), opens_at_once(3, 2)], [false, true]);
}

#[test]
fn a_wrong_clock_or_stuck_threads_stop_renewal_and_candidacy() {
    for (input, obstacle) in [
        (Input::ClockRate(ClockRate::Within(601)), Obstacle::ClockRate { error_ppm: 601, error_ppm_max: 600 }),
        (Input::ClockRate(ClockRate::Unreadable), Obstacle::ClockUnreadable),
        (Input::Progress(Progress::PoolStuck), Obstacle::PoolStuck),
        (Input::Progress(Progress::ElectionStuck), Obstacle::ElectionStuck),
    ] {
        let mut leader = Harness::leading(1);
        leader.step(input);
        leader.run(100 * MS);
        assert_eq!(leader.closed(), Some(CloseReason::Expired));
        leader.run(10 * WAIT_NS);
        assert_eq!(leader.opened(), None);
        assert_eq!(leader.core.view().obstacle, Some(obstacle));
    }
}

#[test]
fn a_mismatching_configuration_is_ineligible_only_while_its_leader_runs() {
    let theirs = ConfigVersion { hash: 8, revision: 1, output_version: 1 };
    let mut harness = Harness::following(2, Record { configuration: theirs, ..record(5, &member(1, 1)) });
    harness.run(50 * WAIT_NS);
    assert_eq!(harness.opened(), None);
    assert!(matches!(harness.core.view().obstacle, Some(Obstacle::Configuration { .. })));
    harness.run(50 * WAIT_NS);
    assert!(harness.opened().is_some(), "last week's");

    let ours = ConfigVersion { revision: 2, ..config(2).configuration };
    let mut reloaded = Harness::following(2, Record { configuration: theirs, ..record(5, &member(1, 1)) });
    reloaded.run(2 * WAIT_NS);
    assert_eq!(reloaded.opened(), None);
    reloaded.step(Input::Configuration(ours));
    reloaded.run(WAIT_NS);
    assert!(reloaded.opened().is_some(), "a reload with a higher revision is as good as a restart");
    let mut newer = Harness::with(LeaseConfig { configuration: ours, ..config(2) });
    newer.put(Record { configuration: theirs, ..record(5, &member(1, 1)) });
    newer.run(WAIT_NS);
    assert!(newer.opened().is_some(), "a higher revision succeeds");
}

#[test]
fn an_unlisted_gateway_requests_admission_and_the_leader_admits_configured_ones() {
    let mut unlisted = Harness::following(3, record(5, &member(1, 1)));
    unlisted.run(10 * WAIT_NS);
    assert_eq!(unlisted.opened(), None);
    assert!(
        unlisted.messages().iter().any(|(to, message)| *to == 1 && matches!(message, PeerMessage::AdmitRequest { .. }))
    );
    unlisted.step(Input::Admit(NodeId(3), member(3, 0).name));
    unlisted.run(WAIT_NS);
    assert!(unlisted.opened().is_some(), "by hand");

    let mut leader = Harness::leading(1);
    let ask = |node| PeerMessage::AdmitRequest { member: member(node, 1), configuration: config(1).configuration };
    leader.peer_sends(9, ask(9));
    leader.run(50 * MS);
    assert!(!leader.stored.as_ref().unwrap().record.candidates.contains_key(&NodeId(9)));
    leader.step(Input::Admit(NodeId(9), member(9, 0).name));
    leader.run(50 * MS);
    assert!(leader.stored.as_ref().unwrap().record.candidates.contains_key(&NodeId(9)));
}

#[test]
fn a_foreign_record_in_the_store_is_never_overwritten() {
    let mut harness = Harness::new(1);
    harness.step(Input::Time);
    for _ in 0..100 {
        if let Some(RegisterRequest::Read(request_id)) = harness.take_request() {
            let outcome = Outcome::Failed("not a record".to_owned());
            harness.step(Input::Backend(RegisterEvent::Answer { request_id, outcome }));
        }
        harness.run_without_store(5 * MS);
    }
    assert!(harness.take_swap().is_none());
    assert!(matches!(harness.core.view().obstacle, Some(Obstacle::ForeignRecord(_))));
}
