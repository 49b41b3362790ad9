//! Nasdaq TotalView-ITCH 5.0: applies messages to books by order and turns book changes into records.

use dbn::{StatType, StatusAction, StatusReason, TriState, UNDEF_PRICE};

use super::{
    ChannelConfig, REQUEST_BYTES_MAX, SchemaSet,
    copy::{CopyExtent, CopyFault, CoreCounts, ReceivedCopy, TouchedEntry},
    feed_core::{ApplyOutcome, FeedCore, InstrumentFault, MessageNotice},
};
use crate::{
    book::{
        BookFault, BookFaultCounts, BookMarks, BookSnapshot, Change, InstrumentIndex, OrderView, Side,
        orders::OrderBooks, store::OrderStore,
    },
    normalise::{
        records::{
            Action, MBP_LEVELS, MbpLevels, RecordContext, RecordEvent, Records, c_chars, e9_from_e4,
            price_or_undefined, size_u32,
        },
        status,
        symbols::trim,
    },
    transport::{
        VenueSession,
        moldudp64::{self, MoldUdp64},
    },
    venue::nasdaq::itch50::{self, Message},
};
use mdgw_wire::{
    drop_reason::DropReason,
    identity::{Feed, InstrumentId, Sequence, Session},
};

/// Books, symbols and records of one ITCH channel.
#[derive(Debug)]
pub(super) struct ItchCore<S: OrderStore> {
    books: OrderBooks<S>,
    records: Records,
    schemas: SchemaSet,
    feed: Feed,
    midnight_ns: u64,
    /// Instruments whose symbol mapping was published in this session, one bit each.
    mapped: BitSet,
    /// Instruments whose clear record was published in this session, one bit each.
    cleared: BitSet,
}

/// Stock locates are 16 bits wide.
const LOCATES: usize = 1 << 16;
/// A message's time is less than this after midnight.
const NS_PER_DAY: u64 = 86_400_000_000_000;
/// DBN flag of the last record that a message produced for its instrument.
const LAST: u8 = dbn::flags::LAST;

impl<S: OrderStore> ItchCore<S> {
    pub(super) fn new(config: &ChannelConfig) -> Self {
        Self {
            books: OrderBooks::new(config.books),
            records: Records::new(),
            schemas: config.schemas,
            feed: config.feed,
            midnight_ns: 0,
            mapped: BitSet::new(LOCATES),
            cleared: BitSet::new(LOCATES),
        }
    }

    fn wants(&self, schema: SchemaSet) -> bool {
        self.schemas.contains(schema)
    }

    fn wants_depth(&self) -> bool {
        self.wants(SchemaSet::MBP_1) || self.wants(SchemaSet::MBP_10)
    }

    /// Publishes an instrument's symbol mapping once per session, before its first record.
    fn map_symbol(&mut self, context: &RecordContext, locate: InstrumentIndex, symbol: &[u8; 8]) {
        if self.mapped.insert(locate.0) {
            self.records.push(&context.mapping(trim(symbol)));
        }
    }

    /// An instrument's first record of a session clears its book, so that consumers discard the levels of the
    /// previous session.
    fn mbo(&mut self, context: &RecordContext, locate: InstrumentIndex, event: &RecordEvent) {
        if !self.wants(SchemaSet::MBO) {
            return;
        }
        if self.cleared.insert(locate.0) {
            self.records.push(&context.mbo(&RecordEvent {
                action: Action::Clear,
                side: None,
                price_e9: UNDEF_PRICE,
                size: 0,
                order_id: 0,
                depth: 0,
                flags: 0,
            }));
        }
        self.records.push(&context.mbo(event));
    }

    /// The published levels of the current book.
    fn mbp_levels(&self, locate: InstrumentIndex) -> MbpLevels {
        MbpLevels::of(&self.books.view(locate))
    }

    /// Market-by-price records of an event, for a change that touched the published levels.
    fn push_depth(&mut self, context: &RecordContext, locate: InstrumentIndex, event: &RecordEvent, best_depth: u32) {
        if self.wants(SchemaSet::MBP_1) && best_depth == 0 {
            let top = MbpLevels::top_of(&self.books.view(locate));
            self.records.push(&context.mbp_1(event, top));
        }
        if self.wants(SchemaSet::MBP_10) && is_within_mbp(best_depth) {
            let mbp_levels = self.mbp_levels(locate);
            self.records.push(&context.mbp_10(event, mbp_levels));
        }
    }

