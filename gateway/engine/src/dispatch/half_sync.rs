//! Half-sync/half-async: one thread receives, the others process, with a bounded queue between.
//!
//! ```text
//!                                    queue of worker 1   ──►  worker 1: channels 0, 2, 4 ...
//!   handle set ──►  receiving thread
//!                                    queue of worker 2   ──►  worker 2: channels 1, 3, 5 ...
//! ```
//! The thread with number 0 waits, receives into batches of the model, and hands over each batch with its channel
//! ([`receiver`]). Channel `c` belongs to worker `c % workers` for ever, and a queue is first in, first out, so a channel's
//! order is kept. A worker does what a thread of Leader/Followers does with a claimed channel ([`Worker`]); its handler
//! takes the datagrams as those of a set that delivers data ([`QueuedIo::take_provided`]).
//!
//! The receiving thread empties the sockets while workers are busy, which a burst may need. The price is the hand-off:
//! each datagram crosses from one core's cache to another's, and an idle worker has to be woken.
//!
//! **A full queue.** The receiving thread leaves the datagrams in the socket, counts it (`queue_full`), and goes on with
//! the other workers' channels. The worker wakes it when its queue is half empty. What does not fit into the socket
//! meanwhile is dropped and counted by the kernel, as in every model.
//!
//! **The end.** The receiving thread ends first. The workers process what it has handed over, then end too.

mod queue;
mod receiver;
mod sleeper;

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Release},
    },
    thread,
    time::Duration,
};

use crossbeam_queue::ArrayQueue;
use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    affinity,
    batch::{ReceiveBatch, SendBatch},
    handle::{ChannelIndex, Handle, LineSet},
};

use self::{
    queue::{Work, WorkQueue},
    receiver::Receiver,
};
use super::{
    claim::PendingEvents,
    pool::{Pool, worker},
    pool_state::PoolState,
    roles::Gauges,
    threads::StartSignal,
    turn::Worker,
};
use crate::{
    dispatch::{ChannelHandler, Dispatch, DispatchConfig, FailReason, StartError, WaitPolicy},
    handle_set::{Event, HandleSet, ThreadIo, Wait},
};

/// A running receiving thread and its workers. Dropping it shuts it down.
pub struct HalfSync<S: HandleSet + 'static, H: ChannelHandler> {
    pool: Pool<QueuedSet<S>, H>,
}

impl<S: HandleSet + 'static, H: ChannelHandler> Dispatch<S, H> for HalfSync<S, H> {
    const THREADS_MIN: usize = 2;

    fn start(
        config: &DispatchConfig,
        sets: Vec<Arc<S>>,
        channels: Vec<H>,
        local: impl Fn(usize) -> H::Local + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let set = sets.into_iter().next().ok_or(StartError::InvalidSetting("half-sync needs a handle set"))?;
        if config.threads.len() < 2 {
            return Err(StartError::InvalidSetting(
                "half-sync needs two threads or more: one receives, the others process",
            ));
        }
        if set.delivers_data() {
            // Its datagrams lie in the ring of the thread that waits, and return to it from that thread only.
            return Err(StartError::InvalidSetting(
                "half-sync cannot hand over the datagrams of a handle set that delivers them",
            ));
        }
        let set = Arc::new(QueuedSet::new(set, config));
        let mut pool =
            Pool::set_up(config, 0, set, channels, move |shared, index, signal| match index.checked_sub(1) {
                None => receive(shared, signal),
                Some(queue) => process(shared, queue, signal, &local),
            })?;
        pool.begin();
        Ok(Self { pool })
    }

    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        self.pool.add(socket, handle)
    }

    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.pool.remove(socket)
    }

    fn send(&self, channel: ChannelIndex, message: H::Message) -> Result<(), H::Message> {
        self.pool.send(channel, message)
    }

    fn failed(&self, channel: ChannelIndex) -> Option<FailReason> {
        self.pool.failed(channel)
    }

    fn fault(&self) -> Option<String> {
        self.pool.fault()
    }

    fn gauges(&self) -> Gauges {
        self.pool.gauges()
    }

    fn shutdown(self) -> Vec<H> {
        self.pool.shutdown()
    }
}

