//! Which datagram of a capture belongs to which channel and line.
//!
//! A **lane** is one channel with its lines. Datagrams of one file to one address are of one line; the first of them
//! tells the feed and the numbering, and with that the lane.

use std::{net::SocketAddr, path::PathBuf};

use mdgw_captures::capture_file::{CaptureFile, CapturedDatagram};
use mdgw_feeds::{
    drop_reason::DropReason,
    identity::{Feed, Line},
    transport::{
        Packet, Transport as _, VenueSession, detect_protocol,
        iextp::{Deep, Tops},
        moldudp64::MoldUdp64,
    },
};

use super::feed_guess::{self, Guess, GuessBasis};

/// Finds channels and lines as datagrams bring them.
#[derive(Debug)]
pub struct Routes {
    /// Take this feed and leave out all others.
    feed_filter: Option<Feed>,
    lanes: Vec<LaneRoutes>,
    routes: Vec<Route>,
    /// The route that the last datagram took: most datagrams take the same.
    route_last: usize,
    counts: UnroutedCounts,
}

/// What tells a channel from others, and its lines.
#[derive(Debug)]
pub struct LaneRoutes {
    /// The channel's feed.
    pub feed: Feed,
    /// How the feed was told; `None` where it was asked for.
    pub by: Option<GuessBasis>,
    /// Where its lines come from. More than one entry is of line A where packets carry no numbers.
    pub lines: Vec<(Line, LineSource)>,
    /// The venue's name of the numbering that its first route began with.
    session: VenueSession,
    has_unsequenced: bool,
}

/// Where the datagrams of a line come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineSource {
    /// The file.
    pub path: PathBuf,
    /// Its position among the files.
    pub file: usize,
    /// Address and port they were sent to.
    pub dst: SocketAddr,
}

/// Where a datagram belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteTarget {
    /// Index of the lane, in the order in which lanes were found.
    pub lane: usize,
    /// The line.
    pub line: Line,
    /// It is the first datagram of its lane.
    pub is_new_lane: bool,
}

/// Datagrams that belong to no lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnroutedCounts {
    /// Of no feed that is known, or heartbeats before anything told the feed.
    pub unrecognised: u64,
    /// Of a feed that was not asked for.
    pub other_feed: u64,
}

/// More than is kept in memory at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutingLimit {
    /// Copies of a channel.
    #[error(
        "{feed} comes from more than {max} addresses and files: these can't all be lines of one channel",
        max = LINES_MAX
    )]
    Lines {
        /// The channel's feed.
        feed: Feed,
    },
    /// Channels.
    #[error(
        "more than {max} channels (each needs its own memory); select one feed with --feed",
        max = LANES_MAX
    )]
    Channels,
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

impl Routes {
    /// None yet: the input brings them. With `feed_filter`, datagrams of other feeds are left out.
    #[must_use]
    pub fn new(feed_filter: Option<Feed>) -> Self {
        Self { feed_filter, lanes: Vec::new(), routes: Vec::new(), route_last: 0, counts: UnroutedCounts::default() }
    }

    /// Where the datagram belongs; `None`, and counted, where no feed tells.
    ///
    /// # Errors
    /// Its lane has no room for a further line, or there is none for a further lane.
    #[inline]
    pub fn route(
        &mut self,
        file: usize,
        datagram: &CapturedDatagram<'_>,
        source: &CaptureFile,
    ) -> Result<Option<RouteTarget>, RoutingLimit> {
        let Some(index) = self.position(file, datagram) else { return self.open(file, datagram, source) };
        self.route_last = index;
        Ok(self.routed(index))
    }

    /// Where the datagram belongs, where one of its kind was routed before. Nothing is opened, nothing counted.
    #[must_use]
    pub fn known(&self, file: usize, datagram: &CapturedDatagram<'_>) -> Option<RouteTarget> {
        self.routed(self.position(file, datagram)?)
    }

    #[inline]
    fn position(&self, file: usize, datagram: &CapturedDatagram<'_>) -> Option<usize> {
        let takes = |route: &Route| {
            route.file == file
                && route.dst == datagram.dst
                && route.iex_channel.is_none_or(|number| iex_channel(datagram.payload) == Some(number))
        };
        match self.routes.get(self.route_last) {
            Some(route) if takes(route) => Some(self.route_last),
            _ => self.routes.iter().position(takes),
        }
    }

