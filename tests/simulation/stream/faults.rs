//! Who leads where there is no election, and what goes wrong. One leads at a time: `elected.rs`, `../lease.rs` and
//! `../quorum.rs` are about that.

use std::{mem, rc::Rc};

use mdgw_feeds::{
    identity::{Epoch, Sequence},
    published::{
        packet::{PacketFlags, PacketMeta, write_packet},
        position::StreamPosition,
    },
};

use super::{
    CHANNEL, GROUP, MS, Weather,
    day::{FORGED, session},
    world::{Event, World, node_of},
};

impl World {
    // ---- who leads ----

    pub(super) fn open(&mut self, gateway: usize) {
        self.epoch = Epoch::new(self.epoch.count() + 1, node_of(gateway));
        self.leader = Some(gateway);
        let (epoch, begins_where_heard) = (self.epoch, self.setup.begins_where_heard);
        let run = self.awake(gateway).expect("whoever leads is awake");
        if !begins_where_heard {
            run.believe_all_sent(epoch);
        }
        run.open(epoch);
        self.carry(gateway);
    }

    /// Nobody leads until the others have waited for long enough.
    fn vacate(&mut self) {
        self.leader = None;
        self.vacancies += 1;
        let wait_ns = MS + self.random.below(3 * MS);
        self.after(wait_ns, Event::Elect { vacancy: self.vacancies });
    }

    pub(super) fn elect(&mut self, vacancy: u64) {
        if self.leader.is_some() || vacancy != self.vacancies {
            return;
        }
        match self.choose(|_| true) {
            Some(gateway) => self.open(gateway),
            None => self.after(MS, Event::Elect { vacancy }),
        }
    }

    /// One of those that could lead.
    fn choose(&mut self, is_wanted: impl Fn(usize) -> bool) -> Option<usize> {
        let could_lead = |number: &usize| {
            let seat = &self.seats[*number];
            is_wanted(*number) && seat.has_joined && !seat.is_stopped && seat.gateway.run.is_some()
        };
        let candidates: Vec<_> = (0..self.seats.len()).filter(could_lead).collect();
        let chosen = self.random.below(candidates.len() as u64);
        candidates.get(usize::try_from(chosen).expect("few gateways")).copied()
    }

    /// The successor opens at once: it has been told that nothing more will come.
    fn hand_over(&mut self, leader: usize) {
        let (epoch, tells_what_was_sent) = (self.epoch, self.setup.tells_what_was_sent);
        let Some(to) = self.choose(|number| number != leader) else { return };
        let Some(run) = self.awake(leader) else { return };
        run.close();
        let position = if tells_what_was_sent { run.sent_until() } else { run.logged_until() };
        self.carry(leader);
        self.vacate();
        let delay_ns = self.delay_ns();
        self.after(delay_ns, Event::Ended { to, epoch, position });
    }

    pub(super) fn take_over(&mut self, to: usize, epoch: Epoch, position: Option<StreamPosition>) {
        let is_vacant = self.leader.is_none();
        let Some(run) = self.awake(to) else { return };
        if let Some(position) = position {
            run.other_ended(epoch, position);
        }
        if is_vacant && epoch == self.epoch {
            self.open(to);
        }
    }

    /// Its lease has run out; it may have it again.
    fn lapse(&mut self, leader: usize) {
        if let Some(run) = self.awake(leader) {
            run.close();
        }
        self.carry(leader);
        self.vacate();
    }

    // ---- processes ----

    pub(super) fn start(&mut self, gateway: usize) {
        let seat = &mut self.seats[gateway];
        seat.gateway.start();
        let incarnation = seat.incarnation;
        self.after(0, Event::Input { gateway, incarnation });
    }

    fn kill(&mut self, gateway: usize) {
        // Without services, what a process left unsaid only another one says.
        let is_needed = self.setup.weather == Weather::Straight && self.choose(|number| number != gateway).is_none();
        if is_needed {
            return;
        }
        if !self.dies(gateway) {
            return;
        }
        if self.leader == Some(gateway) {
            self.vacate();
        }
        let delay_ns = MS + self.random.below(20 * MS);
        self.after(delay_ns, Event::Start { gateway });
    }

