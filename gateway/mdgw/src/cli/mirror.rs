//! `mdgw mirror`: receives a gateway's output and writes it to publication logs of this host.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::SocketAddrV4,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use mdgw_feeds::{
    drop_reason::{DropCounts, DropReason},
    identity::{ChannelId, GroupId},
};
use mdgw_runtime::{
    config::{
        PUBLISHED_BYTES_MAX, Resolved,
        resolved::{ChannelSetup, OutputConfig},
    },
    gateway::{MirrorGroupMetrics, MirrorMetrics, MirroredChannelRow, MirroredGroupRow, MirroredLog, ProgramAdmin},
};
use mdgw_subscriber::{ReceiverConfig, StartFrom, Subscriber, SubscriberConfig, SubscriberError};
use mdgw_sys::{alarm::Alarm, sockets::Interface};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{
    Outcome, error_chain, logging, outlive, print, protect_secrets,
    service_manager::ServiceManager,
    subscription::{is_refusal, line_address, senders_of, service_of},
    warn,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw mirror gateway.toml
  mdgw mirror gateway.toml --interface eth1 --channel 1,2
  mdgw mirror gateway.toml --retransmission 10.20.0.5:31100 --retransmission 10.20.0.6:31100

For a host that receives the output and has no gateway. The logs are made in gateway.log_dir, with the retention that the \
configuration has; mdgw live, mdgw journal, mdgw nats and readers in shared memory use them as those of a gateway. A \
restart goes on where the logs end: what was missed meanwhile is requested from the retransmission services. What nobody \
retransmits is a hole in the log.

Exit code 1: the host did not let it start, another process writes a log, or a fault stopped it.")]
pub(super) struct Args {
    /// Configuration file of the gateway.
    config: PathBuf,
    /// Channels to mirror; all by default.
    #[arg(long, value_delimiter = ',', value_name = "N")]
    channel: Vec<u16>,
    /// Interface to join on (name or address). Default: the configured interface of each line.
    #[arg(long, value_name = "INTERFACE")]
    interface: Option<Interface>,
    /// Retransmission service of a gateway; repeat for each gateway of the pair. Default: the configured one.
    #[arg(long, value_name = "ADDR:PORT")]
    retransmission: Vec<SocketAddrV4>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = Resolved::load(&args.config)?;
    let _log = logging::start(&config.log, Vec::new());
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("catch signals")?;
    outlive(&[SIGHUP])?;
    let context = || format!("mirror {}", args.config.display());
    let wanted = args.groups(&config).with_context(context)?;
    let opened = wanted.into_iter().map(|(id, output, channels)| args.open_group(&config, id, output, &channels));
    let mut groups: Vec<_> = match opened.collect::<anyhow::Result<_>>().with_context(context) {
        Ok(groups) => groups,
        // The host does not let it start, or another process still has a log: a restart may mend that.
        Err(failure) => {
            warn(&error_chain(&failure));
            return Ok(Outcome::No);
        }
    };
    let mut admin =
        ProgramAdmin::mirror(config.mirror_admin.as_ref(), config.gateway.node).context("mirror: admin listener")?;
    let reports: Vec<_> = groups.iter().map(|group| Mutex::new(Report::of(group))).collect();
    let stop = AtomicBool::new(false);
    let mut service = ServiceManager::new();
    let failures = thread::scope(|scope| {
        let threads = groups.iter_mut().zip(&reports);
        let threads: Vec<_> = threads.map(|(group, report)| scope.spawn(|| group.run(report, &stop))).collect();
        tracing::info!(directory = %config.gateway.log_dir.display(), "mirror: ready");
        service.ready();
        while signals.pending().next().is_none() && !threads.iter().any(thread::ScopedJoinHandle::is_finished) {
            let newest: Vec<_> = reports.iter().map(|report| lock(report).clone()).collect();
            if !newest.iter().any(Report::is_stuck) {
                service.feed();
            }
            admin.turned(obstacle(&newest), || MirrorMetrics(newest.into_iter().map(|report| report.row).collect()));
            thread::sleep(SIGNAL_INTERVAL);
        }
        stop.store(true, Ordering::Relaxed);
        service.stopping("stopping: writes what was received", STOP_TIME);
        let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ended
            .filter_map(|ended| match ended {
                Ok(received) => received.err().map(|error| anyhow!(error).context("mirror")),
                Err(_panic) => Some(anyhow!("mirror: a thread stopped unexpectedly")),
            })
            .collect::<Vec<_>>()
    });
    groups.iter().try_for_each(|group| print(&group.summary()))?;
    // A fault while it ran, which a restart may mend.
    failures.iter().for_each(|failure| warn(&error_chain(failure)));
    Ok(if failures.is_empty() { Outcome::Done } else { Outcome::No })
}

/// How long to wait for datagrams before the logs are maintained.
const POLL: Duration = Duration::from_millis(20);
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
/// How often a group's thread reports its metrics.
const METRICS_INTERVAL: Duration = Duration::from_millis(100);
/// A group's thread that has not reported for this long is stuck.
const TURN_MAX: Duration = Duration::from_secs(2);
/// How often losses are looked for. So each kind is logged once in this time, with its count.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// How long nothing may arrive. A leader sends a heartbeat each second, unless configured otherwise.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// `TimeoutStopSec=` of the unit.
const STOP_TIME: Duration = Duration::from_secs(20);

/// Id, output and channels of a group.
type WantedGroup<'config> = (GroupId, &'config OutputConfig, Vec<&'config ChannelSetup>);

impl Args {
    /// The wanted groups with their outputs and channels.
    fn groups<'config>(&self, config: &'config Resolved) -> anyhow::Result<Vec<WantedGroup<'config>>> {
        if let Some(unknown) = self.channel.iter().find(|id| config.channels.iter().all(|known| known.id.0 != **id)) {
            bail!("there is no channel {unknown}");
        }
        let mut groups = BTreeMap::<GroupId, Vec<&ChannelSetup>>::new();
        for channel in &config.channels {
            if self.channel.is_empty() || self.channel.contains(&channel.id.0) {
                groups.entry(channel.group).or_default().push(channel);
            }
        }
        let with_output = groups.into_iter().map(|(group, channels)| {
            let output = config.outputs.iter().find(|output| output.groups.contains(&group));
            let output = output.with_context(|| format!("no [[output]] carries group {}", group.0))?;
            Ok((group, output, channels))
        });
        with_output.collect()
    }

    /// Opens logs and lines.
    fn open_group(
        &self,
        config: &Resolved,
        id: GroupId,
        output: &OutputConfig,
        setups: &[&ChannelSetup],
    ) -> anyhow::Result<MirroredGroup> {
        let mut channels = BTreeMap::new();
        for setup in setups {
            let log = MirroredLog::open(config, setup)?;
            channels.insert(setup.id, MirroredChannel { name: setup.name.clone(), log, logged: Counts::default() });
        }
        let mut subscription = self.subscription(config, output)?;
        subscription.receiver.group = id;
        subscription.receiver.channels = channels.keys().copied().collect();
        let positions = channels.iter().filter_map(|(id, channel)| Some((*id, channel.log.position()?)));
        subscription.receiver.resume = positions.collect();
        let subscriber = Subscriber::open(subscription)?;
        let silence = Silence { packets: 0, since: Instant::now(), is_logged: false };
        Ok(MirroredGroup { id, subscriber, channels, refused: BTreeMap::new(), silence })
    }

    fn subscription(&self, config: &Resolved, output: &OutputConfig) -> anyhow::Result<SubscriberConfig> {
        if !output.tag_key_files.is_empty() {
            protect_secrets()?;
        }
        let lines = output.lines.iter().map(|line| line_address(line, self.interface.as_ref()));
        let mut subscription = SubscriberConfig::new(lines.collect::<anyhow::Result<_>>()?);
        subscription.sources = senders_of(output.lines.iter());
        subscription.services = match self.retransmission.as_slice() {
            // Nobody answers on this host.
            [] if config.retransmission.as_ref().is_some_and(|service| service.listen.ip().is_unspecified()) => {
                bail!("retransmission.listen names no host: name the gateways' services with --retransmission")
            }
            [] => service_of(config).into_iter().collect(),
            given => given.to_vec(),
        };
        subscription.receiver = ReceiverConfig {
            tags: output.tag_policy()?,
            packet_bytes_max: usize::try_from(PUBLISHED_BYTES_MAX)?,
            start: StartFrom::OldestOfDay,
            ..ReceiverConfig::default()
        };
        Ok(subscription)
    }
}

