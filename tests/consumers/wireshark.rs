//! The Wireshark dissector reads the vectors and the sample capture.

use std::{fs::File, io::BufWriter, net::SocketAddrV4, path::Path, process::Command};

use mdgw_captures::capture_file::PcapWriter;
use mdgw_tests::skip::skip;

use super::{data_files, packets, sample, text};

/// Every vector: fields of the header, of all frames, and the reason why it is refused. Tags are not checked.
#[test]
fn the_dissector_shows_what_the_vectors_mean() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vectors.pcap");
    let mut datagrams = packets::datagrams();
    // Packets of a venue whose session begins with the same letters.
    datagrams.push(("moldudp64".to_owned(), b"MDGWSIM001\0\0\0\0\0\0\0\x01\0\0".to_vec()));
    write_capture(&path, datagrams.iter().map(|(_, bytes)| bytes));
    let Some(rows) = fields("the_dissector_shows_what_the_vectors_mean", &path, &FIELDS) else { return };
    assert_eq!(rows.len(), datagrams.len());
    for ((name, bytes), row) in datagrams.iter().zip(&rows) {
        assert_eq!(row, &expected_row(bytes), "{name}");
    }
}

#[test]
fn the_dissector_reads_the_sample_without_a_complaint() {
    let path = data_files::path(sample::FILE);
    let names = ["mdgw.version", "mdgw.refused", "_ws.expert", "mdgw.request.kind"];
    let Some(rows) = fields("the_dissector_reads_the_sample_without_a_complaint", &path, &names) else { return };
    assert_eq!(rows.len(), sample::packet_count());
    for row in &rows {
        assert_eq!(row[..3], ["1", "", ""], "{row:?}");
    }
    assert!(rows.iter().any(|row| !row[3].is_empty()), "no request");
}

/// Chunks of a snapshot have the flags of definitions.
#[test]
fn the_summary_of_a_chunk_names_chunk_and_image() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chunks.pcap");
    let streams = data_files::read("snapshot_group.txt");
    let of_group = streams.lines().filter_map(|line| line.strip_prefix("at ")?.split_once(" group "));
    let chunks = of_group.take(3).map(|(_, bytes)| text::from_hex(bytes));
    let definitions = packets::datagrams().into_iter().filter(|(name, _)| name.starts_with("definitions"));
    let datagrams: Vec<_> = chunks.chain(definitions.map(|(_, bytes)| bytes)).collect();
    write_capture(&path, &datagrams);
    let Some(shown) = tshark("the_summary_of_a_chunk_names_chunk_and_image", &path, &[]) else { return };
    let shown: Vec<_> = shown.lines().collect();
    assert_eq!(shown.len(), 5, "{shown:?}");
    for (line, summary) in shown.iter().zip([
        "Snapshot chunk 0 of image 11, 2 frames",
        "Snapshot chunk 1 of image 11, 2 frames",
        "Snapshot chunk 2 of image 11, 2 frames",
        "Definitions [0, 1), 1 frame",
        "End of definitions or snapshot [1, 40)",
    ]) {
        assert!(line.ends_with(summary), "{line}");
    }
}

/// A capture with a snapshot length: what it has cut is shown as cut, not as refused.
#[test]
fn the_dissector_does_not_refuse_what_the_capture_has_cut() {
    let capture = std::fs::read(data_files::path(sample::FILE)).unwrap();
    let (folder, names) = (tempfile::tempdir().unwrap(), ["mdgw.version", "mdgw.refused", "_ws.expert", "mdgw.cut"]);
    let path = folder.path().join("cut.pcap");
    // Ethernet, IPv4 and UDP headers, and the packet's header and a part of its frames; or a part of its header.
    for (bytes_max, has_header) in [(42 + 100, true), (42 + 50, false)] {
        std::fs::write(&path, cut(&capture, bytes_max)).unwrap();
        let test = "the_dissector_does_not_refuse_what_the_capture_has_cut";
        let Some(rows) = fields(test, &path, &names) else { return };
        assert_eq!(rows.len(), sample::packet_count());
        for row in &rows {
            assert_eq!((&*row[1], &*row[2]), ("", ""), "{row:?}");
        }
        assert!(rows.iter().any(|row| !row[3].is_empty() && (row[0] == "1") == has_header), "{rows:?}");
    }
}

/// A capture of which that many bytes of each packet are kept.
fn cut(capture: &[u8], bytes_max: usize) -> Vec<u8> {
    let (header, mut rest) = capture.split_at(24);
    let mut cut = header.to_vec();
    while let Some((packet_header, after)) = rest.split_at_checked(16) {
        let captured = usize::try_from(u32::from_le_bytes(packet_header[8..12].try_into().unwrap())).unwrap();
        let kept = captured.min(bytes_max);
        cut.extend_from_slice(&packet_header[..8]);
        cut.extend_from_slice(&u32::try_from(kept).unwrap().to_le_bytes());
        cut.extend_from_slice(&packet_header[12..]);
        cut.extend_from_slice(&after[..kept]);
        rest = &after[captured..];
    }
    cut
}

const FIELDS: [&str; 22] = [
    "mdgw.refused",
    "mdgw.flags",
    "mdgw.group",
    "mdgw.channel",
    "mdgw.epoch",
    "mdgw.session.feed",
    "mdgw.session.date",
    "mdgw.session.restart",
    "mdgw.first",
    "mdgw.next",
    "mdgw.send_time_ns",
    "mdgw.frame_count",
    "mdgw.frame.kind",
    "mdgw.frame.sequence",
    "mdgw.frame.part",
    "mdgw.frame.flags",
    "mdgw.frame.ts_recv",
    "mdgw.frame.ts_in_delta",
    "mdgw.frame.record_count",
    "mdgw.record",
    "mdgw.request.kind",
    "mdgw.request.nonce",
];

