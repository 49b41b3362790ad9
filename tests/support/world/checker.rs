//! What a day had to be delivered as, and whether it was: by the venue's whole input run offline, and by `mdgw ha verify`
//! on what every receiver captured.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
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
use mdgw_tools::verify::Promise;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    faults::{ExpectedOutcome, InjectedFault},
    receiver::{Delivered, ReceiverLog, What, content},
};
use crate::{
    captures::say,
    feeds::SESSION,
    pair::CHANNEL,
    process::{self, Ended},
    site::text,
    trading_day::DATE,
};

/// Stocks of the venue's day.
pub const STOCKS: u16 = 200;
/// Its seed.
pub const SEED: u64 = 1;

/// What the venue plays.
#[derive(Clone, Debug)]
pub struct VenueInput {
    /// Messages.
    pub messages: u64,
    /// A gateway's configuration.
    pub config: String,
}

/// What every receiver has to be told: names with their contents, in order.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    messages: Vec<((Session, u64), u64)>,
    /// How many messages had come out after each packet.
    after_packets: Vec<usize>,
}

impl VenueInput {
    /// Runs it through the channel alone, whole and on one line.
    ///
    /// # Panics
    /// When the configuration isn't sound.
    #[must_use]
    pub fn expected(&self) -> Expected {
        let config = Resolved::from_text(Path::new("gateway.toml"), &self.config).expect("the configuration is sound");
        let mut config = config.channels[0].channel_config();
        config.arbiter = ArbiterConfig { lines: 1, ..ArbiterConfig::default() };
        config.date = Some(DATE.parse().expect("a date"));
        let day = ItchDay { seed: SEED, message_count: self.messages, stock_count: STOCKS, ..ItchDay::default() };
        let mut packets = ItchPackets::new(ItchGenerator::new(day), SESSION);
        let (mut channel, mut sink) = (Channel::new(config), ExpectedSink::default());
        let mut bytes = Vec::new();
        while let Some(packet) = packets.next_packet(&mut bytes) {
            let datagram = Datagram { line: Line::A, bytes: &bytes, ts_recv: UnixNs(packet.time_ns) };
            channel.accept(datagram, MonoNs(packet.time_ns), &mut sink);
            sink.expected.after_packets.push(sink.expected.messages.len());
        }
        channel.finish(&mut sink);
        sink.expected
    }
}

impl Expected {
    /// Of a venue that played the beginning of that day in each of its sessions: so many packets.
    #[must_use]
    pub fn for_sessions(whole: &Self, played_packets: &[u64]) -> Self {
        let mut expected = Self::default();
        for (restart, packets) in (0..).zip(played_packets) {
            let last = usize::try_from(*packets).ok().and_then(|packets| packets.checked_sub(1));
            let count = last.and_then(|last| whole.after_packets.get(last)).copied().unwrap_or(0);
            let renamed = |((session, sequence), content): &((Session, u64), u64)| {
                ((Session { restart, ..*session }, *sequence), *content)
            };
            expected.messages.extend(whole.messages.iter().take(count).map(renamed));
        }
        expected
    }

    /// What was never told, with what was told before and after its place: some of it.
    fn never_told(&self, delivered: &[Delivered]) -> Vec<MissingMessage> {
        let message_id_of = |delivered: &Delivered| match delivered.what {
            What::Message { name, .. } => Some(name),
            What::Gap(_) | What::Lost(_) | What::End => None,
        };
        let told: HashSet<_> = delivered.iter().filter_map(message_id_of).collect();
        let lost = self.messages.iter().map(|(name, _)| *name).filter(|name| !told.contains(name));
        let never_told = |name: (Session, u64)| MissingMessage {
            name,
            before: delivered.iter().rev().find(|told| message_id_of(told).is_some_and(|told| told < name)).copied(),
            after: delivered.iter().find(|told| message_id_of(told).is_some_and(|told| told > name)).copied(),
        };
        lost.take(MISSING_SHOWN_MAX).map(never_told).collect()
    }

    /// Whether a packet or an entry of a log that settles this range and tells these messages, without a gap, passes any over.
    fn suppresses_messages(&self, session: Session, (first, next): (u64, u64), told: &[u64]) -> bool {
        let before = |sequence| self.messages.partition_point(|(name, _)| *name < (session, sequence));
        let expected = self.messages.get(before(first)..before(next)).unwrap_or_default();
        expected.iter().any(|((_, sequence), _)| !told.contains(sequence))
    }

