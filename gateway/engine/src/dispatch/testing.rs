//! An edge-triggered handle set in memory, and channels that check how they are called.

#![allow(unsafe_code, reason = "datagrams written as the kernel does")]

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::UdpSocket,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd},
    sync::{
        Arc, Condvar, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    batch::{ReceiveBatch, SendBatch},
    clock::mono_now,
    handle::{ChannelIndex, Handle, LineSet},
};

use crate::{
    dispatch::{ChannelHandler, Dispatch, FailReason, Failure, Progress, TurnContext},
    handle_set::{Event, HandleSet, ThreadIo, Wait},
};

/// Sockets in memory, and a queue of ready handles. A handle that is in the queue already is not added again; taking it
/// out forgets it until the next packet: an edge. A socket has a handle, and so events, once it was added to the set.
#[derive(Default)]
pub(super) struct MemorySet {
    state: Mutex<State>,
    changed: Condvar,
    sockets: RwLock<HashMap<RawFd, Mutex<SocketState>>>,
    waiting: AtomicUsize,
    /// Waits that found another thread waiting.
    pub(super) concurrent_waits: AtomicUsize,
    /// While set, waits fail.
    pub(super) fail_waits: AtomicBool,
    /// While set, receives fail.
    pub(super) fail_receives: AtomicBool,
    /// Whether the set says that it delivers datagrams.
    pub(super) delivers_data: AtomicBool,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Event>,
    timer: Option<MonoNs>,
    /// A thread sleeps in a wait.
    is_waited_for: bool,
}

#[derive(Default)]
struct SocketState {
    packets: VecDeque<u64>,
    handle: Option<Handle>,
}

impl MemorySet {
    fn post(&self, event: Event) {
        let mut state = self.state.lock().unwrap();
        if !state.ready.contains(&event) {
            state.ready.push_back(event);
        }
        self.changed.notify_all();
    }

    /// Whether a thread sleeps in a wait, and no event is left that will wake it.
    pub(super) fn is_quiet(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.is_waited_for && state.ready.is_empty()
    }

    /// Opens a socket.
    fn open(&self, raw_fd: RawFd) {
        self.sockets.write().unwrap().insert(raw_fd, Mutex::default());
    }

    fn with_socket<T>(&self, raw_fd: RawFd, query: impl FnOnce(&mut SocketState) -> T) -> Option<T> {
        let sockets = self.sockets.read().unwrap_or_else(PoisonError::into_inner);
        let socket = sockets.get(&raw_fd)?;
        Some(query(&mut socket.lock().unwrap()))
    }

    /// A packet arrives, without its event yet.
    fn queue(&self, raw_fd: RawFd, packet: u64) {
        self.with_socket(raw_fd, |socket| socket.packets.push_back(packet)).unwrap();
    }

    /// The event of a socket with a handle.
    fn post_event(&self, raw_fd: RawFd, event: fn(Handle) -> Event) {
        if let Some(handle) = self.with_socket(raw_fd, |socket| socket.handle).flatten() {
            self.post(event(handle));
        }
    }

    fn is_empty(&self, raw_fd: RawFd) -> bool {
        self.with_socket(raw_fd, |socket| socket.packets.is_empty()).unwrap()
    }

    /// Moves packets into a batch, and says whether the socket may hold more.
    fn read(&self, raw_fd: RawFd, line: Line, batch: &mut ReceiveBatch) -> bool {
        while let Some(header) = batch.free_header(0) {
            let packet = self.with_socket(raw_fd, |socket| socket.packets.pop_front()).flatten();
            let Some(packet) = packet else { return false };
            // SAFETY: the header is that of a free row of the batch, which nothing else uses.
            let buffers = unsafe { (*header).msg_iov };
            // SAFETY: a row has one buffer.
            let buffer = unsafe { (*buffers).iov_base };
            // SAFETY: it has more than eight bytes.
            unsafe { buffer.cast::<[u8; 8]>().write(packet.to_le_bytes()) };
            // SAFETY: the row has just been written, with eight bytes.
            unsafe { batch.accept_completions([(line, Some(8))].into_iter()) };
        }
        true
    }
}

/// The thread's part: a reference to the set.
pub(super) struct MemoryIo(pub(super) Arc<MemorySet>);

/// The set as a pool takes it. The test keeps a reference to the same memory.
pub(super) struct SharedSet(pub(super) Arc<MemorySet>);

impl HandleSet for SharedSet {
    type Io = MemoryIo;

