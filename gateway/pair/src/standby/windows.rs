//! Hashes of a channel's messages, window by window: two gateways with the same input must compute the same hashes.
//!
//! A window is a fixed multiple of sequences, so both gateways use the same bounds without coordination. The hash
//! leaves out windows that a gap touches, in which a book was suspect, or whose beginning was not read: there the two
//! gateways may differ.

use mdgw_wire::{
    frame::{FrameFlags, FrameHeader, FrameKind, GapBody},
    identity::{ChannelId, Sequence, Session},
};
use sha2::{Digest as _, Sha256};
use zerocopy::FromBytes as _;

/// Identity and hash of a window of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowHash {
    /// Channel of the window.
    pub channel: ChannelId,
    /// Session of the window.
    pub session: Session,
    /// First sequence of the window.
    pub first: Sequence,
    /// Number of messages in the window that produced records.
    pub messages: u32,
    /// Hash of those messages.
    pub hash: [u8; 16],
}

/// Hashes one channel's frames, as its log stores them.
#[derive(Debug)]
pub(crate) struct WindowHasher {
    channel: ChannelId,
    window: Option<Window>,
    /// End of the last declared gap.
    gap_until: Sequence,
}

#[derive(Debug)]
struct Window {
    session: Session,
    first: Sequence,
    hash: Sha256,
    messages: u32,
    /// Whether the window was read from its beginning, without a gap or a suspect book.
    is_comparable: bool,
}

/// One frame of an entry, or the end of the entry's range.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WindowInput<'a> {
    /// A frame: header and body.
    Frame(&'a FrameHeader, &'a [u8]),
    /// The entry covers everything before this sequence.
    CoveredThrough(Sequence),
}

impl WindowHasher {
    /// A hasher for that channel that has read nothing yet.
    #[must_use]
    pub(crate) fn new(channel: ChannelId) -> Self {
        Self { channel, window: None, gap_until: Sequence(0) }
    }

    /// Accepts the next part of the stream. Calls `done` for each complete window.
    pub(crate) fn push(&mut self, session: Session, input: WindowInput<'_>, done: &mut impl FnMut(WindowHash)) {
        if self.window.as_ref().is_none_or(|window| window.session != session) {
            // A session begins. Its first window is complete only if the stream starts at message 1.
            let begins_at = match input {
                WindowInput::Frame(header, _) => Sequence(header.sequence.get()),
                WindowInput::CoveredThrough(_) => Sequence(u64::MAX),
            };
            let is_comparable = self.window.is_some() && begins_at.0 <= 1;
            // The start of this window was not read; it is left out.
            let first = match input {
                _ if is_comparable => Sequence(0),
                WindowInput::Frame(header, _) => window_of(Sequence(header.sequence.get())),
                WindowInput::CoveredThrough(next) => window_of(next),
            };
            self.window = Some(Window::begin(session, first, is_comparable));
            self.gap_until = Sequence(0);
        }
        match input {
            WindowInput::Frame(header, body) => {
                let sequence = Sequence(header.sequence.get());
                self.advance_to(sequence, done);
                if let Ok(gap) = GapBody::ref_from_bytes(body)
                    && header.kind == FrameKind::Gap as u8
                {
                    self.gap_until = self.gap_until.max(Sequence(gap.next.get()));
                }
                if let Some(window) = self.window.as_mut() {
                    window.take(header, body);
                }
            }
            WindowInput::CoveredThrough(next) => self.advance_to(next, done),
        }
    }

    /// Ends the windows that lie before `next`. Calls `done` for each that is comparable.
    fn advance_to(&mut self, next: Sequence, done: &mut impl FnMut(WindowHash)) {
        let last = window_of(next);
        let Some(mut window) = self.window.take() else { return };
        for _ in 0..EMPTY_WINDOWS_MAX {
            if window.first >= last {
                break;
            }
            let (session, first) = (window.session, window.first.plus(WINDOW_SEQUENCES));
            let ended = std::mem::replace(&mut window, Window::begin(session, first, first >= self.gap_until));
            if ended.is_comparable {
                done(ended.finish(self.channel));
            }
        }
        if window.first < last {
            window = Window::begin(window.session, last, false);
        }
        self.window = Some(window);
    }
}

