//! How far each channel's output was published, by whichever gateway, as of the last second: a file beside the state file. It counts where
//! the publication log is gone, as after a reboot with logs in memory: what nobody has published since that position is requested from
//! the venue again, and published. For a cold thread of its own, since a disk may be slow.
//!
//! JSON with a checksum, replaced as the state file is. A position that is too low repeats messages, which receivers drop.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
    time::Duration,
};

use mdgw_feeds::{
    channel::ChannelState,
    identity::{ChannelId, Sequence, Session},
};
use mdgw_pair::standby::ChannelStatus;
use serde::{Deserialize, Serialize};

use crate::state_file::{ResumePosition, sibling_path, write_synced};

/// The positions in the file, by channel.
pub(crate) type PublishedPositions = BTreeMap<ChannelId, ResumePosition>;

/// Path of the file, for that state file.
#[must_use]
pub(crate) fn path_beside(state_file: &Path) -> PathBuf {
    sibling_path(state_file, ".positions")
}

/// What an earlier start has stored. A missing file, and a damaged one, have nothing.
#[must_use]
pub(crate) fn read(path: &Path) -> PublishedPositions {
    let is_file = path.metadata().is_ok_and(|found| found.is_file() && found.len() <= FILE_BYTES_MAX);
    if !is_file {
        return PublishedPositions::default();
    }
    match fs::read(path).map_err(|error| error.to_string()).and_then(|bytes| parse(&bytes)) {
        Ok(positions) => positions,
        Err(error) => {
            tracing::warn!(path = %path.display(), error, "stored positions of the output are not used");
            PublishedPositions::default()
        }
    }
}

