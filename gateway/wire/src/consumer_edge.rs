//! The consumer's edge: turns frames into the records that a consumer sees.
//!
//! In the publication log and on the multicast, a record is a function of the channel's input alone. Values local to
//! one gateway are in the frame's header. This module copies them into the records for a consumer: `ts_recv`,
//! `ts_in_delta`, and the flags that follow from them and from the book's state. Live consumers, journals and offline
//! replay all use it.

use zerocopy::IntoBytes;

use crate::{
    dbn_layout::{
        FLAG_BAD_TS_RECV, FLAG_MAYBE_BAD_BOOK, LENGTH_UNIT_BYTES, MAPPING_INSTRUMENT_ID, MAPPING_SYMBOL,
        RECORD_BYTES_MAX, RECORD_HEADER_BYTES, RecordLayout, UNDEFINED_TIME, rtype,
    },
    frame::{FrameFlags, FrameHeader},
    identity::InstrumentId,
};

/// Which receive time consumers get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TsRecvMode {
    /// The timestamp of the capture or the kernel.
    #[default]
    Capture,
    /// Undefined, and `ts_in_delta` 0. Output is then a function of the input alone.
    None,
}

/// Output of the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeOutput<'a> {
    /// A complete DBN record.
    Record {
        /// The record type number.
        rtype: u8,
        /// Header and body.
        bytes: &'a [u8],
    },
    /// A record whose length is not that of its type, or longer than any of DBN: as published, without local values. A DBN
    /// decoder would misread it.
    OtherLength {
        /// Header and body, as published.
        bytes: &'a [u8],
    },
    /// A symbol mapping. It belongs to no schema.
    Mapping {
        /// Id of the instrument in records.
        id: InstrumentId,
        /// Its symbol at the venue, without padding.
        symbol: &'a [u8],
    },
}

/// The edge of one channel.
#[derive(Clone, Debug, Default)]
pub struct ConsumerEdge {
    ts_recv: TsRecvMode,
    ts_recv_last: u64,
}

impl ConsumerEdge {
    /// An edge with that receive time mode.
    #[must_use]
    pub fn new(ts_recv: TsRecvMode) -> Self {
        Self { ts_recv, ts_recv_last: 0 }
    }

    /// An edge that continues behind a record with that receive time.
    #[must_use]
    pub fn behind(ts_recv: TsRecvMode, ts_recv_last: u64) -> Self {
        Self { ts_recv, ts_recv_last }
    }

    /// The latest receive time delivered so far, ns since 1970 UTC; 0 if none.
    #[must_use]
    pub fn ts_recv_last(&self) -> u64 {
        self.ts_recv_last
    }

