//! A channel's state for a gateway that joins: one slice for each message, made under the claim.
//!
//! A cold thread brings all the memory and takes it back; what it costs the channel is a bounded walk between two packets.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use mdgw_feeds::channel::{Channel, CopyBuffer, CopyStep, copy::SLICE_BYTES_MAX};

/// Goes to a channel with an order and comes back with a slice.
#[derive(Debug)]
pub struct CopyRequest {
    command: CopyCommand,
    slice: Vec<u8>,
    step: CopyStep,
    return_queue: Arc<ArrayQueue<Box<Self>>>,
}

#[derive(Debug)]
enum CopyCommand {
    /// A copy begins, with its first slice. On the way back: that memory is free again.
    Begin(CopyBuffer),
    /// The next slice.
    Next,
    /// Nobody wants it any more.
    Cancel,
}

impl CopyRequest {
    /// The first turn of a copy. It comes back into that queue, which has room for all turns of the copy.
    #[must_use]
    pub fn begin(return_queue: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        Self::with(CopyCommand::Begin(CopyBuffer::new()), return_queue)
    }

    /// A further one.
    #[must_use]
    pub fn go_on(return_queue: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        Self::with(CopyCommand::Next, return_queue)
    }

    /// The last one of a copy that nobody wants any more.
    #[must_use]
    pub fn end(return_queue: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        Self::with(CopyCommand::Cancel, return_queue)
    }

    /// One that has come back goes once more.
    #[must_use]
    pub fn again(mut self: Box<Self>) -> Box<Self> {
        self.slice.clear();
        self.command = CopyCommand::Next;
        self
    }

    /// What it came back with.
    #[must_use]
    pub fn came(&self) -> (&[u8], CopyStep) {
        (&self.slice, self.step)
    }

    fn with(command: CopyCommand, return_queue: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        let (slice, step) = (Vec::with_capacity(SLICE_BYTES_MAX), CopyStep::More);
        Box::new(Self { command, slice, step, return_queue: Arc::clone(return_queue) })
    }

    /// The channel's part. Nothing is allocated or freed.
    pub fn take(mut self: Box<Self>, channel: &mut Channel) {
        let mut free = match std::mem::replace(&mut self.command, CopyCommand::Next) {
            CopyCommand::Begin(buffer) => channel.begin_copy(buffer),
            CopyCommand::Next => None,
            CopyCommand::Cancel => channel.end_copy(),
        };
        self.step = channel.copy_slice(&mut self.slice);
        if self.step != CopyStep::More && free.is_none() {
            free = channel.end_copy();
        }
        if let Some(memory) = free {
            self.command = CopyCommand::Begin(memory);
        }
        let return_queue = Arc::clone(&self.return_queue);
        // There is room, as long as nobody makes more turns than that; the memory would be freed here else.
        let _room = return_queue.push(self);
    }
}
