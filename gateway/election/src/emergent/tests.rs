//! The membership in a simulated network: joins, failures, splits, merges.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mdgw_feeds::identity::GroupId;
use mdgw_sys::fence::Fence;

use super::{
    datagrams::{Datagrams, Memberships},
    testing::World,
    *,
};
use crate::{
    auth::{KEY_BYTES, SharedKey},
    driver::{self, Election, ElectionOptions, Surroundings},
    latch::LeaderLatch as _,
    record::tests::member,
    timing::LeaseTiming,
};

#[test]
fn nodes_join_by_age_and_the_oldest_leads() {
    let mut world = World::formed(5, 3, None);
    assert_eq!(world.ages(4), [0, 1, 2, 3, 4]);
    world.run_ms(5_000);
    assert_eq!(world.owners(), [0]);
    assert_eq!((world.openings.len(), world.owners_max), (1, 1));
}

#[test]
fn below_the_minimum_size_nobody_leads() {
    let mut world = World::new(3, 3, None);
    world.start(0);
    world.start(1);
    world.run_ms(5_000);
    assert_eq!(world.live_counts(), [Some(2), Some(2), None]);
    assert!(world.openings.is_empty());
    world.start(2);
    world.run_until(|world| world.owners() == [0]);
}

#[test]
fn only_the_founder_founds() {
    let mut world = World::new(2, 1, None);
    world.start(1);
    world.run_ms(60_000);
    assert_eq!(world.live_counts(), [None, None]);
    let view = world.nodes[1].core.as_ref().unwrap().view();
    assert_eq!(view.obstacle, Some(Obstacle::NotAdmitted), "it is told, and goes on asking");
    world.start(0);
    world.run_until(|world| world.live_counts() == [Some(2), Some(2)]);
    assert_eq!(world.ages(1), [0, 1]);
}

#[test]
fn a_seed_that_is_down_stops_no_member() {
    let mut world = World::formed(3, 2, None);
    world.kill(1);
    world.run_until(|world| world.live_counts()[0] == Some(2));
    world.kill(0);
    world.run_ms(2_000);
    assert!(world.owners().is_empty(), "one of three: below the minimum size");
    world.start(1);
    // The other seed is down: it asks nobody who answers, until a probe tells it whom to ask.
    world.run_until(|world| world.owners() == [2]);
    assert_eq!(world.ages(2), [2, 1]);
}

#[test]
fn the_next_in_age_leads_when_the_oldest_dies_and_no_sooner_than_its_fence_closed() {
    let mut world = World::formed(4, 2, None);
    let until = world.nodes[0].fence;
    world.nodes[0].core = None;
    world.run_until(|world| world.owners().contains(&1));
    assert_eq!(world.owners(), [1]);
    assert!(world.now > until, "the dead one's fence was still open");
    world.run_ms(1);
    assert_eq!(world.ages(3), [1, 2, 3]);
    world.start(0);
    world.run_until(|world| world.live_counts() == [Some(4); 4] && world.ages(0) == [1, 2, 3, 0]);
    assert_eq!(world.ages(1), [1, 2, 3, 0], "it came back as the youngest");
    world.run_ms(3_000);
    assert_eq!(world.owners(), [1]);
    assert!(world.epochs_are_unique());
}

#[test]
fn a_notice_of_death_spares_the_wait() {
    let mut world = World::formed(3, 2, None);
    let died = world.now;
    world.kill(0);
    let notice = DeathNotice { holder: NodeId(1), incarnation: Incarnation(1), epoch: world.openings[0].0 };
    for index in [1, 2] {
        world.step(index, Input::Died(notice));
    }
    world.run_until(|world| world.owners() == [1]);
    assert!(world.now.since(died) < EmergentTiming::DEFAULT.heartbeat_ns, "at once");
    assert!(world.openings[1].0 > world.openings[0].0);
    // Of that start alone.
    world.start(0);
    world.run_until(|world| world.live_counts() == [Some(3); 3]);
}

