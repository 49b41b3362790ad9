use std::{
    fs,
    net::UdpSocket,
    path::{Path, PathBuf},
};

use mdgw_captures::capture_file::{CaptureFile, OpenOptions};
use mdgw_simulator::itch_generator::{ItchDay, ItchGenerator, ItchPackets};

use super::*;

/// A capture of two lines on loopback, into this file.
fn options(path: PathBuf) -> CaptureOptions {
    let line = |name: &str| CaptureLine {
        name: name.to_owned(),
        address: "127.0.0.1:0".parse().unwrap(),
        interface: None,
        sources: Vec::new(),
        buffer_bytes: 4 << 20,
        stamps: Stamps::Kernel,
    };
    CaptureOptions {
        lines: vec![line("A"), line("B")],
        tap: Tap::Sockets,
        files: OutputFiles { path, bytes_max: None, span_ns_max: None, files_max: None },
        trigger: None,
        packets_max: None,
        duration_ns_max: None,
    }
}

/// Sends payloads to lines by index.
struct Sender {
    socket: UdpSocket,
    lines: Vec<SocketAddrV4>,
}

impl Sender {
    fn to(capture: &Capture) -> Self {
        Self { socket: UdpSocket::bind("127.0.0.1:0").unwrap(), lines: capture.addresses().collect() }
    }

    fn send(&self, line: usize, payload: &[u8]) {
        self.socket.send_to(payload, self.lines[line]).unwrap();
    }
}

/// Captures until the condition holds.
fn capture_until(capture: Capture, mut is_over: impl FnMut(CaptureProgress) -> bool) -> CaptureSummary {
    let mut watch = |progress| if is_over(progress) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    capture.run(&mut watch).unwrap()
}

fn read(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let mut file = CaptureFile::open(path, &OpenOptions::default()).unwrap();
    let mut read = Vec::new();
    while let Some(datagram) = file.next_datagram().unwrap() {
        read.push((datagram.time_ns, datagram.payload.to_vec()));
    }
    read
}

/// Bodies of all blocks of this type.
fn blocks(path: &Path, kind: u32) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let mut found = Vec::new();
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    while !rest.is_empty() {
        let length = word(rest, 4) as usize;
        if word(rest, 0) == kind {
            found.push(rest[8..length - 4].to_vec());
        }
        rest = &rest[length..];
    }
    found
}

#[test]
fn captured_packets_are_written_in_time_order_with_sender_and_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    let capture = Capture::open(&CaptureOptions { packets_max: Some(300), ..options(path.clone()) }).unwrap();
    assert!(path.metadata().unwrap().len() < 10_000, "the header is written at once");
    let sender = Sender::to(&capture);
    for number in 0..300_u16 {
        sender.send(usize::from(number % 3 == 0), &number.to_le_bytes());
    }
    let before_ns = unix_now().0;
    let (src, lines) = (sender.socket.local_addr().unwrap(), sender.lines.clone());
    let summary = capture_until(capture, |_| false);
    let counts: Vec<_> = summary.lines.iter().map(|line| (line.line.as_str(), line.packets, line.dropped)).collect();
    assert_eq!(counts, [("A", 200, 0), ("B", 100, 0)]);

    let packets = read(&path);
    assert_eq!(packets.len(), 300);
    let unstamped: u64 = summary.lines.iter().map(|line| line.stamps_none).sum();
    assert!(unstamped > 0 || packets.is_sorted_by_key(|(time_ns, _)| *time_ns), "over both lines");
    assert!(packets.iter().all(|(time_ns, _)| *time_ns > before_ns - 60_000_000_000));
    let mut numbers: Vec<_> = packets.iter().map(|(_, payload)| u16::from_le_bytes([payload[0], payload[1]])).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..300).collect::<Vec<_>>(), "each once");
    let mut file = CaptureFile::open(&path, &OpenOptions::default()).unwrap();
    while let Some(datagram) = file.next_datagram().unwrap() {
        let number = u16::from_le_bytes(*datagram.payload.first_chunk().unwrap());
        assert_eq!((datagram.src, datagram.dst), (src, lines[usize::from(number % 3 == 0)].into()));
    }
    let names = blocks(&path, 1);
    assert_eq!(names.len(), 2, "one interface for each line");
    for (interface, name) in names.iter().zip([*b"A", *b"B"]) {
        assert!(interface.windows(5).any(|bytes| bytes[..4] == [2, 0, 1, 0] && bytes[4..] == name), "{interface:?}");
        assert!(String::from_utf8_lossy(interface).contains("kernel clock"));
    }
}

