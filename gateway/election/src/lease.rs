//! The lease over a register: the core of the backends `file`, `etcd` and `zookeeper`. Pure: see [`Core`].
//!
//! ```text
//!              wait over, swap won; or
//!              heir of one that has ended      hand-over, close
//!   Candidate ─────────────────────► Leading ──────────────────► Leaving ── told, swap ──► Candidate, Closed
//!       ▲                               │                           │
//!       └──── expired, lost, outranked ─┴───── swap not in force ───┘
//! ```
//! Rules, each with the reason in `hot-standby`'s argument for safety:
//! - A leader's deadline is when the last renewal that succeeded was *sent*, plus L, less M. A swap whose fate is not
//!   known moves nothing; it is found out by reading over a fresh connection, where each attempt can be recognised by
//!   its number.
//! - Whoever takes over, unless it is the heir, has waited L(1 + ρ) since it *learned* of the record's last change, over an unbroken connection;
//!   the swap then succeeds on that version alone. This holds for every beginning: for the first record, after a start,
//!   and for a holder that lapsed and finds its own record.
//! - Only knowledge shortens the wait: the holder released it, or its death was announced. And only for who has followed the
//!   record for a lease without a break.
//! - One gateway, named by the record with a stamp of its own clock, does not even wait for the store: see [`successor`].
//! - A record is given back when no send of its holder can be under way any more: whoever reads it so begins at once.
//! - The promises of *all* other candidates are as good as a renewal; a candidate promises only while no swap of its
//!   own can still take effect.
//!
//! Modules: [`known_record`] (what is known of the record), `candidacy` (when to swap), [`successor`] (who does not wait), `leading` (renew,
//! admit, move), `leaving` (hand over, release), `promises` (the store is lost).

mod candidacy;
mod known_record;
mod leading;
mod leaving;
mod promises;
mod successor;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use mdgw_feeds::{identity::Epoch, time::MonoNs};

use self::{
    known_record::{KnownRecord, Observed, ObservedBy},
    leading::Leadership,
    leaving::{LeaveMode, Leaving},
    promises::GivenPromise,
    successor::{Ended, NamedSuccessor},
};
use super::{
    auto_move::AutoMoveConfig,
    core::{
        CloseReason, ConnectionState, Core, GroupPlacement, Input, Notice, Obstacle, Output, PeerView, Pin, Progress,
        Role, View,
    },
    fitness::{Eligibility, Fitness},
    identity::{Member, NodeId, NodeName},
    peer::{PeerMessage, PeerState},
    record::{ConfigVersion, PeerTimestamp, Record},
    register::{Outcome, RegisterEvent, RegisterRequest, RequestId, StoreLink, Version, Versioned},
    timing::LeaseTiming,
};
use crate::identity::DeathNotice;

/// What a gateway brings into the election of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseConfig {
    /// This start of this gateway.
    pub member: Member,
    /// Checked.
    pub timing: LeaseTiming,
    /// Who is configured to stand, this gateway included.
    pub candidates: BTreeMap<NodeId, NodeName>,
    /// What it publishes.
    pub configuration: ConfigVersion,
    /// While the connection is in doubt.
    pub on_suspended: OnSuspended,
    /// Who is to lead where it can; what [`Input::Placement`] names comes before it.
    pub preferred: Option<NodeId>,
    /// The highest epoch in this gateway's own log.
    pub own_epoch: Epoch,
    /// When leadership moves by itself.
    pub moves: AutoMoveConfig,
}

/// What a leader does while its connection is in doubt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnSuspended {
    /// The deadline rules.
    #[default]
    Hold,
    /// It stops at once.
    Stop,
}

