//! Which epochs a gateway believes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mdgw_feeds::{drop_reason::DropReason, identity::Epoch};

/// Epochs of one group. Packets aren't signed, so what comes from the wire is believed only within a bounded jump of what
/// somebody vouches for, or of what was believed before: one forged packet must not drive the epochs to their end, nor make a
/// gateway deaf. Receivers, for which nobody vouches, believe by the same rule. Where several forged packets take them up step by
/// step, a leader has to follow, or it would be mute for good; each takes a packet, and 2^56 epochs outlast them.
///
/// Any thread may vouch, one listens, any reads. Each word stands for itself; nothing is ordered by them.
#[derive(Debug)]
pub struct KnownEpochs {
    authenticated: AtomicU64,
    observed: AtomicU64,
    rejected_jumps: AtomicU64,
    jump_max: u64,
}

impl KnownEpochs {
    /// `start`: what the gateway's own state file knows. `jump_max`: in counts.
    #[must_use]
    pub fn new(start: Epoch, jump_max: u64) -> Self {
        let word = AtomicU64::new;
        Self { authenticated: word(start.0), observed: word(0), rejected_jumps: word(0), jump_max }
    }

    /// The election's record, its votes or the pair link name this epoch.
    pub fn record_authenticated(&self, epoch: Epoch) {
        self.authenticated.fetch_max(epoch.0, Relaxed);
    }

    /// A packet of this epoch was heard.
    ///
    /// # Errors
    /// - [`DropReason::EpochStale`]: a higher one was heard before.
    /// - [`DropReason::EpochJump`]: too far above what was heard and what anybody vouches for; counted.
    pub fn observe(&self, epoch: Epoch) -> Result<(), DropReason> {
        if epoch.0 < self.observed.load(Relaxed) {
            return Err(DropReason::EpochStale);
        }
        if epoch.count() > self.highest().count().saturating_add(self.jump_max) {
            self.rejected_jumps.fetch_add(1, Relaxed);
            return Err(DropReason::EpochJump);
        }
        self.observed.fetch_max(epoch.0, Relaxed);
        Ok(())
    }

    /// The highest that was believed from the wire. A leader that finds it above its own is mute at receivers, and must be
    /// elected anew above it.
    #[must_use]
    pub fn highest_observed(&self) -> Option<Epoch> {
        Some(Epoch(self.observed.load(Relaxed))).filter(|epoch| epoch.0 > 0)
    }

    /// The highest known from anywhere: what a new epoch must be above.
    #[must_use]
    pub fn highest(&self) -> Epoch {
        Epoch(self.observed.load(Relaxed).max(self.authenticated.load(Relaxed)))
    }

    /// Packets that were not believed.
    #[must_use]
    pub fn rejected_jumps(&self) -> u64 {
        self.rejected_jumps.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_epoch_jump_is_rejected_every_time() {
        let known = KnownEpochs::new(Epoch::new(5, 1), 1_000);
        assert_eq!(known.observe(Epoch::new(6, 2)), Ok(()));
        for forged in [Epoch::new(1_007, 0), Epoch(u64::MAX)] {
            assert_eq!(known.observe(forged), Err(DropReason::EpochJump));
        }
        assert_eq!((known.highest(), known.rejected_jumps()), (Epoch::new(6, 2), 2));
        assert_eq!(known.observe(Epoch::new(6, 2)), Ok(()), "the honest one is heard on");
    }

    #[test]
    fn a_gateway_accepts_the_same_epoch_jumps_as_a_receiver() {
        let known = KnownEpochs::new(Epoch::new(5, 1), 1_000);
        let jump = Err(DropReason::EpochJump);
        for (count, expected) in [(1_006, jump), (1_005, Ok(())), (2_005, Ok(())), (3_006, jump), (3_005, Ok(()))] {
            assert_eq!(known.observe(Epoch::new(count, 9)), expected, "{count}");
        }
        assert_eq!(known.highest_observed(), Some(Epoch::new(3_005, 9)), "a leader has to go above it");
    }

    #[test]
    fn lower_epochs_are_stale_and_authenticated_epochs_raise_the_jump_bound() {
        let known = KnownEpochs::new(Epoch::default(), 10);
        assert_eq!(known.highest_observed(), None);
        assert_eq!(known.observe(Epoch::new(4, 1)), Ok(()));
        assert_eq!(known.observe(Epoch::new(3, 2)), Err(DropReason::EpochStale));
        assert_eq!(known.observe(Epoch::new(70, 1)), Err(DropReason::EpochJump));
        known.record_authenticated(Epoch::new(65, 1));
        assert_eq!(known.observe(Epoch::new(4, 1)), Ok(()), "vouched for isn't heard yet");
        assert_eq!(known.observe(Epoch::new(70, 1)), Ok(()));
        assert_eq!(known.highest(), Epoch::new(70, 1));
    }
}