/// Main function of the receiving thread.
fn receive<S: HandleSet, H: ChannelHandler>(
    shared: &PoolState<QueuedSet<S>, H>,
    signal: &StartSignal,
) -> Result<(), StartError> {
    let _input_ends = InputEnd(&*shared.set);
    let io = shared.set.set.thread_io().map_err(|source| StartError::Thread {
        thread: signal.number(),
        action: "set up its I/O",
        source,
    })?;
    let mut receiver = Receiver::new(shared, io);
    if signal.is_opened() {
        receiver.run();
    }
    Ok(())
}

/// Main function of the worker that owns the queue with that index.
fn process<S: HandleSet, H: ChannelHandler>(
    shared: &PoolState<QueuedSet<S>, H>,
    queue: usize,
    signal: &StartSignal,
    local: &impl Fn(usize) -> H::Local,
) -> Result<(), StartError> {
    let mut worker = worker(shared, queue + 1, signal.number(), local)?;
    if signal.is_opened() {
        run_worker(shared, &shared.set.queues[queue], queue + 1, &mut worker);
    }
    Ok(())
}

fn run_worker<S: HandleSet, H: ChannelHandler>(
    shared: &PoolState<QueuedSet<S>, H>,
    queue: &WorkQueue,
    index: usize,
    worker: &mut Worker<'_, QueuedSet<S>, H>,
) {
    let gauges = &shared.gauges[index];
    while let Some(item) = queue.next(&shared.set.is_input_over, &shared.settings, gauges) {
        let pending = match item.work {
            Work::Datagrams(batch) => {
                worker.io().incoming = Incoming::Undelivered(batch);
                PendingEvents::provided(ANY_LINE)
            }
            Work::ReceiveFailed(error) => {
                worker.io().fault = Some(error);
                PendingEvents::ready(ANY_LINE)
            }
            Work::Deadline => PendingEvents::DEADLINE,
            Work::Messages => PendingEvents::MESSAGE,
        };
        worker.process_found(item.channel, pending, item.found_at);
        let io = worker.io();
        io.fault = None; // of a channel that is out of service
        match std::mem::take(&mut io.incoming) {
            Incoming::Nothing => {}
            Incoming::Undelivered(batch) | Incoming::Delivered(batch) => queue.give_back(batch),
        }
        if queue.must_wake_receiver() {
            shared.set.wake();
        }
    }
}

/// Ends the workers once the receiving thread has ended, for whatever reason.
struct InputEnd<'s, S>(&'s QueuedSet<S>);

impl<S> Drop for InputEnd<'_, S> {
    fn drop(&mut self) {
        self.0.is_input_over.store(true, Release);
        for queue in &self.0.queues {
            queue.wake_worker();
        }
    }
}

/// The handle set, and the queues that its events go through. For workers it is a set that delivers datagrams.
struct QueuedSet<S> {
    set: Arc<S>,
    /// One for each worker.
    queues: Box<[WorkQueue]>,
    /// Sockets to be added to the receiving thread's list or removed from it, in order.
    socket_changes: ArrayQueue<SocketChange>,
    /// The receiving thread has ended: nothing is handed over any more.
    is_input_over: AtomicBool,
}

/// A change of the receiving thread's list of sockets.
enum SocketChange {
    Add { handle: Handle, raw_fd: RawFd },
    Remove { raw_fd: RawFd },
}

impl<S> QueuedSet<S> {
    fn new(set: Arc<S>, config: &DispatchConfig) -> Self {
        let rows = config.quota_packets.clamp(1, ReceiveBatch::PACKETS_MAX);
        let are_pinned = config.threads.iter().all(|thread| thread.core.is_some());
        let has_cores = are_pinned || affinity::usable_cores().len() >= config.threads.len();
        let may_spin = config.wait != WaitPolicy::Park && has_cores;
        let queue = |_| WorkQueue::new(rows, config.datagram_bytes_max, may_spin);
        Self {
            set,
            queues: (1..config.threads.len()).map(queue).collect(),
            socket_changes: ArrayQueue::new(SOCKET_CHANGES_MAX),
            is_input_over: AtomicBool::new(false),
        }
    }
}

