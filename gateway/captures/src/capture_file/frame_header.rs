//! Synthetic frame headers: sockets deliver payloads, and tools expect frames.

use std::net::{SocketAddrV4, SocketAddrV6};

/// Bytes of Ethernet, IPv4 and UDP headers without options.
pub const FRAME_HEADER_BYTES: usize = 42;
/// Bytes of Ethernet, IPv6 and UDP headers without extensions.
const FRAME_HEADER_V6_BYTES: usize = 62;

/// Ethernet, IPv4 and UDP headers of a datagram with `payload_bytes` of payload; `None` if that exceeds the largest
/// datagram. Addresses, ports and lengths are real; the rest is synthetic: MAC addresses (by RFC 1112 for groups, else
/// locally administered), time to live 16, "don't fragment", and no UDP checksum (RFC 768 allows 0).
#[must_use]
pub fn frame_header(src: SocketAddrV4, dst: SocketAddrV4, payload_bytes: usize) -> Option<[u8; FRAME_HEADER_BYTES]> {
    let udp_bytes = u16::try_from(payload_bytes.checked_add(UDP_HEADER_BYTES)?).ok()?;
    let ip_bytes = udp_bytes.checked_add(IP_HEADER_BYTES)?;
    let [length_high, length_low] = ip_bytes.to_be_bytes();
    let mut ip = [0x45, 0, length_high, length_low, 0, 0, 0x40, 0, 16, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[12..16].copy_from_slice(&src.ip().octets());
    ip[16..20].copy_from_slice(&dst.ip().octets());
    let checksum = ip_checksum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());

    let mut header = [0; FRAME_HEADER_BYTES];
    header[..6].copy_from_slice(&ethernet_destination(dst));
    header[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 0x08, 0x00]);
    header[14..34].copy_from_slice(&ip);
    header[34..36].copy_from_slice(&src.port().to_be_bytes());
    header[36..38].copy_from_slice(&dst.port().to_be_bytes());
    header[38..40].copy_from_slice(&udp_bytes.to_be_bytes());
    Some(header)
}

/// The same with an IPv6 header (RFC 8200). IPv6 requires a UDP checksum, so the payload is summed. `None` for a
/// jumbogram.
#[must_use]
pub(super) fn frame_header_v6(
    src: SocketAddrV6,
    dst: SocketAddrV6,
    payload: &[u8],
) -> Option<[u8; FRAME_HEADER_V6_BYTES]> {
    let udp_bytes = u16::try_from(payload.len().checked_add(UDP_HEADER_BYTES)?).ok()?;
    let mut header = [0; FRAME_HEADER_V6_BYTES];
    header[..6].copy_from_slice(&ethernet_destination_v6(dst));
    header[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 0x86, 0xdd]);
    header[14] = 0x60;
    header[18..20].copy_from_slice(&udp_bytes.to_be_bytes());
    header[20..22].copy_from_slice(&[PROTOCOL_UDP, 16]);
    header[22..38].copy_from_slice(&src.ip().octets());
    header[38..54].copy_from_slice(&dst.ip().octets());
    header[54..56].copy_from_slice(&src.port().to_be_bytes());
    header[56..58].copy_from_slice(&dst.port().to_be_bytes());
    header[58..60].copy_from_slice(&udp_bytes.to_be_bytes());
    // Over the addresses, the UDP length, the protocol, then header and payload.
    let fixed = u64::from(udp_bytes) + u64::from(PROTOCOL_UDP);
    let checksum = match folded_complement(fixed + word_sum(&header[22..62]) + word_sum(payload)) {
        // 0 would mean "no checksum".
        0 => u16::MAX,
        checksum => checksum,
    };
    header[60..].copy_from_slice(&checksum.to_be_bytes());
    Some(header)
}

/// RFC 2464 for groups; otherwise any locally administered address.
fn ethernet_destination_v6(dst: SocketAddrV6) -> [u8; 6] {
    let [.., a, b, c, d] = dst.ip().octets();
    if dst.ip().is_multicast() { [0x33, 0x33, a, b, c, d] } else { [2, 0, a, b, c, d] }
}

/// RFC 1112 for groups; otherwise any locally administered address.
fn ethernet_destination(dst: SocketAddrV4) -> [u8; 6] {
    let [_, b, c, d] = dst.ip().octets();
    if dst.ip().is_multicast() { [0x01, 0x00, 0x5e, b & 0x7f, c, d] } else { [2, 0, 0, b, c, d] }
}

/// RFC 1071 over a header whose checksum field is 0.
fn ip_checksum(header: &[u8; 20]) -> u16 {
    folded_complement(word_sum(header))
}

/// Sum of the 16-bit words; an odd last byte is the upper half of a word. The sum of a datagram cannot overflow.
fn word_sum(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
    pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum::<u64>() + last
}

fn folded_complement(mut sum: u64) -> u16 {
    while sum > u64::from(u16::MAX) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

const IP_HEADER_BYTES: u16 = 20;
const UDP_HEADER_BYTES: usize = 8;
const PROTOCOL_UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_datagram_has_a_header_and_a_larger_one_has_none() {
        let address = SocketAddrV4::new([239, 1, 2, 3].into(), 5);
        assert!(frame_header(address, address, 65_507).is_some());
        for impossible in [65_508, 65_528, usize::MAX] {
            assert!(frame_header(address, address, impossible).is_none(), "{impossible}");
        }
    }

    #[test]
    fn the_ipv4_header_checksum_verifies_to_zero() {
        let header = frame_header("10.1.2.3:4".parse().unwrap(), "239.255.7.9:26477".parse().unwrap(), 99).unwrap();
        assert_eq!(ip_checksum(header[14..34].first_chunk().unwrap()), 0);
        assert_eq!(header[..6], [1, 0, 0x5e, 0x7f, 7, 9]);
    }

    #[test]
    fn the_ipv6_udp_checksum_verifies_to_zero() {
        let (src, dst) = ("[2001:db8::7]:4".parse().unwrap(), "[ff3e::1:2:3]:26477".parse().unwrap());
        for payload in [&b""[..], b"even", b"uneven!"] {
            let header = frame_header_v6(src, dst, payload).unwrap();
            let udp_bytes = u64::from(u16::from_be_bytes([header[58], header[59]]));
            assert_eq!(udp_bytes, 8 + payload.len() as u64);
            let sum = udp_bytes + u64::from(PROTOCOL_UDP) + word_sum(&header[22..62]) + word_sum(payload);
            assert_eq!(folded_complement(sum), 0, "{payload:?}");
            assert_eq!(header[..6], [0x33, 0x33, 0, 2, 0, 3]);
        }
        assert!(frame_header_v6(src, dst, &[0; 65_527]).is_some() && frame_header_v6(src, dst, &[0; 65_528]).is_none());
    }
}
