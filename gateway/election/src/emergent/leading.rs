//! The coordinator as leader: epoch, fence, hand-over.

use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::{Emergent, Membership, Phase, Safeguard, joining::Joining, membership::MemberLiveness, message::Message};
use crate::{
    core::{CloseReason, Notice, Obstacle, Output},
    fitness::Eligibility,
    identity::{NodeId, next_epoch},
    timing::drift_ns,
};

/// A leadership: it lasts while the fence is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leadership {
    pub(super) epoch: Epoch,
    pub(super) deadline: MonoNs,
}

/// Turns of a side that may have a rival: two sides of a split whose output reaches the same receivers outrank each
/// other. A side that is outranked repeatedly lets the other lead for a while, longer each time up to a limit. Then it
/// leads for as long itself, whatever it observes. So receivers accept one side, not both in turns, and forged packets
/// close no side for more than half of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OutrankedTurns {
    /// How often the side let the other lead, in short succession.
    repeat_count: u32,
    last: MonoNs,
    /// The node does not lead before this time.
    until: MonoNs,
    /// Before this time the side leads on when it is outranked.
    keeps_until: MonoNs,
}

impl OutrankedTurns {
    fn record(&mut self, now: MonoNs, failure_ns: u64, doublings_max: u32) {
        if now.since(self.last) > 4 * (failure_ns << doublings_max) {
            self.repeat_count = 0;
        }
        // The first time costs no wait: a split may have healed, or one packet may have been forged.
        let wait_ns =
            self.repeat_count.checked_sub(1).map_or(0, |repeat_count| failure_ns << repeat_count.min(doublings_max));
        let until = now.plus(wait_ns);
        let repeat_count = self.repeat_count.saturating_add(1);
        *self = Self { repeat_count, last: now, until, keeps_until: until.plus(wait_ns) };
    }
}

/// A side lets another lead for 4 failure time-outs at most: 0.4 s with the default timing.
const DOUBLINGS_MAX: u32 = 2;
/// Without [`Safeguard::RaiseInPlace`]: 32 failure time-outs.
const DOUBLINGS_MAX_UNBOUNDED: u32 = 5;

impl Emergent {
    /// Opens, renews or closes the fence, as needed.
    pub(super) fn update_leadership(&mut self, now: MonoNs) {
        let deadline = self.fence_deadline(now);
        if !self.is_coordinator() || self.cannot_lead() {
            return self.close_fence(CloseReason::Lost);
        }
        let obstacle = self.find_obstacle();
        let is_clear = obstacle.is_none();
        self.set_obstacle(obstacle);
        match self.leadership {
            // Receivers drop our packets. The fence opens again below, at once unless another side may lead.
            Some(Leadership { epoch, .. }) if epoch < self.known_epoch => {
                let failure_ns = self.config.timing.failure_ns;
                if self.is_disabled(Safeguard::RaiseInPlace) {
                    self.outranked.record(now, failure_ns, DOUBLINGS_MAX_UNBOUNDED);
                } else if self.may_have_rival() && now >= self.outranked.keeps_until {
                    self.outranked.record(now, failure_ns, DOUBLINGS_MAX);
                }
                self.outputs.push(Output::Notice(Notice::HigherEpochObserved(self.known_epoch)));
                self.close_fence(CloseReason::Outranked);
            }
            Some(leadership) if is_clear && deadline > leadership.deadline => {
                self.leadership = Some(Leadership { deadline, ..leadership });
                self.outputs.push(Output::Renew { deadline });
            }
            _ => {}
        }
        if self.leadership.is_none() && is_clear && deadline > now && now >= self.outranked.until {
            let Some(epoch) = next_epoch(self.config.member.node, [self.known_epoch]) else {
                return self.set_obstacle(Some(Obstacle::EpochsExhausted));
            };
            self.known_epoch = epoch;
            self.leadership = Some(Leadership { epoch, deadline });
            self.outputs.push(Output::Open { epoch, deadline });
        }
    }

    /// Whether the highest known epoch may be that of another side's leader: enough members are missing here for a side
    /// of their own, and the epoch's node does not follow this one. Otherwise that epoch is forged, or of a leadership
    /// that has ended.
    fn may_have_rival(&self) -> bool {
        let Some(Membership { list, .. }) = self.membership() else { return false };
        let node = NodeId::of(self.known_epoch);
        list.failed().count() >= self.config.minimum_size && list.live().all(|listed| listed.member.node != node)
    }

    /// Closes an expired fence before anything else is decided.
    pub(super) fn close_if_expired(&mut self, now: MonoNs) {
        if self.leadership.is_some_and(|leadership| now >= leadership.deadline) {
            self.close_fence(CloseReason::Expired);
        }
    }

    pub(super) fn close_fence(&mut self, reason: CloseReason) {
        if let Some(Leadership { epoch, deadline }) = self.leadership.take() {
            if !self.is_disabled(Safeguard::EndAfterSends) {
                self.outstanding_sends.begin(deadline.plus(self.config.timing.margin_ns));
            }
            self.outputs.extend([Output::Close { epoch, reason }, Output::Drain]);
        }
    }

