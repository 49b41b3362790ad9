//! Frames into log entries: each entry is the body of one published packet.

mod peer_entries;

pub use self::peer_entries::{PeerEntries, PeerEntry, PeerEntryFault};
use mdgw_feeds::{
    channel::ChannelState,
    frame::{FRAME_HEADER_BYTES, FrameFlags, FrameHeader, FrameKind, FrameMeta, FrameSink, GapBody, StateBody},
    identity::{Sequence, Session},
    published::{packet::PacketFlags, position::StreamPosition},
    time::UnixNs,
};
use mdgw_publog::{SessionBytes, Writer};
use zerocopy::IntoBytes;

/// Writes a channel's frames to its publication log.
///
/// Frames that fit are packed together until [`Self::flush`]. The caller flushes as soon as no datagram at hand holds
/// further messages, so no entry ever waits for input. Within a session the ranges of entries follow each other without a gap. Messages that produced
/// no frame extend the range of the next entry, or of the entry that [`Self::commit_covered`] makes.
#[derive(Debug)]
pub struct LogSink {
    writer: Writer,
    session_progress: Option<SessionProgress>,
    /// The log already holds everything before this sequence; the input is replayed only to rebuild the books.
    replayed_until: Option<Sequence>,
    /// Frames in the open entry.
    frame_count: u16,
    kept: KeptOutput,
    now: UnixNs,
    counts: SinkCounts,
}

/// A frame with one MBO record, the most frequent one of feeds by order; few messages have less.
const SMALL_FRAME_BYTES: usize = FRAME_HEADER_BYTES + 56;

/// What a failure leaves of the output that is not committed yet: that of the input before the failure.
#[derive(Clone, Copy, Debug)]
struct KeptOutput {
    /// Payload of the open entry, bytes.
    payload_bytes: usize,
    /// Frames in the open entry.
    frame_count: u16,
    /// First sequence that this input has not handled.
    covered_through: Sequence,
}

impl KeptOutput {
    /// All output before `covered_through` is committed.
    fn committed(covered_through: Sequence) -> Self {
        Self { payload_bytes: 0, frame_count: 0, covered_through }
    }
}

/// Flag of a log entry, not of its packet: this run followed the session to its end, which is `next`, and the venue then began
/// another session. An entry with [`PacketFlags::END_OF_SESSION`] says the same.
pub const FINAL_POSITION: u16 = 1 << 8;

/// Position of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionProgress {
    /// The present session, as in packets.
    pub session: SessionBytes,
    /// First sequence that no committed entry covers.
    pub committed: Sequence,
    /// First sequence that the channel has not handled.
    pub covered_through: Sequence,
    /// Whether this run has followed the session. After a restart the log may lack the end of the session that it resumes.
    pub is_followed: bool,
    /// Whether the venue has ended the session.
    pub has_ended: bool,
    /// Whether the channel is out of service.
    pub has_failed: bool,
}

/// Counts of a [`LogSink`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCounts {
    /// Frames written; the parts of a message count once.
    pub frames: u64,
    /// Records in those frames.
    pub records: u64,
    /// Messages that were cut into parts.
    pub split_messages: u64,
    /// Frames that could not be written: no session had begun, or the body neither fits nor can be split. A gap is
    /// published in place of the message.
    pub refused: u64,
}

impl LogSink {
    /// A sink that writes to that log.
    #[must_use]
    pub fn new(writer: Writer) -> Self {
        let counts = SinkCounts::default();
        let kept = KeptOutput::committed(Sequence(0));
        Self { writer, session_progress: None, replayed_until: None, frame_count: 0, kept, now: UnixNs(0), counts }
    }

    /// Continues after an earlier run, whose committed entries ended at `next` of `session`; `has_ended`: the venue had
    /// ended the session there. Until the venue sends again, heartbeats carry that position. Uncommitted frames are dropped.
    pub fn resume(&mut self, session: Session, next: Sequence, has_ended: bool) {
        self.drop_uncommitted();
        let progress = SessionProgress::starting_at(session, next);
        self.session_progress = Some(SessionProgress { has_ended, is_followed: false, ..progress });
        self.kept = KeptOutput::committed(next);
    }

