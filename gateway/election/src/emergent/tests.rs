//! The membership in a simulated network: joins, failures, splits, merges.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mdgw_keys::KEY_BYTES;
use mdgw_sys::{clock_rate::ClockRate, fence::Fence};
use mdgw_wire::identity::GroupId;

use super::{
    datagrams::{MemberSocket, MembershipTransport},
    test_cluster::SimulatedNetwork,
    *,
};
use crate::{
    auth::SharedKey,
    driver::{self, Election, ElectionHooks, ElectionOptions},
    latch::LeaderLatch as _,
    record::tests::member,
    timing::LeaseTiming,
};

#[test]
fn members_are_ordered_by_age_and_the_oldest_leads() {
    let mut network = SimulatedNetwork::formed(5, 3, None);
    assert_eq!(network.ages(4), [0, 1, 2, 3, 4]);
    network.run_ms(5_000);
    assert_eq!(network.leaders(), [0]);
    assert_eq!((network.openings.len(), network.leaders_max), (1, 1));
}

#[test]
fn below_the_minimum_size_no_member_leads() {
    let mut network = SimulatedNetwork::new(3, 3, None);
    network.start(0);
    network.start(1);
    network.run_ms(5_000);
    assert_eq!(network.live_counts(), [Some(2), Some(2), None]);
    assert!(network.openings.is_empty());
    network.start(2);
    network.run_until(|network| network.leaders() == [0]);
}

#[test]
fn only_the_bootstrap_node_bootstraps() {
    let mut network = SimulatedNetwork::new(2, 1, None);
    network.start(1);
    network.run_ms(60_000);
    assert_eq!(network.live_counts(), [None, None]);
    let view = network.nodes[1].core.as_ref().unwrap().view();
    assert_eq!(view.obstacle, Some(Obstacle::NoMember), "reported, and it keeps asking");
    assert_eq!(view.connection, ConnectionState::Lost);
    network.start(0);
    network.run_until(|network| network.live_counts() == [Some(2), Some(2)]);
    assert_eq!(network.ages(1), [0, 1]);
}

/// Whether a member's state is an alarm.
fn is_alarmed(network: &SimulatedNetwork) -> bool {
    network.nodes.iter().filter_map(|node| node.core.as_ref()).any(|core| {
        let View { connection, obstacle, .. } = core.view();
        connection == ConnectionState::Lost || obstacle.is_some_and(|obstacle| !obstacle.is_temporary())
    })
}

#[test]
fn neither_a_start_nor_a_merge_of_two_sides_is_an_alarm() {
    // The node that bootstraps starts last, and after restarts of its host: pauses are pseudo-random.
    for restarts in 0..50 {
        let mut network = SimulatedNetwork::new(3, 2, None);
        for _ in 0..restarts {
            network.start(0);
        }
        network.kill(0);
        network.start(1);
        network.start(2);
        network.run_ms(500);
        network.start(0);
        network.run_until(|network| {
            assert!(!is_alarmed(network), "after {restarts} restarts");
            network.live_counts() == [Some(3); 3] && network.leaders() == [0]
        });
    }
    let mut network = SimulatedNetwork::formed(4, 2, None);
    network.isolate(&[0, 1]);
    network.run_until(|network| network.leaders() == [0, 2]);
    network.heal();
    network.run_until(|network| {
        assert!(!is_alarmed(network));
        network.live_counts() == [Some(4); 4] && network.leaders() == [0]
    });
}

#[test]
fn a_seed_that_is_down_does_not_stop_the_members() {
    let mut network = SimulatedNetwork::formed(3, 2, None);
    network.kill(1);
    network.run_until(|network| network.live_counts()[0] == Some(2));
    network.kill(0);
    network.run_ms(2_000);
    assert!(network.leaders().is_empty(), "one of three: below the minimum size");
    network.start(1);
    // The other seed is down: no asked node answers, until a probe names the coordinator.
    network.run_until(|network| network.leaders() == [2]);
    assert_eq!(network.ages(2), [2, 1]);
}

#[test]
fn the_next_oldest_leads_only_after_the_dead_leaders_fence_deadline() {
    let mut network = SimulatedNetwork::formed(4, 2, None);
    let until = network.nodes[0].fence;
    network.nodes[0].core = None;
    network.run_until(|network| network.leaders().contains(&1));
    assert_eq!(network.leaders(), [1]);
    assert!(network.now > until, "the dead one's fence was still open");
    network.run_ms(1);
    assert_eq!(network.ages(3), [1, 2, 3]);
    network.start(0);
    network.run_until(|network| network.live_counts() == [Some(4); 4] && network.ages(0) == [1, 2, 3, 0]);
    assert_eq!(network.ages(1), [1, 2, 3, 0], "it came back as the youngest");
    network.run_ms(3_000);
    assert_eq!(network.leaders(), [1]);
    assert!(network.epochs_are_unique());
}

