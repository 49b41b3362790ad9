#![allow(clippy::unwrap_used, reason = "tests")]

use mdgw_feeds::{frame::FrameFlags, identity::Epoch, published::packet::PacketFlags};

use super::{
    PublishClock, VerifyOptions,
    finding::Promise::{self, Complete, EpochsForward, InOrder, Once, OneContent, OnePublisher},
    forge::{Forged, World},
};

fn world() -> World {
    World::default()
}

/// Which promises were broken, each as often as it was.
fn broken(world: &World) -> Vec<Promise> {
    let verdict = world.verdict(VerifyOptions::default());
    let found: Vec<_> = verdict.findings.iter().map(|finding| finding.promise).collect();
    assert_eq!(found.len() as u64, verdict.broken.iter().sum::<u64>());
    assert_eq!(found.is_empty(), verdict.is_kept());
    found
}

#[test]
fn a_takeover_that_says_a_tail_again_keeps_all_promises() {
    let mut world = world();
    world.live(5, 0, 1, 100).wait(20).take_over(6, 1, 90, 105).live(6, 1, 105, 200);
    assert_eq!(broken(&world), []);
    let verdict = world.verdict(VerifyOptions::default());
    assert_eq!((verdict.names, verdict.said_again), (199, 10));
    assert_eq!(verdict.epochs.iter().map(|epoch| (epoch.count, epoch.node)).collect::<Vec<_>>(), [(5, 0), (6, 1)]);
    let channel = &verdict.channels[0];
    assert_eq!((channel.changes, channel.blackout.count), (1, 1));
    // 20 ms of nothing, the heartbeat, ten messages that were known, the first new one.
    let expected_ns = 32_000_000;
    assert!(channel.blackout.max_ns.abs_diff(expected_ns) < expected_ns / 500, "{}", channel.blackout.max_ns);
}

#[test]
fn a_name_that_one_passes_over_and_another_says_is_found() {
    let passes_over = |count, node, first, next| Forged { next, ..Forged::message(count, node, first) };
    let mut silent_later = world();
    silent_later.live(5, 0, 1, 10).say(Forged::heartbeat(6, 1, 7)).say(passes_over(6, 1, 7, 9)).live(6, 1, 9, 12);
    assert_eq!(broken(&silent_later), [OneContent]);
    let text = &silent_later.verdict(VerifyOptions::default()).findings[0].text;
    assert!(
        text.contains("sequence 8 part 0")
            && text.contains("epoch 6 (node 1) says nothing, epoch 5 (node 0) said records"),
        "{text}"
    );

    let mut silent_first = world();
    silent_first.live(5, 0, 1, 7).say(passes_over(5, 0, 7, 9)).live(5, 0, 9, 10);
    assert_eq!(broken(&silent_first), [], "a message may say nothing");
    let answer = Forged { dst: "10.0.0.9:4000", flags: PacketFlags::RETRANSMISSION, ..Forged::message(5, 1, 8) };
    silent_first.say(answer);
    assert_eq!(broken(&silent_first), [OneContent]);

    // A heartbeat that settles, and the end of an answer, which does not.
    let mut heartbeats = world();
    heartbeats.live(5, 0, 1, 7).say(Forged { first: 7, ..Forged::heartbeat(5, 0, 9) });
    let flags = PacketFlags::RETRANSMISSION.with(PacketFlags::HEARTBEAT);
    heartbeats.say(Forged { dst: "10.0.0.9:4000", first: 1, flags, ..Forged::heartbeat(5, 1, 9) });
    assert_eq!(broken(&heartbeats), []);
    heartbeats.say(Forged { flags: PacketFlags::RETRANSMISSION, ..Forged::message(6, 1, 7) });
    assert!(broken(&heartbeats).contains(&OneContent));

    // Whose book is in doubt says so where another has nothing to say, or has records.
    for is_first in [true, false] {
        let mut doubtful = world();
        let doubt = |count, node| Forged { is_doubt: true, ..Forged::message(count, node, 7) };
        doubtful.live(5, 0, 1, 7);
        doubtful.say(if is_first { doubt(5, 0) } else { passes_over(5, 0, 7, 8) });
        doubtful.say(Forged::heartbeat(6, 1, 7));
        doubtful.say(if is_first { passes_over(6, 1, 7, 8) } else { doubt(6, 1) }).live(6, 1, 8, 12);
        assert_eq!(broken(&doubtful), [], "the doubt first: {is_first}");
    }

    // What one has declared missing another may have.
    let mut declared = world();
    declared.live(5, 0, 1, 7).say(Forged { is_gap: true, next: 9, ..Forged::message(5, 0, 7) });
    declared.say(Forged { dst: "10.0.0.9:4000", flags: PacketFlags::RETRANSMISSION, ..Forged::message(5, 1, 8) });
    assert_eq!(broken(&declared), []);
}

