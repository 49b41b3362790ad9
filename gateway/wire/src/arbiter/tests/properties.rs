//! Any interleaving, loss, duplication, reordering and packet split of the lines against the slow model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Checks the guarantee: output ascends without an omission, every sequence is delivered once or lies in one gap, and a
/// gap contains no message that had arrived.
#[derive(Default)]
struct Checker {
    expected: Option<u64>,
    arrived: BTreeSet<u64>,
    delivered: BTreeSet<u64>,
    missing: BTreeSet<u64>,
}

impl Checker {
    fn accept(&mut self, delivery: &Delivery<'_>) -> Result<(), String> {
        let (from, until) = match delivery {
            Delivery::Gap(gap) => (gap.first().0, gap.next().0),
            Delivery::Packet { from, until, first, next, .. } => {
                if !(first <= from && from < until && until <= next) {
                    return Err(format!("{from:?}..{until:?} outside of {first:?}..{next:?}"));
                }
                (from.0, until.0)
            }
        };
        if self.expected.is_some_and(|expected| expected != from) {
            return Err(format!("expected {:?}, came {from}", self.expected));
        }
        self.expected = Some(until);
        if matches!(delivery, Delivery::Gap(_)) {
            if let Some(arrived) = self.arrived.range(from..until).next() {
                return Err(format!("{arrived} had arrived and was declared missing"));
            }
            self.missing.extend(from..until);
        } else {
            if messages(delivery) != (from..until).collect::<Vec<_>>() {
                return Err(format!("{from}..{until}: wrong bytes"));
            }
            self.delivered.extend(from..until);
        }
        Ok(())
    }

    /// Every message that arrived before its gap was declared has been delivered.
    fn finish(&self) -> Result<(), String> {
        let Some(lost) = self.arrived.difference(&self.delivered).find(|sequence| !self.missing.contains(sequence))
        else {
            return Ok(());
        };
        Err(format!("{lost} arrived and was not delivered"))
    }
}

/// One packet in flight.
#[derive(Clone, Copy, Debug)]
struct PacketInFlight {
    line: Line,
    first: u64,
    next: u64,
}

/// How one line splits the messages into packets, and what happens to each packet.
#[derive(Clone, Debug)]
struct LinePlan {
    /// Sizes of packets, in messages; repeated.
    cuts: Vec<u64>,
    /// Per packet: lost, sent twice, delayed by so many µs. Repeated.
    fates: Vec<(bool, bool, u64)>,
}

fn line_plan() -> impl Strategy<Value = LinePlan> {
    let fate = (prop::bool::weighted(0.2), prop::bool::weighted(0.2), prop_oneof![Just(0), 0..200_u64, 0..30_000_u64]);
    (prop::collection::vec(1..8_u64, 1..6), prop::collection::vec(fate, 1..40))
        .prop_map(|(cuts, fates)| LinePlan { cuts, fates })
}

/// Behaviour of the retransmission server.
#[derive(Clone, Debug)]
struct ServerPlan {
    messages_per_answer: u64,
    /// Per request: whether it is answered.
    answers: Vec<bool>,
}

fn server_plan() -> impl Strategy<Value = Option<ServerPlan>> {
    let plan = (1..20_u64, prop::collection::vec(any::<bool>(), 1..10))
        .prop_map(|(messages_per_answer, answers)| ServerPlan { messages_per_answer, answers });
    prop::option::of(plan)
}

/// Packets of `messages` messages on every line, by time in µs. Message n leaves at n * 50 µs.
fn flights(messages: u64, lines: &[LinePlan]) -> BTreeMap<u64, Vec<PacketInFlight>> {
    let mut flights: BTreeMap<u64, Vec<PacketInFlight>> = BTreeMap::new();
    for (line, plan) in (0..).map(Line).zip(lines) {
        let mut first = 1;
        let mut cuts = plan.cuts.iter().cycle();
        let mut fates = plan.fates.iter().cycle();
        while first <= messages {
            let next = (first + cuts.next().unwrap()).min(messages + 1);
            let (lost, twice, delay) = *fates.next().unwrap();
            let at = next * 50 + delay;
            if !lost {
                flights.entry(at).or_default().push(PacketInFlight { line, first, next });
            }
            if twice {
                flights.entry(at + delay).or_default().push(PacketInFlight { line, first, next });
            }
            first = next;
        }
    }
    flights
}

