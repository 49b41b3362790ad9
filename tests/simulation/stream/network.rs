//! The simulated network: from gateways to other gateways and subscribers, and between subscribers and retransmission
//! services.

use std::{mem, rc::Rc};

use mdgw_feeds::{
    identity::Line,
    published::{packet::parse_packet, position::StreamPosition, request::ServiceRequest},
};

use super::{
    MS, NetworkConditions,
    simulation::{Destination, Event, StreamSimulation, node_of},
};

impl StreamSimulation {
    /// Puts the packets that a gateway has sent on the network. If a send call paused the process, marks it as paused.
    pub(super) fn forward_sent(&mut self, gateway: usize) {
        let Some(run) = &mut self.slots[gateway].gateway.run else { return };
        let is_stopped_now = run.thread_io.held_at_send.is_some();
        for (line, bytes) in mem::take(&mut run.thread_io.sent) {
            self.put_on_wire(gateway, line, bytes);
        }
        if is_stopped_now && !self.slots[gateway].is_stopped {
            self.pause_at_send(gateway);
        }
    }

    /// Puts a packet on the network, unless the gateway's output is cut.
    pub(super) fn put_on_wire(&mut self, gateway: usize, line: Line, bytes: Vec<u8>) {
        let packet = parse_packet(&bytes).expect("a packet");
        let epoch = packet.meta.epoch;
        if self.cut_gateway() == Some(gateway) {
            self.counts.cut_packets += 1;
            return;
        }
        // Another gateway has taken over from the cut one.
        self.output_cut.take_if(|cut| epoch > cut.epoch);
        self.published = self.published.max(Some(StreamPosition::range_of_packet(&packet).1));
        // Without network faults no packet to a subscriber is lost, and no gateway misses the first packet of an epoch.
        let is_first = epoch > self.epoch_sent;
        self.epoch_sent = self.epoch_sent.max(epoch);
        let bytes: Rc<[u8]> = bytes.into();
        let gateways = (0..self.slots.len()).map(Destination::Gateway);
        for to in gateways.chain((0..self.subscribers.len()).map(Destination::Subscriber)) {
            let is_protected = self.setup.network == NetworkConditions::Lossless
                && (is_first || matches!(to, Destination::Subscriber(_)));
            let delay_ns = self.delay_ns();
            if is_protected || !self.is_lost() {
                self.after(delay_ns, Event::PacketArrives { to, line, service: 0, bytes: Rc::clone(&bytes) });
            }
        }
    }

    pub(super) fn answer(&mut self, gateway: usize, subscriber: usize, request: &ServiceRequest) {
        let now_ns = self.now_ns;
        let Some(run) = self.running_gateway(gateway) else { return };
        let packets = run.answer(request, now_ns);
        self.counts.answers += 1;
        for bytes in packets {
            let delay_ns = self.delay_ns();
            if !self.is_lost() {
                let (to, line, service) = (Destination::Subscriber(subscriber), Line::RECOVERY, node_of(gateway) - 1);
                self.after(delay_ns, Event::PacketArrives { to, line, service, bytes: bytes.into() });
            }
        }
    }

    /// Delay of one packet or message, ns. Without network faults all delays are equal.
    pub(super) fn delay_ns(&mut self) -> u64 {
        if self.setup.network == NetworkConditions::Lossless {
            return LOSSLESS_DELAY_NS;
        }
        let is_late = !self.faults_stopped && self.random.chance(0.03);
        let late_ns = if is_late { self.random.below(6 * MS) } else { 0 };
        20_000 + self.random.exponential(50_000) + late_ns
    }

    pub(super) fn is_lost(&mut self) -> bool {
        let is_lost = !self.faults_stopped && self.random.chance(0.04);
        self.counts.lost += u64::from(is_lost);
        is_lost
    }
}

/// Delay of every packet without network faults, ns.
const LOSSLESS_DELAY_NS: u64 = 100_000;
