//! The end of a closed names file: where its channels are.

use std::{fs::File, os::unix::fs::FileExt as _, path::Path};

use mdgw_wire::identity::ChannelId;

use crate::{
    JournalError,
    names::{ChannelPosition, ENTRY_BYTES, NameEntry},
};

/// Reads the positions in front of the last checkpoint.
pub(crate) fn read(path: &Path) -> Result<Vec<(ChannelId, ChannelPosition)>, JournalError> {
    let file = File::open(path).map_err(JournalError::io("open", path))?;
    let bytes = file.metadata().map_err(JournalError::io("examine", path))?.len();
    let entry_bytes = ENTRY_BYTES as u64;
    let entry_count = (bytes / entry_bytes).saturating_sub(1);
    if !bytes.is_multiple_of(entry_bytes) || entry_count == 0 {
        return Err(JournalError::unusable(path, "its end is missing"));
    }
    let mut positions = Vec::new();
    for number in (0..entry_count).rev() {
        let mut bytes = [0; ENTRY_BYTES];
        file.read_exact_at(&mut bytes, (number + 1) * entry_bytes).map_err(JournalError::io("read", path))?;
        let is_last = number + 1 == entry_count;
        match NameEntry::read(&bytes, number) {
            Ok(NameEntry::Checkpoint(checkpoint)) if is_last && checkpoint.is_closed => {}
            Ok(NameEntry::Position(channel, position)) if !is_last => positions.push((channel, position)),
            Ok(_) if !is_last => break,
            _ => return Err(JournalError::unusable(path, format!("entry {number} at its end is damaged"))),
        }
    }
    Ok(positions)
}
