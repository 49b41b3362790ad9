use dbn::{FlagSet, MboMsg, RecordHeader, enums::rtype};
use mdgw_feeds::channel::SchemaSet;
use mdgw_publog::{LogOptions, Writer, open};
use mdgw_wire::{
    frame::{FrameFlags, FrameKind, FrameMeta, GapBody},
    identity::{ChannelId, Feed, Sequence, Session},
    published::packet::PacketFlags,
    time::{TradingDate, UnixNs},
};
use tempfile::TempDir;
use zerocopy::IntoBytes as _;

use super::*;
use crate::{
    names::Missing,
    records::{JournalRecords, NamedRecord},
};

/// The log of a channel, and the folder of its journals.
struct Harness {
    directory: TempDir,
    writer: Writer,
    now: u64,
}

impl Harness {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        fs::create_dir(&log).unwrap();
        let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(&log, 1) };
        Self { writer: open(options, 0).unwrap().writer, directory, now: 1 }
    }

    /// A log that begins anew, as after a restart of the host.
    fn lose_log(&mut self) {
        let log = self.directory.path().join("log");
        fs::remove_dir_all(&log).unwrap();
        fs::create_dir(&log).unwrap();
        let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(&log, 1) };
        self.writer = open(options, 0).unwrap().writer;
    }

    fn journal(&self) -> Journal {
        let channel = JournalChannel {
            id: ChannelId(1),
            feed: Feed::NasdaqItch,
            schemas: SchemaSet::MBO,
            log_directory: self.directory.path().join("log"),
            instruments_max: 10,
            symbols: None,
        };
        Journal::start(JournalConfig {
            directory: self.directory.path().join("journal"),
            channels: vec![channel],
            compression: Compression::None,
            flush_interval: Duration::ZERO,
            retention_days: 0,
            retention_bytes: 0,
            free_bytes_min: 0,
        })
        .unwrap()
    }

    /// Appends an entry with one frame.
    fn entry(&mut self, session: Session, [first, next]: [u64; 2], meta: FrameMeta, body: &[u8], flags: PacketFlags) {
        self.now += 1;
        let count = u16::from(meta.kind == FrameKind::Message);
        self.writer.begin(session.to_bytes(), first);
        assert!(self.writer.append(meta.header(count, body).as_bytes()) && self.writer.append(body));
        let _ = self.writer.commit(next, 1, u16::from(flags.0), self.now).unwrap();
    }

    fn order(&mut self, session: Session, sequence: u64) {
        self.part(session, sequence, 0, FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART));
    }

    fn part(&mut self, session: Session, sequence: u64, part: u16, flags: FrameFlags) {
        self.now += 1;
        let order = MboMsg {
            hd: RecordHeader::new::<MboMsg>(rtype::MBO, 2, 5, sequence),
            order_id: sequence,
            flags: FlagSet::new(dbn::flags::LAST),
            ..MboMsg::default()
        };
        let mut header = FrameMeta::message(Sequence(sequence), UnixNs(sequence), 0).header(1, order.as_ref());
        (header.part, header.flags) = (part.into(), flags.0);
        let next = if flags.contains(FrameFlags::LAST_PART) { sequence + 1 } else { sequence };
        self.writer.begin(session.to_bytes(), sequence);
        assert!(self.writer.append(header.as_bytes()) && self.writer.append(order.as_ref()));
        let _ = self.writer.commit(next, 1, 0, self.now).unwrap();
    }

    fn end(&mut self, session: Session, next: u64) {
        let meta = FrameMeta::state(Sequence(next));
        let body = mdgw_wire::frame::StateBody::of(mdgw_wire::channel_state::ChannelState::Ended);
        self.entry(session, [next, next], meta, body.as_bytes(), PacketFlags::END_OF_SESSION);
    }

    /// What a journal holds: sequences, `gap` and `hole` with their ranges.
    fn content(&self, name: &str) -> String {
        let path = self.directory.path().join("journal/XNAS.ITCH").join(name);
        let mut records = JournalRecords::open(&path).unwrap();
        let mut text = Vec::new();
        while let Some(item) = records.next().unwrap() {
            text.push(match item {
                NamedRecord::Record { sequence, part: 0, .. } => sequence.to_string(),
                NamedRecord::Record { sequence, part, .. } => format!("{sequence}.{part}"),
                NamedRecord::Gap(Missing { first, count, .. }) => format!("gap {first}+{count}"),
                NamedRecord::Hole(Missing { first, count, .. }) => format!("hole {first}+{count}"),
                NamedRecord::Symbol(..) | NamedRecord::Position(..) => continue,
            });
        }
        text.join(" ")
    }
}