/// Ways to break an arbiter, for the negative control.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sabotage {
    None,
    DeliverTwice,
    SkipDelivery,
    WidenGap,
    DeclareTooEarly,
    TrimWrongly,
}

/// Feeds the lines into an arbiter until nothing is in flight, then ends the input.
fn run_lines(
    config: ArbiterConfig,
    mut flights: BTreeMap<u64, Vec<PacketInFlight>>,
    server: Option<&ServerPlan>,
    sabotage: Sabotage,
) -> Result<Checker, String> {
    let mut arbiter = Arbiter::new(config);
    arbiter.begin_session(Some(Sequence(1)));
    let memory_bytes = arbiter.memory_bytes();
    let mut checker = Checker { expected: Some(1), ..Checker::default() };
    let mut requests = 0;
    let mut faults = Vec::new();
    let limits = arbiter.config().recovery;
    let mut answer = |arbiter: &mut Arbiter, flights: &mut BTreeMap<u64, Vec<PacketInFlight>>, at: u64| {
        while let Some(request) = arbiter.poll_request() {
            let (Some(server), Some(limits)) = (server, limits) else { return Err("asked without a server") };
            if request.next.0 - request.first.0 > limits.messages_per_request_max {
                return Err("asked for too much");
            }
            let answered = server.answers[requests % server.answers.len()];
            requests += 1;
            if answered {
                let next = request.next.0.min(request.first.0 + server.messages_per_answer);
                let answer = PacketInFlight { line: Line::RECOVERY, first: request.first.0, next };
                flights.entry(at + 700).or_default().push(answer);
            }
        }
        Ok(())
    };
    while let Some((at, batch)) = flights.pop_first() {
        let now = MonoNs(at * 1_000);
        for flight in batch {
            let block = block(flight.first, flight.next);
            let arrival = Arrival {
                line: flight.line,
                first: Sequence(flight.first),
                next: Sequence(flight.next),
                block: &block,
                ts_recv: UnixNs(now.0),
                send_time: None,
                now,
            };
            let open = (flight.first..flight.next).filter(|sequence| !checker.missing.contains(sequence));
            checker.arrived.extend(open.collect::<Vec<_>>());
            let _counted = arbiter.accept(arrival, &mut |delivery| {
                faults.extend(feed_checker(&mut checker, &delivery, sabotage));
            });
        }
        answer(&mut arbiter, &mut flights, at)?;
        let until = flights.keys().next().copied();
        while let Some(deadline) = arbiter.next_deadline() {
            if until.is_some_and(|until| deadline.0 >= until * 1_000) {
                break;
            }
            // A deadline that has passed is processed now.
            let now = deadline.max(now);
            arbiter.on_deadline(now, &mut |delivery| faults.extend(feed_checker(&mut checker, &delivery, sabotage)));
            answer(&mut arbiter, &mut flights, now.0 / 1_000)?;
            if flights.keys().next().copied() != until {
                break;
            }
        }
    }
    arbiter.finish(&mut |delivery| faults.extend(feed_checker(&mut checker, &delivery, sabotage)));
    if arbiter.memory_bytes() != memory_bytes {
        return Err("memory grew".to_owned());
    }
    let under_way = arbiter.recovery_statistics().map_or(0, |recovery| recovery.in_flight_max);
    if limits.is_some_and(|limits| under_way > usize::from(limits.requests_in_flight_max)) {
        return Err(format!("{under_way} requests under way"));
    }
    if arbiter.statistics().delivered_messages != checker.delivered.len() as u64 {
        return Err("delivered messages miscounted".to_owned());
    }
    let won: u64 = (0..8).map(|line| arbiter.line_statistics(Line(line)).won_messages).sum();
    if won != checker.delivered.len() as u64 {
        return Err(format!("{won} messages won, {} delivered", checker.delivered.len()));
    }
    match faults.into_iter().next() {
        Some(fault) => Err(fault),
        None => checker.finish().map(|()| checker),
    }
}

