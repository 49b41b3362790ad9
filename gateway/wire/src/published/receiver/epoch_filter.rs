//! Accepts packets by epoch: the highest one observed, with a bounded step.

use crate::{drop_reason::DropReason, identity::Epoch};

/// Epochs of one group. A lower epoch belongs to a gateway that no longer leads. The filter covers the time between
/// that gateway's fence check and its send.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochFilter {
    highest: Option<Epoch>,
    /// The highest epoch that a retransmission service named.
    vouched: Option<Epoch>,
    jump_max: u64,
}

impl EpochFilter {
    pub(super) fn new(jump_max: u64) -> Self {
        Self { highest: None, vouched: None, jump_max }
    }

    pub(super) fn highest(&self) -> Option<Epoch> {
        self.highest
    }

    /// A retransmission service names this epoch: epochs are believed within the bounded step of it.
    pub(super) fn vouch(&mut self, epoch: Epoch) {
        self.vouched = self.vouched.max(Some(epoch));
    }

    pub(super) fn is_vouched(&self) -> bool {
        self.vouched.is_some()
    }

    /// Whether no receiver believes both epochs, in whatever order they arrive.
    pub(super) fn are_rivals(&self, one: Epoch, other: Epoch) -> bool {
        one.count().abs_diff(other.count()) > self.jump_max
    }

    /// Accepts an epoch only within a bounded step of the highest accepted epoch or of the vouched one. Otherwise one
    /// forged packet would block all later valid ones. Without either, [`EpochStart`](super::epoch_start::EpochStart)
    /// decides what the filter gets.
    pub(super) fn accept(&mut self, epoch: Epoch) -> Result<(), DropReason> {
        self.check(epoch)?;
        self.highest = Some(epoch);
        Ok(())
    }

    /// Whether [`Self::accept`] would accept it.
    pub(super) fn check(&self, epoch: Epoch) -> Result<(), DropReason> {
        if self.highest.is_some_and(|highest| epoch < highest) {
            return Err(DropReason::EpochStale);
        }
        if let Some(known) = self.highest.max(self.vouched)
            && self.are_rivals(known, epoch)
        {
            return Err(if epoch < known { DropReason::EpochStale } else { DropReason::EpochJump });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_only_increase_within_the_jump_limit() {
        let mut filter = EpochFilter::new(1_000);
        let mut accept = |count, node| filter.accept(Epoch::new(count, node));
        assert_eq!(accept(70_000, 1), Ok(()));
        assert_eq!(accept(70_000, 0), Err(DropReason::EpochStale));
        assert_eq!(accept(69_999, 9), Err(DropReason::EpochStale));
        assert_eq!(accept(71_001, 1), Err(DropReason::EpochJump));
        assert_eq!(accept(u64::MAX, 1), Err(DropReason::EpochJump));
        assert_eq!(accept(71_000, 2), Ok(()));
        assert_eq!(accept(72_000, 2), Ok(()));
        assert_eq!(accept(70_000, 1), Err(DropReason::EpochStale));
    }

    #[test]
    fn a_vouched_epoch_bounds_the_first_one_in_both_directions() {
        for (count, expected) in [
            (8_999, Err(DropReason::EpochStale)),
            (9_000, Ok(())),
            (11_000, Ok(())),
            (11_001, Err(DropReason::EpochJump)),
        ] {
            let mut filter = EpochFilter::new(1_000);
            filter.vouch(Epoch::new(10_000, 1));
            // A service of another gateway knows less: the higher epoch counts.
            filter.vouch(Epoch::new(20, 1));
            assert_eq!(filter.accept(Epoch::new(count, 1)), expected, "{count}");
        }
        let mut filter = EpochFilter::new(1_000);
        assert_eq!(filter.accept(Epoch::new(5, 1)), Ok(()));
        assert_eq!(filter.accept(Epoch::new(5_000, 2)), Err(DropReason::EpochJump));
        filter.vouch(Epoch::new(5_000, 2));
        assert_eq!(filter.accept(Epoch::new(5_000, 2)), Ok(()), "the receiver was cut off for many terms");
        assert_eq!(filter.accept(Epoch::new(5, 1)), Err(DropReason::EpochStale));
    }
}
