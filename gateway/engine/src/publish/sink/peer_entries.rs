//! Entries of another gateway's log, appended to this one before the channel begins.

use mdgw_feeds::{
    frame::{FRAME_HEADER_BYTES, FrameFlags, FrameHeader, FrameKind, FrameMeta, FrameSink as _, GapBody},
    identity::{Sequence, Session},
    published::{
        packet::{Frames, PacketFlags},
        position::StreamPosition,
    },
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{FINAL_POSITION, LogSink, header};

/// An entry of the log of another gateway, which has the same channel.
#[derive(Clone, Copy, Debug)]
pub struct PeerEntry<'a> {
    /// Session of the entry.
    pub session: Session,
    /// First sequence covered.
    pub first: Sequence,
    /// First sequence after the covered range.
    pub next: Sequence,
    /// Flags of the entry.
    pub flags: u16,
    /// Frames in the payload.
    pub frame_count: u16,
    /// The frames, without any space between them.
    pub payload: &'a [u8],
}

/// Why an entry of another gateway's log cannot be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerEntryFault {
    /// Frames, ranges and lengths do not fit together.
    #[error("an entry of the peer's log is damaged")]
    Damaged,
    /// A frame of it is longer than a packet of this gateway, and cannot be split.
    #[error("an entry of the peer's log is longer than payload_bytes_max, and cannot be split")]
    TooLong,
}

/// Appends the entries of another gateway's log to the log of a channel that has not begun.
///
/// An entry stays as it is if it fits. The packets of a gateway with a larger `payload_bytes_max` may be longer: their messages are packed and
/// cut again, exactly as the channel of this gateway would have done it.
#[derive(Debug)]
pub struct PeerEntries<'log> {
    sink: &'log mut LogSink,
    /// What the log is to get ends here.
    until: StreamPosition,
    /// Parts of a message that are longer than this gateway's. They are cut again when the last one has come.
    parts: Option<Parts>,
}

#[derive(Debug)]
struct Parts {
    meta: FrameMeta,
    /// Number of the first of these parts. Those before it have the same length in both logs: each has as many records as fit.
    first: u16,
    next: u16,
    body: Vec<u8>,
}

impl<'log> PeerEntries<'log> {
    /// Nothing behind `until` is appended.
    #[must_use]
    pub fn new(sink: &'log mut LogSink, until: StreamPosition) -> Self {
        Self { sink, until, parts: None }
    }

    /// What the log has so far, for reading.
    #[must_use]
    pub fn sink(&self) -> &LogSink {
        self.sink
    }

    /// Entries get that time from now on.
    pub fn begin(&mut self, now: mdgw_feeds::time::UnixNs) {
        self.sink.begin(now);
    }