#[test]
fn kernel_drops_are_reported_in_summary_and_statistics_block() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    let mut options = options(path.clone());
    options.lines[0].buffer_bytes = 4_096;
    let capture = Capture::open(&options).unwrap();
    let sender = Sender::to(&capture);
    for _ in 0..200 {
        sender.send(0, &[7; 1_000]);
    }
    let summary = capture_until(capture, |_| true);
    let line = &summary.lines[0];
    assert!(line.dropped > 0);
    assert_eq!(line.packets + line.dropped, 200);
    let statistics = blocks(&path, 5);
    let last = statistics.iter().rfind(|block| block[..4] == [0; 4]).unwrap();
    let mut osdrop = vec![7, 0, 8, 0];
    osdrop.extend(line.dropped.to_le_bytes());
    assert!(last.windows(12).any(|bytes| bytes == osdrop), "{last:?}");
}

#[test]
fn files_rotate_by_size_and_only_the_last_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path().join("a.pcapng"));
    options.files = OutputFiles { bytes_max: Some(8_000), files_max: Some(3), ..options.files };
    let capture = Capture::open(&CaptureOptions { packets_max: Some(100), ..options }).unwrap();
    let sender = Sender::to(&capture);
    for number in 0..100 {
        sender.send(0, &[number; 1_000]);
    }
    let summary = capture_until(capture, |_| false);
    assert_eq!(summary.files.len(), 3);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    assert!(summary.files_removed > 5);
    let mut left = Vec::new();
    for file in &summary.files {
        // The statistics at the end may exceed the limit.
        assert!(fs::metadata(file).unwrap().len() < 9_000);
        left.extend(read(Path::new(file)).into_iter().map(|(_, payload)| payload[0]));
    }
    assert!((10..=24).contains(&left.len()) && left.ends_with(&[98, 99]), "{left:?}");
    assert!(left.windows(2).all(|pair| pair[0] + 1 == pair[1]), "no packet is missing between files");
}

#[test]
fn a_gap_triggers_writing_of_the_packets_before_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path().join("gap.pcapng"));
    let channel = WatchedChannel { name: "nasdaq".to_owned(), config: None, feed: None, lines: vec![0, 1] };
    options.trigger = Some(TriggerOptions {
        triggers: Triggers { gap: true, fault: false },
        channels: vec![channel],
        before_ns: 60_000_000_000,
        after_ns: 60_000_000_000,
        memory_bytes: 1 << 20,
    });
    let capture = Capture::open(&options).unwrap();
    let sender = Sender::to(&capture);
    let day = ItchDay { message_count: 400, stock_count: 4, live_orders: 20, ..ItchDay::default() };
    let mut source = ItchPackets::new(ItchGenerator::new(day), *b"TEST000001");
    let mut packets = Vec::new();
    let mut packet = Vec::new();
    while source.next_packet(&mut packet).is_some() && packets.len() < 20 {
        packets.push(packet.clone());
    }
    for (number, packet) in packets.iter().enumerate().filter(|(number, _)| *number != 10) {
        sender.send(0, packet);
        if number != 5 {
            sender.send(1, packet);
        }
    }
    let summary = capture_until(capture, |progress| progress.files > 0);
    assert_eq!((summary.files.len(), summary.trigger_count), (1, Some(1)), "{:?}", summary.trigger_reasons);
    assert!(summary.trigger_reasons[0].contains("gap of"), "{:?}", summary.trigger_reasons);
    assert_eq!(read(Path::new(&summary.files[0])).len(), 37, "all packets before and after the gap");
    let section = &blocks(Path::new(&summary.files[0]), 0x0a0d_0d0a)[0];
    assert!(String::from_utf8_lossy(section).contains("nasdaq: gap of"));
}

#[test]
fn without_a_gap_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path().join("gap.pcapng"));
    options.trigger = Some(TriggerOptions {
        triggers: Triggers { gap: true, fault: true },
        channels: vec![],
        before_ns: 1_000_000_000,
        after_ns: 1_000_000_000,
        memory_bytes: 1 << 20,
    });
    let capture = Capture::open(&CaptureOptions { packets_max: Some(3), ..options }).unwrap();
    let sender = Sender::to(&capture);
    for _ in 0..3 {
        sender.send(1, b"packet");
    }
    let summary = capture_until(capture, |_| false);
    assert_eq!((summary.lines[1].packets, summary.files.len(), summary.trigger_count), (3, 0, Some(0)));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_batch_sleep_fits_the_smallest_buffer() {
    // Default kernel limit for unprivileged sockets, default of a configured line, default of the command.
    for (buffer_bytes, nap_us) in [(0, 100), (212_992, 106), (8 << 20, 4_194), (16 << 20, 8_388), (1 << 30, 10_000)] {
        let PollPacing { batch_sleep, retry_sleep, .. } = PollPacing::of_sockets(buffer_bytes);
        assert_eq!((batch_sleep.as_micros(), retry_sleep), (nap_us, batch_sleep), "{buffer_bytes}");
    }
}
