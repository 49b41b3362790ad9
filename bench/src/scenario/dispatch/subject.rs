//! The engine as a subject: its dispatch models over plain UDP sockets. Sockets, handler and report are those of
//! `bench/peers/dispatch/subject.hpp`.

use std::{
    io::{BufRead as _, Write as _},
    net::{Ipv4Addr, UdpSocket},
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use mdgw_engine::{
    dispatch::{
        ChannelHandler, Dispatch, DispatchConfig, DispatchModel, Failure, Progress, PromotionPolicy, ThreadConfig,
        TurnContext, WaitPolicy, half_sync::HalfSync, pool::Pool, reactor::Reactor,
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
    clock::mono_now,
    handle::{ChannelIndex, Handle, LineSet},
};
use rustix::net::sockopt;

/// One way to set up the engine: also the first arguments of the subject's command line.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct EngineSetup {
    #[arg(value_parser = |text: &str| value_of(&MODELS, text))]
    pub(super) model: DispatchModel,
    #[arg(value_parser = |text: &str| value_of(&IO_KINDS, text))]
    pub(super) io: IoKind,
    #[arg(value_parser = |text: &str| value_of(&WAITS, text))]
    pub(super) wait: WaitPolicy,
    #[arg(value_parser = |text: &str| value_of(&PROMOTIONS, text))]
    pub(super) promotion: PromotionPolicy,
    /// Events claimed in one turn.
    pub(super) batch: usize,
}

/// The kind of a model's handle sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoKind {
    Epoll,
    Rings,
    Multishot,
}

/// The command line of the subject.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SubjectArgs {
    #[command(flatten)]
    setup: EngineSetup,
    sockets: u32,
    threads: usize,
    work_ns: u64,
    expected: u64,
}

const MODELS: [(&str, DispatchModel); 3] = [
    ("leader-followers", DispatchModel::LeaderFollowers),
    ("half-sync", DispatchModel::HalfSync),
    ("reactor", DispatchModel::Reactor),
];
const IO_KINDS: [(&str, IoKind); 3] =
    [("epoll", IoKind::Epoll), ("rings", IoKind::Rings), ("multishot", IoKind::Multishot)];
const WAITS: [(&str, WaitPolicy); 3] =
    [("spin", WaitPolicy::Spin), ("spin-then-park", WaitPolicy::SpinThenPark), ("park", WaitPolicy::Park)];
const PROMOTIONS: [(&str, PromotionPolicy); 2] = [("strict", PromotionPolicy::Strict), ("lazy", PromotionPolicy::Lazy)];

fn value_of<T: Copy>(names: &[(&str, T)], text: &str) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        format!("expected one of {}", names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "))
    })
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    names.iter().find(|(_, named)| named == value).map_or("", |(name, _)| name)
}

impl EngineSetup {
    pub(super) fn to_arguments(self) -> [String; 5] {
        [
            name_of(&MODELS, &self.model).to_owned(),
            name_of(&IO_KINDS, &self.io).to_owned(),
            name_of(&WAITS, &self.wait).to_owned(),
            name_of(&PROMOTIONS, &self.promotion).to_owned(),
            self.batch.to_string(),
        ]
    }

    pub(super) fn name(&self, threads: usize) -> String {
        let [model, io, wait, promotion, batch] = self.to_arguments();
        let io = if self.io == IoKind::Epoll { String::new() } else { format!(" {io}") };
        let is_promoting = self.model == DispatchModel::LeaderFollowers && threads > 1;
        let promotion = if is_promoting { format!(" {promotion}") } else { String::new() };
        let default = DispatchConfig::default().batch_events_max;
        let batch = if self.batch == default { String::new() } else { format!(" batch {batch}") };
        format!("{model}{io} {wait}{promotion}{batch}")
    }
}

/// Runs as a subject.
pub(crate) fn run(args: &SubjectArgs) -> Result<()> {
    match args.setup.io {
        IoKind::Epoll => run_on(args, || Ok(EpollSet::new()?)),
        IoKind::Rings => run_on(args, || Ok(RingSet::new(backend_choice::probe_io_uring()?)?)),
        IoKind::Multishot => run_on(args, || Ok(MultishotSet::new(MultishotSet::BUFFERS)?)),
    }
}

fn run_on<S: HandleSet + 'static>(args: &SubjectArgs, make_set: impl Fn() -> Result<S>) -> Result<()> {
    match args.setup.model {
        DispatchModel::LeaderFollowers => run_model::<S, Pool<_, _>>(args, make_set),
        DispatchModel::HalfSync => run_model::<S, HalfSync<_, _>>(args, make_set),
        DispatchModel::Reactor => run_model::<S, Reactor<_, _>>(args, make_set),
    }
}

