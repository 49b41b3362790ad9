//! Reasons to reject input. One variant, one counter.

crate::counted_reasons! {
    /// Why a datagram, a message or a part of them was not used. `Copy` and without text, for the hot path.
    enum DropReason;
    /// One counter for each [`DropReason`], in packets or messages.
    struct DropCounts;
    HeaderTruncated = "header_truncated", "The datagram is shorter than its transport header.";
    ProtocolMismatch = "protocol_mismatch", "A version or protocol number that does not belong to this feed.";
    LengthMismatch = "length_mismatch", "A length in the transport header disagrees with the datagram.";
    CountMismatch = "count_mismatch", "The header announces another number of messages than the packet holds.";
    MessageTruncated = "message_truncated", "A message's length runs past the end of its datagram.";
    MessageTypeUnknown = "message_type_unknown", "The message type does not belong to this feed.";
    MessageLength = "message_length", "The message's length does not match its type.";
    FieldInvalid = "field_invalid", "A field holds a value that its type does not allow.";
    TrailingBytes = "trailing_bytes", "Bytes after the last announced message.";
    SessionStale = "session_stale", "The packet belongs to a session that has ended.";
    SessionUnconfirmed = "session_unconfirmed", "The packet belongs to an unconfirmed session; only further packets confirm it.";
    SequenceInvalid = "sequence_invalid", "Sequence number 0, or one whose range would wrap.";
    StreamOffsetInvalid = "stream_offset_invalid", "An IEX stream offset that contradicts the sequence number.";
    SequenceJump = "sequence_jump", "A sequence so far ahead that only further packets confirm it.";
    Duplicate = "duplicate", "Delivered before, by this or another line.";
    LateAfterGap = "late_after_gap", "Arrived after its gap had been declared.";
    WindowFull = "window_full", "The reorder window was full.";
    SourceUnexpected = "source_unexpected", "From a source address that is not configured for the line.";
    DatagramTruncated = "datagram_truncated", "The kernel truncated the datagram: larger than the receive buffer.";
    InstrumentTableFull = "instrument_table_full", "The instrument table is full.";
    InstrumentIdCollision = "instrument_id_collision", "Two symbols have the same id; the configuration must resolve it.";
    EpochStale = "epoch_stale", "Published under an epoch below the highest accepted one: the sender no longer leads.";
    EpochJump = "epoch_jump", "An epoch too far above the highest accepted one.";
    EpochUnconfirmed = "epoch_unconfirmed", "Received while rival epochs were seen at the start, and nothing decided between them.";
    AnswerUnrequested = "answer_unrequested", "An answer of a retransmission service to a request that is no longer open.";
    TagMissing = "tag_missing", "A published packet or an answer without a tag, where tags are required.";
    TagInvalid = "tag_invalid", "The tag was made under another key or for another use, or the packet was changed.";
    ChannelUnknown = "channel_unknown", "For a group or a channel that is not received here.";
}

impl DropReason {
    /// Whether the reason is normal for redundant lines and services and no sign of damage.
    #[must_use]
    pub fn is_expected(self) -> bool {
        matches!(self, Self::Duplicate | Self::AnswerUnrequested)
    }
}

impl DropCounts {
    /// Decrements: a rejected packet was used after all.
    pub fn uncount(&mut self, reason: DropReason) {
        if let Some(slot) = self.0.get_mut(reason as usize) {
            *slot = slot.saturating_sub(1);
        }
    }

    /// Sum of all reasons that are not normal for redundant lines.
    #[must_use]
    pub fn unexpected(&self) -> u64 {
        self.iter().filter(|(reason, _)| !reason.is_expected()).map(|(_, count)| count).sum()
    }
}