#[test]
fn silences_that_touch_are_one() {
    let mut silent = std::collections::BTreeMap::new();
    let place = super::Place { file: 0, number: 1 };
    let known = |silent: &std::collections::BTreeMap<u64, super::content::Silence>| {
        silent.iter().map(|(first, silence)| (*first, silence.next)).collect::<Vec<_>>()
    };
    for ((first, next), expected) in [
        ((10, 20), vec![(10, 20)]),
        ((30, 40), vec![(10, 20), (30, 40)]),
        ((12, 15), vec![(10, 20), (30, 40)]),
        ((5, 8), vec![(5, 8), (10, 20), (30, 40)]),
        ((8, 31), vec![(5, 40)]),
    ] {
        super::content::pass_over(&mut silent, first, super::content::Silence { next, epoch: Epoch::new(1, 1), place });
        assert_eq!(known(&silent), expected);
    }
}

#[test]
fn blackouts_are_told_by_powers_of_two() {
    let mut world = world();
    world.live(5, 0, 1, 5);
    for (count, wait_ms) in [(6, 5), (7, 6), (8, 40)] {
        world.wait(wait_ms).live(count, 1, 5 + count, 6 + count);
    }
    let verdict = world.verdict(VerifyOptions::default());
    let buckets = &verdict.channels[0].blackout.buckets;
    let told: Vec<_> = buckets.iter().map(|bucket| (bucket.from_ms, bucket.below_ms, bucket.count)).collect();
    assert_eq!(told, [(4, 8, 2), (8, 16, 0), (16, 32, 0), (32, 64, 1)]);
    let table = verdict.to_table(&["a".to_owned()]);
    let all = format!("    4 to 8 ms              2       {}\n", "#".repeat(27));
    assert!(table.contains(&all) && table.contains("    8 to 16 ms             0\n"), "{table}");
    let json = verdict.to_json(&[]);
    let last = &json["channels"][0]["blackout"]["buckets"][3];
    assert_eq!(*last, serde_json::json!({ "from_ms": 32, "below_ms": 64, "count": 1 }));
}

#[test]
fn the_first_packet_of_an_epoch_may_begin_before_what_was_heard_and_must_go_beyond_it() {
    let mut straddled = world();
    straddled.live(5, 0, 1, 88).say(Forged { next: 93, ..Forged::message(5, 0, 88) }).say(Forged::heartbeat(6, 1, 90));
    straddled.say(Forged { next: 93, ..Forged::message(6, 1, 88) }).live(6, 1, 93, 99);
    assert_eq!(broken(&straddled), []);
    let mut before = world();
    before.live(5, 0, 1, 93).say(Forged::heartbeat(6, 1, 90)).say(Forged::message(6, 1, 88));
    assert_eq!(broken(&before), [InOrder]);
}

#[test]
fn a_name_said_twice_in_one_epoch_is_found_and_a_packet_captured_twice_is_not() {
    let mut world = world();
    world.live(5, 0, 1, 10).again();
    assert_eq!(broken(&world), []);
    assert_eq!(world.verdict(VerifyOptions::default()).counts.captured_twice, 1);
    world.say(Forged::message(5, 0, 9));
    assert_eq!(broken(&world), [Once]);
}

