//! Every change of the best bid and offer, from the market-by-price records that the channels publish.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    mem::offset_of,
    ops::ControlFlow,
};

use dbn::{BidAskPair, Mbp1Msg, UNDEF_PRICE, enums::rtype};
use mdgw_feeds::{
    channel::{ChannelConfig, SchemaSet},
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    frame::{FrameFlags, FrameKind, FrameMeta},
    identity::{InstrumentId, Sequence, Session},
};
use serde::Serialize;

use super::{
    BookError, BookOptions, Entry, check_not_empty, damages, drive_options, open, output_error,
    trade_counts::{instrument_of, u32_at},
};
use crate::replay::offline::{Event, OfflineError, ReplayDriver, ReplaySink};

/// Best bid and offer of an instrument after a message.
#[derive(Clone, Debug, Serialize)]
pub struct TopChange<'a> {
    /// The venue's time of the message, ns since 1970 UTC.
    pub time_ns: u64,
    /// Index of the channel among those of the capture, from 0.
    pub channel: u16,
    /// Sequence of the message.
    pub sequence: u64,
    /// Symbol of the instrument.
    pub symbol: &'a str,
    /// Instrument id in records.
    pub instrument_id: u32,
    /// Price in 1e-9, size, order count; `None` without a bid.
    pub bid: Option<Entry>,
    /// The same for the offer.
    pub ask: Option<Entry>,
    /// Whether the book may differ from the venue's (suspect).
    pub suspect: bool,
}

/// Calls `on_change` with every change up to the requested time. Returns the errors that ended files early.
///
/// # Errors
/// See [`BookError`]; an error of `on_change` ends the run.
pub fn follow(
    options: &BookOptions,
    on_change: &mut dyn FnMut(&TopChange<'_>) -> io::Result<()>,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Vec<String>, BookError> {
    let mut merge = open(options)?;
    let mut driver = ReplayDriver::new(drive_options(options, SchemaSet::MBP_1));
    let wanted = options.symbols.iter().cloned().collect();
    let mut tops = Tops { channels: Vec::new(), wanted, on_change, failure: None };
    driver.run(&mut merge, &mut tops, on_event)?;
    check_not_empty(options, &driver, &merge)?;
    Ok(damages(&merge))
}

/// Latest best bid and offer of each instrument, for all channels.
struct Tops<'a> {
    channels: Vec<ChannelTops>,
    /// Symbols to follow; empty: all.
    wanted: BTreeSet<String>,
    on_change: &'a mut dyn FnMut(&TopChange<'_>) -> io::Result<()>,
    failure: Option<io::Error>,
}

#[derive(Debug, Default)]
struct ChannelTops {
    edge: ConsumerEdge,
    channel: u16,
    instruments: BTreeMap<InstrumentId, (String, BidAskPair)>,
}

impl ReplaySink for Tops<'_> {
    fn channel(&mut self, _channel_index: usize, config: &ChannelConfig) -> Result<(), OfflineError> {
        self.channels.push(ChannelTops {
            edge: ConsumerEdge::new(TsRecvMode::None),
            channel: config.id.0,
            ..ChannelTops::default()
        });
        Ok(())
    }

    fn frame(&mut self, channel_index: usize, meta: &FrameMeta, record_count: u16, body: &[u8]) {
        let Self { channels, wanted, on_change, failure } = self;
        let Some(ChannelTops { edge, channel, instruments }) = channels.get_mut(channel_index) else { return };
        if meta.kind != FrameKind::Message || meta.flags.contains(FrameFlags::LATE_FILL) || failure.is_some() {
            return;
        }
        edge.deliver(&meta.header(record_count, body), body, |handed| match handed {
            EdgeOutput::Mapping { id, symbol } => {
                let symbol = String::from_utf8_lossy(symbol).into_owned();
                instruments.entry(id).or_insert_with(|| (String::new(), BidAskPair::default())).0 = symbol;
            }
            EdgeOutput::Record { rtype: rtype::MBP_1, bytes } => {
                let (Some(id), Some(top)) = (instrument_of(bytes), top_of(bytes)) else { return };
                let Some((symbol, last)) = instruments.get_mut(&id) else { return };
                if *last == top || !(wanted.is_empty() || wanted.contains(symbol.as_str())) {
                    return;
                }
                *last = top.clone();
                let change = TopChange {
                    time_ns: u64_at(bytes, offset_of!(dbn::RecordHeader, ts_event)).unwrap_or_default(),
                    channel: *channel,
                    sequence: meta.sequence.0,
                    symbol,
                    instrument_id: id.0,
                    bid: entry(top.bid_px, top.bid_sz, top.bid_ct),
                    ask: entry(top.ask_px, top.ask_sz, top.ask_ct),
                    suspect: meta.flags.contains(FrameFlags::SUSPECT),
                };
                if failure.is_none() {
                    *failure = on_change(&change).err();
                }
            }
            EdgeOutput::Record { .. } | EdgeOutput::OtherLength { .. } => {}
        });
    }

    fn covered_through(&mut self, _channel_index: usize, _next: Sequence) {}

    fn session(&mut self, channel_index: usize, _session: Session, _next: Sequence) {
        if let Some(channel_tops) = self.channels.get_mut(channel_index) {
            channel_tops.instruments.clear();
        }
    }

    fn end_of_session(&mut self, _channel_index: usize) {}

    fn check(&mut self) -> Result<(), OfflineError> {
        self.failure.take().map_or(Ok(()), |source| Err(output_error(source)))
    }
}

fn entry(price_e9: i64, size: u32, order_count: u32) -> Option<Entry> {
    (price_e9 != UNDEF_PRICE).then_some((price_e9, size, order_count))
}

/// The best level of both sides in a market-by-price record.
fn top_of(record: &[u8]) -> Option<BidAskPair> {
    let at = |offset| offset_of!(Mbp1Msg, levels) + offset;
    let price = |offset| u64_at(record, at(offset)).map(u64::cast_signed);
    Some(BidAskPair {
        bid_px: price(offset_of!(BidAskPair, bid_px))?,
        ask_px: price(offset_of!(BidAskPair, ask_px))?,
        bid_sz: u32_at(record, at(offset_of!(BidAskPair, bid_sz)))?,
        ask_sz: u32_at(record, at(offset_of!(BidAskPair, ask_sz)))?,
        bid_ct: u32_at(record, at(offset_of!(BidAskPair, bid_ct)))?,
        ask_ct: u32_at(record, at(offset_of!(BidAskPair, ask_ct)))?,
    })
}

/// The 64-bit integer at this offset.
fn u64_at(record: &[u8], offset: usize) -> Option<u64> {
    record.get(offset..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
