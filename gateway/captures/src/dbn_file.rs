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

mod metadata;
mod spool;

use std::{
    env, fmt,
    fs::{self, File},
    io,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use dbn::{RType, Schema};
use mdgw_wire::{identity::InstrumentId, time::TradingDate};
use tempfile::NamedTempFile;

pub use self::metadata::MetadataCollector;
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
    metadata: MetadataCollector,
    spool: Spool,
    record_bytes: u64,
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
            metadata: MetadataCollector::new(options),
            spool: Spool::new(spool)?,
            record_bytes: 0,
        })
    }

    /// Sets the dataset.
    pub fn set_dataset(&mut self, dataset: &str) {
        self.metadata.set_dataset(dataset);
    }

    /// Appends one whole record. After a failure nothing more is appended: [`Self::has_failed`] reports the failure,
    /// and [`Self::finish`] returns the error.
    pub fn record(&mut self, bytes: &[u8]) {
        self.spool.push(bytes);
        if self.has_failed() {
            return;
        }
        self.metadata.record(bytes);
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
        self.metadata.mapping(symbol, instrument, date);
    }

    /// Assembles the file and renames it to its path.
    ///
    /// # Errors
    /// Not everything could be written. The valid part is at the file's path; if there is none, the path keeps its
    /// former content.
    pub fn finish(self) -> Result<DbnFileSummary, DbnFileError> {
        let Self { destination, compression, metadata, spool, record_bytes } = self;
        let failed = |kept, source| DbnFileError { name: destination.name(), kept, source };
        let header = metadata.encode().map_err(|error| failed(None, error))?;
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
            None => Ok(DbnFileSummary { record_count, symbol_count: metadata.symbol_count(), bytes }),
            Some(source) => Err(failed(is_kept.then_some(DbnFileKept { record_count, bytes: kept_bytes }), source)),
        }
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

#[cfg(test)]
mod tests;
