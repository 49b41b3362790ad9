//! A voter: its promises, and the state that survives a restart. Pure: the caller passes the time in; messages to send
//! and state to store are outputs.
//!
//! On disk ([`DurableVote`]): generation and candidate of the last vote (one [`Epoch`]) with the candidate's start, and
//! the longest lease that the voter ever granted. A vote, and a lease longer than any before, are stored before they
//! are answered; a renewal costs no sync. After its start a voter does not know its earlier promises. So it votes for
//! no new candidate while any earlier promise can still run, but follows the winner of a generation, and repeats the
//! vote on record.

use std::collections::BTreeMap;

use mdgw_sys::clock_rate::ClockRate;
use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::message::{
    ActivePromise, HandOver, Operation, Refusal, Reply, Request, Verdict, VoteRequestId, VoterSession,
};
use crate::{
    core::PeerView,
    fitness::{Eligibility, Fitness},
    identity::{DeathNotice, Incarnation, NodeId},
    timing::{LEASE_NS_MAX, drift_ns},
};

/// One voter of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Voter {
    session: VoterSession,
    /// ρ as configured.
    rate_error_ppm: u32,
    /// Present rate error of this clock, as corrected by the time daemon.
    clock_rate: ClockRate,
    started: MonoNs,
    /// The state on disk.
    durable: DurableVote,
    /// The state that a write in progress may put on disk. No second write begins meanwhile.
    pending_write: Option<PendingWrite>,
    store_count: u64,
    promise: Option<Promise>,
    /// The leadership or candidacy that was last reported as over for good.
    ended: Option<(Epoch, Incarnation)>,
    candidates: BTreeMap<NodeId, KnownCandidate>,
    safeguards: QuorumSafeguards,
}

/// The state that a voter keeps on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DurableVote {
    /// The epoch of its last vote: the generation, and the node that the vote was for.
    pub epoch: Epoch,
    /// The start of that node.
    pub incarnation: Incarnation,
    /// The longest lease that it ever granted, ns.
    pub lease_ns_max: u64,
}

/// Inputs of a voter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VoterInput {
    /// An authenticated request of that node.
    Request {
        /// Node number of the sender.
        from: NodeId,
        /// The request, as received.
        request: Request,
    },
    /// That write is on disk.
    Stored(VoteWriteId),
    /// That write failed: whether it is on disk is not known.
    NotStored(VoteWriteId),
    /// That process has ended. The notice is authenticated.
    Died(DeathNotice),
    /// Rate error of this clock, parts per million.
    ClockRate(ClockRate),
}

/// Actions that a voter requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VoterOutput {
    /// Send the reply.
    Reply {
        /// Node that the reply is for: the requester, or the target of a hand-over.
        to: NodeId,
        /// The vote, or why there is none.
        reply: Reply,
    },
    /// Write this to disk, synced, and report the result.
    Store {
        /// Identifies the write.
        write_id: VoteWriteId,
        /// The state to write.
        durable: DurableVote,
    },
}

/// How a leadership or candidacy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// The gateway released it.
    Released,
    /// The gateway's process has ended.
    Died,
}

/// Identifies a write within a start of a voter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VoteWriteId(pub u64);

/// Safeguards that a check may switch off, to show that the check would notice. All are on in every product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuorumSafeguards {
    /// A voter waits the longest lease after its start.
    pub startup_wait: bool,
    /// A candidate polls before it spends a generation.
    pub polls: bool,
    /// An answer counts only for the request whose id it repeats.
    pub checks_tickets: bool,
    /// A leader that closes releases the voters only when none of its sends is outstanding.
    pub releases_after_sends: bool,
    /// A leader compares whole epochs with its own, as receivers do, not counts.
    pub compares_whole_epochs: bool,
    /// An outranked leader keeps its fence open until a majority has voted for its higher epoch.
    pub raises_in_place: bool,
    /// The fence takes a raised epoch only when a majority has voted for it.
    pub raises_once_voted: bool,
    /// A gateway that no majority of voters answers does not keep them from voting for a less fit one.
    pub yields_if_unanswered: bool,
    /// A hand-over is reported as failed when its leadership or raise ends before, or when the same gateway leads again after it.
    pub reports_ended_hand_overs: bool,
}