/// What a group's thread reports to the main thread.
#[derive(Clone, Debug)]
struct Report {
    row: MirroredGroupRow,
    has_received: bool,
    turned_at: Instant,
}

impl Report {
    fn of(group: &MirroredGroup) -> Self {
        Self { row: group.metrics(), has_received: group.accepted() > 0, turned_at: Instant::now() }
    }

    fn is_stuck(&self) -> bool {
        self.turned_at.elapsed() >= TURN_MAX
    }
}

/// Why the mirror is not ready.
fn obstacle(reports: &[Report]) -> Option<&'static str> {
    let any = |is_so: fn(&MirrorGroupMetrics) -> bool| reports.iter().any(|report| is_so(report.row.counts()));
    // It may hang at a disk.
    if reports.iter().any(Report::is_stuck) {
        Some("the thread of a group makes no progress")
    } else if !reports.iter().all(|report| report.has_received) {
        Some("a group has received nothing yet")
    } else if any(|counts| u128::from(counts.silence_ns) >= SILENCE_MAX.as_nanos()) {
        Some("no packet and no heartbeat arrives for a group; see the log")
    } else {
        None
    }
}

fn lock(report: &Mutex<Report>) -> MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The channels of one group, which share lines. Owned by one thread.
#[derive(Debug)]
struct MirroredGroup {
    id: GroupId,
    subscriber: Subscriber,
    channels: BTreeMap<ChannelId, MirroredChannel>,
    /// Packets refused, as logged.
    refused: BTreeMap<&'static str, u64>,
    silence: Silence,
}