#[test]
fn disorder_is_found() {
    let mut world = world();
    world.live(5, 0, 1, 5).say(Forged::message(5, 0, 6)).say(Forged::message(5, 0, 5)).live(5, 0, 7, 9);
    assert_eq!(broken(&world), [InOrder]);
}

#[test]
fn a_session_that_goes_back_is_found() {
    let mut world = world();
    let of_second = |sequence| Forged { restart: 1, ..Forged::message(5, 0, sequence) };
    world.live(5, 0, 1, 5).say(of_second(1)).say(of_second(2));
    assert_eq!(broken(&world), []);
    world.say(Forged::message(5, 0, 5));
    assert_eq!(broken(&world), [InOrder]);
}

#[test]
fn what_never_came_is_found_and_what_an_answer_brought_or_a_gap_declared_is_not() {
    let mut lost = world();
    lost.live(5, 0, 1, 5).live(5, 0, 7, 9);
    assert_eq!(broken(&lost), [Complete]);
    let text = &lost.verdict(VerifyOptions::default()).findings[0].text;
    assert!(text.ends_with("sequences 5 to 6 never came"), "{text}");

    let mut answered = world();
    answered.live(5, 0, 1, 5).live(5, 0, 7, 9);
    for sequence in 5..7 {
        let flags = PacketFlags::RETRANSMISSION;
        answered.say(Forged { dst: "10.0.0.9:4000", flags, ..Forged::message(5, 1, sequence) });
    }
    assert_eq!(broken(&answered), []);

    let mut declared = world();
    declared.live(5, 0, 1, 5).say(Forged { next: 7, is_gap: true, ..Forged::message(5, 0, 5) }).live(5, 0, 7, 9);
    assert_eq!(broken(&declared), []);
    assert_eq!(declared.verdict(VerifyOptions::default()).channels[0].gaps, 1);

    let mut ended = world();
    ended.live(5, 0, 1, 5);
    let flags = PacketFlags::HEARTBEAT.with(PacketFlags::END_OF_SESSION);
    ended.say(Forged { flags, ..Forged::heartbeat(5, 0, 9) });
    assert_eq!(broken(&ended), [Complete], "the end of the session is known");
}

#[test]
fn what_lies_before_a_heartbeat_has_been_published() {
    let mut lost = world();
    lost.live(5, 0, 1, 6).say(Forged::heartbeat(5, 0, 10));
    assert_eq!(broken(&lost), [Complete]);
    let text = &lost.verdict(VerifyOptions::default()).findings[0].text;
    assert!(text.ends_with("sequences 6 to 9 never came"), "{text}");
    // Heartbeats alone tell it too, behind the first of them.
    let mut silent = world();
    silent.say(Forged::heartbeat(5, 0, 6)).say(Forged::heartbeat(5, 0, 10));
    assert_eq!(broken(&silent), [Complete]);
    let mut begun = world();
    begun.say(Forged::heartbeat(5, 0, 6)).live(5, 0, 8, 10);
    assert_eq!(broken(&begun), [Complete]);

    // Whoever comes late has missed nothing, be it after the end.
    let mut late = world();
    late.say(Forged::heartbeat(5, 0, 10)).live(5, 0, 10, 12).say(Forged::heartbeat(5, 0, 12));
    assert_eq!(broken(&late), []);
    let mut over = world();
    let flags = PacketFlags::HEARTBEAT.with(PacketFlags::END_OF_SESSION);
    over.say(Forged { flags, ..Forged::heartbeat(5, 0, 10) });
    assert_eq!(broken(&over), []);
    // A new leader has heard less than was published, and says the rest again.
    let mut taken_over = world();
    taken_over.live(5, 0, 1, 10).say(Forged::heartbeat(6, 1, 7));
    assert_eq!(broken(&taken_over), []);
    // One that receivers don't believe tells them nothing.
    let mut fenced = world();
    fenced.live(6, 1, 1, 6).say(Forged { send_time_ns: Some(0), ..Forged::heartbeat(5, 0, 10) });
    assert_eq!(broken(&fenced), []);
}

