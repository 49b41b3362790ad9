//! A channel's state for a joining gateway: one slice for each message, made under the claim.
//!
//! A cold thread allocates and frees all memory. The channel's cost is a bounded walk between two packets.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use mdgw_feeds::channel::{Channel, CopyBuffer, CopyStep, copy::SLICE_BYTES_MAX};

/// A message that goes to a channel with a command and comes back with a slice.
#[derive(Debug)]
pub struct CopyRequest {
    command: CopyCommand,
    slice: Vec<u8>,
    step: CopyStep,
    return_queue: Arc<ArrayQueue<Box<Self>>>,
}

#[derive(Debug)]
enum CopyCommand {
    /// Begins a copy and makes its first slice. On the way back this command carries memory that the cold thread frees.
    Begin(CopyBuffer),
    /// Makes the next slice.
    Next,
    /// Cancels the copy.
    Cancel,
}

impl CopyRequest {
    /// The first request of a copy. It returns to `return_queue`, which has room for all requests of the copy.
    #[must_use]
    pub fn begin(return_queue: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        Self::with(CopyCommand::Begin(CopyBuffer::new()), return_queue)
    }

    /// A further request of the copy.
    #[must_use]
    pub fn next_slice(return_queue: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        Self::with(CopyCommand::Next, return_queue)
    }

    /// Cancels a copy: its last request.
    #[must_use]
    pub fn cancel(return_queue: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        Self::with(CopyCommand::Cancel, return_queue)
    }

    /// Reuses a returned request for the next slice.
    #[must_use]
    pub fn reuse(mut self: Box<Self>) -> Box<Self> {
        self.slice.clear();
        self.command = CopyCommand::Next;
        self
    }

    /// The slice, and the state of the copy after it.
    #[must_use]
    pub fn result(&self) -> (&[u8], CopyStep) {
        (&self.slice, self.step)
    }

    fn with(command: CopyCommand, return_queue: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        let (slice, step) = (Vec::with_capacity(SLICE_BYTES_MAX), CopyStep::More);
        Box::new(Self { command, slice, step, return_queue: Arc::clone(return_queue) })
    }

    /// Runs the command on the channel. Nothing is allocated or freed.
    pub fn run(mut self: Box<Self>, channel: &mut Channel) {
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
        // `return_queue` has room for all requests of the copy. A request that did not fit would be freed here.
        let _room = return_queue.push(self);
    }
}
