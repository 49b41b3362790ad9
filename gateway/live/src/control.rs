//! What the server itself says in the binary part: metadata, control records, mappings.

use std::ffi::c_char;

use dbn::{
    ErrorMsg, RecordHeader, SType, SymbolMappingMsg, SystemMsg, UNDEF_TIMESTAMP,
    enums::{ErrorCode, SystemCode, rtype},
};

pub(crate) use mdgw_log_books::record::{instrument_id, ts_event, u32_at, u64_at};

/// Bytes of the metadata of a live session.
pub(crate) const METADATA_BYTES: usize = 128;
/// Length of the send time that follows each record when the client asked for it, in the unit of a record's length.
const TS_OUT_WORDS: u8 = 2;
const _: () = assert!(TS_OUT_WORDS as usize * RecordHeader::LENGTH_MULTIPLIER == size_of::<u64>());
/// Longest text of a system record.
const SYSTEM_TEXT_BYTES_MAX: usize = 302;

/// The DBN metadata of a session, version 3. Everything but the start is the same for each session of a dataset: a client
/// that reconnects compares.
#[must_use]
pub(crate) fn metadata(dataset: &str, start_ns: u64, ts_out: bool) -> [u8; METADATA_BYTES] {
    let mut bytes = [0; METADATA_BYTES];
    let mut put = |offset: usize, value: &[u8]| bytes[offset..offset + value.len()].copy_from_slice(value);
    put(0, b"DBN\x03");
    put(4, &120_u32.to_le_bytes());
    let dataset = dataset.as_bytes();
    put(8, &dataset[..dataset.len().min(15)]);
    // A live session mixes schemas and input symbol types.
    put(24, &u16::MAX.to_le_bytes());
    put(26, &start_ns.to_le_bytes());
    put(34, &u64::MAX.to_le_bytes());
    put(50, &[u8::MAX, SType::InstrumentId as u8, u8::from(ts_out)]);
    put(53, &71_u16.to_le_bytes());
    bytes
}

/// Nothing else was sent for the interval.
pub(crate) fn heartbeat(ts_event: u64) -> SystemMsg {
    SystemMsg::heartbeat(ts_event)
}

/// A request was accepted.
pub(crate) fn subscription_acknowledgement(ts_event: u64, id: &str, schema: &str) -> SystemMsg {
    let text = format!("Subscription request {id} for {schema} data succeeded");
    system(ts_event, SystemCode::SubscriptionAck, &text)
}

/// An unsubscription was accepted.
pub(crate) fn unsubscription_acknowledgement(ts_event: u64, schema: &str) -> SystemMsg {
    let text = format!("Unsubscribe request for {schema} data succeeded");
    system(ts_event, SystemCode::UnsubscribeAck, &text)
}

/// The client is behind.
pub(crate) fn slow_reader_warning(ts_event: u64, behind_bytes: u64) -> SystemMsg {
    let text = format!("Warning: slow reading, {behind_bytes} bytes behind");
    system(ts_event, SystemCode::SlowReaderWarning, &text)
}

/// The replay of a request has caught up.
pub(crate) fn replay_completed(ts_event: u64, schema: &str) -> SystemMsg {
    system(ts_event, SystemCode::ReplayCompleted, &format!("Finished {schema} replay"))
}

/// All bars of an interval are out.
pub(crate) fn end_of_interval(ts_event: u64, schema: &str) -> SystemMsg {
    system(ts_event, SystemCode::EndOfInterval, &format!("End of interval for {schema}"))
}

/// A system record with another time of sending.
pub(crate) fn sent_at(record: &[u8], ts_event: u64) -> Option<[u8; size_of::<SystemMsg>()]> {
    let mut record: [u8; size_of::<SystemMsg>()] = record.try_into().ok()?;
    let at = core::mem::offset_of!(RecordHeader, ts_event);
    record.get_mut(at..at + size_of::<u64>())?.copy_from_slice(&ts_event.to_le_bytes());
    Some(record)
}

fn system(ts_event: u64, code: SystemCode, text: &str) -> SystemMsg {
    let text = text.get(..SYSTEM_TEXT_BYTES_MAX).unwrap_or(text);
    SystemMsg::new(ts_event, Some(code), text).unwrap_or_else(|_| SystemMsg::heartbeat(ts_event))
}

/// An error. `is_last` is false where further errors of the same request follow.
pub(crate) fn error(ts_event: u64, code: ErrorCode, text: &str, is_last: bool) -> ErrorMsg {
    ErrorMsg::new(ts_event, Some(code), text, is_last)
}

