//! Between a gateway and the store: what is asked and answered, and the lives of sessions and processes.

use mdgw_election::{
    core::Input,
    fitness::Standing,
    identity::{DeathNotice, Incarnation},
    register::{Link, Ticket},
    session_latch::{SessionAnswer, SessionEvent, SessionRequest},
};
use mdgw_feeds::{identity::Epoch, time::MonoNs};

use super::{
    Asked, Flying, Load, Node, Search, State, Wrong,
    network::ticket_of,
    store::{Gone, SessionId, id_of},
};

impl Search {
    pub(super) fn ask(&self, state: &mut State, node: usize, request: SessionRequest) {
        let Node { session, place, .. } = state.nodes[node];
        let id = (node, session);
        let is_of_place =
            matches!(request, SessionRequest::Renew(_) | SessionRequest::TakeEpoch { .. } | SessionRequest::Leave(_));
        if let SessionRequest::Touch(ticket) = request {
            if state.store.hears(id, state.now, self.word_after) {
                self.step(state, node, Input::Backend(SessionEvent::Answer(ticket, SessionAnswer::Done)));
            }
        } else if is_of_place && place.is_none() {
            state.tell(id, SessionEvent::Answer(ticket_of(&request), SessionAnswer::Gone));
        } else {
            state.fly(Load::Request { from: id, asked: Asked { place, request }, is_awaited: true });
        }
    }

    /// What the store makes of a request; `None`: its session has ended.
    pub(super) fn at_store(&self, state: &mut State, from: SessionId, asked: &Asked) -> Option<SessionAnswer> {
        let Asked { place, request } = asked;
        if self.in_order {
            state.network.retain(|flying| !flying.what.is_before(from, request));
        }
        let store = &mut state.store;
        let is_alive = store.hears(from, state.now, self.word_after);
        let stands = is_alive && place.is_some_and(|place| store.stands(place));
        let takes_unchecked = !self.place_check && matches!(request, SessionRequest::TakeEpoch { .. });
        if !is_alive && !takes_unchecked {
            return None;
        }
        let done = |is_done| if is_done { SessionAnswer::Done } else { SessionAnswer::Gone };
        Some(match request {
            SessionRequest::Join(_) => {
                if store.place_of(from).is_some() && self.in_order && !self.remakes {
                    state.wrong.get_or_insert(Wrong::StandsTwice);
                }
                state.join(from);
                SessionAnswer::Done
            }
            SessionRequest::Look(_) => {
                let (answer, own) = store.look(from);
                state.knows_place(from, own);
                answer
            }
            SessionRequest::Touch(_) => unreachable!("answered at once"),
            SessionRequest::Renew(_) => done(stands),
            SessionRequest::TakeEpoch { .. } if self.place_check && !stands => SessionAnswer::Gone,
            SessionRequest::TakeEpoch { expected, .. } if self.version_check && *expected != store.version => {
                SessionAnswer::Refused
            }
            SessionRequest::TakeEpoch { epoch, .. } => {
                store.take_epoch(*epoch);
                SessionAnswer::Done
            }
            SessionRequest::Leave(_) => done(stands && place.is_some_and(|place| state.remove(place, Gone::Left))),
            SessionRequest::Remove(_, name) => {
                let place = store.named(name);
                done(place.is_some_and(|place| state.remove(place, Gone::Removed)))
            }
        })
    }

    pub(super) fn arrive(&self, state: &mut State, load: Load) {
        match load {
            Load::Request { from, asked, is_awaited } => {
                let answer = self.at_store(state, from, &asked);
                if let Some(answer) = answer.filter(|_| is_awaited) {
                    state.tell(from, SessionEvent::Answer(ticket_of(&asked.request), answer));
                }
            }
            Load::Event { to, event } => {
                let has_ended = event == SessionEvent::Link(Link::Ended);
                self.step(state, to.0, Input::Backend(event));
                if has_ended {
                    self.begin_session(state, to.0);
                }
            }
            Load::Died { to, notice } => self.step(state, to, Input::Died(notice)),
        }
    }

    pub(super) fn begin_session(&self, state: &mut State, node: usize) {
        let Node { incarnation, session, .. } = state.nodes[node];
        let id = (node, session + 1);
        (state.nodes[node].session, state.nodes[node].place) = (id.1, None);
        // Of an earlier session nothing comes any more.
        state.network.retain(|flying| !matches!(flying.what, Load::Event { to, .. } if to.0 == node));
        state.store.begin_session(id, incarnation, state.now);
        let asked = self.clock(node, state.now);
        state.tell(id, SessionEvent::Began { timeout_ns: self.told_ns, asked });
    }

    /// What was asked may have been done or not, now or later.
    pub(super) fn give_up(&self, state: &mut State, mut asked: Vec<(SessionId, Ticket)>) {
        asked.sort_unstable();
        for (id, ticket) in asked {
            if state.is_current(id) {
                let answer = SessionAnswer::Unknown(String::new());
                self.step(state, id.0, Input::Backend(SessionEvent::Answer(ticket, answer)));
            }
        }
    }

    /// The connection is another one from now on. What was asked over the old one may still be done.
    pub(super) fn break_connection(&self, state: &mut State, node: usize) {
        let id = (node, state.nodes[node].session);
        let given_up = state.network.iter().filter_map(|flying| flying.what.awaited()).filter(|(of, _)| *of == id);
        let given_up: Vec<_> = given_up.collect();
        state.network.retain(|flying| !flying.what.is_answer_to(id));
        for Flying { what, is_late } in &mut state.network {
            if let Load::Request { from, is_awaited, .. } = what
                && *from == id
            {
                (*is_awaited, *is_late) = (false, true);
            }
        }
        self.step(state, node, Input::Backend(SessionEvent::Link(Link::Doubtful)));
        self.give_up(state, given_up);
        self.step(state, node, Input::Backend(SessionEvent::Link(Link::Up)));
    }

    /// The session with that index has not been heard of for too long.
    pub(super) fn end_session(&self, state: &mut State, index: usize) {
        let id = state.store.sessions[index].id;
        if !self.remakes {
            state.store.sessions.remove(index);
        }
        while let Some(place) = state.store.place_of(id) {
            state.remove(place, Gone::Ended);
        }
        if self.remakes && state.is_current(id) {
            state.store.hears(id, state.now, self.word_after);
            state.join(id);
        } else {
            state.tell(id, SessionEvent::Link(Link::Ended));
        }
    }

    pub(super) fn restart(&self, state: &mut State, node: usize) {
        let Node { incarnation, fence, .. } = state.nodes[node];
        if let Some((epoch, _)) = fence {
            let notice = DeathNotice { holder: id_of(node), incarnation: Incarnation(incarnation), epoch };
            for to in (0..self.gateways).filter(|to| *to != node) {
                (0..2).for_each(|_| state.fly(Load::Died { to, notice }));
            }
        }
        // What it was to be told is lost; what it asked for may be done.
        state.network.retain(|flying| !matches!(flying.what, Load::Died { to, .. } if to == node));
        let own_epoch = if self.epochs_heard { state.opened } else { Epoch::default() };
        let of_node = &mut state.nodes[node];
        of_node.core = self.latch(node, incarnation + 1, own_epoch);
        of_node.incarnation += 1;
        (of_node.fence, of_node.sends_end, of_node.drains) = (None, MonoNs(0), false);
        self.begin(state, node);
    }

    /// Its process has just been started.
    pub(super) fn begin(&self, state: &mut State, node: usize) {
        self.begin_session(state, node);
        self.step(state, node, Input::Standing(Standing::Stands));
    }
}
