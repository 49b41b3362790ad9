//! `mdgw run`: runs a gateway until SIGTERM or SIGINT.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use mdgw_feeds::{consumer_edge::TsRecvMode, time::TradingDate};
use mdgw_runtime::{
    config::{Changed, RELOADABLE, Resolved, StartFiles},
    gateway::{self, Gateway, GatewayReport, LoadReport, Overrides, PoolLoad},
};
use mdgw_status::control::reload_queue;
use mdgw_sys::{affinity::usable_cores, drops::ReceiveBufferUse, host_memory::HostMemory, memory};
use serde_json::{Value, json};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{
    Outcome, error_chain,
    logging::{self, Log},
    print, protect_secrets,
    reload::{ReloadedChannels, ToRestart},
    service_manager::ServiceManager,
    warn,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code 0: stopped by a signal. 1: a fault stopped it while it ran; a restart may help. 2: it could not start as \
configured.

Examples:
  mdgw run gateway.toml
  mdgw run gateway.toml --date 2026-11-20 --ts-recv none")]
pub(super) struct Args {
    /// Configuration file.
    config: PathBuf,
    /// Trading date of all channels (YYYY-MM-DD), overriding the input's date.
    #[arg(long, value_name = "DATE")]
    date: Option<TradingDate>,
    /// Receive timestamp in published frames.
    #[arg(long, value_enum, default_value = "capture")]
    ts_recv: TsRecvArg,
}

/// Source of the receive time of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum TsRecvArg {
    /// Timestamp of the capture or the kernel.
    Capture,
    /// None: the output then depends on the input only.
    None,
}

