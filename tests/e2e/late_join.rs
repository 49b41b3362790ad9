//! Subscribers that join late or lose packets get everything that the gateway still holds; hosts that are not allowed
//! get nothing.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    io::ErrorKind,
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use mdgw_captures::{
    capture_file::{CaptureFile, OpenOptions},
    impairment::LineImpairment,
};
use mdgw_feeds::{
    identity::{ChannelId, GroupId, Sequence},
    published::{
        packet::{PACKET_BYTES_MAX, parse_packet},
        request::{RequestKind, ServiceRequest},
    },
};
use mdgw_tests::{
    feeds::{self, MIDNIGHT_NS},
    gateway_fixture::{GatewayFixture, GatewayOptions, text, wait_until_joined},
    process::{self, Signal},
    relay::LossyRelay,
    tap::Tap,
    trading_day::{DATE, TradingDay},
};
use zerocopy::IntoBytes as _;

#[test]
fn a_late_subscriber_receives_the_whole_day() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 20_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    day.play_first_half(&fixture);
    let (mid_day_tail, noon) = day.tail(&fixture, "noon.dbn", &[]);
    day.play_second_half(&fixture);
    let (end_of_day_tail, night) = day.tail(&fixture, "night.dbn", &[]);
    for (tail, out) in [(mid_day_tail, noon), (end_of_day_tail, night)] {
        let tail = tail.end().expect_code(0);
        assert!(!tail.stderr.contains("gap [") && !tail.stderr.contains("lost ["), "{}", tail.stderr);
        assert!(
            fs::read(out).unwrap() == day.expected,
            "{} differs from the file of an early subscriber",
            tail.command_line
        );
    }
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Packets as large as a gateway can be configured to publish.
#[test]
fn large_packets_are_received() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 20_000);
    let options = GatewayOptions { output: "payload_bytes_max = 8972\n".to_owned(), ..GatewayOptions::itch() };
    let gateway = day.gateway(&fixture, &options);
    let (tail, out) = day.tail(&fixture, "large.dbn", &[]);
    wait_until_joined(fixture.output, 1);
    let tap = Tap::start(fixture.output, &fixture.path("large.pcap"));
    day.play_first_half(&fixture);
    day.play_second_half(&fixture);
    let tail = tail.end().expect_code(0);
    assert!(!tail.stderr.contains("refused"), "{}", tail.stderr);
    assert!(fs::read(out).unwrap() == day.expected, "differs from the expected records");
    let _datagrams = tap.finish();
    let mut capture = CaptureFile::open(&fixture.path("large.pcap"), &OpenOptions::default()).unwrap();
    let mut largest = 0;
    while let Some(datagram) = capture.next_datagram().unwrap() {
        largest = largest.max(datagram.payload.len());
    }
    assert!(largest > PACKET_BYTES_MAX, "the day has no packet larger than {largest} bytes");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_subscriber_joining_after_several_sessions_receives_all_of_them() {
    let fixture = GatewayFixture::new();
    let sessions = (0..).zip([*b"MDGWSIM001", *b"MDGWSIM002", *b"MDGWSIM003"]);
    let packets: Vec<_> = sessions
        .flat_map(|(number, name)| {
            let day = feeds::itch_day(3_000, 8 + number);
            feeds::itch_packets(day, name, MIDNIGHT_NS + number * 60_000_000_000_000)
        })
        .collect();
    let capture = fixture.path("three.pcap");
    feeds::write_capture(&capture, feeds::DESTINATIONS[0], &packets);
    let out = fixture.path("expected.dbn");
    let offline = ["replay", "--offline", text(&capture), "--feed", "nasdaq-itch-5.0", "--date", DATE, "--json"];
    let fixed = ["--schema", "mbo", "--ts-recv", "none", "-o"];
    let replayed = process::run(offline.iter().chain(&fixed).chain(&[text(&out)])).expect_code(0).json();
    assert_eq!(replayed["total"]["sessions"], 3, "{replayed}");
    let (count, expected) = (replayed["output"]["records"].to_string(), fs::read(out).unwrap());

    let wanted = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let gateway = fixture.gateway(&wanted, &["--date", DATE, "--ts-recv", "none"]);
    let tail = |name: &str| {
        let out = fixture.path(name);
        let tail = fixture.tail(&[["--count", &count].as_slice(), &fixed, &[text(&out)]].concat());
        (tail, out)
    };
    let (early, early_out) = tail("early.dbn");
    let line = fixture.lines[0].to_string();
    let replay = ["replay", text(&capture), "--to", &line, "--rate", "5000", "--interface", "127.0.0.1"];
    let _ = process::run(replay).expect_code(0);
    let early = early.end().expect_code(0);
    let (late, late_out) = tail("late.dbn");
    let late = late.end().expect_code(0);
    for (tail, out) in [(early, early_out), (late, late_out)] {
        let session_lines =
            tail.stderr.lines().filter(|line| line.contains(": session ") && !line.contains("ended")).count();
        assert_eq!(session_lines, 3, "{}", tail.stderr);
        assert!(!tail.stderr.contains("lost ["), "{}", tail.stderr);
        assert!(fs::read(out).unwrap() == expected, "{} is not the whole day", tail.command_line);
    }
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_subscriber_joining_after_a_gateway_restart_receives_the_whole_day() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 20_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    day.play_first_half(&fixture);
    day.play_second_half(&fixture);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let (tail, out) = day.tail(&fixture, "after.dbn", &[]);
    let tail = tail.end().expect_code(0);
    assert!(!tail.stderr.contains("lost ["), "{}", tail.stderr);
    assert!(fs::read(out).unwrap() == day.expected, "differs from the output before the restart");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_subscriber_joining_after_log_loss_receives_the_current_session() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 20_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    day.play_first_half(&fixture);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    // A log in memory is lost with the machine.
    fs::remove_dir_all(fixture.path("log")).unwrap();
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let (tail, _) = day.tail(&fixture, "after.dbn", &[]);
    // The venue has sent nothing yet.
    tail.wait_for_stderr(": session ");
    day.play_second_half(&fixture);
    let tail = tail.end();
    // Packets in the sockets when the gateway ended, and packets that arrive while no gateway runs, are declared as a gap.
    assert!(!tail.stderr.contains("lost ["), "{}", tail.stderr);
    assert_eq!(tail.code, Some(i32::from(tail.stderr.contains("gap ["))), "{}", tail.stderr);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn from_now_delivers_the_rest_and_all_definitions() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 20_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    day.play_first_half(&fixture);
    let (tail, out) = day.tail(&fixture, "now.dbn", &["--from-now"]);
    // Wait until the subscriber has joined and received the present position. Otherwise it would begin at the first packet
    // of the second half in any case.
    tail.wait_for_stderr(": session ");
    day.play_second_half(&fixture);
    let tail = tail.end().expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    assert!(tail.stderr.contains(&format!("of {} instruments", feeds::STOCKS)), "{}", tail.stderr);
    let (found, expected) = (records(&fs::read(out).unwrap()), records(&day.expected));
    assert!(!found.is_empty() && found.len() < expected.len(), "{} of {}", found.len(), expected.len());
    assert!(expected.ends_with(&found), "not the end of the day");
}

