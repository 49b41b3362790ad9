//! Publication under a simulated network, clock and disk, from seeds. Gateways run the product's own log, publisher,
//! fence, standby receiver and retransmission service. Subscribers run the product's own receiver. `SEED=n` repeats one
//! seed, `SEEDS=n` sets how many seeds run.
//!
//! Each gateway receives the same venue day at its own pace: messages of one packet and of several, messages without
//! output, and restarted sessions. Simulated faults:
//! - A leader is killed, with uncommitted entries in its log, and restarts.
//! - A leader is paused between the fence check and the send, so that a batch leaves late under an old epoch.
//! - A leader hands over, or its lease expires and it is elected again.
//! - A leader's output cable dies: its kernel accepts packets that nobody receives. Then it is killed, hands over, or its
//!   lease expires.
//! - Sockets are full, logs have no ready segment, packets are forged.
//!
//! With [`NetworkConditions::Lossless`] no packet to a subscriber is lost or reordered, and subscribers have no
//! retransmission service, so they miss whatever a takeover omits. With [`NetworkConditions::Lossy`] packets are lost,
//! late and reordered, and subscribers request retransmissions.
//!
//! Checked:
//! - Each subscriber receives each message of the day once, in order, with its content, and each session.
//! - No subscriber accepts a packet of an old epoch after one of a newer epoch.
//! - Every message in a log has the venue's content under the venue's sequence.
//!
//! The seed chooses one leader at a time, or the simulated election over a register does (`../lease.rs`), in the same
//! simulated time and under its own faults. With the election, the fence is open as long as the lease allows. The election
//! is informed of the epochs that each standby observed. A
//! restarted gateway is eligible once it has caught up.

mod election;
mod faults;
mod gateway;
mod network;
mod simulation;
mod standby;
mod subscriber;
mod thread_io;
mod venue_script;

use mdgw_feeds::identity::{ChannelId, Epoch, GroupId};
use mdgw_tests::captures::print_to_stderr;

use crate::{lease, seeds::for_seeds_on_one_core};
use faults::FaultKind;
use gateway::RestartSafeguards;
use simulation::{Counts, RunOutcome, StreamSimulation};
use venue_script::StreamItem;

/// Parameters of a simulation, and which safeguards are on.
#[derive(Clone, Copy, Debug)]
struct StreamSetup {
    gateways: usize,
    network: NetworkConditions,
    /// A takeover begins at the last position received from the previous leader, not at the end of the own log.
    starts_at_received: bool,
    /// Positions that a leader reports do not lift the start of a takeover.
    counts_received_only: bool,
    /// A standby rejects received positions beyond its own input and the leader's reports.
    rejects_beyond_input: bool,
    /// What a restarted gateway may have to publish.
    restart: RestartSafeguards,
    /// Receivers drop packets of an old epoch.
    checks_epochs: bool,
    /// Receivers ask all services for the range of their logs; otherwise they trust the first answer.
    asks_all_services: bool,
    /// Receivers leave a session when a service knows where it ended; otherwise when the services have answered.
    waits_for_end: bool,
    /// The election decides leadership.
    uses_election: bool,
    /// Without retransmission services: a restarted gateway may lead although it has not received the present leader, and all may be killed.
    restarts_lead: bool,
    /// Share of restarts for which another gateway is reachable, whose state is copied then.
    copied_share: f64,
    /// Pause of the venue between two sessions, ns.
    session_break_ns: u64,
    /// Faults of a run without an election, all equally frequent.
    faults: &'static [FaultKind],
    /// How many seeds the search runs without `SEEDS`. Each control of it finds its violation within as many.
    seeds: u64,
}

