//! The joining gateway: asks the seeds, with growing pauses, until a member answers.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
};

use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::{
    BootstrapMode, Emergent, Membership, Phase, member_list::MemberList, membership::MemberLiveness, message::Message,
};
use crate::core::{CloseReason, ConnectionState, Obstacle};

/// An attempt to join.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Joining {
    attempts: u32,
    nonce: u64,
    /// A coordinator that a redirect named, asked besides the seeds.
    coordinator: Option<SocketAddr>,
    next_at: MonoNs,
}

impl Joining {
    /// A first attempt, due at once, that asks the seeds.
    pub(super) fn new() -> Self {
        Self { attempts: 0, nonce: 0, coordinator: None, next_at: MonoNs(0) }
    }

    /// A first attempt, due at once, that asks this coordinator besides the seeds.
    pub(super) fn through(coordinator: SocketAddr) -> Self {
        Self { coordinator: Some(coordinator), ..Self::new() }
    }

    /// Asks that coordinator too, at once, unless it is asked already.
    pub(super) fn ask_also(&mut self, now: MonoNs, coordinator: SocketAddr) {
        if self.coordinator != Some(coordinator) {
            self.coordinator = Some(coordinator);
            self.next_at = now;
        }
    }

    pub(super) fn next_at(&self) -> MonoNs {
        self.next_at
    }
}

impl Emergent {
    pub(super) fn continue_joining(&mut self, now: MonoNs) {
        let Phase::Joining(joining) = &self.phase else { return };
        // With this node the others may be enough to lead, so its own sends end first.
        if now < joining.next_at || self.outstanding_sends.may_exist() {
            return;
        }
        let (attempts, coordinator) = (joining.attempts, joining.coordinator);
        if attempts >= self.config.join_attempts && self.config.bootstrap == BootstrapMode::Bootstrap {
            let list = MemberList::bootstrapped(self.config.member.clone(), self.config.address);
            return self.become_member(now, list);
        }
        // The gateway that bootstraps does so after its attempts, and may have started with this one. Its pauses are at most
        // a half longer than this gateway's.
        if attempts >= self.config.join_attempts.saturating_mul(2) {
            self.connect(ConnectionState::Lost);
            self.set_obstacle(Some(Obstacle::NoMember));
        }
        let others = self.config.seeds.iter().filter(|seed| **seed != self.config.address);
        let recipients: Vec<_> = coordinator.into_iter().chain(others.copied()).collect();
        // Message numbers are never used twice, so a number serves as a nonce.
        let nonce = self.sent_count + 1;
        let pause_ns = self.pause_ns(attempts, nonce);
        let next_at = now.plus(pause_ns);
        self.phase = Phase::Joining(Joining { attempts: attempts.saturating_add(1), nonce, coordinator, next_at });
        for seed in recipients {
            self.send(seed, None, Message::Join { nonce });
        }
    }

    /// Pause before the next attempt, ns: doubles with each attempt, up to a limit. A pseudo-random part of up to a
    /// half is added, so that nodes that started together do not ask together.
    fn pause_ns(&self, attempts: u32, nonce: u64) -> u64 {
        let timing = &self.config.timing;
        let doubled_ns = timing.pause_ns.saturating_mul(1 << attempts.min(20));
        let pause_ns = doubled_ns.min(timing.pause_ns_max);
        let member = &self.config.member;
        let seed = u64::from(member.node.0) << 56 ^ member.incarnation.0 << 24 ^ nonce;
        pause_ns + mix_bits(seed) % (pause_ns / 2 + 1)
    }

    pub(super) fn on_redirect(&mut self, now: MonoNs, nonce: u64, coordinator: SocketAddr) {
        if let Phase::Joining(joining) = &mut self.phase
            && joining.nonce == nonce
        {
            joining.ask_also(now, coordinator);
        }
    }

    pub(super) fn on_join_accepted(&mut self, now: MonoNs, nonce: u64, list: MemberList, epoch: Epoch) {
        if !list.is_consistent() || list.find_live(&self.config.member).is_none() {
            return;
        }
        let is_awaited = match &self.phase {
            Phase::Joining(joining) => joining.nonce == nonce,
            Phase::Member(membership) => membership.yielding.as_ref().is_some_and(|yielding| yielding.nonce == nonce),
            Phase::Closed => false,
        };
        if !is_awaited {
            return;
        }
        self.observe_epoch(epoch);
        self.send_dissolve();
        self.become_member(now, list);
    }

    pub(super) fn become_member(&mut self, now: MonoNs, list: MemberList) {
        let liveness = list
            .live()
            .filter(|listed| listed.member != self.config.member)
            .map(|listed| (listed.member.node, MemberLiveness::not_yet_received(listed.member.node, list.version, now)))
            .collect();
        self.phase = Phase::Member(Box::new(Membership {
            live_count_max: list.live_count(),
            list,
            liveness,
            sent_heartbeats: VecDeque::new(),
            heartbeat_at: now,
            probe_at: now.plus(self.config.timing.probe_ns),
            reply_requested_by: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
            pending: Vec::new(),
            answered_joins: BTreeMap::new(),
            yielding: None,
            is_leaving: false,
        }));
        self.set_obstacle(None);
        let is_first = matches!(self.connection, ConnectionState::Starting | ConnectionState::Connected);
        self.connect(if is_first { ConnectionState::Connected } else { ConnectionState::Reconnected });
    }

    /// Joins again, since this node is off the list. Knowledge from the old membership is void.
    pub(super) fn rejoin(&mut self, coordinator: SocketAddr) {
        self.close_fence(CloseReason::Lost);
        // As a rule the coordinator answers at once. If no member does, the connection is lost.
        self.connect(ConnectionState::Suspended);
        self.phase = Phase::Joining(Joining::through(coordinator));
    }

    /// Redirects our followers to the side that we join.
    fn send_dissolve(&mut self) {
        let Some(Membership { list, yielding: Some(yielding), .. }) = self.membership() else { return };
        let winner = yielding.to;
        let followers: Vec<_> = list
            .live()
            .filter(|listed| listed.member != self.config.member)
            .map(|listed| (listed.address, listed.member.incarnation))
            .collect();
        for (address, incarnation) in followers {
            self.send(address, Some(incarnation), Message::Dissolve { winner });
        }
    }
}

/// Spreads a number over all of 64 bits (the finaliser of SplitMix64).
fn mix_bits(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
