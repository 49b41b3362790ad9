//! The io_uring backend of pools with one thread: a multishot receive on every socket, all filling one ring of provided
//! buffers.
//!
//! Only one thread waits, so the rule that a request belongs to the thread that armed it costs nothing. Datagrams
//! arrive without a request for each: the wait returns [`Event::Provided`], the batch borrows the filled buffers, and
//! clearing the batch returns them. A receive may end, because the buffers ran out (which is counted) or by the
//! kernel's choice. The next wait arms it again; meanwhile its datagrams wait in the socket. Datagrams that were
//! announced and not fetched are announced again.

#![allow(unsafe_code, reason = "requests whose memory the kernel holds")]

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use io_uring::{cqueue, opcode, types};
use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    batch::{ReceiveBatch, SendBatch, is_past_send_error, pinned_array::PinnedArray, provided, receive_round_robin},
    clock::mono_now,
    handle::{Handle, LineSet},
};

use super::{
    COMPLETIONS, SUBMISSIONS,
    buffers::{BufferRing, GROUP},
    submission::{Request, Ring},
};
use crate::handle_set::{Event, HandleSet, ThreadIo, Wait, epoll::Signals};

/// The shared part: the watched sockets, the timer and the wake-up.
#[derive(Clone, Debug)]
pub struct MultishotSet {
    shared: Arc<SocketRegistry>,
    buffer_count: u16,
}

impl MultishotSet {
    /// Default number of buffers: about 2 MB, which fits a core's level 2 cache. 16,384 were slower.
    pub const BUFFERS: u16 = 1_024;
    /// Maximum number of sockets of a set.
    pub(crate) const SOCKETS_MAX: usize = 1_024;

    /// Creates an empty set with `buffer_count` buffers of 2 KB.
    ///
    /// # Errors
    /// If the count is no power of two from 16 to 4,096, or the kernel gives no descriptors.
    pub fn new(buffer_count: u16) -> io::Result<Self> {
        if !buffer_count.is_power_of_two() || !(16..=4_096).contains(&buffer_count) {
            let text = format!("{buffer_count} receive buffers: expected a power of two from 16 to 4,096");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let shared = SocketRegistry {
            signals: Signals::new()?,
            sockets_watched: Mutex::default(),
            changed: AtomicBool::new(false),
            has_owner: AtomicBool::new(false),
            buffer_exhaustions: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared), buffer_count })
    }

    /// How often a socket found no buffer to receive into.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn buffer_exhaustions(&self) -> u64 {
        self.shared.buffer_exhaustions.load(Ordering::Relaxed)
    }
}

impl HandleSet for MultishotSet {
    type Io = MultishotIo;

    /// The part of the one thread. A second one is refused while the first exists.
    fn thread_io(&self) -> io::Result<MultishotIo> {
        if self.shared.has_owner.swap(true, Ordering::AcqRel) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the set serves one thread"));
        }
        let created_io = MultishotIo::new(Arc::clone(&self.shared), self.buffer_count);
        if created_io.is_err() {
            self.shared.has_owner.store(false, Ordering::Release);
        }
        created_io
    }

    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        let raw_fd = socket.as_raw_fd();
        // A duplicated descriptor: the caller's number may name another file when the thread uses it.
        let socket = Arc::new(socket.try_clone_to_owned()?);
        self.shared.change(|sockets_watched| {
            if sockets_watched.sockets.len() >= Self::SOCKETS_MAX {
                return Err(io::Error::other("the set is full"));
            }
            if sockets_watched.sockets.contains_key(&raw_fd) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            sockets_watched.sockets.insert(raw_fd, (handle, Arc::clone(&socket)));
            sockets_watched.changes.push(Change::Add { raw_fd, handle, socket });
            Ok(())
        })
    }

    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let raw_fd = socket.as_raw_fd();
        self.shared.change(|sockets_watched| {
            sockets_watched.sockets.remove(&raw_fd).ok_or(io::ErrorKind::NotFound)?;
            sockets_watched.changes.push(Change::Remove { raw_fd });
            Ok(())
        })
    }

    fn wake(&self) {
        self.shared.signals.wake();
    }

    fn set_timer(&self, at: Option<MonoNs>) {
        self.shared.signals.set_timer(at);
    }

    fn has_unapplied_changes(&self) -> bool {
        let sockets_watched = self.shared.sockets_watched.lock().unwrap_or_else(PoisonError::into_inner);
        !sockets_watched.changes.is_empty() || sockets_watched.are_being_applied
    }

    fn delivers_data(&self) -> bool {
        true
    }
}

