//! The names file: what the records of a journal are called, which DBN has no field for.
//!
//! ```text
//!  names file:  | header, 64 bytes | entry | entry | … |
//!
//!  header       0        8         10            12     14        16     20         60
//!               | magic  | version | entry_bytes | feed | schemas | date | zero …   | checksum |
//!  entry        0      1       2         4      6                   8         24      32      40       48      56         60
//!               | kind | flags | channel | part | records_per_frame | session | first | count | offset | bytes | data_crc | checksum |
//! ```
//! Little-endian; 64 bytes each, so the number of an entry is its place. A checksum is CRC-32C; an entry's covers the entry and its number.
//! Entries are in the order of the records. A **checkpoint** ends a batch of entries: what it says of the files is complete, and a journal
//! that was not closed continues behind its last checkpoint. Offsets count from the first record, whatever the length of the DBN metadata.

use mdgw_feeds::channel::SchemaSet;
use mdgw_wire::{
    identity::{ChannelId, Feed, InstrumentId, Session},
    time::TradingDate,
};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// Bytes of the header, and of each entry.
pub const ENTRY_BYTES: usize = 64;

/// Version of the format.
pub const VERSION: u16 = 1;

/// What a journal holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Feed of all channels.
    pub feed: Feed,
    /// Schemas of the records.
    pub schemas: SchemaSet,
    /// Trading date of all sessions.
    pub date: TradingDate,
}

/// Why the first bytes are no header of a names file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// Fewer bytes than a header has.
    #[error("the header is truncated")]
    Truncated,
    /// Another format.
    #[error("not a names file of a journal")]
    Magic,
    /// A version that this program does not know.
    #[error("version {0} of the format; this program knows version {VERSION}")]
    Version(u16),
    /// The header was changed after it was written.
    #[error("the header is damaged")]
    Damaged,
}

/// An entry that cannot be used: damaged, truncated, or not written completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the entry is damaged")]
pub struct InvalidEntry;

/// How far a channel has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelPosition {
    /// Session that the next message is expected of.
    pub session: Session,
    /// First sequence of the session that is not in the journal.
    pub next: u64,
    /// First part of that message that is not in the journal: above 0 within a message that was cut into parts.
    pub next_part: u16,
    /// Receive time of the last record, ns since 1970 UTC: later ones are not below it.
    pub ts_recv_last: u64,
    /// Whether the venue has ended the session.
    pub has_ended: bool,
}

/// Records with consecutive names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Channel of the records.
    pub channel: ChannelId,
    /// Session of the sequences.
    pub session: Session,
    /// Sequence of the first message. The others follow without a gap.
    pub first: u64,
    /// Part of the message; 0 for messages in one part. A run of more than one message has part 0 only.
    pub part: u16,
    /// Messages.
    pub frame_count: u64,
    /// Records of each message, or of the part.
    pub records_per_frame: u16,
    /// Where the first record begins, in bytes from the first record of the file.
    pub offset: u64,
    /// Bytes of all records.
    pub bytes: u64,
}

/// Sequences that the journal has no records of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Channel whose sequences they are.
    pub channel: ChannelId,
    /// Session that numbers them.
    pub session: Session,
    /// First missing sequence.
    pub first: u64,
    /// Number of sequences; 0: all further ones of the session.
    pub count: u64,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameEntry {
    /// Records.
    Run(Run),
    /// A gap that the gateway declared.
    Gap(Missing),
    /// Messages that the publication log no longer had, or never had, when the journal came to them.
    Hole(Missing),
    /// The position of a channel at the next checkpoint.
    Position(ChannelId, ChannelPosition),
    /// A piece of an instrument's symbol: pieces follow each other until `symbol_bytes` are complete.
    Symbol {
        /// Session on whose date the symbol is valid.
        session: Session,
        /// Instrument whose symbol it is.
        instrument: InstrumentId,
        /// Number of this piece.
        piece: u16,
        /// Length of the whole symbol.
        symbol_bytes: u16,
        /// The piece, padded with zeros.
        bytes: [u8; SYMBOL_PIECE_BYTES],
    },
    /// The end of a batch.
    Checkpoint(Checkpoint),
}

/// State of both files at the end of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Bytes of all records so far.
    pub data_bytes: u64,
    /// Records so far.
    pub record_count: u64,
    /// Earliest and latest time of the records, as in the DBN metadata.
    pub time_range: Option<(u64, u64)>,
    /// CRC-32C of the records since the previous checkpoint.
    pub batch_crc: u32,
    /// Nothing follows: the DBN metadata is complete.
    pub is_closed: bool,
}