impl From<TsRecvArg> for TsRecvMode {
    fn from(arg: TsRecvArg) -> Self {
        match arg {
            TsRecvArg::Capture => Self::Capture,
            TsRecvArg::None => Self::None,
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let mut config = Resolved::load(&args.config)?;
    let log = logging::start(&config.log, config.cold_cores(&usable_cores()));
    if let Some(host) = HostMemory::read()
        && let Some(warning) = config.compare_memory(&host).map_err(anyhow::Error::msg)?
    {
        tracing::warn!("{warning}");
    }
    // Before buffers are allocated: later pages are locked when they are first touched.
    if config.gateway.lock_memory
        && let Err(error) = memory::lock_all()
    {
        tracing::warn!(%error, "memory is not locked: pages may be swapped out under memory pressure");
    }
    if config.reads_secrets() {
        protect_secrets()?;
        tracing::info!("core dumps are disabled: this gateway holds keys or passwords");
    }
    // Before any work that a signal could interrupt halfway.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("catch signals")?;
    let mut service = ServiceManager::new();
    let overrides = Overrides {
        stall_limit: service.stall_limit(),
        date: args.date,
        ts_recv: args.ts_recv.into(),
        beginning: gateway::beginning(&config),
        copy_peer_state: true,
        ..Overrides::default()
    };
    let start_files = StartFiles::read(&config);
    let (requester, requested) = reload_queue();
    let start = || -> anyhow::Result<Gateway> {
        let mut gateway = Gateway::start(&config, overrides)?;
        gateway.link_as_configured(&config)?;
        gateway.serve_control(&config, requester)?;
        gateway.serve_admin(&config)?;
        Ok(gateway)
    };
    let mut gateway = match start() {
        Ok(gateway) => gateway,
        Err(error) => {
            let error = error.context(format!("start {}", args.config.display()));
            return Ok(outcome_of_run(Some(error_chain(&error))));
        }
    };
    let mut asked = Asked::new(signals);
    let mut periodic = Periodic::new();
    let mut reloaded_channels = ReloadedChannels::default();
    let fault = loop {
        asked.read_signals();
        let mut reload = |asked: &mut Asked| {
            let mut reloading = Reloading {
                args,
                start_files: &start_files,
                reloaded_channels: &mut reloaded_channels,
                log: &log,
                asked,
                periodic: &mut periodic,
                handed_over_at: None,
            };
            service.reload(|service| reloading.run(&mut config, &mut gateway, service))
        };
        if !asked.has_stop && std::mem::take(&mut asked.has_reload) {
            // The log has the result.
            let _ = reload(&mut asked);
        }
        while !asked.has_stop
            && let Some(request) = requested.next()
        {
            let outcome = match other_file(request.config(), &args.config) {
                Some(refusal) => Err(refusal),
                None => reload(&mut asked),
            };
            request.answer(outcome);
        }
        if asked.has_stop {
            break None;
        }
        if let Some(fault) = periodic.turn(&mut gateway, &config, &mut service) {
            break Some(fault);
        }
        std::thread::sleep(SIGNAL_INTERVAL);
    };
    drop(requested);
    gateway.log_alarms();
    service.stopping("stopping", Gateway::stop_limit(&config));
    // A gateway with a fault cannot finish its sends, which a hand-over waits for.
    if fault.is_none() {
        gateway.hand_over();
    }
    let stopped = gateway.stop().context("stop");
    if let Ok(report) = &stopped {
        print(&summary(report)?)?;
    }
    let failure = fault.map(|fault| format!("a pool stopped unexpectedly: {fault}"));
    Ok(outcome_of_run(failure.or_else(|| stopped.err().map(|error| error_chain(&error)))))
}

/// A fault of a gateway that ran, or of a host on which it could not start, such as an interface that is not up yet, may be gone
/// after a restart: exit code 1, after which its unit starts it again. Exit code 2 is for a configuration, or rights, with which none can.
fn outcome_of_run(failure: Option<String>) -> Outcome {
    match failure {
        None => Outcome::Done,
        Some(failure) => {
            warn(&failure);
            Outcome::No
        }
    }
}

/// Interval at which pending signals are checked.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which alarms are checked.
const ALARM_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of further tries to hand over during a reload, where no other gateway was eligible.
const HAND_OVER_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which readiness and the status line are evaluated.
const READINESS_INTERVAL: Duration = Duration::from_millis(250);

/// What is done again and again while the gateway runs, also during a reload.
struct Periodic {
    alarms_checked: Instant,
    readiness_checked: Option<Instant>,
}

impl Periodic {
    fn new() -> Self {
        Self { alarms_checked: Instant::now(), readiness_checked: None }
    }

    /// Returns the fault of a gateway that has stopped.
    fn turn(&mut self, gateway: &mut Gateway, config: &Resolved, service: &mut ServiceManager) -> Option<String> {
        gateway.update_health();
        if let Some(fault) = gateway.fault() {
            return Some(fault);
        }
        if self.alarms_checked.elapsed() >= ALARM_INTERVAL {
            gateway.log_alarms();
            self.alarms_checked = Instant::now();
        }
        if gateway.check_threads() {
            service.feed();
        }
        if self.readiness_checked.is_none_or(|at| at.elapsed() >= READINESS_INTERVAL) {
            service.update(&gateway.readiness(config));
            self.readiness_checked = Some(Instant::now());
        }
        None
    }
}

/// What signals have asked for.
struct Asked {
    signals: Signals,
    has_stop: bool,
    /// Since the last reload began: the file may have changed after that reload had read it.
    has_reload: bool,
}

impl Asked {
    fn new(signals: Signals) -> Self {
        Self { signals, has_stop: false, has_reload: false }
    }

    fn read_signals(&mut self) {
        for signal in self.signals.pending() {
            self.has_reload |= signal == SIGHUP;
            self.has_stop |= signal != SIGHUP;
        }
    }
}

/// A reload, and what goes on meanwhile.
struct Reloading<'r> {
    args: &'r Args,
    start_files: &'r StartFiles,
    reloaded_channels: &'r mut ReloadedChannels,
    log: &'r Log,
    asked: &'r mut Asked,
    periodic: &'r mut Periodic,
    /// When this gateway last tried to hand over, since a signal asked for the stop.
    handed_over_at: Option<Instant>,
}

impl Reloading<'_> {
    /// Applies the settings that may change at run time, and adds and removes channels and output lines. Any other change is
    /// refused and its key is named. A reload is applied as a whole, or not at all. The result goes to the client
    /// that asked, and to the log.
    fn run(
        &mut self,
        config: &mut Resolved,
        gateway: &mut Gateway,
        service: &mut ServiceManager,
    ) -> Result<Value, String> {
        let path = self.args.config.display();
        // A pipe would hold up this thread, and with it the watchdog. The start may read one.
        if self.args.config.metadata().is_ok_and(|found| !found.is_file()) {
            tracing::error!(target: "mdgw", "reload {path} failed, nothing changed: not a regular file");
            return Err(format!("{path} is not a regular file"));
        }
        let new = Resolved::load(&self.args.config).map_err(|error| {
            tracing::error!(target: "mdgw", "reload {path} failed, nothing changed: {error}");
            error.to_string()
        })?;
        let mut files = self.start_files.changed(config);
        files.extend(StartFiles::exposed(config));
        let changes = match (Resolved::diff_reloadable(config, &new), files) {
            (changes, files) if files.is_empty() => changes,
            (changes, files) => Err(changes.err().into_iter().flatten().chain(files).collect()),
        };
        let mut ticked_at = Instant::now();
        let mut tick = |gateway: &mut Gateway| {
            if ticked_at.elapsed() >= SIGNAL_INTERVAL {
                ticked_at = Instant::now();
                self.tick(gateway, config, service);
            }
        };
        let applied = changes.and_then(|changes| gateway.reload((config, &new), &changes, &mut tick));
        match applied {
            Ok(()) => {
                self.log.set(&new.log);
                let changed = Resolved::changed_settings(config, &new);
                tracing::info!(config = %path, changed = changed_keys(&changed), "configuration reloaded");
                let ToRestart { all, if_newer } = self.reloaded_channels.after((config, &new), &changed);
                for program in &all {
                    tracing::warn!("{program} does not know an added channel before its next start");
                }
                *config = new;
                let warnings = self.start_files.missing(config);
                for warning in &warnings {
                    tracing::warn!("{warning}");
                }
                let path = &self.args.config;
                Ok(json!({
                    "config": path,
                    "changed": changed,
                    "restart": all,
                    "restart_if_newer": if_newer,
                    "warnings": warnings,
                }))
            }
            Err(refused) => {
                for refused in &refused {
                    tracing::error!(target: "mdgw", "reload {path} failed, nothing changed: {refused}");
                }
                let keys = RELOADABLE.join(", ");
                tracing::info!("a reload can change {keys}, and whole channels and output lines");
                Err(refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
            }
        }
    }

    /// A channel with large books may take longer to build than a service manager waits for the stop. So the other gateway leads
    /// as soon as the stop is asked for, whatever this one still does.
    fn tick(&mut self, gateway: &mut Gateway, config: &Resolved, service: &mut ServiceManager) {
        self.asked.read_signals();
        let is_due = self.handed_over_at.is_none_or(|at| at.elapsed() >= HAND_OVER_INTERVAL);
        if self.asked.has_stop && is_due {
            if self.handed_over_at.is_none() {
                service.stopping("stopping after a reload", Gateway::stop_limit(config));
            }
            gateway.hand_over();
            self.handed_over_at = Some(Instant::now());
        }
        // The loop after the reload meets the fault of a gateway that has stopped again.
        let _ = self.periodic.turn(gateway, config, service);
    }
}

/// Why the file that a client names is not the one to reload; `None` without a name.
fn other_file(named: Option<&Path>, own: &Path) -> Option<String> {
    let resolved = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let named = named?;
    (resolved(named) != resolved(own)).then(|| {
        let own = resolved(own);
        format!("this gateway runs with {}, and not with {}", own.display(), named.display())
    })
}

/// Keys whose values differ, for the log.
fn changed_keys(changed: &[Changed]) -> String {
    let mut keys: Vec<&str> = changed.iter().map(|changed| changed.key.as_str()).collect();
    let more = keys.len().saturating_sub(CHANGED_KEYS_MAX);
    keys.truncate(CHANGED_KEYS_MAX);
    let mut text = keys.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// Keys that the log names after a reload.
const CHANGED_KEYS_MAX: usize = 40;

/// The summary of the run: a table with one line per channel.
fn summary(report: &GatewayReport) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(
        text,
        "{:<20} {:>10} {:>12} {:>12} {:>12} {:>8} {:>8} {:>8} {:>10}",
        "channel", "state", "datagrams", "messages", "records", "gaps", "lost", "drops", "sent"
    )?;
    for channel in &report.channels {
        writeln!(
            text,
            "{:<20} {:>10} {:>12} {:>12} {:>12} {:>8} {:>8} {:>8} {:>10}",
            channel.name,
            format!("{:?}", channel.state).to_lowercase(),
            channel.counters.datagrams,
            channel.counters.messages,
            channel.counters.records,
            channel.counters.gaps,
            channel.counters.gap_messages,
            channel.drops.unexpected(),
            channel.published.packets,
        )?;
        if let Some(reason) = &channel.failed {
            writeln!(text, "  out of service: {reason}")?;
        }
        for (reason, count) in channel.drops.iter().filter(|(reason, _)| !reason.is_expected()) {
            writeln!(text, "  dropped: {count} {}", reason.name())?;
        }
        let stamps = channel.stamps;
        writeln!(
            text,
            "  receive timestamps: NIC {}, kernel {}, none {}",
            stamps.hardware, stamps.kernel, stamps.none
        )?;
        if channel.book_faults > 0 {
            writeln!(text, "  book faults: {}", channel.book_faults)?;
        }
        if channel.log.entries_private > 0 {
            let (entries, times) = (channel.log.entries_private, channel.log.segments_not_ready);
            writeln!(
                text,
                "  published, but not in the publication log: {entries} entries (no segment was ready {times} times)"
            )?;
        }
        if channel.counters.trades_broken > 0 {
            writeln!(text, "  trades cancelled by the venue (broken trades): {}", channel.counters.trades_broken)?;
        }
    }
    write_load(&mut text, &report.load)?;
    for listener in report.listeners.iter().filter(|listener| !listener.refused.is_empty()) {
        writeln!(text, "listener {listener}")?;
    }
    for log in &report.latency.logs {
        writeln!(text, "latency log: {}", log.display())?;
    }
    Ok(text)
}

/// How loaded the gateway was, and what would have been needed to drop nothing.
fn write_load(text: &mut String, load: &LoadReport) -> anyhow::Result<()> {
    let LoadReport { peak_arrived_per_s, peak_taken_per_s, ns_per_packet, receive_buffers, kernel_drops, .. } = load;
    for PoolLoad { name, threads, busy_share, busiest_share } in &load.pools {
        let [mean, busiest] = [busy_share, busiest_share].map(|share| 100.0 * share);
        writeln!(
            text,
            "pool {name}: {threads} threads, busy {mean:.1} % of the time, {busiest:.1} % in the busiest second"
        )?;
    }
    writeln!(
        text,
        "input: at most {peak_arrived_per_s} packets/s, {peak_taken_per_s} of them received; {ns_per_packet} ns per packet"
    )?;
    let ReceiveBufferUse { used_bytes, limit_bytes } = receive_buffers;
    writeln!(text, "receive buffers: at most {used_bytes} of {limit_bytes} bytes in use")?;
    if *kernel_drops > 0 {
        writeln!(text, "dropped by the kernel (socket buffers full): {kernel_drops}")?;
        let (cores, run) = (load.cores_at_peak(), load.worst_drop_run);
        let mebibytes = (run * QUEUED_PACKET_BYTES).div_ceil(1 << 20);
        writeln!(
            text,
            "  to drop nothing: {cores:.1} cores for the pools, or room for {run} more packets in a receive buffer (about {mebibytes} MiB)"
        )?;
    }
    Ok(())
}

/// Kernel memory of a queued packet, bytes: usual for a NIC whose driver takes half a page per packet. Drivers differ.
const QUEUED_PACKET_BYTES: u64 = 2_304;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_of_another_file_than_the_gateways_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [own, link, other] = ["own.toml", "link.toml", "other.toml"].map(|name| folder.path().join(name));
        std::fs::write(&own, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&own, &link).unwrap();
        assert_eq!(other_file(None, &own), None);
        assert_eq!(other_file(Some(&link), &own), None);
        let refusal = other_file(Some(&other), &own).unwrap();
        assert!(refusal.contains("own.toml") && refusal.contains("other.toml"), "{refusal}");
        assert!(other_file(Some(&folder.path().join("none.toml")), &own).is_some());
    }

    #[test]
    fn a_fault_of_a_running_gateway_is_the_exit_code_after_which_the_unit_starts_it_again() {
        assert_eq!(outcome_of_run(None), Outcome::Done);
        assert_eq!(outcome_of_run(Some("a pool stopped unexpectedly: x".to_owned())), Outcome::No);
        let unit = include_str!("../../../../ops/systemd/mdgw.service");
        assert!(unit.contains("\nRestart=on-failure\n") && unit.contains("\nRestartPreventExitStatus=2\n"), "{unit}");
    }

    #[test]
    fn the_summary_says_what_would_have_dropped_nothing() {
        let pool = PoolLoad { name: "main".to_owned(), threads: 2, busy_share: 0.125, busiest_share: 0.99 };
        let quiet = LoadReport {
            pools: vec![pool],
            peak_arrived_per_s: 300_000,
            peak_taken_per_s: 300_000,
            ns_per_packet: 2_000,
            receive_buffers: ReceiveBufferUse { used_bytes: 70, limit_bytes: 4_608 },
            kernel_drops: 0,
            worst_drop_run: 0,
        };
        let shown = |load: &LoadReport| {
            let mut text = String::new();
            write_load(&mut text, load).unwrap();
            text
        };
        let lines = "pool main: 2 threads, busy 12.5 % of the time, 99.0 % in the busiest second\n\
            input: at most 300000 packets/s, 300000 of them received; 2000 ns per packet\n\
            receive buffers: at most 70 of 4608 bytes in use\n";
        assert_eq!(shown(&quiet), lines);
        let overrun =
            LoadReport { peak_arrived_per_s: 1_200_000, kernel_drops: 90_000, worst_drop_run: 50_000, ..quiet };
        let more = "dropped by the kernel (socket buffers full): 90000\n  \
            to drop nothing: 2.4 cores for the pools, or room for 50000 more packets in a receive buffer (about 110 MiB)\n";
        assert!(shown(&overrun).ends_with(more), "{}", shown(&overrun));
    }
}
