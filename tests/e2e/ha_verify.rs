//! `mdgw ha verify` on the output of real gateways: a capture with a kill in the middle passes, and each kind of damage to
//! that capture is detected.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    net::SocketAddrV4,
    path::{Path, PathBuf},
};

use mdgw_feeds::published::packet::parse_packet;
use mdgw_tests::{
    feeds::{self, MIDNIGHT_NS, Packet, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, text, wait_until_joined},
    process::{self, ExitedProcess, Signal},
    tap::Tap,
};

#[test]
fn a_killed_and_restarted_gateway_keeps_all_promises() {
    let fixture = GatewayFixture::new();
    let capture = capture_with_a_kill_mid_day(&fixture);
    let ended = verify(&[&capture], &["--json"]).expect_code(0);
    let verdict = ended.json();
    assert_eq!(verdict["epochs"].as_array().unwrap().len(), 2, "{}", ended.stdout);
    assert_eq!(verdict["channels"][0]["leadership_changes"], 1, "{}", ended.stdout);
    assert_eq!(verdict["channels"][0]["blackout"]["count"], 1, "{}", ended.stdout);
    assert_eq!(verdict["channels"][0]["sessions"][0]["first"], 1, "{}", ended.stdout);
    let table = verify(&[&capture], &[]).expect_code(0).stdout;
    assert!(table.contains("single publisher           passed") && !table.contains("FAILED"), "{table}");
}

#[test]
fn each_kind_of_damage_is_detected() {
    let fixture = GatewayFixture::new();
    let capture = capture_with_a_kill_mid_day(&fixture);
    let packets = feeds::capture_packets(&capture);
    let path = fixture.path("damaged.pcap");
    let verify_packets = |packets: &[Packet]| {
        feeds::write_capture(&path, &fixture.output.to_string(), packets);
        verify(&[&path], &["--json"])
    };
    let whole = verify_packets(&packets).expect_code(0).json();
    assert!(whole["passed"].as_bool().unwrap());

    // Choose a packet that ends with a record, in the middle of the second half: the books of the restarted gateway are
    // suspect, and some of its messages have no records.
    let ends_with_record =
        |bytes: &[u8]| parse_packet(bytes).unwrap().frames().last().is_some_and(|(header, _)| header.record_count > 0);
    let next_with_record = |from: usize| {
        from + packets[from..].iter().position(|(_, bytes)| ends_with_record(bytes)).expect("a packet with a record")
    };
    let place = next_with_record(packets.len() * 3 / 4);
    // Content of suspect books may differ.
    let sound_place = next_with_record(packets.len() / 4);
    let edited_at = |place: usize, edit: fn(&mut Vec<u8>)| {
        let mut packets = packets.clone();
        let mut bytes = packets[place].1.to_vec();
        edit(&mut bytes);
        packets.insert(place + 1, (packets[place].0, bytes.into()));
        packets
    };
    let edited = |edit| edited_at(place, edit);
    let mut without = packets.clone();
    without.remove(place);
    let mut swapped = packets.clone();
    swapped.swap(place, place + 1);
    let change_send_time = |bytes: &mut Vec<u8>| bytes[56] ^= 1;
    for (damaged, check) in [
        (without, "no loss"),
        (swapped, "in order"),
        (edited(change_send_time), "no duplicates"),
        (
            edited_at(sound_place, |bytes| {
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
            }),
            "consistent content",
        ),
        // Under the previous epoch: its count is one lower.
        (edited(|bytes| bytes[17] -= 1), "single publisher"),
        (edited(|bytes| bytes[17] -= 1), "monotonic epochs"),
    ] {
        let ended = verify_packets(&damaged).expect_code(1);
        assert!(ended.json()["violations"][check].as_u64().unwrap() > 0, "{check}: {}", ended.stdout);
    }
}

