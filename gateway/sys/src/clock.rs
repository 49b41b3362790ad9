//! The two clocks of the gateway. On the data path only the turn (once per batch), the publisher (send time) and the
//! fence read them.

use mdgw_wire::time::{MonoNs, UnixNs};
use rustix::time::{ClockId, clock_gettime};

/// Monotonic time that counts suspend (`CLOCK_BOOTTIME`), so that a lease expires while the machine sleeps.
#[must_use]
pub fn mono_now() -> MonoNs {
    MonoNs(read(ClockId::Boottime))
}

/// Wall time (`CLOCK_REALTIME`): the clock of the kernel's receive timestamps. It may step.
#[must_use]
pub fn unix_now() -> UnixNs {
    UnixNs(read(ClockId::Realtime))
}

/// Wall time from the monotonic clock and an offset that is measured again every millisecond. This saves one clock read
/// per batch. Time daemons correct the rate of both clocks alike, so the offset changes only when the wall clock steps.
/// Such a step is detected up to a millisecond late.
#[derive(Clone, Copy, Debug)]
pub struct WallFromMono {
    measured_at: MonoNs,
    wall: UnixNs,
}

impl WallFromMono {
    /// Measures the offset.
    #[must_use]
    pub fn new() -> Self {
        Self { measured_at: mono_now(), wall: unix_now() }
    }

    /// The wall time at `now`, a reading of [`mono_now`] not much older than this call.
    pub fn at(&mut self, now: MonoNs) -> UnixNs {
        let age_ns = now.since(self.measured_at);
        if age_ns > OFFSET_AGE_NS_MAX {
            *self = Self { measured_at: now, wall: unix_now() };
            return self.wall;
        }
        UnixNs(self.wall.0.saturating_add(age_ns))
    }
}

impl Default for WallFromMono {
    fn default() -> Self {
        Self::new()
    }
}

/// Longest use of a measured offset, ns.
const OFFSET_AGE_NS_MAX: u64 = 1_000_000;

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_never_decreases() {
        let mut last = mono_now();
        for _ in 0..10_000 {
            let now = mono_now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn wall_time_follows_the_monotonic_clock_between_measurements() {
        let start = MonoNs(5_000);
        let mut wall = WallFromMono { measured_at: start, wall: UnixNs(1_000_000_000) };
        assert_eq!(wall.at(start.plus(700)), UnixNs(1_000_000_700));
        assert_eq!(wall.at(start.plus(OFFSET_AGE_NS_MAX)), UnixNs(1_000_000_000 + OFFSET_AGE_NS_MAX));
        let measured_anew = wall.at(start.plus(OFFSET_AGE_NS_MAX + 1));
        assert!(measured_anew > UnixNs(1_600_000_000_000_000_000), "the real wall clock");
    }
}