/// One gateway's part in the election of one group over a register.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    config: LeaseConfig,
    known_record: KnownRecord,
    phase: Phase,
    pending: PendingRequests,
    connection: ConnectionState,
    /// Since when the connection has been in doubt.
    in_doubt_since: Option<MonoNs>,
    given_promise: Option<GivenPromise>,
    /// The heir of this gateway's records.
    named: Option<NamedSuccessor>,
    /// Said by a holder of its own leadership.
    ended: Option<Ended>,
    /// The stamp with which this gateway tried to go on as an heir: none serves twice.
    used_stamp: Option<PeerTimestamp>,
    /// Others wait for this start of this gateway no more.
    is_declared_dead: bool,
    peers: BTreeMap<NodeId, KnownPeer>,
    deaths: Vec<DeathNotice>,
    /// When the last of them was heard.
    death_received_at: MonoNs,
    admitted: BTreeMap<NodeId, NodeName>,
    fitness: Fitness,
    eligibility: Eligibility,
    clock_error_ppm: u32,
    progress: Progress,
    observed_epoch: Epoch,
    /// The highest epoch that the fence was opened under: none is opened twice.
    highest_opened: Epoch,
    /// Until when a send may be under way that was checked before the fence closed.
    sends_end_at: MonoNs,
    /// Said of the present leadership; what the record says holds for any.
    pin: Option<Pin>,
    placement: GroupPlacement,
    /// The two gateways make different records.
    has_output_mismatch: bool,
    obstacle: Option<Obstacle>,
    foreign_record: Option<String>,
    /// Number of the last swap or question: none is used twice.
    last_number: u64,
    is_closing: bool,
    outputs: Vec<Output<RegisterRequest>>,
    safeguards: LeaseSafeguards,
}

/// What a gateway is doing. Everything that belongs to a phase ends with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// AwaitedRequest, or not standing.
    Candidate,
    /// The fence is open.
    Leading(Leadership),
    /// The fence is closed, the record still ours to give away.
    Leaving(Leaving),
}

/// Requests whose answers are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct PendingRequests {
    /// The one that is waited for.
    awaited: Option<AwaitedRequest>,
    /// Swaps that may yet take effect, the one waited for included.
    attempts: Vec<SwapAttempt>,
    /// Nothing may be swapped before this is answered or a new read is.
    must_read: bool,
    /// A store that refuses is not hammered.
    backoff_until: MonoNs,
    /// NamedSuccessor as candidates by an attempt that is no longer kept singly.
    possible_candidates: BTreeMap<NodeId, NodeName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AwaitedRequest {
    request_id: RequestId,
    sent: MonoNs,
    is_read: bool,
}

/// A swap. Its record is unlike that of any other attempt, so that whoever reads it knows that this one took effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SwapAttempt {
    request_id: RequestId,
    expected: Version,
    sent: MonoNs,
    record: Box<Record>,
}

/// What another gateway last said of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct KnownPeer {
    state: PeerState,
    received_at: MonoNs,
}

/// LeaseSafeguards that a check may switch off, to show that it would notice. All are on in every product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseSafeguards {
    /// An heir's lease counts from its stamp.
    pub lease_from_successor_stamp: bool,
    /// An heir stays named while it may begin.
    pub keeps_named_successor: bool,
    /// The others wait while the heir may send.
    pub waits_for_successor: bool,
    /// Every other candidate is asked for its promise, not all but one.
    pub asks_every_candidate: bool,
    /// A candidate waits after its start as after any other news.
    pub startup_wait: bool,
    /// A promise is given only while no swap of one's own can still take effect. Where all others hold, neither model nor
    /// simulation has missed it yet.
    pub promises_only_without_swap: bool,
    /// A swap of unknown fate does not count as one that succeeded.
    pub ignores_unknown_outcome: bool,
    /// What was known before a break of the connection counts no more.
    pub forgets_on_disconnect: bool,
}

impl LeaseSafeguards {
    /// As in every product.
    pub const ALL: Self = Self {
        lease_from_successor_stamp: true,
        keeps_named_successor: true,
        waits_for_successor: true,
        asks_every_candidate: true,
        startup_wait: true,
        promises_only_without_swap: true,
        ignores_unknown_outcome: true,
        forgets_on_disconnect: true,
    };
}

