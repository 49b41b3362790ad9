//! A pair on one machine: two gateways, an exchange whose lines lose packets, a subscriber and a witness of the output;
//! whichever gateway leads is asked to hand over, stopped, and killed, again and again.
//!
//! Stopped, a process comes back with its books and without knowing how long it slept: that is what a fence has to
//! stand. Nobody can tell of a stopped process, so its lease runs out; of a killed one its sentinel tells at once.
//! Started again, that one has its books from the other, and stands when both are alike.
//!
//! Gateways and exchange are processes of their own, as in earnest: a signal that leaves no time is what they get. The
//! subscriber and the witness live here, where the signals come from.

mod output_monitor;
mod process;

use std::{
    fs,
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
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
use super::{DemoAddresses, Received, Subscription, reference_config, toml_text};

/// What is shown.
#[derive(Clone, Debug)]
pub(crate) struct PairOptions {
    /// Messages of the made-up day.
    pub messages: u64,
    /// Trading date; `None`: today.
    pub date: Option<TradingDate>,
    /// Seed of the day and of the damage.
    pub seed: u64,
    /// Packets a second.
    pub rate: f64,
    /// Chance that a line loses a packet.
    pub loss: f64,
    /// How long a gateway leads before it is stopped or killed.
    pub tenure: Duration,
    /// Lease profile: `default`, `fast` or `relaxed`.
    pub profile: String,
    /// Where logs and the capture of the output go.
    pub directory: PathBuf,
}

/// What has just happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PairEvent {
    /// Feed received so far, of so many messages; who leads.
    Progress {
        /// Messages received.
        received: u64,
        /// Messages expected.
        expected: u64,
        /// Who publishes.
        leader: Option<Leader>,
    },
    /// Something was done to the leading gateway.
    FaultInjected {
        /// It.
        leader: Leader,
        /// How.
        fault: Fault,
        /// Since the beginning.
        after: Duration,
    },
    /// The other one has said something new.
    TookOver {
        /// It.
        leader: Leader,
        /// From the last packet of the old leader to the first new content.
        blackout: Duration,
    },
    /// The gateway that was stopped or killed stands for election again.
    EligibleAgain {
        /// Its node.
        node: u8,
        /// Since it went on, or was started anew.
        after: Duration,
    },
}

/// What is done to a leading gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Asked to hand over (`mdgw ha hand-over`).
    HandedOver,
    /// Stopped (SIGSTOP) until the other one leads.
    Stopped,
    /// Killed (SIGKILL), and started again once the other one leads.
    Killed,
}

/// One change of leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairChange {
    /// What was done to the gateway that led.
    pub fault: Fault,
    /// Who leads now.
    pub leader: Leader,
    /// From the last packet of the old leader to the first new content.
    pub blackout: Duration,
    /// From when the old one went on, or was started anew, until it stood for election again.
    pub eligible_after: Duration,
}

/// Who publishes, as its packets say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    /// Its node.
    pub node: u8,
    /// Count of its epoch.
    pub epoch: u64,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct PairReport {
    /// What was played: packets and messages.
    pub played: (u64, u64),
    /// What was done to leading gateways, and what it cost, in their order.
    pub changes: Vec<PairChange>,
    /// What had to come out.
    pub expected: StreamDigest,
    /// What the subscriber received.
    pub received: StreamDigest,
    /// Messages in gaps that were declared.
    pub gap_messages: u64,
    /// Messages lost between gateways and subscriber.
    pub lost_messages: u64,
    /// What the witness says of all that was published.
    pub verdict: Verdict,
    /// What was published.
    pub capture: PathBuf,
    /// From the first packet to the last record.
    pub elapsed: Duration,
    /// It was interrupted.
    pub was_interrupted: bool,
}

impl PairReport {
    /// Whether nothing was lost, doubled or fenced wrongly.
    #[must_use]
    pub(crate) fn is_correct(&self) -> bool {
        self.is_lossless() && (self.was_interrupted || !self.changes.is_empty())
    }

    /// Whether that shows nothing: the day was over before a leader was struck.
    #[must_use]
    pub(crate) fn is_too_short(&self) -> bool {
        self.is_lossless() && !self.was_interrupted && self.changes.is_empty()
    }

    fn is_lossless(&self) -> bool {
        let all_came = self.expected == self.received && self.gap_messages == 0 && self.lost_messages == 0;
        all_came && self.verdict.is_kept()
    }
}

