//! SentinelConnection: a process beside the gateway that tells of its death, so that nobody has to wait for a lease.
//!
//! ```text
//!   gateway ── page, pidfd, charge ──► sentinel ── notice ──► every voter and candidate
//!      │                                  ▲
//!      └── dies: the kernel hands on the mutex of its page ┘
//! ```
//! When the mutex says that its owner's thread is gone, the sentinel (1) kills what is left of the process through the
//! pidfd, (2) shuts the kernel's fence, where there is one, (3) announces *this* holder, *this* incarnation, *this* epoch as
//! dead. Nothing is concluded from silence: a sentinel that dies itself only means waiting for the lease.
//!
//! - [`shared_page`]: the shared memory; made anew for each incarnation.
//! - [`registration`]: what the gateway tells its sentinel, and how.
//! - [`watch`]: the sentinel's part. [`hang`]: when a gateway that lives makes no progress; opt-in.
//! - [`announcement`]: the notice on the wire, signed. [`release_on_behalf`]: the record itself, if nobody has taken over by then.
//! - [`process_setup`]: memory, priority, process group.
//!
//! A process that dumps core tells nobody that it died until the dump is written, so the gateway switches dumps off
//! unless it is configured otherwise ([`forbid_core_dumps`]).

pub mod hang;
pub mod process_setup;
pub mod registration;
pub mod release_on_behalf;
pub mod shared_page;
pub mod watch;

use std::{
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use mdgw_sys::{kernel_fence::KernelFence, pidfd::PidFd};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use self::{registration::WatchRegistration, shared_page::SharedPage};

/// The gateway's end: as long as this lives, a sentinel watches, unless [`Self::fault`] says otherwise.
#[derive(Debug)]
pub struct SentinelConnection {
    stream: UnixStream,
    /// Where the gateway started it.
    child: Option<Child>,
}

/// Where a sentinel comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SentinelSource {
    /// The gateway starts it: the program, as a rule `/proc/self/exe`, and its priority.
    Start {
        /// The program.
        program: PathBuf,
        /// SCHED_FIFO priority, 0 for none.
        priority: u8,
    },
    /// The service manager has started it, and it listens here.
    Service(PathBuf),
}

/// No sentinel.
#[derive(Debug, thiserror::Error)]
#[error("cannot {act} the sentinel: {source}")]
pub struct SentinelError {
    act: &'static str,
    source: io::Error,
}

impl SentinelConnection {
    /// Hands a charge to a sentinel, with the fence in the kernel if there is one, and waits until it watches. The page
    /// must be [held](SharedPage::hold) by then.
    ///
    /// # Errors
    /// When there is none, or it refuses; with its reason.
    pub fn start(
        source: &SentinelSource,
        registration: &WatchRegistration,
        page: &SharedPage,
        kernel_fence: Option<&KernelFence>,
    ) -> Result<Self, SentinelError> {
        let during = |act| move |source| SentinelError { act, source };
        let (mut stream, child) = match source {
            SentinelSource::Start { program, priority } => spawn(program, *priority).map_err(during("start"))?,
            SentinelSource::Service(path) => (UnixStream::connect(path).map_err(during("reach"))?, None),
        };
        let process = PidFd::own().map_err(during("make a pidfd for"))?;
        let limits =
            stream.set_read_timeout(Some(ANSWER_TIMEOUT)).and_then(|()| stream.set_write_timeout(Some(ANSWER_TIMEOUT)));
        let mut descriptors = vec![page.as_fd(), process.as_fd()];
        descriptors.extend(kernel_fence.into_iter().flat_map(KernelFence::descriptors));
        let handed = limits.and_then(|()| registration.send(&mut stream, &descriptors));
        handed.map_err(during("charge"))?;
        stream.set_nonblocking(true).map_err(during("charge"))?;
        Ok(Self { stream, child })
    }

    /// Why nobody watches any more, if so. The lease goes on by itself.
    pub fn fault(&mut self) -> Option<String> {
        if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
            return Some(format!("the sentinel has ended: {status}"));
        }
        let mut byte = [0];
        match io::Read::read(&mut self.stream, &mut byte) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => Some(format!("the sentinel has gone: {error}")),
            Ok(_) => Some("the sentinel has gone".to_owned()),
        }
    }

    /// Its process, where the gateway started it.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

/// A charge is answered within milliseconds, unless the machine is in trouble.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Its standard input is the stream: nothing else of ours is inherited, and nothing has to be numbered.
fn spawn(program: &Path, priority: u8) -> io::Result<(UnixStream, Option<Child>)> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new(program)
        .args(["sentinel", "--inherited", "--priority"])
        .arg(priority.to_string())
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        // A signal for the gateway's group is none for the sentinel.
        .process_group(0)
        .spawn()?;
    Ok((ours, Some(child)))
}

/// From now on this process leaves no core dump when it dies, whatever the limits and the system's pattern say: until
/// a dump is written, nobody can learn that its process died.
///
/// # Errors
/// As prctl(2).
pub fn forbid_core_dumps() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
