//! Packets that somebody else sends to the published group, as seen by `mdgw tail`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use mdgw_feeds::{
    identity::{ChannelId, Epoch, Feed, GroupId, Sequence, Session},
    published::packet::{PacketFlags, PacketMeta, write_packet},
    time::TradingDate,
};
use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text, wait_until_joined, write_key},
    process::{self, MdgwProcess, Signal},
};
use socket2::SockRef;

/// Sends a heartbeat with the highest possible epoch every 20 ms, from another address than the gateway's.
struct Forger {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Forger {
    fn start(group: SocketAddrV4) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 3), 0)).unwrap();
        SockRef::from(&socket).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
        let date = TradingDate::from_yyyymmdd(20_190_130).unwrap();
        let meta = PacketMeta {
            flags: PacketFlags::HEARTBEAT,
            group: GroupId(1),
            channel: ChannelId(1),
            epoch: Epoch(u64::MAX),
            session: Session { feed: Feed::NasdaqItch, date, restart: 0 },
            first: Sequence(1),
            next: Sequence(1),
            send_time_ns: 0,
        };
        let mut bytes = [0; 64];
        assert_eq!(write_packet(&meta, &[], &mut bytes), Some(64));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                socket.send_to(&bytes, group).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const SIM: [&str; 6] = ["--messages", "4000", "--stocks", "20", "--rate", "2000"];

/// A subscriber that knows no retransmission service.
fn start_tail_alone(fixture: &GatewayFixture, more: &[&str]) -> MdgwProcess {
    let line = fixture.output.to_string();
    let arguments = ["tail", "--line", &line, "--interface", "127.0.0.1", "--json", "--until-ended"];
    process::start(arguments.iter().chain(more))
}

/// Its control is the test below: the same, joined for any sender.
#[test]
fn tail_that_joins_for_the_gateways_address_receives_no_forged_packets() {
    let fixture = GatewayFixture::new();
    let gateway = fixture.gateway(&GatewayOptions::itch(), &["--date", "2019-01-30"]);
    let forger = Forger::start(fixture.output);
    let tail = start_tail_alone(&fixture, &["--source", "127.0.0.9", "--source", "127.0.0.1"]);
    wait_until_joined(fixture.output, 1);
    let _ = fixture.sim(&SIM).end().expect_code(0);
    let ended = tail.end().expect_code(0);
    drop(forger);
    assert!(ended.stdout.lines().count() > 1_000, "{}", ended.stderr);
    assert!(!ended.stderr.contains("refused"), "{}", ended.stderr);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Without a service too, and whatever epoch the forged packets claim. Its control is the test below.
#[test]
fn tail_with_a_key_refuses_forged_packets_and_receives_everything() {
    let fixture = GatewayFixture::new();
    let key_file = fixture.path("tag_key");
    write_key(&key_file);
    let options =
        GatewayOptions { output: format!("tag_key_files = [\"{}\"]\n", key_file.display()), ..GatewayOptions::itch() };
    let gateway = fixture.gateway(&options, &["--date", "2019-01-30"]);
    let forger = Forger::start(fixture.output);
    let more = ["--tag-key", text(&key_file), "--ts-recv", "none"];
    let tail = start_tail_alone(&fixture, &more);
    wait_until_joined(fixture.output, 1);
    let _ = fixture.sim(&SIM).end().expect_code(0);
    let disturbed = tail.end().expect_code(1);
    assert!(disturbed.stderr.contains(" packets: tag_missing ("), "{}", disturbed.stderr);
    drop(forger);
    // The configuration names the key too, and the retransmission service's answers have tags.
    let config = fixture.path("gateway.toml");
    let arguments = ["tail", text(&config), "--json", "--until-ended", "--ts-recv", "none"];
    let undisturbed = process::start(arguments).end().expect_code(0);
    assert!(undisturbed.stdout.lines().count() > 1_000, "{}", undisturbed.stderr);
    assert!(disturbed.stdout == undisturbed.stdout, "other records: {}", disturbed.stderr);
    // With another key `tail` receives nothing and reports the reason.
    write_other_key(&key_file);
    let tail = start_tail_alone(&fixture, &["--tag-key", text(&key_file), "--exit-idle-s", "0.5"]);
    let refused = tail.end().expect_code(1);
    assert!(refused.stdout.is_empty() && refused.stderr.contains(" packets: tag_invalid ("), "{}", refused.stderr);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

fn write_other_key(path: &Path) {
    write_key(path);
    fs::write(path, "08".repeat(32)).unwrap();
}

#[test]
fn tail_without_a_service_reports_rival_epochs_at_its_start_and_ends() {
    let fixture = GatewayFixture::new();
    let gateway = fixture.gateway(&GatewayOptions::itch(), &["--date", "2019-01-30"]);
    let forger = Forger::start(fixture.output);
    let tail = start_tail_alone(&fixture, &[]);
    wait_until_joined(fixture.output, 1);
    let _ = fixture.sim(&SIM).end().expect_code(0);
    let ended = tail.end().expect_code(2);
    drop(forger);
    assert!(ended.stderr.contains("rival epochs at the start"), "{}", ended.stderr);
    assert!(ended.stderr.contains("epoch_unconfirmed"), "the refused packets are counted: {}", ended.stderr);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn tail_with_a_service_receives_everything_and_reports_the_forged_packets() {
    let fixture = GatewayFixture::new();
    let gateway = fixture.gateway(&GatewayOptions::itch(), &["--date", "2019-01-30"]);
    let forger = Forger::start(fixture.output);
    let arguments = ["--json", "--until-ended", "--ts-recv", "none"];
    let tail = fixture.tail(&arguments);
    let _ = fixture.sim(&SIM).end().expect_code(0);
    let disturbed = tail.end().expect_code(1);
    assert!(disturbed.stderr.contains(" packets: epoch_jump ("), "{}", disturbed.stderr);
    // Control: without forged packets the same records come from the log, and the exit code is 0.
    drop(forger);
    let undisturbed = fixture.start_tail(fixture.output, &arguments).end().expect_code(0);
    assert!(undisturbed.stdout.lines().count() > 1_000, "{}", undisturbed.stderr);
    assert!(disturbed.stdout == undisturbed.stdout, "other records: {}", disturbed.stderr);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}
