//! The candidate: its wait, its obstacles, and its takeover.

use std::collections::BTreeMap;

use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::{DEATHS_MAX, Leadership, Lease, Leaving, Phase};
use crate::{
    core::{CloseReason, Obstacle, Output},
    fitness::{Eligibility, FitnessClass},
    identity::{DeathNotice, NodeId, NodeName},
    peer::{LeaderRequest, PeerMessage},
    record::{CONFIG_MISMATCH_WAIT_LEASES, ConfigVersion, PeerTimestamp, Record},
};

impl Lease {
    /// Updates the obstacle, and takes over at once where this gateway is the successor of a leadership that has ended.
    pub(super) fn step_candidate(&mut self, now: MonoNs) {
        if matches!(self.phase, Phase::Candidate) {
            let obstacle = self.find_obstacle();
            self.set_obstacle(obstacle);
            self.try_succession(now);
        }
    }

    /// The record that makes this gateway the holder, if its wait is over.
    pub(super) fn record_to_acquire(&mut self, now: MonoNs) -> Option<Record> {
        if self.is_closing {
            return self.record_to_release().map(Record::released);
        }
        if self.acquire_at().is_none_or(|at| now < at) {
            return None;
        }
        let Some(epoch) = self.next_own_epoch() else {
            self.set_obstacle(Some(Obstacle::EpochsExhausted));
            return None;
        };
        // After its own leadership, this gateway knows already whether the last move helped.
        let record = self.known_record.record().filter(|record| !record.is_held_by(&self.config.member));
        if let Some(record) = record {
            self.move_helped = self.follows_received_leader(record);
        }
        Some(self.own_record(now, epoch))
    }

    /// The record that a closing gateway still holds and is to release: its leadership had expired, or an attempt took
    /// effect after all. Another gateway begins at once when it reads a released record, so no send may be outstanding.
    pub(super) fn record_to_release(&self) -> Option<&Record> {
        let may_release = !self.outstanding_sends.may_exist() && !self.keeps_record;
        self.known_record.record().filter(|record| may_release && record.is_held_by(&self.config.member))
    }

    /// Whether the end of outstanding sends, or of the lease before, changes what this gateway does.
    pub(super) fn awaits_sends(&self) -> bool {
        self.is_closing && !self.keeps_record || matches!(self.phase, Phase::Leaving(Leaving { is_drained: false, .. }))
    }

    /// The record under which this gateway leads with `epoch`.
    pub(super) fn own_record(&self, now: MonoNs, epoch: Epoch) -> Record {
        let before = self.known_record.record();
        Record {
            epoch,
            holder: Some(self.config.member.clone()),
            renewal: 0,
            lease_ns: self.config.timing.lease_ns,
            fitness: self.fitness,
            candidates: self.next_candidates(before),
            successor: self.current_successor(now),
            automatic_moves: before.map_or(0, |before| before.automatic_moves),
            pinned: before.is_some_and(|before| before.pinned),
            configuration: self.config.configuration,
        }
    }

    /// The candidates that the next record names. A newer configuration replaces the list; otherwise the named
    /// candidates stay.
    fn next_candidates(&self, before: Option<&Record>) -> BTreeMap<NodeId, NodeName> {
        let mut candidates = match before {
            Some(before) if before.configuration.revision >= self.config.configuration.revision => {
                before.candidates.clone()
            }
            Some(_) | None => BTreeMap::new(),
        };
        candidates.extend(self.config.candidates.clone());
        candidates.extend(self.admitted.clone());
        candidates.insert(self.node(), self.config.member.name.clone());
        candidates
    }

    /// When this gateway may take over, if nothing changes before. `None`: not before a change.
    pub(super) fn acquire_at(&self) -> Option<MonoNs> {
        if self.is_closing || !self.known_record.is_read() || self.has_lasting_obstacle() {
            return None;
        }
        let timing = &self.config.timing;
        let (learned_at, followed_since) = (self.known_record.learned_at(), self.known_record.followed_since());
        let due = match self.known_record.record() {
            None => learned_at.plus(timing.wait_ns()),
            Some(record) => {
                let wait_ns = timing.wait_for_ns(record.lease_ns);
                // The wait of a gateway that knows that the record has no holder: it has followed the record for one
                // lease.
                let at_once = || {
                    followed_since
                        .plus(wait_ns)
                        .max(learned_at)
                        .max(self.successor_window_ends_at(record).unwrap_or_default())
                };
                if self.incompatible_config(record).is_some() {
                    learned_at.plus(wait_ns.saturating_mul(CONFIG_MISMATCH_WAIT_LEASES))
                } else if record.holder.is_none() {
                    at_once()
                } else if self.is_dead(record) {
                    // A candidate's turn counts from when it received the death notice.
                    at_once().max(self.death_received_at)
                } else {
                    learned_at.plus(wait_ns)
                }
            }
        };
        let due = due.plus(self.rank().saturating_mul(timing.renew_ns / 2));
        Some(self.given_promise.as_ref().map_or(due, |given_promise| due.max(given_promise.until)))
    }

    /// Whether an obstacle exists that waiting does not remove.
    fn has_lasting_obstacle(&self) -> bool {
        !matches!(self.find_obstacle(), None | Some(Obstacle::Promised | Obstacle::Configuration { .. }))
    }

    /// Whether this gateway could take over once its wait is over.
    pub(super) fn could_lead(&self) -> bool {
        !self.is_closing && matches!(self.find_obstacle(), None | Some(Obstacle::Promised))
    }

