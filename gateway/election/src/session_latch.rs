//! The classic latch over a store with sessions, as a core: everybody has a place in a line that its session keeps, the
//! first in line leads, and each watches the one before. For those who want it; the lease over a versioned record needs
//! no session to expire.
//!
//! ```text
//!            join               first, epoch taken                 hand-over, close
//!   Outside ──────► In line ──────────────────────► Leading ─────────────────────────► Leaving ──► Outside
//!      ▲               ▲ deadline passed, outranked  │
//!      └───────────────┴───────── session or place gone
//! ```
//! - The place goes no sooner than one session time-out T after the node of the store that ends sessions last heard of it. A
//!   leader's deadline is when its last *answered* request was sent, plus 2/3 T, less the margin: the rest pays for what the
//!   store's own nodes tell each other late (half a tick, at most T/4) and for clocks.
//! - So a request counts only where word of it can come before the session ends: not after a silence of nearly T. Then another
//!   one has to be answered that was sent T/4 later. Whoever stands in line asks often enough to be known at any time.
//! - Whoever led gives up its place no sooner than its sends have ended: when that is known, or the longest send after
//!   the deadline.
//! - Only a write renews: it is answered by the store's leader, and only while the place is there.
//! - An epoch is taken by a versioned write that fails unless our place still stands. So of two that both believe to be
//!   first, one at most gets any epoch, and each opening has its own.

use std::collections::BTreeMap;

use mdgw_feeds::{identity::Epoch, time::MonoNs};

use super::{
    core::{CloseReason, ConnectionState, Core, Input, Notice, Obstacle, Output, Pin, Progress, Role, View},
    fitness::{Fitness, Standing},
    identity::{Member, NodeId, next_epoch},
    lease::OnSuspended,
    peer::PeerState,
    record::{ConfigurationMark, PeerStamp},
    register::{Link, Ticket, Version},
    timing::{LeaseTiming, drift_ns},
};

/// What a gateway brings into the line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionLatchConfig {
    /// This start of this gateway.
    pub member: Member,
    /// Renewal, margin and rate error; the lease's length is the session's.
    pub timing: LeaseTiming,
    /// What it publishes.
    pub configuration: ConfigurationMark,
    /// While the connection is in doubt.
    pub on_suspended: OnSuspended,
    /// The highest epoch in this gateway's own log.
    pub own_epoch: Epoch,
}

/// What it asks of the session's keeper. Each has one answer, unless the session ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionRequest {
    /// Take a place at the end of the line.
    Join(Ticket),
    /// Who stands in line, and the last epoch. From then on, [`SessionEvent::Stirred`] when the one before us goes.
    Look(Ticket),
    /// Nothing but an answer, that the session be heard of.
    Touch(Ticket),
    /// Write to our place.
    Renew(Ticket),
    /// Put this epoch in the place of the one of that version, if our place is still there.
    TakeEpoch {
        /// Names it.
        ticket: Ticket,
        /// What it replaces.
        expected: Version,
        /// What takes its place.
        epoch: Epoch,
    },
    /// Give up our place.
    Leave(Ticket),
    /// Take away the place of somebody whose process is known to have ended.
    Remove(Ticket, String),
}

/// What comes from the session's keeper.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionEvent {
    /// A session has begun, and with this time-out, as the store granted it. Nothing of an earlier one is there.
    Began {
        /// T, ns.
        timeout_ns: u64,
        /// When it was asked for, at the earliest.
        asked: MonoNs,
    },
    /// How the connection is; [`Link::Ended`]: the session has expired, and what was asked has no answer any more.
    Link(Link),
    /// The answer to the request with that ticket.
    Answer(Ticket, SessionAnswer),
    /// The one before us has gone, or the line is not what it was.
    Stirred,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionAnswer {
    /// It was done.
    Done,
    /// To [`SessionRequest::Look`].
    Line {
        /// Who stands there, the first one first.
        places: Vec<Place>,
        /// Which of them is ours.
        own: Option<usize>,
        /// The last epoch that was taken; 0: none yet.
        epoch: Epoch,
        /// Its version.
        version: Version,
    },
    /// Our place is not there.
    Gone,
    /// Another version of the epoch was in force. Nothing has changed.
    Refused,
    /// It may or may not have happened.
    Unknown(String),
    /// It has not happened.
    Failed(String),
}

/// A place in the line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Its name in the store.
    pub name: String,
    /// Whose it is; `None`: of somebody who says so in no form of ours.
    pub member: Option<Member>,
}