/// Runs the demonstration; `on_event` is told how it goes, and `stop` ends it early.
///
/// # Errors
/// When a part can't be started, or nobody takes over.
pub(crate) fn run(
    options: &PairOptions,
    stop: &AtomicBool,
    on_event: &mut dyn FnMut(PairEvent),
) -> anyhow::Result<PairReport> {
    fs::create_dir_all(&options.directory).with_context(|| format!("make {}", options.directory.display()))?;
    let scratch = tempfile::tempdir().context("create a temporary directory")?;
    let addresses = DemoAddresses::with_free_ports().context("find free ports on loopback")?;
    let other = DemoAddresses::with_free_ports().context("find free ports on loopback")?;
    let date = options.date.unwrap_or_else(|| TradingDate::in_new_york(unix_now()));
    let link = free_link_addresses().context("find free ports on loopback")?;
    let setup = DemoSetup { options, addresses, other, link, date, scratch: scratch.path() };
    make_key(&setup.key()).context("create the key of the pair link")?;

    let played = FeedSource::Itch(ItchDay {
        seed: options.seed,
        message_count: options.messages,
        stock_count: INSTRUMENTS,
        ..ItchDay::default()
    });
    let (expected, packets, messages) = reference::digest(&played, setup.reference()?)?;
    let capture = options.directory.join("published.pcap");
    let witness = OutputMonitor::start(addresses.output, &capture)?;
    let subscription = Subscription::start(&addresses)?;
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
        on_event(PairEvent::Progress { received, expected: expected.messages, leader: witness.leader() });
        if received != last.0 {
            last = (received, Instant::now());
        }
        let is_over = received >= expected.messages || last.1.elapsed() > IDLE_TIMEOUT;
        if is_over || stop.load(Ordering::Relaxed) {
            break stop.load(Ordering::Relaxed);
        }
        exchange.ensure_running()?;
        // The exchange must still have something new to say afterwards.
        let is_time = led_since.elapsed() >= options.tenure && received < expected.messages / 8 * 7;
        if is_time && received > 0 {
            let fault = FAULTS[changes.len() % FAULTS.len()];
            let leader = witness.leader().context("no gateway leads")?;
            let gateway = gateways.get_mut(usize::from(leader.node).wrapping_sub(1));
            let gateway = gateway.with_context(|| format!("unknown node {}", leader.node))?;
            let control = setup.control_socket(leader.node);
            let after = started.elapsed();
            match fault {
                Fault::HandedOver => match send_request(&control, &Request::HandOver { group: None, target: None }) {
                    Ok(_) => {}
                    // On a machine that stalls it may have lost leadership just now: the next one is asked.
                    Err(ControlError::Refused(_)) => {
                        led_since = Instant::now();
                        continue;
                    }
                    Err(error) => return Err(error).context("hand over"),
                },
                Fault::Stopped => gateway.stop()?,
                Fault::Killed => gateway.kill()?,
            }
            on_event(PairEvent::FaultInjected { leader, fault, after });
            let (successor, blackout) = witness.wait_for_content_after(leader, STEP_TIMEOUT)?;
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
    exchange.end(STEP_TIMEOUT)?;
    for gateway in gateways {
        gateway.end(STEP_TIMEOUT)?;
    }
    let Received { digest, gap_messages, lost_messages } = subscription.stop()?;
    let verdict = witness.stop()?;
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

/// Everything that the parts have in common.
#[derive(Clone, Copy, Debug)]
struct DemoSetup<'a> {
    options: &'a PairOptions,
    addresses: DemoAddresses,
    /// Ports of the second gateway.
    other: DemoAddresses,
    /// Ends of the link between the two.
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
        let retransmission = if node == 1 { self.addresses.retransmission } else { self.other.retransmission };
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

/// Ports that nobody has just now.
fn free_link_addresses() -> io::Result<[SocketAddrV4; 2]> {
    let probes = [UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?];
    let mut endpoints = [SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0); 2];
    for (end, probe) in endpoints.iter_mut().zip(&probes) {
        end.set_port(probe.local_addr()?.port());
    }
    Ok(endpoints)
}

/// A key of this demonstration alone.
fn make_key(path: &Path) -> anyhow::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    for _ in 0..4 {
        write!(file, "{:016x}", Nonce::random()?.number())?;
    }
    Ok(())
}

/// What is done to whoever leads, in turn. A gateway that was stopped knows that it stalled, so the one that is asked
/// to lead is another.
const FAULTS: [Fault; 3] = [Fault::HandedOver, Fault::Stopped, Fault::Killed];
/// Instruments of the synthetic session.
const INSTRUMENTS: u16 = 1_000;
/// Nothing takes as long on any machine; whatever takes longer hangs.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// Nothing new for so long after the exchange has said everything: nothing more will come.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two looks at who leads.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
