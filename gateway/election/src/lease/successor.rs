//! The designated successor: it takes over at once when the holder has ended, without asking the store first.
//!
//! ```text
//!   successor ── state(stamp) ──► leader ── renewal: successor, stamp ──► store ──► successor reads it
//!   the leader's process ends; or the leader closes its fence, drains its sends and announces the end
//!   successor: fence open until its stamp + the shorter L - M, under the next epoch; meanwhile it swaps the record
//! ```
//! Why no other gateway sends at that time:
//! - The holder has ended: known from the sentinel or from the holder itself.
//! - A candidate that waits for the lease learned of the record after the stamp was taken, and waits L from there. By
//!   then the successor's time has passed. That the successor has not swapped yet changes nothing.
//! - A candidate that also knows of the end waits for the same lease, unless it knows that the successor has ended as
//!   well.
//! - The successor opens under the epoch that follows the record's, or not without a swap. So every reader of the record
//!   knows the highest epoch that the successor may have opened.
//! - There is one successor at a time: a record names another one, or none, only when the time of the previous one has
//!   passed.

use mdgw_wire::time::MonoNs;

use super::{Lease, Phase};
use crate::{
    core::Output,
    identity::{DeathNotice, Member, NodeId},
    record::{Record, Successor},
};

/// The designated successor in this gateway's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NamedSuccessor {
    pub(super) successor: Successor,
    /// Before this time, no record may name another successor, or none.
    until: MonoNs,
}

/// The leadership that the present one succeeded, while the record does not show the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Predecessor {
    leadership: DeathNotice,
    /// The leadership ended by an automatic move.
    pub(super) is_automatic: bool,
}

impl Predecessor {
    /// Whether the record still shows the previous leadership, which may have been released meanwhile.
    pub(super) fn is_holder_in(self, record: &Record) -> bool {
        let DeathNotice { holder, incarnation, epoch } = self.leadership;
        let is_same_holder = |member: &Member| (member.node, member.incarnation) == (holder, incarnation);
        record.epoch == epoch && record.holder.as_ref().is_none_or(is_same_holder)
    }
}

/// A holder's own announcement that its leadership is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AnnouncedEnd {
    pub(super) leadership: DeathNotice,
    /// The leadership ended by an automatic move.
    pub(super) is_automatic: bool,
}

impl Lease {
    // ---- a leader names its successor ----

    /// Chooses the successor that the next record names.
    pub(super) fn choose_successor(&mut self, now: MonoNs) {
        let Some(successor) = self.preferred_new_successor(now) else { return };
        let before = self.current_successor(now);
        let is_free =
            before.is_none_or(|before| (before.node, before.incarnation) == (successor.node, successor.incarnation));
        if before != Some(successor) && (is_free || !self.safeguards.keeps_named_successor) {
            self.named_successor = Some(NamedSuccessor { successor, until: now.plus(self.config.timing.wait_ns()) });
        }
    }

    /// The successor named before, while its time has not passed.
    pub(super) fn current_successor(&self, now: MonoNs) -> Option<Successor> {
        self.named_successor.filter(|named| now < named.until).map(|named| named.successor)
    }

    /// Whether the last named successor has more than half of its time left.
    pub(super) fn is_freshly_named(&self, now: MonoNs) -> bool {
        let half_ns = self.config.timing.wait_ns() / 2;
        self.named_successor.is_some_and(|named| now.plus(half_ns) < named.until)
    }

    /// Restarts the waits: time measured on a clock that ran too fast does not count.
    pub(super) fn restart_successor_waits(&mut self, now: MonoNs) {
        let until = now.plus(self.config.timing.wait_ns());
        if let Some(named) = &mut self.named_successor {
            named.until = until;
        }
        self.known_record.restart_successor_wait(now);
    }

    /// The target of a hand-over in progress; else the fittest of those that could lead, and among equals the preferred
    /// one.
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

    // ---- the successor takes over ----

