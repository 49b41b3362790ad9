//! The lease over a register: the core of the backends `file`, `etcd` and `zookeeper`. Pure: see [`Core`].
//!
//! ```text
//!              wait over, swap committed; or
//!              successor of an ended leader    hand-over, close
//!   Candidate ─────────────────────► Leading ──────────────────► Leaving ── end sent, swap ──► Candidate, Closed
//!       ▲                               │                           │
//!       └── expired, lost ──────────────┴──── swap not in force ────┘
//! ```
//! L is the lease, M the margin, ρ the bound on a clock's rate error: see [`timing`](super::timing).
//!
//! Rules; sections 6 to 9 of `gateway/election/SAFETY.md` give the argument for each:
//! - A leader's deadline is the time at which the last successful renewal was *sent*, plus L, less M. A swap of unknown
//!   outcome does not move the deadline. The gateway learns the outcome by reading over a fresh connection: each
//!   attempt's record has its own number.
//! - A candidate that takes over has waited L(1 + ρ) since it *learned* of the record's last change, over an unbroken
//!   connection. Its swap succeeds on that version only. The same wait applies to the first record, after a start, and
//!   to a holder that expired and finds its own record. Only the designated successor does not wait.
//! - Only knowledge shortens the wait: the holder released the record, or the holder's death was announced. The
//!   candidate must have followed the record for one lease without a break.
//! - One gateway, named by the record with a stamp of its own clock, does not even wait for the store: see
//!   [`successor`].
//! - A record is released only when no send of its holder can be outstanding, since a reader of a released record
//!   begins at once.
//! - Promises of *all* other candidates count as a renewal. A candidate promises only while no swap of its own can
//!   still take effect.
//!
//! Modules: [`known_record`] (the record as last learned), `candidacy` (when to swap), [`successor`] (takes over
//! without waiting), `leading` (renew, admit, move), `leaving` (hand over, release), `promises` (the store is lost).

mod candidacy;
mod known_record;
mod leading;
mod leaving;
mod promises;
mod successor;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use mdgw_sys::clock_rate::ClockRate;
use mdgw_wire::{identity::Epoch, time::MonoNs};

use self::{
    known_record::{KnownRecord, Observed, ObservedBy},
    leading::Leadership,
    leaving::{ClosedFor, LeaveMode, Leaving},
    promises::GivenPromise,
    successor::{AnnouncedEnd, NamedSuccessor},
};
use super::{
    auto_move::AutoMoveConfig,
    core::{
        CloseReason, ConnectionState, Core, GroupPlacement, Input, Notice, Obstacle, Output, PeerView, Pin, Progress,
        Role, View,
    },
    fitness::{Eligibility, Fitness},
    identity::{Member, NodeId, NodeName},
    outstanding_sends::OutstandingSends,
    peer::{PeerMessage, PeerState},
    record::{ConfigVersion, PeerTimestamp, Record},
    register::{Outcome, RegisterEvent, RegisterRequest, RequestId, StoreLink, Version, Versioned},
    timing::LeaseTiming,
};
use crate::identity::DeathNotice;

/// Configuration of a gateway for the election of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseConfig {
    /// This start of this gateway.
    pub member: Member,
    /// Must have passed [`LeaseTiming::check`].
    pub timing: LeaseTiming,
    /// The configured candidates, this gateway included.
    pub candidates: BTreeMap<NodeId, NodeName>,
    /// The output that this gateway is configured to publish.
    pub configuration: ConfigVersion,
    /// Behaviour of a leader while the connection is in doubt.
    pub on_suspended: OnSuspended,
    /// The node that should lead when it is as fit as the others. [`Input::Placement`] overrides this value.
    pub preferred: Option<NodeId>,
    /// The highest epoch in this gateway's own log.
    pub own_epoch: Epoch,
    /// When leadership moves automatically.
    pub moves: AutoMoveConfig,
}

