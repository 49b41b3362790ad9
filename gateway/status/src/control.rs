//! How a running gateway is asked and told: a Unix socket, one JSON object per line each way.
//!
//! ```text
//! → {"command":"hand_over","group":1,"target":2}
//! ← {"ok":{"leader":"gw2 (node 2, start 7)"}}          or {"refused":"this gateway does not lead"}
//! ```
//! Who may open the socket may do all of it: it belongs to the gateway's user alone. Answers come in the order of the
//! questions of one connection. Unknown commands and keys are refused, lines are bounded, and so is the number of
//! connections.

mod client;
mod server;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::{
    client::{ControlError, send_request},
    server::ControlServer,
};

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Roles, epochs, positions.
    Status {},
    /// Counters, threads and latencies: see [`Snapshot`](crate::snapshot::Snapshot).
    Snapshot {},
    /// The last lines of the audit.
    History {
        /// How many.
        count: usize,
    },
    /// Another gateway is to lead.
    HandOver {
        /// Of which group; needed where there are several.
        #[serde(default)]
        group: Option<u16>,
        /// Which gateway; the fittest where none is named.
        #[serde(default)]
        target: Option<u8>,
    },
    /// The gateway that leads is asked to hand over to this one.
    TakeBack {
        /// Of which group; needed where there are several.
        #[serde(default)]
        group: Option<u16>,
    },
    /// Leadership moves no more by itself.
    Pin {
        /// Of which group; all where none is named.
        #[serde(default)]
        group: Option<u16>,
    },
    /// Leadership may move by itself again.
    Unpin {
        /// Of which group; all where none is named.
        #[serde(default)]
        group: Option<u16>,
    },
    /// A gateway that the record doesn't name may stand.
    Admit {
        /// Of which group; needed where there are several.
        #[serde(default)]
        group: Option<u16>,
        /// Its number.
        node: u8,
        /// Its name.
        name: String,
    },
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Response {
    /// It was done; what came of it.
    Ok(Value),
    /// It was not, and why.
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

/// Longest line of a question.
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
