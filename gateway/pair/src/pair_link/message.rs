//! The messages between two gateways, as bytes. No sockets.
//!
//! ```text
//!  hello    | MDGWPAIR | version u16 | node u8 | zero u8 | incarnation u64 | nonce 16 |  once, in the clear, first on a connection
//!  message  | length u32 | number u64 | tag 32 | kind u8 | fields … |  tag: over number, carrier and body, by a key from both hellos
//!  datagram |             number u64 | tag 32 | kind u8 | fields … |  promises and deaths, three copies of each
//! ```
//! Little-endian. All input is treated as hostile: each length is checked, each list has a bound, and a message with
//! trailing bytes is refused.

use mdgw_election::{auth::Nonce, identity::Incarnation};
use mdgw_feeds::channel::CopyFault;
use mdgw_wire::{
    identity::{ChannelId, Epoch, GroupId, Sequence, Session},
    published::position::StreamPosition,
};

use crate::standby::{HistoryExtent, windows::WindowHash};

/// A message between two gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkMessage {
    /// The position of each channel, every renewal period.
    Positions(Vec<ChannelPositions>),
    /// A message of the election, as the election encodes it.
    Election {
        /// The message arrives both by stream and by datagram; only its first copy is used.
        serial: u64,
        /// As the election encodes it.
        bytes: Vec<u8>,
    },
    /// A death notice, as the election encodes it.
    Death {
        /// The message arrives both by stream and by datagram; only its first copy is used.
        serial: u64,
        /// As the election encodes it.
        bytes: Vec<u8>,
    },
    /// Requests input that neither line has delivered.
    GapRequest(InputRange),
    /// A datagram of the venue that covers some of the request.
    GapPacket {
        /// Channel that the datagram is for.
        channel: ChannelId,
        /// UDP payload, as the venue sent it.
        bytes: Vec<u8>,
    },
    /// End of the answer: everything available has been sent.
    GapEnd(InputRange),
    /// Hash of a window of a channel's messages.
    WindowHash(WindowHash),
    /// The messages of a window whose hashes differ, each with its hash.
    WindowContent(WindowContent),
    /// One message that differs, as the sender has it.
    Record {
        /// Channel of the message.
        channel: ChannelId,
        /// Session of the message.
        session: Session,
        /// Sequence of the message.
        sequence: Sequence,
        /// Records of the message; empty: it produced none.
        records: Vec<u8>,
    },
    /// Requests the state of that channel. First message on a separate connection.
    CopyRequest {
        /// Channel whose state is requested.
        channel: ChannelId,
    },
    /// A part of the state, as the channel wrote it.
    CopySlice {
        /// Channel whose state is copied.
        channel: ChannelId,
        /// Slices before this one.
        number: u32,
        /// The bytes of the slice: see [`mdgw_feeds::channel::copy`].
        bytes: Vec<u8>,
    },
    /// End of the copy.
    CopyEnd(CopyEnd),
    /// Requests the entries of a channel's publication log. First message on a separate connection.
    LogRequest(LogRequest),
    /// Entries of the requested log, in order.
    LogEntries {
        /// Channel whose log was requested.
        channel: ChannelId,
        /// Session of the entries.
        session: Session,
        /// At least one, none of them longer than a packet.
        entries: Vec<LoggedEntry>,
    },
    /// End of the answer: everything that the log has at this moment was sent.
    LogEnd {
        /// Channel whose log was requested.
        channel: ChannelId,
    },
    /// Asks the leader of that group to hand over to the sender.
    LeadRequest {
        /// Group to be handed over.
        group: GroupId,
    },
}

/// A request for entries of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRequest {
    /// Channel whose log is requested.
    pub channel: ChannelId,
    /// End of the requester's log, if it has one.
    pub from: Option<StreamPosition>,
    /// If the sender's log has more messages since `from`, only so many of the last ones of its last session are sent.
    pub messages_max: u64,
}

