//! A gateway's log and retransmission service, as the product writes and serves them, on a clock of its own.

use std::{net::Ipv4Addr, path::Path, sync::Arc};

use mdgw_engine::publish::{LogSink, packet_header};
use mdgw_feeds::{
    book::BookLimits,
    channel::ChannelState,
    frame::{FrameFlags, FrameKind, FrameMeta, FrameSink as _, GapBody, StateBody},
    identity::{ChannelId, Epoch, Feed, GroupId, Sequence, Session},
    published::{
        packet::{PACKET_HEADER_BYTES, PacketFlags, count_frames},
        request::{RequestKind, ServiceRequest},
        snapshot::ChunkName,
        tag::{TagKey, TagUse},
    },
    time::{MonoNs, TradingDate, UnixNs},
};
use mdgw_pair::standby::KnownEpochs;
use mdgw_publog::{Entry, LogOptions, OpenedLog, Position, Reader, Retention, SegmentMaintenance};
use mdgw_runtime::{
    config::resolved::RetransmissionLimits,
    retransmit::{Responder, ServedChannel, snapshots::SnapshotTaker},
};
use mdgw_sys::fence::Fence;
use mdgw_tests::pair::{LogEntry, read_entries};
use zerocopy::IntoBytes as _;

pub(crate) const GROUP: GroupId = GroupId(1);
pub(crate) const CHANNEL: ChannelId = ChannelId(2);
/// The time at which every virtual clock begins, ns since 1970 UTC.
pub(crate) const START: UnixNs = UnixNs(1_704_205_800_000_000_000);

/// A session of 2 January 2024; from [`NEXT_DAY`] on of the day after.
pub(crate) fn session(number: u32) -> Session {
    let day = if number < NEXT_DAY { 20_240_102 } else { 20_240_103 };
    Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(day).unwrap(), restart: number % NEXT_DAY }
}

/// Number of the first session of the next day.
pub(crate) const NEXT_DAY: u32 = 100;

/// A gateway that has written a log.
pub(crate) struct VirtualGateway {
    directory: tempfile::TempDir,
    log: LogSink,
    maintenance: SegmentMaintenance,
    responder: Option<Responder>,
    /// Number before that of its first image, if it serves snapshots.
    images_behind: Option<u32>,
    taker: Option<SnapshotTaker>,
    limits: RetransmissionLimits,
    body_bytes_max: usize,
    channel: ChannelId,
    epoch: Epoch,
    now: UnixNs,
}

impl VirtualGateway {
    /// A gateway with an empty log, whose packets have at most that many bytes of frames.
    pub(crate) fn new(body_bytes_max: usize) -> Self {
        Self::of_channel(CHANNEL, body_bytes_max, 256 << 10)
    }

    /// The same for another channel, with segments of that size; eight of them are kept.
    pub(crate) fn of_channel(channel: ChannelId, body_bytes_max: usize, segment_bytes: usize) -> Self {
        Self::in_directory(tempfile::tempdir().unwrap(), channel, body_bytes_max, segment_bytes)
    }

    /// The same with its log in that directory. In memory, segments are used again.
    pub(crate) fn in_directory(
        directory: tempfile::TempDir,
        channel: ChannelId,
        body_bytes_max: usize,
        segment_bytes: usize,
    ) -> Self {
        let kept = 8 * segment_bytes as u64;
        let options = LogOptions {
            segment_bytes,
            private_bytes: segment_bytes,
            payload_bytes_max: body_bytes_max,
            retention: Retention { bytes_max: kept, age_ns_max: None, protected_bytes_max: kept },
            ..LogOptions::new(directory.path(), channel.0)
        };
        let OpenedLog { writer, maintenance, .. } = mdgw_publog::open(options, START.0).unwrap();
        let limits = RetransmissionLimits {
            allowed: vec!["10.0.0.0/8".parse().unwrap()],
            requests_per_second: 1_000_000,
            bytes_per_second: 1 << 40,
            snapshot_bytes_per_second: 1 << 40,
            packets_per_request_max: 4,
            requesters_max: 8,
        };
        let (log, epoch) = (LogSink::new(writer), Epoch::new(7, 1));
        Self {
            directory,
            log,
            maintenance,
            responder: None,
            images_behind: None,
            taker: None,
            limits,
            body_bytes_max,
            channel,
            epoch,
            now: START,
        }
    }

