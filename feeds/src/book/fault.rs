//! Contradictions between a message and the book. One variant, one counter.

/// Why a book no longer matches its venue's. `Copy` and without text, for the hot path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum BookFault {
    /// The order does not rest. Nothing is applied.
    UnknownOrder,
    /// An order with that id already rests. The new one is ignored.
    DuplicateOrder,
    /// The executed size exceeds the order's. The order is removed.
    OverExecution,
    /// The cancelled size exceeds the order's. The order is removed.
    OverCancel,
    /// The order rests in another instrument's book. Nothing is applied; both books are marked.
    InstrumentMismatch,
    /// The best bid is above the best ask. The change is applied. Counted once until the book is uncrossed again.
    Crossed,
    /// No such price level to remove. Nothing is applied.
    UnknownLevel,
    /// The total size at one price exceeds 32 bits. The order is ignored.
    LevelOverflow,
    /// More resting orders than `orders_max`, or an id that the store cannot hold. The order is ignored.
    OrdersFull,
    /// The ids of resting orders collide beyond the bounded search. The order is ignored.
    OrderProbesExceeded,
    /// More price levels than allocated. The order or level is ignored.
    LevelsFull,
    /// A price beyond plus or minus [`PRICE_E9_MAX`](super::PRICE_E9_MAX). The order or level is ignored.
    PriceOutOfRange,
    /// Index beyond `instruments_max`. Nothing is applied.
    InstrumentUnknown,
    /// An order, execution or reduction of size 0. Nothing is applied.
    ZeroSize,
}

impl BookFault {
    /// All faults, in the order of their counters.
    pub(crate) const ALL: [Self; 14] = [
        Self::UnknownOrder,
        Self::DuplicateOrder,
        Self::OverExecution,
        Self::OverCancel,
        Self::InstrumentMismatch,
        Self::Crossed,
        Self::UnknownLevel,
        Self::LevelOverflow,
        Self::OrdersFull,
        Self::OrderProbesExceeded,
        Self::LevelsFull,
        Self::PriceOutOfRange,
        Self::InstrumentUnknown,
        Self::ZeroSize,
    ];

    /// Name of the counter.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownOrder => "unknown_order",
            Self::DuplicateOrder => "duplicate_order",
            Self::OverExecution => "over_execution",
            Self::OverCancel => "over_cancel",
            Self::InstrumentMismatch => "instrument_mismatch",
            Self::Crossed => "crossed",
            Self::UnknownLevel => "unknown_level",
            Self::LevelOverflow => "level_overflow",
            Self::OrdersFull => "orders_full",
            Self::OrderProbesExceeded => "order_probes_exceeded",
            Self::LevelsFull => "levels_full",
            Self::PriceOutOfRange => "price_out_of_range",
            Self::InstrumentUnknown => "instrument_unknown",
            Self::ZeroSize => "zero_size",
        }
    }
}

/// One counter for each [`BookFault`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BookFaultCounts([u64; BookFault::ALL.len()]);

impl BookFaultCounts {
    /// Counts one.
    pub(crate) fn count(&mut self, fault: BookFault) {
        if let Some(slot) = self.0.get_mut(fault as usize) {
            *slot = slot.saturating_add(1);
        }
    }

    /// Count of that fault.
    #[must_use]
    pub(crate) fn get(&self, fault: BookFault) -> u64 {
        self.0.get(fault as usize).copied().unwrap_or(0)
    }

    /// Faults with a non-zero count.
    pub fn iter(&self) -> impl Iterator<Item = (BookFault, u64)> + '_ {
        BookFault::ALL.into_iter().map(|fault| (fault, self.get(fault))).filter(|(_, count)| *count > 0)
    }

    /// Sum of all faults.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}
