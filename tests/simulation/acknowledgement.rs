//! Acknowledgements of a leader's output under forged packets (rule W9 of `gateway/election/SAFETY.md`), from seeds. The standby
//! runs the product's own tracker and epoch filter, the leader the product's own fitness watch. `SEED=n` repeats one seed,
//! `SEEDS=n` sets how many seeds run.
//!
//! ```text
//!   venue ──► leader ──published──► cable ──► standby: epochs ──► tracker ──furthest, each 20 ms──► leader: fitness
//!     └─────► standby's own input ──confirms─────────────────────►  ▲
//!                               forger ─────────────────────────────┘
//! ```
//! The forger sends positions far ahead, positions of sessions that do not exist, positions that the standby acknowledged before, and
//! higher epochs, above which the leader goes. Where the leader has stopped publishing, the forger also sends positions up to the
//! standby's own input. It does so too where the leader's kernel refuses to send. It does not send positions that the leader has published or is about to publish: these do acknowledge
//! (weakness 17). Standby and link may stand still for a while; the first report afterwards is older than the packets that wait.
//! The leader notices what it has published a little later, or, where its cold threads wait for a core, much later. The market may
//! be quiet, so that only heartbeats go out, while the standby restarts.
//!
//! Checked: a leader whose output arrives never counts as not received, and a leader whose output cable has died, or whose kernel sends
//! nothing any more, counts as not received from the product's time limit on.

use std::collections::BTreeMap;

use mdgw_captures::random::Random;
use mdgw_feeds::{
    identity::{Epoch, Feed, Sequence, Session},
    published::position::StreamPosition,
    time::{MonoNs, TradingDate},
};
use mdgw_pair::standby::{
    KnownEpochs, ReceiveTracker,
    fitness::{ChannelSample, FitnessSample, FitnessWatch},
};
use mdgw_tests::captures::print_to_stderr;

use crate::{forger::JUMP_MAX, seeds::for_seeds};

/// A world, and which parts of the rule are on.
#[derive(Clone, Copy, Debug)]
struct AckSetup {
    cable: Cable,
    /// A position counts at the standby when its own input or the leader's report confirms it.
    confirms_positions: bool,
    /// A position counts at the leader when it has been published.
    counts_published_only: bool,
    /// The standby reports the furthest position, not the last one.
    reports_furthest: bool,
    /// The furthest position under the highest epoch, not under all epochs.
    separates_epochs: bool,
    /// How long the kernel has refused all packets counts.
    counts_refusals: bool,
    /// Time counts only while reports come.
    counts_reports: bool,
    /// A report counts only when the leader has noticed all that it had sent by then.
    counts_noticed_output: bool,
    /// A peer that has just started may wait for the next packet.
    waits_for_packet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cable {
    Works,
    /// Dies at some time.
    Dies,
    /// Another leader took over, which starts far behind what the standby received of the former one. Its cable dies soon.
    DiesAfterTakeover,
    /// The leader's kernel refuses each packet from some time on: its interface is down, or a filter forbids them.
    Refused,
    /// The output arrives, but the standby stands still for a while, or its link does.
    StandbyPauses,
    /// The output arrives, and the leader notices what it has published a good deal later from some time on.
    LeaderNoticesLate,
    /// The output arrives. The market is quiet, and the standby restarts.
    StandbyRestarts,
}

impl Cable {
    /// Time between two packets where there is no message.
    fn heartbeat_ms(self) -> u64 {
        if self == Self::StandbyRestarts { 500 } else { 10 }
    }
}

impl AckSetup {
    const fn all_of(cable: Cable) -> Self {
        Self {
            cable,
            confirms_positions: true,
            counts_published_only: true,
            reports_furthest: true,
            separates_epochs: true,
            counts_refusals: true,
            counts_reports: true,
            counts_noticed_output: true,
            waits_for_packet: true,
        }
    }
}

/// The promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckViolation {
    /// The output arrives, and counts as not received.
    ReceivedCountsAsDead { at_ms: u64 },
    /// The output is dead, and counts as received.
    DeadCountsAsReceived { at_ms: u64, died_ms: u64 },
}

