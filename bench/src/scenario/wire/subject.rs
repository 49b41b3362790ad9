//! What is measured: the gateway as a process with a configuration, or the bare loop.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{
    case::{AdminUse, Case, Election, LatencyLog},
    cores::Cores,
    input::STOCK_COUNT,
    network::Network,
    receiver::OutputFormat,
};

/// A program to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) kind: SubjectKind,
    /// What asks its admin listener.
    pub(super) admin: AdminUse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubjectKind {
    Bare,
    Gateway,
}

/// Lines that the user adds to tables of the gateway's configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) pool: Vec<String>,
    pub(super) channel: Vec<String>,
    pub(super) output: Vec<String>,
    pub(super) wait: String,
}

impl Subject {
    pub(super) fn output(&self) -> OutputFormat {
        match self.kind {
            SubjectKind::Bare => OutputFormat::Resent,
            SubjectKind::Gateway => OutputFormat::Published,
        }
    }

    /// Starts the program and waits until it has joined its groups.
    pub(super) fn start(
        &self,
        case: &Case,
        cores: &Cores,
        network: &Network,
        settings: &Settings,
    ) -> Result<RunningSubject> {
        // In memory, as the gateway's logs are by default.
        let directory = tempfile::Builder::new().prefix("mdgw-wire").tempdir_in("/dev/shm")?;
        let admin_address = (self.kind == SubjectKind::Gateway).then(|| network.admin_address());
        let mut command = Command::new(&self.program);
        match self.kind {
            SubjectKind::Bare => {
                command.args(bare_arguments(case, cores, network));
            }
            SubjectKind::Gateway => {
                let config = directory.path().join("gateway.toml");
                let mut text = configuration(case, cores, network, settings, directory.path());
                if let Some(address) = admin_address {
                    let _ = write!(text, "\n[admin]\nlisten = \"{address}\"\n");
                }
                fs::write(&config, text)?;
                command.arg("run").arg(config);
            }
        }
        let output = directory.path().join("output");
        command.stdin(Stdio::null()).stdout(fs::File::create(&output)?);
        command.stderr(fs::File::options().append(true).open(&output)?);
        let started = network.run_inside(|| command.spawn())?;
        let child = started.with_context(|| format!("start {}", self.program.display()))?;
        let mut running = RunningSubject { child, directory: Arc::new(directory), kind: self.kind, admin_address };
        let ready = match (self.kind, case.election) {
            (SubjectKind::Bare, _) => "ready",
            (SubjectKind::Gateway, Election::None) => "gateway running",
            // Only a leader publishes.
            (SubjectKind::Gateway, Election::File) => "leads group",
        };
        running.wait_until_logged(ready, &output)?;
        Ok(running)
    }
}

/// A started program; it ends when this is dropped.
pub(super) struct RunningSubject {
    child: Child,
    directory: Arc<TempDir>,
    kind: SubjectKind,
    /// Where the gateway's admin listener is.
    pub(super) admin_address: Option<SocketAddr>,
}

impl RunningSubject {
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Directory of a channel's publication log, if the program has one.
    pub(super) fn log_directory(&self, channel_index: usize) -> Option<PathBuf> {
        let of_channel = self.directory.path().join("log").join((channel_index + 1).to_string());
        (self.kind == SubjectKind::Gateway).then_some(of_channel)
    }

