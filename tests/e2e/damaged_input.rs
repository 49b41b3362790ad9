//! Files that are cut or wrong, pipes that close, configurations and arguments that can't be: what was good is kept,
//! and the rest is told by name, place and exit code.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "tests")]

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use flate2::{Compression, write::GzEncoder};
use mdgw_tests::{
    feeds::{self, MIDNIGHT_NS, SESSION},
    process::{self, Ended},
    site::{Site, Wanted, text},
};

#[test]
fn a_capture_that_is_cut_anywhere_gives_what_comes_before_and_the_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.pcap");
    let whole = capture(&path);
    let (all, _) = records(&path, 0);
    for cut_at in [whole.len() - 1, whole.len() / 2, 24 + 8] {
        fs::write(&path, &whole[..cut_at]).unwrap();
        let (found, ended) = records(&path, 2);
        assert!(all.starts_with(&found), "cut at {cut_at}: not the beginning of what the whole file gives");
        // The last packet only ends the session.
        let share = if cut_at == whole.len() - 1 {
            1.0..=1.0
        } else if cut_at > 100 {
            0.3..=0.7
        } else {
            0.0..=0.0
        };
        let found = found.len() as f64 / all.len() as f64;
        assert!(share.contains(&found), "cut at {cut_at}: {found} of the records: {}", ended.stderr);
        assert!(ended.stderr.contains("at byte ") && ended.stderr.contains(text(&path)), "{}", ended.stderr);
    }
}

#[test]
fn a_capture_that_is_damaged_in_the_middle_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.pcap");
    let mut bytes = capture(&path);
    // The length of the second packet: no capture has packets of 4 GB.
    let first_bytes = u32::from_le_bytes(bytes[32..36].try_into().unwrap()) as usize;
    let second = 24 + 16 + first_bytes;
    bytes[second + 8..second + 12].fill(0xff);
    fs::write(&path, &bytes).unwrap();
    let (_, ended) = records(&path, 2);
    assert!(ended.stderr.contains(&format!("at byte {second}")), "{second}: {}", ended.stderr);
    assert_eq!(ended.json()["total"]["packets"], 1, "the first was good");
}

#[test]
fn a_packed_capture_that_breaks_off_gives_what_could_be_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.pcap.gz");
    let whole = capture(&path);
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(&whole).unwrap();
    let packed = packer.finish().unwrap();
    fs::write(&path, &packed[..packed.len() / 2]).unwrap();
    let (found, ended) = records(&path, 2);
    assert!(!found.is_empty(), "{}", ended.stderr);
    assert!(ended.stderr.contains("of the decompressed stream"), "{}", ended.stderr);
}

