//! The io_uring backend of pools with one thread: a multishot receive on every socket, all filling one ring of
//! provided buffers.
//!
//! One thread waits, so the rule that a request belongs to the thread that armed it costs nothing. Datagrams come
//! without a request for each: the wait yields [`Event::Lent`], the batch borrows the filled buffers, and clearing the
//! batch gives them back. A socket whose receive ended (the buffers ran out, which is counted, or the kernel said so)
//! is armed again by the next wait; meanwhile its datagrams wait in the socket. What was announced and not fetched is
//! announced again.

#![allow(unsafe_code, reason = "requests whose memory the kernel holds")]

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use io_uring::{cqueue, opcode, types};
use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    batch::{ReceiveBatch, SendBatch, is_report, lent, memory::Fixed, receive_in_turn},
    handle::{Handle, LineSet},
};

use super::{
    COMPLETIONS, SUBMISSIONS,
    buffers::{BufferRing, GROUP},
    submission::{Request, Ring},
};
use crate::handle_set::{Event, HandleSet, ThreadIo, Wait, epoll::Signals};

/// The shared part.
#[derive(Clone, Debug)]
pub struct MultishotSet {
    shared: Arc<Shared>,
    buffer_count: u16,
}

impl MultishotSet {
    /// Buffers of the usual set: about 2 MB, which a core's cache of the second level may hold. 16,384 were slower.
    pub const BUFFERS: u16 = 1_024;
    /// Sockets that a set can watch.
    pub const SOCKETS_MAX: usize = 1_024;

    /// An empty set with so many buffers of 2 KB.
    ///
    /// # Errors
    /// When the count is no power of two from 16 to 4,096, or the kernel gives no descriptors.
    pub fn new(buffer_count: u16) -> io::Result<Self> {
        if !buffer_count.is_power_of_two() || !(16..=4_096).contains(&buffer_count) {
            let text = format!("{buffer_count} receive buffers: expected a power of two from 16 to 4,096");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let shared = Shared {
            signals: Signals::new()?,
            members: Mutex::default(),
            changed: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            exhausted: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared), buffer_count })
    }

    /// How often a socket found no buffer to receive into.
    #[must_use]
    pub fn exhausted(&self) -> u64 {
        self.shared.exhausted.load(Ordering::Relaxed)
    }
}

impl HandleSet for MultishotSet {
    type Io = MultishotIo;

    /// The part of the one thread. A second one is refused while the first lives.
    fn thread_io(&self) -> io::Result<MultishotIo> {
        if self.shared.taken.swap(true, Ordering::AcqRel) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the set serves one thread"));
        }
        let made = MultishotIo::new(Arc::clone(&self.shared), self.buffer_count);
        if made.is_err() {
            self.shared.taken.store(false, Ordering::Release);
        }
        made
    }

    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        let raw = socket.as_raw_fd();
        // A descriptor of our own: the caller's number may mean something else when the thread comes to it.
        let socket = Arc::new(socket.try_clone_to_owned()?);
        self.shared.change(|members| {
            if members.sockets.len() >= Self::SOCKETS_MAX {
                return Err(io::Error::other("the set is full"));
            }
            if members.sockets.contains_key(&raw) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            members.sockets.insert(raw, (handle, Arc::clone(&socket)));
            members.changes.push(Change::Add { raw, handle, socket });
            Ok(())
        })
    }

    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let raw = socket.as_raw_fd();
        self.shared.change(|members| {
            members.sockets.remove(&raw).ok_or(io::ErrorKind::NotFound)?;
            members.changes.push(Change::Remove { raw });
            Ok(())
        })
    }

    fn wake(&self) {
        self.shared.signals.wake();
    }

    fn set_timer(&self, at: Option<MonoNs>) {
        self.shared.signals.set_timer(at);
    }

    fn lends(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Shared {
    signals: Signals,
    /// Written by whoever adds or removes, read by the thread when `changed` says so.
    members: Mutex<Members>,
    changed: AtomicBool,
    taken: AtomicBool,
    exhausted: AtomicU64,
}

#[derive(Debug, Default)]
struct Members {
    sockets: HashMap<RawFd, (Handle, Arc<OwnedFd>)>,
    changes: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Add { raw: RawFd, handle: Handle, socket: Arc<OwnedFd> },
    Remove { raw: RawFd },
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Members) -> io::Result<()>) -> io::Result<()> {
        change(&mut self.members.lock().unwrap_or_else(PoisonError::into_inner))?;
        // Release pairs with the Acquire in `apply_changes`.
        self.changed.store(true, Ordering::Release);
        self.signals.wake();
        Ok(())
    }
}

