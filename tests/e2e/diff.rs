//! `mdgw diff` treats equal content as equal whatever its receive times, and names each kind of difference.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use mdgw_tests::{
    feeds::{self, DAMAGE, DESTINATIONS, MIDNIGHT_NS, Packet, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, ExitedProcess, Signal},
    tap::Tap,
};

#[test]
fn captures_with_equal_messages_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    let packets = feeds::itch_packets(feeds::itch_day(5_000, 1), SESSION, MIDNIGHT_NS);
    let [a, b] = feeds::write_damaged_captures(folder.path(), &packets, DAMAGE, 3);
    let [whole, other, merged] = ["whole.pcap", "other.pcap", "merged.pcap"].map(|name| folder.path().join(name));
    feeds::write_capture(&whole, DESTINATIONS[0], &packets);
    let _ = process::run(["merge", text(&a), text(&b), "-o", text(&merged)]).expect_code(0);
    let same = diff(&whole, &merged).expect_code(0).json();
    assert!(same["same"].as_bool().unwrap() && same["items"][0] == same["items"][1], "{same}");
    assert!(same["receive_times_differ"].as_u64().unwrap() > 0, "line B is later: {same}");

    let lossy = diff(&whole, &a).expect_code(1).json();
    assert!(lossy["only_in"][0].as_u64().unwrap() > 0 && lossy["only_in"][1] == 0, "{lossy}");

    // Change one bit of one message.
    let mut changed: Vec<Packet> = packets.clone();
    let index = packets.len() / 2;
    let mut bytes = changed[index].1.to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    changed[index].1 = Arc::from(bytes);
    feeds::write_capture(&other, DESTINATIONS[1], &changed);
    let found = diff(&whole, &other).expect_code(1).json();
    assert_eq!((&found["content_differs"], &found["only_in"]), (&1.into(), &serde_json::json!([0, 0])), "{found}");
    let difference = found["differences"][0].clone();
    assert!(difference["name"].as_str().unwrap().contains("nasdaq-itch-5.0 MDGWSIM001, sequence "), "{difference}");
    assert!(difference["detail"].as_str().unwrap().starts_with("differs from byte "), "{difference}");
    assert!(difference["at_a"].as_str().unwrap().starts_with("at 2019-01-30 "), "{difference}");
}

#[test]
fn dbn_files_are_compared_record_by_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let capture = path("a.pcap");
    let packets = feeds::itch_packets(feeds::itch_day(5_000, 2), SESSION, MIDNIGHT_NS);
    feeds::write_capture(&capture, DESTINATIONS[0], &packets);
    let make = |name: &str, more: &[&str]| -> PathBuf {
        let out = path(name);
        let fixed = ["replay", "--offline", text(&capture), "--schema", "mbo,statistics,status", "-o", text(&out)];
        let _ = process::run(fixed.iter().chain(more)).expect_code(0);
        out
    };
    let stamped = make("stamped.dbn", &[]);
    let unstamped = make("unstamped.dbn.zst", &["--ts-recv", "none"]);
    let same = diff(&stamped, &unstamped).expect_code(0).json();
    assert!(same["same"].as_bool().unwrap() && same["receive_times_differ"].as_u64().unwrap() > 0, "{same}");
    let text_of_same = process::run(["diff", text(&stamped), text(&unstamped)]).expect_code(0).stdout;
    assert!(text_of_same.starts_with("result                     same\n"), "{text_of_same}");

    // A difference is named by schema and sequence. Only a second record of the same schema and sequence gets a record
    // number.
    let trades = path("trades.dbn");
    let only = ["replay", "--offline", text(&capture), "--schema", "trades", "-o", text(&trades)];
    let _ = process::run(only).expect_code(0);
    let different_schemas = diff(&stamped, &trades).expect_code(1).json();
    let names: Vec<&str> = different_schemas["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|difference| difference["name"].as_str().unwrap())
        .collect();
    let first = |kind: &str| *names.iter().find(|name| name.contains(kind)).unwrap();
    assert!(first(", status, ").ends_with(", sequence 0"), "{names:?}");
    assert!(!first(", trades, ").contains(", record "), "{names:?}");

    // Change the price of one record, remove one record, swap two records.
    let bytes = fs::read(&stamped).unwrap();
    let metadata_end = 8 + u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let mut places = Vec::new();
    let mut at = metadata_end;
    while at < bytes.len() {
        places.push(at);
        at += usize::from(bytes[at]) * 4;
    }
    let is_mbo = |at: usize| bytes[at + 1] == dbn::enums::rtype::MBO;
    let middle = places[places.len() / 2..].iter().copied().find(|at| is_mbo(*at)).unwrap();
    let record_bytes = usize::from(bytes[middle]) * 4;
    let changed = path("changed.dbn");
    let mut edited = bytes.clone();
    edited[middle + std::mem::offset_of!(dbn::MboMsg, price)] ^= 1;
    fs::write(&changed, &edited).unwrap();
    let found = diff(&stamped, &changed).expect_code(1).json();
    assert_eq!(found["content_differs"], 1, "{found}");
    let difference = &found["differences"][0];
    assert!(
        difference["detail"].as_str().unwrap().starts_with("price: ")
            && difference["at_a"] == format!("at byte {middle}"),
        "{difference}"
    );

    let mut edited = bytes.clone();
    edited.drain(middle..middle + record_bytes);
    fs::write(&changed, &edited).unwrap();
    let found = diff(&stamped, &changed).expect_code(1).json();
    assert_eq!((&found["content_differs"], &found["only_in"]), (&0.into(), &serde_json::json!([1, 0])), "{found}");

    // Truncated inside a record: all records before are compared, and the result is never "same".
    fs::write(&changed, &bytes[..bytes.len() - 5]).unwrap();
    let ended = diff(&stamped, &changed).expect_code(2);
    assert!(
        ended.stderr.contains(text(&changed)) && ended.stderr.contains("truncated inside a record"),
        "{}",
        ended.stderr
    );
    assert!(!ended.json()["same"].as_bool().unwrap());
}

