//! One channel of a group: sessions, the start, and the path from packet to items.
//!
//! ```text
//!             first packet, sequence 1 (or no service)
//!  idle ──────────────────────────────────────────────────────────────────▶ running
//!    │ first packet, later sequence                                            ▲ │ packet of a newer session,
//!    └──▶ definitions ──answered──▶ extent (of the logs) ─────────answered──▶──┤ │ current one not at its end
//!              ├─ StartFrom::Live: directly ───────────────────────────────▶───┤ │
//!              └─ StartFrom::Snapshot: snapshot ──complete─────────────────▶───┤ ▼   (without one: group image, then extent)
//!  idle ──────▶ group image (no service) ──complete, or given up───────────▶───┘
//!                                          the newer session ◀───────────── closing (where did the current one end?)
//!                                                  ▲ none between              │ ▲ a session between: that one first
//!  StartFrom::OldestOfDay, not its first session   │                           ▼ │
//!  idle ───────────────────────────────────────────┴───────────────────── sessions (which are in the logs?)
//! ```
//! Every query is repeated until it is answered or given up; the stream then continues without the answer. Log
//! extents and definitions are queried from every service.
//!
//! While a channel waits for an image of the snapshot group, the stream runs as ever, but nothing is delivered: messages are kept,
//! within a bound. With the image everything is delivered at once, from the image's position on.

use crate::{
    arbiter::{AnswerEnd, Arbiter, ArbiterConfig, Arrival, RecoveryConfig, WhenFull},
    drop_reason::DropReason,
    identity::{ChannelId, GroupId, Line, Sequence, Session},
    published::{
        packet::{Packet, PacketFlags},
        request::{RequestKind, ServiceRequest},
        snapshot::SnapshotChunk,
    },
    time::MonoNs,
};

use super::{
    BookState, Item, Output, PublishedDatagram, ReceiverConfig, ReceiverStatistics, ServiceConfig, SnapshotGroupConfig,
    StartFrom,
    item_stream::ItemStream,
    log_extents::{LogExtent, LogExtents},
    positions::{FIRST_SEQUENCE, PART_BITS, message_after, message_of, part_number, position_of, positions_of},
    rebuild::Rebuild,
    service_query::ServiceQuery,
    snapshot_query::{SnapshotProgress, SnapshotQuery},
};

#[derive(Debug)]
pub(super) struct ReceiverChannel {
    service: Option<ServiceConfig>,
    start: StartFrom,
    snapshot_group: Option<SnapshotGroupConfig>,
    rebuilds_books: bool,
    rebuild_bytes_max: u64,
    phase: Phase,
    /// Log extents of the current session; during a query for sessions, of the oldest session reported.
    log_extents: LogExtents,
    /// The session followed before the current one. If present, the current session is requested from its beginning.
    previous_session: Option<Session>,
    /// Definitions delivered at the start of the current session, ascending: each log may lack some that another one has.
    definitions: Vec<Sequence>,
    /// Range observed of the current session while its start was being requested.
    skipped: Option<(Sequence, Sequence)>,
    snapshot: SnapshotQuery,
    rebuild: Rebuild,
    /// Over positions: `sequence << 16 | part`.
    arbiter: Arbiter,
    stream: ItemStream,
}

#[derive(Debug)]
enum Phase {
    Idle,
    /// Querying the services for the oldest session in their logs from `from` on. `oldest` is the oldest reported so
    /// far. `next_session` is already being published.
    QueryingSessions {
        query: ServiceQuery,
        from: Session,
        oldest: Option<Session>,
        next_session: Session,
    },
    /// Definitions before index `next_definition` of that service's log have arrived; the last request began at
    /// `requested_from`. Each log has indices of its own, so each service is asked from index 0 on. Until one answers, any may.
    /// `next_session` may have begun.
    QueryingDefinitions {
        service: Option<u8>,
        next_definition: Sequence,
        requested_from: Sequence,
        query: ServiceQuery,
        next_session: Option<Session>,
    },
    /// Querying the services for a snapshot, from one of them. `next_session` may have begun.
    QueryingSnapshot {
        query: ServiceQuery,
        next_session: Option<Session>,
    },
    /// Keeping messages until the snapshot group has sent a whole image, and delivering nothing. `before`: the statistics without what
    /// was received meanwhile.
    AwaitingGroupImage {
        until: MonoNs,
        before: ReceiverStatistics,
    },
    /// Querying the log extents. `next_session` may have begun.
    QueryingExtent {
        query: ServiceQuery,
        next_session: Option<Session>,
    },
    Running,
    /// `next_session` has begun. The flag records whether the arbiter knows the current session's end.
    ClosingSession {
        query: ServiceQuery,
        is_end_known: bool,
        next_session: Session,
    },
}

