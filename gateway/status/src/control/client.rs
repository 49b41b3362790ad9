//! The client: used by `mdgw ha`, `mdgw reload` and `mdgw top`.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use super::{Request, Response};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No gateway listens on the socket.
    #[error(
        "cannot connect to the control socket {} (gateway.control_socket): {source}",
        path.display()
    )]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// Error of connect(2).
        source: io::Error,
    },
    /// The connection ended before the response.
    #[error("no answer from the gateway at {}: {source}", path.display())]
    Io {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the connection.
        source: io::Error,
    },
    /// The gateway refused the command, with its reason.
    #[error("{0}")]
    Refused(String),
}

/// Sends one request and waits for its response.
///
/// # Errors
/// See [`ControlError`].
pub fn send_request(path: &Path, request: &Request) -> Result<Value, ControlError> {
    send_request_within(path, request, TIMEOUT)
}

/// [`send_request`] with a limit of its own for the wait. The process at the socket may still do what was requested.
///
/// # Errors
/// See [`ControlError`].
pub fn send_request_within(path: &Path, request: &Request, limit: Duration) -> Result<Value, ControlError> {
    let connection =
        UnixStream::connect(path).map_err(|source| ControlError::Connect { path: path.to_owned(), source })?;
    match exchange(connection, request, limit).map_err(|source| ControlError::Io { path: path.to_owned(), source })? {
        Response::Ok(value) => Ok(value),
        Response::Refused(reason) => Err(ControlError::Refused(reason)),
    }
}

fn exchange(mut connection: UnixStream, request: &Request, limit: Duration) -> io::Result<Response> {
    connection.set_read_timeout(Some(limit))?;
    let mut request_line = serde_json::to_string(request)?;
    request_line.push('\n');
    connection.write_all(request_line.as_bytes())?;
    let mut line = String::new();
    if BufReader::new(connection).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

/// Longest wait for a response. A hand-over takes longest, and its own limit is far below this one.
const TIMEOUT: Duration = Duration::from_secs(30);
