//! The state that must survive a reboot: each group's epoch count, the last start, each channel's session with its restart
//! count, and the channel's position at an orderly shutdown. It is synced to disk before it counts. For cold threads.
//!
//! JSON, written completely to a neighbouring file that then replaces the old one. So a crash at any moment leaves
//! either the old or the new state. A checksum of the values is stored with them: a changed digit would otherwise be
//! another valid number, for example an epoch that was used before.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use mdgw_election::identity::Incarnation;
use mdgw_feeds::{
    channel::KnownSession,
    identity::{ChannelId, Epoch, Feed, GroupId, Sequence, Session},
    time::{TradingDate, UnixNs},
    transport::VenueSession,
};
use mdgw_sys::file_lock::try_lock;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The state in force, and the file that holds it.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    state: State,
    /// Locked file beside the state file: two gateways with one state file would publish under one epoch.
    _lock: File,
}

/// Which epoch a start has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartEpoch {
    /// Of a standalone gateway, which publishes all groups under it: above every epoch that the file issued or stored.
    Next,
    /// Of an elected gateway: the stored ones. The election of a group opens above [`StateFile::group_epoch`].
    Stored,
}

/// One start of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Of a standalone gateway: the epoch of this start, above every earlier epoch of this gateway. Of an elected one: the
    /// highest epoch of any group that its earlier starts knew, under this gateway's number.
    pub epoch: Epoch,
    /// Time of the start, later than every earlier start even if the clock was set back. Since it is a time, a gateway
    /// whose state file was lost with its host does not reuse an incarnation that its peers know to have ended.
    pub incarnation: Incarnation,
}

/// Where a channel's output continues after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePosition {
    /// Last session of the channel.
    pub session: Session,
    /// First sequence that the output does not cover.
    pub next: Sequence,
    /// Whether the venue had ended the session.
    pub has_ended: bool,
}

/// Why the state could not be read or stored.
#[derive(Debug, Error)]
pub enum StateError {
    /// The operating system refused.
    #[error("cannot {act} state file {}: {source}", path.display())]
    Io {
        /// Operation that failed.
        act: &'static str,
        /// Path of the state file, as configured.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The content is not what this program writes.
    #[error(
        "state file {} is damaged: {reason}. Restore it from a copy. If you remove it, restart all receivers too: epochs start again at 1, and receivers drop packets with a lower epoch than before",
        path.display()
    )]
    Damaged {
        /// Path of the state file, as configured.
        path: PathBuf,
        /// Which part of the file is invalid, and why.
        reason: String,
    },
    /// Another gateway has locked the state file.
    #[error("state file {} is in use by another gateway", path.display())]
    Busy {
        /// Path of the state file, as configured.
        path: PathBuf,
    },
    /// The epoch count has reached its maximum, 2^56 - 1.
    #[error("state file {}: epoch numbers exhausted", path.display())]
    EpochsExhausted {
        /// Path of the state file, as configured.
        path: PathBuf,
    },
}

/// What the file has of one channel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoredChannel {
    /// The last one that began.
    pub session: Option<KnownSession>,
    /// The position in that session at the last orderly shutdown.
    pub shutdown_position: Option<ResumePosition>,
}

