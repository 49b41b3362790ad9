//! A reader beside a writer: items, overrun, resumption, restarts of the writer, hostile files.

use std::{fs, os::unix::fs::FileExt as _, path::Path};

use mdgw_publog::{LogOptions, OpenedLog, Retention, open};
use mdgw_wire::{
    frame::{FrameFlags, FrameMeta},
    identity::{Feed, Sequence, Session},
    published::packet::PacketFlags,
    time::{TradingDate, UnixNs},
};
use proptest::prelude::*;
use tempfile::TempDir;
use zerocopy::IntoBytes as _;

use super::*;

const CHANNEL: ChannelId = ChannelId(3);

fn session(date: u32, restart: u32) -> Session {
    Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(date).unwrap(), restart }
}

/// A log as a gateway writes it, with segments of some 100 messages of which it keeps three.
struct TestGateway {
    directory: TempDir,
    log: Option<OpenedLog>,
    session: Session,
    next: u64,
}

impl TestGateway {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut gateway = Self { directory, log: None, session: session(20_261_127, 0), next: 1 };
        gateway.start();
        gateway
    }

    fn channel(&self) -> LogChannel {
        LogChannel::new(self.directory.path(), CHANNEL)
    }

    fn start(&mut self) {
        self.log = None;
        let segment_bytes = 16 << 10;
        let bytes_max = 3 * segment_bytes as u64;
        let options = LogOptions {
            segment_bytes,
            private_bytes: segment_bytes,
            payload_bytes_max: 600,
            retention: Retention { bytes_max, age_ns_max: None, protected_bytes_max: bytes_max },
            ..LogOptions::new(self.channel().directory, CHANNEL.0)
        };
        self.log = Some(open(options, 0).unwrap());
    }

    fn write(&mut self, messages: u64) {
        for _ in 0..messages {
            let log = self.log.as_mut().unwrap();
            log.maintenance.run_once(0);
            let mut record = [0_u8; 56];
            (record[0], record[1]) = (14, 0xa0);
            record[16..24].copy_from_slice(&self.next.to_le_bytes());
            let mut meta = FrameMeta::message(Sequence(self.next), UnixNs(self.next + 1_000), 7);
            meta.flags = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
            log.writer.begin(self.session.to_bytes(), self.next);
            assert!(log.writer.append(meta.header(1, &record).as_bytes()) && log.writer.append(&record));
            log.writer.commit(self.next + 1, 1, 0, 5).unwrap();
            self.next += 1;
        }
    }

    fn end_session(&mut self, next: Session) {
        let flags = PacketFlags::HEARTBEAT.with(PacketFlags::END_OF_SESSION);
        let writer = &mut self.log.as_mut().unwrap().writer;
        writer.begin(self.session.to_bytes(), self.next);
        writer.commit_lasting(self.next, flags.0.into(), 5).unwrap();
        (self.session, self.next) = (next, 1);
    }
}

fn config(channel: LogChannel, start: LogStart) -> LogReaderConfig {
    LogReaderConfig { start, wait: WaitStrategy::Spin, ..LogReaderConfig::new(vec![channel]) }
}

/// Reads until nothing follows. Items as words; consecutive messages as a range.
fn read(reader: &mut LogReader) -> String {
    let mut words: Vec<String> = Vec::new();
    let (mut first, mut next) = (0, 0);
    loop {
        let polled = reader
            .poll(Duration::from_millis(1), &mut |output| {
                if let Item::Message { header, .. } = output.item {
                    let sequence = header.sequence.get();
                    if sequence != next || words.is_empty() {
                        words.push(String::new());
                        first = sequence;
                    }
                    next = sequence + 1;
                    *words.last_mut().unwrap() = format!("{first}..{next}");
                    return;
                }
                next = 0;
                words.push(match output.item {
                    Item::Session => {
                        format!("session {}/{}", output.session.date.yyyymmdd() % 100, output.session.restart)
                    }
                    Item::Lost(gap) => format!("lost {}..{}", gap.first().0, gap.next().0),
                    Item::EndOfSession => "end".to_owned(),
                    item => format!("{item:?}"),
                });
            })
            .unwrap();
        if polled.entries == 0 {
            return words.join(", ");
        }
    }
}