#[test]
fn an_expired_log_delivers_what_it_retains_and_all_definitions() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 60_000);
    let wanted = GatewayOptions { segment_bytes: 1 << 20, retention_bytes: 4 << 20, ..GatewayOptions::itch() };
    let gateway = day.gateway(&fixture, &wanted);
    day.play_first_half(&fixture);
    day.play_second_half(&fixture);
    let (tail, out) = day.tail(&fixture, "late.dbn", &[]);
    let tail = tail.end().expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    let (found, expected) = (records(&fs::read(out).unwrap()), records(&day.expected));
    assert!(expected.ends_with(&found), "not the end of the day: {} of {} bytes", found.len(), expected.len());
    assert!(found.len() < expected.len(), "the log must be too small for the day");
    assert!(found.len() > 1 << 20, "the log holds less than expected: {}", found.len());
    assert!(
        !tail.stderr.contains("lost ["),
        "records that the log had expired before the join are not losses: {}",
        tail.stderr
    );
}

#[test]
fn packets_lost_before_the_subscriber_are_retransmitted() {
    for seed in 1..=3 {
        let fixture = GatewayFixture::new();
        let lossy_fixture = GatewayFixture::new();
        let day = TradingDay::of(&fixture, 20_000);
        let gateway = day.gateway(&fixture, &GatewayOptions::itch());
        let damage = LineImpairment { loss: 0.1, duplicate: 0.05, reorder: 0.05, skew_ns: 0 };
        let relay = LossyRelay::start(fixture.output, lossy_fixture.output, damage, seed);
        let out = fixture.path("relayed.dbn");
        let schema = ["--schema", "mbo", "--ts-recv", "none", "--until-ended", "-o", text(&out)];
        let tail = fixture.start_tail(lossy_fixture.output, &schema);
        wait_until_joined(lossy_fixture.output, 1);
        day.play_first_half(&fixture);
        day.play_second_half(&fixture);
        let tail = tail.end().expect_code(0);
        let (received_count, forwarded_count) = relay.counts();
        assert!(
            forwarded_count < received_count && received_count > 1_000,
            "seed {seed}: {received_count} received, {forwarded_count} forwarded"
        );
        assert!(!tail.stderr.contains("lost ["), "seed {seed}: {}", tail.stderr);
        assert!(fs::read(out).unwrap() == day.expected, "seed {seed}: differs from the output of the gateway");
        let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    }
}

