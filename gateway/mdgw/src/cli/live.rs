//! `mdgw live`: serves official DBN live clients from the publication logs.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use mdgw_live::{
    ChannelSource,
    server::{LiveConfig, LiveLimits, LiveServer},
};
use mdgw_runtime::config::{Resolved, resolved::LiveSettings};
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
            service.reload(|_| match server.reload_keys() {
                Ok(count) => tracing::info!(count, "live: keys reloaded"),
                Err(error) => warn(&format!("live: reload failed, the keys stay as they were: {error}")),
            });
        }
        // A start that is not complete reads logs, which may take long.
        service.feed();
        if server.has_failed() {
            bail!("live: a thread that reads a log stopped unexpectedly");
        }
        std::thread::sleep(SIGNAL_INTERVAL);
    }
    service.stopping("stopping: ends its sessions", STOP_TIME);
    let counts = server.counts();
    server.stop();
    print(&format!(
        "connections {}, sessions {}, failed handshakes {}, refused {} (rate) and {} (address), too slow {}\n",
        counts.connections,
        counts.sessions,
        counts.failed_handshakes,
        counts.refused_rate,
        counts.refused_address,
        counts.too_slow
    ))?;
    Ok(Outcome::Done)
}

/// Interval at which pending signals are checked.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// `TimeoutStopSec=` of the unit.
const STOP_TIME: Duration = Duration::from_secs(10);

fn server_config(config: &Resolved, live: &LiveSettings) -> LiveConfig {
    let channels = config.channels.iter().map(|channel| ChannelSource {
        id: channel.id,
        feed: channel.feed,
        schemas: channel.schemas,
        log_directory: config.gateway.log_directory(channel.id),
        books: channel.book,
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