#[test]
fn equal_receivers_agree_and_a_differing_one_is_detected() {
    let fixture = GatewayFixture::new();
    let gateway = fixture.gateway(&GatewayOptions::itch(), &["--date", "2019-01-30"]);
    let tails = [(); 2].map(|()| fixture.start_tail(fixture.output, &["--json", "--until-ended"]));
    wait_until_joined(fixture.output, 2);
    let _ = fixture.sim(&["--messages", "3000", "--stocks", "20", "--rate", "2000"]).end().expect_code(0);
    let outputs = tails.map(|tail| tail.end().expect_code(0).stdout);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);

    let paths = [fixture.path("one.jsonl"), fixture.path("two.jsonl")];
    fs::write(&paths[0], &outputs[0]).unwrap();
    fs::write(&paths[1], &outputs[1]).unwrap();
    let _ = verify(&[&paths[0], &paths[1]], &[]).expect_code(0);
    let lines: Vec<&str> = outputs[1].lines().collect();
    fs::write(&paths[1], lines[..lines.len() - 7].join("\n")).unwrap();
    let ended = verify(&[&paths[0], &paths[1]], &[]).expect_code(0);
    assert!(ended.stdout.contains("two.jsonl ends 7 records before the other receivers"), "{}", ended.stdout);
    fs::write(&paths[1], [&lines[..100], &lines[101..]].concat().join("\n")).unwrap();
    let ended = verify(&[&paths[0], &paths[1]], &[]).expect_code(1);
    assert!(ended.stdout.contains("not delivered to this receiver"), "{}", ended.stdout);
}

#[test]
fn unverifiable_input_exits_2() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.pcap");
    let packets = feeds::itch_packets(feeds::itch_day(500, 1), SESSION, MIDNIGHT_NS);
    feeds::write_capture(&path, feeds::DESTINATIONS[0], &packets);
    let ended = verify(&[&path], &[]).expect_code(2);
    assert!(ended.stderr.contains("no published packets or rows"), "{}", ended.stderr);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    let ended = verify(&[&path], &[]).expect_code(2);
    assert!(ended.stderr.contains("at byte "), "{}", ended.stderr);
    let _ = verify(&[Path::new("/nowhere.pcap")], &[]).expect_code(2);
    let rows = folder.path().join("rows.jsonl");
    fs::write(&rows, "{}\n").unwrap();
    let ended = verify(&[&rows], &["--group", "9"]).expect_code(2);
    assert!(ended.stderr.contains("--group applies to captures only"), "{}", ended.stderr);
}

/// A capture of a gateway that is killed (SIGKILL) and restarted.
fn capture_with_a_kill_mid_day(fixture: &GatewayFixture) -> PathBuf {
    let capture = fixture.path("published.pcap");
    let packets = feeds::itch_packets(feeds::itch_day(10_000, 6), SESSION, MIDNIGHT_NS);
    let (early, late) = packets.split_at(packets.len() / 2);
    let [first_half, second_half] = ["morning.pcap", "afternoon.pcap"].map(|name| fixture.path(name));
    feeds::write_capture(&first_half, feeds::DESTINATIONS[0], early);
    feeds::write_capture(&second_half, feeds::DESTINATIONS[0], late);
    let wanted = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let arguments = ["--date", "2019-01-30"];

    let tap = Tap::start(fixture.output, &capture);
    let killed = fixture.gateway(&wanted, &arguments);
    play(&first_half, fixture.lines[0]);
    // A kill would lose input that the gateway had not read yet.
    let next = late[0].1[10..18].try_into().unwrap();
    tap.wait_until_covered(u64::from_be_bytes(next));
    let _ = killed.stop_with(Signal::Kill);
    let gateway = fixture.gateway(&wanted, &arguments);
    play(&second_half, fixture.lines[0]);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    // As many packets as the messages fill, at least.
    assert!(tap.finish() > 500);
    capture
}

fn play(capture: &Path, line: SocketAddrV4) {
    let line = line.to_string();
    let _ = process::run(["replay", text(capture), "--to", &line, "--rate", "4000", "--interface", "127.0.0.1"])
        .expect_code(0);
}

fn verify(files: &[&Path], more: &[&str]) -> ExitedProcess {
    process::run(["ha", "verify"].into_iter().chain(files.iter().map(|file| text(file))).chain(more.iter().copied()))
}
