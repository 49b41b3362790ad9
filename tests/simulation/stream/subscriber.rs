//! A subscriber with the product's own receiver, and the checker of what it delivers.

use std::{
    hash::{DefaultHasher, Hash as _},
    rc::Rc,
};

use mdgw_feeds::{
    identity::{Epoch, Line},
    published::{
        packet::{PacketFlags, parse_packet},
        receiver::{Item, Output, PublishedDatagram, Receiver, ReceiverConfig, ServiceConfig},
        request::ServiceRequest,
    },
    time::{MonoNs, UnixNs},
};
use mdgw_subscriber::ServiceSelector;

use super::{
    CHANNEL, GROUP, MS, Violation,
    venue_script::{StreamItem, VenueScript},
};

pub(super) struct Subscriber {
    receiver: Receiver,
    selector: ServiceSelector,
    checks_epochs: bool,
    asks_all_services: bool,
    waits_for_end: bool,
    highest_epoch: Epoch,
    pub(super) stale_packets: u64,
    checker: DeliveryChecker,
}

/// Compares each delivery with the expected items.
struct DeliveryChecker {
    day: Rc<VenueScript>,
    /// Index of the next expected item.
    next_index: usize,
    violation: Option<Violation>,
    digest: DefaultHasher,
}

/// Parameters of a subscriber.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubscriberSetup {
    pub(super) lines: u8,
    /// Number of retransmission services. `None`: packets that are missing on the wire are lost.
    pub(super) services: Option<usize>,
    /// The receiver drops packets of an old epoch.
    pub(super) checks_epochs: bool,
    /// The receiver asks all services for the range of their logs.
    pub(super) asks_all_services: bool,
    /// The receiver leaves a session when a service knows where it ended.
    pub(super) waits_for_end: bool,
}

impl Subscriber {
    pub(super) fn new(day: &Rc<VenueScript>, setup: SubscriberSetup) -> Self {
        let service = |services| ServiceConfig {
            request_timeout_ns: 3 * MS,
            attempts_max: 60,
            service_count: if setup.asks_all_services { u8::try_from(services).expect("few services") } else { 1 },
            // A killed gateway restarts, and may be the only one with a requested message.
            unanswered_rounds_max: 60,
            ..ServiceConfig::default()
        };
        let receiver = Receiver::new(ReceiverConfig {
            group: GROUP,
            channels: vec![CHANNEL],
            lines: setup.lines,
            window_packets: 64,
            gap_timeout_ns: MS,
            service: setup.services.map(service),
            message_bytes_max: 4_096,
            ..ReceiverConfig::default()
        });
        let checker =
            DeliveryChecker { day: Rc::clone(day), next_index: 0, violation: None, digest: DefaultHasher::new() };
        Self {
            receiver,
            selector: ServiceSelector::new(setup.services.unwrap_or(0)),
            checks_epochs: setup.checks_epochs,
            asks_all_services: setup.asks_all_services,
            waits_for_end: setup.waits_for_end,
            highest_epoch: Epoch::default(),
            stale_packets: 0,
            checker,
        }
    }