impl QuorumSafeguards {
    /// As in every product.
    pub const ALL: Self = Self {
        startup_wait: true,
        polls: true,
        checks_tickets: true,
        releases_after_sends: true,
        compares_whole_epochs: true,
        raises_in_place: true,
        raises_once_voted: true,
        yields_if_unanswered: true,
        reports_ended_hand_overs: true,
    };
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Promise {
    epoch: Epoch,
    incarnation: Incarnation,
    until: MonoNs,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PendingWrite {
    write_id: VoteWriteId,
    durable: DurableVote,
    claim: PromiseClaim,
}

/// A requested promise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PromiseClaim {
    epoch: Epoch,
    incarnation: Incarnation,
    lease_ns: u64,
    /// The candidates to answer, each with the id of its request.
    candidates: Vec<(NodeId, VoteRequestId)>,
}

/// Knowledge about a candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct KnownCandidate {
    incarnation: Incarnation,
    /// Number of its last request. A request with this number or a lower one is a repetition.
    number: u64,
    fitness: Fitness,
    eligibility: Eligibility,
    received_at: MonoNs,
    /// Its last start that is known to have ended.
    dead: Option<Incarnation>,
}

impl KnownCandidate {
    fn is_eligible(&self) -> bool {
        self.eligibility == Eligibility::Eligible && self.dead.is_none_or(|dead| self.incarnation > dead)
    }
}

impl Voter {
    /// A voter that starts at `now`. `durable`: its state on disk. `rate_error_ppm`: ρ as configured, parts per
    /// million.
    #[must_use]
    pub fn new(now: MonoNs, durable: DurableVote, session: VoterSession, rate_error_ppm: u32) -> Self {
        Self {
            session,
            rate_error_ppm,
            clock_rate: ClockRate::Within(0),
            started: now,
            durable,
            pending_write: None,
            store_count: 0,
            promise: None,
            ended: None,
            candidates: BTreeMap::new(),
            safeguards: QuorumSafeguards::ALL,
        }
    }

    /// For checks that show the effect of each safeguard.
    #[must_use]
    pub fn with_safeguards(self, safeguards: QuorumSafeguards) -> Self {
        Self { safeguards, ..self }
    }

    /// Processes one input at `now`, which never runs backwards.
    pub fn step(&mut self, now: MonoNs, input: VoterInput) -> Vec<VoterOutput> {
        match input {
            VoterInput::Request { from, request } => self.on_request(now, from, &request),
            VoterInput::Stored(write_id) => self.on_stored(now, write_id),
            VoterInput::NotStored(write_id) => {
                // No answer was sent, so nothing was promised. The candidate asks again.
                self.pending_write.take_if(|pending_write| pending_write.write_id == write_id);
                Vec::new()
            }
            VoterInput::Died(notice) => {
                self.on_death(notice.holder, notice.incarnation);
                Vec::new()
            }
            VoterInput::ClockRate(rate) => {
                self.clock_rate = rate;
                Vec::new()
            }
        }
    }

    /// The promise that runs at `now`.
    #[must_use]
    pub fn active_promise(&self, now: MonoNs) -> Option<ActivePromise> {
        let Promise { epoch, incarnation, until } = self.promise.as_ref()?;
        let remaining_ns = until.since(now);
        (remaining_ns > 0).then_some(ActivePromise { epoch: *epoch, incarnation: *incarnation, remaining_ns })
    }

    /// How that leadership or candidacy ended; `None`: it is not known to be over.
    #[must_use]
    pub(crate) fn end_cause(&self, epoch: Epoch, incarnation: Incarnation) -> Option<EndCause> {
        let dead = self.candidates.get(&NodeId::of(epoch)).and_then(|candidate| candidate.dead);
        if dead.is_some_and(|dead| incarnation <= dead) {
            Some(EndCause::Died)
        } else {
            (self.ended == Some((epoch, incarnation))).then_some(EndCause::Released)
        }
    }

    /// The last promise, whether or not it still runs.
    #[must_use]
    pub(crate) fn promised(&self) -> Option<(Epoch, Incarnation)> {
        self.promise.as_ref().map(|promise| (promise.epoch, promise.incarnation))
    }

    /// When the voter's last promise ends or ended; `None` before the first.
    #[must_use]
    pub fn promise_until(&self) -> Option<MonoNs> {
        self.promise.as_ref().map(|promise| promise.until)
    }