#[test]
fn a_death_notice_skips_the_failure_time_out() {
    let mut network = SimulatedNetwork::formed(3, 2, None);
    let died = network.now;
    network.kill(0);
    let notice = DeathNotice { holder: NodeId(1), incarnation: Incarnation(1), epoch: network.openings[0].0 };
    for index in [1, 2] {
        network.step(index, Input::Died(notice));
    }
    network.run_until(|network| network.leaders() == [1]);
    assert!(network.now.since(died) < EmergentTiming::DEFAULT.heartbeat_ns, "at once");
    assert!(network.openings[1].0 > network.openings[0].0);
    // The notice is about that start alone.
    network.start(0);
    network.run_until(|network| network.live_counts() == [Some(3); 3]);
}

#[test]
fn a_death_notice_of_another_incarnation_is_ignored() {
    let mut network = SimulatedNetwork::formed(3, 2, None);
    for index in [1, 2] {
        let notice = DeathNotice { holder: NodeId(1), incarnation: Incarnation(7), epoch: Epoch::default() };
        network.step(index, Input::Died(notice));
    }
    network.run_ms(1_000);
    assert_eq!((network.leaders(), network.openings.len()), (vec![0], 1));
}

#[test]
fn a_split_has_one_leader_and_heals_into_one_membership() {
    let mut network = SimulatedNetwork::formed(5, 3, None);
    network.isolate(&[0, 1]);
    network.run_until(|network| network.leaders() == [2]);
    network.run_ms(3_000);
    assert_eq!(network.leaders(), [2]);
    assert_eq!(network.leaders_max, 1, "the smaller side had stopped before");
    network.heal();
    network.run_until(|network| network.live_counts() == [Some(5); 5]);
    assert_eq!(network.ages(0)[..3], [2, 3, 4], "the smaller side's members are the youngest now");
    network.run_ms(3_000);
    assert_eq!(network.leaders(), [2]);
    assert!(network.epochs_are_unique());
}

#[test]
fn a_claim_does_not_displace_a_leader_that_others_still_receive() {
    let after = |disabled| {
        let mut network = SimulatedNetwork::formed(3, 2, disabled);
        // Node 1 does not receive from node 0. Node 0 receives node 1 a while longer and so keeps it on its list.
        network.cuts.insert((0, 1));
        network.run_ms(90);
        network.cuts.insert((1, 0));
        let version =
            |network: &SimulatedNetwork| network.nodes[1].core.as_ref()?.membership().map(|own| own.list.version.by);
        network.run_until(|network| version(network) == Some(NodeId(2)));
        network.run_ms(300);
        network
    };
    let mut network = after(None);
    assert_eq!((network.leaders(), network.leaders_max), (vec![0], 1));
    network.heal();
    network.run_until(|network| network.live_counts() == [Some(3); 3]);
    assert_eq!((network.leaders(), network.openings.len()), (vec![0], 1), "it led all the time");
    assert_eq!(
        after(Some(Safeguard::DisplaceOnlySilent)).leaders_max,
        2,
        "without the rule two fences are open at once"
    );
}

#[test]
fn a_restarted_member_honours_the_promise_of_its_earlier_start() {
    let after = |disabled| {
        let mut network = SimulatedNetwork::formed(3, 2, disabled);
        // Nodes 0 and 1 are cut off from each other, and node 1 claims; node 2 still follows node 0.
        network.cuts.extend([(0, 1), (1, 0)]);
        network.run_ms(300);
        assert_eq!(network.leaders(), [0]);
        network.kill(2);
        // Node 2's requests to node 0 are lost.
        network.cuts.insert((2, 0));
        network.start(2);
        network.run_until(|network| network.leaders() == [1]);
        network.leaders_max
    };
    assert_eq!(after(None), 1);
    assert_eq!(after(Some(Safeguard::StartupWait)), 2, "its earlier start's promise still held");
}