impl Lease {
    /// A candidacy that begins with the first input.
    #[must_use]
    pub fn new(config: LeaseConfig) -> Self {
        Self {
            config,
            known_record: KnownRecord::default(),
            phase: Phase::Candidate,
            pending: PendingRequests { must_read: true, ..PendingRequests::default() },
            connection: ConnectionState::Starting,
            in_doubt_since: None,
            given_promise: None,
            named: None,
            ended: None,
            used_stamp: None,
            is_declared_dead: false,
            peers: BTreeMap::new(),
            deaths: Vec::new(),
            death_received_at: MonoNs(0),
            admitted: BTreeMap::new(),
            fitness: Fitness::default(),
            eligibility: Eligibility::Joining,
            clock_error_ppm: 0,
            progress: Progress::Running,
            observed_epoch: Epoch::default(),
            highest_opened: Epoch::default(),
            sends_end_at: MonoNs(0),
            pin: None,
            placement: GroupPlacement::default(),
            has_output_mismatch: false,
            obstacle: None,
            foreign_record: None,
            last_number: 0,
            is_closing: false,
            outputs: Vec::new(),
            safeguards: LeaseSafeguards::ALL,
        }
    }

    /// For checks that want to see what each safeguard is good for.
    #[must_use]
    pub fn with_safeguards(self, safeguards: LeaseSafeguards) -> Self {
        Self { safeguards, ..self }
    }

    fn node(&self) -> NodeId {
        self.config.member.node
    }

