//! Which setup of the pool's turn is best on this machine: backend, promotion, wait strategy, batch?
//!
//! A sender paces packets by absolute times over many loopback sockets. Each setup gets the same packets at the same
//! rate, one setup after the other in every round. Reported per packet: processor time and voluntary context switches
//! of the pool's threads, and the time from the kernel's timestamp to the handler. Also the ratio of each setup to the
//! first one within its round.

use std::{
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::AsFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use mdgw_engine::{
    dispatch::{
        ChannelHandler, Dispatch, DispatchConfig, Failure, Progress, PromotionPolicy, ThreadConfig, TurnContext,
        WaitPolicy, pool::Pool, roles::Counts,
    },
    handle_set::{
        HandleSet, ThreadIo, backend_choice,
        epoll::EpollSet,
        ring::{MultishotSet, RingSet},
    },
};
use mdgw_feeds::identity::Line;
use mdgw_sys::{
    batch::ReceiveBatch,
    clock::{mono_now, unix_now},
    handle::{ChannelIndex, Handle, LineSet},
    scheduler::{SwitchCounts, thread_id},
    sockets::{ReceiveOptions, ReceiveSocket, open_receive},
};
use serde_json::json;

/// What the scenario takes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TurnOptions {
    /// Packets of one run.
    #[arg(long, default_value_t = 40_000)]
    packets: u64,
    /// Packets per second, in bursts of one per socket.
    #[arg(long, default_value_t = 40_000)]
    rate: u64,
    /// Sockets, one channel each.
    #[arg(long, default_value_t = 32)]
    sockets: u32,
    /// Packets that come at the same moment, on neighbouring sockets.
    #[arg(long, default_value_t = 4)]
    burst: u64,
    /// Time that the handler spends on each packet.
    #[arg(long, default_value_t = 500)]
    work_ns: u64,
    /// Cores to pin the threads to; without it they float.
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Rounds; in each one every setup runs once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &TurnOptions) -> Result<()> {
    let setups = pool_setups();
    let mut rounds: Vec<Vec<Outcome>> = vec![Vec::new(); setups.len()];
    for _ in 0..options.rounds {
        for (setup, outcomes) in setups.iter().zip(&mut rounds) {
            outcomes.push(setup.run(options).with_context(|| format!("running {setup:?}"))?);
        }
    }
    if options.json {
        print_json(&setups, &rounds);
    } else {
        print_table(options, &setups, &rounds);
    }
    Ok(())
}

/// One way to set up the pool.
#[derive(Clone, Copy, Debug)]
struct PoolSetup {
    backend: IoBackend,
    threads: usize,
    wait: WaitPolicy,
    promotion: PromotionPolicy,
    batch: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoBackend {
    Epoll,
    Rings,
    Multishot,
}

/// The setups to compare. Each setup except the first differs from an earlier one in a single setting.
fn pool_setups() -> Vec<PoolSetup> {
    let base = PoolSetup {
        backend: IoBackend::Epoll,
        threads: 2,
        wait: WaitPolicy::Park,
        promotion: PromotionPolicy::Lazy,
        batch: 32,
    };
    let strict = PoolSetup { promotion: PromotionPolicy::Strict, ..base };
    let spin = PoolSetup { wait: WaitPolicy::Spin, ..strict };
    let single_thread = PoolSetup { threads: 1, ..base };
    let single_thread_spin = PoolSetup { wait: WaitPolicy::Spin, ..single_thread };
    let mut all = vec![
        base,
        PoolSetup { batch: 1, ..base },
        PoolSetup { batch: 8, ..base },
        PoolSetup { batch: 64, ..base },
        strict,
        PoolSetup { batch: 1, ..strict },
        spin,
        PoolSetup { promotion: PromotionPolicy::Lazy, ..spin },
        single_thread,
        single_thread_spin,
    ];
    if backend_choice::probe_io_uring().is_ok() {
        all.extend([
            PoolSetup { backend: IoBackend::Rings, ..base },
            PoolSetup { backend: IoBackend::Rings, ..strict },
            PoolSetup { backend: IoBackend::Rings, ..spin },
            PoolSetup { backend: IoBackend::Multishot, ..single_thread },
            PoolSetup { backend: IoBackend::Multishot, ..single_thread_spin },
        ]);
    }
    all
}

impl PoolSetup {
    fn name(&self) -> String {
        let Self { backend, threads, wait, promotion, batch } = self;
        let promotion = if *threads == 1 { String::new() } else { format!(" {promotion:?}") };
        format!("{backend:?} T={threads} {wait:?}{promotion} batch {batch}").to_lowercase()
    }

    fn run(&self, options: &TurnOptions) -> Result<Outcome> {
        match self.backend {
            IoBackend::Epoll => self.run_on(EpollSet::new()?, options),
            IoBackend::Rings => self.run_on(RingSet::new(backend_choice::probe_io_uring()?)?, options),
            IoBackend::Multishot => self.run_on(MultishotSet::new(MultishotSet::BUFFERS)?, options),
        }
    }

