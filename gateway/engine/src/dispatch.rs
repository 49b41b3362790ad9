//! Dispatch: which thread processes which channel when.
//!
//! Here are the two traits that the rest of the gateway is written against: what a channel's handler must do
//! ([`ChannelHandler`]), and what every dispatch model offers ([`Dispatch`]). [`pool`] is the model there is:
//! Leader/Followers.
//!
//! ```text
//!   follower --promoted--> leader: wait, claim what is ready, promote one --> processing: drain the claimed channels
//!      ^                                                                                     |
//!      +------------- token held, nothing laid by <------------------------------------------+
//! ```
//! Invariants, each with its module and model-checked there:
//! - At most one thread leads, and a free token is always seen by somebody (`token`).
//! - At most one thread touches a channel, and whatever was brought to it is processed by its holder or the next
//!   (`claim`).
//! - The timer goes off no later than the earliest deadline of any channel that nobody holds (`deadline_timer`).
//!
//! What is absent: no lock is held while a channel is processed, and no thread ever waits for a channel.

pub mod pool;
pub mod roles;

mod claim;
mod deadline_timer;
mod park;
mod shared;
mod sync;
mod token;
mod turn;

#[cfg(all(test, not(feature = "loom")))]
mod context_switches;
#[cfg(all(test, feature = "loom"))]
mod models;
#[cfg(all(test, not(feature = "loom")))]
mod testing;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::{io, os::fd::BorrowedFd, sync::Arc};

use mdgw_feeds::time::{MonoNs, UnixNs};
use mdgw_sys::{
    affinity::PinError,
    handle::{ChannelIndex, Handle, LineSet},
    progress::ProgressCounter,
};

use crate::{
    dispatch::roles::Gauges,
    handle_set::{HandleSet, ThreadIo},
};

/// One channel's straight line. Called by one thread at a time, in order, and by different threads over time: what one
/// call wrote the next one sees. A handler never blocks, and never allocates or takes a lock after warm-up.
///
/// A call that panics or returns [`Failure`] takes the channel out of service: [`Self::on_failed`] follows, and then
/// [`Self::on_failed_deadline`] alone.
pub trait ChannelHandler: Send + 'static {
    /// What a thread keeps for all the channels that it serves: receive buffers, histograms.
    type Local: 'static;
    /// What other threads may tell a running channel: a socket to use from now on, recovered data, a position.
    type Message: Send + 'static;

    /// Drains the sockets of `lines` until each is short, but takes no more than `quota` packets.
    ///
    /// A marked line may turn out to be empty, or to have no socket any more.
    ///
    /// # Errors
    /// What the channel cannot go on after.
    fn on_ready<I: ThreadIo>(
        &mut self,
        lines: LineSet,
        quota: usize,
        context: &mut TurnContext<'_, I, Self::Local>,
    ) -> Result<Progress, Failure>;

    /// Takes all the datagrams that already came for this handle ([`ThreadIo::lent`]).
    ///
    /// # Errors
    /// What the channel cannot go on after.
    fn on_provided<I: ThreadIo>(
        &mut self,
        handle: Handle,
        context: &mut TurnContext<'_, I, Self::Local>,
    ) -> Result<Progress, Failure>;

    /// The deadline has passed, and everything that had come in before `now` has been drained.
    ///
    /// # Errors
    /// What the channel cannot go on after.
    fn on_deadline<I: ThreadIo>(
        &mut self,
        now: MonoNs,
        context: &mut TurnContext<'_, I, Self::Local>,
    ) -> Result<(), Failure>;

    /// Somebody told the channel something ([`Dispatch::send`]).
    ///
    /// # Errors
    /// What the channel cannot go on after.
    fn on_message<I: ThreadIo>(
        &mut self,
        message: Self::Message,
        context: &mut TurnContext<'_, I, Self::Local>,
    ) -> Result<(), Failure>;

    /// When [`Self::on_deadline`] wants to be called, or [`Self::on_failed_deadline`] once the channel is out of service. Asked
    /// after every other call.
    fn next_deadline(&self) -> Option<MonoNs>;

    /// The lines that have a socket: all of them are drained before a deadline is acted on.
    fn lines(&self) -> LineSet;

    /// The channel is out of service from now on. Its state is as the failed call left it.
    fn on_failed<I: ThreadIo>(&mut self, reason: &FailReason, context: &mut TurnContext<'_, I, Self::Local>);

    /// The deadline of a channel that is out of service has passed: it may say again that it is. A panic here, or in
    /// [`Self::on_failed`], silences it for good.
    fn on_failed_deadline<I: ThreadIo>(&mut self, now: MonoNs, context: &mut TurnContext<'_, I, Self::Local>);
}

/// What a call of a handler may use: all of it belongs to the calling thread, for this call.
#[derive(Debug)]
pub struct TurnContext<'a, I, L> {
    /// Receiving and sending.
    pub io: &'a mut I,
    /// The thread's own part of the handlers' state.
    pub local: &'a mut L,
    /// When the wait returned that brought the work; one clock read for the whole batch.
    pub now: MonoNs,
    /// The same moment on the clock of the kernel's receive stamps.
    pub woken_at: UnixNs,
    /// Number of the thread in its pool, from 0.
    pub thread: usize,
}

/// What a call of a handler did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Packets taken from sockets.
    pub packets: usize,
    /// Lines that may still hold data. No new readiness comes for them; the pool calls again.
    pub unfinished_lines: LineSet,
}

