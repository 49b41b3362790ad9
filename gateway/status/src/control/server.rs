//! The server: a thread that accepts connections, and one thread for each connection.

use std::{
    fs, io,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use super::{REQUEST_BYTES_MAX, Request, Response};

/// Answers a request.
type RequestHandler = dyn Fn(Request) -> Response + Send + Sync;

/// The running service. Dropping it stops the service and removes the socket.
pub struct ControlServer {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Listens at `path`. A socket left by a crashed gateway is replaced; a socket in use is not.
    ///
    /// # Errors
    /// If the socket cannot be created, or another process listens on it.
    pub fn start(path: &Path, answer: impl Fn(Request) -> Response + Send + Sync + 'static) -> io::Result<Self> {
        let listener = listen(path)?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread_stop = Arc::clone(&stop);
        let answer: Arc<RequestHandler> = Arc::new(answer);
        let thread = std::thread::Builder::new()
            .name("mdgw-control".to_owned())
            .spawn(move || accept(&listener, &answer, &thread_stop))?;
        Ok(Self { path: path.to_owned(), stop, thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A connection is the only way to wake a thread that waits in accept.
        let woken = UnixStream::connect(&self.path).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

impl std::fmt::Debug for ControlServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlServer").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A socket that only the owner of this process may use. A socket that a crashed process left is replaced; one in use is not, and
/// neither is a file of another kind.
///
/// Creates the socket under another name, sets its permissions and renames it, so that no client connects before the
/// permissions are set.
///
/// # Errors
/// If the socket cannot be created, or another process listens on it.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    check_socket_path(path)?;
    if UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "the socket is in use by another process"));
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let _ = fs::remove_file(&unfinished);
    let listener = UnixListener::bind(&unfinished)?;
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o600))?;
    fs::rename(&unfinished, path)?;
    Ok(listener)
}

/// Whether [`listen`] may create a socket here: nothing is there, or a socket.
///
/// # Errors
/// If a file of another kind is there, or the path cannot be looked at.
pub fn check_socket_path(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path has a file that is no socket"))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn accept(listener: &UnixListener, answer: &Arc<RequestHandler>, stop: &Arc<AtomicBool>) {
    let open = Arc::new(AtomicUsize::new(0));
    for connection in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let Ok(mut connection) = connection else {
            std::thread::sleep(PAUSE_AFTER_ERROR);
            continue;
        };
        if open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::AcqRel);
            let _ = write(&mut connection, &Response::Refused("too many connections".to_owned()));
            continue;
        }
        let (answer, stop, open_here) = (Arc::clone(answer), Arc::clone(stop), Arc::clone(&open));
        let served = std::thread::Builder::new().name("mdgw-control-connection".to_owned()).spawn(move || {
            // A client that disconnects has no further requests.
            let _ = serve(connection, &*answer, &stop);
            open_here.fetch_sub(1, Ordering::AcqRel);
        });
        if served.is_err() {
            open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn serve(connection: UnixStream, answer: &RequestHandler, stop: &AtomicBool) -> io::Result<()> {
    connection.set_read_timeout(Some(IDLE_TIMEOUT))?;
    connection.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut writer = connection.try_clone()?;
    let mut reader = BufReader::new(connection);
    let mut line = Vec::new();
    while !stop.load(Ordering::Acquire) {
        line.clear();
        let bytes = reader.by_ref().take(REQUEST_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
        if bytes == 0 {
            return Ok(());
        }
        if !line.ends_with(b"\n") {
            // The connection ends: otherwise the rest of the line would be read as further requests.
            let text = if bytes == REQUEST_BYTES_MAX { "the request is too long" } else { "the request is incomplete" };
            return write(&mut writer, &Response::Refused(text.to_owned()));
        }
        let response = match serde_json::from_slice(&line) {
            Ok(request) => answer(request),
            Err(error) => Response::Refused(format!("invalid request: {error}")),
        };
        write(&mut writer, &response)?;
    }
    Ok(())
}

fn write(connection: &mut UnixStream, answer: &Response) -> io::Result<()> {
    let mut text = serde_json::to_string(answer)?;
    text.push('\n');
    connection.write_all(text.as_bytes())
}

/// Maximum number of connections: operators and their scripts.
const CONNECTIONS_MAX: usize = 8;
/// Longest time without a request; then the connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time that a client may leave a response unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept: out of descriptors, some may become free.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::control::{ControlError, send_request};

    fn echo(request: Request) -> Response {
        match request {
            Request::Status {} => Response::Ok(json!({ "role": "leader" })),
            other => Response::Refused(format!("{other:?}")),
        }
    }

    fn raw(path: &Path, request_bytes: &[u8]) -> String {
        let mut connection = UnixStream::connect(path).unwrap();
        connection.write_all(request_bytes).unwrap();
        connection.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn requests_are_answered_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/control");
        let server = ControlServer::start(&path, echo).unwrap();
        assert_eq!(send_request(&path, &Request::Status {}).unwrap(), json!({ "role": "leader" }));
        let refused = send_request(&path, &Request::Pin { group: None }).unwrap_err();
        assert!(matches!(&refused, ControlError::Refused(reason) if reason == "Pin { group: None }"), "{refused}");
        let two = raw(&path, b"{\"command\":\"status\"}\n{\"command\":\"unpin\",\"group\":3}\n");
        assert_eq!(two, "{\"ok\":{\"role\":\"leader\"}}\n{\"refused\":\"Unpin { group: Some(3) }\"}\n");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(server);
        assert!(!path.exists());
        assert!(matches!(send_request(&path, &Request::Status {}), Err(ControlError::Connect { .. })));
    }

    #[test]
    fn invalid_requests_are_refused_and_the_service_continues() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let _server = ControlServer::start(&path, echo).unwrap();
        for (request_bytes, expected) in [
            (&b"{\"command\":\"fly\"}\n"[..], "invalid request"),
            (b"{\"command\":\"status\",\"colour\":1}\n", "invalid request"),
            (b"\xff\xfe\n", "invalid request"),
            (b"{\"command\":\"sta", "is incomplete"),
            (&[b'x'; REQUEST_BYTES_MAX + 10], "too long"),
        ] {
            let answer = raw(&path, request_bytes);
            assert!(answer.contains("refused") && answer.contains(expected), "{answer}");
        }
        assert!(send_request(&path, &Request::Status {}).is_ok());
    }

    #[test]
    fn a_socket_in_use_is_kept_and_a_stale_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        drop(UnixListener::bind(&path).unwrap());
        let _server = ControlServer::start(&path, echo).unwrap();
        assert_eq!(ControlServer::start(&path, echo).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(send_request(&path, &Request::Status {}).is_ok());
    }

    /// The state file, for example, given by mistake.
    #[test]
    fn a_file_that_is_no_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        fs::write(&path, "restart counts").unwrap();
        assert_eq!(ControlServer::start(&path, echo).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "restart counts");
    }

    #[test]
    fn connections_beyond_the_limit_are_refused_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let _server = ControlServer::start(&path, echo).unwrap();
        let held: Vec<_> = (0..CONNECTIONS_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert!(raw(&path, b"").contains("too many connections"));
        drop(held);
        // The threads of the closed connections end some time later.
        while send_request(&path, &Request::Status {}).is_err() {
            std::thread::yield_now();
        }
    }
}
