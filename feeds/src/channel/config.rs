//! Configuration of a channel.

use super::{KnownSession, SchemaSet};
use crate::book::BookLimits;
use mdgw_wire::{
    arbiter::ArbiterConfig,
    consumer_edge::TsRecvMode,
    identity::{ChannelId, Feed, Sequence, Session},
    time::TradingDate,
};

/// Configuration of a channel.
#[derive(Clone, Debug)]
pub struct ChannelConfig {
    /// Channel number in published packets.
    pub id: ChannelId,
    /// The feed to decode.
    pub feed: Feed,
    /// The schemas to publish.
    pub schemas: SchemaSet,
    /// Trading date, where it must not be taken from the input.
    pub date: Option<TradingDate>,
    /// Lines, window, gap timer, recovery.
    pub arbiter: ArbiterConfig,
    /// Capacity of the books.
    pub books: BookLimits,
    /// How orders are looked up by id.
    pub order_store: OrderStoreKind,
    /// Instrument ids (symbol, id) for symbols whose hashes collide. Only for venues that do not number their
    /// instruments.
    pub instrument_numbers: Vec<(String, u32)>,
    /// Accept packets without sequence numbers in order of arrival. For files whose messages were wrapped into
    /// packets without a session; on a wire such packets are rejected.
    pub accept_unsequenced: bool,
    /// Whether frames carry receive times.
    pub ts_recv: TsRecvMode,
    /// The session that was current when the gateway last ran.
    pub resume: Option<KnownSession>,
    /// End of the publication log when the gateway last ran: session and next sequence.
    pub log_position: Option<(Session, Sequence)>,
    /// Where the channel starts if it joins a session late.
    pub late_start: LateStart,
}

/// Where a channel starts if it joins a session late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LateStart {
    /// At the first packet received, or at the log's end. Books lack earlier messages and are suspect.
    #[default]
    FromNow,
    /// At the session's first message, requested from a source that stores the session. Books are then complete.
    WholeSession,
}

/// How orders are looked up by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderStoreKind {
    /// Any 64-bit id: open addressing.
    #[default]
    Hash,
    /// An array for recent orders in front of the hash table, for venues that number orders densely.
    Window,
}

impl ChannelConfig {
    /// A configuration with the defaults of the feed.
    #[must_use]
    pub fn new(id: ChannelId, feed: Feed) -> Self {
        Self {
            id,
            feed,
            schemas: SchemaSet::default_for(feed),
            date: None,
            arbiter: ArbiterConfig::default(),
            books: BookLimits::default(),
            order_store: OrderStoreKind::default(),
            instrument_numbers: Vec::new(),
            accept_unsequenced: false,
            ts_recv: TsRecvMode::default(),
            resume: None,
            log_position: None,
            late_start: LateStart::default(),
        }
    }
}