    fn run_on<S: HandleSet + 'static>(&self, set: S, options: &TurnOptions) -> Result<Outcome> {
        let received = Arc::new(AtomicU64::new(0));
        let open = |_| open_receive(&ReceiveOptions::new(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), None));
        let sockets = (0..options.sockets).map(open).collect::<Result<Vec<_>, _>>()?;
        let senders = sockets.iter().map(connect_to).collect::<Result<Vec<_>>>()?;
        let watched =
            sockets.iter().map(|socket| socket.as_fd().try_clone_to_owned()).collect::<Result<Vec<_>, _>>()?;
        let probe = |socket| TimedHandler { socket, received: received.clone(), work_ns: options.work_ns };
        let handlers = sockets.into_iter().map(probe).collect();
        let threads: Arc<Mutex<Vec<i32>>> = Arc::default();
        let histograms: Arc<Mutex<Histogram<u64>>> =
            Arc::new(Mutex::new(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?));
        let thread = |index: usize| ThreadConfig {
            core: options.cores.get(index).copied(),
            fifo_priority: None,
            progress: None,
        };
        let config = DispatchConfig {
            threads: (0..self.threads).map(thread).collect(),
            wait: self.wait,
            promotion: Some(self.promotion),
            batch_events_max: self.batch,
            ..DispatchConfig::default()
        };
        let local = {
            let (threads, histograms) = (threads.clone(), histograms.clone());
            move |_| {
                threads.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(thread_id());
                ThreadBuffers::new(histograms.clone())
            }
        };
        let pool: Pool<S, TimedHandler> = Pool::start(&config, vec![Arc::new(set)], handlers, local)?;
        for (channel, socket) in (0..).zip(&watched) {
            pool.add(socket.as_fd(), Handle { channel: ChannelIndex(channel), line: Line::A })?;
        }
        let threads = threads.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?.clone();
        let before = Usage::of(&threads)?;
        send(&senders, options)?;
        // Dropped packets never arrive, so the run also ends when the count stops growing.
        let (mut last, mut changed) = (received.load(Relaxed), Instant::now());
        while last < options.packets && changed.elapsed() < Duration::from_millis(200) {
            std::thread::yield_now();
            if received.load(Relaxed) != last {
                (last, changed) = (received.load(Relaxed), Instant::now());
            }
        }
        let after = Usage::of(&threads)?;
        let counts = pool.gauges().counts;
        anyhow::ensure!(counts.failures == 0 && pool.fault().is_none(), "the pool failed: {:?}", pool.fault());
        drop(pool.shutdown());
        let histogram = histograms.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        let packets = last.max(1) as f64;
        Ok(Outcome {
            cpu_ns: (after.cpu_ns - before.cpu_ns) as f64 / packets,
            switches: (after.switches - before.switches) as f64 / packets,
            p50_us: histogram.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: histogram.value_at_quantile(0.99) as f64 / 1e3,
            lost: options.packets.saturating_sub(last),
            counts,
        })
    }
}

#[derive(Clone, Debug)]
struct Outcome {
    cpu_ns: f64,
    switches: f64,
    p50_us: f64,
    p99_us: f64,
    lost: u64,
    counts: Counts,
}

/// Largest recorded latency, ns; longer latencies are recorded as this one.
const LATENCY_NS_MAX: u64 = 10_000_000_000;

/// A channel handler that spends a given time on each packet.
struct TimedHandler {
    socket: ReceiveSocket,
    received: Arc<AtomicU64>,
    work_ns: u64,
}

/// Buffers of one thread. When the thread ends, its latencies are added to those of the other threads.
struct ThreadBuffers {
    batch: ReceiveBatch,
    latency_ns: Histogram<u64>,
    all: Arc<Mutex<Histogram<u64>>>,
}

impl ThreadBuffers {
    fn new(all: Arc<Mutex<Histogram<u64>>>) -> Self {
        let latency_ns = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let batch = ReceiveBatch::new(ReceiveBatch::PACKETS_MAX, ReceiveBatch::DATAGRAM_BYTES_MAX);
        Self { batch, latency_ns, all }
    }
}

impl Drop for ThreadBuffers {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Both histograms have the same range, so adding cannot fail.
        let _added = all.add(&self.latency_ns);
    }
}

impl TimedHandler {
    fn take(&mut self, local: &mut ThreadBuffers) -> usize {
        let received = local.batch.len();
        if received == 0 {
            return 0;
        }
        let now = unix_now();
        for datagram in local.batch.iter() {
            if let Some(ns) = datagram.ts_recv.and_then(|stamp| now.since(stamp)) {
                local.latency_ns.saturating_record(ns);
            }
            let until = mono_now().plus(self.work_ns);
            while mono_now() < until {
                std::hint::spin_loop();
            }
        }
        local.batch.clear();
        self.received.fetch_add(received as u64, Relaxed);
        received
    }
}

impl ChannelHandler for TimedHandler {
    type Local = ThreadBuffers;
    type Message = ();

