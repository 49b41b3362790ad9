//! Whether the main thread turns, for the admin listener and the control socket.
//!
//! The main thread watches the hot threads, the groups' health and the alarms, and feeds the watchdog. So no other part reports
//! that the main thread itself is stuck. Who answers an operator does: the admin thread, whenever it is asked for metrics, health or the page, and the
//! thread of the control socket for `mdgw ha status` and `mdgw top`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use mdgw_feeds::time::MonoNs;
use mdgw_sys::alarm::Alarm;

/// When the main thread last turned. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct MainThread(Arc<Turns>);

#[derive(Debug)]
struct Turns {
    /// On the monotonic clock, ns. The main thread writes it.
    turned_at_ns: AtomicU64,
    /// Whether the alarm was raised and has not ended.
    is_raised: AtomicBool,
}

impl MainThread {
    /// A main thread that turns now.
    pub(super) fn new(now: MonoNs) -> Self {
        Self(Arc::new(Turns { turned_at_ns: AtomicU64::new(now.0), is_raised: AtomicBool::new(false) }))
    }

    /// The main thread turns. Ends the alarm.
    pub(super) fn turned(&self, now: MonoNs) {
        self.0.turned_at_ns.store(now.0, Relaxed);
        if self.0.is_raised.swap(false, Relaxed) {
            tracing::info!(ends = Alarm::MainThreadStall.name(), "the main thread makes progress again");
        }
    }

    /// The main thread hands over or stops. Both may take long, so until its next turn the main thread never counts as stuck.
    pub(super) fn stops(&self) {
        self.0.turned_at_ns.store(u64::MAX, Relaxed);
    }

    /// For how long the main thread has been stuck, ns; `None` if it turns. The first call that finds it stuck raises the alarm.
    pub(super) fn stuck_ns(&self, now: MonoNs) -> Option<u64> {
        let idle_ns = now.since(MonoNs(self.0.turned_at_ns.load(Relaxed)));
        if idle_ns <= TURN_NS_MAX {
            return None;
        }
        if !self.0.is_raised.swap(true, Relaxed) {
            tracing::error!(
                alarm = Alarm::MainThreadStall.name(),
                idle_ns,
                "the main thread makes no progress: nobody watches the other threads, and this gateway feeds no watchdog"
            );
        }
        Some(idle_ns)
    }

    /// As [`Self::stuck_ns`], ms.
    pub(super) fn stuck_ms(&self, now: MonoNs) -> Option<u64> {
        self.stuck_ns(now).map(|stuck_ns| stuck_ns / 1_000_000)
    }
}

/// A main thread that has not turned for this long is stuck, ns. It turns twenty times a second.
const TURN_NS_MAX: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_main_thread_without_a_turn_is_stuck_until_the_next_one() {
        let main = MainThread::new(MonoNs(1_000));
        let raised = || main.0.is_raised.load(Relaxed);
        assert_eq!(main.stuck_ns(MonoNs(1_000 + TURN_NS_MAX)), None);
        assert_eq!(main.stuck_ns(MonoNs(1_001 + TURN_NS_MAX)), Some(TURN_NS_MAX + 1));
        assert!(raised());
        main.turned(MonoNs(2_000 + TURN_NS_MAX));
        assert_eq!(main.stuck_ns(MonoNs(3_000 + TURN_NS_MAX)), None);
        assert!(!raised());
        // A hand-over takes as long as the leases do.
        main.stops();
        assert_eq!(main.stuck_ns(MonoNs(100 * TURN_NS_MAX)), None);
    }
}
