use super::*;
use crate::{
    identity::{DeathNotice, Incarnation},
    record::tests::member,
};

const MS: u64 = 1_000_000;
const T_MS: u64 = 600;

/// A latch and what it said last.
struct Tried {
    latch: SessionLatch,
    now_ms: u64,
    outputs: Vec<Output<SessionRequest>>,
}

impl Tried {
    /// In a session, standing, nothing asked but a place.
    fn begun() -> Self {
        let timing = LeaseTiming::from_ms(100, 20, 20);
        let latch = SessionLatch::new(SessionLatchConfig {
            member: member(1, 1),
            timing,
            configuration: ConfigurationMark::default(),
            on_suspended: OnSuspended::Hold,
            own_epoch: Epoch::new(4, 1),
        });
        let mut tried = Self { latch, now_ms: 1_000, outputs: Vec::new() };
        tried.tell(Input::Standing(Standing::Stands));
        tried.begin(T_MS);
        tried
    }

    /// Leading since the time it is now, under an epoch with this count.
    fn leading() -> (Self, Epoch) {
        let mut tried = Self::begun();
        tried.answer(SessionAnswer::Done);
        tried.line(&[1, 2], 9);
        tried.answer(SessionAnswer::Done);
        (tried, Epoch::new(10, 1))
    }

    fn tell(&mut self, input: Input<SessionEvent>) {
        self.outputs = self.latch.step(MonoNs(self.now_ms * MS), input);
    }

    /// A session that was asked for just now.
    fn begin(&mut self, timeout_ms: u64) {
        let asked = MonoNs(self.now_ms * MS);
        self.event(SessionEvent::Began { timeout_ns: timeout_ms * MS, asked });
    }

    fn event(&mut self, event: SessionEvent) {
        self.tell(Input::Backend(event));
    }

    fn at(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.tell(Input::Time);
    }

    /// The ticket of the newest request.
    fn newest(&self) -> Ticket {
        Ticket(self.latch.tickets)
    }

    /// Answers the newest request.
    fn answer(&mut self, answer: SessionAnswer) {
        self.event(SessionEvent::Answer(self.newest(), answer));
    }

    /// Answers a look: these nodes stand in line, node 1 is ours; the last epoch has that count.
    fn line(&mut self, nodes: &[u8], epoch_count: u64) {
        let place = |node: &u8| Place { name: format!("place-{node}"), member: Some(member(*node, 1)) };
        let own = nodes.iter().position(|node| *node == 1);
        let places = nodes.iter().map(place).collect();
        self.answer(SessionAnswer::Line { places, own, epoch: Epoch::new(epoch_count, 2), version: Version(3) });
    }

    fn asks(&self, request: impl FnOnce(Ticket) -> SessionRequest) -> bool {
        self.outputs.contains(&Output::Request(request(self.newest())))
    }

    fn deadline_ms(&self) -> Option<u64> {
        self.latch.leading.map(|leading| leading.deadline.0 / MS)
    }
}

#[test]
fn the_first_in_line_leads_until_two_thirds_of_the_session_less_the_margin() {
    let mut tried = Tried::begun();
    assert!(tried.asks(SessionRequest::Join));
    tried.answer(SessionAnswer::Done);
    assert!(tried.asks(SessionRequest::Look));
    tried.line(&[1, 2], 9);
    let epoch = Epoch::new(10, 1);
    assert!(tried.asks(|ticket| SessionRequest::TakeEpoch { ticket, expected: Version(3), epoch }));
    // It counts from when it was asked, not from when it was answered.
    tried.now_ms += 50;
    tried.answer(SessionAnswer::Done);
    assert!(tried.outputs.contains(&Output::Open { epoch, deadline: MonoNs((1_000 + 400 - 20) * MS) }));
    assert_eq!(tried.latch.view().role, Role::Leader);
}

#[test]
fn the_epoch_is_above_what_the_own_log_has_and_what_was_heard() {
    let mut tried = Tried::begun();
    tried.tell(Input::Heard(Epoch::new(20, 2)));
    tried.answer(SessionAnswer::Done);
    // A store set back to a backup.
    tried.line(&[1], 1);
    let epoch = Epoch::new(21, 1);
    assert!(tried.asks(|ticket| SessionRequest::TakeEpoch { ticket, expected: Version(3), epoch }));
}

#[test]
fn who_is_not_first_waits_until_the_one_before_goes() {
    let mut tried = Tried::begun();
    tried.answer(SessionAnswer::Done);
    tried.line(&[2, 1], 9);
    assert_eq!(tried.outputs, []);
    // Its session is heard of meanwhile, however long it takes.
    for now_ms in (1_120..60_000).step_by(120) {
        assert_eq!(tried.latch.next_deadline(), Some(MonoNs(now_ms * MS)));
        tried.at(now_ms);
        assert!(tried.asks(SessionRequest::Touch));
        assert_eq!(tried.outputs.len(), 1);
        tried.answer(SessionAnswer::Done);
    }
    tried.event(SessionEvent::Stirred);
    assert!(tried.asks(SessionRequest::Look));
    tried.line(&[1], 9);
    tried.answer(SessionAnswer::Done);
    assert_eq!(tried.latch.view().role, Role::Leader);
}

