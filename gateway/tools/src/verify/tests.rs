#![allow(clippy::unwrap_used, reason = "tests")]

use mdgw_feeds::{frame::FrameFlags, identity::Epoch, published::packet::PacketFlags};

use super::{
    PublishClock, VerifyOptions,
    finding::OutputCheck::{self, ConsistentContent, InOrder, MonotonicEpochs, NoDuplicates, NoLoss, SinglePublisher},
    fixture::{CaptureBuilder, PacketFixture},
};

fn capture() -> CaptureBuilder {
    CaptureBuilder::default()
}

/// The violated checks, one entry for each violation.
fn broken(capture: &CaptureBuilder) -> Vec<OutputCheck> {
    let verdict = capture.verdict(VerifyOptions::default());
    let found: Vec<_> = verdict.findings.iter().map(|finding| finding.check).collect();
    assert_eq!(found.len() as u64, verdict.broken.iter().sum::<u64>());
    assert_eq!(found.is_empty(), verdict.is_kept());
    found
}

#[test]
fn a_takeover_with_catch_up_keeps_all_promises() {
    let mut capture = capture();
    capture.publish_range(5, 0, 1, 100).wait(20).take_over(6, 1, 90, 105).publish_range(6, 1, 105, 200);
    assert_eq!(broken(&capture), []);
    let verdict = capture.verdict(VerifyOptions::default());
    assert_eq!((verdict.names, verdict.republished), (199, 10));
    assert_eq!(verdict.epochs.iter().map(|epoch| (epoch.count, epoch.node)).collect::<Vec<_>>(), [(5, 0), (6, 1)]);
    let channel = &verdict.channels[0];
    assert_eq!((channel.leadership_changes, channel.blackout.count), (1, 1));
    // 20 ms of silence, the heartbeat, ten known messages, the first new one.
    let expected_ns = 32_000_000;
    assert!(channel.blackout.max_ns.abs_diff(expected_ns) < expected_ns / 500, "{}", channel.blackout.max_ns);
}

#[test]
fn a_sequence_empty_in_one_epoch_and_published_in_another_is_found() {
    let empty_range = |count, node, first, next| PacketFixture { next, ..PacketFixture::message(count, node, first) };
    let mut silent_later = capture();
    silent_later
        .publish_range(5, 0, 1, 10)
        .publish(PacketFixture::heartbeat(6, 1, 7))
        .publish(empty_range(6, 1, 7, 9))
        .publish_range(6, 1, 9, 12);
    assert_eq!(broken(&silent_later), [ConsistentContent]);
    let text = &silent_later.verdict(VerifyOptions::default()).findings[0].text;
    assert!(
        text.contains("sequence 8 part 0")
            && text.contains("epoch 6 (node 1) published nothing, but epoch 5 (node 0) published records"),
        "{text}"
    );

    let mut silent_first = capture();
    silent_first.publish_range(5, 0, 1, 7).publish(empty_range(5, 0, 7, 9)).publish_range(5, 0, 9, 10);
    assert_eq!(broken(&silent_first), [], "a message may produce no records");
    let answer =
        PacketFixture { dst: "10.0.0.9:4000", flags: PacketFlags::RETRANSMISSION, ..PacketFixture::message(5, 1, 8) };
    silent_first.publish(answer);
    assert_eq!(broken(&silent_first), [ConsistentContent]);

    // A heartbeat, which covers a range, and the end of a reply, which does not.
    let mut heartbeats = capture();
    heartbeats.publish_range(5, 0, 1, 7).publish(PacketFixture { first: 7, ..PacketFixture::heartbeat(5, 0, 9) });
    let flags = PacketFlags::RETRANSMISSION.with(PacketFlags::HEARTBEAT);
    heartbeats.publish(PacketFixture { dst: "10.0.0.9:4000", first: 1, flags, ..PacketFixture::heartbeat(5, 1, 9) });
    assert_eq!(broken(&heartbeats), []);
    heartbeats.publish(PacketFixture { flags: PacketFlags::RETRANSMISSION, ..PacketFixture::message(6, 1, 7) });
    assert!(broken(&heartbeats).contains(&ConsistentContent));

    // A gateway with a suspect book publishes the flag where another publishes nothing, or records.
    for is_first in [true, false] {
        let mut flagged = capture();
        let suspect_mark =
            |count, node| PacketFixture { is_suspect_mark: true, ..PacketFixture::message(count, node, 7) };
        flagged.publish_range(5, 0, 1, 7);
        flagged.publish(if is_first { suspect_mark(5, 0) } else { empty_range(5, 0, 7, 8) });
        flagged.publish(PacketFixture::heartbeat(6, 1, 7));
        flagged.publish(if is_first { empty_range(6, 1, 7, 8) } else { suspect_mark(6, 1) }).publish_range(6, 1, 8, 12);
        assert_eq!(broken(&flagged), [], "suspect flag first: {is_first}");
    }

    // One gateway may declare a message missing that another has.
    let mut declared = capture();
    declared.publish_range(5, 0, 1, 7).publish(PacketFixture {
        is_gap: true,
        next: 9,
        ..PacketFixture::message(5, 0, 7)
    });
    declared.publish(PacketFixture {
        dst: "10.0.0.9:4000",
        flags: PacketFlags::RETRANSMISSION,
        ..PacketFixture::message(5, 1, 8)
    });
    assert_eq!(broken(&declared), []);
}