/// The thread's part.
#[derive(Debug)]
pub struct MultishotIo {
    ring: Ring,
    shared: Arc<Shared>,
    buffers: BufferRing,
    /// Tells the kernel how to lay out a buffer; read whenever a receive is armed.
    template: Fixed<libc::msghdr>,
    slots: Vec<Slot>,
    /// Filled buffers of a slot form a chain: the one behind each, and the bytes in each.
    chain: Box<[(u16, u32)]>,
    /// Slots with filled buffers, each once; the first `announced` of them were told by the last wait.
    filled: VecDeque<u16>,
    announced: usize,
    /// Slots to be armed.
    idle: Vec<u16>,
    /// Slots to be freed.
    closed: Vec<u16>,
    timer: Signal,
    wake: Signal,
    fault: Option<io::Error>,
}

/// One socket.
#[derive(Debug)]
struct Slot {
    raw: RawFd,
    handle: Handle,
    state: SlotState,
    first: u16,
    last: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// No socket.
    Free,
    /// In `idle`.
    Idle,
    /// Its receive is armed.
    Armed,
    /// Removed, but its receive has not ended yet.
    Closing,
    /// The kernel refused to receive; out of service until it is removed.
    Failed,
}

/// A descriptor that is polled for as long as the thread's part lives.
#[derive(Clone, Copy, Debug, Default)]
struct Signal {
    armed: bool,
    /// Went off and was not told yet.
    due: bool,
}

impl MultishotIo {
    fn new(shared: Arc<Shared>, buffer_count: u16) -> io::Result<Self> {
        // Every filled buffer and every request has a completion, so that the queue never overflows.
        let ring = Ring::new(SUBMISSIONS, COMPLETIONS + 2 * u32::from(buffer_count))?;
        let sockets_max = u32::try_from(MultishotSet::SOCKETS_MAX).unwrap_or(u32::MAX);
        ring.reserve_sockets(sockets_max)?;
        let buffers = BufferRing::new(&ring, buffer_count)?;
        {
            let mut members = shared.members.lock().unwrap_or_else(PoisonError::into_inner);
            let Members { sockets, changes } = &mut *members;
            changes.clear();
            changes.extend(sockets.iter().map(|(raw, (handle, socket))| Change::Add {
                raw: *raw,
                handle: *handle,
                socket: Arc::clone(socket),
            }));
            shared.changed.store(true, Ordering::Release);
        }
        Ok(Self {
            ring,
            shared,
            buffers,
            template: Fixed::new(1, |_| lent::template()),
            slots: Vec::with_capacity(MultishotSet::SOCKETS_MAX),
            chain: vec![(NONE, 0); usize::from(buffer_count)].into(),
            filled: VecDeque::with_capacity(MultishotSet::SOCKETS_MAX),
            announced: 0,
            idle: Vec::with_capacity(MultishotSet::SOCKETS_MAX),
            closed: Vec::with_capacity(MultishotSet::SOCKETS_MAX),
            timer: Signal::default(),
            wake: Signal::default(),
            fault: None,
        })
    }

    /// Everything that must be in place before the thread waits.
    fn prepare(&mut self) -> io::Result<()> {
        self.close_announced();
        // Acquire pairs with the Release in `Shared::change`. A plain look first: it changes once in a blue moon.
        if self.shared.changed.load(Ordering::Relaxed) && self.shared.changed.swap(false, Ordering::Acquire) {
            self.apply_changes()?;
        }
        self.buffers.provide_returned();
        while self.buffers.has_available()
            && let Some(slot) = self.idle.pop()
        {
            self.arm(slot)?;
        }
        for (request, armed, descriptor) in [
            (Request::Timer, &mut self.timer.armed, self.shared.signals.timer()),
            (Request::Wake, &mut self.wake.armed, self.shared.signals.wake_up()),
        ] {
            if !*armed {
                let readable = u32::from(libc::POLLIN.unsigned_abs());
                let poll = opcode::PollAdd::new(types::Fd(descriptor), readable).multi(true).build();
                // SAFETY: the request holds no pointer.
                unsafe { self.ring.push(poll, request)? };
                *armed = true;
            }
        }
        Ok(())
    }

