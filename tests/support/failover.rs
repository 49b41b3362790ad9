//! Elections by votes: two gateways and a witness as processes of their own, for the test that kills them and the
//! benchmark that measures it.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, SocketAddrV4},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use mdgw_election::{
    auth::{Nonce, SharedKey},
    core::CloseReason,
    driver::{Election, ElectionHooks, ElectionOptions, inbox},
    fitness::Eligibility,
    identity::{Incarnation, Member, NodeId, NodeName},
    latch::LeaderLatch as _,
    quorum::{
        backend::QuorumTransport,
        candidate::{Candidate, CandidateConfig, vote_ns_max},
        link::VoteLink,
        vote_file::VoteFile,
        witness::{Witness, WitnessOptions},
    },
    record::ConfigVersion,
    timing::LeaseTiming,
};
use mdgw_feeds::identity::{Epoch, GroupId};
use mdgw_sys::{clock::mono_now, fence::Fence};

use crate::gateway_fixture::free_address;

/// Lease, renewal and margin, ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimingMs(pub u64, pub u64, pub u64);

impl LeaseTimingMs {
    /// Parses a timing such as `20/4/4`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/').map(str::parse);
        let timing = Self(parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
        (parts.next().is_none() && timing.lease().check().is_ok()).then_some(timing)
    }

    fn lease(self) -> LeaseTiming {
        LeaseTiming::from_ms(self.0, self.1, self.2)
    }
}

impl FromStr for LeaseTimingMs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or_else(|| "LEASE/RENEWAL/MARGIN in ms, such as 20/4/4".to_owned())
    }
}

impl fmt::Display for LeaseTimingMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.0, self.1, self.2)
    }
}

/// The role and arguments of one process of the cluster: gateways 1 and 2, witness 3.
#[derive(Clone, Debug)]
pub struct ClusterProcess {
    node: u8,
    incarnation: u64,
    timing: LeaseTimingMs,
    directory: PathBuf,
    ports: [u16; 3],
}

impl ClusterProcess {
    /// Parses the arguments that [`VoteCluster`] gives its processes; `None` for other arguments.
    #[must_use]
    pub fn parse(args: &[String]) -> Option<Self> {
        let [role, node, incarnation, timing, directory, a, b, c] = args else { return None };
        let port = |text: &String| text.parse().ok();
        (role == "role").then_some(())?;
        Some(Self {
            node: node.parse().ok()?,
            incarnation: incarnation.parse().ok()?,
            timing: LeaseTimingMs::parse(timing)?,
            directory: directory.into(),
            ports: [port(a)?, port(b)?, port(c)?],
        })
    }

    /// Runs the process until it is killed or its standard input ends.
    #[must_use]
    pub fn run(self) -> ExitCode {
        match self.try_run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                write_event(&format!("failed {error}"));
                ExitCode::from(2)
            }
        }
    }

    fn try_run(self) -> Result<(), String> {
        let text = |error: &dyn fmt::Display| error.to_string();
        let address = |node: u8| SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.ports[usize::from(node) - 1]);
        let key = SharedKey::load(&self.directory.join("key")).map_err(|error| text(&error))?;
        let peers = (1..=3).filter(|node| *node != self.node).map(|node| (NodeId(node), address(node))).collect();
        let link = VoteLink::open(address(self.node), NodeId(self.node), key, peers).map_err(|error| text(&error))?;
        let votes = self.directory.join(format!("votes-{}", self.node));
        let stop = Arc::new(AtomicBool::new(false));
        if self.node == 3 {
            let options =
                WitnessOptions { node: NodeId(3), vote_directory: votes, rate_error_ppm: 1_000, groups_max: 4 };
            let witness = Witness::new(link, options)?;
            write_event("ready");
            let ends = Arc::clone(&stop);
            thread::spawn(move || {
                wait_for_stdin_close();
                ends.store(true, Ordering::Relaxed);
            });
            return witness.run(&stop).map_err(|error| text(&error));
        }
        let file = VoteFile::open(&votes, GROUP).map_err(|error| text(&error))?;
        let (inbox, waiting) = inbox();
        let nonce = Nonce::random().map_err(|error| text(&error))?.number();
        let core = Candidate::new(mono_now(), self.config(nonce), file.durable(), Epoch::default());
        let backends = Arc::new(QuorumTransport::start(link).map_err(|error| text(&error))?);
        let backend = backends.backend(GROUP, file, &inbox).map_err(|error| text(&error))?;
        let options = ElectionOptions {
            group: self.node.into(),
            timing: self.timing(),
            core: None,
            fifo_priority: None,
            listeners_ns_max: 0,
            peers: Vec::new(),
        };
        let fence = Arc::new(Fence::closed());
        let election =
            Election::new(core, backend, Arc::clone(&fence), waiting, &inbox, Box::new(FenceReporter(fence)), options);
        election.set_eligibility(Eligibility::Eligible);
        election.start().map_err(|error| text(&error))?;
        write_event("ready");
        wait_for_stdin_close();
        election.close();
        Ok(())
    }

    fn timing(&self) -> LeaseTiming {
        // Clocks of virtual machines are slewed more than those of real machines.
        LeaseTiming { rate_error_ppm: 1_000, ..self.timing.lease() }
    }

    fn config(&self, nonce: u64) -> CandidateConfig {
        let name = |node: u8| NodeName::new(&format!("n{node}")).unwrap_or_else(|| unreachable!("a plain name"));
        let all = |count: u8| (1..=count).map(|node| (NodeId(node), name(node))).collect::<BTreeMap<_, _>>();
        let timing = self.timing();
        CandidateConfig {
            group: GROUP,
            member: Member {
                node: NodeId(self.node),
                name: name(self.node),
                incarnation: Incarnation(self.incarnation),
            },
            voters: all(3),
            candidates: all(2),
            timing,
            configuration: ConfigVersion::default(),
            vote_ns_max: vote_ns_max(&timing),
            nonce,
        }
    }
}

