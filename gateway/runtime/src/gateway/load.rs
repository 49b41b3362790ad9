//! How loaded the gateway was, and what a machine that drops nothing would have needed. A cold thread samples counters about once a
//! second; two samples make a window.

use mdgw_feeds::time::MonoNs;
use mdgw_sys::drops::ReceiveBufferUse;

use super::report::{LoadReport, PoolLoad};

/// Counters at one moment, all since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoadSample {
    pub(super) at: MonoNs,
    /// Packets that the pools have taken.
    pub(super) packets: u64,
    /// Datagrams that the kernel has dropped because a receive buffer was full.
    pub(super) dropped: u64,
    /// Time that the threads of each pool have spent in processing, ns.
    pub(super) busy_ns: Vec<u64>,
}

/// Compares samples in the order of time.
#[derive(Debug)]
pub(super) struct LoadWatch {
    /// Name and threads of each pool.
    pools: Vec<(String, usize)>,
    started_at: MonoNs,
    last: LoadSample,
    peak_arrived_per_s: u64,
    peak_taken_per_s: u64,
    /// The busiest window of each pool, as a share of its threads' time.
    busiest: Vec<f64>,
    /// Drops in the present run of windows with drops, and in the worst run.
    drop_run: u64,
    worst_drop_run: u64,
}

impl LoadWatch {
    pub(super) fn new(started_at: MonoNs, pools: Vec<(String, usize)>) -> Self {
        let last = LoadSample { at: started_at, packets: 0, dropped: 0, busy_ns: vec![0; pools.len()] };
        let busiest = vec![0.0; pools.len()];
        Self {
            pools,
            started_at,
            last,
            peak_arrived_per_s: 0,
            peak_taken_per_s: 0,
            busiest,
            drop_run: 0,
            worst_drop_run: 0,
        }
    }

    /// Ends the present window, unless it is too short for a rate.
    pub(super) fn sample(&mut self, sample: LoadSample) {
        let window_ns = sample.at.since(self.last.at);
        if window_ns < WINDOW_NS_MIN {
            return;
        }
        let dropped = sample.dropped.saturating_sub(self.last.dropped);
        self.drop_run = if dropped > 0 { self.drop_run + dropped } else { 0 };
        self.worst_drop_run = self.worst_drop_run.max(self.drop_run);
        let taken = sample.packets.saturating_sub(self.last.packets);
        let arrived_per_s = per_second(taken + dropped, window_ns);
        if arrived_per_s > self.peak_arrived_per_s {
            (self.peak_arrived_per_s, self.peak_taken_per_s) = (arrived_per_s, per_second(taken, window_ns));
        }
        let busy = sample.busy_ns.iter().zip(&self.last.busy_ns).map(|(now, before)| now.saturating_sub(*before));
        for ((busiest, (_, threads)), busy_ns) in self.busiest.iter_mut().zip(&self.pools).zip(busy) {
            *busiest = busiest.max(share(busy_ns, window_ns, *threads));
        }
        self.last = sample;
    }

    /// The load of the whole run, which ends with this sample.
    pub(super) fn finish(mut self, sample: LoadSample, receive_buffers: ReceiveBufferUse) -> LoadReport {
        let run_ns = sample.at.since(self.started_at);
        let pools = self.pools.clone().into_iter().zip(&sample.busy_ns).map(|((name, threads), busy_ns)| PoolLoad {
            name,
            threads,
            busy_share: share(*busy_ns, run_ns, threads),
            busiest_share: 0.0,
        });
        let mut pools: Vec<_> = pools.collect();
        let busy_ns: u64 = sample.busy_ns.iter().sum();
        let ns_per_packet = busy_ns.checked_div(sample.packets).unwrap_or(0);
        let kernel_drops = sample.dropped;
        self.sample(sample);
        // Drops of a last window that was too short.
        let worst_drop_run = self.worst_drop_run.max(self.drop_run + kernel_drops.saturating_sub(self.last.dropped));
        for (pool, busiest) in pools.iter_mut().zip(&self.busiest) {
            // A run may be shorter than a window.
            pool.busiest_share = busiest.max(pool.busy_share);
        }
        LoadReport {
            pools,
            peak_arrived_per_s: self.peak_arrived_per_s,
            peak_taken_per_s: self.peak_taken_per_s,
            ns_per_packet,
            receive_buffers,
            kernel_drops,
            worst_drop_run,
        }
    }
}

