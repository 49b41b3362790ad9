//! Every dispatch model over a handle set in memory. What a model promises beyond that is tested below.

use std::sync::{
    Arc, Mutex,
    atomic::Ordering::{Relaxed, SeqCst},
};

use mdgw_sys::{
    affinity,
    batch::ReceiveBatch,
    clock::mono_now,
    handle::{ChannelIndex, LineSet},
};

use super::{
    half_sync::HalfSync,
    pool::Pool,
    reactor::Reactor,
    roles::Gauges,
    testing::{
        ChannelProbe, FAILURE_PACKET, LINES, MemoryIo, MemorySet, PANIC_PACKET, SharedSet, TestChannel, TestLocal,
        wait_until,
    },
};
use crate::{
    dispatch::{Dispatch, DispatchConfig, FailReason, PromotionPolicy, StartError, ThreadConfig, WaitPolicy},
    handle_set::HandleSet,
};

type Policy = (WaitPolicy, PromotionPolicy);

const POLICIES: [Policy; 6] = [
    (WaitPolicy::Spin, PromotionPolicy::Strict),
    (WaitPolicy::Spin, PromotionPolicy::Lazy),
    (WaitPolicy::Park, PromotionPolicy::Strict),
    (WaitPolicy::Park, PromotionPolicy::Lazy),
    (WaitPolicy::SpinThenPark, PromotionPolicy::Strict),
    (WaitPolicy::SpinThenPark, PromotionPolicy::Lazy),
];

/// A model as the tests take it.
trait Tested: Dispatch<SharedSet, TestChannel> {
    /// Policies that differ for this model.
    fn policies() -> impl Iterator<Item = Policy>;
    /// Whether the gauges of an idle dispatch of that many threads are those of this model.
    fn is_idle(gauges: &Gauges, thread_count: usize) -> bool;
}

type LeaderFollowers = Pool<SharedSet, TestChannel>;
type HalfSyncHalfAsync = HalfSync<SharedSet, TestChannel>;
type ReactorPerThread = Reactor<SharedSet, TestChannel>;

impl Tested for LeaderFollowers {
    fn policies() -> impl Iterator<Item = Policy> {
        POLICIES.into_iter()
    }

    fn is_idle(gauges: &Gauges, thread_count: usize) -> bool {
        (gauges.leading, gauges.parked) == (1, thread_count - 1)
    }
}

/// No thread is promoted.
fn wait_policies() -> impl Iterator<Item = Policy> {
    POLICIES.into_iter().filter(|(_, promotion)| *promotion == PromotionPolicy::Strict)
}

impl Tested for HalfSyncHalfAsync {
    fn policies() -> impl Iterator<Item = Policy> {
        wait_policies()
    }

    fn is_idle(gauges: &Gauges, thread_count: usize) -> bool {
        (gauges.leading, gauges.parked) == (1, thread_count - 1)
    }
}

impl Tested for ReactorPerThread {
    fn policies() -> impl Iterator<Item = Policy> {
        wait_policies()
    }

    fn is_idle(gauges: &Gauges, thread_count: usize) -> bool {
        gauges.leading == thread_count
    }
}

/// One `#[test]` for each promise and model.
macro_rules! for_each_model {
    ($($promise:ident,)*) => {
        mod leader_followers {
            $(#[test]
            fn $promise() {
                super::$promise::<super::LeaderFollowers>();
            })*
        }

        mod half_sync {
            $(#[test]
            fn $promise() {
                super::$promise::<super::HalfSyncHalfAsync>();
            })*
        }

        mod reactor {
            $(#[test]
            fn $promise() {
                super::$promise::<super::ReactorPerThread>();
            })*
        }
    };
}

for_each_model! {
    every_packet_of_a_channel_is_processed_once_and_in_order,
    a_busy_channel_yields_after_its_quota_and_loses_no_packet,
    a_channel_over_its_quota_is_resumed_without_a_new_edge,
    a_failing_handler_is_contained,
    a_socket_that_cannot_be_read_fails_its_channel,
    a_failed_channel_repeats_its_state_until_it_panics_again,
    shutdown_under_load_ends_all_threads,
    an_idle_pool_sleeps_and_can_be_shut_down,
    deadlines_are_handled_after_all_lines_are_drained,
    a_deadline_drains_packets_whose_edge_has_not_arrived,
    messages_wake_a_sleeping_pool_and_a_full_inbox_refuses_them,
    a_handle_added_while_the_leader_sleeps_is_served,
    a_failing_wait_stops_the_pool_and_reports_the_cause,
    an_impossible_configuration_is_refused_before_any_thread_runs,
}

