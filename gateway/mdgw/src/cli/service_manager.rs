//! The service manager that started this process, such as systemd: it is notified of the start's end, of the state, and that
//! the process works (sd_notify(3)). Without `NOTIFY_SOCKET` in the environment nothing is sent.

use std::time::{Duration, Instant};

use mdgw_runtime::gateway::Readiness;
use sd_notify::NotifyState;

/// Sends notifications. A child process inherits the environment; systemd ignores what it sends (`NotifyAccess=main`).
#[derive(Debug)]
pub(super) struct ServiceManager {
    /// `WatchdogSec=` of the unit.
    watchdog: Option<Duration>,
    is_ready: bool,
    has_failed: bool,
    status: String,
    fed_at: Option<Instant>,
}

impl ServiceManager {
    pub(super) fn new() -> Self {
        // Without a socket, nobody would be fed.
        let watchdog = sd_notify::watchdog_enabled().filter(|_| std::env::var_os("NOTIFY_SOCKET").is_some());
        Self { watchdog, is_ready: false, has_failed: false, status: String::new(), fed_at: None }
    }

    /// How long a thread may stall until the watchdog is no longer fed; `None`: there is no watchdog.
    pub(super) fn stall_limit(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog / 2)
    }

    /// The start is complete. Later calls send nothing.
    pub(super) fn ready(&mut self) {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.send(&[NotifyState::Ready]);
        }
    }

    /// Sends the status line if it has changed, and whether the start is complete.
    pub(super) fn update(&mut self, readiness: &Readiness) {
        if self.status != readiness.status {
            self.status.clone_from(&readiness.status);
            self.send(&[NotifyState::Status(&readiness.status)]);
        }
        if readiness.is_ready {
            self.ready();
        }
    }

    /// The process works: feeds the watchdog. A start that is not complete has more time from now on. To be called at least
    /// some times in a watchdog's interval.
    pub(super) fn feed(&mut self) {
        let pause = self.watchdog.map_or(EXTENSION, |watchdog| watchdog.min(EXTENSION)) / 4;
        if self.fed_at.is_some_and(|at| at.elapsed() < pause) {
            return;
        }
        self.fed_at = Some(Instant::now());
        if !self.is_ready {
            self.send(&[extension(EXTENSION)]);
        } else if self.watchdog.is_some() {
            self.send(&[NotifyState::Watchdog]);
        }
    }

    /// Runs `reload` and reports its begin and its end. A long reload feeds the watchdog.
    pub(super) fn reload<T>(&mut self, reload: impl FnOnce(&mut Self) -> T) -> T {
        // Before the start is complete, the end of a reload would be taken for the end of the start.
        let began = NotifyState::monotonic_usec_now().ok().filter(|_| self.is_ready);
        if let Some(began) = began {
            self.send(&[NotifyState::Reloading, began]);
            let result = reload(self);
            self.send(&[NotifyState::Ready]);
            result
        } else {
            reload(self)
        }
    }

    /// The process stops, which takes `limit` at most.
    pub(super) fn stopping(&mut self, status: &str, limit: Duration) {
        self.send(&[NotifyState::Stopping, NotifyState::Status(status), extension(limit)]);
    }

    fn send(&mut self, state: &[NotifyState<'_>]) {
        if let Err(error) = sd_notify::notify(state)
            && !std::mem::replace(&mut self.has_failed, true)
        {
            tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET)");
        }
    }
}

fn extension(time: Duration) -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))
}

/// By how much a start that makes progress is extended.
const EXTENSION: Duration = Duration::from_secs(20);
