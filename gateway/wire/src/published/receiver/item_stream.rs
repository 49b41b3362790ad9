//! Turns the arbiter's output into items.

use zerocopy::FromBytes as _;

use crate::{
    arbiter::{Delivery, Gap},
    channel_state::ChannelState,
    frame::{FrameFlags, FrameHeader, FrameKind, GapBody, StateBody},
    identity::{ChannelId, Sequence, Session},
    published::packet::Frames,
};

use super::{
    BookState, Item, Output, ReceiverConfig, ReceiverStatistics,
    assembly::{Assembly, JoinOutcome},
    positions::{message_after, message_of, part_number, position_of},
    rebuild::BookHistory,
};

/// Item stream of one channel.
#[derive(Debug)]
pub(super) struct ItemStream {
    pub(super) id: ChannelId,
    pub(super) session: Option<Session>,
    assembly: Assembly,
    /// First message that was not reported yet, neither as records nor as loss.
    pub(super) reported_through: Sequence,
    state: Option<u8>,
    snapshot: Option<(u64, u16)>,
    /// Where the session ends, once announced. `has_reported_end` records whether the end was delivered.
    pub(super) session_end: Option<Sequence>,
    pub(super) has_reported_end: bool,
    pub(super) statistics: ReceiverStatistics,
    pub(super) books: BookHistory,
}

impl ItemStream {
    pub(super) fn new(id: ChannelId, config: &ReceiverConfig) -> Self {
        Self {
            id,
            session: None,
            assembly: Assembly::new(config.message_bytes_max),
            reported_through: Sequence(0),
            state: None,
            snapshot: None,
            session_end: None,
            has_reported_end: false,
            statistics: ReceiverStatistics::default(),
            books: BookHistory::new(config),
        }
    }

    pub(super) fn begin(&mut self, session: Session, deliver: &mut impl FnMut(Output<'_>)) {
        self.session = Some(session);
        self.assembly.clear();
        self.reported_through = Sequence(0);
        self.state = None;
        self.snapshot = None;
        self.session_end = None;
        self.has_reported_end = false;
        self.books.clear();
        self.emit(Item::Session, deliver);
    }

    /// Continues a session in the middle. Messages before `next` were reported.
    pub(super) fn resume(&mut self, session: Session, next: Sequence) {
        self.session = Some(session);
        self.reported_through = next;
    }

    /// Nothing was delivered since the session's begin: delivers what a program must know besides messages, the channel's state and
    /// whether the session has ended.
    pub(super) fn emit_state_and_end(&self, deliver: &mut impl FnMut(Output<'_>)) {
        if let Some(state) = self.state.and_then(ChannelState::from_number) {
            self.emit(Item::State(state), deliver);
        }
        if self.has_reported_end {
            self.emit(Item::EndOfSession, deliver);
        }
    }

    /// Forgets what was received since the session's begin. Nothing of it was delivered.
    pub(super) fn forget_undelivered(&mut self) {
        self.assembly.clear();
        (self.reported_through, self.state, self.has_reported_end) = (Sequence(0), None, false);
    }

    pub(super) fn emit(&self, item: Item<'_>, deliver: &mut impl FnMut(Output<'_>)) {
        if let Some(session) = self.session {
            deliver(Output { channel: self.id, session, reported_through: self.reported_through, item });
        }
    }

    pub(super) fn on_delivery(&mut self, delivery: Delivery<'_>, deliver: &mut impl FnMut(Output<'_>)) {
        match delivery {
            Delivery::Gap(gap) => {
                // Parts of a message at either end of the gap are useless without the missing ones.
                self.assembly.clear();
                self.report_lost(message_of(gap.first()), message_after(gap.next()), deliver);
            }
            Delivery::Packet { from, until, block, .. } => {
                for (header, body) in Frames::of_body(block) {
                    self.on_frame(header, body, from, until, deliver);
                }
                // Messages without output are covered by the range alone.
                if part_number(until) == 0 {
                    self.abandon_message_before(message_of(until), deliver);
                    self.reported_through = self.reported_through.max(message_of(until));
                }
            }
        }
    }

