//! The last seconds of a capture, in memory that is allocated once.

use std::collections::VecDeque;

/// Whole blocks with their times, the oldest first.
#[derive(Debug)]
pub(super) struct PreTriggerBuffer {
    bytes: VecDeque<u8>,
    blocks: VecDeque<(u64, usize)>,
    bytes_max: usize,
    span_ns: u64,
}

impl PreTriggerBuffer {
    /// Keeps blocks no older than `span_ns`, up to `bytes_max`.
    pub(super) fn new(span_ns: u64, bytes_max: usize) -> Self {
        // The index is large enough for the shortest packets.
        let blocks = VecDeque::with_capacity(bytes_max / BLOCK_BYTES_MIN + 1);
        Self { bytes: VecDeque::with_capacity(bytes_max), blocks, bytes_max, span_ns }
    }

    /// Adds a block; discards blocks that are too old or no longer fit. A block larger than the whole memory is
    /// discarded at once.
    pub(super) fn push(&mut self, time_ns: u64, block: &[u8]) {
        while let Some((oldest_ns, _)) = self.blocks.front()
            && (oldest_ns.saturating_add(self.span_ns) < time_ns || self.bytes.len() + block.len() > self.bytes_max)
        {
            self.drop_oldest();
        }
        if block.len() <= self.bytes_max {
            self.bytes.extend(block);
            self.blocks.push_back((time_ns, block.len()));
        }
    }

    /// Time of the oldest block.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.blocks.front().map(|(time_ns, _)| *time_ns)
    }

    /// Moves the oldest block into `block`.
    pub(super) fn take_oldest(&mut self, block: &mut Vec<u8>) -> Option<u64> {
        let (time_ns, length) = self.blocks.pop_front()?;
        block.clear();
        block.extend(self.bytes.drain(..length));
        Some(time_ns)
    }

    fn drop_oldest(&mut self) {
        if let Some((_, length)) = self.blocks.pop_front() {
            self.bytes.drain(..length);
        }
    }
}

/// Bytes of the smallest packet block: around an Ethernet frame of 60 bytes.
const BLOCK_BYTES_MIN: usize = 92;

#[cfg(test)]
mod tests {
    use super::*;

    fn times(memory: &mut PreTriggerBuffer) -> Vec<(u64, Vec<u8>)> {
        let mut block = Vec::new();
        std::iter::from_fn(|| memory.take_oldest(&mut block).map(|time_ns| (time_ns, block.clone()))).collect()
    }

    #[test]
    fn blocks_older_than_the_span_are_dropped_and_the_rest_returned_in_order() {
        let mut memory = PreTriggerBuffer::new(10, 1_000);
        for time_ns in [1, 2, 5, 12] {
            memory.push(time_ns, &[u8::try_from(time_ns).unwrap(); 3]);
        }
        assert_eq!(memory.oldest_ns(), Some(2));
        assert_eq!(times(&mut memory), [(2, vec![2; 3]), (5, vec![5; 3]), (12, vec![12; 3])]);
        assert_eq!(memory.oldest_ns(), None);
    }

    #[test]
    fn pre_trigger_memory_never_exceeds_its_limit() {
        let mut memory = PreTriggerBuffer::new(u64::MAX, 100);
        let room = memory.bytes.capacity();
        for time_ns in 0..1_000 {
            memory.push(time_ns, &[7; 30]);
            assert!(memory.bytes.len() <= 100);
        }
        memory.push(1_000, &[9; 101]);
        assert_eq!(memory.bytes.capacity(), room, "allocated once");
        assert_eq!(times(&mut memory).len(), 0, "a block larger than the memory displaces all others");
    }
}
