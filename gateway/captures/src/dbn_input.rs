//! DBN streams record by record: files, plain or zstd, and standard input.
//!
//! The official decoder reads them. It treats some errors as the end of the stream; this module reports them: a stream
//! that ends inside a record, and a damaged compressed stream.

use std::{
    cell::Cell,
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    rc::Rc,
};

use dbn::{
    Metadata, RType, Record as _, RecordRef, VersionUpgradePolicy,
    decode::{
        DbnMetadata as _, DecodeRecordRef as _,
        dbn::{Decoder, RecordDecoder},
    },
};

/// An open DBN stream.
pub struct DbnInput {
    path: PathBuf,
    decoder: Decoder<DecompressedReader>,
    /// Decodes the records behind the last seek, instead of `decoder`.
    behind_seek: Option<RecordDecoder<DecompressedReader>>,
    /// A plain file, for seeks.
    file: Option<File>,
    progress: Rc<Progress>,
    /// Offset of the next record, decompressed.
    offset: u64,
    has_ended: bool,
}

/// Error in opening or reading a DBN stream.
#[derive(Debug, thiserror::Error)]
#[error("read {} at byte {offset}{}: {fault}", path.display(), if *.is_compressed { " of the decompressed stream" } else { "" })]
pub struct DbnInputError {
    /// The file; `-` for standard input.
    pub path: PathBuf,
    /// First byte that could not be used; in a compressed file, an offset in the decompressed stream.
    pub offset: u64,
    /// Whether the stream is compressed.
    pub is_compressed: bool,
    /// The fault at that offset.
    pub fault: DbnFault,
}

/// Kinds of faults in a DBN stream.
#[derive(Debug, thiserror::Error)]
pub enum DbnFault {
    /// Error of the system or the decompressor.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The stream is empty.
    #[error("the file is empty")]
    Empty,
    /// The first bytes are not DBN.
    #[error("not a DBN file")]
    NotDbn,
    /// Implausible metadata length.
    #[error("damaged: the metadata declares {0} bytes")]
    MetadataLength(u64),
    /// The stream ends inside its metadata.
    #[error("the file is truncated inside its metadata")]
    TruncatedMetadata,
    /// The stream ends inside a record.
    #[error("the file is truncated inside a record ({0} bytes remain)")]
    TruncatedRecord(u64),
    /// A record that is shorter than its type requires.
    #[error("damaged: record of type {rtype} with {bytes} bytes, at least {bytes_min} expected")]
    TooShort {
        /// Record type (`rtype`).
        rtype: u8,
        /// Length of the record in bytes.
        bytes: usize,
        /// Least length of that record type in bytes.
        bytes_min: usize,
    },
    /// Error of the official decoder.
    #[error("{0}")]
    Decode(#[from] dbn::Error),
}

/// Progress and errors of the readers below the decoder, shared with [`DbnInput`].
#[derive(Default)]
struct Progress {
    bytes: Cell<u64>,
    file_bytes: Cell<u64>,
    /// Error of the decompressor, which the decoder treats as the end of the stream.
    failure: Cell<Option<io::Error>>,
    is_compressed: Cell<bool>,
}

struct DecompressedReader {
    reader: Box<dyn Read>,
    progress: Rc<Progress>,
}

struct CountingReader {
    reader: Box<dyn Read>,
    progress: Rc<Progress>,
}

impl DbnInput {
    /// Opens a file, or standard input for `-`, and reads its metadata.
    ///
    /// # Errors
    /// The file can't be opened, is empty or not DBN, or its metadata is truncated or damaged.
    pub fn open(path: &Path) -> Result<Self, DbnInputError> {
        let progress = Rc::new(Progress::default());
        let fail = |fault: DbnFault| DbnInputError {
            path: path.to_owned(),
            offset: 0,
            is_compressed: progress.is_compressed.get(),
            fault,
        };
        let (mut reader, file) = open_reader(path, &progress).map_err(|error| fail(error.into()))?;
        let mut head = Vec::new();
        reader.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(|error| fail(error.into()))?;
        if head.is_empty() {
            return Err(fail(DbnFault::Empty));
        }
        let metadata_bytes = match head.as_slice() {
            [b'D', b'B', b'N', _, length @ ..] if length.len() == 4 => {
                HEAD_BYTES + u64::from(length.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)))
            }
            _ => return Err(fail(DbnFault::NotDbn)),
        };
        if metadata_bytes > METADATA_BYTES_MAX {
            return Err(fail(DbnFault::MetadataLength(metadata_bytes - HEAD_BYTES)));
        }
        // The decoder would allocate the claimed length. Reading first bounds the allocation by the bytes that exist.
        reader.by_ref().take(metadata_bytes - HEAD_BYTES).read_to_end(&mut head).map_err(|error| fail(error.into()))?;
        if (head.len() as u64) < metadata_bytes {
            return Err(fail(DbnFault::TruncatedMetadata));
        }
        let reader = Box::new(Cursor::new(head).chain(reader));
        let watched = DecompressedReader { reader, progress: Rc::clone(&progress) };
        let decoder = Decoder::with_upgrade_policy(watched, VersionUpgradePolicy::AsIs);
        let decoder = decoder.map_err(|error| match error {
            dbn::Error::Io { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof => {
                fail(progress.failure.take().map_or(DbnFault::TruncatedMetadata, DbnFault::Io))
            }
            error => fail(error.into()),
        })?;
        let (path, offset) = (path.to_owned(), metadata_bytes);
        Ok(Self { path, decoder, behind_seek: None, file, progress, offset, has_ended: false })
    }

