//! Data that books don't hold, counted from the channels' frames: symbols, volume, trades.

use std::{collections::BTreeMap, mem::offset_of};

use dbn::enums::rtype;
use mdgw_feeds::{
    channel::ChannelConfig,
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    frame::{FrameFlags, FrameKind, FrameMeta},
    identity::{InstrumentId, Sequence, Session},
};

use crate::replay::offline::{OfflineError, ReplaySink, StopPoint};

/// Counts for all channels.
#[derive(Debug, Default)]
pub(super) struct TradeCounter(Vec<ChannelTrades>);

/// Counts of one channel's current session.
#[derive(Debug, Default)]
pub(super) struct ChannelTrades {
    edge: ConsumerEdge,
    instruments: BTreeMap<InstrumentId, Instrument>,
    /// Sessions with their first sequence in the files, and the sequence reached before the next session began.
    sessions: Vec<(Session, Sequence, Sequence)>,
}

/// Counts of an instrument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Instrument {
    pub(super) symbol: String,
    pub(super) volume: u64,
    pub(super) trades: u64,
}

impl TradeCounter {
    pub(super) fn channels(&self) -> &[ChannelTrades] {
        &self.0
    }

    /// Whether the session of the stop point began only after that message.
    pub(super) fn begins_after(&self, stop: &StopPoint) -> bool {
        let stopped_in = self.0.iter().filter_map(|channel| channel.sessions.last());
        let mut reached = stopped_in.filter(|(.., next)| *next > stop.sequence).peekable();
        reached.peek().is_some() && reached.all(|(_, first, _)| *first > stop.sequence)
    }

    /// Describes the sessions and the sequence range of each.
    pub(super) fn describe_sessions(&self) -> String {
        let mut seen: Vec<String> = Vec::new();
        for (session, first, next) in self.0.iter().flat_map(|channel| &channel.sessions).take(SESSIONS_LISTED_MAX) {
            let (date, restart, last) = (session.date, session.restart, next.0.saturating_sub(1));
            seen.push(format!("{date}#{restart} from {} to {last}", first.0));
        }
        if seen.is_empty() {
            "the files contain no session".to_owned()
        } else {
            format!("the files contain {}", seen.join(", "))
        }
    }
}

impl ChannelTrades {
    pub(super) fn instruments(&self) -> impl Iterator<Item = (InstrumentId, &Instrument)> {
        self.instruments.iter().map(|(id, instrument)| (*id, instrument))
    }
}

impl ReplaySink for TradeCounter {
    fn channel(&mut self, _channel_index: usize, _config: &ChannelConfig) -> Result<(), OfflineError> {
        self.0.push(ChannelTrades { edge: ConsumerEdge::new(TsRecvMode::None), ..ChannelTrades::default() });
        Ok(())
    }

    fn frame(&mut self, channel_index: usize, meta: &FrameMeta, record_count: u16, body: &[u8]) {
        let Some(ChannelTrades { edge, instruments, .. }) = self.0.get_mut(channel_index) else { return };
        if meta.kind != FrameKind::Message || meta.flags.contains(FrameFlags::LATE_FILL) {
            return;
        }
        edge.deliver(&meta.header(record_count, body), body, |handed| match handed {
            EdgeOutput::Mapping { id, symbol } => {
                instruments.entry(id).or_default().symbol = String::from_utf8_lossy(symbol).into_owned();
            }
            EdgeOutput::Record { rtype: rtype::MBP_0, bytes } => {
                let (Some(id), Some(size)) = (instrument_of(bytes), u32_at(bytes, offset_of!(dbn::TradeMsg, size)))
                else {
                    return;
                };
                let instrument = instruments.entry(id).or_default();
                instrument.volume = instrument.volume.saturating_add(u64::from(size));
                instrument.trades += 1;
            }
            EdgeOutput::Record { .. } | EdgeOutput::OtherLength { .. } => {}
        });
    }

    fn covered_through(&mut self, channel_index: usize, next: Sequence) {
        if let Some((.., covered_through)) =
            self.0.get_mut(channel_index).and_then(|channel| channel.sessions.last_mut())
        {
            *covered_through = next;
        }
    }

    fn session(&mut self, channel_index: usize, session: Session, next: Sequence) {
        if let Some(channel) = self.0.get_mut(channel_index) {
            channel.instruments.clear();
            if channel.sessions.len() == SESSIONS_MAX {
                channel.sessions.remove(0);
            }
            channel.sessions.push((session, next, next));
        }
    }

    fn end_of_session(&mut self, _channel_index: usize) {}
}

/// The instrument id of a record: it follows length, type and publisher.
pub(super) fn instrument_of(record: &[u8]) -> Option<InstrumentId> {
    u32_at(record, offset_of!(dbn::RecordHeader, instrument_id)).map(InstrumentId)
}

/// The 32-bit integer at this offset.
pub(super) fn u32_at(record: &[u8], offset: usize) -> Option<u32> {
    record.get(offset..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

const SESSIONS_MAX: usize = 1_000;
const SESSIONS_LISTED_MAX: usize = 20;
