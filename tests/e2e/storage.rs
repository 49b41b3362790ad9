//! Publication log, vote file, state file and audit: killed writers, full and read-only disks. Each file opens to what was
//! committed last, or is refused with the reason.
//!
//! SIGKILL does not lose the page cache. Power losses are imitated beside the code: `gateway/publog/src/damage.rs` (pages of
//! different moments), and the tests of torn and changed bytes in the module of each file.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    env, fs,
    io::{ErrorKind, Read as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use mdgw_election::quorum::vote_file::VoteFile;
use mdgw_feeds::time::UnixNs;
use mdgw_publog::LogOptions;
use mdgw_runtime::{
    audit::file::{AuditFile, AuditHistory},
    state_file::{StartEpoch, StateFile},
};
use mdgw_tests::{
    captures::print_to_stderr,
    storage::{GROUP, NOW_NS, StoredFile, append, audit_event, audited_counts, log_options, served_sequences},
    tmpfs::TmpfsMount,
};

/// Writers that are killed one after the other in one directory.
const LIVES: u64 = 25;

#[test]
fn a_killed_writer_leaves_what_it_was_promised() {
    let _alone = alone();
    let kills: u64 = env::var("SEEDS").map_or(60, |seeds| seeds.parse().unwrap());
    let begun = Instant::now();
    // A log in memory reuses segments.
    let cases = StoredFile::ALL.map(|file| (file, env::temp_dir())).into_iter();
    let cases: Vec<_> = cases.chain([(StoredFile::Log, PathBuf::from("/dev/shm"))]).collect();
    let mut reported = vec![0_usize; cases.len()];
    let mut done = 0_u64;
    while done < kills {
        for ((file, place), reported) in cases.iter().zip(&mut reported) {
            let lives = LIVES.min((kills - done).div_ceil(cases.len() as u64));
            let (file, directory) = (*file, tempfile::tempdir_in(place).unwrap());
            let (mut reports, mut unreported_max) = (Vec::new(), 0);
            for seed in done..done + lives {
                let before = reports.len();
                kill_writer(file, directory.path(), seed, false, &mut reports);
                unreported_max = if reports.len() > before { 1 } else { unreported_max + 1 };
                if let Err(broken) = file.check(directory.path(), &reports, unreported_max) {
                    panic!("{}, after the kill of seed {seed}: {broken}", file.name());
                }
            }
            *reported += reports.len();
            done += lives;
            if done >= kills {
                break;
            }
        }
    }
    let names: Vec<_> = cases.iter().map(|(file, place)| format!("{} in {}", file.name(), place.display())).collect();
    let took_s = begun.elapsed().as_secs();
    print_to_stderr(&format!("{done} writers killed in {took_s} s; promises kept: {names:?} {reported:?}"));
    assert!(kills < 16 || reported.iter().all(|count| *count > 10), "too few promises to judge");
}

#[test]
fn a_writer_that_reports_before_it_commits_is_found() {
    let _alone = alone();
    for file in StoredFile::ALL {
        let directory = tempfile::tempdir().unwrap();
        let mut reports = Vec::new();
        // Commits without a report are allowed in any number: only a lost promise or wrong bytes count.
        let found = (0..200).find_map(|seed| {
            kill_writer(file, directory.path(), seed, true, &mut reports);
            file.check(directory.path(), &reports, 1_000).err()
        });
        let expected = if file == StoredFile::Log { "other bytes" } else { "found" };
        let found = found.unwrap_or_else(|| panic!("{}: nothing found in 200 kills", file.name()));
        assert!(found.contains(expected) || found.contains("voted twice"), "{}: {found}", file.name());
    }
}

/// One test at a time: a child that another test has just forked holds this process's file locks until it executes its program.
fn alone() -> MutexGuard<'static, ()> {
    static TESTS: Mutex<()> = Mutex::new(());
    TESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a writer, kills it at a random moment, and adds what it reported. The moment comes some reports and some
/// microseconds after the start, both drawn from the seed.
fn kill_writer(file: StoredFile, directory: &Path, seed: u64, is_early: bool, reports: &mut Vec<u64>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_storage_writer"));
    command.arg(file.name()).arg(directory).arg(seed.to_string()).args(is_early.then_some("--early"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mixed = mix(seed);
    // One life in eight is killed without waiting for a report: while the file is opened or made.
    let reports_before = match (mixed % 8, file) {
        (0, _) => 0,
        (_, StoredFile::Log) => 1 + mixed / 8 % 400,
        _ => 1 + mixed / 8 % 12,
    };
    let mut bytes = [0; 8];
    for _ in 0..reports_before {
        stdout.read_exact(&mut bytes).expect("the writer ends only by a kill");
        reports.push(u64::from_le_bytes(bytes));
    }
    let delay_us = mix(mixed) % if reports_before == 0 { 20_000 } else { 1_500 };
    thread::sleep(Duration::from_micros(delay_us));
    child.kill().unwrap();
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), None, "the writer ended by itself");
    let (whole, torn) = rest.as_chunks::<8>();
    assert!(torn.is_empty());
    reports.extend(whole.iter().map(|bytes| u64::from_le_bytes(*bytes)));
}

/// The next epoch of a state file, which is used by this.
fn next_epoch(directory: &Path) -> u64 {
    StateFile::open(directory.join("state.json"))
        .unwrap()
        .begin(3, StartEpoch::Next, UnixNs(NOW_NS), 0)
        .unwrap()
        .epoch
        .count()
}

#[test]
fn a_full_disk_refuses_what_it_cannot_keep_and_everything_continues_when_it_has_space() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mounted = TmpfsMount::new("files on a full disk", folder.path().join("disk"), "2m");
    let Some(disk) = mounted else { return };
    let path = disk.path();
    let (state_path, audit_path) = (path.join("state.json"), path.join("audit.jsonl"));

    // Files that do not exist yet: refused with the reason, and nothing is left that stops the next start.
    disk.fill();
    assert!(VoteFile::open(path, GROUP).unwrap_err().to_string().contains("No space left"), "vote file");
    let refused = mdgw_publog::open(log_options(path), NOW_NS).unwrap_err().to_string();
    assert!(refused.contains("No space left"), "{refused}");
    disk.remove_filler();

    let mut votes = VoteFile::open(path, GROUP).unwrap();
    let mut state = StateFile::open(&state_path).unwrap();
    let (mut audit, _) = AuditFile::open(&audit_path).unwrap();
    let mut log = mdgw_publog::open(log_options(path), NOW_NS).unwrap();
    let epoch = state.begin(3, StartEpoch::Next, UnixNs(NOW_NS), 0).unwrap().epoch;
    audit.append(&audit_event(1)).unwrap();
    append(&mut log, 1);

    disk.fill();
    // A vote needs no space. A state that is not on disk is not used.
    let vote = mdgw_election::quorum::voter::DurableVote { epoch, ..votes.durable() };
    votes.store(vote).unwrap();
    let error = state.begin(3, StartEpoch::Next, UnixNs(NOW_NS), 0).unwrap_err().to_string();
    assert!(error.contains("No space left") && error.contains("state.json"), "{error}");
    drop(state);
    let mut state = StateFile::open(&state_path).unwrap();
    let refused = (2..2_000).find(|count| audit.append(&audit_event(*count)).is_err());
    let audited = refused.expect("the disk is full") - 1;
    // The log goes on in private memory, which readers miss.
    for sequence in 2..=2_000 {
        append(&mut log, sequence);
    }
    assert!(log.maintenance.counts().no_space > 0 && log.writer.counts().entries_private > 0);
    let served = served_sequences(path).unwrap();
    assert!(served.len() < 2_000, "{} entries", served.len());

    disk.remove_filler();
    assert_eq!(state.begin(3, StartEpoch::Next, UnixNs(NOW_NS), 0).unwrap().epoch.count(), epoch.count() + 1);
    audit.append(&audit_event(audited + 1)).unwrap();
    drop((audit, votes, state));
    assert_eq!(audited_counts(&audit_path).unwrap(), (1..=audited + 1).collect::<Vec<_>>());
    assert_eq!(VoteFile::open(path, GROUP).unwrap().durable(), vote);
    append(&mut log, 2_001);
    drop(log);
    let log = mdgw_publog::open(log_options(path), NOW_NS).unwrap();
    assert_eq!(log.recovered.last.map(|(_, next)| next), Some(2_002));
    assert_eq!((log.recovered.damaged_segments, log.recovered.removed_files), (0, 0));
}

