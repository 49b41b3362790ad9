//! The voted lease under a simulated network, clock and disk. `SEED=n` repeats one seed, `SEEDS=n` sets how
//! many seeds run.

mod cluster;

use std::{cell::Cell, env};

use cluster::{Faults, QuorumCluster, QuorumSetup, Violation};
use mdgw_election::{
    auto_move::AutoMoveConfig,
    core::{CloseReason, GroupPlacement, Input, Pin},
    fitness::{Eligibility, Fitness},
    identity::{Incarnation, Member, NodeId, NodeName},
    peer::{PeerMessage, PeerState},
    quorum::voter::QuorumSafeguards,
    record::{CONFIG_MISMATCH_WAIT_LEASES, ConfigVersion, PeerTimestamp},
    timing::LeaseTiming,
};
use mdgw_feeds::identity::Epoch;

use crate::forger::{ForgedGroup, ForgedMinute, Offset};

const MS: u64 = 1_000_000;

/// Two gateways and a witness at 20/4 ms.
const PAIR: QuorumSetup = QuorumSetup {
    gateways: 2,
    witnesses: 1,
    timing: LeaseTiming::from_ms(20, 4, 4),
    safeguards: QuorumSafeguards::ALL,
    votes_survive_restart: true,
    receivers_check_epochs: true,
    moves: None,
    faults: Faults::NONE,
};

/// Leaders hand over automatically, after a shorter tenure than in any real configuration.
const AUTO_MOVES: QuorumSetup = QuorumSetup {
    moves: Some(AutoMoveConfig {
        worse_for_ns: 10 * MS,
        tenure_ns: 50 * MS,
        tenure_ns_max: 800 * MS,
        moves_reset_ns: 100_000 * MS,
    }),
    ..PAIR
};

/// All kinds of faults, often.
const HEAVY_FAULTS: Faults = Faults {
    loss_share: 0.1,
    duplicate_share: 0.05,
    delay_ns: 200_000,
    long_delay_ns: 30 * MS,
    store_ns: 500_000,
    long_store_ns: 20 * MS,
    full_disk: 0.02,
    kill_every_ns: 80 * MS,
    partition_every_ns: 100 * MS,
    pause_every_ns: 60 * MS,
    hand_over_every_ns: 50 * MS,
    stop_every_ns: 70 * MS,
    stalled_send_share: 0.3,
    forge_every_ns: 40 * MS,
    fitness_every_ns: 0,
    rate_ppm: 200,
};

/// Runs many seeds, or the one that `SEED` names, and reports the seed that fails.
fn run_seeds(count: u64, check: impl Fn(u64) -> Result<(), String>) {
    let named = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match named("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..named("SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        if let Err(what) = check(seed) {
            panic!("SEED={seed}: {what}");
        }
    }
}

/// A period of faults, then none. Safety holds in both; at the end a gateway leads, and each requested hand-over has ended or was
/// reported as failed.
fn run_faults_then_recover(seed: u64, setup: QuorumSetup) -> Result<QuorumCluster, String> {
    let mut cluster = QuorumCluster::new(seed, setup);
    cluster.run_for(600 * MS);
    cluster.stop_faults();
    cluster.run_for(400 * MS);
    match &cluster.violation {
        Some(violation) => Err(format!("not safe: {violation:?}")),
        None if cluster.leading().is_none() => Err("not live: no gateway leads after 400 ms without faults".to_owned()),
        None if !cluster.leader_is_received() => Err("unreceived: receivers drop the leader's packets".to_owned()),
        // A failure may be of an automatic hand-over, which nobody requested.
        None if setup.moves.is_some() => Ok(cluster),
        None => cluster
            .unreported_hand_over()
            .map_or(Ok(cluster), |gateway| Err(format!("{UNREPORTED}: requested of gateway {gateway}"))),
    }
}

const UNREPORTED: &str = "a hand-over ended without a new leader and without a report";

