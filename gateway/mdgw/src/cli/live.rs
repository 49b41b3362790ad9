//! `mdgw live`: serves official DBN live clients from the publication logs.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use mdgw_journal::SymbolsService;
use mdgw_live::{
    ChannelSource, JournalSource,
    open_sessions::{SessionPhase, SessionStatus},
    server::{LiveConfig, LiveCounts, LiveLimits, LiveMonitor, LiveServer},
};
use mdgw_runtime::{
    config::{Resolved, resolved::LiveSettings},
    gateway::{LiveMetrics, ProgramAdmin},
};
use mdgw_status::{
    control::{ControlServer, ReloadRequester, Request, Response, reload_queue},
    snapshot::{ListenerSnapshot, Snapshot, SubscriberSnapshot},
};
use mdgw_sys::clock::{mono_now, unix_now};
use serde_json::json;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{Outcome, logging, print, protect_secrets, service_manager::ServiceManager, warn};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw live gateway.toml

The process reads the logs in gateway.log_dir and needs the table [live]. It runs beside the gateway, under a user \
that may read the logs, and is restarted without effect on the gateway.")]
pub(super) struct Args {
    /// Configuration file of the gateway.
    config: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = Resolved::load(&args.config)?;
    let Some(live) = &config.live else { bail!("live {}: the table [live] is missing", args.config.display()) };
    let _log = logging::start(&config.log, Vec::new());
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("catch signals")?;
    protect_secrets()?;
    let server = LiveServer::start(server_config(&config, live))?;
    let (requester, requested) = reload_queue();
    let serve = |path: &PathBuf| serve_control(path, &server, &config, requester.clone());
    let _control = live.control_socket.as_ref().map(serve).transpose()?;
    let mut admin =
        ProgramAdmin::live(live.admin_listen.as_ref(), config.gateway.node).context("live: admin listener")?;
    let monitor = server.monitor();
    let mut reloads = Reloads::default();
    tracing::info!(address = %server.address(), channels = config.channels.len(), "live: listening");
    let mut service = ServiceManager::new();
    let mut is_ready = false;
    'running: loop {
        if !is_ready && server.is_current() {
            is_ready = true;
            tracing::info!("live: ready, all logs are read");
            service.ready();
        }
        for signal in signals.pending() {
            if signal != SIGHUP {
                break 'running;
            }
            // The log has the result.
            let _ = service.reload(|_| reloads.run(&server));
        }
        while let Some(request) = requested.next() {
            let outcome = service.reload(|_| reloads.run(&server));
            request.answer(outcome.map(|count| json!({ "config": live.key_file, "keys": count })));
        }
        // A start that is not complete reads logs, which may take long.
        service.feed();
        if server.has_failed() {
            bail!("live: a thread that reads a log stopped unexpectedly");
        }
        admin.turned(obstacle(&server, is_ready), || metrics(&monitor, live.queue_bytes_max, &reloads));
        std::thread::sleep(SIGNAL_INTERVAL);
    }
    drop(requested);
    service.stopping("stopping: ends its sessions", STOP_TIME);
    let counts = server.counts();
    server.stop();
    print(&format!(
        "connections {}, sessions {}, failed handshakes {}, refused {} (rate) and {} (address), too slow {}, bytes sent {}, skips {}\n",
        counts.connections,
        counts.sessions,
        counts.failed_handshakes,
        counts.refused_rate,
        counts.refused_address,
        counts.too_slow,
        counts.sent_bytes,
        counts.skips
    ))?;
    Ok(Outcome::Done)
}

/// Why clients cannot be served.
fn obstacle(server: &LiveServer, is_ready: bool) -> Option<&'static str> {
    if server.is_closed() {
        Some("no gateway writes the logs, the port is closed")
    } else if !server.is_accepting() {
        Some("the port is not open yet; see the log")
    } else if !is_ready {
        Some("logs are read")
    } else {
        None
    }
}

/// How often the keys were read again.
#[derive(Clone, Copy, Debug, Default)]
struct Reloads {
    done: u64,
    refused: u64,
}

impl Reloads {
    /// Reads the key file again and returns how many keys it has.
    fn run(&mut self, server: &LiveServer) -> Result<usize, String> {
        match server.reload_keys() {
            Ok(count) => {
                self.done += 1;
                tracing::info!(count, "live: keys reloaded");
                Ok(count)
            }
            Err(error) => {
                self.refused += 1;
                warn(&format!("live: reload failed, the keys stay as they were: {error}"));
                Err(error.to_string())
            }
        }
    }
}

