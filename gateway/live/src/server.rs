//! The TCP server: accepts clients within the limits, authenticates them, and serves each as a task.

use std::{
    collections::HashMap,
    net::{IpAddr, Shutdown, SocketAddr},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_keys::KeyError;
use mdgw_sys::alarm::Alarm;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io,
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    admissions::{Admission, Admissions, ConnectionRate, NoRoom},
    connection::{self, Connection, ConnectionLimits},
    keys::ClientKeys,
    open_sessions::{Entry, OpenSessions, SessionProgress, SessionStatus, SessionTotals},
    protocol::{self, AuthRequest, LineBuffer, ProtocolLimits, Session, Step, auth},
    stream::{channel::ChannelSource, dataset::Dataset, feeder},
};

/// What a live server is made of.
#[derive(Clone, Debug)]
pub struct LiveConfig {
    /// Address on which clients connect.
    pub listen: SocketAddr,
    /// File of the clients' keys.
    pub key_file: PathBuf,
    /// The channels whose logs are served. Channels of one feed are one dataset.
    pub channels: Vec<ChannelSource>,
    /// Bounds.
    pub limits: LiveLimits,
}

/// Bounds of a live server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveLimits {
    /// Sessions at a time.
    pub sessions_max: usize,
    /// Connections that are not authenticated yet, at a time; of one address at most half of them.
    pub handshakes_max: usize,
    /// Connections accepted per second; further ones are closed at once.
    pub handshakes_per_second: u32,
    /// How long an authentication may take, ns.
    pub handshake_timeout_ns: u64,
    /// Failed authentications per minute and address; further connections of the address are closed at once.
    pub failures_per_minute: u32,
    /// Bytes of a line.
    pub line_bytes_max: usize,
    /// Symbols of a session.
    pub symbols_max: usize,
    /// Bytes that a session may be behind.
    pub queue_bytes_max: u64,
    /// Replays of a dataset at a time; further ones wait.
    pub replays_max: usize,
    /// How long a client may take nothing at all, ns.
    pub stall_ns: u64,
    /// Threads of the server.
    pub threads: usize,
}

/// Counts since the start.
#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    sessions: AtomicU64,
    refused_rate: AtomicU64,
    refused_address: AtomicU64,
    failed_handshakes: AtomicU64,
    too_slow: AtomicU64,
    of_sessions: Arc<SessionTotals>,
}