/// The first of these seeds with a violation.
fn first_violation(setup: QuorumSetup, seeds: u64) -> Option<(u64, Violation)> {
    (0..seeds).find_map(|seed| {
        let mut cluster = QuorumCluster::new(seed, setup);
        cluster.run_for(600 * MS);
        cluster.violation.map(|violation| (seed, violation))
    })
}

#[test]
fn at_most_one_leader_during_faults_and_one_after() {
    let shapes = [(2, 1), (3, 0), (3, 2), (2, 3)];
    run_seeds(2_000, |seed| {
        let (gateways, witnesses) = shapes[usize::try_from(seed % 4).unwrap()];
        run_faults_then_recover(seed, QuorumSetup { gateways, witnesses, faults: HEAVY_FAULTS, ..PAIR }).map(drop)
    });
}

#[test]
fn at_most_one_leader_during_automatic_moves() {
    let faults = Faults { fitness_every_ns: 30 * MS, ..HEAVY_FAULTS };
    run_seeds(1_000, |seed| {
        let gateways = 2 + u8::try_from(seed % 2).unwrap();
        run_faults_then_recover(seed, QuorumSetup { gateways, witnesses: 3 - gateways, faults, ..AUTO_MOVES }).map(drop)
    });
}

#[test]
fn a_dead_leader_is_replaced_within_lease_poll_and_vote() {
    run_seeds(200, |seed| {
        let mut cluster = QuorumCluster::new(seed, PAIR);
        cluster.run_for(200 * MS);
        let leader = cluster.leading().ok_or("no gateway leads")?;
        let (killed_ns, before) = (cluster.now_ns(), cluster.opened.len());
        cluster.kill(leader);
        cluster.run_until(|cluster| cluster.opened.len() > before || cluster.now_ns() > killed_ns + 200 * MS);
        // Lease L on a slow clock, L (1 + rho), after the last renewal; then poll, vote with a disk write, and wake-ups. Message
        // delays are about 0.1 ms here.
        let took_ns = cluster.now_ns() - killed_ns;
        if took_ns > 20 * MS + 10 * MS { Err(format!("took {took_ns} ns")) } else { Ok(()) }
    });
}

#[test]
fn death_notice_release_and_hand_over_skip_the_lease_wait() {
    run_seeds(200, |seed| {
        type Operation = fn(&mut QuorumCluster, NodeId);
        let operations: [(&str, Operation); 3] = [
            ("notice", |cluster, leader| {
                let notice = cluster.kill(leader);
                cluster.announce(notice);
            }),
            ("release", |cluster, leader| cluster.close(leader)),
            ("hand-over", |cluster, _| cluster.hand_over(None)),
        ];
        for (name, operation) in operations {
            // The lease is longer than the time limit of this test, so no gateway can have waited for it.
            let mut cluster = QuorumCluster::new(seed, QuorumSetup { timing: LeaseTiming::CALM, ..PAIR });
            cluster.run_until(|cluster| cluster.leading().is_some() || cluster.now_ns() > 20_000 * MS);
            cluster.run_for(500 * MS);
            let leader = cluster.leading().ok_or("no gateway leads")?;
            let (at_ns, before) = (cluster.now_ns(), cluster.opened.len());
            operation(&mut cluster, leader);
            cluster.run_until(|cluster| cluster.opened.len() > before || cluster.now_ns() > at_ns + 5_000 * MS);
            let took_ns = cluster.now_ns() - at_ns;
            if took_ns > 50 * MS || cluster.leading() == Some(leader) {
                return Err(format!("{name} took {took_ns} ns, {:?}", cluster.violation));
            }
        }
        Ok(())
    });
}

#[test]
fn without_faults_there_is_one_election() {
    run_seeds(50, |seed| {
        let mut cluster = QuorumCluster::new(seed, PAIR);
        cluster.run_for(2_000 * MS);
        if cluster.opened.len() == 1 { Ok(()) } else { Err(format!("{:?}", cluster.opened)) }
    });
}

