//! Faults, and leadership without an election: here one gateway leads at a time. `election.rs`, `../lease.rs` and
//! `../quorum.rs` cover the election.

use std::{mem, rc::Rc};

use mdgw_feeds::{
    identity::{Epoch, Sequence},
    published::packet::{PacketFlags, PacketMeta, write_packet},
};

use super::{
    CHANNEL, GROUP, MS, NetworkConditions,
    simulation::{Event, GatewaySlot, OutputCut, StreamSimulation, node_of},
    venue_script::{FORGED_SESSION, session},
};

/// A fault of a run without an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    KillLeader,
    KillAny,
    PauseAtSend,
    HandOver,
    ExpireLease,
    StarveLog,
    Forge,
    CutOutput,
}

impl FaultKind {
    /// All kinds. Pauses are as frequent as two others.
    pub(super) const ALL: &'static [Self] = &[
        Self::KillLeader,
        Self::KillAny,
        Self::PauseAtSend,
        Self::PauseAtSend,
        Self::HandOver,
        Self::ExpireLease,
        Self::StarveLog,
        Self::Forge,
        Self::CutOutput,
    ];
}

impl StreamSimulation {
    // ---- leadership ----

    pub(super) fn open(&mut self, gateway: usize) {
        self.epoch = Epoch::new(self.epoch.count() + 1, node_of(gateway));
        self.leader = Some(gateway);
        let (epoch, starts_at_received) = (self.epoch, self.setup.starts_at_received);
        let run = self.running_gateway(gateway).expect("the leader is running");
        if !starts_at_received {
            run.assume_all_received(epoch);
        }
        run.open(epoch);
        self.forward_sent(gateway);
    }

    /// Ends leadership. The next election follows after a random wait.
    fn start_vacancy(&mut self) {
        self.leader = None;
        self.vacancies += 1;
        let wait_ns = MS + self.random.below(3 * MS);
        self.after(wait_ns, Event::Elect { vacancy: self.vacancies });
    }

    pub(super) fn elect(&mut self, vacancy: u64) {
        if self.leader.is_some() || vacancy != self.vacancies {
            return;
        }
        let cut_gateway = self.cut_gateway();
        match self.choose(|number| Some(number) != cut_gateway) {
            Some(gateway) => self.open(gateway),
            None => self.after(MS, Event::Elect { vacancy }),
        }
    }

    /// A random eligible gateway that `is_wanted`.
    fn choose(&mut self, is_wanted: impl Fn(usize) -> bool) -> Option<usize> {
        let could_lead = |number: &usize| {
            let slot = &self.slots[*number];
            is_wanted(*number)
                && slot.is_eligible
                && !slot.is_stopped
                && slot.gateway.run.is_some()
                && !self.is_blind(*number)
        };
        let candidates: Vec<_> = (0..self.slots.len()).filter(could_lead).collect();
        let chosen = self.random.below(candidates.len() as u64);
        candidates.get(usize::try_from(chosen).expect("few gateways")).copied()
    }

    /// Hands over to another gateway, which opens its fence as soon as the hand-over message arrives.
    fn hand_over(&mut self, leader: usize) {
        let epoch = self.epoch;
        let Some(to) = self.choose(|number| number != leader) else { return };
        let Some(run) = self.running_gateway(leader) else { return };
        run.close();
        self.forward_sent(leader);
        self.start_vacancy();
        let delay_ns = self.delay_ns();
        self.after(delay_ns, Event::HandedOver { to, epoch });
    }

    pub(super) fn take_over(&mut self, to: usize, epoch: Epoch) {
        let is_vacant = self.leader.is_none();
        if is_vacant && epoch == self.epoch && self.running_gateway(to).is_some() {
            self.open(to);
        }
    }

    /// Expires the leader's lease. The same gateway may be elected again.
    fn expire_lease(&mut self, leader: usize) {
        if let Some(run) = self.running_gateway(leader) {
            run.close();
        }
        self.forward_sent(leader);
        self.start_vacancy();
    }

