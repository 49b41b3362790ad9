//! One scenario for each guarantee.
//!
//! `A3` is message 3 on line A, `A3..6` a packet `[3, 6)`, `A3@7` a packet with receive timestamp 7. `A=9` announces
//! that 9 is next. `R…` is the recovery line. `P2` means that the peer has answered what it can of the request that
//! begins at 2. `report=9` means that the peer reports to have every message before 9. `+30ms` advances the time, `end` ends the input, `session=1` begins a session.

use std::fmt::Write;

use expect_test::{Expect, expect};

use super::*;

fn check(story: &str, expected: Expect) {
    check_with(config(), story, expected);
}

fn check_with(config: ArbiterConfig, story: &str, expected: Expect) {
    let mut harness = ArbiterHarness::new(config);
    story.split_whitespace().for_each(|word| harness.step(word));
    expected.assert_eq(harness.output.trim_start());
}

struct ArbiterHarness {
    arbiter: Arbiter,
    now: MonoNs,
    output: String,
}

impl ArbiterHarness {
    fn new(config: ArbiterConfig) -> Self {
        Self { arbiter: Arbiter::new(config), now: MonoNs(1_000), output: String::new() }
    }

    fn step(&mut self, word: &str) {
        let output = &mut self.output;
        let mut record = |delivery: Delivery<'_>| match delivery {
            Delivery::Gap(gap) => write!(output, " gap:{}..{}", gap.first().0, gap.next().0).unwrap(),
            Delivery::Packet { line, from, until, .. } => {
                assert_eq!(messages(&delivery), (from.0..until.0).collect::<Vec<_>>());
                let name = if line == Line::RECOVERY { "R".to_owned() } else { line.to_string() };
                write!(output, " {name}{}..{}", from.0, until.0).unwrap();
            }
        };
        if let Some(ms) = word.strip_prefix('+') {
            let until = self.now.plus(ms.strip_suffix("ms").unwrap().parse::<u64>().unwrap() * 1_000_000);
            while let Some(deadline) = self.arbiter.next_deadline().filter(|deadline| *deadline <= until) {
                self.arbiter.on_deadline(deadline, &mut record);
                assert_ne!(self.arbiter.next_deadline(), Some(deadline), "a deadline that was acted on is over");
            }
            self.now = until;
        } else if word == "end" {
            self.arbiter.finish(&mut record);
        } else if let Some(first) = word.strip_prefix("session=") {
            self.arbiter.begin_session(first.parse().ok().map(Sequence));
        } else if let Some(next) = word.strip_prefix("report=") {
            self.arbiter.note_reported(Sequence(next.parse().unwrap()), self.now);
        } else if let Some(asked) = word.strip_prefix('P') {
            self.arbiter.peer_answer_ended(Sequence(asked.parse().unwrap()), self.now);
        } else if let Some((line, next)) = word.split_once('=') {
            let next = Sequence(next.parse().unwrap());
            if let Err(reason) = self.arbiter.announce(line_of(line), next, self.now) {
                write!(self.output, " !{}", reason.name()).unwrap();
            }
        } else {
            let (line, rest) = word.split_at(1);
            let (range, stamp) = rest.split_once('@').unwrap_or((rest, "0"));
            let (first, next) = match range.split_once("..") {
                Some((first, next)) => (first.parse().unwrap(), next.parse().unwrap()),
                None => (range.parse::<u64>().unwrap(), range.parse::<u64>().unwrap() + 1),
            };
            let block = block(first, next);
            let arrival = Arrival {
                line: line_of(line),
                first: Sequence(first),
                next: Sequence(next),
                block: &block,
                ts_recv: UnixNs(stamp.parse().unwrap()),
                send_time: None,
                now: self.now,
            };
            if let Err(reason) = self.arbiter.accept(arrival, &mut record) {
                write!(self.output, " !{}", reason.name()).unwrap();
            }
        }
        while let Some(request) = self.arbiter.poll_request() {
            let whom = if request.target == RequestTarget::Peer { "peer" } else { "ask" };
            write!(self.output, " {whom}:{}..{}", request.first.0, request.next.0).unwrap();
        }
    }
}

