//! The io_uring backend of pools with several threads: readiness from the shared epoll set, all other I/O through a
//! ring of each thread.
//!
//! An io_uring request belongs to the task that armed it. If the action of another thread completes the request, the
//! completion wakes or interrupts the task that armed it. So no ring is shared and no request outlives its turn. The
//! leading thread waits *in its own ring* for the epoll set, and cancels that wait before it gives up the lead;
//! receives and sends are submitted and completed within one call. Events of a wait that is being cancelled go to the
//! next leader through [`LeftoverEvents`]; otherwise their edges would be lost.

#![allow(unsafe_code, reason = "requests whose memory the kernel holds")]

mod buffers;
mod multishot;
#[cfg(all(test, not(feature = "loom")))]
mod shared_ring;
mod submission;

use std::{
    io,
    os::fd::{BorrowedFd, RawFd},
    sync::Arc,
};

use crossbeam_queue::ArrayQueue;
use io_uring::{opcode, types};
use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    batch::{PACKETS_MAX, ReceiveBatch, SendBatch, is_past_send_error, pinned_array::PinnedArray},
    handle::{Handle, LineSet},
};

pub use self::multishot::{MultishotIo, MultishotSet};
#[cfg(all(test, not(feature = "loom")))]
pub(crate) use self::shared_ring::SharedRingSet;
use self::submission::{Request, Ring};
use super::epoll::{EventBuffer, KernelEvent, NO_EVENT, ReadySet, to_event};
use crate::handle_set::{EVENTS_MAX, Event, HandleSet, ThreadIo, Wait};

/// How a ring waits for the epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpollWaitMethod {
    /// The request returns the events itself (`IORING_OP_EPOLL_WAIT`, from kernel 6.15).
    Events,
    /// A one-shot poll on the set's descriptor, then `epoll_wait` without blocking.
    Readiness,
}

/// The shared part: the epoll set, and the events that a leader leaves to the next one.
#[derive(Clone, Debug)]
pub struct RingSet {
    ready: Arc<ReadySet>,
    leftover: Arc<LeftoverEvents>,
    wait: EpollWaitMethod,
}

/// Events from one leader to the next.
type LeftoverEvents = ArrayQueue<Event>;

impl RingSet {
    /// Creates an empty set. [`probe_io_uring`](super::backend_choice::probe_io_uring) says which `wait` the kernel
    /// offers.
    ///
    /// # Errors
    /// If the kernel gives no descriptors.
    pub fn new(wait: EpollWaitMethod) -> io::Result<Self> {
        // At most one wait's events are in the queue: the next leader takes them before it waits.
        Ok(Self { ready: Arc::new(ReadySet::new()?), leftover: Arc::new(ArrayQueue::new(2 * EVENTS_MAX)), wait })
    }
}

impl HandleSet for RingSet {
    type Io = RingIo;

