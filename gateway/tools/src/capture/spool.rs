//! The writer thread: disk writes and compression run here, so that receiving waits for neither.
//!
//! Chunks circulate: the recorder fills them, this thread writes them and returns them. The chunk returned last is
//! filled next, while it is still in the processor's cache. More than two chunks are in use only if writing falls
//! behind, and never more than a fixed number.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::JoinHandle,
    time::Instant,
};

use mdgw_captures::{capture_file::pcapng_blocks::whole_blocks_bytes, output_file::FailedAtByte};

use super::RecordError;

/// Writing a file of the capture failed. Everything written before is in it.
#[derive(Debug, thiserror::Error)]
#[error("{act} {path}{at}")]
pub struct SpoolError {
    /// Operation that failed.
    pub act: &'static str,
    /// Path of the file.
    pub path: String,
    /// Length of the file at the failure, if it was being written.
    pub at: FailedAtByte,
    /// Error of the system.
    #[source]
    pub source: io::Error,
}

/// The recorder's side.
#[derive(Debug)]
pub(super) struct Spool {
    commands: Option<SyncSender<WriterCommand>>,
    returned: Receiver<Vec<u8>>,
    /// Returned chunks, the latest last.
    free_chunks: Vec<Vec<u8>>,
    /// Number of chunks allocated.
    chunks_allocated: usize,
    thread: Option<JoinHandle<Result<WrittenFiles, SpoolError>>>,
    /// Time that the recorder waited for chunks, ns.
    disk_wait_ns: u64,
}

/// Result of the writer thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WrittenFiles {
    /// Existing files, the oldest first.
    pub(super) files: Vec<PathBuf>,
    /// Files deleted to keep the limit.
    pub(super) removed: u64,
    /// Bytes written, as on disk.
    pub(super) bytes: u64,
}

#[derive(Debug)]
enum WriterCommand {
    /// Begins a file. The optional sender is notified when the file exists.
    Begin(PathBuf, Option<SyncSender<()>>),
    /// Whole blocks for the file.
    Write(Vec<u8>),
    /// Ends the file.
    End,
}

impl Spool {
    /// Starts the thread. It keeps the last `files_max` files.
    pub(super) fn start(files_max: Option<usize>) -> io::Result<Self> {
        let (return_chunk, returned) = sync_channel(CHUNKS);
        let (commands, received_commands) = sync_channel(CHUNKS);
        let writer = Writer { files_max, return_chunk, current: None, finished: VecDeque::new(), removed: 0, bytes: 0 };
        let thread =
            std::thread::Builder::new().name("mdgw-spool".to_owned()).spawn(move || writer.run(&received_commands))?;
        Ok(Self {
            commands: Some(commands),
            returned,
            free_chunks: Vec::with_capacity(CHUNKS),
            chunks_allocated: 0,
            thread: Some(thread),
            disk_wait_ns: 0,
        })
    }

    /// Returns an empty chunk. Waits while all chunks are being written.
    pub(super) fn chunk(&mut self) -> Result<Vec<u8>, RecordError> {
        self.free_chunks.extend(self.returned.try_iter());
        if let Some(chunk) = self.free_chunks.pop() {
            return Ok(chunk);
        }
        if self.chunks_allocated < CHUNKS {
            self.chunks_allocated += 1;
            return Ok(Vec::with_capacity(CHUNK_BYTES));
        }
        let since = Instant::now();
        let chunk = self.returned.recv();
        self.disk_wait_ns += u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        chunk.map_err(|_| self.failure())
    }

    pub(super) fn begin(&mut self, path: PathBuf) -> Result<(), RecordError> {
        self.send(WriterCommand::Begin(path, None))
    }

    /// Begins a file and waits until it exists.
    pub(super) fn begin_and_wait(&mut self, path: PathBuf) -> Result<(), RecordError> {
        let (ready_sender, ready_receiver) = sync_channel(1);
        self.send(WriterCommand::Begin(path, Some(ready_sender)))?;
        ready_receiver.recv().map_err(|_| self.failure())
    }

    pub(super) fn write(&mut self, chunk: Vec<u8>) -> Result<(), RecordError> {
        self.send(WriterCommand::Write(chunk))
    }

    pub(super) fn end(&mut self) -> Result<(), RecordError> {
        self.send(WriterCommand::End)
    }

