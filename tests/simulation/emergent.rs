//! Membership without a store under a simulated network, clocks and sends. `SEED=n` repeats one seed, `SEEDS=n` sets how
//! many seeds run.
//!
//! Simulated: clocks of different rates; datagrams that are lost, duplicated, late or reordered; one-way and whole cuts;
//! members that are killed (with or without a death notice), paused, closed and started again; hand-overs; sends that
//! outlast the fence; forged packets.

mod cluster;

use cluster::{EmergentCluster, EmergentSetup, Faults, Violation};
use mdgw_election::{
    emergent::{Safeguard, timing::EmergentTiming},
    timing::LeaseTiming,
};
use mdgw_feeds::identity::Epoch;
use mdgw_tests::captures::print_to_stderr;

use crate::{
    forger::{ForgedGroup, ForgedMinute, Offset},
    seeds::for_seeds,
};

const MS: u64 = 1_000_000;

/// Three members at 20/4 ms, of which two are needed.
const TRIO: EmergentSetup = EmergentSetup {
    members: 3,
    minimum_size: 2,
    timing: FAST_TIMING,
    without: None,
    send_ns_max: FAST_TIMING.send_ns_max,
    faults: Faults::NONE,
};

/// All kinds of faults, often.
const HEAVY_FAULTS: Faults = Faults {
    loss_share: 0.1,
    duplicate_share: 0.05,
    delay_ns: 200_000,
    long_delay_ns: 30 * MS,
    kill_every_ns: 120 * MS,
    cut_every_ns: 60 * MS,
    pause_every_ns: 80 * MS,
    hand_over_every_ns: 70 * MS,
    stop_every_ns: 110 * MS,
    cut_ns: 60 * MS,
    stalled_send_share: 0.3,
    forge_every_ns: 60 * MS,
};

/// Joins and probes are quicker than by default, so that a short run has many of them.
const FAST_TIMING: EmergentTiming = EmergentTiming {
    heartbeat_ns: 4 * MS,
    failure_ns: 20 * MS,
    margin_ns: 4 * MS,
    send_ns_max: 2 * MS,
    rate_error_ppm: LeaseTiming::DEFAULT.rate_error_ppm,
    probe_ns: 50 * MS,
    join_ns_max: 40 * MS,
    pause_ns: 10 * MS,
    pause_ns_max: 80 * MS,
};

/// A period of faults, then none. At the end all members are on one list with one leader, which receivers accept.
fn run_faults_then_recover(seed: u64, setup: EmergentSetup) -> Result<EmergentCluster, String> {
    let mut cluster = EmergentCluster::new(seed, setup);
    cluster.run_for(800 * MS);
    cluster.stop_faults();
    cluster.run_for(1_500 * MS);
    match &cluster.violation {
        Some(violation) => Err(format!("not safe: {violation:?}")),
        None if cluster.sole_leader().is_none() => {
            Err(format!("not reunited 1.5 s after the faults: {}", cluster.describe()))
        }
        None if !cluster.leader_is_received() => Err("unreceived: receivers drop the leader's packets".to_owned()),
        None => Ok(cluster),
    }
}

#[test]
fn at_most_one_leader_during_faults_and_one_after_with_a_majority() {
    let runs = for_seeds("emergent, more than half", SEEDS, |seed| {
        let (members, minimum_size) = [(2, 2), (3, 2), (4, 3), (5, 3)][usize::try_from(seed % 4).expect("one of four")];
        let cluster =
            run_faults_then_recover(seed, EmergentSetup { members, minimum_size, faults: HEAVY_FAULTS, ..TRIO })?;
        Ok(cluster.openings)
    });
    let openings: u64 = runs.iter().sum();
    print_to_stderr(&format!("emergent, more than half: {openings} openings in {} runs", runs.len()));
    assert!(openings > 2 * runs.len() as u64, "leadership hardly ever moved");
}

#[test]
fn epochs_are_unique_during_splits_and_one_leader_remains_after() {
    for_seeds("emergent, half or fewer", SEEDS, |seed| {
        let (members, minimum_size) = [(2, 1), (3, 1), (4, 2)][usize::try_from(seed % 3).expect("one of three")];
        run_faults_then_recover(seed, EmergentSetup { members, minimum_size, faults: HEAVY_FAULTS, ..TRIO }).map(drop)
    });
}

#[test]
fn leadership_is_stable_without_faults() {
    for_seeds("emergent, without faults", 50, |seed| {
        let mut cluster = EmergentCluster::new(seed, TRIO);
        cluster.run_for(3_000 * MS);
        match (cluster.sole_leader(), cluster.openings) {
            (Some(_), 1) => Ok(()),
            other => Err(format!("{other:?}, {:?}", cluster.violation)),
        }
    });
}

// ---- a violation is found with each safeguard switched off ----

/// Seeds of each search, and the most that a control needs.
const SEEDS: u64 = 600;

#[track_caller]
fn assert_two_leaders(what: &str, setup: EmergentSetup) {
    let found = (0..SEEDS).find_map(|seed| {
        let mut cluster = EmergentCluster::new(seed, EmergentSetup { faults: HEAVY_FAULTS, ..setup });
        cluster.run_for(800 * MS);
        cluster.violation.map(|violation| (seed, violation))
    });
    let (seed, violation) = found.unwrap_or_else(|| panic!("no violation in {SEEDS} seeds"));
    print_to_stderr(&format!("without {what}: {violation:?}, seed {seed}"));
    assert!(matches!(violation, Violation::TwoLeaders { .. }), "{violation:?}");
}

