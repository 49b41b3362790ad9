//! Receives what the gateway or the bare loop publishes, with the kernel's receive stamps.

use std::{
    net::SocketAddrV4,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result};
use mdgw_feeds::{
    frame::{FrameFlags, FrameKind, GapBody},
    identity::Line,
    published::packet::{Packet, PacketFlags, parse_packet},
    transport::{Transport as _, moldudp64::MoldUdp64},
};
use mdgw_sys::{
    batch::{ReceiveBatch, receive_round_robin},
    drops::SocketDrops,
    handle::{ChannelIndex, Handle},
    sockets::{Interface, ReceiveOptions, ReceiveSocket, open_receive},
};
use zerocopy::FromBytes as _;

use super::{
    input::{Input, channel_of_session},
    matching::ChannelMatching,
};

/// The receiving side of one run.
pub(super) struct Receiver<'a> {
    socket: ReceiveSocket,
    drops: SocketDrops,
    dropped: Arc<AtomicU64>,
    batch: ReceiveBatch,
    output: OutputFormat,
    channels: Vec<ChannelMatching<'a>>,
    pub(super) counts: ReceiveCounts,
}

/// What a received packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputFormat {
    /// A published packet of the gateway.
    Published,
    /// An input packet, sent again as it was.
    Resent,
}

/// Counts of one run, without its warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReceiveCounts {
    /// Packets with output; heartbeats are not counted.
    pub(super) packets: u64,
    /// Packets that are of neither format, or of no channel of this run.
    pub(super) foreign: u64,
    /// Packets without the kernel's stamp: they count as received, and have no latency.
    pub(super) unstamped: u64,
}

impl<'a> Receiver<'a> {
    pub(super) fn open(
        group: SocketAddrV4,
        interface: Interface,
        output: OutputFormat,
        input: &'a Input,
    ) -> Result<Self> {
        let mut options = ReceiveOptions::new(group, Some(interface));
        options.receive_buffer_bytes = RECEIVE_BUFFER_BYTES;
        let socket = open_receive(&options).context("open the receiver's socket")?;
        let mut drops = SocketDrops::default();
        let dropped = drops.add(Handle { channel: ChannelIndex(0), line: Line::A }, Arc::clone(socket.socket()));
        let channels = input.channels.iter().map(|channel| ChannelMatching::new(channel.boundaries())).collect();
        let batch = ReceiveBatch::new(ReceiveBatch::PACKETS_MAX, ReceiveBatch::DATAGRAM_BYTES_MAX);
        Ok(Self { socket, drops, dropped, batch, output, channels, counts: ReceiveCounts::default() })
    }

    /// Receives at most that many packets without waiting. Returns how many it received.
    pub(super) fn receive(&mut self, packets_max: usize) -> Result<usize> {
        self.batch.clear_with_limit(packets_max);
        receive_round_robin(&[(Line::A, self.socket.raw_fd())], &mut self.batch).context("receive output")?;
        for datagram in self.batch.iter() {
            // The kernel begins to stamp a moment after the first socket has asked for it.
            self.counts.unstamped += u64::from(datagram.ts_recv.is_none());
            let received_ns = datagram.ts_recv.map(|stamp| stamp.0);
            let has_output = match self.output {
                OutputFormat::Published => accept_published(&mut self.channels, datagram.bytes, received_ns),
                OutputFormat::Resent => accept_resent(&mut self.channels, datagram.bytes, received_ns),
            };
            match has_output {
                Some(has_output) => self.counts.packets += u64::from(has_output),
                None => self.counts.foreign += 1,
            }
        }
        Ok(self.batch.len())
    }

    /// The sum of the channels' positions; it grows as long as output arrives.
    pub(super) fn progress(&self) -> u64 {
        self.channels.iter().map(ChannelMatching::covered_through).sum()
    }

    pub(super) fn channels(&self) -> &[ChannelMatching<'a>] {
        &self.channels
    }

    /// Packets that the kernel dropped because this receiver was too slow.
    pub(super) fn dropped(&mut self) -> Result<u64> {
        self.drops.read(|_, _| {}).context("read the receiver's drop counter")?;
        Ok(self.dropped.load(Ordering::Relaxed))
    }
}