const GROUP: GroupId = GroupId(1);

/// Reports openings and closings of the fence, with the time.
struct FenceReporter(Arc<Fence>);

impl ElectionHooks for FenceReporter {
    fn on_leadership(&mut self, epoch: Epoch, lost: Option<CloseReason>) {
        let now = mono_now();
        match lost {
            None => write_event(&format!("open {} {} {}", now.0, epoch.0, u8::from(self.0.is_open_at(now)))),
            Some(_) => write_event(&format!("close {} {}", now.0, epoch.0)),
        }
    }
}

fn write_event(text: &str) {
    let mut stdout = io::stdout().lock();
    // Writing fails only when the reader has ended; this process is then killed soon.
    let _written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

fn wait_for_stdin_close() {
    let mut line = String::new();
    // Any result of the read means that standard input has ended.
    let _eof = io::stdin().read_line(&mut line);
}

/// An event that a process reported on standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// The gateway is eligible, or the witness votes.
    Ready,
    /// The process has opened its fence: it leads.
    Open {
        /// Time, `CLOCK_BOOTTIME` in ns.
        at_ns: u64,
        /// The epoch under which the fence opened.
        epoch: Epoch,
    },
    /// The process has closed its fence: it leads no more.
    Close {
        /// Time, `CLOCK_BOOTTIME` in ns.
        at_ns: u64,
        /// The epoch that closed.
        epoch: Epoch,
    },
    /// The process ended, with its last line of output.
    Ended(String),
}

impl ProcessEvent {
    fn parse(line: &str) -> Self {
        let mut fields = line.split(' ');
        let keyword = fields.next();
        let mut number = || fields.next().and_then(|keyword| keyword.parse().ok()).unwrap_or(0);
        match keyword {
            Some("ready") => Self::Ready,
            Some("open") => Self::Open { at_ns: number(), epoch: Epoch(number()) },
            Some("close") => Self::Close { at_ns: number(), epoch: Epoch(number()) },
            _ => Self::Ended(line.to_owned()),
        }
    }
}

/// The processes of a cluster: two gateways with their elections, and a witness.
#[derive(Debug)]
pub struct VoteCluster {
    program: PathBuf,
    timing: LeaseTimingMs,
    directory: tempfile::TempDir,
    ports: [u16; 3],
    children: BTreeMap<u8, (u64, Child)>,
    events: mpsc::Receiver<(u8, u64, ProcessEvent)>,
    event_sender: mpsc::Sender<(u8, u64, ProcessEvent)>,
    /// All openings so far: node, time in ns, epoch.
    pub openings: Vec<(u8, u64, Epoch)>,
    leader: Option<u8>,
    start_count: u64,
}

/// The result of killing the leader.
#[derive(Clone, Copy, Debug)]
pub struct Failover {
    /// Time from just before the signal until the peer's fence opened, ns.
    pub failover_ns: u64,
    /// Openings since the last failover that no kill caused.
    pub unprovoked_elections: usize,
}

