//! The data path on one machine: an exchange simulator with lossy lines, a gateway and a subscriber. The received
//! records are compared with a reference that is decoded without loss.

pub(crate) mod pair;

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket},
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use mdgw_captures::{
    impairment::{LineImpairment, LossPolicy},
    pacer::Pace,
};
use mdgw_feeds::{
    arbiter::ArbiterConfig,
    channel::ChannelConfig,
    identity::{Feed, GroupId},
    time::TradingDate,
};
use mdgw_runtime::{
    config::Resolved,
    gateway::{Gateway, GatewayReport, Overrides},
};
use mdgw_simulator::{
    exchange::{self, Exchange, ExchangeConfig, ExchangeLine},
    itch_generator::ItchDay,
    reference::{self, StreamDigest},
    source::FeedSource,
};
use mdgw_subscriber::{Item, LineAddress, ReceiverConfig, Subscriber, SubscriberConfig};
use mdgw_sys::{clock::unix_now, sockets::Interface};
use mdgw_tools::report::{Report, html};

/// Options of the demonstration.
#[derive(Clone, Debug)]
pub(crate) struct DemoOptions {
    /// Play this capture instead of a synthetic Nasdaq session.
    pub capture: Option<PathBuf>,
    /// Trading date; `None`: the feed's own date, or today.
    pub date: Option<TradingDate>,
    /// Messages in the synthetic session.
    pub messages: u64,
    /// Seed of the synthetic session and of the injected faults.
    pub seed: u64,
    /// Packets per second.
    pub rate: f64,
    /// Probability that a line loses a packet; half of it for reordering and for duplication.
    pub loss: f64,
    /// Threads of the gateway's pool.
    pub threads: usize,
    /// I/O backend: `auto`, `io_uring` or `epoll`.
    pub io: String,
    /// Directory for the report and the latency log.
    pub directory: PathBuf,
}

/// Progress of the demonstration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DemoProgress {
    /// Messages received by the subscriber; only messages that produce records are counted.
    pub received: u64,
    /// Messages that the subscriber should receive.
    pub expected: u64,
}

/// Result of the demonstration.
#[derive(Debug)]
pub(crate) struct DemoReport {
    /// Feed that was sent.
    pub feed: Feed,
    /// Packets and messages of the feed, each counted once.
    pub played: (u64, u64),
    /// Counts of the exchange simulator.
    pub exchange: exchange::ExchangeReport,
    /// Report of the gateway.
    pub gateway: GatewayReport,
    /// Digest of the reference output.
    pub expected: StreamDigest,
    /// Digest of the received output.
    pub received: StreamDigest,
    /// Messages in gaps that the gateway declared.
    pub gap_messages: u64,
    /// Messages lost between gateway and subscriber.
    pub lost_messages: u64,
    /// Path of the HTML report.
    pub report_page: PathBuf,
    /// From the first packet to the last record.
    pub elapsed: Duration,
    /// Whether the demonstration was interrupted.
    pub was_interrupted: bool,
}

impl DemoReport {
    /// Whether every expected record was received once, in order, with the expected content.
    #[must_use]
    pub(crate) fn is_correct(&self) -> bool {
        self.expected == self.received && self.gap_messages == 0 && self.lost_messages == 0
    }
}

