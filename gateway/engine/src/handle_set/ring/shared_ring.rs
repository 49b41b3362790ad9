//! The design that this backend avoids, for tests that must show its fault: one ring for all threads. Its wait for the
//! epoll set stays armed by the first thread that led, whichever thread leads later.

#![allow(unsafe_code, reason = "requests whose memory the kernel holds")]

use std::{
    io,
    os::fd::{BorrowedFd, RawFd},
    sync::{Arc, Mutex, PoisonError},
};

use io_uring::{IoUring, cqueue, opcode, types};
use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    batch::{ReceiveBatch, SendBatch, receive_round_robin},
    handle::{Handle, LineSet},
};

use crate::handle_set::{
    Event, HandleSet, ThreadIo, Wait,
    epoll::{EventBuffer, ReadySet, to_event},
};

/// The shared part. It has the ring, so that all threads wait in one ring.
pub(crate) struct SharedRingSet {
    ready: Arc<ReadySet>,
    ring: Arc<Mutex<ArmedRing>>,
}

struct ArmedRing {
    ring: IoUring,
    is_armed: bool,
}

impl SharedRingSet {
    pub(crate) fn new() -> io::Result<Self> {
        let armed = ArmedRing { ring: IoUring::new(8)?, is_armed: false };
        Ok(Self { ready: Arc::new(ReadySet::new()?), ring: Arc::new(Mutex::new(armed)) })
    }
}

impl ArmedRing {
    /// Sleeps until the set has an event. This thread arms the request if none is armed.
    fn wait_for(&mut self, set: RawFd) -> io::Result<()> {
        if !self.is_armed {
            let readable = u32::try_from(libc::POLLIN).unwrap_or(0);
            let poll = opcode::PollAdd::new(types::Fd(set), readable).multi(true).build();
            // SAFETY: a poll request points to nothing.
            unsafe { self.ring.submission().push(&poll) }.map_err(|_| io::Error::other("the queue is full"))?;
            self.is_armed = true;
        }
        match self.ring.submit_and_wait(1) {
            Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
            _ => {}
        }
        for completion in self.ring.completion() {
            self.is_armed &= cqueue::more(completion.flags());
        }
        Ok(())
    }
}

impl HandleSet for SharedRingSet {
    type Io = SharedRingIo;

    fn thread_io(&self) -> io::Result<SharedRingIo> {
        Ok(SharedRingIo { ready: Arc::clone(&self.ready), ring: Arc::clone(&self.ring), events: EventBuffer::new() })
    }

    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        self.ready.add(socket, handle)
    }

    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.ready.remove(socket)
    }

    fn wake(&self) {
        self.ready.wake();
    }

    fn set_timer(&self, at: Option<MonoNs>) {
        self.ready.set_timer(at);
    }
}

/// A thread's part: a reference to the shared ring, and a buffer for events.
pub(crate) struct SharedRingIo {
    ready: Arc<ReadySet>,
    ring: Arc<Mutex<ArmedRing>>,
    events: EventBuffer,
}

impl ThreadIo for SharedRingIo {
    fn wait(&mut self, wait: Wait, room: usize, events: &mut Vec<Event>) -> io::Result<()> {
        loop {
            events.extend(self.ready.wait(Wait::Poll, room, &mut self.events)?.iter().map(to_event));
            if !events.is_empty() || wait == Wait::Poll {
                return Ok(());
            }
            // Only the leader waits, so no other thread wants the lock.
            self.ring.lock().unwrap_or_else(PoisonError::into_inner).wait_for(self.ready.epoll())?;
        }
    }

    fn release_wait(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, sockets: &[(Line, RawFd)], batch: &mut ReceiveBatch) -> io::Result<LineSet> {
        receive_round_robin(sockets, batch)
    }

    fn send(&mut self, packets: &SendBatch<'_>) -> io::Result<usize> {
        packets.send_many()
    }
}
