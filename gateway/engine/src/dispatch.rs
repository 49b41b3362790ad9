//! Dispatch: which thread processes which channel, and when.
//!
//! This module has the two traits that the rest of the gateway is written against: [`ChannelHandler`] says what a
//! channel's handler must do, [`Dispatch`] what every dispatch model offers. [`pool`] holds the model of the gateway,
//! Leader/Followers. [`half_sync`] and [`reactor`] hold the two models that it is measured against, for users to whom one
//! of them is worth more; both run [`pool`]'s turn.
//!
//! ```text
//!   follower --promoted--> leader: wait, claim ready channels, promote one --> processing: drain the claimed channels
//!      ^                                                                                     |
//!      +------------- token held, run queue empty <------------------------------------------+
//! ```
//! Invariants, each with its module and model-checked there:
//! - At most one thread leads, and some thread always notices a free token (`token`).
//! - At most one thread touches a channel. Its holder, or the next holder, processes every event posted to the channel
//!   (`claim`).
//! - The timer expires no later than the earliest deadline of any channel that no thread holds (`deadline_timer`).
//!
//! No lock is held while a channel is processed, and no thread ever waits for a channel.

pub mod half_sync;
pub mod pool;
pub mod reactor;
pub mod roles;

mod claim;
mod deadline_timer;
mod park;
mod pool_state;
mod sync;
mod threads;
mod token;
mod turn;

#[cfg(all(test, not(feature = "loom")))]
mod context_switches;
#[cfg(all(test, feature = "loom"))]
mod models;
#[cfg(all(test, not(feature = "loom")))]
mod parking;
#[cfg(all(test, not(feature = "loom")))]
mod testing;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::{io, os::fd::BorrowedFd, sync::Arc};

use mdgw_feeds::time::{MonoNs, UnixNs};
use mdgw_sys::{
    affinity::PinError,
    batch::ReceiveBatch,
    handle::{ChannelIndex, Handle, LineSet},
    progress::ProgressCounter,
};

use crate::{
    dispatch::roles::Gauges,
    handle_set::{HandleSet, ThreadIo},
};

/// The data path of one channel. One thread at a time calls the handler, in order; different threads call it over time.
/// Each call sees what the previous call wrote. A handler never blocks, and after warm-up it never allocates or takes a
/// lock.
///
/// A call that panics or returns [`Failure`] takes the channel out of service. The pool then calls [`Self::on_failed`]
/// once, and only [`Self::on_failed_deadline`] after that.
///
/// By default a channel has no deadline, takes no messages, and does not report its failure.
pub trait ChannelHandler: Send + 'static {
    /// State that a thread keeps for all channels it serves: receive buffers, histograms.
    type Local: 'static;
    /// Messages from other threads to a running channel: recovered data, a change of the fence.
    type Message: Send + 'static;

    /// Receives from the sockets of `lines` and processes what was received, at most `quota` packets. Lines that may
    /// still hold data are returned in [`Progress::unfinished_lines`].
    ///
    /// A ready line may turn out to be empty, or to have no socket any more.
    ///
    /// # Errors
    /// A failure after which the channel cannot continue.
    fn on_ready<I: ThreadIo>(
        &mut self,
        lines: LineSet,
        quota: usize,
        context: &mut TurnContext<'_, I, Self::Local>,
    ) -> Result<Progress, Failure>;

    /// Processes all datagrams that the last wait delivered for this handle ([`ThreadIo::take_provided`]).
    ///
    /// # Errors
    /// A failure after which the channel cannot continue.
    fn on_provided<I: ThreadIo>(
        &mut self,
        handle: Handle,
        context: &mut TurnContext<'_, I, Self::Local>,
    ) -> Result<Progress, Failure>;

    /// The deadline has passed, and everything received before `now` has been drained.
    ///
    /// # Errors
    /// A failure after which the channel cannot continue.
    fn on_deadline<I: ThreadIo>(
        &mut self,
        _now: MonoNs,
        _context: &mut TurnContext<'_, I, Self::Local>,
    ) -> Result<(), Failure> {
        Ok(())
    }

    /// Another thread sent the channel a message ([`Dispatch::send`]).
    ///
    /// # Errors
    /// A failure after which the channel cannot continue.
    fn on_message<I: ThreadIo>(
        &mut self,
        _message: Self::Message,
        _context: &mut TurnContext<'_, I, Self::Local>,
    ) -> Result<(), Failure> {
        Ok(())
    }

    /// Time of the next call of [`Self::on_deadline`], or of [`Self::on_failed_deadline`] once the channel is out of
    /// service. The pool reads it after every other call.
    fn next_deadline(&self) -> Option<MonoNs> {
        None
    }

    /// The lines that have a socket. All of them are drained before a deadline is handled.
    fn lines(&self) -> LineSet;

    /// The channel is out of service from now on. Its state is as the failed call left it.
    fn on_failed<I: ThreadIo>(&mut self, _reason: &FailReason, _context: &mut TurnContext<'_, I, Self::Local>) {}

    /// The deadline of a channel that is out of service has passed: the handler may publish that state again. After a
    /// panic here or in [`Self::on_failed`], the pool never calls the handler again.
    fn on_failed_deadline<I: ThreadIo>(&mut self, _now: MonoNs, _context: &mut TurnContext<'_, I, Self::Local>) {}
}

/// Resources for one call of a handler. All of them belong to the calling thread for the duration of the call.
#[derive(Debug)]
pub struct TurnContext<'a, I, L> {
    /// The thread's I/O: it receives and sends.
    pub io: &'a mut I,
    /// The calling thread's [`ChannelHandler::Local`].
    pub local: &'a mut L,
    /// Time at which the wait for this work returned: one clock read for the whole batch.
    pub now: MonoNs,
    /// The same time on the clock of the kernel's receive timestamps.
    pub woken_at: UnixNs,
    /// Number of the thread in its pool, from 0.
    pub thread: usize,
}