/// A copy of the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// Accepted connections.
    pub connections: u64,
    /// Authenticated sessions.
    pub sessions: u64,
    /// Connections closed since there were too many at once or in a second.
    pub refused_rate: u64,
    /// Connections closed since their address failed too often.
    pub refused_address: u64,
    /// Handshakes that failed: wrong keys, wrong requests, time-outs.
    pub failed_handshakes: u64,
    /// Sessions ended since the client was too slow.
    pub too_slow: u64,
    /// Bytes that the sockets of all sessions took.
    pub sent_bytes: u64,
    /// How often records were skipped for a slow client.
    pub skips: u64,
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The address cannot be used.
    #[error("live: cannot listen on {address}: {source}")]
    Listen {
        /// Configured address.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The key file cannot be used.
    #[error("live: {0}")]
    Keys(#[from] KeyError),
    /// A thread could not be started.
    #[error("live: cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A running server.
#[derive(Debug)]
pub struct LiveServer {
    shared: Arc<ServerState>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    feeders: Vec<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

/// Shows a server to operators. It may outlive the server.
#[derive(Clone, Debug)]
pub struct LiveMonitor {
    shared: Arc<ServerState>,
}

impl LiveMonitor {
    /// The open sessions, the oldest first.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionStatus> {
        self.shared.open_sessions.status()
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> LiveCounts {
        self.shared.counts()
    }

    /// See [`LiveServer::is_accepting`].
    #[must_use]
    pub fn is_accepting(&self) -> bool {
        self.shared.is_accepting.load(Relaxed)
    }
}

#[derive(Debug)]
struct ServerState {
    config: LiveConfig,
    datasets: Vec<Arc<Dataset>>,
    keys: RwLock<Arc<ClientKeys>>,
    counters: Counters,
    /// By address.
    handshakes: Arc<Admissions<IpAddr>>,
    /// By name of key.
    sessions: Arc<Admissions<String>>,
    open_sessions: OpenSessions,
    failures: Mutex<HashMap<IpAddr, (Instant, u32)>>,
    session_id: AtomicU64,
    /// Whether the port is open.
    is_accepting: AtomicBool,
}

impl LiveServer {
    /// Reads the keys, starts the feeders and listens.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn start(config: LiveConfig) -> Result<Self, LiveError> {
        let keys = ClientKeys::load(&config.key_file)?;
        let listen_error = |source| LiveError::Listen { address: config.listen, source };
        let listener = std::net::TcpListener::bind(config.listen).map_err(listen_error)?;
        listener.set_nonblocking(true).map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.limits.threads)
            .thread_name("live")
            .enable_all()
            .build()
            .map_err(LiveError::Thread)?;
        let datasets = datasets(&config);
        let start = |dataset: &Arc<Dataset>| feeder::start(Arc::clone(dataset));
        let feeders = datasets.iter().map(start).collect::<io::Result<_>>().map_err(LiveError::Thread)?;
        let shared = Arc::new(ServerState {
            handshakes: Admissions::new(config.limits.handshakes_max),
            datasets,
            keys: RwLock::new(Arc::new(keys)),
            counters: Counters::default(),
            sessions: Admissions::new(config.limits.sessions_max),
            open_sessions: OpenSessions::default(),
            failures: Mutex::default(),
            session_id: AtomicU64::new(connection::now_ns()),
            is_accepting: AtomicBool::new(false),
            config,
        });
        let stop = watch::Sender::new(false);
        let (accepting, receiver) = (Arc::clone(&shared), stop.subscribe());
        runtime.spawn(async move {
            match TcpListener::from_std(listener) {
                Ok(listener) => accept(&accepting, listener, address, receiver).await,
                Err(error) => {
                    tracing::error!(alarm = Alarm::LiveClosed.name(), %error, "live: cannot accept clients until the next start");
                }
            }
        });
        Ok(Self { shared, address, stop, feeders, runtime: Some(runtime) })
    }

    /// The address on which clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether all logs have been read up to their ends since the start.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.shared.datasets.iter().all(|dataset| *dataset.is_current.borrow())
    }

    /// Reads the key file again. Open sessions stay open.
    ///
    /// # Errors
    /// When the file cannot be used; the keys then stay as they are.
    pub fn reload_keys(&self) -> Result<usize, KeyError> {
        let keys = ClientKeys::load(&self.shared.config.key_file)?;
        let count = keys.count();
        *self.shared.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        Ok(count)
    }

    /// Whether a thread that reads a log has ended although the server runs.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.feeders.iter().any(JoinHandle::is_finished)
    }

    /// Whether the port is closed since no gateway writes the logs.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Whether clients can connect. A port that another process took while it was closed cannot be opened again.
    #[must_use]
    pub fn is_accepting(&self) -> bool {
        self.shared.is_accepting.load(Relaxed)
    }

    /// What shows the server to operators.
    #[must_use]
    pub fn monitor(&self) -> LiveMonitor {
        LiveMonitor { shared: Arc::clone(&self.shared) }
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> LiveCounts {
        self.shared.counts()
    }

    /// Ends all sessions with an error record, so that their clients reconnect, and stops.
    pub fn stop(mut self) {
        self.stop.send_replace(true);
        for dataset in &self.shared.datasets {
            dataset.stop.store(true, Relaxed);
        }
        if let Some(runtime) = self.runtime.take() {
            let deadline = std::time::Instant::now() + STOP_TIMEOUT;
            while self.shared.sessions.count() > 0 && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            runtime.shutdown_timeout(Duration::from_millis(100));
        }
        for feeder in self.feeders.drain(..) {
            let _ = feeder.join();
        }
    }
}

/// How long sessions have to take their last bytes.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// How often the server checks whether the gateway runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Addresses with failed authentications that are remembered.
const FAILURES_MAX: usize = 1_024;

fn datasets(config: &LiveConfig) -> Vec<Arc<Dataset>> {
    let mut groups: Vec<(&'static str, Vec<ChannelSource>)> = Vec::new();
    for channel in &config.channels {
        let name = channel.feed.dataset();
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sources)) => sources.push(channel.clone()),
            None => groups.push((name, vec![channel.clone()])),
        }
    }
    // Sessions may be that much behind, and a slow one notices before its position is gone.
    let ring_bytes = usize::try_from(config.limits.queue_bytes_max.saturating_mul(2)).unwrap_or(usize::MAX);
    let replays_max = config.limits.replays_max;
    groups.into_iter().map(|(name, sources)| Arc::new(Dataset::new(name, sources, ring_bytes, replays_max))).collect()
}

