//! The straight line of one channel, from its sockets to the multicast. Read [`ChannelPipeline::process_batch`] first.
//!
//! ```text
//! socket → handle set → claim → receive → arbitrate → decode → book → normalise → publication log → fence → multicast
//!          └── net, engine ──┘   net      └────────────── feeds ─────────────┘   publog           publish
//! ```
//! One thread carries a datagram from the first to the last, without a queue and without a hand-over. Everything slower
//! reads the publication log from its own threads. The claim sees to it that one thread at a time is in here for a
//! channel; nothing here waits, allocates or locks.

mod state_copy;

pub use state_copy::CopyRequest;

use std::{
    net::SocketAddrV4,
    os::fd::RawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crossbeam_queue::ArrayQueue;
use mdgw_feeds::{
    channel::{Channel, ChannelState, Datagram, LateStart, MissingRequest, REQUEST_BYTES_MAX, SessionNumbering},
    drop_reason::{DropCounts, DropReason},
    frame::{FrameMeta, FrameSink},
    identity::{ChannelId, Line, Sequence, Session},
    time::MonoNs,
};
use mdgw_sys::{
    batch::{ReceiveBatch, SendBuffers, StampKind},
    clock::{WallFromMono, mono_now},
    fence::Fence,
    handle::{ChannelIndex, Handle, LineSet},
    sockets::{ReceiveSocket, SourceFilter},
};
use mdgw_telemetry::{
    channel_metrics::ChannelRecorder,
    counters::CounterWriter,
    stages::{Stage, StageRecorder},
};

use crate::{
    dispatch::{ChannelHandler, FailReason, Failure, Progress, TurnContext},
    handle_set::ThreadIo,
    publish::{LogSink, Publisher},
};

/// One channel with everything that belongs to it alone. Owned by the holder of its claim.
#[derive(Debug)]
pub struct ChannelPipeline {
    index: ChannelIndex,
    channel: Channel,
    lines: Vec<LineSocket>,
    recovery: Option<RecoverySocket>,
    sink: LogSink,
    publisher: Publisher,
    fence: Arc<Fence>,
    /// What sockets brought that never reached the channel.
    drops: DropCounts,
    peer_gap_requests: Arc<PeerGapRequests>,
    waits_for_link: bool,
    requests: u64,
    requests_failed: u64,
    stamps: StampCounts,
    counters: CounterWriter,
    metrics: ChannelRecorder,
    /// New numberings on their way to the state file.
    sessions: Arc<ArrayQueue<(ChannelId, SessionNumbering)>>,
    /// What of the numbering has been handed on: its session, and whether it has messages.
    reported_session: Option<(Session, bool)>,
    fail_reason: Option<FailReason>,
}

/// Datagrams by whose receive stamp they carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StampCounts {
    /// The NIC's.
    pub hardware: u64,
    /// The kernel's.
    pub kernel: u64,
    /// None: the clock on return from the wait took its place.
    pub none: u64,
}

impl StampCounts {
    fn count(&mut self, kind: StampKind) {
        match kind {
            StampKind::Hardware => self.hardware += 1,
            StampKind::Kernel => self.kernel += 1,
            StampKind::None => self.none += 1,
        }
    }
}

/// One line: where it comes in, and from whom it is believed.
#[derive(Debug)]
pub struct LineSocket {
    /// Which line.
    pub line: Line,
    /// Its socket.
    pub socket: ReceiveSocket,
    /// Who is believed.
    pub filter: SourceFilter,
}

/// The way to the venue's retransmission server. Its answers come in as a line of their own.
#[derive(Debug)]
pub struct RecoverySocket {
    /// The socket.
    pub socket: ReceiveSocket,
    /// Where requests go.
    pub server: SocketAddrV4,
}

/// What other threads tell a channel.
#[derive(Debug)]
pub enum ChannelMessage {
    /// The fence has opened or closed: look at once, don't wait for the next packet or heartbeat, and answer with that
    /// number.
    FenceChanged(u64),
    /// A datagram of the venue's that the peer had, as an answer to a [`PeerGapRequest`].
    Recovered(Box<[u8]>),
    /// The answer's end: the peer has no more of what it was asked for from there on.
    PeerAnswerEnded(Sequence),
    /// The gateway that leads has published a gap of that numbering.
    PeerDeclaredGap(Session),
    /// A slice of its state, for a gateway that joins.
    Copy(Box<CopyRequest>),
}

/// Input that no line has brought, asked of the other gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerGapRequest {
    /// The channel.
    pub channel: ChannelId,
    /// The numbering.
    pub session: Session,
    /// First sequence.
    pub first: Sequence,
    /// First sequence after it.
    pub next: Sequence,
}