/// Why a handler says that its channel can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub &'static str);

/// Why a channel is out of service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailReason {
    /// Its handler panicked.
    #[error("handler panicked: {0}")]
    Panicked(String),
    /// Its handler said so.
    #[error("handler failed: {0}")]
    Failed(&'static str),
}

/// A dispatch model over one handle set.
pub trait Dispatch<S: HandleSet, H: ChannelHandler>: Sized {
    /// Starts the threads and returns when all of them run, pinned, with their I/O made. The position of a handler in
    /// `channels` is its [`ChannelIndex`]. `local` is called once on each thread, with the thread's number.
    ///
    /// # Errors
    /// See [`StartError`]. No thread is left behind.
    fn start(
        config: &DispatchConfig,
        set: Arc<S>,
        channels: Vec<H>,
        local: impl Fn(usize) -> H::Local + Send + Sync + 'static,
    ) -> Result<Self, StartError>;

    /// Watches a socket of a channel, from now on. Wakes whoever waits.
    ///
    /// # Errors
    /// As [`HandleSet::add`]; a channel that doesn't exist is `InvalidInput`.
    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()>;

    /// Stops watching a socket. Readiness that was seen before may still reach the handler, so it is the handler that
    /// should close the socket: remove it here, then [tell](Self::send) the channel.
    ///
    /// # Errors
    /// As [`HandleSet::remove`].
    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()>;

    /// Tells a channel something, to be read by whoever processes it next. May be called by any thread.
    ///
    /// # Errors
    /// The message comes back when the channel's inbox is full, or the channel doesn't exist or has failed.
    fn send(&self, channel: ChannelIndex, message: H::Message) -> Result<(), H::Message>;

    /// Why a channel is out of service; `None` while it isn't.
    fn failed(&self, channel: ChannelIndex) -> Option<FailReason>;

    /// Why the model has stopped by itself; `None` while it runs.
    fn fault(&self) -> Option<String>;

    /// What the threads are doing and have done.
    fn gauges(&self) -> Gauges;

    /// Ends the work in hand, wakes and joins all threads, and gives the handlers back in their order. Data that still
    /// lies in sockets stays there.
    fn shutdown(self) -> Vec<H>;
}

/// How a dispatch model is set up.
#[derive(Clone, Debug)]
pub struct DispatchConfig {
    /// Name of the threads; a number is added.
    pub name: String,
    /// One entry per thread.
    pub threads: Vec<ThreadConfig>,
    /// How a thread waits.
    pub wait: WaitPolicy,
    /// When a follower is promoted; by default as [`PromotionPolicy::default_for`] says.
    pub promotion: Option<PromotionPolicy>,
    /// Events that one turn claims at most, 1..=1024. More cost less per packet and bind more channels to one thread;
    /// 8 to 64 is where it pays.
    pub batch_events_max: usize,
    /// Packets that one claim takes at most, so that a hot channel can't keep a thread. The reorder window must be
    /// larger than what that many packets can hold.
    pub quota_packets: usize,
    /// How long a thread spins before it parks ([`WaitPolicy::SpinThenPark`]).
    pub spin_ns: u64,
    /// How long `lazy` may keep the lead while processing, to which one claim's work may come.
    pub stall_ns_max: u64,
    /// Messages that a channel's inbox holds at most.
    pub inbox_messages_max: usize,
}

impl Default for DispatchConfig {
    /// One thread, anywhere.
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
        }
    }
}

/// Where and how one thread runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadConfig {
    /// The core that it is pinned to; `None` leaves it to the kernel, for tests and demonstrations.
    pub core: Option<usize>,
    /// Real-time priority (`SCHED_FIFO`, 1..=99); `None` leaves the class as it is.
    pub fifo_priority: Option<u8>,
    /// Where it shows how far it has got, if anybody looks.
    pub progress: Option<ProgressCounter>,
}

/// How a thread waits, leader for events or follower for promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitPolicy {
    /// The leader looks again and again, and so does one follower; the others park.
    Spin,
    /// Everybody sleeps in the kernel.
    Park,
    /// First spin, then park.
    SpinThenPark,
}

/// When the leader promotes a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PromotionPolicy {
    /// Always before processing.
    Strict,
    /// Before processing only when the claimed work is expected to take longer than a wake is worth; else it keeps the
    /// lead, no longer than [`DispatchConfig::stall_ns_max`] and one claim's work.
    Lazy,
}

impl PromotionPolicy {
    /// Strict where a follower spins and is there in no time, lazy where followers park.
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
    /// A setting that can't be.
    #[error("{0}")]
    InvalidSetting(&'static str),
    /// Two threads on one core.
    #[error("core {0} is configured for two threads of one pool")]
    DuplicateCore(usize),
    /// The kernel would not run a thread where it was configured.
    #[error("thread {thread}: {source}")]
    Pin {
        /// Number of the thread.
        thread: usize,
        /// What was refused.
        source: PinError,
    },
    /// The kernel would not give a thread its priority.
    #[error("thread {thread}: cannot set real-time priority {priority}: {source}")]
    Priority {
        /// Number of the thread.
        thread: usize,
        /// What was asked for.
        priority: u8,
        /// What the kernel said.
        source: io::Error,
    },
    /// A thread could not be made, or its I/O.
    #[error("thread {thread}: cannot {action}: {source}")]
    Thread {
        /// Number of the thread.
        thread: usize,
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}
