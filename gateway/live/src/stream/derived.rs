//! Market by price and trades of a channel that publishes neither: from the mbo records of one message and the books.
//!
//! The records equal those of a channel that publishes the schemas itself, which `feeds` makes from the venue's messages
//! (`feeds/src/channel/itch.rs`). The mbo records of a message tell which message it was:
//!
//! | mbo records | message |
//! |---|---|
//! | `A` | order added |
//! | `T` `F` `C`, or `F` `C` | order executed; without `T` not printed |
//! | `C` | order cancelled, in part or whole |
//! | `C` without LAST, `A` | order replaced |
//! | `T` | trade against a hidden order, or a cross |

use dbn::{BidAskPair, FlagSet, Mbp1Msg, Mbp10Msg, RecordHeader, TradeMsg, enums::rtype};

use mdgw_log_books::{
    books::{Books, Mbo},
    record::c_char_of,
};

use super::{chunk::Chunk, intervals::Intervals};
use crate::schema::Schemas;

/// Levels of an mbp-10 record.
const LEVELS: usize = 10;
/// Flags that the consumer's edge sets on each record of a frame.
const EDGE_FLAGS: u8 = dbn::flags::MAYBE_BAD_BOOK | dbn::flags::BAD_TS_RECV;

/// Where the records of a message go.
pub(crate) struct Output<'a> {
    /// The chunk in progress.
    pub(crate) chunk: &'a mut Chunk,
    /// The schemas to derive.
    pub(crate) wanted: Schemas,
    /// Bars and samples.
    pub(crate) intervals: &'a mut Intervals,
    /// Flags besides those of the records: the books may lack orders from before the log's beginning.
    pub(crate) extra_flags: u8,
}