    /// The holder announces that its leadership is over.
    pub(super) fn on_leadership_ended(&mut self, from: NodeId, announced: AnnouncedEnd) {
        let AnnouncedEnd { leadership, .. } = announced;
        let is_newer = self.announced_end.is_none_or(|before| before.leadership.epoch < leadership.epoch);
        if from == leadership.holder && is_newer {
            self.given_promise.take_if(|given_promise| given_promise.request.concerns(&leadership));
            self.announced_end = Some(announced);
            self.emit(Output::PeerOutputEnded(leadership.epoch));
        }
    }

    /// Whether the holder of that leadership has announced its end.
    pub(super) fn has_announced_end(&self, leadership: DeathNotice) -> bool {
        self.announced_end.is_some_and(|ended| ended.leadership == leadership)
    }

    /// The record of a leadership that has ended, if this gateway is its successor and has not tried to take over yet.
    pub(super) fn succession_due(&self) -> Option<(&Record, DeathNotice, Successor)> {
        let record = self.known_record.record()?;
        let leadership = record.leadership_id()?;
        let successor = record.successor.filter(|successor| successor.is_same_start(&self.config.member))?;
        let may_open = (self.is_dead(record) || self.has_announced_end(leadership))
            && matches!(self.phase, Phase::Candidate)
            && !self.is_closing
            && !self.is_declared_dead
            // One leadership is succeeded once, even if a restored store shows its record again.
            && self.highest_opened < leadership.epoch
            && self.used_stamp.is_none_or(|tried| tried < successor.stamp)
            && self.find_obstacle().is_none()
            && self.has_epoch_for_succession(record);
        may_open.then_some((record, leadership, successor))
    }

    /// Whether the epoch that follows the record's is above every epoch that this gateway knows. If it is not, this gateway
    /// swaps the record before it opens: no other gateway could know of a higher epoch that the record does not name.
    fn has_epoch_for_succession(&self, record: &Record) -> bool {
        !self.safeguards.successor_epoch_from_record
            || self.next_own_epoch().is_some_and(|epoch| epoch.count() == record.epoch.count().saturating_add(1))
    }

    /// Opens as the designated successor, if this gateway is one and its time has not passed.
    pub(super) fn try_succession(&mut self, now: MonoNs) {
        let Some((record, leadership, successor)) = self.succession_due() else { return };
        let (candidates, lease_ns) = (record.candidates.clone(), record.lease_ns);
        let move_helped = self.follows_received_leader(record);
        self.used_stamp = Some(successor.stamp);
        let from = if self.safeguards.lease_from_successor_stamp { MonoNs(successor.stamp.0) } else { now };
        let deadline = self.config.timing.deadline_within(from, lease_ns);
        let Some(epoch) = self.next_own_epoch().filter(|_| (from..deadline).contains(&now)) else { return };
        let announced_end = self.announced_end.filter(|ended| ended.leadership == leadership);
        let is_automatic = announced_end.is_some_and(|ended| ended.is_automatic);
        self.move_helped = move_helped;
        self.open(now, epoch, deadline, candidates);
        if let Phase::Leading(leading) = &mut self.phase {
            leading.predecessor = Some(Predecessor { leadership, is_automatic });
        }
    }

    // ---- other candidates wait ----

    /// Until when the successor of an ended or released record may send. `None`: no successor may.
    pub(super) fn successor_window_ends_at(&self, record: &Record) -> Option<MonoNs> {
        let successor = record.successor.filter(|successor| !successor.is_same_start(&self.config.member))?;
        let is_dead =
            |notice: &DeathNotice| (notice.holder, notice.incarnation) == (successor.node, successor.incarnation);
        if self.deaths.iter().any(is_dead) || !self.safeguards.waits_for_successor {
            return None;
        }
        let wait_ns = self.config.timing.wait_for_ns(record.lease_ns);
        Some(self.known_record.successor_learned_at().plus(wait_ns))
    }
}
