//! A subscriber with the product's own receiver, and the check that it delivers no record of an old epoch.

use mdgw_election::identity::NodeId;
use mdgw_feeds::{
    frame::{FrameFlags, FrameHeader, FrameKind},
    identity::{ChannelId, Epoch, Feed, GroupId, Line, Sequence, Session},
    published::{
        packet::{PacketFlags, PacketMeta, write_packet},
        receiver::{Item, PublishedDatagram, Receiver, ReceiverConfig},
    },
    time::{MonoNs, TradingDate, UnixNs},
};
use zerocopy::{
    IntoBytes as _,
    little_endian::{I32, U16, U32, U64},
};

/// Receives packets in order of arrival. Each packet carries the next sequence, since the receiver would drop a repeated
/// sequence whatever its epoch.
pub(super) struct EpochReceiver {
    receiver: Receiver,
    checks_epochs: bool,
    sequence: u64,
    highest_epoch: Epoch,
    stale: u64,
}

impl EpochReceiver {
    pub(super) fn new(checks_epochs: bool) -> Self {
        let receiver = Receiver::new(ReceiverConfig {
            group: GROUP,
            channels: vec![CHANNEL],
            packet_bytes_max: BYTES_MAX,
            window_packets: 64,
            message_bytes_max: RECORD_BYTES,
            ..ReceiverConfig::default()
        });
        Self { receiver, checks_epochs, sequence: 1, highest_epoch: Epoch::default(), stale: 0 }
    }

    /// Number of packets of an old epoch.
    pub(super) fn stale(&self) -> u64 {
        self.stale
    }

    /// The highest epoch under which a record was delivered.
    pub(super) fn highest_epoch(&self) -> Epoch {
        self.highest_epoch
    }

    /// A packet sent under `epoch` arrives. If the receiver delivers its record after a record of a higher epoch, returns
    /// that higher epoch.
    pub(super) fn receive(&mut self, now_ns: u64, epoch: Epoch) -> Option<Epoch> {
        self.stale += u64::from(epoch < self.highest_epoch);
        let packet_epoch = if self.checks_epochs { epoch } else { Epoch::new(1, NodeId(1).0) };
        let (bytes, length) = packet(packet_epoch, self.sequence);
        let datagram =
            PublishedDatagram { line: Line(0), service: 0, bytes: &bytes[..length], ts_recv: UnixNs(now_ns) };
        let mut is_delivered = false;
        let mut deliver = |output: mdgw_feeds::published::receiver::Output<'_>| {
            is_delivered |= matches!(output.item, Item::Message { .. });
        };
        // The receiver counts what it refuses.
        let _ = self.receiver.accept(datagram, MonoNs(now_ns), &mut deliver);
        if !is_delivered {
            return None;
        }
        self.sequence += 1;
        let before = self.highest_epoch;
        self.highest_epoch = before.max(epoch);
        (epoch < before).then_some(before)
    }
}

fn packet(epoch: Epoch, sequence: u64) -> ([u8; BYTES_MAX], usize) {
    let date = TradingDate::from_yyyymmdd(20_240_102).expect("a day");
    let meta = PacketMeta {
        flags: PacketFlags::default(),
        group: GROUP,
        channel: CHANNEL,
        epoch,
        session: Session { feed: Feed::NasdaqItch, date, restart: 0 },
        first: Sequence(sequence),
        next: Sequence(sequence + 1),
        send_time_ns: 0,
    };
    let header = FrameHeader {
        sequence: U64::new(sequence),
        ts_recv: U64::new(1),
        ts_in_delta_ns: I32::new(0),
        body_bytes: U16::new(u16::from(RECORD_WORDS) * 4),
        record_count: U16::new(1),
        kind: FrameKind::Message as u8,
        flags: FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART).0,
        part: U16::new(0),
        reserved: U32::ZERO,
    };
    let mut record = [0; RECORD_BYTES];
    record[0] = RECORD_WORDS;
    let mut bytes = [0; BYTES_MAX];
    let length = write_packet(&meta, &[header.as_bytes(), &record].concat(), &mut bytes).expect("it fits");
    (bytes, length)
}

const GROUP: GroupId = GroupId(1);
const CHANNEL: ChannelId = ChannelId(1);
/// A record gives its length in units of four bytes.
const RECORD_WORDS: u8 = 14;
const RECORD_BYTES: usize = 4 * RECORD_WORDS as usize;
const BYTES_MAX: usize = 256;