    fn thread_io(&self) -> io::Result<RingIo> {
        Ok(RingIo {
            ring: Ring::new(SUBMISSIONS, COMPLETIONS)?,
            ready: Arc::clone(&self.ready),
            leftover: Arc::clone(&self.leftover),
            wait_method: self.wait,
            armed: false,
            wait_buffer: PinnedArray::new(EVENTS_MAX, |_| NO_EVENT),
            poll_buffer: EventBuffer::new(),
            events_per_request: EVENTS_PER_REQUEST_MIN,
            undelivered: Vec::with_capacity(EVENTS_MAX),
            fault: None,
        })
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

/// A thread's part: its ring, and the state of its wait.
#[derive(Debug)]
pub struct RingIo {
    ring: Ring,
    ready: Arc<ReadySet>,
    leftover: Arc<LeftoverEvents>,
    wait_method: EpollWaitMethod,
    /// Whether a request waits for the epoll set.
    armed: bool,
    /// Where the kernel puts events while a request waits.
    wait_buffer: PinnedArray<KernelEvent>,
    /// Where `epoll_wait` puts the events.
    poll_buffer: EventBuffer,
    /// Events that the next request takes at most.
    events_per_request: usize,
    /// Events that were not returned yet. The last one is returned first.
    undelivered: Vec<Event>,
    /// Why a wait ended without events. The next wait returns the error, whatever call saw it.
    fault: Option<io::Error>,
}

impl RingIo {
    fn arm(&mut self) -> io::Result<()> {
        let set = types::Fd(self.ready.epoll());
        let request = match self.wait_method {
            EpollWaitMethod::Events => {
                let count = u32::try_from(self.events_per_request).unwrap_or(1);
                opcode::EpollWait::new(set, self.wait_buffer.at(0).cast(), count).build()
            }
            EpollWaitMethod::Readiness => opcode::PollAdd::new(set, u32::from(libc::POLLIN.unsigned_abs())).build(),
        };
        // SAFETY: the kernel writes at most `events_per_request` events to `wait_buffer`, which has room for `EVENTS_MAX`. It is read only
        // after the request has completed, and freed only after the request was cancelled (`drop`).
        unsafe { self.ring.push(request, Request::Wait)? };
        self.armed = true;
        Ok(())
    }

    /// Reaps completions: handles those of the wait, and passes all others to `on_other`.
    fn reap(&mut self, mut on_other: impl FnMut(Request, i32)) {
        let mut ended = None;
        self.ring.completions(|request, result, _flags| match request {
            Request::Wait => ended = Some(result),
            _ => on_other(request, result),
        });
        if let Some(result) = ended {
            self.armed = false;
            self.fault = self.on_wait_completion(result).err();
        }
    }

    fn on_wait_completion(&mut self, result: i32) -> io::Result<()> {
        let count = match usize::try_from(result) {
            Ok(count) => count,
            Err(_) if matches!(-result, libc::ECANCELED | libc::EINTR | libc::EAGAIN) => return Ok(()),
            Err(_) => return Err(io::Error::from_raw_os_error(-result)),
        };
        match self.wait_method {
            EpollWaitMethod::Events => {
                for index in (0..count.min(EVENTS_MAX)).rev() {
                    // SAFETY: the request has been completed and wrote `count` events from `wait_buffer[0]` on.
                    let event = unsafe { self.wait_buffer.at(index).read() };
                    self.undelivered.push(to_event(&event));
                }
            }
            EpollWaitMethod::Readiness => {
                let seen = self.ready.wait(Wait::Poll, self.events_per_request, &mut self.poll_buffer)?;
                self.undelivered.extend(seen.iter().rev().map(to_event));
            }
        }
        Ok(())
    }

    fn deliver_events(&mut self, room: usize, events: &mut Vec<Event>) {
        let before = events.len();
        while events.len() - before < room {
            let Some(event) = self.leftover.pop().or_else(|| self.undelivered.pop()) else { return };
            events.push(event);
        }
    }
}

impl ThreadIo for RingIo {
    fn wait(&mut self, wait: Wait, room: usize, events: &mut Vec<Event>) -> io::Result<()> {
        if self.undelivered.is_empty() && self.leftover.is_empty() {
            if !self.armed {
                self.events_per_request = room.clamp(EVENTS_PER_REQUEST_MIN, EVENTS_MAX);
                self.arm()?;
            }
            // Spinning costs a read of memory: the ring is entered only for a newly armed request or if the kernel has
            // flagged work.
            match wait {
                Wait::Poll if self.ring.is_idle() => return Ok(()),
                Wait::Poll => self.ring.enter(0)?,
                Wait::Block => self.ring.enter(1)?,
            };
            self.reap(|_, _| {});
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
        }
        self.deliver_events(room, events);
        Ok(())
    }

    fn release_wait(&mut self) -> io::Result<()> {
        let mut cancelled = !self.armed;
        if self.armed {
            let cancel = opcode::AsyncCancel::new(Request::Wait.user_data()).build();
            // SAFETY: the request holds no pointer.
            unsafe { self.ring.push(cancel, Request::Cancel)? };
        }
        // Both requests complete: the wait (cancelled, or with its last events) and the cancellation.
        while self.armed || !cancelled {
            self.ring.enter(1)?;
            self.reap(|request, _| cancelled |= request == Request::Cancel);
        }
        while let Some(event) = self.undelivered.pop() {
            // There is room: see `new`.
            let leftover = self.leftover.push(event);
            debug_assert!(leftover.is_ok());
        }
        Ok(())
    }

    fn receive(&mut self, sockets: &[(Line, RawFd)], batch: &mut ReceiveBatch) -> io::Result<LineSet> {
        let mut open_lines = sockets.iter().fold(LineSet::default(), |all, (line, _)| all.with(*line));
        let mut requests_per_socket = FIRST_REQUESTS_PER_SOCKET;
        let mut fault = None;
        for _ in 0..ROUNDS_MAX {
            if open_lines.is_empty() || batch.room() == 0 {
                break;
            }
            let mut receives = ReceiveSubmission::default();
            for &(line, socket) in sockets.iter().filter(|(line, _)| open_lines.contains(*line)) {
                for _ in 0..requests_per_socket {
                    let Some(slot) = receives.slots.get_mut(receives.count) else { break };
                    let Some(header) = batch.free_header(receives.count) else { break };
                    let request = opcode::RecvMsg::new(types::Fd(socket), header).flags(DONT_WAIT).build();
                    // SAFETY: the header and the buffers it points to are a free row of `batch`, which is borrowed
                    // until every request has completed below: with MSG_DONTWAIT no request waits.
                    unsafe { self.ring.push(request, Request::Receive(receives.count))? };
                    *slot = (line, -libc::ECANCELED);
                    receives.count += 1;
                }
            }
            let mut outstanding = receives.count;
            while outstanding > 0 {
                self.ring.enter(outstanding)?;
                self.reap(|request, result| {
                    if let Request::Receive(index) = request {
                        receives.slots[index].1 = result;
                        outstanding -= 1;
                    }
                });
            }
            let slots = &receives.slots[..receives.count];
            for &(line, result) in slots.iter().filter(|(_, result)| *result < 0) {
                let error = io::Error::from_raw_os_error(-result);
                match error.kind() {
                    io::ErrorKind::WouldBlock => open_lines = without(open_lines, line),
                    _ if is_past_send_error(&error) => {}
                    _ => {
                        open_lines = without(open_lines, line);
                        fault = fault.or(Some(error));
                    }
                }
            }
            // SAFETY: the loop above ended with every request completed; results are the kernel's.
            unsafe {
                batch.accept_completions(slots.iter().map(|(line, result)| (*line, usize::try_from(*result).ok())))
            };
            requests_per_socket *= 4;
        }
        fault.map_or(Ok(open_lines), Err)
    }

    fn send(&mut self, packets: &SendBatch<'_>) -> io::Result<usize> {
        let mut sends = self.ring.begin_send(packets)?;
        while sends.outstanding > 0 {
            self.ring.enter(sends.outstanding)?;
            self.reap(|request, result| sends.on_completion(request, result));
        }
        sends.sent_count()
    }
}

impl Drop for RingIo {
    fn drop(&mut self) {
        if self.release_wait().is_err() {
            // The kernel may still write there: leak the memory rather than reuse it.
            std::mem::forget(std::mem::replace(&mut self.wait_buffer, PinnedArray::new(0, |_| unreachable!())));
        }
    }
}

/// The receive requests of one submission: line and result of each.
struct ReceiveSubmission {
    slots: [(Line, i32); PACKETS_MAX],
    count: usize,
}

impl Default for ReceiveSubmission {
    fn default() -> Self {
        Self { slots: [(Line::A, 0); PACKETS_MAX], count: 0 }
    }
}

fn without(set: LineSet, line: Line) -> LineSet {
    LineSet(set.0 & !LineSet::default().with(line).0)
}

/// Events that a request takes at least, if that many are ready: a small `room` then needs a request every few waits
/// only.
const EVENTS_PER_REQUEST_MIN: usize = 64;
/// Requests for each socket in the first submission: usually one datagram has arrived, and the second request finds the
/// socket empty. Each later submission has four times as many.
const FIRST_REQUESTS_PER_SOCKET: usize = 2;
/// Maximum number of submissions in one call. Lines that may hold more then are reported as unfinished.
const ROUNDS_MAX: usize = 8;
/// Room for the requests of a full batch, for the wait and for its cancellation.
const SUBMISSIONS: u32 = 128;
const COMPLETIONS: u32 = 256;
const DONT_WAIT: u32 = libc::MSG_DONTWAIT.unsigned_abs();

#[cfg(test)]
mod tests {
    mod events {
        use crate::handle_set::{
            backend_tests,
            ring::{EpollWaitMethod, RingSet},
        };
        backend_tests::for_each_backend_test!(several threads: || RingSet::new(EpollWaitMethod::Events).unwrap());
    }

    mod readiness {
        use crate::handle_set::{
            backend_tests,
            ring::{EpollWaitMethod, RingSet},
        };
        backend_tests::for_each_backend_test!(several threads: || RingSet::new(EpollWaitMethod::Readiness).unwrap());
    }
}
