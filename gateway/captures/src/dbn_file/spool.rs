//! Records on their way into a file whose beginning is only known at the end.
//!
//! A disk holds them once, not twice: what was taken out of the spool is given back to the file system at once, where that
//! can make holes in files. (It is no slower for that: pages come back before anybody has written them to a disk.) Where
//! there is no room even so, the spool gives up records at its end, for those before them to get a whole file.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, BufWriter, Write},
    os::unix::fs::FileExt as _,
};

use mdgw_feeds::consumer_edge::first_record;
use rustix::fs::{FallocateFlags, fallocate};

/// Takes records; after a failure none any more.
#[derive(Debug)]
pub(super) struct Spool {
    file: BufWriter<File>,
    failure: Option<io::Error>,
}

impl Spool {
    pub(super) fn new(file: File) -> Self {
        Self { file: BufWriter::with_capacity(BUFFER_BYTES, file), failure: None }
    }

    /// Appends one whole record. Whether it has is told by [`Self::has_failed`].
    pub(super) fn push(&mut self, record: &[u8]) {
        if self.has_failed() {
            return;
        }
        // They are told apart by their own lengths when they are taken out.
        let is_whole = first_record(record).is_some_and(|whole| whole.len() == record.len());
        let pushed = if is_whole { self.file.write_all(record) } else { Err(io::ErrorKind::InvalidInput.into()) };
        self.failure = pushed.err();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// What it took, and why not all of it. What was still in memory when it failed is lost.
    pub(super) fn into_reader(mut self) -> io::Result<(SpoolReader, Option<io::Error>)> {
        let failure = self.failure.take().or_else(|| self.file.flush().err());
        let (file, _) = self.file.into_parts();
        let end = file.metadata()?.len();
        Ok((SpoolReader { file, read_bytes: 0, end }, failure))
    }
}

/// Records to be taken out.
#[derive(Debug)]
pub(super) struct SpoolReader {
    file: File,
    /// What lies before was taken.
    read_bytes: u64,
    /// Where a failure ended it a part of a record may stand before.
    end: u64,
}

impl SpoolReader {
    /// The next whole records, in place of what `bytes` held; none at the end.
    fn take(&mut self, bytes: &mut Vec<u8>) -> io::Result<WholeRecords> {
        let wanted = (self.end - self.read_bytes).min(CHUNK_BYTES);
        bytes.resize(usize::try_from(wanted).unwrap_or_default(), 0);
        self.file.read_exact_at(bytes, self.read_bytes)?;
        let whole = WholeRecords::of(bytes);
        bytes.truncate(whole.bytes);
        // Of a block that was taken in part the rest is given back now.
        let hole = self.read_bytes / BLOCK_BYTES * BLOCK_BYTES;
        self.read_bytes += whole.bytes as u64;
        if self.read_bytes == self.end {
            self.truncate()?;
        } else {
            // Where that can't be done, all is given back at the end.
            let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(&self.file, holes, hole, self.read_bytes - hole);
        }
        Ok(whole)
    }

    /// Gives back what lies behind the end; all of it, when all was taken.
    fn truncate(&self) -> io::Result<()> {
        self.file.set_len(if self.read_bytes == self.end { 0 } else { self.end })
    }

    /// Gives up what stands at the end, to make room for so many bytes elsewhere; `false` when there is nothing left.
    pub(super) fn drop_last(&mut self, bytes: usize) -> io::Result<bool> {
        if self.file.metadata()?.len() == 0 {
            return Ok(false);
        }
        let bytes = (bytes as u64).next_multiple_of(BLOCK_BYTES);
        self.end = self.end.saturating_sub(bytes).max(self.read_bytes);
        self.truncate()?;
        Ok(true)
    }
}

/// How many whole records there are at the front, and how many bytes they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WholeRecords {
    count: u64,
    bytes: usize,
}

impl WholeRecords {
    fn of(bytes: &[u8]) -> Self {
        let mut whole = Self::default();
        while let Some(record) = bytes.get(whole.bytes..).and_then(first_record) {
            whole.count += 1;
            whole.bytes += record.len();
        }
        whole
    }
}

