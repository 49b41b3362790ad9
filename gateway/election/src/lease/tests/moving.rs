//! Whether a leader whose output nobody receives waits for its minimum tenure, depending on how it came to lead. An
//! earlier move has been counted in each record here.

use super::*;

/// Gateway 1 follows a record of gateway 2, which leads under (5, 2).
fn following_gateway_2(change: impl FnOnce(Record) -> Record) -> Harness {
    Harness::following(1, change(Record { automatic_moves: 1, ..record(5, &member(2, 1)) }))
}

/// Whether an unreceived leader offers leadership to gateway 2 without waiting for its tenure, which is 20 s here.
fn moves_at_once(leader: &mut Harness) -> bool {
    assert!(matches!(leader.core.phase, Phase::Leading(_)), "{:?}", leader.core.phase);
    leader.outputs.clear();
    leader.step(Input::Fitness(Fitness { output_not_received: true, ..Fitness::default() }));
    (0..20).any(|_| {
        leader.peer_is_eligible(2, Fitness::default());
        leader.run(20 * MS);
        leader.messages().iter().any(|(_, message)| matches!(message, PeerMessage::Prepare(_)))
    })
}

#[test]
fn after_an_election_an_unreceived_leader_moves_at_once_only_if_it_received_the_leader_before() {
    type Election = fn() -> Harness;
    let elections: [(&str, Election); 3] = [
        ("the lease ran out", || following_gateway_2(|record| record)),
        ("the holder died", || {
            let mut harness = following_gateway_2(|record| record);
            harness.step(death_of(2, Epoch::new(5, 2)));
            harness
        }),
        ("the holder died and had named a successor", || {
            let stamp = Harness::new(1).now.0 - 10 * MS;
            let mut harness = following_gateway_2(|record| Record { successor: Some(successor(1, stamp)), ..record });
            harness.step(death_of(2, Epoch::new(5, 2)));
            harness
        }),
    ];
    for (election, elect) in elections {
        for has_received in [false, true] {
            let mut leader = elect();
            if has_received {
                leader.step(Input::ObservedEpoch(Epoch::new(5, 2)));
            }
            leader.run(WAIT_NS);
            assert_eq!(leader.opened(), Some(Epoch::new(6, 1)), "{election}");
            assert_eq!(moves_at_once(&mut leader), has_received, "{election}");
        }
    }
}

#[test]
fn an_unreceived_leader_that_leads_again_after_its_own_leadership_waits_for_its_tenure() {
    for is_received in [false, true] {
        let mut leader = following_gateway_2(|record| record);
        leader.run(WAIT_NS);
        if is_received {
            leader.step(Input::OutputReceived);
        }
        // Its lease ends, and it swaps its own record.
        leader.step(Input::Backend(RegisterEvent::StoreLink(StoreLink::Ended)));
        leader.outputs.clear();
        leader.run(WAIT_NS);
        assert_eq!(leader.opened(), Some(Epoch::new(7, 1)));
        assert_eq!(moves_at_once(&mut leader), is_received);
    }
}

#[test]
fn an_unreceived_leader_that_swapped_after_a_hand_over_waits_for_its_tenure() {
    // It missed the end message, and found the released record.
    let mut leader = following_gateway_2(|record| record.released());
    leader.step(Input::ObservedEpoch(Epoch::new(5, 2)));
    leader.run(WAIT_NS);
    assert!(!moves_at_once(&mut leader));

    // Its own epoch is above the one that follows the record's, so it swaps the record before it opens.
    let mut leader = Harness::with(LeaseConfig { own_epoch: Epoch::new(40, 1), ..config(1) });
    leader.put(Record { automatic_moves: 1, ..record(5, &member(2, 1)) });
    leader.run(0);
    leader.step(Input::ObservedEpoch(Epoch::new(5, 2)));
    let request = LeaderRequest { requester: NodeId(2), ..request(Epoch::new(5, 2), 1) };
    leader.peer_sends(2, PeerMessage::LeadershipEnded { request, is_automatic: false });
    leader.run(WAIT_NS);
    assert_eq!(leader.opened(), Some(Epoch::new(41, 1)));
    assert!(!moves_at_once(&mut leader));

    // A gateway that has received its output shows that the move helped.
    leader.step(Input::OutputReceived);
    assert!(moves_at_once(&mut leader));
}
