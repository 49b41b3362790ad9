//! Captures read side by side, none of them far ahead of the others.
//!
//! A line that lags far behind another line of the same capture gets its own reader, positioned in the capture where
//! the line is. Both are then read side by side. The lag costs no memory, but the capture is read once more.

use std::path::PathBuf;

use mdgw_captures::capture_file::{CaptureError, CaptureFile, CapturedDatagram, OpenOptions};
use mdgw_feeds::{
    drop_reason::DropCounts,
    identity::{Feed, Line, Sequence},
    time::UnixNs,
    transport::{Packet, VenueSession},
};

use super::{MergeError, merged_channel::MergedChannel};
use crate::replay::routes::{self, RouteTarget, Routes};

/// The readers, each at a datagram of a channel.
#[derive(Debug)]
pub(super) struct Sources {
    /// One for each capture, then the additional readers of lines.
    files: Vec<Source>,
    capture_count: usize,
    options: OpenOptions,
    routes: Routes,
    damages: Vec<CaptureError>,
    /// Datagrams of known lines with malformed framing.
    refused: DropCounts,
}

/// A datagram to merge.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextDatagram<'a> {
    pub(super) channel_index: usize,
    pub(super) line: Line,
    pub(super) packet: Packet<'a>,
    pub(super) datagram: CapturedDatagram<'a>,
}

/// Positions of all readers.
pub(super) struct SourceHeads<'a>(&'a [Source]);

impl SourceHeads<'_> {
    /// Whether the reader has another datagram. The merge waits for messages that a reader may still deliver, however
    /// long the reader has delivered none.
    pub(super) fn has_more(&self, file: usize) -> bool {
        self.0.get(file).is_some_and(|source| source.head.is_some())
    }
}

#[derive(Debug)]
struct Source {
    file: CaptureFile,
    /// Index of the capture that it reads.
    capture: usize,
    /// An additional reader accepts only this line (channel and line); `None` for the first reader of a capture.
    single_line: Option<(usize, Line)>,
    /// Lines left to additional readers.
    excluded_lines: Vec<(usize, Line)>,
    /// Current datagram; `None` at the end.
    head: Option<SourceHead>,
    /// Position in each channel, current datagram included.
    positions: Vec<Option<SourcePosition>>,
}

/// The part of a datagram that the choice of the next reader needs.
#[derive(Clone, Copy, Debug)]
struct SourceHead {
    channel_index: usize,
    line: Line,
    time_ns: u64,
    at: SourcePosition,
    first: Sequence,
    restart_marker: bool,
    unsequenced: bool,
}

/// Position in a channel's sessions.
#[derive(Clone, Copy, Debug)]
struct SourcePosition {
    session: VenueSession,
    send_time: Option<UnixNs>,
    next: Sequence,
}

