//! `mdgw replay` as a process: exit codes, and the contents of standard output and standard error.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use mdgw_captures::capture_file::PcapWriter;
use mdgw_simulator::itch_generator::{ItchDay, ItchGenerator, ItchPackets};

fn mdgw(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mdgw")).args(arguments).output().unwrap()
}

fn capture(path: &Path) -> usize {
    let day = ItchDay { message_count: 500, stock_count: 20, live_orders: 50, ..ItchDay::default() };
    let mut source = ItchPackets::new(ItchGenerator::new(day), *b"TEST000001");
    let mut writer = PcapWriter::new(Vec::new()).unwrap();
    let mut packet = Vec::new();
    let mut count = 0;
    while let Some(info) = source.next_packet(&mut packet) {
        let (src, dst) = ("10.0.0.1:1".parse().unwrap(), "233.54.12.111:26477".parse().unwrap());
        writer.datagram(1_548_824_400_000_000_000 + info.time_ns, src, dst, &packet).unwrap();
        count += 1;
    }
    fs::write(path, writer.finish().unwrap()).unwrap();
    count
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn success_exits_0_and_prints_one_line_of_json() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("a.pcap"), folder.path().join("a.dbn.zst"));
    let packets = capture(&input);
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let done = mdgw(&[
        "replay",
        "--offline",
        input,
        "--schema",
        "mbo,status",
        "--schema",
        "definition",
        "-o",
        output,
        "--json",
    ]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(text(&done.stdout).matches('\n').count(), 1);
    assert_eq!(json["total"]["packets"], packets);
    assert_eq!(json["total"]["messages"], 500);
    assert!(json["output"]["records"].as_u64().unwrap() > 0);
    assert!(fs::metadata(output).unwrap().len() > 0);
    assert!(text(&done.stderr).contains("assumed to be nasdaq-itch-5.0"), "{}", text(&done.stderr));
}

#[test]
fn failure_exits_2_with_one_line_naming_action_object_and_cause() {
    let folder = tempfile::tempdir().unwrap();
    let text_file = folder.path().join("notes.txt");
    fs::write(&text_file, "no capture").unwrap();
    let failed = mdgw(&["replay", "--offline", text_file.to_str().unwrap()]);
    assert_eq!(failed.status.code(), Some(2));
    let expected = format!("mdgw: read {} at byte 0: not a pcap, pcapng or Nasdaq day file\n", text_file.display());
    assert_eq!(text(&failed.stderr), expected);
    assert!(failed.stdout.is_empty());
    assert_eq!(mdgw(&["replay", "/nonexistent.pcap"]).status.code(), Some(2));
    assert_eq!(mdgw(&["replay", "--offline", "--max", "a.pcap"]).status.code(), Some(2), "they exclude each other");
    assert_eq!(mdgw(&["replay", "--offline", "a.pcap", "--schema", "mbp-2"]).status.code(), Some(2));
    assert_eq!(mdgw(&["replay"]).status.code(), Some(2));
}

#[test]
fn a_truncated_capture_exits_2_and_keeps_complete_records() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("a.pcap"), folder.path().join("a.dbn"));
    capture(&input);
    let bytes = fs::read(&input).unwrap();
    fs::write(&input, &bytes[..bytes.len() - 1]).unwrap();
    let cut = mdgw(&["replay", "--offline", input.to_str().unwrap(), "-o", output.to_str().unwrap()]);
    assert_eq!(cut.status.code(), Some(2));
    assert!(text(&cut.stderr).contains("the file is truncated"), "{}", text(&cut.stderr));
    assert!(text(&cut.stdout).contains("messages"), "the summary is printed all the same");
    assert!(fs::metadata(&output).unwrap().len() > 1_000);
}

#[test]
fn stdout_carries_only_dbn_and_a_closed_pipe_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("a.pcap");
    capture(&input);
    let piped = mdgw(&["replay", "--offline", input.to_str().unwrap(), "-o", "-"]);
    assert_eq!(piped.status.code(), Some(0));
    assert!(piped.stdout.starts_with(b"DBN\x03"));
    assert!(text(&piped.stderr).contains("messages"));

    let mut closed = Command::new(env!("CARGO_BIN_EXE_mdgw"))
        .args(["replay", "--offline", input.to_str().unwrap(), "-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(closed.stdout.take());
    let status = closed.wait().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn live_replay_reports_its_own_timing() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("a.pcap");
    let packets = capture(&input);
    let arguments = ["replay", input.to_str().unwrap(), "--to", "127.0.0.1:9", "--rate", "20000", "--json"];
    let sent = mdgw(&arguments);
    assert_eq!(sent.status.code(), Some(0), "{}", text(&sent.stderr));
    let json: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();
    assert_eq!(json["packets"], packets);
    assert!(json["lateness"]["max_ns"].is_u64());
}