    fn wait_until_logged(&mut self, ready: &str, output: &Path) -> Result<()> {
        let started = Instant::now();
        loop {
            let text = fs::read_to_string(output)?;
            if text.contains(ready) {
                return Ok(());
            }
            let has_ended = self.child.try_wait()?.is_some();
            ensure!(
                !has_ended && started.elapsed() < START_TIMEOUT,
                "the program does not get ready; it wrote:\n{text}"
            );
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Ends the program, and returns its directory. An error if it had ended before.
    pub(super) fn stop(mut self) -> Result<Arc<TempDir>> {
        if let Some(status) = self.child.try_wait()? {
            let text = fs::read_to_string(self.directory.path().join("output")).unwrap_or_default();
            bail!("the program ended during the run ({status}); it wrote:\n{text}");
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(asked.elapsed() < STOP_TIMEOUT, "the program does not end on SIGTERM");
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(Arc::clone(&self.directory))
    }
}

impl Drop for RunningSubject {
    fn drop(&mut self) {
        // After `stop` there is nothing left to end, which is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles the bare loop.
pub(super) fn compile_bare(directory: &Path) -> Result<PathBuf> {
    let (source, program) = (directory.join("resend.c"), directory.join("resend"));
    fs::write(&source, include_str!("../../../peers/resend.c"))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-pthread", "-o"]).arg(&program).arg(&source);
    let done = compiler.output().context("compile bench/peers/resend.c: run cc, a C compiler")?;
    ensure!(done.status.success(), "cc: {}", String::from_utf8_lossy(&done.stderr));
    Ok(program)
}

fn bare_arguments(case: &Case, cores: &Cores, network: &Network) -> Vec<String> {
    let cores: Vec<String> = cores.pool.iter().map(ToString::to_string).collect();
    let mut arguments = vec![
        LINE_BUFFER_BYTES.to_string(),
        network.inside.to_string(),
        u8::from(network.loopback()).to_string(),
        cores.join(","),
        network.output_group().to_string(),
    ];
    // All first lines come first: so every thread has its share of them.
    for line in 0..case.lines {
        let suffix = if line == 0 { "" } else { ":discard" };
        arguments.extend((0..case.channels).map(|channel| format!("{}{suffix}", network.input_group(channel, line))));
    }
    arguments
}

fn configuration(case: &Case, cores: &Cores, network: &Network, settings: &Settings, directory: &Path) -> String {
    let directory = directory.display();
    let (interface, channels) = (network.inside, case.channels as u64);
    let segment_bytes = (SEGMENT_BYTES / channels.div_ceil(4)).max(SEGMENT_BYTES_MIN);
    let orders = (ORDERS / channels).max(ORDERS_MIN);
    let [pool, of_channel, output] =
        [&settings.pool, &settings.channel, &settings.output].map(|lines| lines.join("\n"));
    let mut text = format!(
        "[gateway]\nnode = 1\nstate_file = \"{directory}/state\"\nlog_dir = \"{directory}/log\"\n\
         segment_bytes = {segment_bytes}\nretention_bytes = {}\n\n\
         [[pool]]\nname = \"{POOL}\"\ncores = {:?}\nwait = \"{}\"\n{pool}\n\n",
        4 * segment_bytes,
        cores.pool,
        settings.wait,
    );
    for channel in 0..case.channels {
        let _ = write!(
            text,
            "[[channel]]\nid = {0}\nname = \"c{0}\"\nfeed = \"nasdaq-itch-5.0\"\norders_max = {orders}\n\
             levels_max = {orders}\ninstruments_max = {1}\n{of_channel}\n\n",
            channel + 1,
            STOCK_COUNT + 1,
        );
        for line in 0..case.lines {
            let _ = write!(
                text,
                "[[channel.line]]\nname = \"{}\"\ngroup = \"{}\"\ninterface = \"{interface}\"\n\
                 receive_buffer_bytes = {LINE_BUFFER_BYTES}\n\n",
                ["A", "B"][line],
                network.input_group(channel, line),
            );
        }
    }
    let _ = write!(
        text,
        "[[output]]\ngroups = [1]\nheartbeat_ms = {HEARTBEAT_MS}\n{output}\n\n\
         [[output.line]]\naddress = \"{}\"\ninterface = \"{interface}\"\nloopback = {}\n\n",
        network.output_group(),
        network.loopback(),
    );
    if case.election == Election::File {
        let _ = write!(
            text,
            "[election]\nbackend = \"file\"\nname = \"bench\"\n\n[election.file]\ndirectory = \"{directory}/records\"\n\n"
        );
    }
    if case.latency_log == LatencyLog::On {
        let _ = write!(text, "[latency]\ndirectory = \"{directory}/{LATENCY_DIRECTORY}\"\ninterval_ms = 1000\n");
    }
    text
}

/// Name of the gateway's pool; its threads are `main-0` and so on.
pub(super) const POOL: &str = "main";
/// Of the latency logs, in the directory of a run.
pub(super) const LATENCY_DIRECTORY: &str = "latency";
const LINE_BUFFER_BYTES: u64 = 16 << 20;
/// The defaults, of one to four channels; more channels share the memory.
const SEGMENT_BYTES: u64 = 64 << 20;
const SEGMENT_BYTES_MIN: u64 = 4 << 20;
const ORDERS: u64 = 1 << 20;
const ORDERS_MIN: u64 = 1 << 15;
/// Short, so that trailing messages without output are covered soon after a run.
const HEARTBEAT_MS: u64 = 100;
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
