//! The lease over a register under a simulated network, store and clock. Gateways have a hot thread and the product's own
//! fence; the subscriber runs the product's own receiver. `SEED=n` repeats one seed, `SEEDS=n` sets how many seeds run.
//!
//! Simulated: clocks of different rates, and slewed clocks; requests, answers and packets that are late, lost or
//! reordered; a store that is down, or restored from a backup; gateways that are killed (with or without a death
//! notice), paused between the fence check and the send, closed, and partitioned in one or both directions; hand-overs;
//! forged packets; gateways that lose their state file.
//!
//! Checked: no two gateways may send at the same time, with the longest send included; each opening has a higher epoch
//! than any before; receivers deliver nothing of an old epoch; and, once the faults have ended, a gateway leads, receivers
//! accept its packets, and each requested hand-over has ended or was reported as failed.

pub(crate) mod cluster;
pub(crate) mod faults;
mod receiver;
mod store;

use std::{env, fmt};

use cluster::{LeaseCluster, LeaseSetup, MS, Opening, SwapTimes, Violation, WAKE_NS_MAX};
use faults::{Fault, FaultConfig};
use mdgw_captures::random::Random;
use mdgw_election::{
    lease::LeaseSafeguards,
    timing::{LeaseTiming, RATE_ERROR_PPM, RATE_ERROR_PPM_MAX, drift_ns},
};
use mdgw_feeds::identity::Epoch;
use mdgw_tests::captures::print_to_stderr;

use crate::{
    forger::{ForgedGroup, ForgedMinute, Offset},
    seeds::for_seeds,
};

/// Two gateways at 20/4 ms.
pub(crate) const PAIR: LeaseSetup = LeaseSetup {
    gateways: 2,
    timing: LeaseTiming::from_ms(20, 4, 4),
    faults: FaultConfig::NONE,
    safeguards: LeaseSafeguards::ALL,
    version_check: true,
    observes_epochs: true,
    openings_reach_all: false,
    epochs_may_regress: false,
    linked: false,
    counts_reported_epochs: true,
    counts_per_start: 1,
    senders_proved: true,
    receivers_check_epochs: true,
    clock_error_ppm_max: RATE_ERROR_PPM,
    clock_rates_read: true,
    joins: false,
};
const STORM: LeaseSetup = LeaseSetup { faults: FaultConfig::STORM, ..PAIR };
const SLEWS: LeaseSetup = LeaseSetup { faults: FaultConfig::SLEWS, ..PAIR };
/// A restored store may hold an epoch below those that were opened. Only what a gateway observed keeps it from opening
/// lower, so openings reach every gateway here.
const RESTORES: LeaseSetup = LeaseSetup { faults: FaultConfig::RESTORES, openings_reach_all: true, ..PAIR };

/// What a run with faults, and a while without, has found.
#[derive(Debug)]
enum Failure {
    NotSafe(Violation),
    /// No gateway leads at the end.
    NoLeader,
    /// At the end, receivers drop the leader's packets: they hold a higher epoch, which a gateway knows.
    Unreceived,
    /// A hand-over was requested of that gateway. It neither ended with another leader nor was reported as failed.
    HandOverUnreported(usize),
}

/// A period of faults, then none. Safety holds in both; at the end a gateway leads.
fn run_faults_then_recover(seed: u64, setup: LeaseSetup) -> Result<LeaseCluster, Failure> {
    let mut cluster = LeaseCluster::new(seed, setup);
    cluster.run_for(600 * MS);
    cluster.stop_faults();
    // A peer reports a higher epoch for 250 ms before the leader goes above it.
    cluster.run_for(if setup.linked { 400 * MS } else { 200 * MS });
    match cluster.violation.take() {
        Some(violation) => Err(Failure::NotSafe(violation)),
        None if cluster.leading().is_none() => Err(Failure::NoLeader),
        None if setup.linked && cluster.is_unreceived() => Err(Failure::Unreceived),
        None => cluster.unreported_hand_over().map_or(Ok(cluster), |gateway| Err(Failure::HandOverUnreported(gateway))),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSafe(violation) => write!(f, "not safe: {violation:?}"),
            Self::NoLeader => f.write_str("not live: no gateway leads, though the faults have ended"),
            Self::Unreceived => f.write_str("unreceived: receivers drop the leader's packets"),
            Self::HandOverUnreported(gateway) => {
                write!(f, "a hand-over requested of gateway {gateway} ended without a new leader and without a report")
            }
        }
    }
}

