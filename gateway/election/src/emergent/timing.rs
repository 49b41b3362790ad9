//! Times of a membership, and the relations between them that the check demands.

use crate::timing::{CLOCK_READ_ERROR_NS, LeaseTiming, RATE_ERROR_PPM, drift_ns};

/// All times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EmergentTiming {
    /// H: heartbeat period.
    pub heartbeat_ns: u64,
    /// F: failure time-out. A member that was silent for this long counts as failed.
    pub failure_ns: u64,
    /// M: a leader stops this long before others may displace it.
    pub margin_ns: u64,
    /// S: longest time from the fence's check to the return of the send.
    pub send_ns_max: u64,
    /// ρ: bound on the error of any clock's rate, parts per million.
    pub rate_error_ppm: u32,
    /// Period of probes to failed members.
    pub probe_ns: u64,
    /// A join is answered after this time, even if not all members have acknowledged it.
    pub join_ns_max: u64,
    /// First pause between attempts to join; doubles.
    pub pause_ns: u64,
    /// Upper limit of the pause.
    pub pause_ns_max: u64,
}

impl EmergentTiming {
    /// Heartbeats every 20 ms: five missing ones are a failure.
    pub(crate) const DEFAULT: Self = Self {
        heartbeat_ns: 20_000_000,
        failure_ns: 100_000_000,
        margin_ns: 20_000_000,
        send_ns_max: 10_000_000,
        rate_error_ppm: RATE_ERROR_PPM,
        probe_ns: 1_000_000_000,
        join_ns_max: 500_000_000,
        pause_ns: 100_000_000,
        pause_ns_max: 3_000_000_000,
    };

    /// From a lease's times: the failure time-out is its length, a heartbeat comes with each renewal.
    #[must_use]
    pub fn of_lease(lease: &LeaseTiming) -> Self {
        Self {
            heartbeat_ns: lease.renew_ns,
            failure_ns: lease.lease_ns,
            margin_ns: lease.margin_ns,
            send_ns_max: lease.send_ns_max,
            rate_error_ppm: lease.rate_error_ppm,
            ..Self::DEFAULT
        }
    }

    /// How long older members must have been silent before the next in age claims: the failure time-out on the slowest
    /// clock, and one heartbeat period, after which others find them silent too.
    #[must_use]
    pub(crate) fn claim_ns(&self) -> u64 {
        let failure_ns = self.failure_ns.saturating_add(drift_ns(self.failure_ns, self.rate_error_ppm));
        failure_ns.saturating_add(self.heartbeat_ns)
    }

    /// The rate error that the margin pays for, parts per million, as that of a lease.
    pub(crate) fn margin_rate_ppm(&self) -> u32 {
        self.rate_error_ppm.max(RATE_ERROR_PPM)
    }

    /// Checks that the older side's fence closes before the next in age claims, and that single lost heartbeats fail no
    /// member.
    ///
    /// # Errors
    /// When the times do not fit together. The error shows the arithmetic.
    pub(crate) fn check(&self) -> Result<(), EmergentTimingError> {
        let Self { heartbeat_ns, failure_ns, margin_ns, send_ns_max, .. } = *self;
        let drift_ns = 2 * drift_ns(failure_ns, self.margin_rate_ppm());
        let margin_ns_min = drift_ns.saturating_add(send_ns_max).saturating_add(CLOCK_READ_ERROR_NS);
        if margin_ns < margin_ns_min {
            return Err(EmergentTimingError::Margin { margin_ns, drift_ns, send_ns_max, margin_ns_min });
        }
        let failure_ns_min = heartbeat_ns.saturating_mul(3).saturating_add(margin_ns);
        if heartbeat_ns == 0 || failure_ns < failure_ns_min {
            return Err(EmergentTimingError::Failure { failure_ns, heartbeat_ns, margin_ns, failure_ns_min });
        }
        Ok(())
    }
}

/// Times that do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmergentTimingError {
    /// A leader could still send when the next leader opens.
    #[error(
        "margin {margin_ns} ns must be at least clock drift {drift_ns} ns + longest send {send_ns_max} ns + clock read \
         error {CLOCK_READ_ERROR_NS} ns = {margin_ns_min} ns"
    )]
    Margin {
        /// M as configured, ns.
        margin_ns: u64,
        /// How far two clocks can drift apart over one failure time-out, ns.
        drift_ns: u64,
        /// S as configured, ns.
        send_ns_max: u64,
        /// The smallest safe margin, ns.
        margin_ns_min: u64,
    },
    /// One lost heartbeat could be a failure.
    #[error(
        "failure time-out {failure_ns} ns must be at least 3 x heartbeat {heartbeat_ns} ns + margin {margin_ns} ns = \
         {failure_ns_min} ns, and the heartbeat interval more than 0"
    )]
    Failure {
        /// F as configured, ns.
        failure_ns: u64,
        /// H as configured, ns.
        heartbeat_ns: u64,
        /// M as configured, ns.
        margin_ns: u64,
        /// The smallest allowed failure time-out, ns.
        failure_ns_min: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_times_are_refused_with_the_arithmetic() {
        let good = EmergentTiming::DEFAULT;
        assert_eq!(good.check(), Ok(()));
        let thin = EmergentTiming { margin_ns: 10_120_999, ..good };
        assert_eq!(
            thin.check().unwrap_err().to_string(),
            "margin 10120999 ns must be at least clock drift 120000 ns + longest send 10000000 ns + clock read error \
             1000 ns = 10121000 ns"
        );
        assert_eq!(EmergentTiming { margin_ns: 10_121_000, ..good }.check(), Ok(()));
        let hasty = EmergentTiming { failure_ns: 79_999_999, ..good };
        assert!(hasty.check().unwrap_err().to_string().contains("= 80000000 ns"));
        assert_eq!(good.claim_ns(), 120_060_000);
    }

    #[test]
    fn every_lease_profile_gives_safe_times() {
        for (name, lease) in LeaseTiming::PROFILES {
            assert_eq!(EmergentTiming::of_lease(&lease).check(), Ok(()), "{name}");
        }
        assert_eq!(EmergentTiming::of_lease(&LeaseTiming::DEFAULT), EmergentTiming::DEFAULT);
    }
}
