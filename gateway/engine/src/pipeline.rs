//! The data path of one channel, from its sockets to the multicast. Read [`ChannelPipeline::process_batch`] first.
//!
//! ```text
//! socket → handle set → claim → receive → arbitrate → decode → book → normalise → publication log → fence → multicast
//!          └─ handle_set, dispatch ──┘     └────────────── feeds ─────────────┘   publog           publish
//! ```
//! One thread carries a datagram through all steps, without a queue or a hand-over. Slower work reads the publication
//! log from its own threads. The claim admits one thread at a time to a channel's pipeline. No code here waits,
//! allocates or locks.

mod state_copy;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use state_copy::CopyRequest;

use std::{
    net::SocketAddrV4,
    os::fd::RawFd,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use crossbeam_queue::ArrayQueue;
use mdgw_feeds::{
    book::BookFaultCounts,
    channel::{
        Channel, ChannelState, Datagram, KnownSession, LateStart, MissingRequest, PeerPosition, REQUEST_BYTES_MAX,
    },
    drop_reason::{DropCounts, DropReason},
    frame::{FrameMeta, FrameSink},
    identity::{ChannelId, Line, Sequence, Session},
    time::{MonoNs, UnixNs},
};
use mdgw_sys::{
    batch::{OutputIndex, ReceiveBatch, ReceivedDatagram, SendBuffers, StampKind},
    clock::{WallFromMono, mono_now},
    fence::Fence,
    handle::{ChannelIndex, Handle, LineSet},
    sockets::{ReceiveSocket, SourceFilter},
};
use mdgw_telemetry::{
    channel_metrics::ChannelRecorder,
    counter_block,
    counters::CounterWriter,
    stages::{Stage, StageHistograms, StageRecorder},
};

use crate::{
    dispatch::{ChannelHandler, FailReason, Failure, Progress, TurnContext},
    handle_set::ThreadIo,
    publish::{LogSink, OUTPUT_LINES_MAX, Publisher},
};

/// One channel with all state that belongs to it alone. Owned by the holder of its claim.
#[derive(Debug)]
pub struct ChannelPipeline {
    index: ChannelIndex,
    channel: Channel,
    lines: Vec<LineSocket>,
    recovery: Option<RecoverySocket>,
    sink: LogSink,
    publisher: Publisher,
    fence: Arc<Fence>,
    /// Datagrams from sockets that were refused before they reached the channel.
    drops: DropCounts,
    peer_gap_requests: Arc<PeerGapRequests>,
    waits_for_link: bool,
    requests: u64,
    requests_failed: u64,
    stamps: StampCounts,
    counters: CounterWriter<PipelineCounters>,
    drop_counters: CounterWriter<DropCounts>,
    book_fault_counters: CounterWriter<BookFaultCounts>,
    /// Sum of the drop counts when they were published last.
    published_drops: u64,
    /// Number of book faults in `book_fault_counters`.
    published_book_faults: u64,
    metrics: ChannelRecorder,
    /// New sessions on their way to the state file.
    sessions: Arc<ArrayQueue<(ChannelId, KnownSession)>>,
    /// The last session put into `sessions`, and whether it had messages.
    reported_session: Option<(Session, bool)>,
    fail_reason: Option<FailReason>,
}

/// Datagrams by the source of their receive timestamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StampCounts {
    /// Timestamp of the NIC.
    pub hardware: u64,
    /// Timestamp of the kernel.
    pub kernel: u64,
    /// No timestamp: the clock on return from the wait was used.
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

/// One line: its socket and the sources it accepts.
#[derive(Debug)]
pub struct LineSocket {
    /// The line of the venue: A, B, or a further one.
    pub line: Line,
    /// The receiving socket, joined to the line's multicast group.
    pub socket: ReceiveSocket,
    /// Sources whose datagrams are accepted.
    pub filter: SourceFilter,
}

/// The connection to the venue's retransmission server. Its answers are received as a line ([`Line::RECOVERY`]).
#[derive(Debug)]
pub struct RecoverySocket {
    /// Sends requests and receives answers.
    pub socket: ReceiveSocket,
    /// Address of the retransmission server, to which requests are sent.
    pub server: SocketAddrV4,
}

/// Messages from other threads to a channel.
#[derive(Debug)]
pub enum ChannelMessage {
    /// The fence has opened or closed: send what is due now, without waiting for the next packet or heartbeat, and
    /// acknowledge the drain with this number.
    FenceChanged(u64),
    /// A datagram of the venue that the peer had received, in answer to a [`PeerGapRequest`].
    Recovered(Box<[u8]>),
    /// End of the answer: the peer has no requested data from this sequence on.
    PeerAnswerEnded(Sequence),
    /// The peer has reported a position beyond this channel's.
    PeerReported(PeerPosition),
    /// The leader has published a gap of that session.
    PeerDeclaredGap(Session),
    /// A slice of the channel's state, for a joining gateway.
    CopySlice(Box<CopyRequest>),
    /// Other output lines from now on.
    OutputsChanged(Arc<OutputChange>),
}

/// Output lines that replace those of some channels.
#[derive(Debug)]
pub struct OutputChange {
    outputs: Vec<OutputIndex>,
    applied: AtomicUsize,
}

impl OutputChange {
    /// A change to these lines, at most [`OUTPUT_LINES_MAX`].
    ///
    /// # Panics
    /// With more lines.
    #[must_use]
    pub fn new(outputs: Vec<OutputIndex>) -> Arc<Self> {
        assert!(outputs.len() <= OUTPUT_LINES_MAX);
        Arc::new(Self { outputs, applied: AtomicUsize::new(0) })
    }

    /// Number of channels that have no send in progress on any other line, and begin none.
    #[must_use]
    pub fn applied_count(&self) -> usize {
        // Acquire pairs with the Release of the channel: its sends on the former lines are done.
        self.applied.load(Acquire)
    }
}

/// A range `[first, next)` of input that no line has delivered, requested from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerGapRequest {
    /// Channel of the missing range.
    pub channel: ChannelId,
    /// Session of the missing range.
    pub session: Session,
    /// First sequence of the missing range.
    pub first: Sequence,
    /// First sequence after the range.
    pub next: Sequence,
}

