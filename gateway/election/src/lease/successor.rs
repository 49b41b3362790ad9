//! The heir: who goes on at once when the holder has ended, without asking the store first.
//!
//! ```text
//!   heir ── state(stamp) ──► leader ── renewal: heir, stamp ──► store ──► heir reads it
//!   the leader's process ends, or it closes its fence, has no send outstanding and says so
//!   heir: fence open until its stamp + the shorter L - M, under a new epoch; meanwhile it swaps the record
//! ```
//! Why nobody else sends at that time:
//! - The holder has ended: that is knowledge, of the sentinel or its own.
//! - Whoever waits for the lease learned of the record after its stamp was taken, and waits L from there: the heir's time is
//!   over by then. That it hasn't swapped yet changes nothing.
//! - Whoever knows of the end too and is not the heir waits for the same lease, unless it knows that the heir has ended as well.
//! - Nobody else is the heir: a record names another, or none, only when the time of the one before is over.

use std::collections::BTreeMap;

use mdgw_feeds::{published::position::StreamPosition, time::MonoNs};

use super::{Lease, Phase};
use crate::{
    core::Output,
    identity::{DeathNotice, Member, NodeId},
    record::{Record, Successor},
};

/// NamedSuccessor in this gateway's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NamedSuccessor {
    pub(super) successor: Successor,
    /// No record may name another before, or none.
    until: MonoNs,
}

/// The leadership that one came from which the record does not show yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Predecessor {
    leadership: DeathNotice,
    /// It had moved by itself.
    pub(super) is_automatic: bool,
}

impl Predecessor {
    /// Whether the record still shows the leadership before, which may have been released meanwhile.
    pub(super) fn is_holder_in(self, record: &Record) -> bool {
        let DeathNotice { holder, incarnation, epoch } = self.leadership;
        let is_same_holder = |member: &Member| (member.node, member.incarnation) == (holder, incarnation);
        record.epoch == epoch && record.holder.as_ref().is_none_or(is_same_holder)
    }
}

/// A holder's own word that its leadership is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ended {
    pub(super) leadership: DeathNotice,
    /// It moved by itself.
    pub(super) is_automatic: bool,
}

impl Lease {
    // ---- a leader names its heir ----

    /// Chooses whom the next record is to name.
    pub(super) fn choose_successor(&mut self, now: MonoNs) {
        let Some(successor) = self.preferred_new_successor(now) else { return };
        let before = self.current_successor(now);
        let is_free =
            before.is_none_or(|before| (before.node, before.incarnation) == (successor.node, successor.incarnation));
        if before != Some(successor) && (is_free || !self.safeguards.keeps_named_successor) {
            self.named = Some(NamedSuccessor { successor, until: now.plus(self.config.timing.wait_ns()) });
        }
    }

    /// The one named before, while its time is not over.
    pub(super) fn current_successor(&self, now: MonoNs) -> Option<Successor> {
        self.named.filter(|named| now < named.until).map(|named| named.successor)
    }

    /// Whether more than half of its time is left to the heir that was named last.
    pub(super) fn is_freshly_named(&self, now: MonoNs) -> bool {
        let half_ns = self.config.timing.wait_ns() / 2;
        self.named.is_some_and(|named| now.plus(half_ns) < named.until)
    }

    /// What was waited until now on a clock that ran too fast was no wait.
    pub(super) fn restart_successor_waits(&mut self, now: MonoNs) {
        let until = now.plus(self.config.timing.wait_ns());
        if let Some(named) = &mut self.named {
            named.until = until;
        }
        self.known_record.restart_successor_wait(now);
    }

