//! An entry in a queue of ephemeral sequential nodes, kept by one session: the backend of [`SessionLatch`] over
//! ZooKeeper.
//!
//! ```text
//!   /mdgw/line-1/place-<session>-0000000041   ephemeral; holds its owner
//!   /mdgw/line-1/place-<session>-0000000042   watches the one before
//!   /mdgw/epoch-1                             persistent; the last epoch as a number
//! ```
//! The client library moves the session between the nodes of the ensemble. An entry has its session in its name, so
//! that a gateway recognises its own entry after a creation of unknown outcome.
//!
//! [`SessionLatch`]: mdgw_election::session_latch::SessionLatch

use std::{cell::RefCell, future::Future, rc::Rc, thread::JoinHandle, time::Duration};

use mdgw_election::{
    access::{AccessError, ZooKeeperConfig},
    core::Input,
    driver::{Backend, Inbox},
    identity::Member,
    register::{RequestId, StoreLink, Version},
    session_latch::{QueueEntry, SessionAnswer, SessionEvent, SessionRequest},
};
use mdgw_sys::{clock::mono_now, scheduler::spawn_short_slice};
use mdgw_wire::{
    identity::{Epoch, GroupId},
    time::MonoNs,
};
use tokio::{
    select,
    sync::mpsc,
    task::{AbortHandle, JoinSet, LocalSet},
    time::{sleep, timeout},
};
use zookeeper_client::{Acls, Client, CreateMode, Error, MultiWriteError, SessionState};

use super::{ANY, from_version, login, to_version};

/// One gateway's session for one group.
///
/// Dropping it waits for outstanding requests, at most for the request time-out, and ends the session.
#[derive(Debug)]
pub struct ZooKeeperSession {
    commands: Option<mpsc::UnboundedSender<SessionRequest>>,
    thread: Option<JoinHandle<()>>,
}

