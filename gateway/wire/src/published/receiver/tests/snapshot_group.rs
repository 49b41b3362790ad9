//! Images of the snapshot group: nothing is requested, and nothing is delivered before an image is whole.

use super::{snapshot_start::text, *};
use crate::published::{
    snapshot::{SnapshotImage, checksum, chunk_frames},
    tag::{TagKey, TagUse},
};

const CHUNKS: u32 = 3;
const WAIT_MS: u64 = 20_000;

/// An image of three chunks, as a leader sends it.
#[derive(Clone, Copy)]
struct Image {
    number: u32,
    next: u64,
    is_suspect: bool,
    epoch: u64,
    /// The checksum is wrong.
    is_damaged: bool,
}

fn image(number: u32, next: u64) -> Image {
    Image { number, next, is_suspect: false, epoch: 1, is_damaged: false }
}

impl Image {
    fn chunk(self, chunk: u32) -> Vec<u8> {
        let records_of = |chunk: u32| records(u64::from(self.number) * 100 + u64::from(chunk), 2);
        let all: Vec<u8> = (0..CHUNKS).flat_map(records_of).collect();
        let totals = SnapshotImage {
            image: self.number,
            next: Sequence(self.next),
            chunk_count: CHUNKS,
            checksum: checksum(&all) ^ u32::from(self.is_damaged),
            record_count: 2 * u64::from(CHUNKS),
            record_bytes: all.len() as u64,
            order_count: 1,
            instrument_count: 1,
            is_suspect: self.is_suspect,
        };
        let body = chunk_frames(&totals, chunk, 9, 2, &records_of(chunk));
        let flags = PacketFlags::RETRANSMISSION.with(PacketFlags::SNAPSHOT);
        let range = (u64::from(chunk), u64::from(chunk) + 1);
        datagram(flags, session(0), Epoch::new(self.epoch, 1), range, &body)
    }

    fn items(self) -> Vec<String> {
        let chunks = (0..CHUNKS).zip(["01", "00", "10"]);
        chunks.map(|(chunk, flags)| format!("s{} {} {flags}", self.next, self.number * 100 + chunk)).collect()
    }
}

struct Harness {
    receiver: Receiver,
    items: Vec<String>,
    now: MonoNs,
    epoch: u64,
}

impl Harness {
    /// A receiver that starts with the group, and has no service.
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut ReceiverConfig)) -> Self {
        let mut config = ReceiverConfig {
            start: StartFrom::Snapshot,
            snapshot_group: Some(SnapshotGroupConfig { wait_ns_max: WAIT_MS * 1_000_000 }),
            packet_bytes_max: 1_472,
            ..config(None)
        };
        change(&mut config);
        Self { receiver: Receiver::new(config), items: Vec::new(), now: MonoNs(1_000_000_000), epoch: 1 }
    }

    fn publish(&mut self, sequences: impl IntoIterator<Item = u64>) {
        for sequence in sequences {
            let body = frame(sequence, FrameKind::Message, WHOLE, &records(sequence, 1));
            self.line(PacketFlags::default(), session(0), (sequence, sequence + 1), &body);
        }
    }

    fn line(&mut self, flags: PacketFlags, session: Session, range: (u64, u64), body: &[u8]) {
        let bytes = datagram(flags, session, Epoch::new(self.epoch, 1), range, body);
        let datagram = PublishedDatagram { line: Line::A, service: 0, bytes: &bytes, ts_recv: UnixNs(1) };
        let items = &mut self.items;
        let _counted = self.receiver.accept(datagram, self.now, &mut |output| items.push(text(&output)));
    }

    fn group(&mut self, bytes: &[u8]) -> Result<(), DropReason> {
        let items = &mut self.items;
        self.receiver.accept_from_snapshot_group(bytes, self.now, &mut |output| items.push(text(&output)))
    }

    /// Chunks of an image, in that order. Refusals are counted by the receiver.
    fn chunks(&mut self, image: Image, chunks: impl IntoIterator<Item = u32>) {
        for chunk in chunks {
            let _counted = self.group(&image.chunk(chunk));
        }
    }

    fn pass(&mut self, image: Image) {
        self.chunks(image, 0..CHUNKS);
    }

    /// Lets so many milliseconds pass.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now = self.now.plus(1_000_000);
            let items = &mut self.items;
            self.receiver.on_deadline(self.now, &mut |output| items.push(text(&output)));
        }
    }

    fn take_items(&mut self) -> Vec<String> {
        std::mem::take(&mut self.items)
    }

    fn statistics(&self) -> ReceiverStatistics {
        *self.receiver.channels().next().unwrap().statistics()
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(", ").map(ToOwned::to_owned).collect()
}

