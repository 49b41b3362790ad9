//! Faults of the lease simulation.

use mdgw_election::{
    core::Input,
    identity::{DeathNotice, Incarnation},
};

use mdgw_feeds::identity::Epoch;

use super::cluster::{Event, GatewayEvent, LeaseCluster, MS, node_of};

/// Rates and kinds of faults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultConfig {
    /// Mean time between two faults, ns; 0: none.
    pub(crate) fault_interval_ns: u64,
    /// The kinds of faults. A kind that is listed twice is twice as likely.
    pub(crate) kinds: &'static [Fault],
    /// Mean length of a fault, ns.
    pub(crate) lasts_ns: u64,
    /// Share of messages and packets with a long delay, and the longest such delay, ns.
    pub(crate) late: f64,
    pub(crate) long_delay_ns: u64,
    /// The store answers a swap up to that much later than it notifies the watching gateways, ns.
    pub(crate) slow_answer_ns: u64,
    /// Longest delay of all other messages, ns.
    pub(crate) delay_ns_max: u64,
    /// Share of messages between gateways that are lost.
    pub(crate) lost: f64,
    /// Share of closings at which a send stays outstanding for the longest time that the deadline allows.
    pub(crate) stalled_sends: f64,
    /// Share of the store's answers that are replaced by an unknown outcome.
    pub(crate) unknown: f64,
}

impl FaultConfig {
    pub(crate) const NONE: Self = Self {
        fault_interval_ns: 0,
        kinds: &[],
        lasts_ns: 0,
        late: 0.0,
        long_delay_ns: 0,
        slow_answer_ns: 0,
        delay_ns_max: 2 * MS,
        lost: 0.0,
        stalled_sends: 0.0,
        unknown: 0.0,
    };
    pub(crate) const STORM: Self = Self {
        fault_interval_ns: 12 * MS,
        kinds: &[
            Fault::Kill,
            Fault::Pause,
            Fault::Pause,
            Fault::CutToStore,
            Fault::CutFromStore,
            Fault::CutPeers,
            Fault::HandOver,
            Fault::Close,
            Fault::StoreDown,
            Fault::Forge,
        ],
        lasts_ns: 40 * MS,
        late: 0.05,
        long_delay_ns: 40 * MS,
        slow_answer_ns: 0,
        delay_ns_max: u64::MAX,
        lost: 0.02,
        stalled_sends: 0.2,
        unknown: 0.03,
    };
    /// Frequent hand-overs, with very late messages.
    pub(crate) const HAND_OVERS: Self = Self {
        fault_interval_ns: 3 * MS,
        kinds: &[Fault::HandOver, Fault::HandOver, Fault::CutToStore, Fault::CutFromStore, Fault::Forge],
        lasts_ns: 20 * MS,
        late: 0.1,
        long_delay_ns: 60 * MS,
        ..Self::STORM
    };
    /// A store that is rarely reachable, so that leaders extend their lease by promises of the candidates.
    pub(crate) const STORE_UNREACHABLE: Self = Self {
        kinds: &[Fault::StoreDown, Fault::CutToStore, Fault::CutFromStore, Fault::Pause, Fault::Forge],
        ..Self::STORM
    };
    /// Leaders that die after their records named changing successors, since candidates were cut off meanwhile.
    pub(crate) const SUCCESSORS: Self =
        Self { kinds: &[Fault::Kill, Fault::CutPeers, Fault::CutFromStore], ..Self::STORM };
    /// Gateways that lose their state file, and a store that is restored, while gateways are cut off.
    pub(crate) const LOST_EPOCHS: Self = Self {
        kinds: &[
            Fault::Kill,
            Fault::LoseStateFile,
            Fault::LoseStateFile,
            Fault::CutToStore,
            Fault::CutFromStore,
            Fault::CutPeers,
            Fault::BackUp,
            Fault::Restore,
        ],
        ..Self::STORM
    };
    /// Clocks that are slewed at the highest rate of a time daemon.
    pub(crate) const SLEWS: Self = Self {
        kinds: &[
            Fault::Slew,
            Fault::Slew,
            Fault::Slew,
            Fault::Kill,
            Fault::Pause,
            Fault::CutToStore,
            Fault::CutFromStore,
            Fault::HandOver,
        ],
        ..Self::STORM
    };
    /// A store that is restored while gateways and store are out of touch.
    pub(crate) const RESTORES_DURING_PAUSES: Self =
        Self { kinds: &[Fault::BackUp, Fault::Restore, Fault::StoreDown, Fault::Pause], ..Self::STORM };
    pub(crate) const RESTORES: Self = Self {
        kinds: &[
            Fault::Kill,
            Fault::Pause,
            Fault::CutToStore,
            Fault::CutFromStore,
            Fault::CutPeers,
            Fault::HandOver,
            Fault::StoreDown,
            Fault::BackUp,
            Fault::Restore,
        ],
        ..Self::STORM
    };
}

