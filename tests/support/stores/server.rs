//! One node of a store: a process with its data directory, log and health check.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::{SocketAddrV4, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::{bound_child, namespaces::Namespace};

/// A node of a store, which can be restarted.
#[derive(Debug)]
pub(super) struct StoreNode {
    pub(super) command: Vec<String>,
    /// Where clients of the store connect.
    pub(super) address: SocketAddrV4,
    pub(super) health: Health,
    /// Directory that outlives a restart: what the node has stored.
    pub(super) data: PathBuf,
    /// File with what the node writes to its output, shown when it does not start.
    pub(super) log: PathBuf,
    /// Its network namespace; `None`: that of the test.
    pub(super) namespace: Option<Namespace>,
    child: Option<Child>,
}

/// A health check: the request, and what the answer contains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    pub(super) address: SocketAddrV4,
    pub(super) serves: HealthQuery,
    pub(super) leads: HealthQuery,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HealthQuery {
    pub(super) request: &'static str,
    pub(super) yes: &'static [&'static str],
}

impl StoreNode {
    pub(super) fn new(
        command: Vec<String>,
        address: SocketAddrV4,
        health: Health,
        data: PathBuf,
        log: PathBuf,
    ) -> Self {
        Self { command, address, health, data, log, namespace: None, child: None }
    }

    pub(super) fn start(&mut self) {
        assert!(self.child.is_none(), "{:?} runs already", self.command);
        let log = File::options().create(true).append(true).open(&self.log).expect("a log can be opened");
        let error_log = log.try_clone().expect("a log can be opened");
        let (program, arguments) = self.command.split_first().expect("a node has a program");
        let mut command = bound_child::bind(Command::new(program).args(arguments));
        command.stdin(Stdio::null()).stdout(log).stderr(error_log);
        let spawned = match &self.namespace {
            Some(namespace) => namespace.run(|| bound_child::spawn(command)),
            None => bound_child::spawn(command),
        };
        self.child = Some(spawned.unwrap_or_else(|error| panic!("{:?}: {error}", self.command)));
    }

    pub(super) fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// Whether it was started and has not ended.
    pub(super) fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().expect("a child can be waited for").is_none())
    }

    pub(super) fn is_serving(&self) -> bool {
        self.is_positive(self.health.serves)
    }

    pub(super) fn is_leader(&self) -> bool {
        self.is_started() && self.is_positive(self.health.leads)
    }

    fn is_positive(&self, question: HealthQuery) -> bool {
        let query = || question.has_positive_answer(self.health.address);
        self.namespace.as_ref().map_or_else(query, |namespace| namespace.run(query))
    }

    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Fails if the node has already exited.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Pauses the node (SIGSTOP). Returns once all of its threads have stopped, since until then they may still answer.
    pub(super) fn pause(&self) {
        self.signal(Signal::STOP);
        let child = self.child.as_ref().expect("the node runs");
        waitid(WaitId::Pid(Pid::from_child(child)), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)
            .expect("the node can be waited for");
    }

    pub(super) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("the node runs");
        kill_process(Pid::from_child(child), signal).expect("the node can be signalled");
    }

    /// The end of its log.
    pub(super) fn log_end(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
        format!("{}:\n{}\n", self.log.display(), last.join("\n"))
    }
}

impl Drop for StoreNode {
    fn drop(&mut self) {
        self.kill();
    }
}

impl HealthQuery {
    fn has_positive_answer(&self, address: SocketAddrV4) -> bool {
        send_request(address, self.request).is_ok_and(|answer| self.yes.iter().any(|yes| answer.contains(yes)))
    }
}

/// Sends a text and returns everything received until the peer closes.
pub(super) fn send_request(address: SocketAddrV4, text: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(text.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const LOG_LINES_SHOWN: usize = 20;