/// Result of a handler's call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Packets taken from sockets.
    pub packets: usize,
    /// Lines that may still hold data. No new readiness event comes for them, so the pool calls the handler again.
    pub unfinished_lines: LineSet,
}

/// A handler's reason why its channel cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub &'static str);

/// Why a channel is out of service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailReason {
    /// The handler panicked, with the panic's text.
    #[error("handler panicked: {0}")]
    Panicked(String),
    /// The handler returned [`Failure`].
    #[error("handler failed: {0}")]
    Failed(&'static str),
}

/// A dispatch model.
pub trait Dispatch<S: HandleSet, H: ChannelHandler>: Sized {
    /// The model needs at least that many threads.
    const THREADS_MIN: usize = 1;

    /// How many handle sets the model needs for that many threads.
    #[must_use]
    fn set_count(_thread_count: usize) -> usize {
        1
    }

    /// Starts the threads. Returns when all of them run, pinned and with their I/O created. `sets` are
    /// [`Self::set_count`] sets, of the same kind. The position of a handler in `channels` is its [`ChannelIndex`]. Each
    /// thread that calls handlers calls `local` once with its number.
    ///
    /// # Errors
    /// See [`StartError`]. On an error all threads have ended.
    fn start(
        config: &DispatchConfig,
        sets: Vec<Arc<S>>,
        channels: Vec<H>,
        local: impl Fn(usize) -> H::Local + Send + Sync + 'static,
    ) -> Result<Self, StartError>;

    /// Starts to watch a socket of a channel, and wakes the waiting thread.
    ///
    /// # Errors
    /// As [`HandleSet::add`]; `InvalidInput` for a channel that does not exist.
    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()>;

    /// Stops watching a socket. Earlier readiness may still reach the handler, so the handler should close the socket:
    /// remove it here first, then [send](Self::send) the channel a message.
    ///
    /// # Errors
    /// As [`HandleSet::remove`].
    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()>;

    /// Puts a channel into a vacant slot. A thread of the pool soon reads its first deadline; then [add](Self::add) its
    /// sockets. For cold threads.
    ///
    /// # Errors
    /// Returns the handler if there is no such slot or it is not vacant. A model whose channels are
    /// [fixed](DispatchModel::has_spare_slots) has no vacant slot.
    fn insert(&self, _channel: ChannelIndex, handler: H) -> Result<(), H> {
        Err(handler)
    }

    /// Takes a channel out of service for good: [remove](Self::remove) its sockets before. Its present or next holder ends
    /// after the call of the handler in progress; what it did not handle is dropped.
    fn retire(&self, _channel: ChannelIndex) {}

    /// The handler of a retired channel, once no thread can touch it any more; `None` before: ask again. Its slot is vacant
    /// then.
    fn take_retired(&self, _channel: ChannelIndex) -> Option<H> {
        None
    }

    /// Sends a message to a channel. The thread that processes the channel next reads it. Any thread may call this.
    ///
    /// # Errors
    /// Returns the message if the channel's inbox is full, or if the channel does not exist or has failed.
    fn send(&self, channel: ChannelIndex, message: H::Message) -> Result<(), H::Message>;

    /// Why a channel is out of service; `None` while it is in service, and for a vacant slot.
    fn failed(&self, channel: ChannelIndex) -> Option<FailReason>;

    /// Why the pool has stopped by itself; `None` while it runs.
    fn fault(&self) -> Option<String>;

    /// The present roles of the threads, and their counters.
    fn gauges(&self) -> Gauges;

    /// Finishes the work in progress, wakes and joins all threads, and returns the handlers in the order of their slots.
    /// Unread data stays in the sockets.
    fn shutdown(self) -> Vec<H>;
}

/// Which thread processes which channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DispatchModel {
    /// [`pool::Pool`]
    #[default]
    LeaderFollowers,
    /// [`half_sync::HalfSync`]
    HalfSync,
    /// [`reactor::Reactor`]
    Reactor,
}

impl DispatchModel {
    /// Whether channels can come and go while it runs. The other models give each channel to one thread at the start.
    #[must_use]
    pub fn has_spare_slots(self) -> bool {
        self == Self::LeaderFollowers
    }

