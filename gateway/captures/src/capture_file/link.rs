//! From a link-layer frame to the UDP payload inside.
//!
//! Sources: the link type registry (<https://www.tcpdump.org/linktypes.html>); IPv4 is RFC 791, IPv6 RFC 8200, UDP RFC
//! 768, VLAN tags IEEE 802.1Q.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::Range,
};

use super::CaptureFault;

/// Link layer that encloses the IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkLayer {
    /// Ethernet, with any number of VLAN tags up to [`VlanTags::COUNT_MAX`].
    Ethernet,
    /// No header: the packet's first byte gives the IP version.
    RawIp,
    /// Linux cooked, version 1.
    Cooked,
    /// Linux cooked, version 2.
    Cooked2,
    /// BSD loopback: 4 bytes of address family in either byte order.
    Null,
}

impl LinkLayer {
    /// From the number in a capture's header; bits above the lower 16 describe the frame check sequence.
    pub(super) fn from_number(number: i32) -> Result<Self, CaptureFault> {
        Ok(match number & 0xffff {
            0 | 108 => Self::Null,
            1 => Self::Ethernet,
            // 12 and 14: values that some systems write for raw IP; 228 and 229: IPv4 or IPv6 only.
            12 | 14 | 101 | 228 | 229 => Self::RawIp,
            113 => Self::Cooked,
            276 => Self::Cooked2,
            other => return Err(CaptureFault::LinkTypeUnknown(other)),
        })
    }
}

/// VLAN identifiers of a frame, outermost first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanTags {
    ids: [u16; Self::COUNT_MAX],
    count: u8,
}

impl VlanTags {
    /// Tags that are parsed; a frame with more counts as not UDP.
    pub(crate) const COUNT_MAX: usize = 4;

    /// The identifiers, 12 bits each.
    #[must_use]
    pub fn ids(&self) -> &[u16] {
        self.ids.get(..usize::from(self.count)).unwrap_or_default()
    }

    fn push(&mut self, id: u16) -> Option<()> {
        *self.ids.get_mut(usize::from(self.count))? = id;
        self.count += 1;
        Some(())
    }
}

/// A UDP datagram within a frame.
#[derive(Debug)]
pub(super) struct Udp {
    pub(super) vlan: VlanTags,
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    /// Range of its payload in the frame.
    pub(super) payload: Range<usize>,
    /// Part of the payload was not captured.
    pub(super) is_truncated: bool,
}

/// Reason why a frame yields no datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skipped {
    NotUdp,
    Fragment,
    Malformed,
}

/// Finds the UDP datagram in a frame.
#[inline]
pub(super) fn find_udp(link: LinkLayer, frame: &[u8]) -> Result<Udp, Skipped> {
    let mut vlan = VlanTags::default();
    let (ether_type, at) = match link {
        LinkLayer::Ethernet => (u16_at(frame, 12)?, 14),
        LinkLayer::Cooked => (u16_at(frame, 14)?, 16),
        LinkLayer::Cooked2 => (u16_at(frame, 0)?, 20),
        LinkLayer::Null => (ETHER_TYPE_IP, 4),
        LinkLayer::RawIp => (ETHER_TYPE_IP, 0),
    };
    let (mut ether_type, mut at) = (ether_type, at);
    while matches!(ether_type, 0x8100 | 0x88a8 | 0x9100) {
        vlan.push(u16_at(frame, at)? & 0x0fff).ok_or(Skipped::NotUdp)?;
        ether_type = u16_at(frame, at + 2)?;
        at += 4;
    }
    if !matches!(ether_type, ETHER_TYPE_IP | 0x0800 | 0x86dd) {
        return Err(Skipped::NotUdp);
    }
    // The IP version repeats the link layer's type; without a type it is the only information.
    match byte_at(frame, at)? >> 4 {
        4 => find_in_ipv4(frame, at, vlan),
        6 => find_in_ipv6(frame, at, vlan),
        _ => Err(Skipped::NotUdp),
    }
}

/// Internal value for link layers without a type field: the IP header's version decides. Not an assigned type.
const ETHER_TYPE_IP: u16 = 0;

