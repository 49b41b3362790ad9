//! One gateway: the product's own log, publisher, fence and retransmission service. Its process can be killed; its log
//! directory stays.

use std::{
    fs::File,
    io::{Seek as _, SeekFrom, Write as _},
    net::Ipv4Addr,
    os::fd::OwnedFd,
    path::PathBuf,
    rc::Rc,
    sync::Arc,
};

use mdgw_captures::random::Random;
use mdgw_engine::publish::{
    LogSink, PeerEntries, PeerEntry, PublishCounts, Publisher, PublisherConfig, ReceiveWatermark, TakeoverShared,
};
use mdgw_feeds::{
    book::BookLimits,
    frame::{FRAME_HEADER_BYTES, FrameFlags, FrameKind, FrameMeta, FrameSink as _},
    identity::{Epoch, Sequence, Session},
    published::{
        packet::{Frames, PacketFlags},
        position::StreamPosition,
        request::ServiceRequest,
    },
    time::{MonoNs, UnixNs},
};
use mdgw_pair::standby::KnownEpochs;
use mdgw_publog::{LogOptions, LogRecovery, OpenedLog, Position, Reader, SegmentMaintenance, WriterCounts};
use mdgw_runtime::{
    config::resolved::RetransmissionLimits,
    retransmit::{Responder, ServedChannel},
};
use mdgw_sys::{
    batch::{Output, OutputIndex, Outputs, SendBuffers},
    clock::mono_now,
    fence::Fence,
};
use zerocopy::IntoBytes as _;

use super::{
    CHANNEL, GROUP, Violation,
    standby::{StandbyReceiver, StandbySafeguards},
    thread_io::SimulatedThreadIo,
    venue_script::{StreamItem, VenueScript, VenueStep, record_bytes, session},
};

/// A gateway: its log directory, and its process while that runs.
pub(super) struct Gateway {
    setup: GatewaySetup,
    directory: PathBuf,
    day: Rc<VenueScript>,
    random: Random,
    /// What outlives the process besides the log.
    stored: Stored,
    /// When the epoch that receivers hold is stored, if it is new.
    held_due_ns: Option<u64>,
    /// The process was killed while the epoch that receivers hold waited to be stored: a limit of W6 in SAFETY.md.
    pub(super) has_forgotten_held: bool,
    /// `None`: the process is down.
    pub(super) run: Option<RunningGateway>,
}

#[derive(Clone, Debug)]
pub(super) struct GatewaySetup {
    pub(super) node: u8,
    /// One descriptor per output line, which identifies the line. Nothing is sent through it.
    pub(super) sockets: Vec<Arc<OwnedFd>>,
    pub(super) segment_bytes: usize,
    /// Share of send calls that find a socket full.
    pub(super) full_share: f64,
    /// Longest time from a new epoch until it is stored, ns.
    pub(super) held_delay_ns_max: u64,
    pub(super) safeguards: StandbySafeguards,
    pub(super) restart: RestartSafeguards,
}

/// State that a gateway stores at intervals.
#[derive(Clone, Copy, Debug, Default)]
struct Stored {
    /// How far the output was published at least.
    position: Option<StreamPosition>,
    /// The highest known epoch.
    epoch: Epoch,
    /// The epoch that receivers hold.
    held: Epoch,
}

/// Safeguards of a restart that a negative control switches off.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestartSafeguards {
    /// A gateway that copies its peer's state also copies what its log lacks before that state.
    pub(super) copies_log: bool,
    /// A gateway that has received nothing since its start begins at its stored position, not at the end of its log.
    pub(super) begins_at_stored: bool,
    /// A gateway knows the epochs that its earlier runs knew.
    pub(super) remembers_epochs: bool,
    /// Packets below the epoch that receivers held in its earlier runs are stale.
    pub(super) remembers_held: bool,
}

/// The state of another gateway, for one that starts.
#[derive(Debug)]
pub(super) struct StateCopy {
    directory: PathBuf,
    position: StreamPosition,
    has_ended: bool,
    /// The venue's next step.
    step: usize,
}