#[test]
fn a_reader_follows_sessions_days_segments_and_restarts_of_the_gateway() {
    let mut gateway = TestGateway::new();
    gateway.write(3);
    let mut reader = LogReader::open(config(gateway.channel(), LogStart::Oldest)).unwrap();
    assert_eq!(read(&mut reader), "session 27/0, 1..4");
    for _ in 0..10 {
        gateway.write(50);
        let next = gateway.next;
        assert_eq!(read(&mut reader), format!("{}..{next}", next - 50));
    }
    gateway.end_session(session(20_261_127, 1));
    gateway.write(2);
    gateway.start();
    gateway.write(2);
    gateway.end_session(session(20_261_128, 0));
    gateway.write(1);
    assert_eq!(read(&mut reader), "end, session 27/1, 1..5, end, session 28/0, 1..2");
    assert_eq!(reader.last_overrun(CHANNEL), None);
    assert_eq!(reader.drops(CHANNEL).unwrap().unexpected(), 0);
    assert_eq!(reader.statistics(CHANNEL).unwrap().messages, 3 + 500 + 4 + 1);
}

#[test]
fn an_overrun_is_reported_with_its_bounds() {
    let mut gateway = TestGateway::new();
    gateway.write(10);
    let mut reader = LogReader::open(config(gateway.channel(), LogStart::Session)).unwrap();
    assert_eq!(read(&mut reader), "session 27/0, 1..11");
    gateway.write(2_000);
    let text = read(&mut reader);
    let overrun = *reader.last_overrun(CHANNEL).unwrap();
    let from = overrun.from.unwrap().sequence.0;
    let until = overrun.until.sequence.0;
    // The mapped segment is read to its end.
    assert_eq!(text, format!("11..{from}, lost {from}..{until}, {until}..2011"));
    assert_eq!(overrun.entries, until - from);
    assert!(until - from > 1_000);
    // In another session: the old one's end is not known, the new one's beginning is.
    gateway.write(500);
    gateway.end_session(session(20_261_127, 1));
    gateway.write(2_000);
    let text = read(&mut reader);
    let until = reader.last_overrun(CHANNEL).unwrap().until.sequence.0;
    assert!(text.ends_with(&format!("session 27/1, lost 1..{until}, {until}..2001")), "{text}");
}

#[test]
fn a_reader_resumes_at_the_next_message() {
    let mut gateway = TestGateway::new();
    gateway.write(40);
    let mut reader = LogReader::open(config(gateway.channel(), LogStart::Session)).unwrap();
    assert_eq!(read(&mut reader), "session 27/0, 1..41");
    let resumed = |gateway: &TestGateway, resume| {
        let channel = LogChannel { resume: Some(resume), ..gateway.channel() };
        LogReader::open(config(channel, LogStart::Session)).unwrap()
    };
    let position = reader.position(CHANNEL).unwrap();
    assert_eq!((position.sequence, position.part), (Sequence(41), 0));
    let mut second = resumed(&gateway, position);
    assert_eq!(read(&mut second), "");
    gateway.write(4);
    assert_eq!(read(&mut second), "41..45");
    // Any message, and one that the log has not got yet.
    assert_eq!(read(&mut resumed(&gateway, StreamPosition::at(gateway.session, Sequence(17)))), "17..45");
    let mut ahead = resumed(&gateway, StreamPosition::at(gateway.session, Sequence(47)));
    gateway.write(4);
    assert_eq!(read(&mut ahead), "47..49");
    // What is gone is lost, with its bounds.
    gateway.write(2_000);
    let mut late = resumed(&gateway, StreamPosition::at(gateway.session, Sequence(45)));
    let text = read(&mut late);
    let until = late.last_overrun(CHANNEL).unwrap().until.sequence.0;
    assert_eq!(text, format!("lost 45..{until}, {until}..2049"));
}

#[test]
fn a_reader_starts_at_the_day_the_session_or_live() {
    let mut gateway = TestGateway::new();
    gateway.write(2);
    gateway.end_session(session(20_261_128, 0));
    gateway.write(2);
    gateway.end_session(session(20_261_128, 1));
    gateway.write(2);
    let starts = [
        (LogStart::Oldest, "session 27/0, 1..3, end, session 28/0, 1..3, end, session 28/1, 1..3"),
        (LogStart::Day, "session 28/0, 1..3, end, session 28/1, 1..3"),
        (LogStart::Session, "session 28/1, 1..3"),
        (LogStart::Live, ""),
    ];
    for (start, expected) in starts {
        assert_eq!(read(&mut LogReader::open(config(gateway.channel(), start)).unwrap()), expected);
    }
    let mut live = LogReader::open(config(gateway.channel(), LogStart::Live)).unwrap();
    gateway.write(1);
    assert_eq!(read(&mut live), "session 28/1, 3..4");
}

