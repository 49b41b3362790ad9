//! Entry points of the fuzz targets in `gateway/fuzz`. Compiled only with `--cfg fuzzing`.

use crate::{
    announcement::Announcement,
    auth::{Purpose, SharedKey},
    quorum::wire,
    record::Record,
};

fn key() -> SharedKey {
    SharedKey::new(&[7; 32])
}

/// A message between candidate and voter, without its tag. A message that is accepted is written as the same bytes.
///
/// # Panics
/// When it is not.
pub fn vote_message(input: &[u8]) {
    let tag = key().tag(Purpose::Vote, &[input]);
    let datagram = [input, &tag].concat();
    if let Ok(message) = wire::decode(&datagram, &key()) {
        assert_eq!(wire::encode(&message, &key()), datagram);
    }
}

/// A sentinel's notice, without its tag.
///
/// # Panics
/// When a notice that is accepted is written as other bytes.
pub fn death_notice(input: &[u8]) {
    let tag = key().tag(Purpose::DeathNotice, &[input]);
    let datagram = [input, &tag].concat();
    if let Some(announcement) = Announcement::open(&datagram, &key()) {
        assert_eq!(announcement.to_datagram(&key())[..], datagram);
    }
}

/// An election record as a store returns it.
///
/// # Panics
/// When a record that is accepted is another one after it was written and read again.
pub fn election_record(input: &[u8]) {
    if let Ok(record) = Record::from_bytes(input) {
        assert_eq!(Record::from_bytes(&record.to_bytes()).ok(), Some(record));
    }
}
