//! Books of a capture at a moment: the product's own channels are driven so far, then their books are copied.
//!
//! What a book doesn't hold, volume and trades, is counted from the records that the channels publish. `top` follows the
//! best bid and offer instead, from the records too.

mod table;
mod top;
mod trade_counts;

use std::{io, ops::ControlFlow, path::PathBuf};

use mdgw_captures::capture_file::{CaptureError, OpenOptions};
use mdgw_feeds::{
    book::{Level, OrderView, Side},
    channel::{ChannelState, SchemaSet},
    identity::{Feed, InstrumentId, Sequence},
    time::TradingDate,
};
use serde::Serialize;

pub use self::top::{TopChange, follow};
use self::trade_counts::TradeCounter;
use crate::replay::{
    capture_merge::{CaptureMerge, Moment, Window},
    offline::{Event, Lane, OfflineError, ReplayDriver, ReplayDriverOptions, ReplayEnd, StopPoint},
};

/// Which books, of what, when.
#[derive(Clone, Debug, Default)]
pub struct BookOptions {
    /// Captures and day files; each brings further lines.
    pub files: Vec<PathBuf>,
    /// Take this feed and leave out all others.
    pub feed: Option<Feed>,
    /// Trading date, where the input doesn't tell it.
    pub date: Option<TradingDate>,
    /// Instruments by symbol; empty: all.
    pub symbols: Vec<String>,
    /// The moment.
    pub when: BookTime,
    /// Levels of each side.
    pub depth: Option<usize>,
    /// Every order instead of their sums.
    pub by_order: bool,
}

/// The moment of a book.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BookTime {
    /// At the end of the capture.
    #[default]
    End,
    /// BookTime everything captured up to then, that moment included, was applied.
    At(Moment),
    /// AfterMessage a message.
    AfterMessage(StopPoint),
}

/// Books at a moment.
#[derive(Clone, Debug)]
pub struct BookSnapshot {
    /// The books, by symbol.
    pub books: Vec<InstrumentBook>,
    /// What ended files before their end, with everything before it in the books.
    pub damages: Vec<String>,
}

/// One instrument's book.
#[derive(Clone, Debug, Serialize)]
pub struct InstrumentBook {
    /// Its name.
    pub symbol: String,
    /// Its number in records.
    pub instrument_id: u32,
    /// Number of its channel among those of the capture, from 0.
    pub channel: u16,
    /// The channel's feed.
    pub feed: &'static str,
    /// The channel's session.
    pub session: Option<String>,
    /// Number of the last message that was applied or declared missing.
    pub sequence: Option<u64>,
    /// State of the channel.
    pub state: String,
    /// Price in 1e-9, size, orders (0 where the feed tells none); the best first.
    pub bids: Vec<Entry>,
    /// The same of the other side.
    pub asks: Vec<Entry>,
    /// Order number, price in 1e-9, size; by priority within a price. Only where orders were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bid_orders: Option<Vec<OrderEntry>>,
    /// The same of the other side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask_orders: Option<Vec<OrderEntry>>,
    /// Whether the book may differ from the venue's.
    pub suspect: bool,
    /// Shares traded in the session, as far as it is captured.
    pub volume: u64,
    /// Trades.
    pub trades: u64,
}

/// Price in 1e-9, size, orders.
pub type Entry = (i64, u32, u32);
/// Order number, price in 1e-9, size.
pub type OrderEntry = (u64, i64, u32);

/// Why there is no book.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// The capture can't be replayed.
    #[error(transparent)]
    Replay(#[from] OfflineError),
    /// A file cannot be opened.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Orders were asked of a feed that tells none.
    #[error("book: {0} carries no individual orders; use --by price")]
    NoOrders(Feed),
    /// The message is in none of the files.
    #[error("book: message {} is not in the files; {found}", .wanted.0)]
    NotReached {
        /// The message.
        wanted: Sequence,
        /// How far the sessions go that are.
        found: String,
    },
}

