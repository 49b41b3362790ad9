use std::path::Path;

use mdgw_feeds::{
    frame::FRAME_HEADER_BYTES,
    identity::{ChannelId, Feed},
    published::receiver::{EntryReceiver, LogEntry},
    time::TradingDate,
};
use mdgw_publog::Reader;

use super::*;

const NOW: UnixNs = UnixNs(1_700_000_000_000_000_000);

fn options(directory: &Path) -> LogOptions {
    LogOptions { segment_bytes: 256 << 10, private_bytes: 64 << 10, ..LogOptions::new(directory, 1) }
}

fn session(restart: u32) -> Session {
    Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart }
}

fn records(count: usize) -> Vec<u8> {
    let mut record = [0; 368];
    record[0] = 92;
    record.repeat(count)
}

/// An entry: session, range, flags, frames.
type Written = (u32, u64, u64, u16, Vec<u8>);

fn entries(directory: &Path) -> Vec<Written> {
    let mut reader = Reader::open(directory, 1).unwrap();
    let mut entries = Vec::new();
    while let Some(entry) = reader.next() {
        let restart = Session::from_bytes(entry.session).unwrap().restart;
        entries.push((restart, entry.first, entry.next, entry.flags, entry.payload.to_vec()));
    }
    entries
}

/// A gateway's log, of two sessions: messages with and without output, a message in parts, a gap, a failed channel, an end.
fn gateway_log(directory: &Path) {
    let OpenedLog { writer, .. } = mdgw_publog::open(options(directory), NOW.0).unwrap();
    let mut sink = LogSink::new(writer);
    sink.begin(NOW);
    let message = |sequence| FrameMeta::message(Sequence(sequence), UnixNs(NOW.0 + sequence), 7);
    sink.session(session(0), Sequence(1));
    sink.covered_through(Sequence(3));
    sink.frame(&message(3), 1, &records(1));
    sink.flush();
    sink.frame(&message(4), 8, &records(8));
    sink.covered_through(Sequence(6));
    let gap = GapBody { first: 6.into(), next: 9.into() };
    sink.frame(&FrameMeta::control(FrameKind::Gap, Sequence(6), Sequence(9)), 0, gap.as_bytes());
    sink.frame(&FrameMeta { flags: FrameFlags::SUSPECT, ..message(9) }, 0, &[]);
    sink.flush();
    sink.frame(&FrameMeta::state(Sequence(10)), 0, StateBody::of(ChannelState::Stale).as_bytes());
    sink.flush();
    sink.covered_through(Sequence(12));
    sink.end_of_session();
    sink.session(session(1), Sequence(1));
    sink.frame(&message(1), 1, &records(1));
    sink.flush();
}

/// Passes the entries with these indices on as a receiver delivers them.
fn deliver(receiver: &mut EntryReceiver, entries: &[Written], mirror: &mut MirroredLog) {
    for (restart, first, next, flags, payload) in entries {
        let frame_count = u16::try_from(frames(payload).len()).unwrap();
        let session = session(*restart).to_bytes();
        let (first, next, flags) = (*first, *next, *flags);
        let entry = LogEntry { session, first, next, frame_count, flags, payload, is_after_loss: false };
        receiver.accept(&entry, &mut |output| mirror.accept(&output)).unwrap();
        mirror.flush();
    }
}

fn frames(mut payload: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while payload.len() >= FRAME_HEADER_BYTES {
        let bytes = FRAME_HEADER_BYTES + usize::from(u16::from_le_bytes([payload[20], payload[21]]));
        let (frame, behind) = payload.split_at(bytes);
        frames.push(frame);
        payload = behind;
    }
    frames
}

#[test]
fn entries_are_those_of_the_gateways_log() {
    let [theirs, ours] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    gateway_log(theirs.path());
    let expected = entries(theirs.path());
    let mut mirror = MirroredLog::open_with(options(ours.path())).unwrap();
    deliver(&mut EntryReceiver::new(ChannelId(1), 1 << 16), &expected, &mut mirror);
    let written = entries(ours.path());
    // The receiver has the first message's range from the entry, and the parts of the second message as one.
    assert_eq!(written, expected);
    assert!(expected.len() >= 7, "{expected:?}");
}

