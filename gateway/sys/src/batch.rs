//! Receive and send buffers: fixed, reused, filled or emptied by one system call or submission for many packets.
//!
//! A [`ReceiveBatch`] belongs to one thread and is filled by the thread's part of a handle set. A [`SendBatch`] is
//! built for each send in a thread's [`SendBuffers`]: it copies each packet's header and borrows its body, which for
//! published packets lies in the mapped publication log.
//!
//! Both hold the headers that the kernel reads and writes (`mmsghdr`, `iovec`, addresses, control data), linked once at
//! construction. After construction no code here allocates.

mod control;
pub mod pinned_array;
pub mod provided;
mod receive;
mod round_robin;
mod send;

pub use receive::{ReceiveBatch, ReceivedDatagram, StampKind};
pub use round_robin::{is_past_send_error, receive_round_robin};
pub use send::{
    BatchFull, HEADER_BYTES, Output, OutputIndex, Outputs, PACKETS_MAX, SendBatch, SendBuffers, TRAILER_BYTES,
};
