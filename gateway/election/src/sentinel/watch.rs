//! The sentinel's part: one gateway, from its charge to its end.
//!
//! Two threads look. One waits for the mutex: it hears of a death first. The other waits for the process itself, which
//! the kernel reports only when all of its memory is gone, in case that the dying gateway damaged the page; and, where
//! there is a limit, it looks for hangs and kills, upon which the first one hears of a death like any other.

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
    release_on_behalf::{ReleaseResult, mark},
    shared_page::{GatewayEnd, SharedPage},
};
use crate::{
    announcement::{Announcement, Announcer},
    auth::SharedKey,
    identity::DeathNotice,
    record_location::{RecordLocation, RecordLocationError},
    register::{Register, RegisterEvent},
};

/// A gateway that is watched.
pub struct GatewayWatch {
    registration: WatchRegistration,
    page: SharedPage,
    gateway: PidFd,
    announcer: Announcer,
    /// In the charge's order of groups, those that are open already.
    registers: Mutex<Vec<Option<OpenRegister>>>,
    /// Kept in force until the death is announced.
    kernel_fence: Option<FenceCloser>,
    /// Index of the thread for whose sake the gateway was killed, or [`NOT_HUNG`].
    hung_thread: AtomicUsize,
    /// One of the two threads has taken it on.
    is_announced: AtomicBool,
}

/// What was done about a gateway's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ended in order: there was nothing to do.
    Clean,
    /// It died: killed, announced.
    Announced {
        /// How its death was noticed.
        cause: DetectedBy,
        /// When.
        noticed_at: UnixNs,
        /// From there to the end of the first announcement, ns.
        took_ns: u64,
        /// Sends that the system refused, of all three times.
        refused: usize,
        /// What became of the records that can be reached, by group.
        records: Vec<(GroupId, ReleaseResult)>,
    },
}

/// How a death was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectedBy {
    /// The mutex told.
    Mutex,
    /// The process was gone, and the mutex had not told.
    Process,
    /// The sentinel killed it, since the hot thread of that index hung.
    Hang {
        /// Of the thread.
        thread: usize,
    },
}

impl fmt::Debug for GatewayWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("charge", &self.registration).finish_non_exhaustive()
    }
}

impl GatewayWatch {
    /// Takes a charge over, and answers the gateway.
    ///
    /// # Errors
    /// When it is no charge, its descriptors are others than they should be, or nobody holds the page's mutex. The
    /// gateway has been told.
    pub fn take_over(stream: &mut UnixStream) -> io::Result<Self> {
        let watch = WatchRegistration::receive(stream)
            .and_then(|(registration, descriptors)| Self::new(stream, registration, descriptors));
        registration::answer(stream, watch.as_ref().err())?;
        watch
    }

    fn new(stream: &UnixStream, registration: WatchRegistration, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let mut descriptors = descriptors.into_iter();
        let (Some(page), Some(gateway)) = (descriptors.next(), descriptors.next()) else {
            return Err(io::Error::other("a charge comes with page and pidfd"));
        };
        let kernel_fence = match (descriptors.next(), descriptors.next()) {
            (None, _) => None,
            (Some(map), Some(link)) => Some(FenceCloser::open([map, link], registration.groups.len())?),
            (Some(_), None) => return Err(io::Error::other("a kernel fence comes with map and link")),
        };
        let page = SharedPage::open(page)?;
        let gateway = PidFd::from_sender(gateway, socket_peercred(stream)?.pid)?;
        let key = SharedKey::load(&registration.key_file).map_err(io::Error::other)?;
        let announcer = Announcer::new(key, registration.recipients.clone())?;
        if !page.is_held()? {
            return Err(io::Error::other("nobody holds the page's mutex: a death would not be noticed"));
        }
        // A directory that can't be used shows now. A store gets no connections that as a rule are never used.
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

    /// Who is watched.
    #[must_use]
    pub fn registration(&self) -> &WatchRegistration {
        &self.registration
    }

    /// Waits for the gateway's end and does what is to be done.
    ///
    /// # Errors
    /// When a thread can't be had. The lease has to do then.
    pub fn run(self) -> io::Result<Outcome> {
        let watch = Arc::new(self);
        let (ended, end) = mpsc::channel();
        for (name, look) in
            [("mdgw-mutex", Self::wait_for_mutex as WatchTask), ("mdgw-process", Self::wait_for_process)]
        {
            let (watch, ended) = (Arc::clone(&watch), ended.clone());
            let look = move || {
                let handled = look(&watch).and_then(|seen| match seen {
                    None => Ok(Some(Outcome::Clean)),
                    Some(cause) => watch.handle_death(cause),
                });
                let _ = ended.send(handled);
            };
            thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(look)?;
        }
        drop(ended);
        // A thread that can't look any more leaves it to the other.
        let mut last_error = io::Error::other("no thread looks");
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

    /// Makes sure of the death, then says it. `None`: the other thread has said it.
    fn handle_death(&self, cause: DetectedBy) -> io::Result<Option<Outcome>> {
        let (noticed, noticed_at) = (mono_now(), unix_now());
        // The mutex belonged to a thread: what else of the process still runs must not send any more. What can't be killed
        // is not announced as dead.
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

    /// Half a lease after the notice: whoever takes over has done so.
    fn release_records(&self, noticed: Instant) -> Vec<(GroupId, ReleaseResult)> {
        let Some(place) = &self.registration.records else { return Vec::new() };
        let mut registers = self.registers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reached: Vec<_> = self.registration.groups.iter().zip(registers.iter_mut()).collect();
        reached.sort_by_key(|(group, _)| group.lease_ns);
        let mark = |(group, register): (&GroupRegistration, &mut Option<OpenRegister>)| {
            let half = Duration::from_nanos(group.lease_ns / 2);
            thread::sleep(half.saturating_sub(noticed.elapsed()));
            let limit = Duration::from_nanos(group.lease_ns).max(RELEASE_TIMEOUT_MIN);
            let result = match register.take().map_or_else(|| open(place, group), Ok) {
                Ok((mut register, events)) => mark(&mut *register, &events, &self.registration.member, limit),
                Err(error) => ReleaseResult::Failed(error.to_string()),
            };
            (GroupId(group.group), result)
        };
        reached.into_iter().map(mark).collect()
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

/// A register and what it answers.
type OpenRegister = (Box<dyn Register>, mpsc::Receiver<RegisterEvent>);

fn open(place: &RecordLocation, group: &GroupRegistration) -> Result<OpenRegister, RecordLocationError> {
    let (sender, events) = mpsc::channel();
    let register = place.open(GroupId(group.group), Arc::new(move |event| drop(sender.send(event))))?;
    Ok((register, events))
}

type WatchTask = fn(&GatewayWatch) -> io::Result<Option<DetectedBy>>;

const NOT_HUNG: usize = usize::MAX;
/// After the first time: far enough apart that one burst of loss doesn't take all three.
const REPEAT_DELAYS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(3)];
/// A store may be slower than a short lease.
const RELEASE_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The process's end wakes the thread; this only bounds a wait that never would.
const PROCESS_INTERVAL: Duration = Duration::from_secs(1);
/// Locked memory, so no more than needed.
const STACK_BYTES: usize = 256 << 10;