    /// What says nothing where there is something to be told: captured packets and entries of the gateways' logs, some of them.
    fn silences(&self, captures: &[PathBuf], logs: &[PathBuf]) -> Vec<String> {
        let mut found = Vec::new();
        for (receiver, capture) in (0..).zip(captures) {
            let mut file = CaptureFile::open(capture, &OpenOptions::default()).expect("a receiver's capture");
            while let Ok(Some(datagram)) = file.next_datagram() {
                let Ok(packet) = parse_packet(datagram.payload) else { continue };
                let (meta, is) = (packet.meta, |flag| packet.meta.flags.contains(flag));
                // Of definitions, and of an answer's end, the range is none of messages.
                let is_of_messages =
                    !(is(PacketFlags::SNAPSHOT) || is(PacketFlags::RETRANSMISSION) && is(PacketFlags::HEARTBEAT));
                let range = (meta.first.0, meta.next.0);
                let told = messages_in_range(packet.frames().map(|(header, _)| header), range);
                if is_of_messages
                    && told.as_ref().is_some_and(|told| self.suppresses_messages(meta.session, range, told))
                {
                    found.push(format!("receiver {receiver}, from {}: {told:?} in {meta:?}", datagram.src));
                }
            }
        }
        for (node, log) in (1..).zip(logs) {
            let Ok(mut reader) = Reader::open(log, CHANNEL.0) else { continue };
            while let Some(entry) = reader.next() {
                let Some(session) = Session::from_bytes(entry.session) else { continue };
                let range = (entry.first, entry.next);
                let told = messages_in_range(Frames::of_body(entry.payload).map(|(header, _)| header), range);
                if told.as_ref().is_some_and(|told| self.suppresses_messages(session, range, told)) {
                    found.push(format!("log of {node}, entry {}: {told:?} in {session:?} {range:?}", entry.number));
                }
            }
        }
        found.truncate(MISSING_SHOWN_MAX);
        found
    }

    /// What is wrong with what one receiver was told.
    #[must_use]
    pub fn faults(&self, delivered: &[Delivered]) -> DeliveryErrors {
        let mut faults = DeliveryErrors::default();
        // Behind this name books are in doubt.
        let mut confirmed_until = None;
        let mut expected: HashMap<(Session, u64), (u64, u64)> = HashMap::with_capacity(self.messages.len());
        expected.extend(self.messages.iter().map(|(name, content)| (*name, (*content, 0))));
        let mut last = None;
        for what in delivered.iter().map(|delivered| delivered.what) {
            match what {
                What::Gap(count) => faults.declared += count,
                What::Lost(count) => faults.receiver_gaps += count,
                What::End => {}
                What::Message { name, content, is_suspect } => {
                    faults.out_of_order += u64::from(last.is_some_and(|last| name < last));
                    last = Some(name);
                    if !is_suspect && faults.suspect == 0 {
                        confirmed_until = Some(name);
                    }
                    faults.suspect += u64::from(is_suspect);
                    match expected.get_mut(&name) {
                        None => faults.unknown += 1,
                        Some((_, times @ 1..)) => {
                            *times += 1;
                            faults.doubled += 1;
                        }
                        Some((expected, times)) => {
                            *times += 1;
                            let is_different = u64::from(*expected != content);
                            *(if is_suspect { &mut faults.different_while_suspect } else { &mut faults.different }) +=
                                is_different;
                        }
                    }
                }
            }
        }
        for (name, _) in expected.iter().filter(|(_, (_, times))| *times == 0) {
            // Without its order a message says nothing that could be told.
            let is_after_doubt = faults.suspect > 0 && Some(*name) > confirmed_until;
            *(if is_after_doubt { &mut faults.different_while_suspect } else { &mut faults.lost }) += 1;
        }
        faults
    }
}

/// A message that a receiver was never told.
#[derive(Clone, Copy, Debug)]
struct MissingMessage {
    name: (Session, u64),
    before: Option<Delivered>,
    after: Option<Delivered>,
}

