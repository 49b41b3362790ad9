//! One ring of one thread: requests in, completions out, and the sends of both io_uring backends.

#![allow(unsafe_code, reason = "requests whose memory the kernel holds")]

use std::{fmt, io};

use io_uring::{EnterFlags, IoUring, opcode, squeue, types};
use mdgw_sys::batch::{PACKETS_MAX, SendBatch};

/// A ring with one submitter. Its completion work runs when that thread enters the ring and at no other time.
pub(super) struct Ring {
    ring: IoUring,
    /// An enter failed for good: requests in the queue must never be submitted, since their buffers may be gone.
    broken: bool,
    /// The ring belongs to the thread that created it.
    _thread: std::marker::PhantomData<*const ()>,
}

/// Purpose of a request, stored in its 64 bits of user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Waits for the epoll set.
    Wait,
    /// Cancels another request.
    Cancel,
    /// Waits for the timer.
    Timer,
    /// Waits for a wake-up.
    Wake,
    /// Receives from a socket. The number is the request's index in its submission.
    Receive(usize),
    /// Sends a packet. The number is the packet's index in its batch.
    Send(usize),
    /// Receives until it is cancelled. The number is the socket's slot.
    Multishot(u16),
}

/// How an enter ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EnterOutcome {
    /// The requested number of completions has arrived.
    Completed,
    /// A signal interrupted the wait, or the kernel was short of a resource for the moment.
    Interrupted,
}

impl Request {
    pub(super) fn user_data(self) -> u64 {
        let (kind, value) = match self {
            Self::Wait => (0, 0),
            Self::Cancel => (1, 0),
            Self::Timer => (2, 0),
            Self::Wake => (3, 0),
            Self::Receive(index) => (4, index as u64),
            Self::Send(index) => (5, index as u64),
            Self::Multishot(slot) => (6, u64::from(slot)),
        };
        kind << KIND_SHIFT | value
    }

    #[allow(clippy::cast_possible_truncation, reason = "undoes `user_data`")]
    fn from_user_data(user_data: u64) -> Self {
        let value = user_data & ((1 << KIND_SHIFT) - 1);
        match user_data >> KIND_SHIFT {
            0 => Self::Wait,
            1 => Self::Cancel,
            2 => Self::Timer,
            3 => Self::Wake,
            4 => Self::Receive(value as usize),
            5 => Self::Send(value as usize),
            _ => Self::Multishot(value as u16),
        }
    }
}

const KIND_SHIFT: u32 = 56;

