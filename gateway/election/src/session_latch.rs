//! The classic leader latch over a store with sessions, as a core. Each gateway has an entry in a queue. The store
//! keeps the entry as long as the gateway's session lasts. The first in the queue leads, and each gateway watches the
//! entry before its own. An option for those who prefer it: with the lease over a versioned record, no gateway waits
//! for a session to expire.
//!
//! ```text
//!            join               first, epoch taken                 hand-over, close
//!   Outside ──────► In queue ─────────────────────► Leading ─────────────────────────► Leaving ──────► Outside
//!      ▲               ▲ deadline passed             │
//!      └───────────────┴───────── session or entry gone
//! ```
//! T is the session's time-out. The rules; section 12 of `gateway/election/SAFETY.md` gives the argument for each:
//! - The store removes an entry no sooner than T after the store node that ends sessions last received anything of the
//!   session. A leader's deadline is the time at which it sent its last *answered* request, plus 2/3 T, less the
//!   margin. The rest pays for the delay between the store's own nodes (half a tick, at most T/4) and for clocks.
//! - So a request counts only if it can renew the session before the session ends, which needs time between the store's
//!   nodes: not after a silence of nearly T. After such a silence, another request, sent T/4 later, must be answered
//!   too. A gateway in the queue sends often enough that its session stays known.
//! - A former leader deletes its entry no sooner than its sends have ended: when the drain is acknowledged, or the
//!   longest send after the deadline.
//! - Only a write renews: the store's leader answers it, and only while the entry exists.
//! - An epoch is taken by a versioned write that fails unless our entry still exists. So of two gateways that both
//!   believe to be first, at most one gets any epoch, and each opening has its own.

use std::collections::BTreeMap;

use mdgw_sys::clock_rate::ClockRate;
use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::{
    core::{CloseReason, ConnectionState, Core, Input, Notice, Obstacle, Output, Pin, Progress, Role, View},
    fitness::{Eligibility, Fitness},
    identity::{Member, NodeId, next_epoch},
    lease::OnSuspended,
    outstanding_sends::OutstandingSends,
    peer::PeerState,
    record::ConfigVersion,
    register::{RequestId, StoreLink, Version},
    timing::{LeaseTiming, drift_ns},
};

/// Configuration of a gateway in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionLatchConfig {
    /// This start of this gateway.
    pub member: Member,
    /// Renewal, margin and rate error; the lease's length is the session's.
    pub timing: LeaseTiming,
    /// The output that this gateway is configured to publish.
    pub configuration: ConfigVersion,
    /// Behaviour of a leader while the connection is in doubt.
    pub on_suspended: OnSuspended,
    /// The highest epoch in this gateway's own log.
    pub own_epoch: Epoch,
}

/// Requests to the session's thread. Each has one answer, unless the session ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionRequest {
    /// Create our entry at the end of the queue.
    Join(RequestId),
    /// Read the queue and the last epoch. From then on, [`SessionEvent::QueueChanged`] when the entry before ours goes.
    ReadQueue(RequestId),
    /// Only demands an answer, so that the store knows that the session lives.
    KeepAlive(RequestId),
    /// Write to our entry.
    Renew(RequestId),
    /// Replace that version of the epoch by this epoch, if our entry still exists.
    TakeEpoch {
        /// Identifies the request.
        request_id: RequestId,
        /// The version to replace.
        expected: Version,
        /// Epoch under which this gateway leads once it is stored.
        epoch: Epoch,
    },
    /// Delete our entry.
    Leave(RequestId),
    /// Delete the entry of a gateway whose process is known to have ended.
    Remove(RequestId, String),
}