fn messages(sequences: Range<u64>) -> Vec<String> {
    sequences.map(|sequence| format!("m{sequence}")).collect()
}

#[test]
fn an_image_is_followed_by_every_message_behind_its_position() {
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let mut harness = Harness::new();
        assert!(harness.receiver.needs_snapshot_group());
        harness.publish(10..14);
        harness.chunks(image(5, 12), order);
        harness.publish(14..16);
        let expected = [words("session"), image(5, 12).items(), messages(12..16)].concat();
        assert_eq!(harness.take_items(), expected, "{order:?}");
        let statistics = harness.statistics();
        assert_eq!((statistics.snapshots, statistics.messages), (1, 4));
        assert!(!harness.receiver.needs_snapshot_group(), "the group can be left");
        harness.pass(image(6, 16));
        assert_eq!(harness.take_items(), [""; 0], "a receiver that runs ignores images");
    }
}

/// The snapshot says nothing of a message between its position and the first one that was received.
#[test]
fn an_image_from_before_the_first_message_is_left() {
    let mut harness = Harness::new();
    harness.publish([10]);
    assert_eq!(harness.group(&image(5, 9).chunk(0)), Err(DropReason::AnswerUnrequested));
    harness.pass(image(5, 9));
    harness.publish([11]);
    assert_eq!(harness.take_items(), words("session"));
    harness.pass(image(6, 10));
    assert_eq!(harness.take_items(), [image(6, 10).items(), messages(10..12)].concat());
}

/// An idle channel has heartbeats only.
#[test]
fn an_image_at_the_position_of_a_heartbeat_is_used() {
    let mut harness = Harness::new();
    harness.line(PacketFlags::HEARTBEAT, session(0), (10, 10), &[]);
    harness.pass(image(5, 10));
    assert_eq!(harness.take_items(), [words("session"), image(5, 10).items()].concat());
    harness.publish([10]);
    assert_eq!(harness.take_items(), words("m10"));
}

/// A gateway may take an image before it has sent what the image contains.
#[test]
fn an_image_ahead_of_the_stream_waits_for_it() {
    let mut harness = Harness::new();
    harness.publish([10]);
    harness.pass(image(5, 12));
    assert_eq!(harness.take_items(), words("session"));
    harness.publish(11..13);
    assert_eq!(harness.take_items(), [image(5, 12).items(), messages(12..13)].concat());
}

/// No such position ever comes, as of a forged image: it must not keep others away for good.
#[test]
fn an_image_of_a_position_that_never_comes_is_given_up() {
    let mut harness = Harness::new();
    harness.publish([10]);
    harness.pass(image(5, 1 << 40));
    harness.pass(image(6, 11));
    assert_eq!(harness.take_items(), words("session"), "a complete image waits");
    harness.run(11_000);
    harness.pass(image(5, 1 << 40));
    harness.pass(image(7, 11));
    assert_eq!(harness.take_items(), image(7, 11).items());
}

