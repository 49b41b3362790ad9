//! The sentinel: a process beside the gateway that announces the gateway's death, so that others need not wait for a
//! lease.
//!
//! ```text
//!   gateway ── page, pidfd, registration ──► sentinel ── notice ──► every voter and candidate
//!      │                                        ▲
//!      └── dies: the kernel passes on the mutex of its page ┘
//! ```
//! When the mutex shows that its owning thread has ended, the sentinel (1) kills the rest of the process through the
//! pidfd, (2) closes the kernel fence, where there is one, (3) announces exactly this holder, incarnation and epoch as
//! dead. Silence is never taken for a death: if the sentinel itself dies, others merely wait for the lease.
//!
//! - [`shared_page`]: the shared memory; new for each incarnation.
//! - [`registration`]: the gateway's registration with its sentinel.
//! - [`watch`]: the sentinel's side. [`hang`]: detects a thread that makes no progress; the sentinel does so only if it is asked to.
//! - [`announcement`](crate::announcement): the signed notice on the wire. [`release_on_behalf`]: releases the record
//!   if no gateway has taken over by then.
//! - [`process_setup`]: memory, priority, process group.
//!
//! While a process dumps core, its death cannot be detected. So the gateway switches dumps off unless it is configured
//! otherwise ([`forbid_core_dumps`](mdgw_sys::memory::forbid_core_dumps)).

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

use self::{registration::WatchRegistration, shared_page::SharedPage};

/// The gateway's end of the connection. While this value lives, a sentinel watches, unless [`Self::fault`] reports
/// otherwise.
#[derive(Debug)]
pub struct SentinelConnection {
    stream: UnixStream,
    /// The sentinel's process, if the gateway started it.
    child: Option<Child>,
}

/// How a gateway gets its sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SentinelSource {
    /// The gateway starts the sentinel itself, from a program with a priority.
    Start {
        /// Path of the program, usually `/proc/self/exe`.
        program: PathBuf,
        /// SCHED_FIFO priority of the sentinel; 0 for none.
        priority: u8,
        /// Whether its log, on the gateway's standard error, is JSON as the gateway's.
        logs_json: bool,
    },
    /// The service manager has started the sentinel, which listens on this socket.
    Service(PathBuf),
}

/// The sentinel is not available.
#[derive(Debug, thiserror::Error)]
#[error("cannot {act} the sentinel: {source}")]
pub struct SentinelError {
    act: &'static str,
    source: io::Error,
}

impl SentinelConnection {
    /// Registers with a sentinel, including the kernel fence if there is one, and waits until the sentinel watches. The
    /// page must be [held](SharedPage::hold) by then.
    ///
    /// # Errors
    /// When there is no sentinel, or the sentinel refuses; with its reason.
    pub fn start(
        source: &SentinelSource,
        registration: &WatchRegistration,
        page: &SharedPage,
        kernel_fence: Option<&KernelFence>,
    ) -> Result<Self, SentinelError> {
        let during = |act| move |source| SentinelError { act, source };
        let (mut stream, child) = match source {
            SentinelSource::Start { program, priority, logs_json } => {
                spawn(program, *priority, *logs_json).map_err(during("start"))?
            }
            SentinelSource::Service(path) => (UnixStream::connect(path).map_err(during("reach"))?, None),
        };
        let process = PidFd::own().map_err(during("open a pidfd for"))?;
        let limits =
            stream.set_read_timeout(Some(ANSWER_TIMEOUT)).and_then(|()| stream.set_write_timeout(Some(ANSWER_TIMEOUT)));
        let mut descriptors = vec![page.as_fd(), process.as_fd()];
        descriptors.extend(kernel_fence.into_iter().flat_map(KernelFence::descriptors));
        let handed = limits.and_then(|()| registration.send(&mut stream, &descriptors));
        handed.map_err(during("register with"))?;
        stream.set_nonblocking(true).map_err(during("register with"))?;
        Ok(Self { stream, child })
    }

    /// Why the sentinel no longer watches; `None` while it watches. Without a sentinel the lease still protects the
    /// group.
    pub fn fault(&mut self) -> Option<String> {
        if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
            return Some(format!("the sentinel has ended: {status}"));
        }
        let mut byte = [0];
        match io::Read::read(&mut self.stream, &mut byte) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => Some(format!("the connection to the sentinel failed: {error}")),
            Ok(_) => Some("the sentinel closed its connection".to_owned()),
        }
    }

    /// Id of the sentinel's process, if the gateway started it.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

/// Time limit of the registration. A sentinel answers within milliseconds, unless the machine is in trouble.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The sentinel's standard input is the stream: it inherits nothing else of ours, and no descriptor number must be
/// passed.
fn spawn(program: &Path, priority: u8, logs_json: bool) -> io::Result<(UnixStream, Option<Child>)> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new(program)
        .args(["sentinel", "--inherited", "--priority"])
        .arg(priority.to_string())
        .args(logs_json.then_some("--json-log"))
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        // A signal for the gateway's process group must not reach the sentinel.
        .process_group(0)
        .spawn()?;
    Ok((ours, Some(child)))
}
