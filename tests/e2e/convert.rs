//! `mdgw convert`: every schema, read and written by the official Python client.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use mdgw_feeds::{
    identity::Sequence,
    transport::{iextp::PROTOCOL_DEEP_1_0, moldudp64::PacketWriter},
};
use mdgw_tests::{
    feeds::{self, DESTINATIONS, MIDNIGHT_NS, SESSION},
    gateway_fixture::text,
    process::{self, ExitedProcess},
    python::python,
};

/// Tables, CSV and JSON are compared with the output of `DBNStore` for the same file.
#[test]
fn the_official_client_and_pandas_read_the_same_tables() {
    let Some(python) = python("convert: tables read back by the official client") else { return };
    let folder = tempfile::tempdir().unwrap();
    let itch = folder.path().join("itch.pcap");
    feeds::write_capture(&itch, DESTINATIONS[0], &feeds::itch_packets(feeds::itch_day(4_000, 1), SESSION, MIDNIGHT_NS));
    let deep = folder.path().join("deep.pcap");
    feeds::write_capture(
        &deep,
        DESTINATIONS[0],
        &feeds::iex_packets(PROTOCOL_DEEP_1_0, 9, BEGIN_NS, messages().iter().map(Vec::as_slice)),
    );
    let collars = folder.path().join("collars.pcap");
    feeds::write_capture(&collars, DESTINATIONS[0], &[(MIDNIGHT_NS + HOUR_NS, auction_collars().into())]);
    let schemas = ["mbo", "mbp-1", "trades", "status", "definition", "imbalance"];
    let wanted = schemas.iter().map(|schema| (&itch, *schema)).chain([(&deep, "mbp-10"), (&collars, "statistics")]);
    let mut made = Vec::new();
    for (capture, schema) in wanted {
        let dbn = folder.path().join(format!("{schema}.dbn"));
        let _ =
            process::run(["replay", "--offline", text(capture), "--schema", schema, "-o", text(&dbn)]).expect_code(0);
        for end in if cfg!(feature = "parquet") { &["csv", "json", "parquet"][..] } else { &["csv", "json"][..] } {
            let table = folder.path().join(format!("{schema}.{end}"));
            let ended = convert(&dbn, &table, &[]).expect_code(0);
            assert!(ended.stderr.contains(" records\n"), "{}", ended.stderr);
        }
        let raw = folder.path().join(format!("{schema}-raw.csv"));
        let _ = convert(&dbn, &raw, &["--pretty", "false", "--map-symbols", "false"]).expect_code(0);
        made.push(schema);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/convert_readback.py");
    let read = Command::new(&python).arg(script).arg(folder.path()).args(&made).output().unwrap();
    let output = String::from_utf8_lossy(&read.stdout).into_owned() + &String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success(), "{output}");
    assert!(made.iter().all(|schema| output.contains(&format!("{schema}: "))), "{output}");
}

#[test]
fn stdin_zstd_and_plain_input_give_the_same_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let dbn = day(folder.path(), "mbo");
    let plain = path("plain.csv");
    let _ = convert(&dbn, &plain, &[]).expect_code(0);
    let bytes = fs::read(&plain).unwrap();
    assert!(bytes.starts_with(b"ts_recv,ts_event,rtype,publisher_id,instrument_id,action,side,price,size,"));
    let packed = path("day.dbn.zst");
    let _ = process::run(["replay", "--offline", text(&path("a.pcap")), "--schema", "mbo", "-o", text(&packed)]);
    let _ = convert(&packed, &path("packed.csv.zst"), &[]).expect_code(0);
    let unpacked = zstd_unpacked(&path("packed.csv.zst"));
    assert!(unpacked == bytes);
    let piped = Command::new(process::program())
        .args(["convert", "-", "-o", "-", "--to", "csv"])
        .stdin(Stdio::from(File::open(&dbn).unwrap()))
        .output()
        .unwrap();
    assert!(piped.status.success() && piped.stdout == bytes, "{}", String::from_utf8_lossy(&piped.stderr));
    // The file has no record of its schema, so the table has no row.
    let (none, empty) = (path("none.dbn"), path("empty.csv"));
    let _ = process::run(["replay", "--offline", text(&path("a.pcap")), "--schema", "statistics", "-o", text(&none)]);
    let _ = convert(&none, &empty, &[]).expect_code(0);
    assert_eq!(
        fs::read_to_string(&empty).unwrap(),
        "ts_recv,ts_event,rtype,publisher_id,instrument_id,ts_ref,price,quantity,sequence,ts_in_delta,stat_type,\
         channel_id,update_action,stat_flags,symbol\n"
    );
    // JSON lines may contain several schemas, a table only one.
    let mixed = path("mixed.dbn");
    let _ = process::run(["replay", "--offline", text(&path("a.pcap")), "--schema", "mbo,status", "-o", text(&mixed)]);
    let _ = convert(&mixed, &path("mixed.jsonl"), &[]).expect_code(0);
    let lines = fs::read_to_string(path("mixed.jsonl")).unwrap();
    assert!(lines.lines().all(|line| line.starts_with('{') && line.ends_with('}')));
    let ended = convert(&mixed, &path("mixed.csv"), &[]).expect_code(2);
    assert!(ended.stderr.contains("choose with --schema") && ended.stderr.contains("at byte "), "{}", ended.stderr);
    assert!(ended.stderr.contains(" mbo") && ended.stderr.contains(" status"), "{}", ended.stderr);
    let ended = convert(&mixed, &path("mixed.csv"), &["--schema", "mbo"]).expect_code(0);
    assert!(ended.stderr.contains("of other schemas skipped"), "{}", ended.stderr);
    assert!(fs::read(path("mixed.csv")).unwrap() == bytes);
}

