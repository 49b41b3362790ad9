//! `mdgw journal`: writes the publication logs to DBN files.

use std::{
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use mdgw_journal::{
    Compression, JournalChannel, SymbolsService,
    journal::{Journal, JournalConfig, JournalCounts, Step},
};
use mdgw_runtime::{
    config::{
        Resolved,
        resolved::{JournalCompression, JournalSettings},
    },
    gateway::{JournalMetrics, ProgramAdmin},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{Outcome, logging, outlive, print, service_manager::ServiceManager};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw journal gateway.toml

The process reads the logs in gateway.log_dir and needs the table [journal]. It runs beside the gateway, under a user \
that may read the logs, and is restarted without effect on the gateway. What it leaves open, the next start continues.")]
pub(super) struct Args {
    /// Configuration file of the gateway.
    config: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = Resolved::load(&args.config)?;
    let Some(settings) = &config.journal else {
        bail!("journal {}: the table [journal] is missing", args.config.display())
    };
    let _log = logging::start(&config.log, Vec::new());
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("catch signals")?;
    outlive(&[SIGHUP])?;
    let mut journal = Journal::start(journal_config(&config, settings)).context("journal")?;
    let mut admin = ProgramAdmin::journal(settings.admin_listen.as_ref(), config.gateway.node)
        .context("journal: admin listener")?;
    // When all logs were read to their ends last.
    let mut current_at = Instant::now();
    tracing::info!(
        directory = %settings.directory.display(),
        channels = config.channels.len(),
        "journal: started"
    );
    let mut service = ServiceManager::new();
    let mut is_ready = false;
    while signals.pending().next().is_none() {
        let step = journal.step();
        // Whether it writes or waits for space: both are this process at work, and the gateway's start does not wait for a disk.
        if !is_ready && step != Step::Read {
            is_ready = true;
            tracing::info!("journal: ready");
            service.ready();
        }
        service.feed();
        if step == Step::Current {
            current_at = Instant::now();
        }
        let obstacle = match (journal.is_writing(), is_ready) {
            (false, _) => Some("not writing: no log is there yet, or the journal cannot write; see its log"),
            (true, false) => Some("logs are read"),
            (true, true) => None,
        };
        admin.turned(obstacle, || metrics(&journal, current_at));
        match step {
            Step::Read => {}
            Step::Current => thread::sleep(POLL_INTERVAL),
            Step::Paused => thread::sleep(PAUSE_INTERVAL),
        }
    }
    service.stopping("stopping: writes what was read", STOP_TIME);
    let counts = journal.counts();
    journal.finish().context("journal")?;
    tracing::info!("journal: stopped, open journals go on with the next start");
    print(&format!(
        "entries {}, closed {}, records in them {}, bytes {}, holes {}, stops {}\n",
        counts.entries, counts.closed, counts.closed_records, counts.closed_bytes, counts.closed_holes, counts.stops
    ))?;
    Ok(Outcome::Done)
}

/// What the admin listener exports.
fn metrics(journal: &Journal, current_at: Instant) -> JournalMetrics {
    let JournalCounts { entries, closed, closed_records, closed_bytes, closed_holes, stops } = journal.counts();
    JournalMetrics {
        entries,
        behind_ns: u64::try_from(current_at.elapsed().as_nanos()).unwrap_or(u64::MAX),
        writing: journal.is_writing().into(),
        stops,
        files_closed: closed,
        closed_records,
        closed_bytes,
        closed_holes,
    }
}

/// How long to sleep when the logs have nothing new: a fraction of the shortest `journal.flush_ms`.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long to sleep when nothing can be read or written.
const PAUSE_INTERVAL: Duration = Duration::from_millis(50);
/// `TimeoutStopSec=` of the unit.
const STOP_TIME: Duration = Duration::from_secs(60);

fn journal_config(config: &Resolved, settings: &JournalSettings) -> JournalConfig {
    let channels = config.channels.iter().map(|channel| JournalChannel {
        id: channel.id,
        feed: channel.feed,
        schemas: channel.schemas,
        log_directory: config.gateway.log_directory(channel.id),
        instruments_max: channel.book.instruments_max,
        symbols: config
            .retransmission
            .as_ref()
            .map(|service| Arc::new(SymbolsService::new(service.listen, channel.group, channel.id))),
    });
    JournalConfig {
        directory: settings.directory.clone(),
        channels: channels.collect(),
        compression: match settings.compression {
            JournalCompression::None => Compression::None,
            JournalCompression::Zstd => Compression::Zstd,
        },
        flush_interval: Duration::from_nanos(settings.flush_ns),
        retention_days: settings.retention_days,
        retention_bytes: settings.retention_bytes,
        free_bytes_min: settings.free_bytes_min,
    }
}
