//! Shared by IEX's feeds: instruments, and the administrative messages of both TOPS and DEEP.

use dbn::{StatType, StatusAction, StatusReason, TriState};

use super::{
    ChannelConfig, SchemaSet,
    copy::{CopyFault, TouchedEntry},
    feed_core::{ApplyOutcome, MessageNotice},
};
use crate::{
    book::InstrumentIndex,
    normalise::{
        records::{RecordContext, Records, e9_from_e4, price_or_undefined, size_u32},
        status,
        symbols::{SymbolTable, trim},
    },
    venue::iex::admin::Admin,
};
use mdgw_wire::{
    drop_reason::DropReason,
    identity::{Feed, InstrumentId, Sequence},
};

/// Instruments and records of one IEX channel.
#[derive(Debug)]
pub(super) struct IexCommon {
    pub(super) records: Records,
    pub(super) schemas: SchemaSet,
    feed: Feed,
    symbols: SymbolTable,
}

impl IexCommon {
    pub(super) fn new(config: &ChannelConfig) -> Self {
        let instruments_max = config.books.instruments_max as usize;
        Self {
            records: Records::new(),
            schemas: config.schemas,
            feed: config.feed,
            symbols: SymbolTable::new(instruments_max, &config.instrument_numbers),
        }
    }

    pub(super) fn begin_session(&mut self) {
        self.symbols.clear();
    }

    pub(super) fn wants(&self, schema: SchemaSet) -> bool {
        self.schemas.contains(schema)
    }

    /// Index of an instrument in the books. Visits all instruments: not for the hot path.
    pub(super) fn index_of(&self, instrument: InstrumentId) -> Option<InstrumentIndex> {
        self.symbols.index_of(instrument)
    }

    /// The instrument of a message. Publishes its symbol mapping before its first record of the session.
    ///
    /// # Errors
    /// The symbol cannot be inserted.
    pub(super) fn context(
        &mut self,
        symbol: [u8; 8],
        timestamp_ns: i64,
        sequence: Sequence,
    ) -> Result<(InstrumentIndex, RecordContext), DropReason> {
        let ts_event = u64::try_from(timestamp_ns).map_err(|_| DropReason::FieldInvalid)?;
        let found = self.symbols.find_or_insert(symbol)?;
        let context = RecordContext {
            publisher_id: self.feed.publisher_id(),
            instrument_id: found.id,
            ts_event,
            #[allow(clippy::cast_possible_truncation, reason = "DBN holds the low 32 bits")]
            sequence: sequence.0 as u32,
        };
        if found.is_new {
            self.records.push(&context.mapping(trim(&symbol)));
        }
        Ok((found.index, context))
    }

