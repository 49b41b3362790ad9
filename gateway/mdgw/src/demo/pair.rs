//! A pair on one machine: two gateways, an exchange simulator with lossy lines, a subscriber and a monitor of the
//! output. The leading gateway is in turn asked to hand over, paused (SIGSTOP), and killed (SIGKILL).
//!
//! A paused process continues later with its old books and does not know how long it slept; its fence must stop it from
//! publishing. The peer cannot detect the pause, so it waits until the lease expires. The sentinel of a killed gateway
//! announces the death immediately. A restarted gateway copies the books from its peer, and is eligible when both
//! agree.
//!
//! Gateways and exchange simulator are separate processes, as in production, so that signals end them without cleanup.
//! The subscriber and the monitor run in this process, which sends the signals.

mod output_monitor;
mod process;

use std::{
    fs,
    io::Write as _,
    net::SocketAddrV4,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use mdgw_election::auth::Nonce;
use mdgw_feeds::{channel::ChannelConfig, identity::Feed, time::TradingDate};
use mdgw_runtime::config::Resolved;
use mdgw_simulator::{
    itch_generator::ItchDay,
    reference::{self, StreamDigest},
    source::FeedSource,
};
use mdgw_status::control::{ControlError, Request, send_request};
use mdgw_sys::clock::unix_now;
use mdgw_tools::verify::Verdict;

use self::{
    output_monitor::OutputMonitor,
    process::{Process, this_program},
};
use super::{DemoAddresses, PortReservation, Received, Subscription, reference_config, toml_text};

/// Options of the demonstration.
#[derive(Clone, Debug)]
pub(crate) struct PairOptions {
    /// Messages in the synthetic session.
    pub messages: u64,
    /// Trading date; `None`: today.
    pub date: Option<TradingDate>,
    /// Seed of the synthetic session and of the injected faults.
    pub seed: u64,
    /// Packets per second.
    pub rate: f64,
    /// Probability that a line loses a packet.
    pub loss: f64,
    /// How long a gateway leads before the next fault.
    pub tenure: Duration,
    /// Lease profile: `default`, `fast` or `calm`.
    pub profile: String,
    /// Directory for logs and the capture of the output.
    pub directory: PathBuf,
}

/// An event of the demonstration.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PairEvent {
    /// Regular progress report.
    Progress {
        /// Messages received.
        received: u64,
        /// Messages expected.
        expected: u64,
        /// The gateway that publishes now; `None` before its first packet.
        leader: Option<Leader>,
    },
    /// A fault was injected into the leading gateway.
    FaultInjected {
        /// The gateway that led.
        leader: Leader,
        /// What was done to `leader`.
        fault: Fault,
        /// Time since the start.
        after: Duration,
    },
    /// The other gateway has published new content.
    TookOver {
        /// The gateway that publishes from now on, and its epoch.
        leader: Leader,
        /// From the last packet of the old leader to the first new content.
        blackout: Duration,
    },
    /// The gateway that was stopped or killed is eligible again.
    EligibleAgain {
        /// Node number of the gateway.
        node: u8,
        /// Time since the gateway was resumed or restarted.
        after: Duration,
    },
}

/// A fault of the leading gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Asked to hand over (`mdgw ha hand-over`).
    HandedOver,
    /// Paused (SIGSTOP) until the other gateway leads.
    Stopped,
    /// Killed (SIGKILL), and restarted once the other gateway leads.
    Killed,
}

/// One change of leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairChange {
    /// The fault of the previous leader.
    pub fault: Fault,
    /// The gateway that took over, and its epoch.
    pub leader: Leader,
    /// From the last packet of the old leader to the first new content.
    pub blackout: Duration,
    /// From when the previous leader was resumed or restarted until it was eligible again.
    pub eligible_after: Duration,
}

/// The publishing gateway, as identified by its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    /// Node number.
    pub node: u8,
    /// Count of the epoch.
    pub epoch: u64,
}