fn line_of(name: &str) -> Line {
    match name {
        "R" => Line::RECOVERY,
        name => Line(name.as_bytes()[0] - b'A'),
    }
}

#[test]
fn first_arrival_wins_message_by_message() {
    check(
        "A1 B1 B2 A2 A3..6 B3..4 B4..8 A6..8",
        expect!["A1..2 !duplicate B2..3 !duplicate A3..6 !duplicate B6..8 !duplicate"],
    );
}

#[test]
fn the_other_line_fills_a_gap() {
    check("A1 A3 B2 B3", expect!["A1..2 B2..3 A3..4 !duplicate"]);
}

#[test]
fn a_gap_is_declared_with_exact_bounds_after_its_timeout() {
    check("A1 A5..7 +19ms B1 +1ms B3 A7", expect!["A1..2 !duplicate gap:2..5 A5..7 !late_after_gap A7..8"]);
}

#[test]
fn differently_cut_packets_shrink_a_gap_from_both_sides_and_the_middle() {
    check("A1 A10..12 B2..4 B8..11 B5..7 +20ms", expect!["A1..2 B2..4 gap:4..5 B5..7 gap:7..8 B8..10 A10..12"]);
}

#[test]
fn a_packet_spanning_held_ones_fills_every_gap_and_held_copies_win() {
    check("A1 A4..6 A8..10 B3..12 B2", expect!["A1..2 B2..3 B3..4 A4..6 B6..8 A8..10 B10..12"]);
    check("A1 A4..6 A8..10 B2..12", expect!["A1..2 B2..4 A4..6 B6..8 A8..10 B10..12"]);
    check("A1 A4..6 A8..10 B2..9 B9..11", expect!["A1..2 B2..4 A4..6 B6..8 A8..10 B10..11"]);
}

#[test]
fn a_partial_fill_restarts_the_gap_timer_and_later_gaps_have_their_own() {
    check("A1 A5 +15ms B2 +15ms A9 +5ms +15ms", expect!["A1..2 B2..3 gap:3..5 A5..6 gap:6..9 A9..10"]);
    check(
        "A1 A5 +15ms A9 +5ms B6 +19ms B7 +1ms +18ms +1ms",
        expect!["A1..2 gap:2..5 A5..6 B6..7 B7..8 gap:8..9 A9..10"],
    );
}

#[test]
fn a_late_starter_begins_at_its_first_packet_unless_given_a_sequence() {
    check("A100 A101 B99", expect!["A100..101 A101..102 !duplicate"]);
    check("session=1 A3 B1 +20ms", expect!["B1..2 gap:2..3 A3..4"]);
    check("A=7 A7 A6", expect!["A7..8 !duplicate"]);
}

#[test]
fn an_announcement_reveals_a_trailing_gap() {
    check("A1 A=4 +19ms B2 +20ms B=4", expect!["A1..2 B2..3 gap:3..4"]);
    check("A1 A3 A=6 +20ms", expect!["A1..2 gap:2..3 A3..4 gap:4..6"]);
    check("A1..9 B=4", expect!["A1..9"]);
}

#[test]
fn finish_declares_missing_and_delivers_held_messages() {
    check("A1 A3 A6 B=9 end end A9", expect!["A1..2 gap:2..3 A3..4 gap:4..6 A6..7 gap:7..9 A9..10"]);
}

#[test]
fn a_new_session_resets_the_arbiter() {
    check("A1..5 A9 end session=1 B1 B3 A2", expect!["A1..5 gap:5..9 A9..10 B1..2 A2..3 B3..4"]);
}

#[test]
fn a_gap_is_requested_then_retried_then_declared() {
    let config = ArbiterConfig { recovery: Some(recovery()), ..config() };
    check_with(config.clone(), "A1 A5 +20ms +9ms +1ms +10ms", expect!["A1..2 ask:2..5 ask:2..5 gap:2..5 A5..6"]);
    check_with(config.clone(), "A1 A5 +20ms R2..5 A6 +50ms", expect!["A1..2 ask:2..5 R2..5 A5..6 A6..7"]);
    check_with(config.clone(), "A1 A5 +20ms B2..5 +50ms", expect!["A1..2 ask:2..5 B2..5 A5..6"]);
    check_with(
        config,
        "A1 A9 +20ms R2..4 R4..6 +10ms +10ms",
        expect!["A1..2 ask:2..9 R2..4 ask:4..9 R4..6 ask:6..9 ask:6..9 gap:6..9 A9..10"],
    );
}

