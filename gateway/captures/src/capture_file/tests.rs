#![allow(clippy::cast_possible_truncation, reason = "test data is small")]

use std::{fs, io::Write as _};

use super::{
    fixture::{self, Order},
    *,
};
use crate::skip::skip_without_captures;

/// Frame, time, VLANs, receiver, payload.
type DatagramRow = (u64, u64, Vec<u16>, String, Vec<u8>);

/// Result of reading a file: its datagrams, then how it ended.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    datagrams: Vec<DatagramRow>,
    counts: CaptureCounts,
    error: Option<String>,
    offset: Option<u64>,
}

impl Reading {
    fn payloads(&self) -> Vec<&[u8]> {
        self.datagrams.iter().map(|datagram| datagram.4.as_slice()).collect()
    }

    fn times(&self) -> Vec<u64> {
        self.datagrams.iter().map(|datagram| datagram.1).collect()
    }
}

fn read_named(name: &str, bytes: &[u8], options: &OpenOptions) -> Reading {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    read_path(&path, options)
}

fn read(bytes: &[u8]) -> Reading {
    read_named("capture", bytes, &OpenOptions::default())
}

fn read_path(path: &Path, options: &OpenOptions) -> Reading {
    let mut reading = Reading { datagrams: vec![], counts: CaptureCounts::default(), error: None, offset: None };
    let fail = |error: CaptureError| (Some(error.fault.to_string()), Some(error.offset));
    let mut file = match CaptureFile::open(path, options) {
        Ok(file) => file,
        Err(error) => {
            (reading.error, reading.offset) = fail(error);
            return reading;
        }
    };
    loop {
        match file.next_datagram() {
            Ok(Some(datagram)) => reading.datagrams.push((
                datagram.frame,
                datagram.time_ns,
                datagram.vlan.ids().to_vec(),
                datagram.dst.to_string(),
                datagram.payload.to_vec(),
            )),
            Ok(None) => break,
            Err(error) => {
                (reading.error, reading.offset) = fail(error);
                assert!(file.next_datagram().unwrap().is_none(), "nothing comes after an error");
                break;
            }
        }
    }
    reading.counts = file.counts();
    reading
}

const ETHERNET: u32 = 1;

fn ethernet_ipv4(payload: &[u8]) -> Vec<u8> {
    fixture::ethernet(&[], 0x0800, &fixture::ipv4(payload))
}

/// Three datagrams at 5 s and 1, 2, 3 units.
fn three_datagrams() -> Vec<(u32, u32, Vec<u8>)> {
    [b"one".as_slice(), b"two", b"three"]
        .iter()
        .zip(1..)
        .map(|(payload, unit)| (5, unit, ethernet_ipv4(payload)))
        .collect()
}

fn pcapng_of_three() -> Vec<u8> {
    let order = Order::Little;
    let mut file = fixture::section(order);
    file.extend(fixture::interface(order, 1, Some(9), None));
    for (payload, ticks) in [b"one".as_slice(), b"two", b"three"].iter().zip(5_000_000_001_u64..) {
        file.extend(fixture::packet(order, 0, ticks, &ethernet_ipv4(payload)));
    }
    file
}

#[test]
fn pcap_of_either_order_and_resolution_gives_the_same_datagrams() {
    for order in Order::BOTH {
        for (magic, unit_ns) in [(fixture::PCAP_MICROSECONDS, 1_000), (fixture::PCAP_NANOSECONDS, 1)] {
            let reading = read(&fixture::pcap(order, magic, ETHERNET, &three_datagrams()));
            assert_eq!(reading.error, None);
            assert_eq!(reading.payloads(), [b"one".as_slice(), b"two", b"three"], "{order:?} {magic:x}");
            assert_eq!(reading.times(), [1, 2, 3].map(|unit| 5_000_000_000 + unit * unit_ns));
            assert_eq!(reading.datagrams[2].0, 3);
            assert_eq!(reading.datagrams[0].3, "239.1.2.3:2000");
        }
    }
    let modified = read(&fixture::pcap(Order::Little, fixture::PCAP_MODIFIED, ETHERNET, &three_datagrams()));
    assert_eq!(modified.payloads(), [b"one".as_slice(), b"two", b"three"]);
}