    // ---- processes ----

    pub(super) fn start(&mut self, gateway: usize) {
        let peer = self.choose_donor(gateway).and_then(|donor| self.slots[donor].gateway.copy_state());
        let slot = &mut self.slots[gateway];
        slot.gateway.start(peer);
        let incarnation = slot.incarnation;
        self.after(0, Event::Input { gateway, incarnation });
    }

    /// Another gateway, which has caught up, and whose state a starting gateway copies.
    fn choose_donor(&mut self, starting: usize) -> Option<usize> {
        let is_running = |slot: &GatewaySlot| slot.is_eligible && !slot.is_stopped && slot.gateway.run.is_some();
        let donors = (0..self.slots.len()).filter(|number| *number != starting && is_running(&self.slots[*number]));
        let donors: Vec<_> = donors.collect();
        if donors.is_empty() || self.setup.copied_share <= 0.0 {
            return None;
        }
        let chosen = self.random.below(donors.len() as u64);
        let is_reachable = self.random.chance(self.setup.copied_share);
        donors.get(usize::try_from(chosen).expect("few gateways")).copied().filter(|_| is_reachable)
    }

    fn kill(&mut self, gateway: usize) {
        // Only a gateway that has received the present leader may lead: one has to be left.
        if self.setup.waits_for_leader() && self.choose(|number| number != gateway).is_none() {
            return;
        }
        if !self.end_process(gateway) {
            return;
        }
        if self.leader == Some(gateway) {
            self.start_vacancy();
        }
        let delay_ns = MS + self.random.below(20 * MS);
        self.after(delay_ns, Event::Start { gateway });
    }

    /// Ends the process of a gateway. Returns whether one was running.
    pub(super) fn end_process(&mut self, gateway: usize) -> bool {
        let slot = &mut self.slots[gateway];
        let Some(counts) = slot.gateway.kill(self.now_ns) else { return false };
        slot.incarnation += 1;
        (slot.is_stopped, slot.is_eligible) = (false, false);
        slot.unread.clear();
        self.counts.add(counts);
        true
    }

    /// Pauses the process between the fence check and the send. The lease has expired when it continues.
    pub(super) fn pause_at_send(&mut self, gateway: usize) {
        let slot = &mut self.slots[gateway];
        slot.is_stopped = true;
        if let Some(run) = &slot.gateway.run {
            // The process runs again only after its lease has expired.
            run.fence.close();
        }
        let incarnation = slot.incarnation;
        if self.leader == Some(gateway) {
            self.start_vacancy();
        }
        let delay_ns = MS + self.random.below(25 * MS);
        self.after(delay_ns, Event::Continue { gateway, incarnation });
    }

    /// Continues a paused process: sends the interrupted batch, then receives the packets that have arrived.
    pub(super) fn resume(&mut self, gateway: usize, incarnation: u32) {
        let slot = &mut self.slots[gateway];
        if slot.incarnation != incarnation {
            return;
        }
        slot.is_stopped = false;
        let unread = mem::take(&mut slot.unread);
        let held_at_send = slot.gateway.run.as_mut().and_then(|run| run.thread_io.held_at_send.take());
        for (line, bytes) in held_at_send.into_iter().flatten() {
            self.put_on_wire(gateway, line, bytes);
        }
        for bytes in unread {
            self.receive_at_gateway(gateway, bytes);
        }
    }

    // ---- faults ----