    /// Delivers the records of one frame's body. Stops at bytes that are not a whole record and returns the number of
    /// bytes left over (0 for a valid body).
    pub fn deliver(&mut self, header: &FrameHeader, body: &[u8], mut emit: impl FnMut(EdgeOutput<'_>)) -> usize {
        let mut flags = 0;
        if FrameFlags(header.flags).contains(FrameFlags::SUSPECT) {
            flags |= FLAG_MAYBE_BAD_BOOK;
        }
        let published_ns = header.ts_recv.get();
        let mut local = None;
        // A gateway that runs without receive times marks that in the frame.
        if self.ts_recv == TsRecvMode::Capture && published_ns != UNDEFINED_TIME {
            // Receive times never decrease within a channel. A lower one is raised, and the record is flagged.
            let ts_recv = published_ns.max(self.ts_recv_last);
            if ts_recv != published_ns {
                flags |= FLAG_BAD_TS_RECV;
            }
            self.ts_recv_last = ts_recv;
            local = Some((ts_recv, header.ts_in_delta_ns.get()));
        }

        let mut rest = body;
        while let Some(bytes) = first_record_of_any_length(rest) {
            rest = rest.get(bytes.len()..).unwrap_or_default();
            let kind = bytes.get(1).copied().unwrap_or_default();
            if kind == rtype::SYMBOL_MAPPING {
                if let Some((id, symbol)) = mapping(bytes) {
                    emit(EdgeOutput::Mapping { id, symbol });
                }
                continue;
            }
            let local = LocalFields { kind, flags, times: local };
            // Lengths of the types that have local values. Each is a copy of known length: clearing and copying with the
            // length of the longest record, or with one known only here, takes longer than all else of the edge.
            match RecordLayout::of(kind).map(|layout| layout.bytes) {
                None if bytes.len() <= RECORD_BYTES_MAX => emit(EdgeOutput::Record { rtype: kind, bytes }),
                Some(56) => local.emit::<56>(bytes, &mut emit),
                Some(48) => local.emit::<48>(bytes, &mut emit),
                Some(80) => local.emit::<80>(bytes, &mut emit),
                Some(368) => local.emit::<368>(bytes, &mut emit),
                Some(40) => local.emit::<40>(bytes, &mut emit),
                Some(112) => local.emit::<112>(bytes, &mut emit),
                Some(520) => local.emit::<520>(bytes, &mut emit),
                _ => emit(EdgeOutput::OtherLength { bytes }),
            }
        }
        rest.len()
    }
}

/// The record at the front of `body`, if it is complete.
#[must_use]
pub fn first_record(body: &[u8]) -> Option<&[u8]> {
    first_record_of_any_length(body).filter(|record| record.len() <= RECORD_BYTES_MAX)
}

/// As [`first_record`], also of a record that is longer than any of DBN.
#[must_use]
pub fn first_record_of_any_length(body: &[u8]) -> Option<&[u8]> {
    let bytes = usize::from(*body.first()?) * LENGTH_UNIT_BYTES;
    body.get(..bytes).filter(|record| record.len() >= RECORD_HEADER_BYTES)
}

/// Values of one frame for a record of its body.
#[derive(Clone, Copy)]
struct LocalFields {
    kind: u8,
    flags: u8,
    /// `ts_recv` and `ts_in_delta`.
    times: Option<(u64, i32)>,
}

impl LocalFields {
    /// Delivers a copy of the record with these values, if the record has the length of its type. Readers of its fields rely on this.
    #[inline]
    fn emit<const BYTES: usize>(self, bytes: &[u8], emit: &mut impl FnMut(EdgeOutput<'_>)) {
        let Ok(mut record) = <[u8; BYTES]>::try_from(bytes) else { return emit(EdgeOutput::OtherLength { bytes }) };
        fill_local_fields(&mut record, self.kind, self.flags, self.times);
        emit(EdgeOutput::Record { rtype: self.kind, bytes: &record });
    }
}

/// Writes the local values at their offsets in each record type (DBN version 3).
fn fill_local_fields(record: &mut [u8], kind: u8, flags: u8, local: Option<(u64, i32)>) {
    let Some(at) = RecordLayout::of(kind) else { return };
    if let Some(byte) = at.flags.and_then(|offset| record.get_mut(offset)) {
        *byte |= flags;
    }
    let Some((ts_recv, ts_in_delta)) = local else { return };
    if let Some(slot) = record.get_mut(at.ts_recv..at.ts_recv + 8) {
        slot.copy_from_slice(ts_recv.as_bytes());
    }
    if let Some(slot) = at.ts_in_delta.and_then(|offset| record.get_mut(offset..offset + 4)) {
        slot.copy_from_slice(ts_in_delta.as_bytes());
    }
}

/// Instrument and symbol of a symbol mapping record.
fn mapping(record: &[u8]) -> Option<(InstrumentId, &[u8])> {
    let id = record.get(MAPPING_INSTRUMENT_ID)?.try_into().ok().map(u32::from_le_bytes)?;
    let padded = record.get(MAPPING_SYMBOL)?;
    Some((InstrumentId(id), padded.split(|byte| *byte == 0).next()?))
}

#[cfg(test)]
mod tests {
    use dbn::{FlagSet, MboMsg, TradeMsg, UNDEF_TIMESTAMP};

    use super::*;

    fn header(ts_recv: u64, flags: FrameFlags) -> FrameHeader {
        FrameHeader {
            sequence: 1.into(),
            ts_recv: ts_recv.into(),
            ts_in_delta_ns: (-5).into(),
            body_bytes: 0.into(),
            record_count: 1.into(),
            kind: 0,
            flags: flags.0,
            part: 0.into(),
            reserved: 0.into(),
        }
    }

    fn delivered_records(edge: &mut ConsumerEdge, header: &FrameHeader, body: &[u8]) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        let rest = edge.deliver(header, body, |handed| match handed {
            EdgeOutput::Record { bytes, .. } => records.push(bytes.to_vec()),
            _ => panic!("only records were put in"),
        });
        assert_eq!(rest, 0);
        records
    }

    /// `flags`, `ts_recv` and `ts_in_delta` of an Mbo record, at the offsets of the DBN documentation.
    fn mbo(bytes: &[u8]) -> (FlagSet, u64, i32) {
        let ts_recv = u64::from_le_bytes(bytes[40..48].try_into().unwrap());
        (FlagSet::new(bytes[36]), ts_recv, i32::from_le_bytes(bytes[48..52].try_into().unwrap()))
    }

