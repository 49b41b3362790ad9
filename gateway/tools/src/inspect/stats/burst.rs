//! Highest number of messages within any millisecond, any ten of them, and any second.

use std::collections::VecDeque;

use serde::Serialize;

/// Accepts messages in time order and keeps the busiest windows. Times are counted in whole microseconds, so memory is
/// bounded by the microseconds of the longest window, whatever the input.
#[derive(Debug)]
pub(super) struct BurstMeter {
    /// Microsecond and message count, within the longest window that ends now.
    recent: VecDeque<(u64, u64)>,
    /// Number of entries removed from the front of `recent` so far.
    removed_count: u64,
    now_us: u64,
    windows: [Window; LENGTHS_US.len()],
}

/// The busiest window of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Burst {
    /// Length of the window.
    pub window_us: u64,
    /// Messages in it.
    pub messages: u64,
    /// Capture time of its first message, to the microsecond.
    pub time_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Index of the first entry inside, removed entries included.
    first: u64,
    messages: u64,
    fullest: Burst,
}

const LENGTHS_US: [u64; 3] = [1_000, 10_000, 1_000_000];

impl BurstMeter {
    pub(super) fn new() -> Self {
        let window = |window_us| Window { fullest: Burst { window_us, ..Burst::default() }, ..Window::default() };
        Self { recent: VecDeque::new(), removed_count: 0, now_us: 0, windows: LENGTHS_US.map(window) }
    }

    /// Adds messages. A time before the previous one counts as the previous one.
    #[inline]
    pub(super) fn add(&mut self, time_ns: u64, messages: u64) {
        let now_us = self.now_us.max(time_ns / 1_000);
        self.now_us = now_us;
        match self.recent.back_mut() {
            Some((us, count)) if *us == now_us => *count += messages,
            _ => self.recent.push_back((now_us, messages)),
        }
        let Self { recent, removed_count, windows, .. } = self;
        for window in windows.iter_mut() {
            window.messages += messages;
            let entry = |index: u64| recent.get(usize::try_from(index - *removed_count).unwrap_or(usize::MAX)).copied();
            while let Some((us, count)) = entry(window.first)
                && us + window.fullest.window_us <= now_us
            {
                window.messages -= count;
                window.first += 1;
            }
            if window.messages > window.fullest.messages {
                window.fullest.messages = window.messages;
                window.fullest.time_ns = entry(window.first).map_or(now_us, |(us, _)| us) * 1_000;
            }
        }
        let needed = windows.iter().map(|window| window.first).min().unwrap_or_default();
        while *removed_count < needed {
            recent.pop_front();
            *removed_count += 1;
        }
    }

    pub(super) fn fullest(&self) -> [Burst; LENGTHS_US.len()] {
        self.windows.map(|window| window.fullest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Slow model: every window that begins with an entry.
        #[test]
        fn the_fullest_window_matches_the_model(
            steps in prop::collection::vec((prop_oneof![0_u64..3, 0_u64..2_000, 0_u64..600_000], 1_u64..5), 1..200)
        ) {
            let mut meter = BurstMeter::new();
            let mut now_us = 0;
            let mut all = Vec::new();
            for (step_us, messages) in steps {
                now_us += step_us;
                meter.add(now_us * 1_000 + 999, messages);
                all.push((now_us, messages));
            }
            for burst in meter.fullest() {
                let within = |begin: u64| {
                    all.iter().filter(|(us, _)| (begin..begin + burst.window_us).contains(us)).map(|(_, n)| n).sum()
                };
                let fullest: u64 = all.iter().map(|(us, _)| within(*us)).max().unwrap();
                prop_assert_eq!(burst.messages, fullest);
                prop_assert_eq!(within(burst.time_ns / 1_000), fullest);
            }
            prop_assert!(meter.recent.len() <= 1_000_000);
        }
    }

    #[test]
    fn messages_with_backward_times_count_at_the_last_time() {
        let mut meter = BurstMeter::new();
        meter.add(5_000_000, 1);
        meter.add(1_000_000, 1);
        assert_eq!(meter.fullest().map(|burst| burst.messages), [2, 2, 2]);
    }
}