/// Stores the positions once a second, until it is dropped.
#[derive(Debug)]
pub(crate) struct PositionThread {
    /// Closed to stop the thread.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PositionThread {
    /// Starts with what the file has. `statuses`: the channels' status as of now.
    ///
    /// # Errors
    /// If the system allows no more threads.
    pub(crate) fn start(
        path: PathBuf,
        statuses: impl Fn() -> BTreeMap<ChannelId, ChannelStatus> + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let mut positions = read(&path);
        let thread = std::thread::Builder::new().name("mdgw-position".to_owned()).spawn(move || {
            let mut is_failing = false;
            while stopped.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                let mut now = positions.clone();
                statuses().iter().for_each(|(channel, status)| advance(&mut now, *channel, status));
                if now == positions {
                    continue;
                }
                match write_synced(&path, to_text(&now).as_bytes()) {
                    Ok(()) => (positions, is_failing) = (now, false),
                    Err((act, error)) => {
                        if !std::mem::replace(&mut is_failing, true) {
                            tracing::warn!(path = %path.display(), act, %error, "cannot store the positions of the output");
                        }
                    }
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
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

/// Takes over how far the channel is published: by this gateway, or as it was received of another one.
fn advance(positions: &mut PublishedPositions, channel: ChannelId, status: &ChannelStatus) {
    let Some(published) = status.published.max(status.received.received_through) else { return };
    let has_ended = status.state == ChannelState::Ended && status.logged_through == Some(published);
    // The first part of a message counts for nothing.
    let position = ResumePosition { session: published.session, next: published.sequence, has_ended };
    let key = |position: &ResumePosition| (position.session, position.next, position.has_ended);
    let known = positions.entry(channel).or_insert(position);
    if key(known) < key(&position) {
        *known = position;
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Positions {
    version: u32,
    channels: BTreeMap<u16, Published>,
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

impl Positions {
    fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("plain numbers")) + "\n"
    }
}

fn to_text(positions: &PublishedPositions) -> String {
    let of = |position: &ResumePosition| Published {
        session: position.session.to_bytes(),
        next: position.next.0,
        has_ended: position.has_ended,
    };
    let channels = positions.iter().map(|(channel, position)| (channel.0, of(position))).collect();
    let mut file = Positions { version: VERSION, channels, crc32c: None };
    file.crc32c = Some(crc32c::crc32c(file.to_text().as_bytes()));
    file.to_text()
}

fn parse(bytes: &[u8]) -> Result<PublishedPositions, String> {
    let mut file: Positions = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if file.version != VERSION {
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
    file.channels.into_iter().map(position).collect()
}

const VERSION: u32 = 1;
const INTERVAL: Duration = Duration::from_secs(1);
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

    #[test]
    fn a_position_goes_only_forward() {
        let mut positions = PublishedPositions::default();
        for (published, received, expected) in [
            (None, None, None),
            (None, at(1, 5), at(1, 5)),
            (at(1, 9), at(1, 5), at(1, 9)),
            (None, at(1, 7), at(1, 9)),
            (at(0, 70), None, at(1, 9)),
            (at(2, 1), None, at(2, 1)),
        ] {
            advance(&mut positions, ChannelId(3), &status(published, received));
            let kept = positions.get(&ChannelId(3)).map(|kept| StreamPosition::at(kept.session, kept.next));
            assert_eq!(kept, expected, "{published:?} {received:?}");
        }
        assert!(!positions[&ChannelId(3)].has_ended);
        let ended =
            |logged_through| ChannelStatus { state: ChannelState::Ended, logged_through, ..status(at(2, 1), None) };
        advance(&mut positions, ChannelId(3), &ended(at(2, 2)));
        assert!(!positions[&ChannelId(3)].has_ended, "its last messages are not published");
        advance(&mut positions, ChannelId(3), &ended(at(2, 1)));
        assert!(positions[&ChannelId(3)].has_ended);
    }

    #[test]
    fn positions_are_read_as_written_and_a_damaged_file_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_beside(&directory.path().join("state.json"));
        assert_eq!(read(&path), PublishedPositions::default());
        let of = |restart, next| ResumePosition {
            session: known(restart).session,
            next: Sequence(next),
            has_ended: next == 7,
        };
        let positions = PublishedPositions::from([(ChannelId(1), of(0, 7)), (ChannelId(900), of(3, u64::MAX))]);
        let text = to_text(&positions);
        fs::write(&path, &text).unwrap();
        assert_eq!(read(&path), positions);
        for index in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[index] ^= 1;
            fs::write(&path, &damaged).unwrap();
            let found = read(&path);
            assert!(found.is_empty() || found == positions, "byte {index}");
        }
        for junk in [&b""[..], b"{}", b"[", &[0xff; 40]] {
            fs::write(&path, junk).unwrap();
            assert_eq!(read(&path), PublishedPositions::default());
        }
    }

    #[test]
    fn positions_are_as_they_were_added() {
        let fixture = include_str!("../../../tests/data/formats/published_positions.json");
        let session =
            Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart: 4 };
        let of = |next| ResumePosition { session, next: Sequence(next), has_ended: next == 7 };
        let positions = PublishedPositions::from([(ChannelId(1), of(7)), (ChannelId(900), of(u64::MAX))]);
        assert_eq!(parse(fixture.as_bytes()), Ok(positions.clone()));
        assert_eq!(to_text(&positions), fixture);
    }

    #[test]
    fn the_thread_stores_what_is_published_and_a_later_start_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("positions");
        let earlier = ResumePosition { session: known(1).session, next: Sequence(5), has_ended: false };
        fs::write(&path, to_text(&PublishedPositions::from([(ChannelId(9), earlier)]))).unwrap();
        let statuses = || BTreeMap::from([(ChannelId(3), status(at(1, 9), None))]);
        let _thread = PositionThread::start(path.clone(), statuses).unwrap();
        let begun = std::time::Instant::now();
        while read(&path).len() < 2 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(read(&path)[&ChannelId(3)].next, Sequence(9));
        assert_eq!(read(&path)[&ChannelId(9)], earlier, "a channel that is not configured now");
    }
}
