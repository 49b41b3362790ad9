use std::{fs, net::UdpSocket, path::PathBuf};

use mdgw_captures::capture_file::{OpenOptions, PcapWriter};

use super::*;

/// A capture of these payloads, 1 ms apart, to a group without receivers.
fn capture(payloads: &[&[u8]]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcap");
    let mut writer = PcapWriter::new(Vec::new()).unwrap();
    for (payload, ms) in payloads.iter().zip(1_700_000_000_000_u64..) {
        let (src, dst) = ("10.0.0.1:1".parse().unwrap(), "239.255.70.1:7001".parse().unwrap());
        writer.datagram(ms * 1_000_000, src, dst, payload).unwrap();
    }
    fs::write(&path, writer.finish().unwrap()).unwrap();
    (folder, vec![path])
}

fn receiver() -> (UdpSocket, SocketAddrV4) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let SocketAddr::V4(address) = socket.local_addr().unwrap() else { unreachable!() };
    (socket, address)
}

fn receive(socket: &UdpSocket, count: usize) -> Vec<Vec<u8>> {
    let mut buffer = [0; 2_048];
    (0..count)
        .map(|_| {
            let bytes = socket.recv(&mut buffer).unwrap();
            buffer[..bytes].to_vec()
        })
        .collect()
}

fn options(to: SocketAddrV4, pace: Pace) -> WireOptions {
    WireOptions {
        pace,
        addresses: AddressMap { to: vec![to], map: vec![] },
        interface: Some(Interface::LOOPBACK),
        ttl: 0,
        rounds: 1,
        rehearsal: None,
    }
}

fn play_files(paths: &[PathBuf], options: &WireOptions) -> Result<WireSummary, WireError> {
    let open = || CaptureMerge::open(paths, &OpenOptions::default(), super::super::capture_merge::Window::default());
    run(open, options, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn everything_arrives_in_order_at_every_pace() {
    let (_folder, paths) = capture(&[b"one", b"two", b"", b"four"]);
    let (socket, address) = receiver();
    for pace in [Pace::Original(1.0), Pace::Original(100.0), Pace::Rate(10_000.0), Pace::Max] {
        let summary = play_files(&paths, &options(address, pace)).unwrap();
        assert_eq!(receive(&socket, 4), [b"one".as_slice(), b"two", b"", b"four"], "{pace:?}");
        assert_eq!((summary.packets, summary.bytes, summary.rounds), (4, 10, 1));
        assert_eq!(summary.lateness.is_some(), pace != Pace::Max);
    }
}

#[test]
fn no_packet_leaves_before_its_time() {
    let (_folder, paths) = capture(&[b"1", b"2", b"3", b"4", b"5", b"6"]);
    let (_socket, address) = receiver();
    let summary = play_files(&paths, &options(address, Pace::Original(0.5))).unwrap();
    assert!(summary.elapsed_seconds >= 0.010, "five gaps of 2 ms in {} s", summary.elapsed_seconds);
}

#[test]
fn rounds_repeat_and_addresses_are_rewritten_by_map() {
    let (_folder, paths) = capture(&[b"one", b"two"]);
    let (socket, address) = receiver();
    let mut options = options("127.0.0.1:9".parse().unwrap(), Pace::Max);
    options.addresses.map = vec![format!("239.255.70.1={address}").parse().unwrap()];
    options.rounds = 3;
    let summary = play_files(&paths, &options).unwrap();
    assert_eq!(receive(&socket, 6), [b"one", b"two", b"one", b"two", b"one", b"two"]);
    assert_eq!((summary.packets, summary.rounds), (6, 3));
}

#[test]
fn multicast_goes_to_the_captured_group() {
    let (_folder, paths) = capture(&[b"to the group"]);
    let socket = UdpSocket::bind("239.255.70.1:7001").unwrap();
    socket.join_multicast_v4(&"239.255.70.1".parse().unwrap(), &std::net::Ipv4Addr::LOCALHOST).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut options = options("127.0.0.1:9".parse().unwrap(), Pace::Max);
    options.addresses.to.clear();
    play_files(&paths, &options).unwrap();
    assert_eq!(receive(&socket, 1), [b"to the group"]);
}

#[test]
fn a_day_file_becomes_packets_and_needs_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("S013019-v50");
    let message = [0, 12, b'S', 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'O'];
    fs::write(&path, message).unwrap();
    let (socket, address) = receiver();
    let paths = [path];
    play_files(&paths, &options(address, Pace::Max)).unwrap();
    let packet = &receive(&socket, 1)[0];
    assert_eq!(packet[..20], *b"20190130  \0\0\0\0\0\0\0\x01\0\x01");
    assert_eq!(packet[20..], message);
    let mut nowhere = options(address, Pace::Max);
    nowhere.addresses.to.clear();
    let error = play_files(&paths, &nowhere).unwrap_err();
    assert!(error.to_string().contains("--to ADDR:PORT"), "{error}");
}

#[test]
fn packets_sent_before_damage_or_an_interruption_are_reported() {
    let (_folder, paths) = capture(&[b"one", b"two"]);
    let bytes = fs::read(&paths[0]).unwrap();
    fs::write(&paths[0], &bytes[..bytes.len() - 1]).unwrap();
    let (socket, address) = receiver();
    let summary = play_files(&paths, &options(address, Pace::Max)).unwrap();
    assert_eq!(receive(&socket, 1), [b"one"]);
    assert_eq!((summary.packets, summary.damages.len()), (1, 1));

    let open = || CaptureMerge::open(&paths, &OpenOptions::default(), super::super::capture_merge::Window::default());
    let slow = options(address, Pace::Rate(0.001));
    fs::write(&paths[0], &bytes).unwrap();
    let summary = run(open, &slow, &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!((summary.packets, summary.interrupted), (1, true), "the second would be due in 1,000 s");
}
