//! A leader on its way out: hand-over, release, and leading again under a higher epoch.
//!
//! ```text
//!   leader ── prepare(nonce) ──► target          fence still open
//!          ◄── prepared(nonce, stamp) ──         target's lease counts from its stamp
//!   fence closes; no send outstanding
//!          ── swap: holder = target, new epoch, nonce, stamp, final positions
//! ```
//! Having sent the swap, the old leader opens again only by swapping on the version it had: one of the two takes
//! effect, and with it one of the two leads.

use std::collections::BTreeMap;

use mdgw_feeds::{identity::Epoch, published::position::StreamPosition, time::MonoNs};

use super::{Lease, Phase};
use crate::election::{
    core::{CloseReason, Notice, Output},
    identity::{Member, NodeId, next_epoch},
    peer::{PeerMessage, Question},
    record::{HandOver, PeerStamp, Record},
};

/// The fence is closed, and the record is to be given away or taken anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leaving {
    /// Of the leadership that ended.
    pub(super) epoch: Epoch,
    /// Until when nobody else may have begun.
    pub(super) deadline: MonoNs,
    pub(super) way: Way,
    /// Where the output ended; `None`: a send may still be outstanding.
    pub(super) drained: Option<BTreeMap<u16, StreamPosition>>,
    /// The swap was sent once.
    pub(super) has_tried: bool,
}

/// What becomes of the record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// Its holder is to be another.
    HandOver { target: Member, nonce: u64, stamp: PeerStamp, cause: OfferCause },
    /// It is to have no holder.
    Release,
    /// Its holder stays, under a new epoch.
    Reopen,
}

/// A *prepare* without answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Offer {
    pub(super) target: Member,
    pub(super) question: Question,
    pub(super) sent: MonoNs,
    pub(super) cause: OfferCause,
}

/// Who wanted leadership to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OfferCause {
    /// Somebody asked for it.
    Planned,
    /// Fitness or preference.
    Automatic,
}

impl Lease {
    pub(super) fn on_hand_over(&mut self, now: MonoNs, target: Option<NodeId>) {
        let Phase::Leading(_) = &self.phase else {
            return self.hand_over_failed(target, "this gateway does not lead");
        };
        self.offer(now, target.or_else(|| self.fittest_peer(now)), OfferCause::Planned);
    }

    pub(super) fn offer(&mut self, now: MonoNs, target: Option<NodeId>, cause: OfferCause) {
        let Some(target) = target else { return self.hand_over_failed(None, "no other gateway can lead") };
        if !self.can_take_over(target, now) {
            return self.hand_over_failed(Some(target), "it does not stand, is not heard or publishes something else");
        }
        let Some(member) = self.peers.get(&target).map(|peer| peer.state.member.clone()) else { return };
        if self.doubtful_from.is_some() {
            return self.hand_over_failed(Some(target), "the store does not answer");
        }
        let nonce = self.next_number();
        let Some(question) = self.question(nonce) else { return };
        let Phase::Leading(leadership) = &mut self.phase else { return };
        if leadership.offer.is_some() {
            return self.hand_over_failed(Some(target), "another hand-over is under way");
        }
        leadership.offer = Some(Offer { target: member, question, sent: now, cause });
        self.say(Output::Peer { to: target, message: PeerMessage::Prepare(question) });
    }

    /// A question about the present leadership.
    pub(super) fn question(&self, nonce: u64) -> Option<Question> {
        let (node, incarnation) = (self.node(), self.config.member.incarnation);
        let epoch = self.leading_epoch()?;
        Some(Question { asker: node, incarnation, epoch, nonce, lease_ns: self.config.timing.lease_ns })
    }

    pub(super) fn offer_ends(&self, offer: &Offer) -> MonoNs {
        offer.sent.plus(2 * self.config.timing.renew_ns)
    }

    pub(super) fn offer_turn(&mut self, now: MonoNs) {
        let Phase::Leading(leadership) = &self.phase else { return };
        let Some(offer) = &leadership.offer else { return };
        if now >= self.offer_ends(offer) {
            let target = offer.target.node;
            self.withdraw(now);
            self.hand_over_failed(Some(target), "it did not answer in time");
        }
    }