impl VoteCluster {
    /// Starts all three processes, with vote files below `votes`.
    ///
    /// # Errors
    /// When a process can't be started.
    pub fn start(program: &Path, votes: &Path, timing: LeaseTimingMs) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("failover").tempdir_in(votes)?;
        let key = directory.path().join("key");
        std::fs::write(&key, "5a".repeat(32))?;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
        let (event_sender, events) = mpsc::channel();
        let mut cluster = Self {
            program: program.to_owned(),
            timing,
            directory,
            ports: [(); 3].map(|()| free_address().port()),
            children: BTreeMap::new(),
            events,
            event_sender,
            openings: Vec::new(),
            leader: None,
            start_count: 0,
        };
        for node in [3, 1, 2] {
            cluster.start_node(node)?;
        }
        Ok(cluster)
    }

    /// Starts or restarts that node.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start_node(&mut self, node: u8) -> io::Result<()> {
        self.start_count += 1;
        let start = self.start_count;
        let mut child = Command::new(&self.program)
            .args(["role", &node.to_string(), &start.to_string(), &self.timing.to_string()])
            .arg(self.directory.path())
            .args(self.ports.map(|port| port.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no standard output"))?;
        let event_sender = self.event_sender.clone();
        thread::spawn(move || {
            let mut last = String::new();
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Sending fails only after the cluster is dropped.
                let _sent = event_sender.send((node, start, ProcessEvent::parse(&line)));
                last = line;
            }
            let _sent = event_sender.send((node, start, ProcessEvent::Ended(last)));
        });
        self.children.insert(node, (start, child));
        Ok(())
    }

    /// Waits until a gateway leads, and returns its node id.
    ///
    /// # Errors
    /// When no gateway leads within a minute.
    pub fn wait_for_leader(&mut self) -> Result<u8, String> {
        while self.leader.is_none() {
            self.next_event()?;
        }
        self.leader.ok_or_else(|| unreachable!("just seen"))
    }

    /// Applies the next event of any process.
    ///
    /// # Errors
    /// When no event comes within a minute, or a process failed.
    pub fn next_event(&mut self) -> Result<(u8, ProcessEvent), String> {
        let next = self.events.recv_timeout(EVENT_TIMEOUT).map_err(|_| "nothing happened for a minute".to_owned())?;
        self.take(next)
    }

    fn take(&mut self, (node, start, event): (u8, u64, ProcessEvent)) -> Result<(u8, ProcessEvent), String> {
        let is_current = self.children.get(&node).is_some_and(|(current, _)| *current == start);
        match &event {
            ProcessEvent::Open { at_ns, epoch } => {
                self.openings.push((node, *at_ns, *epoch));
                self.leader = Some(node);
            }
            ProcessEvent::Close { .. } => {
                self.leader.take_if(|leader| *leader == node);
            }
            ProcessEvent::Ended(why) if is_current => return Err(format!("node {node} has ended: {why}")),
            ProcessEvent::Ready | ProcessEvent::Ended(_) => {}
        }
        Ok((node, event))
    }

    /// Sends a signal to that node.
    pub fn signal(&mut self, node: u8, signal: i32) {
        if let Some((_, child)) = self.children.get(&node) {
            let pid = i32::try_from(child.id()).unwrap_or_else(|_| unreachable!("process ids fit"));
            signal_process(pid, signal);
        }
    }

    /// Kills that node without waiting for a failover.
    pub fn kill(&mut self, node: u8) {
        if let Some((_, mut child)) = self.children.remove(&node) {
            // A child of this process: both calls fail only if it has ended already.
            let _exited = child.kill().and_then(|()| child.wait());
        }
        self.leader.take_if(|leader| *leader == node);
    }

    /// Kills the leader, waits until the peer leads, restarts the killed gateway and waits until it renews.
    ///
    /// # Errors
    /// When that doesn't happen.
    pub fn kill_leader_and_wait(&mut self) -> Result<Failover, String> {
        let before = self.openings.len();
        let leader = self.wait_for_leader()?;
        // This varies the phase of the renewals. It also gives the gateway that was started last the time to wait for
        // the end of a lease and to receive renewals.
        let jitter_ms = 7 * u64::try_from(self.openings.len()).unwrap_or(0) % (2 * self.timing.1 + 1);
        thread::sleep(Duration::from_millis(3 * self.timing.0 + jitter_ms));
        while let Ok(next) = self.events.try_recv() {
            self.take(next)?;
        }
        if self.leader != Some(leader) {
            return self.kill_leader_and_wait();
        }
        let unprovoked_elections = (self.openings.len() - before).saturating_sub(usize::from(before == 0));
        let (killed_ns, count) = (mono_now().0, self.openings.len());
        self.kill(leader);
        while self.openings.len() == count {
            self.next_event()?;
        }
        let failover_ns = self.openings[count].1.saturating_sub(killed_ns);
        self.start_node(leader).map_err(|error| error.to_string())?;
        while self.next_event()? != (leader, ProcessEvent::Ready) {}
        Ok(Failover { failover_ns, unprovoked_elections })
    }
}

impl Drop for VoteCluster {
    fn drop(&mut self) {
        for node in [1, 2, 3] {
            self.kill(node);
        }
    }
}

/// Milliseconds with two decimals.
#[must_use]
pub fn ms(ns: u64) -> String {
    format!("{}.{:02}", ns / 1_000_000, ns / 10_000 % 100)
}

fn signal_process(pid: i32, signal: i32) {
    // The program `kill` sends the signal, since no safe call for that exists here.
    let name = signal.to_string();
    let _exited = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
}

const EVENT_TIMEOUT: Duration = Duration::from_secs(60);