/// One gateway's part in the line of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionLatch {
    config: SessionLatchConfig,
    /// T of the session, while there is one.
    session_ns: Option<u64>,
    known: Known,
    connection: ConnectionState,
    has_place: bool,
    /// Whether the line has to be looked at.
    must_look: bool,
    /// Answers that are waited for, with what was asked and when.
    asked: BTreeMap<Ticket, (Asked, MonoNs)>,
    /// When anything was asked last.
    asked_at: MonoNs,
    places: Vec<Place>,
    own: Option<usize>,
    /// The last epoch that was taken by anybody, as far as is known.
    epoch: Epoch,
    leading: Option<Leading>,
    leaving: Leaving,
    standing: Standing,
    progress: Progress,
    clock_error_ppm: u32,
    fitness: Fitness,
    heard: Epoch,
    pin: Pin,
    obstacle: Option<Obstacle>,
    /// A store that refuses is not hammered.
    rest_until: MonoNs,
    /// Until when a send of the last leadership may be under way: our place stays as long.
    sends_end: MonoNs,
    tickets: u64,
    outputs: Vec<Output<SessionRequest>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asked {
    Join,
    Look,
    Touch,
    Renew,
    TakeEpoch(Epoch),
    Leave,
    Remove,
}

/// What is known of when the node of the store that ends sessions heard of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Known {
    /// The session lasts T from then at least.
    from: MonoNs,
    /// After a silence: when the first request was sent that was answered, and when the answer came. Whether word of it came in
    /// time is known with the answer to another one, sent long enough after.
    again: Option<(MonoNs, MonoNs)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Leading {
    epoch: Epoch,
    deadline: MonoNs,
    renew_at: MonoNs,
}

/// Whether the place is being given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Leaving {
    #[default]
    No,
    /// To whom leadership is to go; the line is looked at first.
    HandOver(Option<NodeId>),
    /// The fence is closed, sends may be outstanding.
    Draining,
    /// The place is to go; then a new one is taken.
    Left,
    /// The place is to go, for good.
    Closing,
}

impl SessionLatch {
    /// Stands nowhere yet.
    #[must_use]
    pub fn new(config: SessionLatchConfig) -> Self {
        Self {
            config,
            session_ns: None,
            known: Known::default(),
            connection: ConnectionState::default(),
            has_place: false,
            must_look: false,
            asked: BTreeMap::new(),
            asked_at: MonoNs(0),
            places: Vec::new(),
            own: None,
            epoch: Epoch::default(),
            leading: None,
            leaving: Leaving::No,
            standing: Standing::default(),
            progress: Progress::default(),
            clock_error_ppm: 0,
            fitness: Fitness::default(),
            heard: Epoch::default(),
            pin: Pin::default(),
            obstacle: None,
            rest_until: MonoNs(0),
            sends_end: MonoNs(0),
            tickets: 0,
            outputs: Vec::new(),
        }
    }

    fn take(&mut self, now: MonoNs, input: Input<SessionEvent>) {
        match input {
            Input::Backend(event) => self.take_event(now, event),
            Input::Fitness(fitness) => self.fitness = fitness,
            Input::Standing(standing) => self.standing = standing,
            Input::ClockRate { error_ppm } => self.clock_error_ppm = error_ppm,
            Input::Progress(progress) => self.progress = progress,
            Input::Heard(epoch) => {
                self.heard = self.heard.max(epoch);
                if self.leading.is_some_and(|leading| leading.epoch < epoch) {
                    self.outputs.push(Output::Notice(Notice::HigherEpochHeard(epoch)));
                    self.close(CloseReason::Outranked);
                }
            }
            Input::HandOver(target) if self.leading.is_some() && self.leaving == Leaving::No => {
                self.leaving = Leaving::HandOver(target);
                self.must_look = true;
            }
            Input::Drained { .. } if matches!(self.leaving, Leaving::Draining | Leaving::Closing) => {
                self.sends_end = MonoNs(0);
                if self.leaving == Leaving::Draining {
                    self.leaving = Leaving::Left;
                }
            }
            Input::Pin(pin) => self.pin = pin,
            Input::Died(notice) => {
                let dead = |place: &&Place| {
                    let member = place.member.as_ref();
                    member.is_some_and(|of| of.node == notice.holder && of.incarnation == notice.incarnation)
                };
                if let Some(Place { name, .. }) = self.places.iter().find(dead).cloned() {
                    self.ask(now, Asked::Remove, |ticket| SessionRequest::Remove(ticket, name));
                }
            }
            Input::Close => {
                self.close(CloseReason::Released);
                self.leaving = Leaving::Closing;
                if now < self.sends_end {
                    self.outputs.push(Output::Drain);
                }
            }
            // Here the line alone decides.
            Input::Time
            | Input::Peer { .. }
            | Input::HandOver(_)
            | Input::Drained { .. }
            | Input::Admit(..)
            | Input::Placed(_)
            | Input::Differs(_) => {}
        }
    }