fn read_all(journal: &mut Journal) {
    while journal.step() == Step::Read {}
}

fn day(day: u32) -> Session {
    Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(20_261_100 + day).unwrap(), restart: 0 }
}

#[test]
fn journals_are_closed_at_the_end_of_their_sessions() {
    let mut harness = Harness::new();
    let mut journal = harness.journal();
    (1..4).for_each(|sequence| harness.order(day(26), sequence));
    read_all(&mut journal);
    assert_eq!(harness.content("2026-11-26.mbo.dbn.part"), "1 2 3");
    harness.end(day(26), 4);
    (1..3).for_each(|sequence| harness.order(day(27), sequence));
    read_all(&mut journal);
    assert_eq!(harness.content("2026-11-26.mbo.dbn"), "1 2 3");
    assert_eq!(harness.content("2026-11-27.mbo.dbn.part"), "1 2");
    // Without the venue's end, the next session closes it.
    harness.order(day(28), 1);
    read_all(&mut journal);
    assert_eq!(harness.content("2026-11-27.mbo.dbn"), "1 2");
}

#[test]
fn a_restart_goes_on_without_repeating_anything() {
    let mut harness = Harness::new();
    for sequence in 1..8 {
        harness.order(day(26), sequence);
        let mut journal = harness.journal();
        read_all(&mut journal);
        // Killed where it stands, or stopped.
        if sequence % 2 == 0 { drop(journal) } else { journal.finish().unwrap() }
    }
    harness.end(day(26), 8);
    read_all(&mut harness.journal());
    assert_eq!(harness.content("2026-11-26.mbo.dbn"), "1 2 3 4 5 6 7");
    read_all(&mut harness.journal());
    // The venue restarts its numbering on that day.
    harness.order(Session { restart: 1, ..day(26) }, 1);
    read_all(&mut harness.journal());
    assert_eq!(harness.content("2026-11-26.mbo.2.dbn.part"), "1");
}

#[test]
fn what_the_log_lacks_is_declared() {
    let mut harness = Harness::new();
    // The log begins after the session did.
    (3..5).for_each(|sequence| harness.order(day(26), sequence));
    let mut journal = harness.journal();
    read_all(&mut journal);
    // Messages of an absence of the gateway, and a gap that the gateway declared.
    harness.order(day(26), 7);
    let gap = GapBody { first: 8.into(), next: 10.into() };
    let meta = FrameMeta::control(FrameKind::Gap, Sequence(8), Sequence(10));
    harness.entry(day(26), [8, 10], meta, gap.as_bytes(), PacketFlags::default());
    harness.order(day(26), 10);
    read_all(&mut journal);
    journal.finish().unwrap();
    // The log is lost, and the session with it.
    harness.lose_log();
    harness.order(day(27), 1);
    read_all(&mut harness.journal());
    assert_eq!(harness.content("2026-11-26.mbo.dbn"), "hole 1+2 3 4 hole 5+2 7 gap 8+2 10 hole 11+0");
    assert_eq!(harness.content("2026-11-27.mbo.dbn.part"), "1");
}

/// Nobody restarts the journal, and the numbers of the new log's entries are those of the old one.
#[test]
fn a_log_that_was_replaced_is_opened_again() {
    let mut harness = Harness::new();
    let mut journal = harness.journal();
    (1..4).for_each(|sequence| harness.order(day(26), sequence));
    read_all(&mut journal);
    let log = harness.directory.path().join("log");
    fs::rename(&log, log.with_extension("away")).unwrap();
    let until = Instant::now() + Duration::from_millis(1_200);
    while Instant::now() < until {
        assert_eq!(journal.step(), Step::Current);
    }
    fs::rename(log.with_extension("away"), &log).unwrap();
    harness.lose_log();
    (5..9).for_each(|sequence| harness.order(day(26), sequence));
    let deadline = Instant::now() + Duration::from_secs(60);
    while harness.content("2026-11-26.mbo.dbn.part") != "1 2 3 hole 4+1 5 6 7 8" {
        assert!(Instant::now() < deadline, "{}", harness.content("2026-11-26.mbo.dbn.part"));
        journal.step();
    }
}

