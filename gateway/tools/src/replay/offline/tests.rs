use std::{cell::Cell, fs, net::SocketAddrV4};

use dbn::{
    Metadata, PitSymbolMap,
    decode::{DbnMetadata as _, DecodeRecordRef as _, dbn::Decoder},
};
use mdgw_captures::{
    capture_file::PcapWriter,
    impairment::{ImpairedLines, LineImpairment, LossPolicy},
};
use mdgw_feeds::{identity::Sequence as InputSequence, transport::moldudp64};
use mdgw_simulator::itch_generator::{ItchDay, ItchGenerator, ItchPackets, OrderIds, write_day_file};

use super::*;
use crate::skip::skip_without_captures;

/// Midnight New York of 2019-01-30.
const MIDNIGHT_NS: u64 = 1_548_824_400_000_000_000;
const GROUP_A: &str = "233.54.12.111:26477";
const GROUP_B: &str = "233.49.196.111:26477";

fn day(messages: u64) -> ItchDay {
    ItchDay {
        seed: 7,
        message_count: messages,
        stock_count: 50,
        live_orders: 500,
        order_ids: OrderIds::Dense,
        burst_interval_ns: 10_000,
        ..ItchDay::default()
    }
}

/// Packets of a synthetic session with their capture times.
fn packets(messages: u64) -> Vec<(u64, Vec<u8>)> {
    let mut source = ItchPackets::new(ItchGenerator::new(day(messages)), *b"TEST000001");
    let mut all = Vec::new();
    let mut packet = Vec::new();
    while let Some(info) = source.next_packet(&mut packet) {
        all.push((MIDNIGHT_NS + info.time_ns, packet.clone()));
    }
    all
}

fn write_capture<'a>(path: &Path, packets: impl IntoIterator<Item = (u64, &'a str, &'a [u8])>) {
    let mut writer = PcapWriter::new(Vec::new()).unwrap();
    let src = "10.0.0.1:1000".parse().unwrap();
    for (time_ns, dst, payload) in packets {
        writer.datagram(time_ns, src, dst.parse::<SocketAddrV4>().unwrap(), payload).unwrap();
    }
    fs::write(path, writer.finish().unwrap()).unwrap();
}

/// Runs replays in a folder; the output goes to `out.dbn` there.
struct TestFolder {
    folder: tempfile::TempDir,
}

