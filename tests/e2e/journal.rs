//! Journals: `mdgw journal` writes what a gateway published, survives its own death and a full disk, and declares what it lacks.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use mdgw_feeds::identity::Sequence;
use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    order_books::symbols_of_file,
    pair::log_entries,
    process::{self, MdgwProcess, Signal, wait_until},
    python::python,
    tmpfs::TmpfsMount,
    trading_day::{DATE, TradingDay},
};

#[test]
fn the_python_client_reads_a_journal_into_a_frame_as_offline_replay_makes_it() {
    let Some(python) = python("the_python_client_reads_a_journal_into_a_frame_as_offline_replay_makes_it") else {
        return;
    };
    let host = Host::new(20_000);
    // With receive times, by which the client looks symbols up.
    let options = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let gateway = host.fixture.gateway(&options, &["--date", DATE]);
    let journal = host.start("");
    let compressed = host.start_in("compressed", "compression = \"zstd\"");
    host.day.play_first_half(&host.fixture);
    host.day.play_second_half(&host.fixture);
    let plain = host.journal("journal").with_extension("dbn");
    let zstd = host.journal("compressed").with_extension("dbn.zst");
    wait_until("the journal is closed", || plain.with_extension("names").exists());
    wait_until("the other one is compressed", || zstd.exists() && !zstd.with_extension("").exists());
    let expected = host.replay_offline_with("capture");
    for path in [&plain, &zstd] {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/journal.py");
        let output = Command::new(&python).arg(script).args([path, &expected]).output().unwrap();
        assert!(output.status.success(), "{}{}", lossy(&output.stdout), lossy(&output.stderr));
    }
    journal.signal(Signal::HangUp);
    let journal = journal.stop_with(Signal::Terminate).expect_code(0);
    assert!(!journal.stderr.contains("alarm"), "{}", journal.stderr);
    let _ = compressed.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_killed_journal_goes_on_without_a_hole_or_a_record_twice() {
    let host = Host::new(20_000);
    let gateway = host.day.gateway(&host.fixture, &GatewayOptions::itch());
    let mut journal = host.start("flush_ms = 10");
    host.day.play_first_half(&host.fixture);
    let open = host.journal("journal").with_extension("dbn.part");
    wait_until("a part is written", || open.exists() && records_of(&open).len() > 100_000);
    let _ = journal.stop_with(Signal::Kill);
    // As a crash of the machine may leave the files: with bytes that no checkpoint covers.
    for path in [&open, &host.journal("journal").with_extension("names.part")] {
        let mut bytes = fs::read(path).unwrap();
        bytes.extend([7; 100]);
        fs::write(path, bytes).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| host.day.play_second_half(&host.fixture));
        // Killed wherever it is, once it has written something.
        for _ in 0..8 {
            let journal = host.start("flush_ms = 10");
            let (closed, before) = (open.with_extension(""), length(&open));
            wait_until("more is written", || closed.exists() || length(&open) != before);
            let _ = journal.stop_with(Signal::Kill);
        }
    });
    journal = host.start("flush_ms = 10");
    host.expect_whole_day("journal");
    // A restart behind the end of the day begins no other journal.
    let _ = journal.stop_with(Signal::Terminate).expect_code(0);
    let journal = host.start("");
    let journal = journal.stop_with(Signal::Terminate).expect_code(0);
    assert!(!journal.stderr.contains("alarm"), "{}", journal.stderr);
    assert_eq!(files_in(&host.fixture.path("journal/XNAS.ITCH")).len(), 2);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_full_disk_stops_the_journal_alone_until_there_is_space() {
    stop_by_a_full_disk(65_536);
}

/// The free space says nothing here: only a write that succeeds ends the stop.
#[test]
fn a_disk_that_refuses_what_its_space_promises_stops_the_journal_once() {
    stop_by_a_full_disk(0);
}

