//! The pool over a handle set in memory.

use std::sync::{
    Arc, Mutex,
    atomic::Ordering::{Relaxed, SeqCst},
};

use mdgw_sys::{
    affinity,
    clock::mono_now,
    handle::{ChannelIndex, LineSet},
};

use super::{
    pool::Pool,
    testing::{ChannelProbe, FAILURE_PACKET, LINES, MemorySet, PANIC_PACKET, SharedSet, TestChannel, wait_until},
};
use crate::{
    dispatch::{Dispatch, DispatchConfig, FailReason, PromotionPolicy, StartError, ThreadConfig, WaitPolicy},
    handle_set::{Event, HandleSet},
};

const POLICIES: [(WaitPolicy, PromotionPolicy); 6] = [
    (WaitPolicy::Spin, PromotionPolicy::Strict),
    (WaitPolicy::Spin, PromotionPolicy::Lazy),
    (WaitPolicy::Park, PromotionPolicy::Strict),
    (WaitPolicy::Park, PromotionPolicy::Lazy),
    (WaitPolicy::SpinThenPark, PromotionPolicy::Strict),
    (WaitPolicy::SpinThenPark, PromotionPolicy::Lazy),
];

/// A pool and its channels.
struct Harness {
    set: Arc<MemorySet>,
    channels: Vec<Arc<ChannelProbe>>,
    pool: Pool<SharedSet, TestChannel>,
}

impl Harness {
    fn new(config: &DispatchConfig, channel_count: u32) -> Self {
        Self::with_channels(config, channel_count, |_, channel| channel)
    }

    fn with_channels(
        config: &DispatchConfig,
        channel_count: u32,
        change: impl Fn(usize, TestChannel) -> TestChannel,
    ) -> Self {
        let set = Arc::new(MemorySet::default());
        let channels: Vec<_> = (0..channel_count).map(|index| ChannelProbe::new(&set, index)).collect();
        let handlers = channels.iter().enumerate().map(|(index, probe)| change(index, TestChannel::new(probe)));
        let handlers = handlers.collect();
        let pool = Pool::start(config, Arc::new(SharedSet(set.clone())), handlers, |thread| thread).unwrap();
        Self { set, channels, pool }
    }

    fn processed(&self) -> u64 {
        self.channels.iter().map(|channel| channel.processed.load(SeqCst)).sum()
    }

    /// Sends numbered packets on both lines of all channels from two threads.
    fn feed(&self, packets_per_line: u64) {
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
        assert_eq!(self.set.concurrent_waits.load(SeqCst), 0, "two threads waited at once");
    }
}

fn config(thread_count: usize, (wait, promotion): (WaitPolicy, PromotionPolicy)) -> DispatchConfig {
    DispatchConfig {
        threads: vec![ThreadConfig::default(); thread_count],
        wait,
        promotion: Some(promotion),
        batch_events_max: 8,
        ..DispatchConfig::default()
    }
}

#[test]
fn every_packet_of_a_channel_is_processed_once_and_in_order() {
    for policy in POLICIES {
        for thread_count in [1, 2, 5] {
            let harness = Harness::new(&config(thread_count, policy), 16);
            let packets_per_line = 300;
            harness.feed(packets_per_line);
            let total = packets_per_line * 16 * 2;
            wait_until("all packets processed", || harness.processed() == total);
            harness.check_order();
            let counts = harness.pool.gauges().counts;
            assert_eq!(counts.packets, total, "{policy:?}");
            assert_eq!(counts.failures, 0);
            if thread_count == 1 {
                assert_eq!(counts.promotions, 0, "one thread has no follower to promote");
            } else if policy.1 == PromotionPolicy::Strict {
                assert!(counts.promotions > 0);
                assert_eq!(counts.leads_retained, 0, "strict always promotes before processing");
            }
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
                let mut rounds = 0;
                while !is_disorder_seen() {
                    rounds += 1;
                    assert!(rounds < 10_000_000, "the check missed two threads in one channel");
                    let mut packet = sent.lock().unwrap();
                    probe.send(0, *packet);
                    *packet += 1;
                    drop(packet);
                    channel.drain(LineSet(1), 4).unwrap();
                }
            });
        }
    });
    assert!(is_disorder_seen());
}