/// The port for clients, and whether operators see it as open. However the accepting task ends, the port is closed and shown so.
struct Port<'a> {
    listener: Option<TcpListener>,
    is_open: &'a AtomicBool,
}

impl Port<'_> {
    fn open(&mut self, listener: TcpListener) {
        self.listener = Some(listener);
        self.is_open.store(true, Relaxed);
    }

    /// Whether the port was open.
    fn close(&mut self) -> bool {
        self.is_open.store(false, Relaxed);
        self.listener.take().is_some()
    }
}

impl Drop for Port<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Accepts connections while the gateway runs. Clients take the first address that accepts: while nothing is served here, the kernel
/// refuses them, and they go on at the other gateway.
async fn accept(
    shared: &Arc<ServerState>,
    listener: TcpListener,
    address: SocketAddr,
    mut stop: watch::Receiver<bool>,
) {
    let alarm = Alarm::LiveClosed.name();
    let mut port = Port { listener: None, is_open: &shared.is_accepting };
    port.open(listener);
    let mut rate = ConnectionRate::new(shared.config.limits.handshakes_per_second);
    let mut checks = tokio::time::interval(CHECK_INTERVAL);
    let mut is_failing = false;
    loop {
        if shared.is_closed() {
            is_failing = false;
            if port.close() {
                tracing::warn!(alarm, "live: no gateway writes the logs, the port is closed");
            }
        } else if port.listener.is_none() {
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    port.open(listener);
                    is_failing = false;
                    tracing::info!(ends = alarm, "live: the port is open again");
                }
                Err(error) if !std::mem::replace(&mut is_failing, true) => {
                    tracing::error!(alarm, %error, %address, "live: cannot listen again, trying on");
                }
                Err(_) => {}
            }
        }
        let next = async {
            match &port.listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        let accepted = tokio::select! {
            accepted = next => accepted,
            _ = checks.tick() => continue,
            _ = stop.changed() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // No descriptor is left, or the client has gone: others may be able to connect in a moment.
                tracing::warn!(%error, "live: cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        shared.counters.connections.fetch_add(1, Relaxed);
        if let Some(refused) = rate.advance(std::time::Instant::now()) {
            tracing::warn!(%peer, refused, "live: too many connections in a second");
        }
        // What is refused for its address alone does not count towards the limit of a second: others would be refused for it.
        if shared.is_blocked(peer.ip()) {
            shared.counters.refused_address.fetch_add(1, Relaxed);
            refuse(&stream, "Too many failed authentications: try again in a minute");
            continue;
        }
        let of_address_max = shared.config.limits.handshakes_max.div_ceil(2);
        let permit = shared.handshakes.admit(peer.ip(), of_address_max);
        let is_within_rate = matches!(permit, Err(NoRoom::OfOwner(_))) || rate.admit(peer.ip());
        let (true, Ok(permit)) = (is_within_rate, permit) else {
            shared.counters.refused_rate.fetch_add(1, Relaxed);
            refuse(&stream, "Too many connections: try again");
            continue;
        };
        let (shared, stop) = (Arc::clone(shared), stop.clone());
        tokio::spawn(async move {
            let limit = Duration::from_nanos(shared.config.limits.handshake_timeout_ns);
            let outcome = timeout(limit, handshake(&shared, &stream)).await;
            drop(permit);
            let refusal = match outcome {
                Ok(Ok(admitted)) => match welcome(&shared, &stream, &admitted).await {
                    Ok(()) => return serve(&shared, stream, peer, admitted, stop).await,
                    Err(refusal) => refusal,
                },
                Ok(Err(refusal)) => refusal,
                Err(_) => Refusal::of_peer("no authentication in time"),
            };
            shared.count_failure(peer, &refusal);
        });
    }
}

/// Answers a client whose request is not read, as far as that takes no waiting. Clients wait for a greeting before anything else; the
/// challenge in it belongs to no session.
fn refuse(stream: &TcpStream, reason: &str) {
    let answer = protocol::greeting("refused") + &protocol::failure(reason);
    // A client that does not get it sees the connection end.
    let _ = stream.try_write(answer.as_bytes());
    let _ = SockRef::from(stream).shutdown(Shutdown::Write);
}

/// A client whose key is right, before it gets the answer.
struct Admitted {
    challenge: String,
    lines: LineBuffer,
    protocol: Session,
    auth: AuthRequest,
    dataset: Arc<Dataset>,
    session: Admission<String>,
}

/// Why a client is not served.
struct Refusal {
    reason: String,
    /// Whether it counts against the peer's address.
    is_fault_of_peer: bool,
    /// Whether the peer came only to see that somebody listens, as health checks do.
    is_health_check: bool,
}

impl Refusal {
    fn of_peer(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_fault_of_peer: true, is_health_check: false }
    }

    fn of_server(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_fault_of_peer: false, is_health_check: false }
    }

    fn of_health_check() -> Self {
        Self { is_health_check: true, ..Self::of_server("closed without a request") }
    }
}

