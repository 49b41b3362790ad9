//! Suspect books of a receiver that runs: a snapshot makes them right, and no message is delivered twice as a message.

use super::{
    snapshot_start::{CHUNKS, Service, text},
    *,
};

/// A receiver of messages from 1 on, and its services.
struct Harness {
    receiver: Receiver,
    services: Vec<Service>,
    items: Vec<String>,
    now: MonoNs,
    turn: usize,
}

impl Harness {
    fn new(services: Vec<Service>) -> Self {
        Self::with(services, |_| {})
    }

    fn with(services: Vec<Service>, change: impl FnOnce(&mut ReceiverConfig)) -> Self {
        let service_config = ServiceConfig { service_count: services.len() as u8, ..service() };
        let mut config =
            ReceiverConfig { rebuilds_books: true, packet_bytes_max: 1_472, ..config(Some(service_config)) };
        change(&mut config);
        let receiver = Receiver::new(config);
        Self { receiver, services, items: Vec::new(), now: MonoNs(1_000_000_000), turn: 0 }
    }

    fn publish(&mut self, sequence: u64) {
        self.publish_with(sequence, FrameFlags(0));
    }

    fn publish_with(&mut self, sequence: u64, flags: FrameFlags) {
        for service in &mut self.services {
            service.log.end = sequence + 1;
        }
        let body = frame(sequence, FrameKind::Message, (0, WHOLE.1.with(flags)), &records(sequence, 1));
        let range = (sequence, sequence + 1);
        let bytes = datagram(PacketFlags::default(), session(0), Epoch::new(1, 1), range, &body);
        self.accept(Line::A, 0, &bytes);
        self.run(1);
    }

    /// Messages that neither a line nor a log has.
    fn lose(&mut self, lost: Range<u64>) {
        for service in &mut self.services {
            service.log.start = lost.end;
        }
        self.publish(lost.end);
        self.run(100);
    }

    fn accept(&mut self, line: Line, service: u8, bytes: &[u8]) {
        let datagram = PublishedDatagram { line, service, bytes, ts_recv: UnixNs(1) };
        let items = &mut self.items;
        let _counted = self.receiver.accept(datagram, self.now, &mut |output| items.push(text(&output)));
    }

    /// Lets so many milliseconds pass.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            while let Some(request) = self.receiver.poll_request() {
                let is_continued = request.kind == RequestKind::Snapshot && !asks_any_service(request.first);
                self.turn += usize::from(!is_continued);
                let index = self.turn % self.services.len();
                for bytes in self.services[index].answer(&request) {
                    self.accept(Line::RECOVERY, index as u8, &bytes);
                }
            }
            self.now = self.now.plus(1_000_000);
            let items = &mut self.items;
            self.receiver.on_deadline(self.now, &mut |output| items.push(text(&output)));
        }
    }

    fn take_items(&mut self) -> Vec<String> {
        std::mem::take(&mut self.items)
    }

    /// Queries for an image, over all services.
    fn query_count(&self) -> usize {
        self.services.iter().flat_map(|service| &service.requests).filter(|request| request.starts_with("0:")).count()
    }

    fn statistics(&self) -> ReceiverStatistics {
        *self.receiver.channels().next().unwrap().statistics()
    }
}

fn service_at(next: u64) -> Service {
    Service { next, log: 1..1, waits: 0, loss: usize::MAX, ..Service::new() }
}

/// The items of an image of three chunks.
fn image(number: u64, next: u64) -> Vec<String> {
    (0..u64::from(CHUNKS))
        .zip(["01", "00", "10"])
        .map(|(chunk, flags)| format!("s{next} {} {flags}", number * 100 + chunk))
        .collect()
}

fn words(text: &str) -> Vec<String> {
    text.split(", ").map(ToOwned::to_owned).collect()
}

#[test]
fn books_behind_a_loss_are_rebuilt_while_the_stream_goes_on() {
    for loss in [usize::MAX, 3, 4, 5] {
        let mut harness = Harness::new(vec![Service { waits: 2, loss, ..service_at(10) }]);
        (1..6).for_each(|sequence| harness.publish(sequence));
        harness.lose(6..8);
        (9..12).for_each(|sequence| harness.publish(sequence));
        assert_eq!(harness.take_items(), words("session, m1, m2, m3, m4, m5, lost 6..8, Suspect, m8, m9, m10, m11"));
        harness.run(3_000);
        harness.publish(12);
        let expected = [image(5, 10), words("r10, r11, Right, m12")].concat();
        assert_eq!(harness.take_items(), expected, "loss {loss}: {:?}", harness.services[0].requests);
        assert_eq!((harness.statistics().books_rebuilt, harness.statistics().messages), (1, 10));
        harness.run(200_000);
        assert_eq!(harness.items, [""; 0], "nothing more is requested");
    }
}

