//! Snapshots of the present orders, over all channels of a dataset.

use mdgw_log_books::books::SnapshotHead;

use super::channel::ChannelStream;
use crate::control;

/// The mbo records of these instruments' books: for each a clear, then its orders. An instrument belongs to the channels on which the
/// venue has named it; one that no channel has named has an empty book.
pub(crate) fn records(channels: &[ChannelStream], instruments: &[u32]) -> Vec<u8> {
    let unnamed = |id: &u32| !channels.iter().any(|channel| channel.has_instrument(*id));
    let mut of_channels = Vec::new();
    for (index, channel) in channels.iter().enumerate() {
        let Some((books, publisher_id)) = channel.books() else { continue };
        let is_own = |id: &u32| channel.has_instrument(*id) || index == 0 && unnamed(id);
        let own: Vec<u32> = instruments.iter().copied().filter(is_own).collect();
        let head = SnapshotHead { publisher_id, ts_event: channel.ts_event() };
        let mut records = Vec::new();
        books.append_snapshot(&own, &head, |id| channel.is_suspect(id), &mut records);
        of_channels.push(records);
    }
    match of_channels.len() {
        1 => of_channels.remove(0),
        _ => joined(&of_channels),
    }
}

/// Joins the snapshots of several channels, each in ascending order of its instruments. The orders of an instrument that several channels
/// have are one book: one clear before all of them, LAST on the last of them.
fn joined(of_channels: &[Vec<u8>]) -> Vec<u8> {
    let mut books: Vec<&[u8]> = Vec::new();
    for records in of_channels {
        let (records, _) = records.as_chunks::<RECORD_BYTES>();
        let same = |left: &[u8; RECORD_BYTES], right: &[u8; RECORD_BYTES]| {
            control::instrument_id(left) == control::instrument_id(right)
        };
        books.extend(records.chunk_by(same).map(<[_]>::as_flattened));
    }
    // Stable: channels stay in their order.
    books.sort_by_key(|book| control::instrument_id(book));
    let mut out: Vec<u8> = Vec::with_capacity(of_channels.iter().map(Vec::len).sum());
    let mut before = None;
    for book in books {
        let id = control::instrument_id(book);
        let orders = book.get(RECORD_BYTES..).unwrap_or_default();
        if before != Some(id) {
            out.extend_from_slice(book);
        } else if !orders.is_empty() {
            let last = (out.len() + FLAGS_AT).checked_sub(RECORD_BYTES);
            if let Some(flags) = last.and_then(|at| out.get_mut(at)) {
                *flags &= !dbn::flags::LAST;
            }
            out.extend_from_slice(orders);
        }
        before = Some(id);
    }
    out
}

const RECORD_BYTES: usize = size_of::<dbn::MboMsg>();
const FLAGS_AT: usize = core::mem::offset_of!(dbn::MboMsg, flags);

#[cfg(test)]
mod tests {
    use dbn::{FlagSet, MboMsg, RecordHeader, enums::rtype, flags};

    use super::*;

    fn book(instrument_id: u32, orders: &[u64]) -> Vec<u8> {
        let all: Vec<u64> = [0].into_iter().chain(orders.iter().copied()).collect();
        let record = |(index, order_id): (usize, &u64)| MboMsg {
            hd: RecordHeader::new::<MboMsg>(rtype::MBO, 2, instrument_id, 1),
            order_id: *order_id,
            flags: FlagSet::new(if index + 1 == all.len() { flags::LAST } else { 0 }),
            ..MboMsg::default()
        };
        all.iter().enumerate().map(record).flat_map(|record| record.as_ref().to_vec()).collect()
    }

    #[test]
    fn an_instrument_of_several_channels_has_one_clear_and_one_last_record() {
        let first = [book(1, &[10]), book(2, &[20]), book(3, &[])].concat();
        let second = [book(2, &[21, 22]), book(3, &[]), book(4, &[40])].concat();
        let expected = [book(1, &[10]), book(2, &[20, 21, 22]), book(3, &[]), book(4, &[40])].concat();
        assert_eq!(joined(&[first, second]), expected);
    }
}