/// Events from the session's thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionEvent {
    /// A session has begun, with the time-out that the store granted. No state of an earlier session remains.
    Started {
        /// T as the store granted it, ns.
        timeout_ns: u64,
        /// When the session was requested, at the earliest.
        requested_at: MonoNs,
    },
    /// The connection's state. [`StoreLink::Ended`]: the session has expired, and outstanding requests get no answer.
    StoreLink(StoreLink),
    /// The answer to the request with that id.
    Answer(RequestId, SessionAnswer),
    /// The entry before ours has gone, or the queue has changed.
    QueueChanged,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionAnswer {
    /// The store carried the request out.
    Done,
    /// The answer to [`SessionRequest::ReadQueue`].
    Queue {
        /// The queue's entries, the first one first.
        entries: Vec<QueueEntry>,
        /// Index of our entry.
        own: Option<usize>,
        /// The last epoch that was taken; 0: none yet.
        epoch: Epoch,
        /// Version of the record that holds the epoch.
        version: Version,
    },
    /// Our entry does not exist.
    Gone,
    /// Another version of the epoch was in force. Nothing has changed.
    Refused,
    /// It may or may not have happened.
    Unknown(String),
    /// The store certainly did not carry the request out; why.
    Failed(String),
}

/// An entry of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueEntry {
    /// Name of the entry's node in the store.
    pub name: String,
    /// The gateway that created the entry; `None`: the node's content is not in our format.
    pub member: Option<Member>,
}

/// One gateway's part in the queue of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionLatch {
    config: SessionLatchConfig,
    /// T of the session, while there is one.
    session_ns: Option<u64>,
    known: SessionLiveness,
    connection: ConnectionState,
    is_queued: bool,
    /// Whether the queue must be read again.
    must_read_queue: bool,
    /// Outstanding requests: kind and time of sending.
    pending: BTreeMap<RequestId, (RequestKind, MonoNs)>,
    /// When the last request was sent.
    last_request_at: MonoNs,
    entries: Vec<QueueEntry>,
    own: Option<usize>,
    /// The last epoch that any gateway took, as far as known.
    epoch: Epoch,
    leading: Option<Leading>,
    leaving: LeaveState,
    eligibility: Eligibility,
    progress: Progress,
    clock_rate: ClockRate,
    fitness: Fitness,
    observed_epoch: Epoch,
    /// The highest observed epoch that outranked this gateway while it led.
    outranked_by: Epoch,
    /// An outranked leader closes its fence before it takes a higher epoch: the control of a test.
    #[cfg(test)]
    closes_when_outranked: bool,
    pin: Pin,
    obstacle: Option<Obstacle>,
    /// No request before this time, so that a store that refuses is not flooded.
    backoff_until: MonoNs,
    /// Our entry stays as long as there may be any.
    outstanding_sends: OutstandingSends,
    last_request: u64,
    outputs: Vec<Output<SessionRequest>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RequestKind {
    Join,
    ReadQueue,
    KeepAlive,
    Renew,
    TakeEpoch(Epoch),
    Leave,
    Remove,
}

/// When the store node that ends sessions last received anything of ours, as far as known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct SessionLiveness {
    /// The session lasts at least T from this time.
    from: MonoNs,
    /// After a silence: when the first answered request was sent, and when the answer came. The answer to another
    /// request, sent long enough after, shows whether the first renewed the session in time.
    after_silence: Option<(MonoNs, MonoNs)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Leading {
    epoch: Epoch,
    deadline: MonoNs,
    renew_at: MonoNs,
}

/// Whether the gateway is about to delete its entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum LeaveState {
    #[default]
    Staying,
    /// Leadership goes to this gateway; the queue is read first.
    HandOver(Option<NodeId>),
    /// The fence is closed; sends may be outstanding.
    Draining,
    /// The entry is to be deleted; then a new one is created.
    Leaving,
    /// The entry is to be deleted for good.
    Closing,
}