    /// Processes an administrative message.
    ///
    /// # Errors
    /// A code is not in the specification, or the symbol cannot be inserted.
    pub(super) fn admin(&mut self, message: &Admin<'_>, sequence: Sequence) -> Result<ApplyOutcome, DropReason> {
        let mut notice = None;
        match message {
            Admin::SecurityDirectory(directory) => {
                let (_, context) = self.context(directory.symbol, directory.timestamp_ns.get(), sequence)?;
                if self.wants(SchemaSet::DEFINITION) {
                    let mut definition = context.definition(trim(&directory.symbol), "IEXG");
                    definition.min_lot_size_round_lot =
                        i32::try_from(directory.round_lot_size.get()).unwrap_or(i32::MAX);
                    self.records.push(&definition);
                }
            }
            Admin::TradingStatus(trading) => {
                let state = status::iex_trading_state(trading.trading_status).ok_or(DropReason::FieldInvalid)?;
                let (_, context) = self.context(trading.symbol, trading.timestamp_ns.get(), sequence)?;
                self.status(&context, |record| {
                    record.action = state.action as u16;
                    record.reason = status::iex_reason(trading.reason) as u16;
                    record.is_trading = tri_char(state.is_trading);
                    record.is_quoting = tri_char(state.is_quoting);
                });
            }
            Admin::OperationalHaltStatus(halt) => {
                // IEX sends "not halted" for every security before the open. It lifts only this kind of halt.
                let (action, is_trading) = match halt.operational_halt_status {
                    b'O' => (StatusAction::Halt, TriState::No),
                    b'N' => (StatusAction::None, TriState::NotAvailable),
                    _ => return Err(DropReason::FieldInvalid),
                };
                let (_, context) = self.context(halt.symbol, halt.timestamp_ns.get(), sequence)?;
                self.status(&context, |record| {
                    record.action = action as u16;
                    record.reason = StatusReason::Operational as u16;
                    record.is_trading = tri_char(is_trading);
                });
            }
            Admin::ShortSalePriceTestStatus(test) => {
                let restricted = match test.short_sale_price_test_status {
                    0 => TriState::No,
                    1 => TriState::Yes,
                    _ => return Err(DropReason::FieldInvalid),
                };
                let (_, context) = self.context(test.symbol, test.timestamp_ns.get(), sequence)?;
                self.status(&context, |record| {
                    record.action = StatusAction::SsrChange as u16;
                    record.is_short_sell_restricted = tri_char(restricted);
                });
            }
            Admin::OfficialPrice(official) => {
                let stat_type = match official.price_type {
                    b'Q' => StatType::OpeningPrice,
                    b'M' => StatType::ClosePrice,
                    _ => return Err(DropReason::FieldInvalid),
                };
                let (_, context) = self.context(official.symbol, official.timestamp_ns.get(), sequence)?;
                if self.wants(SchemaSet::STATISTICS) {
                    let price_e9 = e9_from_e4(official.official_price_e4.get());
                    self.records.push(&context.statistic(stat_type, price_e9, None));
                }
            }
            Admin::AuctionInformation(auction) => {
                let (_, context) = self.context(auction.symbol, auction.timestamp_ns.get(), sequence)?;
                if self.wants(SchemaSet::IMBALANCE) {
                    let mut record = context.imbalance();
                    record.ref_price = price_or_undefined(auction.reference_price_e4.get());
                    record.auction_time = u64::from(auction.scheduled_auction_time_s.get()) * 1_000_000_000;
                    record.ind_match_price = price_or_undefined(auction.indicative_clearing_price_e4.get());
                    record.auct_interest_clr_price = price_or_undefined(auction.auction_book_clearing_price_e4.get());
                    record.upper_collar = price_or_undefined(auction.upper_auction_collar_e4.get());
                    record.lower_collar = price_or_undefined(auction.lower_auction_collar_e4.get());
                    record.paired_qty = size_u32(u64::from(auction.paired_shares.get()));
                    record.total_imbalance_qty = size_u32(u64::from(auction.imbalance_shares.get()));
                    record.auction_type = auction.auction_type.cast_signed();
                    record.side = match auction.imbalance_side {
                        b'B' => b'B',
                        b'S' => b'A',
                        _ => b'N',
                    }
                    .cast_signed();
                    record.num_extensions = auction.extension_number;
                    self.records.push(&record);
                }
            }
            // Messages without a DBN record. They still map their instrument.
            Admin::RetailLiquidityIndicator(indicator) => {
                self.context(indicator.symbol, indicator.timestamp_ns.get(), sequence)?;
            }
            Admin::TradeBreak(broken) => {
                self.context(broken.symbol, broken.timestamp_ns.get(), sequence)?;
                notice = Some(MessageNotice::TradeBroken);
            }
            // The transport has no end of session; this message marks it.
            Admin::SystemEvent(event) if event.system_event == END_OF_MESSAGES => {
                notice = Some(MessageNotice::EndOfMessages)
            }
            Admin::SystemEvent(_) => {}
        }
        Ok(ApplyOutcome { notice, ..ApplyOutcome::default() })
    }

    /// Number of instruments in the symbol table.
    pub(super) fn instrument_count(&self) -> usize {
        self.symbols.count()
    }

    /// The symbol of an instrument.
    pub(super) fn symbol(&self, index: InstrumentIndex) -> Option<[u8; 8]> {
        self.symbols.get(index).map(|entry| entry.symbol)
    }

    /// Any message type may have touched its instrument.
    pub(super) fn visit_touched(&self, message: &[u8], visit: &mut dyn FnMut(TouchedEntry)) {
        let symbol = message.get(SYMBOL_OFFSET..).and_then(|rest| rest.first_chunk().copied());
        if let Some(index) = symbol.and_then(|symbol| self.symbols.find(symbol)) {
            visit(TouchedEntry::Book(index));
        }
    }

    /// Inserts an instrument of a copy, in the copy's order, so that it gets the same index.
    ///
    /// # Errors
    /// The instrument would get another index, or none.
    pub(super) fn restore_instrument(&mut self, index: u32, symbol: [u8; 8]) -> Result<InstrumentIndex, CopyFault> {
        let found = self.symbols.find_or_insert(symbol).map_err(|_| CopyFault::NoRoom)?;
        let is_expected_index = found.is_new && found.index.0 == index;
        if is_expected_index { Ok(found.index) } else { Err(CopyFault::Malformed) }
    }

    fn status(&mut self, context: &RecordContext, fill: impl FnOnce(&mut dbn::StatusMsg)) {
        if self.wants(SchemaSet::STATUS) {
            let mut status = context.status();
            fill(&mut status);
            self.records.push(&status);
        }
    }
}

/// Offset of the symbol in every message with an instrument: after type, flags and timestamp.
const SYMBOL_OFFSET: usize = 10;

/// System event after which the day has no further message.
const END_OF_MESSAGES: u8 = b'C';

fn tri_char(state: TriState) -> core::ffi::c_char {
    core::ffi::c_char::from_ne_bytes([state as u8])
}