/// A running dispatch and its channels.
struct Harness<D> {
    sets: Vec<Arc<MemorySet>>,
    channels: Vec<Arc<ChannelProbe>>,
    pool: D,
}

impl<D: Tested> Harness<D> {
    fn new(config: &DispatchConfig, channel_count: u32) -> Self {
        Self::with_channels(config, channel_count, |_, channel| channel)
    }

    fn with_channels(
        config: &DispatchConfig,
        channel_count: u32,
        change: impl Fn(usize, TestChannel) -> TestChannel,
    ) -> Self {
        let sets: Vec<_> = (0..D::set_count(config.threads.len())).map(|_| Arc::new(MemorySet::default())).collect();
        let set_of = |index| &sets[usize::try_from(index).unwrap() % sets.len()];
        let channels: Vec<_> = (0..channel_count).map(|index| ChannelProbe::new(set_of(index), index)).collect();
        let handlers = channels.iter().enumerate().map(|(index, probe)| change(index, TestChannel::new(probe)));
        let shared = sets.iter().map(|set| Arc::new(SharedSet(set.clone()))).collect();
        let pool = D::start(config, shared, handlers.collect(), TestLocal::new).unwrap();
        channels.iter().for_each(|channel| channel.watch(&pool));
        Self { sets, channels, pool }
    }

    fn processed(&self) -> u64 {
        self.channels.iter().map(|channel| channel.processed.load(SeqCst)).sum()
    }

    /// Sends numbered packets on both lines of all channels from two threads.
    fn feed(&self, packets_per_line: u64)
    where
        D: Sync,
    {
        std::thread::scope(|scope| {
            for line in 0..LINES {
                scope.spawn(move || {
                    for packet in 0..packets_per_line {
                        for channel in &self.channels {
                            channel.send(line, packet);
                        }
                    }
                });
            }
        });
    }

    fn check_order(&self) {
        for channel in &self.channels {
            assert_eq!(channel.out_of_order.load(SeqCst), 0, "disorder");
            assert_eq!(channel.overlaps.load(SeqCst), 0, "overlap");
        }
        for set in &self.sets {
            assert_eq!(set.concurrent_waits.load(SeqCst), 0, "two threads waited at once");
        }
    }

    /// Waits until the threads have nothing to do.
    fn wait_until_idle(&self, thread_count: usize) {
        wait_until("idle", || {
            self.sets.iter().all(|set| set.is_quiet()) && D::is_idle(&self.pool.gauges(), thread_count)
        });
    }
}

fn config<D: Tested>(thread_count: usize, (wait, promotion): Policy) -> DispatchConfig {
    DispatchConfig {
        threads: vec![ThreadConfig::default(); thread_count.max(D::THREADS_MIN)],
        wait,
        promotion: Some(promotion),
        batch_events_max: 8,
        ..DispatchConfig::default()
    }
}

const PARKING: Policy = (WaitPolicy::Park, PromotionPolicy::Strict);

fn every_packet_of_a_channel_is_processed_once_and_in_order<D: Tested + Sync>() {
    for policy in D::policies() {
        for thread_count in [1, 2, 5] {
            let harness = Harness::<D>::new(&config::<D>(thread_count, policy), 16);
            let packets_per_line = 100;
            harness.feed(packets_per_line);
            let total = packets_per_line * 16 * 2;
            wait_until("all packets processed", || harness.processed() == total);
            harness.check_order();
            wait_until("the gauges are final", || harness.pool.gauges().counts.packets == total);
            assert_eq!(harness.pool.gauges().counts.failures, 0);
            assert_eq!(harness.pool.shutdown().len(), 16);
        }
    }
}

