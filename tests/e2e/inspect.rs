//! `mdgw inspect` shows the content of a capture; it reports errors in a file, and shows everything before the error.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use mdgw_tests::{
    feeds::{self, DESTINATIONS, MIDNIGHT_NS, Packet, SESSION},
    gateway_fixture::text,
    process::{self, ExitedProcess, Signal},
};
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn every_message_is_shown_once_with_its_sequence() {
    let day = DayCapture::new();
    let packets = json_lines(&day.inspect(&["--json"]).expect_code(0));
    assert_eq!(packets.len(), day.packets.len());
    let messages = messages(&packets);
    assert_eq!(messages.len() as u64, MESSAGES);
    let mut next = 1;
    for (packet, (time_ns, payload)) in packets.iter().zip(&day.packets) {
        assert_eq!(packet["time_ns"], *time_ns);
        assert_eq!(packet["payload_len"], payload.len());
        assert_eq!(packet["dst"], "233.54.12.111");
        assert_eq!(packet["dst_port"], 26_477);
        assert_eq!(packet["header"]["session"], "MDGWSIM001");
        assert_eq!(packet["header"]["sequence_number"], next);
        assert_eq!(packet.get("undecoded_bytes"), None);
        next += packet["messages"].as_array().unwrap().len() as u64;
    }
    for message in messages {
        let length = message["header"]["message_length"].as_u64().unwrap();
        assert_eq!(message["length"], length + 2);
        assert!(message["type"].is_string() && message["fields"]["stock_locate"].is_u64(), "{message}");
    }
}

/// The sample of the output protocol: packets, requests and answers.
#[test]
fn a_gateways_own_output_is_shown_record_by_record() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/output/sample.pcap");
    let inspect = |more: &[&str]| process::run([&["inspect", text(&sample)], more].concat());
    let packets = json_lines(&inspect(&["--json"]).expect_code(0));
    assert!(packets.iter().all(|packet| packet.get("refused").is_none() && packet.get("undecoded_bytes").is_none()));
    let requests: Vec<_> = packets.iter().filter(|packet| packet["header"]["request"].is_u64()).collect();
    assert_eq!(
        requests.iter().map(|packet| packet["header"]["request"].as_u64().unwrap()).collect::<Vec<_>>(),
        [4, 2, 1, 1, 3]
    );
    for packet in packets.iter().filter(|packet| packet["header"]["frame_count"].is_u64()) {
        let count = packet["messages"].as_array().unwrap().len() as u64;
        assert!(count >= packet["header"]["frame_count"].as_u64().unwrap(), "{packet}");
        assert_eq!(packet["header"]["session"], "nasdaq-itch-5.0 2024-01-02 #0");
    }
    let records = messages(&packets);
    let is_add = |record: &&&Value| record["type"] == "mbo" && record["fields"]["action"] == "A";
    let mbo = records.iter().find(is_add).unwrap();
    assert!(mbo["fields"]["price"].as_u64().unwrap() > 0 && mbo["header"]["sequence"].is_u64(), "{mbo}");

    // A definition names the instrument, and later records are found by its symbol.
    let table = inspect(&[]).expect_code(0).stdout;
    assert!(table.contains("mdgw       nasdaq-itch-5.0 2024-01-02 #0  channel 2  epoch 4 of node 2"), "{table}");
    let definition = table.lines().find(|line| line.contains(" definition ")).unwrap();
    let symbol = definition.split_whitespace().nth(3).unwrap();
    let only = inspect(&["--symbol", symbol, "--type", "mbo"]).expect_code(0).stdout;
    assert!(only.lines().any(|line| line.contains(" mbo ")) && !only.contains("definition"), "{only}");
    let line = |line: &str| line.contains(" mbo ") && !line.contains(&format!(" {symbol} "));
    assert!(!only.lines().any(line), "{only}");

    let sums = inspect(&["--stats"]).expect_code(0).stdout;
    assert!(sums.contains(&format!("{} datagrams of a gateway's output", packets.len())), "{sums}");
    let none = inspect(&["--feed", "nasdaq-itch-5.0"]).expect_code(2);
    assert!(none.stderr.contains("no known feed"), "{}", none.stderr);
}

