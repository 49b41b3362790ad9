//! Recording latencies and handing over histograms allocates nothing on the recording thread.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::hint::black_box;

use mdgw_feeds::time::{MonoNs, UnixNs};
use mdgw_sys::handle::ChannelIndex;
use mdgw_telemetry::{
    counter_block,
    counters::Registry,
    stages::{Stage, stage_recorder_pair},
};
use mdgw_tests::counting_allocator::{CountingAllocator, allocations_in};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn the_allocation_counter_detects_an_allocation() {
    assert_eq!(allocations_in(|| drop(black_box(Box::new(7)))), 1);
    assert_eq!(allocations_in(|| drop(black_box(Vec::<u8>::new()))), 0);
}

#[test]
fn recording_and_handing_over_allocates_nothing() {
    let (mut recorder, mut collector) = stage_recorder_pair(4, 2);
    let mut handed_over = 0;
    let mut allocations = 0;
    for round in 0..1_000_u64 {
        allocations += allocations_in(|| {
            recorder.at_batch_boundary(MonoNs(round));
            for channel in (0..4).map(ChannelIndex) {
                for stage in Stage::ALL {
                    recorder.histograms().record(channel, stage, round * round);
                    recorder.histograms().record_n(channel, stage, u64::MAX, 3);
                    recorder.histograms().record_wall(channel, stage, UnixNs(round), UnixNs(500));
                }
            }
        });
        collector.collect(|set| handed_over += set.recorded().count());
    }
    assert_eq!(allocations, 0);
    assert!(handed_over > 900 * 24, "too few histogram sets were handed over: {handed_over}");
}

counter_block! {
    /// Counters of a receiving thread.
    struct ReceiveCounters, key ReceiveCounter {
        packets: Counter, Packets, "packets received";
        duplicates: Counter, Packets, "packets received twice";
    }
}

#[test]
fn counting_allocates_nothing() {
    let registry = Registry::default();
    let mut counters = registry.register::<ReceiveCounters>("main-0");
    let count = allocations_in(|| {
        (0..1_000).for_each(|n| counters.add(ReceiveCounter::duplicates, n));
        (0..1_000).for_each(|packets| counters.publish(&ReceiveCounters { packets, duplicates: 499_500 }));
    });
    assert_eq!(count, 0);
    assert_eq!(registry.read()[1].value, 499_500);
}