impl ReceiverChannel {
    pub(super) fn new(id: ChannelId, config: &ReceiverConfig) -> Self {
        let jump_max = config.sequence_jump_max.clamp(1, 1 << 40) << PART_BITS;
        let arbiter = ArbiterConfig {
            lines: config.lines,
            window_packets: config.window_packets,
            datagram_bytes_max: config.packet_bytes_max,
            // A packet also covers messages without output, so its size does not bound its range.
            messages_per_packet_max: jump_max,
            gap_timeout_ns: config.gap_timeout_ns,
            recovery: config.service.map(|service| RecoveryConfig {
                request_timeout_ns: service.request_timeout_ns,
                attempts_max: service.attempts_max.max(1),
                peer_timeout_ns: 0,
                peer_attempts_max: 0,
                messages_per_request_max: service.messages_per_request_max.clamp(1, 1 << 40) << PART_BITS,
                // The service limits itself; a late joiner may request a whole day.
                requests_in_flight_max: 1,
                gap_messages_max: u64::MAX,
                session_messages_max: u64::MAX,
                answer_end: AnswerEnd::Announced,
            }),
            catch_up: None,
            // Packets that do not fit the window are in the service's log.
            when_full: if config.service.is_some() { WhenFull::RefusePacket } else { WhenFull::DeclareGap },
            sequence_jump_max: jump_max,
            line_silence_ns: config.line_silence_ns,
        };
        let mut channel = Self {
            service: config.service,
            start: config.start,
            snapshot_group: config.snapshot_group,
            rebuilds_books: config.rebuilds_books,
            rebuild_bytes_max: config.rebuild_bytes_max,
            phase: Phase::Idle,
            log_extents: LogExtents::new(config.service.map_or(0, |service| service.service_count)),
            previous_session: None,
            definitions: Vec::new(),
            skipped: None,
            snapshot: SnapshotQuery::new(
                config.snapshot_bytes_max,
                config.service.map_or(0, |service| service.service_count),
            ),
            rebuild: Rebuild::new(config),
            arbiter: Arbiter::new(arbiter),
            stream: ItemStream::new(id, config),
        };
        if let Some((_, position)) = config.resume.iter().find(|(resumed, _)| *resumed == id) {
            channel.stream.resume(position.session, position.sequence);
            channel.arbiter.begin_session(Some(position_of(position.sequence)));
            channel.phase = Phase::Running;
        }
        channel
    }

    pub(super) fn id(&self) -> ChannelId {
        self.stream.id
    }

    pub(super) fn arbiter(&self) -> &Arbiter {
        &self.arbiter
    }

    pub(super) fn statistics(&self) -> &ReceiverStatistics {
        &self.stream.statistics
    }

    pub(super) fn position(&self) -> Option<(Session, Sequence)> {
        self.stream.session.zip(self.arbiter.expected().map(message_of))
    }

    pub(super) fn accept(
        &mut self,
        packet: &Packet<'_>,
        datagram: &PublishedDatagram<'_>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        self.arbiter.start_silence_timers(now);
        let is_answer = datagram.line == Line::RECOVERY;
        if let Phase::QueryingSessions { next_session, .. } = &mut self.phase {
            if is_answer {
                self.accept_session_answer(packet, datagram.service, now, deliver);
            } else {
                *next_session = packet.meta.session.max(*next_session);
                self.stream.statistics.packets_before_start_position += 1;
            }
            return Ok(());
        }
        let current = self.stream.session;
        if current != Some(packet.meta.session) {
            if is_answer {
                return Err(DropReason::AnswerUnrequested);
            }
            if current.is_some_and(|current| packet.meta.session < current) {
                return Err(DropReason::SessionStale);
            }
            let is_uncut = packet.part.is_none_or(|part| part.part == 0);
            let first = Some(packet.meta.first).filter(|_| is_uncut);
            if !self.on_newer_session(packet.meta.session, first, now, deliver) {
                self.stream.statistics.packets_before_start_position += 1;
                return Ok(());
            }
        }
        match &self.phase {
            Phase::QueryingSnapshot { .. } if is_answer => {
                self.accept_snapshot_answer(packet, datagram.service, now, deliver)
            }
            Phase::QueryingDefinitions { .. } | Phase::QueryingExtent { .. } if is_answer => {
                self.accept_start_answer(packet, datagram.service, now, deliver);
                Ok(())
            }
            Phase::Idle
            | Phase::QueryingSessions { .. }
            | Phase::QueryingDefinitions { .. }
            | Phase::QueryingSnapshot { .. }
            | Phase::QueryingExtent { .. } => {
                self.skip_before_start(packet);
                Ok(())
            }
            Phase::AwaitingGroupImage { .. } => {
                let outcome = self.accept_running(packet, datagram, now, &mut withhold);
                self.start_with_group_image(now, deliver);
                outcome
            }
            Phase::Running | Phase::ClosingSession { .. } => {
                let outcome = self.accept_running(packet, datagram, now, deliver);
                self.advance_rebuild(now, deliver);
                outcome
            }
        }
    }