#[test]
fn without_the_claim_the_order_check_fails() {
    let set = Arc::new(MemorySet::default());
    let probe = ChannelProbe::new(&set, 0);
    let is_disorder_seen = || probe.out_of_order.load(SeqCst) + probe.overlaps.load(SeqCst) > 0;
    let sent = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // Each thread drains the same packets with channel state of its own, as two threads without a claim
                // would.
                let mut channel = TestChannel::new(&probe);
                let mut batch = ReceiveBatch::new(4, 64);
                let mut rounds = 0;
                while !is_disorder_seen() {
                    rounds += 1;
                    assert!(rounds < 10_000_000, "the check missed two threads in one channel");
                    let mut packet = sent.lock().unwrap();
                    probe.send(0, *packet);
                    *packet += 1;
                    drop(packet);
                    channel.drain(LineSet(1), 4, &mut MemoryIo(set.clone()), &mut batch).unwrap();
                }
            });
        }
    });
    assert!(is_disorder_seen());
}

fn a_busy_channel_yields_after_its_quota_and_loses_no_packet<D: Tested>() {
    for policy in D::policies() {
        for thread_count in [1, 3] {
            let config = DispatchConfig { quota_packets: 10, ..config::<D>(thread_count, policy) };
            let harness = Harness::<D>::new(&config, 3);
            for packet in 0..1_000 {
                harness.channels[1].send(0, packet);
            }
            harness.channels[2].send(1, 0);
            wait_until("all packets processed", || harness.processed() == 1_001);
            harness.check_order();
            assert!(harness.channels[1].packets_per_call_max.load(SeqCst) <= 10);
            harness.pool.shutdown();
        }
    }
}

fn a_channel_over_its_quota_is_resumed_without_a_new_edge<D: Tested>() {
    let settings = DispatchConfig { quota_packets: 10, ..config::<D>(1, PARKING) };
    let harness = Harness::<D>::new(&settings, 1);
    harness.wait_until_idle(settings.threads.len());
    let events_before = harness.pool.gauges().counts.events;
    for packet in 0..99 {
        harness.channels[0].queue_without_event(0, packet);
    }
    harness.channels[0].send(0, 99);
    wait_until("all packets processed", || harness.processed() == 100);
    wait_until("the gauges are final", || harness.pool.gauges().counts.quota_hits == 10);
    assert_eq!(harness.pool.gauges().counts.events, events_before + 1, "there was one edge only");
}

fn a_failing_handler_is_contained<D: Tested + Sync>() {
    for (packet, reason) in [
        (PANIC_PACKET, FailReason::Panicked("a packet that panics".to_owned())),
        (FAILURE_PACKET, FailReason::Failed("a packet that fails")),
    ] {
        let harness = Harness::<D>::new(&config::<D>(3, PARKING), 4);
        harness.channels[2].send(0, packet);
        wait_until("channel failed", || harness.pool.failed(ChannelIndex(2)).is_some());
        assert_eq!(harness.pool.failed(ChannelIndex(2)), Some(reason.clone()));
        assert_eq!(*harness.channels[2].failed.lock().unwrap(), Some(reason), "the handler got the reason");
        assert_eq!(harness.pool.send(ChannelIndex(2), 7), Err(7));
        // Packets of the failed channel are not processed; all packets of the other channels are.
        harness.feed(100);
        wait_until("other channels processed", || harness.processed() == 600);
        harness.check_order();
        assert_eq!(harness.channels[2].processed.load(SeqCst), 0);
        assert_eq!(harness.pool.fault(), None);
        assert_eq!(harness.pool.gauges().counts.failures, 1);
        assert_eq!(harness.pool.shutdown().len(), 4, "the failed handler is returned too");
    }
}

fn a_socket_that_cannot_be_read_fails_its_channel<D: Tested>() {
    let harness = Harness::<D>::new(&config::<D>(2, PARKING), 2);
    harness.sets.iter().for_each(|set| set.fail_receives.store(true, SeqCst));
    harness.channels[1].send(0, 0);
    wait_until("channel failed", || harness.pool.failed(ChannelIndex(1)).is_some());
    assert_eq!(harness.pool.failed(ChannelIndex(1)), Some(FailReason::Failed("a socket that fails")));
    harness.sets.iter().for_each(|set| set.fail_receives.store(false, SeqCst));
    harness.channels[0].send(0, 0);
    wait_until("the other channel works", || harness.processed() == 1);
    assert_eq!(harness.pool.failed(ChannelIndex(0)), None);
}

