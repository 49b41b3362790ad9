//! A channel's state for a gateway that joins: one slice for each message, made under the claim.
//!
//! A cold thread brings all the memory and takes it back; what it costs the channel is a bounded walk between two packets.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use mdgw_feeds::channel::{Channel, CopyBuffer, CopyStep, copy::SLICE_BYTES_MAX};

/// Goes to a channel with an order and comes back with a slice.
#[derive(Debug)]
pub struct CopyTurn {
    act: Act,
    slice: Vec<u8>,
    step: CopyStep,
    back: Arc<ArrayQueue<Box<Self>>>,
}

#[derive(Debug)]
enum Act {
    /// A copy begins, with its first slice. On the way back: that memory is free again.
    Begin(CopyBuffer),
    /// The next slice.
    GoOn,
    /// Nobody wants it any more.
    End,
}

impl CopyTurn {
    /// The first turn of a copy. It comes back into that queue, which has room for all turns of the copy.
    #[must_use]
    pub fn begin(back: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        Self::with(Act::Begin(CopyBuffer::new()), back)
    }

    /// A further one.
    #[must_use]
    pub fn go_on(back: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        Self::with(Act::GoOn, back)
    }

    /// The last one of a copy that nobody wants any more.
    #[must_use]
    pub fn end(back: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        Self::with(Act::End, back)
    }

    /// One that has come back goes once more.
    #[must_use]
    pub fn again(mut self: Box<Self>) -> Box<Self> {
        self.slice.clear();
        self.act = Act::GoOn;
        self
    }

    /// What it came back with.
    #[must_use]
    pub fn came(&self) -> (&[u8], CopyStep) {
        (&self.slice, self.step)
    }

    fn with(act: Act, back: &Arc<ArrayQueue<Box<Self>>>) -> Box<Self> {
        let (slice, step) = (Vec::with_capacity(SLICE_BYTES_MAX), CopyStep::More);
        Box::new(Self { act, slice, step, back: Arc::clone(back) })
    }

    /// The channel's part. Nothing is allocated or freed.
    pub fn take(mut self: Box<Self>, channel: &mut Channel) {
        let mut free = match std::mem::replace(&mut self.act, Act::GoOn) {
            Act::Begin(buffer) => channel.begin_copy(buffer),
            Act::GoOn => None,
            Act::End => channel.end_copy(),
        };
        self.step = channel.copy_slice(&mut self.slice);
        if self.step != CopyStep::More && free.is_none() {
            free = channel.end_copy();
        }
        if let Some(memory) = free {
            self.act = Act::Begin(memory);
        }
        let back = Arc::clone(&self.back);
        // There is room, as long as nobody makes more turns than that; the memory would be freed here else.
        let _room = back.push(self);
    }
}
