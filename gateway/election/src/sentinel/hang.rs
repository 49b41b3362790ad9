//! When is a gateway hung? Its fence is open, a hot thread has work in hand, and its count has not moved over several
//! looks in a row.
//!
//! Looks are counted and not time: a machine that was stopped as a whole stops the sentinel too, which after it takes
//! one more look and not many at once.

use std::time::Duration;

/// Counts as they were seen.
#[derive(Clone, Debug, Default)]
pub struct HangWatch {
    seen: Vec<Seen>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    count: u64,
    /// Looks in a row at which it was this count.
    looks: u32,
}

impl HangWatch {
    /// How long to wait between looks, so that [`LOOKS`] of them take the limit.
    #[must_use]
    pub fn interval(limit: Duration) -> Duration {
        limit / LOOKS
    }

    /// One look at all threads' counts, in the same order each time. The index of a thread that hangs.
    pub fn look(&mut self, fence: FenceSeen, counts: impl IntoIterator<Item = u64>) -> Option<usize> {
        let mut hung = None;
        for (index, count) in counts.into_iter().enumerate() {
            if self.seen.len() <= index {
                self.seen.push(Seen::default());
            }
            let has_work = count % 2 == 1;
            let seen = &mut self.seen[index];
            if fence == FenceSeen::Open && has_work && seen.count == count {
                seen.looks += 1;
            } else {
                *seen = Seen { count, looks: 0 };
            }
            if seen.looks >= LOOKS {
                hung = hung.or(Some(index));
            }
        }
        hung
    }
}

/// Whether any group's fence is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceSeen {
    /// A hang matters.
    Open,
    /// The gateway publishes nothing: nobody waits for it.
    Closed,
}

/// Looks without progress that make a hang; the first sight of a count is none of them.
pub const LOOKS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// At which look, from 1, a thread with these counts is found hung.
    fn found(fence: FenceSeen, counts: impl IntoIterator<Item = u64>) -> Option<usize> {
        let mut watch = HangWatch::default();
        counts.into_iter().position(|count| watch.look(fence, [0, count]) == Some(1)).map(|look| look + 1)
    }

    #[test]
    fn work_in_hand_without_progress_is_a_hang_after_all_looks() {
        assert_eq!(found(FenceSeen::Open, [7; 20]), Some(6));
        assert_eq!(found(FenceSeen::Open, [3, 5, 7, 7, 7, 7, 9, 9, 9, 9, 9, 9]), Some(12));
    }

    #[test]
    fn rest_progress_and_a_closed_fence_are_no_hang() {
        assert_eq!(found(FenceSeen::Open, [8; 20]), None, "nothing to do");
        assert_eq!(found(FenceSeen::Open, (0..20).map(|look| look / 4 * 2 + 1)), None, "slow, but getting on");
        assert_eq!(found(FenceSeen::Closed, [7; 20]), None);
    }

    #[test]
    fn looks_before_the_fence_opened_do_not_count() {
        let mut watch = HangWatch::default();
        for _ in 0..20 {
            assert_eq!(watch.look(FenceSeen::Closed, [7]), None);
        }
        let open = (1..20).find(|_| watch.look(FenceSeen::Open, [7]).is_some());
        assert_eq!(open, Some(5));
    }
}