/// An entry of a publication log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEntry {
    /// First sequence covered.
    pub first: Sequence,
    /// First sequence after the covered range.
    pub next: Sequence,
    /// Flags of the entry.
    pub flags: u16,
    /// Frames in the payload.
    pub frame_count: u16,
    /// The frames, without any space between them.
    pub payload: Vec<u8>,
}

/// How a copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyEnd {
    /// Channel whose state was copied.
    pub channel: ChannelId,
    /// Why there is no copy; `None`: the copy is complete.
    pub fault: Option<CopyFault>,
    /// Slices that were sent.
    pub slices: u32,
    /// CRC-32C of all their bytes.
    pub checksum: u32,
}

/// The position of a channel of the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelPositions {
    /// Channel of the sender that the positions belong to.
    pub channel: ChannelId,
    /// End of the sender's log.
    pub logged_through: Option<StreamPosition>,
    /// How far the sender has published, if it leads.
    pub published: Option<StreamPosition>,
    /// End of the furthest packet of the leader's output that the sender received: the acknowledgement.
    pub last_received: Option<StreamPosition>,
    /// Whether the sender receives its own probes on the group. If it does, and does not receive the leader's output,
    /// the leader's output is at fault.
    pub receives_probe: bool,
    /// The epoch of `published`, if there is one.
    pub epoch: Epoch,
    /// Number of its [`ChannelState`](mdgw_wire::channel_state::ChannelState).
    pub state: u8,
    /// What the sender stores of the channel's input in the present session.
    pub available_input: Option<AvailableInput>,
}

/// What a gateway stores of a channel's input for its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AvailableInput {
    /// First stored sequence.
    pub from: Sequence,
    /// First sequence that is missing after the first stored one.
    pub until: Sequence,
    /// First sequence after the last stored datagram.
    pub next: Sequence,
}

impl From<HistoryExtent> for AvailableInput {
    fn from(extent: HistoryExtent) -> Self {
        Self { from: extent.from, until: extent.until, next: extent.next }
    }
}

/// Input sequences `[first, next)` of a channel, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InputRange {
    /// Channel of the range.
    pub channel: ChannelId,
    /// Session of the range.
    pub session: Session,
    /// First sequence of the range.
    pub first: Sequence,
    /// First sequence after the range.
    pub next: Sequence,
}

/// A window's messages with their hashes, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowContent {
    /// Channel of the window.
    pub channel: ChannelId,
    /// Session of the window.
    pub session: Session,
    /// First sequence of the window.
    pub first: Sequence,
    /// Sequence and hash of each message.
    pub messages: Vec<(Sequence, u64)>,
}

/// What a gateway says of itself when a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkIdentity {
    /// The gateway's node number.
    pub node: u8,
    /// This start of the gateway; 0 before the start is recorded.
    pub incarnation: Incarnation,
}

/// The first bytes on a connection. The keys of the connection are derived from both ends' hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub identity: LinkIdentity,
    /// Random, drawn for this connection.
    pub nonce: Nonce,
}

/// Why bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end before the message does.
    #[error("it ends before its last field")]
    Truncated,
    /// Bytes follow the message.
    #[error("it has trailing bytes")]
    TooLong,
    /// An unknown kind or magic.
    #[error("it has an unknown kind")]
    Unknown,
    /// The other end speaks another version of the link.
    #[error("the other end speaks version {theirs} of the pair link, and this gateway speaks version {VERSION}")]
    Version {
        /// The other end's version.
        theirs: u16,
    },
    /// A field with an impossible value.
    #[error("it has an invalid field")]
    Field,
}

