//! Builders of captures for tests, in every container, byte order and link layer.
#![allow(clippy::cast_possible_truncation, reason = "a 64-bit time is stored as two words")]

/// Byte order of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    pub(super) const BOTH: [Self; 2] = [Self::Little, Self::Big];

    fn u16(self, value: u16) -> [u8; 2] {
        if self == Self::Little { value.to_le_bytes() } else { value.to_be_bytes() }
    }

    fn u32(self, value: u32) -> [u8; 4] {
        if self == Self::Little { value.to_le_bytes() } else { value.to_be_bytes() }
    }

    fn i64(self, value: i64) -> [u8; 8] {
        if self == Self::Little { value.to_le_bytes() } else { value.to_be_bytes() }
    }
}

/// A UDP datagram from 10.0.0.1:1000 to 239.1.2.3:2000 in IPv4.
pub(super) fn ipv4(payload: &[u8]) -> Vec<u8> {
    let udp_bytes = u16::try_from(payload.len() + 8).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend((udp_bytes + 20).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 16, 17, 0, 0, 10, 0, 0, 1, 239, 1, 2, 3]);
    packet.extend(udp(payload));
    packet
}

/// The same datagram from ::1 to ff05::1 in IPv6.
pub(super) fn ipv6(payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(payload.len() + 8).unwrap().to_be_bytes());
    packet.extend([17, 16]);
    packet.extend(std::net::Ipv6Addr::LOCALHOST.octets());
    packet.extend("ff05::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    packet.extend(udp(payload));
    packet
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    for field in [1000, 2000, u16::try_from(payload.len() + 8).unwrap(), 0] {
        datagram.extend(field.to_be_bytes());
    }
    datagram.extend(payload);
    datagram
}

/// Adds an Ethernet header with these VLAN tags (type and identifier).
pub(super) fn ethernet(tags: &[(u16, u16)], ether_type: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![1, 0, 0x5e, 1, 2, 3, 2, 0, 0, 0, 0, 1];
    for (kind, id) in tags {
        frame.extend(kind.to_be_bytes());
        // Priority bits above the identifier.
        frame.extend((id | 0x6000).to_be_bytes());
    }
    frame.extend(ether_type.to_be_bytes());
    frame.extend(packet);
    frame
}

/// Adds a Linux cooked header, version 1.
pub(super) fn cooked(packet: &[u8]) -> Vec<u8> {
    [&[0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0x08, 0x00], packet].concat()
}

/// Adds a Linux cooked header, version 2.
pub(super) fn cooked2(packet: &[u8]) -> Vec<u8> {
    [&[0x08, 0x00, 0, 0, 0, 0, 0, 3, 0, 1, 1, 6, 2, 0, 0, 0, 0, 1, 0, 0], packet].concat()
}

/// A pcap file of these frames; `fraction` is the sub-second field as stored in the file.
pub(super) fn pcap(order: Order, magic: u32, link: u32, frames: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
    let mut file = order.u32(magic).to_vec();
    file.extend(order.u16(2));
    file.extend(order.u16(4));
    for word in [0, 0, 65_535, link] {
        file.extend(order.u32(word));
    }
    for (seconds, fraction, frame) in frames {
        let length = u32::try_from(frame.len()).unwrap();
        for word in [*seconds, *fraction, length, length] {
            file.extend(order.u32(word));
        }
        if magic == PCAP_MODIFIED {
            file.extend([0; 8]);
        }
        file.extend(frame);
    }
    file
}

pub(super) const PCAP_MICROSECONDS: u32 = 0xa1b2_c3d4;
pub(super) const PCAP_NANOSECONDS: u32 = 0xa1b2_3c4d;
pub(super) const PCAP_MODIFIED: u32 = 0xa1b2_cd34;

/// A pcapng block.
pub(super) fn block(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let length = u32::try_from(padded + 12).unwrap();
    let mut block = order.u32(kind).to_vec();
    block.extend(order.u32(length));
    block.extend(body);
    block.resize(8 + padded, 0);
    block.extend(order.u32(length));
    block
}

/// Section header.
pub(super) fn section(order: Order) -> Vec<u8> {
    let mut body = order.u32(0x1a2b_3c4d).to_vec();
    body.extend(order.u16(1));
    body.extend(order.u16(0));
    body.extend(order.i64(-1));
    block(order, 0x0a0d_0d0a, &body)
}

/// Interface description with its clock's resolution and offset, if given.
pub(super) fn interface(order: Order, link: u16, resolution: Option<u8>, offset_s: Option<i64>) -> Vec<u8> {
    let mut body = order.u16(link).to_vec();
    body.extend(order.u16(0));
    body.extend(order.u32(65_535));
    if let Some(resolution) = resolution {
        body.extend(order.u16(9));
        body.extend(order.u16(1));
        body.extend([resolution, 0, 0, 0]);
    }
    if let Some(offset_s) = offset_s {
        body.extend(order.u16(14));
        body.extend(order.u16(8));
        body.extend(order.i64(offset_s));
    }
    body.extend([0; 4]);
    block(order, 1, &body)
}

/// Enhanced packet.
pub(super) fn packet(order: Order, interface: u32, ticks: u64, frame: &[u8]) -> Vec<u8> {
    let length = u32::try_from(frame.len()).unwrap();
    let mut body = Vec::new();
    for word in [interface, (ticks >> 32) as u32, ticks as u32, length, length] {
        body.extend(order.u32(word));
    }
    body.extend(frame);
    body.resize(body.len().next_multiple_of(4), 0);
    // A comment: an option that readers must tolerate.
    body.extend(order.u16(1));
    body.extend(order.u16(2));
    body.extend(*b"hi\0\0");
    body.extend([0; 4]);
    block(order, 6, &body)
}

/// Packet without interface or time.
pub(super) fn simple_packet(order: Order, frame: &[u8]) -> Vec<u8> {
    let mut body = order.u32(u32::try_from(frame.len()).unwrap()).to_vec();
    body.extend(frame);
    block(order, 3, &body)
}

/// A day-file message: a system event at that time since midnight.
pub(super) fn day_message(since_midnight_ns: u64) -> Vec<u8> {
    let mut message = vec![0, 12, b'S', 0, 0, 0, 0];
    message.extend(&since_midnight_ns.to_be_bytes()[2..]);
    message.push(b'O');
    message
}
