//! IEX DEEP 1.0: applies price levels to books and turns completed events into records.

use dbn::BidAskPair;

use super::{
    ChannelConfig, REQUEST_BYTES_MAX, SchemaSet,
    copy::{BOOK_LEVELS_MAX, CopyExtent, CopyFault, CoreCounts, FieldReader, ReceivedCopy, TouchedEntry},
    feed_core::{ApplyOutcome, FeedCore, InstrumentFault},
    iex::IexCommon,
    tops::trade_of,
};
use crate::{
    book::{BookFaultCounts, BookMarks, BookSnapshot, Change, InstrumentIndex, LevelChange, Side, levels::LevelBooks},
    normalise::records::{Action, MBP_LEVELS, MbpLevels, RecordContext, RecordEvent, Records, e9_from_e4},
    transport::{VenueSession, iextp},
    venue::iex::{
        admin::TradeReport,
        deep::{Message, PriceLevelUpdate},
    },
};
use mdgw_wire::{
    drop_reason::DropReason,
    identity::{InstrumentId, Sequence, Session},
};

/// Books, instruments and records of one DEEP channel.
#[derive(Debug)]
pub(super) struct DeepCore {
    iex: IexCommon,
    books: LevelBooks,
    /// Open events, at most one per instrument. IEX completes one event after the other, so a handful is plenty. Of
    /// an event that does not fit, only the last message counts.
    open_events: Vec<OpenEvent>,
}

/// An event whose last message has not been received yet. Its book must not be published.
#[derive(Debug)]
struct OpenEvent {
    instrument: InstrumentIndex,
    /// The book before the event.
    levels_before: MbpLevels,
    /// Whether the book was suspect before the event.
    was_suspect_or_crossed: bool,
    /// The best level that the event has touched so far.
    depth_min: u32,
}

/// Most open events.
const OPEN_EVENTS_MAX: usize = 64;
/// Event flags, bit 0: the event is complete.
const EVENT_COMPLETE: u8 = 1;

impl DeepCore {
    pub(super) fn new(config: &ChannelConfig) -> Self {
        Self {
            iex: IexCommon::new(config),
            books: LevelBooks::new(config.books),
            open_events: Vec::with_capacity(OPEN_EVENTS_MAX),
        }
    }

    fn level(&mut self, side: Side, update: &PriceLevelUpdate, sequence: Sequence) -> Result<ApplyOutcome, DropReason> {
        let (instrument, context) =
            self.iex.context(update.symbol, update.timestamp_ns.get(), sequence).inspect_err(|reason| {
                // An instrument that cannot be inserted has no book here. Any other instrument may lack this level
                // now.
                if *reason == DropReason::FieldInvalid {
                    self.books.mark_all_suspect();
                }
            })?;
        let is_complete = update.event_flags & EVENT_COMPLETE != 0;
        let wants_levels = self.iex.wants(SchemaSet::MBP_1) || self.iex.wants(SchemaSet::MBP_10);
        let open = self.open_events.iter().position(|event| event.instrument == instrument);
        if !is_complete && open.is_none() && self.open_events.len() < OPEN_EVENTS_MAX {
            let levels_before =
                if wants_levels { MbpLevels::of(&self.books.view(instrument)) } else { MbpLevels::default() };
            let was_suspect_or_crossed = self.is_suspect_or_crossed(instrument);
            self.open_events.push(OpenEvent { instrument, levels_before, was_suspect_or_crossed, depth_min: u32::MAX });
        }

        let price_e9 = e9_from_e4(update.price_e4.get());
        let set = self.books.set_level(instrument, side, price_e9, update.size.get());
        let mut fault = match &set {
            Ok(change) => change.fault,
            Err(fault) => Some(*fault),
        };
        let depth = set.as_ref().map_or(u32::MAX, |change| change.depth);
        let depth_min = match self.open_events.iter_mut().find(|event| event.instrument == instrument) {
            Some(event) => {
                event.depth_min = event.depth_min.min(depth);
                event.depth_min
            }
            None => depth,
        };
        if is_complete {
            self.open_events.retain(|event| event.instrument != instrument);
            let was_suspect = self.books.view(instrument).is_suspect();
            let crossed = self.books.check_crossed(instrument);
            if crossed.is_some() && !was_suspect {
                // A crossed book is suspect only while it is crossed: see `is_suspect_or_crossed`.
                self.books.clear_suspect(instrument);
            }
            fault = fault.or(crossed);
            // If the last message was rejected, the event still ends, and its earlier levels have changed the book.
            let event = set.map_or_else(|_| refused_event(side, price_e9), |change| record_event(&change));
            self.push_depth(&context, instrument, &event, depth_min);
        }
        Ok(ApplyOutcome {
            suspect: self.is_suspect_or_crossed(instrument),
            fault: fault.map(|kind| InstrumentFault { kind, instrument }),
            ..ApplyOutcome::default()
        })
    }