impl StateFile {
    /// Reads the file; a missing file means a first start. The file is locked as long as this lives. The lock is on a
    /// neighbouring file, since new files replace the state file itself.
    ///
    /// # Errors
    /// When it cannot be read, has other content than [`StateFile`] writes, or another gateway has locked it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StateError> {
        let path = path.into();
        let lock = open_lock(&path).map_err(|source| StateError::Io { act: "lock", path: path.clone(), source })?;
        let Some(lock) = lock else { return Err(StateError::Busy { path }) };
        let state = Self::read(&path)?;
        Ok(Self { path, state, _lock: lock })
    }

    /// Whether a gateway could read the file: it is missing, or has what a gateway writes. Makes no file and takes no lock.
    ///
    /// # Errors
    /// When it cannot be read, or has other content than [`StateFile`] writes.
    pub fn check(path: &Path) -> Result<(), StateError> {
        Self::read(path).map(drop)
    }

    fn read(path: &Path) -> Result<State, StateError> {
        // Opening a pipe would block.
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            let source = io::Error::other("not a regular file");
            return Err(StateError::Io { act: "read", path: path.to_owned(), source });
        }
        match fs::read(path) {
            Ok(bytes) => State::parse(&bytes).map_err(|reason| StateError::Damaged { path: path.to_owned(), reason }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(State::default()),
            Err(source) => Err(StateError::Io { act: "read", path: path.to_owned(), source }),
        }
    }

    /// Records a start of the gateway: its incarnation, and for a standalone gateway an epoch above every epoch that this
    /// file issued or stored before. Both are on disk when this returns. The election opens above the stored epoch, so the
    /// start of an elected gateway needs none: with one for each start, a gateway that was restarted often would know an
    /// epoch above those of the leader's record, and could not open as its designated successor.
    ///
    /// `random_number` distinguishes two gateways that start under one identity at the same moment, as clones of a host
    /// do. For that reason the incarnation may lie up to a second after `now`.
    ///
    /// # Errors
    /// When they cannot be written: they must not be used then.
    pub fn begin(
        &mut self,
        node: u8,
        start_epoch: StartEpoch,
        now: UnixNs,
        random_number: u64,
    ) -> Result<Start, StateError> {
        let epoch_count = match start_epoch {
            StartEpoch::Next => self.state.highest_epoch_count().saturating_add(1),
            StartEpoch::Stored => self.state.highest_epoch_count(),
        };
        if epoch_count > EPOCH_COUNT_MAX {
            return Err(StateError::EpochsExhausted { path: self.path.clone() });
        }
        let later_us = (now.0 / 1_000).max(self.state.started_us.saturating_add(1));
        let started_us = later_us.saturating_add(random_number % RANDOM_US);
        let mut state = State { started_us, ..self.state.clone() };
        if start_epoch == StartEpoch::Next {
            // It is published in every group.
            state.epoch_count = epoch_count;
        }
        self.replace(state)?;
        Ok(Start { epoch: Epoch::new(epoch_count, node), incarnation: Incarnation(started_us) })
    }

    /// The highest epoch of that group that earlier starts of this gateway knew, with node number 0: the file has the count
    /// alone, and the epoch may be another gateway's. Under its own number a restarted standby, which reports to its peers
    /// what it knows, would outrank the leader of that count.
    #[must_use]
    pub(crate) fn group_epoch(&self, group: GroupId) -> Epoch {
        Epoch::new(self.state.group_epoch_count(group), 0)
    }

    /// Stores each group's epoch as used, so that later epochs of this gateway in that group are above it. Writes only if
    /// the count of one is higher than the stored one.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn record_epochs(
        &mut self,
        epochs: impl IntoIterator<Item = (GroupId, Epoch)>,
    ) -> Result<(), StateError> {
        let is_higher = |(group, epoch): &(GroupId, Epoch)| epoch.count() > self.state.group_epoch_count(*group);
        let higher: Vec<_> = epochs.into_iter().filter(is_higher).collect();
        if higher.is_empty() {
            return Ok(());
        }
        let mut state = self.state.clone();
        state.group_epoch_counts.extend(higher.into_iter().map(|(group, epoch)| (group.0, epoch.count())));
        self.replace(state)
    }

    /// Whether the file is of an earlier start, and not new.
    pub(crate) fn has_earlier_start(&self) -> bool {
        self.state != State::default()
    }

    /// The last session of a channel.
    #[must_use]
    pub fn session(&self, channel: ChannelId) -> Option<KnownSession> {
        self.state.sessions.get(&channel.0).and_then(StoredSession::to_known_session)
    }

    /// Stores a channel's session. Writes only if the session is new, or its first message has arrived.
    ///
    /// # Errors
    /// When it cannot be written; the old one then stays in force.
    pub fn set_session(&mut self, channel: ChannelId, known: KnownSession) -> Result<(), StateError> {
        let is_stored =
            |stored: KnownSession| stored.session == known.session && stored.has_messages >= known.has_messages;
        if self.session(channel).is_some_and(is_stored) {
            return Ok(());
        }
        let mut state = self.state.clone();
        state.sessions.insert(channel.0, StoredSession::of(&known));
        self.replace(state)
    }

    /// The position of a channel's present session at the last orderly shutdown. After a later crash, only the
    /// publication log shows the position.
    #[must_use]
    pub fn shutdown_position(&self, channel: ChannelId) -> Option<ResumePosition> {
        let session = self.session(channel)?.session;
        let StoredPosition { next, has_ended } = self.state.sessions.get(&channel.0)?.shutdown_position?;
        Some(ResumePosition { session, next: Sequence(next), has_ended })
    }

    /// What is stored of a channel.
    #[must_use]
    pub(crate) fn stored(&self, channel: ChannelId) -> StoredChannel {
        StoredChannel { session: self.session(channel), shutdown_position: self.shutdown_position(channel) }
    }

    /// Stores the channels' positions at the shutdown. Positions of sessions that are not stored are ignored.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record_shutdown(
        &mut self,
        channels: impl IntoIterator<Item = (ChannelId, ResumePosition)>,
    ) -> Result<(), StateError> {
        let mut state = self.state.clone();
        for (channel, ResumePosition { session, next, has_ended }) in channels {
            let is_stored = self.session(channel).is_some_and(|kept| kept.session == session);
            if let Some(stored) = state.sessions.get_mut(&channel.0).filter(|_| is_stored) {
                stored.shutdown_position = Some(StoredPosition { next: next.0, has_ended });
            }
        }
        if state == self.state { Ok(()) } else { self.replace(state) }
    }

    fn replace(&mut self, state: State) -> Result<(), StateError> {
        write_synced(&self.path, state.with_checksum().as_bytes()).map_err(|(act, source)| StateError::Io {
            act,
            path: self.path.clone(),
            source,
        })?;
        self.state = state;
        Ok(())
    }
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    version: u32,
    /// Of every group without a higher one of its own: the last epoch of a standalone gateway, or the one that version 1 or
    /// 2 stored for all groups.
    epoch_count: u64,
    /// By group number. Absent before version 3.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    group_epoch_counts: BTreeMap<u16, u64>,
    /// The last start, us since 1970 UTC.
    #[serde(default)]
    started_us: u64,
    #[serde(rename = "numberings")]
    sessions: BTreeMap<u16, StoredSession>,
    /// CRC-32C of the other fields, as [`State::to_text`] writes them without this one. Absent in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<u32>,
}

