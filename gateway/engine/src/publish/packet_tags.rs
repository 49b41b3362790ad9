//! Tags of the packets of one batch. Each packet is tagged once, though every output line carries it.

use mdgw_feeds::published::tag::{TAG_BYTES, TagKey, TagUse};
use mdgw_publog::Position;
use mdgw_sys::batch::{HEADER_BYTES, PACKETS_MAX, TRAILER_BYTES};

const _: () = assert!(TAG_BYTES == TRAILER_BYTES);

/// Makes tags, and keeps those of the batch.
#[derive(Debug)]
pub(super) struct PacketTags {
    key: TagKey,
    /// Log position and tag of each packet, in the order in which a line carries them.
    made: Vec<(Position, [u8; TAG_BYTES])>,
}

impl PacketTags {
    pub(super) fn new(key: TagKey) -> Self {
        Self { key, made: Vec::with_capacity(PACKETS_MAX) }
    }

    /// Begins a batch: the headers of its packets differ from those before, at least in their send time.
    pub(super) fn begin(&mut self) {
        self.made.clear();
    }

    /// The tag of the packet of the log entry at `position`. `number`: index of the packet on its line, from 0.
    pub(super) fn of_entry(
        &mut self,
        number: usize,
        position: Position,
        header: &[u8; HEADER_BYTES],
        frames: &[u8],
    ) -> [u8; TAG_BYTES] {
        match self.made.get(number) {
            Some((at, tag)) if *at == position => *tag,
            _ => {
                let tag = self.key.tag(TagUse::Published, header, frames);
                // A line that is behind the others carries other entries. It makes its own tags.
                if number == self.made.len() && number < PACKETS_MAX {
                    self.made.push((position, tag));
                }
                tag
            }
        }
    }

    /// The tag of a packet that is no log entry.
    pub(super) fn of_packet(&self, header: &[u8; HEADER_BYTES], frames: &[u8]) -> [u8; TAG_BYTES] {
        self.key.tag(TagUse::Published, header, frames)
    }
}
