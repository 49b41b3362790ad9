//! What stood in front of a datagram, made up again: sockets hand over payloads, and tools want frames.

use std::net::SocketAddrV4;

/// Bytes of Ethernet, IPv4 and UDP headers without options.
pub const FRAME_HEADER_BYTES: usize = 42;

/// Ethernet, IPv4 and UDP headers of a datagram with `payload_bytes` of payload; `None` where no datagram can have so
/// many. True are addresses, ports and lengths; made up are the rest: MAC addresses (the group's by RFC 1112, else
/// locally administered ones), time to live 16, "don't fragment", no UDP checksum (RFC 768 allows 0 for that).
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

/// RFC 1112 for groups; any locally administered address else.
fn ethernet_destination(dst: SocketAddrV4) -> [u8; 6] {
    let [_, b, c, d] = dst.ip().octets();
    if dst.ip().is_multicast() { [0x01, 0x00, 0x5e, b & 0x7f, c, d] } else { [2, 0, 0, b, c, d] }
}

/// RFC 1071 over a header whose checksum field is 0.
fn ip_checksum(header: &[u8; 20]) -> u16 {
    let sum: u32 = header
        .chunks_exact(2)
        .map(|pair| pair.first_chunk().map_or(0, |bytes| u32::from(u16::from_be_bytes(*bytes))))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(u16::MAX)
}

const IP_HEADER_BYTES: u16 = 20;
const UDP_HEADER_BYTES: usize = 8;

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
    fn the_checksum_over_a_header_with_its_checksum_is_zero() {
        let header = frame_header("10.1.2.3:4".parse().unwrap(), "239.255.7.9:26477".parse().unwrap(), 99).unwrap();
        assert_eq!(ip_checksum(header[14..34].first_chunk().unwrap()), 0);
        assert_eq!(header[..6], [1, 0, 0x5e, 0x7f, 7, 9]);
    }
}
