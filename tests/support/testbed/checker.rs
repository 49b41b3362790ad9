//! Checks what receivers got: against the venue's whole input run offline, and with `mdgw ha verify` on every capture.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use mdgw_captures::capture_file::{CaptureFile, OpenOptions};
use mdgw_feeds::{
    arbiter::ArbiterConfig,
    channel::{Channel, Datagram},
    frame::{FrameFlags, FrameHeader, FrameKind, FrameMeta, FrameSink},
    identity::{Epoch, Line, Sequence, Session},
    published::packet::{Frames, PacketFlags, parse_packet},
    time::{MonoNs, UnixNs},
};
use mdgw_publog::{Entry, Reader};
use mdgw_runtime::config::Resolved;
use mdgw_simulator::itch_generator::{ItchDay, ItchGenerator, ItchPackets};
use mdgw_tools::verify::OutputCheck;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    faults::{ExpectedOutcome, InjectedFault},
    receiver::{Delivered, DeliveredItem, ReceiverLog, content_hash},
    stream_summary::BlockHashes,
};
use crate::{
    captures::print_to_stderr,
    feeds::SESSION,
    gateway_fixture::text,
    pair::CHANNEL,
    process::{self, ExitedProcess},
    trading_day::DATE,
};

/// Number of instruments of the venue's day.
pub const STOCKS: u16 = 200;
/// Seed of the day.
pub const SEED: u64 = 1;

/// The venue's input and the configuration under which it is decoded.
#[derive(Clone, Debug)]
pub struct VenueInput {
    /// Number of messages.
    pub messages: u64,
    /// The lines of the channel that differ between plans. Two inputs with the same lines and number of messages are decoded alike.
    pub channel: String,
    /// A gateway's configuration.
    pub config: String,
}

/// What every receiver must get: message ids, ascending, with hashes of their content.
#[derive(Clone, Debug, Default)]
pub struct ExpectedStream {
    messages: Vec<((Session, u64), u64)>,
    /// Number of complete messages after each packet.
    after_packets: Vec<usize>,
}

impl VenueInput {
    /// Decodes the whole input from one line, without loss, with the channel alone. The last stream is kept, since the days of one
    /// kind of trials have the same input.
    ///
    /// # Panics
    /// When the configuration is invalid.
    #[must_use]
    pub fn expected(&self) -> Arc<ExpectedStream> {
        static LAST: Mutex<Option<(u64, String, Arc<ExpectedStream>)>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((messages, channel, stream)) = &*last
            && (*messages, channel) == (self.messages, &self.channel)
        {
            return Arc::clone(stream);
        }
        // Two streams of a long day at a time would take twice the memory.
        *last = None;
        let stream = Arc::new(self.decode_whole());
        *last = Some((self.messages, self.channel.clone(), Arc::clone(&stream)));
        stream
    }

    fn decode_whole(&self) -> ExpectedStream {
        let mut sink = ExpectedSink::default();
        self.decode(&mut sink, |sink| {
            sink.expected.after_packets.push(sink.expected.messages.len());
            true
        });
        sink.expected
    }

    /// Hashes of the blocks of each session, if the venue played the first `played_packets` packets of the day in it.
    ///
    /// # Panics
    /// When the configuration is invalid.
    #[must_use]
    pub fn expected_blocks(&self, played_packets: &[u64]) -> BlockHashes {
        let mut expected = BlockHashes::default();
        for (restart, packets) in (0..).zip(played_packets) {
            let (mut sink, mut left) = (BlockSink { restart, session: None, blocks: &mut expected }, *packets);
            self.decode(&mut sink, |_| {
                left = left.saturating_sub(1);
                left > 0
            });
            expected.close();
        }
        expected
    }

