//! Detects a hung gateway: its fence is open, a hot thread has pending work, and the thread's progress count has not
//! changed over several checks in a row. The sentinel uses it from outside, and the gateway itself for the watchdog of its
//! service manager.
//!
//! The limit is a number of checks, not a time. If the whole machine was stopped, the checking thread was stopped too, and
//! makes one check afterwards, not many at once.

use std::time::Duration;

/// The last observed progress counts.
#[derive(Clone, Debug, Default)]
pub struct HangDetector {
    samples: Vec<CounterSample>,
}

#[derive(Clone, Copy, Debug, Default)]
struct CounterSample {
    count: u64,
    /// Number of checks in a row with an unchanged count.
    unchanged_checks: u32,
}

impl HangDetector {
    /// The pause between checks, so that [`CHECKS_UNTIL_HANG`] of them take the limit.
    #[must_use]
    pub fn interval(limit: Duration) -> Duration {
        limit / CHECKS_UNTIL_HANG
    }

    /// Checks all threads' counts once, in the same order each time. Returns the index of a thread that hangs.
    pub fn check(&mut self, fence: FenceState, counts: impl IntoIterator<Item = u64>) -> Option<usize> {
        let mut hung = None;
        for (index, count) in counts.into_iter().enumerate() {
            if self.samples.len() <= index {
                self.samples.push(CounterSample::default());
            }
            let has_work = count % 2 == 1;
            let sample = &mut self.samples[index];
            if fence == FenceState::Open && has_work && sample.count == count {
                sample.unchanged_checks += 1;
            } else {
                *sample = CounterSample { count, unchanged_checks: 0 };
            }
            if sample.unchanged_checks >= CHECKS_UNTIL_HANG {
                hung = hung.or(Some(index));
            }
        }
        hung
    }
}

/// Whether any group's fence is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceState {
    /// A fence is open, so a hang delays receivers.
    Open,
    /// The gateway publishes nothing, so a hang delays no receiver.
    Closed,
}

/// Checks without progress that make a hang. The first observation of a count is not one of them.
pub const CHECKS_UNTIL_HANG: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of the check, from 1, that finds a hang in a thread with these counts.
    fn found(fence: FenceState, counts: impl IntoIterator<Item = u64>) -> Option<usize> {
        let mut watch = HangDetector::default();
        counts.into_iter().position(|count| watch.check(fence, [0, count]) == Some(1)).map(|check| check + 1)
    }

    #[test]
    fn pending_work_without_progress_is_a_hang_after_all_checks() {
        assert_eq!(found(FenceState::Open, [7; 20]), Some(6));
        assert_eq!(found(FenceState::Open, [3, 5, 7, 7, 7, 7, 9, 9, 9, 9, 9, 9]), Some(12));
    }

    #[test]
    fn idle_threads_progress_and_a_closed_fence_are_no_hang() {
        assert_eq!(found(FenceState::Open, [8; 20]), None, "nothing to do");
        assert_eq!(found(FenceState::Open, (0..20).map(|check| check / 4 * 2 + 1)), None, "slow, but getting on");
        assert_eq!(found(FenceState::Closed, [7; 20]), None);
    }

    #[test]
    fn checks_before_the_fence_opened_do_not_count() {
        let mut watch = HangDetector::default();
        for _ in 0..20 {
            assert_eq!(watch.check(FenceState::Closed, [7]), None);
        }
        let open = (1..20).find(|_| watch.check(FenceState::Open, [7]).is_some());
        assert_eq!(open, Some(5));
    }
}
