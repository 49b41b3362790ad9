use std::num::NonZeroU64;

use dbn::{
    MboMsg, Metadata, SType, StatusMsg, TradeMsg, TsSymbolMap, UNDEF_TIMESTAMP,
    decode::{DbnMetadata as _, DecodeRecordRef as _, dbn::Decoder},
    symbol_map::SymbolIndex as _,
};

use super::*;

const NOON: u64 = 1_548_849_600_000_000_000;

fn date(number: u32) -> TradingDate {
    TradingDate::from_yyyymmdd(number).unwrap()
}

fn options(schema: Option<Schema>) -> DbnFileOptions {
    DbnFileOptions { dataset: "XNAS.ITCH".to_owned(), schema }
}

fn mbo(instrument_id: u32, ts_event: u64, ts_recv: u64) -> MboMsg {
    let mut record = MboMsg { ts_recv, ..MboMsg::default() };
    record.hd.instrument_id = instrument_id;
    record.hd.ts_event = ts_event;
    record
}

/// Metadata and records of a file, read by the official decoder.
fn decode(bytes: &[u8]) -> (Metadata, Vec<Vec<u8>>) {
    let mut decoder = Decoder::new(bytes).unwrap();
    let metadata = decoder.metadata().clone();
    let mut records = Vec::new();
    while let Some(record) = decoder.decode_record_ref().unwrap() {
        records.push(record.as_ref().to_vec());
    }
    (metadata, records)
}

fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn write_sample(path: &Path) -> DbnFileSummary {
    let mut writer = DbnFileWriter::create(path, options(Some(Schema::Mbo))).unwrap();
    writer.mapping(b"MSFT", InstrumentId(7), date(20_190_130));
    writer.record(mbo(7, NOON + 5, NOON + 9).as_ref());
    writer.mapping(b"AAPL", InstrumentId(3), date(20_190_130));
    writer.mapping(b"AAPL", InstrumentId(3), date(20_190_130));
    writer.record(mbo(3, NOON + 1, NOON + 10).as_ref());
    writer.finish().unwrap()
}

#[test]
fn the_official_decoder_reads_records_and_symbols() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.dbn");
    let summary = write_sample(&path);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(summary, DbnFileSummary { record_count: 2, symbol_count: 2, bytes: bytes.len() as u64 });
    let (metadata, records) = decode(&bytes);
    assert_eq!((metadata.version, metadata.dataset.as_str()), (3, "XNAS.ITCH"));
    assert_eq!(
        (metadata.schema, metadata.stype_in, metadata.stype_out),
        (Some(Schema::Mbo), Some(SType::RawSymbol), SType::InstrumentId)
    );
    assert_eq!((metadata.start, metadata.end.map(NonZeroU64::get)), (NOON + 9, Some(NOON + 11)));
    assert_eq!(metadata.symbols, ["AAPL", "MSFT"]);
    assert_eq!(records, [mbo(7, NOON + 5, NOON + 9).as_ref(), mbo(3, NOON + 1, NOON + 10).as_ref()]);
    let symbols = TsSymbolMap::try_from(&metadata).unwrap();
    assert_eq!(symbols.get_for_rec(&mbo(7, 0, NOON)).unwrap(), "MSFT");
    assert_eq!(symbols.get_for_rec(&mbo(3, 0, NOON)).unwrap(), "AAPL");
    assert_eq!(symbols.get_for_rec(&mbo(4, 0, NOON)), None);
}

#[test]
fn compressed_output_is_one_frame_of_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, compressed) = (folder.path().join("a.dbn"), folder.path().join("a.dbn.zst"));
    write_sample(&plain);
    write_sample(&compressed);
    let compressed = fs::read(&compressed).unwrap();
    let frame_bytes = zstd::zstd_safe::find_frame_compressed_size(&compressed).unwrap();
    assert_eq!(frame_bytes, compressed.len(), "one frame");
    assert_eq!(zstd::decode_all(compressed.as_slice()).unwrap(), fs::read(&plain).unwrap());
}

#[test]
fn an_unfinished_file_leaves_nothing_and_a_finished_one_replaces_atomically() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.dbn");
    let mut writer = DbnFileWriter::create(&path, options(None)).unwrap();
    writer.record(TradeMsg::default().as_ref());
    drop(writer);
    assert_eq!(names(folder.path()), [""; 0]);

    fs::write(&path, "old").unwrap();
    let writer = DbnFileWriter::create(&path, options(None)).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old", "untouched until the end");
    writer.finish().unwrap();
    assert_eq!(names(folder.path()), ["a.dbn"]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o600, 0o600);
    let (metadata, records) = decode(&fs::read(&path).unwrap());
    assert_eq!((metadata.schema, metadata.start, metadata.end, records.len()), (None, 0, None, 0));
}

