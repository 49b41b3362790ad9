//! Subscribers that come late or hear badly get everything that the gateway still holds; strangers get nothing.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    io::ErrorKind,
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use mdgw_captures::damage::LineDamage;
use mdgw_feeds::{
    identity::{ChannelId, GroupId, Sequence},
    published::{
        packet::parse_packet,
        request::{RequestKind, ServiceRequest},
    },
};
use mdgw_tests::{
    day::{DATE, Day},
    feeds::{self, MIDNIGHT_NS},
    process::{self, PATIENCE, Signal},
    relay::Relay,
    site::{Site, Wanted, text, wait_until_joined},
};
use zerocopy::IntoBytes as _;

#[test]
fn a_subscriber_that_comes_late_gets_the_day_from_its_beginning() {
    let site = Site::new();
    let day = Day::of(&site, 20_000);
    let gateway = day.gateway(&site, &Wanted::itch());
    day.play_morning(&site);
    let (at_noon, noon) = day.tail(&site, "noon.dbn", &[]);
    day.play_afternoon(&site);
    let (at_night, night) = day.tail(&site, "night.dbn", &[]);
    for (tail, out) in [(at_noon, noon), (at_night, night)] {
        let tail = tail.end().with_code(0);
        assert!(!tail.stderr.contains("gap [") && !tail.stderr.contains("lost ["), "{}", tail.stderr);
        assert!(fs::read(out).unwrap() == day.expected, "{} differs from what an early one gets", tail.title);
    }
    let _ = gateway.end_by(Signal::Terminate).with_code(0);
}

#[test]
fn a_subscriber_that_comes_after_several_sessions_gets_all_of_the_day() {
    let site = Site::new();
    let sessions = (0..).zip([*b"MDGWSIM001", *b"MDGWSIM002", *b"MDGWSIM003"]);
    let packets: Vec<_> = sessions
        .flat_map(|(number, name)| {
            let day = feeds::itch_day(3_000, 8 + number);
            feeds::itch_packets(day, name, MIDNIGHT_NS + number * 60_000_000_000_000)
        })
        .collect();
    let capture = site.path("three.pcap");
    feeds::write_capture(&capture, feeds::DESTINATIONS[0], &packets);
    let out = site.path("expected.dbn");
    let offline = ["replay", "--offline", text(&capture), "--feed", "nasdaq-itch-5.0", "--date", DATE, "--json"];
    let fixed = ["--schema", "mbo", "--ts-recv", "none", "-o"];
    let made = process::run(offline.iter().chain(&fixed).chain(&[text(&out)])).with_code(0).json();
    assert_eq!(made["total"]["sessions"], 3, "{made}");
    let (count, expected) = (made["output"]["records"].to_string(), fs::read(out).unwrap());

    let wanted = Wanted { has_recovery: false, ..Wanted::itch() };
    let gateway = site.gateway(&wanted, &["--date", DATE, "--ts-recv", "none"]);
    let tail = |name: &str| {
        let out = site.path(name);
        let tail = site.tail(&[["--count", &count].as_slice(), &fixed, &[text(&out)]].concat());
        (tail, out)
    };
    let (early, early_out) = tail("early.dbn");
    let line = site.lines[0].to_string();
    let replay = ["replay", text(&capture), "--to", &line, "--rate", "5000", "--interface", "127.0.0.1"];
    let _ = process::run(replay).with_code(0);
    let early = early.end().with_code(0);
    let (late, late_out) = tail("late.dbn");
    let late = late.end().with_code(0);
    for (tail, out) in [(early, early_out), (late, late_out)] {
        let begun = tail.stderr.lines().filter(|line| line.contains(": session ") && !line.contains("ended")).count();
        assert_eq!(begun, 3, "{}", tail.stderr);
        assert!(!tail.stderr.contains("lost ["), "{}", tail.stderr);
        assert!(fs::read(out).unwrap() == expected, "{} is not the whole day", tail.title);
    }
    let _ = gateway.end_by(Signal::Terminate).with_code(0);
}

#[test]
fn a_subscriber_that_comes_after_an_idle_restart_of_the_gateway_gets_the_day() {
    let site = Site::new();
    let day = Day::of(&site, 20_000);
    let gateway = day.gateway(&site, &Wanted::itch());
    day.play_morning(&site);
    day.play_afternoon(&site);
    let _ = gateway.end_by(Signal::Terminate).with_code(0);
    let gateway = day.gateway(&site, &Wanted::itch());
    let (tail, out) = day.tail(&site, "after.dbn", &[]);
    let tail = tail.end().with_code(0);
    assert!(!tail.stderr.contains("lost ["), "{}", tail.stderr);
    assert!(fs::read(out).unwrap() == day.expected, "not what came out before the restart");
    let _ = gateway.end_by(Signal::Terminate).with_code(0);
}

#[test]
fn a_subscriber_that_comes_after_a_reboot_hears_where_the_day_stands() {
    let site = Site::new();
    let day = Day::of(&site, 20_000);
    let gateway = day.gateway(&site, &Wanted::itch());
    day.play_morning(&site);
    let _ = gateway.end_by(Signal::Terminate).with_code(0);
    // Where the log lies in memory, it goes with the machine.
    fs::remove_dir_all(site.path("log")).unwrap();
    let gateway = day.gateway(&site, &Wanted::itch());
    let (tail, _) = day.tail(&site, "after.dbn", &[]);
    // The venue has said nothing yet.
    tail.says(": session ");
    day.play_afternoon(&site);
    let tail = tail.end();
    // What lay in sockets when the gateway ended is declared, as whatever comes while nobody listens.
    assert!(!tail.stderr.contains("lost ["), "{}", tail.stderr);
    assert_eq!(tail.code, Some(i32::from(tail.stderr.contains("gap ["))), "{}", tail.stderr);
    let _ = gateway.end_by(Signal::Terminate).with_code(0);
}

