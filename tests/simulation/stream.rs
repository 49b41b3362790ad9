//! Publication under a simulated network, clock and disk, from seeds: gateways with the product's own log, publisher,
//! fence, standby receiver and retransmission service; subscribers with the product's own receiver. `SEED=n` repeats
//! one seed, `SEEDS=n` sets how many.
//!
//! Each gateway gets the same venue day at its own pace: messages of one packet and of several, messages without
//! output, and sessions that begin again. Simulated: leaders that are killed, with a truncated entry in their logs, and
//! restart; leaders that are paused between the fence check and the send, so that a batch leaves late under an old
//! epoch; leaders that hand over, or lapse and return; full sockets; logs without a ready segment; forged packets.
//! Without network faults no packet to a subscriber is lost or reordered, and subscribers have no retransmission
//! service: whatever a takeover omits they miss. With network faults packets are lost, late and reordered, and
//! subscribers request retransmissions.
//!
//! Checked: each subscriber gets each message of the day once, in order, with its content; none is lost and no session
//! is left out; nothing of an old epoch follows a newer one; and everything in the logs is what the day says, under its
//! id.
//!
//! The leader comes from the seed, one at a time; or from the election over a register, in the same simulated time and
//! under its own faults (`../lease.rs`). Then the fence is open as long as the lease allows, a hand-over passes the end
//! of the output in the election's messages, the election learns the epochs that the standby observed, and a gateway
//! that returns is eligible once it has caught up.

mod day;
mod elected;
mod faults;
mod gateway;
mod network;
mod standby;
mod subscriber;
mod wire;
mod world;

use mdgw_feeds::identity::{ChannelId, Epoch, GroupId};
use mdgw_tests::captures::print_to_stderr;

use crate::{lease, seeds::for_seeds};
use day::Told;
use world::{Counts, RunOutcome, World};

/// What is simulated, and which safeguards stand.
#[derive(Clone, Copy, Debug)]
struct Setup {
    gateways: usize,
    network: NetworkConditions,
    /// A takeover begins at the last received position of the previous leader, not at the end of the own log.
    starts_at_received: bool,
    /// A leader that hands over reports what it has sent, not what it has logged.
    reports_sent_position: bool,
    /// Output received beyond the own input is not accepted.
    doubts: bool,
    /// Receivers drop what comes under a lower epoch.
    checks_epochs: bool,
    /// Receivers ask all services what their logs hold; else they believe whichever answers.
    asks_all_services: bool,
    /// The election decides leadership.
    uses_election: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkConditions {
    /// All packets have the same delay; subscribers lose none, and have no retransmission service.
    Lossless,
    /// Packets are lost, late, and overtake each other.
    Lossy,
}

/// What must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Violation {
    /// Told twice, out of order, or with something left out before it.
    Unexpected { told: Told, expected: Option<Told> },
    /// Not what the venue said.
    Content(Told),
    /// Declared lost.
    Lost { restart: u32, first: u64, next: u64 },
    /// An item that the venue never sent.
    UnknownItem,
    /// Taken although one of a newer epoch was before it.
    OldEpoch { epoch: Epoch, after: Epoch },
    /// Never delivered.
    Missing(Told),
    /// A log has something else under that name.
    Log { node: u8, name: Told },
    /// The election's own.
    SimulatedElection(lease::world::Violation),
}

const PAIR: Setup = Setup {
    gateways: 2,
    network: NetworkConditions::Lossless,
    starts_at_received: true,
    reports_sent_position: true,
    doubts: true,
    checks_epochs: true,
    asks_all_services: true,
    uses_election: false,
};
const LOSSY: Setup = Setup { network: NetworkConditions::Lossy, ..PAIR };
const WITH_ELECTION: Setup = Setup { uses_election: true, ..LOSSY };