fn run_model<S: HandleSet + 'static, D: Dispatch<S, TimedHandler>>(
    args: &SubjectArgs,
    make_set: impl Fn() -> Result<S>,
) -> Result<()> {
    let counts: Vec<Arc<Counts>> = (0..args.threads).map(|_| Arc::default()).collect();
    let sockets = (0..args.sockets).map(|_| open_socket()).collect::<Result<Vec<_>>>()?;
    let watched = sockets.iter().map(UdpSocket::try_clone).collect::<Result<Vec<_>, _>>()?;
    let handlers = sockets.into_iter().map(|socket| TimedHandler { socket, work_ns: args.work_ns }).collect();
    let config = DispatchConfig {
        threads: vec![ThreadConfig::default(); args.threads],
        wait: args.setup.wait,
        batch_events_max: args.setup.batch,
        promotion: Some(args.setup.promotion),
        ..DispatchConfig::default()
    };
    let sets = (0..D::set_count(args.threads)).map(|_| make_set().map(Arc::new)).collect::<Result<Vec<_>>>()?;
    let of_threads = counts.clone();
    let pool = D::start(&config, sets, handlers, move |thread| ThreadBuffers {
        batch: ReceiveBatch::new(ReceiveBatch::PACKETS_MAX, ReceiveBatch::DATAGRAM_BYTES_MAX),
        counts: Arc::clone(&of_threads[thread]),
    })?;
    for (channel, socket) in (0..).zip(&watched) {
        pool.add(socket.as_fd(), Handle { channel: ChannelIndex(channel), line: Line::A })?;
    }
    let ports = watched.iter().map(|socket| Ok(socket.local_addr()?.port().to_string())).collect::<Result<Vec<_>>>()?;
    println!("{}", ports.join(" "));

    let is_over = Arc::new(AtomicBool::new(false));
    let input = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            let _ended = std::io::stdin().lock().read_line(&mut String::new());
            is_over.store(true, Relaxed);
        }
    });
    let packets = || counts.iter().map(|thread| thread.packets.load(Relaxed)).sum::<u64>();
    while packets() < args.expected && !is_over.load(Relaxed) {
        thread::sleep(Duration::from_millis(2));
    }
    let gauges = pool.gauges().counts;
    ensure!(gauges.failures == 0 && pool.fault().is_none(), "the pool failed: {:?}", pool.fault());
    let last_ns = counts.iter().map(|thread| thread.last_ns.load(Relaxed)).max().unwrap_or(0);
    let mut line = format!("{} {last_ns} {}", packets(), gauges.promotions_without_follower);
    for bucket in 0..BUCKETS {
        let count: u64 = counts.iter().map(|thread| thread.latency[bucket].load(Relaxed)).sum();
        if count > 0 {
            line += &format!(" {bucket}:{count}");
        }
    }
    println!("{line}");
    std::io::stdout().flush()?;
    let _ended = input.join();
    Ok(())
}

fn open_socket() -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES)?;
    }
    Ok(socket)
}

/// One thread's counts. That thread alone writes them.
#[repr(align(128))]
struct Counts {
    packets: AtomicU64,
    last_ns: AtomicU64,
    latency: [AtomicU64; BUCKETS],
}

impl Default for Counts {
    fn default() -> Self {
        let latency = [const { AtomicU64::new(0) }; BUCKETS];
        Self { packets: AtomicU64::new(0), last_ns: AtomicU64::new(0), latency }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed) + count, Relaxed);
}

/// Buckets of the latencies: thirty-two for each power of two.
const BUCKETS: usize = 64 * 32;
const BUFFER_BYTES: usize = 512 << 20;

fn bucket(ns: u64) -> usize {
    if ns < 32 {
        return usize::try_from(ns).unwrap_or(0);
    }
    let power = u64::BITS - 1 - ns.leading_zeros();
    (power as usize - 4) * 32 + ((ns >> (power - 5)) & 31) as usize
}

/// The least latency of a bucket, ns.
pub(super) fn bucket_ns(bucket: usize) -> u64 {
    if bucket < 32 {
        return bucket as u64;
    }
    let power = (bucket / 32 + 4).min(63);
    (1 << power) + ((bucket as u64 % 32) << (power - 5))
}

/// Records a datagram's latency, and spends a given time on it.
struct TimedHandler {
    socket: UdpSocket,
    work_ns: u64,
}

struct ThreadBuffers {
    batch: ReceiveBatch,
    counts: Arc<Counts>,
}

impl TimedHandler {
    fn take(&mut self, local: &mut ThreadBuffers) -> usize {
        let count = local.batch.len();
        for datagram in local.batch.iter() {
            let sent_ns = datagram.bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let begun_at = mono_now();
            add(&local.counts.latency[bucket(begun_at.0.saturating_sub(sent_ns))], 1);
            let mut now = begun_at;
            while now.since(begun_at) < self.work_ns {
                now = mono_now();
            }
            local.counts.last_ns.store(now.0, Relaxed);
            add(&local.counts.packets, 1);
        }
        local.batch.clear();
        count
    }
}

impl ChannelHandler for TimedHandler {
    type Local = ThreadBuffers;
    type Message = ();

    fn on_ready<I: ThreadIo>(
        &mut self,
        _lines: LineSet,
        quota: usize,
        context: &mut TurnContext<'_, I, ThreadBuffers>,
    ) -> Result<Progress, Failure> {
        context.local.batch.clear_with_limit(quota);
        let sockets = [(Line::A, self.socket.as_raw_fd())];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_of_a_setup_is_read_as_that_setup() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            setup: EngineSetup,
        }
        let setup = EngineSetup {
            model: DispatchModel::HalfSync,
            io: IoKind::Rings,
            wait: WaitPolicy::SpinThenPark,
            promotion: PromotionPolicy::Strict,
            batch: 8,
        };
        let read =
            <Command as clap::Parser>::parse_from(["subject".to_owned()].into_iter().chain(setup.to_arguments()));
        assert_eq!(read.setup.to_arguments(), setup.to_arguments());
        assert_eq!(value_of(&WAITS, "sleep"), Err("expected one of spin, spin-then-park, park".to_owned()));
    }

    #[test]
    fn a_bucket_holds_latencies_of_its_least_value_and_above() {
        for ns in [0, 1, 31, 32, 33, 63, 64, 1_000, 123_456_789, u64::MAX / 2] {
            let least = bucket_ns(bucket(ns));
            assert!(least <= ns && ns - least <= ns / 32, "{ns}: {least}");
        }
    }
}
