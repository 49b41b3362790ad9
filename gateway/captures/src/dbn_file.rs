//! DBN files: version 3, with the symbols of their instruments in the metadata, as the official tools read them.
//!
//! Metadata comes first in a DBN file and names every instrument, but the names are only known at the end. So records
//! go to a spool first, and [`DbnFileWriter::finish`] assembles the file. The file is written beside its final path and
//! then renamed, so it appears complete. (It is not synced: it survives a crash of the program, not of the machine.)
//!
//! If the file can't be written to its end (mostly because the disk is full), the file keeps as many records as fit and
//! is valid. Its metadata then covers symbols and times of a few more records. A compressed file needs its end, so a
//! compressed file whose end can't be written is not kept.
//!
//! The content of the file depends only on the caller's input: `start` is the earliest time of its records (`ts_recv`,
//! or `ts_event` where there is none), `end` the latest time plus one nanosecond.

mod spool;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fmt,
    fs::{self, File},
    io,
    num::NonZeroU64,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use dbn::{
    MappingInterval, Metadata, RType, SType, Schema, SymbolMapping, UNDEF_TIMESTAMP, encode::dbn::MetadataEncoder,
};
use mdgw_wire::{identity::InstrumentId, time::TradingDate};
use tempfile::NamedTempFile;
use time::{Date, OffsetDateTime};

use self::spool::{Compression, Spool, SpoolReader, WriteOutcome, is_out_of_space, write_spooled};

/// Metadata that the records don't contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DbnFileOptions {
    /// Dataset code, such as `XNAS.ITCH`. May be [set](DbnFileWriter::set_dataset) later.
    pub dataset: String,
    /// Schema of all records; `None` if there may be several.
    pub schema: Option<Schema>,
}

/// A DBN file that is being written. If dropped without [`Self::finish`], it leaves nothing behind.
#[derive(Debug)]
pub struct DbnFileWriter {
    destination: Destination,
    compression: Compression,
    options: DbnFileOptions,
    spool: Spool,
    record_bytes: u64,
    /// Earliest and latest time by which consumers look up a record's symbol: `ts_recv`, else `ts_event`.
    time_range: Option<(u64, u64)>,
    mappings: BTreeMap<String, BTreeSet<(TradingDate, InstrumentId)>>,
}

/// Content of a finished file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DbnFileSummary {
    /// Records in the file.
    pub record_count: u64,
    /// Symbols with a mapping.
    pub symbol_count: u64,
    /// Bytes of metadata and records before compression.
    pub bytes: u64,
}

/// Error of a file that could not be completed.
#[derive(Debug, thiserror::Error)]
#[error("write {name}, {}", KeptText(*.kept))]
pub struct DbnFileError {
    /// Path under which the file was to appear.
    pub name: String,
    /// The part that exists under this path; `None`: nothing.
    pub kept: Option<DbnFileKept>,
    /// The error that came first; later ones may be its consequences.
    pub source: io::Error,
}

/// The valid part of an incomplete file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DbnFileKept {
    /// Records, counted from the first one.
    pub record_count: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

struct KeptText(Option<DbnFileKept>);

impl fmt::Display for KeptText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(DbnFileKept { record_count, bytes }) => write!(f, "after {record_count} records, at byte {bytes}"),
            None => f.write_str("nothing could be kept"),
        }
    }
}

impl DbnFileWriter {
    /// Begins a file at `path`; compressed if its name ends in `.zst`. `-` is standard output. A device or a pipe is
    /// written in place.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written to.
    pub fn create(path: &Path, options: DbnFileOptions) -> io::Result<Self> {
        let destination = Destination::of(path)?;
        let spool = match &destination {
            Destination::File { folder, .. } => tempfile::tempfile_in(folder)?,
            Destination::InPlace(_) | Destination::StandardOutput => {
                tempfile::tempfile().map_err(|error| in_temporary_folder(&error))?
            }
        };
        Ok(Self {
            destination,
            compression: if path.extension().is_some_and(|end| end == "zst") {
                Compression::Zstd
            } else {
                Compression::None
            },
            options,
            spool: Spool::new(spool)?,
            record_bytes: 0,
            time_range: None,
            mappings: BTreeMap::new(),
        })
    }

    /// Sets the dataset.
    pub fn set_dataset(&mut self, dataset: &str) {
        dataset.clone_into(&mut self.options.dataset);
    }

    /// Appends one whole record. After a failure nothing more is appended: [`Self::has_failed`] reports the failure,
    /// and [`Self::finish`] returns the error.
    pub fn record(&mut self, bytes: &[u8]) {
        self.spool.push(bytes);
        if self.has_failed() {
            return;
        }
        if let Some(ts_event) = timestamp_at(bytes, TS_EVENT_AT) {
            let ts_recv = ts_recv_at(bytes).and_then(|offset| timestamp_at(bytes, offset));
            self.time_range = Some(extended(self.time_range, ts_recv.unwrap_or(ts_event)));
        }
        self.record_bytes += bytes.len() as u64;
    }

