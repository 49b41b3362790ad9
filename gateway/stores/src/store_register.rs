//! A record in a store with several nodes: the store's own cold thread, with a connection to each node, one of which is
//! in use. [`StoreClient`] hides the differences between the stores.
//!
//! ```text
//!   election thread ── commands ──► store thread: request, request, … ──► node in use
//!        ▲                               │          watch             ◄──
//!        └──────── events ───────────────┘          spare connections ··► other nodes
//! ```
//! - A connection whose request ended in doubt, whose watch ended, or that was [dropped](Register::reconnect), is never
//!   used again. The next one is to another node where there is one, since a node that hangs keeps its connections.
//! - A request waits for a connection at most for its time-out, and then has not happened. Once submitted to a
//!   connection, it is answered or its outcome is unknown.
//! - Within one connection no older version is reported after a newer one.
//!
//! This thread may run anywhere except on the cores of the hot threads. It knows no deadline: deadlines count from when
//! the election thread submitted a request.

use std::{
    cell::{Cell, RefCell},
    fmt,
    future::{self, Future},
    io,
    rc::Rc,
    thread::JoinHandle,
    time::Duration,
};

use mdgw_election::{
    access::StoreAccess,
    record::Record,
    register::{Outcome, Register, RegisterEvent, RegisterSender, RequestId, StoreLink, Version, Versioned},
};
use mdgw_sys::scheduler::spawn_short_slice;
use tokio::{
    select,
    sync::{mpsc, watch},
    task::{JoinSet, LocalSet},
    time::{Instant, sleep, timeout, timeout_at},
};

/// One connection to one node. Clones share it.
pub(super) trait StoreClient: Clone + 'static {
    /// Where the record is, and with which credentials to reach it.
    type Settings: Send + 'static;

    /// Connects to one node, and checks that it answers and accepts the credentials. Fails with the reason.
    fn connect(settings: &Self::Settings, endpoint: &str) -> impl Future<Output = Result<Self, String>>;

    /// See [`Register::read`].
    fn read(&self) -> impl Future<Output = Outcome>;

    /// See [`Register::compare_and_swap`].
    fn compare_and_swap(&self, expected: Version, value: Vec<u8>) -> impl Future<Output = Outcome>;

    /// Reports the present record, then each change of it. Ends with the reason when it cannot continue.
    fn watch(&self, on_change: impl Fn(Option<Versioned>)) -> impl Future<Output = String>;
}

/// The register of one group in a store.
///
/// Dropping it waits for the submitted requests, at most for their time-out, since a release may be among them.
#[derive(Debug)]
pub struct StoreRegister {
    commands: Option<mpsc::UnboundedSender<Command>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Command {
    Read(RequestId),
    Swap { request_id: RequestId, expected: Version, value: Vec<u8> },
    Watch,
    Reconnect,
}

impl StoreRegister {
    /// Starts the thread, which then connects to the nodes.
    pub(super) fn open<C: StoreClient>(
        access: StoreAccess,
        settings: C::Settings,
        events: RegisterSender,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (commands, receiver) = mpsc::unbounded_channel();
        let thread = spawn_short_slice("mdgw-store", move || {
            let worker = StoreWorker::<C>::new(access, settings, events);
            LocalSet::new().block_on(&runtime, worker.run(receiver));
        })?;
        Ok(Self { commands: Some(commands), thread: Some(thread) })
    }

    fn command(&self, command: Command) {
        // The thread ends only after this value is dropped.
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
    }
}

impl Register for StoreRegister {
    fn read(&mut self, request_id: RequestId) {
        self.command(Command::Read(request_id));
    }

    fn compare_and_swap(&mut self, request_id: RequestId, expected: Version, record: &Record) {
        self.command(Command::Swap { request_id, expected, value: record.to_bytes() });
    }

    fn watch(&mut self) {
        self.command(Command::Watch);
    }

