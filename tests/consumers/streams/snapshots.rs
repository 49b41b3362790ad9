//! Starts by snapshot: whole images, and images that are lost, damaged or not right.

use super::{BODY, FIRST, MS, NONE, Scenario, VirtualGateway, scenario::Damage};

/// Messages of the served log; the image is the state behind them: 20 orders of one instrument, in five chunks.
const SERVED: u64 = 21;
/// Published while the receiver runs.
const PUBLISHED: u64 = 27;

/// Where a packet with a chunk has its fields: the position twice, then those of the chunk's body.
const POSITIONS_AT: [usize; 2] = [64, 144];
const CHUNK_AT: usize = 100;
const CHUNK_COUNT_AT: usize = 104;
const CHECKSUM_AT: usize = 108;
const RECORD_COUNT_AT: usize = 112;

pub(super) fn all() -> Vec<Scenario> {
    let mut all = Vec::new();

    all.push(late(
        "snapshot",
        "A receiver that comes late gets the state behind message 20, in five chunks, then the messages behind it. The service asks for \
         patience first. Its answers have at most four packets.",
        "services=1",
    ));

    let mut stream =
        late("snapshot_chunks_lost", "Two chunks are lost. The receiver requests what is missing.", "services=1");
    let mut answers = 0;
    stream.loses_answer = Box::new(move || {
        answers += 1;
        [5, 7].contains(&answers)
    });
    all.push(stream);

    all.push(damaged(
        "snapshot_checksum_wrong",
        "The checksum is another than that of the records: the whole image is discarded. It is requested again, and right.",
        5,
        |packet| packet[CHECKSUM_AT] ^= 1,
    ));
    all.push(damaged(
        "snapshot_count_wrong",
        "The chunks have fewer records than they say. The image is discarded and requested again.",
        5,
        |packet| packet[RECORD_COUNT_AT] += 1,
    ));
    all.push(damaged(
        "snapshot_of_another_position",
        "The third chunk says another position than those before it: it belongs to another image, is refused, and requested again.",
        3,
        |packet| {
            if packet[CHUNK_AT] == 2 {
                POSITIONS_AT.iter().for_each(|at| packet[*at] -= 1);
            }
        },
    ));

    let mut stream = late(
        "snapshot_totals_unsound",
        "More chunks than records: every chunk is refused. The session comes from the log.",
        "services=1 attempts=2",
    );
    stream.damage = on_chunks(usize::MAX, |packet| packet[CHUNK_COUNT_AT] = 99);
    all.push(stream);

    let mut stream = late(
        "snapshot_never_complete",
        "The second chunk never comes: nothing of an image is delivered. After eight images the session comes from the log.",
        "services=1 attempts=2",
    );
    stream.damage = on_chunks(usize::MAX, |packet| {
        if packet[CHUNK_AT] == 1 {
            packet.clear();
        }
    });
    all.push(stream);

    let mut stream = Scenario::new(
        "snapshot_suspect",
        "The first service's books are suspect: the other one's image is taken.",
        &settings("services=2"),
    );
    publish(&mut stream);
    for (behind, has_gap) in [(10, true), (20, false)] {
        let mut served = gateway(SERVED, has_gap);
        served.serve_snapshots(behind);
        stream.serve(served);
    }
    all.push(stream);

    let mut stream = Scenario::new(
        "snapshot_unavailable",
        "The service takes no snapshots and does not answer. The session comes from the log.",
        &settings("services=1 attempts=2"),
    );
    publish(&mut stream);
    stream.serve(gateway(SERVED, false));
    all.push(stream);

    all.push(late(
        "snapshot_too_large",
        "The image is larger than the receiver's room for one. The session comes from the log.",
        "services=1 attempts=2 snapshot_bytes_max=500",
    ));
    all
}

/// A receiver that begins in mid-session, and a service with an image of five chunks.
fn late(name: &str, about: &str, more: &str) -> Scenario {
    let mut stream = Scenario::new(name, about, &settings(more));
    publish(&mut stream);
    let mut served = gateway(SERVED, false);
    served.serve_snapshots(10);
    stream.serve(served);
    stream
}

/// The first packets with a chunk are changed.
fn damaged(name: &str, about: &str, count: usize, change: fn(&mut Vec<u8>)) -> Scenario {
    let mut stream = late(name, about, "services=1");
    stream.damage = on_chunks(count, change);
    stream
}

fn on_chunks(mut left: usize, change: fn(&mut Vec<u8>)) -> Damage {
    Box::new(move |packet| {
        // RETRANSMISSION and SNAPSHOT.
        if packet[5] == 6 && left > 0 {
            left -= 1;
            change(packet);
        }
    })
}

fn settings(more: &str) -> String {
    format!("{more} start=snapshot")
}

/// The messages from 11 on; those behind the image come after it.
fn publish(stream: &mut Scenario) {
    let gateway = gateway(PUBLISHED, false);
    stream.interval = 40 * MS;
    for index in 5..gateway.entries().len() {
        stream.publish_next(&gateway, index, FIRST, NONE, &[0]);
    }
    stream.heartbeat(&gateway, FIRST, &[0]);
}

/// A gateway whose messages each add an order, two in a packet. With the gap it lacks messages 3 and 4.
pub(super) fn gateway(next: u64, has_gap: bool) -> VirtualGateway {
    let mut gateway = VirtualGateway::new(BODY);
    gateway.begin_session(0);
    for sequence in 1..next {
        match sequence {
            3 if has_gap => gateway.gap(3, 5),
            4 if has_gap => {}
            _ => gateway.order(sequence),
        }
        if sequence % 2 == 0 {
            gateway.flush();
        }
    }
    gateway.flush();
    gateway
}
