//! One feed or the other behind one name: which parser is asked is decided here.

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

/// One message of any feed.
#[derive(Clone, Copy, Debug)]
pub enum AnyMessage<'a> {
    /// Nasdaq TotalView-ITCH 5.0.
    Itch50(itch50::Message<'a>),
    /// IEX TOPS.
    Tops(tops::Message<'a>),
    /// IEX DEEP.
    Deep(deep::Message<'a>),
}

impl<'a> AnyMessage<'a> {
    /// Views the bytes as a message of that protocol.
    ///
    /// # Errors
    /// What the feed's own parser says.
    #[inline]
    pub fn parse(protocol: DetectedProtocol, bytes: &'a [u8]) -> Result<Self, DropReason> {
        match protocol {
            DetectedProtocol::Itch50 => itch50::Message::parse(bytes).map(Self::Itch50),
            DetectedProtocol::IexTops => tops::Message::parse(bytes).map(Self::Tops),
            DetectedProtocol::IexDeep => deep::Message::parse(bytes).map(Self::Deep),
        }
    }

    /// Name of the message.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Itch50(message) => message.name(),
            Self::Tops(message) => message.name(),
            Self::Deep(message) => message.name(),
        }
    }

    /// How many of its bytes the specification that we know covers. A later one may have put more behind them.
    #[must_use]
    pub fn covered_bytes(&self) -> usize {
        match self {
            Self::Itch50(message) => message.as_bytes().len(),
            Self::Tops(message) => message.as_bytes().len(),
            Self::Deep(message) => message.as_bytes().len(),
        }
    }
}

impl FieldList for AnyMessage<'_> {
    fn fields(&self, visit: &mut dyn FnMut(&'static str, FieldValue<'_>)) {
        match self {
            Self::Itch50(message) => message.fields(visit),
            Self::Tops(message) => message.fields(visit),
            Self::Deep(message) => message.fields(visit),
        }
    }
}

/// The framing of a datagram.
#[inline]
pub(super) fn parse(protocol: DetectedProtocol, datagram: &[u8]) -> Result<Packet<'_>, DropReason> {
    match protocol {
        DetectedProtocol::Itch50 => moldudp64::MoldUdp64::parse(datagram),
        DetectedProtocol::IexTops => iextp::Tops::parse(datagram),
        DetectedProtocol::IexDeep => iextp::Deep::parse(datagram),
    }
}

/// Takes the next message off a block whose framing is checked.
#[inline]
pub(super) fn next_message<'a>(protocol: DetectedProtocol, block: &mut &'a [u8]) -> Option<&'a [u8]> {
    match protocol {
        DetectedProtocol::Itch50 => moldudp64::MoldUdp64::next_message(block),
        DetectedProtocol::IexTops => iextp::Tops::next_message(block),
        DetectedProtocol::IexDeep => iextp::Deep::next_message(block),
    }
}

/// The fields of a datagram's transport header; how many bytes they are, 0 where the datagram is too short for them.
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
