//! Writers of each persisted file, and checks of what a killed writer left.
//!
//! A writer runs as a process of its own (`tests/bin/storage_writer.rs`) until SIGKILL ends it. It reports on its standard
//! output, eight bytes at a time, what it was promised as committed. The check opens the file and compares.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write as _},
    os::{fd::AsFd as _, unix::fs::FileExt as _},
    path::Path,
    sync::OnceLock,
    thread,
    time::Duration,
};

use mdgw_election::{
    fitness::{Eligibility, Fitness},
    identity::{Incarnation, NodeId},
    quorum::{
        message::{Operation, Request, Verdict, VoteRequestId, VoterSession},
        vote_file::VoteFile,
        voter::{Voter, VoterInput, VoterOutput},
    },
};
use mdgw_feeds::{
    channel::KnownSession,
    identity::{ChannelId, Epoch, Feed, GroupId, Session},
    time::{MonoNs, TradingDate, UnixNs},
    transport::VenueSession,
};
use mdgw_publog::{Checksum, LogOptions, OpenedLog, Reader, Retention};
use mdgw_runtime::{
    audit::{
        entry::{AuditEvent, PendingEntry},
        file::{AuditFile, AuditHistory},
    },
    state_file::{StartEpoch, StateFile},
};

/// A file that the gateway keeps over a restart, by what a writer of it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredFile {
    /// Publication log. A report is the sequence of a committed entry.
    Log,
    /// A voter's file. A report is the epoch of an answered vote.
    Votes,
    /// State file. A report is the count of an epoch.
    State,
    /// Audit. A report is the count in an entry.
    Audit,
}

impl StoredFile {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Log, Self::Votes, Self::State, Self::Audit];

    /// Name, as the writer takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Votes => "votes",
            Self::State => "state",
            Self::Audit => "audit",
        }
    }

    /// The file of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.name() == name)
    }

    /// Writes to the file in `directory` until the process is killed. `is_early`: reports before it commits, so that the
    /// check has something to find.
    ///
    /// # Errors
    /// When the file cannot be opened or written.
    pub fn write_until_killed(self, directory: &Path, seed: u64, is_early: bool) -> Result<(), String> {
        match self {
            Self::Log => write_log(directory, is_early),
            Self::Votes => vote(directory, seed, is_early),
            Self::State => write_state(directory, is_early),
            Self::Audit => write_audit(directory, is_early),
        }
    }

    /// Checks what killed writers left, against all of their reports, oldest first. `unreported_max`: how many writers may have
    /// been killed between a commit and its report since the last report.
    ///
    /// # Errors
    /// With the broken promise.
    pub fn check(self, directory: &Path, reports: &[u64], unreported_max: u64) -> Result<(), String> {
        match self {
            Self::Log => check_log(directory, reports, unreported_max),
            Self::Votes => check_votes(directory, reports, unreported_max),
            Self::State => check_state(directory, reports),
            Self::Audit => check_audit(directory, reports, unreported_max),
        }
    }
}

/// Reports a promise. The pipe takes eight bytes whole or not at all; the buffer of `Stdout` would split them at a byte that
/// is a newline.
fn report(value: u64) -> Result<(), String> {
    static PIPE: OnceLock<File> = OnceLock::new();
    let pipe = match PIPE.get() {
        Some(pipe) => pipe,
        None => {
            let pipe = io::stdout().as_fd().try_clone_to_owned().map_err(text)?;
            PIPE.get_or_init(|| pipe.into())
        }
    };
    let mut pipe: &File = pipe;
    pipe.write_all(&value.to_le_bytes()).map_err(text)
}

