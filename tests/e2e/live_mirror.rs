//! `mdgw mirror` on a host without a gateway: its logs have what the gateway published, and `mdgw live` serves them as those of a gateway.

use std::{
    fs, iter,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    path::{Path, PathBuf},
    thread,
};

use databento::{
    Symbols,
    dbn::{Compression, Schema},
};
use mdgw_captures::impairment::LineImpairment;
use mdgw_feeds::{
    frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind},
    published::packet::PacketFlags,
};
use mdgw_publog::Reader;
use mdgw_tests::{
    elected_pair::ElectedPair,
    feeds,
    gateway_fixture::{GatewayFixture, GatewayOptions, free_address, text, wait_until_joined, write_key_of},
    http::{get_at, metric_at, try_get_at, wait_for_readiness},
    process::{self, MdgwProcess, Signal, wait_until},
    relay::LossyRelay,
    trading_day::{self, TradingDay},
};
use socket2::SockRef;
use zerocopy::FromBytes as _;

use super::{
    live_rust_client::{Session, expect_one_hole, records_of, run, subscription},
    replay_offline, start_live,
};

const NO_DAMAGE: LineImpairment = LineImpairment { loss: 0.0, duplicate: 0.0, reorder: 0.0, skew_ns: 0 };

/// A host that receives a gateway's output through a network of its own, and has no gateway.
struct MirrorHost {
    fixture: GatewayFixture,
    /// The gateways' output, and the services that the host may ask.
    output: SocketAddrV4,
    services: Vec<String>,
    /// Of the mirror.
    admin: SocketAddrV4,
}

impl MirrorHost {
    fn of(gateways: &[&GatewayFixture]) -> Self {
        Self::with_options(gateways, &GatewayOptions::itch())
    }

    fn with_options(gateways: &[&GatewayFixture], options: &GatewayOptions) -> Self {
        let fixture = GatewayFixture::new();
        let config = fixture.config(&GatewayOptions { has_recovery: false, ..options.clone() });
        let content = fs::read_to_string(&config).unwrap();
        let (before, rest) = content.split_once("[retransmission]").unwrap();
        let behind = rest.split_once("[latency]").unwrap().1;
        let admin = free_address();
        fs::write(config, format!("{before}[mirror]\nadmin_listen = \"{admin}\"\n[latency]{behind}")).unwrap();
        let services = gateways.iter().map(|gateway| gateway.retransmission.to_string()).collect();
        Self { fixture, output: gateways[0].output, services, admin }
    }

    fn without_services(self) -> Self {
        Self { services: Vec::new(), ..self }
    }

    fn network(&self, damage: LineImpairment) -> LossyRelay {
        LossyRelay::start(self.output, self.fixture.output, damage, 1)
    }

    fn command(&self) -> Vec<String> {
        let services = self.services.iter().flat_map(|service| ["--retransmission".to_owned(), service.clone()]);
        let fixed = ["mirror", text(&self.fixture.path("gateway.toml"))].map(str::to_owned);
        fixed.into_iter().chain(services).collect()
    }

    fn start(&self) -> MdgwProcess {
        let mirror = process::start(self.command());
        mirror.wait_for_stderr("mirror: ready");
        wait_until_joined(self.fixture.output, 1);
        mirror
    }

    /// The value of a sample, as the admin listener shows it.
    fn metric(&self, sample: &str) -> f64 {
        metric_at(self.admin, sample)
    }

    fn wait_for_readiness(&self, code: u16, reason: &str) {
        wait_for_readiness(self.admin, code, reason);
    }

    fn log(&self) -> PathBuf {
        self.fixture.path("log/1")
    }

    fn wait_for_end(&self) {
        wait_until("the mirrored log has the session's end", || {
            let mut reader = Reader::open(self.log(), 1).unwrap();
            iter::from_fn(|| reader.next().map(|entry| entry.flags))
                .any(|flags| flags & u16::from(PacketFlags::END_OF_SESSION.0) != 0)
        });
    }

    /// What `mdgw live` of this host sends of the whole day.
    fn records(&self, schemas: &[Schema]) -> Vec<Vec<Vec<u8>>> {
        let (live, address) = start_live(&self.fixture);
        let records = schemas.iter().map(|schema| {
            let all = vec![subscription(*schema, Symbols::All, 0)];
            run(Session::until_replayed(&[address], all, Compression::None)).records
        });
        let records = records.collect();
        let _ = live.stop_with(Signal::Terminate).expect_code(0);
        records
    }
}