#[test]
fn a_read_only_disk_is_named_and_what_is_on_it_can_be_read() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mounted = TmpfsMount::new("files on a read-only disk", folder.path().join("disk"), "2m");
    let Some(disk) = mounted else { return };
    let path = disk.path();
    let (state_path, audit_path) = (path.join("state.json"), path.join("audit.jsonl"));
    drop(VoteFile::open(path, GROUP).unwrap());
    StateFile::open(&state_path).unwrap().begin(3, StartEpoch::Next, UnixNs(NOW_NS), 0).unwrap();
    AuditFile::open(&audit_path).unwrap().0.append(&audit_event(1)).unwrap();
    let mut log = mdgw_publog::open(log_options(path), NOW_NS).unwrap();
    append(&mut log, 1);
    drop(log);

    disk.set_read_only(true);
    let new_log = LogOptions { directory: path.join("another"), ..log_options(path) };
    let refusals = [
        VoteFile::open(path, GROUP).map(drop).map_err(|error| error.to_string()),
        StateFile::open(&state_path).map(drop).map_err(|error| error.to_string()),
        AuditFile::open(&audit_path).map(drop).map_err(|error| error.to_string()),
        mdgw_publog::open(log_options(path), NOW_NS).map(drop).map_err(|error| error.to_string()),
        mdgw_publog::open(new_log, NOW_NS).map(drop).map_err(|error| error.to_string()),
    ];
    for refused in refusals {
        let error = refused.unwrap_err();
        let reason = std::io::Error::from(ErrorKind::ReadOnlyFilesystem).to_string();
        assert!(error.contains("Read-only file system") || error.contains(&reason), "{error}");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(served_sequences(path).unwrap(), [1]);
    assert_eq!(AuditHistory::read(&audit_path).unwrap().entries.len(), 1);

    disk.set_read_only(false);
    assert_eq!(next_epoch(path), 2);
    assert_eq!(mdgw_publog::open(log_options(path), NOW_NS).unwrap().recovered.last.map(|(_, next)| next), Some(2));
    assert!(fs::metadata(path.join("group-7.vote")).is_ok() && VoteFile::open(path, GROUP).is_ok());
}

/// splitmix64.
fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
