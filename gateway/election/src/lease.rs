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
//! - One gateway, named by the record with a stamp of its own clock, does not even wait for the store: see [`heir`].
//! - A record is given back when no send of its holder can be under way any more: whoever reads it so begins at once.
//! - The promises of *all* other candidates are as good as a renewal; a candidate promises only while no swap of its
//!   own can still take effect.
//!
//! Modules: [`knowledge`] (what is known of the record), `candidacy` (when to swap), [`heir`] (who does not wait), `leading` (renew,
//! admit, move), `leaving` (hand over, release), `promises` (the store is lost).

mod candidacy;
mod heir;
mod knowledge;
mod leading;
mod leaving;
mod promises;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use mdgw_feeds::{identity::Epoch, time::MonoNs};

use self::{
    heir::{Ended, Named},
    knowledge::{Knowledge, Learned, Source},
    leading::Leadership,
    leaving::{Leaving, Way},
    promises::Promised,
};
use super::{
    core::{
        CloseReason, ConnectionState, Core, Input, Notice, Obstacle, Output, PeerView, Pin, Place, Progress, Role, View,
    },
    fitness::{Fitness, Standing},
    identity::{Member, NodeId, NodeName},
    moves::MovesConfig,
    peer::{PeerMessage, PeerState},
    record::{ConfigurationMark, PeerStamp, Record},
    register::{Link, Outcome, RegisterEvent, RegisterRequest, Ticket, Version, Versioned},
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
    pub configuration: ConfigurationMark,
    /// While the connection is in doubt.
    pub on_suspended: OnSuspended,
    /// Who is to lead where it can; what [`Input::Placed`] names comes before it.
    pub preferred: Option<NodeId>,
    /// The highest epoch in this gateway's own log.
    pub own_epoch: Epoch,
    /// When leadership moves by itself.
    pub moves: MovesConfig,
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
    knowledge: Knowledge,
    phase: Phase,
    asked: Asked,
    connection: ConnectionState,
    /// Since when the connection has been in doubt.
    doubtful_from: Option<MonoNs>,
    promised: Option<Promised>,
    /// The heir of this gateway's records.
    named: Option<Named>,
    /// Said by a holder of its own leadership.
    ended: Option<Ended>,
    /// The stamp with which this gateway tried to go on as an heir: none serves twice.
    tried_stamp: Option<PeerStamp>,
    /// Others wait for this start of this gateway no more.
    is_told_dead: bool,
    peers: BTreeMap<NodeId, HeardPeer>,
    deaths: Vec<DeathNotice>,
    /// When the last of them was heard.
    death_heard: MonoNs,
    admitted: BTreeMap<NodeId, NodeName>,
    fitness: Fitness,
    standing: Standing,
    clock_error_ppm: u32,
    progress: Progress,
    heard: Epoch,
    /// The highest epoch that the fence was opened under: none is opened twice.
    opened: Epoch,
    /// Until when a send may be under way that was checked before the fence closed.
    sends_end: MonoNs,
    /// Said of the present leadership; what the record says holds for any.
    pin: Option<Pin>,
    place: Place,
    /// The two gateways make different records.
    differs: bool,
    obstacle: Option<Obstacle>,
    foreign: Option<String>,
    /// Number of the last swap or question: none is used twice.
    numbers: u64,
    closing: bool,
    outputs: Vec<Output<RegisterRequest>>,
    safeguards: Safeguards,
}

/// What a gateway is doing. Everything that belongs to a phase ends with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Waiting, or not standing.
    Candidate,
    /// The fence is open.
    Leading(Leadership),
    /// The fence is closed, the record still ours to give away.
    Leaving(Leaving),
}