/// What any thread may ask of a set, which only its own thread may change in the ring.
#[derive(Debug)]
struct SocketRegistry {
    signals: Signals,
    /// Written by threads that add or remove sockets, read by the set's thread if `changed` is set.
    sockets_watched: Mutex<WatchedSockets>,
    changed: AtomicBool,
    has_owner: AtomicBool,
    buffer_exhaustions: AtomicU64,
}

#[derive(Debug, Default)]
struct WatchedSockets {
    sockets: HashMap<RawFd, (Handle, Arc<OwnedFd>)>,
    changes: Vec<Change>,
    /// The set's thread has taken changes and has not applied all of them.
    are_being_applied: bool,
}

#[derive(Debug)]
enum Change {
    Add { raw_fd: RawFd, handle: Handle, socket: Arc<OwnedFd> },
    Remove { raw_fd: RawFd },
}

impl SocketRegistry {
    fn change(&self, change: impl FnOnce(&mut WatchedSockets) -> io::Result<()>) -> io::Result<()> {
        change(&mut self.sockets_watched.lock().unwrap_or_else(PoisonError::into_inner))?;
        // Release pairs with the Acquire in `apply_changes`.
        self.changed.store(true, Ordering::Release);
        self.signals.wake();
        Ok(())
    }
}

/// The thread's part: the ring, its buffers and its sockets.
#[derive(Debug)]
pub struct MultishotIo {
    ring: Ring,
    shared: Arc<SocketRegistry>,
    buffers: BufferRing,
    /// Describes to the kernel the layout of a buffer; read whenever a receive is armed.
    message_template: PinnedArray<libc::msghdr>,
    slots: Vec<SocketSlot>,
    /// Filled buffers of a slot form a chain: for each buffer its successor and its length in bytes.
    chain: Box<[(u16, u32)]>,
    /// Slots with filled buffers, each once; the last wait announced the first `announced` of them.
    ready_slots: VecDeque<u16>,
    announced: usize,
    /// Slots whose receive is to be armed.
    idle: Vec<u16>,
    /// Slots to be freed.
    closing_done: Vec<u16>,
    timer: Signal,
    wake: Signal,
    fault: Option<io::Error>,
}

/// A socket that the ring watches.
#[derive(Debug)]
struct SocketSlot {
    raw_fd: RawFd,
    handle: Handle,
    state: SlotState,
    /// Open until the receive has ended. `None` in a free slot.
    socket: Option<Arc<OwnedFd>>,
    first: u16,
    last: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// The slot has no socket.
    Free,
    /// The slot is in `idle`: its receive is to be armed.
    Idle,
    /// The receive of the handle is armed.
    Receiving,
    /// The socket was removed, but its receive has not ended yet.
    Closing,
    /// The kernel refused to receive; out of service until it is removed.
    Failed,
}

/// A descriptor that is polled for as long as the thread's part lives.
#[derive(Clone, Copy, Debug, Default)]
struct Signal {
    armed: bool,
    /// The descriptor fired and the event was not returned yet.
    fired: bool,
}