    /// Its process ends, if there is one.
    pub(super) fn dies(&mut self, gateway: usize) -> bool {
        let seat = &mut self.seats[gateway];
        let Some(counts) = seat.gateway.kill(self.now_ns) else { return false };
        seat.incarnation += 1;
        (seat.is_stopped, seat.has_joined) = (false, false);
        seat.unread.clear();
        self.counts.add(counts);
        true
    }

    /// Between the fence's check and the hand-over. Until it is continued others have long led.
    pub(super) fn stopped(&mut self, gateway: usize) {
        let seat = &mut self.seats[gateway];
        seat.is_stopped = true;
        if let Some(run) = &seat.gateway.run {
            // Whatever it does next it does when it is continued, and by then its time is over.
            run.fence.close();
        }
        let incarnation = seat.incarnation;
        if self.leader == Some(gateway) {
            self.vacate();
        }
        let delay_ns = MS + self.random.below(25 * MS);
        self.after(delay_ns, Event::Continue { gateway, incarnation });
    }

    /// What was about to be handed over is; then it hears what has come.
    pub(super) fn go_on(&mut self, gateway: usize, incarnation: u32) {
        let seat = &mut self.seats[gateway];
        if seat.incarnation != incarnation {
            return;
        }
        seat.is_stopped = false;
        let unread = mem::take(&mut seat.unread);
        let parked = seat.gateway.run.as_mut().and_then(|run| run.wire.parked.take());
        for (line, bytes) in parked.into_iter().flatten() {
            self.put_on_wire(line, bytes);
        }
        for bytes in unread {
            self.hear(gateway, bytes);
        }
    }

    // ---- what goes wrong ----

    pub(super) fn fault(&mut self) {
        if self.is_calm {
            return;
        }
        let delay_ns = 1 + self.random.exponential(FAULT_NS);
        self.after(delay_ns, Event::Fault);
        if self.election.is_some() {
            // Its world kills, stops and cuts. Logs starve in the other storm alone: if what ends a numbering that breaks off is
            // in no file of the leader's, receivers don't wait for a gateway that gets there long after.
            return self.forge();
        }
        let kind = self.random.below(8);
        let any = usize::try_from(self.random.below(self.seats.len() as u64)).expect("few gateways");
        match (kind, self.leader) {
            (0, Some(leader)) => self.kill(leader),
            (1, _) => self.kill(any),
            (2 | 3, Some(leader)) => {
                if let Some(run) = self.awake(leader) {
                    run.wire.stops = true;
                }
            }
            (4, Some(leader)) => self.hand_over(leader),
            (5, Some(leader)) => self.lapse(leader),
            // Without services, what is in no file is lost where memory has to give it up.
            (6, _) if self.setup.weather == Weather::Storm => {
                let until_ns = self.now_ns + 5 * MS + self.random.below(25 * MS);
                self.seats[self.starving].starves_until_ns = until_ns;
            }
            (7, _) => self.forge(),
            _ => {}
        }
    }

    /// Anybody may write to a multicast group: a packet that says that far more has been published than there is.
    fn forge(&mut self) {
        let beyond = Sequence(1 << 20);
        let meta = PacketMeta {
            flags: PacketFlags::HEARTBEAT,
            group: GROUP,
            channel: CHANNEL,
            epoch: self.epoch,
            session: session(FORGED),
            first: beyond,
            next: beyond,
            send_time_ns: 0,
        };
        let mut bytes = [0; 64];
        let length = write_packet(&meta, &[], &mut bytes).expect("it fits");
        for gateway in 0..self.seats.len() {
            self.hear(gateway, Rc::from(&bytes[..length]));
        }
    }
}

/// Mean time between two faults.
const FAULT_NS: u64 = 7 * MS;