#[test]
fn what_only_a_fenced_packet_said_is_missing() {
    let mut world = world();
    world.live(5, 0, 1, 5).say(Forged::heartbeat(6, 1, 6));
    // Stopped between check and send, it wakes up after the other has begun: what it says is dropped.
    world.say(Forged { send_time_ns: Some(4_500_000), ..Forged::message(5, 0, 5) }).live(6, 1, 6, 9);
    assert_eq!(broken(&world), [Complete]);
    assert_eq!(world.verdict(VerifyOptions::default()).counts.fenced, 1);
}

#[test]
fn another_content_under_the_same_name_is_found() {
    let mut world = world();
    world.live(5, 0, 1, 5).take_over(6, 1, 5, 5);
    world.say(Forged { fill: 99, flags: PacketFlags::RETRANSMISSION, ..Forged::message(6, 1, 4) });
    assert!(broken(&world).contains(&OneContent));

    // Whether the book is in doubt is the gateway's own.
    let mut doubted = self::world();
    let frame_flags = FrameFlags::SUSPECT;
    doubted.live(5, 0, 1, 5).say(Forged::heartbeat(6, 1, 4));
    doubted.say(Forged { frame_flags, flags: PacketFlags::RETRANSMISSION, ..Forged::message(6, 1, 4) });
    assert_eq!(broken(&doubted), []);
}

#[test]
fn a_gap_that_is_filled_in_sequence_is_found_and_a_late_fill_is_not() {
    let gap = Forged { next: 7, is_gap: true, ..Forged::message(5, 0, 5) };
    let mut filled = world();
    filled.live(5, 0, 1, 5).say(gap).say(Forged::heartbeat(6, 1, 5)).live(6, 1, 5, 8);
    assert_eq!(broken(&filled), [OneContent, OneContent]);
    let mut late = world();
    late.live(5, 0, 1, 5).say(gap).take_over(6, 1, 7, 7);
    late.say(Forged { first: 7, next: 8, ..Forged::message(6, 1, 7) });
    assert_eq!(broken(&late), []);
}

#[test]
fn parts_of_a_message_are_names_of_their_own() {
    let part = |count, node, number, is_last| Forged {
        part: Some((number, is_last)),
        fill: 7,
        ..Forged::message(count, node, 5)
    };
    let mut whole = world();
    whole.live(5, 0, 1, 5).say(part(5, 0, 0, false)).say(part(5, 0, 1, false));
    // Killed inside the message: the next one says it again, whole.
    whole.say(Forged::heartbeat(6, 1, 5));
    for (number, is_last) in [(0, false), (1, false), (2, true)] {
        whole.say(Forged { flags: PacketFlags::RETRANSMISSION, ..part(6, 1, number, is_last) });
    }
    whole.live(6, 1, 6, 9);
    assert_eq!(broken(&whole), []);
    let mut lacking = world();
    lacking.live(5, 0, 1, 5).say(part(5, 0, 0, false)).say(part(5, 0, 2, true)).live(5, 0, 6, 9);
    assert_eq!(broken(&lacking), [Complete]);
}

#[test]
fn an_old_epoch_that_goes_on_is_found_by_either_clock() {
    let mut world = world();
    world.live(5, 0, 1, 5).say(Forged::heartbeat(6, 1, 5)).live(6, 1, 5, 8);
    // Said after the new one had begun.
    world.say(Forged::message(5, 0, 5));
    assert_eq!(broken(&world), [OnePublisher, EpochsForward]);
    let verdict = world.verdict(VerifyOptions::default());
    let [overlap, back] = verdict.findings.as_slice() else { panic!("{verdict:?}") };
    assert_eq!(overlap.text, "group 1: epoch 6 (node 1) began 4000 us before the end of epoch 5 (node 0) (frame 9)");
    assert!(back.text.contains("epoch 5 (node 0) was published until 4000 us after epoch 6 (node 1) had begun"));
    let tolerant = VerifyOptions { clock_error_ns: 5_000_000, ..VerifyOptions::default() };
    assert!(world.verdict(tolerant).is_kept());

    // Said before, by its own clock, but on the wire after: the receivers' rule closes that hole, the wire shows it.
    let mut paused = self::world();
    paused.live(5, 0, 1, 5).say(Forged::heartbeat(6, 1, 5)).live(6, 1, 5, 8);
    paused.say(Forged { send_time_ns: Some(4_200_000), ..Forged::message(5, 0, 5) });
    assert_eq!(broken(&paused), []);
    let by_wire = VerifyOptions { clock: PublishClock::Capture, ..VerifyOptions::default() };
    assert_eq!(paused.verdict(by_wire).findings[0].promise, OnePublisher);
}

