//! Reasons to reject input. One variant, one counter.

/// Why a datagram, a message or a part of them was not used. `Copy` and without text, for the hot path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// The datagram is shorter than its transport header.
    HeaderTruncated,
    /// A version or protocol number that does not belong to this feed.
    ProtocolMismatch,
    /// A length in the transport header disagrees with the datagram.
    LengthMismatch,
    /// The header announces another number of messages than the packet holds.
    CountMismatch,
    /// A message's length runs past the end of its datagram.
    MessageTruncated,
    /// The message type does not belong to this feed.
    MessageTypeUnknown,
    /// The message's length does not match its type.
    MessageLength,
    /// A field holds a value that its type does not allow.
    FieldInvalid,
    /// Bytes after the last announced message.
    TrailingBytes,
    /// The packet belongs to a session that has ended.
    SessionStale,
    /// The packet belongs to an unconfirmed session; only further packets confirm it.
    SessionUnconfirmed,
    /// Sequence number 0, or one whose range would wrap.
    SequenceInvalid,
    /// An IEX stream offset that contradicts the sequence number.
    StreamOffsetInvalid,
    /// A sequence so far ahead that only further packets confirm it.
    SequenceJump,
    /// Delivered before, by this or another line.
    Duplicate,
    /// Arrived after its gap had been declared.
    LateAfterGap,
    /// The reorder window was full.
    WindowFull,
    /// From a source address that is not configured for the line.
    SourceUnexpected,
    /// The kernel truncated the datagram: larger than the receive buffer.
    DatagramTruncated,
    /// The instrument table is full.
    InstrumentTableFull,
    /// Two symbols have the same id; the configuration must resolve it.
    InstrumentIdCollision,
    /// Published under an epoch below the highest accepted one: the sender no longer leads.
    EpochStale,
    /// An epoch too far above the highest accepted one.
    EpochJump,
    /// For a group or a channel that is not received here.
    ChannelUnknown,
}

impl DropReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 24] = [
        Self::HeaderTruncated,
        Self::ProtocolMismatch,
        Self::LengthMismatch,
        Self::CountMismatch,
        Self::MessageTruncated,
        Self::MessageTypeUnknown,
        Self::MessageLength,
        Self::FieldInvalid,
        Self::TrailingBytes,
        Self::SessionStale,
        Self::SessionUnconfirmed,
        Self::SequenceInvalid,
        Self::StreamOffsetInvalid,
        Self::SequenceJump,
        Self::Duplicate,
        Self::LateAfterGap,
        Self::WindowFull,
        Self::SourceUnexpected,
        Self::DatagramTruncated,
        Self::InstrumentTableFull,
        Self::InstrumentIdCollision,
        Self::EpochStale,
        Self::EpochJump,
        Self::ChannelUnknown,
    ];

    /// Name of the counter.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HeaderTruncated => "header_truncated",
            Self::ProtocolMismatch => "protocol_mismatch",
            Self::LengthMismatch => "length_mismatch",
            Self::CountMismatch => "count_mismatch",
            Self::MessageTruncated => "message_truncated",
            Self::MessageTypeUnknown => "message_type_unknown",
            Self::MessageLength => "message_length",
            Self::FieldInvalid => "field_invalid",
            Self::TrailingBytes => "trailing_bytes",
            Self::SessionStale => "session_stale",
            Self::SessionUnconfirmed => "session_unconfirmed",
            Self::SequenceInvalid => "sequence_invalid",
            Self::StreamOffsetInvalid => "stream_offset_invalid",
            Self::SequenceJump => "sequence_jump",
            Self::Duplicate => "duplicate",
            Self::LateAfterGap => "late_after_gap",
            Self::WindowFull => "window_full",
            Self::SourceUnexpected => "source_unexpected",
            Self::DatagramTruncated => "datagram_truncated",
            Self::InstrumentTableFull => "instrument_table_full",
            Self::InstrumentIdCollision => "instrument_id_collision",
            Self::EpochStale => "epoch_stale",
            Self::EpochJump => "epoch_jump",
            Self::ChannelUnknown => "channel_unknown",
        }
    }

    /// Whether the reason is normal for redundant lines and no sign of damage.
    #[must_use]
    pub fn is_expected(self) -> bool {
        matches!(self, Self::Duplicate)
    }
}

/// One counter for each [`DropReason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounts([u64; DropReason::ALL.len()]);

impl DropCounts {
    /// Counts one.
    pub fn count(&mut self, reason: DropReason) {
        self.count_many(reason, 1);
    }

    /// Counts several.
    pub fn count_many(&mut self, reason: DropReason, count: u64) {
        if let Some(slot) = self.0.get_mut(reason as usize) {
            *slot = slot.saturating_add(count);
        }
    }

    /// Decrements: a rejected packet was used after all.
    pub(crate) fn uncount(&mut self, reason: DropReason) {
        if let Some(slot) = self.0.get_mut(reason as usize) {
            *slot = slot.saturating_sub(1);
        }
    }

    /// Count of that reason.
    #[must_use]
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or(0)
    }

    /// Reasons with a non-zero count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.get(reason))).filter(|(_, count)| *count > 0)
    }

    /// Sum of all reasons that are not normal for redundant lines.
    #[must_use]
    pub fn unexpected(&self) -> u64 {
        self.iter().filter(|(reason, _)| !reason.is_expected()).map(|(_, count)| count).sum()
    }
}
