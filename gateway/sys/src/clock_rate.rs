//! How far `CLOCK_BOOTTIME` may run from true time, as far as the kernel shows it. Leases assume a bound on this error.
//!
//! Time daemons correct the rate of the clock in four ways. The kernel adds them up (`kernel/time/ntp.c`):
//!
//! | correction | set by | rate | in effect |
//! | --- | --- | --- | --- |
//! | frequency | `ADJ_FREQUENCY`; ntpd, chrony | up to 500 ppm | at once |
//! | tick | `ADJ_TICK`; chrony | 100 ppm for each microsecond, up to 100,000 ppm | at once |
//! | `adjtime` | `ADJ_OFFSET_SINGLESHOT`; ntpd, OpenNTPD | up to 500 microseconds in each second | from the next second on |
//! | loop | `ADJ_OFFSET`; systemd-timesyncd, ntpd | the offset >> (2 + time constant) in each second | from the next second on |
//!
//! The kernel takes the share of the latter two for a whole second from what remains, at the beginning of that second. So the last
//! share is in effect for a second in which nothing remains.

#![allow(unsafe_code, reason = "adjtimex(2)")]

use std::io;

use mdgw_wire::time::MonoNs;

/// Bound on the error of a crystal's rate that no time daemon corrects, parts per million.
pub const CRYSTAL_ERROR_PPM: u32 = 100;

/// What is known about the error of this host's clock rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClockRate {
    /// The clock runs within this error of true time, parts per million: the crystal's error and all slews together.
    Within(u32),
    /// The kernel does not report how it corrects the clock.
    Unreadable,
}

impl ClockRate {
    /// Whether the error may be larger than `error_ppm_max`.
    #[must_use]
    pub fn exceeds(self, error_ppm_max: u32) -> bool {
        self.error_ppm() > error_ppm_max
    }

    /// The error, parts per million. The worst for a clock that cannot be read.
    #[must_use]
    pub fn error_ppm(self) -> u32 {
        match self {
            Self::Within(error_ppm) => error_ppm,
            Self::Unreadable => ERROR_PPM_WORST,
        }
    }
}

/// Larger than the sum of all corrections that the kernel allows: a tenth by the tick, a sixth by the loop with its
/// shortest time constant, and a thousandth by the others.
const ERROR_PPM_WORST: u32 = 1_000_000;

/// Reads the clock's rate and remembers slews for as long as they may be in effect.
#[derive(Clone, Debug, Default)]
pub struct RateMonitor {
    /// Start of the present period.
    since: MonoNs,
    /// Highest slew by `adjtime` and the loop that was read in the present period and in the one before, parts per
    /// million.
    slew_ppm_max: [u32; 2],
}

impl RateMonitor {
    /// The present rate. `now`: the present time.
    pub fn read(&mut self, now: MonoNs) -> ClockRate {
        self.take(now, &ClockState::read())
    }

    fn take(&mut self, now: MonoNs, state: &io::Result<ClockState>) -> ClockRate {
        state.as_ref().map_or(ClockRate::Unreadable, |state| self.observe(now, state))
    }

    fn observe(&mut self, now: MonoNs, state: &ClockState) -> ClockRate {
        let periods = now.since(self.since) / SLEW_PERIOD_NS;
        if periods > 0 {
            let [present, _] = self.slew_ppm_max;
            self.slew_ppm_max = [0, if periods == 1 { present } else { 0 }];
            self.since = now;
        }
        let [present, before] = &mut self.slew_ppm_max;
        *present = state.slew_ppm().max(*present);
        let slew_ppm = (*present).max(*before);
        // A daemon's lasting correction of the frequency opposes the crystal's error, so the larger of the two counts.
        ClockRate::Within(state.frequency_ppm().max(CRYSTAL_ERROR_PPM).saturating_add(slew_ppm))
    }
}