#[test]
fn adjacent_empty_ranges_merge() {
    let mut silent = std::collections::BTreeMap::new();
    let location = super::Location { file: 0, number: 1 };
    let known = |silent: &std::collections::BTreeMap<u64, super::content::EmptyRange>| {
        silent.iter().map(|(first, silence)| (*first, silence.next)).collect::<Vec<_>>()
    };
    for ((first, next), expected) in [
        ((10, 20), vec![(10, 20)]),
        ((30, 40), vec![(10, 20), (30, 40)]),
        ((12, 15), vec![(10, 20), (30, 40)]),
        ((5, 8), vec![(5, 8), (10, 20), (30, 40)]),
        ((8, 31), vec![(5, 40)]),
    ] {
        super::content::add_empty_range(
            &mut silent,
            first,
            super::content::EmptyRange { next, epoch: Epoch::new(1, 1), location },
        );
        assert_eq!(known(&silent), expected);
    }
}

#[test]
fn blackouts_are_bucketed_by_powers_of_two() {
    let mut capture = capture();
    capture.publish_range(5, 0, 1, 5);
    for (count, wait_ms) in [(6, 5), (7, 6), (8, 40)] {
        capture.wait(wait_ms).publish_range(count, 1, 5 + count, 6 + count);
    }
    let verdict = capture.verdict(VerifyOptions::default());
    let buckets = &verdict.channels[0].blackout.buckets;
    let reported: Vec<_> = buckets.iter().map(|bucket| (bucket.from_ms, bucket.below_ms, bucket.count)).collect();
    assert_eq!(reported, [(4, 8, 2), (8, 16, 0), (16, 32, 0), (32, 64, 1)]);
    let table = verdict.to_table(&["a".to_owned()]);
    let all = format!("    4 to 8 ms              2       {}\n", "#".repeat(27));
    assert!(table.contains(&all) && table.contains("    8 to 16 ms             0\n"), "{table}");
    let json = verdict.to_json(&[]);
    let last = &json["channels"][0]["blackout"]["buckets"][3];
    assert_eq!(*last, serde_json::json!({ "from_ms": 32, "below_ms": 64, "count": 1 }));
}