impl Ring {
    pub(super) fn new(submissions: u32, completions: u32) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(completions)
            .build(submissions)?;
        Ok(Self { ring, broken: false, _thread: std::marker::PhantomData })
    }

    /// Queues a request for the next [`Self::enter`].
    ///
    /// # Errors
    /// If the ring is broken, or an enter that made room failed.
    ///
    /// # Safety
    /// The memory that the request points to stays valid, and no other code touches what the request writes to, until
    /// the request has completed or the ring is broken.
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry, request: Request) -> io::Result<()> {
        let entry = entry.user_data(request.user_data());
        self.check_usable()?;
        loop {
            // SAFETY: as demanded of our caller.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            if pushed.is_ok() {
                return Ok(());
            }
            self.enter(0)?;
        }
    }

    /// Whether an enter that does not wait would find no work, and there is nothing to reap.
    pub(super) fn is_idle(&mut self) -> bool {
        let queue = self.ring.submission();
        let idle = queue.is_empty() && !queue.taskrun();
        drop(queue);
        idle && self.ring.completion().is_empty()
    }

    /// Submits the queued requests, runs completion work, and waits for `completions_min` completions.
    ///
    /// # Errors
    /// An error that a retry cannot cure; the ring is broken then.
    pub(super) fn enter(&mut self, completions_min: usize) -> io::Result<EnterOutcome> {
        self.check_usable()?;
        let entered =
            if completions_min == 0 { self.submit_and_run() } else { self.ring.submit_and_wait(completions_min) };
        match entered {
            Ok(_) => Ok(EnterOutcome::Completed),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => Ok(EnterOutcome::Interrupted),
                _ => {
                    self.broken = true;
                    Err(error)
                }
            },
        }
    }

    /// The crate requests completion work only if some was due before; the submission itself may make some due.
    fn submit_and_run(&mut self) -> io::Result<usize> {
        let queued = u32::try_from(self.ring.submission().len()).unwrap_or(0);
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: io_uring_enter(2) reads `queued` entries, all pushed as `push` demands; there is no argument.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, 0, flags, None) }
    }

    /// Hands each completion to `each`, with its result and flags.
    pub(super) fn completions(&mut self, mut each: impl FnMut(Request, i32, u32)) {
        for completion in self.ring.completion() {
            each(Request::from_user_data(completion.user_data()), completion.result(), completion.flags());
        }
    }

    /// Registers a ring of provided buffers.
    ///
    /// # Safety
    /// At `address`, the start of a page, is room for `count` entries until [`Self::unregister_buffers`] has succeeded.
    /// The buffers of the entries belong to the kernel until it has filled them.
    pub(super) unsafe fn register_buffers(&self, address: u64, count: u16, group: u16) -> io::Result<()> {
        // SAFETY: as demanded of our caller.
        unsafe { self.ring.submitter().register_buf_ring_with_flags(address, count, group, 0) }
    }

    pub(super) fn unregister_buffers(&self, group: u16) -> io::Result<()> {
        self.ring.submitter().unregister_buf_ring(group)
    }

    /// Queues a batch's packets, in order.
    pub(super) fn begin_send(&mut self, packets: &SendBatch<'_>) -> io::Result<SendSubmission> {
        let mut sending = SendSubmission { results: [0; PACKETS_MAX], count: 0, outstanding: 0 };
        for (socket, message) in packets.messages() {
            let request = opcode::SendMsg::new(types::Fd(socket), message).flags(DONT_WAIT).build();
            // SAFETY: the batch owns the message and its buffers, and our callers borrow the batch until every request
            // has completed: with MSG_DONTWAIT no request waits. The kernel only reads them.
            unsafe { self.push(request, Request::Send(sending.count))? };
            sending.count += 1;
        }
        sending.outstanding = sending.count;
        Ok(sending)
    }

    fn check_usable(&self) -> io::Result<()> {
        if self.broken { Err(io::Error::other("the ring failed before")) } else { Ok(()) }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("broken", &self.broken).finish_non_exhaustive()
    }
}

/// The packets of one submission.
pub(super) struct SendSubmission {
    results: [i32; PACKETS_MAX],
    count: usize,
    /// Packets whose result is not known yet.
    pub(super) outstanding: usize,
}

impl SendSubmission {
    pub(super) fn on_completion(&mut self, request: Request, result: i32) {
        if let Request::Send(index) = request {
            self.results[index] = result;
            self.outstanding -= 1;
        }
    }

    /// How many packets the kernel took, from the front. Packets behind a refused one may have been taken too: they are
    /// sent again with it, and receivers drop the duplicates.
    pub(super) fn sent_count(&self) -> io::Result<usize> {
        let results = &self.results[..self.count];
        let sent_count = results.iter().take_while(|result| **result >= 0).count();
        match results.get(sent_count) {
            Some(&result) if sent_count == 0 && -result != libc::EAGAIN => Err(io::Error::from_raw_os_error(-result)),
            _ => Ok(sent_count),
        }
    }
}

const DONT_WAIT: u32 = libc::MSG_DONTWAIT.unsigned_abs();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_through_user_data() {
        for request in [
            Request::Wait,
            Request::Cancel,
            Request::Timer,
            Request::Wake,
            Request::Receive(63),
            Request::Send(0),
            Request::Multishot(u16::MAX),
        ] {
            assert_eq!(Request::from_user_data(request.user_data()), request);
        }
    }
}
