//! Dissects a datagram: its protocol, its framing, and the position of each message.

use std::{collections::HashMap, net::SocketAddr};

use mdgw_captures::capture_file::{CaptureKind, CapturedDatagram};
use mdgw_feeds::{
    drop_reason::DropReason,
    identity::Sequence,
    transport::{DetectedProtocol, Packet, PacketKind, Transport as _, detect_protocol, moldudp64::MoldUdp64},
    venue::wire::{FieldList as _, FieldValue},
};

use super::{
    protocol::{self, AnyMessage},
    published::{self, PublishedDatagram, PublishedItem},
};

/// Dissects the datagrams of one file. Remembers from earlier datagrams which protocol an address uses, and which
/// symbols the venue's locate codes stand for.
#[derive(Debug)]
pub struct Dissector {
    protocol_filter: Option<DetectedProtocol>,
    kind: CaptureKind,
    protocols: Vec<(SocketAddr, DetectedProtocol)>,
    /// Index in `protocols` for the last datagram: most datagrams use the same.
    protocol_last: usize,
    symbols: HashMap<(SocketAddr, u16), Symbol>,
    /// Symbols of the gateway's own output, by channel and instrument.
    published_symbols: HashMap<(u16, u32), Symbol>,
    /// Offset of the next message in a day file.
    file_offset: u64,
}

/// A symbol without padding, at most eight bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Symbol {
    bytes: [u8; 8],
    len: u8,
}

/// A dissected datagram.
#[derive(Clone, Debug)]
pub struct PacketView<'a> {
    /// Bytes, addresses and time, as the capture has them.
    pub datagram: CapturedDatagram<'a>,
    /// Whether the packets were captured or made from a day file. Packets from a day file have no addresses and no
    /// frames.
    pub kind: CaptureKind,
    /// Kind of the datagram.
    pub framing: Framing<'a>,
    /// Its messages, or those that pass the filter.
    pub messages: Vec<MessageView<'a>>,
}

