//! How far each channel's output was published, by whichever gateway, as of the last second: a file beside the state file. It counts where
//! the publication log is gone, as after a reboot with logs in memory: what nobody has published since that position is requested from
//! the venue again, and published. With it goes the epoch of each group that receivers hold, which is stored soon after it is observed: what
//! an older leader still sends after a restart is stale here too. For a cold thread of its own, since a disk may be slow.
//!
//! JSON with a checksum, replaced as the state file is. A position that is too low repeats messages, which receivers drop.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use mdgw_feeds::{
    channel::ChannelState,
    identity::{ChannelId, Epoch, GroupId, Sequence, Session},
};
use mdgw_pair::standby::ChannelStatus;
use mdgw_sys::alarm::Alarm;
use serde::{Deserialize, Serialize};

use crate::state_file::{ResumePosition, StateFile, sibling_path, write_synced};

/// By channel.
type Positions = BTreeMap<ChannelId, ResumePosition>;
/// The epoch that receivers hold, by group.
type HeldEpochs = BTreeMap<GroupId, Epoch>;

/// How far each channel is published at least, and the file that has it. Clones share both.
#[derive(Clone, Debug)]
pub(crate) struct PublishedPositions(Arc<Mutex<StoredPositions>>);

#[derive(Debug)]
struct StoredPositions {
    path: PathBuf,
    positions: Positions,
    epochs: HeldEpochs,
    /// The file was there at each earlier start of this history: what it lacks, nobody is known to have published.
    is_whole: bool,
    /// Whether the file has others.
    is_changed: bool,
    is_failing: bool,
}

impl PublishedPositions {
    /// Reads what earlier starts have stored beside the state file. A missing file has nothing, and a damaged one neither. Positions of
    /// another history are removed: all of them if the state file is new, else those of a later session than the channel's last one.
    pub(crate) fn open(state_file: &Path, state: &StateFile) -> Self {
        let path = sibling_path(state_file, ".positions");
        let read = read(&path);
        let is_whole = read.is_some() || !state.has_earlier_start();
        // So the next start finds it, however early this one ends.
        let is_missing = read.is_none() && is_whole;
        let (mut positions, mut epochs) = read.unwrap_or_default();
        let count = positions.len() + epochs.len();
        epochs.retain(|_, _| state.has_earlier_start());
        positions.retain(|channel, position| {
            let last = state.session(*channel).map(|known| known.session);
            let is_known = state.has_earlier_start() && last.is_none_or(|last| position.session <= last);
            if !is_known {
                let (session, next) = (position.session, position.next.0);
                tracing::warn!(channel_id = channel.0, %session, next, "the stored position of the output is not used: the state file is of another history");
            }
            is_known
        });
        let is_changed = is_missing || positions.len() + epochs.len() < count;
        let mut stored = StoredPositions { path, positions, epochs, is_whole, is_changed, is_failing: false };
        stored.store();
        Self(Arc::new(Mutex::new(stored)))
    }

    /// Up to where the channel is published, for a gateway that knows that session of it last.
    pub(crate) fn get(&self, channel: ChannelId, last: Option<Session>) -> Option<ResumePosition> {
        let stored = self.lock();
        let nothing = |session| ResumePosition { session, next: Sequence(1), has_ended: false };
        stored.positions.get(&channel).copied().or_else(|| last.filter(|_| stored.is_whole).map(nothing))
    }

    /// The epoch of the group that receivers hold, as earlier runs knew it.
    pub(crate) fn held_epoch(&self, group: GroupId) -> Epoch {
        self.lock().epochs.get(&group).copied().unwrap_or_default()
    }

    /// The channel is about to copy from its peer's log what no gateway may have published. If there is no position of it, stores this one
    /// at once: a start after this one then knows that.
    pub(crate) fn begin(&self, channel: ChannelId, position: ResumePosition) {
        let mut stored = self.lock();
        if let Entry::Vacant(vacant) = stored.positions.entry(channel) {
            vacant.insert(position);
            stored.is_changed = true;
            stored.store();
        }
    }