impl Sources {
    pub(super) fn open(paths: &[PathBuf], options: &OpenOptions, feed: Option<Feed>) -> Result<Self, CaptureError> {
        let files = paths
            .iter()
            .enumerate()
            .map(|(capture, path)| CaptureFile::open(path, options).map(|file| Source::new(file, capture, None)))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            files,
            capture_count: paths.len(),
            options: options.clone(),
            routes: Routes::new(feed),
            damages: Vec::new(),
            refused: DropCounts::default(),
        })
    }

    /// Reads up to the first datagram of each file. Before that, finds the channels of each file and where they begin:
    /// a file whose channel has not appeared yet may hold messages that other files lack.
    pub(super) fn begin(&mut self) -> Result<(), MergeError> {
        for file in 0..self.files.len() {
            self.look_ahead(file)?;
        }
        self.routes.reset_counts();
        (0..self.files.len()).try_for_each(|file| self.advance(file))
    }

    fn look_ahead(&mut self, file: usize) -> Result<(), MergeError> {
        let Some(source) = self.files.get_mut(file) else { return Ok(()) };
        // A pipe can be read only once.
        if !source.file.path().is_file() {
            return Ok(());
        }
        let Ok(mut ahead) = CaptureFile::open(source.file.path(), &self.options) else { return Ok(()) };
        for _ in 0..LOOK_AHEAD_DATAGRAMS {
            // This look-ahead ignores damage. The merge reports the damage when it reaches it.
            if !ahead.advance().unwrap_or(false) {
                break;
            }
            let Some(datagram) = ahead.current() else { break };
            let Some(RouteTarget { channel_index, .. }) = self.routes.route(file, &datagram, &ahead)? else { continue };
            let feed = self.routes.channels().get(channel_index).map(|routes| routes.feed);
            let packet = feed.and_then(|feed| routes::parse(feed, datagram.payload).ok());
            if let Some(packet) = packet
                && source.positions.get(channel_index).is_none_or(Option::is_none)
            {
                source.advance_to(
                    channel_index,
                    SourcePosition { session: packet.session, send_time: packet.send_time, next: packet.first },
                );
            }
        }
        Ok(())
    }

    /// The reader to advance next: the earliest by its own clock that isn't ahead of another. `None` when all have
    /// ended.
    #[inline]
    pub(super) fn choose(&self, channels: &[MergedChannel]) -> Option<usize> {
        if let [only] = self.files.as_slice() {
            return only.head.map(|_| 0);
        }
        let heads = || self.files.iter().enumerate().filter_map(|(file, source)| Some((source.head?.time_ns, file)));
        let (_, earliest) = heads().min()?;
        if !self.is_ahead(earliest, channels) {
            return Some(earliest);
        }
        let not_ahead = heads().filter(|(_, file)| !self.is_ahead(*file, channels)).min();
        // If every reader is ahead of another in some channel, the time decides.
        Some(not_ahead.map_or(earliest, |(_, file)| file))
    }

    /// The current datagram of a reader, and the positions of all readers.
    #[inline]
    pub(super) fn current(&self, file: usize) -> Option<(NextDatagram<'_>, SourceHeads<'_>)> {
        let source = self.files.get(file)?;
        let head = source.head.as_ref()?;
        let datagram = source.file.current()?;
        let packet = routes::parse(self.routes.channels().get(head.channel_index)?.feed, datagram.payload).ok()?;
        Some((
            NextDatagram { channel_index: head.channel_index, line: head.line, packet, datagram },
            SourceHeads(&self.files),
        ))
    }

    /// Advances to the reader's next datagram of any channel.
    #[inline]
    pub(super) fn advance(&mut self, file: usize) -> Result<(), MergeError> {
        let Some(source) = self.files.get_mut(file) else { return Ok(()) };
        source.head = None;
        loop {
            match source.file.advance() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(damage) => {
                    // Every reader of the capture meets the same damage.
                    if source.single_line.is_none() {
                        self.damages.push(damage);
                    }
                    return Ok(());
                }
            }
            // Truncated datagrams can't be used; the file counts them.
            let Some(datagram) = source.file.current().filter(|datagram| !datagram.is_truncated) else { continue };
            let routed = match source.single_line {
                None => self.routes.route(source.capture, &datagram, &source.file)?,
                Some(_) => self.routes.existing_route(source.capture, &datagram),
            };
            let Some(RouteTarget { channel_index, line, .. }) = routed.filter(|routed| source.accepts(routed)) else {
                continue;
            };
            let Some(feed) = self.routes.channels().get(channel_index).map(|routes| routes.feed) else { continue };
            let packet = match routes::parse(feed, datagram.payload) {
                Ok(packet) => packet,
                Err(reason) => {
                    self.refused.count(reason);
                    continue;
                }
            };
            let at = SourcePosition { session: packet.session, send_time: packet.send_time, next: packet.next() };
            let head = SourceHead {
                channel_index,
                line,
                time_ns: datagram.time_ns,
                at,
                first: packet.first,
                restart_marker: packet.restart_marker,
                unsequenced: packet.unsequenced,
            };
            source.advance_to(channel_index, at);
            source.head = Some(head);
            return Ok(());
        }
    }

    /// Adds a reader for a line of that reader's capture, from its position on; `None` if the capture can't be read
    /// twice, as a pipe. The current datagram of the first reader was already accepted.
    ///
    /// # Errors
    /// As [`Self::advance`].
    pub(super) fn add_reader(
        &mut self,
        file: usize,
        channel_index: usize,
        line: Line,
    ) -> Result<Option<usize>, MergeError> {
        let Some(source) = self.files.get_mut(file) else { return Ok(None) };
        if !source.file.path().is_file() {
            return Ok(None);
        }
        let Ok(mut again) = CaptureFile::open(source.file.path(), &self.options) else { return Ok(None) };
        while again.counts().datagrams < source.file.counts().datagrams {
            if !again.advance().unwrap_or(false) {
                return Ok(None);
            }
        }
        source.excluded_lines.push((channel_index, line));
        let further = Source::new(again, source.capture, Some((channel_index, line)));
        let reader = self.files.len();
        self.files.push(further);
        self.advance(reader)?;
        Ok(Some(reader))
    }

    pub(super) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// The files that the caller named, in their order.
    pub(super) fn files(&self) -> impl ExactSizeIterator<Item = &CaptureFile> {
        self.files.iter().take(self.capture_count).map(|source| &source.file)
    }

    pub(super) fn damages(&self) -> &[CaptureError] {
        &self.damages
    }

    pub(super) fn refused(&self) -> &DropCounts {
        &self.refused
    }

    pub(super) fn file_bytes_read(&self) -> u64 {
        self.files().map(CaptureFile::file_bytes_read).sum()
    }

    /// Whether another reader is so far behind in the channel of this reader's datagram that it has to be read first.
    fn is_ahead(&self, file: usize, channels: &[MergedChannel]) -> bool {
        let Some(head) = self.files.get(file).and_then(|source| source.head) else { return false };
        if head.unsequenced {
            return false;
        }
        let channel = channels.get(head.channel_index);
        let others = self.files.iter().enumerate().filter(|(other, source)| *other != file && source.head.is_some());
        let mut positions = others.filter_map(|(_, source)| *source.positions.get(head.channel_index)?);
        positions.any(|position| is_behind(&position, &head, channel))
    }
}

