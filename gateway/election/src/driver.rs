//! The election thread: drives a core, writes the fence, and is the latch that the gateway asks.
//!
//! ```text
//!   latch ─┐                          ┌─► fence            opened and renewed by it alone
//!   pair link, sentinel ─► inbox ─► core ─► backend        on a thread of its own: answers come through the inbox
//!   backend's answers ─┘              ├─► listeners        on a thread of their own, waited for within a limit
//!                                     └─► surroundings     pair link, people, the group's channels
//! ```
//! The thread waits for nothing but its inbox and the time, and for listeners no longer than their limit: so a slow
//! store, listener or disk can't make it late. How late it wakes all the same is recorded: its stalls.

mod listeners;
mod measure;
#[cfg(test)]
mod tests;
mod thread;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt, io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use mdgw_feeds::{identity::Epoch, published::position::StreamPosition, time::MonoNs};
use mdgw_sys::{clock::mono_now, fence::Fence};

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
    register::{Register, RegisterEvent, RegisterRequest},
    timing::LeaseTiming,
};
use crate::identity::DeathNotice;

/// The backend of a core, as the election thread sees it: takes a request and returns at once.
pub trait Backend<R>: Send {
    /// The election begins.
    fn begin(&mut self) {}

    /// Asks; the answer comes through the [`Inbox`] that the backend was made with.
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

/// What surrounds the election of one group. Called on the election thread: each must return at once.
pub trait ElectionHooks: Send {
    /// Sends over the pair link; may lose it.
    fn to_peer(&mut self, to: NodeId, message: PeerMessage) {
        let _ = (to, message);
    }

    /// The thread goes round: some times in each tenth of a second, whatever happens.
    fn on_iteration(&mut self) {}

    /// Before the fence opens, or its deadline moves, to that; `None`: after it was closed. For a second fence that is to
    /// stand behind the first.
    fn update_second_fence(&mut self, epoch: Epoch, deadline: Option<MonoNs>) {
        let _ = (epoch, deadline);
    }

    /// The fence was opened or closed: channels should look at once.
    fn on_fence_change(&mut self) {}

    /// After the fence was closed for a hand-over: where the output ended, once no send is outstanding.
    fn drained(&mut self) -> Option<BTreeMap<u16, StreamPosition>> {
        None
    }

    /// The limit for [`Self::drained`] is over: where the output ended as far as is known.
    fn positions(&mut self) -> BTreeMap<u16, StreamPosition> {
        BTreeMap::new()
    }

    /// Where another gateway has said that its output ended, of when it led under that epoch.
    fn on_peer_output_ended(&mut self, epoch: Epoch, positions: &BTreeMap<u16, StreamPosition>) {
        let _ = (epoch, positions);
    }

    /// The election knows of that epoch, whoever has it.
    fn known(&mut self, epoch: Epoch) {
        let _ = epoch;
    }

    /// The highest epoch credibly heard on the wire.
    fn heard(&mut self) -> Option<Epoch> {
        None
    }

    /// What a person should know.
    fn notice(&mut self, notice: &Notice) {
        let _ = notice;
    }

    /// Leadership was gained (`None`) or lost, under that epoch.
    fn leadership(&mut self, epoch: Epoch, lost: Option<CloseReason>) {
        let _ = (epoch, lost);
    }
}

/// How an election is driven.
#[derive(Clone, Debug)]
pub struct ElectionOptions {
    /// Name of the group, for threads and logs.
    pub name: String,
    /// The lease's.
    pub timing: LeaseTiming,
    /// The core it is pinned to; never one of a pool's.
    pub core: Option<usize>,
    /// SCHED_FIFO priority, where allowed.
    pub fifo_priority: Option<u8>,
    /// How long listeners are waited for before the fence opens, ns.
    pub listeners_ns_max: u64,
    /// To whom this gateway's state is sent twice per renewal period.
    pub peers: Vec<NodeId>,
}

/// Where events for an election go. Clones go to the same place.
pub struct Inbox<E>(mpsc::Sender<Input<E>>);

impl<E> Clone for Inbox<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E> fmt::Debug for Inbox<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbox")
    }
}

impl<E> Inbox<E> {
    /// Tells the election. After its end: nobody.
    pub fn tell(&self, input: Input<E>) {
        // An election that has ended needs to know nothing.
        let _ended = self.0.send(input);
    }
}

impl Inbox<RegisterEvent> {
    /// As what a store is opened with.
    #[must_use]
    pub fn register_sender(&self) -> super::register::RegisterSender {
        let inbox = self.clone();
        Arc::new(move |event| inbox.tell(Input::Backend(event)))
    }
}

/// An inbox before its election is made: the backend wants to know it first.
#[must_use]
pub fn inbox<E>() -> (Inbox<E>, InboxReceiver<E>) {
    let (sender, receiver) = mpsc::channel();
    (Inbox(sender), InboxReceiver(receiver))
}

/// The receiving end of an [`Inbox`], for [`Election::new`].
#[derive(Debug)]
pub struct InboxReceiver<E>(mpsc::Receiver<Input<E>>);

/// The election of one group, as its gateway sees it: the one implementation of [`LeaderLatch`], whatever the core.
#[derive(Clone)]
pub struct Election {
    shared: Arc<Shared>,
    tell: Arc<dyn Fn(Input<Infallible>) + Send + Sync>,
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("state", &*self.shared.state()).finish_non_exhaustive()
    }
}

/// What the latch and the election thread share.
struct Shared {
    fence: Arc<Fence>,
    timing: LeaseTiming,
    state: Mutex<ElectionState>,
    changed: Condvar,
    listeners: Listeners,
    /// Starts the thread: taken at [`LeaderLatch::start`].
    launch: Mutex<Option<Launch>>,
}