    /// Metadata of the stream.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.decoder.metadata()
    }

    /// Offset of the next record; in a compressed stream, an offset in the decompressed stream.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the (compressed) file read so far, for a progress bar.
    #[must_use]
    pub fn file_bytes_read(&self) -> u64 {
        self.progress.file_bytes.get()
    }

    /// Returns the next record; `None` at the end.
    ///
    /// # Errors
    /// The stream is truncated or damaged here. All records before were returned; no more follow.
    pub fn next_record(&mut self) -> Result<Option<RecordRef<'_>>, DbnInputError> {
        if self.has_ended {
            return Ok(None);
        }
        let decoded = match &mut self.behind_seek {
            Some(decoder) => decoder.decode_record_ref(),
            None => self.decoder.decode_record_ref(),
        };
        let fault = match decoded {
            Ok(Some(record)) => {
                let bytes = record.record_size();
                match bytes_min(record).filter(|bytes_min| bytes < *bytes_min) {
                    // Code that reads the record relies on the full length of its type.
                    Some(bytes_min) => Some(DbnFault::TooShort { rtype: record.header().rtype, bytes, bytes_min }),
                    None => {
                        self.offset += bytes as u64;
                        return Ok(Some(record));
                    }
                }
            }
            Ok(None) => match (self.progress.failure.take(), self.progress.bytes.get().saturating_sub(self.offset)) {
                (Some(failure), _) => Some(DbnFault::Io(failure)),
                (None, 0) => None,
                (None, left) => Some(DbnFault::TruncatedRecord(left)),
            },
            Err(error) => Some(DbnFault::Decode(error)),
        };
        self.has_ended = true;
        let is_compressed = self.progress.is_compressed.get();
        let (path, offset) = (self.path.clone(), self.offset);
        fault.map_or(Ok(None), |fault| Err(DbnInputError { path, offset, is_compressed, fault }))
    }

    /// Skips records of at most that many bytes together. Returns their bytes: more than `bytes` if the last record ends behind
    /// them, and 0 at the end. A plain file is not read for a long distance. Otherwise the records are decoded, some at a time, so that
    /// a caller can stop in between.
    ///
    /// # Errors
    /// As [`Self::next_record`]. A seek behind the end of the file is noticed by the next record.
    pub fn skip(&mut self, bytes: u64) -> Result<u64, DbnInputError> {
        if bytes >= SEEK_BYTES_MIN && !self.has_ended && self.file.is_some() {
            self.seek(self.offset.saturating_add(bytes)).map_err(|fault| DbnInputError {
                path: self.path.clone(),
                offset: self.offset,
                is_compressed: false,
                fault,
            })?;
            return Ok(bytes);
        }
        let mut skipped = 0;
        while skipped < bytes.min(SEEK_BYTES_MIN) {
            let Some(record) = self.next_record()? else { break };
            skipped += record.record_size() as u64;
        }
        Ok(skipped)
    }

    /// Goes on at that offset of a plain file.
    fn seek(&mut self, offset: u64) -> Result<(), DbnFault> {
        let Some(file) = &self.file else { return Ok(()) };
        // The handles share one position, and nothing reads through the former one any longer.
        let mut file = file.try_clone()?;
        file.seek(SeekFrom::Start(offset))?;
        let reader = CountingReader { reader: Box::new(file), progress: Rc::clone(&self.progress) };
        let reader = Box::new(BufReader::with_capacity(READ_BYTES, reader));
        let watched = DecompressedReader { reader, progress: Rc::clone(&self.progress) };
        let (version, ts_out) = (self.metadata().version, self.metadata().ts_out);
        let decoder = RecordDecoder::with_version(watched, version, VersionUpgradePolicy::AsIs, ts_out)?;
        self.progress.bytes.set(offset);
        self.behind_seek = Some(decoder);
        self.offset = offset;
        Ok(())
    }
}