/// Result of the demonstration.
#[derive(Debug)]
pub(crate) struct PairReport {
    /// Packets and messages of the feed.
    pub played: (u64, u64),
    /// Changes of leadership, in order.
    pub changes: Vec<PairChange>,
    /// Digest of the reference output.
    pub expected: StreamDigest,
    /// Digest of the received output.
    pub received: StreamDigest,
    /// Messages in gaps that were declared.
    pub gap_messages: u64,
    /// Messages lost between gateways and subscriber.
    pub lost_messages: u64,
    /// Verdict on the published output.
    pub verdict: Verdict,
    /// Capture of the published output.
    pub capture: PathBuf,
    /// From the first packet to the last record.
    pub elapsed: Duration,
    /// Whether the demonstration was interrupted.
    pub was_interrupted: bool,
}

impl PairReport {
    /// Whether no message was lost, duplicated or fenced wrongly, and at least one fault was injected.
    #[must_use]
    pub(crate) fn is_correct(&self) -> bool {
        self.is_lossless() && (self.was_interrupted || !self.changes.is_empty())
    }

    /// Whether the session ended before the first fault, so that the run shows nothing.
    #[must_use]
    pub(crate) fn is_too_short(&self) -> bool {
        self.is_lossless() && !self.was_interrupted && self.changes.is_empty()
    }

    fn is_lossless(&self) -> bool {
        let is_equal = self.expected == self.received && self.gap_messages == 0 && self.lost_messages == 0;
        is_equal && self.verdict.is_kept()
    }
}

