use std::{
    fs,
    net::UdpSocket,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use mdgw_captures::capture_file::{OpenOptions, PcapWriter};
use mdgw_status::{
    control::{ControlServer, Response},
    snapshot::{ChannelSnapshot, Snapshot, StageSnapshot},
};
use mdgw_sys::sockets::{ReceiveOptions, open_receive};

use super::*;
use crate::replay::{capture_merge::Window, wire::AddressMap};

fn capture(packets: u64, payload_bytes: usize) -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcap");
    let mut writer = PcapWriter::new(Vec::new()).unwrap();
    let (src, dst) = ("10.0.0.1:1".parse().unwrap(), "239.255.70.9:7009".parse().unwrap());
    for number in 0..packets {
        writer.datagram(number * 1_000_000, src, dst, &vec![7; payload_bytes]).unwrap();
    }
    fs::write(&path, writer.finish().unwrap()).unwrap();
    (folder, vec![path])
}

/// A group with a free port; the port stays reserved while the socket lives.
fn group() -> (UdpSocket, SocketAddrV4) {
    let reserved = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = reserved.local_addr().unwrap().port();
    (reserved, SocketAddrV4::new([239, 255, 70, 9].into(), port))
}

fn search(paths: &[PathBuf], to: SocketAddrV4, ramp: Rising, receiver: &Receiver) -> Result<UntilLoss, UntilLossError> {
    let options = WireOptions {
        pace: Pace::Max,
        addresses: AddressMap { to: vec![to], map: vec![] },
        interface: Some(Interface::LOOPBACK),
        ttl: 0,
        rounds: 1,
        rehearsal: None,
    };
    let open = || CaptureMerge::open(paths, &OpenOptions::default(), Window::default());
    run(open, &options, ramp, receiver, &BTreeSet::from([to]), &mut || false)
}

const SLOW_RAMP: Rising = Rising { rate: 200.0, factor: 2.0, step_ns: 100_000_000 };

#[test]
fn each_step_reports_the_latency_of_a_sink_that_keeps_up() {
    let (_folder, paths) = capture(140, 100);
    let (_reserved, group) = group();
    let found = search(&paths, group, SLOW_RAMP, &Receiver::Sink(Some(Interface::LOOPBACK))).unwrap();
    assert_eq!(found.lost_in_transit, 0);
    assert_eq!(
        found.steps.iter().map(|step| (step.sent, step.dropped)).collect::<Vec<_>>(),
        [(20, 0), (40, 0), (80, 0)]
    );
    assert!(found.steps.iter().all(|step| step.latency.is_some()), "{found:?}");
    // A busy machine may delay the sender, but nothing is lost.
    assert!(matches!(found.stopped_by, StoppedBy::EndOfCaptures | StoppedBy::SenderLimit), "{found:?}");
    assert!(found.to_table().contains("loss is counted from"));
}

#[test]
fn drops_of_a_receiver_that_does_not_read_end_the_search() {
    let (_folder, paths) = capture(100_000, 1_000);
    let mut options = ReceiveOptions::new("127.0.0.1:0".parse().unwrap(), None);
    options.receive_buffer_bytes = 64 << 10;
    let idle = open_receive(&options).unwrap();
    let found = search(&paths, idle.local_address().unwrap(), SLOW_RAMP, &Receiver::Host).unwrap();
    assert_eq!(found.stopped_by, StoppedBy::Loss);
    assert!(found.steps.last().unwrap().dropped > 0);
    assert!(found.steps.iter().map(|step| step.sent).sum::<u64>() < 100_000, "the search ends at the loss");
}