/// Least length in bytes of that record type in any version; `None` for unknown types.
fn bytes_min(record: RecordRef<'_>) -> Option<usize> {
    Some(match record.rtype().ok()? {
        RType::Mbo => size_of::<dbn::MboMsg>(),
        RType::Mbp0 => size_of::<dbn::TradeMsg>(),
        RType::Mbp1 | RType::Tbbo => size_of::<dbn::Mbp1Msg>(),
        RType::Mbp10 => size_of::<dbn::Mbp10Msg>(),
        RType::Status => size_of::<dbn::StatusMsg>(),
        RType::Imbalance => size_of::<dbn::ImbalanceMsg>(),
        RType::InstrumentDef => size_of::<dbn::v1::InstrumentDefMsg>(),
        RType::Statistics => size_of::<dbn::v1::StatMsg>(),
        RType::SymbolMapping => size_of::<dbn::v1::SymbolMappingMsg>(),
        RType::Error => size_of::<dbn::v1::ErrorMsg>(),
        RType::System => size_of::<dbn::v1::SystemMsg>(),
        RType::Cmbp1 | RType::Tcbbo => size_of::<dbn::Cmbp1Msg>(),
        RType::Bbo1S | RType::Bbo1M => size_of::<dbn::BboMsg>(),
        RType::Cbbo1S | RType::Cbbo1M => size_of::<dbn::CbboMsg>(),
        // All remaining types are bars.
        _ => size_of::<dbn::OhlcvMsg>(),
    })
}

impl std::fmt::Debug for DbnInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DbnInput").field("path", &self.path).field("offset", &self.offset).finish_non_exhaustive()
    }
}

/// Whether a file begins with DBN, compressed or not.
///
/// # Errors
/// It can't be opened or read.
pub fn is_dbn(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    let progress = Rc::new(Progress::default());
    match open_reader(path, &progress)?.0.take(3).read_to_end(&mut head) {
        Ok(_) => Ok(head == b"DBN"),
        // A damaged compressed file is not decided here: its own reader reports the damage with more detail.
        Err(error) if progress.is_compressed.get() && error.kind() != io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The decompressed bytes of a file, and the file itself if it is a plain one.
fn open_reader(path: &Path, progress: &Rc<Progress>) -> io::Result<(Box<dyn Read>, Option<File>)> {
    let (reader, file): (Box<dyn Read>, _) = if path == Path::new("-") {
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(path)?;
        // Pipes and devices have no positions.
        let plain = if file.metadata()?.is_file() { Some(file.try_clone()?) } else { None };
        (Box::new(file), plain)
    };
    let mut reader = BufReader::with_capacity(READ_BYTES, CountingReader { reader, progress: Rc::clone(progress) });
    Ok(match reader.fill_buf()? {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            progress.is_compressed.set(true);
            (Box::new(zstd::Decoder::with_buffer(reader)?), None)
        }
        _ => (Box::new(reader), file),
    })
}

impl Read for DecompressedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.reader.read(buffer) {
            Ok(count) => {
                self.progress.bytes.set(self.progress.bytes.get() + count as u64);
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                // The decoder treats an early end as a regular end, so the error is kept for `next_record`.
                self.progress.failure.set(Some(error));
                Ok(0)
            }
        }
    }
}

impl Read for CountingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.progress.file_bytes.set(self.progress.file_bytes.get() + count as u64);
        Ok(count)
    }
}