impl MissingMessage {
    /// With every captured packet, and every entry of the gateways' logs, in whose range it lies.
    fn describe(&self, captures: &[PathBuf], logs: &[PathBuf]) -> String {
        let Self { name: (session, sequence), before, after } = self;
        let mut text = format!("never told: {sequence} of {session:?}, after {before:?}, before {after:?}");
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

/// The messages of that range that end in these frames; `None` where some are declared missing.
fn messages_in_range<'a>(frames: impl Iterator<Item = &'a FrameHeader>, (first, next): (u64, u64)) -> Option<Vec<u64>> {
    let mut told = Vec::new();
    for header in frames {
        let is_last = FrameFlags(header.flags).contains(FrameFlags::LAST_PART);
        match FrameKind::from_number(header.kind) {
            Some(FrameKind::Gap) => return None,
            Some(FrameKind::Message) if is_last && (first..next).contains(&header.sequence.get()) => {
                told.push(header.sequence.get());
            }
            _ => {}
        }
    }
    Some(told)
}

/// Of all that was lost, so many are said by name.
const MISSING_SHOWN_MAX: usize = 12;

/// What must not be. All are counts of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryErrors {
    /// Never told.
    pub lost: u64,
    /// Told again.
    pub doubled: u64,
    /// Told after a later one.
    pub out_of_order: u64,
    /// Told with other records.
    pub different: u64,
    /// Told, and the venue never sent them.
    pub unknown: u64,
    /// In gaps that a gateway declared.
    pub declared: u64,
    /// Given up by the receiver.
    pub receiver_gaps: u64,
    /// Told with a book in doubt.
    pub suspect: u64,
    /// Told with other records, or not at all, while books were said to be in doubt.
    pub different_while_suspect: u64,
}

impl DeliveryErrors {
    /// All of them together.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let Self {
            lost,
            doubled,
            out_of_order,
            different,
            unknown,
            declared,
            receiver_gaps,
            suspect,
            different_while_suspect,
        } = self;
        lost + doubled
            + out_of_order
            + different
            + unknown
            + declared
            + receiver_gaps
            + suspect
            + different_while_suspect
    }

    /// Those of another receiver too.
    pub fn add(&mut self, other: &Self) {
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.out_of_order += other.out_of_order;
        self.different += other.different;
        self.unknown += other.unknown;
        self.declared += other.declared;
        self.receiver_gaps += other.receiver_gaps;
        self.suspect += other.suspect;
        self.different_while_suspect += other.different_while_suspect;
    }
}

/// One change of leadership, as one receiver saw it. Times in ns since 1970 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipChange {
    /// Whose content ended.
    pub from: Epoch,
    /// Whose content came next.
    pub to: Epoch,
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
    /// How long nothing new was said.
    #[must_use]
    pub fn blackout_ns(&self) -> u64 {
        self.first_content_ns.saturating_sub(self.last_old_ns)
    }

    /// Whether it came of that blow, and not of something before it.
    #[must_use]
    pub fn is_caused_by(&self, blow: &InjectedFault) -> bool {
        self.from == blow.before && self.first_content_ns >= blow.injected_ns
    }
}

/// What came of a world.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// Of each receiver.
    pub faults: Vec<DeliveryErrors>,
    /// Of each receiver, in their order.
    pub changes: Vec<Vec<LeadershipChange>>,
    /// What each receiver was told.
    pub received: Vec<ReceiverLog>,
    /// What `mdgw ha verify` says of all captures.
    pub verified: Value,
    /// What each receiver captured.
    captures: Vec<PathBuf>,
    /// They lie in there.
    _capture_dir: Arc<TempDir>,
    /// Packets of an epoch that receivers had left behind, over all of them.
    pub fenced: u64,
    /// When each epoch's leader knew that it leads, ns since 1970 UTC, by the audits.
    pub gained_ns: BTreeMap<Epoch, u64>,
    /// When a gateway was told of another one's death, ns since 1970 UTC, by the audits.
    pub death_notices_ns: BTreeSet<u64>,
    /// When a sentinel noticed its gateway's death, ns since 1970 UTC, by what it said.
    pub sentinel_notices_ns: BTreeSet<u64>,
    /// What gateways and sentinels warned of.
    pub warnings: Vec<String>,
    /// Those that tell of books that are not as they should be: who has them may lead one day. And what says nothing where there
    /// is something to be told.
    pub doubts: Vec<String>,
}