impl SessionLatch {
    /// A latch without a session and without an entry.
    #[must_use]
    pub fn new(config: SessionLatchConfig) -> Self {
        Self {
            config,
            session_ns: None,
            known: SessionLiveness::default(),
            connection: ConnectionState::default(),
            is_queued: false,
            must_read_queue: false,
            pending: BTreeMap::new(),
            last_request_at: MonoNs(0),
            entries: Vec::new(),
            own: None,
            epoch: Epoch::default(),
            leading: None,
            leaving: LeaveState::Staying,
            eligibility: Eligibility::default(),
            progress: Progress::default(),
            clock_rate: ClockRate::Within(0),
            fitness: Fitness::default(),
            observed_epoch: Epoch::default(),
            outranked_by: Epoch::default(),
            #[cfg(test)]
            closes_when_outranked: false,
            pin: Pin::default(),
            obstacle: None,
            backoff_until: MonoNs(0),
            outstanding_sends: OutstandingSends::default(),
            last_request: 0,
            outputs: Vec::new(),
        }
    }

    fn take(&mut self, now: MonoNs, input: Input<SessionEvent>) {
        match input {
            Input::Backend(event) => self.on_event(now, event),
            Input::Fitness(fitness) => self.fitness = fitness,
            Input::Configuration(configuration) => self.config.configuration = configuration,
            Input::Eligibility(eligibility) => self.eligibility = eligibility,
            Input::ClockRate(rate) => self.clock_rate = rate,
            Input::Progress(progress) => self.progress = progress,
            Input::ObservedEpoch(epoch) => {
                self.observed_epoch = self.observed_epoch.max(epoch);
                if self.outranked_by != self.observed_epoch && self.is_outranked() {
                    self.outranked_by = self.observed_epoch;
                    self.outputs.push(Output::Notice(Notice::HigherEpochObserved(epoch)));
                    #[cfg(test)]
                    if self.closes_when_outranked {
                        self.close(CloseReason::Outranked);
                    }
                }
            }
            Input::HandOver(target) if self.leading.is_some() && self.leaving == LeaveState::Staying => {
                self.leaving = LeaveState::HandOver(target);
                self.must_read_queue = true;
            }
            Input::Drained => {
                self.outstanding_sends.end();
                if self.leaving == LeaveState::Draining {
                    self.leaving = LeaveState::Leaving;
                }
            }
            Input::Pin(pin) => self.pin = pin,
            Input::Died(notice) => {
                let dead = |entry: &&QueueEntry| {
                    let member = entry.member.as_ref();
                    member.is_some_and(|of| of.node == notice.holder && of.incarnation == notice.incarnation)
                };
                if let Some(QueueEntry { name, .. }) = self.entries.iter().find(dead).cloned() {
                    self.ask(now, RequestKind::Remove, |request_id| SessionRequest::Remove(request_id, name));
                }
            }
            Input::Close => {
                self.close(CloseReason::Released);
                self.leaving = LeaveState::Closing;
            }
            // In this mode the queue alone decides.
            Input::Time
            | Input::Peer { .. }
            | Input::HandOver(_)
            | Input::Admit(..)
            | Input::Placement(_)
            | Input::OutputReceived
            | Input::OutputMismatch(_) => {}
        }
    }

    fn on_event(&mut self, now: MonoNs, event: SessionEvent) {
        match event {
            SessionEvent::Started { timeout_ns, requested_at } => {
                self.end_session();
                self.session_ns = Some(timeout_ns);
                self.known = SessionLiveness { from: requested_at, after_silence: None };
                let is_first = self.connection == ConnectionState::Starting;
                self.connect(if is_first { ConnectionState::Connected } else { ConnectionState::Reconnected });
            }
            SessionEvent::StoreLink(StoreLink::Up) if self.session_ns.is_some() => {
                if self.connection == ConnectionState::Suspended {
                    self.connect(ConnectionState::Reconnected);
                    self.must_read_queue = true;
                }
            }
            SessionEvent::StoreLink(StoreLink::InDoubt) if self.session_ns.is_some() => {
                if self.config.on_suspended == OnSuspended::Stop {
                    self.close(CloseReason::Suspended);
                }
                self.connect(ConnectionState::Suspended);
            }
            SessionEvent::StoreLink(StoreLink::Ended) => {
                self.end_session();
                self.connect(ConnectionState::Lost);
            }
            SessionEvent::StoreLink(_) => {}
            SessionEvent::QueueChanged => self.must_read_queue = true,
            SessionEvent::Answer(request_id, answer) => {
                // An answer to a request of an earlier session means nothing in this one.
                if let Some((kind, sent)) = self.pending.remove(&request_id) {
                    self.on_answer(now, kind, sent, answer);
                }
            }
        }
    }