#[test]
fn both_sides_lead_if_both_have_the_minimum_size_and_one_yields_after_the_split() {
    let mut network = SimulatedNetwork::formed(4, 2, None);
    network.isolate(&[0, 1]);
    network.run_until(|network| network.leaders() == [0, 2]);
    network.run_ms(2_000);
    assert_eq!(network.leaders(), [0, 2], "this backend prefers availability");
    network.heal();
    network.run_until(|network| network.live_counts() == [Some(4); 4] && network.leaders().len() == 1);
    assert_eq!(network.leaders(), [0], "of two equal sides that of the older coordinator stays");
    let last = network.openings.iter().max().unwrap();
    assert_eq!(last.2, 0, "above the other side's epoch: its receivers accept this one");
    assert!(network.epochs_are_unique());
}

#[test]
fn a_leader_that_others_do_not_receive_steps_down() {
    let mut network = SimulatedNetwork::formed(3, 2, None);
    network.cuts.extend([(0, 1), (0, 2)]);
    network.run_until(|network| network.leaders() == [1]);
    network.run_ms(5_000);
    assert_eq!(network.leaders(), [1]);
    network.heal();
    network.run_until(|network| network.live_counts() == [Some(3); 3]);
    assert_eq!(network.ages(1)[0], 1);
}

#[test]
fn a_member_that_missed_a_list_receives_it() {
    let mut network = SimulatedNetwork::new(3, 2, None);
    network.start(0);
    network.start(1);
    network.run_until(|network| network.live_counts() == [Some(2), Some(2), None]);
    // Too short for a failure, long enough to lose the list; the join is answered after its limit.
    network.cuts.insert((0, 1));
    network.start(2);
    network.run_until(|network| network.live_counts()[0] == Some(3));
    network.run_ms(1);
    assert_eq!(network.live_counts()[1], Some(2));
    network.heal();
    network.run_until(|network| network.live_counts()[1] == Some(3));
    network.run_until(|network| network.leaders() == [0]);
    assert!(network.openings.iter().all(|opening| opening.2 == 0));
}

#[test]
fn a_hand_over_goes_to_the_next_oldest_without_a_wait() {
    let mut network = SimulatedNetwork::formed(3, 2, None);
    network.step(0, Input::HandOver(Some(NodeId(3))));
    assert_eq!(network.leaders(), [0], "not the next");
    let (asked, epoch) = (network.now, network.openings[0].0);
    network.step(0, Input::HandOver(None));
    assert!(network.leaders().is_empty());
    network.run_until(|network| network.leaders() == [1]);
    assert!(network.now.since(asked) < EmergentTiming::DEFAULT.heartbeat_ns);
    assert_eq!(network.peer_output_ended, [(1, epoch)], "before it leads it knows where the output ended");
    network.run_until(|network| network.live_counts() == [Some(3); 3]);
    assert_eq!(network.ages(0), [1, 2, 0]);
    assert_eq!(network.leaders_max, 1);
}

#[test]
fn a_side_that_may_have_a_rival_lets_it_lead_for_as_long_as_itself() {
    let mut network = SimulatedNetwork::formed(2, 1, None);
    network.kill(1);
    network.run_until(|network| network.live_counts()[0] == Some(1));
    let failure_ns = EmergentTiming::DEFAULT.failure_ns;
    let mut waits = Vec::new();
    for _ in 0..9 {
        let (asked, count) = (network.now, network.openings.len());
        let above = Epoch::new(network.openings[count - 1].0.count() + 1, 9);
        network.step(0, Input::ObservedEpoch(above));
        network.run_until(|network| network.openings.len() > count);
        let (epoch, opened, by) = network.openings[count];
        assert!(epoch > above && by == 0);
        // The leader acts at its heartbeats.
        waits.push(opened.since(asked) / failure_ns);
        // Outranked again within its turn, the side leads on at once.
        let count = network.openings.len();
        if waits.len() > 1 {
            let above = Epoch::new(network.openings[count - 1].0.count() + 1, 9);
            network.step(0, Input::ObservedEpoch(above));
            assert_eq!((network.openings.len(), network.leaders()), (count + 1, vec![0]));
            network.run_ms(waits[waits.len() - 1] * failure_ns / 1_000_000 + 20);
        }
    }
    assert_eq!(waits, [0, 1, 2, 4, 4, 4, 4, 4, 4].map(|times: u64| times), "failure time-outs");
    network.run_ms(20_000);
    let (asked, count) = (network.now, network.openings.len());
    network.step(0, Input::ObservedEpoch(Epoch::new(network.openings[count - 1].0.count() + 1, 9)));
    assert_eq!((network.openings.len(), network.openings[count].1), (count + 1, asked), "long after, at once");
}