    /// Appends what the entry has between the end of the log and the position until which it is filled. If the
    /// entry begins behind the end of the log, the sequences between are a hole in it.
    ///
    /// # Errors
    /// The entry is not appended then, or not all of it.
    pub fn append(&mut self, entry: &PeerEntry<'_>) -> Result<(), PeerEntryFault> {
        let PeerEntry { session, first, next, flags, frame_count, payload } = *entry;
        let (sink, until) = (&mut *self.sink, self.until);
        let committed = sink.committed_through();
        if session > until.session || committed.is_some_and(|committed| committed.session > session) {
            return Ok(());
        }
        let is_continued = committed.is_some_and(|committed| committed.session == session);
        let begin = committed.filter(|_| is_continued).map_or(first, |committed| committed.sequence.max(first));
        let limit = if session == until.session { until.sequence } else { Sequence(u64::MAX) };
        let end = next.min(limit);
        let frames: Vec<_> = Frames::of_body(payload).collect();
        let frame_bytes = frames.iter().map(|(_, body)| FRAME_HEADER_BYTES + body.len()).sum::<usize>();
        let sequences = || frames.iter().map(|(header, _)| header.sequence.get());
        if frames.len() != usize::from(frame_count)
            || frame_bytes != payload.len()
            || !sequences().is_sorted()
            || sequences().any(|sequence| !(first.0..=next.0).contains(&sequence))
            || frames.iter().any(|(header, body)| meta_of(header, body).is_none())
        {
            return Err(PeerEntryFault::Damaged);
        }
        // A gap that spans the end of the own log goes on behind it.
        let rest_of_gap = frames.iter().find_map(|frame| rest_of_gap(frame, begin));
        let wanted = || frames.iter().filter(|(header, _)| (begin.0..limit.0).contains(&header.sequence.get()));
        let count = wanted().count() + usize::from(rest_of_gap.is_some());
        let wanted_bytes = wanted().map(|(_, body)| FRAME_HEADER_BYTES + body.len()).sum::<usize>();
        let bytes = wanted_bytes + rest_of_gap.map_or(0, |_| GAP_FRAME_BYTES);
        let has_ended = PacketFlags(flags.to_le_bytes()[0]).contains(PacketFlags::END_OF_SESSION);
        let is_final = end == next && payload.is_empty() && (has_ended || flags & FINAL_POSITION != 0);
        let is_known = end == begin
            && count == 0
            && (!is_final || sink.session_progress.is_some_and(|known| is_continued && known.has_ended));
        if end < begin || is_known {
            return Ok(());
        }
        if !is_continued || begin > committed.map_or(Sequence(0), |committed| committed.sequence) {
            sink.resume(session, begin, false);
        }
        let continues_parts = |parts: &Parts| {
            let is_of = |(header, _): &&(&FrameHeader, &[u8])| header.sequence.get() == parts.meta.sequence.0;
            is_continued && frames.first().filter(is_of).is_some_and(|(header, _)| is_part(header))
        };
        self.parts.take_if(|parts| !continues_parts(parts));
        if self.parts.is_some() || bytes > sink.writer.payload_bytes_max() {
            let appended = self.append_cut(rest_of_gap.as_ref(), wanted().copied(), end);
            if appended.is_err() {
                self.sink.drop_uncommitted();
            }
            return appended;
        }
        sink.writer.begin(session.to_bytes(), begin.0);
        if let Some(gap) = &rest_of_gap {
            sink.writer.append(gap);
        }
        for (header, body) in wanted() {
            sink.writer.append(header.as_bytes());
            sink.writer.append(body);
        }
        if is_final {
            sink.writer.commit_lasting(end.0, flags, sink.now.0);
        } else {
            let flags = if count == 0 { PacketFlags::HEARTBEAT.0.into() } else { flags };
            sink.writer.commit(end.0, u16::try_from(count).unwrap_or(frame_count), flags, sink.now.0);
        }
        sink.resume(session, end, is_final && has_ended);
        Ok(())
    }

    /// Appends the frames of an entry that ends at `end` as the channel would have: packed into entries, and long messages cut into parts.
    fn append_cut<'f>(
        &mut self,
        rest_of_gap: Option<&'f [u8; GAP_FRAME_BYTES]>,
        frames: impl Iterator<Item = (&'f FrameHeader, &'f [u8])>,
        end: Sequence,
    ) -> Result<(), PeerEntryFault> {
        for (header, body) in rest_of_gap.into_iter().flat_map(|gap| Frames::of_body(gap)).chain(frames) {
            let meta = meta_of(header, body).ok_or(PeerEntryFault::Damaged)?;
            let is_written = if is_part(header) {
                match self.join(&meta, header, body)? {
                    Some(Parts { meta, first, body, .. }) => self.sink.append_parts(&meta, &body, first),
                    None => continue,
                }
            } else if body.len() <= self.sink.part_bytes_max() {
                self.sink.append(header, body)
            } else {
                self.sink.append_parts(&meta, body, 0)
            };
            if !is_written {
                return Err(PeerEntryFault::TooLong);
            }
            self.sink.covered_through(meta.next.min(end));
        }
        self.sink.covered_through(end);
        self.sink.commit_covered();
        Ok(())
    }

    /// Joins a part with those before it. Returns all of them with the last one.
    fn join(&mut self, meta: &FrameMeta, header: &FrameHeader, body: &[u8]) -> Result<Option<Parts>, PeerEntryFault> {
        let part = header.part.get();
        let parts = self.parts.get_or_insert_with(|| Parts { meta: *meta, first: part, next: part, body: Vec::new() });
        // A killed writer has written its first parts, and the next one all of them.
        if part < parts.next {
            return Ok(None);
        }
        if part > parts.next || parts.body.len() + body.len() > MESSAGE_BYTES_MAX {
            return Err(PeerEntryFault::Damaged);
        }
        parts.next = part.saturating_add(1);
        parts.body.extend_from_slice(body);
        Ok(self.parts.take_if(|_| FrameFlags(header.flags).contains(FrameFlags::LAST_PART)))
    }
}

