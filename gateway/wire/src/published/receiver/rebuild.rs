//! Rebuilding suspect books of a receiver that runs.
//!
//! ```text
//!  loss, gap, suspect message at s          image without suspect books, position p >= s
//!        │                                              │
//!  right ┴► suspect ──pause──► one chunk is requested ──┴► all chunks ──► complete ──delivered up to p──► right
//!               ▲                     │ suspect, too old, no answer                │
//!               └──── pause × 2 ◄─────┴──────────── lost, or another loss ◄────────┘
//! ```
//! Messages are delivered all the time: neither a loss nor a snapshot stops the stream. A snapshot is of a position that the stream
//! has passed when its last chunk arrives, so the receiver keeps the messages since the books became suspect, within a bound. It
//! delivers those behind the position once more, as [`Item::Repeated`], directly after the snapshot. The books are then those of the
//! position that the stream has reached.
//!
//! An image of the snapshot group is collected at the same time, without a request. Whichever image is whole first is used. A channel
//! that starts with the group does the same, and delivers nothing before: see [`Rebuild::finish_start`].

use std::collections::VecDeque;

use crate::{
    drop_reason::DropReason,
    frame::FrameHeader,
    identity::Sequence,
    published::{packet::Packet, snapshot::SnapshotChunk},
    time::MonoNs,
};

use super::{
    Item, Output, ReceiverConfig, ServiceConfig,
    group_image::GroupImage,
    item_stream::ItemStream,
    service_query::ServiceQuery,
    snapshot_query::{Purpose, SnapshotProgress, SnapshotQuery},
};

/// Whether the books that a consumer keeps from the items are right, and the messages delivered since they may not be.
#[derive(Debug, Default)]
pub(super) struct BookHistory {
    /// The books are watched, within so many bytes of messages.
    bytes_max: Option<u64>,
    /// While the books are suspect: messages from this one on are in `messages`, or produced nothing.
    kept_from: Option<Sequence>,
    messages: VecDeque<(FrameHeader, Box<[u8]>)>,
    bytes: u64,
}

impl BookHistory {
    /// Watches the books if the configuration says so.
    pub(super) fn new(config: &ReceiverConfig) -> Self {
        let can_rebuild = config.service.is_some() || config.snapshot_group.is_some();
        let bytes_max = Some(config.rebuild_bytes_max).filter(|_| config.rebuilds_books && can_rebuild);
        Self { bytes_max, ..Self::default() }
    }

    /// Keeps messages within so many bytes; `None`: none any more. What was kept is forgotten.
    pub(super) fn keep_within(&mut self, bytes_max: Option<u64>) {
        self.clear();
        self.bytes_max = bytes_max;
    }

    /// The messages kept, oldest first.
    pub(super) fn messages(&self) -> impl Iterator<Item = (&FrameHeader, &[u8])> {
        self.messages.iter().map(|(header, body)| (header, &**body))
    }

    /// For the next session, whose books are empty.
    pub(super) fn clear(&mut self) {
        self.kept_from = None;
        self.forget_messages();
    }

    /// The state before `next` is not known. Returns whether the books were right until now.
    pub(super) fn suspect_before(&mut self, next: Sequence) -> bool {
        if self.bytes_max.is_none() {
            return false;
        }
        self.forget_messages();
        self.kept_from.replace(next).is_none()
    }

    /// A message was delivered.
    pub(super) fn keep(&mut self, header: &FrameHeader, body: &[u8]) {
        let (Some(bytes_max), Some(kept_from)) = (self.bytes_max, &mut self.kept_from) else { return };
        self.bytes += bytes_of(body);
        self.messages.push_back((*header, body.into()));
        while self.bytes > bytes_max
            && let Some((header, body)) = self.messages.pop_front()
        {
            self.bytes -= bytes_of(&body);
            *kept_from = Sequence(header.sequence.get()).plus(1);
        }
    }

    /// The oldest position from which on all messages are kept; `None` while the books are right.
    pub(super) fn kept_from(&self) -> Option<Sequence> {
        self.kept_from
    }

    fn forget_messages(&mut self) {
        self.messages.clear();
        self.messages.shrink_to(MESSAGES_KEPT_ALLOCATED);
        self.bytes = 0;
    }
}

/// Memory of a kept message.
fn bytes_of(body: &[u8]) -> u64 {
    MESSAGE_KEPT_BYTES + body.len() as u64
}