#[test]
fn an_old_epoch_that_comes_back_alone_is_found() {
    let mut world = world();
    // The clock of its publisher is what tells; the capture has it in order.
    let late = |sequence, ms: u64| Forged { send_time_ns: Some(ms * 1_000_000), ..Forged::message(5, 0, sequence) };
    world.say(late(1, 50)).say(late(2, 51)).live(6, 1, 3, 9);
    assert_eq!(broken(&world), [EpochsForward]);
    // Within another one's time it is a second publisher too, be it for a moment.
    let mut amid = self::world();
    amid.say(late(1, 6)).live(6, 1, 2, 20);
    assert_eq!(broken(&amid), [OnePublisher, EpochsForward]);
}

#[test]
fn two_nodes_under_one_count_are_found() {
    let mut world = world();
    world.live(5, 0, 1, 5).say(Forged::heartbeat(5, 1, 5)).live(5, 1, 5, 8);
    assert_eq!(broken(&world), [OnePublisher]);
}

#[test]
fn an_epoch_that_nobody_can_believe_is_left_out() {
    let mut world = world();
    world.live(5, 0, 1, 5);
    world.say(Forged { epoch: Epoch::new(5_000_000, 9), fill: 9, ..Forged::message(5, 0, 3) }).live(5, 0, 5, 9);
    assert_eq!(broken(&world), []);
    assert_eq!(world.verdict(VerifyOptions::default()).counts.incredible, 1);
}

#[test]
fn each_capture_is_a_receiver_of_its_own() {
    let mut world = world();
    world.live(5, 0, 1, 9);
    for sequence in [1, 2, 3, 6, 7] {
        world.say(Forged { file: 1, ..Forged::message(5, 0, sequence) });
    }
    assert_eq!(broken(&world), [Complete], "the second receiver lacks two");
    assert_eq!(world.verdict(VerifyOptions::default()).findings[0].place.file, 1);
}

#[test]
fn findings_are_bounded_and_all_counted() {
    let mut world = world();
    world.live(5, 0, 1, 100);
    for sequence in 1..100 {
        world.say(Forged { fill: 255, ..Forged::message(5, 0, sequence) });
    }
    let verdict = world.verdict(VerifyOptions { findings_max: 3, ..VerifyOptions::default() });
    assert_eq!(verdict.findings.len(), 3);
    assert_eq!((verdict.broken[Once as usize], verdict.broken[OneContent as usize]), (99, 99));
}

#[test]
fn junk_is_counted_and_never_a_panic() {
    let mut verifier = super::Verifier::new(VerifyOptions::default());
    let mut state = 1_u64;
    let mut good = Vec::new();
    for length in 0..2_000 {
        let mut bytes: Vec<u8> = (0..length % 200)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state.to_be_bytes()[0]
            })
            .collect();
        if let Some(magic) = bytes.get_mut(..4) {
            magic.copy_from_slice(b"MDGW");
        }
        good.push(bytes);
    }
    for (number, payload) in (1..).zip(&good) {
        let place = super::Place { file: 0, number };
        verifier.accept(&super::Seen { place, time_ns: number, dst: "239.1.1.1:1".parse().unwrap(), payload });
    }
    let verdict = verifier.finish();
    assert_eq!(verdict.counts.foreign + verdict.counts.damaged.values().sum::<u64>() + verdict.counts.packets, 2_000);
}
