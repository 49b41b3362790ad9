//! `mdgw merge`: lines may lose, truncate, delay or stamp packets with other clocks. The merged capture has each
//! message once; the summary reports each line's losses and lead, and the ranges that no line has.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeSet,
    fs,
    io::Read as _,
    ops::Range,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use mdgw_feeds::{
    identity::Sequence,
    time::UnixNs,
    transport::{
        Transport as _,
        iextp::{self, PacketWriter, SegmentPosition, StreamIdentity, Tops},
        moldudp64::MoldUdp64,
    },
};
use mdgw_tests::{
    captures,
    feeds::{self, DAMAGE, DESTINATIONS, MIDNIGHT_NS, Packet, SESSION},
    gateway_fixture::text,
    process::{self, ExitedProcess},
    skip::skip,
};
use serde_json::Value;

#[test]
fn merged_lossy_lines_replay_like_the_lines_together() {
    let folder = tempfile::tempdir().unwrap();
    let packets = itch(12_000, 1);
    let [a, b] = feeds::write_damaged_captures(folder.path(), &packets, DAMAGE, 7);
    let out = folder.path().join("out.pcap");
    let summary = merge(&[&a, &b], &out, &[]).expect_code(0).json();
    let channel = &summary["channels"][0];
    assert_eq!((number(&channel["gap_count"]), number(&channel["messages"])), (0, count(&packets)), "{channel}");
    let schemas = "mbo,mbp-1,trades,statistics,imbalance,status,definition";
    let together = replay(&[&a, &b], schemas, &[]);
    assert!(replay(&[&out], schemas, &[]) == together, "the merged capture gives other records");
    // The summary reports the losses and the lead of each line as the damage was done.
    let lines = feeds::damaged(&packets, DAMAGE, 7);
    for (index, line) in lines.iter().enumerate() {
        let line_sequences: BTreeSet<u64> = line.iter().flat_map(|(_, bytes)| sequences(bytes)).collect();
        let reported = &channel["lines"][index];
        let (first, last) = (line_sequences.first().unwrap(), line_sequences.last().unwrap());
        assert_eq!(number(&reported["messages"]), line_sequences.len() as u64, "{reported}");
        assert_eq!(number(&reported["lost_messages"]), last + 1 - first - line_sequences.len() as u64, "{reported}");
        assert_eq!(number(&reported["lost_by_all_messages"]), 0, "{reported}");
        assert!(number(&reported["line_gaps"]) > 0 && number(&reported["duplicate_packets"]) > 0, "{reported}");
    }
    let lead = &channel["leads"][0];
    assert_eq!((&lead["line"], &lead["other_line"]), (&"A".into(), &"B".into()));
    assert_eq!(number(&lead["p50_ns"]), 3_000, "line B is 3 us later: {lead}");
    assert!(number(&lead["won_messages"]) * 10 > number(&lead["common_messages"]) * 9, "{lead}");
}

/// Messages keep the venue's order, although the clocks of the machines differ by seconds or hours, in either direction, and
/// drift.
#[test]
fn captures_with_different_clocks_are_merged_by_sequence() {
    let folder = tempfile::tempdir().unwrap();
    let packets = itch(12_000, 2);
    let lines = feeds::damaged(&packets, DAMAGE, 8);
    let paths = ["a.pcap", "b.pcap"].map(|name| folder.path().join(name));
    feeds::write_capture(&paths[0], DESTINATIONS[0], &lines[0]);
    feeds::write_capture(&paths[1], DESTINATIONS[1], &lines[1]);
    let expected = replay(&[&paths[0], &paths[1]], "mbo", &["--ts-recv", "none"]);
    let out = folder.path().join("out.pcap");
    for offset_ns in [37_000_000_000_i64, -3_600_000_000_000, 400_000] {
        let shifted: Vec<Packet> = lines[1]
            .iter()
            .map(|(time_ns, bytes)| (time_ns.checked_add_signed(offset_ns).unwrap(), Arc::clone(bytes)))
            .collect();
        feeds::write_capture(&paths[1], DESTINATIONS[1], &shifted);
        for order in [[0, 1], [1, 0]] {
            let summary = merge(&[&paths[order[0]], &paths[order[1]]], &out, &[]).expect_code(0).json();
            let channel = &summary["channels"][0];
            assert_eq!(number(&channel["messages"]), count(&packets), "{offset_ns}: {channel}");
            if order[0] == 0 {
                assert!(replay(&[&out], "mbo", &["--ts-recv", "none"]) == expected, "{offset_ns}: other records");
            }
            let clock = &summary["clocks"][0];
            let reported = clock["offset_ns"].as_i64().unwrap();
            let wanted = (offset_ns + 3_000) * if order[0] == 0 { 1 } else { -1 };
            assert_eq!((reported, &clock["basis"]), (wanted, &"different lines".into()), "{clock}");
        }
    }
}

