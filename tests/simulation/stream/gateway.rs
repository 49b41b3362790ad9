//! One gateway: the product's own log, publisher, fence and retransmission service. Its process can die while its log
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
use mdgw_engine::publish::{LogSink, PublishCounts, Publisher, PublisherConfig, ReceiveWatermark, TakeoverShared};
use mdgw_feeds::{
    frame::{FRAME_HEADER_BYTES, FrameFlags, FrameKind, FrameMeta, FrameSink as _},
    identity::{Epoch, Sequence, Session},
    published::{
        packet::{Frames, PacketFlags},
        position::StreamPosition,
        request::ServiceRequest,
    },
    time::{MonoNs, UnixNs},
};
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
    day::{Told, VenueScript, VenueStep, record_bytes, session},
    standby::StandbyReceiver,
    wire::Wire,
};

/// What stays when the process dies.
pub(super) struct Gateway {
    setup: GatewaySetup,
    directory: PathBuf,
    day: Rc<VenueScript>,
    random: Random,
    /// The process, while it lives.
    pub(super) run: Option<RunningGateway>,
}

#[derive(Clone, Debug)]
pub(super) struct GatewaySetup {
    pub(super) node: u8,
    /// One for each output line; nothing is ever sent by them.
    pub(super) sockets: Vec<Arc<OwnedFd>>,
    pub(super) segment_bytes: usize,
    /// Share of hand-overs that find a socket full.
    pub(super) full: f64,
    /// Output received beyond the own input is not accepted.
    pub(super) doubts: bool,
}

/// A process.
pub(super) struct RunningGateway {
    log: LogSink,
    maintenance: SegmentMaintenance,
    words: Arc<TakeoverShared>,
    pub(super) fence: Arc<Fence>,
    publisher: Publisher,
    buffers: SendBuffers,
    pub(super) wire: Wire,
    pub(super) standby: StandbyReceiver,
    answers: Responder,
    day: Rc<VenueScript>,
    random: Random,
    /// The next step that comes from the venue.
    step: usize,
    looks: u64,
}

impl Gateway {
    pub(super) fn new(setup: GatewaySetup, directory: PathBuf, day: &Rc<VenueScript>, random: Random) -> Self {
        Self { setup, directory, day: Rc::clone(day), random, run: None }
    }

    /// The process starts with the content of its log; the venue, or its peer, resends the present session from the
    /// beginning.
    pub(super) fn start(&mut self) {
        let GatewaySetup { node, sockets, segment_bytes, full, doubts } = &self.setup;
        let options = LogOptions {
            segment_bytes: *segment_bytes,
            private_bytes: *segment_bytes,
            ready_segments: 3,
            ..LogOptions::new(&self.directory, CHANNEL.0)
        };
        let OpenedLog { writer, maintenance, recovered } = mdgw_publog::open(options, NOW_NS).expect("the log opens");
        let LogRecovery { last, last_flags, damaged_segments, .. } = recovered;
        assert_eq!(damaged_segments, 0, "a process that dies leaves no half of an entry behind");
        let mut log = LogSink::new(writer);
        let mut step = 0;
        let mut ready = None;
        if let Some((of_log, next)) = last {
            let of_log = Session::from_bytes(of_log).expect("a session");
            let [flags, _] = last_flags.to_le_bytes();
            log.resume(of_log, Sequence(next), PacketFlags(flags).contains(PacketFlags::END_OF_SESSION));
            step = self.day.session_start_step(of_log.restart);
            ready = Some(StreamPosition::at(of_log, Sequence(next)));
        }
        let (words, fence) = (Arc::new(TakeoverShared::default()), Arc::new(Fence::closed()));
        let lines = u16::try_from(sockets.len()).expect("few lines");
        let config = PublisherConfig {
            group: GROUP,
            channel: CHANNEL,
            outputs: (0..lines).map(OutputIndex).collect(),
            heartbeat_ns: HEARTBEAT_NS,
            // Nothing here depends on the clock that the publisher reads: no tail ever waits.
            catch_up_packets_per_s: u64::MAX,
            send_ns_max: u64::MAX,
            log_directory: self.directory.clone(),
        };
        let publisher = Publisher::new(config, &log, Arc::clone(&words));
        let outputs = sockets.iter().map(|socket| Output { socket: Arc::clone(socket), destination: None });
        let standby = StandbyReceiver::new(*node, &self.directory, ready, Arc::clone(&words), *doubts);
        let served = ServedChannel {
            group: GROUP,
            channel: CHANNEL,
            log_directory: self.directory.clone(),
            payload_bytes_max: 1_408,
            fence: Arc::clone(&fence),
            epochs: Arc::clone(&standby.epochs),
        };
        let mut of_wire = Random::new(self.random.next_u64());
        let random = Random::new(of_wire.next_u64());
        self.run = Some(RunningGateway {
            buffers: SendBuffers::new(Outputs::new(outputs.collect())),
            wire: Wire::new(sockets.clone(), of_wire, *full),
            answers: Responder::new(limits(), vec![served]).expect("the own log"),
            log,
            maintenance,
            words,
            fence,
            publisher,
            standby,
            day: Rc::clone(&self.day),
            random,
            step,
            looks: 0,
        });
    }

