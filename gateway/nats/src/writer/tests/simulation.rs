//! Two sinks, their logs, a server and a network, from one seed: writers are stopped and wake, connections break with appends on the way,
//! the server restarts, and forgets.

use super::*;

/// What protects the stream; the controls leave parts out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protection {
    All,
    SequenceOnly,
    IdOfMessageOnly,
}

struct Append {
    chain: u64,
    message: SinkMessage,
    expectation: Expectation,
    node: u8,
}

/// As nats-server 2.9 decides: a known id first, then the last sequence, then the last id.
#[derive(Default)]
struct Stream {
    messages: Vec<(SinkMessage, u8, u64)>,
    last_id: Option<String>,
}

impl Stream {
    fn append(&mut self, append: &Append, protection: Protection, now: u64) -> Answer {
        let fresh = |stored: &u64| now - *stored < WINDOW_NS;
        let same = |(message, _, at): &(SinkMessage, u8, u64)| message.id == append.message.id && fresh(at);
        if let Some(index) = self.messages.iter().position(same) {
            return Answer::Stored { sequence: index as u64 + 1, is_duplicate: true };
        }
        let Expectation { last_sequence, last_id, .. } = &append.expectation;
        if protection != Protection::IdOfMessageOnly && *last_sequence != self.messages.len() as u64 {
            return Answer::Refused;
        }
        if protection == Protection::All && last_id.is_some() && *last_id != self.last_id {
            return Answer::Refused;
        }
        self.messages.push((append.message.clone(), append.node, now));
        self.last_id = Some(append.message.id.clone());
        Answer::Stored { sequence: self.messages.len() as u64, is_duplicate: false }
    }

    fn restart(&mut self, now: u64) {
        if self.messages.last().is_none_or(|(_, _, at)| now - at >= WINDOW_NS) {
            self.last_id = None;
        }
    }

    fn end(&self) -> StreamEnd {
        let last = self.messages.last();
        let last = last.map(|(message, node, _)| LastMessage { end: message.end, node: Some(*node) });
        StreamEnd { last_sequence: self.messages.len() as u64, last }
    }
}

struct Sink {
    writer: Writer,
    /// The log as messages.
    log: Vec<SinkMessage>,
    /// Behind which place the next message of the log is.
    begin: Option<Place>,
    /// How much of the log the gateway has written so far.
    written: usize,
    to_server: VecDeque<Append>,
    from_server: VecDeque<(u64, u64, Answer)>,
    stopped_until: u64,
}