struct AckSimulation {
    setup: AckSetup,
    random: Random,
    now_ms: u64,
    /// The next sequence that the venue sends.
    venue_next: u64,
    leader: Leader,
    standby: AckStandby,
    /// Packets on their way to the standby: time of arrival, range, epoch.
    in_flight: Vec<(u64, Span, Epoch)>,
    died_ms: u64,
    /// The leader publishes nothing new from that time on.
    stalls_ms: u64,
    /// The venue sends no message from that time on.
    quiet_ms: u64,
    /// When the standby's reports stop, and when they go on.
    pause_ms: (u64, u64),
    /// The standby takes no packets either in the pause, and until after its next report.
    pauses_input: bool,
    /// From when on, and how much later than it sends, the leader notices what it has published.
    notices_late_ms: (u64, u64),
    /// The forger answers each packet of the leader at once.
    is_forger_fast: bool,
    /// The standby had acknowledged this position when the cable died, or some time ago. The forger sends positions before it.
    acknowledged_before: u64,
}

type Span = (StreamPosition, StreamPosition);

struct Leader {
    epoch: Epoch,
    /// When the leader goes above a higher epoch, and above which.
    raises: Option<(u64, Epoch)>,
    /// Everything before this sequence was published.
    published: u64,
    /// What it had published at each millisecond of this leadership.
    published_at_ms: BTreeMap<u64, u64>,
    watch: FitnessWatch,
    /// The last report of the standby, and when it arrived.
    peer_received: Option<StreamPosition>,
    reported_at: Option<MonoNs>,
}

struct AckStandby {
    tracker: ReceiveTracker,
    epochs: KnownEpochs,
    /// Everything before this sequence came over the standby's own input.
    input: u64,
    /// The furthest position under any epoch, and the end of the last confirmed packet.
    furthest_of_all: Option<StreamPosition>,
    last: Option<StreamPosition>,
}

impl AckSimulation {
    fn new(seed: u64, setup: AckSetup) -> Self {
        let mut random = Random::new(seed);
        let died_ms = match setup.cable {
            Cable::Works | Cable::StandbyPauses | Cable::LeaderNoticesLate | Cable::StandbyRestarts => u64::MAX,
            Cable::Dies | Cable::Refused => 300 + random.below(500),
            Cable::DiesAfterTakeover => TAKEOVER_MS + 20 + random.below(20),
        };
        let stalls_ms = match setup.cable {
            Cable::Dies if random.chance(0.5) => died_ms + 10 + random.below(40),
            Cable::Refused => died_ms,
            _ => u64::MAX,
        };
        let pause_ms = if matches!(setup.cable, Cable::StandbyPauses | Cable::StandbyRestarts) {
            let begin = 300 + random.below(400);
            (begin, begin + 20 + random.below(980))
        } else {
            (u64::MAX, u64::MAX)
        };
        let pauses_input = setup.cable == Cable::StandbyRestarts || random.chance(0.5);
        let quiet_ms = if setup.cable == Cable::StandbyRestarts { 200 + random.below(800) } else { u64::MAX };
        let notices_late_ms = if setup.cable == Cable::LeaderNoticesLate {
            (300 + random.below(400), 50 + random.below(600))
        } else {
            (0, random.below(NOTICE_MS_MAX))
        };
        let mut tracker = ReceiveTracker::new(HOLE_NS_MAX);
        if !setup.confirms_positions {
            tracker.confirm_through(StreamPosition::at(session(u32::MAX), Sequence(1)), MonoNs(0));
        }
        let epoch = Epoch::new(7, 1);
        let standby = AckStandby {
            tracker,
            epochs: KnownEpochs::new(epoch, JUMP_MAX),
            input: 1,
            furthest_of_all: None,
            last: None,
        };
        let watch = FitnessWatch::default();
        let leader = Leader {
            epoch,
            raises: None,
            published: 1,
            published_at_ms: BTreeMap::new(),
            watch,
            peer_received: None,
            reported_at: None,
        };
        let is_forger_fast = random.chance(0.3);
        Self {
            setup,
            random,
            now_ms: 0,
            venue_next: 1,
            leader,
            standby,
            in_flight: Vec::new(),
            died_ms,
            stalls_ms,
            quiet_ms,
            pause_ms,
            pauses_input,
            notices_late_ms,
            is_forger_fast,
            acknowledged_before: 1,
        }
    }

    fn run(mut self) -> Option<AckViolation> {
        while self.now_ms < END_MS {
            self.now_ms += 1;
            if let Some(violation) = self.step() {
                return Some(violation);
            }
        }
        None
    }

