//! The same feed gives the same bytes: offline and over the network, complete or merged from two damaged lines, with
//! any number of threads, on either I/O backend, under each dispatch model.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use mdgw_tests::{
    captures,
    feeds::{self, DAMAGE, MIDNIGHT_NS, Packet, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, ExitedProcess},
    skip::skip_without_captures,
};
use tempfile::TempDir;

/// Threads of the pool and its I/O backend.
const POOLS: [(usize, &str); 6] =
    [(1, "epoll"), (2, "epoll"), (4, "epoll"), (1, "io_uring"), (2, "io_uring"), (4, "io_uring")];

const ITCH_MESSAGES: u64 = 50_000;
const DATE: &str = "2019-01-30";

#[test]
fn itch_offline_output_is_identical_from_one_line_and_two_lossy_lines() {
    let folder = tempfile::tempdir().unwrap();
    let packets = itch_packets(1);
    for schema in ["mbo", "mbp-10", "definition", "status,imbalance,statistics,trades,mbp-1"] {
        let whole = OfflineRun::of(&[&whole(&folder, &packets)], "nasdaq-itch-5.0", schema);
        assert!(whole.records() > 0, "{schema}: {}", whole.summary);
        for seed in 1..=3 {
            let lines = feeds::write_damaged_captures(folder.path(), &packets, DAMAGE, seed);
            let damaged = OfflineRun::of(&[&lines[0], &lines[1]], "nasdaq-itch-5.0", schema);
            damaged.assert_gaps_filled();
            assert_same(&whole.bytes, &damaged.bytes, &format!("{schema}, two lines damaged by seed {seed}"));
        }
    }
}

#[test]
fn different_days_give_different_output() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] =
        [1, 2].map(|seed| OfflineRun::of(&[&whole(&folder, &itch_packets(seed))], "nasdaq-itch-5.0", "mbo").bytes);
    assert!(one != other, "the comparison detects a difference");
}

#[test]
fn itch_live_output_equals_offline_for_all_threads_and_io_backends() {
    let folder = tempfile::tempdir().unwrap();
    let capture = whole(&folder, &itch_packets(1));
    for ((threads, io), schema) in POOLS.into_iter().zip(["mbo", "mbo", "mbo,definition,status"].iter().cycle()) {
        let expected = OfflineRun::of(&[&capture], "nasdaq-itch-5.0", schema);
        let seed = threads.to_string();
        let wanted = GatewayOptions { threads, io, ..GatewayOptions::itch() };
        let played = ["--capture", text(&capture), "--rate", "8000", "--seed", &seed, "--request-server"];
        let received = run_live(&wanted, schema, &played, &["--until-ended"]);
        let what = format!("{schema}, {threads} threads, {io}");
        received.assert_lines_lossy(&what);
        received.assert_complete(&what);
        assert_same(&expected.bytes, &received.bytes, &what);
    }
}

#[test]
fn itch_live_output_equals_offline_for_all_dispatch_models() {
    let folder = tempfile::tempdir().unwrap();
    let capture = whole(&folder, &itch_packets(1));
    let expected = OfflineRun::of(&[&capture], "nasdaq-itch-5.0", "mbo");
    for (dispatch, io) in
        [("half-sync", "epoll"), ("half-sync", "io_uring"), ("reactor", "epoll"), ("reactor", "io_uring")]
    {
        let wanted = GatewayOptions { dispatch, io, ..GatewayOptions::itch() };
        let played = ["--capture", text(&capture), "--rate", "8000", "--seed", "1", "--request-server"];
        let received = run_live(&wanted, "mbo", &played, &["--until-ended"]);
        let what = format!("{dispatch}, {io}");
        received.assert_lines_lossy(&what);
        received.assert_complete(&what);
        assert_same(&expected.bytes, &received.bytes, &what);
    }
}