#[test]
fn a_lost_chunk_is_awaited_in_the_next_pass_of_the_same_image() {
    let mut harness = Harness::new();
    harness.publish(10..12);
    harness.chunks(image(5, 11), [0, 2]);
    harness.publish([12]);
    assert_eq!(harness.take_items(), words("session"));
    harness.chunks(image(5, 11), [0, 1]);
    assert_eq!(harness.take_items(), [image(5, 11).items(), messages(11..13)].concat());
}

/// Complete or nothing: chunks of two images never mix.
#[test]
fn another_image_replaces_one_that_is_incomplete() {
    let mut harness = Harness::new();
    harness.publish(10..13);
    harness.chunks(image(5, 11), [0, 2]);
    harness.chunks(image(6, 13), [0]);
    // Late, on a network that reorders.
    harness.chunks(image(5, 11), [1]);
    harness.chunks(image(6, 13), [2]);
    assert_eq!(harness.take_items(), words("session"));
    harness.chunks(image(6, 13), [1]);
    assert_eq!(harness.take_items(), image(6, 13).items());
}

/// A chunk of an image that is beyond the limit, be it forged.
#[test]
fn an_image_too_large_to_collect_replaces_none() {
    let mut harness = Harness::with(|config| config.snapshot_bytes_max = 1 << 10);
    harness.publish(10..13);
    harness.chunks(image(5, 11), [0, 2]);
    let mut oversized = image(6, 13).chunk(0);
    // The image's bytes of records, in the chunk's frame.
    oversized[64 + 32 + 24..][..8].copy_from_slice(&((1 << 10) + 1_u64).to_le_bytes());
    assert_eq!(harness.group(&oversized), Err(DropReason::WindowFull));
    harness.chunks(image(5, 11), [1]);
    assert_eq!(harness.take_items(), [words("session"), image(5, 11).items(), messages(11..13)].concat());
}

#[test]
fn suspect_images_are_left() {
    let mut harness = Harness::new();
    harness.publish(10..12);
    harness.pass(Image { is_suspect: true, ..image(5, 11) });
    assert_eq!(harness.take_items(), words("session"));
    harness.pass(image(6, 12));
    assert_eq!(harness.take_items(), image(6, 12).items());
}

#[test]
fn a_damaged_image_is_discarded_as_a_whole() {
    let mut harness = Harness::new();
    harness.publish(10..12);
    let damaged = Image { is_damaged: true, ..image(5, 11) };
    harness.chunks(damaged, 0..2);
    assert_eq!(harness.group(&damaged.chunk(2)), Err(DropReason::FieldInvalid));
    assert_eq!(harness.take_items(), words("session"));
    harness.pass(image(5, 11));
    assert_eq!(harness.take_items(), [image(5, 11).items(), messages(11..12)].concat());
}

/// A chunk with the same number and other totals, be it forged, does not end the image that is being collected.
#[test]
fn a_chunk_with_other_totals_is_refused() {
    let mut harness = Harness::new();
    harness.publish(10..12);
    harness.chunks(image(5, 11), [0]);
    assert_eq!(harness.group(&image(5, 12).chunk(1)), Err(DropReason::AnswerUnrequested));
    harness.chunks(image(5, 11), [1, 2]);
    assert_eq!(harness.take_items(), [words("session"), image(5, 11).items(), messages(11..12)].concat());
}