/// Kind of a datagram.
#[derive(Clone, Copy, Debug)]
pub enum Framing<'a> {
    /// A packet of a known protocol.
    Packet(DetectedProtocol, Packet<'a>),
    /// MoldUDP64 without messages, before the feed is known.
    UnidentifiedMold(Packet<'a>),
    /// A datagram with malformed framing, from an address with a known protocol.
    Broken(DetectedProtocol, DropReason),
    /// A sound datagram of the gateway's own output protocol.
    Published(PublishedDatagram<'a>),
    /// A malformed datagram of the gateway's own output protocol.
    BrokenPublished(DropReason),
    /// A datagram of an unknown feed.
    Unrecognised,
}

/// One message of a packet.
#[derive(Clone, Copy, Debug)]
pub struct MessageView<'a> {
    /// Sequence; `None` if the packet carries none.
    pub sequence: Option<Sequence>,
    /// Offset of its length field from the start of the payload; in a day file from the start of the file.
    pub offset: u64,
    /// The message without its length.
    pub bytes: &'a [u8],
    /// Its content, or why it can't be decoded.
    pub message: Result<AnyMessage<'a>, DropReason>,
    /// Its instrument, if it contains a symbol or an earlier message assigned one to its locate code.
    pub symbol: Option<Symbol>,
}

impl Dissector {
    /// For a file of that kind. `protocol_filter`: the protocol of datagrams that do not identify one.
    #[must_use]
    pub fn new(kind: CaptureKind, protocol_filter: Option<DetectedProtocol>) -> Self {
        Self {
            protocol_filter,
            kind,
            protocols: Vec::new(),
            protocol_last: 0,
            symbols: HashMap::new(),
            published_symbols: HashMap::new(),
            file_offset: 0,
        }
    }

    /// Protocols found, and their addresses.
    #[must_use]
    pub fn protocols(&self) -> &[(SocketAddr, DetectedProtocol)] {
        &self.protocols
    }

    /// Kind of a datagram, without examining its messages.
    #[inline]
    pub fn framing<'a>(&mut self, datagram: &CapturedDatagram<'a>) -> Framing<'a> {
        if published::is_published(datagram.payload) && self.protocol_filter.is_none() {
            return published::parse(datagram.payload).map_or_else(Framing::BrokenPublished, Framing::Published);
        }
        let Some(protocol) = self.protocol_of(datagram.dst) else { return self.recognise_first(datagram) };
        match protocol::parse(protocol, datagram.payload) {
            Ok(packet) => Framing::Packet(protocol, packet),
            // Two feeds at one address: possible in captures without addresses.
            Err(reason) => match detect_protocol(datagram.payload) {
                Some(other) if other != protocol && self.accepts(other) => packet_of(other, datagram.payload),
                Some(other) if other != protocol => Framing::Unrecognised,
                _ => Framing::Broken(protocol, reason),
            },
        }
    }

    /// Dissects a datagram.
    pub fn packet<'a>(&mut self, datagram: CapturedDatagram<'a>) -> PacketView<'a> {
        let framing = self.framing(&datagram);
        let mut messages = Vec::new();
        if let Framing::Packet(protocol, packet) = framing {
            let mut block = packet.messages;
            loop {
                let offset = datagram.payload.len() - block.len();
                let Some(bytes) = protocol::next_message(protocol, &mut block) else { break };
                let message = AnyMessage::parse(protocol, bytes);
                let place = messages.len() as u64;
                messages.push(MessageView {
                    sequence: (!packet.unsequenced).then(|| packet.first.plus(place)),
                    offset: self.offset(offset as u64, bytes),
                    bytes,
                    message,
                    symbol: message.ok().and_then(|message| self.symbol(datagram.dst, &message)),
                });
            }
        }
        if let Framing::Published(PublishedDatagram::Packet(packet)) = framing {
            for (offset, item) in published::items(&packet) {
                let symbol = self.published_symbol(packet.meta.channel.0, &item);
                let (sequence, message) = (Some(item.sequence()), Ok(AnyMessage::Published(item)));
                messages.push(MessageView { sequence, offset: offset as u64, bytes: item.bytes(), message, symbol });
            }
        }
        PacketView { datagram, kind: self.kind, framing, messages }
    }

    /// Symbol of a record: its own if it defines its instrument, else that of an earlier definition.
    fn published_symbol(&mut self, channel: u16, item: &PublishedItem<'_>) -> Option<Symbol> {
        let key = (channel, item.instrument()?);
        if let Some(symbol) = item.symbol().filter(|_| self.published_symbols.len() < PUBLISHED_SYMBOLS_MAX) {
            self.published_symbols.insert(key, Symbol::new(&symbol));
        }
        self.published_symbols.get(&key).copied()
    }

    #[inline]
    fn protocol_of(&mut self, dst: SocketAddr) -> Option<DetectedProtocol> {
        match self.protocols.get(self.protocol_last) {
            Some((known, protocol)) if *known == dst => Some(*protocol),
            _ => {
                self.protocol_last = self.protocols.iter().position(|(known, _)| *known == dst)?;
                self.protocols.get(self.protocol_last).map(|(_, protocol)| *protocol)
            }
        }
    }

    /// Determines the kind of a datagram from an address without a known protocol.
    #[cold]
    fn recognise_first<'a>(&mut self, datagram: &CapturedDatagram<'a>) -> Framing<'a> {
        let payload = datagram.payload;
        if let Some(protocol) = detect_protocol(payload) {
            if !self.accepts(protocol) {
                return Framing::Unrecognised;
            }
            if self.protocols.len() < ADDRESSES_MAX {
                self.protocols.push((datagram.dst, protocol));
            }
            return packet_of(protocol, payload);
        }
        if let Some(protocol_filter) = self.protocol_filter {
            return protocol::parse(protocol_filter, payload)
                .map_or(Framing::Unrecognised, |packet| Framing::Packet(protocol_filter, packet));
        }
        match MoldUdp64::parse(payload) {
            Ok(packet) if packet.kind != PacketKind::Messages => Framing::UnidentifiedMold(packet),
            _ => Framing::Unrecognised,
        }
    }

    fn accepts(&self, protocol: DetectedProtocol) -> bool {
        self.protocol_filter.is_none_or(|protocol_filter| protocol_filter == protocol)
    }

    /// Offset of a message: in its payload, or in the day file, whose messages are contiguous.
    fn offset(&mut self, in_payload: u64, message: &[u8]) -> u64 {
        if self.kind == CaptureKind::Packets {
            return in_payload;
        }
        let offset = self.file_offset;
        self.file_offset += (LENGTH_BYTES + message.len()) as u64;
        offset
    }

    /// Instrument of a message. ITCH has the symbol in a few message types and the locate code in all.
    fn symbol(&mut self, dst: SocketAddr, message: &AnyMessage<'_>) -> Option<Symbol> {
        let mut named = None;
        message.fields(&mut |_, value| {
            if let FieldValue::Symbol(symbol) = value {
                named = Some(Symbol::new(symbol));
            }
        });
        let AnyMessage::Itch50(message) = message else { return named };
        let key = (dst, message.stock_locate());
        match named {
            Some(symbol) => {
                self.symbols.insert(key, symbol);
                named
            }
            None => self.symbols.get(&key).copied(),
        }
    }
}