/// Requests whose answers are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Asked {
    /// The one that is waited for.
    waiting: Option<Waiting>,
    /// Swaps that may yet take effect, the one waited for included.
    attempts: Vec<Attempt>,
    /// Nothing may be swapped before this is answered or a new read is.
    must_read: bool,
    /// A store that refuses is not hammered.
    rest_until: MonoNs,
    /// Named as candidates by an attempt that is no longer kept singly.
    maybe_named: BTreeMap<NodeId, NodeName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    ticket: Ticket,
    sent: MonoNs,
    is_read: bool,
}

/// A swap. Its record is unlike that of any other attempt, so that whoever reads it knows that this one took effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    ticket: Ticket,
    expected: Version,
    sent: MonoNs,
    record: Box<Record>,
}

/// What another gateway last said of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct HeardPeer {
    state: PeerState,
    heard_at: MonoNs,
}

/// Safeguards that a check may switch off, to show that it would notice. All are on in every product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Safeguards {
    /// An heir's lease counts from its stamp.
    pub heirs_stamp: bool,
    /// An heir stays named while it may begin.
    pub heir_stays: bool,
    /// The others wait while the heir may send.
    pub heir_waited_for: bool,
    /// Every other candidate is asked for its promise, not all but one.
    pub each_candidate_asked: bool,
    /// A candidate waits after its start as after any other news.
    pub sits_out: bool,
    /// A promise is given only while no swap of one's own can still take effect. Where all others hold, neither model nor
    /// simulation has missed it yet.
    pub no_swap_outstanding: bool,
    /// A swap of unknown fate does not count as one that succeeded.
    pub unknown_moves_nothing: bool,
    /// What was known before a break of the connection counts no more.
    pub break_forgets: bool,
}

impl Safeguards {
    /// As in every product.
    pub const ALL: Self = Self {
        heirs_stamp: true,
        heir_stays: true,
        heir_waited_for: true,
        each_candidate_asked: true,
        sits_out: true,
        no_swap_outstanding: true,
        unknown_moves_nothing: true,
        break_forgets: true,
    };
}

impl Lease {
    /// A candidacy that begins with the first input.
    #[must_use]
    pub fn new(config: LeaseConfig) -> Self {
        Self {
            config,
            knowledge: Knowledge::default(),
            phase: Phase::Candidate,
            asked: Asked { must_read: true, ..Asked::default() },
            connection: ConnectionState::Starting,
            doubtful_from: None,
            promised: None,
            named: None,
            ended: None,
            tried_stamp: None,
            is_told_dead: false,
            peers: BTreeMap::new(),
            deaths: Vec::new(),
            death_heard: MonoNs(0),
            admitted: BTreeMap::new(),
            fitness: Fitness::default(),
            standing: Standing::Joins,
            clock_error_ppm: 0,
            progress: Progress::Running,
            heard: Epoch::default(),
            opened: Epoch::default(),
            sends_end: MonoNs(0),
            pin: None,
            place: Place::default(),
            differs: false,
            obstacle: None,
            foreign: None,
            numbers: 0,
            closing: false,
            outputs: Vec::new(),
            safeguards: Safeguards::ALL,
        }
    }

    /// For checks that want to see what each safeguard is good for.
    #[must_use]
    pub fn with_safeguards(self, safeguards: Safeguards) -> Self {
        Self { safeguards, ..self }
    }

    fn node(&self) -> NodeId {
        self.config.member.node
    }