#[test]
fn every_link_layer_gives_the_same_datagram() {
    let ip = fixture::ipv4(b"payload");
    let null = |family: [u8; 4]| [family.as_slice(), &ip].concat();
    let with_check_sequence = [ethernet_ipv4(b"payload"), vec![0xde, 0xad, 0xbe, 0xef]].concat();
    let cases: [(u32, Vec<u8>, &[u16]); 12] = [
        (1, ethernet_ipv4(b"payload"), &[]),
        (1, fixture::ethernet(&[(0x8100, 7)], 0x0800, &ip), &[7]),
        (1, fixture::ethernet(&[(0x88a8, 4094), (0x8100, 1)], 0x0800, &ip), &[4094, 1]),
        (0x4000_0001 | 4 << 28, with_check_sequence, &[]),
        (113, fixture::cooked(&ip), &[]),
        (276, fixture::cooked2(&ip), &[]),
        (101, ip.clone(), &[]),
        (228, ip.clone(), &[]),
        (12, ip.clone(), &[]),
        (0, null([2, 0, 0, 0]), &[]),
        (0, null([0, 0, 0, 2]), &[]),
        (108, null([0, 0, 0, 2]), &[]),
    ];
    for (link, frame, vlan) in cases {
        let reading = read(&fixture::pcap(Order::Little, fixture::PCAP_NANOSECONDS, link, &[(1, 0, frame)]));
        let [(_, _, tags, dst, payload)] = reading.datagrams.as_slice() else {
            panic!("link type {link}: {reading:?}")
        };
        assert_eq!(
            (tags.as_slice(), dst.as_str(), payload.as_slice()),
            (vlan, "239.1.2.3:2000", b"payload".as_slice())
        );
    }
    for (link, frame) in [(1, fixture::ethernet(&[], 0x86dd, &fixture::ipv6(b"six"))), (101, fixture::ipv6(b"six"))] {
        let reading = read(&fixture::pcap(Order::Little, fixture::PCAP_NANOSECONDS, link, &[(1, 0, frame)]));
        assert_eq!(reading.datagrams[0].3, "[ff05::1]:2000");
        assert_eq!(reading.payloads(), [b"six"]);
    }
}

#[test]
fn an_unknown_link_layer_is_named() {
    let reading = read(&fixture::pcap(Order::Little, fixture::PCAP_NANOSECONDS, 105, &three_datagrams()));
    assert!(reading.error.unwrap().starts_with("link type 105 is not supported"));
    let order = Order::Little;
    let mut file = fixture::section(order);
    file.extend(fixture::interface(order, 105, None, None));
    file.extend(fixture::interface(order, 1, None, None));
    file.extend(fixture::packet(order, 1, 0, &ethernet_ipv4(b"good")));
    file.extend(fixture::packet(order, 0, 0, b"radio"));
    let reading = read(&file);
    assert_eq!(reading.payloads(), [b"good"], "an interface without packets does no harm");
    assert!(reading.error.unwrap().starts_with("link type 105 is not supported"));
}

#[test]
fn frames_that_are_no_datagram_are_counted_by_kind() {
    let mut fragment = fixture::ipv4(b"part");
    fragment[6] |= 0x20;
    let mut later_fragment = fixture::ipv4(b"part");
    later_fragment[7] = 1;
    let mut tcp = fixture::ipv4(b"tcp");
    tcp[9] = 6;
    let mut longer_than_ip = fixture::ipv4(b"udp");
    longer_than_ip[25] = 200;
    let mut longer_than_frame = ethernet_ipv4(b"0123456789");
    longer_than_frame.truncate(longer_than_frame.len() - 4);
    let ethernet = |packet: &[u8]| fixture::ethernet(&[], 0x0800, packet);
    let frames = [
        ethernet(&fragment),
        ethernet(&later_fragment),
        ethernet(&tcp),
        fixture::ethernet(&[], 0x0806, &[0; 28]),
        ethernet(&longer_than_ip),
        vec![1, 2, 3],
        vec![],
        longer_than_frame,
        [ethernet_ipv4(b"padded"), vec![0; 20]].concat(),
    ];
    let frames: Vec<_> = frames.into_iter().map(|frame| (1, 0, frame)).collect();
    let reading = read(&fixture::pcap(Order::Little, fixture::PCAP_NANOSECONDS, ETHERNET, &frames));
    assert_eq!(reading.error, None);
    let counts =
        CaptureCounts { frames: 9, datagrams: 1, not_udp: 2, fragments: 2, malformed: 4, ..Default::default() };
    assert_eq!(reading.counts, counts);
    assert_eq!(reading.payloads(), [b"padded"]);
    assert_eq!(reading.datagrams[0].0, 9, "frames are numbered as in the file");
}

