//! Every reader of a file or a datagram, over randomly damaged inputs. None may panic, allocate without a bound or loop
//! for ever. A refusal names the file, and content before the damage is delivered.
#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(unreachable_pub, dead_code, reason = "shared with the targets of libFuzzer")]
#[path = "../../feeds/fuzz/src/lib.rs"]
mod feeds;
mod harness;
mod seeds;

use std::{
    error::Error,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};

use mdgw_captures::{
    capture_file::{CaptureFile, OpenOptions},
    dbn_input::DbnInput,
};
use mdgw_election::quorum::vote_file::VoteFile;
use mdgw_feeds::{
    identity::{ChannelId, GroupId},
    time::TradingDate,
};
use mdgw_log_reader::{LogChannel, LogReader, LogReaderConfig, LogStart};
use mdgw_publog::{LogOptions, Reader};
use mdgw_runtime::{
    audit::file::{AuditFile, AuditHistory},
    config::{Resolved, explain::explain},
    state_file::StateFile,
};
use mdgw_tests::{counting_allocator::CountingAllocator, gateway_fixture::text};
use mdgw_tools::{
    convert::{self, ConvertOptions, Format},
    diff::{self, DiffOptions},
    inspect::{dissect::Dissector, stats::Statistics, text::Text},
    merge::{self, MergeOptions},
    report::{Comparison, Group, Report, csv, html, json, table},
    verify::{CapturedPacket, Location, RowsVerifier, Verifier, VerifyOptions},
};

use self::harness::Target;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn capture_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture");
    target("capture", seeds::captures(), 6_000, 64).run(|input| {
        fs::write(&path, input).unwrap();
        read_capture(&path, input);
    });
}

/// Reads a capture as `mdgw inspect` and `mdgw ha verify` do.
fn read_capture(path: &Path, input: &[u8]) {
    let mut file = match CaptureFile::open(path, &open_options()) {
        Ok(file) => file,
        Err(error) => return assert_names_file(&error, path),
    };
    let (mut dissector, mut statistics) = (Dissector::new(file.kind(), None), Statistics::new(None));
    let (mut text_output, mut output) = (Text::new(false), String::new());
    let mut verifier = Verifier::new(verify_options());
    loop {
        match file.next_datagram() {
            Ok(Some(datagram)) => {
                assert!(datagram.payload.len() <= datagram.captured_len as usize);
                let (number, time_ns, dst) = (datagram.frame, datagram.time_ns, datagram.dst);
                verifier.accept(&CapturedPacket {
                    location: Location { file: 0, number },
                    time_ns,
                    dst,
                    payload: datagram.payload,
                });
                let packet = dissector.packet(datagram);
                text_output.packet(&packet, &mut output).unwrap();
                serde_json::to_writer(std::io::sink(), &packet).unwrap();
                statistics.count_filtered(&packet, true);
                output.clear();
            }
            Ok(None) => break,
            Err(error) => {
                assert_names_file(&error, path);
                let is_in_file = error.decompressed || error.offset <= input.len() as u64;
                assert!(is_in_file, "{error}: beyond the {} bytes there are", input.len());
                assert!(file.next_datagram().unwrap().is_none(), "nothing follows damage");
                break;
            }
        }
        assert!(file.counts().frames <= FRAMES_MAX, "the reader does not end");
    }
    let summary = statistics.summary(text(path), file.counts());
    let (_, _) = (summary.to_string(), serde_json::to_string(&summary).unwrap());
    let (verdict, names) = (verifier.finish(), [text(path).to_owned()]);
    let (_, _) = (verdict.to_json(&names), verdict.to_table(&names));
}

#[test]
fn merge_and_diff() {
    let folder = tempfile::tempdir().unwrap();
    let [good, path, out] = ["good", "damaged", "merged"].map(|name| folder.path().join(name));
    let seeds = seeds::captures();
    fs::write(&good, &seeds[0]).unwrap();
    target("capture", seeds, 300, 8 << 10).run(|input| {
        fs::write(&path, input).unwrap();
        let options = MergeOptions {
            files: vec![good.clone(), path.clone()],
            output: out.clone(),
            feed: None,
            date: date(),
            listed_max: 10,
        };
        match merge::run(&options, &mut |_| ControlFlow::Continue(())) {
            Ok(summary) => drop((summary.to_table(), summary.to_json())),
            Err(error) => assert_describes_error(&error),
        }
        let options = DiffOptions { listed_max: 10, names_max: 10_000, feed: None, date: date() };
        match diff::run([&good, &path], &options, &mut |_| ControlFlow::Continue(())) {
            Ok(difference) => drop((difference.to_text(), difference.to_json())),
            Err(error) => assert_describes_error(&error),
        }
    });
}