    /// A trade in every schema with trades. `levels_before` is the book before the trade's effect. `following_depth` is
    /// the depth of the change that follows in the same message, if any.
    fn trade(
        &mut self,
        context: &RecordContext,
        event: &RecordEvent,
        levels_before: Option<&MbpLevels>,
        following_depth: Option<u32>,
    ) {
        let flags_if = |another_follows: bool| if another_follows { 0 } else { LAST };
        if self.wants(SchemaSet::TRADES) {
            self.records.push(&context.trade(&RecordEvent { flags: LAST, ..*event }));
        }
        let Some(levels_before) = levels_before else { return };
        if self.wants(SchemaSet::MBP_1) {
            let flags = flags_if(following_depth == Some(0));
            self.records.push(&context.mbp_1(&RecordEvent { flags, ..*event }, levels_before.top()));
        }
        if self.wants(SchemaSet::MBP_10) {
            let flags = flags_if(following_depth.is_some_and(is_within_mbp));
            self.records.push(&context.mbp_10(&RecordEvent { flags, ..*event }, levels_before.clone()));
        }
    }

    fn add(&mut self, context: &RecordContext, message: &itch50::AddOrder) -> ApplyOutcome {
        let locate = InstrumentIndex(u32::from(message.stock_locate.get()));
        self.map_symbol(context, locate, &message.stock);
        let added = self.books.add(
            locate,
            message.order_reference_number.get(),
            side_of(message.buy_sell_indicator),
            e9_from_e4(i64::from(message.price_e4.get())),
            message.shares.get(),
        );
        match added {
            Ok(change) => {
                let event = record_event(Action::Add, &change, LAST);
                self.mbo(context, locate, &event);
                self.push_depth(context, locate, &event, change.depth);
                self.applied(locate, change.fault)
            }
            Err(fault) => self.applied(locate, Some(fault)),
        }
    }

    /// An execution against a resting order, at its own price or at `execution_price_e9`. A non-printable execution
    /// is no trade on the tape.
    fn execute(
        &mut self,
        context: &RecordContext,
        locate: InstrumentIndex,
        order_id: u64,
        shares: u32,
        execution_price_e9: Option<i64>,
        is_printable: bool,
    ) -> ApplyOutcome {
        let levels_before = (is_printable && self.wants_depth()).then(|| self.mbp_levels(locate));
        let change = match self.books.execute(locate, order_id, shares) {
            Ok(change) => change,
            Err(fault) => return self.applied(locate, Some(fault)),
        };
        let price_e9 = execution_price_e9.unwrap_or(change.price_e9);
        let cancel = record_event(Action::Cancel, &change, LAST);
        let fill = RecordEvent { action: Action::Fill, price_e9, flags: 0, ..cancel };
        let trade = RecordEvent { action: Action::Trade, side: Some(change.side.opposite()), order_id: 0, ..fill };
        if is_printable {
            self.mbo(context, locate, &trade);
        }
        self.mbo(context, locate, &fill);
        self.mbo(context, locate, &cancel);
        if is_printable {
            self.trade(context, &trade, levels_before.as_ref(), Some(change.depth));
        }
        self.push_depth(context, locate, &cancel, change.depth);
        self.applied(locate, change.fault)
    }

    fn apply_cancel(
        &mut self,
        context: &RecordContext,
        locate: InstrumentIndex,
        cancelled: Result<Change, BookFault>,
    ) -> ApplyOutcome {
        match cancelled {
            Ok(change) => {
                let event = record_event(Action::Cancel, &change, LAST);
                self.mbo(context, locate, &event);
                self.push_depth(context, locate, &event, change.depth);
                self.applied(locate, change.fault)
            }
            Err(fault) => self.applied(locate, Some(fault)),
        }
    }