#[test]
fn a_leader_keeps_leading_without_one_voter_and_stops_without_a_majority() {
    run_seeds(100, |seed| {
        let mut cluster = QuorumCluster::new(seed, PAIR);
        cluster.run_for(200 * MS);
        let leader = cluster.leading().ok_or("no gateway leads")?;
        let other = NodeId(3 - leader.0);
        // Cut one way: the standby receives nothing, so the promise of its voter expires. The witness still renews.
        cluster.cut(leader, other);
        cluster.run_for(300 * MS);
        if cluster.opened.len() != 1 || cluster.leading() != Some(leader) {
            return Err(format!("leadership moved although a majority renewed: {:?}", cluster.opened));
        }
        cluster.cut(leader, NodeId(3));
        cluster.run_for(100 * MS);
        let expired = cluster.closed.iter().any(|(_, node, reason)| *node == leader && *reason == CloseReason::Expired);
        if !expired || cluster.leading() != Some(other) {
            return Err(format!("{:?} {:?}", cluster.opened, cluster.closed));
        }
        Ok(())
    });
}

#[test]
fn the_fitter_gateway_leads_and_a_joining_one_is_not_eligible() {
    run_seeds(100, |seed| {
        let mut cluster = QuorumCluster::new(seed, PAIR);
        let worse = NodeId(1 + u8::try_from(seed % 2).unwrap());
        cluster.input(worse, Input::Fitness(Fitness { channels_behind: 1, ..Fitness::default() }));
        cluster.run_for(200 * MS);
        let leader = cluster.leading().ok_or("no gateway leads")?;
        if leader == worse {
            return Err("the less fit gateway leads although the other is eligible".to_owned());
        }
        cluster.kill(leader);
        cluster.run_for(200 * MS);
        if cluster.leading() != Some(worse) {
            return Err("alone, the less fit gateway must lead".to_owned());
        }
        cluster.start(leader);
        cluster.input(leader, Input::Eligibility(Eligibility::Joining));
        cluster.run_for(100 * MS);
        cluster.kill(worse);
        cluster.run_for(300 * MS);
        if cluster.leading().is_some() { Err("a joining gateway leads".to_owned()) } else { Ok(()) }
    });
}

#[test]
fn a_differing_configuration_delays_and_prevents_hand_over() {
    run_seeds(50, |seed| {
        let mut cluster = QuorumCluster::new(seed, PAIR);
        cluster.run_for(200 * MS);
        let leader = cluster.leading().ok_or("no gateway leads")?;
        let other = NodeId(3 - leader.0);
        let state_of = |node: NodeId| {
            let name = NodeName::new("n").expect("a plain name");
            let message = PeerMessage::State(PeerState {
                member: Member { node, name, incarnation: Incarnation(1) },
                eligibility: Eligibility::Eligible,
                fitness: Fitness::default(),
                configuration: ConfigVersion { hash: 1, ..ConfigVersion::default() },
                stamp: PeerTimestamp(1),
            });
            Input::Peer { from: node, message }
        };
        cluster.input(leader, state_of(other));
        cluster.input(leader, Input::HandOver(Some(other)));
        cluster.run_for(100 * MS);
        if cluster.leading() != Some(leader) {
            return Err("handed over to a gateway with another configuration".to_owned());
        }
        cluster.input(other, state_of(leader));
        cluster.kill(leader);
        let mismatch_wait_ns = CONFIG_MISMATCH_WAIT_LEASES * PAIR.timing.lease_ns;
        cluster.run_for(mismatch_wait_ns - 10 * MS);
        if cluster.leading().is_some() {
            return Err(
                "the standby leads too early, although the previous leader had another configuration".to_owned()
            );
        }
        cluster.run_for(200 * MS);
        if cluster.leading() == Some(other) {
            Ok(())
        } else {
            Err("the only running gateway must lead after the wait".to_owned())
        }
    });
}