#[test]
fn live_replay_of_two_captures_equals_offline_output() {
    let folder = tempfile::tempdir().unwrap();
    let packets = itch_packets(3);
    let expected = OfflineRun::of(&[&whole(&folder, &packets)], "nasdaq-itch-5.0", "mbo");
    // Two captured lines, each with some packets missing.
    let lines = feeds::write_damaged_captures(folder.path(), &feeds::evenly_spaced(&packets, 150_000), DAMAGE, 4);

    let fixture = GatewayFixture::new();
    let gateway = fixture.gateway(&GatewayOptions::itch(), &["--date", DATE, "--ts-recv", "none"]);
    let out = fixture.path("out.dbn");
    let tail = fixture.tail(&["--schema", "mbo", "--ts-recv", "none", "--until-ended", "-o", text(&out)]);
    let [a, b] = fixture.lines.map(|line| line.to_string());
    let to = ["replay", text(&lines[0]), text(&lines[1]), "--to", &a, "--to", &b, "--interface", "127.0.0.1"];
    let _ = process::run(to).expect_code(0);
    let _ = tail.end().expect_code(0);
    let _ = gateway.stop_with(process::Signal::Terminate).expect_code(0);
    assert_same(&expected.bytes, &fs::read(out).unwrap(), "replayed to the wire");
}

#[test]
fn a_sequence_jump_at_the_end_gives_the_same_output_live_and_offline() {
    // The last packets jump far ahead: first fewer packets than needed to confirm the jump, then just enough.
    let cases = [1, 3].map(|far| {
        std::thread::spawn(move || {
            let fixture = GatewayFixture::new();
            let capture = fixture.path("jump.pcap");
            let mut packets = feeds::itch_packets(feeds::itch_day(2_000, 5), SESSION, MIDNIGHT_NS);
            // From the middle of the day, so that the last packets contain orders.
            packets.truncate(packets.len() / 2);
            let first_jumped = packets.len() - far;
            for (_, bytes) in &mut packets[first_jumped..] {
                let mut datagram = bytes.to_vec();
                let sequence = u64::from_be_bytes(datagram[10..18].try_into().unwrap()) + 5_000_000;
                datagram[10..18].copy_from_slice(&sequence.to_be_bytes());
                *bytes = datagram.into();
            }
            feeds::write_capture(&capture, feeds::DESTINATIONS[0], &packets);
            let expected = OfflineRun::of(&[&capture], "nasdaq-itch-5.0", "mbo");
            let total = &expected.summary["total"];
            assert_eq!(total["lost_messages"], 5_000_000, "{total}");
            assert_eq!(total["drops"], serde_json::json!({}), "{total}");

            let gateway = fixture.gateway(
                &GatewayOptions { has_recovery: false, ..GatewayOptions::itch() },
                &["--date", DATE, "--ts-recv", "none"],
            );
            let (out, count) = (fixture.path("out.dbn"), expected.records().to_string());
            let tail = fixture.tail(&[
                "--schema",
                "mbo",
                "--ts-recv",
                "none",
                "--count",
                &count,
                "--exit-idle-s",
                "30",
                "-o",
                text(&out),
            ]);
            let line = fixture.lines[0].to_string();
            let replay = ["replay", text(&capture), "--to", &line, "--rate", "5000", "--interface", "127.0.0.1"];
            let _ = process::run(replay).expect_code(0);
            // The gap is declared, so the input was incomplete.
            let _ = tail.end().expect_code(1);
            let _ = gateway.stop_with(process::Signal::Terminate).expect_code(0);
            assert_same(&expected.bytes, &fs::read(out).unwrap(), &format!("{far} packets far ahead"));
        })
    });
    cases.into_iter().for_each(|case| case.join().unwrap());
}

#[test]
fn tops_output_is_identical_offline_lossy_and_live() {
    let Some(capture) = iex_capture("tops", "tops-1.6-20170710/TOPS16.pcap.gz") else { return };
    let folder = tempfile::tempdir().unwrap();
    let packets = feeds::evenly_spaced(&feeds::capture_packets(&capture), 10_000);
    for schema in ["mbp-1", "trades", "status"] {
        let whole = OfflineRun::of(&[&capture], "iex-tops-1.6", schema);
        for seed in 1..=3 {
            let lines = feeds::write_damaged_captures(folder.path(), &packets, DAMAGE, seed);
            let damaged = OfflineRun::of(&[&lines[0], &lines[1]], "iex-tops-1.6", schema);
            damaged.assert_gaps_filled();
            assert_same(&whole.bytes, &damaged.bytes, &format!("{schema}, two lines damaged by seed {seed}"));
        }
    }
    let expected = OfflineRun::of(&[&capture], "iex-tops-1.6", "mbp-1");
    for (threads, io) in [(1, "io_uring"), (2, "epoll"), (4, "io_uring")] {
        let wanted = GatewayOptions { threads, io, ..GatewayOptions::iex("iex-tops-1.6") };
        let received = run_live_without_loss(&wanted, "mbp-1", &capture, 8_000);
        let what = format!("mbp-1, {threads} threads, {io}");
        received.assert_lines_lossy(&what);
        assert_same(&expected.bytes, &received.bytes, &what);
    }
}