/// What a kept message counts beside its records: the same in all our receivers, so that they keep the same messages.
const MESSAGE_KEPT_BYTES: u64 = 48;
const _: () = assert!(size_of::<(FrameHeader, Box<[u8]>)>() as u64 <= MESSAGE_KEPT_BYTES);

/// Places for messages that stay allocated between two rebuilds.
const MESSAGES_KEPT_ALLOCATED: usize = 1_024;

/// Asks for snapshots while the books of a channel are suspect: one request at a time, and after each failure later.
#[derive(Debug)]
pub(super) struct Rebuild {
    snapshot: SnapshotQuery,
    /// The image that the snapshot group sends, if the group is received.
    group: Option<GroupImage>,
    stage: Stage,
    pause_ns: u64,
    /// Since when the books are right.
    right_since: Option<MonoNs>,
}

#[derive(Debug)]
enum Stage {
    Right,
    /// Suspect; the next query begins then.
    Waiting(MonoNs),
    Querying(ServiceQuery),
    /// All chunks are there; the stream has not reached their position. They wait until then at most.
    Complete(MonoNs),
}

/// Pause before the first query: other losses of the same burst come within it.
const PAUSE_NS_MIN: u64 = 500_000_000;
/// Attempts with one service.
const ATTEMPTS_MIN: u16 = 4;
/// Longest time that a whole image waits for the stream to come to its position, ns.
const COMPLETE_NS_MAX: u64 = 10_000_000_000;
/// Longest pause. Books that stayed right for so long have a short pause again.
const PAUSE_NS_MAX: u64 = 64_000_000_000;

impl Rebuild {
    pub(super) fn new(config: &ReceiverConfig) -> Self {
        let services = config.service.map_or(0, |service| service.service_count);
        Self {
            snapshot: SnapshotQuery::new(config.snapshot_bytes_max, services),
            group: config.snapshot_group.map(|_| GroupImage::new(config.snapshot_bytes_max)),
            stage: Stage::Right,
            pause_ns: PAUSE_NS_MIN,
            right_since: None,
        }
    }

    /// For the next session.
    pub(super) fn clear(&mut self) {
        self.snapshot.reset();
        self.group.iter_mut().for_each(GroupImage::clear);
        (self.stage, self.pause_ns, self.right_since) = (Stage::Right, PAUSE_NS_MIN, None);
    }

    pub(super) fn next_deadline(&self) -> Option<MonoNs> {
        let query = match &self.stage {
            Stage::Waiting(until) => Some(*until),
            Stage::Querying(query) => Some(query.deadline()),
            Stage::Complete(until) => Some(*until),
            Stage::Right => None,
        };
        query.into_iter().chain(self.group_deadline()).min()
    }

    /// When an image of the snapshot group has waited for too long.
    pub(super) fn group_deadline(&self) -> Option<MonoNs> {
        self.group.as_ref().and_then(GroupImage::next_deadline)
    }

    /// A chunk of the snapshot group.
    ///
    /// # Errors
    /// As [`GroupImage::accept`]. [`DropReason::Duplicate`]: the books are right, or the group is not received.
    pub(super) fn accept_group_chunk(
        &mut self,
        chunk: &SnapshotChunk<'_>,
        stream: &ItemStream,
        now: MonoNs,
    ) -> Result<(), DropReason> {
        let (Some(group), Some(kept_from)) = (&mut self.group, stream.books.kept_from()) else {
            return Err(DropReason::Duplicate);
        };
        group.accept(chunk, kept_from, now)
    }

    /// The chunks to request, if a request is due.
    pub(super) fn poll_request(&mut self) -> Option<(Sequence, Sequence)> {
        let Stage::Querying(query) = &mut self.stage else { return None };
        query.take_due().then(|| self.snapshot.request())
    }

    /// A packet of an answer about snapshots.
    ///
    /// # Errors
    /// [`DropReason::Duplicate`]: none was requested; others as a query says.
    pub(super) fn accept(&mut self, packet: &Packet<'_>, service: u8, now: MonoNs) -> Result<(), DropReason> {
        let Stage::Querying(query) = &mut self.stage else { return Err(DropReason::Duplicate) };
        if self.snapshot.accept(packet, service, query, now)? == SnapshotProgress::Complete {
            self.stage = Stage::Complete(now.plus(COMPLETE_NS_MAX));
        }
        Ok(())
    }