    /// Drops the open entry: the log ends where its committed entries end.
    fn drop_uncommitted(&mut self) {
        self.writer.abandon();
        self.frame_count = 0;
        if let Some(progress) = self.session_progress.as_mut() {
            progress.covered_through = progress.committed;
            self.kept = KeptOutput::committed(progress.committed);
        }
    }

    /// Takes the channel out of service: uncommitted frames of the input that failed are dropped, those of the input
    /// before it are committed, and a state frame informs readers.
    pub(crate) fn fail(&mut self) {
        let KeptOutput { payload_bytes, frame_count, covered_through } = self.kept;
        if frame_count > 0 {
            self.writer.truncate(payload_bytes);
        } else {
            self.writer.abandon();
        }
        self.frame_count = frame_count;
        let Some(progress) = self.session_progress.as_mut() else { return };
        progress.covered_through = covered_through;
        self.flush();
        let Some(progress) = self.session_progress.as_mut() else { return };
        progress.has_failed = true;
        progress.covered_through = progress.committed;
        let meta = FrameMeta::state(progress.committed);
        self.frame(&meta, 0, StateBody::of(ChannelState::Failed).as_bytes());
        self.flush();
    }

    /// Begins a datagram, a deadline or other input at `now`: entries get that time.
    #[inline]
    pub fn begin(&mut self, now: UnixNs) {
        self.now = now;
    }

    /// Ends a datagram whose output may stay in the open entry. A failure of later input does not remove that output.
    #[inline]
    pub(crate) fn end_datagram(&mut self) {
        if let Some(progress) = self.session_progress
            && self.frame_count > 0
        {
            let payload_bytes = self.writer.payload_bytes_max() - self.writer.room();
            let (frame_count, covered_through) = (self.frame_count, progress.covered_through);
            self.kept = KeptOutput { payload_bytes, frame_count, covered_through };
        }
    }

    /// Whether the open entry has frames.
    #[inline]
    pub(crate) fn has_open_frames(&self) -> bool {
        self.frame_count > 0
    }

