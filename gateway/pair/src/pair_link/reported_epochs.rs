//! The epochs that peers report of a group, and a leader below one of them.

use std::sync::Arc;

use mdgw_sys::fence::Fence;
use mdgw_wire::{identity::Epoch, time::MonoNs};

use crate::standby::KnownEpochs;

/// What the link needs of a group.
#[derive(Clone, Debug)]
pub struct LinkedGroup {
    /// Epochs of the group; the peers' messages authenticate epochs too.
    pub epochs: Arc<KnownEpochs>,
    /// Fence of the group: whether this gateway leads it, and under which epoch.
    pub fence: Arc<Fence>,
}

/// A group, with the epochs that the peers report of it.
#[derive(Debug)]
pub struct ReportedEpochs {
    group: LinkedGroup,
    /// The highest epoch that a peer has reported above the one under which this gateway leads, and since when.
    above: Option<(Epoch, MonoNs)>,
}

impl ReportedEpochs {
    /// A group of which no peer has reported anything.
    #[must_use]
    pub fn new(group: LinkedGroup) -> Self {
        Self { group, above: None }
    }

    /// What this gateway reports to its peers: the highest epoch that it knows.
    #[must_use]
    pub fn highest_known(&self) -> Epoch {
        self.group.epochs.highest()
    }

    /// A peer reports the highest epoch that it knows. A leader below that epoch has to go above it, even if it received no
    /// packet of that epoch: receivers may have, and then they drop the leader's packets.
    ///
    /// A peer may know of the leader's own next epoch a little sooner than the leader, by the store or by its vote. So the
    /// leader waits before it counts the epoch as observed. If the answer takes longer than that, the leader counts its own
    /// next epoch as observed, which is not above itself and so raises nothing.
    pub fn record(&mut self, epoch: Epoch, now: MonoNs) {
        self.group.epochs.record_authenticated(epoch);
        let Some(own) = self.group.fence.epoch_if_open(now) else {
            self.above = None;
            return;
        };
        self.above.take_if(|(above, _)| *above <= own);
        if epoch > own {
            let (above, since) = self.above.get_or_insert((epoch, now));
            *above = epoch.max(*above);
            if now.since(*since) >= ABOVE_NS_MIN {
                self.group.epochs.record_above_leader(*above);
            }
        }
    }
}

/// How long a peer must have reported a higher epoch before a leader goes above it, ns: longer than a swap or vote that raises
/// the leader's epoch is on its way, as a rule.
const ABOVE_NS_MIN: u64 = 250_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_goes_above_a_higher_epoch_that_a_peer_keeps_reporting() {
        let fence = Arc::new(Fence::closed());
        let epochs = Arc::new(KnownEpochs::new(Epoch::default(), 1));
        let mut reported = ReportedEpochs::new(LinkedGroup { epochs: Arc::clone(&epochs), fence: Arc::clone(&fence) });
        let ms = |ms: u64| MonoNs(ms * 1_000_000);
        let (own, next, above) = (Epoch::new(7, 1), Epoch::new(8, 1), Epoch::new(9, 2));
        reported.record(above, ms(0));
        reported.record(above, ms(900));
        assert_eq!((epochs.highest(), epochs.highest_observed()), (above, None), "a standby only believes it");

        fence.open(own, ms(10_000));
        // The peer read the leader's next epoch in the store before the leader had the answer.
        reported.record(next, ms(1_000));
        reported.record(next, ms(1_200));
        fence.raise(next, ms(10_000));
        reported.record(next, ms(1_300));
        assert_eq!(epochs.highest_observed(), None);
        // Another peer does not know the epoch that the first one holds.
        for at in (2_000..2_250).step_by(20) {
            reported.record(above, ms(at));
            reported.record(next, ms(at + 1));
            assert_eq!(epochs.highest_observed(), None);
        }
        reported.record(above, ms(2_260));
        assert_eq!(epochs.highest_observed(), Some(above));
    }
}
