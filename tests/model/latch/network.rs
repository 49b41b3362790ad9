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
    pub(super) fn enqueue(&mut self, content: InFlightMessage) {
        self.network.push(InFlight { content, is_late: false });
    }

    /// Sends an event to a session, unless its gateway has replaced that session.
    pub(super) fn send_event(&mut self, to: SessionId, event: SessionEvent) {
        if self.is_current(to) {
            self.enqueue(InFlightMessage::Event { to, event });
        }
    }

    /// Whether that session is the present session of its gateway.
    pub(super) fn is_current(&self, (node, session): SessionId) -> bool {
        self.nodes[node].session == session
    }

    pub(super) fn join(&mut self, of: SessionId) {
        let place = self.store.join(of);
        self.set_known_place(of, place);
    }

    /// The client receives its place with an answer. Before that it sends no request about a place.
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

    /// Whether no earlier request of the same session waits for an answer. An abandoned request takes effect before this one,
    /// or never.
    pub(super) fn is_next_in_session(&self, message: &InFlight) -> bool {
        let InFlightMessage::Request { from, placed, .. } = &message.content else { return true };
        let mut waiting = self.network.iter().filter(|other| other.content.awaited_request().is_some());
        !waiting.any(|other| other.content.was_requested_before(*from, &placed.request))
    }

    /// Whether another node than node 1 leads after the first place was removed that way.
    pub(super) fn moved_after(&self, how: Removal) -> bool {
        self.store.last_removal == Some(how) && self.nodes.iter().skip(1).any(|node| node.fence.is_some())
    }
}

impl InFlightMessage {
    /// The request that still waits for an answer, or that this message answers.
    pub(super) fn awaited_request(&self) -> Option<(SessionId, RequestId)> {
        match self {
            Self::Request { from, placed, is_awaited: true } => Some((*from, request_id_of(&placed.request))),
            Self::Event { to, event: SessionEvent::Answer(request_id, _) } => Some((*to, *request_id)),
            Self::Request { .. } | Self::Event { .. } | Self::Died { .. } => None,
        }
    }

    /// Whether this is an earlier request of that session.
    pub(super) fn was_requested_before(&self, session: SessionId, request: &SessionRequest) -> bool {
        let Self::Request { from, placed, .. } = self else { return false };
        *from == session && request_id_of(&placed.request) < request_id_of(request)
    }

    pub(super) fn is_answer_to(&self, id: SessionId) -> bool {
        matches!(self, Self::Event { to, event: SessionEvent::Answer(..) } if *to == id)
    }

    /// Whether the client requests this event again after each reconnect, so that it is never lost.
    pub(super) fn is_reliable(&self) -> bool {
        matches!(self, Self::Event { .. }) && self.awaited_request().is_none()
    }
}

pub(super) fn fingerprint(message: &InFlight) -> u64 {
    let mut hasher = DefaultHasher::new();
    message.hash(&mut hasher);
    hasher.finish()
}

pub(super) fn request_id_of(request: &SessionRequest) -> RequestId {
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