#[test]
fn at_most_one_leader_during_faults_and_one_after() {
    let runs = for_seeds("with faults", 7 * SEEDS, |seed| {
        let gateways = 2 + u8::try_from(seed % 2).expect("0 or 1");
        let with = |faults| LeaseSetup { faults, ..PAIR };
        let setups = [
            STORM,
            RESTORES,
            with(FaultConfig::HAND_OVERS),
            with(FaultConfig::STORE_UNREACHABLE),
            SLEWS,
            LeaseSetup { counts_per_start: 4, ..STORM },
            LeaseSetup { linked: true, ..STORM },
        ];
        let setup = setups[usize::try_from(seed / 2 % 7).expect("one of seven")];
        let cluster =
            run_faults_then_recover(seed, LeaseSetup { gateways, ..setup }).map_err(|failure| failure.to_string())?;
        Ok((cluster.opened.len() as u64, cluster.stale_packets()))
    });
    let (openings, stale_packets) =
        runs.into_iter().fold((0, 0), |sum, cluster| (sum.0 + cluster.0, sum.1 + cluster.1));
    print_to_stderr(&format!(
        "with faults: {openings} openings, {stale_packets} packets of an old epoch arrived late, none was accepted"
    ));
    // One seed alone need not have such a packet.
    if env::var_os("SEED").is_none() {
        assert!(stale_packets > 0, "no packet was late, so the case is not covered");
    }
}

#[test]
fn leadership_is_stable_without_faults() {
    for_seeds("without faults", 50, |seed| {
        let mut cluster = LeaseCluster::new(seed, PAIR);
        cluster.run_for(1_000 * MS);
        if cluster.opened.len() == 1 { Ok(()) } else { Err(format!("{:?} {:?}", cluster.opened, cluster.violation)) }
    });
}

/// Pauses leaders (SIGSTOP, SIGCONT) after a packet has passed the fence check and before it is sent.
#[test]
fn receivers_accept_nothing_from_a_resumed_leader() {
    const PAUSES: u64 = 10;
    let stale_packets = for_seeds("paused leaders", SEEDS, |seed| {
        let gateways = 2 + u8::try_from(seed % 2).expect("0 or 1");
        let setup = LeaseSetup { gateways, timing: LeaseTiming::DEFAULT, ..PAIR };
        let mut cluster = LeaseCluster::new(seed, setup);
        let mut random = Random::new(seed);
        cluster.run_for(500 * MS);
        for _ in 0..PAUSES {
            cluster.run_for(random.below(setup.timing.renew_ns));
            let leader = cluster.leading().ok_or("no gateway leads")?;
            let lasts_ns = 200 * MS + random.below(2_800 * MS);
            cluster.fault(Fault::Pause, leader, lasts_ns);
            cluster.run_for(lasts_ns + 300 * MS);
            if let Some(violation) = &cluster.violation {
                return Err(format!("not safe: {violation:?}"));
            }
            if cluster.opened.last().is_none_or(|opening| opening.gateway == leader) {
                return Err("no other gateway led meanwhile".to_owned());
            }
        }
        Ok(cluster.stale_packets())
    });
    let (pauses, stale_packets) = (PAUSES * stale_packets.len() as u64, stale_packets.into_iter().sum::<u64>());
    print_to_stderr(&format!(
        "paused leaders: {pauses} pauses of 0.2 to 3 s; {stale_packets} records of the old epoch arrived, 0 accepted"
    ));
    assert!(stale_packets >= pauses, "each pause delays one packet past the fence check");
}