    /// Whom the lead is being handed to; else of those that could lead the fittest, and of these the one meant to follow.
    fn preferred_new_successor(&self, now: MonoNs) -> Option<Successor> {
        let Phase::Leading(leadership) = &self.phase else { return None };
        let target = leadership.offer.as_ref().filter(|offer| offer.accepted.is_some()).map(|offer| offer.target.node);
        let preferred_successor = self.placement.preferred_successor.or(self.config.preferred);
        let eligible = self.peers.iter().filter(|(node, _)| self.can_take_over(**node, now));
        let (node, peer) = eligible.max_by_key(|(node, peer)| {
            let class = peer.state.fitness.class();
            (target == Some(**node), class, preferred_successor == Some(**node), std::cmp::Reverse(**node))
        })?;
        Some(Successor { node: *node, incarnation: peer.state.member.incarnation, stamp: peer.state.stamp })
    }

    // ---- an heir goes on ----

    /// The holder says that its leadership is over.
    pub(super) fn on_leadership_ended(&mut self, from: NodeId, ended: Ended, positions: BTreeMap<u16, StreamPosition>) {
        let Ended { leadership, .. } = ended;
        let is_newer = self.ended.is_none_or(|before| before.leadership.epoch < leadership.epoch);
        if from == leadership.holder && is_newer {
            self.given_promise.take_if(|given_promise| given_promise.request.concerns(&leadership));
            self.ended = Some(ended);
            self.emit(Output::PeerOutputEnded { epoch: leadership.epoch, positions });
        }
    }

    /// Whether its holder has said that it is over.
    pub(super) fn has_announced_end(&self, leadership: DeathNotice) -> bool {
        self.ended.is_some_and(|ended| ended.leadership == leadership)
    }

    /// The record of a leadership that has ended, and this gateway its heir, who has not tried yet to go on.
    pub(super) fn succession_due(&self) -> Option<(&Record, DeathNotice, Successor)> {
        let record = self.known_record.record()?;
        let leadership = record.leadership()?;
        let successor = record.successor.filter(|successor| successor.is(&self.config.member))?;
        let may_open = (self.is_dead(record) || self.has_announced_end(leadership))
            && matches!(self.phase, Phase::Candidate)
            && !self.is_closing
            && !self.is_declared_dead
            // Once from one leadership, though its record may come back with a store that is restored.
            && self.highest_opened < leadership.epoch
            && self.used_stamp.is_none_or(|tried| tried < successor.stamp)
            && self.find_obstacle().is_none();
        may_open.then_some((record, leadership, successor))
    }

    /// Opens as the heir, if it is and its time is not over.
    pub(super) fn try_succession(&mut self, now: MonoNs) {
        let Some((record, leadership, successor)) = self.succession_due() else { return };
        let (named, lease_ns) = (record.candidates.clone(), record.lease_ns);
        self.used_stamp = Some(successor.stamp);
        let from = if self.safeguards.lease_from_successor_stamp { MonoNs(successor.stamp.0) } else { now };
        let deadline = self.config.timing.deadline_within(from, lease_ns);
        let Some(epoch) = self.next_own_epoch().filter(|_| (from..deadline).contains(&now)) else { return };
        let is_automatic = self.ended.is_some_and(|ended| ended.leadership == leadership && ended.is_automatic);
        self.open(now, epoch, deadline, named);
        if let Phase::Leading(leading) = &mut self.phase {
            leading.predecessor = Some(Predecessor { leadership, is_automatic });
        }
    }

    // ---- the others wait ----

    /// Until when the heir of the record may send that has no holder, or whose holder has ended. `None`: nobody may.
    pub(super) fn successor_window_ends_at(&self, record: &Record) -> Option<MonoNs> {
        let successor = record.successor.filter(|successor| !successor.is(&self.config.member))?;
        let is_dead =
            |notice: &DeathNotice| (notice.holder, notice.incarnation) == (successor.node, successor.incarnation);
        if self.deaths.iter().any(is_dead) || !self.safeguards.waits_for_successor {
            return None;
        }
        let wait_ns = self.config.timing.wait_for_ns(record.lease_ns);
        Some(self.known_record.successor_learned_at().plus(wait_ns))
    }
}