/// Bytes of a symbol in one entry.
pub const SYMBOL_PIECE_BYTES: usize = 24;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U16,
    entry_bytes: U16,
    feed: U16,
    schemas: U16,
    date: U32,
    reserved: [u8; 40],
    checksum: U32,
}
const _: () = assert!(size_of::<RawHeader>() == ENTRY_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    kind: u8,
    flags: u8,
    channel: U16,
    part: U16,
    records_per_frame: U16,
    session: [u8; Session::BYTES],
    first: U64,
    count: U64,
    offset: U64,
    bytes: U64,
    data_crc: U32,
    checksum: U32,
}
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);

const MAGIC: [u8; 8] = *b"MDGWNAME";
const CHECKSUM_AT: usize = ENTRY_BYTES - size_of::<U32>();

const RUN: u8 = 1;
const GAP: u8 = 2;
const HOLE: u8 = 3;
const POSITION: u8 = 4;
const SYMBOL: u8 = 5;
const CHECKPOINT: u8 = 6;

/// Of a position: the session has ended. Of a checkpoint: the journal is closed.
const ENDED: u8 = 1;
/// Of a checkpoint: there are times of records.
const HAS_TIMES: u8 = 2;

impl Content {
    /// The header of a names file.
    #[must_use]
    pub fn header(&self) -> [u8; ENTRY_BYTES] {
        let mut raw = RawHeader {
            magic: MAGIC,
            version: VERSION.into(),
            entry_bytes: u16::try_from(ENTRY_BYTES).unwrap_or(u16::MAX).into(),
            feed: (self.feed as u16).into(),
            schemas: self.schemas.0.into(),
            date: self.date.yyyymmdd().into(),
            reserved: [0; 40],
            checksum: 0.into(),
        };
        raw.checksum = crc32c::crc32c(&raw.as_bytes()[..CHECKSUM_AT]).into();
        zerocopy::transmute!(raw)
    }

    /// Reads the header of a names file.
    ///
    /// # Errors
    /// See [`HeaderFault`].
    pub fn read(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let (raw, _) = RawHeader::read_from_prefix(bytes).map_err(|_| HeaderFault::Truncated)?;
        if raw.magic != MAGIC {
            return Err(HeaderFault::Magic);
        }
        if raw.checksum.get() != crc32c::crc32c(&raw.as_bytes()[..CHECKSUM_AT]) {
            return Err(HeaderFault::Damaged);
        }
        if raw.version.get() != VERSION {
            return Err(HeaderFault::Version(raw.version.get()));
        }
        let feed = Feed::from_number(raw.feed.get()).ok_or(HeaderFault::Damaged)?;
        let date = TradingDate::from_yyyymmdd(raw.date.get()).ok_or(HeaderFault::Damaged)?;
        Ok(Self { feed, schemas: SchemaSet(raw.schemas.get()), date })
    }
}

impl NameEntry {
    /// The bytes of the entry with that number, counted from 0.
    #[must_use]
    pub fn to_bytes(&self, number: u64) -> [u8; ENTRY_BYTES] {
        let mut raw = RawEntry::new_zeroed_entry();
        match self {
            Self::Run(run) => {
                raw.kind = RUN;
                raw.channel = run.channel.0.into();
                raw.part = run.part.into();
                raw.records_per_frame = run.records_per_frame.into();
                raw.session = run.session.to_bytes();
                (raw.first, raw.count) = (run.first.into(), run.frame_count.into());
                (raw.offset, raw.bytes) = (run.offset.into(), run.bytes.into());
            }
            Self::Gap(missing) | Self::Hole(missing) => {
                raw.kind = if matches!(self, Self::Gap(_)) { GAP } else { HOLE };
                raw.channel = missing.channel.0.into();
                raw.session = missing.session.to_bytes();
                (raw.first, raw.count) = (missing.first.into(), missing.count.into());
            }
            Self::Position(channel, position) => {
                (raw.kind, raw.flags) = (POSITION, if position.has_ended { ENDED } else { 0 });
                raw.channel = channel.0.into();
                raw.part = position.next_part.into();
                raw.session = position.session.to_bytes();
                (raw.first, raw.count) = (position.next.into(), position.ts_recv_last.into());
            }
            Self::Symbol { session, instrument, piece, symbol_bytes, bytes } => {
                raw.kind = SYMBOL;
                raw.part = (*piece).into();
                raw.records_per_frame = (*symbol_bytes).into();
                raw.session = session.to_bytes();
                raw.first = u64::from(instrument.0).into();
                let [count, offset, rest] = pieces(bytes);
                (raw.count, raw.offset, raw.bytes) = (count.into(), offset.into(), rest.into());
            }
            Self::Checkpoint(checkpoint) => {
                raw.kind = CHECKPOINT;
                raw.flags = if checkpoint.is_closed { ENDED } else { 0 };
                if let Some((earliest, latest)) = checkpoint.time_range {
                    raw.flags |= HAS_TIMES;
                    (raw.first, raw.count) = (earliest.into(), latest.into());
                }
                (raw.offset, raw.bytes) = (checkpoint.data_bytes.into(), checkpoint.record_count.into());
                raw.data_crc = checkpoint.batch_crc.into();
            }
        }
        raw.checksum = raw.expected_checksum(number).into();
        zerocopy::transmute!(raw)
    }