    /// Cancel and add, not modify: the new order has a new id and a new queue position.
    fn replace(&mut self, context: &RecordContext, message: &itch50::OrderReplace) -> ApplyOutcome {
        let locate = InstrumentIndex(u32::from(message.stock_locate.get()));
        let replaced = self.books.replace(
            locate,
            message.original_order_reference_number.get(),
            message.new_order_reference_number.get(),
            e9_from_e4(i64::from(message.price_e4.get())),
            message.shares.get(),
        );
        let replaced = match replaced {
            Ok(replaced) => replaced,
            Err(fault) => return self.applied(locate, Some(fault)),
        };
        let removed = &replaced.removed;
        match &replaced.added {
            Ok(added) => {
                let cancel = record_event(Action::Cancel, removed, 0);
                let add = record_event(Action::Add, added, LAST);
                self.mbo(context, locate, &cancel);
                self.mbo(context, locate, &add);
                // One market-by-price record for the whole event, from the half that touched the published levels.
                self.push_replacement_depth(context, locate, (removed, cancel), (added, add));
                self.applied(locate, removed.fault.or(added.fault))
            }
            Err(fault) => {
                let cancel = record_event(Action::Cancel, removed, LAST);
                self.mbo(context, locate, &cancel);
                self.push_depth(context, locate, &cancel, removed.depth);
                self.applied(locate, Some(*fault))
            }
        }
    }

    fn push_replacement_depth(
        &mut self,
        context: &RecordContext,
        locate: InstrumentIndex,
        (removed, cancel): (&Change, RecordEvent),
        (added, add): (&Change, RecordEvent),
    ) {
        let event_for = |is_visible: fn(u32) -> bool| {
            if is_visible(added.depth) {
                Some(add)
            } else {
                is_visible(removed.depth).then_some(RecordEvent { flags: LAST, ..cancel })
            }
        };
        if self.wants(SchemaSet::MBP_1)
            && let Some(event) = event_for(|depth| depth == 0)
        {
            let top = MbpLevels::top_of(&self.books.view(locate));
            self.records.push(&context.mbp_1(&event, top));
        }
        if self.wants(SchemaSet::MBP_10)
            && let Some(event) = event_for(is_within_mbp)
        {
            let mbp_levels = self.mbp_levels(locate);
            self.records.push(&context.mbp_10(&event, mbp_levels));
        }
    }

    /// A trade without effect on the displayed book: against a hidden order, or a cross.
    fn hidden_trade(&mut self, context: &RecordContext, locate: InstrumentIndex, event: &RecordEvent) -> ApplyOutcome {
        self.mbo(context, locate, &RecordEvent { flags: LAST, ..*event });
        let levels_before = self.wants_depth().then(|| self.mbp_levels(locate));
        self.trade(context, event, levels_before.as_ref(), None);
        self.applied(locate, None)
    }

    fn applied(&self, locate: InstrumentIndex, fault: Option<BookFault>) -> ApplyOutcome {
        ApplyOutcome {
            suspect: self.books.view(locate).is_suspect(),
            fault: fault.map(|kind| InstrumentFault { kind, instrument: locate }),
            ..ApplyOutcome::default()
        }
    }

    fn status(&mut self, context: &RecordContext, fill: impl FnOnce(&mut dbn::StatusMsg)) {
        if self.wants(SchemaSet::STATUS) {
            let mut status = context.status();
            fill(&mut status);
            self.records.push(&status);
        }
    }

    fn trading_action(
        &mut self,
        context: &RecordContext,
        message: &itch50::StockTradingAction,
    ) -> Result<ApplyOutcome, DropReason> {
        let state = status::nasdaq_trading_state(message.trading_state).ok_or(DropReason::FieldInvalid)?;
        let locate = InstrumentIndex(u32::from(message.stock_locate.get()));
        self.map_symbol(context, locate, &message.stock);
        // While trading is halted, orders that cross may rest until the auction.
        self.books.set_cross_check(locate, state.is_trading == TriState::Yes);
        self.status(context, |record| {
            record.action = state.action as u16;
            record.reason = status::nasdaq_reason(message.reason) as u16;
            record.is_trading = tri_char(state.is_trading);
            record.is_quoting = tri_char(state.is_quoting);
        });
        Ok(ApplyOutcome::default())
    }