    #[inline]
    fn routed(&self, index: usize) -> Option<RouteTarget> {
        self.routes.get(index).map(|route| RouteTarget { lane: route.lane, line: route.line, is_new_lane: false })
    }

    /// The lanes, in the order in which they were found.
    #[must_use]
    pub fn lanes(&self) -> &[LaneRoutes] {
        &self.lanes
    }

    /// Datagrams that belong to no lane.
    #[must_use]
    pub fn counts(&self) -> UnroutedCounts {
        self.counts
    }

    /// Counts anew: what was routed so far was only looked at.
    pub fn reset_counts(&mut self) {
        self.counts = UnroutedCounts::default();
    }

    /// The first datagram of its kind: finds its feed, and the lane that it is a line of.
    #[cold]
    fn open(
        &mut self,
        file: usize,
        datagram: &CapturedDatagram<'_>,
        source: &CaptureFile,
    ) -> Result<Option<RouteTarget>, RoutingLimit> {
        let Some((feed, by)) = self.recognise_feed(datagram.payload, source) else { return Ok(None) };
        let Ok(packet) = parse(feed, datagram.payload) else {
            self.counts.unrecognised += 1;
            return Ok(None);
        };
        let existing_lane = self.lanes.iter().position(|lane| {
            lane.feed == feed && if packet.unsequenced { lane.has_unsequenced } else { lane.session == packet.session }
        });
        let lane_index = existing_lane.unwrap_or(self.lanes.len());
        if existing_lane.is_none() {
            if self.lanes.len() >= LANES_MAX {
                return Err(RoutingLimit::Channels);
            }
            let (session, has_unsequenced) = (packet.session, packet.unsequenced);
            self.lanes.push(LaneRoutes { feed, by, lines: Vec::new(), session, has_unsequenced });
        }
        let Some(lane) = self.lanes.get_mut(lane_index) else { return Ok(None) };
        // Packets without a number can only be taken as they come: as one line.
        let position = if packet.unsequenced { 0 } else { lane.lines.len() };
        if position >= LINES_MAX {
            return Err(RoutingLimit::Lines { feed });
        }
        let line = Line(u8::try_from(position).unwrap_or(u8::MAX));
        lane.lines.push((line, LineSource { path: source.path().to_owned(), file, dst: datagram.dst }));
        self.routes.push(Route {
            file,
            dst: datagram.dst,
            iex_channel: (!feed.is_by_order()).then(|| iex_channel(datagram.payload)).flatten(),
            lane: lane_index,
            line,
        });
        self.route_last = self.routes.len() - 1;
        Ok(Some(RouteTarget { lane: lane_index, line, is_new_lane: existing_lane.is_none() }))
    }

    /// The feed of a datagram and what told it; counts those that have none.
    fn recognise_feed(&mut self, payload: &[u8], source: &CaptureFile) -> Option<(Feed, Option<GuessBasis>)> {
        let recognised = detect_protocol(payload);
        let Some(feed_filter) = self.feed_filter else {
            let Some(recognised) = recognised else {
                self.counts.unrecognised += 1;
                return None;
            };
            let Guess { feed, by } = feed_guess::guess(recognised, source.path());
            return Some((feed, Some(by)));
        };
        // Where nothing contradicts it, a heartbeat is taken for what was asked for.
        if recognised.is_some_and(|recognised| !recognised.feeds().contains(&feed_filter)) {
            self.counts.other_feed += 1;
            return None;
        }
        Some((feed_filter, None))
    }
}

/// Checks the framing of a datagram of that feed.
///
/// # Errors
/// The first thing that doesn't fit.
#[inline]
pub fn parse(feed: Feed, payload: &[u8]) -> Result<Packet<'_>, DropReason> {
    match feed {
        Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => MoldUdp64::parse(payload),
        Feed::IexTops => Tops::parse(payload),
        Feed::IexDeep => Deep::parse(payload),
    }
}

/// The channel number in an IEX-TP header.
#[inline]
fn iex_channel(payload: &[u8]) -> Option<u32> {
    payload.get(4..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Lanes, each with windows and books of its own.
pub const LANES_MAX: usize = 64;
/// Lines of a lane, the recovery line left out.
pub const LINES_MAX: usize = Line::RECOVERY.0 as usize;