/// Runs the demonstration; `on_progress` is called repeatedly, and `stop` ends the run early.
///
/// # Errors
/// If a part cannot be started, or the feed is unknown.
pub(crate) fn run(
    options: &DemoOptions,
    stop: &AtomicBool,
    on_progress: &mut dyn FnMut(DemoProgress),
) -> anyhow::Result<DemoReport> {
    let source = match &options.capture {
        Some(path) => FeedSource::Capture { path: path.clone(), date: options.date },
        None => FeedSource::Itch(ItchDay {
            seed: options.seed,
            message_count: options.messages,
            stock_count: 1_000,
            live_orders: 50_000,
            ..ItchDay::default()
        }),
    };
    let Some(feed) = reference::recognise_feed(&source)? else {
        bail!(
            "the capture contains no packets of a known \
         feed"
        )
    };
    fs::create_dir_all(&options.directory).with_context(|| format!("make {}", options.directory.display()))?;
    let scratch = tempfile::tempdir().context("create a temporary directory")?;
    let mut ports = PortReservation::default();
    let addresses = DemoAddresses::reserve(&mut ports)?;
    let text = config_text(options, feed, &addresses, scratch.path());
    let config = Resolved::from_text(Path::new("demo.toml"), &text)?;

    // ITCH carries no date, so today is assumed; IEX carries its own.
    let date = options.date.or_else(|| feed.is_by_order().then(|| TradingDate::in_new_york(unix_now())));
    let (expected, packets, messages) = reference::digest(&source, reference_config(&config, date)?)?;
    let subscription = Subscription::start(&addresses)?;
    drop(ports);
    let gateway = Gateway::start(&config, Overrides { date, ..Overrides::default() })?;
    let started = Instant::now();
    let exchange = Exchange::start(&exchange_config(options, source, feed, &addresses))?;
    let was_interrupted = subscription.wait_for(&expected, &exchange, stop, on_progress);
    let elapsed = started.elapsed();

    // A truncated capture has been sent up to its damage; `mdgw replay` reports where that is.
    let exchange_report = exchange.report();
    drop(exchange);
    let received = subscription.stop()?;
    let gateway = gateway.stop()?;
    let report_page = write_page(options, &gateway)?;
    Ok(DemoReport {
        feed,
        played: (packets, messages),
        exchange: exchange_report,
        gateway,
        expected,
        received: received.digest,
        gap_messages: received.gap_messages,
        lost_messages: received.lost_messages,
        report_page,
        elapsed,
        was_interrupted,
    })
}

/// Addresses of one demonstration. Multicast groups of the administratively scoped block, on loopback.
#[derive(Clone, Copy, Debug)]
struct DemoAddresses {
    line_a: SocketAddrV4,
    line_b: SocketAddrV4,
    output: SocketAddrV4,
    requests: SocketAddrV4,
    retransmission: SocketAddrV4,
}

impl DemoAddresses {
    fn reserve(ports: &mut PortReservation) -> anyhow::Result<Self> {
        let [line_a, line_b, output] = [1, 2, 10].map(|last| Ipv4Addr::new(239, 255, 86, last));
        Ok(Self {
            line_a: SocketAddrV4::new(line_a, ports.reserve()?.port()),
            line_b: SocketAddrV4::new(line_b, ports.reserve()?.port()),
            output: SocketAddrV4::new(output, ports.reserve()?.port()),
            requests: ports.reserve()?,
            retransmission: ports.reserve()?,
        })
    }
}

/// Ports on loopback that are kept for this demonstration. Dropped, they are free for the processes and threads that
/// are about to open them.
///
/// They are below the kernel's usual ephemeral range, so the kernel assigns none of them to another socket after the
/// drop, nor to the local end of a connection attempt while a gateway restarts. Two demonstrations at once start their
/// search at different ports.
#[derive(Debug, Default)]
struct PortReservation {
    held: Vec<(TcpListener, UdpSocket)>,
}

impl PortReservation {
    /// An address on loopback whose port is free for TCP and UDP.
    fn reserve(&mut self) -> anyhow::Result<SocketAddrV4> {
        let count = u32::from(RESERVED_PORTS.end - RESERVED_PORTS.start);
        let first = std::process::id().wrapping_mul(PORTS_PER_DEMO);
        for offset in 0..count {
            let index = u16::try_from(first.wrapping_add(offset) % count).context("a range of ports")?;
            let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, RESERVED_PORTS.start + index);
            // A port that is in use is passed over.
            if let (Ok(tcp), Ok(udp)) = (TcpListener::bind(address), UdpSocket::bind(address)) {
                self.held.push((tcp, udp));
                return Ok(address);
            }
        }
        bail!("no free port on 127.0.0.1 between {} and {}", RESERVED_PORTS.start, RESERVED_PORTS.end - 1)
    }
}

