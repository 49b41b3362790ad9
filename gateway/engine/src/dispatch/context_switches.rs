//! Only the leader waits: the context switches of a pool's threads, counted over real sockets, on every backend.
//!
//! A thread gives up its core to wait for events, as the leader, or to wait for its promotion, as a follower, and never
//! because another thread waits in its place. So each voluntary switch of a thread has its cause among that thread's
//! own counters, and a pool that spins has none at all. The same count must detect the design that breaks this: a ring
//! shared under a rotating leader.

use std::{
    net::UdpSocket,
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use mdgw_feeds::identity::Line;
use mdgw_sys::{
    batch::ReceiveBatch,
    handle::{ChannelIndex, Handle, LineSet},
    scheduler::{SwitchCounts, thread_id},
};

use super::{pool::Pool, roles::Counts, testing::wait_until};
use crate::{
    dispatch::{
        ChannelHandler, Dispatch, DispatchConfig, Failure, Progress, PromotionPolicy, ThreadConfig, TurnContext,
        WaitPolicy,
    },
    handle_set::{
        HandleSet, ThreadIo, backend_choice,
        epoll::EpollSet,
        ring::{EpollWaitMethod, MultishotSet, RingSet, SharedRingSet},
    },
    skip::skip,
};

/// A channel with one line, whose packets are numbered.
struct SequenceCheckedChannel {
    socket: UdpSocket,
    next: u64,
    processed: Arc<AtomicU64>,
}

impl SequenceCheckedChannel {
    fn take(&mut self, batch: &mut ReceiveBatch) -> usize {
        let count = batch.len();
        for datagram in batch.iter() {
            assert_eq!(datagram.bytes, self.next.to_le_bytes(), "out of order, or lost");
            self.next += 1;
        }
        batch.clear();
        self.processed.fetch_add(u64::try_from(count).unwrap(), SeqCst);
        count
    }
}

impl ChannelHandler for SequenceCheckedChannel {
    type Local = ReceiveBatch;
    type Message = ();

    fn on_ready<I: ThreadIo>(
        &mut self,
        _lines: LineSet,
        _quota: usize,
        context: &mut TurnContext<'_, I, ReceiveBatch>,
    ) -> Result<Progress, Failure> {
        let sockets = [(Line::A, self.socket.as_raw_fd())];
        let more = context.io.receive(&sockets, context.local).map_err(|_| Failure("cannot receive"))?;
        Ok(Progress { packets: self.take(context.local), unfinished_lines: more })
    }

    fn on_provided<I: ThreadIo>(
        &mut self,
        handle: Handle,
        context: &mut TurnContext<'_, I, ReceiveBatch>,
    ) -> Result<Progress, Failure> {
        let mut progress = Progress::default();
        loop {
            context.io.take_provided(handle, context.local);
            match self.take(context.local) {
                0 => return Ok(progress),
                packets => progress.packets += packets,
            }
        }
    }

    fn lines(&self) -> LineSet {
        LineSet(1)
    }
}

/// What one thread did while it was counted.
#[derive(Debug)]
struct ThreadRun {
    /// Voluntary context switches, as the kernel counts them.
    switches: u64,
    /// Waits as the leader.
    waits: u64,
    /// Sleeps as a follower.
    sleeps: u64,
}

impl ThreadRun {
    /// Number of switches for which the thread's own counters have no reason.
    fn unaccounted(&self) -> u64 {
        // The thread may be going to sleep when counting begins, and in its last wait when counting ends.
        self.switches.saturating_sub(self.waits + self.sleeps + 2)
    }
}

const CHANNELS: u32 = 8;
/// Rounds of packets in one run. A round of a sleeping pool takes microseconds; one of a spinning pool on a busy
/// machine takes a time slice.
const ROUNDS_SLEEPING: u64 = 500;
const ROUNDS_SPINNING: u64 = 60;

/// Sends numbered packets to all channels, waiting for each round to be processed. Counts from the second round on.
fn run<S: HandleSet + 'static>(
    set: S,
    thread_count: usize,
    wait: WaitPolicy,
    promotion: PromotionPolicy,
) -> Vec<ThreadRun> {
    let processed = Arc::new(AtomicU64::new(0));
    let sockets: Vec<_> = (0..CHANNELS).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let senders: Vec<_> = sockets
        .iter()
        .map(|socket| {
            socket.set_nonblocking(true).unwrap();
            let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
            sender.connect(socket.local_addr().unwrap()).unwrap();
            sender
        })
        .collect();
    let ours: Vec<_> = sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
    let handlers = sockets
        .into_iter()
        .map(|socket| SequenceCheckedChannel { socket, next: 0, processed: processed.clone() })
        .collect();
    let threads = Arc::new(Mutex::new(vec![0; thread_count]));
    let thread_ids = threads.clone();
    let config = DispatchConfig {
        threads: vec![ThreadConfig::default(); thread_count],
        wait,
        promotion: Some(promotion),
        ..DispatchConfig::default()
    };
    let local = move |thread: usize| {
        thread_ids.lock().unwrap()[thread] = thread_id();
        ReceiveBatch::new(64, 64)
    };
    let pool: Pool<S, SequenceCheckedChannel> = Pool::start(&config, vec![Arc::new(set)], handlers, local).unwrap();
    for (channel, socket) in (0..).zip(&ours) {
        // The handler's own descriptor is a duplicate: both name the same socket.
        pool.add(socket.as_fd(), Handle { channel: ChannelIndex(channel), line: Line::A }).unwrap();
    }
    let rounds = if wait == WaitPolicy::Spin { ROUNDS_SPINNING } else { ROUNDS_SLEEPING };
    let round = |number: u64| {
        for sender in &senders {
            sender.send(&number.to_le_bytes()).unwrap();
        }
        let sent = u64::from(CHANNELS) * (number + 1);
        wait_until("round processed", || processed.load(SeqCst) == sent || pool.failed(ChannelIndex(0)).is_some());
    };
    let switches = || -> Vec<u64> {
        threads.lock().unwrap().iter().map(|thread| SwitchCounts::of(*thread).unwrap().voluntary).collect()
    };
    round(0);
    let idle = || {
        let gauges = pool.gauges();
        gauges.processing == 0 && gauges.leading == 1
    };
    wait_until("idle", idle);
    let (before, counts_before) = (switches(), pool.thread_counts());
    (1..rounds).for_each(round);
    wait_until("idle", idle);
    let (after, counts) = (switches(), pool.thread_counts());
    let sums = pool.gauges().counts;
    assert_eq!(sums.failures, 0, "{:?}", pool.failed(ChannelIndex(0)));
    assert_eq!(sums.packets, u64::from(CHANNELS) * rounds);
    let since = |thread: usize, of: fn(&Counts) -> u64| of(&counts[thread]) - of(&counts_before[thread]);
    let thread_run = |thread| ThreadRun {
        switches: after[thread] - before[thread],
        waits: since(thread, |counts| counts.turns + counts.empty_waits),
        sleeps: since(thread, |counts| counts.sleeps),
    };
    (0..thread_count).map(thread_run).collect()
}