    /// Until when the fence may stay open: the sending time of the latest heartbeat that enough members echo for the
    /// minimum size, plus the failure time-out, less M. The sending time counts, since it is before any member's
    /// promise begins. If too few members ever echoed, the result is in the past.
    fn fence_deadline(&self, now: MonoNs) -> MonoNs {
        let timing = &self.config.timing;
        let Some(membership) = self.membership() else { return MonoNs(0) };
        let ring_ns = self.ring_ns_of(membership.list.live_count());
        let ring_drift_ns = 2 * drift_ns(ring_ns, timing.margin_rate_ppm());
        let open_ns = (timing.failure_ns + ring_ns).saturating_sub(timing.margin_ns + ring_drift_ns);
        let others_needed = match self.config.minimum_size.saturating_sub(1) {
            _ if self.is_disabled(Safeguard::MinimumSize) => 0,
            _ if self.is_disabled(Safeguard::HeartbeatDeadline)
                && membership.list.live_count() >= self.config.minimum_size =>
            {
                0
            }
            needed => needed,
        };
        let mut echoed: Vec<_> =
            membership.liveness.values().filter_map(|liveness| self.promised_since(liveness)).collect();
        echoed.sort_unstable_by(|a, b| b.cmp(a));
        let echoed_at = match others_needed.checked_sub(1) {
            // Without other members the leader renews at its own heartbeats, not at every step.
            None => Some(MonoNs(membership.heartbeat_at.0.saturating_sub(timing.heartbeat_ns))),
            // The leader counts as one of the members that promise, so it waits after its start as they do.
            Some(_) if self.is_in_startup_wait(now) => None,
            Some(last) => echoed.get(last).copied(),
        };
        echoed_at.map_or(MonoNs(0), |echoed_at| echoed_at.plus(open_ns))
    }

    fn promised_since(&self, liveness: &MemberLiveness) -> Option<MonoNs> {
        if self.is_disabled(Safeguard::RequireEcho) {
            return (liveness.beat.count > 0).then_some(liveness.at);
        }
        liveness.echoes
    }

    fn cannot_lead(&self) -> bool {
        let is_ending = |membership: &Membership| membership.yielding.is_some() || membership.is_leaving;
        self.is_closing || self.membership().is_none_or(is_ending)
    }

    pub(super) fn find_obstacle(&self) -> Option<Obstacle> {
        if self.eligibility == Eligibility::Joining {
            Some(Obstacle::Joining)
        } else {
            let of_clock = || Obstacle::of_clock(self.clock_rate, self.config.timing.rate_error_ppm);
            self.progress.obstacle().or_else(of_clock)
        }
    }

    /// Hands leadership to the next in age, by leaving and rejoining as the youngest.
    pub(super) fn hand_over(&mut self, target: Option<NodeId>) {
        let next = self.membership().and_then(|membership| membership.list.live().nth(1));
        let next = next.map(|listed| listed.member.node);
        let failed = |target, why| Output::Notice(Notice::HandOverFailed { target, why });
        match (self.leadership, next) {
            (Some(_), Some(next)) if target.is_none_or(|target| target == next) => {
                self.close_fence(CloseReason::HandedOver);
                if let Some(membership) = self.membership_mut() {
                    membership.is_leaving = true;
                }
            }
            (Some(_), Some(_)) => self.outputs.push(failed(target, "leadership can only go to the next oldest member")),
            (Some(_), None) => self.outputs.push(failed(target, "no other live member")),
            (None, _) => self.outputs.push(failed(target, "this gateway is not the leader")),
        }
    }

    /// No send is outstanding any more: sends the others the messages that waited for that.
    pub(super) fn drained(&mut self, now: MonoNs) {
        self.outstanding_sends.end();
        if self.is_closing {
            return self.close(now);
        }
        self.send_yielding_join();
        let Some(Membership { is_leaving: true, list, .. }) = self.membership() else { return };
        let next = list.live().nth(1).map(|listed| (listed.address, listed.member.incarnation));
        if let Some((next, incarnation)) = next {
            self.send(next, Some(incarnation), Message::Ended { epoch: self.known_epoch });
        }
        self.leave(now);
        if let Some((next, _)) = next {
            self.phase = Phase::Joining(Joining::through(next));
        } else if let Some(membership) = self.membership_mut() {
            membership.is_leaving = false;
        }
    }

    /// The promises of the others have ended before the sends of this node: there is nothing to report to them any more.
    pub(super) fn stop_awaiting_sends(&mut self, now: MonoNs) {
        if !self.outstanding_sends.outlast_lease(now) {
            return;
        }
        self.outstanding_sends.end();
        if self.is_closing {
            self.phase = Phase::Closed;
        } else if let Some(membership) = self.membership_mut() {
            membership.yielding = None;
            if std::mem::take(&mut membership.is_leaving) {
                let why = "its sends did not end in time";
                self.outputs.push(Output::Notice(Notice::HandOverFailed { target: None, why }));
            }
        }
    }

    /// Notifies the others that this node is off the list, so that they need not wait for its silence.
    pub(super) fn leave(&mut self, now: MonoNs) {
        let ours = self.config.member.node;
        let is_coordinator = self.is_coordinator();
        let Some(membership) = self.membership_mut() else { return };
        if !is_coordinator {
            let coordinator = membership.list.coordinator();
            if let Some((address, incarnation)) = coordinator.map(|listed| (listed.address, listed.member.incarnation))
            {
                self.send(address, Some(incarnation), Message::Leave);
            }
            return;
        }
        if membership.list.live_count() > 1 {
            membership.list.remove(ours, ours);
            membership.forget_unlisted(now, ours);
            self.publish_list(now);
        }
    }
}
