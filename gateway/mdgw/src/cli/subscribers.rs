//! The sessions of live clients, as `mdgw top` and `mdgw ha status` show them: read from `mdgw live`, a process of its own.

use std::{io, path::PathBuf};

use mdgw_status::{
    control::{ControlError, Request, send_request},
    snapshot::{ListenerSnapshot, Snapshot, SubscriberSnapshot},
};

/// Where `mdgw live` shows its sessions.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LiveSocket {
    /// Control socket of `mdgw live` (live.control_socket); nothing is shown of live clients if there is none.
    #[arg(long = "live", value_name = "SOCKET", default_value = "/run/mdgw-live/control")]
    path: PathBuf,
}

/// What `mdgw live` shows: the open sessions, and what it has refused.
#[derive(Clone, Debug)]
pub(super) struct LiveClients {
    pub(super) subscribers: Vec<SubscriberSnapshot>,
    pub(super) listener: Option<ListenerSnapshot>,
}

impl LiveSocket {
    /// The sessions; `None` if no `mdgw live` listens there.
    ///
    /// # Errors
    /// When it does not answer, as text.
    pub(super) fn read(&self) -> Result<Option<LiveClients>, String> {
        let value = match send_request(&self.path, &Request::Snapshot {}) {
            Ok(value) => value,
            // A process that was killed leaves its socket.
            Err(ControlError::Connect { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(format!("live clients are not known: {error}")),
        };
        let snapshot: Snapshot =
            serde_json::from_value(value).map_err(|error| format!("{}: {error}", self.path.display()))?;
        Ok(Some(LiveClients { subscribers: snapshot.subscribers, listener: snapshot.listeners.into_iter().next() }))
    }
}