    /// Reads the entry with that number.
    ///
    /// # Errors
    /// The bytes are not what [`Self::to_bytes`] makes of an entry with that number.
    pub fn read(bytes: &[u8; ENTRY_BYTES], number: u64) -> Result<Self, InvalidEntry> {
        let raw: RawEntry = zerocopy::transmute!(*bytes);
        if raw.checksum.get() != raw.expected_checksum(number) {
            return Err(InvalidEntry);
        }
        let channel = ChannelId(raw.channel.get());
        let session = || Session::from_bytes(raw.session).ok_or(InvalidEntry);
        Ok(match raw.kind {
            RUN => Self::Run(Run {
                channel,
                session: session()?,
                first: raw.first.get(),
                part: raw.part.get(),
                frame_count: raw.count.get(),
                records_per_frame: raw.records_per_frame.get(),
                offset: raw.offset.get(),
                bytes: raw.bytes.get(),
            }),
            GAP | HOLE => {
                let missing = Missing { channel, session: session()?, first: raw.first.get(), count: raw.count.get() };
                if raw.kind == GAP { Self::Gap(missing) } else { Self::Hole(missing) }
            }
            POSITION => Self::Position(
                channel,
                ChannelPosition {
                    session: session()?,
                    next: raw.first.get(),
                    next_part: raw.part.get(),
                    ts_recv_last: raw.count.get(),
                    has_ended: raw.flags & ENDED != 0,
                },
            ),
            SYMBOL => {
                let mut bytes = [0; SYMBOL_PIECE_BYTES];
                for (slot, word) in bytes.chunks_exact_mut(8).zip([raw.count, raw.offset, raw.bytes]) {
                    slot.copy_from_slice(word.as_bytes());
                }
                Self::Symbol {
                    session: session()?,
                    instrument: InstrumentId(u32::try_from(raw.first.get()).map_err(|_| InvalidEntry)?),
                    piece: raw.part.get(),
                    symbol_bytes: raw.records_per_frame.get(),
                    bytes,
                }
            }
            CHECKPOINT => Self::Checkpoint(Checkpoint {
                data_bytes: raw.offset.get(),
                record_count: raw.bytes.get(),
                time_range: (raw.flags & HAS_TIMES != 0).then(|| (raw.first.get(), raw.count.get())),
                batch_crc: raw.data_crc.get(),
                is_closed: raw.flags & ENDED != 0,
            }),
            _ => return Err(InvalidEntry),
        })
    }
}

impl RawEntry {
    fn new_zeroed_entry() -> Self {
        zerocopy::transmute!([0_u8; ENTRY_BYTES])
    }

    fn expected_checksum(&self, number: u64) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.as_bytes()[..CHECKSUM_AT]), &number.to_le_bytes())
    }
}

/// The entries of an instrument's symbol.
pub(crate) fn symbol_entries(
    session: Session,
    instrument: InstrumentId,
    symbol: &[u8],
) -> impl Iterator<Item = NameEntry> + '_ {
    let symbol_bytes = u16::try_from(symbol.len()).unwrap_or(u16::MAX);
    (0..).zip(symbol.chunks(SYMBOL_PIECE_BYTES)).map(move |(piece, part)| {
        let mut bytes = [0; SYMBOL_PIECE_BYTES];
        bytes[..part.len()].copy_from_slice(part);
        NameEntry::Symbol { session, instrument, piece, symbol_bytes, bytes }
    })
}

