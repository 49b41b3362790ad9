//! Gaps between the expected sequence and the last sequence known to exist.

use crate::{identity::Sequence, time::MonoNs};

use super::{ArbiterConfig, WhenFull, gap::Gap, window::Window};

/// All pending gaps of a channel at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingGaps<'w> {
    window: &'w Window,
    expected: Sequence,
    frontier: Sequence,
    /// When the gap after all held packets was detected or last shrank.
    trailing_gap_since: MonoNs,
    gap_timeout_ns: u64,
    when_full: WhenFull,
}

/// One pending gap, from the queried sequence on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingGap {
    pub(crate) gap: Gap,
    /// When the wait for another line ends.
    pub(crate) due: MonoNs,
}

impl<'w> PendingGaps<'w> {
    /// The pair is the frontier, the first sequence not known to exist, and the time when the gap directly before it
    /// was detected or last shrank.
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

    /// The first gap from `from` on.
    pub(crate) fn from(&self, from: Sequence) -> Option<PendingGap> {
        let (first, behind) = self.window.first_missing_from(from.max(self.expected));
        let next = behind.map_or(self.frontier, |held| held.from);
        let since = behind.map_or(self.trailing_gap_since, |held| held.gap_since);
        Some(PendingGap { gap: Gap::new(first, next)?, due: since.plus(self.gap_timeout_ns) })
    }

    /// The part before `until` of the first gap from `from` on.
    pub(crate) fn first_gap_in(&self, from: Sequence, until: Sequence) -> Option<Gap> {
        let gap = self.from(from)?.gap;
        Gap::new(gap.first(), gap.next().min(until))
    }

    /// The first sequence from `from` on that has not arrived.
    pub(crate) fn first_missing_from(&self, from: Sequence) -> Sequence {
        self.window.first_missing_from(from.max(self.expected)).0
    }

    /// Whether the gap that blocks delivery begins at `sequence`.
    pub(crate) fn is_front(&self, sequence: Sequence) -> bool {
        sequence <= self.expected
    }

    /// Whether the window has room for packets that fill later gaps.
    pub(crate) fn has_space(&self) -> bool {
        match self.when_full {
            WhenFull::DeclareGap => !self.window.is_full(),
            // Rejected packets must be requested again.
            WhenFull::RefusePacket => self.window.is_half_free(),
        }
    }
}
