//! The election thread: drives a core, writes the fence, and implements the latch for the gateway.
//!
//! ```text
//!   latch ─┐                          ┌─► fence            written by the election thread alone
//!   pair link, sentinel ─► inbox ─► core ─► backend        on its own thread: answers come through the inbox
//!   backend's answers ─┘              ├─► listeners        on their own thread; the wait for them has a limit
//!                                     └─► hooks            pair link, operator, the group's channels
//! ```
//! The thread waits only for its inbox, for time, and, within a limit, for listeners. So a slow store, listener or disk
//! cannot delay it. The thread records how late it wakes: its stalls.

mod inbox;
mod listeners;
mod measure;
#[cfg(test)]
mod tests;
mod thread;

use std::{
    convert::Infallible,
    fmt, io,
    net::SocketAddrV4,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use mdgw_sys::{clock::mono_now, fence::Fence};
use mdgw_wire::{identity::Epoch, time::MonoNs};

pub use self::inbox::{Inbox, InboxReceiver, inbox};
pub use self::measure::{StoreLatency, measure};
use self::{
    listeners::{ListenerEvent, Listeners},
    thread::ElectionThread,
};
use super::{
    core::{CloseReason, Core, GroupPlacement, Input, Notice, Pin, Role, View},
    fitness::{Eligibility, Fitness},
    identity::{Member, NodeId, NodeName},
    latch::{Closed, HandOverError, LeaderLatch, Listener, ListenerId},
    peer::PeerMessage,
    record::ConfigVersion,
    register::{Register, RegisterRequest},
    timing::LeaseTiming,
};
use crate::identity::DeathNotice;

/// The backend of a core, as the election thread sees it: takes a request and returns at once.
pub trait Backend<R>: Send {
    /// Called once, when the election thread begins.
    fn begin(&mut self) {}

    /// Sends a request. The answer comes through the [`Inbox`] that the backend was made with.
    fn ask(&mut self, request: R);
}

impl Backend<RegisterRequest> for Box<dyn Register> {
    fn begin(&mut self) {
        self.watch();
    }

    fn ask(&mut self, request: RegisterRequest) {
        request.submit_to(&mut **self);
    }
}

/// The election's connections to the rest of the gateway. Called on the election thread: each method must return at
/// once.
pub trait ElectionHooks: Send {
    /// Sends over the pair link, which may lose the message.
    fn to_peer(&mut self, to: NodeId, message: PeerMessage) {
        let _ = (to, message);
    }

    /// Called at each turn of the election thread, at least once in a tenth of a second.
    fn on_iteration(&mut self) {}

    /// Updates a second fence behind the first, such as the kernel fence. Called with the deadline before the fence
    /// opens or its deadline moves, and with `None` after the fence was closed.
    fn update_second_fence(&mut self, epoch: Epoch, deadline: Option<MonoNs>) {
        let _ = (epoch, deadline);
    }

    /// The fence was opened or closed: channels should check it at once.
    fn on_fence_change(&mut self) {}

    /// Called again and again after the fence was closed, until it returns that no send is outstanding.
    fn is_drained(&mut self) -> bool {
        true
    }

    /// The former leader has handed over to this gateway: its leadership under `epoch` has ended.
    fn on_peer_output_ended(&mut self, epoch: Epoch) {
        let _ = epoch;
    }

    /// The election has learned of that epoch, of any gateway. Its own one is passed before the fence opens under it.
    fn on_epoch(&mut self, epoch: Epoch) {
        let _ = epoch;
    }

    /// Returns the highest credible epoch observed on the wire, and who sent the packet, if a packet carried it. The
    /// election asks at most once in [`OBSERVATION_INTERVAL_NS`] after a change; [`Election::wake`] makes it ask sooner
    /// than at its next turn.
    fn observed_epoch(&mut self) -> Option<(Epoch, Option<SocketAddrV4>)> {
        None
    }

    /// The core has a notice for the operator. `from`: who sent the packet that the notice is about, if known.
    fn on_notice(&mut self, notice: &Notice, from: Option<SocketAddrV4>) {
        let _ = (notice, from);
    }

    /// The leader has raised its epoch `count` times since the last call, to `epoch` in the end. The first raise is reported
    /// at once, those of the next second together, and all before the leadership is reported as lost.
    fn on_raised(&mut self, epoch: Epoch, count: u64) {
        let _ = (epoch, count);
    }

    /// Leadership under that epoch was gained (`lost` is `None`) or lost. A raise gains the leadership anew.
    fn on_leadership(&mut self, epoch: Epoch, lost: Option<CloseReason>) {
        let _ = (epoch, lost);
    }
}

/// How an election is driven.
#[derive(Clone, Debug)]
pub struct ElectionOptions {
    /// Number of the group, for threads and logs.
    pub group: u16,
    /// Timing of the lease.
    pub timing: LeaseTiming,
    /// The CPU core to which the thread is pinned; never one of a pool's.
    pub core: Option<usize>,
    /// SCHED_FIFO priority, where allowed.
    pub fifo_priority: Option<u8>,
    /// How long the thread waits for listeners before the fence opens, ns.
    pub listeners_ns_max: u64,
    /// The gateways to which this gateway's state is sent twice per renewal period.
    pub peers: Vec<NodeId>,
}

/// The election of one group, as its gateway sees it: the one implementation of [`LeaderLatch`], for every core.
#[derive(Clone)]
pub struct Election {
    shared: Arc<DriverState>,
    send_input: Arc<dyn Fn(Input<Infallible>) -> bool + Send + Sync>,
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("state", &*self.shared.state()).finish_non_exhaustive()
    }
}