#[test]
fn a_log_that_was_removed_and_made_anew_is_followed_and_nothing_comes_twice() {
    let mut gateway = TestGateway::new();
    gateway.write(5);
    let mut reader = LogReader::open(config(gateway.channel(), LogStart::Session)).unwrap();
    assert_eq!(read(&mut reader), "session 27/0, 1..6");
    gateway.log = None;
    fs::remove_dir_all(gateway.channel().directory).unwrap();
    assert_eq!(read(&mut reader), "", "the gateway is still down");
    gateway.start();
    // The venue repeats the session from message 4 on.
    gateway.next = 4;
    gateway.write(4);
    assert_eq!(read(&mut reader), "");
    assert_eq!(read(&mut reader), "6..8");
}

#[test]
fn what_is_no_log_of_the_channel_is_an_error() {
    let mut gateway = TestGateway::new();
    gateway.write(5);
    let error = |channel| LogReader::open(config(channel, LogStart::Session)).unwrap_err().to_string();
    let missing = LogChannel::new(gateway.directory.path(), ChannelId(9));
    assert!(error(missing).contains("cannot read the log of channel 9: cannot list"));
    let other = LogChannel { id: ChannelId(9), ..gateway.channel() };
    assert!(error(other).contains("another channel"));
    let segment = segments(&gateway.channel().directory)[0].clone();
    fs::write(&segment, [7; 100]).unwrap();
    assert!(error(gateway.channel()).contains("shorter than a segment header"));
    fs::write(&segment, [7; 9_000]).unwrap();
    assert!(error(gateway.channel()).contains("wrong magic number"));
}

/// A file that ends early is read as far as it goes.
#[test]
fn a_truncated_segment_is_an_error_behind_its_last_whole_entry() {
    let mut gateway = TestGateway::new();
    gateway.write(30);
    let directory = gateway.channel().directory;
    let segment = segments(&directory)[0].clone();
    let whole = fs::read(&segment).unwrap();
    gateway.log = None;
    for other in &segments(&directory)[1..] {
        fs::remove_file(other).unwrap();
    }
    // In a new file: nobody may shorten one that is mapped.
    let copy = tempfile::tempdir().unwrap();
    for length in (4_096..whole.len()).step_by(511) {
        fs::write(copy.path().join(segment.file_name().unwrap()), &whole[..length]).unwrap();
        let channel = LogChannel { directory: copy.path().to_owned(), ..LogChannel::new("", CHANNEL) };
        let outcome = LogReader::open(config(channel, LogStart::Oldest)).and_then(|mut reader| {
            let mut messages = 0;
            while reader.poll(Duration::ZERO, &mut |output| {
                messages += u64::from(matches!(output.item, Item::Message { .. }));
            })? != Polled::default()
            {}
            Ok(messages)
        });
        match outcome {
            Ok(messages) => assert_eq!(messages, 30, "{length}"),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("damaged or truncated at offset") || text.contains("truncated inside"), "{text}");
            }
        }
    }
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|item| item.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "segment"));
    paths.sort();
    paths
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Lengths, offsets and counts anywhere in a segment, as somebody else might write them while it is read.
    #[test]
    fn no_content_of_a_segment_makes_a_reader_panic_or_deliver_what_was_not_written(
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 1..12),
    ) {
        let mut gateway = TestGateway::new();
        gateway.write(250);
        let mut reader = LogReader::open(config(gateway.channel(), LogStart::Oldest)).unwrap();
        let paths = segments(&gateway.channel().directory);
        for (at, value) in damages {
            let path = &paths[at.index(paths.len())];
            let file = fs::File::options().write(true).open(path).unwrap();
            file.write_all_at(&value.to_le_bytes(), at.index(2_040) as u64 * 8).unwrap();
        }
        let mut last = 0;
        let mut check = |output: Output<'_>| {
            if let Item::Message { header, body } = output.item {
                let sequence = header.sequence.get();
                assert!(sequence > last && body[16..24] == sequence.to_le_bytes(), "{sequence} after {last}");
                last = sequence;
            }
        };
        while matches!(reader.poll(Duration::ZERO, &mut check), Ok(polled) if polled.entries > 0) {}
        for start in [LogStart::Session, LogStart::Day, LogStart::Live] {
            let _refused = LogReader::open(config(gateway.channel(), start));
        }
    }
}
