//! Which epochs a gateway accepts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mdgw_feeds::{drop_reason::DropReason, identity::Epoch};

/// The known epochs of one group. Packets are not signed. So the gateway accepts an epoch from the network only within
/// a bounded jump above an authenticated epoch, or above an epoch accepted before. Otherwise one forged packet could
/// exhaust the epochs, or make the gateway ignore the real leader.
///
/// Receivers have no authenticated source and follow the same rule. If several forged packets raise the epochs step by
/// step, a leader has to follow: receivers would ignore it otherwise. Each step takes a packet, and 2^56 epochs
/// outlast such an attack.
///
/// Any thread may record an authenticated epoch, one thread observes packets, and any thread may read. Each atomic is
/// independent; none orders another.
#[derive(Debug)]
pub struct KnownEpochs {
    authenticated: AtomicU64,
    observed: AtomicU64,
    rejected_jumps: AtomicU64,
    jump_max: u64,
}

impl KnownEpochs {
    /// `start`: the epoch of this gateway's state file. `jump_max`: in epoch counts.
    #[must_use]
    pub fn new(start: Epoch, jump_max: u64) -> Self {
        let word = AtomicU64::new;
        Self { authenticated: word(start.0), observed: word(0), rejected_jumps: word(0), jump_max }
    }

    /// The election's record, its votes or the pair link name this epoch.
    pub fn record_authenticated(&self, epoch: Epoch) {
        self.authenticated.fetch_max(epoch.0, Relaxed);
    }

    /// Observes the epoch of a received packet.
    ///
    /// # Errors
    /// - [`DropReason::EpochStale`]: a higher epoch was received before.
    /// - [`DropReason::EpochJump`]: too far above the received and the authenticated epochs; counted.
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

    /// The highest epoch accepted from the network. Receivers ignore a leader whose epoch is below it; that leader has
    /// to be elected again above it.
    #[must_use]
    pub fn highest_observed(&self) -> Option<Epoch> {
        Some(Epoch(self.observed.load(Relaxed))).filter(|epoch| epoch.0 > 0)
    }

    /// The highest epoch known from any source: a new epoch must be above it.
    #[must_use]
    pub fn highest(&self) -> Epoch {
        Epoch(self.observed.load(Relaxed).max(self.authenticated.load(Relaxed)))
    }

    /// Packets whose epoch was not accepted.
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
        assert_eq!(known.observe(Epoch::new(6, 2)), Ok(()), "the leader's own epoch is still accepted");
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
        assert_eq!(known.observe(Epoch::new(4, 1)), Ok(()), "an authenticated epoch that was not received yet");
        assert_eq!(known.observe(Epoch::new(70, 1)), Ok(()));
        assert_eq!(known.highest(), Epoch::new(70, 1));
    }
}
