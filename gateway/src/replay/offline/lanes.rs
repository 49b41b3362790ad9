//! Which datagram belongs to which channel and line, and when the channels' deadlines fire.

use std::{net::SocketAddr, ops::ControlFlow, path::PathBuf};

use mdgw_feeds::{
    channel::{Channel, ChannelConfig, Datagram, SchemaSet},
    frame::{FrameMeta, FrameSink},
    identity::{ChannelId, Feed, Line, Sequence, Session},
    time::{MonoNs, TradingDate, UnixNs},
    transport::{
        Packet, Transport as _, VenueSession,
        iextp::{Deep, Tops},
        moldudp64::MoldUdp64,
        recognise,
    },
};

use super::{Event, GuessedBy, OfflineError, Outlet};
use crate::{
    capture_file::{CaptureFile, CapturedDatagram},
    replay::{
        feed_guess::{self, Guess},
        merge::Merge,
    },
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
}

/// Drives channels with datagrams, on the datagrams' own clock.
#[derive(Debug)]
pub struct Drive {
    options: DriveOptions,
    lanes: Vec<Lane>,
    routes: Vec<Route>,
    /// The route that the last datagram took: most datagrams take the same.
    route_last: usize,
    /// The latest capture time so far.
    now: MonoNs,
    counts: RouteCounts,
}

/// One channel with its lines.
#[derive(Debug)]
pub struct Lane {
    channel: Channel,
    lines: Vec<(Line, LineSource)>,
    /// The venue's name of the numbering that its last route began with.
    session: VenueSession,
    has_unsequenced: bool,
}

/// Where the datagrams of a line come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineSource {
    /// The file.
    pub path: PathBuf,
    /// Address and port they were sent to.
    pub dst: SocketAddr,
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

/// Datagrams that share all of this are of one line.
#[derive(Debug)]
struct Route {
    file: usize,
    dst: SocketAddr,
    /// Several channels can share an address: IEX-TP tells them apart by a number in each packet.
    iex_channel: Option<u32>,
    lane: usize,
    line: Line,
}

impl Drive {
    /// Without lanes yet: the input brings them.
    #[must_use]
    pub fn new(options: DriveOptions) -> Self {
        Self {
            options,
            lanes: Vec::new(),
            routes: Vec::new(),
            route_last: 0,
            now: MonoNs(0),
            counts: RouteCounts::default(),
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
        while merge.advance() {
            let Some((file, datagram)) = merge.current() else { break };
            self.accept(file, &datagram, merge, outlet, watch)?;
            if self.counts.datagrams.is_multiple_of(DATAGRAMS_PER_LOOK) {
                outlet.check()?;
                if watch(Event::Progress { file_bytes: merge.file_bytes_read() }).is_break() {
                    return Err(OfflineError::Interrupted);
                }
            }
        }
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            lane.channel.finish(&mut LaneSink { outlet, lane: index });
        }
        outlet.check()
    }

    /// The lanes, in the order in which they were found.
    #[must_use]
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// What became of the datagrams.
    #[must_use]
    pub fn counts(&self) -> RouteCounts {
        self.counts
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
        let route = match self.find_route(file, datagram) {
            Some(route) => route,
            None => match self.open_route(file, datagram, merge, outlet, watch)? {
                Some(route) => route,
                None => return Ok(()),
            },
        };
        let Some(&Route { lane, line, .. }) = self.routes.get(route) else { return Ok(()) };
        self.route_last = route;
        // Captures of several cards are a little out of order; time itself never is.
        self.now = self.now.max(MonoNs(datagram.time_ns));
        self.fire_deadlines(outlet);
        if let Some(Lane { channel, .. }) = self.lanes.get_mut(lane) {
            let bytes = datagram.payload;
            let ts_recv = UnixNs(datagram.time_ns);
            channel.accept(Datagram { line, bytes, ts_recv }, self.now, &mut LaneSink { outlet, lane });
        }
        Ok(())
    }

    /// Fires what was due before now, in order of time. What is due right now waits until the datagrams of this moment
    /// are in, as in a live channel, whose lines are drained before a deadline is acted on.
    #[inline]
    fn fire_deadlines<O: Outlet>(&mut self, outlet: &mut O) {
        loop {
            let due = self.lanes.iter().enumerate().filter_map(|(lane, Lane { channel, .. })| {
                channel.next_deadline().filter(|deadline| *deadline < self.now).map(|deadline| (deadline, lane))
            });
            let Some((deadline, lane)) = due.min() else { return };
            let Some(Lane { channel, .. }) = self.lanes.get_mut(lane) else { return };
            channel.on_deadline(deadline, &mut LaneSink { outlet, lane });
            debug_assert_ne!(channel.next_deadline(), Some(deadline), "a deadline that was acted on is over");
            if channel.next_deadline() == Some(deadline) {
                return;
            }
        }
    }

