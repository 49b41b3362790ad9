//! One channel from datagram to records: what the gateway, the offline replay and the bench drive.

use crate::{
    drop_reason::DropCounts,
    frame::FrameSink,
    identity::{ChannelId, Feed, Line, Sequence, Session},
    time::{MonoNs, TradingDate, UnixNs},
};

/// One datagram as the socket or the file gave it.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The line it came on.
    pub line: Line,
    /// UDP payload.
    pub bytes: &'a [u8],
    /// When it was received: NIC or kernel stamp, else the clock on return from the wait; in replay the capture's.
    pub ts_recv: UnixNs,
}

/// What a channel can publish, a bit set of DBN schemas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemaSet(pub u16);

impl SchemaSet {
    /// Market by order.
    pub const MBO: Self = Self(1);
    /// Best level after each change of it, and trades.
    pub const MBP_1: Self = Self(1 << 1);
    /// Ten levels after each change of them, and trades.
    pub const MBP_10: Self = Self(1 << 2);
    /// Trades alone.
    pub const TRADES: Self = Self(1 << 3);
    /// Trading status.
    pub const STATUS: Self = Self(1 << 4);
    /// Instrument definitions.
    pub const DEFINITION: Self = Self(1 << 5);
    /// Auction imbalance.
    pub const IMBALANCE: Self = Self(1 << 6);
    /// Statistics.
    pub const STATISTICS: Self = Self(1 << 7);

    /// All schemas with the names that configuration and command line use.
    pub const NAMES: [(Self, &'static str); 8] = [
        (Self::MBO, "mbo"),
        (Self::MBP_1, "mbp-1"),
        (Self::MBP_10, "mbp-10"),
        (Self::TRADES, "trades"),
        (Self::STATUS, "status"),
        (Self::DEFINITION, "definition"),
        (Self::IMBALANCE, "imbalance"),
        (Self::STATISTICS, "statistics"),
    ];

    /// What a channel of that feed publishes unless it is configured.
    #[must_use]
    pub fn default_for(feed: Feed) -> Self {
        match feed {
            Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => {
                Self::MBO.with(Self::STATUS).with(Self::DEFINITION).with(Self::IMBALANCE).with(Self::STATISTICS)
            }
            Feed::IexDeep => Self::MBP_10.with(Self::TRADES).with(Self::STATUS),
            Feed::IexTops => Self::MBP_1.with(Self::TRADES).with(Self::STATUS),
        }
    }

    /// The schema of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(_, known)| *known == name).map(|(schema, _)| schema)
    }

    /// Both sets together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in here.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Where a channel stands. The number is the one in a [`StateBody`](crate::frame::StateBody).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChannelState {
    /// Nothing has come yet.
    #[default]
    Waiting = 0,
    /// In sequence.
    Live = 1,
    /// Input sequences are missing; another line may still bring them.
    Gap = 2,
    /// Missing sequences were asked of a retransmission server.
    Recovering = 3,
    /// No packet and no heartbeat on any line within the interval.
    Stale = 4,
    /// The venue ended the session.
    Ended = 5,
    /// Its handler failed; the channel is out of service.
    Failed = 6,
}

/// How a channel is set up.
#[derive(Clone, Debug)]
pub struct ChannelConfig {
    /// Number in published packets.
    pub id: ChannelId,
    /// What it decodes.
    pub feed: Feed,
    /// What it publishes.
    pub schemas: SchemaSet,
    /// Trading date, where it is not to be taken from the input.
    pub date: Option<TradingDate>,
}

/// One channel. Drive it with datagrams and deadlines; it writes frames.
#[derive(Debug)]
pub struct Channel {
    config: ChannelConfig,
    drops: DropCounts,
}

impl Channel {
    /// With all its memory allocated.
    #[must_use]
    pub fn new(config: ChannelConfig) -> Self {
        Self { config, drops: DropCounts::default() }
    }

    /// How it was set up.
    #[must_use]
    pub fn config(&self) -> &ChannelConfig {
        &self.config
    }

    /// A datagram came.
    pub fn accept<S: FrameSink>(&mut self, _datagram: Datagram<'_>, _now: MonoNs, _sink: &mut S) {}

    /// When [`Self::on_deadline`] wants to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoNs> {
        None
    }

    /// Time has passed: a gap may have to be asked for or declared, a line may have gone silent.
    pub fn on_deadline<S: FrameSink>(&mut self, _now: MonoNs, _sink: &mut S) {}

    /// A request to the retransmission server that is due, written into `request`; its length.
    pub fn poll_request(&mut self, _request: &mut [u8; REQUEST_BYTES_MAX]) -> Option<usize> {
        None
    }

    /// Where the channel stands.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        ChannelState::Waiting
    }

    /// The current numbering and the next sequence it expects, once a packet has come.
    #[must_use]
    pub fn position(&self) -> Option<(Session, Sequence)> {
        None
    }

    /// What was refused, and why.
    #[must_use]
    pub fn drops(&self) -> &DropCounts {
        &self.drops
    }
}

/// Room for any request to a retransmission server.
pub const REQUEST_BYTES_MAX: usize = 64;