/// Queue of requests to the pair link. The link's thread says whether a peer is connected; without a peer the channel
/// does not wait for an answer.
#[derive(Debug)]
pub struct PeerGapRequests {
    queue: ArrayQueue<PeerGapRequest>,
    is_linked: AtomicBool,
}

impl PeerGapRequests {
    /// A queue with room for `room` requests; no peer is connected yet.
    ///
    /// # Panics
    /// If `room` is 0.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { queue: ArrayQueue::new(room), is_linked: AtomicBool::new(false) }
    }

    /// Sets whether a peer is connected. Called by the pair link's thread.
    pub fn set_linked(&self, is_linked: bool) {
        // Relaxed: a request that arrives a moment too late is lost, as on the network.
        self.is_linked.store(is_linked, Relaxed);
    }

    /// Takes the oldest request from the queue.
    #[must_use]
    pub fn take(&self) -> Option<PeerGapRequest> {
        self.queue.pop()
    }

    /// Queues a request and returns whether a peer is connected. If the queue is full the request is lost, as on the
    /// network, and repeated after its time-out. A full queue says nothing about the data that the peer has.
    fn request_from_peer(&self, gap: PeerGapRequest) -> bool {
        let is_linked = self.is_linked.load(Relaxed);
        if is_linked {
            let _no_room = self.queue.push(gap);
        }
        is_linked
    }
}