#[test]
fn devices_links_and_folders_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (target, link) = (folder.path().join("target.dbn"), folder.path().join("link.dbn"));
    fs::write(&target, "old").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    write_sample(&link);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(decode(&fs::read(&target).unwrap()).1.len(), 2);

    write_sample(Path::new("/dev/null"));
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    assert!(DbnFileWriter::create(folder.path(), options(None)).is_err());
    assert!(DbnFileWriter::create(&folder.path().join("missing/a.dbn"), options(None)).is_err());
}

#[test]
fn mappings_cover_every_record_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.dbn");
    let mut writer = DbnFileWriter::create(&path, options(None)).unwrap();
    writer.mapping(b"A", InstrumentId(1), date(20_190_130));
    writer.mapping(b"A", InstrumentId(2), date(20_190_131));
    // An evening in New York: already 1 February in UTC.
    let evening = mbo(2, NOON + 37 * 3_600_000_000_000, NOON + 37 * 3_600_000_000_000);
    // Captured a year before its messages were sent.
    let early = mbo(1, NOON, NOON - 365 * 86_400_000_000_000);
    for record in [&evening, &early] {
        writer.record(record.as_ref());
    }
    let status = StatusMsg { ts_recv: UNDEF_TIMESTAMP, ..StatusMsg::default() };
    writer.record(status.as_ref());
    writer.finish().unwrap();
    let (metadata, _) = decode(&fs::read(&path).unwrap());
    let symbols = TsSymbolMap::try_from(&metadata).unwrap();
    assert_eq!(symbols.get_for_rec(&evening).unwrap(), "A");
    assert_eq!(symbols.get_for_rec(&early).unwrap(), "A");
    let intervals: Vec<_> = metadata.mappings[0]
        .intervals
        .iter()
        .map(|interval| format!("{}..{} {}", interval.start_date, interval.end_date, interval.symbol))
        .collect();
    assert_eq!(intervals, ["2018-01-30..2019-01-31 1", "2019-01-31..2019-02-02 2"]);
}

#[test]
fn an_instrument_id_reused_the_next_day_maps_to_one_symbol_per_day() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.dbn");
    let mut writer = DbnFileWriter::create(&path, options(None)).unwrap();
    // A Wednesday and a Friday: Nasdaq assigns locates anew each day.
    for (symbol, number, day) in
        [(b"A", 5, 20_190_130), (b"B", 6, 20_190_130), (b"Z", 5, 20_190_201), (b"A", 7, 20_190_201)]
    {
        writer.mapping(symbol, InstrumentId(number), date(day));
    }
    let two_days = 48 * 3_600_000_000_000;
    let records = [(5, 0, "A"), (6, 0, "B"), (5, two_days, "Z"), (7, two_days, "A"), (7, two_days + two_days / 3, "A")];
    for (number, after, _) in records {
        writer.record(mbo(number, NOON + after, NOON + after).as_ref());
    }
    writer.finish().unwrap();
    let (metadata, _) = decode(&fs::read(&path).unwrap());
    let symbols = TsSymbolMap::try_from(&metadata).unwrap();
    for (number, after, name) in records {
        assert_eq!(symbols.get_for_rec(&mbo(number, NOON + after, NOON + after)).unwrap(), name, "{number} {after}");
    }
    let mut intervals: Vec<_> = metadata.mappings.iter().flat_map(|mapping| &mapping.intervals).collect();
    intervals.sort_by_key(|interval| (interval.symbol.clone(), interval.start_date));
    assert!(intervals.windows(2).all(|two| two[0].symbol != two[1].symbol || two[0].end_date <= two[1].start_date));
}

#[test]
fn hostile_symbols_do_not_corrupt_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.dbn");
    let mut writer = DbnFileWriter::create(&path, options(None)).unwrap();
    writer.mapping(&[0xff; 80], InstrumentId(1), date(20_190_130));
    writer.mapping(b"", InstrumentId(2), date(20_190_130));
    writer.mapping(b"A\n", InstrumentId(3), date(20_190_130));
    writer.finish().unwrap();
    let (metadata, _) = decode(&fs::read(&path).unwrap());
    assert_eq!(metadata.symbols[1], "A\\n");
    assert_eq!(metadata.symbols.len(), 3);
}

#[test]
fn an_invalid_record_ends_the_file_after_the_records_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.dbn");
    let whole = mbo(7, NOON, NOON);
    for wrong in [&[][..], &whole.as_ref()[..40], &[0; 56]] {
        let mut writer = DbnFileWriter::create(&path, options(None)).unwrap();
        for bytes in [whole.as_ref(), wrong, whole.as_ref()] {
            writer.record(bytes);
        }
        assert!(writer.has_failed());
        let error = writer.finish().unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(error.kept, Some(DbnFileKept { record_count: 1, bytes: bytes.len() as u64 }));
        assert_eq!(decode(&bytes).1.len(), 1);
    }
}
