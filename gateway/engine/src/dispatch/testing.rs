//! An edge-triggered handle set in memory, and channels that check how they are called.

use std::{
    collections::VecDeque,
    io,
    os::fd::{BorrowedFd, RawFd},
    sync::{
        Arc, Condvar, Mutex,
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
    dispatch::{ChannelHandler, FailReason, Failure, Progress, TurnContext},
    handle_set::{Event, HandleSet, ThreadIo, Wait},
};

/// A queue of ready handles. A handle that is in the queue already is not added again; taking it out forgets it until
/// the next packet: an edge.
#[derive(Default)]
pub(super) struct MemorySet {
    state: Mutex<State>,
    changed: Condvar,
    waiting: AtomicUsize,
    /// Waits that found another thread waiting.
    pub(super) concurrent_waits: AtomicUsize,
    /// While set, waits fail.
    pub(super) fail_waits: AtomicBool,
    /// Blocking waits that have begun.
    pub(super) blocking_waits: AtomicUsize,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Event>,
    timer: Option<MonoNs>,
}

impl MemorySet {
    pub(super) fn post(&self, event: Event) {
        let mut state = self.state.lock().unwrap();
        if !state.ready.contains(&event) {
            state.ready.push_back(event);
        }
        self.changed.notify_all();
    }

    pub(super) fn is_drained(&self) -> bool {
        self.state.lock().unwrap().ready.is_empty()
    }
}

/// The thread's part: a reference to the set.
pub(super) struct MemoryIo(Arc<MemorySet>);

/// The set as a pool takes it. The test keeps a reference to the same memory.
pub(super) struct SharedSet(pub(super) Arc<MemorySet>);

impl HandleSet for SharedSet {
    type Io = MemoryIo;

    fn thread_io(&self) -> io::Result<MemoryIo> {
        Ok(MemoryIo(self.0.clone()))
    }

    fn add(&self, _socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        self.0.post(Event::Ready(handle));
        self.wake();
        Ok(())
    }

    fn remove(&self, _socket: BorrowedFd<'_>) -> io::Result<()> {
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        self.0.post(Event::Wake);
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
        if wait == Wait::Block {
            set.blocking_waits.fetch_add(1, SeqCst);
        }
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
            state = set.changed.wait_timeout(state, Duration::from_nanos(wait_ns_max)).unwrap().0;
        }
        set.waiting.fetch_sub(1, SeqCst);
        if set.fail_waits.load(SeqCst) { Err(io::Error::other("broken")) } else { Ok(()) }
    }

    fn release_wait(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, _sockets: &[(Line, RawFd)], _batch: &mut ReceiveBatch) -> io::Result<LineSet> {
        Ok(LineSet::default())
    }

    fn send(&mut self, _packets: &SendBatch<'_>) -> io::Result<usize> {
        Ok(0)
    }
}

/// The test's side of a channel: its input and its observations.
pub(super) struct ChannelProbe {
    set: Arc<MemorySet>,
    channel: ChannelIndex,
    lines: [Mutex<VecDeque<u64>>; LINES],
    busy: AtomicBool,
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
        Arc::new(Self {
            set: set.clone(),
            channel: ChannelIndex(channel),
            lines: Default::default(),
            busy: AtomicBool::new(false),
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

    /// Puts a packet into the socket without an event.
    pub(super) fn queue_without_event(&self, line: usize, packet: u64) {
        self.lines[line].lock().unwrap().push_back(packet);
    }

    /// Puts a packet into the socket, with its event.
    pub(super) fn send(&self, line: usize, packet: u64) {
        self.queue_without_event(line, packet);
        self.set.post(Event::Ready(self.handle(line)));
    }

    pub(super) fn handle(&self, line: usize) -> Handle {
        Handle { channel: self.channel, line: Line(u8::try_from(line).unwrap()) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.lock().unwrap().is_empty())
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
    pub(super) fn drain(&mut self, lines: LineSet, quota: usize) -> Result<Progress, Failure> {
        let probe = self.probe.clone();
        probe.enter();
        let mut progress = Progress::default();
        for index in (0..LINES).filter(|index| lines.contains(probe.handle(*index).line)) {
            loop {
                if progress.packets == quota {
                    progress.unfinished_lines = progress.unfinished_lines.with(probe.handle(index).line);
                    break;
                }
                let Some(packet) = probe.lines[index].lock().unwrap().pop_front() else { break };
                progress.packets += 1;
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
                if packet != self.next[index] {
                    probe.out_of_order.fetch_add(1, SeqCst);
                }
                // Gives a second thread the chance to overtake between reading a packet and recording it.
                std::thread::yield_now();
                self.next[index] = packet + 1;
                probe.processed.fetch_add(1, SeqCst);
            }
        }
        probe.packets_per_call_max.fetch_max(progress.packets, SeqCst);
        probe.leave();
        Ok(progress)
    }
}

impl ChannelHandler for TestChannel {
    type Local = usize;
    type Message = u64;

    fn on_ready<I: ThreadIo>(
        &mut self,
        lines: LineSet,
        quota: usize,
        context: &mut TurnContext<'_, I, usize>,
    ) -> Result<Progress, Failure> {
        assert_eq!(*context.local, context.thread, "a thread's local state stays with the thread");
        self.drain(lines, quota)
    }

    fn on_provided<I: ThreadIo>(
        &mut self,
        handle: Handle,
        _context: &mut TurnContext<'_, I, usize>,
    ) -> Result<Progress, Failure> {
        self.drain(LineSet::default().with(handle.line), usize::MAX)
    }

    fn on_deadline<I: ThreadIo>(
        &mut self,
        now: MonoNs,
        _context: &mut TurnContext<'_, I, usize>,
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
        _context: &mut TurnContext<'_, I, usize>,
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

    fn on_failed<I: ThreadIo>(&mut self, reason: &FailReason, _context: &mut TurnContext<'_, I, usize>) {
        *self.probe.failed.lock().unwrap() = Some(reason.clone());
        self.deadline = self.period_ns.map(|period_ns| mono_now().plus(period_ns));
    }

    fn on_failed_deadline<I: ThreadIo>(&mut self, now: MonoNs, _context: &mut TurnContext<'_, I, usize>) {
        let calls = self.probe.calls_after_failure.fetch_add(1, SeqCst) + 1;
        self.deadline = self.period_ns.map(|period_ns| now.plus(period_ns));
        assert!(calls < self.probe.panic_at_call_after_failure.load(SeqCst), "a panic after the failure");
    }
}

/// Waits for a state, with a bound that only a hung test reaches.
pub(super) fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let start = mono_now();
    while !reached() {
        assert!(mono_now().since(start) < 60_000_000_000, "not reached in a minute: {what}");
        std::thread::yield_now();
    }
}