#[test]
fn requests_respect_their_limits() {
    let limited = |recovery| ArbiterConfig { recovery: Some(recovery), ..config() };
    let pieces = RecoveryConfig { messages_per_request_max: 2, ..recovery() };
    check_with(limited(pieces), "A1 A6 +20ms R2..4 R4..6", expect!["A1..2 ask:2..4 ask:4..6 R2..4 R4..6 A6..7"]);
    let small = RecoveryConfig { gap_messages_max: 3, ..recovery() };
    check_with(limited(small), "A1 A6 +20ms A10 +20ms", expect!["A1..2 gap:2..6 A6..7 ask:7..10"]);
    let poor = RecoveryConfig { session_messages_max: 5, ..recovery() };
    check_with(limited(poor), "A1 A6 +20ms R2 +20ms", expect!["A1..2 ask:2..6 R2..3 gap:3..6 A6..7"]);
}

#[test]
fn each_gap_is_requested_after_its_own_timeout() {
    let config = ArbiterConfig { recovery: Some(recovery()), ..config() };
    check_with(config.clone(), "A1 A3 A5 +20ms R4 R2", expect!["A1..2 ask:2..3 ask:4..5 R2..3 A3..4 R4..5 A5..6"]);
    // A lost answer delays only its own gap.
    check_with(
        config.clone(),
        "A1 A3 +5ms A5 +15ms +5ms R4 +5ms R2",
        expect!["A1..2 ask:2..3 ask:4..5 ask:2..3 R2..3 A3..4 R4..5 A5..6"],
    );
    // The trailing gap of an announcement is a gap like any other.
    check_with(config, "A1 A3 A=6 +20ms R4..6 R2", expect!["A1..2 ask:2..3 ask:4..6 R2..3 A3..4 R4..6"]);
}

#[test]
fn requests_in_flight_stay_within_the_limit() {
    let recovery = RecoveryConfig { requests_in_flight_max: 2, messages_per_request_max: 3, ..recovery() };
    let config = ArbiterConfig { recovery: Some(recovery), ..config() };
    check_with(
        config.clone(),
        "A1 A3 A5 A7 +20ms R4 +0ms R2 R6",
        expect!["A1..2 ask:2..3 ask:4..5 ask:6..7 R2..3 A3..4 R4..5 A5..6 R6..7 A7..8"],
    );
    // The pieces of a large gap are requested one after the other, without another wait.
    check_with(
        config,
        "A1 A10 +20ms R2..5 R5..7 R7..8 R8..10",
        expect!["A1..2 ask:2..5 ask:5..8 R2..5 ask:8..10 R5..7 ask:7..8 R7..8 R8..10 A10..11"],
    );
}

#[test]
fn abandoned_gaps_are_declared_in_order() {
    let config = ArbiterConfig { recovery: Some(recovery()), ..config() };
    check_with(
        config.clone(),
        "A1 A3 A5 +20ms +10ms B2 +10ms",
        expect!["A1..2 ask:2..3 ask:4..5 ask:2..3 ask:4..5 B2..3 A3..4 gap:4..5 A5..6"],
    );
    // The second gap is given up first, and waits for the first one's answer.
    check_with(
        ArbiterConfig { recovery: Some(RecoveryConfig { gap_messages_max: 3, ..recovery() }), ..config },
        "A1 A3 A9 +20ms R2 +0ms",
        expect!["A1..2 ask:2..3 R2..3 A3..4 gap:4..9 A9..10"],
    );
}

#[test]
fn an_unavailable_range_is_declared_while_pending_ranges_wait() {
    let recovery = RecoveryConfig { messages_per_request_max: 3, attempts_max: 1, ..recovery() };
    let config = ArbiterConfig { recovery: Some(recovery), ..config() };
    check_with(
        config,
        "A1 A8 +20ms +5ms R5 +5ms R6..8",
        expect!["A1..2 ask:2..5 ask:5..8 ask:6..8 gap:2..5 R5..6 R6..8 A8..9"],
    );
}

