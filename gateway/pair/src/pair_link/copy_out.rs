//! A channel's state for another gateway: slices from the channel to the connection, no faster than it takes them.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use mdgw_engine::pipeline::CopyTurn;
use mdgw_feeds::{
    channel::{CopyFault, CopyStep},
    identity::ChannelId,
    time::MonoNs,
};

use super::{
    connection::{Connection, Over},
    message::{CopyEnd, LinkMessage},
};

/// One copy on its way.
#[derive(Debug)]
pub(super) struct CopyOut {
    /// `None`: it is over, but for what the channel keeps of it.
    connection: Option<Connection>,
    channel: ChannelId,
    /// Turns come back here.
    back: Arc<ArrayQueue<Box<CopyTurn>>>,
    /// Turns that may go again.
    #[expect(clippy::vec_box, reason = "they come and go as boxes")]
    spare: Vec<Box<CopyTurn>>,
    under_way: usize,
    has_begun: bool,
    has_ended: bool,
    slices: u32,
    checksum: u32,
    /// When something came back from the channel last.
    moved_at: MonoNs,
}

impl CopyOut {
    /// Not `is_free`: it is told at once to ask again.
    pub(super) fn new(connection: Connection, channel: ChannelId, is_free: bool, now: MonoNs) -> Self {
        let mut copy = Self {
            connection: Some(connection),
            channel,
            back: Arc::new(ArrayQueue::new(UNDER_WAY_MAX + 1)),
            spare: Vec::new(),
            under_way: 0,
            has_begun: false,
            has_ended: false,
            slices: 0,
            checksum: 0,
            moved_at: now,
        };
        if !is_free && copy.end(Some(CopyFault::TooBusy)).is_err() {
            copy.connection = None;
        }
        copy
    }

    pub(super) fn channel(&self) -> ChannelId {
        self.channel
    }

    /// Goes on; `tell` hands a turn to a channel if that has room. False when it is over.
    pub(super) fn turn(&mut self, tell: &mut impl FnMut(ChannelId, Box<CopyTurn>) -> bool, now: MonoNs) -> bool {
        if let Err(over) = self.go_on(tell, now) {
            tracing::info!(channel = self.channel.0, slices = self.slices, ?over, "the copy of its state is over");
            self.connection = None;
        }
        if self.connection.is_some() {
            return true;
        }
        // The channel notes what is touched until it is told that nobody wants to know.
        let must_tell = self.has_begun && !self.has_ended;
        must_tell && !tell(self.channel, CopyTurn::end(&self.back)) && now.since(self.moved_at) < FORGET_NS
    }

    fn go_on(&mut self, tell: &mut impl FnMut(ChannelId, Box<CopyTurn>) -> bool, now: MonoNs) -> Result<(), Over> {
        while let Some(turn) = self.back.pop() {
            self.under_way -= 1;
            self.moved_at = now;
            if !self.has_ended {
                let (slice, step) = turn.came();
                self.send(slice)?;
                match step {
                    CopyStep::More => self.spare.push(turn),
                    CopyStep::Done { .. } => self.end(None)?,
                    CopyStep::Failed(fault) => self.end(Some(fault))?,
                }
            }
        }
        let Some(connection) = &mut self.connection else { return Ok(()) };
        connection.flush()?;
        // The other end closes it when it has all.
        connection.fill()?;
        if now.since(self.moved_at) >= STUCK_NS {
            return Err(Over::Silent);
        }
        while !self.has_ended
            && self.under_way < UNDER_WAY_MAX
            && self.connection.as_ref().is_some_and(|connection| connection.unsent_bytes() < UNSENT_BYTES_MAX)
        {
            let turn = match self.spare.pop() {
                Some(turn) => turn.again(),
                None if self.has_begun => CopyTurn::go_on(&self.back),
                None => CopyTurn::begin(&self.back),
            };
            if !tell(self.channel, turn) {
                break;
            }
            self.has_begun = true;
            self.under_way += 1;
        }
        Ok(())
    }

    fn send(&mut self, slice: &[u8]) -> Result<(), Over> {
        let Some(connection) = self.connection.as_mut().filter(|_| !slice.is_empty()) else { return Ok(()) };
        let (channel, number) = (self.channel, self.slices);
        connection.tell(&LinkMessage::CopySlice { channel, number, bytes: slice.to_vec() })?;
        self.slices += 1;
        self.checksum = crc32c::crc32c_append(self.checksum, slice);
        Ok(())
    }

    fn end(&mut self, fault: Option<CopyFault>) -> Result<(), Over> {
        self.has_ended = true;
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let end = CopyEnd { channel: self.channel, fault, slices: self.slices, checksum: self.checksum };
        connection.tell(&LinkMessage::CopyEnd(end))
    }
}

/// Slices that a channel makes without a look at anything else at the most: some ten microseconds each.
const UNDER_WAY_MAX: usize = 4;
/// What waits for the other end; then the channel has a rest.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// A channel that doesn't answer is out of service, another end that doesn't read is gone.
const STUCK_NS: u64 = 2_000_000_000;
/// Then a channel that can't even be told is out of service.
const FORGET_NS: u64 = 10_000_000_000;