type Launch = Box<dyn FnOnce(Arc<Shared>) -> io::Result<()> + Send>;

#[derive(Debug, Default)]
struct ElectionState {
    view: View,
    /// How the last hand-over that was asked for failed.
    hand_over_failed: Option<String>,
    /// The thread has ended, or never will begin.
    has_ended: bool,
    stalls: Option<Histogram<u64>>,
    /// Stalls above half of the margin.
    alarming_stalls: u64,
}

impl Election {
    /// An election that begins with [`LeaderLatch::start`]. The fence is closed until it opens it, and is written by
    /// nobody else.
    pub fn new<C, B>(
        core: C,
        backend: B,
        fence: Arc<Fence>,
        waiting: InboxReceiver<C::Event>,
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
            Box::new(move |shared| ElectionThread::new(core, backend, waiting.0, hooks, shared, options).launch());
        let shared = Shared {
            fence,
            timing,
            state: Mutex::default(),
            changed: Condvar::new(),
            listeners: Listeners::default(),
            launch: Mutex::new(Some(launch)),
        };
        let inbox = inbox.clone();
        Self { shared: Arc::new(shared), tell: Arc::new(move |input| inbox.tell(input.widen())) }
    }

    /// From the pair link, authenticated.
    pub fn receive_from_peer(&self, from: NodeId, message: PeerMessage) {
        (self.tell)(Input::Peer { from, message });
    }

    /// From the sentinel, authenticated.
    pub fn died(&self, notice: DeathNotice) {
        (self.tell)(Input::Died(notice));
    }

    /// The highest epoch credibly heard on the wire.
    pub fn set_observed_epoch(&self, epoch: Epoch) {
        (self.tell)(Input::ObservedEpoch(epoch));
    }

    /// Whether the hot threads get on.
    pub fn set_progress(&self, progress: super::core::Progress) {
        (self.tell)(Input::Progress(progress));
    }

    /// Where leadership belongs, seen over all groups.
    pub fn set_placement(&self, place: GroupPlacement) {
        (self.tell)(Input::Placement(place));
    }

    /// Whether the two gateways have lately made different records of one message.
    pub fn set_output_mismatch(&self, has_output_mismatch: bool) {
        (self.tell)(Input::OutputMismatch(has_output_mismatch));
    }

    /// By hand: that gateway may stand.
    pub fn admit(&self, node: NodeId, name: NodeName) {
        (self.tell)(Input::Admit(node, name));
    }

    /// That gateway asks to lead: hands over to it as [`LeaderLatch::hand_over`] does, and waits for nothing. A refusal is
    /// logged.
    pub fn begin_hand_over(&self, target: NodeId) {
        (self.tell)(Input::HandOver(Some(target)));
    }

    /// How late the election thread was, ns, and how often by more than half of the margin: it woke late, or what it had
    /// to do took so long.
    #[must_use]
    pub fn stalls(&self) -> Option<(Histogram<u64>, u64)> {
        let state = self.shared.state();
        state.stalls.clone().map(|stalls| (stalls, state.alarming_stalls))
    }

    /// How often the election thread was so late that a lease of it would have run out.
    #[must_use]
    pub fn long_stalls(&self) -> u64 {
        let timing = &self.shared.timing;
        let stalls = self.stalls().map(|(stalls, _)| stalls);
        stalls.map_or(0, |stalls| stalls.count_between(timing.lease_ns.saturating_sub(timing.margin_ns), u64::MAX))
    }

    /// Waits until `until` says something of the state, or for no longer than `limit`.
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

impl LeaderLatch for Election {
    fn start(&self) -> Result<(), Closed> {
        let launch = self.shared.launch.lock().unwrap_or_else(PoisonError::into_inner).take();
        match launch {
            Some(launch) => launch(Arc::clone(&self.shared)).map_err(|error| {
                tracing::error!(%error, "cannot start the election's thread");
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
        (self.tell)(Input::Close);
        // A store that doesn't answer can't be told; the lease then ends by itself.
        let limit = Some(2 * self.lease());
        let ended = self.wait(limit, |state| state.has_ended.then_some(()));
        if ended.is_none() {
            tracing::warn!("leadership could not be released in time: others wait for the lease");
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
        (self.tell)(Input::HandOver(target));
        let outcome = self.wait(Some(4 * self.lease()), |state| {
            let failed = state.hand_over_failed.take().map(|why| Err(HandOverError::Failed(why)));
            let leader = state.view.leader.clone().filter(|leader| Some(leader) != own.as_ref());
            failed.or_else(|| leader.map(Ok))
        });
        outcome.unwrap_or_else(|| Err(HandOverError::Failed("nobody took over within four leases".to_owned())))
    }

    fn set_pin(&self, pin: Pin) {
        (self.tell)(Input::Pin(pin));
    }

    fn set_fitness(&self, fitness: Fitness) {
        (self.tell)(Input::Fitness(fitness));
    }

    fn set_eligibility(&self, eligibility: Eligibility) {
        (self.tell)(Input::Eligibility(eligibility));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, ElectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut ElectionState)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Nobody drives it any more.
    fn end(&self) {
        self.fence.close();
        self.change(|state| {
            state.has_ended = true;
            state.view.role = Role::Closed;
        });
        self.listeners.end();
    }

    /// Tells listeners, and waits for them no longer than `limit`.
    fn notify_listeners(&self, event: ListenerEvent, limit: Option<Duration>) {
        self.listeners.notify(event, limit);
    }
}

impl ElectionState {
    /// `Some(None)`: it never will.
    fn led_or_ended(&mut self) -> Option<Option<Epoch>> {
        if self.has_ended {
            return Some(None);
        }
        (self.view.role == Role::Leader).then_some(Some(self.view.epoch))
    }
}