/// If both machines have a line in common, its timestamps give the clock offset, and leads are reported without it.
#[test]
fn a_shared_line_corrects_clock_offsets_of_leads() {
    let folder = tempfile::tempdir().unwrap();
    let packets = feeds::evenly_spaced(&itch(5_000, 3), 20_000);
    let write = |name: &str, lines: &[(&str, u64)]| {
        let path = folder.path().join(name);
        let mut all: Vec<(u64, &str, &Arc<[u8]>)> = lines
            .iter()
            .flat_map(|(destination, delay_ns)| {
                packets.iter().map(move |(time_ns, bytes)| (time_ns + delay_ns, *destination, bytes))
            })
            .collect();
        all.sort_by_key(|(time_ns, ..)| *time_ns);
        write_lines(&path, &all);
        path
    };
    let one = write("one.pcap", &[(DESTINATIONS[0], 0), (DESTINATIONS[1], 5_000)]);
    // A clock a second ahead; line B of this machine is 1 us behind its line A.
    let other = write("other.pcap", &[(DESTINATIONS[0], 1_000_000_000), (DESTINATIONS[1], 1_000_001_000)]);
    let out = folder.path().join("out.pcap");
    let summary = merge(&[&one, &other], &out, &[]).expect_code(0).json();
    let clock = &summary["clocks"][0];
    assert_eq!(&clock["basis"], "same line");
    let offset_ns = clock["offset_ns"].as_i64().unwrap();
    assert!((999_990_000..=1_000_010_000).contains(&offset_ns), "{clock}");
    let table = process::run(["merge", text(&one), text(&other), "-o", text(&out)]).expect_code(0).stdout;
    let exact = format!("is {}.{:09} s ahead of", offset_ns / 1_000_000_000, offset_ns % 1_000_000_000);
    assert!(table.contains(&exact), "to the nanosecond: {table}");
    let channel = &summary["channels"][0];
    let line = |path: &Path, dst: &str| {
        let mut lines = channel["lines"].as_array().unwrap().iter();
        lines.find(|line| line["path"] == text(path) && line["dst"] == dst).unwrap()["line"].clone()
    };
    let by = |line: &Value, over: &Value| {
        let mut leads = channel["leads"].as_array().unwrap().iter();
        leads.find(|lead| lead["line"] == *line && lead["other_line"] == *over).unwrap().clone()
    };
    let same_clock_lead = by(&line(&one, DESTINATIONS[0]), &line(&one, DESTINATIONS[1]));
    assert_eq!(
        (number(&same_clock_lead["p50_ns"]), &same_clock_lead["clocks"]),
        (5_000, &"one clock".into()),
        "{same_clock_lead}"
    );
    let cross_clock_leads: Vec<&Value> =
        channel["leads"].as_array().unwrap().iter().filter(|lead| lead["clocks"] == "clocks corrected").collect();
    assert!(!cross_clock_leads.is_empty());
    assert!(cross_clock_leads.iter().all(|lead| number(&lead["max_ns"]) < 20_000), "{cross_clock_leads:?}");
}

