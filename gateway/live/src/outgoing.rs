//! Bytes for one client that its socket has not taken yet, compressed where the client asked for that.

use std::io::{self, Write as _};

use zstd::stream::write::Encoder;

use crate::{control, protocol::Compression};

/// Waiting bytes of the binary part.
pub(crate) struct Outgoing {
    /// Records of the batch in progress, uncompressed.
    batch: Vec<u8>,
    /// Whether each record carries its send time.
    ts_out: bool,
    encoder: Option<Encoder<'static, Vec<u8>>>,
    ready: Vec<u8>,
    sent: usize,
}

/// Speed matters more than size: the lowest level.
const ZSTD_LEVEL: i32 = 1;
/// Buffers above this are released once the session has nothing to send.
const IDLE_BYTES_MAX: usize = 4 << 10;

impl Outgoing {
    /// Nothing waits.
    ///
    /// # Errors
    /// When the compressor cannot be made.
    pub(crate) fn new(compression: Compression, ts_out: bool) -> io::Result<Self> {
        let encoder = match compression {
            Compression::None => None,
            Compression::Zstd => Some(Encoder::new(Vec::new(), ZSTD_LEVEL)?),
        };
        Ok(Self { batch: Vec::new(), ts_out, encoder, ready: Vec::new(), sent: 0 })
    }

    /// Appends bytes that are no record: the metadata.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.batch.extend_from_slice(bytes);
    }

    /// Appends a record; `now_ns` is its send time.
    pub(crate) fn push(&mut self, record: &[u8], now_ns: u64) {
        control::append_record(&mut self.batch, record, self.ts_out.then_some(now_ns));
    }

    /// Appends records as they are. Returns whether that was possible: not with send times.
    pub(crate) fn push_whole(&mut self, records: &[u8]) -> bool {
        if !self.ts_out {
            self.push_bytes(records);
        }
        !self.ts_out
    }

    /// Bytes of the batch.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.batch.len()
    }

    /// Closes the batch: its bytes can be sent.
    ///
    /// # Errors
    /// When the compressor fails.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            self.release_idle();
            return Ok(());
        }
        match &mut self.encoder {
            // Both buffers stay with a busy session: no batch is copied, or written into memory that is new each time.
            None if self.ready.is_empty() => std::mem::swap(&mut self.ready, &mut self.batch),
            None => self.ready.append(&mut self.batch),
            Some(encoder) => {
                encoder.write_all(&self.batch)?;
                encoder.flush()?;
                self.ready.append(encoder.get_mut());
                self.batch.clear();
            }
        }
        Ok(())
    }

    /// Ends the stream: with compression, its frame.
    ///
    /// # Errors
    /// When the compressor fails.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.flush()?;
        if let Some(encoder) = self.encoder.take() {
            self.ready.append(&mut encoder.finish()?);
        }
        Ok(())
    }

    /// What the socket should take.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.ready.get(self.sent..).unwrap_or_default()
    }

    /// The socket took that many bytes.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent >= self.ready.len() {
            self.sent = 0;
            self.ready.clear();
        }
    }

    fn release_idle(&mut self) {
        for buffer in [&mut self.ready, &mut self.batch] {
            if buffer.is_empty() && buffer.capacity() > IDLE_BYTES_MAX {
                *buffer = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// A session is mostly idle, and there are thousands.
    #[test]
    fn buffers_stay_while_a_session_is_busy_and_go_when_it_is_idle() {
        let mut outgoing = Outgoing::new(Compression::None, false).unwrap();
        for _ in 0..3 {
            outgoing.push_bytes(&[7; 100_000]);
            outgoing.flush().unwrap();
            assert_eq!(outgoing.unsent(), [7; 100_000]);
            outgoing.advance(99_999);
            outgoing.push_bytes(&[8; 10]);
            outgoing.flush().unwrap();
            assert_eq!(outgoing.unsent(), [7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]);
            outgoing.advance(11);
            assert!(outgoing.ready.capacity() >= 100_000, "the next batch finds its memory");
        }
        outgoing.flush().unwrap();
        assert!(outgoing.ready.capacity().max(outgoing.batch.capacity()) <= IDLE_BYTES_MAX);
    }

    #[test]
    fn a_compressed_stream_can_be_read_up_to_each_batch() {
        let mut outgoing = Outgoing::new(Compression::Zstd, false).unwrap();
        let mut received = Vec::new();
        for number in 0..3 {
            outgoing.push(control::heartbeat(number).as_ref(), 0);
            outgoing.flush().unwrap();
            received.extend_from_slice(outgoing.unsent());
            outgoing.advance(outgoing.unsent().len());
            let mut decoded = Vec::new();
            let mut decoder = zstd::stream::read::Decoder::new(received.as_slice()).unwrap();
            // The frame is open, so its end is missing.
            let _ = decoder.read_to_end(&mut decoded);
            assert_eq!(decoded.len() as u64, (number + 1) * 320);
        }
        outgoing.finish().unwrap();
        received.extend_from_slice(outgoing.unsent());
        assert_eq!(zstd::decode_all(received.as_slice()).unwrap().len(), 960);
    }
}