/// What gateways and sentinels wrote down.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunLogs<'a> {
    /// The publication log of each gateway.
    pub(super) logs: &'a [PathBuf],
    /// Of each gateway.
    pub(super) audits: &'a [String],
    /// On standard error, by each process.
    pub(super) said: &'a [String],
}

impl RunResult {
    /// `captures` lie in `capture_dir`.
    pub(super) fn of(
        expected: &Expected,
        received: Vec<(PathBuf, ReceiverLog)>,
        records: &RunLogs<'_>,
        capture_dir: Arc<TempDir>,
    ) -> Self {
        let (captures, received): (Vec<PathBuf>, Vec<ReceiverLog>) = received.into_iter().unzip();
        let verified = verify(&captures, &["--json"]);
        let warnings = records.said.iter().flat_map(|said| said.lines()).filter(|line| is_warning(line));
        let warnings: Vec<_> = warnings.map(str::to_owned).collect();
        let silences = expected.silences(&captures, records.logs);
        let lost: Vec<_> = received.iter().flat_map(|received| expected.never_told(&received.delivered)).collect();
        if !lost.is_empty() {
            let lost: Vec<_> = lost.iter().map(|lost| lost.describe(&captures, records.logs)).collect();
            say(&format!("{}\n{}", lost.join("\n"), records.said.join("\n---\n")));
        }
        Self {
            faults: received.iter().map(|received| expected.faults(&received.delivered)).collect(),
            changes: received.iter().map(changes).collect(),
            verified: verified.json(),
            captures,
            _capture_dir: capture_dir,
            fenced: verified.json()["stale_epoch_packets"].as_u64().unwrap_or_default(),
            gained_ns: events(records.audits, "gained").collect(),
            death_notices_ns: events(records.audits, "died").map(|(_, time_ns)| time_ns).collect(),
            sentinel_notices_ns: records.said.iter().flat_map(|said| noticed(said)).collect(),
            doubts: warnings.iter().filter(|line| is_book_warning(line)).cloned().chain(silences).collect(),
            warnings,
            received,
        }
    }

    /// What `mdgw ha verify` says of all captures, in words.
    #[must_use]
    pub fn verdict(&self) -> String {
        verify(&self.captures, &[]).stdout
    }

    /// Messages that some receiver heard more than once.
    #[must_use]
    pub fn republished(&self) -> u64 {
        let of_one = |capture| verify(std::slice::from_ref(capture), &["--json"]).json()["republished"].as_u64();
        self.captures.iter().filter_map(of_one).max().unwrap_or_default()
    }

    /// Nothing was lost, doubled, out of order or other than the venue's input makes it, at any receiver, and
    /// `mdgw ha verify` finds nothing in the captures.
    ///
    /// # Panics
    /// When it isn't so.
    pub fn assert_no_errors(&self) {
        for faults in &self.faults {
            assert_eq!(*faults, DeliveryErrors::default(), "{}", self.verdict());
        }
        assert_eq!(self.verified["passed"], true, "{}", self.verdict());
    }

    /// Whether that came of a blow, at each receiver.
    #[must_use]
    pub fn has_expected_outcome(&self, expected: ExpectedOutcome, blow: &InjectedFault) -> bool {
        let changes: Vec<&LeadershipChange> = self.changes_caused_by(blow).collect();
        let all = |is: &dyn Fn(&LeadershipChange) -> bool| {
            changes.len() == self.changes.len() && changes.iter().all(|change| is(change))
        };
        match (expected, blow.stable_until_ns) {
            (ExpectedOutcome::NoChange, Some(until_ns)) => {
                changes.iter().all(|change| change.first_content_ns > until_ns)
            }
            (ExpectedOutcome::PeerLeads, None) => all(&|change| change.to.node() != blow.before.node()),
            (ExpectedOutcome::NewEpoch, None) => all(&|_| true),
            (ExpectedOutcome::NoChange, None) | (ExpectedOutcome::PeerLeads | ExpectedOutcome::NewEpoch, Some(_)) => {
                false
            }
        }
    }