#[test]
fn dbn_files() {
    let folder = tempfile::tempdir().unwrap();
    let [path, out] = ["in.dbn", "out"].map(|name| folder.path().join(name));
    target("dbn", seeds::dbn_files(), 2_000, 64).run(|input| {
        fs::write(&path, input).unwrap();
        match DbnInput::open(&path) {
            Ok(mut file) => loop {
                match file.next_record() {
                    Ok(Some(_)) => assert!(file.offset() <= RECORD_BYTES_MAX, "the reader does not end"),
                    Ok(None) => break,
                    Err(error) => {
                        assert_names_file(&error, &path);
                        assert!(file.next_record().unwrap().is_none(), "nothing follows damage");
                        break;
                    }
                }
            },
            Err(error) => assert_names_file(&error, &path),
        }
        for (format, pretty) in [(Format::Csv, true), (Format::Json, false), (Format::Json, true)] {
            let (input, output) = (path.clone(), out.clone());
            let options = ConvertOptions { input, output, format, schema: None, pretty, map_symbols: true };
            if let Err(error) = convert::run(&options, &mut |_| ControlFlow::Continue(())) {
                assert_names_file(&error, &path);
            }
        }
    });
}

#[test]
fn publication_log_segments() {
    let folder = tempfile::tempdir().unwrap();
    let seeds = seeds::segments();
    let sessions = [seeds::LOG_SESSION, [0; 16]];
    target("publog", seeds, 700, 64).run(|input| {
        let log = folder.path().join("log");
        fs::create_dir_all(&log).unwrap();
        fs::write(log.join(seeds::SEGMENT_NAME), input).unwrap();
        match Reader::open(&log, seeds::LOG_CHANNEL) {
            Ok(mut reader) => read_log(&mut reader, sessions),
            Err(error) => assert_names_file(&error, &log),
        }
        for start in [LogStart::Oldest, LogStart::Day, LogStart::Session, LogStart::Live] {
            follow_log(&log, start);
        }
        // Reading continues with the valid part.
        let options = LogOptions { segment_bytes: seeds::SEGMENT_BYTES, private_bytes: 64 << 10, ..log_options(&log) };
        match mdgw_publog::open(options, 1) {
            Ok(mut opened) => {
                opened.writer.begin(seeds::LOG_SESSION, 9);
                assert!(opened.writer.append(b"8 bytes."));
                opened.writer.commit(10, 1, 0, 2);
                drop(opened);
                let mut reader = Reader::open(&log, seeds::LOG_CHANNEL).unwrap();
                assert_eq!(reader.last_entry().unwrap(), Some((seeds::LOG_SESSION, 10)));
            }
            Err(error) => assert_names_file(&error, &log),
        }
        fs::remove_dir_all(&log).unwrap();
    });
}

fn read_log(reader: &mut Reader, sessions: [[u8; 16]; 2]) {
    let mut entries = 0;
    while reader.next().is_some() {
        entries += 1;
        assert!(entries <= seeds::SEGMENT_BYTES, "the reader does not end");
    }
    for session in sessions {
        for sequence in [0, 3, u64::MAX] {
            let _sought_position = reader.seek(session, sequence);
            let _entry = reader.peek();
        }
        let _range = reader.session_range(session);
    }
    let (_last, _end) = (reader.last_entry(), reader.seek_end());
}

/// As a consumer on the gateway's host does.
fn follow_log(log: &Path, start: LogStart) {
    let id = ChannelId(seeds::LOG_CHANNEL);
    let channel = LogChannel { id, directory: log.to_owned(), resume: None };
    let mut reader = match LogReader::open(LogReaderConfig { start, ..LogReaderConfig::new(vec![channel]) }) {
        Ok(reader) => reader,
        Err(error) => return assert_names_file(&error, log),
    };
    let mut entries = 0;
    loop {
        match reader.poll(Duration::ZERO, &mut |_| {}) {
            Ok(polled) if polled.entries == 0 => return,
            Ok(polled) => entries += polled.entries,
            Err(error) => return assert_names_file(&error, log),
        }
        assert!(entries <= seeds::SEGMENT_BYTES, "the reader does not end");
    }
}

#[test]
fn latency_logs() {
    let good = seeds::latency_logs();
    let first = good[0].clone();
    target("latency", good, 600, 512).run(|input| {
        let path = PathBuf::from("a.hlog");
        let report = Report::of(&[(path.clone(), input.to_vec())], None);
        for damage in &report.damage {
            assert!(damage.to_string().starts_with("a.hlog:"), "{damage}");
            assert!(damage.offset_bytes <= input.len());
        }
        show_report(&report);
        let other = Report::of(&[(PathBuf::from("b.hlog"), first.clone())], None);
        let groups = [("a", report), ("b", other)].map(|(name, report)| Group { name: name.to_owned(), report });
        let comparison = Comparison::of(groups.into());
        let mut output = String::new();
        table::write_comparison(&comparison, &mut output).unwrap();
        csv::write_comparison(&comparison, &mut output).unwrap();
        html::write_comparison(&comparison, &mut output).unwrap();
        let _value = json::comparison(&comparison);
    });
}