    fn on_ready<I: ThreadIo>(
        &mut self,
        _lines: LineSet,
        _quota: usize,
        context: &mut TurnContext<'_, I, ThreadBuffers>,
    ) -> Result<Progress, Failure> {
        let sockets = [(Line::A, self.socket.raw_fd())];
        let more = context.io.receive(&sockets, &mut context.local.batch).map_err(|_| Failure("cannot receive"))?;
        Ok(Progress { packets: self.take(context.local), unfinished_lines: more })
    }

    fn on_provided<I: ThreadIo>(
        &mut self,
        handle: Handle,
        context: &mut TurnContext<'_, I, ThreadBuffers>,
    ) -> Result<Progress, Failure> {
        let mut progress = Progress::default();
        loop {
            context.io.take_provided(handle, &mut context.local.batch);
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

/// Processor time and voluntary context switches of some threads, as the kernel counts them.
struct Usage {
    cpu_ns: u64,
    switches: u64,
}

impl Usage {
    fn of(threads: &[i32]) -> Result<Self> {
        let mut usage = Self { cpu_ns: 0, switches: 0 };
        for thread in threads {
            let schedstat = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"))?;
            let cpu_ns = schedstat.split_whitespace().next().context("an empty schedstat")?;
            usage.cpu_ns += cpu_ns.parse::<u64>()?;
            usage.switches += SwitchCounts::of(*thread)?.voluntary;
        }
        Ok(usage)
    }
}

fn connect_to(socket: &ReceiveSocket) -> Result<UdpSocket> {
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    sender.connect(socket.local_address()?)?;
    Ok(sender)
}

/// Sends the packets in bursts at absolute times, so that a late burst does not delay the later ones.
fn send(senders: &[UdpSocket], options: &TurnOptions) -> Result<()> {
    let start = mono_now();
    let payload = [0_u8; 120];
    let mut sockets = senders.iter().cycle();
    for packet in 0..options.packets {
        if packet % options.burst == 0 {
            let at = start.plus(packet * 1_000_000_000 / options.rate);
            while mono_now() < at {
                std::hint::spin_loop();
            }
        }
        sockets.next().context("no sockets")?.send(&payload)?;
    }
    Ok(())
}

fn print_table(options: &TurnOptions, setups: &[PoolSetup], rounds: &[Vec<Outcome>]) {
    println!(
        "{} packets at {}/s in bursts of {} over {} sockets, {} ns of work each, cores {:?}, {} rounds; medians",
        options.packets, options.rate, options.burst, options.sockets, options.work_ns, options.cores, options.rounds
    );
    println!(
        "{:<38} {:>8} {:>22} {:>9} {:>8} {:>8} {:>9} {:>9} {:>6}",
        "", "cpu ns", "ratio", "switches", "p50 us", "p99 us", "pkt/turn", "promoted", "lost"
    );
    for (setup, outcomes) in setups.iter().zip(rounds) {
        let cpu = |outcome: &Outcome| outcome.cpu_ns;
        let ratio = spread(outcomes.iter().zip(&rounds[0]).map(|(one, base)| one.cpu_ns / base.cpu_ns));
        println!(
            "{:<38} {:>8.0} {:>8.2} ({:.2} to {:.2}) {:>9.3} {:>8.1} {:>8.1} {:>9.2} {:>9.3} {:>6}",
            setup.name(),
            median(outcomes, cpu),
            ratio[1],
            ratio[0],
            ratio[2],
            median(outcomes, |outcome| outcome.switches),
            median(outcomes, |outcome| outcome.p50_us),
            median(outcomes, |outcome| outcome.p99_us),
            median(outcomes, |outcome| outcome.counts.packets as f64 / outcome.counts.turns.max(1) as f64),
            median(outcomes, |outcome| outcome.counts.promotions as f64 / outcome.counts.packets.max(1) as f64),
            outcomes.iter().map(|outcome| outcome.lost).sum::<u64>(),
        );
    }
}

fn print_json(setups: &[PoolSetup], rounds: &[Vec<Outcome>]) {
    let of = |(setup, outcomes): (&PoolSetup, &Vec<Outcome>)| {
        let ratio = spread(outcomes.iter().zip(&rounds[0]).map(|(one, base)| one.cpu_ns / base.cpu_ns));
        json!({
            "setup": setup.name(),
            "cpu_ns_per_packet": median(outcomes, |outcome| outcome.cpu_ns),
            "ratio_min_median_max": ratio,
            "voluntary_switches_per_packet": median(outcomes, |outcome| outcome.switches),
            "p50_us": median(outcomes, |outcome| outcome.p50_us),
            "p99_us": median(outcomes, |outcome| outcome.p99_us),
            "lost": outcomes.iter().map(|outcome| outcome.lost).sum::<u64>(),
        })
    };
    println!("{}", json!({ "turn": setups.iter().zip(rounds).map(of).collect::<Vec<_>>() }));
}

fn median(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    spread(outcomes.iter().map(of))[1]
}

/// Least, median, greatest.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    [at(0), at(values.len() / 2), at(values.len().saturating_sub(1))]
}