/// A slew that was read counts for one to two of these periods, ns. A share that the kernel takes at the beginning of a
/// second is in effect for that second; the rest covers a second of a slow clock.
const SLEW_PERIOD_NS: u64 = 1_100_000_000;

/// Whether the kernel reports how it corrects the clock. Elections need this.
///
/// # Errors
/// When the kernel or a filter of system calls refuses.
pub fn check_readable() -> io::Result<()> {
    ClockState::read().map(|_state| ())
}

/// What a time daemon reports to the kernel about the wall clock's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synchronisation {
    /// Whether a daemon has disciplined the clock recently (`STA_UNSYNC` is clear).
    pub is_synchronised: bool,
    /// What remains to be corrected, ns.
    pub offset_ns: i64,
    /// Bound on the error, microseconds.
    pub error_us_max: u64,
}

/// Whether the wall clock follows a reference.
///
/// # Errors
/// As [`check_readable`].
pub fn synchronisation() -> io::Result<Synchronisation> {
    let timex = read_timex(0)?;
    let unit_ns = if timex.status & libc::STA_NANO != 0 { 1 } else { 1_000 };
    Ok(Synchronisation {
        is_synchronised: timex.status & libc::STA_UNSYNC == 0,
        offset_ns: timex.offset.saturating_mul(unit_ns),
        error_us_max: u64::try_from(timex.maxerror).unwrap_or(u64::MAX),
    })
}

/// How the kernel corrects the clock, as adjtimex(2) reports it.
#[derive(Clone, Copy, Debug, Default)]
struct ClockState {
    /// Correction of the frequency, 2^-16 ppm.
    frequency: i64,
    /// Length of a tick, microseconds.
    tick_us: i64,
    /// What the loop has still to correct: ns with `STA_NANO`, else microseconds.
    offset: i64,
    /// The loop's time constant.
    constant: i64,
    /// `STA_` bits.
    status: i32,
    /// What `adjtime` has still to correct, microseconds.
    adjtime_us: i64,
}

impl ClockState {
    fn read() -> io::Result<Self> {
        let main = read_timex(0)?;
        let adjtime = read_timex(libc::ADJ_OFFSET_SS_READ)?;
        Ok(Self {
            frequency: main.freq,
            tick_us: main.tick,
            offset: main.offset,
            constant: main.constant,
            status: main.status,
            adjtime_us: adjtime.offset,
        })
    }

    /// The lasting correction: frequency and tick. Parts per million, absolute value, rounded up.
    fn frequency_ppm(&self) -> u32 {
        // A tick is nominally 10,000 us, so 1 us is 100 ppm.
        let tick = self.tick_us.saturating_sub(TICK_US).saturating_mul(100 << 16);
        let sum = self.frequency.saturating_add(tick);
        u32::try_from(sum.unsigned_abs().div_ceil(1 << 16)).unwrap_or(u32::MAX)
    }

    /// The temporary corrections, by `adjtime` and by the loop. Parts per million, absolute values, rounded up.
    fn slew_ppm(&self) -> u32 {
        // Microseconds in one second are parts per million.
        let by_adjtime = self.adjtime_us.unsigned_abs().min(ADJTIME_PPM_MAX);
        let by_loop = if self.status & PPS == PPS {
            // With pulses each second the kernel corrects the whole offset within a second.
            self.offset_ns()
        } else {
            // A share 1/n was taken for the present second, n = 2^(2 + constant): with x left that was x/(n - 1). The next share
            // is x/n, which is less.
            let constant =
                u32::try_from(self.constant.clamp(0, CONSTANT_MAX)).unwrap_or_else(|_| unreachable!("clamped"));
            self.offset_ns().div_ceil((1 << (2 + constant)) - 1)
        };
        u32::try_from(by_adjtime + by_loop.div_ceil(1_000)).unwrap_or(u32::MAX)
    }