    /// The process dies at any place of its work: what it wrote last it has not sent, and of that the last may not have been
    /// committed. What it counted.
    pub(super) fn kill(&mut self, now_ns: u64) -> Option<(PublishCounts, WriterCounts)> {
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

    /// Of what lies in the last segment from `place` on, one entry and what follows had not been committed: there all is as
    /// it was written but for the word that says so.
    fn truncate_after(&mut self, place: Position) {
        let mut reader = Reader::open(&self.directory, CHANNEL.0).expect("the own log");
        if !reader.seek_position(place).expect("the own log") {
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
        // The word behind the last one may say that the segment is over: it wasn't by then.
        for offset in [entry.offset, end.offset] {
            file.seek(SeekFrom::Start(offset)).expect("a segment");
            file.write_all(&[0; 8]).expect("a segment");
        }
    }

    /// Everything in its log is what the day says, under the id that the day gives it.
    pub(super) fn check_log(&self) -> Option<Violation> {
        let mut reader = Reader::open(&self.directory, CHANNEL.0).expect("the own log");
        while let Some(entry) = reader.next() {
            let restart = Session::from_bytes(entry.session).expect("a session").restart;
            for (header, body) in Frames::of_body(entry.payload) {
                let sequence = header.sequence.get();
                let whole = self.day.body(restart, sequence);
                let part = whole.and_then(|whole| part_of(whole, header.part.get().into()));
                if part != Some(body) || !(entry.first..=entry.next).contains(&sequence) {
                    return Some(Violation::Log { node: self.setup.node, name: Told::Message(restart, sequence) });
                }
            }
        }
        None
    }
}

impl RunningGateway {
    /// What the venue has sent by now, a few steps at most, as one burst.
    pub(super) fn process_input(&mut self, now_ns: u64, steps_max: u64) {
        for _ in 0..steps_max {
            if self.is_caught_up(now_ns) {
                break;
            }
            self.process_step(now_ns);
        }
        self.send();
    }

    /// Takes the next step, though perhaps nothing is flushed: datagrams may bring several.
    fn process_step(&mut self, now_ns: u64) {
        let Some((step, _)) = self.day.step(self.step) else { return };
        self.log.begin(UnixNs(NOW_NS + now_ns));
        match step {
            VenueStep::Session(restart) => self.log.session(session(restart), Sequence(1)),
            VenueStep::NoOutput(next) => self.log.covered_through(Sequence(next)),
            VenueStep::End => self.log.end_of_session(),
            VenueStep::Message(restart, sequence) => {
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

    /// Whether it has everything that the venue has sent by now.
    pub(super) fn is_caught_up(&self, now_ns: u64) -> bool {
        self.day.step(self.step).is_none_or(|(_, sent_ns)| sent_ns > now_ns)
    }

    /// When the venue sends the next step.
    pub(super) fn next_input_ns(&self) -> Option<u64> {
        self.day.step(self.step).map(|(_, sent_ns)| sent_ns)
    }

    pub(super) fn send(&mut self) {
        let Self { log, publisher, buffers, wire, fence, .. } = self;
        publisher.send_from(log, fence, buffers, wire);
    }

    /// The hot thread's timer: what was refused is tried again; a heartbeat, if that is due.
    pub(super) fn on_deadline(&mut self, is_heartbeat_due: bool) {
        let Self { log, publisher, buffers, wire, fence, .. } = self;
        let now = mono_now();
        let now = if is_heartbeat_due { now.plus(2 * HEARTBEAT_NS) } else { now };
        publisher.on_deadline(now, log, fence, buffers, wire);
    }

    /// The cold thread that has segments ready.
    pub(super) fn run_maintenance(&mut self, now_ns: u64) {
        self.maintenance.run_once(NOW_NS + now_ns);
    }

    pub(super) fn open(&mut self, epoch: Epoch) {
        self.standby.epochs.record_authenticated(epoch);
        self.fence.open(epoch, MonoNs(u64::MAX));
        self.send();
    }

    /// Its leadership is over: the channel looks at once.
    pub(super) fn close(&mut self) {
        self.fence.close();
        self.send();
    }

    /// The position up to which everything has been sent, as a hand-over reports it.
    pub(super) fn sent_position(&mut self) -> Option<StreamPosition> {
        self.looks += 1;
        self.publisher.acknowledge_drain(self.looks, &self.log);
        self.words.drain_ack.get().position
    }

    /// Up to where its log has come.
    pub(super) fn logged_position(&self) -> Option<StreamPosition> {
        self.log.committed_through()
    }

    /// The previous leader reports where its output ended.
    pub(super) fn set_peer_end(&self, epoch: Epoch, position: StreamPosition) {
        self.words.output_end.advance(epoch, position);
    }

    /// For a negative control: as if everything that it has logged had been received.
    pub(super) fn assume_all_received(&self, epoch: Epoch) {
        self.words.received_through.set(ReceiveWatermark {
            received_through: self.log.committed_through(),
            epoch,
            reported_through: None,
        });
    }

    /// The packets of an answer.
    pub(super) fn answer(&mut self, request: &ServiceRequest, now_ns: u64) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        self.answers.follow();
        self.answers.answer(
            request.to_packet().as_bytes(),
            Ipv4Addr::LOCALHOST,
            MonoNs(now_ns),
            &mut |header, body| {
                packets.push([&header[..], body].concat());
                Ok(header.len() + body.len())
            },
        );
        packets
    }

    pub(super) fn counts(&self) -> (PublishCounts, WriterCounts) {
        (*self.publisher.counts(), *self.log.writer().counts())
    }
}

/// A message's body as it is in one entry: whole, or split at record borders.
fn part_of(whole: &[u8], part: usize) -> Option<&[u8]> {
    const PART_BYTES_MAX: usize = 1_408 - FRAME_HEADER_BYTES;
    whole.chunks(PART_BYTES_MAX / record_bytes(whole) * record_bytes(whole)).nth(part)
}

/// None that would be felt.
fn limits() -> RetransmissionLimits {
    RetransmissionLimits {
        allowed: vec!["127.0.0.0/8".parse().expect("a network")],
        requests_per_second: 1_000_000,
        bytes_per_second: 1_000_000_000,
        packets_per_request_max: 48,
        requesters_max: 4,
    }
}

/// The wall clock at the beginning of a simulation.
const NOW_NS: u64 = 1_700_000_000_000_000_000;
/// By the clock that the publisher reads: never due by itself.
const HEARTBEAT_NS: u64 = 3_600_000_000_000;