    /// Whether the open entry has no room for another small message.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.writer.room() < SMALL_FRAME_BYTES
    }

    /// Entries committed and frames in the open one. Any output changes at least one of the two.
    #[inline]
    pub(crate) fn written(&self) -> (u64, u16) {
        (self.writer.counts().entries, self.frame_count)
    }

    /// Commits the open entry: readers and the publisher see it.
    #[inline]
    pub fn flush(&mut self) {
        if let Some(progress) = self.session_progress
            && self.frame_count > 0
        {
            self.commit(progress.covered_through, PacketFlags::default());
        }
    }

    /// Commits the open entry, and an entry without frames if no entry covers some handled sequences. A heartbeat needs
    /// this. Returns whether there was anything to commit.
    pub fn commit_covered(&mut self) -> bool {
        self.flush();
        match self.session_progress {
            Some(progress) if progress.covered_through > progress.committed => {
                self.commit_empty(progress.covered_through, PacketFlags::HEARTBEAT);
                true
            }
            _ => false,
        }
    }

    /// Position of the stream, once a session has begun.
    #[must_use]
    pub fn session_progress(&self) -> Option<&SessionProgress> {
        self.session_progress.as_ref()
    }

    /// End of the committed entries.
    #[must_use]
    pub fn committed_through(&self) -> Option<StreamPosition> {
        let progress = self.session_progress?;
        Some(StreamPosition::at(Session::from_bytes(progress.session)?, progress.committed))
    }

    /// The log, for reading its committed entries.
    #[must_use]
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// The log, to release sent entries.
    pub(super) fn writer_mut(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> &SinkCounts {
        &self.counts
    }

    /// Appends one whole frame. It begins a new entry if the open one has no room. Returns `false` if no entry has
    /// room.
    fn append(&mut self, header: &FrameHeader, body: &[u8]) -> bool {
        let Some(progress) = self.session_progress else { return false };
        let frame_bytes = FRAME_HEADER_BYTES + body.len();
        if self.writer.room() < frame_bytes {
            self.flush();
        }
        if !self.writer.has_open_entry() {
            // `flush` may have committed more.
            let first = self.session_progress.map_or(progress.committed, |progress| progress.committed);
            self.writer.begin(progress.session, first.0);
        }
        if self.writer.room() < frame_bytes {
            return false;
        }
        self.frame_count += 1;
        self.writer.append(header.as_bytes()) && self.writer.append(body)
    }

    /// Splits a message's body at record boundaries; each part is alone in its packet. Only the last part covers the
    /// message; the first covers the messages before it. `first_part`: number of the first of these parts.
    #[cold]
    fn append_parts(&mut self, meta: &FrameMeta, body: &[u8], first_part: u16) -> bool {
        self.flush();
        let part_bytes_max = self.part_bytes_max();
        let mut rest = body;
        let mut part = first_part;
        while let Some((part_bytes, record_count)) = records_up_to(rest, part_bytes_max) {
            let (part_body, behind) = rest.split_at(part_bytes);
            let is_last = behind.is_empty();
            let mut flags = meta.flags;
            if part == 0 {
                flags = flags.with(FrameFlags::FIRST_PART);
            }
            if is_last {
                flags = flags.with(FrameFlags::LAST_PART);
            }
            if !self.append(&header(meta, record_count, part_body.len(), flags, part), part_body) {
                return false;
            }
            self.commit(if is_last { meta.next } else { meta.sequence }, PacketFlags::default());
            if is_last {
                self.counts.split_messages += 1;
                return true;
            }
            part = part.saturating_add(1);
            rest = behind;
        }
        false
    }

    fn part_bytes_max(&self) -> usize {
        self.writer.payload_bytes_max().saturating_sub(FRAME_HEADER_BYTES)
    }

    /// A message that cannot be written is missing for good: readers get a gap, as for input that no line delivered.
    #[cold]
    fn refuse(&mut self, meta: &FrameMeta) {
        self.counts.refused += 1;
        if meta.kind == FrameKind::Message && self.session_progress.is_some() {
            let body = GapBody { first: meta.sequence.0.into(), next: meta.next.0.into() };
            self.frame(&FrameMeta::control(FrameKind::Gap, meta.sequence, meta.next), 0, body.as_bytes());
        }
    }

    /// Handles a frame that the log already holds from an earlier run. If the log ends inside a gap, the rest of the
    /// gap is new.
    #[cold]
    fn skip_replayed(&mut self, meta: &FrameMeta, until: Sequence) {
        if meta.kind == FrameKind::Gap && meta.next > until {
            let body = GapBody { first: until.0.into(), next: meta.next.0.into() };
            self.frame(&FrameMeta::control(FrameKind::Gap, until, meta.next), 0, body.as_bytes());
        }
    }

    #[inline]
    fn commit(&mut self, next: Sequence, flags: PacketFlags) {
        let Some(progress) = self.session_progress.as_mut() else { return };
        progress.covered_through = progress.covered_through.max(next);
        progress.committed = progress.committed.max(next);
        self.kept = KeptOutput::committed(progress.committed);
        self.writer.commit(progress.committed.0, self.frame_count, flags.0.into(), self.now.0);
        self.frame_count = 0;
    }

    fn commit_empty(&mut self, next: Sequence, flags: PacketFlags) {
        if let Some(progress) = self.session_progress {
            self.writer.begin(progress.session, progress.committed.0);
            self.commit(next, flags);
        }
    }

    /// Commits where the session ends. A receiver that misses the session's last messages learns of them here, even if the log
    /// had no file for those messages.
    fn commit_end(&mut self, flags: u16) {
        let Some(progress) = self.session_progress.as_mut() else { return };
        self.writer.begin(progress.session, progress.committed.0);
        progress.committed = progress.covered_through;
        self.kept = KeptOutput::committed(progress.committed);
        self.writer.commit_lasting(progress.committed.0, flags, self.now.0);
    }
}

impl FrameSink for LogSink {
    #[inline]
    fn frame(&mut self, meta: &FrameMeta, record_count: u16, body: &[u8]) {
        if let Some(until) = self.replayed_until {
            if meta.sequence < until {
                return self.skip_replayed(meta, until);
            }
            self.replayed_until = None;
        }
        let written = if body.len() <= self.part_bytes_max() {
            let flags = meta.flags.with(FrameFlags::FIRST_PART).with(FrameFlags::LAST_PART);
            self.append(&header(meta, record_count, body.len(), flags, 0), body)
        } else {
            self.append_parts(meta, body, 0)
        };
        self.counts.frames += u64::from(written);
        self.counts.records += if written { record_count.into() } else { 0 };
        if !written {
            self.refuse(meta);
        }
        self.covered_through(meta.next);
    }