impl Source {
    fn new(file: CaptureFile, capture: usize, single_line: Option<(usize, Line)>) -> Self {
        Self { file, capture, single_line, excluded_lines: Vec::new(), head: None, positions: Vec::new() }
    }

    #[inline]
    fn accepts(&self, routed: &RouteTarget) -> bool {
        let line = (routed.channel_index, routed.line);
        self.single_line.is_none_or(|only| only == line) && !self.excluded_lines.contains(&line)
    }

    #[inline]
    fn advance_to(&mut self, channel_index: usize, at: SourcePosition) {
        if self.positions.len() <= channel_index {
            self.positions.resize(channel_index + 1, None);
        }
        let Some(position) = self.positions.get_mut(channel_index) else { return };
        let is_newer = position.is_none_or(|before| {
            before.session != at.session
                || if at.send_time.is_some() { at.send_time >= before.send_time } else { at.next >= before.next }
        });
        if is_newer {
            *position = Some(at);
        }
    }
}

/// Whether a reader at `position` may still deliver so many messages before `head` that they cannot all be held.
fn is_behind(position: &SourcePosition, head: &SourceHead, channel: Option<&MergedChannel>) -> bool {
    if position.session != head.at.session {
        return channel
            .is_some_and(|channel| channel.session_rank(position.session) < channel.session_rank(head.at.session));
    }
    // Before any message was delivered, the reader with the lowest sequence is read first.
    let ahead_max = if channel.is_some_and(MergedChannel::has_started) { AHEAD_MESSAGES_MAX } else { 0 };
    let is_far = head.first > position.next.plus(ahead_max);
    match (head.at.send_time, position.send_time) {
        (Some(send_time), Some(position_sent)) => {
            let lead_ns = send_time.0.saturating_sub(position_sent.0);
            lead_ns > 0 && (is_far || lead_ns > AHEAD_NS_MAX || (head.restart_marker && lead_ns > RESTART_LEAD_NS_MAX))
        }
        _ => is_far,
    }
}

/// Datagrams of each file examined before merging begins.
const LOOK_AHEAD_DATAGRAMS: usize = 16_384;
/// How far a reader may be ahead of another, in messages of a channel: less than the channel's window of packets.
const AHEAD_MESSAGES_MAX: u64 = 2_048;
/// The same by the venue's sending times, ns: longer than any line's delay.
const AHEAD_NS_MAX: u64 = 1_000_000_000;
/// The same at the beginning of a session, ns: two copies of its first packet differ by less.
const RESTART_LEAD_NS_MAX: u64 = 1_000_000;
