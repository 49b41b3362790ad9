//! A log delivers what the packets made from it deliver to a receiver. What it lacks is reported with its bounds.

use proptest::prelude::*;

use super::*;
use crate::{
    published::{
        packet::count_frames,
        receiver::{
            Item, PublishedDatagram, Receiver, ReceiverConfig,
            tests::{BODY_BYTES_MAX, CHANNEL, GROUP, Input, datagram, log_of, session},
        },
    },
    time::MonoNs,
};

/// An entry as the gateway commits it.
#[derive(Clone, Debug)]
struct Written {
    restart: u32,
    first: u64,
    next: u64,
    flags: PacketFlags,
    body: Vec<u8>,
}

/// Sessions of one day, each with its end.
fn written(sessions: &[Vec<Input>], cuts: &[u64]) -> Vec<Written> {
    let mut log = Vec::new();
    for (restart, inputs) in (0..).zip(sessions) {
        let entries = log_of(inputs, cuts, BODY_BYTES_MAX).into_iter();
        log.extend(entries.map(|entry| {
            let (first, next, body, flags) = (entry.first, entry.next, entry.body, PacketFlags::default());
            Written { restart, first, next, flags, body }
        }));
        let end = inputs.len() as u64 + 1;
        let flags = PacketFlags::HEARTBEAT.with(PacketFlags::END_OF_SESSION);
        log.push(Written { restart, first: end, next: end, flags, body: Vec::new() });
    }
    log
}

fn accept(receiver: &mut EntryReceiver, entry: &Written, is_after_loss: bool, items: &mut Vec<String>) {
    let entry = LogEntry {
        session: session(entry.restart).to_bytes(),
        first: entry.first,
        next: entry.next,
        frame_count: count_frames(&entry.body).unwrap(),
        flags: entry.flags.0.into(),
        payload: &entry.body,
        is_after_loss,
    };
    let _counted = receiver.accept(&entry, &mut |output| items.push(text(&output)));
}

fn text(output: &Output<'_>) -> String {
    assert_eq!(output.channel, CHANNEL);
    format!("{} {:?}", output.session.restart, output.item)
}

/// What the packets of these entries deliver, on one line without loss.
fn received(log: &[Written]) -> Vec<String> {
    let mut receiver = Receiver::new(ReceiverConfig { group: GROUP, start_window_ns: 0, ..ReceiverConfig::default() });
    let mut items = Vec::new();
    for (number, entry) in (1..).zip(log) {
        let range = (entry.first, entry.next);
        let bytes = datagram(entry.flags, session(entry.restart), Epoch::new(1, 1), range, &entry.body);
        let now = MonoNs(number * 1_000_000_000);
        let datagram = PublishedDatagram { line: Line::A, service: 0, bytes: &bytes, ts_recv: UnixNs(now.0) };
        receiver.on_deadline(now, &mut |output| items.push(text(&output)));
        let _counted = receiver.accept(datagram, now, &mut |output| items.push(text(&output)));
    }
    receiver.finish(&mut |output| items.push(text(&output)));
    items
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let input = prop_oneof![
        3 => (1_u16..4).prop_map(Input::Records),
        1 => (8_u16..20).prop_map(Input::Records),
        1 => Just(Input::Silent),
        1 => Just(Input::Missing),
    ];
    prop::collection::vec(input, 0..40)
}