#[test]
fn every_message_is_delivered_once_across_leaders() {
    let kinds = [
        ("straight streams", PAIR, 1_300),
        ("streams in storms", LOSSY, 700),
        ("streams of elected leaders", WITH_ELECTION, 4_000),
    ];
    for (name, setup, seeds) in kinds {
        let counts = for_seeds(name, seeds, |seed| {
            let gateways = 2 + usize::try_from(seed % 2).expect("0 or 1");
            let RunOutcome { violation, counts, .. } = World::new(seed, Setup { gateways, ..setup }).run();
            violation.map_or(Ok(counts), |violation| Err(format!("{name}: {violation:?}")))
        });
        // One seed, or a few, need not show everything.
        let is_partial_run = counts.len() < 100;
        let all = counts.into_iter().fold(Counts::default(), Counts::sum);
        print_to_stderr(&format!("{name}: {all:?}"));
        if is_partial_run {
            continue;
        }
        let Counts { openings, catch_up_packets, passed_over, refused, private, stale, answers, .. } = all;
        let shown_counts = [openings, catch_up_packets, passed_over, refused, stale];
        assert!(shown_counts.iter().all(|count| *count > 0), "nothing was shown: {shown_counts:?}");
        assert_eq!(setup.network == NetworkConditions::Lossy, answers > 0, "{answers}");
        assert_eq!(setup.network == NetworkConditions::Lossy && !setup.uses_election, private > 0, "{private}");
    }
}

#[test]
fn a_seed_is_deterministic() {
    for_seeds("streams run twice", 40, |seed| {
        let setup = [PAIR, LOSSY, WITH_ELECTION][usize::try_from(seed % 3).expect("one of three")];
        let [once, again] = [(); 2].map(|()| World::new(seed, setup).run().digest);
        if once == again { Ok(()) } else { Err("two runs of one seed differ".to_owned()) }
    });
}

// ---- each safeguard switched off is found ----

#[track_caller]
fn assert_violation_found(what: &str, setup: Setup, is_expected: fn(&Violation) -> bool) {
    let violation_of = |seed| World::new(seed, setup).run().violation.filter(is_expected);
    let found = (0..CONTROL_SEEDS).find_map(|seed| Some((seed, violation_of(seed)?)));
    let (seed, violation) = found.unwrap_or_else(|| panic!("nothing found in {CONTROL_SEEDS} seeds"));
    print_to_stderr(&format!("without {what}: {violation:?}, seed {seed}"));
    // The same faults do no harm with all safeguards on.
    let sound = Setup { gateways: setup.gateways, network: setup.network, uses_election: setup.uses_election, ..PAIR };
    assert_eq!(World::new(seed, sound).run().violation, None, "seed {seed}");
}

const CONTROL_SEEDS: u64 = 300;

fn is_loss(violation: &Violation) -> bool {
    matches!(violation, Violation::Lost { .. } | Violation::Unexpected { .. })
}

/// Services that have received no leader yet answer under epoch 0, which no leader uses.
fn is_of_old_leader(violation: &Violation) -> bool {
    matches!(violation, Violation::OldEpoch { epoch, .. } if epoch.count() > 0)
}

#[test]
fn a_takeover_from_the_own_log_end_loses_messages() {
    assert_violation_found("received position", Setup { starts_at_received: false, ..PAIR }, is_loss);
}

#[test]
fn a_hand_over_reporting_logged_positions_loses_messages() {
    assert_violation_found("telling what was sent", Setup { reports_sent_position: false, ..PAIR }, is_loss);
}

#[test]
fn receivers_of_elected_leaders_need_their_safeguards() {
    assert_violation_found(
        "the receivers' epoch rule, elected",
        Setup { checks_epochs: false, ..WITH_ELECTION },
        is_of_old_leader,
    );
    assert_violation_found(
        "asking all services, elected",
        Setup { asks_all_services: false, ..WITH_ELECTION },
        is_loss,
    );
}

#[test]
fn accepting_positions_beyond_input_stops_a_successor() {
    // It continues after what it accepted, in that session.
    let is_forged = |violation: &Violation| {
        matches!(violation, Violation::Unexpected { told: Told::Session(day::FORGED_SESSION), .. })
    };
    assert_violation_found("rejection beyond the own input", Setup { doubts: false, ..PAIR }, is_forged);
}

#[test]
fn receivers_that_ignore_epochs_accept_an_old_leader() {
    assert_violation_found("the receivers' epoch rule", Setup { checks_epochs: false, ..LOSSY }, is_of_old_leader);
}

#[test]
fn receivers_that_ask_one_service_lose_messages() {
    assert_violation_found("asking all services", Setup { asks_all_services: false, ..LOSSY }, is_loss);
}

const GROUP: GroupId = GroupId(2);
const CHANNEL: ChannelId = ChannelId(3);
const MS: u64 = 1_000_000;
