//! Fields of DBN records, read at their offsets. A field beyond a record's end is 0.

use std::ffi::c_char;

/// Bytes of a record's header that precede `instrument_id`.
const INSTRUMENT_ID_OFFSET: usize = 4;

/// The instrument of a record.
#[must_use]
pub fn instrument_id(record: &[u8]) -> u32 {
    u32_at(record, INSTRUMENT_ID_OFFSET)
}

/// The event time of a record.
#[must_use]
pub fn ts_event(record: &[u8]) -> u64 {
    u64_at(record, INSTRUMENT_ID_OFFSET + 4)
}

/// A number in a record.
#[must_use]
pub fn u32_at(record: &[u8], offset: usize) -> u32 {
    record.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// A number in a record.
#[must_use]
pub fn u64_at(record: &[u8], offset: usize) -> u64 {
    record.get(offset..offset + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// C's `char` is signed on some processors and unsigned on others.
#[must_use]
pub fn c_char_of(byte: u8) -> c_char {
    c_char::from_ne_bytes([byte])
}
