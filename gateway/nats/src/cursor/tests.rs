use std::fs;

use dbn::{FlagSet, MboMsg, RecordHeader, StatusMsg, enums::rtype};
use mdgw_publog::{LogOptions, Writer, open};
use mdgw_wire::{
    channel_state::ChannelState,
    frame::{FrameMeta, StateBody},
    identity::Sequence,
    time::{TradingDate, UnixNs},
};
use tempfile::TempDir;
use zerocopy::IntoBytes as _;

use super::*;

/// The log of a channel.
struct Harness {
    directory: TempDir,
    writer: Writer,
    now: u64,
}

impl Harness {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(directory.path(), 1) };
        Self { writer: open(options, 0).unwrap().writer, directory, now: 1 }
    }

    fn cursor(&self, begin: Option<ChannelEnd>) -> Cursor {
        let channel = SinkChannel {
            id: ChannelId(1),
            feed: Feed::NasdaqItch,
            schemas: SchemaSet::MBO.with(SchemaSet::STATUS),
            log_directory: self.directory.path().to_owned(),
            stream: "mdgw-XNAS-ITCH".to_owned(),
            subject_prefix: "mdgw".to_owned(),
        };
        Cursor::open(channel, begin).unwrap()
    }

    fn commit(&mut self, session: Session, [first, next]: [u64; 2], frame: &[u8], flags: PacketFlags) {
        self.now += 1;
        self.writer.begin(session.to_bytes(), first);
        assert!(self.writer.append(frame));
        let _ = self.writer.commit(next, 1, u16::from(flags.0), self.now).unwrap();
    }

    /// A message of whole records.
    fn message(&mut self, session: Session, sequence: u64, records: &[Vec<u8>]) {
        self.part(session, sequence, 0, FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART), records);
    }

    fn part(&mut self, session: Session, sequence: u64, part: u16, flags: FrameFlags, records: &[Vec<u8>]) {
        let body = records.concat();
        let count = u16::try_from(records.len()).unwrap();
        let mut header = FrameMeta::message(Sequence(sequence), UnixNs(1_000 + sequence), 0).header(count, &body);
        (header.part, header.flags) = (part.into(), flags.0);
        let next = if flags.contains(FrameFlags::LAST_PART) { sequence + 1 } else { sequence };
        let frame = [header.as_bytes(), &body].concat();
        self.commit(session, [sequence, next], &frame, PacketFlags::default());
    }

    fn order(&mut self, session: Session, sequence: u64) {
        self.message(session, sequence, &[order(1)]);
    }

    fn gap(&mut self, session: Session, first: u64, next: u64) {
        let body = GapBody { first: first.into(), next: next.into() };
        let meta = FrameMeta { kind: FrameKind::Gap, ..FrameMeta::message(Sequence(first), UnixNs(0), 0) };
        let frame = [meta.header(0, body.as_bytes()).as_bytes(), body.as_bytes()].concat();
        self.commit(session, [first, next], &frame, PacketFlags::default());
    }

    fn end(&mut self, session: Session, next: u64) {
        let body = StateBody::of(ChannelState::Ended);
        let header = FrameMeta::state(Sequence(next)).header(0, body.as_bytes());
        let frame = [header.as_bytes(), body.as_bytes()].concat();
        self.commit(session, [next, next], &frame, PacketFlags::END_OF_SESSION);
    }
}

fn order(instrument: u32) -> Vec<u8> {
    let order = MboMsg {
        hd: RecordHeader::new::<MboMsg>(rtype::MBO, 2, instrument, 5),
        flags: FlagSet::new(dbn::flags::LAST),
        ..MboMsg::default()
    };
    order.as_ref().to_vec()
}

fn status(instrument: u32) -> Vec<u8> {
    let status =
        StatusMsg { hd: RecordHeader::new::<StatusMsg>(rtype::STATUS, 2, instrument, 5), ..StatusMsg::default() };
    status.as_ref().to_vec()
}

fn day(day: u32) -> Session {
    Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(20_261_100 + day).unwrap(), restart: 0 }
}

/// All messages that the cursor has, without what is common to their ids.
fn all(cursor: &mut Cursor) -> Vec<String> {
    let mut ids = Vec::new();
    while cursor.peek().is_some() {
        let message = cursor.pop().unwrap();
        ids.push(message.id.strip_prefix("XNAS.ITCH/1/2026-11-").unwrap().to_owned());
    }
    ids
}

#[test]
fn consecutive_records_of_one_instrument_and_schema_are_one_message() {
    let mut harness = Harness::new();
    harness.message(day(27), 1, &[order(1), order(1), status(1), order(2), order(1)]);
    let mut cursor = harness.cursor(None);
    let mut messages = Vec::new();
    while cursor.peek().is_some() {
        messages.extend(cursor.pop());
    }
    let parts =
        messages.iter().map(|message| (message.subject.as_str(), message.name.first.index, message.payload.len()));
    assert_eq!(
        parts.collect::<Vec<_>>(),
        [
            ("mdgw.XNAS.ITCH.mbo.%i1", 0, 2 * size_of::<MboMsg>()),
            ("mdgw.XNAS.ITCH.status.%i1", 2, size_of::<StatusMsg>()),
            ("mdgw.XNAS.ITCH.mbo.%i2", 3, size_of::<MboMsg>()),
            ("mdgw.XNAS.ITCH.mbo.%i1", 4, size_of::<MboMsg>()),
        ]
    );
    assert!(messages.iter().all(|message| message.ts_recv == Some(1_001)));
    assert_eq!(cursor.unknown_symbols(), 4);
    // Each of their ends is a place to go on from, in the middle of the frame too.
    for (index, message) in messages.iter().enumerate() {
        let mut cursor = harness.cursor(Some(message.end));
        assert_eq!(cursor.peek().map(|next| next.id.as_str()), messages.get(index + 1).map(|next| next.id.as_str()));
    }
}