    /// Reports a failure without waiting for the next chunk.
    pub(super) fn check(&mut self) -> Result<(), RecordError> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) { Err(self.failure()) } else { Ok(()) }
    }

    /// Time that the recorder waited for chunks, ns.
    pub(super) fn disk_wait_ns(&self) -> u64 {
        self.disk_wait_ns
    }

    /// Waits until everything is written.
    pub(super) fn finish(mut self) -> Result<WrittenFiles, RecordError> {
        self.commands = None;
        Ok(self.join()?)
    }

    fn send(&mut self, command: WriterCommand) -> Result<(), RecordError> {
        match self.commands.as_ref().map(|commands| commands.send(command)) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Error that ended the thread.
    fn failure(&mut self) -> RecordError {
        match self.join() {
            Err(error) => error.into(),
            Ok(_) => RecordError::Thread(io::Error::other("the writer thread has ended")),
        }
    }

    fn join(&mut self) -> Result<WrittenFiles, SpoolError> {
        let ended = self.thread.take().map(JoinHandle::join);
        let panicked = || SpoolError {
            act: "write",
            path: "the capture".to_owned(),
            at: FailedAtByte::default(),
            source: io::Error::other("the writer thread panicked"),
        };
        ended.and_then(Result::ok).unwrap_or_else(|| Err(panicked()))
    }
}

/// Bytes of a chunk: large writes, and little loss if one is truncated.
pub(super) const CHUNK_BYTES: usize = 512 << 10;
/// At most 32 MiB in flight to the disk: a third of a second at 100 MB/s.
const CHUNKS: usize = 64;

/// The writer thread's side.
struct Writer {
    files_max: Option<usize>,
    return_chunk: SyncSender<Vec<u8>>,
    current: Option<OpenFile>,
    finished: VecDeque<PathBuf>,
    removed: u64,
    bytes: u64,
}

struct OpenFile {
    path: PathBuf,
    sink: Sink,
    /// Bytes handed over: the count for a pipe, which has no length.
    handed_over: u64,
}

enum Sink {
    Plain(File),
    Zstd(zstd::Encoder<'static, File>),
    StandardOutput,
}

impl Writer {
    fn run(mut self, commands: &Receiver<WriterCommand>) -> Result<WrittenFiles, SpoolError> {
        for order in commands {
            match order {
                WriterCommand::Begin(path, waiting) => {
                    self.begin(path)?;
                    // A channel with room for one message: sending never blocks.
                    waiting.map(|waiting| waiting.send(()));
                }
                WriterCommand::Write(mut chunk) => {
                    if let Some(file) = &mut self.current {
                        file.write(&chunk)?;
                    }
                    chunk.clear();
                    // The recorder may have ended already, and its chunks with it.
                    let _ = self.return_chunk.send(chunk);
                }
                WriterCommand::End => self.end()?,
            }
        }
        self.end()?;
        Ok(WrittenFiles { files: self.finished.into(), removed: self.removed, bytes: self.bytes })
    }

    fn begin(&mut self, path: PathBuf) -> Result<(), SpoolError> {
        self.end()?;
        while self.files_max.is_some_and(|files_max| self.finished.len() >= files_max.max(1)) {
            let Some(oldest) = self.finished.pop_front() else { break };
            match fs::remove_file(&oldest) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(SpoolError {
                        act: "remove",
                        path: oldest.display().to_string(),
                        at: FailedAtByte::default(),
                        source,
                    });
                }
                // A file that somebody else deleted meanwhile is no error.
                _ => self.removed += 1,
            }
        }
        self.current = Some(OpenFile::create(path)?);
        Ok(())
    }

    fn end(&mut self) -> Result<(), SpoolError> {
        let Some(file) = self.current.take() else { return Ok(()) };
        let path = file.path.clone();
        self.bytes += file.finish()?;
        self.finished.push_back(path);
        Ok(())
    }
}

impl OpenFile {
    /// Creates a file. An existing file is never overwritten, but a device or a pipe is written in place.
    fn create(path: PathBuf) -> Result<Self, SpoolError> {
        if super::is_standard_output(&path) {
            return Ok(Self { path, sink: Sink::StandardOutput, handed_over: 0 });
        }
        let is_compressed = path.extension().is_some_and(|end| end == "zst");
        let opened = match File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_stream(&path) => {
                File::options().write(true).open(&path)
            }
            other => other,
        };
        let sink = opened.and_then(|file| {
            Ok(if is_compressed { Sink::Zstd(zstd::Encoder::new(file, ZSTD_LEVEL)?) } else { Sink::Plain(file) })
        });
        let shown = path.display().to_string();
        sink.map(|sink| Self { path, sink, handed_over: 0 }).map_err(|source| SpoolError {
            act: "create",
            path: shown,
            at: FailedAtByte::default(),
            source,
        })
    }

    /// Writes whole blocks through to the system. On failure the file ends with the last whole block that fitted; a
    /// compressed file ends with the blocks before.
    fn write(&mut self, blocks: &[u8]) -> Result<(), SpoolError> {
        let before = self.position();
        let written = match &mut self.sink {
            Sink::Plain(file) => file.write_all(blocks),
            Sink::Zstd(encoder) => encoder.write_all(blocks).and_then(|()| encoder.flush()),
            Sink::StandardOutput => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(blocks).and_then(|()| stdout.flush())
            }
        };
        self.handed_over += blocks.len() as u64;
        written.map_err(|source| {
            let file = match &self.sink {
                Sink::Plain(file) => Some(file),
                Sink::Zstd(encoder) => Some(encoder.get_ref()),
                Sink::StandardOutput => None,
            };
            // Readers tolerate a partial block, but a whole one is better.
            if let Some((file, before)) = file.zip(before) {
                let _ = file.set_len(before + self.whole_blocks_after(before, blocks));
            }
            failed(&self.path, source)
        })
    }

    /// Length of the whole blocks within the bytes after `before`.
    fn whole_blocks_after(&self, before: u64, blocks: &[u8]) -> u64 {
        if !matches!(self.sink, Sink::Plain(_)) {
            return 0;
        }
        let fitted = usize::try_from(self.position().unwrap_or(before).saturating_sub(before)).unwrap_or_default();
        whole_blocks_bytes(blocks.get(..fitted).unwrap_or(blocks)) as u64
    }

    /// Bytes so far; `None` if the output is not a regular file.
    fn position(&self) -> Option<u64> {
        let file = match &self.sink {
            Sink::Plain(file) => file,
            Sink::Zstd(encoder) => encoder.get_ref(),
            Sink::StandardOutput => return None,
        };
        file.metadata().ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len())
    }

    /// Ends the file; returns its bytes.
    fn finish(mut self) -> Result<u64, SpoolError> {
        if let Sink::Zstd(encoder) = self.sink {
            let ended = encoder.finish().map_err(|source| failed(&self.path, source));
            self.sink = Sink::Plain(ended?);
        }
        Ok(self.position().unwrap_or(self.handed_over))
    }
}

