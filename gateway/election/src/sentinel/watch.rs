//! The sentinel's side: watches one gateway, from its registration to its end.
//!
//! Two threads watch. One waits for the mutex and detects a death first. The other waits for the process itself, in
//! case the dying gateway damaged the page; the kernel reports the process only when all of its memory is gone. Where a
//! hang limit is set, the second thread also checks for hangs and kills. The first thread then detects the death as
//! usual.

use std::{
    fmt, io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use mdgw_feeds::{identity::GroupId, time::UnixNs};
use mdgw_sys::{
    clock::{mono_now, unix_now},
    kernel_fence::FenceCloser,
    pidfd::PidFd,
};
use rustix::net::sockopt::socket_peercred;

use super::{
    hang::{FenceState, HangDetector},
    registration::{self, GroupRegistration, WatchRegistration},
    release_on_behalf::{ReleaseResult, release_on_behalf},
    shared_page::{GatewayEnd, SharedPage},
};
use crate::{
    announcement::{Announcement, Announcer},
    auth::SharedKey,
    identity::DeathNotice,
    record_location::{RecordLocation, RecordLocationError},
    register::{Register, RegisterEvent},
};

/// A gateway that the sentinel watches.
pub struct GatewayWatch {
    registration: WatchRegistration,
    page: SharedPage,
    gateway: PidFd,
    announcer: Announcer,
    /// The groups' registers, in the registration's order of groups; `None`: not opened yet.
    registers: Mutex<Vec<Option<OpenRegister>>>,
    /// The kernel fence. It stays attached until the death is announced.
    kernel_fence: Option<FenceCloser>,
    /// Index of the hung thread for which the gateway was killed, or [`NOT_HUNG`].
    hung_thread: AtomicUsize,
    /// Set when one of the two threads begins to handle the death, so that the other one does not.
    is_announced: AtomicBool,
}

/// The sentinel's reaction to a gateway's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The gateway ended in order: no reaction was needed.
    Clean,
    /// The gateway died. The sentinel killed the rest of its process and announced the death.
    Announced {
        /// How the death was detected.
        cause: DetectedBy,
        /// When the death was detected, ns since 1970 UTC.
        noticed_at: UnixNs,
        /// From the detection to the end of the first announcement, ns.
        took_ns: u64,
        /// Sends that the system refused, over all three announcements.
        refused: usize,
        /// Results for the reachable records, by group.
        records: Vec<(GroupId, ReleaseResult)>,
    },
}

/// How a death was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectedBy {
    /// The mutex showed that its owning thread has ended.
    Mutex,
    /// The process was gone, and the mutex had not shown it.
    Process,
    /// The sentinel killed the gateway, since a hot thread hung.
    Hang {
        /// Index of the hung thread in the shared page.
        thread: usize,
    },
}

impl fmt::Debug for GatewayWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayWatch").field("registration", &self.registration).finish_non_exhaustive()
    }
}

impl GatewayWatch {
    /// Accepts a registration, and answers the gateway.
    ///
    /// # Errors
    /// When the data is not a registration, its descriptors are wrong, or the page's mutex is not held. The gateway has
    /// been answered.
    pub fn accept(stream: &mut UnixStream) -> io::Result<Self> {
        let watch = WatchRegistration::receive(stream)
            .and_then(|(registration, descriptors)| Self::new(stream, registration, descriptors));
        registration::answer(stream, watch.as_ref().err())?;
        watch
    }

