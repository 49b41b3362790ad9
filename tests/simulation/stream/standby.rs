//! A gateway's ear, as `gateway/pair/src/standby/listener.rs` has it without its sockets: what the product believes and how it
//! follows is the product's own, what is here only carries it from one to the other.

use std::{path::Path, sync::Arc};

use mdgw_engine::publish::{Heard, TakeoverWords};
use mdgw_feeds::{
    identity::{Epoch, Sequence, Session},
    published::{packet::parse_packet, position::StreamPosition},
    time::MonoNs,
};
use mdgw_pair::standby::{HeardTracker, KnownEpochs};
use mdgw_publog::Reader;

use super::{CHANNEL, MS, day::session};

pub(super) struct Standby {
    node: u8,
    tracker: HeardTracker,
    pub(super) epochs: Arc<KnownEpochs>,
    /// The own log, followed.
    reader: Reader,
    ready: Option<StreamPosition>,
    confirmed: Option<StreamPosition>,
    words: Arc<TakeoverWords>,
    doubts: bool,
}

impl Standby {
    /// `doubts`: what goes beyond the own input isn't believed.
    pub(super) fn new(
        node: u8,
        directory: &Path,
        ready: Option<StreamPosition>,
        words: Arc<TakeoverWords>,
        doubts: bool,
    ) -> Self {
        let mut reader = Reader::open(directory, CHANNEL.0).expect("the own log");
        reader.seek_end().expect("the own log");
        let mut tracker = HeardTracker::new(HOLE_NS_MAX);
        let ready_at_first = if doubts { ready } else { Some(StreamPosition::at(session(u32::MAX), Sequence(1))) };
        if let Some(ready) = ready_at_first {
            tracker.set_ready(ready, MonoNs(0));
        }
        let epochs = Arc::new(KnownEpochs::new(Epoch::default(), 1_000));
        Self { node, tracker, epochs, reader, ready, confirmed: None, words, doubts }
    }

    /// Reads on in the own log.
    pub(super) fn follow(&mut self, now: MonoNs) {
        while let Some(entry) = self.reader.next() {
            let Some(session) = Session::from_bytes(entry.session) else { continue };
            let range = (Sequence(entry.first), Sequence(entry.next));
            let (_, until) = StreamPosition::span_of_body(session, range, entry.payload);
            self.ready = self.ready.max(Some(until));
        }
        if let Some(ready) = self.ready {
            self.tracker.set_ready(ready, now);
        }
    }

    /// A packet came; its own may come back to it.
    pub(super) fn hear(&mut self, bytes: &[u8], now: MonoNs) {
        let packet = parse_packet(bytes).expect("a packet");
        let epoch = packet.meta.epoch;
        if epoch.node() != self.node && self.epochs.hear(epoch).is_ok() {
            self.tracker.accept(StreamPosition::span_of(&packet), epoch, now);
        }
    }

    /// The gateway that leads has told how far it has published.
    pub(super) fn confirm(&mut self, position: StreamPosition) {
        self.confirmed = self.confirmed.max(Some(position));
    }

    /// What has changed becomes known to the publisher.
    pub(super) fn settle(&mut self, now: MonoNs) {
        self.tracker.on_time(now);
        let on_wire = self.tracker.position();
        let confirmed = if self.doubts { self.confirmed } else { self.confirmed.max(on_wire) };
        self.words.heard.set(Heard { on_wire, epoch: self.tracker.epoch(), confirmed });
    }

    /// Another gateway was heard, under this epoch at last.
    pub(super) fn heard(&self) -> Option<Epoch> {
        self.tracker.position().map(|_| self.tracker.epoch())
    }
}

/// Less than the product's half second: a simulated day is short.
const HOLE_NS_MAX: u64 = 20 * MS;
