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
    record::{Heir, Record},
};

/// Named in this gateway's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Named {
    pub(super) heir: Heir,
    /// No record may name another before, or none.
    until: MonoNs,
}

/// The leadership that one came from which the record does not show yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CameFrom {
    leadership: DeathNotice,
    /// It had moved by itself.
    pub(super) is_automatic: bool,
}

impl CameFrom {
    /// Whether the record still shows the leadership before, which may have been released meanwhile.
    pub(super) fn is_shown_by(self, record: &Record) -> bool {
        let DeathNotice { holder, incarnation, epoch } = self.leadership;
        let is_its = |member: &Member| (member.node, member.incarnation) == (holder, incarnation);
        record.epoch == epoch && record.holder.as_ref().is_none_or(is_its)
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
    pub(super) fn choose_heir(&mut self, now: MonoNs) {
        let Some(heir) = self.wanted_heir(now) else { return };
        let before = self.named_heir(now);
        let is_free = before.is_none_or(|before| (before.node, before.incarnation) == (heir.node, heir.incarnation));
        if before != Some(heir) && (is_free || !self.safeguards.heir_stays) {
            self.named = Some(Named { heir, until: now.plus(self.config.timing.wait_ns()) });
        }
    }

    /// The one named before, while its time is not over.
    pub(super) fn named_heir(&self, now: MonoNs) -> Option<Heir> {
        self.named.filter(|named| now < named.until).map(|named| named.heir)
    }

    /// Whether more than half of its time is left to the heir that was named last.
    pub(super) fn is_freshly_named(&self, now: MonoNs) -> bool {
        let half_ns = self.config.timing.wait_ns() / 2;
        self.named.is_some_and(|named| now.plus(half_ns) < named.until)
    }

    /// What was waited until now on a clock that ran too fast was no wait.
    pub(super) fn wait_for_heirs_again(&mut self, now: MonoNs) {
        let until = now.plus(self.config.timing.wait_ns());
        if let Some(named) = &mut self.named {
            named.until = until;
        }
        self.knowledge.wait_for_heir_again(now);
    }

    /// Whom the lead is being handed to; else of those that could lead the fittest, and of these the one meant to follow.
    fn wanted_heir(&self, now: MonoNs) -> Option<Heir> {
        let Phase::Leading(leadership) = &self.phase else { return None };
        let target = leadership.offer.as_ref().filter(|offer| offer.accepted.is_some()).map(|offer| offer.target.node);
        let successor = self.place.successor.or(self.config.preferred);
        let able = self.peers.iter().filter(|(node, _)| self.can_take_over(**node, now));
        let (node, peer) = able.max_by_key(|(node, peer)| {
            let class = peer.state.fitness.class();
            (target == Some(**node), class, successor == Some(**node), std::cmp::Reverse(**node))
        })?;
        Some(Heir { node: *node, incarnation: peer.state.member.incarnation, stamp: peer.state.stamp })
    }

    // ---- an heir goes on ----

    /// The holder says that its leadership is over.
    pub(super) fn on_ended(&mut self, from: NodeId, ended: Ended, positions: BTreeMap<u16, StreamPosition>) {
        let Ended { leadership, .. } = ended;
        let is_newer = self.ended.is_none_or(|before| before.leadership.epoch < leadership.epoch);
        if from == leadership.holder && is_newer {
            self.promised.take_if(|promised| promised.question.is_of(&leadership));
            self.ended = Some(ended);
            self.say(Output::OthersEnded { epoch: leadership.epoch, positions });
        }
    }

    /// Whether its holder has said that it is over.
    pub(super) fn has_said_its_end(&self, leadership: DeathNotice) -> bool {
        self.ended.is_some_and(|ended| ended.leadership == leadership)
    }

    /// The record of a leadership that has ended, and this gateway its heir, who has not tried yet to go on.
    pub(super) fn inheritance(&self) -> Option<(&Record, DeathNotice, Heir)> {
        let record = self.knowledge.record()?;
        let leadership = record.leadership()?;
        let heir = record.heir.filter(|heir| heir.is(&self.config.member))?;
        let may_open = (self.is_dead(record) || self.has_said_its_end(leadership))
            && matches!(self.phase, Phase::Candidate)
            && !self.closing
            && !self.is_told_dead
            // Once from one leadership, though its record may come back with a store that is restored.
            && self.opened < leadership.epoch
            && self.tried_stamp.is_none_or(|tried| tried < heir.stamp)
            && self.find_obstacle().is_none();
        may_open.then_some((record, leadership, heir))
    }

    /// Opens as the heir, if it is and its time is not over.
    pub(super) fn inherit(&mut self, now: MonoNs) {
        let Some((record, leadership, heir)) = self.inheritance() else { return };
        let (named, lease_ns) = (record.candidates.clone(), record.lease_ns);
        self.tried_stamp = Some(heir.stamp);
        let from = if self.safeguards.heirs_stamp { MonoNs(heir.stamp.0) } else { now };
        let deadline = self.config.timing.deadline_within(from, lease_ns);
        let Some(epoch) = self.next_own_epoch().filter(|_| (from..deadline).contains(&now)) else { return };
        let is_automatic = self.ended.is_some_and(|ended| ended.leadership == leadership && ended.is_automatic);
        self.open(now, epoch, deadline, named);
        if let Phase::Leading(leading) = &mut self.phase {
            leading.came_from = Some(CameFrom { leadership, is_automatic });
        }
    }

    // ---- the others wait ----

    /// Until when the heir of the record may send that has no holder, or whose holder has ended. `None`: nobody may.
    pub(super) fn heir_ends(&self, record: &Record) -> Option<MonoNs> {
        let heir = record.heir.filter(|heir| !heir.is(&self.config.member))?;
        let is_dead = |notice: &DeathNotice| (notice.holder, notice.incarnation) == (heir.node, heir.incarnation);
        if self.deaths.iter().any(is_dead) || !self.safeguards.heir_waited_for {
            return None;
        }
        let wait_ns = self.config.timing.wait_for_ns(record.lease_ns);
        Some(self.knowledge.heir_learned().plus(wait_ns))
    }
}
