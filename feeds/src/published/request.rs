//! Retransmission: one request datagram, any number of answer datagrams.
//!
//! | asked | answered, each with [`PacketFlags::RETRANSMISSION`] | the end of the answer |
//! | --- | --- | --- |
//! | [`RequestKind::Range`] `[first, next)` | log entries that settle any of it, ascending; from the oldest there is where `first` is gone | heartbeat: `[first, next)` is all that the log holds of the session |
//! | [`RequestKind::Range`] with `first == next` | none | the same |
//! | [`RequestKind::Definitions`] from number `first` on | packets with [`PacketFlags::SNAPSHOT`]: `[first, next)` are the numbers of their definitions, in the order in which the session brought them | heartbeat with `SNAPSHOT`: `[first, next)` are the numbers of those left over |
//! | [`RequestKind::Sessions`] from `session` on | none | heartbeat of the oldest session from that one on of which the log holds anything: `[first, next)` is all that it holds. Where it holds none, the session that was asked for |
//!
//! A log that holds nothing of the session says `[0, 0)`. Every answer, also one that a limit cuts short, has such an end, and carries the highest epoch that its sender
//! knows. A limit leaves room for all parts of one message, or it would never come whole. A request beyond a requester's rate is not answered at all. The asker goes on from what it got.
//!
//! [`PacketFlags::RETRANSMISSION`]: super::packet::PacketFlags::RETRANSMISSION
//! [`PacketFlags::SNAPSHOT`]: super::packet::PacketFlags::SNAPSHOT

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{
    drop_reason::DropReason,
    identity::{ChannelId, GroupId, Sequence, Session},
};

/// A request on the wire. Little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestPacket {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// [`REQUEST_VERSION`].
    pub version: u8,
    /// A [`RequestKind`].
    pub kind: u8,
    /// Group.
    pub group: U16,
    /// Channel.
    pub channel: U16,
    /// Zero.
    pub reserved: [u8; 6],
    /// [`Session`]; all zero asks for the current one, or for sessions from the first on.
    pub session: [u8; Session::BYTES],
    /// First input sequence wanted, or number of the first definition.
    pub first: U64,
    /// First input sequence not wanted.
    pub next: U64,
    /// Tells one request from the next in the service's records; of the asker's choice.
    pub nonce: U64,
}

/// Bytes of a request.
pub const REQUEST_PACKET_BYTES: usize = size_of::<RequestPacket>();
const _: () = assert!(REQUEST_PACKET_BYTES == 56);

/// `MDGR` on the wire.
pub const REQUEST_MAGIC: u32 = u32::from_le_bytes(*b"MDGR");

/// Version of the format.
pub const REQUEST_VERSION: u8 = 1;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RequestKind {
    /// Log entries.
    Range = 1,
    /// Instrument definitions of the session so far.
    Definitions = 2,
    /// Which session the log holds, that one or the next after it.
    Sessions = 3,
}

/// A request, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRequest {
    /// What is asked for.
    pub kind: RequestKind,
    /// Group.
    pub group: GroupId,
    /// Channel.
    pub channel: ChannelId,
    /// Session; `None` asks for the current one, or for sessions from the first on.
    pub session: Option<Session>,
    /// First input sequence wanted, or number of the first definition.
    pub first: Sequence,
    /// First input sequence not wanted.
    pub next: Sequence,
    /// Of the asker's choice.
    pub nonce: u64,
}

impl ServiceRequest {
    /// To the form on the wire.
    #[must_use]
    pub fn to_packet(&self) -> RequestPacket {
        RequestPacket {
            magic: U32::new(REQUEST_MAGIC),
            version: REQUEST_VERSION,
            kind: self.kind as u8,
            group: U16::new(self.group.0),
            channel: U16::new(self.channel.0),
            reserved: [0; 6],
            session: self.session.map_or([0; Session::BYTES], Session::to_bytes),
            first: U64::new(self.first.0),
            next: U64::new(self.next.0),
            nonce: U64::new(self.nonce),
        }
    }

    /// Checks a datagram.
    ///
    /// # Errors
    /// - [`DropReason::HeaderTruncated`], [`DropReason::TrailingBytes`]: shorter or longer than a request.
    /// - [`DropReason::ProtocolMismatch`]: not a request, or a version or kind that we don't know.
    /// - [`DropReason::FieldInvalid`]: a session that cannot be.
    /// - [`DropReason::SequenceInvalid`]: a reversed range.
    pub fn parse(datagram: &[u8]) -> Result<Self, DropReason> {
        let (packet, rest) = RequestPacket::ref_from_prefix(datagram).map_err(|_| DropReason::HeaderTruncated)?;
        if !rest.is_empty() {
            return Err(DropReason::TrailingBytes);
        }
        let kind = [RequestKind::Range, RequestKind::Definitions, RequestKind::Sessions];
        let kind = kind.into_iter().find(|kind| *kind as u8 == packet.kind).ok_or(DropReason::ProtocolMismatch)?;
        if packet.magic.get() != REQUEST_MAGIC || packet.version != REQUEST_VERSION || packet.reserved != [0; 6] {
            return Err(DropReason::ProtocolMismatch);
        }
        let session = if packet.session == [0; Session::BYTES] {
            None
        } else {
            Some(Session::from_bytes(packet.session).ok_or(DropReason::FieldInvalid)?)
        };
        let (first, next) = (Sequence(packet.first.get()), Sequence(packet.next.get()));
        if first > next {
            return Err(DropReason::SequenceInvalid);
        }
        Ok(Self {
            kind,
            group: GroupId(packet.group.get()),
            channel: ChannelId(packet.channel.get()),
            session,
            first,
            next,
            nonce: packet.nonce.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{formats::check, identity::Feed, time::TradingDate};

    #[test]
    fn requests_written_by_0_1_0_are_read() {
        let date = TradingDate::from_yyyymmdd(20_240_102).unwrap();
        let session = Some(Session { feed: Feed::NasdaqItch, date, restart: 1 });
        let request = |kind, session| {
            let (group, channel, first, next) = (GroupId(2), ChannelId(3), Sequence(4), Sequence(5));
            ServiceRequest { kind, group, channel, session, first, next, nonce: 6 }
        };
        check(
            include_str!("../../../tests/data/formats/retransmission_requests.hex"),
            &[
                request(RequestKind::Range, session),
                request(RequestKind::Definitions, session),
                request(RequestKind::Sessions, None),
            ],
            |bytes| ServiceRequest::parse(bytes).unwrap(),
            |request| request.to_packet().as_bytes().to_vec(),
        );
    }
}