    fn take_event(&mut self, now: MonoNs, event: SessionEvent) {
        match event {
            SessionEvent::Began { timeout_ns, asked } => {
                self.end_session();
                self.session_ns = Some(timeout_ns);
                self.known = Known { from: asked, again: None };
                let is_first = self.connection == ConnectionState::Starting;
                self.connect(if is_first { ConnectionState::Connected } else { ConnectionState::Reconnected });
            }
            SessionEvent::Link(Link::Up) if self.session_ns.is_some() => {
                if self.connection == ConnectionState::Suspended {
                    self.connect(ConnectionState::Reconnected);
                    self.must_look = true;
                }
            }
            SessionEvent::Link(Link::Doubtful) if self.session_ns.is_some() => {
                if self.config.on_suspended == OnSuspended::Stop {
                    self.close(CloseReason::Suspended);
                }
                self.connect(ConnectionState::Suspended);
            }
            SessionEvent::Link(Link::Ended) => {
                self.end_session();
                self.connect(ConnectionState::Lost);
            }
            SessionEvent::Link(_) => {}
            SessionEvent::Stirred => self.must_look = true,
            SessionEvent::Answer(ticket, answer) => {
                // What was asked in an earlier session has no meaning in this one.
                if let Some((asked, sent)) = self.asked.remove(&ticket) {
                    self.take_answer(now, asked, sent, answer);
                }
            }
        }
    }

    fn take_answer(&mut self, now: MonoNs, asked: Asked, sent: MonoNs, answer: SessionAnswer) {
        if matches!(answer, SessionAnswer::Done | SessionAnswer::Line { .. } | SessionAnswer::Refused) {
            self.is_heard_of(now, sent);
        }
        match (asked, answer) {
            (Asked::Join, SessionAnswer::Done) => (self.has_place, self.must_look) = (true, true),
            (Asked::Look, SessionAnswer::Line { places, own, epoch, version }) => {
                (self.places, self.own, self.epoch) = (places, own, self.epoch.max(epoch));
                self.has_place = own.is_some();
                self.obstacle = None;
                self.look_at_line(now, version);
            }
            (Asked::Renew, SessionAnswer::Done) => {
                let deadline = self.deadline();
                if let Some(leading) = self.leading.as_mut().filter(|leading| leading.deadline < deadline) {
                    leading.deadline = deadline;
                    self.outputs.push(Output::Renew { deadline });
                }
            }
            (Asked::TakeEpoch(epoch), SessionAnswer::Done) => {
                self.epoch = epoch;
                let deadline = self.deadline();
                if now < deadline && epoch > self.heard && self.may_stand() && self.leaving == Leaving::No {
                    self.leading = Some(Leading { epoch, deadline, renew_at: sent.plus(self.config.timing.renew_ns) });
                    self.outputs.push(Output::Open { epoch, deadline });
                } else {
                    self.must_look = true;
                }
            }
            // That it was gone already says nothing of our own place.
            (Asked::Remove, _) => self.must_look = true,
            (Asked::Leave, SessionAnswer::Done) | (_, SessionAnswer::Gone) => self.lose_place(),
            (_, SessionAnswer::Failed(why)) => {
                self.obstacle = Some(Obstacle::ForeignRecord(why));
                self.rest_until = now.plus(REST_NS);
                self.must_look = true;
            }
            // A renewal of unknown outcome moves nothing; for all else the line says what came of it.
            (Asked::Renew | Asked::Touch, _) => {}
            (_, SessionAnswer::Refused | SessionAnswer::Unknown(_)) => {
                self.rest_until = now.plus(self.config.timing.renew_ns);
                self.must_look = true;
            }
            (_, SessionAnswer::Done | SessionAnswer::Line { .. }) => {}
        }
    }

    fn look_at_line(&mut self, now: MonoNs, version: Version) {
        let Some(own) = self.own else {
            return if self.leading.is_some() {
                self.lose_place()
            };
        };
        if let Leaving::HandOver(target) = self.leaving {
            return self.hand_over(own, target);
        }
        if own > 0 || self.leading.is_some() || !self.may_stand() || self.leaving != Leaving::No {
            return;
        }
        if self.deadline() <= now
            && let Some((_, answered)) = self.known.again
            && now < answered.plus(self.word_ns())
        {
            self.rest_until = answered.plus(self.word_ns());
            self.must_look = true;
            return;
        }
        let known = [self.epoch, self.heard, self.config.own_epoch];
        match next_epoch(self.config.member.node, known) {
            Some(epoch) => self.ask(now, Asked::TakeEpoch(epoch), |ticket| SessionRequest::TakeEpoch {
                ticket,
                expected: version,
                epoch,
            }),
            None => self.obstacle = Some(Obstacle::EpochsUsedUp),
        }
    }

