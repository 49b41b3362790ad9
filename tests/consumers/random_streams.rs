//! Random streams: lines that lose, duplicate, delay and reorder, takeovers, sessions, services that are silent or incomplete.
//! Receivers in other languages must deliver, request and refuse exactly what the receiver in Rust does.

use std::{env, ops::Range};

use mdgw_captures::random::{Random, mix};
use mdgw_feeds::{channel::ChannelState, frame::FrameFlags, identity::Epoch, published::packet::PacketFlags};

use super::{
    data_files,
    replay::replay,
    streams::{self, MS, Scenario, US},
    text,
    virtual_gateway::{DEFINITION, MBO, NEXT_DAY, VirtualGateway},
};

/// The text of that many random streams. `SEED` selects one, `SEEDS` their number.
pub(crate) fn text(default_count: u64) -> String {
    let streams: Vec<String> = seeds(default_count).map(|seed| stream(seed).run()).collect();
    streams.join("\n")
}

fn seeds(default_count: u64) -> Range<u64> {
    let number = |name: &str| env::var(name).ok().map(|value| value.parse().expect(name));
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("SEEDS").unwrap_or(default_count),
    }
}

#[test]
fn random_streams_are_repeatable_and_exercise_the_receiver() {
    let text = text(40);
    assert!(replay(&text) == text);
    let items = ["lost ", "gap ", "definition ", "end ", "state ", "snapshot ", "repeated ", "request 1 ", "refused "];
    let books = ["books channel=2 state=suspect", "books channel=2 state=right"];
    for part in items.into_iter().chain(books).map(|item| format!("> {item}")) {
        assert!(text.contains(&part), "no {part}");
    }
}

/// The content of one session, which both gateways of a pair have.
#[derive(Clone, Copy)]
enum Input {
    Message(u16, u8, u8),
    Silent,
    Gap(u64),
    State(ChannelState),
}

fn stream(seed: u64) -> Scenario {
    let mut random = Random::new(seed);
    let lines = 1 + random.below(2);
    let services = random.below(3);
    let start = ["session", "day", "live", "snapshot"][usize::try_from(random.below(4)).unwrap()];
    let window = [64, 256][usize::try_from(random.below(2)).unwrap()];
    let (attempts, per_request) = (1 + random.below(4), 1 + random.below(50));
    let rebuilds = services > 0 && random.chance(0.6);
    let settings = format!(
        "lines={lines} services={services} start={start} window={window} attempts={attempts} per_request={per_request} \
         rebuild={} rebuild_bytes_max={} message_bytes_max={} request_nonce={} epoch_nonce={}",
        u8::from(rebuilds),
        [1_000, 1 << 20][usize::try_from(random.below(2)).unwrap()],
        [1_500, 1 << 16][usize::try_from(random.below(2)).unwrap()],
        random.next_u64(),
        random.next_u64()
    );
    let mut stream = Scenario::new(&format!("random_{seed}"), "", &settings);
    let sessions = content(&mut random);
    let bodies = [300 + 8 * random.below(100), 300 + 8 * random.below(100)];
    let logs = bodies.map(|body| log(&sessions, &mut random, usize::try_from(body).unwrap(), 0));
    publish(&mut stream, &logs, &mut random, lines, services > 0);
    for number in 0..services {
        // Some logs have lost their beginning.
        let skipped = if random.chance(0.3) { random.below(20) } else { 0 };
        let body = usize::try_from(bodies[usize::try_from(number).unwrap() % 2]).unwrap();
        // The other gateway's books may be right: it has what this one lacks.
        let mut served_sessions =
            if rebuilds && random.chance(0.7) { without_gaps(&sessions) } else { sessions.clone() };
        // A service that is behind: its image is of a position that the receiver has passed.
        if rebuilds
            && random.chance(0.5)
            && let Some((_, inputs, has_end)) = served_sessions.last_mut()
        {
            inputs.truncate(inputs.len() - usize::try_from(random.below(5)).unwrap());
            *has_end = false;
        }
        let mut served = log(&served_sessions, &mut random, body, skipped);
        if (start == "snapshot" || rebuilds) && random.chance(0.8) {
            served.serve_snapshots(u32::try_from(100 * (number + 1)).unwrap());
        }
        stream.serve(served);
        if random.chance(0.15) {
            stream.silence(usize::try_from(number).unwrap());
        }
    }
    let mut answer_losses = Random::new(random.next_u64());
    let loss = [0.0, 0.1][usize::try_from(random.below(2)).unwrap()];
    stream.loses_answer = Box::new(move || answer_losses.chance(loss));
    let mut answer_damage = Random::new(random.next_u64());
    if random.chance(0.3) {
        stream.damage = Box::new(move |packet| {
            if answer_damage.chance(0.05) {
                *packet = damaged(packet, &mut answer_damage);
            }
        });
    }
    stream
}