/// A hypervisor pauses the leader's machine with its clock. After the pause the fence is open, as the kernel fence would be, so two
/// leaders send: nothing within the machine protects. Receivers that have observed the next leader do. Returns how many packets of the
/// old epoch arrived, and whether a receiver accepted one.
fn resume_a_frozen_leader(seed: u64, setup: LeaseSetup) -> Result<(u64, Option<Violation>), String> {
    let mut cluster = LeaseCluster::new(seed, setup);
    let mut random = Random::new(seed);
    cluster.run_for(500 * MS + random.below(setup.timing.renew_ns));
    let leader = cluster.leading().ok_or("no gateway leads")?;
    let lasts_ns = 200 * MS + random.below(700 * MS);
    cluster.fault(Fault::Freeze, leader, lasts_ns);
    let resumes_ns = cluster.now_ns() + lasts_ns;
    let overlaps = run_despite_two_leaders(&mut cluster, resumes_ns - MS);
    if overlaps == 0 {
        return Err(format!("the frozen leader's fence does not count as open: {:?}", cluster.violation));
    }
    let late_before = cluster.stale_packets();
    run_despite_two_leaders(&mut cluster, resumes_ns + 300 * MS);
    if cluster.violation.is_none() && cluster.leading().is_none_or(|now| now == leader) {
        return Err("the other gateway does not lead".to_owned());
    }
    Ok((cluster.stale_packets() - late_before, cluster.violation))
}

/// Runs until that time, or a violation other than two leaders. Returns how often two leaders were found.
fn run_despite_two_leaders(cluster: &mut LeaseCluster, end_ns: u64) -> u64 {
    let mut overlaps = 0;
    loop {
        cluster.run_for(end_ns - cluster.now_ns());
        if cluster.violation.take_if(|violation| two_leaders(violation)).is_none() {
            return overlaps;
        }
        overlaps += 1;
    }
}

#[test]
fn receivers_accept_nothing_from_a_leader_whose_clock_was_frozen() {
    let setup = LeaseSetup { timing: LeaseTiming::DEFAULT, ..PAIR };
    let stale_packets = for_seeds("frozen leaders", 300, |seed| match resume_a_frozen_leader(seed, setup)? {
        (0, _) => Err("the frozen leader sent nothing after the pause".to_owned()),
        (stale_packets, None) => Ok(stale_packets),
        (_, Some(violation)) => Err(format!("not safe: {violation:?}")),
    });
    // The packet that had passed the fence check, and those that pass it after the pause.
    assert!(stale_packets.iter().any(|stale_packets| *stale_packets > 1), "no fence was open after the pause");
}

#[test]
fn receivers_that_ignore_epochs_accept_records_of_a_frozen_leader() {
    let setup = LeaseSetup { timing: LeaseTiming::DEFAULT, receivers_check_epochs: false, ..PAIR };
    let accepts = |seed| {
        let (_, violation) = resume_a_frozen_leader(seed, setup).unwrap();
        matches!(violation, Some(Violation::StaleRecordAccepted { .. }))
    };
    assert!((0..100).any(accepts), "the search before could not fail");
}

/// The election's share of a failover: from a kill without a death notice until the next leader opens its fence. Message
/// delays are bounded here, so the longest blackout can be calculated.
#[test]
fn blackout_stays_within_the_calculated_bound() {
    const DELAY_NS_MAX: u64 = 500_000;
    let profiles = LeaseTiming::PROFILES.into_iter().chain([("20/4", PAIR.timing)]);
    for (name, timing) in profiles {
        let wait_ns = timing.wait_ns();
        // The wait W on the slowest clock that the configured rate error rho allows: W / (1 - rho).
        let drift = drift_ns(wait_ns, timing.rate_error_ppm);
        let expire_ns_max = wait_ns + drift + drift_ns(drift, timing.rate_error_ppm) + WAKE_NS_MAX;
        // Detect: the last renewal travels to the store, its notification back. Open: the swap travels there, its answer back.
        let (detect_ns_max, open_ns_max) = (2 * DELAY_NS_MAX, 2 * DELAY_NS_MAX);
        let faults = FaultConfig { delay_ns_max: DELAY_NS_MAX, ..FaultConfig::NONE };
        let blackouts = for_seeds(&format!("kill without notice, {name}"), 500, |seed| {
            let mut cluster = LeaseCluster::new(seed, LeaseSetup { timing, faults, ..PAIR });
            let mut random = Random::new(seed);
            cluster.run_for(4 * timing.lease_ns + random.below(timing.renew_ns));
            let leader = cluster.leading().ok_or("no gateway leads")?;
            let (killed_ns, before) = (cluster.now_ns(), cluster.opened.len());
            cluster.kill(leader, false);
            let has_new_leader =
                cluster.run_until(killed_ns + 4 * timing.lease_ns, |cluster| cluster.opened.len() > before);
            if !has_new_leader {
                return Err(format!("no gateway leads after four leases; {:?}", cluster.violation));
            }
            let Opening { at_ns: opened_ns, swap: SwapTimes { record_learned_ns, sent_ns }, .. } =
                cluster.opened[before];
            let parts = [
                ("detect", record_learned_ns.saturating_sub(killed_ns), detect_ns_max),
                ("expire", sent_ns - record_learned_ns, expire_ns_max),
                ("open", opened_ns - sent_ns, open_ns_max),
            ];
            match parts.iter().find(|(_, took_ns, max_ns)| took_ns > max_ns) {
                Some((part, took_ns, max_ns)) => Err(format!("{part} took {took_ns} ns, at most {max_ns} allowed")),
                None => Ok(opened_ns - killed_ns),
            }
        });
        let worst_ns = blackouts.into_iter().max().unwrap_or(0);
        let bound_ns = detect_ns_max + expire_ns_max + open_ns_max;
        let ms = |ns: u64| ns as f64 / 1e6;
        print_to_stderr(&format!(
            "kill without notice, {name}: at worst {:.3} ms; bound: detect {:.3} + expire {:.3} + open {:.3} = {:.3} ms",
            ms(worst_ns),
            ms(detect_ns_max),
            ms(expire_ns_max),
            ms(open_ns_max),
            ms(bound_ns)
        ));
        assert!(worst_ns <= bound_ns);
        assert!(
            worst_ns > timing.lease_ns - timing.renew_ns,
            "the successor did not wait for the lease: {worst_ns} ns"
        );
    }
}