#[test]
fn without_answers_a_large_gap_is_abandoned_as_soon_as_a_small_one() {
    let recovery =
        RecoveryConfig { messages_per_request_max: 3, requests_in_flight_max: 2, attempts_max: 1, ..recovery() };
    let config = ArbiterConfig { recovery: Some(recovery), ..config() };
    check_with(config, "A1 A12 +20ms +10ms", expect!["A1..2 ask:2..5 ask:5..8 gap:2..12 A12..13"]);
}

#[test]
fn a_server_that_has_only_the_end_of_a_gap_is_asked_for_all_of_it() {
    let recovery = RecoveryConfig { messages_per_request_max: 6, attempts_max: 1, ..recovery() };
    let config = ArbiterConfig { recovery: Some(recovery), ..config() };
    // Of the first piece, only 5 arrives: no source has 2 to 4, and the answer for 6 and 7 was lost. The second piece
    // is requested independently.
    check_with(
        config,
        "A1 A10 +20ms R5 R8..10 +10ms R6..8",
        expect!["A1..2 ask:2..8 ask:8..10 gap:2..5 R5..6 ask:6..8 R6..8 R8..10 A10..11"],
    );
}

#[test]
fn the_peer_is_asked_first_and_each_source_works_alone() {
    let of = |peer_attempts_max, attempts_max| {
        let recovery = RecoveryConfig { peer_timeout_ns: 1_000_000, peer_attempts_max, attempts_max, ..recovery() };
        ArbiterConfig { recovery: Some(recovery), ..config() }
    };
    check_with(of(2, 2), "A1 A3 +20ms +1ms", expect!["A1..2 peer:2..3 peer:2..3"]);
    check_with(of(2, 2), "A1 A3 +20ms +1ms +1ms +10ms", expect!["A1..2 peer:2..3 peer:2..3 ask:2..3 ask:2..3"]);
    check_with(of(1, 0), "A1 A3 +20ms +1ms", expect!["A1..2 peer:2..3 gap:2..3 A3..4"]);
    check_with(of(0, 2), "A1 A3 +20ms +10ms +10ms", expect!["A1..2 ask:2..3 ask:2..3 gap:2..3 A3..4"]);
}

#[test]
fn catch_up_limits_apply_only_during_catch_up() {
    let of = |peer_attempts_max| RecoveryConfig {
        peer_timeout_ns: 1_000_000,
        peer_attempts_max,
        attempts_max: 0,
        ..recovery()
    };
    let config = ArbiterConfig { recovery: Some(of(1)), catch_up: Some(of(4)), ..config() };
    let config = ArbiterConfig { window_packets: WINDOW_PACKETS_MIN, ..config };
    // The catch-up limits allow four attempts before the first packet; the normal limits allow one attempt for later
    // gaps.
    check_with(
        config.clone(),
        "session=1 A5 +20ms +1ms +1ms R1..5 A7 +20ms +1ms",
        expect!["peer:1..5 peer:1..5 peer:1..5 R1..5 A5..6 peer:6..7 gap:6..7 A7..8"],
    );
    // A session that is received from its first message has no catch-up: the normal limits apply.
    check_with(config.clone(), "session=1 A1 A3 +20ms +1ms", expect!["A1..2 peer:2..3 gap:2..3 A3..4"]);
    // The catch-up limits also apply to a loss during catch-up, until all messages before the first received one have
    // arrived.
    check_with(
        config.clone(),
        "session=1 A5 A7 +20ms R1..5 +1ms A9 +20ms +1ms",
        expect!["peer:1..5 peer:6..7 R1..5 A5..6 gap:6..7 A7..8 peer:8..9 gap:8..9 A9..10"],
    );
    // A packet without room does not declare the gap during catch-up; afterwards it does.
    let held = (0..64).map(|packet| format!("A{}", 5 + 2 * packet)).collect::<Vec<_>>().join(" ");
    let mut harness = ArbiterHarness::new(config);
    format!("session=1 {held} A200").split_whitespace().for_each(|word| harness.step(word));
    assert_eq!(harness.arbiter.statistics().gaps_window_full, 0);
    assert_eq!(harness.arbiter.drops().get(DropReason::WindowFull), 1);
    let rest = (0..64).map(|packet| format!("R{}", 6 + 2 * packet)).collect::<Vec<_>>().join(" ");
    format!("R1..5 {rest} R133..167 R167..201").split_whitespace().for_each(|word| harness.step(word));
    assert_eq!(harness.arbiter.expected(), Some(Sequence(201)), "{}", harness.output);
    let held = (0..66).map(|packet| format!("A{}", 203 + 2 * packet)).collect::<Vec<_>>().join(" ");
    held.split_whitespace().for_each(|word| harness.step(word));
    assert!(harness.arbiter.statistics().gaps_window_full > 0);
}