    fn emit(&mut self, output: Output<RegisterRequest>) {
        self.outputs.push(output);
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    // ---- time ----

    /// What time alone ends. Comes before every input.
    fn expire(&mut self, now: MonoNs) {
        if let Phase::Leading(leadership) = &self.phase
            && now >= leadership.deadline
        {
            self.end_leadership(now, CloseReason::Expired);
        }
        self.given_promise.take_if(|given_promise| now >= given_promise.until);
        if let Some(awaited) = self.pending.awaited
            && now >= self.overdue_at(awaited)
        {
            self.abandon_request(now);
        }
        if let Some(from) = self.in_doubt_since
            && self.connection == ConnectionState::Suspended
            && now >= from.plus(self.config.timing.wait_ns())
            && !matches!(self.phase, Phase::Leading(_))
        {
            self.set_connection(ConnectionState::Lost);
        }
    }

    fn overdue_at(&self, awaited: AwaitedRequest) -> MonoNs {
        awaited.sent.plus(self.config.timing.renew_ns)
    }

    /// A request is overdue: its fate will be read over a fresh connection.
    fn abandon_request(&mut self, now: MonoNs) {
        self.pending.awaited = None;
        self.pending.must_read = true;
        self.suspend(now);
        self.emit(Output::Request(RegisterRequest::Reconnect));
    }

    // ---- connection ----

    fn suspend(&mut self, now: MonoNs) {
        if self.safeguards.forgets_on_disconnect {
            self.known_record.invalidate();
        }
        self.in_doubt_since.get_or_insert(now);
        if matches!(
            self.connection,
            ConnectionState::Starting | ConnectionState::Connected | ConnectionState::Reconnected
        ) {
            self.set_connection(ConnectionState::Suspended);
            if self.config.on_suspended == OnSuspended::Stop && matches!(self.phase, Phase::Leading(_)) {
                self.end_leadership(now, CloseReason::Suspended);
            }
        }
    }

    /// The store answered.
    fn on_store_answered(&mut self) {
        self.in_doubt_since = None;
        match self.connection {
            ConnectionState::Starting => self.set_connection(ConnectionState::Connected),
            ConnectionState::Suspended | ConnectionState::Lost => self.set_connection(ConnectionState::Reconnected),
            ConnectionState::Connected | ConnectionState::Reconnected => {}
        }
    }

    fn set_connection(&mut self, state: ConnectionState) {
        self.connection = state;
        self.emit(Output::Connection(state));
    }

    fn on_link(&mut self, now: MonoNs, link: StoreLink) {
        match link {
            StoreLink::Up => self.pending.must_read |= !self.known_record.is_read(),
            StoreLink::InDoubt => {
                self.pending.awaited = None;
                self.pending.must_read = true;
                self.suspend(now);
            }
            StoreLink::Ended => {
                self.pending.awaited = None;
                self.pending.must_read = true;
                self.known_record.invalidate();
                self.in_doubt_since.get_or_insert(now);
                if self.connection != ConnectionState::Lost {
                    self.set_connection(ConnectionState::Lost);
                }
                if matches!(self.phase, Phase::Leading(_)) {
                    self.end_leadership(now, CloseReason::Lost);
                }
            }
        }
    }

    // ---- answers ----

    fn on_register(&mut self, now: MonoNs, event: RegisterEvent) {
        match event {
            RegisterEvent::StoreLink(link) => self.on_link(now, link),
            RegisterEvent::Changed(found) => self.observe(now, found, ObservedBy::Watch),
            RegisterEvent::Answer { request_id, outcome } => self.on_answer(now, request_id, outcome),
        }
    }

    fn on_answer(&mut self, now: MonoNs, request_id: RequestId, outcome: Outcome) {
        let awaited = self.pending.awaited.take_if(|awaited| awaited.request_id == request_id);
        match outcome {
            Outcome::Read(found) => {
                // A read that was given up may show what was in force before the break.
                let Some(awaited) = awaited else { return };
                self.foreign_record = None;
                self.on_store_answered();
                self.pending.must_read = false;
                self.observe(now, found, ObservedBy::Read { sent: awaited.sent });
            }
            Outcome::Swapped(version) => {
                let Some(attempt) = self.pending.take_attempt(request_id) else { return };
                let record = (*attempt.record).clone();
                if awaited.is_some() {
                    self.on_store_answered();
                }
                self.on_swap_committed(now, &attempt);
                self.observe(now, Some(Versioned { version, record }), ObservedBy::Swap);
            }
            Outcome::Refused => {
                if self.pending.take_attempt(request_id).is_some() {
                    self.pending.must_read = true;
                }
                if awaited.is_some() {
                    self.on_store_answered();
                }
            }
            Outcome::Unknown(_) => {
                if !self.safeguards.ignores_unknown_outcome
                    && let Some(attempt) = self.pending.take_attempt(request_id)
                {
                    self.on_swap_committed(now, &attempt);
                }
                if let Some(awaited) = awaited {
                    self.abandon_request(now);
                    if awaited.is_read {
                        self.pending.backoff_until = now.plus(self.config.timing.renew_ns / 4);
                    }
                }
            }
            Outcome::Failed(why) => {
                self.pending.take_attempt(request_id);
                self.pending.must_read = true;
                if let Some(awaited) = awaited {
                    self.foreign_record = awaited.is_read.then_some(why);
                    self.pending.backoff_until = now.plus(self.config.timing.renew_ns);
                }
            }
        }
    }

    // ---- knowledge ----

    fn observe(&mut self, now: MonoNs, found: Option<Versioned>, source: ObservedBy) {
        let is_first = !self.known_record.is_read();
        match self.known_record.observe(now, found, source) {
            Observed::Unchanged => {}
            Observed::Inconclusive => self.pending.must_read = true,
            Observed::RolledBack { highest_seen } => {
                let now_says = self.known_record.record().map_or_else(Epoch::default, |record| record.epoch);
                self.emit(Output::Notice(Notice::RecordRolledBack { highest_seen, now: now_says }));
                self.on_record_changed(now);
            }
            Observed::Newer => {
                if is_first && !self.safeguards.startup_wait {
                    self.known_record.restart_wait(MonoNs(0));
                }
                self.on_record_changed(now);
            }
        }
    }

    /// The record is another one than before.
    fn on_record_changed(&mut self, now: MonoNs) {
        if let Some(attempt) = self.pending.resolve(&self.known_record) {
            self.on_swap_committed(now, &attempt);
        }
        self.drop_promise_of_released_record();
        self.ask_to_be_admitted();
        let Some(epoch) = self.leading_epoch() else { return };
        let predecessor = match &self.phase {
            Phase::Leading(leadership) => leadership.predecessor,
            Phase::Candidate | Phase::Leaving(_) => None,
        };
        let is_own = self.known_record.record().is_some_and(|record| {
            let is_held = record.is_held_by(&self.config.member) && record.epoch == epoch;
            is_held || predecessor.is_some_and(|before| before.is_holder_in(record))
        });
        if !is_own {
            match &self.phase {
                Phase::Leading(_) => self.end_leadership(now, CloseReason::Lost),
                Phase::Leaving(_) => self.phase = Phase::Candidate,
                Phase::Candidate => {}
            }
        }
    }

    /// Epoch of the leadership that the record must show as ours.
    fn leading_epoch(&self) -> Option<Epoch> {
        match &self.phase {
            Phase::Candidate => None,
            Phase::Leading(leadership) => Some(leadership.epoch),
            Phase::Leaving(leaving) => Some(leaving.epoch),
        }
    }

    /// An attempt took effect: known by its answer, or by reading its record.
    fn on_swap_committed(&mut self, now: MonoNs, attempt: &SwapAttempt) {
        let SwapAttempt { sent, record, .. } = attempt;
        if !record.is_held_by(&self.config.member) {
            // Given away or released: nothing is held any more.
            if matches!(self.phase, Phase::Leaving(_)) {
                self.phase = Phase::Candidate;
            }
            return;
        }
        let deadline = self.config.timing.deadline(*sent);
        match &mut self.phase {
            Phase::Leading(leadership) if leadership.epoch == record.epoch => {
                let ran_on_promises = leadership.renewed(deadline, &record.candidates);
                let deadline = leadership.deadline;
                self.emit(Output::Renew { deadline });
                if ran_on_promises {
                    self.emit(Output::Notice(Notice::StoreReachable));
                }
            }
            // As an heir it had opened with it, and the answer came too late for that: once more, without a lease's wait.
            Phase::Candidate if record.epoch == self.highest_opened && now < deadline && !self.is_closing => {
                let (epoch, drained) = (record.epoch, Some(BTreeMap::new()));
                self.phase = Phase::Leaving(Leaving { epoch, deadline, mode: LeaveMode::Reopen, drained });
            }
            Phase::Candidate | Phase::Leading(_) | Phase::Leaving(_) => {
                if now < deadline && record.epoch > self.highest_opened && !self.is_closing {
                    let named = record.candidates.clone();
                    self.open(now, record.epoch, deadline, named);
                }
            }
        }
    }

    // ---- requests ----

    /// Asks what is to be asked now, one thing at a time.
    fn ask(&mut self, now: MonoNs) {
        if self.pending.awaited.is_some() || now < self.pending.backoff_until {
            return;
        }
        if self.pending.must_read || !self.known_record.is_read() {
            let request_id = RequestId(self.next_number());
            self.pending.awaited = Some(AwaitedRequest { request_id, sent: now, is_read: true });
            self.emit(Output::Request(RegisterRequest::Read(request_id)));
            return;
        }
        let record = match &self.phase {
            Phase::Candidate => self.record_to_acquire(now),
            Phase::Leading(_) => self.record_to_renew(now),
            Phase::Leaving(_) => self.record_to_leave(now),
        };
        if let Some(record) = record {
            self.swap(now, record);
        }
    }

    fn swap(&mut self, now: MonoNs, mut record: Record) {
        // Above the record's own too, which another gateway may have counted.
        self.last_number = self.last_number.max(self.known_record.record().map_or(0, |known| known.renewal));
        let number = self.next_number();
        let (request_id, expected) = (RequestId(number), self.known_record.version());
        record.renewal = number;
        let record = Box::new(record);
        self.pending.awaited = Some(AwaitedRequest { request_id, sent: now, is_read: false });
        self.pending.track(SwapAttempt { request_id, expected, sent: now, record: record.clone() });
        self.emit(Output::Request(RegisterRequest::CompareAndSwap { request_id, expected, record }));
    }

    fn set_obstacle(&mut self, obstacle: Option<Obstacle>) {
        if self.obstacle != obstacle {
            if let Some(obstacle) = &obstacle
                && !matches!(obstacle, Obstacle::Promised | Obstacle::StartupWait)
            {
                self.emit(Output::Notice(Notice::Obstacle(obstacle.clone())));
            }
            self.obstacle = obstacle;
        }
    }
}

impl Core for Lease {
    type Event = RegisterEvent;
    type Request = RegisterRequest;