/// The running process of a gateway.
pub(super) struct RunningGateway {
    log: LogSink,
    maintenance: SegmentMaintenance,
    takeover: Arc<TakeoverShared>,
    pub(super) fence: Arc<Fence>,
    publisher: Publisher,
    buffers: SendBuffers,
    pub(super) thread_io: SimulatedThreadIo,
    pub(super) standby: StandbyReceiver,
    answers: Responder,
    day: Rc<VenueScript>,
    random: Random,
    /// Index of the next step of the venue.
    step: usize,
    /// Position of the channel after the step before, and whether its session has ended. The log may be ahead: the input is replayed.
    channel: Option<(StreamPosition, bool)>,
    /// Number of drain acknowledgements requested so far.
    drain_requests: u64,
}

impl Gateway {
    pub(super) fn new(setup: GatewaySetup, directory: PathBuf, day: &Rc<VenueScript>, random: Random) -> Self {
        Self {
            setup,
            directory,
            day: Rc::clone(day),
            random,
            stored: Stored::default(),
            held_due_ns: None,
            has_forgotten_held: false,
            run: None,
        }
    }

    /// Starts the process on its existing log, with another gateway's state where that is ahead. Else the venue or the peer resends the
    /// present session from its beginning.
    pub(super) fn start(&mut self, peer: Option<StateCopy>) {
        let GatewaySetup { node, sockets, segment_bytes, full_share, safeguards, restart, .. } = &self.setup;
        let options = LogOptions {
            segment_bytes: *segment_bytes,
            private_bytes: *segment_bytes,
            ready_segments: 3,
            ..LogOptions::new(&self.directory, CHANNEL.0)
        };
        let OpenedLog { writer, mut maintenance, recovered } =
            mdgw_publog::open(options, NOW_NS).expect("the log opens");
        let LogRecovery { last, last_flags, damaged_segments, .. } = recovered;
        assert_eq!(damaged_segments, 0, "a killed process leaves no partial entry");
        let mut log = LogSink::new(writer);
        let (mut step, mut channel) = (0, None);
        let mut ready = None;
        if let Some((log_session, next)) = last {
            let log_session = Session::from_bytes(log_session).expect("a session");
            let [flags, _] = last_flags.to_le_bytes();
            log.resume(log_session, Sequence(next), PacketFlags(flags).contains(PacketFlags::END_OF_SESSION));
            step = self.day.session_start_step(log_session.restart);
            ready = Some(StreamPosition::at(log_session, Sequence(next)));
        }
        let stored = self.stored.position.filter(|stored| restart.begins_at_stored && Some(*stored) < ready);
        let begin = stored.map_or_else(|| log.writer().end(), |stored| self.place_of(stored));
        if let Some(copy) = peer.filter(|copy| ready <= Some(copy.position)) {
            if restart.copies_log {
                copy_log(&copy, &mut log, &mut maintenance);
            }
            log.resume(copy.position.session, copy.position.sequence, copy.has_ended);
            (step, ready) = (copy.step, Some(copy.position));
            channel = Some((copy.position, copy.has_ended));
        }
        let (takeover, fence) = (Arc::new(TakeoverShared::default()), Arc::new(Fence::closed()));
        let lines = u16::try_from(sockets.len()).expect("few lines");
        let config = PublisherConfig {
            group: GROUP,
            channel: CHANNEL,
            outputs: (0..lines).map(OutputIndex).collect(),
            heartbeat_ns: HEARTBEAT_NS,
            // The publisher reads the real clock, so these limits must never delay a catch-up.
            catch_up_packets_per_s: u64::MAX,
            send_ns_max: u64::MAX,
            log_directory: self.directory.clone(),
            tag_key: None,
        };
        let publisher = Publisher::new(config, &log, Arc::clone(&takeover)).beginning_at(begin);
        let outputs = sockets.iter().map(|socket| Output { socket: Arc::clone(socket), destination: None });
        let known_epoch = if restart.remembers_epochs { self.stored.epoch } else { Epoch::default() };
        let epochs = Arc::new(KnownEpochs::new(known_epoch, 1_000));
        if restart.remembers_held {
            epochs.record_held(self.stored.held);
        }
        let standby = StandbyReceiver::new(*node, &self.directory, ready, Arc::clone(&takeover), (epochs, *safeguards));
        let served = ServedChannel {
            group: GROUP,
            channel: CHANNEL,
            name: "one".to_owned(),
            log_directory: self.directory.clone(),
            frame_bytes_max: 1_408,
            tag_key: None,
            fence: Arc::clone(&fence),
            epochs: Arc::clone(&standby.epochs),
            books: BookLimits::default(),
            initial: None,
        };
        let mut thread_io_random = Random::new(self.random.next_u64());
        let random = Random::new(thread_io_random.next_u64());
        self.run = Some(RunningGateway {
            buffers: SendBuffers::new(Outputs::new(outputs.collect())),
            thread_io: SimulatedThreadIo::new(sockets.clone(), thread_io_random, *full_share),
            answers: Responder::new(limits(), vec![served]).expect("the own log"),
            log,
            maintenance,
            takeover,
            fence,
            publisher,
            standby,
            day: Rc::clone(&self.day),
            random,
            step,
            channel,
            drain_requests: 0,
        });
    }

