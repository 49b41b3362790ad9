//! The bytes of a file, decompressed, through one bounded buffer. A compressed file is decompressed by a thread of its own.

use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    mem,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::Duration,
};

use super::{CaptureFault, FRAME_BYTES_MAX};

/// Reads ahead into one buffer and tracks the offset of every byte.
pub(super) struct ByteSource {
    reader: Box<dyn Read + Send>,
    buffer: Box<[u8]>,
    /// Unconsumed bytes are `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Offset of `buffer[start]` in the (decompressed) stream.
    offset: u64,
    /// Compression of the file, and the number of its bytes decompressed so far.
    compression: Option<(&'static str, Arc<AtomicU64>)>,
    /// No more bytes follow: end of file, or `failure`.
    ended: bool,
    failure: Option<io::Error>,
    file_bytes_read: Arc<AtomicU64>,
}

impl ByteSource {
    /// Opens a file. With `follow`, the reader waits at the end of the file for more bytes until the flag is set.
    pub(super) fn open(path: &Path, follow: Option<Arc<AtomicBool>>) -> io::Result<Self> {
        let file_bytes_read = Arc::new(AtomicU64::new(0));
        let file = CountingFile { file: File::open(path)?, bytes: Arc::clone(&file_bytes_read), follow };
        let mut file = BufReader::with_capacity(READ_BYTES, file);
        let compressed_bytes_read = Arc::new(AtomicU64::new(0));
        let format = match file.fill_buf()? {
            [0x1f, 0x8b, ..] => Some("gzip"),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some("zstd"),
            _ => None,
        };
        let compression = CompressedBytes { file, bytes: Arc::clone(&compressed_bytes_read) };
        let reader: Box<dyn Read + Send> = match format {
            Some("gzip") => Box::new(ReadAhead::start(flate2::bufread::MultiGzDecoder::new(compression))?),
            Some(_) => Box::new(ReadAhead::start(zstd::Decoder::with_buffer(compression)?)?),
            None => Box::new(compression.file),
        };
        Ok(Self {
            reader,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            offset: 0,
            compression: format.map(|format| (format, compressed_bytes_read)),
            ended: false,
            failure: None,
            file_bytes_read,
        })
    }

    /// Reads until `bytes` unconsumed bytes are in the buffer. Returns how many there are; fewer only at the end of the
    /// stream.
    #[inline]
    pub(super) fn fill(&mut self, bytes: usize) -> Result<usize, CaptureFault> {
        if self.end - self.start < bytes && !self.ended {
            self.refill(bytes)?;
        }
        Ok(self.end - self.start)
    }

    /// As [`Self::fill`], but an early end of the stream is an error.
    #[inline]
    pub(super) fn require(&mut self, bytes: usize, what: &'static str) -> Result<(), CaptureFault> {
        let left = self.fill(bytes)?;
        if left >= bytes {
            return Ok(());
        }
        Err(self.take_failure().unwrap_or(CaptureFault::Truncated { what, needed: bytes as u64, left: left as u64 }))
    }

