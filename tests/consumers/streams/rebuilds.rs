//! Suspect books of a receiver that runs: a snapshot makes them right, and no message is delivered twice as a message.

use mdgw_feeds::frame::FrameFlags;

use super::{
    BODY, FIRST, LARGE, MBO, MS, NONE, PLAIN, Scenario, VirtualGateway,
    scenario::Damage,
    snapshots::{CHECKSUM_AT, gateway},
};

/// Messages of the served log; the image is the state behind them.
const SERVED: u64 = 13;
/// Messages that are published.
const PUBLISHED: u64 = 27;
/// The packet that is lost: messages 7 and 8.
const LOST: usize = 3;

/// Flags of a service's packets.
const RANGE: u8 = 2;
const RANGE_END: u8 = 3;
const CHUNK: u8 = 6;
const CHUNKS_END: u8 = 7;

pub(super) fn all() -> Vec<Scenario> {
    [images(), images_left(), beginnings()].into_iter().flatten().collect()
}

/// Images that make the books right.
fn images() -> Vec<Scenario> {
    let published = gateway(PUBLISHED, false);
    let mut all = vec![losing(
        "rebuild",
        "Messages 7 and 8 are lost for good, and the books are suspect. Half a second later the receiver asks for one chunk, then for the \
         others. The image is the state behind message 12: the messages behind it are delivered once more, then the books are right.",
        "",
        &published,
        &[SERVED],
    )];

    let mut stream = losing(
        "rebuild_chunks_lost",
        "Two chunks are lost. The receiver requests what is missing.",
        "",
        &published,
        &[SERVED],
    );
    let mut chunks = 0;
    stream.damage = without_ranges(move |packet| {
        chunks += usize::from(packet[5] == CHUNK);
        if packet[5] == CHUNK && [2, 4].contains(&chunks) {
            packet.clear();
        }
    });
    all.push(stream);

    let mut stream = losing(
        "rebuild_checksum_wrong",
        "The checksum is another than that of the records: the whole image is discarded. It is requested again, and right.",
        "",
        &published,
        &[SERVED],
    );
    let mut left = 3;
    stream.damage = without_ranges(move |packet| {
        if packet[5] == CHUNK && left > 0 {
            left -= 1;
            packet[CHECKSUM_AT] ^= 1;
        }
    });
    all.push(stream);

    all.push(losing(
        "rebuild_image_ahead",
        "The image is ahead of the stream: it waits until everything before its position is delivered.",
        "",
        &published,
        &[25],
    ));

    let mut joined = gateway(9, false);
    joined.cover(10);
    joined.message(10, (0, 0, 0), PLAIN);
    joined.flush();
    joined.message(11, LARGE, PLAIN);
    joined.flush();
    (12..PUBLISHED).for_each(|sequence| order(&mut joined, sequence));
    all.push(losing(
        "rebuild_joined_message",
        "Behind the position are a message without output, one without records and one in parts. What was delivered as a message is \
         repeated, the parts joined.",
        "",
        &joined,
        &[9],
    ));

    let mut stream = suspect(
        "rebuild_after_a_gap",
        "The venue's messages 3 and 4 are a gap for the leader and for the first service. The other service has them: its image is taken.",
        "services=2",
        &gateway(PUBLISHED, true),
    );
    for (behind, has_gap) in [(10, true), (20, false)] {
        stream.serve(serving(gateway(SERVED, has_gap), behind));
    }
    all.push(stream);

    let mut marked = VirtualGateway::new(BODY);
    marked.begin_session(0);
    (1..4).for_each(|sequence| marked.order(sequence));
    marked.flush();
    marked.message(4, (0, 0, 0), FrameFlags::SUSPECT);
    (5..PUBLISHED).for_each(|sequence| order(&mut marked, sequence));
    let mut stream = suspect(
        "rebuild_after_a_suspect_message",
        "The gateway marks message 4: its books are suspect. Those of the service are right.",
        "services=1",
        &marked,
    );
    stream.serve(serving(gateway(SERVED, false), 10));
    all.push(stream);
    all
}