/// Ports among which a demonstration looks for free ones.
const RESERVED_PORTS: Range<u16> = 10_240..12_000;
/// At least the ports that a demonstration of a pair uses.
const PORTS_PER_DEMO: u32 = 16;

fn config_text(options: &DemoOptions, feed: Feed, addresses: &DemoAddresses, scratch: &Path) -> String {
    let DemoAddresses { line_a, line_b, output, requests, retransmission } = addresses;
    // On loopback an answer arrives within a millisecond or is lost, so a short timeout is enough.
    let recovery = if feed.is_by_order() {
        format!("[channel.recovery]\nserver = \"{requests}\"\ntimeout_ms = 4\nattempts_max = 25\n")
    } else {
        String::new()
    };
    // The exchange simulator shares this machine, so it can stall for longer than a venue would. A feed without a
    // request server gets a gap timeout that covers such a stall.
    let limits = if feed.is_by_order() {
        "orders_max = 1000000\nlevels_max = 500000\nwindow_packets = 16384\n"
    } else {
        "gap_timeout_us = 500000\nwindow_packets = 16384\n"
    };
    let state = toml_text(&scratch.join("state.json"));
    let log = toml_text(&scratch.join("log"));
    let latency = toml_text(&options.directory);
    let (threads, io) = (options.threads, &options.io);
    format!(
        "[gateway]\nstate_file = {state}\nlog_dir = {log}\nsegment_bytes = 16777216\nretention_bytes = 134217728\n\
         [[pool]]\nname = \"demo\"\nthreads = {threads}\nio = \"{io}\"\nwait = \"park\"\n\
         [[channel]]\nid = 1\nname = \"demo\"\nfeed = \"{feed}\"\n{limits}\
         [[channel.line]]\nname = \"A\"\ngroup = \"{line_a}\"\ninterface = \"127.0.0.1\"\n\
         [[channel.line]]\nname = \"B\"\ngroup = \"{line_b}\"\ninterface = \"127.0.0.1\"\n\
         {recovery}\
         [[output]]\ngroups = [1]\n[[output.line]]\naddress = \"{output}\"\ninterface = \"127.0.0.1\"\nloopback = true\n\
         [retransmission]\nlisten = \"{retransmission}\"\nallowed = [\"127.0.0.0/8\"]\n\
         [latency]\ndirectory = {latency}\ninterval_ms = 250\n"
    )
}

fn toml_text(path: &Path) -> String {
    toml::Value::String(path.display().to_string()).to_string()
}

/// The configuration of the same channel with a single line, for the reference.
fn reference_config(config: &Resolved, date: Option<TradingDate>) -> anyhow::Result<ChannelConfig> {
    let mut reference = config.channels.first().context("the demonstration has a channel")?.channel_config();
    reference.arbiter = ArbiterConfig { lines: 1, ..ArbiterConfig::default() };
    reference.date = date;
    Ok(reference)
}

fn exchange_config(options: &DemoOptions, source: FeedSource, feed: Feed, addresses: &DemoAddresses) -> ExchangeConfig {
    let impairment = |skew_ns| LineImpairment {
        loss: options.loss,
        duplicate: options.loss / 2.0,
        reorder: options.loss / 2.0,
        skew_ns,
    };
    ExchangeConfig {
        feed: source,
        lines: vec![
            ExchangeLine { destination: addresses.line_a, impairment: impairment(0) },
            ExchangeLine { destination: addresses.line_b, impairment: impairment(30_000) },
        ],
        // IEX has no request server, so at least one line must deliver each packet.
        loss_policy: if feed.is_by_order() { LossPolicy::Independent } else { LossPolicy::NeverOnAllLines },
        seed: options.seed,
        pace: Pace::Rate(options.rate),
        interface: Some(Interface::LOOPBACK),
        request_server: feed.is_by_order().then_some(addresses.requests),
        answer_loss: options.loss,
    }
}