    /// Whether a write failed, so that the caller should finish the file.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.spool.has_failed()
    }

    /// Maps an instrument to a symbol on a day. Bytes that are not printable ASCII are escaped.
    pub fn mapping(&mut self, symbol: &[u8], instrument: InstrumentId, date: TradingDate) {
        if self.has_failed() {
            return;
        }
        let mut text = symbol.escape_ascii().to_string();
        text.truncate(dbn::SYMBOL_CSTR_LEN - 1);
        self.mappings.entry(text).or_default().insert((date, instrument));
    }

    /// Assembles the file and renames it to its path.
    ///
    /// # Errors
    /// Not everything could be written. The valid part is at the file's path; if there is none, the path keeps its
    /// former content.
    pub fn finish(self) -> Result<DbnFileSummary, DbnFileError> {
        let metadata = self.metadata();
        let Self { destination, compression, spool, record_bytes, .. } = self;
        let failed = |kept, source| DbnFileError { name: destination.name(), kept, source };
        let mut header = Vec::new();
        let encoded = MetadataEncoder::new(&mut header).encode(&metadata);
        encoded.map_err(|error| failed(None, io::Error::other(error)))?;
        let bytes = header.len() as u64 + record_bytes;
        let (spool_reader, spool_failure) = spool.into_reader().map_err(|error| failed(None, error))?;
        let spool_failure = spool_failure.map(|error| match &destination {
            Destination::File { .. } => error,
            Destination::InPlace(_) | Destination::StandardOutput => in_temporary_folder(&error),
        });

        let (outcome, is_kept) = match &destination {
            Destination::StandardOutput => {
                (write_spooled(header, spool_reader, compression, &mut io::stdout().lock()), true)
            }
            Destination::InPlace(path) => {
                let mut file = File::options().write(true).open(path).map_err(|error| failed(None, error))?;
                (write_spooled(header, spool_reader, compression, &mut file), true)
            }
            Destination::File { folder, path } => {
                let (mut file, spool_reader) =
                    create_unfinished(folder, spool_reader).map_err(|error| failed(None, error))?;
                let outcome = write_spooled(header, spool_reader, compression, file.as_file_mut());
                let is_kept = outcome.bytes > 0 && (outcome.failure.is_none() || compression == Compression::None);
                if is_kept {
                    let cut = if outcome.failure.is_some() { file.as_file().set_len(outcome.bytes) } else { Ok(()) };
                    let named = cut.and_then(|()| file.persist(path).map(drop).map_err(|error| error.error));
                    named.map_err(|error| failed(None, error))?;
                }
                (outcome, is_kept)
            }
        };
        let WriteOutcome { record_count, bytes: kept_bytes, out_of_space, failure } = outcome;
        match spool_failure.or(out_of_space).or(failure) {
            None => Ok(DbnFileSummary { record_count, symbol_count: metadata.symbols.len() as u64, bytes }),
            Some(source) => Err(failed(is_kept.then_some(DbnFileKept { record_count, bytes: kept_bytes }), source)),
        }
    }

    fn metadata(&self) -> Metadata {
        let dates: BTreeSet<TradingDate> = self.mappings.values().flatten().map(|(date, _)| *date).collect();
        let dates: Vec<TradingDate> = dates.into_iter().collect();
        Metadata {
            version: dbn::DBN_VERSION,
            dataset: self.options.dataset.clone(),
            schema: self.options.schema,
            start: self.time_range.map_or(0, |(earliest, _)| earliest),
            end: self.time_range.and_then(|(_, latest)| NonZeroU64::new(latest.saturating_add(1))),
            limit: None,
            stype_in: Some(SType::RawSymbol),
            stype_out: SType::InstrumentId,
            ts_out: false,
            symbol_cstr_len: dbn::SYMBOL_CSTR_LEN,
            layout: None,
            symbols: self.mappings.keys().cloned().collect(),
            partial: Vec::new(),
            not_found: Vec::new(),
            mappings: self
                .mappings
                .iter()
                .map(|(symbol, days)| SymbolMapping {
                    raw_symbol: symbol.clone(),
                    intervals: self.intervals(days, &dates),
                })
                .collect(),
        }
    }

    /// One interval for each trading date of the symbol; consumers read it as a range of UTC dates. An evening in New
    /// York is already the next day in UTC, so an interval extends to the file's next trading date. A capture may have
    /// been recorded at another time than its messages, so the first and last interval extend to the range of the
    /// file's records. An instrument id may belong to different symbols on different dates: their intervals do not
    /// overlap.
    fn intervals(&self, days: &BTreeSet<(TradingDate, InstrumentId)>, dates: &[TradingDate]) -> Vec<MappingInterval> {
        let recorded = self.time_range.and_then(|(earliest, latest)| Some((utc_date(earliest)?, utc_date(latest)?)));
        days.iter()
            .filter_map(|(date, instrument)| {
                let index = dates.binary_search(date).ok()?;
                let mut start = calendar_date(*date)?;
                if let Some((earliest, _)) = recorded.filter(|_| index == 0) {
                    start = start.min(earliest);
                }
                let end = match dates.get(index + 1) {
                    Some(next) => calendar_date(*next)?,
                    None => {
                        let end = calendar_date(date.next_day())?;
                        recorded.and_then(|(_, latest)| latest.next_day()).map_or(end, |behind| end.max(behind))
                    }
                };
                Some(MappingInterval { start_date: start, end_date: end, symbol: instrument.0.to_string() })
            })
            .collect()
    }
}

