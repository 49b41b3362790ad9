//! Counts the records of a DBN stream that arrives in pieces.

use anyhow::{Result, bail};

/// The length of a record is its first byte, in units of four bytes, so no more of it has to be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordCounter {
    pub(super) records: u64,
    pub(super) bytes: u64,
    /// Bytes of the record in progress that are still to come.
    rest: usize,
}

/// Metadata at the beginning of a live session.
pub(super) const METADATA_BYTES: usize = 128;

impl RecordCounter {
    /// Of a stream that begins with the metadata.
    pub(super) fn behind_metadata() -> Self {
        Self { rest: METADATA_BYTES, ..Self::default() }
    }

    /// The next bytes of the stream.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        let mut at = self.rest;
        while let Some(words) = bytes.get(at) {
            if *words == 0 {
                bail!("a record without length");
            }
            self.records += 1;
            at += usize::from(*words) * 4;
        }
        self.rest = at - bytes.len();
        Ok(())
    }

    /// Whether the stream ends with a whole record.
    pub(super) fn is_whole(&self) -> bool {
        self.rest == 0
    }
}

/// The whole records at the beginning of `bytes`, each with its offset.
pub(super) fn records(bytes: &[u8], mut at: usize) -> impl Iterator<Item = (usize, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(*bytes.get(at)?) * 4;
        let record = bytes.get(at..at + length).filter(|record| !record.is_empty())?;
        let begin = at;
        at += length;
        Some((begin, record))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Vec<u8> {
        let mut bytes = vec![0; METADATA_BYTES];
        for words in [14_u8, 44, 80, 14] {
            let mut record = vec![0; usize::from(words) * 4];
            record[0] = words;
            bytes.extend(record);
        }
        bytes
    }

    #[test]
    fn records_are_counted_wherever_the_stream_is_cut() {
        let stream = stream();
        for piece_bytes in [1, 7, 56, 200, stream.len()] {
            let mut counter = RecordCounter::behind_metadata();
            for piece in stream.chunks(piece_bytes) {
                counter.add(piece).unwrap();
            }
            assert_eq!((counter.records, counter.bytes), (4, stream.len() as u64), "{piece_bytes}");
            assert!(counter.is_whole(), "{piece_bytes}");
        }
        let mut counter = RecordCounter::behind_metadata();
        counter.add(&stream[..stream.len() - 1]).unwrap();
        assert!(!counter.is_whole());
    }

    #[test]
    fn a_record_without_length_is_an_error_and_no_endless_loop() {
        assert!(RecordCounter::default().add(&[0; 8]).is_err());
        assert_eq!(records(&[0; 8], 0).count(), 0);
    }

    #[test]
    fn a_record_that_is_cut_is_not_among_the_whole_ones() {
        let stream = stream();
        let of = |bytes| records(bytes, METADATA_BYTES).map(|(at, record)| (at, record.len())).collect::<Vec<_>>();
        assert_eq!(of(&stream), [(128, 56), (184, 176), (360, 320), (680, 56)]);
        assert_eq!(of(&stream[..700]).len(), 3);
    }
}
