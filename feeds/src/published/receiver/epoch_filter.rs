//! Accepts packets by epoch: the highest one observed, with a bounded step.

use crate::{drop_reason::DropReason, identity::Epoch};

/// Epochs of one group. A lower epoch belongs to a gateway that no longer leads. The filter covers the time between
/// that gateway's fence check and its send.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochFilter {
    highest: Option<Epoch>,
    jump_max: u64,
}

impl EpochFilter {
    pub(super) fn new(jump_max: u64) -> Self {
        Self { highest: None, jump_max }
    }

    pub(super) fn highest(&self) -> Option<Epoch> {
        self.highest
    }

    /// The first epoch is accepted as it is, later ones only within a bounded step above the highest. Otherwise one
    /// damaged packet would block all later valid ones.
    pub(super) fn accept(&mut self, epoch: Epoch) -> Result<(), DropReason> {
        match self.highest {
            Some(highest) if epoch == highest => return Ok(()),
            Some(highest) if epoch < highest => return Err(DropReason::EpochStale),
            Some(highest) if epoch.count() - highest.count() > self.jump_max => return Err(DropReason::EpochJump),
            _ => {}
        }
        self.highest = Some(epoch);
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
}