/// Bytes of a [`Hello`].
pub(crate) const HELLO_BYTES: usize = 36;
/// Bytes of a [`Hello`] that every version begins with: magic and version.
pub(crate) const HELLO_VERSION_BYTES: usize = 10;
/// Longest body of a message, bytes.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 10;
/// Maximum number of channels in one message.
const CHANNELS_MAX: usize = 256;
/// Maximum number of messages in a [`WindowContent`].
pub(crate) const WINDOW_MESSAGES_MAX: usize = 1_024;
/// Bytes of a [`LoggedEntry`] before its payload.
const ENTRY_HEADER_BYTES: usize = 24;
/// Maximum length of an opaque part, bytes: the election's messages, and slices of a state.
pub(crate) const OPAQUE_BYTES_MAX: usize = 48 << 10;
const _: () = assert!(mdgw_feeds::channel::copy::SLICE_BYTES_MAX <= OPAQUE_BYTES_MAX);

impl Hello {
    /// The hello as bytes.
    #[must_use]
    pub(crate) fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = self.identity.node;
        bytes[12..20].copy_from_slice(&self.identity.incarnation.0.to_le_bytes());
        bytes[20..].copy_from_slice(&self.nonce.0);
        bytes
    }

    /// Checks the begin of a hello. The hello of another version may be shorter than ours, so nobody waits for its end.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(crate) fn check_version(begin: &[u8; HELLO_VERSION_BYTES]) -> Result<(), Malformed> {
        let mut rest = Fields(begin);
        if rest.array::<8>()? != *MAGIC {
            return Err(Malformed::Unknown);
        }
        let theirs = rest.u16()?;
        if theirs == VERSION { Ok(()) } else { Err(Malformed::Version { theirs }) }
    }

    /// Parses a hello.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(crate) fn parse(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Malformed> {
        let mut rest = Fields(bytes);
        Self::check_version(&rest.array()?)?;
        let node = rest.u8()?;
        if rest.u8()? != 0 {
            return Err(Malformed::Field);
        }
        let identity = LinkIdentity { node, incarnation: Incarnation(rest.u64()?) };
        Ok(Self { identity, nonce: Nonce(rest.array()?) })
    }
}

const MAGIC: &[u8; 8] = b"MDGWPAIR";
/// 5: both ends' node numbers and incarnations go into the keys of the connection. 6: the end of a leadership is reported
/// without positions.
pub(crate) const VERSION: u16 = 6;