#[test]
fn gaps_holes_and_ends_have_messages_of_their_own() {
    let mut harness = Harness::new();
    harness.order(day(27), 3);
    harness.gap(day(27), 4, 6);
    harness.order(day(27), 6);
    harness.order(day(27), 8);
    harness.end(day(27), 9);
    harness.end(day(27), 9);
    harness.order(day(28), 1);
    let expected = [
        "27.0/1/hole/3",
        "27.0/3/0/0",
        "27.0/4/gap/6",
        "27.0/6/0/0",
        "27.0/7/hole/8",
        "27.0/8/0/0",
        "27.0/9/end",
        "28.0/1/0/0",
    ];
    assert_eq!(all(&mut harness.cursor(None)), expected);
    // From each message on, another cursor makes the same.
    let mut cursor = harness.cursor(None);
    let mut follower = harness.cursor(None);
    for behind in 1..expected.len() {
        cursor.peek().unwrap();
        let end = cursor.pop().unwrap().end;
        assert_eq!(all(&mut harness.cursor(Some(end))), expected[behind..]);
        follower.move_to(Some(end)).unwrap();
        assert_eq!(follower.peek().unwrap().id, cursor.peek().unwrap().id);
    }
    // And backward.
    let begin = harness.cursor(None).maker.at;
    assert_eq!(begin, None);
    follower.move_to(None).unwrap();
    assert_eq!(all(&mut follower), expected);
}

#[test]
fn the_parts_of_a_message_have_names_of_their_own_and_none_is_missing_silently() {
    let mut harness = Harness::new();
    harness.part(day(27), 1, 0, FrameFlags::FIRST_PART, &[order(1)]);
    harness.part(day(27), 1, 1, FrameFlags::LAST_PART, &[order(1)]);
    harness.part(day(27), 2, 0, FrameFlags::FIRST_PART, &[order(1)]);
    harness.order(day(27), 3);
    harness.part(day(27), 4, 1, FrameFlags::LAST_PART, &[order(1)]);
    harness.order(day(27), 5);
    let made = all(&mut harness.cursor(None));
    assert_eq!(
        made,
        ["27.0/1/0/0", "27.0/1/1/0", "27.0/2/0/0", "27.0/2/hole/3", "27.0/3/0/0", "27.0/4/hole/5", "27.0/5/0/0"]
    );
}

#[test]
fn a_session_that_ended_is_no_hole_and_one_that_did_not_is() {
    let mut harness = Harness::new();
    harness.order(day(28), 1);
    for (has_ended, expected) in
        [(true, vec!["28.0/1/0/0"]), (false, vec!["27.0/7/hole/18446744073709551615", "28.0/1/0/0"])]
    {
        let end = ChannelEnd { place: Place::message(day(27), 7), has_ended, ts_recv: 0 };
        assert_eq!(all(&mut harness.cursor(Some(end))), expected);
    }
}

/// The other gateway's sink has written a part of what is a gap here.
#[test]
fn a_gap_is_cut_where_the_stream_ends_within_it() {
    let mut harness = Harness::new();
    harness.order(day(27), 1);
    harness.gap(day(27), 2, 9);
    let mut cursor = harness.cursor(None);
    cursor.peek().unwrap();
    cursor.pop().unwrap();
    cursor.peek().unwrap();
    cursor.move_to(Some(ChannelEnd { place: Place::message(day(27), 5), has_ended: false, ts_recv: 0 })).unwrap();
    assert_eq!(all(&mut cursor), ["27.0/5/gap/9"]);
    // What the stream has is ahead of this log.
    cursor.move_to(Some(ChannelEnd { place: Place::message(day(27), 12), has_ended: false, ts_recv: 0 })).unwrap();
    (9..14).for_each(|sequence| harness.order(day(27), sequence));
    assert_eq!(all(&mut cursor), ["27.0/12/0/0", "27.0/13/0/0"]);
}

#[test]
fn receive_times_do_not_run_backwards_behind_another_gateways() {
    let mut harness = Harness::new();
    harness.order(day(27), 1);
    harness.order(day(27), 2);
    let end = ChannelEnd { place: Place::message(day(27), 2), has_ended: false, ts_recv: 5_000 };
    let mut cursor = harness.cursor(Some(end));
    assert_eq!(cursor.peek().unwrap().ts_recv, Some(5_000));
}

#[test]
fn a_log_that_was_replaced_is_read_from_its_beginning() {
    let mut harness = Harness::new();
    harness.order(day(27), 1);
    let mut cursor = harness.cursor(None);
    assert_eq!(all(&mut cursor), ["27.0/1/0/0"]);
    for entry in fs::read_dir(harness.directory.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(harness.directory.path(), 1) };
    harness.writer = open(options, 0).unwrap().writer;
    harness.order(day(27), 2);
    assert_eq!(all(&mut cursor), Vec::<String>::new());
    cursor.reopen_if_replaced().unwrap();
    assert_eq!(all(&mut cursor), ["27.0/2/0/0"]);
}