/// Opens a session with that time-out, or with the time-out that the ensemble grants. Returns at once.
///
/// # Errors
/// When the password cannot be read or the thread cannot be started.
pub fn open(
    config: &ZooKeeperConfig,
    group: GroupId,
    session: Duration,
    member: &Member,
    inbox: Inbox<SessionEvent>,
) -> Result<ZooKeeperSession, AccessError> {
    let worker = SessionWorker {
        endpoints: config.access.endpoints.join(","),
        request_timeout: config.access.request_timeout,
        login: login(config)?,
        folder: config.path.clone(),
        queue: format!("{}/line-{}", config.path, group.0),
        epoch: format!("{}/epoch-{}", config.path, group.0),
        session,
        member: serde_json::to_vec(member).unwrap_or_else(|_| unreachable!("numbers and text")),
        inbox,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (commands, receiver) = mpsc::unbounded_channel();
    let thread = spawn_short_slice("mdgw-session", move || {
        LocalSet::new().block_on(&runtime, Rc::new(worker).run(receiver));
    })?;
    Ok(ZooKeeperSession { commands: Some(commands), thread: Some(thread) })
}

impl Backend<SessionRequest> for ZooKeeperSession {
    fn ask(&mut self, request: SessionRequest) {
        // The thread ends only after this value is dropped.
        if let Some(commands) = &self.commands {
            let _ = commands.send(request);
        }
    }
}

impl Drop for ZooKeeperSession {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// The thread's state that never changes.
struct SessionWorker {
    endpoints: String,
    request_timeout: Duration,
    /// The credentials as `user:password`.
    login: Option<String>,
    folder: String,
    queue: String,
    epoch: String,
    session: Duration,
    member: Vec<u8>,
    inbox: Inbox<SessionEvent>,
}

/// One session with the ensemble.
struct Session {
    client: Client,
    /// Path of our entry, as far as known.
    entry: RefCell<Option<String>>,
    /// Watches the entry before ours.
    watch: RefCell<Option<AbortHandle>>,
}

type Commands = mpsc::UnboundedReceiver<SessionRequest>;

impl SessionWorker {
    async fn run(self: Rc<Self>, mut commands: Commands) {
        let mut last_error = String::new();
        loop {
            select! {
                connected = timeout(CONNECT_TIMEOUT, self.connect()) => match connected.unwrap_or(Err(Error::Timeout)) {
                    Ok((client, requested_at)) => if self.serve(client, requested_at, &mut commands).await.is_break() { return },
                    Err(error) => {
                        if last_error != error.to_string() {
                            last_error = error.to_string();
                            tracing::warn!(endpoints = self.endpoints, %error, "cannot connect to the election store");
                        }
                        sleep(PAUSE).await;
                    }
                },
                // Requests before a session has begun are dropped.
                command = commands.recv() => if command.is_none() { return },
            }
        }
    }

    /// Connects. Returns the session's client and when the session was requested.
    async fn connect(&self) -> Result<(Client, MonoNs), Error> {
        let requested_at = mono_now();
        let mut connector = Client::connector().with_session_timeout(self.session);
        if let Some(login) = &self.login {
            connector = connector.with_auth("digest", login.as_bytes());
        }
        let client = connector.connect(&self.endpoints).await?;
        let options = CreateMode::Persistent.with_acls(self.acls());
        for folder in [&self.folder, &self.queue] {
            client.mkdir(folder, &options).await?;
        }
        match client.create(&self.epoch, b"0", &options).await {
            Ok(_) | Err(Error::NodeExists) => Ok((client, requested_at)),
            Err(error) => Err(error),
        }
    }

    fn acls(&self) -> Acls<'static> {
        if self.login.is_some() { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// Serves requests until the session ends. Breaks when nobody can send requests any more.
    async fn serve(
        self: &Rc<Self>,
        client: Client,
        requested_at: MonoNs,
        commands: &mut Commands,
    ) -> std::ops::ControlFlow<()> {
        let mut states = client.state_watcher();
        let timeout_ns = u64::try_from(client.session_timeout().as_nanos()).unwrap_or(u64::MAX);
        self.send(SessionEvent::Started { timeout_ns, requested_at });
        let session = Rc::new(Session { client, entry: RefCell::default(), watch: RefCell::default() });
        let mut requests = JoinSet::new();
        loop {
            select! {
                biased;
                state = states.changed() => match state {
                    SessionState::SyncConnected => self.send(SessionEvent::StoreLink(StoreLink::Up)),
                    state if state.is_terminated() => {
                        tracing::warn!(%state, "the session with the election store has ended");
                        requests.shutdown().await;
                        session.forget_watch();
                        self.send(SessionEvent::StoreLink(StoreLink::Ended));
                        return std::ops::ControlFlow::Continue(());
                    }
                    _ => self.send(SessionEvent::StoreLink(StoreLink::InDoubt)),
                },
                command = commands.recv() => match command {
                    Some(request) => drop(requests.spawn_local(Rc::clone(self).carry_out(Rc::clone(&session), request))),
                    None => break,
                },
                Some(_) = requests.join_next() => {}
            }
        }
        // Outstanding requests should reach the store, and the session should end there too.
        let all = async { while requests.join_next().await.is_some() {} };
        let _ = timeout(self.request_timeout, all).await;
        requests.shutdown().await;
        session.forget_watch();
        drop(session);
        let _ = timeout(self.request_timeout, async { while !states.changed().await.is_terminated() {} }).await;
        std::ops::ControlFlow::Break(())
    }

    async fn carry_out(self: Rc<Self>, session: Rc<Session>, request: SessionRequest) {
        let (request_id, answer) = match request {
            SessionRequest::Join(request_id) => (request_id, self.with_timeout(self.join(&session)).await),
            SessionRequest::ReadQueue(request_id) => (request_id, self.with_timeout(self.read_queue(&session)).await),
            SessionRequest::KeepAlive(request_id) => (request_id, self.with_timeout(self.keep_alive(&session)).await),
            SessionRequest::Renew(request_id) => (request_id, self.with_timeout(self.renew(&session)).await),
            SessionRequest::TakeEpoch { request_id, expected, epoch } => {
                (request_id, self.with_timeout(self.take_epoch(&session, expected, epoch)).await)
            }
            SessionRequest::Leave(request_id) => (request_id, self.with_timeout(self.leave(&session)).await),
            SessionRequest::Remove(request_id, name) => {
                let path = format!("{}/{name}", self.queue);
                (
                    request_id,
                    self.with_timeout(async { session.client.delete(&path, None).await.map(|()| SessionAnswer::Done) })
                        .await,
                )
            }
        };
        self.answer(request_id, answer);
    }

    async fn with_timeout(&self, answer: impl Future<Output = Result<SessionAnswer, Error>>) -> SessionAnswer {
        match timeout(self.request_timeout, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(Error::NoNode)) => SessionAnswer::Gone,
            Ok(Err(error)) if is_refusal(&error) => SessionAnswer::Failed(error.to_string()),
            Ok(Err(error)) => SessionAnswer::Unknown(error.to_string()),
            Err(_) => SessionAnswer::Unknown(format!("no answer within {:?}", self.request_timeout)),
        }
    }

    async fn join(&self, session: &Session) -> Result<SessionAnswer, Error> {
        let prefix = format!("{}/{}", self.queue, session.entry_prefix());
        let options = CreateMode::EphemeralSequential.with_acls(self.acls());
        let (_, sequence) = session.client.create(&prefix, &self.member, &options).await?;
        session.entry.replace(Some(format!("{prefix}{sequence}")));
        Ok(SessionAnswer::Done)
    }

    async fn read_queue(self: &Rc<Self>, session: &Rc<Session>) -> Result<SessionAnswer, Error> {
        session.client.sync(&self.queue).await?;
        loop {
            let mut names = session.client.list_children(&self.queue).await?;
            names.sort_by_key(|name| sequence_of(name));
            let own = names.iter().position(|name| name.starts_with(&session.entry_prefix()));
            session.entry.replace(own.map(|own| format!("{}/{}", self.queue, names[own])));
            if let Some(before) = own.and_then(|own| own.checked_sub(1)) {
                let path = format!("{}/{}", self.queue, names[before]);
                if !self.watch(session, path).await? {
                    // The entry was deleted meanwhile: read the queue again.
                    continue;
                }
            }
            let mut entries = Vec::with_capacity(names.len());
            for name in names {
                match session.client.get_data(&format!("{}/{name}", self.queue)).await {
                    Ok((data, _)) => entries.push(QueueEntry { member: serde_json::from_slice(&data).ok(), name }),
                    Err(Error::NoNode) => entries.push(QueueEntry { member: None, name }),
                    Err(error) => return Err(error),
                }
            }
            let (data, stat) = session.client.get_data(&self.epoch).await?;
            let Some(epoch) = std::str::from_utf8(&data).ok().and_then(|text| text.trim().parse().ok()).map(Epoch)
            else {
                return Ok(SessionAnswer::Failed(format!("{} contains no epoch", self.epoch)));
            };
            return Ok(SessionAnswer::Queue { entries, own, epoch, version: to_version(stat.version) });
        }
    }

    /// Watches that entry until it is deleted. Returns whether it exists now.
    async fn watch(self: &Rc<Self>, session: &Session, path: String) -> Result<bool, Error> {
        let (stat, watcher) = session.client.check_and_watch_stat(&path).await?;
        if stat.is_none() {
            return Ok(false);
        }
        let worker = Rc::clone(self);
        let watch = tokio::task::spawn_local(async move {
            watcher.changed().await;
            worker.send(SessionEvent::QueueChanged);
        });
        if let Some(earlier) = session.watch.replace(Some(watch.abort_handle())) {
            earlier.abort();
        }
        Ok(true)
    }

    /// Renews the session through the ensemble's leader, without a write.
    async fn keep_alive(&self, session: &Session) -> Result<SessionAnswer, Error> {
        session.client.sync(&self.queue).await.map(|()| SessionAnswer::Done)
    }

    async fn renew(&self, session: &Session) -> Result<SessionAnswer, Error> {
        let Some(entry) = session.entry() else { return Ok(SessionAnswer::Gone) };
        session.client.set_data(&entry, &self.member, None).await.map(|_| SessionAnswer::Done)
    }

    async fn take_epoch(&self, session: &Session, expected: Version, epoch: Epoch) -> Result<SessionAnswer, Error> {
        let (Some(entry), Some(version)) = (session.entry(), from_version(expected)) else {
            return Ok(SessionAnswer::Gone);
        };
        let mut write = session.client.new_multi_writer();
        write.add_check_version(&entry, ANY)?;
        write.add_set_data(&self.epoch, epoch.0.to_string().as_bytes(), Some(version))?;
        match write.commit().await {
            Ok(_) => Ok(SessionAnswer::Done),
            Err(MultiWriteError::OperationFailed { index: 0, source: Error::NoNode }) => Ok(SessionAnswer::Gone),
            Err(MultiWriteError::OperationFailed { index: 1, source: Error::BadVersion }) => Ok(SessionAnswer::Refused),
            Err(error) => Err(error.into()),
        }
    }

    async fn leave(&self, session: &Session) -> Result<SessionAnswer, Error> {
        let Some(entry) = session.entry() else { return Ok(SessionAnswer::Gone) };
        session.client.delete(&entry, None).await.map(|()| SessionAnswer::Done)
    }

    fn send(&self, event: SessionEvent) {
        self.inbox.send(Input::Backend(event));
    }

    fn answer(&self, request_id: RequestId, answer: SessionAnswer) {
        self.send(SessionEvent::Answer(request_id, answer));
    }
}

impl Session {
    fn entry(&self) -> Option<String> {
        self.entry.borrow().clone()
    }

    fn entry_prefix(&self) -> String {
        format!("place-{:016x}-", self.client.session_id().0)
    }

    fn forget_watch(&self) {
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
    }
}

/// ZooKeeper numbers entries with ten digits. The numbers turn negative after 2^31 entries.
fn sequence_of(name: &str) -> u32 {
    let digits = name.rsplit_once('-').map_or(name, |(_, digits)| digits);
    digits.parse::<u32>().unwrap_or(u32::MAX)
}

fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::NoAuth | Error::InvalidAcl | Error::QuotaExceeded | Error::BadArguments(_))
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(100);