    fn reconnect(&mut self) {
        self.command(Command::Reconnect);
    }
}

impl Drop for StoreRegister {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// The answer to a read, from the stored value, which comes from outside.
pub(super) fn read_outcome(found: Option<(Version, &[u8])>) -> Outcome {
    match found.map(|(version, value)| versioned(version, value)).transpose() {
        Ok(record) => Outcome::Read(record),
        Err(reason) => Outcome::Failed(reason),
    }
}

/// A record with its version, or why the value is not a record.
pub(super) fn versioned(version: Version, value: &[u8]) -> Result<Versioned, String> {
    let record = Record::from_bytes(value).map_err(|error| error.to_string())?;
    Ok(Versioned { version, record })
}

/// State of the store's thread.
struct StoreWorker<C: StoreClient> {
    access: StoreAccess,
    settings: Rc<C::Settings>,
    events: RegisterSender,
    nodes: Vec<EndpointState<C>>,
    /// For each node, why the last attempt to connect failed, or that it has not answered yet.
    connect_errors: Rc<RefCell<Vec<String>>>,
    active: watch::Sender<Option<Rc<Connection<C>>>>,
    /// Number of connections used so far. It numbers each connection.
    connection_count: u64,
    reports: mpsc::UnboundedSender<Report<C>>,
    received_reports: mpsc::UnboundedReceiver<Report<C>>,
}

struct EndpointState<C> {
    spare: Option<C>,
    /// Pause before the next attempt to connect to this node.
    pause: Duration,
}

/// The connection in use.
struct Connection<C> {
    client: C,
    node: usize,
    number: u64,
    is_abandoned: watch::Sender<bool>,
    /// The newest version that was reported from this connection.
    newest: Cell<Version>,
}

/// Reports of the thread's tasks.
enum Report<C> {
    Connected {
        node: usize,
        result: Result<C, String>,
    },
    /// The connection with that number is no longer reliable.
    InDoubt {
        number: u64,
        why: String,
    },
}

impl<C: StoreClient> StoreWorker<C> {
    fn new(access: StoreAccess, settings: C::Settings, events: RegisterSender) -> Self {
        let (reports, received_reports) = mpsc::unbounded_channel();
        Self {
            nodes: access.endpoints.iter().map(|_| EndpointState { spare: None, pause: PAUSE_MIN }).collect(),
            connect_errors: Rc::new(RefCell::new(
                access.endpoints.iter().map(|node| format!("{node}: no answer yet")).collect(),
            )),
            access,
            settings: Rc::new(settings),
            events,
            active: watch::Sender::new(None),
            connection_count: 0,
            reports,
            received_reports,
        }
    }

    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut tasks = JoinSet::new();
        let mut requests = JoinSet::new();
        for node in 0..self.nodes.len() {
            tasks.spawn_local(self.connect(node, Duration::ZERO));
        }
        loop {
            select! {
                command = commands.recv() => match command {
                    Some(Command::Read(request_id)) => {
                        let read = |client: C| async move { client.read().await };
                        requests.spawn_local(self.request(request_id, read));
                    }
                    Some(Command::Swap { request_id, expected, value }) => {
                        let swap = move |client: C| async move { client.compare_and_swap(expected, value).await };
                        requests.spawn_local(self.request(request_id, swap));
                    }
                    Some(Command::Watch) => drop(tasks.spawn_local(self.watch())),
                    Some(Command::Reconnect) => {
                        let number = self.active.borrow().as_ref().map(|connection| connection.number);
                        number.into_iter().for_each(|number| self.abandon(number, "no answers within the timeout", &mut tasks));
                    }
                    None => break,
                },
                Some(report) = self.received_reports.recv() => match report {
                    Report::Connected { node, result } => self.connected(node, result, &mut tasks),
                    Report::InDoubt { number, why } => self.abandon(number, &why, &mut tasks),
                },
                // These two only remove finished tasks.
                Some(_) = tasks.join_next() => {}
                Some(_) = requests.join_next() => {}
            }
        }
        // No answer is awaited any more, but requests that were submitted should reach the store.
        let all = async { while requests.join_next().await.is_some() {} };
        let _ = timeout(self.access.request_timeout, all).await;
    }

    fn connect(&self, node: usize, pause: Duration) -> impl Future<Output = ()> + 'static {
        let endpoint = self.access.endpoints[node].clone();
        let (settings, reports) = (Rc::clone(&self.settings), self.reports.clone());
        async move {
            sleep(pause).await;
            let connecting = timeout(CONNECT_TIMEOUT, C::connect(&settings, &endpoint)).await;
            let result = connecting.unwrap_or_else(|_| Err(format!("no answer within {CONNECT_TIMEOUT:?}")));
            let _ = reports.send(Report::Connected { node, result });
        }
    }

    fn connected(&mut self, index: usize, result: Result<C, String>, tasks: &mut JoinSet<()>) {
        let node = &mut self.nodes[index];
        match result {
            Ok(client) => {
                node.spare = Some(client);
                node.pause = PAUSE_MIN;
                if self.active.borrow().is_none() {
                    self.use_spare(index);
                }
            }
            Err(connect_error) => {
                let pause = node.pause;
                node.pause = (pause * 2).min(PAUSE_MAX);
                let connect_error = format!("{}: {connect_error}", self.access.endpoints[index]);
                if self.connect_errors.borrow()[index] != connect_error {
                    tracing::warn!(connect_error, "cannot connect to the election store");
                }
                self.connect_errors.borrow_mut()[index] = connect_error;
                tasks.spawn_local(self.connect(index, pause));
            }
        }
    }

