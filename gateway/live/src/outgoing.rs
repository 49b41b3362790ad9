//! Bytes for one client that its socket has not taken yet, compressed where the client asked for that.

use std::{
    io::{self, Write as _},
    sync::Arc,
};

use zstd::stream::write::Encoder;

use crate::{control, protocol::Compression, stream::chunk::Chunk};

/// Waiting bytes of the binary part.
pub(crate) struct Outgoing {
    /// Records of the batch in progress, uncompressed.
    batch: Vec<u8>,
    /// Whether each record carries its send time.
    ts_out: bool,
    encoder: Option<Encoder<'static, Vec<u8>>>,
    ready: Vec<u8>,
    /// A chunk that goes out as it is. Then nothing else is ready, and the batch follows it.
    chunk: Option<Arc<Chunk>>,
    /// Bytes of what is ready, or of the chunk.
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
        Ok(Self { batch: Vec::new(), ts_out, encoder, ready: Vec::new(), chunk: None, sent: 0 })
    }

    /// Appends bytes that are no record: the metadata.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.batch.extend_from_slice(bytes);
    }

    /// Appends a record; `now_ns` is its send time.
    pub(crate) fn push(&mut self, record: &[u8], now_ns: u64) {
        control::append_record(&mut self.batch, record, self.ts_out.then_some(now_ns));
    }

    /// Appends the records of a chunk as they are. Returns whether that was possible: not with send times.
    pub(crate) fn push_whole(&mut self, chunk: &Arc<Chunk>) -> bool {
        if self.ts_out {
            return false;
        }
        let is_first = self.batch.is_empty() && self.ready.is_empty() && self.chunk.is_none();
        if is_first && self.encoder.is_none() && chunk.is_full() {
            self.chunk = Some(Arc::clone(chunk));
        } else {
            self.push_bytes(chunk.bytes());
        }
        true
    }

    /// Bytes of the batch, with a chunk in front of it.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.batch.len() + self.chunk.as_ref().map_or(0, |chunk| chunk.bytes().len())
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
        if let Some(chunk) = self.chunk.take() {
            // A session that ends has a last record to send.
            self.ready.extend_from_slice(chunk.bytes().get(self.sent..).unwrap_or_default());
            self.sent = 0;
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
        let bytes = self.chunk.as_ref().map_or(self.ready.as_slice(), |chunk| chunk.bytes());
        bytes.get(self.sent..).unwrap_or_default()
    }

    /// The socket took that many bytes.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.unsent().is_empty() {
            self.sent = 0;
            self.ready.clear();
            self.chunk = None;
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

    fn full_chunk() -> Arc<Chunk> {
        let mut chunk = Chunk::with_room();
        while !chunk.is_full() {
            chunk.push(control::heartbeat(chunk.bytes().len() as u64).as_ref(), crate::schema::Schemas::MBO);
        }
        Arc::new(chunk)
    }

    #[test]
    fn a_full_chunk_is_sent_from_where_it_is_and_what_follows_comes_behind_it() {
        let chunk = full_chunk();
        let mut outgoing = Outgoing::new(Compression::None, false).unwrap();
        assert!(outgoing.push_whole(&chunk));
        assert_eq!(outgoing.batch_bytes(), chunk.bytes().len());
        outgoing.flush().unwrap();
        assert_eq!(outgoing.unsent().as_ptr(), chunk.bytes().as_ptr());
        outgoing.advance(1_000);
        assert_eq!(outgoing.unsent(), &chunk.bytes()[1_000..]);
        outgoing.push_bytes(&[7; 3]);
        outgoing.finish().unwrap();
        assert_eq!(outgoing.unsent(), [&chunk.bytes()[1_000..], &[7; 3]].concat());
        outgoing.advance(outgoing.unsent().len());
        assert!(outgoing.unsent().is_empty());
        assert_eq!(Arc::strong_count(&chunk), 1, "it is released once it is sent");
        // Not in front of what was pushed before.
        outgoing.push_bytes(&[7; 3]);
        assert!(outgoing.push_whole(&chunk) && outgoing.push_whole(&chunk));
        outgoing.flush().unwrap();
        assert_eq!(outgoing.unsent(), [&[7; 3], chunk.bytes(), chunk.bytes()].concat());
    }

    #[test]
    fn a_chunk_whose_records_are_changed_on_their_way_is_copied() {
        let chunk = full_chunk();
        assert!(!Outgoing::new(Compression::None, true).unwrap().push_whole(&chunk), "each gets its send time");
        let mut outgoing = Outgoing::new(Compression::Zstd, false).unwrap();
        assert!(outgoing.push_whole(&chunk));
        outgoing.finish().unwrap();
        assert_eq!(zstd::decode_all(outgoing.unsent()).unwrap(), chunk.bytes());
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