    #[inline]
    fn covered_through(&mut self, next: Sequence) {
        if let Some(progress) = self.session_progress.as_mut() {
            progress.covered_through = progress.covered_through.max(next);
        }
    }

    fn session(&mut self, session: Session, next: Sequence) {
        self.commit_covered();
        let new_session = SessionProgress::starting_at(session, next);
        let is_abandoned = self.session_progress.is_some_and(|before| {
            before.session != new_session.session && before.is_followed && !before.has_ended && !before.has_failed
        });
        if is_abandoned {
            self.commit_end(u16::from(PacketFlags::HEARTBEAT.0) | FINAL_POSITION);
        }
        let logged =
            self.session_progress.filter(|logged| logged.session == new_session.session && logged.committed > next);
        self.replayed_until = logged.map(|logged| logged.committed);
        let logged = logged.map(|logged| SessionProgress { is_followed: true, ..logged });
        let progress = logged.unwrap_or(new_session);
        self.kept = KeptOutput::committed(progress.committed);
        self.session_progress = Some(progress);
    }

    fn end_of_session(&mut self) {
        self.flush();
        if let Some(progress) = self.session_progress.as_mut().filter(|progress| !progress.has_ended) {
            progress.has_ended = true;
            self.commit_end(PacketFlags::HEARTBEAT.with(PacketFlags::END_OF_SESSION).0.into());
        }
    }
}

impl SessionProgress {
    fn starting_at(session: Session, next: Sequence) -> Self {
        let session = session.to_bytes();
        let (is_followed, has_ended, has_failed) = (true, false, false);
        Self { session, committed: next, covered_through: next, is_followed, has_ended, has_failed }
    }
}

/// A whole frame with the state of a channel that has handled everything before `next`.
pub(super) fn state_frame(next: Sequence, state: ChannelState) -> [u8; STATE_FRAME_BYTES] {
    let flags = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
    let header = header(&FrameMeta::state(next), 0, size_of::<StateBody>(), flags, 0);
    let mut frame = [0; STATE_FRAME_BYTES];
    let (head, body) = frame.split_at_mut(FRAME_HEADER_BYTES);
    head.copy_from_slice(header.as_bytes());
    body.copy_from_slice(StateBody::of(state).as_bytes());
    frame
}

const STATE_FRAME_BYTES: usize = FRAME_HEADER_BYTES + size_of::<StateBody>();

fn header(meta: &FrameMeta, record_count: u16, body_bytes: usize, flags: FrameFlags, part: u16) -> FrameHeader {
    FrameHeader {
        sequence: meta.sequence.0.into(),
        ts_recv: meta.ts_recv.into(),
        ts_in_delta_ns: meta.ts_in_delta_ns.into(),
        // A body that fits a packet fits here; a larger one is refused where it is appended.
        body_bytes: u16::try_from(body_bytes).unwrap_or(u16::MAX).into(),
        record_count: record_count.into(),
        kind: meta.kind as u8,
        flags: flags.0,
        part: part.into(),
        reserved: 0.into(),
    }
}

/// Bytes and records at the front of `body` that fit `bytes_max`; `None` if not even one record fits.
///
/// The first byte of a DBN record is its length in units of four bytes.
fn records_up_to(body: &[u8], bytes_max: usize) -> Option<(usize, u16)> {
    let (mut fitting_bytes, mut count) = (0, 0);
    while let Some(length) = body.get(fitting_bytes) {
        let end = fitting_bytes + 4 * usize::from(*length);
        if end == fitting_bytes || end > bytes_max || end > body.len() {
            break;
        }
        (fitting_bytes, count) = (end, count + 1);
    }
    (count > 0).then_some((fitting_bytes, count))
}

#[cfg(test)]
mod tests {
    use mdgw_feeds::{identity::Feed, time::TradingDate};
    use mdgw_publog::{LogOptions, OpenedLog, Reader};
    use zerocopy::{FromBytes, little_endian::U64};

    use super::*;

    const NOW: UnixNs = UnixNs(1_700_000_000_000_000_000);

