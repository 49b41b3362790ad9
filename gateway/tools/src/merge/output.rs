//! The output capture, written in order: the part written before a failure stays.

use std::{
    fs::File,
    io::{self, BufWriter},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use mdgw_captures::{
    capture_file::{PcapWriter, truncate_to_whole_packets},
    output_file::{FailedAtByte, OutputFile},
};

use super::{MergeError, PacketAddresses, PacketSink};

/// A capture that is being written.
#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    writer: Option<PcapWriter<BufWriter<OutputFile>>>,
    written: WrittenCounts,
    failure: Option<io::Error>,
}

/// Counts of the output.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WrittenCounts {
    pub(super) packets: u64,
    pub(super) payload_bytes: u64,
}

impl Output {
    pub(super) fn create(path: &Path) -> Result<Self, MergeError> {
        let mut output = Self { path: path.to_owned(), writer: None, written: WrittenCounts::default(), failure: None };
        let started =
            OutputFile::create(path).and_then(|file| PcapWriter::new(BufWriter::with_capacity(BUFFER_BYTES, file)));
        match started {
            Ok(writer) => output.writer = Some(writer),
            Err(error) => return Err(output.error(error)),
        }
        Ok(output)
    }

    /// Whether all writes succeeded so far.
    #[inline]
    pub(super) fn check(&mut self) -> Result<(), MergeError> {
        match self.failure.take() {
            None => Ok(()),
            Some(failure) => Err(self.truncate_and_fail(failure)),
        }
    }

    /// Writes the buffered bytes.
    pub(super) fn finish(&mut self) -> Result<WrittenCounts, MergeError> {
        self.check()?;
        let Some(writer) = self.writer.take() else { return Ok(self.written) };
        let ended = writer
            .finish()
            .and_then(|buffered| buffered.into_inner().map_err(io::IntoInnerError::into_error))
            .and_then(OutputFile::finish);
        ended.map_err(|error| self.truncate_and_fail(error))?;
        Ok(self.written)
    }

    /// After a failure, truncates the file after its last whole packet. Readers tolerate a partial packet, but a whole
    /// one is better.
    fn truncate_and_fail(&self, source: io::Error) -> MergeError {
        if self.path.is_file() && self.path.extension().is_none_or(|end| end != "zst") {
            let file = File::options().read(true).write(true).open(&self.path);
            // The earlier failure is reported.
            let _ = file.and_then(|file| truncate_to_whole_packets(&file));
        }
        self.error(source)
    }

    fn error(&self, source: io::Error) -> MergeError {
        MergeError::Output { path: self.path.clone(), at: FailedAtByte::of(&self.path), source }
    }
}

impl PacketSink for Output {
    /// [`Self::check`] reports errors.
    #[inline]
    fn datagram(&mut self, time_ns: u64, addresses: &PacketAddresses, payload: &[u8]) {
        let Some(writer) = &mut self.writer else { return };
        let outcome = match (addresses.src, addresses.dst) {
            (SocketAddr::V4(src), SocketAddr::V4(dst)) => writer.datagram(time_ns, src, dst, payload),
            (SocketAddr::V6(src), SocketAddr::V6(dst)) => writer.datagram_v6(time_ns, src, dst, payload),
            // A datagram's addresses always belong to one family.
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        match outcome {
            Ok(()) => {
                self.written.packets += 1;
                self.written.payload_bytes += payload.len() as u64;
            }
            Err(error) => {
                self.failure = Some(error);
                self.writer = None;
            }
        }
    }
}

/// Some thousand packets: few system calls, and it fits into the second-level cache.
const BUFFER_BYTES: usize = 512 * 1024;
