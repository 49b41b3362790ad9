//! Two sides of a split meet again: the smaller one stops, rejoins as youngest, and redirects its members.
//!
//! The smaller side keeps its list until its join is accepted. Until then the side does not lead; if no answer comes,
//! it may lead again.

use std::net::SocketAddr;

use mdgw_wire::time::MonoNs;

use super::{
    Emergent, Phase, Safeguard,
    message::{Message, PartitionSide},
};
use crate::{
    core::CloseReason,
    identity::{Incarnation, Member},
};

/// A side that has met a larger one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Yielding {
    /// Nonce of the join request.
    pub(super) nonce: u64,
    /// The other side's coordinator.
    pub(super) to: SocketAddr,
    /// The start of the other side's coordinator.
    pub(super) winner: Incarnation,
    pub(super) until: MonoNs,
    /// The request has been sent.
    pub(super) has_asked: bool,
}

impl Emergent {
    pub(super) fn on_probe(&mut self, now: MonoNs, theirs: &PartitionSide) {
        if let Phase::Joining(joining) = &mut self.phase {
            joining.ask_also(now, theirs.address);
        } else if self.is_coordinator() {
            // Two coordinators are two sides, whatever their lists say of each other.
            self.resolve_split(now, theirs);
        } else if let Some(ours) = self.membership().and_then(|membership| membership.list.coordinator())
            && ours.member != theirs.coordinator
        {
            // The other side may know no address of our coordinator.
            let (address, incarnation) = (ours.address, ours.member.incarnation);
            self.send(address, Some(incarnation), Message::Probe(theirs.clone()));
        }
    }

    fn resolve_split(&mut self, now: MonoNs, theirs: &PartitionSide) {
        if theirs.coordinator == self.config.member {
            return;
        }
        self.observe_epoch(theirs.epoch);
        let Some(ours) = self.own_side() else { return };
        if ours.wins_over(theirs) {
            return self.send(theirs.address, Some(theirs.coordinator.incarnation), Message::Probe(ours));
        }
        let until = now.plus(self.config.timing.join_ns_max.saturating_mul(2));
        let (nonce, to) = (self.sent_count + 1, theirs.address);
        let may_stay = self.is_disabled(Safeguard::SmallerSideYields);
        let Some(membership) = self.membership_mut() else { return };
        if may_stay || membership.yielding.is_some() || membership.is_leaving {
            return;
        }
        membership.pending.clear();
        membership.yielding =
            Some(Yielding { nonce, to, winner: theirs.coordinator.incarnation, until, has_asked: false });
        self.close_fence(CloseReason::Lost);
        self.send_yielding_join();
    }

    /// Asks the other side for admission, once no send is outstanding: with this node that side may be large enough to
    /// lead.
    pub(super) fn send_yielding_join(&mut self) {
        if self.outstanding_sends.may_exist() {
            return;
        }
        let Some(yielding) = self.membership_mut().and_then(|membership| membership.yielding.as_mut()) else { return };
        if !std::mem::replace(&mut yielding.has_asked, true) {
            let Yielding { nonce, to, winner, .. } = *yielding;
            self.send(to, Some(winner), Message::Join { nonce });
        }
    }

    pub(super) fn expire_yielding(&mut self, now: MonoNs) {
        if let Some(membership) = self.membership_mut() {
            membership.yielding.take_if(|yielding| now >= yielding.until);
        }
    }

    pub(super) fn on_dissolve(&mut self, now: MonoNs, from: &Member, winner: SocketAddr) {
        let coordinator = self.membership().and_then(|membership| membership.list.coordinator());
        if coordinator.is_some_and(|coordinator| coordinator.member == *from) {
            self.rejoin(winner);
            self.continue_joining(now);
        }
    }
}
