//! Selects the retransmission service for each request. Any gateway of a group can answer, and one of them may be
//! down.

use std::collections::BTreeMap;

use mdgw_wire::{
    identity::{ChannelId, Sequence, Session},
    published::{
        receiver::asks_any_service,
        request::{RequestKind, ServiceRequest},
    },
};

/// Keeps using a service as long as it answers. A repeated request goes to the next service, and so does a query for definitions that
/// begins again: each service is asked for all that its log has.
#[derive(Clone, Debug, Default)]
pub struct ServiceSelector {
    count: usize,
    /// Requests for messages and queries for log extents alternate, so each kind has its own turn.
    selections: BTreeMap<(ChannelId, bool), Selection>,
    /// The service of each channel's snapshot, and whether it was asked.
    snapshots: BTreeMap<ChannelId, (usize, bool)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Selection {
    service: usize,
    last_request: Option<(RequestKind, Option<Session>, Sequence)>,
}

impl ServiceSelector {
    /// A selector for `count` services.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { count, selections: BTreeMap::new(), snapshots: BTreeMap::new() }
    }

    /// Index of the service for this request; 0 if there is no service.
    pub fn select(&mut self, request: &ServiceRequest) -> usize {
        if request.kind == RequestKind::Snapshot {
            return self.select_for_snapshot(request);
        }
        let turn = self.selections.entry((request.channel, request.first < request.next)).or_default();
        let this = (request.kind, request.session, request.first);
        let last = turn.last_request.replace(this);
        let begins_again = request.kind == RequestKind::Definitions && request.first == Sequence(0);
        let is_same_query = last.is_some_and(|(kind, session, _)| (kind, session) == (request.kind, request.session));
        if last == Some(this) || begins_again && is_same_query {
            turn.service = (turn.service + 1) % self.count.max(1);
        }
        turn.service
    }

    /// Only the service that has the image can send the rest of it.
    fn select_for_snapshot(&mut self, request: &ServiceRequest) -> usize {
        let (service, has_asked) = self.snapshots.entry(request.channel).or_default();
        if std::mem::replace(has_asked, true) && asks_any_service(request.first) {
            *service = (*service + 1) % self.count.max(1);
        }
        *service
    }
}

#[cfg(test)]
mod tests {
    use mdgw_wire::identity::GroupId;

    use super::*;

    #[test]
    fn a_repeated_request_goes_to_the_next_service_for_its_channel_only() {
        let mut turns = ServiceSelector::new(2);
        let mut select_for = |channel, first| {
            turns.select(&ServiceRequest {
                kind: RequestKind::Range,
                group: GroupId(1),
                channel: ChannelId(channel),
                session: None,
                first: Sequence(first),
                next: Sequence(100),
                nonce: 0,
            })
        };
        assert_eq!([select_for(1, 5), select_for(2, 5), select_for(1, 7)], [0, 0, 0], "it answers");
        assert_eq!([select_for(1, 7), select_for(1, 7), select_for(1, 7)], [1, 0, 1], "nobody does");
        assert_eq!([select_for(1, 8), select_for(2, 6)], [1, 0]);
    }
}