impl MultishotIo {
    fn new(shared: Arc<SocketRegistry>, buffer_count: u16) -> io::Result<Self> {
        // Every filled buffer and every request has a completion, so the queue never overflows.
        let ring = Ring::new(SUBMISSIONS, COMPLETIONS + 2 * u32::from(buffer_count))?;
        let buffers = BufferRing::new(&ring, buffer_count)?;
        {
            let mut sockets_watched = shared.sockets_watched.lock().unwrap_or_else(PoisonError::into_inner);
            let WatchedSockets { sockets, changes, .. } = &mut *sockets_watched;
            changes.clear();
            changes.extend(sockets.iter().map(|(raw_fd, (handle, socket))| Change::Add {
                raw_fd: *raw_fd,
                handle: *handle,
                socket: Arc::clone(socket),
            }));
            shared.changed.store(true, Ordering::Release);
        }
        Ok(Self {
            ring,
            shared,
            buffers,
            message_template: PinnedArray::new(1, |_| provided::message_template()),
            slots: Vec::with_capacity(MultishotSet::SOCKETS_MAX),
            chain: vec![(NONE, 0); usize::from(buffer_count)].into(),
            ready_slots: VecDeque::with_capacity(MultishotSet::SOCKETS_MAX),
            announced: 0,
            idle: Vec::with_capacity(MultishotSet::SOCKETS_MAX),
            closing_done: Vec::with_capacity(MultishotSet::SOCKETS_MAX),
            timer: Signal::default(),
            wake: Signal::default(),
            fault: None,
        })
    }