    /// Place in the own log not far before the first entry behind that position.
    fn place_of(&self, position: StreamPosition) -> Position {
        let mut reader = Reader::open(&self.directory, CHANNEL.0).expect("the own log");
        reader.seek(position.session.to_bytes(), position.sequence.0.saturating_sub(1)).expect("the own log");
        reader.position()
    }

    /// The state of the running process, for another gateway. None if the log's files lack entries: they would be in neither log, and a
    /// subscriber that has lost their packets could request them from nobody.
    pub(super) fn copy_state(&mut self) -> Option<StateCopy> {
        let run = self.run.as_mut()?;
        run.log.commit_covered();
        let mut reader = Reader::open(&self.directory, CHANNEL.0).expect("the own log");
        while reader.next().is_some() {}
        if reader.lost_entries() > 0 || run.log.writer().counts().entries_private > 0 {
            return None;
        }
        let (position, has_ended) = run.channel?;
        Some(StateCopy { directory: self.directory.clone(), position, has_ended, step: run.step })
    }

    /// Stores the highest known epoch, and how far the output is published: by this gateway, or as it was received of another one.
    pub(super) fn store(&mut self, now: MonoNs) {
        let Some(run) = &mut self.run else { return };
        let published = if run.fence.is_open_at(now) { run.sent_position() } else { run.standby.received_through() };
        self.stored.position = self.stored.position.max(published);
        self.stored.epoch = run.standby.epochs.highest();
    }

    /// Stores the epoch that receivers hold, some time after it is new.
    pub(super) fn store_held(&mut self, now_ns: u64) {
        let Some(held) = self.unstored_held() else { return };
        let random = &mut self.random;
        let due_ns = *self.held_due_ns.get_or_insert_with(|| match self.setup.held_delay_ns_max {
            0 => now_ns,
            delay_ns_max => now_ns + random.below(delay_ns_max),
        });
        if due_ns <= now_ns {
            (self.stored.held, self.held_due_ns) = (held, None);
        }
    }

    /// The epoch that receivers hold, if it is not stored yet.
    fn unstored_held(&self) -> Option<Epoch> {
        let run = self.run.as_ref()?;
        Some(run.fence.epoch().max(run.standby.epochs.held())).filter(|held| *held > self.stored.held)
    }

    /// Kills the process at a random point: the last entries in its log are unsent, and the very last ones may be
    /// uncommitted. Returns the counts of the process.
    pub(super) fn kill(&mut self, now_ns: u64) -> Option<(PublishCounts, WriterCounts)> {
        self.has_forgotten_held |= self.setup.held_delay_ns_max > 0 && self.unstored_held().is_some();
        self.held_due_ns = None;
        let mut run = self.run.take()?;
        let before = run.log.writer().end();
        for _ in 0..self.random.below(4) {
            run.process_step(now_ns);
        }
        let counts = (*run.publisher.counts(), *run.log.writer().counts());
        drop(run);
        self.truncate_after(before);
        Some(counts)
    }