    /// One millisecond.
    fn step(&mut self) -> Option<AckViolation> {
        let is_quiet = self.now_ms >= self.quiet_ms;
        self.venue_next += if self.random.chance(0.7) && !is_quiet { self.random.below(5) } else { 0 };
        let received = self.venue_next - if is_quiet { 0 } else { self.random.below(5).min(self.venue_next - 1) };
        self.standby.input = self.standby.input.max(received);
        if self.setup.cable == Cable::StandbyRestarts && self.now_ms == self.pause_ms.1 {
            self.restart_standby();
        }
        if self.setup.cable == Cable::DiesAfterTakeover && self.now_ms == TAKEOVER_MS {
            self.take_over();
        }
        let has_raised_epoch = self.raise_epoch();
        self.publish(has_raised_epoch);
        self.send_forged();
        let (pause_begins, pause_ends) = self.pause_ms;
        if !self.pauses_input || !(pause_begins..pause_ends.saturating_add(REPORT_MS)).contains(&self.now_ms) {
            self.receive();
        }
        if !self.now_ms.is_multiple_of(REPORT_MS) {
            return None;
        }
        if !(pause_begins..pause_ends).contains(&self.now_ms) {
            self.report();
        }
        self.judge()
    }

    /// The standby has forgotten what it received. Its input is whole again.
    fn restart_standby(&mut self) {
        let epochs = KnownEpochs::new(self.leader.epoch, JUMP_MAX);
        let AckStandby { input, .. } = self.standby;
        let tracker = ReceiveTracker::new(HOLE_NS_MAX);
        self.standby = AckStandby { tracker, epochs, input, furthest_of_all: None, last: None };
        self.in_flight.clear();
    }

    /// The next leader received less than the standby, and its first sample is of its own leadership.
    fn take_over(&mut self) {
        let published = self.leader.published.saturating_sub(600).max(1);
        let epoch = Epoch::new(self.leader.epoch.count() + 1, 3);
        let Leader { peer_received, reported_at, .. } = self.leader;
        let watch = FitnessWatch::default();
        let published_at_ms = BTreeMap::new();
        self.leader = Leader { epoch, raises: None, published, published_at_ms, watch, peer_received, reported_at };
    }

    fn raise_epoch(&mut self) -> bool {
        let due = self.leader.raises.take_if(|(at_ms, _)| *at_ms <= self.now_ms);
        if let Some((_, above)) = due {
            self.leader.epoch = Epoch::new(above.count() + 1, self.leader.epoch.node());
        }
        due.is_some()
    }

    /// Each new epoch begins with a heartbeat.
    fn publish(&mut self, has_raised_epoch: bool) {
        let from = self.leader.published;
        // At most twice the venue's rate while it catches up.
        let until = self.venue_next.min(from + 4).max(from);
        self.leader.published = if self.now_ms >= self.stalls_ms { from } else { until };
        self.leader.published_at_ms.insert(self.now_ms, self.leader.published);
        let is_heartbeat_due = has_raised_epoch || self.now_ms.is_multiple_of(self.setup.cable.heartbeat_ms());
        if self.leader.published == from && !is_heartbeat_due {
            return;
        }
        if self.setup.cable == Cable::Refused && self.now_ms >= self.died_ms {
            return;
        }
        let is_lost = self.random.chance(0.02) && self.setup.cable != Cable::StandbyRestarts;
        if self.now_ms < self.died_ms && !is_lost {
            let arrives_ms = self.now_ms + self.random.below(3);
            self.in_flight.push((arrives_ms, span(from, self.leader.published), self.leader.epoch));
        }
    }

    fn send_forged(&mut self) {
        if !self.is_forger_fast && !self.random.chance(0.05) {
            return;
        }
        let epoch = self.standby.epochs.highest();
        let at = |sequence| span(sequence, sequence);
        // Not that position itself: a new leader may just have published it.
        let behind = 1 + self.random.below((self.acknowledged_before - 1).max(1));
        let (range, epoch) = match self.random.below(5) {
            0 => (at(1 << 40), epoch),
            1 => {
                let first = StreamPosition::at(session(3), Sequence(1));
                ((first, first), epoch)
            }
            2 if self.now_ms >= self.stalls_ms && self.standby.input > self.leader.published => {
                (at(self.standby.input), epoch)
            }
            // A leader that raises its epoch each time is not received in between, so this happens rarely.
            3 if self.random.chance(0.02) => {
                (at(behind), Epoch::new(epoch.count() + 1 + self.random.below(3), u8::MAX))
            }
            _ => (at(behind), epoch),
        };
        self.in_flight.push((self.now_ms, range, epoch));
    }

