//! Which epochs a gateway accepts.

use std::{
    fmt,
    net::SocketAddrV4,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Relaxed},
        },
    },
};

use mdgw_wire::{drop_reason::DropReason, identity::Epoch};

/// The known epochs of one group. Packets are not signed. So the gateway accepts an epoch from the network only within
/// a bounded jump above an authenticated epoch, or above an epoch accepted before. Otherwise one forged packet could
/// exhaust the epochs, or make the gateway ignore the real leader.
///
/// Receivers have no authenticated source and follow the same rule. If several forged packets raise the epochs step by
/// step, a leader has to follow: receivers would ignore it otherwise. Each step takes a packet, and 2^56 epochs
/// outlast such an attack.
///
/// Any thread may record an epoch, one thread observes packets, and any thread may read. Each atomic is
/// independent, except that the wake-up orders the observed epoch.
pub struct KnownEpochs {
    authenticated: AtomicU64,
    /// Written under the lock of `observed_from`, read without.
    observed: AtomicU64,
    /// Who sent the packet of the highest observed epoch; `None`: a peer reported that epoch.
    observed_from: Mutex<Option<SocketAddrV4>>,
    /// The same of earlier runs, and what they published under. Not a reason for a leader to go above it.
    held_before: AtomicU64,
    rejected_jumps: AtomicU64,
    jump_max: u64,
    waker: OnceLock<Waker>,
    /// The waker was called, and the election has not read the observed epoch since.
    is_wake_pending: AtomicBool,
}

type Waker = Box<dyn Fn() + Send + Sync>;

impl fmt::Debug for KnownEpochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KnownEpochs").field(&self.highest()).finish()
    }
}

impl KnownEpochs {
    /// `start`: the epoch of this gateway's state file. `jump_max`: in epoch counts.
    #[must_use]
    pub fn new(start: Epoch, jump_max: u64) -> Self {
        let word = AtomicU64::new;
        Self {
            authenticated: word(start.0),
            observed: word(0),
            observed_from: Mutex::default(),
            held_before: word(0),
            rejected_jumps: word(0),
            jump_max,
            waker: OnceLock::new(),
            is_wake_pending: AtomicBool::new(false),
        }
    }

    /// Calls `waker` when a higher epoch was observed, once until [`Self::take_observed`]. The first waker stays.
    pub fn wake_with(&self, waker: impl Fn() + Send + Sync + 'static) {
        let _first_stays = self.waker.set(Box::new(waker));
    }

    /// The election's record, its votes or the pair link name this epoch.
    pub fn record_authenticated(&self, epoch: Epoch) {
        self.authenticated.fetch_max(epoch.0, Relaxed);
    }

    /// Receivers hold this epoch: an earlier run has observed it, or published under it. They drop packets of lower ones as stale, so this
    /// gateway does too: such packets would count as received otherwise.
    pub fn record_held(&self, epoch: Epoch) {
        self.held_before.fetch_max(epoch.0, Relaxed);
    }

    /// A connected peer has reported an epoch above the one under which this gateway leads. Receivers may hold it: this leader
    /// has to go above it, as if it had received a packet of that epoch.
    pub(crate) fn record_above_leader(&self, epoch: Epoch) {
        self.record_authenticated(epoch);
        self.raise_observed(epoch, None);
    }

    /// As [`Self::observe_from`], of a packet whose sender is not known.
    ///
    /// # Errors
    /// As there.
    pub fn observe(&self, epoch: Epoch) -> Result<(), DropReason> {
        self.observe_from(epoch, None)
    }

    /// Observes the epoch of a packet that was received from that address.
    ///
    /// # Errors
    /// - [`DropReason::EpochStale`]: receivers [hold](Self::held) a higher epoch.
    /// - [`DropReason::EpochJump`]: too far above the received and the authenticated epochs; counted.
    pub fn observe_from(&self, epoch: Epoch, from: Option<SocketAddrV4>) -> Result<(), DropReason> {
        if epoch < self.held() {
            return Err(DropReason::EpochStale);
        }
        if epoch.count() > self.highest().count().saturating_add(self.jump_max) {
            self.rejected_jumps.fetch_add(1, Relaxed);
            return Err(DropReason::EpochJump);
        }
        self.raise_observed(epoch, from);
        Ok(())
    }

