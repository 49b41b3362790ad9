//! Child processes of the demonstration: started, paused, killed and restarted; never left behind.

use std::{
    env,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use mdgw_status::control::{Request, send_request};
use rustix::process::{Pid, Signal, kill_process};

/// A command that runs this program.
pub(super) fn this_program() -> anyhow::Result<Command> {
    Ok(Command::new(env::current_exe().context("find this program")?))
}

/// One running child process. Killed when it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the command. Its log is appended to the log of an earlier process with the same name.
    pub(super) fn start(mut command: Command, name: &str, directory: &Path) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let open = || File::options().append(true).create(true).open(&log);
        let files = open().and_then(|out| Ok((out, open()?)));
        let (out, err) = files.with_context(|| format!("write {}", log.display()))?;
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        let child = child.with_context(|| format!("start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Kills the process (SIGKILL), as a crash does.
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().and_then(|()| self.child.wait()).with_context(|| format!("kill {}", self.name))?;
        Ok(())
    }

    /// Pauses the process (SIGSTOP) until [`Self::resume`].
    pub(super) fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Resumes the paused process (SIGCONT).
    pub(super) fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Terminates the process (SIGTERM), or kills it after the timeout.
    pub(super) fn terminate(mut self, timeout: Duration) -> anyhow::Result<()> {
        if self.has_ended()? {
            return Ok(());
        }
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + timeout;
        while !self.has_ended()? {
            if Instant::now() >= deadline {
                return self.kill();
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits until the gateway with the control socket `control` is eligible or leads.
    pub(super) fn wait_until_eligible(&mut self, control: &Path, timeout: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let status = send_request(control, &Request::Status {});
            let role = status.as_ref().ok().and_then(|status| status["groups"][0]["role"].as_str());
            if matches!(role, Some("candidate" | "leader")) {
                return Ok(());
            }
            self.ensure_running()?;
            if Instant::now() >= deadline {
                bail!("{} did not become eligible: see {}", self.name, self.log.display());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Fails if the process has exited: only the demonstration may end its processes.
    pub(super) fn ensure_running(&mut self) -> anyhow::Result<()> {
        if self.has_ended()? {
            bail!("{} exited unexpectedly: see {}", self.name, self.log.display());
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), signal).with_context(|| format!("signal {}", self.name))
    }

    fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait().with_context(|| format!("watch {}", self.name))?.is_some())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Interval at which a process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