    /// Decisions are taken at [`Input::Time`] alone: whoever drives it tells the time after everything else that has
    /// come, so that a decision knows all of it.
    fn step(&mut self, now: MonoNs, input: Input<RegisterEvent>) -> Vec<Output<RegisterRequest>> {
        self.expire(now);
        match input {
            Input::Time => {
                self.step_promises(now);
                self.step_leading(now);
                self.step_leaving(now);
                self.step_candidate(now);
                self.ask(now);
            }
            Input::Backend(event) => self.on_register(now, event),
            Input::Peer { from, message } => self.on_peer(now, from, message),
            Input::Died(notice) => self.on_death(now, notice),
            Input::Fitness(fitness) => self.fitness = fitness,
            Input::Eligibility(eligibility) => self.eligibility = eligibility,
            Input::ClockRate { error_ppm } => self.on_clock_rate(now, error_ppm),
            Input::Progress(progress) => self.progress = progress,
            Input::ObservedEpoch(epoch) => self.observed_epoch = self.observed_epoch.max(epoch),
            Input::HandOver(target) => self.on_hand_over(now, target),
            Input::Drained { positions } => self.on_drained(now, positions),
            Input::Pin(pin) => self.pin = Some(pin),
            Input::Placement(placement) => self.placement = placement,
            Input::OutputMismatch(has_output_mismatch) => self.has_output_mismatch = has_output_mismatch,
            Input::Admit(node, name) => {
                self.admitted.insert(node, name);
            }
            Input::Close => self.on_close(now),
        }
        std::mem::take(&mut self.outputs)
    }