    fn new(stream: &UnixStream, registration: WatchRegistration, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let mut descriptors = descriptors.into_iter();
        let (Some(page), Some(gateway)) = (descriptors.next(), descriptors.next()) else {
            return Err(io::Error::other("a registration needs two descriptors: shared memory and pidfd"));
        };
        let kernel_fence = match (descriptors.next(), descriptors.next()) {
            (None, _) => None,
            (Some(map), Some(link)) => Some(FenceCloser::open([map, link], registration.groups.len())?),
            (Some(_), None) => return Err(io::Error::other("kernel fence: needs two descriptors, map and link")),
        };
        let page = SharedPage::open(page)?;
        let gateway = PidFd::from_sender(gateway, socket_peercred(stream)?.pid)?;
        let key = SharedKey::load(&registration.key_file).map_err(io::Error::other)?;
        let announcer = Announcer::new(key, registration.recipients.clone())?;
        if !page.is_held()? {
            return Err(io::Error::other("the mutex in the shared page is not held: a death would not be detected"));
        }
        // An unusable directory is detected now. Connections to a store are not opened early, since they are rarely
        // needed.
        let of_host = registration.records.as_ref().filter(|place| matches!(place, RecordLocation::File(_)));
        let registers = registration.groups.iter().map(|group| of_host.map(|place| open(place, group)).transpose());
        let registers = Mutex::new(registers.collect::<Result<_, _>>().map_err(io::Error::other)?);
        let hung_thread = AtomicUsize::new(NOT_HUNG);
        Ok(Self {
            registration,
            page,
            gateway,
            announcer,
            registers,
            kernel_fence,
            hung_thread,
            is_announced: AtomicBool::new(false),
        })
    }

    /// The registration that the gateway sent.
    #[must_use]
    pub fn registration(&self) -> &WatchRegistration {
        &self.registration
    }

