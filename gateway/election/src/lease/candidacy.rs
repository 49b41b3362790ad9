//! A candidate: what it waits for, what stands in its way, and how it takes over.

use std::collections::BTreeMap;

use mdgw_feeds::{identity::Epoch, time::MonoNs};

use super::{DEATHS_MAX, Leadership, Lease, Phase};
use crate::{
    core::{CloseReason, Obstacle, Output, Progress},
    fitness::{FitnessClass, Standing},
    identity::{DeathNotice, NodeId, NodeName},
    peer::{PeerMessage, Question},
    record::{ConfigurationMark, DIFFERENCE_PATIENCE_LEASES, PeerStamp, Record},
};

impl Lease {
    /// What stands in its way now; and nothing does for the heir of a leadership that has ended.
    pub(super) fn candidate_turn(&mut self, now: MonoNs) {
        if matches!(self.phase, Phase::Candidate) {
            let obstacle = self.find_obstacle();
            self.set_obstacle(obstacle);
            self.inherit(now);
        }
    }

    /// The record that makes this gateway the holder, if its time has come.
    pub(super) fn record_to_acquire(&mut self, now: MonoNs) -> Option<Record> {
        if self.closing {
            // Whoever sees it given back begins at once.
            let record = self.record_to_give_back()?;
            return (now >= self.sends_end).then(|| record.released());
        }
        if self.acquire_at().is_none_or(|at| now < at) {
            return None;
        }
        let Some(epoch) = self.next_own_epoch() else {
            self.set_obstacle(Some(Obstacle::EpochsUsedUp));
            return None;
        };
        Some(self.record_of_own(now, epoch))
    }

    /// The record that a gateway which closes still holds: its leadership had run out, or an attempt took effect after all.
    pub(super) fn record_to_give_back(&self) -> Option<&Record> {
        self.knowledge.record().filter(|record| record.is_held_by(&self.config.member))
    }

    /// The record under which this gateway leads with `epoch`.
    pub(super) fn record_of_own(&self, now: MonoNs, epoch: Epoch) -> Record {
        let before = self.knowledge.record();
        Record {
            epoch,
            holder: Some(self.config.member.clone()),
            renewal: 0,
            lease_ns: self.config.timing.lease_ns,
            fitness: self.fitness,
            candidates: self.candidates_after(before),
            heir: self.named_heir(now),
            moves: before.map_or(0, |before| before.moves),
            pinned: before.is_some_and(|before| before.pinned),
            configuration: self.config.configuration,
        }
    }

