//! Retransmission: one request datagram, any number of answer datagrams.
//!
//! | request | answer, each packet with [`PacketFlags::RETRANSMISSION`] | end of the answer |
//! | --- | --- | --- |
//! | [`RequestKind::Range`] `[first, next)` | log entries that cover any of it, ascending; from the oldest available entry if `first` is gone | heartbeat: `[first, next)` is the log's extent in the session |
//! | [`RequestKind::Range`] with `first == next` | none | the same |
//! | [`RequestKind::Definitions`] from index `first` on | packets with [`PacketFlags::SNAPSHOT`]: `[first, next)` are the indices of their definitions, in the session's order | heartbeat with `SNAPSHOT`: `[first, next)` are the indices of the remaining ones |
//! | [`RequestKind::Sessions`] from `session` on | none | heartbeat of the oldest session from `session` on in the log: `[first, next)` is the log's extent in it. If there is none, the requested session |
//! | [`RequestKind::Epoch`] with `first == next`, drawn at random | none | [`PacketFlags::EPOCH_ANSWER`]: repeats session, `first` and `next` of the request |
//! | [`RequestKind::Snapshot`] of chunks `[first, next)` | packets with `SNAPSHOT`, each a [chunk](super::snapshot) | heartbeat with `SNAPSHOT`: `[first, next)` are the chunks that were not sent, `[0, 0)`: there is no such snapshot |
//!
//! For a session that is not in the log the extent is `[0, 0)`. The end of an answer has [`PacketFlags::END_OF_SESSION`] if the
//! service knows that the session ended at `next`: its gateway followed the session until the venue ended it or began another
//! one. Without that flag the session may have more messages than this log. Every answer has such an end, also one shortened by a
//! limit, and carries the highest epoch known to its sender. A limit leaves room for all parts of one message, so
//! that a message can always arrive whole. A starting receiver believes the answer about the epoch, so that answer repeats
//! the request's random numbers: who didn't see the request can't forge the answer. A service that knows no epoch doesn't
//! answer. A request beyond a requester's rate is not answered. The requester
//! continues from the last position received.
//!
//! [`PacketFlags::END_OF_SESSION`]: super::packet::PacketFlags::END_OF_SESSION
//! [`PacketFlags::EPOCH_ANSWER`]: super::packet::PacketFlags::EPOCH_ANSWER
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
    /// Number of the [`GroupId`] whose log is requested.
    pub group: U16,
    /// Number of the [`ChannelId`] within the group.
    pub channel: U16,
    /// Reserved; always zero.
    pub reserved: [u8; 6],
    /// [`Session`]; all zero requests the current one, or the sessions from the first on.
    pub session: [u8; Session::BYTES],
    /// First input sequence requested, or index of the first definition.
    pub first: U64,
    /// First input sequence not requested.
    pub next: U64,
    /// Chosen by the requester. The [tag](super::tag) of each packet of the answer covers it.
    pub nonce: U64,
}

/// Bytes of a request.
pub const REQUEST_PACKET_BYTES: usize = size_of::<RequestPacket>();
const _: () = assert!(REQUEST_PACKET_BYTES == 56);

/// `MDGR` on the wire.
pub(crate) const REQUEST_MAGIC: u32 = u32::from_le_bytes(*b"MDGR");

/// Version of the format.
pub(crate) const REQUEST_VERSION: u8 = 1;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RequestKind {
    /// Log entries.
    Range = 1,
    /// Instrument definitions of the session so far.
    Definitions = 2,
    /// The oldest session in the log from the given one on.
    Sessions = 3,
    /// The highest epoch that the service knows of the group, whatever the channel.
    Epoch = 4,
    /// Chunks of a [snapshot](super::snapshot). `first` and `next` are [chunk names](super::snapshot::ChunkName).
    Snapshot = 5,
}

impl RequestKind {
    const ALL: [Self; 5] = [Self::Range, Self::Definitions, Self::Sessions, Self::Epoch, Self::Snapshot];
}

/// A request in native types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRequest {
    /// Determines which of the other fields are used.
    pub kind: RequestKind,
    /// Group of the channel.
    pub group: GroupId,
    /// Channel within the group.
    pub channel: ChannelId,
    /// Session; `None` requests the current one, or the sessions from the first on.
    pub session: Option<Session>,
    /// First input sequence requested, or index of the first definition.
    pub first: Sequence,
    /// First input sequence not requested.
    pub next: Sequence,
    /// Chosen by the requester. The [tag](super::tag) of each packet of the answer covers it.
    pub nonce: u64,
}

impl ServiceRequest {
    /// Encodes the request.
    #[must_use]
    pub fn to_packet(self) -> RequestPacket {
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

    /// Parses and checks a datagram.
    ///
    /// # Errors
    /// - [`DropReason::HeaderTruncated`], [`DropReason::TrailingBytes`]: shorter or longer than a request.
    /// - [`DropReason::ProtocolMismatch`]: not a request, or an unknown version or kind.
    /// - [`DropReason::FieldInvalid`]: an invalid session.
    /// - [`DropReason::SequenceInvalid`]: a reversed range.
    pub fn parse(datagram: &[u8]) -> Result<Self, DropReason> {
        let (packet, rest) = RequestPacket::ref_from_prefix(datagram).map_err(|_| DropReason::HeaderTruncated)?;
        if !rest.is_empty() {
            return Err(DropReason::TrailingBytes);
        }
        let kind =
            RequestKind::ALL.into_iter().find(|kind| *kind as u8 == packet.kind).ok_or(DropReason::ProtocolMismatch)?;
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
            include_str!("../../../../tests/data/formats/retransmission_requests.hex"),
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