    fn directory(&mut self, context: &RecordContext, message: &itch50::StockDirectory) {
        let locate = InstrumentIndex(u32::from(message.stock_locate.get()));
        self.map_symbol(context, locate, &message.stock);
        if self.wants(SchemaSet::DEFINITION) {
            let mut definition = context.definition(trim(&message.stock), exchange(self.feed));
            definition.min_lot_size_round_lot = i32::try_from(message.round_lot_size.get()).unwrap_or(i32::MAX);
            definition.group = c_chars(&[message.market_category]);
            definition.security_type = c_chars(&[message.issue_classification]);
            definition.secsubtype = c_chars(trim(&message.issue_sub_type));
            self.records.push(&definition);
        }
    }

    fn imbalance(&mut self, context: &RecordContext, message: &itch50::NetOrderImbalanceIndicator) {
        if !self.wants(SchemaSet::IMBALANCE) {
            return;
        }
        let mut record = context.imbalance();
        record.ref_price = price_or_undefined(i64::from(message.current_reference_price_e4.get()));
        record.cont_book_clr_price = price_or_undefined(i64::from(message.near_price_e4.get()));
        record.auct_interest_clr_price = price_or_undefined(i64::from(message.far_price_e4.get()));
        record.paired_qty = size_u32(message.paired_shares.get());
        record.total_imbalance_qty = size_u32(message.imbalance_shares.get());
        record.auction_type = message.cross_type.cast_signed();
        record.side = match message.imbalance_direction {
            b'B' => b'B',
            b'S' => b'A',
            _ => b'N',
        }
        .cast_signed();
        // A blank indicator cannot be calculated.
        let indicator = message.price_variation_indicator;
        record.significant_imbalance = if indicator == b' ' { b'~' } else { indicator }.cast_signed();
        self.records.push(&record);
    }

    fn statistics<const N: usize>(&mut self, context: &RecordContext, prices: [(StatType, i64); N]) {
        if self.wants(SchemaSet::STATISTICS) {
            for (stat_type, price_e9) in prices {
                self.records.push(&context.statistic(stat_type, price_e9, None));
            }
        }
    }

    fn cross(&mut self, context: &RecordContext, message: &itch50::CrossTrade) -> ApplyOutcome {
        let locate = InstrumentIndex(u32::from(message.stock_locate.get()));
        self.map_symbol(context, locate, &message.stock);
        let shares = message.shares.get();
        // A cross without matched orders is reported with zero shares.
        if shares == 0 {
            return ApplyOutcome::default();
        }
        let price_e9 = e9_from_e4(i64::from(message.cross_price_e4.get()));
        let event = RecordEvent {
            action: Action::Trade,
            side: None,
            price_e9,
            size: size_u32(shares),
            order_id: 0,
            depth: 0,
            flags: 0,
        };
        let applied = self.hidden_trade(context, locate, &event);
        if self.wants(SchemaSet::STATISTICS) {
            let stat_type = match message.cross_type {
                b'O' => StatType::OpeningPrice,
                b'C' => StatType::ClosePrice,
                _ => StatType::UncrossingPrice,
            };
            let quantity = i64::try_from(shares).ok();
            self.records.push(&context.statistic(stat_type, price_e9, quantity));
        }
        applied
    }

    fn non_cross_trade(&mut self, context: &RecordContext, message: &itch50::NonCrossTrade) -> ApplyOutcome {
        let locate = InstrumentIndex(u32::from(message.stock_locate.get()));
        self.map_symbol(context, locate, &message.stock);
        let shares = message.shares.get();
        if shares == 0 {
            return ApplyOutcome::default();
        }
        let event = RecordEvent {
            action: Action::Trade,
            // Since 2014-07-14 the field is always 'B' for hidden orders, so only 'S' carries information.
            side: (message.buy_sell_indicator == b'S').then_some(Side::Bid),
            price_e9: e9_from_e4(i64::from(message.price_e4.get())),
            size: shares,
            order_id: 0,
            depth: 0,
            flags: 0,
        };
        self.hidden_trade(context, locate, &event)
    }

    /// A short message by stock symbol. It publishes the instrument's mapping if necessary.
    fn map_symbol_of(&mut self, context: &RecordContext, locate: u16, symbol: &[u8; 8]) {
        self.map_symbol(context, InstrumentIndex(u32::from(locate)), symbol);
    }
}

impl<S: OrderStore> FeedCore for ItchCore<S> {
    type Transport = MoldUdp64;

    fn begin_session(&mut self, session: Session) {
        self.midnight_ns = session.date.midnight_new_york().0;
        self.books.clear();
        self.mapped.clear();
        self.cleared.clear();
    }