    /// Whether the book is suspect, or currently crossed. The venue sends each level with its whole size, so an
    /// uncrossed book is correct again. In a book by order, an order that should be gone may still rest.
    fn is_suspect_or_crossed(&self, instrument: InstrumentIndex) -> bool {
        let view = self.books.view(instrument);
        let is_crossed = match (view.top(Side::Bid), view.top(Side::Ask)) {
            (Some(bid), Some(ask)) => bid.price_e9 > ask.price_e9,
            _ => false,
        };
        is_crossed || view.is_suspect()
    }

    /// The book at the end of an event, if the event changed its published levels.
    fn push_depth(
        &mut self,
        context: &RecordContext,
        instrument: InstrumentIndex,
        event: &RecordEvent,
        depth_min: u32,
    ) {
        if self.iex.wants(SchemaSet::MBP_1) && depth_min == 0 {
            let top = MbpLevels::top_of(&self.books.view(instrument));
            self.iex.records.push(&context.mbp_1(event, top));
        }
        if self.iex.wants(SchemaSet::MBP_10) && (depth_min as usize) < MBP_LEVELS {
            let mbp_levels = MbpLevels::of(&self.books.view(instrument));
            self.iex.records.push(&context.mbp_10(event, mbp_levels));
        }
    }

    fn trade(&mut self, trade: &TradeReport, sequence: Sequence) -> Result<ApplyOutcome, DropReason> {
        let (instrument, context) = self.iex.context(trade.symbol, trade.timestamp_ns.get(), sequence)?;
        let event = trade_of(trade);
        if self.iex.wants(SchemaSet::TRADES) {
            self.iex.records.push(&context.trade(&event));
        }
        // During an event, the book before the event is published.
        let open = self.open_events.iter().find(|event| event.instrument == instrument);
        let suspect = open.map_or_else(|| self.is_suspect_or_crossed(instrument), |event| event.was_suspect_or_crossed);
        if self.iex.wants(SchemaSet::MBP_1) || self.iex.wants(SchemaSet::MBP_10) {
            let levels_before =
                open.map_or_else(|| MbpLevels::of(&self.books.view(instrument)), |event| event.levels_before.clone());
            if self.iex.wants(SchemaSet::MBP_1) {
                self.iex.records.push(&context.mbp_1(&event, levels_before.top()));
            }
            if self.iex.wants(SchemaSet::MBP_10) {
                self.iex.records.push(&context.mbp_10(&event, levels_before));
            }
        }
        Ok(ApplyOutcome { suspect, ..ApplyOutcome::default() })
    }
}

impl FeedCore for DeepCore {
    type Transport = iextp::Deep;

