//! Who leads where the election over a register decides: its world, in the same time as this one.

use std::collections::BTreeMap;

use mdgw_election::timing::LeaseTiming;
use mdgw_feeds::identity::Epoch;

use super::{
    CHANNEL, MS, Violation,
    subscriber::Subscriber,
    world::{Event, World},
};
use crate::lease::{self, faults::Faults, world::News};

/// Lease, store and what goes wrong between gateways.
pub(super) struct Election {
    world: lease::world::World,
    /// What it knows of each gateway.
    told: Vec<Known>,
    is_storm: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    heard: Epoch,
    stands: bool,
}

impl Election {
    pub(super) fn new(seed: u64, gateways: usize) -> Self {
        let setup = lease::world::Setup {
            gateways: u8::try_from(gateways).expect("few gateways"),
            timing: LeaseTiming::from_ms(10, 2, 2),
            // Not before subscribers have heard something: what was said before that they may never hear of.
            faults: Faults { every_ns: 0, lasts_ns: 15 * MS, long_delay_ns: 20 * MS, ..Faults::STORM },
            // By their own ears.
            epochs_heard: false,
            joins: true,
            ..lease::PAIR
        };
        Self { world: lease::world::World::new(seed, setup), told: vec![Known::default(); gateways], is_storm: false }
    }

    pub(super) fn violation(&self) -> Option<Violation> {
        self.world.violation.clone().map(Violation::Election)
    }
}

impl World {
    /// The election goes on until then, and what comes of it happens here.
    pub(super) fn elect_until(&mut self, until_ns: u64) {
        let Some(mut election) = self.election.take() else { return };
        if !election.is_storm && self.subscribers.iter().all(Subscriber::has_begun) {
            election.is_storm = true;
            election.world.storm_begins(FAULT_NS);
        }
        self.tell(&mut election);
        while election.world.step_until(until_ns) {
            self.now_ns = election.world.now_ns();
            self.take_news(&mut election);
            self.tell(&mut election);
        }
        self.election = Some(election);
    }

    /// Nothing fails any more.
    pub(super) fn calm_down(&mut self) {
        self.is_calm = true;
        let Some(mut election) = self.election.take() else { return };
        election.world.calm_down();
        self.take_news(&mut election);
        self.election = Some(election);
    }

    /// What gateways have heard, and whether they are level.
    fn tell(&self, election: &mut Election) {
        for (gateway, seat) in self.seats.iter().enumerate() {
            let Some(run) = seat.gateway.run.as_ref().filter(|_| !seat.is_stopped) else { continue };
            let heard = run.standby.epochs.highest_heard().unwrap_or_default();
            let told = &mut election.told[gateway];
            if heard > told.heard {
                told.heard = heard;
                election.world.hears(gateway, heard);
            }
            if seat.has_joined && !std::mem::replace(&mut told.stands, true) {
                election.world.stands(gateway);
            }
        }
    }

    fn take_news(&mut self, election: &mut Election) {
        while let Some((gateway, news)) = election.world.news.pop_front() {
            match news {
                News::Started => self.start(gateway),
                News::Killed => {
                    self.dies(gateway);
                    self.leads_no_more(gateway);
                    election.told[gateway] = Known::default();
                }
                News::Stopped => self.stop_where_it_sends(gateway),
                News::Resumed => {
                    let incarnation = self.seats[gateway].incarnation;
                    self.go_on(gateway, incarnation);
                }
                News::Open { epoch, until_ns } => self.may_send_until(gateway, epoch, until_ns),
                News::Closed => {
                    self.leads_no_more(gateway);
                    if let Some(run) = self.awake(gateway) {
                        run.close();
                    }
                    self.carry(gateway);
                }
                News::Drains => {
                    let tells_what_was_sent = self.setup.tells_what_was_sent;
                    let Some(run) = self.awake(gateway) else { continue };
                    let position = if tells_what_was_sent { run.sent_until() } else { run.logged_until() };
                    self.carry(gateway);
                    let positions: BTreeMap<_, _> =
                        position.map(|position| (CHANNEL.0, position)).into_iter().collect();
                    election.world.ended_at(gateway, positions);
                }
                News::OthersEnded { epoch, positions } => {
                    if let (Some(run), Some(position)) = (self.awake(gateway), positions.get(&CHANNEL.0)) {
                        run.other_ended(epoch, *position);
                    }
                }
            }
        }
    }

    /// Where it checks the fence for a heartbeat, if for nothing else.
    fn stop_where_it_sends(&mut self, gateway: usize) {
        let Some(run) = self.awake(gateway) else { return };
        run.wire.stops = true;
        run.on_deadline(true);
        run.wire.stops = false;
        self.seats[gateway].is_stopped = true;
        self.carry(gateway);
    }

    fn may_send_until(&mut self, gateway: usize, epoch: Epoch, until_ns: u64) {
        self.seats[gateway].open_until_ns = until_ns;
        self.after(until_ns - self.now_ns, Event::Deadline { gateway });
        let begins_where_heard = self.setup.begins_where_heard;
        let is_new = epoch > self.epoch;
        self.epoch = self.epoch.max(epoch);
        self.leader = Some(gateway);
        let run = self.awake(gateway).expect("whoever renews is awake");
        if is_new && !begins_where_heard {
            run.believe_all_sent(epoch);
        }
        run.open(epoch);
        self.carry(gateway);
    }

    fn leads_no_more(&mut self, gateway: usize) {
        self.seats[gateway].open_until_ns = 0;
        if self.leader == Some(gateway) {
            self.leader = None;
        }
    }

    /// Nobody acts: the fence is closed by itself.
    pub(super) fn run_out(&self, gateway: usize) {
        let seat = &self.seats[gateway];
        if let Some(run) = &seat.gateway.run
            && seat.open_until_ns <= self.now_ns
        {
            run.fence.close();
        }
    }
}

/// Mean time between two faults.
const FAULT_NS: u64 = 6 * MS;