    fn prefetch(&self, message: &[u8]) {
        if let Some(touched) = itch50::target_of(message) {
            // The symbol lookup takes longest, so it is prefetched first.
            if let Some(order_id) = touched.order_reference_number {
                self.books.prefetch_order(order_id);
            }
            self.books.prefetch_instrument(InstrumentIndex(u32::from(touched.stock_locate)));
        }
    }

    fn apply(&mut self, message: &[u8], sequence: Sequence) -> Result<ApplyOutcome, DropReason> {
        self.records.clear();
        let message = Message::parse(message).inspect_err(|reason| {
            // The books may now lack this message. By the specification, receivers may ignore unknown types.
            if *reason != DropReason::MessageTypeUnknown {
                self.books.mark_all_suspect();
            }
        })?;
        let since_midnight_ns = message.timestamp_ns();
        if since_midnight_ns >= NS_PER_DAY {
            self.books.mark_all_suspect();
            return Err(DropReason::FieldInvalid);
        }
        let stock_locate = message.stock_locate();
        let locate = InstrumentIndex(u32::from(stock_locate));
        let context = RecordContext {
            publisher_id: self.feed.publisher_id(),
            instrument_id: InstrumentId(u32::from(stock_locate)),
            ts_event: self.midnight_ns + since_midnight_ns,
            #[allow(clippy::cast_possible_truncation, reason = "DBN holds the low 32 bits")]
            sequence: sequence.0 as u32,
        };
        let applied = match message {
            Message::AddOrder(add) => self.add(&context, add),
            Message::AddOrderMpid(add) => self.add(&context, &add.order),
            Message::OrderExecuted(executed) => {
                let order_id = executed.order_reference_number.get();
                self.execute(&context, locate, order_id, executed.executed_shares.get(), None, true)
            }
            Message::OrderExecutedWithPrice(executed) => {
                let order_id = executed.order_reference_number.get();
                let execution_price_e9 = e9_from_e4(i64::from(executed.execution_price_e4.get()));
                let is_printable = executed.printable == b'Y';
                self.execute(
                    &context,
                    locate,
                    order_id,
                    executed.executed_shares.get(),
                    Some(execution_price_e9),
                    is_printable,
                )
            }
            Message::OrderCancel(cancel) => {
                let order_id = cancel.order_reference_number.get();
                let cancelled = self.books.reduce(locate, order_id, cancel.cancelled_shares.get());
                self.apply_cancel(&context, locate, cancelled)
            }
            Message::OrderDelete(delete) => {
                let cancelled = self.books.delete(locate, delete.order_reference_number.get());
                self.apply_cancel(&context, locate, cancelled)
            }
            Message::OrderReplace(replace) => self.replace(&context, replace),
            Message::NonCrossTrade(trade) => self.non_cross_trade(&context, trade),
            Message::CrossTrade(cross) => self.cross(&context, cross),
            Message::StockDirectory(directory) => {
                self.directory(&context, directory);
                ApplyOutcome::default()
            }
            Message::StockTradingAction(action) => self.trading_action(&context, action)?,
            Message::RegShoRestriction(restriction) => {
                let restricted = match restriction.reg_sho_action {
                    b'0' => TriState::No,
                    b'1' | b'2' => TriState::Yes,
                    _ => return Err(DropReason::FieldInvalid),
                };
                self.map_symbol_of(&context, stock_locate, &restriction.stock);
                self.status(&context, |record| {
                    record.action = StatusAction::SsrChange as u16;
                    record.is_short_sell_restricted = tri_char(restricted);
                });
                ApplyOutcome::default()
            }
            Message::OperationalHalt(halt) => {
                let (action, is_trading) = match halt.operational_halt_action {
                    b'H' => (StatusAction::Halt, TriState::No),
                    b'T' => (StatusAction::Trading, TriState::Yes),
                    _ => return Err(DropReason::FieldInvalid),
                };
                self.map_symbol_of(&context, stock_locate, &halt.stock);
                // A halt on another of Nasdaq's markets does not affect this one.
                if halt.market_code == market_code(self.feed) {
                    self.status(&context, |record| {
                        record.action = action as u16;
                        record.reason = StatusReason::Operational as u16;
                        record.is_trading = tri_char(is_trading);
                    });
                }
                ApplyOutcome::default()
            }
            Message::MwcbStatus(breach) => {
                let reason = match breach.breached_level {
                    b'1' => StatusReason::MarketWideHaltLevel1,
                    b'2' => StatusReason::MarketWideHaltLevel2,
                    b'3' => StatusReason::MarketWideHaltLevel3,
                    _ => return Err(DropReason::FieldInvalid),
                };
                self.status(&context, |record| {
                    record.action = StatusAction::Halt as u16;
                    record.reason = reason as u16;
                    record.is_trading = tri_char(TriState::No);
                });
                ApplyOutcome::default()
            }
            Message::MwcbDeclineLevel(levels) => {
                let e9 = |price_e8: u64| i64::try_from(price_e8).unwrap_or(i64::MAX / 10).saturating_mul(10);
                self.statistics(
                    &context,
                    [
                        (StatType::MwcbLevel1, e9(levels.level_1_e8.get())),
                        (StatType::MwcbLevel2, e9(levels.level_2_e8.get())),
                        (StatType::MwcbLevel3, e9(levels.level_3_e8.get())),
                    ],
                );
                ApplyOutcome::default()
            }
            Message::LuldAuctionCollar(collar) => {
                self.map_symbol_of(&context, stock_locate, &collar.stock);
                let e9 = |price_e4: u32| e9_from_e4(i64::from(price_e4));
                self.statistics(
                    &context,
                    [
                        (StatType::AuctionCollarReferencePrice, e9(collar.auction_collar_reference_price_e4.get())),
                        (StatType::AuctionCollarUpperPrice, e9(collar.upper_auction_collar_price_e4.get())),
                        (StatType::AuctionCollarLowerPrice, e9(collar.lower_auction_collar_price_e4.get())),
                    ],
                );
                ApplyOutcome::default()
            }
            Message::NetOrderImbalanceIndicator(imbalance) => {
                self.map_symbol_of(&context, stock_locate, &imbalance.stock);
                self.imbalance(&context, imbalance);
                ApplyOutcome::default()
            }
            // Messages without a DBN record.
            Message::BrokenTrade(_) => {
                ApplyOutcome { notice: Some(MessageNotice::TradeBroken), ..ApplyOutcome::default() }
            }
            Message::SystemEvent(_)
            | Message::MarketParticipantPosition(_)
            | Message::IpoQuotingPeriodUpdate(_)
            | Message::RetailPriceImprovementIndicator(_)
            | Message::DirectListingWithCapitalRaise(_) => ApplyOutcome::default(),
        };
        Ok(ApplyOutcome { ts_event: context.ts_event, ..applied })
    }

