//! What IEX's feeds share: names of instruments, and the administrative messages that TOPS and DEEP both carry.

use dbn::{StatType, StatusAction, StatusReason, TriState};

use super::{
    ChannelConfig, SchemaSet,
    copy::{CopyFault, Touched},
    core::{Applied, Notice},
};
use crate::{
    book::InstrumentIndex,
    drop_reason::DropReason,
    identity::{Feed, InstrumentId, Sequence},
    normalise::{
        records::{Records, Subject, e9_from_e4, price_or_undefined, size_u32},
        status,
        symbols::{SymbolTable, trim},
    },
    venue::iex::admin::Admin,
};

/// Names and records of one IEX channel.
#[derive(Debug)]
pub(super) struct IexChannel {
    pub(super) records: Records,
    pub(super) schemas: SchemaSet,
    feed: Feed,
    symbols: SymbolTable,
}

impl IexChannel {
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

    /// The place of an instrument in the books. Walks over all of them: not for the hot path.
    pub(super) fn index_of(&self, instrument: InstrumentId) -> Option<InstrumentIndex> {
        self.symbols.index_of(instrument)
    }

    /// The instrument of a message, named before its first record of the session.
    ///
    /// # Errors
    /// When the symbol can't be entered.
    pub(super) fn subject(
        &mut self,
        symbol: [u8; 8],
        timestamp_ns: i64,
        sequence: Sequence,
    ) -> Result<(InstrumentIndex, Subject), DropReason> {
        let ts_event = u64::try_from(timestamp_ns).map_err(|_| DropReason::FieldInvalid)?;
        let found = self.symbols.find_or_enter(symbol)?;
        let subject = Subject {
            publisher_id: self.feed.publisher_id(),
            instrument_id: found.id,
            ts_event,
            #[allow(clippy::cast_possible_truncation, reason = "DBN holds the low 32 bits")]
            sequence: sequence.0 as u32,
        };
        if found.is_new {
            self.records.push(&subject.mapping(trim(&symbol)));
        }
        Ok((found.index, subject))
    }

    /// An administrative message.
    ///
    /// # Errors
    /// When a code is not of the specification, or the symbol can't be entered.
    pub(super) fn admin(&mut self, message: &Admin<'_>, sequence: Sequence) -> Result<Applied, DropReason> {
        let mut notice = None;
        match message {
            Admin::SecurityDirectory(directory) => {
                let (_, subject) = self.subject(directory.symbol, directory.timestamp_ns.get(), sequence)?;
                if self.wants(SchemaSet::DEFINITION) {
                    let mut definition = subject.definition(trim(&directory.symbol), "IEXG");
                    definition.min_lot_size_round_lot =
                        i32::try_from(directory.round_lot_size.get()).unwrap_or(i32::MAX);
                    self.records.push(&definition);
                }
            }
            Admin::TradingStatus(trading) => {
                let state = status::iex_trading_state(trading.trading_status).ok_or(DropReason::FieldInvalid)?;
                let (_, subject) = self.subject(trading.symbol, trading.timestamp_ns.get(), sequence)?;
                self.status(&subject, |record| {
                    record.action = state.action as u16;
                    record.reason = status::iex_reason(trading.reason) as u16;
                    record.is_trading = tri_char(state.is_trading);
                    record.is_quoting = tri_char(state.is_quoting);
                });
            }
            Admin::OperationalHaltStatus(halt) => {
                // "Not halted" is told for every security before the open: it lifts this halt and no other.
                let (action, is_trading) = match halt.operational_halt_status {
                    b'O' => (StatusAction::Halt, TriState::No),
                    b'N' => (StatusAction::None, TriState::NotAvailable),
                    _ => return Err(DropReason::FieldInvalid),
                };
                let (_, subject) = self.subject(halt.symbol, halt.timestamp_ns.get(), sequence)?;
                self.status(&subject, |record| {
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
                let (_, subject) = self.subject(test.symbol, test.timestamp_ns.get(), sequence)?;
                self.status(&subject, |record| {
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
                let (_, subject) = self.subject(official.symbol, official.timestamp_ns.get(), sequence)?;
                if self.wants(SchemaSet::STATISTICS) {
                    let price_e9 = e9_from_e4(official.official_price_e4.get());
                    self.records.push(&subject.statistic(stat_type, price_e9, None));
                }
            }
            Admin::AuctionInformation(auction) => {
                let (_, subject) = self.subject(auction.symbol, auction.timestamp_ns.get(), sequence)?;
                if self.wants(SchemaSet::IMBALANCE) {
                    let mut record = subject.imbalance();
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
            // What DBN has no record for. They still name their instrument.
            Admin::RetailLiquidityIndicator(indicator) => {
                self.subject(indicator.symbol, indicator.timestamp_ns.get(), sequence)?;
            }
            Admin::TradeBreak(broken) => {
                self.subject(broken.symbol, broken.timestamp_ns.get(), sequence)?;
                notice = Some(Notice::TradeBroken);
            }
            // The transport has no end of session: this is it.
            Admin::SystemEvent(event) if event.system_event == END_OF_MESSAGES => notice = Some(Notice::EndOfMessages),
            Admin::SystemEvent(_) => {}
        }
        Ok(Applied { notice, ..Applied::default() })
    }

    /// Instruments that have been named.
    pub(super) fn named(&self) -> usize {
        self.symbols.count()
    }

    /// The symbol of a named instrument.
    pub(super) fn symbol(&self, index: InstrumentIndex) -> Option<[u8; 8]> {
        self.symbols.get(index).map(|named| named.symbol)
    }

    /// Whichever kind a message is, it may have touched the instrument that it names.
    pub(super) fn touched(&self, message: &[u8], note: &mut dyn FnMut(Touched)) {
        let symbol = message.get(SYMBOL_AT..).and_then(|rest| rest.first_chunk().copied());
        if let Some(index) = symbol.and_then(|symbol| self.symbols.find(symbol)) {
            note(Touched::Book(index));
        }
    }

    /// Names an instrument as another gateway has: in the same order, so in the same place.
    ///
    /// # Errors
    /// When it would come to another place, or to none.
    pub(super) fn restore(&mut self, index: u32, symbol: [u8; 8]) -> Result<InstrumentIndex, CopyFault> {
        let found = self.symbols.find_or_enter(symbol).map_err(|_| CopyFault::NoRoom)?;
        let is_its_place = found.is_new && found.index.0 == index;
        if is_its_place { Ok(found.index) } else { Err(CopyFault::Malformed) }
    }

    fn status(&mut self, subject: &Subject, fill: impl FnOnce(&mut dbn::StatusMsg)) {
        if self.wants(SchemaSet::STATUS) {
            let mut status = subject.status();
            fill(&mut status);
            self.records.push(&status);
        }
    }
}

/// Where the symbol stands in every message that names an instrument: behind type, flags and time.
const SYMBOL_AT: usize = 10;

/// System event after which no message of the day follows.
const END_OF_MESSAGES: u8 = b'C';

fn tri_char(state: TriState) -> core::ffi::c_char {
    core::ffi::c_char::from_ne_bytes([state as u8])
}