/// Restart count, content, and whether the session's end is in the log.
type Content = (u32, Vec<Input>, bool);

/// The same with a message for each that is missing or suspect.
fn without_gaps(sessions: &[Content]) -> Vec<Content> {
    let whole = |input: &Input| match *input {
        Input::Gap(count) => vec![Input::Message(1, MBO, 0); usize::try_from(count).unwrap()],
        Input::Message(records, rtype, _) => vec![Input::Message(records, rtype, 0)],
        other => vec![other],
    };
    let session = |(restart, inputs, has_end): &Content| (*restart, inputs.iter().flat_map(whole).collect(), *has_end);
    sessions.iter().map(session).collect()
}

fn content(random: &mut Random) -> Vec<Content> {
    let mut restart = 0;
    (0..1 + random.below(3))
        .map(|_| {
            let count = 5 + random.below(60);
            let inputs = (0..count).map(|index| match random.below(20) {
                0..3 => Input::Silent,
                3 => Input::Gap(1 + random.below(4)),
                4 => Input::State(if random.chance(0.5) { ChannelState::Gap } else { ChannelState::Live }),
                5 => Input::Message(u16::try_from(10 + random.below(30)).unwrap(), MBO, 0),
                6 => Input::Message(0, MBO, FrameFlags::SUSPECT.0),
                _ if index < 4 => Input::Message(1, DEFINITION, 0),
                _ => Input::Message(1 + u16::try_from(random.below(3)).unwrap(), MBO, 0),
            });
            let session = (restart, inputs.collect(), random.chance(0.7));
            restart = match random.below(6) {
                0 if restart < NEXT_DAY => NEXT_DAY,
                1 => restart + 2,
                _ => restart + 1,
            };
            session
        })
        .collect()
}

/// A gateway with these sessions in its log, but for the first messages of the first one. Packets end at random.
fn log(sessions: &[Content], random: &mut Random, body: usize, skipped: u64) -> VirtualGateway {
    let mut gateway = VirtualGateway::new(body);
    for (number, (restart, inputs, has_end)) in sessions.iter().enumerate() {
        let mut sequence = 1;
        let skipped = if number == 0 { skipped } else { 0 };
        let mut has_begun = false;
        for input in inputs {
            let next = sequence
                + match input {
                    Input::Gap(count) => *count,
                    Input::State(_) => 0,
                    Input::Message(..) | Input::Silent => 1,
                };
            if sequence > skipped && !has_begun {
                has_begun = true;
                gateway.begin_session_at(*restart, sequence);
            }
            if has_begun {
                match *input {
                    Input::Message(records, rtype, flags) => {
                        gateway.message(sequence, (records, 56, rtype), FrameFlags(flags));
                    }
                    Input::Silent => gateway.cover(next),
                    Input::Gap(_) => gateway.gap(sequence, next),
                    Input::State(state) => gateway.state(next, state),
                }
                if random.chance(0.4) {
                    gateway.flush();
                }
                if random.chance(0.05) {
                    gateway.commit_covered();
                }
            }
            sequence = next;
        }
        gateway.commit_covered();
        if *has_end {
            gateway.end_session();
        }
    }
    gateway.set_epoch(Epoch::new(100, 2));
    gateway
}

