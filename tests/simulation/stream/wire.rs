//! The kernel's side of a gateway's output: accepts all packets or some. Here a process can be paused between the fence
//! check and the send.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
    sync::Arc,
};

use mdgw_captures::random::Random;
use mdgw_engine::handle_set::{Event, ThreadIo, Wait};
use mdgw_feeds::identity::Line;
use mdgw_sys::{
    batch::{ReceiveBatch, SendBatch},
    handle::{Handle, LineSet},
};

/// One packet on its way, by its line.
pub(super) type SentPacket = (Line, Vec<u8>);

/// Hands nothing to the kernel, and reports that.
pub(super) struct Wire {
    sockets: Vec<Arc<OwnedFd>>,
    random: Random,
    /// Share of the hand-overs that find a socket full.
    pub(super) full: f64,
    /// The next hand-over is where the process is stopped.
    pub(super) stops: bool,
    /// What was taken, until it is put on the network.
    pub(super) sent: Vec<SentPacket>,
    /// What was about to be taken when the process was stopped.
    pub(super) parked: Option<Vec<SentPacket>>,
}

impl Wire {
    pub(super) fn new(sockets: Vec<Arc<OwnedFd>>, random: Random, full: f64) -> Self {
        Self { sockets, random, full, stops: false, sent: Vec::new(), parked: None }
    }

    fn line_of(&self, socket: RawFd) -> Line {
        let line = self.sockets.iter().position(|known| known.as_raw_fd() == socket).expect("a line's socket");
        Line(u8::try_from(line).expect("few lines"))
    }
}

impl ThreadIo for Wire {
    fn wait(&mut self, _: Wait, _: usize, _: &mut Vec<Event>) -> io::Result<()> {
        Ok(())
    }

    fn release_wait(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, _: &[(Line, RawFd)], _: &mut ReceiveBatch) -> io::Result<LineSet> {
        Ok(LineSet::default())
    }

    fn take_provided(&mut self, _: Handle, _: &mut ReceiveBatch) {}

    fn send(&mut self, packets: &SendBatch<'_>) -> io::Result<usize> {
        if self.parked.is_some() {
            return Ok(0);
        }
        let len = packets.len();
        let is_full = self.random.chance(self.full);
        let count = if is_full { usize::try_from(self.random.below(len as u64)).expect("a batch") } else { len };
        let taken = packets.packets().take(count);
        let taken = taken.map(|(socket, header, body)| (self.line_of(socket), [&header[..], body].concat()));
        let taken: Vec<_> = taken.collect();
        if std::mem::take(&mut self.stops) {
            self.parked = Some(taken);
        } else {
            self.sent.extend(taken);
        }
        Ok(count)
    }
}