/// Parts of a pipeline.
#[derive(Debug)]
pub struct PipelineParts {
    /// Index of the channel in its pool.
    pub index: ChannelIndex,
    /// The sans-I/O channel: arbitration, decoding, books.
    pub channel: Channel,
    /// Sockets of the venue's lines.
    pub lines: Vec<LineSocket>,
    /// Connection to the venue's retransmission server, if it has one.
    pub recovery: Option<RecoverySocket>,
    /// Requests to the peer; they precede those to the server.
    pub peer_gap_requests: Arc<PeerGapRequests>,
    /// Writes the publication log.
    pub sink: LogSink,
    /// Sends the log's entries.
    pub publisher: Publisher,
    /// Decides at each send whether this gateway may publish.
    pub fence: Arc<Fence>,
    /// Counters that other threads read.
    pub counters: CounterWriter<PipelineCounters>,
    /// Drops by reason, for other threads.
    pub drop_counters: CounterWriter<DropCounts>,
    /// Book faults by reason, for readers.
    pub book_fault_counters: CounterWriter<BookFaultCounts>,
    /// Records the channel's counts and its lines' leads for a cold thread.
    pub metrics: ChannelRecorder,
    /// Queue of new sessions, for the state file.
    pub sessions: Arc<ArrayQueue<(ChannelId, KnownSession)>>,
}

/// Memory of one thread for all channels that it serves.
#[derive(Debug)]
pub struct PipelineLocal {
    batch: ReceiveBatch,
    /// Receive timestamp, ns, and index in the batch, of each datagram; oldest first.
    order: Vec<(u64, u16)>,
    /// Datagrams whose output is not sent yet.
    unsent: Vec<UnsentDatagram>,
    buffers: SendBuffers,
    stages: StageRecorder,
    wall: WallFromMono,
}

impl PipelineLocal {
    /// Allocates all of its memory.
    #[must_use]
    pub fn new(batch: ReceiveBatch, buffers: SendBuffers, stages: StageRecorder) -> Self {
        let (order, unsent) = (Vec::with_capacity(batch.room()), Vec::with_capacity(batch.room()));
        Self { batch, order, unsent, buffers, stages, wall: WallFromMono::new() }
    }
}

/// A datagram whose output waits for its packet to leave.
#[derive(Clone, Copy, Debug)]
struct UnsentDatagram {
    ts_recv: UnixNs,
    /// When its last record was written.
    recorded_at: MonoNs,
}

counter_block! {
    /// Counters of a channel that other threads can read while it runs. Written by the holder of its claim.
    pub struct PipelineCounters, key PipelineCounter {
        state: Gauge, None, "state: 0 waiting, 1 live, 2 gap, 3 recovering, 4 stale, 5 ended, 6 failed";
        datagrams: Counter, Packets, "datagrams received on all lines";
        messages: Counter, Messages, "messages in sequence, each once";
        messages_refused: Counter, Messages, "messages that could not be decoded";
        records: Counter, Records, "DBN records produced";
        gaps: Counter, None, "gaps declared";
        gap_messages: Counter, Messages, "messages in declared gaps";
        sessions: Counter, None, "sessions started";
        late_starts: Counter, None, "sessions begun in their middle: books lack what came before, which is not counted as a gap";
        input_incomplete: Gauge, None, "1: messages of the current session are missing here, so books are suspect";
        duplicates: Counter, Messages, "messages that another line had delivered before";
        drops: Counter, None, "packets and messages dropped unexpectedly";
        book_faults: Counter, Messages, "messages that contradict a book";
        expected_sequence: Gauge, Sequence, "next input sequence";
        recovery_requests: Counter, None, "requests sent to the venue's retransmission server";
        peer_reports_given_up: Counter, None, "times messages that only a peer reported came from no source; not counted as a gap";
        packets_sent: Counter, Packets, "packets published, on all output lines";
        sends_refused: Counter, None, "sends that the kernel cut short for lack of room; retried";
        sends_failed: Counter, None, "sends that failed otherwise: interface down, no route, forbidden; retried";
        output_blocked_ns: Gauge, Nanoseconds, "longest time between the first and the last refusal of an output line without a packet sent between them";
        output_refused_ns: Gauge, Nanoseconds, "the same time of the line where it is shortest; 0: the kernel took the last packet of a line";
        blocked_output_lines_mask: Mask, None, "bit n: the kernel refuses the packets of output line n";
        output_overruns: Counter, None, "times an output line fell behind the log and skipped entries";
        silent_lines_mask: Mask, None, "bit n: line n is silent";
        log_segments_not_ready: Counter, None, "times no log segment was ready";
        log_entries_missing: Counter, Entries, "entries published but not written to the log";
        sends_slow: Counter, None, "sends that took longer than `send_us_max`";
        frames_refused: Counter, Messages, "messages too large for a packet, published as gaps";
    }
}

