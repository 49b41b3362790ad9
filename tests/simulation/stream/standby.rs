//! A gateway's standby receiver: `gateway/pair/src/standby/listener.rs` without its sockets. The product's own code
//! decides which packets are accepted. This file only connects the receive tracker with the log and the publisher.

use std::{path::Path, sync::Arc};

use mdgw_engine::publish::{ReceiveWatermark, TakeoverShared};
use mdgw_feeds::{
    identity::{Epoch, Sequence, Session},
    published::{packet::parse_packet, position::StreamPosition},
    time::MonoNs,
};
use mdgw_pair::standby::{KnownEpochs, ReceiveTracker};
use mdgw_publog::Reader;

use super::{CHANNEL, MS, venue_script::session};

pub(super) struct StandbyReceiver {
    node: u8,
    tracker: ReceiveTracker,
    pub(super) epochs: Arc<KnownEpochs>,
    /// Reads the gateway's own log.
    reader: Reader,
    logged_through: Option<StreamPosition>,
    reported_through: Option<StreamPosition>,
    takeover: Arc<TakeoverShared>,
    safeguards: StandbySafeguards,
}

/// Safeguards that a negative control switches off.
#[derive(Clone, Copy, Debug)]
pub(super) struct StandbySafeguards {
    /// Packets beyond the gateway's own input, and beyond what the leader reports, do not count.
    pub(super) rejects_beyond_input: bool,
    /// Reported positions do not lift the receive watermark.
    pub(super) counts_received_only: bool,
}

impl StandbyReceiver {
    pub(super) fn new(
        node: u8,
        directory: &Path,
        logged_through: Option<StreamPosition>,
        takeover: Arc<TakeoverShared>,
        (epochs, safeguards): (Arc<KnownEpochs>, StandbySafeguards),
    ) -> Self {
        let mut reader = Reader::open(directory, CHANNEL.0).expect("the own log");
        reader.seek_end().expect("the own log");
        let mut tracker = ReceiveTracker::new(GAP_NS_MAX);
        let initial_logged_through = if safeguards.rejects_beyond_input {
            logged_through
        } else {
            Some(StreamPosition::at(session(u32::MAX), Sequence(1)))
        };
        if let Some(logged_through) = initial_logged_through {
            tracker.confirm_through(logged_through, MonoNs(0));
        }
        Self { node, tracker, epochs, reader, logged_through, reported_through: None, takeover, safeguards }
    }

    /// Reads new entries of the gateway's own log.
    pub(super) fn follow(&mut self, now: MonoNs) {
        while let Some(entry) = self.reader.next() {
            let Some(session) = Session::from_bytes(entry.session) else { continue };
            let range = (Sequence(entry.first), Sequence(entry.next));
            let (_, until) = StreamPosition::range_of_body(session, range, entry.payload);
            self.logged_through = self.logged_through.max(Some(until));
        }
        if let Some(logged_through) = self.logged_through {
            self.tracker.confirm_through(logged_through, now);
        }
    }

    /// A packet arrives. The gateway's own packets are ignored, and those of epochs below the one under which it led last.
    pub(super) fn observe(&mut self, bytes: &[u8], led: Epoch, now: MonoNs) {
        let packet = parse_packet(bytes).expect("a packet");
        let epoch = packet.meta.epoch;
        if epoch.node() != self.node && epoch >= led && self.epochs.observe(epoch).is_ok() {
            self.tracker.accept(StreamPosition::range_of_packet(&packet), epoch, now);
        }
    }

    /// The leader has reported its published position.
    pub(super) fn set_reported_position(&mut self, position: StreamPosition, now: MonoNs) {
        self.reported_through = self.reported_through.max(Some(position));
        self.tracker.confirm_through(position, now);
    }

    /// This gateway leads under `epoch` and has published everything before that position.
    pub(super) fn set_published(&mut self, published: StreamPosition, epoch: Epoch, now: MonoNs) {
        self.tracker.set_published(published, epoch, now);
    }

    /// Shares the receive watermark with the publisher.
    pub(super) fn publish_watermark(&mut self, now: MonoNs) {
        self.tracker.on_timer(now);
        let lifted_through = self.reported_through.filter(|_| !self.safeguards.counts_received_only);
        let received_through = self.tracker.position().max(lifted_through);
        self.takeover.received_through.set(ReceiveWatermark { received_through, epoch: self.tracker.epoch() });
    }

    /// Epoch of the last accepted packet of another gateway.
    pub(super) fn received_epoch(&self) -> Epoch {
        self.tracker.epoch()
    }

    /// How far the output of other gateways was received.
    pub(super) fn received_through(&self) -> Option<StreamPosition> {
        self.tracker.position()
    }
}

/// Shorter than in the product (500 ms), since a simulated day is short, ns.
const GAP_NS_MAX: u64 = 20 * MS;