/// Greets, challenges and decides. A client that is refused has had its answer.
async fn handshake(shared: &Arc<ServerState>, stream: &TcpStream) -> Result<Admitted, Refusal> {
    let text = |error: io::Error| Refusal::of_peer(error.to_string());
    let own = |error: io::Error| Refusal::of_server(error.to_string());
    stream.set_nodelay(true).map_err(own)?;
    // Notices a client whose host is gone before it starts its session. Later, heartbeats that nobody acknowledges hold the probes back.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive).map_err(own)?;
    // This notices it then. It also ends a client that takes nothing, but later than the session does, which says why.
    let unacknowledged_max = Duration::from_nanos(shared.config.limits.stall_ns) + KEEPALIVE_INTERVAL;
    SockRef::from(stream).set_tcp_user_timeout(Some(unacknowledged_max)).map_err(own)?;
    let challenge = auth::new_challenge().map_err(own)?;
    write_all(stream, protocol::greeting(&challenge).as_bytes()).await.map_err(|_| Refusal::of_health_check())?;
    let mut lines = LineBuffer::new(shared.config.limits.line_bytes_max);
    let mut protocol = Session::new(ProtocolLimits { symbols_max: shared.config.limits.symbols_max });
    let mut received = [0; 1 << 10];
    let mut has_received = false;
    let decided = loop {
        let step = match lines.next_line() {
            Ok(Some(line)) => protocol.accept(line),
            Ok(None) => {
                let bytes = match read_some(stream, &mut received).await {
                    // A health check leaves the greeting unread, so its end is a reset.
                    Ok(0) | Err(_) if !has_received => return Err(Refusal::of_health_check()),
                    Ok(0) => return Err(Refusal::of_peer("closed before the authentication")),
                    bytes => bytes.map_err(text)?,
                };
                has_received = true;
                lines.push(received.get(..bytes).unwrap_or_default());
                continue;
            }
            Err(error) => Step::Refuse(error.to_string()),
        };
        match step {
            Step::Wait => {}
            Step::Authenticate(request) => {
                break shared.admit(&challenge, &request).map(|admitted| (request, admitted));
            }
            Step::Refuse(reason) | Step::Report(reason) => break Err(Refusal::of_peer(reason)),
            Step::Start | Step::Subscribe(_) | Step::Unsubscribe(_) => {
                break Err(Refusal::of_peer("not authenticated"));
            }
        }
    };
    match decided {
        Ok((auth, (session, dataset))) => Ok(Admitted { challenge, lines, protocol, auth, dataset, session }),
        Err(refusal) => {
            let _ = write_all(stream, protocol::failure(&refusal.reason).as_bytes()).await;
            Err(refusal)
        }
    }
}

/// Waits until the dataset's log has been read, since official clients give up at the first refusal. Meanwhile the client
/// holds no handshake permit, but counts as a session of its key. A client that is refused has had its answer.
async fn welcome(shared: &ServerState, stream: &TcpStream, admitted: &Admitted) -> Result<(), Refusal> {
    let mut is_current = admitted.dataset.is_current.subscribe();
    let limit = Duration::from_nanos(shared.config.limits.handshake_timeout_ns);
    let refusal = if !matches!(timeout(limit, is_current.wait_for(|is_current| *is_current)).await, Ok(Ok(_))) {
        Some(Refusal::of_server("The gateway is still reading its log: try again"))
    } else if admitted.dataset.logs.borrow().is_abandoned {
        Some(Refusal::of_server("The gateway does not run: try again, or try the other gateway"))
    } else if shared.keys().find(&admitted.challenge, &admitted.auth.auth).is_none() {
        // The key was taken away while the client waited.
        Some(Refusal::of_peer("Authentication failed"))
    } else {
        None
    };
    if let Some(refusal) = refusal {
        let _ = write_all(stream, protocol::failure(&refusal.reason).as_bytes()).await;
        return Err(refusal);
    }
    Ok(())
}