/// State shared by the latch and the election thread.
struct DriverState {
    fence: Arc<Fence>,
    timing: LeaseTiming,
    state: Mutex<ElectionState>,
    changed: Condvar,
    listeners: Listeners,
    /// Starts the election thread. [`LeaderLatch::start`] takes it, so the thread is started once.
    launch: Mutex<Option<Launch>>,
}

type Launch = Box<dyn FnOnce(Arc<DriverState>) -> io::Result<()> + Send>;

#[derive(Debug, Default)]
struct ElectionState {
    view: View,
    /// Why the last requested hand-over failed.
    hand_over_failed: Option<String>,
    /// The thread has ended, or will never begin.
    has_ended: bool,
    stalls: Option<Histogram<u64>>,
    /// Stalls longer than half of the margin.
    alarming_stalls: u64,
}

impl Election {
    /// An election that begins with [`LeaderLatch::start`]. The fence is closed until the election opens it, and only
    /// the election writes it.
    pub fn new<C, B>(
        core: C,
        backend: B,
        fence: Arc<Fence>,
        receiver: InboxReceiver<C::Event>,
        inbox: &Inbox<C::Event>,
        hooks: Box<dyn ElectionHooks>,
        options: ElectionOptions,
    ) -> Self
    where
        C: Core + Send + 'static,
        C::Event: Send + 'static,
        B: Backend<C::Request> + 'static,
    {
        let timing = options.timing;
        let launch: Launch =
            Box::new(move |shared| ElectionThread::new(core, backend, receiver, hooks, shared, options).launch());
        let shared = DriverState {
            fence,
            timing,
            state: Mutex::default(),
            changed: Condvar::new(),
            listeners: Listeners::default(),
            launch: Mutex::new(Some(launch)),
        };
        let inbox = inbox.clone();
        let send_input = move |input: Input<Infallible>| match input {
            Input::Peer { .. } | Input::Died(_) => inbox.send_received(input.widen()),
            _ => {
                inbox.send(input.widen());
                true
            }
        };
        Self { shared: Arc::new(shared), send_input: Arc::new(send_input) }
    }

    /// Passes a message of the pair link to the election. The caller has authenticated the sender. `false`: too many wait,
    /// and this one is lost.
    pub fn receive_from_peer(&self, from: NodeId, message: PeerMessage) -> bool {
        (self.send_input)(Input::Peer { from, message })
    }

    /// Passes a death notice to the election. The caller has authenticated the notice. `false`: too many wait, and this one
    /// is lost.
    pub fn died(&self, notice: DeathNotice) -> bool {
        (self.send_input)(Input::Died(notice))
    }

    /// A higher epoch was observed on the wire: the election asks for it at once.
    pub fn wake(&self) {
        (self.send_input)(Input::Time);
    }

    /// Notifies the election whether the hot threads make progress.
    pub fn set_progress(&self, progress: super::core::Progress) {
        (self.send_input)(Input::Progress(progress));
    }

    /// Notifies the election where leadership belongs, computed over all groups.
    pub fn set_placement(&self, place: GroupPlacement) {
        (self.send_input)(Input::Placement(place));
    }

    /// Notifies the election that another gateway has received output of the present leadership.
    pub fn set_output_received(&self) {
        (self.send_input)(Input::OutputReceived);
    }

    /// Notifies the election whether the two gateways have lately produced different records for one message.
    pub fn set_output_mismatch(&self, has_output_mismatch: bool) {
        (self.send_input)(Input::OutputMismatch(has_output_mismatch));
    }

    /// Notifies the election of a configuration that was reloaded.
    pub fn set_configuration(&self, configuration: ConfigVersion) {
        (self.send_input)(Input::Configuration(configuration));
    }

    /// An operator admits that gateway as a candidate.
    pub fn admit(&self, node: NodeId, name: NodeName) {
        (self.send_input)(Input::Admit(node, name));
    }

    /// A peer requested leadership: hands over to it as [`LeaderLatch::hand_over`] does, without waiting. A refusal is
    /// logged.
    pub fn begin_hand_over(&self, target: NodeId) {
        (self.send_input)(Input::HandOver(Some(target)));
    }

    /// Distribution of the election thread's delays, ns, and how many exceeded half of the margin. The thread woke
    /// late, or one iteration took that long.
    #[must_use]
    pub(crate) fn stalls(&self) -> Option<(Histogram<u64>, u64)> {
        let state = self.shared.state();
        state.stalls.clone().map(|stalls| (stalls, state.alarming_stalls))
    }

