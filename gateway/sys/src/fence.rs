//! The fence decides whether the gateway may send now. It has one deadline and one epoch.
//!
//! The election thread writes, the publisher reads; they share nothing else. The fence fails closed: it closes without
//! any action, since the deadline passes by itself.

// Also without `test`: the models of other packages run this fence under loom too.
#[cfg(feature = "loom")]
use loom::sync::atomic::AtomicU64;
#[cfg(not(feature = "loom"))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use mdgw_wire::{identity::Epoch, time::MonoNs};

/// Deadline and epoch of a group's fence. One thread writes them; any number of threads read them. They have their own
/// cache lines, which all readers share until a renewal writes to them.
#[derive(Debug)]
#[repr(align(128))]
pub struct Fence {
    /// Sending is allowed before this time; 0 is closed. Written last when opening.
    deadline: AtomicU64,
    /// Epoch of the opening that `deadline` belongs to, or a newer one.
    epoch: AtomicU64,
    /// Epoch of the opening since which this gateway has led without an interruption. Written before `epoch`.
    leading_since: AtomicU64,
}

impl Fence {
    /// A closed fence, of a gateway that does not lead.
    #[must_use]
    pub fn closed() -> Self {
        Self { deadline: AtomicU64::new(0), epoch: AtomicU64::new(0), leading_since: AtomicU64::new(0) }
    }

    /// The fence of a gateway without a peer: open for good, under the epoch of this start.
    #[must_use]
    pub fn standalone(epoch: Epoch) -> Self {
        Self {
            deadline: AtomicU64::new(u64::MAX),
            epoch: AtomicU64::new(epoch.0),
            leading_since: AtomicU64::new(epoch.0),
        }
    }

    /// Opens a closed fence under a new epoch. The margin has already been subtracted from `deadline`.
    pub fn open(&self, epoch: Epoch, deadline: MonoNs) {
        self.leading_since.store(epoch.0, Relaxed);
        self.raise(epoch, deadline);
    }

    /// Opens a fence that was closed a moment ago for this: the same leadership continues under a higher epoch, and nobody else
    /// has led in between.
    pub fn raise(&self, epoch: Epoch, deadline: MonoNs) {
        // Release pairs with the Acquire in `epoch`: a reader of this epoch sees its `leading_since`.
        self.epoch.store(epoch.0, Release);
        // Release pairs with the Acquire in `epoch_if_open`: a reader of this deadline sees this epoch.
        self.deadline.store(deadline.0, Release);
    }

    /// Moves the deadline of the present opening.
    pub fn renew(&self, deadline: MonoNs) {
        self.deadline.store(deadline.0, Release);
    }

    /// Closes the fence. A send that was checked earlier may still be in progress.
    pub fn close(&self) {
        self.deadline.store(0, Release);
    }

    /// Whether this gateway may send at `now`, a fresh clock reading.
    #[inline]
    #[must_use]
    pub fn is_open_at(&self, now: MonoNs) -> bool {
        now.0 < self.deadline.load(Acquire)
    }

    /// The epoch to send under, if sending is allowed at `now`.
    #[inline]
    #[must_use]
    pub fn epoch_if_open(&self, now: MonoNs) -> Option<Epoch> {
        self.is_open_at(now).then(|| self.epoch())
    }

    /// Epoch of the present opening, or of the last one while closed.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Acquire))
    }

    /// Epoch of the opening since which this gateway has led without an interruption. Read after [`Self::epoch`].
    #[must_use]
    pub fn leading_since(&self) -> Epoch {
        Epoch(self.leading_since.load(Relaxed))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn the_fence_is_open_only_from_opening_to_deadline_or_close() {
        let fence = Fence::closed();
        assert_eq!(fence.epoch_if_open(MonoNs(0)), None);
        fence.open(Epoch(7), MonoNs(100));
        assert_eq!(fence.epoch_if_open(MonoNs(99)), Some(Epoch(7)));
        assert_eq!(fence.epoch_if_open(MonoNs(100)), None);
        fence.renew(MonoNs(200));
        assert_eq!(fence.epoch_if_open(MonoNs(199)), Some(Epoch(7)));
        fence.close();
        assert_eq!(fence.epoch_if_open(MonoNs(0)), None);
        assert_eq!(fence.epoch(), Epoch(7));
    }

    #[test]
    fn a_raised_epoch_continues_the_leadership_and_an_opening_begins_one() {
        let fence = Fence::closed();
        fence.open(Epoch(7), MonoNs(100));
        fence.close();
        fence.raise(Epoch(9), MonoNs(200));
        assert_eq!((fence.epoch_if_open(MonoNs(199)), fence.leading_since()), (Some(Epoch(9)), Epoch(7)));
        fence.close();
        fence.open(Epoch(12), MonoNs(300));
        assert_eq!((fence.epoch(), fence.leading_since()), (Epoch(12), Epoch(12)));
    }

    #[test]
    fn the_fence_of_a_standalone_gateway_is_always_open() {
        assert_eq!(Fence::standalone(Epoch(3)).epoch_if_open(MonoNs(u64::MAX - 1)), Some(Epoch(3)));
    }
}

#[cfg(all(test, feature = "loom"))]
mod model {
    use loom::{sync::Arc, thread};

    use super::*;

    /// Opens the fence twice, each time with another deadline, while another thread checks it once.
    fn check(open: fn(&Fence, Epoch, MonoNs)) {
        loom::model(move || {
            let fence = Arc::new(Fence::closed());
            open(&fence, Epoch(1), MonoNs(10));
            let writer = {
                let fence = Arc::clone(&fence);
                thread::spawn(move || {
                    fence.close();
                    open(&fence, Epoch(2), MonoNs(20));
                    fence.close();
                })
            };
            // At 15 only the second opening's deadline is open.
            if let Some(epoch) = fence.epoch_if_open(MonoNs(15)) {
                assert_eq!(epoch, Epoch(2), "sent under the epoch of an earlier opening");
            }
            writer.join().unwrap();
            assert_eq!(fence.epoch_if_open(MonoNs(0)), None, "a closed fence is closed at any time");
        });
    }

    #[test]
    fn an_open_fence_returns_the_epoch_of_its_opening() {
        check(Fence::open);
    }

    #[test]
    #[should_panic(expected = "epoch of an earlier opening")]
    fn a_deadline_stored_before_its_epoch_is_caught() {
        check(|fence, epoch, deadline| {
            fence.deadline.store(deadline.0, Release);
            fence.epoch.store(epoch.0, Relaxed);
        });
    }

    #[test]
    #[should_panic(expected = "epoch of an earlier opening")]
    fn a_relaxed_deadline_store_is_caught() {
        check(|fence, epoch, deadline| {
            fence.epoch.store(epoch.0, Relaxed);
            fence.deadline.store(deadline.0, Relaxed);
        });
    }
}
