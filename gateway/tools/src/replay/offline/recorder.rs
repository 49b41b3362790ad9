//! Turns frames into the records that a consumer gets, filters them by schema, counts and writes them.

use mdgw_captures::dbn_file::DbnFileWriter;
use mdgw_feeds::{
    channel::{ChannelConfig, SchemaSet},
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    frame::{FrameFlags, FrameKind, FrameMeta},
    identity::{Feed, Sequence, Session},
    time::TradingDate,
};

use super::{OfflineError, ReplaySink};

/// Counts the records of all channels and writes them to a DBN file, if there is one.
#[derive(Debug)]
pub(super) struct Recorder {
    ts_recv: TsRecvMode,
    schemas: Option<SchemaSet>,
    channels: Vec<ChannelRecords>,
    writer: Option<DbnFileWriter>,
}

/// Counts of a channel.
#[derive(Debug)]
pub(super) struct ChannelRecords {
    edge: ConsumerEdge,
    feed: Feed,
    schemas: SchemaSet,
    date: Option<TradingDate>,
    /// In the order of [`SchemaSet::NAMES`].
    by_schema: [u64; SchemaSet::NAMES.len()],
    /// Records of suspect books.
    pub(super) suspect: u64,
    /// Frames that filled a gap after it had been declared: not recorded, since records after them were already
    /// written.
    pub(super) late_messages: u64,
}

impl Recorder {
    pub(super) fn new(ts_recv: TsRecvMode, schemas: Option<SchemaSet>, writer: Option<DbnFileWriter>) -> Self {
        Self { ts_recv, schemas, channels: Vec::new(), writer }
    }

    pub(super) fn into_parts(self) -> (Vec<ChannelRecords>, Option<DbnFileWriter>) {
        (self.channels, self.writer)
    }
}

impl ChannelRecords {
    /// Records by schema, of the selected schemas.
    pub(super) fn by_schema(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let wanted = SchemaSet::NAMES.into_iter().zip(self.by_schema);
        wanted.filter(|((schema, _), _)| self.schemas.contains(*schema)).map(|((_, name), count)| (name, count))
    }
}

impl ReplaySink for Recorder {
    fn channel(&mut self, _channel_index: usize, config: &ChannelConfig) -> Result<(), OfflineError> {
        if let Some(writer) = &mut self.writer {
            match self.channels.first() {
                Some(first) if first.feed != config.feed => {
                    return Err(OfflineError::SeveralDatasets { first: first.feed, second: config.feed });
                }
                _ => writer.set_dataset(config.feed.dataset()),
            }
        }
        self.channels.push(ChannelRecords {
            edge: ConsumerEdge::new(self.ts_recv),
            feed: config.feed,
            schemas: self.schemas.unwrap_or(config.schemas),
            date: config.date,
            by_schema: [0; SchemaSet::NAMES.len()],
            suspect: 0,
            late_messages: 0,
        });
        Ok(())
    }

    #[inline]
    fn frame(&mut self, channel_index: usize, meta: &FrameMeta, record_count: u16, body: &[u8]) {
        let Some(channel) = self.channels.get_mut(channel_index) else { return };
        match meta.kind {
            FrameKind::Message | FrameKind::Snapshot => {}
            FrameKind::Gap | FrameKind::State | FrameKind::SnapshotChunk => return,
        }
        if meta.flags.contains(FrameFlags::LATE_FILL) {
            channel.late_messages += 1;
            return;
        }
        if meta.flags.contains(FrameFlags::SUSPECT) {
            channel.suspect += u64::from(record_count);
        }
        let header = meta.header(record_count, body);
        let ChannelRecords { edge, schemas, date, by_schema, .. } = channel;
        let writer = &mut self.writer;
        edge.deliver(&header, body, |handed| match handed {
            EdgeOutput::Record { rtype, bytes } => {
                let Some(position) = schema_position(rtype) else { return };
                if !SchemaSet::NAMES.get(position).is_some_and(|(schema, _)| schemas.contains(*schema)) {
                    return;
                }
                if let Some(count) = by_schema.get_mut(position) {
                    *count += 1;
                }
                if let Some(writer) = writer {
                    writer.record(bytes);
                }
            }
            // The own channels make no such record.
            EdgeOutput::OtherLength { .. } => {}
            EdgeOutput::Mapping { id, symbol } => {
                if let (Some(writer), Some(date)) = (writer.as_mut(), *date) {
                    writer.mapping(symbol, id, date);
                }
            }
        });
    }

    fn covered_through(&mut self, _channel_index: usize, _next: Sequence) {}

    fn session(&mut self, channel_index: usize, session: Session, _next: Sequence) {
        if let Some(channel) = self.channels.get_mut(channel_index) {
            channel.date = Some(session.date);
        }
    }

    fn end_of_session(&mut self, _channel_index: usize) {}

    /// Finishes a file that can't be written any further: its error says how much was kept.
    fn check(&mut self) -> Result<(), OfflineError> {
        let failed = self.writer.take_if(|writer| writer.has_failed());
        failed.map_or(Ok(()), |writer| writer.finish().map(drop).map_err(OfflineError::from))
    }
}

/// Index in [`SchemaSet::NAMES`] of a record type's schema.
#[inline]
fn schema_position(rtype: u8) -> Option<usize> {
    use dbn::enums::rtype;
    Some(match rtype {
        rtype::MBO => 0,
        rtype::MBP_1 => 1,
        rtype::MBP_10 => 2,
        rtype::MBP_0 => 3,
        rtype::STATUS => 4,
        rtype::INSTRUMENT_DEF => 5,
        rtype::IMBALANCE => 6,
        rtype::STATISTICS => 7,
        _ => return None,
    })
}