    /// The epoch that its service names.
    pub(crate) fn set_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.responder = None;
    }

    /// Its service takes snapshots, numbered from `behind` + 1 on.
    pub(crate) fn serve_snapshots(&mut self, behind: u32) {
        self.images_behind = Some(behind);
        self.responder = None;
    }

    pub(crate) fn log(&mut self) -> &mut LogSink {
        self.maintenance.run_once(self.now.0);
        &mut self.log
    }

    pub(crate) fn begin_session(&mut self, number: u32) {
        self.begin_session_at(number, 1);
    }

    /// A session of which the gateway has received nothing before that sequence.
    pub(crate) fn begin_session_at(&mut self, number: u32, sequence: u64) {
        self.log().session(session(number), Sequence(sequence));
    }

    /// A message with that many records of that size and type. What was written before is in the same packet if it fits.
    pub(crate) fn message(&mut self, sequence: u64, records: (u16, usize, u8), flags: FrameFlags) {
        let (count, bytes, rtype) = records;
        let body: Vec<u8> = (0..count).flat_map(|index| record(sequence, index, bytes, rtype)).collect();
        let meta = FrameMeta { flags, ..FrameMeta::message(Sequence(sequence), self.ts_recv(sequence), -5) };
        self.log().frame(&meta, count, &body);
    }

    /// A message that adds an order: its id is the sequence.
    pub(crate) fn order(&mut self, sequence: u64) {
        let mut record = record(sequence, 0, 56, MBO);
        record[16..24].copy_from_slice(&sequence.to_le_bytes());
        record[24..32].copy_from_slice(&(sequence * 1_000_000_000).to_le_bytes());
        record[32..36].copy_from_slice(&100_u32.to_le_bytes());
        (record[36], record[38], record[39]) = (dbn::flags::LAST, b'A', b'B');
        let meta = FrameMeta::message(Sequence(sequence), self.ts_recv(sequence), -5);
        self.log().frame(&meta, 1, &record);
    }

    /// Input sequences before `next` were handled.
    pub(crate) fn cover(&mut self, next: u64) {
        self.log().covered_through(Sequence(next));
    }

    pub(crate) fn gap(&mut self, first: u64, next: u64) {
        let body = GapBody { first: first.into(), next: next.into() };
        let meta = FrameMeta::control(FrameKind::Gap, Sequence(first), Sequence(next));
        self.log().frame(&meta, 0, body.as_bytes());
    }

    pub(crate) fn state(&mut self, next: u64, state: ChannelState) {
        let body = StateBody::of(state);
        self.log().frame(&FrameMeta::state(Sequence(next)), 0, body.as_bytes());
    }

    /// Ends the packet.
    pub(crate) fn flush(&mut self) {
        self.log.flush();
    }

    /// Everything handled is in the log, as before a heartbeat.
    pub(crate) fn commit_covered(&mut self) {
        self.log().commit_covered();
    }

    pub(crate) fn end_session(&mut self) {
        self.log().end_of_session();
    }

    /// Directory of the log's segments.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// All entries of the log.
    pub(crate) fn entries(&self) -> Vec<LogEntry> {
        read_entries(Reader::open(self.directory.path(), self.channel.0).unwrap())
    }

    /// The packet of an entry, as a leader publishes it.
    pub(crate) fn packet(&self, entry: &LogEntry, epoch: Epoch, flags: PacketFlags, now: UnixNs) -> Vec<u8> {
        let entry = Entry {
            position: Position::default(),
            end: Position::default(),
            number: 0,
            session: entry.session.to_bytes(),
            first: entry.first.0,
            next: entry.next.0,
            ts_commit: 0,
            frame_count: count_frames(&entry.payload).unwrap(),
            flags: entry.flags.0.into(),
            payload: &entry.payload,
        };
        let header = packet_header(GROUP, self.channel, epoch, now, &entry, flags);
        [&header[..], entry.payload].concat()
    }

    /// What the service answers to a request at that time.
    pub(crate) fn answer(&mut self, request: &[u8], now: UnixNs, key: Option<&TagKey>) -> Vec<Vec<u8>> {
        let served = ServedChannel {
            group: GROUP,
            channel: self.channel,
            name: "one".to_owned(),
            log_directory: self.directory.path().to_owned(),
            frame_bytes_max: self.body_bytes_max,
            tag_key: None,
            fence: Arc::new(Fence::standalone(self.epoch)),
            epochs: Arc::new(KnownEpochs::new(self.epoch, 1)),
            books: BookLimits::default(),
            initial: None,
        };
        let limits = &self.limits;
        if self.responder.is_none() {
            self.taker = self.images_behind.map(|behind| {
                SnapshotTaker::behind_image(behind, std::slice::from_ref(&served), &Arc::default()).unwrap()
            });
        }
        let taker = self.taker.as_mut();
        let responder = self.responder.get_or_insert_with(|| {
            let mut responder = Responder::new(limits.clone(), vec![served]).unwrap();
            if let Some(taker) = &taker {
                responder.serve_snapshots(Arc::clone(taker.store()));
            }
            responder
        });
        while responder.follow() {}
        if let Some(taker) = taker {
            while taker.turn(MonoNs(now.0)) {}
        }
        let nonce = ServiceRequest::parse(request).map(|request| request.nonce);
        let mut packets = Vec::new();
        responder.answer(request, Ipv4Addr::new(10, 0, 0, 11), MonoNs(now.0), &mut |parts| {
            let mut packet = parts.concat();
            // The service reads the real clock.
            packet[56..64].copy_from_slice(&now.0.to_le_bytes());
            if let (Some(key), Ok(nonce)) = (key, nonce) {
                packet = tagged(&packet, key, TagUse::Answer { nonce });
            }
            packets.push(packet);
            Ok(parts.iter().map(|part| part.len()).sum())
        });
        packets
    }

    /// The chunks of an image of the present state, as a leader of the snapshot group sends them; the image has number `behind` + 1.
    pub(crate) fn group_chunks(&mut self, behind: u32, epoch: Epoch) -> Vec<Vec<u8>> {
        self.set_epoch(epoch);
        self.serve_snapshots(behind);
        let mut chunks: Vec<Vec<u8>> = Vec::new();
        // The first answer says that the image is being taken. The others have four packets at most.
        for _ in 0..100 {
            let name = |chunk| ChunkName { image: if chunks.is_empty() { 0 } else { behind + 1 }, chunk }.to_sequence();
            let first = u32::try_from(chunks.len()).unwrap();
            let request = ServiceRequest {
                kind: RequestKind::Snapshot,
                group: GROUP,
                channel: self.channel,
                session: None,
                first: name(first),
                next: name(first + 4),
                nonce: 0,
            };
            let answer = self.answer(request.to_packet().as_bytes(), START, None);
            let flags = PacketFlags::RETRANSMISSION.with(PacketFlags::SNAPSHOT);
            let count = chunks.len();
            chunks.extend(answer.into_iter().filter(|packet| packet[5] == flags.0));
            if count > 0 && chunks.len() == count {
                return chunks;
            }
        }
        panic!("no image")
    }

    fn ts_recv(&self, sequence: u64) -> UnixNs {
        UnixNs(self.now.0 + sequence * 1_000)
    }
}