fn publish(stream: &mut Scenario, logs: &[VirtualGateway; 2], random: &mut Random, lines: u64, has_services: bool) {
    let first_seen = if random.chance(0.3) { random.below(30) } else { 0 };
    let loss = [0.0, 0.1, 0.3][usize::try_from(random.below(3)).unwrap()];
    let takes_over_at = usize::try_from(random.below(60)).unwrap();
    let [one, other] = logs.each_ref().map(VirtualGateway::entries);
    let takes_over_at = takes_over_at.min(one.len());
    let is_after = |entry: &mdgw_tests::pair::LogEntry| {
        let Some(last) = takes_over_at.checked_sub(1).map(|index| &one[index]) else { return true };
        entry.until() >= last.from()
    };
    let before = one[..takes_over_at].iter().map(|entry| (0, entry, Epoch::new(99, 1), PacketFlags::default()));
    let again = PacketFlags::RETRANSMISSION;
    let after = other.iter().filter(|entry| is_after(entry)).map(|entry| (1, entry, Epoch::new(100, 2), again));
    let packets: Vec<_> = before.chain(after).skip(usize::try_from(first_seen).unwrap()).collect();
    let span = packets.len() as u64 * MS;
    for (index, (gateway, entry, epoch, flags)) in (0..).zip(packets) {
        let at = index * MS;
        let packet = logs[gateway].packet(entry, epoch, flags, mdgw_feeds::time::UnixNs(at));
        for line in 0..u8::try_from(lines).unwrap() {
            let delay = if random.chance(0.1) { random.below(4 * MS) } else { random.below(100) * US };
            if !random.chance(loss) {
                stream.send(1_000 * MS + at + delay, line, packet.clone());
            }
            if random.chance(0.05) {
                stream.send(1_000 * MS + at + delay + random.below(3 * MS), line, packet.clone());
            }
            if random.chance(0.03) {
                stream.send(1_000 * MS + at + delay, line, damaged(&packet, random));
            }
        }
    }
    for number in 0..3 {
        let at = 1_000 * MS + span + number * 700 * MS;
        for line in 0..u8::try_from(lines).unwrap() {
            let last = other.last().unwrap();
            let beat = logs[1].packet(
                &mdgw_tests::pair::LogEntry {
                    first: last.next,
                    flags: PacketFlags(last.flags.0 | PacketFlags::HEARTBEAT.0),
                    payload: Vec::new(),
                    ..last.clone()
                },
                Epoch::new(100, 2),
                PacketFlags::default(),
                mdgw_feeds::time::UnixNs(at),
            );
            stream.send(at, line, beat);
        }
    }
    if !has_services && random.chance(0.2) {
        // A forged packet, after the start window or within it.
        let at = 1_000 * MS + random.below(5_000) * MS;
        let forged =
            logs[0].packet(&one[0], Epoch::new(5_000_000, 9), PacketFlags::default(), mdgw_feeds::time::UnixNs(0));
        stream.send(at, 0, forged);
    }
}

/// The packet with another byte, shorter, or longer. It may still be sound.
fn damaged(packet: &[u8], random: &mut Random) -> Vec<u8> {
    let mut damaged = packet.to_vec();
    let within = if random.chance(0.5) { 96 } else { u64::MAX };
    let at = usize::try_from(random.below(within.min(damaged.len() as u64))).unwrap();
    match random.below(5) {
        0 => damaged.truncate(at),
        1 => damaged.resize(damaged.len() + at, 0),
        _ => damaged[at] ^= 1 << random.below(8),
    }
    damaged
}

