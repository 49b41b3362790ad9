//! Messages in flight between the gateways' clients and the store.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use mdgw_election::{
    register::RequestId,
    session_latch::{SessionEvent, SessionRequest},
};

use super::{
    InFlight, InFlightMessage, State,
    store::{Removal, SessionId},
};

impl State {
    pub(super) fn enqueue(&mut self, what: InFlightMessage) {
        self.network.push(InFlight { what, is_late: false });
    }

    /// Drops notifications of a session that its gateway has replaced.
    pub(super) fn send_event(&mut self, to: SessionId, event: SessionEvent) {
        if self.is_current(to) {
            self.enqueue(InFlightMessage::Event { to, event });
        }
    }

    /// Whether that session is the one that its gateway has now.
    pub(super) fn is_current(&self, (node, session): SessionId) -> bool {
        self.nodes[node].session == session
    }

    pub(super) fn join(&mut self, of: SessionId) {
        let place = self.store.join(of);
        self.set_known_place(of, place);
    }

    /// The client learns of its place with the answer; until then nothing is asked about it.
    pub(super) fn set_known_place(&mut self, of: SessionId, place: Option<u32>) {
        if self.is_current(of) {
            self.nodes[of.0].place = place;
        }
    }

    /// Removes a place, and notifies its watcher. Returns whether it existed.
    pub(super) fn remove(&mut self, place: u32, how: Removal) -> bool {
        let watchers = self.store.remove(place, how);
        for to in watchers.iter().flatten() {
            self.send_event(*to, SessionEvent::QueueChanged);
        }
        watchers.is_some()
    }

    /// Whether nothing that its session asked before waits for an answer. What was given up is done before it or never.
    pub(super) fn is_next_in_session(&self, message: &InFlight) -> bool {
        let InFlightMessage::Request { from, asked, .. } = &message.what else { return true };
        let mut waiting = self.network.iter().filter(|other| other.what.awaited_ticket().is_some());
        !waiting.any(|other| other.what.was_requested_before(*from, &asked.request))
    }

    /// Another than node 1 leads, after the place before it went that way.
    pub(super) fn moved_after(&self, how: Removal) -> bool {
        self.store.last_removal == Some(how) && self.nodes.iter().skip(1).any(|node| node.fence.is_some())
    }
}

impl InFlightMessage {
    /// Whose request still waits for an answer, or for this one.
    pub(super) fn awaited_ticket(&self) -> Option<(SessionId, RequestId)> {
        match self {
            Self::Request { from, asked, is_awaited: true } => Some((*from, ticket_of(&asked.request))),
            Self::Event { to, event: SessionEvent::Answer(request_id, _) } => Some((*to, *request_id)),
            Self::Request { .. } | Self::Event { .. } | Self::Died { .. } => None,
        }
    }

    /// Whether that session asked it before that request.
    pub(super) fn was_requested_before(&self, session: SessionId, request: &SessionRequest) -> bool {
        let Self::Request { from, asked, .. } = self else { return false };
        *from == session && ticket_of(&asked.request) < ticket_of(request)
    }

    pub(super) fn is_answer_to(&self, id: SessionId) -> bool {
        matches!(self, Self::Event { to, event: SessionEvent::Answer(..) } if *to == id)
    }

    /// What a client asks for again with each connection until it knows.
    pub(super) fn is_reliable(&self) -> bool {
        matches!(self, Self::Event { .. }) && self.awaited_ticket().is_none()
    }
}

pub(super) fn fingerprint(message: &InFlight) -> u64 {
    let mut hasher = DefaultHasher::new();
    message.hash(&mut hasher);
    hasher.finish()
}

pub(super) fn ticket_of(request: &SessionRequest) -> RequestId {
    match request {
        SessionRequest::Join(request_id)
        | SessionRequest::ReadQueue(request_id)
        | SessionRequest::KeepAlive(request_id)
        | SessionRequest::Renew(request_id)
        | SessionRequest::TakeEpoch { request_id, .. }
        | SessionRequest::Leave(request_id)
        | SessionRequest::Remove(request_id, _) => *request_id,
    }
}
