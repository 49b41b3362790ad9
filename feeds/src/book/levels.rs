//! Books of a feed that sends price levels.

use super::{
    BookFault, BookFaultCounts, BookLimits, BookMarks, BookView, Change, InstrumentIndex, Side, ladder::Ladders,
};

/// All books of a channel by price level. After `Err` nothing was applied; it is counted, and the book is suspect
/// from then on.
#[derive(Debug)]
pub struct LevelBooks {
    ladders: Ladders,
    faults: BookFaultCounts,
}

impl LevelBooks {
    /// Allocates all memory, and prefaults it unless [`BookLimits::prefault`] is off.
    #[must_use]
    pub fn new(limits: BookLimits) -> Self {
        Self { ladders: Ladders::new(&limits), faults: BookFaultCounts::default() }
    }

    /// Removes all levels and marks, for a new session. Fault counts stay.
    pub(crate) fn clear(&mut self) {
        self.ladders.clear();
    }

    /// Sets the level's size; 0 removes the level. Does not check for a crossed book: where books are only consistent
    /// at the end of an event, the caller calls [`Self::check_crossed`] there.
    ///
    /// # Errors
    /// `InstrumentUnknown`, `UnknownLevel` (removal of a level that does not exist), `LevelsFull`: nothing is
    /// applied.
    #[inline]
    pub(crate) fn set_level(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
    ) -> Result<Change, BookFault> {
        if !self.ladders.contains(instrument) {
            return Err(self.fault(instrument, BookFault::InstrumentUnknown));
        }
        let changed = if size == 0 {
            self.ladders.remove(instrument, side, price_e9).ok_or(BookFault::UnknownLevel)
        } else {
            self.ladders.set(instrument, side, price_e9, size)
        };
        match changed {
            Ok(changed) => Ok(Change {
                instrument,
                order_id: 0,
                side,
                price_e9,
                size,
                remaining: size,
                depth: changed.depth,
                level_change: changed.change,
                level: changed.level(price_e9),
                fault: None,
            }),
            Err(fault) => Err(self.fault(instrument, fault)),
        }
    }

    /// Checks a consistent book. A book that became crossed since the last call is counted, marked and reported. A
    /// book that is still crossed is not reported again.
    #[inline]
    pub(crate) fn check_crossed(&mut self, instrument: InstrumentIndex) -> Option<BookFault> {
        self.ladders.check_crossed(instrument).then(|| self.fault(instrument, BookFault::Crossed))
    }

    /// Restores a copied level. No other effect: no fault is counted or marked.
    ///
    /// # Errors
    /// As [`Self::set_level`]; the level is ignored.
    pub(crate) fn restore_level(
        &mut self,
        instrument: InstrumentIndex,
        side: Side,
        price_e9: i64,
        size: u32,
    ) -> Result<(), BookFault> {
        if size == 0 {
            return Err(BookFault::ZeroSize);
        }
        self.ladders.set(instrument, side, price_e9, size).map(|_| ())
    }

    /// Number of price levels of all books.
    #[must_use]
    pub(crate) fn level_count(&self) -> u32 {
        self.ladders.level_count()
    }

    /// Marks of a book besides its levels.
    #[must_use]
    pub(crate) fn marks(&self, instrument: InstrumentIndex) -> BookMarks {
        self.ladders.marks(instrument)
    }

    /// Sets the marks of a restored book.
    pub(crate) fn set_marks(&mut self, instrument: InstrumentIndex, marks: BookMarks) {
        self.ladders.set_marks(instrument, marks);
    }

    /// One instrument's book.
    #[must_use]
    pub(crate) fn view(&self, instrument: InstrumentIndex) -> BookView<'_> {
        self.ladders.view(instrument)
    }

    /// Marks all books as suspect, after a gap.
    pub(crate) fn mark_all_suspect(&mut self) {
        self.ladders.set_all_suspect(true);
    }

    /// Clears the suspect mark: the book has been rebuilt.
    pub(crate) fn clear_suspect(&mut self, instrument: InstrumentIndex) {
        self.ladders.set_suspect(instrument, false);
    }

    /// Faults found so far.
    #[must_use]
    pub(crate) fn faults(&self) -> &BookFaultCounts {
        &self.faults
    }

    /// Memory allocated, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.ladders.memory_bytes()
    }

    #[cold]
    fn fault(&mut self, instrument: InstrumentIndex, fault: BookFault) -> BookFault {
        self.faults.count(fault);
        self.ladders.set_suspect(instrument, true);
        fault
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::book::{
        PRICE_E9_MAX,
        model::{Model, assert_same_book},
    };

    const LIMITS: BookLimits =
        BookLimits { instruments_max: 2, orders_max: 0, levels_max: 300, order_hash_seed: 0, prefault: true };

    fn price() -> impl Strategy<Value = i64> {
        const EXTREMES: [i64; 5] = [-PRICE_E9_MAX - 1, -PRICE_E9_MAX, PRICE_E9_MAX, PRICE_E9_MAX + 1, i64::MAX];
        prop_oneof![100 => 0_i64..400, 1 => prop::sample::select(&EXTREMES)]
    }

    proptest! {
        #[test]
        fn level_books_match_the_model_including_faults(
            steps in prop::collection::vec((0_u32..3, any::<bool>(), price(), 0_u32..4, any::<bool>()), 1..900)
        ) {
            let mut books = LevelBooks::new(LIMITS);
            let mut model = Model::new(LIMITS);
            for (instrument, is_bid, price, size, is_event_end) in steps {
                let instrument = InstrumentIndex(instrument);
                let (side, price) = if is_bid { (Side::Bid, -price) } else { (Side::Ask, price.saturating_sub(3)) };
                let change = books.set_level(instrument, side, price, size);
                prop_assert_eq!(change, model.set_level(instrument, side, price, size));
                if is_event_end {
                    prop_assert_eq!(books.check_crossed(instrument), model.check_crossed(instrument));
                }
            }
            prop_assert_eq!(books.faults(), model.faults());
            for instrument in [InstrumentIndex(0), InstrumentIndex(1)] {
                books.ladders.check(instrument);
                assert_same_book(&books.view(instrument), &model, instrument);
            }
        }
    }
}