/// Whether anything arrives on the lines of a group. A leader sends heartbeats.
#[derive(Debug)]
struct Silence {
    packets: u64,
    since: Instant,
    is_logged: bool,
}

impl Silence {
    /// Logs that nothing arrives, and that something arrives again.
    fn update(&mut self, group: GroupId, packets: u64) {
        if packets > self.packets {
            (self.packets, self.since) = (packets, Instant::now());
            if std::mem::take(&mut self.is_logged) {
                let ends = Alarm::MirrorSilent.name();
                tracing::info!(ends, group = group.0, "mirror: the lines receive packets again");
            }
        } else if !self.is_logged && self.since.elapsed() >= SILENCE_MAX {
            self.is_logged = true;
            let alarm = Alarm::MirrorSilent.name();
            tracing::warn!(alarm, group = group.0, "mirror: no packet and no heartbeat arrives on any line");
        }
    }
}

#[derive(Debug)]
struct MirroredChannel {
    name: String,
    log: MirroredLog,
    /// Counts of what was logged last.
    logged: Counts,
}

/// What is missing in a channel's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    lost: u64,
    /// Sessions left without knowing their end, and starts without an answer.
    unknown: u64,
    /// Entries that readers miss, since there was no space for a segment.
    unwritten: u64,
}

impl MirroredGroup {
    /// Mirrors until `stop`. What is missing then is requested by the next start, so it is no loss.
    fn run(&mut self, newest: &Mutex<Report>, stop: &AtomicBool) -> Result<(), SubscriberError> {
        let [mut logged_at, mut reported_at] = [Instant::now(); 2];
        let mut received = Ok(0);
        while received.is_ok() && !stop.load(Ordering::Relaxed) {
            let Self { subscriber, channels, .. } = self;
            received = subscriber.poll(POLL, &mut |output| {
                if let Some(channel) = channels.get_mut(&output.channel) {
                    channel.log.accept(&output);
                }
            });
            for channel in channels.values_mut() {
                channel.log.flush();
                channel.log.maintain();
            }
            if reported_at.elapsed() >= METRICS_INTERVAL {
                reported_at = Instant::now();
                self.silence.update(self.id, self.accepted());
                *lock(newest) = Report::of(self);
            }
            if logged_at.elapsed() >= LOG_INTERVAL {
                logged_at = Instant::now();
                self.log_losses();
            }
        }
        self.log_losses();
        received.map(|_count| ())
    }

    /// Covers messages without output, and logs what is missing since the last report.
    fn log_losses(&mut self) {
        let alarm = Alarm::MirrorHole.name();
        for view in self.subscriber.receiver().channels() {
            let Some(MirroredChannel { name, log, logged }) = self.channels.get_mut(&view.id()) else { continue };
            if let Some((session, next)) = view.position() {
                log.cover_through(session, next);
            }
            let statistics = view.statistics();
            let now = Counts {
                lost: statistics.lost_messages,
                unknown: statistics.starts_unanswered + statistics.sessions_incomplete,
                unwritten: log.entries().1,
            };
            if now.lost > logged.lost {
                let (lost, total) = (now.lost - logged.lost, now.lost);
                tracing::warn!(
                    alarm,
                    channel = name,
                    lost,
                    total,
                    "mirror: messages were not received, the log has a hole"
                );
            }
            if now.unknown > logged.unknown {
                tracing::warn!(
                    alarm,
                    channel = name,
                    "mirror: no retransmission service answered (does [retransmission].allowed of the gateway include this host?); \
                     messages before the first that was received, or at the end of a session, may be missing"
                );
            }
            if now.unwritten > logged.unwritten {
                let entries = now.unwritten - logged.unwritten;
                tracing::warn!(alarm, channel = name, entries, "mirror: no space for the log, readers miss entries");
            }
            *logged = now;
        }
        for (reason, count) in self.refusals() {
            let logged = self.refused.insert(reason.name(), count).unwrap_or_default();
            if count > logged {
                let (alarm, group, packets) = (Alarm::MirrorRefused.name(), self.id.0, count - logged);
                tracing::warn!(alarm, group, packets, total = count, reason = reason.name(), "mirror: packets refused");
            }
        }
    }