#[test]
fn the_first_packet_of_an_epoch_may_overlap_the_received_range_and_must_extend_it() {
    let mut straddled = capture();
    straddled
        .publish_range(5, 0, 1, 88)
        .publish(PacketFixture { next: 93, ..PacketFixture::message(5, 0, 88) })
        .publish(PacketFixture::heartbeat(6, 1, 90));
    straddled.publish(PacketFixture { next: 93, ..PacketFixture::message(6, 1, 88) }).publish_range(6, 1, 93, 99);
    assert_eq!(broken(&straddled), []);
    let mut before = capture();
    before
        .publish_range(5, 0, 1, 93)
        .publish(PacketFixture::heartbeat(6, 1, 90))
        .publish(PacketFixture::message(6, 1, 88));
    assert_eq!(broken(&before), [InOrder]);
}

#[test]
fn a_duplicate_within_an_epoch_is_found_and_a_duplicate_capture_is_not() {
    let mut capture = capture();
    capture.publish_range(5, 0, 1, 10).duplicate_last();
    assert_eq!(broken(&capture), []);
    assert_eq!(capture.verdict(VerifyOptions::default()).counts.duplicate_captures, 1);
    capture.publish(PacketFixture::message(5, 0, 9));
    assert_eq!(broken(&capture), [NoDuplicates]);
}

#[test]
fn out_of_order_publication_is_found() {
    let mut capture = capture();
    capture
        .publish_range(5, 0, 1, 5)
        .publish(PacketFixture::message(5, 0, 6))
        .publish(PacketFixture::message(5, 0, 5))
        .publish_range(5, 0, 7, 9);
    assert_eq!(broken(&capture), [InOrder]);
}

#[test]
fn a_return_to_an_earlier_session_is_found() {
    let mut capture = capture();
    let of_second = |sequence| PacketFixture { restart: 1, ..PacketFixture::message(5, 0, sequence) };
    capture.publish_range(5, 0, 1, 5).publish(of_second(1)).publish(of_second(2));
    assert_eq!(broken(&capture), []);
    capture.publish(PacketFixture::message(5, 0, 5));
    assert_eq!(broken(&capture), [InOrder]);
}

#[test]
fn loss_is_found_unless_a_reply_or_a_declared_gap_covers_it() {
    let mut lost = capture();
    lost.publish_range(5, 0, 1, 5).publish_range(5, 0, 7, 9);
    assert_eq!(broken(&lost), [NoLoss]);
    let text = &lost.verdict(VerifyOptions::default()).findings[0].text;
    assert!(text.ends_with("sequences 5 to 6 not received"), "{text}");

    let mut answered = capture();
    answered.publish_range(5, 0, 1, 5).publish_range(5, 0, 7, 9);
    for sequence in 5..7 {
        let flags = PacketFlags::RETRANSMISSION;
        answered.publish(PacketFixture { dst: "10.0.0.9:4000", flags, ..PacketFixture::message(5, 1, sequence) });
    }
    assert_eq!(broken(&answered), []);

    let mut declared = capture();
    declared
        .publish_range(5, 0, 1, 5)
        .publish(PacketFixture { next: 7, is_gap: true, ..PacketFixture::message(5, 0, 5) })
        .publish_range(5, 0, 7, 9);
    assert_eq!(broken(&declared), []);
    assert_eq!(declared.verdict(VerifyOptions::default()).channels[0].gaps, 1);

    let mut ended = capture();
    ended.publish_range(5, 0, 1, 5);
    let flags = PacketFlags::HEARTBEAT.with(PacketFlags::END_OF_SESSION);
    ended.publish(PacketFixture { flags, ..PacketFixture::heartbeat(5, 0, 9) });
    assert_eq!(broken(&ended), [NoLoss], "the end of the session shows the loss");
}

