//! Single rules, by hand. What many gateways do together under faults is the simulation's and the model's.

use std::collections::BTreeMap;

use mdgw_feeds::{identity::Epoch, time::MonoNs};

use super::*;
use crate::{
    identity::Incarnation,
    peer::Question,
    record::{
        Heir, PeerStamp,
        tests::{heir, member, record},
    },
    register::Outcome,
};

/// One gateway's core, a store that answers when told to, and what came out.
struct Desk {
    core: Lease,
    now: MonoNs,
    stored: Option<Versioned>,
    said: Vec<Output<RegisterRequest>>,
}

const MS: u64 = 1_000_000;
const WAIT_NS: u64 = 100_020_000;

impl Desk {
    fn new(node: u8) -> Self {
        Self::with(config(node))
    }

    fn with(config: LeaseConfig) -> Self {
        let mut core = Lease::new(config);
        core.step(MonoNs(0), Input::Standing(Standing::Stands));
        Self { core, now: MonoNs(1_000 * MS), stored: None, said: Vec::new() }
    }

    /// A store that holds the record of another gateway, known to this one for long enough to act on knowledge.
    fn following(node: u8, record: Record) -> Self {
        let mut desk = Self::new(node);
        desk.put(record);
        desk.run(0);
        desk
    }

    /// A leading gateway.
    fn leading(node: u8) -> Self {
        let mut desk = Self::new(node);
        desk.run(WAIT_NS + MS);
        assert!(matches!(desk.core.phase, Phase::Leading(_)));
        desk.said.clear();
        desk
    }

    fn put(&mut self, record: Record) {
        let version = Version(self.stored.as_ref().map_or(0, |stored| stored.version.0) + 1);
        self.stored = Some(Versioned { version, record });
    }

    fn say(&mut self, input: Input<RegisterEvent>) {
        self.said.extend(self.core.step(self.now, input));
    }

    fn changed(&mut self) {
        self.say(Input::Backend(RegisterEvent::Changed(self.stored.clone())));
    }

