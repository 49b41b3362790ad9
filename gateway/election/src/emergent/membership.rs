//! The member: sends heartbeats, detects silence, follows the list, and claims when all older members are silent.

use std::net::SocketAddr;

use mdgw_wire::time::MonoNs;

use super::{
    Emergent, Membership, Safeguard,
    member_list::{ListVersion, ListedMember, MemberList},
    message::{BeatInfo, Heartbeat, Message},
};
use crate::identity::{Member, NodeId};

/// The newest knowledge about another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MemberLiveness {
    /// Its last heartbeat; count 0 before the first.
    pub(super) beat: BeatInfo,
    /// When that heartbeat was received; before the first one, when the silence began to count.
    pub(super) at: MonoNs,
    /// When we sent the heartbeat that it echoes, if it has our list: its promise to us runs since then.
    pub(super) echoes: Option<MonoNs>,
}

impl MemberLiveness {
    /// A member of which nothing was received yet; its silence counts from `now`.
    pub(super) fn not_yet_received(node: NodeId, version: ListVersion, now: MonoNs) -> Self {
        Self { beat: BeatInfo { node, count: 0, version, follows: node, echo: 0 }, at: now, echoes: None }
    }
}

/// Up to this number of live members, each member sends heartbeats to all others. With more, heartbeats go along a
/// ring.
pub(super) const ALL_TO_ALL_MAX: usize = 8;
/// In a ring, each member sends to this number of next members, so that one silent member does not cut the ring.
const RING_SUCCESSORS: usize = 2;

impl Emergent {
    /// Sends heartbeats when they are due.
    pub(super) fn send_heartbeats(&mut self, now: MonoNs) {
        let is_coordinator = self.is_coordinator();
        // A coordinator without enough promises asks all members at once, without waiting for their turns.
        let wants_promises = is_coordinator && self.leadership.is_none() && self.config.minimum_size > 1;
        let is_in_startup_wait = self.is_in_startup_wait(now);
        let (heartbeat_ns, known_epoch) = (self.config.timing.heartbeat_ns, self.known_epoch);
        let doubt_ns = self.config.timing.failure_ns / 2;
        let ours = self.config.member.clone();
        let silence_ns = self.silence_ns();
        // Grows with each heartbeat, also from one membership to the next of the same start.
        let own_count = self.sent_count + 1;
        let Some(membership) = self.membership_mut() else { return };
        if now < membership.heartbeat_at {
            return;
        }
        membership.heartbeat_at = now.plus(heartbeat_ns);
        let is_ring = membership.list.live_count() > ALL_TO_ALL_MAX;
        let Some(coordinator) = membership.list.coordinator().map(|listed| listed.member.clone()) else { return };
        let version = membership.list.version;
        let coordinator_beat = membership.liveness.get(&coordinator.node).map_or(0, |liveness| liveness.beat.count);
        let echo = if is_in_startup_wait { 0 } else { coordinator_beat };
        let mut beats = vec![BeatInfo { node: ours.node, count: own_count, version, follows: coordinator.node, echo }];
        if is_ring {
            beats.extend(membership.liveness.values().map(|liveness| liveness.beat));
        }
        if is_coordinator {
            let oldest = now.0.saturating_sub(silence_ns);
            membership.sent_heartbeats.retain(|(_, sent)| sent.0 >= oldest);
            membership.sent_heartbeats.push_back((own_count, now));
        }
        let reply_requested_by = std::mem::take(&mut membership.reply_requested_by);
        let position = membership.list.live().position(|listed| listed.member == ours).unwrap_or(0);
        let live: Vec<_> = membership.list.live().cloned().collect();
        let mut sent = Vec::new();
        for (index, listed) in live.iter().enumerate().filter(|(_, listed)| listed.member != ours) {
            let steps = (index + live.len() - position) % live.len();
            // A member that is about to count as failed is asked directly first.
            let age_ns = membership.liveness.get(&listed.member.node).map_or(0, |liveness| now.since(liveness.at));
            let is_doubted =
                is_ring && age_ns > silence_ns.saturating_sub(doubt_ns) && (is_coordinator || index < position);
            let wants_reply = is_doubted || wants_promises;
            if !is_ring || steps <= RING_SUCCESSORS || wants_reply || reply_requested_by.contains(&listed.member.node) {
                sent.push((listed.address, listed.member.incarnation, wants_reply));
            }
        }
        for (address, incarnation, wants_reply) in sent {
            let (coordinator, beats) = (coordinator.clone(), beats.clone());
            let heartbeat = Heartbeat { version, coordinator, beats, wants_reply, epoch: known_epoch };
            self.send(address, Some(incarnation), Message::Heartbeat(heartbeat));
        }
    }