    pub(super) fn fault(&mut self) {
        if self.faults_stopped {
            return;
        }
        let delay_ns = 1 + self.random.exponential(FAULT_NS);
        self.after(delay_ns, Event::Fault);
        if self.election.is_some() {
            // The simulated election kills, pauses and partitions gateways.
            return if self.random.chance(0.5) { self.starve_log() } else { self.send_forged_packet() };
        }
        if self.output_cut.is_some() && self.setup.network == NetworkConditions::Lossless {
            // The gateway that takes over from the cut one is the only one that can publish what nobody received.
            return;
        }
        let kinds = self.setup.faults;
        let kind = kinds[usize::try_from(self.random.below(kinds.len() as u64)).expect("few kinds")];
        let any = usize::try_from(self.random.below(self.slots.len() as u64)).expect("few gateways");
        match (kind, self.leader) {
            (FaultKind::KillLeader, Some(leader)) => self.kill(leader),
            (FaultKind::KillAny, _) => self.kill(any),
            (FaultKind::PauseAtSend, Some(leader)) => {
                if let Some(run) = self.running_gateway(leader) {
                    run.thread_io.pauses_at_next_send = true;
                }
            }
            (FaultKind::HandOver, Some(leader)) => self.hand_over(leader),
            (FaultKind::ExpireLease, Some(leader)) => self.expire_lease(leader),
            // Without retransmission services, entries that are in no log file would be lost.
            (FaultKind::StarveLog, _) if self.setup.network == NetworkConditions::Lossy => self.starve_log(),
            (FaultKind::Forge, _) => self.send_forged_packet(),
            (FaultKind::CutOutput, Some(leader)) => self.cut_output(leader),
            _ => {}
        }
    }

    /// Suspends the log maintenance of one gateway for a while: its log runs out of segments, so its messages are in no file.
    fn starve_log(&mut self) {
        let until_ns = self.now_ns + 5 * MS + self.random.below(25 * MS);
        self.slots[self.starved_gateway].no_segments_until_ns = until_ns;
    }

    /// The leader's output cable dies while its kernel still accepts packets. Some time later another gateway takes over.
    fn cut_output(&mut self, leader: usize) {
        if self.choose(|number| number != leader).is_none() {
            return;
        }
        self.output_cut = Some(OutputCut { gateway: leader, epoch: self.epoch });
        self.last_cut = self.output_cut;
        let delay_ns = self.random.below(CUT_NS_MAX);
        self.after(delay_ns, Event::CutLeadershipEnds);
    }

    /// Whether the gateway's output was cut, and it has received nothing of another leader since. It would continue behind what nobody
    /// has received: weakness 15 of SAFETY.md.
    pub(super) fn is_blind(&self, gateway: usize) -> bool {
        let received = self.slots[gateway].gateway.run.as_ref().map(|run| run.standby.received_epoch());
        self.last_cut.is_some_and(|cut| cut.gateway == gateway && received <= Some(cut.epoch))
    }

    /// The gateway whose output is cut.
    pub(super) fn cut_gateway(&self) -> Option<usize> {
        self.output_cut.map(|cut| cut.gateway)
    }

    /// The cut leader is killed in the midst of the cut, hands over because nobody receives it, or loses its lease.
    pub(super) fn end_cut_leadership(&mut self) {
        let Some(leader) = self.cut_gateway().filter(|gateway| self.leader == Some(*gateway)) else { return };
        match self.random.below(3) {
            0 => self.kill(leader),
            1 => self.hand_over(leader),
            _ => self.expire_lease(leader),
        }
        // There was nobody to hand over to.
        if self.leader == Some(leader) {
            self.after(MS, Event::CutLeadershipEnds);
        }
    }

    /// Any host can send to a multicast group. This packet claims a position far beyond the published stream.
    fn send_forged_packet(&mut self) {
        let beyond = Sequence(1 << 20);
        let meta = PacketMeta {
            flags: PacketFlags::HEARTBEAT,
            group: GROUP,
            channel: CHANNEL,
            epoch: self.epoch,
            session: session(FORGED_SESSION),
            first: beyond,
            next: beyond,
            send_time_ns: 0,
        };
        let mut bytes = [0; 64];
        let length = write_packet(&meta, &[], &mut bytes).expect("it fits");
        for gateway in 0..self.slots.len() {
            self.receive_at_gateway(gateway, Rc::from(&bytes[..length]));
        }
    }
}

/// Longest time for which a leader with a dead output cable publishes, ns.
const CUT_NS_MAX: u64 = 6 * MS;
/// Mean time between two faults, ns.
const FAULT_NS: u64 = 7 * MS;
