//! A client of the gateway's admin listener: asks once a second, as a monitoring system or an open page does.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};

/// A thread that asks until it is stopped.
pub(super) struct AdminClient {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Vec<Answer>>>,
}

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// From the connection to the last byte, ns.
    pub(super) took_ns: u64,
    pub(super) bytes: u64,
}

impl AdminClient {
    /// Starts to ask, from a thread that inherits the cores of the calling one.
    pub(super) fn start(address: SocketAddr, path: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut answers = Vec::new();
            let begun = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                answers.push(ask(address, path)?);
                let next = begun + INTERVAL * u32::try_from(answers.len()).unwrap_or(u32::MAX);
                while Instant::now() < next && !stopped.load(Ordering::Relaxed) {
                    thread::sleep(POLL_INTERVAL);
                }
            }
            Ok(answers)
        });
        Self { stop, thread }
    }

    /// All answers.
    pub(super) fn stop(self) -> Result<Vec<Answer>> {
        self.stop.store(true, Ordering::Relaxed);
        let answers = self.thread.join().map_err(|_| anyhow!("the client of the admin listener panicked"))??;
        ensure!(!answers.is_empty(), "the admin listener was never asked");
        Ok(answers)
    }
}

fn ask(address: SocketAddr, path: &str) -> io::Result<Answer> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if !answer.starts_with(b"HTTP/1.1 200 ") {
        return Err(io::Error::other(String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned()));
    }
    let took_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(Answer { took_ns, bytes: answer.len() as u64 })
}

const INTERVAL: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
