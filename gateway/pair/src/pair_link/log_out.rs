//! Sends entries of a channel's publication log to a joining peer. Each answer has a thread of its own, since the log's files may lie on
//! a disk, and the link's thread must not wait for one.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use mdgw_publog::{LogError, Reader};
use mdgw_wire::{
    identity::{Sequence, Session},
    published::position::StreamPosition,
};

use super::{
    connection::{CloseCause, Connection},
    message::{LinkMessage, LogRequest, LoggedEntry},
};

/// What an answer needs of the gateway.
#[derive(Debug)]
pub(super) struct LogAnswer {
    /// The requester's connection.
    pub(super) connection: Connection,
    pub(super) request: LogRequest,
    /// Directory of the requested log.
    pub(super) directory: PathBuf,
    /// Set when the gateway stops.
    pub(super) stop: Arc<AtomicBool>,
}

/// Why an answer ended early.
#[derive(Debug)]
enum LogFault {
    Log(LogError),
    Connection(CloseCause),
}

impl From<LogError> for LogFault {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

impl From<CloseCause> for LogFault {
    fn from(cause: CloseCause) -> Self {
        Self::Connection(cause)
    }
}

impl From<io::Error> for LogFault {
    fn from(_: io::Error) -> Self {
        Self::Connection(CloseCause::Closed)
    }
}

impl LogAnswer {
    /// Answers in a thread.
    pub(super) fn spawn(mut self) -> io::Result<JoinHandle<()>> {
        thread::Builder::new().name("mdgw-pair-log".to_owned()).spawn(move || {
            let channel_id = self.request.channel.0;
            match self.send() {
                Ok(entries) => tracing::info!(channel_id, entries, "a peer has copied a part of the log"),
                Err(LogFault::Log(error)) => tracing::warn!(channel_id, %error, "cannot read the log for a peer"),
                Err(LogFault::Connection(cause)) => {
                    tracing::info!(channel_id, ?cause, "a peer's copy of the log ended early")
                }
            }
        })
    }

    /// Sends all requested entries that the log has, and returns their number.
    fn send(&mut self) -> Result<u64, LogFault> {
        self.connection.socket.set_nonblocking(false)?;
        self.connection.socket.set_write_timeout(Some(WAIT))?;
        self.connection.socket.set_read_timeout(Some(WAIT))?;
        let channel = self.request.channel;
        let mut reader = Reader::open(&self.directory, channel.0)?;
        seek(&mut reader, &self.request)?;
        let mut count = 0;
        while let Some((session, entries)) = next_entries(&mut reader) {
            count += entries.len() as u64;
            self.connection.send(&LinkMessage::LogEntries { channel, session, entries })?;
            self.flush()?;
        }
        self.connection.send(&LinkMessage::LogEnd { channel })?;
        self.flush()?;
        // The other end closes the connection when it has everything.
        let _closed = self.connection.read_once();
        Ok(count)
    }

    fn flush(&mut self) -> Result<(), CloseCause> {
        let mut progressed = Instant::now();
        let mut unsent_bytes = self.connection.unsent_bytes();
        // Relaxed: the flag orders nothing.
        while !self.stop.load(Relaxed) && progressed.elapsed() < STALL {
            self.connection.flush()?;
            if self.connection.unsent_bytes() == 0 {
                return Ok(());
            }
            if self.connection.unsent_bytes() < unsent_bytes {
                (unsent_bytes, progressed) = (self.connection.unsent_bytes(), Instant::now());
            }
        }
        Err(CloseCause::TimedOut)
    }
}

/// Moves to the first requested entry. It may begin before the request's position.
fn seek(reader: &mut Reader, request: &LogRequest) -> Result<(), LogError> {
    let Some((session, next)) = reader.last_entry()? else { return Ok(()) };
    let earliest = next.saturating_sub(request.messages_max).max(1);
    let (session, first) = match request.from {
        Some(from) if from.session.to_bytes() == session => (session, from.sequence.0.max(earliest)),
        Some(from) if has_rest(reader, from, next, request.messages_max)? => (from.session.to_bytes(), from.sequence.0),
        Some(_) | None => (session, earliest),
    };
    // The first part of a message may lie in an entry that covers only the messages before it.
    reader.seek(session, first.saturating_sub(1))?;
    Ok(())
}

/// Whether the log has the rest of the session of `from`, and that is within the limit together with `next` messages of the last session.
fn has_rest(reader: &mut Reader, from: StreamPosition, next: u64, messages_max: u64) -> Result<bool, LogError> {
    let range = reader.session_range(from.session.to_bytes())?;
    let is_within = |rest: u64| rest.saturating_add(next) <= messages_max;
    Ok(range.is_some_and(|range| is_within(range.next.saturating_sub(from.sequence.0.max(range.first)))))
}

/// The next entries of one session, as many as fit a message; `None` at the end of the log.
fn next_entries(reader: &mut Reader) -> Option<(Session, Vec<LoggedEntry>)> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    let session = reader.peek()?.session;
    while bytes < ENTRIES_BYTES
        && let Some(entry) = reader.peek().filter(|entry| entry.session == session)
    {
        let entry = LoggedEntry {
            first: Sequence(entry.first),
            next: Sequence(entry.next),
            flags: entry.flags,
            frame_count: entry.frame_count,
            payload: entry.payload.to_vec(),
        };
        bytes += entry.encoded_bytes();
        entries.push(entry);
        reader.next();
    }
    Some((Session::from_bytes(session)?, entries))
}

/// Bytes of entries after which a message has no further entry. With one entry more, which is no longer than a packet, it is shorter than
/// the longest message.
const ENTRIES_BYTES: usize = 32 << 10;
/// Longest wait for the connection before the thread looks whether it is to stop.
const WAIT: Duration = Duration::from_millis(200);
/// Longest time in which the peer reads nothing.
const STALL: Duration = Duration::from_secs(2);