fn is_part(header: &FrameHeader) -> bool {
    !FrameFlags(header.flags).contains(FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART))
}

/// Of a frame, without the flags that say which part it is.
fn meta_of(header: &FrameHeader, body: &[u8]) -> Option<FrameMeta> {
    // No log has chunks of snapshots.
    let kind = FrameKind::from_number(header.kind).filter(|kind| *kind != FrameKind::SnapshotChunk)?;
    let sequence = Sequence(header.sequence.get());
    let next = match kind {
        FrameKind::Message => Sequence(sequence.0.checked_add(1)?),
        FrameKind::Gap => Sequence(GapBody::ref_from_bytes(body).ok()?.next.get()),
        _ => sequence,
    };
    let part_flags = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
    Some(FrameMeta {
        sequence,
        next,
        kind,
        flags: FrameFlags(header.flags & !part_flags.0),
        ts_recv: header.ts_recv.get(),
        ts_in_delta_ns: header.ts_in_delta_ns.get(),
    })
}

/// If the frame is a gap that begins before `begin` and ends behind it: the frame of the rest.
fn rest_of_gap((header, body): &(&FrameHeader, &[u8]), begin: Sequence) -> Option<[u8; GAP_FRAME_BYTES]> {
    let gap = GapBody::ref_from_bytes(body).ok().filter(|_| header.kind == FrameKind::Gap as u8)?;
    let next = Sequence(gap.next.get());
    if header.sequence.get() >= begin.0 || next <= begin {
        return None;
    }
    let meta = FrameMeta::control(FrameKind::Gap, begin, next);
    let flags = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
    let mut frame = [0; GAP_FRAME_BYTES];
    let (head, tail) = frame.split_at_mut(FRAME_HEADER_BYTES);
    head.copy_from_slice(self::header(&meta, 0, size_of::<GapBody>(), flags, 0).as_bytes());
    tail.copy_from_slice(GapBody { first: begin.0.into(), next: next.0.into() }.as_bytes());
    Some(frame)
}