    /// A checked chunk of the snapshot group.
    pub(super) fn accept_group_chunk(
        &mut self,
        session: Session,
        chunk: &SnapshotChunk<'_>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        match self.stream.session {
            Some(current) if session == current => {}
            Some(current) if session < current => return Err(DropReason::SessionStale),
            // The lines say when a session begins.
            _ => return Err(DropReason::AnswerUnrequested),
        }
        self.rebuild.accept_group_chunk(chunk, &self.stream, now)?;
        match self.phase {
            Phase::AwaitingGroupImage { .. } => self.start_with_group_image(now, deliver),
            _ => self.advance_rebuild(now, deliver),
        }
        Ok(())
    }

    /// Whether chunks of the snapshot group are of use now.
    pub(super) fn collects_group_image(&self) -> bool {
        matches!(self.phase, Phase::AwaitingGroupImage { .. } | Phase::Running)
            && self.snapshot_group.is_some()
            && self.stream.books.kept_from().is_some()
    }

    /// Whether the snapshot group is needed now, or will be when the channel's first packet comes.
    pub(super) fn needs_snapshot_group(&self) -> bool {
        let will_start_with_it = match self.phase {
            Phase::Idle => self.start == StartFrom::Snapshot && self.service.is_none(),
            Phase::AwaitingGroupImage { .. } => true,
            _ => false,
        };
        will_start_with_it || self.collects_group_image()
    }

    pub(super) fn next_deadline(&self) -> Option<MonoNs> {
        let query = match self.phase {
            Phase::Running => self.rebuild.next_deadline(),
            Phase::AwaitingGroupImage { until, .. } => self.rebuild.group_deadline().into_iter().chain([until]).min(),
            _ => self.query().map(ServiceQuery::deadline),
        };
        match (query, self.arbiter.next_deadline()) {
            (Some(query), Some(gap)) => Some(query.min(gap)),
            (query, gap) => query.or(gap),
        }
    }

    pub(super) fn on_deadline(&mut self, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        let Self { arbiter, stream, .. } = self;
        if matches!(self.phase, Phase::AwaitingGroupImage { .. }) {
            arbiter.on_deadline(now, &mut |delivery| stream.on_delivery(delivery, &mut withhold));
            stream.report_end_if_reached(arbiter.expected(), &mut withhold);
            return self.start_with_group_image(now, deliver);
        }
        arbiter.on_deadline(now, &mut |delivery| stream.on_delivery(delivery, deliver));
        stream.report_end_if_reached(arbiter.expected(), deliver);
        let is_given_up = self.query_mut().is_some_and(|query| !query.on_deadline(now));
        if is_given_up || self.is_query_satisfied() {
            self.finish_query(now, deliver);
        }
        self.close_when_complete(now, deliver);
        self.advance_rebuild(now, deliver);
    }

    pub(super) fn poll_request(&mut self) -> Option<ServiceRequest> {
        let session = self.stream.session;
        let request = |kind, first, next| {
            let (group, channel) = (GroupId(0), self.stream.id);
            ServiceRequest { kind, group, channel, session, first, next, nonce: 0 }
        };
        let start = self.arbiter.expected().map_or(Sequence(0), message_of);
        match &mut self.phase {
            Phase::QueryingSessions { query, from, .. } => {
                if query.take_due() {
                    let request = request(RequestKind::Sessions, Sequence(0), Sequence(0));
                    return Some(ServiceRequest { session: Some(*from), ..request });
                }
            }
            Phase::QueryingDefinitions { service, next_definition, requested_from, query, .. } => {
                if query.take_due() {
                    // Without progress the next service is asked, from its first definition on.
                    if *next_definition == *requested_from {
                        (*service, *next_definition) = (None, Sequence(0));
                    }
                    *requested_from = *next_definition;
                    return Some(request(RequestKind::Definitions, *next_definition, *next_definition));
                }
            }
            Phase::QueryingSnapshot { query, .. } => {
                if query.take_due() {
                    let (first, next) = self.snapshot.request();
                    return Some(request(RequestKind::Snapshot, first, next));
                }
            }
            Phase::QueryingExtent { query, .. } | Phase::ClosingSession { query, is_end_known: false, .. } => {
                if query.take_due() {
                    return Some(request(RequestKind::Range, start, start));
                }
            }
            Phase::Running => {
                if let Some((first, next)) = self.rebuild.poll_request() {
                    return Some(request(RequestKind::Snapshot, first, next));
                }
            }
            Phase::Idle | Phase::AwaitingGroupImage { .. } | Phase::ClosingSession { .. } => {}
        }
        let missing = self.arbiter.poll_request()?;
        Some(request(RequestKind::Range, message_of(missing.first), message_after(missing.next)))
    }

    pub(super) fn finish(&mut self, deliver: &mut impl FnMut(Output<'_>)) {
        if let Phase::AwaitingGroupImage { before, .. } = self.phase {
            // No image came: nothing of the session is delivered.
            self.end_group_start(before);
            self.stream.statistics.snapshots_unavailable += 1;
            return;
        }
        let Self { arbiter, stream, .. } = self;
        arbiter.finish(&mut |delivery| stream.on_delivery(delivery, deliver));
        stream.abandon_incomplete_message(deliver);
        stream.report_end_if_reached(arbiter.expected(), deliver);
    }

    /// The query in progress, apart from requests for gaps.
    fn query(&self) -> Option<&ServiceQuery> {
        match &self.phase {
            Phase::QueryingSessions { query, .. }
            | Phase::QueryingDefinitions { query, .. }
            | Phase::QueryingSnapshot { query, .. }
            | Phase::QueryingExtent { query, .. }
            | Phase::ClosingSession { query, is_end_known: false, .. } => Some(query),
            Phase::Idle | Phase::AwaitingGroupImage { .. } | Phase::Running | Phase::ClosingSession { .. } => None,
        }
    }

    fn query_mut(&mut self) -> Option<&mut ServiceQuery> {
        match &mut self.phase {
            Phase::QueryingSessions { query, .. }
            | Phase::QueryingDefinitions { query, .. }
            | Phase::QueryingSnapshot { query, .. }
            | Phase::QueryingExtent { query, .. }
            | Phase::ClosingSession { query, is_end_known: false, .. } => Some(query),
            Phase::Idle | Phase::AwaitingGroupImage { .. } | Phase::Running | Phase::ClosingSession { .. } => None,
        }
    }

    /// Whether enough services have answered a query for log extents or definitions. A session is left only when one of them
    /// knows where it ended: the others may be behind, or may have had no file for the last messages.
    fn is_query_satisfied(&self) -> bool {
        let suffices = match &self.phase {
            Phase::QueryingSessions { oldest, .. } => {
                oldest.is_some() || self.stream.session.is_none() || self.log_extents.any_final()
            }
            Phase::ClosingSession { .. } => self.log_extents.any_final(),
            // Their chunks say when they are complete.
            Phase::QueryingSnapshot { .. } | Phase::AwaitingGroupImage { .. } => false,
            Phase::Idle | Phase::QueryingDefinitions { .. } | Phase::QueryingExtent { .. } | Phase::Running => true,
        };
        suffices && self.query().is_some_and(|query| query.is_satisfied_by(&self.log_extents))
    }

    /// Processes a service's log extent. The other services are queried too until enough have answered: at once,
    /// unless this service had reported before, as with each answer about a gap.
    fn on_extent_reported(&mut self, is_first_report: bool, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        if self.is_query_satisfied() {
            self.finish_query(now, deliver);
        } else if let Some(query) = self.query_mut().filter(|_| is_first_report) {
            query.query_next_service(now);
        }
    }

    /// Continues with the answers received, if any.
    fn finish_query(&mut self, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        if let Phase::QueryingSnapshot { next_session, .. } = self.phase {
            return self.restart_snapshot(next_session, now);
        }
        self.stream.statistics.starts_unanswered += u64::from(!self.log_extents.any_reported());
        if matches!(self.phase, Phase::QueryingDefinitions { .. }) {
            self.stream.statistics.definitions_incomplete += u64::from(!self.log_extents.all_reported());
        }
        let is_final = self.log_extents.any_final();
        match self.phase {
            Phase::QueryingSessions { oldest: None, next_session, .. } => {
                self.stream.statistics.sessions_incomplete += u64::from(self.stream.session.is_some() && !is_final);
                self.begin_session(next_session, None, now, deliver)
            }
            Phase::QueryingSessions { query, oldest: Some(oldest), next_session, .. } => {
                // The end of a session that no service knows yet is queried like that of any other session.
                let query = if is_final { query } else { ServiceQuery::new(self.service.unwrap_or_default(), now) };
                let (first, next) = self.log_extents.range().unwrap_or((FIRST_SEQUENCE, FIRST_SEQUENCE));
                self.switch_to(oldest, deliver);
                self.start_without_state(if self.is_same_day_restart() { FIRST_SEQUENCE } else { first }, deliver);
                self.phase = Phase::ClosingSession { query, is_end_known: is_final, next_session };
                // Rejections are counted, and show as a loss when the session is left.
                let _counted = self.arbiter.announce(Line::RECOVERY, position_of(next), now);
            }
            Phase::QueryingDefinitions { next_session, .. } => self.after_definitions(next_session, now, deliver),
            Phase::QueryingExtent { next_session, .. } => {
                let extent = self.log_extents.range();
                if let Some(first) =
                    if self.is_same_day_restart() { Some(FIRST_SEQUENCE) } else { extent.map(|(first, _)| first) }
                {
                    self.start_without_state(first, deliver);
                }
                if let Some((_, next)) = extent {
                    // The arbiter counts a rejection, and live packets carry the same range.
                    let _counted = self.arbiter.announce(Line::RECOVERY, position_of(next), now);
                }
                self.start_running(next_session, now, deliver);
            }
            Phase::ClosingSession { query, next_session, .. } => {
                self.stream.statistics.sessions_incomplete += u64::from(!is_final);
                self.phase = Phase::ClosingSession { query, is_end_known: true, next_session }
            }
            Phase::Idle | Phase::QueryingSnapshot { .. } | Phase::AwaitingGroupImage { .. } | Phase::Running => {}
        }
        self.close_when_complete(now, deliver);
    }

    /// No service went on with its snapshot: another one is asked, or the session is delivered from the logs.
    fn restart_snapshot(&mut self, next_session: Option<Session>, now: MonoNs) {
        let query = ServiceQuery::new(self.service.unwrap_or_default(), now);
        if self.snapshot.give_up_image() {
            self.phase = Phase::QueryingSnapshot { query, next_session };
        } else if let Some(group) = self.snapshot_group.filter(|_| next_session.is_none()) {
            self.await_group_image(group, now);
        } else {
            self.stream.statistics.snapshots_unavailable += 1;
            self.log_extents.clear();
            self.phase = Phase::QueryingExtent { query, next_session };
        }
    }

    /// Keeps messages from now on, until the snapshot group has sent a whole image.
    fn await_group_image(&mut self, group: SnapshotGroupConfig, now: MonoNs) {
        let before = self.stream.statistics;
        self.stream.books.keep_within(Some(self.rebuild_bytes_max));
        self.rebuild.clear();
        // An image has what was skipped, or is of no use.
        self.skipped = None;
        self.phase = Phase::AwaitingGroupImage { until: now.plus(group.wait_ns_max), before };
    }

    /// Delivers the image of the snapshot group and the messages behind it, if the image is whole. Without one in time, goes on without.
    fn start_with_group_image(&mut self, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        let Phase::AwaitingGroupImage { until, before } = self.phase else { return };
        let delivered = self.rebuild.finish_start(&self.stream, now, deliver);
        if let Some(messages) = delivered {
            self.end_group_start(before);
            self.stream.statistics.messages += messages;
            self.stream.statistics.snapshots += 1;
            self.stream.emit_state_and_end(deliver);
            return self.start_running(None, now, deliver);
        }
        if now < until {
            return;
        }
        self.stream.statistics = before;
        self.stream.statistics.snapshots_unavailable += 1;
        self.rebuild.clear();
        match (self.service, self.stream.books.kept_from()) {
            (Some(service), _) => {
                self.forget_group_start();
                self.log_extents.clear();
                self.phase = Phase::QueryingExtent { query: ServiceQuery::new(service, now), next_session: None };
            }
            (None, kept_from) => self.start_without_image(kept_from, now, deliver),
        }
    }

    /// No image came, and no service has the messages before: the stream begins with the oldest message that was kept.
    fn start_without_image(&mut self, kept_from: Option<Sequence>, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        let is_suspect = kept_from.is_some_and(|first| first > FIRST_SEQUENCE);
        if self.rebuilds_books && is_suspect {
            self.stream.emit(Item::Books(BookState::Suspect), deliver);
        }
        let mut count = 0;
        for (header, body) in self.stream.books.messages() {
            self.stream.emit(Item::Message { header, body }, deliver);
            count += 1;
        }
        self.stream.statistics.messages += count;
        if !(self.rebuilds_books && is_suspect) {
            self.stream.books.keep_within(Some(self.rebuild_bytes_max).filter(|_| self.rebuilds_books));
        }
        self.stream.emit_state_and_end(deliver);
        self.start_running(None, now, deliver);
    }

    /// The channel waits for an image of the group no longer: only books that are rebuilt need messages that are kept.
    fn end_group_start(&mut self, before: ReceiverStatistics) {
        self.stream.statistics = before;
        self.stream.books.keep_within(Some(self.rebuild_bytes_max).filter(|_| self.rebuilds_books));
        self.rebuild.clear();
    }

    /// Nothing of the session was delivered, and it begins anew.
    fn forget_group_start(&mut self) {
        self.stream.books.keep_within(Some(self.rebuild_bytes_max).filter(|_| self.rebuilds_books));
        self.stream.forget_undelivered();
        self.arbiter.begin_session(None);
    }

    fn accept_snapshot_answer(
        &mut self,
        packet: &Packet<'_>,
        service: u8,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        let Phase::QueryingSnapshot { query, next_session } = &mut self.phase else { return Ok(()) };
        let next_session = *next_session;
        if self.snapshot.accept(packet, service, query, now)? == SnapshotProgress::Continue {
            return Ok(());
        }
        let Some(next) = self.snapshot.next() else { return Ok(()) };
        for (header, body) in self.snapshot.frames() {
            self.stream.emit(Item::Snapshot { header: &header, body }, deliver);
        }
        let is_suspect = self.snapshot.is_suspect();
        self.snapshot.reset();
        self.stream.statistics.snapshots += 1;
        let known = self.skipped.take().map(|(_, next)| next);
        self.start_at(next);
        if is_suspect {
            self.stream.suspect_books_before(next, deliver);
        }
        if let Some(known) = known.filter(|known| *known > next) {
            // What was published meanwhile is requested. The arbiter counts a rejection, and live packets carry the same range.
            let _counted = self.arbiter.announce(Line::RECOVERY, position_of(known), now);
        }
        self.start_running(next_session, now, deliver);
        Ok(())
    }

    /// A packet of a newer session arrived; `first` is its position if it lies at a message's beginning. Returns
    /// whether the session has begun here.
    fn on_newer_session(
        &mut self,
        session: Session,
        first: Option<Sequence>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> bool {
        let has_more = self.arbiter.expected().is_some() && !self.stream.has_reported_end;
        match (&mut self.phase, self.service) {
            (
                Phase::QueryingDefinitions { next_session, .. }
                | Phase::QueryingSnapshot { next_session, .. }
                | Phase::QueryingExtent { next_session, .. },
                _,
            ) => *next_session = Some(session).max(*next_session),
            // Images of the present session come no more, and nothing of it was delivered.
            (Phase::AwaitingGroupImage { before, .. }, service) => {
                let before = *before;
                self.end_group_start(before);
                self.stream.statistics.snapshots_unavailable += 1;
                self.forget_group_start();
                match service {
                    Some(service) => {
                        self.log_extents.clear();
                        let query = ServiceQuery::new(service, now);
                        self.phase = Phase::QueryingExtent { query, next_session: Some(session) };
                    }
                    None => {
                        self.phase = Phase::Idle;
                        self.stream.session = None;
                        self.begin_session(session, first, now, deliver);
                    }
                }
            }
            (Phase::ClosingSession { next_session, .. }, _) => {
                *next_session = session.max(*next_session);
                self.close_when_complete(now, deliver);
            }
            (Phase::Running, Some(service)) if has_more => {
                self.log_extents.clear();
                // If the end was received, only the messages missing before it are requested.
                let is_end_known = self.stream.session_end.is_some();
                self.phase = Phase::ClosingSession {
                    query: ServiceQuery::new(service, now),
                    is_end_known,
                    next_session: session,
                };
            }
            _ => self.advance_to(session, first, now, deliver),
        }
        self.stream.session == Some(session)
    }

    /// The first packet of a session was observed. Earlier sessions in the logs are delivered before it.
    fn advance_to(
        &mut self,
        session: Session,
        first: Option<Sequence>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) {
        let from = match self.stream.session {
            Some(current) => current.restart.checked_add(1).map(|restart| Session { restart, ..current }),
            None => Some(Session { restart: 0, ..session }).filter(|_| self.start == StartFrom::OldestOfDay),
        };
        match (self.service, from.filter(|from| *from < session)) {
            (Some(service), Some(from)) => {
                self.log_extents.clear();
                self.phase = Phase::QueryingSessions {
                    query: ServiceQuery::new(service, now),
                    from,
                    oldest: None,
                    next_session: session,
                };
            }
            _ => self.begin_session(session, first, now, deliver),
        }
    }

    /// Processes an answer about sessions. The oldest ended session before the next one is delivered first.
    fn accept_session_answer(
        &mut self,
        packet: &Packet<'_>,
        service: u8,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) {
        let Phase::QueryingSessions { from, oldest, next_session, .. } = &mut self.phase else { return };
        let meta = &packet.meta;
        // Any other packet answers an earlier query.
        if !is_end_of_answer(packet) || meta.session < *from {
            return;
        }
        let is_in_log = meta.session < *next_session && meta.next >= FIRST_SEQUENCE;
        if is_in_log && oldest.is_none_or(|oldest| meta.session < oldest) {
            // The services that reported before reported a later session or none, so their logs hold nothing of this
            // session.
            self.log_extents.mark_empty();
            *oldest = Some(meta.session);
        }
        let is_oldest = is_in_log && *oldest == Some(meta.session);
        let extent = if is_oldest {
            extent_of(packet)
        } else {
            // A log that has the next session has nothing in between. Restart counts follow each other, so on the same day it
            // lacks a session that exists.
            let lacks_session = (from.feed, from.date) == (next_session.feed, next_session.date);
            let is_final = oldest.is_none() && meta.session >= *next_session && !lacks_session;
            LogExtent { is_final, ..LogExtent::EMPTY }
        };
        let is_first_report = self.log_extents.report(service, extent);
        self.on_extent_reported(is_first_report, now, deliver);
    }

    /// Begins a session: with the packet received if that is its first message, else with the logs' extent.
    fn begin_session(
        &mut self,
        session: Session,
        first: Option<Sequence>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) {
        self.switch_to(session, deliver);
        self.arbiter.begin_session(None);
        let is_received_from_start = first.is_some_and(|first| first <= FIRST_SEQUENCE);
        match self.service.filter(|_| !is_received_from_start) {
            Some(service) => {
                let (next_definition, query) = (Sequence(0), ServiceQuery::new(service, now));
                self.definitions.clear();
                self.phase = Phase::QueryingDefinitions {
                    service: None,
                    next_definition,
                    requested_from: next_definition,
                    query,
                    next_session: None,
                };
            }
            None => {
                if is_received_from_start || self.is_same_day_restart() {
                    self.start_at(FIRST_SEQUENCE);
                } else if let Some(group) = self.snapshot_group
                    && self.starts_with_snapshot()
                {
                    return self.await_group_image(group, now);
                }
                self.phase = Phase::Running;
            }
        }
    }

    /// Only the first session that a receiver follows: it receives the later ones from their beginning.
    fn starts_with_snapshot(&self) -> bool {
        self.start == StartFrom::Snapshot && self.previous_session.is_none()
    }

    /// Ends the current session and begins the next one.
    fn switch_to(&mut self, session: Session, deliver: &mut impl FnMut(Output<'_>)) {
        self.finish(deliver);
        let skipped = self.skipped.take().filter(|_| self.arbiter.expected().is_none());
        if let Some((first, next)) = skipped {
            self.stream.report_lost(first, next, deliver);
        }
        self.log_extents.clear();
        self.rebuild.clear();
        self.previous_session = self.stream.session;
        self.stream.begin(session, deliver);
    }

    /// Whether the venue restarted within the trading date being followed. The current session then has a first
    /// message.
    fn is_same_day_restart(&self) -> bool {
        let date_of = |session: Session| (session.feed, session.date);
        self.previous_session.is_some() && self.previous_session.map(date_of) == self.stream.session.map(date_of)
    }

    /// Ignores a packet while the start is being requested; its content is requested too.
    fn skip_before_start(&mut self, packet: &Packet<'_>) {
        self.stream.statistics.packets_before_start_position += 1;
        if packet.meta.flags.contains(PacketFlags::END_OF_SESSION) {
            self.stream.session_end = Some(position_of(packet.meta.next));
        }
        let (first, next) = self.skipped.unwrap_or((packet.meta.first, packet.meta.next));
        self.skipped = Some((first.min(packet.meta.first), next.max(packet.meta.next)));
    }

    fn start_at(&mut self, first: Sequence) {
        self.arbiter.begin_session(Some(position_of(first.max(FIRST_SEQUENCE))));
        self.stream.reported_through = first.max(FIRST_SEQUENCE);
    }

    /// Starts at that message. Behind the session's first one, the books before it are not known.
    fn start_without_state(&mut self, first: Sequence, deliver: &mut impl FnMut(Output<'_>)) {
        self.start_at(first);
        if first > FIRST_SEQUENCE {
            self.stream.suspect_books_before(first, deliver);
        }
    }

    /// Asks for snapshots while books are suspect; not while a session is left.
    fn advance_rebuild(&mut self, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        if matches!(self.phase, Phase::Running) {
            self.rebuild.advance(self.service, &mut self.stream, now, deliver);
        }
    }

    /// The start is complete. A newer session observed meanwhile is next.
    fn start_running(&mut self, next_session: Option<Session>, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        self.phase = Phase::Running;
        let frontier = self.arbiter.frontier();
        // Nothing has checked the end that was received before the start: a log that goes further refutes it.
        self.stream.session_end =
            self.stream.session_end.filter(|end| frontier.is_none_or(|frontier| *end >= frontier));
        if let Some(next_session) = next_session {
            self.on_newer_session(next_session, None, now, deliver);
        }
    }

    /// Moves to the next session once all messages of the current one have arrived or been given up.
    fn close_when_complete(&mut self, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        let Phase::ClosingSession { is_end_known: true, next_session, .. } = self.phase else { return };
        if self.arbiter.expected() == self.arbiter.frontier() {
            self.advance_to(next_session, None, now, deliver);
        }
    }

    fn after_definitions(&mut self, next_session: Option<Session>, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        if let Some(service) = self.service
            && self.starts_with_snapshot()
        {
            self.snapshot.reset();
            self.phase = Phase::QueryingSnapshot { query: ServiceQuery::new(service, now), next_session };
            return;
        }
        match self.service.filter(|_| self.previous_session.is_some() || self.start != StartFrom::Live) {
            Some(service) => {
                self.log_extents.clear();
                self.phase = Phase::QueryingExtent { query: ServiceQuery::new(service, now), next_session };
            }
            None => {
                self.skipped = None;
                self.start_running(next_session, now, deliver);
            }
        }
    }

    /// Processes an answer while the start is being requested.
    fn accept_start_answer(
        &mut self,
        packet: &Packet<'_>,
        service: u8,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) {
        let is_end = packet.meta.flags.contains(PacketFlags::HEARTBEAT);
        let is_snapshot = packet.meta.flags.contains(PacketFlags::SNAPSHOT);
        let (first, next) = (packet.meta.first, packet.meta.next);
        match &mut self.phase {
            // An answer of another service than the one that is asked, or of one that has sent everything.
            Phase::QueryingDefinitions { service: asked, .. }
                if asked.is_some_and(|asked| asked != service) || self.log_extents.has_reported(service) => {}
            Phase::QueryingDefinitions { service: asked, next_definition, requested_from, query, .. }
                if is_snapshot && is_end =>
            {
                if first == next && first <= *next_definition {
                    (*asked, *next_definition, *requested_from) = (None, Sequence(0), Sequence(0));
                    let is_first_report = self.log_extents.report(service, LogExtent::EMPTY);
                    self.on_extent_reported(is_first_report, now, deliver);
                } else if *next_definition > *requested_from {
                    // A limit shortened the answer, or a part was lost: request the next piece. Without any progress
                    // the deadline decides.
                    query.request_next_piece(now);
                }
            }
            // Reordered or duplicated; the index of the next request resolves it.
            Phase::QueryingDefinitions { service: asked, next_definition, query, .. }
                if is_snapshot && first == *next_definition && next.0 - first.0 == u64::from(packet.frame_count) =>
            {
                (*asked, *next_definition) = (Some(service), next);
                let mut is_any_new = false;
                for (header, body) in packet.frames() {
                    if is_new_definition(&mut self.definitions, Sequence(header.sequence.get())) {
                        is_any_new = true;
                        self.stream.statistics.definitions += 1;
                        self.stream.emit(Item::Definition { header, body }, deliver);
                    }
                }
                query.on_progress(is_any_new, now);
            }
            Phase::QueryingExtent { .. } if is_end_of_answer(packet) => {
                let is_first_report = self.log_extents.report(service, extent_of(packet));
                self.on_extent_reported(is_first_report, now, deliver);
            }
            _ => {}
        }
    }

    fn accept_running(
        &mut self,
        packet: &Packet<'_>,
        datagram: &PublishedDatagram<'_>,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        let is_asking = self.query().is_some() || self.arbiter.has_request();
        let Self { arbiter, stream, log_extents, phase, .. } = self;
        let flags = packet.meta.flags;
        let is_answer = datagram.line == Line::RECOVERY;
        if is_answer && flags.contains(PacketFlags::SNAPSHOT) {
            return match phase {
                Phase::Running => self.rebuild.accept(packet, datagram.service, now),
                // Duplicates of what was requested before.
                _ => Err(DropReason::Duplicate),
            };
        }
        let (first, next) = positions_of(packet).ok_or(DropReason::FieldInvalid)?;
        if flags.contains(PacketFlags::SNAPSHOT) && first != next {
            return Err(DropReason::SequenceInvalid);
        }
        let is_answer_end = is_answer && is_end_of_answer(packet);
        if is_answer_end && !is_asking {
            // Nobody asked, or what was asked for has arrived meanwhile.
            return Err(DropReason::Duplicate);
        }
        let is_first_report = is_answer_end && log_extents.report(datagram.service, extent_of(packet));
        if is_answer_end && packet.meta.next == LogExtent::EMPTY.next {
            // That log has nothing of the session, so there is no position to announce.
            self.on_extent_reported(is_first_report, now, deliver);
            self.close_when_complete(now, deliver);
            return Ok(());
        }
        if let Some(unavailable) = log_extents.unavailable_before().filter(|_| is_answer_end) {
            // Only what is known to exist is lost: whether there is more, a single answer does not say.
            let known = arbiter.frontier().unwrap_or_default();
            arbiter.declare_missing_before(position_of(unavailable).min(known), now, &mut |delivery| {
                stream.on_delivery(delivery, deliver)
            });
        }
        // A late joiner cannot begin in the middle of a message.
        if arbiter.expected().is_none() {
            let begin = if part_number(first) == 0 { first } else { position_of(message_of(first).plus(1)) };
            arbiter.begin_session(Some(begin));
            stream.reported_through = message_of(begin);
            if message_of(begin) > FIRST_SEQUENCE || matches!(phase, Phase::AwaitingGroupImage { .. }) {
                stream.suspect_books_before(message_of(begin), deliver);
            }
        }
        // The range of a live heartbeat has no output and is covered; the range of an answer's end is the log's
        // extent.
        let outcome = if first < next && !is_answer_end {
            let arrival = Arrival {
                line: datagram.line,
                first,
                next,
                block: packet.body,
                ts_recv: datagram.ts_recv,
                send_time: None,
                now,
            };
            arbiter.accept(arrival, &mut |delivery| stream.on_delivery(delivery, deliver))
        } else {
            // Where a session that is left has ended is asked for, however far ahead.
            let needs_confirmation = !is_answer || !matches!(phase, Phase::ClosingSession { .. });
            let outcome = arbiter.announce_confirmed_if(needs_confirmation, datagram.line, next, now);
            if outcome.is_ok() && arbiter.expected().is_some_and(|expected| expected <= next) {
                stream.on_out_of_sequence_frames(packet.body, deliver);
            }
            outcome
        };
        // A refused packet ends nothing, and neither does one that others have passed. The end of an answer says that its service
        // knows the session's end, not that the venue has ended the session.
        let is_used = matches!(outcome, Ok(()) | Err(DropReason::Duplicate | DropReason::LateAfterGap));
        let end =
            Some(position_of(packet.meta.next)).filter(|end| arbiter.frontier().is_none_or(|known| *end >= known));
        if flags.contains(PacketFlags::END_OF_SESSION) && !is_answer_end && is_used {
            stream.session_end = end.or(stream.session_end);
        }
        stream.report_end_if_reached(arbiter.expected(), deliver);
        if is_answer_end {
            self.on_extent_reported(is_first_report, now, deliver);
        }
        self.close_when_complete(now, deliver);
        outcome
    }
}

/// Takes what is received before the start, of which nothing is delivered.
fn withhold(_: Output<'_>) {}

/// Whether that definition was not delivered before. Those beyond [`DEFINITIONS_MAX`] may come again.
fn is_new_definition(definitions: &mut Vec<Sequence>, sequence: Sequence) -> bool {
    let Err(index) = definitions.binary_search(&sequence) else { return false };
    if definitions.len() < DEFINITIONS_MAX {
        definitions.insert(index, sequence);
    }
    true
}

/// Definitions of one session that a receiver remembers: three times what the largest venue lists.
const DEFINITIONS_MAX: usize = 1 << 15;

/// The last packet of an answer about sessions or messages: the log's extent in the session.
fn is_end_of_answer(packet: &Packet<'_>) -> bool {
    let flags = packet.meta.flags;
    flags.contains(PacketFlags::HEARTBEAT) && !flags.contains(PacketFlags::SNAPSHOT)
}

/// The extent that the end of an answer reports.
fn extent_of(packet: &Packet<'_>) -> LogExtent {
    let is_final = packet.meta.flags.contains(PacketFlags::END_OF_SESSION);
    LogExtent { first: packet.meta.first, next: packet.meta.next, is_final }
}
