use super::*;
use crate::{
    identity::{DeathNotice, Incarnation},
    record::tests::member,
};

const MS: u64 = 1_000_000;
const T_MS: u64 = 600;

/// A latch and its last outputs.
struct Harness {
    latch: SessionLatch,
    now_ms: u64,
    outputs: Vec<Output<SessionRequest>>,
}

impl Harness {
    /// In a session and eligible; only the request to join the queue is outstanding.
    fn in_session() -> Self {
        let timing = LeaseTiming::from_ms(100, 20, 20);
        let latch = SessionLatch::new(SessionLatchConfig {
            member: member(1, 1),
            timing,
            configuration: ConfigVersion::default(),
            on_suspended: OnSuspended::Hold,
            own_epoch: Epoch::new(4, 1),
        });
        let mut harness = Self { latch, now_ms: 1_000, outputs: Vec::new() };
        harness.step(Input::Eligibility(Eligibility::Eligible));
        harness.begin(T_MS);
        harness
    }

    /// A gateway that leads since the present time.
    fn leading() -> (Self, Epoch) {
        let mut harness = Self::in_session();
        harness.answer(SessionAnswer::Done);
        harness.queue(&[1, 2], 9);
        harness.answer(SessionAnswer::Done);
        (harness, Epoch::new(10, 1))
    }

    fn step(&mut self, input: Input<SessionEvent>) {
        self.outputs = self.latch.step(MonoNs(self.now_ms * MS), input);
    }

    /// Begins a session that was requested just now.
    fn begin(&mut self, timeout_ms: u64) {
        let requested_at = MonoNs(self.now_ms * MS);
        self.event(SessionEvent::Started { timeout_ns: timeout_ms * MS, requested_at });
    }

    fn event(&mut self, event: SessionEvent) {
        self.step(Input::Backend(event));
    }

    fn at(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.step(Input::Time);
    }

    /// The id of the newest request.
    fn newest(&self) -> RequestId {
        RequestId(self.latch.last_request)
    }

    /// Answers the newest request.
    fn answer(&mut self, answer: SessionAnswer) {
        self.event(SessionEvent::Answer(self.newest(), answer));
    }

    /// Answers a read of the queue: these nodes are in it, node 1 is ours; the last epoch has that count.
    fn queue(&mut self, nodes: &[u8], epoch_count: u64) {
        let entry = |node: &u8| QueueEntry { name: format!("place-{node}"), member: Some(member(*node, 1)) };
        let own = nodes.iter().position(|node| *node == 1);
        let entries = nodes.iter().map(entry).collect();
        self.answer(SessionAnswer::Queue { entries, own, epoch: Epoch::new(epoch_count, 2), version: Version(3) });
    }

    fn requests(&self, request: impl FnOnce(RequestId) -> SessionRequest) -> bool {
        self.outputs.contains(&Output::Request(request(self.newest())))
    }

    fn deadline_ms(&self) -> Option<u64> {
        self.latch.leading.map(|leading| leading.deadline.0 / MS)
    }
}

#[test]
fn the_first_in_the_queue_leads_for_two_thirds_of_the_session_less_the_margin() {
    let mut harness = Harness::in_session();
    assert!(harness.requests(SessionRequest::Join));
    harness.answer(SessionAnswer::Done);
    assert!(harness.requests(SessionRequest::ReadQueue));
    harness.queue(&[1, 2], 9);
    let epoch = Epoch::new(10, 1);
    assert!(harness.requests(|request_id| SessionRequest::TakeEpoch { request_id, expected: Version(3), epoch }));
    // The session counts from when it was requested, not from when the request was answered.
    harness.now_ms += 50;
    harness.answer(SessionAnswer::Done);
    assert!(harness.outputs.contains(&Output::Open { epoch, deadline: MonoNs((1_000 + 400 - 20) * MS) }));
    assert_eq!(harness.latch.view().role, Role::Leader);
}

#[test]
fn a_new_epoch_exceeds_the_own_log_and_observed_epochs() {
    let mut harness = Harness::in_session();
    harness.step(Input::ObservedEpoch(Epoch::new(20, 2)));
    harness.answer(SessionAnswer::Done);
    // The store was restored from a backup.
    harness.queue(&[1], 1);
    let epoch = Epoch::new(21, 1);
    assert!(harness.requests(|request_id| SessionRequest::TakeEpoch { request_id, expected: Version(3), epoch }));
}

