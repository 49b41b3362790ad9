//! Nasdaq day files as MoldUDP64 packets.
//!
//! A day file holds the messages of one day, each preceded by a 2-byte big-endian length (Nasdaq, BinaryFILE 1.00).
//! This is exactly the message block format of MoldUDP64, so packets are cut from it. Messages within
//! [`PACKET_NS_MAX`] of each other share a packet up to [`PACKET_BYTES_MAX`]. The packet's time is the time of its last
//! message.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
};

use mdgw_feeds::transport::moldudp64::{self, MoldSession, PacketWriter};
use mdgw_wire::{identity::Sequence, time::TradingDate};

use super::{CaptureFault, OpenOptions, byte_source::ByteSource};

#[derive(Debug)]
pub(super) struct DayFile {
    date: TradingDate,
    midnight_ns: u64,
    session: MoldSession,
    packet: Vec<u8>,
    /// Sequence of the next message.
    sequence: Sequence,
    ended: bool,
    /// Error found after the first message of a packet. The packet is returned first, then the error.
    deferred_fault: Option<CaptureFault>,
    time_ns: u64,
}

/// A day file has no addresses.
pub(super) const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Whether a file that begins with these bytes may be a day file: a plausible message length, and a letter as message
/// type.
pub(super) fn is_start([high, low, kind, _]: [u8; 4]) -> bool {
    MESSAGE_BYTES.contains(&usize::from(u16::from_be_bytes([high, low]))) && kind.is_ascii_alphabetic()
}

impl DayFile {
    pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<Self, CaptureFault> {
        let date = options.date.or_else(|| date_in_name(path)).ok_or(CaptureFault::DateUnknown)?;
        let name =
            if options.session_name.is_empty() { date.yyyymmdd().to_string() } else { options.session_name.clone() };
        let mut session = [b' '; size_of::<MoldSession>()];
        for (slot, letter) in session.iter_mut().zip(name.bytes()) {
            *slot = letter;
        }
        Ok(Self {
            date,
            midnight_ns: date.midnight_new_york().0,
            session,
            packet: Vec::with_capacity(PACKET_BYTES_MAX),
            sequence: Sequence(1),
            ended: false,
            deferred_fault: None,
            time_ns: 0,
        })
    }

    pub(super) fn date(&self) -> TradingDate {
        self.date
    }

    /// The packet built by [`Self::next`].
    pub(super) fn packet(&self) -> &[u8] {
        &self.packet
    }

    /// Builds the next packet and returns its time and size in bytes. `None` at the end of the file.
    pub(super) fn next(&mut self, source: &mut ByteSource) -> Result<Option<(u64, usize)>, CaptureFault> {
        if self.ended {
            return Ok(None);
        }
        let mut packet = PacketWriter::begin(&mut self.packet, self.session, self.sequence, PACKET_BYTES_MAX);
        let mut first_ns = None;
        loop {
            let message_bytes = match self.deferred_fault.take().map_or_else(|| whole_message(source), Err) {
                Ok(Some(message_bytes)) => message_bytes,
                Ok(None) => break,
                Err(fault) if first_ns.is_none() => return Err(fault),
                Err(fault) => {
                    // Messages before the damage still form a packet.
                    self.deferred_fault = Some(fault);
                    break;
                }
            };
            if message_bytes == 0 {
                if first_ns.is_some() {
                    break;
                }
                source.consume(LENGTH_BYTES);
                return self.end(source);
            }
            let block_bytes = LENGTH_BYTES + message_bytes;
            let message = source.available().get(LENGTH_BYTES..block_bytes).unwrap_or_default();
            let since_midnight_ns = timestamp_ns(message);
            let is_near = first_ns.is_none_or(|first| since_midnight_ns.saturating_sub(first) <= PACKET_NS_MAX);
            if !is_near || !packet.push(message) {
                break;
            }
            source.consume(block_bytes);
            first_ns.get_or_insert(since_midnight_ns);
            self.time_ns = self.midnight_ns.saturating_add(since_midnight_ns);
        }
        let count = packet.finish();
        self.sequence = self.sequence.plus(u64::from(count));
        Ok((count > 0).then_some((self.time_ns, self.packet.len())))
    }

    /// Builds the packet for the end-of-session mark.
    fn end(&mut self, source: &mut ByteSource) -> Result<Option<(u64, usize)>, CaptureFault> {
        self.ended = true;
        if source.fill(1)? > 0 {
            return Err(CaptureFault::AfterEnd);
        }
        moldudp64::write_end_of_session(&mut self.packet, self.session, self.sequence);
        Ok(Some((self.time_ns, self.packet.len())))
    }
}

/// Length of the next message, complete in `source`; `None` at the end of the file.
fn whole_message(source: &mut ByteSource) -> Result<Option<usize>, CaptureFault> {
    if source.fill(LENGTH_BYTES)? == 0 {
        return source.take_failure().map_or(Ok(None), Err);
    }
    source.require(LENGTH_BYTES, "a message's length")?;
    let length = source.available().first_chunk().copied().unwrap_or_default();
    let message_bytes = usize::from(u16::from_be_bytes(length));
    if message_bytes != 0 && !MESSAGE_BYTES.contains(&message_bytes) {
        return Err(CaptureFault::LengthImpossible { what: "a message", claimed: message_bytes as u64 });
    }
    source.require(LENGTH_BYTES + message_bytes, "a message")?;
    Ok(Some(message_bytes))
}

/// Nanoseconds since midnight: 6 bytes after type, locate and tracking number, in every message of ITCH 5.0.
fn timestamp_ns(message: &[u8]) -> u64 {
    let bytes = message.get(5..).and_then(|rest| rest.first_chunk::<6>()).copied().unwrap_or_default();
    bytes.iter().fold(0, |ns, byte| ns << 8 | u64::from(*byte))
}

/// Finds the trading date in names such as `S013019-v50.txt.gz` or `01302019.NASDAQ_ITCH50.gz` (month, day, year), or
/// as `20190130` anywhere.
fn date_in_name(path: &Path) -> Option<TradingDate> {
    let name = path.file_name()?.to_str()?;
    name.split(|letter: char| !letter.is_ascii_digit()).find_map(|digits| {
        let number: u32 = digits.parse().ok()?;
        match digits.len() {
            6 => TradingDate::from_ymd(2_000 + number % 100, number / 10_000, number / 100 % 100),
            8 => TradingDate::from_ymd(number % 10_000, number / 1_000_000, number / 10_000 % 100)
                .or_else(|| TradingDate::from_yyyymmdd(number)),
            _ => None,
        }
    })
}

const LENGTH_BYTES: usize = 2;
/// Plausible message lengths: at least up to the timestamp. The longest message of ITCH 5.0 has 50 bytes; the bound
/// leaves room for longer ones.
const MESSAGE_BYTES: std::ops::RangeInclusive<usize> = 11..=255;
/// Largest packet, bytes: UDP payload of an Ethernet frame without fragmentation.
const PACKET_BYTES_MAX: usize = 1_472;
/// Longest time between the first and the last message of a packet, ns. Messages of one burst share a packet, and no
/// message is delayed by more than this.
const PACKET_NS_MAX: u64 = 10_000;