    fn write_request(
        &self,
        venue: VenueSession,
        first: Sequence,
        count: u64,
        request: &mut [u8; REQUEST_BYTES_MAX],
    ) -> Option<usize> {
        let count = u16::try_from(count).unwrap_or(moldudp64::COUNT_MAX).min(moldudp64::COUNT_MAX);
        let bytes = moldudp64::Request { session: moldudp64::session_name(venue), first, count }.to_bytes();
        request.get_mut(..bytes.len())?.copy_from_slice(&bytes);
        Some(bytes.len())
    }

    fn records(&self) -> &Records {
        &self.records
    }

    fn on_gap(&mut self) {
        self.books.mark_all_suspect();
    }

    fn book(&self, instrument: InstrumentId, depth: usize) -> BookSnapshot {
        BookSnapshot::of(&self.books.view(InstrumentIndex(instrument.0)), depth)
    }

    fn orders(&self, is_wanted: &dyn Fn(InstrumentId) -> bool) -> Option<Vec<OrderView>> {
        Some(self.books.orders_where(|locate| is_wanted(InstrumentId(locate.0))))
    }

    fn faults(&self) -> &BookFaultCounts {
        self.books.faults()
    }

    fn memory_bytes(&self) -> usize {
        self.books.memory_bytes() + self.mapped.bytes() + self.cleared.bytes()
    }

    fn copy_extent(&self) -> CopyExtent {
        CopyExtent { books: LOCATES, orders: self.books.slot_count() }
    }

    fn order_in_slot(&self, place: usize) -> Option<OrderView> {
        self.books.order_in_slot(place)
    }

