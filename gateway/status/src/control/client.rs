//! The client: used by `mdgw ha`, `mdgw reload` and `mdgw top`.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
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
    /// The process at the socket did not answer in time. It may still do what was requested.
    #[error("no answer from the gateway at {} within {} s", path.display(), limit.as_secs_f64())]
    NoAnswer {
        /// Path of the socket.
        path: PathBuf,
        /// How long the client has waited.
        limit: Duration,
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
    send_request_and_wait(path, request, &mut Wait { limit, notice: None })
}

/// How long to wait for a response.
pub struct Wait<'w> {
    /// From the request on, the sending included.
    pub limit: Duration,
    /// Called once if there is no response after the first time, which is shorter than the limit.
    pub notice: Option<(Duration, &'w mut dyn FnMut())>,
}

/// [`send_request_within`] that can say that it still waits.
///
/// # Errors
/// See [`ControlError`].
pub fn send_request_and_wait(path: &Path, request: &Request, wait: &mut Wait<'_>) -> Result<Value, ControlError> {
    let connection =
        UnixStream::connect(path).map_err(|source| ControlError::Connect { path: path.to_owned(), source })?;
    let response = exchange(connection, request, wait).map_err(|source| {
        let path = path.to_owned();
        if is_timeout(&source) {
            ControlError::NoAnswer { path, limit: wait.limit }
        } else {
            ControlError::Io { path, source }
        }
    })?;
    match response {
        Response::Ok(value) => Ok(value),
        Response::Refused(reason) => Err(ControlError::Refused(reason)),
    }
}

fn exchange(mut connection: UnixStream, request: &Request, wait: &mut Wait<'_>) -> io::Result<Response> {
    let started = Instant::now();
    connection.set_write_timeout(Some(wait.limit))?;
    let mut request_line = serde_json::to_string(request)?;
    request_line.push('\n');
    connection.write_all(request_line.as_bytes())?;
    let mut reader = BufReader::new(connection);
    let mut line = Vec::new();
    loop {
        let until = wait.notice.as_ref().map_or(wait.limit, |(after, _)| wait.limit.min(*after));
        // A time-out of zero is none.
        let left = until.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
        reader.get_ref().set_read_timeout(Some(left))?;
        // Keeps what has come before the time-out.
        match reader.read_until(b'\n', &mut line) {
            Ok(_) if line.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(serde_json::from_slice(&line)?),
            Err(error) if is_timeout(&error) && started.elapsed() < wait.limit => {}
            Err(error) => return Err(error),
        }
        if let Some((_, notice)) = wait.notice.take_if(|(after, _)| started.elapsed() >= *after) {
            notice();
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Longest wait for a response. A hand-over takes longest, and its own limit is far below this one.
const TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread};

    use super::*;

    fn send(path: &Path, limit_ms: u64, notice_ms: u64) -> (Result<Value, ControlError>, u32) {
        let mut notices = 0;
        let mut count = || notices += 1;
        let notice: (_, &mut dyn FnMut()) = (Duration::from_millis(notice_ms), &mut count);
        let mut wait = Wait { limit: Duration::from_millis(limit_ms), notice: Some(notice) };
        let sent = send_request_and_wait(path, &Request::Status {}, &mut wait);
        (sent, notices)
    }

    #[test]
    fn a_client_says_once_that_there_is_no_answer_yet_and_waits_no_longer_than_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        // Connections are accepted by the kernel, and nobody reads them.
        let _listener = UnixListener::bind(&path).unwrap();
        let (sent, notices) = send(&path, 300, 50);
        let expected = format!("no answer from the gateway at {} within 0.3 s", path.display());
        assert!(
            matches!(&sent, Err(error @ ControlError::NoAnswer { .. }) if error.to_string() == expected),
            "{sent:?}"
        );
        assert_eq!(notices, 1);
        assert!(matches!(send(&path, 50, 300), (Err(ControlError::NoAnswer { .. }), 0)));
    }

    #[test]
    fn an_answer_that_comes_in_parts_after_the_notice_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let (noticed, was_noticed) = std::sync::mpsc::channel();
        let server = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            connection.write_all(b"{\"ok\":{\"no").unwrap();
            was_noticed.recv().unwrap();
            connection.write_all("de\":\"\u{fc}\"}}\n".as_bytes()).unwrap();
        });
        let mut notice = || noticed.send(()).unwrap();
        let mut wait = Wait { limit: Duration::from_secs(60), notice: Some((Duration::from_millis(50), &mut notice)) };
        let answer = send_request_and_wait(&path, &Request::Status {}, &mut wait).unwrap();
        assert_eq!(answer, serde_json::json!({ "node": "\u{fc}" }));
        server.join().unwrap();
    }
}