    /// Waits for the gateway's end and reacts to it.
    ///
    /// # Errors
    /// When a thread cannot be started. Others then wait for the lease.
    pub fn run(self) -> io::Result<Outcome> {
        let watch = Arc::new(self);
        let (ended, end) = mpsc::channel();
        for (name, wait) in
            [("mdgw-mutex", Self::wait_for_mutex as WatchTask), ("mdgw-process", Self::wait_for_process)]
        {
            let (watch, ended) = (Arc::clone(&watch), ended.clone());
            let run = move || {
                let handled = wait(&watch).and_then(|cause| match cause {
                    None => Ok(Some(Outcome::Clean)),
                    Some(cause) => watch.handle_death(cause),
                });
                let _ = ended.send(handled);
            };
            thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(run)?;
        }
        drop(ended);
        // A thread that can no longer watch leaves the work to the other one.
        let mut last_error = io::Error::other("no watching thread is left");
        for handled in end {
            match handled {
                Ok(Some(Outcome::Announced { cause, noticed_at, took_ns, refused, .. })) => {
                    let noticed = Instant::now();
                    let refused = refused + watch.announce_again();
                    let records = watch.release_records(noticed);
                    return Ok(Outcome::Announced { cause, noticed_at, took_ns, refused, records });
                }
                Ok(Some(Outcome::Clean)) => return Ok(Outcome::Clean),
                Ok(None) => {}
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    fn wait_for_mutex(&self) -> io::Result<Option<DetectedBy>> {
        Ok(match self.page.wait_for_end()? {
            GatewayEnd::Clean => None,
            GatewayEnd::Died => Some(DetectedBy::Mutex),
        })
    }

    fn wait_for_process(&self) -> io::Result<Option<DetectedBy>> {
        let mut hangs = HangDetector::default();
        let hang_limit = self.registration.hang_limit_ns.map(Duration::from_nanos);
        let interval = hang_limit.map_or(PROCESS_INTERVAL, HangDetector::interval);
        while !self.gateway.wait_for_end(interval)? {
            if hang_limit.is_some()
                && let Some(thread) = hangs.check(self.fence_state(), self.counts())
            {
                self.hung_thread.store(thread, Relaxed);
                self.gateway.kill()?;
            }
        }
        Ok(if self.page.is_closed() { None } else { Some(DetectedBy::Process) })
    }

    /// Makes sure of the death, then announces it. Returns `None` if the other thread has done so.
    fn handle_death(&self, cause: DetectedBy) -> io::Result<Option<Outcome>> {
        let (noticed, noticed_at) = (mono_now(), unix_now());
        // The mutex belonged to a thread: the rest of the process may still run and must not send any more. A process
        // that cannot be killed is not announced as dead.
        self.gateway.kill()?;
        if let Some(kernel_fence) = &self.kernel_fence {
            kernel_fence.close_all();
        }
        if self.is_announced.swap(true, Relaxed) {
            return Ok(None);
        }
        let refused = self.announcer.announce(self.announcements());
        let took_ns = mono_now().since(noticed);
        let cause = match self.hung_thread.load(Relaxed) {
            NOT_HUNG => cause,
            thread => DetectedBy::Hang { thread },
        };
        Ok(Some(Outcome::Announced { cause, noticed_at, took_ns, refused, records: Vec::new() }))
    }

    fn announce_again(&self) -> usize {
        REPEAT_DELAYS.into_iter().fold(0, |refused, pause| {
            thread::sleep(pause);
            refused + self.announcer.announce(self.announcements())
        })
    }

    /// Releases the records half a lease after the notice: by then a candidate has normally taken over.
    fn release_records(&self, noticed: Instant) -> Vec<(GroupId, ReleaseResult)> {
        let Some(place) = &self.registration.records else { return Vec::new() };
        let mut registers = self.registers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reached: Vec<_> = self.registration.groups.iter().zip(registers.iter_mut()).collect();
        reached.sort_by_key(|(group, _)| group.lease_ns);
        let release = |(group, register): (&GroupRegistration, &mut Option<OpenRegister>)| {
            let half = Duration::from_nanos(group.lease_ns / 2);
            thread::sleep(half.saturating_sub(noticed.elapsed()));
            let limit = Duration::from_nanos(group.lease_ns).max(RELEASE_TIMEOUT_MIN);
            let result = match register.take().map_or_else(|| open(place, group), Ok) {
                Ok((mut register, events)) => {
                    release_on_behalf(&mut *register, &events, &self.registration.member, limit)
                }
                Err(error) => ReleaseResult::Failed(error.to_string()),
            };
            (GroupId(group.group), result)
        };
        reached.into_iter().map(release).collect()
    }

    fn announcements(&self) -> impl Iterator<Item = Announcement> {
        self.registration.groups.iter().enumerate().map(|(index, group)| {
            let member = &self.registration.member;
            let epoch = self.page.group(index).epoch();
            let notice = DeathNotice { holder: member.node, incarnation: member.incarnation, epoch };
            Announcement { group: GroupId(group.group), notice }
        })
    }

    fn fence_state(&self) -> FenceState {
        let is_open = (0..self.registration.groups.len()).any(|index| self.page.group(index).is_open());
        if is_open { FenceState::Open } else { FenceState::Closed }
    }

    fn counts(&self) -> impl Iterator<Item = u64> {
        (0..self.registration.thread_count).map(|index| self.page.thread(index).count())
    }
}

/// A register and its events.
type OpenRegister = (Box<dyn Register>, mpsc::Receiver<RegisterEvent>);

fn open(place: &RecordLocation, group: &GroupRegistration) -> Result<OpenRegister, RecordLocationError> {
    let (sender, events) = mpsc::channel();
    let register = place.open(GroupId(group.group), Arc::new(move |event| drop(sender.send(event))))?;
    Ok((register, events))
}

type WatchTask = fn(&GatewayWatch) -> io::Result<Option<DetectedBy>>;

const NOT_HUNG: usize = usize::MAX;
/// Pauses before the second and the third announcement: long enough that one burst of loss does not hit all three.
const REPEAT_DELAYS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(3)];
/// Shortest time limit for a release. A store may be slower than a short lease.
const RELEASE_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// Longest wait for the process's end. The end wakes the thread; without this limit a missed end would block it for
/// ever.
const PROCESS_INTERVAL: Duration = Duration::from_secs(1);
/// Stack size of the watching threads, bytes. All memory is locked, so the stack is no larger than needed.
const STACK_BYTES: usize = 256 << 10;