    /// Slots that were announced and fetched leave the queue; the others go behind those that were not announced.
    fn close_announced(&mut self) {
        for _ in 0..std::mem::take(&mut self.announced) {
            let Some(slot) = self.filled.pop_front() else { break };
            if self.slots[usize::from(slot)].first != NONE {
                self.filled.push_back(slot);
            }
        }
    }

    fn apply_changes(&mut self) -> io::Result<()> {
        let changes = {
            let mut members = self.shared.members.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut members.changes)
        };
        for change in changes {
            match change {
                Change::Add { raw, handle, socket } => self.open(raw, handle, &socket)?,
                Change::Remove { raw } => self.close(raw)?,
            }
        }
        Ok(())
    }

    fn open(&mut self, raw: RawFd, handle: Handle, socket: &OwnedFd) -> io::Result<()> {
        let opened = Slot { raw, handle, state: SlotState::Idle, first: NONE, last: NONE };
        let free = self.slots.iter().position(|slot| slot.state == SlotState::Free);
        let number = free.unwrap_or(self.slots.len());
        let slot = u16::try_from(number).map_err(io::Error::other)?;
        self.ring.set_socket(slot, socket.as_raw_fd())?;
        match self.slots.get_mut(number) {
            Some(slot) => *slot = opened,
            None => self.slots.push(opened),
        }
        self.idle.push(slot);
        Ok(())
    }

    fn close(&mut self, raw: RawFd) -> io::Result<()> {
        let in_use = |slot: &Slot| slot.raw == raw && !matches!(slot.state, SlotState::Free | SlotState::Closing);
        let Some(number) = self.slots.iter().position(in_use) else { return Ok(()) };
        let Ok(slot) = u16::try_from(number) else { return Ok(()) };
        while let Some((id, _)) = self.next_filled(slot) {
            self.buffers.provide(id);
        }
        self.filled.retain(|other| *other != slot);
        let state = self.slots[number].state;
        self.slots[number].state = SlotState::Closing;
        if state == SlotState::Armed {
            let cancel = opcode::AsyncCancel::new(Request::Multishot(slot).user_data()).build();
            // SAFETY: the request holds no pointer.
            return unsafe { self.ring.push(cancel, Request::Cancel) };
        }
        self.idle.retain(|other| *other != slot);
        self.free(slot)
    }

    fn free(&mut self, slot: u16) -> io::Result<()> {
        self.slots[usize::from(slot)].state = SlotState::Free;
        self.ring.set_socket(slot, -1)
    }

    fn arm(&mut self, slot: u16) -> io::Result<()> {
        let template = self.template.at(0);
        let receive = opcode::RecvMsgMulti::new(types::Fixed(slot.into()), template, GROUP).build();
        // SAFETY: the kernel reads `template`, which lives as long as `self`; it writes to buffers of the group, which
        // are its own until it has filled them and are taken back from it before they are freed (`drop`).
        unsafe { self.ring.push(receive, Request::Multishot(slot))? };
        self.slots[usize::from(slot)].state = SlotState::Armed;
        Ok(())
    }

    /// Looks through what has been completed; `other` gets the rest.
    fn reap(&mut self, mut other: impl FnMut(Request, i32)) {
        let Self { ring, slots, chain, filled, buffers, idle, closed, timer, wake, fault, shared, .. } = self;
        ring.completions(|request, result, flags| {
            let more = cqueue::more(flags);
            match request {
                Request::Timer => *timer = Signal { armed: more, due: true },
                Request::Wake => *wake = Signal { armed: more, due: true },
                Request::Multishot(number) => {
                    let slot = &mut slots[usize::from(number)];
                    if let Some(id) = cqueue::buffer_select(flags) {
                        buffers.taken();
                        match u32::try_from(result) {
                            Ok(bytes) if slot.state == SlotState::Armed => {
                                chain[usize::from(id)] = (NONE, bytes);
                                if slot.first == NONE {
                                    slot.first = id;
                                    filled.push_back(number);
                                } else {
                                    chain[usize::from(slot.last)].0 = id;
                                }
                                slot.last = id;
                            }
                            _ => buffers.provide(id),
                        }
                    }
                    if !more && slot.state == SlotState::Closing {
                        closed.push(number);
                    } else if !more {
                        match receive_ended(result) {
                            Ended::Again => {}
                            Ended::Exhausted => {
                                shared.exhausted.fetch_add(1, Ordering::Relaxed);
                            }
                            Ended::Failed(error) => {
                                slot.state = SlotState::Failed;
                                *fault = fault.take().or(Some(error));
                                return;
                            }
                        }
                        slot.state = SlotState::Idle;
                        idle.push(number);
                    }
                }
                _ => other(request, result),
            }
        });
        while let Some(slot) = self.closed.pop() {
            let freed = self.free(slot);
            self.fault = self.fault.take().or_else(|| freed.err());
        }
    }

    /// Takes the first filled buffer from a slot's chain: its number and the bytes in it.
    fn next_filled(&mut self, slot: u16) -> Option<(u16, u32)> {
        let slot = self.slots.get_mut(usize::from(slot))?;
        let id = slot.first;
        let &(next, bytes) = self.chain.get(usize::from(id))?;
        slot.first = next;
        Some((id, bytes))
    }
}

