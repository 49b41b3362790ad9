//! What is on its way between gateways' clients and the store.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use mdgw_election::{
    register::Ticket,
    session_latch::{SessionEvent, SessionRequest},
};

use super::{
    Flying, Load, State,
    store::{Gone, SessionId},
};

impl State {
    pub(super) fn fly(&mut self, what: Load) {
        self.network.push(Flying { what, is_late: false });
    }

    /// Nothing is told of a session that its gateway has no more.
    pub(super) fn tell(&mut self, to: SessionId, event: SessionEvent) {
        if self.is_current(to) {
            self.fly(Load::Event { to, event });
        }
    }

    /// Whether that session is the one that its gateway has now.
    pub(super) fn is_current(&self, (node, session): SessionId) -> bool {
        self.nodes[node].session == session
    }

    pub(super) fn join(&mut self, of: SessionId) {
        let place = self.store.join(of);
        self.knows_place(of, place);
    }

    /// The client learns of its place with the answer; until then nothing is asked about it.
    pub(super) fn knows_place(&mut self, of: SessionId, place: Option<u32>) {
        if self.is_current(of) {
            self.nodes[of.0].place = place;
        }
    }

    /// Takes a place away, and tells whoever watches it. Says whether it was there.
    pub(super) fn remove(&mut self, place: u32, how: Gone) -> bool {
        let watchers = self.store.remove(place, how);
        for to in watchers.iter().flatten() {
            self.tell(*to, SessionEvent::Stirred);
        }
        watchers.is_some()
    }

    /// Whether nothing that its session asked before waits for an answer. What was given up is done before it or never.
    pub(super) fn is_next(&self, flying: &Flying) -> bool {
        let Load::Request { from, asked, .. } = &flying.what else { return true };
        let mut waiting = self.network.iter().filter(|other| other.what.awaited().is_some());
        !waiting.any(|other| other.what.is_before(*from, &asked.request))
    }

    /// Another than node 1 leads, after the place before it went that way.
    pub(super) fn has_moved(&self, how: Gone) -> bool {
        self.store.gone == Some(how) && self.nodes.iter().skip(1).any(|node| node.fence.is_some())
    }
}

impl Load {
    /// Whose request still waits for an answer, or for this one.
    pub(super) fn awaited(&self) -> Option<(SessionId, Ticket)> {
        match self {
            Self::Request { from, asked, is_awaited: true } => Some((*from, ticket_of(&asked.request))),
            Self::Event { to, event: SessionEvent::Answer(ticket, _) } => Some((*to, *ticket)),
            Self::Request { .. } | Self::Event { .. } | Self::Died { .. } => None,
        }
    }

    /// Whether that session asked it before that request.
    pub(super) fn is_before(&self, session: SessionId, request: &SessionRequest) -> bool {
        let Self::Request { from, asked, .. } = self else { return false };
        *from == session && ticket_of(&asked.request) < ticket_of(request)
    }

    pub(super) fn is_answer_to(&self, id: SessionId) -> bool {
        matches!(self, Self::Event { to, event: SessionEvent::Answer(..) } if *to == id)
    }

    /// What a client asks for again with each connection until it knows.
    pub(super) fn is_never_lost(&self) -> bool {
        matches!(self, Self::Event { .. }) && self.awaited().is_none()
    }
}

pub(super) fn fingerprint(flying: &Flying) -> u64 {
    let mut hasher = DefaultHasher::new();
    flying.hash(&mut hasher);
    hasher.finish()
}

pub(super) fn ticket_of(request: &SessionRequest) -> Ticket {
    match request {
        SessionRequest::Join(ticket)
        | SessionRequest::Look(ticket)
        | SessionRequest::Touch(ticket)
        | SessionRequest::Renew(ticket)
        | SessionRequest::TakeEpoch { ticket, .. }
        | SessionRequest::Leave(ticket)
        | SessionRequest::Remove(ticket, _) => *ticket,
    }
}