/// The messages of a log and the gaps that its gateway declared, each with its session, byte for byte.
fn frames(log: &Path) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(log, 1).unwrap();
    let mut frames = Vec::new();
    while let Some(entry) = reader.next() {
        let mut rest = entry.payload;
        while let Ok((header, _)) = FrameHeader::ref_from_prefix(rest) {
            let (frame, behind) = rest.split_at(FRAME_HEADER_BYTES + usize::from(header.body_bytes.get()));
            if header.kind != FrameKind::State as u8 {
                frames.push([&entry.session, frame].concat());
            }
            rest = behind;
        }
    }
    frames
}

fn has_holes(log: &Path) -> bool {
    let mut reader = Reader::open(log, 1).unwrap();
    let mut last = None;
    while let Some(entry) = reader.next() {
        if last.is_some_and(|(session, next)| session == entry.session && entry.first > next) {
            return true;
        }
        last = Some((entry.session, entry.next));
    }
    false
}

#[test]
fn clients_of_a_mirror_get_the_day_although_its_lines_lose_packets() {
    let gateways_host = GatewayFixture::new();
    let day = TradingDay::of(&gateways_host, 20_000);
    let gateway = day.gateway(&gateways_host, &GatewayOptions::itch());
    let host = MirrorHost::of(&[&gateways_host]);
    let network = host.network(LineImpairment { loss: 0.1, duplicate: 0.05, reorder: 0.05, skew_ns: 0 });
    let mirror = host.start();
    day.play_first_half(&gateways_host);
    day.play_second_half(&gateways_host);
    host.wait_for_end();
    let schemas = [Schema::Mbo, Schema::Mbp1, Schema::Definition, Schema::Status];
    for (schema, received) in schemas.iter().zip(host.records(&schemas)) {
        let expected = records_of(&replay_offline(&gateways_host, schema.as_str()));
        assert!(received == expected && !expected.is_empty(), "{schema}: {} of {}", received.len(), expected.len());
    }
    let (received, forwarded) = network.counts();
    assert!(forwarded < received, "the network lost nothing");
    assert_eq!(frames(&host.log()), frames(&gateways_host.path("log/1")));
    assert!(!has_holes(&host.log()));
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    let mirror = mirror.stop_with(Signal::Terminate).expect_code(0);
    assert!(
        mirror.stdout.contains("channel 1 (one): messages ") && mirror.stdout.contains(", lost 0, "),
        "{}",
        mirror.stdout
    );
}