#[test]
fn without_the_setting_nothing_is_requested() {
    let mut harness = Harness::with(vec![service_at(10)], |config| config.rebuilds_books = false);
    harness.publish(1);
    harness.lose(2..5);
    harness.run(10_000);
    assert_eq!((harness.take_items(), harness.query_count()), (words("session, m1, lost 2..5, m5"), 0));
}

/// Its image has suspect books, or is of a position before the loss.
#[test]
fn an_image_that_is_not_right_is_left_and_requests_become_rare() {
    for (next, is_suspect) in [(20, true), (3, false)] {
        let mut harness =
            Harness::new(vec![Service { is_suspect, ..service_at(next) }, Service { is_suspect, ..service_at(next) }]);
        harness.publish(1);
        harness.lose(2..20);
        harness.run(300_000);
        assert_eq!(harness.take_items(), words("session, m1, lost 2..20, Suspect, m20"));
        let requests: Vec<_> = harness.services.iter().flat_map(|service| service.requests.clone()).collect();
        assert!(requests.iter().all(|request| request == "0:0..1"), "one chunk says enough: {requests:?}");
        // Ten queries of both services, twice each.
        assert!((10..=48).contains(&requests.len()), "{requests:?}");
        assert!(harness.statistics().rebuilds_refused >= 5);
        // The gateways' books are right again.
        for service in &mut harness.services {
            (service.is_suspect, service.next, service.image) = (false, 21, 9);
        }
        harness.publish(21);
        harness.run(70_000);
        let expected = [words("m21"), image(9, 21), words("r21, Right")].concat();
        assert_eq!(harness.take_items(), expected);
    }
}

#[test]
fn books_that_the_gateway_marks_are_rebuilt_once_its_own_are_right() {
    let mut harness = Harness::new(vec![Service { is_suspect: true, ..service_at(3) }]);
    harness.publish(1);
    harness.publish_with(2, FrameFlags::SUSPECT);
    harness.run(2_000);
    assert_eq!(harness.take_items(), words("session, m1, m2, Suspect"));
    // As after a restart from the peer's copy.
    harness.services[0].is_suspect = false;
    harness.publish(3);
    harness.run(5_000);
    assert_eq!(harness.take_items(), [words("m3"), image(5, 3), words("r3, Right")].concat());
}

#[test]
fn another_loss_discards_the_image_that_is_being_received() {
    let mut harness = Harness::new(vec![Service { withholds_rest: true, ..service_at(10) }]);
    (1..6).for_each(|sequence| harness.publish(sequence));
    harness.lose(6..10);
    while harness.services[0].requests.len() < 2 {
        harness.run(1);
    }
    harness.services[0].withholds_rest = false;
    harness.lose(11..15);
    harness.run(3_000);
    let lost = words("session, m1, m2, m3, m4, m5, lost 6..10, Suspect, m10, lost 11..15, m15");
    assert_eq!(harness.take_items(), lost, "position 10 is before the second loss");
    (harness.services[0].image, harness.services[0].next) = (6, 17);
    harness.run(20_000);
    assert_eq!(harness.take_items(), [""; 0], "the image is ahead of what was received");
    harness.publish(16);
    assert_eq!(harness.take_items(), [words("m16"), image(6, 17), words("Right")].concat());
}

/// Messages since the loss are kept within a bound.
#[test]
fn an_image_behind_which_messages_are_no_longer_kept_is_left() {
    let mut harness = Harness::with(vec![service_at(9)], |config| config.rebuild_bytes_max = 300);
    harness.publish(1);
    harness.lose(2..8);
    (9..20).for_each(|sequence| harness.publish(sequence));
    harness.take_items();
    harness.run(10_000);
    assert_eq!(harness.take_items(), [""; 0]);
    (harness.services[0].image, harness.services[0].next) = (6, 19);
    harness.run(64_000);
    assert_eq!(harness.take_items(), [image(6, 19), words("r19, Right")].concat());
}

/// The next session begins with empty books.
#[test]
fn a_new_session_ends_the_rebuild() {
    let mut harness = Harness::new(vec![Service { is_suspect: true, ..service_at(10) }]);
    harness.publish(1);
    harness.lose(2..5);
    harness.services[0].log = 1..2;
    let body = frame(1, FrameKind::Message, WHOLE, &records(1, 1));
    let bytes = datagram(PacketFlags::default(), session(1), Epoch::new(1, 1), (1, 2), &body);
    harness.accept(Line::A, 0, &bytes);
    harness.run(20_000);
    let count = harness.query_count();
    harness.run(200_000);
    assert_eq!(harness.query_count(), count);
}

/// The log no longer has the session's beginning.
#[test]
fn a_start_in_mid_session_gets_its_books_from_a_snapshot() {
    let mut harness = Harness::new(vec![Service { log: 5..8, ..service_at(8) }]);
    harness.publish(8);
    harness.run(10_000);
    let expected = [words("session, Suspect, m5, m6, m7, m8"), image(5, 8), words("r8, Right")].concat();
    assert_eq!(harness.take_items(), expected);
}