    /// A packet arrives.
    pub(super) fn receive(&mut self, line: Line, service: u8, bytes: &[u8], now_ns: u64) {
        let packet = parse_packet(bytes).expect("a packet");
        let epoch = packet.meta.epoch;
        // What the receiver delivers then is of the packets that it held, in order of their arrival.
        let decides_start = packet.meta.flags == PacketFlags::EPOCH_ANSWER;
        let mut bytes = bytes.to_vec();
        if !self.checks_epochs {
            bytes[EPOCH].copy_from_slice(&Epoch::new(1, 1).0.to_le_bytes());
        }
        if !self.waits_for_end && packet.meta.flags == END_OF_ANSWER {
            // As if each service knew the end.
            bytes[FLAGS] = END_OF_ANSWER.with(PacketFlags::END_OF_SESSION).0;
        }
        let service = if self.asks_all_services { service } else { 0 };
        let datagram = PublishedDatagram { line, service, bytes: &bytes, ts_recv: UnixNs(now_ns) };
        let Self { receiver, checker, .. } = self;
        let before = checker.next_index;
        // The receiver counts what it refuses.
        let _ = receiver.accept(datagram, MonoNs(now_ns), &mut |output: Output<'_>| checker.take(&output, now_ns));
        if checker.next_index > before && epoch < self.highest_epoch && !decides_start {
            checker.record_violation(Violation::OldEpoch { epoch, after: self.highest_epoch });
        }
        self.stale_packets += u64::from(epoch < self.highest_epoch);
        // An answer about the epoch is no packet of the stream: the leader's last packets may arrive after it.
        if !decides_start {
            self.highest_epoch = self.highest_epoch.max(epoch);
        }
    }

    /// Handles timers. Returns the requests to send now, each with the index of its service.
    pub(super) fn poll_requests(&mut self, now_ns: u64) -> Vec<(usize, ServiceRequest)> {
        let Self { receiver, checker, selector, .. } = self;
        if receiver.next_deadline().is_some_and(|deadline| deadline.0 <= now_ns) {
            receiver.on_deadline(MonoNs(now_ns), &mut |output: Output<'_>| checker.take(&output, now_ns));
        }
        let mut requests = Vec::new();
        while let Some(request) = receiver.poll_request() {
            requests.push((selector.select(&request), request));
        }
        requests
    }

    /// Whether at least one item was delivered.
    pub(super) fn has_received(&self) -> bool {
        self.checker.next_index > 0
    }

    pub(super) fn is_complete(&self) -> bool {
        self.checker.next_index == self.checker.day.expected_items().len()
    }

    /// The first violation so far.
    pub(super) fn violation(&self) -> Option<&Violation> {
        self.checker.violation.as_ref()
    }

    /// At the end of the day: the first expected item that was not delivered.
    pub(super) fn missing(&self) -> Option<Violation> {
        self.checker.day.expected_items().get(self.checker.next_index).map(|item| Violation::Missing(*item))
    }

    /// Digest of all deliveries and their times.
    pub(super) fn digest(&self) -> DefaultHasher {
        self.checker.digest.clone()
    }
}

impl DeliveryChecker {
    fn take(&mut self, output: &Output<'_>, now_ns: u64) {
        let restart = output.session.restart;
        match &output.item {
            Item::Session => {
                self.expect(StreamItem::Session(restart), now_ns);
            }
            Item::Message { header, body } => {
                let sequence = header.sequence.get();
                self.expect(StreamItem::Message(restart, sequence), now_ns);
                if self.day.body(restart, sequence) != Some(*body) {
                    self.record_violation(Violation::Content(StreamItem::Message(restart, sequence)));
                }
                body.hash(&mut self.digest);
            }
            Item::EndOfSession => self.expect(StreamItem::End(restart), now_ns),
            Item::Lost(gap) | Item::Gap(gap) => {
                self.record_violation(Violation::Lost { restart, first: gap.first().0, next: gap.next().0 });
            }
            Item::Definition { .. }
            | Item::Snapshot { .. }
            | Item::Repeated { .. }
            | Item::Books(_)
            | Item::State(_) => self.record_violation(Violation::UnknownItem),
        }
    }

    /// Compares an item with the next expected one. A subscriber may miss the end of a session, since only a heartbeat
    /// reports that end.
    fn expect(&mut self, item: StreamItem, now_ns: u64) {
        (item, now_ns).hash(&mut self.digest);
        let all = self.day.expected_items();
        let is_skipped_end =
            all.get(self.next_index) != Some(&item) && matches!(all.get(self.next_index), Some(StreamItem::End(_)));
        let at = self.next_index + usize::from(is_skipped_end);
        if all.get(at) == Some(&item) {
            self.next_index = at + 1;
        } else {
            let expected = all.get(at).copied();
            self.record_violation(Violation::Unexpected { item, expected });
        }
    }

    fn record_violation(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }
}

/// Flags of the end of an answer whose service does not know where the session ended.
const END_OF_ANSWER: PacketFlags = PacketFlags::HEARTBEAT.with(PacketFlags::RETRANSMISSION);
/// Offset of the flags in a packet header.
const FLAGS: usize = 5;
/// Byte range of the epoch in a packet header.
const EPOCH: std::ops::Range<usize> = 16..24;
