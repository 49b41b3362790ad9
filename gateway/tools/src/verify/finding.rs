//! Broken promises: which, where, how.

use std::fmt;

/// What a pair promises about its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// No name comes twice within one epoch and line, or at a receiver.
    NoDuplicates,
    /// Sequences and sessions only go forward.
    InOrder,
    /// Nothing is missing of a session between the first that was heard and the last that is known to have been
    /// published, but for declared gaps.
    NoLoss,
    /// A name has one content, whoever said it; a declared gap stays one.
    ConsistentContent,
    /// No two gateways publish under one count, nor two epochs at a time.
    SinglePublisher,
    /// No epoch is published after a higher one has begun.
    MonotonicEpochs,
}

impl Promise {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::NoDuplicates,
        Self::InOrder,
        Self::NoLoss,
        Self::ConsistentContent,
        Self::SinglePublisher,
        Self::MonotonicEpochs,
    ];

    /// As reports call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoDuplicates => "no duplicates",
            Self::InOrder => "in order",
            Self::NoLoss => "no loss",
            Self::ConsistentContent => "consistent content",
            Self::SinglePublisher => "single publisher",
            Self::MonotonicEpochs => "monotonic epochs",
        }
    }

    /// Whether receivers' outputs tell it: who published what they delivered, they don't say.
    pub(super) fn is_visible_in_rows(self) -> bool {
        !matches!(self, Self::SinglePublisher | Self::MonotonicEpochs)
    }
}

/// A datagram or a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Which of the files, from 0.
    pub file: usize,
    /// Frame of a capture or line of an output, from 1; 0 for the file as a whole.
    pub number: u64,
}

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub promise: Promise,
    /// Where it was seen.
    pub location: Location,
    /// What was seen, and what it disagrees with.
    pub text: String,
}

/// The first findings of all promises, and how many there were.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    listed_max: usize,
    pub(super) listed: Vec<Finding>,
    pub(super) counts: [u64; Promise::ALL.len()],
}

impl Findings {
    pub(super) fn new(listed_max: usize) -> Self {
        Self { listed_max, ..Self::default() }
    }

    /// Notes one. Its text is made only while there is room to tell it.
    pub(super) fn record(&mut self, promise: Promise, location: Location, text: impl FnOnce() -> String) {
        self.counts[promise as usize] += 1;
        if self.listed.len() < self.listed_max {
            self.listed.push(Finding { promise, location, text: text() });
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