impl Sink {
    fn next(&self) -> Option<SinkMessage> {
        let behind = |message: &SinkMessage| self.begin.is_none_or(|begin| message.end.place > begin);
        let mut message = self.log[..self.written].iter().find(|message| behind(message))?.clone();
        if let Some(begin) = self.begin.filter(|begin| message.name.is_missing() && message.name.first < *begin) {
            message.rename(Place::message(session(), begin.sequence + u64::from(begin.index > 0)));
        }
        Some(message)
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Runs one seed and returns the stream.
fn run(seed: u64, protection: Protection) -> Vec<SinkMessage> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut stream = Stream::default();
    let mut sinks = [1, 2].map(|node| {
        let mut log = Vec::new();
        let mut sequence = 1;
        while sequence < MESSAGES {
            // What one gateway received, the other may have declared missing.
            let length = 2 + random.below(4);
            if random.below(8) == 0 && sequence + length < MESSAGES {
                log.push(gap(sequence, sequence + length));
                sequence += length;
            } else {
                log.push(record(sequence));
                sequence += 1;
            }
        }
        let writer = Writer::new(WriterConfig { in_flight_max: 8, ..config(node, true) });
        Sink {
            writer,
            log,
            begin: None,
            written: 0,
            to_server: VecDeque::new(),
            from_server: VecDeque::new(),
            stopped_until: 0,
        }
    });
    let mut now = 0;
    for step in 0.. {
        let is_calm = step > STEPS;
        let index = usize::try_from(random.below(2)).unwrap();
        let other = if is_calm { 0 } else { random.below(1_000) };
        now += if random.below(50) == 0 { random.below(3_000) } else { random.below(20) };
        let sink = &mut sinks[index];
        match other {
            1..=4 => sink.stopped_until = now + random.below(20_000),
            5..=7 => {
                // A crash of the sink. What is on the way arrives.
                sink.writer = Writer::new(sink.writer.config);
                sink.begin = None;
            }
            8..=10 => {
                // The connection breaks: of what was sent a part arrives, and no answer.
                let arrives = usize::try_from(random.below(9)).unwrap();
                sink.to_server.truncate(arrives);
                for append in sink.to_server.drain(..) {
                    let _lost = stream.append(&append, protection, now);
                }
                sink.from_server.clear();
                sink.writer.on_failure(MonoNs(now));
            }
            11..=12 => {
                now += random.below(2 * WINDOW_NS);
                stream.restart(now);
                for sink in &mut sinks {
                    sink.to_server.clear();
                    sink.from_server.clear();
                    sink.writer.on_failure(MonoNs(now));
                }
            }
            _ => {}
        }
        let sink = &mut sinks[index];
        // The server works on what was sent, whether its sender is stopped or not.
        if random.below(3) == 0
            && let Some(append) = sink.to_server.pop_front()
        {
            let answer = stream.append(&append, protection, now);
            sink.from_server.push_back((append.chain, append.expectation.last_sequence + 1, answer));
        }
        if sink.stopped_until > now && !is_calm {
            continue;
        }
        let at = MonoNs(now);
        sink.written = (sink.written + usize::from(random.below(4) == 0)).min(sink.log.len());
        if let Some((chain, sequence, answer)) = sink.from_server.pop_front() {
            sink.writer.on_answer(chain, sequence, &answer, at);
        }
        sink.writer.on_deadline(at);
        if sink.writer.wants_end(at) {
            match sink.writer.on_end(&stream.end(), at).0 {
                Some(Resume::Behind(end)) => sink.begin = Some(end.place),
                Some(Resume::Oldest | Resume::EndUnknown) => sink.begin = None,
                None => {}
            }
        }
        if let Some(message) = sink.next()
            && let Some(expectation) = sink.writer.append(&message, at)
        {
            sink.begin = Some(message.end.place);
            let (chain, node) = (expectation.chain, sink.writer.config.node);
            sink.to_server.push_back(Append { chain, message, expectation, node });
        }
        let is_done = |sink: &Sink| sink.written == sink.log.len() && sink.next().is_none();
        let idle = |sink: &Sink| sink.writer.in_flight() == 0 && sink.to_server.is_empty();
        let reached = stream.messages.last().is_some_and(|(last, ..)| next_sequence(last) == MESSAGES);
        if is_calm && reached && sinks.iter().all(|sink| is_done(sink) && idle(sink)) || step > 40 * STEPS {
            break;
        }
    }
    stream.messages.into_iter().map(|(message, ..)| message).collect()
}

fn next_sequence(message: &SinkMessage) -> u64 {
    match message.name.content {
        Content::Gap { next } | Content::Hole { next } => next,
        Content::Records { .. } | Content::End => message.name.first.sequence + 1,
    }
}

/// Each message follows the one before it: nothing is missing, twice or out of order.
fn check(stream: &[SinkMessage]) -> Result<(), String> {
    let mut expected = 1;
    for message in stream {
        if message.name.first.sequence != expected {
            return Err(format!("{} where sequence {expected} comes next", message.id));
        }
        expected = next_sequence(message);
    }
    if expected == MESSAGES { Ok(()) } else { Err(format!("the stream ends in front of {expected}")) }
}

#[test]
fn each_record_is_in_the_stream_once_and_in_order() {
    let only: Option<u64> = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let count = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(400);
    let seeds = only.map_or(1..count + 1, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(error) = check(&run(seed, Protection::All)) {
            panic!("SEED={seed}: {error}");
        }
    }
}

/// The check sees what each part of the protection prevents.
#[test]
fn without_a_part_of_the_protection_the_check_fails() {
    for protection in [Protection::SequenceOnly, Protection::IdOfMessageOnly] {
        assert!((1..400).any(|seed| check(&run(seed, protection)).is_err()));
    }
}

const MESSAGES: u64 = 200;
const STEPS: u64 = 6_000;
/// Shorter than a takeover: nothing may depend on the window.
const WINDOW_NS: u64 = 1_500;