impl StreamSetup {
    fn waits_for_leader(&self) -> bool {
        self.network == NetworkConditions::Lossless && !self.restarts_lead
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkConditions {
    /// All packets have the same delay; subscribers lose none, and have no retransmission service.
    Lossless,
    /// Packets are lost, late, and overtake each other.
    Lossy,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Violation {
    /// Delivered twice or out of order, or an item before it is missing.
    Unexpected { item: StreamItem, expected: Option<StreamItem> },
    /// Delivered with other content than the venue sent.
    Content(StreamItem),
    /// The receiver gave up these messages, or a gap was declared.
    Lost { restart: u32, first: u64, next: u64 },
    /// An item that the venue never sent.
    UnknownItem,
    /// Accepted after a packet of a newer epoch.
    OldEpoch { epoch: Epoch, after: Epoch },
    /// Never delivered.
    Missing(StreamItem),
    /// The content in a log differs from what the venue sent.
    Log { node: u8, item: StreamItem },
    /// A violation that the simulated election found.
    Election(lease::cluster::Violation),
}

const PAIR: StreamSetup = StreamSetup {
    gateways: 2,
    network: NetworkConditions::Lossless,
    starts_at_received: true,
    counts_received_only: true,
    rejects_beyond_input: true,
    restart: RestartSafeguards {
        copies_log: true,
        begins_at_stored: true,
        remembers_epochs: true,
        remembers_held: true,
    },
    checks_epochs: true,
    asks_all_services: true,
    waits_for_end: true,
    uses_election: false,
    restarts_lead: false,
    copied_share: 0.5,
    session_break_ns: 25 * MS,
    faults: FaultKind::ALL,
    seeds: 300,
};
/// All gateways may be killed.
const ALL_KILLED: StreamSetup = StreamSetup { restarts_lead: true, seeds: 400, ..PAIR };
const LOSSY: StreamSetup = StreamSetup { network: NetworkConditions::Lossy, ..PAIR };
const WITH_ELECTION: StreamSetup = StreamSetup { uses_election: true, ..LOSSY };
/// No heartbeat comes between the last message of a session and the next session.
const SHORT_BREAKS: StreamSetup = StreamSetup { session_break_ns: MS / 5, seeds: 700, ..WITH_ELECTION };

#[test]
fn every_message_is_delivered_once_across_leaders() {
    let kinds = [
        ("streams, lossless network", PAIR),
        ("streams, lossless network, all killed", ALL_KILLED),
        ("streams, lossy network", LOSSY),
        ("streams, with election", WITH_ELECTION),
        ("streams, with election, short breaks", SHORT_BREAKS),
    ];
    for (name, setup) in kinds {
        let counts = for_seeds_on_one_core(name, setup.seeds, |seed| {
            let gateways = 2 + usize::try_from(seed % 2).expect("0 or 1");
            let RunOutcome { violation, counts, .. } =
                StreamSimulation::new(seed, StreamSetup { gateways, ..setup }).run();
            violation.map_or(Ok(counts), |violation| Err(format!("{name}: {violation:?}")))
        });
        // A few seeds need not cover every case.
        let is_partial_run = counts.len() < 100;
        let all = counts.into_iter().fold(Counts::default(), Counts::sum);
        print_to_stderr(&format!("{name}: {all:?}"));
        if is_partial_run {
            continue;
        }
        let Counts {
            openings,
            catch_up_packets,
            skipped_entries,
            refused,
            private_entries,
            stale_packets,
            answers,
            cut_packets,
            ..
        } = all;
        let covered_cases = [openings, catch_up_packets, skipped_entries, refused, stale_packets];
        assert!(covered_cases.iter().all(|count| *count > 0), "a case was not covered: {covered_cases:?}");
        assert_eq!(setup.network == NetworkConditions::Lossy, answers > 0, "{answers}");
        assert_eq!(setup.uses_election, cut_packets == 0, "{cut_packets}");
        assert_eq!(setup.network == NetworkConditions::Lossy, private_entries > 0, "{private_entries}");
    }
}

#[test]
fn a_seed_is_deterministic() {
    for_seeds_on_one_core("streams run twice", 40, |seed| {
        let setup = [PAIR, LOSSY, WITH_ELECTION][usize::try_from(seed % 3).expect("one of three")];
        let [first, second] = [(); 2].map(|()| StreamSimulation::new(seed, setup).run().digest);
        if first == second { Ok(()) } else { Err("two runs of one seed differ".to_owned()) }
    });
}

// ---- a violation is found with each safeguard switched off ----

#[track_caller]
fn assert_violation_found(what: &str, setup: StreamSetup, is_expected: fn(&Violation) -> bool) {
    let violation_of = |seed| StreamSimulation::new(seed, setup).run().violation.filter(is_expected);
    let seeds = setup.seeds;
    let found = (0..seeds).find_map(|seed| Some((seed, violation_of(seed)?)));
    let (seed, violation) = found.unwrap_or_else(|| panic!("no violation in {seeds} seeds"));
    print_to_stderr(&format!("without {what}: {violation:?}, seed {seed}"));
    // With all safeguards on, the same seed has no violation.
    let StreamSetup { gateways, network, uses_election, restarts_lead, copied_share, session_break_ns, faults, .. } =
        setup;
    let all_safeguards =
        StreamSetup { gateways, network, uses_election, restarts_lead, copied_share, session_break_ns, faults, ..PAIR };
    assert_eq!(StreamSimulation::new(seed, all_safeguards).run().violation, None, "seed {seed}");
}

fn is_loss(violation: &Violation) -> bool {
    matches!(violation, Violation::Lost { .. } | Violation::Unexpected { .. } | Violation::Missing(_))
}

/// Epoch 0 is excluded: services that have not received any leader yet answer under it, and no leader uses it.
fn is_of_old_leader(violation: &Violation) -> bool {
    matches!(violation, Violation::OldEpoch { epoch, .. } if epoch.count() > 0)
}

#[test]
fn a_takeover_from_the_own_log_end_loses_messages() {
    assert_violation_found("received position", StreamSetup { starts_at_received: false, ..PAIR }, is_loss);
}

#[test]
fn a_takeover_from_a_reported_position_loses_messages() {
    assert_violation_found(
        "counting received packets only",
        StreamSetup { counts_received_only: false, ..PAIR },
        is_loss,
    );
}

#[test]
fn a_gateway_that_copies_a_state_without_the_log_before_it_loses_messages() {
    let restart = RestartSafeguards { copies_log: false, ..PAIR.restart };
    assert_violation_found("copying the peer's log", StreamSetup { restart, ..ALL_KILLED }, is_loss);
}

#[test]
fn a_restarted_gateway_that_begins_at_the_end_of_its_log_loses_messages() {
    let restart = RestartSafeguards { begins_at_stored: false, ..PAIR.restart };
    assert_violation_found("the stored position", StreamSetup { restart, ..ALL_KILLED }, is_loss);
}

#[test]
fn a_restarted_gateway_that_counts_packets_below_a_held_epoch_loses_messages() {
    let restart = RestartSafeguards { remembers_held: false, ..PAIR.restart };
    assert_violation_found("the held epoch", StreamSetup { restart, ..ALL_KILLED }, is_loss);
}

#[test]
fn receivers_of_elected_leaders_need_their_safeguards() {
    assert_violation_found(
        "the receivers' epoch rule, elected",
        StreamSetup { checks_epochs: false, ..WITH_ELECTION },
        is_of_old_leader,
    );
    assert_violation_found(
        "asking all services, elected",
        StreamSetup { asks_all_services: false, ..WITH_ELECTION },
        is_loss,
    );
}

/// The last messages of a session are in no file of the leader's log, and the other gateway logs them later.
#[test]
fn receivers_that_leave_a_session_at_its_last_logged_message_lose_the_rest() {
    // Restarted gateways that have stored nothing, and copy no state: others leave such a hole too seldom.
    let restart = RestartSafeguards { begins_at_stored: false, remembers_epochs: false, ..PAIR.restart };
    assert_violation_found(
        "waiting for a service that knows the end",
        StreamSetup { waits_for_end: false, restart, copied_share: 0.0, ..SHORT_BREAKS },
        is_loss,
    );
}

#[test]
fn a_successor_that_accepts_positions_beyond_its_input_publishes_a_forged_session() {
    // The successor continues after the forged position, in the forged session.
    let is_forged = |violation: &Violation| {
        matches!(violation, Violation::Unexpected { item: StreamItem::Session(venue_script::FORGED_SESSION), .. })
    };
    assert_violation_found(
        "rejection beyond the own input",
        StreamSetup { rejects_beyond_input: false, ..PAIR },
        is_forged,
    );
}

#[test]
fn receivers_that_ignore_epochs_accept_an_old_leader() {
    assert_violation_found(
        "the receivers' epoch rule",
        StreamSetup { checks_epochs: false, ..LOSSY },
        is_of_old_leader,
    );
}

#[test]
fn receivers_that_ask_one_service_lose_messages() {
    let setup = StreamSetup { asks_all_services: false, faults: &[FaultKind::StarveLog], ..LOSSY };
    assert_violation_found("asking all services", setup, is_loss);
}

const GROUP: GroupId = GroupId(2);
const CHANNEL: ChannelId = ChannelId(3);
const MS: u64 = 1_000_000;
