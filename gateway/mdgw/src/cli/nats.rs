//! `mdgw nats`: sinks the publication logs into streams of NATS JetStream.

use std::{path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, bail};
use mdgw_nats::{
    SinkChannel, SinkError,
    config::{Login, ServerConfig, SinkConfig, SinkCounts, StreamConfig, TlsFiles},
    sink::Sink,
    writer::WriterConfig,
};
use mdgw_runtime::{
    config::{
        Resolved,
        resolved::{ChannelSetup, NatsLogin, NatsSettings, NatsStorage},
    },
    gateway::{NatsMetrics, ProgramAdmin},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{Outcome, logging, outlive, print, protect_secrets, service_manager::ServiceManager, warn};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw nats gateway.toml

The process reads the logs in gateway.log_dir and needs the table [nats]. It runs beside the gateway, under a user \
that may read the logs, and is restarted without effect on the gateway. It goes on where its streams end.")]
pub(super) struct Args {
    /// Configuration file of the gateway.
    config: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = Resolved::load(&args.config)?;
    let Some(settings) = &config.nats else { bail!("nats {}: the table [nats] is missing", args.config.display()) };
    let _log = logging::start(&config.log, Vec::new());
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("catch signals")?;
    outlive(&[SIGHUP])?;
    protect_secrets()?;
    let sink = Sink::start(sink_config(&config, settings)).context("nats")?;
    let mut admin =
        ProgramAdmin::nats(settings.admin_listen.as_ref(), config.gateway.node).context("nats: admin listener")?;
    let servers = settings.servers.join(", ");
    tracing::info!(servers, channels = settings.channels.len(), "nats: started");
    let mut service = ServiceManager::new();
    let mut is_ready = false;
    while signals.pending().next().is_none() {
        match sink.failure() {
            None => {}
            // A fault while it ran, which a restart may mend.
            Some(SinkError::Stopped) => {
                warn(&format!("nats: {}", SinkError::Stopped));
                return Ok(Outcome::No);
            }
            Some(failure) => return Err(failure).context("nats"),
        }
        // Whether it writes or waits for a server: both are this process at work, and the gateway's start does not wait for a server.
        if !is_ready && sink.is_ready() {
            is_ready = true;
            tracing::info!("nats: ready");
            service.ready();
        }
        service.feed();
        let counts = sink.counts();
        let obstacle = match (is_ready, counts.failing) {
            (false, _) => Some("the sink has not tried to connect yet"),
            (true, 0) => None,
            (true, _) => Some("a stream cannot be written; see the log"),
        };
        admin.turned(obstacle, || metrics(&counts, settings.channels.len()));
        thread::sleep(SIGNAL_INTERVAL);
    }
    service.stopping("stopping: waits for acknowledgements", STOP_TIME);
    let counts = sink.stop();
    print(&format!(
        "messages {}, records {}, duplicates {}, gaps {}, holes {}, fenced {}, failures {}, disconnects {}\n",
        counts.messages,
        counts.records,
        counts.duplicates,
        counts.gaps,
        counts.holes,
        counts.fenced,
        counts.failures,
        counts.disconnects
    ))?;
    Ok(Outcome::Done)
}

/// What the admin listener exports.
fn metrics(counts: &SinkCounts, channels: usize) -> NatsMetrics {
    let SinkCounts { messages, records, duplicates, gaps, holes, fenced, failures, disconnects, writing, failing } =
        *counts;
    NatsMetrics {
        messages,
        records,
        duplicates,
        gaps,
        holes,
        fenced,
        failures,
        disconnects,
        failing: failing as u64,
        channels: channels as u64,
        channels_writing: writing as u64,
    }
}

/// Interval at which pending signals are checked.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
/// `TimeoutStopSec=` of the unit.
const STOP_TIME: Duration = Duration::from_secs(15);

fn sink_config(config: &Resolved, nats: &NatsSettings) -> SinkConfig {
    let chosen = nats.channels.iter().filter_map(|index| config.channels.get(*index));
    SinkConfig {
        server: ServerConfig {
            servers: nats.servers.clone(),
            login: match &nats.login {
                NatsLogin::None => Login::None,
                NatsLogin::Credentials(path) => Login::Credentials(path.clone()),
                NatsLogin::Token(path) => Login::Token(path.clone()),
                NatsLogin::User(user, path) => Login::User(user.clone(), path.clone()),
            },
            tls: nats.tls.clone().map(|tls| TlsFiles { ca_file: tls.ca_file, identity: tls.identity }),
            request_timeout: Duration::from_nanos(nats.ack_timeout_ns),
        },
        stream: StreamConfig {
            create: nats.create_stream,
            in_memory: nats.storage == NatsStorage::Memory,
            replicas: nats.replicas,
            bytes_max: nats.bytes_max,
            age_max: Duration::from_nanos(nats.age_max_ns),
            duplicate_window: Duration::from_nanos(nats.duplicate_window_ns),
        },
        channels: chosen.map(|channel| sink_channel(config, nats, channel)).collect(),
        writer: WriterConfig {
            node: config.gateway.node,
            has_peer: config.election.is_some(),
            takeover: Duration::from_nanos(nats.takeover_ns),
            ack_timeout: Duration::from_nanos(nats.ack_timeout_ns),
            in_flight_max: nats.in_flight_max,
        },
    }
}

fn sink_channel(config: &Resolved, nats: &NatsSettings, channel: &ChannelSetup) -> SinkChannel {
    SinkChannel {
        id: channel.id,
        feed: channel.feed,
        schemas: nats.schemas.unwrap_or(channel.schemas),
        log_directory: config.gateway.log_directory(channel.id),
        stream: format!("{}-{}", nats.stream, channel.feed.dataset().replace('.', "-")),
        subject_prefix: nats.subject_prefix.clone(),
    }
}