    fn raise_observed(&self, epoch: Epoch, from: Option<SocketAddrV4>) {
        // Most packets carry the epoch of the packet before, and take no lock.
        if epoch.0 <= self.observed.load(Relaxed) {
            return;
        }
        let mut observed_from = self.lock_observed_from();
        let is_higher = self.observed.fetch_max(epoch.0, Relaxed) < epoch.0;
        if is_higher {
            *observed_from = from;
        }
        drop(observed_from);
        if is_higher
            && let Some(waker) = self.waker.get()
            && !self.is_wake_pending.swap(true, AcqRel)
        {
            waker();
        }
    }

    /// As [`Self::highest_observed_from`], for the election. The next higher epoch wakes the election again.
    pub fn take_observed(&self) -> Option<(Epoch, Option<SocketAddrV4>)> {
        // A packet whose epoch is not seen below finds `false`, and wakes.
        self.is_wake_pending.swap(false, AcqRel);
        self.highest_observed_from()
    }

    /// The highest epoch accepted from the network, or reported to this gateway while it led below. Receivers ignore a leader
    /// whose epoch is below it; that leader has to go above it.
    #[must_use]
    pub fn highest_observed(&self) -> Option<Epoch> {
        Some(Epoch(self.observed.load(Relaxed))).filter(|epoch| epoch.0 > 0)
    }

    /// As [`Self::highest_observed`], and who sent the packet of that epoch; `None`: a peer reported the epoch.
    #[must_use]
    pub fn highest_observed_from(&self) -> Option<(Epoch, Option<SocketAddrV4>)> {
        let from = self.lock_observed_from();
        self.highest_observed().map(|epoch| (epoch, *from))
    }

    /// Held for a few instructions: the election thread takes it too.
    fn lock_observed_from(&self) -> MutexGuard<'_, Option<SocketAddrV4>> {
        self.observed_from.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The highest epoch of which receivers have accepted a packet, as far as this gateway and its earlier runs know.
    #[must_use]
    pub fn held(&self) -> Epoch {
        Epoch(self.observed.load(Relaxed).max(self.held_before.load(Relaxed)))
    }

    /// The epoch because of which packets of lower ones are stale to a gateway that has published under `own`.
    pub(crate) fn held_above(&self, own: Epoch) -> HeldEpoch {
        let (observed, from) = self.highest_observed_from().unwrap_or_default();
        let epoch = self.held().max(own);
        // The sender of the higher epoch is in question; the leader's packets are as they should be.
        HeldEpoch { epoch, from: from.filter(|_| observed == epoch), is_of_earlier_run: observed.max(own) < epoch }
    }

    /// The highest epoch known from any source: a new epoch must be above it.
    #[must_use]
    pub fn highest(&self) -> Epoch {
        self.held().max(Epoch(self.authenticated.load(Relaxed)))
    }

    /// Packets whose epoch was not accepted.
    #[must_use]
    pub fn rejected_jumps(&self) -> u64 {
        self.rejected_jumps.load(Relaxed)
    }
}