    fn on_answer(&mut self, now: MonoNs, kind: RequestKind, sent: MonoNs, answer: SessionAnswer) {
        if matches!(answer, SessionAnswer::Done | SessionAnswer::Queue { .. } | SessionAnswer::Refused) {
            self.record_session_alive(now, sent);
        }
        match (kind, answer) {
            (RequestKind::Join, SessionAnswer::Done) => (self.is_queued, self.must_read_queue) = (true, true),
            (RequestKind::ReadQueue, SessionAnswer::Queue { entries, own, epoch, version }) => {
                (self.entries, self.own, self.epoch) = (entries, own, self.epoch.max(epoch));
                self.is_queued = own.is_some();
                self.obstacle = None;
                self.on_queue(now, version);
            }
            (RequestKind::Renew, SessionAnswer::Done) => {
                let deadline = self.deadline();
                if let Some(leading) = self.leading.as_mut().filter(|leading| leading.deadline < deadline) {
                    leading.deadline = deadline;
                    self.outputs.push(Output::Renew { deadline });
                }
            }
            (RequestKind::TakeEpoch(epoch), SessionAnswer::Done) => {
                self.epoch = epoch;
                let deadline = self.deadline();
                if self.leading.is_some_and(|leading| leading.epoch < epoch) {
                    self.raise(epoch, deadline);
                } else if now < deadline
                    && epoch > self.observed_epoch
                    && self.is_eligible()
                    && self.leaving == LeaveState::Staying
                {
                    self.leading = Some(Leading { epoch, deadline, renew_at: sent.plus(self.config.timing.renew_ns) });
                    self.outputs.push(Output::Open { epoch, deadline });
                } else {
                    self.must_read_queue = true;
                }
            }
            // That the removed entry was gone already says nothing about our own entry.
            (RequestKind::Remove, _) => self.must_read_queue = true,
            (RequestKind::Leave, SessionAnswer::Done) | (_, SessionAnswer::Gone) => self.on_entry_lost(),
            (_, SessionAnswer::Failed(why)) => {
                self.obstacle = Some(Obstacle::ForeignRecord(why));
                self.backoff_until = now.plus(BACKOFF_NS);
                self.must_read_queue = true;
            }
            // A renewal of unknown outcome moves nothing. For all other requests the queue shows the outcome.
            (RequestKind::Renew | RequestKind::KeepAlive, _) => {}
            (_, SessionAnswer::Refused | SessionAnswer::Unknown(_)) => {
                self.backoff_until = now.plus(self.config.timing.renew_ns);
                self.must_read_queue = true;
            }
            (_, SessionAnswer::Done | SessionAnswer::Queue { .. }) => {}
        }
    }

    fn on_queue(&mut self, now: MonoNs, version: Version) {
        let Some(own) = self.own else {
            return if self.leading.is_some() {
                self.on_entry_lost()
            };
        };
        if let LeaveState::HandOver(target) = self.leaving {
            return self.hand_over(own, target);
        }
        let leads_in_rank = self.leading.is_some() && !self.is_outranked();
        if own > 0 || leads_in_rank || !self.is_eligible() || self.leaving != LeaveState::Staying {
            return;
        }
        if self.deadline() <= now
            && let Some((_, answered)) = self.known.after_silence
            && now < answered.plus(self.propagation_ns())
        {
            self.backoff_until = answered.plus(self.propagation_ns());
            self.must_read_queue = true;
            return;
        }
        let known = [self.epoch, self.observed_epoch, self.config.own_epoch];
        match next_epoch(self.config.member.node, known) {
            Some(epoch) => self.ask(now, RequestKind::TakeEpoch(epoch), |request_id| SessionRequest::TakeEpoch {
                request_id,
                expected: version,
                epoch,
            }),
            None => self.obstacle = Some(Obstacle::EpochsExhausted),
        }
    }

