//! Builder of published packets for tests: two nodes, with every kind of violation.

use std::net::SocketAddr;

use mdgw_feeds::{
    frame::{FRAME_HEADER_BYTES, FrameFlags, FrameHeader, FrameKind, GapBody},
    identity::{ChannelId, Epoch, Feed, GroupId, Sequence, Session},
    published::packet::{PACKET_BYTES_MAX, PacketFlags, PacketMeta, write_packet},
    time::TradingDate,
};
use zerocopy::{
    IntoBytes as _,
    little_endian::{I32, U16, U32, U64},
};

use super::{CapturedPacket, Location, Verdict, Verifier, VerifyOptions};

/// A capture under construction.
#[derive(Debug, Default)]
pub(super) struct CaptureBuilder {
    packets: Vec<(usize, u64, SocketAddr, Vec<u8>)>,
    now_ns: u64,
}

/// A packet under construction.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketFixture {
    pub(super) file: usize,
    pub(super) epoch: Epoch,
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) flags: PacketFlags,
    pub(super) restart: u32,
    /// Value in its records.
    pub(super) record_byte: u8,
    /// Part index of message `first`, and whether it is the last.
    pub(super) part: Option<(u16, bool)>,
    pub(super) is_gap: bool,
    /// Suspect book, without records.
    pub(super) is_suspect_mark: bool,
    pub(super) frame_flags: FrameFlags,
    pub(super) dst: &'static str,
    pub(super) send_time_ns: Option<u64>,
}

/// The first output line.
pub(super) const LINE: &str = "239.1.1.1:31000";

impl PacketFixture {
    /// One message, published live.
    pub(super) fn message(count: u64, node: u8, sequence: u64) -> Self {
        Self {
            file: 0,
            epoch: Epoch::new(count, node),
            first: sequence,
            next: sequence + 1,
            flags: PacketFlags::default(),
            restart: 0,
            record_byte: u8::try_from(sequence % 251).unwrap(),
            part: None,
            is_gap: false,
            is_suspect_mark: false,
            frame_flags: FrameFlags::default(),
            dst: LINE,
            send_time_ns: None,
        }
    }

    /// A packet without frames.
    pub(super) fn heartbeat(count: u64, node: u8, next: u64) -> Self {
        Self { first: next, next, flags: PacketFlags::HEARTBEAT, ..Self::message(count, node, next) }
    }

    fn bytes(&self, now_ns: u64) -> Vec<u8> {
        let record = [&[4_u8, 160][..], &[self.record_byte; 14]].concat();
        let gap = GapBody { first: U64::new(self.first), next: U64::new(self.next) };
        let (kind, content, record_count) = match (self.is_gap, self.is_suspect_mark) {
            (true, _) => (FrameKind::Gap, gap.as_bytes(), 0),
            (false, true) => (FrameKind::Message, [].as_slice(), 0),
            (false, false) => (FrameKind::Message, record.as_slice(), 1),
        };
        let whole = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
        let part_flags = match self.part {
            None => whole,
            Some((0, _)) => FrameFlags::FIRST_PART,
            Some((_, true)) => FrameFlags::LAST_PART,
            Some(_) => FrameFlags::default(),
        };
        let header = FrameHeader {
            sequence: U64::new(self.first),
            ts_recv: U64::new(now_ns),
            ts_in_delta_ns: I32::new(0),
            body_bytes: U16::new(u16::try_from(content.len()).unwrap()),
            record_count: U16::new(record_count),
            kind: kind as u8,
            flags: part_flags
                .with(self.frame_flags)
                .with(if self.is_suspect_mark { FrameFlags::SUSPECT } else { FrameFlags::default() })
                .0,
            part: U16::new(self.part.map_or(0, |(part, _)| part)),
            reserved: U32::new(0),
        };
        let mut body = Vec::with_capacity(FRAME_HEADER_BYTES + content.len());
        if !self.flags.contains(PacketFlags::HEARTBEAT) {
            body.extend_from_slice(header.as_bytes());
            body.extend_from_slice(content);
        }
        let date = TradingDate::from_yyyymmdd(20_190_130).unwrap();
        let meta = PacketMeta {
            flags: self.flags,
            group: GroupId(1),
            channel: ChannelId(1),
            epoch: self.epoch,
            session: Session { feed: Feed::NasdaqItch, date, restart: self.restart },
            first: Sequence(self.first),
            next: Sequence(if matches!(self.part, Some((_, false))) { self.first } else { self.next }),
            send_time_ns: self.send_time_ns.unwrap_or(now_ns),
        };
        let mut datagram = vec![0; PACKET_BYTES_MAX];
        let length = write_packet(&meta, &body, &mut datagram).unwrap();
        datagram.truncate(length);
        datagram
    }
}

impl CaptureBuilder {
    /// Adds a packet, a millisecond after the last one.
    pub(super) fn publish(&mut self, packet: PacketFixture) -> &mut Self {
        self.now_ns += 1_000_000;
        self.packets.push((packet.file, self.now_ns, packet.dst.parse().unwrap(), packet.bytes(self.now_ns)));
        self
    }

    /// Repeats the last packet, as a capture on loopback records it.
    pub(super) fn duplicate_last(&mut self) -> &mut Self {
        let last = self.packets.last().unwrap().clone();
        self.packets.push(last);
        self
    }

    /// Messages `[first, next)` of an epoch.
    pub(super) fn publish_range(&mut self, count: u64, node: u8, first: u64, next: u64) -> &mut Self {
        (first..next).for_each(|sequence| {
            self.publish(PacketFixture::message(count, node, sequence));
        });
        self
    }

    /// A new leader: a heartbeat, then the catch-up from there.
    pub(super) fn take_over(&mut self, count: u64, node: u8, received_through: u64, ready: u64) -> &mut Self {
        self.publish(PacketFixture::heartbeat(count, node, received_through));
        for sequence in received_through..ready {
            self.publish(PacketFixture {
                flags: PacketFlags::RETRANSMISSION,
                ..PacketFixture::message(count, node, sequence)
            });
        }
        self
    }

    /// Silence of this duration.
    pub(super) fn wait(&mut self, ms: u64) -> &mut Self {
        self.now_ns += ms * 1_000_000;
        self
    }

    pub(super) fn verdict(&self, options: VerifyOptions) -> Verdict {
        let mut verifier = Verifier::new(options);
        for (number, (file, time_ns, dst, payload)) in (1..).zip(&self.packets) {
            let location = Location { file: *file, number };
            verifier.accept(&CapturedPacket { location, time_ns: *time_ns, dst: *dst, payload });
        }
        verifier.finish()
    }
}