#[test]
fn only_allowed_networks_are_served_and_a_reload_extends_them() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 2_000);
    let wanted = GatewayOptions { allowed: "127.0.0.2/32", has_recovery: false, ..GatewayOptions::itch() };
    let gateway = day.gateway(&fixture, &wanted);
    day.play_first_half(&fixture);
    let [denied, allowed] =
        [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)].map(|address| RetransmissionClient::new(&fixture, address));

    // The service answers once the gateway has published the session.
    let is_served = (0..100).any(|_| {
        denied.send_request();
        allowed.send_request();
        allowed.is_answered_within(Duration::from_millis(200))
    });
    assert!(is_served, "no answer to the allowed host");
    // One thread answers in order: an answer to the other host would have been sent by now.
    assert!(!denied.is_answered_within(Duration::from_millis(1)), "an answer to the denied host");

    let late = fixture.tail(&["--exit-idle-s", "3"]).end();
    assert!(late.stderr.contains("channel 1: no retransmission service answered"), "{}", late.stderr);

    let path = fixture.config(&GatewayOptions { allowed: "127.0.0.0/8", ..wanted });
    assert!(path.is_file());
    gateway.signal(Signal::HangUp);
    gateway.wait_for_stderr("configuration reloaded");
    // The service applies its new limits in its next poll.
    let is_served = (0..100).any(|_| {
        denied.send_request();
        denied.is_answered_within(Duration::from_millis(200))
    });
    assert!(is_served, "no answer to the newly allowed host");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The records of a DBN file, without its metadata.
fn records(file: &[u8]) -> Vec<u8> {
    let metadata_bytes = 8 + u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize;
    file[metadata_bytes..].to_vec()
}

/// Sends requests to the retransmission service from a given address.
struct RetransmissionClient(UdpSocket);

impl RetransmissionClient {
    fn new(fixture: &GatewayFixture, address: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        socket.connect(fixture.retransmission).unwrap();
        Self(socket)
    }

    fn send_request(&self) {
        let request = ServiceRequest {
            kind: RequestKind::Range,
            group: GroupId(1),
            channel: ChannelId(1),
            session: None,
            first: Sequence(1),
            next: Sequence(100),
            nonce: 7,
        };
        self.0.send(request.to_packet().as_bytes()).unwrap();
    }

    fn is_answered_within(&self, limit: Duration) -> bool {
        self.0.set_read_timeout(Some(limit)).unwrap();
        let mut datagram = [0; 2_048];
        match self.0.recv(&mut datagram) {
            Ok(length) => {
                parse_packet(&datagram[..length]).expect("an answer is a published packet");
                true
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                false
            }
        }
    }
}

#[test]
fn a_gateway_that_starts_in_mid_session_raises_an_alarm() {
    for starts_late in [false, true] {
        let fixture = GatewayFixture::new();
        let day = TradingDay::of(&fixture, 2_000);
        let gateway = day.gateway(&fixture, &GatewayOptions::itch());
        if !starts_late {
            day.play_first_half(&fixture);
        }
        day.play_second_half(&fixture);
        if starts_late {
            let _ = gateway.wait_for_stderr("alarm=\"late-start\"");
        }
        let ended = gateway.stop_with(Signal::Terminate).expect_code(0);
        assert_eq!(ended.stderr.contains("late-start"), starts_late, "{}", ended.stderr);
    }
}