#[test]
fn a_leader_without_a_possible_rival_is_outranked_without_a_pause() {
    // With all members present, any node's epoch is forged; with one absent, that of a member that follows.
    for (absent, node) in [(None, 9), (Some(2), 2)] {
        let mut network = SimulatedNetwork::formed(3, 1, None);
        absent.into_iter().for_each(|index| network.kill(index));
        network.run_ms(500);
        for _ in 0..20 {
            let count = network.openings.len();
            let above = Epoch::new(network.openings[count - 1].0.count() + 1, node);
            network.step(0, Input::ObservedEpoch(above));
            assert_eq!((network.openings.len(), network.leaders()), (count + 1, vec![0]), "{absent:?}");
            assert!(network.openings[count].0 > above);
        }
    }
}

#[test]
fn close_leaves_the_member_list_at_once() {
    let mut network = SimulatedNetwork::formed(3, 2, None);
    let asked = network.now;
    network.step(0, Input::Close);
    network.run_until(|network| network.leaders() == [1]);
    assert!(network.now.since(asked) < EmergentTiming::DEFAULT.heartbeat_ns);
    network.step(2, Input::Close);
    network.run_ms(1);
    assert_eq!(network.ages(1), [1]);
    network.run_ms(1_000);
    assert!(network.leaders().is_empty());
}

#[test]
fn the_others_learn_of_an_end_when_no_send_is_outstanding() {
    let ends = [("close", Input::Close), ("hand-over", Input::HandOver(None))];
    for (what, input) in ends {
        let mut network = SimulatedNetwork::formed(3, 2, None);
        network.has_stalled_sends = true;
        network.step(0, input.clone());
        network.run_ms(50);
        assert_eq!((network.leaders(), network.live_counts()[1]), (vec![], Some(3)), "{what}");
        network.step(0, Input::Drained);
        let drained_at = network.now;
        network.run_until(|network| network.leaders() == [1]);
        assert!(network.now.since(drained_at) < EmergentTiming::DEFAULT.heartbeat_ns, "{what}");
    }
}

#[test]
fn sends_that_never_return_end_a_closing_member_in_silence() {
    let mut network = SimulatedNetwork::formed(3, 2, None);
    network.has_stalled_sends = true;
    network.step(0, Input::Close);
    network.run_ms(100);
    assert_eq!(network.nodes[0].core.as_ref().unwrap().view().role, Role::Closed);
    assert!(network.leaders().is_empty(), "its promises have not ended");
    network.run_until(|network| network.leaders() == [1]);
}

#[test]
fn above_eight_members_heartbeats_use_a_ring_and_failures_are_detected() {
    let per_second = |count: usize| {
        let mut network = SimulatedNetwork::formed(count, 2, None);
        let before = network.sent_count();
        network.run_ms(1_000);
        assert_eq!(network.leaders(), [0]);
        network.sent_count() - before
    };
    let (eight, twelve) = (per_second(8), per_second(12));
    assert_eq!(eight, 8 * 7 * 50);
    assert_eq!(twelve, 12 * 2 * 50);
    let mut network = SimulatedNetwork::formed(12, 2, None);
    // Two neighbours: the ring is cut until they are off the list.
    for index in [5, 6] {
        network.kill(index);
    }
    network.run_until(|network| network.live_counts()[11] == Some(10));
    network.run_ms(2_000);
    assert_eq!(network.ages(11), [0, 1, 2, 3, 4, 7, 8, 9, 10, 11], "no other member was marked failed");
    network.kill(0);
    network.run_until(|network| network.leaders() == [1]);
    // Members that received from the old coordinator later follow the new one later.
    let left = [1, 2, 3, 4, 7, 8, 9, 10, 11];
    network.run_until(|network| left.iter().all(|index| network.ages(*index) == left));
    assert_eq!(network.leaders(), [1]);
}

#[test]
fn a_message_is_accepted_neither_twice_nor_by_a_later_start() {
    let mut network = SimulatedNetwork::formed(2, 1, None);
    network
        .run_until(|network| network.in_flight.values().any(|outgoing| outgoing.to.ip().to_string().ends_with(".2")));
    let envelope = network
        .in_flight
        .values()
        .find(|outgoing| outgoing.to.ip().to_string().ends_with(".2"))
        .unwrap()
        .envelope
        .clone();
    network.run_ms(100);
    network.kill(0);
    network.run_until(|network| network.leaders() == [1]);
    let before = network.nodes[1].core.clone().unwrap();
    network.step(1, Input::Backend(*envelope.clone()));
    assert_eq!(network.nodes[1].core.as_ref().unwrap().membership(), before.membership());
    network.kill(1);
    network.start(1);
    network.step(1, Input::Backend(*envelope));
    assert!(network.nodes[1].core.as_ref().unwrap().last_received.is_empty(), "addressed to an earlier start");
}