impl ForgedGroup for LeaseCluster {
    fn run_for(&mut self, ns: u64) {
        Self::run_for(self, ns);
    }

    fn observe(&mut self, epoch: Epoch) {
        (0..usize::from(PAIR.gateways)).for_each(|gateway| self.observe_epoch(gateway, epoch));
    }

    fn open_epoch(&self) -> Option<Epoch> {
        self.leading_epoch()
    }
}

/// A pair in which a gateway leads.
fn leading_pair(safeguards: LeaseSafeguards) -> LeaseCluster {
    let mut cluster = LeaseCluster::new(1, LeaseSetup { timing: LeaseTiming::DEFAULT, safeguards, ..PAIR });
    cluster.run_for(1_000 * MS);
    cluster
}

#[test]
fn forged_epochs_do_not_silence_a_group() {
    for offset in Offset::BELIEVED.into_iter().chain([Offset::Unbelieved]) {
        let mut cluster = leading_pair(LeaseSafeguards::ALL);
        let minute = ForgedMinute::run("register", 1, offset, &mut cluster);
        assert_eq!(cluster.violation, None);
        assert!(minute.closed.share < 0.001 && minute.closed.longest_ns < MS, "{minute:?}");
        assert!(minute.unreceived.share < 0.3 && minute.unreceived.longest_ns < 25 * MS, "{minute:?}");
    }
}

#[test]
fn forged_epochs_close_a_leader_that_closes_before_it_swaps() {
    let mut cluster = leading_pair(LeaseSafeguards { raises_in_place: false, ..LeaseSafeguards::ALL });
    let minute = ForgedMinute::run("register, closing first", 1, Offset::One, &mut cluster);
    assert!(minute.closed.share > 0.02, "{minute:?}");
}

/// Epochs go back, and gateways report to each other what they know.
const LOST_EPOCHS: LeaseSetup = LeaseSetup {
    faults: FaultConfig::LOST_EPOCHS,
    epochs_may_regress: true,
    linked: true,
    counts_per_start: 0,
    ..PAIR
};

#[test]
fn a_leader_goes_above_an_epoch_that_a_peer_reports_so_that_receivers_accept_it() {
    for_seeds("lost epochs", 800, |seed| {
        let gateways = 2 + u8::try_from(seed % 2).expect("0 or 1");
        run_faults_then_recover(seed, LeaseSetup { gateways, ..LOST_EPOCHS })
            .map(drop)
            .map_err(|failure| failure.to_string())
    });
}