fn a_failed_channel_repeats_its_state_until_it_panics_again<D: Tested>() {
    let period_ns = Some(1_000_000);
    let config = config::<D>(2, PARKING);
    let harness = Harness::<D>::with_channels(&config, 2, |_, channel| TestChannel { period_ns, ..channel });
    harness.channels[1].panic_at_call_after_failure.store(5, SeqCst);
    for channel in &harness.channels {
        channel.send(0, FAILURE_PACKET);
    }
    let calls = |index: usize| harness.channels[index].calls_after_failure.load(SeqCst);
    wait_until("both have spoken", || calls(0) >= 20 && calls(1) == 5);
    let calls_before = calls(0);
    wait_until("the silenced one would have spoken again", || calls(0) >= calls_before + 20);
    assert_eq!(calls(1), 5, "the handler panicked and is not called again");
    assert_eq!((harness.pool.fault(), harness.pool.gauges().counts.failures), (None, 2));
    assert_eq!(harness.channels[0].processed.load(SeqCst), 0);
}

/// How many packets of a channel a sender is ahead of a pool at most.
const AHEAD_MAX: u64 = 10_000;

fn shutdown_under_load_ends_all_threads<D: Tested>() {
    for policy in D::policies() {
        for thread_count in [1, 4] {
            let harness = Harness::<D>::new(&config::<D>(thread_count, policy), 8);
            let stop = std::sync::atomic::AtomicBool::new(false);
            let channels = harness.channels.clone();
            std::thread::scope(|scope| {
                let (channels, stop) = (&channels, &stop);
                scope.spawn(move || {
                    let processed = || channels.iter().map(|channel| channel.processed.load(SeqCst)).sum::<u64>();
                    for packet in 0.. {
                        // A pool that waits for a core would find a million packets.
                        while packet > AHEAD_MAX + processed() && !stop.load(Relaxed) {
                            std::thread::yield_now();
                        }
                        if stop.load(Relaxed) {
                            return;
                        }
                        channels.iter().for_each(|channel| channel.send(0, packet));
                    }
                });
                wait_until("under load", || harness.processed() > 500);
                harness.check_order();
                assert_eq!(harness.pool.shutdown().len(), 8);
                stop.store(true, Relaxed);
            });
        }
    }
}

fn an_idle_pool_sleeps_and_can_be_shut_down<D: Tested>() {
    for policy in [PARKING, (WaitPolicy::SpinThenPark, PromotionPolicy::Strict)] {
        let harness = Harness::<D>::new(&config::<D>(4, policy), 1);
        harness.wait_until_idle(4);
        harness.pool.shutdown();
    }
}

fn deadlines_are_handled_after_all_lines_are_drained<D: Tested + Sync>() {
    for policy in D::policies() {
        for thread_count in [1, 3] {
            let period_ns = 200_000;
            let config = config::<D>(thread_count, policy);
            let harness = Harness::<D>::with_channels(&config, 4, |index, channel| TestChannel {
                deadline: Some(mono_now()),
                period_ns: Some(period_ns * (1 + u64::try_from(index).unwrap())),
                ..channel
            });
            harness.feed(200);
            wait_until("deadlines passed", || {
                harness.channels.iter().all(|channel| channel.deadlines.load(SeqCst) >= 5)
            });
            wait_until("all packets processed", || harness.processed() == 1_600);
            harness.check_order();
        }
    }
}

fn a_deadline_drains_packets_whose_edge_has_not_arrived<D: Tested>() {
    let deadline = mono_now().plus(3_000_000_000);
    let harness = Harness::<D>::with_channels(&config::<D>(2, PARKING), 1, |_, channel| TestChannel {
        deadline: Some(deadline),
        ..channel
    });
    let probe = &harness.channels[0];
    harness.wait_until_idle(2);
    probe.queue_without_event(0, 0);
    probe.queue_without_event(1, 0);
    assert!(mono_now() < deadline, "the machine is too busy for this test");
    wait_until("deadline", || probe.deadlines.load(SeqCst) == 1);
    assert_eq!(probe.early_deadlines.load(SeqCst), 0);
    assert_eq!(probe.processed.load(SeqCst), 2);
}