impl TestFolder {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self, files: &[&str]) -> OfflineOptions {
        OfflineOptions {
            files: files.iter().map(|name| self.path(name)).collect(),
            ts_recv: TsRecvMode::None,
            output: Some(self.path("out.dbn")),
            ..OfflineOptions::default()
        }
    }

    fn run(&self, options: &OfflineOptions) -> Summary {
        run(options, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    fn output(&self) -> Vec<u8> {
        fs::read(self.path("out.dbn")).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// Metadata and (rtype, instrument, sequence of an Mbo) of a DBN file.
fn decode(bytes: &[u8]) -> (Metadata, Vec<(u8, u32)>) {
    let mut decoder = Decoder::new(bytes).unwrap();
    let metadata = decoder.metadata().clone();
    let mut records = Vec::new();
    while let Some(record) = decoder.decode_record_ref().unwrap() {
        records.push((record.header().rtype, record.header().instrument_id));
    }
    (metadata, records)
}

#[test]
fn two_impaired_lines_and_a_mixed_file_give_the_same_output_as_one_clean_line() {
    let bench = TestFolder::new();
    let packets = packets(20_000);
    write_capture(&bench.path("whole.pcap"), packets.iter().map(|(time, bytes)| (*time, GROUP_A, bytes.as_slice())));
    let whole = bench.run(&bench.options(&["whole.pcap"]));
    assert_eq!((whole.total.messages, whole.total.gaps, whole.total.sessions), (20_000, 0, 1));
    assert!(whole.total.book_faults.is_empty(), "{:?}", whole.total.book_faults);
    let expected = bench.output();

    let damage = LineImpairment { loss: 0.2, duplicate: 0.05, reorder: 0.05, skew_ns: 0 };
    let late = LineImpairment { skew_ns: 300_000, ..damage };
    let mut lines = ImpairedLines::new(&[damage, late], LossPolicy::NeverOnAllLines, 11);
    let mut arrivals: Vec<(u64, usize, Vec<u8>)> = Vec::new();
    for (time_ns, packet) in &packets {
        lines.transmit(packet, |line, skew_ns, packet| arrivals.push((time_ns + skew_ns, line, packet.clone())));
    }
    let end_ns = packets.last().unwrap().0 + 1;
    lines.finish(|line, skew_ns, packet| arrivals.push((end_ns + skew_ns, line, packet.clone())));
    arrivals.sort_by_key(|(time_ns, ..)| *time_ns);
    let of = |wanted: usize| {
        let group = [GROUP_A, GROUP_B][wanted];
        arrivals
            .iter()
            .filter(move |(_, line, _)| *line == wanted)
            .map(move |(time, _, bytes)| (*time, group, bytes.as_slice()))
    };
    write_capture(&bench.path("a.pcap"), of(0));
    write_capture(&bench.path("b.pcap"), of(1));
    let mixed = arrivals.iter().map(|(time, line, bytes)| (*time, [GROUP_A, GROUP_B][*line], bytes.as_slice()));
    write_capture(&bench.path("mixed.pcap"), mixed);

    for files in [["a.pcap", "b.pcap"].as_slice(), &["b.pcap", "a.pcap"], &["mixed.pcap"]] {
        let summary = bench.run(&bench.options(files));
        assert_eq!((summary.total.messages, summary.total.gaps), (20_000, 0), "{files:?}");
        assert_eq!(summary.channels.len(), 1);
        assert_eq!(summary.channels[0].lines.len(), 2);
        assert!(summary.total.duplicates > 0);
        assert!(bench.output() == expected, "{files:?} differ from the whole data path");
    }
    // Negative control: one line alone has gaps.
    let alone = bench.run(&bench.options(&["a.pcap"]));
    assert!(alone.total.gaps > 0);
    assert_eq!(alone.total.messages + alone.total.lost_messages, 20_000 - trailing_loss(&arrivals, &packets));
    assert!(bench.output() != expected);
}

/// Messages after the last one that line A delivered: no line can reveal their loss.
fn trailing_loss(arrivals: &[(u64, usize, Vec<u8>)], packets: &[(u64, Vec<u8>)]) -> u64 {
    let next = |packet: &[u8]| {
        let first = u64::from_be_bytes(packet[10..18].try_into().unwrap());
        first + u64::from(u16::from_be_bytes(packet[18..20].try_into().unwrap()))
    };
    let seen = arrivals.iter().filter(|(_, line, _)| *line == 0).map(|(.., packet)| next(packet)).max().unwrap();
    next(&packets.last().unwrap().1) - seen
}

#[test]
fn messages_lost_on_all_lines_are_declared_as_a_gap_and_the_replay_continues() {
    let bench = TestFolder::new();
    let packets = packets(5_000);
    let lost = packets.len() / 2;
    let lost_messages = u64::from(u16::from_be_bytes(packets[lost].1[18..20].try_into().unwrap()));
    let kept = packets.iter().enumerate().filter(|(index, _)| *index != lost);
    write_capture(&bench.path("a.pcap"), kept.map(|(_, (time, bytes))| (*time, GROUP_A, bytes.as_slice())));
    let summary = bench.run(&bench.options(&["a.pcap"]));
    assert_eq!((summary.total.gaps, summary.total.lost_messages), (1, lost_messages));
    assert_eq!(summary.total.messages, 5_000 - lost_messages);
    assert!(summary.total.suspect_records > 0);
}

#[test]
fn the_capture_clock_decides_whether_a_gap_is_filled() {
    let bench = TestFolder::new();
    let packets = packets(4_000);
    let timeout_ns = mdgw_feeds::arbiter::ArbiterConfig::default().gap_timeout_ns;
    let lost = packets.len() / 2;
    // Enough time between the packets around the gap that nothing else interferes.
    let spread = |index: usize| MIDNIGHT_NS + 36_000_000_000_000 + index as u64 * 1_000;
    for (late_ns, gaps) in [(timeout_ns / 2, 0), (timeout_ns * 2 + 1_000_000, 1)] {
        let mut arrivals: Vec<(u64, &str, &[u8])> = packets
            .iter()
            .enumerate()
            .map(|(index, (_, bytes))| {
                let pause_ns = if index > lost + 1 { timeout_ns * 4 } else { 0 };
                (spread(index) + pause_ns, GROUP_A, bytes.as_slice())
            })
            .collect();
        let missing = arrivals.remove(lost);
        arrivals.push((spread(lost + 1) + late_ns, GROUP_B, missing.2));
        arrivals.sort_by_key(|(time_ns, ..)| *time_ns);
        write_capture(&bench.path("ab.pcap"), arrivals);
        let summary = bench.run(&bench.options(&["ab.pcap"]));
        assert_eq!(summary.total.gaps, gaps, "line B {late_ns} ns late, the timeout is {timeout_ns} ns");
    }
}

#[test]
fn day_files_give_the_same_records_as_their_packets() {
    let bench = TestFolder::new();
    let packets = packets(3_000);
    write_capture(&bench.path("a.pcap"), packets.iter().map(|(time, bytes)| (*time, GROUP_A, bytes.as_slice())));
    bench.run(&bench.options(&["a.pcap"]));
    let expected = bench.output();
    let mut file = fs::File::create(bench.path("S013019-v50.txt")).unwrap();
    write_day_file(&mut ItchGenerator::new(day(3_000)), &mut file).unwrap();
    drop(file);
    let summary = bench.run(&bench.options(&["S013019-v50.txt"]));
    assert_eq!(summary.total.messages, 3_000);
    assert!(bench.output() == expected);
}

#[test]
fn the_dbn_file_maps_every_instrument_and_holds_the_selected_schemas() {
    let bench = TestFolder::new();
    let packets = packets(3_000);
    write_capture(&bench.path("a.pcap"), packets.iter().map(|(time, bytes)| (*time, GROUP_A, bytes.as_slice())));
    let mut options = bench.options(&["a.pcap"]);
    options.schemas = SchemaSet::from_name("mbp-1");
    options.ts_recv = TsRecvMode::Capture;
    let summary = bench.run(&options);
    let (metadata, records) = decode(&bench.output());
    assert_eq!((metadata.dataset.as_str(), metadata.schema), ("XNAS.ITCH", Some(dbn::Schema::Mbp1)));
    assert_eq!(metadata.symbols.len(), 50);
    assert!(!records.is_empty() && records.iter().all(|(rtype, _)| *rtype == dbn::enums::rtype::MBP_1));
    assert_eq!(summary.total.records, [("mbp-1", records.len() as u64)].into());
    let date = time::Date::from_ordinal_date(2019, 30).unwrap();
    let symbols = PitSymbolMap::from_metadata(&metadata, date).unwrap();
    assert!(records.iter().all(|(_, id)| symbols.get(*id).is_some()), "every record has a symbol");

    options.schemas = Some(SchemaSet::MBO.with(SchemaSet::STATUS));
    bench.run(&options);
    assert_eq!(decode(&bench.output()).0.schema, None, "several schemas");
}

#[test]
fn compressed_output_decompresses_to_the_plain_output() {
    let bench = TestFolder::new();
    let packets = packets(2_000);
    write_capture(&bench.path("a.pcap"), packets.iter().map(|(time, bytes)| (*time, GROUP_A, bytes.as_slice())));
    bench.run(&bench.options(&["a.pcap"]));
    let mut options = bench.options(&["a.pcap"]);
    options.output = Some(bench.path("out.dbn.zst"));
    bench.run(&options);
    let packed = fs::read(bench.path("out.dbn.zst")).unwrap();
    assert!(zstd::decode_all(packed.as_slice()).unwrap() == bench.output());
}

#[test]
fn a_truncated_capture_is_replayed_up_to_the_truncation_and_the_output_is_finished() {
    let bench = TestFolder::new();
    let packets = packets(2_000);
    write_capture(&bench.path("a.pcap"), packets.iter().map(|(time, bytes)| (*time, GROUP_A, bytes.as_slice())));
    let whole = fs::read(bench.path("a.pcap")).unwrap();
    fs::write(bench.path("cut.pcap"), &whole[..whole.len() - 5]).unwrap();
    let summary = bench.run(&bench.options(&["cut.pcap"]));
    assert_eq!(summary.total.packets, packets.len() as u64 - 1);
    let last_bytes = packets.last().unwrap().1.len() + 14 + 28 + 16;
    let damage = summary.files[0].damage.as_deref().unwrap();
    assert!(damage.contains(&format!("at byte {}", whole.len() - last_bytes)), "{damage}");
    decode(&bench.output());
}

#[test]
fn a_dbn_file_holds_one_dataset_and_a_feed_can_be_chosen() {
    let bench = TestFolder::new();
    let packets = packets(1_000);
    let capture = |name: &str| {
        write_capture(&bench.path(name), packets.iter().map(|(time, bytes)| (*time, GROUP_A, bytes.as_slice())));
    };
    capture("nasdaq.pcap");
    capture("bx.pcap");
    let mut options = bench.options(&["nasdaq.pcap", "bx.pcap"]);
    let error = run(&options, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, OfflineError::SeveralDatasets { .. }), "{error}");
    options.feed = Some(Feed::PsxItch);
    let summary = bench.run(&options);
    assert_eq!(decode(&bench.output()).0.dataset, "XPSX.ITCH");
    assert_eq!(summary.channels[0].lines.len(), 2, "same session, so lines of one channel");
    options.feed = Some(Feed::IexDeep);
    let error = run(&options, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, OfflineError::NothingRecognised { .. }), "{error}");
}

#[test]
fn unrecognised_traffic_is_counted_and_ignored() {
    let bench = TestFolder::new();
    let packets = packets(1_000);
    let mut heartbeat = Vec::new();
    moldudp64::write_heartbeat(&mut heartbeat, *b"TEST000001", InputSequence(1));
    let mut arrivals = vec![(packets[0].0 - 1, GROUP_A, heartbeat.as_slice())];
    for (time, bytes) in &packets {
        arrivals.push((*time, "239.1.1.1:53", b"something else"));
        arrivals.push((*time, GROUP_A, bytes.as_slice()));
    }
    write_capture(&bench.path("a.pcap"), arrivals);
    let summary = bench.run(&bench.options(&["a.pcap"]));
    assert_eq!(
        summary.unrecognised_datagrams,
        packets.len() as u64 + 1,
        "the first heartbeat does not identify a feed"
    );
    assert_eq!(summary.total.messages, 1_000);
    let mut options = bench.options(&["a.pcap"]);
    options.feed = Some(Feed::NasdaqItch);
    let summary = bench.run(&options);
    assert_eq!(summary.unrecognised_datagrams, packets.len() as u64);
    assert_eq!(summary.total.heartbeats, 1);
}

#[test]
fn no_output_remains_without_a_feed_or_after_an_interrupt() {
    let bench = TestFolder::new();
    write_capture(&bench.path("a.pcap"), [(1, GROUP_A, b"nothing known".as_slice())]);
    let error = run(&bench.options(&["a.pcap"]), &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("no known feed in 1 datagrams"), "{error}");

    let packets = packets(1_000);
    write_capture(&bench.path("a.pcap"), packets.iter().map(|(time, bytes)| (*time, GROUP_A, bytes.as_slice())));
    let mut then = bench.options(&["a.pcap"]);
    then.window.until = Some(crate::replay::capture_merge::Moment::At(0));
    let error = run(&then, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, OfflineError::NothingInWindow { .. }), "{error}");
    let found = Cell::new(0);
    let error = run(&bench.options(&["a.pcap"]), &mut |event| {
        found.set(found.get() + u32::from(matches!(event, Event::Found { .. })));
        ControlFlow::Break(())
    });
    assert!(matches!(error, Err(OfflineError::Interrupted)));
    assert_eq!(found.get(), 1);
    assert_eq!(bench.names(), ["a.pcap"]);
}