/// Forges an epoch four times, each time just above the leader's, and returns the leader's epochs and how often it counted a higher
/// one as observed.
fn raise_over_a_slow_store(seed: u64, linked: bool) -> Result<(Vec<Epoch>, u64), String> {
    // The store notifies the other gateway at once, which reports the leader's next epoch before the leader has the answer.
    let faults = FaultConfig { slow_answer_ns: 390 * MS, ..FaultConfig::NONE };
    let setup = LeaseSetup { timing: LeaseTiming::CALM, faults, linked, ..PAIR };
    let mut cluster = LeaseCluster::new(seed, setup);
    cluster.run_for(4_000 * MS);
    for _ in 0..4 {
        let leading = cluster.leading_epoch().ok_or("no gateway leads")?;
        (0..2).for_each(|gateway| cluster.observe_epoch(gateway, Epoch::new(leading.count(), u8::MAX)));
        cluster.run_for(3_000 * MS);
    }
    match cluster.violation {
        Some(violation) => Err(format!("not safe: {violation:?}")),
        None => Ok((cluster.opened.iter().map(|opening| opening.epoch).collect(), cluster.outranked)),
    }
}

#[test]
fn a_peers_report_of_the_leaders_own_next_epoch_raises_nothing_however_slow_the_swap() {
    let repeated = for_seeds("raises over a slow store", 100, |seed| {
        let (alone, alone_notices) = raise_over_a_slow_store(seed, false)?;
        let (reported, notices) = raise_over_a_slow_store(seed, true)?;
        if alone.len() != 5 || alone != reported {
            return Err(format!("opened {alone:?} without reports, {reported:?} with"));
        }
        Ok(notices - alone_notices)
    });
    // The leader counted its own next epoch as observed while the swap was on its way, so the case is covered.
    assert!(repeated.iter().any(|notices| *notices > 0), "no swap took longer than a peer's report has to last");
}

// ---- a violation is found with each safeguard switched off ----

#[track_caller]
fn assert_violation_found(what: &str, setup: LeaseSetup, is_expected: fn(&Violation) -> bool) {
    let found = (0..SEEDS).find_map(|seed| {
        let mut cluster = LeaseCluster::new(seed, setup);
        cluster.run_for(600 * MS);
        cluster.violation.map(|violation| (seed, violation))
    });
    let (seed, violation) = found.unwrap_or_else(|| panic!("no violation in {SEEDS} seeds"));
    print_to_stderr(&format!("without {what}: {violation:?}, seed {seed}"));
    assert!(is_expected(&violation), "{violation:?}");
    // With all safeguards on, the same seed has no violation.
    let safe = if setup.safeguards == LeaseSafeguards::ALL {
        let LeaseSetup { gateways, faults, openings_reach_all, counts_per_start, .. } = setup;
        LeaseSetup { gateways, faults, openings_reach_all, counts_per_start, ..PAIR }
    } else {
        LeaseSetup { safeguards: LeaseSafeguards::ALL, ..setup }
    };
    let mut cluster = LeaseCluster::new(seed, safe);
    cluster.run_for(600 * MS);
    assert_eq!(cluster.violation, None, "seed {seed}");
}

/// Seeds of each kind of faults, and the most that a control needs.
const SEEDS: u64 = 500;

/// As [`assert_violation_found`], for what is judged when the faults have ended.
#[track_caller]
fn assert_failure_found(
    what: &str,
    (setup, safe): (LeaseSetup, LeaseSetup),
    seeds: u64,
    is_expected: fn(&Failure) -> bool,
) {
    let found =
        (0..seeds).find_map(|seed| Some((seed, run_faults_then_recover(seed, setup).err().filter(is_expected)?)));
    let (seed, failure) = found.unwrap_or_else(|| panic!("no failure in {seeds} seeds"));
    print_to_stderr(&format!("without {what}: {failure}, seed {seed}"));
    let with_rule = run_faults_then_recover(seed, safe).map(drop);
    assert!(with_rule.is_ok(), "seed {seed}: {with_rule:?}");
}

#[test]
fn a_leader_that_ignores_what_peers_report_is_not_received() {
    let setup = LeaseSetup { counts_reported_epochs: false, ..LOST_EPOCHS };
    assert_failure_found("reports of higher epochs", (setup, LOST_EPOCHS), SEEDS, |failure| {
        matches!(failure, Failure::Unreceived)
    });
}

