//! A run of records of one dataset, made once and read by all sessions.

use std::sync::OnceLock;

use dbn::{RecordHeader, enums::rtype};

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
    /// Where in the bytes the schemas of the records change.
    runs: Vec<Run>,
    record_count: usize,
    /// Made once a session looks at single records: a chunk that goes out whole needs none.
    index: OnceLock<Box<[IndexEntry]>>,
    /// Schemas of which every record is; empty if there is a mapping or a control record, which are not for all alike.
    common_schemas: Schemas,
    /// The earliest event time.
    ts_event_min: u64,
    /// For each channel of the dataset, the place in its log with which the chunk begins.
    pub(crate) first_places: Vec<LogPlace>,
    /// Every channel's session had ended when the chunk was made.
    pub(crate) is_end_of_session: bool,
}

/// Records of the same schemas.
#[derive(Clone, Copy, Debug)]
struct Run {
    begin: u32,
    schemas: Schemas,
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
        Self { bytes: Vec::with_capacity(CHUNK_BYTES + ROOM_BYTES), ..Self::default() }
    }

    /// An empty chunk in the same memory.
    pub(crate) fn emptied(self) -> Self {
        let Self { mut bytes, mut runs, .. } = self;
        bytes.clear();
        runs.clear();
        Self { bytes, runs, ..Self::default() }
    }

    /// Appends a record. One whose length is not that in its header is left out: nobody could find the next one.
    #[inline]
    pub(crate) fn push(&mut self, record: &[u8], schemas: Schemas) {
        let length = record.first().map(|words| usize::from(*words) * RecordHeader::LENGTH_MULTIPLIER);
        let Ok(begin) = u32::try_from(self.bytes.len()) else { return };
        if length != Some(record.len()) {
            return;
        }
        let (is_first, ts_event) = (self.record_count == 0, control::ts_event(record));
        let common = if record.get(1) == Some(&rtype::SYSTEM) { Schemas::default() } else { schemas };
        self.common_schemas = if is_first { common } else { self.common_schemas.and(common) };
        self.ts_event_min = if is_first { ts_event } else { self.ts_event_min.min(ts_event) };
        if self.runs.last().is_none_or(|run| run.schemas != schemas) {
            self.runs.push(Run { begin, schemas });
        }
        match <&[u8; size_of::<dbn::MboMsg>()]>::try_from(record) {
            // Most records by far: the compiler knows the length, and calls nothing.
            Ok(order) => self.bytes.extend_from_slice(order),
            Err(_) => self.bytes.extend_from_slice(record),
        }
        self.record_count += 1;
        if self.index.get().is_some() {
            self.index = OnceLock::new();
        }
    }

    /// Iterates over the records in stream order.
    pub(crate) fn records(&self) -> impl Iterator<Item = ChunkRecord<'_>> {
        let index = self.index.get_or_init(|| self.make_index());
        let ends = index.iter().skip(1).map(|entry| entry.begin as usize).chain([self.bytes.len()]);
        index.iter().zip(ends).map(|(entry, end)| ChunkRecord {
            bytes: self.bytes.get(entry.begin as usize..end).unwrap_or_default(),
            instrument_id: entry.instrument_id,
            schemas: entry.schemas,
        })
    }

    fn make_index(&self) -> Box<[IndexEntry]> {
        let mut index = Vec::with_capacity(self.record_count);
        let mut runs = self.runs.iter().peekable();
        let (mut begin, mut schemas, mut rest) = (0, Schemas::default(), self.bytes.as_slice());
        // `push` has checked that each length is right.
        while let Some(words) = rest.first() {
            if let Some(run) = runs.next_if(|run| run.begin == begin) {
                schemas = run.schemas;
            }
            index.push(IndexEntry { begin, instrument_id: control::instrument_id(rest), schemas });
            begin += u32::from(*words) * LENGTH_UNIT_BYTES;
            rest = self.bytes.get(begin as usize..).unwrap_or_default();
        }
        index.into_boxed_slice()
    }

    /// If each record is of some schema and none needs a look of its own: those schemas, and the earliest event time.
    pub(crate) fn whole(&self) -> Option<(Schemas, u64)> {
        (!self.common_schemas.is_empty()).then_some((self.common_schemas, self.ts_event_min))
    }

    /// The bytes of all records.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Memory of the records and their index, which may still be to come.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.runs.len() * size_of::<Run>() + self.record_count * size_of::<IndexEntry>()
    }

    /// Whether a session has nothing to do for the chunk.
    pub(crate) fn is_empty(&self) -> bool {
        self.record_count == 0 && !self.is_end_of_session
    }

    /// Whether the chunk has reached its size.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= CHUNK_BYTES
    }

    /// Releases memory that was reserved for more.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.runs.shrink_to_fit();
    }
}