    /// Decodes the input from one line, without loss, with the channel alone, until `after_packet` returns false.
    fn decode<S: FrameSink>(&self, sink: &mut S, mut after_packet: impl FnMut(&mut S) -> bool) {
        let config = Resolved::from_text(Path::new("gateway.toml"), &self.config).expect("the configuration is valid");
        let mut config = config.channels[0].channel_config();
        config.arbiter = ArbiterConfig { lines: 1, ..ArbiterConfig::default() };
        config.date = Some(DATE.parse().expect("a date"));
        let day = ItchDay { seed: SEED, message_count: self.messages, stock_count: STOCKS, ..ItchDay::default() };
        let mut packets = ItchPackets::new(ItchGenerator::new(day), SESSION);
        let mut channel = Channel::new(config);
        let mut bytes = Vec::new();
        while let Some(packet) = packets.next_packet(&mut bytes) {
            let datagram = Datagram { line: Line::A, bytes: &bytes, ts_recv: UnixNs(packet.time_ns) };
            channel.accept(datagram, MonoNs(packet.time_ns), sink);
            if !after_packet(sink) {
                break;
            }
        }
        channel.finish(sink);
    }
}

impl ExpectedStream {
    /// The stream of a venue that played the first `played_packets` packets of the day in each session.
    #[must_use]
    pub fn for_sessions(whole: &Self, played_packets: &[u64]) -> Self {
        let mut expected = Self::default();
        for (restart, packets) in (0..).zip(played_packets) {
            let last = usize::try_from(*packets).ok().and_then(|packets| packets.checked_sub(1));
            let count = last.and_then(|last| whole.after_packets.get(last)).copied().unwrap_or(0);
            let renamed = |((session, sequence), content_hash): &((Session, u64), u64)| {
                ((Session { restart, ..*session }, *sequence), *content_hash)
            };
            expected.messages.extend(whole.messages.iter().take(count).map(renamed));
        }
        expected
    }

    /// Messages that a receiver never got, with the deliveries around each: at most [`MISSING_SHOWN_MAX`].
    fn missing_messages(&self, delivered: &[Delivered]) -> Vec<MissingMessage> {
        let message_id_of = |delivered: &Delivered| match delivered.item {
            DeliveredItem::Message { id, .. } => Some(id),
            DeliveredItem::Gap(_) | DeliveredItem::Lost(_) | DeliveredItem::End => None,
        };
        let delivered_sequences: HashSet<_> = delivered.iter().filter_map(message_id_of).collect();
        let lost = self.messages.iter().map(|(id, _)| *id).filter(|id| !delivered_sequences.contains(id));
        let missing_message = |id: (Session, u64)| MissingMessage {
            id,
            before: delivered
                .iter()
                .rev()
                .find(|delivery| message_id_of(delivery).is_some_and(|other| other < id))
                .copied(),
            after: delivered.iter().find(|delivery| message_id_of(delivery).is_some_and(|other| other > id)).copied(),
        };
        lost.take(MISSING_SHOWN_MAX).map(missing_message).collect()
    }

    /// Whether a packet or log entry that covers this range with these messages, and no gap, leaves out an expected message.
    fn suppresses_messages(&self, session: Session, (first, next): (u64, u64), delivered_sequences: &[u64]) -> bool {
        let before = |sequence| self.messages.partition_point(|(id, _)| *id < (session, sequence));
        let expected = self.messages.get(before(first)..before(next)).unwrap_or_default();
        expected.iter().any(|((_, sequence), _)| !delivered_sequences.contains(sequence))
    }

    /// Captured packets and log entries that cover an expected message without publishing it: at most [`MISSING_SHOWN_MAX`].
    fn suppressed_messages(&self, captures: &[PathBuf], logs: &[PathBuf]) -> Vec<String> {
        let mut found = Vec::new();
        for (receiver, capture) in (0..).zip(captures) {
            let mut file = CaptureFile::open(capture, &OpenOptions::default()).expect("a receiver's capture");
            while let Ok(Some(datagram)) = file.next_datagram() {
                let Ok(packet) = parse_packet(datagram.payload) else { continue };
                let (meta, is) = (packet.meta, |flag| packet.meta.flags.contains(flag));
                // The ranges of snapshots, and of the heartbeat that ends a retransmission, do not count messages.
                let is_of_messages =
                    !(is(PacketFlags::SNAPSHOT) || is(PacketFlags::RETRANSMISSION) && is(PacketFlags::HEARTBEAT));
                let range = (meta.first.0, meta.next.0);
                let delivered_sequences = messages_in_range(packet.frames().map(|(header, _)| header), range);
                if is_of_messages
                    && delivered_sequences.as_ref().is_some_and(|delivered_sequences| {
                        self.suppresses_messages(meta.session, range, delivered_sequences)
                    })
                {
                    found.push(format!(
                        "receiver {receiver}, from {}: {delivered_sequences:?} in {meta:?}",
                        datagram.src
                    ));
                }
            }
        }
        for (node, log) in (1..).zip(logs) {
            let Ok(mut reader) = Reader::open(log, CHANNEL.0) else { continue };
            while let Some(entry) = reader.next() {
                let Some(session) = Session::from_bytes(entry.session) else { continue };
                let range = (entry.first, entry.next);
                let delivered_sequences =
                    messages_in_range(Frames::of_body(entry.payload).map(|(header, _)| header), range);
                if delivered_sequences
                    .as_ref()
                    .is_some_and(|delivered_sequences| self.suppresses_messages(session, range, delivered_sequences))
                {
                    found.push(format!(
                        "log of {node}, entry {}: {delivered_sequences:?} in {session:?} {range:?}",
                        entry.number
                    ));
                }
            }
        }
        found.truncate(MISSING_SHOWN_MAX);
        found
    }

