//! What is missing between what is expected and what is known to exist.

use crate::{identity::Sequence, time::MonoNs};

use super::{gap::Gap, window::Window};

/// All holes of a channel at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holes<'w> {
    pub(super) window: &'w Window,
    pub(super) expected: Sequence,
    pub(super) frontier: Sequence,
    /// When the hole behind everything held was found or last shrank.
    pub(super) tail_since: MonoNs,
    pub(super) gap_timeout_ns: u64,
    /// Whether the window has room for what fills others than the first one.
    pub(super) has_space: bool,
}

/// One of them, from where it was looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hole {
    pub(crate) gap: Gap,
    /// When another line has had its time to fill it.
    pub(crate) due: MonoNs,
}

impl Holes<'_> {
    /// The first hole from `from` on.
    pub(crate) fn from(&self, from: Sequence) -> Option<Hole> {
        let (first, behind) = self.window.not_held_from(from.max(self.expected));
        let next = behind.map_or(self.frontier, |held| held.from);
        let since = behind.map_or(self.tail_since, |held| held.gap_since);
        Some(Hole { gap: Gap::new(first, next)?, due: since.plus(self.gap_timeout_ns) })
    }

    /// What of the first hole from `from` on lies before `until`.
    pub(crate) fn first_in(&self, from: Sequence, until: Sequence) -> Option<Gap> {
        let gap = self.from(from)?.gap;
        Gap::new(gap.first(), gap.next().min(until))
    }

    /// The first sequence from `from` on that has not come.
    pub(crate) fn not_held_from(&self, from: Sequence) -> Sequence {
        self.window.not_held_from(from.max(self.expected)).0
    }

    /// Whether what holds up delivery begins there.
    pub(crate) fn is_first(&self, sequence: Sequence) -> bool {
        sequence <= self.expected
    }

    /// Whether the window has room for what fills others than the first one.
    pub(crate) fn has_space(&self) -> bool {
        self.has_space
    }
}
