//! Where the values that are local to a gateway stand in DBN records (encoding version 3), as numbers, so that a consumer
//! needs no DBN library of our version. The test compares each number with the official library.

/// Length of a record is counted in units of this many bytes.
pub(crate) const LENGTH_UNIT_BYTES: usize = 4;
/// Bytes of a record's header.
pub(crate) const RECORD_HEADER_BYTES: usize = 16;
/// Bytes of the longest record, with a send time behind it.
pub(crate) const RECORD_BYTES_MAX: usize = 528;
/// A time that is not known, ns.
pub(crate) const UNDEFINED_TIME: u64 = u64::MAX;
/// Flag: the receive time was raised to that of the record before, or is otherwise unreliable.
pub(crate) const FLAG_BAD_TS_RECV: u8 = 1 << 3;
/// Flag: the book may be wrong.
pub(crate) const FLAG_MAYBE_BAD_BOOK: u8 = 1 << 2;

/// Flag: from a snapshot or a replay, not from the stream.
pub(crate) const FLAG_SNAPSHOT: u8 = 1 << 5;

/// Numbers of record types.
pub(crate) mod rtype {
    pub(crate) const MBP_0: u8 = 0x00;
    pub(crate) const MBP_1: u8 = 0x01;
    pub(crate) const MBP_10: u8 = 0x0A;
    pub(crate) const STATUS: u8 = 0x12;
    pub(crate) const INSTRUMENT_DEF: u8 = 0x13;
    pub(crate) const IMBALANCE: u8 = 0x14;
    pub(crate) const SYMBOL_MAPPING: u8 = 0x16;
    pub(crate) const STATISTICS: u8 = 0x18;
    pub(crate) const MBO: u8 = 0xA0;
}

/// Where a symbol mapping has its instrument's number and the symbol at the venue, padded with zeros.
pub(crate) const MAPPING_INSTRUMENT_ID: core::ops::Range<usize> = 4..8;
pub(crate) const MAPPING_SYMBOL: core::ops::Range<usize> = 89..160;

/// Length of a record and offsets of its local values, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLayout {
    pub(crate) bytes: usize,
    pub(crate) ts_recv: usize,
    pub(crate) ts_in_delta: Option<usize>,
    pub(crate) flags: Option<usize>,
}

impl RecordLayout {
    /// Layout of the records of a type that a gateway publishes.
    pub(crate) fn of(kind: u8) -> Option<Self> {
        // The three types share their layout up to the levels.
        let trade_or_levels = |bytes| Self { bytes, ts_recv: 32, ts_in_delta: Some(40), flags: Some(30) };
        let without_flags = |bytes, ts_in_delta| Self { bytes, ts_recv: 16, ts_in_delta, flags: None };
        Some(match kind {
            rtype::MBO => Self { bytes: 56, ts_recv: 40, ts_in_delta: Some(48), flags: Some(36) },
            rtype::MBP_0 => trade_or_levels(48),
            rtype::MBP_1 => trade_or_levels(80),
            rtype::MBP_10 => trade_or_levels(368),
            rtype::STATUS => without_flags(40, None),
            rtype::INSTRUMENT_DEF => without_flags(520, None),
            rtype::IMBALANCE => without_flags(112, None),
            rtype::STATISTICS => without_flags(80, Some(52)),
            _ => return None,
        })
    }
}

/// Whether a record changes a book or the trading status. If so, it is marked as one that comes from a snapshot. Trades and fills
/// change no book: the cancel beside them does, and the levels of a trade are those before its effect.
pub(crate) fn mark_state_record(kind: u8, record: &mut [u8]) -> bool {
    let action_at = match kind {
        rtype::MBO => MBO_ACTION,
        rtype::MBP_1 | rtype::MBP_10 => MBP_ACTION,
        rtype::STATUS => return true,
        _ => return false,
    };
    if matches!(record.get(action_at), None | Some(b'T' | b'F')) {
        return false;
    }
    if let Some(flags) = RecordLayout::of(kind).and_then(|layout| layout.flags).and_then(|at| record.get_mut(at)) {
        *flags |= FLAG_SNAPSHOT;
    }
    true
}

/// Where a record has its action.
const MBO_ACTION: usize = 38;
const MBP_ACTION: usize = 28;

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use dbn::{
        ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, Mbp10Msg, StatMsg, StatusMsg, SymbolMappingMsg, TradeMsg,
        enums,
    };

    use super::*;

    #[test]
    fn layouts_are_those_of_the_official_library() {
        macro_rules! layout {
            ($kind:ident, $record:ty, $ts_in_delta:expr, $flags:expr) => {
                assert_eq!(rtype::$kind, enums::rtype::$kind);
                let expected = RecordLayout {
                    bytes: size_of::<$record>(),
                    ts_recv: offset_of!($record, ts_recv),
                    ts_in_delta: $ts_in_delta,
                    flags: $flags,
                };
                assert_eq!(RecordLayout::of(rtype::$kind), Some(expected), stringify!($kind));
            };
        }
        layout!(MBO, MboMsg, Some(offset_of!(MboMsg, ts_in_delta)), Some(offset_of!(MboMsg, flags)));
        layout!(MBP_0, TradeMsg, Some(offset_of!(TradeMsg, ts_in_delta)), Some(offset_of!(TradeMsg, flags)));
        layout!(MBP_1, Mbp1Msg, Some(offset_of!(Mbp1Msg, ts_in_delta)), Some(offset_of!(Mbp1Msg, flags)));
        layout!(MBP_10, Mbp10Msg, Some(offset_of!(Mbp10Msg, ts_in_delta)), Some(offset_of!(Mbp10Msg, flags)));
        layout!(STATUS, StatusMsg, None, None);
        layout!(INSTRUMENT_DEF, InstrumentDefMsg, None, None);
        layout!(IMBALANCE, ImbalanceMsg, None, None);
        layout!(STATISTICS, StatMsg, Some(offset_of!(StatMsg, ts_in_delta)), None);
        assert_eq!(RecordLayout::of(rtype::SYMBOL_MAPPING), None);
    }

    #[test]
    fn other_numbers_are_those_of_the_official_library() {
        assert_eq!(LENGTH_UNIT_BYTES, dbn::RecordHeader::LENGTH_MULTIPLIER);
        assert_eq!(RECORD_HEADER_BYTES, size_of::<dbn::RecordHeader>());
        assert_eq!(RECORD_BYTES_MAX, dbn::MAX_RECORD_LEN);
        assert_eq!(UNDEFINED_TIME, dbn::UNDEF_TIMESTAMP);
        assert_eq!([FLAG_BAD_TS_RECV, FLAG_MAYBE_BAD_BOOK], [dbn::flags::BAD_TS_RECV, dbn::flags::MAYBE_BAD_BOOK]);
        assert_eq!(FLAG_SNAPSHOT, dbn::flags::SNAPSHOT);
        assert_eq!(MBO_ACTION, offset_of!(MboMsg, action));
        assert_eq!([MBP_ACTION; 2], [offset_of!(Mbp1Msg, action), offset_of!(Mbp10Msg, action)]);
        assert_eq!(rtype::SYMBOL_MAPPING, enums::rtype::SYMBOL_MAPPING);
        assert_eq!(MAPPING_INSTRUMENT_ID.start, offset_of!(dbn::RecordHeader, instrument_id));
        assert_eq!(MAPPING_SYMBOL.start, offset_of!(SymbolMappingMsg, stype_out_symbol));
        assert_eq!(MAPPING_SYMBOL.len(), dbn::SYMBOL_CSTR_LEN);
    }
}
