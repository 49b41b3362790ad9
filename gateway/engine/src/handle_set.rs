//! Handle set: what the leading thread waits for, behind one trait.
//!
//! Shared part ([`HandleSet`]): readiness of many sockets, one timer, one wake-up. It has no owner, so leadership can
//! move freely between threads. Thread's part ([`ThreadIo`]): what a thread does itself between taking and giving up
//! a turn: waiting on the set, receiving, sending. An io_uring request belongs to the thread that armed it, so rings
//! live there and nowhere else.
//!
//! An event is either *a channel's line that is ready* (its holder then receives) or *datagrams of a channel that
//! are already here*, in memory that the backend lends out and takes back: io_uring's provided buffers today, the
//! blocks of a packet ring later. Nothing here assumes one socket per datagram or that buffers are ours.

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

/// What the wait brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The socket of this handle has something to read. Edge-triggered: read until it is short.
    Ready(Handle),
    /// Datagrams of this handle lie in the thread's own batch (see [`ThreadIo::take_provided`]).
    Provided(Handle),
    /// The set's timer went off.
    Timer,
    /// Somebody called [`HandleSet::wake`]: handles changed, or the pool shuts down.
    Wake,
}

/// How the leading thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Look and return at once.
    Poll,
    /// Block until an event.
    Block,
}

/// The shared part. One per pool.
pub trait HandleSet: Send + Sync {
    /// The thread's part.
    type Io: ThreadIo;

    /// The part of the calling thread, to be used by that thread alone.
    ///
    /// # Errors
    /// When the kernel refuses the thread's ring, descriptors or memory.
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

    /// Sets the one timer, or clears it. A moment in the past goes off at once.
    fn set_timer(&self, at: Option<MonoNs>);

    /// Whether waits bring [`Event::Provided`]. Such a set serves a pool of one thread: what was lent lies in the memory of
    /// the thread that waited.
    fn delivers_data(&self) -> bool {
        false
    }
}

/// The thread's part. Not `Send` in spirit: made on the thread that uses it.
pub trait ThreadIo {
    /// Waits, as the leader, and pushes at most `room` events.
    ///
    /// # Errors
    /// What the kernel says; an interrupted wait is no error and brings no events.
    fn wait(&mut self, wait: Wait, room: usize, events: &mut Vec<Event>) -> io::Result<()>;

    /// Gives up the lead: afterwards nothing of this thread waits on the set.
    ///
    /// # Errors
    /// What the kernel says.
    fn release_wait(&mut self) -> io::Result<()>;

    /// Reads sockets without blocking into `batch` until each is short or the batch is full. Datagrams carry their
    /// line and their kernel stamp. Returns the lines that may hold more.
    ///
    /// # Errors
    /// What the kernel says of a socket other than "nothing there".
    fn receive(&mut self, sockets: &[(Line, RawFd)], batch: &mut ReceiveBatch) -> io::Result<LineSet>;

    /// The datagrams that came with the last wait for this handle ([`Event::Provided`]), handed back by the next wait.
    fn take_provided(&mut self, handle: Handle, batch: &mut ReceiveBatch);

    /// Hands the packets over to the kernel; all of them are handed over or refused when this returns. Never blocks.
    /// Returns how many were taken, from the front.
    ///
    /// # Errors
    /// What the kernel says other than "would block".
    fn send(&mut self, packets: &SendBatch<'_>) -> io::Result<usize>;
}