impl ChannelPipeline {
    /// Assembles a pipeline and starts the channel's silence timers.
    #[must_use]
    pub fn new(parts: PipelineParts) -> Self {
        let PipelineParts { index, mut channel, lines, recovery, peer_gap_requests, sink, publisher, fence, .. } =
            parts;
        let (counters, metrics, sessions) = (parts.counters, parts.metrics, parts.sessions);
        let (drop_counters, book_fault_counters) = (parts.drop_counters, parts.book_fault_counters);
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
            drop_counters,
            book_fault_counters,
            published_drops: 0,
            published_book_faults: 0,
            metrics,
            sessions,
            reported_session: None,
            fail_reason: None,
        }
    }

    /// Index of the channel's slot in its pool.
    #[must_use]
    pub fn index(&self) -> ChannelIndex {
        self.index
    }

    /// The sans-I/O channel with its statistics.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The publisher with its counts.
    #[must_use]
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// The log with its counts.
    #[must_use]
    pub fn sink(&self) -> &LogSink {
        &self.sink
    }

    /// Dropped packets and messages of all stages, by reason.
    #[must_use]
    pub fn drop_counts(&self) -> DropCounts {
        let mut drops = DropCounts::default();
        for counts in [&self.drops, self.channel.drops(), self.channel.arbiter_drops()] {
            counts.iter().for_each(|(reason, count)| drops.count_many(reason, count));
        }
        drops
    }

    /// Requests sent to the venue's retransmission server, and those that could not be sent.
    #[must_use]
    pub fn requests(&self) -> (u64, u64) {
        (self.requests, self.requests_failed)
    }

    /// Sources of the datagrams' receive timestamps.
    #[must_use]
    pub fn stamps(&self) -> StampCounts {
        self.stamps
    }

    /// Why the channel is out of service.
    #[must_use]
    pub fn failed(&self) -> Option<&FailReason> {
        self.fail_reason.as_ref()
    }

    /// The line sockets, in the order of their lines, and the recovery socket.
    pub fn sockets(&self) -> impl Iterator<Item = (Line, &ReceiveSocket)> {
        let lines = self.lines.iter().map(|line| (line.line, &line.socket));
        lines.chain(self.recovery.iter().map(|recovery| (Line::RECOVERY, &recovery.socket)))
    }

    /// The data path: processes all datagrams of the batch in the order of their receive timestamps, whichever line
    /// they came on. Returns the number of datagrams.
    ///
    /// A packet stays open while one of the batch's next [`LOOK_AHEAD_DATAGRAMS`] holds the next message. The packet leaves
    /// at once when it is full, or when they have nothing new.
    fn process_batch<I: ThreadIo>(&mut self, context: &mut TurnContext<'_, I, PipelineLocal>) -> usize {
        let PipelineLocal { batch, order, unsent, buffers, stages, wall } = &mut *context.local;
        let received_at = wall.at(mono_now());
        let stages = stages.histograms();

        order.clear();
        for (place, datagram) in batch.iter().enumerate() {
            let stamp = datagram.ts_recv.unwrap_or(context.woken_at);
            order.push((stamp.0, u16::try_from(place).unwrap_or(u16::MAX)));
        }
        // Lines were drained one after the other; the timestamps decide the order between them.
        order.sort_unstable();

        unsent.clear();
        let mut sent_entries = self.sink.writer().counts().entries;
        // Index in `order` of the datagram that the open packet waits for.
        let mut open_until = 0;
        for (index, (stamp, place)) in order.iter().enumerate() {
            let Some(datagram) = batch.get(usize::from(*place)) else { continue };
            let ts_recv = datagram.ts_recv.unwrap_or(context.woken_at);
            debug_assert_eq!(ts_recv.0, *stamp);
            match admit(&self.lines, self.recovery.as_ref(), &datagram) {
                Err(reason) => self.drops.count(reason),
                Ok(()) => {
                    stages.record_wall(self.index, Stage::WireToUser, ts_recv, received_at);
                    let recorded = self.process_datagram(&datagram, ts_recv, context.now, stages, wall);
                    unsent.extend(recorded.map(|recorded_at| UnsentDatagram { ts_recv, recorded_at }));
                }
            }
            if self.sink.has_open_frames() {
                if self.sink.is_full() {
                    self.sink.flush();
                } else if index >= open_until {
                    match self.next_with_new_messages(batch, order, index + 1) {
                        Some(next) => open_until = next,
                        None => self.sink.flush(),
                    }
                }
            }
            let entries = self.sink.writer().counts().entries;
            if entries == sent_entries {
                continue;
            }
            sent_entries = entries;
            let sent_at = self.publisher.send_from(&mut self.sink, &self.fence, buffers, context.io);
            // The last datagram's output ends in the open packet, if there is one.
            let sent = unsent.drain(..unsent.len().saturating_sub(self.sink.has_open_frames().into()));
            if let Some(sent_at) = sent_at {
                let sent_at_wall = wall.at(sent_at);
                for UnsentDatagram { ts_recv, recorded_at } in sent {
                    stages.record_mono(self.index, Stage::Publish, recorded_at, sent_at);
                    stages.record_wall(self.index, Stage::WireToWire, ts_recv, sent_at_wall);
                }
            }
        }
        debug_assert!(!self.sink.has_open_frames(), "nothing stays open past the batch");
        self.finish_batch(context.now);
        order.len()
    }

    /// Passes one datagram to the channel. Returns when its last record was written, if it had output.
    #[inline]
    fn process_datagram(
        &mut self,
        datagram: &ReceivedDatagram<'_>,
        ts_recv: UnixNs,
        now: MonoNs,
        stages: &mut StageHistograms,
        wall: &mut WallFromMono,
    ) -> Option<MonoNs> {
        self.stamps.count(datagram.stamp);
        let started_at = mono_now();
        self.sink.begin(wall.at(started_at));
        let written_before = self.sink.written();
        let mut timed_sink = TimedSink { sink: &mut self.sink, arbitrated: None };
        let datagram = Datagram { line: datagram.line, bytes: datagram.bytes, ts_recv };
        self.channel.accept(datagram, now, &mut timed_sink);
        let arbitrated = timed_sink.arbitrated;
        self.sink.end_datagram();
        let recorded_at = mono_now();
        stages.record_mono(self.index, Stage::Arbitrate, started_at, arbitrated.unwrap_or(recorded_at));
        if let Some(arbitrated) = arbitrated {
            stages.record_mono(self.index, Stage::DecodeAndBook, arbitrated, recorded_at);
        }
        (self.sink.written() != written_before).then_some(recorded_at)
    }

    /// The first of some datagrams from `from` on that holds the next message, as an index in `order`. A copy of another line
    /// holds only messages that were delivered before.
    #[inline]
    fn next_with_new_messages(&self, batch: &ReceiveBatch, order: &[(u64, u16)], from: usize) -> Option<usize> {
        let is_new = |datagram: &ReceivedDatagram<'_>| {
            self.channel.holds_expected(datagram.bytes) && admit(&self.lines, self.recovery.as_ref(), datagram).is_ok()
        };
        let mut rest = order.iter().enumerate().skip(from).take(LOOK_AHEAD_DATAGRAMS);
        rest.find(|(_, (_, place))| batch.get(usize::from(*place)).is_some_and(|datagram| is_new(&datagram)))
            .map(|(index, _)| index)
    }

    /// Records the time between the wait's return and the claim.
    fn record_claim_wait<I>(&self, context: &mut TurnContext<'_, I, PipelineLocal>) {
        let stages = &mut context.local.stages;
        stages.at_batch_boundary(context.now);
        stages.histograms().record_mono(self.index, Stage::ClaimWait, context.now, mono_now());
    }

    /// Ends a batch or a deadline: sends due requests, reports to cold threads.
    fn finish_batch(&mut self, now: MonoNs) {
        self.send_requests();
        if let Some(known) = self.channel.known_session()
            && self.reported_session != Some((known.session, known.has_messages))
            && self.sessions.push((self.channel.config().id, known)).is_ok()
        {
            self.reported_session = Some((known.session, known.has_messages));
        }
        self.publish_counters();
        self.metrics.at_batch_boundary(now, &mut self.channel, self.drops.unexpected());
    }

    /// Hands the metrics since the last interval to the collector. Called when the channel has ended.
    pub fn flush_metrics(&mut self, now: MonoNs) {
        self.metrics.finish(now, &mut self.channel, self.drops.unexpected());
    }

    /// Sends the channel's due requests for missing input, to the peer or to the venue's server. Gaps are rare, so a
    /// system call is acceptable here.
    fn send_requests(&mut self) {
        let mut request = [0; REQUEST_BYTES_MAX];
        while let Some(wanted) = self.channel.poll_request(&mut request) {
            let is_requested = match (wanted, &self.recovery) {
                (MissingRequest::Peer { session, first, next }, _) => {
                    let channel = self.channel.config().id;
                    let is_requested =
                        self.peer_gap_requests.request_from_peer(PeerGapRequest { channel, session, first, next });
                    // A joining channel waits once for the link to come up. After that, the next source of the data
                    // gets the request.
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
            // A request lost here is lost as on the network: it is repeated after its time-out.
            self.requests_failed += u64::from(!is_requested);
        }
    }

    fn publish_counters(&mut self) {
        let channel = &self.channel;
        let counters = channel.counters();
        let arbiter_drops = channel.arbiter_drops();
        let drops = self.drops.unexpected() + channel.drops().unexpected() + arbiter_drops.unexpected();
        let expected_sequence = channel.position().map_or(0, |(_, expected)| expected.0);
        let book_faults = channel.book_faults().total();
        let sent = self.publisher.counts();
        let blocked_lines = self.publisher.blocked_lines();
        let log = self.sink.writer().counts();
        let lines = self.lines.iter().map(|line| line.line);
        let silent_lines_mask = lines
            .filter(|line| channel.line_statistics(*line).silent)
            .fold(0, |mask, line| mask | 1_u64 << (line.0 & 7));
        let values = PipelineCounters {
            state: channel.state() as u64,
            datagrams: counters.datagrams,
            messages: counters.messages,
            messages_refused: counters.messages_refused,
            records: counters.records,
            gaps: counters.gaps,
            gap_messages: counters.gap_messages,
            sessions: counters.sessions,
            late_starts: counters.late_starts,
            input_incomplete: channel.has_missed_input().into(),
            duplicates: arbiter_drops.get(DropReason::Duplicate),
            drops,
            book_faults,
            expected_sequence,
            recovery_requests: self.requests,
            peer_reports_given_up: channel.reports_given_up(),
            packets_sent: sent.packets,
            sends_refused: sent.refused,
            sends_failed: sent.errors,
            output_blocked_ns: blocked_lines.blocked_ns,
            output_refused_ns: blocked_lines.all_blocked_ns,
            blocked_output_lines_mask: blocked_lines.mask,
            output_overruns: sent.memory_overruns,
            silent_lines_mask,
            log_segments_not_ready: log.segments_not_ready,
            log_entries_missing: log.entries_private,
            sends_slow: sent.slow_sends,
            frames_refused: self.sink.counts().refused,
        };
        self.counters.publish(&values);
        // Reasons are rare, and cost nothing while there are no drops.
        if drops != self.published_drops {
            self.published_drops = drops;
            let by_reason = self.drop_counts();
            self.drop_counters.publish(&by_reason);
        }
        if book_faults != self.published_book_faults {
            self.published_book_faults = book_faults;
            self.book_fault_counters.publish(self.channel.book_faults());
        }
    }
}

impl ChannelHandler for ChannelPipeline {
    type Local = PipelineLocal;
    type Message = ChannelMessage;

    fn on_ready<I: ThreadIo>(
        &mut self,
        lines: LineSet,
        quota: usize,
        context: &mut TurnContext<'_, I, PipelineLocal>,
    ) -> Result<Progress, Failure> {
        self.record_claim_wait(context);
        let mut sockets = [(Line::A, -1 as RawFd); Line::COUNT_MAX];
        let mut count = 0;
        for ((line, socket), slot) in self.sockets().filter(|(line, _)| lines.contains(*line)).zip(&mut sockets) {
            *slot = (line, socket.raw_fd());
            count += 1;
        }
        // In the default configuration a full batch is one quota. If less of the quota is left, the batch takes only
        // that much.
        context.local.batch.clear_with_limit(quota);
        let more = context
            .io
            .receive(&sockets[..count], &mut context.local.batch)
            .map_err(|_| Failure("cannot read a line's socket"))?;
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
            // Clearing the batch returns its buffers.
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
            ChannelMessage::PeerReported(report) => self.channel.peer_reported(report, context.now),
            ChannelMessage::PeerDeclaredGap(session) => self.channel.peer_declared_gap(session),
            // A copy changes nothing in the channel, so there is nothing to publish. The log then has everything before the copied
            // position, for the gateway that copies.
            ChannelMessage::CopySlice(copy_request) => {
                copy_request.run(&mut self.channel);
                self.sink.commit_covered();
                return Ok(());
            }
            ChannelMessage::OutputsChanged(change) => {
                self.publisher.set_outputs(&change.outputs, &self.sink);
                self.publisher.send_from(&mut self.sink, &self.fence, &mut context.local.buffers, context.io);
                change.applied.fetch_add(1, Release);
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

    fn on_failed<I: ThreadIo>(&mut self, reason: &FailReason, context: &mut TurnContext<'_, I, PipelineLocal>) {
        self.channel.fail();
        self.fail_reason = Some(reason.clone());
        self.counters.set(PipelineCounter::state, ChannelState::Failed as u64);
        let PipelineLocal { buffers, wall, .. } = &mut *context.local;
        self.sink.begin(wall.at(mono_now()));
        self.sink.fail();
        self.publisher.send_from(&mut self.sink, &self.fence, buffers, context.io);
    }

    fn on_failed_deadline<I: ThreadIo>(&mut self, now: MonoNs, context: &mut TurnContext<'_, I, PipelineLocal>) {
        self.publisher.on_deadline(now, &mut self.sink, &self.fence, &mut context.local.buffers, context.io);
    }
}

/// How many datagrams of a batch an open packet may wait for. The line that delivers first has its next message in one of
/// the next few: between lie copies of other lines.
const LOOK_AHEAD_DATAGRAMS: usize = 8;

/// Checks whether a datagram may be passed to the channel.
fn admit(
    lines: &[LineSocket],
    recovery: Option<&RecoverySocket>,
    datagram: &ReceivedDatagram<'_>,
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

/// The log, and the time at which arbitration was done.
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