#[test]
fn only_an_answered_renewal_moves_the_deadline_and_from_when_it_was_sent() {
    let (mut tried, epoch) = Tried::leading();
    assert_eq!(tried.deadline_ms(), Some(1_380));
    tried.at(1_020);
    assert!(tried.asks(SessionRequest::Renew));
    tried.now_ms = 1_300;
    tried.answer(SessionAnswer::Done);
    assert_eq!(tried.deadline_ms(), Some(1_400));
    assert!(tried.outputs.contains(&Output::Renew { deadline: MonoNs(1_400 * MS) }));
    assert!(tried.asks(SessionRequest::Renew));
    tried.answer(SessionAnswer::Unknown("time-out".to_owned()));
    assert_eq!(tried.deadline_ms(), Some(1_400));
    tried.at(1_400);
    assert!(tried.outputs.contains(&Output::Close { epoch, reason: CloseReason::Expired }));
    // Still first, but the opening that follows is another one: the store has not heard of the session for so long that it may
    // end before word of this comes.
    tried.line(&[1, 2], 10);
    assert_eq!(tried.outputs, []);
    assert_eq!(tried.latch.next_deadline(), Some(MonoNs(1_550_060_000)));
    tried.at(1_551);
    assert!(tried.asks(SessionRequest::Look));
    tried.line(&[1, 2], 10);
    let epoch = Epoch::new(11, 1);
    assert!(tried.asks(|ticket| SessionRequest::TakeEpoch { ticket, expected: Version(3), epoch }));
}

#[test]
fn a_session_that_was_silent_opens_nothing_before_word_of_it_has_come() {
    let mut tried = Tried::begun();
    tried.answer(SessionAnswer::Done);
    tried.line(&[2, 1], 9);
    // Nothing for nearly T; then the one before is gone.
    tried.now_ms += 580;
    tried.event(SessionEvent::Stirred);
    tried.line(&[1], 9);
    assert_eq!(tried.outputs, [], "the epoch is not even asked for");
    tried.at(1_729);
    assert_eq!(tried.outputs, []);
    // The answer to the first question after that counts from when it was asked; then the epoch's from its own.
    tried.at(1_731);
    assert!(tried.asks(SessionRequest::Look));
    tried.line(&[1], 9);
    tried.now_ms += 5;
    tried.answer(SessionAnswer::Done);
    assert_eq!(tried.deadline_ms(), Some(1_731 + 380));
}

#[test]
fn an_answer_that_comes_after_its_own_deadline_opens_nothing() {
    let mut tried = Tried::begun();
    tried.answer(SessionAnswer::Done);
    tried.line(&[1, 2], 9);
    tried.now_ms += 380;
    tried.answer(SessionAnswer::Done);
    assert_eq!(tried.latch.view().role, Role::Candidate);
    assert!(tried.asks(SessionRequest::Look));
}

#[test]
fn nothing_of_a_session_outlives_it() {
    let (mut tried, epoch) = Tried::leading();
    tried.at(1_020);
    let renewal = tried.newest();
    tried.event(SessionEvent::Link(Link::Ended));
    assert!(tried.outputs.contains(&Output::Close { epoch, reason: CloseReason::Lost }));
    assert!(tried.outputs.contains(&Output::Connection(ConnectionState::Lost)));
    tried.begin(T_MS);
    assert!(tried.asks(SessionRequest::Join));
    tried.event(SessionEvent::Answer(renewal, SessionAnswer::Done));
    assert_eq!((tried.deadline_ms(), tried.latch.view().role), (None, Role::Bystander));
}

#[test]
fn a_place_that_is_gone_ends_leadership_at_once() {
    let (mut tried, epoch) = Tried::leading();
    tried.at(1_020);
    tried.answer(SessionAnswer::Gone);
    assert!(tried.outputs.contains(&Output::Close { epoch, reason: CloseReason::Lost }));
    assert!(tried.asks(SessionRequest::Join));
}

#[test]
fn after_an_unknown_join_the_line_says_whether_there_is_a_place() {
    for (nodes, asks_again) in [([2, 1].as_slice(), false), ([2].as_slice(), true)] {
        let mut tried = Tried::begun();
        tried.answer(SessionAnswer::Unknown("time-out".to_owned()));
        tried.at(1_020);
        assert!(tried.asks(SessionRequest::Look));
        tried.line(nodes, 9);
        assert_eq!(tried.asks(SessionRequest::Join), asks_again);
    }
}