#[test]
fn sequences_before_a_heartbeat_count_as_published() {
    let mut lost = capture();
    lost.publish_range(5, 0, 1, 6).publish(PacketFixture::heartbeat(5, 0, 10));
    assert_eq!(broken(&lost), [NoLoss]);
    let text = &lost.verdict(VerifyOptions::default()).findings[0].text;
    assert!(text.ends_with("sequences 6 to 9 not received"), "{text}");
    // Two heartbeats alone show that the sequences between them were published.
    let mut silent = capture();
    silent.publish(PacketFixture::heartbeat(5, 0, 6)).publish(PacketFixture::heartbeat(5, 0, 10));
    assert_eq!(broken(&silent), [NoLoss]);
    let mut begun = capture();
    begun.publish(PacketFixture::heartbeat(5, 0, 6)).publish_range(5, 0, 8, 10);
    assert_eq!(broken(&begun), [NoLoss]);

    // A receiver that starts late has missed nothing, even if it starts after the end.
    let mut late = capture();
    late.publish(PacketFixture::heartbeat(5, 0, 10))
        .publish_range(5, 0, 10, 12)
        .publish(PacketFixture::heartbeat(5, 0, 12));
    assert_eq!(broken(&late), []);
    let mut over = capture();
    let flags = PacketFlags::HEARTBEAT.with(PacketFlags::END_OF_SESSION);
    over.publish(PacketFixture { flags, ..PacketFixture::heartbeat(5, 0, 10) });
    assert_eq!(broken(&over), []);
    // A new leader has received less than was published, and republishes the rest.
    let mut taken_over = capture();
    taken_over.publish_range(5, 0, 1, 10).publish(PacketFixture::heartbeat(6, 1, 7));
    assert_eq!(broken(&taken_over), []);
    // Heartbeats of an epoch that receivers reject cover nothing.
    let mut fenced = capture();
    fenced
        .publish_range(6, 1, 1, 6)
        .publish(PacketFixture { send_time_ns: Some(0), ..PacketFixture::heartbeat(5, 0, 10) });
    assert_eq!(broken(&fenced), []);
}

#[test]
fn content_of_a_fenced_packet_counts_as_missing() {
    let mut capture = capture();
    capture.publish_range(5, 0, 1, 5).publish(PacketFixture::heartbeat(6, 1, 6));
    // A process was stopped between its fence check and its send. It resumes after the other has begun, so receivers
    // drop its packet.
    capture
        .publish(PacketFixture { send_time_ns: Some(4_500_000), ..PacketFixture::message(5, 0, 5) })
        .publish_range(6, 1, 6, 9);
    assert_eq!(broken(&capture), [NoLoss]);
    assert_eq!(capture.verdict(VerifyOptions::default()).counts.stale_epoch_packets, 1);
}

#[test]
fn different_content_under_one_name_is_found() {
    let mut capture = capture();
    capture.publish_range(5, 0, 1, 5).take_over(6, 1, 5, 5);
    capture.publish(PacketFixture {
        record_byte: 99,
        flags: PacketFlags::RETRANSMISSION,
        ..PacketFixture::message(6, 1, 4)
    });
    assert!(broken(&capture).contains(&ConsistentContent));

    // The suspect flag belongs to the gateway.
    let mut doubted = self::capture();
    let frame_flags = FrameFlags::SUSPECT;
    doubted.publish_range(5, 0, 1, 5).publish(PacketFixture::heartbeat(6, 1, 4));
    doubted.publish(PacketFixture {
        frame_flags,
        flags: PacketFlags::RETRANSMISSION,
        ..PacketFixture::message(6, 1, 4)
    });
    assert_eq!(broken(&doubted), []);
}