    /// Hands over to the next in the queue: no other gateway can succeed.
    fn hand_over(&mut self, own: usize, target: Option<NodeId>) {
        let next = self.entries.get(own + 1).and_then(|entry| entry.member.as_ref()).map(|member| member.node);
        let why = match (next, target) {
            (None, _) => "no other candidate",
            (Some(next), Some(target)) if next != target => "another gateway is next in the queue",
            _ => {
                self.close(CloseReason::HandedOver);
                (self.leaving, self.must_read_queue) = (LeaveState::Draining, false);
                return;
            }
        };
        self.leaving = LeaveState::Staying;
        self.outputs.push(Output::Notice(Notice::HandOverFailed { target, why }));
    }

    /// Sends the requests that are due.
    fn issue_requests(&mut self, now: MonoNs) {
        if self.leading.is_some_and(|leading| leading.deadline <= now) {
            self.close(CloseReason::Expired);
            self.must_read_queue = true;
        }
        if self.session_ns.is_none() || now < self.backoff_until && self.leading.is_none() {
            return;
        }
        let is_eligible = self.is_eligible();
        if let Some(leading) = &mut self.leading {
            if is_eligible && leading.renew_at <= now {
                leading.renew_at = now.plus(self.config.timing.renew_ns);
                if self.pending.len() < PENDING_MAX {
                    self.ask(now, RequestKind::Renew, SessionRequest::Renew);
                }
            }
            if !matches!(self.leaving, LeaveState::HandOver(_)) {
                if self.raise_at().is_some_and(|at| at <= now) {
                    self.ask(now, RequestKind::ReadQueue, SessionRequest::ReadQueue);
                }
                return;
            }
        }
        let waits_for = |kind: RequestKind| self.pending.values().any(|(other, _)| *other == kind);
        let takes_epoch = self.pending.values().any(|(kind, _)| matches!(kind, RequestKind::TakeEpoch(_)));
        if self.must_leave() && self.is_queued {
            if !self.outstanding_sends.may_exist() && !waits_for(RequestKind::Leave) {
                self.ask(now, RequestKind::Leave, SessionRequest::Leave);
            }
        } else if self.must_read_queue && self.is_queued {
            if !waits_for(RequestKind::ReadQueue) && !takes_epoch {
                self.must_read_queue = false;
                self.ask(now, RequestKind::ReadQueue, SessionRequest::ReadQueue);
            }
        } else if !self.is_queued && is_eligible && self.leaving == LeaveState::Staying && !waits_for(RequestKind::Join)
        {
            // After a join of unknown outcome the queue shows whether our entry exists.
            if self.must_read_queue {
                if !waits_for(RequestKind::ReadQueue) {
                    self.must_read_queue = false;
                    self.ask(now, RequestKind::ReadQueue, SessionRequest::ReadQueue);
                }
            } else if !waits_for(RequestKind::ReadQueue) {
                self.ask(now, RequestKind::Join, SessionRequest::Join);
            }
        } else if self.keep_alive_at().is_some_and(|at| at <= now) {
            self.ask(now, RequestKind::KeepAlive, SessionRequest::KeepAlive);
        }
    }

