//! Spool of DBN records for a file whose metadata is only known at the end.
//!
//! Records occupy disk space once, not twice: blocks that were read from the spool are returned to the file system at
//! once, where it supports holes in files. (This costs no time: the pages are returned before they reach a disk.) If
//! space still runs out, the spool drops records at its end so that the earlier ones get a complete file.
//!
//! A thread of the spool writes to its file: that takes longer than all else that an offline replay does for a record. At most
//! [`BUFFERS_MAX`] buffers wait for the thread; then the caller waits.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, Write},
    mem,
    os::unix::fs::FileExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread::{self, JoinHandle},
};

use mdgw_wire::consumer_edge::first_record;
use rustix::fs::{FallocateFlags, fallocate};

/// Write side of the spool. After a failure it accepts no more records. If dropped, its thread ends by itself.
#[derive(Debug)]
pub(super) struct Spool {
    /// Whole records that the thread does not have yet.
    buffer: Vec<u8>,
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
    thread: JoinHandle<(File, Option<io::Error>)>,
    has_write_failed: Arc<AtomicBool>,
    failure: Option<io::Error>,
}

impl Spool {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let (full, to_write) = sync_channel(BUFFERS_MAX);
        let (written, empty) = channel();
        let has_write_failed = Arc::new(AtomicBool::new(false));
        let failed = Arc::clone(&has_write_failed);
        let body = move || write_buffers(file, &to_write, &written, &failed);
        let thread = thread::Builder::new().name("mdgw-spool".to_owned()).spawn(body)?;
        Ok(Self { buffer: Vec::with_capacity(BUFFER_BYTES), full, empty, thread, has_write_failed, failure: None })
    }

    /// Appends one whole record; [`Self::has_failed`] reports failure.
    pub(super) fn push(&mut self, record: &[u8]) {
        if self.has_failed() {
            return;
        }
        // The reader finds record boundaries by the records' own lengths.
        if first_record(record).is_none_or(|whole| whole.len() != record.len()) {
            self.failure = Some(io::ErrorKind::InvalidInput.into());
            return;
        }
        if self.buffer.len() + record.len() > BUFFER_BYTES {
            self.hand_over();
        }
        self.buffer.extend_from_slice(record);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some() || self.has_write_failed.load(Relaxed)
    }

    /// Hands the buffer to the thread, and takes an empty one.
    fn hand_over(&mut self) {
        let next = self.empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(BUFFER_BYTES));
        // Fails only if the thread has panicked: `into_reader` returns that.
        let _thread_ended = self.full.send(mem::replace(&mut self.buffer, next));
    }

    /// Starts reading. Also returns the error that ended writing, if any. Records that waited behind a failed write are
    /// lost.
    pub(super) fn into_reader(mut self) -> io::Result<(SpoolReader, Option<io::Error>)> {
        self.hand_over();
        let Self { full, thread, failure, .. } = self;
        drop(full);
        let (file, write_failure) = thread.join().map_err(|_| io::Error::other("the spool's thread panicked"))?;
        let end = file.metadata()?.len();
        Ok((SpoolReader { file, read_bytes: 0, end }, failure.or(write_failure)))
    }
}

/// Main function of the spool's thread: writes the buffers until the other end is dropped. After a failure it drops them.
fn write_buffers(
    mut file: File,
    full: &Receiver<Vec<u8>>,
    empty: &Sender<Vec<u8>>,
    has_failed: &AtomicBool,
) -> (File, Option<io::Error>) {
    let mut failure = None;
    for mut buffer in full {
        if failure.is_none() {
            failure = file.write_all(&buffer).err();
            has_failed.store(failure.is_some(), Relaxed);
        }
        buffer.clear();
        // Nobody takes the last ones.
        let _unused = empty.send(buffer);
    }
    (file, failure)
}

