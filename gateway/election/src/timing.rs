//! Lease, renewal and margin, and the relation between them that keeps two leaders from overlapping.
//!
//! ```text
//!   leader     sent ───────────────── deadline = sent + L − M        on its own clock
//!   candidate     learned ──────────────────────────── learned + L(1+ρ)   on its own clock
//!                                    │◄── M ≥ 2ρL + S + read error ──►│
//! ```
//! A candidate cannot learn of a renewal before the renewal was sent, so the margin alone separates the two. The margin
//! pays for the difference of the clocks' rates over one lease, for the longest send, and for reading the clock. The
//! same holds for a designated successor. Its deadline counts from its stamp, which was taken before the leader sent
//! the renewal that carries the stamp.

use mdgw_sys::clock_rate::CRYSTAL_ERROR_PPM;
use mdgw_wire::time::MonoNs;

/// Times of one lease. All of them may be set; [`Self::check`] decides whether they are safe together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseTiming {
    /// L: how long others wait, ns.
    pub lease_ns: u64,
    /// R: the renewal period, ns.
    pub renew_ns: u64,
    /// M: a leader stops this long before others may begin, ns.
    pub margin_ns: u64,
    /// S: longest time from the fence's check to the return of the send, ns. Longer sends are counted.
    pub send_ns_max: u64,
    /// ρ: bound on the error of any clock's rate, parts per million.
    pub rate_error_ppm: u32,
}