    fn receive(&mut self) {
        let now = self.now();
        let confirmed_through = StreamPosition::at(session(0), Sequence(self.standby.input));
        let (due, later): (Vec<_>, Vec<_>) =
            self.in_flight.drain(..).partition(|(arrives_ms, ..)| *arrives_ms <= self.now_ms);
        self.in_flight = later;
        self.standby.tracker.confirm_through(confirmed_through, now);
        for (_, range, epoch) in due {
            if self.standby.epochs.observe(epoch).is_err() {
                continue;
            }
            if epoch > self.leader.epoch && self.leader.raises.is_none() {
                self.leader.raises = Some((self.now_ms + RAISE_MS, epoch));
            }
            self.standby.tracker.accept(range, epoch, now);
            if range.1 <= confirmed_through {
                self.standby.last = Some(range.1);
            }
            self.standby.furthest_of_all = self.standby.furthest_of_all.max(self.standby.tracker.furthest());
        }
        self.standby.tracker.on_timer(now);
    }

    /// Standby and leader report their positions to each other.
    fn report(&mut self) {
        let AckSetup { reports_furthest, separates_epochs, .. } = self.setup;
        self.leader.reported_at = Some(self.now());
        let AckStandby { tracker, last, furthest_of_all, .. } = &self.standby;
        self.leader.peer_received = match (reports_furthest, separates_epochs) {
            (false, _) => *last,
            (true, false) => *furthest_of_all,
            (true, true) => tracker.furthest(),
        };
        let published = StreamPosition::at(session(0), Sequence(self.leader.published));
        self.standby.tracker.confirm_through(published, self.now());
        if self.now_ms < self.died_ms && self.now_ms.is_multiple_of(10 * REPORT_MS) {
            let acknowledged = self.leader.peer_received.filter(|position| position.session == session(0));
            self.acknowledged_before =
                acknowledged.map_or(1, |position| position.sequence.0.min(self.leader.published));
        }
    }

    fn judge(&mut self) -> Option<AckViolation> {
        let now = self.now();
        // When the leader notices late, it stands still for that time first.
        let (late_from_ms, late_ms) = self.notices_late_ms;
        let noticed_ms = self.now_ms.saturating_sub(late_ms).max(self.now_ms.min(late_from_ms));
        let Leader { watch, published_at_ms, peer_received, reported_at, .. } = &mut self.leader;
        let (_, published) = published_at_ms.range(..=noticed_ms).next_back()?;
        let noticed_ms = if self.setup.counts_noticed_output { noticed_ms } else { self.now_ms };
        let published_as_of = MonoNs(noticed_ms * 1_000_000);
        let is_refused = self.setup.cable == Cable::Refused && self.setup.counts_refusals;
        let output_refused_ns = if is_refused { self.now_ms.saturating_sub(self.died_ms) * 1_000_000 } else { 0 };
        let published = StreamPosition::at(session(0), Sequence(*published));
        let peer_received = if self.setup.counts_published_only {
            *peer_received
        } else {
            peer_received.map(|known| known.min(published))
        };
        let published = Some(published);
        let reported_at = if self.setup.counts_reports { *reported_at } else { Some(now) };
        let channel = ChannelSample {
            published,
            published_as_of,
            peer_received,
            reported_at,
            output_refused_ns,
            ..ChannelSample::default()
        };
        let heartbeat_ns = if self.setup.waits_for_packet { self.setup.cable.heartbeat_ms() * 1_000_000 } else { 0 };
        let channels = vec![channel];
        let sample = FitnessSample { channels, heartbeat_ns, peer_receives_probe: true, ..FitnessSample::default() };
        let counts_as_dead = watch.update(&sample, now).output_not_received;
        let (at_ms, died_ms) = (self.now_ms, self.died_ms);
        if at_ms <= died_ms && counts_as_dead {
            return Some(AckViolation::ReceivedCountsAsDead { at_ms });
        }
        if at_ms > died_ms.saturating_add(NOTICED_MS_MAX) && !counts_as_dead {
            return Some(AckViolation::DeadCountsAsReceived { at_ms, died_ms });
        }
        None
    }

    fn now(&self) -> MonoNs {
        MonoNs(self.now_ms * 1_000_000)
    }
}

fn session(restart: u32) -> Session {
    let date = TradingDate::from_yyyymmdd(20_240_102).expect("a day");
    Session { feed: Feed::IexTops, date, restart }
}

fn span(first: u64, next: u64) -> Span {
    (StreamPosition::at(session(0), Sequence(first)), StreamPosition::at(session(0), Sequence(next)))
}