#[track_caller]
fn assert_two_leaders_without(safeguard: Safeguard) {
    assert_two_leaders(&format!("{safeguard:?}"), EmergentSetup { without: Some(safeguard), ..TRIO });
}

#[test]
fn without_a_minimum_size_there_are_two_leaders() {
    assert_two_leaders_without(Safeguard::MinimumSize);
}

#[test]
fn without_the_heartbeat_deadline_there_are_two_leaders() {
    assert_two_leaders_without(Safeguard::HeartbeatDeadline);
}

#[test]
fn claims_that_displace_live_members_allow_two_leaders() {
    assert_two_leaders_without(Safeguard::DisplaceOnlySilent);
}

#[test]
fn without_echoes_there_are_two_leaders() {
    assert_two_leaders_without(Safeguard::RequireEcho);
}

#[test]
fn a_start_without_initial_wait_allows_two_leaders() {
    assert_two_leaders_without(Safeguard::StartupWait);
}

#[test]
fn an_end_beside_outstanding_sends_allows_two_leaders() {
    assert_two_leaders_without(Safeguard::EndAfterSends);
}

#[test]
fn sends_that_outlast_the_margin_allow_two_leaders() {
    let send_ns_max = TRIO.timing.margin_ns + 4 * MS;
    assert_two_leaders("sends within the margin", EmergentSetup { send_ns_max, ..TRIO });
}

#[test]
fn without_yielding_the_sides_of_a_split_do_not_reunite() {
    assert_not_reunited_without(Safeguard::SmallerSideYields, TRIO);
}

#[test]
fn a_member_that_nobody_lists_is_not_found_without_probes_of_seeds() {
    assert_not_reunited_without(Safeguard::ProbeSeeds, TRIO);
}

/// One side has a newer list, on which the next in age is older than a member that still follows it.
#[test]
fn a_member_that_is_followed_by_an_older_one_never_leads_without_its_claim() {
    assert_not_reunited_without(Safeguard::ClaimBesideFollowers, EmergentSetup { members: 4, minimum_size: 2, ..TRIO });
}

#[track_caller]
fn assert_not_reunited_without(safeguard: Safeguard, setup: EmergentSetup) {
    let setup = EmergentSetup { faults: HEAVY_FAULTS, ..setup };
    let is_split = |seed: &u64| {
        let without = Some(safeguard);
        run_faults_then_recover(*seed, EmergentSetup { without, ..setup }).is_err_and(|what| what.contains("reunited"))
    };
    let seed = (0..SEEDS).find(is_split).expect("the sides stay");
    print_to_stderr(&format!("without {safeguard:?}: the sides stay, seed {seed}"));
    run_faults_then_recover(seed, setup).unwrap_or_else(|what| panic!("SEED={seed}: {what}"));
}

// ---- forged packets ----

impl ForgedGroup for EmergentCluster {
    fn run_for(&mut self, ns: u64) {
        Self::run_for(self, ns);
    }

    fn observe(&mut self, epoch: Epoch) {
        Self::observe(self, epoch);
    }

    fn open_epoch(&self) -> Option<Epoch> {
        Self::open_epoch(self)
    }
}

/// Members that have formed a membership; the last `absent` ones have been killed.
fn formed(seed: u64, members: u8, minimum_size: usize, absent: usize, without: Option<Safeguard>) -> EmergentCluster {
    let timing = EmergentTiming::of_lease(&LeaseTiming::DEFAULT);
    let mut cluster = EmergentCluster::new(seed, EmergentSetup { members, minimum_size, timing, without, ..TRIO });
    cluster.run_for(20_000 * MS);
    assert!(cluster.sole_leader().is_some(), "not formed: {:?}", cluster.violation);
    (0..absent).for_each(|index| cluster.kill(usize::from(members) - 1 - index));
    cluster.run_for(1_000 * MS);
    cluster
}

#[test]
fn forged_epochs_do_not_silence_a_group() {
    for offset in Offset::BELIEVED.into_iter().chain([Offset::Unbelieved]) {
        let minute = ForgedMinute::run("emergent, all members present", 1, offset, &mut formed(1, 3, 2, 0, None));
        assert!(minute.closed.share < 0.001 && minute.closed.longest_ns < MS, "{minute:?}");
        assert!(minute.unreceived.share < 0.1 && minute.unreceived.longest_ns <= 6 * MS, "{minute:?}");
    }
}

#[test]
fn forged_epochs_close_a_side_that_may_have_a_rival_for_half_of_the_time_at_most() {
    for offset in Offset::BELIEVED {
        let minute = ForgedMinute::run("emergent, half of the members", 1, offset, &mut formed(1, 4, 2, 2, None));
        assert!(minute.closed.share < 0.55 && minute.closed.longest_ns <= 420 * MS, "{minute:?}");
    }
}

#[test]
fn forged_epochs_silence_a_group_that_backs_off_without_limit() {
    let mut cluster = formed(1, 3, 2, 0, Some(Safeguard::RaiseInPlace));
    let minute = ForgedMinute::run("emergent, with doubling waits", 1, Offset::One, &mut cluster);
    assert!(minute.closed.share > 0.9 && minute.closed.longest_ns > 3_000 * MS, "{minute:?}");
}