fn find_in_ipv4(frame: &[u8], at: usize, vlan: VlanTags) -> Result<Udp, Skipped> {
    let header = chunk_at::<20>(frame, at)?;
    let header_bytes = usize::from(header[0] & 0x0f) * 4;
    if header_bytes < 20 {
        return Err(Skipped::Malformed);
    }
    // More fragments, or not the first.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(Skipped::Fragment);
    }
    if header[9] != PROTOCOL_UDP {
        return Err(Skipped::NotUdp);
    }
    let total_bytes = match usize::from(u16::from_be_bytes([header[2], header[3]])) {
        // Segmentation offload leaves 0 in packets captured on the sending host.
        0 => frame.len() - at,
        bytes => bytes,
    };
    let ip_payload_bytes = total_bytes.checked_sub(header_bytes).ok_or(Skipped::Malformed)?;
    let src = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
    let dst = Ipv4Addr::new(header[16], header[17], header[18], header[19]);
    find_payload(frame, at + header_bytes, ip_payload_bytes, (src.into(), dst.into()), vlan)
}

fn find_in_ipv6(frame: &[u8], at: usize, vlan: VlanTags) -> Result<Udp, Skipped> {
    let header = chunk_at::<40>(frame, at)?;
    let payload_bytes = match usize::from(u16::from_be_bytes([header[4], header[5]])) {
        // Segmentation offload leaves 0 in packets captured on the sending host.
        0 => frame.len() - at - 40,
        bytes => bytes,
    };
    let address = |from: usize| chunk_at::<16>(frame, at + from).map(|bytes| IpAddr::from(Ipv6Addr::from(*bytes)));
    let addresses = (address(8)?, address(24)?);
    let (mut next, mut headers_bytes) = (header[6], 0);
    for _ in 0..=EXTENSION_HEADERS_MAX {
        let extension = at + 40 + headers_bytes;
        let length = || byte_at(frame, extension + 1).map(usize::from);
        headers_bytes += match next {
            PROTOCOL_UDP => {
                let rest_bytes = payload_bytes.checked_sub(headers_bytes).ok_or(Skipped::Malformed)?;
                return find_payload(frame, extension, rest_bytes, addresses, vlan);
            }
            HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY | HOST_IDENTITY | SHIM6 => 8 * (1 + length()?),
            AUTHENTICATION => 4 * (2 + length()?),
            // A packet that is its own only fragment needs no reassembly.
            FRAGMENT if u16_at(frame, extension + 2)? & 0xfff9 == 0 => 8,
            FRAGMENT => return Err(Skipped::Fragment),
            _ => return Err(Skipped::NotUdp),
        };
        next = byte_at(frame, extension)?;
    }
    Err(Skipped::NotUdp)
}

/// Extension headers that are parsed: each kind occurs once, except one that may come twice (RFC 8200, 4.1).
const EXTENSION_HEADERS_MAX: usize = 8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

fn find_payload(
    frame: &[u8],
    at: usize,
    ip_payload_bytes: usize,
    (src, dst): (IpAddr, IpAddr),
    vlan: VlanTags,
) -> Result<Udp, Skipped> {
    let header = chunk_at::<8>(frame, at)?;
    let udp_bytes = match usize::from(u16::from_be_bytes([header[4], header[5]])) {
        0 => ip_payload_bytes,
        bytes => bytes,
    };
    if udp_bytes < 8 || udp_bytes > ip_payload_bytes {
        return Err(Skipped::Malformed);
    }
    let end = at + udp_bytes;
    Ok(Udp {
        vlan,
        src: SocketAddr::new(src, u16::from_be_bytes([header[0], header[1]])),
        dst: SocketAddr::new(dst, u16::from_be_bytes([header[2], header[3]])),
        payload: at + 8..end.min(frame.len()),
        is_truncated: end > frame.len(),
    })
}

const PROTOCOL_UDP: u8 = 17;

fn byte_at(frame: &[u8], at: usize) -> Result<u8, Skipped> {
    frame.get(at).copied().ok_or(Skipped::Malformed)
}

fn u16_at(frame: &[u8], at: usize) -> Result<u16, Skipped> {
    chunk_at::<2>(frame, at).map(|bytes| u16::from_be_bytes(*bytes))
}

fn chunk_at<const N: usize>(frame: &[u8], at: usize) -> Result<&[u8; N], Skipped> {
    frame.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Skipped::Malformed)
}