    /// Until when the voter votes for no new candidate after its start. `lease_ns`: L of the candidate that asks.
    #[must_use]
    pub fn startup_wait_until(&self, lease_ns: u64) -> MonoNs {
        if !self.safeguards.startup_wait {
            return self.started;
        }
        // Without a file this is a first start, or the disk was lost. So the wait is at least one lease of the
        // requester.
        self.started.plus(self.wait_ns(lease_ns.max(self.durable.lease_ns_max)))
    }

    /// The highest epoch that the voter knows, by vote or promise.
    #[must_use]
    pub(crate) fn highest_epoch(&self) -> Epoch {
        let promised = self.promise.as_ref().map_or_else(Epoch::default, |promise| promise.epoch);
        let pending_write =
            self.pending_write.as_ref().map_or_else(Epoch::default, |pending_write| pending_write.durable.epoch);
        self.durable.epoch.max(promised).max(pending_write)
    }

    /// The voter's start.
    #[must_use]
    pub(crate) fn session(&self) -> VoterSession {
        self.session
    }

    /// Sets the state of gateway `node` as known at `now`, without a message. For the gateway that this voter belongs
    /// to.
    pub(crate) fn set_candidate_state(
        &mut self,
        now: MonoNs,
        node: NodeId,
        fitness: Fitness,
        eligibility: Eligibility,
    ) {
        let candidate = self.candidates.entry(node).or_default();
        *candidate = KnownCandidate { fitness, eligibility, received_at: now, ..*candidate };
    }

    fn on_request(&mut self, now: MonoNs, from: NodeId, request: &Request) -> Vec<VoterOutput> {
        if !(1..=LEASE_NS_MAX).contains(&request.lease_ns) {
            return Vec::new();
        }
        // These operations report facts that stay true, whichever node repeats them: they need no proof of freshness.
        match &request.operation {
            Operation::Died(notice) => {
                self.on_death(notice.holder, notice.incarnation);
                return self.reply(now, from, request.request_id, Verdict::Granted);
            }
            Operation::Release(epoch) => {
                if NodeId::of(*epoch) != from {
                    return Vec::new();
                }
                self.on_release(from, *epoch, request);
                return self.reply(now, from, request.request_id, Verdict::Granted);
            }
            _ => {}
        }
        let candidate = self.candidates.entry(from).or_default();
        if request.incarnation < candidate.incarnation {
            return self.refuse(now, from, request, Refusal::OldIncarnation);
        }
        if request.session != self.session {
            return self.refuse(now, from, request, Refusal::Session);
        }
        if request.incarnation > candidate.incarnation {
            *candidate = KnownCandidate { incarnation: request.incarnation, number: 0, ..*candidate };
        }
        if request.request_id.number <= candidate.number {
            return Vec::new();
        }
        let Request { fitness, eligibility, incarnation, lease_ns, .. } = *request;
        *candidate =
            KnownCandidate { number: request.request_id.number, fitness, eligibility, received_at: now, ..*candidate };
        if candidate.dead.is_some_and(|dead| incarnation <= dead) {
            return self.refuse(now, from, request, Refusal::Ended);
        }
        match &request.operation {
            Operation::Poll => {
                let verdict = self.vote_refusal(now, from, request).map_or(Verdict::Granted, Verdict::Refused);
                self.reply(now, from, request.request_id, verdict)
            }
            Operation::Vote(epoch) if NodeId::of(*epoch) == from => {
                let claim =
                    PromiseClaim { epoch: *epoch, incarnation, lease_ns, candidates: vec![(from, request.request_id)] };
                self.claim(now, claim, (from, incarnation))
            }
            Operation::Renew(epoch) if NodeId::of(*epoch) == from => self.renew(now, from, request, *epoch),
            Operation::HandOver(hand_over) if NodeId::of(hand_over.from) == from => {
                self.hand_over(now, from, request, hand_over)
            }
            // An epoch of another node, or an operation that is not for voters.
            _ => Vec::new(),
        }
    }