fn messages_wake_a_sleeping_pool_and_a_full_inbox_refuses_them<D: Tested>() {
    let config = DispatchConfig { inbox_messages_max: 4, ..config::<D>(3, PARKING) };
    let harness = Harness::<D>::new(&config, 2);
    let mut accepted = 0;
    while accepted < 1_000 {
        if harness.pool.send(ChannelIndex(1), accepted).is_ok() {
            accepted += 1;
        }
    }
    wait_until("all messages received", || harness.channels[1].messages.load(SeqCst) == 1_000);
    assert_eq!(harness.channels[1].overlaps.load(SeqCst), 0);
    harness.channels[1].hold.store(true, SeqCst);
    harness.channels[1].send(0, 0);
    wait_until("the inbox is full", || harness.pool.send(ChannelIndex(1), accepted).is_err());
    harness.channels[1].hold.store(false, SeqCst);
    assert_eq!(harness.pool.send(ChannelIndex(2), 5), Err(5), "no such channel");
}

fn a_handle_added_while_the_leader_sleeps_is_served<D: Tested>() {
    let harness = Harness::<D>::new(&config::<D>(2, PARKING), 1);
    let probe = &harness.channels[0];
    harness.pool.remove(probe.socket(1)).unwrap();
    probe.send(1, 0);
    harness.wait_until_idle(2);
    assert_eq!(harness.processed(), 0, "a removed socket has no event");
    harness.pool.add(probe.socket(1), probe.handle(1)).unwrap();
    wait_until("served", || harness.processed() == 1);
    let no_channel = mdgw_sys::handle::Handle { channel: ChannelIndex(9), line: probe.handle(0).line };
    assert!(harness.pool.add(probe.socket(0), no_channel).is_err());
    harness.pool.remove(probe.socket(1)).unwrap();
    assert!(harness.pool.remove(probe.socket(1)).is_err(), "removed already");
}

/// Waits until the retired channel of that slot can be taken out.
fn take_retired(pool: &LeaderFollowers, channel: ChannelIndex) -> TestChannel {
    let taken = Mutex::new(None);
    wait_until("the channel is given up", || {
        *taken.lock().unwrap() = pool.take_retired(channel);
        taken.lock().unwrap().is_some()
    });
    taken.into_inner().unwrap().unwrap()
}

#[test]
fn channels_come_and_go_under_load_and_the_others_lose_nothing() {
    for policy in POLICIES {
        for thread_count in [1, 3] {
            let settings = DispatchConfig {
                spare_channels: 2,
                quota_packets: 5,
                ..config::<LeaderFollowers>(thread_count, policy)
            };
            let harness = Harness::<LeaderFollowers>::new(&settings, 2);
            let slot = ChannelIndex(3);
            let visitors: Vec<_> = (0..6).map(|_| ChannelProbe::new(&harness.sets[0], slot.0)).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| harness.feed(500));
                for (round, probe) in visitors.iter().enumerate() {
                    // Packets that came before the channel: their edge is lost, its registration brings another.
                    probe.queue_without_event(0, 0);
                    let channel =
                        TestChannel { period_ns: Some(100_000), deadline: Some(mono_now()), ..TestChannel::new(probe) };
                    assert!(harness.pool.insert(slot, channel).is_ok());
                    assert!(harness.pool.insert(slot, TestChannel::new(probe)).is_err(), "occupied");
                    probe.watch(&harness.pool);
                    for packet in 1..50 {
                        probe.send(0, packet);
                    }
                    wait_until("message accepted", || harness.pool.send(slot, 1).is_ok());
                    wait_until("deadlines, messages and packets are handled", || {
                        let processed = probe.processed.load(SeqCst);
                        processed == 50 && probe.deadlines.load(SeqCst) > 1 && probe.messages.load(SeqCst) == 1
                    });
                    // Some leave with packets in hand.
                    for packet in 50..50 + 100 * u64::try_from(round % 2).unwrap() {
                        probe.send(0, packet);
                    }
                    (0..LINES).for_each(|line| harness.pool.remove(probe.socket(line)).unwrap());
                    harness.pool.retire(slot);
                    drop(take_retired(&harness.pool, slot));
                    assert_eq!(Arc::strong_count(probe), 1, "the pool has let go of the channel");
                    assert!(harness.pool.take_retired(slot).is_none());
                    assert_eq!(harness.pool.send(slot, 7), Err(7), "vacant");
                    let processed = probe.processed.load(SeqCst);
                    probe.send(1, 0);
                    assert_eq!(probe.processed.load(SeqCst), processed);
                    assert_eq!((probe.out_of_order.load(SeqCst), probe.overlaps.load(SeqCst)), (0, 0));
                }
            });
            wait_until("all packets processed", || harness.processed() == 500 * 2 * 2);
            harness.check_order();
            assert_eq!(harness.pool.gauges().counts.failures, 0);
            assert_eq!(harness.pool.shutdown().len(), 2);
        }
    }
}