    /// Only the next in line can follow.
    fn hand_over(&mut self, own: usize, target: Option<NodeId>) {
        let next = self.places.get(own + 1).and_then(|place| place.member.as_ref()).map(|member| member.node);
        let why = match (next, target) {
            (None, _) => "nobody stands behind this gateway",
            (Some(next), Some(target)) if next != target => "another gateway is next in line",
            _ => {
                self.close(CloseReason::HandedOver);
                (self.leaving, self.must_look) = (Leaving::Draining, false);
                return self.outputs.push(Output::Drain);
            }
        };
        self.leaving = Leaving::No;
        self.outputs.push(Output::Notice(Notice::HandOverFailed { target, why }));
    }

    /// Asks for whatever is to be asked for now.
    fn go_on(&mut self, now: MonoNs) {
        if self.leading.is_some_and(|leading| leading.deadline <= now) {
            self.close(CloseReason::Expired);
            self.must_look = true;
        }
        if self.session_ns.is_none() || now < self.rest_until && self.leading.is_none() {
            return;
        }
        let may_stand = self.may_stand();
        if let Some(leading) = &mut self.leading {
            if may_stand && leading.renew_at <= now {
                leading.renew_at = now.plus(self.config.timing.renew_ns);
                if self.asked.len() < ASKED_MAX {
                    self.ask(now, Asked::Renew, SessionRequest::Renew);
                }
            }
            if !matches!(self.leaving, Leaving::HandOver(_)) {
                return;
            }
        }
        let waits_for = |asked: Asked| self.asked.values().any(|(other, _)| *other == asked);
        let takes_epoch = self.asked.values().any(|(asked, _)| matches!(asked, Asked::TakeEpoch(_)));
        if self.leaves() && self.has_place {
            if self.sends_end <= now && !waits_for(Asked::Leave) {
                self.ask(now, Asked::Leave, SessionRequest::Leave);
            }
        } else if self.must_look && self.has_place {
            if !waits_for(Asked::Look) && !takes_epoch {
                self.must_look = false;
                self.ask(now, Asked::Look, SessionRequest::Look);
            }
        } else if !self.has_place && may_stand && self.leaving == Leaving::No && !waits_for(Asked::Join) {
            // After a join of unknown outcome the line says whether there is a place.
            if self.must_look {
                if !waits_for(Asked::Look) {
                    self.must_look = false;
                    self.ask(now, Asked::Look, SessionRequest::Look);
                }
            } else if !waits_for(Asked::Look) {
                self.ask(now, Asked::Join, SessionRequest::Join);
            }
        } else if self.touch_at().is_some_and(|at| at <= now) {
            self.ask(now, Asked::Touch, SessionRequest::Touch);
        }
    }

    /// When whoever stands in line and has nothing to ask for asks nevertheless: often enough that an answer comes before the one
    /// before counts no more, also where that was the first one after a silence.
    fn touch_at(&self) -> Option<MonoNs> {
        let is_idle = self.has_place && self.leading.is_none() && self.asked.is_empty() && !self.wants_something();
        self.session_ns.filter(|_| is_idle).map(|session_ns| self.asked_at.plus(session_ns / 5).max(self.rest_until))
    }

    /// A request that was sent then has been answered.
    fn is_heard_of(&mut self, now: MonoNs, sent: MonoNs) {
        if let Some((first, answered)) = self.known.again
            && answered.plus(self.word_ns()) <= sent
        {
            self.known = Known { from: first, again: None };
        }
        if now < self.deadline() {
            self.known = Known { from: self.known.from.max(sent), again: None };
        } else {
            self.known.again.get_or_insert((sent, now));
        }
    }

    /// How long word of a session may be under way between the store's nodes.
    fn word_ns(&self) -> u64 {
        let word_ns = self.session_ns.unwrap_or(0) / 4;
        word_ns.saturating_add(2 * drift_ns(word_ns, self.config.timing.rate_error_ppm))
    }