    fn plain() -> MboMsg {
        MboMsg { ts_recv: UNDEF_TIMESTAMP, flags: FlagSet::new(dbn::flags::LAST), ..MboMsg::default() }
    }

    #[test]
    fn local_times_are_filled_in_for_every_record_of_the_frame() {
        let mut edge = ConsumerEdge::new(TsRecvMode::Capture);
        let trade = TradeMsg::default();
        let body = [plain().as_ref(), trade.as_ref()].concat();
        let records = delivered_records(&mut edge, &header(77, FrameFlags::default()), &body);
        assert_eq!(records.len(), 2);
        assert_eq!(mbo(&records[0]), (FlagSet::new(dbn::flags::LAST), 77, -5));
        assert_eq!(records[1][32..40], 77_u64.to_le_bytes());
        assert_eq!(records[1][40..44], (-5_i32).to_le_bytes());
    }

    #[test]
    fn without_local_times_the_record_is_unchanged() {
        let mut edge = ConsumerEdge::new(TsRecvMode::None);
        let records = delivered_records(&mut edge, &header(77, FrameFlags::default()), plain().as_ref());
        assert_eq!(records[0], plain().as_ref());
    }

    #[test]
    fn a_decreasing_receive_time_is_raised_and_flagged() {
        let mut edge = ConsumerEdge::new(TsRecvMode::Capture);
        delivered_records(&mut edge, &header(100, FrameFlags::default()), plain().as_ref());
        let records = delivered_records(&mut edge, &header(99, FrameFlags::default()), plain().as_ref());
        assert_eq!(mbo(&records[0]).1, 100);
        assert!(mbo(&records[0]).0.is_bad_ts_recv());
        let records = delivered_records(&mut edge, &header(101, FrameFlags::default()), plain().as_ref());
        assert!(!mbo(&records[0]).0.is_bad_ts_recv());
    }

    #[test]
    fn a_suspect_frame_sets_maybe_bad_book() {
        let mut edge = ConsumerEdge::new(TsRecvMode::None);
        let records = delivered_records(&mut edge, &header(1, FrameFlags::SUSPECT), plain().as_ref());
        assert!(mbo(&records[0]).0.is_maybe_bad_book());
    }

    #[test]
    fn a_record_with_the_wrong_length_is_passed_on_as_it_is() {
        let mut edge = ConsumerEdge::new(TsRecvMode::Capture);
        for wrong_bytes in [16, 48, 64, 1_016] {
            let mut wrong = plain().as_ref().to_vec();
            wrong.resize(wrong_bytes, 0);
            wrong[0] = u8::try_from(wrong_bytes / 4).unwrap();
            let body = [&wrong, plain().as_ref()].concat();
            let mut handed = Vec::new();
            let rest = edge.deliver(&header(1, FrameFlags::default()), &body, |output| match output {
                EdgeOutput::OtherLength { bytes } => handed.push(bytes == wrong),
                _ => handed.push(true),
            });
            assert_eq!((handed, rest), (vec![true, true], 0));
        }
    }

    /// Each length of [`RecordLayout`] has its copy in `deliver`.
    #[test]
    fn every_published_type_gets_its_local_values() {
        let mut edge = ConsumerEdge::new(TsRecvMode::Capture);
        for kind in 0..=u8::MAX {
            let Some(layout) = RecordLayout::of(kind) else { continue };
            let mut published = vec![0; layout.bytes];
            published[..2].copy_from_slice(&[u8::try_from(layout.bytes / LENGTH_UNIT_BYTES).unwrap(), kind]);
            let mut expected = published.clone();
            fill_local_fields(&mut expected, kind, FLAG_MAYBE_BAD_BOOK, Some((77, -5)));
            assert_ne!(expected, published);
            assert_eq!(delivered_records(&mut edge, &header(77, FrameFlags::SUSPECT), &published), [expected]);
        }
    }

    #[test]
    fn a_record_without_local_values_is_passed_on_as_it_is() {
        let heartbeat = dbn::SystemMsg::heartbeat(5);
        let mut edge = ConsumerEdge::new(TsRecvMode::Capture);
        let header = header(1, FrameFlags::SUSPECT);
        assert_eq!(delivered_records(&mut edge, &header, heartbeat.as_ref()), [heartbeat.as_ref()]);
    }

    #[test]
    fn an_invalid_body_is_reported_and_never_panics() {
        let mut edge = ConsumerEdge::default();
        for first in 0..=255_u8 {
            let body = [first; 40];
            let rest = edge.deliver(&header(1, FrameFlags::default()), &body, |_| {});
            assert!(rest <= body.len());
            assert!(rest == 40 || first >= 4, "length word {first} left {rest}");
        }
    }
}