#[test]
fn lines_with_different_packetisation_and_restarts_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    // Three sessions under one session id, as at IEX. Each line splits the messages into other packets and loses some, but no
    // message is lost on all lines.
    let line = |seed: usize, delay_ns: u64, lost: &dyn Fn(Range<u64>) -> bool| {
        let mut packets = Vec::new();
        for restart in 0..3_u64 {
            let start_ns = BEGIN_NS + restart * 60_000_000_000;
            packets.extend(iex_line(400, seed, start_ns, delay_ns, lost));
        }
        packets
    };
    let a = line(3, 0, &|range| range.start % 100 >= 20 && (range.end - 1) % 100 < 40 && range.start % 100 < 40);
    let b = line(1, 7_000, &|range| range.start % 100 >= 60 && range.end % 100 >= 60);
    let whole = line(1, 0, &|_| false);
    let paths = ["a.pcap", "b.pcap", "whole.pcap", "out.pcap"].map(|name| folder.path().join(name));
    for (path, packets) in paths.iter().zip([&a, &b, &whole]) {
        feeds::write_capture(path, DESTINATIONS[0], packets);
    }
    let missing = |packets: &[Packet]| 3 * 400 - packets.iter().map(|(_, bytes)| iex_count(bytes)).sum::<u64>();
    assert!(missing(&a) > 0 && missing(&b) > 0, "both lose");
    let ended = merge(&[&paths[0], &paths[1]], &paths[3], &[]);
    let summary = ended.json();
    let channel = &summary["channels"][0];
    assert_eq!(number(&channel["sessions"]), 3, "{channel}");
    assert_eq!(number(&channel["messages"]) + number(&channel["gap_messages"]), 1_200, "{channel}");
    assert_eq!(number(&channel["gap_count"]), 0, "{channel}");
    let without_times = ["--ts-recv", "none"];
    let expected = replay(&[&paths[2]], "mbp-1", &without_times);
    assert!(replay(&[&paths[3]], "mbp-1", &without_times) == expected, "other records");
    let again = folder.path().join("again.pcap");
    let summary = merge(&[&paths[3]], &again, &[]).expect_code(0).json();
    assert_eq!(number(&summary["channels"][0]["messages"]), 1_200);
    assert!(fs::read(&again).unwrap() == fs::read(&paths[3]).unwrap(), "merging a merged capture changes nothing");
}

#[test]
fn channels_sharing_files_are_merged_separately() {
    let folder = tempfile::tempdir().unwrap();
    let channels = [(*b"CHANNEL001", 4), (*b"CHANNEL002", 5)].map(|(session, seed)| {
        let packets = feeds::itch_packets(feeds::itch_day(8_000, seed), session, MIDNIGHT_NS);
        (count(&packets), feeds::damaged(&packets, DAMAGE, seed))
    });
    let destinations = [["239.1.1.1:1001", "239.1.1.2:1001"], ["239.1.2.1:1002", "239.1.2.2:1002"]];
    // One machine captured all lines, the other only the B lines, with a clock that is five seconds behind.
    let all = |wanted: &dyn Fn(usize) -> bool, earlier_ns: u64| {
        let mut all: Vec<(u64, &str, &Arc<[u8]>)> = Vec::new();
        for ((_, lines), destinations) in channels.iter().zip(&destinations) {
            for (index, line) in lines.iter().enumerate().filter(|(index, _)| wanted(*index)) {
                all.extend(line.iter().map(|(time_ns, bytes)| (time_ns - earlier_ns, destinations[index], bytes)));
            }
        }
        all.sort_by_key(|(time_ns, ..)| *time_ns);
        all
    };
    let [first, second, out] = ["first.pcap", "second.pcap", "out.pcap"].map(|name| folder.path().join(name));
    write_lines(&first, &all(&|_| true, 0));
    write_lines(&second, &all(&|index| index == 1, 5_000_000_000));
    let summary = merge(&[&first, &second], &out, &[]).expect_code(0).json();
    for (channel, (messages, _)) in summary["channels"].as_array().unwrap().iter().zip(&channels) {
        assert_eq!((number(&channel["messages"]), number(&channel["gap_count"])), (*messages, 0), "{channel}");
        assert_eq!(channel["lines"].as_array().unwrap().len(), 3, "{channel}");
    }
    let read = process::run(["replay", "--offline", text(&out), "--feed", "nasdaq-itch-5.0", "--json"]).expect_code(0);
    let channels_read = read.json()["channels"].clone();
    let gaps: Vec<u64> = channels_read.as_array().unwrap().iter().map(|channel| number(&channel["gaps"])).collect();
    assert_eq!(gaps, [0, 0], "{channels_read}");
}

