//! The publication log is read in shared memory by another user, who is only a member of the group that the gateway lets in. A user who is
//! not is refused, and nobody but the gateway can change a file.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    env, fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::Duration,
};

use mdgw_feeds::identity::ChannelId;
use mdgw_log_reader::{
    ConsumerEdges, EdgeOutput, Item, LogChannel, LogReader, LogReaderConfig, LogStart, TsRecvMode, WaitStrategy,
};
use mdgw_publog::{LogOptions, LogWriter, find_writer, open};
use mdgw_sys::unix_group::group_id;
use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions},
    process::{self, Signal},
    skip::skip,
    trading_day::TradingDay,
};

/// A user without rights, and its group.
const NOBODY: u32 = 65_534;
/// A group that every Linux host has, and that neither root nor that user is in by default.
const GROUP: &str = "daemon";
/// Set in the process that reads: the directory of the logs.
const LOG_DIR: &str = "MDGW_TEST_LOG_DIR";
/// Set there: the file for the records.
const RECORDS: &str = "MDGW_TEST_RECORDS";

/// Not beside the log's own tests: a process that begins keeps their locks for a moment.
#[test]
fn a_writer_in_another_pid_namespace_may_be_hidden() {
    let test = "a_writer_in_another_pid_namespace_may_be_hidden";
    if let Some(directory) = env::var_os(LOG_DIR) {
        return assert_eq!(find_writer(Path::new(&directory)).unwrap(), LogWriter::Hidden);
    }
    let directory = tempfile::tempdir().unwrap();
    let _log = open(LogOptions { segment_bytes: 1 << 16, ..LogOptions::new(directory.path(), 1) }, 0).unwrap();
    let in_namespace = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    let make_namespace = Command::new("unshare").args(in_namespace).arg("true").output();
    if !make_namespace.is_ok_and(|output| output.status.success()) {
        return skip(test, "no namespace can be made");
    }
    let mut again = Command::new("unshare");
    again.args(in_namespace).arg(env::current_exe().unwrap()).args(["--exact", &format!("shared_memory::{test}")]);
    let output = again.env(LOG_DIR, directory.path()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
}

#[test]
fn a_member_of_the_group_reads_all_and_others_are_refused() {
    let test = "a_member_of_the_group_reads_all_and_others_are_refused";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root can become other users");
    }
    let Some(group) = group_id(GROUP).unwrap() else { return skip(test, "the host has no group daemon") };
    let fixture = GatewayFixture::new();
    fs::set_permissions(fixture.path(""), fs::Permissions::from_mode(0o711)).unwrap();
    let day = TradingDay::of(&fixture, 20_000);
    // Small segments, so that the reader follows the log across several.
    let options = GatewayOptions {
        gateway: format!("log_group = \"{GROUP}\"\n"),
        segment_bytes: 1 << 20,
        ..GatewayOptions::itch()
    };
    let gateway = day.gateway(&fixture, &options);
    day.play_first_half(&fixture);

    let program = fixture.path("reader");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    let records = fixture.path("records");
    fs::create_dir(&records).unwrap();
    fs::set_permissions(&records, fs::Permissions::from_mode(0o777)).unwrap();
    let log = fixture.path("log");
    let read_as = |group: u32, name: &str| read_as(&program, group, &log, &records.join(name));
    let member = thread::scope(|scope| {
        let member = scope.spawn(|| read_as(group, "member"));
        day.play_second_half(&fixture);
        member.join().unwrap()
    });
    assert!(member.status.success(), "{}", text_of(&member));
    // Records of the whole day, as the decoder makes them without a gateway.
    let metadata_bytes = u32::from_le_bytes(day.expected[4..8].try_into().unwrap()) as usize;
    let expected = &day.expected[8 + metadata_bytes..];
    let read = fs::read(records.join("member")).unwrap();
    assert!(read.len() > 1 << 20 && read == expected, "{} and {} bytes", read.len(), expected.len());

    let other = read_as(NOBODY, "other");
    assert!(!other.status.success() && text_of(&other).contains("Permission denied"), "{}", text_of(&other));
    // Members cannot write, and cannot lock the writer out.
    for path in [log.clone(), log.join("1")].into_iter().chain(files(&log.join("1"))) {
        let metadata = fs::metadata(&path).unwrap();
        let is_lock = path.ends_with("writer.lock");
        let mode = if is_lock {
            0o600
        } else if metadata.is_dir() {
            0o750
        } else {
            0o640
        };
        assert_eq!((metadata.mode() & 0o777, metadata.uid()), (mode, 0), "{}", path.display());
        assert!(is_lock || metadata.gid() == group, "{}", path.display());
    }
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_gateway_with_an_unknown_group_does_not_start() {
    let fixture = GatewayFixture::new();
    let options = GatewayOptions { gateway: "log_group = \"no-such-group\"\n".to_owned(), ..GatewayOptions::itch() };
    let config = fixture.config(&options);
    for command in ["check", "run"] {
        let refused = process::run([command, config.to_str().unwrap()]);
        let text = format!("{}{}", refused.stdout, refused.stderr);
        assert!(text.contains("this host has no such group") && text.contains("no-such-group"), "{command}: {text}");
        assert_ne!(refused.code, Some(0));
    }
}

/// Not a test: the process that another user runs.
#[test]
fn reader_of_another_user() {
    let (Some(log), Some(records)) = (env::var_os(LOG_DIR), env::var_os(RECORDS)) else { return };
    let channel = LogChannel::new(log, ChannelId(1));
    let config = LogReaderConfig {
        start: LogStart::Oldest,
        wait: WaitStrategy::Sleep(Duration::from_micros(100)),
        ..LogReaderConfig::new(vec![channel])
    };
    let mut reader = LogReader::open(config).unwrap_or_else(|error| panic!("{error}"));
    let mut edges = ConsumerEdges::new(TsRecvMode::None);
    let mut file = std::io::BufWriter::new(fs::File::create(records).unwrap());
    let mut has_ended = false;
    while !has_ended {
        let polled = reader.poll(Duration::from_secs(60), &mut |output| {
            assert!(!matches!(output.item, Item::Lost(_) | Item::Gap(_)), "{:?}", output.item);
            has_ended |= matches!(output.item, Item::EndOfSession);
            edges.deliver(&output, |record| {
                if let EdgeOutput::Record { rtype: 0xa0, bytes } = record {
                    file.write_all(bytes).unwrap();
                }
            });
        });
        assert!(polled.unwrap().entries > 0, "the gateway publishes within a minute");
    }
    file.flush().unwrap();
}

/// Runs this test binary as the user without rights, in that group alone.
fn read_as(program: &Path, group: u32, log: &Path, records: &Path) -> Output {
    Command::new("setpriv")
        .args(["--reuid", &NOBODY.to_string(), "--regid", &group.to_string(), "--clear-groups"])
        .arg(program)
        .args(["--exact", "shared_memory::reader_of_another_user", "--nocapture"])
        .env(LOG_DIR, log)
        .env(RECORDS, records)
        .current_dir("/")
        .output()
        .unwrap()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|item| item.unwrap().path()).collect()
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
