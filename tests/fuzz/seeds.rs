//! Valid inputs, made by the writers of the formats. Inputs that no writer makes are in `tests/data/fuzz`.

use std::{fs, io::Write as _, net::SocketAddrV4, path::Path};

use dbn::{ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, Mbp10Msg, StatMsg, StatusMsg, TradeMsg};
use flate2::{Compression, write::GzEncoder};
use mdgw_captures::{
    capture_file::{
        FRAME_HEADER_BYTES, PcapWriter, frame_header,
        pcapng_blocks::{InterfaceBlock, PacketBlock, Section, StatisticsBlock},
    },
    dbn_file::{DbnFileOptions, DbnFileWriter},
};
use mdgw_election::{identity::NodeId, quorum::vote_file::VoteFile};
use mdgw_feeds::{
    channel::KnownSession,
    identity::{ChannelId, Epoch, Feed, GroupId, InstrumentId, Sequence, Session},
    time::{TradingDate, UnixNs},
    transport::VenueSession,
};
use mdgw_publog::{LogOptions, OpenedLog};
use mdgw_runtime::{
    audit::{
        entry::{AuditEvent, PendingEntry},
        file::AuditFile,
    },
    state_file::{ResumePosition, StartEpoch, StateFile},
};
use mdgw_status::{
    disclosure::Disclosure,
    interval_log::{IntervalLogWriter, IntervalTag},
};
use mdgw_sys::handle::ChannelIndex;
use mdgw_telemetry::stages::{Stage, StageHistograms};

use super::feeds;

/// Captures of each protocol, in each supported container and compression, and day files.
pub(crate) fn captures() -> Vec<Vec<u8>> {
    let payloads = |wanted: &str| {
        let mut all = feeds::seeds::all().into_iter();
        all.find(|(name, _)| *name == wanted).map(|(_, seeds)| seeds).unwrap()
    };
    let (mold, iex, published) = (payloads("moldudp64"), payloads("iextp"), payloads("packet"));
    let plain = pcap(&mold);
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(&plain).unwrap();
    let gzip = packer.finish().unwrap();
    let zstd = zstd::encode_all(plain.as_slice(), 1).unwrap();
    let mut all = vec![plain, pcap(&iex), pcap(&published), pcapng(&mold), pcapng(&iex), gzip, zstd];
    all.extend(LINK_TYPES.map(|(link, before)| pcap_big_endian(link, before, &mold)));
    all.extend(payloads("binaryfile"));
    all
}

fn pcap(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new()).unwrap();
    for (time_ns, payload) in (BEGIN_NS..).zip(payloads) {
        writer.datagram(time_ns, source(), destination(), payload).unwrap();
    }
    writer.finish().unwrap()
}

/// A big-endian pcap file with timestamps in us. `before`: the bytes of link type `link` before the IPv4 header.
fn pcap_big_endian(link: u32, before: &[u8], payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 2 << 16 | 4, 0, 0, 65_535, link] {
        file.extend(u32::to_be_bytes(word));
    }
    for (second, payload) in (1_548_858_600..).zip(payloads) {
        let frame = [before, &ip_packet(payload)].concat();
        let length = u32::try_from(frame.len()).unwrap();
        for word in [second, 5, length, length] {
            file.extend(u32::to_be_bytes(word));
        }
        file.extend(frame);
    }
    file
}

/// Link types and their bytes before the IPv4 header: Ethernet with two tags, raw IP, Linux cooked 1 and 2, loopback.
const LINK_TYPES: [(u32, &[u8]); 5] = [
    (1, &[1, 0, 0x5e, 1, 2, 3, 2, 0, 0, 0, 0, 1, 0x88, 0xa8, 0, 9, 0x81, 0, 0x60, 7, 0x08, 0]),
    (101, &[]),
    (113, &[0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0x08, 0]),
    (276, &[0x08, 0, 0, 0, 0, 0, 0, 3, 0, 1, 1, 6, 2, 0, 0, 0, 0, 1, 0, 0]),
    (108, &[0, 0, 0, 2]),
];