    /// Why the voter would refuse a vote for that candidate under a new generation.
    fn vote_refusal(&self, now: MonoNs, from: NodeId, request: &Request) -> Option<Refusal> {
        let bound_to = |active_promise: ActivePromise| (NodeId::of(active_promise.epoch), active_promise.incarnation);
        if self
            .active_promise(now)
            .is_some_and(|active_promise| bound_to(active_promise) != (from, request.incarnation))
        {
            return Some(Refusal::PromisedToOther);
        }
        if self.pending_write.as_ref().is_some_and(|pending_write| NodeId::of(pending_write.durable.epoch) != from) {
            return Some(Refusal::PromisedToOther);
        }
        if now < self.startup_wait_until(request.lease_ns) {
            return Some(Refusal::StartupWait);
        }
        let peer_timeout_ns = self.wait_ns(request.lease_ns);
        let is_fitter = |(node, candidate): (&NodeId, &KnownCandidate)| {
            *node != from
                && candidate.is_eligible()
                && now.since(candidate.received_at) < peer_timeout_ns
                && request.fitness.is_worse_than(&candidate.fitness)
        };
        self.candidates.iter().any(is_fitter).then_some(Refusal::FitterCandidate)
    }

    /// Votes, or moves a promise: both need the disk. `mover`: the gateway whose promise may be moved.
    fn claim(&mut self, now: MonoNs, claim: PromiseClaim, mover: (NodeId, Incarnation)) -> Vec<VoterOutput> {
        let PromiseClaim { epoch, incarnation, lease_ns, .. } = claim;
        if let Err(refusal) = self.check_claim(now, &claim, mover) {
            return self.answer(now, &claim, Verdict::Refused(refusal));
        }
        let is_on_record = (self.durable.epoch, self.durable.incarnation) == (epoch, incarnation);
        if is_on_record && lease_ns <= self.durable.lease_ns_max {
            self.give_promise(now, epoch, incarnation, lease_ns);
            return self.answer(now, &claim, Verdict::Granted);
        }
        self.store(DurableVote { epoch, incarnation, lease_ns_max: lease_ns.max(self.durable.lease_ns_max) }, claim)
    }

    fn check_claim(&self, now: MonoNs, claim: &PromiseClaim, mover: (NodeId, Incarnation)) -> Result<(), Refusal> {
        let claimed = (claim.epoch, claim.incarnation);
        let target = (NodeId::of(claim.epoch), claim.incarnation);
        if self.ended == Some(claimed) {
            return Err(Refusal::Ended);
        }
        if self
            .candidates
            .get(&target.0)
            .and_then(|candidate| candidate.dead)
            .is_some_and(|dead| claim.incarnation <= dead)
        {
            return Err(Refusal::Ended);
        }
        // One vote per generation, for one start of one node.
        let is_on_record = (self.durable.epoch, self.durable.incarnation) == claimed;
        if claim.epoch.count() < self.highest_epoch().count()
            || (claim.epoch.count() == self.durable.epoch.count() && !is_on_record)
            || self.promise.as_ref().is_some_and(|promise| {
                promise.epoch.count() == claim.epoch.count() && (promise.epoch, promise.incarnation) != claimed
            })
        {
            return Err(Refusal::OldGeneration);
        }
        if let Some(active_promise) = self.active_promise(now) {
            let holder = (NodeId::of(active_promise.epoch), active_promise.incarnation);
            if holder != mover && holder != target {
                return Err(Refusal::PromisedToOther);
            }
        }
        if self
            .pending_write
            .as_ref()
            .is_some_and(|pending_write| (pending_write.durable.epoch, pending_write.durable.incarnation) != claimed)
        {
            return Err(Refusal::PromisedToOther);
        }
        if now < self.startup_wait_until(claim.lease_ns) && !is_on_record {
            return Err(Refusal::StartupWait);
        }
        Ok(())
    }

    /// A renewal from the winner of the epoch's generation: promises under lower generations are over for a majority.
    fn renew(&mut self, now: MonoNs, from: NodeId, request: &Request, epoch: Epoch) -> Vec<VoterOutput> {
        let Request { incarnation, lease_ns, request_id, .. } = *request;
        if self.ended == Some((epoch, incarnation)) {
            return self.refuse(now, from, request, Refusal::Ended);
        }
        if self.blocks_renewal(now, epoch, incarnation, lease_ns) {
            return self.refuse(now, from, request, Refusal::OldGeneration);
        }
        let claim = PromiseClaim { epoch, incarnation, lease_ns, candidates: vec![(from, request_id)] };
        if lease_ns > self.durable.lease_ns_max {
            // A longer lease makes the wait after a restart longer, so it must be on disk first. The vote on record
            // stays the same.
            return self.store(DurableVote { lease_ns_max: lease_ns, ..self.durable }, claim);
        }
        self.give_promise(now, epoch, incarnation, lease_ns);
        self.answer(now, &claim, Verdict::Granted)
    }

