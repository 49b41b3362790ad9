//! Turns delivered messages into frames.

use zerocopy::IntoBytes as _;

use super::{
    ChannelCounters,
    feed_core::{ApplyOutcome, FeedCore, MessageNotice},
    rejected_packets::{RejectedPackets, RejectionKind},
};
use crate::transport::Transport;
use mdgw_wire::{
    consumer_edge::TsRecvMode,
    drop_reason::{DropCounts, DropReason},
    frame::{FrameFlags, FrameKind, FrameMeta, FrameSink, GapBody},
    identity::Sequence,
    time::UnixNs,
};

/// The parts of a channel that turn delivered messages into frames, borrowed for one delivery.
pub(super) struct MessageProcessor<'c, C> {
    pub(super) core: &'c mut C,
    pub(super) counters: &'c mut ChannelCounters,
    pub(super) drops: &'c mut DropCounts,
    pub(super) rejected_packets: &'c mut RejectedPackets,
    pub(super) ts_recv: TsRecvMode,
    /// Input of this session was missed.
    pub(super) has_missed_input: bool,
    pub(super) end_sequence: &'c mut Option<Sequence>,
}

impl<C: FeedCore> MessageProcessor<'_, C> {
    /// Two passes over the packet: the first prefetches the memory that the second will touch. Returns `false` if a
    /// message that a book may depend on could not be decoded.
    #[allow(clippy::too_many_arguments, reason = "the fields of one delivery")]
    pub(super) fn packet<S: FrameSink>(
        &mut self,
        first: Sequence,
        from: Sequence,
        until: Sequence,
        block: &[u8],
        ts_recv: UnixNs,
        send_time: Option<UnixNs>,
        sink: &mut S,
    ) -> bool {
        let mut lookahead = block;
        while let Some(message) = C::Transport::next_message(&mut lookahead) {
            self.core.prefetch(message);
        }
        let mut rest = block;
        let (mut sequence, mut is_all_understood) = (first, true);
        while sequence < until {
            let Some(message) = C::Transport::next_message(&mut rest) else {
                // The block is shorter than its range. The missing messages must not count as messages without
                // output.
                self.drops.count(DropReason::MessageTruncated);
                self.core.on_gap();
                let missing_first = sequence.max(from);
                let body = GapBody { first: missing_first.0.into(), next: until.0.into() };
                sink.frame(&FrameMeta::control(FrameKind::Gap, missing_first, until), 0, body.as_bytes());
                return false;
            };
            if sequence >= from {
                is_all_understood &= self.message(message, sequence, block, ts_recv, send_time, sink);
            }
            sequence = sequence.plus(1);
        }
        is_all_understood
    }

    fn message<S: FrameSink>(
        &mut self,
        message: &[u8],
        sequence: Sequence,
        block: &[u8],
        ts_recv: UnixNs,
        send_time: Option<UnixNs>,
        sink: &mut S,
    ) -> bool {
        self.counters.messages += 1;
        let (applied, is_understood) = match self.core.apply(message, sequence) {
            Ok(applied) => (applied, true),
            Err(reason) => {
                self.counters.messages_refused += 1;
                self.drops.count(reason);
                self.rejected_packets.add(RejectionKind::Refused(reason), sequence, ts_recv, block);
                if reason == DropReason::MessageTypeUnknown {
                    return true;
                }
                (ApplyOutcome { suspect: true, ts_event: ts_recv.0, ..ApplyOutcome::default() }, false)
            }
        };
        if let Some(fault) = applied.fault {
            self.rejected_packets.add(RejectionKind::Contradicted(fault), sequence, ts_recv, block);
        }
        match applied.notice {
            None => {}
            Some(MessageNotice::TradeBroken) => self.counters.trades_broken += 1,
            Some(MessageNotice::EndOfMessages) => *self.end_sequence = Some(sequence.plus(1)),
        }
        let records = self.core.records();
        let (count, bytes) = if is_understood { (records.count(), records.bytes()) } else { (0, &[][..]) };
        // A message that a book rejected is published as a suspect frame without records. The next leader may have
        // sound books, and without this frame it would continue as if the message had no effect.
        if count == 0 && is_understood && applied.fault.is_none() {
            return true;
        }
        self.counters.frames += 1;
        self.counters.records += u64::from(count);
        let (ts_recv, ts_in_delta_ns) = match self.ts_recv {
            TsRecvMode::Capture => (ts_recv, delta_ns(ts_recv, send_time.map_or(applied.ts_event, |sent| sent.0))),
            TsRecvMode::None => (UnixNs::UNDEFINED, 0),
        };
        // The missed input may already have mapped the instrument that this message maps. With complete input this
        // record would not exist, so the frame is suspect.
        let is_suspect = applied.suspect || self.has_missed_input && records.begin_with_mapping();
        let mut meta = FrameMeta::message(sequence, ts_recv, ts_in_delta_ns);
        if is_suspect {
            meta.flags = FrameFlags::SUSPECT;
        }
        sink.frame(&meta, count, bytes);
        is_understood
    }
}

/// `ts_recv - sent`, clamped to the range of the record's field.
fn delta_ns(ts_recv: UnixNs, sent: u64) -> i32 {
    let delta = i128::from(ts_recv.0) - i128::from(sent);
    i32::try_from(delta).unwrap_or(if delta < 0 { i32::MIN } else { i32::MAX })
}