fn stop_by_a_full_disk(free_bytes_min: u64) {
    let host = Host::new(60_000);
    let folder = host.fixture.path("journal");
    let Some(disk) = TmpfsMount::new("a full file system under the journal", folder, "16m") else { return };
    let gateway = host.day.gateway(&host.fixture, &GatewayOptions::itch());
    let journal = host.start(&format!("flush_ms = 10\nfree_bytes_min = {free_bytes_min}"));
    let (tail, received) = host.day.tail(&host.fixture, "received.dbn", &[]);
    let open = host.journal("journal").with_extension("dbn.part");
    host.day.play_first_half(&host.fixture);
    wait_until("a part is written", || open.exists());
    disk.fill();
    host.day.play_second_half(&host.fixture);
    journal.wait_for_stderr("alarm=\"journal-stopped\"");
    // The gateway publishes on.
    let _ = tail.end().expect_code(0);
    assert!(fs::read(received).unwrap() == host.day.expected, "the subscriber has all of the day");
    // Some attempts later.
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    let log = journal.stderr_so_far();
    assert!(log.matches("alarm=\"journal-stopped\"").count() == 1 && !log.contains("writes again"), "{log}");
    let goes_on = "goes on behind its last complete batch";
    assert!(!log.contains(goes_on), "{log}");
    disk.remove_filler();
    journal.wait_for_stderr("writes again");
    host.expect_whole_day("journal");
    let journal = journal.stop_with(Signal::Terminate).expect_code(0);
    assert!(!journal.stderr.contains("journal-hole"), "{}", journal.stderr);
    assert_eq!(journal.stderr.matches(goes_on).count(), 1, "{}", journal.stderr);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_journal_is_compared_with_captures_of_the_lines_by_name() {
    let host = Host::new(5_000);
    // With receive times, which are not compared.
    let options = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let gateway = host.fixture.gateway(&options, &["--date", DATE]);
    let journal = host.start("compression = \"zstd\"");
    host.day.play_first_half(&host.fixture);
    host.day.play_second_half(&host.fixture);
    let path = host.journal("journal").with_extension("dbn.zst");
    wait_until("the journal is compressed", || path.exists() && !path.with_extension("").exists());
    let [morning, afternoon] = ["morning.pcap", "afternoon.pcap"].map(|name| host.fixture.path(name));
    let compare = |captures: &[&Path]| {
        let files = captures.iter().map(|path| text(path));
        process::run(["replay", "--offline", "--json", "--journal", text(&path)].into_iter().chain(files))
    };
    let both = compare(&[&morning, &afternoon]).expect_code(0).json();
    assert_eq!((both["same"].as_bool(), both["content_differs"].as_u64()), (Some(true), Some(0)), "{both}");
    assert!(both["common"].as_u64() > Some(5_000), "{both}");
    let half = compare(&[&morning]).expect_code(1).json();
    assert!(half["only_in"][0].as_u64() > Some(1_000) && half["only_in"][1] == 0, "{half}");
    // A names file that does not belong to the records.
    let names = host.journal("journal").with_extension("names");
    let mut bytes = fs::read(&names).unwrap();
    bytes[200] ^= 1;
    fs::write(&names, bytes).unwrap();
    let damaged = compare(&[&morning, &afternoon]).expect_code(2);
    assert!(damaged.stderr.contains("is damaged"), "{}", damaged.stderr);
    let _ = journal.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The log keeps less than the day: what the journal missed is declared, and nothing else is missing.
#[test]
fn what_the_log_no_longer_has_is_a_declared_hole() {
    let host = Host::new(60_000);
    let options = GatewayOptions { segment_bytes: 1 << 20, retention_bytes: 2 << 20, ..GatewayOptions::itch() };
    let gateway = host.day.gateway(&host.fixture, &options);
    host.day.play_first_half(&host.fixture);
    host.day.play_second_half(&host.fixture);
    let journal = host.start("");
    journal.wait_for_stderr("alarm=\"journal-hole\"");
    let plain = host.journal("journal").with_extension("dbn");
    wait_until("the journal is closed", || plain.with_extension("names").exists());
    let expected = records_of(&host.replay_offline());
    let records = records_of(&plain);
    assert!(records.len() > 1_000 && expected.ends_with(&records) && records.len() < expected.len());
    let _ = journal.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The names of most instruments are in what the log has lost.
#[test]
fn symbols_that_the_log_has_lost_come_from_the_gateways_service() {
    let host = Host::new(60_000);
    let options = GatewayOptions { segment_bytes: 1 << 20, retention_bytes: 2 << 20, ..GatewayOptions::itch() };
    let gateway = host.day.gateway(&host.fixture, &options);
    host.day.play_first_half(&host.fixture);
    host.day.play_second_half(&host.fixture);
    wait_until("the log has lost its beginning", || {
        log_entries(&host.fixture).first().is_some_and(|entry| entry.first > Sequence(1))
    });
    let journal = host.start("");
    let plain = host.journal("journal").with_extension("dbn");
    wait_until("the journal is closed", || plain.with_extension("names").exists());
    assert_eq!(symbols_of_file(&fs::read(&plain).unwrap()), symbols_of_file(&host.day.expected));
    let _ = journal.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn damaged_files_are_set_aside_and_the_log_fills_in() {
    let host = Host::new(20_000);
    let gateway = host.day.gateway(&host.fixture, &GatewayOptions::itch());
    let journal = host.start("flush_ms = 10");
    host.day.play_first_half(&host.fixture);
    let names = host.journal("journal").with_extension("names.part");
    wait_until("a part is written", || names.exists() && fs::metadata(&names).unwrap().len() > 10_000);
    let _ = journal.stop_with(Signal::Terminate).expect_code(0);
    let mut bytes = fs::read(&names).unwrap();
    bytes[20] ^= 1;
    fs::write(&names, bytes).unwrap();
    let journal = host.start("");
    journal.wait_for_stderr("alarm=\"journal-damaged\"");
    host.day.play_second_half(&host.fixture);
    let second = host.fixture.path(&format!("journal/XNAS.ITCH/{DATE}.{SCHEMAS}.2.dbn"));
    wait_until("another journal is closed", || second.with_extension("names").exists());
    assert!(records_of(&second) == records_of(&host.replay_offline()));
    assert!(names.with_extension("part.damaged").exists());
    let _ = journal.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error() {
    let host = Host::new(1_000);
    let gateway = host.day.gateway(&host.fixture, &GatewayOptions::itch());
    fs::write(host.fixture.path("file"), "").unwrap();
    let journal = host.spawn("file", "");
    let journal = journal.end().expect_code(2);
    assert!(journal.stderr.contains("create") && journal.stderr.contains("/file"), "{}", journal.stderr);
    let folder = host.fixture.path("read-only");
    if let Some(disk) = TmpfsMount::new("a read-only file system under the journal", folder, "1m") {
        disk.set_read_only(true);
        let journal = host.spawn("read-only", "").end().expect_code(2);
        assert!(journal.stderr.contains("Read-only file system"), "{}", journal.stderr);
    }
    let first = host.start("");
    let second = host.spawn("journal", "").end().expect_code(2);
    assert!(second.stderr.contains("another mdgw journal writes these files"), "{}", second.stderr);
    let _ = first.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The leader hands over in the middle of the day. Its journal and the other's hold the same records under the same names: those of the
/// venue's lines.
#[test]
fn the_journals_of_a_pair_are_equal() {
    let mut pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
    let day = TradingDay::of(pair.gateways.fixture(1), 20_000);
    pair.start(1);
    pair.wait_until_leads(1);
    pair.start(2);
    let journals = [1, 2].map(|node| start(pair.gateways.fixture(node), "journal", ""));
    day.play_first_half(pair.gateways.fixture(1));
    pair.wait_until_eligible(2);
    wait_until("the leader hands over", || pair.gateways.ha(1, &["hand-over"]).code == Some(0));
    pair.wait_until_leads(2);
    day.play_second_half(pair.gateways.fixture(1));
    let stem = format!("journal/XNAS.ITCH/{DATE}.{SCHEMAS}.dbn");
    let files = [1, 2].map(|node| pair.gateways.fixture(node).path(&stem));
    for file in &files {
        wait_until("the journal is closed", || file.with_extension("names").exists());
    }
    let _ = process::run(["diff", text(&files[0]), text(&files[1])]).expect_code(0);
    let captures = ["morning.pcap", "afternoon.pcap"].map(|name| pair.gateways.fixture(1).path(name));
    for file in &files {
        let compare = ["replay", "--offline", text(&captures[0]), text(&captures[1]), "--journal", text(file)];
        let _ = process::run(compare).expect_code(0);
    }
    for journal in journals {
        let journal = journal.stop_with(Signal::Terminate).expect_code(0);
        assert!(!journal.stderr.contains("alarm"), "{}", journal.stderr);
    }
    pair.gateways.stop(1);
    pair.gateways.stop(2);
}

/// The channels of one feed share a journal. Killed in the middle of their days, it has each record of each channel once.
#[test]
fn a_killed_journal_of_several_channels_has_each_record_of_each_channel_once() {
    let fixtures: Vec<_> = (0..3).map(|_| GatewayFixture::new()).collect();
    let counts = [6_000, 8_000, 10_000];
    let days: Vec<_> = fixtures.iter().zip(counts).map(|(fixture, count)| TradingDay::of(fixture, count)).collect();
    let options = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let gateway_config = fixtures[0].path("gateway.toml");
    fs::write(&gateway_config, GatewayFixture::config_of_channels(&fixtures, &options)).unwrap();
    let gateway = process::start(["run", text(&gateway_config), "--date", DATE]);
    gateway.wait_for_stderr("gateway running");
    let journal = start(&fixtures[0], "journal", "flush_ms = 10");
    let play = |halves: fn(&TradingDay, &GatewayFixture)| {
        std::thread::scope(|scope| {
            for (day, fixture) in days.iter().zip(&fixtures) {
                scope.spawn(move || halves(day, fixture));
            }
        });
    };
    play(TradingDay::play_first_half);
    let closed = fixtures[0].path(&format!("journal/XNAS.ITCH/{DATE}.{SCHEMAS}.dbn"));
    let open = closed.with_extension("dbn.part");
    wait_until("a part is written", || open.exists() && records_of(&open).len() > 100_000);
    let _ = journal.stop_with(Signal::Kill);
    play(TradingDay::play_second_half);
    let journal = start(&fixtures[0], "journal", "flush_ms = 10");
    wait_until("the journal is closed", || closed.with_extension("names").exists());
    let compare = |channel: &str, captures: [PathBuf; 2]| {
        let files = captures.each_ref().map(|path| text(path));
        let arguments = ["--journal", text(&closed), "--channel", channel, "--json"];
        process::run(["replay", "--offline"].iter().chain(&files).chain(&arguments))
    };
    for (channel, fixture) in ["1", "2", "3"].iter().zip(&fixtures) {
        let captures = ["morning.pcap", "afternoon.pcap"].map(|name| fixture.path(name));
        let compared = compare(channel, captures).expect_code(0).json();
        assert_eq!((compared["same"].as_bool(), compared["common"].as_u64() > Some(5_000)), (Some(true), true));
    }
    // A negative control: another channel's day.
    let captures = ["morning.pcap", "afternoon.pcap"].map(|name| fixtures[1].path(name));
    let _ = compare("1", captures).expect_code(1);
    let journal = journal.stop_with(Signal::Terminate).expect_code(0);
    assert!(!journal.stderr.contains("alarm"), "{}", journal.stderr);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Whatever is wrong with a journal's files, the comparison says what and where, and never that the journal has less than the captures.
#[test]
fn a_damaged_or_truncated_journal_is_an_error_that_names_the_file() {
    let host = Host::new(5_000);
    let gateway = host.day.gateway(&host.fixture, &GatewayOptions::itch());
    let journal = host.start("");
    let compressed = host.start_in("compressed", "compression = \"zstd\"");
    host.day.play_first_half(&host.fixture);
    host.day.play_second_half(&host.fixture);
    let plain = host.journal("journal").with_extension("dbn");
    let packed = host.journal("compressed").with_extension("dbn.zst");
    wait_until("the journal is closed", || plain.with_extension("names").exists());
    wait_until("the other one is compressed", || packed.exists() && !packed.with_extension("").exists());
    let captures = ["morning.pcap", "afternoon.pcap"].map(|name| host.fixture.path(name));
    let compare = |journal: &Path| {
        let files = captures.each_ref().map(|path| text(path));
        process::run(["replay", "--offline"].iter().chain(&files).chain(&["--journal", text(journal)]))
    };
    let _ = compare(&plain).expect_code(0);
    let _ = compare(&packed).expect_code(0);

    let names = plain.with_extension("names");
    let packed_names = packed.with_extension("").with_extension("names");
    let is_refused = |journal: &Path, file: &Path, damage: &dyn Fn(&mut Vec<u8>), expected: &str| {
        let whole = fs::read(file).unwrap();
        let mut bytes = whole.clone();
        damage(&mut bytes);
        fs::write(file, bytes).unwrap();
        let refused = compare(journal).expect_code(2);
        fs::write(file, whole).unwrap();
        let is_clear = refused.stderr.contains(expected) && refused.stderr.contains(text(file));
        assert!(is_clear && !refused.stderr.contains("panic"), "{expected}: {}", refused.stderr);
    };
    let cut = |bytes: usize| move |file: &mut Vec<u8>| file.truncate(file.len() - bytes);
    // The last record of the day is of 56 bytes.
    is_refused(&plain, &plain, &cut(20), "truncated inside a record");
    is_refused(&plain, &names, &cut(20), "inside an entry");
    is_refused(&plain, &names, &cut(64), "the entry that closes the journal is missing");
    is_refused(&plain, &names, &|file| file.truncate(30), "the header is truncated");
    is_refused(&plain, &names, &|file| file[30] ^= 1, "the header is damaged");
    is_refused(&plain, &names, &|file| file[300] ^= 1, "is damaged");
    is_refused(&plain, &names, &Vec::clear, "the header is truncated");
    is_refused(&plain, &plain, &Vec::clear, "the file is empty");
    is_refused(&plain, &plain, &|file| file[0] = b'X', "not a DBN file");
    is_refused(&packed, &packed, &cut(20), "read ");
    is_refused(&packed, &packed_names, &cut(128), "the entry that closes the journal is missing");
    // Whole records are missing: the names know.
    let record_count = records_of(&plain).len() / 2;
    is_refused(&plain, &plain, &cut(record_count / 56 * 56), "truncated: fewer records than");
    fs::remove_file(&names).unwrap();
    let missing = compare(&plain).expect_code(2);
    assert!(missing.stderr.contains(text(&names)) && missing.stderr.contains("No such file"), "{}", missing.stderr);
    for journal in [journal, compressed] {
        let _ = journal.stop_with(Signal::Terminate).expect_code(0);
    }
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// A gateway's host with a day to play.
struct Host {
    fixture: GatewayFixture,
    day: TradingDay,
}

impl Host {
    fn new(messages: u64) -> Self {
        let fixture = GatewayFixture::new();
        let day = TradingDay::of(&fixture, messages);
        Self { fixture, day }
    }

    /// Starts the journal with further keys of `[journal]`.
    fn start(&self, keys: &str) -> MdgwProcess {
        start(&self.fixture, "journal", keys)
    }

    fn start_in(&self, folder: &str, keys: &str) -> MdgwProcess {
        start(&self.fixture, folder, keys)
    }

    fn spawn(&self, folder: &str, keys: &str) -> MdgwProcess {
        process::start(["journal", text(&config(&self.fixture, folder, keys))])
    }

    /// The day's journal, without its ends.
    fn journal(&self, folder: &str) -> PathBuf {
        // An end is to be replaced, not added to a name with dots.
        self.fixture.path(&format!("{folder}/XNAS.ITCH/{DATE}.{SCHEMAS}.end"))
    }

    /// Replays the day offline with the schemas of the gateway.
    fn replay_offline(&self) -> PathBuf {
        self.replay_offline_with("none")
    }

    fn replay_offline_with(&self, ts_recv: &str) -> PathBuf {
        let path = self.fixture.path("offline.dbn");
        let captures = ["morning.pcap", "afternoon.pcap"].map(|name| self.fixture.path(name));
        let files = ["replay", "--offline", text(&captures[0]), text(&captures[1]), "--feed", "nasdaq-itch-5.0"];
        let arguments = ["--ts-recv", ts_recv, "--date", DATE, "-o", text(&path)];
        let _ = process::run(files.iter().chain(&arguments)).expect_code(0);
        path
    }

    /// Waits for the closed journal, which has each record of the day once.
    fn expect_whole_day(&self, folder: &str) {
        let path = self.journal(folder).with_extension("dbn");
        wait_until("the journal is closed", || path.with_extension("names").exists());
        assert!(records_of(&path) == records_of(&self.replay_offline()), "the journal has each record once");
    }
}

fn start(fixture: &GatewayFixture, folder: &str, keys: &str) -> MdgwProcess {
    let journal = process::start(["journal", text(&config(fixture, folder, keys))]);
    journal.wait_for_stderr("journal: ready");
    journal
}

fn config(fixture: &GatewayFixture, folder: &str, keys: &str) -> PathBuf {
    let config = fs::read_to_string(fixture.path("gateway.toml")).unwrap();
    let path = fixture.path(&format!("{folder}.toml"));
    let least = if keys.contains("free_bytes_min") { "" } else { "free_bytes_min = 0\n" };
    let table = format!("[journal]\ndirectory = \"{}\"\n{least}{keys}\n", text(&fixture.path(folder)));
    fs::write(&path, config + &table).unwrap();
    path
}

/// The records of a DBN file.
fn records_of(path: &Path) -> Vec<u8> {
    let mut bytes = fs::read(path).unwrap();
    let metadata_bytes = bytes.get(4..8).map_or(0, |length| u32::from_le_bytes(length.try_into().unwrap()));
    bytes.drain(..bytes.len().min(8 + usize::try_from(metadata_bytes).unwrap()));
    bytes
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn lossy(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// What a channel of this feed publishes by default.
const SCHEMAS: &str = "mbo+status+definition+imbalance+statistics";