const GAP_FRAME_BYTES: usize = FRAME_HEADER_BYTES + size_of::<GapBody>();
/// Longest message that is joined of parts: above 65,535 records of the longest kind that any feed has.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use mdgw_feeds::channel::ChannelState;
    use mdgw_publog::Reader;

    use super::{
        super::{
            state_frame,
            tests::{Harness, message, records, session},
        },
        *,
    };

    /// All entries of this log, appended to another one from `begin` on, which ends at `until` then.
    fn copied_entries(peer: &Harness, begin: Option<(u32, u64)>, until: u64) -> Harness {
        copied_into(Harness::new(), peer, begin, until)
    }

    fn copied_into(mut own: Harness, peer: &Harness, begin: Option<(u32, u64)>, until: u64) -> Harness {
        if let Some((restart, sequence)) = begin {
            own.sink.resume(session(restart), Sequence(sequence), false);
        }
        let mut entries = PeerEntries::new(&mut own.sink, StreamPosition::at(session(1), Sequence(until)));
        let mut reader = Reader::open(peer.directory.path(), 1).unwrap();
        while let Some(entry) = reader.next() {
            let entry = PeerEntry {
                session: Session::from_bytes(entry.session).unwrap(),
                first: Sequence(entry.first),
                next: Sequence(entry.next),
                flags: entry.flags,
                frame_count: entry.frame_count,
                payload: entry.payload,
            };
            entries.append(&entry).unwrap();
        }
        own
    }

    #[test]
    fn entries_of_a_peers_log_fill_exactly_what_the_own_log_lacks_before_a_position() {
        let mut peer = Harness::new();
        peer.sink.session(session(1), Sequence(1));
        for sequence in 1..=4 {
            peer.sink.frame(&message(sequence), 1, &records(1, 80));
        }
        peer.sink.flush();
        peer.sink.frame(&message(6), 20, &records(20, 80));
        peer.sink.frame(&message(7), 1, &records(1, 80));
        peer.sink.flush();
        peer.sink.covered_through(Sequence(9));
        peer.sink.commit_covered();
        peer.sink.frame(&message(9), 1, &records(1, 80));
        peer.sink.flush();
        let long = ["#1 [5,6) 0: (6.0+17", "#1 [6,7) 0: 6.1+3)"];
        let tail = ["#1 [7,8) 0: (7.0+1)", "#1 [8,9) 1:", "#1 [9,10) 0: (9.0+1)"];
        let whole = [&["#1 [1,5) 0: (1.0+1) (2.0+1) (3.0+1) (4.0+1)"][..], &long, &tail].concat();
        assert_eq!(peer.entries(), whole);
        assert_eq!(copied_entries(&peer, None, 10).entries(), whole);
        assert_eq!(copied_entries(&peer, Some((0, 77)), 10).entries(), whole);
        let from_3 = [&["#1 [3,5) 0: (3.0+1) (4.0+1)"][..], &long, &tail].concat();
        assert_eq!(copied_entries(&peer, Some((1, 3)), 10).entries(), from_3);
        assert_eq!(copied_entries(&peer, Some((1, 3)), 4).entries(), ["#1 [3,4) 0: (3.0+1)"]);
        // A killed writer may have left the first part of the long message: readers take each part once.
        let from_6 = [&["#1 [6,6) 0: (6.0+17"][..], &long[1..], &tail[..1]].concat();
        assert_eq!(copied_entries(&peer, Some((1, 6)), 8).entries(), from_6);
        assert_eq!(copied_entries(&peer, Some((1, 8)), 9).entries(), ["#1 [8,9) 1:"]);
        assert_eq!(copied_entries(&peer, Some((1, 10)), 10).entries(), [""; 0]);
        assert_eq!(copied_entries(&peer, Some((2, 1)), 10).entries(), [""; 0], "it is in a newer session");
    }

    #[test]
    fn a_gap_that_spans_the_end_of_the_own_log_goes_on_behind_it() {
        let mut peer = Harness::new();
        peer.sink.session(session(1), Sequence(1));
        peer.sink.frame(&message(1), 1, &records(1, 80));
        peer.sink.flush();
        let gap = GapBody { first: 3.into(), next: 10.into() };
        peer.sink.frame(&FrameMeta::control(FrameKind::Gap, Sequence(3), Sequence(10)), 0, gap.as_bytes());
        peer.sink.frame(&message(10), 1, &records(1, 80));
        peer.sink.flush();
        assert_eq!(peer.entries(), ["#1 [1,2) 0: (1.0+1)", "#1 [2,11) 0: (3.0+0) (10.0+1)"]);
        assert_eq!(copied_entries(&peer, Some((1, 5)), 11).entries(), ["#1 [5,11) 0: (5.0+0) (10.0+1)"]);
        assert_eq!(copied_entries(&peer, Some((1, 5)), 10).entries(), ["#1 [5,10) 0: (5.0+0)"]);
        assert_eq!(copied_entries(&peer, Some((1, 10)), 11).entries(), ["#1 [10,11) 0: (10.0+1)"]);
        let own = copied_entries(&peer, Some((1, 5)), 11);
        let mut reader = Reader::open(own.directory.path(), 1).unwrap();
        let entry = reader.next().unwrap();
        let (_, body) = Frames::of_body(entry.payload).next().unwrap();
        assert_eq!(body, GapBody { first: 5.into(), next: 10.into() }.as_bytes());
    }

    /// What a gateway with packets of 700 bytes has in its log that received this input, and what it has that copied the input from a
    /// gateway with packets of 1,408 bytes.
    fn logged_and_copied(input: impl Fn(&mut LogSink), begin: Option<(u32, u64)>, until: u64) -> [Vec<String>; 2] {
        let [mut peer, mut own] = [1_408, 700].map(Harness::with_payload_of);
        input(&mut peer.sink);
        input(&mut own.sink);
        [own, copied_into(Harness::with_payload_of(700), &peer, begin, until)].map(|log| log.entries())
    }

    #[test]
    fn longer_entries_are_packed_and_cut_as_this_gateway_does_it() {
        let [logged, copied] = logged_and_copied(
            |sink| {
                sink.session(session(1), Sequence(1));
                // Six frames of 112 bytes to an entry.
                for sequence in 1..=9 {
                    sink.frame(&message(sequence), 1, &records(1, 80));
                }
                // Whole in the longer packets, and in two parts of 8 and 7 records in the shorter ones.
                sink.covered_through(Sequence(12));
                sink.frame(&message(12), 15, &records(15, 80));
                sink.flush();
                // Parts of 17 and 3 records, and of 8, 8 and 4.
                sink.frame(&message(13), 20, &records(20, 80));
                sink.frame(&FrameMeta::state(Sequence(14)), 0, &[0; 8]);
                sink.flush();
                // Parts of three records and one. The first one covers the messages before; behind them, an entry that fits.
                sink.covered_through(Sequence(17));
                sink.frame(&message(17), 4, &records(4, 368));
                sink.frame(&message(18), 1, &records(1, 80));
                sink.flush();
            },
            None,
            19,
        );
        let expected = [
            "#1 [1,7) 0: (1.0+1) (2.0+1) (3.0+1) (4.0+1) (5.0+1) (6.0+1)",
            "#1 [7,12) 0: (7.0+1) (8.0+1) (9.0+1)",
            "#1 [12,12) 0: (12.0+8",
            "#1 [12,13) 0: 12.1+7)",
            "#1 [13,13) 0: (13.0+8",
            "#1 [13,13) 0: 13.1+8",
            "#1 [13,14) 0: 13.2+4)",
            "#1 [14,14) 0: (14.0+0)",
            "#1 [14,17) 1:",
            "#1 [17,17) 0: (17.0+1",
            "#1 [17,17) 0: 17.1+1",
            "#1 [17,17) 0: 17.2+1",
            "#1 [17,18) 0: 17.3+1)",
            "#1 [18,19) 0: (18.0+1)",
        ];
        assert_eq!(copied, expected);
        // Where the input's datagrams ended is not in the peer's log: frames may be packed otherwise, never cut otherwise.
        let parts = |log: &[String]| -> Vec<String> {
            log.iter().flat_map(|entry| entry.split(' ').skip(3)).map(str::to_owned).collect()
        };
        assert_eq!(parts(&logged), parts(&copied));
    }

    #[test]
    fn longer_entries_are_cut_at_both_ends_of_what_is_wanted() {
        let input = |sink: &mut LogSink| {
            sink.session(session(1), Sequence(1));
            (1..=10).for_each(|sequence| sink.frame(&message(sequence), 1, &records(1, 80)));
            sink.flush();
            sink.frame(&message(11), 20, &records(20, 80));
        };
        let copied = |begin, until| logged_and_copied(input, Some((1, begin)), until)[1].clone();
        let from_3 = ["#1 [3,9) 0: (3.0+1) (4.0+1) (5.0+1) (6.0+1) (7.0+1) (8.0+1)", "#1 [9,10) 0: (9.0+1)"];
        assert_eq!(copied(3, 10), from_3);
        // The rest of an entry fits.
        assert_eq!(copied(7, 10), ["#1 [7,10) 0: (7.0+1) (8.0+1) (9.0+1)"]);
        let long = ["#1 [11,11) 0: (11.0+8", "#1 [11,11) 0: 11.1+8", "#1 [11,12) 0: 11.2+4)"];
        assert_eq!(copied(11, 12), long);
        assert_eq!(copied(12, 12), [""; 0]);
        assert_eq!(copied(11, 11), [""; 0], "nothing of a message behind the end");
    }

    #[test]
    fn a_gap_in_a_longer_entry_goes_on_behind_the_end_of_the_own_log() {
        let input = |sink: &mut LogSink| {
            sink.session(session(1), Sequence(1));
            let gap = GapBody { first: 1.into(), next: 10.into() };
            sink.frame(&FrameMeta::control(FrameKind::Gap, Sequence(1), Sequence(10)), 0, gap.as_bytes());
            (10..=18).for_each(|sequence| sink.frame(&message(sequence), 1, &records(1, 80)));
        };
        let [_, copied] = logged_and_copied(
            |sink| {
                input(sink);
                sink.flush();
            },
            Some((1, 5)),
            19,
        );
        let expected = [
            "#1 [5,15) 0: (5.0+0) (10.0+1) (11.0+1) (12.0+1) (13.0+1) (14.0+1)",
            "#1 [15,19) 0: (15.0+1) (16.0+1) (17.0+1) (18.0+1)",
        ];
        assert_eq!(copied, expected);
    }

    #[test]
    fn parts_that_a_killed_writer_left_are_joined_once() {
        let mut peer = Harness::with_payload_of(1_408);
        peer.sink.session(session(1), Sequence(1));
        let written = |peer: &mut Harness| peer.sink.frame(&message(1), 20, &records(20, 80));
        written(&mut peer);
        let mut reader = Reader::open(peer.directory.path(), 1).unwrap();
        let [first, last] = [(); 2].map(|()| {
            let entry = reader.next().unwrap();
            (entry.first, entry.next, entry.payload.to_vec())
        });
        let appended = |entries: &[&(u64, u64, Vec<u8>)]| {
            let mut own = Harness::with_payload_of(700);
            let mut appender = PeerEntries::new(&mut own.sink, StreamPosition::at(session(1), Sequence(9)));
            let outcomes: Vec<_> = entries
                .iter()
                .map(|(first, next, payload)| {
                    appender.append(&PeerEntry {
                        session: session(1),
                        first: Sequence(*first),
                        next: Sequence(*next),
                        flags: 0,
                        frame_count: 1,
                        payload,
                    })
                })
                .collect();
            (outcomes, own.entries())
        };
        let long = ["#1 [1,1) 0: (1.0+8", "#1 [1,1) 0: 1.1+8", "#1 [1,2) 0: 1.2+4)"];
        assert_eq!(appended(&[&first, &last]), (vec![Ok(()); 2], long.map(str::to_owned).to_vec()));
        assert_eq!(appended(&[&first, &first, &last]), (vec![Ok(()); 3], long.map(str::to_owned).to_vec()));
        assert_eq!(appended(&[&first, &first]), (vec![Ok(()); 2], vec![]), "no part of a message without its end");
    }

    /// An entry that is too long for packets of 640 bytes. Its first frame is sound.
    #[test]
    fn an_entry_with_a_bad_frame_covers_nothing_behind_its_sound_frames() {
        let mut peer = Harness::with_payload_of(1_408);
        peer.sink.session(session(1), Sequence(50));
        peer.sink.frame(&message(50), 5, &records(5, 80));
        // A record of 680 bytes fits no packet of the other gateway.
        peer.sink.frame(&message(51), 1, &records(1, 680));
        peer.sink.flush();
        let mut reader = Reader::open(peer.directory.path(), 1).unwrap();
        let payload = reader.next().unwrap().payload.to_vec();
        let second = FRAME_HEADER_BYTES + 400;
        let with_kind = |kind_of_second: u8| {
            let mut payload = payload.clone();
            payload[second + std::mem::offset_of!(FrameHeader, kind)] = kind_of_second;
            payload
        };
        // Of the second message only the parts 0 and 2.
        let part = |number: u16, flags: FrameFlags| {
            let body = records(1, 80);
            [header(&message(51), 1, body.len(), flags, number).as_bytes(), &body].concat()
        };
        let without_part_1 =
            [&payload[..second], &part(0, FrameFlags::FIRST_PART), &part(2, FrameFlags::default())].concat();
        let until = StreamPosition::at(session(1), Sequence(500));
        for (frame_count, payload, fault, expected) in [
            (2, payload.clone(), PeerEntryFault::TooLong, &["#1 [50,51) 0: (50.0+5)"][..]),
            (2, with_kind(9), PeerEntryFault::Damaged, &[]),
            (2, with_kind(FrameKind::SnapshotChunk as u8), PeerEntryFault::Damaged, &[]),
            (2, with_kind(FrameKind::Gap as u8), PeerEntryFault::Damaged, &[]),
            (3, without_part_1, PeerEntryFault::Damaged, &[]),
        ] {
            let (first, next) = (Sequence(50), Sequence(80));
            let entry = PeerEntry { session: session(1), first, next, flags: 0, frame_count, payload: &payload };
            for resumes in [true, false] {
                // The entry with parts has 656 bytes.
                let mut own = Harness::with_payload_of(640);
                own.sink.resume(session(1), Sequence(50), false);
                assert_eq!(PeerEntries::new(&mut own.sink, until).append(&entry), Err(fault));
                if resumes {
                    own.sink.resume(session(1), Sequence(500), false);
                }
                own.sink.flush();
                assert!(!own.sink.commit_covered(), "{fault:?} {resumes}");
                assert_eq!(own.entries(), expected, "{fault:?} {resumes}");
            }
        }
    }

    #[test]
    fn an_entry_with_an_unknown_frame_is_refused_even_if_it_fits() {
        let mut frame = state_frame(Sequence(7), ChannelState::Live);
        frame[std::mem::offset_of!(FrameHeader, kind)] = 9;
        let entry = PeerEntry {
            session: session(1),
            first: Sequence(7),
            next: Sequence(8),
            flags: 0,
            frame_count: 1,
            payload: &frame,
        };
        let mut own = Harness::new();
        let until = StreamPosition::at(session(1), Sequence(90));
        assert_eq!(PeerEntries::new(&mut own.sink, until).append(&entry), Err(PeerEntryFault::Damaged));
        assert_eq!(own.entries(), [""; 0]);
    }

    #[test]
    fn damaged_entries_of_a_peers_log_are_refused() {
        let frame = state_frame(Sequence(7), ChannelState::Live);
        let mut header = FrameHeader::read_from_bytes(&frame[..FRAME_HEADER_BYTES]).unwrap();
        header.body_bytes = 2_000.into();
        let too_long = [header.as_bytes(), &[0; 2_000]].concat();
        let until = StreamPosition::at(session(1), Sequence(90));
        let entry = |first, next, frame_count, payload| PeerEntry {
            session: session(1),
            first: Sequence(first),
            next: Sequence(next),
            flags: 0,
            frame_count,
            payload,
        };
        for (damaged, fault) in [
            (entry(1, 8, 2, &frame[..]), PeerEntryFault::Damaged),
            (entry(1, 8, 0, &frame[..]), PeerEntryFault::Damaged),
            (entry(1, 8, 1, &frame[..frame.len() - 1]), PeerEntryFault::Damaged),
            (entry(1, 6, 1, &frame[..]), PeerEntryFault::Damaged),
            (entry(8, 9, 1, &frame[..]), PeerEntryFault::Damaged),
            (entry(1, 8, 1, &too_long), PeerEntryFault::TooLong),
        ] {
            let mut own = Harness::new();
            assert_eq!(PeerEntries::new(&mut own.sink, until).append(&damaged), Err(fault), "{damaged:?}");
            assert_eq!(own.entries(), [""; 0]);
        }
        let mut own = Harness::new();
        assert_eq!(PeerEntries::new(&mut own.sink, until).append(&entry(1, 8, 1, &frame)), Ok(()));
        assert_eq!(own.sink.committed_through(), Some(StreamPosition::at(session(1), Sequence(8))));
    }
}
