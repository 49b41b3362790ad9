//! Feeds datagrams to their channels, and fires the channels' deadlines.

use std::ops::ControlFlow;

use mdgw_captures::capture_file::{CaptureFile, CapturedDatagram};
use mdgw_feeds::{
    channel::{Channel, ChannelConfig, Datagram, SchemaSet},
    frame::{FrameMeta, FrameSink},
    identity::{ChannelId, Feed, Line, Sequence, Session},
    time::{MonoNs, TradingDate, UnixNs},
};

use super::{
    Event, OfflineError, ReplaySink,
    stop_point::{PacketPart, StopPoint},
};
use crate::replay::{
    capture_merge::CaptureMerge,
    routes::{ChannelRoutes, LineSource, RouteTarget, Routes},
};

/// Options of the channels.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplayDriverOptions {
    /// Process this feed only.
    pub feed: Option<Feed>,
    /// Trading date, if it is not to be taken from the input.
    pub date: Option<TradingDate>,
    /// Schemas that the channels publish; `None`: their feed's default.
    pub schemas: Option<SchemaSet>,
    /// Where the channels stop.
    pub end: ReplayEnd,
}

/// Where the channels stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReplayEnd {
    /// At the end of the input. No more input follows: held messages are delivered and missing ones declared.
    #[default]
    Finished,
    /// At the end of the input, but keep the state as it is: more input would have followed.
    Open,
    /// After that message; at the end of the input if the message does not come.
    AfterMessage(StopPoint),
}

/// Drives channels with datagrams, on the datagrams' own clock.
#[derive(Debug)]
pub struct ReplayDriver {
    options: ReplayDriverOptions,
    channels: Vec<Channel>,
    routes: Routes,
    /// Latest capture time so far.
    now: MonoNs,
    counts: RouteCounts,
    has_stopped: bool,
}

/// One channel with its lines.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedChannel<'a> {
    channel: &'a Channel,
    routes: &'a ChannelRoutes,
}

/// Counts of datagrams that no channel counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteCounts {
    /// All UDP datagrams.
    pub datagrams: u64,
    /// Unknown feed, or heartbeats before the feed was known.
    pub unrecognised: u64,
    /// A feed that was not requested.
    pub other_feed: u64,
    /// Capture time of the first and the last datagram, ns since 1970.
    pub span_ns: Option<(u64, u64)>,
}

impl ReplayDriver {
    /// Starts without channels: the input adds them.
    #[must_use]
    pub(crate) fn new(options: ReplayDriverOptions) -> Self {
        Self {
            options,
            channels: Vec::new(),
            routes: Routes::new(options.feed),
            now: MonoNs(0),
            counts: RouteCounts::default(),
            has_stopped: false,
        }
    }

    /// Drives the channels with all datagrams of `merge`, and passes their output to `sink`.
    ///
    /// # Errors
    /// The stream exceeds the limits on channels, the sink fails, or `on_event` broke off.
    pub(crate) fn run<O: ReplaySink>(
        &mut self,
        merge: &mut CaptureMerge,
        sink: &mut O,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(), OfflineError> {
        while !self.has_stopped && merge.advance() {
            let Some((file, datagram)) = merge.current() else { break };
            self.accept(file, &datagram, merge, sink, on_event)?;
            if self.counts.datagrams.is_multiple_of(DATAGRAMS_PER_CHECK) {
                sink.check()?;
                let file_bytes = merge.file_bytes_read();
                if on_event(Event::Progress { file_bytes, driver: &*self }).is_break() {
                    return Err(OfflineError::Interrupted);
                }
            }
        }
        let is_open = self.has_stopped || self.options.end == ReplayEnd::Open;
        for (channel_index, channel) in self.channels.iter_mut().enumerate().filter(|_| !is_open) {
            channel.finish(&mut IndexedSink { sink, channel_index });
        }
        sink.check()
    }

    /// The channels, in the order in which they were found.
    pub(crate) fn channels(&self) -> impl ExactSizeIterator<Item = ReplayedChannel<'_>> {
        self.channels.iter().zip(self.routes.channels()).map(|(channel, routes)| ReplayedChannel { channel, routes })
    }

    /// Latest capture time so far, ns since 1970.
    pub(super) fn now(&self) -> MonoNs {
        self.now
    }

    /// Counts of datagrams that no channel counts.
    #[must_use]
    pub(crate) fn counts(&self) -> RouteCounts {
        let unrouted = self.routes.counts();
        RouteCounts { unrecognised: unrouted.unrecognised, other_feed: unrouted.other_feed, ..self.counts }
    }