#[test]
fn deep_output_is_identical_offline_lossy_and_live_over_twelve_sessions() {
    let Some(capture) = iex_capture("deep", "deep-1.0-20170425/DEEP10.pcap.gz") else { return };
    let folder = tempfile::tempdir().unwrap();
    let whole = OfflineRun::of(&[&capture], "iex-deep-1.0", "mbp-10");
    assert_eq!(whole.summary["total"]["sessions"], 12, "{}", whole.summary);
    assert_eq!(whole.summary["total"]["lost_messages"], 0, "{}", whole.summary);
    let packets = feeds::evenly_spaced(&feeds::capture_packets(&capture), 10_000);
    for seed in 1..=2 {
        let lines = feeds::write_damaged_captures(folder.path(), &packets, DAMAGE, seed);
        let damaged = OfflineRun::of(&[&lines[0], &lines[1]], "iex-deep-1.0", "mbp-10");
        damaged.assert_gaps_filled();
        assert_eq!(damaged.summary["total"]["sessions"], 12, "{}", damaged.summary);
        assert_same(&whole.bytes, &damaged.bytes, &format!("mbp-10, two lines damaged by seed {seed}"));
    }
    let wanted = GatewayOptions { threads: 2, io: "epoll", ..GatewayOptions::iex("iex-deep-1.0") };
    let whole_capture = folder.path().join("whole.pcap");
    feeds::write_capture(&whole_capture, feeds::DESTINATIONS[0], &packets);
    let received = run_live_without_loss(&wanted, "mbp-10", &whole_capture, 15_000);
    received.assert_lines_lossy("deep");
    let sessions = received.tail.stderr.lines().filter(|line| line.contains(": session iex-deep-1.0 2017-04-25 #"));
    assert_eq!(
        sessions.filter(|line| !line.contains("ended")).count(),
        12,
        "{}{}",
        received.tail.stderr,
        received.gateway.stdout
    );
    assert_same(&whole.bytes, &received.bytes, "mbp-10 over the wire");
}

/// Output of `mdgw replay --offline`.
struct OfflineRun {
    bytes: Vec<u8>,
    summary: serde_json::Value,
}

impl OfflineRun {
    fn of(files: &[&Path], feed: &str, schema: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out.dbn");
        let mut arguments = vec!["replay", "--offline"];
        arguments.extend(files.iter().map(|file| text(file)));
        arguments.extend(["--feed", feed, "--schema", schema, "--ts-recv", "none", "--json", "-o", text(&out)]);
        if feed.contains("itch") {
            arguments.extend(["--date", DATE]);
        }
        let ended = process::run(arguments);
        // The long DEEP capture is truncated in its last packet. The replay reports that after all earlier records.
        assert!(ended.code == Some(0) || ended.stderr.contains("the file is truncated"), "{}", ended.stderr);
        Self { bytes: fs::read(out).unwrap(), summary: ended.json() }
    }

    fn records(&self) -> u64 {
        self.summary["output"]["records"].as_u64().unwrap()
    }

    /// Asserts that both lines were needed and that nothing is missing.
    fn assert_gaps_filled(&self) {
        assert_eq!(self.summary["total"]["lost_messages"], 0, "{}", self.summary);
        assert_eq!(self.summary["channels"][0]["lines"].as_array().unwrap().len(), 2, "{}", self.summary);
        assert!(self.summary["total"]["duplicates"].as_u64().unwrap() > 0, "{}", self.summary);
    }
}

/// A subscriber's file of a gateway's output.
struct LiveRun {
    bytes: Vec<u8>,
    tail: ExitedProcess,
    gateway: ExitedProcess,
    gateway_has_recovery: bool,
    sim: serde_json::Value,
}

/// The same for a venue without a request server. A crowded machine may lose packets on both lines; then the gap cannot
/// be filled and the outputs cannot be compared. In that case the feed is played again at a lower rate.
fn run_live_without_loss(wanted: &GatewayOptions, schema: &str, capture: &Path, rate: u32) -> LiveRun {
    let rates = [rate, rate / 3, rate / 9];
    for rate in rates {
        let played = ["--capture", text(capture), "--rate", &rate.to_string(), "--never-on-all"];
        // Longer than any scheduling delay of a crowded machine.
        let received = run_live(wanted, schema, &played, &["--exit-idle-s", "10"]);
        if !received.tail.stderr.contains(": gap [") {
            return received;
        }
        captures::print_to_stderr(&format!("packets lost on both lines at {rate} packets/s; playing again"));
    }
    panic!("packets were lost on both lines at each of {rates:?} packets/s");
}