impl LinkMessage {
    /// The body as bytes, with its kind first. Elements beyond a bound are left out: senders keep to the bounds.
    #[must_use]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![self.kind()];
        match self {
            Self::Positions(channels) => {
                let channels = &channels[..channels.len().min(CHANNELS_MAX)];
                out.extend(u16::try_from(channels.len()).unwrap_or(u16::MAX).to_le_bytes());
                channels.iter().for_each(|channel| channel.write(&mut out));
            }
            Self::Election { serial, bytes } | Self::Death { serial, bytes } => {
                out.extend(serial.to_le_bytes());
                out.extend_from_slice(opaque(bytes));
            }
            Self::GapRequest(range) | Self::GapEnd(range) => range.write(&mut out),
            Self::GapPacket { channel, bytes } => {
                out.extend(channel.0.to_le_bytes());
                out.extend_from_slice(opaque(bytes));
            }
            Self::WindowHash(window) => {
                write_message_id(&mut out, window.channel, window.session, window.first);
                out.extend(window.messages.to_le_bytes());
                out.extend(window.hash);
            }
            Self::WindowContent(window) => {
                write_message_id(&mut out, window.channel, window.session, window.first);
                for (sequence, hash) in window.messages.iter().take(WINDOW_MESSAGES_MAX) {
                    out.extend(sequence.0.to_le_bytes());
                    out.extend(hash.to_le_bytes());
                }
            }
            Self::Record { channel, session, sequence, records } => {
                write_message_id(&mut out, *channel, *session, *sequence);
                out.extend_from_slice(opaque(records));
            }
            Self::CopyRequest { channel } => out.extend(channel.0.to_le_bytes()),
            Self::CopySlice { channel, number, bytes } => {
                out.extend(channel.0.to_le_bytes());
                out.extend(number.to_le_bytes());
                out.extend_from_slice(opaque(bytes));
            }
            Self::CopyEnd(CopyEnd { channel, fault, slices, checksum }) => {
                out.extend(channel.0.to_le_bytes());
                out.push(fault.map_or(0, |fault| 1 + fault as u8));
                out.extend(slices.to_le_bytes());
                out.extend(checksum.to_le_bytes());
            }
            Self::LeadRequest { group } => out.extend(group.0.to_le_bytes()),
            Self::LogRequest(LogRequest { channel, from, messages_max }) => {
                out.extend(channel.0.to_le_bytes());
                out.extend(messages_max.to_le_bytes());
                for word in from.map(StreamPosition::to_u64s).into_iter().flatten() {
                    out.extend(word.to_le_bytes());
                }
            }
            Self::LogEntries { channel, session, entries } => {
                out.extend(channel.0.to_le_bytes());
                out.extend(session.to_bytes());
                entries.iter().for_each(|entry| entry.write(&mut out));
            }
            Self::LogEnd { channel } => out.extend(channel.0.to_le_bytes()),
        }
        out
    }

    /// Parses a body.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut rest = Fields(body);
        let message = match rest.u8()? {
            0 => {
                let count = usize::from(rest.u16()?);
                if count > CHANNELS_MAX {
                    return Err(Malformed::Field);
                }
                Self::Positions((0..count).map(|_| ChannelPositions::read(&mut rest)).collect::<Result<_, _>>()?)
            }
            1 => Self::Election { serial: rest.u64()?, bytes: rest.opaque()? },
            2 => Self::Death { serial: rest.u64()?, bytes: rest.opaque()? },
            3 => Self::GapRequest(InputRange::read(&mut rest)?),
            4 => Self::GapPacket { channel: ChannelId(rest.u16()?), bytes: rest.opaque()? },
            5 => Self::GapEnd(InputRange::read(&mut rest)?),
            6 => {
                let (channel, session, first) = rest.name()?;
                Self::WindowHash(WindowHash { channel, session, first, messages: rest.u32()?, hash: rest.array()? })
            }
            7 => {
                let (channel, session, first) = rest.name()?;
                let count = rest.0.len() / 16;
                if count > WINDOW_MESSAGES_MAX {
                    return Err(Malformed::Field);
                }
                let messages: Vec<_> =
                    (0..count).map(|_| Ok((Sequence(rest.u64()?), rest.u64()?))).collect::<Result<_, Malformed>>()?;
                if !messages.is_sorted_by(|a, b| a.0 < b.0) {
                    return Err(Malformed::Field);
                }
                Self::WindowContent(WindowContent { channel, session, first, messages })
            }
            8 => {
                let (channel, session, sequence) = rest.name()?;
                Self::Record { channel, session, sequence, records: rest.opaque()? }
            }
            9 => Self::CopyRequest { channel: ChannelId(rest.u16()?) },
            10 => Self::CopySlice { channel: ChannelId(rest.u16()?), number: rest.u32()?, bytes: rest.opaque()? },
            11 => {
                let channel = ChannelId(rest.u16()?);
                let fault = match usize::from(rest.u8()?).checked_sub(1) {
                    None => None,
                    Some(number) => Some(*CopyFault::ALL.get(number).ok_or(Malformed::Field)?),
                };
                Self::CopyEnd(CopyEnd { channel, fault, slices: rest.u32()?, checksum: rest.u32()? })
            }
            12 => Self::LeadRequest { group: GroupId(rest.u16()?) },
            13 => Self::LogRequest(LogRequest::read(&mut rest)?),
            14 => {
                let channel = ChannelId(rest.u16()?);
                let session = Session::from_bytes(rest.array()?).ok_or(Malformed::Field)?;
                let mut entries = vec![LoggedEntry::read(&mut rest)?];
                while !rest.0.is_empty() {
                    entries.push(LoggedEntry::read(&mut rest)?);
                }
                Self::LogEntries { channel, session, entries }
            }
            15 => Self::LogEnd { channel: ChannelId(rest.u16()?) },
            _ => return Err(Malformed::Unknown),
        };
        if rest.0.is_empty() { Ok(message) } else { Err(Malformed::TooLong) }
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Positions(_) => 0,
            Self::Election { .. } => 1,
            Self::Death { .. } => 2,
            Self::GapRequest(_) => 3,
            Self::GapPacket { .. } => 4,
            Self::GapEnd(_) => 5,
            Self::WindowHash(_) => 6,
            Self::WindowContent(_) => 7,
            Self::Record { .. } => 8,
            Self::CopyRequest { .. } => 9,
            Self::CopySlice { .. } => 10,
            Self::CopyEnd(_) => 11,
            Self::LeadRequest { .. } => 12,
            Self::LogRequest(_) => 13,
            Self::LogEntries { .. } => 14,
            Self::LogEnd { .. } => 15,
        }
    }
}