    fn begin_session(&mut self, _session: Session) {
        self.iex.begin_session();
        self.books.clear();
        self.open_events.clear();
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
            Message::PriceLevelUpdateBuy(update) => self.level(Side::Bid, update, sequence),
            Message::PriceLevelUpdateSell(update) => self.level(Side::Ask, update, sequence),
            Message::TradeReport(trade) => self.trade(trade, sequence),
            Message::SecurityEvent(event) => {
                // End of the opening or closing process; DBN has no record for it.
                self.iex.context(event.symbol, event.timestamp_ns.get(), sequence)?;
                Ok(ApplyOutcome::default())
            }
            Message::Admin(admin) => self.iex.admin(&admin, sequence),
        }
    }

    fn records(&self) -> &Records {
        &self.iex.records
    }

    fn on_gap(&mut self) {
        self.books.mark_all_suspect();
        self.open_events.clear();
    }

    /// IEX has no request for a range of messages.
    fn write_request(&self, _: VenueSession, _: Sequence, _: u64, _: &mut [u8; REQUEST_BYTES_MAX]) -> Option<usize> {
        None
    }

    fn book(&self, instrument: InstrumentId, depth: usize) -> BookSnapshot {
        self.iex.index_of(instrument).map_or_else(BookSnapshot::default, |index| BookSnapshot {
            is_suspect: self.is_suspect_or_crossed(index),
            ..BookSnapshot::of(&self.books.view(index), depth)
        })
    }

    fn faults(&self) -> &BookFaultCounts {
        self.books.faults()
    }

    fn memory_bytes(&self) -> usize {
        self.books.memory_bytes()
    }

    fn copy_extent(&self) -> CopyExtent {
        CopyExtent { books: self.iex.instrument_count(), orders: 0 }
    }

    /// Symbol, marks, levels of each side with their count, and the open event's book before it.
    fn write_book(&self, index: InstrumentIndex, out: &mut Vec<u8>) -> Result<(), CopyFault> {
        let Some(symbol) = self.iex.symbol(index) else { return Ok(()) };
        let view = self.books.view(index);
        let level_count = Side::BOTH.into_iter().fold(0, |sum, side| sum + view.level_count(side) as usize);
        if level_count > BOOK_LEVELS_MAX {
            return Err(CopyFault::BookTooDeep);
        }
        out.extend(symbol);
        out.push(self.books.marks(index).to_bits());
        for side in Side::BOTH {
            out.extend(view.level_count(side).to_le_bytes());
            for level in view.levels(side) {
                out.extend(level.price_e9.to_le_bytes());
                out.extend(level.size.to_le_bytes());
            }
        }
        let Some(event) = self.open_events.iter().find(|event| event.instrument == index) else { return Ok(()) };
        out.push(event.was_suspect_or_crossed.into());
        out.extend(event.depth_min.to_le_bytes());
        for BidAskPair { bid_px, ask_px, bid_sz, ask_sz, bid_ct, ask_ct } in &event.levels_before.0 {
            for price in [bid_px, ask_px] {
                out.extend(price.to_le_bytes());
            }
            for number in [bid_sz, ask_sz, bid_ct, ask_ct] {
                out.extend(number.to_le_bytes());
            }
        }
        Ok(())
    }

    fn visit_touched(&self, message: &[u8], visit: &mut dyn FnMut(TouchedEntry)) {
        self.iex.visit_touched(message, visit);
    }

    fn counts(&self) -> CoreCounts {
        let count = u32::try_from(self.iex.instrument_count()).unwrap_or(u32::MAX);
        CoreCounts {
            levels: self.books.level_count().into(),
            instruments: count,
            is_new_book_suspect: self.books.marks(InstrumentIndex(count)).is_suspect,
            ..CoreCounts::default()
        }
    }

    fn restore(&mut self, session: Session, received: &ReceivedCopy) -> Result<(), CopyFault> {
        self.begin_session(session);
        if received.counts.is_new_book_suspect {
            self.books.mark_all_suspect();
        }
        for (index, body) in &received.books {
            let mut rest = FieldReader(body);
            let index = self.iex.restore_instrument(*index, rest.array()?)?;
            let marks = rest.u8()?;
            if marks > 7 {
                return Err(CopyFault::Malformed);
            }
            for side in Side::BOTH {
                for _ in 0..rest.u32()? {
                    let (price_e9, size) = (rest.i64()?, rest.u32()?);
                    self.books.restore_level(index, side, price_e9, size).map_err(|_| CopyFault::NoRoom)?;
                }
            }
            self.books.set_marks(index, BookMarks::from_bits(marks));
            if !rest.0.is_empty() {
                self.open_events.push(OpenEvent::read(index, &mut rest)?);
            }
            rest.end()?;
        }
        if self.open_events.len() <= OPEN_EVENTS_MAX { Ok(()) } else { Err(CopyFault::Malformed) }
    }
}

impl OpenEvent {
    fn read(instrument: InstrumentIndex, rest: &mut FieldReader<'_>) -> Result<Self, CopyFault> {
        let (was_suspect_or_crossed, depth_min) = (rest.flag()?, rest.u32()?);
        let mut levels_before = MbpLevels::default();
        for pair in &mut levels_before.0 {
            *pair = BidAskPair {
                bid_px: rest.i64()?,
                ask_px: rest.i64()?,
                bid_sz: rest.u32()?,
                ask_sz: rest.u32()?,
                bid_ct: rest.u32()?,
                ask_ct: rest.u32()?,
            };
        }
        Ok(Self { instrument, levels_before, was_suspect_or_crossed, depth_min })
    }
}

/// The change of a completed event: the level of its last message.
fn record_event(change: &Change) -> RecordEvent {
    let action = match change.level_change {
        LevelChange::Added => Action::Add,
        LevelChange::Changed => Action::Modify,
        LevelChange::Removed => Action::Cancel,
    };
    RecordEvent {
        action,
        side: Some(change.side),
        price_e9: change.price_e9,
        size: change.size,
        order_id: 0,
        depth: change.depth,
        flags: dbn::flags::LAST | dbn::flags::MBP,
    }
}

/// The change where the book rejected the last message.
fn refused_event(side: Side, price_e9: i64) -> RecordEvent {
    RecordEvent {
        action: Action::Modify,
        side: Some(side),
        price_e9,
        size: 0,
        order_id: 0,
        depth: u32::MAX,
        flags: dbn::flags::LAST | dbn::flags::MBP,
    }
}