#[test]
fn a_failed_channel_leaves_its_slot_and_the_next_one_is_in_service() {
    let settings = DispatchConfig { spare_channels: 1, ..config::<LeaderFollowers>(2, PARKING) };
    let harness = Harness::<LeaderFollowers>::new(&settings, 1);
    let slot = ChannelIndex(1);
    for packet in [PANIC_PACKET, FAILURE_PACKET] {
        let failing = ChannelProbe::new(&harness.sets[0], slot.0);
        let channel = TestChannel { period_ns: Some(100_000), ..TestChannel::new(&failing) };
        assert!(harness.pool.insert(slot, channel).is_ok());
        failing.watch(&harness.pool);
        failing.send(0, packet);
        wait_until("failed, and repeats its state", || failing.calls_after_failure.load(SeqCst) > 2);
        harness.pool.retire(slot);
        drop(take_retired(&harness.pool, slot));
        let sound = ChannelProbe::new(&harness.sets[0], slot.0);
        assert!(harness.pool.insert(slot, TestChannel::new(&sound)).is_ok());
        assert_eq!(harness.pool.failed(slot), None);
        sound.watch(&harness.pool);
        sound.send(0, 0);
        wait_until("processed", || sound.processed.load(SeqCst) == 1);
        harness.pool.retire(slot);
        drop(take_retired(&harness.pool, slot));
    }
    assert!(harness.pool.insert(ChannelIndex(2), TestChannel::new(&harness.channels[0])).is_err(), "no such slot");
    harness.pool.retire(ChannelIndex(2));
    harness.channels[0].send(0, 0);
    wait_until("the other channel works", || harness.processed() == 1);
}

fn a_failing_wait_stops_the_pool_and_reports_the_cause<D: Tested>() {
    let harness = Harness::<D>::new(&config::<D>(3, PARKING), 1);
    let set = harness.sets.last().unwrap();
    set.fail_waits.store(true, SeqCst);
    SharedSet(set.clone()).wake();
    wait_until("fault", || harness.pool.fault().is_some());
    let fault = harness.pool.fault().unwrap();
    assert!(fault.contains("cannot wait on its handle set: broken"), "{fault}");
    wait_until("threads gone", || {
        let gauges = harness.pool.gauges();
        gauges.leading + gauges.spinning + gauges.parked + gauges.processing == 0
    });
    assert_eq!(harness.pool.shutdown().len(), 1);
}