impl ChannelPositions {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.channel.0.to_le_bytes());
        let positions = [self.logged_through, self.published, self.last_received];
        let present = positions.iter().rev().fold(0_u8, |bits, position| bits << 1 | u8::from(position.is_some()));
        let present = present | u8::from(self.receives_probe) << 3 | u8::from(self.available_input.is_some()) << 4;
        out.extend([present, self.state]);
        out.extend(self.epoch.0.to_le_bytes());
        for word in positions.into_iter().flatten().flat_map(StreamPosition::to_u64s) {
            out.extend(word.to_le_bytes());
        }
        for sequence in self
            .available_input
            .iter()
            .flat_map(|available_input| [available_input.from, available_input.until, available_input.next])
        {
            out.extend(sequence.0.to_le_bytes());
        }
    }

    fn read(rest: &mut Fields<'_>) -> Result<Self, Malformed> {
        let channel = ChannelId(rest.u16()?);
        let (present, state, epoch) = (rest.u8()?, rest.u8()?, Epoch(rest.u64()?));
        if present > 0b1_1111 {
            return Err(Malformed::Field);
        }
        let mut position = |bit: u8| -> Result<Option<StreamPosition>, Malformed> {
            if present >> bit & 1 == 0 {
                return Ok(None);
            }
            let words = [rest.u64()?, rest.u64()?, rest.u64()?];
            StreamPosition::from_u64s(words).map(Some).ok_or(Malformed::Field)
        };
        let (logged_through, published, last_received) = (position(0)?, position(1)?, position(2)?);
        let receives_probe = present >> 3 & 1 == 1;
        let available_input = if present >> 4 & 1 == 1 {
            let available_input =
                AvailableInput { from: rest.sequence()?, until: rest.sequence()?, next: rest.sequence()? };
            if available_input.from > available_input.until || available_input.until > available_input.next {
                return Err(Malformed::Field);
            }
            Some(available_input)
        } else {
            None
        };
        Ok(Self { channel, logged_through, published, last_received, receives_probe, epoch, state, available_input })
    }
}

impl LogRequest {
    fn read(rest: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (channel, messages_max) = (ChannelId(rest.u16()?), rest.u64()?);
        if rest.0.is_empty() {
            return Ok(Self { channel, from: None, messages_max });
        }
        let from = StreamPosition::from_u64s([rest.u64()?, rest.u64()?, rest.u64()?]).ok_or(Malformed::Field)?;
        Ok(Self { channel, from: Some(from), messages_max })
    }
}

impl LoggedEntry {
    /// Bytes of the entry in a message.
    pub(crate) fn encoded_bytes(&self) -> usize {
        ENTRY_HEADER_BYTES + self.payload.len()
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.first.0.to_le_bytes());
        out.extend(self.next.0.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        out.extend(self.frame_count.to_le_bytes());
        out.extend(u32::try_from(self.payload.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&self.payload);
    }

    fn read(rest: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (first, next) = (rest.sequence()?, rest.sequence()?);
        let (flags, frame_count, payload_bytes) = (rest.u16()?, rest.u16()?, rest.u32()?);
        let length = usize::try_from(payload_bytes).map_err(|_| Malformed::Field)?;
        let (payload, behind) = rest.0.split_at_checked(length).ok_or(Malformed::Truncated)?;
        rest.0 = behind;
        if first > next {
            return Err(Malformed::Field);
        }
        Ok(Self { first, next, flags, frame_count, payload: payload.to_vec() })
    }
}

impl InputRange {
    fn write(&self, out: &mut Vec<u8>) {
        write_message_id(out, self.channel, self.session, self.first);
        out.extend(self.next.0.to_le_bytes());
    }