    /// When a gateway in the queue without other requests sends one: often enough that an answer comes before the
    /// previous one expires, even if that was the first one after a silence. Not while sends are outstanding: if they never
    /// end, the session shall.
    fn keep_alive_at(&self) -> Option<MonoNs> {
        let is_idle = self.is_queued
            && self.leading.is_none()
            && self.pending.is_empty()
            && !self.outstanding_sends.may_exist()
            && !self.has_request_to_send();
        self.session_ns
            .filter(|_| is_idle)
            .map(|session_ns| self.last_request_at.plus(session_ns / 5).max(self.backoff_until))
    }

    /// A request that was sent at `sent` has been answered, so the store has received something of the session.
    fn record_session_alive(&mut self, now: MonoNs, sent: MonoNs) {
        if let Some((first, answered)) = self.known.after_silence
            && answered.plus(self.propagation_ns()) <= sent
        {
            self.known = SessionLiveness { from: first, after_silence: None };
        }
        if now < self.deadline() {
            self.known = SessionLiveness { from: self.known.from.max(sent), after_silence: None };
        } else {
            self.known.after_silence.get_or_insert((sent, now));
        }
    }

    /// Longest time in which the renewal of a session propagates between the store's nodes, ns.
    fn propagation_ns(&self) -> u64 {
        let propagation_ns = self.session_ns.unwrap_or(0) / 4;
        propagation_ns.saturating_add(2 * drift_ns(propagation_ns, self.config.timing.rate_error_ppm))
    }

    fn ask(&mut self, now: MonoNs, kind: RequestKind, request: impl FnOnce(RequestId) -> SessionRequest) {
        self.last_request += 1;
        let request_id = RequestId(self.last_request);
        self.pending.insert(request_id, (kind, now));
        self.last_request_at = now;
        self.outputs.push(Output::Request(request(request_id)));
    }

    /// Whether receivers drop this leader's packets.
    fn is_outranked(&self) -> bool {
        self.leading.is_some_and(|leading| leading.epoch < self.observed_epoch)
    }

    /// When an outranked leader reads the queue, to take a higher epoch while it leads: nobody else leads while its
    /// entry is the first, so the observed epoch is forged, or of a leadership that has ended.
    fn raise_at(&self) -> Option<MonoNs> {
        let is_asking =
            |(kind, _): &(RequestKind, MonoNs)| matches!(kind, RequestKind::ReadQueue | RequestKind::TakeEpoch(_));
        let is_due = self.is_outranked()
            && self.is_eligible()
            && self.leaving == LeaveState::Staying
            && !self.pending.values().any(is_asking);
        is_due.then_some(self.backoff_until)
    }

    /// The store has the higher epoch: the fence opens under it at once.
    fn raise(&mut self, epoch: Epoch, deadline: MonoNs) {
        let Some(Leading { renew_at, deadline: former_deadline, .. }) = self.leading else { return };
        self.close(CloseReason::Outranked);
        let deadline = deadline.max(former_deadline);
        self.leading = Some(Leading { epoch, deadline, renew_at });
        self.outputs.push(Output::Open { epoch, deadline });
    }

    fn close(&mut self, reason: CloseReason) {
        if let Some(Leading { epoch, deadline, .. }) = self.leading.take() {
            self.outstanding_sends.begin(deadline.plus(self.config.timing.margin_ns));
            self.outputs.extend([Output::Close { epoch, reason }, Output::Drain]);
            self.must_read_queue = true;
            if matches!(self.leaving, LeaveState::HandOver(_)) {
                self.leaving = LeaveState::Staying;
            }
        }
    }

    fn on_entry_lost(&mut self) {
        self.close(CloseReason::Lost);
        (self.is_queued, self.own, self.must_read_queue) = (false, None, false);
        if self.leaving != LeaveState::Closing {
            self.leaving = LeaveState::Staying;
        }
    }

    fn end_session(&mut self) {
        self.on_entry_lost();
        self.session_ns = None;
        self.pending.clear();
        self.entries.clear();
    }

    fn connect(&mut self, state: ConnectionState) {
        if self.connection != state {
            self.connection = state;
            self.outputs.push(Output::Connection(state));
        }
    }