#[test]
fn a_queued_gateway_leads_when_its_predecessor_leaves() {
    let mut harness = Harness::in_session();
    harness.answer(SessionAnswer::Done);
    harness.queue(&[2, 1], 9);
    assert_eq!(harness.outputs, []);
    // The store receives requests of the session in time, however long the gateway stays in the queue.
    for now_ms in (1_120..60_000).step_by(120) {
        assert_eq!(harness.latch.next_deadline(), Some(MonoNs(now_ms * MS)));
        harness.at(now_ms);
        assert!(harness.requests(SessionRequest::KeepAlive));
        assert_eq!(harness.outputs.len(), 1);
        harness.answer(SessionAnswer::Done);
    }
    harness.event(SessionEvent::QueueChanged);
    assert!(harness.requests(SessionRequest::ReadQueue));
    harness.queue(&[1], 9);
    harness.answer(SessionAnswer::Done);
    assert_eq!(harness.latch.view().role, Role::Leader);
}

#[test]
fn only_an_answered_renewal_extends_the_deadline_from_its_send_time() {
    let (mut harness, epoch) = Harness::leading();
    assert_eq!(harness.deadline_ms(), Some(1_380));
    harness.at(1_020);
    assert!(harness.requests(SessionRequest::Renew));
    harness.now_ms = 1_300;
    harness.answer(SessionAnswer::Done);
    assert_eq!(harness.deadline_ms(), Some(1_400));
    assert!(harness.outputs.contains(&Output::Renew { deadline: MonoNs(1_400 * MS) }));
    assert!(harness.requests(SessionRequest::Renew));
    harness.answer(SessionAnswer::Unknown("time-out".to_owned()));
    assert_eq!(harness.deadline_ms(), Some(1_400));
    harness.at(1_400);
    assert!(harness.outputs.contains(&Output::Close { epoch, reason: CloseReason::Expired }));
    // Still first, but the next opening is another one: the store has received nothing of the session for so long that
    // the session may end before this renewal reaches the other nodes.
    harness.queue(&[1, 2], 10);
    assert_eq!(harness.outputs, []);
    assert_eq!(harness.latch.next_deadline(), Some(MonoNs(1_550_180_000)));
    harness.at(1_551);
    assert!(harness.requests(SessionRequest::ReadQueue));
    harness.queue(&[1, 2], 10);
    let epoch = Epoch::new(11, 1);
    assert!(harness.requests(|request_id| SessionRequest::TakeEpoch { request_id, expected: Version(3), epoch }));
}

#[test]
fn after_a_silent_session_the_fence_opens_only_when_the_store_has_confirmed_it() {
    let mut harness = Harness::in_session();
    harness.answer(SessionAnswer::Done);
    harness.queue(&[2, 1], 9);
    // The store receives nothing for nearly T. Then the entry before ours is gone.
    harness.now_ms += 580;
    harness.event(SessionEvent::QueueChanged);
    harness.queue(&[1], 9);
    assert_eq!(harness.outputs, [], "the epoch is not even asked for");
    harness.at(1_729);
    assert_eq!(harness.outputs, []);
    // The answer to the first request after that counts from when it was sent; then the epoch's answer from its own
    // request.
    harness.at(1_731);
    assert!(harness.requests(SessionRequest::ReadQueue));
    harness.queue(&[1], 9);
    harness.now_ms += 5;
    harness.answer(SessionAnswer::Done);
    assert_eq!(harness.deadline_ms(), Some(1_731 + 380));
}

#[test]
fn an_answer_after_its_own_deadline_does_not_open_the_fence() {
    let mut harness = Harness::in_session();
    harness.answer(SessionAnswer::Done);
    harness.queue(&[1, 2], 9);
    harness.now_ms += 380;
    harness.answer(SessionAnswer::Done);
    assert_eq!(harness.latch.view().role, Role::Candidate);
    assert!(harness.requests(SessionRequest::ReadQueue));
}

#[test]
fn no_state_outlives_its_session() {
    let (mut harness, epoch) = Harness::leading();
    harness.at(1_020);
    let renewal = harness.newest();
    harness.event(SessionEvent::StoreLink(StoreLink::Ended));
    assert!(harness.outputs.contains(&Output::Close { epoch, reason: CloseReason::Lost }));
    assert!(harness.outputs.contains(&Output::Connection(ConnectionState::Lost)));
    harness.begin(T_MS);
    assert!(harness.requests(SessionRequest::Join));
    harness.event(SessionEvent::Answer(renewal, SessionAnswer::Done));
    assert_eq!((harness.deadline_ms(), harness.latch.view().role), (None, Role::Ineligible));
}

