//! A channel whose log is served: what it publishes, and what follows from that.

use std::{path::PathBuf, sync::Arc};

use mdgw_feeds::{book::BookLimits, channel::SchemaSet};
use mdgw_journal::SymbolsService;
use mdgw_wire::identity::{ChannelId, Feed};

use super::super::journals::JournalSource;
use crate::schema::Schemas;

/// A channel of a dataset.
#[derive(Clone, Debug)]
pub struct ChannelSource {
    /// Number of the channel.
    pub id: ChannelId,
    /// The feed whose records its log holds.
    pub feed: Feed,
    /// The schemas that it publishes.
    pub schemas: SchemaSet,
    /// Directory of its log's segments.
    pub log_directory: PathBuf,
    /// Limits of its books.
    pub books: BookLimits,
    /// Journals that hold what the log no longer has, if there are any on this host.
    pub journals: Option<JournalSource>,
    /// What knows the symbols whose mappings the log no longer has.
    pub symbols: Option<Arc<SymbolsService>>,
}

impl ChannelSource {
    /// The schemas that the channel publishes.
    pub(crate) fn native(&self) -> Schemas {
        let names = SchemaSet::NAMES.into_iter().filter(|(schema, _)| self.schemas.contains(*schema));
        names.filter_map(|(_, name)| Schemas::from_name(name)).fold(Schemas::default(), Schemas::with)
    }

    /// The schemas that clients can have: those that are published, and those that follow from them.
    #[must_use]
    pub fn available(&self) -> Schemas {
        let native = self.native();
        let derived = match self.basis() {
            Basis::Orders => {
                let depth = Schemas::MBP_1.with(Schemas::MBP_10).with(Schemas::TBBO).with(Schemas::TRADES);
                depth.with(Schemas::BBO).with(Schemas::OHLCV)
            }
            Basis::Quotes | Basis::Levels => {
                Schemas::MBP_1.with(Schemas::TBBO).with(Schemas::TRADES).with(Schemas::BBO).with(Schemas::OHLCV)
            }
            Basis::Trades => Schemas::OHLCV,
            Basis::Nothing => Schemas::default(),
        };
        native.with(derived)
    }

    /// Whether there are orders that a snapshot could have.
    pub(crate) fn has_orders(&self) -> bool {
        self.basis() == Basis::Orders
    }

    pub(super) fn basis(&self) -> Basis {
        let native = self.native();
        if self.feed.is_by_order() && native.contains(Schemas::MBO) {
            Basis::Orders
        } else if native.contains(Schemas::MBP_1) {
            Basis::Quotes
        } else if native.contains(Schemas::MBP_10) {
            Basis::Levels
        } else if native.contains(Schemas::TRADES) {
            Basis::Trades
        } else {
            Basis::Nothing
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Basis {
    Orders,
    Quotes,
    Levels,
    Trades,
    Nothing,
}