#[test]
fn an_empty_peer_answer_moves_on_to_the_server() {
    let recovery = RecoveryConfig { peer_timeout_ns: 5_000_000, peer_attempts_max: 2, attempts_max: 1, ..recovery() };
    let config = ArbiterConfig { recovery: Some(recovery), ..config() };
    // The end of the answer for the first gap does not affect the second; repeated, it has no effect.
    check_with(
        config,
        "A1 A3 A5 +20ms P2 +0ms P2 R4 +10ms",
        expect!["A1..2 peer:2..3 peer:4..5 ask:2..3 gap:2..3 A3..4 R4..5 A5..6"],
    );
}

#[test]
fn a_partial_peer_answer_requests_the_rest_from_the_peer() {
    let recovery = RecoveryConfig { peer_timeout_ns: 5_000_000, peer_attempts_max: 1, attempts_max: 1, ..recovery() };
    let config = ArbiterConfig { recovery: Some(recovery), ..config() };
    // The first request's answer may arrive twice.
    check_with(config, "A1 A9 +20ms R2..4 P2 P2 R4..9", expect!["A1..2 peer:2..9 R2..4 peer:4..9 R4..9 A9..10"]);
}

#[test]
fn peer_requests_in_flight_total_at_most_one_request() {
    let recovery =
        RecoveryConfig { peer_timeout_ns: 5_000_000, peer_attempts_max: 1, messages_per_request_max: 4, ..recovery() };
    let config = ArbiterConfig { recovery: Some(recovery), ..config() };
    check_with(
        config,
        "A1 A4 A7 A9 +20ms R2..4 +0ms R5..7 +0ms R8",
        expect!["A1..2 peer:2..4 peer:5..7 R2..4 A4..5 peer:8..9 R5..7 A7..8 R8..9 A9..10"],
    );
}

/// A peer, then a server, each asked once; then nothing.
fn with_peer() -> ArbiterConfig {
    let recovery = RecoveryConfig { peer_timeout_ns: 1_000_000, peer_attempts_max: 1, attempts_max: 1, ..recovery() };
    ArbiterConfig { recovery: Some(recovery), ..config() }
}

#[test]
fn messages_that_only_the_peer_reports_are_requested_when_none_arrives_meanwhile() {
    check_with(with_peer(), "A1 report=5 +19ms +1ms R2..5 +60ms", expect!["A1..2 peer:2..5 R2..5"]);
    check_with(
        with_peer(),
        "A1 report=5 +20ms +1ms R2..4 R4 +60ms",
        expect!["A1..2 peer:2..5 ask:2..5 R2..4 peer:4..5 R4..5"],
    );
    check_with(with_peer(), "A1 report=9 +20ms R2..4 P2 R4..9", expect!["A1..2 peer:2..9 R2..4 peer:4..9 R4..9"]);
    // The peer's packet begins before the request.
    check_with(with_peer(), "A1..3 report=5 +20ms R2..4 P3", expect!["A1..3 peer:3..5 R3..4 peer:4..5"]);
    // A peer that is a few messages ahead, on a channel where packets arrive.
    check_with(with_peer(), "A1 report=5 +10ms A2 report=6 +10ms A3 +60ms", expect!["A1..2 A2..3 A3..4"]);
    check_with(with_peer(), "A1 report=3 +10ms A2..9 report=5 +60ms", expect!["A1..2 A2..9"]);
    // Before the first packet the channel knows no position, and without a peer there are no reports.
    check_with(with_peer(), "report=5 +60ms A7", expect!["A7..8"]);
    check("A1 report=5 +60ms A2", expect!["A1..2 A2..3"]);
    let mut harness = ArbiterHarness::new(with_peer());
    "A1 report=5 +20ms".split_whitespace().for_each(|word| harness.step(word));
    assert_eq!(harness.arbiter.state(), ChannelState::Live, "no packet shows a gap");
}