/// Symbolic links to an input are recognised too.
#[test]
fn an_output_that_is_an_input_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let (input, link) = (folder.path().join("in.pcap"), folder.path().join("out.dbn"));
    fs::write(&input, b"a capture").unwrap();
    std::os::unix::fs::symlink(&input, &link).unwrap();
    for output in [&input, &link] {
        let options =
            OfflineOptions { files: vec![input.clone()], output: Some(output.clone()), ..OfflineOptions::default() };
        let refused = run(&options, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(refused, Err(OfflineError::Output { .. })), "{refused:?}");
        assert_eq!(fs::read(&input).unwrap(), b"a capture");
    }
}

/// Counts of the real captures that their expected decodes confirm: whole packets, messages, sessions.
#[test]
fn real_captures_are_replayed_with_the_expected_counts() {
    let folder = std::env::var_os("MDGW_CAPTURES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures"), PathBuf::from);
    if !folder.is_dir() {
        return skip_without_captures(
            "real_captures_are_replayed_with_the_expected_counts",
            "no captures (set MDGW_CAPTURES)",
        );
    }
    let bench = TestFolder::new();
    let check = |name: &str, packets: u64, sessions: u64| {
        let options = OfflineOptions {
            files: vec![folder.join(name)],
            output: Some(bench.path("out.dbn")),
            ..OfflineOptions::default()
        };
        let summary = bench.run(&options);
        assert_eq!((summary.total.packets, summary.total.sessions), (packets, sessions), "{name}");
        assert_eq!((summary.total.gaps, summary.total.messages_refused), (0, 0), "{name}");
        assert!(summary.total.drops.is_empty(), "{name}: {:?}", summary.total.drops);
        assert_eq!(summary.output.unwrap().records, decode(&bench.output()).1.len() as u64);
        summary.total.messages
    };
    let deep = check("iex/deep-1.0-20170425/DEEP10.pcap.gz", 121_314, 12);
    let tops = check("iex/tops-1.6-20170710/TOPS16.pcap.gz", 13_022, 1);
    assert_eq!((deep, tops), (391_999, 57_674));
    check("iex/tops-1.6-20180103/example1.pcapng", 2, 1);
}