/// Passes a delivery to the checker, unchanged or as a broken arbiter would.
fn feed_checker(checker: &mut Checker, delivery: &Delivery<'_>, sabotage: Sabotage) -> Option<String> {
    let is_fifth = checker.delivered.len() >= 5;
    let broken = match (sabotage, delivery) {
        (Sabotage::DeliverTwice, Delivery::Packet { .. }) if is_fifth => {
            checker.accept(delivery).and_then(|()| checker.accept(delivery))
        }
        (Sabotage::SkipDelivery, Delivery::Packet { .. }) if is_fifth => Ok(()),
        (Sabotage::WidenGap, Delivery::Gap(gap)) => {
            checker.accept(&Delivery::Gap(Gap::new(gap.first(), gap.next().plus(1)).unwrap()))
        }
        (Sabotage::DeclareTooEarly, Delivery::Packet { from, until, .. }) if is_fifth => {
            checker.accept(&Delivery::Gap(Gap::new(*from, *until).unwrap()))
        }
        (Sabotage::TrimWrongly, Delivery::Packet { line, first, next, from, until, block, ts_recv, send_time })
            if from > first =>
        {
            let (line, next, ts_recv, send_time) = (*line, *next, *ts_recv, *send_time);
            let until = Sequence(until.0 - (from.0 - first.0).min(until.0 - from.0));
            let from = *first;
            checker.accept(&Delivery::Packet { line, first: *first, next, from, until, block, ts_recv, send_time })
        }
        _ => checker.accept(delivery),
    };
    broken.err()
}

