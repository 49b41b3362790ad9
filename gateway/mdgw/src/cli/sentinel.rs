//! `mdgw sentinel`: watches gateway processes of this host and announces their death to the peers.

use std::{
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use mdgw_election::sentinel::{
    process_setup::prepare_process,
    watch::{self, GatewayWatch},
};
use mdgw_runtime::config::resolved::{LogConfig, LogFormat};
use mdgw_status::control::listen;
use mdgw_sys::cgroup::enter_sibling;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{Outcome, logging, outlive, protect_secrets, service_manager::ServiceManager};

#[derive(Debug, clap::Args)]
#[group(id = "source", required = true, multiple = false)]
pub(super) struct SentinelSource {
    /// Listen on this Unix socket and watch every gateway that connects (started by the service manager).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Watch the gateway at the other end of standard input (started by the gateway).
    #[arg(long)]
    inherited: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw sentinel --socket /run/mdgw/sentinel
  mdgw sentinel --inherited --priority 0")]
pub(super) struct Args {
    #[command(flatten)]
    source: SentinelSource,
    /// SCHED_FIFO priority; 0: default scheduling class.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=99))]
    priority: u8,
    /// Write the log as JSON: a gateway whose log is JSON starts its sentinel so.
    #[arg(long)]
    json_log: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    // The journal counts a line on the gateway's standard error as the gateway's unit's, but an entry as that of the cgroup.
    let format = match (args.json_log, args.source.inherited) {
        (true, _) => LogFormat::Json,
        (false, true) => LogFormat::Text,
        (false, false) => LogFormat::Auto,
    };
    let _log = logging::start(&LogConfig { format, ..LogConfig::default() }, Vec::new());
    for refused in prepare_process(args.priority) {
        tracing::warn!("sentinel: continuing without permission to {refused}");
    }
    // After the files in /proc were written: from here on they belong to root.
    protect_secrets()?;
    match &args.source.socket {
        None => {
            // A service manager sends SIGTERM to all processes of the gateway's unit at once, and a terminal its signals to all in the
            // foreground. The gateway may still die while it hands over, so its sentinel ends with it, and not before.
            outlive(&[SIGTERM, SIGINT, SIGHUP])?;
            // Only a spawned sentinel: systemd starts a service in a cgroup of its own.
            if let Err(error) = enter_sibling() {
                tracing::info!(%error, "sentinel: could not enter a cgroup of its own: killing the gateway's cgroup \
                     also kills the sentinel");
            }
            let stream = std::io::stdin().as_fd().try_clone_to_owned().context("take the gateway's stream")?;
            watch(UnixStream::from(stream))
        }
        Some(path) => {
            outlive(&[SIGHUP])?;
            serve(path)
        }
    }
}

/// Watches each gateway that connects, on one thread per gateway, until the process is killed.
fn serve(path: &Path) -> anyhow::Result<Outcome> {
    let doing = |act: &str| format!("{act} {}", path.display());
    // For this user alone: a client that connects can have a death announced that is signed with the shared key.
    let listener = listen(path).with_context(|| doing("listen on"))?;
    tracing::info!(socket = %path.display(), "sentinel: ready");
    ServiceManager::new().ready();
    for stream in listener.incoming() {
        let stream = stream.with_context(|| doing("accept on"))?;
        let name = "mdgw-watch".to_owned();
        let spawned = thread::Builder::new().name(name).spawn(move || {
            if let Err(error) = watch(stream) {
                tracing::warn!("sentinel: {error:#}");
            }
        });
        spawned.context("start a thread")?;
    }
    Ok(Outcome::Done)
}

/// Watches one gateway until it stops or dies.
fn watch(mut stream: UnixStream) -> anyhow::Result<Outcome> {
    stream.set_read_timeout(Some(REGISTRATION_TIMEOUT)).context("set a time limit")?;
    let watch = GatewayWatch::accept(&mut stream, mdgw_stores::open).context("take over a gateway")?;
    let member = watch.registration().member.clone();
    tracing::info!(gateway = %member, recipients = watch.registration().recipients.len(), "sentinel: watching gateway");
    let outcome = watch.run().with_context(|| format!("watch {member}"))?;
    // Held until here: the closed stream shows the gateway that no sentinel watches it any more.
    drop(stream);
    match outcome {
        watch::Outcome::Clean => tracing::info!(gateway = %member, "sentinel: gateway stopped cleanly"),
        watch::Outcome::Announced { cause, noticed_at, took_ns, refused, records } => {
            let detected_ns = noticed_at.0;
            tracing::warn!(
                gateway = %member,
                ?cause,
                detected_ns,
                took_ns,
                refused,
                ?records,
                "sentinel: gateway died: remaining threads killed, death announced"
            );
        }
    }
    Ok(Outcome::Done)
}

/// Longest wait for a watch registration. A gateway sends it immediately after it connects.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
