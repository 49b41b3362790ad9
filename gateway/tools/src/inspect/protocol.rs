//! Common interface to all feeds: selects the parser of a message.

use mdgw_feeds::{
    drop_reason::DropReason,
    transport::{DetectedProtocol, Packet, Transport as _, iextp, moldudp64},
    venue::{
        iex::{deep, tops},
        nasdaq::itch50,
        wire::{FieldList, FieldValue},
    },
};
use zerocopy::FromBytes as _;

use super::published::PublishedItem;

/// One message of any feed.
#[derive(Clone, Copy, Debug)]
pub enum AnyMessage<'a> {
    /// Nasdaq TotalView-ITCH 5.0.
    Itch50(itch50::Message<'a>),
    /// IEX TOPS.
    Tops(tops::Message<'a>),
    /// IEX DEEP.
    Deep(deep::Message<'a>),
    /// A record or a frame of the gateway's own output.
    Published(PublishedItem<'a>),
}

impl<'a> AnyMessage<'a> {
    /// Views the bytes as a message of that protocol.
    ///
    /// # Errors
    /// Error of the feed's own parser.
    #[inline]
    pub(crate) fn parse(protocol: DetectedProtocol, bytes: &'a [u8]) -> Result<Self, DropReason> {
        match protocol {
            DetectedProtocol::Itch50 => itch50::Message::parse(bytes).map(Self::Itch50),
            DetectedProtocol::IexTops => tops::Message::parse(bytes).map(Self::Tops),
            DetectedProtocol::IexDeep => deep::Message::parse(bytes).map(Self::Deep),
        }
    }

    /// Name of the message.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Itch50(message) => message.name(),
            Self::Tops(message) => message.name(),
            Self::Deep(message) => message.name(),
            Self::Published(item) => item.name(),
        }
    }

    /// Number of its bytes that the supported specification covers. A later edition may append fields.
    #[must_use]
    pub(crate) fn covered_bytes(&self) -> usize {
        match self {
            Self::Itch50(message) => message.as_bytes().len(),
            Self::Tops(message) => message.as_bytes().len(),
            Self::Deep(message) => message.as_bytes().len(),
            Self::Published(item) => item.bytes().len(),
        }
    }
}

impl FieldList for AnyMessage<'_> {
    fn fields(&self, visit: &mut dyn FnMut(&'static str, FieldValue<'_>)) {
        match self {
            Self::Itch50(message) => message.fields(visit),
            Self::Tops(message) => message.fields(visit),
            Self::Deep(message) => message.fields(visit),
            Self::Published(item) => item.fields(visit),
        }
    }
}

/// Checks the framing of a datagram with the parser of its protocol.
#[inline]
pub(super) fn parse(protocol: DetectedProtocol, datagram: &[u8]) -> Result<Packet<'_>, DropReason> {
    match protocol {
        DetectedProtocol::Itch50 => moldudp64::MoldUdp64::parse(datagram),
        DetectedProtocol::IexTops => iextp::Tops::parse(datagram),
        DetectedProtocol::IexDeep => iextp::Deep::parse(datagram),
    }
}

/// Takes the next message off a block with checked framing.
#[inline]
pub(super) fn next_message<'a>(protocol: DetectedProtocol, block: &mut &'a [u8]) -> Option<&'a [u8]> {
    match protocol {
        DetectedProtocol::Itch50 => moldudp64::MoldUdp64::next_message(block),
        DetectedProtocol::IexTops => iextp::Tops::next_message(block),
        DetectedProtocol::IexDeep => iextp::Deep::next_message(block),
    }
}

/// Passes the fields of a datagram's transport header. Returns their length in bytes, 0 if the datagram is too short.
pub(super) fn header(
    protocol: DetectedProtocol,
    datagram: &[u8],
    visit: &mut dyn FnMut(&'static str, FieldValue<'_>),
) -> usize {
    match protocol {
        DetectedProtocol::Itch50 => moldudp64::Header::ref_from_prefix(datagram).map_or(0, |(header, _)| {
            header.fields(visit);
            moldudp64::HEADER_BYTES
        }),
        DetectedProtocol::IexTops | DetectedProtocol::IexDeep => {
            iextp::Header::ref_from_prefix(datagram).map_or(0, |(header, _)| {
                header.fields(visit);
                iextp::HEADER_BYTES
            })
        }
    }
}