/// When the other leader takes over.
const TAKEOVER_MS: u64 = 400;
const END_MS: u64 = 2_000;
/// How often positions are reported and fitness is sampled, as in the product.
const REPORT_MS: u64 = 20;
/// Duration of a swap that raises the epoch.
const RAISE_MS: u64 = 5;
/// How late a leader notices its own output in general: its cold threads look each millisecond.
const NOTICE_MS_MAX: u64 = 5;
/// A leader may miss the acknowledgement for 200 ms. Before and after come one report, one sample and the packets in flight. The last report
/// counts one sample later, when the leader has noticed its output.
const NOTICED_MS_MAX: u64 = 200 + 4 * REPORT_MS;
/// As in the product.
const HOLE_NS_MAX: u64 = 500_000_000;

#[test]
fn forged_positions_neither_hide_a_dead_output_nor_end_a_received_one() {
    for cable in [
        Cable::Works,
        Cable::Dies,
        Cable::DiesAfterTakeover,
        Cable::Refused,
        Cable::StandbyPauses,
        Cable::LeaderNoticesLate,
        Cable::StandbyRestarts,
    ] {
        for_seeds(&format!("acknowledgements, {cable:?}"), SEEDS, |seed| {
            let violation = AckSimulation::new(seed, AckSetup::all_of(cable)).run();
            violation.map_or(Ok(()), |violation| Err(format!("{cable:?}: {violation:?}")))
        });
    }
}

// ---- a violation is found with each part of the rule switched off ----

#[track_caller]
fn assert_violation_found(what: &str, setup: AckSetup, is_expected: fn(&AckViolation) -> bool) {
    let found = (0..SEEDS).find_map(|seed| Some((seed, AckSimulation::new(seed, setup).run()?)));
    let (seed, violation) = found.unwrap_or_else(|| panic!("no violation in {SEEDS} seeds"));
    print_to_stderr(&format!("without {what}: {violation:?}, seed {seed}"));
    assert!(is_expected(&violation), "{violation:?}");
    assert_eq!(AckSimulation::new(seed, AckSetup::all_of(setup.cable)).run(), None, "seed {seed}");
}

/// Seeds of each search, and the most that a control needs.
const SEEDS: u64 = 120;

fn hides_dead_output(violation: &AckViolation) -> bool {
    matches!(violation, AckViolation::DeadCountsAsReceived { .. })
}

fn ends_received_output(violation: &AckViolation) -> bool {
    matches!(violation, AckViolation::ReceivedCountsAsDead { .. })
}

#[test]
fn positions_that_nothing_confirms_end_a_received_leadership() {
    let setup = AckSetup { confirms_positions: false, ..AckSetup::all_of(Cable::Works) };
    assert_violation_found("the confirmation of positions", setup, ends_received_output);
}

#[test]
fn positions_that_were_not_published_hide_a_dead_output() {
    let setup = AckSetup { counts_published_only: false, ..AckSetup::all_of(Cable::Dies) };
    assert_violation_found("the comparison with what was published", setup, hides_dead_output);
}

#[test]
fn acknowledgements_that_a_forged_position_takes_back_end_a_received_leadership() {
    let setup = AckSetup { reports_furthest: false, ..AckSetup::all_of(Cable::Works) };
    assert_violation_found("the furthest position", setup, ends_received_output);
}

#[test]
fn acknowledgements_of_a_former_leader_hide_a_dead_output() {
    let setup = AckSetup { separates_epochs: false, ..AckSetup::all_of(Cable::DiesAfterTakeover) };
    assert_violation_found("the highest epoch", setup, hides_dead_output);
}

#[test]
fn time_without_reports_ends_a_received_leadership_when_the_standby_pauses() {
    let setup = AckSetup { counts_reports: false, ..AckSetup::all_of(Cable::StandbyPauses) };
    assert_violation_found("the reports", setup, ends_received_output);
}

#[test]
fn reports_of_output_that_the_leader_has_not_noticed_end_a_received_leadership() {
    let setup = AckSetup { counts_noticed_output: false, ..AckSetup::all_of(Cable::LeaderNoticesLate) };
    assert_violation_found("the leader's notice of its own output", setup, ends_received_output);
}

#[test]
fn a_wait_that_no_packet_begins_ends_a_received_leadership_when_the_standby_restarts() {
    let setup = AckSetup { waits_for_packet: false, ..AckSetup::all_of(Cable::StandbyRestarts) };
    assert_violation_found("the packet that begins the wait", setup, ends_received_output);
}

#[test]
fn refusals_that_do_not_count_hide_an_output_that_sends_nothing() {
    let setup = AckSetup { counts_refusals: false, ..AckSetup::all_of(Cable::Refused) };
    assert_violation_found("the refusals", setup, hides_dead_output);
}