impl<S: HandleSet> QueuedSet<S> {
    /// Leaves a change to the receiving thread. Called by cold threads, which may wait.
    fn change(&self, mut change: SocketChange) {
        while let Err(refused) = self.socket_changes.push(change) {
            if self.is_input_over.load(std::sync::atomic::Ordering::Acquire) {
                return;
            }
            change = refused;
            self.set.wake();
            thread::sleep(CHANGE_POLL);
        }
    }
}

impl<S: HandleSet> HandleSet for QueuedSet<S> {
    type Io = QueuedIo<S::Io>;

    fn thread_io(&self) -> io::Result<Self::Io> {
        Ok(QueuedIo { io: self.set.thread_io()?, incoming: Incoming::Nothing, fault: None })
    }

    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        // Before the set knows the socket: no event comes for a socket that the receiving thread does not know.
        let raw_fd = socket.as_raw_fd();
        self.change(SocketChange::Add { handle, raw_fd });
        let added = self.set.add(socket, handle);
        if added.is_err() {
            self.change(SocketChange::Remove { raw_fd });
        }
        added
    }

    /// On return the receiving thread does not read the socket any more, so the handler may close it.
    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.set.remove(socket)?;
        self.change(SocketChange::Remove { raw_fd: socket.as_raw_fd() });
        self.set.wake();
        while !self.socket_changes.is_empty() && !self.is_input_over.load(std::sync::atomic::Ordering::Acquire) {
            thread::sleep(CHANGE_POLL);
        }
        Ok(())
    }

    fn wake(&self) {
        self.set.wake();
    }

    fn set_timer(&self, at: Option<MonoNs>) {
        self.set.set_timer(at);
    }
}

/// A worker's I/O: datagrams come from its queue, packets leave by the thread's part of the set.
struct QueuedIo<I> {
    io: I,
    incoming: Incoming,
    /// Why the receiving thread could not read the channel's sockets.
    fault: Option<io::Error>,
}

/// The datagrams of the present work.
#[derive(Default)]
enum Incoming {
    #[default]
    Nothing,
    Undelivered(Box<ReceiveBatch>),
    /// The handler has them. This is the batch that it gave for them.
    Delivered(Box<ReceiveBatch>),
}

impl<I: ThreadIo> ThreadIo for QueuedIo<I> {
    fn wait(&mut self, _wait: Wait, _room: usize, _events: &mut Vec<Event>) -> io::Result<()> {
        Ok(()) // workers wait for their queue
    }

    fn release_wait(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Finds every socket empty: what the receiving thread has not read yet comes later, in its order.
    fn receive(&mut self, _sockets: &[(Line, RawFd)], _batch: &mut ReceiveBatch) -> io::Result<LineSet> {
        self.fault.take().map_or(Ok(NO_LINES), Err)
    }

    fn take_provided(&mut self, _handle: Handle, batch: &mut ReceiveBatch) {
        self.incoming = match std::mem::take(&mut self.incoming) {
            Incoming::Undelivered(mut incoming) => {
                std::mem::swap(&mut *incoming, batch);
                Incoming::Delivered(incoming)
            }
            delivered => delivered,
        };
    }

    fn send(&mut self, packets: &SendBatch<'_>) -> io::Result<usize> {
        self.io.send(packets)
    }
}

const NO_LINES: LineSet = LineSet(0);
/// A batch holds datagrams of all lines of its channel, each with its line.
const ANY_LINE: LineSet = LineSet(1);
/// Changes that may wait for the receiving thread. A cold thread waits for room beyond that.
const SOCKET_CHANGES_MAX: usize = 256;
/// How often a cold thread checks whether the receiving thread has taken its change.
const CHANGE_POLL: Duration = Duration::from_micros(100);
