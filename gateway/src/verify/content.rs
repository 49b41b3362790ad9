//! One content for each name, whoever said it and however often.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use mdgw_feeds::{
    frame::{FrameFlags, FrameHeader, FrameKind},
    identity::{Epoch, Session},
    published::packet::Packet,
};

use super::{
    coverage::{PartPosition, position, sequence},
    epochs::epoch_text,
    finding::{Findings, Place, Promise},
};

/// Contents of one channel.
#[derive(Debug, Default)]
pub(super) struct Contents {
    sessions: BTreeMap<Session, BTreeMap<PartPosition, Said>>,
    /// Different names.
    pub(super) names: u64,
    /// Names said again with the same content.
    pub(super) said_again: u64,
    /// Names whose content is forgotten.
    pub(super) forgotten: u64,
}

/// What was said under a name, and who said it first.
#[derive(Clone, Copy, Debug)]
struct Said {
    hash: u64,
    epoch: Epoch,
    place: Place,
}

impl Contents {
    /// Compares each message of the packet with what was said under its name before.
    pub(super) fn compare(&mut self, packet: &Packet<'_>, place: Place, names_max: usize, findings: &mut Findings) {
        let meta = &packet.meta;
        let names = self.sessions.entry(meta.session).or_default();
        for (header, body) in packet.frames().filter(|(header, _)| header.kind == FrameKind::Message as u8) {
            let name = position(mdgw_feeds::identity::Sequence(header.sequence.get())) + u64::from(header.part.get());
            let said = Said { hash: content_hash(header, body), epoch: meta.epoch, place };
            match names.entry(name) {
                Entry::Vacant(vacant) => {
                    vacant.insert(said);
                    self.names += 1;
                }
                Entry::Occupied(first) if first.get().hash == said.hash => self.said_again += 1,
                Entry::Occupied(first) => {
                    let first = *first.get();
                    findings.note(Promise::OneContent, place, || {
                        format!(
                            "channel {} {}, sequence {} part {}: {} said other records than {} did at {}",
                            meta.channel.0,
                            meta.session,
                            sequence(name),
                            header.part.get(),
                            epoch_text(meta.epoch),
                            epoch_text(first.epoch),
                            first.place.number
                        )
                    });
                }
            }
        }
        while names.len() > names_max {
            names.pop_first();
            self.forgotten += 1;
        }
    }
}

/// Of records and cut. Times of receipt are local, and whether the book is in doubt may differ between gateways.
fn content_hash(header: &FrameHeader, body: &[u8]) -> u64 {
    let cut = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
    let mut hasher = DefaultHasher::new();
    (header.record_count.get(), header.flags & cut.0, body).hash(&mut hasher);
    hasher.finish()
}