    fn say(&mut self, output: Output<RegisterRequest>) {
        self.outputs.push(output);
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    // ---- time ----

    /// What time alone ends. Comes before every input.
    fn expire(&mut self, now: MonoNs) {
        if let Phase::Leading(leadership) = &self.phase
            && now >= leadership.deadline
        {
            self.end_leadership(now, CloseReason::Expired);
        }
        self.promised.take_if(|promised| now >= promised.until);
        if let Some(waiting) = self.asked.waiting
            && now >= self.overdue_at(waiting)
        {
            self.break_off(now);
        }
        if let Some(from) = self.doubtful_from
            && self.connection == ConnectionState::Suspended
            && now >= from.plus(self.config.timing.wait_ns())
            && !matches!(self.phase, Phase::Leading(_))
        {
            self.set_connection(ConnectionState::Lost);
        }
    }

    fn overdue_at(&self, waiting: Waiting) -> MonoNs {
        waiting.sent.plus(self.config.timing.renew_ns)
    }

    /// A request is overdue: its fate will be read over a fresh connection.
    fn break_off(&mut self, now: MonoNs) {
        self.asked.waiting = None;
        self.asked.must_read = true;
        self.suspend(now);
        self.say(Output::Request(RegisterRequest::Reconnect));
    }

    // ---- connection ----

    fn suspend(&mut self, now: MonoNs) {
        if self.safeguards.break_forgets {
            self.knowledge.forget();
        }
        self.doubtful_from.get_or_insert(now);
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
    fn answered(&mut self) {
        self.doubtful_from = None;
        match self.connection {
            ConnectionState::Starting => self.set_connection(ConnectionState::Connected),
            ConnectionState::Suspended | ConnectionState::Lost => self.set_connection(ConnectionState::Reconnected),
            ConnectionState::Connected | ConnectionState::Reconnected => {}
        }
    }

    fn set_connection(&mut self, state: ConnectionState) {
        self.connection = state;
        self.say(Output::Connection(state));
    }

    fn on_link(&mut self, now: MonoNs, link: Link) {
        match link {
            Link::Up => self.asked.must_read |= !self.knowledge.is_read(),
            Link::Doubtful => {
                self.asked.waiting = None;
                self.asked.must_read = true;
                self.suspend(now);
            }
            Link::Ended => {
                self.asked.waiting = None;
                self.asked.must_read = true;
                self.knowledge.forget();
                self.doubtful_from.get_or_insert(now);
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
            RegisterEvent::Link(link) => self.on_link(now, link),
            RegisterEvent::Changed(seen) => self.learn(now, seen, Source::Watch),
            RegisterEvent::Answer { ticket, outcome } => self.on_answer(now, ticket, outcome),
        }
    }

    fn on_answer(&mut self, now: MonoNs, ticket: Ticket, outcome: Outcome) {
        let waiting = self.asked.waiting.take_if(|waiting| waiting.ticket == ticket);
        match outcome {
            Outcome::Read(seen) => {
                // A read that was given up may show what was in force before the break.
                let Some(waiting) = waiting else { return };
                self.foreign = None;
                self.answered();
                self.asked.must_read = false;
                self.learn(now, seen, Source::Read { sent: waiting.sent });
            }
            Outcome::Swapped(version) => {
                let Some(attempt) = self.asked.take_attempt(ticket) else { return };
                let record = (*attempt.record).clone();
                if waiting.is_some() {
                    self.answered();
                }
                self.succeeded(now, &attempt);
                self.learn(now, Some(Versioned { version, record }), Source::Swap);
            }
            Outcome::Refused => {
                if self.asked.take_attempt(ticket).is_some() {
                    self.asked.must_read = true;
                }
                if waiting.is_some() {
                    self.answered();
                }
            }
            Outcome::Unknown(_) => {
                if !self.safeguards.unknown_moves_nothing
                    && let Some(attempt) = self.asked.take_attempt(ticket)
                {
                    self.succeeded(now, &attempt);
                }
                if let Some(waiting) = waiting {
                    self.break_off(now);
                    if waiting.is_read {
                        self.asked.rest_until = now.plus(self.config.timing.renew_ns / 4);
                    }
                }
            }
            Outcome::Failed(why) => {
                self.asked.take_attempt(ticket);
                self.asked.must_read = true;
                if let Some(waiting) = waiting {
                    self.foreign = waiting.is_read.then_some(why);
                    self.asked.rest_until = now.plus(self.config.timing.renew_ns);
                }
            }
        }
    }

    // ---- knowledge ----

    fn learn(&mut self, now: MonoNs, seen: Option<Versioned>, source: Source) {
        let is_first = !self.knowledge.is_read();
        match self.knowledge.learn(now, seen, source) {
            Learned::Same => {}
            Learned::Doubt => self.asked.must_read = true,
            Learned::Back { seen } => {
                let now_says = self.knowledge.record().map_or_else(Epoch::default, |record| record.epoch);
                self.say(Output::Notice(Notice::RecordWentBack { seen, now: now_says }));
                self.learned_news(now);
            }
            Learned::Newer => {
                if is_first && !self.safeguards.sits_out {
                    self.knowledge.wait_again(MonoNs(0));
                }
                self.learned_news(now);
            }
        }
    }

    /// The record is another one than before.
    fn learned_news(&mut self, now: MonoNs) {
        if let Some(attempt) = self.asked.settle(&self.knowledge) {
            self.succeeded(now, &attempt);
        }
        self.promised_leadership_may_be_over();
        self.ask_to_be_admitted();
        let Some(epoch) = self.leading_epoch() else { return };
        let came_from = match &self.phase {
            Phase::Leading(leadership) => leadership.came_from,
            Phase::Candidate | Phase::Leaving(_) => None,
        };
        let is_ours = self.knowledge.record().is_some_and(|record| {
            let is_held = record.is_held_by(&self.config.member) && record.epoch == epoch;
            is_held || came_from.is_some_and(|before| before.is_shown_by(record))
        });
        if !is_ours {
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
    fn succeeded(&mut self, now: MonoNs, attempt: &Attempt) {
        let Attempt { sent, record, .. } = attempt;
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
                let was_on_promises = leadership.renewed(deadline, &record.candidates);
                let deadline = leadership.deadline;
                self.say(Output::Renew { deadline });
                if was_on_promises {
                    self.say(Output::Notice(Notice::StoreIsBack));
                }
            }
            // As an heir it had opened with it, and the answer came too late for that: once more, without a lease's wait.
            Phase::Candidate if record.epoch == self.opened && now < deadline && !self.closing => {
                let (epoch, drained) = (record.epoch, Some(BTreeMap::new()));
                self.phase = Phase::Leaving(Leaving { epoch, deadline, way: Way::Reopen, drained });
            }
            Phase::Candidate | Phase::Leading(_) | Phase::Leaving(_) => {
                if now < deadline && record.epoch > self.opened && !self.closing {
                    let named = record.candidates.clone();
                    self.open(now, record.epoch, deadline, named);
                }
            }
        }
    }

    // ---- requests ----

    /// Asks what is to be asked now, one thing at a time.
    fn ask(&mut self, now: MonoNs) {
        if self.asked.waiting.is_some() || now < self.asked.rest_until {
            return;
        }
        if self.asked.must_read || !self.knowledge.is_read() {
            let ticket = Ticket(self.next_number());
            self.asked.waiting = Some(Waiting { ticket, sent: now, is_read: true });
            self.say(Output::Request(RegisterRequest::Read(ticket)));
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
        self.numbers = self.numbers.max(self.knowledge.record().map_or(0, |known| known.renewal));
        let number = self.next_number();
        let (ticket, expected) = (Ticket(number), self.knowledge.version());
        record.renewal = number;
        let record = Box::new(record);
        self.asked.waiting = Some(Waiting { ticket, sent: now, is_read: false });
        self.asked.keep(Attempt { ticket, expected, sent: now, record: record.clone() });
        self.say(Output::Request(RegisterRequest::CompareAndSwap { ticket, expected, record }));
    }

    fn set_obstacle(&mut self, obstacle: Option<Obstacle>) {
        if self.obstacle != obstacle {
            if let Some(obstacle) = &obstacle
                && !matches!(obstacle, Obstacle::Promised | Obstacle::SittingOut)
            {
                self.say(Output::Notice(Notice::Obstacle(obstacle.clone())));
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
                self.promises_turn(now);
                self.leading_turn(now);
                self.leaving_turn(now);
                self.candidate_turn(now);
                self.ask(now);
            }
            Input::Backend(event) => self.on_register(now, event),
            Input::Peer { from, message } => self.on_peer(now, from, message),
            Input::Died(notice) => self.on_death(now, notice),
            Input::Fitness(fitness) => self.fitness = fitness,
            Input::Standing(standing) => self.standing = standing,
            Input::ClockRate { error_ppm } => self.on_clock_rate(now, error_ppm),
            Input::Progress(progress) => self.progress = progress,
            Input::Heard(epoch) => self.heard = self.heard.max(epoch),
            Input::HandOver(target) => self.on_hand_over(now, target),
            Input::Drained { positions } => self.on_drained(now, positions),
            Input::Pin(pin) => self.pin = Some(pin),
            Input::Placed(place) => self.place = place,
            Input::Differs(differs) => self.differs = differs,
            Input::Admit(node, name) => {
                self.admitted.insert(node, name);
            }
            Input::Close => self.on_close(now),
        }
        std::mem::take(&mut self.outputs)
    }

    fn next_deadline(&self) -> Option<MonoNs> {
        let is_leading = matches!(self.phase, Phase::Leading(_));
        let lost = self.doubtful_from.filter(|_| self.connection == ConnectionState::Suspended && !is_leading);
        let times = [
            self.asked.waiting.map(|waiting| self.overdue_at(waiting)),
            lost.map(|from| from.plus(self.config.timing.wait_ns())),
            self.promised.as_ref().map(|promised| promised.until),
            self.next_turn(),
        ];
        times.into_iter().flatten().min()
    }

    fn peer_state(&self, now: MonoNs) -> PeerState {
        PeerState {
            member: self.config.member.clone(),
            standing: self.standing,
            fitness: self.fitness,
            configuration: self.config.configuration,
            stamp: PeerStamp(now.0),
        }
    }

    fn view(&self) -> View {
        let record = self.knowledge.record();
        View {
            role: match &self.phase {
                Phase::Leading(_) => Role::Leader,
                Phase::Candidate if self.has_ended() => Role::Closed,
                Phase::Candidate | Phase::Leaving(_) if self.obstacle.is_some() => Role::Bystander,
                Phase::Candidate | Phase::Leaving(_) => Role::Candidate,
            },
            epoch: self.leading_epoch().unwrap_or_else(|| self.knowledge.highest_epoch()),
            leader: match &self.phase {
                Phase::Leading(_) => Some(self.config.member.clone()),
                Phase::Candidate | Phase::Leaving(_) => record.and_then(|record| record.holder.clone()),
            },
            heir: record.and_then(|record| record.heir).map(|heir| heir.node),
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
    fn peer_view(&self, HeardPeer { state, heard_at }: &HeardPeer) -> PeerView {
        let Member { node, name, .. } = &state.member;
        let named = self.knowledge.record().map_or(&self.config.candidates, |record| &record.candidates);
        let can_lead = state.standing == Standing::Stands && named.get(node) == Some(name) && self.is_level_with(state);
        PeerView { heard_at: *heard_at, fitness: state.fitness, can_lead }
    }

    /// Whether a gateway publishes what this one does, or something newer.
    fn is_level_with(&self, peer: &PeerState) -> bool {
        peer.configuration.may_follow(&self.config.configuration)
    }

    /// When a decision will be due.
    fn next_turn(&self) -> Option<MonoNs> {
        let must_read = self.asked.must_read || !self.knowledge.is_read();
        let swap = match &self.phase {
            _ if must_read => Some(MonoNs(0)),
            Phase::Candidate if self.closing => self.record_to_give_back().map(|_| self.sends_end),
            Phase::Candidate => self.acquire_at(),
            Phase::Leading(leadership) => self.renew_at(leadership),
            Phase::Leaving(leaving) if !leaving.is_handed_over() => leaving.drained.as_ref().map(|_| MonoNs(0)),
            Phase::Leaving(_) => None,
        };
        let ask = swap.filter(|_| self.asked.waiting.is_none()).map(|at| at.max(self.asked.rest_until));
        let turn = match &self.phase {
            Phase::Leading(leadership) => Some(self.leading_turn_at(leadership)),
            Phase::Leaving(leaving) => leaving.turn_at(),
            Phase::Candidate => self.inheritance().map(|_| MonoNs(0)),
        };
        ask.into_iter().chain(turn).min()
    }

    /// Whether it has closed and nothing is left to give back.
    fn has_ended(&self) -> bool {
        let holds = self.knowledge.record().is_some_and(|record| record.is_held_by(&self.config.member));
        self.closing && self.asked.attempts.is_empty() && (!holds || !self.knowledge.is_read())
    }

    fn on_peer(&mut self, now: MonoNs, from: NodeId, message: PeerMessage) {
        match message {
            PeerMessage::PromiseAsk(question) => self.on_promise_ask(now, from, question),
            PeerMessage::Promise(question) => self.on_promise(from, question),
            PeerMessage::PromiseRefused(_) => {}
            PeerMessage::Prepare(question) => self.on_prepare(now, from, question),
            PeerMessage::Prepared { question, stamp } => self.on_prepared(now, from, question, stamp),
            PeerMessage::PrepareRefused(question) => self.on_prepare_refused(from, question),
            PeerMessage::Ended { question, positions, is_automatic } => {
                self.on_ended(from, Ended { leadership: question.leadership(), is_automatic }, positions);
            }
            PeerMessage::AdmitAsk { member, configuration } => self.on_admit_ask(from, member, configuration),
            PeerMessage::State(state) => {
                let age = |state: &PeerState| (state.member.incarnation, state.stamp);
                let is_newest = self.peers.get(&from).is_none_or(|peer| age(&peer.state) <= age(&state));
                if state.member.node == from && is_newest {
                    self.peers.insert(from, HeardPeer { state, heard_at: now });
                }
            }
        }
    }

    fn on_clock_rate(&mut self, now: MonoNs, error_ppm: u32) {
        // What was waited on a clock that ran too fast was no wait.
        if self.clock_error_ppm > self.config.timing.rate_error_ppm {
            self.knowledge.wait_again(now);
            self.wait_for_heirs_again(now);
        }
        self.clock_error_ppm = error_ppm;
    }
}

impl Asked {
    fn keep(&mut self, attempt: Attempt) {
        if self.attempts.len() == ATTEMPTS_MAX {
            let dropped = self.attempts.remove(0);
            self.maybe_named.extend(dropped.record.candidates);
        }
        self.attempts.push(attempt);
    }

    fn take_attempt(&mut self, ticket: Ticket) -> Option<Attempt> {
        let index = self.attempts.iter().position(|attempt| attempt.ticket == ticket)?;
        Some(self.attempts.remove(index))
    }

    /// What the record shows to have taken effect; and forgets what can't any more, since its version is gone.
    fn settle(&mut self, knowledge: &Knowledge) -> Option<Attempt> {
        let is_in_force = |attempt: &Attempt| knowledge.record().is_some_and(|record| *record == *attempt.record);
        let found = self.attempts.iter().position(is_in_force).map(|index| self.attempts.remove(index));
        let version = knowledge.version();
        self.attempts.retain(|attempt| attempt.expected == version);
        if self.attempts.is_empty() {
            self.maybe_named.clear();
        }
        found
    }
}

/// Attempts kept singly. More than can be sent within one lease.
const ATTEMPTS_MAX: usize = 8;
/// Notices of death kept: those of the last few starts of each gateway.
const DEATHS_MAX: usize = 16;
