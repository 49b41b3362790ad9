//! Chooses the backend of a pool: from the configuration, the kernel's features, and measurements.

use std::{fmt, io, str::FromStr};

use io_uring::{IoUring, Probe, opcode};

use super::ring::EpollWaitMethod;

/// The configuration key `io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IoChoice {
    /// Chosen by the kernel's features and measurements.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// epoll.
    Epoll,
}

impl FromStr for IoChoice {
    type Err = UnknownIoChoice;

    fn from_str(text: &str) -> Result<Self, UnknownIoChoice> {
        match text {
            "auto" => Ok(Self::Auto),
            "io_uring" => Ok(Self::IoUring),
            "epoll" => Ok(Self::Epoll),
            _ => Err(UnknownIoChoice),
        }
    }
}

/// The text names no choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected \"auto\", \"io_uring\" or \"epoll\"")]
pub struct UnknownIoChoice;

/// The backend of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// [`EpollSet`](super::epoll::EpollSet).
    Epoll,
    /// [`RingSet`](super::ring::RingSet): a ring for each thread of several.
    Ring(EpollWaitMethod),
    /// [`MultishotSet`](super::ring::MultishotSet): one thread, one ring, multishot receives.
    Multishot,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Epoll => "epoll",
            Self::Ring(EpollWaitMethod::Events) => "io_uring, a ring for each thread",
            Self::Ring(EpollWaitMethod::Readiness) => "io_uring, a ring for each thread, polling the set",
            Self::Multishot => "io_uring, multishot receive",
        })
    }
}

/// Wait strategy of a pool's leader, as far as the choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderWait {
    /// It polls without sleeping.
    Spinning,
    /// It blocks (perhaps after spinning for a while).
    Blocking,
}

/// The backend for a pool of `threads` threads. Logs the reason.
///
/// # Errors
/// If the configuration demands io_uring and the kernel lacks a feature; the error names it.
pub fn choose_backend(requested: IoChoice, threads: usize, waiting: LeaderWait) -> Result<Backend, MissingIoUring> {
    let (backend, reason) = decide(requested, threads, waiting, probe_io_uring())?;
    tracing::info!(%backend, reason, threads, "handle set");
    Ok(backend)
}

/// How io_uring can wait for an epoll set on this kernel.
///
/// # Errors
/// Names the feature that this kernel lacks, or the system call that it refuses.
pub fn probe_io_uring() -> Result<EpollWaitMethod, MissingIoUring> {
    // From kernel 6.1, which has multishot receive with control data (6.0) and rings of provided buffers (5.19) too.
    let ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(2)
        .map_err(|error| MissingIoUring::from_setup(&error))?;
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| MissingIoUring::kernel_lacks(format!("probe failed: {error}")))?;
    let needed = [
        ("IORING_OP_RECVMSG", opcode::RecvMsg::CODE),
        ("IORING_OP_SENDMSG", opcode::SendMsg::CODE),
        ("IORING_OP_POLL_ADD", opcode::PollAdd::CODE),
        ("IORING_OP_ASYNC_CANCEL", opcode::AsyncCancel::CODE),
    ];
    if let Some((name, _)) = needed.into_iter().find(|(_, code)| !probe.is_supported(*code)) {
        return Err(MissingIoUring::kernel_lacks(format!("the kernel has no {name}")));
    }
    let has_epoll_wait = probe.is_supported(opcode::EpollWait::CODE);
    Ok(if has_epoll_wait { EpollWaitMethod::Events } else { EpollWaitMethod::Readiness })
}

/// Why io_uring is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("io = \"io_uring\" is not available: {reason}; use \"auto\" or \"epoll\"")]
pub struct MissingIoUring {
    reason: String,
    /// Whether another process of this host may have it: the rights or limits of this one do not suffice.
    pub lacks_rights: bool,
}

impl MissingIoUring {
    fn kernel_lacks(reason: String) -> Self {
        Self { reason, lacks_rights: false }
    }

    fn from_setup(error: &io::Error) -> Self {
        let lacks_rights = matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOMEM));
        let reason = match error.raw_os_error() {
            Some(libc::ENOSYS) => "not supported by the kernel, or blocked by a seccomp filter".to_owned(),
            Some(libc::EPERM) => {
                "not permitted for this process (sysctl kernel.io_uring_disabled, or a seccomp filter)".to_owned()
            }
            Some(libc::EINVAL) => "the kernel is older than 6.1 (no IORING_SETUP_DEFER_TASKRUN)".to_owned(),
            Some(libc::ENOMEM) => "not enough locked memory (ulimit -l)".to_owned(),
            _ => format!("a ring was refused ({error})"),
        };
        Self { reason, lacks_rights }
    }
}