impl Symbol {
    /// The first eight bytes of a symbol without padding.
    #[must_use]
    pub(crate) fn new(symbol: &[u8]) -> Self {
        let mut bytes = [0; 8];
        let len = symbol.len().min(bytes.len());
        for (to, from) in bytes.iter_mut().zip(symbol) {
            *to = *from;
        }
        Self { bytes, len: u8::try_from(len).unwrap_or_default() }
    }

    /// Bytes of the symbol, without padding.
    #[must_use]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl PacketView<'_> {
    /// Passes the fields of the transport header to `visit`. Returns the header's length in bytes, 0 without a header.
    pub(crate) fn header(&self, visit: &mut dyn FnMut(&'static str, FieldValue<'_>)) -> usize {
        match self.framing {
            Framing::Packet(protocol, _) | Framing::Broken(protocol, _) => {
                protocol::header(protocol, self.datagram.payload, visit)
            }
            Framing::UnidentifiedMold(_) => protocol::header(DetectedProtocol::Itch50, self.datagram.payload, visit),
            Framing::Published(_) | Framing::BrokenPublished(_) => published::header(self.datagram.payload, visit),
            Framing::Unrecognised => 0,
        }
    }

    /// Bytes of the shown part of the payload that no field covers.
    #[must_use]
    pub(crate) fn undecoded_bytes(&self) -> usize {
        match self.framing {
            Framing::Packet(..) | Framing::UnidentifiedMold(_) | Framing::Published(_) => {
                self.messages.iter().map(MessageView::undecoded_bytes).sum()
            }
            Framing::Broken(..) | Framing::BrokenPublished(_) | Framing::Unrecognised => {
                self.datagram.payload.len() - self.header(&mut |_, _| {})
            }
        }
    }
}

impl MessageView<'_> {
    /// Bytes of the message that no field covers.
    #[must_use]
    pub(crate) fn undecoded_bytes(&self) -> usize {
        self.bytes.len() - self.message.map_or(0, |message| message.covered_bytes())
    }
}

fn packet_of(protocol: DetectedProtocol, payload: &[u8]) -> Framing<'_> {
    protocol::parse(protocol, payload)
        .map_or_else(|reason| Framing::Broken(protocol, reason), |packet| Framing::Packet(protocol, packet))
}

/// Length of a message's length field, in all supported protocols.
pub(super) const LENGTH_BYTES: usize = 2;
/// Symbols of the gateway's own output that are remembered.
const PUBLISHED_SYMBOLS_MAX: usize = 1 << 20;
/// Addresses that are remembered. Datagrams of further addresses are examined each time.
const ADDRESSES_MAX: usize = 4_096;