#[test]
fn packets_that_are_no_chunks_are_refused() {
    let mut harness = Harness::new();
    harness.publish([10]);
    let of = |flags, range, body: &[u8]| datagram(flags, session(0), Epoch::new(1, 1), range, body);
    let message = frame(11, FrameKind::Message, WHOLE, &records(11, 1));
    let answer_end = PacketFlags::RETRANSMISSION.with(PacketFlags::SNAPSHOT).with(PacketFlags::HEARTBEAT);
    for bytes in [of(PacketFlags::default(), (11, 12), &message), of(answer_end, (0, 3), &[])] {
        assert_eq!(harness.group(&bytes), Err(DropReason::ProtocolMismatch));
    }
    let chunk = image(5, 10).chunk(0);
    for flags in [PacketFlags::SNAPSHOT, PacketFlags::RETRANSMISSION] {
        let mut other = chunk.clone();
        other[5] = flags.0;
        assert!(harness.group(&other).is_err(), "{flags:?}");
    }
    assert_eq!(harness.group(&chunk[..chunk.len() - 8]), Err(DropReason::LengthMismatch));
    assert_eq!(harness.group(&[]), Err(DropReason::HeaderTruncated));
    // On an output line a chunk is no packet.
    let datagram = PublishedDatagram { line: Line::A, service: 0, bytes: &chunk, ts_recv: UnixNs(1) };
    assert_eq!(harness.receiver.accept(datagram, harness.now, &mut |_| {}), Err(DropReason::SequenceInvalid));
    harness.publish([11]);
    assert_eq!(harness.take_items(), words("session"));
}

/// Every byte changed, and every length: nothing panics, and no image that is not whole is delivered.
#[test]
fn damaged_chunks_never_panic() {
    let chunk = image(5, 11).chunk(1);
    for index in 0..chunk.len() {
        for flip in [1, 0x80, 0xff] {
            let mut harness = Harness::new();
            harness.publish(10..12);
            harness.chunks(image(5, 11), [0, 2]);
            let mut damaged = chunk.clone();
            damaged[index] ^= flip;
            let _counted = harness.group(&damaged);
            let _counted = harness.group(&damaged[..index]);
            let items = harness.take_items();
            // The sending time and the fields that receivers ignore are no part of an image.
            assert!(items == words("session") || items.len() == 5, "byte {index}: {items:?}");
        }
    }
}

/// The leader dies while its image is collected, and its successor sends one of its own.
#[test]
fn after_a_takeover_the_image_of_the_old_leader_is_refused() {
    let mut harness = Harness::new();
    harness.publish(10..12);
    harness.chunks(image(5, 11), [0, 1]);
    harness.epoch = 2;
    harness.publish([12]);
    assert_eq!(harness.group(&image(5, 11).chunk(2)), Err(DropReason::EpochStale));
    // Its number may be lower, and so may its position.
    let of_successor = Image { epoch: 2, ..image(3, 11) };
    harness.pass(of_successor);
    assert_eq!(harness.take_items(), [words("session"), of_successor.items(), messages(11..13)].concat());
}

/// The same leader continues its image under a higher epoch.
#[test]
fn a_raised_epoch_continues_the_image() {
    let mut harness = Harness::new();
    harness.publish(10..12);
    harness.chunks(image(5, 11), [0]);
    harness.chunks(Image { epoch: 2, ..image(5, 11) }, [1]);
    assert_eq!(harness.group(&image(5, 11).chunk(2)), Err(DropReason::EpochStale), "the group shows epochs too");
    harness.chunks(Image { epoch: 2, ..image(5, 11) }, [2]);
    assert_eq!(harness.take_items(), [words("session"), image(5, 11).items(), messages(11..12)].concat());
}

/// The lines are other sockets: what the former leader published may be read behind the new leader's first chunk.
#[test]
fn a_chunk_makes_no_packet_of_a_line_stale() {
    let mut harness = Harness::new();
    harness.publish([10]);
    harness.chunks(Image { epoch: 2, ..image(3, 10) }, [0, 1]);
    harness.publish([11]);
    harness.epoch = 2;
    harness.publish([12]);
    harness.chunks(Image { epoch: 2, ..image(3, 10) }, [2]);
    assert_eq!(harness.take_items(), [words("session"), image(3, 10).items(), messages(10..13)].concat());
}

#[test]
fn an_epoch_too_far_ahead_is_refused() {
    let mut harness = Harness::new();
    harness.publish([10]);
    let forged = Image { epoch: 5_000, ..image(5, 10) };
    assert_eq!(harness.group(&forged.chunk(0)), Err(DropReason::EpochJump));
    assert_eq!(harness.receiver.rival_epochs(), None);
}