    /// Whether the stop point was reached.
    #[must_use]
    pub(crate) fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    #[inline]
    fn accept<O: ReplaySink>(
        &mut self,
        file: usize,
        datagram: &CapturedDatagram<'_>,
        merge: &CaptureMerge,
        sink: &mut O,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(), OfflineError> {
        self.counts.datagrams += 1;
        let (first_ns, last_ns) = self.counts.span_ns.unwrap_or((datagram.time_ns, datagram.time_ns));
        self.counts.span_ns = Some((first_ns, last_ns.max(datagram.time_ns)));
        let Some(source) = merge.file(file) else { return Ok(()) };
        let Some(RouteTarget { channel_index, line, is_new_channel }) = self.routes.route(file, datagram, source)?
        else {
            return Ok(());
        };
        if is_new_channel {
            self.open_channel(channel_index, source, sink, on_event)?;
        }
        // Captures of several network cards are slightly out of order; the clock must not go back.
        self.now = self.now.max(MonoNs(datagram.time_ns));
        self.fire_deadlines(sink);
        let datagram = Datagram { line, bytes: datagram.payload, ts_recv: UnixNs(datagram.time_ns) };
        if let ReplayEnd::AfterMessage(stop) = self.options.end {
            self.accept_until(stop, channel_index, datagram, sink);
        } else if let Some(channel) = self.channels.get_mut(channel_index) {
            channel.accept(datagram, self.now, &mut IndexedSink { sink, channel_index });
        }
        Ok(())
    }

    /// Passes a datagram to its channel, up to the stop point.
    fn accept_until<O: ReplaySink>(
        &mut self,
        stop: StopPoint,
        channel_index: usize,
        datagram: Datagram<'_>,
        sink: &mut O,
    ) {
        let Some(channel) = self.channels.get_mut(channel_index) else { return };
        let now = self.now;
        let part = stop.part(channel.position(), channel.config().feed, datagram.bytes);
        let mut is_reached_by = |bytes: &[u8]| {
            channel.accept(Datagram { bytes, ..datagram }, now, &mut IndexedSink { sink: &mut *sink, channel_index });
            stop.is_reached(channel.position())
        };
        self.has_stopped = match &part {
            PacketPart::Whole => is_reached_by(datagram.bytes),
            PacketPart::Split([head, tail]) => is_reached_by(head) || is_reached_by(tail),
            PacketPart::None => stop.is_reached(channel.position()),
        };
    }

    /// Fires deadlines before the current time, in time order. Deadlines at exactly the current time wait until the
    /// datagrams of that time were processed. A live channel does the same: it drains its lines before it acts on a
    /// deadline.
    #[inline]
    fn fire_deadlines<O: ReplaySink>(&mut self, sink: &mut O) {
        loop {
            let due = self.channels.iter().enumerate().filter_map(|(channel_index, channel)| {
                channel
                    .next_deadline()
                    .filter(|deadline| *deadline < self.now)
                    .map(|deadline| (deadline, channel_index))
            });
            let Some((deadline, channel_index)) = due.min() else { return };
            let Some(channel) = self.channels.get_mut(channel_index) else { return };
            channel.on_deadline(deadline, &mut IndexedSink { sink, channel_index });
            debug_assert_ne!(channel.next_deadline(), Some(deadline), "a deadline that fired is cleared");
            if channel.next_deadline() == Some(deadline) {
                return;
            }
        }
    }

    /// Sets up a channel at its first datagram.
    #[cold]
    fn open_channel<O: ReplaySink>(
        &mut self,
        channel_index: usize,
        source: &CaptureFile,
        sink: &mut O,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(), OfflineError> {
        let Some(routes) = self.routes.channels().get(channel_index) else { return Ok(()) };
        let feed = routes.feed;
        let unsupported = self.options.schemas.unwrap_or_default().without(SchemaSet::of_feed(feed));
        if unsupported != SchemaSet::default() {
            return Err(OfflineError::SchemaNotOfFeed { feed, unsupported });
        }
        let config = self.channel_config(channel_index, feed, source);
        sink.channel(channel_index, &config)?;
        let channel = Channel::new(config);
        let found = on_event(Event::Found { channel: ReplayedChannel { channel: &channel, routes }, by: routes.by });
        self.channels.push(channel);
        if found.is_break() { Err(OfflineError::Interrupted) } else { Ok(()) }
    }

    fn channel_config(&self, channel_index: usize, feed: Feed, source: &CaptureFile) -> ChannelConfig {
        let mut config = ChannelConfig::new(ChannelId(u16::try_from(channel_index).unwrap_or(u16::MAX)), feed);
        config.schemas = self.options.schemas.unwrap_or(config.schemas);
        config.date = self.options.date.or_else(|| source.day_file_date());
        config.arbiter.lines = Line::RECOVERY.0;
        config.accept_unsequenced = true;
        // No packet waits for a page fault, and a small capture uses few pages.
        config.books.prefault = false;
        config
    }
}

impl<'a> ReplayedChannel<'a> {
    /// The channel's books, arbiter and counters, at the present position of the replay.
    #[must_use]
    pub fn channel(self) -> &'a Channel {
        self.channel
    }

    /// Sources of its lines. Several entries are line A if packets carry no sequences.
    #[must_use]
    pub fn lines(self) -> &'a [(Line, LineSource)] {
        &self.routes.lines
    }
}

/// A channel's sink: the sink of all channels, and the index of the channel.
struct IndexedSink<'a, O> {
    sink: &'a mut O,
    channel_index: usize,
}

impl<O: ReplaySink> FrameSink for IndexedSink<'_, O> {
    #[inline]
    fn frame(&mut self, meta: &FrameMeta, record_count: u16, body: &[u8]) {
        self.sink.frame(self.channel_index, meta, record_count, body);
    }

    #[inline]
    fn covered_through(&mut self, next: Sequence) {
        self.sink.covered_through(self.channel_index, next);
    }

    fn session(&mut self, session: Session, next: Sequence) {
        self.sink.session(self.channel_index, session, next);
    }

    fn end_of_session(&mut self) {
        self.sink.end_of_session(self.channel_index);
    }
}

/// Datagrams between two checks of the sink's errors and of the caller's wish to stop: some milliseconds.
const DATAGRAMS_PER_CHECK: u64 = 4_096;