#[test]
fn differing_content_of_suspect_books_is_counted_apart_and_violates_nothing() {
    let frame_flags = FrameFlags::SUSPECT;
    let answer = |node, record_byte, frame_flags| PacketFixture {
        dst: "10.0.0.9:4000",
        flags: PacketFlags::RETRANSMISSION,
        record_byte,
        frame_flags,
        ..PacketFixture::message(5, node, 7)
    };
    let sound = |node, record_byte| answer(node, record_byte, FrameFlags::default());
    let suspect = |node, record_byte| answer(node, record_byte, frame_flags);
    let nothing = PacketFixture { next: 8, ..PacketFixture::heartbeat(5, 1, 8) };
    let nothing = PacketFixture { first: 7, dst: "10.0.0.9:4000", ..nothing };
    for published in [
        [suspect(0, 9), sound(1, 7)],
        [sound(0, 7), suspect(1, 9)],
        [suspect(0, 9), suspect(1, 10)],
        [suspect(0, 9), nothing],
        [nothing, suspect(0, 9)],
    ] {
        let mut capture = capture();
        for packet in published {
            capture.publish(packet);
        }
        assert_eq!(broken(&capture), []);
        let verdict = capture.verdict(VerifyOptions::default());
        assert_eq!(verdict.suspect_differences, 1);
        assert!(verdict.to_table(&[]).contains("suspect items that differ"));
        assert_eq!(verdict.to_json(&[])["suspect_differences"], 1);
    }
    // Two gateways with sound books must not differ, whatever a third one published.
    let mut capture = capture();
    capture.publish(suspect(0, 9)).publish(sound(1, 7)).publish(sound(2, 8));
    assert_eq!(broken(&capture), [ConsistentContent]);
}

#[test]
fn a_declared_gap_filled_in_sequence_is_found_and_a_late_fill_is_not() {
    let gap = PacketFixture { next: 7, is_gap: true, ..PacketFixture::message(5, 0, 5) };
    let mut filled = capture();
    filled.publish_range(5, 0, 1, 5).publish(gap).publish(PacketFixture::heartbeat(6, 1, 5)).publish_range(6, 1, 5, 8);
    assert_eq!(broken(&filled), [ConsistentContent, ConsistentContent]);
    let mut late = capture();
    late.publish_range(5, 0, 1, 5).publish(gap).take_over(6, 1, 7, 7);
    late.publish(PacketFixture { first: 7, next: 8, ..PacketFixture::message(6, 1, 7) });
    assert_eq!(broken(&late), []);
}

#[test]
fn each_part_of_a_message_has_its_own_name() {
    let part = |count, node, number, is_last| PacketFixture {
        part: Some((number, is_last)),
        record_byte: 7,
        ..PacketFixture::message(count, node, 5)
    };
    let mut whole = capture();
    whole.publish_range(5, 0, 1, 5).publish(part(5, 0, 0, false)).publish(part(5, 0, 1, false));
    // The publisher was killed inside the message: the next one republishes the whole message.
    whole.publish(PacketFixture::heartbeat(6, 1, 5));
    for (number, is_last) in [(0, false), (1, false), (2, true)] {
        whole.publish(PacketFixture { flags: PacketFlags::RETRANSMISSION, ..part(6, 1, number, is_last) });
    }
    whole.publish_range(6, 1, 6, 9);
    assert_eq!(broken(&whole), []);
    let mut lacking = capture();
    lacking
        .publish_range(5, 0, 1, 5)
        .publish(part(5, 0, 0, false))
        .publish(part(5, 0, 2, true))
        .publish_range(5, 0, 6, 9);
    assert_eq!(broken(&lacking), [NoLoss]);
}

#[test]
fn an_old_epoch_that_continues_is_found_by_either_clock() {
    let mut capture = capture();
    capture.publish_range(5, 0, 1, 5).publish(PacketFixture::heartbeat(6, 1, 5)).publish_range(6, 1, 5, 8);
    // Published after the new epoch had begun.
    capture.publish(PacketFixture::message(5, 0, 5));
    assert_eq!(broken(&capture), [SinglePublisher, MonotonicEpochs]);
    let verdict = capture.verdict(VerifyOptions::default());
    let [overlap, back] = verdict.findings.as_slice() else { panic!("{verdict:?}") };
    assert_eq!(overlap.text, "group 1: epoch 6 (node 1) started 4000 us before epoch 5 (node 0) ended (frame 9)");
    assert!(back.text.contains("epoch 5 (node 0) was still published 4000 us after epoch 6 (node 1) started"));
    let tolerant = VerifyOptions { clock_error_ns: 5_000_000, ..VerifyOptions::default() };
    assert!(capture.verdict(tolerant).is_kept());

    // By the publisher's clock the packet was published before the takeover, but it was captured after. Receivers drop
    // it by the epoch rule; only the capture's clock shows the overlap.
    let mut paused = self::capture();
    paused.publish_range(5, 0, 1, 5).publish(PacketFixture::heartbeat(6, 1, 5)).publish_range(6, 1, 5, 8);
    paused.publish(PacketFixture { send_time_ns: Some(4_200_000), ..PacketFixture::message(5, 0, 5) });
    assert_eq!(broken(&paused), []);
    let by_wire = VerifyOptions { clock: PublishClock::Capture, ..VerifyOptions::default() };
    assert_eq!(paused.verdict(by_wire).findings[0].check, SinglePublisher);
}