fn failed(path: &Path, source: io::Error) -> SpoolError {
    SpoolError { act: "write", path: path.display().to_string(), at: FailedAtByte::of(path), source }
}

fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_char_device() || metadata.file_type().is_fifo())
}

/// The library's default level: half a gigabyte per second on one core.
const ZSTD_LEVEL: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::start(Some(2)).unwrap();
        for name in ["a", "b", "c", "d"] {
            spool.begin(folder.path().join(name)).unwrap();
            let mut chunk = spool.chunk().unwrap();
            chunk.extend_from_slice(name.as_bytes());
            spool.write(chunk).unwrap();
        }
        let written = spool.finish().unwrap();
        assert_eq!(written.files, ["c", "d"].map(|name| folder.path().join(name)));
        assert_eq!((written.removed, written.bytes), (2, 4));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert_eq!(fs::read(folder.path().join("d")).unwrap(), b"d");
    }

    #[test]
    fn bytes_written_to_a_pipe_are_counted() {
        let mut stream = OpenFile::create("/dev/null".into()).unwrap();
        stream.write(b"some").unwrap();
        stream.write(b"bytes").unwrap();
        assert_eq!(stream.finish().unwrap(), 9);
    }

    #[test]
    fn chunks_are_reused_and_zst_files_are_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcapng.zst");
        let mut spool = Spool::start(None).unwrap();
        spool.begin(path.clone()).unwrap();
        for number in 0..u32::try_from(3 * CHUNKS).unwrap() {
            let mut chunk = spool.chunk().unwrap();
            assert!(chunk.is_empty() && chunk.capacity() >= CHUNK_BYTES);
            chunk.extend_from_slice(&number.to_le_bytes());
            spool.write(chunk).unwrap();
        }
        spool.finish().unwrap();
        let content = zstd::decode_all(File::open(&path).unwrap()).unwrap();
        let numbers: Vec<u8> = (0..u32::try_from(3 * CHUNKS).unwrap()).flat_map(u32::to_le_bytes).collect();
        assert_eq!(content, numbers);
    }

    #[test]
    fn existing_files_are_not_overwritten_and_a_full_disk_error_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("there");
        fs::write(&path, "before").unwrap();
        let mut spool = Spool::start(None).unwrap();
        let error = spool.begin_and_wait(path.clone()).unwrap_err();
        assert!(
            error_chain(&error).contains(&format!("create {}: File exists", path.display())),
            "{}",
            error_chain(&error)
        );
        assert_eq!(fs::read(&path).unwrap(), b"before");

        let mut spool = Spool::start(None).unwrap();
        spool.begin("/dev/full".into()).unwrap();
        let mut chunk = spool.chunk().unwrap();
        chunk.push(1);
        spool.write(chunk).unwrap();
        let error = spool.finish().unwrap_err();
        assert!(error_chain(&error).contains("write /dev/full: No space left"), "{}", error_chain(&error));
    }

    #[test]
    fn a_write_after_a_failure_returns_the_failure() {
        let mut spool = Spool::start(None).unwrap();
        spool.begin("/nonexistent/folder/file".into()).unwrap();
        // Commands queued before the thread notices the failure are lost; this must take no more commands than there
        // are chunks.
        let error = (0..=2 * CHUNKS).find_map(|_| spool.chunk().and_then(|chunk| spool.write(chunk)).err());
        assert!(error_chain(&error.unwrap()).contains("create /nonexistent/folder/file: No such file"));
    }

    fn error_chain(error: &dyn std::error::Error) -> String {
        error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", error_chain(source)))
    }
}