/// The field that each version has.
#[derive(Deserialize)]
struct StateVersion {
    version: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSession {
    feed: String,
    /// Trading date as a number, `YYYYMMDD`.
    date: u32,
    restart: u32,
    /// The venue's name of the session.
    venue: [u8; 16],
    /// The venue's sending times of its first packet and of the newest packet when this was stored, ns since 1970 UTC.
    started_ns: u64,
    latest_ns: u64,
    /// Whether a message of the session had arrived. Older files do not have this field; nearly every session has
    /// messages.
    #[serde(default = "default_true")]
    has_messages: bool,
    /// Its position at an orderly shutdown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "left_at")]
    shutdown_position: Option<StoredPosition>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPosition {
    next: u64,
    has_ended: bool,
}

fn default_true() -> bool {
    true
}

impl Default for State {
    fn default() -> Self {
        Self {
            version: VERSION,
            epoch_count: 0,
            group_epoch_counts: BTreeMap::new(),
            started_us: 0,
            sessions: BTreeMap::new(),
            crc32c: None,
        }
    }
}

impl State {
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > FILE_BYTES_MAX {
            return Err(format!("{} bytes exceed the maximum size", bytes.len()));
        }
        // The version alone first: another version may have other fields.
        let StateVersion { version } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if !(VERSION_WITHOUT_CHECKSUM..=VERSION).contains(&version) {
            return Err(format!("version {version}, expected {VERSION}"));
        }
        let mut state: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match (version, state.crc32c.take()) {
            (VERSION_WITHOUT_CHECKSUM, None) => {}
            (VERSION_OF_ONE_EPOCH..=VERSION, Some(crc)) if crc == crc32c::crc32c(state.to_text().as_bytes()) => {}
            _ => return Err("its checksum does not match its content".to_owned()),
        }
        if version < VERSION && !state.group_epoch_counts.is_empty() {
            return Err(format!("version {version} has no epochs of groups"));
        }
        state.version = VERSION;
        let highest = state.highest_epoch_count();
        if highest > EPOCH_COUNT_MAX {
            return Err(format!("epoch count {highest} exceeds 56 bits"));
        }
        for (channel, stored) in &state.sessions {
            stored.to_known_session().ok_or_else(|| format!("invalid session of channel {channel}: {stored:?}"))?;
        }
        Ok(state)
    }

    fn group_epoch_count(&self, group: GroupId) -> u64 {
        self.group_epoch_counts.get(&group.0).copied().unwrap_or(0).max(self.epoch_count)
    }

    fn highest_epoch_count(&self) -> u64 {
        self.group_epoch_counts.values().copied().max().unwrap_or(0).max(self.epoch_count)
    }

    /// The content of the file. In memory a state has no checksum.
    fn with_checksum(&self) -> String {
        Self { crc32c: Some(crc32c::crc32c(self.to_text().as_bytes())), ..self.clone() }.to_text()
    }

    fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("plain numbers and strings")) + "\n"
    }
}