/// The time between report and commit of a writer that reports early.
fn pause() {
    thread::sleep(Duration::from_micros(300));
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// Content of entry `sequence`: its length and bytes depend on the sequence.
fn payload(sequence: u64) -> Vec<u8> {
    sequence.to_le_bytes().repeat(1 + usize::try_from(sequence % 40).unwrap_or(0))
}

/// Options of the log: small segments, so that a kill often meets the change of segments.
#[must_use]
pub fn log_options(directory: &Path) -> LogOptions {
    LogOptions {
        segment_bytes: 16 << 10,
        payload_bytes_max: 512,
        private_bytes: 16 << 10,
        retention: Retention { bytes_max: 160 << 10, age_ns_max: None, protected_bytes_max: 160 << 10 },
        ..LogOptions::new(directory.join("log"), LOG_CHANNEL)
    }
}

/// Appends the entry of that sequence.
///
/// # Panics
/// When the entry is too large.
pub fn append(log: &mut OpenedLog, sequence: u64) {
    log.maintenance.run_once(NOW_NS);
    log.writer.begin(LOG_SESSION, sequence);
    assert!(log.writer.append(&payload(sequence)), "the entry has room");
    log.writer.commit(sequence + 1, 1, 0, NOW_NS);
}

fn write_log(directory: &Path, is_early: bool) -> Result<(), String> {
    let checksum = if is_early { Checksum::Off } else { Checksum::Crc32c };
    let mut log = mdgw_publog::open(LogOptions { checksum, ..log_options(directory) }, NOW_NS).map_err(text)?;
    for sequence in log.recovered.last.map_or(1, |(_, next)| next).. {
        if is_early {
            // The entry is committed before its bytes are there.
            log.maintenance.run_once(NOW_NS);
            log.writer.begin(LOG_SESSION, sequence);
            log.writer.append(&vec![0; payload(sequence).len()]);
            let at = log.writer.commit(sequence + 1, 1, 0, NOW_NS).ok_or("no entry is open")?;
            pause();
            let path = directory.join("log").join(format!("{:016}.segment", at.segment));
            let file = File::options().write(true).open(path).map_err(text)?;
            file.write_all_at(&payload(sequence), at.offset + 64).map_err(text)?;
        } else {
            append(&mut log, sequence);
        }
        report(sequence)?;
    }
    Ok(())
}

/// The sequences that readers get; none of a log that was not made yet.
///
/// # Errors
/// When an entry has other bytes than were written, or follows a later one.
pub fn served_sequences(directory: &Path) -> Result<Vec<u64>, String> {
    if !directory.join("log").exists() {
        return Ok(Vec::new());
    }
    let mut reader = Reader::open(directory.join("log"), LOG_CHANNEL).map_err(text)?;
    let mut sequences: Vec<u64> = Vec::new();
    while let Some(entry) = reader.next() {
        if entry.payload != payload(entry.first) || entry.next != entry.first + 1 || entry.session != LOG_SESSION {
            return Err(format!("entry {} has other bytes than were written", entry.first));
        }
        if sequences.last().is_some_and(|last| *last >= entry.first) {
            return Err(format!("entry {} follows {:?}", entry.first, sequences.last()));
        }
        sequences.push(entry.first);
    }
    Ok(sequences)
}

fn check_log(directory: &Path, reports: &[u64], unreported_max: u64) -> Result<(), String> {
    let promised = reports.last().copied().unwrap_or(0);
    // Readers do not wait for the next writer.
    let before = served_sequences(directory)?;
    let log = mdgw_publog::open(log_options(directory), NOW_NS).map_err(text)?;
    let recovered = log.recovered;
    drop(log);
    if recovered.damaged_segments + recovered.removed_files > 0 {
        return Err(format!("a killed process left damage: {recovered:?}"));
    }
    let sequences = served_sequences(directory)?;
    let last = sequences.last().copied().unwrap_or(0);
    // Opening makes new segments, for which retention removes the oldest.
    if !before.ends_with(&sequences) || recovered.last.map_or(0, |(_, next)| next - 1) != last {
        return Err(format!("opened to {:?}, served through {last}", recovered.last));
    }
    if let Some(pair) = sequences.windows(2).find(|pair| pair[1] != pair[0] + 1) {
        return Err(format!("entry {} follows {}", pair[1], pair[0]));
    }
    is_kept(promised, last, unreported_max)
}

/// What was promised is there, and no more than killed writers can have committed without a report.
fn is_kept(promised: u64, found: u64, unreported_max: u64) -> Result<(), String> {
    let is_kept = (promised..=promised + unreported_max).contains(&found);
    if is_kept { Ok(()) } else { Err(format!("promised {promised}, found {found}, {unreported_max} more allowed")) }
}

fn vote(directory: &Path, seed: u64, is_early: bool) -> Result<(), String> {
    let mut file = VoteFile::open(directory, GROUP).map_err(text)?;
    let session = VoterSession(seed + 1);
    let mut now = MonoNs(0);
    let mut voter = Voter::new(now, file.durable(), session, 200);
    let first = file.durable().epoch.count().max(1);
    for number in 1_u64.. {
        // Both candidates ask for each generation, the last one of the life before included. Promises have run out.
        now = MonoNs(now.0 + 10_000_000_000);
        let generation = first + (number - 1) / 2;
        let node = if (seed ^ generation ^ number).is_multiple_of(2) { 1 } else { 2 };
        let request = Request {
            request_id: VoteRequestId { nonce: seed, number },
            incarnation: Incarnation(1),
            session,
            lease_ns: 100_000_000,
            fitness: Fitness::default(),
            eligibility: Eligibility::Eligible,
            operation: Operation::Vote(Epoch::new(generation, node)),
        };
        let mut outputs = voter.step(now, VoterInput::Request { from: NodeId(node), request });
        while let Some(output) = outputs.pop() {
            match output {
                VoterOutput::Store { write_id, durable } => {
                    if is_early {
                        report(durable.epoch.0)?;
                        pause();
                    }
                    file.store(durable).map_err(text)?;
                    outputs.extend(voter.step(now, VoterInput::Stored(write_id)));
                }
                VoterOutput::Reply { reply, .. } if reply.verdict == Verdict::Granted => {
                    report(Epoch::new(generation, node).0)?;
                }
                VoterOutput::Reply { .. } => {}
            }
        }
    }
    Ok(())
}

fn check_votes(directory: &Path, reports: &[u64], unreported_max: u64) -> Result<(), String> {
    let mut votes = BTreeMap::new();
    for epoch in reports.iter().copied().map(Epoch) {
        let first = *votes.entry(epoch.count()).or_insert_with(|| epoch.node());
        if first != epoch.node() {
            return Err(format!("voted twice in generation {}: for {first} and {}", epoch.count(), epoch.node()));
        }
    }
    let found = VoteFile::open(directory, GROUP).map_err(text)?.durable().epoch;
    let promised = reports.iter().copied().map(Epoch).max().unwrap_or_default();
    // A later vote was written, and not answered.
    let is_later = found.count() > promised.count();
    if found == promised || is_later && found.count() <= promised.count() + unreported_max {
        Ok(())
    } else {
        Err(format!("voted for {promised:?}, found {found:?}"))
    }
}

fn known(restart: u64) -> Result<KnownSession, String> {
    let date = TradingDate::from_yyyymmdd(20_190_130).ok_or("no date")?;
    let restart = u32::try_from(restart).map_err(text)?;
    Ok(KnownSession {
        session: Session { feed: Feed::IexDeep, date, restart },
        venue: VenueSession([7; 16]),
        started: UnixNs(1),
        latest: UnixNs(2),
        has_messages: true,
    })
}

fn write_state(directory: &Path, is_early: bool) -> Result<(), String> {
    let mut file = StateFile::open(directory.join("state.json")).map_err(text)?;
    let mut last = None;
    loop {
        if let (true, Some(last)) = (is_early, last) {
            report(last + 1)?;
            pause();
        }
        let count = file.begin(3, StartEpoch::Next, UnixNs(NOW_NS), 0).map_err(text)?.epoch.count();
        file.set_session(CHANNEL, known(count)?).map_err(text)?;
        if !is_early {
            report(count)?;
        }
        last = Some(count);
    }
}

fn check_state(directory: &Path, reports: &[u64]) -> Result<(), String> {
    if let Some(pair) = reports.windows(2).find(|pair| pair[1] <= pair[0]) {
        return Err(format!("epoch {} follows {}", pair[1], pair[0]));
    }
    let promised = reports.last().copied().unwrap_or(0);
    let mut file = StateFile::open(directory.join("state.json")).map_err(text)?;
    let restart = file.session(CHANNEL).map_or(0, |known| u64::from(known.session.restart));
    if promised > 0 && (restart < promised || file.session(CHANNEL) != Some(known(restart)?)) {
        return Err(format!("stored session {promised}, found {restart}"));
    }
    let next = file.begin(3, StartEpoch::Next, UnixNs(NOW_NS), 0).map_err(text)?.epoch.count();
    if next > promised { Ok(()) } else { Err(format!("used epoch {promised}, begins with {next}")) }
}

/// The event of that number.
#[must_use]
pub fn audit_event(count: u64) -> PendingEntry {
    PendingEntry {
        time: UnixNs(NOW_NS + count),
        group: GROUP,
        node: NodeId(3),
        epoch: Epoch::new(count, 3),
        change: AuditEvent::Lost { reason: "expired ".repeat(1 + usize::try_from(count % 30).unwrap_or(0)).into() },
    }
}

fn write_audit(directory: &Path, is_early: bool) -> Result<(), String> {
    let path = directory.join("audit.jsonl");
    let (mut file, _) = AuditFile::open(&path).map_err(text)?;
    let entries = AuditHistory::read(&path).map_err(text)?.entries;
    let last = entries.iter().map(|entry| entry.epoch_count).max().unwrap_or(0);
    for count in last + 1.. {
        if is_early {
            report(count)?;
            pause();
        }
        file.append(&audit_event(count)).map_err(text)?;
        if !is_early {
            report(count)?;
        }
    }
    Ok(())
}

/// The counts of the events in an audit; none of one that was not made yet.
///
/// # Errors
/// When an entry has other content than was written, or one is missing or repeated.
pub fn audited_counts(path: &Path) -> Result<Vec<u64>, String> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let mut counts: Vec<u64> = Vec::new();
    for entry in AuditHistory::read(path).map_err(text)?.entries {
        if matches!(entry.change, AuditEvent::Torn { .. }) {
            continue;
        }
        let expected = audit_event(entry.epoch_count);
        if entry.change != expected.change || entry.time_ns != expected.time.0 {
            return Err(format!("other content than was written: {entry:?}"));
        }
        if counts.last().is_some_and(|last| last + 1 != entry.epoch_count) {
            return Err(format!("entry {} follows {:?}", entry.epoch_count, counts.last()));
        }
        counts.push(entry.epoch_count);
    }
    Ok(counts)
}

fn check_audit(directory: &Path, reports: &[u64], unreported_max: u64) -> Result<(), String> {
    let promised = reports.last().copied().unwrap_or(0);
    let found = audited_counts(&directory.join("audit.jsonl"))?.last().copied().unwrap_or(0);
    is_kept(promised, found, unreported_max)
}

/// Channel of the log.
pub const LOG_CHANNEL: u16 = 7;
/// Group of votes and audit.
pub const GROUP: GroupId = GroupId(7);
const CHANNEL: ChannelId = ChannelId(7);
const LOG_SESSION: [u8; 16] = [5; 16];
/// Time of everything that is written.
pub const NOW_NS: u64 = 1_700_000_000_000_000_000;