    #[inline]
    fn find_route(&self, file: usize, datagram: &CapturedDatagram<'_>) -> Option<usize> {
        let takes = |route: &Route| {
            route.file == file
                && route.dst == datagram.dst
                && route.iex_channel.is_none_or(|number| iex_channel(datagram.payload) == Some(number))
        };
        if self.routes.get(self.route_last).is_some_and(takes) {
            return Some(self.route_last);
        }
        self.routes.iter().position(takes)
    }

    /// The first datagram of its kind: finds its feed, and the lane that it is a line of.
    #[cold]
    fn open_route<O: Outlet>(
        &mut self,
        file: usize,
        datagram: &CapturedDatagram<'_>,
        merge: &Merge,
        outlet: &mut O,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Option<usize>, OfflineError> {
        let Some(source) = merge.files().nth(file) else { return Ok(None) };
        let Some((feed, by)) = self.feed_of(datagram.payload, source) else { return Ok(None) };
        let Some(packet) = parse(feed, datagram.payload) else {
            self.counts.unrecognised += 1;
            return Ok(None);
        };
        let line_source = LineSource { path: source.path().to_owned(), dst: datagram.dst };
        let joined = self.lanes.iter().position(|lane| {
            lane.channel.config().feed == feed
                && if packet.unsequenced { lane.has_unsequenced } else { lane.session == packet.session }
        });
        let lane_index = joined.unwrap_or(self.lanes.len());
        if joined.is_none() {
            let lacking = self.options.schemas.unwrap_or_default().without(SchemaSet::of_feed(feed));
            if lacking != SchemaSet::default() {
                return Err(OfflineError::SchemaNotOfFeed { feed, lacking });
            }
            let config = self.channel_config(lane_index, feed, source);
            outlet.lane(lane_index, &config)?;
            self.lanes.push(Lane {
                channel: Channel::new(config),
                lines: Vec::new(),
                session: packet.session,
                has_unsequenced: packet.unsequenced,
            });
        }
        let Some(lane) = self.lanes.get_mut(lane_index) else { return Ok(None) };
        // Packets without a number can only be taken as they come: as one line.
        let position = if packet.unsequenced { 0 } else { lane.lines.len() };
        if position >= LINES_MAX {
            return Err(OfflineError::TooManyLines { feed, max: LINES_MAX });
        }
        let line = Line(u8::try_from(position).unwrap_or(u8::MAX));
        lane.lines.push((line, line_source));
        if joined.is_none() && watch(Event::Found { lane, by }).is_break() {
            return Err(OfflineError::Interrupted);
        }
        self.routes.push(Route {
            file,
            dst: datagram.dst,
            iex_channel: (!feed.is_by_order()).then(|| iex_channel(datagram.payload)).flatten(),
            lane: lane_index,
            line,
        });
        Ok(Some(self.routes.len() - 1))
    }

    /// The feed of a datagram and what told it; counts those that have none.
    fn feed_of(&mut self, payload: &[u8], source: &CaptureFile) -> Option<(Feed, Option<GuessedBy>)> {
        let recognised = recognise(payload);
        let Some(wanted) = self.options.feed else {
            let Some(recognised) = recognised else {
                self.counts.unrecognised += 1;
                return None;
            };
            let Guess { feed, by } = feed_guess::guess(recognised, source.path());
            return Some((feed, Some(by)));
        };
        // Where nothing contradicts it, a heartbeat is taken for what was asked for.
        if recognised.is_some_and(|recognised| !recognised.feeds().contains(&wanted)) {
            self.counts.other_feed += 1;
            return None;
        }
        Some((wanted, None))
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

impl Lane {
    /// The channel.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Where its lines come from. More than one entry is of line A where packets carry no numbers.
    #[must_use]
    pub fn lines(&self) -> &[(Line, LineSource)] {
        &self.lines
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

fn parse(feed: Feed, payload: &[u8]) -> Option<Packet<'_>> {
    match feed {
        Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => MoldUdp64::parse(payload),
        Feed::IexTops => Tops::parse(payload),
        Feed::IexDeep => Deep::parse(payload),
    }
    .ok()
}

/// The channel number in an IEX-TP header.
#[inline]
fn iex_channel(payload: &[u8]) -> Option<u32> {
    payload.get(4..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Lines of a lane, the recovery line left out.
const LINES_MAX: usize = Line::RECOVERY.0 as usize;

/// Datagrams between two looks at the outlet's errors and the caller's wish to stop: some milliseconds.
const DATAGRAMS_PER_LOOK: u64 = 4_096;