#[test]
fn losing_the_queue_entry_ends_leadership_at_once() {
    let (mut harness, epoch) = Harness::leading();
    harness.at(1_020);
    harness.answer(SessionAnswer::Gone);
    assert!(harness.outputs.contains(&Output::Close { epoch, reason: CloseReason::Lost }));
    assert!(harness.requests(SessionRequest::Join));
}

#[test]
fn after_an_unknown_join_the_queue_shows_whether_an_entry_exists() {
    for (nodes, asks_again) in [([2, 1].as_slice(), false), ([2].as_slice(), true)] {
        let mut harness = Harness::in_session();
        harness.answer(SessionAnswer::Unknown("time-out".to_owned()));
        harness.at(1_020);
        assert!(harness.requests(SessionRequest::ReadQueue));
        harness.queue(nodes, 9);
        assert_eq!(harness.requests(SessionRequest::Join), asks_again);
    }
}

#[test]
fn close_removes_the_queue_entry() {
    let (mut harness, epoch) = Harness::leading();
    harness.step(Input::Close);
    assert_eq!(harness.outputs, [Output::Close { epoch, reason: CloseReason::Released }, Output::Drain]);
    harness.step(Input::Drained);
    assert!(harness.requests(SessionRequest::Leave));
    assert_ne!(harness.latch.view().role, Role::Closed);
    harness.answer(SessionAnswer::Done);
    assert_eq!(harness.latch.view().role, Role::Closed);
    harness.at(5_000);
    assert_eq!(harness.outputs, []);
}

#[test]
fn leadership_is_handed_only_to_the_next_in_the_queue() {
    let (mut harness, epoch) = Harness::leading();
    harness.step(Input::HandOver(Some(NodeId(3))));
    harness.queue(&[1, 2, 3], 10);
    assert!(matches!(
        harness.outputs.as_slice(),
        [Output::Notice(Notice::HandOverFailed { target: Some(NodeId(3)), .. })]
    ));
    assert_eq!(harness.latch.view().role, Role::Leader);
    harness.step(Input::HandOver(Some(NodeId(2))));
    harness.queue(&[1, 2, 3], 10);
    assert!(harness.outputs.contains(&Output::Close { epoch, reason: CloseReason::HandedOver }));
    assert!(harness.outputs.contains(&Output::Drain));
    assert!(!harness.requests(SessionRequest::Leave), "sends may be outstanding");
    harness.step(Input::Drained);
    assert!(harness.requests(SessionRequest::Leave));
    harness.answer(SessionAnswer::Done);
    assert!(harness.requests(SessionRequest::Join), "at the end of the line");
}

#[test]
fn a_death_notice_removes_only_that_incarnations_entry() {
    let mut harness = Harness::in_session();
    harness.answer(SessionAnswer::Done);
    harness.queue(&[2, 1], 9);
    let notice =
        |incarnation| DeathNotice { holder: NodeId(2), incarnation: Incarnation(incarnation), epoch: Epoch::new(9, 2) };
    harness.step(Input::Died(notice(7)));
    assert_eq!(harness.outputs, []);
    harness.step(Input::Died(notice(1)));
    assert!(harness.requests(|request_id| SessionRequest::Remove(request_id, "place-2".to_owned())));
}

/// A notice comes three times, and other gateways delete the entry too.
#[test]
fn removing_an_already_removed_entry_keeps_our_own() {
    let mut harness = Harness::in_session();
    harness.answer(SessionAnswer::Done);
    harness.queue(&[2, 1], 9);
    let notice = DeathNotice { holder: NodeId(2), incarnation: Incarnation(1), epoch: Epoch::new(9, 2) };
    harness.step(Input::Died(notice));
    let first = harness.newest();
    harness.step(Input::Died(notice));
    let second = harness.newest();
    harness.event(SessionEvent::Answer(first, SessionAnswer::Done));
    harness.queue(&[1], 9);
    harness.answer(SessionAnswer::Done);
    harness.event(SessionEvent::Answer(second, SessionAnswer::Gone));
    assert_eq!((harness.latch.view().role, harness.outputs), (Role::Leader, Vec::new()));
}

#[test]
fn a_session_too_short_for_three_renewals_is_ineligible() {
    let mut harness = Harness::in_session();
    harness.begin(110);
    assert_eq!(harness.outputs.iter().filter(|output| matches!(output, Output::Request(_))).count(), 0);
    assert!(matches!(harness.latch.view().obstacle, Some(Obstacle::SessionTooShort { .. })));
}

