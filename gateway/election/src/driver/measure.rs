//! Measures how fast a store answers, before a lease depends on it.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use crate::{
    register::{Outcome, Register, RegisterEvent, RegisterSender, RequestId},
    timing::LeaseTiming,
};

/// Result of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLatency {
    /// Reads that were answered.
    pub answered: u64,
    /// Reads that failed, or that were not answered in time.
    pub failed: u64,
    /// Median time of the answered reads, ns; 0 if there was none.
    pub p50_ns: u64,
    /// 99.9th percentile of the answered reads' times, ns; 0 if there was none.
    pub p999_ns: u64,
}

impl StoreLatency {
    /// A warning if the store is too slow for a lease with this timing.
    #[must_use]
    pub fn warning(&self, timing: &LeaseTiming) -> Option<String> {
        let room_ns = timing.lease_ns.saturating_sub(timing.margin_ns);
        let four_ns = self.p999_ns.saturating_mul(4);
        let ms = |ns: u64| Duration::from_nanos(ns).as_secs_f64() * 1e3;
        if self.answered == 0 {
            return Some("the store did not answer any measurement request".to_owned());
        }
        (four_ns > room_ns).then(|| {
            format!(
                "the store is too slow for this lease: 4 x p99.9 ({:.2} ms) = {:.2} ms exceeds lease - margin = \
                 {:.2} ms; renewals may be late; use a longer lease (profile \"calm\")",
                ms(self.p999_ns),
                ms(four_ns),
                ms(room_ns)
            )
        })
    }
}

/// Measures over a separate connection, opened by `open`: one read after the other for `duration`. The call blocks, so
/// it belongs into the start or on a cold thread.
///
/// # Errors
/// The error of `open`.
pub fn measure<E>(
    open: impl FnOnce(RegisterSender) -> Result<Box<dyn Register>, E>,
    duration: Duration,
) -> Result<StoreLatency, E> {
    let (sender, events) = mpsc::channel();
    let mut register = open(std::sync::Arc::new(move |event| {
        // Events after the end are dropped.
        let _over = sender.send(event);
    }))?;
    let mut times = Histogram::<u64>::new_with_max(60_000_000_000, 3).unwrap_or_else(|_| unreachable!("sound bounds"));
    let mut failed = 0;
    let end = Instant::now() + duration;
    for number in 1.. {
        let asked = Instant::now();
        let Some(left) = end.checked_duration_since(asked).filter(|left| !left.is_zero()) else { break };
        register.read(RequestId(number));
        match answer_to(&events, RequestId(number), left.max(PAUSE)) {
            Some(Outcome::Read(_)) => {
                times.saturating_record(u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
            Some(_) | None => failed += 1,
        }
        std::thread::sleep(PAUSE);
    }
    Ok(StoreLatency {
        answered: times.len(),
        failed,
        p50_ns: times.value_at_quantile(0.5),
        p999_ns: times.value_at_quantile(0.999),
    })
}

fn answer_to(events: &mpsc::Receiver<RegisterEvent>, request_id: RequestId, limit: Duration) -> Option<Outcome> {
    let end = Instant::now() + limit;
    loop {
        let event = events.recv_timeout(end.saturating_duration_since(Instant::now())).ok()?;
        match event {
            RegisterEvent::Answer { request_id: answered, outcome } if answered == request_id => return Some(outcome),
            RegisterEvent::Answer { .. } | RegisterEvent::Changed(_) | RegisterEvent::StoreLink(_) => {}
        }
    }
}

/// Pause between two reads, so that the measurement does not flood the store.
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_too_slow_for_the_lease_gives_a_warning_with_both_times() {
        let measure = |p999_ns| StoreLatency { answered: 100, failed: 0, p50_ns: 1, p999_ns };
        assert_eq!(measure(20_000_000).warning(&LeaseTiming::DEFAULT), None);
        let warning = measure(20_100_000).warning(&LeaseTiming::DEFAULT).unwrap();
        assert!(warning.contains("(20.10 ms) = 80.40 ms") && warning.contains("80.00 ms"), "{warning}");
        assert!(StoreLatency { answered: 0, ..measure(0) }.warning(&LeaseTiming::CALM).is_some());
    }
}