    fn thread_io(&self) -> io::Result<MemoryIo> {
        Ok(MemoryIo(self.0.clone()))
    }

    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        let is_ready = self.0.with_socket(socket.as_raw_fd(), |socket| {
            socket.handle = Some(handle);
            !socket.packets.is_empty()
        });
        if is_ready.ok_or(io::ErrorKind::NotFound)? {
            self.0.post(Event::Ready(handle));
        }
        self.wake();
        Ok(())
    }

    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let handle = self.0.with_socket(socket.as_raw_fd(), |socket| socket.handle.take());
        handle.flatten().ok_or(io::ErrorKind::NotFound)?;
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        self.0.post(Event::Wake);
    }

    fn delivers_data(&self) -> bool {
        self.0.delivers_data.load(SeqCst)
    }

    fn set_timer(&self, at: Option<MonoNs>) {
        self.0.state.lock().unwrap().timer = at;
        self.0.changed.notify_all();
    }
}

impl ThreadIo for MemoryIo {
    fn wait(&mut self, wait: Wait, room: usize, events: &mut Vec<Event>) -> io::Result<()> {
        let set = &*self.0;
        if set.waiting.fetch_add(1, SeqCst) > 0 {
            set.concurrent_waits.fetch_add(1, SeqCst);
        }
        let mut state = set.state.lock().unwrap();
        loop {
            let now = mono_now();
            if state.timer.take_if(|at| *at <= now).is_some() {
                state.ready.push_back(Event::Timer);
            }
            let count = room.min(state.ready.len());
            events.extend(state.ready.drain(..count));
            if !events.is_empty() || wait == Wait::Poll {
                break;
            }
            let wait_ns_max = state.timer.map_or(u64::MAX, |at| at.since(now));
            state.is_waited_for = true;
            state = set.changed.wait_timeout(state, Duration::from_nanos(wait_ns_max)).unwrap().0;
            state.is_waited_for = false;
        }
        set.waiting.fetch_sub(1, SeqCst);
        if set.fail_waits.load(SeqCst) { Err(io::Error::other("broken")) } else { Ok(()) }
    }

    fn release_wait(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, sockets: &[(Line, RawFd)], batch: &mut ReceiveBatch) -> io::Result<LineSet> {
        if self.0.fail_receives.load(SeqCst) {
            return Err(io::Error::other("broken"));
        }
        let unfinished = sockets.iter().filter(|(line, raw_fd)| self.0.read(*raw_fd, *line, batch));
        Ok(unfinished.fold(LineSet::default(), |lines, (line, _)| lines.with(*line)))
    }

    fn take_provided(&mut self, handle: Handle, batch: &mut ReceiveBatch) {
        let sockets = self.0.sockets.read().unwrap();
        let is_of_handle = |socket: &Mutex<SocketState>| socket.lock().unwrap().handle == Some(handle);
        if let Some((raw_fd, _)) = sockets.iter().find(|(_, socket)| is_of_handle(socket)) {
            self.0.read(*raw_fd, handle.line, batch);
        }
    }

    fn send(&mut self, _packets: &SendBatch<'_>) -> io::Result<usize> {
        Ok(0)
    }
}

/// The test's side of a channel: its input and its observations.
pub(super) struct ChannelProbe {
    set: Arc<MemorySet>,
    channel: ChannelIndex,
    /// Their numbers name the sockets of the set. No packet goes through the kernel.
    sockets: [UdpSocket; LINES],
    busy: AtomicBool,
    /// While set, the handler does not come back.
    pub(super) hold: AtomicBool,
    /// Packets processed.
    pub(super) processed: AtomicU64,
    /// Packets out of order.
    pub(super) out_of_order: AtomicU64,
    /// Calls while another thread was in the handler.
    pub(super) overlaps: AtomicU64,
    /// Deadlines handled while a line still held packets.
    pub(super) early_deadlines: AtomicU64,
    /// Deadlines handled.
    pub(super) deadlines: AtomicU64,
    /// Messages received.
    pub(super) messages: AtomicU64,
    /// Largest number of packets in one call.
    pub(super) packets_per_call_max: AtomicUsize,
    /// Why the channel failed, as its handler was notified.
    pub(super) failed: Mutex<Option<FailReason>>,
    /// Calls of the handler since the channel failed.
    pub(super) calls_after_failure: AtomicU64,
    /// Number of the call after the failure in which the handler panics once more.
    pub(super) panic_at_call_after_failure: AtomicU64,
}

/// Lines of every test channel.
pub(super) const LINES: usize = 2;