    /// The loop's offset, ns, absolute value.
    fn offset_ns(&self) -> u64 {
        let offset = self.offset.unsigned_abs();
        if self.status & libc::STA_NANO != 0 {
            return offset.min(OFFSET_NS_MAX);
        }
        let offset_ns = offset.saturating_mul(1_000);
        if offset_ns <= OFFSET_NS_MAX {
            return offset_ns;
        }
        // Some versions of Linux divide the low 32 bits of a negative number of ns, as if they were positive.
        (1_u64 << 32).saturating_sub(offset_ns).min(OFFSET_NS_MAX)
    }
}

/// Nominal length of a tick in us, by the kernel's user-visible rate of 100 Hz.
const TICK_US: i64 = 10_000;
/// Fastest slew by `adjtime` (the kernel's `MAX_TICKADJ`), parts per million.
const ADJTIME_PPM_MAX: u64 = 500;
/// Longest time constant of the loop (the kernel's `MAXTC`).
const CONSTANT_MAX: i64 = 10;
/// Largest offset of the loop (the kernel's `MAXPHASE`), ns.
const OFFSET_NS_MAX: u64 = 500_000_000;
/// The loop follows a pulse per second.
const PPS: i32 = libc::STA_PPSTIME | libc::STA_PPSSIGNAL;