    /// Follows the stream and the clock. Call after each packet and each deadline.
    pub(super) fn advance(
        &mut self,
        service: Option<ServiceConfig>,
        stream: &mut ItemStream,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) {
        let Some(kept_from) = stream.books.kept_from() else { return };
        if let Some(group) = &mut self.group {
            group.discard_unusable(kept_from, now);
            if let Some(next) = group.ready(stream.reported_through) {
                Self::deliver(group.frames(), next, stream, deliver);
                return self.finish(stream, now, deliver);
            }
        }
        let Some(service) = service else { return };
        // A loss behind the image, or too many messages since.
        if self.snapshot.next().is_some_and(|next| next < kept_from) {
            self.pause(stream, now);
        }
        match &mut self.stage {
            Stage::Right => {
                if self.right_since.is_some_and(|since| now.since(since) >= PAUSE_NS_MAX) {
                    self.pause_ns = PAUSE_NS_MIN;
                }
                self.stage = Stage::Waiting(now.plus(self.pause_ns));
            }
            Stage::Waiting(until) if *until <= now => {
                self.snapshot.begin(Purpose::Rebuild { from: kept_from });
                // Each service twice: those without right books are asked again after the pause.
                let rounds = u16::from(service.service_count).saturating_mul(2).max(ATTEMPTS_MIN);
                let attempts_max = rounds.min(service.attempts_max);
                self.stage = Stage::Querying(ServiceQuery::new(ServiceConfig { attempts_max, ..service }, now));
            }
            Stage::Querying(query) => {
                if !query.on_deadline(now) {
                    self.pause(stream, now);
                }
            }
            Stage::Complete(_) if self.snapshot.next().is_some_and(|next| next <= stream.reported_through) => {
                Self::deliver(self.snapshot.frames(), self.snapshot.next().unwrap_or_default(), stream, deliver);
                self.finish(stream, now, deliver);
            }
            // The stream does not come to the image's position, be it that no such position exists.
            Stage::Complete(until) if *until <= now => self.pause(stream, now),
            Stage::Waiting(_) | Stage::Complete(_) => {}
        }
    }

    /// Delivers the snapshot, and the messages behind it that were delivered before.
    fn deliver<'f>(
        frames: impl Iterator<Item = (FrameHeader, &'f [u8])>,
        next: Sequence,
        stream: &ItemStream,
        deliver: &mut impl FnMut(Output<'_>),
    ) {
        for (header, body) in frames {
            stream.emit(Item::Snapshot { header: &header, body }, deliver);
        }
        for (header, body) in stream.books.messages().filter(|(header, _)| header.sequence.get() >= next.0) {
            stream.emit(Item::Repeated { header, body }, deliver);
        }
    }

    fn finish(&mut self, stream: &mut ItemStream, now: MonoNs, deliver: &mut impl FnMut(Output<'_>)) {
        stream.books.clear();
        stream.statistics.snapshots += 1;
        stream.statistics.books_rebuilt += 1;
        stream.emit(Item::Books(BookState::Right), deliver);
        self.snapshot.reset();
        self.group.iter_mut().for_each(GroupImage::clear);
        // The pause stays longer for a while: a loss that recurs at once must not cause a snapshot each time.
        self.pause_ns = self.pause_ns.saturating_mul(2).min(PAUSE_NS_MAX);
        (self.stage, self.right_since) = (Stage::Right, Some(now));
    }

    /// A channel that starts with the snapshot group has kept messages and delivered nothing. Once the group's image is whole, delivers
    /// the image and the messages behind it. Returns how many messages; `None` while there is no such image.
    pub(super) fn finish_start(
        &mut self,
        stream: &ItemStream,
        now: MonoNs,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Option<u64> {
        let (group, kept_from) = (self.group.as_mut()?, stream.books.kept_from()?);
        group.discard_unusable(kept_from, now);
        let next = group.ready(stream.reported_through)?;
        for (header, body) in group.frames() {
            stream.emit(Item::Snapshot { header: &header, body }, deliver);
        }
        group.clear();
        let mut count = 0;
        for (header, body) in stream.books.messages().filter(|(header, _)| header.sequence.get() >= next.0) {
            stream.emit(Item::Message { header, body }, deliver);
            count += 1;
        }
        Some(count)
    }

    fn pause(&mut self, stream: &mut ItemStream, now: MonoNs) {
        stream.statistics.rebuilds_refused += 1;
        self.snapshot.reset();
        self.stage = Stage::Waiting(now.plus(self.pause_ns));
        self.pause_ns = self.pause_ns.saturating_mul(2).min(PAUSE_NS_MAX);
    }
}

/// Whether books kept from a channel's items are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookState {
    /// They equal the venue's.
    Right,
    /// They may differ from the venue's: messages are missing, or the gateway's own books are suspect.
    Suspect,
}
