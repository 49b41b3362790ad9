//! Leadership by the election over a register: its simulation, in the same time as this one.

use std::collections::BTreeMap;

use mdgw_election::timing::LeaseTiming;
use mdgw_feeds::identity::Epoch;

use super::{
    CHANNEL, MS, Violation,
    subscriber::Subscriber,
    world::{Event, World},
};
use crate::lease::{self, faults::FaultConfig, world::GatewayEvent};

/// Lease, store and what goes wrong between gateways.
pub(super) struct SimulatedElection {
    world: lease::world::World,
    /// What it knows of each gateway.
    told: Vec<ReportedState>,
    has_faults: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReportedState {
    heard: Epoch,
    is_eligible: bool,
}

impl SimulatedElection {
    pub(super) fn new(seed: u64, gateways: usize) -> Self {
        let setup = lease::world::LeaseSetup {
            gateways: u8::try_from(gateways).expect("few gateways"),
            timing: LeaseTiming::from_ms(10, 2, 2),
            // Not before subscribers have heard something: what was said before that they may never hear of.
            faults: FaultConfig {
                fault_interval_ns: 0,
                lasts_ns: 15 * MS,
                long_delay_ns: 20 * MS,
                ..FaultConfig::STORM
            },
            // By their own ears.
            observes_epochs: false,
            joins: true,
            ..lease::PAIR
        };
        Self {
            world: lease::world::World::new(seed, setup),
            told: vec![ReportedState::default(); gateways],
            has_faults: false,
        }
    }

    pub(super) fn violation(&self) -> Option<Violation> {
        self.world.violation.clone().map(Violation::SimulatedElection)
    }
}

impl World {
    /// The election goes on until then, and what comes of it happens here.
    pub(super) fn elect_until(&mut self, until_ns: u64) {
        let Some(mut election) = self.election.take() else { return };
        if !election.has_faults && self.subscribers.iter().all(Subscriber::has_received) {
            election.has_faults = true;
            election.world.start_faults(FAULT_NS);
        }
        self.report_to_election(&mut election);
        while election.world.step_until(until_ns) {
            self.now_ns = election.world.now_ns();
            self.apply_gateway_events(&mut election);
            self.report_to_election(&mut election);
        }
        self.election = Some(election);
    }

    /// Nothing fails any more.
    pub(super) fn stop_faults(&mut self) {
        self.faults_stopped = true;
        let Some(mut election) = self.election.take() else { return };
        election.world.stop_faults();
        self.apply_gateway_events(&mut election);
        self.election = Some(election);
    }

    /// The epochs that gateways have observed, and whether they have caught up.
    fn report_to_election(&self, election: &mut SimulatedElection) {
        for (gateway, slot) in self.seats.iter().enumerate() {
            let Some(run) = slot.gateway.run.as_ref().filter(|_| !slot.is_stopped) else { continue };
            let heard = run.standby.epochs.highest_observed().unwrap_or_default();
            let known = &mut election.told[gateway];
            if heard > known.heard {
                known.heard = heard;
                election.world.observe_epoch(gateway, heard);
            }
            if slot.is_eligible && !std::mem::replace(&mut known.is_eligible, true) {
                election.world.set_eligible(gateway);
            }
        }
    }

    fn apply_gateway_events(&mut self, election: &mut SimulatedElection) {
        while let Some((gateway, news)) = election.world.news.pop_front() {
            match news {
                GatewayEvent::Started => self.start(gateway),
                GatewayEvent::Killed => {
                    self.end_process(gateway);
                    self.clear_leadership(gateway);
                    election.told[gateway] = ReportedState::default();
                }
                GatewayEvent::Stopped => self.stop_at_send(gateway),
                GatewayEvent::Resumed => {
                    let incarnation = self.seats[gateway].incarnation;
                    self.resume(gateway, incarnation);
                }
                GatewayEvent::Open { epoch, until_ns } => self.set_open_until(gateway, epoch, until_ns),
                GatewayEvent::Closed => {
                    self.clear_leadership(gateway);
                    if let Some(run) = self.running_gateway(gateway) {
                        run.close();
                    }
                    self.forward_sent(gateway);
                }
                GatewayEvent::Drains => {
                    let reports_sent_position = self.setup.reports_sent_position;
                    let Some(run) = self.running_gateway(gateway) else { continue };
                    let position = if reports_sent_position { run.sent_position() } else { run.logged_position() };
                    self.forward_sent(gateway);
                    let positions: BTreeMap<_, _> =
                        position.map(|position| (CHANNEL.0, position)).into_iter().collect();
                    election.world.set_final_positions(gateway, positions);
                }
                GatewayEvent::PeerOutputEnded { epoch, positions } => {
                    if let (Some(run), Some(position)) = (self.running_gateway(gateway), positions.get(&CHANNEL.0)) {
                        run.set_peer_end(epoch, *position);
                    }
                }
            }
        }
    }

    /// Where it checks the fence for a heartbeat, if for nothing else.
    fn stop_at_send(&mut self, gateway: usize) {
        let Some(run) = self.running_gateway(gateway) else { return };
        run.wire.stops = true;
        run.on_deadline(true);
        run.wire.stops = false;
        self.seats[gateway].is_stopped = true;
        self.forward_sent(gateway);
    }

    fn set_open_until(&mut self, gateway: usize, epoch: Epoch, until_ns: u64) {
        self.seats[gateway].may_send_until_ns = until_ns;
        self.after(until_ns - self.now_ns, Event::Deadline { gateway });
        let starts_at_received = self.setup.starts_at_received;
        let is_new = epoch > self.epoch;
        self.epoch = self.epoch.max(epoch);
        self.leader = Some(gateway);
        let run = self.running_gateway(gateway).expect("a renewing gateway is awake");
        if is_new && !starts_at_received {
            run.assume_all_received(epoch);
        }
        run.open(epoch);
        self.forward_sent(gateway);
    }

    fn clear_leadership(&mut self, gateway: usize) {
        self.seats[gateway].may_send_until_ns = 0;
        if self.leader == Some(gateway) {
            self.leader = None;
        }
    }

    /// Nobody acts: the fence is closed by itself.
    pub(super) fn expire_fence(&self, gateway: usize) {
        let slot = &self.seats[gateway];
        if let Some(run) = &slot.gateway.run
            && slot.may_send_until_ns <= self.now_ns
        {
            run.fence.close();
        }
    }
}

/// Mean time between two faults.
const FAULT_NS: u64 = 6 * MS;