    /// Position of that message among the expected ones; `guess` is tried first.
    fn position(&self, id: (Session, u64), guess: usize) -> Option<usize> {
        match self.messages.get(guess) {
            Some((expected, _)) if *expected == id => Some(guess),
            _ => self.messages.binary_search_by_key(&id, |(expected, _)| *expected).ok(),
        }
    }

    /// The errors in the deliveries to one receiver.
    #[must_use]
    pub fn errors_in(&self, delivered: &[Delivered]) -> DeliveryErrors {
        let mut errors = DeliveryErrors::default();
        // Id of the last message before the first one with a suspect book.
        let mut confirmed_until = None;
        // A day of an overload has tens of millions of messages: a byte for each, where a map would take sixty.
        let mut is_delivered = vec![false; self.messages.len()];
        // Streams are nearly in order, so the next message expected is nearly always the one delivered.
        let mut next = 0;
        let mut last = None;
        for what in delivered.iter().map(|delivered| delivered.item) {
            match what {
                DeliveredItem::Gap(count) => errors.declared_gaps += count,
                DeliveredItem::Lost(count) => errors.receiver_gaps += count,
                DeliveredItem::End => {}
                DeliveredItem::Message { id, content_hash, is_suspect } => {
                    errors.out_of_order += u64::from(last.is_some_and(|last| id < last));
                    last = Some(id);
                    if !is_suspect && errors.suspect == 0 {
                        confirmed_until = Some(id);
                    }
                    errors.suspect += u64::from(is_suspect);
                    let Some(position) = self.position(id, next) else {
                        errors.unknown += 1;
                        continue;
                    };
                    next = position + 1;
                    if is_delivered[position] {
                        errors.duplicated += 1;
                        continue;
                    }
                    is_delivered[position] = true;
                    let is_different = u64::from(self.messages[position].1 != content_hash);
                    *(if is_suspect { &mut errors.different_while_suspect } else { &mut errors.content_differs }) +=
                        is_different;
                }
            }
        }
        let missing = self.messages.iter().zip(&is_delivered).filter(|(_, is_delivered)| !**is_delivered);
        for ((id, _), _) in missing {
            // A message whose order is unknown to a suspect book yields no records.
            let is_after_suspect = errors.suspect > 0 && Some(*id) > confirmed_until;
            *(if is_after_suspect { &mut errors.different_while_suspect } else { &mut errors.lost }) += 1;
        }
        errors
    }
}

/// A message that a receiver never got.
#[derive(Clone, Copy, Debug)]
struct MissingMessage {
    id: (Session, u64),
    before: Option<Delivered>,
    after: Option<Delivered>,
}