#[test]
fn a_mirror_that_is_killed_goes_on_with_nothing_missing_and_nothing_twice() {
    let gateways_host = GatewayFixture::new();
    let day = TradingDay::of(&gateways_host, 20_000);
    let gateway = day.gateway(&gateways_host, &GatewayOptions::itch());
    let host = MirrorHost::of(&[&gateways_host]);
    let _network = host.network(NO_DAMAGE);
    thread::scope(|scope| {
        let mut mirror = host.start();
        let venue = scope.spawn(|| day.play_first_half(&gateways_host));
        for wanted in [500, 1_500, 3_000] {
            wait_until("the mirror has some of the day", || frames(&host.log()).len() > wanted);
            let _ = mirror.stop_with(Signal::Kill);
            mirror = host.start();
        }
        venue.join().unwrap();
        // Away while the venue sends the second half, and its end.
        let _ = mirror.stop_with(Signal::Kill);
        day.play_second_half(&gateways_host);
        mirror = host.start();
        host.wait_for_end();
        let mirror = mirror.stop_with(Signal::Terminate).expect_code(0);
        assert!(mirror.stdout.contains(", lost 0, "), "{}", mirror.stdout);
    });
    assert_eq!(frames(&host.log()), frames(&gateways_host.path("log/1")));
    assert!(!has_holes(&host.log()));
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_mirror_follows_the_pair_through_a_failover() {
    let mut pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
    let day = TradingDay::of(pair.gateways.fixture(1), 20_000);
    pair.start(1);
    pair.wait_until_leads(1);
    pair.start(2);
    let host = MirrorHost::of(&[pair.gateways.fixture(1), pair.gateways.fixture(2)]);
    let _network = host.network(NO_DAMAGE);
    let mirror = host.start();
    day.play_first_half(pair.gateways.fixture(1));
    pair.gateways.kill(1);
    pair.wait_until_leads(2);
    day.play_second_half(pair.gateways.fixture(1));
    host.wait_for_end();
    let expected = records_of(&pair.gateways.fixture(1).path("expected.dbn"));
    let received = host.records(&[Schema::Mbo]).remove(0);
    assert!(received == expected, "{} of {}", received.len(), expected.len());
    let _ = mirror.stop_with(Signal::Terminate).expect_code(0);
    pair.gateways.stop(2);
}

#[test]
fn what_nobody_retransmits_is_a_hole_behind_which_records_carry_the_mark() {
    let gateways_host = GatewayFixture::new();
    let day = TradingDay::of(&gateways_host, 20_000);
    let gateway = day.gateway(&gateways_host, &GatewayOptions::itch());
    let host = MirrorHost::of(&[&gateways_host]).without_services();
    let packets = feeds::capture_packets(&gateways_host.path("morning.pcap"));
    let (early, missed) = packets.split_at(packets.len() / 2);
    let [early, missed] = [("early.pcap", early), ("missed.pcap", missed)].map(|(name, packets)| {
        let path = gateways_host.path(name);
        feeds::write_capture(&path, feeds::DESTINATIONS[0], packets);
        path
    });
    let network = host.network(NO_DAMAGE);
    let mirror = host.start();
    trading_day::play(&early, &gateways_host);
    wait_until("the mirror has the beginning", || {
        frames(&host.log()).len() == frames(&gateways_host.path("log/1")).len()
    });
    drop(network);
    trading_day::play(&missed, &gateways_host);
    let _network = host.network(NO_DAMAGE);
    day.play_second_half(&gateways_host);
    host.wait_for_end();
    let expected = records_of(&gateways_host.path("expected.dbn"));
    let received = host.records(&[Schema::Mbo]).remove(0);
    expect_one_hole(&received, &expected);
    assert!(has_holes(&host.log()));
    // The alarm is logged within a second.
    wait_until("the hole is an alarm", || host.metric("mdgw_alarms_total{alarm=\"mirror-hole\"}") > 0.0);
    let of_channel = |name: &str| host.metric(&format!("mdgw_mirror_channel_{name}{{channel=\"one\"}}"));
    let [messages, lost, entries] = ["messages_total", "lost_messages_total", "entries_total"].map(of_channel);
    assert!(lost > 0.0 && of_channel("entries_unwritten_total") == 0.0, "{lost}");
    let end = Reader::open(host.log(), 1).unwrap().last_entry().unwrap().unwrap().1;
    assert_eq!(of_channel("next_sequence").to_string(), end.to_string());
    assert_eq!(of_channel("log_failures_total"), 0.0);
    let mirror = mirror.stop_with(Signal::Terminate).expect_code(0);
    assert!(mirror.stderr.contains("messages were not received, the log has a hole"), "{}", mirror.stderr);
    assert!(mirror.stderr.contains("alarm=\"mirror-hole\""), "{}", mirror.stderr);
    let printed = format!(
        "channel 1 (one): messages {messages}, in gaps of the gateway 0, lost {lost}, entries {entries}, of them without space 0\n"
    );
    assert!(mirror.stdout.contains(&printed), "{printed}: {}", mirror.stdout);
    assert!(try_get_at(host.admin, "/live").is_err());
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Heartbeats come each second, and ten seconds without any packet are silence.
#[test]
fn a_mirror_without_packets_is_not_ready_and_raises_an_alarm_until_they_come_again() {
    let gateways_host = GatewayFixture::new();
    let day = TradingDay::of(&gateways_host, 1_000);
    let gateway = day.gateway(&gateways_host, &GatewayOptions::itch());
    let host = MirrorHost::of(&[&gateways_host]);
    let mirror = host.start();
    host.wait_for_readiness(503, "a group has received nothing yet");
    assert_eq!((get_at(host.admin, "/live").0, get_at(host.admin, "/leader").0), (200, 404));
    let network = host.network(NO_DAMAGE);
    day.play_first_half(&gateways_host);
    host.wait_for_readiness(200, "running");
    let of_group = |name: &str| host.metric(&format!("mdgw_mirror_group_{name}{{group=\"1\"}}"));
    assert!(of_group("packets_total") > 0.0 && of_group("silence_seconds") < 10.0);
    assert!(of_group("requests_total") > 0.0 && of_group("receive_buffer_bytes") > 0.0);
    assert_eq!(of_group("refused_total"), 0.0);

    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    SockRef::from(&sender).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    sender.send_to(b"no packet", host.fixture.output).unwrap();
    wait_until("the datagram is refused", || of_group("refused_total") == 1.0);
    assert_eq!(host.metric("mdgw_mirror_group_dropped_total{group=\"1\",reason=\"header_truncated\"}"), 1.0);
    wait_until("the refusal is an alarm", || host.metric("mdgw_alarms_total{alarm=\"mirror-refused\"}") == 1.0);

    // The start may have been silent for long.
    let silences = host.metric("mdgw_alarms_total{alarm=\"mirror-silent\"}");
    drop(network);
    host.wait_for_readiness(503, "no packet and no heartbeat arrives for a group; see the log");
    assert!(of_group("silence_seconds") >= 10.0);
    assert_eq!(host.metric("mdgw_alarms_total{alarm=\"mirror-silent\"}"), silences + 1.0);
    let _network = host.network(NO_DAMAGE);
    host.wait_for_readiness(200, "running");
    let mirror = mirror.stop_with(Signal::Terminate).expect_code(0);
    assert!(mirror.stderr.contains("ends=\"mirror-silent\""), "{}", mirror.stderr);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Packets that the mirror does not use leave its logs empty, however many arrive.
#[test]
fn a_mirror_that_receives_only_packets_of_another_group_or_key_is_not_ready() {
    let gateways_host = GatewayFixture::new();
    let keys = ["key", "other_key"].map(|name| gateways_host.path(name));
    keys.iter().zip([0x5a, 0xa5]).for_each(|(path, byte)| write_key_of(path, byte));
    let with_key = |path: &Path| GatewayOptions {
        output: format!("tag_key_files = [\"{}\"]\n", text(path)),
        ..GatewayOptions::itch()
    };
    let day = TradingDay::of(&gateways_host, 1_000);
    let gateway = day.gateway(&gateways_host, &with_key(&keys[0]));
    let of_other_key = MirrorHost::with_options(&[&gateways_host], &with_key(&keys[1]));
    let of_other_group = MirrorHost::with_options(&[&gateways_host], &with_key(&keys[0]));
    let config = of_other_group.fixture.path("gateway.toml");
    let content = fs::read_to_string(&config).unwrap();
    let content = content.replace("id = 1\n", "id = 1\ngroup = 2\n").replace("groups = [1]", "groups = [2]");
    fs::write(config, content).unwrap();
    let hosts = [(of_other_key, 1, "tag_invalid"), (of_other_group, 2, "channel_unknown")];
    let networks = hosts.each_ref().map(|(host, ..)| host.network(NO_DAMAGE));
    let mirrors = hosts.each_ref().map(|(host, ..)| host.start());
    day.play_first_half(&gateways_host);
    for (host, group, reason) in &hosts {
        let dropped = format!("mdgw_mirror_group_dropped_total{{group=\"{group}\",reason=\"{reason}\"}}");
        wait_until(&format!("packets are dropped: {reason}"), || host.metric(&dropped) > 10.0);
        let (code, text) = get_at(host.admin, "/ready");
        assert_eq!((code, text.trim()), (503, "a group has received nothing yet"), "{reason}");
    }
    drop(networks);
    for mirror in mirrors {
        let _ = mirror.stop_with(Signal::Terminate).expect_code(0);
    }
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_log_that_is_mirrored_has_no_second_writer() {
    let gateways_host = GatewayFixture::new();
    let host = MirrorHost::of(&[&gateways_host]);
    let mirror = process::start(host.command());
    mirror.wait_for_stderr("mirror: ready");
    mirror.signal(Signal::HangUp);
    let gateway = ["run".to_owned(), text(&host.fixture.path("gateway.toml")).to_owned()];
    for second in [host.command(), gateway.to_vec()] {
        let refused = process::run(second).expect_code(1);
        assert!(refused.stderr.contains("already has a writer: a gateway, or `mdgw mirror`"), "{}", refused.stderr);
    }
    let _ = mirror.stop_with(Signal::Terminate).expect_code(0);
}
