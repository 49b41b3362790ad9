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

use mdgw_sys::{
    alarm::Alarm,
    clock::{mono_now, unix_now},
    kernel_fence::FenceCloser,
    pidfd::PidFd,
};
use mdgw_wire::{identity::GroupId, time::UnixNs};
use rustix::{net::sockopt::socket_peercred, process::test_kill_process};

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
    record_location::{RecordLocation, RecordLocationError, RegisterOpener},
    register::{Register, RegisterEvent},
};

/// A gateway that the sentinel watches.
pub struct GatewayWatch {
    registration: WatchRegistration,
    opener: RegisterOpener,
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
    /// The alarm has been logged that this process may not kill the gateway.
    is_refusal_logged: AtomicBool,
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
    /// Accepts a registration, and answers the gateway. `opener` opens the records of its groups.
    ///
    /// # Errors
    /// When the data is not a registration, its descriptors are wrong, or the page's mutex is not held. The gateway has
    /// been answered.
    pub fn accept(stream: &mut UnixStream, opener: RegisterOpener) -> io::Result<Self> {
        let watch = WatchRegistration::receive(stream)
            .and_then(|(registration, descriptors)| Self::new(stream, opener, registration, descriptors));
        registration::answer(stream, watch.as_ref().err())?;
        watch
    }