impl MissingMessage {
    /// Text with every captured packet and log entry whose range contains it.
    fn describe(&self, captures: &[PathBuf], logs: &[PathBuf]) -> String {
        let Self { id: (session, sequence), before, after } = self;
        let mut text = format!("missing: {sequence} of {session:?}, after {before:?}, before {after:?}");
        for (receiver, capture) in (0..).zip(captures) {
            let mut file = CaptureFile::open(capture, &OpenOptions::default()).expect("a receiver's capture");
            while let Ok(Some(datagram)) = file.next_datagram() {
                let Ok(packet) = parse_packet(datagram.payload) else { continue };
                let has_it = packet.frames().any(|(header, _)| is_message(header, *sequence));
                let is_in_range = (packet.meta.first.0..packet.meta.next.0).contains(sequence);
                if packet.meta.session == *session && (is_in_range || has_it) {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "\n  receiver {receiver} at {} from {}, ", datagram.time_ns, datagram.src);
                    let _ = write!(
                        text,
                        "{}: {:?}, {:?}",
                        if has_it { "has it" } else { "silent" },
                        packet.meta,
                        packet.part
                    );
                }
            }
        }
        for (node, log) in (1..).zip(logs) {
            let Ok(mut reader) = Reader::open(log, CHANNEL.0) else { continue };
            while let Some(entry) = reader.next() {
                let has_it = Frames::of_body(entry.payload).any(|(header, _)| is_message(header, *sequence));
                let is_in_range = (entry.first..entry.next).contains(sequence);
                if Session::from_bytes(entry.session) == Some(*session) && (is_in_range || has_it) {
                    let Entry { number, first, next, ts_commit, frame_count, flags, .. } = entry;
                    let _ = write!(text, "\n  log of {node}, entry {number} at {ts_commit}, [{first}, {next}), ");
                    let what = if has_it { "has it" } else { "silent" };
                    let _ = write!(text, "{frame_count} frames, flags {flags}: {what}");
                }
            }
        }
        text
    }
}

fn is_message(header: &FrameHeader, sequence: u64) -> bool {
    header.kind == FrameKind::Message as u8 && header.sequence.get() == sequence
}

/// The messages of that range whose last part is in these frames; `None` if a gap is declared among them.
fn messages_in_range<'a>(frames: impl Iterator<Item = &'a FrameHeader>, (first, next): (u64, u64)) -> Option<Vec<u64>> {
    let mut delivered_sequences = Vec::new();
    for header in frames {
        let is_last = FrameFlags(header.flags).contains(FrameFlags::LAST_PART);
        match FrameKind::from_number(header.kind) {
            Some(FrameKind::Gap) => return None,
            Some(FrameKind::Message) if is_last && (first..next).contains(&header.sequence.get()) => {
                delivered_sequences.push(header.sequence.get());
            }
            _ => {}
        }
    }
    Some(delivered_sequences)
}

/// At most this many missing messages are described.
const MISSING_SHOWN_MAX: usize = 12;

/// Errors in a delivered stream: counts of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryErrors {
    /// Never delivered.
    pub lost: u64,
    /// Delivered more than once.
    pub duplicated: u64,
    /// Delivered after a later message.
    pub out_of_order: u64,
    /// Delivered with other records.
    pub content_differs: u64,
    /// Delivered although the venue never sent them.
    pub unknown: u64,
    /// In gaps that a gateway declared.
    pub declared_gaps: u64,
    /// Given up by the receiver.
    pub receiver_gaps: u64,
    /// Delivered with a suspect book.
    pub suspect: u64,
    /// Delivered with other records, or not at all, while books were marked suspect.
    pub different_while_suspect: u64,
}

impl DeliveryErrors {
    /// The sum of all counts.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let Self {
            lost,
            duplicated,
            out_of_order,
            content_differs,
            unknown,
            declared_gaps,
            receiver_gaps,
            suspect,
            different_while_suspect,
        } = self;
        lost + duplicated
            + out_of_order
            + content_differs
            + unknown
            + declared_gaps
            + receiver_gaps
            + suspect
            + different_while_suspect
    }

    /// Adds the counts of another receiver.
    pub fn add(&mut self, other: &Self) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.out_of_order += other.out_of_order;
        self.content_differs += other.content_differs;
        self.unknown += other.unknown;
        self.declared_gaps += other.declared_gaps;
        self.receiver_gaps += other.receiver_gaps;
        self.suspect += other.suspect;
        self.different_while_suspect += other.different_while_suspect;
    }
}

/// One change of leadership, as one receiver saw it. Times in ns since 1970 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipChange {
    /// The epoch whose content ended.
    pub old_epoch: Epoch,
    /// The epoch whose content came next.
    pub new_epoch: Epoch,
    /// The last packet of the old epoch ended inside a message.
    pub ended_mid_message: bool,
    /// Last record of the old epoch.
    pub last_old_ns: u64,
    /// First packet of the new one, of any kind.
    pub first_packet_ns: u64,
    /// First new content.
    pub first_content_ns: u64,
}