#[test]
fn an_unfit_leader_hands_over_with_backoff_unless_pinned() {
    let stalled = Fitness { stalled: true, ..Fitness::default() };
    run_seeds(100, |seed| {
        let mut cluster = QuorumCluster::new(seed, AUTO_MOVES);
        cluster.run_for(200 * MS);
        let mut leader = cluster.leading().ok_or("no gateway leads")?;
        let mut leading_since_ns = cluster.now_ns();
        for tenure_ms in [0, 100, 200, 400] {
            let before = cluster.opened.len();
            cluster.input(leader, Input::Fitness(stalled));
            cluster
                .run_until(|cluster| cluster.opened.len() > before || cluster.now_ns() > leading_since_ns + 2_000 * MS);
            let (at_ns, next, _) = cluster.opened.last().copied().unwrap();
            // Tolerance for clock rates, network and disks.
            let (least_ns, most_ns) = (tenure_ms * MS - tenure_ms * MS / 1_000, (tenure_ms + 60) * MS);
            if next == leader || !(least_ns..most_ns).contains(&(at_ns - leading_since_ns)) {
                return Err(format!("{:?} {:?}", cluster.opened, cluster.closed));
            }
            cluster.input(leader, Input::Fitness(Fitness::default()));
            (leader, leading_since_ns) = (next, at_ns);
        }
        if cluster.closed.iter().any(|(_, _, reason)| *reason != CloseReason::HandedOver) {
            return Err(format!("not handed over: {:?}", cluster.closed));
        }
        let before = cluster.opened.len();
        cluster.input(leader, Input::Pin(Pin::Pinned));
        cluster.input(leader, Input::Fitness(stalled));
        cluster.run_for(2_000 * MS);
        if cluster.opened.len() != before {
            return Err("leadership moved although it was pinned".to_owned());
        }
        // A pin ends with the leadership it was set for. After a manual hand-over, automatic moves work again.
        cluster.hand_over(None);
        cluster.run_for(100 * MS);
        let other = cluster.leading().filter(|other| *other != leader).ok_or("the manual hand-over failed")?;
        for (worse, better) in [(other, leader), (leader, other)] {
            cluster.input(better, Input::Fitness(Fitness::default()));
            cluster.input(worse, Input::Fitness(stalled));
            cluster.run_for(1_500 * MS);
            if cluster.leading() != Some(better) {
                return Err(format!("{worse} does not hand over: {:?} {:?}", cluster.opened, cluster.closed));
            }
        }
        Ok(())
    });
}

/// A leader whose output nobody receives, beside a gateway that receives.
const UNRECEIVED: Fitness =
    Fitness { output_not_received: true, channels_failed: 0, channels_behind: 0, log_failing: false, stalled: false };

/// Ends the leader's output, and returns the next leader and how long the leader continued, ns.
fn move_from_unreceived_leader(cluster: &mut QuorumCluster, limit_ns: u64) -> Result<(NodeId, u64), String> {
    let leader = cluster.leading().ok_or("no gateway leads")?;
    let (begun_ns, before) = (cluster.now_ns(), cluster.opened.len());
    cluster.input(leader, Input::Fitness(UNRECEIVED));
    cluster.run_until(|cluster| cluster.opened.len() > before || cluster.now_ns() > begun_ns + limit_ns);
    cluster.input(leader, Input::Fitness(Fitness::default()));
    match cluster.opened.get(before) {
        Some((at_ns, next, _)) if *next != leader => Ok((*next, at_ns - begun_ns)),
        _ => Err(format!("{leader} still leads: {:?} {:?}", cluster.opened, cluster.closed)),
    }
}

#[test]
fn repeated_output_faults_move_leadership_without_tenure_while_moves_help() {
    let limit_ns = AUTO_MOVES.moves.map_or(0, |moves| moves.tenure_ns);
    let faults_until_late = |seed: u64, is_received: bool| {
        let mut cluster = QuorumCluster::new(seed, AUTO_MOVES);
        cluster.run_for(200 * MS);
        let mut moves = 0;
        while moves < 10 {
            let Ok((next, _)) = move_from_unreceived_leader(&mut cluster, limit_ns) else { break };
            moves += 1;
            if is_received {
                cluster.input(next, Input::OutputReceived);
            }
            cluster.run_for(20 * MS);
        }
        moves
    };
    run_seeds(50, |seed| match (faults_until_late(seed, true), faults_until_late(seed, false)) {
        (10, 1) => Ok(()),
        moves => Err(format!("moves within the minimum tenure, received and not: {moves:?}")),
    });
}