/// On the way to the pair link. Its thread says whether there is a peer to ask; while there is none nobody waits for one.
#[derive(Debug)]
pub struct PeerGapRequests {
    queue: ArrayQueue<PeerGapRequest>,
    is_linked: AtomicBool,
}

impl PeerGapRequests {
    /// Room for that many questions; no peer yet.
    ///
    /// # Panics
    /// Without room.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { queue: ArrayQueue::new(room), is_linked: AtomicBool::new(false) }
    }

    /// Whether there is a peer to ask. By the pair link's thread.
    pub fn set_linked(&self, is_linked: bool) {
        // Relaxed: a question that comes a moment too late is lost like one on the wire.
        self.is_linked.store(is_linked, Relaxed);
    }

    /// The next question.
    #[must_use]
    pub fn take(&self) -> Option<PeerGapRequest> {
        self.queue.pop()
    }

    /// Whether there is a peer to ask. Without room the question is lost like one on the wire, and asked again after its
    /// time-out: it says nothing of what the peer has.
    fn request_from_peer(&self, gap: PeerGapRequest) -> bool {
        let is_linked = self.is_linked.load(Relaxed);
        if is_linked {
            let _no_room = self.queue.push(gap);
        }
        is_linked
    }
}

/// What a pipeline is made of.
#[derive(Debug)]
pub struct PipelineParts {
    /// Its place in its pool.
    pub index: ChannelIndex,
    /// The sans-I/O channel.
    pub channel: Channel,
    /// Its lines.
    pub lines: Vec<LineSocket>,
    /// Where gaps are asked for.
    pub recovery: Option<RecoverySocket>,
    /// Where they are asked for before that.
    pub peer_gap_requests: Arc<PeerGapRequests>,
    /// Its publication log.
    pub sink: LogSink,
    /// Its way out.
    pub publisher: Publisher,
    /// May it send?
    pub fence: Arc<Fence>,
    /// Counters named [`COUNTERS`].
    pub counters: CounterWriter,
    /// Where its counts and its lines' leads are collected.
    pub metrics: ChannelRecorder,
    /// Where new numberings go, for the state file.
    pub sessions: Arc<ArrayQueue<(ChannelId, SessionNumbering)>>,
}

/// What a thread keeps for all the channels that it serves.
#[derive(Debug)]
pub struct PipelineLocal {
    batch: ReceiveBatch,
    /// Receive stamp and place of each datagram of the batch, oldest first.
    order: Vec<(u64, u16)>,
    buffers: SendBuffers,
    stages: StageRecorder,
    wall: WallFromMono,
}

impl PipelineLocal {
    /// With all its memory.
    #[must_use]
    pub fn new(batch: ReceiveBatch, buffers: SendBuffers, stages: StageRecorder) -> Self {
        let order = Vec::with_capacity(batch.room());
        Self { batch, order, buffers, stages, wall: WallFromMono::new() }
    }
}

/// Counters of a channel that other threads can read while it runs, in the order in which they are registered.
/// `state` is the number of its [`ChannelState`], `lines_silent` has one bit for each line whose alarm is raised.
pub const COUNTERS: [&str; 21] = [
    "state",
    "datagrams",
    "messages",
    "messages_refused",
    "records",
    "gaps",
    "gap_messages",
    "sessions",
    "duplicates",
    "drops",
    "book_faults",
    "expected",
    "requests",
    "packets_sent",
    "sends_refused",
    "log_entries_lost",
    "lines_silent",
    "log_segments_missed",
    "log_entries_private",
    "sends_slow",
    "frames_refused",
];

impl ChannelPipeline {
    /// Puts it together.
    #[must_use]
    pub fn new(parts: PipelineParts) -> Self {
        let PipelineParts { index, mut channel, lines, recovery, peer_gap_requests, sink, publisher, fence, .. } =
            parts;
        let (counters, metrics, sessions) = (parts.counters, parts.metrics, parts.sessions);
        let waits_for_link = channel.config().late_start == LateStart::WholeSession;
        channel.start_silence_timers(mono_now());
        Self {
            index,
            channel,
            lines,
            recovery,
            sink,
            publisher,
            fence,
            drops: DropCounts::default(),
            peer_gap_requests,
            waits_for_link,
            requests: 0,
            requests_failed: 0,
            stamps: StampCounts::default(),
            counters,
            metrics,
            sessions,
            reported_session: None,
            fail_reason: None,
        }
    }