impl LeadershipChange {
    /// Time without new content, ns.
    #[must_use]
    pub fn silence_ns(&self) -> u64 {
        self.first_content_ns.saturating_sub(self.last_old_ns)
    }

    /// Whether that fault caused it, not an earlier event.
    #[must_use]
    pub fn is_caused_by(&self, fault: &InjectedFault) -> bool {
        self.old_epoch == fault.epoch_before && self.first_content_ns >= fault.injected_ns
    }
}

/// The result of a testbed run.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// Delivery errors of each receiver.
    pub errors: Vec<DeliveryErrors>,
    /// Leadership changes that each receiver saw, in order.
    pub changes: Vec<Vec<LeadershipChange>>,
    /// What each receiver got.
    pub received: Vec<ReceiverLog>,
    /// Output of `mdgw ha verify --json` on all captures.
    pub verify_json: Value,
    /// What each receiver captured.
    captures: Vec<PathBuf>,
    /// The directory of the captures.
    _capture_dir: Arc<TempDir>,
    /// Packets of an epoch older than the one that their receiver had accepted, over all receivers.
    pub fenced: u64,
    /// Messages that a receiver got more than once: the maximum over receivers.
    pub republished: u64,
    /// When each epoch's leader knew that it leads, ns since 1970 UTC, by the audits.
    pub gained_ns: BTreeMap<Epoch, u64>,
    /// When a gateway was notified of a peer's death, ns since 1970 UTC, by the audits.
    pub death_notices_ns: BTreeSet<u64>,
    /// When a sentinel noticed its gateway's death, ns since 1970 UTC, by its log.
    pub sentinel_notices_ns: BTreeSet<u64>,
    /// Warnings and errors that gateways and sentinels logged.
    pub warnings: Vec<String>,
    /// Warnings about wrong books (their gateway may lead later), and packets or log entries that suppress a message.
    pub book_warnings: Vec<String>,
}

/// Logs of gateways and sentinels.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunLogs<'a> {
    /// The publication log of each gateway.
    pub(super) logs: &'a [PathBuf],
    /// The audit of each gateway.
    pub(super) audits: &'a [String],
    /// Standard error of each process.
    pub(super) outputs: &'a [String],
}

impl RunResult {
    /// Checks the run. The captures are in `capture_dir`.
    pub(super) fn of(
        expected: &ExpectedStream,
        received: Vec<(PathBuf, ReceiverLog)>,
        records: &RunLogs<'_>,
        capture_dir: Arc<TempDir>,
    ) -> Self {
        let (captures, received): (Vec<PathBuf>, Vec<ReceiverLog>) = received.into_iter().unzip();
        // Nothing is measured any more, so all cores check.
        let (verify_json, republished, errors, suppressed_messages) = thread::scope(|scope| {
            let verify_json = scope.spawn(|| verify(&captures, &["--json"]));
            let of_one = |capture| verify(std::slice::from_ref(capture), &["--json"]).json()["republished"].as_u64();
            let republished: Vec<_> = captures.iter().map(|capture| scope.spawn(move || of_one(capture))).collect();
            let errors_in = |log: &ReceiverLog| expected.errors_in(&log.delivered);
            let errors: Vec<_> = received.iter().map(|log| scope.spawn(move || errors_in(log))).collect();
            let suppressed_messages = expected.suppressed_messages(&captures, records.logs);
            (
                joined(verify_json),
                republished.into_iter().filter_map(joined).max().unwrap_or_default(),
                errors.into_iter().map(joined).collect::<Vec<_>>(),
                suppressed_messages,
            )
        });
        let warnings = records.outputs.iter().flat_map(|output| output.lines()).filter(|line| is_warning(line));
        let warnings: Vec<_> = warnings.map(str::to_owned).collect();
        // Only to describe what is missing: searching takes as long as counting.
        let has_lost = errors.iter().any(|errors| errors.lost + errors.different_while_suspect > 0);
        let lost: Vec<_> = received
            .iter()
            .filter(|_| has_lost)
            .flat_map(|received| expected.missing_messages(&received.delivered))
            .collect();
        if !lost.is_empty() {
            let lost: Vec<_> = lost.iter().map(|lost| lost.describe(&captures, records.logs)).collect();
            print_to_stderr(&format!("{}\n{}", lost.join("\n"), records.outputs.join("\n---\n")));
        }
        Self {
            errors,
            republished,
            changes: received.iter().map(changes).collect(),
            verify_json: verify_json.json(),
            captures,
            _capture_dir: capture_dir,
            fenced: verify_json.json()["stale_epoch_packets"].as_u64().unwrap_or_default(),
            gained_ns: events(records.audits, "gained").chain(events(records.audits, "raised")).collect(),
            death_notices_ns: events(records.audits, "died").map(|(_, time_ns)| time_ns).collect(),
            sentinel_notices_ns: records.outputs.iter().flat_map(|output| death_notice_times(output)).collect(),
            book_warnings: warnings
                .iter()
                .filter(|line| is_book_warning(line))
                .cloned()
                .chain(suppressed_messages)
                .collect(),
            warnings,
            received,
        }
    }

