//! Broken promises: which, where, how.

use std::fmt;

/// What a pair promises about its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// No name comes twice within one epoch and line, or at a receiver.
    Once,
    /// Sequences and sessions only go forward.
    InOrder,
    /// Nothing is missing of a session between the first that was heard and the last that is known to have been
    /// published, but for declared gaps.
    Complete,
    /// A name has one content, whoever said it; a declared gap stays one.
    OneContent,
    /// No two gateways publish under one count, nor two epochs at a time.
    OnePublisher,
    /// No epoch is published after a higher one has begun.
    EpochsForward,
}

impl Promise {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Once, Self::InOrder, Self::Complete, Self::OneContent, Self::OnePublisher, Self::EpochsForward];

    /// As reports call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Once => "each name once",
            Self::InOrder => "in order",
            Self::Complete => "nothing missing",
            Self::OneContent => "one content for a name",
            Self::OnePublisher => "one publisher at a time",
            Self::EpochsForward => "epochs never went back",
        }
    }

    /// Whether receivers' outputs tell it: who published what they delivered, they don't say.
    pub(super) fn is_told_by_rows(self) -> bool {
        !matches!(self, Self::OnePublisher | Self::EpochsForward)
    }
}

/// A datagram or a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
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
    pub place: Place,
    /// What was seen, and what it disagrees with.
    pub text: String,
}

/// The first findings of all promises, and how many there were.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    told_max: usize,
    pub(super) told: Vec<Finding>,
    pub(super) counts: [u64; Promise::ALL.len()],
}

impl Findings {
    pub(super) fn new(told_max: usize) -> Self {
        Self { told_max, ..Self::default() }
    }

    /// Notes one. Its text is made only while there is room to tell it.
    pub(super) fn note(&mut self, promise: Promise, place: Place, text: impl FnOnce() -> String) {
        self.counts[promise as usize] += 1;
        if self.told.len() < self.told_max {
            self.told.push(Finding { promise, place, text: text() });
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