/// The books at the moment that was asked for. `on_event` is told how it goes and may break off.
///
/// # Errors
/// See [`BookError`]. Damage inside a capture is none: it stands in the snapshot.
pub fn snapshot(
    options: &BookOptions,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<BookSnapshot, BookError> {
    let mut merge = open(options)?;
    let mut driver = ReplayDriver::new(drive_options(options, SchemaSet::TRADES));
    let mut tally = TradeCounter::default();
    driver.run(&mut merge, &mut tally, on_event)?;
    check_not_empty(options, &driver, &merge)?;
    if let BookTime::AfterMessage(stop) = options.when
        && (!driver.has_stopped() || tally.begins_after(&stop))
    {
        return Err(BookError::NotReached { wanted: stop.sequence, found: tally.describe_sessions() });
    }
    let mut books = Vec::new();
    for (lane, trades) in driver.lanes().zip(tally.lanes()) {
        books.extend(books_of(options, lane, trades)?);
    }
    books.sort_by(|one, other| (&one.symbol, one.channel).cmp(&(&other.symbol, other.channel)));
    Ok(BookSnapshot { books, damages: damages(&merge) })
}

fn open(options: &BookOptions) -> Result<CaptureMerge, CaptureError> {
    let open = OpenOptions { date: options.date, ..OpenOptions::default() };
    let until = match options.when {
        BookTime::At(moment) => Some(moment.later_by(1)),
        BookTime::End | BookTime::AfterMessage(_) => None,
    };
    CaptureMerge::open(&options.files, &open, Window { from: None, until })
}

fn drive_options(options: &BookOptions, schemas: SchemaSet) -> ReplayDriverOptions {
    let end = match options.when {
        BookTime::End => ReplayEnd::Finished,
        BookTime::At(_) => ReplayEnd::Open,
        BookTime::AfterMessage(stop) => ReplayEnd::AfterMessage(stop),
    };
    ReplayDriverOptions { feed: options.feed, date: options.date, schemas: Some(schemas), end }
}

/// Whether the files held a feed. Damage before anything could be recognised is told as such; before the first packet there
/// are no books.
fn check_not_empty(options: &BookOptions, driver: &ReplayDriver, merge: &CaptureMerge) -> Result<(), OfflineError> {
    let begins_later =
        || matches!(options.when, BookTime::At(_)) && merge.files().any(|file| file.counts().datagrams > 0);
    if driver.lanes().len() > 0 || !merge.damages().is_empty() || (driver.counts().datagrams == 0 && begins_later()) {
        return Ok(());
    }
    match driver.counts().datagrams {
        0 => Err(OfflineError::NoPackets { files: options.files.clone() }),
        datagrams => Err(OfflineError::NothingRecognised {
            wanted: options.feed.map_or_else(|| "a known feed".to_owned(), |feed| feed.to_string()),
            datagrams,
        }),
    }
}

fn damages(merge: &CaptureMerge) -> Vec<String> {
    merge.damages().iter().map(|damage| format!("{damage}: {}", damage.fault)).collect()
}

fn books_of(
    options: &BookOptions,
    lane: Lane<'_>,
    trades: &trade_counts::LaneTrades,
) -> Result<Vec<InstrumentBook>, BookError> {
    let channel = lane.channel();
    let config = channel.config();
    let is_wanted = |symbol: &str| options.symbols.is_empty() || options.symbols.iter().any(|wanted| wanted == symbol);
    let wanted: Vec<_> = trades.instruments().filter(|(_, instrument)| is_wanted(&instrument.symbol)).collect();
    let orders = if options.by_order {
        let ids: std::collections::BTreeSet<InstrumentId> = wanted.iter().map(|(id, _)| *id).collect();
        Some(channel.orders(&|id| ids.contains(&id)).ok_or(BookError::NoOrders(config.feed))?)
    } else {
        None
    };
    let depth = options.depth.unwrap_or(usize::MAX);
    let books = wanted.into_iter().map(|(id, instrument)| {
        let book = channel.book(id, depth);
        let entries = |levels: &[Level]| {
            levels.iter().map(|level| (level.price_e9, level.size, level.order_count)).collect::<Vec<Entry>>()
        };
        let orders_of = |side: Side, worst: Option<&Level>| {
            let is_shown = |order: &&OrderView| {
                order.instrument.0 == id.0
                    && order.side == side
                    && worst.is_some_and(|worst| !side.is_better(worst.price_e9, order.price_e9))
            };
            let rows = |orders: &Vec<OrderView>| {
                let shown = orders.iter().filter(is_shown);
                shown.map(|order| (order.order_id, order.price_e9, order.size)).collect::<Vec<OrderEntry>>()
            };
            orders.as_ref().map(rows)
        };
        InstrumentBook {
            symbol: instrument.symbol.clone(),
            instrument_id: id.0,
            channel: config.id.0,
            feed: config.feed.name(),
            session: channel.position().map(|(session, _)| format!("{} #{}", session.date, session.restart)),
            sequence: channel.position().map(|(_, expected)| expected.0.saturating_sub(1)),
            state: state_text(channel.state()),
            bids: entries(&book.bids),
            asks: entries(&book.asks),
            bid_orders: orders_of(Side::Bid, book.bids.last()),
            ask_orders: orders_of(Side::Ask, book.asks.last()),
            suspect: book.is_suspect,
            volume: instrument.volume,
            trades: instrument.trades,
        }
    });
    Ok(books.collect())
}

fn state_text(state: ChannelState) -> String {
    format!("{state:?}").to_lowercase()
}

/// An error of whoever takes the output, as the replay passes it on.
fn output_error(source: io::Error) -> OfflineError {
    OfflineError::Output { path: PathBuf::from("standard output"), source }
}
