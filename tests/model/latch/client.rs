//! The store client of each gateway: requests and answers, sessions, and restarts of the process.

use mdgw_election::{
    core::Input,
    fitness::Eligibility,
    identity::{DeathNotice, Incarnation},
    register::{RequestId, StoreLink},
    session_latch::{SessionAnswer, SessionEvent, SessionRequest},
};
use mdgw_feeds::{identity::Epoch, time::MonoNs};

use super::{
    InFlight, InFlightMessage, LatchModel, Node, PlacedRequest, State, Violation,
    network::request_id_of,
    store::{Removal, SessionId, id_of},
};

impl LatchModel {
    pub(super) fn send_request(&self, state: &mut State, node: usize, request: SessionRequest) {
        let Node { session, place, .. } = state.nodes[node];
        let id = (node, session);
        let is_of_place =
            matches!(request, SessionRequest::Renew(_) | SessionRequest::TakeEpoch { .. } | SessionRequest::Leave(_));
        if let SessionRequest::KeepAlive(request_id) = request {
            if state.store.record_contact(id, state.now, self.session_end_delay) {
                self.step(state, node, Input::Backend(SessionEvent::Answer(request_id, SessionAnswer::Done)));
            }
        } else if is_of_place && place.is_none() {
            state.send_event(id, SessionEvent::Answer(request_id_of(&request), SessionAnswer::Gone));
        } else {
            state.enqueue(InFlightMessage::Request {
                from: id,
                placed: PlacedRequest { place, request },
                is_awaited: true,
            });
        }
    }

    /// The store executes a request and returns its answer; `None`: the session has ended.
    pub(super) fn handle_at_store(
        &self,
        state: &mut State,
        from: SessionId,
        placed: &PlacedRequest,
    ) -> Option<SessionAnswer> {
        let PlacedRequest { place, request } = placed;
        if self.requests_in_order {
            state.network.retain(|message| !message.content.was_requested_before(from, request));
        }
        let store = &mut state.store;
        let is_alive = store.record_contact(from, state.now, self.session_end_delay);
        let has_place = is_alive && place.is_some_and(|place| store.has_place(place));
        let skips_place_check = !self.checks_place && matches!(request, SessionRequest::TakeEpoch { .. });
        if !is_alive && !skips_place_check {
            return None;
        }
        let done = |is_done| if is_done { SessionAnswer::Done } else { SessionAnswer::Gone };
        Some(match request {
            SessionRequest::Join(_) => {
                if store.place_of(from).is_some() && self.requests_in_order && !self.rejoins_silently {
                    state.violation.get_or_insert(Violation::DuplicatePlace);
                }
                state.join(from);
                SessionAnswer::Done
            }
            SessionRequest::ReadQueue(_) => {
                let (answer, own) = store.read_queue(from);
                state.set_known_place(from, own);
                answer
            }
            SessionRequest::KeepAlive(_) => unreachable!("answered at once"),
            SessionRequest::Renew(_) => done(has_place),
            SessionRequest::TakeEpoch { .. } if self.checks_place && !has_place => SessionAnswer::Gone,
            SessionRequest::TakeEpoch { expected, .. } if self.checks_version && *expected != store.version => {
                SessionAnswer::Refused
            }
            SessionRequest::TakeEpoch { epoch, .. } => {
                store.take_epoch(*epoch);
                SessionAnswer::Done
            }
            SessionRequest::Leave(_) => {
                done(has_place && place.is_some_and(|place| state.remove(place, Removal::Left)))
            }
            SessionRequest::Remove(_, name) => {
                let place = store.place_named(name);
                done(place.is_some_and(|place| state.remove(place, Removal::Removed)))
            }
        })
    }

    pub(super) fn arrive(&self, state: &mut State, message: InFlightMessage) {
        match message {
            InFlightMessage::Request { from, placed, is_awaited } => {
                let answer = self.handle_at_store(state, from, &placed);
                if let Some(answer) = answer.filter(|_| is_awaited) {
                    state.send_event(from, SessionEvent::Answer(request_id_of(&placed.request), answer));
                }
            }
            InFlightMessage::Event { to, event } => {
                let has_ended = event == SessionEvent::StoreLink(StoreLink::Ended);
                self.step(state, to.0, Input::Backend(event));
                if has_ended {
                    self.begin_session(state, to.0);
                }
            }
            InFlightMessage::Died { to, notice } => self.step(state, to, Input::Died(notice)),
        }
    }

