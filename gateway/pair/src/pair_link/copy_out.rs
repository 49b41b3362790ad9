//! A channel's state for another gateway: slices from the channel to the connection, no faster than it takes them.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use mdgw_engine::pipeline::CopyRequest;
use mdgw_feeds::{
    channel::{CopyFault, CopyStep},
    identity::ChannelId,
    time::MonoNs,
};

use super::{
    connection::{CloseCause, Connection},
    message::{CopyEnd, LinkMessage},
};

/// One copy on its way.
#[derive(Debug)]
pub(super) struct CopySender {
    /// `None`: it is over, but for what the channel keeps of it.
    connection: Option<Connection>,
    channel: ChannelId,
    /// Turns come back here.
    returned: Arc<ArrayQueue<Box<CopyRequest>>>,
    /// Turns that may go again.
    #[expect(clippy::vec_box, reason = "they come and go as boxes")]
    idle: Vec<Box<CopyRequest>>,
    in_flight: usize,
    has_begun: bool,
    has_ended: bool,
    slices: u32,
    checksum: u32,
    /// When something came back from the channel last.
    progress_at: MonoNs,
}

impl CopySender {
    /// Not `is_accepted`: it is told at once to ask again.
    pub(super) fn new(connection: Connection, channel: ChannelId, is_accepted: bool, now: MonoNs) -> Self {
        let mut copy = Self {
            connection: Some(connection),
            channel,
            returned: Arc::new(ArrayQueue::new(IN_FLIGHT_MAX + 1)),
            idle: Vec::new(),
            in_flight: 0,
            has_begun: false,
            has_ended: false,
            slices: 0,
            checksum: 0,
            progress_at: now,
        };
        if !is_accepted && copy.end(Some(CopyFault::TooBusy)).is_err() {
            copy.connection = None;
        }
        copy
    }

    pub(super) fn channel(&self) -> ChannelId {
        self.channel
    }

    /// Goes on; `tell` hands a turn to a channel if that has room. False when it is over.
    pub(super) fn turn(&mut self, tell: &mut impl FnMut(ChannelId, Box<CopyRequest>) -> bool, now: MonoNs) -> bool {
        if let Err(cause) = self.go_on(tell, now) {
            tracing::info!(channel = self.channel.0, slices = self.slices, ?cause, "the copy of its state is over");
            self.connection = None;
        }
        if self.connection.is_some() {
            return true;
        }
        // The channel notes what is touched until it is told that nobody wants to know.
        let must_notify = self.has_begun && !self.has_ended;
        must_notify
            && !tell(self.channel, CopyRequest::cancel(&self.returned))
            && now.since(self.progress_at) < ABANDON_NS
    }

    fn go_on(
        &mut self,
        tell: &mut impl FnMut(ChannelId, Box<CopyRequest>) -> bool,
        now: MonoNs,
    ) -> Result<(), CloseCause> {
        while let Some(turn) = self.returned.pop() {
            self.in_flight -= 1;
            self.progress_at = now;
            if !self.has_ended {
                let (slice, step) = turn.result();
                self.send(slice)?;
                match step {
                    CopyStep::More => self.idle.push(turn),
                    CopyStep::Done { .. } => self.end(None)?,
                    CopyStep::Failed(fault) => self.end(Some(fault))?,
                }
            }
        }
        let Some(connection) = &mut self.connection else { return Ok(()) };
        connection.flush()?;
        // The other end closes it when it has all.
        connection.read_available()?;
        if now.since(self.progress_at) >= STALL_NS {
            return Err(CloseCause::TimedOut);
        }
        while !self.has_ended
            && self.in_flight < IN_FLIGHT_MAX
            && self.connection.as_ref().is_some_and(|connection| connection.unsent_bytes() < UNSENT_BYTES_MAX)
        {
            let turn = match self.idle.pop() {
                Some(turn) => turn.reuse(),
                None if self.has_begun => CopyRequest::next_slice(&self.returned),
                None => CopyRequest::begin(&self.returned),
            };
            if !tell(self.channel, turn) {
                break;
            }
            self.has_begun = true;
            self.in_flight += 1;
        }
        Ok(())
    }

    fn send(&mut self, slice: &[u8]) -> Result<(), CloseCause> {
        let Some(connection) = self.connection.as_mut().filter(|_| !slice.is_empty()) else { return Ok(()) };
        let (channel, number) = (self.channel, self.slices);
        connection.send(&LinkMessage::CopySlice { channel, number, bytes: slice.to_vec() })?;
        self.slices += 1;
        self.checksum = crc32c::crc32c_append(self.checksum, slice);
        Ok(())
    }

    fn end(&mut self, fault: Option<CopyFault>) -> Result<(), CloseCause> {
        self.has_ended = true;
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let end = CopyEnd { channel: self.channel, fault, slices: self.slices, checksum: self.checksum };
        connection.send(&LinkMessage::CopyEnd(end))
    }
}

/// Slices that a channel makes without a look at anything else at the most: some ten microseconds each.
const IN_FLIGHT_MAX: usize = 4;
/// What waits for the other end; then the channel has a rest.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// A channel that doesn't answer is out of service, another end that doesn't read is gone.
const STALL_NS: u64 = 2_000_000_000;
/// Then a channel that can't even be told is out of service.
const ABANDON_NS: u64 = 10_000_000_000;