    /// Unconsumed bytes in the buffer.
    #[inline]
    pub(super) fn available(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// Consumes the first `bytes` bytes; at most those [available](Self::available).
    #[inline]
    pub(super) fn consume(&mut self, bytes: usize) {
        let bytes = bytes.min(self.end - self.start);
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// Consumes `bytes` bytes, however many. If the stream ends earlier, the offset stays at the first of them.
    pub(super) fn skip(&mut self, bytes: u64, what: &'static str) -> Result<(), CaptureFault> {
        let offset = self.offset;
        let mut left = bytes;
        while left > 0 {
            let available = self.fill(1)?;
            if available == 0 {
                self.offset = offset;
                let cut = CaptureFault::Truncated { what, needed: bytes, left: bytes - left };
                return Err(self.take_failure().unwrap_or(cut));
            }
            let step = available.min(usize::try_from(left).unwrap_or(usize::MAX));
            self.consume(step);
            left -= step as u64;
        }
        Ok(())
    }

    /// Error that ended the stream, if the end was not regular.
    pub(super) fn take_failure(&mut self) -> Option<CaptureFault> {
        let failure = self.failure.take()?;
        Some(match &self.compression {
            // An error of the system is not damage of the stream.
            Some((format, bytes)) if failure.raw_os_error().is_none() => {
                CaptureFault::Decompress { format, compressed_offset: bytes.load(Relaxed), reason: failure }
            }
            _ => CaptureFault::Read(failure),
        })
    }

    /// Offset of the first unconsumed byte.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn is_decompressed(&self) -> bool {
        self.compression.is_some()
    }

    pub(super) fn file_bytes_read(&self) -> u64 {
        self.file_bytes_read.load(Relaxed)
    }

    #[cold]
    fn refill(&mut self, bytes: usize) -> Result<(), CaptureFault> {
        if bytes > self.buffer.len() {
            return Err(CaptureFault::LengthImpossible { what: "a block", claimed: bytes as u64 });
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < bytes && !self.ended {
            let Some(room) = self.buffer.get_mut(self.end..) else { break };
            match self.reader.read(room) {
                Ok(0) => self.ended = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended = true;
                    self.failure = Some(error);
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ByteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteSource")
            .field("offset", &self.offset)
            .field("packed", &self.compression)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// Reads ahead on a thread of its own, at most [`CHUNKS_AHEAD`] chunks. If dropped, its thread ends with the read in progress.
struct ReadAhead {
    /// What the thread has read. An empty chunk is the end of the stream.
    chunks: Receiver<io::Result<Vec<u8>>>,
    empty: Sender<Vec<u8>>,
    chunk: Vec<u8>,
    /// Bytes of `chunk` that were returned.
    used: usize,
    is_at_end: bool,
}

impl ReadAhead {
    fn start(reader: impl Read + Send + 'static) -> io::Result<Self> {
        let (read, chunks) = sync_channel(CHUNKS_AHEAD);
        let (empty, to_fill) = channel();
        let body = move || read_chunks(reader, &read, &to_fill);
        thread::Builder::new().name("mdgw-read-ahead".to_owned()).spawn(body)?;
        Ok(Self { chunks, empty, chunk: Vec::new(), used: 0, is_at_end: false })
    }
}

impl Read for ReadAhead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.used == self.chunk.len() && !self.is_at_end {
            // A thread that panics leaves no end of the stream: what it has read may be a part only.
            let next = self.chunks.recv().map_err(|_| io::Error::other("the decompressing thread ended early"))??;
            self.is_at_end = next.is_empty();
            let used = mem::replace(&mut self.chunk, next);
            self.used = 0;
            // The thread may have ended.
            let _unused = self.empty.send(used);
        }
        let count = self.chunk.get(self.used..).unwrap_or_default().read(buffer)?;
        self.used += count;
        Ok(count)
    }
}

/// Main function of the thread: hands over each read as it comes, since a pipe may not have more for some time.
fn read_chunks(mut reader: impl Read, read: &SyncSender<io::Result<Vec<u8>>>, to_fill: &Receiver<Vec<u8>>) {
    loop {
        let mut chunk = to_fill.try_recv().unwrap_or_default();
        chunk.resize(CHUNK_BYTES, 0);
        let outcome = match reader.read(&mut chunk) {
            Ok(count) => {
                chunk.truncate(count);
                Ok(chunk)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let is_last = outcome.as_ref().map_or(true, Vec::is_empty);
        if read.send(outcome).is_err() || is_last {
            return;
        }
    }
}

/// Counts the bytes read, for a progress display.
struct CountingFile {
    file: File,
    bytes: Arc<AtomicU64>,
    /// The file may grow until this is set.
    follow: Option<Arc<AtomicBool>>,
}

impl Read for CountingFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.file.read(buffer)?;
            let is_waiting = self.follow.as_ref().is_some_and(|stop| !stop.load(Relaxed));
            if count > 0 || buffer.is_empty() || !is_waiting {
                self.bytes.fetch_add(count as u64, Relaxed);
                return Ok(count);
            }
            thread::sleep(FOLLOW_POLL_INTERVAL);
        }
    }
}

/// Counts the bytes that a decompressor has consumed.
struct CompressedBytes {
    file: BufReader<CountingFile>,
    bytes: Arc<AtomicU64>,
}

impl Read for CompressedBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.bytes.fetch_add(count as u64, Relaxed);
        Ok(count)
    }
}

impl BufRead for CompressedBytes {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.file.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.bytes.fetch_add(count as u64, Relaxed);
        self.file.consume(count);
    }
}

/// Size of one read of the file. A larger read would bypass the inner buffer.
const READ_BYTES: usize = 64 * 1024;
/// Size of a chunk that is read ahead.
const CHUNK_BYTES: usize = 128 * 1024;
/// Chunks read ahead.
const CHUNKS_AHEAD: usize = 4;
/// Interval at which a growing file is polled.
const FOLLOW_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Size of the buffer: it holds the largest frame with its surrounding block, and fits into the second-level cache.
const BUFFER_BYTES: usize = 2 * FRAME_BYTES_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields some bytes in each of its first reads, then what the function returns.
    struct Stream(usize, fn() -> io::Result<usize>);

    impl Read for Stream {
        fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
            self.0 = self.0.saturating_sub(1);
            if self.0 > 0 { Ok(10) } else { (self.1)() }
        }
    }

    #[test]
    fn a_stream_whose_thread_panics_is_not_taken_for_a_shorter_one() {
        let read = |end| {
            let mut bytes = Vec::new();
            ReadAhead::start(Stream(4, end)).unwrap().read_to_end(&mut bytes).map(|_| bytes.len())
        };
        assert_eq!(read(|| Ok(0)).unwrap(), 30);
        assert_eq!(read(|| Err(io::ErrorKind::InvalidData.into())).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(read(|| panic!("a defect of the decompressor")).is_err());
    }

    #[test]
    fn the_end_of_a_stream_lasts() {
        let mut read_ahead = ReadAhead::start(Stream(1, || Ok(0))).unwrap();
        assert_eq!([(); 3].map(|()| read_ahead.read(&mut [0; 5]).unwrap()), [0; 3]);
    }
}
