//! A replay that is watched: a control socket at which it shows its channels, as a gateway does.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use mdgw_status::{
    control::{Answer, ControlServer, Request},
    snapshot::Snapshot,
};
use mdgw_tools::replay::offline::Drive;
use serde_json::json;

use super::bytes_of;

/// The socket, and what is told there.
#[derive(Debug)]
pub(super) struct Watched {
    _server: ControlServer,
    latest: Arc<Mutex<Snapshot>>,
    shown: Option<Instant>,
    file_bytes: u64,
}

impl Watched {
    pub(super) fn start(socket: &Path, files: &[PathBuf]) -> anyhow::Result<Self> {
        let latest = Arc::new(Mutex::new(Snapshot { source: "replay".to_owned(), ..Snapshot::default() }));
        let told = Arc::clone(&latest);
        let server = ControlServer::start(socket, move |request| match request {
            Request::Snapshot {} => Answer::Ok(json!(*told.lock().unwrap_or_else(PoisonError::into_inner))),
            _ => Answer::Refused("this is a replay: it can only be watched".to_owned()),
        });
        let server = server.with_context(|| format!("listen at {}", socket.display()))?;
        Ok(Self { _server: server, latest, shown: None, file_bytes: bytes_of(files) })
    }

    /// Tells how it stands, a few times a second.
    pub(super) fn show(&mut self, drive: &Drive, read_bytes: u64) {
        if self.shown.is_some_and(|shown| shown.elapsed() < PERIOD) {
            return;
        }
        self.shown = Some(Instant::now());
        let snapshot = drive.snapshot((read_bytes, self.file_bytes));
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }
}

const PERIOD: Duration = Duration::from_millis(100);
