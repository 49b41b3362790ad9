//! Framing of messages in datagrams and files: one module per protocol, with reader and writer.
//!
//! A [`Transport`] checks the whole framing of a datagram once: header, number of messages, every length, and that no
//! bytes are left over. It returns a [`Packet`] whose messages can be iterated without further checks. It has no
//! state: whether a packet is the next one, a duplicate or of an old session is decided by the
//! [arbiter](mdgw_wire::arbiter).
#![allow(unnameable_types, reason = "zerocopy's derives make such types where a macro of ours makes the struct")]

use core::fmt;

use crate::venue::nasdaq::itch50;
use mdgw_wire::{
    drop_reason::DropReason,
    identity::{Feed, Sequence},
    time::UnixNs,
};

pub mod binaryfile;
pub mod iextp;
pub mod moldudp64;

/// One datagram's header, independent of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Messages, heartbeat or end of session.
    pub kind: PacketKind,
    /// The venue's own session name.
    pub session: VenueSession,
    /// Sequence of the first message; for a heartbeat or an end of session, the next expected sequence. Never 0,
    /// except in an [`unsequenced`](Self::unsequenced) packet.
    pub first: Sequence,
    /// Messages in the packet; 0 unless it is of [`PacketKind::Messages`]. `first + count` does not wrap.
    pub count: u32,
    /// The venue's send time, where the transport has one.
    pub send_time: Option<UnixNs>,
    /// The packet is at the very start of a session (IEX-TP: sequence 1 at stream offset 0). With a newer send time,
    /// while a sequence above 1 is expected, it means that the venue has restarted under the same session name.
    pub restart_marker: bool,
    /// The packet has no sequence: MoldUDP64 with a blank session and sequence 0, as in files whose messages were
    /// wrapped into packets later. Its messages can only be processed in order of arrival.
    pub unsequenced: bool,
    /// The messages, each with its length prefix. Framing is checked: [`Transport::next_message`] yields exactly
    /// `count` of them.
    pub messages: &'a [u8],
}

impl Packet<'_> {
    /// First sequence after the packet.
    #[must_use]
    pub fn next(&self) -> Sequence {
        self.first.plus(u64::from(self.count))
    }
}

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketKind {
    /// The packet carries messages.
    Messages,
    /// It only shows that the line is alive, and announces the next sequence.
    Heartbeat,
    /// No further message will come in this session.
    EndOfSession,
}

/// The venue's own session name; opaque, only compared. MoldUDP64: the ten bytes of the session, then zeros. IEX-TP:
/// session and channel, little-endian as on the wire, then zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VenueSession(pub [u8; 16]);

/// Reader of a datagram protocol. Static dispatch: a channel's transport is fixed when it is built.
pub trait Transport {
    /// Checks the framing of a whole datagram.
    ///
    /// # Errors
    /// The first mismatch. No part of a packet with broken framing is used, since the message boundaries and
    /// sequences are then unreliable.
    fn parse(datagram: &[u8]) -> Result<Packet<'_>, DropReason>;

    /// Checks the header alone, to look ahead: [`Packet::messages`] may be broken.
    ///
    /// # Errors
    /// As [`Self::parse`], as far as the header shows it.
    fn parse_header(datagram: &[u8]) -> Result<Packet<'_>, DropReason>;

    /// Removes the next message, without its length, from the front of a checked block; `None` at the end.
    fn next_message<'a>(block: &mut &'a [u8]) -> Option<&'a [u8]>;
}

/// Appends a message with its length prefix, in the byte order that `length` produces. Returns `false`, and appends
/// nothing, if the packet would exceed `packet_bytes_max`.
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
    /// The messages with their length prefixes.
    messages: &'a [u8],
    /// How many there are, at least 1.
    count: usize,
    /// Bytes of the messages before them.
    skipped_bytes: usize,
}

/// The messages `[from, until)` of a packet, if the range is not empty and the packet holds all of it.
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

/// The feed as far as one datagram identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DetectedProtocol {
    /// ITCH 5.0 over MoldUDP64. Nasdaq, BX and PSX use the same protocol, so the feed must be known from elsewhere
    /// (configuration, addresses).
    Itch50,
    /// IEX TOPS.
    IexTops,
    /// IEX DEEP.
    IexDeep,
}

impl DetectedProtocol {
    /// The possible feeds, the most likely first.
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

/// Detects the feed of a datagram. `None` for an unknown feed, and for a datagram that does not identify it
/// (MoldUDP64 heartbeats are the same for all messages): try again with the next one.
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
    messages.all(itch50::has_known_length).then_some(DetectedProtocol::Itch50)
}

#[cfg(test)]
mod tests;