#[test]
fn what_is_no_capture_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [("empty", &b""[..]), ("text", b"no capture at all"), ("zeros", &[0; 4096])] {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        for more in [&["--offline"][..], &["--max", "--to", "127.0.0.1:9"]] {
            let ended = process::run(["replay", text(&path)].iter().chain(more)).with_code(2);
            assert!(ended.stderr.contains(text(&path)) && !ended.stderr.contains("panicked"), "{}", ended.stderr);
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("whole.pcap");
    capture(&path);
    let mut child = Command::new(process::program())
        .args(["replay", "--offline", text(&path), "--date", "2019-01-30", "-o", "-"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut head = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut head).unwrap();
    assert_eq!(&head[..3], b"DBN");
    // The pipe is closed; megabytes were still to come.
    let ended = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{told}");
    assert!(!told.contains("panicked") && !told.contains("roken pipe"), "{told}");
}

#[test]
fn a_wrong_configuration_is_told_by_file_line_and_key() {
    let site = Site::new();
    let good = site.config_text(&Wanted::itch());
    for (from, to, key) in [
        ("threads = 2", "threads = 0", "threads"),
        ("threads = 2", "thread = 2", "thread"),
        ("io = \"auto\"", "io = \"dpdk\"", "io"),
        ("feed = \"nasdaq-itch-5.0\"", "feed = \"nasdaq-itch-9\"", "feed"),
        ("group = \"239.", "group = \"two39.", "group"),
        ("name = \"B\"", "name = \"A\"", "name"),
        ("allowed = [\"127.0.0.0/8\"]", "allowed = [\"127.0.0.0/80\"]", "allowed"),
        ("level = \"info\"", "level = info", "level"),
    ] {
        let wrong = good.replacen(from, to, 1);
        assert_ne!(wrong, good, "{from}");
        let path = site.path("wrong.toml");
        fs::write(&path, &wrong).unwrap();
        let line = 1 + good.lines().zip(wrong.lines()).position(|(good, wrong)| good != wrong).unwrap();
        let checked = process::run(["check", text(&path)]);
        assert_ne!(checked.code, Some(0), "{to}: {}", checked.stdout);
        let ran = process::run(["run", text(&path)]).with_code(2);
        for ended in [checked, ran] {
            let told = format!("{}{}", ended.stdout, ended.stderr);
            assert!(told.contains(key) && told.contains("wrong.toml"), "{to}: {told}");
            assert!(told.lines().any(|told| told.contains(&format!("wrong.toml:{line}"))), "{to}, line {line}: {told}");
        }
    }
    let missing = process::run(["run", text(&site.path("nowhere.toml"))]).with_code(2);
    assert!(missing.stderr.contains("nowhere.toml"), "{}", missing.stderr);
}

#[test]
fn the_configurations_that_ship_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/config");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let checked = process::run(["check", text(&path)]).with_code(0);
        assert!(checked.stdout.contains("channel"), "{}", checked.stdout);
        count += 1;
    }
    assert!(count >= 2);
}

#[test]
fn a_wrong_command_line_is_2_and_says_which_part() {
    for (arguments, part) in [
        (&["tail"][..], "--line"),
        (&["tail", "--line", "nowhere"], "nowhere"),
        (&["tail", "--line", "239.1.1.1:31000", "--schema", "mbp-2"], "mbp-2"),
        (&["tail", "--line", "239.1.1.1:31000", "--date", "yesterday"], "yesterday"),
        (&["tail", "--line", "239.1.1.1:31000", "--json", "-o", "x.dbn"], "--json"),
        (&["sim"], "--line"),
        (&["sim", "--line", "239.1.1.1:1", "--loss", "2"], "--loss"),
        (&["sim", "--line", "239.1.1.1:1", "--capture", "/nowhere.pcap"], "/nowhere.pcap"),
        (&["replay"], "FILE"),
        (&["replay", "/nowhere.pcap", "--offline"], "/nowhere.pcap"),
        (&["run"], "CONFIG"),
        (&["check"], "CONFIG"),
        (&["report", "/nowhere.hlog"], "/nowhere.hlog"),
        (&["fly"], "fly"),
    ] {
        let ended = process::run(arguments).with_code(2);
        assert!(ended.stderr.contains(part) && ended.stdout.is_empty(), "{arguments:?}: {}", ended.stderr);
    }
}

/// Writes a capture of a made-up day; its bytes.
fn capture(path: &Path) -> Vec<u8> {
    let packets = feeds::itch_packets(feeds::itch_day(20_000, 9), SESSION, MIDNIGHT_NS);
    feeds::write_capture(path, feeds::DESTINATIONS[0], &packets);
    fs::read(path).unwrap()
}

/// The records of a capture that is replayed with this exit code, without the file's metadata.
fn records(capture: &Path, code: i32) -> (Vec<u8>, Ended) {
    let out = capture.with_extension("dbn");
    let arguments = ["replay", "--offline", text(capture), "--feed", "nasdaq-itch-5.0", "--schema", "mbo"];
    let more = ["--date", "2019-01-30", "--ts-recv", "none", "--json", "-o", text(&out)];
    let ended = process::run(arguments.into_iter().chain(more)).with_code(code);
    let bytes = fs::read(&out).unwrap();
    let metadata_bytes = 8 + u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    (bytes[metadata_bytes..].to_vec(), ended)
}