/// An epoch that receivers hold, as far as this gateway knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldEpoch {
    pub(crate) epoch: Epoch,
    /// Who sent the packet of that epoch, if this run has received one of another gateway.
    pub(crate) from: Option<SocketAddrV4>,
    /// Only an earlier run has received or used the epoch.
    pub(crate) is_of_earlier_run: bool,
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::Arc};

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
    fn a_flood_of_higher_epochs_wakes_the_election_once_until_it_reads() {
        let known = KnownEpochs::new(Epoch::new(5, 1), 1_000);
        let wakes = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&wakes);
        known.wake_with(move || {
            counted.fetch_add(1, Relaxed);
        });
        for expected in 1..4 {
            let first = known.highest().count();
            for count in first + 1..first + 1_000 {
                assert_eq!(known.observe(Epoch::new(count, 9)), Ok(()));
            }
            assert_eq!(known.observe(known.highest()), Ok(()), "the same epoch again");
            assert_eq!(wakes.load(Relaxed), expected);
            assert_eq!(known.take_observed(), Some((known.highest(), None)));
        }
    }

    #[test]
    fn a_leader_takes_a_higher_epoch_that_its_peer_reports_for_an_observed_one() {
        let known = KnownEpochs::new(Epoch::new(5, 1), 10);
        let wakes = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&wakes);
        known.wake_with(move || {
            counted.fetch_add(1, Relaxed);
        });
        known.record_authenticated(Epoch::new(400, 2));
        assert_eq!((known.take_observed(), wakes.load(Relaxed)), (None, 0), "a standby only believes it");
        // However far it is above the leader: the peer's messages are authenticated.
        known.record_above_leader(Epoch::new(400, 2));
        assert_eq!((known.take_observed(), wakes.load(Relaxed)), (Some((Epoch::new(400, 2), None)), 1));
    }

    #[test]
    fn the_highest_observed_epoch_is_kept_with_the_sender_of_its_first_packet() {
        let known = KnownEpochs::new(Epoch::new(5, 1), 10);
        let sender = |host| Some(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host), 4_000));
        let epoch = |count| Epoch::new(count, 9);
        assert_eq!(known.observe_from(epoch(6), sender(1)), Ok(()));
        assert_eq!(known.observe_from(epoch(6), sender(2)), Ok(()), "the leader's packets may carry it later");
        assert_eq!(known.observe_from(epoch(5), sender(3)), Err(DropReason::EpochStale));
        assert_eq!(known.observe_from(epoch(900), sender(4)), Err(DropReason::EpochJump));
        assert_eq!(known.take_observed(), Some((epoch(6), sender(1))));
        assert_eq!(known.observe_from(epoch(8), sender(2)), Ok(()));
        assert_eq!(known.highest_observed_from(), Some((epoch(8), sender(2))));
        known.record_above_leader(epoch(9));
        assert_eq!(known.highest_observed_from(), Some((epoch(9), None)), "the peer has sent no packet");
    }

    #[test]
    fn packets_below_an_epoch_that_receivers_hold_are_stale_after_a_restart_too() {
        let known = KnownEpochs::new(Epoch::new(5, 1), 10);
        known.record_held(Epoch::new(4, 1));
        assert_eq!(known.observe(Epoch::new(3, 2)), Err(DropReason::EpochStale));
        assert_eq!((known.highest_observed(), known.held()), (None, Epoch::new(4, 1)), "no leader has to go above it");
        // The epoch in the state file may never have been opened: a leader below it is received.
        assert_eq!(known.observe(Epoch::new(4, 2)), Ok(()));
        assert_eq!(known.observe(Epoch::new(7, 2)), Ok(()));
        assert_eq!((known.held(), known.highest()), (Epoch::new(7, 2), Epoch::new(7, 2)));
    }

    #[test]
    fn the_epoch_above_a_dropped_leader_is_named_after_a_restart_too() {
        let known = KnownEpochs::new(Epoch::new(45, 1), 10);
        let epoch = |count| Epoch::new(count, 9);
        let held = |epoch, from, is_of_earlier_run| HeldEpoch { epoch, from, is_of_earlier_run };
        known.record_held(epoch(43));
        assert_eq!(known.observe(epoch(41)), Err(DropReason::EpochStale));
        assert_eq!(known.held_above(Epoch::default()), held(epoch(43), None, true));
        assert_eq!(known.held_above(epoch(44)), held(epoch(44), None, false));
        let sender = Some(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 4_000));
        assert_eq!(known.observe_from(epoch(43), sender), Ok(()));
        assert_eq!(known.held_above(Epoch::default()), held(epoch(43), sender, false));
        assert_eq!(known.held_above(epoch(44)), held(epoch(44), None, false));
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