#[test]
fn two_dead_outputs_move_leadership_once_in_each_doubled_tenure() {
    run_seeds(50, |seed| {
        let mut cluster = QuorumCluster::new(seed, AUTO_MOVES);
        cluster.run_for(200 * MS);
        // Moves that help do not lengthen the tenure.
        for _ in 0..5 {
            let (next, _) = move_from_unreceived_leader(&mut cluster, 50 * MS)?;
            cluster.input(next, Input::OutputReceived);
            cluster.run_for(20 * MS);
        }
        move_from_unreceived_leader(&mut cluster, 50 * MS)?;
        for tenure_ms in [100, 200, 400] {
            let (_, led_ns) = move_from_unreceived_leader(&mut cluster, 2 * tenure_ms * MS)?;
            // Tolerance for clock rates, network and disks.
            if led_ns < tenure_ms * MS - tenure_ms * MS / 1_000 || led_ns > (tenure_ms + 60) * MS {
                return Err(format!("led for {led_ns} ns instead of {tenure_ms} ms"));
            }
        }
        Ok(())
    });
}

#[test]
fn a_group_moves_to_its_preferred_leader_and_its_preferred_successor_follows() {
    let successor_took_over = Cell::new(0);
    run_seeds(200, |seed| {
        let mut cluster = QuorumCluster::new(seed, QuorumSetup { gateways: 3, witnesses: 0, ..AUTO_MOVES });
        cluster.run_for(200 * MS);
        let leader = cluster.leading().ok_or("no gateway leads")?;
        let [preferred_leader, preferred_successor] = [1, 2].map(|step| NodeId((leader.0 - 1 + step) % 3 + 1));
        for node in [1, 2, 3] {
            let placement = GroupPlacement {
                preferred_leader: Some(preferred_leader),
                preferred_successor: Some(preferred_successor),
            };
            cluster.input(NodeId(node), Input::Placement(placement));
        }
        cluster.run_for(500 * MS);
        let handed_over = [CloseReason::HandedOver].as_slice();
        let reasons: Vec<_> = cluster.closed.iter().map(|(_, _, reason)| *reason).collect();
        if cluster.leading() != Some(preferred_leader) || reasons != handed_over {
            return Err(format!(
                "the preferred leader is {preferred_leader}: {:?} {:?}",
                cluster.opened, cluster.closed
            ));
        }
        let notice = cluster.kill(preferred_leader);
        cluster.announce(notice);
        cluster.run_for(100 * MS);
        let next = cluster.leading().ok_or("no gateway leads after the kill")?;
        successor_took_over.set(successor_took_over.get() + u32::from(next == preferred_successor));
        Ok(())
    });
    // The preferred successor asks for votes first, and wins unless its disk is slow. Placement decides only the order of
    // attempts, never eligibility.
    if env::var_os("SEED").is_none() {
        assert!(successor_took_over.get() >= 180, "{} of 200", successor_took_over.get());
    }
}

#[test]
fn without_initial_wait_and_stored_votes_there_are_two_leaders() {
    let safeguards = QuorumSafeguards { startup_wait: false, ..QuorumSafeguards::ALL };
    let setup = QuorumSetup { safeguards, votes_survive_restart: false, faults: HEAVY_FAULTS, ..PAIR };
    let found = first_violation(setup, 500).expect("a violation without this safeguard");
    assert!(matches!(found.1, Violation::TwoLeaders { .. } | Violation::EpochRegressed { .. }), "{found:?}");
}

