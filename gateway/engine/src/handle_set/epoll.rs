//! The epoll backend: readiness from one edge-triggered set, `recvmmsg`, `sendmmsg`.
//!
//! Readiness has no owner, so the lead can move to any thread without a hand-over. The timer and the wake-up are
//! descriptors in the set, so the leader has one wait for all. Neither descriptor is ever read: each expiry and each
//! wake-up is a separate edge, and setting the timer again clears it.

mod ready;

use std::{
    io,
    os::fd::{BorrowedFd, RawFd},
    sync::Arc,
};

use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    batch::{ReceiveBatch, SendBatch, receive_round_robin},
    handle::{Handle, LineSet},
};

pub(in crate::handle_set) use self::ready::{EventBuffer, KernelEvent, NO_EVENT, ReadySet, Signals, to_event};
use crate::handle_set::{Event, HandleSet, ThreadIo, Wait};

/// The shared part of an epoll set.
#[derive(Clone, Debug)]
pub struct EpollSet {
    ready: Arc<ReadySet>,
}

impl EpollSet {
    /// Creates an empty set.
    ///
    /// # Errors
    /// If the kernel gives no descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self { ready: Arc::new(ReadySet::new()?) })
    }
}

impl HandleSet for EpollSet {
    type Io = EpollIo;

    fn thread_io(&self) -> io::Result<EpollIo> {
        Ok(EpollIo { ready: Arc::clone(&self.ready), events: EventBuffer::new() })
    }

    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        self.ready.add(socket, handle)
    }

    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.ready.remove(socket)
    }

    fn wake(&self) {
        self.ready.wake();
    }

    fn set_timer(&self, at: Option<MonoNs>) {
        self.ready.set_timer(at);
    }
}

/// A thread's part: the shared set, and a buffer for events.
#[derive(Debug)]
pub struct EpollIo {
    ready: Arc<ReadySet>,
    events: EventBuffer,
}

impl ThreadIo for EpollIo {
    fn wait(&mut self, wait: Wait, room: usize, events: &mut Vec<Event>) -> io::Result<()> {
        let seen = self.ready.wait(wait, room, &mut self.events)?;
        events.extend(seen.iter().map(to_event));
        Ok(())
    }

    fn release_wait(&mut self) -> io::Result<()> {
        Ok(()) // nothing waits once `wait` has returned
    }

    fn receive(&mut self, sockets: &[(Line, RawFd)], batch: &mut ReceiveBatch) -> io::Result<LineSet> {
        receive_round_robin(sockets, batch)
    }

    fn send(&mut self, packets: &SendBatch<'_>) -> io::Result<usize> {
        packets.send_many()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, UdpSocket},
        os::fd::AsRawFd,
    };

    use super::*;
    use crate::handle_set::backend_tests;

    #[test]
    fn a_burst_on_one_line_leaves_room_for_the_other_line() {
        let receivers = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for receiver in &receivers {
            for number in 0..20_u8 {
                sender.send_to(&[number], receiver.local_addr().unwrap()).unwrap();
            }
        }
        let sockets = [(Line::A, receivers[0].as_raw_fd()), (Line::B, receivers[1].as_raw_fd())];
        let mut batch = ReceiveBatch::new(16, 64);
        let more = receive_round_robin(&sockets, &mut batch).unwrap();
        assert_eq!(batch.iter().filter(|datagram| datagram.line == Line::A).count(), 8);
        assert_eq!(batch.iter().filter(|datagram| datagram.line == Line::B).count(), 8);
        assert_eq!(more, LineSet::default().with(Line::A).with(Line::B));
    }

    backend_tests::for_each_backend_test!(several threads: || EpollSet::new().unwrap());
}