/// One fault, or an operation at a random time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process is killed, mostly with a death notice, and restarts.
    Kill,
    /// As a kill; the restarted gateway has no state file.
    LoseStateFile,
    /// The process is paused, perhaps between the fence check and the send, and continues.
    Pause,
    /// A hypervisor pauses the whole machine, and the machine's clock does not count the pause. The gateway is not notified.
    Freeze,
    /// Messages from the gateway to the store are dropped.
    CutToStore,
    /// Messages from the store to the gateway are dropped.
    CutFromStore,
    /// Messages from the gateway to another gateway are dropped.
    CutPeers,
    /// The gateway is asked to hand over.
    HandOver,
    /// The gateway closes in order and restarts.
    Close,
    StoreDown,
    /// The clock is slewed, forwards or backwards.
    Slew,
    /// The store is backed up.
    BackUp,
    /// The store is restored from its backup.
    Restore,
    /// A forged packet with a slightly higher epoch reaches receivers and most gateways.
    Forge,
}

/// Rate of a slew, ppm: close to the maximum of chrony.
const SLEW_PPM: i64 = 80_000;

impl LeaseCluster {
    pub(super) fn random_fault(&mut self) {
        if self.faults_stopped {
            return;
        }
        let next_ns = self.random.exponential(self.setup.faults.fault_interval_ns);
        self.after(next_ns, Event::Fault);
        let gateway = usize::try_from(self.random.below(u64::from(self.setup.gateways))).expect("few gateways");
        let lasts_ns = MS + self.random.exponential(self.setup.faults.lasts_ns);
        let kinds = self.setup.faults.kinds;
        let kind = kinds[usize::try_from(self.random.below(kinds.len() as u64)).expect("few kinds")];
        self.fault(kind, gateway, lasts_ns);
    }

    /// Injects a fault now.
    pub(crate) fn fault(&mut self, fault: Fault, gateway: usize, lasts_ns: u64) {
        let store = self.store_index();
        match fault {
            Fault::Kill | Fault::LoseStateFile => {
                let is_announced = self.random.chance(0.7);
                self.kill(gateway, is_announced);
                if fault == Fault::LoseStateFile {
                    self.gateways[gateway].own_epoch = Epoch::default();
                }
                self.after(lasts_ns, Event::Restart(gateway));
            }
            Fault::Pause => self.pause(gateway, lasts_ns),
            Fault::Freeze => {
                self.pause(gateway, lasts_ns);
                self.freeze_clock(gateway);
            }
            Fault::CutToStore => self.cut(gateway, store, lasts_ns),
            Fault::CutFromStore => self.cut(store, gateway, lasts_ns),
            Fault::CutPeers => self.cut(gateway, (gateway + 1) % store, lasts_ns),
            Fault::HandOver => self.send(gateway, Input::HandOver(None), 20_000),
            Fault::Close => {
                self.gateways[gateway].is_closing = true;
                self.send(gateway, Input::Close, 0);
                self.after(lasts_ns, Event::Restart(gateway));
            }
            Fault::StoreDown => self.store_down(lasts_ns),
            Fault::Slew => {
                let slew_ppm = if self.random.chance(0.5) { SLEW_PPM } else { -SLEW_PPM };
                self.slew(gateway, slew_ppm);
                self.after(lasts_ns, Event::SlewEnds(gateway));
            }
            Fault::BackUp => self.back_up(),
            Fault::Restore => self.restore(lasts_ns),
            Fault::Forge => self.send_forged_packet(),
        }
    }

    fn send_forged_packet(&mut self) {
        let highest = self.opened.iter().map(|opening| opening.epoch).max().unwrap_or_default();
        let node = u8::try_from(self.random.below(256)).expect("below 256");
        let forged = Epoch::new(highest.count() + self.random.below(3), node);
        self.after(20_000, Event::Packet(forged));
        for gateway in 0..self.gateways.len() {
            if self.setup.observes_epochs && self.random.chance(0.8) {
                self.observe_epoch(gateway, forged);
            }
        }
    }

    /// Kills the process. Packets that it has handed to the kernel are still sent.
    pub(crate) fn kill(&mut self, number: usize, is_announced: bool) {
        let gateway = &mut self.gateways[number];
        if gateway.core.take().is_none() {
            return;
        }
        gateway.paused = false;
        gateway.is_closing = false;
        gateway.unsent_packet = None;
        gateway.fence.close();
        gateway.sends_end_ns = self.now_ns;
        self.hand_overs.end_process(number);
        let gateway = &mut self.gateways[number];
        let incarnation = Incarnation(gateway.incarnation);
        self.gateway_events.push_back((number, GatewayEvent::Killed));
        let gateway = &mut self.gateways[number];
        if let Some(epoch) = gateway.leading_epoch.take()
            && is_announced
        {
            let notice = DeathNotice { holder: node_of(number), incarnation, epoch };
            for other in 0..self.gateways.len() {
                let delay_ns = self.delay_ns();
                self.send(other, Input::Died(notice), delay_ns);
            }
        }
    }

    fn pause(&mut self, number: usize, lasts_ns: u64) {
        let now = self.local_time(number);
        let gateway = &mut self.gateways[number];
        if gateway.core.is_none() || gateway.paused {
            return;
        }
        gateway.paused = true;
        gateway.unsent_packet = gateway.fence.epoch_if_open(now);
        let incarnation = gateway.incarnation;
        self.gateway_events.push_back((number, GatewayEvent::Stopped));
        self.after(lasts_ns, Event::Resume { gateway: number, incarnation });
    }

    fn cut(&mut self, from: usize, to: usize, lasts_ns: u64) {
        *self.partitions.entry((from, to)).or_default() += 1;
        self.after(lasts_ns, Event::Heal(from, to));
    }
}