    fn lock(&self) -> MutexGuard<'_, StoredPositions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoredPositions {
    /// Takes over how far the channel is published: by this gateway, or as it was received of another one. In another session than
    /// before, wherever; in the same one only forward.
    fn advance(&mut self, channel: ChannelId, status: &ChannelStatus) {
        let Some(published) = status.published.max(status.received.received_through) else {
            // Nobody is known to have published any of the session: a start after this one then knows that.
            if let (Entry::Vacant(vacant), Some(logged)) = (self.positions.entry(channel), status.logged_through) {
                vacant.insert(ResumePosition { session: logged.session, next: Sequence(1), has_ended: false });
                self.is_changed = true;
            }
            return;
        };
        let has_ended = status.state == ChannelState::Ended && status.logged_through == Some(published);
        // The first part of a message counts for nothing.
        let position = ResumePosition { session: published.session, next: published.sequence, has_ended };
        let is_newer = self.positions.get(&channel).is_none_or(|known| {
            known.session != position.session || (known.next, known.has_ended) < (position.next, position.has_ended)
        });
        if is_newer {
            self.positions.insert(channel, position);
            self.is_changed = true;
        }
    }

    /// Takes over the epochs that receivers hold. Returns the groups whose epoch is new.
    fn raise_epochs(&mut self, held: HeldEpochs) -> Vec<GroupId> {
        let is_new = |(group, epoch): &(GroupId, Epoch)| self.epochs.get(group).copied().unwrap_or_default() < *epoch;
        let raised: HeldEpochs = held.into_iter().filter(is_new).collect();
        let groups: Vec<_> = raised.keys().copied().collect();
        self.is_changed |= !raised.is_empty();
        self.epochs.extend(raised);
        groups
    }