/// Applies the mbo records of one message to the books, and appends what follows from them.
pub(crate) fn derive(books: &mut Books, message: &[Mbo], out: &mut Output<'_>) {
    // The clear before an instrument's first record has no effect on an empty book.
    let mut rest = message;
    while let [first, others @ ..] = rest {
        let taken = match (first.action, others) {
            (b'T', [fill, cancel, ..]) if fill.action == b'F' && cancel.action == b'C' => {
                execute(books, Some(first), cancel, out);
                3
            }
            (b'F', [cancel, ..]) if cancel.action == b'C' => {
                execute(books, None, cancel, out);
                2
            }
            (b'T', _) => {
                trade(books, first, None, out);
                1
            }
            (b'C', [add, ..]) if add.action == b'A' && !first.is_last() => {
                replace(books, first, add, out);
                2
            }
            (b'A', _) => {
                if let Ok(change) = books.add(first) {
                    push_depth(books, first, change.depth, out);
                }
                1
            }
            (b'C', _) => {
                cancel(books, first, out);
                1
            }
            _ => 1,
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
}

fn cancel(books: &mut Books, cancel: &Mbo, out: &mut Output<'_>) {
    if let Ok(change) = books.cancel(cancel) {
        push_depth(books, cancel, change.depth, out);
    }
}

fn execute(books: &mut Books, trade_record: Option<&Mbo>, cancel: &Mbo, out: &mut Output<'_>) {
    let levels_before = trade_record.is_some().then(|| books.levels::<LEVELS>(cancel.instrument()));
    let Ok(change) = books.cancel(cancel) else { return };
    if let (Some(record), Some(levels)) = (trade_record, &levels_before) {
        push_trade(record, levels, change.depth, Some(change.depth), out);
    }
    push_depth(books, cancel, change.depth, out);
}

fn trade(books: &Books, record: &Mbo, following_depth: Option<u32>, out: &mut Output<'_>) {
    let levels = books.levels::<LEVELS>(record.instrument());
    push_trade(record, &levels, 0, following_depth, out);
}

fn replace(books: &mut Books, cancel: &Mbo, add: &Mbo, out: &mut Output<'_>) {
    let Ok(replaced) = books.replace(cancel, add) else { return };
    let Ok(added) = replaced.added else {
        return push_depth(books, cancel, replaced.removed.depth, out);
    };
    // One record for the whole event, from the half that touched the published levels.
    let event_for = |is_visible: fn(u32) -> bool| {
        if is_visible(added.depth) {
            Some((add, added.depth))
        } else {
            is_visible(replaced.removed.depth).then_some((cancel, replaced.removed.depth))
        }
    };
    if let Some((event, depth)) = event_for(is_top) {
        push_mbp_1(event, depth, dbn::flags::LAST, books.top(event.instrument()), out);
    }
    if let Some((event, depth)) = event_for(is_within_levels) {
        push_mbp_10(event, depth, dbn::flags::LAST, || books.levels(event.instrument()), out);
    }
}

/// The book after a change at that depth, if the change is visible.
fn push_depth(books: &Books, event: &Mbo, depth: u32, out: &mut Output<'_>) {
    if is_top(depth) {
        push_mbp_1(event, depth, dbn::flags::LAST, books.top(event.instrument()), out);
    }
    if is_within_levels(depth) {
        push_mbp_10(event, depth, dbn::flags::LAST, || books.levels(event.instrument()), out);
    }
}

/// A trade in all schemas with trades, with the levels before its effect.
fn push_trade(
    record: &Mbo,
    levels: &[BidAskPair; LEVELS],
    depth: u32,
    following_depth: Option<u32>,
    out: &mut Output<'_>,
) {
    out.intervals.trade(record, out.extra_flags);
    if out.wanted.contains(Schemas::TRADES) {
        let trade = TradeMsg {
            hd: header::<TradeMsg>(record, rtype::MBP_0),
            price: record.price,
            size: record.size,
            action: c_char_of(record.action),
            side: c_char_of(record.side),
            flags: flags(record, dbn::flags::LAST, out),
            depth: 0,
            ts_recv: record.ts_recv,
            ts_in_delta: record.ts_in_delta,
            sequence: record.sequence,
        };
        out.chunk.push(trade.as_ref(), Schemas::TRADES);
    }
    let flags_if = |another_follows: bool| if another_follows { 0 } else { dbn::flags::LAST };
    let top = levels[0].clone();
    push_mbp_1(record, depth, flags_if(following_depth.is_some_and(is_top)), top, out);
    let flags_10 = flags_if(following_depth.is_some_and(is_within_levels));
    push_mbp_10(record, depth, flags_10, || levels.clone(), out);
}

fn push_mbp_1(event: &Mbo, depth: u32, last: u8, top: BidAskPair, out: &mut Output<'_>) {
    let is_trade = event.action == b'T';
    if !is_trade {
        out.intervals.quote(event, &top, out.extra_flags);
    }
    let schemas = Schemas::of_record(rtype::MBP_1, is_trade);
    if out.wanted.and(schemas).is_empty() {
        return;
    }
    let record = Mbp1Msg {
        hd: header::<Mbp1Msg>(event, rtype::MBP_1),
        price: event.price,
        size: event.size,
        action: c_char_of(event.action),
        side: c_char_of(event.side),
        flags: flags(event, last, out),
        depth: depth_byte(depth),
        ts_recv: event.ts_recv,
        ts_in_delta: event.ts_in_delta,
        sequence: event.sequence,
        levels: [top],
    };
    out.chunk.push(record.as_ref(), schemas);
}

fn push_mbp_10(event: &Mbo, depth: u32, last: u8, levels: impl FnOnce() -> [BidAskPair; LEVELS], out: &mut Output<'_>) {
    if !out.wanted.contains(Schemas::MBP_10) {
        return;
    }
    let record = Mbp10Msg {
        hd: header::<Mbp10Msg>(event, rtype::MBP_10),
        price: event.price,
        size: event.size,
        action: c_char_of(event.action),
        side: c_char_of(event.side),
        flags: flags(event, last, out),
        depth: depth_byte(depth),
        ts_recv: event.ts_recv,
        ts_in_delta: event.ts_in_delta,
        sequence: event.sequence,
        levels: levels(),
    };
    out.chunk.push(record.as_ref(), Schemas::MBP_10);
}

fn header<R: dbn::HasRType>(event: &Mbo, kind: u8) -> RecordHeader {
    RecordHeader::new::<R>(kind, event.publisher_id, event.instrument_id, event.ts_event)
}

fn flags(event: &Mbo, last: u8, out: &Output<'_>) -> FlagSet {
    FlagSet::new(event.flags & EDGE_FLAGS | last | out.extra_flags)
}

fn is_top(depth: u32) -> bool {
    depth == 0
}

fn is_within_levels(depth: u32) -> bool {
    (depth as usize) < LEVELS
}

fn depth_byte(depth: u32) -> u8 {
    u8::try_from(depth).unwrap_or(u8::MAX)
}