    fn ask(&mut self, now: MonoNs, asked: Asked, request: impl FnOnce(Ticket) -> SessionRequest) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.asked.insert(ticket, (asked, now));
        self.asked_at = now;
        self.outputs.push(Output::Request(request(ticket)));
    }

    fn close(&mut self, reason: CloseReason) {
        if let Some(Leading { epoch, deadline, .. }) = self.leading.take() {
            self.sends_end = deadline.plus(self.config.timing.send_ns_max);
            self.outputs.push(Output::Close { epoch, reason });
            self.must_look = true;
            if matches!(self.leaving, Leaving::HandOver(_)) {
                self.leaving = Leaving::No;
            }
        }
    }

    fn lose_place(&mut self) {
        self.close(CloseReason::Lost);
        (self.has_place, self.own, self.must_look) = (false, None, false);
        if self.leaving != Leaving::Closing {
            self.leaving = Leaving::No;
        }
    }

    fn end_session(&mut self) {
        self.lose_place();
        self.session_ns = None;
        self.asked.clear();
        self.places.clear();
    }

    fn connect(&mut self, state: ConnectionState) {
        if self.connection != state {
            self.connection = state;
            self.outputs.push(Output::Connection(state));
        }
    }

    /// Whether the place is to go.
    fn leaves(&self) -> bool {
        matches!(self.leaving, Leaving::Left | Leaving::Closing) || !self.may_stand() && self.leading.is_none()
    }

    /// Whether anything is to be asked for while not leading.
    fn wants_something(&self) -> bool {
        if self.has_place { self.must_look || self.leaves() } else { self.may_stand() && self.leaving == Leaving::No }
    }

    fn may_stand(&self) -> bool {
        self.leaving != Leaving::Closing && self.hindrance().is_none()
    }

    fn hindrance(&self) -> Option<Obstacle> {
        let LeaseTiming { rate_error_ppm, renew_ns, .. } = self.config.timing;
        let too_short_ns = self.session_ns.filter(|session_ns| self.config.timing.check_session(*session_ns).is_err());
        if self.standing == Standing::Joins {
            Some(Obstacle::Joining)
        } else if self.progress == Progress::Stuck {
            Some(Obstacle::NoProgress)
        } else if self.clock_error_ppm > rate_error_ppm {
            Some(Obstacle::ClockRate { error_ppm: self.clock_error_ppm, error_ppm_max: rate_error_ppm })
        } else {
            too_short_ns.map(|session_ns| Obstacle::SessionShort { session_ns, renew_ns })
        }
    }

    /// Until when a leader may send, and word of a request comes in time.
    fn deadline(&self) -> MonoNs {
        self.known.from.plus(self.config.timing.session_span_ns(self.session_ns.unwrap_or(0)))
    }
}

impl Core for SessionLatch {
    type Event = SessionEvent;
    type Request = SessionRequest;

    fn step(&mut self, now: MonoNs, input: Input<SessionEvent>) -> Vec<Output<SessionRequest>> {
        self.go_on(now);
        self.take(now, input);
        self.go_on(now);
        std::mem::take(&mut self.outputs)
    }

    fn next_deadline(&self) -> Option<MonoNs> {
        self.session_ns?;
        match &self.leading {
            Some(Leading { deadline, renew_at, .. }) if self.may_stand() => Some(*deadline.min(renew_at)),
            Some(Leading { deadline, .. }) => Some(*deadline),
            None => {
                let sends_end = if self.leaves() { self.sends_end } else { MonoNs(0) };
                let wanted = self.asked.is_empty() && self.wants_something();
                wanted.then_some(self.rest_until.max(sends_end)).or_else(|| self.touch_at())
            }
        }
    }

    fn view(&self) -> View {
        let is_closed = self.leaving == Leaving::Closing && (!self.has_place || self.session_ns.is_none());
        let role = match (&self.leading, self.has_place) {
            (Some(_), _) => Role::Leader,
            (None, _) if is_closed => Role::Closed,
            (None, true) => Role::Candidate,
            (None, false) => Role::Bystander,
        };
        let members = || self.places.iter().filter_map(|place| place.member.as_ref());
        View {
            role,
            epoch: self.leading.map_or(self.epoch, |leading| leading.epoch),
            leader: self.places.first().and_then(|place| place.member.clone()),
            heir: None,
            participants: members().map(|member| (member.node, member.name.clone())).collect(),
            connection: self.connection,
            pin: self.pin,
            obstacle: self.hindrance().or_else(|| self.obstacle.clone()),
            fitness: self.fitness,
            ..View::default()
        }
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
}

/// Between two attempts at what was refused.
const REST_NS: u64 = 100_000_000;
/// Renewals that wait for an answer: with more, the store is gone and the deadline decides.
const ASKED_MAX: usize = 64;

#[cfg(test)]
mod tests;