    /// Stores what has changed. If that fails, it is tried again the next time.
    fn store(&mut self) {
        if !self.is_changed {
            return;
        }
        let stored = write_synced(&self.path, to_text(&self.positions, &self.epochs).as_bytes());
        self.is_changed = stored.is_err();
        let was_failing = std::mem::replace(&mut self.is_failing, stored.is_err());
        match stored {
            Ok(()) if was_failing => {
                tracing::info!(ends = Alarm::StateFileFailing.name(), "the state file is writable again");
            }
            Err((act, error)) if !was_failing => {
                let (alarm, what) = (Alarm::StateFileFailing.name(), "positions of the output");
                tracing::error!(alarm, what, path = %self.path.display(), act, %error, "cannot write the state file");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

fn read(path: &Path) -> Option<(Positions, HeldEpochs)> {
    let is_file = path.metadata().is_ok_and(|found| found.is_file() && found.len() <= FILE_BYTES_MAX);
    if !is_file {
        return None;
    }
    match fs::read(path).map_err(|error| error.to_string()).and_then(|bytes| parse(&bytes)) {
        Ok(stored) => Some(stored),
        Err(error) => {
            tracing::warn!(path = %path.display(), error, "stored positions of the output are not used");
            None
        }
    }
}

/// Stores the positions once a second and when it is dropped, and new epochs at once.
#[derive(Debug)]
pub(crate) struct PositionThread {
    /// Closed to stop the thread.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PositionThread {
    /// `statuses`: the channels' status as of now. `held`: the epoch that receivers hold, of each group.
    ///
    /// # Errors
    /// If the system allows no more threads.
    pub(crate) fn start(
        positions: PublishedPositions,
        statuses: impl Fn() -> BTreeMap<ChannelId, ChannelStatus> + Send + 'static,
        held: impl Fn() -> HeldEpochs + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("mdgw-position".to_owned()).spawn(move || {
            let (mut is_over, mut pace) = (false, Pace::new(Instant::now()));
            // Once more at the end.
            while !is_over {
                is_over = stopped.recv_timeout(POLL) != Err(mpsc::RecvTimeoutError::Timeout);
                let mut stored = positions.lock();
                let is_due = pace.is_due(&mut stored, held(), Instant::now());
                if is_over {
                    let _all = stored.raise_epochs(held());
                }
                if is_due || is_over {
                    statuses().iter().for_each(|(channel, status)| stored.advance(*channel, status));
                    stored.store();
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

/// When the thread stores: once a second, and soon after a group's new epoch or a failure.
#[derive(Debug)]
struct Pace {
    stored_at: Instant,
    epoch_stored_at: BTreeMap<GroupId, Instant>,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { stored_at: now, epoch_stored_at: BTreeMap::new() }
    }

    /// Takes over the epochs that receivers hold now, and returns whether to store. A flood of forged epochs in one group does not delay
    /// the epochs of the others.
    fn is_due(&mut self, stored: &mut StoredPositions, mut held: HeldEpochs, now: Instant) -> bool {
        let is_full_turn = now.duration_since(self.stored_at) >= INTERVAL;
        let is_rested = |at: Instant| now.duration_since(at) >= EPOCH_INTERVAL;
        held.retain(|group, _| is_full_turn || self.epoch_stored_at.get(group).is_none_or(|at| is_rested(*at)));
        // What the last attempt could not store.
        let is_retry = stored.is_changed && is_rested(self.stored_at);
        let raised = stored.raise_epochs(held);
        let is_due = is_full_turn || is_retry || !raised.is_empty();
        if is_due {
            self.stored_at = now;
        }
        self.epoch_stored_at.extend(raised.into_iter().map(|group| (group, now)));
        is_due
    }
}

impl Drop for PositionThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic was logged when it occurred. Without the file more is published again.
            let _panic = thread.join();
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PositionsFile {
    version: u32,
    channels: BTreeMap<u16, Published>,
    /// Not in version 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    epochs: BTreeMap<u16, u64>,
    /// CRC-32C of the other fields, as written without this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    /// As in packets.
    session: [u8; 16],
    next: u64,
    has_ended: bool,
}

impl PositionsFile {
    fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("plain numbers")) + "\n"
    }
}

fn to_text(positions: &Positions, epochs: &HeldEpochs) -> String {
    let of = |position: &ResumePosition| Published {
        session: position.session.to_bytes(),
        next: position.next.0,
        has_ended: position.has_ended,
    };
    let channels = positions.iter().map(|(channel, position)| (channel.0, of(position))).collect();
    let epochs = epochs.iter().map(|(group, epoch)| (group.0, epoch.0)).collect();
    let mut file = PositionsFile { version: VERSION, channels, epochs, crc32c: None };
    file.crc32c = Some(crc32c::crc32c(file.to_text().as_bytes()));
    file.to_text()
}

fn parse(bytes: &[u8]) -> Result<(Positions, HeldEpochs), String> {
    let mut file: PositionsFile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if ![VERSION_WITHOUT_EPOCHS, VERSION].contains(&file.version) {
        return Err(format!("version {}, expected {VERSION}", file.version));
    }
    if file.crc32c.take() != Some(crc32c::crc32c(file.to_text().as_bytes())) {
        return Err("its checksum does not match its content".to_owned());
    }
    let position = |(channel, published): (u16, Published)| {
        let session = Session::from_bytes(published.session).ok_or_else(|| format!("channel {channel}: no session"))?;
        let (next, has_ended) = (Sequence(published.next), published.has_ended);
        Ok((ChannelId(channel), ResumePosition { session, next, has_ended }))
    };
    let positions = file.channels.into_iter().map(position).collect::<Result<_, String>>()?;
    Ok((positions, file.epochs.into_iter().map(|(group, epoch)| (GroupId(group), Epoch(epoch))).collect()))
}

const VERSION: u32 = 2;
const VERSION_WITHOUT_EPOCHS: u32 = 1;
const INTERVAL: Duration = Duration::from_secs(1);
/// How often the thread looks for new epochs.
const POLL: Duration = Duration::from_millis(20);
/// New epochs of one group are stored no more often than this, and a failed attempt is repeated so.
const EPOCH_INTERVAL: Duration = Duration::from_millis(100);
/// Largest file that is read: above 65,536 channels of some 200 bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use mdgw_engine::publish::ReceiveWatermark;
    use mdgw_feeds::{
        identity::{Epoch, Feed},
        published::position::StreamPosition,
        time::TradingDate,
    };

    use super::*;
    use crate::state_file::tests::known;

    fn at(restart: u32, sequence: u64) -> Option<StreamPosition> {
        Some(StreamPosition::at(known(restart).session, Sequence(sequence)))
    }

    fn status(published: Option<StreamPosition>, received_through: Option<StreamPosition>) -> ChannelStatus {
        let received = ReceiveWatermark { received_through, epoch: Epoch::new(1, 1) };
        ChannelStatus { published, received, ..ChannelStatus::default() }
    }

    /// Opened beside a state file, which knows that session, if any, of channel 1.
    fn opened(folder: &Path, last_session: Option<u32>) -> PublishedPositions {
        let path = folder.join("state.json");
        let mut state = StateFile::open(&path).unwrap();
        if let Some(restart) = last_session {
            state.set_session(ChannelId(1), known(restart)).unwrap();
        }
        PublishedPositions::open(&path, &state)
    }

    #[test]
    fn a_position_goes_only_forward_within_its_session() {
        let directory = tempfile::tempdir().unwrap();
        let positions = opened(directory.path(), None);
        for (published, received, expected) in [
            (None, None, None),
            (None, at(1, 5), at(1, 5)),
            (at(1, 9), at(1, 5), at(1, 9)),
            (None, at(1, 7), at(1, 9)),
            (at(2, 1), None, at(2, 1)),
            // A session that the channel never had, as one of a later date by a wrong configuration.
            (at(1, 30), None, at(1, 30)),
        ] {
            positions.lock().advance(ChannelId(3), &status(published, received));
            let kept = positions.get(ChannelId(3), None).map(|kept| StreamPosition::at(kept.session, kept.next));
            assert_eq!(kept, expected, "{published:?} {received:?}");
        }
        let has_ended = || positions.get(ChannelId(3), None).unwrap().has_ended;
        let ended =
            |logged_through| ChannelStatus { state: ChannelState::Ended, logged_through, ..status(at(1, 30), None) };
        positions.lock().advance(ChannelId(3), &ended(at(1, 31)));
        assert!(!has_ended(), "its last messages are not published");
        positions.lock().advance(ChannelId(3), &ended(at(1, 30)));
        assert!(has_ended());
        // A session of which nobody has published anything yet.
        let logged = ChannelStatus { logged_through: at(2, 90), ..ChannelStatus::default() };
        for channel in [ChannelId(3), ChannelId(4)] {
            positions.lock().advance(channel, &logged);
        }
        let next = |channel| positions.get(ChannelId(channel), None).map(|kept| (kept.session.restart, kept.next.0));
        assert_eq!([next(3), next(4)], [Some((1, 30)), Some((2, 1))]);
    }

    #[test]
    fn positions_of_another_history_are_removed() {
        let of = |next| ResumePosition { session: known(2).session, next: Sequence(next), has_ended: false };
        for (last_session, expected) in [(2, Some(of(7))), (3, Some(of(7))), (1, None)] {
            let directory = tempfile::tempdir().unwrap();
            let positions = opened(directory.path(), Some(2));
            positions.begin(ChannelId(1), of(7));
            positions.begin(ChannelId(1), of(9));
            positions.begin(ChannelId(2), of(5));
            assert_eq!(positions.get(ChannelId(1), None), Some(of(7)), "stored at once, and only if there was none");
            let later = opened(directory.path(), Some(last_session));
            assert_eq!(later.get(ChannelId(1), None), expected, "{last_session}");
            assert_eq!(later.get(ChannelId(2), None), Some(of(5)), "the state file knows no session of it yet");
            assert_eq!(later.lock().raise_epochs(HeldEpochs::from([(GroupId(1), Epoch(9))])), [GroupId(1)]);
            assert_eq!(later.lock().raise_epochs(HeldEpochs::from([(GroupId(1), Epoch(8))])), []);
            later.lock().store();
            assert_eq!(opened(directory.path(), Some(2)).held_epoch(GroupId(1)), Epoch(9));
            fs::remove_file(directory.path().join("state.json")).unwrap();
            let of_new_state = opened(directory.path(), None);
            assert_eq!((of_new_state.get(ChannelId(2), None), of_new_state.held_epoch(GroupId(1))), (None, Epoch(0)));
            assert_eq!(opened(directory.path(), Some(2)).get(ChannelId(2), None), None, "removed for good");
        }
    }

    /// The disk may be slow, or the gateway killed at once.
    #[test]
    fn what_a_file_of_all_starts_lacks_is_published_from_its_first_message() {
        let directory = tempfile::tempdir().unwrap();
        let session = known(2).session;
        let next = |positions: &PublishedPositions| positions.get(ChannelId(1), Some(session)).map(|known| known.next);
        assert_eq!(next(&opened(directory.path(), None)), Some(Sequence(1)));
        assert_eq!(next(&opened(directory.path(), Some(2))), Some(Sequence(1)), "the first start has made the file");
        assert_eq!(opened(directory.path(), Some(2)).get(ChannelId(1), None), None, "no session has begun");
        fs::remove_file(directory.path().join("state.json.positions")).unwrap();
        for _ in 0..2 {
            assert_eq!(
                next(&opened(directory.path(), Some(2))),
                None,
                "as after an upgrade: earlier starts stored none"
            );
        }
    }

    #[test]
    fn positions_are_read_as_written_and_a_damaged_file_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("positions");
        assert_eq!(read(&path), None);
        let of = |restart, next| ResumePosition {
            session: known(restart).session,
            next: Sequence(next),
            has_ended: next == 7,
        };
        let positions = Positions::from([(ChannelId(1), of(0, 7)), (ChannelId(900), of(3, u64::MAX))]);
        let epochs = HeldEpochs::from([(GroupId(1), Epoch::new(7, 2))]);
        let text = to_text(&positions, &epochs);
        fs::write(&path, &text).unwrap();
        let stored = (positions, epochs);
        assert_eq!(read(&path), Some(stored.clone()));
        for index in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[index] ^= 1;
            fs::write(&path, &damaged).unwrap();
            let found = read(&path);
            assert!(found.is_none() || found == Some(stored.clone()), "byte {index}");
        }
        for junk in [&b""[..], b"{}", b"[", &[0xff; 40]] {
            fs::write(&path, junk).unwrap();
            assert_eq!(read(&path), None);
        }
    }

    #[test]
    fn positions_are_as_they_were_added() {
        let fixture = include_str!("../../../tests/data/formats/published_positions_2.json");
        let without_epochs = include_str!("../../../tests/data/formats/published_positions.json");
        let session =
            Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart: 4 };
        let of = |next| ResumePosition { session, next: Sequence(next), has_ended: next == 7 };
        let positions = Positions::from([(ChannelId(1), of(7)), (ChannelId(900), of(u64::MAX))]);
        let epochs = HeldEpochs::from([(GroupId(1), Epoch::new(7, 2)), (GroupId(900), Epoch(u64::MAX))]);
        assert_eq!(to_text(&positions, &epochs), fixture);
        assert_eq!(parse(without_epochs.as_bytes()), Ok((positions.clone(), HeldEpochs::default())));
        assert_eq!(parse(fixture.as_bytes()), Ok((positions, epochs)));
    }

    #[test]
    fn an_epoch_waits_for_those_of_its_own_group_and_a_failed_attempt_is_repeated_soon() {
        let directory = tempfile::tempdir().unwrap();
        let positions = opened(directory.path(), Some(1));
        let mut stored = positions.lock();
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        let mut is_due = |stored: &mut StoredPositions, ms, held: &[(u16, u64)]| {
            let held = held.iter().map(|(group, epoch)| (GroupId(*group), Epoch(*epoch))).collect();
            pace.is_due(stored, held, begun + Duration::from_millis(ms))
        };
        let folder = directory.path().join("gone");
        for (ms, held, is_expected) in [
            (20, &[(1, 5), (2, 5)][..], true),
            (40, &[(1, 5), (2, 5)], false),
            // A node dies: six groups change, one after the other.
            (60, &[(1, 5), (3, 5)], true),
            (80, &[(1, 5), (4, 5)], true),
            (100, &[(1, 6)], false),
            (120, &[(1, 6)], true),
            (140, &[(1, 7)], false),
            (1_000, &[(1, 7)], true),
            (1_020, &[(1, 7)], false),
        ] {
            assert_eq!(is_due(&mut stored, ms, held), is_expected, "{ms} ms");
            stored.store();
        }
        let path = std::mem::replace(&mut stored.path, folder.join("positions"));
        assert!(is_due(&mut stored, 1_200, &[(1, 8)]));
        stored.store();
        assert!(stored.is_failing && !is_due(&mut stored, 1_220, &[(1, 8)]));
        assert!(is_due(&mut stored, 1_300, &[(1, 8)]), "tried again before the next second");
        stored.path = path;
        stored.store();
        assert!(!is_due(&mut stored, 1_420, &[(1, 8)]));
        drop(stored);
        assert_eq!(opened(directory.path(), Some(1)).held_epoch(GroupId(1)), Epoch(8));
    }

    #[test]
    fn the_thread_stores_what_is_published_and_a_later_start_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let positions = opened(directory.path(), Some(1));
        let earlier = ResumePosition { session: known(1).session, next: Sequence(5), has_ended: false };
        positions.begin(ChannelId(9), earlier);
        let statuses = || BTreeMap::from([(ChannelId(3), status(at(1, 9), None))]);
        let held = || HeldEpochs::from([(GroupId(1), Epoch::new(7, 2)), (GroupId(2), Epoch::default())]);
        let _thread = PositionThread::start(positions, statuses, held).unwrap();
        let begun = Instant::now();
        let stored = || opened(directory.path(), Some(1));
        while stored().get(ChannelId(3), None).is_none() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(stored().get(ChannelId(3), None).unwrap().next, Sequence(9));
        assert_eq!(stored().get(ChannelId(9), None), Some(earlier), "a channel that is not configured now");
        assert_eq!([1, 2].map(|group| stored().held_epoch(GroupId(group))), [Epoch::new(7, 2), Epoch::default()]);
    }
}