    fn next_deadline(&self) -> Option<MonoNs> {
        let is_leading = matches!(self.phase, Phase::Leading(_));
        let lost = self.in_doubt_since.filter(|_| self.connection == ConnectionState::Suspended && !is_leading);
        let times = [
            self.pending.awaited.map(|awaited| self.overdue_at(awaited)),
            lost.map(|from| from.plus(self.config.timing.wait_ns())),
            self.given_promise.as_ref().map(|given_promise| given_promise.until),
            self.next_action_at(),
        ];
        times.into_iter().flatten().min()
    }

    fn peer_state(&self, now: MonoNs) -> PeerState {
        PeerState {
            member: self.config.member.clone(),
            eligibility: self.eligibility,
            fitness: self.fitness,
            configuration: self.config.configuration,
            stamp: PeerTimestamp(now.0),
        }
    }

    fn view(&self) -> View {
        let record = self.known_record.record();
        View {
            role: match &self.phase {
                Phase::Leading(_) => Role::Leader,
                Phase::Candidate if self.has_ended() => Role::Closed,
                Phase::Candidate | Phase::Leaving(_) if self.obstacle.is_some() => Role::Ineligible,
                Phase::Candidate | Phase::Leaving(_) => Role::Candidate,
            },
            epoch: self.leading_epoch().unwrap_or_else(|| self.known_record.highest_epoch()),
            leader: match &self.phase {
                Phase::Leading(_) => Some(self.config.member.clone()),
                Phase::Candidate | Phase::Leaving(_) => record.and_then(|record| record.holder.clone()),
            },
            successor: record.and_then(|record| record.successor).map(|successor| successor.node),
            participants: record.map_or_else(|| self.config.candidates.clone(), |record| record.candidates.clone()),
            connection: self.connection,
            pin: if record.is_some_and(|record| record.pinned) { Pin::Pinned } else { Pin::Free },
            obstacle: self.obstacle.clone(),
            fitness: self.fitness,
            can_lead: self.could_lead(),
            peers: self.peers.iter().map(|(node, peer)| (*node, self.peer_view(peer))).collect(),
        }
    }
}

impl Lease {
    fn peer_view(&self, KnownPeer { state, received_at }: &KnownPeer) -> PeerView {
        let Member { node, name, .. } = &state.member;
        let named = self.known_record.record().map_or(&self.config.candidates, |record| &record.candidates);
        let can_lead = state.eligibility == Eligibility::Eligible
            && named.get(node) == Some(name)
            && self.has_compatible_config(state);
        PeerView { received_at: *received_at, fitness: state.fitness, can_lead }
    }

    /// Whether a gateway publishes what this one does, or something newer.
    fn has_compatible_config(&self, peer: &PeerState) -> bool {
        peer.configuration.may_succeed(&self.config.configuration)
    }