#[test]
fn chunks_need_the_tag_of_a_published_packet() {
    let key = TagKey::new(&[7; 32]);
    let tags = TagPolicy { keys: vec![key.clone()], accepts_untagged: false };
    let tagged = |bytes: &[u8], tag_use| {
        let mut bytes = bytes.to_vec();
        bytes[5] |= PacketFlags::TAGGED.0;
        let (header, frames) = bytes.split_at(64);
        let tag = key.tag(tag_use, header.try_into().unwrap(), frames);
        [bytes.as_slice(), &tag].concat()
    };
    let mut harness = Harness::with(|config| config.tags = tags);
    let body = frame(10, FrameKind::Message, WHOLE, &records(10, 1));
    let message = datagram(PacketFlags::default(), session(0), Epoch::new(1, 1), (10, 11), &body);
    let bytes = tagged(&message, TagUse::Published);
    let datagram = PublishedDatagram { line: Line::A, service: 0, bytes: &bytes, ts_recv: UnixNs(1) };
    assert_eq!(harness.receiver.accept(datagram, harness.now, &mut |_| {}), Ok(()));
    let chunk = image(5, 10).chunk(0);
    assert_eq!(harness.group(&chunk), Err(DropReason::TagMissing));
    assert_eq!(harness.group(&tagged(&chunk, TagUse::Answer { nonce: 0 })), Err(DropReason::TagInvalid));
    (0..CHUNKS).for_each(|number| {
        let _counted = harness.group(&tagged(&image(5, 10).chunk(number), TagUse::Published));
    });
    assert_eq!(harness.take_items(), [image(5, 10).items(), words("m10")].concat());
}

/// A message between the position and the present is missing: the books of the image would be wrong.
#[test]
fn a_loss_behind_the_position_discards_the_image() {
    let mut harness = Harness::new();
    harness.publish(10..12);
    harness.chunks(image(5, 11), [0, 1]);
    harness.publish([14]);
    harness.run(10);
    harness.chunks(image(5, 11), [2]);
    assert_eq!(harness.take_items(), words("session"), "messages 12 and 13 are lost");
    harness.pass(image(6, 14));
    assert_eq!(harness.take_items(), [image(6, 14).items(), messages(14..15)].concat());
    assert_eq!(harness.statistics().lost_messages, 0, "nothing behind the start is lost");
}

/// The image was whole before the stream reached its position, and messages on both sides of the position are lost.
#[test]
fn a_loss_across_the_position_discards_a_whole_image() {
    let mut harness = Harness::new();
    harness.publish([10]);
    harness.pass(image(5, 12));
    harness.publish([15]);
    harness.run(10);
    assert_eq!(harness.take_items(), words("session"));
    harness.pass(image(6, 16));
    harness.publish([16]);
    assert_eq!(harness.take_items(), [image(6, 16).items(), words("m16")].concat());
}

/// What is kept is bounded, and an image from before the oldest message kept is useless.
#[test]
fn messages_are_kept_within_a_bound() {
    let mut harness = Harness::with(|config| config.rebuild_bytes_max = 300);
    harness.publish(10..100);
    harness.pass(image(5, 50));
    assert_eq!(harness.take_items(), words("session"));
    harness.pass(image(6, 99));
    assert_eq!(harness.take_items(), [image(6, 99).items(), messages(99..100)].concat());
}

#[test]
fn a_session_received_from_its_first_message_needs_no_image() {
    let mut harness = Harness::new();
    harness.publish(1..4);
    assert_eq!(harness.take_items(), [words("session"), messages(1..4)].concat());
    assert!(!harness.receiver.needs_snapshot_group());
}