fn pieces(bytes: &[u8; SYMBOL_PIECE_BYTES]) -> [u64; 3] {
    let mut words = [0; 3];
    for (word, slot) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = slot.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;

    fn session() -> Session {
        Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(20_190_130).unwrap(), restart: 3 }
    }

    pub(crate) fn entries() -> Vec<NameEntry> {
        let (channel, session) = (ChannelId(7), session());
        let mut entries = vec![
            NameEntry::Run(Run {
                channel,
                session,
                first: 5,
                part: 2,
                frame_count: 9,
                records_per_frame: 2,
                offset: 560,
                bytes: 1_008,
            }),
            NameEntry::Gap(Missing { channel, session, first: 14, count: 2 }),
            NameEntry::Hole(Missing { channel, session, first: 16, count: 0 }),
            NameEntry::Position(
                channel,
                ChannelPosition { session, next: 16, next_part: 1, ts_recv_last: 99, has_ended: true },
            ),
            NameEntry::Checkpoint(Checkpoint {
                data_bytes: 1_568,
                record_count: 28,
                time_range: Some((3, 99)),
                batch_crc: 5,
                is_closed: true,
            }),
        ];
        entries.extend(symbol_entries(session, InstrumentId(8), b"A SYMBOL THAT DOES NOT FIT ONE ENTRY"));
        entries
    }

    #[test]
    fn entries_and_header_round_trip() {
        let content = Content { feed: Feed::IexDeep, schemas: SchemaSet::STATUS, date: session().date };
        assert_eq!(Content::read(&content.header()), Ok(content));
        for (number, entry) in (40..).zip(entries()) {
            assert_eq!(NameEntry::read(&entry.to_bytes(number), number), Ok(entry));
        }
    }

    /// Names files of version 1 must stay readable: a journal is kept for years.
    #[test]
    fn version_1_is_read_and_written_as_it_was() {
        let content = Content { feed: Feed::NasdaqItch, schemas: SchemaSet::MBO, date: session().date };
        let fixture = include_str!("../../../tests/data/formats/journal_names.hex");
        let (header, entry_lines) = fixture.trim_end().split_at(fixture.rfind("# entries").unwrap());
        check(header, &[content], |bytes| Content::read(bytes).unwrap(), |content| content.header().to_vec());
        let numbered: Vec<(u64, NameEntry)> = (0..).zip(entries()).collect();
        let mut numbers = 0..;
        check(
            entry_lines,
            &numbered,
            |bytes| {
                let number = numbers.next().unwrap();
                (number, NameEntry::read(bytes.try_into().unwrap(), number).unwrap())
            },
            |(number, entry)| entry.to_bytes(*number).to_vec(),
        );
    }

    #[test]
    fn a_changed_byte_and_a_moved_entry_are_refused() {
        for (number, entry) in (0..).zip(entries()) {
            let bytes = entry.to_bytes(number);
            assert_eq!(NameEntry::read(&bytes, number + 1), Err(InvalidEntry));
            for at in 0..ENTRY_BYTES {
                for bit in 0..8 {
                    let mut damaged = bytes;
                    damaged[at] ^= 1 << bit;
                    assert_eq!(NameEntry::read(&damaged, number), Err(InvalidEntry), "byte {at}");
                }
            }
        }
        assert_eq!(NameEntry::read(&[0; ENTRY_BYTES], 0), Err(InvalidEntry));
    }

    #[test]
    fn a_header_says_what_is_wrong_with_it() {
        let content = Content { feed: Feed::IexDeep, schemas: SchemaSet::STATUS, date: session().date };
        let header = content.header();
        for bytes in 0..ENTRY_BYTES {
            assert_eq!(Content::read(&header[..bytes]), Err(HeaderFault::Truncated));
        }
        for at in 0..ENTRY_BYTES {
            let mut damaged = header;
            damaged[at] ^= 4;
            let expected = if at < 8 { HeaderFault::Magic } else { HeaderFault::Damaged };
            assert_eq!(Content::read(&damaged), Err(expected), "byte {at}");
        }
        let mut raw: RawHeader = zerocopy::transmute!(header);
        raw.version = 9.into();
        raw.checksum = crc32c::crc32c(&raw.as_bytes()[..CHECKSUM_AT]).into();
        assert_eq!(Content::read(raw.as_bytes()), Err(HeaderFault::Version(9)));
    }
}