#[test]
fn a_gap_declared_by_the_gateway_ends_the_search() {
    let (folder, paths) = capture(100_000, 10);
    let listening = open_receive(&ReceiveOptions::new("127.0.0.1:0".parse().unwrap(), None)).unwrap();
    let (address, socket) = (listening.local_address().unwrap(), folder.path().join("control"));
    // The gateway had lost 5 messages before; while packets come, it loses 3 more.
    let asked = AtomicU64::new(0);
    let _gateway = ControlServer::start(&socket, move |_| {
        let number = asked.fetch_add(1, Ordering::Relaxed);
        let end_ns = mono_now().0;
        // Each answer has a new interval, and, in another channel, one that began long before.
        let [young, old] = [(end_ns - 1_000, 700 + number), (1, 1_000_000_000)].map(|(begin_ns, p99_ns)| {
            let stage = "wire_to_wire".to_owned();
            vec![StageSnapshot { stage, begin_ns, end_ns, count: 9, p99_ns, ..StageSnapshot::default() }]
        });
        let gap_messages = if number < 3 { 5 } else { 8 };
        let channels = vec![
            ChannelSnapshot { id: 1, gap_messages, stages: young, ..ChannelSnapshot::default() },
            ChannelSnapshot { id: 2, stages: old, ..ChannelSnapshot::default() },
        ];
        Response::Ok(serde_json::json!(Snapshot { channels, ..Snapshot::default() }))
    })
    .unwrap();
    // The rate is so low that no machine falls behind before the gateway was queried a few times.
    let slow = Rising { rate: 50.0, factor: 1.5, step_ns: 1_000_000_000 };
    let found = search(&paths, address, slow, &Receiver::Gateway(socket.clone())).unwrap();
    assert_eq!(found.stopped_by, StoppedBy::Loss, "{found:?}");
    assert_eq!(found.steps.iter().filter_map(|step| step.gap_messages).sum::<u64>(), 3);
    assert!(found.steps.iter().map(|step| step.sent).sum::<u64>() < 100_000, "the search ends at the loss");
    let p99_ns_max = found.steps.iter().filter_map(|step| step.gateway_latency).map(|latency| latency.p99_ns).max();
    assert!(
        p99_ns_max.is_some_and(|p99_ns| (701..10_000).contains(&p99_ns)),
        "the worst within a step: {p99_ns_max:?}"
    );
    assert!(found.to_table().contains("wire to wire us"), "{}", found.to_table());
    let gone = search(&paths, address, slow, &Receiver::Gateway(folder.path().join("none"))).unwrap_err();
    assert!(gone.to_string().contains("query the gateway"), "{gone}");
}

#[test]
fn a_search_without_a_listener_is_refused() {
    let (_folder, paths) = capture(1, 10);
    let (_reserved, address) = group();
    let refused = search(&paths, address, SLOW_RAMP, &Receiver::Host).unwrap_err();
    assert!(refused.to_string().contains(&address.to_string()), "{refused}");
}

#[test]
fn a_slow_sender_is_detected_after_half_a_step() {
    /// A receiver without losses.
    struct Lossless;
    impl LossCounter for Lossless {
        fn sent(&mut self, _: SocketAddrV4, _: MonoNs, _: u32) {}

        fn dropped(&mut self) -> io::Result<u64> {
            Ok(0)
        }

        fn finish_counting(&mut self, _: u64) -> io::Result<Option<SinkTotals>> {
            Ok(None)
        }

        fn description(&self) -> &'static str {
            "nothing"
        }
    }
    // The step is so long that a pause of the test machine does not matter.
    let ramp = Rising { step_ns: 10_000_000_000, ..SLOW_RAMP };
    let mut search = Search::new(Box::new(Lossless), ramp);
    let destination = SocketAddrV4::new([239, 255, 70, 9].into(), 7009);
    // All packets should have left before the step ended, and it has ended by now.
    let begin = MonoNs(mono_now().0.saturating_sub(2 * ramp.step_ns));
    (0..PACKETS_BEFORE_JUDGING).for_each(|packet| search.sent(destination, begin.plus(packet)));
    assert_eq!(search.check_loss(), None, "the sender may still catch up");
    search.sent(destination, begin.plus(ramp.step_ns / 2));
    assert_eq!(search.check_loss(), Some(StoppedBy::SenderLimit));
    let found = UntilLoss {
        steps: search.step_results(None),
        highest_rate_without_loss: None,
        stopped_by: StoppedBy::SenderLimit,
        lost_in_transit: 0,
        counts_source: "nothing",
    };
    let table = found.to_table();
    assert!(table.contains("start with a lower --rate") && !table.contains("no step"), "{table}");
}
