//! Books of a capture at a given time: the gateway's own channels process the capture up to that time, then their books
//! are copied.
//!
//! Volume and trades are not part of a book; they are counted from the records that the channels publish. [`top`]
//! prints each change of the best bid and offer instead, also from the records.

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
    offline::{Event, OfflineError, ReplayDriver, ReplayDriverOptions, ReplayEnd, ReplayedChannel, StopPoint},
};

/// Options: which books, of which files, at which time.
#[derive(Clone, Debug, Default)]
pub struct BookOptions {
    /// Captures and day files; each adds lines.
    pub files: Vec<PathBuf>,
    /// Process this feed only.
    pub feed: Option<Feed>,
    /// Trading date, for input without one.
    pub date: Option<TradingDate>,
    /// Instruments by symbol; empty: all.
    pub symbols: Vec<String>,
    /// Time of the books.
    pub when: BookTime,
    /// Number of levels on each side; `None`: all.
    pub depth: Option<usize>,
    /// List individual orders instead of price levels.
    pub by_order: bool,
}

/// Time of a book.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BookTime {
    /// At the end of the capture.
    #[default]
    End,
    /// After everything captured up to and including this time.
    At(Moment),
    /// After a message.
    AfterMessage(StopPoint),
}

/// Books at a given time.
#[derive(Clone, Debug)]
pub struct BookSnapshot {
    /// The books, by symbol.
    pub books: Vec<InstrumentBook>,
    /// Errors that ended files early; everything before them is in the books.
    pub damages: Vec<String>,
}

/// One instrument's book.
#[derive(Clone, Debug, Serialize)]
pub struct InstrumentBook {
    /// Symbol of the instrument.
    pub symbol: String,
    /// Instrument id in records.
    pub instrument_id: u32,
    /// Number of its channel among those of the capture, from 0.
    pub channel: u16,
    /// Feed of the channel.
    pub feed: &'static str,
    /// Session of the channel.
    pub session: Option<String>,
    /// Sequence of the last message that was applied or declared missing.
    pub sequence: Option<u64>,
    /// State of the channel.
    pub state: String,
    /// Price in 1e-9, size, order count (0 if the feed does not report it); the best first.
    pub bids: Vec<Entry>,
    /// The same for the ask side.
    pub asks: Vec<Entry>,
    /// Order id, price in 1e-9, size; by priority within a price. Only if orders were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bid_orders: Option<Vec<OrderEntry>>,
    /// The same for the ask side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask_orders: Option<Vec<OrderEntry>>,
    /// Whether the book may differ from the venue's (suspect).
    pub suspect: bool,
    /// Shares traded in the captured part of the session.
    pub volume: u64,
    /// Number of trades.
    pub trades: u64,
}

/// Price in 1e-9, size, order count.
pub(crate) type Entry = (i64, u32, u32);
/// Order id, price in 1e-9, size.
pub(crate) type OrderEntry = (u64, i64, u32);

/// Errors of a book view.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// The capture can't be replayed.
    #[error(transparent)]
    Replay(#[from] OfflineError),
    /// A file cannot be opened.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Orders were requested of a feed that carries no individual orders.
    #[error("book: {0} carries no individual orders; use --by price")]
    NoOrders(Feed),
    /// No file contains the message.
    #[error("book: message {} is not in the files; {found}", .wanted.0)]
    NotReached {
        /// Sequence of the message that the caller asked for.
        wanted: Sequence,
        /// Sessions in the files and how far they go.
        found: String,
    },
}

/// Returns the books at the requested time. `on_event` gets progress events and may break off.
///
/// # Errors
/// See [`BookError`]. Damage inside a capture is not an error: the snapshot lists it.
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
    for (replayed, trades) in driver.channels().zip(tally.channels()) {
        books.extend(books_of(options, replayed, trades)?);
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

/// Checks that the files contain a known feed. Damage before any feed was recognised is an error. Without packets there
/// are no books.
fn check_not_empty(options: &BookOptions, driver: &ReplayDriver, merge: &CaptureMerge) -> Result<(), OfflineError> {
    let begins_later =
        || matches!(options.when, BookTime::At(_)) && merge.files().any(|file| file.counts().datagrams > 0);
    if driver.channels().len() > 0 || !merge.damages().is_empty() || (driver.counts().datagrams == 0 && begins_later())
    {
        return Ok(());
    }
    match driver.counts().datagrams {
        0 => Err(OfflineError::NoPackets { files: options.files.clone() }),
        datagrams => Err(OfflineError::NothingRecognised {
            wanted: options.feed.map_or_else(|| "known feed".to_owned(), |feed| feed.to_string()),
            datagrams,
        }),
    }
}

fn damages(merge: &CaptureMerge) -> Vec<String> {
    merge.damages().iter().map(|damage| format!("{damage}: {}", damage.fault)).collect()
}

fn books_of(
    options: &BookOptions,
    replayed: ReplayedChannel<'_>,
    trades: &trade_counts::ChannelTrades,
) -> Result<Vec<InstrumentBook>, BookError> {
    let channel = replayed.channel();
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

/// Passes an error of the output's consumer through the replay.
fn output_error(source: io::Error) -> OfflineError {
    OfflineError::Output { path: PathBuf::from("standard output"), source }
}
