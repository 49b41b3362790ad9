//! Output of a channel, as text.

use std::fmt::Write as _;

use dbn::{BidAskPair, UNDEF_ORDER_SIZE, UNDEF_PRICE, UNDEF_STAT_QUANTITY, UNDEF_TIMESTAMP, enums::rtype};

use super::*;
use mdgw_wire::{
    consumer_edge::first_record,
    frame::{FrameFlags, FrameKind, FrameMeta, FrameSink},
    identity::{Sequence, Session},
};

/// All output of a channel.
#[derive(Default)]
pub(super) struct RecordedOutput {
    text: String,
    pub(super) frames: Vec<Frame>,
    pub(super) sessions: Vec<(Session, Sequence)>,
    pub(super) covered: Option<Sequence>,
}

/// One frame, without its local times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) session: usize,
    pub(super) sequence: Sequence,
    pub(super) next: Sequence,
    pub(super) kind: FrameKind,
    pub(super) is_suspect: bool,
    pub(super) body: Vec<u8>,
}

impl RecordedOutput {
    pub(super) fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Frames that are a function of the input.
    pub(super) fn messages(&self) -> Vec<Frame> {
        self.frames.iter().filter(|frame| frame.kind == FrameKind::Message).cloned().collect()
    }
}

impl Frame {
    pub(super) fn records(&self) -> Vec<&[u8]> {
        records(&self.body)
    }
}

impl FrameSink for RecordedOutput {
    fn frame(&mut self, meta: &FrameMeta, record_count: u16, body: &[u8]) {
        let is_suspect = meta.flags.contains(FrameFlags::SUSPECT);
        self.frames.push(Frame {
            session: self.sessions.len(),
            sequence: meta.sequence,
            next: meta.next,
            kind: meta.kind,
            is_suspect,
            body: body.to_vec(),
        });
        let text = &mut self.text;
        match meta.kind {
            FrameKind::Message => {
                assert_eq!(meta.next, meta.sequence.plus(1));
                let suspect = if is_suspect { " suspect" } else { "" };
                writeln!(text, "{} delta {}{suspect}", meta.sequence.0, meta.ts_in_delta_ns).unwrap();
                let records = records(body);
                assert_eq!(records.len(), usize::from(record_count));
                for record in records {
                    writeln!(text, "  {}", render_record(record)).unwrap();
                }
            }
            FrameKind::Gap => {
                assert_eq!(u64_at(body, 0), meta.sequence.0);
                assert_eq!(u64_at(body, 8), meta.next.0);
                writeln!(text, "gap [{}, {})", u64_at(body, 0), u64_at(body, 8)).unwrap();
            }
            FrameKind::State => {
                assert_eq!(meta.sequence, meta.next);
                writeln!(text, "state {:?}", ChannelState::from_number(body[0]).unwrap()).unwrap();
            }
            FrameKind::Snapshot | FrameKind::SnapshotChunk => panic!("channels make no snapshots"),
        }
    }

    fn covered_through(&mut self, next: Sequence) {
        assert!(self.covered.is_none_or(|covered| covered < next), "what is covered ascends");
        self.covered = Some(next);
    }

    fn session(&mut self, session: Session, next: Sequence) {
        self.sessions.push((session, next));
        self.covered = None;
        writeln!(self.text, "session {session} from {}", next.0).unwrap();
    }

    fn end_of_session(&mut self) {
        writeln!(self.text, "end of session").unwrap();
    }
}

/// The whole records of a body; nothing may be left over.
fn records(mut body: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    while let Some(record) = first_record(body) {
        records.push(record);
        body = &body[record.len()..];
    }
    assert_eq!(body, []);
    records
}

/// One record, read at the offsets of the DBN documentation, so that the test is independent of the writer. Flags:
/// `L` last, `T` top of book, `M` by price.
pub(super) fn render_record(record: &[u8]) -> String {
    let at = |offset| u64_at(record, offset);
    let char_at = |offset: usize| char::from(record[offset]);
    match record[1] {
        rtype::SYMBOL_MAPPING => {
            let symbol: String = record[17..].iter().take_while(|byte| **byte != 0).map(|b| char::from(*b)).collect();
            format!("mapping {} {symbol}", u32_at(record, 4))
        }
        rtype::MBO => {
            assert_eq!((at(40), u32_at(record, 48)), (UNDEF_TIMESTAMP, 0), "local times are not in records");
            format!(
                "mbo {} {} {} x{} #{}{}",
                char_at(38),
                char_at(39),
                price(at(24)),
                u32_at(record, 32),
                at(16),
                flags(record[36])
            )
        }
        rtype::MBP_0 => format!("trade {}", by_price(record)),
        rtype::MBP_1 => format!("mbp1 {} d{}{}", by_price(record), record[31], levels(record, 1)),
        rtype::MBP_10 => format!("mbp10 {} d{}{}", by_price(record), record[31], levels(record, 10)),
        rtype::STATUS => format!(
            "status {} reason {} trading {} quoting {} restricted {}",
            u16_at(record, 24),
            u16_at(record, 26),
            char_at(30),
            char_at(31),
            char_at(32)
        ),
        rtype::STATISTICS => {
            let quantity = at(40).cast_signed();
            let quantity = if quantity == UNDEF_STAT_QUANTITY { "-".to_owned() } else { quantity.to_string() };
            format!("statistic {} {} x{quantity}", u16_at(record, 56), price(at(32)))
        }
        rtype::INSTRUMENT_DEF => {
            let text = |from: usize| -> String {
                record[from..].iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
            };
            format!("definition {} {} on {} class {}", at(112), text(238), text(330), char_at(487))
        }
        rtype::IMBALANCE => imbalance(record),
        other => panic!("record type {other:#x}"),
    }
}

