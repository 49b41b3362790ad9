//! `mdgw mirror` on a host without a gateway: its logs have what the gateway published, and `mdgw live` serves them as those of a gateway.

use std::{
    fs, iter,
    net::SocketAddrV4,
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
    gateway_fixture::{GatewayFixture, GatewayOptions, text, wait_until_joined},
    process::{self, MdgwProcess, Signal, wait_until},
    relay::LossyRelay,
    trading_day::{self, TradingDay},
};
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
}

impl MirrorHost {
    fn of(gateways: &[&GatewayFixture]) -> Self {
        let fixture = GatewayFixture::new();
        let config = fixture.config(&GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
        let content = fs::read_to_string(&config).unwrap();
        let (before, rest) = content.split_once("[retransmission]").unwrap();
        let behind = rest.split_once("[latency]").unwrap().1;
        fs::write(config, format!("{before}[latency]{behind}")).unwrap();
        let services = gateways.iter().map(|gateway| gateway.retransmission.to_string()).collect();
        Self { fixture, output: gateways[0].output, services }
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
    let mirror = mirror.stop_with(Signal::Terminate).expect_code(0);
    assert!(mirror.stderr.contains("messages were not received, the log has a hole"), "{}", mirror.stderr);
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