    /// Takes the offer back, and leaves time before the next one.
    fn withdraw(&mut self, now: MonoNs) {
        let Phase::Leading(leadership) = &mut self.phase else { return };
        leadership.offer = None;
        leadership.worse_from = leadership.worse_from.map(|_| now);
    }

    pub(super) fn on_prepare_refused(&mut self, from: NodeId, question: Question) {
        let Phase::Leading(leadership) = &self.phase else { return };
        let is_answer =
            leadership.offer.as_ref().is_some_and(|offer| offer.target.node == from && offer.question == question);
        if is_answer {
            self.withdraw(question_time(leadership));
            self.hand_over_failed(Some(from), "it is not ready");
        }
    }

    pub(super) fn on_prepared(&mut self, now: MonoNs, from: NodeId, question: Question, stamp: PeerStamp) {
        let Phase::Leading(leadership) = &self.phase else { return };
        let Some(offer) = &leadership.offer else { return };
        let is_answer = offer.question == question || !self.safeguards.prepare_nonce;
        if offer.target.node != from || !is_answer || now >= self.offer_ends(offer) {
            return;
        }
        let Offer { target, question, cause, .. } = offer.clone();
        let deadline = leadership.deadline;
        let way = Way::HandOver { target, nonce: question.nonce, stamp, cause };
        self.leave(now, CloseReason::HandedOver, way, deadline);
    }

    pub(super) fn on_drained(&mut self, positions: BTreeMap<u16, StreamPosition>) {
        if let Phase::Leaving(leaving) = &mut self.phase {
            leaving.drained.get_or_insert(positions);
        }
    }

    pub(super) fn on_close(&mut self, now: MonoNs) {
        if std::mem::replace(&mut self.closing, true) {
            return;
        }
        self.prepared = None;
        match &mut self.phase {
            Phase::Leading(leadership) => {
                let deadline = leadership.deadline;
                self.leave(now, CloseReason::Released, Way::Release, deadline);
            }
            Phase::Leaving(leaving) if leaving.way == Way::Reopen => {
                leaving.way = Way::Release;
                // To open again takes no drain; for others to open does.
                leaving.drained = None;
                self.say(Output::Drain);
            }
            Phase::Leaving(_) | Phase::Candidate => self.knowledge.wait_again(now),
        }
    }

    pub(super) fn record_to_leave(&mut self, now: MonoNs) -> Option<Record> {
        let Phase::Leaving(leaving) = &mut self.phase else { return None };
        let positions = leaving.drained.clone()?;
        if now >= leaving.deadline && leaving.way != Way::Release {
            self.phase = Phase::Candidate;
            self.knowledge.wait_again(now);
            return None;
        }
        if std::mem::replace(&mut leaving.has_tried, true)
            && let Way::HandOver { target, .. } = &leaving.way
        {
            let target = target.node;
            leaving.way = if self.closing { Way::Release } else { Way::Reopen };
            self.hand_over_failed(Some(target), "the store did not take it");
        }
        let Phase::Leaving(Leaving { way, .. }) = &self.phase else { return None };
        match way.clone() {
            Way::Release => self.knowledge.record().map(Record::released),
            Way::Reopen => Some(self.record_of_own(self.epoch_for(self.node())?)),
            Way::HandOver { target, nonce, stamp, cause } => {
                let record = self.knowledge.record()?;
                let epoch = self.epoch_for(target.node)?;
                let moves = record.moves + u32::from(cause == OfferCause::Automatic);
                let hand_over = HandOver { from: self.node(), nonce, stamp, positions };
                Some(Record { epoch, holder: Some(target), hand_over: Some(hand_over), moves, ..record.clone() })
            }
        }
    }

    fn epoch_for(&self, node: NodeId) -> Option<Epoch> {
        next_epoch(node, [self.knowledge.highest_epoch(), self.config.own_epoch, self.opened, self.heard])
    }

    fn hand_over_failed(&mut self, target: Option<NodeId>, why: &'static str) {
        self.say(Output::Notice(Notice::HandOverFailed { target, why }));
    }
}

/// When the offer that is refused was made: the wait for the next one counts from there.
fn question_time(leadership: &super::Leadership) -> MonoNs {
    leadership.offer.as_ref().map_or(leadership.since, |offer| offer.sent)
}