/// Plays a feed on two damaged lines through a gateway to a subscriber. The request server's address follows the last
/// of the played arguments if that asks for it.
fn run_live(wanted: &GatewayOptions, schema: &str, played: &[&str], ends: &[&str]) -> LiveRun {
    let fixture = GatewayFixture::new();
    let mut arguments = vec!["--ts-recv", "none"];
    if wanted.has_recovery {
        arguments.extend(["--date", DATE]);
    }
    let gateway = fixture.gateway(wanted, &arguments);
    let out = fixture.path("out.dbn");
    let tail_arguments = ["--schema", schema, "--ts-recv", "none", "-o", text(&out)];
    let tail = fixture.tail(&tail_arguments.into_iter().chain(ends.iter().copied()).collect::<Vec<_>>());
    let server = fixture.requests.to_string();
    let mut sim_arguments = played.to_vec();
    if sim_arguments.last() == Some(&"--request-server") {
        sim_arguments.push(&server);
    }
    sim_arguments.extend(["--loss", "0.05,0.1", "--duplicate", "0.02", "--reorder", "0.02", "--skew-us", "0,30"]);
    let sim = fixture.sim(&sim_arguments).end().expect_code(0);
    let tail = tail.end();
    let gateway = gateway.stop_with(process::Signal::Terminate);
    // A subscriber whose stream has a gap says so by its exit code.
    let expected = i32::from(tail.stderr.contains(": gap ["));
    assert_eq!(tail.code, Some(expected), "{}\n{}{}", tail.stderr, gateway.stdout, gateway.stderr);
    assert_eq!(gateway.code, Some(0), "{}", gateway.stderr);
    LiveRun { bytes: fs::read(out).unwrap(), tail, gateway, gateway_has_recovery: wanted.has_recovery, sim: sim.json() }
}

impl LiveRun {
    /// Asserts that the lines lost packets, and that the gateway requested from the venue what both lines lost.
    fn assert_lines_lossy(&self, what: &str) {
        let [packets, copies] = ["packets", "copies"].map(|key| self.sim[key].as_u64().unwrap());
        assert!(copies < 2 * packets, "{what}: nothing was lost: {}", self.sim);
        let expects_requests = self.gateway_has_recovery;
        assert_eq!(self.sim["requests_answered"].as_u64().unwrap() > 0, expects_requests, "{what}: {}", self.sim);
    }

    /// Asserts that neither the gateway nor the receiver behind it lost messages; what each wrote tells which one did.
    fn assert_complete(&self, what: &str) {
        let (tail, gateway) = (&self.tail.stderr, &self.gateway);
        assert!(!tail.contains(": gap ["), "{what}: {tail}\n{}{}\n{}", gateway.stdout, gateway.stderr, self.sim);
    }
}

fn itch_packets(seed: u64) -> Vec<Packet> {
    feeds::itch_packets(feeds::itch_day(ITCH_MESSAGES, seed), SESSION, MIDNIGHT_NS)
}

fn whole(folder: &TempDir, packets: &[Packet]) -> PathBuf {
    let path = folder.path().join("whole.pcap");
    feeds::write_capture(&path, feeds::DESTINATIONS[0], packets);
    path
}

fn iex_capture(test: &str, name: &str) -> Option<PathBuf> {
    let path = captures::root(test)?.join("iex").join(name);
    if path.is_file() {
        return Some(path);
    }
    skip_without_captures(test, &format!("no {}", path.display()));
    None
}

/// Compares two DBN files and, where they differ, reports the place.
fn assert_same(expected: &[u8], found: &[u8], what: &str) {
    if expected == found {
        return;
    }
    let at = expected.iter().zip(found).position(|(one, other)| one != other);
    let metadata_bytes = expected.get(4..8).map_or(0, |length| 8 + u32::from_le_bytes(length.try_into().unwrap()));
    panic!(
        "{what}: {} bytes expected, {} found; they differ from byte {at:?} on (metadata ends at {metadata_bytes})",
        expected.len(),
        found.len()
    );
}