/// What came of [`write_spooled`].
#[derive(Debug, Default)]
pub(super) struct WriteOutcome {
    /// Whole records that went out.
    pub(super) record_count: u64,
    /// Bytes of the output as far as it is good: without compression, to the end of the last of these records.
    pub(super) bytes: u64,
    /// Why records at the end had to be given up. The output is good without them.
    pub(super) out_of_space: Option<io::Error>,
    /// Why it ended before its end.
    pub(super) failure: Option<io::Error>,
}

/// `header` and the spooled records into `output`; compressed in one frame with a checksum, since not every reader goes on
/// behind the first.
pub(super) fn write_spooled(
    header: Vec<u8>,
    spool_reader: SpoolReader,
    compression: Compression,
    output: &mut impl Write,
) -> WriteOutcome {
    let spool_reader = RefCell::new(spool_reader);
    let mut output = SpaceReclaimer { output, spool_reader: &spool_reader, written: 0, out_of_space: None };
    let mut copy = SpoolCopy { chunk: header, ..SpoolCopy::default() };
    let outcome = match compression {
        Compression::None => copy.run(&spool_reader, &mut output),
        Compression::Zstd => copy.run_compressed(&spool_reader, &mut output),
    };
    let outcome = outcome.and_then(|()| output.flush());
    if outcome.is_err() && compression == Compression::None {
        copy.count_part(output.written);
    }
    WriteOutcome {
        record_count: copy.record_count,
        bytes: match compression {
            Compression::None => copy.bytes,
            Compression::Zstd => output.written,
        },
        out_of_space: output.out_of_space,
        failure: outcome.err(),
    }
}

/// How a file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Zstd,
}

#[derive(Debug, Default)]
struct SpoolCopy {
    /// What is being written: the header, then records.
    chunk: Vec<u8>,
    whole: WholeRecords,
    /// What was written before it.
    record_count: u64,
    bytes: u64,
}

impl SpoolCopy {
    fn run(&mut self, spool_reader: &RefCell<SpoolReader>, output: &mut impl Write) -> io::Result<()> {
        loop {
            output.write_all(&self.chunk)?;
            self.record_count += self.whole.count;
            self.bytes += self.chunk.len() as u64;
            self.whole = spool_reader.borrow_mut().take(&mut self.chunk)?;
            if self.whole.count == 0 {
                return Ok(());
            }
        }
    }

    fn run_compressed(&mut self, spool_reader: &RefCell<SpoolReader>, output: &mut impl Write) -> io::Result<()> {
        let mut encoder = zstd::Encoder::new(output, zstd::DEFAULT_COMPRESSION_LEVEL)?;
        encoder.include_checksum(true)?;
        self.run(spool_reader, &mut encoder)?;
        encoder.finish().map(drop)
    }

    /// The chunk was written in part: its first records count.
    fn count_part(&mut self, written: u64) {
        let part = usize::try_from(written.saturating_sub(self.bytes)).unwrap_or_default();
        if self.whole.count > 0 {
            let whole = WholeRecords::of(self.chunk.get(..part).unwrap_or(&self.chunk));
            self.record_count += whole.count;
            self.bytes += whole.bytes as u64;
        }
    }
}

/// Where there is no room, the spool makes some.
struct SpaceReclaimer<'a, W> {
    output: &'a mut W,
    spool_reader: &'a RefCell<SpoolReader>,
    written: u64,
    out_of_space: Option<io::Error>,
}

impl<W: Write> Write for SpaceReclaimer<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.output.write(bytes) {
                Ok(written) => {
                    self.written += written as u64;
                    return Ok(written);
                }
                Err(error) if is_out_of_space(&error) && self.spool_reader.borrow_mut().drop_last(bytes.len())? => {
                    self.out_of_space.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Whether it is room that is missing, which may be made.
pub(super) fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A thousand of the largest records.
const BUFFER_BYTES: usize = 512 * 1024;
/// What is taken out at once.
const CHUNK_BYTES: u64 = 1024 * 1024;
/// The largest that file systems commonly give out: less is not given back.
const BLOCK_BYTES: u64 = 64 * 1024;

#[cfg(test)]
mod tests;
