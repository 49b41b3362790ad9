//! Two gateways that split packets differently, lines that lose, duplicate and reorder, and a service that may not
//! answer. The output is the stream as published, or reports the missing messages.
#![allow(clippy::cast_possible_truncation, reason = "test sizes are small")]

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use proptest::prelude::*;
use zerocopy::{
    IntoBytes,
    little_endian::{I32, U16, U32, U64},
};

use super::*;
use crate::{
    frame::{FRAME_HEADER_BYTES, FrameFlags, FrameKind, GapBody},
    identity::Feed,
    published::{
        packet::{PacketMeta, write_packet},
        request::RequestKind,
    },
    time::TradingDate,
};

pub(super) const GROUP: GroupId = GroupId(3);
pub(super) const CHANNEL: ChannelId = ChannelId(7);
/// Room for the frames of one packet.
pub(super) const BODY_BYTES_MAX: usize = 400;
const RECORD_BYTES: usize = 56;

/// Output of one input sequence of the channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Input {
    Silent,
    /// The message produced this many records.
    Records(u16),
    /// Declared missing by every gateway.
    Missing,
}

pub(super) fn session(restart: u32) -> Session {
    Session { feed: Feed::IexDeep, date: TradingDate::from_yyyymmdd(20_240_102).unwrap(), restart }
}

/// Records of one message; each contains the message's sequence.
fn records(sequence: u64, count: u16) -> Vec<u8> {
    let mut body = Vec::new();
    for index in 0..count {
        let mut record = [0; RECORD_BYTES];
        record[0] = (RECORD_BYTES / 4) as u8;
        record[16..24].copy_from_slice(&sequence.to_le_bytes());
        record[24..26].copy_from_slice(&index.to_le_bytes());
        body.extend_from_slice(&record);
    }
    body
}

fn frame(sequence: u64, kind: FrameKind, part: (u16, FrameFlags), body: &[u8]) -> Vec<u8> {
    let record_count = if kind == FrameKind::Message { body.len() / RECORD_BYTES } else { 0 };
    let header = FrameHeader {
        sequence: U64::new(sequence),
        ts_recv: U64::new(sequence * 10),
        ts_in_delta_ns: I32::new(0),
        body_bytes: U16::new(body.len() as u16),
        record_count: U16::new(record_count as u16),
        kind: kind as u8,
        flags: part.1.0,
        part: U16::new(part.0),
        reserved: U32::ZERO,
    };
    [header.as_bytes(), body].concat()
}

const WHOLE: (u16, FrameFlags) = (0, FrameFlags(3));

/// One log entry.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) body: Vec<u8>,
}

/// A gateway's log of these inputs, numbered from 1, with that many messages per packet and at most that many bytes of frames.
pub(super) fn log_of(inputs: &[Input], cuts: &[u64], body_bytes_max: usize) -> Vec<Entry> {
    let mut log: Vec<Entry> = Vec::new();
    let mut open = Entry { first: 1, next: 1, body: Vec::new() };
    let mut cuts = cuts.iter().cycle();
    let mut left = *cuts.next().unwrap();
    let mut sequence = 1;
    let mut close = |open: &mut Entry| {
        if open.next > open.first || !open.body.is_empty() {
            log.push(open.clone());
        }
        *open = Entry { first: open.next, next: open.next, body: Vec::new() };
    };
    while let Some(input) = inputs.get(sequence as usize - 1) {
        let mut next = sequence + 1;
        let bytes = match input {
            Input::Silent => Vec::new(),
            Input::Records(count) => frame(sequence, FrameKind::Message, WHOLE, &records(sequence, *count)),
            Input::Missing => {
                while inputs.get(next as usize - 1) == Some(&Input::Missing) {
                    next += 1;
                }
                let gap = GapBody { first: U64::new(sequence), next: U64::new(next) };
                frame(sequence, FrameKind::Gap, WHOLE, gap.as_bytes())
            }
        };
        if open.body.len() + bytes.len() > body_bytes_max {
            close(&mut open);
        }
        if bytes.len() > body_bytes_max {
            let body = records(sequence, (bytes.len() / RECORD_BYTES) as u16);
            let pieces: Vec<_> =
                body.chunks((body_bytes_max - FRAME_HEADER_BYTES) / RECORD_BYTES * RECORD_BYTES).collect();
            for (part, piece) in pieces.iter().enumerate() {
                let is_last = part + 1 == pieces.len();
                let flags = FrameFlags(u8::from(part == 0) | u8::from(is_last) << 1);
                open.body = frame(sequence, FrameKind::Message, (part as u16, flags), piece);
                open.next = if is_last { next } else { sequence };
                close(&mut open);
            }
        } else {
            open.body.extend_from_slice(&bytes);
            open.next = next;
        }
        left -= 1;
        if left == 0 {
            left = *cuts.next().unwrap();
            close(&mut open);
        }
        sequence = next;
    }
    close(&mut open);
    log
}