/// Read side of the spool.
#[derive(Debug)]
pub(super) struct SpoolReader {
    file: File,
    /// Records before this offset were read.
    read_bytes: u64,
    /// End of the records. After a write failure a partial record may lie before it.
    end: u64,
}

impl SpoolReader {
    /// Replaces the content of `bytes` by the next whole records; none at the end.
    fn read_chunk(&mut self, bytes: &mut Vec<u8>) -> io::Result<WholeRecords> {
        let wanted = (self.end - self.read_bytes).min(CHUNK_BYTES);
        bytes.resize(usize::try_from(wanted).unwrap_or_default(), 0);
        self.file.read_exact_at(bytes, self.read_bytes)?;
        let whole = WholeRecords::of(bytes);
        bytes.truncate(whole.bytes);
        // A block that was read in part is returned with the next chunk.
        let hole = self.read_bytes / BLOCK_BYTES * BLOCK_BYTES;
        self.read_bytes += whole.bytes as u64;
        if self.read_bytes == self.end {
            self.truncate()?;
        } else {
            // Where holes are not supported, all space is returned at the end.
            let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(&self.file, holes, hole, self.read_bytes - hole);
        }
        Ok(whole)
    }

    /// Returns the space behind the end of the records to the file system; once all records were read, the whole file.
    fn truncate(&self) -> io::Result<()> {
        self.file.set_len(if self.read_bytes == self.end { 0 } else { self.end })
    }

    /// Drops `bytes` of records at the end to make room elsewhere; `false` when nothing is left.
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

/// Number of whole records at the front, and their size in bytes.
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

/// Result of [`write_spooled`].
#[derive(Debug, Default)]
pub(super) struct WriteOutcome {
    /// Whole records written.
    pub(super) record_count: u64,
    /// Valid bytes of the output. Without compression: up to the end of the last whole record.
    pub(super) bytes: u64,
    /// Error because of which records at the end were dropped. The output is valid without them.
    pub(super) out_of_space: Option<io::Error>,
    /// Error that ended writing early.
    pub(super) failure: Option<io::Error>,
}

/// Writes `header` and the spooled records into `output`. Compressed output is a single frame with a checksum, since
/// not every reader continues after the first frame.
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

/// Compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Zstd,
}

#[derive(Debug, Default)]
struct SpoolCopy {
    /// Chunk that is being written: the header, then records.
    chunk: Vec<u8>,
    whole: WholeRecords,
    /// Records written before this chunk.
    record_count: u64,
    bytes: u64,
}

impl SpoolCopy {
    fn run(&mut self, spool_reader: &RefCell<SpoolReader>, output: &mut impl Write) -> io::Result<()> {
        loop {
            output.write_all(&self.chunk)?;
            self.record_count += self.whole.count;
            self.bytes += self.chunk.len() as u64;
            self.whole = spool_reader.borrow_mut().read_chunk(&mut self.chunk)?;
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

    /// Counts the whole records of a chunk that was written in part.
    fn count_part(&mut self, written: u64) {
        let part = usize::try_from(written.saturating_sub(self.bytes)).unwrap_or_default();
        if self.whole.count > 0 {
            let whole = WholeRecords::of(self.chunk.get(..part).unwrap_or(&self.chunk));
            self.record_count += whole.count;
            self.bytes += whole.bytes as u64;
        }
    }
}

/// A writer that drops records at the end of the spool when the file system is full.
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

/// Whether the error means lack of space, which dropping records can free.
pub(super) fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Buffer of the write side: about a thousand of the largest records.
const BUFFER_BYTES: usize = 512 * 1024;
/// Buffers that wait for the spool's thread.
const BUFFERS_MAX: usize = 4;
/// Bytes read at once.
const CHUNK_BYTES: u64 = 1024 * 1024;
/// The largest allocation unit that file systems commonly use. Smaller holes would free nothing.
const BLOCK_BYTES: u64 = 64 * 1024;

#[cfg(test)]
mod tests;