    /// Who may stand from now on. A newer configuration says it anew; else whoever was named stays named.
    fn candidates_after(&self, before: Option<&Record>) -> BTreeMap<NodeId, NodeName> {
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

    /// When this gateway may take over, if nothing changes before. `None`: not before something changes.
    pub(super) fn acquire_at(&self) -> Option<MonoNs> {
        if self.closing || !self.knowledge.is_read() || self.hinders() {
            return None;
        }
        let timing = &self.config.timing;
        let (learned, settled) = (self.knowledge.learned(), self.knowledge.settled_from());
        let due = match self.knowledge.record() {
            None => learned.plus(timing.wait_ns()),
            Some(record) => {
                let wait_ns = timing.wait_for_ns(record.lease_ns);
                // Of who knows that nobody holds it.
                let at_once = || settled.plus(wait_ns).max(learned).max(self.heir_ends(record).unwrap_or_default());
                if self.differs_from(record).is_some() {
                    learned.plus(wait_ns.saturating_mul(DIFFERENCE_PATIENCE_LEASES))
                } else if record.holder.is_none() {
                    at_once()
                } else if self.is_dead(record) {
                    // Who tries first is reckoned from the news.
                    at_once().max(self.death_heard)
                } else {
                    learned.plus(wait_ns)
                }
            }
        };
        let due = due.plus(self.rank().saturating_mul(timing.renew_ns / 2));
        Some(self.promised.as_ref().map_or(due, |promised| due.max(promised.until)))
    }

    /// Whether something stands in the way that time alone doesn't remove.
    fn hinders(&self) -> bool {
        !matches!(self.find_obstacle(), None | Some(Obstacle::Promised | Obstacle::Configuration { .. }))
    }

    /// Whether it could take over, were its time there.
    pub(super) fn could_lead(&self) -> bool {
        !self.closing && matches!(self.find_obstacle(), None | Some(Obstacle::Promised))
    }

    pub(super) fn find_obstacle(&self) -> Option<Obstacle> {
        if let Some(why) = &self.foreign {
            return Some(Obstacle::ForeignRecord(why.clone()));
        }
        if self.standing == Standing::Joins {
            return Some(Obstacle::Joining);
        }
        if let Some(obstacle) = self.own_obstacle() {
            return Some(obstacle);
        }
        let record = self.knowledge.record()?;
        let node = self.node();
        if record.candidates.get(&node) != Some(&self.config.member.name) && !self.admitted.contains_key(&node) {
            return Some(Obstacle::NotAdmitted);
        }
        if let Some(theirs) = self.differs_from(record) {
            return Some(Obstacle::Configuration { theirs, ours: self.config.configuration });
        }
        self.promised.as_ref().map(|_| Obstacle::Promised)
    }

    /// What keeps this gateway from standing and from renewing.
    pub(super) fn own_obstacle(&self) -> Option<Obstacle> {
        let (error_ppm, error_ppm_max) = (self.clock_error_ppm, self.config.timing.rate_error_ppm);
        if error_ppm > error_ppm_max {
            return Some(Obstacle::ClockRate { error_ppm, error_ppm_max });
        }
        (self.progress == Progress::Stuck).then_some(Obstacle::NoProgress)
    }

    /// The record's configuration, if this gateway would publish something else under the same or an older revision.
    fn differs_from(&self, record: &Record) -> Option<ConfigurationMark> {
        let theirs = record.configuration;
        (!self.config.configuration.may_follow(&theirs)).then_some(theirs)
    }

    /// How many of the others are to be let first: those known to stand that are fitter, or as fit and meant to follow or
    /// of a lower number. It decides who tries first, never who may.
    fn rank(&self) -> u64 {
        let record = self.knowledge.record();
        let holder = record.and_then(|record| record.holder.as_ref()).map(|holder| holder.node);
        let named = |node: &NodeId| record.is_none_or(|record| record.candidates.contains_key(node));
        let successor = self.place.successor.or(self.config.preferred);
        let place = |node: NodeId, class: FitnessClass| (std::cmp::Reverse(class), successor != Some(node), node);
        let own = place(self.node(), self.fitness.class());
        let before = self.peers.iter().filter(|(node, peer)| {
            let is_recent = self.knowledge.learned() <= peer.heard_at.plus(self.config.timing.lease_ns);
            let stands = peer.state.standing == Standing::Stands && is_recent && named(node) && Some(**node) != holder;
            stands && place(**node, peer.state.fitness.class()) < own
        });
        u64::try_from(before.count()).unwrap_or(u64::MAX)
    }

    /// The fence opens.
    pub(super) fn open(&mut self, now: MonoNs, epoch: Epoch, deadline: MonoNs, named: BTreeMap<NodeId, NodeName>) {
        self.opened = epoch;
        self.promised = None;
        self.set_obstacle(None);
        self.phase = Phase::Leading(Leadership::new(now, epoch, deadline, named));
        self.say(Output::Open { epoch, deadline });
    }

    // ---- deaths ----

    pub(super) fn on_death(&mut self, now: MonoNs, notice: DeathNotice) {
        let own = &self.config.member;
        if (notice.holder, notice.incarnation) == (own.node, own.incarnation) {
            // Others act on it, whether it is true or not.
            self.is_told_dead = true;
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
            self.death_heard = now;
        }
        self.promised.take_if(|promised| promised.question.is_of(&notice));
    }

    pub(super) fn is_dead(&self, record: &Record) -> bool {
        record.leadership().is_some_and(|leadership| self.deaths.contains(&leadership))
    }

    // ---- handed over to this gateway ----

    pub(super) fn on_prepare(&mut self, now: MonoNs, from: NodeId, question: Question) {
        if from != question.asker {
            return;
        }
        let is_leaders =
            self.knowledge.record().is_some_and(|record| record.leadership() == Some(question.leadership()));
        let is_ready = is_leaders
            && !self.closing
            && !self.hinders()
            && matches!(self.phase, Phase::Candidate)
            && self.asked.attempts.is_empty();
        let message = if is_ready {
            PeerMessage::Prepared { question, stamp: PeerStamp(now.0) }
        } else {
            PeerMessage::PrepareRefused(question)
        };
        self.say(Output::Peer { to: from, message });
    }

    // ---- not named ----

    /// Asks the holder to be named, at each sign of life from it.
    pub(super) fn ask_to_be_admitted(&mut self) {
        let Some(record) = self.knowledge.record() else { return };
        let Some(holder) = record.holder.as_ref().map(|holder| holder.node) else { return };
        if record.candidates.contains_key(&self.node()) || self.closing {
            return;
        }
        let message =
            PeerMessage::AdmitAsk { member: self.config.member.clone(), configuration: self.config.configuration };
        self.say(Output::Peer { to: holder, message });
    }
}