pub(super) fn datagram(
    flags: PacketFlags,
    session: Session,
    epoch: Epoch,
    (first, next): (u64, u64),
    body: &[u8],
) -> Vec<u8> {
    let (first, next) = (Sequence(first), Sequence(next));
    let meta = PacketMeta { flags, group: GROUP, channel: CHANNEL, epoch, session, first, next, send_time_ns: 5 };
    let mut bytes = vec![0; 2_000];
    let length = write_packet(&meta, body, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

/// Flags of the end of an answer. `is_final`: the service knows that the session ended there.
fn end_flags(is_final: bool) -> PacketFlags {
    let final_flag = if is_final { PacketFlags::END_OF_SESSION } else { PacketFlags::default() };
    PacketFlags::HEARTBEAT.with(final_flag)
}

/// Gateways, lines, service and receiver in one place, with virtual time in µs.
struct ReceiverHarness {
    inputs: Vec<Vec<Input>>,
    /// Log entries, by session and gateway.
    logs: Vec<Vec<Vec<Entry>>>,
    /// The part of its log that each service has, in entries. The services take turns.
    service_log_ranges: Vec<Range<usize>>,
    /// From this request on, every service has its whole log.
    complete_from_request: usize,
    packets_per_answer: usize,
    answers: Vec<bool>,
    requests: usize,
    /// Requests that went to the next service.
    turns: usize,
    flights: BTreeMap<u64, Vec<(Line, u8, Vec<u8>)>>,
    receiver: Receiver,
    events: Vec<ReceiverEvent>,
    is_late_start: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum ReceiverEvent {
    Session(u32),
    Message(u32, u64),
    Definition(u64),
    Gap(u64, u64),
    Lost(u64, u64),
    End,
}

impl ReceiverHarness {
    fn new(inputs: Vec<Vec<Input>>, cuts: [&[u64]; 2], config: ReceiverConfig) -> Self {
        Self::with_packet_sizes(inputs, cuts, [BODY_BYTES_MAX; 2], config)
    }

    /// The gateways differ in the room for the frames of one packet.
    fn with_packet_sizes(
        inputs: Vec<Vec<Input>>,
        cuts: [&[u64]; 2],
        sizes: [usize; 2],
        config: ReceiverConfig,
    ) -> Self {
        let log = |inputs: &[Input], gateway: usize| log_of(inputs, cuts[gateway], sizes[gateway]);
        let logs = inputs.iter().map(|inputs| [0, 1].map(|gateway| log(inputs, gateway)).to_vec()).collect();
        Self {
            inputs,
            logs,
            service_log_ranges: vec![WHOLE_LOG],
            complete_from_request: usize::MAX,
            packets_per_answer: 5,
            answers: vec![true],
            requests: 0,
            turns: 0,
            flights: BTreeMap::new(),
            receiver: Receiver::new(config),
            events: Vec::new(),
            is_late_start: false,
        }
    }

    /// Publishes all sessions on the lines. Each line has for its packets, repeated: whether the packet is lost,
    /// whether it is sent twice, and its delay in µs. The second gateway takes over, under a higher epoch, after
    /// `take_over_after` packets of each session. Packets sent before `received_from_us` are not received.
    fn publish(&mut self, lines: &[Vec<(bool, bool, u64)>], take_over_after: usize, received_from_us: u64) {
        let mut at = 0;
        for (number, gateways) in self.logs.iter().enumerate() {
            let session = session(number as u32);
            let before = gateways[0].iter().take(take_over_after);
            let covered_through = before.clone().next_back().map_or(1, |entry| entry.next);
            // The successor begins with the entry that contains the first sequence not covered by the old leader.
            let after =
                gateways[1].iter().filter(|entry| entry.next > covered_through || (entry.first..entry.next).is_empty());
            let after = after.filter(|entry| entry.next >= covered_through);
            let old = Epoch::new(2 * number as u64 + 1, 1);
            let new = Epoch::new(2 * number as u64 + 2, 2);
            let stream = before.map(|entry| (old, entry)).chain(after.map(|entry| (new, entry)));
            let end = self.inputs[number].len() as u64 + 1;
            let mut packets: Vec<Vec<u8>> = stream
                .map(|(epoch, entry)| {
                    datagram(PacketFlags::default(), session, epoch, (entry.first, entry.next), &entry.body)
                })
                .collect();
            let end_flags = PacketFlags::HEARTBEAT.with(PacketFlags::END_OF_SESSION);
            let heartbeat = datagram(end_flags, session, new, (end, end), &[]);
            packets.extend(std::iter::repeat_n(heartbeat, 4));
            for (line, fates) in (0..).map(Line).zip(lines) {
                for (index, packet) in packets.iter().enumerate() {
                    let (lost, twice, delay) = fates[index % fates.len()];
                    // The last heartbeat always arrives.
                    let lost = lost && index + 1 < packets.len();
                    let leaves = at + 100 * index as u64;
                    if leaves < received_from_us {
                        continue;
                    }
                    if !lost {
                        self.flights.entry(leaves + delay).or_default().push((line, 0, packet.clone()));
                    }
                    if twice {
                        self.flights.entry(leaves + 2 * delay + 30).or_default().push((line, 0, packet.clone()));
                    }
                }
            }
            at += 100 * packets.len() as u64 + 500_000;
        }
    }

    fn run(&mut self) {
        while let Some((at, datagrams)) = self.flights.pop_first() {
            let now = MonoNs(at * 1_000);
            for (line, service, mut bytes) in datagrams {
                // The service observes the same epochs, and answers with the latest.
                if let Some(epoch) = self.receiver.epoch().filter(|_| line == Line::RECOVERY) {
                    bytes[16..24].copy_from_slice(&epoch.0.to_le_bytes());
                }
                let datagram = PublishedDatagram { line, service, bytes: &bytes, ts_recv: UnixNs(now.0) };
                let events = &mut self.events;
                let _counted = self.receiver.accept(datagram, now, &mut |output| record_event(events, &output));
            }
            self.answer(at);
            let until = self.flights.keys().next().copied();
            while let Some(deadline) = self.receiver.next_deadline() {
                if until.is_some_and(|until| deadline.0 >= until * 1_000) {
                    break;
                }
                let events = &mut self.events;
                self.receiver.on_deadline(deadline, &mut |output| record_event(events, &output));
                self.answer(deadline.0 / 1_000);
                if self.flights.keys().next().copied() != until {
                    break;
                }
            }
        }
        let events = &mut self.events;
        self.receiver.finish(&mut |output| record_event(events, &output));
    }

    /// Answers the receiver's requests as the services do, from the second gateway's log.
    fn answer(&mut self, at: u64) {
        while let Some(request) = self.receiver.poll_request() {
            let wire = request.to_packet();
            let request = ServiceRequest::parse(wire.as_bytes()).unwrap();
            assert_eq!((request.group, request.channel), (GROUP, CHANNEL));
            // Further definitions are asked of the service that sent the first ones; otherwise the services take turns.
            let is_continuation = request.kind == RequestKind::Definitions && request.first > Sequence(0);
            self.turns += usize::from(!is_continuation);
            let turn = self.turns - 1;
            let answered = self.answers[turn % self.answers.len()];
            let service = turn % self.service_log_ranges.len();
            let is_complete = self.requests >= self.complete_from_request;
            let Range { start, end } = if is_complete { WHOLE_LOG } else { self.service_log_ranges[service].clone() };
            self.requests += 1;
            assert!(self.requests < 20_000, "a flood of requests");
            if !answered {
                continue;
            }
            let session = request.session.unwrap();
            let epoch = self.receiver.epoch().unwrap_or_else(|| Epoch::new(1, 1));
            let flags = PacketFlags::RETRANSMISSION;
            let mut out = Vec::new();
            match request.kind {
                RequestKind::Epoch => {
                    let range = (request.first.0, request.next.0);
                    out.push(datagram(PacketFlags::EPOCH_ANSWER, session, epoch, range, &[]));
                }
                RequestKind::Range => {
                    let log = &self.logs[session.restart as usize][1];
                    let is_final = end >= log.len();
                    let log = log.get(start..end.min(log.len())).unwrap_or_default();
                    let wanted = log.iter().filter(|entry| {
                        request.first < request.next
                            && entry.first < request.next.0
                            && (entry.next > request.first.0
                                || entry.first == entry.next && entry.next >= request.first.0)
                    });
                    for entry in wanted.take(self.packets_per_answer) {
                        out.push(datagram(flags, session, epoch, (entry.first, entry.next), &entry.body));
                    }
                    let extent = log.first().map_or((0, 0), |first| (first.first, log.last().unwrap().next));
                    out.push(datagram(flags.with(end_flags(is_final)), session, epoch, extent, &[]));
                }
                RequestKind::Sessions => {
                    let log = self.logs.get(session.restart as usize).map(|gateways| &gateways[1]);
                    let extent = log.and_then(|log| Some((log.first()?.first, log.last()?.next)));
                    let flags = flags.with(end_flags(extent.is_some()));
                    out.push(datagram(flags, session, epoch, extent.unwrap_or_default(), &[]));
                }
                // As a service that does not know the request.
                RequestKind::Snapshot => {}
                RequestKind::Definitions => {
                    let flags = flags.with(PacketFlags::SNAPSHOT);
                    let number = request.first.0;
                    if number < DEFINITIONS {
                        let body = frame(number + 1, FrameKind::Message, WHOLE, &records(number + 1, 1));
                        out.push(datagram(flags, session, epoch, (number, number + 1), &body));
                    }
                    let left = ((number + 1).min(DEFINITIONS), DEFINITIONS);
                    out.push(datagram(flags.with(PacketFlags::HEARTBEAT), session, epoch, left, &[]));
                }
            }
            for (index, bytes) in out.into_iter().enumerate() {
                self.flights.entry(at + 300 + index as u64).or_default().push((Line::RECOVERY, service as u8, bytes));
            }
        }
    }

    /// Checks the guarantee: sessions arrive in ascending order. In each session, every message with output arrives
    /// once, in order and with its own records, or lies in a reported loss. Nothing is reported twice.
    fn check(&self) -> Result<BTreeSet<(u32, u64)>, String> {
        let mut current: Option<u32> = None;
        let mut reported_through = 1;
        let mut lost = BTreeSet::new();
        let mut is_ended = false;
        for event in &self.events {
            let (first, next) = match event {
                ReceiverEvent::Session(number) => {
                    if current.is_some_and(|current| *number <= current) {
                        return Err(format!("session {number} after {current:?}"));
                    }
                    if let Some(current) = current {
                        self.check_all_reported(current, reported_through)?;
                    }
                    // Only the first session may begin after its first message.
                    (is_ended, reported_through) = (false, u64::from(current.is_some()));
                    current = Some(*number);
                    continue;
                }
                ReceiverEvent::End if is_ended => return Err("two ends".to_owned()),
                ReceiverEvent::End => {
                    is_ended = true;
                    continue;
                }
                ReceiverEvent::Definition(_) => continue,
                ReceiverEvent::Message(number, sequence) if Some(*number) == current => (*sequence, *sequence + 1),
                ReceiverEvent::Message(..) => return Err(format!("{event:?} in session {current:?}")),
                ReceiverEvent::Gap(first, next) | ReceiverEvent::Lost(first, next) => (*first, *next),
            };
            if is_ended || first < reported_through {
                return Err(format!("{event:?} after {reported_through}, ended: {is_ended}"));
            }
            let number = current.ok_or("before any session")?;
            let at = |sequence: u64| self.inputs[number as usize].get(sequence as usize - 1).copied();
            // Messages before a late joiner's first message are not expected.
            if reported_through > 0
                && let Some(skipped) = (reported_through..first).find(|sequence| at(*sequence) != Some(Input::Silent))
            {
                return Err(format!("{skipped} was skipped silently before {event:?}"));
            }
            match event {
                ReceiverEvent::Gap(..) if (first..next).any(|sequence| at(sequence) != Some(Input::Missing)) => {
                    return Err(format!("{event:?} is not what the gateway declared"));
                }
                ReceiverEvent::Lost(..) => lost.extend((first..next).map(|sequence| (number, sequence))),
                _ => {}
            }
            reported_through = next;
        }
        self.check_all_reported(current.unwrap_or(0), reported_through)?;
        Ok(lost)
    }

    fn check_all_reported(&self, number: u32, reported_through: u64) -> Result<(), String> {
        let inputs = &self.inputs[number as usize];
        let rest = inputs.get(reported_through.saturating_sub(1) as usize..).unwrap_or_default();
        let unreported = rest.iter().position(|input| *input != Input::Silent);
        match unreported {
            Some(index) if !self.is_late_start => {
                Err(format!("{} of session {number} was never reported", reported_through + index as u64))
            }
            _ => Ok(()),
        }
    }
}

mod epoch_start;
mod rebuild;
mod snapshot_group;
mod snapshot_start;

const DEFINITIONS: u64 = 3;

/// Range of log entries for a service that has the whole log.
const WHOLE_LOG: Range<usize> = 0..usize::MAX;

fn record_event(events: &mut Vec<ReceiverEvent>, output: &Output<'_>) {
    assert_eq!(output.channel, CHANNEL);
    let restart = output.session.restart;
    events.push(match output.item {
        Item::Session => ReceiverEvent::Session(restart),
        Item::Message { header, body } => {
            let sequence = header.sequence.get();
            assert_eq!(body, records(sequence, header.record_count.get()), "records of {sequence}");
            assert_eq!(usize::from(header.body_bytes.get()), body.len());
            ReceiverEvent::Message(restart, sequence)
        }
        Item::Definition { header, .. } => ReceiverEvent::Definition(header.sequence.get()),
        Item::Gap(gap) => ReceiverEvent::Gap(gap.first().0, gap.next().0),
        Item::Lost(gap) => ReceiverEvent::Lost(gap.first().0, gap.next().0),
        Item::EndOfSession => ReceiverEvent::End,
        Item::State(_) | Item::Snapshot { .. } | Item::Repeated { .. } | Item::Books(_) => return,
    });
}

fn service() -> ServiceConfig {
    ServiceConfig {
        request_timeout_ns: 5_000_000,
        attempts_max: 6,
        messages_per_request_max: 40,
        ..ServiceConfig::default()
    }
}

fn config(service: Option<ServiceConfig>) -> ReceiverConfig {
    ReceiverConfig {
        group: GROUP,
        channels: vec![CHANNEL],
        lines: 2,
        packet_bytes_max: 512,
        window_packets: 64,
        service,
        ..ReceiverConfig::default()
    }
}

const NO_FAULTS: Fate = (false, false, 0);
type Fate = (bool, bool, u64);

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let input = prop_oneof![
        3 => Just(Input::Silent),
        8 => (0..5_u16).prop_map(Input::Records),
        // Split into two to four parts.
        1 => (7..24_u16).prop_map(Input::Records),
        1 => Just(Input::Missing),
    ];
    prop::collection::vec(input, 1..120)
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let delay = prop_oneof![3 => Just(0), 1 => 0..900_u64, 1 => 0..8_000_u64];
    prop::collection::vec((prop::bool::weighted(0.2), prop::bool::weighted(0.2), delay), 1..30)
}

fn cuts() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1..6_u64, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// With a service that answers: nothing is lost, whatever the lines do, across a takeover and a new session.
    #[test]
    fn an_answering_service_leaves_no_loss(
        sessions in prop::collection::vec(inputs(), 1..3),
        lines in prop::collection::vec(fates(), 1..3),
        (left, right) in (cuts(), cuts()),
        take_over_after in 0..60_usize,
        packets_per_answer in 4..9_usize,
    ) {
        let mut harness = ReceiverHarness::new(sessions, [&left, &right], config(Some(service())));
        harness.packets_per_answer = packets_per_answer;
        harness.publish(&lines, take_over_after, 0);
        harness.run();
        let lost = harness.check().map_err(TestCaseError::fail)?;
        prop_assert_eq!(lost.len(), 0);
        let ends = harness.events.iter().filter(|event| **event == ReceiverEvent::End).count();
        prop_assert_eq!(ends, harness.inputs.len());
    }

    /// With no service or an unreliable one: each message once and in order, or reported as lost.
    #[test]
    fn missing_messages_are_reported(
        sessions in prop::collection::vec(inputs(), 1..3),
        lines in prop::collection::vec(fates(), 1..3),
        (left, right) in (cuts(), cuts()),
        take_over_after in 0..60_usize,
        answers in prop::option::of(prop::collection::vec(any::<bool>(), 1..8)),
    ) {
        let mut harness = ReceiverHarness::new(sessions, [&left, &right], config(answers.as_ref().map(|_| service())));
        // A lost first packet without an answering service is a late start.
        harness.is_late_start = true;
        harness.answers = answers.unwrap_or_else(|| vec![false]);
        harness.publish(&lines, take_over_after, 0);
        harness.run();
        harness.check().map_err(TestCaseError::fail)?;
    }

    /// Gateways that cut messages differently, which they must not: a message may be lost at a takeover, and is then reported. One
    /// of the two never cuts a message, so no parts of two sizes join.
    #[test]
    fn a_takeover_with_another_packet_size_loses_nothing_silently(
        sessions in prop::collection::vec(inputs(), 1..3),
        lines in prop::collection::vec(fates(), 1..3),
        (left, right) in (cuts(), cuts()),
        take_over_after in 0..60_usize,
        is_second_larger in any::<bool>(),
        has_service in any::<bool>(),
    ) {
        let mut sizes = [BODY_BYTES_MAX, 1_400];
        if !is_second_larger {
            sizes.reverse();
        }
        let config = ReceiverConfig { packet_bytes_max: 1_472, ..config(has_service.then(service)) };
        let mut harness = ReceiverHarness::with_packet_sizes(sessions, [&left, &right], sizes, config);
        harness.is_late_start = !has_service;
        harness.publish(&lines, take_over_after, 0);
        harness.run();
        harness.check().map_err(TestCaseError::fail)?;
    }

    /// A late joiner gets the definitions first and then everything still in the log.
    #[test]
    fn a_late_starter_receives_everything_the_log_holds(
        session in inputs(),
        lines in prop::collection::vec(fates(), 1..3),
        (left, right) in (cuts(), cuts()),
        received_from_us in 1..4_000_u64,
        oldest_entry in 0..4_usize,
    ) {
        let mut harness = ReceiverHarness::new(vec![session], [&left, &right], config(Some(service())));
        // A log that begins in the middle of a message has lost that message.
        let log = &harness.logs[0][1];
        let begins = |index: &usize| log.get(*index).is_none_or(|entry| *index == 0 || log[index - 1].next == entry.first && log[index - 1].first < entry.first);
        let oldest_entry = (oldest_entry..).find(begins).unwrap();
        harness.service_log_ranges = vec![Range { start: oldest_entry, ..WHOLE_LOG }];
        harness.publish(&lines, usize::MAX, received_from_us);
        harness.run();
        harness.is_late_start = !harness.events.iter().any(|event| matches!(event, ReceiverEvent::Message(..) | ReceiverEvent::Gap(..)));
        let lost = harness.check();
        let oldest = harness.logs[0][1].get(oldest_entry).map(|entry| entry.first);
        if let (Some(ReceiverEvent::Definition(1)), Some(oldest)) = (harness.events.get(1), oldest) {
            prop_assert_eq!(lost.map_err(TestCaseError::fail)?.len(), 0);
            prop_assert_eq!(&harness.events[1..4], &[ReceiverEvent::Definition(1), ReceiverEvent::Definition(2), ReceiverEvent::Definition(3)]);
            let first = harness.events.iter().find_map(|event| match event {
                ReceiverEvent::Message(_, sequence) => Some(*sequence),
                _ => None,
            });
            let at_oldest = (oldest..).zip(&harness.inputs[0][oldest as usize - 1..]);
            let expected = at_oldest.filter(|(_, input)| matches!(input, Input::Records(_))).map(|(sequence, _)| sequence);
            prop_assert_eq!(first, expected.clone().next().filter(|_| first.is_some()).or(first));
            prop_assert!(first.is_some() || expected.count() == 0);
        }
    }

    /// Any bytes: no panic, and every accepted packet is iterated to its end.
    #[test]
    fn damaged_datagrams_never_panic(
        damage in prop::collection::vec((0..30_usize, 0..500_usize, any::<u8>()), 1..300),
    ) {
        let mut harness = ReceiverHarness::new(vec![vec![Input::Records(2); 40]], [&[3], &[2]], config(Some(service())));
        harness.publish(&[vec![NO_FAULTS], vec![NO_FAULTS]], 5, 0);
        let mut packets: Vec<_> = harness.flights.values().flatten().cloned().collect();
        for (packet, byte, value) in damage {
            let index = packet % packets.len();
            let bytes = &mut packets[index].2;
            let byte = byte % bytes.len();
            bytes[byte] = value;
        }
        for (at, (line, _, bytes)) in (0..).zip(packets) {
            let datagram = PublishedDatagram { line, service: 0, bytes: &bytes, ts_recv: UnixNs(at) };
            let now = MonoNs(at * 1_000_000);
            let _counted = harness.receiver.accept(datagram, now, &mut |_| {});
            harness.receiver.on_deadline(now, &mut |_| {});
            while harness.receiver.poll_request().is_some() {}
        }
        harness.receiver.finish(&mut |_| {});
    }
}

#[test]
fn a_message_larger_than_a_packet_is_reassembled() {
    let inputs = vec![Input::Records(1), Input::Records(20), Input::Silent, Input::Records(2)];
    let mut harness = ReceiverHarness::new(vec![inputs], [&[9], &[1]], config(None));
    harness.publish(&[vec![NO_FAULTS]], usize::MAX, 0);
    harness.run();
    let message = |sequence| ReceiverEvent::Message(0, sequence);
    assert_eq!(harness.events, [ReceiverEvent::Session(0), message(1), message(2), message(4), ReceiverEvent::End]);
    assert_eq!(harness.receiver.channels().next().unwrap().statistics().messages, 3);
}

#[test]
fn a_message_with_a_lost_part_is_reported_lost_once() {
    let inputs = vec![Input::Records(1), Input::Records(20), Input::Records(2)];
    for lost in 1..5 {
        let mut harness = ReceiverHarness::new(vec![inputs.clone()], [&[9], &[1]], config(None));
        let mut fates = vec![NO_FAULTS; 20];
        fates[lost].0 = true;
        harness.publish(&[fates], usize::MAX, 0);
        harness.run();
        assert_eq!(harness.events[2], ReceiverEvent::Lost(2, 3), "part {lost}: {:?}", harness.events);
        assert_eq!(harness.events[3], ReceiverEvent::Message(0, 3));
    }
}

/// The position lies behind message 5. What was published before it and while the receiver was away is not delivered again, or is requested.
#[test]
fn a_resumed_channel_continues_behind_its_position() {
    for (service, received_from) in [(None, 0), (Some(service()), 0), (Some(service()), 9), (None, 9)] {
        let resume = vec![(CHANNEL, StreamPosition::at(session(0), Sequence(6)))];
        let config = ReceiverConfig { resume, start: StartFrom::OldestOfDay, ..config(service) };
        let mut harness = ReceiverHarness::new(vec![vec![Input::Records(1); 20]], [&[1], &[1]], config);
        harness.is_late_start = true;
        harness.publish(&[vec![NO_FAULTS]], usize::MAX, 100 * received_from);
        harness.run();
        let message = |sequence| ReceiverEvent::Message(0, sequence);
        let (lost, from) = match (service, received_from) {
            (None, 9) => (Some(ReceiverEvent::Lost(6, 10)), 10),
            _ => (None, 6),
        };
        let expected: Vec<_> = lost.into_iter().chain((from..=20).map(message)).chain([ReceiverEvent::End]).collect();
        assert_eq!(harness.events, expected, "{service:?} {received_from}");
    }
}

#[test]
fn packets_of_a_former_leader_are_refused() {
    let mut harness = ReceiverHarness::new(vec![vec![Input::Records(1); 4]], [&[1], &[1]], config(None));
    let mut accept = |at_s: u64, epoch, sequence: u64| {
        let body = frame(sequence, FrameKind::Message, WHOLE, &records(sequence, 1));
        let bytes = datagram(PacketFlags::default(), session(0), epoch, (sequence, sequence + 1), &body);
        let datagram = PublishedDatagram { line: Line::A, service: 0, bytes: &bytes, ts_recv: UnixNs(0) };
        harness.receiver.accept(datagram, MonoNs(at_s * 1_000_000_000), &mut |_| {})
    };
    assert_eq!(accept(0, Epoch::new(5, 1), 1), Ok(()));
    assert_eq!(accept(2, Epoch::new(6, 2), 2), Ok(()));
    assert_eq!(accept(2, Epoch::new(5, 1), 3), Err(DropReason::EpochStale));
    // After the start window.
    assert_eq!(accept(4, Epoch::new(2_000, 1), 3), Err(DropReason::EpochJump));
    assert_eq!(accept(4, Epoch::new(6, 2), 3), Ok(()));
    assert_eq!(harness.receiver.drops().get(DropReason::EpochStale), 1);
    assert_eq!(harness.receiver.drops().get(DropReason::EpochJump), 1);
}

#[test]
fn catch_up_packets_of_a_new_leader_are_accepted_like_first_transmissions() {
    let mut harness = ReceiverHarness::new(vec![vec![Input::Records(1); 4]], [&[1], &[1]], config(None));
    let mut accept = |flags, epoch, sequence: u64| {
        let body = frame(sequence, FrameKind::Message, WHOLE, &records(sequence, 1));
        let bytes = datagram(flags, session(0), epoch, (sequence, sequence + 1), &body);
        let datagram = PublishedDatagram { line: Line::A, service: 0, bytes: &bytes, ts_recv: UnixNs(0) };
        let events = &mut harness.events;
        harness.receiver.accept(datagram, MonoNs(0), &mut |output| record_event(events, &output))
    };
    let (old, new) = (Epoch::new(5, 1), Epoch::new(6, 2));
    assert_eq!(accept(PacketFlags::default(), old, 1), Ok(()));
    assert_eq!(accept(PacketFlags::RETRANSMISSION, new, 1), Err(DropReason::Duplicate));
    assert_eq!(accept(PacketFlags::RETRANSMISSION, new, 2), Ok(()));
    assert_eq!(accept(PacketFlags::default(), new, 3), Ok(()));
    let delivered: Vec<_> =
        harness.events.iter().filter(|event| matches!(event, ReceiverEvent::Message(..))).cloned().collect();
    assert_eq!(delivered, [ReceiverEvent::Message(0, 1), ReceiverEvent::Message(0, 2), ReceiverEvent::Message(0, 3)]);
}

#[test]
fn foreign_datagrams_are_refused_with_a_reason() {
    let mut harness = ReceiverHarness::new(vec![Vec::new()], [&[1], &[1]], config(None));
    let mut accept = |line, bytes: &[u8]| {
        harness.receiver.accept(
            PublishedDatagram { line, service: 0, bytes, ts_recv: UnixNs(0) },
            MonoNs(0),
            &mut |_| {},
        )
    };
    let sound = datagram(PacketFlags::HEARTBEAT, session(1), Epoch::new(1, 1), (5, 5), &[]);
    let with = |index: usize, value: u8| {
        let mut bytes = sound.clone();
        bytes[index] = value;
        bytes
    };
    assert_eq!(accept(Line::A, &with(6, 9)), Err(DropReason::ChannelUnknown));
    assert_eq!(accept(Line::A, &with(8, 9)), Err(DropReason::ChannelUnknown));
    assert_eq!(accept(Line::RECOVERY, &sound), Err(DropReason::ProtocolMismatch));
    assert_eq!(accept(Line::A, &with(5, 3)), Err(DropReason::ProtocolMismatch));
    assert_eq!(accept(Line::A, &sound), Ok(()));
    // The restart count of an older session.
    assert_eq!(accept(Line::A, &with(32, 0)), Err(DropReason::SessionStale));
}

#[test]
fn a_new_session_waits_until_the_previous_one_is_complete() {
    let sessions = vec![vec![Input::Records(1); 10], vec![Input::Records(1); 10]];
    let mut harness = ReceiverHarness::new(sessions, [&[1], &[1]], config(Some(service())));
    // The last message of the first session is lost on both lines, and so is every heartbeat after it.
    let mut fates = vec![NO_FAULTS; 14];
    fates[9..].fill((true, false, 0));
    harness.publish(&[fates.clone(), fates], usize::MAX, 0);
    let last_heartbeat = *harness.flights.range(..400_000).next_back().unwrap().0;
    harness.flights.remove(&last_heartbeat);
    harness.run();
    let place = |wanted: ReceiverEvent| harness.events.iter().position(|event| *event == wanted);
    assert!(
        place(ReceiverEvent::Message(0, 10)).unwrap() < place(ReceiverEvent::Session(1)).unwrap(),
        "{:?}",
        harness.events
    );
    assert_eq!(harness.check().unwrap().len(), 0);
}

/// Two sessions of ten messages; the second gateway's log has one message per entry. The line delivers `received_count`
/// messages of each session, and not the end of the first session.
fn with_truncated_session(received_count: usize, service: ServiceConfig) -> ReceiverHarness {
    let sessions = vec![vec![Input::Records(1); 10], vec![Input::Records(1); 10]];
    let mut harness = ReceiverHarness::new(sessions, [&[1], &[1]], config(Some(service)));
    let mut fates = vec![NO_FAULTS; 14];
    fates[received_count..].fill((true, false, 0));
    harness.publish(&[fates], usize::MAX, 0);
    let last_heartbeat = *harness.flights.range(..400_000).next_back().unwrap().0;
    harness.flights.remove(&last_heartbeat);
    harness
}

#[test]
fn ranges_missing_in_one_log_are_fetched_from_another() {
    let service = ServiceConfig { service_count: 2, ..service() };
    for held in [[0..4, 0..10], [6..10, 0..10], [0..5, 5..10], [0..0, 0..10]] {
        for log_ranges in [held.clone(), [held[1].clone(), held[0].clone()]] {
            let mut harness = with_truncated_session(2, service);
            harness.service_log_ranges = log_ranges.to_vec();
            harness.run();
            assert_eq!(harness.check().unwrap().len(), 0, "{held:?}: {:?}", harness.events);
        }
    }
    // No service has the third and the fourth message, so a few requests suffice. The first two messages of the second
    // session were received, but ignored while the first session's end was queried.
    let mut harness = with_truncated_session(2, ServiceConfig { attempts_max: 1_000, ..service });
    harness.service_log_ranges = vec![4..10, 5..10];
    harness.run();
    assert_eq!(harness.check().unwrap(), BTreeSet::from([(0, 3), (0, 4), (1, 1), (1, 2), (1, 3), (1, 4)]));
}

/// The leader's log has no file for the last messages of the first session, and the other gateway logs them later.
#[test]
fn a_session_is_left_only_when_a_service_knows_where_it_ended() {
    let service = ServiceConfig { service_count: 2, attempts_max: 40, ..service() };
    let behind = |complete_from_request| {
        let mut harness = with_truncated_session(2, service);
        harness.service_log_ranges = vec![0..6, 0..4];
        harness.complete_from_request = complete_from_request;
        harness.run();
        let incomplete = harness.receiver.channels().next().unwrap().statistics().sessions_incomplete;
        let last_of = |number: u32| {
            let sequence = |event: &ReceiverEvent| match event {
                ReceiverEvent::Message(session, sequence) if *session == number => Some(*sequence),
                _ => None,
            };
            harness.events.iter().filter_map(sequence).next_back()
        };
        (last_of(0), last_of(1), incomplete)
    };
    assert_eq!(behind(20), (Some(10), Some(10), 0));
    // No service gets there: the receiver goes on after its attempts, and says so.
    assert_eq!(behind(usize::MAX), (Some(6), Some(6), 1));
}

#[test]
fn a_silent_service_is_skipped_if_another_answers() {
    let service = ServiceConfig { service_count: 2, attempts_max: 1_000, unanswered_rounds_max: 2, ..service() };
    for silent in 0..2 {
        let mut harness = with_truncated_session(8, service);
        harness.service_log_ranges = vec![0..10, 0..10];
        harness.answers = vec![silent != 0, silent != 1];
        harness.run();
        assert_eq!(harness.check().unwrap().len(), 0, "{:?}", harness.events);
        assert!(harness.requests < 40, "{} requests", harness.requests);
        let statistics = harness.receiver.channels().next().unwrap().statistics();
        assert_eq!((statistics.definitions, statistics.definitions_incomplete), (DEFINITIONS, 1));
    }
}

#[test]
fn a_session_with_a_pending_start_query_is_reported_before_a_newer_one() {
    // The second session is observed from its third message on, and the third session during the query for the second
    // one's start.
    let sessions = vec![vec![Input::Records(1); 10]; 3];
    let message = |number: u32, sequence: u64| {
        let body = frame(sequence, FrameKind::Message, WHOLE, &records(sequence, 1));
        datagram(PacketFlags::default(), session(number), Epoch::new(9, 1), (sequence, sequence + 1), &body)
    };
    let arrivals = [(0, message(0, 1)), (1, message(0, 2)), (40_000, message(1, 3)), (40_001, message(2, 1))];
    let mut harness = ReceiverHarness::new(sessions, [&[1], &[1]], config(Some(service())));
    harness.flights = arrivals.into_iter().map(|(at, bytes)| (at, vec![(Line::A, 0, bytes)])).collect();
    harness.flights.insert(90_000, vec![(Line::A, 0, message(2, 10))]);
    harness.run();
    let messages = harness.events.iter().filter(|event| matches!(event, ReceiverEvent::Message(1, _))).count();
    assert_eq!((messages, harness.check().unwrap().len()), (10, 0), "{:?}", harness.events);

    // No service answers: the received part is reported as lost.
    let sessions = vec![vec![Input::Records(1); 10]; 3];
    let mut harness = ReceiverHarness::new(sessions, [&[1], &[1]], config(Some(service())));
    harness.answers = vec![false];
    let arrivals = [(0, message(1, 3)), (1, message(1, 4)), (2, message(2, 1)), (400_000, message(2, 2))];
    harness.flights = arrivals.into_iter().map(|(at, bytes)| (at, vec![(Line::A, 0, bytes)])).collect();
    harness.run();
    assert_eq!(harness.events[..2], [ReceiverEvent::Session(1), ReceiverEvent::Lost(3, 5)], "{:?}", harness.events);
}

#[test]
fn a_restarted_session_starts_with_its_first_message() {
    // Its first three packets are lost, and there is no service.
    let sessions = vec![vec![Input::Records(1); 10], vec![Input::Records(1); 10]];
    let mut harness = ReceiverHarness::new(sessions, [&[1], &[1]], config(None));
    harness.publish(&[vec![NO_FAULTS]], usize::MAX, 0);
    let second = *harness.flights.range(500_000..).next().unwrap().0;
    harness.flights.retain(|at, _| !(second..second + 300).contains(at));
    harness.run();
    assert_eq!(harness.check().unwrap(), BTreeSet::from([(1, 1), (1, 2), (1, 3)]));
}

#[test]
fn completed_sessions_are_reported_before_the_first_received_one() {
    let sessions = vec![vec![Input::Records(1); 10]; 3];
    for (start, expected) in [(StartFrom::OldestOfDay, vec![0, 1, 2]), (StartFrom::OldestOfSession, vec![2])] {
        let mut harness =
            ReceiverHarness::new(sessions.clone(), [&[1], &[1]], ReceiverConfig { start, ..config(Some(service())) });
        // From the third session's third packet on.
        harness.publish(&[vec![NO_FAULTS]], usize::MAX, 1_003_000);
        harness.run();
        assert_eq!(harness.check().unwrap().len(), 0);
        let begun = harness.events.iter().filter_map(|event| match event {
            ReceiverEvent::Session(number) => Some(*number),
            _ => None,
        });
        assert_eq!(begun.collect::<Vec<_>>(), expected);
        let messages = harness.events.iter().filter(|event| matches!(event, ReceiverEvent::Message(..))).count();
        assert_eq!(messages, 10 * expected.len());
    }
}

#[test]
fn a_session_received_only_from_the_log_is_reported_in_order() {
    let sessions = vec![vec![Input::Records(1); 10]; 3];
    let mut harness = ReceiverHarness::new(sessions, [&[1], &[1]], config(Some(service())));
    harness.publish(&[vec![NO_FAULTS]], usize::MAX, 0);
    harness.flights.retain(|at, _| !(500_000..1_000_000).contains(at));
    harness.run();
    assert_eq!(harness.check().unwrap().len(), 0);
    let messages: Vec<_> =
        harness.events.iter().filter(|event| matches!(event, ReceiverEvent::Message(..))).cloned().collect();
    let expected = (0..3).flat_map(|number| (1..=10).map(move |sequence| ReceiverEvent::Message(number, sequence)));
    assert_eq!(messages, expected.collect::<Vec<_>>());
}

#[test]
fn a_service_without_sessions_does_not_delay_the_current_session() {
    let sessions = vec![vec![Input::Records(1); 10]; 3];
    let config = ReceiverConfig { start: StartFrom::OldestOfDay, ..config(Some(service())) };
    let mut harness = ReceiverHarness::new(sessions, [&[1], &[1]], config);
    (harness.is_late_start, harness.answers) = (true, vec![false]);
    harness.publish(&[vec![NO_FAULTS]], usize::MAX, 1_002_900);
    harness.run();
    assert_eq!(harness.events.first(), Some(&ReceiverEvent::Session(2)));
    assert_eq!(harness.receiver.channels().next().unwrap().statistics().starts_unanswered, 3);
}

#[test]
fn the_checker_detects_a_faulty_receiver() {
    let run = |spoil: fn(&mut Vec<ReceiverEvent>)| {
        let mut harness = ReceiverHarness::new(vec![vec![Input::Records(1); 9]], [&[2], &[3]], config(None));
        harness.publish(&[vec![NO_FAULTS]], 2, 0);
        harness.run();
        spoil(&mut harness.events);
        harness.check().map(|_| ())
    };
    assert_eq!(run(|_| {}), Ok(()));
    assert!(run(|events| events.swap(3, 4)).is_err());
    assert!(run(|events| _ = events.remove(3)).is_err());
    assert!(run(|events| events.insert(3, events[3].clone())).is_err());
    assert!(run(|events| events.truncate(4)).is_err());
    assert!(run(|events| events.push(ReceiverEvent::Session(0))).is_err());
    assert!(run(|events| events[3] = ReceiverEvent::Gap(3, 4)).is_err());
}
