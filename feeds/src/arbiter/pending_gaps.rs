//! What is missing between what is expected and what is known to exist.

use crate::{identity::Sequence, time::MonoNs};

use super::{ArbiterConfig, WhenFull, gap::Gap, window::Window};

/// All holes of a channel at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holes<'w> {
    window: &'w Window,
    expected: Sequence,
    frontier: Sequence,
    /// When the hole behind everything held was found or last shrank.
    trailing_gap_since: MonoNs,
    gap_timeout_ns: u64,
    when_full: WhenFull,
}

/// One of them, from where it was looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingGap {
    pub(crate) gap: Gap,
    /// When another line has had its time to fill it.
    pub(crate) due: MonoNs,
}

impl<'w> Holes<'w> {
    /// What is known to exist, and since when the last of it is missing, is the `frontier`.
    #[inline]
    pub(super) fn new(
        window: &'w Window,
        expected: Sequence,
        (frontier, trailing_gap_since): (Sequence, MonoNs),
        config: &ArbiterConfig,
    ) -> Self {
        let ArbiterConfig { gap_timeout_ns, when_full, .. } = *config;
        Self { window, expected, frontier, trailing_gap_since, gap_timeout_ns, when_full }
    }

    /// The first hole from `from` on.
    pub(crate) fn from(&self, from: Sequence) -> Option<PendingGap> {
        let (first, behind) = self.window.first_missing_from(from.max(self.expected));
        let next = behind.map_or(self.frontier, |held| held.from);
        let since = behind.map_or(self.trailing_gap_since, |held| held.gap_since);
        Some(PendingGap { gap: Gap::new(first, next)?, due: since.plus(self.gap_timeout_ns) })
    }

    /// What of the first hole from `from` on lies before `until`.
    pub(crate) fn first_gap_in(&self, from: Sequence, until: Sequence) -> Option<Gap> {
        let gap = self.from(from)?.gap;
        Gap::new(gap.first(), gap.next().min(until))
    }

    /// The first sequence from `from` on that has not come.
    pub(crate) fn first_missing_from(&self, from: Sequence) -> Sequence {
        self.window.first_missing_from(from.max(self.expected)).0
    }

    /// Whether what holds up delivery begins there.
    pub(crate) fn is_first(&self, sequence: Sequence) -> bool {
        sequence <= self.expected
    }

    /// Whether the window has room for what fills others than the first one.
    pub(crate) fn has_space(&self) -> bool {
        match self.when_full {
            WhenFull::DeclareGap => !self.window.is_full(),
            // What is refused has to be asked for again.
            WhenFull::RefusePacket => self.window.is_half_free(),
        }
    }
}