impl ThreadIo for MultishotIo {
    fn wait(&mut self, wait: Wait, room: usize, events: &mut Vec<Event>) -> io::Result<()> {
        self.prepare()?;
        let nothing = self.filled.is_empty() && !self.timer.due && !self.wake.due;
        match wait {
            Wait::Block if nothing => {
                self.ring.enter(1)?;
            }
            // Spinning costs a look at memory: the ring is entered only for what was just queued or is flagged.
            _ if self.ring.is_idle() => {}
            _ => {
                self.ring.enter(0)?;
            }
        }
        self.reap(|_, _| {});
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        // A poll tells of an expiry even when the timer was set anew since.
        self.timer.due = self.timer.due && self.shared.signals.take_expiry();
        let mut room = room;
        for (signal, event) in [(&mut self.wake, Event::Wake), (&mut self.timer, Event::Timer)] {
            if signal.due && room > 0 {
                signal.due = false;
                room -= 1;
                events.push(event);
            }
        }
        self.announced = room.min(self.filled.len());
        let announced = self.filled.iter().take(self.announced);
        events.extend(announced.map(|slot| Event::Lent(self.slots[usize::from(*slot)].handle)));
        Ok(())
    }

    fn release_wait(&mut self) -> io::Result<()> {
        Ok(()) // there is nobody else to lead
    }

    /// Reads the sockets themselves, past the ring: for handles that are not in the set.
    fn receive(&mut self, sockets: &[(Line, RawFd)], batch: &mut ReceiveBatch) -> io::Result<LineSet> {
        receive_in_turn(sockets, batch)
    }

    fn lent(&mut self, handle: Handle, batch: &mut ReceiveBatch) {
        let mut announced = self.filled.iter().take(self.announced);
        let of_handle = |slot: &&u16| self.slots.get(usize::from(**slot)).is_some_and(|slot| slot.handle == handle);
        let Some(&slot) = announced.find(of_handle) else { return };
        while batch.room() > 0
            && let Some((id, bytes)) = self.next_filled(slot)
        {
            // SAFETY: the kernel filled the buffer with so many bytes and gave it up with its completion; it left the
            // chain, so the batch alone holds it.
            let lent = unsafe { batch.lend(&self.buffers.buffers, id, bytes as usize, handle.line) };
            if !matches!(lent, Ok(true)) {
                // The batch holds another ring's buffers, which is its caller's mistake: the datagram is lost.
                self.buffers.provide(id);
            }
        }
    }

    fn send(&mut self, packets: &SendBatch<'_>) -> io::Result<usize> {
        let mut sending = self.ring.begin_send(packets)?;
        while sending.outstanding > 0 {
            self.ring.enter(sending.outstanding)?;
            self.reap(|request, result| sending.completed(request, result));
        }
        sending.taken()
    }
}