/// Maps the symbol of a request, or that of an instrument, to the instrument's id.
pub(crate) fn mapping(
    ts_event: u64,
    instrument_id: u32,
    (stype_in, in_symbol): (SType, &str),
    raw_symbol: &str,
) -> SymbolMappingMsg {
    SymbolMappingMsg {
        hd: RecordHeader::new::<SymbolMappingMsg>(rtype::SYMBOL_MAPPING, 0, instrument_id, ts_event),
        stype_in: stype_in as u8,
        stype_in_symbol: c_chars(in_symbol),
        stype_out: SType::RawSymbol as u8,
        stype_out_symbol: c_chars(raw_symbol),
        start_ts: UNDEF_TIMESTAMP,
        end_ts: UNDEF_TIMESTAMP,
    }
}

/// Appends a record as the client asked for it: with `ts_out`, eight bytes longer.
pub(crate) fn append_record(out: &mut Vec<u8>, record: &[u8], ts_out: Option<u64>) {
    let begin = out.len();
    out.extend_from_slice(record);
    if let Some(ts_out) = ts_out {
        if let Some(length) = out.get_mut(begin) {
            *length = length.saturating_add(TS_OUT_WORDS);
        }
        out.extend_from_slice(&ts_out.to_le_bytes());
    }
}

fn c_chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (slot, byte) in field.iter_mut().take(N - 1).zip(text.bytes()) {
        *slot = c_char::from_ne_bytes([byte]);
    }
    field
}

#[cfg(test)]
mod tests {
    use dbn::decode::{DbnMetadata as _, dbn::Decoder};

    use super::*;

    #[test]
    fn the_metadata_is_that_of_the_contract_and_decodes() {
        let start = 0x18e9_edc1_90c3_f358;
        let bytes = metadata("XNAS.ITCH", start, false);
        let mut expected = Vec::new();
        expected.extend(b"DBN\x03\x78\0\0\0XNAS.ITCH\0\0\0\0\0\0\0\xff\xff");
        expected.extend(start.to_le_bytes());
        expected.extend([0xff; 8]);
        expected.extend([0; 8]);
        expected.extend([0xff, 0, 0, 0x47, 0]);
        expected.resize(METADATA_BYTES, 0);
        assert_eq!(bytes.as_slice(), expected);
        let decoder = Decoder::new(bytes.as_slice()).unwrap();
        let metadata = decoder.metadata();
        assert_eq!((metadata.dataset.as_str(), metadata.schema, metadata.ts_out), ("XNAS.ITCH", None, false));
    }

    #[test]
    fn control_records_have_the_texts_that_older_decoders_know() {
        let record = subscription_acknowledgement(7, "0", "mbo");
        assert_eq!(record.as_ref()[..16], [0x50, 0x17, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(record.msg().unwrap(), "Subscription request 0 for mbo data succeeded");
        assert_eq!(record.as_ref()[319], 1);
        assert_eq!(heartbeat(7).as_ref()[319], 0);
        assert_eq!(heartbeat(7).msg().unwrap(), "Heartbeat");
        assert_eq!(slow_reader_warning(7, 9).as_ref()[319], 2);
        assert_eq!(replay_completed(7, "mbo").as_ref()[319], 3);
        assert_eq!(end_of_interval(7, "ohlcv-1s").as_ref()[319], 4);
        assert_eq!(unsubscription_acknowledgement(7, "mbo").as_ref()[319], 5);
        let record = error(7, ErrorCode::SymbolResolutionFailed, "Failed to resolve symbol: NOPE", true);
        assert_eq!((record.as_ref()[1], record.as_ref()[318], record.as_ref()[319]), (0x15, 4, 1));
        let record = mapping(7, 6150, (SType::RawSymbol, "AAPL"), "AAPL");
        assert_eq!(record.as_ref().len(), 176);
        assert_eq!((&record.as_ref()[16..21], &record.as_ref()[88..93]), (&b"\x01AAPL"[..], &b"\x01AAPL"[..]));
    }

    #[test]
    fn a_send_time_makes_each_record_two_words_longer() {
        let mut out = Vec::new();
        append_record(&mut out, heartbeat(7).as_ref(), Some(9));
        assert_eq!((out.len(), out[0]), (328, 0x52));
        assert_eq!(out[320..], 9_u64.to_le_bytes());
        append_record(&mut out, heartbeat(7).as_ref(), None);
        assert_eq!((out.len(), out[328]), (648, 0x50));
    }
}