#[test]
fn half_the_margin_allows_two_leaders() {
    let timing = LeaseTiming { send_ns_max: 4 * MS, margin_ns: 4 * MS + 25_000, ..PAIR.timing };
    assert_eq!(timing.check(), Ok(()));
    let setup = QuorumSetup { faults: HEAVY_FAULTS, ..PAIR };
    assert_eq!(first_violation(QuorumSetup { timing, ..setup }, 300), None);
    let timing = LeaseTiming { margin_ns: timing.margin_ns / 2, ..timing };
    assert!(timing.check().is_err());
    let found = first_violation(QuorumSetup { timing, ..setup }, 300).expect("the margin is too small");
    assert!(matches!(found.1, Violation::TwoLeaders { .. }), "{found:?}");
}

#[test]
fn receivers_that_ignore_epochs_accept_stale_packets() {
    let setup = QuorumSetup { receivers_check_epochs: false, faults: HEAVY_FAULTS, ..PAIR };
    let found = first_violation(setup, 500).expect("late packets arrive");
    assert!(matches!(found.1, Violation::StalePacketAccepted { .. }), "{found:?}");
}

#[test]
fn answers_without_ticket_check_allow_two_leaders() {
    let safeguards = QuorumSafeguards { checks_tickets: false, ..QuorumSafeguards::ALL };
    let found =
        first_violation(QuorumSetup { safeguards, faults: HEAVY_FAULTS, ..PAIR }, 2_000).expect("old answers arrive");
    assert!(matches!(found.1, Violation::TwoLeaders { .. } | Violation::EpochRegressed { .. }), "{found:?}");
}

#[test]
fn a_release_beside_outstanding_sends_allows_two_leaders() {
    let safeguards = QuorumSafeguards { releases_after_sends: false, ..QuorumSafeguards::ALL };
    let faults = Faults { stop_every_ns: 50 * MS, stalled_send_share: 0.3, ..Faults::NONE };
    assert_eq!(first_violation(QuorumSetup { faults, ..PAIR }, 200), None);
    let found =
        first_violation(QuorumSetup { safeguards, faults, ..PAIR }, 200).expect("the successor opens too early");
    assert!(matches!(found.1, Violation::TwoLeaders { .. }), "{found:?}");
}

#[test]
fn a_leader_that_compares_counts_only_is_refused_after_one_packet() {
    let unreceived = |compares_whole_epochs| {
        let safeguards = QuorumSafeguards { compares_whole_epochs, ..QuorumSafeguards::ALL };
        (0..50)
            .filter(|seed| {
                let mut cluster = QuorumCluster::new(*seed, QuorumSetup { safeguards, ..PAIR });
                cluster.run_for(200 * MS);
                let (_, _, epoch) = *cluster.opened.last().expect("a gateway leads");
                cluster.receive_forged(Epoch::new(epoch.count(), 255));
                cluster.run_for(100 * MS);
                assert_eq!((&cluster.violation, cluster.leading().is_some()), (&None, true));
                !cluster.leader_is_received()
            })
            .count()
    };
    assert_eq!((unreceived(true), unreceived(false)), (0, 50));
}

impl ForgedGroup for QuorumCluster {
    fn run_for(&mut self, ns: u64) {
        Self::run_for(self, ns);
    }

    fn observe(&mut self, epoch: Epoch) {
        (1..=PAIR.gateways).for_each(|node| self.input(NodeId(node), Input::ObservedEpoch(epoch)));
    }

    fn open_epoch(&self) -> Option<Epoch> {
        self.leading_epoch()
    }
}

/// A pair in which a gateway leads. `store_ns`: mean duration of a disk write.
fn leading_pair(safeguards: QuorumSafeguards, store_ns: u64) -> QuorumCluster {
    let faults = Faults { store_ns, ..Faults::NONE };
    let mut cluster = QuorumCluster::new(1, QuorumSetup { timing: LeaseTiming::DEFAULT, safeguards, faults, ..PAIR });
    cluster.run_for(1_000 * MS);
    cluster
}