/// The backend and the reason. `auto` takes epoll wherever both work: see the reasons below, and the measurements in
/// `ARCHITECTURE.md`.
fn decide(
    requested: IoChoice,
    threads: usize,
    waiting: LeaderWait,
    probed: Result<EpollWaitMethod, MissingIoUring>,
) -> Result<(Backend, String), MissingIoUring> {
    let with_rings = |wait| if threads == 1 { Backend::Multishot } else { Backend::Ring(wait) };
    match (requested, probed) {
        (IoChoice::Epoll, _) => Ok((Backend::Epoll, "configured".to_owned())),
        (IoChoice::IoUring, probed) => Ok((with_rings(probed?), "configured".to_owned())),
        (IoChoice::Auto, Err(MissingIoUring { reason: missing, .. })) => {
            Ok((Backend::Epoll, format!("no io_uring: {missing}")))
        }
        (IoChoice::Auto, Ok(wait)) => Ok(match prefers_io_uring(threads, waiting) {
            (true, reason) => (with_rings(wait), reason.to_owned()),
            (false, reason) => (Backend::Epoll, reason.to_owned()),
        }),
    }
}

/// Whether io_uring is taken where both work. `cargo bench -p mdgw-bench --bench net` measures the cost of a turn. With
/// rings of several threads a receive costs 1.5 to 2.1 times epoll's time, since each receive is a request and one more
/// finds the socket empty; a send costs 1.1 to 1.2 times. With one thread a multishot turn costs 0.83 to 0.97 of
/// epoll's, not counting its extra cost on the sending side of the socket. From send to receive epoll was faster: by
/// 0.5 us at the median when spinning, and always in the tail. Latency decides here.
fn prefers_io_uring(threads: usize, waiting: LeaderWait) -> (bool, &'static str) {
    match (threads, waiting) {
        (1, LeaderWait::Spinning) => (false, "one spinning thread: epoll has lower latency"),
        (1, LeaderWait::Blocking) => {
            (false, "one blocking thread: same median latency, epoll has a lower tail latency")
        }
        _ => (false, "several threads: a batch costs less by recvmmsg than by a submission of single receives"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing() -> MissingIoUring {
        MissingIoUring::kernel_lacks("the kernel is older than 6.1".to_owned())
    }

    #[test]
    fn without_io_uring_auto_falls_back_to_epoll_and_gives_the_reason() {
        for threads in [1, 4] {
            let (backend, reason) = decide(IoChoice::Auto, threads, LeaderWait::Spinning, Err(missing())).unwrap();
            assert_eq!(backend, Backend::Epoll);
            assert!(reason.contains("older than 6.1"), "{reason}");
        }
    }

    #[test]
    fn a_backend_requested_by_name_is_used_or_refused() {
        for wait in [EpollWaitMethod::Events, EpollWaitMethod::Readiness] {
            let decide = |threads| decide(IoChoice::IoUring, threads, LeaderWait::Blocking, Ok(wait)).unwrap().0;
            assert_eq!(decide(1), Backend::Multishot);
            assert_eq!(decide(2), Backend::Ring(wait));
        }
        let refused = decide(IoChoice::IoUring, 2, LeaderWait::Spinning, Err(missing())).unwrap_err().to_string();
        assert!(refused.contains("older than 6.1") && refused.contains("epoll"), "{refused}");
        let epoll = decide(IoChoice::Epoll, 2, LeaderWait::Spinning, Ok(EpollWaitMethod::Events)).unwrap();
        assert_eq!(epoll.0, Backend::Epoll);
    }

    #[test]
    fn refused_rings_are_explained() {
        for (code, word) in [(libc::EPERM, "io_uring_disabled"), (libc::EINVAL, "6.1"), (libc::ENOSYS, "seccomp")] {
            let text = MissingIoUring::from_setup(&io::Error::from_raw_os_error(code)).to_string();
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn io_choices_parse_from_their_exact_names() {
        assert_eq!("auto".parse(), Ok(IoChoice::Auto));
        assert_eq!("io_uring".parse(), Ok(IoChoice::IoUring));
        assert_eq!("epoll".parse(), Ok(IoChoice::Epoll));
        assert_eq!("uring".parse::<IoChoice>(), Err(UnknownIoChoice));
    }

    #[test]
    fn the_probe_matches_what_this_kernel_can_do() {
        if let Ok(wait) = probe_io_uring() {
            let set = super::super::ring::RingSet::new(wait).unwrap();
            assert!(crate::handle_set::HandleSet::thread_io(&set).is_ok());
        }
    }
}
