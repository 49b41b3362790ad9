//! A full disk and a closed pipe, for each command that writes. A full disk gives an error with the output's name and
//! exit code 2; a closed pipe is a normal end. What was written before stays.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use mdgw_tests::{
    feeds::{self, DESTINATIONS, MIDNIGHT_NS, SESSION},
    gateway_fixture::text,
    process::{self, program},
    tmpfs::TmpfsMount,
};
use tempfile::TempDir;

#[test]
fn a_full_stdout_is_reported_and_exits_2() {
    let fixtures = OutputFixtures::new();
    for arguments in fixtures.commands_that_print() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = run(&arguments, full.into());
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {stderr}");
        let is_named = stderr.contains("standard output") || stderr.contains("write -");
        assert!(is_named && stderr.contains("No space left"), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_closed_stdout_pipe_is_a_normal_exit() {
    let fixtures = OutputFixtures::new();
    for arguments in fixtures.commands_that_print() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = run(&arguments, writer.into());
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("roken pipe"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_full_disk_names_the_file_and_exits_2() {
    let fixtures = OutputFixtures::new();
    let [a, b, dbn, log] = fixtures.path_strs();
    for arguments in [
        // Already the first write to /dev/full fails.
        &["capture", "--group", UNUSED_ADDRESS, "-o", "/dev/full"][..],
        &["tail", "--line", UNUSED_ADDRESS, "--exit-idle-s", "0.1", "-o", "/dev/full"],
        &["merge", a, b, "-o", "/dev/full"],
        &["convert", dbn, "-o", "/dev/full", "--to", "csv"],
        &["convert", dbn, "-o", "/dev/full", "--to", "json"],
        &["replay", "--offline", a, "-o", "/dev/full"],
        &["report", log, "--html", "/dev/full"],
    ] {
        let ended = process::run(arguments).expect_code(2);
        assert!(ended.stderr.contains("/dev/full") && ended.stderr.contains("No space left"), "{}", ended.stderr);
    }
}

#[test]
fn output_written_before_the_disk_was_full_is_kept() {
    let fixtures = OutputFixtures::new();
    let [a, b, dbn, _] = fixtures.path_strs();
    let [merged, table, records] = ["merged.pcap", "table.csv", "records.dbn"].map(|name| fixtures.path(name));
    let whole_table = csv_of(Path::new(dbn));

    let ended = run_with_file_size_limit(&["merge", a, b, "-o", text(&merged)], &merged);
    assert!(ended.contains(&format!(" at byte {}: ", fs::metadata(&merged).unwrap().len())), "{ended}");
    // The file holds all packets before the limit, and nothing of the packet that did not fit.
    let packets = feeds::capture_packets(&merged);
    let bytes: usize = packets.iter().map(|(_, payload)| 16 + 42 + payload.len()).sum();
    assert_eq!(fs::metadata(&merged).unwrap().len(), 24 + bytes as u64, "pcap, Ethernet, IPv4 and UDP headers");
    let all = feeds::capture_packets(Path::new(a));
    assert!(packets.len() > 100 && packets.len() < all.len(), "{} of {}", packets.len(), all.len());
    assert!(all.starts_with(&packets));

    let ended = run_with_file_size_limit(&["convert", dbn, "-o", text(&table)], &table);
    assert!(ended.contains(&format!(" at byte {}: ", fs::metadata(&table).unwrap().len())), "{ended}");
    let written = fs::read_to_string(&table).unwrap();
    assert!(written.len() > 10_000 && whole_table.starts_with(&written), "{} bytes", written.len());

    let ended =
        run_with_file_size_limit(&["replay", "--offline", a, "--schema", "mbo", "-o", text(&records)], &records);
    let kept = KeptCounts::from_stderr(&ended);
    assert_eq!(fs::metadata(&records).unwrap().len(), kept.bytes);
    assert_eq!(csv_of(&records).lines().count() - 1, kept.records);
    assert!(kept.records > 500 && whole_table.starts_with(&csv_of(&records)), "{ended}");
    assert_no_unfinished_files(fixtures.folder.path());
}

/// Disk sizes: as large as one copy of the file, so that a second copy does not fit, and smaller, so that not all records
/// fit.
#[test]
fn a_disk_filling_up_keeps_fitting_records_and_all_symbols() {
    let folder = tempfile::tempdir().unwrap();
    let [day, whole] = ["day.pcap", "whole.dbn"].map(|name| folder.path().join(name));
    feeds::write_capture(&day, DESTINATIONS[0], &feeds::itch_packets(feeds::itch_day(40_000, 5), SESSION, MIDNIGHT_NS));
    let replay = ["replay", "--offline", text(&day), "--schema", "mbo", "-o"];
    let _ = process::run(replay.iter().copied().chain([text(&whole)])).expect_code(0);
    let bytes = fs::metadata(&whole).unwrap().len();
    let whole_table = csv_of(&whole);
    assert!(bytes > 2_000_000, "{bytes}");

    let title = "a_disk_that_gets_full_keeps_the_records_that_fit_and_all_their_symbols";
    for (name, disk_bytes, is_enough) in [
        ("day.dbn", bytes + 128 * 1024, true),
        ("day.dbn", bytes / 2, false),
        ("day.dbn.zst", bytes + 128 * 1024, true),
        ("day.dbn.zst", bytes / 2, false),
    ] {
        let Some(disk) = TmpfsMount::new(title, folder.path().join("disk"), &disk_bytes.to_string()) else { return };
        let out = disk.path().join(name);
        fs::write(&out, "of yesterday").unwrap();
        let ended = process::run(replay.iter().copied().chain([text(&out)]));
        if is_enough {
            let _ = ended.expect_code(0);
            assert!(csv_of(&out) == whole_table, "{name} on {disk_bytes} bytes");
        } else {
            let stderr = ended.expect_code(2).stderr;
            assert!(stderr.contains(text(&out)) && stderr.contains("No space left"), "{stderr}");
            let (kept, table) = (KeptCounts::from_stderr(&stderr), csv_of(&out));
            assert_eq!(fs::metadata(&out).unwrap().len(), kept.bytes, "{stderr}");
            assert_eq!(table.lines().count() - 1, kept.records, "{stderr}");
            // The table has symbols, which only the metadata holds.
            assert!(whole_table.starts_with(&table), "{name} on {disk_bytes} bytes");
            let wasted = disk_bytes.saturating_sub(kept.records as u64 * MBO_BYTES);
            assert!(wasted < 1024 * 1024 && kept.records > 1_000, "{stderr}");
        }
        assert_no_unfinished_files(disk.path());
    }
}

#[test]
fn a_full_temp_directory_is_named_and_fitting_records_are_written() {
    let fixtures = OutputFixtures::new();
    let [a, _, dbn, _] = fixtures.path_strs();
    let title = "a_full_folder_for_temporary_files_is_named_and_what_fitted_goes_out";
    let Some(disk) = TmpfsMount::new(title, fixtures.path("disk"), "256k") else { return };
    let out = fixtures.path("piped.dbn");
    let ended = Command::new(program())
        .args(["replay", "--offline", a, "--schema", "mbo", "-o", "-"])
        .env("TMPDIR", disk.path())
        .stdout(File::create(&out).unwrap())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{stderr}");
    let spool = format!("its spool in {}: No space left", disk.path().display());
    assert!(stderr.contains("write standard output, after ") && stderr.contains(&spool), "{stderr}");
    let kept = KeptCounts::from_stderr(&stderr);
    assert_eq!(fs::metadata(&out).unwrap().len(), kept.bytes, "{stderr}");
    assert!(kept.records > 1_000 && csv_of(Path::new(dbn)).starts_with(&csv_of(&out)), "{stderr}");
}

/// The counts that an error message reports as kept.
struct KeptCounts {
    records: usize,
    bytes: u64,
}

impl KeptCounts {
    fn from_stderr(error: &str) -> Self {
        let number = |before: &str| -> u64 {
            let (_, rest) = error.split_once(before).unwrap_or_else(|| panic!("{before}: {error}"));
            rest.split(|end: char| !end.is_ascii_digit()).next().unwrap().parse().unwrap()
        };
        Self { records: usize::try_from(number(", after ")).unwrap(), bytes: number("at byte ") }
    }
}

/// The DBN file as CSV, with symbols.
fn csv_of(dbn: &Path) -> String {
    process::run(["convert", text(dbn), "-o", "-", "--to", "csv"]).expect_code(0).stdout
}

fn assert_no_unfinished_files(folder: &Path) {
    let names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains("unfinished")), "{names:?}");
}

const MBO_BYTES: u64 = 56;

/// Runs the command with files limited to 100 kB. Returns its error text, which names `output`.
fn run_with_file_size_limit(arguments: &[&str], output: &Path) -> String {
    // `ulimit -f` limits the file size, in units of 512 bytes. The signal is ignored, so writes beyond the limit fail.
    let limited = r#"trap '' XFSZ; ulimit -f 200; exec "$0" "$@""#;
    let mut command = Command::new("sh");
    let ended = command.args(["-c", limited]).arg(program()).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(stderr.contains(text(output)) && stderr.contains("File too large"), "{arguments:?}: {stderr}");
    stderr
}

fn run(arguments: &[&str], stdout: Stdio) -> Output {
    Command::new(program()).args(arguments).stdin(Stdio::null()).stdout(stdout).output().unwrap()
}

/// A port that the kernel chooses, so that no process sends to it.
const UNUSED_ADDRESS: &str = "127.0.0.1:0";

/// Two lines of a synthetic day, its records, a latency log.
struct OutputFixtures {
    folder: TempDir,
    files: [PathBuf; 4],
}

impl OutputFixtures {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [a, b, dbn] = ["a.pcap", "b.pcap", "day.dbn"].map(|name| folder.path().join(name));
        let packets = feeds::itch_packets(feeds::itch_day(8_000, 5), SESSION, MIDNIGHT_NS);
        for (path, destination) in [&a, &b].into_iter().zip(DESTINATIONS) {
            feeds::write_capture(path, destination, &packets);
        }
        let _ = process::run(["replay", "--offline", text(&a), "--schema", "mbo", "-o", text(&dbn)]).expect_code(0);
        let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/fuzz/latency/uncompressed-v2.hlog");
        Self { folder, files: [a, b, dbn, log] }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn path_strs(&self) -> [&str; 4] {
        self.files.each_ref().map(|path| text(path))
    }

    fn commands_that_print(&self) -> Vec<Vec<&str>> {
        let [a, b, dbn, log] = self.path_strs();
        let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/config/loopback.toml");
        [
            &["inspect", a][..],
            &["inspect", a, "--json"],
            &["inspect", a, "--stats"],
            &["book", a, "--all"],
            &["book", a, "--all", "--json"],
            &["book", a, "--top"],
            &["book", a, "--top", "--json"],
            &["diff", a, b],
            &["diff", a, b, "--json"],
            &["diff", dbn, dbn],
            &["merge", a, b, "-o", "-"],
            &["merge", a, b, "-o", "/dev/null", "--json"],
            &["convert", dbn, "-o", "-", "--to", "csv"],
            &["convert", dbn, "-o", "-", "--to", "json"],
            &["replay", "--offline", a, "-o", "-"],
            &["replay", "--offline", a],
            &["replay", "--offline", a, "--json"],
            &["replay", a, "--max", "--to", "127.0.0.1:9"],
            &["report", log],
            &["report", log, "--json"],
            &["report", log, "--csv"],
            &["check", config],
            &["completions", "bash"],
            &["man"],
            &["capture", "--group", UNUSED_ADDRESS, "-o", "-"],
            &["tail", "--line", UNUSED_ADDRESS, "--exit-idle-s", "0.1", "-o", "-"],
        ]
        .map(<[&str]>::to_vec)
        .into()
    }
}