    /// Output of `mdgw ha verify` on all captures, as text.
    #[must_use]
    pub fn verdict(&self) -> String {
        verify(&self.captures, &[]).stdout
    }

    /// Asserts that no receiver saw a message lost, duplicated, out of order or with other content, and that
    /// `mdgw ha verify` finds nothing in the captures.
    ///
    /// # Panics
    /// When a receiver or `mdgw ha verify` found an error.
    pub fn assert_no_errors(&self) {
        for errors in &self.errors {
            assert_eq!(*errors, DeliveryErrors::default(), "{}", self.verdict());
        }
        assert_eq!(self.verify_json["passed"], true, "{}", self.verdict());
    }

    /// Whether that fault had that outcome at each receiver.
    #[must_use]
    pub fn has_expected_outcome(&self, expected: ExpectedOutcome, fault: &InjectedFault) -> bool {
        let changes: Vec<&LeadershipChange> = self.changes_caused_by(fault).collect();
        let all = |is: &dyn Fn(&LeadershipChange) -> bool| {
            changes.len() == self.changes.len() && changes.iter().all(|change| is(change))
        };
        match (expected, fault.stable_until_ns) {
            (ExpectedOutcome::NoChange, Some(until_ns)) => {
                changes.iter().all(|change| change.first_content_ns > until_ns)
            }
            (ExpectedOutcome::PeerLeads, None) => all(&|change| change.new_epoch.node() != fault.epoch_before.node()),
            (ExpectedOutcome::NewEpoch, None) => all(&|_| true),
            (ExpectedOutcome::NoChange, None) | (ExpectedOutcome::PeerLeads | ExpectedOutcome::NewEpoch, Some(_)) => {
                false
            }
        }
    }

    /// The leadership changes that the fault caused: at most one per receiver.
    pub fn changes_caused_by(&self, fault: &InjectedFault) -> impl Iterator<Item = &LeadershipChange> {
        self.changes.iter().filter_map(|all| all.iter().find(|change| change.is_caused_by(fault)))
    }

    /// How often `mdgw ha verify` found two publishers at a time, and how many other violations it found.
    #[must_use]
    pub fn broken_promises(&self) -> (u64, u64) {
        let counts = self.verify_json["violations"].as_object().cloned().unwrap_or_default();
        let of = |is_overlap: bool| {
            let expected =
                counts.iter().filter(|(check, _)| (*check == OutputCheck::SinglePublisher.name()) == is_overlap);
            expected.filter_map(|(_, count)| count.as_u64()).sum()
        };
        (of(true), of(false))
    }

    /// Epochs that were published, ascending.
    #[must_use]
    pub fn epochs(&self) -> Vec<Epoch> {
        let epochs = self.verify_json["epochs"].as_array().cloned().unwrap_or_default();
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let node = |value: &Value| u8::try_from(number(value)).unwrap_or_default();
        epochs.iter().map(|epoch| Epoch::new(number(&epoch["count"]), node(&epoch["node"]))).collect()
    }
}

fn joined<R>(check: thread::ScopedJoinHandle<'_, R>) -> R {
    check.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The longest time within `[from_ns, until_ns)` without a delivery to that receiver, ns.
#[must_use]
pub fn longest_silence_ns(received: &ReceiverLog, from_ns: u64, until_ns: u64) -> u64 {
    let times = received.delivered.iter().map(|delivered| delivered.time_ns);
    let within = times.filter(|time_ns| (from_ns..until_ns).contains(time_ns));
    let times: Vec<u64> = [from_ns].into_iter().chain(within).chain([until_ns]).collect();
    times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0)
}