fn pcapng(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    Section { application: "mdgw", comment: "a file with everything" }.append_to(&mut file);
    for name in ["A", "B"] {
        InterfaceBlock { name, description: "a line", comment: "kernel stamps" }.append_to(&mut file);
    }
    for (time_ns, payload) in (BEGIN_NS..).zip(payloads) {
        let header = frame_header(source(), destination(), payload.len()).unwrap();
        let wire_bytes = u32::try_from(FRAME_HEADER_BYTES + payload.len()).unwrap();
        for interface in 0..2 {
            let comment = if interface == 0 { "" } else { "the second copy" };
            let pieces = [&header[..], payload, &[]];
            PacketBlock { interface, time_ns, wire_bytes, pieces, comment }.append_to(&mut file);
        }
    }
    for interface in 0..2 {
        let statistics = StatisticsBlock {
            interface,
            time_ns: BEGIN_NS + 9,
            start_ns: BEGIN_NS,
            delivered: 4,
            dropped: 1,
            comment: "",
        };
        statistics.append_to(&mut file);
    }
    file
}

fn ip_packet(payload: &[u8]) -> Vec<u8> {
    let header = frame_header(source(), destination(), payload.len()).unwrap();
    [&header[ETHERNET_HEADER_BYTES..], payload].concat()
}

/// A DBN file of each record type, one with several record types, and a compressed one.
pub(crate) fn dbn_files() -> Vec<Vec<u8>> {
    let records: [Vec<u8>; 8] = [
        MboMsg::default().as_ref().to_vec(),
        TradeMsg::default().as_ref().to_vec(),
        Mbp1Msg::default().as_ref().to_vec(),
        Mbp10Msg::default().as_ref().to_vec(),
        StatusMsg::default().as_ref().to_vec(),
        InstrumentDefMsg::default().as_ref().to_vec(),
        ImbalanceMsg::default().as_ref().to_vec(),
        StatMsg::default().as_ref().to_vec(),
    ];
    let records = records.each_ref().map(Vec::as_slice);
    let mut all: Vec<_> = records.iter().map(|record| dbn_file("one.dbn", &[*record; 3])).collect();
    all.push(dbn_file("all.dbn", &records));
    all.push(dbn_file("all.dbn.zst", &records));
    all
}

fn dbn_file(name: &str, records: &[&[u8]]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let options = DbnFileOptions { dataset: "XNAS.ITCH".to_owned(), schema: None };
    let mut writer = DbnFileWriter::create(&path, options).unwrap();
    writer.mapping(b"MDGW", InstrumentId(1), date());
    records.iter().for_each(|record| writer.record(record));
    writer.finish().unwrap();
    fs::read(path).unwrap()
}

/// The only segment of a log with two sessions, an entry that covers no message, and an entry without frames.
pub(crate) fn segments() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let options = LogOptions {
        segment_bytes: SEGMENT_BYTES,
        payload_bytes_max: 256,
        private_bytes: 64 << 10,
        ..LogOptions::new(folder.path(), LOG_CHANNEL)
    };
    let OpenedLog { mut writer, .. } = mdgw_publog::open(options, 1).unwrap();
    for (session, first, next, payload) in [
        ([0; 16], 1, 4, &b"eight by"[..]),
        (LOG_SESSION, 1, 1, b""),
        (LOG_SESSION, 1, 3, b"sixteen bytes of"),
        (LOG_SESSION, 3, 9, &[7; 200]),
    ] {
        writer.begin(session, first);
        assert!(writer.append(payload));
        writer.commit(next, u16::from(!payload.is_empty()), 0, BEGIN_NS);
    }
    vec![fs::read(folder.path().join(SEGMENT_NAME)).unwrap()]
}

pub(crate) const SEGMENT_BYTES: usize = 64 << 10;
pub(crate) const SEGMENT_NAME: &str = "0000000000000001.segment";
pub(crate) const LOG_CHANNEL: u16 = 1;
/// The session under which a test appends to the log.
pub(crate) const LOG_SESSION: [u8; 16] = [3; 16];