/// Images that are left or discarded.
fn images_left() -> Vec<Scenario> {
    let mut all = Vec::new();

    let (published, with_gap) = (gateway(PUBLISHED, false), gateway(PUBLISHED, true));
    let mut stream = suspect(
        "rebuild_without_right_books",
        "The service's books are suspect too. One chunk says so. The receiver asks again, after pauses that double.",
        "services=1",
        &with_gap,
    );
    stream.interval = 1_000 * MS;
    (0..8).for_each(|_| stream.heartbeat(&with_gap, FIRST, &[0]));
    stream.serve(serving(gateway(SERVED, true), 10));
    all.push(stream);

    let mut stream = suspect(
        "rebuild_without_an_answer",
        "The service takes no snapshots and does not answer.",
        "services=1",
        &with_gap,
    );
    stream.serve(gateway(SERVED, true));
    all.push(stream);

    all.push(losing(
        "rebuild_image_too_old",
        "The first service's image is of a position before the loss. The other one's is taken.",
        "",
        &published,
        &[7, SERVED],
    ));

    for (bytes, about) in [
        (208, "The receiver keeps two messages of one record. The image is of the position of the first of them."),
        (207, "The receiver keeps one message. The first service's image is older, the other one's is not."),
        (103, "The receiver keeps no message, and takes an image only if the stream has not passed it."),
    ] {
        let (name, more) = (format!("rebuild_bytes_{bytes}"), format!("rebuild_bytes_max={bytes}"));
        // Message 18 was delivered when the first service's chunk arrives.
        all.push(losing(&name, about, &more, &published, &[17, PUBLISHED]));
    }

    let mut many = gateway(28, false);
    // A multiple of the others' size in a ring of memory, so that it ends where another one ended a lap before.
    many.message(28, (12, 56, MBO), PLAIN);
    many.flush();
    (29..61).for_each(|sequence| order(&mut many, sequence));
    let mut stream = Scenario::new(
        "rebuild_behind_many_messages",
        "Fifty messages come until the receiver has an image, seven times what it keeps; one of them is large.",
        "services=2 attempts=2 rebuild=1 rebuild_bytes_max=824 message_bytes_max=1000",
    );
    stream.interval = 20 * MS;
    stream.publish_lossy(&many, FIRST, 0, 0, &|index| index == LOST);
    for (behind, next) in [(10, SERVED), (20, 57)] {
        stream.serve(serving(gateway(next, false), behind));
    }
    stream.damage = without_ranges(|_| {});
    all.push(stream);

    let many = gateway(61, false);
    let mut stream = Scenario::new(
        "rebuild_another_loss",
        "Messages 43 and 44 are lost while the chunks of an image of position 41 arrive, slowly. The image is discarded. The other \
         service's is of a later position.",
        "services=2 attempts=2 rebuild=1",
    );
    stream.interval = 40 * MS;
    stream.publish_lossy(&many, FIRST, 0, 0, &|index| index == LOST || index == 21);
    stream.interval = 1_000 * MS;
    (0..3).for_each(|_| stream.heartbeat(&many, FIRST, &[0]));
    for (behind, next) in [(10, 41), (20, 61)] {
        stream.serve(serving(gateway(next, false), behind));
    }
    let mut chunks = 0;
    stream.damage = without_ranges(move |packet| {
        chunks += u32::from(packet[5] == CHUNK);
        // Of each answer one chunk.
        let is_lost = packet[5] == CHUNK && chunks % 4 != 1 || packet[5] == CHUNKS_END && chunks > 0;
        if chunks < 12 && is_lost {
            packet.clear();
        }
    });
    all.push(stream);

    let mut stream = losing(
        "rebuild_image_never_reached",
        "The stream does not come to the image's position. After ten seconds the image is discarded.",
        "",
        &published,
        &[41],
    );
    stream.interval = 1_000 * MS;
    (0..10).for_each(|_| stream.heartbeat(&published, FIRST, &[0]));
    all.push(stream);
    all
}

