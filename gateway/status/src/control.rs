//! The control protocol: a Unix socket, one JSON object per line in each direction.
//!
//! ```text
//! → {"command":"hand_over","group":1,"target":2}
//! ← {"ok":{"leader":"gw2 (node 2, start 7)"}}          or {"refused":"this gateway does not lead"}
//! ```
//! A user who can open the socket may send every command, so the socket belongs to the gateway's user alone. On one
//! connection, responses come in the order of the requests. Unknown commands and keys are refused. The length of a line
//! and the number of connections are limited.

mod client;
mod reloads;
mod server;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::client::{ControlError, Wait, send_request, send_request_and_wait, send_request_within};
pub use self::reloads::{ReloadQueue, ReloadRequester, RequestedReload, reload_queue};
pub use self::server::{ControlServer, check_socket_path, listen};

/// A request to a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Returns roles, epochs, positions.
    Status {},
    /// Returns counters, threads and latencies: see [`Snapshot`](crate::snapshot::Snapshot).
    Snapshot {},
    /// Returns the last lines of the audit.
    History {
        /// Number of lines.
        count: usize,
    },
    /// Hands leadership over to another gateway.
    HandOver {
        /// The group; required if the gateway has several.
        #[serde(default)]
        group: Option<u16>,
        /// Node number of the new leader; without it the fittest gateway.
        #[serde(default)]
        target: Option<u8>,
    },
    /// Asks the leader to hand over to this gateway.
    TakeBack {
        /// The group; required if the gateway has several.
        #[serde(default)]
        group: Option<u16>,
    },
    /// Stops automatic moves of leadership.
    Pin {
        /// The group; all groups if absent.
        #[serde(default)]
        group: Option<u16>,
    },
    /// Allows automatic moves of leadership again.
    Unpin {
        /// The group; all groups if absent.
        #[serde(default)]
        group: Option<u16>,
    },
    /// Makes a gateway eligible that the election record does not name.
    Admit {
        /// The group; required if the gateway has several.
        #[serde(default)]
        group: Option<u16>,
        /// Node number of the gateway.
        node: u8,
        /// Name of the gateway.
        name: String,
    },
    /// Reads the configuration again, as SIGHUP does, and returns what changed. `mdgw live` reads its keys again.
    Reload {
        /// The file that the client takes for the configuration in use: another one is refused.
        #[serde(default)]
        config: Option<PathBuf>,
    },
}

/// A response to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Response {
    /// The command succeeded, with its result.
    Ok(Value),
    /// The command was refused, with the reason.
    Refused(String),
}

impl From<Result<Value, String>> for Response {
    fn from(outcome: Result<Value, String>) -> Self {
        match outcome {
            Ok(value) => Self::Ok(value),
            Err(reason) => Self::Refused(reason),
        }
    }
}

/// Longest line of a request, bytes.
const REQUEST_BYTES_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::formats::check;

    #[test]
    fn requests_and_answers_written_by_0_1_0_are_read() {
        let group = Some(1);
        let requests = [
            Request::Status {},
            Request::Snapshot {},
            Request::History { count: 20 },
            Request::HandOver { group, target: Some(2) },
            Request::HandOver { group: None, target: None },
            Request::TakeBack { group },
            Request::Pin { group },
            Request::Unpin { group },
            Request::Admit { group, node: 3, name: "gw3".to_owned() },
        ];
        check(
            include_str!("../../../tests/data/formats/control_requests.jsonl"),
            &requests,
            |bytes| serde_json::from_slice(bytes).unwrap(),
            |request| serde_json::to_vec(request).unwrap(),
        );
        check(
            include_str!("../../../tests/data/formats/control_answers.jsonl"),
            &[
                Response::Ok(json!({ "group": 1, "target": 2 })),
                Response::Refused("this gateway does not lead".to_owned()),
            ],
            |bytes| serde_json::from_slice(bytes).unwrap(),
            |answer| serde_json::to_vec(answer).unwrap(),
        );
    }
}