    /// Arms all requests that must be in place before the thread waits.
    fn prepare(&mut self) -> io::Result<()> {
        self.retire_announced();
        // Acquire pairs with the Release in `SocketRegistry::change`. The relaxed load first, since changes are very rare.
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
            (Request::Timer, &mut self.timer.armed, self.shared.signals.timer_fd()),
            (Request::Wake, &mut self.wake.armed, self.shared.signals.wake_fd()),
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

    /// Removes announced slots whose data was fetched from the queue. The other announced slots go behind the
    /// unannounced ones.
    fn retire_announced(&mut self) {
        for _ in 0..std::mem::take(&mut self.announced) {
            let Some(slot) = self.ready_slots.pop_front() else { break };
            if self.slots[usize::from(slot)].first != NONE {
                self.ready_slots.push_back(slot);
            }
        }
    }

    fn apply_changes(&mut self) -> io::Result<()> {
        let changes = {
            let mut sockets_watched = self.shared.sockets_watched.lock().unwrap_or_else(PoisonError::into_inner);
            sockets_watched.are_being_applied = true;
            std::mem::take(&mut sockets_watched.changes)
        };
        for change in changes {
            match change {
                Change::Add { raw_fd, handle, socket } => self.open(raw_fd, handle, socket)?,
                Change::Remove { raw_fd } => self.close(raw_fd)?,
            }
        }
        self.shared.sockets_watched.lock().unwrap_or_else(PoisonError::into_inner).are_being_applied = false;
        Ok(())
    }

    fn open(&mut self, raw_fd: RawFd, handle: Handle, socket: Arc<OwnedFd>) -> io::Result<()> {
        let opened =
            SocketSlot { raw_fd, handle, state: SlotState::Idle, socket: Some(socket), first: NONE, last: NONE };
        let free = self.slots.iter().position(|slot| slot.state == SlotState::Free);
        let number = free.unwrap_or(self.slots.len());
        let slot = u16::try_from(number).map_err(io::Error::other)?;
        match self.slots.get_mut(number) {
            Some(slot) => *slot = opened,
            None => self.slots.push(opened),
        }
        self.idle.push(slot);
        Ok(())
    }

    fn close(&mut self, raw_fd: RawFd) -> io::Result<()> {
        let in_use =
            |slot: &SocketSlot| slot.raw_fd == raw_fd && !matches!(slot.state, SlotState::Free | SlotState::Closing);
        let Some(number) = self.slots.iter().position(in_use) else { return Ok(()) };
        let Ok(slot) = u16::try_from(number) else { return Ok(()) };
        while let Some((id, _)) = self.next_filled_buffer(slot) {
            self.buffers.provide(id);
        }
        self.ready_slots.retain(|on_other| *on_other != slot);
        if self.slots[number].state == SlotState::Receiving {
            return self.cancel_receive(slot);
        }
        self.idle.retain(|on_other| *on_other != slot);
        self.free(slot);
        Ok(())
    }

    fn cancel_receive(&mut self, slot: u16) -> io::Result<()> {
        self.slots[usize::from(slot)].state = SlotState::Closing;
        let cancel = opcode::AsyncCancel::new(Request::Multishot(slot).user_data()).build();
        // SAFETY: the request holds no pointer.
        unsafe { self.ring.push(cancel, Request::Cancel) }
    }

    /// Ends all receives, so that the ring holds no socket any more. The kernel ends the requests of a closed ring some
    /// time later only, and until then their sockets would keep their ports. Never waits inside the kernel, and not for long:
    /// the completion of a cancelled receive may be lost, and a thread that stops must end all the same.
    fn end_receives(&mut self) -> io::Result<()> {
        for number in 0..self.slots.len() {
            if let (SlotState::Receiving, Ok(slot)) = (self.slots[number].state, u16::try_from(number)) {
                self.cancel_receive(slot)?;
            }
        }
        let deadline = mono_now().plus(END_NS_MAX);
        loop {
            self.ring.enter(0)?;
            self.reap(|_, _| {});
            if self.slots.iter().all(|slot| slot.state != SlotState::Closing) {
                return Ok(());
            }
            if mono_now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(END_POLL_INTERVAL);
        }
    }

    fn free(&mut self, slot: u16) {
        let slot = &mut self.slots[usize::from(slot)];
        slot.state = SlotState::Free;
        slot.socket = None;
    }

    fn arm(&mut self, slot: u16) -> io::Result<()> {
        let Some(socket) = &self.slots[usize::from(slot)].socket else { return Ok(()) };
        let message_template = self.message_template.at(0);
        // Not a registered socket: after a kill the kernel would keep that for tens of milliseconds, and a new process could
        // not bind the port. A receive is armed so seldom that looking up the descriptor costs nothing.
        let receive = opcode::RecvMsgMulti::new(types::Fd(socket.as_raw_fd()), message_template, GROUP).build();
        // SAFETY: the kernel reads `message_template`, which lives as long as `self`. It writes to buffers of the
        // group, which it owns until it has filled them, and which are taken back before they are freed (`drop`).
        unsafe { self.ring.push(receive, Request::Multishot(slot))? };
        self.slots[usize::from(slot)].state = SlotState::Receiving;
        Ok(())
    }

    /// Reaps completions; `on_other` gets those of other requests.
    fn reap(&mut self, mut on_other: impl FnMut(Request, i32)) {
        let Self { ring, slots, chain, ready_slots, buffers, idle, closing_done, timer, wake, fault, shared, .. } =
            self;
        ring.completions(|request, result, flags| {
            let more = cqueue::more(flags);
            match request {
                Request::Timer => *timer = Signal { armed: more, fired: true },
                Request::Wake => *wake = Signal { armed: more, fired: true },
                Request::Multishot(number) => {
                    let slot = &mut slots[usize::from(number)];
                    if let Some(id) = cqueue::buffer_select(flags) {
                        buffers.on_buffer_used();
                        match u32::try_from(result) {
                            Ok(bytes) if slot.state == SlotState::Receiving => {
                                chain[usize::from(id)] = (NONE, bytes);
                                if slot.first == NONE {
                                    slot.first = id;
                                    ready_slots.push_back(number);
                                } else {
                                    chain[usize::from(slot.last)].0 = id;
                                }
                                slot.last = id;
                            }
                            _ => buffers.provide(id),
                        }
                    }
                    if !more && slot.state == SlotState::Closing {
                        closing_done.push(number);
                    } else if !more {
                        match classify_receive_end(result) {
                            ReceiveEnd::Rearm => {}
                            ReceiveEnd::NoBuffer => {
                                shared.buffer_exhaustions.fetch_add(1, Ordering::Relaxed);
                            }
                            ReceiveEnd::Failed(error) => {
                                slot.state = SlotState::Failed;
                                *fault = fault.take().or(Some(error));
                                return;
                            }
                        }
                        slot.state = SlotState::Idle;
                        idle.push(number);
                    }
                }
                _ => on_other(request, result),
            }
        });
        while let Some(slot) = self.closing_done.pop() {
            self.free(slot);
        }
    }

    /// Takes the first filled buffer from a slot's chain: its number and its length in bytes.
    fn next_filled_buffer(&mut self, slot: u16) -> Option<(u16, u32)> {
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
        let nothing = self.ready_slots.is_empty() && !self.timer.fired && !self.wake.fired;
        match wait {
            Wait::Block if nothing => {
                self.ring.enter(1)?;
            }
            // Spinning costs a read of memory: the ring is entered only for a queued request or if the kernel has
            // flagged work.
            _ if self.ring.is_idle() => {}
            _ => {
                self.ring.enter(0)?;
            }
        }
        self.reap(|_, _| {});
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        // A poll reports an expiry even if the timer was set again since.
        self.timer.fired = self.timer.fired && self.shared.signals.take_expiry();
        let mut room = room;
        for (signal, event) in [(&mut self.wake, Event::Wake), (&mut self.timer, Event::Timer)] {
            if signal.fired && room > 0 {
                signal.fired = false;
                room -= 1;
                events.push(event);
            }
        }
        self.announced = room.min(self.ready_slots.len());
        let announced = self.ready_slots.iter().take(self.announced);
        events.extend(announced.map(|slot| Event::Provided(self.slots[usize::from(*slot)].handle)));
        Ok(())
    }

    fn release_wait(&mut self) -> io::Result<()> {
        Ok(()) // there is no other thread to lead
    }

    /// Reads the sockets directly, without the ring: for handles that are not in the set.
    fn receive(&mut self, sockets: &[(Line, RawFd)], batch: &mut ReceiveBatch) -> io::Result<LineSet> {
        receive_round_robin(sockets, batch)
    }

    fn take_provided(&mut self, handle: Handle, batch: &mut ReceiveBatch) {
        let mut announced = self.ready_slots.iter().take(self.announced);
        let of_handle = |slot: &&u16| self.slots.get(usize::from(**slot)).is_some_and(|slot| slot.handle == handle);
        let Some(&slot) = announced.find(of_handle) else { return };
        while batch.room() > 0
            && let Some((id, bytes)) = self.next_filled_buffer(slot)
        {
            // SAFETY: the kernel filled the buffer with that many bytes and gave it up with its completion; it left the
            // chain, so the batch alone holds it.
            let pushed = unsafe { batch.push_provided(&self.buffers.buffers, id, bytes as usize, handle.line) };
            if !matches!(pushed, Ok(true)) {
                // The batch holds another ring's buffers, a mistake of the caller: the datagram is lost.
                self.buffers.provide(id);
            }
        }
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

impl Drop for MultishotIo {
    fn drop(&mut self) {
        // After an error the ring's requests end when the kernel ends them; nothing else depends on it.
        let _ring_failed = self.end_receives();
        self.buffers.unregister(&self.ring);
        self.shared.has_owner.store(false, Ordering::Release);
    }
}

/// Why a multishot receive ended.
enum ReceiveEnd {
    /// No fault: the receive is armed again.
    Rearm,
    /// No buffer was left.
    NoBuffer,
    /// The kernel refuses to receive from the socket.
    Failed(io::Error),
}

fn classify_receive_end(result: i32) -> ReceiveEnd {
    if result >= 0 {
        return ReceiveEnd::Rearm;
    }
    let error = io::Error::from_raw_os_error(-result);
    match -result {
        libc::ENOBUFS => ReceiveEnd::NoBuffer,
        libc::ECANCELED | libc::EAGAIN => ReceiveEnd::Rearm,
        _ if is_past_send_error(&error) => ReceiveEnd::Rearm,
        _ => ReceiveEnd::Failed(error),
    }
}

/// How long a thread that ends waits for its cancelled receives, ns. They take microseconds.
const END_NS_MAX: u64 = 200_000_000;
const END_POLL_INTERVAL: Duration = Duration::from_micros(50);
/// No buffer: the end of a slot's chain.
const NONE: u16 = u16::MAX;

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, os::fd::AsFd};

    use super::*;
    use crate::handle_set::backend_tests::{self, SocketPair};

    backend_tests::for_each_backend_test!(|| MultishotSet::new(MultishotSet::BUFFERS).unwrap());

    #[test]
    fn datagrams_wait_in_the_socket_while_no_buffer_is_free() {
        let set = MultishotSet::new(16).unwrap();
        let pairs = [SocketPair::new(0, Line::A), SocketPair::new(0, Line::B)];
        let mut io = set.thread_io().unwrap();
        for pair in &pairs {
            set.add(pair.receiver.as_fd(), pair.handle).unwrap();
            (0..100_u8).for_each(|number| assert_eq!(pair.sender.send(&[number]).unwrap(), 1));
        }
        let (mut events, mut next) = (Vec::new(), [0_u8; 2]);
        // The batches hold all buffers at times, and are cleared in no particular order.
        let mut batches: Vec<_> = (0..3).map(|_| ReceiveBatch::new(7, 64)).collect();
        for turn in 0.. {
            if next == [100, 100] {
                break;
            }
            events.clear();
            io.wait(Wait::Poll, 8, &mut events).unwrap();
            for event in &events {
                let Event::Provided(handle) = *event else { continue };
                let batch = &mut batches[(turn * 2) % 3];
                batch.clear();
                io.take_provided(handle, batch);
                for datagram in batch.iter() {
                    let next = &mut next[usize::from(handle.line.0)];
                    assert_eq!(datagram.bytes, [*next]);
                    *next += 1;
                }
            }
            batches[turn % 3].clear();
        }
        assert!(set.buffer_exhaustions() > 0, "200 datagrams found 16 buffers");
    }

    #[test]
    fn provided_buffers_outlive_the_ring_that_filled_them() {
        let set = MultishotSet::new(16).unwrap();
        let pair = SocketPair::new(0, Line::A);
        set.add(pair.receiver.as_fd(), pair.handle).unwrap();
        let mut io = set.thread_io().unwrap();
        let mut batch = ReceiveBatch::new(8, 64);
        pair.sender.send(b"kept").unwrap();
        let mut events = Vec::new();
        while batch.is_empty() {
            events.clear();
            io.wait(Wait::Block, 8, &mut events).unwrap();
            io.take_provided(pair.handle, &mut batch);
        }
        drop(io);
        pair.sender.send(b"later").unwrap();
        assert_eq!(batch.get(0).unwrap().bytes, b"kept");

        // A new thread's part takes over the sockets; the batch holds the old part's buffer until it is cleared.
        let mut io = set.thread_io().unwrap();
        batch.clear();
        while batch.is_empty() {
            events.clear();
            io.wait(Wait::Block, 8, &mut events).unwrap();
            io.take_provided(pair.handle, &mut batch);
        }
        assert_eq!(batch.get(0).unwrap().bytes, b"later");
    }

    #[test]
    fn a_thread_ends_although_the_end_of_a_cancelled_receive_is_lost() {
        let set = MultishotSet::new(16).unwrap();
        let mut io = set.thread_io().unwrap();
        let handle = SocketPair::new(0, Line::A).handle;
        let state = SlotState::Closing;
        io.slots.push(SocketSlot { raw_fd: -1, handle, state, socket: None, first: NONE, last: NONE });
        drop(io);
        set.thread_io().unwrap();
    }

    #[test]
    fn a_port_is_free_as_soon_as_the_thread_has_ended() {
        for _ in 0..20 {
            let set = MultishotSet::new(16).unwrap();
            let pairs: Vec<_> = (0..8).map(|channel| SocketPair::new(channel, Line::A)).collect();
            let mut io = set.thread_io().unwrap();
            for pair in &pairs {
                set.add(pair.receiver.as_fd(), pair.handle).unwrap();
                assert_eq!(pair.sender.send(b"x").unwrap(), 1);
            }
            let mut events = Vec::new();
            while events.len() < pairs.len() {
                io.wait(Wait::Block, 8, &mut events).unwrap();
            }
            let addresses: Vec<_> = pairs.iter().map(|pair| pair.receiver.local_addr().unwrap()).collect();
            drop((io, set, pairs));
            for address in addresses {
                UdpSocket::bind(address).unwrap();
            }
        }
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
    fn invalid_buffer_counts_are_refused() {
        for count in [0, 8, 1_000, 8_192] {
            assert_eq!(MultishotSet::new(count).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