/// What a leader does while its connection is in doubt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnSuspended {
    /// The leader continues until its deadline.
    #[default]
    Hold,
    /// The leader stops at once.
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
    /// The successor that this gateway's records name.
    named_successor: Option<NamedSuccessor>,
    /// The end of its own leadership that a holder announced.
    announced_end: Option<AnnouncedEnd>,
    /// The stamp with which this gateway tried to take over as designated successor. No stamp is used twice.
    used_stamp: Option<PeerTimestamp>,
    /// A death notice named this start of this gateway, so other candidates no longer wait for it.
    is_declared_dead: bool,
    peers: BTreeMap<NodeId, KnownPeer>,
    deaths: Vec<DeathNotice>,
    /// When the newest of `deaths` was received.
    death_received_at: MonoNs,
    admitted: BTreeMap<NodeId, NodeName>,
    fitness: Fitness,
    eligibility: Eligibility,
    clock_rate: ClockRate,
    progress: Progress,
    observed_epoch: Epoch,
    /// The highest epoch under which the fence was opened. No epoch is opened twice.
    highest_opened: Epoch,
    /// The hand-over for which this gateway closed its fence, while no record has shown another leadership since.
    unconfirmed_hand_over: Option<ClosedFor>,
    /// The last move helped: a gateway has received the output of the leadership that it led to. Over an election that no
    /// hand-over caused, the value stays that of the leadership before.
    move_helped: bool,
    outstanding_sends: OutstandingSends,
    /// This gateway closes, and its lease ended before its sends: the record stays as it is.
    keeps_record: bool,
    /// Set for the present leadership. The record's pin holds for any leadership.
    pin: Option<Pin>,
    placement: GroupPlacement,
    /// The two gateways produced different records for one message.
    has_output_mismatch: bool,
    obstacle: Option<Obstacle>,
    foreign_record: Option<String>,
    /// Number of the last swap or peer request. No number is used twice.
    last_number: u64,
    is_closing: bool,
    outputs: Vec<Output<RegisterRequest>>,
    safeguards: LeaseSafeguards,
}

/// What a gateway is doing. State that belongs to a phase ends with the phase.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Waiting to take over, or not eligible.
    Candidate,
    /// The fence is open.
    Leading(Leadership),
    /// The fence is closed; this gateway still holds the record and must give it away.
    Leaving(Leaving),
}

/// Requests whose answers are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct PendingRequests {
    /// The request whose answer is awaited.
    awaited: Option<AwaitedRequest>,
    /// Swaps that may still take effect, the awaited one included.
    attempts: Vec<SwapAttempt>,
    /// No swap may be sent before the awaited read, or a new one, is answered.
    must_read: bool,
    /// No request before this time, so that a store that refuses is not flooded.
    backoff_until: MonoNs,
    /// Candidates that were named by attempts that no longer fit into `attempts`. Such an attempt may still take
    /// effect.
    possible_candidates: BTreeMap<NodeId, NodeName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AwaitedRequest {
    request_id: RequestId,
    sent: MonoNs,
    is_read: bool,
}

/// A swap. Its record differs from that of any other attempt, so a read of the record shows which attempt took effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SwapAttempt {
    request_id: RequestId,
    expected: Version,
    sent: MonoNs,
    record: Box<Record>,
}

/// The last state that another gateway reported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct KnownPeer {
    state: PeerState,
    received_at: MonoNs,
}

/// Safeguards that a check may switch off, to show that the check would notice. All are on in every product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseSafeguards {
    /// A successor's lease counts from its stamp.
    pub lease_from_successor_stamp: bool,
    /// A successor stays named while it may open.
    pub keeps_named_successor: bool,
    /// The other candidates wait while the successor may send.
    pub waits_for_successor: bool,
    /// Every other candidate is asked for its promise, not all but one.
    pub asks_every_candidate: bool,
    /// A candidate waits after its start as after any other change.
    pub startup_wait: bool,
    /// A promise is given only while no own swap can still take effect. While all other safeguards are on, neither
    /// model nor simulation has found a violation without this one: [`Self::ends_at_deadline`] covers it.
    pub promises_only_without_swap: bool,
    /// A leadership ends at its deadline: neither an answer of the store nor a promise revives it.
    pub ends_at_deadline: bool,
    /// A swap of unknown outcome does not count as a success.
    pub ignores_unknown_outcome: bool,
    /// A break of the connection invalidates what was known before it.
    pub forgets_on_disconnect: bool,
    /// Another gateway learns that this leadership has ended only when none of its sends is outstanding.
    pub ends_after_sends: bool,
    /// An outranked leader keeps its fence open until the store has its higher epoch.
    pub raises_in_place: bool,
    /// The fence takes a raised epoch only when the store has it.
    pub raises_once_stored: bool,
    /// A designated successor opens only under the epoch that follows the record's.
    pub successor_epoch_from_record: bool,
    /// A new epoch is above the one that the record's designated successor may have opened.
    pub counts_successor_epoch: bool,
    /// A hand-over is reported as failed when its leadership ends before, or when the same gateway leads again after it.
    pub reports_ended_hand_overs: bool,
}

