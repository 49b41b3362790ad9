//! The asking end: what `mdgw ha` and `mdgw top` use.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use super::{Request, Response};

/// Why there is no answer, or not the wanted one.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens.
    #[error(
        "cannot reach a gateway at {} (it listens where gateway.control_socket of its configuration says): {source}",
        path.display()
    )]
    Connect {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It broke off.
    #[error("the gateway at {} gave no answer: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It did not do it.
    #[error("{0}")]
    Refused(String),
}

/// Asks one question.
///
/// # Errors
/// See [`ControlError`].
pub fn send_request(path: &Path, request: &Request) -> Result<Value, ControlError> {
    let connection =
        UnixStream::connect(path).map_err(|source| ControlError::Connect { path: path.to_owned(), source })?;
    match exchange(connection, request).map_err(|source| ControlError::Io { path: path.to_owned(), source })? {
        Response::Ok(value) => Ok(value),
        Response::Refused(reason) => Err(ControlError::Refused(reason)),
    }
}

fn exchange(mut connection: UnixStream, request: &Request) -> io::Result<Response> {
    connection.set_read_timeout(Some(TIMEOUT))?;
    let mut request_line = serde_json::to_string(request)?;
    request_line.push('\n');
    connection.write_all(request_line.as_bytes())?;
    let mut line = String::new();
    if BufReader::new(connection).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

/// A hand-over is the longest question: it has a limit of its own, far below.
const TIMEOUT: Duration = Duration::from_secs(30);
