//! The gateway and `mdgw live` as processes, and their configuration.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{client::KEY, log::CHANNEL};

/// A started program; it ends when this is dropped.
pub(super) struct Program {
    child: Child,
    output: PathBuf,
}

impl Program {
    /// Starts `mdgw` with these arguments, and waits until it has written `ready`.
    pub(super) fn start(program: &Path, arguments: [&str; 2], output: PathBuf, ready: &str) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(fs::File::create(&output)?);
        command.stderr(fs::File::options().append(true).open(&output)?);
        let child = command.spawn().with_context(|| format!("start {}", program.display()))?;
        let mut started = Self { child, output };
        let since = Instant::now();
        while !started.written().contains(ready) {
            let has_ended = started.child.try_wait()?.is_some();
            ensure!(
                !has_ended && since.elapsed() < START_MAX,
                "mdgw {} does not get ready; it wrote:\n{}",
                arguments[0],
                started.written()
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(started)
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    fn written(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Ends the program. An error if it had ended before.
    pub(super) fn stop(mut self) -> Result<()> {
        ensure!(self.child.try_wait()?.is_none(), "mdgw ended during the run; it wrote:\n{}", self.written());
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(asked.elapsed() < STOP_MAX, "mdgw does not end on SIGTERM");
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // After `stop` there is nothing left to end, which is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `mdgw live`.
pub(super) struct LiveServer {
    pub(super) program: Program,
    pub(super) address: SocketAddr,
    _directory: TempDir,
}

impl LiveServer {
    /// Starts it on the logs in that directory, and waits until it has read them.
    pub(super) fn start(program: &Path, log_directory: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("mdgw-live").tempdir_in("/dev/shm")?;
        let keys = directory.path().join("client_keys");
        fs::write(&keys, format!("bench {KEY} * 100000\n"))?;
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600))?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut text = configuration(directory.path(), log_directory, "threads = 1", Groups::new());
        // One client opens all sessions, as fast as it can.
        let _ = write!(
            text,
            "[live]\nlisten = \"{address}\"\nkey_file = \"{}\"\nsessions_max = 100000\nhandshakes_max = 65536\n\
             handshakes_per_second = 100000\n",
            keys.display()
        );
        let config = directory.path().join("live.toml");
        fs::write(&config, text)?;
        let arguments = ["live", config.to_str().context("a path in UTF-8")?];
        let program = Program::start(program, arguments, directory.path().join("output"), "live: ready")?;
        Ok(Self { program, address, _directory: directory })
    }
}

/// Where packets come in and go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    pub(super) input: SocketAddrV4,
    pub(super) output: SocketAddrV4,
}

impl Groups {
    /// Other benches on this host have other ports.
    pub(super) fn new() -> Self {
        let port = 12_000 + u16::try_from(std::process::id() % 20_000).unwrap_or(0);
        let group = |octet| SocketAddrV4::new(Ipv4Addr::new(239, 253, octet, 1), port);
        Self { input: group(1), output: group(0) }
    }
}

/// A gateway with one channel and one line. `pool` is the rest of its table `[[pool]]`.
pub(super) fn configuration(directory: &Path, log_directory: &Path, pool: &str, groups: Groups) -> String {
    let (directory, log_directory) = (directory.display(), log_directory.display());
    let Groups { input, output } = groups;
    format!(
        "[gateway]\nnode = 1\nstate_file = \"{directory}/state\"\nlog_dir = \"{log_directory}\"\n\n\
         [[pool]]\nname = \"main\"\n{pool}\n\n\
         [[channel]]\nid = {CHANNEL}\nname = \"c1\"\nfeed = \"nasdaq-itch-5.0\"\norders_max = {ORDERS}\nlevels_max = {ORDERS}\n\n\
         [[channel.line]]\nname = \"A\"\ngroup = \"{input}\"\ninterface = \"127.0.0.1\"\n\n\
         [[output]]\ngroups = [1]\n\n\
         [[output.line]]\naddress = \"{output}\"\ninterface = \"127.0.0.1\"\nloopback = true\n\n"
    )
}

const ORDERS: u32 = 1 << 20;
const START_MAX: Duration = Duration::from_secs(120);
const STOP_MAX: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
