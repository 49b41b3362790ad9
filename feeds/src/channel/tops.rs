//! IEX TOPS 1.6: quotes and trades into records.

use dbn::{BidAskPair, UNDEF_PRICE};

use super::{
    ChannelConfig, REQUEST_BYTES_MAX, SchemaSet,
    copy::{CopyExtent, CopyFault, CoreCounts, FieldReader, ReceivedCopy, TouchedEntry},
    feed_core::{ApplyOutcome, FeedCore, InstrumentFault},
    iex::IexCommon,
};
use crate::{
    book::{BookFault, BookFaultCounts, BookSnapshot, InstrumentIndex, Level, Side},
    normalise::records::{Action, RecordEvent, Records, e9_from_e4, size_u32},
    transport::{VenueSession, iextp},
    venue::iex::{
        admin::TradeReport,
        tops::{Message, QuoteUpdate},
    },
};
use mdgw_wire::{
    drop_reason::DropReason,
    identity::{InstrumentId, Sequence, Session},
};

/// Quotes, instruments and records of one TOPS channel.
#[derive(Debug)]
pub(super) struct TopsCore {
    iex: IexCommon,
    quotes: Vec<Quote>,
    faults: BookFaultCounts,
}

/// The quote of one instrument; published with its trades.
#[derive(Clone, Debug, Default)]
struct Quote {
    /// An empty side is undefined.
    pair: BidAskPair,
    /// Quotes may have been missed since, or the quote is crossed. The next quote is complete and clears the mark.
    is_suspect: bool,
}

/// DBN flag of the last record that a message produced for its instrument.
const LAST: u8 = dbn::flags::LAST;
/// DBN flag of a record that is a quote and not an order.
const TOB: u8 = dbn::flags::TOB;

impl TopsCore {
    pub(super) fn new(config: &ChannelConfig) -> Self {
        Self {
            iex: IexCommon::new(config),
            quotes: vec![Quote::default(); config.books.instruments_max as usize],
            faults: BookFaultCounts::default(),
        }
    }

    fn quote(&mut self, quote: &QuoteUpdate, sequence: Sequence) -> Result<ApplyOutcome, DropReason> {
        let (instrument, context) = self.iex.context(quote.symbol, quote.timestamp_ns.get(), sequence)?;
        let (bid_px, bid_sz) = side(quote.bid_price_e4.get(), quote.bid_size.get());
        let (ask_px, ask_sz) = side(quote.ask_price_e4.get(), quote.ask_size.get());
        let pair = BidAskPair { bid_px, ask_px, bid_sz, ask_sz, bid_ct: 0, ask_ct: 0 };
        let is_crossed = bid_px != UNDEF_PRICE && ask_px != UNDEF_PRICE && bid_px > ask_px;
        if let Some(slot) = self.quotes.get_mut(instrument.0 as usize) {
            *slot = Quote { pair: pair.clone(), is_suspect: is_crossed };
        }
        if is_crossed {
            self.faults.count(BookFault::Crossed);
        }

        if self.iex.wants(SchemaSet::MBO) {
            for (quoted, price_e9, size, flags) in
                [(Side::Bid, bid_px, bid_sz, TOB), (Side::Ask, ask_px, ask_sz, TOB | LAST)]
            {
                self.iex.records.push(&context.mbo(&RecordEvent {
                    action: Action::Add,
                    side: Some(quoted),
                    price_e9,
                    size,
                    order_id: 0,
                    depth: 0,
                    flags,
                }));
            }
        }
        if self.iex.wants(SchemaSet::MBP_1) {
            // Both sides may have changed, so the record has no side. Price and size are the bid's, else the ask's.
            let (price_e9, size) = if bid_px == UNDEF_PRICE { (ask_px, ask_sz) } else { (bid_px, bid_sz) };
            let event =
                RecordEvent { action: Action::Modify, side: None, price_e9, size, order_id: 0, depth: 0, flags: LAST };
            self.iex.records.push(&context.mbp_1(&event, pair));
        }
        let fault = is_crossed.then_some(InstrumentFault { kind: BookFault::Crossed, instrument });
        Ok(ApplyOutcome { suspect: is_crossed, fault, ..ApplyOutcome::default() })
    }

    fn trade(&mut self, trade: &TradeReport, sequence: Sequence) -> Result<ApplyOutcome, DropReason> {
        let (instrument, context) = self.iex.context(trade.symbol, trade.timestamp_ns.get(), sequence)?;
        let event = trade_of(trade);
        let Quote { pair, is_suspect } = self.quotes.get(instrument.0 as usize).cloned().unwrap_or_default();
        if self.iex.wants(SchemaSet::MBO) {
            self.iex.records.push(&context.mbo(&event));
        }
        if self.iex.wants(SchemaSet::TRADES) {
            self.iex.records.push(&context.trade(&event));
        }
        if self.iex.wants(SchemaSet::MBP_1) {
            self.iex.records.push(&context.mbp_1(&event, pair));
        }
        Ok(ApplyOutcome { suspect: is_suspect, ..ApplyOutcome::default() })
    }
}

impl FeedCore for TopsCore {
    type Transport = iextp::Tops;