    pub(super) fn begin_session(&self, state: &mut State, node: usize) {
        let Node { incarnation, session, .. } = state.nodes[node];
        let id = (node, session + 1);
        (state.nodes[node].session, state.nodes[node].place) = (id.1, None);
        // Events of an earlier session no longer arrive.
        state.network.retain(|message| !matches!(message.content, InFlightMessage::Event { to, .. } if to.0 == node));
        state.store.begin_session(id, incarnation, state.now);
        let requested_at = self.clock(node, state.now);
        state.send_event(id, SessionEvent::Started { timeout_ns: self.session_timeout_ns, requested_at });
    }

    /// Reports these requests as unknown: each may have taken effect, may take effect later, or never.
    pub(super) fn time_out_requests(&self, state: &mut State, mut requests: Vec<(SessionId, RequestId)>) {
        requests.sort_unstable();
        for (id, request_id) in requests {
            if state.is_current(id) {
                let answer = SessionAnswer::Unknown(String::new());
                self.step(state, id.0, Input::Backend(SessionEvent::Answer(request_id, answer)));
            }
        }
    }

    /// Replaces the connection. Requests over the old connection may still take effect.
    pub(super) fn break_connection(&self, state: &mut State, node: usize) {
        let id = (node, state.nodes[node].session);
        let abandoned =
            state.network.iter().filter_map(|message| message.content.awaited_request()).filter(|(of, _)| *of == id);
        let abandoned: Vec<_> = abandoned.collect();
        state.network.retain(|message| !message.content.is_answer_to(id));
        for InFlight { content, is_late } in &mut state.network {
            if let InFlightMessage::Request { from, is_awaited, .. } = content
                && *from == id
            {
                (*is_awaited, *is_late) = (false, true);
            }
        }
        self.step(state, node, Input::Backend(SessionEvent::StoreLink(StoreLink::InDoubt)));
        self.time_out_requests(state, abandoned);
        self.step(state, node, Input::Backend(SessionEvent::StoreLink(StoreLink::Up)));
    }

    /// The store ends a session that had no contact for too long.
    pub(super) fn end_session(&self, state: &mut State, index: usize) {
        let id = state.store.sessions[index].id;
        if !self.rejoins_silently {
            state.store.sessions.remove(index);
        }
        while let Some(place) = state.store.place_of(id) {
            state.remove(place, Removal::Ended);
        }
        if self.rejoins_silently && state.is_current(id) {
            state.store.record_contact(id, state.now, self.session_end_delay);
            state.join(id);
        } else {
            state.send_event(id, SessionEvent::StoreLink(StoreLink::Ended));
        }
    }

    pub(super) fn restart(&self, state: &mut State, node: usize) {
        let Node { incarnation, fence, .. } = state.nodes[node];
        if let Some((epoch, _)) = fence {
            let notice = DeathNotice { holder: id_of(node), incarnation: Incarnation(incarnation), epoch };
            for to in (0..self.gateways).filter(|to| *to != node) {
                (0..2).for_each(|_| state.enqueue(InFlightMessage::Died { to, notice }));
            }
        }
        // Answers to the old process are lost; its requests may still take effect.
        state.network.retain(|message| !matches!(message.content, InFlightMessage::Died { to, .. } if to == node));
        let own_epoch = if self.observes_epochs { state.highest_opened } else { Epoch::default() };
        let restarted = &mut state.nodes[node];
        restarted.core = self.latch(node, incarnation + 1, own_epoch);
        restarted.incarnation += 1;
        (restarted.fence, restarted.sends_end, restarted.is_draining) = (None, MonoNs(0), false);
        self.begin(state, node);
    }

    /// Handles the start of the process.
    pub(super) fn begin(&self, state: &mut State, node: usize) {
        self.begin_session(state, node);
        self.step(state, node, Input::Eligibility(Eligibility::Eligible));
    }
}
