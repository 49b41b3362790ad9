//! Packets that arrive while the only thread of a pool goes from spinning to sleeping. The sender waits for each packet to be
//! processed before it sends the next, so no later packet hides a lost event.

use std::{
    net::UdpSocket,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering::SeqCst},
    },
};

use mdgw_feeds::identity::Line;
use mdgw_sys::{
    batch::ReceiveBatch,
    clock::mono_now,
    handle::{ChannelIndex, Handle, LineSet},
    scheduler::{SwitchCounts, thread_id},
};

use super::{half_sync::HalfSync, pool::Pool, reactor::Reactor, testing::wait_until};
use crate::{
    dispatch::{ChannelHandler, Dispatch, DispatchConfig, Failure, Progress, ThreadConfig, TurnContext, WaitPolicy},
    handle_set::{
        HandleSet, ThreadIo,
        epoll::EpollSet,
        ring::{EpollWaitMethod, MultishotSet, RingSet},
    },
};

const HANDLE: Handle = Handle { channel: ChannelIndex(0), line: Line::A };
const SPIN_NS: u64 = 20_000;
const PACKETS: u64 = 3_000;

/// Counts the datagrams of one socket.
struct CountingChannel {
    socket: UdpSocket,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    packets: AtomicU64,
    thread_id: AtomicI32,
}

impl CountingChannel {
    fn count(&self, packets: usize, unfinished_lines: LineSet) -> Result<Progress, Failure> {
        self.seen.thread_id.store(thread_id(), SeqCst);
        self.seen.packets.fetch_add(packets as u64, SeqCst);
        Ok(Progress { packets, unfinished_lines })
    }
}

impl ChannelHandler for CountingChannel {
    type Local = ReceiveBatch;
    type Message = ();

    fn on_ready<I: ThreadIo>(
        &mut self,
        _lines: LineSet,
        quota: usize,
        context: &mut TurnContext<'_, I, ReceiveBatch>,
    ) -> Result<Progress, Failure> {
        context.local.clear_with_limit(quota);
        let received = context.io.receive(&[(Line::A, self.socket.as_raw_fd())], context.local);
        let unfinished = received.map_err(|_| Failure("cannot receive"))?;
        self.count(context.local.len(), unfinished)
    }

    fn on_provided<I: ThreadIo>(
        &mut self,
        handle: Handle,
        context: &mut TurnContext<'_, I, ReceiveBatch>,
    ) -> Result<Progress, Failure> {
        context.local.clear();
        context.io.take_provided(handle, context.local);
        self.count(context.local.len(), LineSet::default())
    }

    fn lines(&self) -> LineSet {
        LineSet::default().with(Line::A)
    }
}

fn check<S: HandleSet + 'static, D: Dispatch<S, CountingChannel>>(set: S) {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_nonblocking(true).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let seen = Arc::new(Seen::default());
    let channel = CountingChannel { socket: receiver.try_clone().unwrap(), seen: Arc::clone(&seen) };
    let config = DispatchConfig {
        threads: vec![ThreadConfig::default(); D::THREADS_MIN],
        wait: WaitPolicy::SpinThenPark,
        spin_ns: SPIN_NS,
        ..DispatchConfig::default()
    };
    let pool = D::start(&config, vec![Arc::new(set)], vec![channel], |_| ReceiveBatch::new(64, 64)).unwrap();
    pool.add(receiver.as_fd(), HANDLE).unwrap();
    for number in 1..=PACKETS {
        // Up to three times the spin: before, at and after the moment at which the thread goes to sleep.
        let pause_ns = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (3 * SPIN_NS);
        let begun = mono_now();
        while mono_now().since(begun) < pause_ns {
            std::hint::spin_loop();
        }
        sender.send(b"x").unwrap();
        wait_until("the packet is processed", || seen.packets.load(SeqCst) == number);
    }
    let sleeps = SwitchCounts::of(seen.thread_id.load(SeqCst)).unwrap().voluntary;
    assert!(sleeps > PACKETS / 10, "the thread slept {sleeps} times only");
    drop(pool);
}

/// Leader/Followers, and a reactor of one thread.
fn check_one_thread<S: HandleSet + 'static>(make: impl Fn() -> S) {
    check::<S, Pool<_, _>>(make());
    check::<S, Reactor<_, _>>(make());
}

#[test]
fn a_packet_at_the_moment_of_parking_wakes_a_thread_on_epoll() {
    check_one_thread(|| EpollSet::new().unwrap());
}

#[test]
fn a_packet_at_the_moment_of_parking_wakes_a_thread_on_a_ring() {
    for wait in [EpollWaitMethod::Events, EpollWaitMethod::Readiness] {
        check_one_thread(|| RingSet::new(wait).unwrap());
    }
}

#[test]
fn a_packet_at_the_moment_of_parking_wakes_a_thread_on_multishot() {
    check_one_thread(|| MultishotSet::new(64).unwrap());
}

#[test]
fn a_packet_at_the_moment_of_parking_wakes_the_receiving_thread_and_its_worker() {
    check::<_, HalfSync<_, _>>(EpollSet::new().unwrap());
    check::<_, HalfSync<_, _>>(RingSet::new(EpollWaitMethod::Events).unwrap());
}