fn imbalance(record: &[u8]) -> String {
    let [reference, auction_time, cont_book, auct_interest, _, match_price, upper, lower] =
        [24, 32, 40, 48, 56, 64, 72, 80].map(|offset| u64_at(record, offset));
    let mut text = format!(
        "imbalance ref {} book {} auction {} match {}",
        price(reference),
        price(cont_book),
        price(auct_interest),
        price(match_price)
    );
    let quantity = |offset| match u32_at(record, offset) {
        UNDEF_ORDER_SIZE => "-".to_owned(),
        quantity => quantity.to_string(),
    };
    write!(text, " collars {} {} paired {} left {}", price(upper), price(lower), quantity(88), quantity(92)).unwrap();
    let [kind, side] = [104, 105].map(|offset: usize| char::from(record[offset]));
    write!(text, " type {kind} side {side} extensions {} significant {}", record[108], char::from(record[110]))
        .unwrap();
    if auction_time != UNDEF_TIMESTAMP {
        write!(text, " at {auction_time}").unwrap();
    }
    text
}

fn by_price(record: &[u8]) -> String {
    assert_eq!((u64_at(record, 32), u32_at(record, 40)), (UNDEF_TIMESTAMP, 0), "local times are not in records");
    let [action, side] = [28, 29].map(|offset: usize| char::from(record[offset]));
    format!("{action} {side} {} x{}{}", price(u64_at(record, 16)), u32_at(record, 24), flags(record[30]))
}

/// ` [bid | ask]` with sizes and counts, levels from the best; levels empty on both sides are left out.
fn levels(record: &[u8], count: usize) -> String {
    let mut text = String::from(" [");
    for level in pairs(record, count).iter().filter(|pair| pair.bid_px != UNDEF_PRICE || pair.ask_px != UNDEF_PRICE) {
        let side = |px: i64, size: u32, orders: u32| match px {
            UNDEF_PRICE => {
                assert_eq!((size, orders), (0, 0), "an empty side has nothing");
                "-".to_owned()
            }
            _ => format!("{}x{size}({orders})", price(px.cast_unsigned())),
        };
        let separator = if text.len() > 2 { ", " } else { "" };
        let bid = side(level.bid_px, level.bid_sz, level.bid_ct);
        let ask = side(level.ask_px, level.ask_sz, level.ask_ct);
        write!(text, "{separator}{bid} | {ask}").unwrap();
    }
    text + "]"
}

/// The levels of a market-by-price record.
pub(super) fn pairs(record: &[u8], count: usize) -> Vec<BidAskPair> {
    let pair = |at: usize| BidAskPair {
        bid_px: u64_at(record, at).cast_signed(),
        ask_px: u64_at(record, at + 8).cast_signed(),
        bid_sz: u32_at(record, at + 16),
        ask_sz: u32_at(record, at + 20),
        bid_ct: u32_at(record, at + 24),
        ask_ct: u32_at(record, at + 28),
    };
    (0..count).map(|level| pair(48 + 32 * level)).collect()
}

fn flags(flags: u8) -> String {
    let mut text = String::new();
    for (flag, letter) in [(dbn::flags::LAST, 'L'), (dbn::flags::TOB, 'T'), (dbn::flags::MBP, 'M')] {
        if flags & flag != 0 {
            text.push(letter);
        }
    }
    assert_eq!(flags & !(dbn::flags::LAST | dbn::flags::TOB | dbn::flags::MBP), 0, "no other flag is a channel's");
    if text.is_empty() { text } else { format!(" {text}") }
}

fn price(price_e9: u64) -> String {
    let price_e9 = price_e9.cast_signed();
    if price_e9 == UNDEF_PRICE {
        return "-".to_owned();
    }
    let text = format!("{}.{:09}", price_e9 / 1_000_000_000, price_e9 % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(super) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes[offset..offset + 2].try_into().unwrap())
}