#[test]
fn forged_epochs_do_not_silence_a_group() {
    // Receivers follow a forger that is faster than the votes. No disk makes the leader close its fence.
    for (store_ns, share_max, longest_ns_max) in [(300_000, 0.1, 25 * MS), (5 * MS, 1.0, u64::MAX)] {
        for offset in Offset::BELIEVED.into_iter().chain([Offset::Unbelieved]) {
            let mut cluster = leading_pair(QuorumSafeguards::ALL, store_ns);
            let what = format!("votes, disk writes of {} us", store_ns / 1_000);
            let minute = ForgedMinute::run(&what, 1, offset, &mut cluster);
            assert_eq!(cluster.violation, None);
            assert!(minute.closed.share < 0.001 && minute.closed.longest_ns < MS, "{minute:?}");
            assert!(
                minute.unreceived.share <= share_max && minute.unreceived.longest_ns < longest_ns_max,
                "{minute:?}"
            );
        }
    }
}

#[test]
fn an_epoch_that_is_raised_before_the_votes_lets_epochs_regress() {
    let faults = Faults { forge_every_ns: 20 * MS, kill_every_ns: 40 * MS, ..HEAVY_FAULTS };
    assert_eq!(first_violation(QuorumSetup { faults, ..PAIR }, 300), None);
    let safeguards = QuorumSafeguards { raises_once_voted: false, ..QuorumSafeguards::ALL };
    let found =
        first_violation(QuorumSetup { safeguards, faults, ..PAIR }, 100).expect("the voters know a lower epoch");
    assert!(matches!(found.1, Violation::EpochRegressed { .. }), "{found:?}");
}

#[test]
fn forged_epochs_close_a_leader_that_closes_before_it_votes() {
    let mut cluster = leading_pair(QuorumSafeguards { raises_in_place: false, ..QuorumSafeguards::ALL }, 300_000);
    let minute = ForgedMinute::run("votes, closing first", 1, Offset::One, &mut cluster);
    assert!(minute.closed.share > 0.02, "{minute:?}");
}

/// A hand-over that is requested while a vote for a higher epoch is under way. Returns the leader, and the group some time
/// later.
fn hand_over_during_a_raise(prepare: fn(&mut QuorumCluster, NodeId)) -> (NodeId, QuorumCluster) {
    let mut cluster = leading_pair(QuorumSafeguards::ALL, 300_000);
    let leader = cluster.leading().expect("a gateway leads");
    prepare(&mut cluster, leader);
    let above = Epoch::new(cluster.leading_epoch().expect("it leads").count() + 5, u8::MAX);
    cluster.input(leader, Input::ObservedEpoch(above));
    cluster.hand_over(None);
    cluster.run_for(500 * MS);
    assert_eq!(cluster.violation, None);
    (leader, cluster)
}

#[test]
fn a_hand_over_requested_during_a_raise_begins_after_it_or_is_reported_as_failed() {
    let (leader, cluster) = hand_over_during_a_raise(|_, _| {});
    assert!(cluster.failed_hand_overs.is_empty(), "{:?}", cluster.failed_hand_overs);
    let reasons: Vec<CloseReason> = cluster.closed.iter().map(|(_, _, reason)| *reason).collect();
    assert_eq!(reasons, [CloseReason::Outranked, CloseReason::HandedOver]);
    assert!(cluster.leading().is_some_and(|now| now != leader));

    // No majority votes, and the leader leads on.
    let (leader, cluster) = hand_over_during_a_raise(|cluster, _| cluster.loses_votes = true);
    assert_eq!((cluster.leading(), &cluster.closed[..]), (Some(leader), &[][..]));
    let [(of, None, why)] = cluster.failed_hand_overs[..] else { panic!("{:?}", cluster.failed_hand_overs) };
    assert!(of == leader && why.contains("did not answer the vote"), "{why}");

    // The leader loses all other voters.
    let (leader, cluster) = hand_over_during_a_raise(|cluster, leader| {
        (1..=3).map(NodeId).for_each(|other| cluster.cut(leader, other));
    });
    assert_eq!(cluster.closed.first().map(|(_, _, reason)| *reason), Some(CloseReason::Expired));
    let [(of, None, why)] = cluster.failed_hand_overs[..] else { panic!("{:?}", cluster.failed_hand_overs) };
    assert!(of == leader && why.contains("stopped leading"), "{why}");
}