/// Packets that make the handler panic, and that make it return a failure.
pub(super) const PANIC_PACKET: u64 = u64::MAX;
pub(super) const FAILURE_PACKET: u64 = u64::MAX - 1;

impl ChannelProbe {
    pub(super) fn new(set: &Arc<MemorySet>, channel: u32) -> Arc<Self> {
        let sockets = [(); LINES].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        sockets.iter().for_each(|socket| set.open(socket.as_raw_fd()));
        Arc::new(Self {
            set: set.clone(),
            channel: ChannelIndex(channel),
            sockets,
            busy: AtomicBool::new(false),
            hold: AtomicBool::new(false),
            processed: AtomicU64::new(0),
            out_of_order: AtomicU64::new(0),
            overlaps: AtomicU64::new(0),
            early_deadlines: AtomicU64::new(0),
            deadlines: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            packets_per_call_max: AtomicUsize::new(0),
            failed: Mutex::new(None),
            calls_after_failure: AtomicU64::new(0),
            panic_at_call_after_failure: AtomicU64::new(u64::MAX),
        })
    }

    /// Lets a dispatch watch the channel's sockets.
    pub(super) fn watch<D: Dispatch<SharedSet, TestChannel>>(&self, dispatch: &D) {
        for line in 0..LINES {
            dispatch.add(self.sockets[line].as_fd(), self.handle(line)).unwrap();
        }
    }

    pub(super) fn socket(&self, line: usize) -> BorrowedFd<'_> {
        self.sockets[line].as_fd()
    }

    /// Puts a packet into the socket without an event.
    pub(super) fn queue_without_event(&self, line: usize, packet: u64) {
        self.set.queue(self.sockets[line].as_raw_fd(), packet);
    }

    /// Puts a packet into the socket, with its event.
    pub(super) fn send(&self, line: usize, packet: u64) {
        self.queue_without_event(line, packet);
        self.set.post_event(self.sockets[line].as_raw_fd(), Event::Ready);
    }

    /// Puts a packet into the socket, as a set does that delivers datagrams.
    pub(super) fn provide(&self, line: usize, packet: u64) {
        self.queue_without_event(line, packet);
        self.set.post_event(self.sockets[line].as_raw_fd(), Event::Provided);
    }

    pub(super) fn handle(&self, line: usize) -> Handle {
        Handle { channel: self.channel, line: Line(u8::try_from(line).unwrap()) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sockets.iter().all(|socket| self.set.is_empty(socket.as_raw_fd()))
    }

    fn enter(&self) {
        if self.busy.swap(true, SeqCst) {
            self.overlaps.fetch_add(1, SeqCst);
        }
    }

    fn leave(&self) {
        self.busy.store(false, SeqCst);
    }
}

/// The channel's handler. It checks each line's packets against the expected numbers.
pub(super) struct TestChannel {
    pub(super) probe: Arc<ChannelProbe>,
    /// Expected number of each line's next packet.
    pub(super) next: [u64; LINES],
    /// Next deadline.
    pub(super) deadline: Option<MonoNs>,
    /// Distance of the deadline from the last one, ns; `None`: no further deadline.
    pub(super) period_ns: Option<u64>,
}

impl TestChannel {
    pub(super) fn new(probe: &Arc<ChannelProbe>) -> Self {
        Self { probe: probe.clone(), next: [0; LINES], deadline: None, period_ns: None }
    }

    /// Reads lines until they are short or the quota is used up, and checks the order.
    pub(super) fn drain<I: ThreadIo>(
        &mut self,
        lines: LineSet,
        quota: usize,
        io: &mut I,
        batch: &mut ReceiveBatch,
    ) -> Result<Progress, Failure> {
        let ready = (0..LINES).filter(|line| lines.contains(self.probe.handle(*line).line));
        let sockets: Vec<_> =
            ready.map(|line| (self.probe.handle(line).line, self.probe.sockets[line].as_raw_fd())).collect();
        batch.clear_with_limit(quota);
        let unfinished_lines = io.receive(&sockets, batch).map_err(|_| Failure("a socket that fails"))?;
        Ok(Progress { packets: self.check(batch)?, unfinished_lines })
    }

