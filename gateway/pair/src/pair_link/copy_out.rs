//! Sends a channel's state to a peer: slices from the channel to the connection, no faster than the connection accepts
//! them.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use mdgw_engine::pipeline::CopyRequest;
use mdgw_feeds::channel::{CopyFault, CopyStep};
use mdgw_wire::{identity::ChannelId, time::MonoNs};

use super::{
    connection::{CloseCause, Connection},
    message::{CopyEnd, LinkMessage},
};

/// A copy in progress.
#[derive(Debug)]
pub(super) struct CopySender {
    /// `None`: the connection has ended, but the channel must still be notified that the copy has ended.
    connection: Option<Connection>,
    channel: ChannelId,
    /// The channel returns requests here, with their slices.
    returned: Arc<ArrayQueue<Box<CopyRequest>>>,
    /// Returned requests, to be sent to the channel again.
    #[expect(clippy::vec_box, reason = "they come and go as boxes")]
    idle: Vec<Box<CopyRequest>>,
    in_flight: usize,
    has_begun: bool,
    has_ended: bool,
    slices: u32,
    checksum: u32,
    /// When the channel last returned a request.
    progress_at: MonoNs,
}

impl CopySender {
    /// Begins a copy for the peer of that connection. If it is not `is_accepted`, the peer is asked to retry.
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

    /// Advances the copy. `send_to_channel` passes a request to a channel, and returns `false` if the channel has no
    /// room. Returns `false` when the copy is over.
    pub(super) fn turn(
        &mut self,
        send_to_channel: &mut impl FnMut(ChannelId, Box<CopyRequest>) -> bool,
        now: MonoNs,
    ) -> bool {
        if let Err(cause) = self.go_on(send_to_channel, now) {
            tracing::info!(channel_id = self.channel.0, slices = self.slices, ?cause, "state copy finished");
            self.connection = None;
        }
        if self.connection.is_some() {
            return true;
        }
        // The channel tracks changes until it is notified that the copy has ended.
        let must_notify = self.has_begun && !self.has_ended;
        must_notify
            && !send_to_channel(self.channel, CopyRequest::cancel(&self.returned))
            && now.since(self.progress_at) < ABANDON_NS
    }

    fn go_on(
        &mut self,
        send_to_channel: &mut impl FnMut(ChannelId, Box<CopyRequest>) -> bool,
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
        // The other end closes the connection when it has everything.
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
            if !send_to_channel(self.channel, turn) {
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

/// Maximum number of requests at a channel. It makes so many slices at most without doing other work: some ten
/// microseconds each.
const IN_FLIGHT_MAX: usize = 4;
/// Maximum number of bytes that wait for the peer. With more, no further slice is requested.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Longest time without a returned request, ns. Then the channel is out of service, or the peer no longer reads.
const STALL_NS: u64 = 2_000_000_000;
/// How long a notification that finds no room is retried, ns. After that time the channel is out of service.
const ABANDON_NS: u64 = 10_000_000_000;