#[test]
fn an_old_epoch_that_returns_is_found() {
    let mut capture = capture();
    // Only the publisher's clock shows the return to the old epoch; the capture has the packets in order.
    let late = |sequence, ms: u64| PacketFixture {
        send_time_ns: Some(ms * 1_000_000),
        ..PacketFixture::message(5, 0, sequence)
    };
    capture.publish(late(1, 50)).publish(late(2, 51)).publish_range(6, 1, 3, 9);
    assert_eq!(broken(&capture), [MonotonicEpochs]);
    // An epoch published within the interval of another epoch is a second publisher too, even if only for a moment.
    let mut amid = self::capture();
    amid.publish(late(1, 6)).publish_range(6, 1, 2, 20);
    assert_eq!(broken(&amid), [SinglePublisher, MonotonicEpochs]);
}

#[test]
fn two_nodes_with_the_same_epoch_count_are_found() {
    let mut capture = capture();
    capture.publish_range(5, 0, 1, 5).publish(PacketFixture::heartbeat(5, 1, 5)).publish_range(5, 1, 5, 8);
    assert_eq!(broken(&capture), [SinglePublisher]);
}

#[test]
fn an_epoch_beyond_the_jump_limit_is_ignored() {
    let mut capture = capture();
    capture.publish_range(5, 0, 1, 5);
    capture
        .publish(PacketFixture { epoch: Epoch::new(5_000_000, 9), record_byte: 9, ..PacketFixture::message(5, 0, 3) })
        .publish_range(5, 0, 5, 9);
    assert_eq!(broken(&capture), []);
    assert_eq!(capture.verdict(VerifyOptions::default()).counts.epoch_jumps, 1);
}

#[test]
fn each_capture_is_judged_as_a_separate_receiver() {
    let mut capture = capture();
    capture.publish_range(5, 0, 1, 9);
    for sequence in [1, 2, 3, 6, 7] {
        capture.publish(PacketFixture { file: 1, ..PacketFixture::message(5, 0, sequence) });
    }
    assert_eq!(broken(&capture), [NoLoss], "the second receiver lacks two sequences");
    assert_eq!(capture.verdict(VerifyOptions::default()).findings[0].location.file, 1);
}

#[test]
fn findings_listed_are_bounded_and_all_are_counted() {
    let mut capture = capture();
    capture.publish_range(5, 0, 1, 100);
    for sequence in 1..100 {
        capture.publish(PacketFixture { record_byte: 255, ..PacketFixture::message(5, 0, sequence) });
    }
    let verdict = capture.verdict(VerifyOptions { findings_max: 3, ..VerifyOptions::default() });
    assert_eq!(verdict.findings.len(), 3);
    assert_eq!((verdict.broken[NoDuplicates as usize], verdict.broken[ConsistentContent as usize]), (99, 99));
}

#[test]
fn malformed_packets_are_counted_and_never_panic() {
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
        let location = super::Location { file: 0, number };
        verifier.accept(&super::CapturedPacket {
            location,
            time_ns: number,
            dst: "239.1.1.1:1".parse().unwrap(),
            payload,
        });
    }
    let verdict = verifier.finish();
    assert_eq!(
        verdict.counts.unrecognised + verdict.counts.damaged.values().sum::<u64>() + verdict.counts.packets,
        2_000
    );
}
