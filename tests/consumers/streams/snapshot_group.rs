//! Starts from the snapshot group: nothing is requested.

use super::{FIRST, FORGED_EPOCH, MS, NONE, SECOND, Scenario, VirtualGateway, snapshots};

/// Messages before this one are published; each adds an order.
const PUBLISHED: u64 = 27;
/// Byte of a chunk's packet with the lowest byte of the checksum.
const CHECKSUM_AT: usize = 108;

pub(super) fn all() -> Vec<Scenario> {
    let mut all = Vec::new();

    let mut stream = late(
        "group_image",
        "A receiver that comes with message 11 keeps the messages. An image of the state before message 15 arrives: the receiver delivers \
         it, and the messages from 15 on.",
    );
    stream.send_group(100 * MS, gateway(15).group_chunks(10, FIRST));
    all.push(stream);

    let mut stream = late(
        "group_image_too_old",
        "The first image is of the state before message 9: nothing brings messages 9 and 10, so it is refused. The second one is used.",
    );
    stream.send_group(100 * MS, gateway(9).group_chunks(10, FIRST));
    stream.send_group(150 * MS, gateway(11).group_chunks(11, FIRST));
    all.push(stream);

    let mut stream =
        late("group_chunk_lost", "The second chunk is lost. It comes with the second pass of the same image.");
    let chunks = gateway(15).group_chunks(10, FIRST);
    stream.send_group(100 * MS, without(&chunks, 1));
    stream.send_group(150 * MS, chunks);
    all.push(stream);

    let mut stream = late(
        "group_image_replaced",
        "The second chunk is lost, and another image follows: the chunks of the first one are discarded, and a late one is refused.",
    );
    let chunks = gateway(15).group_chunks(10, FIRST);
    stream.send_group(100 * MS, without(&chunks, 1));
    let next = gateway(17).group_chunks(11, FIRST);
    stream.send_group(150 * MS, [next[0].clone(), chunks[1].clone()]);
    stream.send_group(160 * MS, next[1..].to_vec());
    all.push(stream);

    let mut stream = late(
        "group_image_damaged",
        "The checksum is another than that of the records: nothing is delivered until the next pass.",
    );
    let chunks = gateway(15).group_chunks(10, FIRST);
    let mut damaged = chunks.clone();
    damaged.iter_mut().for_each(|packet| packet[CHECKSUM_AT] ^= 1);
    stream.send_group(100 * MS, damaged);
    stream.send_group(150 * MS, chunks);
    all.push(stream);

    let mut stream = late("group_image_suspect", "The first image has suspect books, and is refused.");
    stream.send_group(100 * MS, with_gap(15).group_chunks(10, FIRST));
    stream.send_group(150 * MS, gateway(15).group_chunks(11, FIRST));
    all.push(stream);

    let mut stream = late(
        "group_takeover",
        "The leader dies in the middle of its image. The new leader's first packet has a higher epoch: the rest of the old image is \
         refused. The new leader sends an image of its own.",
    );
    let chunks = gateway(15).group_chunks(10, FIRST);
    stream.send_group(100 * MS, chunks[..2].to_vec());
    stream.heartbeat(&gateway(PUBLISHED), SECOND, &[0]);
    stream.send_group(700 * MS, chunks[2..].to_vec());
    stream.send_group(750 * MS, gateway(PUBLISHED).group_chunks(3, SECOND));
    all.push(stream);

    let mut stream = late(
        "group_epoch_before_the_lines",
        "A new leader's image comes before its first packet on the line. It makes no packet of the former leader stale, and is used.",
    );
    stream.send_group(100 * MS, gateway(15).group_chunks(10, SECOND));
    stream.heartbeat(&gateway(PUBLISHED), SECOND, &[0]);
    all.push(stream);

    let mut stream = late(
        "group_epoch_far_ahead",
        "Chunks with an epoch far above that of the line are refused. The line's own leader is believed on, and its image is used.",
    );
    stream.send_group(100 * MS, gateway(15).group_chunks(10, FORGED_EPOCH));
    stream.send_group(150 * MS, gateway(15).group_chunks(11, FIRST));
    all.push(stream);

    let mut stream = late(
        "group_image_of_no_position",
        "The line never comes to the position of the first image. It keeps the second one away for 10 s. The third one is used.",
    );
    stream.send_group(100 * MS, gateway(PUBLISHED + 14).group_chunks(10, FIRST));
    stream.send_group(150 * MS, gateway(15).group_chunks(11, FIRST));
    stream.send_group(11_000 * MS, gateway(15).group_chunks(12, FIRST));
    all.push(stream);

    let mut stream = late(
        "group_without_image",
        "No image comes within 120 s: the receiver begins with the oldest message kept. A later image is ignored.",
    );
    stream.interval = 121_000 * MS;
    for _ in 0..2 {
        stream.heartbeat(&gateway(PUBLISHED), FIRST, &[0]);
    }
    stream.send_group(122_000 * MS, gateway(PUBLISHED).group_chunks(10, FIRST));
    all.push(stream);

    let mut stream = late(
        "group_no_chunk",
        "Packets that are no chunk are refused, and the start goes on: a published packet, and a heartbeat.",
    );
    let source = gateway(15);
    stream.send_group(100 * MS, [source.packet(&source.entries()[6], FIRST, NONE, super::scenario::START_TIME)]);
    stream.send_group(150 * MS, gateway(15).group_chunks(10, FIRST));
    all.push(stream);

    let mut stream = Scenario::new(
        "group_rebuild",
        "Messages 5 and 6 are lost, and the books are rebuilt: the messages behind the image are delivered once more.",
        "snapshot_group=1 rebuild=1",
    );
    stream.interval = 40 * MS;
    let source = gateway(PUBLISHED);
    for index in (0..source.entries().len()).filter(|index| *index != 2) {
        stream.publish_next(&source, index, FIRST, NONE, &[0]);
    }
    stream.send_group(250 * MS, gateway(9).group_chunks(10, FIRST));
    all.push(stream);
    all
}

/// A receiver without a service that begins in mid-session, with message 11.
fn late(name: &str, about: &str) -> Scenario {
    let mut stream = Scenario::new(name, about, "start=snapshot snapshot_group=1");
    let source = gateway(PUBLISHED);
    stream.interval = 40 * MS;
    for index in 5..source.entries().len() {
        stream.publish_next(&source, index, FIRST, NONE, &[0]);
    }
    stream.heartbeat(&source, FIRST, &[0]);
    stream
}

fn gateway(next: u64) -> VirtualGateway {
    snapshots::gateway(next, false)
}

/// A gateway that lacks messages 3 and 4.
fn with_gap(next: u64) -> VirtualGateway {
    snapshots::gateway(next, true)
}

fn without(chunks: &[Vec<u8>], lost: usize) -> Vec<Vec<u8>> {
    chunks.iter().enumerate().filter(|(index, _)| *index != lost).map(|(_, chunk)| chunk.clone()).collect()
}