#[test]
fn messages_that_only_the_peer_reports_are_never_declared() {
    let mut harness = ArbiterHarness::new(with_peer());
    let mut rest = |story: &str| {
        harness.output.clear();
        story.split_whitespace().for_each(|word| harness.step(word));
        (harness.output.trim_start().to_owned(), harness.arbiter.reports_given_up())
    };
    assert_eq!(rest("A1 report=5 +20ms +1ms +10ms"), ("A1..2 peer:2..5 ask:2..5".to_owned(), 1));
    // A report that nothing confirms is asked for again, less and less often.
    assert_eq!(rest("report=5 +900ms report=5 +60ms"), (String::new(), 1));
    let asked = "peer:2..5 ask:2..5".to_owned();
    assert_eq!(rest("+100ms report=5 +20ms +1ms +10ms"), (asked.clone(), 2));
    assert_eq!(rest("+1900ms report=5 +60ms"), (String::new(), 2));
    assert_eq!(rest("+100ms report=5 +20ms +1ms +10ms"), (asked, 3));
    assert_eq!(rest("A2 A3 end"), ("A2..3 A3..4".to_owned(), 3));
    // A false report costs a later gap nothing: it has its own wait and its own requests.
    check_with(
        with_peer(),
        "A1 report=900 +20ms A2 A5 +19ms +1ms +1ms R3..5",
        expect!["A1..2 peer:2..102 A2..3 peer:3..5 ask:3..5 R3..5 A5..6"],
    );
    check_with(with_peer(), "A1 report=9223372036854775807 +60ms A2 A4 +20ms", expect!["A1..2 A2..3 peer:3..4"]);
    check_with(with_peer(), "A1 report=9 +20ms session=1 A1 +60ms", expect!["A1..2 peer:2..9 A1..2"]);
    let limited = RecoveryConfig { session_messages_max: 5, ..with_peer().recovery.unwrap() };
    let config = ArbiterConfig { recovery: Some(limited), ..config() };
    check_with(config, "A1 report=5 +20ms +60ms +2000ms report=5 +60ms", expect!["A1..2 peer:2..5"]);
}

/// A joining gateway has no packet yet that would begin its catch-up.
#[test]
fn messages_that_only_the_peer_reports_have_the_limits_of_catch_up() {
    let catch_up = RecoveryConfig { peer_attempts_max: 3, gap_messages_max: u64::MAX, ..with_peer().recovery.unwrap() };
    let config = ArbiterConfig { catch_up: Some(catch_up), ..with_peer() };
    check_with(
        config,
        "session=1 report=5000 +20ms +1ms +1ms R1..90 P1",
        expect!["peer:1..101 peer:1..101 peer:1..101 R1..90 peer:90..101"],
    );
}

#[test]
fn an_announced_answer_is_not_retried_before_its_end() {
    let recovery = RecoveryConfig { answer_end: AnswerEnd::Announced, ..recovery() };
    let config = ArbiterConfig { recovery: Some(recovery), ..config() };
    check_with(config, "A1 A9 +20ms R2 R3 R=9 R4..9", expect!["A1..2 ask:2..9 R2..3 R3..4 ask:4..9 R4..9 A9..10"]);
}

#[test]
fn a_single_jump_is_refused_and_consecutive_packets_confirm_it() {
    check(
        "A1 A100000 A2 A100001 A100002 A3 B100000 A4",
        expect!["A1..2 !sequence_jump A2..3 !sequence_jump !sequence_jump A3..4 !sequence_jump A4..5"],
    );
    check(
        "A1 A100000 A100001..100003 A100003 A100004 +20ms",
        expect!["A1..2 !sequence_jump !sequence_jump gap:2..100003 A100003..100004 A100004..100005"],
    );
    check(
        "A1 A=100000 A2 A=100000 A=100000 A3",
        expect!["A1..2 !sequence_jump A2..3 !sequence_jump !sequence_jump A3..4"],
    );
}

