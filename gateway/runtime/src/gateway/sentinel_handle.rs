//! The gateway's side of its sentinel: a thread that holds the mutex of the shared page as long as the process lives,
//! and the epochs under which the gateway leads.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
};

use mdgw_election::{
    core::CloseReason,
    driver::Election,
    identity::Member,
    latch::{LeaderLatch as _, Listener},
    sentinel::{
        SentinelConnection, SentinelSource,
        registration::{GroupRegistration, WatchRegistration},
        shared_page::{GroupFenceAtomics, ProgressCounter, SharedPage, THREADS_MAX},
    },
};
use mdgw_feeds::{
    identity::{Epoch, GroupId},
    time::MonoNs,
};
use mdgw_sys::{alarm::Alarm, kernel_fence::KernelFence, memory::forbid_core_dumps, scheduler::spawn_short_slice};

use super::{GatewayError, election::record_place, thread_watch::hot_threads};
use crate::config::{
    Resolved,
    resolved::{Backend, ElectionConfig, LinkConfig, SentinelChoice},
};

/// The shared page, held by a separate thread. Dropping it signals an orderly end.
#[derive(Debug)]
pub(super) struct HeldSharedPage {
    shared_page: Arc<SharedPage>,
    /// Dropped to end the thread.
    end: Option<mpsc::Sender<()>>,
    holder_thread: Option<JoinHandle<()>>,
    /// Number of threads whose progress the page shows: the election threads first, then the threads of the pools. 0 if
    /// no hang limit is configured.
    thread_count: usize,
}

impl HeldSharedPage {
    /// Creates the page and starts the thread that holds it; `None` if the configuration has no sentinel.
    ///
    /// # Errors
    /// When the page cannot be created, or has no room for all threads.
    pub(super) fn of(config: &Resolved) -> Result<Option<Self>, GatewayError> {
        let link = config.election.as_ref().and_then(|election| election.link.as_ref());
        let Some(link) = link.filter(|link| link.sentinel != SentinelChoice::None) else { return Ok(None) };
        let thread_count = if link.hang_limit_ns.is_some() { hot_threads(config).len() } else { 0 };
        if thread_count > THREADS_MAX {
            let why = format!("{thread_count} election and pool threads; the sentinel watches at most {THREADS_MAX}");
            return Err(GatewayError::io("apply election.link.hang_limit_ms")(io::Error::other(why)));
        }
        let (shared_page, end, holder_thread) =
            hold_shared_page().map_err(GatewayError::io("create the sentinel's shared memory"))?;
        Ok(Some(Self { shared_page, end: Some(end), holder_thread: Some(holder_thread), thread_count }))
    }

    /// Progress counters that the sentinel watches: of the election threads first, then of the threads of the pools. Empty
    /// without a hang limit.
    pub(super) fn progress_counters(&self) -> Vec<ProgressCounter> {
        (0..self.thread_count).map(|index| self.shared_page.thread(index)).collect()
    }
}

impl Drop for HeldSharedPage {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(holder_thread) = self.holder_thread.take() {
            // The thread returns nothing; a panicked thread has released the page.
            let _ended = holder_thread.join();
        }
    }
}

/// The connection to the watching sentinel. Dropping it signals an orderly end to the sentinel.
#[derive(Debug)]
pub(super) struct SentinelHandle {
    /// Dropped first: the sentinel is notified of the end before its stream ends.
    page: HeldSharedPage,
    sentinel: SentinelConnection,
}

impl SentinelHandle {
    /// Passes the page to a sentinel.
    ///
    /// # Errors
    /// When the sentinel cannot be started or reached, or refuses.
    pub(super) fn start(
        held: HeldSharedPage,
        link: &LinkConfig,
        member: Member,
        election: &ElectionConfig,
        elections: &BTreeMap<GroupId, Election>,
        kernel_fence: Option<&KernelFence>,
        logs_json: bool,
    ) -> Result<Self, GatewayError> {
        let source = match &link.sentinel {
            SentinelChoice::None => {
                return Err(GatewayError::io("start the sentinel")(io::Error::other("`sentinel = \"none\"`")));
            }
            SentinelChoice::Started => {
                let priority = election.priority.unwrap_or(0);
                SentinelSource::Start { program: "/proc/self/exe".into(), priority, logs_json }
            }
            SentinelChoice::Service(path) => SentinelSource::Service(path.clone()),
        };
        // With core dumps, the kernel would report the death only after the dump is written.
        forbid_core_dumps().map_err(GatewayError::io("disable core dumps"))?;
        let shared_page = &held.shared_page;
        let registration = WatchRegistration {
            member,
            groups: elections.keys().map(|group| group_registration(election, *group)).collect(),
            records: record_place(&election.backend)
                .map(|place| place.absolute())
                .transpose()
                .map_err(GatewayError::io("resolve the paths of the election store"))?,
            thread_count: held.thread_count,
            recipients: recipients(link, &election.backend),
            key_file: std::path::absolute(&link.key_file).map_err(GatewayError::io("resolve the key file"))?,
            hang_limit_ns: link.hang_limit_ns,
        };
        let sentinel = SentinelConnection::start(&source, &registration, shared_page, kernel_fence)
            .map_err(|error| GatewayError::io("start the sentinel")(io::Error::other(error)))?;
        for (index, election) in elections.values().enumerate() {
            election.listen(Arc::new(EpochPublisher(shared_page.group(index))));
            // The group may have begun to lead before the listener was registered.
            if election.has_leadership() {
                shared_page.group(index).open(election.view().epoch, FOR_GOOD);
            }
        }
        tracing::info!("sentinel is watching; core dumps are disabled");
        Ok(Self { page: held, sentinel })
    }
}