fn per_second(count: u64, window_ns: u64) -> u64 {
    u64::try_from(u128::from(count) * u128::from(NS_PER_S) / u128::from(window_ns.max(1))).unwrap_or(u64::MAX)
}

/// Share of the threads' time in a window.
#[allow(clippy::cast_precision_loss, reason = "a share that is printed")]
fn share(busy_ns: u64, window_ns: u64, threads: usize) -> f64 {
    busy_ns as f64 / (window_ns.max(1) as f64 * threads.max(1) as f64)
}

const NS_PER_S: u64 = 1_000_000_000;
/// Shorter windows say little about a rate, ns.
const WINDOW_NS_MIN: u64 = NS_PER_S / 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// `ms` after the start: packets taken and dropped so far, and processing time of the one pool so far, ms.
    fn sample(ms: u64, packets: u64, dropped: u64, busy_ms: u64) -> LoadSample {
        LoadSample { at: MonoNs(1_000 + ms * 1_000_000), packets, dropped, busy_ns: vec![busy_ms * 1_000_000] }
    }

    fn watch(samples: &[LoadSample], end: LoadSample) -> LoadReport {
        let mut watch = LoadWatch::new(MonoNs(1_000), vec![("main".to_owned(), 2)]);
        samples.iter().cloned().for_each(|sample| watch.sample(sample));
        watch.finish(end, ReceiveBufferUse::default())
    }

    #[test]
    fn the_peak_counts_what_arrived_and_what_was_taken_of_it() {
        let quiet = [sample(1_000, 10_000, 0, 40), sample(2_000, 20_000, 0, 80)];
        let report = watch(&quiet, sample(3_000, 220_000, 100_000, 2_080));
        assert_eq!((report.peak_arrived_per_s, report.peak_taken_per_s), (300_000, 200_000));
        assert_eq!(report.ns_per_packet, 2_080_000_000 / 220_000);
        assert_eq!(report.kernel_drops, 100_000);
        let [pool] = &report.pools[..] else { panic!("{report:?}") };
        assert!((pool.busiest_share - 1.0).abs() < 1e-9, "{pool:?}");
        assert!((pool.busy_share - 2_080.0 / 6_000.0).abs() < 1e-9, "{pool:?}");
        // 300,000 packets a second at 9,454 ns each.
        assert!((report.cores_at_peak() - 2.836).abs() < 0.01, "{}", report.cores_at_peak());
    }

    #[test]
    fn drops_in_consecutive_windows_needed_room_at_the_same_time() {
        let windows = [(1, 0), (2, 30), (3, 70), (4, 70), (5, 110), (6, 110)];
        let samples = windows.map(|(second, dropped)| sample(1_000 * second, 100 * second, dropped, 1));
        let report = watch(&samples, sample(7_000, 700, 110, 1));
        assert_eq!((report.kernel_drops, report.worst_drop_run), (110, 70));
    }

    #[test]
    fn a_short_window_is_part_of_the_next_one() {
        let windows = [sample(1_000, 100, 0, 1), sample(1_100, 5_000, 40, 1), sample(2_000, 5_100, 50, 1)];
        let report = watch(&windows, sample(2_001, 5_100, 50, 1));
        assert_eq!((report.peak_arrived_per_s, report.peak_taken_per_s), (5_050, 5_000));
        assert_eq!(report.worst_drop_run, 50);
    }

    #[test]
    fn a_run_that_is_shorter_than_a_window_has_no_peak() {
        let report = watch(&[], sample(10, 50, 3, 5));
        assert_eq!((report.peak_arrived_per_s, report.kernel_drops, report.worst_drop_run), (0, 3, 3));
        assert!((report.pools[0].busiest_share - 0.25).abs() < 1e-9);
    }
}