    fn begin_session(&mut self, _session: Session) {
        self.iex.begin_session();
        self.quotes.fill(Quote::default());
    }

    fn prefetch(&self, _message: &[u8]) {}

    fn apply(&mut self, message: &[u8], sequence: Sequence) -> Result<ApplyOutcome, DropReason> {
        self.iex.records.clear();
        let message = Message::parse(message).inspect_err(|reason| {
            if *reason != DropReason::MessageTypeUnknown {
                self.on_gap();
            }
        })?;
        match message {
            Message::QuoteUpdate(quote) => self.quote(quote, sequence),
            Message::TradeReport(trade) => self.trade(trade, sequence),
            Message::Admin(admin) => self.iex.admin(&admin, sequence),
        }
    }

    fn records(&self) -> &Records {
        &self.iex.records
    }

    /// Every quote is complete, so a gap does not affect the quotes that follow. Until then no quote is published.
    fn on_gap(&mut self) {
        self.quotes.fill(Quote { pair: BidAskPair::default(), is_suspect: true });
    }

    /// IEX has no request for a range of messages.
    fn write_request(&self, _: VenueSession, _: Sequence, _: u64, _: &mut [u8; REQUEST_BYTES_MAX]) -> Option<usize> {
        None
    }

    fn book(&self, instrument: InstrumentId, depth: usize) -> BookSnapshot {
        let index = self.iex.index_of(instrument).and_then(|index| usize::try_from(index.0).ok());
        let Some(Quote { pair, is_suspect }) = index.and_then(|index| self.quotes.get(index)) else {
            return BookSnapshot::default();
        };
        let side = |price_e9, size| {
            let level = (price_e9 != UNDEF_PRICE).then_some(Level { price_e9, size, order_count: 0 });
            level.into_iter().take(depth).collect()
        };
        BookSnapshot {
            bids: side(pair.bid_px, pair.bid_sz),
            asks: side(pair.ask_px, pair.ask_sz),
            is_suspect: *is_suspect,
        }
    }

    fn faults(&self) -> &BookFaultCounts {
        &self.faults
    }

    fn memory_bytes(&self) -> usize {
        self.quotes.len() * size_of::<Quote>()
    }

    fn copy_extent(&self) -> CopyExtent {
        CopyExtent { books: self.iex.instrument_count(), orders: 0 }
    }

    /// Symbol, suspect mark, then price and size of bid and ask.
    fn write_book(&self, index: InstrumentIndex, out: &mut Vec<u8>) -> Result<(), CopyFault> {
        let (Some(symbol), Some(quote)) = (self.iex.symbol(index), self.quotes.get(index.0 as usize)) else {
            return Ok(());
        };
        out.extend(symbol);
        out.push(quote.is_suspect.into());
        let BidAskPair { bid_px, bid_sz, ask_px, ask_sz, .. } = quote.pair;
        for (price, size) in [(bid_px, bid_sz), (ask_px, ask_sz)] {
            out.extend(price.to_le_bytes());
            out.extend(size.to_le_bytes());
        }
        Ok(())
    }

    fn visit_touched(&self, message: &[u8], visit: &mut dyn FnMut(TouchedEntry)) {
        self.iex.visit_touched(message, visit);
    }

    fn counts(&self) -> CoreCounts {
        let count = self.iex.instrument_count();
        CoreCounts {
            instruments: u32::try_from(count).unwrap_or(u32::MAX),
            is_new_book_suspect: self.quotes.get(count).is_some_and(|quote| quote.is_suspect),
            ..CoreCounts::default()
        }
    }

    fn restore(&mut self, session: Session, received: &ReceivedCopy) -> Result<(), CopyFault> {
        self.begin_session(session);
        if received.counts.is_new_book_suspect {
            self.on_gap();
        }
        for (index, body) in &received.books {
            let mut rest = FieldReader(body);
            let index = self.iex.restore_instrument(*index, rest.array()?)?;
            let is_suspect = rest.flag()?;
            let (bid_px, bid_sz, ask_px, ask_sz) = (rest.i64()?, rest.u32()?, rest.i64()?, rest.u32()?);
            rest.end()?;
            let pair = BidAskPair { bid_px, ask_px, bid_sz, ask_sz, bid_ct: 0, ask_ct: 0 };
            *self.quotes.get_mut(index.0 as usize).ok_or(CopyFault::NoRoom)? = Quote { pair, is_suspect };
        }
        Ok(())
    }
}

/// The event of a trade report. IEX does not send the aggressor's side.
pub(super) fn trade_of(trade: &TradeReport) -> RecordEvent {
    RecordEvent {
        action: Action::Trade,
        side: None,
        price_e9: e9_from_e4(trade.price_e4.get()),
        size: size_u32(u64::from(trade.size.get())),
        order_id: 0,
        depth: 0,
        flags: LAST,
    }
}

/// Price and size of one side of a quote. Price 0 or size 0 means an empty side.
fn side(price_e4: i64, size: u32) -> (i64, u32) {
    if price_e4 == 0 || size == 0 { (UNDEF_PRICE, 0) } else { (e9_from_e4(price_e4), size) }
}