/// The text of that many streams of the vectors, of which datagrams are damaged, lost, repeated and exchanged, with what the receiver in
/// Rust makes of them. `SEED` selects one, `SEEDS` their number.
pub(crate) fn mutated_vectors(default_count: u64) -> String {
    mutated(streams::FILE, default_count)
}

/// The same for the streams with a snapshot group.
pub(crate) fn mutated_group_vectors(default_count: u64) -> String {
    mutated(streams::GROUP_FILE, default_count)
}

fn mutated(file: &str, default_count: u64) -> String {
    let file = data_files::read(file);
    let vectors: Vec<&str> = file.split("\n\n").filter(|vector| vector.starts_with("stream ")).collect();
    let mutated = seeds(default_count).map(|seed| {
        let mut random = Random::new(mix(seed));
        let vector = vectors[usize::try_from(random.below(vectors.len() as u64)).unwrap()];
        mutate(vector, seed, &mut random)
    });
    replay(&mutated.collect::<Vec<_>>().join("\n"))
}

#[test]
fn mutated_vectors_still_rebuild_books() {
    let text = mutated_vectors(60);
    for part in ["> lost ", "> refused ", "> repeated ", "> books channel=2 state=right"] {
        assert!(text.contains(part), "no {part}");
    }
}

/// The lines of a stream, without what a receiver makes of them.
fn mutate(vector: &str, seed: u64, random: &mut Random) -> String {
    let share = [0.02, 0.1, 0.3][usize::try_from(random.below(3)).unwrap()];
    let mut lines: Vec<String> = vec![format!("stream mutated_{seed}")];
    // What arrives at a time: its source and its bytes.
    let mut delayed: Option<String> = None;
    for line in vector.lines().filter(|line| !line.starts_with("> ")) {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let ["at", time, arrival] = words[..] else {
            lines.push(line.to_owned());
            continue;
        };
        let mut arrivals = vec![arrival.to_owned()];
        if random.chance(share) {
            match random.below(4) {
                0 => arrivals.clear(),
                1 => arrivals.push(arrival.to_owned()),
                2 => arrivals = delayed.replace(arrival.to_owned()).into_iter().collect(),
                _ => arrivals = vec![changed(arrival, random)],
            }
        }
        lines.extend(arrivals.iter().map(|arrival| format!("at {time} {arrival}")));
    }
    lines.iter().fold(String::new(), |text, line| text + line + "\n")
}

/// The arrival with other bytes: any of them, or a number in the packet's header, a frame's or a chunk's.
fn changed(arrival: &str, random: &mut Random) -> String {
    let (source, bytes) = arrival.rsplit_once(' ').unwrap();
    let mut bytes = text::from_hex(bytes);
    if bytes.is_empty() {
        return arrival.to_owned();
    }
    if random.chance(0.4) {
        bytes = damaged(&bytes, random);
    } else {
        let at = usize::try_from(2 * random.below(bytes.len().min(180) as u64 / 2)).unwrap();
        let width = [1, 2, 4, 8][usize::try_from(random.below(4)).unwrap()];
        let until = (at + width).min(bytes.len());
        let mut number = [0; 8];
        number[..until - at].copy_from_slice(&bytes[at..until]);
        let number = u64::from_le_bytes(number);
        let numbers = [0, 1, u64::MAX, 1 << 31, (1 << 47) - 1, number.wrapping_add(1), number.wrapping_sub(1)];
        let number = numbers[usize::try_from(random.below(7)).unwrap()].to_le_bytes();
        bytes[at..until].copy_from_slice(&number[..until - at]);
    }
    // Often with a header that fits the length, so that the frames are looked at.
    if bytes.len() >= 64 && random.chance(0.7) {
        let payload_bytes = u16::try_from(bytes.len() - 64).unwrap_or(u16::MAX);
        bytes[12..14].copy_from_slice(&payload_bytes.to_le_bytes());
    }
    format!("{source} {}", text::hex(&bytes))
}