    fn read(rest: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (channel, session, first) = rest.name()?;
        let next = Sequence(rest.u64()?);
        if first >= next { Err(Malformed::Field) } else { Ok(Self { channel, session, first, next }) }
    }
}

fn write_message_id(out: &mut Vec<u8>, channel: ChannelId, session: Session, sequence: Sequence) {
    out.extend(channel.0.to_le_bytes());
    out.extend(session.to_bytes());
    out.extend(sequence.0.to_le_bytes());
}

fn opaque(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(OPAQUE_BYTES_MAX)]
}

/// Reads fields from the front of the bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (front, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*front)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> Result<(ChannelId, Session, Sequence), Malformed> {
        let channel = ChannelId(self.u16()?);
        let session = Session::from_bytes(self.array()?).ok_or(Malformed::Field)?;
        Ok((channel, session, Sequence(self.u64()?)))
    }

    fn sequence(&mut self) -> Result<Sequence, Malformed> {
        self.u64().map(Sequence)
    }

    /// All remaining bytes.
    fn opaque(&mut self) -> Result<Vec<u8>, Malformed> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.len() > OPAQUE_BYTES_MAX { Err(Malformed::Field) } else { Ok(bytes.to_vec()) }
    }
}

#[cfg(test)]
mod tests {
    use mdgw_feeds::channel::copy::SLICE_BYTES_MAX;
    use mdgw_wire::{identity::Feed, time::TradingDate};
    use proptest::prelude::*;

    use super::*;
    use crate::formats::check;