    pub(super) fn on_heartbeat(&mut self, now: MonoNs, from: &Member, address: SocketAddr, heartbeat: &Heartbeat) {
        let ours = self.config.member.clone();
        let repeats_list = !self.is_disabled(Safeguard::ClaimBesideFollowers);
        let Some(membership) = self.membership_mut() else { return };
        if membership.list.find_live(from).is_none() {
            // The sender follows us but is not on our list as live: it was excluded without knowing it.
            if heartbeat.coordinator == ours {
                let list = membership.list.clone();
                self.send(address, Some(from.incarnation), Message::List(list));
            }
            return;
        }
        let is_coordinator = membership.list.coordinator().is_some_and(|listed| listed.member == ours);
        // The member follows another coordinator by now: not a heartbeat of this side.
        if is_coordinator && heartbeat.version > membership.list.version {
            return self.observe_epoch(heartbeat.epoch);
        }
        // Our list made that member coordinator, and it has not received the list.
        if heartbeat.coordinator == ours
            && heartbeat.version < membership.list.version
            && membership.list.version.by == ours.node
            && !is_coordinator
            && repeats_list
        {
            let list = membership.list.clone();
            self.send(address, Some(from.incarnation), Message::List(list));
        }
        let Some(membership) = self.membership_mut() else { return };
        let mut behind = Vec::new();
        for beat in &heartbeat.beats {
            if let Some(liveness) = membership.liveness.get_mut(&beat.node)
                && beat.count > liveness.beat.count
            {
                let has_our_list = is_coordinator && beat.version == membership.list.version;
                let echoed = membership.sent_heartbeats.iter().find(|(count, _)| has_our_list && *count == beat.echo);
                let echoes = liveness.echoes.max(echoed.map(|(_, sent)| *sent));
                *liveness = MemberLiveness { beat: *beat, at: now, echoes };
                if is_coordinator && beat.version < membership.list.version {
                    behind.push(beat.node);
                }
            }
        }
        if heartbeat.wants_reply {
            membership.reply_requested_by.insert(from.node);
            membership.heartbeat_at = now;
        }
        if heartbeat.version == membership.list.version {
            membership.acknowledged.insert(from.node, heartbeat.version);
        }
        let list = membership.list.clone();
        for listed in list.live().filter(|listed| behind.contains(&listed.member.node)) {
            self.send(listed.address, Some(listed.member.incarnation), Message::List(list.clone()));
        }
        self.observe_epoch(heartbeat.epoch);
    }

    pub(super) fn on_list(&mut self, now: MonoNs, from: &Member, address: SocketAddr, list: MemberList) {
        let ours = self.config.member.clone();
        let Some(membership) = self.membership() else { return };
        let is_authorised =
            list.version.by == from.node || list.coordinator().is_some_and(|listed| listed.member == *from);
        if !list.is_consistent() || !is_authorised || list.version <= membership.list.version {
            return;
        }
        if !self.may_adopt(membership, now, &list) {
            return;
        }
        if list.find_live(&ours).is_none() {
            return self.rejoin(address);
        }
        let Some(membership) = self.membership_mut() else { return };
        let version = list.version;
        membership.adopt_list(now, &ours, list);
        self.send(address, Some(from.incarnation), Message::Acknowledge(version));
    }