#[test]
fn a_notice_about_another_incarnation_ends_nothing() {
    let mut world = World::formed(3, 2, None);
    for index in [1, 2] {
        let notice = DeathNotice { holder: NodeId(1), incarnation: Incarnation(7), epoch: Epoch::default() };
        world.step(index, Input::Died(notice));
    }
    world.run_ms(1_000);
    assert_eq!((world.owners(), world.openings.len()), (vec![0], 1));
}

#[test]
fn a_split_leaves_one_side_with_a_leader_and_heals_into_one() {
    let mut world = World::formed(5, 3, None);
    world.isolate(&[0, 1]);
    world.run_until(|world| world.owners() == [2]);
    world.run_ms(3_000);
    assert_eq!(world.owners(), [2]);
    assert_eq!(world.owners_max, 1, "the smaller side had stopped before");
    world.heal();
    world.run_until(|world| world.live_counts() == [Some(5); 5]);
    assert_eq!(world.ages(0)[..3], [2, 3, 4], "the smaller side's members are the youngest now");
    world.run_ms(3_000);
    assert_eq!(world.owners(), [2]);
    assert!(world.epochs_are_unique());
}

#[test]
fn a_claim_displaces_no_leader_that_others_hear() {
    let after = |without| {
        let mut world = World::formed(3, 2, without);
        // The second doesn't hear the first, which hears it a while longer and so has it on its list.
        world.cuts.insert((0, 1));
        world.run_ms(90);
        world.cuts.insert((1, 0));
        let version = |world: &World| world.nodes[1].core.as_ref()?.membership().map(|own| own.list.version.by);
        world.run_until(|world| version(world) == Some(NodeId(2)));
        world.run_ms(300);
        world
    };
    let mut world = after(None);
    assert_eq!((world.owners(), world.owners_max), (vec![0], 1));
    world.heal();
    world.run_until(|world| world.live_counts() == [Some(3); 3]);
    assert_eq!((world.owners(), world.openings.len()), (vec![0], 1), "it led all the time");
    assert_eq!(after(Some(Safeguard::SilentHereToo)).owners_max, 2, "without the rule two fences are open at once");
}

#[test]
fn a_member_that_starts_again_gives_nobody_what_it_promised_before() {
    let after = |without| {
        let mut world = World::formed(3, 2, without);
        // The second can't be heard of by the first, nor hear it, and claims; the third still follows the first.
        world.cuts.extend([(0, 1), (1, 0)]);
        world.run_ms(300);
        assert_eq!(world.owners(), [0]);
        world.kill(2);
        // What it asks of the first is lost.
        world.cuts.insert((2, 0));
        world.start(2);
        world.run_until(|world| world.owners() == [1]);
        world.owners_max
    };
    assert_eq!(after(None), 1);
    assert_eq!(after(Some(Safeguard::SitsOut)), 2, "its earlier start's promise still held");
}

#[test]
fn both_sides_lead_where_both_have_the_minimum_size_and_one_stops_afterwards() {
    let mut world = World::formed(4, 2, None);
    world.isolate(&[0, 1]);
    world.run_until(|world| world.owners() == [0, 2]);
    world.run_ms(2_000);
    assert_eq!(world.owners(), [0, 2], "this backend prefers availability");
    world.heal();
    world.run_until(|world| world.live_counts() == [Some(4); 4] && world.owners().len() == 1);
    assert_eq!(world.owners(), [0], "of two equal sides that of the older coordinator stays");
    let last = world.openings.iter().max().unwrap();
    assert_eq!(last.2, 0, "above what the other side had: its receivers hear it");
    assert!(world.epochs_are_unique());
}

#[test]
fn a_leader_that_is_not_heard_gives_up_though_it_hears_the_others() {
    let mut world = World::formed(3, 2, None);
    world.cuts.extend([(0, 1), (0, 2)]);
    world.run_until(|world| world.owners() == [1]);
    world.run_ms(5_000);
    assert_eq!(world.owners(), [1]);
    world.heal();
    world.run_until(|world| world.live_counts() == [Some(3); 3]);
    assert_eq!(world.ages(1)[0], 1);
}