/// One capture of one machine. One line lags as far behind as it could in a separate capture.
#[test]
fn a_lagging_line_in_the_same_capture_fills_gaps() {
    const LAG_PACKETS: usize = 6_000;
    let folder = tempfile::tempdir().unwrap();
    let [both, out] = ["both.pcap", "out.pcap"].map(|name| folder.path().join(name));
    let packets = feeds::evenly_spaced(&one_message_each(&itch(14_000, 12)), 10_000);
    let lost_by_both = 7_003;
    assert!((LAG_PACKETS..packets.len()).contains(&lost_by_both) && lost_by_both % 50 != 0 && lost_by_both % 70 != 1);
    let line = |destination: &'static str, delay_ns: u64, loses: fn(usize) -> bool| {
        let kept = packets.iter().enumerate().filter(move |(index, _)| *index != lost_by_both && !loses(*index));
        kept.map(move |(_, (time_ns, bytes))| (time_ns + delay_ns, destination, bytes))
    };
    let a = || line(DESTINATIONS[0], 0, |index| index % 50 == 0 && index > 0);
    let b = line(DESTINATIONS[1], LAG_PACKETS as u64 * 10_000, |index| index % 70 == 1 && index % 50 != 0);
    let mut all: Vec<(u64, &str, &Arc<[u8]>)> = a().chain(b).collect();
    all.sort_by_key(|(time_ns, ..)| *time_ns);
    write_lines(&both, &all);
    let summary = merge(&[&both], &out, &[]).expect_code(1).json();
    let channel = &summary["channels"][0];
    assert_eq!((number(&channel["gap_count"]), number(&channel["gaps_window_full"])), (1, 0), "{channel}");
    let missing = sequences(&packets[lost_by_both].1);
    assert_eq!(channel["gaps"][0]["first"], missing.start, "{channel}");
    assert_eq!(number(&channel["messages"]), count(&packets) - 1, "{channel}");
    let lost = number(&channel["lines"][0]["lost_messages"]);
    assert!(lost > count(&packets) / 60 && number(&channel["lines"][1]["lost_messages"]) > 0, "{channel}");
    let lead_ns = number(&channel["leads"][0]["p50_ns"]);
    assert!((LAG_PACKETS as u64 * 9_990..=LAG_PACKETS as u64 * 10_000).contains(&lead_ns), "{channel}");
    assert_eq!((summary["clocks"].as_array().unwrap().len(), summary["files"].as_array().unwrap().len()), (0, 1));
    let merged: Vec<u64> = feeds::capture_packets(&out).iter().flat_map(|(_, bytes)| sequences(bytes)).collect();
    assert!(merged.into_iter().eq((1..=count(&packets)).filter(|sequence| *sequence != missing.start)), "in order");

    // A pipe cannot be read at two positions, so the window fills up. The summary reports that.
    let mut child = Command::new(process::program())
        .args(["merge", "/dev/stdin", "-o", text(&out)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut pipe, bytes) = (child.stdin.take().unwrap(), fs::read(&both).unwrap());
    std::thread::spawn(move || std::io::Write::write_all(&mut pipe, &bytes));
    let ended = child.wait_with_output().unwrap();
    let table = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{table}");
    assert!(table.contains("declared early") && table.contains("the window of 4,096 packets was full"), "{table}");
}