#[test]
fn consecutive_packets_far_below_are_not_accepted() {
    let mut harness = ArbiterHarness::new(config());
    ["A90000", "A1", "A2", "A3", "A4"].into_iter().for_each(|word| harness.step(word));
    assert_eq!(harness.arbiter.expected(), Some(Sequence(90_001)));
}

#[test]
fn invalid_ranges_are_refused() {
    check("A1 A0..1 A5..5 A9..7 A2", expect!["A1..2 !sequence_invalid !sequence_invalid !sequence_invalid A2..3"]);
    check("D1 A0 A=0", expect!["!source_unexpected !sequence_invalid !sequence_invalid"]);
    let mut arbiter = Arbiter::new(config());
    let mut refused = |first, next| {
        let (line, ts_recv, now) = (Line::A, UnixNs(0), MonoNs(0));
        let (first, next) = (Sequence(first), Sequence(next));
        let arrival = Arrival { line, first, next, block: &[], ts_recv, send_time: None, now };
        arbiter.accept(arrival, &mut |_| panic!("delivered")).unwrap_err()
    };
    assert_eq!(refused(u64::MAX - 1, u64::MAX), DropReason::SequenceInvalid);
    assert_eq!(refused(u64::MAX, 3), DropReason::SequenceInvalid);
    assert_eq!(refused(1, 1 << 40), DropReason::LengthMismatch);
}

#[test]
fn a_full_window_declares_the_first_gap_and_continues() {
    let config = ArbiterConfig { window_packets: 64, ..config() };
    let mut harness = ArbiterHarness::new(config);
    harness.step("A1");
    (0..64).for_each(|index| harness.step(&format!("A{}", 3 + index)));
    assert_eq!(harness.output, " A1..2");
    harness.step("A67");
    assert!(harness.output.starts_with(" A1..2 gap:2..3 A3..4 "), "{}", harness.output);
    assert!(harness.output.ends_with(" A66..67 A67..68"), "{}", harness.output);
    assert_eq!(harness.arbiter.statistics().gaps_window_full, 1);
    assert_eq!(harness.arbiter.drops().get(DropReason::WindowFull), 0);
}

#[test]
fn a_full_window_may_refuse_packets_and_request_them_later() {
    let recovery = RecoveryConfig { attempts_max: 100, ..recovery() };
    let config =
        ArbiterConfig { window_packets: 64, when_full: WhenFull::RefusePacket, recovery: Some(recovery), ..config() };
    let mut harness = ArbiterHarness::new(config);
    harness.step("A1");
    (0..64).for_each(|index| harness.step(&format!("A{}", 3 + index)));
    harness.output.clear();
    ["A67", "A68", "A66", "+20ms", "R2", "+20ms", "R67..69"].into_iter().for_each(|word| harness.step(word));
    let (head, tail) = harness.output.split_at(harness.output.find("R2").unwrap());
    expect![" !window_full !window_full !duplicate ask:2..3 "].assert_eq(head);
    assert!(tail.ends_with(" A66..67 ask:67..69 R67..69"), "{tail}");
}

#[test]
fn the_first_line_is_decided_by_receive_timestamps_not_drain_order() {
    let mut harness = ArbiterHarness::new(config());
    // A had 1 before B, although B was drained first; B had 2..4 before A, in other packets.
    ["B1@500", "A1@400", "B2@600", "B3@610", "A2..4@700"].into_iter().for_each(|word| harness.step(word));
    let (a, b) = (harness.arbiter.line_statistics(Line::A), harness.arbiter.line_statistics(Line::B));
    assert_eq!((a.won_messages, a.duplicate_messages), (1, 2));
    assert_eq!((b.won_messages, b.duplicate_messages), (2, 1));
    assert_eq!((a.lead_ns.len(), a.lead_ns.max()), (1, 100));
    assert_eq!((b.lead_ns.len(), b.lead_ns.min(), b.lead_ns.max()), (2, 90, 100));
    assert_eq!((a.packets, b.packets), (2, 3));
}

