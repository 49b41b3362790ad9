//! An image from the snapshot group: a leader sends images there unasked, one after the other.
//!
//! Nothing is requested. A chunk that was lost is awaited in the next pass of the same image. When chunks of another image arrive, those
//! of the one before are discarded: its remaining chunks do not come any more.
//!
//! ```text
//!            chunk of a usable image           last chunk, totals and checksum agree
//!  empty ─────────────────────────► collecting ─────────────────────────────────────► complete ──stream at its position──► used
//!    ▲                                │    ▲ │ another usable image                      │
//!    └── a loss behind the position ──┴────┴─┘ ◄───── a loss, or the stream never comes ─┘
//! ```
//! An image is usable if its books are not suspect and the receiver has kept every message from its position on.

use crate::{
    drop_reason::DropReason,
    frame::FrameHeader,
    identity::Sequence,
    published::snapshot::{ChunkOutcome, SnapshotAssembly, SnapshotChunk, SnapshotImage},
    time::MonoNs,
};

/// Collects the chunks of one image.
#[derive(Debug)]
pub(super) struct GroupImage {
    assembly: SnapshotAssembly,
    /// All chunks are there. The stream must reach their position before then.
    complete_until: Option<MonoNs>,
    /// The image before this one: its chunks that arrive late change nothing.
    left: Option<SnapshotImage>,
}

/// Longest time that a whole image waits for the stream to come to its position, ns. A forged position may not exist.
const COMPLETE_NS_MAX: u64 = 10_000_000_000;

impl GroupImage {
    /// Takes images of up to `bytes_max` bytes of records.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { assembly: SnapshotAssembly::new(bytes_max), complete_until: None, left: None }
    }

    /// Adds a chunk. The receiver has kept all messages from `kept_from` on.
    ///
    /// # Errors
    /// - [`DropReason::AnswerUnrequested`]: the image is not usable, or is not the one that is collected.
    /// - [`DropReason::FieldInvalid`]: it was the last chunk, and the image is damaged. All chunks were discarded.
    /// - others as [`SnapshotAssembly::add`].
    pub(super) fn accept(
        &mut self,
        chunk: &SnapshotChunk<'_>,
        kept_from: Sequence,
        now: MonoNs,
    ) -> Result<(), DropReason> {
        let image = &chunk.image;
        if image.is_suspect || image.next < kept_from || self.left == Some(*image) {
            return Err(DropReason::AnswerUnrequested);
        }
        if let Some(collected) = self.assembly.image().filter(|collected| *collected != image) {
            // A complete image needs nothing more. Another image has another number.
            if self.complete_until.is_some() || collected.image == image.image {
                return Err(DropReason::AnswerUnrequested);
            }
            // An image that can never be collected must not discard one that can.
            if !self.assembly.can_hold(image) {
                return Err(DropReason::WindowFull);
            }
            self.left = Some(*collected);
            self.assembly.clear();
        }
        match self.assembly.add(chunk)? {
            ChunkOutcome::Added => Ok(()),
            ChunkOutcome::Complete => {
                self.complete_until = Some(now.plus(COMPLETE_NS_MAX));
                Ok(())
            }
            // Its next pass may be sound.
            ChunkOutcome::Damaged => Err(DropReason::FieldInvalid),
        }
    }

    /// Discards an image whose messages are not all kept any more, and one whose position the stream has not reached in time.
    pub(super) fn discard_unusable(&mut self, kept_from: Sequence, now: MonoNs) {
        let is_too_old = self.assembly.image().is_some_and(|image| image.next < kept_from);
        if is_too_old || self.complete_until.is_some_and(|until| until <= now) {
            self.left = self.assembly.image().copied();
            self.assembly.clear();
            self.complete_until = None;
        }
    }

    /// Position of the image if all chunks are there and everything before the position was received.
    pub(super) fn ready(&self, received_through: Sequence) -> Option<Sequence> {
        let position = self.assembly.image().filter(|_| self.complete_until.is_some())?.next;
        (position <= received_through).then_some(position)
    }

    /// When a whole image has waited for too long.
    pub(super) fn next_deadline(&self) -> Option<MonoNs> {
        self.complete_until
    }

    /// The frames of a complete image.
    pub(super) fn frames(&self) -> impl Iterator<Item = (FrameHeader, &[u8])> {
        self.assembly.frames()
    }

    /// Discards everything.
    pub(super) fn clear(&mut self) {
        self.assembly.clear();
        (self.complete_until, self.left) = (None, None);
    }
}
