//! The simulated kernel side of a gateway's output. It accepts all packets of a batch, or only the first ones, as a full
//! socket does. It can also pause the process between the fence check and the send.

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

/// The output line of a packet, and its bytes.
pub(super) type SentPacket = (Line, Vec<u8>);

/// Collects sent packets instead of handing them to the kernel.
pub(super) struct SimulatedThreadIo {
    sockets: Vec<Arc<OwnedFd>>,
    random: Random,
    /// Share of send calls that find a socket full.
    pub(super) full_share: f64,
    /// The next send call pauses the process.
    pub(super) pauses_at_next_send: bool,
    /// Accepted packets that are not on the network yet.
    pub(super) sent: Vec<SentPacket>,
    /// The batch whose send call was interrupted by the pause. The fence check had passed.
    pub(super) held_at_send: Option<Vec<SentPacket>>,
}

impl SimulatedThreadIo {
    pub(super) fn new(sockets: Vec<Arc<OwnedFd>>, random: Random, full_share: f64) -> Self {
        Self { sockets, random, full_share, pauses_at_next_send: false, sent: Vec::new(), held_at_send: None }
    }

    fn line_of(&self, socket: RawFd) -> Line {
        let line = self.sockets.iter().position(|known| known.as_raw_fd() == socket).expect("a line's socket");
        Line(u8::try_from(line).expect("few lines"))
    }
}

impl ThreadIo for SimulatedThreadIo {
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
        if self.held_at_send.is_some() {
            return Ok(0);
        }
        let len = packets.len();
        let is_full = self.random.chance(self.full_share);
        let count = if is_full { usize::try_from(self.random.below(len as u64)).expect("a batch") } else { len };
        let taken = packets.packets().take(count);
        let taken = taken.map(|(socket, parts)| (self.line_of(socket), parts.concat()));
        let taken: Vec<_> = taken.collect();
        if std::mem::take(&mut self.pauses_at_next_send) {
            self.held_at_send = Some(taken);
        } else {
            self.sent.extend(taken);
        }
        Ok(count)
    }
}
