//! Datagrams into the channels that they belong to, and when the channels' deadlines fire.

use std::ops::ControlFlow;

use mdgw_captures::capture_file::{CaptureFile, CapturedDatagram};
use mdgw_feeds::{
    channel::{Channel, ChannelConfig, Datagram, SchemaSet},
    frame::{FrameMeta, FrameSink},
    identity::{ChannelId, Feed, Line, Sequence, Session},
    time::{MonoNs, TradingDate, UnixNs},
};

use super::{
    Event, OfflineError, Outlet,
    stop::{Part, Stop},
};
use crate::replay::{
    merge::Merge,
    routes::{LaneRoutes, LineSource, Routed, Routes},
};

/// What lanes are set up with.
#[derive(Clone, Copy, Debug, Default)]
pub struct DriveOptions {
    /// Take this feed and leave out all others.
    pub feed: Option<Feed>,
    /// Trading date, where the input is not to be asked.
    pub date: Option<TradingDate>,
    /// What the channels publish; `None`: their feed's default.
    pub schemas: Option<SchemaSet>,
    /// Where the channels are left.
    pub end: DriveEnd,
}

/// Where channels are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriveEnd {
    /// At the end of the input: nothing more will come, so what they hold is delivered and what is missing declared.
    #[default]
    Finished,
    /// As they stand when the input ends: more would have come.
    Open,
    /// As they stand behind that message; at the end of the input where it doesn't come.
    Behind(Stop),
}

/// Drives channels with datagrams, on the datagrams' own clock.
#[derive(Debug)]
pub struct Drive {
    options: DriveOptions,
    channels: Vec<Channel>,
    routes: Routes,
    /// The latest capture time so far.
    now: MonoNs,
    counts: RouteCounts,
    has_stopped: bool,
}

/// One channel with its lines.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    channel: &'a Channel,
    routes: &'a LaneRoutes,
}

/// What became of the datagrams, as far as lanes don't count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteCounts {
    /// All UDP datagrams.
    pub datagrams: u64,
    /// Of no feed that is known, or heartbeats before anything told the feed.
    pub unrecognised: u64,
    /// Of a feed that was not asked for.
    pub other_feed: u64,
    /// Capture time of the first and the last, ns since 1970.
    pub span_ns: Option<(u64, u64)>,
}

impl Drive {
    /// Without lanes yet: the input brings them.
    #[must_use]
    pub fn new(options: DriveOptions) -> Self {
        Self {
            options,
            channels: Vec::new(),
            routes: Routes::new(options.feed),
            now: MonoNs(0),
            counts: RouteCounts::default(),
            has_stopped: false,
        }
    }

    /// Drives everything that `merge` brings into the channels and what they make into `outlet`, to the end.
    ///
    /// # Errors
    /// A stream that lanes can't hold, what the outlet says, or `watch` broke off.
    pub fn run<O: Outlet>(
        &mut self,
        merge: &mut Merge,
        outlet: &mut O,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(), OfflineError> {
        while !self.has_stopped && merge.advance() {
            let Some((file, datagram)) = merge.current() else { break };
            self.accept(file, &datagram, merge, outlet, watch)?;
            if self.counts.datagrams.is_multiple_of(DATAGRAMS_PER_LOOK) {
                outlet.check()?;
                let file_bytes = merge.file_bytes_read();
                if watch(Event::Progress { file_bytes, drive: &*self }).is_break() {
                    return Err(OfflineError::Interrupted);
                }
            }
        }
        let is_open = self.has_stopped || self.options.end == DriveEnd::Open;
        for (lane, channel) in self.channels.iter_mut().enumerate().filter(|_| !is_open) {
            channel.finish(&mut LaneSink { outlet, lane });
        }
        outlet.check()
    }

    /// The lanes, in the order in which they were found.
    pub fn lanes(&self) -> impl ExactSizeIterator<Item = Lane<'_>> {
        self.channels.iter().zip(self.routes.lanes()).map(|(channel, routes)| Lane { channel, routes })
    }

    /// The latest capture time so far, ns since 1970.
    pub(super) fn now(&self) -> MonoNs {
        self.now
    }

    /// What became of the datagrams.
    #[must_use]
    pub fn counts(&self) -> RouteCounts {
        let unrouted = self.routes.counts();
        RouteCounts { unrecognised: unrouted.unrecognised, other_feed: unrouted.other_feed, ..self.counts }
    }