/// Whether the packet has output; `None` for a packet of another program.
fn accept_published(channels: &mut [ChannelMatching<'_>], bytes: &[u8], received_ns: Option<u64>) -> Option<bool> {
    let packet = parse_packet(bytes).ok()?;
    // Channel ids begin at 1.
    let channel = channels.get_mut(usize::from(packet.meta.channel.0).checked_sub(1)?)?;
    channel.cover(packet.meta.first.0, packet.meta.next.0);
    if packet.meta.flags.contains(PacketFlags::HEARTBEAT) || packet.meta.flags.contains(PacketFlags::SNAPSHOT) {
        return Some(false);
    }
    accept_frames(channel, &packet, received_ns);
    Some(true)
}

fn accept_frames(channel: &mut ChannelMatching<'_>, packet: &Packet<'_>, received_ns: Option<u64>) {
    for (header, body) in packet.frames() {
        if FrameFlags(header.flags).contains(FrameFlags::LATE_FILL) {
            continue;
        }
        match FrameKind::from_number(header.kind) {
            Some(FrameKind::Message) => {
                if let Some(received_ns) = received_ns {
                    channel.output(header.sequence.get(), received_ns);
                }
            }
            Some(FrameKind::Gap) => {
                if let Ok(gap) = GapBody::ref_from_bytes(body) {
                    channel.declare_gap(gap.first.get(), gap.next.get());
                }
            }
            _ => {}
        }
    }
}

fn accept_resent(channels: &mut [ChannelMatching<'_>], bytes: &[u8], received_ns: Option<u64>) -> Option<bool> {
    let channel = channels.get_mut(channel_of_session(bytes)?)?;
    let packet = MoldUdp64::parse_header(bytes).ok()?;
    // Every message is received as it was sent, so the first one stands for all of the packet.
    channel.cover(packet.first.0, packet.next().0);
    if let Some(received_ns) = received_ns {
        channel.output(packet.first.0, received_ns);
    }
    Some(true)
}

/// Room for what arrives while the receiver's core is busy sending.
const RECEIVE_BUFFER_BYTES: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use mdgw_feeds::{
        frame::{FRAME_HEADER_BYTES, FrameHeader},
        identity::{ChannelId, Epoch, Feed, GroupId, Sequence, Session},
        published::packet::{PacketMeta, write_packet},
        time::TradingDate,
    };
    use zerocopy::{FromZeros as _, IntoBytes as _};

    use super::{super::matching::PacketOutcome::*, *};

    const BOUNDARIES: [u64; 3] = [4, 5, 9];

    fn frame(kind: FrameKind, sequence: u64, body: &[u8]) -> Vec<u8> {
        let mut header = FrameHeader::new_zeroed();
        header.kind = kind as u8;
        header.flags = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART).0;
        header.sequence.set(sequence);
        header.body_bytes.set(u16::try_from(body.len()).unwrap());
        [header.as_bytes(), body].concat()
    }

    fn published(flags: PacketFlags, range: [u64; 2], frames: &[Vec<u8>]) -> Vec<u8> {
        let session =
            Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(20_190_130).unwrap(), restart: 0 };
        let meta = PacketMeta {
            flags,
            group: GroupId(1),
            channel: ChannelId(1),
            epoch: Epoch::new(1, 1),
            session,
            first: Sequence(range[0]),
            next: Sequence(range[1]),
            send_time_ns: 0,
        };
        let mut bytes = vec![0; 1_472];
        let length = write_packet(&meta, &frames.concat(), &mut bytes).unwrap();
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn frames_give_the_times_and_ranges_the_coverage() {
        let mut channels = [ChannelMatching::new(&BOUNDARIES)];
        let gap = [4_u64.to_le_bytes(), 5_u64.to_le_bytes()].concat();
        let frames = [frame(FrameKind::Message, 2, &[]), frame(FrameKind::Gap, 4, &gap)];
        let packet = published(PacketFlags::default(), [1, 5], &frames);
        assert!(packet.len() > 2 * FRAME_HEADER_BYTES);
        assert_eq!(accept_published(&mut channels, &packet, Some(70)), Some(true));
        let heartbeat = published(PacketFlags::HEARTBEAT, [5, 9], &[]);
        assert_eq!(accept_published(&mut channels, &heartbeat, Some(80)), Some(false));
        assert_eq!(channels[0].outcomes(), [Published(70), Lost, Silent]);
        assert_eq!(channels[0].lost_messages(9), 1);
    }

    #[test]
    fn a_packet_without_a_stamp_is_received_and_has_no_time() {
        let mut channels = [ChannelMatching::new(&BOUNDARIES)];
        let packet = published(PacketFlags::default(), [1, 5], &[frame(FrameKind::Message, 2, &[])]);
        assert_eq!(accept_published(&mut channels, &packet, None), Some(true));
        assert_eq!(channels[0].outcomes(), [Silent, Silent, Silent]);
        assert_eq!(channels[0].lost_messages(5), 0);
    }

    #[test]
    fn packets_of_other_programs_are_foreign() {
        let mut channels = [ChannelMatching::new(&BOUNDARIES)];
        assert_eq!(accept_published(&mut channels, b"something else", Some(70)), None);
        assert_eq!(accept_resent(&mut channels, b"MDGWSIM001 and so on", Some(70)), None);
        assert_eq!(channels[0].covered_through(), 1);
    }
}