#[test]
fn filters_select_exactly_what_they_name() {
    let day = DayCapture::new();
    let all = json_lines(&day.inspect(&["--json"]).expect_code(0));
    let filtered = |more: &[&str]| json_lines(&day.inspect(&[&["--json"], more].concat()).expect_code(0));

    let frames = filtered(&["--frame", "3,7-9"]);
    assert_eq!(frames.iter().map(|packet| packet["frame"].as_u64().unwrap()).collect::<Vec<_>>(), [3, 7, 8, 9]);
    assert_eq!(frames[0], all[2]);

    let numbered = filtered(&["--sequence", "1000-1001"]);
    assert_eq!(messages(&numbered), messages(&all)[999..1001].to_vec());

    let deletes = filtered(&["--type", "D"]);
    assert_eq!(deletes, filtered(&["--type", "orderdelete"]));
    assert!(messages(&deletes).iter().all(|message| message["type"] == "OrderDelete"));
    let wanted = messages(&all).iter().filter(|message| message["type"] == "OrderDelete").count();
    assert_eq!(messages(&deletes).len(), wanted);

    // A delete message has only the stock's number. The stock directory maps that number to the symbol.
    let all_messages = messages(&all);
    let first = all_messages.iter().find(|message| message["type"] == "OrderDelete").unwrap();
    let locate = &first["fields"]["stock_locate"];
    let directory =
        |message: &&&Value| message["type"] == "StockDirectory" && message["fields"]["stock_locate"] == *locate;
    let symbol = all_messages.iter().find(directory).unwrap()["fields"]["stock"].as_str().unwrap();
    let stock_messages = filtered(&["--symbol", symbol]);
    let wanted: Vec<_> = all_messages.iter().filter(|message| message["fields"]["stock_locate"] == *locate).collect();
    assert!(wanted.len() > 10);
    assert_eq!(messages(&stock_messages).iter().collect::<Vec<_>>(), wanted);

    assert_eq!(filtered(&["--session", "MDGWSIM001", "--channel", DESTINATIONS[0]]), all);
    for nothing in [["--session", "OTHER"], ["--channel", "233.54.12.111:1"], ["--frame", "0"]] {
        let ended = day.inspect(&nothing).expect_code(1);
        assert!(ended.stdout.is_empty() && ended.stderr.contains("nothing matches the filters"), "{}", ended.stderr);
        let summed = day.inspect(&[nothing[0], nothing[1], "--stats"]).expect_code(1);
        assert!(summed.stderr.contains("nothing matches the filters"), "{}", summed.stderr);
    }

    let middle_ns = day.packets[day.packets.len() / 2].0;
    let seconds = |time_ns: u64| format!("+{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let moment = seconds(middle_ns - day.packets[0].0);
    let [before, after] = ["--until", "--from"].map(|bound| filtered(&[bound, &moment]));
    assert!(before.iter().all(|packet| packet["time_ns"].as_u64().unwrap() < middle_ns));
    assert_eq!([before, after].concat(), all);
}

#[test]
fn text_output_shows_instrument_price_and_time() {
    let day = DayCapture::new();
    let shown = day.inspect(&["--type", "AddOrder"]).expect_code(0);
    let packets = json_lines(&day.inspect(&["--type", "AddOrder", "--json"]).expect_code(0));
    let add = &messages(&packets)[0]["fields"];
    assert!(shown.stdout.starts_with("2019-01-30 UTC\n"), "{}", shown.stdout);
    assert!(!shown.stdout.contains('\x1b'), "no colours without a terminal");
    let row = shown.stdout.lines().find(|line| line.contains("AddOrder")).unwrap();
    let price = add["price"].as_u64().unwrap();
    for wanted in [
        format!("price={}.{:04}", price / 10_000, price % 10_000),
        format!(" {} ", add["stock"].as_str().unwrap()),
        format!("shares={}", add["shares"]),
        " ET".to_owned(),
    ] {
        assert!(row.contains(&wanted), "{wanted}: {row}");
    }
    assert_eq!(shown.stderr.lines().count(), 1, "{}", shown.stderr);
    assert!(shown.stderr.contains("ITCH 5.0 over MoldUDP64"), "{}", shown.stderr);
    let output = day.inspect(&["--feed", "nasdaq-itch-5.0"]).expect_code(0);
    assert!(output.stderr.is_empty(), "{}", output.stderr);
}

#[test]
fn statistics_match_the_packets() {
    let day = DayCapture::new();
    let mut packets = day.packets.clone();
    // Make a gap in the middle, and a duplicate.
    let lost = packets.remove(packets.len() / 2);
    let copied = packets[3].clone();
    packets.insert(4, copied);
    let path = day.write("gap.pcap", &packets);
    let all = json_lines(&day.inspect(&["--json"]).expect_code(0));
    let lost_messages: u64 = all.iter().filter(|packet| packet["time_ns"] == lost.0).map(count).sum();
    let repeated_messages = count(&all[3]);

    let statistics = process::run(["inspect", text(&path), "--stats", "--json"]).expect_code(0).json();
    let [line] = statistics["lines"].as_array().unwrap().as_slice() else { panic!("{statistics}") };
    assert_eq!(line["dst"], DESTINATIONS[0]);
    assert_eq!(line["packets"], packets.len());
    assert_eq!(line["messages"], MESSAGES - lost_messages + repeated_messages);
    assert_eq!(
        (&line["gap_count"], &line["missing_messages"], &line["duplicates"]),
        (&1.into(), &lost_messages.into(), &repeated_messages.into())
    );
    assert_eq!(line["gaps"][0]["next"].as_u64().unwrap() - line["gaps"][0]["first"].as_u64().unwrap(), lost_messages);
    assert_eq!(line["session_count"], 1);
    assert_eq!(line["sessions"][0]["next"], MESSAGES + 1);
    let by_type: u64 = line["types"].as_array().unwrap().iter().map(|kind| kind["messages"].as_u64().unwrap()).sum();
    assert_eq!(line["messages"], by_type);
    for burst in line["bursts"].as_array().unwrap() {
        let window = burst["time_ns"].as_u64().unwrap() / 1_000 * 1_000;
        let window = window..window + burst["window_us"].as_u64().unwrap() * 1_000;
        assert!(burst["messages"].as_u64().unwrap() > 0 && window.contains(&burst["time_ns"].as_u64().unwrap()));
    }

    let shown = process::run(["inspect", text(&path), "--stats"]).expect_code(0).stdout;
    for wanted in ["busiest 1 ms", "busiest 10 ms", "busiest 1 s", "AddOrder", "gaps", "sessions", DESTINATIONS[0]] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    // A filter does not change the gaps of a line.
    let type_filter = ["inspect", text(&path), "--stats", "--json", "--type", "D"];
    let filtered = process::run(type_filter).expect_code(0).json();
    assert_eq!(filtered["lines"][0]["gap_count"], 1);
    assert_eq!(filtered["lines"][0]["types"].as_array().unwrap().len(), 1);
}

#[test]
fn a_restarted_session_is_a_new_session() {
    let day = DayCapture::new();
    // System Event Message (`S`): start of messages.
    let message = [&b"SO"[..], &MIDNIGHT_NS.to_le_bytes()].concat();
    let runs = [0, 5_000_000_000].map(|later| {
        let messages = [message.as_slice(), message.as_slice()];
        feeds::iex_packets(TOPS, 7, MIDNIGHT_NS + later, messages)
    });
    let path = day.write("restart.pcap", &runs.concat());
    let statistics = process::run(["inspect", text(&path), "--stats", "--json"]).expect_code(0).json();
    let line = &statistics["lines"][0];
    assert_eq!((&line["session_count"], &line["gap_count"], &line["channel"]), (&2.into(), &0.into(), &1.into()));
    assert_eq!(line["sessions"][1]["session"], "iex-tops-1.6 2019-01-30 #1");
}

#[test]
fn a_truncated_capture_shows_complete_packets_and_the_offset() {
    let day = DayCapture::new();
    let whole = fs::read(&day.path).unwrap();
    let all = day.inspect(&["--json"]).expect_code(0).stdout;
    let cut = day.folder.path().join("cut.pcap");
    for bytes in [whole.len() - 1, whole.len() / 2, 24 + 8] {
        fs::write(&cut, &whole[..bytes]).unwrap();
        let ended = process::run(["inspect", text(&cut), "--json"]).expect_code(2);
        assert!(all.starts_with(&ended.stdout), "cut at {bytes}");
        assert!(bytes < 100 || !ended.stdout.is_empty(), "cut at {bytes}");
        assert!(ended.stderr.contains("at byte ") && ended.stderr.contains(text(&cut)), "{}", ended.stderr);
        let summed = process::run(["inspect", text(&cut), "--json", "--stats"]).expect_code(2);
        assert_eq!(summed.json()["datagrams"], ended.stdout.lines().count());
    }
}

#[test]
fn an_impossible_length_is_refused_with_its_offset() {
    let day = DayCapture::new();
    let mut bytes = fs::read(&day.path).unwrap();
    let first_bytes = u32::from_le_bytes(bytes[32..36].try_into().unwrap()) as usize;
    let second = 24 + 16 + first_bytes;
    bytes[second + 8..second + 12].fill(0xff);
    let path = day.folder.path().join("damaged.pcap");
    fs::write(&path, &bytes).unwrap();
    let ended = process::run(["inspect", text(&path), "--json"]).expect_code(2);
    assert_eq!(ended.stdout.lines().count(), 1);
    assert!(ended.stderr.contains(&format!("at byte {second}")), "{}", ended.stderr);
    assert!(ended.stderr.contains("4294967295 bytes"), "{}", ended.stderr);
}

#[test]
fn files_without_a_known_feed_are_refused_by_name() {
    let day = DayCapture::new();
    let header = fs::read(&day.path).unwrap()[..24].to_vec();
    let mut token_ring = fs::read(&day.path).unwrap();
    token_ring[20] = 6;
    let unknown_feed = fs::read(day.write("unknown_feed.pcap", &[(MIDNIGHT_NS, Arc::from(&b"no feed"[..]))])).unwrap();
    for (name, content, message) in [
        ("empty", &b""[..], "empty"),
        ("text", b"no capture at all", "not a pcap, pcapng or Nasdaq day file"),
        ("zeros", &[0; 4096], "not a pcap, pcapng or Nasdaq day file"),
        ("no-packets", &header, "no UDP datagrams"),
        ("token-ring", &token_ring, "link type 6"),
        ("foreign", &unknown_feed, "no known feed"),
    ] {
        let path = day.folder.path().join(name);
        fs::write(&path, content).unwrap();
        for more in [&[][..], &["--json"], &["--stats"]] {
            let ended = process::run(["inspect", text(&path)].iter().chain(more)).expect_code(2);
            assert!(ended.stderr.contains(text(&path)) && ended.stderr.contains(message), "{name}: {}", ended.stderr);
            assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        }
    }
}

#[test]
fn a_capture_of_mixed_packets_is_shown_packet_by_packet() {
    let day = DayCapture::new();
    let good = &day.packets[0];
    let mut broken = good.1.to_vec();
    broken.push(0);
    let message = [&b"SO"[..], &MIDNIGHT_NS.to_le_bytes()].concat();
    let other = feeds::iex_packets(TOPS, 7, MIDNIGHT_NS, [message.as_slice()]);
    let unknown = {
        let mut packet = Vec::new();
        packet.extend_from_slice(&SESSION);
        packet.extend_from_slice(&9_u64.to_be_bytes());
        packet.extend_from_slice(&[0, 1, 0, 3, b'z', 1, 2]);
        packet
    };
    let payloads: [&[u8]; 5] = [&good.1, &broken, &other[0].1, b"noise", &unknown];
    let packets: Vec<Packet> = payloads.into_iter().map(|bytes| (good.0, Arc::from(bytes))).collect();
    let path = day.write("mixed.pcap", &packets);
    let shown = json_lines(&process::run(["inspect", text(&path), "--json"]).expect_code(0));
    assert_eq!(shown.len(), 5);
    assert_eq!(shown[0].get("refused"), None);
    assert_eq!(shown[1]["refused"], "trailing_bytes");
    assert_eq!(shown[1]["undecoded_bytes"], broken.len() - 20);
    assert_eq!(shown[2]["messages"][0]["type"], "SystemEvent");
    assert_eq!(shown[2]["header"]["session_id"], 7);
    assert!(shown[3].get("refused").is_some() && shown[3]["undecoded_bytes"] == 5, "{}", shown[3]);
    assert_eq!(shown[4]["messages"][0]["refused"], "message_type_unknown");
    assert_eq!(shown[4]["undecoded_bytes"], 3);
    let text_shown = process::run(["inspect", text(&path)]).expect_code(0).stdout;
    for wanted in ["refused: trailing_bytes", "refused: message_type_unknown", "undecoded"] {
        assert!(text_shown.contains(wanted), "{wanted}: {text_shown}");
    }
}

#[test]
fn a_readable_file_is_shown_although_another_is_missing() {
    let day = DayCapture::new();
    let missing = day.folder.path().join("missing.pcap");
    let ended = process::run(["inspect", text(&missing), text(&day.path), "--json"]).expect_code(2);
    assert_eq!(ended.stdout.lines().count(), day.packets.len());
    assert!(ended.stderr.contains(text(&missing)), "{}", ended.stderr);
    let alone = process::run(["inspect", text(&missing)]).expect_code(2);
    let why = "No such file or directory (os error 2)";
    assert_eq!(
        alone.stderr,
        format!("mdgw: open {}: {why}\n", text(&missing)),
        "the error has no other output before it"
    );
}

#[test]
fn a_closed_pipe_is_no_error_and_a_full_disk_is() {
    let day = DayCapture::new();
    let mut child = Command::new(process::program())
        .args(["inspect", text(&day.path), "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut head = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut head).unwrap();
    let ended = child.wait_with_output().unwrap();
    let output = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{output}");
    assert!(!output.contains("panicked") && !output.contains("roken pipe"), "{output}");

    for more in ["--json", "--stats"] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended =
            Command::new(process::program()).args(["inspect", text(&day.path), more]).stdout(full).output().unwrap();
        let output = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{output}");
        assert!(output.contains("write to standard output") && output.contains("No space left"), "{output}");
    }
}

#[test]
fn a_file_that_grows_is_followed_until_interrupted() {
    let day = DayCapture::new();
    let whole = fs::read(&day.path).unwrap();
    let path = day.folder.path().join("growing.pcap");
    // First truncated inside one packet, then inside a later one.
    let (first, second) = (whole.len() / 3, whole.len() / 3 * 2);
    let mut file = File::create(&path).unwrap();
    file.write_all(&whole[..first]).unwrap();
    let child = process::start(["inspect", text(&path), "--json", "--follow"]);
    let _ = child.wait_for_stderr("detected as");
    file.write_all(&whole[first..second]).unwrap();
    file.write_all(&whole[second..]).unwrap();
    let last = format!("{{\"frame\":{},", day.packets.len());
    child.wait_for_stdout(&last);
    let ended = child.stop_with(Signal::Interrupt).expect_code(0);
    assert_eq!(ended.stdout, day.inspect(&["--json"]).expect_code(0).stdout);
}

/// A synthetic day as a capture.
struct DayCapture {
    folder: TempDir,
    path: PathBuf,
    packets: Vec<Packet>,
}

/// Messages of the day.
const MESSAGES: u64 = 5_000;
/// Message protocol of IEX TOPS 1.6.
const TOPS: u16 = 0x8003;

impl DayCapture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("day.pcap");
        let packets = feeds::itch_packets(feeds::itch_day(MESSAGES, 3), SESSION, MIDNIGHT_NS);
        feeds::write_capture(&path, DESTINATIONS[0], &packets);
        Self { folder, path, packets }
    }

    fn write(&self, name: &str, packets: &[Packet]) -> PathBuf {
        let path = self.folder.path().join(name);
        feeds::write_capture(&path, DESTINATIONS[0], packets);
        path
    }

    fn inspect(&self, more: &[&str]) -> ExitedProcess {
        process::run(["inspect", text(Path::new(&self.path))].iter().chain(more))
    }
}

/// One object per packet that `mdgw inspect --json` printed.
fn json_lines(ended: &ExitedProcess) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn messages(packets: &[Value]) -> Vec<&Value> {
    packets.iter().flat_map(|packet| packet["messages"].as_array().unwrap()).collect()
}

fn count(packet: &Value) -> u64 {
    packet["messages"].as_array().unwrap().len() as u64
}