    /// Makes a random entry after `position`, and everything behind it, uncommitted, in the last segment only. The content
    /// stays; only the commit word is cleared.
    fn truncate_after(&mut self, position: Position) {
        let mut reader = Reader::open(&self.directory, CHANNEL.0).expect("the own log");
        if !reader.seek_position(position).expect("the own log") {
            return;
        }
        let mut entries = Vec::new();
        while let Some(entry) = reader.next() {
            entries.push((entry.position, entry.end));
        }
        let Some((last, end)) = entries.last().copied() else { return };
        entries.retain(|(position, _)| position.segment == last.segment);
        let chosen = self.random.below(entries.len() as u64 + 1);
        let Some((entry, _)) = entries.get(usize::try_from(chosen).expect("few entries")) else { return };
        let path = self.directory.join(format!("{:016}.segment", last.segment));
        let mut file = File::options().write(true).open(path).expect("a segment");
        // Also clear the word behind the last entry, which may mark the end of the segment: the segment had not ended yet.
        for offset in [entry.offset, end.offset] {
            file.seek(SeekFrom::Start(offset)).expect("a segment");
            file.write_all(&[0; 8]).expect("a segment");
        }
    }

    /// Checks that every message in the log has the venue's content under the venue's sequence.
    pub(super) fn check_log(&self) -> Option<Violation> {
        let mut reader = Reader::open(&self.directory, CHANNEL.0).expect("the own log");
        while let Some(entry) = reader.next() {
            let restart = Session::from_bytes(entry.session).expect("a session").restart;
            for (header, body) in Frames::of_body(entry.payload) {
                let sequence = header.sequence.get();
                let whole = self.day.body(restart, sequence);
                let part = whole.and_then(|whole| part_of(whole, header.part.get().into()));
                if part != Some(body) || !(entry.first..=entry.next).contains(&sequence) {
                    return Some(Violation::Log {
                        node: self.setup.node,
                        item: StreamItem::Message(restart, sequence),
                    });
                }
            }
        }
        None
    }
}

impl RunningGateway {
    /// Processes what the venue has sent by now, at most `steps_max` steps, as one burst.
    pub(super) fn process_input(&mut self, now_ns: u64, steps_max: u64) {
        for _ in 0..steps_max {
            if self.is_caught_up(now_ns) {
                break;
            }
            self.process_step(now_ns);
        }
        self.send();
    }

    /// Processes the next step. May leave the log unflushed, since one datagram may carry several messages.
    fn process_step(&mut self, now_ns: u64) {
        let Some((step, _)) = self.day.step(self.step) else { return };
        self.log.begin(UnixNs(NOW_NS + now_ns));
        let at = |restart, next| Some((StreamPosition::at(session(restart), Sequence(next)), false));
        match step {
            VenueStep::Session(restart) => {
                self.channel = at(restart, 1);
                self.log.session(session(restart), Sequence(1));
            }
            VenueStep::NoOutput(next) => {
                self.channel = self.channel.and_then(|(before, _)| at(before.session.restart, next));
                self.log.covered_through(Sequence(next));
            }
            VenueStep::End => {
                self.channel = self.channel.map(|(end, _)| (end, true));
                self.log.end_of_session();
            }
            VenueStep::Message(restart, sequence) => {
                self.channel = at(restart, sequence + 1);
                let body = self.day.body(restart, sequence).expect("a message of the day");
                let meta = FrameMeta {
                    sequence: Sequence(sequence),
                    next: Sequence(sequence + 1),
                    kind: FrameKind::Message,
                    flags: FrameFlags::default(),
                    ts_recv: NOW_NS + now_ns,
                    ts_in_delta_ns: 0,
                };
                let count = u16::try_from(body.len() / record_bytes(body)).expect("few records");
                self.log.frame(&meta, count, body);
            }
        }
        self.step += 1;
        if self.random.chance(0.7) {
            self.log.flush();
        }
    }

    /// Whether the gateway has processed everything that the venue has sent by now.
    pub(super) fn is_caught_up(&self, now_ns: u64) -> bool {
        self.day.step(self.step).is_none_or(|(_, sent_ns)| sent_ns > now_ns)
    }

    /// When the venue sends the next step.
    pub(super) fn next_input_ns(&self) -> Option<u64> {
        self.day.step(self.step).map(|(_, sent_ns)| sent_ns)
    }

    pub(super) fn send(&mut self) {
        let Self { log, publisher, buffers, thread_io, fence, .. } = self;
        publisher.send_from(log, fence, buffers, thread_io);
    }