    fn new(
        stream: &UnixStream,
        opener: RegisterOpener,
        registration: WatchRegistration,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<Self> {
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
        let sender = socket_peercred(stream)?.pid;
        let gateway = PidFd::from_sender(gateway, sender)?;
        // Found out now, not at the death: a death is announced only when nothing of the process can send any more.
        test_kill_process(sender).map_err(|error| {
            io::Error::other(format!(
                "the sentinel may not kill the gateway (it needs the gateway's user, or CAP_KILL): {error}"
            ))
        })?;
        let key = SharedKey::load(&registration.key_file).map_err(io::Error::other)?;
        let announcer = Announcer::new(key, registration.recipients.clone())?;
        if !page.is_held()? {
            return Err(io::Error::other("the mutex in the shared page is not held: a death would not be detected"));
        }
        // An unusable directory is detected now. Connections to a store are not opened early, since they are rarely
        // needed.
        let of_host = registration.records.as_ref().filter(|place| matches!(place, RecordLocation::File(_)));
        let registers =
            registration.groups.iter().map(|group| of_host.map(|place| open(opener, place, group)).transpose());
        let registers = Mutex::new(registers.collect::<Result<_, _>>().map_err(io::Error::other)?);
        let hung_thread = AtomicUsize::new(NOT_HUNG);
        Ok(Self {
            registration,
            opener,
            page,
            gateway,
            announcer,
            registers,
            kernel_fence,
            hung_thread,
            is_announced: AtomicBool::new(false),
            is_refusal_logged: AtomicBool::new(false),
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
                self.end_sends()?;
            }
        }
        Ok(if self.page.is_closed() { None } else { Some(DetectedBy::Process) })
    }

    /// Makes sure of the death, then announces it. Returns `None` if the other thread has done so.
    fn handle_death(&self, cause: DetectedBy) -> io::Result<Option<Outcome>> {
        let (noticed, noticed_at) = (mono_now(), unix_now());
        let sends_ended = self.end_sends()?;
        if self.is_announced.swap(true, Relaxed) {
            return Ok(None);
        }
        let refused = self.announce(sends_ended);
        let took_ns = mono_now().since(noticed);
        let cause = match self.hung_thread.load(Relaxed) {
            NOT_HUNG => cause,
            thread => DetectedBy::Hang { thread },
        };
        Ok(Some(Outcome::Announced { cause, noticed_at, took_ns, refused, records: Vec::new() }))
    }

    /// The mutex belonged to a thread: the rest of the process may still run and must not send any more. A process that cannot be
    /// killed is not announced as dead: the sentinel waits until it has ended by itself. Meanwhile others wait for the lease.
    fn end_sends(&self) -> io::Result<SendsEnded> {
        // First, since a killed thread finishes the system call that it is in, which may sleep for long.
        if let Some(kernel_fence) = &self.kernel_fence {
            kernel_fence.shut();
        }
        if let Err(error) = self.gateway.kill() {
            self.log_refusal(&error);
            while !self.gateway.wait_for_end(PROCESS_INTERVAL)? {}
        }
        Ok(SendsEnded)
    }

    /// Both watching threads may find that the kill is refused; the alarm is logged once. The gateway exports it, since this
    /// process has no metrics.
    fn log_refusal(&self, error: &io::Error) {
        if !self.is_refusal_logged.swap(true, Relaxed) {
            self.page.report_kill_refused();
            tracing::error!(
                alarm = Alarm::KillRefused.name(),
                gateway = %self.registration.member,
                kernel_fence_shut = self.kernel_fence.is_some(),
                %error,
                "cannot kill the gateway: its death is announced when the process has ended"
            );
        }
    }

    fn announce(&self, SendsEnded: SendsEnded) -> usize {
        self.announcer.announce(self.announcements())
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
            let result = match register.take().map_or_else(|| open(self.opener, place, group), Ok) {
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

/// The kernel fence is shut and the process killed: only then the death is announced.
struct SendsEnded;

/// A register and its events.
type OpenRegister = (Box<dyn Register>, mpsc::Receiver<RegisterEvent>);

fn open(
    opener: RegisterOpener,
    place: &RecordLocation,
    group: &GroupRegistration,
) -> Result<OpenRegister, RecordLocationError> {
    let (sender, events) = mpsc::channel();
    let register = opener(place, GroupId(group.group), Arc::new(move |event| drop(sender.send(event))))?;
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

#[cfg(test)]
mod tests {
    use std::{
        fs,
        net::UdpSocket,
        os::{
            fd::AsFd as _,
            unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
        },
        process::{Child, Command},
    };

    use mdgw_sys::shared_atomics::SharedAtomics;
    use rustix::{
        io::Errno,
        process::{Pid, Signal, Uid, geteuid, kill_process, pidfd_send_signal},
        thread::set_thread_uid,
    };
    use tempfile::TempDir;

    use super::*;
    use crate::{
        identity::{Incarnation, Member, NodeId, NodeName},
        skip::skip,
    };

    /// Deadline and epoch of one group, then whether the fence is shut.
    const FENCE_ATOMICS: usize = 3;

    /// A watched process, and what its sentinel uses.
    struct Fixture {
        watch: GatewayWatch,
        gateway: Child,
        /// Memory like that of the kernel's map.
        fence: SharedAtomics,
        recipient: UdpSocket,
        _directory: TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let key_file = directory.path().join("key");
            fs::write(&key_file, "5e".repeat(32)).unwrap();
            fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
            let recipient = UdpSocket::bind("127.0.0.1:0").unwrap();
            recipient.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let key = SharedKey::load(&key_file).unwrap();
            let fence = SharedAtomics::create("fence", FENCE_ATOMICS).unwrap();
            fence.atomics()[0].store(u64::MAX, Relaxed);
            let copies = [fence.as_fd(), fence.as_fd()].map(|descriptor| descriptor.try_clone_to_owned().unwrap());
            let gateway = Command::new("sleep").arg("1000").spawn().unwrap();
            let member = Member { node: NodeId(3), name: NodeName::new("gw3").unwrap(), incarnation: Incarnation(1) };
            let watch = GatewayWatch {
                registration: WatchRegistration {
                    member,
                    groups: vec![GroupRegistration { group: 9, lease_ns: 100_000_000 }],
                    records: None,
                    thread_count: 1,
                    recipients: vec![recipient.local_addr().unwrap()],
                    key_file,
                    hang_limit_ns: None,
                },
                opener: |_, _, _| unreachable!("this gateway has no records"),
                page: SharedPage::create().unwrap(),
                gateway: PidFd::of(Pid::from_child(&gateway)).unwrap(),
                announcer: Announcer::new(key, vec![recipient.local_addr().unwrap()]).unwrap(),
                registers: Mutex::new(vec![None]),
                kernel_fence: Some(FenceCloser::open(copies, 1).unwrap()),
                hung_thread: AtomicUsize::new(NOT_HUNG),
                is_announced: AtomicBool::new(false),
                is_refusal_logged: AtomicBool::new(false),
            };
            Self { watch, gateway, fence, recipient, _directory: directory }
        }

        /// The deadline, the epoch, and whether the fence is shut for good.
        fn fence(&self) -> Vec<u64> {
            self.fence.atomics().iter().map(|atomic| atomic.load(Relaxed)).collect()
        }

        fn assert_nothing_announced(&self) {
            self.recipient.set_nonblocking(true).unwrap();
            assert!(self.recipient.recv(&mut [0; 200]).is_err(), "nothing is announced yet");
            self.recipient.set_nonblocking(false).unwrap();
        }
    }

    /// A process in an uninterruptible sleep would not have ended by now; its packets are refused nevertheless.
    #[test]
    fn the_kernel_fence_is_shut_for_good_and_the_process_killed_before_the_death_is_announced() {
        let mut fixture = Fixture::new();
        fixture.watch.end_sends().map(drop).unwrap();
        assert_eq!(fixture.fence(), [0, 0, 1]);
        assert_eq!(fixture.gateway.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        fixture.assert_nothing_announced();
        let announced = fixture.watch.handle_death(DetectedBy::Mutex).unwrap();
        assert!(matches!(announced, Some(Outcome::Announced { cause: DetectedBy::Mutex, .. })), "{announced:?}");
        assert!(fixture.recipient.recv(&mut [0; 200]).is_ok());
    }

    #[test]
    fn the_death_of_a_process_that_may_not_be_killed_is_announced_when_it_has_ended() {
        if !geteuid().is_root() {
            return skip(
                "the_death_of_a_process_that_may_not_be_killed_is_announced_when_it_has_ended",
                "only root can become another user",
            );
        }
        let mut fixture = Fixture::new();
        thread::scope(|scope| {
            let watch = &fixture.watch;
            let sentinel = scope.spawn(|| {
                // Of this thread only: the other threads may still kill.
                set_thread_uid(Uid::from_raw(NOBODY)).unwrap();
                assert_eq!(pidfd_send_signal(&watch.gateway, Signal::KILL), Err(Errno::PERM));
                watch.handle_death(DetectedBy::Mutex).unwrap()
            });
            while !watch.is_refusal_logged.load(Relaxed) {
                assert!(!sentinel.is_finished(), "nothing was refused");
                thread::yield_now();
            }
            // Longer than a sentinel takes that only repeats the attempt, or announces nevertheless.
            thread::sleep(Duration::from_millis(50));
            assert!(!sentinel.is_finished(), "the process runs");
            assert!(watch.page.is_kill_refused(), "the gateway can see it");
            assert_eq!(fixture.fence(), [0, 0, 1]);
            fixture.assert_nothing_announced();
            // Not waited for: the kernel refuses to signal a process that has ended as well.
            kill_process(Pid::from_child(&fixture.gateway), Signal::TERM).unwrap();
            let announced = sentinel.join().unwrap();
            assert!(matches!(announced, Some(Outcome::Announced { cause: DetectedBy::Mutex, .. })), "{announced:?}");
        });
        assert!(fixture.recipient.recv(&mut [0; 200]).is_ok());
        fixture.gateway.wait().unwrap();
    }

    /// A user that may signal nobody else's process.
    const NOBODY: u32 = 65_534;
}