#[test]
fn a_subscriber_that_begins_now_gets_the_rest_and_all_names() {
    let site = Site::new();
    let day = Day::of(&site, 20_000);
    let gateway = day.gateway(&site, &Wanted::itch());
    day.play_morning(&site);
    let (tail, out) = day.tail(&site, "now.dbn", &["--from-now"]);
    // Joined and told where the day stands, or it would begin with the afternoon's first packet whatever it does.
    tail.says(": session ");
    day.play_afternoon(&site);
    let tail = tail.end().with_code(0);
    let _ = gateway.end_by(Signal::Terminate).with_code(0);
    assert!(tail.stderr.contains(&format!("of {} instruments", feeds::STOCKS)), "{}", tail.stderr);
    let (found, expected) = (records(&fs::read(out).unwrap()), records(&day.expected));
    assert!(!found.is_empty() && found.len() < expected.len(), "{} of {}", found.len(), expected.len());
    assert!(expected.ends_with(&found), "it is the end of the day");
}

#[test]
fn a_log_that_has_let_go_of_the_morning_gives_what_it_holds_and_all_names() {
    let site = Site::new();
    let day = Day::of(&site, 60_000);
    let wanted = Wanted { segment_bytes: 1 << 20, retention_bytes: 4 << 20, ..Wanted::itch() };
    let gateway = day.gateway(&site, &wanted);
    day.play_morning(&site);
    day.play_afternoon(&site);
    let (tail, out) = day.tail(&site, "late.dbn", &[]);
    let tail = tail.end().with_code(0);
    let _ = gateway.end_by(Signal::Terminate).with_code(0);
    let (found, expected) = (records(&fs::read(out).unwrap()), records(&day.expected));
    assert!(expected.ends_with(&found), "it is the end of the day: {} of {}", found.len(), expected.len());
    assert!(found.len() < expected.len(), "the log was to be too small for the day");
    assert!(found.len() > 1 << 20, "it holds its megabytes: {}", found.len());
    assert!(!tail.stderr.contains("lost ["), "what was gone before it came was never its own: {}", tail.stderr);
}

#[test]
fn packets_lost_between_gateway_and_subscriber_are_asked_for() {
    for seed in 1..=3 {
        let site = Site::new();
        let behind = Site::new();
        let day = Day::of(&site, 20_000);
        let gateway = day.gateway(&site, &Wanted::itch());
        let damage = LineDamage { loss: 0.1, duplicate: 0.05, reorder: 0.05, skew_ns: 0 };
        let relay = Relay::start(site.output, behind.output, damage, seed);
        let out = site.path("relayed.dbn");
        let schema = ["--schema", "mbo", "--ts-recv", "none", "--until-ended", "-o", text(&out)];
        let tail = site.start_tail(behind.output, &schema);
        wait_until_joined(behind.output, 1);
        day.play_morning(&site);
        day.play_afternoon(&site);
        let tail = tail.end().with_code(0);
        let (came, went) = relay.counts();
        assert!(went < came && came > 1_000, "seed {seed}: {came} came, {went} went on");
        assert!(!tail.stderr.contains("lost ["), "seed {seed}: {}", tail.stderr);
        assert!(fs::read(out).unwrap() == day.expected, "seed {seed}: not what came out of the gateway");
        let _ = gateway.end_by(Signal::Terminate).with_code(0);
    }
}

#[test]
fn only_configured_networks_are_answered_and_a_reload_lets_others_in() {
    let site = Site::new();
    let day = Day::of(&site, 2_000);
    let wanted = Wanted { allowed: "127.0.0.2/32", has_recovery: false, ..Wanted::itch() };
    let gateway = day.gateway(&site, &wanted);
    day.play_morning(&site);
    let [stranger, friend] =
        [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)].map(|address| Asker::new(&site, address));

    stranger.ask();
    friend.ask();
    assert!(friend.is_answered_within(PATIENCE), "the friend is answered");
    // One thread answers in order: whatever the stranger would get has been sent.
    assert!(!stranger.is_answered_within(Duration::from_millis(1)), "the stranger is not");

    let late = site.tail(&["--exit-idle-s", "3"]).end();
    assert!(late.stderr.contains("channel 1: no retransmission service answered"), "{}", late.stderr);

    let path = site.config(&Wanted { allowed: "127.0.0.0/8", ..wanted });
    assert!(path.is_file());
    gateway.signal(Signal::HangUp);
    gateway.says("configuration read again");
    // The service takes up its new limits when it next looks.
    let is_let_in = (0..100).any(|_| {
        stranger.ask();
        stranger.is_answered_within(Duration::from_millis(200))
    });
    assert!(is_let_in, "the stranger is let in");
    let _ = gateway.end_by(Signal::Terminate).with_code(0);
}

/// The records of a DBN file, without its metadata.
fn records(file: &[u8]) -> Vec<u8> {
    let metadata_bytes = 8 + u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize;
    file[metadata_bytes..].to_vec()
}

/// Somebody who asks the retransmission service from a certain address.
struct Asker(UdpSocket);

impl Asker {
    fn new(site: &Site, address: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        socket.connect(site.retransmission).unwrap();
        Self(socket)
    }

    fn ask(&self) {
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

    fn is_answered_within(&self, patience: Duration) -> bool {
        self.0.set_read_timeout(Some(patience)).unwrap();
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