fn an_impossible_configuration_is_refused_before_any_thread_runs<D: Tested>() {
    let start = |config: &DispatchConfig| {
        let sets: Vec<_> = (0..D::set_count(config.threads.len())).map(|_| Arc::new(MemorySet::default())).collect();
        // A thread that runs handles the deadline.
        let set = sets.first().cloned().unwrap_or_default();
        let probe = ChannelProbe::new(&set, 0);
        let handlers = vec![TestChannel { deadline: Some(mono_now()), ..TestChannel::new(&probe) }];
        let shared = sets.into_iter().map(|set| Arc::new(SharedSet(set))).collect();
        let result = D::start(config, shared, handlers, TestLocal::new).map(drop);
        let has_run = probe.deadlines.load(SeqCst) > 0;
        assert!(result.is_ok() || !has_run, "a pool that could not start has run a handler");
        result
    };
    let pinned = |core| ThreadConfig { core: Some(core), fifo_priority: None, progress: None };
    let threads = |threads: Vec<ThreadConfig>| DispatchConfig { threads, ..DispatchConfig::default() };
    let defaults = vec![ThreadConfig::default(); D::THREADS_MIN];
    assert!(matches!(start(&threads(vec![])), Err(StartError::InvalidSetting(_))));
    assert!(matches!(start(&threads(vec![pinned(0), pinned(0)])), Err(StartError::DuplicateCore(0))));
    let refused = start(&threads(vec![ThreadConfig::default(), pinned(1_000)]));
    assert!(matches!(refused, Err(StartError::Pin { thread: 1, .. })), "{refused:?}");
    let floating = ThreadConfig { core: None, fifo_priority: Some(1), progress: None };
    assert!(matches!(start(&threads(vec![floating; D::THREADS_MIN])), Err(StartError::InvalidSetting(_))));
    let mut bad_priority = defaults.clone();
    bad_priority[0] =
        ThreadConfig { core: Some(affinity::usable_cores()[0]), fifo_priority: Some(100), progress: None };
    let refused = start(&threads(bad_priority));
    assert!(matches!(refused, Err(StartError::Priority { thread: 0, priority: 100, .. })), "{refused:?}");
    for (batch_events_max, quota_packets, inbox_messages_max) in
        [(0, 1, 1), (257, 1, 1), (1, 0, 1), (1, 1_025, 1), (1, 1, 0)]
    {
        let config =
            DispatchConfig { batch_events_max, quota_packets, inbox_messages_max, ..threads(defaults.clone()) };
        assert!(matches!(start(&config), Err(StartError::InvalidSetting(_))));
    }
    assert!(start(&threads(defaults)).is_ok());
}

#[test]
fn a_leader_promotes_a_follower_before_it_processes_if_there_is_one() {
    for policy in POLICIES {
        for thread_count in [1, 3] {
            let harness = Harness::<LeaderFollowers>::new(&config::<LeaderFollowers>(thread_count, policy), 4);
            harness.feed(100);
            wait_until("all packets processed", || harness.processed() == 800);
            let counts = harness.pool.gauges().counts;
            if thread_count == 1 {
                assert_eq!(counts.promotions, 0, "one thread has no follower to promote");
            } else if policy.1 == PromotionPolicy::Strict {
                assert!(counts.promotions > 0);
                assert_eq!(counts.leads_retained, 0, "strict always promotes before processing");
            }
        }
    }
}

#[test]
fn at_most_one_follower_spins() {
    let harness = Harness::<LeaderFollowers>::new(&config::<LeaderFollowers>(4, POLICIES[0]), 4);
    let spinners = usize::from(affinity::usable_cores().len() >= 2);
    wait_until("one leads, the others follow", || {
        let gauges = harness.pool.gauges();
        assert!(gauges.spinning <= spinners);
        (gauges.leading, gauges.spinning, gauges.parked) == (1, spinners, 3 - spinners)
    });
    harness.feed(50);
    wait_until("all packets processed", || harness.processed() == 400);
}

fn provided_datagrams_are_processed_before_the_next_wait<D: Tested>(thread_count: usize) {
    let config = DispatchConfig { quota_packets: 5, ..config::<D>(thread_count, PARKING) };
    let harness = Harness::<D>::new(&config, 2);
    for packet in 0..100 {
        harness.channels[0].send(0, packet);
        harness.channels[0].provide(1, packet);
    }
    wait_until("all packets processed", || harness.processed() == 200);
    harness.check_order();
}

#[test]
fn threads_that_own_their_set_process_provided_datagrams_before_the_next_wait() {
    provided_datagrams_are_processed_before_the_next_wait::<LeaderFollowers>(1);
    provided_datagrams_are_processed_before_the_next_wait::<ReactorPerThread>(2);
}

#[test]
fn a_reactor_thread_that_is_held_up_delays_its_own_channels_only() {
    let harness = Harness::<ReactorPerThread>::new(&config::<ReactorPerThread>(2, PARKING), 4);
    harness.channels[0].hold.store(true, SeqCst);
    harness.channels.iter().for_each(|channel| channel.send(0, 0));
    let processed = |index: usize| harness.channels[index].processed.load(SeqCst);
    wait_until("the other thread's channels are processed", || (processed(1), processed(3)) == (1, 1));
    assert_eq!((processed(0), processed(2)), (0, 0), "one thread owns both");
    harness.channels[0].hold.store(false, SeqCst);
    wait_until("all packets processed", || harness.processed() == 4);
}

