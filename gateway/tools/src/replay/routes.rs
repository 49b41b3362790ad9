//! Maps each datagram of a capture to its channel and line.
//!
//! A channel has one or more lines. Datagrams of one file to one address belong to one line. The first datagram of a
//! line determines the feed and the session, and with these the channel.

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

/// Finds channels and lines as datagrams arrive.
#[derive(Debug)]
pub(crate) struct Routes {
    /// Route this feed only.
    feed_filter: Option<Feed>,
    channels: Vec<ChannelRoutes>,
    routes: Vec<Route>,
    /// Route of the last datagram: most datagrams take the same one.
    route_last: usize,
    counts: UnroutedCounts,
}

/// Identity of a channel, and its lines.
#[derive(Debug)]
pub(crate) struct ChannelRoutes {
    /// The channel's feed.
    pub feed: Feed,
    /// How the feed was determined; `None` if the caller requested it.
    pub by: Option<GuessBasis>,
    /// Sources of its lines. Several entries are line A if packets carry no sequences.
    pub lines: Vec<(Line, LineSource)>,
    /// The venue's name of the session with which its first route began.
    session: VenueSession,
    has_unsequenced: bool,
}

/// Source of a line's datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineSource {
    /// Path of the capture.
    pub path: PathBuf,
    /// Index of the capture, in the order given.
    pub file: usize,
    /// Destination address and port.
    pub dst: SocketAddr,
}

/// Route of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteTarget {
    /// Index of the channel, in the order in which channels were found.
    pub channel_index: usize,
    /// Line of that channel on which the datagram came.
    pub line: Line,
    /// Whether this is the first datagram of its channel.
    pub is_new_channel: bool,
}

/// Datagrams that belong to no channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnroutedCounts {
    /// Unknown feed, or heartbeats before the feed was known.
    pub unrecognised: u64,
    /// A feed that was not requested.
    pub other_feed: u64,
}

/// A limit on memory was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutingLimit {
    /// Lines of a channel.
    #[error(
        "{feed}: more than {max} source addresses and files; a channel has at most {max} lines",
        max = LINES_MAX
    )]
    Lines {
        /// The channel's feed.
        feed: Feed,
    },
    /// Number of channels.
    #[error(
        "more than {max} channels (each needs its own memory); select one feed with --feed",
        max = CHANNELS_MAX
    )]
    Channels,
}

/// One kind of datagrams and its line. Datagrams with the same file, address and IEX channel take the same route.
#[derive(Debug)]
struct Route {
    file: usize,
    dst: SocketAddr,
    /// Several channels can share an address: IEX-TP distinguishes them by a number in each packet.
    iex_channel: Option<u32>,
    channel_index: usize,
    line: Line,
}

impl Routes {
    /// Starts without channels: the input adds them. With `feed_filter`, datagrams of other feeds are skipped.
    #[must_use]
    pub(crate) fn new(feed_filter: Option<Feed>) -> Self {
        Self { feed_filter, channels: Vec::new(), routes: Vec::new(), route_last: 0, counts: UnroutedCounts::default() }
    }

    /// Routes a datagram; `None`, and counted, if its feed is unknown.
    ///
    /// # Errors
    /// Its channel can't have another line, or there can't be another channel.
    #[inline]
    pub(crate) fn route(
        &mut self,
        file: usize,
        datagram: &CapturedDatagram<'_>,
        source: &CaptureFile,
    ) -> Result<Option<RouteTarget>, RoutingLimit> {
        let Some(index) = self.position(file, datagram) else { return self.open(file, datagram, source) };
        self.route_last = index;
        Ok(self.routed(index))
    }

    /// The route of a datagram if one of its kind was routed before. Adds and counts nothing.
    #[must_use]
    pub(crate) fn existing_route(&self, file: usize, datagram: &CapturedDatagram<'_>) -> Option<RouteTarget> {
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
        self.routes.get(index).map(|route| RouteTarget {
            channel_index: route.channel_index,
            line: route.line,
            is_new_channel: false,
        })
    }

    /// The channels, in the order in which they were found.
    #[must_use]
    pub(crate) fn channels(&self) -> &[ChannelRoutes] {
        &self.channels
    }

    /// Datagrams that belong to no channel.
    #[must_use]
    pub(crate) fn counts(&self) -> UnroutedCounts {
        self.counts
    }

    /// Resets the counts: the datagrams so far were only examined.
    pub(crate) fn reset_counts(&mut self) {
        self.counts = UnroutedCounts::default();
    }

    /// Routes the first datagram of its kind: determines its feed and its channel.
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
        let existing_channel = self.channels.iter().position(|channel| {
            channel.feed == feed
                && if packet.unsequenced { channel.has_unsequenced } else { channel.session == packet.session }
        });
        let channel_index = existing_channel.unwrap_or(self.channels.len());
        if existing_channel.is_none() {
            if self.channels.len() >= CHANNELS_MAX {
                return Err(RoutingLimit::Channels);
            }
            let (session, has_unsequenced) = (packet.session, packet.unsequenced);
            self.channels.push(ChannelRoutes { feed, by, lines: Vec::new(), session, has_unsequenced });
        }
        let Some(channel) = self.channels.get_mut(channel_index) else { return Ok(None) };
        // Packets without sequences can only be processed in arrival order, as one line.
        let position = if packet.unsequenced { 0 } else { channel.lines.len() };
        if position >= LINES_MAX {
            return Err(RoutingLimit::Lines { feed });
        }
        let line = Line(u8::try_from(position).unwrap_or(u8::MAX));
        channel.lines.push((line, LineSource { path: source.path().to_owned(), file, dst: datagram.dst }));
        self.routes.push(Route {
            file,
            dst: datagram.dst,
            iex_channel: (!feed.is_by_order()).then(|| iex_channel(datagram.payload)).flatten(),
            channel_index,
            line,
        });
        self.route_last = self.routes.len() - 1;
        Ok(Some(RouteTarget { channel_index, line, is_new_channel: existing_channel.is_none() }))
    }

    /// The feed of a datagram and how it was determined; counts datagrams without a feed.
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
        // If nothing contradicts, a heartbeat counts as the requested feed.
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
/// The first framing error.
#[inline]
pub(crate) fn parse(feed: Feed, payload: &[u8]) -> Result<Packet<'_>, DropReason> {
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

/// Maximum number of channels; each has its own windows and books.
pub(crate) const CHANNELS_MAX: usize = 64;
/// Maximum number of lines of a channel, without the recovery line.
pub(crate) const LINES_MAX: usize = Line::RECOVERY.0 as usize;
