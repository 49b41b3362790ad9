//! Runs the receiver over a file of streams, as the receivers in other languages do: each line that begins with `> ` is what the
//! receiver made of the lines before.

use mdgw_feeds::{
    drop_reason::DropReason,
    identity::{GroupId, Line},
    published::tag::{TagKey, TagPolicy},
    time::{MonoNs, UnixNs},
};
use mdgw_subscriber::{
    PublishedDatagram, Receiver, ReceiverConfig, ServiceConfig, ServiceSelector, SnapshotGroupConfig, StartFrom,
};
use zerocopy::IntoBytes as _;

use super::text;

/// A receiver on a virtual clock, and what it has made of its input.
pub(crate) struct ReplayedReceiver {
    receiver: Receiver,
    selector: ServiceSelector,
    /// Lines of text.
    pub(crate) output: Vec<String>,
    has_reported_rivals: bool,
}

impl ReplayedReceiver {
    /// A receiver with the settings of a `set` line.
    pub(crate) fn new(settings: &str) -> Self {
        let number = |name, default| text::number(settings, name).unwrap_or(default);
        let services = u8::try_from(number("services", 0)).unwrap();
        let keys = text::setting(settings, "keys").into_iter().flat_map(|keys| keys.split(','));
        let keys = keys.map(|key| TagKey::new(&text::from_hex(key).try_into().unwrap())).collect();
        let defaults = ServiceConfig::default();
        let config = ReceiverConfig {
            group: GroupId(1),
            channels_max: 4,
            lines: u8::try_from(number("lines", 1)).unwrap(),
            start: match text::setting(settings, "start") {
                Some("day") => StartFrom::OldestOfDay,
                Some("live") => StartFrom::Live,
                Some("snapshot") => StartFrom::Snapshot,
                _ => StartFrom::OldestOfSession,
            },
            tags: TagPolicy { keys, accepts_untagged: number("accepts_untagged", 0) == 1 },
            window_packets: usize::try_from(number("window", 256)).unwrap(),
            snapshot_bytes_max: number("snapshot_bytes_max", 1 << 20),
            rebuilds_books: number("rebuild", 0) == 1,
            rebuild_bytes_max: number("rebuild_bytes_max", 1 << 20),
            message_bytes_max: usize::try_from(number("message_bytes_max", 1 << 16)).unwrap(),
            service: (services > 0).then(|| ServiceConfig {
                service_count: services,
                attempts_max: u16::try_from(number("attempts", defaults.attempts_max.into())).unwrap(),
                messages_per_request_max: number("per_request", defaults.messages_per_request_max),
                ..defaults
            }),
            snapshot_group: (number("snapshot_group", 0) == 1).then(SnapshotGroupConfig::default),
            request_nonce: number("request_nonce", 0),
            epoch_nonce: number("epoch_nonce", 0),
            ..ReceiverConfig::default()
        };
        let selector = ServiceSelector::new(services.into());
        Self { receiver: Receiver::new(config), selector, output: Vec::new(), has_reported_rivals: false }
    }

    /// When the receiver wants to be called.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.receiver.next_deadline().map(|deadline| deadline.0)
    }

    /// Handles deadlines that have expired. Returns the requests that became due, each with its service.
    pub(crate) fn on_deadline(&mut self, now: u64) -> Vec<(u8, Vec<u8>)> {
        let output = &mut self.output;
        self.receiver.on_deadline(MonoNs(now), &mut |item| output.push(format!("> {}", text::item(&item))));
        self.requests()
    }

    /// Handles a datagram, and deadlines of the same time.
    pub(crate) fn accept(&mut self, now: u64, line: Line, service: u8, bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let datagram = PublishedDatagram { line, service, bytes, ts_recv: UnixNs(now) };
        let output = &mut self.output;
        let outcome =
            self.receiver.accept(datagram, MonoNs(now), &mut |item| output.push(format!("> {}", text::item(&item))));
        self.report(outcome);
        self.on_deadline(now)
    }

    /// The same for a datagram of the snapshot group.
    pub(crate) fn accept_from_group(&mut self, now: u64, bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let output = &mut self.output;
        let mut deliver = |item: mdgw_subscriber::Output<'_>| output.push(format!("> {}", text::item(&item)));
        let outcome = self.receiver.accept_from_snapshot_group(bytes, MonoNs(now), &mut deliver);
        self.report(outcome);
        self.on_deadline(now)
    }

    fn report(&mut self, outcome: Result<(), DropReason>) {
        if let Err(reason) = outcome
            // What is repeated is dropped, whatever the name.
            && !matches!(reason, DropReason::Duplicate | DropReason::LateAfterGap)
        {
            self.output.push(format!("> refused {}", reason.name()));
        }
    }

    pub(crate) fn finish(&mut self) {
        let output = &mut self.output;
        self.receiver.finish(&mut |item| output.push(format!("> {}", text::item(&item))));
    }

    fn requests(&mut self) -> Vec<(u8, Vec<u8>)> {
        let mut requests = Vec::new();
        while let Some(mut request) = self.receiver.poll_request() {
            let service = u8::try_from(self.selector.select(&request)).unwrap();
            request.nonce = self.receiver.request_nonce(service);
            let bytes = request.to_packet().as_bytes().to_vec();
            self.output.push(format!("> request {service} {}", text::hex(&bytes)));
            requests.push((service, bytes));
        }
        if let Some(rivals) = self.receiver.rival_epochs().filter(|_| !self.has_reported_rivals) {
            self.has_reported_rivals = true;
            let (lowest, highest, is_contradicted) = (rivals.lowest.0, rivals.highest.0, rivals.is_contradicted);
            self.output
                .push(format!("> rivals lowest={lowest} highest={highest} contradicted={}", u8::from(is_contradicted)));
        }
        requests
    }
}

/// The text of a file of streams with what the receiver makes of it.
pub(crate) fn replay(file: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut receiver = ReplayedReceiver::new("");
    for line in file.lines().filter(|line| !line.starts_with("> ")) {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "at" {
            let now = words[1].parse().unwrap();
            while let Some(deadline) = receiver.next_deadline().filter(|deadline| *deadline < now) {
                let _requests = receiver.on_deadline(deadline);
            }
            out.append(&mut receiver.output);
            out.push(line.to_owned());
            let _requests = match words[2..] {
                ["line", number, bytes] => {
                    receiver.accept(now, Line(number.parse().unwrap()), 0, &text::from_hex(bytes))
                }
                ["group", bytes] => receiver.accept_from_group(now, &text::from_hex(bytes)),
                ["service", number, bytes] => {
                    receiver.accept(now, Line::RECOVERY, number.parse().unwrap(), &text::from_hex(bytes))
                }
                _ => receiver.on_deadline(now),
            };
        } else {
            out.push(line.to_owned());
        }
        match words[0] {
            "set" => receiver = ReplayedReceiver::new(line),
            "finish" => receiver.finish(),
            _ => {}
        }
        out.append(&mut receiver.output);
    }
    out.iter().fold(String::new(), |text, line| text + line + "\n")
}