/// One file with the packets of line A followed by those of line B. The gaps of A are declared before B is known.
#[test]
fn a_line_starting_after_the_other_ended_is_reported_as_too_late() {
    const LATER_NS: u64 = 3_600_000_000_000;
    let folder = tempfile::tempdir().unwrap();
    let [both, a, b, out] = ["both.pcap", "a.pcap", "b.pcap", "out.pcap"].map(|name| folder.path().join(name));
    let packets = feeds::evenly_spaced(&one_message_each(&itch(18_000, 12)), 10_000);
    let line = |destination: &'static str, delay_ns: u64, lost: usize| -> Vec<(u64, &str, &Arc<[u8]>)> {
        let kept = packets.iter().enumerate().filter(move |(index, _)| index % 50 != lost || *index == 0);
        kept.map(|(_, (time_ns, bytes))| (time_ns + delay_ns, destination, bytes)).collect()
    };
    let lines = [line(DESTINATIONS[0], 0, 0), line(DESTINATIONS[1], LATER_NS, 7)];
    write_lines(&a, &lines[0]);
    write_lines(&b, &lines[1]);
    write_lines(&both, &lines.concat());

    let table = process::run(["merge", text(&both), "-o", text(&out)]).expect_code(1).stdout;
    assert!(table.contains("declared early") && table.contains("as a separate capture"), "{table}");
    let summary = merge(&[&a, &b], &out, &[]).expect_code(0).json();
    let channel = &summary["channels"][0];
    assert_eq!((number(&channel["gap_count"]), number(&channel["messages"])), (0, count(&packets)), "{channel}");
}

#[test]
fn messages_missing_on_all_lines_are_listed_and_exit_1() {
    let folder = tempfile::tempdir().unwrap();
    let packets = itch(2_000, 6);
    let [a, b, out] = ["a.pcap", "b.pcap", "out.pcap"].map(|name| folder.path().join(name));
    let (lost_by_all, lost_by_a) = (packets.len() / 2, packets.len() / 3);
    let without = |lost: &[usize]| {
        let kept = packets.iter().enumerate().filter(|(index, _)| !lost.contains(index));
        kept.map(|(_, packet)| packet.clone()).collect::<Vec<_>>()
    };
    feeds::write_capture(&a, DESTINATIONS[0], &without(&[lost_by_all, lost_by_a]));
    feeds::write_capture(&b, DESTINATIONS[1], &without(&[lost_by_all]));
    let ended = merge(&[&a, &b], &out, &[]).expect_code(1);
    let summary = ended.json();
    let channel = &summary["channels"][0];
    let missing = sequences(&packets[lost_by_all].1);
    let gap = &channel["gaps"][0];
    assert_eq!((number(&gap["first"]), number(&gap["next"])), (missing.start, missing.end), "{channel}");
    assert_eq!(number(&channel["gap_count"]), 1);
    let only_a = sequences(&packets[lost_by_a].1);
    let line_gap = channel["lines"][0]["first_line_gaps"][0].as_array().unwrap().iter().map(number).collect::<Vec<_>>();
    assert_eq!(line_gap, [only_a.start, only_a.end]);
    let table = process::run(["merge", text(&a), text(&b), "-o", text(&out)]).expect_code(1).stdout;
    assert!(
        table.contains("lost on all lines") && table.contains(&format!("{} messages in 1 gaps", missing.count())),
        "{table}"
    );
}

