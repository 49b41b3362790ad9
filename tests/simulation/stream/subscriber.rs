//! A subscriber with the product's own receiver, and the checker of what it delivers.

use std::{
    hash::{DefaultHasher, Hash as _},
    rc::Rc,
};

use mdgw_feeds::{
    identity::{Epoch, Line},
    published::{
        packet::parse_packet,
        receiver::{Item, Output, PublishedDatagram, Receiver, ReceiverConfig, ServiceConfig},
        request::ServiceRequest,
    },
    time::{MonoNs, UnixNs},
};
use mdgw_subscriber::ServiceSelector;

use super::{
    CHANNEL, GROUP, MS, Violation,
    day::{Told, VenueScript},
};

pub(super) struct Subscriber {
    receiver: Receiver,
    selector: ServiceSelector,
    checks_epochs: bool,
    asks_all_services: bool,
    highest: Epoch,
    pub(super) stale: u64,
    checker: DeliveryChecker,
}

/// Knows what must come next.
struct DeliveryChecker {
    day: Rc<VenueScript>,
    at: usize,
    violation: Option<Violation>,
    digest: DefaultHasher,
}

/// How a subscriber is set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubscriberSetup {
    pub(super) lines: u8,
    /// Retransmission services; without one, what is missing on the wire is lost.
    pub(super) services: Option<usize>,
    /// Receivers drop what comes under a lower epoch.
    pub(super) checks_epochs: bool,
    /// Receivers ask all services what their logs hold.
    pub(super) asks_all_services: bool,
}

impl Subscriber {
    pub(super) fn new(day: &Rc<VenueScript>, setup: SubscriberSetup) -> Self {
        let service = |services| ServiceConfig {
            request_timeout_ns: 3 * MS,
            attempts_max: 60,
            service_count: if setup.asks_all_services { u8::try_from(services).expect("few services") } else { 1 },
            // Who is dead comes back, and what it alone has is wanted.
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
        let checker = DeliveryChecker { day: Rc::clone(day), at: 0, violation: None, digest: DefaultHasher::new() };
        Self {
            receiver,
            selector: ServiceSelector::new(setup.services.unwrap_or(0)),
            checks_epochs: setup.checks_epochs,
            asks_all_services: setup.asks_all_services,
            highest: Epoch::default(),
            stale: 0,
            checker,
        }
    }

    /// A packet arrives.
    pub(super) fn hear(&mut self, line: Line, service: u8, bytes: &[u8], now_ns: u64) {
        let packet = parse_packet(bytes).expect("a packet");
        let epoch = packet.meta.epoch;
        let mut bytes = bytes.to_vec();
        if !self.checks_epochs {
            bytes[EPOCH].copy_from_slice(&Epoch::new(1, 1).0.to_le_bytes());
        }
        let service = if self.asks_all_services { service } else { 0 };
        let datagram = PublishedDatagram { line, service, bytes: &bytes, ts_recv: UnixNs(now_ns) };
        let Self { receiver, checker, .. } = self;
        let before = checker.at;
        // Refused is dropped and counted.
        let _ = receiver.accept(datagram, MonoNs(now_ns), &mut |output: Output<'_>| checker.take(&output, now_ns));
        if checker.at > before && epoch < self.highest {
            checker.record_violation(Violation::OldEpoch { epoch, after: self.highest });
        }
        self.stale += u64::from(epoch < self.highest);
        self.highest = self.highest.max(epoch);
    }

    /// Time has passed. What is to be asked now, and of which service.
    pub(super) fn look(&mut self, now_ns: u64) -> Vec<(usize, ServiceRequest)> {
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

    /// Something has been delivered to it.
    pub(super) fn has_received(&self) -> bool {
        self.checker.at > 0
    }

    pub(super) fn is_complete(&self) -> bool {
        self.checker.at == self.checker.day.told().len()
    }

    /// What is wrong so far.
    pub(super) fn violation(&self) -> Option<&Violation> {
        self.checker.violation.as_ref()
    }

    /// What has not been told, now that the day is over.
    pub(super) fn missing(&self) -> Option<Violation> {
        self.checker.day.told().get(self.checker.at).map(|told| Violation::Missing(*told))
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
                self.expect(Told::Session(restart), now_ns);
            }
            Item::Message { header, body } => {
                let sequence = header.sequence.get();
                self.expect(Told::Message(restart, sequence), now_ns);
                if self.day.body(restart, sequence) != Some(*body) {
                    self.record_violation(Violation::Content(Told::Message(restart, sequence)));
                }
                body.hash(&mut self.digest);
            }
            Item::EndOfSession => self.expect(Told::End(restart), now_ns),
            Item::Lost(gap) | Item::Gap(gap) => {
                self.record_violation(Violation::Lost { restart, first: gap.first().0, next: gap.next().0 });
            }
            Item::Definition { .. } | Item::Snapshot { .. } | Item::State(_) => {
                self.record_violation(Violation::UnknownItem)
            }
        }
    }

    /// The end of a session that the venue broke off for another one may be missed: only a heartbeat reports it.
    fn expect(&mut self, told: Told, now_ns: u64) {
        (told, now_ns).hash(&mut self.digest);
        let all = self.day.told();
        let is_skipped_end = all.get(self.at) != Some(&told) && matches!(all.get(self.at), Some(Told::End(_)));
        let at = self.at + usize::from(is_skipped_end);
        if all.get(at) == Some(&told) {
            self.at = at + 1;
        } else {
            let expected = all.get(at).copied();
            self.record_violation(Violation::Unexpected { told, expected });
        }
    }

    fn record_violation(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }
}

/// Offset of a packet's epoch.
const EPOCH: std::ops::Range<usize> = 16..24;