#[test]
fn hand_overs_whose_leadership_ends_go_unreported_without_the_rule() {
    let safeguards = QuorumSafeguards { reports_ended_hand_overs: false, ..QuorumSafeguards::ALL };
    let setup = QuorumSetup { safeguards, faults: HEAVY_FAULTS, ..PAIR };
    let is_unreported = |seed| run_faults_then_recover(seed, setup).is_err_and(|what| what.contains(UNREPORTED));
    let found = (0..500).find(|seed| is_unreported(*seed)).expect("a seed whose hand-over goes unreported");
    run_faults_then_recover(found, QuorumSetup { safeguards: QuorumSafeguards::ALL, ..setup })
        .expect("all is well with the rule");
}

#[test]
fn without_polls_a_gateway_that_receives_nothing_wastes_generations() {
    let generations = |polls| {
        let safeguards = QuorumSafeguards { polls, ..QuorumSafeguards::ALL };
        (0..20)
            .map(|seed| {
                let mut cluster = QuorumCluster::new(seed, QuorumSetup { safeguards, ..PAIR });
                cluster.run_for(200 * MS);
                let leader = cluster.leading().expect("a gateway leads");
                let isolated = NodeId(3 - leader.0);
                cluster.cut(leader, isolated);
                cluster.run_for(500 * MS);
                assert_eq!(cluster.violation, None);
                assert_eq!(cluster.leading(), Some(leader), "voters keep their promise to the leader");
                cluster.kill(leader);
                cluster.run_for(200 * MS);
                assert_eq!(cluster.leading(), Some(isolated));
                cluster.opened.last().map_or(0, |(_, _, epoch)| epoch.count())
            })
            .sum::<u64>()
    };
    let (with, without) = (generations(true), generations(false));
    assert!(with <= 3 * 20, "{with} generations in 20 runs with two elections each");
    assert!(without >= 2 * with, "{without} generations without polls, {with} with");
}

/// A leader receives nothing more from the other voters, and the standby is less fit. Returns how long nobody led, at most
/// 100 leases.
fn silence_behind_a_leader_that_receives_nothing(seed: u64, safeguards: QuorumSafeguards) -> u64 {
    let mut cluster = QuorumCluster::new(seed, QuorumSetup { safeguards, ..PAIR });
    cluster.run_for(200 * MS);
    let leader = cluster.leading().expect("a gateway leads");
    let standby = NodeId(3 - leader.0);
    cluster.input(standby, Input::Fitness(Fitness { stalled: true, ..Fitness::default() }));
    cluster.run_for(50 * MS);
    assert_eq!(cluster.leading(), Some(leader));
    [standby, NodeId(3)].into_iter().for_each(|other| cluster.cut(other, leader));
    cluster.run_until(|cluster| cluster.leading().is_none());
    let closed_ns = cluster.now_ns();
    cluster
        .run_until(|cluster| cluster.leading().is_some() || cluster.now_ns() > closed_ns + 100 * PAIR.timing.lease_ns);
    assert_eq!(cluster.violation, None);
    assert_ne!(cluster.leading(), Some(leader));
    cluster.now_ns() - closed_ns
}

#[test]
fn a_gateway_that_receives_nothing_does_not_hold_back_a_less_fit_one() {
    let lease_ns = PAIR.timing.lease_ns;
    let silence_ns = |safeguards| {
        (0..50).map(|seed| silence_behind_a_leader_that_receives_nothing(seed, safeguards)).max().expect("seeds")
    };
    let with_ns = silence_ns(QuorumSafeguards::ALL);
    assert!(with_ns < 2 * lease_ns, "nobody led for {with_ns} ns");
    let without_ns = silence_ns(QuorumSafeguards { yields_if_unanswered: false, ..QuorumSafeguards::ALL });
    assert!(without_ns > 100 * lease_ns, "{without_ns} ns without the rule");
}