    /// The sans-I/O channel with its statistics.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The way out with its counts.
    #[must_use]
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// The log with its counts.
    #[must_use]
    pub fn sink(&self) -> &LogSink {
        &self.sink
    }

    /// What sockets brought that never reached the channel.
    #[must_use]
    pub fn socket_drops(&self) -> &DropCounts {
        &self.drops
    }

    /// Requests sent to the venue's retransmission server, and those that could not be sent.
    #[must_use]
    pub fn requests(&self) -> (u64, u64) {
        (self.requests, self.requests_failed)
    }

    /// Whose receive stamps the datagrams carried.
    #[must_use]
    pub fn stamps(&self) -> StampCounts {
        self.stamps
    }

    /// Why it is out of service.
    #[must_use]
    pub fn failed(&self) -> Option<&FailReason> {
        self.fail_reason.as_ref()
    }

    /// The line sockets, in the order of their lines, and the recovery socket.
    pub fn sockets(&self) -> impl Iterator<Item = (Line, &ReceiveSocket)> {
        let lines = self.lines.iter().map(|line| (line.line, &line.socket));
        lines.chain(self.recovery.iter().map(|recovery| (Line::RECOVERY, &recovery.socket)))
    }

    /// The straight line: everything in the batch, in the order in which it was received, whichever line it came on.
    fn process_batch<I: ThreadIo>(&mut self, context: &mut TurnContext<'_, I, PipelineLocal>) -> usize {
        let PipelineLocal { batch, order, buffers, stages, wall } = &mut *context.local;
        let received_at = wall.at(mono_now());
        let stages = stages.histograms();

        order.clear();
        for (place, datagram) in batch.iter().enumerate() {
            let stamp = datagram.ts_recv.unwrap_or(context.woken_at);
            order.push((stamp.0, u16::try_from(place).unwrap_or(u16::MAX)));
        }
        // Lines were drained one after the other; who was first is judged by the stamps.
        order.sort_unstable();

        for (stamp, place) in order.iter() {
            let Some(datagram) = batch.get(usize::from(*place)) else { continue };
            let ts_recv = datagram.ts_recv.unwrap_or(context.woken_at);
            debug_assert_eq!(ts_recv.0, *stamp);
            if let Err(fail_reason) = admit(&self.lines, self.recovery.as_ref(), &datagram) {
                self.drops.count(fail_reason);
                continue;
            }
            self.stamps.count(datagram.stamp);
            stages.record_wall(self.index, Stage::WireToUser, ts_recv, received_at);

            let started_at = mono_now();
            self.sink.begin(wall.at(started_at));
            let log_end_before = self.sink.writer().end();
            let mut timed_sink = TimedSink { sink: &mut self.sink, arbitrated: None };
            let datagram = Datagram { line: datagram.line, bytes: datagram.bytes, ts_recv };
            self.channel.accept(datagram, context.now, &mut timed_sink);
            let arbitrated = timed_sink.arbitrated;
            // What one datagram brought goes out at once.
            self.sink.flush();
            let committed = mono_now();
            stages.record_mono(self.index, Stage::Arbitrate, started_at, arbitrated.unwrap_or(committed));
            if let Some(arbitrated) = arbitrated {
                stages.record_mono(self.index, Stage::DecodeAndBook, arbitrated, committed);
            }
            if self.sink.writer().end() == log_end_before {
                continue;
            }
            if let Some(sent_at) = self.publisher.send_from(&mut self.sink, &self.fence, buffers, context.io) {
                stages.record_mono(self.index, Stage::Publish, committed, sent_at);
                stages.record_wall(self.index, Stage::WireToWire, ts_recv, wall.at(sent_at));
            }
        }
        self.finish_batch(context.now);
        order.len()
    }

    /// The claim is ours.
    fn record_claim_wait<I>(&self, context: &mut TurnContext<'_, I, PipelineLocal>) {
        let stages = &mut context.local.stages;
        stages.at_batch_boundary(context.now);
        stages.histograms().record_mono(self.index, Stage::ClaimWait, context.now, mono_now());
    }

    /// What follows a batch or a deadline: requests that are due, news for cold threads.
    fn finish_batch(&mut self, now: MonoNs) {
        self.send_requests();
        if let Some(numbering) = self.channel.session_numbering()
            && self.reported_session != Some((numbering.session, numbering.has_messages))
            && self.sessions.push((self.channel.config().id, numbering)).is_ok()
        {
            self.reported_session = Some((numbering.session, numbering.has_messages));
        }
        self.publish_counters();
        self.metrics.at_batch_boundary(now, &mut self.channel, self.drops.unexpected());
    }

