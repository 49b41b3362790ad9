//! From a datagram to its messages: which protocol it speaks, what its framing says, where each message lies.

use std::{collections::HashMap, net::SocketAddr};

use mdgw_captures::capture_file::{CaptureKind, CapturedDatagram};
use mdgw_feeds::{
    drop_reason::DropReason,
    identity::Sequence,
    transport::{DetectedProtocol, Packet, PacketKind, Transport as _, detect_protocol, moldudp64::MoldUdp64},
    venue::wire::{FieldList as _, FieldValue},
};

use super::protocol::{self, AnyMessage};

/// Takes the datagrams of one file apart, and remembers what earlier ones told: which protocol an address speaks, and
/// which symbols its venue's stock numbers stand for.
#[derive(Debug)]
pub struct Dissector {
    protocol_filter: Option<DetectedProtocol>,
    kind: CaptureKind,
    known: Vec<(SocketAddr, DetectedProtocol)>,
    /// Place in `known` that the last datagram took: most take the same.
    protocol_last: usize,
    symbols: HashMap<(SocketAddr, u16), Symbol>,
    /// Where the next message of a day file stands in it.
    file_offset: u64,
}

/// A symbol without its padding, at most eight bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Symbol {
    bytes: [u8; 8],
    len: u8,
}

/// A datagram taken apart.
#[derive(Clone, Debug)]
pub struct PacketView<'a> {
    /// As captured.
    pub datagram: CapturedDatagram<'a>,
    /// Whether packets were captured, or made from a day file: then they have no addresses and no frames.
    pub kind: CaptureKind,
    /// What it is.
    pub framing: Framing<'a>,
    /// Its messages, or those of them that were asked for.
    pub messages: Vec<MessageView<'a>>,
}

/// What a datagram is.
#[derive(Clone, Copy, Debug)]
pub enum Framing<'a> {
    /// A packet of a known protocol.
    Packet(DetectedProtocol, Packet<'a>),
    /// MoldUDP64 without messages, before anything told whose it is.
    UnidentifiedMold(Packet<'a>),
    /// From an address that speaks this protocol, but its framing is broken.
    Broken(DetectedProtocol, DropReason),
    /// Of no feed that is known.
    Unrecognised,
}

/// One message of a packet.
#[derive(Clone, Copy, Debug)]
pub struct MessageView<'a> {
    /// Its number; `None` where the packet carries none.
    pub sequence: Option<Sequence>,
    /// Where its length stands, counted from the start of the payload; in a day file from the start of the file.
    pub offset: u64,
    /// The message without its length.
    pub bytes: &'a [u8],
    /// Its content, or why it can't be understood.
    pub message: Result<AnyMessage<'a>, DropReason>,
    /// The instrument that it is about, where it names one or an earlier message named its number.
    pub symbol: Option<Symbol>,
}

impl Dissector {
    /// For a file of that kind. `protocol_filter`: what datagrams that tell no protocol are taken for.
    #[must_use]
    pub fn new(kind: CaptureKind, protocol_filter: Option<DetectedProtocol>) -> Self {
        Self { protocol_filter, kind, known: Vec::new(), protocol_last: 0, symbols: HashMap::new(), file_offset: 0 }
    }

    /// Which protocols were met, and where.
    #[must_use]
    pub fn known(&self) -> &[(SocketAddr, DetectedProtocol)] {
        &self.known
    }

    /// What a datagram is, without a look at its messages.
    #[inline]
    pub fn framing<'a>(&mut self, datagram: &CapturedDatagram<'a>) -> Framing<'a> {
        let Some(protocol) = self.protocol_of(datagram.dst) else { return self.recognise_first(datagram) };
        match protocol::parse(protocol, datagram.payload) {
            Ok(packet) => Framing::Packet(protocol, packet),
            // Two feeds at one address: captures without addresses have that.
            Err(reason) => match detect_protocol(datagram.payload) {
                Some(other) if other != protocol && self.accepts(other) => packet_of(other, datagram.payload),
                Some(other) if other != protocol => Framing::Unrecognised,
                _ => Framing::Broken(protocol, reason),
            },
        }
    }

    /// Takes a datagram apart.
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
        PacketView { datagram, kind: self.kind, framing, messages }
    }

    #[inline]
    fn protocol_of(&mut self, dst: SocketAddr) -> Option<DetectedProtocol> {
        match self.known.get(self.protocol_last) {
            Some((known, protocol)) if *known == dst => Some(*protocol),
            _ => {
                self.protocol_last = self.known.iter().position(|(known, _)| *known == dst)?;
                self.known.get(self.protocol_last).map(|(_, protocol)| *protocol)
            }
        }
    }

    /// A datagram of an address that nothing is known of.
    #[cold]
    fn recognise_first<'a>(&mut self, datagram: &CapturedDatagram<'a>) -> Framing<'a> {
        let payload = datagram.payload;
        if let Some(protocol) = detect_protocol(payload) {
            if !self.accepts(protocol) {
                return Framing::Unrecognised;
            }
            if self.known.len() < ADDRESSES_MAX {
                self.known.push((datagram.dst, protocol));
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

    /// Where a message stands: in its payload, or in the day file whose messages follow each other without a gap.
    fn offset(&mut self, in_payload: u64, message: &[u8]) -> u64 {
        if self.kind == CaptureKind::Packets {
            return in_payload;
        }
        let offset = self.file_offset;
        self.file_offset += (LENGTH_BYTES + message.len()) as u64;
        offset
    }

    /// The instrument of a message. ITCH names it in a few messages and numbers it in all.
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
    pub fn new(symbol: &[u8]) -> Self {
        let mut bytes = [0; 8];
        let len = symbol.len().min(bytes.len());
        for (to, from) in bytes.iter_mut().zip(symbol) {
            *to = *from;
        }
        Self { bytes, len: u8::try_from(len).unwrap_or_default() }
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl PacketView<'_> {
    /// Hands the fields of the transport header to `visit`; how many bytes of the payload they are, 0 without one.
    pub fn header(&self, visit: &mut dyn FnMut(&'static str, FieldValue<'_>)) -> usize {
        match self.framing {
            Framing::Packet(protocol, _) | Framing::Broken(protocol, _) => {
                protocol::header(protocol, self.datagram.payload, visit)
            }
            Framing::UnidentifiedMold(_) => protocol::header(DetectedProtocol::Itch50, self.datagram.payload, visit),
            Framing::Unrecognised => 0,
        }
    }

    /// Bytes of the payload, as far as it is shown, that no field covers.
    #[must_use]
    pub fn undecoded_bytes(&self) -> usize {
        match self.framing {
            Framing::Packet(..) | Framing::UnidentifiedMold(_) => {
                self.messages.iter().map(MessageView::undecoded_bytes).sum()
            }
            Framing::Broken(..) | Framing::Unrecognised => self.datagram.payload.len() - self.header(&mut |_, _| {}),
        }
    }
}

impl MessageView<'_> {
    /// Bytes of the message that no field covers.
    #[must_use]
    pub fn undecoded_bytes(&self) -> usize {
        self.bytes.len() - self.message.map_or(0, |message| message.covered_bytes())
    }
}

fn packet_of(protocol: DetectedProtocol, payload: &[u8]) -> Framing<'_> {
    protocol::parse(protocol, payload)
        .map_or_else(|reason| Framing::Broken(protocol, reason), |packet| Framing::Packet(protocol, packet))
}

/// Bytes of a message's length, in all our protocols.
pub(super) const LENGTH_BYTES: usize = 2;
/// Addresses that are remembered. Those beyond are asked anew with each datagram.
const ADDRESSES_MAX: usize = 4_096;