    /// Number of delays of the election thread of at least L − M: long enough to end a lease.
    #[must_use]
    pub fn long_stalls(&self) -> u64 {
        let timing = &self.shared.timing;
        let stalls = self.stalls().map(|(stalls, _)| stalls);
        stalls.map_or(0, |stalls| stalls.count_between(timing.lease_ns.saturating_sub(timing.margin_ns), u64::MAX))
    }

    /// Waits until `until` returns a value for the state, at most for `limit`.
    fn wait<T>(&self, limit: Option<Duration>, mut until: impl FnMut(&mut ElectionState) -> Option<T>) -> Option<T> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.shared.state();
        loop {
            if let Some(found) = until(&mut state) {
                return Some(found);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            state = match left {
                Some(Duration::ZERO) => return None,
                Some(left) => self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn lease(&self) -> Duration {
        Duration::from_nanos(self.shared.timing.lease_ns)
    }
}

/// Shortest time between two observed epochs that reach a core, ns.
pub const OBSERVATION_INTERVAL_NS: u64 = thread::OBSERVATION_INTERVAL_NS;

impl LeaderLatch for Election {
    fn start(&self) -> Result<(), Closed> {
        let launch = self.shared.launch.lock().unwrap_or_else(PoisonError::into_inner).take();
        match launch {
            Some(launch) => launch(Arc::clone(&self.shared)).map_err(|error| {
                tracing::error!(%error, "cannot start the election thread");
                self.shared.end();
                Closed
            }),
            None if self.shared.state().has_ended => Err(Closed),
            None => Ok(()),
        }
    }

    fn close(&self) {
        if self.shared.launch.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            return self.shared.end();
        }
        (self.send_input)(Input::Close);
        // A store that does not answer cannot be notified; the lease then expires.
        let limit = Some(2 * self.lease());
        let ended = self.wait(limit, |state| state.has_ended.then_some(()));
        if ended.is_none() {
            tracing::warn!("leadership was not released in time: the other gateways wait for the lease to expire");
        }
    }

    fn has_leadership(&self) -> bool {
        self.shared.fence.is_open_at(mono_now())
    }

    fn await_leadership(&self) -> Result<Epoch, Closed> {
        let led = self.wait(None, ElectionState::led_or_ended);
        led.flatten().ok_or(Closed)
    }

    fn await_leadership_for(&self, limit: Duration) -> Result<Option<Epoch>, Closed> {
        match self.wait(Some(limit), ElectionState::led_or_ended) {
            Some(Some(epoch)) => Ok(Some(epoch)),
            Some(None) => Err(Closed),
            None => Ok(None),
        }
    }

    fn listen(&self, listener: Arc<dyn Listener>) -> ListenerId {
        self.shared.listeners.add(listener)
    }

    fn unlisten(&self, listener: ListenerId) {
        self.shared.listeners.remove(listener);
    }

    fn view(&self) -> View {
        self.shared.state().view.clone()
    }

    fn hand_over(&self, target: Option<NodeId>) -> Result<Member, HandOverError> {
        let own = {
            let mut state = self.shared.state();
            if state.view.role != Role::Leader {
                return Err(HandOverError::NotLeader);
            }
            state.hand_over_failed = None;
            state.view.leader.clone()
        };
        (self.send_input)(Input::HandOver(target));
        let outcome = self.wait(Some(4 * self.lease()), |state| {
            let failed = state.hand_over_failed.take().map(|why| Err(HandOverError::Failed(why)));
            let leader = state.view.leader.clone().filter(|leader| Some(leader) != own.as_ref());
            failed.or_else(|| leader.map(Ok))
        });
        outcome
            .unwrap_or_else(|| Err(HandOverError::Failed("no gateway took over within four lease lengths".to_owned())))
    }

    fn set_pin(&self, pin: Pin) {
        (self.send_input)(Input::Pin(pin));
    }

    fn set_fitness(&self, fitness: Fitness) {
        (self.send_input)(Input::Fitness(fitness));
    }

    fn set_eligibility(&self, eligibility: Eligibility) {
        (self.send_input)(Input::Eligibility(eligibility));
    }
}

impl DriverState {
    fn state(&self) -> MutexGuard<'_, ElectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut ElectionState)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Called when no thread drives this election any more, or ever will: closes the fence and wakes all waiters.
    fn end(&self) {
        self.fence.close();
        self.change(|state| {
            state.has_ended = true;
            state.view.role = Role::Closed;
        });
        self.listeners.end();
    }

    /// Notifies listeners, and waits for them at most for `limit`.
    fn notify_listeners(&self, event: ListenerEvent, limit: Option<Duration>) {
        self.listeners.notify(event, limit);
    }
}

impl ElectionState {
    /// The epoch if this gateway leads. `Some(None)`: the election has ended, so the gateway will never lead.
    fn led_or_ended(&mut self) -> Option<Option<Epoch>> {
        if self.has_ended {
            return Some(None);
        }
        (self.view.role == Role::Leader).then_some(Some(self.view.epoch))
    }
}