/// Where the books begin, suspect or right.
fn beginnings() -> Vec<Scenario> {
    let mut all = Vec::new();

    let published = gateway(PUBLISHED, false);
    let mut stream = Scenario::new(
        "rebuild_after_a_start_without_state",
        "The receiver wants what is published now, so its books lack the orders of before. A snapshot brings them.",
        "services=1 start=live rebuild=1",
    );
    stream.interval = 100 * MS;
    (5..published.entries().len()).for_each(|index| stream.publish_next(&published, index, FIRST, NONE, &[0]));
    stream.serve(serving(gateway(SERVED, false), 10));
    all.push(stream);

    let mut stream = Scenario::new(
        "rebuild_after_a_suspect_start",
        "The only image at the start has suspect books. The receiver takes it, and asks for a right one.",
        "services=1 start=snapshot rebuild=1",
    );
    stream.interval = 100 * MS;
    (5..published.entries().len()).for_each(|index| stream.publish_next(&published, index, FIRST, NONE, &[0]));
    stream.serve(serving(gateway(SERVED, true), 10));
    // Two seconds later the service would take another image, by its own clock: nothing of it arrives.
    let mut left = 10;
    stream.damage = Box::new(move |packet| {
        left -= i32::from(packet[5] == CHUNK && left > 0);
        if left == 0 && [CHUNK, CHUNKS_END].contains(&packet[5]) {
            packet.clear();
        }
    });
    all.push(stream);

    let mut two = gateway(11, true);
    two.end_session();
    two.begin_session(1);
    two.gap(1, 3);
    (3..9).for_each(|sequence| order(&mut two, sequence));
    let mut served = gateway(11, true);
    served.end_session();
    served.begin_session(1);
    (1..7).for_each(|sequence| order(&mut served, sequence));
    let mut stream = suspect(
        "rebuild_in_the_next_session",
        "A session begins with right books, so nothing is requested for those of the session before. The pause is short again.",
        "services=1",
        &two,
    );
    stream.serve(serving(served, 10));
    all.push(stream);

    let mut stream = Scenario::new(
        "rebuild_without_a_service",
        "Without a service there is no snapshot, and the books are not watched.",
        "rebuild=1",
    );
    stream.publish_lossy(&published, FIRST, 0, 0, &|index| index == LOST);
    all.push(stream);

    let mut stream = Scenario::new(
        "no_rebuild",
        "A receiver that does not ask for it gets neither state of the books nor snapshot.",
        "services=1 attempts=2",
    );
    stream.interval = 100 * MS;
    stream.publish_lossy(&published, FIRST, 0, 0, &|index| index == LOST);
    stream.serve(serving(gateway(SERVED, false), 10));
    stream.damage = without_ranges(|_| {});
    all.push(stream);
    all
}

/// A stream of which messages 7 and 8 are in no log. A service for each image, of the state before that message.
fn losing(name: &str, about: &str, more: &str, published: &VirtualGateway, images: &[u64]) -> Scenario {
    let settings = format!("services={} attempts=2 rebuild=1 {more}", images.len());
    let mut stream = Scenario::new(name, about, settings.trim_end());
    stream.interval = 150 * MS;
    stream.publish_lossy(published, FIRST, 0, 0, &|index| index == LOST);
    for (behind, next) in (10..).step_by(10).zip(images) {
        stream.serve(serving(gateway(*next, false), behind));
    }
    stream.damage = without_ranges(|_| {});
    stream
}

/// A stream that makes the books suspect.
fn suspect(name: &str, about: &str, more: &str, published: &VirtualGateway) -> Scenario {
    let mut stream = Scenario::new(name, about, &format!("{more} rebuild=1"));
    stream.interval = 100 * MS;
    stream.publish_all(published, FIRST, NONE, &[0]);
    stream
}

fn serving(mut gateway: VirtualGateway, images_behind: u32) -> VirtualGateway {
    gateway.serve_snapshots(images_behind);
    gateway
}

/// A message that adds an order, in a packet of its own.
fn order(gateway: &mut VirtualGateway, sequence: u64) {
    gateway.order(sequence);
    gateway.flush();
}

/// No answer about messages arrives, and others are changed.
fn without_ranges(mut change: impl FnMut(&mut Vec<u8>) + 'static) -> Damage {
    Box::new(move |packet| match packet[5] {
        RANGE | RANGE_END => packet.clear(),
        _ => change(packet),
    })
}