#[test]
fn a_leader_whose_threads_are_stuck_stops_and_leaves() {
    let (mut harness, epoch) = Harness::leading();
    harness.step(Input::Progress(Progress::PoolStuck));
    harness.at(1_100);
    assert_eq!(harness.outputs, [], "not renewed");
    harness.at(1_380);
    assert_eq!(harness.outputs, [Output::Close { epoch, reason: CloseReason::Expired }, Output::Drain]);
    harness.at(3_000);
    assert_eq!(harness.outputs, [], "its session is to end if its sends never do");
    harness.step(Input::Drained);
    assert!(harness.requests(SessionRequest::Leave));
}

#[test]
fn the_queue_entry_stays_while_sends_may_be_outstanding() {
    let (mut harness, _) = Harness::leading();
    harness.step(Input::HandOver(None));
    harness.queue(&[1, 2], 10);
    harness.step(Input::Progress(Progress::PoolStuck));
    harness.step(Input::Close);
    assert_eq!(harness.outputs, [], "also where several reasons to leave come together");
    harness.step(Input::Drained);
    assert!(harness.requests(SessionRequest::Leave));
}

/// A minute in which one packet in 10 ms carries an epoch above the leader's. The store answers after 2 ms. Returns the
/// milliseconds without an open fence, in all and at the longest, and the openings.
fn forge_for_a_minute(closes_when_outranked: bool, offset: u64) -> (u64, u64, u64) {
    let (mut harness, mut stored) = Harness::leading();
    harness.latch.closes_when_outranked = closes_when_outranked;
    let (mut version, mut answers) = (4, Vec::new());
    let (mut closed_ms, mut current_ms, mut longest_ms, mut openings) = (0, 0, 0, 0);
    let start_ms = harness.now_ms;
    for now_ms in start_ms..start_ms + 60_000 {
        harness.now_ms = now_ms;
        let mut inputs = vec![Input::Time];
        if now_ms.is_multiple_of(10) {
            inputs.push(Input::ObservedEpoch(Epoch::new(stored.count() + offset, 255)));
        }
        let (due, later): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(at_ms, _, _)| *at_ms <= now_ms);
        answers = later;
        inputs.extend(due.into_iter().map(|(_, id, answer)| Input::Backend(SessionEvent::Answer(id, answer))));
        for input in inputs {
            harness.step(input);
            for output in std::mem::take(&mut harness.outputs) {
                openings += u64::from(matches!(output, Output::Open { .. }));
                let (id, answer) = match output {
                    Output::Request(SessionRequest::ReadQueue(id)) => {
                        let entries = vec![QueueEntry { name: "place-1".to_owned(), member: Some(member(1, 1)) }];
                        let version = Version(version);
                        (id, SessionAnswer::Queue { entries, own: Some(0), epoch: stored, version })
                    }
                    Output::Request(SessionRequest::TakeEpoch { request_id, expected, epoch }) => {
                        assert_eq!(expected, Version(version));
                        (stored, version) = (epoch, version + 1);
                        (request_id, SessionAnswer::Done)
                    }
                    Output::Request(SessionRequest::Renew(id) | SessionRequest::KeepAlive(id)) => {
                        (id, SessionAnswer::Done)
                    }
                    _ => continue,
                };
                answers.push((now_ms + 2, id, answer));
            }
        }
        current_ms = if harness.latch.leading.is_some() { 0 } else { current_ms + 1 };
        closed_ms += u64::from(current_ms > 0);
        longest_ms = longest_ms.max(current_ms);
    }
    (closed_ms, longest_ms, openings)
}

#[test]
fn forged_epochs_do_not_close_a_leader() {
    for offset in [0, 1, 1_000] {
        let (closed_ms, longest_ms, openings) = forge_for_a_minute(false, offset);
        assert_eq!((closed_ms, longest_ms), (0, 0));
        assert!(openings > 5_900, "the leader goes above each forged epoch: {openings}");
    }
}

#[test]
fn forged_epochs_close_a_leader_that_closes_before_it_takes_an_epoch() {
    // Each forged packet costs the 4 ms of two requests.
    let (closed_ms, longest_ms, _) = forge_for_a_minute(true, 1);
    assert!(closed_ms > 20_000 && longest_ms >= 4, "{closed_ms} ms, {longest_ms} ms");
}