    pub(super) struct Harness {
        pub(super) directory: tempfile::TempDir,
        pub(super) sink: LogSink,
    }

    impl Harness {
        pub(super) fn new() -> Self {
            Self::with_payload_of(1_408)
        }

        /// With so many bytes of frames in an entry at most.
        pub(super) fn with_payload_of(payload_bytes_max: usize) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let options = LogOptions {
                segment_bytes: 256 << 10,
                private_bytes: 64 << 10,
                payload_bytes_max,
                ..LogOptions::new(directory.path(), 1)
            };
            let OpenedLog { writer, .. } = mdgw_publog::open(options, NOW.0).unwrap();
            let mut sink = LogSink::new(writer);
            sink.begin(NOW);
            Self { directory, sink }
        }

        /// Each entry as `#restart [first,next) flags: frames`; a frame as `sequence.part+records`, and `(`, `)` where
        /// it begins or ends its message.
        pub(super) fn entries(&self) -> Vec<String> {
            let mut reader = Reader::open(self.directory.path(), 1).unwrap();
            let mut lines = Vec::new();
            while let Some(entry) = reader.next() {
                let mut text = format!(
                    "#{} [{},{}) {}:",
                    Session::from_bytes(entry.session).unwrap().restart,
                    entry.first,
                    entry.next,
                    entry.flags
                );
                let mut rest = entry.payload;
                let mut frames = 0;
                while let Ok((header, behind)) = FrameHeader::read_from_prefix(rest) {
                    rest = &behind[header.body_bytes.get().into()..];
                    frames += 1;
                    let flags = FrameFlags(header.flags);
                    let open = if flags.contains(FrameFlags::FIRST_PART) { "(" } else { "" };
                    let close = if flags.contains(FrameFlags::LAST_PART) { ")" } else { "" };
                    let (sequence, part, records) = (header.sequence, header.part, header.record_count);
                    text += &format!(" {open}{sequence}.{part}+{records}{close}");
                }
                assert!(rest.is_empty() && frames == entry.frame_count);
                assert!(entry.payload.len() <= 1_408);
                lines.push(text);
            }
            lines
        }
    }

    pub(super) fn session(restart: u32) -> Session {
        Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart }
    }

    pub(super) fn message(sequence: u64) -> FrameMeta {
        FrameMeta::message(Sequence(sequence), NOW, 5)
    }

    /// `count` records of `bytes` bytes.
    pub(super) fn records(count: usize, bytes: usize) -> Vec<u8> {
        let mut record = vec![0; bytes];
        record[0] = u8::try_from(bytes / 4).unwrap();
        record.repeat(count)
    }

    #[test]
    fn one_datagram_makes_one_entry_and_messages_without_output_extend_the_next() {
        let mut harness = Harness::new();
        let sink = &mut harness.sink;
        sink.session(session(0), Sequence(1));
        sink.covered_through(Sequence(3));
        sink.frame(&message(3), 1, &records(1, 80));
        sink.covered_through(Sequence(5));
        sink.frame(&message(5), 2, &records(2, 80));
        sink.flush();
        sink.covered_through(Sequence(9));
        sink.flush();
        sink.frame(&message(9), 1, &records(1, 80));
        sink.flush();
        sink.flush();
        assert_eq!(harness.entries(), ["#0 [1,6) 0: (3.0+1) (5.0+2)", "#0 [6,10) 0: (9.0+1)"]);
    }

    #[test]
    fn a_frame_that_does_not_fit_begins_the_next_entry() {
        let mut harness = Harness::new();
        let sink = &mut harness.sink;
        sink.session(session(0), Sequence(1));
        // 32 + 560 bytes: two to an entry.
        for sequence in 1..=5 {
            sink.frame(&message(sequence), 1, &records(1, 560));
        }
        sink.flush();
        assert_eq!(
            harness.entries(),
            ["#0 [1,3) 0: (1.0+1) (2.0+1)", "#0 [3,5) 0: (3.0+1) (4.0+1)", "#0 [5,6) 0: (5.0+1)"]
        );
    }

    #[test]
    fn a_message_larger_than_a_packet_is_split_at_records_and_covered_by_its_last_part() {
        let mut harness = Harness::new();
        let sink = &mut harness.sink;
        sink.session(session(0), Sequence(1));
        sink.frame(&message(1), 1, &records(1, 80));
        sink.covered_through(Sequence(4));
        // Three of 368 bytes to a part.
        sink.frame(&message(4), 8, &records(8, 368));
        sink.frame(&message(5), 1, &records(1, 80));
        sink.flush();
        assert_eq!(
            harness.entries(),
            [
                "#0 [1,4) 0: (1.0+1)",
                "#0 [4,4) 0: (4.0+3",
                "#0 [4,4) 0: 4.1+3",
                "#0 [4,5) 0: 4.2+2)",
                "#0 [5,6) 0: (5.0+1)"
            ]
        );
        assert_eq!(harness.sink.counts().split_messages, 1);
    }

    #[test]
    fn messages_without_output_before_a_split_one_are_covered_by_its_first_part() {
        let mut harness = Harness::new();
        let sink = &mut harness.sink;
        sink.session(session(0), Sequence(1));
        sink.covered_through(Sequence(7));
        sink.frame(&message(7), 4, &records(4, 368));
        assert_eq!(harness.entries(), ["#0 [1,7) 0: (7.0+3", "#0 [7,8) 0: 7.1+1)"]);
    }

    #[test]
    fn gaps_cover_their_range_and_state_frames_cover_nothing() {
        let mut harness = Harness::new();
        let sink = &mut harness.sink;
        sink.session(session(0), Sequence(10));
        let gap = FrameMeta { next: Sequence(15), kind: FrameKind::Gap, ..message(10) };
        sink.frame(&gap, 0, &[0; 16]);
        let state = FrameMeta { next: Sequence(15), kind: FrameKind::State, ..message(15) };
        sink.frame(&state, 0, &[0; 8]);
        sink.flush();
        sink.frame(&state, 0, &[0; 8]);
        sink.flush();
        assert_eq!(harness.entries(), ["#0 [10,15) 0: (10.0+0) (15.0+0)", "#0 [15,15) 0: (15.0+0)"]);
    }

    #[test]
    fn heartbeats_cover_messages_without_output() {
        let mut harness = Harness::new();
        let sink = &mut harness.sink;
        assert!(!sink.commit_covered());
        sink.session(session(0), Sequence(1));
        assert!(!sink.commit_covered());
        sink.covered_through(Sequence(40));
        assert!(sink.commit_covered());
        assert!(!sink.commit_covered());
        assert_eq!(harness.entries(), ["#0 [1,40) 1:"]);
    }

    #[test]
    fn a_session_is_covered_before_the_next_begins_and_ends_once() {
        let mut harness = Harness::new();
        let sink = &mut harness.sink;
        sink.session(session(0), Sequence(1));
        sink.frame(&message(1), 1, &records(1, 80));
        sink.covered_through(Sequence(4));
        sink.session(session(1), Sequence(1));
        sink.frame(&message(1), 1, &records(1, 80));
        sink.covered_through(Sequence(3));
        sink.end_of_session();
        sink.end_of_session();
        sink.session(session(2), Sequence(1));
        sink.covered_through(Sequence(2));
        sink.end_of_session();
        assert_eq!(
            harness.entries(),
            ["#0 [1,4) 0: (1.0+1)", "#0 [4,4) 257:", "#1 [1,3) 0: (1.0+1)", "#1 [3,3) 9:", "#2 [1,2) 9:"]
        );
    }

    #[test]
    fn the_end_of_a_session_that_this_run_has_not_followed_is_not_final() {
        let mut harness = Harness::new();
        let sink = &mut harness.sink;
        // An earlier run wrote up to 4. The gateway was down when the session ended.
        sink.resume(session(0), Sequence(4), false);
        sink.session(session(1), Sequence(1));
        // This session fails before its end.
        sink.frame(&message(1), 1, &records(1, 80));
        sink.fail();
        sink.session(session(2), Sequence(1));
        sink.resume(session(2), Sequence(1), false);
        // The input is replayed, and followed to its end.
        sink.session(session(2), Sequence(1));
        sink.session(session(3), Sequence(1));
        assert_eq!(harness.entries(), ["#1 [1,1) 0: (1.0+0)", "#2 [1,1) 257:"]);
    }

    #[test]
    fn a_failure_drops_the_output_of_the_failed_datagram_alone() {
        let outputs = |run: &dyn Fn(&mut LogSink)| {
            let mut harness = Harness::new();
            harness.sink.session(session(0), Sequence(1));
            run(&mut harness.sink);
            harness.sink.fail();
            assert!(!harness.sink.has_open_frames());
            harness.entries()
        };
        let datagram = |sink: &mut LogSink, first: u64, next: u64, bytes: usize| {
            (first..next).for_each(|sequence| sink.frame(&message(sequence), 1, &records(1, bytes)));
        };
        // The log already holds a datagram's output, and messages without output after it.
        assert_eq!(
            outputs(&|sink| {
                datagram(sink, 1, 3, 80);
                sink.covered_through(Sequence(5));
                sink.end_datagram();
                datagram(sink, 5, 7, 80);
            }),
            ["#0 [1,5) 0: (1.0+1) (2.0+1)", "#0 [5,5) 0: (5.0+0)"]
        );
        // The failed datagram had filled the packet that an earlier one began: two frames to an entry.
        assert_eq!(
            outputs(&|sink| {
                datagram(sink, 1, 2, 560);
                sink.end_datagram();
                datagram(sink, 2, 4, 560);
            }),
            ["#0 [1,3) 0: (1.0+1) (2.0+1)", "#0 [3,3) 0: (3.0+0)"]
        );
        // Nothing is kept across a session's begin.
        assert_eq!(
            outputs(&|sink| {
                datagram(sink, 1, 3, 80);
                sink.end_datagram();
                sink.session(session(1), Sequence(1));
                datagram(sink, 1, 2, 80);
            }),
            ["#0 [1,3) 0: (1.0+1) (2.0+1)", "#0 [3,3) 257:", "#1 [1,1) 0: (1.0+0)"]
        );
    }

    #[test]
    fn replayed_messages_already_in_the_log_are_not_logged_again() {
        let mut harness = Harness::new();
        let sink = &mut harness.sink;
        sink.resume(session(0), Sequence(4), false);
        sink.session(session(0), Sequence(1));
        for sequence in 1..6 {
            sink.frame(&message(sequence), 1, &records(1, 80));
            sink.flush();
        }
        assert_eq!(harness.entries(), ["#0 [4,5) 0: (4.0+1)", "#0 [5,6) 0: (5.0+1)"]);
        harness.sink.session(session(1), Sequence(1));
        harness.sink.frame(&message(1), 1, &records(1, 80));
        harness.sink.flush();
        assert_eq!(harness.entries().last().unwrap(), "#1 [1,2) 0: (1.0+1)", "another session is new");
    }

    #[test]
    fn a_gap_declared_again_adds_only_the_missing_range() {
        let mut harness = Harness::new();
        let sink = &mut harness.sink;
        sink.resume(session(0), Sequence(4), false);
        sink.session(session(0), Sequence(1));
        let gap = |first, next| GapBody { first: U64::new(first), next: U64::new(next) };
        sink.frame(&FrameMeta::control(FrameKind::Gap, Sequence(1), Sequence(3)), 0, gap(1, 3).as_bytes());
        sink.frame(&FrameMeta::control(FrameKind::Gap, Sequence(3), Sequence(9)), 0, gap(3, 9).as_bytes());
        sink.flush();
        assert_eq!(harness.entries(), ["#0 [4,9) 0: (4.0+0)"]);
        let mut reader = Reader::open(harness.directory.path(), 1).unwrap();
        let entry = reader.next().unwrap();
        let body = GapBody::ref_from_bytes(&entry.payload[FRAME_HEADER_BYTES..]).unwrap();
        assert_eq!((body.first.get(), body.next.get()), (4, 9));
    }

    #[test]
    fn a_message_that_fits_no_packet_is_declared_as_a_gap() {
        let mut harness = Harness::new();
        let sink = &mut harness.sink;
        sink.frame(&message(1), 1, &records(1, 80));
        sink.session(session(0), Sequence(1));
        sink.frame(&message(1), 1, &[0; 2_000]);
        sink.frame(&message(2), 1, &records(1, 80));
        sink.flush();
        assert_eq!(harness.entries(), ["#0 [1,3) 0: (1.0+0) (2.0+1)"], "a gap, and the next message");
        assert_eq!(harness.sink.counts().refused, 2);
    }
}