    /// Whether neither a promise nor an open fence forbids following a newer list. A list of our own coordinator is
    /// always followed. Another coordinator's list displaces older members. It is followed when those are silent here
    /// too, have ended, or follow another coordinator themselves.
    fn may_adopt(&self, membership: &Membership, now: MonoNs, list: &MemberList) -> bool {
        let (Some(present), Some(next)) = (membership.list.coordinator(), list.coordinator()) else { return true };
        if self.is_disabled(Safeguard::DisplaceOnlySilent) || list.version.by == present.member.node {
            return true;
        }
        if present.member == self.config.member {
            return self.leadership.is_none();
        }
        let maker = list.members.iter().find(|listed| listed.member.node == list.version.by);
        let is_displaced = |listed: &ListedMember| {
            let is_older = maker.is_some_and(|maker| listed.age < maker.age);
            listed.member != self.config.member && is_older && list.find_live(&listed.member).is_none()
        };
        let is_replaced = |listed: &ListedMember| listed.member == present.member && next.member != present.member;
        let limit_ns = self.silence_ns();
        let mut displaced = membership.list.live().filter(|listed| is_displaced(listed) || is_replaced(listed));
        displaced.all(|listed| {
            let node = listed.member.node;
            let follows = membership.liveness.get(&node).map_or(node, |liveness| liveness.beat.follows);
            follows != node && follows != self.config.member.node || self.is_silent(membership, listed, now, limit_ns)
        })
    }

    /// The next in age claims when all older members are silent. An older member that follows this one still has an
    /// older list, on which this member is coordinator: it stays on the list and leads the side that this one gathers.
    pub(super) fn claim_if_older_are_silent(&mut self, now: MonoNs) {
        let claim_ns = self.config.timing.claim_ns().saturating_add(self.ring_ns());
        let Some(membership) = self.membership() else { return };
        let older: Vec<_> =
            membership.list.live().take_while(|listed| listed.member != self.config.member).cloned().collect();
        let is_silent = |listed: &&ListedMember| self.is_silent(membership, listed, now, claim_ns);
        let counts_followers = !self.is_disabled(Safeguard::ClaimBesideFollowers);
        let follows_us = |listed: &ListedMember| {
            let liveness = membership.liveness.get(&listed.member.node);
            liveness.is_some_and(|liveness| liveness.beat.follows == self.config.member.node)
        };
        let silent: Vec<_> = older.iter().filter(is_silent).map(|listed| listed.member.node).collect();
        let all_gone =
            older.iter().all(|listed| silent.contains(&listed.member.node) || counts_followers && follows_us(listed));
        if all_gone && !silent.is_empty() {
            self.mark_members_failed(now, &silent);
        }
    }

    /// Marks those members as failed and notifies the others.
    pub(super) fn mark_members_failed(&mut self, now: MonoNs, nodes: &[NodeId]) {
        let ours = self.config.member.node;
        if let Some(membership) = self.membership_mut() {
            membership.list.mark_failed(ours, nodes);
            membership.forget_unlisted(now, ours);
        }
        self.publish_list(now);
    }

    /// Sends the list to all live members except the joining one, which gets it with the answer to its join.
    pub(super) fn publish_list(&mut self, now: MonoNs) {
        let leads = self.leadership.is_some();
        let Some(membership) = self.membership_mut() else { return };
        if !leads {
            // A coordinator that does not lead asks for promises under the new list at once.
            membership.heartbeat_at = now;
        }
        let list = membership.list.clone();
        for listed in list.live() {
            if listed.member != self.config.member && !self.is_pending(&listed.member) {
                self.send(listed.address, Some(listed.member.incarnation), Message::List(list.clone()));
            }
        }
    }

    pub(super) fn is_silent(&self, membership: &Membership, listed: &ListedMember, now: MonoNs, limit_ns: u64) -> bool {
        let liveness = membership.liveness.get(&listed.member.node);
        self.dead_members.contains(&(listed.member.node, listed.member.incarnation))
            || liveness.is_none_or(|liveness| now.since(liveness.at) > limit_ns)
    }

    /// Silence after which the coordinator counts a member as failed, ns.
    pub(super) fn silence_ns(&self) -> u64 {
        self.config.timing.failure_ns.saturating_add(self.ring_ns())
    }