    /// The change that ended the epoch before a blow, as each receiver saw it.
    pub fn changes_caused_by(&self, blow: &InjectedFault) -> impl Iterator<Item = &LeadershipChange> {
        self.changes.iter().filter_map(|all| all.iter().find(|change| change.is_caused_by(blow)))
    }

    /// How often `mdgw ha verify` found two publishers at a time, and how often another promise broken.
    #[must_use]
    pub fn broken(&self) -> (u64, u64) {
        let counts = self.verified["violations"].as_object().cloned().unwrap_or_default();
        let of = |is_overlap: bool| {
            let expected =
                counts.iter().filter(|(promise, _)| (*promise == Promise::SinglePublisher.name()) == is_overlap);
            expected.filter_map(|(_, count)| count.as_u64()).sum()
        };
        (of(true), of(false))
    }

    /// Epochs that were published, ascending.
    #[must_use]
    pub fn epochs(&self) -> Vec<Epoch> {
        let epochs = self.verified["epochs"].as_array().cloned().unwrap_or_default();
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let node = |value: &Value| u8::try_from(number(value)).unwrap_or_default();
        epochs.iter().map(|epoch| Epoch::new(number(&epoch["count"]), node(&epoch["node"]))).collect()
    }
}

/// The longest time in `[from_ns, until_ns)` in which a receiver was told nothing new, ns.
#[must_use]
pub fn longest_blackout_ns(received: &ReceiverLog, from_ns: u64, until_ns: u64) -> u64 {
    let times = received.delivered.iter().map(|delivered| delivered.time_ns);
    let within = times.filter(|time_ns| (from_ns..until_ns).contains(time_ns));
    let times: Vec<u64> = [from_ns].into_iter().chain(within).chain([until_ns]).collect();
    times.windows(2).map(|two| two[1].saturating_sub(two[0])).max().unwrap_or(0)
}

fn changes(received: &ReceiverLog) -> Vec<LeadershipChange> {
    let messages: Vec<&Delivered> =
        received.delivered.iter().filter(|delivered| matches!(delivered.what, What::Message { .. })).collect();
    let epoch_changes = messages.windows(2).filter(|two| two[0].epoch != two[1].epoch);
    let change = |two: &[&Delivered]| {
        let heard = received.first_packets.iter().find(|(epoch, _)| *epoch == two[1].epoch);
        LeadershipChange {
            from: two[0].epoch,
            to: two[1].epoch,
            ended_mid_message: received.ends_mid_message.get(&two[0].epoch).copied().unwrap_or_default(),
            last_old_ns: two[0].time_ns,
            first_packet_ns: heard.map_or(two[1].time_ns, |(_, time_ns)| *time_ns),
            first_content_ns: two[1].time_ns,
        }
    };
    epoch_changes.map(change).collect()
}

fn verify(captures: &[PathBuf], more: &[&str]) -> Ended {
    let captures = captures.iter().map(|capture| text(capture));
    let verified = process::run(["ha", "verify"].into_iter().chain(captures).chain(more.iter().copied()));
    assert!(matches!(verified.code, Some(0 | 1)), "{}", verified.stderr);
    verified
}

/// Of that kind: which epoch, and when.
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

/// The two gateways of a pair make different messages of the same input.
fn is_book_warning(line: &str) -> bool {
    ["gateways-differ", "inconsistent with the book", "its messages differ from the peer's"]
        .iter()
        .any(|doubt| line.contains(doubt))
}

/// When the sentinel that said this noticed a death.
fn noticed(said: &str) -> impl Iterator<Item = u64> {
    let values = said.lines().filter_map(|line| line.split_once("detected_ns=")).map(|(_, value)| value);
    values.filter_map(|value| value.split_whitespace().next()?.parse().ok())
}

#[derive(Default)]
struct ExpectedSink {
    session: Option<Session>,
    expected: Expected,
}

impl FrameSink for ExpectedSink {
    fn frame(&mut self, meta: &FrameMeta, _record_count: u16, body: &[u8]) {
        if let Some(session) = self.session
            && meta.kind == FrameKind::Message
        {
            self.expected.messages.push(((session, meta.sequence.0), content(body)));
        }
    }

    fn covered_through(&mut self, _next: Sequence) {}

    fn session(&mut self, session: Session, _next: Sequence) {
        self.session = Some(session);
    }

    fn end_of_session(&mut self) {}
}