    /// Whether a vote or promise of this voter forbids following the winner of that epoch.
    fn blocks_renewal(&self, now: MonoNs, epoch: Epoch, incarnation: Incarnation, lease_ns: u64) -> bool {
        if self.pending_write.as_ref().is_some_and(|pending_write| pending_write.durable.epoch.count() > epoch.count())
        {
            return true;
        }
        let is_other = |promise: &&Promise| (promise.epoch, promise.incarnation) != (epoch, incarnation);
        if let Some(promise) = self.promise.as_ref().filter(is_other) {
            if promise.epoch.count() == epoch.count() {
                // The winner overrides a vote for a candidate that lost. Nothing overrides a winner.
                return promise.epoch != self.durable.epoch;
            }
            if promise.epoch.count() > epoch.count() && self.active_promise(now).is_some() {
                return true;
            }
        }
        // A vote for a higher generation counts for its candidate while its promise runs. The promise has ended here;
        // or the vote was given before the start, and then its end is not known.
        self.durable.epoch.count() > epoch.count() && now < self.startup_wait_until(lease_ns)
    }

    fn hand_over(&mut self, now: MonoNs, from: NodeId, request: &Request, hand_over: &HandOver) -> Vec<VoterOutput> {
        let HandOver { to, incarnation, lease_ns, request_id, .. } = *hand_over;
        if to.count() <= hand_over.from.count() || !(1..=LEASE_NS_MAX).contains(&lease_ns) {
            return Vec::new();
        }
        let claim = PromiseClaim {
            epoch: to,
            incarnation,
            lease_ns,
            candidates: vec![(from, request.request_id), (NodeId::of(to), request_id)],
        };
        let has_moved = self
            .active_promise(now)
            .is_some_and(|active_promise| (active_promise.epoch, active_promise.incarnation) == (to, incarnation));
        if has_moved {
            // The request is repeated: the promise runs since the first one, and no gateway extends it on the target's
            // behalf.
            return self.answer(now, &claim, Verdict::Granted);
        }
        if self.promise.as_ref().is_some_and(|promise| {
            (NodeId::of(promise.epoch), promise.incarnation) == (from, request.incarnation)
                && promise.epoch != hand_over.from
        }) {
            // The candidate now holds a newer term than the one it offers to hand over.
            return self.refuse(now, from, request, Refusal::OldGeneration);
        }
        self.claim(now, claim, (from, request.incarnation))
    }

    /// The fittest of [`Self::eligible_peers`].
    #[must_use]
    pub(crate) fn fittest(&self, now: MonoNs, own: NodeId, peer_timeout_ns: u64) -> Option<NodeId> {
        // Among equals the lowest number, so that the choice is reproducible.
        let others = self.eligible_peers(now, own, peer_timeout_ns);
        others.max_by_key(|(node, fitness)| (fitness.class(), std::cmp::Reverse(*node))).map(|(node, _)| node)
    }

    /// Eligible gateways, except `own`, whose last request is at most `peer_timeout_ns` old; and how fit each is.
    pub(crate) fn eligible_peers(
        &self,
        now: MonoNs,
        own: NodeId,
        peer_timeout_ns: u64,
    ) -> impl Iterator<Item = (NodeId, Fitness)> {
        let is_eligible = move |(node, candidate): &(&NodeId, &KnownCandidate)| {
            **node != own && candidate.is_eligible() && now.since(candidate.received_at) < peer_timeout_ns
        };
        self.candidates.iter().filter(is_eligible).map(|(node, candidate)| (*node, candidate.fitness))
    }

    /// The last reported states of all candidates.
    pub(crate) fn peer_views(&self) -> impl Iterator<Item = (NodeId, PeerView)> {
        self.candidates.iter().map(|(node, candidate)| {
            (
                *node,
                PeerView {
                    received_at: candidate.received_at,
                    fitness: candidate.fitness,
                    can_lead: candidate.is_eligible(),
                },
            )
        })
    }

