//! The admin listener of a process: opened at the start or, while another process holds the port, as soon as the port is free.

use std::{
    fs, io,
    net::TcpListener,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use mdgw_admin::{AdminServer, Listener, Sources};
use mdgw_status::control::listen;
use mdgw_sys::alarm::Alarm;

use crate::config::resolved::AdminListen;

/// The listener, or the thread that waits for its port. Dropping it closes the listener and removes its socket.
#[derive(Debug)]
pub struct AdminListener {
    opened: Arc<Mutex<Opened>>,
    waiting: Option<Waiting>,
}

/// Starts a server, also after an attempt that failed.
type StartServer = Box<dyn FnMut(Listener) -> io::Result<AdminServer> + Send>;

/// What the waiting thread and the owner share.
#[derive(Debug, Default)]
struct Opened {
    server: Option<AdminServer>,
    /// The server's socket in the file system, which goes with it.
    socket: Option<PathBuf>,
    is_closed: bool,
}

/// Both channels carry no values: their ends notice that the other end is gone.
#[derive(Debug)]
struct Waiting {
    stop: Sender<()>,
    ended: Receiver<()>,
}

impl AdminListener {
    /// Opens the listener. While the port is in use it runs without one, raises [`Alarm::AdminListenerDown`], and tries again
    /// every [`RETRY_INTERVAL`] on a thread on the cores of the calling thread: without the port a process cannot be monitored,
    /// but its work matters more.
    ///
    /// # Errors
    /// If it cannot listen for another reason.
    pub fn open(listen_at: &AdminListen, sources: Sources) -> io::Result<Self> {
        let sources = Arc::new(sources);
        let start = Box::new(move |listener| AdminServer::start(listener, Arc::clone(&sources)));
        Self::open_with(listen_at, start, RETRY_INTERVAL)
    }

    fn open_with(listen_at: &AdminListen, mut start: StartServer, retry: Duration) -> io::Result<Self> {
        let opened = Arc::<Mutex<Opened>>::default();
        let waiting = match bind(listen_at) {
            Ok(listener) => {
                lock(&opened).serve(listen_at, listener, &mut start)?;
                tracing::info!(listen = %listen_at, "admin listener");
                None
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                tracing::error!(
                    alarm = Alarm::AdminListenerDown.name(),
                    listen = %listen_at,
                    %error,
                    retry_s = retry.as_secs(),
                    "admin listener: runs without metrics and health, and tries again"
                );
                Some(wait(listen_at.clone(), start, Arc::clone(&opened), retry)?)
            }
            Err(error) => return Err(error),
        };
        Ok(Self { opened, waiting })
    }
}

impl Opened {
    fn serve(&mut self, listen_at: &AdminListen, listener: Listener, start: &mut StartServer) -> io::Result<()> {
        self.server = Some(start(listener)?);
        if let AdminListen::Unix(path) = listen_at {
            self.socket = Some(path.clone());
        }
        Ok(())
    }
}

impl Drop for AdminListener {
    fn drop(&mut self) {
        if let Some(Waiting { stop, ended }) = self.waiting.take() {
            drop(stop);
            // The thread ends at once, unless the socket of a process that hangs does not accept its connection.
            let _ = ended.recv_timeout(STOP_WAIT);
        }
        let mut opened = lock(&self.opened);
        opened.is_closed = true;
        // First the path: once the server is gone, another process may bind a socket of its own there.
        if let Some(socket) = opened.socket.take() {
            let _ = fs::remove_file(socket);
        }
        drop(opened.server.take());
    }
}

/// Starts the thread that opens the listener as soon as the port is free.
fn wait(
    listen_at: AdminListen,
    mut start: StartServer,
    opened: Arc<Mutex<Opened>>,
    retry: Duration,
) -> io::Result<Waiting> {
    let (stop, stopped) = mpsc::channel::<()>();
    let (alive, ended) = mpsc::channel::<()>();
    thread::Builder::new().name("mdgw-admin-wait".to_owned()).spawn(move || {
        // Dropped when the thread ends.
        let _alive = alive;
        while stopped.recv_timeout(retry) == Err(RecvTimeoutError::Timeout) {
            // Whatever the reason of a later failure is, the next one may succeed.
            let Ok(listener) = bind(&listen_at) else { continue };
            let mut opened = lock(&opened);
            if opened.is_closed {
                return;
            }
            match opened.serve(&listen_at, listener, &mut start) {
                Ok(()) => {
                    let ends = Alarm::AdminListenerDown.name();
                    tracing::info!(ends, listen = %listen_at, "admin listener: the port is free, and it listens");
                    return;
                }
                Err(error) => tracing::error!(
                    alarm = Alarm::AdminListenerDown.name(),
                    listen = %listen_at,
                    %error,
                    "admin listener: cannot start, and tries again"
                ),
            }
        }
    })?;
    Ok(Waiting { stop, ended })
}

fn bind(listen_at: &AdminListen) -> io::Result<Listener> {
    match listen_at {
        AdminListen::Tcp(address) => TcpListener::bind(address).map(Listener::Tcp),
        AdminListen::Unix(path) => listen(path).map(Listener::Unix),
    }
}

fn lock(opened: &Mutex<Opened>) -> MutexGuard<'_, Opened> {
    opened.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often an occupied port is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait for the thread that waits for the port.
const STOP_WAIT: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{Ipv4Addr, SocketAddrV4, TcpStream},
        os::unix::net::UnixStream,
        time::Instant,
    };

    use mdgw_admin::Health;

    use super::*;

    fn start() -> StartServer {
        let sources = Arc::new(Sources {
            metrics: Box::new(Vec::new),
            health: Box::new(|_| Health { is_ok: true, text: "well".to_owned() }),
            page: None,
            count: Box::new(|_| {}),
        });
        Box::new(move |listener| AdminServer::start(listener, Arc::clone(&sources)))
    }

    /// A port that another listener holds.
    fn taken() -> (TcpListener, SocketAddrV4) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
    }

    fn is_live(address: SocketAddrV4) -> bool {
        TcpStream::connect(address).is_ok_and(|mut stream| {
            let mut answer = String::new();
            stream.write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n").is_ok()
                && stream.read_to_string(&mut answer).is_ok()
                && answer.starts_with("HTTP/1.1 200")
        })
    }

    #[test]
    fn a_listener_whose_port_was_in_use_opens_when_the_port_is_free() {
        let (other, address) = taken();
        let listen_at = AdminListen::Tcp(address);
        let listener = AdminListener::open_with(&listen_at, start(), Duration::from_millis(5)).unwrap();
        thread::sleep(Duration::from_millis(20));
        assert!(lock(&listener.opened).server.is_none());
        drop(other);
        while !is_live(address) {
            thread::yield_now();
        }
        drop(listener);
        assert!(TcpStream::connect(address).is_err(), "a dropped listener listens no more");
    }

    #[test]
    fn a_start_that_fails_is_tried_again_as_a_port_in_use_is() {
        let (other, address) = taken();
        let (mut attempts, mut start) = (0, start());
        let fails_twice = move |listener| {
            attempts += 1;
            if attempts <= 2 { Err(io::Error::other("no thread")) } else { start(listener) }
        };
        let listen_at = AdminListen::Tcp(address);
        let listener = AdminListener::open_with(&listen_at, Box::new(fails_twice), Duration::from_millis(5)).unwrap();
        drop(other);
        let begun = Instant::now();
        while !is_live(address) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the failed start was final");
            thread::yield_now();
        }
        drop(listener);
    }

    #[test]
    fn a_socket_in_use_is_taken_over_when_its_process_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin");
        let other = listen(&path).unwrap();
        let listen_at = AdminListen::Unix(path.clone());
        let listener = AdminListener::open_with(&listen_at, start(), Duration::from_millis(5)).unwrap();
        assert!(lock(&listener.opened).server.is_none());
        drop(other);
        while lock(&listener.opened).server.is_none() {
            thread::yield_now();
        }
        assert!(UnixStream::connect(&path).is_ok());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_stop_does_not_wait_for_the_port() {
        let (_other, address) = taken();
        let listener =
            AdminListener::open_with(&AdminListen::Tcp(address), start(), Duration::from_secs(3_600)).unwrap();
        let opened = Arc::downgrade(&listener.opened);
        let begun = Instant::now();
        drop(listener);
        // The waiting thread is gone, and with it the sources.
        while opened.upgrade().is_some() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the thread waits for its next attempt");
            thread::yield_now();
        }
    }

    #[test]
    fn a_port_that_cannot_be_used_at_all_is_an_error() {
        let nowhere = AdminListen::Unix("/dev/null/admin".into());
        assert!(AdminListener::open_with(&nowhere, start(), Duration::from_secs(1)).is_err());
    }
}