#[test]
fn an_obstacle_stops_a_coordinator_from_leading_and_is_reported() {
    let mut network = SimulatedNetwork::formed(2, 1, None);
    network.step(0, Input::ClockRate(ClockRate::Within(10_000)));
    network.run_ms(200);
    assert!(network.leaders().is_empty());
    let view = network.nodes[0].core.as_ref().unwrap().view();
    assert!(matches!(view.obstacle, Some(Obstacle::ClockRate { error_ppm: 10_000, .. })), "{view:?}");
    network.step(0, Input::ClockRate(ClockRate::Within(0)));
    network.run_until(|network| network.leaders() == [0]);
    assert!(network.epochs_are_unique());
}

fn config(node: u8, address: SocketAddr, seeds: Vec<SocketAddr>) -> EmergentConfig {
    EmergentConfig {
        member: member(node, 1),
        address,
        seeds,
        bootstrap: if node == 1 { BootstrapMode::Bootstrap } else { BootstrapMode::JoinOnly },
        join_attempts: 4,
        minimum_size: 2,
        timing: EmergentTiming { failure_ns: 1_000_000_000, ..EmergentTiming::DEFAULT },
        own_epoch: Epoch::default(),
        configuration: ConfigVersion::default(),
        allow_split: true,
    }
}

#[test]
fn a_configuration_that_does_not_allow_splits_or_cannot_work_is_refused() {
    let (address, seed) = ("192.0.2.1:7000".parse().unwrap(), "192.0.2.2:7000".parse().unwrap());
    let good = config(2, address, vec![address, seed]);
    assert_eq!(good.check(), Ok(()));
    let refused = |config: EmergentConfig| Emergent::new(config).unwrap_err().to_string();
    assert!(refused(EmergentConfig { allow_split: false, ..good.clone() }).contains("allow_split = true"));
    assert!(refused(EmergentConfig { seeds: vec![address], ..good.clone() }).contains("seed"));
    assert!(refused(EmergentConfig { minimum_size: 0, ..good.clone() }).contains("minimum size 0"));
    let timing = EmergentTiming { margin_ns: 0, ..good.timing };
    assert!(refused(EmergentConfig { timing, ..good }).contains("margin 0 ns"));
}

struct NoHooks;

impl ElectionHooks for NoHooks {}

/// A member with a real socket, thread and clock.
fn run(node: u8, datagrams: MemberSocket, seeds: Vec<SocketAddr>) -> (Election, Arc<Fence>) {
    let core = Emergent::new(config(node, datagrams.address().unwrap(), seeds)).unwrap();
    let (inbox, waiting) = driver::inbox();
    let backend = Arc::new(MembershipTransport::start(datagrams).unwrap()).backend(GroupId(1), &inbox);
    let fence = Arc::new(Fence::closed());
    let options = ElectionOptions {
        group: node.into(),
        timing: LeaseTiming::CALM,
        core: None,
        fifo_priority: None,
        listeners_ns_max: 1_000_000_000,
        peers: Vec::new(),
    };
    let election = Election::new(core, backend, Arc::clone(&fence), waiting, &inbox, Box::new(NoHooks), options);
    election.set_eligibility(Eligibility::Eligible);
    election.start().unwrap();
    (election, fence)
}

#[test]
fn three_members_over_real_sockets_replace_their_leader() {
    let open = || {
        let key = SharedKey::new(&[7; KEY_BYTES]);
        MemberSocket::open((Ipv4Addr::LOCALHOST, 0).into(), key).unwrap()
    };
    let sockets = [(); 3].map(|()| open());
    let seeds: Vec<_> = sockets.iter().map(|socket| socket.address().unwrap()).collect();
    let mut members: Vec<_> = (1..).zip(sockets).map(|(node, socket)| run(node, socket, seeds.clone())).collect();
    let mut last = Epoch::default();
    for _ in 0..2 {
        let deadline = Instant::now() + Duration::from_secs(60);
        let leader = loop {
            assert!(Instant::now() < deadline, "no member leads");
            if let Some(leader) = members.iter().position(|(election, _)| election.has_leadership()) {
                break leader;
            }
            thread::yield_now();
        };
        let (election, fence) = members.swap_remove(leader);
        assert!(fence.epoch() > last);
        last = fence.epoch();
        election.close();
        assert!(!election.has_leadership());
    }
}