#[test]
fn half_sync_needs_a_receiving_thread_and_a_worker_and_a_set_of_readiness() {
    let probe_set = Arc::new(MemorySet::default());
    let probe = ChannelProbe::new(&probe_set, 0);
    let start = |thread_count: usize| {
        let config = DispatchConfig { threads: vec![ThreadConfig::default(); thread_count], ..Default::default() };
        let set = Arc::new(SharedSet(probe_set.clone()));
        HalfSyncHalfAsync::start(&config, vec![set], vec![TestChannel::new(&probe)], TestLocal::new).map(drop)
    };
    let refused = start(1).unwrap_err().to_string();
    assert!(refused.contains("two threads"), "{refused}");
    assert!(start(2).is_ok());
    probe_set.delivers_data.store(true, SeqCst);
    let refused = start(2).unwrap_err().to_string();
    assert!(refused.contains("cannot hand over"), "{refused}");
}

#[test]
fn half_sync_leaves_datagrams_in_the_socket_while_a_queue_is_full() {
    for (wait, _) in wait_policies() {
        let config = DispatchConfig { quota_packets: 4, ..config::<HalfSyncHalfAsync>(3, (wait, PARKING.1)) };
        let harness = Harness::<HalfSyncHalfAsync>::new(&config, 4);
        harness.channels[0].hold.store(true, SeqCst);
        // More than the queue holds: 64 batches of 4.
        let packets = 1_000;
        for packet in 0..packets {
            harness.channels[0].send(0, packet);
            harness.channels[2].send(0, packet);
            harness.channels[1].send(0, packet);
        }
        let processed = |index: usize| harness.channels[index].processed.load(SeqCst);
        wait_until("the other worker's channel is processed", || processed(1) == packets);
        wait_until("the full queue is counted", || harness.pool.gauges().counts.queue_full > 0);
        assert!(!harness.channels[0].is_empty(), "the rest is in the socket");
        assert_eq!((processed(0), processed(2)), (0, 0), "one worker owns both");
        // Nothing but the worker wakes the receiving thread from here on.
        harness.channels[0].hold.store(false, SeqCst);
        wait_until("all packets processed", || harness.processed() == 3 * packets);
        harness.check_order();
    }
}

#[test]
fn half_sync_processes_what_it_has_received_before_it_ends() {
    let harness = Harness::<HalfSyncHalfAsync>::new(&config::<HalfSyncHalfAsync>(2, PARKING), 1);
    let probe = Arc::clone(&harness.channels[0]);
    // All at once: the batches in circulation are too few for a batch of each packet.
    for packet in 0..499 {
        probe.queue_without_event(0, packet);
    }
    probe.hold.store(true, SeqCst);
    probe.send(0, 499);
    wait_until("all packets received", || probe.is_empty());
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| harness.pool.shutdown().len());
        probe.hold.store(false, SeqCst);
        assert_eq!(ended.join().unwrap(), 1);
    });
    assert_eq!((probe.processed.load(SeqCst), probe.out_of_order.load(SeqCst)), (500, 0));
}

/// Deadlines drain all sockets that the receiving thread knows.
#[test]
fn half_sync_does_not_read_a_socket_after_its_removal() {
    let config = config::<HalfSyncHalfAsync>(2, PARKING);
    let harness = Harness::<HalfSyncHalfAsync>::with_channels(&config, 1, |_, channel| TestChannel {
        deadline: Some(mono_now()),
        period_ns: Some(100_000),
        ..channel
    });
    let probe = &harness.channels[0];
    probe.send(0, 0);
    wait_until("processed", || harness.processed() == 1);
    harness.pool.remove(probe.socket(0)).unwrap();
    probe.queue_without_event(0, 1);
    let deadlines = probe.deadlines.load(SeqCst);
    wait_until("deadlines passed", || probe.deadlines.load(SeqCst) > deadlines + 5);
    assert!(!probe.is_empty(), "the socket was read after its removal");
    assert_eq!(harness.processed(), 1);
}