#[test]
fn closing_gives_up_the_place() {
    let (mut tried, epoch) = Tried::leading();
    tried.tell(Input::Close);
    assert_eq!(tried.outputs, [Output::Close { epoch, reason: CloseReason::Released }, Output::Drain]);
    tried.tell(Input::Drained { positions: BTreeMap::new() });
    assert!(tried.asks(SessionRequest::Leave));
    assert_ne!(tried.latch.view().role, Role::Closed);
    tried.answer(SessionAnswer::Done);
    assert_eq!(tried.latch.view().role, Role::Closed);
    tried.at(5_000);
    assert_eq!(tried.outputs, []);
}

#[test]
fn leadership_is_handed_to_the_next_in_line_and_to_nobody_else() {
    let (mut tried, epoch) = Tried::leading();
    tried.tell(Input::HandOver(Some(NodeId(3))));
    tried.line(&[1, 2, 3], 10);
    assert!(matches!(
        tried.outputs.as_slice(),
        [Output::Notice(Notice::HandOverFailed { target: Some(NodeId(3)), .. })]
    ));
    assert_eq!(tried.latch.view().role, Role::Leader);
    tried.tell(Input::HandOver(Some(NodeId(2))));
    tried.line(&[1, 2, 3], 10);
    assert!(tried.outputs.contains(&Output::Close { epoch, reason: CloseReason::HandedOver }));
    assert!(tried.outputs.contains(&Output::Drain));
    assert!(!tried.asks(SessionRequest::Leave), "sends may be outstanding");
    tried.tell(Input::Drained { positions: BTreeMap::new() });
    assert!(tried.asks(SessionRequest::Leave));
    tried.answer(SessionAnswer::Done);
    assert!(tried.asks(SessionRequest::Join), "at the end of the line");
}

#[test]
fn a_death_takes_away_that_incarnations_place_and_no_other() {
    let mut tried = Tried::begun();
    tried.answer(SessionAnswer::Done);
    tried.line(&[2, 1], 9);
    let notice =
        |incarnation| DeathNotice { holder: NodeId(2), incarnation: Incarnation(incarnation), epoch: Epoch::new(9, 2) };
    tried.tell(Input::Died(notice(7)));
    assert_eq!(tried.outputs, []);
    tried.tell(Input::Died(notice(1)));
    assert!(tried.asks(|ticket| SessionRequest::Remove(ticket, "place-2".to_owned())));
}

/// A notice comes three times, and others that have it act on it, too.
#[test]
fn a_dead_ones_place_that_is_gone_already_costs_nobody_the_own_one() {
    let mut tried = Tried::begun();
    tried.answer(SessionAnswer::Done);
    tried.line(&[2, 1], 9);
    let notice = DeathNotice { holder: NodeId(2), incarnation: Incarnation(1), epoch: Epoch::new(9, 2) };
    tried.tell(Input::Died(notice));
    let first = tried.newest();
    tried.tell(Input::Died(notice));
    let second = tried.newest();
    tried.event(SessionEvent::Answer(first, SessionAnswer::Done));
    tried.line(&[1], 9);
    tried.answer(SessionAnswer::Done);
    tried.event(SessionEvent::Answer(second, SessionAnswer::Gone));
    assert_eq!((tried.latch.view().role, tried.outputs), (Role::Leader, Vec::new()));
}

#[test]
fn a_session_too_short_for_three_renewals_stands_nowhere() {
    let mut tried = Tried::begun();
    tried.begin(110);
    assert_eq!(tried.outputs.iter().filter(|output| matches!(output, Output::Request(_))).count(), 0);
    assert!(matches!(tried.latch.view().obstacle, Some(Obstacle::SessionShort { .. })));
}

#[test]
fn a_leader_whose_threads_are_stuck_stops_and_leaves() {
    let (mut tried, epoch) = Tried::leading();
    tried.tell(Input::Progress(Progress::Stuck));
    tried.at(1_100);
    assert_eq!(tried.outputs, [], "not renewed");
    tried.at(1_380);
    assert_eq!(tried.outputs, [Output::Close { epoch, reason: CloseReason::Expired }]);
    // What passed the fence at the last moment is out by then.
    assert_eq!(tried.latch.next_deadline(), Some(MonoNs(1_390 * MS)));
    tried.at(1_390);
    assert!(tried.asks(SessionRequest::Leave));
}

#[test]
fn a_place_stays_while_sends_may_be_under_way() {
    let (mut tried, _) = Tried::leading();
    tried.tell(Input::HandOver(None));
    tried.line(&[1, 2], 10);
    tried.tell(Input::Progress(Progress::Stuck));
    tried.tell(Input::Close);
    assert_eq!(tried.outputs, [Output::Drain], "also where several reasons to leave come together");
    tried.tell(Input::Drained { positions: BTreeMap::new() });
    assert!(tried.asks(SessionRequest::Leave));
}
