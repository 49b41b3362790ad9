//! Do both gateways produce the same output from the same input? They compare windows by hash. For a window that
//! differs they compare its messages. For the first message that differs, both log both records.
//!
//! ```text
//!   window hash ──equal──▶ counted
//!       └─different─▶ content of the window ──▶ first message that differs ──▶ both records
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use mdgw_publog::{LogError, Reader};
use mdgw_wire::{
    frame::{FrameFlags, FrameKind},
    identity::{ChannelId, Sequence, Session},
    published::packet::Frames,
};

use super::message::{LinkMessage, WINDOW_MESSAGES_MAX, WindowContent};
use crate::standby::windows::{WINDOW_SEQUENCES, WindowHash, message_hash};

/// A message for which the two gateways have produced different records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Channel of the message.
    pub channel: ChannelId,
    /// Session of the message.
    pub session: Session,
    /// Sequence of the message.
    pub sequence: Sequence,
    /// This gateway's records; empty: the message produced none.
    pub ours: Vec<u8>,
    /// The peer's records; empty: the message produced none.
    pub theirs: Vec<u8>,
}

/// Directory of each channel's publication log. Clones share the list, which a reload changes.
#[derive(Clone, Debug, Default)]
pub struct ChannelLogs(Arc<Mutex<BTreeMap<ChannelId, PathBuf>>>);

impl ChannelLogs {
    /// The logs of these channels.
    #[must_use]
    pub fn of(logs: impl IntoIterator<Item = (ChannelId, PathBuf)>) -> Self {
        Self(Arc::new(Mutex::new(logs.into_iter().collect())))
    }

    /// Adds a channel's log.
    pub fn add(&self, channel: ChannelId, directory: PathBuf) {
        self.lock().insert(channel, directory);
    }

    /// Removes a channel's log.
    pub fn remove(&self, channel: ChannelId) {
        self.lock().remove(&channel);
    }

    /// Directory of that channel's log.
    pub(super) fn get(&self, channel: ChannelId) -> Option<PathBuf> {
        self.lock().get(&channel).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ChannelId, PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares both gateways' windows. Reads the local log only for a window that differs.
#[derive(Debug)]
pub(crate) struct MismatchWatch {
    logs: ChannelLogs,
    ours: VecDeque<WindowHash>,
    theirs: VecDeque<WindowHash>,
    /// Windows found to differ, so that each is examined once.
    followed_up: VecDeque<(ChannelId, Session, Sequence)>,
}

/// Result of a window's comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// One gateway's hash is still missing.
    Waiting,
    /// Both hashes are equal.
    Equal,
    /// The hashes differ. The message with the window's content is to be sent to the peer.
    Different(LinkMessage),
}

impl MismatchWatch {
    /// A comparison without windows yet. `logs`: the directory of each channel's log.
    #[must_use]
    pub(crate) fn new(logs: ChannelLogs) -> Self {
        Self { logs, ours: VecDeque::new(), theirs: VecDeque::new(), followed_up: VecDeque::new() }
    }

    /// A window of the local log is complete.
    ///
    /// # Errors
    /// When the log of a window that differs cannot be read.
    pub(crate) fn accept_ours(&mut self, window: WindowHash) -> Result<Comparison, LogError> {
        let other = take(&mut self.theirs, &window);
        if other.is_none() {
            store(&mut self.ours, window);
        }
        self.compare(&window, other)
    }

    /// The peer has reported a window.
    ///
    /// # Errors
    /// When the log of a window that differs cannot be read.
    pub(crate) fn accept_theirs(&mut self, window: WindowHash) -> Result<Comparison, LogError> {
        let other = take(&mut self.ours, &window);
        if other.is_none() {
            store(&mut self.theirs, window);
        }
        self.compare(&window, other)
    }

    /// The peer has reported the messages of a window that differs. Returns the first message that differs, as this
    /// gateway has it.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub(crate) fn accept_content(&self, theirs: &WindowContent) -> Result<Option<LinkMessage>, LogError> {
        let WindowContent { channel, session, first, messages } = theirs;
        let ours = self.content(*channel, *session, *first)?;
        let theirs: BTreeMap<_, _> = messages.iter().copied().collect();
        let hashes: BTreeMap<_, _> =
            ours.iter().map(|(sequence, records)| (*sequence, message_hash(records))).collect();
        let all = hashes.keys().chain(theirs.keys()).copied();
        let Some(sequence) = all.filter(|sequence| hashes.get(sequence) != theirs.get(sequence)).min() else {
            return Ok(None);
        };
        let records = ours.get(&sequence).cloned().unwrap_or_default();
        Ok(Some(LinkMessage::Record { channel: *channel, session: *session, sequence, records }))
    }