#[test]
fn bad_input_keeps_merged_output_and_reports_file_and_offset() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = feeds::write_damaged_captures(folder.path(), &itch(5_000, 9), DAMAGE, 9);
    let path = |name: &str| folder.path().join(name);
    let (out, bad) = (path("out.pcap"), path("bad.pcap"));

    // The capture of A is truncated. Its packets until then are kept, and the rest comes from B alone.
    let whole = fs::read(&a).unwrap();
    fs::write(&bad, &whole[..whole.len() / 2]).unwrap();
    let ended = merge(&[&bad, &b], &out, &[]).expect_code(2);
    assert!(ended.stderr.contains(text(&bad)) && ended.stderr.contains("at byte "), "{}", ended.stderr);
    assert!(ended.stderr.contains("everything before this point was merged"), "{}", ended.stderr);
    assert!(!replay(&[&out], "mbo", &[]).is_empty());

    for (content, message) in [
        (&b""[..], "the file is empty"),
        (b"no capture at all, but text", "not a pcap, pcapng or Nasdaq day file"),
        (b"DBN\x03 and so on", "not a pcap, pcapng or Nasdaq day file"),
    ] {
        fs::write(&bad, content).unwrap();
        let ended = merge(&[&bad, &b], &out, &[]).expect_code(2);
        assert!(ended.stderr.contains(text(&bad)) && ended.stderr.contains(message), "{}", ended.stderr);
    }
    let ended = merge(&[&a, &path("missing.pcap")], &out, &[]).expect_code(2);
    assert!(ended.stderr.contains("missing.pcap"), "{}", ended.stderr);

    // A capture of an unknown feed.
    feeds::write_capture(&bad, DESTINATIONS[0], &[(MIDNIGHT_NS, Arc::from(&b"hello"[..]))]);
    let ended = merge(&[&bad], &out, &[]).expect_code(2);
    assert!(ended.stderr.contains("no known feed in 1 datagrams"), "{}", ended.stderr);
    feeds::write_capture(&bad, DESTINATIONS[0], &[]);
    let ended = merge(&[&bad], &out, &[]).expect_code(2);
    assert!(ended.stderr.contains(&format!("no UDP datagrams in {}", text(&bad))), "{}", ended.stderr);

    // The output must not be an input.
    let ended = merge(&[&a, &b], Path::new("/dev/full"), &[]).expect_code(2);
    assert!(ended.stderr.contains("write /dev/full") && ended.stderr.contains("space"), "{}", ended.stderr);
    let before = fs::read(&a).unwrap();
    let ended = merge(&[&a, &b], &a, &[]).expect_code(2);
    assert!(ended.stderr.contains("is one of the input files"), "{}", ended.stderr);
    assert!(fs::read(&a).unwrap() == before, "the input is untouched");
}

#[test]
fn output_can_be_piped_and_a_closed_pipe_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = feeds::write_damaged_captures(folder.path(), &itch(20_000, 10), DAMAGE, 10);
    let out = folder.path().join("out.pcap");
    let _ = merge(&[&a, &b], &out, &[]).expect_code(0);
    let piped = || {
        let mut command = Command::new(process::program());
        command.args(["merge", text(&a), text(&b), "-o", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let whole = piped().wait_with_output().unwrap();
    assert!(whole.status.success() && whole.stdout == fs::read(&out).unwrap());
    assert!(String::from_utf8(whole.stderr).unwrap().contains("lost on all lines"), "the table goes to standard error");
    let mut child = piped();
    let mut head = [0; 24];
    child.stdout.take().unwrap().read_exact(&mut head).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8(ended.stderr).unwrap().as_str()), (Some(0), ""));

    let packed = folder.path().join("out.pcap.zst");
    let _ = merge(&[&a, &b], &packed, &[]).expect_code(0);
    assert!(replay(&[&packed], "mbo", &[]) == replay(&[&out], "mbo", &[]));
    assert!(fs::metadata(&packed).unwrap().len() < fs::metadata(&out).unwrap().len());
}

/// The long DEEP capture restarts its sequence numbers eleven times.
#[test]
fn a_real_iex_capture_is_restored_from_two_lossy_lines() {
    let Some(root) = captures::root("merge: DEEP in twelve sessions") else { return };
    let folder = tempfile::tempdir().unwrap();
    let packets = feeds::capture_packets(&root.join("iex/deep-1.0-20170425/DEEP10.pcap.gz"));
    let [a, b] = feeds::write_damaged_captures(folder.path(), &packets, DAMAGE, 11);
    let out = folder.path().join("out.pcap");
    let summary = merge(&[&a, &b], &out, &[]).expect_code(0).json();
    let channel = &summary["channels"][0];
    assert_eq!((number(&channel["sessions"]), number(&channel["gap_count"])), (12, 0), "{channel}");
    // In quiet times a reordered packet arrives minutes later. A replay by time would not wait for it that long.
    let whole = folder.path().join("whole.pcap");
    feeds::write_capture(&whole, DESTINATIONS[0], &packets);
    let without_times = ["--ts-recv", "none"];
    let expected = replay(&[&whole], "mbp-10,trades,status", &without_times);
    assert!(
        replay(&[&out], "mbp-10,trades,status", &without_times) == expected,
        "the merged capture gives other records"
    );
}