    /// Whether it stopped behind the message that it was to stop at.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    #[inline]
    fn accept<O: Outlet>(
        &mut self,
        file: usize,
        datagram: &CapturedDatagram<'_>,
        merge: &Merge,
        outlet: &mut O,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(), OfflineError> {
        self.counts.datagrams += 1;
        let (first_ns, last_ns) = self.counts.span_ns.unwrap_or((datagram.time_ns, datagram.time_ns));
        self.counts.span_ns = Some((first_ns, last_ns.max(datagram.time_ns)));
        let Some(source) = merge.file(file) else { return Ok(()) };
        let Some(Routed { lane, line, is_new_lane }) = self.routes.route(file, datagram, source)? else {
            return Ok(());
        };
        if is_new_lane {
            self.open_lane(lane, source, outlet, watch)?;
        }
        // Captures of several cards are a little out of order; time itself never is.
        self.now = self.now.max(MonoNs(datagram.time_ns));
        self.fire_deadlines(outlet);
        let datagram = Datagram { line, bytes: datagram.payload, ts_recv: UnixNs(datagram.time_ns) };
        if let DriveEnd::Behind(stop) = self.options.end {
            self.accept_until(stop, lane, datagram, outlet);
        } else if let Some(channel) = self.channels.get_mut(lane) {
            channel.accept(datagram, self.now, &mut LaneSink { outlet, lane });
        }
        Ok(())
    }

    /// Hands a datagram to its channel as far as the stop.
    fn accept_until<O: Outlet>(&mut self, stop: Stop, lane: usize, datagram: Datagram<'_>, outlet: &mut O) {
        let Some(channel) = self.channels.get_mut(lane) else { return };
        let now = self.now;
        let part = stop.part(channel.position(), channel.config().feed, datagram.bytes);
        let mut is_reached_by = |bytes: &[u8]| {
            channel.accept(Datagram { bytes, ..datagram }, now, &mut LaneSink { outlet: &mut *outlet, lane });
            stop.is_reached(channel.position())
        };
        self.has_stopped = match &part {
            Part::Whole => is_reached_by(datagram.bytes),
            Part::Cut([head, tail]) => is_reached_by(head) || is_reached_by(tail),
            Part::None => stop.is_reached(channel.position()),
        };
    }

    /// Fires what was due before now, in order of time. What is due right now waits until the datagrams of this moment
    /// are in, as in a live channel, whose lines are drained before a deadline is acted on.
    #[inline]
    fn fire_deadlines<O: Outlet>(&mut self, outlet: &mut O) {
        loop {
            let due = self.channels.iter().enumerate().filter_map(|(lane, channel)| {
                channel.next_deadline().filter(|deadline| *deadline < self.now).map(|deadline| (deadline, lane))
            });
            let Some((deadline, lane)) = due.min() else { return };
            let Some(channel) = self.channels.get_mut(lane) else { return };
            channel.on_deadline(deadline, &mut LaneSink { outlet, lane });
            debug_assert_ne!(channel.next_deadline(), Some(deadline), "a deadline that was acted on is over");
            if channel.next_deadline() == Some(deadline) {
                return;
            }
        }
    }

    /// The first datagram of a lane: sets its channel up.
    #[cold]
    fn open_lane<O: Outlet>(
        &mut self,
        lane: usize,
        source: &CaptureFile,
        outlet: &mut O,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(), OfflineError> {
        let Some(routes) = self.routes.lanes().get(lane) else { return Ok(()) };
        let feed = routes.feed;
        let lacking = self.options.schemas.unwrap_or_default().without(SchemaSet::of_feed(feed));
        if lacking != SchemaSet::default() {
            return Err(OfflineError::SchemaNotOfFeed { feed, lacking });
        }
        let config = self.channel_config(lane, feed, source);
        outlet.lane(lane, &config)?;
        let channel = Channel::new(config);
        let found = watch(Event::Found { lane: Lane { channel: &channel, routes }, by: routes.by });
        self.channels.push(channel);
        if found.is_break() { Err(OfflineError::Interrupted) } else { Ok(()) }
    }

    fn channel_config(&self, lane: usize, feed: Feed, source: &CaptureFile) -> ChannelConfig {
        let mut config = ChannelConfig::new(ChannelId(u16::try_from(lane).unwrap_or(u16::MAX)), feed);
        config.schemas = self.options.schemas.unwrap_or(config.schemas);
        config.date = self.options.date.or_else(|| source.day_file_date());
        config.arbiter.lines = Line::RECOVERY.0;
        config.accept_unsequenced = true;
        config
    }
}

impl<'a> Lane<'a> {
    /// The channel.
    #[must_use]
    pub fn channel(self) -> &'a Channel {
        self.channel
    }

    /// Where its lines come from. More than one entry is of line A where packets carry no numbers.
    #[must_use]
    pub fn lines(self) -> &'a [(Line, LineSource)] {
        &self.routes.lines
    }
}

/// A channel's sink: the outlet, and which lane is speaking.
struct LaneSink<'a, O> {
    outlet: &'a mut O,
    lane: usize,
}

impl<O: Outlet> FrameSink for LaneSink<'_, O> {
    #[inline]
    fn frame(&mut self, meta: &FrameMeta, record_count: u16, body: &[u8]) {
        self.outlet.frame(self.lane, meta, record_count, body);
    }

    #[inline]
    fn settled(&mut self, next: Sequence) {
        self.outlet.settled(self.lane, next);
    }

    fn session(&mut self, session: Session, next: Sequence) {
        self.outlet.session(self.lane, session, next);
    }

    fn end_of_session(&mut self) {
        self.outlet.end_of_session(self.lane);
    }
}

/// Datagrams between two looks at the outlet's errors and the caller's wish to stop: some milliseconds.
const DATAGRAMS_PER_LOOK: u64 = 4_096;