/// The end of the session is received while the image is awaited.
#[test]
fn the_end_of_the_session_comes_behind_the_messages() {
    let mut harness = Harness::new();
    harness.publish(10..12);
    harness.line(PacketFlags::HEARTBEAT.with(PacketFlags::END_OF_SESSION), session(0), (12, 12), &[]);
    harness.pass(image(5, 11));
    let expected = [words("session"), image(5, 11).items(), words("m11, EndOfSession")].concat();
    assert_eq!(harness.take_items(), expected);
}

/// The next session begins before an image of the present one came.
#[test]
fn a_new_session_ends_the_wait() {
    let mut harness = Harness::new();
    harness.publish([10]);
    harness.chunks(image(5, 10), [0, 1]);
    let body = frame(1, FrameKind::Message, WHOLE, &records(1, 1));
    harness.line(PacketFlags::default(), session(1), (1, 2), &body);
    assert_eq!(harness.group(&image(5, 10).chunk(2)), Ok(()), "no image is needed");
    assert_eq!(harness.take_items(), words("session, session, m1"));
    // Its beginning was missed: the wait begins anew.
    let mut harness = Harness::new();
    harness.publish([10]);
    let body = frame(4, FrameKind::Message, WHOLE, &records(4, 1));
    harness.line(PacketFlags::default(), session(1), (4, 5), &body);
    assert_eq!(harness.group(&image(5, 10).chunk(0)), Err(DropReason::SessionStale));
    assert_eq!(harness.take_items(), words("session, session"));
    assert!(harness.receiver.needs_snapshot_group());
}

/// Nobody sends images: the receiver says so and begins with what it has kept.
#[test]
fn without_an_image_in_time_the_stream_begins_without() {
    for rebuilds_books in [false, true] {
        let mut harness = Harness::with(|config| config.rebuilds_books = rebuilds_books);
        harness.publish(10..12);
        harness.run(WAIT_MS + 1);
        let start = if rebuilds_books { "session, Suspect, m10, m11" } else { "session, m10, m11" };
        assert_eq!(harness.take_items(), words(start));
        assert_eq!(harness.statistics().snapshots_unavailable, 1);
        harness.publish([12]);
        harness.pass(image(5, 11));
        let rebuilt = [words("m12"), image(5, 11).items(), words("r11, r12, Right")].concat();
        assert_eq!(harness.take_items(), if rebuilds_books { rebuilt } else { words("m12") });
    }
}

#[test]
fn books_behind_a_loss_are_rebuilt_from_the_group() {
    let mut harness = Harness::with(|config| config.rebuilds_books = true);
    harness.publish(1..4);
    assert!(!harness.receiver.needs_snapshot_group());
    harness.publish([6]);
    harness.run(10);
    assert!(harness.receiver.needs_snapshot_group());
    harness.pass(image(5, 5));
    harness.chunks(image(6, 7), [0, 2]);
    harness.publish([7, 8]);
    harness.chunks(image(6, 7), [1]);
    harness.publish([9]);
    let expected =
        [words("session, m1, m2, m3, lost 4..6, Suspect, m6, m7, m8"), image(6, 7).items(), words("r7, r8, Right, m9")]
            .concat();
    assert_eq!(harness.take_items(), expected);
    assert_eq!(harness.statistics().books_rebuilt, 1);
    assert!(!harness.receiver.needs_snapshot_group());
}

/// No service answers: the group's image is used, and after it the messages of the logs are not needed.
#[test]
fn where_no_service_has_a_snapshot_the_group_is_used() {
    let mut harness = Harness::with(|config| config.service = Some(service()));
    harness.publish([10]);
    harness.run(100);
    while harness.receiver.poll_request().is_some() {}
    for _ in 0..1_000 {
        harness.run(1);
        while harness.receiver.poll_request().is_some() {}
        if harness.receiver.needs_snapshot_group() {
            break;
        }
    }
    harness.publish([11]);
    harness.pass(image(5, 11));
    harness.publish([12]);
    assert_eq!(harness.take_items(), [words("session"), image(5, 11).items(), messages(11..13)].concat());
}