/// A killed writer leaves parts without the last one. The receiver delivers the message whole, and its parts are written again.
#[test]
fn a_restarted_mirror_goes_on_behind_its_log_and_readers_get_each_message_once() {
    let [theirs, ours] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    gateway_log(theirs.path());
    let expected = entries(theirs.path());
    for stops_at in 0..expected.len() {
        let directory = ours.path().join(stops_at.to_string());
        // A log with the entries of the gateway up to there, parts included.
        let OpenedLog { mut writer, .. } = mdgw_publog::open(options(&directory), NOW.0).unwrap();
        for (restart, first, next, flags, payload) in &expected[..stops_at] {
            writer.begin(session(*restart).to_bytes(), *first);
            assert!(writer.append(payload));
            writer.commit(*next, u16::try_from(frames(payload).len()).unwrap(), *flags, NOW.0);
        }
        drop(writer);
        let mut mirror = MirroredLog::open_with(options(&directory)).unwrap();
        let position = mirror.position();
        assert_eq!(position.is_some(), stops_at > 0);
        let mut receiver = EntryReceiver::new(ChannelId(1), 1 << 16);
        if let Some(position) = position {
            receiver.resume(position);
        }
        for entry in &expected {
            let is_before = position.is_some_and(|position| {
                (session(entry.0), entry.2) < (position.session, position.sequence.0)
                    || (session(entry.0), entry.2) == (position.session, position.sequence.0) && entry.1 < entry.2
            });
            if !is_before {
                deliver(&mut receiver, std::slice::from_ref(entry), &mut mirror);
            }
        }
        assert_eq!(delivered(&entries(&directory)), delivered(&expected), "stopped at {stops_at}");
    }
}

/// What a reader of the log gets.
fn delivered(entries: &[Written]) -> Vec<String> {
    let mut receiver = EntryReceiver::new(ChannelId(1), 1 << 16);
    let mut items = Vec::new();
    for (restart, first, next, flags, payload) in entries {
        let frame_count = u16::try_from(frames(payload).len()).unwrap();
        let session = session(*restart).to_bytes();
        let (first, next, flags) = (*first, *next, *flags);
        let entry = LogEntry { session, first, next, frame_count, flags, payload, is_after_loss: false };
        // Parts that come again are refused as duplicates.
        let _counted = receiver.accept(&entry, &mut |output| items.push(format!("{:?}", output.item)));
    }
    items
}

#[test]
fn what_the_mirror_lost_is_a_hole() {
    let [theirs, ours] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    gateway_log(theirs.path());
    let mut expected = entries(theirs.path());
    // The second part of the message.
    let lost = expected.iter().position(|entry| (entry.1, entry.2) == (4, 4)).unwrap() + 1;
    expected.remove(lost);
    let mut mirror = MirroredLog::open_with(options(ours.path())).unwrap();
    deliver(&mut EntryReceiver::new(ChannelId(1), 1 << 16), &expected, &mut mirror);
    let ranges: Vec<_> = entries(ours.path()).iter().map(|entry| (entry.0, entry.1, entry.2)).collect();
    assert_eq!(ranges[..2], [(0, 1, 4), (0, 5, 10)], "{ranges:?}");
    let items = delivered(&entries(ours.path()));
    assert!(items.iter().any(|item| item.starts_with("Lost(")), "{items:?}");
}

#[test]
fn messages_without_output_are_covered_as_by_a_heartbeat() {
    let [theirs, ours] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    gateway_log(theirs.path());
    let mut mirror = MirroredLog::open_with(options(ours.path())).unwrap();
    deliver(&mut EntryReceiver::new(ChannelId(1), 1 << 16), &entries(theirs.path()), &mut mirror);
    mirror.cover_through(session(0), Sequence(99));
    for _ in 0..2 {
        mirror.cover_through(session(1), Sequence(7));
    }
    let last = entries(ours.path()).pop().unwrap();
    let heartbeat = u16::from(PacketFlags::HEARTBEAT.0);
    assert_eq!(last, (1, 2, 7, heartbeat, Vec::new()));
    assert_eq!(mirror.position(), Some(StreamPosition::at(session(1), Sequence(7))));
}

#[test]
fn a_log_has_one_writer() {
    let directory = tempfile::tempdir().unwrap();
    let first = MirroredLog::open_with(options(directory.path())).unwrap();
    let refused = MirroredLog::open_with(options(directory.path())).unwrap_err().to_string();
    assert!(refused.ends_with("already has a writer: a gateway, or `mdgw mirror`"), "{refused}");
    drop(first);
    assert!(MirroredLog::open_with(options(directory.path())).is_ok());
}