#[test]
fn a_member_that_missed_a_list_is_sent_it() {
    let mut world = World::new(3, 2, None);
    world.start(0);
    world.start(1);
    world.run_until(|world| world.live_counts() == [Some(2), Some(2), None]);
    // Too short for a failure, long enough to lose the list; the join is answered after its bound.
    world.cuts.insert((0, 1));
    world.start(2);
    world.run_until(|world| world.live_counts()[0] == Some(3));
    world.run_ms(1);
    assert_eq!(world.live_counts()[1], Some(2));
    world.heal();
    world.run_until(|world| world.live_counts()[1] == Some(3));
    world.run_until(|world| world.owners() == [0]);
    assert!(world.openings.iter().all(|opening| opening.2 == 0));
}

#[test]
fn a_hand_over_goes_to_the_next_in_age_without_a_wait() {
    let mut world = World::formed(3, 2, None);
    world.step(0, Input::HandOver(Some(NodeId(3))));
    assert_eq!(world.owners(), [0], "not the next");
    let (asked, epoch) = (world.now, world.openings[0].0);
    world.step(0, Input::HandOver(None));
    assert!(world.owners().is_empty());
    world.run_until(|world| world.owners() == [1]);
    assert!(world.now.since(asked) < EmergentTiming::DEFAULT.heartbeat_ns);
    assert_eq!(world.ended, [(1, epoch)], "before it leads it knows where the output ended");
    world.run_until(|world| world.live_counts() == [Some(3); 3]);
    assert_eq!(world.ages(0), [1, 2, 0]);
    assert_eq!(world.owners_max, 1);
}

#[test]
fn whoever_is_outranked_again_and_again_waits_longer_each_time() {
    let mut world = World::formed(2, 1, None);
    let failure_ns = EmergentTiming::DEFAULT.failure_ns;
    let mut waits = Vec::new();
    for _ in 0..9 {
        let (asked, count) = (world.now, world.openings.len());
        let above = Epoch::new(world.openings[count - 1].0.count() + 1, 9);
        world.step(0, Input::Heard(above));
        world.run_until(|world| world.openings.len() > count);
        let (epoch, opened, by) = world.openings[count];
        assert!(epoch > above && by == 0);
        // It looks with its heartbeats.
        waits.push(opened.since(asked) / failure_ns);
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 32, 32].map(|times: u64| times), "failure time-outs");
    world.run_ms(20_000);
    let (asked, count) = (world.now, world.openings.len());
    world.step(0, Input::Heard(Epoch::new(world.openings[count - 1].0.count() + 1, 9)));
    assert_eq!((world.openings.len(), world.openings[count].1), (count + 1, asked), "long after, at once");
}

#[test]
fn a_close_leaves_the_list_at_once() {
    let mut world = World::formed(3, 2, None);
    let asked = world.now;
    world.step(0, Input::Close);
    world.run_until(|world| world.owners() == [1]);
    assert!(world.now.since(asked) < EmergentTiming::DEFAULT.heartbeat_ns);
    world.step(2, Input::Close);
    world.run_ms(1);
    assert_eq!(world.ages(1), [1]);
    world.run_ms(1_000);
    assert!(world.owners().is_empty());
}

#[test]
fn above_eight_members_heartbeats_go_along_a_ring_and_failures_are_found() {
    let per_second = |count: usize| {
        let mut world = World::formed(count, 2, None);
        let before = world.letters();
        world.run_ms(1_000);
        assert_eq!(world.owners(), [0]);
        world.letters() - before
    };
    let (eight, twelve) = (per_second(8), per_second(12));
    assert_eq!(eight, 8 * 7 * 50);
    assert_eq!(twelve, 12 * 2 * 50);
    let mut world = World::formed(12, 2, None);
    // Two neighbours: the ring is cut until they are off the list.
    for index in [5, 6] {
        world.kill(index);
    }
    world.run_until(|world| world.live_counts()[11] == Some(10));
    world.run_ms(2_000);
    assert_eq!(world.ages(11), [0, 1, 2, 3, 4, 7, 8, 9, 10, 11], "nobody else was failed");
    world.kill(0);
    world.run_until(|world| world.owners() == [1]);
    // Who had heard of the old one later follows later.
    let left = [1, 2, 3, 4, 7, 8, 9, 10, 11];
    world.run_until(|world| left.iter().all(|index| world.ages(*index) == left));
    assert_eq!(world.owners(), [1]);
}

