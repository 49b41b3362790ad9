//! Turns the entries of a publication log into the items that a receiver of the published packets delivers.
//!
//! An entry is the body of one packet. A log has no epochs, lines, heartbeats or retransmission: its entries are in order, and what
//! the log lacks does not come later. So no packet is held here, and a hole is reported at once.

use crate::{
    arbiter::{Delivery, Gap},
    drop_reason::{DropCounts, DropReason},
    identity::{ChannelId, Epoch, GroupId, Line, Sequence, Session},
    published::{
        packet::{PacketFlags, PacketMeta, check_packet},
        position::StreamPosition,
    },
    time::UnixNs,
};

use super::{
    Output, ReceiverConfig, ReceiverStatistics,
    item_stream::ItemStream,
    positions::{FIRST_SEQUENCE, message_of, part_number, position_of, positions_of},
};

/// An entry of a log, as its reader found it. Nothing of it is trusted.
#[derive(Clone, Copy, Debug)]
pub struct LogEntry<'a> {
    /// Session of `first` and `next`.
    pub session: [u8; Session::BYTES],
    /// First input sequence covered.
    pub first: u64,
    /// First input sequence after the covered range.
    pub next: u64,
    /// Frames in the payload.
    pub frame_count: u16,
    /// Lower byte: flags of the packet. Upper byte: the gateway's own.
    pub flags: u16,
    /// Frames, back to back.
    pub payload: &'a [u8],
    /// Whether the reader missed entries since the last one that it passed on.
    pub is_after_loss: bool,
}

/// Item stream of one channel's log.
#[derive(Debug)]
pub struct EntryReceiver {
    stream: ItemStream,
    /// The stream's session as entries have it, so that each session is decoded once.
    session: [u8; Session::BYTES],
    /// The next position: `sequence << 16 | part`. Everything before it was delivered or reported as lost.
    expected: Option<Sequence>,
    drops: DropCounts,
}

impl EntryReceiver {
    /// Begins with the first entry that it gets. Messages of up to `message_bytes_max` bytes of records can be joined from parts.
    #[must_use]
    pub fn new(channel: ChannelId, message_bytes_max: usize) -> Self {
        Self {
            stream: ItemStream::new(channel, &ReceiverConfig { message_bytes_max, ..ReceiverConfig::default() }),
            session: [0; Session::BYTES],
            expected: None,
            drops: DropCounts::default(),
        }
    }

    /// Continues where an earlier receiver stopped: everything before `position` counts as delivered. A message of which some
    /// parts lie before the position is delivered whole. No [`Item::Session`](super::Item::Session) is delivered for that session.
    pub fn resume(&mut self, position: StreamPosition) {
        self.stream.resume(position.session, position.sequence);
        self.session = position.session.to_bytes();
        self.expected = Some(position_of(position.sequence));
    }

    /// Processes the next entry, and delivers all items that become complete.
    ///
    /// # Errors
    /// Why no part of the entry was used. Counted in [`Self::drops`]. What an invalid entry covered is reported as lost with the
    /// next valid one.
    pub fn accept(&mut self, entry: &LogEntry<'_>, deliver: &mut impl FnMut(Output<'_>)) -> Result<(), DropReason> {
        self.accept_checked(entry, deliver).inspect_err(|reason| self.drops.count(*reason))
    }

    /// The next name: session and first message that was neither delivered nor reported. [`Self::resume`] takes it.
    #[must_use]
    pub fn position(&self) -> Option<StreamPosition> {
        Some(StreamPosition::at(self.stream.session?, message_of(self.expected?).max(self.stream.reported_through)))
    }

    /// The channel of the log.
    #[must_use]
    pub fn channel(&self) -> ChannelId {
        self.stream.id
    }

    /// Statistics of what was delivered.
    #[must_use]
    pub fn statistics(&self) -> &ReceiverStatistics {
        &self.stream.statistics
    }

    /// Entries of which no part was used, by reason.
    #[must_use]
    pub fn drops(&self) -> &DropCounts {
        &self.drops
    }

    fn accept_checked(&mut self, entry: &LogEntry<'_>, deliver: &mut impl FnMut(Output<'_>)) -> Result<(), DropReason> {
        let [flags, _] = entry.flags.to_le_bytes();
        if flags & !FLAGS_KNOWN != 0 {
            return Err(DropReason::ProtocolMismatch);
        }
        let meta = PacketMeta {
            flags: PacketFlags(flags),
            group: GroupId(0),
            channel: self.stream.id,
            epoch: Epoch(0),
            session: self.decode_session(entry.session).ok_or(DropReason::FieldInvalid)?,
            first: Sequence(entry.first),
            next: Sequence(entry.next),
            send_time_ns: 0,
        };
        let packet = check_packet(meta, entry.payload, entry.frame_count, false)?;
        let (first, next) = positions_of(&packet).ok_or(DropReason::FieldInvalid)?;
        if self.stream.session != Some(meta.session) {
            self.begin_session(meta.session, entry.is_after_loss, deliver)?;
        }
        let Self { stream, expected, .. } = self;
        let begin = *expected.get_or_insert_with(|| {
            // Nobody can begin in the middle of a message.
            let begin = if part_number(first) == 0 { first } else { position_of(message_of(first).plus(1)) };
            stream.reported_through = message_of(begin);
            begin
        });
        let is_new = if first < next { begin < next } else { begin <= next };
        if !is_new {
            return Err(DropReason::Duplicate);
        }
        if let Some(gap) = Gap::new(begin, first) {
            stream.on_delivery(Delivery::Gap(gap), deliver);
        }
        if first < next {
            let from = first.max(begin);
            let (line, block, ts_recv) = (Line::A, packet.body, UnixNs(0));
            let send_time = None;
            stream.on_delivery(
                Delivery::Packet { line, first, next, from, until: next, block, ts_recv, send_time },
                deliver,
            );
        } else {
            stream.on_out_of_sequence_frames(packet.body, deliver);
        }
        *expected = Some(next);
        if meta.flags.contains(PacketFlags::END_OF_SESSION) {
            stream.session_end = Some(position_of(meta.next));
        }
        stream.report_end_if_reached(*expected, deliver);
        Ok(())
    }

    fn decode_session(&self, session: [u8; Session::BYTES]) -> Option<Session> {
        if session == self.session { self.stream.session } else { Session::from_bytes(session) }
    }

    fn begin_session(
        &mut self,
        session: Session,
        is_after_loss: bool,
        deliver: &mut impl FnMut(Output<'_>),
    ) -> Result<(), DropReason> {
        let previous = self.stream.session;
        if previous.is_some_and(|previous| session < previous) {
            return Err(DropReason::SessionStale);
        }
        self.stream.abandon_incomplete_message(deliver);
        self.stream.begin(session, deliver);
        self.session = session.to_bytes();
        // A session that begins within the day has a first message; so has one of which the log lost the beginning.
        let is_whole = previous
            .is_some_and(|previous| is_after_loss || (previous.feed, previous.date) == (session.feed, session.date));
        self.expected = is_whole.then_some(position_of(FIRST_SEQUENCE));
        if is_whole {
            self.stream.reported_through = FIRST_SEQUENCE;
        }
        Ok(())
    }
}

/// Flags of packets, without the tag: an entry has none.
const FLAGS_KNOWN: u8 = 0b1111;

#[cfg(test)]
mod tests;