impl StoredSession {
    fn of(known: &KnownSession) -> Self {
        let KnownSession { session, venue, started, latest, has_messages } = known;
        Self {
            feed: session.feed.name().to_owned(),
            date: session.date.yyyymmdd(),
            restart: session.restart,
            venue: venue.0,
            started_ns: started.0,
            latest_ns: latest.0,
            has_messages: *has_messages,
            shutdown_position: None,
        }
    }

    fn to_known_session(&self) -> Option<KnownSession> {
        let feed = Feed::from_name(&self.feed)?;
        let session = Session { feed, date: TradingDate::from_yyyymmdd(self.date)?, restart: self.restart };
        Some(KnownSession {
            session,
            venue: VenueSession(self.venue),
            started: UnixNs(self.started_ns),
            latest: UnixNs(self.latest_ns),
            has_messages: self.has_messages,
        })
    }
}

/// Opens and locks the lock file; `None` if another process holds the lock.
fn open_lock(path: &Path) -> io::Result<Option<File>> {
    fs::create_dir_all(directory_of(path))?;
    let lock = File::options().write(true).create(true).truncate(false).open(sibling_path(path, ".lock"))?;
    Ok(try_lock(&lock)?.then_some(lock))
}

pub(crate) fn sibling_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Replaces the file's content so that a crash leaves the old one or the new one.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), (&'static str, io::Error)> {
    let new_path = sibling_path(path, ".new");
    let directory = directory_of(path);
    let mut file = File::create(&new_path).map_err(|error| ("create", error))?;
    file.write_all(bytes).map_err(|error| ("write", error))?;
    file.sync_all().map_err(|error| ("sync", error))?;
    fs::rename(&new_path, path).map_err(|error| ("replace", error))?;
    // Without this the new name itself may be lost in a crash of the host.
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(|error| ("sync the directory of", error))
}