/// The packet with a tag.
pub(crate) fn tagged(packet: &[u8], key: &TagKey, tag_use: TagUse) -> Vec<u8> {
    let (header, frames) = packet.split_at(PACKET_HEADER_BYTES);
    let mut header: [u8; PACKET_HEADER_BYTES] = header.try_into().unwrap();
    header[5] |= PacketFlags::TAGGED.0;
    [&header[..], frames, &key.tag(tag_use, &header, frames)].concat()
}

/// A DBN record of that size, in which only its header, its place and an undefined receive time are filled in.
pub(crate) fn record(sequence: u64, index: u16, bytes: usize, rtype: u8) -> Vec<u8> {
    let mut record = vec![0; bytes];
    record[0] = u8::try_from(bytes / 4).unwrap();
    record[1] = rtype;
    record[2] = 2;
    record[4..8].copy_from_slice(&7_u32.to_le_bytes());
    record[8..16].copy_from_slice(&START.0.to_le_bytes());
    record[16..20].copy_from_slice(&u32::try_from(sequence).unwrap().to_le_bytes());
    record[20..22].copy_from_slice(&index.to_le_bytes());
    record
}

/// Record types of DBN.
pub(crate) const MBO: u8 = dbn::enums::rtype::MBO;
pub(crate) const DEFINITION: u8 = dbn::enums::rtype::INSTRUMENT_DEF;