/// Length of magic, version and metadata length.
const HEAD_BYTES: u64 = 8;
/// Longest plausible metadata: a million symbols with their mappings are shorter.
const METADATA_BYTES_MAX: u64 = 1 << 29;
const READ_BYTES: usize = 256 * 1024;
/// Shortest distance for a seek: what is nearer is in the read buffers, or costs little more than filling them again. Also the most that is
/// skipped by decoding at a time.
const SEEK_BYTES_MIN: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::fs;

    use dbn::{MboMsg, Schema};

    use super::*;
    use crate::dbn_file::{DbnFileOptions, DbnFileWriter};

    fn written(path: &Path, records: usize) -> Vec<u8> {
        let options = DbnFileOptions { dataset: "XNAS.ITCH".to_owned(), schema: Some(Schema::Mbo) };
        let mut writer = DbnFileWriter::create(path, options).unwrap();
        for number in 0..records {
            let record = MboMsg { order_id: number as u64, ..MboMsg::default() };
            writer.record(record.as_ref());
        }
        writer.finish().unwrap();
        fs::read(path).unwrap()
    }

    /// Number of records read, and the error that ended reading.
    fn read(path: &Path) -> (u64, Option<DbnInputError>) {
        let mut input = match DbnInput::open(path) {
            Ok(input) => input,
            Err(error) => return (0, Some(error)),
        };
        let mut count = 0;
        loop {
            match input.next_record() {
                Ok(Some(record)) => {
                    assert_eq!(record.get::<MboMsg>().unwrap().order_id, count);
                    count += 1;
                }
                Ok(None) => return (count, None),
                Err(error) => {
                    assert!(input.next_record().unwrap().is_none(), "nothing follows");
                    return (count, Some(error));
                }
            }
        }
    }

    #[test]
    fn a_truncated_stream_yields_its_prefix_and_the_offset() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.dbn");
        let bytes = written(&path, 20);
        assert!(matches!(read(&path), (20, None)));
        let record_bytes = size_of::<MboMsg>();
        let begin = bytes.len() - 20 * record_bytes;
        for length in 0..bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            let (count, error) = read(&path);
            let whole = length.saturating_sub(begin) / record_bytes;
            assert_eq!(count, whole as u64, "cut at {length}");
            let is_border = length >= begin && (length - begin).is_multiple_of(record_bytes);
            assert_eq!(error.is_none(), is_border, "cut at {length}: {error:?}");
            if let Some(error) = error {
                let is_of_records = length > begin;
                assert_eq!(error.offset, if is_of_records { (begin + whole * record_bytes) as u64 } else { 0 });
                assert_eq!(
                    matches!(error.fault, DbnFault::TruncatedRecord(_)),
                    is_of_records,
                    "cut at {length}: {error}"
                );
                assert_eq!(matches!(error.fault, DbnFault::TruncatedMetadata), (8..begin).contains(&length), "{error}");
            }
        }
    }

    #[test]
    fn a_truncated_compressed_stream_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.dbn.zst");
        let bytes = written(&path, 50_000);
        assert!(is_dbn(&path).unwrap());
        assert!(matches!(read(&path), (50_000, None)));
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let (count, error) = read(&path);
        assert!(count < 50_000);
        assert!(error.unwrap().to_string().contains("of the decompressed stream"));
    }

    /// By a seek in a plain file and by decoding in a compressed one.
    #[test]
    fn records_behind_a_skip_are_those_that_follow_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let record_bytes = size_of::<MboMsg>() as u64;
        for (name, is_plain) in [("a.dbn", true), ("a.dbn.zst", false)] {
            let path = folder.path().join(name);
            let _ = written(&path, 100_000);
            let mut input = DbnInput::open(&path).unwrap();
            assert!(input.next_record().unwrap().is_some());
            let mut expected = 1;
            for count in [3, 40_000, 1, 50_000] {
                let (mut left, mut calls) = (count * record_bytes, 0);
                while left > 0 {
                    left -= input.skip(left).unwrap();
                    calls += 1;
                }
                assert!(if is_plain { calls == 1 } else { calls <= 4 }, "{name}: {calls} calls for {count} records");
                expected += count;
                let record = input.next_record().unwrap().unwrap();
                assert_eq!(record.get::<MboMsg>().unwrap().order_id, expected, "{name}");
                expected += 1;
            }
            assert!(!is_plain || input.file_bytes_read() < 20_000 * record_bytes, "the skipped part is not read");
            // Behind the end.
            while input.skip(10_000 * record_bytes).unwrap() > 0 && !is_plain {}
            assert!(input.next_record().unwrap().is_none(), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_no_dbn_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for (content, message) in [
            (&b""[..], "the file is empty"),
            (b"hello, world", "not a DBN file"),
            (b"DBN\x03\xff\xff\xff\xff", "the metadata declares 4294967295 bytes"),
        ] {
            fs::write(&path, content).unwrap();
            let error = DbnInput::open(&path).unwrap_err().to_string();
            assert!(error.contains(message) && error.contains(path.to_str().unwrap()), "{error}");
        }
        assert!(
            DbnInput::open(Path::new("/nonexistent/a.dbn")).unwrap_err().to_string().contains("/nonexistent/a.dbn")
        );
    }

    #[test]
    fn no_flipped_byte_causes_a_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.dbn");
        let bytes = written(&path, 3);
        for index in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[index] ^= flip;
                fs::write(&path, &damaged).unwrap();
                if let Ok(mut input) = DbnInput::open(&path) {
                    while let Ok(Some(_)) = input.next_record() {}
                }
            }
        }
    }
}