    pub(super) fn find_obstacle(&self) -> Option<Obstacle> {
        if let Some(why) = &self.foreign_record {
            return Some(Obstacle::ForeignRecord(why.clone()));
        }
        if self.eligibility == Eligibility::Joining {
            return Some(Obstacle::Joining);
        }
        if let Some(obstacle) = self.local_obstacle() {
            return Some(obstacle);
        }
        let record = self.known_record.record()?;
        let node = self.node();
        if record.candidates.get(&node) != Some(&self.config.member.name) && !self.admitted.contains_key(&node) {
            return Some(Obstacle::NotAdmitted);
        }
        if let Some(expected) = self.incompatible_config(record) {
            return Some(Obstacle::Configuration { expected, ours: self.config.configuration });
        }
        self.given_promise.as_ref().map(|_| Obstacle::Promised)
    }

    /// The obstacle that keeps this gateway from being eligible and from renewing.
    pub(super) fn local_obstacle(&self) -> Option<Obstacle> {
        let of_clock = Obstacle::of_clock(self.clock_rate, self.config.timing.rate_error_ppm);
        of_clock.or_else(|| self.progress.obstacle())
    }

    /// The record's configuration, if this gateway would publish different output under the same or an older revision.
    fn incompatible_config(&self, record: &Record) -> Option<ConfigVersion> {
        let expected = record.configuration;
        (!self.config.configuration.may_succeed(&expected)).then_some(expected)
    }

    /// How many other candidates go first: the known eligible ones that are fitter, or as fit and either the preferred
    /// successor or of a lower number. The rank decides which gateway tries first, never which one may lead.
    fn rank(&self) -> u64 {
        let record = self.known_record.record();
        let holder = record.and_then(|record| record.holder.as_ref()).map(|holder| holder.node);
        let is_candidate = |node: &NodeId| record.is_none_or(|record| record.candidates.contains_key(node));
        let preferred_successor = self.placement.preferred_successor.or(self.config.preferred);
        let placement =
            |node: NodeId, class: FitnessClass| (std::cmp::Reverse(class), preferred_successor != Some(node), node);
        let own = placement(self.node(), self.fitness.class());
        let before = self.peers.iter().filter(|(node, peer)| {
            let is_recent = self.known_record.learned_at() <= peer.received_at.plus(self.config.timing.lease_ns);
            let is_eligible = peer.state.eligibility == Eligibility::Eligible
                && is_recent
                && is_candidate(node)
                && Some(**node) != holder;
            is_eligible && placement(**node, peer.state.fitness.class()) < own
        });
        u64::try_from(before.count()).unwrap_or(u64::MAX)
    }

    /// Opens the fence.
    pub(super) fn open(&mut self, now: MonoNs, epoch: Epoch, deadline: MonoNs, candidates: BTreeMap<NodeId, NodeName>) {
        self.highest_opened = epoch;
        self.given_promise = None;
        self.set_obstacle(None);
        self.phase = Phase::Leading(Leadership::new(now, epoch, deadline, candidates));
        self.emit(Output::Open { epoch, deadline });
        self.fail_unconfirmed_hand_over();
    }

    // ---- deaths ----

    pub(super) fn on_death(&mut self, now: MonoNs, notice: DeathNotice) {
        let own = &self.config.member;
        if (notice.holder, notice.incarnation) == (own.node, own.incarnation) {
            // Other gateways act on the notice even if it is wrong, so this gateway acts on it too.
            self.is_declared_dead = true;
            if matches!(self.phase, Phase::Leading(_)) && self.leading_epoch() == Some(notice.epoch) {
                self.end_leadership(now, CloseReason::Lost);
            }
            return;
        }
        self.peers.retain(|node, peer| (*node, peer.state.member.incarnation) != (notice.holder, notice.incarnation));
        if !self.deaths.contains(&notice) {
            if self.deaths.len() == DEATHS_MAX {
                self.deaths.remove(0);
            }
            self.deaths.push(notice);
            self.death_received_at = now;
        }
        self.given_promise.take_if(|given_promise| given_promise.request.concerns(&notice));
    }

    pub(super) fn is_dead(&self, record: &Record) -> bool {
        record.leadership_id().is_some_and(|leadership| self.deaths.contains(&leadership))
    }

    // ---- handed over to this gateway ----

    pub(super) fn on_prepare(&mut self, now: MonoNs, from: NodeId, request: LeaderRequest) {
        if from != request.requester {
            return;
        }
        let is_from_leader =
            self.known_record.record().is_some_and(|record| record.leadership_id() == Some(request.leadership_id()));
        let is_ready = is_from_leader
            && !self.is_closing
            && !self.has_lasting_obstacle()
            && matches!(self.phase, Phase::Candidate)
            && self.pending.attempts.is_empty();
        let message = if is_ready {
            PeerMessage::Prepared { request, stamp: PeerTimestamp(now.0) }
        } else {
            PeerMessage::PrepareRefused(request)
        };
        self.emit(Output::Peer { to: from, message });
    }

    // ---- this gateway is not a candidate ----

    /// Asks the holder for admission, whenever the holder shows a sign of life.
    pub(super) fn ask_to_be_admitted(&mut self) {
        let Some(record) = self.known_record.record() else { return };
        let Some(holder) = record.holder.as_ref().map(|holder| holder.node) else { return };
        if record.candidates.contains_key(&self.node()) || self.is_closing {
            return;
        }
        let message =
            PeerMessage::AdmitRequest { member: self.config.member.clone(), configuration: self.config.configuration };
        self.emit(Output::Peer { to: holder, message });
    }
}