impl Window {
    fn begin(session: Session, first: Sequence, is_comparable: bool) -> Self {
        Self { session, first, hash: Sha256::new(), messages: 0, is_comparable }
    }

    fn finish(self, channel: ChannelId) -> WindowHash {
        let Self { session, first, hash, messages, .. } = self;
        let hash = hash.finalize().first_chunk().copied().unwrap_or_default();
        WindowHash { channel, session, first, messages, hash }
    }

    fn take(&mut self, header: &FrameHeader, body: &[u8]) {
        let flags = FrameFlags(header.flags);
        match FrameKind::from_number(header.kind) {
            Some(FrameKind::Message) => {
                self.is_comparable &= !flags.contains(FrameFlags::SUSPECT);
                // Hashing each part separately would make the hash depend on how the message was split. The hash
                // covers the whole message: its identity, then its records.
                if flags.contains(FrameFlags::FIRST_PART) {
                    self.hash.update(header.sequence.get().to_le_bytes());
                    self.messages += 1;
                }
                self.hash.update(body);
            }
            Some(FrameKind::Gap) => self.is_comparable = false,
            Some(FrameKind::Snapshot | FrameKind::SnapshotChunk | FrameKind::State) | None => {}
        }
    }
}

/// Start of the window that holds a sequence.
fn window_of(sequence: Sequence) -> Sequence {
    Sequence(sequence.0 - sequence.0 % WINDOW_SEQUENCES)
}

