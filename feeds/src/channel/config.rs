//! How a channel is set up.

use super::{Numbering, SchemaSet};
use crate::{
    arbiter::ArbiterConfig,
    book::BookLimits,
    consumer_edge::TsRecvMode,
    identity::{ChannelId, Feed, Sequence, Session},
    time::TradingDate,
};

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
    /// Lines, window, gap timer, recovery.
    pub arbiter: ArbiterConfig,
    /// How much the books may hold.
    pub books: BookLimits,
    /// How orders are found by their id.
    pub order_store: OrderStoreKind,
    /// Numbers of instruments whose symbols collide (symbol, number); for venues that give none.
    pub instrument_numbers: Vec<(String, u32)>,
    /// Take packets that nobody numbered in the order in which they come. For files of messages that were wrapped into
    /// packets without a session; on a wire such packets are refused.
    pub accept_unsequenced: bool,
    /// Whether frames carry their receive times.
    pub ts_recv: TsRecvMode,
    /// The numbering that was current when the gateway last ran.
    pub resume: Option<Numbering>,
    /// How far the publication log had got when the gateway last ran: a session and the next sequence.
    pub logged: Option<(Session, Sequence)>,
    /// What a channel wants that comes into a session late.
    pub late_start: LateStart,
}

/// What a channel wants that comes into a session late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LateStart {
    /// What comes from now on, or since the log's end. Its books lack what was before, and say so.
    #[default]
    FromNow,
    /// All of the session, to be asked of whoever keeps it: its books are then as good as any.
    Whole,
}

/// How orders are found by their id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderStoreKind {
    /// Any 64-bit id: open addressing.
    #[default]
    Hash,
    /// An array for the young orders before the hash: for venues that number their orders densely.
    Window,
}

impl ChannelConfig {
    /// With the defaults of its feed.
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
            logged: None,
            late_start: LateStart::default(),
        }
    }
}