#[test]
fn bad_input_keeps_converted_records_and_reports_file_and_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let dbn = day(folder.path(), "mbo");
    let whole = fs::read(&dbn).unwrap();
    let (bad, out) = (path("bad.dbn"), path("out.csv"));
    let _ = convert(&dbn, &out, &[]).expect_code(0);
    let all = fs::read(&out).unwrap();
    let record_bytes = size_of::<dbn::MboMsg>();
    fs::write(&bad, &whole[..whole.len() - 10]).unwrap();
    let ended = convert(&bad, &out, &[]).expect_code(2);
    let offset = whole.len() - record_bytes;
    assert!(ended.stderr.contains(&format!("read {} at byte {offset}", text(&bad))), "{}", ended.stderr);
    let kept = fs::read(&out).unwrap();
    assert!(all.starts_with(&kept) && kept.len() > all.len() * 9 / 10, "all complete records are kept");
    for (content, output) in [(&b""[..], "the file is empty"), (b"no dbn, but text", "not a DBN file")] {
        fs::write(&bad, content).unwrap();
        let ended = convert(&bad, &out, &[]).expect_code(2);
        assert!(ended.stderr.contains(output) && ended.stderr.contains(text(&bad)), "{}", ended.stderr);
    }
    let ended = convert(&path("a.pcap"), &out, &[]).expect_code(2);
    assert!(ended.stderr.contains("not a DBN file"), "{}", ended.stderr);
    let ended = process::run(["convert", text(&dbn), "-o", "/dev/full", "--to", "csv"]).expect_code(2);
    assert!(ended.stderr.contains("write /dev/full") && ended.stderr.contains("space"), "{}", ended.stderr);
    let ended = process::run(["convert", text(&dbn), "-o", text(&path("out"))]).expect_code(2);
    assert!(ended.stderr.contains("--to"), "{}", ended.stderr);
    let ended = process::run(["convert", text(&dbn), "-o", text(&dbn), "--to", "csv"]).expect_code(2);
    assert!(ended.stderr.contains("is the input") && fs::read(&dbn).unwrap() == whole, "{}", ended.stderr);
    if !cfg!(feature = "parquet") {
        let ended = convert(&dbn, &path("out.parquet"), &[]).expect_code(2);
        assert!(ended.stderr.contains("--features parquet"), "{}", ended.stderr);
    }
}

fn convert(from: &Path, to: &Path, more: &[&str]) -> ExitedProcess {
    process::run(["convert", text(from), "-o", text(to)].iter().chain(more))
}

/// A synthetic day as DBN; its capture is `a.pcap`.
fn day(folder: &Path, schema: &str) -> PathBuf {
    let (capture, dbn) = (folder.join("a.pcap"), folder.join("day.dbn"));
    let packets = feeds::itch_packets(feeds::itch_day(4_000, 2), SESSION, MIDNIGHT_NS);
    feeds::write_capture(&capture, DESTINATIONS[0], &packets);
    let _ = process::run(["replay", "--offline", text(&capture), "--schema", schema, "-o", text(&dbn)]).expect_code(0);
    dbn
}

fn zstd_unpacked(path: &Path) -> Vec<u8> {
    zstd::decode_all(File::open(path).unwrap()).unwrap()
}

const BEGIN_NS: u64 = 1_493_127_000_000_000_000;

/// DEEP price level updates on both sides of one book.
fn messages() -> Vec<Vec<u8>> {
    let level = |(number, side): (u64, u8)| {
        let mut message = vec![side, 1];
        message.extend_from_slice(&(BEGIN_NS + number * 1_000).to_le_bytes());
        message.extend_from_slice(b"MDGW    ");
        message.extend_from_slice(&u32::try_from(100 + number).unwrap().to_le_bytes());
        let distance = i64::try_from(number % 12).unwrap() * 100 + 100;
        let price = if side == b'8' { 1_000_000 - distance } else { 1_000_000 + distance };
        message.extend_from_slice(&price.to_le_bytes());
        message
    };
    (0..200).map(|number| (number, if number % 2 == 0 { b'8' } else { b'5' })).map(level).collect()
}

/// A packet of auction collars. Each collar produces three statistics records.
fn auction_collars() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = PacketWriter::begin(&mut bytes, SESSION, Sequence(1), 1_400);
    for number in 0..5_u16 {
        let mut message = vec![b'J'];
        message.extend_from_slice(&(number + 1).to_be_bytes());
        message.extend_from_slice(&[0, 0]);
        message.extend_from_slice(&HOUR_NS.to_be_bytes()[2..]);
        message.extend_from_slice(format!("{:<8}", format!("MDGW{number}")).as_bytes());
        for price_e4 in [100_000_u32, 110_000, 90_000, 0] {
            message.extend_from_slice(&(price_e4 + u32::from(number)).to_be_bytes());
        }
        assert!(writer.push(&message));
    }
    assert_eq!(writer.finish(), 5);
    bytes
}

const HOUR_NS: u64 = 3_600_000_000_000;