/// The values of [`FIELDS`], several of a field separated by commas.
fn expected_row(bytes: &[u8]) -> Vec<String> {
    let lines = text::datagram(bytes);
    let is_ours = matches!(bytes, [b'M', b'D', b'G', b'W' | b'R', 0..32, ..]);
    let refused = lines[0].strip_prefix("> refused ").filter(|_| is_ours);
    let mut row = vec![String::new(); FIELDS.len()];
    if let Some(reason) = refused {
        row[0] = reason.to_owned();
        return row;
    }
    if !is_ours {
        return row;
    }
    let set = |row: &mut Vec<String>, name: &str, value: String| {
        let index = FIELDS.iter().position(|field| *field == name).unwrap();
        row[index] = value;
    };
    let header = &lines[0];
    let of_header = |name: &str| text::setting(header, name).unwrap_or_default().to_owned();
    for (field, name) in [
        ("mdgw.group", "group"),
        ("mdgw.channel", "channel"),
        ("mdgw.session.feed", "feed"),
        ("mdgw.session.date", "date"),
        ("mdgw.session.restart", "restart"),
        ("mdgw.first", "first"),
        ("mdgw.next", "next"),
    ] {
        set(&mut row, field, of_header(name));
    }
    if header.starts_with("> request") {
        set(&mut row, "mdgw.request.kind", of_header("kind"));
        set(&mut row, "mdgw.request.nonce", of_header("nonce"));
        return row;
    }
    let flags = text::number(header, "flags").unwrap() + 16 * text::number(header, "tagged").unwrap();
    set(&mut row, "mdgw.flags", format!("0x{flags:02x}"));
    for (field, name) in
        [("mdgw.epoch", "epoch"), ("mdgw.send_time_ns", "send_time_ns"), ("mdgw.frame_count", "frames")]
    {
        set(&mut row, field, of_header(name));
    }
    let of_frames = |name: &str| {
        let values = lines[1..].iter().map(|line| text::setting(line, name).unwrap_or_default());
        values.collect::<Vec<_>>().join(",")
    };
    for (field, name) in [
        ("mdgw.frame.kind", "kind"),
        ("mdgw.frame.sequence", "sequence"),
        ("mdgw.frame.part", "part"),
        ("mdgw.frame.ts_recv", "ts_recv"),
        ("mdgw.frame.ts_in_delta", "ts_in_delta"),
        ("mdgw.frame.record_count", "records"),
    ] {
        set(&mut row, field, of_frames(name));
    }
    let flags = lines[1..].iter().map(|line| format!("0x{:02x}", text::number(line, "flags").unwrap()));
    set(&mut row, "mdgw.frame.flags", flags.collect::<Vec<_>>().join(","));
    let records = lines[1..].iter().filter_map(|line| text::setting(line, "body")).flat_map(records_of);
    set(&mut row, "mdgw.record", records.collect::<Vec<_>>().join(","));
    row
}

fn records_of(body: &str) -> Vec<String> {
    let bytes = text::from_hex(body);
    let mut rest = bytes.as_slice();
    let mut records = Vec::new();
    while !rest.is_empty() {
        let (record, behind) = rest.split_at(4 * usize::from(rest[0]));
        records.push(text::hex(record));
        rest = behind;
    }
    records
}

fn write_capture<'b>(path: &Path, datagrams: impl IntoIterator<Item = &'b Vec<u8>>) {
    let [source, group]: [SocketAddrV4; 2] =
        ["10.0.0.5:40000", "239.66.1.1:31000"].map(|address| address.parse().unwrap());
    let mut writer = PcapWriter::new(BufWriter::new(File::create(path).unwrap())).unwrap();
    for bytes in datagrams {
        writer.datagram(1_704_205_800_000_000_000, source, group, bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// The values of these fields, a row for each frame. A refused packet's row has only the reason: how much of such a packet is
/// shown is the dissector's choice. `None`, with a message, without tshark.
fn fields(test: &str, capture: &Path, names: &[&str]) -> Option<Vec<Vec<String>>> {
    let mut arguments = vec!["-T", "fields", "-E", "separator=|"];
    names.iter().for_each(|name| arguments.extend(["-e", name]));
    let stdout = tshark(test, capture, &arguments)?;
    let rows = stdout.lines().map(|line| line.split('|').map(str::to_owned).collect::<Vec<_>>());
    let only_the_reason = |row: Vec<String>| {
        let is_refused = names[0] == "mdgw.refused" && !row[0].is_empty();
        if is_refused {
            (0..).zip(row).map(|(index, value)| if index == 0 { value } else { String::new() }).collect()
        } else {
            row
        }
    };
    Some(rows.map(only_the_reason).collect())
}

/// What tshark with the dissector shows of the capture. `None`, with a message, without tshark.
fn tshark(test: &str, capture: &Path, arguments: &[&str]) -> Option<String> {
    let script = data_files::repository_path("ops/wireshark/mdgw.lua");
    let mut tshark = Command::new("tshark");
    tshark.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(capture).args(arguments);
    let Ok(output) = tshark.output() else {
        skip(test, "the package tshark of Debian is not installed");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("Lua"), "{stderr}");
    Some(String::from_utf8(output.stdout).unwrap())
}
