//! Contradictions between a message and the book. One variant, one counter.

mdgw_wire::counted_reasons! {
    /// Why a book no longer matches its venue's. `Copy` and without text, for the hot path.
    enum BookFault;
    /// One counter for each [`BookFault`], in messages.
    struct BookFaultCounts;
    UnknownOrder = "unknown_order", "The order does not rest. Nothing is applied.";
    DuplicateOrder = "duplicate_order", "An order with that id already rests. The new one is ignored.";
    OverExecution = "over_execution", "The executed size exceeds the order's. The order is removed.";
    OverCancel = "over_cancel", "The cancelled size exceeds the order's. The order is removed.";
    InstrumentMismatch = "instrument_mismatch", "The order rests in another instrument's book. Nothing is applied; both books are marked.";
    Crossed = "crossed", "The best bid is above the best ask. The change is applied. Counted once until the book is uncrossed again.";
    UnknownLevel = "unknown_level", "No such price level to remove. Nothing is applied.";
    LevelOverflow = "level_overflow", "The total size at one price exceeds 32 bits. The order is ignored.";
    OrdersFull = "orders_full", "More resting orders than `orders_max`, or an id that the store cannot hold. The order is ignored.";
    OrderProbesExceeded = "order_probes_exceeded", "The ids of resting orders collide beyond the bounded search. The order is ignored.";
    LevelsFull = "levels_full", "More price levels than allocated. The order or level is ignored.";
    PriceOutOfRange = "price_out_of_range", "A price beyond plus or minus 4,611,686,018. The order or level is ignored.";
    InstrumentUnknown = "instrument_unknown", "Index beyond `instruments_max`. Nothing is applied.";
    ZeroSize = "zero_size", "An order, execution or reduction of size 0. Nothing is applied.";
}

impl BookFaultCounts {
    /// Sum of all faults.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}