/// Destination of the file.
#[derive(Debug)]
enum Destination {
    File {
        folder: PathBuf,
        path: PathBuf,
    },
    /// A device or a pipe: a rename would replace it.
    InPlace(PathBuf),
    StandardOutput,
}

impl Destination {
    fn of(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::StandardOutput);
        }
        // A symbolic link is kept, and its target is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match fs::metadata(&path).map(|metadata| metadata.file_type()) {
            Ok(kind) if kind.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(kind) if kind.is_char_device() || kind.is_fifo() => return Ok(Self::InPlace(path)),
            _ => {}
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        Ok(Self::File { folder, path })
    }

    /// Path for error messages.
    fn name(&self) -> String {
        match self {
            Self::File { path, .. } | Self::InPlace(path) => path.display().to_string(),
            Self::StandardOutput => "standard output".to_owned(),
        }
    }
}

/// Creates the file under a temporary name; it is renamed when it is complete. On a full disk the directory entry may
/// need space too, so records at the end of the spool are dropped until it fits.
fn create_unfinished(folder: &Path, mut spool_reader: SpoolReader) -> io::Result<(NamedTempFile, SpoolReader)> {
    loop {
        let file = tempfile::Builder::new()
            .prefix(".")
            .suffix(".unfinished")
            .permissions(fs::Permissions::from_mode(0o666))
            .tempfile_in(folder);
        match file {
            Err(error) if is_out_of_space(&error) && spool_reader.drop_last(1)? => {}
            file => return Ok((file?, spool_reader)),
        }
    }
}

/// The spool of a device or pipe lies in another folder, so its error names that folder.
fn in_temporary_folder(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("its spool in {}: {error}", env::temp_dir().display()))
}

fn extended(range: Option<(u64, u64)>, value: u64) -> (u64, u64) {
    range.map_or((value, value), |(earliest, latest)| (earliest.min(value), latest.max(value)))
}

/// A timestamp of a record, if present and defined.
fn timestamp_at(record: &[u8], offset: usize) -> Option<u64> {
    let bytes = record.get(offset..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes)).filter(|ts| *ts != UNDEF_TIMESTAMP)
}

const TS_EVENT_AT: usize = std::mem::offset_of!(dbn::RecordHeader, ts_event);

/// Name of a record type for users: its schema.
pub fn schema_name(rtype: RType) -> &'static str {
    RType::try_into_schema(u16::from(rtype as u8)).map_or(rtype.as_str(), |schema| schema.as_str())
}

/// Offset of `ts_recv` in records of that type.
pub fn ts_recv_at(record: &[u8]) -> Option<usize> {
    use std::mem::offset_of;

    use dbn::enums::rtype;
    Some(match *record.get(1)? {
        rtype::MBO => offset_of!(dbn::MboMsg, ts_recv),
        rtype::MBP_0 | rtype::MBP_1 | rtype::MBP_10 => offset_of!(dbn::TradeMsg, ts_recv),
        rtype::STATUS | rtype::INSTRUMENT_DEF | rtype::IMBALANCE | rtype::STATISTICS => {
            offset_of!(dbn::StatusMsg, ts_recv)
        }
        _ => return None,
    })
}

const _: () = assert!(
    std::mem::offset_of!(dbn::StatusMsg, ts_recv) == std::mem::offset_of!(dbn::InstrumentDefMsg, ts_recv)
        && std::mem::offset_of!(dbn::StatusMsg, ts_recv) == std::mem::offset_of!(dbn::ImbalanceMsg, ts_recv)
        && std::mem::offset_of!(dbn::StatusMsg, ts_recv) == std::mem::offset_of!(dbn::StatMsg, ts_recv)
);

fn utc_date(ts: u64) -> Option<Date> {
    let seconds = i64::try_from(ts / 1_000_000_000).ok()?;
    OffsetDateTime::from_unix_timestamp(seconds).ok().map(OffsetDateTime::date)
}

fn calendar_date(date: TradingDate) -> Option<Date> {
    utc_date(date.midnight_utc().0)
}

#[cfg(test)]
mod tests;