impl Drop for MultishotIo {
    fn drop(&mut self) {
        self.buffers.give_up(&self.ring);
        self.shared.taken.store(false, Ordering::Release);
    }
}

/// Why a receive ended that was armed for good.
enum Ended {
    /// No fault: it is armed again.
    Again,
    /// No buffer was left.
    Exhausted,
    /// The kernel refuses.
    Failed(io::Error),
}

fn receive_ended(result: i32) -> Ended {
    if result >= 0 {
        return Ended::Again;
    }
    let error = io::Error::from_raw_os_error(-result);
    match -result {
        libc::ENOBUFS => Ended::Exhausted,
        libc::ECANCELED | libc::EAGAIN => Ended::Again,
        _ if is_report(&error) => Ended::Again,
        _ => Ended::Failed(error),
    }
}

/// No buffer.
const NONE: u16 = u16::MAX;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::handle_set::suite::{self, Feed};

    suite::for_each_promise!(|| MultishotSet::new(MultishotSet::BUFFERS).unwrap());

    #[test]
    fn datagrams_wait_in_the_socket_while_no_buffer_is_free() {
        let set = MultishotSet::new(16).unwrap();
        let feeds = [Feed::new(0, Line::A), Feed::new(0, Line::B)];
        let mut io = set.thread_io().unwrap();
        for feed in &feeds {
            set.add(feed.receiver.as_fd(), feed.handle).unwrap();
            (0..100_u8).for_each(|number| assert_eq!(feed.sender.send(&[number]).unwrap(), 1));
        }
        let (mut events, mut next) = (Vec::new(), [0_u8; 2]);
        // Batches that hold all buffers at times, and are cleared in no particular order.
        let mut batches: Vec<_> = (0..3).map(|_| ReceiveBatch::new(7, 64)).collect();
        for turn in 0.. {
            if next == [100, 100] {
                break;
            }
            events.clear();
            io.wait(Wait::Poll, 8, &mut events).unwrap();
            for event in &events {
                let Event::Lent(handle) = *event else { continue };
                let batch = &mut batches[(turn * 2) % 3];
                batch.clear();
                io.lent(handle, batch);
                for datagram in batch.iter() {
                    let next = &mut next[usize::from(handle.line.0)];
                    assert_eq!(datagram.bytes, [*next]);
                    *next += 1;
                }
            }
            batches[turn % 3].clear();
        }
        assert!(set.exhausted() > 0, "200 datagrams found 16 buffers");
    }

    #[test]
    fn lent_bytes_outlive_the_ring_that_filled_them() {
        let set = MultishotSet::new(16).unwrap();
        let feed = Feed::new(0, Line::A);
        set.add(feed.receiver.as_fd(), feed.handle).unwrap();
        let mut io = set.thread_io().unwrap();
        let mut batch = ReceiveBatch::new(8, 64);
        feed.sender.send(b"kept").unwrap();
        let mut events = Vec::new();
        while batch.is_empty() {
            events.clear();
            io.wait(Wait::Block, 8, &mut events).unwrap();
            io.lent(feed.handle, &mut batch);
        }
        drop(io);
        feed.sender.send(b"later").unwrap();
        assert_eq!(batch.get(0).unwrap().bytes, b"kept");

        // A new part takes over the sockets; the batch holds the old one's buffer until it is cleared.
        let mut io = set.thread_io().unwrap();
        batch.clear();
        while batch.is_empty() {
            events.clear();
            io.wait(Wait::Block, 8, &mut events).unwrap();
            io.lent(feed.handle, &mut batch);
        }
        assert_eq!(batch.get(0).unwrap().bytes, b"later");
    }

    #[test]
    fn the_set_serves_one_thread_at_a_time() {
        let set = MultishotSet::new(16).unwrap();
        let io = set.thread_io().unwrap();
        assert_eq!(set.thread_io().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(io);
        assert!(set.thread_io().is_ok());
    }

    #[test]
    fn odd_numbers_of_buffers_are_refused() {
        for count in [0, 8, 1_000, 8_192] {
            assert_eq!(MultishotSet::new(count).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
