//! A gateway's standby receiver, as `gateway/pair/src/standby/listener.rs` has it without its sockets. The product's
//! own code decides what is accepted and how the log follows; this file only carries data between the two.

use std::{path::Path, sync::Arc};

use mdgw_engine::publish::{ReceiveWatermark, TakeoverShared};
use mdgw_feeds::{
    identity::{Epoch, Sequence, Session},
    published::{packet::parse_packet, position::StreamPosition},
    time::MonoNs,
};
use mdgw_pair::standby::{KnownEpochs, ReceiveTracker};
use mdgw_publog::Reader;

use super::{CHANNEL, MS, day::session};

pub(super) struct StandbyReceiver {
    node: u8,
    tracker: ReceiveTracker,
    pub(super) epochs: Arc<KnownEpochs>,
    /// The own log, followed.
    reader: Reader,
    ready: Option<StreamPosition>,
    reported_through: Option<StreamPosition>,
    words: Arc<TakeoverShared>,
    doubts: bool,
}

impl StandbyReceiver {
    /// `doubts`: what goes beyond the own input isn't believed.
    pub(super) fn new(
        node: u8,
        directory: &Path,
        ready: Option<StreamPosition>,
        words: Arc<TakeoverShared>,
        doubts: bool,
    ) -> Self {
        let mut reader = Reader::open(directory, CHANNEL.0).expect("the own log");
        reader.seek_end().expect("the own log");
        let mut tracker = ReceiveTracker::new(GAP_NS_MAX);
        let initial_ready = if doubts { ready } else { Some(StreamPosition::at(session(u32::MAX), Sequence(1))) };
        if let Some(ready) = initial_ready {
            tracker.set_logged_through(ready, MonoNs(0));
        }
        let epochs = Arc::new(KnownEpochs::new(Epoch::default(), 1_000));
        Self { node, tracker, epochs, reader, ready, reported_through: None, words, doubts }
    }

    /// Reads on in the own log.
    pub(super) fn follow(&mut self, now: MonoNs) {
        while let Some(entry) = self.reader.next() {
            let Some(session) = Session::from_bytes(entry.session) else { continue };
            let range = (Sequence(entry.first), Sequence(entry.next));
            let (_, until) = StreamPosition::range_of_body(session, range, entry.payload);
            self.ready = self.ready.max(Some(until));
        }
        if let Some(ready) = self.ready {
            self.tracker.set_logged_through(ready, now);
        }
    }

    /// A packet came; its own may come back to it.
    pub(super) fn observe(&mut self, bytes: &[u8], now: MonoNs) {
        let packet = parse_packet(bytes).expect("a packet");
        let epoch = packet.meta.epoch;
        if epoch.node() != self.node && self.epochs.observe(epoch).is_ok() {
            self.tracker.accept(StreamPosition::range_of_packet(&packet), epoch, now);
        }
    }

    /// The leader has reported how far it has published.
    pub(super) fn set_confirmed(&mut self, position: StreamPosition) {
        self.reported_through = self.reported_through.max(Some(position));
    }

    /// What has changed becomes known to the publisher.
    pub(super) fn publish_watermark(&mut self, now: MonoNs) {
        self.tracker.on_timer(now);
        let received_through = self.tracker.position();
        let reported_through =
            if self.doubts { self.reported_through } else { self.reported_through.max(received_through) };
        self.words.received_through.set(ReceiveWatermark {
            received_through,
            epoch: self.tracker.epoch(),
            reported_through,
        });
    }

    /// Another gateway was received, most recently under this epoch.
    pub(super) fn heard(&self) -> Option<Epoch> {
        self.tracker.position().map(|_| self.tracker.epoch())
    }
}

/// Less than the product's half second: a simulated day is short.
const GAP_NS_MAX: u64 = 20 * MS;