    /// Whether our entry must be deleted.
    fn must_leave(&self) -> bool {
        matches!(self.leaving, LeaveState::Leaving | LeaveState::Closing)
            || !self.is_eligible() && self.leading.is_none()
    }

    /// Whether a request is due while not leading.
    fn has_request_to_send(&self) -> bool {
        if self.is_queued {
            self.must_read_queue || self.must_leave()
        } else {
            self.is_eligible() && self.leaving == LeaveState::Staying
        }
    }

    fn is_eligible(&self) -> bool {
        self.leaving != LeaveState::Closing && self.find_obstacle().is_none()
    }

    fn find_obstacle(&self) -> Option<Obstacle> {
        let LeaseTiming { rate_error_ppm, renew_ns, .. } = self.config.timing;
        let too_short_ns = self.session_ns.filter(|session_ns| self.config.timing.check_session(*session_ns).is_err());
        if self.eligibility == Eligibility::Joining {
            Some(Obstacle::Joining)
        } else if let Some(stuck) = self.progress.obstacle() {
            Some(stuck)
        } else {
            let too_short = too_short_ns.map(|session_ns| Obstacle::SessionTooShort { session_ns, renew_ns });
            Obstacle::of_clock(self.clock_rate, rate_error_ppm).or(too_short)
        }
    }

    /// Until when a leader may send, and until when a request renews the session in time.
    fn deadline(&self) -> MonoNs {
        self.known.from.plus(self.config.timing.session_usable_ns(self.session_ns.unwrap_or(0)))
    }
}

impl Core for SessionLatch {
    type Event = SessionEvent;
    type Request = SessionRequest;

    fn step(&mut self, now: MonoNs, input: Input<SessionEvent>) -> Vec<Output<SessionRequest>> {
        self.issue_requests(now);
        self.take(now, input);
        self.issue_requests(now);
        std::mem::take(&mut self.outputs)
    }

    fn next_deadline(&self) -> Option<MonoNs> {
        self.session_ns?;
        match &self.leading {
            Some(Leading { deadline, renew_at, .. }) if self.is_eligible() => {
                self.raise_at().into_iter().chain([*deadline, *renew_at]).min()
            }
            Some(Leading { deadline, .. }) => Some(*deadline),
            None => {
                let awaits_sends = self.must_leave() && self.outstanding_sends.may_exist();
                let wanted = self.pending.is_empty() && self.has_request_to_send() && !awaits_sends;
                wanted.then_some(self.backoff_until).or_else(|| self.keep_alive_at())
            }
        }
    }

    fn view(&self) -> View {
        let is_closed = self.leaving == LeaveState::Closing && (!self.is_queued || self.session_ns.is_none());
        let role = match (&self.leading, self.is_queued) {
            (Some(_), _) => Role::Leader,
            (None, _) if is_closed => Role::Closed,
            (None, true) => Role::Candidate,
            (None, false) => Role::Ineligible,
        };
        let members = || self.entries.iter().filter_map(|entry| entry.member.as_ref());
        View {
            role,
            epoch: self.leading.map_or(self.epoch, |leading| leading.epoch),
            leader: self.entries.first().and_then(|entry| entry.member.clone()),
            successor: None,
            participants: members().map(|member| (member.node, member.name.clone())).collect(),
            connection: self.connection,
            pin: self.pin,
            obstacle: self.find_obstacle().or_else(|| self.obstacle.clone()),
            fitness: self.fitness,
            ..View::default()
        }
    }

    fn peer_state(&self, now: MonoNs) -> PeerState {
        PeerState::at(now, &self.config.member, self.config.configuration, self.eligibility, self.fitness)
    }
}

/// Pause after a refused request, ns.
const BACKOFF_NS: u64 = 100_000_000;
/// Maximum number of unanswered requests while leading. With more, the store is gone and the deadline decides.
const PENDING_MAX: usize = 64;

#[cfg(test)]
mod tests;