#[test]
fn hand_overs_whose_leadership_ends_go_unreported_without_the_rule() {
    let safeguards = LeaseSafeguards { reports_ended_hand_overs: false, ..LeaseSafeguards::ALL };
    let safe = LeaseSetup { faults: FaultConfig::HAND_OVERS, ..PAIR };
    assert_failure_found(
        "the report of ended hand-overs",
        (LeaseSetup { safeguards, ..safe }, safe),
        SEEDS,
        |failure| matches!(failure, Failure::HandOverUnreported(_)),
    );
}

/// Three gateways whose leaders die often, so that designated successors take over.
fn successors(safeguards: LeaseSafeguards) -> LeaseSetup {
    LeaseSetup { safeguards, gateways: 3, faults: FaultConfig::SUCCESSORS, ..PAIR }
}

fn two_leaders(violation: &Violation) -> bool {
    matches!(violation, Violation::TwoLeaders { .. })
}

fn epoch_regressed(violation: &Violation) -> bool {
    matches!(violation, Violation::EpochRegressed { .. })
}

fn two_leaders_or_epoch_regressed(violation: &Violation) -> bool {
    matches!(violation, Violation::TwoLeaders { .. } | Violation::EpochRegressed { .. })
}

#[test]
fn without_margin_there_are_two_leaders() {
    let timing = LeaseTiming { margin_ns: 0, ..PAIR.timing };
    assert!(timing.check().is_err(), "no configuration may have this margin");
    assert_violation_found("margin", LeaseSetup { timing, ..STORM }, two_leaders);
}

#[test]
fn half_the_minimum_margin_allows_two_leaders() {
    let least = LeaseTiming { margin_ns: 4 * MS + 25_000, send_ns_max: 4 * MS, ..PAIR.timing };
    assert_eq!(least.check(), Ok(()));
    let timing = LeaseTiming { margin_ns: least.margin_ns / 2, ..least };
    assert!(timing.check().is_err());
    assert_violation_found("half of the minimum margin", LeaseSetup { timing, ..STORM }, two_leaders);
}

/// The smallest margin for clocks with the largest allowed error.
const LEAST_MARGIN: LeaseSetup = LeaseSetup {
    timing: LeaseTiming {
        margin_ns: 4 * MS + 401_000,
        send_ns_max: 4 * MS,
        rate_error_ppm: RATE_ERROR_PPM_MAX,
        ..PAIR.timing
    },
    clock_error_ppm_max: RATE_ERROR_PPM_MAX,
    ..STORM
};

#[test]
fn the_smallest_margin_pays_for_clocks_within_the_bound() {
    let timing = LEAST_MARGIN.timing;
    assert_eq!(timing.check(), Ok(()));
    assert!(LeaseTiming { margin_ns: timing.margin_ns - 1, ..timing }.check().is_err());
    for_seeds("the smallest margin", SEEDS, |seed| {
        let mut cluster = LeaseCluster::new(seed, LEAST_MARGIN);
        cluster.run_for(600 * MS);
        cluster.violation.map_or(Ok(()), |violation| Err(format!("not safe: {violation:?}")))
    });
}

/// The control of the search before: clocks that may be off by four times the bound.
#[test]
fn clocks_beyond_the_bound_allow_two_leaders() {
    let beyond = LeaseSetup { clock_error_ppm_max: 4 * RATE_ERROR_PPM_MAX, ..LEAST_MARGIN };
    let found = (0..SEEDS).find_map(|seed| {
        let mut cluster = LeaseCluster::new(seed, beyond);
        cluster.run_for(600 * MS);
        cluster.violation
    });
    assert!(found.as_ref().is_some_and(two_leaders), "{found:?}");
}

#[test]
fn a_store_without_version_check_allows_two_leaders() {
    assert_violation_found(
        "the version check",
        LeaseSetup { version_check: false, ..STORM },
        two_leaders_or_epoch_regressed,
    );
}

#[test]
fn unobserved_epochs_regress_with_a_restored_store() {
    assert_violation_found("observed epochs", LeaseSetup { observes_epochs: false, ..RESTORES }, epoch_regressed);
}

#[test]
fn receivers_that_ignore_epochs_accept_stale_records() {
    let is_stale_record = |violation: &Violation| matches!(violation, Violation::StaleRecordAccepted { .. });
    assert_violation_found(
        "the receivers' epoch rule",
        LeaseSetup { receivers_check_epochs: false, ..STORM },
        is_stale_record,
    );
}