fn merge(files: &[&Path], out: &Path, more: &[&str]) -> ExitedProcess {
    let files = files.iter().map(|path| text(path));
    process::run(["merge"].into_iter().chain(files).chain(["-o", text(out), "--json"]).chain(more.iter().copied()))
}

#[test]
fn ipv6_lines_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let packets = itch(6_000, 9);
    let groups = ["[ff3e::88:1]:26477", "[ff3e::88:2]:26477"];
    let mut paths = Vec::new();
    for (line, group) in feeds::damaged(&packets, DAMAGE, 9).iter().zip(groups) {
        let path = folder.path().join(format!("{}.pcap", paths.len()));
        let file = std::io::BufWriter::new(fs::File::create(&path).unwrap());
        let mut writer = mdgw_captures::capture_file::PcapWriter::new(file).unwrap();
        for (time_ns, bytes) in line {
            writer.datagram_v6(*time_ns, "[2001:db8::1]:4".parse().unwrap(), group.parse().unwrap(), bytes).unwrap();
        }
        writer.finish().unwrap();
        paths.push(path);
    }
    let out = folder.path().join("out.pcap");
    let summary = merge(&[&paths[0], &paths[1]], &out, &[]).expect_code(0).json();
    assert_eq!(number(&summary["channels"][0]["messages"]), count(&packets), "{summary}");
    assert_eq!(summary["channels"][0]["lines"][1]["dst"], groups[1]);
    let options = mdgw_captures::capture_file::OpenOptions::default();
    let mut merged = mdgw_captures::capture_file::CaptureFile::open(&out, &options).unwrap();
    let mut messages = Vec::new();
    while let Some(datagram) = merged.next_datagram().unwrap() {
        assert_eq!(datagram.dst.to_string(), groups[0]);
        messages.extend(sequences(datagram.payload));
    }
    assert!(messages.iter().copied().eq(1..=count(&packets)), "each once, in order");
    let Ok(reported) =
        Command::new("tshark").args(["-r", text(&out), "-o", "udp.check_checksum:TRUE"]).args(BAD_SUM).output()
    else {
        return skip("tshark", "the package tshark of Debian is not installed");
    };
    assert!(reported.status.success() && reported.stdout.is_empty(), "{}", String::from_utf8_lossy(&reported.stdout));
}

/// Tshark filter for packets with a wrong checksum.
const BAD_SUM: [&str; 2] = ["-Y", "!(udp.checksum.status == \"Good\")"];

#[test]
fn more_than_64_channels_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.pcap");
    let (_, first) = itch(100, 10).swap_remove(0);
    let named: Vec<(String, Arc<[u8]>)> = (0..65_u8)
        .map(|number| {
            let mut packet = first.to_vec();
            packet[..2].copy_from_slice(&[b'A' + number / 10, b'0' + number % 10]);
            (format!("239.1.2.{number}:5000"), packet.into())
        })
        .collect();
    let packets: Vec<_> = named.iter().map(|(group, bytes)| (MIDNIGHT_NS, group.as_str(), bytes)).collect();
    let out = folder.path().join("out.pcap");
    write_lines(&path, &packets[..64]);
    let summary = merge(&[&path], &out, &[]).expect_code(0).json();
    assert_eq!(summary["channels"].as_array().unwrap().len(), 64);
    write_lines(&path, &packets);
    let reported = merge(&[&path], &out, &[]).expect_code(2).stderr;
    assert!(reported.contains("more than 64 channels"), "{reported}");
}

/// The records of captures, replayed together.
fn replay(files: &[&Path], schema: &str, more: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let out: PathBuf = folder.path().join("out.dbn");
    let files = files.iter().map(|path| text(path));
    let made = ["--schema", schema, "-o", text(&out)];
    let fixed = ["replay", "--offline"];
    let _ = process::run(fixed.into_iter().chain(files).chain(made).chain(more.iter().copied())).expect_code(0);
    fs::read(out).unwrap()
}