/// A latency log of two channels, with disclosure and negative values.
pub(crate) fn latency_logs() -> Vec<Vec<u8>> {
    let mut disclosure = Disclosure::default();
    disclosure.push("host", "fuzz");
    disclosure.push("config.channel.one.id", "1");
    let mut log = IntervalLogWriter::begin(Vec::new(), UnixNs(BEGIN_NS), &disclosure).unwrap();
    let tag = |channel, stage| IntervalTag { channel: ChannelId(channel), stage, thread: "main-0".to_owned() };
    for second in 0..3 {
        let mut set = StageHistograms::new(1, 1);
        (1..5).for_each(|value| set.record(ChannelIndex(0), Stage::Publish, 1_000 * value));
        let start = UnixNs(BEGIN_NS + second * 1_000_000_000);
        for channel in 1..3 {
            set.recorded().for_each(|recorded| {
                log.write(&tag(channel, recorded.stage), start, 1_000_000_000, recorded.histogram).unwrap();
            });
        }
    }
    log.write_negative(&tag(1, Stage::WireToUser), 3).unwrap();
    vec![log.into_inner().unwrap()]
}

/// State files of a gateway that stopped in order and of one that crashed.
pub(crate) fn state_files() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let mut state = StateFile::open(&path).unwrap();
    state.begin(3, StartEpoch::Next, UnixNs(BEGIN_NS), 0).unwrap();
    let session = Session { feed: Feed::IexDeep, date: date(), restart: 2 };
    let (started, latest) = (UnixNs(BEGIN_NS), UnixNs(BEGIN_NS + 5));
    let known = KnownSession { session, venue: VenueSession([7; 16]), started, latest, has_messages: true };
    for channel in [1, 2] {
        state.set_session(ChannelId(channel), known).unwrap();
    }
    let crashed = fs::read(&path).unwrap();
    state.record_shutdown([(ChannelId(1), ResumePosition { session, next: Sequence(70), has_ended: false })]).unwrap();
    vec![crashed, fs::read(&path).unwrap()]
}

/// An audit file with some changes of leadership.
pub(crate) fn audits() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let (mut file, _) = AuditFile::open(&path).unwrap();
    let lost = AuditEvent::Lost { reason: "handed over".into() };
    for (count, change) in (1..).zip([AuditEvent::Started, AuditEvent::Gained, lost, AuditEvent::Stopped]) {
        let (group, node, epoch) = (GroupId(1), NodeId(2), Epoch::new(count, 2));
        file.append(&PendingEntry { time: UnixNs(BEGIN_NS + count), group, node, epoch, change }).unwrap();
    }
    vec![fs::read(path).unwrap()]
}

/// The vote file of a voter that has never voted.
pub(crate) fn vote_files() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    drop(VoteFile::open(folder.path(), GroupId(1)).unwrap());
    vec![fs::read(folder.path().join("group-1.vote")).unwrap()]
}

/// The configurations that ship.
pub(crate) fn configurations() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/config");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Output of `mdgw tail --json`.
pub(crate) fn rows() -> Vec<Vec<u8>> {
    let row = |sequence: u64, index: u64| {
        format!(
            "{{\"channel\":1,\"session\":\"nasdaq-itch-5.0 2019-01-30 #0\",\"input_sequence\":{sequence},\
             \"index\":{index},\"ts_recv\":\"5\",\"hd\":{{\"rtype\":160,\"ts_event\":\"7\"}},\"price\":\"250000000\"}}\n"
        )
    };
    vec![[row(1, 0), row(2, 0), row(2, 1), row(5, 0)].concat().into_bytes()]
}

fn source() -> SocketAddrV4 {
    SocketAddrV4::new([10, 0, 0, 1].into(), 40_000)
}

fn destination() -> SocketAddrV4 {
    SocketAddrV4::new([233, 54, 12, 111].into(), 26_477)
}

fn date() -> TradingDate {
    TradingDate::from_yyyymmdd(20_190_130).unwrap()
}

/// 2019-01-30 09:30 in New York, ns since 1970 UTC.
const BEGIN_NS: u64 = 1_548_858_600_000_000_000;
const ETHERNET_HEADER_BYTES: usize = 14;