    /// Checks the order of a batch's packets. Returns how many there are.
    fn check(&mut self, batch: &ReceiveBatch) -> Result<usize, Failure> {
        let probe = self.probe.clone();
        probe.enter();
        for datagram in batch.iter() {
            let packet = u64::from_le_bytes(datagram.bytes.try_into().unwrap());
            match packet {
                PANIC_PACKET => {
                    probe.leave();
                    panic!("a packet that panics");
                }
                FAILURE_PACKET => {
                    probe.leave();
                    return Err(Failure("a packet that fails"));
                }
                _ => {}
            }
            let held_since = mono_now();
            while probe.hold.load(SeqCst) {
                assert!(mono_now().since(held_since) < 2 * WAIT_NS_MAX, "held by a test that has failed");
                std::thread::yield_now();
            }
            let next = &mut self.next[usize::from(datagram.line.0)];
            if packet != *next {
                probe.out_of_order.fetch_add(1, SeqCst);
            }
            // Gives a second thread the chance to overtake between reading a packet and recording it.
            std::thread::yield_now();
            *next = packet + 1;
            probe.processed.fetch_add(1, SeqCst);
        }
        probe.packets_per_call_max.fetch_max(batch.len(), SeqCst);
        probe.leave();
        Ok(batch.len())
    }
}

/// What a thread keeps for all channels.
pub(super) struct TestLocal {
    thread: usize,
    batch: ReceiveBatch,
}

impl TestLocal {
    pub(super) fn new(thread: usize) -> Self {
        Self { thread, batch: ReceiveBatch::new(ReceiveBatch::PACKETS_MAX, 64) }
    }
}

impl ChannelHandler for TestChannel {
    type Local = TestLocal;
    type Message = u64;

    fn on_ready<I: ThreadIo>(
        &mut self,
        lines: LineSet,
        quota: usize,
        context: &mut TurnContext<'_, I, TestLocal>,
    ) -> Result<Progress, Failure> {
        assert_eq!(context.local.thread, context.thread, "a thread's local state stays with the thread");
        self.drain(lines, quota, context.io, &mut context.local.batch)
    }

    fn on_provided<I: ThreadIo>(
        &mut self,
        handle: Handle,
        context: &mut TurnContext<'_, I, TestLocal>,
    ) -> Result<Progress, Failure> {
        assert_eq!(context.local.thread, context.thread, "a thread's local state stays with the thread");
        let mut packets = 0;
        loop {
            context.local.batch.clear();
            context.io.take_provided(handle, &mut context.local.batch);
            match self.check(&context.local.batch)? {
                0 => return Ok(Progress { packets, unfinished_lines: LineSet::default() }),
                taken => packets += taken,
            }
        }
    }

    fn on_deadline<I: ThreadIo>(
        &mut self,
        now: MonoNs,
        _context: &mut TurnContext<'_, I, TestLocal>,
    ) -> Result<(), Failure> {
        self.probe.enter();
        if !self.probe.is_empty() {
            self.probe.early_deadlines.fetch_add(1, SeqCst);
        }
        self.deadline = self.period_ns.map(|period_ns| now.plus(period_ns));
        self.probe.deadlines.fetch_add(1, SeqCst);
        self.probe.leave();
        Ok(())
    }

    fn on_message<I: ThreadIo>(
        &mut self,
        _message: u64,
        _context: &mut TurnContext<'_, I, TestLocal>,
    ) -> Result<(), Failure> {
        self.probe.enter();
        self.probe.messages.fetch_add(1, SeqCst);
        self.probe.leave();
        Ok(())
    }

    fn next_deadline(&self) -> Option<MonoNs> {
        self.deadline
    }

    fn lines(&self) -> LineSet {
        LineSet(3)
    }

    fn on_failed<I: ThreadIo>(&mut self, reason: &FailReason, _context: &mut TurnContext<'_, I, TestLocal>) {
        *self.probe.failed.lock().unwrap() = Some(reason.clone());
        self.deadline = self.period_ns.map(|period_ns| mono_now().plus(period_ns));
    }

    fn on_failed_deadline<I: ThreadIo>(&mut self, now: MonoNs, _context: &mut TurnContext<'_, I, TestLocal>) {
        let calls = self.probe.calls_after_failure.fetch_add(1, SeqCst) + 1;
        self.deadline = self.period_ns.map(|period_ns| now.plus(period_ns));
        assert!(calls < self.probe.panic_at_call_after_failure.load(SeqCst), "a panic after the failure");
    }
}

/// Bound of every wait, ns: only a hung test reaches it.
const WAIT_NS_MAX: u64 = 60_000_000_000;

/// Waits for a state, at most [`WAIT_NS_MAX`].
pub(super) fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let start = mono_now();
    while !reached() {
        assert!(mono_now().since(start) < WAIT_NS_MAX, "not reached in a minute: {what}");
        std::thread::yield_now();
    }
}