#[test]
fn a_busy_channel_yields_after_its_quota_and_loses_no_packet() {
    for policy in POLICIES {
        for thread_count in [1, 3] {
            let harness = Harness::new(&DispatchConfig { quota_packets: 10, ..config(thread_count, policy) }, 3);
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

#[test]
fn a_channel_over_its_quota_is_resumed_from_the_run_queue_without_a_new_edge() {
    let set = Arc::new(MemorySet::default());
    let probe = ChannelProbe::new(&set, 0);
    for packet in 0..100 {
        probe.send(0, packet);
    }
    let settings = config(1, POLICIES[2]);
    let settings = DispatchConfig { quota_packets: 10, ..settings };
    let handlers = vec![TestChannel::new(&probe)];
    let pool = Pool::start(&settings, Arc::new(SharedSet(set.clone())), handlers, |thread| thread).unwrap();
    wait_until("all packets processed", || probe.processed.load(SeqCst) == 100);
    wait_until("the gauges are final", || pool.gauges().counts.quota_hits == 10);
    assert_eq!(pool.gauges().counts.events, 1, "there was one edge only");
}

#[test]
fn a_failing_handler_is_contained() {
    for (packet, reason) in [
        (PANIC_PACKET, FailReason::Panicked("a packet that panics".to_owned())),
        (FAILURE_PACKET, FailReason::Failed("a packet that fails")),
    ] {
        let harness = Harness::new(&config(3, POLICIES[2]), 4);
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

#[test]
fn a_failed_channel_repeats_its_state_until_it_panics_again() {
    let period_ns = Some(1_000_000);
    let harness = Harness::with_channels(&config(2, POLICIES[2]), 2, |_, channel| TestChannel { period_ns, ..channel });
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

#[test]
fn shutdown_under_load_ends_all_threads() {
    for policy in POLICIES {
        for thread_count in [1, 4] {
            let harness = Harness::new(&config(thread_count, policy), 8);
            let stop = std::sync::atomic::AtomicBool::new(false);
            let channels = harness.channels.clone();
            std::thread::scope(|scope| {
                let (channels, stop) = (&channels, &stop);
                scope.spawn(move || {
                    for packet in 0.. {
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

#[test]
fn an_idle_pool_sleeps_and_can_be_shut_down() {
    for policy in [POLICIES[2], POLICIES[4]] {
        let harness = Harness::new(&config(4, policy), 1);
        wait_until("leader blocked, followers asleep", || {
            let gauges = harness.pool.gauges();
            harness.set.blocking_waits.load(SeqCst) > 0 && (gauges.leading, gauges.parked) == (1, 3)
        });
        harness.pool.shutdown();
    }
}

#[test]
fn at_most_one_follower_spins() {
    let harness = Harness::new(&config(4, POLICIES[0]), 4);
    let spinners = usize::from(affinity::usable_cores().len() >= 2);
    wait_until("one leads, the others follow", || {
        let gauges = harness.pool.gauges();
        assert!(gauges.spinning <= spinners);
        (gauges.leading, gauges.spinning, gauges.parked) == (1, spinners, 3 - spinners)
    });
    harness.feed(50);
    wait_until("all packets processed", || harness.processed() == 400);
}

#[test]
fn deadlines_are_handled_after_all_lines_are_drained() {
    for policy in POLICIES {
        for thread_count in [1, 3] {
            let period_ns = 200_000;
            let harness = Harness::with_channels(&config(thread_count, policy), 4, |index, channel| TestChannel {
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

#[test]
fn a_deadline_drains_packets_whose_edge_has_not_arrived() {
    let set = Arc::new(MemorySet::default());
    let probe = ChannelProbe::new(&set, 0);
    let channel = TestChannel { deadline: Some(mono_now().plus(1_000_000)), ..TestChannel::new(&probe) };
    probe.queue_without_event(0, 0);
    probe.queue_without_event(1, 0);
    let pool = Pool::start(&config(2, POLICIES[2]), Arc::new(SharedSet(set.clone())), vec![channel], |t| t).unwrap();
    wait_until("deadline", || probe.deadlines.load(SeqCst) == 1);
    assert_eq!(probe.early_deadlines.load(SeqCst), 0);
    assert_eq!(probe.processed.load(SeqCst), 2);
    pool.shutdown();
}

#[test]
fn messages_wake_a_sleeping_pool_and_a_full_inbox_refuses_them() {
    let harness = Harness::new(&DispatchConfig { inbox_messages_max: 4, ..config(3, POLICIES[2]) }, 2);
    let mut accepted = 0;
    while accepted < 1_000 {
        if harness.pool.send(ChannelIndex(1), accepted).is_ok() {
            accepted += 1;
        }
    }
    wait_until("all messages received", || harness.channels[1].messages.load(SeqCst) == 1_000);
    assert_eq!(harness.channels[1].overlaps.load(SeqCst), 0);
    assert_eq!(harness.pool.send(ChannelIndex(2), 5), Err(5), "no such channel");
}

#[test]
fn a_handle_added_while_the_leader_sleeps_is_served() {
    let harness = Harness::new(&config(2, POLICIES[2]), 1);
    wait_until("leader blocked", || harness.set.blocking_waits.load(SeqCst) > 0);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = std::os::fd::AsFd::as_fd(&socket);
    harness.pool.add(socket, harness.channels[0].handle(1)).unwrap();
    wait_until("served", || harness.pool.gauges().counts.claims > 0);
    let no_channel = mdgw_sys::handle::Handle { channel: ChannelIndex(9), line: harness.channels[0].handle(0).line };
    assert!(harness.pool.add(socket, no_channel).is_err());
    harness.pool.remove(socket).unwrap();
}

/// Waits until the retired channel of that slot can be taken out.
fn take_retired(pool: &Pool<SharedSet, TestChannel>, channel: ChannelIndex) -> TestChannel {
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
            let settings = DispatchConfig { spare_channels: 2, quota_packets: 5, ..config(thread_count, policy) };
            let harness = Harness::new(&settings, 2);
            let slot = ChannelIndex(3);
            let visitors: Vec<_> = (0..20).map(|_| ChannelProbe::new(&harness.set, slot.0)).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| harness.feed(2_000));
                for (round, probe) in visitors.iter().enumerate() {
                    // Packets that came before the channel: their edge is lost, its registration brings another.
                    probe.queue_without_event(0, 0);
                    let channel =
                        TestChannel { period_ns: Some(100_000), deadline: Some(mono_now()), ..TestChannel::new(probe) };
                    assert!(harness.pool.insert(slot, channel).is_ok());
                    assert!(harness.pool.insert(slot, TestChannel::new(probe)).is_err(), "occupied");
                    harness.set.post(Event::Ready(probe.handle(0)));
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
            wait_until("all packets processed", || harness.processed() == 2_000 * 2 * 2);
            harness.check_order();
            assert_eq!(harness.pool.gauges().counts.failures, 0);
            assert_eq!(harness.pool.shutdown().len(), 2);
        }
    }
}

#[test]
fn a_failed_channel_leaves_its_slot_and_the_next_one_is_in_service() {
    let harness = Harness::new(&DispatchConfig { spare_channels: 1, ..config(2, POLICIES[2]) }, 1);
    let slot = ChannelIndex(1);
    for packet in [PANIC_PACKET, FAILURE_PACKET] {
        let failing = ChannelProbe::new(&harness.set, slot.0);
        let channel = TestChannel { period_ns: Some(100_000), ..TestChannel::new(&failing) };
        assert!(harness.pool.insert(slot, channel).is_ok());
        failing.send(0, packet);
        wait_until("failed, and repeats its state", || failing.calls_after_failure.load(SeqCst) > 2);
        harness.pool.retire(slot);
        drop(take_retired(&harness.pool, slot));
        let sound = ChannelProbe::new(&harness.set, slot.0);
        assert!(harness.pool.insert(slot, TestChannel::new(&sound)).is_ok());
        assert_eq!(harness.pool.failed(slot), None);
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

#[test]
fn provided_datagrams_are_processed_before_the_next_wait() {
    let harness = Harness::new(&DispatchConfig { quota_packets: 5, ..config(1, POLICIES[2]) }, 2);
    for packet in 0..100 {
        harness.channels[0].send(0, packet);
        harness.channels[0].send(1, packet);
        harness.set.post(Event::Provided(harness.channels[0].handle(1)));
    }
    wait_until("all packets processed", || harness.processed() == 200);
    harness.check_order();
}

#[test]
fn a_failing_wait_stops_the_pool_and_reports_the_cause() {
    let harness = Harness::new(&config(3, POLICIES[2]), 1);
    harness.set.fail_waits.store(true, SeqCst);
    SharedSet(harness.set.clone()).wake();
    wait_until("fault", || harness.pool.fault().is_some());
    let fault = harness.pool.fault().unwrap();
    assert!(fault.contains("cannot wait on its handle set: broken"), "{fault}");
    wait_until("threads gone", || {
        let gauges = harness.pool.gauges();
        gauges.leading + gauges.spinning + gauges.parked + gauges.processing == 0
    });
    assert_eq!(harness.pool.shutdown().len(), 1);
}

#[test]
fn an_impossible_configuration_is_refused_before_any_thread_runs() {
    let start = |config: &DispatchConfig| {
        let set = Arc::new(MemorySet::default());
        let probe = ChannelProbe::new(&set, 0);
        probe.send(0, 0);
        let handlers = vec![TestChannel::new(&probe)];
        let result = Pool::start(config, Arc::new(SharedSet(set.clone())), handlers, |thread| thread).map(drop);
        assert!(result.is_ok() || !set.is_drained(), "a pool that could not start took a packet");
        result
    };
    let pinned = |core| ThreadConfig { core: Some(core), fifo_priority: None, progress: None };
    let threads = |threads: Vec<ThreadConfig>| DispatchConfig { threads, ..DispatchConfig::default() };
    assert!(matches!(start(&threads(vec![])), Err(StartError::InvalidSetting(_))));
    assert!(matches!(start(&threads(vec![pinned(0), pinned(0)])), Err(StartError::DuplicateCore(0))));
    let refused = start(&threads(vec![ThreadConfig::default(), pinned(1_000)]));
    assert!(matches!(refused, Err(StartError::Pin { thread: 1, .. })), "{refused:?}");
    let floating = ThreadConfig { core: None, fifo_priority: Some(1), progress: None };
    assert!(matches!(start(&threads(vec![floating])), Err(StartError::InvalidSetting(_))));
    let bad_priority =
        ThreadConfig { core: Some(affinity::usable_cores()[0]), fifo_priority: Some(100), progress: None };
    assert!(matches!(start(&threads(vec![bad_priority])), Err(StartError::Priority { thread: 0, priority: 100, .. })));
    for (batch_events_max, quota_packets, inbox_messages_max) in
        [(0, 1, 1), (257, 1, 1), (1, 0, 1), (1, 1_025, 1), (1, 1, 0)]
    {
        let config =
            DispatchConfig { batch_events_max, quota_packets, inbox_messages_max, ..DispatchConfig::default() };
        assert!(matches!(start(&config), Err(StartError::InvalidSetting(_))));
    }
    assert!(start(&DispatchConfig::default()).is_ok());
}
