//! `mdgw capture` as a user runs it: third-party tools read its files, and it stops in order. A kill or a full disk
//! loses no more than it must.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    net::SocketAddrV4,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use mdgw_captures::capture_file::{CaptureFault, CaptureFile, OpenOptions};
use mdgw_tests::{
    gateway_fixture::{GatewayFixture, text},
    process::{self, MdgwProcess, Signal, program, wait_until},
    skip::skip,
};
use serde_json::Value;

#[test]
fn wireshark_tools_read_captures_from_sockets() {
    check_with_wireshark("sockets", &[]);
}

#[test]
fn wireshark_tools_read_captures_from_packet_rings() {
    if !rustix::process::geteuid().is_root() {
        return skip("wireshark_tools_read_captures_from_packet_rings", "capture --raw takes root");
    }
    check_with_wireshark("raw", &["--raw"]);
}

/// The file contains everything that an exchange sends on two lines. `capinfos` and `tshark` read the same.
fn check_with_wireshark(name: &str, more: &[&str]) {
    let fixture = GatewayFixture::new();
    let out = fixture.path(&format!("{name}.pcapng"));
    let capture = start(&fixture.lines, &out, more);
    let sent = play(&fixture.lines, &["--messages", "40000", "--rate", "8000"]);
    let summary = capture.stop_with(Signal::Terminate).expect_code(0).json();
    let lines = summary["lines"].as_array().unwrap();
    let count = |field: &str| lines.iter().map(|line| line[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(count("packets") + count("dropped"), sent, "{summary}");
    assert!(count("packets") > 0);
    assert_eq!(datagrams(&out).len() as u64, count("packets"));

    let Some(output) = wireshark("capinfos", &["-M", "-T", "-B", "-m", text(&out)]) else { return };
    assert!(output.contains(&format!(",{},", count("packets"))), "{output}");
    let output = wireshark("capinfos", &["-M", text(&out)]).unwrap();
    for expected in ["pcapng", "Ethernet", "nanoseconds", "Number of interfaces in file: 2", "Name = A", "Name = B"] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
    assert!(!output.contains("Number of stat entries = 0"), "{output}");

    let fields = ["-e", "frame.interface_name", "-e", "ip.dst", "-e", "udp.dstport", "-e", "udp.length"];
    // Compare raw payloads, since Wireshark may guess a protocol from the port.
    let as_data = fixture.lines.map(|line| format!("udp.port=={},data", line.port()));
    let decode = ["-d", &as_data[0], "-d", &as_data[1]];
    let fields = [&["-r", text(&out), "-T", "fields", "-e", "_ws.malformed"], &decode[..], &fields[..]].concat();
    let rows = wireshark("tshark", &fields).unwrap();
    for (name, address, line) in [("A", fixture.lines[0], &lines[0]), ("B", fixture.lines[1], &lines[1])] {
        let expected = format!("\t{name}\t{}\t{}\t", address.ip(), address.port());
        let found = rows.lines().filter(|row| row.starts_with(&expected)).count() as u64;
        assert_eq!(found, line["packets"].as_u64().unwrap(), "line {name}: {expected:?}");
    }
    check_interface_statistics(&out, lines);
}

/// The counts in the statistics blocks of the file equal the counts of the summary.
fn check_interface_statistics(out: &Path, lines: &[Value]) {
    let Some(output) = wireshark("tshark", &["-X", "read_format:MIME Files Format", "-V", "-r", text(out)]) else {
        return;
    };
    for (index, line) in lines.iter().enumerate() {
        let of_line = |block: &&str| block.contains(&format!("Interface: {index}\n"));
        let block = output.split("Block: Interface Statistics Block").skip(1).filter(of_line).last();
        let block = block.unwrap_or_else(|| panic!("no statistics of interface {index}: {output}"));
        for (name, count) in [("Dropped by OS", &line["dropped"]), ("Delivered to the User", &line["packets"])] {
            let expected = format!("Option: Number of Packets {name} = {count}\n");
            assert!(block.contains(&expected), "{expected} in {block}");
        }
    }
}

#[test]
fn drops_of_a_full_socket_are_reported_per_line() {
    check_drops("sockets", &["--buffer", "64KiB"]);
}

#[test]
fn drops_of_a_full_packet_ring_are_reported_per_line() {
    if !rustix::process::geteuid().is_root() {
        return skip("drops_of_a_full_packet_ring_are_reported_per_line", "capture --raw takes root");
    }
    check_drops("raw", &["--raw", "--buffer", "256KiB"]);
}

/// Stops the capture (SIGSTOP) while more is sent on line B than its receive buffer holds.
fn check_drops(name: &str, more: &[&str]) {
    let fixture = GatewayFixture::new();
    let out = fixture.path(&format!("{name}.pcapng"));
    let capture = start(&fixture.lines, &out, more);
    capture.signal(Signal::Stop);
    wait_until("the capture process is stopped", || is_stopped(capture.id()));
    let b = fixture.lines[1].to_string();
    let fixed = ["sim", "--stocks", "200", "--interface", "127.0.0.1", "--json", "--line", &b];
    let sent = process::run([&fixed[..], &["--messages", "60000", "--rate", "20000"]].concat()).expect_code(0).json();
    let sent = sent["copies"].as_u64().unwrap();
    capture.signal(Signal::Continue);
    let summary = capture.stop_with(Signal::Terminate).expect_code(0).json();
    let lines = summary["lines"].as_array().unwrap();
    let number = |line: usize, field: &str| lines[line][field].as_u64().unwrap();
    assert_eq!((number(0, "packets"), number(0, "dropped")), (0, 0), "{summary}");
    assert!(number(1, "packets") > 0 && number(1, "dropped") > 0, "{summary}");
    assert_eq!(number(1, "packets") + number(1, "dropped"), sent, "{summary}");
    assert_eq!(datagrams(&out).len() as u64, number(1, "packets"));
    check_interface_statistics(&out, lines);
}

/// Whether all threads of a process are stopped.
fn is_stopped(process: u32) -> bool {
    let mut threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.all(|thread| fs::read_to_string(thread.unwrap().path().join("status")).unwrap().contains("State:\tT"))
}

#[test]
fn a_file_of_a_killed_capture_can_be_opened() {
    for ending in ["pcapng", "pcapng.zst"] {
        let fixture = GatewayFixture::new();
        let out = fixture.path(&format!("killed.{ending}"));
        let capture = start(&fixture.lines, &out, &[]);
        let exchange = exchange(&fixture.lines, &["--messages", "1000000", "--rate", "4000"]);
        wait_until("packets are on disk", || bytes(&out) > 100_000);
        capture.signal(Signal::Kill);
        let _ = capture.end();
        drop(exchange);
        let mut file = CaptureFile::open(&out, &OpenOptions::default()).unwrap();
        let ended = loop {
            match file.next_datagram() {
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.fault),
            }
        };
        // In a compressed file the last zstd frame is incomplete.
        let is_expected_end = match &ended {
            Ok(()) => true,
            Err(CaptureFault::Truncated { .. }) => true,
            Err(CaptureFault::Decompress { .. }) => ending.ends_with("zst"),
            Err(_) => false,
        };
        assert!(is_expected_end, "{ending}: {ended:?}");
        let packets = file.counts().datagrams;
        assert!(packets > 100, "{ending}: {packets} packets");
        if ending == "pcapng" {
            let Some(rows) = wireshark("tshark", &["-r", text(&out), "-T", "fields", "-e", "frame.number"]) else {
                return;
            };
            assert_eq!(rows.lines().count() as u64, packets);
        }
    }
}

#[test]
fn a_full_disk_loses_only_what_does_not_fit_and_names_the_file() {
    let fixture = GatewayFixture::new();
    let out = fixture.path("full.pcapng");
    // `ulimit -f` limits the file size, in units of 512 bytes. The signal is ignored, so writes beyond the limit fail.
    let limited = r#"trap '' XFSZ; ulimit -f 1000; exec "$0" "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", limited]).arg(program()).args(arguments(&fixture.lines, &out, &[]));
    let capture = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the capture has started", || bytes(&out) > 0);
    let exchange = exchange(&fixture.lines, &["--messages", "1000000", "--rate", "4000"]);
    let ended = capture.wait_with_output().unwrap();
    drop(exchange);
    let output = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{output}");
    let expected = format!("write {} at byte {}: File too large", out.display(), bytes(&out));
    assert!(output.contains(&expected) && output.lines().count() == 1, "{output}");
    assert!(bytes(&out) <= 512_000);
    assert!(datagrams(&out).len() > 100, "complete blocks up to the end");
}

#[test]
fn a_gap_trigger_writes_the_packets_before_the_gap() {
    let fixture = GatewayFixture::new();
    let out = fixture.path("gap.pcapng.zst");
    let more = ["--trigger", "gap", "--before", "1m", "--after", "100ms", "--files", "2"];
    let mut arguments = arguments(&fixture.lines, &out, &more);
    arguments.retain(|argument| argument != "--json");
    let capture = process::start(&arguments);
    let exchange = exchange(&fixture.lines, &["--messages", "1000000", "--rate", "4000", "--loss", "0.05"]);
    let first = || files(&fixture).into_iter().find(|path| path.to_string_lossy().contains("gap-00001-"));
    wait_until("the capture has recorded a gap", || first().is_some_and(|path| bytes(&path) > 0));
    let ended = capture.stop_with(Signal::Interrupt).expect_code(0);
    drop(exchange);
    assert!(ended.stdout.contains("gap of"), "{}", ended.stdout);
    assert!(ended.stderr.is_empty(), "{}", ended.stderr);
    assert!(!datagrams(files(&fixture).first().unwrap()).is_empty());
}

#[test]
fn invalid_capture_arguments_are_refused_by_name() {
    let fixture = GatewayFixture::new();
    let out = fixture.path("there.pcapng");
    fs::write(&out, "kept").unwrap();
    let refused = process::run(arguments(&fixture.lines, &out, &[])).expect_code(2);
    assert!(refused.stderr.contains(&format!("create {}: File exists", out.display())), "{}", refused.stderr);
    assert_eq!(fs::read(&out).unwrap(), b"kept");
    let refused = process::run(["capture", text(&out), "-o", "x.pcapng"]).expect_code(2);
    assert!(refused.stderr.contains("there.pcapng"), "{}", refused.stderr);
    let address = fixture.lines[0].to_string();
    for wrong in [
        vec!["--group", "239.1.1.1"],
        vec!["--group", &address, "--interface", "no-such-one"],
        vec!["--group", &address, "--group", &address],
        vec!["--group", &address, "--files", "3"],
        vec!["--group", &address, "--rotate-size", "big"],
        vec![],
    ] {
        let _ = process::run([vec!["capture", "-o", text(&fixture.path("new.pcapng"))], wrong].concat()).expect_code(2);
    }
    assert_eq!(files(&fixture), [out]);
}

#[test]
fn captured_lines_go_through_the_pipeline_without_a_gap() {
    let fixture = GatewayFixture::new();
    let out = fixture.path("day.pcapng");
    let capture = start(&fixture.lines, &out, &["--rotate-size", "2MB"]);
    let _ = play(&fixture.lines, &["--messages", "40000", "--rate", "4000", "--loss", "0.01", "--never-on-all"]);
    let summary = capture.stop_with(Signal::Interrupt).expect_code(0).json();
    let dropped =
        summary["lines"].as_array().unwrap().iter().map(|line| line["dropped"].as_u64().unwrap()).sum::<u64>();
    let files = files(&fixture);
    assert!(files.len() > 1, "{files:?}");
    assert_eq!(summary["files"].as_array().unwrap().len(), files.len());
    let replay = ["replay", "--offline", "--json", "--feed", "nasdaq-itch-5.0"].map(PathBuf::from);
    let replayed = process::run(replay.iter().chain(&files)).expect_code(0).json();
    assert_eq!(
        replayed["total"]["messages"].as_u64().unwrap() + replayed["total"]["lost_messages"].as_u64().unwrap(),
        40_000
    );
    if dropped == 0 {
        assert_eq!(replayed["total"]["gaps"], 0, "each message was on one of the lines: {replayed}");
    }
}

/// Starts a capture of two lines and waits until it receives them.
fn start(lines: &[SocketAddrV4; 2], out: &Path, more: &[&str]) -> MdgwProcess {
    let capture = process::start(arguments(lines, out, more));
    let folder = out.parent().unwrap();
    let has_begun =
        || fs::read_dir(folder).unwrap().any(|entry| entry.unwrap().metadata().is_ok_and(|file| file.len() > 0));
    wait_until("the capture has started", has_begun);
    capture
}

fn arguments(lines: &[SocketAddrV4; 2], out: &Path, more: &[&str]) -> Vec<String> {
    let [a, b] = lines.map(|line| line.to_string());
    let fixed = ["capture", "--interface", "lo", "--json", "-o", text(out)].map(str::to_owned);
    let groups = ["--group".to_owned(), format!("A={a}"), "--group".to_owned(), format!("B={b}")];
    fixed.into_iter().chain(groups).chain(more.iter().map(|more| (*more).to_owned())).collect()
}

fn exchange(lines: &[SocketAddrV4; 2], more: &[&str]) -> MdgwProcess {
    let [a, b] = lines.map(|line| line.to_string());
    let fixed = ["sim", "--stocks", "200", "--interface", "127.0.0.1", "--json", "--line", &a, "--line", &b];
    process::start([fixed.as_slice(), more].concat())
}

/// Plays the day to its end. Returns the number of packets sent.
fn play(lines: &[SocketAddrV4; 2], more: &[&str]) -> u64 {
    exchange(lines, more).end().expect_code(0).json()["copies"].as_u64().unwrap()
}

fn datagrams(path: &Path) -> Vec<u64> {
    let mut file = CaptureFile::open(path, &OpenOptions::default()).unwrap();
    let mut times = Vec::new();
    while let Some(datagram) = file.next_datagram().unwrap() {
        times.push(datagram.time_ns);
    }
    times
}

fn bytes(path: &Path) -> u64 {
    path.metadata().map_or(0, |file| file.len())
}

fn files(fixture: &GatewayFixture) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(fixture.path("")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Output of a tool of Wireshark; `None`, with a message on standard error, if it is not installed.
fn wireshark(tool: &str, arguments: &[&str]) -> Option<String> {
    let Ok(ran) = Command::new(tool).args(arguments).output() else {
        skip(tool, "the package tshark of Debian is not installed");
        return None;
    };
    let output = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{tool} {arguments:?}: {output}{}", String::from_utf8_lossy(&ran.stderr));
    Some(output)
}