/// Checks that each voluntary switch of a thread is its own wait for events, or for a promotion.
fn check_sleeping<S: HandleSet + 'static>(make: impl Fn() -> S, thread_count: usize) {
    for promotion in [PromotionPolicy::Strict, PromotionPolicy::Lazy] {
        let threads = run(make(), thread_count, WaitPolicy::Park, promotion);
        assert!(threads.iter().all(|thread| thread.unaccounted() == 0), "{promotion:?} {threads:#?}");
        let switches: u64 = threads.iter().map(|thread| thread.switches).sum();
        assert!(switches > 0, "a pool that sleeps does switch: the count works");
    }
}

/// Checks that no thread gives up its core.
fn check_spinning<S: HandleSet + 'static>(make: impl Fn() -> S, thread_count: usize) {
    for promotion in [PromotionPolicy::Strict, PromotionPolicy::Lazy] {
        let threads = run(make(), thread_count, WaitPolicy::Spin, promotion);
        assert!(threads.iter().all(|thread| thread.switches == 0), "{promotion:?} {threads:#?}");
    }
}

/// How rings wait here. Without io_uring `test` is skipped.
fn io_uring(test: &str) -> Option<EpollWaitMethod> {
    let wait = backend_choice::probe_io_uring();
    wait.map_err(|error| skip(test, &error.to_string())).ok()
}

#[test]
fn with_epoll_each_voluntary_switch_is_a_leader_wait_or_a_follower_sleep() {
    for thread_count in [1, 2, 4] {
        check_sleeping(|| EpollSet::new().unwrap(), thread_count);
    }
}

#[test]
fn with_rings_each_voluntary_switch_is_a_leader_wait_or_a_follower_sleep() {
    let Some(wait) = io_uring("with_rings_each_voluntary_switch_is_a_leader_wait_or_a_follower_sleep") else { return };
    for thread_count in [2, 4] {
        check_sleeping(|| RingSet::new(wait).unwrap(), thread_count);
    }
}

#[test]
fn a_ring_shared_under_a_rotating_leader_is_caught() {
    if io_uring("a_ring_shared_under_a_rotating_leader_is_caught").is_none() {
        return;
    }
    // The thread that armed the ring sleeps while another thread waits, but not in every run.
    let is_caught = (0..10).any(|_| {
        let threads = run(SharedRingSet::new().unwrap(), 3, WaitPolicy::Park, PromotionPolicy::Strict);
        threads.iter().any(|thread| thread.unaccounted() > ROUNDS_SLEEPING / 4)
    });
    assert!(is_caught, "the count misses a sleeping thread that is woken for another thread's wait");
}

#[test]
fn with_multishot_each_voluntary_switch_is_a_wait() {
    if io_uring("with_multishot_each_voluntary_switch_is_a_wait").is_some() {
        check_sleeping(|| MultishotSet::new(MultishotSet::BUFFERS).unwrap(), 1);
    }
}

#[test]
fn a_spinning_pool_makes_no_voluntary_context_switch() {
    for thread_count in [1, 2] {
        check_spinning(|| EpollSet::new().unwrap(), thread_count);
    }
    let Some(wait) = io_uring("a_spinning_pool_makes_no_voluntary_context_switch") else { return };
    check_spinning(|| RingSet::new(wait).unwrap(), 2);
    check_spinning(|| MultishotSet::new(MultishotSet::BUFFERS).unwrap(), 1);
}
