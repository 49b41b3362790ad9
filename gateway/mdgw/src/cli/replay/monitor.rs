//! Control socket of a replay, so that `mdgw top` can show its channels like those of a gateway.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use mdgw_status::{
    control::{ControlServer, Request, Response},
    snapshot::Snapshot,
};
use mdgw_tools::replay::offline::ReplayDriver;
use serde_json::json;

use super::bytes_of;

/// The control socket and the latest snapshot served on it.
#[derive(Debug)]
pub(super) struct ReplayMonitor {
    _server: ControlServer,
    latest: Arc<Mutex<Snapshot>>,
    shown: Option<Instant>,
    file_bytes: u64,
}

impl ReplayMonitor {
    pub(super) fn start(socket: &Path, files: &[PathBuf]) -> anyhow::Result<Self> {
        let latest = Arc::new(Mutex::new(Snapshot { source: "replay".to_owned(), ..Snapshot::default() }));
        let shared = Arc::clone(&latest);
        let server = ControlServer::start(socket, move |request| match request {
            Request::Snapshot {} => Response::Ok(json!(*shared.lock().unwrap_or_else(PoisonError::into_inner))),
            _ => Response::Refused("this is a replay: only mdgw top is supported".to_owned()),
        });
        let server = server.with_context(|| format!("listen at {}", socket.display()))?;
        Ok(Self { _server: server, latest, shown: None, file_bytes: bytes_of(files) })
    }

    /// Updates the snapshot, at most ten times per second.
    pub(super) fn show(&mut self, drive: &ReplayDriver, read_bytes: u64) {
        if self.shown.is_some_and(|shown| shown.elapsed() < UPDATE_INTERVAL) {
            return;
        }
        self.shown = Some(Instant::now());
        let snapshot = drive.snapshot((read_bytes, self.file_bytes));
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }
}

const UPDATE_INTERVAL: Duration = Duration::from_millis(100);