/// Of two channels, one has ended a day earlier. A restart must not read its session again.
#[test]
fn a_channel_without_a_session_of_the_last_day_is_not_journaled_twice() {
    let mut harness = Harness::new();
    harness.order(day(26), 1);
    harness.end(day(26), 2);
    read_all(&mut harness.journal());
    let other = harness.directory.path().join("log-2");
    fs::create_dir(&other).unwrap();
    let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(&other, 2) };
    harness.writer = open(options, 0).unwrap().writer;
    harness.order(day(27), 1);
    harness.end(day(27), 2);
    let mut config = harness.journal().config.clone();
    let channel = JournalChannel { id: ChannelId(2), log_directory: other, ..config.channels[0].clone() };
    config.channels.push(channel);
    for _ in 0..2 {
        read_all(&mut Journal::start(config.clone()).unwrap());
    }
    assert_eq!(harness.content("2026-11-27.mbo.dbn"), "1");
    let files = fs::read_dir(harness.directory.path().join("journal/XNAS.ITCH")).unwrap().count();
    assert_eq!(files, 4, "records and names of two days");
}

#[test]
fn files_under_the_name_of_another_day_are_set_aside() {
    let mut harness = Harness::new();
    harness.order(day(26), 1);
    read_all(&mut harness.journal());
    let folder = harness.directory.path().join("journal/XNAS.ITCH");
    for end in ["dbn.part", "names.part"] {
        fs::rename(folder.join(format!("2026-11-26.mbo.{end}")), folder.join(format!("2026-11-27.mbo.{end}"))).unwrap();
    }
    harness.order(day(27), 1);
    read_all(&mut harness.journal());
    // The log still has the day that is missing under its name.
    assert_eq!(harness.content("2026-11-26.mbo.dbn"), "1");
    assert_eq!(harness.content("2026-11-27.mbo.2.dbn.part"), "1");
    assert!(folder.join("2026-11-27.mbo.dbn.part.damaged").exists());
}

#[test]
fn parts_of_a_message_are_named_and_a_missing_part_is_a_hole() {
    let (first, middle, last) = (FrameFlags::FIRST_PART, FrameFlags::default(), FrameFlags::LAST_PART);
    let mut harness = Harness::new();
    harness.part(day(26), 1, 0, first);
    harness.part(day(26), 1, 1, middle);
    let mut journal = harness.journal();
    read_all(&mut journal);
    drop(journal);
    harness.part(day(26), 1, 2, last);
    harness.part(day(26), 2, 1, middle);
    harness.part(day(26), 2, 2, last);
    harness.part(day(26), 3, 0, first);
    harness.order(day(26), 4);
    let mut journal = harness.journal();
    read_all(&mut journal);
    assert_eq!(harness.content("2026-11-26.mbo.dbn.part"), "1 1.1 1.2 hole 2+1 3 hole 3+1 4");
}

#[test]
fn without_space_nothing_is_lost_and_nothing_is_written() {
    let mut harness = Harness::new();
    harness.order(day(26), 1);
    let mut journal = harness.journal();
    read_all(&mut journal);
    journal.config.free_bytes_min = u64::MAX;
    harness.order(day(26), 2);
    assert_eq!(journal.step(), Step::Paused);
    assert!(!journal.is_writing());
    assert_eq!(harness.content("2026-11-26.mbo.dbn.part"), "1");
    journal.config.free_bytes_min = 0;
    journal.state = State::Stopped { retry_at: Instant::now() };
    read_all(&mut journal);
    assert_eq!(harness.content("2026-11-26.mbo.dbn.part"), "1 2");
}

#[test]
fn two_processes_do_not_write_to_one_folder() {
    let harness = Harness::new();
    let journal = harness.journal();
    let other = Journal::start(journal.config.clone()).unwrap_err();
    assert!(matches!(other, JournalError::InUse { .. }), "{other}");
}