#[test]
fn a_capture_of_the_output_equals_the_publication_log() {
    let fixture = GatewayFixture::new();
    let [played, published, other] = ["played.pcap", "published.pcap", "other.pcap"].map(|name| fixture.path(name));
    let packets = feeds::itch_packets(feeds::itch_day(3_000, 4), SESSION, MIDNIGHT_NS);
    feeds::write_capture(&played, DESTINATIONS[0], &packets);
    let tap = Tap::start(fixture.output, &published);
    let wanted = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let gateway = fixture.gateway(&wanted, &["--date", "2019-01-30"]);
    let line = fixture.lines[0].to_string();
    let replay = ["replay", text(&played), "--to", &line, "--rate", "2000", "--interface", "127.0.0.1"];
    let _ = process::run(replay).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    assert!(tap.finish() > 100);
    let log = fixture.path("log/1");
    let same = diff(&log, &published).expect_code(0).json();
    assert!(same["same"].as_bool().unwrap() && same["common"].as_u64().unwrap() > 1_000, "{same}");

    let captured = feeds::capture_packets(&published);
    // Choose a packet with records, in the middle of the day.
    let index = captured.len() / 2;
    let index = index + captured[index..].iter().position(|(_, bytes)| bytes[10] > 0).unwrap();
    let output = fixture.output.to_string();
    let mut changed = captured.clone();
    let mut bytes = changed[index].1.to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    changed[index].1 = Arc::from(bytes);
    feeds::write_capture(&other, &output, &changed);
    let found = diff(&published, &other).expect_code(1).json();
    assert_eq!((&found["content_differs"], &found["only_in"]), (&1.into(), &serde_json::json!([0, 0])), "{found}");
    let name = found["differences"][0]["name"].as_str().unwrap();
    assert!(name.starts_with("channel 1, nasdaq-itch-5.0 2019-01-30 #0, sequence "), "{found}");

    let mut without = captured;
    without.remove(index);
    feeds::write_capture(&other, &output, &without);
    let found = diff(&log, &other).expect_code(1).json();
    assert!(found["only_in"][0].as_u64().unwrap() > 0 && found["only_in"][1] == 0, "{found}");
}

#[test]
fn incomparable_inputs_exit_2() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (capture, dbn, bad) = (path("a.pcap"), path("a.dbn"), path("bad"));
    let packets = feeds::itch_packets(feeds::itch_day(500, 3), SESSION, MIDNIGHT_NS);
    feeds::write_capture(&capture, DESTINATIONS[0], &packets);
    let _ = process::run(["replay", "--offline", text(&capture), "-o", text(&dbn)]).expect_code(0);
    let ended = diff(&capture, &dbn).expect_code(2);
    assert!(ended.stderr.contains("cannot be compared"), "{}", ended.stderr);
    for (content, error) in [(&b""[..], "the file is empty"), (b"some text", "not a pcap, pcapng or Nasdaq day file")] {
        fs::write(&bad, content).unwrap();
        let ended = diff(&capture, &bad).expect_code(2);
        assert!(ended.stderr.contains(error) && ended.stderr.contains(text(&bad)), "{}", ended.stderr);
    }
    let ended = diff(&capture, &path("missing")).expect_code(2);
    assert!(ended.stderr.contains("missing"), "{}", ended.stderr);
    let ended = diff(&capture, Path::new("/dev/null")).expect_code(2);
    assert!(ended.stderr.contains("/dev/null") && ended.stderr.contains("write it to a file"), "{}", ended.stderr);
    let ended = diff(folder.path(), folder.path()).expect_code(2);
    assert!(ended.stderr.contains("no publication log in"), "{}", ended.stderr);
    let whole = fs::read(&capture).unwrap();
    fs::write(&bad, &whole[..whole.len() - 3]).unwrap();
    let ended = diff(&capture, &bad).expect_code(2);
    assert!(ended.stderr.contains("at byte "), "{}", ended.stderr);
}

fn diff(a: &Path, b: &Path) -> ExitedProcess {
    process::run(["diff", text(a), text(b), "--json"])
}