fn show_report(report: &Report) {
    let mut output = String::new();
    table::write(report, &mut output).unwrap();
    csv::write("a", report, &mut output).unwrap();
    html::write(report, &mut output).unwrap();
    let _value = json::value(report);
}

#[test]
fn state_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    target("state", seeds::state_files(), 2_000, 64).run(|input| {
        fs::write(&path, input).unwrap();
        match StateFile::open(&path) {
            Ok(state) => {
                for channel in (0..9).map(ChannelId) {
                    let stored = state.session(channel);
                    let left = state.shutdown_position(channel);
                    assert!(left.is_none_or(|left| stored.is_some_and(|kept| kept.session == left.session)));
                }
            }
            Err(error) => assert_names_file(&error, &path),
        }
        assert_eq!(fs::read(&path).unwrap(), input, "the file was changed");
    });
}

#[test]
fn audits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    target("audit", seeds::audits(), 2_000, 64).run(|input| {
        fs::write(&path, input).unwrap();
        let history = AuditHistory::read(&path).unwrap();
        let lines = input.split_inclusive(|byte| *byte == b'\n').count() as u64;
        assert!(history.entries.len() as u64 + history.damaged_lines <= lines);
        let (file, recovered) = AuditFile::open(&path).unwrap();
        assert_eq!((recovered.entries, recovered.torn_bytes), (history.entries.len() as u64, history.torn_bytes));
        assert_eq!(file.path(), path);
        assert_eq!(fs::read(&path).unwrap(), input, "the file was changed");
    });
}

#[test]
fn vote_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group-1.vote");
    target("votes", seeds::vote_files(), 2_000, 64).run(|input| {
        fs::write(&path, input).unwrap();
        if let Err(error) = VoteFile::open(folder.path(), GroupId(1)) {
            assert_names_file(&error, &path);
        }
        assert_eq!(fs::read(&path).unwrap(), input, "the file was changed");
    });
}

#[test]
fn configurations() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    target("config", seeds::configurations(), 1_500, 64).run(|input| {
        fs::write(&path, input).unwrap();
        match Resolved::load(&path) {
            Ok(config) => {
                let mut output = String::new();
                explain(&config, &mut output).unwrap();
                assert!(!config.settings().is_empty());
            }
            Err(error) => assert_names_file(&error, &path),
        }
    });
}

#[test]
fn receiver_rows() {
    target("rows", seeds::rows(), 2_000, 64).run(|input| {
        let mut verifier = RowsVerifier::new(verify_options());
        if let Err(error) = verifier.read(0, input) {
            assert_describes_error(&error);
        }
        let (verdict, names) = (verifier.finish(), ["a".to_owned()]);
        let (_, _) = (verdict.to_json(&names), verdict.to_table(&names));
    });
}

#[test]
fn datagrams_and_messages() {
    let mut seeds = feeds::seeds::all();
    for (name, read) in feeds::TARGETS {
        let index = seeds.iter().position(|(of, _)| *of == name).expect("each target has seeds");
        let (_, seeds) = seeds.swap_remove(index);
        let rounds = if ["channel", "receiver"].contains(&name) { 500 } else { 3_000 };
        target(name, seeds, rounds, 64).run(read);
    }
}

fn target(name: &'static str, seeds: Vec<Vec<u8>>, rounds: u64, memory_mb_max: usize) -> Target {
    Target { name, seeds, rounds, memory_bytes_max: memory_mb_max << 20 }
}

/// Asserts that the output names the file.
fn assert_names_file(error: &dyn Error, path: &Path) {
    let output = error_chain(error);
    assert!(output.contains(text(path)), "{output:?} does not name {}", path.display());
}

fn assert_describes_error(error: &dyn Error) {
    assert!(error_chain(error).len() > 10, "{error:?}");
}

fn error_chain(error: &dyn Error) -> String {
    let mut output = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        output += &format!(": {error}");
        cause = error.source();
    }
    output
}

fn open_options() -> OpenOptions {
    OpenOptions { date: date(), ..OpenOptions::default() }
}

fn verify_options() -> VerifyOptions {
    VerifyOptions { names_max: 10_000, ..VerifyOptions::default() }
}

fn log_options(folder: &Path) -> LogOptions {
    LogOptions::new(folder, seeds::LOG_CHANNEL)
}

fn date() -> Option<TradingDate> {
    TradingDate::from_yyyymmdd(20_190_130)
}

/// Upper bound of frames in any of these inputs, also after decompression.
const FRAMES_MAX: u64 = 1_000_000;
const RECORD_BYTES_MAX: u64 = 1 << 30;
