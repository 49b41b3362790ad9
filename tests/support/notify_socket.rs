//! A service manager's end of sd_notify(3): the socket that `NOTIFY_SOCKET` names.

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::process::TEST_TIMEOUT;

/// Receives the notifications of one service.
#[derive(Debug)]
pub struct NotifySocket {
    socket: UnixDatagram,
    path: PathBuf,
    /// Each notification so far: its assignments, in order.
    received: Vec<Vec<String>>,
    _directory: Option<TempDir>,
}

impl NotifySocket {
    /// A socket in a directory of its own.
    ///
    /// # Panics
    /// When it can't be made.
    #[must_use]
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let bound = Self::bind(&directory.path().join("notify"));
        Self { _directory: Some(directory), ..bound }
    }

    /// A socket at that path, which any user may send to, as systemd's.
    ///
    /// # Panics
    /// When it can't be made.
    #[must_use]
    pub fn bind(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a socket can be bound");
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("the permissions can be set");
        Self { socket, path: path.to_owned(), received: Vec::new(), _directory: None }
    }

    /// The value of `NOTIFY_SOCKET`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until `count` notifications so far begin with `start`, such as `READY=1`. Returns the assignments of the last of
    /// these.
    ///
    /// # Panics
    /// When [`TEST_TIMEOUT`] ends before.
    pub fn wait_for(&mut self, start: &str, count: usize) -> Vec<String> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let mut matching = self.received.iter().filter(|assignments| begins_with(assignments, start));
            if let Some(found) = matching.nth(count.saturating_sub(1)) {
                return found.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero() && self.receive(left), "never {count} times {start}, but {:?}", self.received);
        }
    }

    /// Number of notifications that begin with `start`, once all that have arrived are read.
    pub fn count(&mut self, start: &str) -> usize {
        while self.receive(Duration::from_millis(1)) {}
        self.received.iter().filter(|assignments| begins_with(assignments, start)).count()
    }

    /// All notifications, in order, once all that have arrived are read.
    pub fn all(&mut self) -> &[Vec<String>] {
        while self.receive(Duration::from_millis(1)) {}
        &self.received
    }

    /// Receives one notification; `false`: none arrives within the time limit.
    fn receive(&mut self, limit: Duration) -> bool {
        self.socket.set_read_timeout(Some(limit)).expect("the time limit is not zero");
        let mut datagram = [0; 4_096];
        match self.socket.recv(&mut datagram) {
            Ok(length) => {
                let text = String::from_utf8_lossy(&datagram[..length]);
                self.received.push(text.lines().map(str::to_owned).collect());
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => panic!("receive a notification: {error}"),
        }
    }
}

impl Default for NotifySocket {
    fn default() -> Self {
        Self::new()
    }
}

fn begins_with(assignments: &[String], start: &str) -> bool {
    assignments.first().is_some_and(|first| first.starts_with(start))
}
