//! Which retransmission service is asked: any gateway of a group can answer, and one of them may be gone.

use std::collections::BTreeMap;

use mdgw_feeds::{
    identity::{ChannelId, Sequence, Session},
    published::request::{RequestKind, ServiceRequest},
};

/// Stays with the service that answers. One that has to be asked the same again is followed by the next.
#[derive(Clone, Debug, Default)]
pub struct ServiceTurns {
    count: usize,
    /// Questions for messages and those for what logs hold are asked in between each other, so they take turns apart.
    questions: BTreeMap<(ChannelId, bool), Turn>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    service: usize,
    asked: Option<(RequestKind, Option<Session>, Sequence)>,
}

impl ServiceTurns {
    /// Among so many.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { count, questions: BTreeMap::new() }
    }

    /// Where this request goes, from 0; 0 too where there is none.
    pub fn choose(&mut self, request: &ServiceRequest) -> usize {
        let turn = self.questions.entry((request.channel, request.first < request.next)).or_default();
        let asked = (request.kind, request.session, request.first);
        if turn.asked.replace(asked) == Some(asked) {
            turn.service = (turn.service + 1) % self.count.max(1);
        }
        turn.service
    }
}

#[cfg(test)]
mod tests {
    use mdgw_feeds::identity::GroupId;

    use super::*;

    #[test]
    fn who_has_to_be_asked_again_is_followed_by_the_next_in_that_channel_alone() {
        let mut turns = ServiceTurns::new(2);
        let mut ask = |channel, first| {
            turns.choose(&ServiceRequest {
                kind: RequestKind::Range,
                group: GroupId(1),
                channel: ChannelId(channel),
                session: None,
                first: Sequence(first),
                next: Sequence(100),
                nonce: 0,
            })
        };
        assert_eq!([ask(1, 5), ask(2, 5), ask(1, 7)], [0, 0, 0], "it answers");
        assert_eq!([ask(1, 7), ask(1, 7), ask(1, 7)], [1, 0, 1], "nobody does");
        assert_eq!([ask(1, 8), ask(2, 6)], [1, 0]);
    }
}
