//! Runs the simulated election over a register (`../lease.rs`) in the same simulated time as the stream.

use mdgw_election::timing::LeaseTiming;
use mdgw_feeds::identity::Epoch;

use super::{
    MS, Violation,
    simulation::{Event, StreamSimulation},
    subscriber::Subscriber,
};
use crate::lease::{self, cluster::GatewayEvent, faults::FaultConfig};

/// The election of the simulated gateways, with its own faults.
pub(super) struct SimulatedElection {
    cluster: lease::cluster::LeaseCluster,
    /// What was last reported to the election about each gateway.
    reported: Vec<ReportedState>,
    has_faults: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReportedState {
    observed_epoch: Epoch,
    is_eligible: bool,
}

impl SimulatedElection {
    pub(super) fn new(seed: u64, gateways: usize) -> Self {
        let setup = lease::cluster::LeaseSetup {
            gateways: u8::try_from(gateways).expect("few gateways"),
            timing: LeaseTiming::from_ms(10, 2, 2),
            // `start_faults` begins the faults once each subscriber has received something. Messages that were published
            // before a subscriber's first packet may never reach that subscriber.
            faults: FaultConfig {
                fault_interval_ns: 0,
                lasts_ns: 15 * MS,
                long_delay_ns: 20 * MS,
                ..FaultConfig::STORM
            },
            // The simulated standbys observe epochs themselves.
            observes_epochs: false,
            joins: true,
            ..lease::PAIR
        };
        Self {
            cluster: lease::cluster::LeaseCluster::new(seed, setup),
            reported: vec![ReportedState::default(); gateways],
            has_faults: false,
        }
    }

    pub(super) fn violation(&self) -> Option<Violation> {
        self.cluster.violation.clone().map(Violation::Election)
    }
}

impl StreamSimulation {
    /// Runs the election until `until_ns` and applies its events to the gateways.
    pub(super) fn elect_until(&mut self, until_ns: u64) {
        let Some(mut election) = self.election.take() else { return };
        if !election.has_faults && self.subscribers.iter().all(Subscriber::has_received) {
            election.has_faults = true;
            election.cluster.start_faults(FAULT_NS);
        }
        self.report_to_election(&mut election);
        while election.cluster.step_until(until_ns) {
            self.now_ns = election.cluster.now_ns();
            self.apply_gateway_events(&mut election);
            self.report_to_election(&mut election);
        }
        self.election = Some(election);
    }

    /// Ends all faults.
    pub(super) fn stop_faults(&mut self) {
        self.faults_stopped = true;
        let Some(mut election) = self.election.take() else { return };
        election.cluster.stop_faults();
        self.apply_gateway_events(&mut election);
        self.election = Some(election);
    }

    /// Reports to the election which epochs the gateways have observed, and which gateways are eligible.
    fn report_to_election(&self, election: &mut SimulatedElection) {
        for (gateway, slot) in self.slots.iter().enumerate() {
            let Some(run) = slot.gateway.run.as_ref().filter(|_| !slot.is_stopped) else { continue };
            let observed_epoch = run.standby.epochs.highest_observed().unwrap_or_default();
            let known = &mut election.reported[gateway];
            if observed_epoch > known.observed_epoch {
                known.observed_epoch = observed_epoch;
                election.cluster.observe_epoch(gateway, observed_epoch);
            }
            if slot.is_eligible && !std::mem::replace(&mut known.is_eligible, true) {
                election.cluster.set_eligible(gateway);
            }
        }
    }

    fn apply_gateway_events(&mut self, election: &mut SimulatedElection) {
        while let Some((gateway, gateway_event)) = election.cluster.gateway_events.pop_front() {
            match gateway_event {
                GatewayEvent::Started => self.start(gateway),
                GatewayEvent::Killed => {
                    self.end_process(gateway);
                    self.clear_leadership(gateway);
                    election.reported[gateway] = ReportedState::default();
                }
                GatewayEvent::Stopped => self.stop_at_send(gateway),
                GatewayEvent::Resumed => {
                    let incarnation = self.slots[gateway].incarnation;
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
            }
        }
    }

    /// Pauses the process between the fence check and the send. A heartbeat ensures that there is a send.
    fn stop_at_send(&mut self, gateway: usize) {
        let Some(run) = self.running_gateway(gateway) else { return };
        run.thread_io.pauses_at_next_send = true;
        run.on_deadline(true);
        run.thread_io.pauses_at_next_send = false;
        self.slots[gateway].is_stopped = true;
        self.forward_sent(gateway);
    }

    fn set_open_until(&mut self, gateway: usize, epoch: Epoch, until_ns: u64) {
        self.slots[gateway].may_send_until_ns = until_ns;
        self.after(until_ns - self.now_ns, Event::LeaseDeadline { gateway });
        let starts_at_received = self.setup.starts_at_received;
        let is_new = epoch > self.epoch;
        self.epoch = self.epoch.max(epoch);
        self.leader = Some(gateway);
        let run = self.running_gateway(gateway).expect("a gateway that renews is running");
        if is_new && !starts_at_received {
            run.assume_all_received(epoch);
        }
        run.open(epoch);
        self.forward_sent(gateway);
    }

    fn clear_leadership(&mut self, gateway: usize) {
        self.slots[gateway].may_send_until_ns = 0;
        if self.leader == Some(gateway) {
            self.leader = None;
        }
    }

    /// Closes the fence of a gateway whose lease has expired.
    pub(super) fn expire_fence(&self, gateway: usize) {
        let slot = &self.slots[gateway];
        if let Some(run) = &slot.gateway.run
            && slot.may_send_until_ns <= self.now_ns
        {
            run.fence.close();
        }
    }
}

/// Mean time between two faults, ns.
const FAULT_NS: u64 = 6 * MS;