    /// The peer has reported its records of a message that differs.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub(crate) fn accept_record(
        &self,
        channel: ChannelId,
        session: Session,
        sequence: Sequence,
        theirs: Vec<u8>,
    ) -> Result<Option<Mismatch>, LogError> {
        let window = Sequence(sequence.0 - sequence.0 % WINDOW_SEQUENCES);
        let ours = self.content(channel, session, window)?.remove(&sequence).unwrap_or_default();
        Ok((ours != theirs).then_some(Mismatch { channel, session, sequence, ours, theirs }))
    }

    fn compare(&mut self, window: &WindowHash, other: Option<WindowHash>) -> Result<Comparison, LogError> {
        let Some(other) = other else { return Ok(Comparison::Waiting) };
        if (window.messages, window.hash) == (other.messages, other.hash) {
            return Ok(Comparison::Equal);
        }
        let WindowHash { channel, session, first, .. } = *window;
        if self.followed_up.contains(&(channel, session, first)) {
            return Ok(Comparison::Waiting);
        }
        self.followed_up.push_back((channel, session, first));
        if self.followed_up.len() > WINDOWS_MAX {
            self.followed_up.pop_front();
        }
        let content = self.content(channel, session, first)?;
        let messages = content.iter().map(|(sequence, records)| (*sequence, message_hash(records)));
        let messages = messages.take(WINDOW_MESSAGES_MAX).collect();
        Ok(Comparison::Different(LinkMessage::WindowContent(WindowContent { channel, session, first, messages })))
    }

    /// The messages of a window with their records, from the local log; empty for an unknown channel.
    fn content(
        &self,
        channel: ChannelId,
        session: Session,
        first: Sequence,
    ) -> Result<BTreeMap<Sequence, Vec<u8>>, LogError> {
        let mut content: BTreeMap<Sequence, Vec<u8>> = BTreeMap::new();
        let Some(directory) = self.logs.get(channel) else { return Ok(content) };
        let mut reader = Reader::open(&directory, channel.0)?;
        // The first part of a message may be in an entry that covers only what comes before it.
        reader.seek(session.to_bytes(), first.0.saturating_sub(1))?;
        let end = first.plus(WINDOW_SEQUENCES);
        while let Some(entry) = reader.next().filter(|entry| entry.first < end.0) {
            if entry.session != session.to_bytes() {
                break;
            }
            for (header, body) in Frames::of_body(entry.payload) {
                let sequence = Sequence(header.sequence.get());
                let is_late = FrameFlags(header.flags).contains(FrameFlags::LATE_FILL);
                if header.kind == FrameKind::Message as u8 && !is_late && (first..end).contains(&sequence) {
                    content.entry(sequence).or_default().extend_from_slice(body);
                }
            }
        }
        Ok(content)
    }
}

fn is_same(a: &WindowHash, b: &WindowHash) -> bool {
    (a.channel, a.session, a.first) == (b.channel, b.session, b.first)
}

fn take(windows: &mut VecDeque<WindowHash>, window: &WindowHash) -> Option<WindowHash> {
    let index = windows.iter().position(|other| is_same(other, window))?;
    windows.remove(index)
}

/// Stores a window until the other gateway's hash is known. When the store is full it drops the oldest window: one
/// gateway may have windows that the other leaves out.
fn store(windows: &mut VecDeque<WindowHash>, window: WindowHash) {
    if windows.len() == WINDOWS_MAX {
        windows.pop_front();
    }
    windows.push_back(window);
}