fn changes(received: &ReceiverLog) -> Vec<LeadershipChange> {
    let messages: Vec<&Delivered> =
        received.delivered.iter().filter(|delivered| matches!(delivered.item, DeliveredItem::Message { .. })).collect();
    let epoch_changes = messages.windows(2).filter(|pair| pair[0].epoch != pair[1].epoch);
    let change = |pair: &[&Delivered]| {
        let first_packet = received.first_packets.iter().find(|(epoch, _)| *epoch == pair[1].epoch);
        LeadershipChange {
            old_epoch: pair[0].epoch,
            new_epoch: pair[1].epoch,
            ended_mid_message: received.ends_mid_message.get(&pair[0].epoch).copied().unwrap_or_default(),
            last_old_ns: pair[0].time_ns,
            first_packet_ns: first_packet.map_or(pair[1].time_ns, |(_, time_ns)| *time_ns),
            first_content_ns: pair[1].time_ns,
        }
    };
    epoch_changes.map(change).collect()
}

fn verify(captures: &[PathBuf], more: &[&str]) -> ExitedProcess {
    let captures = captures.iter().map(|capture| text(capture));
    let verify_json = process::run(["ha", "verify"].into_iter().chain(captures).chain(more.iter().copied()));
    assert!(matches!(verify_json.code, Some(0 | 1)), "{}", verify_json.stderr);
    verify_json
}

/// Audit events of that kind: epoch, and time in ns since 1970 UTC.
fn events(audits: &[String], kind: &'static str) -> impl Iterator<Item = (Epoch, u64)> {
    let lines = audits.iter().flat_map(|audit| audit.lines());
    let entries = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    entries.filter(move |entry| entry["event"] == kind).map(move |entry| {
        let node = u8::try_from(number(&entry["epoch_node"])).unwrap_or_default();
        (Epoch::new(number(&entry["epoch_count"]), node), number(&entry["time_ns"]))
    })
}

fn is_warning(line: &str) -> bool {
    line.contains(" WARN ") || line.contains(" ERROR ")
}

/// Whether the log line reports that the two gateways of a pair decode the same input differently.
fn is_book_warning(line: &str) -> bool {
    ["gateways-differ", "inconsistent with the book", "its messages differ from the peer's"]
        .iter()
        .any(|doubt| line.contains(doubt))
}

/// The times at which a sentinel with this log noticed a death, ns since 1970 UTC.
fn death_notice_times(output: &str) -> impl Iterator<Item = u64> {
    let values = output.lines().filter_map(|line| line.split_once("detected_ns=")).map(|(_, value)| value);
    values.filter_map(|value| value.split_whitespace().next()?.parse().ok())
}

#[derive(Default)]
struct ExpectedSink {
    session: Option<Session>,
    expected: ExpectedStream,
}

impl FrameSink for ExpectedSink {
    fn frame(&mut self, meta: &FrameMeta, _record_count: u16, body: &[u8]) {
        if let Some(session) = self.session
            && meta.kind == FrameKind::Message
        {
            self.expected.messages.push(((session, meta.sequence.0), content_hash(body)));
        }
    }

    fn covered_through(&mut self, _next: Sequence) {}

    fn session(&mut self, session: Session, _next: Sequence) {
        self.session = Some(session);
    }

    fn end_of_session(&mut self) {}
}

struct BlockSink<'a> {
    restart: u32,
    session: Option<Session>,
    blocks: &'a mut BlockHashes,
}

impl FrameSink for BlockSink<'_> {
    fn frame(&mut self, meta: &FrameMeta, _record_count: u16, body: &[u8]) {
        if let Some(session) = self.session
            && meta.kind == FrameKind::Message
        {
            self.blocks.add(session, meta.sequence.0, content_hash(body), true);
        }
    }

    fn covered_through(&mut self, _next: Sequence) {}

    fn session(&mut self, session: Session, _next: Sequence) {
        self.session = Some(Session { restart: self.restart, ..session });
    }

    fn end_of_session(&mut self) {}
}
