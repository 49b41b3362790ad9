//! A leader that is outranked.

use super::*;

#[test]
fn an_outranked_leader_keeps_its_fence_open_until_the_store_has_its_higher_epoch() {
    let mut harness = Harness::leading(1);
    harness.run(30 * MS);
    harness.outputs.clear();
    harness.step(Input::ObservedEpoch(Epoch::new(70, 2)));
    harness.step(Input::Time);
    assert!(harness.outputs.contains(&Output::Notice(Notice::HigherEpochObserved(Epoch::new(70, 2)))));
    let is_closed = |output: &Output<_>| matches!(output, Output::Close { .. });
    assert!(!harness.outputs.iter().any(is_closed), "the store has not answered");
    assert_eq!(harness.core.view().role, Role::Leader);
    harness.run(MS);
    // Closed and opened in one step: nothing is silent in between.
    let changes = harness.outputs.iter().filter(|output| is_closed(output) || matches!(output, Output::Open { .. }));
    let epochs: Vec<_> = changes
        .map(|output| match output {
            Output::Close { epoch, .. } | Output::Open { epoch, .. } => *epoch,
            _ => Epoch::default(),
        })
        .collect();
    assert_eq!(epochs, [Epoch::new(1, 1), Epoch::new(71, 1)]);
    // The record shows the epoch, so that the next leader opens above it.
    assert_eq!(harness.stored.as_ref().unwrap().record.epoch, Epoch::new(71, 1));
}

/// A leader whose renewal under a higher epoch is on its way to the store. Gateway 2 is eligible.
fn raising() -> (Harness, (RequestId, Version, Box<Record>)) {
    let mut leader = Harness::leading(1);
    leader.run(30 * MS);
    leader.peer_is_eligible(2, Fitness::default());
    leader.step(Input::ObservedEpoch(Epoch::new(70, 2)));
    leader.step(Input::Time);
    let swap = leader.take_swap().unwrap();
    assert_eq!(swap.2.epoch, Epoch::new(71, 1));
    leader.outputs.clear();
    (leader, swap)
}

/// The targets of hand-overs that were reported as failed.
fn failed_hand_overs(leader: &Harness) -> Vec<Option<NodeId>> {
    let targets = leader.outputs.iter().filter_map(|output| match output {
        Output::Notice(Notice::HandOverFailed { target, .. }) => Some(*target),
        _ => None,
    });
    targets.collect()
}

fn prepares(leader: &Harness) -> Vec<LeaderRequest> {
    let requests = leader.messages().into_iter().filter_map(|(_, message)| match message {
        PeerMessage::Prepare(request) => Some(request),
        _ => None,
    });
    requests.collect()
}

#[test]
fn a_hand_over_requested_during_a_raise_begins_when_the_target_can_know_the_raised_epoch() {
    let (mut leader, (request_id, expected, record)) = raising();
    leader.step(Input::HandOver(None));
    leader.step(Input::Time);
    let outcome = leader.swap(expected, &record);
    leader.step(Input::Backend(RegisterEvent::Answer { request_id, outcome }));
    // A still higher epoch: the hand-over goes first.
    leader.step(Input::ObservedEpoch(Epoch::new(80, 9)));
    leader.run(LeaseTiming::DEFAULT.renew_ns - 1);
    assert_eq!(leader.opened(), Some(Epoch::new(71, 1)));
    assert_eq!((prepares(&leader), failed_hand_overs(&leader)), (vec![], vec![]));
    leader.run(1);
    let [request] = prepares(&leader)[..] else { panic!("{:?}", leader.outputs) };
    assert_eq!(request.epoch, Epoch::new(71, 1));
    leader.peer_sends(2, PeerMessage::Prepared { request, stamp: PeerTimestamp(leader.now.0) });
    leader.outputs.clear();
    leader.run(0);
    assert_eq!(leader.closed(), Some(CloseReason::HandedOver));
    assert!(failed_hand_overs(&leader).is_empty());
}

#[test]
fn a_hand_over_requested_during_a_raise_that_the_store_refuses_begins_under_the_present_epoch() {
    let (mut leader, (request_id, ..)) = raising();
    leader.step(Input::HandOver(None));
    leader.step(Input::Backend(RegisterEvent::Answer { request_id, outcome: Outcome::Refused }));
    leader.run(MS);
    assert_eq!(prepares(&leader).iter().map(|request| request.epoch).collect::<Vec<_>>(), [Epoch::new(1, 1)]);
    assert_eq!((leader.opened(), failed_hand_overs(&leader)), (None, vec![]));
}

#[test]
fn a_hand_over_fails_if_the_store_does_not_answer_the_raise_before_it() {
    let (mut leader, _) = raising();
    leader.step(Input::HandOver(None));
    leader.step(Input::HandOver(Some(NodeId(2))));
    assert_eq!(failed_hand_overs(&leader), [Some(NodeId(2))], "one hand-over at a time");
    leader.outputs.clear();
    leader.run_without_store(2 * LeaseTiming::DEFAULT.renew_ns - 1);
    assert!(failed_hand_overs(&leader).is_empty());
    leader.run_without_store(1);
    assert_eq!((failed_hand_overs(&leader), leader.closed()), (vec![Some(NodeId(2))], None));
}

#[test]
fn a_hand_over_has_failed_when_the_former_leader_leads_again() {
    let stamp = PeerTimestamp(Harness::leading(1).now.0 + 1);
    let (mut leader, _) = handing_over(stamp);
    leader.run(0);
    leader.step(Input::Drained);
    leader.run(WAIT_NS / 2);
    assert_eq!((leader.opened(), failed_hand_overs(&leader)), (None, vec![]), "the target may still take over");
    leader.run(2 * WAIT_NS);
    assert_eq!(leader.opened(), Some(Epoch::new(3, 1)));
    assert_eq!(failed_hand_overs(&leader), [Some(NodeId(2))]);

    let taken_over = record(2, &member(2, 1));
    for (later, failed) in [
        // The target leads and releases the record. The former leader leads again after it.
        (vec![taken_over.clone(), taken_over.released()], vec![]),
        // The target wrote the record, and learned that too late to open.
        (vec![taken_over], vec![Some(NodeId(2))]),
    ] {
        let (mut leader, _) = handing_over(stamp);
        leader.run(0);
        leader.step(Input::Drained);
        for record in later {
            leader.put(record);
            leader.changed();
        }
        leader.run(2 * WAIT_NS);
        assert_eq!((leader.opened(), failed_hand_overs(&leader)), (Some(Epoch::new(3, 1)), failed));
    }
}

#[test]
fn a_hand_over_has_failed_when_its_leadership_ends_before() {
    for end in [Input::Backend(RegisterEvent::StoreLink(StoreLink::Ended)), Input::Close] {
        let mut offering = Harness::leading(1);
        offering.peer_is_eligible(2, Fitness::default());
        let (deferring, _) = raising();
        for mut leader in [offering, deferring] {
            leader.step(Input::HandOver(None));
            leader.step(end.clone());
            assert!(leader.closed().is_some());
            assert_eq!(failed_hand_overs(&leader), [Some(NodeId(2))]);
        }
    }
}