/// Number of windows stored: some ten seconds of a busy channel, by which one gateway may be behind the other.
const WINDOWS_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use mdgw_engine::publish::LogSink;
    use mdgw_publog::{LogOptions, OpenedLog};
    use mdgw_wire::{
        frame::{FrameMeta, FrameSink},
        identity::Feed,
        time::{TradingDate, UnixNs},
    };

    use super::*;
    use crate::standby::windows::{WindowHasher, WindowInput};

    const CHANNEL: ChannelId = ChannelId(3);

    fn session() -> Session {
        Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart: 0 }
    }

    /// One gateway's log and its comparison.
    struct Gateway {
        _directory: tempfile::TempDir,
        windows: Vec<WindowHash>,
        watch: MismatchWatch,
    }

    impl Gateway {
        /// Messages 1 to 3,000, some of them changed (`None`: it produced no records).
        fn new(changed: &[(u64, Option<u8>)]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(directory.path(), CHANNEL.0) };
            let OpenedLog { writer, .. } = mdgw_publog::open(options, 1).unwrap();
            let mut log = LogSink::new(writer);
            log.begin(UnixNs(1));
            log.session(session(), Sequence(1));
            for sequence in 1..3_001 {
                let change = changed.iter().find(|(changed, _)| *changed == sequence);
                let Some(byte) = change.map_or(Some(0), |(_, byte)| *byte) else {
                    log.covered_through(Sequence(sequence + 1));
                    continue;
                };
                let mut record = [byte; 80];
                record[0] = 20;
                log.frame(&FrameMeta::message(Sequence(sequence), UnixNs(5), 0), 1, &record);
            }
            log.flush();
            let mut reader = Reader::open(directory.path(), CHANNEL.0).unwrap();
            let mut hasher = WindowHasher::new(CHANNEL);
            let mut windows = Vec::new();
            while let Some(entry) = reader.next() {
                for (header, body) in Frames::of_body(entry.payload) {
                    hasher.push(session(), WindowInput::Frame(header, body), &mut |window| windows.push(window));
                }
            }
            let watch = MismatchWatch::new(ChannelLogs::of([(CHANNEL, directory.path().to_owned())]));
            Self { _directory: directory, windows, watch }
        }
    }

    /// Lets both gateways compare their windows. Returns the number of equal windows, and the mismatches.
    fn exchange_windows(mut a: Gateway, mut b: Gateway) -> (usize, Vec<Mismatch>) {
        let (mut equal, mut found) = (0, Vec::new());
        for (window_a, window_b) in a.windows.clone().into_iter().zip(b.windows.clone()) {
            assert_eq!(a.watch.accept_ours(window_a).unwrap(), Comparison::Waiting);
            assert_eq!(b.watch.accept_theirs(window_a).unwrap(), Comparison::Waiting);
            let _compared_by_the_peer = b.watch.accept_ours(window_b).unwrap();
            match a.watch.accept_theirs(window_b).unwrap() {
                Comparison::Equal => equal += 1,
                Comparison::Waiting => panic!("both halves are there"),
                Comparison::Different(message) => {
                    let LinkMessage::WindowContent(content) = LinkMessage::parse(&message.to_bytes()).unwrap() else {
                        panic!("{message:?}")
                    };
                    let record = b.watch.accept_content(&content).unwrap();
                    let Some(LinkMessage::Record { channel, session, sequence, records }) = record else {
                        panic!("{record:?}")
                    };
                    found.extend(a.watch.accept_record(channel, session, sequence, records).unwrap());
                }
            }
        }
        (equal, found)
    }

    #[test]
    fn equal_logs_have_equal_windows() {
        assert_eq!(exchange_windows(Gateway::new(&[]), Gateway::new(&[])), (1, Vec::new()));
    }

    #[test]
    fn the_first_message_that_differs_is_shown_with_both_records() {
        let changed = [(1_500, Some(9)), (1_600, Some(9))];
        let (equal, found) = exchange_windows(Gateway::new(&[]), Gateway::new(&changed));
        assert_eq!((equal, found.len()), (0, 1));
        assert_eq!((found[0].sequence, found[0].ours[1], found[0].theirs[1]), (Sequence(1_500), 0, 9));
        let (_, found) = exchange_windows(Gateway::new(&[]), Gateway::new(&[(1_100, None)]));
        assert_eq!((found[0].sequence, found[0].ours.len(), found[0].theirs.len()), (Sequence(1_100), 80, 0));
        let (_, found) = exchange_windows(Gateway::new(&[(2_047, None)]), Gateway::new(&[]));
        assert_eq!((found[0].sequence, found[0].ours.len(), found[0].theirs.len()), (Sequence(2_047), 0, 80));
    }

    #[test]
    fn the_content_of_an_unknown_channel_is_empty() {
        let gateway = Gateway::new(&[]);
        let unknown = WindowContent {
            channel: ChannelId(99),
            session: session(),
            first: Sequence(u64::MAX),
            messages: vec![(Sequence(u64::MAX), 1)],
        };
        let answer = gateway.watch.accept_content(&unknown).unwrap();
        assert!(matches!(answer, Some(LinkMessage::Record { records, .. }) if records.is_empty()));
    }
}