    /// The channel has ended: what was recorded since the last interval goes into the log.
    pub fn flush_metrics(&mut self, now: MonoNs) {
        self.metrics.finish(now, &mut self.channel, self.drops.unexpected());
    }

    /// Gaps are rare, so the system call here is.
    fn send_requests(&mut self) {
        let mut request = [0; REQUEST_BYTES_MAX];
        while let Some(wanted) = self.channel.poll_request(&mut request) {
            let is_requested = match (wanted, &self.recovery) {
                (MissingRequest::Peer { session, first, next }, _) => {
                    let channel = self.channel.config().id;
                    let is_requested =
                        self.peer_gap_requests.request_from_peer(PeerGapRequest { channel, session, first, next });
                    // Who joins waits for the link to come up once; then the next one who may have it is asked.
                    self.waits_for_link &= !is_requested;
                    if !is_requested && !self.waits_for_link {
                        self.channel.peer_answer_ended(first, mono_now());
                    }
                    is_requested
                }
                (MissingRequest::Server(bytes), Some(recovery)) => {
                    self.waits_for_link = false;
                    let sent = recovery.socket.socket().send_to(&request[..bytes], &recovery.server.into());
                    self.requests += 1;
                    sent.is_ok()
                }
                (MissingRequest::Server(_), None) => false,
            };
            // One that is lost here is lost like one on the wire: it is asked again after its time-out.
            self.requests_failed += u64::from(!is_requested);
        }
    }

    fn publish_counters(&mut self) {
        let channel = &self.channel;
        let counters = channel.counters();
        let arbiter_drops = channel.arbiter_drops();
        let drops = self.drops.unexpected() + channel.drops().unexpected() + arbiter_drops.unexpected();
        let expected = channel.position().map_or(0, |(_, expected)| expected.0);
        let sent = self.publisher.counts();
        let log = self.sink.writer().counts();
        let lines = self.lines.iter().map(|line| line.line);
        // One bit for each line whose alarm is raised.
        let silent = lines
            .filter(|line| channel.line_statistics(*line).silent)
            .fold(0, |silent, line| silent | 1_u64 << (line.0 & 7));
        let values = [
            channel.state() as u64,
            counters.datagrams,
            counters.messages,
            counters.messages_refused,
            counters.records,
            counters.gaps,
            counters.gap_messages,
            counters.sessions,
            arbiter_drops.get(DropReason::Duplicate),
            drops,
            channel.book_faults().total(),
            expected,
            self.requests,
            sent.packets,
            sent.refused + sent.errors,
            sent.memory_overruns,
            silent,
            log.segments_not_ready,
            log.entries_private,
            sent.slow_sends,
            self.sink.counts().refused,
        ];
        const { assert!(COUNTERS.len() == 21) };
        for (place, value) in values.into_iter().enumerate() {
            self.counters.set(place, value);
        }
    }
}

impl ChannelHandler for ChannelPipeline {
    type Local = PipelineLocal;
    type Message = ChannelMessage;

    fn on_ready<I: ThreadIo>(
        &mut self,
        lines: LineSet,
        _quota: usize,
        context: &mut TurnContext<'_, I, PipelineLocal>,
    ) -> Result<Progress, Failure> {
        self.record_claim_wait(context);
        let mut sockets = [(Line::A, -1 as RawFd); Line::COUNT_MAX];
        let mut count = 0;
        for ((line, socket), slot) in self.sockets().filter(|(line, _)| lines.contains(*line)).zip(&mut sockets) {
            *slot = (line, socket.raw_fd());
            count += 1;
        }
        context.local.batch.clear();
        // The batch has room for one quota.
        let more = context
            .io
            .receive(&sockets[..count], &mut context.local.batch)
            .map_err(|_| Failure("a line's socket can't be read"))?;
        Ok(Progress { packets: self.process_batch(context), unfinished_lines: more })
    }

    fn on_provided<I: ThreadIo>(
        &mut self,
        handle: Handle,
        context: &mut TurnContext<'_, I, PipelineLocal>,
    ) -> Result<Progress, Failure> {
        self.record_claim_wait(context);
        let mut packets = 0;
        loop {
            // Clearing the batch gives its buffers back.
            context.local.batch.clear();
            context.io.take_provided(handle, &mut context.local.batch);
            if context.local.batch.is_empty() {
                return Ok(Progress { packets, unfinished_lines: LineSet::default() });
            }
            packets += self.process_batch(context);
        }
    }

