//! Violations: which, where and how.

use std::fmt;

/// What is checked of the output of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutputCheck {
    /// No item occurs twice within one epoch and line, or at a receiver.
    NoDuplicates,
    /// Sequences and sessions only go forward.
    InOrder,
    /// A session is complete from the first received packet to the last position known to be published, except for
    /// declared gaps.
    NoLoss,
    /// An item has one content, whichever gateway published it; a declared gap stays declared.
    ConsistentContent,
    /// No two gateways use the same epoch count, and no two epochs are published at the same time.
    SinglePublisher,
    /// No epoch is published after a higher one has begun.
    MonotonicEpochs,
}

impl OutputCheck {
    /// All checks, in the order of the counts in a verdict.
    pub(crate) const ALL: [Self; 6] = [
        Self::NoDuplicates,
        Self::InOrder,
        Self::NoLoss,
        Self::ConsistentContent,
        Self::SinglePublisher,
        Self::MonotonicEpochs,
    ];

    /// Name in reports.
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

    /// Whether receivers' outputs can show violations: their records do not name the publisher.
    pub(super) fn is_visible_in_rows(self) -> bool {
        !matches!(self, Self::SinglePublisher | Self::MonotonicEpochs)
    }
}

/// Position of a datagram or a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Index of the file, from 0.
    pub file: usize,
    /// Frame of a capture, or line of an output, from 1; 0 for the file as a whole.
    pub number: u64,
}

/// A violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check that the output violates.
    pub check: OutputCheck,
    /// Position of the violation.
    pub location: Location,
    /// Description: the content found, and the content that it contradicts.
    pub text: String,
}

/// The first violations of each check, and the count of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    listed_max: usize,
    pub(super) listed: Vec<Finding>,
    pub(super) counts: [u64; OutputCheck::ALL.len()],
}

impl Findings {
    pub(super) fn new(listed_max: usize) -> Self {
        Self { listed_max, ..Self::default() }
    }

    /// Records a violation. The text is built only if it will be listed.
    pub(super) fn record(&mut self, check: OutputCheck, location: Location, text: impl FnOnce() -> String) {
        self.counts[check as usize] += 1;
        if self.listed.len() < self.listed_max {
            self.listed.push(Finding { check, location, text: text() });
        }
    }
}

impl fmt::Display for OutputCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
