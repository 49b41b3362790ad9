//! One node: a process with its data, its log and its questions for health.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::{SocketAddrV4, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::namespaces::Namespace;

/// A node that can be started again and again.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) command: Vec<String>,
    /// Where clients find it.
    pub(super) address: SocketAddrV4,
    pub(super) health: Health,
    /// What it keeps over restarts.
    pub(super) data: PathBuf,
    /// What it says.
    pub(super) log: PathBuf,
    /// Where it runs; `None`: where the test does.
    pub(super) namespace: Option<Namespace>,
    child: Option<Child>,
}

/// How to ask a node how it is: what to send, and what the answer contains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    pub(super) address: SocketAddrV4,
    pub(super) serves: Question,
    pub(super) leads: Question,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) ask: &'static str,
    pub(super) yes: &'static [&'static str],
}

impl Server {
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
        // The kernel ends the node with the thread that started it.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(&self.command);
        command.stdin(Stdio::null()).stdout(log).stderr(error_log);
        let spawned = spawn(command, self.namespace.clone());
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
        self.answers_yes(self.health.serves)
    }

    pub(super) fn is_leader(&self) -> bool {
        self.is_started() && self.answers_yes(self.health.leads)
    }

    fn answers_yes(&self, question: Question) -> bool {
        let asked = || question.is_answered_yes(self.health.address);
        self.namespace.as_ref().map_or_else(asked, |namespace| namespace.run(asked))
    }

    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Gone already, where it ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(super) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(super) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("the node runs");
        kill_process(Pid::from_child(child), signal).expect("the node can be signalled");
    }

    /// What it said last.
    pub(super) fn log_end(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
        format!("{}:\n{}\n", self.log.display(), last.join("\n"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Question {
    fn is_answered_yes(&self, address: SocketAddrV4) -> bool {
        ask(address, self.ask).is_ok_and(|answer| self.yes.iter().any(|yes| answer.contains(yes)))
    }
}

/// Sends a text and returns all that comes until the other side closes.
pub(super) fn ask(address: SocketAddrV4, text: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(text.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Starts a process from a thread that lives as long as the test's process does: a node must not end with whichever
/// thread of the test happened to start it.
fn spawn(command: Command, namespace: Option<Namespace>) -> io::Result<Child> {
    type Order = (Command, Option<Namespace>, mpsc::Sender<io::Result<Child>>);
    static STARTER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, of_thread) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, namespace, answer) in of_thread {
                // Nobody waits only where the test has panicked meanwhile; the child then ends with this process.
                let _ = answer.send(spawn_in(&mut command, namespace.as_ref()));
            }
        });
        orders
    });
    let (answer, child) = mpsc::channel();
    starter.send((command, namespace, answer)).expect("the thread lives as long as the process");
    child.recv().expect("every order is answered")
}

fn spawn_in(command: &mut Command, namespace: Option<&Namespace>) -> io::Result<Child> {
    let Some(namespace) = namespace else { return command.spawn() };
    let own = Namespace::current()?;
    namespace.enter();
    let child = command.spawn();
    own.enter();
    child
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const LOG_LINES_SHOWN: usize = 20;