/// The unit of a record's length.
const LENGTH_UNIT_BYTES: u32 = 4;

const _: () = assert!(LENGTH_UNIT_BYTES as usize == RecordHeader::LENGTH_MULTIPLIER);
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

    /// The index is made from the lengths in the records, and from where the schemas change.
    #[test]
    fn each_record_keeps_its_schemas_whatever_its_length_is() {
        let (order, heartbeat) = (dbn::MboMsg::default(), control::heartbeat(5));
        let mut chunk = Chunk::default();
        let pushed: Vec<(&[u8], _)> = vec![
            (order.as_ref(), Schemas::MBO),
            (order.as_ref(), Schemas::MBO),
            (heartbeat.as_ref(), Schemas::MBO),
            (order.as_ref(), Schemas::MBP_1),
            (heartbeat.as_ref(), Schemas::OHLCV_1S),
            (order.as_ref(), Schemas::MBO),
        ];
        for (record, schemas) in &pushed {
            chunk.push(record, *schemas);
        }
        assert!(chunk.records().map(|record| (record.bytes, record.schemas)).eq(pushed));
    }

    #[test]
    fn a_record_with_another_length_than_its_header_says_is_left_out() {
        let order = dbn::MboMsg::default();
        let mut chunk = Chunk::default();
        for record in [&[], &order.as_ref()[..52], &[order.as_ref(), &[0; 4]].concat(), &[0; 56]] {
            chunk.push(record, Schemas::MBO);
        }
        assert!(chunk.is_empty() && chunk.records().next().is_none());
        chunk.push(order.as_ref(), Schemas::MBO);
        assert!(chunk.records().map(|record| record.bytes).eq([order.as_ref()]));
    }

    #[test]
    fn a_chunk_that_goes_out_whole_has_no_index_until_a_session_needs_it() {
        let mut chunk = Chunk::default();
        chunk.push(dbn::MboMsg::default().as_ref(), Schemas::MBO);
        let memory_bytes = chunk.memory_bytes();
        assert!(chunk.whole().is_some() && chunk.index.get().is_none());
        assert_eq!(chunk.records().count(), 1);
        assert!(chunk.index.get().is_some());
        assert_eq!(chunk.memory_bytes(), memory_bytes, "the ring counts the index from the start on");
    }

    #[test]
    fn an_emptied_chunk_keeps_its_memory_and_nothing_else() {
        let mut chunk = Chunk::with_room();
        chunk.push(control::heartbeat(5).as_ref(), Schemas::MBO);
        chunk.is_end_of_session = true;
        assert_eq!(chunk.records().count(), 1);
        let memory = chunk.bytes().as_ptr();
        let mut chunk = chunk.emptied();
        assert!(chunk.is_empty() && chunk.memory_bytes() == 0 && chunk.records().next().is_none());
        chunk.push(dbn::MboMsg::default().as_ref(), Schemas::TRADES);
        let schemas = chunk.whole().map(|(schemas, _)| schemas);
        assert_eq!((chunk.bytes().as_ptr(), schemas), (memory, Some(Schemas::TRADES)));
    }

    #[test]
    fn a_chunk_is_whole_for_the_schemas_of_all_its_records() {
        let order = |ts_event| dbn::MboMsg {
            hd: RecordHeader::new::<dbn::MboMsg>(rtype::MBO, 1, 7, ts_event),
            ..Default::default()
        };
        let mut chunk = Chunk::with_room();
        assert!(chunk.whole().is_none(), "nothing is in it");
        chunk.push(order(9).as_ref(), Schemas::MBO);
        chunk.push(order(5).as_ref(), Schemas::MBO.with(Schemas::TRADES));
        assert_eq!((chunk.bytes().len(), chunk.whole()), (112, Some((Schemas::MBO, 5))));
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