/// What the admin listener exports.
fn metrics(monitor: &LiveMonitor, behind_bytes_max: u64, reloads: &Reloads) -> LiveMetrics {
    let LiveCounts {
        connections,
        sessions,
        refused_rate,
        refused_address,
        failed_handshakes,
        too_slow,
        sent_bytes,
        skips,
    } = monitor.counts();
    let open = monitor.sessions();
    let is_replaying = |session: &&SessionStatus| session.phase == SessionPhase::Replaying;
    LiveMetrics {
        connections,
        sessions,
        refused_rate,
        refused_address,
        failed_handshakes,
        too_slow,
        skips,
        sent_bytes,
        accepting: u64::from(monitor.is_accepting()),
        sessions_open: open.len() as u64,
        sessions_replaying: open.iter().filter(is_replaying).count() as u64,
        behind_max_bytes: open.iter().filter_map(|session| session.behind_bytes).max().unwrap_or_default(),
        behind_limit_bytes: behind_bytes_max,
        keys_reloaded: reloads.done,
        keys_refused: reloads.refused,
    }
}

/// Shows the sessions to `mdgw top` and `mdgw ha status`, and passes on requests to read the keys again.
fn serve_control(
    path: &Path,
    server: &LiveServer,
    config: &Resolved,
    requester: ReloadRequester,
) -> anyhow::Result<ControlServer> {
    let monitor = server.monitor();
    let node = config.gateway.node;
    let behind_bytes_max = config.live.as_ref().map_or(0, |live| live.queue_bytes_max);
    let answer = move |request| match request {
        Request::Snapshot {} => match serde_json::to_value(snapshot(&monitor, node, behind_bytes_max)) {
            Ok(snapshot) => Response::Ok(snapshot),
            Err(error) => Response::Refused(error.to_string()),
        },
        // The keys are in a file that live.key_file names, whatever the client's configuration is.
        Request::Reload { .. } => requester.reload(None),
        _ => Response::Refused(
            "this is mdgw live: it shows its sessions and reloads its keys, and the gateway answers the rest"
                .to_owned(),
        ),
    };
    ControlServer::start(path, answer).with_context(|| format!("listen at {}", path.display()))
}

fn snapshot(monitor: &LiveMonitor, node: u8, behind_bytes_max: u64) -> Snapshot {
    let counts = monitor.counts();
    let refused = [
        ("rate", counts.refused_rate),
        ("address", counts.refused_address),
        ("failed_handshakes", counts.failed_handshakes),
        ("too_slow", counts.too_slow),
    ];
    let refused = refused.into_iter().filter(|(_, count)| *count > 0);
    let listener = ListenerSnapshot {
        name: "live".to_owned(),
        received: counts.connections,
        refused: refused.map(|(reason, count)| (reason.to_owned(), count)).collect(),
    };
    Snapshot {
        source: format!("live clients of gateway {node}"),
        time_ns: unix_now().0,
        clock_ns: mono_now().0,
        listeners: vec![listener],
        subscribers: monitor.sessions().into_iter().map(|session| subscriber(session, behind_bytes_max)).collect(),
        ..Snapshot::default()
    }
}

fn subscriber(session: SessionStatus, behind_bytes_max: u64) -> SubscriberSnapshot {
    SubscriberSnapshot {
        peer: session.peer.to_string(),
        key: session.key,
        client: session.client,
        dataset: session.dataset.to_owned(),
        schemas: session.subscribed.schemas.to_string(),
        symbols: session.subscribed.symbols.map(|count| count as u64),
        phase: session.phase.name().to_owned(),
        policy: session.subscribed.policy.name().to_owned(),
        behind_bytes: session.behind_bytes,
        behind_bytes_max,
        unsent_bytes: session.unsent_bytes,
        sent_bytes: session.sent_bytes,
        skips: session.skips,
        began_ns: session.began_ns,
    }
}

/// Interval at which pending signals are checked.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// `TimeoutStopSec=` of the unit.
const STOP_TIME: Duration = Duration::from_secs(10);

fn server_config(config: &Resolved, live: &LiveSettings) -> LiveConfig {
    let journals = config.journal.as_ref().filter(|_| live.journal_days_max > 0);
    let journals =
        journals.map(|journal| JournalSource { directory: journal.directory.clone(), days_max: live.journal_days_max });
    let channels = config.channels.iter().map(|channel| ChannelSource {
        id: channel.id,
        feed: channel.feed,
        schemas: channel.schemas,
        log_directory: config.gateway.log_directory(channel.id),
        books: channel.book,
        journals: journals.clone(),
        symbols: config
            .retransmission
            .as_ref()
            .map(|service| Arc::new(SymbolsService::new(service.listen, channel.group, channel.id))),
    });
    LiveConfig {
        listen: SocketAddr::V4(live.listen),
        key_file: live.key_file.clone(),
        channels: channels.collect(),
        limits: LiveLimits {
            sessions_max: live.sessions_max,
            handshakes_max: live.handshakes_max,
            handshakes_per_second: live.handshakes_per_second,
            handshake_timeout_ns: live.handshake_timeout_ns,
            failures_per_minute: live.failures_per_minute,
            line_bytes_max: live.line_bytes_max,
            symbols_max: live.symbols_max,
            queue_bytes_max: live.queue_bytes_max,
            replays_max: live.replays_max,
            stall_ns: live.stall_ns,
            threads: live.threads,
        },
    }
}