/// Range of the random part of an incarnation, us: about a second.
const RANDOM_US: u64 = 1 << 20;
const VERSION: u32 = 3;
/// Version 2 had one epoch count for all groups. It is read, and replaced by the next write.
const VERSION_OF_ONE_EPOCH: u32 = 2;
/// Version 1 had no checksum either. It is read, and replaced by the next write.
const VERSION_WITHOUT_CHECKSUM: u32 = 1;
const EPOCH_COUNT_MAX: u64 = u64::MAX >> 8;
/// Largest state file that is read: above 65,536 channels of some 100 bytes.
const FILE_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const NOW: UnixNs = UnixNs(1_700_000_000_000_000_000);

    pub(crate) fn known(restart: u32) -> KnownSession {
        let date = TradingDate::from_yyyymmdd(20_170_425).unwrap();
        KnownSession {
            session: Session { feed: Feed::IexDeep, date, restart },
            venue: VenueSession([7; 16]),
            started: UnixNs(1),
            latest: UnixNs(2),
            has_messages: true,
        }
    }

    /// A file as version 1 wrote it: without a checksum, and without a field that later files of version 1 have.
    fn as_version_1(text: &str, absent: &str) -> String {
        let crc = text.rfind(",\n  \"crc32c\":").unwrap();
        let text = format!("{}\n}}\n", &text[..crc]);
        assert!(text.contains(absent));
        text.replace("\"version\": 3", "\"version\": 1").replace(absent, "")
    }

    #[test]
    fn epochs_and_incarnations_grow_across_restarts_even_if_the_clock_goes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep").join("state.json");
        let begin = |now_ns| StateFile::open(&path).unwrap().begin(3, StartEpoch::Next, UnixNs(now_ns), RANDOM_US);
        for (now_ns, epoch_count, started_us) in [
            (7_000_000_999, 1, 7_000_000),
            (7_000_000_999, 2, 7_000_001),
            (0, 3, 7_000_002),
            (9_000_000_000, 4, 9_000_000),
        ] {
            let start = begin(now_ns).unwrap();
            assert_eq!(start, Start { epoch: Epoch::new(epoch_count, 3), incarnation: Incarnation(started_us) });
        }
        // A file of an older version, without the time of the last start.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, as_version_1(&text, "\n  \"started_us\": 9000000,")).unwrap();
        assert_eq!(begin(5_000).unwrap(), Start { epoch: Epoch::new(5, 3), incarnation: Incarnation(5) });
        StateFile::open(&path).unwrap().record_epochs([(GroupId(1), Epoch::new(EPOCH_COUNT_MAX, 0))]).unwrap();
        assert!(matches!(begin(0).unwrap_err(), StateError::EpochsExhausted { .. }));
        let clone = |name: &str, random_number| {
            StateFile::open(directory.path().join(name))
                .unwrap()
                .begin(3, StartEpoch::Next, NOW, random_number)
                .unwrap()
        };
        assert_ne!(clone("a", 6).incarnation, clone("b", 7).incarnation);
    }

    #[test]
    fn starts_of_an_elected_gateway_raise_no_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let begin = |start_epoch| StateFile::open(&path).unwrap().begin(3, start_epoch, NOW, 0).unwrap();
        let first = begin(StartEpoch::Stored);
        assert_eq!(first.epoch, Epoch::new(0, 3));
        assert!(begin(StartEpoch::Stored).incarnation > first.incarnation);
        StateFile::open(&path).unwrap().record_epochs([(GroupId(1), Epoch::new(7, 1))]).unwrap();
        for _ in 0..3 {
            assert_eq!(begin(StartEpoch::Stored).epoch, Epoch::new(7, 3));
        }
        // A standalone gateway publishes under the epoch of its start.
        assert_eq!(begin(StartEpoch::Next).epoch, Epoch::new(8, 3));
    }

    #[test]
    fn a_new_epoch_is_above_every_recorded_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = StateFile::open(&path).unwrap();
        for count in [40, 39] {
            state.record_epochs([(GroupId(2), Epoch::new(count, 9))]).unwrap();
        }
        drop(state);
        assert_eq!(
            StateFile::open(&path).unwrap().begin(3, StartEpoch::Next, NOW, 0).unwrap().epoch,
            Epoch::new(41, 3)
        );
    }

    #[test]
    fn each_group_has_an_epoch_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let group_counts = |state: &StateFile| {
            [1, 2, 3].map(|group| {
                let epoch = state.group_epoch(GroupId(group));
                assert_eq!(epoch.node(), 0, "the file does not say whose epoch it was");
                epoch.count()
            })
        };
        let mut state = StateFile::open(&path).unwrap();
        state.record_epochs([(GroupId(1), Epoch::new(10, 1)), (GroupId(2), Epoch::new(5, 2))]).unwrap();
        state.record_epochs([(GroupId(1), Epoch::new(9, 1)), (GroupId(2), Epoch::new(6, 2))]).unwrap();
        drop(state);
        let mut state = StateFile::open(&path).unwrap();
        assert_eq!(group_counts(&state), [10, 6, 0]);
        assert_eq!(state.begin(4, StartEpoch::Stored, NOW, 0).unwrap().epoch, Epoch::new(10, 4));
        assert_eq!(group_counts(&state), [10, 6, 0]);
        // Nothing new is not written.
        fs::remove_file(&path).unwrap();
        state.record_epochs([(GroupId(1), Epoch::new(10, 3)), (GroupId(2), Epoch::new(1, 2))]).unwrap();
        assert!(!path.exists());
        // A standalone gateway publishes all groups under the epoch of its start.
        assert_eq!(state.begin(4, StartEpoch::Next, NOW, 0).unwrap().epoch, Epoch::new(11, 4));
        assert_eq!(group_counts(&state), [11; 3]);
        state.record_epochs([(GroupId(3), Epoch::new(12, 1))]).unwrap();
        drop(state);
        assert_eq!(group_counts(&StateFile::open(&path).unwrap()), [11, 11, 12]);
    }

    #[test]
    fn restart_counts_survive_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = StateFile::open(&path).unwrap();
        assert_eq!(state.session(ChannelId(1)), None);
        state.set_session(ChannelId(1), known(0)).unwrap();
        state.set_session(ChannelId(2), known(4)).unwrap();
        state.set_session(ChannelId(1), known(11)).unwrap();
        state.begin(0, StartEpoch::Next, NOW, 0).unwrap();
        drop(state);
        let state = StateFile::open(&path).unwrap();
        assert_eq!((state.session(ChannelId(1)), state.session(ChannelId(2))), (Some(known(11)), Some(known(4))));
    }

    #[test]
    fn the_first_message_of_a_session_is_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = StateFile::open(&path).unwrap();
        for has_messages in [false, true, false] {
            state.set_session(ChannelId(1), KnownSession { has_messages, ..known(0) }).unwrap();
        }
        drop(state);
        assert_eq!(StateFile::open(&path).unwrap().session(ChannelId(1)), Some(known(0)));
        // A file without this field.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, as_version_1(&text, ",\n      \"has_messages\": true")).unwrap();
        assert_eq!(StateFile::open(&path).unwrap().session(ChannelId(1)), Some(known(0)));
    }

    #[test]
    fn a_shutdown_position_is_kept_only_for_the_current_session() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let shutdown_position = |restart, next| ResumePosition {
            session: known(restart).session,
            next: Sequence(next),
            has_ended: restart == 4,
        };
        let mut state = StateFile::open(&path).unwrap();
        state.set_session(ChannelId(1), known(0)).unwrap();
        state.set_session(ChannelId(2), known(4)).unwrap();
        // Positions of unknown sessions or of channels without a session are not stored.
        let left = [
            (1, shutdown_position(0, 7)),
            (1, shutdown_position(1, 5)),
            (2, shutdown_position(4, 9)),
            (3, shutdown_position(0, 1)),
        ];
        state
            .record_shutdown(left.map(|(channel, shutdown_position)| (ChannelId(channel), shutdown_position)))
            .unwrap();
        drop(state);

        let mut state = StateFile::open(&path).unwrap();
        state.begin(0, StartEpoch::Next, NOW, 0).unwrap();
        let shutdown_positions =
            |state: &StateFile| [1, 2, 3].map(|channel| state.shutdown_position(ChannelId(channel)));
        assert_eq!(shutdown_positions(&state), [Some(shutdown_position(0, 7)), Some(shutdown_position(4, 9)), None]);
        state.set_session(ChannelId(1), known(1)).unwrap();
        assert_eq!(shutdown_positions(&state), [None, Some(shutdown_position(4, 9)), None]);
    }

    #[test]
    fn a_known_session_is_not_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = StateFile::open(&path).unwrap();
        state.set_session(ChannelId(1), known(1)).unwrap();
        fs::remove_file(&path).unwrap();
        state.set_session(ChannelId(1), known(1)).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_damaged_file_is_refused_and_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = StateFile::open(&path).unwrap();
        state.set_session(ChannelId(1), known(1)).unwrap();
        drop(state);
        let good = fs::read_to_string(&path).unwrap();
        let cuts = (0..good.trim_end().len()).map(|length| good[..length].to_owned());
        for damaged in cuts {
            refused(&path, damaged.as_bytes());
        }
        assert!(
            refused(&path, good.replace("\"version\": 3", "\"version\": 4").as_bytes())
                .contains("version 4, expected 3")
        );
        // Epochs of groups that no version writes. Each has the right checksum, except the one without.
        let sound = State::parse(good.as_bytes()).unwrap();
        let state =
            |version, count| State { version, group_epoch_counts: BTreeMap::from([(7, count)]), ..sound.clone() };
        for (state, expected) in [
            (state(VERSION, EPOCH_COUNT_MAX + 1), "epoch count 72057594037927936 exceeds 56 bits"),
            (state(VERSION_OF_ONE_EPOCH, 1), "version 2 has no epochs of groups"),
        ] {
            let error = refused(&path, state.with_checksum().as_bytes());
            assert!(error.contains(expected), "{error}");
        }
        let error = refused(&path, state(VERSION, 1).to_text().as_bytes());
        assert!(error.contains("checksum"), "{error}");
        for key in ["-1", "65536", "x"] {
            let text = state(VERSION, 1).with_checksum().replace("\"7\"", &format!("\"{key}\""));
            refused(&path, text.as_bytes());
        }
        // Values that no version writes, in a version without a checksum.
        let older = as_version_1(&good, "");
        for (written, other) in [
            ("\"epoch_count\": 0", "\"epoch_count\": 72057594037927936"),
            ("\"epoch_count\": 0", "\"epoch_count\": -1"),
            ("20170425", "20170431"),
            ("iex-deep-1.0", "iex-deep-9.9"),
            ("\"restart\"", "\"restarts\""),
        ] {
            assert!(older.contains(written));
            refused(&path, older.replace(written, other).as_bytes());
        }
        fs::write(&path, older).unwrap();
        assert_eq!(StateFile::open(&path).unwrap().session(ChannelId(1)), Some(known(1)));
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        for refused in [StateFile::check(&path), StateFile::open(&path).map(drop)] {
            assert!(
                matches!(&refused, Err(StateError::Io { source, .. }) if source.to_string().contains("regular")),
                "{refused:?}"
            );
        }
    }

    /// Asserts that the file is refused and not changed, and returns the error.
    fn refused(path: &Path, bytes: &[u8]) -> String {
        fs::write(path, bytes).unwrap();
        let error = StateFile::open(path).unwrap_err();
        assert!(matches!(error, StateError::Damaged { .. }), "{error}");
        assert_eq!(fs::read(path).unwrap(), bytes);
        error.to_string()
    }

    /// Each byte of the file takes each other value. Returns how many of these files are opened with another state.
    fn undetected_changes(good: &[u8]) -> usize {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        fs::write(&path, good).unwrap();
        let expected = StateFile::open(&path).unwrap().state.clone();
        let mut undetected = 0;
        for position in 0..good.len() {
            for mask in 1..=255 {
                let mut damaged = good.to_vec();
                damaged[position] ^= mask;
                undetected += usize::from(State::parse(&damaged).is_ok_and(|state| state != expected));
            }
        }
        undetected
    }

    #[test]
    fn a_state_file_with_any_byte_changed_is_refused_or_has_the_same_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = StateFile::open(&path).unwrap();
        state.begin(3, StartEpoch::Next, NOW, 0).unwrap();
        state.set_session(ChannelId(1), known(11)).unwrap();
        let left = ResumePosition { session: known(11).session, next: Sequence(9), has_ended: true };
        state.record_shutdown([(ChannelId(1), left)]).unwrap();
        let without_groups = fs::read_to_string(&path).unwrap();
        state.record_epochs([(GroupId(1), Epoch::new(10, 1)), (GroupId(23), Epoch::new(5, 2))]).unwrap();
        drop(state);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(undetected_changes(text.as_bytes()), 0);
        // Without the checksum, this check finds another epoch, restart count or position.
        assert!(undetected_changes(as_version_1(&without_groups, "").as_bytes()) > 100);
    }

    #[test]
    fn files_left_by_a_crash_beside_the_state_file_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        StateFile::open(&path).unwrap().begin(3, StartEpoch::Next, NOW, 0).unwrap();
        fs::write(directory.path().join("state.json.new"), b"{\"version\": 3, \"epoch").unwrap();
        assert_eq!(StateFile::open(&path).unwrap().begin(3, StartEpoch::Next, NOW, 0).unwrap().epoch, Epoch::new(2, 3));
    }

    #[test]
    fn two_gateways_cannot_share_a_state_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let state = StateFile::open(&path).unwrap();
        assert!(matches!(StateFile::open(&path).unwrap_err(), StateError::Busy { .. }));
        drop(state);
        StateFile::open(&path).unwrap();
    }

    #[test]
    fn an_epoch_that_was_not_written_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let mut state = StateFile::open(&path).unwrap();
        // A directory in the way of the new file.
        fs::create_dir(directory.path().join("state.json.new")).unwrap();
        assert!(matches!(state.begin(0, StartEpoch::Next, NOW, 0).unwrap_err(), StateError::Io { act: "create", .. }));
        fs::remove_dir(directory.path().join("state.json.new")).unwrap();
        assert_eq!(state.begin(0, StartEpoch::Next, NOW, 0).unwrap().epoch, Epoch::new(1, 0));
    }

    #[test]
    fn a_state_file_written_by_0_1_0_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let other = KnownSession { has_messages: false, ..known(4) };
        let left = ResumePosition { session: known(3).session, next: Sequence(9), has_ended: true };
        fs::write(&path, include_str!("../../../tests/data/formats/state.json")).unwrap();
        let mut state = StateFile::open(&path).unwrap();
        assert_eq!([1, 2].map(|channel| state.session(ChannelId(channel))), [Some(known(3)), Some(other)]);
        assert_eq!([1, 2].map(|channel| state.shutdown_position(ChannelId(channel))), [Some(left), None]);
        let started_us = NOW.0 / 1_000;
        assert_eq!(state.state.started_us, started_us);
        assert_eq!([1, 7].map(|group| state.group_epoch(GroupId(group))), [Epoch::new(41, 0); 2]);
        let next = Start { epoch: Epoch::new(42, 3), incarnation: Incarnation(started_us + 1) };
        assert_eq!(state.begin(3, StartEpoch::Next, UnixNs(0), 0).unwrap(), next);
    }

    #[test]
    fn a_state_file_with_one_epoch_for_all_groups_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let text = include_str!("../../../tests/data/formats/state_2.json");
        fs::write(&path, text).unwrap();
        let mut state = StateFile::open(&path).unwrap();
        assert_eq!(state.session(ChannelId(1)), Some(known(3)));
        let counts = |state: &StateFile| [1, 2].map(|group| state.group_epoch(GroupId(group)).count());
        assert_eq!(counts(&state), [41, 41]);
        // The difference ends for a group when it has a higher epoch.
        state.record_epochs([(GroupId(1), Epoch::new(6, 1)), (GroupId(2), Epoch::new(42, 2))]).unwrap();
        drop(state);
        assert_eq!(counts(&StateFile::open(&path).unwrap()), [41, 42]);
        // Its checksum counts.
        fs::write(&path, text.replace("\"epoch_count\": 41", "\"epoch_count\": 40")).unwrap();
        assert!(matches!(StateFile::open(&path).unwrap_err(), StateError::Damaged { .. }));
    }
}