    /// Additional wait while heartbeats travel along the ring, ns: no less than a coordinator relied on while the list
    /// was longer.
    pub(super) fn ring_ns(&self) -> u64 {
        let live_count = self.membership().map_or(0, |membership| membership.live_count_max);
        self.ring_ns_of(live_count)
    }

    /// Longest travel time along a ring of so many members, ns: one heartbeat period for each two members.
    pub(super) fn ring_ns_of(&self, live_count: usize) -> u64 {
        if live_count <= ALL_TO_ALL_MAX {
            return 0;
        }
        let hops = live_count.div_ceil(RING_SUCCESSORS) as u64;
        self.config.timing.heartbeat_ns.saturating_mul(hops)
    }

    /// Whether a promise of an earlier start of this node may still hold.
    pub(super) fn is_in_startup_wait(&self, now: MonoNs) -> bool {
        let is_over = self.started_at.is_some_and(|started_at| now.since(started_at) > self.silence_ns());
        !is_over && !self.is_disabled(Safeguard::StartupWait)
    }

    /// When the next action is due without any input.
    pub(super) fn next_member_deadline(&self, membership: &Membership) -> MonoNs {
        let timing = &self.config.timing;
        let received_at =
            |listed: &ListedMember| membership.liveness.get(&listed.member.node).map(|liveness| liveness.at);
        let mut due = vec![membership.heartbeat_at];
        due.extend(membership.yielding.as_ref().map(|yielding| yielding.until));
        if self.is_coordinator() {
            let silence_ns = self.silence_ns() + 1;
            let watched = membership.list.live().filter(|listed| !self.is_pending(&listed.member));
            due.extend(watched.filter_map(received_at).map(|at| at.plus(silence_ns)));
            due.extend(membership.pending.iter().map(|join| join.since.plus(timing.join_ns_max)));
            due.extend(membership.yielding.is_none().then_some(membership.probe_at));
        } else {
            let claim_ns = timing.claim_ns().saturating_add(self.ring_ns()) + 1;
            let older = membership.list.live().take_while(|listed| listed.member != self.config.member);
            let living =
                older.filter(|listed| !self.dead_members.contains(&(listed.member.node, listed.member.incarnation)));
            due.extend(living.filter_map(received_at).max().map(|last| last.plus(claim_ns)));
        }
        due.into_iter().min().unwrap_or(membership.heartbeat_at)
    }
}

impl Membership {
    /// Adopts a newer list.
    fn adopt_list(&mut self, now: MonoNs, ours: &Member, list: MemberList) {
        // A member that has rejoined has another age: what was received from it before does not count.
        let was_listed =
            |listed: &ListedMember| self.list.live().any(|old| old.member == listed.member && old.age == listed.age);
        let same: Vec<_> = list.live().filter(|listed| was_listed(listed)).map(|listed| listed.member.node).collect();
        self.liveness.retain(|node, _| same.contains(node));
        self.list = list;
        self.forget_unlisted(now, ours.node);
        if self.list.coordinator().is_some_and(|coordinator| coordinator.member == *ours) {
            self.heartbeat_at = now;
        } else {
            // Only a coordinator needs this state.
            self.pending.clear();
            self.answered_joins.clear();
            self.sent_heartbeats.clear();
            self.liveness.values_mut().for_each(|liveness| liveness.echoes = None);
            self.yielding = None;
        }
    }

    /// Adapts `liveness` to the list. The silence of new members counts from now; members off the list are dropped.
    pub(super) fn forget_unlisted(&mut self, now: MonoNs, ours: NodeId) {
        let live: Vec<_> = self.list.live().map(|listed| listed.member.node).collect();
        self.liveness.retain(|node, _| live.contains(node));
        self.live_count_max = self.live_count_max.max(live.len());
        let version = self.list.version;
        for node in live.into_iter().filter(|node| *node != ours) {
            self.liveness.entry(node).or_insert_with(|| MemberLiveness::not_yet_received(node, version, now));
        }
    }
}