    fn on_release(&mut self, node: NodeId, epoch: Epoch, request: &Request) {
        let incarnation = request.incarnation;
        self.ended = Some((epoch, incarnation));
        self.promise.take_if(|promise| (promise.epoch, promise.incarnation) == (epoch, incarnation));
        if let Some(candidate) = self.candidates.get_mut(&node).filter(|candidate| candidate.incarnation <= incarnation)
        {
            // The eligibility from now on: a candidate that will not be eligible must not keep others from being
            // elected.
            candidate.eligibility = request.eligibility;
        }
    }

    fn on_death(&mut self, node: NodeId, incarnation: Incarnation) {
        let candidate = self.candidates.entry(node).or_default();
        candidate.dead = candidate.dead.max(Some(incarnation));
        self.promise.take_if(|promise| NodeId::of(promise.epoch) == node && promise.incarnation == incarnation);
    }

    fn on_stored(&mut self, now: MonoNs, write_id: VoteWriteId) -> Vec<VoterOutput> {
        let Some(pending_write) = self.pending_write.take_if(|pending_write| pending_write.write_id == write_id) else {
            return Vec::new();
        };
        self.durable = pending_write.durable;
        let PromiseClaim { epoch, incarnation, lease_ns, .. } = pending_write.claim;
        // Meanwhile another candidate may have won a higher generation, or this one may have ended.
        let is_over = self.ended == Some((epoch, incarnation))
            || self.active_promise(now).is_some_and(|active_promise| active_promise.epoch.count() > epoch.count())
            || self.promise.as_ref().is_some_and(|promise| {
                promise.epoch.count() == epoch.count() && (promise.epoch, promise.incarnation) != (epoch, incarnation)
            })
            || self
                .candidates
                .get(&NodeId::of(epoch))
                .and_then(|candidate| candidate.dead)
                .is_some_and(|dead| incarnation <= dead);
        if is_over {
            return Vec::new();
        }
        self.give_promise(now, epoch, incarnation, lease_ns);
        self.answer(now, &pending_write.claim, Verdict::Granted)
    }

    fn store(&mut self, durable: DurableVote, claim: PromiseClaim) -> Vec<VoterOutput> {
        if let Some(pending_write) = &mut self.pending_write {
            if pending_write.durable == durable {
                // Repeated before it was answered: the newer request is answered.
                pending_write.claim = claim;
            }
            return Vec::new();
        }
        self.store_count += 1;
        let write_id = VoteWriteId(self.store_count);
        self.pending_write = Some(PendingWrite { write_id, durable, claim });
        vec![VoterOutput::Store { write_id, durable }]
    }

    fn give_promise(&mut self, now: MonoNs, epoch: Epoch, incarnation: Incarnation, lease_ns: u64) {
        let mut until = now.plus(self.wait_ns(lease_ns));
        if let Some(promise) = &self.promise
            && (NodeId::of(promise.epoch), promise.incarnation) == (NodeId::of(epoch), incarnation)
        {
            until = until.max(promise.until);
        }
        self.promise = Some(Promise { epoch, incarnation, until });
    }

    /// How long a promise for a lease L runs on this clock, which may be fast: L(1 + ρ), rounded up, ns.
    fn wait_ns(&self, lease_ns: u64) -> u64 {
        lease_ns.saturating_add(drift_ns(lease_ns, self.rate_error_ppm.max(self.clock_rate.error_ppm())))
    }

    fn answer(&self, now: MonoNs, claim: &PromiseClaim, verdict: Verdict) -> Vec<VoterOutput> {
        claim.candidates.iter().flat_map(|(to, request_id)| self.reply(now, *to, *request_id, verdict)).collect()
    }

    fn refuse(&self, now: MonoNs, to: NodeId, request: &Request, refusal: Refusal) -> Vec<VoterOutput> {
        self.reply(now, to, request.request_id, Verdict::Refused(refusal))
    }

    fn reply(&self, now: MonoNs, to: NodeId, request_id: VoteRequestId, verdict: Verdict) -> Vec<VoterOutput> {
        // An epoch that was released is spent as well: the next epoch must be above it.
        let highest_epoch = self.highest_epoch().max(self.ended.map_or_else(Epoch::default, |(epoch, _)| epoch));
        let reply =
            Reply { request_id, session: self.session, highest_epoch, promise: self.active_promise(now), verdict };
        vec![VoterOutput::Reply { to, reply }]
    }
}
