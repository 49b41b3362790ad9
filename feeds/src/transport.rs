//! How venues pack messages into datagrams and files: one module each, both ends of each.
//!
//! A [`Transport`] checks the whole framing of a datagram once: header, number of messages, every length, and that
//! nothing is left over. What it returns is a [`Packet`], whose messages can then be walked without a further
//! check that could fail. It knows no state: whether the packet is the next one, a copy, or of a session long gone is
//! the [arbiter](crate::arbiter)'s business.
#![allow(unnameable_types, reason = "zerocopy's derives make such types where a macro of ours makes the struct")]

use core::fmt;

use crate::{
    drop_reason::DropReason,
    identity::{Feed, Sequence},
    time::UnixNs,
    venue::nasdaq::itch50,
};

pub mod binaryfile;
pub mod iextp;
pub mod moldudp64;

/// What one datagram says about its channel's numbering, whatever the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What it is for.
    pub kind: PacketKind,
    /// The venue's own name of the numbering.
    pub session: VenueSession,
    /// Number of the first message; for a heartbeat or an end of session, the next one expected. Never 0, except in
    /// an [`unsequenced`](Self::unsequenced) packet.
    pub first: Sequence,
    /// Messages in the packet; 0 unless it is of [`PacketKind::Messages`]. `first + count` doesn't wrap.
    pub count: u32,
    /// When the venue sent it, where the transport says so.
    pub send_time: Option<UnixNs>,
    /// The packet stands at the very start of a numbering (IEX-TP: sequence 1 at stream offset 0). With a newer send
    /// time, while more than 1 is expected, it means that the venue began again under the same session name.
    pub restart_marker: bool,
    /// Nobody numbered the packet: MoldUDP64 with a blank session and sequence 0, as files of messages that were
    /// wrapped into packets later have it. Its messages can only be taken in the order they come.
    pub unsequenced: bool,
    /// The messages, each behind its length. Framing is checked: [`Transport::next_message`] yields exactly `count`
    /// of them.
    pub messages: &'a [u8],
}

impl Packet<'_> {
    /// First sequence after the packet.
    #[must_use]
    pub fn next(&self) -> Sequence {
        self.first.plus(u64::from(self.count))
    }
}

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketKind {
    /// It brings messages.
    Messages,
    /// It only says that the line lives, and which sequence comes next.
    Heartbeat,
    /// No further message will come in this session.
    EndOfSession,
}

/// The venue's own name of a numbering; opaque, only good for comparing. MoldUDP64: the ten bytes of the session,
/// then zeros. IEX-TP: session and channel, little-endian as on the wire, then zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VenueSession(pub [u8; 16]);

/// Reading end of a datagram protocol. Static dispatch: a channel knows its transport when it is built.
pub trait Transport {
    /// Checks the framing of a whole datagram.
    ///
    /// # Errors
    /// The first thing that doesn't fit. No part of a packet with a broken frame is used: where its messages begin
    /// and which numbers they have can't be trusted then.
    fn parse(datagram: &[u8]) -> Result<Packet<'_>, DropReason>;

    /// Takes the next message, without its length, off the front of a checked block; `None` at the end.
    fn next_message<'a>(block: &mut &'a [u8]) -> Option<&'a [u8]>;
}

/// Writing end: a message behind its length, in the order of bytes that `length` makes. `false`, and nothing added, when
/// the packet would grow beyond `packet_bytes_max`.
fn push_message(packet: &mut Vec<u8>, packet_bytes_max: usize, length: fn(u16) -> [u8; 2], message: &[u8]) -> bool {
    let Ok(message_bytes) = u16::try_from(message.len()) else { return false };
    if packet.len() + 2 + message.len() > packet_bytes_max {
        return false;
    }
    packet.extend_from_slice(&length(message_bytes));
    packet.extend_from_slice(message);
    true
}

/// Some of the messages of a packet.
struct MessageSlice<'a> {
    /// They and their lengths.
    messages: &'a [u8],
    /// How many there are, at least 1.
    count: usize,
    /// Bytes of the messages before them.
    skipped_bytes: usize,
}

/// The messages `[from, until)` of a packet, if it holds them all and they are any.
fn slice_messages<'a, T: Transport>(
    packet: &Packet<'a>,
    from: Sequence,
    until: Sequence,
) -> Result<MessageSlice<'a>, DropReason> {
    if from < packet.first || until > packet.next() || from >= until {
        return Err(DropReason::CountMismatch);
    }
    let behind = |sequence: Sequence| {
        let mut rest = packet.messages;
        for _ in packet.first.0..sequence.0 {
            T::next_message(&mut rest);
        }
        rest
    };
    let (rest, after) = (behind(from), behind(until));
    let messages = rest.get(..rest.len() - after.len()).unwrap_or_default();
    let count = usize::try_from(until.0 - from.0).map_err(|_| DropReason::CountMismatch)?;
    Ok(MessageSlice { messages, count, skipped_bytes: packet.messages.len() - rest.len() })
}

/// What can be told of a feed from one of its datagrams alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DetectedProtocol {
    /// ITCH 5.0 over MoldUDP64. Nasdaq, BX and PSX speak the same protocol, so which of them it is has to come from
    /// elsewhere (configuration, addresses).
    Itch50,
    /// IEX TOPS.
    IexTops,
    /// IEX DEEP.
    IexDeep,
}

impl DetectedProtocol {
    /// The feeds it may be, the likeliest first.
    #[must_use]
    pub fn feeds(self) -> &'static [Feed] {
        match self {
            Self::Itch50 => &[Feed::NasdaqItch, Feed::BxItch, Feed::PsxItch],
            Self::IexTops => &[Feed::IexTops],
            Self::IexDeep => &[Feed::IexDeep],
        }
    }
}

impl fmt::Display for DetectedProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Itch50 => "ITCH 5.0 over MoldUDP64",
            Self::IexTops => "IEX TOPS over IEX-TP",
            Self::IexDeep => "IEX DEEP over IEX-TP",
        })
    }
}

/// Which feed a datagram belongs to. `None` for what is no known feed, and for what doesn't tell (MoldUDP64 heartbeats
/// look the same whatever the messages are): ask again with the next datagram.
#[must_use]
pub fn detect_protocol(datagram: &[u8]) -> Option<DetectedProtocol> {
    if iextp::Tops::parse(datagram).is_ok() {
        return Some(DetectedProtocol::IexTops);
    }
    if iextp::Deep::parse(datagram).is_ok() {
        return Some(DetectedProtocol::IexDeep);
    }
    let packet = moldudp64::MoldUdp64::parse(datagram).ok()?;
    let mut block = packet.messages;
    let mut messages = core::iter::from_fn(|| moldudp64::MoldUdp64::next_message(&mut block)).peekable();
    messages.peek()?;
    messages.all(itch50::fits).then_some(DetectedProtocol::Itch50)
}

#[cfg(test)]
mod tests;