    /// Answers what was asked, as a store that works.
    fn answer(&mut self) {
        while let Some(request) = self.take_request() {
            let event = match request {
                RegisterRequest::Reconnect => continue,
                RegisterRequest::Read(ticket) => {
                    RegisterEvent::Answer { ticket, outcome: Outcome::Read(self.stored.clone()) }
                }
                RegisterRequest::CompareAndSwap { ticket, expected, record } => {
                    RegisterEvent::Answer { ticket, outcome: self.swap(expected, &record) }
                }
            };
            self.say(Input::Backend(event));
            self.say(Input::Time);
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
        let index = self.said.iter().position(|output| matches!(output, Output::Request(_)))?;
        match self.said.remove(index) {
            Output::Request(request) => Some(request),
            _ => None,
        }
    }

    fn take_swap(&mut self) -> Option<(Ticket, Version, Box<Record>)> {
        loop {
            if let RegisterRequest::CompareAndSwap { ticket, expected, record } = self.take_request()? {
                return Some((ticket, expected, record));
            }
        }
    }

    /// Time passes with a store that works.
    fn run(&mut self, ns: u64) {
        let end = self.now.plus(ns);
        loop {
            self.say(Input::Time);
            self.answer();
            match self.core.next_deadline() {
                Some(next) if next <= end => self.now = next.max(self.now),
                _ => break,
            }
        }
        self.now = end;
    }

    /// Time passes with a store that says nothing.
    fn run_without_store(&mut self, ns: u64) {
        let end = self.now.plus(ns);
        loop {
            self.say(Input::Time);
            match self.core.next_deadline() {
                Some(next) if next <= end => self.now = next.max(MonoNs(self.now.0 + 1)),
                _ => break,
            }
        }
        self.now = end;
    }

    fn opened(&self) -> Option<Epoch> {
        self.said.iter().find_map(|output| match output {
            Output::Open { epoch, .. } => Some(*epoch),
            _ => None,
        })
    }

    fn closed(&self) -> Option<CloseReason> {
        self.said.iter().find_map(|output| match output {
            Output::Close { reason, .. } => Some(*reason),
            _ => None,
        })
    }

    fn deadline(&self) -> MonoNs {
        let Phase::Leading(leadership) = &self.core.phase else { panic!("leads: {:?}", self.core.phase) };
        leadership.deadline
    }

    fn peer_says(&mut self, node: u8, message: PeerMessage) {
        self.say(Input::Peer { from: NodeId(node), message });
    }

    fn peer_stands(&mut self, node: u8, fitness: Fitness) {
        let configuration = self.core.config.configuration;
        let (member, stamp) = (member(node, 1), PeerStamp(self.now.0));
        let standing = Standing::Stands;
        self.peer_says(node, PeerMessage::State(PeerState { member, standing, fitness, configuration, stamp }));
    }

    fn messages(&self) -> Vec<(u8, PeerMessage)> {
        let peers = self.said.iter().filter_map(|output| match output {
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
        configuration: ConfigurationMark { hash: 7, revision: 1, output_version: 1 },
        on_suspended: OnSuspended::Hold,
        preferred: None,
        own_epoch: Epoch::default(),
        moves: MovesConfig::default(),
    }
}

fn question(epoch: Epoch, nonce: u64) -> Question {
    Question { asker: NodeId(1), incarnation: Incarnation(1), epoch, nonce, lease_ns: 100 * MS }
}

#[test]
fn the_first_record_is_created_after_one_wait() {
    let mut desk = Desk::new(1);
    desk.run(WAIT_NS - 1);
    assert_eq!(desk.opened(), None);
    desk.run(1);
    assert_eq!(desk.opened(), Some(Epoch::new(1, 1)));
    let record = desk.stored.unwrap().record;
    assert!(record.is_held_by(&member(1, 1)));
}

#[test]
fn a_record_is_taken_over_one_wait_after_its_last_change_was_learned() {
    let mut desk = Desk::following(2, record(5, &member(1, 1)));
    desk.run(WAIT_NS / 2);
    desk.put(Record { renewal: 1, ..record(5, &member(1, 1)) });
    desk.changed();
    desk.run(WAIT_NS - 1);
    assert_eq!(desk.opened(), None);
    desk.run(1);
    assert_eq!(desk.opened(), Some(Epoch::new(6, 2)));
}

#[test]
fn a_longer_lease_in_the_record_is_waited_for() {
    let mut desk = Desk::following(2, Record { lease_ns: 1_000 * MS, ..record(5, &member(1, 1)) });
    desk.run(1_000 * MS);
    assert_eq!(desk.opened(), None);
    desk.run(200_000);
    assert!(desk.opened().is_some());
}

#[test]
fn the_deadline_counts_from_the_sending_and_answers_after_it_move_nothing() {
    let mut desk = Desk::leading(1);
    desk.run(30 * MS);
    let before = desk.deadline();
    // The next renewal: sent now, answered later.
    while desk.take_swap().is_none() {
        desk.now = desk.core.next_deadline().unwrap().max(desk.now);
        desk.said.clear();
        desk.say(Input::Time);
    }
    let sent = desk.now;
    let waiting = desk.core.asked.waiting.unwrap();
    desk.now = sent.plus(15 * MS);
    let version = Version(desk.stored.as_ref().unwrap().version.0 + 1);
    let answer = Outcome::Swapped(version);
    desk.say(Input::Backend(RegisterEvent::Answer { ticket: waiting.ticket, outcome: answer.clone() }));
    assert_eq!(desk.deadline(), sent.plus(80 * MS));
    assert!(desk.deadline() > before);

    let mut late = Desk::leading(1);
    late.now = late.core.next_deadline().unwrap();
    late.say(Input::Time);
    let (ticket, ..) = late.take_swap().unwrap();
    late.now = late.deadline();
    late.say(Input::Backend(RegisterEvent::Answer { ticket, outcome: answer }));
    assert_eq!(late.closed(), Some(CloseReason::Expired));
    assert_eq!(late.opened(), None, "an old leadership is never revived");
}

#[test]
fn an_unknown_outcome_moves_nothing_until_it_is_read() {
    let mut desk = Desk::leading(1);
    desk.now = desk.core.next_deadline().unwrap();
    desk.say(Input::Time);
    let (ticket, expected, record) = desk.take_swap().unwrap();
    let (sent, before) = (desk.now, desk.deadline());
    desk.now = sent.plus(MS);
    desk.say(Input::Backend(RegisterEvent::Answer { ticket, outcome: Outcome::Unknown(String::new()) }));
    assert_eq!(desk.deadline(), before);
    // It had taken effect: seen by reading it.
    assert_eq!(desk.swap(expected, &record), Outcome::Swapped(Version(expected.0 + 1)));
    desk.say(Input::Time);
    desk.answer();
    assert!(desk.deadline() >= sent.plus(80 * MS));
}

#[test]
fn a_leader_without_store_and_promises_stops_at_its_deadline() {
    let mut desk = Desk::leading(1);
    desk.run(50 * MS);
    let deadline = desk.deadline();
    desk.said.clear();
    desk.run_without_store(deadline.since(desk.now) - 1);
    assert_eq!(desk.closed(), None);
    desk.run_without_store(1);
    assert_eq!(desk.closed(), Some(CloseReason::Expired));
}

#[test]
fn promises_of_all_others_carry_a_leader_on_and_of_some_do_not() {
    for (answering, goes_on) in [(&[2_u8, 3][..], true), (&[2][..], false)] {
        let mut config = config(1);
        config.candidates.insert(NodeId(3), member(3, 0).name);
        let mut desk = Desk::with(config);
        desk.run(WAIT_NS + MS);
        desk.said.clear();
        for _ in 0..100 {
            desk.run_without_store(5 * MS);
            for (to, message) in desk.messages() {
                if let PeerMessage::PromiseAsk(question) = message
                    && answering.contains(&to)
                {
                    desk.peer_says(to, PeerMessage::Promise(question));
                }
            }
            desk.said.retain(|output| matches!(output, Output::Close { .. }));
        }
        assert_eq!(desk.closed().is_none(), goes_on, "{answering:?} {:?}", desk.closed());
    }
}

#[test]
fn a_promise_is_kept_though_the_record_looks_expired() {
    let mut desk = Desk::following(2, record(5, &member(1, 1)));
    for nonce in 1..10 {
        desk.run(50 * MS);
        desk.peer_says(1, PeerMessage::PromiseAsk(question(Epoch::new(5, 1), nonce)));
        assert!(desk.messages().contains(&(1, PeerMessage::Promise(question(Epoch::new(5, 1), nonce)))));
    }
    assert_eq!(desk.opened(), None);
    desk.run(WAIT_NS - 1);
    assert_eq!(desk.opened(), None);
    desk.run(1);
    assert!(desk.opened().is_some());
}

#[test]
fn no_promise_while_a_swap_may_take_effect() {
    let mut desk = Desk::following(2, record(5, &member(1, 1)));
    desk.run(WAIT_NS - 1);
    desk.now = desk.now.plus(1);
    desk.say(Input::Time);
    let (ticket, ..) = desk.take_swap().unwrap();
    let asked = question(Epoch::new(5, 1), 1);
    desk.say(Input::Backend(RegisterEvent::Answer { ticket, outcome: Outcome::Unknown(String::new()) }));
    desk.peer_says(1, PeerMessage::PromiseAsk(asked));
    assert_eq!(desk.messages(), [(1, PeerMessage::PromiseRefused(asked))]);
}

#[test]
fn a_death_ends_the_wait_for_that_incarnation_and_epoch_alone() {
    let notice = |incarnation, epoch| DeathNotice { holder: NodeId(1), incarnation: Incarnation(incarnation), epoch };
    for (notice, ends) in [
        (notice(1, Epoch::new(5, 1)), true),
        (notice(2, Epoch::new(5, 1)), false),
        (notice(1, Epoch::new(4, 1)), false),
    ] {
        let mut desk = Desk::following(2, record(5, &member(1, 1)));
        desk.run(60 * MS);
        desk.put(Record { renewal: 1, ..record(5, &member(1, 1)) });
        desk.changed();
        desk.run(WAIT_NS - 60 * MS);
        desk.say(Input::Died(notice));
        desk.run(0);
        assert_eq!(desk.opened().is_some(), ends, "{notice:?}");
    }
}

#[test]
fn a_swap_lost_to_the_dead_ones_last_renewal_is_repeated_at_once() {
    let mut desk = Desk::following(2, record(5, &member(1, 1)));
    desk.run(WAIT_NS - MS);
    desk.put(Record { renewal: 1, ..record(5, &member(1, 1)) });
    desk.changed();
    desk.now = desk.now.plus(MS);
    desk.say(Input::Died(DeathNotice { holder: NodeId(1), incarnation: Incarnation(1), epoch: Epoch::new(5, 1) }));
    desk.say(Input::Time);
    let (ticket, expected, _) = desk.take_swap().unwrap();
    // The renewal that was under way came first.
    desk.put(Record { renewal: 2, ..record(5, &member(1, 1)) });
    assert!(expected < desk.stored.as_ref().unwrap().version);
    desk.say(Input::Backend(RegisterEvent::Answer { ticket, outcome: Outcome::Refused }));
    desk.run(0);
    assert_eq!(desk.opened(), Some(Epoch::new(6, 2)));
}

#[test]
fn knowledge_shortens_no_wait_for_who_has_just_come() {
    let mut desk = Desk::following(2, record(5, &member(1, 1)));
    desk.say(Input::Died(DeathNotice { holder: NodeId(1), incarnation: Incarnation(1), epoch: Epoch::new(5, 1) }));
    desk.run(WAIT_NS - 1);
    assert_eq!(desk.opened(), None);
    desk.run(1);
    assert!(desk.opened().is_some());
}

#[test]
fn after_a_break_of_the_connection_the_wait_begins_again() {
    let mut desk = Desk::following(2, record(5, &member(1, 1)));
    desk.run(WAIT_NS - MS);
    desk.say(Input::Backend(RegisterEvent::Link(Link::Doubtful)));
    desk.run(WAIT_NS - 1);
    assert_eq!(desk.opened(), None);
    desk.run(1);
    assert!(desk.opened().is_some());
}

#[test]
fn a_restored_store_takes_no_epoch_back_and_raises_an_alarm() {
    let mut desk = Desk::following(2, record(5, &member(1, 1)));
    desk.run(WAIT_NS / 2);
    desk.stored = Some(Versioned { version: Version(1), record: record(3, &member(1, 1)) });
    desk.changed();
    desk.run(WAIT_NS - 1);
    let alarm = Notice::RecordWentBack { seen: Epoch::new(5, 1), now: Epoch::new(3, 1) };
    assert!(desk.said.contains(&Output::Notice(alarm)));
    assert_eq!(desk.opened(), None);
    desk.run(1);
    assert_eq!(desk.opened(), Some(Epoch::new(6, 2)));
}

#[test]
fn epochs_go_above_the_own_log_and_what_was_heard() {
    let mut desk = Desk::with(LeaseConfig { own_epoch: Epoch::new(40, 1), ..config(1) });
    desk.run(WAIT_NS);
    assert_eq!(desk.opened(), Some(Epoch::new(41, 1)));
    desk.said.clear();
    desk.say(Input::Heard(Epoch::new(70, 2)));
    desk.run(MS);
    assert_eq!(desk.closed(), Some(CloseReason::Outranked));
    assert_eq!(desk.opened(), Some(Epoch::new(71, 1)));
}

#[test]
fn suspended_holds_or_stops_as_configured() {
    for (on_suspended, closed) in [(OnSuspended::Hold, None), (OnSuspended::Stop, Some(CloseReason::Suspended))] {
        let mut desk = Desk::with(LeaseConfig { on_suspended, ..config(1) });
        desk.run(WAIT_NS);
        desk.said.clear();
        desk.say(Input::Backend(RegisterEvent::Link(Link::Doubtful)));
        assert!(desk.said.contains(&Output::Connection(ConnectionState::Suspended)));
        assert_eq!(desk.closed(), closed);
    }
}

#[test]
fn lost_ends_leadership_and_what_follows_has_a_new_epoch() {
    let mut desk = Desk::leading(1);
    desk.say(Input::Backend(RegisterEvent::Link(Link::Ended)));
    assert_eq!(desk.closed(), Some(CloseReason::Lost));
    desk.run(WAIT_NS - 1);
    assert_eq!(desk.opened(), None);
    desk.run(1);
    assert_eq!(desk.opened(), Some(Epoch::new(2, 1)));
    assert!(desk.said.contains(&Output::Connection(ConnectionState::Reconnected)));
}

#[test]
fn closing_drains_then_releases_and_stands_no_more() {
    let mut desk = Desk::leading(1);
    desk.say(Input::Close);
    assert!(matches!(desk.said[..], [Output::Close { reason: CloseReason::Released, .. }, Output::Drain]));
    desk.run(10 * MS);
    assert!(desk.stored.as_ref().unwrap().record.holder.is_some(), "a send may be outstanding");
    desk.say(Input::Drained { positions: BTreeMap::new() });
    desk.run(MS);
    assert_eq!(desk.stored.as_ref().unwrap().record.holder, None);
    assert_eq!(desk.core.view().role, Role::Closed);
    desk.run(10 * WAIT_NS);
    assert_eq!(desk.opened(), None);
}

#[test]
fn a_leader_that_ran_out_and_closes_gives_the_record_back_only_when_no_send_can_be_under_way() {
    let mut desk = Desk::leading(1);
    let deadline = desk.deadline();
    // Stopped for so long that its deadline has passed; what had passed the fence before goes on with it.
    desk.now = deadline;
    desk.say(Input::Close);
    assert_eq!(desk.closed(), Some(CloseReason::Expired));
    desk.say(Input::Time);
    desk.answer();
    let is_released = |desk: &Desk| desk.stored.as_ref().is_some_and(|stored| stored.record.holder.is_none());
    let send_ns_max = LeaseTiming::DEFAULT.send_ns_max;
    desk.run(send_ns_max - 1);
    assert!(!is_released(&desk), "whoever sees it released begins at once");
    desk.run(1);
    assert!(is_released(&desk));
    assert_eq!(desk.core.view().role, Role::Closed);
}

#[test]
fn closed_while_it_takes_the_record_anew_it_drains_before_it_gives_it_back() {
    let mut desk = Desk::leading(1);
    desk.say(Input::Heard(Epoch::new(9, 2)));
    desk.say(Input::Time);
    assert_eq!(desk.closed(), Some(CloseReason::Outranked));
    desk.said.clear();
    desk.say(Input::Close);
    assert_eq!(desk.said, [Output::Drain]);
    desk.run(MS);
    assert!(desk.stored.as_ref().unwrap().record.holder.is_some());
}

#[test]
fn a_released_record_is_taken_at_once() {
    let mut desk = Desk::following(2, record(5, &member(1, 1)));
    desk.run(WAIT_NS - MS);
    desk.put(Record { renewal: 1, ..record(5, &member(1, 1)) });
    desk.changed();
    desk.now = desk.now.plus(2 * MS);
    desk.put(Record { renewal: 1, ..record(5, &member(1, 1)) }.released());
    desk.changed();
    desk.run(0);
    assert_eq!(desk.opened(), Some(Epoch::new(6, 2)));
}

/// Gateway 1 leads and was asked to hand over to gateway 2, which is ready since that moment.
fn handing_over(stamp: PeerStamp) -> (Desk, Question) {
    let mut leader = Desk::leading(1);
    leader.peer_stands(2, Fitness::default());
    leader.say(Input::HandOver(None));
    let [(2, PeerMessage::Prepare(question))] = leader.messages()[..] else { panic!("{:?}", leader.said) };
    leader.peer_says(2, PeerMessage::Prepared { question, stamp });
    assert_eq!(leader.closed(), None, "the store comes first");
    leader.said.clear();
    (leader, question)
}

#[test]
fn handed_over_without_waiting_for_the_store() {
    let stamp = PeerStamp(Desk::leading(1).now.0 + 1);
    let (mut leader, question) = handing_over(stamp);
    let mut target = Desk::following(2, leader.stored.clone().unwrap().record);
    target.stored.clone_from(&leader.stored);
    target.changed();
    leader.run(0);
    assert_eq!(leader.closed(), Some(CloseReason::HandedOver));
    let armed = leader.stored.clone().unwrap();
    assert_eq!((&armed.record.holder, armed.record.heir), (&Some(member(1, 1)), Some(Heir { stamp, ..heir(2, 0) })));
    assert!(leader.messages().is_empty(), "a send may be outstanding");
    leader.say(Input::Drained { positions: BTreeMap::new() });
    leader.say(Input::Time);
    let ended = PeerMessage::Ended { question, positions: BTreeMap::new(), is_automatic: false };
    assert_eq!(leader.messages(), [(2, ended.clone())]);

    target.stored = Some(armed);
    target.now = MonoNs(stamp.0).plus(3 * MS);
    target.changed();
    target.run(0);
    assert_eq!(target.opened(), None);
    target.peer_says(1, ended);
    target.say(Input::Time);
    let deadline = MonoNs(stamp.0).plus(80 * MS);
    assert!(target.said.contains(&Output::Open { epoch: Epoch::new(2, 2), deadline }), "{:?}", target.said);
    let ended = Output::OthersEnded { epoch: Epoch::new(1, 1), positions: BTreeMap::new() };
    assert!(target.said.contains(&ended));
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
fn who_is_told_nothing_begins_when_the_record_says_so() {
    let (mut leader, _) = handing_over(PeerStamp(Desk::leading(1).now.0 + 1));
    leader.run(0);
    leader.say(Input::Drained { positions: BTreeMap::new() });
    leader.run(LeaseTiming::DEFAULT.renew_ns);
    let told = leader.messages().iter().filter(|(_, message)| matches!(message, PeerMessage::Ended { .. })).count();
    assert_eq!(told, 4);
    assert_eq!(leader.stored.as_ref().unwrap().record.holder, None);
    leader.run(WAIT_NS - 30 * MS);
    assert_eq!(leader.opened(), None, "the heir's time is not over");
    leader.run(WAIT_NS);
    assert_eq!(leader.opened(), Some(Epoch::new(3, 1)), "above what the heir may have opened");
}

#[test]
fn an_answer_to_another_prepare_moves_nothing() {
    let mut leader = Desk::leading(1);
    leader.peer_stands(2, Fitness::default());
    leader.say(Input::HandOver(None));
    let [(2, PeerMessage::Prepare(asked))] = leader.messages()[..] else { panic!("{:?}", leader.said) };
    let other = Question { nonce: asked.nonce + 1, ..asked };
    leader.peer_says(2, PeerMessage::Prepared { question: other, stamp: PeerStamp(leader.now.0) });
    leader.run(200 * MS);
    assert_eq!(leader.closed(), None);
}

#[test]
fn a_hand_over_that_the_store_does_not_take_closes_nothing() {
    let (mut leader, _) = handing_over(PeerStamp(1));
    leader.say(Input::Time);
    let (ticket, ..) = leader.take_swap().unwrap();
    leader.say(Input::Backend(RegisterEvent::Answer { ticket, outcome: Outcome::Refused }));
    leader.say(Input::Time);
    assert_eq!(leader.closed(), None);
    leader.run(MS);
    assert_eq!(leader.closed(), None, "its next renewal is not due");
    leader.run(LeaseTiming::DEFAULT.renew_ns);
    assert_eq!(leader.closed(), Some(CloseReason::HandedOver));
}

// ---- the heir ----

/// Gateway 2 of three, which knows that 1 leads and that `heir` was heard 10 ms ago.
fn with_heir(node: u8, heir_node: u8) -> Desk {
    let candidates: BTreeMap<NodeId, NodeName> = [1, 2, 3].map(|node| (NodeId(node), member(node, 0).name)).into();
    let stamp = Desk::new(node).now.0 - 10 * MS;
    Desk::following(node, Record { heir: Some(heir(heir_node, stamp)), candidates, ..record(5, &member(1, 1)) })
}

fn death_of(node: u8, epoch: Epoch) -> Input<RegisterEvent> {
    Input::Died(DeathNotice { holder: NodeId(node), incarnation: Incarnation(1), epoch })
}

#[test]
fn the_heir_of_a_dead_leader_opens_before_the_store_has_answered() {
    let mut desk = with_heir(2, 2);
    desk.run(20 * MS);
    desk.say(death_of(1, Epoch::new(5, 1)));
    desk.say(Input::Time);
    let deadline = MonoNs(1_000 * MS).plus(70 * MS);
    assert!(desk.said.contains(&Output::Open { epoch: Epoch::new(6, 2), deadline }), "{:?}", desk.said);
    desk.answer();
    assert!(desk.stored.as_ref().unwrap().record.is_held_by(&member(2, 1)));
    desk.run(500 * MS);
    assert_eq!(desk.closed(), None);
}

#[test]
fn an_heirs_lease_is_no_longer_than_the_records() {
    let mut desk = with_heir(2, 2);
    let shorter = Record { lease_ns: 50 * MS, ..desk.stored.clone().unwrap().record };
    desk.put(shorter);
    desk.changed();
    desk.say(death_of(1, Epoch::new(5, 1)));
    desk.say(Input::Time);
    let deadline = MonoNs(1_000 * MS).plus(20 * MS);
    assert!(desk.said.contains(&Output::Open { epoch: Epoch::new(6, 2), deadline }), "{:?}", desk.said);
}

#[test]
fn an_heir_leads_on_over_the_dead_ones_last_renewal_and_its_release() {
    for last in [|record: Record| Record { renewal: 1, ..record }, |record: Record| record.released()] {
        let mut desk = with_heir(2, 2);
        desk.say(death_of(1, Epoch::new(5, 1)));
        desk.say(Input::Time);
        let (ticket, ..) = desk.take_swap().unwrap();
        desk.put(last(desk.stored.clone().unwrap().record));
        desk.changed();
        desk.say(Input::Backend(RegisterEvent::Answer { ticket, outcome: Outcome::Refused }));
        desk.run(500 * MS);
        assert_eq!(desk.closed(), None);
        assert!(desk.stored.as_ref().unwrap().record.is_held_by(&member(2, 1)));
    }
}

#[test]
fn an_heir_without_store_and_confirmation_stops_when_its_stamp_is_over() {
    let mut desk = with_heir(2, 2);
    desk.say(death_of(1, Epoch::new(5, 1)));
    desk.run_without_store(70 * MS - 1);
    assert_eq!((desk.opened().is_some(), desk.closed()), (true, None), "{:?}", desk.said);
    assert!(
        !desk.messages().iter().any(|(_, message)| matches!(message, PeerMessage::PromiseAsk(_))),
        "it doesn't know all candidates"
    );
    desk.run_without_store(1);
    assert_eq!(desk.closed(), Some(CloseReason::Expired));
    desk.said.clear();
    desk.run_without_store(500 * MS);
    assert_eq!(desk.opened(), None, "a stamp serves once");
}

#[test]
fn an_heir_that_is_told_too_late_that_its_swap_took_effect_opens_again_without_a_leases_wait() {
    let mut desk = with_heir(2, 2);
    desk.run(60 * MS);
    desk.say(death_of(1, Epoch::new(5, 1)));
    desk.say(Input::Time);
    let (ticket, expected, record) = desk.take_swap().unwrap();
    desk.now = desk.now.plus(11 * MS);
    desk.say(Input::Time);
    assert_eq!(desk.closed(), Some(CloseReason::Expired));
    desk.said.clear();
    let outcome = desk.swap(expected, &record);
    desk.say(Input::Backend(RegisterEvent::Answer { ticket, outcome }));
    desk.run(0);
    assert_eq!(desk.opened(), Some(Epoch::new(7, 2)));
}

#[test]
fn from_one_leadership_one_inherits_once_though_its_record_comes_back() {
    let mut desk = with_heir(2, 2);
    desk.say(death_of(1, Epoch::new(5, 1)));
    desk.run(10 * MS);
    assert_eq!(desk.opened(), Some(Epoch::new(6, 2)));
    desk.said.clear();
    let old = Record { heir: Some(heir(2, desk.now.0)), renewal: 9, ..record(5, &member(1, 1)) };
    desk.stored = Some(Versioned { version: Version(1), record: old });
    desk.say(Input::Backend(RegisterEvent::Link(Link::Doubtful)));
    desk.run(10 * MS);
    assert_eq!((desk.closed(), desk.opened()), (Some(CloseReason::Lost), None));
}

#[test]
fn who_was_told_to_be_dead_inherits_nothing() {
    let mut desk = with_heir(2, 2);
    desk.say(death_of(2, Epoch::new(4, 2)));
    desk.say(death_of(1, Epoch::new(5, 1)));
    desk.say(Input::Time);
    assert_eq!(desk.opened(), None);
}

#[test]
fn an_heir_whose_stamp_is_over_asks_the_store() {
    let mut desk = with_heir(2, 2);
    desk.run(70 * MS);
    desk.say(death_of(1, Epoch::new(5, 1)));
    desk.say(Input::Time);
    assert_eq!(desk.opened(), None);
    desk.run(WAIT_NS - 70 * MS);
    assert_eq!(desk.opened(), Some(Epoch::new(6, 2)));
}

#[test]
fn another_start_of_the_heir_and_another_leadership_inherit_nothing() {
    let mut restarted = with_heir(2, 2);
    restarted.core.config.member.incarnation = Incarnation(2);
    let mut other = with_heir(2, 2);
    for (desk, epoch) in [(&mut restarted, Epoch::new(5, 1)), (&mut other, Epoch::new(4, 1))] {
        desk.say(death_of(1, epoch));
        desk.run(WAIT_NS - 1);
        assert_eq!(desk.opened(), None);
    }
}

#[test]
fn who_is_not_the_heir_waits_until_its_time_is_over_or_it_has_ended_too() {
    let mut desk = with_heir(3, 2);
    desk.run(60 * MS);
    let renewed = Record { renewal: 1, ..desk.stored.clone().unwrap().record };
    desk.put(renewed);
    desk.changed();
    desk.say(death_of(1, Epoch::new(5, 1)));
    desk.run(WAIT_NS - 60 * MS - 1);
    assert_eq!(desk.opened(), None);
    desk.run(1);
    assert_eq!(desk.opened(), Some(Epoch::new(7, 3)), "from when the stamp was learned, not the last renewal");

    let mut desk = with_heir(3, 2);
    desk.run(WAIT_NS - MS);
    let renewed = Record { heir: Some(heir(2, desk.now.0)), ..desk.stored.clone().unwrap().record };
    desk.put(renewed);
    desk.changed();
    desk.say(death_of(1, Epoch::new(5, 1)));
    desk.run(50 * MS);
    assert_eq!(desk.opened(), None);
    desk.say(death_of(2, Epoch::new(4, 2)));
    desk.run(MS);
    assert_eq!(desk.opened(), Some(Epoch::new(7, 3)));
}

#[test]
fn an_heir_stays_named_while_its_time_is_not_over() {
    let mut config = config(1);
    config.candidates.insert(NodeId(3), member(3, 0).name);
    let mut leader = Desk::with(config);
    leader.run(WAIT_NS + MS);
    let named = |leader: &Desk| leader.stored.as_ref().unwrap().record.heir.map(|heir| (heir.node.0, heir.stamp.0));
    leader.peer_stands(3, Fitness::default());
    let heard = leader.now;
    leader.run(25 * MS);
    assert_eq!(named(&leader), Some((3, heard.0)));
    // It is heard no more, and another is fitter.
    leader.peer_stands(3, Fitness { stalled: true, ..Fitness::default() });
    for _ in 0..4 {
        leader.peer_stands(2, Fitness::default());
        leader.run(20 * MS);
        assert_eq!(named(&leader), Some((3, heard.0)));
    }
    leader.peer_stands(2, Fitness::default());
    let heard = leader.now;
    leader.run(50 * MS);
    assert_eq!(named(&leader), Some((2, heard.0)));
}

/// When a leader offers the lead to gateway 2, which stands beside it for twelve seconds and is so fit.
fn offered_after_ms(leader: &mut Desk, peer: Fitness) -> Option<u64> {
    (0..12_000).step_by(20).find(|_| {
        leader.run(20 * MS);
        leader.peer_stands(2, peer);
        leader.messages().iter().any(|(_, message)| matches!(message, PeerMessage::Prepare(_)))
    })
}

#[test]
fn who_is_worse_by_a_class_hands_over_after_its_tenure_unless_pinned_or_different() {
    for (said, offers) in [
        (Input::Pin(Pin::Free), true),
        (Input::Pin(Pin::Pinned), false),
        (Input::Differs(false), true),
        (Input::Differs(true), false),
    ] {
        let mut leader = Desk::leading(1);
        leader.say(said);
        leader.say(Input::Fitness(Fitness { channels_failed: 1, ..Fitness::default() }));
        let offered = offered_after_ms(&mut leader, Fitness::default());
        assert_eq!(offered.is_some(), offers);
        assert!(offered.is_none_or(|ms| ms >= 9_900), "{offered:?}");
    }
}

#[test]
fn who_is_not_heard_hands_over_before_its_tenure_ends() {
    let mut leader = Desk::leading(1);
    leader.say(Input::Fitness(Fitness { output_unheard: true, ..Fitness::default() }));
    let offered = offered_after_ms(&mut leader, Fitness::default());
    assert!(offered.is_some_and(|ms| (240..400).contains(&ms)), "{offered:?}");
}

#[test]
fn a_pin_goes_with_the_record() {
    let mut leader = Desk::leading(1);
    leader.say(Input::Pin(Pin::Pinned));
    leader.run(50 * MS);
    let record = leader.stored.clone().unwrap().record;
    assert!(record.pinned);
    // Another leads, and is told otherwise.
    leader.put(Record { epoch: Epoch::new(9, 2), holder: Some(member(2, 1)), pinned: false, ..record });
    leader.changed();
    leader.run(2 * WAIT_NS + 50 * MS);
    let record = leader.stored.clone().unwrap().record;
    assert!(record.is_held_by(&member(1, 1)) && !record.pinned, "{record:?}");
}

#[test]
fn a_group_goes_where_it_belongs_after_its_leaders_tenure_unless_pinned_or_less_fit_there() {
    let stalled = Fitness { stalled: true, ..Fitness::default() };
    for (home, pin, peer, offers) in [
        (2, Pin::Free, Fitness::default(), true),
        (2, Pin::Pinned, Fitness::default(), false),
        (2, Pin::Free, stalled, false),
        (1, Pin::Free, Fitness::default(), false),
    ] {
        let mut leader = Desk::leading(1);
        leader.say(Input::Pin(pin));
        leader.say(Input::Placed(Place { home: Some(NodeId(home)), successor: None }));
        let offered = offered_after_ms(&mut leader, peer);
        assert_eq!(offered.is_some(), offers, "to {home}, {pin:?}, {peer:?}");
        assert!(offered.is_none_or(|ms| ms >= 9_900), "{offered:?}");
    }
}

#[test]
fn who_is_meant_to_follow_tries_first() {
    let candidates: BTreeMap<NodeId, NodeName> = [1, 2, 3].map(|node| (NodeId(node), member(node, 0).name)).into();
    let opens_after_ms = |node: u8, other: u8| {
        let mut desk = Desk::following(node, Record { candidates: candidates.clone(), ..record(5, &member(1, 1)) });
        desk.say(Input::Placed(Place { home: None, successor: Some(NodeId(3)) }));
        desk.peer_stands(other, Fitness::default());
        (0_u64..1_000).find(|_| {
            desk.run(MS);
            desk.opened().is_some()
        })
    };
    let [second, third] = [opens_after_ms(2, 3), opens_after_ms(3, 2)].map(Option::unwrap);
    assert_eq!(second - third, LeaseTiming::DEFAULT.renew_ns / 2 / MS, "{second} {third}");

    // Of a death they hear some time after the last renewal: that time is nobody's start.
    let opens_at_once = |node: u8, other: u8| {
        let record = Record { candidates: candidates.clone(), ..record(5, &member(1, 1)) };
        let mut desk = Desk::following(node, record.clone());
        desk.run(WAIT_NS - 2 * MS);
        desk.put(record);
        desk.changed();
        desk.run(15 * MS);
        desk.say(Input::Placed(Place { home: None, successor: Some(NodeId(3)) }));
        desk.peer_stands(other, Fitness::default());
        desk.say(Input::Died(DeathNotice { holder: NodeId(1), incarnation: Incarnation(1), epoch: Epoch::new(5, 1) }));
        desk.run(0);
        desk.opened().is_some()
    };
    assert_eq!([opens_at_once(2, 3), opens_at_once(3, 2)], [false, true]);
}

#[test]
fn a_wrong_clock_or_stuck_threads_end_renewal_and_candidacy() {
    for (input, obstacle) in [
        (Input::ClockRate { error_ppm: 201 }, Obstacle::ClockRate { error_ppm: 201, error_ppm_max: 200 }),
        (Input::Progress(Progress::Stuck), Obstacle::NoProgress),
    ] {
        let mut leader = Desk::leading(1);
        leader.say(input);
        leader.run(100 * MS);
        assert_eq!(leader.closed(), Some(CloseReason::Expired));
        leader.run(10 * WAIT_NS);
        assert_eq!(leader.opened(), None);
        assert_eq!(leader.core.view().obstacle, Some(obstacle));
    }
}

#[test]
fn another_configuration_does_not_stand_while_its_leader_runs_and_stops_nobody_for_good() {
    let theirs = ConfigurationMark { hash: 8, revision: 1, output_version: 1 };
    let mut desk = Desk::following(2, Record { configuration: theirs, ..record(5, &member(1, 1)) });
    desk.run(50 * WAIT_NS);
    assert_eq!(desk.opened(), None);
    assert!(matches!(desk.core.view().obstacle, Some(Obstacle::Configuration { .. })));
    desk.run(50 * WAIT_NS);
    assert!(desk.opened().is_some(), "last week's");

    let ours = ConfigurationMark { revision: 2, ..config(2).configuration };
    let mut newer = Desk::with(LeaseConfig { configuration: ours, ..config(2) });
    newer.put(Record { configuration: theirs, ..record(5, &member(1, 1)) });
    newer.run(WAIT_NS);
    assert!(newer.opened().is_some(), "a higher revision succeeds");
}

#[test]
fn who_is_not_named_asks_and_a_leader_names_whom_it_is_configured_with() {
    let mut stranger = Desk::following(3, record(5, &member(1, 1)));
    stranger.run(10 * WAIT_NS);
    assert_eq!(stranger.opened(), None);
    assert!(
        stranger.messages().iter().any(|(to, message)| *to == 1 && matches!(message, PeerMessage::AdmitAsk { .. }))
    );
    stranger.say(Input::Admit(NodeId(3), member(3, 0).name));
    stranger.run(WAIT_NS);
    assert!(stranger.opened().is_some(), "by hand");

    let mut leader = Desk::leading(1);
    let ask = |node| PeerMessage::AdmitAsk { member: member(node, 1), configuration: config(1).configuration };
    leader.peer_says(9, ask(9));
    leader.run(50 * MS);
    assert!(!leader.stored.as_ref().unwrap().record.candidates.contains_key(&NodeId(9)));
    leader.say(Input::Admit(NodeId(9), member(9, 0).name));
    leader.run(50 * MS);
    assert!(leader.stored.as_ref().unwrap().record.candidates.contains_key(&NodeId(9)));
}

#[test]
fn something_foreign_in_the_store_is_never_overwritten() {
    let mut desk = Desk::new(1);
    desk.say(Input::Time);
    for _ in 0..100 {
        if let Some(RegisterRequest::Read(ticket)) = desk.take_request() {
            let outcome = Outcome::Failed("not a record".to_owned());
            desk.say(Input::Backend(RegisterEvent::Answer { ticket, outcome }));
        }
        desk.run_without_store(5 * MS);
    }
    assert!(desk.take_swap().is_none());
    assert!(matches!(desk.core.view().obstacle, Some(Obstacle::ForeignRecord(_))));
}