    /// The timer of the hot thread: retries refused packets and sends a heartbeat if one is due.
    pub(super) fn on_deadline(&mut self, is_heartbeat_due: bool) {
        let Self { log, publisher, buffers, thread_io, fence, .. } = self;
        let now = mono_now();
        let now = if is_heartbeat_due { now.plus(2 * HEARTBEAT_NS) } else { now };
        publisher.on_deadline(now, log, fence, buffers, thread_io);
    }

    /// The cold thread that prepares log segments.
    pub(super) fn run_maintenance(&mut self, now_ns: u64) {
        self.maintenance.run_once(NOW_NS + now_ns);
    }

    pub(super) fn open(&mut self, epoch: Epoch) {
        self.standby.epochs.record_authenticated(epoch);
        self.fence.open(epoch, MonoNs(u64::MAX));
        self.send();
    }

    /// Leadership has ended. The publisher notices at once.
    pub(super) fn close(&mut self) {
        self.fence.close();
        self.send();
    }

    /// The position up to which the kernel has accepted everything, as a leader reports it.
    pub(super) fn sent_position(&mut self) -> Option<StreamPosition> {
        self.drain_requests += 1;
        self.publisher.acknowledge_drain(self.drain_requests, &self.log);
        self.takeover.drain_ack.get().position
    }

    /// While this gateway leads: reports its sent position to its own standby receiver.
    pub(super) fn note_published(&mut self, now: MonoNs) {
        if !self.fence.is_open_at(now) {
            return;
        }
        if let Some(published) = self.sent_position() {
            self.standby.set_published(published, self.fence.epoch(), now);
        }
    }

    /// For a negative control: marks everything in the own log as received.
    pub(super) fn assume_all_received(&self, epoch: Epoch) {
        self.takeover.received_through.set(ReceiveWatermark { received_through: self.log.committed_through(), epoch });
    }

    /// The packets that the retransmission service answers with.
    pub(super) fn answer(&mut self, request: &ServiceRequest, now_ns: u64) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        self.answers.follow();
        self.answers.answer(request.to_packet().as_bytes(), Ipv4Addr::LOCALHOST, MonoNs(now_ns), &mut |parts| {
            packets.push(parts.concat());
            Ok(parts.concat().len())
        });
        packets
    }

    pub(super) fn counts(&self) -> (PublishCounts, WriterCounts) {
        (*self.publisher.counts(), *self.log.writer().counts())
    }
}

/// Copies what the own log lacks before the copied state.
fn copy_log(copy: &StateCopy, log: &mut LogSink, maintenance: &mut SegmentMaintenance) {
    let mut reader = Reader::open(&copy.directory, CHANNEL.0).expect("the peer's log");
    let mut entries = PeerEntries::new(log, copy.position);
    entries.begin(UnixNs(NOW_NS));
    while let Some(entry) = reader.next() {
        let entry = PeerEntry {
            session: Session::from_bytes(entry.session).expect("a session"),
            first: Sequence(entry.first),
            next: Sequence(entry.next),
            flags: entry.flags,
            frame_count: entry.frame_count,
            payload: entry.payload,
        };
        entries.append(&entry).expect("a sound entry");
        maintenance.run_once(NOW_NS);
    }
}

/// The part of a message's body that one entry holds. A large body is split at record boundaries.
fn part_of(whole: &[u8], part: usize) -> Option<&[u8]> {
    const PART_BYTES_MAX: usize = 1_408 - FRAME_HEADER_BYTES;
    whole.chunks(PART_BYTES_MAX / record_bytes(whole) * record_bytes(whole)).nth(part)
}

/// Limits that no request of the simulation reaches.
fn limits() -> RetransmissionLimits {
    RetransmissionLimits {
        allowed: vec!["127.0.0.0/8".parse().expect("a network")],
        requests_per_second: 1_000_000,
        bytes_per_second: 1_000_000_000,
        snapshot_bytes_per_second: 1_000_000_000,
        packets_per_request_max: 48,
        requesters_max: 4,
    }
}

/// The wall clock at the beginning of a simulation.
const NOW_NS: u64 = 1_700_000_000_000_000_000;
/// The publisher reads the real clock, on which this interval never ends during a run, ns.
const HEARTBEAT_NS: u64 = 3_600_000_000_000;
