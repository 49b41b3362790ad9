//! Books by order, rebuilt by a consumer from the records of a DBN file.

use std::collections::BTreeMap;

use dbn::{
    MboMsg, Mbp10Msg,
    decode::{DbnMetadata as _, DecodeRecordRef, dbn::Decoder},
    flags,
};

/// The resting orders of each instrument, side and price, in priority; and the latest levels of each instrument.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ConsumerBooks {
    /// By instrument, side and price: order ids and sizes by priority.
    pub orders: BTreeMap<(u32, u8, i64), Vec<(u64, u32)>>,
    /// By instrument: bid and ask levels as in mbp-10.
    pub levels: BTreeMap<u32, Vec<[i64; 6]>>,
}

/// What a file holds besides the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileContent {
    /// Records with the flag SNAPSHOT.
    pub snapshot_records: usize,
    /// Records of the snapshot that may be of a bad book.
    pub suspect_records: usize,
    /// Other records.
    pub live_records: usize,
}

/// The symbols that a file's metadata names, with the instrument of each.
///
/// # Panics
/// If the file is no DBN.
#[must_use]
pub fn symbols_of_file(file: &[u8]) -> BTreeMap<String, String> {
    let metadata = Decoder::new(file).expect("a DBN file").metadata().clone();
    let of_symbol = |mapping: dbn::SymbolMapping| Some((mapping.raw_symbol, mapping.intervals.last()?.symbol.clone()));
    metadata.mappings.into_iter().filter_map(of_symbol).collect()
}

impl ConsumerBooks {
    /// Applies all records of a file.
    ///
    /// # Panics
    /// If the file is no DBN.
    #[must_use]
    pub fn of_file(file: &[u8]) -> (Self, FileContent) {
        Self::of_records(Decoder::new(file).expect("a DBN file"))
    }

    /// Applies all records that the decoder reads.
    ///
    /// # Panics
    /// If they are no records.
    #[must_use]
    pub fn of_records(mut decoder: impl DecodeRecordRef) -> (Self, FileContent) {
        let mut books = Self::default();
        let mut content = FileContent::default();
        while let Some(record) = decoder.decode_record_ref().expect("whole records") {
            let record_flags = if let Some(mbo) = record.get::<MboMsg>() {
                books.apply(mbo);
                mbo.flags.raw()
            } else if let Some(mbp) = record.get::<Mbp10Msg>() {
                // The levels of a trade are those before its effect.
                if mbp.action().ok() != Some(dbn::Action::Trade) {
                    books.set_levels(mbp);
                }
                mbp.flags.raw()
            } else {
                0
            };
            if record_flags & flags::SNAPSHOT == 0 {
                content.live_records += 1;
            } else {
                content.snapshot_records += 1;
                content.suspect_records += usize::from(record_flags & flags::MAYBE_BAD_BOOK != 0);
            }
        }
        (books, content)
    }

    fn apply(&mut self, mbo: &MboMsg) {
        let instrument = mbo.hd.instrument_id;
        let key = (instrument, mbo.side.to_ne_bytes()[0], mbo.price);
        match mbo.action.to_ne_bytes()[0] {
            b'R' => self.orders.retain(|(of, ..), _| *of != instrument),
            b'A' => self.orders.entry(key).or_default().push((mbo.order_id, mbo.size)),
            b'C' => {
                // A cancel has the price of its order.
                let Some(level) = self.orders.get_mut(&key) else { return };
                if let Some((_, size)) = level.iter_mut().find(|(id, _)| *id == mbo.order_id) {
                    *size = size.saturating_sub(mbo.size);
                }
                level.retain(|(_, size)| *size > 0);
                if level.is_empty() {
                    self.orders.remove(&key);
                }
            }
            _ => {}
        }
    }

    fn set_levels(&mut self, mbp: &Mbp10Msg) {
        let level = |level: &dbn::BidAskPair| {
            let sizes = [level.bid_sz, level.ask_sz, level.bid_ct, level.ask_ct].map(i64::from);
            [level.bid_px, level.ask_px, sizes[0], sizes[1], sizes[2], sizes[3]]
        };
        self.levels.insert(mbp.hd.instrument_id, mbp.levels.iter().map(level).collect());
    }
}