#[test]
fn an_old_letter_is_taken_neither_twice_nor_by_a_later_start() {
    let mut world = World::formed(2, 1, None);
    world.run_until(|world| world.under_way.values().any(|post| post.to.ip().to_string().ends_with(".2")));
    let letter = world.under_way.values().find(|post| post.to.ip().to_string().ends_with(".2")).unwrap().letter.clone();
    world.run_ms(100);
    world.kill(0);
    world.run_until(|world| world.owners() == [1]);
    let before = world.nodes[1].core.clone().unwrap();
    world.step(1, Input::Backend(*letter.clone()));
    assert_eq!(world.nodes[1].core.as_ref().unwrap().membership(), before.membership());
    world.kill(1);
    world.start(1);
    world.step(1, Input::Backend(*letter));
    assert!(world.nodes[1].core.as_ref().unwrap().taken.is_empty(), "addressed to an earlier start");
}

#[test]
fn an_obstacle_keeps_a_coordinator_from_leading_and_is_told() {
    let mut world = World::formed(2, 1, None);
    world.step(0, Input::ClockRate { error_ppm: 10_000 });
    world.run_ms(200);
    assert!(world.owners().is_empty());
    let view = world.nodes[0].core.as_ref().unwrap().view();
    assert!(matches!(view.obstacle, Some(Obstacle::ClockRate { error_ppm: 10_000, .. })), "{view:?}");
    world.step(0, Input::ClockRate { error_ppm: 0 });
    world.run_until(|world| world.owners() == [0]);
    assert!(world.epochs_are_unique());
}

fn config(node: u8, address: SocketAddr, seeds: Vec<SocketAddr>) -> EmergentConfig {
    EmergentConfig {
        member: member(node, 1),
        address,
        seeds,
        founding: if node == 1 { Founding::Founds } else { Founding::Joins },
        join_attempts: 4,
        minimum_size: 2,
        timing: EmergentTiming { failure_ns: 1_000_000_000, ..EmergentTiming::DEFAULT },
        own_epoch: Epoch::default(),
        configuration: ConfigurationMark::default(),
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

struct Alone;

impl Surroundings for Alone {}

/// A member with a real socket, thread and clock.
fn run(node: u8, datagrams: Datagrams, seeds: Vec<SocketAddr>) -> (Election, Arc<Fence>) {
    let core = Emergent::new(config(node, datagrams.address().unwrap(), seeds)).unwrap();
    let (inbox, waiting) = driver::inbox();
    let backend = Arc::new(Memberships::start(datagrams).unwrap()).backend(GroupId(1), &inbox);
    let fence = Arc::new(Fence::closed());
    let options = ElectionOptions {
        name: node.to_string(),
        timing: LeaseTiming::CALM,
        core: None,
        fifo_priority: None,
        listeners_ns_max: 1_000_000_000,
        peers: Vec::new(),
    };
    let election = Election::new(core, backend, Arc::clone(&fence), waiting, &inbox, Box::new(Alone), options);
    election.set_standing(Standing::Stands);
    election.start().unwrap();
    (election, fence)
}

#[test]
fn three_members_over_real_sockets_replace_their_leader() {
    let open = || {
        let key = SharedKey::new(&[7; KEY_BYTES]);
        Datagrams::open((Ipv4Addr::LOCALHOST, 0).into(), key).unwrap()
    };
    let sockets = [(); 3].map(|()| open());
    let seeds: Vec<_> = sockets.iter().map(|socket| socket.address().unwrap()).collect();
    let mut members: Vec<_> = (1..).zip(sockets).map(|(node, socket)| run(node, socket, seeds.clone())).collect();
    let mut last = Epoch::default();
    for _ in 0..2 {
        let deadline = Instant::now() + Duration::from_secs(60);
        let leader = loop {
            assert!(Instant::now() < deadline, "nobody leads");
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
