//! DBN files, record by record.

use std::{
    collections::{HashMap, hash_map::Entry},
    mem::offset_of,
    path::Path,
};

use dbn::{
    RecordHeader,
    decode::{DecodeRecordRef as _, dbn::RecordDecoder},
    encode::EncodeRecordRef as _,
    enums::rtype,
};
use mdgw_captures::{
    dbn_file,
    dbn_input::{DbnInput, DbnInputError},
};
use serde_json::{Map, Value};

use super::{
    DiffError,
    compare::{Item, ItemName, Side},
};

/// Records named by publisher, instrument, type, `sequence` and index within the sequence. If the sequences of a stream
/// begin again (a lower `sequence` than before), a new pass begins.
#[derive(Debug)]
pub(super) struct DbnRecords {
    input: DbnInput,
    damage: Option<DbnInputError>,
    passes: HashMap<(u64, u128), Pass>,
}

/// Position of a stream.
#[derive(Clone, Copy, Debug)]
struct Pass {
    number: u32,
    sequence: u64,
    /// Index of the last record among the records with this sequence.
    count: u32,
}

impl DbnRecords {
    pub(super) fn open(path: &Path) -> Result<Self, DbnInputError> {
        Ok(Self { input: DbnInput::open(path)?, damage: None, passes: HashMap::new() })
    }
}

impl Side for DbnRecords {
    fn next(&mut self) -> Result<Option<Item>, DiffError> {
        let place = self.input.offset();
        let record = match self.input.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(None),
            Err(damage) => {
                self.damage = Some(damage);
                return Ok(None);
            }
        };
        let header: &RecordHeader = record.header();
        let stream = (u64::from(header.publisher_id) << 32 | u64::from(header.instrument_id), u128::from(header.rtype));
        let (content, local) = without_local_times(record.as_ref());
        let sequence = sequence_of(&content);
        let pass = match self.passes.entry(stream) {
            Entry::Vacant(begun) => *begun.insert(Pass { number: 0, sequence, count: 0 }),
            Entry::Occupied(before) => {
                let pass = before.into_mut();
                pass.number += u32::from(sequence < pass.sequence);
                pass.count = if sequence == pass.sequence { pass.count + 1 } else { 0 };
                pass.sequence = sequence;
                *pass
            }
        };
        let index = u64::from(pass.number) << 32 | u64::from(pass.count);
        Ok(Some(Item { name: ItemName { stream, sequence, index }, content, local, place }))
    }

    fn name(&self, name: &ItemName) -> String {
        let (pass, count) = (name.index >> 32, name.index & 0xffff_ffff);
        let pass = if pass > 0 { format!(" of session {}", pass + 1) } else { String::new() };
        let count = if count > 0 { format!(", record {}", count + 1) } else { String::new() };
        format!("{}, sequence {}{pass}{count}", self.stream(name), name.sequence)
    }

    fn stream(&self, name: &ItemName) -> String {
        let (publisher, instrument) = (name.stream.0 >> 32, name.stream.0 & 0xffff_ffff);
        let kind = u8::try_from(name.stream.1).ok().and_then(|rtype| dbn::RType::try_from(rtype).ok());
        let kind =
            kind.map_or_else(|| format!("rtype {}", name.stream.1), |kind| dbn_file::schema_name(kind).to_owned());
        format!("publisher {publisher}, instrument {instrument}, {kind}")
    }

    fn place(&self, place: u64) -> String {
        format!("at byte {place}")
    }

    fn may_repeat(&self) -> bool {
        false
    }

    fn explain(&self, a: &[u8], b: &[u8]) -> Option<String> {
        explain_records(a, b)
    }

    fn damages(&self) -> Vec<String> {
        self.damage.iter().map(ToString::to_string).collect()
    }

    fn file_bytes_read(&self) -> u64 {
        self.input.file_bytes_read()
    }
}

/// The differing fields of the first records that differ.
pub(super) fn explain_records(a: &[u8], b: &[u8]) -> Option<String> {
    let (a, b) = (rows(a), rows(b));
    if a.len() != b.len() {
        return Some(format!("{} records in A, {} in B", a.len(), b.len()));
    }
    let (a, b) = a.iter().zip(&b).find(|(a, b)| a != b)?;
    let (mut a_fields, mut b_fields) = (Map::new(), Map::new());
    flatten("", a, &mut a_fields);
    flatten("", b, &mut b_fields);
    let keys = a_fields.keys().chain(b_fields.keys().filter(|key| !a_fields.contains_key(*key)));
    let text = |value: Option<&Value>| {
        value.map_or_else(
            || "nothing".to_owned(),
            |value| match value {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            },
        )
    };
    let differing: Vec<String> = keys
        .filter(|key| a_fields.get(*key) != b_fields.get(*key))
        .map(|key| format!("{key}: {} in A, {} in B", text(a_fields.get(key)), text(b_fields.get(key))))
        .collect();
    Some(differing.join("; "))
}

/// Each record as JSON of the official encoder.
fn rows(records: &[u8]) -> Vec<Value> {
    let mut decoder = RecordDecoder::new(records);
    let mut rows = Vec::new();
    while let Ok(Some(record)) = decoder.decode_record_ref() {
        let mut line = Vec::new();
        let encoded = dbn::encode::json::Encoder::new(&mut line, false, true, true).encode_record_ref(record);
        rows.push(encoded.ok().and_then(|()| serde_json::from_slice(&line).ok()).unwrap_or_default());
    }
    rows
}

fn flatten(path: &str, value: &Value, fields: &mut Map<String, Value>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| flatten(&below(key), value, fields)),
        Value::Array(array) => {
            array.iter().enumerate().for_each(|(index, value)| flatten(&below(&index.to_string()), value, fields));
        }
        value => _ = fields.insert(path.to_owned(), value.clone()),
    }
}

/// A record without its receive times, and these times combined into one number.
pub(super) fn without_local_times(record: &[u8]) -> (Vec<u8>, u64) {
    let mut content = record.to_vec();
    let mut local = 0_u64;
    if let Some(offset) = dbn_file::ts_recv_at(record)
        && let Some(ts_recv) = content.get_mut(offset..offset + 8)
    {
        local = ts_recv.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        ts_recv.fill(0xff);
    }
    if let Some(offset) = ts_in_delta_at(record)
        && let Some(delta) = content.get_mut(offset..offset + 4)
    {
        local ^= delta.first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes))).rotate_left(32);
        delta.fill(0);
    }
    (content, local)
}

fn ts_in_delta_at(record: &[u8]) -> Option<usize> {
    Some(match *record.get(1)? {
        rtype::MBO => offset_of!(dbn::MboMsg, ts_in_delta),
        rtype::MBP_0 | rtype::MBP_1 | rtype::MBP_10 => offset_of!(dbn::TradeMsg, ts_in_delta),
        rtype::STATISTICS => offset_of!(dbn::StatMsg, ts_in_delta),
        _ => return None,
    })
}

/// The venue's sequence; 0 for record types without one.
fn sequence_of(record: &[u8]) -> u64 {
    let offset = match record.get(1).copied() {
        Some(rtype::MBO) => offset_of!(dbn::MboMsg, sequence),
        Some(rtype::MBP_0 | rtype::MBP_1 | rtype::MBP_10) => offset_of!(dbn::TradeMsg, sequence),
        Some(rtype::STATISTICS) => offset_of!(dbn::StatMsg, sequence),
        _ => return 0,
    };
    record.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
}