    fn session() -> Session {
        Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart: 4 }
    }

    fn samples() -> Vec<LinkMessage> {
        let at = |sequence, part| Some(StreamPosition { session: session(), sequence: Sequence(sequence), part });
        let positions = [
            ChannelPositions { channel: ChannelId(7), ..ChannelPositions::default() },
            ChannelPositions {
                channel: ChannelId(8),
                logged_through: at(9, 0),
                published: None,
                last_received: at(8, 2),
                receives_probe: true,
                epoch: Epoch(77),
                state: 1,
                available_input: Some(AvailableInput { from: Sequence(1), until: Sequence(8), next: Sequence(9) }),
            },
            ChannelPositions {
                channel: ChannelId(9),
                logged_through: at(1, 0),
                published: at(1, 0),
                ..Default::default()
            },
        ];
        let (channel, session, first) = (ChannelId(3), session(), Sequence(5));
        let range = InputRange { channel, session, first, next: Sequence(6) };
        vec![
            LinkMessage::Positions(positions.to_vec()),
            LinkMessage::Positions(Vec::new()),
            LinkMessage::Election { serial: 5, bytes: b"{}".to_vec() },
            LinkMessage::Death { serial: 6, bytes: vec![0; OPAQUE_BYTES_MAX] },
            LinkMessage::GapRequest(range),
            LinkMessage::GapPacket { channel, bytes: vec![1; 1_400] },
            LinkMessage::GapEnd(range),
            LinkMessage::WindowHash(WindowHash { channel, session, first, messages: 3, hash: [7; 16] }),
            LinkMessage::WindowContent(WindowContent {
                channel,
                session,
                first,
                messages: vec![(Sequence(5), 1), (Sequence(7), 2)],
            }),
            LinkMessage::Record { channel, session, sequence: first, records: vec![9; 80] },
            LinkMessage::CopyRequest { channel },
            LinkMessage::CopySlice { channel, number: 7, bytes: vec![3; SLICE_BYTES_MAX] },
            LinkMessage::CopyEnd(CopyEnd { channel, fault: None, slices: 8, checksum: 9 }),
            LinkMessage::CopyEnd(CopyEnd { channel, fault: Some(CopyFault::Incomplete), slices: 0, checksum: 0 }),
            LinkMessage::LeadRequest { group: GroupId(259) },
        ]
    }

    fn all_samples() -> Vec<LinkMessage> {
        let mut messages = samples();
        messages.extend(log_samples());
        messages
    }

    /// Messages that 0.1.0 did not have.
    fn log_samples() -> [LinkMessage; 4] {
        let channel = ChannelId(13);
        let from = StreamPosition { session: session(), sequence: Sequence(7), part: 2 };
        let entry = |payload: Vec<u8>| LoggedEntry {
            first: Sequence(5),
            next: Sequence(9),
            flags: 0x104,
            frame_count: 2,
            payload,
        };
        [
            LinkMessage::LogRequest(LogRequest { channel, from: None, messages_max: 5 }),
            LinkMessage::LogRequest(LogRequest { channel, from: Some(from), messages_max: 1 << 40 }),
            LinkMessage::LogEntries { channel, session: session(), entries: vec![entry(vec![]), entry(vec![7; 40])] },
            LinkMessage::LogEnd { channel },
        ]
    }

    #[test]
    fn messages_round_trip_within_the_body_limit() {
        for message in all_samples() {
            let bytes = message.to_bytes();
            assert!(bytes.len() <= BODY_BYTES_MAX);
            assert_eq!(LinkMessage::parse(&bytes), Ok(message));
        }
        let longest = (0..2_000).map(|sequence| (Sequence(sequence), 0)).collect();
        let content =
            WindowContent { channel: ChannelId(1), session: session(), first: Sequence(0), messages: longest };
        let LinkMessage::WindowContent(cut) =
            LinkMessage::parse(&LinkMessage::WindowContent(content).to_bytes()).unwrap()
        else {
            panic!("another message")
        };
        assert_eq!(cut.messages.len(), WINDOW_MESSAGES_MAX);
    }

    #[test]
    fn truncated_or_extended_messages_never_parse_as_the_original() {
        for message in all_samples() {
            let bytes = message.to_bytes();
            for length in 0..bytes.len().min(300) {
                assert_ne!(LinkMessage::parse(&bytes[..length]), Ok(message.clone()));
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_ne!(LinkMessage::parse(&longer), Ok(message));
        }
    }

    #[test]
    fn invalid_ranges_lists_and_kinds_are_refused() {
        let range = InputRange { channel: ChannelId(3), session: session(), first: Sequence(5), next: Sequence(6) };
        let mut bytes = LinkMessage::GapRequest(range).to_bytes();
        bytes[27] = 5;
        assert_eq!(LinkMessage::parse(&bytes), Err(Malformed::Field), "an empty range");
        bytes[3] = 99;
        assert_eq!(LinkMessage::parse(&bytes), Err(Malformed::Field), "no session");
        assert_eq!(LinkMessage::parse(&[200]), Err(Malformed::Unknown));
        assert_eq!(LinkMessage::parse(&[]), Err(Malformed::Truncated));
        assert_eq!(LinkMessage::parse(&[0, 255, 255]), Err(Malformed::Field), "more channels than there are");
        let bytes = [&[1][..], &vec![0; 8 + OPAQUE_BYTES_MAX + 1]].concat();
        assert_eq!(LinkMessage::parse(&bytes), Err(Malformed::Field));
        let backwards =
            LoggedEntry { first: Sequence(6), next: Sequence(5), flags: 0, frame_count: 0, payload: Vec::new() };
        let entries =
            |entries| LinkMessage::LogEntries { channel: ChannelId(3), session: session(), entries }.to_bytes();
        assert_eq!(LinkMessage::parse(&entries(vec![backwards])), Err(Malformed::Field));
        assert_eq!(LinkMessage::parse(&entries(Vec::new())), Err(Malformed::Truncated));
        let descending = WindowContent {
            channel: ChannelId(1),
            session: session(),
            first: Sequence(1),
            messages: vec![(Sequence(2), 0), (Sequence(2), 0)],
        };
        let bytes = LinkMessage::WindowContent(descending).to_bytes();
        assert_eq!(LinkMessage::parse(&bytes), Err(Malformed::Field));
    }

    #[test]
    fn a_hello_of_another_version_is_refused() {
        let hello = hello();
        assert_eq!(Hello::parse(&hello.to_bytes()), Ok(hello));
        let other_version = Malformed::Version { theirs: VERSION ^ 1 };
        for (index, error) in [(0, Malformed::Unknown), (8, other_version), (11, Malformed::Field)] {
            let mut bytes = hello.to_bytes();
            bytes[index] ^= 1;
            assert_eq!(Hello::parse(&bytes), Err(error));
        }
    }

    #[test]
    fn messages_written_by_0_1_0_are_read() {
        let mut messages = samples();
        for message in &mut messages {
            if let LinkMessage::Death { bytes, .. }
            | LinkMessage::GapPacket { bytes, .. }
            | LinkMessage::CopySlice { bytes, .. } = message
            {
                bytes.truncate(8);
            }
        }
        let at = |sequence, part| Some(StreamPosition { session: session(), sequence: Sequence(sequence), part });
        let (channel, epoch) = (ChannelId(10), Epoch::new(11, 12));
        messages.push(LinkMessage::Positions(vec![ChannelPositions {
            channel,
            logged_through: at(13, 0),
            published: at(14, 15),
            last_received: at(16, 17),
            receives_probe: false,
            epoch,
            state: 2,
            available_input: None,
        }]));
        let ended =
            |fault| LinkMessage::CopyEnd(CopyEnd { channel, fault: Some(fault), slices: 18, checksum: 0xfffe_fdfc });
        messages.extend(CopyFault::ALL.map(ended));
        check(
            include_str!("../../../../tests/data/formats/pair_link_messages.hex"),
            &messages,
            |bytes| LinkMessage::parse(bytes).unwrap(),
            LinkMessage::to_bytes,
        );
        check(
            include_str!("../../../../tests/data/formats/pair_link_hello_6.hex"),
            &[hello()],
            |bytes| Hello::parse(bytes.try_into().unwrap()).unwrap(),
            |hello| hello.to_bytes().to_vec(),
        );
        let before = include_str!("../../../../tests/data/formats/pair_link_hello_5.hex").lines().last().unwrap();
        let begin = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|at| u8::from_str_radix(&before[2 * at..][..2], 16).unwrap());
        assert_eq!(Hello::check_version(&begin), Err(Malformed::Version { theirs: 5 }));
    }

    #[test]
    fn messages_about_logs_are_as_they_were_added() {
        check(
            include_str!("../../../../tests/data/formats/pair_link_log.hex"),
            &log_samples(),
            |bytes| LinkMessage::parse(bytes).unwrap(),
            LinkMessage::to_bytes,
        );
    }

    fn hello() -> Hello {
        Hello { identity: LinkIdentity { node: 4, incarnation: Incarnation(6) }, nonce: Nonce([5; 16]) }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_round_trip(
            kind in 0_u8..17,
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let body = [&[kind][..], &bytes].concat();
            if let Ok(message) = LinkMessage::parse(&body) {
                prop_assert_eq!(message.to_bytes(), body);
            }
        }

        #[test]
        fn damaged_messages_never_panic(which in any::<prop::sample::Index>(), index in 0_usize..200, byte in any::<u8>()) {
            let mut bytes = which.get(&all_samples()).to_bytes();
            let index = index % bytes.len();
            bytes[index] = byte;
            let _any = LinkMessage::parse(&bytes);
        }
    }
}