    fn order(&self, order_id: u64) -> Option<OrderView> {
        self.books.order(order_id)
    }

    /// One byte: mapped, cleared, then the book's marks.
    fn write_book(&self, locate: InstrumentIndex, out: &mut Vec<u8>) -> Result<(), CopyFault> {
        let (mapped, cleared) = (self.mapped.contains(locate.0), self.cleared.contains(locate.0));
        let bits = u8::from(mapped) | u8::from(cleared) << 1 | self.books.marks(locate).to_bits() << 2;
        if bits != 0 {
            out.push(bits);
        }
        Ok(())
    }

    fn visit_touched(&self, message: &[u8], visit: &mut dyn FnMut(TouchedEntry)) {
        let Some(touched) = itch50::target_of(message) else { return };
        visit(TouchedEntry::Book(InstrumentIndex(u32::from(touched.stock_locate))));
        for order_id in touched.order_reference_number.into_iter().chain(itch50::replacement_order_id(message)) {
            visit(TouchedEntry::Order(order_id));
        }
    }

    fn counts(&self) -> CoreCounts {
        CoreCounts {
            orders: self.books.order_count() as u64,
            levels: self.books.level_count().into(),
            instruments: 0,
            priority_next: self.books.priority_next(),
            is_new_book_suspect: false,
        }
    }

    fn restore(&mut self, session: Session, received: &ReceivedCopy) -> Result<(), CopyFault> {
        self.begin_session(session);
        for order in received.orders_by_priority() {
            if order.priority >= received.counts.priority_next {
                return Err(CopyFault::Malformed);
            }
            self.books.restore_order(&order).map_err(|_| CopyFault::NoRoom)?;
        }
        self.books.set_priority_next(received.counts.priority_next);
        for (locate, body) in &received.books {
            let bits = match body.as_slice() {
                [] => 0,
                [bits @ 0..=0x1f] => *bits,
                _ => return Err(CopyFault::Malformed),
            };
            if bits & 1 != 0 {
                self.mapped.insert(*locate);
            }
            if bits & 2 != 0 {
                self.cleared.insert(*locate);
            }
            self.books.set_marks(InstrumentIndex(*locate), BookMarks::from_bits(bits >> 2));
        }
        Ok(())
    }
}

/// A bit set over a fixed number of members.
#[derive(Debug)]
struct BitSet(Vec<u64>);

impl BitSet {
    fn new(members: usize) -> Self {
        Self(vec![0; members.div_ceil(64)])
    }

    /// Inserts `member`. Returns whether it was absent; a member beyond the set never is.
    fn insert(&mut self, member: u32) -> bool {
        let Some(word) = self.0.get_mut((member / 64) as usize) else { return false };
        let bit = 1 << (member % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn contains(&self, member: u32) -> bool {
        self.0.get((member / 64) as usize).is_some_and(|word| *word & 1 << (member % 64) != 0)
    }

    fn clear(&mut self) {
        self.0.fill(0);
    }

    fn bytes(&self) -> usize {
        self.0.len() * size_of::<u64>()
    }
}

fn is_within_mbp(depth: u32) -> bool {
    (depth as usize) < MBP_LEVELS
}

fn record_event(action: Action, change: &Change, flags: u8) -> RecordEvent {
    RecordEvent {
        action,
        side: Some(change.side),
        price_e9: change.price_e9,
        size: change.size,
        order_id: change.order_id,
        depth: change.depth,
        flags,
    }
}

/// The side of an order. Parsing admits only `B` and `S`.
fn side_of(buy_sell_indicator: u8) -> Side {
    if buy_sell_indicator == b'B' { Side::Bid } else { Side::Ask }
}

fn tri_char(state: TriState) -> core::ffi::c_char {
    core::ffi::c_char::from_ne_bytes([state as u8])
}

fn exchange(feed: Feed) -> &'static str {
    match feed {
        Feed::BxItch => "XBOS",
        Feed::PsxItch => "XPSX",
        _ => "XNAS",
    }
}

/// The market code of a feed in the Operational Halt message.
fn market_code(feed: Feed) -> u8 {
    match feed {
        Feed::BxItch => b'B',
        Feed::PsxItch => b'X',
        _ => b'Q',
    }
}