#[test]
fn frames_truncated_by_the_snap_length_are_counted() {
    let whole = ethernet_ipv4(b"0123456789");
    for order in Order::BOTH {
        // Only some of the payload; only some of the headers.
        for (kept, payload) in [(whole.len() - 4, Some(b"012345")), (whole.len() - 12, None)] {
            let frames = [(1, 0, whole[..kept].to_vec())];
            let mut file = fixture::pcap(order, fixture::PCAP_NANOSECONDS, ETHERNET, &frames);
            let wire_bytes = u32::try_from(whole.len()).unwrap();
            file[24 + 12..24 + 16].copy_from_slice(&match order {
                Order::Little => wire_bytes.to_le_bytes(),
                Order::Big => wire_bytes.to_be_bytes(),
            });
            let reading = read(&file);
            assert_eq!(reading.counts.truncated, 1);
            assert_eq!(reading.counts.malformed, 0);
            assert_eq!(reading.payloads(), payload.into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn ipv6_extension_headers_are_skipped_up_to_the_limit() {
    // Type of the first header, the headers, and the type after the last one.
    let packet = |first: u8, headers: &[u8]| {
        let mut packet = fixture::ipv6(b"six");
        packet[6] = first;
        let length = u16::from_be_bytes([packet[4], packet[5]]) + headers.len() as u16;
        packet[4..6].copy_from_slice(&length.to_be_bytes());
        packet.splice(40..40, headers.iter().copied());
        packet
    };
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let long = |next: u8| [[next, 1, 1, 12].as_slice(), &[0; 12]].concat();
    let authentication = |next: u8| [[next, 2].as_slice(), &[0; 14]].concat();
    let fragment = |next: u8, place: u16| [next, 0, (place >> 8) as u8, place as u8, 0, 0, 0, 1];
    let chain = [options(43).as_slice(), &long(51), &authentication(60), &options(44), &fragment(17, 0)].concat();
    let nine: Vec<u8> = (0..8).flat_map(|_| options(60)).chain(options(17)).collect();
    let cases: [(u8, &[u8], Result<(), &str>); 8] = [
        (0, &options(17), Ok(())),
        (60, &long(17), Ok(())),
        (0, &chain, Ok(())),
        (44, &fragment(17, 1), Err("fragment")),
        (44, &fragment(17, 8), Err("fragment")),
        (0, &options(6), Err("not UDP")),
        (60, &nine, Err("not UDP")),
        (0, &[17, 255, 0, 0, 0, 0, 0, 0], Err("malformed")),
    ];
    for (first, headers, expected) in cases {
        let frame = fixture::ethernet(&[], 0x86dd, &packet(first, headers));
        let reading = read(&fixture::pcap(Order::Little, fixture::PCAP_NANOSECONDS, ETHERNET, &[(1, 0, frame)]));
        let CaptureCounts { not_udp, fragments, malformed, .. } = reading.counts;
        let counted = [("not UDP", not_udp), ("fragment", fragments), ("malformed", malformed)];
        match expected {
            Ok(()) => assert_eq!(reading.payloads(), [b"six"], "{first} {headers:?}"),
            Err(reason) => assert_eq!(counted.iter().find(|(_, count)| *count > 0), Some(&(reason, 1)), "{headers:?}"),
        }
    }
}

#[test]
fn pcapng_times_use_the_clock_of_each_interface() {
    for order in Order::BOTH {
        let mut file = fixture::section(order);
        file.extend(fixture::interface(order, 1, None, None));
        file.extend(fixture::interface(order, 1, Some(9), Some(100)));
        file.extend(fixture::interface(order, 101, Some(0x80 | 10), None));
        file.extend(fixture::interface(order, 1, Some(12), Some(-1)));
        file.extend(fixture::block(order, 0x0bad, &[1, 2, 3, 4]));
        file.extend(fixture::packet(order, 0, 1_500_000, &ethernet_ipv4(b"us")));
        file.extend(fixture::packet(order, 1, 7, &ethernet_ipv4(b"ns")));
        file.extend(fixture::packet(order, 2, 512, &fixture::ipv4(b"bin")));
        file.extend(fixture::packet(order, 3, 3_000_000_000_000, &ethernet_ipv4(b"ps")));
        file.extend(fixture::simple_packet(order, &ethernet_ipv4(b"simple")));
        let reading = read(&file);
        assert_eq!(reading.error, None, "{order:?}");
        assert_eq!(reading.payloads(), [b"us".as_slice(), b"ns", b"bin", b"ps", b"simple"]);
        // The last packet has no timestamp.
        assert_eq!(reading.times(), [1_500_000_000, 100_000_000_007, 500_000_000, 2_000_000_000, 2_000_000_000]);
        assert_eq!(reading.counts.untimed, 1);
    }
}

#[test]
fn a_new_section_has_its_own_order_and_interfaces() {
    let mut file = fixture::section(Order::Little);
    file.extend(fixture::interface(Order::Little, 1, Some(9), None));
    file.extend(fixture::packet(Order::Little, 0, 1, &ethernet_ipv4(b"little")));
    file.extend(fixture::section(Order::Big));
    file.extend(fixture::interface(Order::Big, 101, Some(6), None));
    file.extend(fixture::packet(Order::Big, 0, 1, &fixture::ipv4(b"big")));
    let reading = read(&file);
    assert_eq!(reading.payloads(), [b"little".as_slice(), b"big"]);
    assert_eq!(reading.times(), [1, 1_000]);

    file.extend(fixture::section(Order::Little));
    file.extend(fixture::packet(Order::Little, 0, 1, &ethernet_ipv4(b"of no interface")));
    let reading = read(&file);
    assert_eq!(reading.payloads().len(), 2);
    assert_eq!(reading.error.unwrap(), "damaged: packet of interface 0 without an interface description");
}

#[test]
fn compression_is_detected_by_magic_and_does_not_change_the_datagrams() {
    for file in [fixture::pcap(Order::Big, fixture::PCAP_NANOSECONDS, ETHERNET, &three_datagrams()), pcapng_of_three()]
    {
        let whole = read(&file);
        assert_eq!(whole.payloads().len(), 3);
        let (first, second) = file.split_at(file.len() / 2);
        assert_eq!(read(&gzip(&file)), whole);
        assert_eq!(read(&[gzip(first), gzip(second)].concat()), whole, "several gzip members");
        assert_eq!(read(&zstd::encode_all(file.as_slice(), 3).unwrap()), whole);
        assert_eq!(read_named("misnamed.gz", &file, &OpenOptions::default()), whole);
    }
}

#[test]
fn a_truncated_file_yields_its_prefix_and_the_offset() {
    let pcap = fixture::pcap(Order::Little, fixture::PCAP_MICROSECONDS, ETHERNET, &three_datagrams());
    let pcapng = pcapng_of_three();
    for file in [pcap, pcapng] {
        let whole = read(&file).datagrams;
        let mut clean_ends = 0;
        for length in 0..file.len() {
            let reading = read(&file[..length]);
            assert!(whole.starts_with(&reading.datagrams), "cut at {length}");
            match reading.offset {
                Some(offset) => assert!(offset <= length as u64, "cut at {length}, reported at {offset}"),
                None => clean_ends += 1,
            }
        }
        // Truncation points: after the header or headers, and after each packet but the last.
        assert!((3..=5).contains(&clean_ends), "{clean_ends}");
    }
}

#[test]
fn the_reported_offset_is_the_start_of_the_truncated_packet() {
    let file = fixture::pcap(Order::Little, fixture::PCAP_MICROSECONDS, ETHERNET, &three_datagrams());
    let last = ethernet_ipv4(b"three").len();
    let reading = read(&file[..file.len() - 1]);
    assert_eq!(reading.payloads().len(), 2);
    assert_eq!(reading.offset, Some((file.len() - last - 16) as u64));
    let error = reading.error.unwrap();
    assert_eq!(error, format!("the file is truncated: a packet needs {} bytes, {} remain", last + 16, last + 15));
}

#[test]
fn a_truncated_or_damaged_compressed_file_yields_its_prefix() {
    let frames: Vec<_> =
        (0..5_000_u32).map(|n| (n, n, ethernet_ipv4(&n.wrapping_mul(0x9e37_79b9).to_be_bytes()))).collect();
    let file = fixture::pcap(Order::Little, fixture::PCAP_NANOSECONDS, ETHERNET, &frames);
    let whole = read(&file).datagrams;
    for compressed in [gzip(&file), zstd_with_checksum(&file)] {
        for part in 1..8 {
            let reading = read(&compressed[..compressed.len() * part / 8]);
            assert!(whole.starts_with(&reading.datagrams));
            assert!(reading.error.is_some(), "cut at {part}/8");
        }
        let mut damaged = compressed.clone();
        let middle = damaged.len() / 2;
        damaged[middle..middle + 40].fill(0xff);
        assert!(read(&damaged).error.is_some());
    }
}

#[test]
fn impossible_lengths_are_refused_without_reading_them() {
    let mut pcap = fixture::pcap(Order::Little, fixture::PCAP_MICROSECONDS, ETHERNET, &three_datagrams());
    let second = 24 + 16 + ethernet_ipv4(b"one").len();
    pcap[second + 8..second + 12].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
    let reading = read(&pcap);
    assert_eq!(reading.payloads(), [b"one"]);
    assert_eq!(reading.offset, Some(second as u64));
    assert_eq!(reading.error.unwrap(), "damaged: a packet declares 4294967280 bytes");

    for claimed in [0_u32, 8, 13, 0x7fff_fff0] {
        let mut pcapng = pcapng_of_three();
        let at = 28 + 32 + 4;
        pcapng[at..at + 4].copy_from_slice(&claimed.to_le_bytes());
        let reading = read(&pcapng);
        assert_eq!(reading.error.unwrap(), format!("damaged: a block declares {claimed} bytes"));
        assert_eq!(reading.offset, Some(60));
    }
}

#[test]
fn no_flipped_byte_causes_a_panic() {
    for file in [fixture::pcap(Order::Big, fixture::PCAP_MICROSECONDS, ETHERNET, &three_datagrams()), pcapng_of_three()]
    {
        for index in 0..file.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = file.clone();
                damaged[index] ^= flip;
                let reading = read(&damaged);
                assert!(reading.datagrams.len() <= 3, "byte {index} ^ {flip:x}");
            }
        }
    }
}

#[test]
fn a_file_that_is_no_capture_is_refused() {
    assert_eq!(read(b"").error.unwrap(), "the file is empty");
    for text in [b"hello, world\n".as_slice(), b"x", b"{}", b"\0\0\0\0\0\0", &gzip(b"text")] {
        assert_eq!(read(text).error.unwrap(), "not a pcap, pcapng or Nasdaq day file");
    }
    let missing = CaptureFile::open(Path::new("/nonexistent/a.pcap"), &OpenOptions::default()).unwrap_err();
    assert_eq!(missing.to_string(), "open /nonexistent/a.pcap");
    let folder = tempfile::tempdir().unwrap();
    assert!(CaptureFile::open(folder.path(), &OpenOptions::default()).is_err());
}

#[test]
fn written_datagrams_are_read_back() {
    let mut writer = PcapWriter::new(Vec::new()).unwrap();
    let (src, dst) = ("10.0.0.1:1".parse().unwrap(), "239.1.2.3:2000".parse().unwrap());
    for (payload, time_ns) in [b"one".as_slice(), b"", b"three"].iter().zip(1_700_000_000_000_000_001_u64..) {
        writer.datagram(time_ns, src, dst, payload).unwrap();
    }
    assert!(writer.datagram(0, src, dst, &[0; 65_536]).is_err());
    assert!(writer.datagram(u64::MAX, src, dst, &[]).is_err());
    let reading = read(&writer.finish().unwrap());
    assert_eq!(reading.payloads(), [b"one".as_slice(), b"", b"three"]);
    assert_eq!(reading.times(), [1, 2, 3].map(|n| 1_700_000_000_000_000_000 + n));
    assert_eq!(reading.error, None);
}

#[test]
fn day_files_become_packets_by_time_and_size() {
    let date = TradingDate::from_yyyymmdd(20_190_130);
    let midnight_ns = 1_548_824_400_000_000_000;
    let options = OpenOptions { date, session_name: "TEST".to_owned() };
    // Two messages within 10 us, one alone, 120 together: these need a second packet.
    let mut times = vec![1_000, 11_000, 50_000];
    times.extend([90_000; 120]);
    let mut file: Vec<u8> = times.iter().flat_map(|ns| fixture::day_message(*ns)).collect();
    let reading = read_named("any", &file, &options);
    assert_eq!(reading.error, None);
    let headers: Vec<(u64, u16)> = reading.datagrams.iter().map(|datagram| mold_header(&datagram.4)).collect();
    assert_eq!(headers, [(1, 2), (3, 1), (4, 103), (107, 17)]);
    assert_eq!(reading.times(), [11_000, 50_000, 90_000, 90_000].map(|ns| midnight_ns + ns));
    assert_eq!(&reading.payloads()[0][..10], b"TEST      ");
    let messages: Vec<u8> = reading.payloads().iter().flat_map(|payload| payload[20..].to_vec()).collect();
    assert_eq!(messages, file, "every message, once and in order");
    assert!(reading.payloads().iter().all(|payload| payload.len() <= 1_472));

    assert_eq!(read_named("any", &gzip(&file), &options), reading);
    file.extend([0, 0]);
    let ended = read_named("any", &file, &options);
    assert_eq!(mold_header(&ended.datagrams[4].4), (124, 0xffff));
    file.push(0);
    let after = read_named("any", &file, &options);
    assert_eq!(after.error.unwrap(), "bytes after the end of session");
}

#[test]
fn a_truncated_day_file_yields_every_whole_message() {
    let options = OpenOptions { date: TradingDate::from_yyyymmdd(20_190_130), ..OpenOptions::default() };
    let file: Vec<u8> = (0..5).flat_map(|n| fixture::day_message(n * 4_000)).collect();
    for length in 4..file.len() {
        let reading = read_named("any", &file[..length], &options);
        let messages: Vec<u8> = reading.payloads().iter().flat_map(|payload| payload[20..].to_vec()).collect();
        let whole = length / 14 * 14;
        assert_eq!(messages, file[..whole]);
        let is_truncated = length != whole;
        assert_eq!(reading.offset, is_truncated.then_some(whole as u64));
    }
}

#[test]
fn the_date_of_a_day_file_comes_from_the_option_or_its_name() {
    let file = fixture::day_message(0);
    let midnight = |date: u32| TradingDate::from_yyyymmdd(date).unwrap().midnight_new_york().0;
    for name in ["S013019-v50.txt.gz", "01302019.NASDAQ_ITCH50", "nasdaq-20190130.itch"] {
        assert_eq!(read_named(name, &file, &OpenOptions::default()).times(), [midnight(20_190_130)], "{name}");
    }
    let options = OpenOptions { date: TradingDate::from_yyyymmdd(20_200_102), ..OpenOptions::default() };
    assert_eq!(read_named("S013019-v50", &file, &options).times(), [midnight(20_200_102)]);
    for name in ["sample.itch", "S133119-v50", "v50"] {
        let error = read_named(name, &file, &OpenOptions::default()).error.unwrap();
        assert!(error.contains("--date"), "{error}");
    }
}

/// Reads the real captures whole: packet counts equal those of their expected decodes.
#[test]
fn real_captures_are_read_up_to_their_truncation() {
    let Some(folder) = captures() else {
        return skip_without_captures(
            "real_captures_are_read_up_to_their_truncation",
            "no captures (set MDGW_CAPTURES)",
        );
    };
    let check = |name: &str, packets: usize, cut_at: Option<u64>| {
        let reading = read_path(&folder.join(name), &OpenOptions::default());
        assert_eq!(reading.datagrams.len(), packets, "{name}");
        assert_eq!(reading.offset, cut_at, "{name}: {:?}", reading.error);
    };
    check("iex/deep-1.0-20170425/DEEP10.pcap.gz", 121_314, Some(22_195_748));
    check("iex/tops-1.6-20170710/TOPS16.pcap.gz", 13_022, None);
    check("iex/tops-1.6-20180103/example1.pcapng", 2, Some(3_480));
}

fn captures() -> Option<PathBuf> {
    let path = std::env::var_os("MDGW_CAPTURES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures"), PathBuf::from);
    path.is_dir().then_some(path)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd_with_checksum(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Sequence and count of a MoldUDP64 packet.
fn mold_header(packet: &[u8]) -> (u64, u16) {
    (u64::from_be_bytes(packet[10..18].try_into().unwrap()), u16::from_be_bytes(packet[18..20].try_into().unwrap()))
}