    /// Processes one frame of a packet of which `[from, until)` is wanted.
    fn on_frame(
        &mut self,
        header: &FrameHeader,
        body: &[u8],
        from: Sequence,
        until: Sequence,
        deliver: &mut impl FnMut(Output<'_>),
    ) {
        if FrameFlags(header.flags).contains(FrameFlags::LATE_FILL) {
            self.statistics.late_fills += 1;
            return;
        }
        let sequence = Sequence(header.sequence.get());
        let position = Sequence(position_of(sequence).0 | u64::from(header.part.get()));
        match FrameKind::from_number(header.kind) {
            Some(FrameKind::Message) if from <= position && position < until => {
                self.abandon_message_before(sequence, deliver);
                self.on_message(header, body, deliver);
            }
            Some(FrameKind::Gap) => {
                let Ok(gap) = GapBody::ref_from_bytes(body) else { return };
                let first = Sequence(gap.first.get()).max(message_of(from)).max(self.reported_through);
                let next = Sequence(gap.next.get()).min(message_after(until));
                if let Some(gap) = Gap::new(first, next) {
                    self.abandon_message_before(first, deliver);
                    self.assembly.clear();
                    self.statistics.gap_messages += gap.count();
                    self.emit(Item::Gap(gap), deliver);
                    self.reported_through = next;
                    self.suspect_books_before(next, deliver);
                }
            }
            Some(FrameKind::State | FrameKind::Snapshot) if from <= position && position <= until => {
                self.on_out_of_sequence_frame(header, body, deliver);
            }
            _ => {}
        }
    }

    /// Frames of a packet that covers nothing.
    pub(super) fn on_out_of_sequence_frames(&mut self, body: &[u8], deliver: &mut impl FnMut(Output<'_>)) {
        Frames::of_body(body).for_each(|(header, body)| self.on_out_of_sequence_frame(header, body, deliver));
    }

    /// Frames that are not a function of the input. Delivered when their content is new, whichever gateway sent them.
    fn on_out_of_sequence_frame(&mut self, header: &FrameHeader, body: &[u8], deliver: &mut impl FnMut(Output<'_>)) {
        match FrameKind::from_number(header.kind) {
            Some(FrameKind::State) => {
                let Ok(body) = StateBody::ref_from_bytes(body) else { return };
                if self.state.replace(body.state) != Some(body.state)
                    && let Some(state) = ChannelState::from_number(body.state)
                {
                    self.emit(Item::State(state), deliver);
                }
            }
            Some(FrameKind::Snapshot) => {
                let name = (header.sequence.get(), header.part.get());
                if self.snapshot.is_none_or(|last| last < name) {
                    self.snapshot = Some(name);
                    self.emit(Item::Snapshot { header, body }, deliver);
                }
            }
            _ => {}
        }
    }

    fn on_message(&mut self, header: &FrameHeader, body: &[u8], deliver: &mut impl FnMut(Output<'_>)) {
        let sequence = Sequence(header.sequence.get());
        if sequence < self.reported_through {
            return;
        }
        let Some(session) = self.session else { return };
        let (channel, reported_through) = (self.id, self.reported_through);
        let whole = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
        let books = &mut self.books;
        let mut deliver_message = |header: &FrameHeader, body: &[u8]| {
            deliver(Output { channel, session, reported_through, item: Item::Message { header, body } });
            books.keep(header, body);
            FrameFlags(header.flags).contains(FrameFlags::SUSPECT)
        };
        let is_suspect = if FrameFlags(header.flags).contains(whole) {
            deliver_message(header, body)
        } else {
            match self.assembly.add_part(header, body) {
                JoinOutcome::Incomplete => return,
                JoinOutcome::Whole(header, body) => deliver_message(&header, body),
                JoinOutcome::Broken => {
                    self.statistics.broken_messages += 1;
                    self.report_lost(sequence, sequence.plus(1), deliver);
                    return;
                }
            }
        };
        self.statistics.messages += 1;
        self.reported_through = sequence.plus(1);
        if is_suspect {
            self.suspect_books_before(self.reported_through, deliver);
        }
    }

    /// Books kept from the items may be wrong: what happened before `next` is not known, or not to the gateway.
    pub(super) fn suspect_books_before(&mut self, next: Sequence, deliver: &mut impl FnMut(Output<'_>)) {
        if self.books.suspect_before(next) {
            self.emit(Item::Books(BookState::Suspect), deliver);
        }
    }

    pub(super) fn report_lost(&mut self, first: Sequence, next: Sequence, deliver: &mut impl FnMut(Output<'_>)) {
        if let Some(gap) = Gap::new(first.max(self.reported_through), next) {
            self.statistics.lost_messages += gap.count();
            self.emit(Item::Lost(gap), deliver);
            self.reported_through = next;
            self.suspect_books_before(next, deliver);
        }
    }

    /// Something after a message is delivered, and its last part did not come: gateways with different packet sizes number the
    /// parts differently. What follows must not be delivered before the loss is reported.
    fn abandon_message_before(&mut self, next: Sequence, deliver: &mut impl FnMut(Output<'_>)) {
        if self.assembly.incomplete_message().is_some_and(|sequence| sequence < next) {
            self.statistics.broken_messages += 1;
            self.abandon_incomplete_message(deliver);
        }
    }

    /// The stream ends in the middle of a message.
    pub(super) fn abandon_incomplete_message(&mut self, deliver: &mut impl FnMut(Output<'_>)) {
        if let Some(sequence) = self.assembly.incomplete_message() {
            self.assembly.clear();
            self.report_lost(sequence, sequence.plus(1), deliver);
        }
    }

    pub(super) fn report_end_if_reached(&mut self, expected: Option<Sequence>, deliver: &mut impl FnMut(Output<'_>)) {
        if !self.has_reported_end
            && self.session_end.is_some_and(|end| expected.is_some_and(|expected| expected >= end))
        {
            self.has_reported_end = true;
            self.emit(Item::EndOfSession, deliver);
        }
    }
}
