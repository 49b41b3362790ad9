//! One thread that receives the streams of all sessions: the same for `mdgw live` and for the bare loop.

use std::{
    io::{ErrorKind, Read as _},
    net::TcpStream,
    time::Instant,
};

use anyhow::{Result, ensure};
use rustix::event::{
    Timespec,
    epoll::{self, CreateFlags, Event, EventData, EventFlags},
};

use super::{client::SILENCE_MAX, record_counter::RecordCounter};

/// Sockets of sessions, and what was received on each.
pub(super) struct Receiver {
    epoll: std::os::fd::OwnedFd,
    sessions: Vec<(TcpStream, RecordCounter)>,
    buffer: Vec<u8>,
    /// Of all sessions.
    pub(super) records: u64,
}

impl Receiver {
    pub(super) fn new(streams: Vec<TcpStream>) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (index, stream) in streams.iter().enumerate() {
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, stream, EventData::new_u64(index as u64), EventFlags::IN)?;
        }
        let sessions = streams.into_iter().map(|stream| (stream, RecordCounter::behind_metadata())).collect();
        Ok(Self { epoll, sessions, buffer: vec![0; READ_BYTES], records: 0 })
    }

    /// Receives until each session has had that many bytes. Returns the records of all sessions.
    pub(super) fn receive_each(&mut self, bytes: u64) -> Result<u64> {
        let mut unfinished = self.sessions.iter().filter(|(_, counter)| counter.bytes < bytes).count();
        let mut received_at = Instant::now();
        while unfinished > 0 {
            let finished = self.receive_some(Some(bytes))?;
            match finished {
                Some(count) => (unfinished, received_at) = (unfinished - count, Instant::now()),
                None => ensure!(received_at.elapsed() < SILENCE_MAX, "{unfinished} sessions receive nothing any more"),
            }
        }
        ensure!(
            self.sessions.iter().all(|(_, counter)| counter.bytes == bytes && counter.is_whole()),
            "a session received other bytes than expected"
        );
        Ok(self.records)
    }

    /// Receives what there is, or waits a moment for it. Returns how many sessions have reached `bytes` by that; `None` if nothing came.
    pub(super) fn receive_some(&mut self, bytes: Option<u64>) -> Result<Option<usize>> {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS_MAX];
        let count = match epoll::wait(&self.epoll, events.as_mut_slice(), Some(&WAIT)) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut finished = 0;
        for event in &events[..count] {
            let data = event.data;
            let (stream, counter) = &mut self.sessions[usize::try_from(data.u64())?];
            let received = match stream.read(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            };
            ensure!(received > 0, "mdgw live ended a session after {} bytes", counter.bytes);
            let before = *counter;
            counter.add(&self.buffer[..received])?;
            self.records += counter.records - before.records;
            finished += usize::from(bytes.is_some_and(|bytes| before.bytes < bytes && bytes <= counter.bytes));
        }
        Ok((count > 0).then_some(finished))
    }
}

/// As much as a socket's buffer usually holds.
const READ_BYTES: usize = 256 << 10;
const EVENTS_MAX: usize = 64;
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

#[cfg(test)]
mod tests {
    use std::{io::Write as _, net::TcpListener, thread};

    use super::{super::record_counter::METADATA_BYTES, *};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, client)
    }

    fn stream(records: usize) -> Vec<u8> {
        let mut bytes = vec![0; METADATA_BYTES];
        for _ in 0..records {
            bytes.extend([14; 56]);
        }
        bytes
    }

    #[test]
    fn every_session_is_received_to_its_end() {
        let (mut servers, clients): (Vec<_>, Vec<_>) = (0..3).map(|_| pair()).unzip();
        let bytes = stream(20_000);
        let mut receiver = Receiver::new(clients).unwrap();
        let records = thread::scope(|scope| {
            // They stay open: the end of a session is an error.
            for server in &mut servers {
                let bytes = &bytes;
                scope.spawn(move || server.write_all(bytes).unwrap());
            }
            receiver.receive_each(bytes.len() as u64).unwrap()
        });
        assert_eq!(records, 60_000);
    }

    #[test]
    fn a_session_that_ends_early_or_has_more_is_an_error() {
        let bytes = stream(3);
        let (mut server, client) = pair();
        server.write_all(&bytes[..200]).unwrap();
        drop(server);
        assert!(Receiver::new(vec![client]).unwrap().receive_each(bytes.len() as u64).is_err());
        let (mut server, client) = pair();
        server.write_all(&stream(4)).unwrap();
        assert!(Receiver::new(vec![client]).unwrap().receive_each(bytes.len() as u64).is_err());
    }
}