impl LeaseTiming {
    /// Profile for a store with three nodes: a lease of about five times the worst p99.9 of its answers.
    pub const DEFAULT: Self = Self::from_ms(100, 20, 20);
    /// Profile for isolated cores under SCHED_FIFO.
    pub const FAST: Self = Self::from_ms(40, 8, 8);
    /// Profile for distant stores, or for machines that stall.
    pub const CALM: Self = Self::from_ms(1_000, 200, 200);
    /// All profiles, with their names in the configuration.
    pub const PROFILES: [(&'static str, Self); 3] =
        [("default", Self::DEFAULT), ("fast", Self::FAST), ("calm", Self::CALM)];

    /// Makes times from lease, renewal and margin, ms. The longest send is half of the margin.
    #[must_use]
    pub const fn from_ms(lease_ms: u64, renew_ms: u64, margin_ms: u64) -> Self {
        Self {
            lease_ns: lease_ms * NS_PER_MS,
            renew_ns: renew_ms * NS_PER_MS,
            margin_ns: margin_ms * NS_PER_MS,
            send_ns_max: margin_ms * NS_PER_MS / 2,
            rate_error_ppm: RATE_ERROR_PPM,
        }
    }

    /// Checks that no two leases with these times can overlap, and that three renewals fit into a lease.
    ///
    /// # Errors
    /// When two leases could overlap, or a single lost renewal could end a lease. The error shows the arithmetic.
    pub fn check(&self) -> Result<(), TimingError> {
        let Self { lease_ns, renew_ns, margin_ns, send_ns_max, rate_error_ppm } = *self;
        if !(CRYSTAL_ERROR_PPM..=RATE_ERROR_PPM_MAX).contains(&rate_error_ppm) {
            return Err(TimingError::RateError { rate_error_ppm });
        }
        if !(1..=LEASE_NS_MAX).contains(&lease_ns) || renew_ns == 0 {
            return Err(TimingError::Range { lease_ns, renew_ns });
        }
        let drift_ns = self.drift_ns();
        let margin_ns_min = drift_ns.saturating_add(send_ns_max).saturating_add(CLOCK_READ_ERROR_NS);
        if margin_ns < margin_ns_min || margin_ns >= lease_ns {
            return Err(TimingError::Margin { timing: *self, drift_ns, margin_ns_min });
        }
        if renew_ns > (lease_ns - margin_ns) / 3 {
            return Err(TimingError::Renewal { lease_ns, renew_ns, margin_ns });
        }
        Ok(())
    }

    /// The rate error that the margin pays for, parts per million. Never less than crystal and slew together: a slew that begins
    /// after a renewal or a promise changes a clock's rate within the lease, whatever the configured bound is.
    #[must_use]
    pub fn margin_rate_ppm(&self) -> u32 {
        self.rate_error_ppm.max(RATE_ERROR_PPM)
    }

    /// How far two clocks can drift apart over one lease, ns.
    fn drift_ns(&self) -> u64 {
        2 * drift_ns(self.lease_ns, self.margin_rate_ppm())
    }

    /// The deadline for sends, on the leader's clock, after the last successful renewal was *sent* at `sent`.
    #[must_use]
    pub(crate) fn deadline(&self, sent: MonoNs) -> MonoNs {
        sent.plus(self.lease_ns.saturating_sub(self.margin_ns))
    }

    /// The deadline where others wait for a lease of at most `lease_ns`.
    #[must_use]
    pub(crate) fn deadline_within(&self, sent: MonoNs, lease_ns: u64) -> MonoNs {
        sent.plus(self.lease_ns.min(lease_ns).saturating_sub(self.margin_ns))
    }

    /// How long a leader may send after it sent its last answered write, ns. `session_ns`: time-out of the session that
    /// keeps the leader's queue entry.
    #[must_use]
    pub fn session_usable_ns(&self, session_ns: u64) -> u64 {
        (session_ns / 3 * 2).saturating_sub(self.margin_ns)
    }

    /// Checks that three renewals fit into the usable time of such a session.
    ///
    /// # Errors
    /// When they do not fit. The error shows the arithmetic.
    pub fn check_session(&self, session_ns: u64) -> Result<(), TimingError> {
        let Self { renew_ns, margin_ns, .. } = *self;
        let usable_ns = self.session_usable_ns(session_ns);
        if renew_ns > usable_ns / 3 {
            return Err(TimingError::Session { session_ns, renew_ns, margin_ns, usable_ns });
        }
        Ok(())
    }

    /// How long a candidate waits for a lease of this length: L(1 + ρ), rounded up, ns.
    #[must_use]
    pub fn wait_ns(&self) -> u64 {
        self.wait_for_ns(self.lease_ns)
    }

    /// How long a candidate waits for a record with lease `lease_ns`, but never less than for its own lease. The
    /// record's length counts because its holder may be configured with a longer lease.
    #[must_use]
    pub(crate) fn wait_for_ns(&self, lease_ns: u64) -> u64 {
        let lease_ns = lease_ns.max(self.lease_ns);
        lease_ns.saturating_add(drift_ns(lease_ns, self.rate_error_ppm))
    }
}

impl Default for LeaseTiming {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Times that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// Two leases could overlap, or no usable time would remain.
    #[error(
        "margin {} ms must be at least 2 x {} ppm x lease {} ms + longest send {} ms + clock read error {} ms = \
         {} ms + {} ms + {} ms = {} ms, and less than the lease",
        ms(timing.margin_ns), timing.margin_rate_ppm(), ms(timing.lease_ns), ms(timing.send_ns_max),
        ms(CLOCK_READ_ERROR_NS), ms(*drift_ns), ms(timing.send_ns_max), ms(CLOCK_READ_ERROR_NS), ms(*margin_ns_min)
    )]
    Margin {
        /// The timing that was refused, as configured.
        timing: LeaseTiming,
        /// How far two clocks can drift apart over one lease, ns.
        drift_ns: u64,
        /// The smallest safe margin, ns.
        margin_ns_min: u64,
    },
    /// Fewer than three renewals fit into a lease.
    #[error(
        "renewal every {} ms must be at most a third of lease {} ms - margin {} ms: ({} - {}) / 3 = {} ms",
        ms(*renew_ns), ms(*lease_ns), ms(*margin_ns), ms(*lease_ns), ms(*margin_ns), ms((lease_ns - margin_ns) / 3)
    )]
    Renewal {
        /// L as configured, ns.
        lease_ns: u64,
        /// R as configured, ns.
        renew_ns: u64,
        /// M as configured, ns.
        margin_ns: u64,
    },
    /// Fewer than three renewals fit into the usable time of a session.
    #[error(
        "renewal every {} ms must be at most a third of two thirds of session {} ms - margin {} ms: ({} - {}) / 3 = {} ms",
        ms(*renew_ns), ms(*session_ns), ms(*margin_ns), ms(*session_ns / 3 * 2), ms(*margin_ns), ms(*usable_ns / 3)
    )]
    Session {
        /// T, the session's time-out, ns.
        session_ns: u64,
        /// R as configured, ns.
        renew_ns: u64,
        /// M as configured, ns.
        margin_ns: u64,
        /// The part of the session that a leader may use, ns.
        usable_ns: u64,
    },
    /// A time of 0, or beyond the maximum.
    #[error(
        "lease {} ms must be more than 0 and at most {} ms, renewal {} ms more than 0",
        ms(*lease_ns), ms(LEASE_NS_MAX), ms(*renew_ns)
    )]
    Range {
        /// L as configured, ns.
        lease_ns: u64,
        /// R as configured, ns.
        renew_ns: u64,
    },
    /// The bound on the rate error is out of range.
    #[error("a clock's rate error of {rate_error_ppm} ppm must be {CRYSTAL_ERROR_PPM} to {RATE_ERROR_PPM_MAX} ppm")]
    RateError {
        /// ρ as configured, parts per million.
        rate_error_ppm: u32,
    },
}