    fn on_deadline<I: ThreadIo>(
        &mut self,
        now: MonoNs,
        context: &mut TurnContext<'_, I, PipelineLocal>,
    ) -> Result<(), Failure> {
        let PipelineLocal { buffers, stages, wall, .. } = &mut *context.local;
        stages.at_batch_boundary(context.now);
        self.sink.begin(wall.at(now));
        if self.channel.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.channel.on_deadline(now, &mut self.sink);
            self.sink.flush();
        }
        self.publisher.on_deadline(now, &mut self.sink, &self.fence, buffers, context.io);
        self.finish_batch(now);
        Ok(())
    }

    fn on_message<I: ThreadIo>(
        &mut self,
        message: ChannelMessage,
        context: &mut TurnContext<'_, I, PipelineLocal>,
    ) -> Result<(), Failure> {
        match message {
            ChannelMessage::FenceChanged(number) => {
                self.publisher.send_from(&mut self.sink, &self.fence, &mut context.local.buffers, context.io);
                self.publisher.acknowledge_drain(number, &self.sink);
            }
            ChannelMessage::Recovered(bytes) => {
                let PipelineLocal { buffers, wall, .. } = &mut *context.local;
                let ts_recv = wall.at(mono_now());
                self.sink.begin(ts_recv);
                let datagram = Datagram { line: Line::RECOVERY, bytes: &bytes, ts_recv };
                self.channel.accept(datagram, context.now, &mut self.sink);
                self.sink.flush();
                self.publisher.send_from(&mut self.sink, &self.fence, buffers, context.io);
            }
            ChannelMessage::PeerAnswerEnded(asked) => self.channel.peer_answer_ended(asked, context.now),
            ChannelMessage::PeerDeclaredGap(session) => self.channel.peer_declared_gap(session),
            // It changes nothing here.
            ChannelMessage::Copy(copy_request) => {
                copy_request.take(&mut self.channel);
                return Ok(());
            }
        }
        self.finish_batch(context.now);
        Ok(())
    }

    fn next_deadline(&self) -> Option<MonoNs> {
        if self.fail_reason.is_some() {
            return self.publisher.next_deadline();
        }
        [self.channel.next_deadline(), self.publisher.next_deadline()].into_iter().flatten().min()
    }

    fn lines(&self) -> LineSet {
        self.sockets().fold(LineSet::default(), |lines, (line, _)| lines.with(line))
    }

    fn on_failed<I: ThreadIo>(&mut self, fail_reason: &FailReason, context: &mut TurnContext<'_, I, PipelineLocal>) {
        self.channel.fail();
        self.fail_reason = Some(fail_reason.clone());
        self.counters.set(0, ChannelState::Failed as u64);
        let PipelineLocal { buffers, wall, .. } = &mut *context.local;
        self.sink.begin(wall.at(mono_now()));
        self.sink.fail();
        self.publisher.send_from(&mut self.sink, &self.fence, buffers, context.io);
    }

    fn on_failed_deadline<I: ThreadIo>(&mut self, now: MonoNs, context: &mut TurnContext<'_, I, PipelineLocal>) {
        self.publisher.on_deadline(now, &mut self.sink, &self.fence, &mut context.local.buffers, context.io);
    }
}

/// Whether a datagram may go to the channel.
fn admit(
    lines: &[LineSocket],
    recovery: Option<&RecoverySocket>,
    datagram: &mdgw_sys::batch::ReceivedDatagram<'_>,
) -> Result<(), DropReason> {
    if datagram.truncated {
        return Err(DropReason::DatagramTruncated);
    }
    if datagram.line == Line::RECOVERY {
        let is_server = recovery.is_some_and(|recovery| *datagram.source.ip() == *recovery.server.ip());
        return if is_server { Ok(()) } else { Err(DropReason::SourceUnexpected) };
    }
    let line = lines.iter().find(|line| line.line == datagram.line).ok_or(DropReason::SourceUnexpected)?;
    line.filter.check(datagram.source)
}

/// The log, and the moment at which arbitration was done.
struct TimedSink<'s> {
    sink: &'s mut LogSink,
    arbitrated: Option<MonoNs>,
}

impl FrameSink for TimedSink<'_> {
    fn frame(&mut self, meta: &FrameMeta, record_count: u16, body: &[u8]) {
        self.sink.frame(meta, record_count, body);
    }

    fn covered_through(&mut self, next: Sequence) {
        self.sink.covered_through(next);
    }

    fn session(&mut self, session: Session, next: Sequence) {
        self.sink.session(session, next);
    }

    fn end_of_session(&mut self) {
        self.sink.end_of_session();
    }

    fn arbitrated(&mut self) {
        self.arbitrated.get_or_insert_with(mono_now);
    }
}