fn itch(messages: u64, seed: u64) -> Vec<Packet> {
    feeds::itch_packets(feeds::itch_day(messages, seed), SESSION, MIDNIGHT_NS)
}

/// Each message in a packet of its own.
fn one_message_each(packets: &[Packet]) -> Vec<Packet> {
    let mut cut = Vec::new();
    for (time_ns, bytes) in packets {
        let mut messages = &bytes[20..];
        for sequence in sequences(bytes) {
            let (message, rest) = messages.split_at(2 + usize::from(u16::from_be_bytes([messages[0], messages[1]])));
            messages = rest;
            let packet = [&bytes[..10], &sequence.to_be_bytes(), &1_u16.to_be_bytes(), message].concat();
            cut.push((*time_ns, packet.into()));
        }
    }
    cut
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Number of messages in a MoldUDP64 packet; 0 for the end of the session.
fn sequences(bytes: &[u8]) -> Range<u64> {
    let packet = MoldUdp64::parse(bytes).unwrap();
    packet.first.0..packet.next().0
}

fn count(packets: &[Packet]) -> u64 {
    packets.iter().map(|(_, bytes)| sequences(bytes).count() as u64).sum()
}

fn write_lines(path: &Path, packets: &[(u64, &str, &Arc<[u8]>)]) {
    let file = std::io::BufWriter::new(fs::File::create(path).unwrap());
    let mut writer = mdgw_captures::capture_file::PcapWriter::new(file).unwrap();
    for (time_ns, destination, bytes) in packets {
        writer.datagram(*time_ns, "10.0.0.1:40000".parse().unwrap(), destination.parse().unwrap(), bytes).unwrap();
    }
    writer.finish().unwrap();
}

const BEGIN_NS: u64 = 1_517_063_400_000_000_000;

/// A session of that many TOPS quotes, in packets of 1 to `seed` + 1 messages, without the lost packets.
fn iex_line(
    messages: u64,
    seed: usize,
    start_ns: u64,
    delay_ns: u64,
    lost: &dyn Fn(Range<u64>) -> bool,
) -> Vec<Packet> {
    let stream = StreamIdentity { message_protocol_id: iextp::PROTOCOL_TOPS_1_6, channel_id: 1, session_id: 9 };
    let mut packets = Vec::new();
    let (mut first, mut stream_offset) = (1_u64, 0);
    while first <= messages {
        let sent_ns = start_ns + first * 10_000;
        let position = SegmentPosition { first: Sequence(first), stream_offset, send_time: UnixNs(sent_ns) };
        let mut bytes = Vec::new();
        let mut writer = PacketWriter::begin(&mut bytes, stream, position, 1_400);
        let wanted = (usize::try_from(first).unwrap() * seed) % (seed + 1) + 1;
        for sequence in (first..=messages).take(wanted) {
            assert!(writer.push(&quote(start_ns, sequence)));
        }
        let count = u64::from(writer.finish());
        stream_offset += (bytes.len() - iextp::HEADER_BYTES) as u64;
        if !lost(first..first + count) {
            packets.push((sent_ns + delay_ns, Arc::from(bytes)));
        }
        first += count;
    }
    packets
}

fn iex_count(bytes: &[u8]) -> u64 {
    u64::from(Tops::parse(bytes).unwrap().count)
}

/// A TOPS quote update that differs from every other message.
fn quote(start_ns: u64, sequence: u64) -> Vec<u8> {
    let mut message = vec![b'Q', 0];
    message.extend_from_slice(&(start_ns + sequence * 1_000).to_le_bytes());
    message.extend_from_slice(b"MDGW    ");
    let price = 100_000 + i64::try_from(sequence).unwrap() * 100;
    message.extend_from_slice(&(100 + u32::try_from(sequence).unwrap()).to_le_bytes());
    message.extend_from_slice(&price.to_le_bytes());
    message.extend_from_slice(&(price + 100).to_le_bytes());
    message.extend_from_slice(&200_u32.to_le_bytes());
    message
}
