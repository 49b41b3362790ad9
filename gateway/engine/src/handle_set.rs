//! Handle set: the events that the leading thread waits for, behind one trait.
//!
//! The shared part ([`HandleSet`]) holds the readiness of many sockets, one timer and one wake-up. No thread owns it,
//! so the lead can move freely between threads. The thread's part ([`ThreadIo`]) waits on the set, receives and sends.
//! An io_uring request belongs to the thread that armed it, so rings live in the thread's part only.
//!
//! An event is either *a channel's line that is ready* (the channel's holder then receives) or *datagrams of a channel
//! that have been delivered*. Delivered datagrams lie in memory that the backend provides and takes back: io_uring's
//! provided buffers. The traits assume neither one socket per datagram nor that the caller owns the buffers.

pub mod backend_choice;
#[cfg(test)]
mod backend_tests;
pub mod epoll;
pub mod ring;

use std::{
    io,
    os::fd::{BorrowedFd, RawFd},
};

use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    batch::{ReceiveBatch, SendBatch},
    handle::{Handle, LineSet},
};

/// Maximum number of events of one wait, and so of one turn. A thread that claims more in one turn no longer shares its
/// work with the others.
pub const EVENTS_MAX: usize = 256;

/// An event returned by a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The socket of this handle is readable. Edge-triggered: read until a read is short.
    Ready(Handle),
    /// Datagrams of this handle lie in the thread's own batch (see [`ThreadIo::take_provided`]).
    Provided(Handle),
    /// The set's timer expired.
    Timer,
    /// A thread called [`HandleSet::wake`]: messages or handles changed, or the pool shuts down.
    Wake,
}

/// How the leading thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Check once and return.
    Poll,
    /// Block until an event.
    Block,
}

/// The shared part. One per pool.
pub trait HandleSet: Send + Sync {
    /// The part of the set that each thread has for itself.
    type Io: ThreadIo;

    /// Creates the part of the calling thread, to be used by that thread alone.
    ///
    /// # Errors
    /// If the kernel refuses the thread's ring, descriptors or memory.
    fn thread_io(&self) -> io::Result<Self::Io>;

    /// Watches a socket. May be called while another thread waits.
    ///
    /// # Errors
    /// As `epoll_ctl`.
    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()>;

    /// Stops watching a socket.
    ///
    /// # Errors
    /// As `epoll_ctl`.
    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()>;

    /// Makes the current or the next wait return with [`Event::Wake`].
    fn wake(&self);

    /// Sets the one timer, or clears it. A time in the past expires at once.
    fn set_timer(&self, at: Option<MonoNs>);

    /// Whether a socket was added or removed that the waiting thread has not seen yet: it may still return datagrams of a
    /// removed socket. Never where waits return readiness only: a stale readiness does no harm.
    fn has_unapplied_changes(&self) -> bool {
        false
    }

    /// Whether waits return [`Event::Provided`]. Such a set serves a pool of one thread, since the delivered datagrams
    /// lie in the memory of the thread that waited.
    fn delivers_data(&self) -> bool {
        false
    }
}

/// The thread's part. Created on the thread that uses it, and not moved to another.
pub trait ThreadIo {
    /// Waits, as the leader, and pushes at most `room` events; `room` is at most [`EVENTS_MAX`].
    ///
    /// # Errors
    /// The kernel's error. An interrupted wait is no error and returns no events.
    fn wait(&mut self, wait: Wait, room: usize, events: &mut Vec<Event>) -> io::Result<()>;

    /// Gives up the lead: afterwards nothing of this thread waits on the set.
    ///
    /// # Errors
    /// The kernel's error.
    fn release_wait(&mut self) -> io::Result<()>;

    /// Reads sockets without blocking into `batch` until a read of each socket is short or the batch is full. Datagrams
    /// carry their line and their kernel timestamp. Returns the lines that may hold more.
    ///
    /// # Errors
    /// The kernel's error on a socket, other than "would block".
    fn receive(&mut self, sockets: &[(Line, RawFd)], batch: &mut ReceiveBatch) -> io::Result<LineSet>;

    /// Moves the datagrams that the last wait delivered for this handle ([`Event::Provided`]) into `batch`. Their
    /// buffers return to the kernel when the batch is cleared. Without effect where [`HandleSet::delivers_data`] is
    /// false.
    fn take_provided(&mut self, _handle: Handle, _batch: &mut ReceiveBatch) {}

    /// Hands the packets to the kernel. On return each packet is handed over or refused. Never blocks. Returns how many
    /// were taken, from the front.
    ///
    /// # Errors
    /// The kernel's error, other than "would block".
    fn send(&mut self, packets: &SendBatch<'_>) -> io::Result<usize>;
}