proptest! {
    #[test]
    fn a_log_delivers_what_its_packets_deliver(
        sessions in prop::collection::vec(inputs(), 1..4),
        cuts in prop::collection::vec(1_u64..6, 1..4),
    ) {
        let log = written(&sessions, &cuts);
        let (mut receiver, mut items) = (EntryReceiver::new(CHANNEL, 1 << 16), Vec::new());
        log.iter().for_each(|entry| accept(&mut receiver, entry, false, &mut items));
        prop_assert_eq!(items, received(&log));
        prop_assert_eq!(receiver.drops().unexpected(), 0);
    }

    /// Each message is delivered, declared missing by the gateway, or reported as lost, once, whatever entries the reader missed.
    #[test]
    fn what_a_reader_missed_is_reported_once_with_its_bounds(
        sessions in prop::collection::vec(inputs(), 1..3),
        cuts in prop::collection::vec(1_u64..6, 1..4),
        missed in prop::collection::vec(any::<bool>(), 1..20),
        stops_at in 0_usize..60,
    ) {
        let log = written(&sessions, &cuts);
        let mut receiver = EntryReceiver::new(CHANNEL, 1 << 16);
        let mut seen = vec![Vec::new(); sessions.len()];
        let mut is_after_loss = false;
        for (index, entry) in log.iter().enumerate() {
            // Each session's last entry arrives, so that its end is known.
            if missed[index % missed.len()] && !entry.flags.contains(PacketFlags::END_OF_SESSION) {
                is_after_loss = true;
                continue;
            }
            if index == stops_at && let Some(position) = receiver.position() {
                receiver = EntryReceiver::new(CHANNEL, 1 << 16);
                receiver.resume(position);
            }
            let checked = LogEntry {
                session: session(entry.restart).to_bytes(),
                first: entry.first,
                next: entry.next,
                frame_count: count_frames(&entry.body).unwrap(),
                flags: entry.flags.0.into(),
                payload: &entry.body,
                is_after_loss,
            };
            is_after_loss = false;
            let _counted = receiver.accept(&checked, &mut |output| {
                let seen = &mut seen[output.session.restart as usize];
                match output.item {
                    Item::Message { header, .. } => seen.push(header.sequence.get()),
                    Item::Gap(gap) | Item::Lost(gap) => seen.extend(gap.first().0..gap.next().0),
                    _ => {}
                }
            });
        }
        for (restart, (seen, inputs)) in seen.iter().zip(&sessions).enumerate() {
            let in_order = seen.windows(2).all(|pair| pair[0] < pair[1]);
            prop_assert!(in_order, "{:?}", seen);
            let begin = if restart == 0 { seen.first().copied().unwrap_or(u64::MAX) } else { 1 };
            let expected = (1..).zip(inputs).filter(|(_, input)| **input != Input::Silent).map(|(sequence, _)| sequence);
            let missing: Vec<u64> = expected.filter(|sequence| *sequence >= begin && !seen.contains(sequence)).collect();
            prop_assert!(missing.is_empty(), "{} {:?}", restart, missing);
        }
    }

    #[test]
    fn no_entry_makes_a_receiver_panic(
        payload in prop::collection::vec(any::<u8>(), 0..300),
        header in any::<(u64, u64, u16, u16)>(),
    ) {
        let (first, next, frame_count, flags) = header;
        let mut receiver = EntryReceiver::new(CHANNEL, 1 << 10);
        for (first, next) in [(first, next), (first % 100, first % 100 + next % 100)] {
            for flags in [flags, flags & 0xf00f] {
                let session = session(0).to_bytes();
                let entry =
                    LogEntry { session, first, next, frame_count, flags, payload: &payload, is_after_loss: false };
                let _refused = receiver.accept(&entry, &mut |_| {});
            }
        }
    }
}

#[test]
fn a_resumed_stream_begins_with_the_named_message_and_no_session_item() {
    let log = written(&[vec![Input::Records(1); 6]], &[1]);
    let mut receiver = EntryReceiver::new(CHANNEL, 1 << 16);
    receiver.resume(StreamPosition::at(session(0), Sequence(4)));
    let mut items = Vec::new();
    log.iter().for_each(|entry| accept(&mut receiver, entry, false, &mut items));
    let begins: Vec<_> = items.iter().map(|item| item.split(' ').nth(1).unwrap()).collect();
    assert_eq!(begins, ["Message", "Message", "Message", "EndOfSession"]);
    assert_eq!(receiver.drops().get(DropReason::Duplicate), 3);
}

#[test]
fn a_session_whose_beginning_the_reader_missed_has_lost_it() {
    let log = written(&[vec![Input::Records(1); 2], vec![Input::Records(1); 3]], &[1]);
    let mut receiver = EntryReceiver::new(CHANNEL, 1 << 16);
    let mut items = Vec::new();
    accept(&mut receiver, &log[0], false, &mut items);
    accept(&mut receiver, &log[5], true, &mut items);
    assert_eq!(items[2], "1 Session");
    assert!(items[3].starts_with("1 Lost(") && items[4].starts_with("1 Message"), "{items:?}");
}