/// What is wrong with the sentinel, for the metrics. Nothing of it ends before the gateway restarts.
#[derive(Debug, Default)]
pub(super) struct SentinelFaults {
    /// The sentinel has died. No other one is started.
    pub(super) is_lost: AtomicBool,
    /// The kernel refused to let the sentinel kill this gateway.
    pub(super) is_kill_refused: AtomicBool,
}

impl SentinelFaults {
    /// Raises the alarm of each fault once, and drops a sentinel that no longer watches.
    pub(super) fn check(&self, watching: &mut Option<SentinelHandle>) {
        let Some(SentinelHandle { page, sentinel }) = watching else { return };
        if page.shared_page.is_kill_refused() && !self.is_kill_refused.swap(true, Relaxed) {
            tracing::error!(
                alarm = Alarm::KillRefused.name(),
                "the sentinel could not kill this gateway, of which a thread has ended or hung: its death is announced when the process has ended"
            );
        }
        if let Some(fault) = sentinel.fault() {
            tracing::error!(
                alarm = Alarm::NoSentinel.name(),
                fault,
                "sentinel lost: if this gateway dies, the peer waits for the lease to expire"
            );
            *watching = None;
            self.is_lost.store(true, Relaxed);
        }
    }
}

/// Addresses that get a death notice: every candidate and voter that the configuration names.
fn recipients(link: &LinkConfig, backend: &Backend) -> Vec<SocketAddr> {
    let others = match backend {
        Backend::Quorum(quorum) => quorum.voters.values().copied().collect(),
        Backend::Emergent(membership) => {
            membership.seeds.iter().copied().filter(|seed| *seed != membership.listen).collect()
        }
        _ => Vec::new(),
    };
    link.peers.iter().map(|peer| peer.address).chain(others).map(SocketAddr::V4).collect()
}

fn group_registration(election: &ElectionConfig, group: GroupId) -> GroupRegistration {
    GroupRegistration { group: group.0, lease_ns: election.timing.lease_ns }
}

/// Creates a page, and starts a thread that holds its mutex. The thread closes the page when the returned sender sends
/// a message or is dropped.
fn hold_shared_page() -> io::Result<(Arc<SharedPage>, mpsc::Sender<()>, JoinHandle<()>)> {
    let shared_page = Arc::new(SharedPage::create()?);
    let held = Arc::clone(&shared_page);
    let (end, until) = mpsc::channel::<()>();
    let (result_sender, result) = mpsc::channel();
    let holder_thread = spawn_short_slice("mdgw-page-hold", move || {
        let holding = held.hold();
        let holds = holding.is_ok();
        let _gone = result_sender.send(holding);
        if holds {
            let _ended = until.recv();
            if let Err(error) = held.close() {
                tracing::warn!(%error, "cannot notify the sentinel of a clean stop: it will announce a death");
            }
        }
    })?;
    result.recv().map_err(io::Error::other)??;
    Ok((shared_page, end, holder_thread))
}

/// Writes a group's epoch to the page: the death notice must name the leadership that ended.
struct EpochPublisher(GroupFenceAtomics);

impl Listener for EpochPublisher {
    fn gained(&self, epoch: Epoch) {
        self.0.open(epoch, FOR_GOOD);
    }

    fn lost(&self, _epoch: Epoch, _reason: CloseReason) {
        self.0.close();
    }
}

/// Deadline that the page shows while the gateway leads. The sentinel only checks whether there is one.
const FOR_GOOD: MonoNs = MonoNs(u64::MAX);