impl LeaseSafeguards {
    /// All safeguards are on, as in every product.
    pub const ALL: Self = Self {
        lease_from_successor_stamp: true,
        keeps_named_successor: true,
        waits_for_successor: true,
        asks_every_candidate: true,
        startup_wait: true,
        promises_only_without_swap: true,
        ends_at_deadline: true,
        ignores_unknown_outcome: true,
        forgets_on_disconnect: true,
        ends_after_sends: true,
        raises_in_place: true,
        raises_once_stored: true,
        successor_epoch_from_record: true,
        counts_successor_epoch: true,
        reports_ended_hand_overs: true,
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
            named_successor: None,
            announced_end: None,
            used_stamp: None,
            is_declared_dead: false,
            peers: BTreeMap::new(),
            deaths: Vec::new(),
            death_received_at: MonoNs(0),
            admitted: BTreeMap::new(),
            fitness: Fitness::default(),
            eligibility: Eligibility::Joining,
            clock_rate: ClockRate::Within(0),
            progress: Progress::Running,
            observed_epoch: Epoch::default(),
            highest_opened: Epoch::default(),
            unconfirmed_hand_over: None,
            move_helped: false,
            outstanding_sends: OutstandingSends::default(),
            keeps_record: false,
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

    /// For checks that show the effect of each safeguard.
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

    /// Ends what has expired by `now`. Runs before every input.
    fn expire(&mut self, now: MonoNs) {
        if let Phase::Leading(leadership) = &self.phase
            && now >= leadership.deadline
            && self.safeguards.ends_at_deadline
        {
            self.end_leadership(now, CloseReason::Expired);
        }
        if self.outstanding_sends.outlast_lease(now) {
            self.keeps_record |= self.is_closing;
            if matches!(self.phase, Phase::Leaving(Leaving { is_drained: false, .. })) {
                self.phase = Phase::Candidate;
                self.known_record.restart_wait(now);
            }
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

    /// A request is overdue. The gateway learns its outcome by reading over a fresh connection.
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

    /// An answer has arrived, so the store is reachable and no request is in doubt.
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
                // An answer to an abandoned read may show a record from before the break.
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
                let current = self.known_record.record().map_or_else(Epoch::default, |record| record.epoch);
                self.emit(Output::Notice(Notice::RecordRolledBack { highest_seen, now: current }));
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

    /// A newer record than the one known so far was read, by this gateway's swap or another's.
    fn on_record_changed(&mut self, now: MonoNs) {
        if let Some(attempt) = self.pending.resolve(&self.known_record) {
            self.on_swap_committed(now, &attempt);
        }
        self.confirm_hand_over();
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

    /// Epoch of the leadership that the record must show as this gateway's.
    fn leading_epoch(&self) -> Option<Epoch> {
        match &self.phase {
            Phase::Candidate => None,
            Phase::Leading(leadership) => Some(leadership.epoch),
            Phase::Leaving(leaving) => Some(leaving.epoch),
        }
    }

    /// An attempt took effect: its answer says so, or a read showed its record.
    fn on_swap_committed(&mut self, now: MonoNs, attempt: &SwapAttempt) {
        let SwapAttempt { sent, record, .. } = attempt;
        if !record.is_held_by(&self.config.member) {
            // The record was given away or released: this gateway holds nothing any more.
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
            Phase::Leading(leadership) if leadership.epoch < record.epoch && record.epoch > self.highest_opened => {
                let candidates = record.candidates.clone();
                self.raise(now, record.epoch, deadline, candidates);
            }
            // This gateway opened as the successor under this epoch, and the answer came after its deadline. It may
            // swap again without waiting a lease.
            Phase::Candidate if record.epoch == self.highest_opened && now < deadline && !self.is_closing => {
                let epoch = record.epoch;
                self.phase = Phase::Leaving(Leaving { epoch, deadline, mode: LeaveMode::Reopen, is_drained: true });
            }
            Phase::Candidate | Phase::Leading(_) | Phase::Leaving(_) => {
                if now < deadline && record.epoch > self.highest_opened && !self.is_closing {
                    let candidates = record.candidates.clone();
                    self.open(now, record.epoch, deadline, candidates);
                }
            }
        }
    }

    // ---- requests ----

    /// Sends the next due request; at most one is outstanding.
    fn send_next_request(&mut self, now: MonoNs) {
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
            self.send_swap(now, record);
        }
    }

    fn send_swap(&mut self, now: MonoNs, mut record: Record) {
        // Above the record's number too: another gateway may have counted it.
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

    /// The core decides at [`Input::Time`] alone. The driver sends [`Input::Time`] after all other pending inputs, so
    /// that a decision knows all of them.
    fn step(&mut self, now: MonoNs, input: Input<RegisterEvent>) -> Vec<Output<RegisterRequest>> {
        self.expire(now);
        match input {
            Input::Time => {
                self.step_promises(now);
                self.step_leading(now);
                self.step_leaving(now);
                self.step_candidate(now);
                self.send_next_request(now);
            }
            Input::Backend(event) => self.on_register(now, event),
            Input::Peer { from, message } => self.on_peer(now, from, message),
            Input::Died(notice) => self.on_death(now, notice),
            Input::Fitness(fitness) => self.fitness = fitness,
            Input::OutputReceived => self.move_helped |= matches!(self.phase, Phase::Leading(_)),
            Input::Eligibility(eligibility) => self.eligibility = eligibility,
            Input::ClockRate(rate) => self.on_clock_rate(now, rate),
            Input::Progress(progress) => self.progress = progress,
            Input::ObservedEpoch(epoch) => self.observed_epoch = self.observed_epoch.max(epoch),
            Input::HandOver(target) => self.on_hand_over(now, target),
            Input::Drained => self.on_drained(now),
            Input::Pin(pin) => self.pin = Some(pin),
            Input::Placement(placement) => self.placement = placement,
            Input::Configuration(configuration) => self.config.configuration = configuration,
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
            self.outstanding_sends.lease_ends_at().filter(|_| self.awaits_sends()),
            self.next_action_at(),
        ];
        times.into_iter().flatten().min()
    }

    fn peer_state(&self, now: MonoNs) -> PeerState {
        PeerState::at(now, &self.config.member, self.config.configuration, self.eligibility, self.fitness)
    }

    fn view(&self) -> View {
        let record = self.known_record.record();
        let is_leading = matches!(self.phase, Phase::Leading(_));
        View {
            role: match &self.phase {
                Phase::Leading(_) => Role::Leader,
                Phase::Candidate if self.has_ended() => Role::Closed,
                Phase::Candidate | Phase::Leaving(_) if self.obstacle.is_some() => Role::Ineligible,
                Phase::Candidate | Phase::Leaving(_) => Role::Candidate,
            },
            epoch: self.leading_epoch().unwrap_or_else(|| self.known_record.highest_epoch()),
            leader: if is_leading {
                Some(self.config.member.clone())
            } else {
                record.and_then(|record| record.holder.clone())
            },
            leader_until: record.filter(|_| !is_leading).map(|record| {
                let lease_end = self.known_record.learned_at().plus(self.config.timing.wait_for_ns(record.lease_ns));
                self.given_promise.as_ref().map_or(lease_end, |promise| lease_end.max(promise.until))
            }),
            successor: record.and_then(|record| record.successor).map(|successor| successor.node),
            participants: record.map_or_else(|| self.config.candidates.clone(), |record| record.candidates.clone()),
            connection: self.connection,
            pin: if record.is_some_and(|record| record.pinned) { Pin::Pinned } else { Pin::Free },
            obstacle: self.obstacle.clone(),
            fitness: self.fitness,
            can_lead: self.could_lead(),
            peers: self.peers.iter().map(|(node, peer)| (*node, self.peer_view(peer))).collect(),
            voters: BTreeMap::new(),
        }
    }
}

impl Lease {
    fn peer_view(&self, KnownPeer { state, received_at }: &KnownPeer) -> PeerView {
        let Member { node, name, .. } = &state.member;
        let candidates = self.known_record.record().map_or(&self.config.candidates, |record| &record.candidates);
        let can_lead = state.eligibility == Eligibility::Eligible
            && candidates.get(node) == Some(name)
            && self.has_compatible_config(state);
        PeerView { received_at: *received_at, fitness: state.fitness, can_lead }
    }

    /// Whether a gateway publishes the same output as this one, or a newer configuration.
    fn has_compatible_config(&self, peer: &PeerState) -> bool {
        peer.configuration.may_succeed(&self.config.configuration)
    }

    /// When the next decision is due.
    fn next_action_at(&self) -> Option<MonoNs> {
        let must_read = self.pending.must_read || !self.known_record.is_read();
        let swap_at = match &self.phase {
            _ if must_read => Some(MonoNs(0)),
            Phase::Candidate if self.is_closing => self.record_to_release().map(|_| MonoNs(0)),
            Phase::Candidate => self.acquire_at(),
            Phase::Leading(leadership) => self.renew_at(leadership),
            Phase::Leaving(leaving) if !leaving.is_handed_over() => leaving.is_drained.then_some(MonoNs(0)),
            Phase::Leaving(_) => None,
        };
        let request_at =
            swap_at.filter(|_| self.pending.awaited.is_none()).map(|at| at.max(self.pending.backoff_until));
        let turn = match &self.phase {
            Phase::Leading(leadership) => Some(self.leading_step_at(leadership)),
            Phase::Leaving(leaving) => leaving.notify_due_at(),
            Phase::Candidate => self.succession_due().map(|_| MonoNs(0)),
        };
        request_at.into_iter().chain(turn).min()
    }

    /// Whether the latch has closed and nothing is left to release.
    fn has_ended(&self) -> bool {
        let holds = self.known_record.record().is_some_and(|record| record.is_held_by(&self.config.member));
        let is_released = !holds || !self.known_record.is_read() || self.keeps_record;
        self.is_closing && self.pending.attempts.is_empty() && is_released
    }

    fn on_peer(&mut self, now: MonoNs, from: NodeId, message: PeerMessage) {
        match message {
            PeerMessage::PromiseRequest(request) => self.on_promise_request(now, from, request),
            PeerMessage::Promise(request) => self.on_promise(from, request),
            PeerMessage::PromiseRefused(_) => {}
            PeerMessage::Prepare(request) => self.on_prepare(now, from, request),
            PeerMessage::Prepared { request, stamp } => self.on_prepared(now, from, request, stamp),
            PeerMessage::PrepareRefused(request) => self.on_prepare_refused(from, request),
            PeerMessage::LeadershipEnded { request, is_automatic } => {
                self.on_leadership_ended(from, AnnouncedEnd { leadership: request.leadership_id(), is_automatic });
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

    fn on_clock_rate(&mut self, now: MonoNs, rate: ClockRate) {
        // A wait that was measured on a clock that ran too fast does not count.
        if self.clock_rate.exceeds(self.config.timing.rate_error_ppm) {
            self.known_record.restart_wait(now);
            self.restart_successor_waits(now);
        }
        self.clock_rate = rate;
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

    /// Returns the attempt that the record shows to have taken effect. Drops the attempts that can no longer take
    /// effect, since the version they expect is gone.
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

/// Number of attempts kept one by one: more than can be sent within one lease.
const ATTEMPTS_MAX: usize = 8;
/// Number of death notices kept: those of the last few starts of each gateway.
const DEATHS_MAX: usize = 16;
