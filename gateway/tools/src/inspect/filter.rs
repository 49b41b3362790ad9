//! Selects packets and their messages.

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    str::FromStr,
};

use mdgw_captures::capture_file::CapturedDatagram;
use mdgw_feeds::venue::wire::FieldValue;

use super::{
    dissect::{Framing, MessageView, PacketView},
    protocol::AnyMessage,
};
use crate::replay::capture_merge::Window;

/// Filter criteria; an empty list accepts everything.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Frame numbers.
    pub frames: Vec<Range>,
    /// Destination addresses.
    pub channels: Vec<Destination>,
    /// The venue's names of sessions: text for MoldUDP64, number for IEX-TP.
    pub sessions: Vec<String>,
    /// Instruments.
    pub symbols: Vec<String>,
    /// Messages by code, or by name in any case.
    pub types: Vec<String>,
    /// Sequences.
    pub sequences: Vec<Range>,
    /// Capture time.
    pub window: Window,
    /// Bounds of the window; known after the first datagram.
    bounds_ns: Option<(u64, u64)>,
}

/// Result of the filter for a datagram by frame, address and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterMatch {
    /// The datagram is accepted.
    Match,
    /// Not accepted.
    NoMatch,
    /// Not accepted, and no later datagram will be.
    PastEnd,
}

/// Range of numbers, both bounds included: `7`, `7-9`, `7-`, `-9`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range(RangeInclusive<u64>);

/// An address with a given port or any port: `233.54.12.111:26477`, `233.54.12.111`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    address: IpAddr,
    port: Option<u16>,
}

impl Filter {
    /// Checks a datagram by frame, address and time.
    #[inline]
    pub fn check(&mut self, datagram: &CapturedDatagram<'_>) -> FilterMatch {
        let (from_ns, until_ns) = *self.bounds_ns.get_or_insert_with(|| self.window.bounds_ns(datagram.time_ns));
        let is_last = |range: &Range| *range.0.end() < datagram.frame;
        if !self.frames.is_empty() && self.frames.iter().all(is_last) {
            return FilterMatch::PastEnd;
        }
        let is_in = (from_ns..until_ns).contains(&datagram.time_ns)
            && contains(&self.frames, datagram.frame)
            && (self.channels.is_empty() || self.channels.iter().any(|channel| channel.matches(datagram.dst)));
        if is_in { FilterMatch::Match } else { FilterMatch::NoMatch }
    }

    /// Whether the packet's content has to be examined.
    #[must_use]
    pub fn needs_contents(&self) -> bool {
        !self.sessions.is_empty() || self.filters_messages()
    }

    /// Removes messages that don't match; returns whether the packet matches.
    #[must_use]
    pub fn retain_matching(&self, packet: &mut PacketView<'_>) -> bool {
        if !self.sessions.is_empty() && !self.matches_session(packet) {
            return false;
        }
        if !self.filters_messages() {
            return true;
        }
        packet.messages.retain(|message| self.matches_message(message));
        !packet.messages.is_empty()
    }

    fn filters_messages(&self) -> bool {
        !(self.symbols.is_empty() && self.types.is_empty() && self.sequences.is_empty())
    }

    fn matches_session(&self, packet: &PacketView<'_>) -> bool {
        if matches!(packet.framing, Framing::Unrecognised) {
            return false;
        }
        let mut is_wanted = false;
        packet.header(&mut |name, value| {
            let session = match (name, value) {
                ("session", FieldValue::Text(text)) => String::from_utf8_lossy(text).into_owned(),
                ("session_id", FieldValue::Number(number)) => number.to_string(),
                _ => return,
            };
            is_wanted |= self.sessions.contains(&session);
        });
        is_wanted
    }

    fn matches_message(&self, message: &MessageView<'_>) -> bool {
        let is_symbol = |wanted: &String| message.symbol.is_some_and(|symbol| symbol.as_bytes() == wanted.as_bytes());
        let is_type = |wanted: &String| {
            let has_code = !matches!(message.message, Ok(AnyMessage::Published(_)));
            (has_code && wanted.as_bytes() == message.bytes.get(..1).unwrap_or_default())
                || message.message.is_ok_and(|message| message.name().eq_ignore_ascii_case(wanted))
        };
        (self.symbols.is_empty() || self.symbols.iter().any(is_symbol))
            && (self.types.is_empty() || self.types.iter().any(is_type))
            && (self.sequences.is_empty()
                || message.sequence.is_some_and(|sequence| contains(&self.sequences, sequence.0)))
    }
}

fn contains(ranges: &[Range], number: u64) -> bool {
    ranges.is_empty() || ranges.iter().any(|range| range.0.contains(&number))
}

impl Destination {
    fn matches(self, dst: SocketAddr) -> bool {
        self.address == dst.ip() && self.port.is_none_or(|port| port == dst.port())
    }
}

impl FromStr for Range {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let number = |digits: &str, missing: u64| match digits {
            "" => Ok(missing),
            digits => digits.parse().map_err(|_| InvalidRange),
        };
        let range = match text.split_once('-') {
            Some(("", "")) | None if text.is_empty() || text == "-" => return Err(InvalidRange),
            Some((first, last)) => number(first, 0)?..=number(last, u64::MAX)?,
            None => {
                let only = number(text, 0)?;
                only..=only
            }
        };
        if range.is_empty() { Err(InvalidRange) } else { Ok(Self(range)) }
    }
}

impl FromStr for Destination {
    type Err = InvalidDestination;

    fn from_str(text: &str) -> Result<Self, InvalidDestination> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self { address: address.ip(), port: Some(address.port()) });
        }
        text.parse().map(|address| Self { address, port: None }).map_err(|_| InvalidDestination)
    }
}

/// Text that is not a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a range (expected N, N-M, N- or -M, both ends included)")]
pub struct InvalidRange;

/// Text that is not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address (expected ADDR:PORT or ADDR)")]
pub struct InvalidDestination;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_strictly() {
        let parse = |text: &str| text.parse::<Range>().map(|range| range.0);
        assert_eq!(parse("7"), Ok(7..=7));
        assert_eq!(parse("7-9"), Ok(7..=9));
        assert_eq!(parse("7-"), Ok(7..=u64::MAX));
        assert_eq!(parse("-9"), Ok(0..=9));
        for text in ["", "-", "9-7", "a", "1-b", "1--2", "1..2", "18446744073709551616"] {
            assert_eq!(parse(text), Err(InvalidRange), "{text}");
        }
    }

    #[test]
    fn a_destination_without_port_matches_every_port() {
        let matches = |wanted: &str, dst: &str| wanted.parse::<Destination>().unwrap().matches(dst.parse().unwrap());
        assert!(matches("239.0.0.1", "239.0.0.1:7"));
        assert!(matches("239.0.0.1:7", "239.0.0.1:7"));
        assert!(!matches("239.0.0.1:8", "239.0.0.1:7"));
        assert!(!matches("239.0.0.2", "239.0.0.1:7"));
        assert!("239.0.0".parse::<Destination>().is_err());
    }
}