    /// Uses the spare connection to that node from now on, if there is one.
    fn use_spare(&mut self, index: usize) -> bool {
        let Some(client) = self.nodes[index].spare.take() else { return false };
        self.connection_count += 1;
        let number = self.connection_count;
        let (is_abandoned, newest) = (watch::Sender::new(false), Cell::new(Version::NONE));
        tracing::info!(endpoint = self.access.endpoints[index], "connected to the election store");
        // Reported first: an answer over this connection must not come before it.
        (self.events)(RegisterEvent::StoreLink(StoreLink::Up));
        self.active.send_replace(Some(Rc::new(Connection { client, node: index, number, is_abandoned, newest })));
        true
    }

    fn abandon(&mut self, number: u64, why: &str, tasks: &mut JoinSet<()>) {
        let is_same = |connection: &mut Option<Rc<Connection<C>>>| {
            connection.as_ref().is_some_and(|connection| connection.number == number)
        };
        let mut abandoned = None;
        // Reports about dropped connections may come late.
        self.active.send_if_modified(|active| {
            abandoned = if is_same(active) { active.take() } else { None };
            abandoned.is_some()
        });
        let Some(connection) = abandoned else { return };
        tracing::warn!(
            endpoint = self.access.endpoints[connection.node],
            why,
            "connection to the election store dropped"
        );
        connection.is_abandoned.send_replace(true);
        (self.events)(RegisterEvent::StoreLink(StoreLink::InDoubt));
        let (node, count) = (connection.node, self.nodes.len());
        tasks.spawn_local(self.connect(node, PAUSE_MIN));
        let _ = (1..=count).map(|step| (node + step) % count).any(|other| self.use_spare(other));
    }

    /// Sends a request over the connection in use, and reports the answer.
    fn request<F: Future<Output = Outcome>>(
        &self,
        request_id: RequestId,
        ask: impl FnOnce(C) -> F + 'static,
    ) -> impl Future<Output = ()> + 'static {
        let limit = self.access.request_timeout;
        let deadline = Instant::now() + limit;
        let mut active = self.active.subscribe();
        let (events, reports) = (RegisterSender::clone(&self.events), self.reports.clone());
        let connect_errors = Rc::clone(&self.connect_errors);
        async move {
            let Ok(connection) = timeout_at(deadline, connected(&mut active)).await else {
                let why = format!("no node of the store can be reached: {}", connect_errors.borrow().join("; "));
                return events(RegisterEvent::Answer { request_id, outcome: Outcome::Failed(why) });
            };
            let mut is_abandoned = connection.is_abandoned.subscribe();
            let outcome = select! {
                biased;
                outcome = timeout_at(deadline, ask(connection.client.clone())) =>
                    outcome.unwrap_or_else(|_| Outcome::Unknown(format!("no answer within {limit:?}"))),
                _ = is_abandoned.wait_for(|is| *is) => Outcome::Unknown("connection dropped".to_owned()),
            };
            if let Outcome::Unknown(why) = &outcome {
                let _ = reports.send(Report::InDoubt { number: connection.number, why: why.clone() });
            }
            if let Outcome::Swapped(version) | Outcome::Read(Some(Versioned { version, .. })) = &outcome {
                connection.newest.set(connection.newest.get().max(*version));
            }
            events(RegisterEvent::Answer { request_id, outcome });
        }
    }

    /// Watches over the connection in use, without end.
    fn watch(&self) -> impl Future<Output = ()> + 'static {
        let mut active = self.active.subscribe();
        let (events, reports) = (RegisterSender::clone(&self.events), self.reports.clone());
        async move {
            loop {
                let connection = connected(&mut active).await;
                let mut is_abandoned = connection.is_abandoned.subscribe();
                let on_change = |found: Option<Versioned>| {
                    let version = found.as_ref().map_or(Version::NONE, |found| found.version);
                    // An answer overtook the watch: this record is older than one that was reported.
                    if version != Version::NONE && version < connection.newest.get() {
                        return;
                    }
                    connection.newest.set(version);
                    events(RegisterEvent::Changed(found));
                };
                let ended = select! {
                    why = connection.client.watch(on_change) => Some(why),
                    _ = is_abandoned.wait_for(|is| *is) => None,
                };
                if let Some(why) = ended {
                    let _ = reports.send(Report::InDoubt { number: connection.number, why });
                    let _ = is_abandoned.wait_for(|is| *is).await;
                }
            }
        }
    }
}

impl<C: StoreClient> fmt::Debug for StoreWorker<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreWorker").field("access", &self.access).finish_non_exhaustive()
    }
}

/// The connection in use, as soon as there is one.
async fn connected<C>(active: &mut watch::Receiver<Option<Rc<Connection<C>>>>) -> Rc<Connection<C>> {
    loop {
        match active.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(connection)) => return Rc::clone(connection),
            Ok(None) => {}
            // The thread is ending, and this task with it.
            Err(_) => future::pending().await,
        }
    }
}

/// Time limit of an attempt to connect. A running node answers within milliseconds, one that checks a password within
/// tenths of a second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// First pause between two attempts to connect to one node.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause between two attempts to connect to one node.
const PAUSE_MAX: Duration = Duration::from_secs(1);
