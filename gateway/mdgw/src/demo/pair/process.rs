//! The parts that are processes of their own: started, killed, started again, and never left behind.

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

/// This program, to be given a subcommand.
pub(super) fn this_program() -> anyhow::Result<Command> {
    Ok(Command::new(env::current_exe().context("find this program")?))
}

/// One running part. Killed when it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it; its log goes on where an earlier one's of that name ended.
    pub(super) fn start(mut command: Command, name: &str, directory: &Path) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let open = || File::options().append(true).create(true).open(&log);
        let files = open().and_then(|out| Ok((out, open()?)));
        let (out, err) = files.with_context(|| format!("write {}", log.display()))?;
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        let child = child.with_context(|| format!("start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Ends it as a crash does: no time for anything.
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().and_then(|()| self.child.wait()).with_context(|| format!("kill {}", self.name))?;
        Ok(())
    }

    /// Lets it do nothing any more, until [`Self::resume`].
    pub(super) fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on where it was stopped.
    pub(super) fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Ends it in order, or at last anyhow.
    pub(super) fn end(mut self, timeout: Duration) -> anyhow::Result<()> {
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

    /// Waits until the gateway that listens at `control` stands for election, or leads.
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

    /// Nothing but this demonstration ends its parts.
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
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Between two looks at a process.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