/// Hash of one message's records, to find the first message that differs.
#[must_use]
pub(crate) fn message_hash(records: &[u8]) -> u64 {
    Sha256::digest(records).first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// Number of sequences in a window. On a busy channel the gateways compare some twenty hashes a second.
pub(crate) const WINDOW_SEQUENCES: u64 = 1_024;
/// Maximum number of windows that end at once. After a longer jump of the sequence the windows begin anew.
const EMPTY_WINDOWS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use mdgw_wire::{identity::Feed, time::TradingDate};
    use zerocopy::little_endian::{I32, U16, U32, U64};

    use super::*;

    fn session(restart: u32) -> Session {
        Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart }
    }

    const WHOLE: FrameFlags = FrameFlags(3);

    struct HasherFixture {
        hasher: WindowHasher,
        done: Vec<(u32, u64, u32, [u8; 16])>,
        session: Session,
    }

    impl HasherFixture {
        fn new() -> Self {
            let mut fixture = Self { hasher: WindowHasher::new(ChannelId(1)), done: Vec::new(), session: session(0) };
            // A session before it, so that the beginning of the first session is read.
            fixture.frame(1, FrameKind::Message, WHOLE, &[]);
            fixture.session = session(1);
            fixture
        }

        fn frame(&mut self, sequence: u64, kind: FrameKind, flags: FrameFlags, body: &[u8]) {
            let header = FrameHeader {
                sequence: U64::new(sequence),
                // Fields that are local to each gateway.
                ts_recv: U64::new(sequence * 77),
                ts_in_delta_ns: I32::ZERO,
                body_bytes: U16::ZERO,
                record_count: U16::ZERO,
                kind: kind as u8,
                flags: flags.0,
                part: U16::ZERO,
                reserved: U32::ZERO,
            };
            let done = &mut self.done;
            self.hasher.push(self.session, WindowInput::Frame(&header, body), &mut |window| {
                done.push((window.session.restart, window.first.0, window.messages, window.hash));
            });
        }

        fn cover(&mut self, next: u64) {
            let done = &mut self.done;
            self.hasher.push(self.session, WindowInput::CoveredThrough(Sequence(next)), &mut |window| {
                done.push((window.session.restart, window.first.0, window.messages, window.hash));
            });
        }

        fn messages(&mut self, range: std::ops::Range<u64>) {
            for sequence in range {
                self.frame(sequence, FrameKind::Message, WHOLE, &sequence.to_le_bytes());
            }
        }

        fn windows(&self) -> Vec<(u32, u64, u32)> {
            self.done.iter().map(|(restart, first, messages, _)| (*restart, *first, *messages)).collect()
        }
    }

    #[test]
    fn window_hashes_do_not_depend_on_message_parts_or_idle_ranges() {
        let mut whole = HasherFixture::new();
        whole.messages(1..1_000);
        whole.frame(1_000, FrameKind::Message, WHOLE, b"abcdef");
        whole.cover(2_060);
        let mut cut = HasherFixture::new();
        cut.messages(1..1_000);
        cut.cover(900);
        cut.frame(1_000, FrameKind::Message, FrameFlags::FIRST_PART, b"abc");
        cut.frame(1_000, FrameKind::State, WHOLE, b"local");
        cut.frame(1_000, FrameKind::Message, FrameFlags::LAST_PART, b"def");
        cut.cover(1_500);
        cut.messages(2_048..2_049);
        assert_eq!(whole.windows(), [(1, 0, 1_000), (1, 1_024, 0)]);
        assert_eq!(whole.done, cut.done);
    }

    #[test]
    fn a_changed_missing_or_additional_message_changes_the_hash() {
        let hash = |spoil: fn(&mut HasherFixture)| {
            let mut fixture = HasherFixture::new();
            fixture.messages(1..500);
            spoil(&mut fixture);
            fixture.cover(1_024);
            assert_eq!(fixture.done.len(), 1);
            fixture.done[0].3
        };
        let right = hash(|fixture| fixture.messages(500..501));
        assert_ne!(right, hash(|_| {}));
        assert_ne!(right, hash(|fixture| fixture.messages(501..502)));
        assert_ne!(right, hash(|fixture| fixture.frame(500, FrameKind::Message, WHOLE, b"other")));
    }

    #[test]
    fn windows_with_a_gap_or_suspect_messages_are_left_out() {
        let mut fixture = HasherFixture::new();
        fixture.messages(1..100);
        let gap = GapBody { first: U64::new(100), next: U64::new(1_100) };
        fixture.frame(100, FrameKind::Gap, WHOLE, zerocopy::IntoBytes::as_bytes(&gap));
        // The gap reached into the second window; the windows after it are complete again.
        fixture.cover(1_100);
        fixture.messages(2_048..2_050);
        fixture.frame(3_072, FrameKind::Message, WHOLE.with(FrameFlags::SUSPECT), &[]);
        fixture.messages(4_096..4_097);
        fixture.messages(5_120..5_121);
        assert_eq!(fixture.windows(), [(1, 2_048, 2), (1, 4_096, 1)]);
    }

    #[test]
    fn windows_before_the_first_entry_read_are_not_reported() {
        let mut fixture =
            HasherFixture { hasher: WindowHasher::new(ChannelId(1)), done: Vec::new(), session: session(0) };
        fixture.messages(30_000..30_722);
        assert_eq!(fixture.windows(), [(0, 0, 0); 0]);
        fixture.messages(30_722..31_800);
        assert_eq!(fixture.windows(), [(0, 30_720, 1_024)]);
    }

    #[test]
    fn a_window_read_from_its_middle_is_left_out() {
        let mut fixture =
            HasherFixture { hasher: WindowHasher::new(ChannelId(1)), done: Vec::new(), session: session(0) };
        fixture.messages(700..1_030);
        fixture.cover(2_048);
        assert_eq!(fixture.windows(), [(0, 1_024, 6)]);
        fixture.session = session(1);
        fixture.messages(5..6);
        fixture.cover(1_024);
        assert_eq!(fixture.windows().len(), 1, "a session that was not seen from its beginning");
    }
}
