//! Asks voters whether they answer, without taking part in the vote: for the examination of a host.
//!
//! A query is a poll by the first start that a gateway could have, for no start of the voter. Each voter refuses such a poll before
//! it considers the requester as a candidate, so the query changes no promise, and no fitness that voters compare. A refusal proves
//! that the voter runs, knows this gateway's address and has the same key.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddrV4,
    time::{Duration, Instant},
};

use mdgw_sys::listener_counters::Refusal;
use mdgw_wire::identity::GroupId;

use super::{
    link::{Received, VoteLink},
    message::{Body, Message, Operation, Reply, Request, VoteRequestId, VoterSession},
    wire::DATAGRAM_BYTES_MAX,
};
use crate::{
    auth::{Nonce, SharedKey},
    fitness::{Eligibility, Fitness},
    identity::{Incarnation, NodeId},
};

/// What a query has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VoterQuery {
    /// Voters that answered, authenticated with the shared key.
    pub answered: BTreeSet<NodeId>,
    /// Datagrams that were made under another key.
    pub forged: u64,
}

/// Asks all `voters` at the address of gateway `node`, which must not run: voters answer to its configured address only.
///
/// # Errors
/// When the address is not available, as while the gateway runs, or the socket fails.
pub fn query_voters(
    listen: SocketAddrV4,
    (node, group): (NodeId, GroupId),
    key: SharedKey,
    voters: &BTreeMap<NodeId, SocketAddrV4>,
    timeout: Duration,
) -> io::Result<VoterQuery> {
    let link = VoteLink::open(listen, node, key, voters.clone())?;
    let request_id = VoteRequestId { nonce: Nonce::random()?.number(), number: 1 };
    let until = Instant::now() + timeout;
    let mut query = VoterQuery::default();
    let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
    let mut ask_at = Instant::now();
    while query.answered.len() < voters.len() && Instant::now() < until {
        if Instant::now() >= ask_at {
            ask_at = Instant::now() + REPEAT_INTERVAL;
            for voter in voters.keys().filter(|voter| !query.answered.contains(*voter)) {
                link.send(&Message { group, from: node, to: *voter, body: Body::Request(refused_poll(request_id)) });
            }
        }
        if let Some(Received::Message(Message { from, body: Body::Reply(Reply { request_id: answers, .. }), .. })) =
            link.receive(&mut buffer)?
            && answers == request_id
        {
            query.answered.insert(from);
        }
    }
    query.forged = link.counters().refused(Refusal::Forged);
    Ok(query)
}

/// A poll that every voter refuses.
fn refused_poll(request_id: VoteRequestId) -> Request {
    Request {
        request_id,
        incarnation: Incarnation(0),
        // Voters draw theirs at random; 0 means "not known".
        session: VoterSession(0),
        lease_ns: 1,
        fitness: Fitness::default(),
        eligibility: Eligibility::Joining,
        operation: Operation::Poll,
    }
}

/// How often voters are asked that have not answered: a datagram may be lost.
const REPEAT_INTERVAL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use mdgw_wire::{identity::Epoch, time::MonoNs};

    use super::*;
    use crate::quorum::{
        message::{Refusal as Refused, Verdict},
        voter::{DurableVote, Voter, VoterInput, VoterOutput},
    };

    const LEASE_NS: u64 = 1_000;

    fn step(voter: &mut Voter, now: u64, request: Request) -> Vec<Verdict> {
        let outputs = voter.step(MonoNs(now), VoterInput::Request { from: NodeId(1), request });
        let verdict = |output| match output {
            VoterOutput::Reply { reply, .. } => Some(reply.verdict),
            VoterOutput::Store { .. } => None,
        };
        outputs.into_iter().filter_map(verdict).collect()
    }

    fn request(number: u64, operation: Operation) -> Request {
        Request {
            request_id: VoteRequestId { nonce: 9, number },
            incarnation: Incarnation(5),
            session: VoterSession(7),
            lease_ns: LEASE_NS,
            eligibility: Eligibility::Eligible,
            operation,
            ..refused_poll(VoteRequestId::default())
        }
    }

    fn query() -> Request {
        refused_poll(VoteRequestId { nonce: 8, number: 1 })
    }

    #[test]
    fn a_voter_answers_a_query_and_keeps_its_promise_and_its_candidates() {
        let durable = DurableVote { epoch: Epoch::new(3, 1), incarnation: Incarnation(5), lease_ns_max: LEASE_NS };
        let mut voter = Voter::new(MonoNs(0), durable, VoterSession(7), 0);
        let now = 10 * LEASE_NS;
        assert_eq!(step(&mut voter, now, request(1, Operation::Vote(durable.epoch))), [Verdict::Granted]);
        let before = voter.clone();
        assert_eq!(step(&mut voter, now + 1, query()), [Verdict::Refused(Refused::OldIncarnation)]);
        assert_eq!(voter, before);
        assert_eq!(step(&mut voter, now + 2, request(2, Operation::Renew(durable.epoch))), [Verdict::Granted]);
    }

    #[test]
    fn a_voter_that_does_not_know_the_gateway_yet_answers_a_query_and_votes_for_it_later() {
        let mut voter = Voter::new(MonoNs(0), DurableVote::default(), VoterSession(7), 0);
        let now = 10 * LEASE_NS;
        assert_eq!(step(&mut voter, now, query()), [Verdict::Refused(Refused::Session)]);
        assert_eq!(voter.active_promise(MonoNs(now)), None);
        assert_eq!(step(&mut voter, now, request(1, Operation::Poll)), [Verdict::Granted]);
    }
}