/// Runs the demonstration; `on_event` is called for each event, and `stop` ends the run early.
///
/// # Errors
/// If a process cannot be started, or no gateway takes over.
pub(crate) fn run(
    options: &PairOptions,
    stop: &AtomicBool,
    on_event: &mut dyn FnMut(PairEvent),
) -> anyhow::Result<PairReport> {
    fs::create_dir_all(&options.directory).with_context(|| format!("make {}", options.directory.display()))?;
    let scratch = tempfile::tempdir().context("create a temporary directory")?;
    let mut ports = PortReservation::default();
    let addresses = DemoAddresses::reserve(&mut ports)?;
    let other_retransmission = ports.reserve()?;
    let date = options.date.unwrap_or_else(|| TradingDate::in_new_york(unix_now()));
    let link = [ports.reserve()?, ports.reserve()?];
    let setup = DemoSetup { options, addresses, other_retransmission, link, date, scratch: scratch.path() };
    make_key(&setup.key()).context("create the key of the pair link")?;

    let played = FeedSource::Itch(ItchDay {
        seed: options.seed,
        message_count: options.messages,
        stock_count: INSTRUMENTS,
        ..ItchDay::default()
    });
    let (expected, packets, messages) = reference::digest(&played, setup.reference()?)?;
    let capture = options.directory.join("published.pcap");
    let monitor = OutputMonitor::start(addresses.output, &capture)?;
    let subscription = Subscription::start(&addresses)?;
    drop(ports);
    let mut gateways = [setup.gateway(1)?, setup.gateway(2)?];
    for (node, gateway) in (1..).zip(&mut gateways) {
        gateway.wait_until_eligible(&setup.control_socket(node), STEP_TIMEOUT)?;
    }

    let started = Instant::now();
    let mut exchange = setup.exchange()?;
    let mut changes = Vec::new();
    let mut led_since = Instant::now();
    let mut last = (0, Instant::now());
    let was_interrupted = loop {
        let received = subscription.messages();
        on_event(PairEvent::Progress { received, expected: expected.messages, leader: monitor.leader() });
        if received != last.0 {
            last = (received, Instant::now());
        }
        let is_over = received >= expected.messages || last.1.elapsed() > IDLE_TIMEOUT;
        if is_over || stop.load(Ordering::Relaxed) {
            break stop.load(Ordering::Relaxed);
        }
        exchange.ensure_running()?;
        // The exchange must still have messages left for the new leader.
        let is_time = led_since.elapsed() >= options.tenure && received < expected.messages / 8 * 7;
        if is_time && received > 0 {
            let fault = FAULTS[changes.len() % FAULTS.len()];
            let leader = monitor.leader().context("no gateway leads")?;
            let gateway = gateways.get_mut(usize::from(leader.node).wrapping_sub(1));
            let gateway = gateway.with_context(|| format!("unknown node {}", leader.node))?;
            let control = setup.control_socket(leader.node);
            let after = started.elapsed();
            match fault {
                Fault::HandedOver => match send_request(&control, &Request::HandOver { group: None, target: None }) {
                    Ok(_) => {}
                    // After a stall the gateway may have just lost leadership: try again with the next leader.
                    Err(ControlError::Refused(_)) => {
                        led_since = Instant::now();
                        continue;
                    }
                    Err(error) => return Err(error).context("hand over"),
                },
                Fault::Stopped => gateway.pause()?,
                Fault::Killed => gateway.kill()?,
            }
            on_event(PairEvent::FaultInjected { leader, fault, after });
            let (successor, blackout) = monitor.wait_for_content_after(leader, STEP_TIMEOUT)?;
            on_event(PairEvent::TookOver { leader: successor, blackout });
            let resumed_at = Instant::now();
            match fault {
                Fault::HandedOver => {}
                Fault::Stopped => gateway.resume()?,
                Fault::Killed => *gateway = setup.gateway(leader.node)?,
            }
            gateway.wait_until_eligible(&control, STEP_TIMEOUT)?;
            let eligible_after = resumed_at.elapsed();
            if fault != Fault::HandedOver {
                on_event(PairEvent::EligibleAgain { node: leader.node, after: eligible_after });
            }
            changes.push(PairChange { fault, leader: successor, blackout, eligible_after });
            led_since = Instant::now();
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let elapsed = started.elapsed();
    exchange.terminate(STEP_TIMEOUT)?;
    for gateway in gateways {
        gateway.terminate(STEP_TIMEOUT)?;
    }
    let Received { digest, gap_messages, lost_messages } = subscription.stop()?;
    let verdict = monitor.stop()?;
    Ok(PairReport {
        played: (packets, messages),
        changes,
        expected,
        received: digest,
        gap_messages,
        lost_messages,
        verdict,
        capture,
        elapsed,
        was_interrupted,
    })
}

/// Settings shared by all processes.
#[derive(Clone, Copy, Debug)]
struct DemoSetup<'a> {
    options: &'a PairOptions,
    addresses: DemoAddresses,
    /// Address of the second gateway's retransmission service.
    other_retransmission: SocketAddrV4,
    /// Link addresses of the two gateways.
    link: [SocketAddrV4; 2],
    date: TradingDate,
    scratch: &'a Path,
}

impl DemoSetup<'_> {
    fn gateway(&self, node: u8) -> anyhow::Result<Process> {
        let config = self.scratch.join(format!("gw{node}.toml"));
        fs::write(&config, self.config_text(node)).with_context(|| format!("write {}", config.display()))?;
        let date = self.date.to_string();
        let mut command = this_program()?;
        command.arg("run").arg(&config).args(["--date", &date]);
        Process::start(command, &format!("gw{node}"), &self.options.directory)
    }

    fn exchange(&self) -> anyhow::Result<Process> {
        let DemoAddresses { line_a, line_b, requests, .. } = self.addresses;
        let PairOptions { messages, seed, rate, loss, .. } = self.options;
        let mut command = this_program()?;
        command.args(["sim", "--interface", "127.0.0.1", "--linger-s", "600", "--json"]);
        for (key, value) in [
            ("--line", line_a.to_string()),
            ("--line", line_b.to_string()),
            ("--request-server", requests.to_string()),
            ("--messages", messages.to_string()),
            ("--instruments", INSTRUMENTS.to_string()),
            ("--seed", seed.to_string()),
            ("--rate", rate.to_string()),
            ("--loss", loss.to_string()),
            ("--reorder", (loss / 2.0).to_string()),
            ("--duplicate", (loss / 2.0).to_string()),
        ] {
            command.args([key, &value]);
        }
        Process::start(command, "exchange", &self.options.directory)
    }

    fn control_socket(&self, node: u8) -> PathBuf {
        self.scratch.join(format!("gw{node}.control"))
    }

    fn key(&self) -> PathBuf {
        self.scratch.join("key")
    }

    fn reference(&self) -> anyhow::Result<ChannelConfig> {
        let config = Resolved::from_text(Path::new("gw1.toml"), &self.config_text(1))?;
        if config.channels.is_empty() {
            bail!("the demonstration has no channel");
        }
        reference_config(&config, Some(self.date))
    }

    fn config_text(&self, node: u8) -> String {
        let DemoAddresses { line_a, line_b, output, requests, .. } = self.addresses;
        let retransmission = if node == 1 { self.addresses.retransmission } else { self.other_retransmission };
        let (peer, profile, feed) = (3 - node, &self.options.profile, Feed::NasdaqItch);
        let at = |name: &str| toml_text(&self.scratch.join(format!("gw{node}.{name}")));
        let [state, log, audit] = ["state", "log", "audit"].map(at);
        let control = toml_text(&self.control_socket(node));
        let election = toml_text(&self.scratch.join("election"));
        let [mut end, mut peer_end] = self.link;
        if node != 1 {
            std::mem::swap(&mut end, &mut peer_end);
        }
        let key = toml_text(&self.key());
        format!(
            "[gateway]\nnode = {node}\nstate_file = {state}\nlog_dir = {log}\naudit_file = {audit}\n\
             control_socket = {control}\nsegment_bytes = 16777216\nretention_bytes = 134217728\n\
             [[pool]]\nname = \"demo\"\nthreads = 1\nwait = \"park\"\n\
             [[channel]]\nid = 1\nname = \"demo\"\nfeed = \"{feed}\"\norders_max = 1000000\nlevels_max = 500000\n\
             [[channel.line]]\nname = \"A\"\ngroup = \"{line_a}\"\ninterface = \"127.0.0.1\"\n\
             [[channel.line]]\nname = \"B\"\ngroup = \"{line_b}\"\ninterface = \"127.0.0.1\"\n\
             [channel.recovery]\nserver = \"{requests}\"\n\
             [[output]]\ngroups = [1]\nheartbeat_ms = 100\n\
             [[output.line]]\naddress = \"{output}\"\ninterface = \"127.0.0.1\"\nloopback = true\n\
             [retransmission]\nlisten = \"{retransmission}\"\nallowed = [\"127.0.0.0/8\"]\n\
             [election]\nbackend = \"file\"\nname = \"gw{node}\"\nprofile = \"{profile}\"\n\
             [election.file]\ndirectory = {election}\n\
             [election.link]\nlisten = \"{end}\"\npeer = \"{peer_end}\"\nkey_file = {key}\n\
             [[election.peer]]\nnode = {peer}\nname = \"gw{peer}\"\n"
        )
    }
}

/// Creates a key for this demonstration only.
fn make_key(path: &Path) -> anyhow::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    for _ in 0..4 {
        write!(file, "{:016x}", Nonce::random()?.number())?;
    }
    Ok(())
}

/// Faults, in turn. A hand-over does not go back to the gateway that was just paused, since that gateway has detected
/// its stall.
const FAULTS: [Fault; 3] = [Fault::HandedOver, Fault::Stopped, Fault::Killed];
/// Instruments of the synthetic session.
const INSTRUMENTS: u16 = 1_000;
/// Longer than any step takes on any machine; a step that takes longer hangs.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// After this time without a new message the run ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval at which progress and leader are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
