//! A run of records of one dataset with an index, made once and read by all sessions.

use dbn::enums::rtype;

use super::place::LogPlace;
use crate::{control, schema::Schemas};

/// Bytes of records after which a chunk is full. A chunk can exceed it by the records of one log entry.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// What the last entry of a chunk usually has beyond that.
const ROOM_BYTES: usize = 2 << 10;

/// Records in stream order.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    bytes: Vec<u8>,
    index: Vec<IndexEntry>,
    /// Schemas of which every record is; empty if there is a mapping or a control record, which are not for all alike.
    common_schemas: Schemas,
    /// The earliest event time.
    ts_event_min: u64,
    /// For each channel of the dataset, the place in its log with which the chunk begins.
    pub(crate) first_places: Vec<LogPlace>,
    /// Every channel's session had ended when the chunk was made.
    pub(crate) is_end_of_session: bool,
}

#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    begin: u32,
    instrument_id: u32,
    schemas: Schemas,
}

/// One record of a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkRecord<'a> {
    /// Header and body, without send time.
    pub(crate) bytes: &'a [u8],
    /// Instrument id; 0 for control records.
    pub(crate) instrument_id: u32,
    /// The schemas that the record belongs to; empty for a mapping.
    pub(crate) schemas: Schemas,
}

impl ChunkRecord<'_> {
    /// Whether the record maps a symbol.
    pub(crate) fn is_mapping(&self) -> bool {
        self.bytes.get(1) == Some(&rtype::SYMBOL_MAPPING)
    }

    /// Whether the record is a control record for all that receive its schemas.
    pub(crate) fn is_control(&self) -> bool {
        self.bytes.get(1) == Some(&rtype::SYSTEM)
    }

    /// The raw symbol of a mapping.
    pub(crate) fn mapped_symbol(&self) -> Option<&str> {
        let begin = core::mem::offset_of!(dbn::SymbolMappingMsg, stype_out_symbol);
        let field = self.bytes.get(begin..begin + dbn::SYMBOL_CSTR_LEN)?;
        std::str::from_utf8(field.split(|byte| *byte == 0).next()?).ok()
    }
}

impl Chunk {
    /// An empty chunk with room for as much as it usually takes.
    pub(crate) fn with_room() -> Self {
        let bytes = Vec::with_capacity(CHUNK_BYTES + ROOM_BYTES);
        Self { bytes, index: Vec::with_capacity(CHUNK_BYTES / size_of::<dbn::MboMsg>()), ..Self::default() }
    }

    /// Appends a record.
    pub(crate) fn push(&mut self, record: &[u8], schemas: Schemas) {
        let Ok(begin) = u32::try_from(self.bytes.len()) else { return };
        let (is_first, ts_event) = (self.index.is_empty(), control::ts_event(record));
        let common = if record.get(1) == Some(&rtype::SYSTEM) { Schemas::default() } else { schemas };
        self.common_schemas = if is_first { common } else { self.common_schemas.and(common) };
        self.ts_event_min = if is_first { ts_event } else { self.ts_event_min.min(ts_event) };
        self.bytes.extend_from_slice(record);
        self.index.push(IndexEntry { begin, instrument_id: control::instrument_id(record), schemas });
    }

    /// Iterates over the records in stream order.
    pub(crate) fn records(&self) -> impl Iterator<Item = ChunkRecord<'_>> {
        let ends = self.index.iter().skip(1).map(|entry| entry.begin as usize).chain([self.bytes.len()]);
        self.index.iter().zip(ends).map(|(entry, end)| ChunkRecord {
            bytes: self.bytes.get(entry.begin as usize..end).unwrap_or_default(),
            instrument_id: entry.instrument_id,
            schemas: entry.schemas,
        })
    }

    /// All records, if each of them is of some schema and none needs a look of its own: their bytes, those schemas, and the earliest
    /// event time.
    pub(crate) fn whole(&self) -> Option<(&[u8], Schemas, u64)> {
        (!self.common_schemas.is_empty()).then_some((&self.bytes, self.common_schemas, self.ts_event_min))
    }

    /// Memory of the records and their index.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.index.len() * size_of::<IndexEntry>()
    }

    /// Whether a session has nothing to do for the chunk.
    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty() && !self.is_end_of_session
    }

    /// Whether the chunk has reached its size.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= CHUNK_BYTES
    }

    /// Releases memory that was reserved for more.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.index.shrink_to_fit();
    }
}

const _: () = assert!(size_of::<IndexEntry>() == 12);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in() {
        let mut chunk = Chunk::default();
        let mapping = control::mapping(1, 77, (dbn::SType::RawSymbol, "AAPL"), "AAPL");
        let heartbeat = control::heartbeat(5);
        chunk.push(mapping.as_ref(), Schemas::default());
        chunk.push(heartbeat.as_ref(), Schemas::OHLCV_1S);
        let records: Vec<_> = chunk.records().collect();
        assert_eq!(records.len(), 2);
        assert_eq!((records[0].bytes, records[0].instrument_id), (mapping.as_ref(), 77));
        assert_eq!((records[0].is_mapping(), records[0].mapped_symbol()), (true, Some("AAPL")));
        assert_eq!((records[1].bytes, records[1].schemas), (heartbeat.as_ref(), Schemas::OHLCV_1S));
        assert!(records[1].is_control());
    }

    #[test]
    fn a_chunk_is_whole_for_the_schemas_of_all_its_records() {
        let order = |ts_event| dbn::MboMsg {
            hd: dbn::RecordHeader::new::<dbn::MboMsg>(rtype::MBO, 1, 7, ts_event),
            ..Default::default()
        };
        let mut chunk = Chunk::with_room();
        assert!(chunk.whole().is_none(), "nothing is in it");
        chunk.push(order(9).as_ref(), Schemas::MBO);
        chunk.push(order(5).as_ref(), Schemas::MBO.with(Schemas::TRADES));
        let (bytes, schemas, ts_event_min) = chunk.whole().unwrap();
        assert_eq!((bytes.len(), schemas, ts_event_min), (112, Schemas::MBO, 5));
        let whole = |record: &[u8], schemas| {
            let mut chunk = Chunk::default();
            chunk.push(order(9).as_ref(), Schemas::MBO);
            chunk.push(record, schemas);
            chunk.whole().is_some()
        };
        assert!(whole(order(9).as_ref(), Schemas::MBO));
        assert!(!whole(order(9).as_ref(), Schemas::TRADES), "no schema has both");
        assert!(!whole(control::mapping(1, 77, (dbn::SType::RawSymbol, "A"), "A").as_ref(), Schemas::default()));
        assert!(!whole(control::heartbeat(5).as_ref(), Schemas::MBO), "its send time is that of the session");
    }
}