/// `mode`: 0 or `ADJ_OFFSET_SS_READ`. Both only read and need no privilege.
fn read_timex(mode: libc::c_uint) -> io::Result<libc::timex> {
    // SAFETY: all-zero is a valid timex: integers.
    let mut time: libc::timex = unsafe { std::mem::zeroed() };
    time.modes = mode;
    // SAFETY: adjtimex(2) writes one timex through the pointer, which is to a live local of that type.
    let state = unsafe { libc::adjtimex(&raw mut time) };
    if state < 0 { Err(io::Error::last_os_error()) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const AT_REST: ClockState =
        ClockState { frequency: 0, tick_us: TICK_US, offset: 0, constant: 0, status: 0, adjtime_us: 0 };

    fn rate(state: ClockState) -> u32 {
        let ClockRate::Within(error_ppm) = RateMonitor::default().observe(MonoNs(5 * SECOND), &state) else {
            panic!("a state that was read has a rate");
        };
        error_ppm
    }

    #[test]
    fn an_uncorrected_clock_has_the_crystals_error() {
        assert_eq!(rate(AT_REST), CRYSTAL_ERROR_PPM);
    }

    #[test]
    fn frequency_and_tick_are_one_correction_that_opposes_the_crystal() {
        let corrected = |frequency_ppm: i64, tick_us| ClockState { frequency: frequency_ppm << 16, tick_us, ..AT_REST };
        assert_eq!(rate(corrected(-30, TICK_US)), 100, "an ordinary crystal");
        assert_eq!(rate(corrected(-500, TICK_US)), 500);
        assert_eq!(rate(corrected(0, 9_000)), 100_000, "the kernel's limit");
        assert_eq!(rate(corrected(0, 11_000)), 100_000);
        assert_eq!(rate(corrected(400, TICK_US + 2)), 600);
        assert_eq!(rate(corrected(-400, TICK_US + 5)), 100);
        assert_eq!(rate(ClockState { frequency: (150 << 16) + 1, ..AT_REST }), 151, "rounded up");
    }

    #[test]
    fn adjtime_slews_by_what_remains_up_to_its_limit_beside_the_crystals_error() {
        let slewed = |adjtime_us| ClockState { adjtime_us, ..AT_REST };
        assert_eq!(rate(slewed(120)), 220);
        assert_eq!(rate(slewed(-120)), 220);
        assert_eq!(rate(slewed(500)), 600);
        assert_eq!(rate(slewed(-2_000_000)), 600);
        let ordinary = ClockState { frequency: 30 << 16, ..slewed(10_000) };
        assert_eq!(rate(ordinary), 600, "the default of the elections' bound covers it");
    }

    #[test]
    fn the_loop_slews_by_its_offset_and_time_constant() {
        let nano =
            |offset, constant| ClockState { offset, constant, status: libc::STA_PLL | libc::STA_NANO, ..AT_REST };
        assert_eq!(rate(nano(63_000, 4)), 101, "63 us / (2^6 - 1) in the present second");
        assert_eq!(rate(nano(-30_000_000, 4)), 100 + 477);
        assert_eq!(rate(nano(500_000_000, 0)), 100 + 166_667, "the kernel's limits");
        assert_eq!(rate(nano(500_000_000, -5)), 100 + 166_667);
        assert_eq!(rate(nano(500_000_000, 99)), 100 + 123);
        let micro = |offset| ClockState { offset, constant: 4, status: libc::STA_PLL, ..AT_REST };
        assert_eq!(rate(micro(30_000)), 100 + 477);
        assert_eq!(rate(micro(-30_000)), 100 + 477);
        let as_unsigned_us = ((1_i64 << 32) - 30_000_000) / 1_000;
        assert_eq!(rate(micro(as_unsigned_us)), 100 + 477, "-30 ms as some kernels report it");
        // A daemon that has ended leaves an offset behind, and the kernel continues to correct it.
        assert_eq!(rate(ClockState { status: 0, ..micro(30_000) }), 100 + 477);
        let pulses = libc::STA_PPSTIME | libc::STA_PPSSIGNAL | libc::STA_NANO;
        assert_eq!(rate(ClockState { status: pulses, ..nano(40_000, 4) }), 140, "all within a second");
    }

    #[test]
    fn all_corrections_add_up() {
        let all = ClockState {
            frequency: 200 << 16,
            tick_us: TICK_US + 3,
            offset: 63_000_000,
            constant: 4,
            status: libc::STA_NANO,
            adjtime_us: 900,
        };
        assert_eq!(rate(all), 200 + 300 + 1_000 + 500);
        let wild = ClockState { frequency: i64::MIN, tick_us: i64::MIN, offset: i64::MIN, constant: i64::MIN, ..all };
        assert_eq!(rate(wild), u32::MAX);
    }

    /// The kernel takes the last share of a slew from what remains a second before that share has taken effect.
    #[test]
    fn a_slew_counts_until_its_last_share_has_taken_effect() {
        let mut monitor = RateMonitor::default();
        let slewed = ClockState { adjtime_us: 300, ..AT_REST };
        let start = MonoNs(100 * SECOND);
        assert_eq!(monitor.observe(start, &AT_REST), ClockRate::Within(100));
        for ms in (0..3_000).step_by(10) {
            let state = if ms < 1_000 { slewed } else { AT_REST };
            let read = monitor.observe(start.plus(ms * 1_000_000), &state);
            if ms < 2_000 {
                assert_eq!(read, ClockRate::Within(400), "{ms} ms");
            }
        }
        let later = start.plus(4 * SECOND);
        assert_eq!(monitor.observe(later, &AT_REST), ClockRate::Within(100), "not for ever");
        monitor.observe(later, &slewed);
        assert_eq!(monitor.observe(later.plus(60 * SECOND), &AT_REST), ClockRate::Within(100), "nor after a pause");
    }

    #[test]
    fn an_unreadable_clock_is_worse_than_any_correction() {
        let refused = Err(io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(RateMonitor::default().take(MonoNs(SECOND), &refused), ClockRate::Unreadable);
        assert!(ClockRate::Unreadable.exceeds(600) && !ClockRate::Within(600).exceeds(600));
        let limits =
            ClockState { frequency: 500 << 16, tick_us: 11_000, offset: 500_000, adjtime_us: 9_999, ..AT_REST };
        assert!(ClockRate::Unreadable.error_ppm() > rate(limits));
    }

    #[test]
    fn the_kernel_reports_its_state() {
        let state = ClockState::read().expect("this host reports its clock");
        assert!((9_000..=11_000).contains(&state.tick_us), "{state:?}");
        assert!(RateMonitor::default().read(MonoNs(0)) != ClockRate::Unreadable);
    }
}