#[test]
fn a_start_without_initial_wait_allows_two_leaders() {
    let safeguards = LeaseSafeguards { startup_wait: false, ..LeaseSafeguards::ALL };
    assert_violation_found("the initial wait", LeaseSetup { safeguards, ..STORM }, two_leaders_or_epoch_regressed);
}

#[test]
fn counting_unknown_swaps_allows_two_leaders() {
    let safeguards = LeaseSafeguards { ignores_unknown_outcome: false, ..LeaseSafeguards::ALL };
    assert_violation_found(
        "reading after an unknown outcome",
        LeaseSetup { safeguards, ..STORM },
        two_leaders_or_epoch_regressed,
    );
}

#[test]
fn an_end_beside_outstanding_sends_allows_two_leaders() {
    let safeguards = LeaseSafeguards { ends_after_sends: false, ..LeaseSafeguards::ALL };
    assert_violation_found("waiting for outstanding sends", LeaseSetup { safeguards, ..STORM }, two_leaders);
}

#[test]
fn a_skipped_candidate_promise_allows_two_leaders() {
    let safeguards = LeaseSafeguards { asks_every_candidate: false, ..LeaseSafeguards::ALL };
    assert_violation_found(
        "the promise of each candidate",
        LeaseSetup { safeguards, gateways: 3, ..STORM },
        two_leaders,
    );
}

#[test]
fn a_promise_that_counts_for_two_gateways_allows_two_leaders() {
    assert_violation_found(
        "the proof of the sender",
        LeaseSetup { senders_proved: false, gateways: 3, ..STORM },
        two_leaders,
    );
}

#[test]
fn a_successor_lease_counted_from_opening_allows_two_leaders() {
    let safeguards = LeaseSafeguards { lease_from_successor_stamp: false, ..LeaseSafeguards::ALL };
    assert_violation_found(
        "the successor's stamp",
        LeaseSetup { safeguards, gateways: 3, ..STORM },
        two_leaders_or_epoch_regressed,
    );
}

#[test]
fn not_waiting_for_the_successor_allows_two_leaders() {
    let safeguards = LeaseSafeguards { waits_for_successor: false, ..LeaseSafeguards::ALL };
    assert_violation_found(
        "waiting for the successor",
        LeaseSetup { safeguards, gateways: 3, ..STORM },
        two_leaders_or_epoch_regressed,
    );
}

#[test]
fn a_successor_that_opens_above_the_next_epoch_lets_epochs_regress() {
    let safeguards = LeaseSafeguards { successor_epoch_from_record: false, ..LeaseSafeguards::ALL };
    assert_violation_found(
        "the successor's epoch from the record",
        LeaseSetup { counts_per_start: 4, observes_epochs: false, ..successors(safeguards) },
        epoch_regressed,
    );
}

#[test]
fn ignoring_the_successors_epoch_lets_epochs_regress() {
    let safeguards = LeaseSafeguards { counts_successor_epoch: false, ..LeaseSafeguards::ALL };
    assert_violation_found("counting the successor's epoch", successors(safeguards), epoch_regressed);
}

#[test]
fn replacing_the_successor_at_once_allows_two_leaders() {
    let safeguards = LeaseSafeguards { keeps_named_successor: false, ..LeaseSafeguards::ALL };
    // A second successor that observed the first one's epoch does not open (rule D9), and hides this safeguard.
    let setup = LeaseSetup { observes_epochs: false, ..successors(safeguards) };
    assert_violation_found("keeping the named successor", setup, two_leaders);
}

#[test]
fn ignoring_clock_slew_allows_two_leaders() {
    assert_violation_found("reading the clock rate", LeaseSetup { clock_rates_read: false, ..SLEWS }, two_leaders);
}

#[test]
fn a_store_restored_while_disconnected_needs_state_reset() {
    let safeguards = LeaseSafeguards { forgets_on_disconnect: false, ..LeaseSafeguards::ALL };
    assert_violation_found(
        "resetting the state on a disconnect",
        LeaseSetup { safeguards, faults: FaultConfig::RESTORES_DURING_PAUSES, ..RESTORES },
        two_leaders_or_epoch_regressed,
    );
}