async fn serve(
    shared: &ServerState,
    stream: TcpStream,
    peer: SocketAddr,
    admitted: Admitted,
    stop: watch::Receiver<bool>,
) {
    let Admitted { lines, mut protocol, auth, dataset, session, .. } = admitted;
    let key = session.owner();
    let session_id = shared.session_id.fetch_add(1, Relaxed);
    protocol.authenticated();
    if write_all(&stream, protocol::success(session_id).as_bytes()).await.is_err() {
        return;
    }
    shared.counters.sessions.fetch_add(1, Relaxed);
    tracing::info!(%peer, key, session_id, dataset = dataset.name, client = auth.client, "live: session");
    let limits = &shared.config.limits;
    let limits = ConnectionLimits {
        symbols_max: limits.symbols_max,
        queue_bytes_max: limits.queue_bytes_max,
        stall: Duration::from_nanos(limits.stall_ns),
    };
    let progress = Arc::new(SessionProgress::new(Arc::clone(&shared.counters.of_sessions)));
    let entry = Entry {
        peer,
        key: key.clone(),
        client: auth.client.clone(),
        dataset: Arc::clone(&dataset),
        began_ns: connection::now_ns(),
        progress: Arc::clone(&progress),
    };
    let _listed = shared.open_sessions.list(session_id, entry);
    let connection = Connection { stream, lines, protocol, auth, dataset, limits, progress, stop };
    let ending = connection::serve(connection).await;
    if ending == connection::Ending::TooSlow {
        shared.counters.too_slow.fetch_add(1, Relaxed);
    }
    tracing::info!(%peer, key, session_id, ?ending, "live: session ended");
}

impl ServerState {
    /// Whether no gateway writes the logs of any dataset.
    fn is_closed(&self) -> bool {
        self.datasets.iter().all(|dataset| dataset.logs.borrow().is_closed)
    }

    fn counts(&self) -> LiveCounts {
        let counters = &self.counters;
        LiveCounts {
            connections: counters.connections.load(Relaxed),
            sessions: counters.sessions.load(Relaxed),
            refused_rate: counters.refused_rate.load(Relaxed),
            refused_address: counters.refused_address.load(Relaxed),
            failed_handshakes: counters.failed_handshakes.load(Relaxed),
            too_slow: counters.too_slow.load(Relaxed),
            sent_bytes: counters.of_sessions.sent_bytes.load(Relaxed),
            skips: counters.of_sessions.skips.load(Relaxed),
        }
    }

    /// Decides about an authentication request, and counts the session.
    fn admit(&self, challenge: &str, request: &AuthRequest) -> Result<(Admission<String>, Arc<Dataset>), Refusal> {
        let keys = self.keys();
        let key = keys.find(challenge, &request.auth).ok_or_else(|| Refusal::of_peer("Authentication failed"))?;
        let is_allowed = key.datasets.is_empty() || key.datasets.contains(&request.dataset);
        let dataset = self.datasets.iter().find(|dataset| dataset.name == request.dataset);
        // The key was right: nobody is guessing.
        let unknown = || Refusal::of_server(format!("Unknown dataset {}", request.dataset));
        let dataset = dataset.filter(|_| is_allowed).ok_or_else(unknown)?;
        let session = self.sessions.admit(key.name.clone(), key.sessions_max).map_err(|no_room| match no_room {
            NoRoom::InAll => Refusal::of_server("Too many sessions"),
            NoRoom::OfOwner(open) => Refusal::of_server(format!("Too many sessions of this key: {open} are open")),
        })?;
        Ok((session, Arc::clone(dataset)))
    }

    fn keys(&self) -> Arc<ClientKeys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn count_failure(&self, peer: SocketAddr, refusal: &Refusal) {
        if refusal.is_health_check {
            return tracing::debug!(%peer, "live: connection closed without a request");
        }
        self.counters.failed_handshakes.fetch_add(1, Relaxed);
        tracing::warn!(%peer, reason = refusal.reason, "live: handshake failed");
        if !refusal.is_fault_of_peer {
            return;
        }
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.retain(|_, (since, _)| since.elapsed() < FAILURE_PERIOD);
        if failures.len() < FAILURES_MAX || failures.contains_key(&peer.ip()) {
            failures.entry(peer.ip()).or_insert_with(|| (Instant::now(), 0)).1 += 1;
        }
    }

    fn is_blocked(&self, address: IpAddr) -> bool {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.get(&address).is_some_and(|(since, count)| {
            since.elapsed() < FAILURE_PERIOD && *count >= self.config.limits.failures_per_minute
        })
    }
}

/// Silence of a client's host after which the kernel asks whether it is still there, and how often then.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const FAILURE_PERIOD: Duration = Duration::from_secs(60);

async fn read_some(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