fn write_page(options: &DemoOptions, gateway: &GatewayReport) -> anyhow::Result<PathBuf> {
    let logs = gateway
        .latency
        .logs
        .iter()
        .map(|path| fs::read(path).map(|bytes| (path.clone(), bytes)))
        .collect::<io::Result<Vec<_>>>()
        .context("read the latency log")?;
    let mut page = String::new();
    html::write(&Report::of(&logs, None), &mut page)?;
    let path = options.directory.join("report.html");
    fs::write(&path, page).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// The subscriber, on a separate thread.
#[derive(Debug)]
struct Subscription {
    shared: Arc<SubscriptionState>,
    thread: std::thread::JoinHandle<anyhow::Result<()>>,
}

#[derive(Debug, Default)]
struct SubscriptionState {
    stop: AtomicBool,
    messages: AtomicU64,
    received: Mutex<Received>,
}

#[derive(Clone, Debug, Default)]
struct Received {
    digest: StreamDigest,
    gap_messages: u64,
    lost_messages: u64,
}

/// After this time without a new message, and with the exchange done, the run ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

impl Subscription {
    fn start(addresses: &DemoAddresses) -> anyhow::Result<Self> {
        let mut config = SubscriberConfig::new(vec![LineAddress::new(addresses.output, Ipv4Addr::LOCALHOST)]);
        config.services = vec![addresses.retransmission];
        config.receiver = ReceiverConfig { group: GroupId(1), ..ReceiverConfig::default() };
        let mut subscriber = Subscriber::open(config)?;
        let shared = Arc::new(SubscriptionState::default());
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("mdgw-subscriber".to_owned()).spawn(move || {
            let mut received = thread_shared.received.lock().unwrap_or_else(PoisonError::into_inner);
            while !thread_shared.stop.load(Ordering::Acquire) {
                subscriber.poll(Duration::from_millis(20), &mut |output| match output.item {
                    Item::Session => received.digest.session(output.session),
                    Item::Message { header, body } => {
                        received.digest.message(mdgw_feeds::identity::Sequence(header.sequence.get()), body);
                    }
                    Item::Gap(gap) => received.gap_messages += gap.count(),
                    Item::Lost(gap) => received.lost_messages += gap.count(),
                    Item::Definition { .. }
                    | Item::Snapshot { .. }
                    | Item::Repeated { .. }
                    | Item::Books(_)
                    | Item::State(_)
                    | Item::EndOfSession => {}
                })?;
                thread_shared.messages.store(received.digest.messages, Ordering::Relaxed);
            }
            Ok(())
        })?;
        Ok(Self { shared, thread })
    }

    /// Messages received so far.
    fn messages(&self) -> u64 {
        self.shared.messages.load(Ordering::Relaxed)
    }

    /// Waits until everything is received, nothing more is expected, or `stop` is set. Returns whether `stop` was set.
    fn wait_for(
        &self,
        expected: &StreamDigest,
        exchange: &Exchange,
        stop: &AtomicBool,
        on_progress: &mut dyn FnMut(DemoProgress),
    ) -> bool {
        let mut last = (0, Instant::now());
        loop {
            let received = self.shared.messages.load(Ordering::Relaxed);
            on_progress(DemoProgress { received, expected: expected.messages });
            if received != last.0 {
                last = (received, Instant::now());
            }
            let is_over = exchange.is_done() && (received >= expected.messages || last.1.elapsed() > IDLE_TIMEOUT);
            if is_over || stop.load(Ordering::Relaxed) {
                return stop.load(Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn stop(self) -> anyhow::Result<Received> {
        self.shared.stop.store(true, Ordering::Release);
        match self.thread.join() {
            Ok(outcome) => outcome?,
            Err(_) => bail!("the subscriber's thread panicked"),
        }
        let received = self.shared.received.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(received.clone())
    }
}
