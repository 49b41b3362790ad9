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

/// Both clocks at one moment, to tell the wall time of other readings of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPair {
    /// Monotonic time.
    pub mono: MonoNs,
    /// Wall time.
    pub wall: UnixNs,
}

impl ClockPair {
    /// Reads both clocks. A thread that waits for a core between the readings reads again.
    #[must_use]
    pub fn read() -> Self {
        Self::narrowest(mono_now, unix_now)
    }

    /// The wall time at an earlier moment.
    #[must_use]
    pub fn at(self, moment: MonoNs) -> UnixNs {
        UnixNs(self.wall.0.saturating_sub(self.mono.since(moment)))
    }

    /// Of a few readings the one that took the least time; the first that took next to none.
    fn narrowest(mut mono: impl FnMut() -> MonoNs, mut wall: impl FnMut() -> UnixNs) -> Self {
        let mut before = mono();
        let mut read = || {
            let wall = wall();
            let after = mono();
            let width_ns = after.since(before);
            (width_ns, Self { mono: std::mem::replace(&mut before, after), wall })
        };
        let mut narrowest = read();
        for _ in 1..READINGS_MAX {
            if narrowest.0 <= READING_NS_MAX {
                break;
            }
            let reading = read();
            if reading.0 < narrowest.0 {
                narrowest = reading;
            }
        }
        narrowest.1
    }
}

/// Readings of both clocks that [`ClockPair::read`] compares at most.
const READINGS_MAX: usize = 8;

/// A reading of both clocks that took no longer is good enough, ns.
const READING_NS_MAX: u64 = 2_000;

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
    fn a_pause_between_the_readings_does_not_shift_wall_time() {
        let paused_after = |readings: usize| {
            let time_ns = std::cell::Cell::new(1_000_000_000);
            let mut count = 0;
            let pair = ClockPair::narrowest(
                || MonoNs(time_ns.get()),
                || {
                    let wall = UnixNs(time_ns.get() + 7_000_000_000);
                    count += 1;
                    time_ns.set(time_ns.get() + if count > readings { 50 } else { 250_000_000 });
                    wall
                },
            );
            (pair.wall.0 - pair.mono.0, count)
        };
        assert_eq!(paused_after(0), (7_000_000_000, 1));
        assert_eq!(paused_after(3), (7_000_000_000, 4));
        assert_eq!(paused_after(READINGS_MAX).1, READINGS_MAX, "a starved thread goes on with what it has");
    }

    #[test]
    fn the_wall_time_of_an_earlier_moment_is_as_much_earlier() {
        let pair = ClockPair { mono: MonoNs(5_000), wall: UnixNs(1_000_000) };
        assert_eq!(pair.at(MonoNs(4_000)), UnixNs(999_000));
        assert_eq!(pair.at(MonoNs(6_000)), pair.wall, "never later than the reading");
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
