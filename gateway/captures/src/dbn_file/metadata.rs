//! Metadata of a DBN file, collected while its records are written.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    num::NonZeroU64,
};

use dbn::{MappingInterval, Metadata, SType, SymbolMapping, UNDEF_TIMESTAMP, encode::dbn::MetadataEncoder};
use mdgw_wire::{identity::InstrumentId, time::TradingDate};
use time::{Date, OffsetDateTime};

use super::{DbnFileOptions, ts_recv_at};

/// Collects times and symbols of records. The metadata is a function of the records and mappings, whatever their order.
#[derive(Clone, Debug)]
pub struct MetadataCollector {
    options: DbnFileOptions,
    /// Earliest and latest time by which consumers look up a record's symbol: `ts_recv`, else `ts_event`.
    time_range: Option<(u64, u64)>,
    mappings: BTreeMap<String, BTreeSet<(TradingDate, InstrumentId)>>,
}

impl MetadataCollector {
    /// Metadata of a file without records.
    #[must_use]
    pub fn new(options: DbnFileOptions) -> Self {
        Self { options, time_range: None, mappings: BTreeMap::new() }
    }

    /// Sets the dataset.
    pub(super) fn set_dataset(&mut self, dataset: &str) {
        dataset.clone_into(&mut self.options.dataset);
    }

    /// Takes the time of one whole record.
    pub fn record(&mut self, bytes: &[u8]) {
        if let Some(ts_event) = timestamp_at(bytes, TS_EVENT_AT) {
            let ts_recv = ts_recv_at(bytes).and_then(|offset| timestamp_at(bytes, offset));
            self.time_range = Some(extended(self.time_range, ts_recv.unwrap_or(ts_event)));
        }
    }

    /// Earliest and latest time of the records so far, ns since 1970 UTC.
    #[must_use]
    pub fn time_range(&self) -> Option<(u64, u64)> {
        self.time_range
    }

    /// Sets the times of records that were written earlier.
    pub fn set_time_range(&mut self, time_range: Option<(u64, u64)>) {
        self.time_range = time_range;
    }

    /// Maps an instrument to a symbol on a day. Bytes that are not printable ASCII are escaped. Returns whether the mapping is new.
    pub fn mapping(&mut self, symbol: &[u8], instrument: InstrumentId, date: TradingDate) -> bool {
        let mut text = symbol.escape_ascii().to_string();
        text.truncate(dbn::SYMBOL_CSTR_LEN - 1);
        self.mappings.entry(text).or_default().insert((date, instrument))
    }

    /// Symbols with a mapping.
    #[must_use]
    pub fn symbol_count(&self) -> u64 {
        self.mappings.len() as u64
    }

    /// The bytes at the beginning of a DBN file.
    ///
    /// # Errors
    /// A text does not fit its field.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut header = Vec::new();
        MetadataEncoder::new(&mut header).encode(&self.metadata()).map_err(io::Error::other)?;
        Ok(header)
    }

    fn metadata(&self) -> Metadata {
        let dates: BTreeSet<TradingDate> = self.mappings.values().flatten().map(|(date, _)| *date).collect();
        let dates: Vec<TradingDate> = dates.into_iter().collect();
        Metadata {
            version: dbn::DBN_VERSION,
            dataset: self.options.dataset.clone(),
            schema: self.options.schema,
            start: self.time_range.map_or(0, |(earliest, _)| earliest),
            end: self.time_range.and_then(|(_, latest)| NonZeroU64::new(latest.saturating_add(1))),
            limit: None,
            stype_in: Some(SType::RawSymbol),
            stype_out: SType::InstrumentId,
            ts_out: false,
            symbol_cstr_len: dbn::SYMBOL_CSTR_LEN,
            layout: None,
            symbols: self.mappings.keys().cloned().collect(),
            partial: Vec::new(),
            not_found: Vec::new(),
            mappings: self
                .mappings
                .iter()
                .map(|(symbol, days)| SymbolMapping {
                    raw_symbol: symbol.clone(),
                    intervals: self.intervals(days, &dates),
                })
                .collect(),
        }
    }

    /// One interval for each trading date of the symbol; consumers read it as a range of UTC dates. An evening in New
    /// York is already the next day in UTC, so an interval extends to the file's next trading date. A capture may have
    /// been recorded at another time than its messages, so the first and last interval extend to the range of the
    /// file's records. An instrument id may belong to different symbols on different dates: their intervals do not
    /// overlap.
    fn intervals(&self, days: &BTreeSet<(TradingDate, InstrumentId)>, dates: &[TradingDate]) -> Vec<MappingInterval> {
        let recorded = self.time_range.and_then(|(earliest, latest)| Some((utc_date(earliest)?, utc_date(latest)?)));
        days.iter()
            .filter_map(|(date, instrument)| {
                let index = dates.binary_search(date).ok()?;
                let mut start = calendar_date(*date)?;
                if let Some((earliest, _)) = recorded.filter(|_| index == 0) {
                    start = start.min(earliest);
                }
                let end = match dates.get(index + 1) {
                    Some(next) => calendar_date(*next)?,
                    None => {
                        let end = calendar_date(date.next_day())?;
                        recorded.and_then(|(_, latest)| latest.next_day()).map_or(end, |behind| end.max(behind))
                    }
                };
                Some(MappingInterval { start_date: start, end_date: end, symbol: instrument.0.to_string() })
            })
            .collect()
    }
}

fn extended(range: Option<(u64, u64)>, value: u64) -> (u64, u64) {
    range.map_or((value, value), |(earliest, latest)| (earliest.min(value), latest.max(value)))
}

/// A timestamp of a record, if present and defined.
fn timestamp_at(record: &[u8], offset: usize) -> Option<u64> {
    let bytes = record.get(offset..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes)).filter(|ts| *ts != UNDEF_TIMESTAMP)
}

const TS_EVENT_AT: usize = std::mem::offset_of!(dbn::RecordHeader, ts_event);

fn utc_date(ts: u64) -> Option<Date> {
    let seconds = i64::try_from(ts / 1_000_000_000).ok()?;
    OffsetDateTime::from_unix_timestamp(seconds).ok().map(OffsetDateTime::date)
}

fn calendar_date(date: TradingDate) -> Option<Date> {
    utc_date(date.midnight_utc().0)
}