    /// Packets that were not used, by reason.
    fn drops(&self) -> DropCounts {
        let mut drops = *self.subscriber.receiver().drops();
        drops.count_many(DropReason::SourceUnexpected, self.subscriber.statistics().sources_refused);
        drops
    }

    fn refusals(&self) -> Vec<(DropReason, u64)> {
        self.drops().iter().filter(|(reason, count)| is_refusal(*reason) && *count > 0).collect()
    }

    /// Packets that were used. A group that shares its lines with another one receives the packets of both.
    fn accepted(&self) -> u64 {
        let receiver = self.subscriber.receiver();
        receiver.packets().saturating_sub(receiver.drops().iter().map(|(_, count)| count).sum())
    }

    fn refused(&self) -> u64 {
        self.refusals().iter().map(|(_, count)| count).sum()
    }

    fn metrics(&self) -> MirroredGroupRow {
        let (receiver, statistics) = (self.subscriber.receiver(), self.subscriber.statistics());
        let counts = MirrorGroupMetrics {
            packets: receiver.packets(),
            refused: self.refused(),
            silence_ns: u64::try_from(self.silence.since.elapsed().as_nanos()).unwrap_or(u64::MAX),
            requests: statistics.requests,
            requests_failed: statistics.requests_failed,
            receive_buffer_bytes: u64::try_from(statistics.receive_buffer_bytes).unwrap_or(u64::MAX),
        };
        let channels = receiver.channels().filter_map(|view| {
            let channel = self.channels.get(&view.id())?;
            Some(MirroredChannelRow::new(&channel.name, view.statistics(), &channel.log))
        });
        MirroredGroupRow::new(self.id, counts, self.drops(), channels.collect())
    }

    fn summary(&self) -> String {
        let mut text = String::new();
        for view in self.subscriber.receiver().channels() {
            let Some(channel) = self.channels.get(&view.id()) else { continue };
            let (statistics, (entries, unwritten)) = (view.statistics(), channel.log.entries());
            let _ = writeln!(
                text,
                "channel {} ({}): messages {}, in gaps of the gateway {}, lost {}, entries {entries}, of them without space {unwritten}",
                view.id().0,
                channel.name,
                statistics.messages,
                statistics.gap_messages,
                statistics.lost_messages
            );
        }
        let (packets, refused) = (self.subscriber.receiver().packets(), self.refused());
        let _ = writeln!(text, "group {}: packets {packets}, refused {refused}", self.id.0);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report of a group that receives packets, and whose thread reported that long ago.
    fn report(turned_ago: Duration) -> Report {
        let row = MirroredGroupRow::new(
            GroupId(1),
            MirrorGroupMetrics { packets: 7, ..MirrorGroupMetrics::default() },
            DropCounts::default(),
            Vec::new(),
        );
        let turned_at = Instant::now().checked_sub(turned_ago);
        Report {
            row,
            has_received: true,
            turned_at: turned_at.unwrap_or_else(|| unreachable!("the host runs for longer")),
        }
    }

    /// The other threads go on, so nothing else shows it.
    #[test]
    fn a_thread_of_a_group_that_hangs_makes_the_mirror_stuck_and_not_ready() {
        let turns = report(TURN_MAX / 4);
        let hangs = report(TURN_MAX);
        assert!(!turns.is_stuck() && hangs.is_stuck());
        assert_eq!(obstacle(&[turns.clone(), turns.clone()]), None);
        let stuck = Some("the thread of a group makes no progress");
        assert_eq!(obstacle(&[turns.clone(), hangs.clone()]), stuck);
        // Whatever the last report before it hung says.
        assert_eq!(obstacle(&[Report { has_received: false, ..hangs }, turns]), stuck);
    }

    #[test]
    fn a_mirror_is_ready_once_each_group_receives() {
        let receives = report(Duration::ZERO);
        let nothing = Report { has_received: false, ..receives.clone() };
        let silent_for = |silence: Duration| {
            let counts = MirrorGroupMetrics {
                silence_ns: u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX),
                ..MirrorGroupMetrics::default()
            };
            let row = MirroredGroupRow::new(GroupId(2), counts, DropCounts::default(), Vec::new());
            Report { row, ..receives.clone() }
        };
        for (second, expected) in [
            (nothing, Some("a group has received nothing yet")),
            (silent_for(SILENCE_MAX), Some("no packet and no heartbeat arrives for a group; see the log")),
            (silent_for(SILENCE_MAX / 2), None),
        ] {
            assert_eq!(obstacle(&[receives.clone(), second.clone()]), expected, "{second:?}");
        }
    }
}