fn all_arrivals(flights: &BTreeMap<u64, Vec<PacketInFlight>>) -> BTreeSet<u64> {
    flights.values().flatten().flat_map(|flight| flight.first..flight.next).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// With enough time: exactly the result of "sort, drop duplicates, missing = gap".
    #[test]
    fn without_timeouts_the_arbiter_delivers_the_union_of_all_lines(
        messages in 1..300_u64,
        lines in prop::collection::vec(line_plan(), 1..4),
    ) {
        let config = ArbiterConfig {
            lines: lines.len() as u8, window_packets: 2_048, gap_timeout_ns: u64::MAX, ..config()
        };
        let flights = flights(messages, &lines);
        let arrivals = all_arrivals(&flights);
        let checker = run_lines(config, flights, None, Sabotage::None).map_err(TestCaseError::fail)?;
        prop_assert_eq!(&checker.delivered, &arrivals);
        let end = arrivals.last().copied().unwrap_or(0);
        let missing = (1..=end).filter(|sequence| !arrivals.contains(sequence)).collect::<BTreeSet<_>>();
        prop_assert_eq!(&checker.missing, &missing);
    }

    /// With timeouts, small windows and an unreliable server: each sequence once or in one exact gap.
    #[test]
    fn every_sequence_is_delivered_once_or_declared_once(
        messages in 1..400_u64,
        lines in prop::collection::vec(line_plan(), 1..4),
        server in server_plan(),
        window_packets in 64..100_usize,
        gap_timeout_us in 1..20_000_u64,
        requests_in_flight_max in 1..9_u16,
    ) {
        let recovery =
            server.as_ref().map(|_| RecoveryConfig { messages_per_request_max: 30, requests_in_flight_max, ..recovery() });
        let config = ArbiterConfig {
            lines: lines.len() as u8, window_packets, gap_timeout_ns: gap_timeout_us * 1_000, recovery, ..config()
        };
        run_lines(config, flights(messages, &lines), server.as_ref(), Sabotage::None).map_err(TestCaseError::fail)?;
    }

    /// A server that answers eventually: nothing is missing, whatever the lines lose (only the lines announce the
    /// end).
    #[test]
    fn an_eventually_answering_server_leaves_no_gap(
        messages in 1..400_u64,
        lines in prop::collection::vec(line_plan(), 1..4),
        answers in prop::collection::vec(any::<bool>(), 0..6),
        requests_in_flight_max in 1..9_u16,
    ) {
        let answers = answers.into_iter().chain([true]).collect();
        let server = ServerPlan { messages_per_answer: 9, answers };
        // With so many attempts, every request is answered eventually, however other requests interleave.
        let recovery = Some(RecoveryConfig {
            attempts_max: u16::MAX, session_messages_max: u64::MAX, requests_in_flight_max, ..recovery()
        });
        let config = ArbiterConfig { lines: lines.len() as u8, window_packets: 2_048, recovery, ..config() };
        let flights = flights(messages, &lines);
        let end = all_arrivals(&flights).last().copied().unwrap_or(0);
        let checker = run_lines(config, flights, Some(&server), Sabotage::None).map_err(TestCaseError::fail)?;
        prop_assert_eq!(checker.missing.len(), 0);
        prop_assert_eq!(checker.delivered, (1..=end).collect::<BTreeSet<_>>());
    }

    /// For any sequences, also forged ones: output strictly ascends, and no gap is empty.
    #[test]
    fn output_strictly_ascends_on_fuzzed_arrivals(
        start in prop::option::of(any::<u64>()),
        refuse in any::<bool>(),
        inputs in prop::collection::vec((0..9_u8, hostile(), hostile(), 0..4_u8, 0..30_000_000_u64), 1..400),
    ) {
        let when_full = if refuse { WhenFull::RefusePacket } else { WhenFull::DeclareGap };
        let (window_packets, recovery) = (64, Some(recovery()));
        let mut arbiter = Arbiter::new(ArbiterConfig { window_packets, recovery, when_full, ..config() });
        arbiter.begin_session(start.map(Sequence));
        let memory_bytes = arbiter.memory_bytes();
        let mut position = None;
        let mut fault = None;
        let mut now = MonoNs(0);
        let mut ascend = |delivery: Delivery<'_>| {
            let (from, until) = match delivery {
                Delivery::Gap(gap) => (gap.first(), gap.next()),
                Delivery::Packet { from, until, first, next, .. } => {
                    if first > from || until > next { fault = Some((from, until)); }
                    (from, until)
                }
            };
            if from >= until || position.is_some_and(|position| position != from) {
                fault = Some((from, until));
            }
            position = Some(until);
        };
        for (line, first, next, act, ns) in inputs {
            now = now.plus(ns);
            let line = Line(line);
            let (first, next) = (Sequence(first), Sequence(next));
            match act {
                0 => _ = arbiter.announce(line, next, now),
                1 => arbiter.on_deadline(now, &mut ascend),
                2 => {
                    let next = first.plus(next.0 % 40);
                    let arrival = Arrival { line, first, next, block: &[7; 500], ts_recv: UnixNs(next.0), send_time: None, now };
                    _ = arbiter.accept(arrival, &mut ascend);
                }
                _ => {
                    let arrival = Arrival { line, first, next, block: &[7; 5], ts_recv: UnixNs(0), send_time: None, now };
                    _ = arbiter.accept(arrival, &mut ascend);
                }
            }
            while arbiter.poll_request().is_some() {}
        }
        arbiter.finish(&mut ascend);
        prop_assert_eq!(fault, None);
        prop_assert_eq!(arbiter.memory_bytes(), memory_bytes);
        prop_assert_eq!(arbiter.expected(), arbiter.frontier());
    }
}

/// Sequences near each other, and the edges of the range.
fn hostile() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 1..300_u64, 1 => 1..20_000_u64, 1 => any::<u64>(), 1 => (0..5_u64).prop_map(|n| u64::MAX - n), 1 => 0..3_u64]
}

/// Lines with losses, duplicates and delays, so that every [`Sabotage`] has an effect.
fn damaged_lines() -> Vec<LinePlan> {
    let loses_some = |cuts: &[u64]| {
        let fates = (0..7).map(|index| (index == 3, index == 2, index * 90)).collect();
        LinePlan { cuts: cuts.to_vec(), fates }
    };
    vec![loses_some(&[3, 1]), loses_some(&[2, 5])]
}

#[test]
fn the_checker_detects_every_faulty_arbiter() {
    let config = || ArbiterConfig { gap_timeout_ns: 100_000, ..config() };
    let run = |sabotage| run_lines(config(), flights(200, &damaged_lines()), None, sabotage).map(|_| ());
    assert_eq!(run(Sabotage::None), Ok(()));
    for sabotage in [
        Sabotage::DeliverTwice,
        Sabotage::SkipDelivery,
        Sabotage::WidenGap,
        Sabotage::DeclareTooEarly,
        Sabotage::TrimWrongly,
    ] {
        assert!(run(sabotage).is_err(), "{sabotage:?} was not caught");
    }
}
