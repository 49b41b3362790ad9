//! Whose packets are believed: the highest epoch heard, within reason.

use crate::{drop_reason::DropReason, identity::Epoch};

/// Epochs of one group. Lower ones are of a gateway that no longer leads, and closes the hole between its check of
/// the fence and its send.
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

    /// The first is taken as it comes, later ones within a bounded jump of the highest: one damaged packet must not
    /// shut out every honest one after it.
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