    /// When a decision will be due.
    fn next_action_at(&self) -> Option<MonoNs> {
        let must_read = self.pending.must_read || !self.known_record.is_read();
        let swap = match &self.phase {
            _ if must_read => Some(MonoNs(0)),
            Phase::Candidate if self.is_closing => self.held_record().map(|_| self.sends_end_at),
            Phase::Candidate => self.acquire_at(),
            Phase::Leading(leadership) => self.renew_at(leadership),
            Phase::Leaving(leaving) if !leaving.is_handed_over() => leaving.drained.as_ref().map(|_| MonoNs(0)),
            Phase::Leaving(_) => None,
        };
        let ask = swap.filter(|_| self.pending.awaited.is_none()).map(|at| at.max(self.pending.backoff_until));
        let turn = match &self.phase {
            Phase::Leading(leadership) => Some(self.leading_step_at(leadership)),
            Phase::Leaving(leaving) => leaving.notify_due_at(),
            Phase::Candidate => self.succession_due().map(|_| MonoNs(0)),
        };
        ask.into_iter().chain(turn).min()
    }

    /// Whether it has closed and nothing is left to give back.
    fn has_ended(&self) -> bool {
        let holds = self.known_record.record().is_some_and(|record| record.is_held_by(&self.config.member));
        self.is_closing && self.pending.attempts.is_empty() && (!holds || !self.known_record.is_read())
    }

    fn on_peer(&mut self, now: MonoNs, from: NodeId, message: PeerMessage) {
        match message {
            PeerMessage::PromiseRequest(request) => self.on_promise_request(now, from, request),
            PeerMessage::Promise(request) => self.on_promise(from, request),
            PeerMessage::PromiseRefused(_) => {}
            PeerMessage::Prepare(request) => self.on_prepare(now, from, request),
            PeerMessage::Prepared { request, stamp } => self.on_prepared(now, from, request, stamp),
            PeerMessage::PrepareRefused(request) => self.on_prepare_refused(from, request),
            PeerMessage::Ended { request, positions, is_automatic } => {
                self.on_leadership_ended(from, Ended { leadership: request.leadership(), is_automatic }, positions);
            }
            PeerMessage::AdmitRequest { member, configuration } => self.on_admit_request(from, member, configuration),
            PeerMessage::State(state) => {
                let age = |state: &PeerState| (state.member.incarnation, state.stamp);
                let is_newest = self.peers.get(&from).is_none_or(|peer| age(&peer.state) <= age(&state));
                if state.member.node == from && is_newest {
                    self.peers.insert(from, KnownPeer { state, received_at: now });
                }
            }
        }
    }

    fn on_clock_rate(&mut self, now: MonoNs, error_ppm: u32) {
        // What was waited on a clock that ran too fast was no wait.
        if self.clock_error_ppm > self.config.timing.rate_error_ppm {
            self.known_record.restart_wait(now);
            self.restart_successor_waits(now);
        }
        self.clock_error_ppm = error_ppm;
    }
}

impl PendingRequests {
    fn track(&mut self, attempt: SwapAttempt) {
        if self.attempts.len() == ATTEMPTS_MAX {
            let dropped = self.attempts.remove(0);
            self.possible_candidates.extend(dropped.record.candidates);
        }
        self.attempts.push(attempt);
    }

    fn take_attempt(&mut self, request_id: RequestId) -> Option<SwapAttempt> {
        let index = self.attempts.iter().position(|attempt| attempt.request_id == request_id)?;
        Some(self.attempts.remove(index))
    }

    /// What the record shows to have taken effect; and forgets what can't any more, since its version is gone.
    fn resolve(&mut self, known_record: &KnownRecord) -> Option<SwapAttempt> {
        let is_in_force =
            |attempt: &SwapAttempt| known_record.record().is_some_and(|record| *record == *attempt.record);
        let found = self.attempts.iter().position(is_in_force).map(|index| self.attempts.remove(index));
        let version = known_record.version();
        self.attempts.retain(|attempt| attempt.expected == version);
        if self.attempts.is_empty() {
            self.possible_candidates.clear();
        }
        found
    }
}

/// Attempts kept singly. More than can be sent within one lease.
const ATTEMPTS_MAX: usize = 8;
/// Notices of death kept: those of the last few starts of each gateway.
const DEATHS_MAX: usize = 16;