/// The error of a clock with rate error `rate_error_ppm` after `ns`, rounded up, ns.
#[must_use]
pub fn drift_ns(ns: u64, rate_error_ppm: u32) -> u64 {
    let drift = (u128::from(ns) * u128::from(rate_error_ppm)).div_ceil(1_000_000);
    u64::try_from(drift).unwrap_or(u64::MAX)
}

/// Default of ρ, parts per million: the crystal's error, and an ordinary slew of up to 500 ppm.
pub const RATE_ERROR_PPM: u32 = CRYSTAL_ERROR_PPM + 500;
/// Largest allowed ρ, parts per million. One per cent: a clock with a larger error is broken.
pub const RATE_ERROR_PPM_MAX: u32 = 10_000;
/// Bound on the error of a time comparison, ns: between reading the clock and comparing it, and between cores.
pub(crate) const CLOCK_READ_ERROR_NS: u64 = 1_000;
/// Longest allowed lease, ns: one hour. It bounds how long a record from the store can make a candidate wait.
pub(crate) const LEASE_NS_MAX: u64 = 3_600_000 * NS_PER_MS;

const NS_PER_MS: u64 = 1_000_000;

/// Milliseconds with as many digits as needed.
fn ms(ns: u64) -> String {
    let (whole, rest) = (ns / NS_PER_MS, ns % NS_PER_MS);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:06}").trim_end_matches('0').to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn profiles_are_safe() {
        for (name, timing) in LeaseTiming::PROFILES {
            assert_eq!(timing.check(), Ok(()), "{name}");
        }
    }

    #[test]
    fn leases_that_could_overlap_are_refused_with_the_arithmetic() {
        let timing = LeaseTiming { margin_ns: 10_000_000, ..LeaseTiming::DEFAULT };
        assert_eq!(
            timing.check().unwrap_err().to_string(),
            "margin 10 ms must be at least 2 x 600 ppm x lease 100 ms + longest send 10 ms + clock read error \
             0.001 ms = 0.12 ms + 10 ms + 0.001 ms = 10.121 ms, and less than the lease"
        );
        let least = LeaseTiming { margin_ns: 10_121_000, ..timing };
        assert_eq!(least.check(), Ok(()));
        assert!(LeaseTiming { margin_ns: 10_120_999, ..timing }.check().is_err());
        let whole = LeaseTiming { margin_ns: timing.lease_ns, ..timing };
        assert!(matches!(whole.check(), Err(TimingError::Margin { .. })));
    }

    /// Each clock may begin to slew by 500 ppm after the last renewal.
    #[test]
    fn a_margin_below_the_drift_of_slewed_clocks_is_refused_whatever_bound_is_configured() {
        let thin = LeaseTiming { rate_error_ppm: 200, ..LeaseTiming::from_ms(1_000, 200, 1) };
        assert_eq!(
            thin.check().unwrap_err().to_string(),
            "margin 1 ms must be at least 2 x 600 ppm x lease 1000 ms + longest send 0.5 ms + clock read error \
             0.001 ms = 1.2 ms + 0.5 ms + 0.001 ms = 1.701 ms, and less than the lease"
        );
        let least = LeaseTiming { margin_ns: 1_701_000, ..thin };
        assert_eq!(least.check(), Ok(()));
        assert_eq!(LeaseTiming { rate_error_ppm: CRYSTAL_ERROR_PPM, ..least }.check(), Ok(()));
        let wider = LeaseTiming { rate_error_ppm: 601, ..least };
        assert!(wider.check().unwrap_err().to_string().contains("= 1.703 ms"), "{:?}", wider.check());
    }

    #[test]
    fn a_lease_too_short_for_three_renewals_is_refused_with_the_arithmetic() {
        assert_eq!(
            LeaseTiming::from_ms(100, 27, 20).check().unwrap_err().to_string(),
            "renewal every 27 ms must be at most a third of lease 100 ms - margin 20 ms: (100 - 20) / 3 = 26.666666 ms"
        );
        assert_eq!(LeaseTiming::from_ms(100, 26, 20).check(), Ok(()));
    }

    #[test]
    fn a_session_too_short_for_three_renewals_is_refused_with_the_arithmetic() {
        assert_eq!(
            LeaseTiming::CALM.check_session(1_000_000_000).unwrap_err().to_string(),
            "renewal every 200 ms must be at most a third of two thirds of session 1000 ms - margin 200 ms: \
             (666.666666 - 200) / 3 = 155.555555 ms"
        );
        assert_eq!(LeaseTiming::CALM.check_session(1_200_000_000), Ok(()));
        assert!(LeaseTiming::CALM.check_session(200_000_000).is_err(), "less than the margin");
    }

    #[test]
    fn times_out_of_range_are_refused() {
        assert!(matches!(LeaseTiming::from_ms(0, 20, 20).check(), Err(TimingError::Range { .. })));
        assert!(matches!(LeaseTiming::from_ms(100, 0, 20).check(), Err(TimingError::Range { .. })));
        assert!(matches!(LeaseTiming::from_ms(3_600_001, 20, 20).check(), Err(TimingError::Range { .. })));
        let wild = LeaseTiming { rate_error_ppm: RATE_ERROR_PPM_MAX + 1, ..LeaseTiming::CALM };
        assert!(matches!(wild.check(), Err(TimingError::RateError { .. })));
        let beyond_crystals = LeaseTiming { rate_error_ppm: CRYSTAL_ERROR_PPM - 1, ..LeaseTiming::CALM };
        assert!(matches!(beyond_crystals.check(), Err(TimingError::RateError { .. })), "no clock could fulfil it");
    }

    #[test]
    fn a_candidate_waits_for_the_longer_of_its_own_and_the_records_lease() {
        let timing = LeaseTiming::DEFAULT;
        assert_eq!(timing.wait_ns(), 100_060_000);
        assert_eq!(timing.wait_for_ns(1_000_000_000), 1_000_600_000);
        assert_eq!(timing.wait_for_ns(1), timing.wait_ns());
    }

    proptest! {
        /// The proof's inequality over clocks of any allowed rate: the leader's lease plus the longest send ends before
        /// the candidate's wait ends.
        #[test]
        fn accepted_times_keep_leader_and_candidate_intervals_disjoint(
            lease_ns in 1_000_000_u64..10_000_000_000, send_percent in 0_u64..60,
            margin_ppm in prop_oneof![0_u64..3_000, 0_u64..50_000],
            rate_error_ppm in prop_oneof![CRYSTAL_ERROR_PPM..RATE_ERROR_PPM, CRYSTAL_ERROR_PPM..=RATE_ERROR_PPM_MAX],
        ) {
            let send_ns_max = lease_ns / 100 * send_percent;
            let margin_ns = send_ns_max + lease_ns / 1_000 * margin_ppm / 1_000;
            let renew_ns = (lease_ns - margin_ns) / 3;
            let timing = LeaseTiming { lease_ns, renew_ns, margin_ns, send_ns_max, rate_error_ppm };
            prop_assume!(timing.check().is_ok());
            // A slew that begins after the renewal: each clock may be off by what the margin pays for, though less is configured.
            let rho = f64::from(rate_error_ppm.max(RATE_ERROR_PPM)) / 1e6;
            let slow_leader_ends_ns = timing.deadline(MonoNs(0)).0 as f64 / (1.0 - rho) + send_ns_max as f64;
            let fast_candidate_begins_ns = timing.wait_ns() as f64 / (1.0 + rho);
            prop_assert!(slow_leader_ends_ns < fast_candidate_begins_ns);
        }
    }
}