#[test]
fn leads_are_measured_against_old_deliveries_and_held_packets() {
    let mut harness = ArbiterHarness::new(config());
    (1..=300).for_each(|sequence| harness.step(&format!("A{sequence}@{sequence}")));
    (1..=300).for_each(|sequence| harness.step(&format!("B{sequence}@{}", sequence + 50)));
    harness.step("B7@3000");
    harness.step("A400@9000");
    harness.step("B400@9050");
    let a = harness.arbiter.line_statistics(Line::A);
    assert_eq!((a.lead_ns.len(), a.lead_ns.min()), (302, 50));
    assert_eq!(harness.arbiter.line_statistics(Line::B).lead_unknown_messages, 0);
}

#[test]
fn a_duplicate_beyond_the_lead_history_is_counted() {
    let mut harness = ArbiterHarness::new(config());
    (1..=1_000).for_each(|sequence| harness.step(&format!("A{sequence}")));
    harness.step("B1");
    let b = harness.arbiter.line_statistics(Line::B);
    assert_eq!((b.duplicate_messages, b.lead_unknown_messages), (1, 1));
}

#[test]
fn a_silent_line_raises_its_alarm_once_and_its_next_packet_clears_it() {
    let config = ArbiterConfig { line_silence_ns: Some(50_000_000), ..config() };
    let mut harness = ArbiterHarness::new(config);
    let silent = |harness: &ArbiterHarness| {
        let line = |line| harness.arbiter.line_statistics(line);
        (line(Line::A).silent, line(Line::B).silent, line(Line::A).silences, line(Line::B).silences)
    };
    // The silence timer of a line that never sent runs from `start_silence_timers`.
    harness.arbiter.start_silence_timers(harness.now);
    ["A1", "+40ms", "A2"].into_iter().for_each(|word| harness.step(word));
    assert_eq!(silent(&harness), (false, false, 0, 0));
    harness.step("+40ms");
    assert_eq!(silent(&harness), (false, true, 0, 1));
    harness.step("+100ms");
    assert_eq!(silent(&harness), (true, true, 1, 1));
    assert_eq!(harness.arbiter.next_deadline(), None);
    harness.step("B=3");
    assert_eq!(silent(&harness), (true, false, 1, 1));
}

#[test]
fn states_follow_the_module_diagram() {
    let mut harness = ArbiterHarness::new(ArbiterConfig { recovery: Some(recovery()), ..config() });
    let mut states = vec![harness.arbiter.state()];
    for word in ["A1", "A3", "+20ms", "B2", "A9", "+60ms"] {
        harness.step(word);
        states.push(harness.arbiter.state());
    }
    use ChannelState::{Gap, Live, Recovering, Waiting};
    assert_eq!(states, [Waiting, Live, Gap, Recovering, Live, Gap, Live]);
}

#[test]
fn declare_missing_before_declares_at_once() {
    let mut arbiter = ArbiterHarness::new(config());
    ["session=1", "A10", "A20"].into_iter().for_each(|word| arbiter.step(word));
    let mut gaps = Vec::new();
    let mut record = |delivery: Delivery<'_>| match delivery {
        Delivery::Gap(gap) => gaps.push((gap.first().0, gap.next().0)),
        Delivery::Packet { .. } => {}
    };
    arbiter.arbiter.declare_missing_before(Sequence(15), MonoNs(0), &mut record);
    arbiter.arbiter.declare_missing_before(Sequence(12), MonoNs(0), &mut record);
    assert_eq!(gaps, [(1, 10), (11, 15)]);
    assert_eq!(arbiter.arbiter.expected(), Some(Sequence(15)));
}

#[test]
fn configurations_out_of_range_are_refused() {
    assert_eq!(ArbiterConfig::default().check(), Ok(()));
    let refused = |config: ArbiterConfig| config.check().unwrap_err();
    expect!["window_packets: 64 (one drain) to 32768"]
        .assert_eq(refused(ArbiterConfig { window_packets: 63, ..Default::default() }));
    expect!["lines: 1 to 7"].assert_eq(refused(ArbiterConfig { lines: 8, ..Default::default() }));
}
