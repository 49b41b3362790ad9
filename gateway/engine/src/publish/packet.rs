//! Packet header of a log entry.

use mdgw_feeds::{
    identity::{ChannelId, Epoch, GroupId},
    published::packet::{PACKET_MAGIC, PACKET_VERSION, PacketFlags, PacketHeader},
    time::UnixNs,
};
use mdgw_publog::Entry;
use mdgw_sys::batch::HEADER_BYTES;
use zerocopy::transmute;

/// The header of the packet whose body is `entry`. `flags` are added to the flags that the entry was committed with. In
/// a retransmission a heartbeat ends an answer, so an entry without frames is not flagged as a retransmission.
#[inline]
pub fn packet_header(
    group: GroupId,
    channel: ChannelId,
    epoch: Epoch,
    send_time: UnixNs,
    entry: &Entry<'_>,
    flags: PacketFlags,
) -> [u8; HEADER_BYTES] {
    let [committed_flags, _] = entry.flags.to_le_bytes();
    let all = flags.0 | committed_flags;
    let is_retransmission = flags.contains(PacketFlags::RETRANSMISSION) && !flags.contains(PacketFlags::HEARTBEAT);
    transmute!(PacketHeader {
        magic: PACKET_MAGIC.into(),
        version: PACKET_VERSION,
        flags: if is_retransmission { all & !PacketFlags::HEARTBEAT.0 } else { all },
        group: group.0.into(),
        channel: channel.0.into(),
        frame_count: entry.frame_count.into(),
        // An entry is as large as a packet's payload can be, which is less than 64 KiB.
        payload_bytes: u16::try_from(entry.payload.len()).unwrap_or(u16::MAX).into(),
        reserved: 0.into(),
        epoch: epoch.0.into(),
        session: entry.session,
        first: entry.first.into(),
        next: entry.next.into(),
        send_time_ns: send_time.0.into(),
    })
}