    /// Threads that wait on one handle set of the model, in turn, when it has that many threads.
    #[must_use]
    pub fn waiting_threads(self, thread_count: usize) -> usize {
        match self {
            Self::LeaderFollowers => thread_count,
            // One thread waits, but others own what it would deliver: the set must not deliver datagrams.
            Self::HalfSync => thread_count.max(2),
            Self::Reactor => 1,
        }
    }
}

/// Settings of a dispatch model.
#[derive(Clone, Debug)]
pub struct DispatchConfig {
    /// Prefix of the threads' names; the thread's number is appended.
    pub name: String,
    /// One entry per thread.
    pub threads: Vec<ThreadConfig>,
    /// Wait strategy of the threads.
    pub wait: WaitPolicy,
    /// When a follower is promoted; the default is [`PromotionPolicy::default_for`].
    pub promotion: Option<PromotionPolicy>,
    /// Maximum number of events that one turn claims, 1..=256. A larger number costs less per packet, but binds more
    /// channels to one thread; 8 to 64 is a good range.
    pub batch_events_max: usize,
    /// Maximum number of packets that one claim takes, 1..=1024, so that a busy channel cannot occupy a thread. The reorder
    /// window must be larger than the number of messages in that many packets.
    pub quota_packets: usize,
    /// How long a thread spins before it parks ([`WaitPolicy::SpinThenPark`]).
    pub spin_ns: u64,
    /// How long a leader with the `lazy` policy may keep the lead while it processes. One claim's work may come on top.
    pub stall_ns_max: u64,
    /// Maximum number of messages in a channel's inbox.
    pub inbox_messages_max: usize,
    /// Vacant slots behind those of the channels, for channels that are [inserted](Dispatch::insert) later.
    pub spare_channels: usize,
    /// Largest datagram that the model receives itself ([`half_sync`]). Larger ones are truncated.
    pub datagram_bytes_max: usize,
}

impl Default for DispatchConfig {
    /// One thread, not pinned.
    fn default() -> Self {
        Self {
            name: "mdgw".to_owned(),
            threads: vec![ThreadConfig::default()],
            wait: WaitPolicy::SpinThenPark,
            promotion: None,
            batch_events_max: 32,
            quota_packets: 64,
            spin_ns: 50_000,
            stall_ns_max: 50_000,
            inbox_messages_max: 512,
            spare_channels: 0,
            datagram_bytes_max: ReceiveBatch::DATAGRAM_BYTES_MAX,
        }
    }
}

/// Where and how one thread runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadConfig {
    /// Core to which the thread is pinned; `None` leaves the choice to the kernel, for tests and demonstrations.
    pub core: Option<usize>,
    /// Real-time priority (`SCHED_FIFO`, 1..=99); `None` keeps the present scheduling class.
    pub fifo_priority: Option<u8>,
    /// Counter through which another process can see that the thread makes progress; `None`: not observed.
    pub progress: Option<ProgressCounter>,
}

/// Wait strategy of a thread, both as leader (for events) and as follower (for promotion).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitPolicy {
    /// The leader and one follower spin; the other followers park.
    Spin,
    /// Every waiting thread sleeps in the kernel.
    Park,
    /// First spin, then park.
    SpinThenPark,
}

/// When the leader promotes a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PromotionPolicy {
    /// Always before processing.
    Strict,
    /// Before processing only if the claimed work is expected to take longer than waking a follower. Otherwise the
    /// leader keeps the lead, at most for [`DispatchConfig::stall_ns_max`] and one claim's work.
    Lazy,
}

impl PromotionPolicy {
    /// Strict if followers spin, since a spinning follower leads at once; lazy if followers park.
    #[must_use]
    pub fn default_for(wait: WaitPolicy) -> Self {
        match wait {
            WaitPolicy::Spin => Self::Strict,
            WaitPolicy::Park | WaitPolicy::SpinThenPark => Self::Lazy,
        }
    }
}

/// Why a dispatch model could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is out of range or does not fit the others.
    #[error("{0}")]
    InvalidSetting(&'static str),
    /// Two threads on one core.
    #[error("core {0} is used by two threads of one pool")]
    DuplicateCore(usize),
    /// The kernel refused to run a thread on its configured core.
    #[error("thread {thread}: {source}")]
    Pin {
        /// Number of the thread in its pool, from 0.
        thread: usize,
        /// The kernel's error.
        source: PinError,
    },
    /// The kernel refused a thread's real-time priority.
    #[error("thread {thread}: cannot set real-time priority {priority}: {source}")]
    Priority {
        /// Number of the thread in its pool, from 0.
        thread: usize,
        /// The requested priority, 1..=99.
        priority: u8,
        /// The kernel's error.
        source: io::Error,
    },
    /// A thread or its I/O could not be created.
    #[error("thread {thread}: cannot {action}: {source}")]
    Thread {
        /// Number of the thread in its pool, from 0.
        thread: usize,
        /// What the pool tried to do, for the error text.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}
